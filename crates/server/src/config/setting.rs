//! What a value of the tree can be read as.

use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use serde_json::Value as Json;
use wayhold_model::admission::Fill;
use wayhold_model::condition::Condition;
use wayhold_model::rate::{InvalidRate, Rate};
use wayhold_model::template::Template;

use crate::config::destination::{DestinationName, InvalidName};
use crate::config::listen::{InvalidListenAddr, ListenAddr};
use crate::config::problem::Origin;
use crate::config::quantity::{Size, parse_duration, parse_size, show_duration, show_size};
use crate::config::tree::{Node, Value, inline};

/// A kind of value that can be configured.
pub(crate) trait Setting: Sized {
    /// Reads it.
    ///
    /// # Errors
    /// Says what was expected, of a list for each element.
    fn read(node: &Node) -> Result<Self, Faults>;

    /// Shows it as the file would write it.
    fn show(&self) -> Json;
}

/// What is wrong with a value; never empty.
pub(crate) struct Faults(pub(crate) Vec<Fault>);

/// What was expected of a value, or of one element of a list.
pub(crate) struct Fault {
    /// The element's number and place.
    pub(crate) element: Option<(usize, Origin)>,
    /// What was expected.
    pub(crate) message: String,
}

impl Faults {
    /// One fault of the value as a whole.
    pub(crate) fn new(message: impl Display) -> Self {
        Self::several(vec![message.to_string()])
    }

    /// Several faults of the value as a whole; at least one.
    pub(crate) fn several(messages: Vec<String>) -> Self {
        let fault = |message| Fault {
            element: None,
            message,
        };
        Self(messages.into_iter().map(fault).collect())
    }
}

/// A closed choice, written as one of a few words.
pub(crate) trait Choice: Copy + PartialEq + 'static {
    /// The words and what they mean.
    const WORDS: &'static [(&'static str, Self)];
}

impl<T: Choice> Setting for T {
    fn read(node: &Node) -> Result<Self, Faults> {
        let text = text_of(node).unwrap_or_default();
        let found = T::WORDS.iter().find(|(word, _)| *word == text);
        found.map(|(_, value)| *value).ok_or_else(|| {
            let words: Vec<_> = T::WORDS
                .iter()
                .map(|(word, _)| format!("{word:?}"))
                .collect();
            Faults::new(format!(
                "expected one of {}{}",
                words.join(", "),
                instead_of(node)
            ))
        })
    }

    fn show(&self) -> Json {
        let found = T::WORDS.iter().find(|(_, value)| value == self);
        found.map_or(Json::Null, |(word, _)| (*word).into())
    }
}

impl Setting for String {
    fn read(node: &Node) -> Result<Self, Faults> {
        let Some(text) = text_of(node) else {
            return Err(Faults::new(format!("expected a text{}", instead_of(node))));
        };
        if text.chars().any(char::is_control) {
            return Err(Faults::new("expected a text without control characters"));
        }
        Ok(text.to_owned())
    }

    fn show(&self) -> Json {
        self.as_str().into()
    }
}

/// A whole number that is not negative.
impl Setting for u64 {
    fn read(node: &Node) -> Result<Self, Faults> {
        match &node.value {
            Value::Integer(number) => Self::try_from(*number)
                .map_err(|_| Faults::new(format!("expected no negative number, not {number}"))),
            Value::Untyped(text) => text
                .parse()
                .map_err(|_| Faults::new("expected a whole number")),
            _ => Err(Faults::new(format!(
                "expected a whole number{}",
                instead_of(node)
            ))),
        }
    }

    fn show(&self) -> Json {
        (*self).into()
    }
}

impl Setting for usize {
    fn read(node: &Node) -> Result<Self, Faults> {
        let number = u64::read(node)?;
        number
            .try_into()
            .map_err(|_| Faults::new(format!("expected at most {}", Self::MAX)))
    }

    fn show(&self) -> Json {
        (*self).into()
    }
}

impl Setting for u32 {
    fn read(node: &Node) -> Result<Self, Faults> {
        let number = u64::read(node)?;
        number
            .try_into()
            .map_err(|_| Faults::new(format!("expected at most {}", Self::MAX)))
    }

    fn show(&self) -> Json {
        (*self).into()
    }
}

/// True or false, as a text as well: that is how files of properties say it.
impl Setting for bool {
    fn read(node: &Node) -> Result<Self, Faults> {
        let flag = match &node.value {
            Value::Boolean(flag) => Some(*flag),
            Value::Text(text) | Value::Untyped(text) => text.parse().ok(),
            _ => None,
        };
        flag.ok_or_else(|| Faults::new(format!("expected true or false{}", instead_of(node))))
    }

    fn show(&self) -> Json {
        (*self).into()
    }
}

/// A fraction above 0 and up to 1.
impl Setting for Fill {
    fn read(node: &Node) -> Result<Self, Faults> {
        let fraction = match &node.value {
            Value::Fraction(fraction) => Some(*fraction),
            Value::Integer(1) => Some(1.0),
            Value::Untyped(text) => text.parse().ok(),
            _ => None,
        };
        let expected = || Faults::new("expected a number above 0 and up to 1, such as 0.8");
        fraction.and_then(Self::from_fraction).ok_or_else(expected)
    }

