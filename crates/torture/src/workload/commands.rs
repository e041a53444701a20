//! Commands in a script: each is led through its life, one record for each state that it comes to, in the change that
//! brings it there. Afterwards it stands as was acknowledged last, or as was asked for since, with as many records, in
//! a ledger whose tree is that of its records.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::task::JoinSet;
use wayhold_model::Timestamp;
use wayhold_model::command::{CommandId, Reversibility, Risk, State};
use wayhold_model::ledger::tree::root_of;
use wayhold_model::ledger::{Actor as By, Draft, Hash, Trace};
use wayhold_store::commands::{Change, NewCommand, Transition, View};
use wayhold_store::{CommandsError, Store};

use super::actor::{Actor, Again, Patience};
use super::history::{Expected, Fact};

/// The states that a command goes through; it has come so far as the number of them that it has had.
pub(super) const LIFE: [State; 6] = [
    State::Accepted,
    State::Ready,
    State::Sending,
    State::Unknown,
    State::Reconciling,
    State::Succeeded,
];

/// How long a command that is not taken is left alone.
const AGAIN: Duration = Duration::from_millis(2);

/// More records than any script makes.
const RECORDS: u32 = 10_000;

/// A command that no script has.
const FRESH: usize = 1_000_000;

/// What a judge found of commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// Commands that are there.
    pub(super) commands: u64,
    /// Those that have come further than was acknowledged.
    pub(super) unacknowledged: u64,
}

impl Actor<'_> {
    /// Leads commands so far, all at the same time.
    pub(super) async fn lead(&self, commands: &[(usize, usize)]) -> Result<(), String> {
        let mut running = JoinSet::new();
        for (command, to) in commands.iter().copied() {
            self.note(Fact::Leading(command, to));
            let (store, again) = (self.store().clone(), self.again());
            running.spawn(async move {
                lead(&store, command, to, again)
                    .await
                    .map(|led| (command, to, led))
            });
        }
        while let Some(led) = running.join_next().await {
            let led = led.map_err(|error| format!("leading a command panicked: {error}"))?;
            let (command, to, led) = led?;
            if led {
                self.note(Fact::Led(command, to));
            }
        }
        Ok(())
    }
}

/// Leads a command so far; whether it came there.
async fn lead(store: &Store, command: usize, to: usize, again: Again) -> Result<bool, String> {
    let begun = Instant::now();
    loop {
        let failure = match lead_once(store, command, to).await {
            Ok(()) => return Ok(true),
            Err(failure) => failure,
        };
        match again.patience {
            Patience::Full if begun.elapsed() > again.longest => return Err(failure),
            Patience::Short if begun.elapsed() > again.longest => return Ok(false),
            Patience::Full | Patience::Short => {}
        }
        tokio::time::sleep(AGAIN).await;
    }
}

async fn lead_once(store: &Store, command: usize, to: usize) -> Result<(), String> {
    let commands = store.commands().map_err(|error| error.to_string())?;
    let done = commands.change(move |change| step(change, command, to));
    done.await.map_err(|error| error.to_string())
}

/// Takes a command from where it is; one that is there already stays.
fn step(change: &mut Change<'_>, command: usize, to: usize) -> Result<(), CommandsError> {
    let id = id(command);
    let mut at = change.state(id)?.map_or(0, far);
    while at < to {
        let (before, next) = (at.checked_sub(1).and_then(|at| LIFE.get(at)), LIFE.get(at));
        match (before.copied(), next.copied()) {
            (None, Some(first)) => change.add_command(&new(command), first, (None, None))?,
            (Some(from), Some(to)) => {
                let reason = None;
                change.move_command(id, Transition { from, to, reason })?;
            }
            (_, None) => return Ok(()),
        }
        at += 1;
        let body = json!({ "at": at });
        let draft = Draft::new(
            stream(command),
            "command.state",
            &By::system("torture"),
            &Trace::default(),
            &body,
        );
        let draft = draft.map_err(|error| CommandsError::Unfit {
            reason: error.to_string(),
        })?;
        change.append(&draft)?;
    }
    Ok(())
}

