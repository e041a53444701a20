//! Order as scenarios, then random histories against what must hold of every one of them.

use wayhold_model::{DestinationSet, Event, EventParts, Generation, Sequence, ShardId};

use super::*;

mod histories;
mod rules;

fn at(sequence: u64) -> Position {
    Position {
        generation: Generation(1),
        shard: ShardId(0),
        sequence: Sequence(sequence),
    }
}

fn event(sequence: u64, key: Option<u64>) -> Arc<StoredEvent> {
    let parts = EventParts {
        id: "1",
        source: "/t",
        kind: "t",
        ..EventParts::default()
    };
    Arc::new(StoredEvent {
        position: at(sequence),
        accepted_at: Timestamp::EPOCH,
        destinations: Arc::new(DestinationSet::new([])),
        key_hash: key,
        event: Arc::new(Event::new(&parts).unwrap()),
    })
}

fn fresh(sequence: u64, key: Option<u64>) -> Delivery {
    Delivery {
        event: event(sequence, key),
        attempts: 0,
        retry_at: None,
    }
}

fn policy(on_failure: OnFailure, on_dead_letter: OnDeadLetter) -> OrderPolicy {
    OrderPolicy {
        on_failure,
        on_dead_letter,
        in_flight_per_key: 1,
        blocked_max: 100,
    }
}

fn blocking() -> Order {
    Order::new(policy(OnFailure::Block, OnDeadLetter::Release))
}

fn parking() -> Order {
    Order::new(policy(OnFailure::Park, OnDeadLetter::Release))
}

fn secs(secs: u64) -> Timestamp {
    Timestamp::from_micros(secs * 1_000_000)
}

const FIRST: History = History {
    attempts: 0,
    put_off: 0,
    letter: None,
    after_unknown: false,
};
const SECOND: History = History {
    attempts: 1,
    put_off: 0,
    letter: None,
    after_unknown: false,
};

impl Order {
    /// Offers a first attempt; whether it may go at once.
    fn goes(&mut self, sequence: u64, key: Option<u64>) -> bool {
        let goes = self.offer(fresh(sequence, key), None).is_some();
        self.handed_over(key);
        goes
    }

    /// The next turn, which is handed over at once.
    fn turn(&mut self) -> Option<u64> {
        let next = match self.next_retry() {
            Next::Nothing => self.next_released(),
            next => next,
        };
        match next {
            Next::Turn(turn) => {
                self.handed_over(turn.key);
                Some(turn.position.sequence.0)
            }
            Next::Refill(refill) => panic!("unexpected {refill:?}"),
            Next::Nothing => None,
        }
    }
}
