//! What a receiver calls what it took: the name under which it can be asked for it.

use std::fmt;

/// Longest location kept, in bytes: longer ones are left out rather than cut, since a part of one leads nowhere.
pub const LOCATION_BYTES_MAX: usize = 500;

/// A receiver's own name for a delivery that it confirmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Receipt {
    /// A record's place in its topic.
    Kafka {
        /// The partition.
        partition: i32,
        /// The place in it.
        offset: i64,
    },
    /// An HTTP answer.
    Http {
        /// Its status.
        status: u16,
        /// Its header `Location`, where it had one.
        location: Option<Box<str>>,
    },
}

impl Receipt {
    /// Reads what `to_string` wrote: a format of the disk.
    pub fn parse(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once(':')?;
        let (first, second) = rest.split_once(':')?;
        match kind {
            "kafka" => Some(Self::Kafka {
                partition: first.parse().ok()?,
                offset: second.parse().ok()?,
            }),
            "http" => Some(Self::Http {
                status: first.parse().ok()?,
                location: (!second.is_empty()).then(|| second.into()),
            }),
            _ => None,
        }
    }
}

impl fmt::Display for Receipt {
    /// `kafka:PARTITION:OFFSET` or `http:STATUS:LOCATION`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kafka { partition, offset } => write!(f, "kafka:{partition}:{offset}"),
            Self::Http { status, location } => {
                write!(f, "http:{status}:{}", location.as_deref().unwrap_or(""))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_back_and_does_not_move() {
        let http = |status, location: Option<&str>| Receipt::Http {
            status,
            location: location.map(Into::into),
        };
        for (receipt, text) in [
            (
                Receipt::Kafka {
                    partition: 3,
                    offset: 12_345,
                },
                "kafka:3:12345",
            ),
            (http(204, None), "http:204:"),
            (
                http(201, Some("https://wms.example.com:8443/orders/7")),
                "http:201:https://wms.example.com:8443/orders/7",
            ),
        ] {
            assert_eq!(receipt.to_string(), text);
            assert_eq!(Receipt::parse(text), Some(receipt));
        }
        for text in ["", "kafka", "kafka:3", "kafka:x:1", "http:x:", "other:1:2"] {
            assert_eq!(Receipt::parse(text), None, "{text}");
        }
    }
}