fn far(state: State) -> usize {
    let at = LIFE.iter().position(|one| *one == state);
    at.map_or(0, |at| at + 1)
}

/// Compares commands with what may be there. Where there never were any, none are asked for: that would make their file.
pub(super) fn judge(store: &Store, expected: &Expected) -> Result<Found, String> {
    let Some(commands) = store.commands_if_any() else {
        return match expected.commands.values().all(|may| may.contains(&0)) {
            true => Ok(Found::default()),
            false => Err("commands were acknowledged and are gone".to_owned()),
        };
    };
    let found = commands.read(|view| look(view, expected));
    let (found, counted) = found.map_err(|Wrong(what)| what)?;
    let counts = commands.counts();
    for (far, count) in (1..).zip(counted) {
        let state = LIFE.get(far - 1).copied().unwrap_or(State::Dead);
        if counts.of(state) != count {
            return Err(format!(
                "{} commands are counted as {}, and {count} are",
                counts.of(state),
                state.name()
            ));
        }
    }
    Ok(found)
}

/// What is not as it may be.
struct Wrong(String);

impl From<CommandsError> for Wrong {
    fn from(error: CommandsError) -> Self {
        Self(error.to_string())
    }
}

fn look(view: &View<'_>, expected: &Expected) -> Result<(Found, [u64; LIFE.len()]), Wrong> {
    let mut found = Found::default();
    let mut counted = [0; LIFE.len()];
    let mut records = 0;
    // An earlier judge has led this one.
    let fresh = (&FRESH, &vec![0, 1]);
    for (command, may) in expected.commands.iter().chain([fresh]) {
        let far = view.state(id(*command))?.map_or(0, far);
        let told = view.records_of(&stream(*command), 0, RECORDS)?.len();
        records += told;
        if !may.contains(&far) {
            return Err(Wrong(format!(
                "command {command} has come to {far}; expected one of {may:?}"
            )));
        }
        if told != far {
            return Err(Wrong(format!(
                "command {command} has come to {far} with {told} records"
            )));
        }
        found.commands += u64::from(far > 0);
        found.unacknowledged +=
            u64::from(may.first().is_some_and(|acknowledged| *acknowledged < far));
        if let Some(count) = far.checked_sub(1).and_then(|at| counted.get_mut(at)) {
            *count += 1;
        }
    }
    let rows = view.records(0, RECORDS)?;
    let leaves: Vec<Hash> = rows.iter().map(|row| Hash::of_leaf(&row.record)).collect();
    let head = view.ledger_head()?;
    if rows.len() != records || head.size != records as u64 || head.root != root_of(&leaves) {
        return Err(Wrong(format!(
            "the ledger has {} records of {records}, and its tree {}",
            rows.len(),
            head.size
        )));
    }
    Ok((found, counted))
}

/// A new command is taken, where there are commands at all.
pub(super) async fn goes_on(store: &Store) -> Result<(), String> {
    if !store.has_commands() {
        return Ok(());
    }
    let taken = lead_once(store, FRESH, 1).await;
    taken.map_err(|error| format!("a new command: {error}"))
}

fn id(command: usize) -> CommandId {
    let mut random = [0; 10];
    for (byte, of) in random.iter_mut().zip((command as u64).to_be_bytes()) {
        *byte = of;
    }
    CommandId::at(Timestamp::from_micros(1_800_000_000_000_000), random)
}

fn stream(command: usize) -> String {
    format!("cmd:{}", id(command))
}

fn new(command: usize) -> NewCommand {
    NewCommand {
        id: id(command),
        kind: "po_create".to_owned(),
        kind_version: "1".to_owned(),
        destination: "d1".to_owned(),
        principal: "bot".to_owned(),
        risk: Risk::Low,
        reversibility: Reversibility::Compensatable,
        order_key: None,
        digest: [0; 32],
        arguments: "{}".to_owned(),
        detail: "{}".to_owned(),
        expires_at: None,
        needs: Vec::new(),
        compensates: None,
        replays: None,
    }
}
