//! The Kafka sink: callers hand records straight to librdkafka; one thread per destination owns the
//! client's life and takes its reports.
//!
//! A client takes no record before a broker answered it, so that an attempt at a cluster that is down
//! ends as "not executed" with certainty. A record whose time is up ends the client: its queue is
//! purged, what is on the wire gets a moment to be reported, the rest is unknown, and a new client
//! begins. A fatal error does the same. After a crash, what was with the client is sent again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use tokio::sync::oneshot;
use wayhold_model::{Failure, FailureClass, Outcome, Receipt};

use super::classify::{Reported, is_purged, is_too_large, outcome_of_error};
use super::client::{Client, client_config, make_client, message_bytes_max, words_of};
use super::config::KafkaConfig;
use super::lifecycle::{self, End};
use super::request::Record;
use super::topic::{partition_of, topic_of};
use super::window::{Flight, Ticket, Window};
use crate::sink::{Attempt, BoxFuture, BuildError, Said, Sink};

/// How long closing a client may take beyond the time given to stop.
const CLOSE_GRACE: Duration = Duration::from_secs(1);

/// How long a probe waits for a broker.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// Produces to Kafka.
pub struct KafkaSink {
    shared: Arc<Shared>,
    ended: Mutex<Option<oneshot::Receiver<()>>>,
}

/// What callers, reports and the thread share.
pub(super) struct Shared {
    pub(super) config: KafkaConfig,
    state: Mutex<State>,
    stopping: AtomicBool,
}

/// What they share under the lock.
pub(super) struct State {
    pub(super) window: Window,
    /// The client that takes records; `None` while there is none that reached a broker.
    pub(super) client: Option<Arc<Client>>,
    /// Why the client that took the records ends, while it does.
    pub(super) ending: Option<End>,
    /// When the newest of the records came that a broker confirmed.
    pub(super) confirmed: Option<Instant>,
    /// How long stopping may take.
    pub(super) stop_grace: Duration,
}

impl KafkaSink {
    /// Makes the first client and starts the thread.
    ///
    /// # Errors
    /// When librdkafka refuses a property, or the system gives no thread.
    pub fn start(config: &KafkaConfig, window: usize) -> Result<Self, BuildError> {
        let shared = Arc::new(Shared {
            config: config.clone(),
            state: Mutex::new(State {
                window: Window::new(share_of_one_topic(config, window)),
                client: None,
                ending: None,
                confirmed: None,
                stop_grace: Duration::ZERO,
            }),
            stopping: AtomicBool::new(false),
        });
        let first = make_client(&shared).map_err(|error| {
            BuildError(format!("Kafka client cannot be made: {}", words_of(&error)))
        })?;
        let (ending, ended) = oneshot::channel();
        let thread_shared = Arc::clone(&shared);
        thread::Builder::new()
            .name("kafka-sink".to_owned())
            .spawn(move || {
                lifecycle::run(&thread_shared, first);
                drop(ending);
            })
            .map_err(|error| BuildError(format!("no thread for the Kafka client: {error}")))?;
        Ok(Self {
            shared,
            ended: Mutex::new(Some(ended)),
        })
    }
}

/// How much of the window one topic may have with the client: a quarter where there can be several,
/// so that one that is stuck leaves room for the others.
fn share_of_one_topic(config: &KafkaConfig, window: usize) -> usize {
    if config.has_several_topics() {
        window / 4
    } else {
        window
    }
}

impl std::fmt::Debug for KafkaSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KafkaSink")
            .field("config", &self.shared.config)
            .finish_non_exhaustive()
    }
}

impl Drop for KafkaSink {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
    }
}

impl Sink for KafkaSink {
    fn submit(&self, attempts: &mut Vec<Attempt>) {
        let now = Instant::now();
        let mut state = self.shared.lock();
        if self.shared.is_stopping() {
            for attempt in attempts.drain(..) {
                attempt.finish(Outcome::NotExecuted(Failure::new(
                    FailureClass::Interrupted,
                    "the destination is stopping",
                )));
            }
            return;
        }
        for attempt in attempts.drain(..) {
            let event = Arc::clone(&attempt.event);
            let config = &self.shared.config;
            let topic = partition_of(config.partition.as_ref(), &event.event)
                .and_then(|_| topic_of(&config.topic, &event.event));
            match topic {
                Err(no_place) => {
                    attempt.finish(Outcome::Refused(Failure::new(
                        FailureClass::Mapping,
                        no_place.to_string(),
                    )));
                }
                Ok(topic) => {
                    let topic = state.window.enter(attempt, &topic, now);
                    self.shared.send_released(&mut state, &topic);
                }
            }
        }
    }

