//! The librdkafka client as the sink sets it up, and where its reports, errors and log lines go.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::Message as _;
use rdkafka::producer::{BaseProducer, DeliveryResult, ProducerContext};
use wayhold_model::Receipt;

use super::config::KafkaConfig;
use super::sink::Shared;
use super::window::Ticket;

/// A client whose reports reach the sink.
pub(super) type Client = BaseProducer<Reports>;

/// Property that bounds a record, and librdkafka's default for it, in bytes.
const MESSAGE_BYTES_MAX: (&str, &str) = ("message.max.bytes", "1000000");

/// What every client is set to; the operator's properties may change these.
const DEFAULTS: [(&str, &str); 6] = [
    ("client.id", "wayhold"),
    // A batch waits this long for company. Measured with a full window: none at all sends batches too
    // small, and more only makes every record wait, since the window is full before a batch is.
    ("linger.ms", "1"),
    // After an outage a broker is tried again at least this often.
    ("reconnect.backoff.max.ms", "2000"),
    // A topic that does not exist is reported as such before an attempt's time is up.
    ("topic.metadata.propagation.max.ms", "5000"),
    ("socket.keepalive.enable", "true"),
    MESSAGE_BYTES_MAX,
];

/// What the promises rest on; see `property` for the reasons.
const FIXED: [(&str, &str); 6] = [
    ("acks", "all"),
    ("enable.idempotence", "true"),
    ("message.timeout.ms", "0"),
    // Java's choice of partition for every key, and any partition for records without one.
    ("partitioner", "murmur2_random"),
    // The window bounds what is queued; the client's own bounds are out of the way.
    ("queue.buffering.max.messages", "0"),
    ("queue.buffering.max.kbytes", "2147483647"),
];

/// All settings of a client.
pub(super) fn client_config(config: &KafkaConfig) -> ClientConfig {
    let mut client = ClientConfig::new();
    for (name, value) in DEFAULTS {
        client.set(name, value);
    }
    for (name, value) in &config.properties {
        client.set(name, value.expose());
    }
    for (name, value) in FIXED {
        client.set(name, value);
    }
    client.set("bootstrap.servers", &config.bootstrap_servers);
    client.set("compression.type", config.compression.as_str());
    client.set_log_level(RDKafkaLogLevel::Info);
    client
}

/// Largest record that the client takes, as text.
pub(super) fn message_bytes_max(config: &KafkaConfig) -> String {
    let (name, default) = MESSAGE_BYTES_MAX;
    let set = config.properties.get(name);
    set.map_or(default, |value| value.expose()).to_owned()
}

/// An error in words that hold no property's value, which may be a secret.
pub(super) fn words_of(error: &KafkaError) -> String {
    match error {
        KafkaError::ClientConfig(_, _, name, _) => {
            format!("property {name}: expected a name and value that librdkafka knows")
        }
        other => other.to_string(),
    }
}

/// Makes a client; it begins to look for brokers.
pub(super) fn make_client(shared: &Arc<Shared>) -> KafkaResult<Arc<Client>> {
    let reports = Reports {
        shared: Arc::clone(shared),
        trouble: Mutex::new(None),
        cut_off: AtomicBool::new(false),
    };
    client_config(&shared.config)
        .create_with_context(reports)
        .map(Arc::new)
}

/// Where one client's reports, errors and log lines go.
pub(super) struct Reports {
    shared: Arc<Shared>,
    trouble: Mutex<Option<String>>,
    cut_off: AtomicBool,
}

impl Reports {
    /// The last error that was no record's: brokers out of reach, a failed login.
    pub(super) fn trouble(&self) -> Option<String> {
        self.trouble
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Whether no broker could be reached, and none has confirmed anything since.
    pub(super) fn is_cut_off(&self) -> bool {
        self.cut_off.load(Ordering::Relaxed)
    }
}

impl ProducerContext for Reports {
    type DeliveryOpaque = Ticket;

    fn delivery(&self, result: &DeliveryResult<'_>, ticket: Ticket) {
        let place = match result {
            Ok(record) => {
                self.cut_off.store(false, Ordering::Relaxed);
                Ok(Receipt::Kafka {
                    partition: record.partition(),
                    offset: record.offset(),
                })
            }
            Err((error, _)) => Err(error),
        };
        self.shared.reported(ticket, place);
    }
}

impl ClientContext for Reports {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        match level {
            RDKafkaLogLevel::Emerg
            | RDKafkaLogLevel::Alert
            | RDKafkaLogLevel::Critical
            | RDKafkaLogLevel::Error
            | RDKafkaLogLevel::Warning => {
                tracing::warn!(facility, message, "kafka client warns");
            }
            RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info | RDKafkaLogLevel::Debug => {
                tracing::debug!(facility, message, "kafka client tells");
            }
        }
    }

    fn stats_raw(&self, _statistics: &[u8]) {
        // Asked for by an operator's property at most; the destination's own figures say more.
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "kafka client has trouble");
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::AllBrokersDown) {
            self.cut_off.store(true, Ordering::Relaxed);
        }
        // The whole text names brokers and causes; it holds no credentials.
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        *trouble = Some(reason.to_owned());
    }
}
