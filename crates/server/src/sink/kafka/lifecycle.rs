//! The life of one destination's Kafka clients, on a thread of its own: make one, wait until a broker
//! answers it, serve its reports, end it when a record is overdue or it broke, begin again.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::producer::{Producer as _, PurgeConfig};
use wayhold_model::{Failure, FailureClass, Outcome};

use super::client::{Client, make_client, words_of};
use super::sink::Shared;
use super::window::Flight;

/// How long one wait for reports or for a broker lasts: how soon timeouts and stopping are noticed.
const TICK: Duration = Duration::from_millis(50);

/// How long what is on the wire may still be reported once a client is to end.
const IN_FLIGHT_GRACE: Duration = Duration::from_secs(1);

/// How long the reports of a purge may take; they come from memory.
const PURGE_GRACE: Duration = Duration::from_millis(500);

/// Wait before another client is made when making one failed.
const REMAKE_WAIT: Duration = Duration::from_secs(1);

/// Why a client ends.
#[derive(Clone, Debug)]
pub(super) enum End {
    /// The destination stops.
    Stop,
    /// A record had no report in time.
    Overdue,
    /// The client cannot go on.
    Fatal(String),
}

impl End {
    /// What it says of a record that had no answer: of one whose own time was up, or of one that was with the client
    /// as another's was.
    pub(super) fn failure(&self, overdue: bool) -> Failure {
        match self {
            Self::Stop => Failure::new(
                FailureClass::Interrupted,
                "stopped before a broker confirmed it",
            ),
            Self::Overdue if overdue => {
                Failure::new(FailureClass::Timeout, "no broker confirmed it in time")
            }
            Self::Overdue => Failure::new(
                FailureClass::Interrupted,
                "the client was replaced, since no broker confirmed another record in time",
            ),
            Self::Fatal(reason) => Failure::new(
                FailureClass::FatalProducer,
                format!("the client failed: {reason}"),
            ),
        }
    }
}

/// Runs until the destination stops, then ends whatever is left.
pub(super) fn run(shared: &Arc<Shared>, first: Arc<Client>) {
    let mut next = Some(first);
    while !shared.is_stopping() {
        let client = match next.take().map_or_else(|| make_client(shared), Ok) {
            Ok(client) => client,
            Err(error) => {
                give_all_back(
                    shared,
                    &format!("client cannot be made: {}", words_of(&error)),
                );
                thread::sleep(REMAKE_WAIT);
                continue;
            }
        };
        if reach(shared, &client) {
            open(shared, &client);
            let end = serve(shared, &client);
            close(shared, &client, &end);
        }
    }
    give_all_back(shared, "the destination is stopping");
}

/// Waits until a broker answered; `false` when the destination stops first. Attempts that come
/// meanwhile are given back as soon as the client says what is wrong.
fn reach(shared: &Shared, client: &Client) -> bool {
    while !shared.is_stopping() {
        if client.client().fetch_cluster_id(TICK).is_some() {
            return true;
        }
        client.poll(Duration::from_millis(5));
        match client.context().trouble() {
            Some(trouble) => give_all_back(shared, &format!("no broker answered: {trouble}")),
            None => give_overdue_back(shared, false),
        }
    }
    false
}

/// From here on records go to this client, beginning with those that waited.
fn open(shared: &Shared, client: &Arc<Client>) {
    let mut state = shared.lock();
    state.client = Some(Arc::clone(client));
    for topic in state.window.topics() {
        shared.send_released(&mut state, &topic);
    }
}

/// Takes reports until the client has to end.
fn serve(shared: &Shared, client: &Client) -> End {
    loop {
        client.poll(TICK);
        if shared.is_stopping() {
            return End::Stop;
        }
        if let Some((_, reason)) = client.client().fatal_error() {
            return End::Fatal(reason);
        }
        if shared.lock().window.is_overdue(Instant::now()) {
            return End::Overdue;
        }
        give_overdue_back(shared, !client.context().is_cut_off());
    }
}

/// Ends a client that takes no more records: first what never left, then, after a moment for what is
/// on the wire, everything. What has no report even then is unknown.
fn close(shared: &Shared, client: &Client, end: &End) {
    let grace = {
        let mut state = shared.lock();
        state.client = None;
        state.ending = Some(end.clone());
        state.stop_grace
    };
    match end {
        End::Stop => take_reports(shared, client, grace),
        End::Overdue | End::Fatal(_) => {
            let reason = end.failure(true).reason;
            tracing::warn!(reason, "kafka client is replaced");
            client.purge(PurgeConfig::default().queue());
            take_reports(shared, client, IN_FLIGHT_GRACE);
        }
    }
    client.purge(PurgeConfig::default().queue().inflight());
    take_reports(shared, client, PURGE_GRACE);
    let (left, confirmed) = {
        let mut state = shared.lock();
        state.ending = None;
        (state.window.drain_with_client(), state.confirmed)
    };
    for flight in left {
        let outcome = shared.outcome_of_end(end, &flight, confirmed);
        flight.attempt.finish(outcome);
    }
}

/// Takes reports until none is owed or the time is up.
fn take_reports(shared: &Shared, client: &Client, patience: Duration) {
    let until = Instant::now() + patience;
    while shared.lock().window.with_client() > 0 && Instant::now() < until {
        client.poll(Duration::from_millis(5));
    }
}

fn give_all_back(shared: &Shared, reason: &str) {
    let waiting = shared.lock().window.drain_waiting();
    finish_not_executed(waiting, &Failure::new(FailureClass::Connect, reason));
}

/// Gives back what has waited too long; while brokers answer, that is the trouble of its topic alone.
fn give_overdue_back(shared: &Shared, brokers_answer: bool) {
    let waiting = shared.lock().window.give_back(Instant::now());
    let mut failure = Failure::new(
        FailureClass::Unavailable,
        "the topic did not get its turn: brokers are slow or away",
    );
    if brokers_answer && shared.config.has_several_topics() {
        failure = failure.of_part();
    }
    finish_not_executed(waiting, &failure);
}

fn finish_not_executed(flights: Vec<Flight>, failure: &Failure) {
    for flight in flights {
        flight.attempt.finish(Outcome::NotExecuted(failure.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_says_of_each_record_what_was_in_the_way_of_it() {
        let fatal = End::Fatal("out of sequence".to_owned());
        for (end, overdue, class) in [
            (End::Stop, false, FailureClass::Interrupted),
            (End::Stop, true, FailureClass::Interrupted),
            (End::Overdue, true, FailureClass::Timeout),
            (End::Overdue, false, FailureClass::Interrupted),
            (fatal.clone(), false, FailureClass::FatalProducer),
            (fatal, true, FailureClass::FatalProducer),
        ] {
            assert_eq!(end.failure(overdue).class, class, "{end:?} {overdue}");
        }
    }
}
