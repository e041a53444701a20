//! A destination by script.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::sleep;
use wayhold::sink::{Attempt, BoxFuture, Sink};
use wayhold_model::{Failure, Outcome};

/// What the destination does with one attempt.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Ends(Outcome),
    EndsAfter(Duration, Outcome),
    Never,
    Panic,
}

#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    pub(crate) id: u64,
    pub(crate) key: Option<String>,
    pub(crate) number: u32,
    pub(crate) delivered: bool,
}

pub(crate) type Script = Box<dyn FnMut(&Attempt, usize) -> Answer + Send>;

/// A destination that answers by script and writes down what arrives. It also holds the promise that
/// of one key only so many are in flight.
pub(crate) struct Scripted {
    pub(crate) script: Mutex<Script>,
    pub(crate) arrivals: Mutex<Vec<Arrival>>,
    pub(crate) in_flight: Arc<Mutex<HashMap<String, u32>>>,
    pub(crate) per_key_max: u32,
    pub(crate) unanswered: Mutex<Vec<Attempt>>,
}

impl Scripted {
    pub(crate) fn new(script: impl FnMut(&Attempt, usize) -> Answer + Send + 'static) -> Arc<Self> {
        Arc::new(Self {
            script: Mutex::new(Box::new(script)),
            arrivals: Mutex::default(),
            in_flight: Arc::default(),
            per_key_max: 1,
            unanswered: Mutex::default(),
        })
    }

    pub(crate) fn delivering() -> Arc<Self> {
        Self::new(|_, _| Answer::Ends(Outcome::Delivered))
    }

    pub(crate) fn arrivals(&self) -> Vec<Arrival> {
        self.arrivals.lock().unwrap().clone()
    }

    pub(crate) fn delivered(&self) -> BTreeSet<u64> {
        self.arrivals()
            .iter()
            .filter(|arrival| arrival.delivered)
            .map(|arrival| arrival.id)
            .collect()
    }

    pub(crate) fn ids(&self) -> Vec<u64> {
        self.arrivals().iter().map(|arrival| arrival.id).collect()
    }
}

pub(crate) fn number_of(attempt: &Attempt) -> u64 {
    attempt.event.event.id().parse().unwrap()
}

impl Sink for Scripted {
    fn submit(&self, attempts: &mut Vec<Attempt>) {
        for attempt in attempts.drain(..) {
            let before = self.arrivals.lock().unwrap().len();
            let answer = (self.script.lock().unwrap())(&attempt, before);
            let key = attempt.event.event.key().map(str::to_owned);
            self.arrivals.lock().unwrap().push(Arrival {
                id: number_of(&attempt),
                key: key.clone(),
                number: attempt.number,
                delivered: matches!(
                    answer,
                    Answer::Ends(Outcome::Delivered) | Answer::EndsAfter(_, Outcome::Delivered)
                ),
            });
            match answer {
                Answer::Ends(outcome) => attempt.finish(outcome),
                Answer::EndsAfter(wait, outcome) => {
                    if let Some(key) = &key {
                        let mut in_flight = self.in_flight.lock().unwrap();
                        let of_key = in_flight.entry(key.clone()).or_default();
                        *of_key += 1;
                        assert!(*of_key <= self.per_key_max, "{key} is in flight already");
                    }
                    let in_flight = Arc::clone(&self.in_flight);
                    tokio::spawn(async move {
                        sleep(wait).await;
                        if let Some(key) = key {
                            *in_flight.lock().unwrap().get_mut(&key).unwrap() -= 1;
                        }
                        attempt.finish(outcome);
                    });
                }
                Answer::Never => self.unanswered.lock().unwrap().push(attempt),
                Answer::Panic => panic!("as the script says"),
            }
        }
    }

    fn probe(&self) -> BoxFuture<'_, Result<String, Failure>> {
        Box::pin(async { Ok("scripted".to_owned()) })
    }

    fn stop(&self, _grace: Duration) -> BoxFuture<'_, ()> {
        Box::pin(async { self.unanswered.lock().unwrap().clear() })
    }
}