    fn show(&self) -> Json {
        self.fraction().into()
    }
}

impl Setting for Duration {
    fn read(node: &Node) -> Result<Self, Faults> {
        parse_duration(text_of(node).unwrap_or_default()).map_err(Faults::new)
    }

    fn show(&self) -> Json {
        show_duration(*self).into()
    }
}

impl Setting for Size {
    fn read(node: &Node) -> Result<Self, Faults> {
        parse_size(text_of(node).unwrap_or_default()).map_err(Faults::new)
    }

    fn show(&self) -> Json {
        show_size(*self).into()
    }
}

/// A path; relative to the file that names it.
impl Setting for PathBuf {
    fn read(node: &Node) -> Result<Self, Faults> {
        let text = String::read(node)?;
        if text.is_empty() {
            return Err(Faults::new("expected a path"));
        }
        Ok(node.origin.resolve(&text))
    }

    fn show(&self) -> Json {
        self.to_string_lossy().into()
    }
}

impl Setting for ListenAddr {
    fn read(node: &Node) -> Result<Self, Faults> {
        let address = text_of(node).unwrap_or_default().parse();
        match address.map_err(|error: InvalidListenAddr| Faults::new(error))? {
            Self::Unix(path) => Ok(Self::Unix(node.origin.resolve(&path.to_string_lossy()))),
            tcp @ Self::Tcp(_) => Ok(tcp),
        }
    }

    fn show(&self) -> Json {
        self.to_string().into()
    }
}

impl Setting for Rate {
    fn read(node: &Node) -> Result<Self, Faults> {
        let rate = text_of(node).unwrap_or_default().parse();
        rate.map_err(|error: InvalidRate| Faults::new(error))
    }

    fn show(&self) -> Json {
        self.to_string().into()
    }
}

impl Setting for IpNet {
    fn read(node: &Node) -> Result<Self, Faults> {
        let Ok(network) = text_of(node).unwrap_or_default().parse::<Self>() else {
            return Err(Faults::new(
                "expected a network such as \"10.0.0.0/8\" or \"::1/128\"",
            ));
        };
        // "10.1.2.3/8" more often means one host than the network that it would be read as.
        if network.trunc() != network {
            let network = network.trunc();
            return Err(Faults::new(format!(
                "expected \"{network}\": host bits are set"
            )));
        }
        Ok(network)
    }

    fn show(&self) -> Json {
        self.to_string().into()
    }
}

impl Setting for DestinationName {
    fn read(node: &Node) -> Result<Self, Faults> {
        let name = text_of(node).unwrap_or_default().parse();
        name.map_err(|error: InvalidName| Faults::new(error))
    }

    fn show(&self) -> Json {
        self.as_str().into()
    }
}

impl Setting for Condition {
    fn read(node: &Node) -> Result<Self, Faults> {
        let Some(text) = text_of(node) else {
            let example = "expected a condition such as 'type == \"order\"'";
            return Err(Faults::new(format!("{example}{}", instead_of(node))));
        };
        Self::compile(text).map_err(Faults::new)
    }

    fn show(&self) -> Json {
        self.to_string().into()
    }
}

/// A template over attributes alone; `DataTemplate` reads data too.
impl Setting for Template {
    fn read(node: &Node) -> Result<Self, Faults> {
        Self::parse_attributes(&String::read(node)?).map_err(Faults::new)
    }

    fn show(&self) -> Json {
        self.to_string().into()
    }
}

/// A template over attributes and data: the ordering key's.
pub(crate) struct DataTemplate(pub(crate) Template);

impl Setting for DataTemplate {
    fn read(node: &Node) -> Result<Self, Faults> {
        Template::parse(&String::read(node)?)
            .map(Self)
            .map_err(Faults::new)
    }

    fn show(&self) -> Json {
        self.0.to_string().into()
    }
}

/// A list. An environment variable that is no list in TOML's form is a list of one.
impl<T: Setting> Setting for Vec<T> {
    fn read(node: &Node) -> Result<Self, Faults> {
        match &node.value {
            Value::List(elements) => read_elements(elements),
            Value::Untyped(text) => match inline(text, &node.origin) {
                Some(Value::List(elements)) => read_elements(&elements),
                _ => Ok(vec![T::read(node)?]),
            },
            other => Err(Faults::new(format!(
                "expected a list, not {}",
                other.kind()
            ))),
        }
    }

    fn show(&self) -> Json {
        self.iter().map(Setting::show).collect()
    }
}

fn read_elements<T: Setting>(elements: &[Node]) -> Result<Vec<T>, Faults> {
    let mut values = Vec::new();
    let mut faults = Vec::new();
    for (index, node) in elements.iter().enumerate() {
        match T::read(node) {
            Ok(value) => values.push(value),
            Err(Faults(of_element)) => faults.extend(of_element.into_iter().map(|fault| Fault {
                element: Some((index, node.origin.clone())),
                message: fault.message,
            })),
        }
    }
    if faults.is_empty() {
        Ok(values)
    } else {
        Err(Faults(faults))
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
