//! A place in a template: what of an event stands there. Written between braces as an attribute's name
//! (`{subject}`) or as a JSON pointer (RFC 6901) into the data that begins with `/data` (`{/data/order/id}`).

use std::fmt;

use crate::attribute::AttributeName;
use crate::pointer::Pointer;

/// Something of an event that a template names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// An attribute.
    Attribute(AttributeName),
    /// A value of the event's JSON data.
    Data(Pointer),
}

impl Place {
    /// What may stand between the braces, for messages.
    pub const EXPECTED: &str =
        "an attribute such as {subject}, or a JSON pointer such as {/data/order}";

    /// The place of that name, without its braces; `None` when it names nothing.
    pub fn parse(text: &str) -> Option<Self> {
        match text.strip_prefix("/data") {
            Some(pointer) => Pointer::parse(pointer).map(Self::Data),
            None => text.parse().ok().map(Self::Attribute),
        }
    }
}

impl fmt::Display for Place {
    /// As it is written, with its braces.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attribute(name) => write!(f, "{{{name}}}"),
            Self::Data(pointer) => write!(f, "{{/data{pointer}}}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_an_attribute_or_a_pointer_into_the_data_and_shows_as_written() {
        for text in ["subject", "priority", "/data", "/data/a~1b/0", "/data/"] {
            assert_eq!(
                Place::parse(text).unwrap().to_string(),
                format!("{{{text}}}")
            );
        }
        for text in ["", "data", "Type", "/date/x", "/datax", "/data/~2", "a b"] {
            assert_eq!(Place::parse(text), None, "{text}");
        }
    }
}
