//! Keys of `kind = "kafka"`.

use std::collections::BTreeMap;

use wayhold_model::template::Template;

use crate::config::{Choice, Secret, Section, TextOrSecret};
use crate::sink::kafka::property::check_property;

/// A Kafka destination.
#[derive(Clone, Debug)]
pub struct KafkaConfig {
    /// `host:port` of brokers to begin with, joined by commas.
    pub bootstrap_servers: String,
    /// Topic of each event, a template over its attributes.
    pub topic: Template,
    /// Partition of each event, a template over its attributes; one that lacks an attribute goes where its key says.
    pub partition: Option<Template>,
    /// How an event becomes a record.
    pub mode: KafkaMode,
    /// Headers beside those of CloudEvents, each a template over attributes; an event that lacks one goes
    /// without the header.
    pub headers: Vec<(String, Template)>,
    /// Codec of record batches.
    pub compression: Compression,
    /// Settings handed through to librdkafka. All are treated as secrets, since many are.
    pub properties: BTreeMap<String, Secret>,
}

/// How an event becomes a record (CloudEvents Kafka binding).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KafkaMode {
    /// Attributes as headers, data as value.
    Binary,
    /// The whole event as a JSON value.
    Structured,
}

impl Choice for KafkaMode {
    const WORDS: &'static [(&'static str, Self)] =
        &[("binary", Self::Binary), ("structured", Self::Structured)];
}

/// Codec of record batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// As they are.
    None,
    /// gzip.
    Gzip,
    /// LZ4.
    Lz4,
    /// Snappy.
    Snappy,
    /// Zstandard.
    Zstd,
}

impl Compression {
    /// Librdkafka's word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Lz4 => "lz4",
            Self::Snappy => "snappy",
            Self::Zstd => "zstd",
        }
    }
}

impl Choice for Compression {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("none", Self::None),
        ("gzip", Self::Gzip),
        ("lz4", Self::Lz4),
        ("snappy", Self::Snappy),
        ("zstd", Self::Zstd),
    ];
}

/// Most headers of a destination: as many extension attributes as an event may have are more than anybody reads.
const HEADERS_MAX: usize = 64;

/// Longest name of one, in bytes.
const HEADER_NAME_BYTES_MAX: usize = 256;

/// Most properties: librdkafka knows fewer than two hundred.
const PROPERTIES_MAX: usize = 200;

/// Properties that hold a secret, by what their names contain. They are taken by reference only.
const SECRET_PROPERTIES: [&str; 4] = ["password", "secret", "ssl.key.pem", "sasl.jaas.config"];

impl KafkaConfig {
    /// Whether events can go to different topics, so that the trouble of one is not the destination's.
    pub(super) fn has_several_topics(&self) -> bool {
        self.topic.attributes().next().is_some()
    }

    /// Reads the keys; `None` only with a problem noted.
    pub(crate) fn read(section: &mut Section<'_, '_, '_>) -> Option<Self> {
        let bootstrap_servers = section.require::<String>("bootstrap_servers", "\"HOST:9092\"");
        if bootstrap_servers
            .as_ref()
            .is_some_and(|servers| !servers.split(',').all(is_server))
        {
            section.problem(
                "bootstrap_servers",
                "expected \"HOST:PORT\", several joined by commas",
            );
        }
        let topic = section.require("topic", "\"{type}\"");
        let partition = section.find("partition");
        let mode = section.get("mode", KafkaMode::Binary);
        let headers = section.table("headers", read_headers);
        let compression = section.get("compression", Compression::None);
        let properties = section.table("properties", read_properties);
        Some(Self {
            bootstrap_servers: bootstrap_servers?,
            topic: topic?,
            partition,
            mode,
            headers,
            compression,
            properties,
        })
    }
}

fn is_server(text: &str) -> bool {
    let Some((host, port)) = text.trim().rsplit_once(':') else {
        return false;
    };
    let plain =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']');
    !host.is_empty() && host.chars().all(plain) && port.parse::<u16>().is_ok_and(|port| port > 0)
}

fn read_headers(section: &mut Section<'_, '_, '_>) -> Vec<(String, Template)> {
    let names = section.keys();
    if names.len() > HEADERS_MAX {
        section.problem("", format!("expected at most {HEADERS_MAX} headers"));
    }
    let mut headers = Vec::new();
    for name in names.into_iter().take(HEADERS_MAX) {
        let template = section.find::<Template>(&name);
        if name.is_empty() || name.len() > HEADER_NAME_BYTES_MAX || name.contains('\0') {
            let expected = format!("expected a name of 1 to {HEADER_NAME_BYTES_MAX} bytes");
            section.problem(&name, expected);
        } else if is_ours(&name) {
            section.problem(&name, "expected a header that no event sets by itself");
        } else if let Some(template) = template {
            headers.push((name, template));
        }
    }
    headers
}

/// Whether records have this header by themselves.
fn is_ours(name: &str) -> bool {
    name.starts_with("ce_") || matches!(name, "content-type" | "wayhold_replay")
}

fn read_properties(section: &mut Section<'_, '_, '_>) -> BTreeMap<String, Secret> {
    let names = section.keys();
    if names.len() > PROPERTIES_MAX {
        section.problem("", format!("expected at most {PROPERTIES_MAX} properties"));
    }
    let mut properties = BTreeMap::new();
    for name in names.into_iter().take(PROPERTIES_MAX) {
        let is_secret = SECRET_PROPERTIES.iter().any(|part| name.contains(part));
        let shown = |text: &str| {
            if is_secret {
                "[redacted]".to_owned()
            } else {
                text.to_owned()
            }
        };
        let value = section.find_secret(&name, shown);
        if let Err(reason) = check_property(&name) {
            section.problem(&name, format!("this property cannot be set: {reason}"));
        }
        match value {
            Some(TextOrSecret::Text(_)) if is_secret => {
                section.problem(&name, "expected { env = \"NAME\" } or { file = \"PATH\" }");
            }
            Some(value) if value.expose().contains('\0') => {
                section.problem(&name, "expected a text without NUL");
            }
            Some(value) => {
                properties.insert(name, Secret::new(value.expose()));
            }
            None => {}
        }
    }
    properties
}
