//! Keys of `kind = "kafka"`.

use std::collections::BTreeMap;

use wayhold_model::template::Template;

use crate::config::Secret;

/// A Kafka destination.
#[derive(Clone, Debug)]
pub struct KafkaConfig {
    /// `host:port` of brokers to begin with, joined by commas.
    pub bootstrap_servers: String,
    /// Topic of each event, a template over its attributes.
    pub topic: Template,
    /// How an event becomes a record.
    pub mode: KafkaMode,
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
