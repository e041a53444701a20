//! What a transition brings with it, for each of them, whoever makes it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use wayhold_model::approval::Amount;
use wayhold_model::command::{Reversibility, Risk};
use wayhold_model::{Clock, Timestamp};
use wayhold_store::commands::Slot;
use wayhold_store::{Commands, Options, Store};

use super::*;

struct Noon;

impl Clock for Noon {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(1_800_000_000_000_000)
    }
}

static COMMANDS: AtomicU64 = AtomicU64::new(0);

fn new(compensates: Option<CommandId>) -> NewCommand {
    let mut random = [0; 10];
    random[..8].copy_from_slice(&COMMANDS.fetch_add(1, Ordering::SeqCst).to_be_bytes());
    NewCommand {
        id: CommandId::at(Noon.now(), random),
        kind: "po_cancel".to_owned(),
        kind_version: "1".to_owned(),
        destination: "erp".to_owned(),
        principal: "bot".to_owned(),
        risk: Risk::Low,
        reversibility: Reversibility::Compensatable,
        order_key: None,
        digest: [7; 32],
        arguments: "{}".to_owned(),
        detail: "{}".to_owned(),
        expires_at: None,
        needs: Vec::new(),
        compensates,
        replays: None,
    }
}

const SLOT: Slot<'_> = Slot {
    limit: "daily",
    budget: "bot",
    slice: 1,
};

/// What a transition of a command that makes up for another left behind.
struct Left {
    /// Types of records of it.
    records: Vec<String>,
    /// Where the one that it makes up for stands.
    other: State,
    /// How many a limit counts.
    counted: u64,
}

async fn go(commands: &Commands, from: State, to: State) -> Left {
    let of = new(None);
    let by = new(Some(of.id));
    let left = commands.change(move |change| {
        let before = change.used(SLOT)?.count;
        change.add_command(&of, State::Compensating, (None, None))?;
        change.add_command(&by, from, (None, None))?;
        change.charge(by.id, SLOT, Amount::from_millionths(0), 1)?;
        let reason = Some("because");
        let step = Transition { from, to, reason };
        assert!(moved(change, by.id, step, &ourselves())?);
        assert!(
            !moved(change, by.id, step, &ourselves())?,
            "it stands there no more"
        );
        let records = change.records_of(&stream(by.id), 0, 100)?;
        let kind_of = |record: &[u8]| -> Option<String> {
            let record: Value = serde_json::from_slice(record).ok()?;
            Some(record.get("type")?.as_str()?.to_owned())
        };
        Ok::<_, CommandsError>(Left {
            records: records
                .iter()
                .filter_map(|row| kind_of(&row.record))
                .collect(),
            other: change.state(of.id)?.unwrap(),
            counted: change.used(SLOT)?.count - before,
        })
    });
    left.await.unwrap()
}

#[tokio::test]
async fn a_transition_leaves_the_same_behind_wherever_a_command_comes_from() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options {
        min_free: Some(0),
        reserve_bytes: 1024 * 1024,
        ..Options::default()
    };
    let (store, _) = Store::open(folder.path(), options, Arc::new(Noon)).unwrap();
    let commands = store.commands().unwrap();
    for from in State::ALL {
        for to in State::ALL.into_iter().filter(|to| from.may_become(*to)) {
            let left = go(&commands, from, to).await;
            let (more, other, counted) = match to {
                State::Denied | State::Rejected => (None, State::CompensationFailed, 0),
                State::Expired => (Some("command.expired"), State::CompensationFailed, 0),
                State::Cancelled => (Some("command.cancelled"), State::CompensationFailed, 0),
                State::Dead => (Some("dlq.entered"), State::CompensationFailed, 1),
                State::Succeeded => (None, State::Compensated, 1),
                _ => (None, State::Compensating, 1),
            };
            let mut records = vec!["command.state"];
            records.extend((from == State::Dead).then_some("dlq.resolved"));
            records.extend(more);
            assert_eq!(left.records, records, "{from:?} -> {to:?}");
            assert_eq!(left.other, other, "{from:?} -> {to:?}");
            assert_eq!(left.counted, counted, "{from:?} -> {to:?}");
        }
    }
    store.stop();
}
