//! What a value of the tree can be read as.

use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use serde_json::Value as Json;
use wayhold_model::condition::Condition;
use wayhold_model::template::Template;

use crate::config::destination::DestinationName;
use crate::config::listen::ListenAddr;
use crate::config::quantity::{Size, parse_duration, parse_size, show_duration, show_size};
use crate::config::tree::{Node, Value, inline};

/// A kind of value that can be configured.
pub(crate) trait Setting: Sized {
    /// Reads it.
    ///
    /// # Errors
    /// Says what was expected.
    fn read(node: &Node) -> Result<Self, String>;

    /// Shows it as the file would write it.
    fn show(&self) -> Json;
}

/// A closed choice, written as one of a few words.
pub(crate) trait Choice: Copy + PartialEq + 'static {
    /// The words and what they mean.
    const WORDS: &'static [(&'static str, Self)];
}

impl<T: Choice> Setting for T {
    fn read(node: &Node) -> Result<Self, String> {
        let text = text_of(node).unwrap_or_default();
        let found = T::WORDS.iter().find(|(word, _)| *word == text);
        found.map(|(_, value)| *value).ok_or_else(|| {
            let words: Vec<_> = T::WORDS
                .iter()
                .map(|(word, _)| format!("{word:?}"))
                .collect();
            format!("expected {}{}", words.join(" or "), instead_of(node))
        })
    }

    fn show(&self) -> Json {
        let found = T::WORDS.iter().find(|(_, value)| value == self);
        found.map_or(Json::Null, |(word, _)| (*word).into())
    }
}

impl Setting for String {
    fn read(node: &Node) -> Result<Self, String> {
        let text = text_of(node).ok_or_else(|| format!("expected a text{}", instead_of(node)))?;
        if text.chars().any(char::is_control) {
            return Err("expected a text without control characters".to_owned());
        }
        Ok(text.to_owned())
    }

    fn show(&self) -> Json {
        self.as_str().into()
    }
}

/// A count, or another whole number that is not negative.
impl Setting for u64 {
    fn read(node: &Node) -> Result<Self, String> {
        let number = match &node.value {
            Value::Integer(number) => u64::try_from(*number).ok(),
            Value::Untyped(text) => text.parse().ok(),
            _ => None,
        };
        number.ok_or_else(|| format!("expected a whole number{}", instead_of(node)))
    }

    fn show(&self) -> Json {
        (*self).into()
    }
}

impl Setting for usize {
    fn read(node: &Node) -> Result<Self, String> {
        let number = u64::read(node)?;
        number
            .try_into()
            .map_err(|_| "expected a smaller number".to_owned())
    }

    fn show(&self) -> Json {
        (*self).into()
    }
}

impl Setting for u32 {
    fn read(node: &Node) -> Result<Self, String> {
        let number = u64::read(node)?;
        number
            .try_into()
            .map_err(|_| format!("expected at most {}", u32::MAX))
    }

    fn show(&self) -> Json {
        (*self).into()
    }
}

impl Setting for Duration {
    fn read(node: &Node) -> Result<Self, String> {
        parse_duration(text_of(node).unwrap_or_default()).map_err(|error| error.to_string())
    }

    fn show(&self) -> Json {
        show_duration(*self).into()
    }
}

impl Setting for Size {
    fn read(node: &Node) -> Result<Self, String> {
        parse_size(text_of(node).unwrap_or_default()).map_err(|error| error.to_string())
    }

    fn show(&self) -> Json {
        show_size(*self).into()
    }
}

/// A path; relative to the file that names it.
impl Setting for PathBuf {
    fn read(node: &Node) -> Result<Self, String> {
        let text = String::read(node)?;
        if text.is_empty() {
            return Err("expected a path".to_owned());
        }
        Ok(node.origin.resolve(&text))
    }

    fn show(&self) -> Json {
        self.to_string_lossy().into()
    }
}

impl Setting for ListenAddr {
    fn read(node: &Node) -> Result<Self, String> {
        let address = text_of(node).unwrap_or_default().parse();
        match address
            .map_err(|error: crate::config::listen::InvalidListenAddr| error.to_string())?
        {
            Self::Unix(path) => Ok(Self::Unix(node.origin.resolve(&path.to_string_lossy()))),
            tcp @ Self::Tcp(_) => Ok(tcp),
        }
    }

    fn show(&self) -> Json {
        self.to_string().into()
    }
}

impl Setting for IpNet {
    fn read(node: &Node) -> Result<Self, String> {
        let text = text_of(node).unwrap_or_default();
        let network: Self = text
            .parse()
            .map_err(|_| "expected a network such as \"10.0.0.0/8\" or \"::1/128\"".to_owned())?;
        // "10.1.2.3/8" more often means one host than the network that it would be read as.
        if network.trunc() != network {
            return Err(format!(
                "expected \"{}\": host bits are set",
                network.trunc()
            ));
        }
        Ok(network)
    }

    fn show(&self) -> Json {
        self.to_string().into()
    }
}

impl Setting for DestinationName {
    fn read(node: &Node) -> Result<Self, String> {
        let name = text_of(node).unwrap_or_default().parse();
        name.map_err(|error: crate::config::destination::InvalidName| error.to_string())
    }

    fn show(&self) -> Json {
        self.as_str().into()
    }
}

impl Setting for Condition {
    fn read(node: &Node) -> Result<Self, String> {
        let text = text_of(node).ok_or_else(|| {
            format!(
                "expected a condition such as 'type == \"order\"'{}",
                instead_of(node)
            )
        })?;
        Self::compile(text).map_err(|error| error.to_string())
    }

    fn show(&self) -> Json {
        self.to_string().into()
    }
}

/// A template over attributes alone. One that reads data is read by `key_template`.
impl Setting for Template {
    fn read(node: &Node) -> Result<Self, String> {
        Self::parse_attributes(&String::read(node)?).map_err(|error| error.to_string())
    }

    fn show(&self) -> Json {
        self.to_string().into()
    }
}

/// A template over attributes and data: the ordering key's.
#[derive(Clone, Debug)]
pub(crate) struct DataTemplate(pub(crate) Template);

impl Setting for DataTemplate {
    fn read(node: &Node) -> Result<Self, String> {
        let template = Template::parse(&String::read(node)?);
        template.map(Self).map_err(|error| error.to_string())
    }

    fn show(&self) -> Json {
        self.0.to_string().into()
    }
}

/// A list. An environment variable that is no list in TOML's form is a list of one.
impl<T: Setting> Setting for Vec<T> {
    fn read(node: &Node) -> Result<Self, String> {
        let wanted = || format!("expected a list{}", instead_of(node));
        match &node.value {
            Value::List(elements) => elements.iter().map(T::read).collect(),
            Value::Untyped(text) => match inline(text, &node.origin) {
                Some(Value::List(elements)) => elements.iter().map(T::read).collect(),
                _ => Ok(vec![T::read(node)?]),
            },
            _ => Err(wanted()),
        }
    }

    fn show(&self) -> Json {
        self.iter().map(Setting::show).collect()
    }
}

/// The text of a value, where it is one.
pub(crate) fn text_of(node: &Node) -> Option<&str> {
    match &node.value {
        Value::Text(text) | Value::Untyped(text) => Some(text),
        _ => None,
    }
}

/// `, not a list`, where the kind of value is what is wrong.
fn instead_of(node: &Node) -> String {
    match &node.value {
        Value::Text(_) | Value::Untyped(_) => String::new(),
        other => format!(", not {}", other.kind()),
    }
}