    fn probe(&self) -> BoxFuture<'_, Result<String, Failure>> {
        let config = self.shared.config.clone();
        Box::pin(async move {
            tokio::task::spawn_blocking(move || probe(&config))
                .await
                .unwrap_or_else(|_| {
                    Err(Failure::new(
                        FailureClass::Interrupted,
                        "the check was cut off",
                    ))
                })
        })
    }

    fn stop(&self, grace: Duration) -> BoxFuture<'_, ()> {
        self.shared.lock().stop_grace = grace;
        self.shared.stopping.store(true, Ordering::Release);
        let ended = self
            .ended
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        Box::pin(async move {
            if let Some(ended) = ended {
                let bound = grace + CLOSE_GRACE;
                if tokio::time::timeout(bound, ended).await.is_err() {
                    tracing::warn!("kafka client is still closing after the time given to stop");
                }
            }
            let left = {
                let mut state = self.shared.lock();
                let mut left = state.window.drain_waiting();
                left.append(&mut state.window.drain_with_client());
                left
            };
            for flight in left {
                let failure = Failure::new(
                    FailureClass::Interrupted,
                    "stopped before a broker confirmed it",
                );
                flight.attempt.finish(Outcome::Unknown(failure));
            }
        })
    }
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Hands the client what of this topic may go.
    pub(super) fn send_released(&self, state: &mut State, topic: &str) {
        let Some(client) = state.client.clone() else {
            return;
        };
        while let Some((ticket, flight)) = state.window.release(topic) {
            let Err((error, size)) = self.send(&client, ticket, flight) else {
                continue;
            };
            let Some(flight) = state.window.end(ticket) else {
                continue;
            };
            flight
                .attempt
                .finish(self.outcome_of_refusal(&error, &flight.topic, size));
        }
    }

    fn send(
        &self,
        client: &Client,
        ticket: Ticket,
        flight: &Flight,
    ) -> Result<(), (KafkaError, usize)> {
        let record = Record::of_attempt(&flight.attempt, &self.config);
        let mut sent = BaseRecord::with_opaque_to(&flight.topic, ticket)
            .headers(record.headers)
            .timestamp(record.timestamp);
        if let Some(value) = &record.value {
            sent = sent.payload(&value[..]);
        }
        if let Some(key) = &record.key {
            sent = sent.key(key.as_bytes());
        }
        if let Some(partition) = record.partition {
            sent = sent.partition(partition);
        }
        client.send(sent).map_err(|(error, _)| (error, record.size))
    }

    /// The outcome of a record that the client did not even queue.
    fn outcome_of_refusal(&self, error: &KafkaError, topic: &str, size: usize) -> Outcome {
        match error.rdkafka_error_code() {
            Some(code) if is_too_large(code) => {
                let limit = message_bytes_max(&self.config);
                Outcome::Refused(Failure::new(
                    FailureClass::TooLarge,
                    format!(
                        "record too large: {size} bytes and framing are more than message.max.bytes = {limit}"
                    ),
                ))
            }
            Some(code) => match outcome_of_error(
                code,
                Reported {
                    topic,
                    size,
                    alone: true,
                    one_of_several: self.config.has_several_topics(),
                },
            ) {
                // It was never queued.
                Outcome::Unknown(failure) => Outcome::NotExecuted(failure),
                known => known,
            },
            None => {
                Outcome::NotExecuted(Failure::new(FailureClass::Unavailable, error.to_string()))
            }
        }
    }

    /// A record's report: called by the thread, from within the client's poll.
    pub(super) fn reported(&self, ticket: Ticket, place: Result<Receipt, &KafkaError>) {
        let mut state = self.lock();
        let Some(flight) = state.window.end(ticket) else {
            return;
        };
        let (outcome, receipt) = match place {
            Ok(receipt) => {
                state.confirmed = state.confirmed.max(Some(flight.submitted));
                (Outcome::Delivered, Some(receipt))
            }
            Err(error) => {
                let code = error
                    .rdkafka_error_code()
                    .unwrap_or(RDKafkaErrorCode::Unknown);
                if is_too_large(code) && !flight.alone {
                    state.window.suspect(flight.attempt.event.position);
                }
                let outcome = match &state.ending {
                    Some(end) if is_purged(code) => {
                        self.outcome_of_end(end, &flight, state.confirmed)
                    }
                    _ => self.outcome_of_report(code, &flight),
                };
                (outcome, None)
            }
        };
        self.send_released(&mut state, &flight.topic);
        drop(state);
        let said = Said {
            receipt,
            ..Said::default()
        };
        flight.attempt.finish_with(outcome, said);
    }

    /// The outcome of a record whose client ended before there was an answer. Where brokers confirmed one that came later,
    /// it is this topic that is in trouble, and not the destination.
    pub(super) fn outcome_of_end(
        &self,
        end: &End,
        flight: &Flight,
        confirmed: Option<Instant>,
    ) -> Outcome {
        let failure = end.failure(flight.deadline <= Instant::now());
        let others_go = matches!(end, End::Overdue)
            && self.config.has_several_topics()
            && confirmed > Some(flight.submitted);
        Outcome::Unknown(if others_go {
            failure.of_part()
        } else {
            failure
        })
    }

    fn outcome_of_report(&self, code: RDKafkaErrorCode, flight: &Flight) -> Outcome {
        let reported = Reported {
            topic: &flight.topic,
            size: Record::of_attempt(&flight.attempt, &self.config).size,
            alone: flight.alone,
            one_of_several: self.config.has_several_topics(),
        };
        outcome_of_error(code, reported)
    }
}

/// Asks the cluster for its topics, with a client of its own; creates none.
fn probe(config: &KafkaConfig) -> Result<String, Failure> {
    let client: BaseProducer = client_config(config).create().map_err(|error| {
        Failure::new(
            FailureClass::Unavailable,
            format!("client cannot be made: {}", words_of(&error)),
        )
    })?;
    let metadata = client
        .client()
        .fetch_metadata(None, PROBE_TIMEOUT)
        .map_err(|error| {
            Failure::new(
                FailureClass::Connect,
                format!("no broker answered: {error}"),
            )
        })?;
    let brokers = metadata.brokers().len();
    if config.has_several_topics() {
        return Ok(format!(
            "{brokers} brokers answered; the topic depends on the event"
        ));
    }
    let topic = config.topic.to_string();
    match metadata.topics().iter().find(|found| found.name() == topic) {
        Some(found) => {
            let partitions = found.partitions().len();
            Ok(format!(
                "{brokers} brokers answered; topic {topic} has {partitions} partitions"
            ))
        }
        None => Err(Failure::new(
            FailureClass::MissingTopic,
            format!("{brokers} brokers answered; there is no topic {topic}"),
        )),
    }
}
