//! What a group keeps, what it leaves out, and what a failure does to it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::json;
use wayhold_model::approval::Digest;
use wayhold_model::command::{CommandId, Reversibility, Risk, State};
use wayhold_model::ledger::{Actor, Draft, Salt, Trace};
use wayhold_model::{Clock, OutcomeKind, Timestamp};

use super::*;
use crate::disk::SystemDisk;

/// When the log is moved while others wait.
pub(super) const MOVE_AFTER: MoveAfter = MoveAfter {
    pages: 512,
    groups: 8,
};

struct Ticking(AtomicU64);

impl Clock for Ticking {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

pub(super) fn open(directory: &Path) -> Commands {
    open_with(directory, Arc::new(|| {}))
}

fn open_with(directory: &Path, on_no_space: Arc<dyn Fn() + Send + Sync>) -> Commands {
    Commands::open(CommandsOptions {
        directory: directory.to_owned(),
        vfs: None,
        disk: Arc::new(SystemDisk),
        move_after: MOVE_AFTER,
        clock: Arc::new(Ticking(AtomicU64::new(1_000))),
        on_no_space,
    })
    .unwrap()
}

pub(super) fn id(n: u8) -> CommandId {
    CommandId::at(Timestamp::from_micros(1_000_000), [n; 10])
}

pub(super) fn new(n: u8) -> NewCommand {
    NewCommand {
        id: id(n),
        kind: "po_create".to_owned(),
        kind_version: "1".to_owned(),
        destination: "erp".to_owned(),
        principal: "ada".to_owned(),
        risk: Risk::High,
        reversibility: Reversibility::Compensatable,
        order_key: Some("sku-1".to_owned()),
        digest: [n; 32],
        arguments: "{}".to_owned(),
        detail: "{}".to_owned(),
        expires_at: None,
        needs: Vec::new(),
        compensates: None,
        replays: None,
    }
}

pub(super) async fn add(commands: &Commands, n: u8, state: State) -> Result<(), CommandsError> {
    let work = move |change: &mut Change<'_>| change.add_command(&new(n), state, (None, None));
    commands.change(work).await
}

async fn go(commands: &Commands, n: u8, from: State, to: State) -> Result<bool, CommandsError> {
    let reason = None;
    let step = Transition { from, to, reason };
    commands
        .change(move |change| change.move_command(id(n), step))
        .await
}

#[tokio::test]
async fn what_returned_is_there_after_a_start_with_its_counts() {
    let folder = tempfile::tempdir().unwrap();
    let commands = open(folder.path());
    add(&commands, 1, State::Ready).await.unwrap();
    add(&commands, 2, State::PendingApproval).await.unwrap();
    assert!(
        go(&commands, 1, State::Ready, State::Sending)
            .await
            .unwrap()
    );
    assert!(
        !go(&commands, 2, State::Ready, State::Sending)
            .await
            .unwrap()
    );
    let end = AttemptEnd {
        outcome: OutcomeKind::Delivered,
        class: None,
        status: Some(201),
        answer: r#"{"id":7}"#.to_owned(),
    };
    let kept = end.clone();
    let numbers = commands.change(move |change| {
        let request = "{}".to_owned();
        let start = AttemptStart { request };
        let first = change.start_attempt(id(1), &start)?;
        let second = change.start_attempt(id(1), &start)?;
        assert!(change.finish_attempt((id(1), second), &kept)?);
        assert!(
            !change.finish_attempt((id(1), second), &kept)?,
            "it had ended"
        );
        Ok::<_, CommandsError>((first, second))
    });
    assert_eq!(numbers.await, Ok((1, 2)));
    commands.stop();
    let stopped = commands.change(|_| Ok::<_, CommandsError>(())).await;
    assert_eq!(stopped, Err(CommandsError::Stopping));
    let examined = examine(folder.path()).unwrap().unwrap();
    assert_eq!((examined.format, examined.unsound.len()), (1, 0));
    let commands = open(folder.path());
    let counts = commands.counts();
    assert_eq!(counts, examined.counts);
    assert_eq!(
        [State::Ready, State::Sending, State::PendingApproval].map(|s| counts.of(s)),
        [0, 1, 1]
    );
    let (command, attempts) = commands
        .read(|view| {
            Ok::<_, CommandsError>((view.command(id(1))?.unwrap(), view.attempts(id(1), 9)?))
        })
        .unwrap();
    assert_eq!((command.new, command.state), (new(1), State::Sending));
    assert_eq!(attempts[0].end, None);
    assert_eq!(attempts[1].end.as_ref().unwrap().1, end);
}

#[tokio::test]
async fn a_change_that_is_refused_or_panics_leaves_nothing_and_takes_nobody_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let commands = open(folder.path());
    let refused = commands.change(|change| {
        change.add_command(&new(1), State::Ready, (None, None))?;
        Err::<(), _>(CommandsError::Unfit {
            reason: "no".to_owned(),
        })
    });
    let panics = commands.change(|change| {
        change.add_command(&new(2), State::Ready, (None, None))?;
        assert!(change.state(id(2))? == Some(State::Denied), "by design");
        Ok::<_, CommandsError>(())
    });
    let twice = commands.change(|change| {
        change.add_command(&new(4), State::Ready, (None, None))?;
        change.add_command(&new(4), State::Ready, (None, None))
    });
    let stays = add(&commands, 3, State::Ready);
    let (refused, panics, twice, stays) = tokio::join!(refused, panics, twice, stays);
    assert_eq!(refused.unwrap_err().to_string(), "commands.db: no");
    assert!(
        panics
            .unwrap_err()
            .to_string()
            .contains("panicked: by design")
    );
    assert!(
        matches!(twice, Err(CommandsError::Unfit { .. })),
        "{twice:?}"
    );
    stays.unwrap();
    let there = |n| commands.read(|view| view.state(id(n))).unwrap();
    assert_eq!(
        [1, 2, 3, 4].map(there),
        [None, None, Some(State::Ready), None]
    );
    assert_eq!(commands.counts().of(State::Ready), 1);
    assert_eq!(commands.closed(), None);
}

#[tokio::test]
async fn a_way_that_does_not_exist_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let commands = open(folder.path());
    add(&commands, 1, State::Accepted).await.unwrap();
    let refused = go(&commands, 1, State::Accepted, State::Succeeded).await;
    assert!(
        matches!(refused, Err(CommandsError::Unfit { .. })),
        "{refused:?}"
    );
    assert_eq!(
        commands.read(|view| view.state(id(1))),
        Ok(Some(State::Accepted))
    );
}

#[tokio::test]
async fn whoever_waits_for_a_command_hears_of_it_and_of_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let commands = open(folder.path());
    add(&commands, 1, State::Ready).await.unwrap();
    let mut one = commands.watch(id(1)).unwrap();
    let other = commands.watch(id(2)).unwrap();
    let mut ready = commands.ready();
    go(&commands, 1, State::Ready, State::Sending)
        .await
        .unwrap();
    one.changed().await.unwrap();
    assert_eq!(*one.borrow_and_update(), Some(State::Sending));
    assert!(!other.has_changed().unwrap());
    assert!(!ready.has_changed().unwrap());
    add(&commands, 3, State::Ready).await.unwrap();
    ready.changed().await.unwrap();
}

#[tokio::test]
async fn without_room_a_group_is_refused_and_the_next_one_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let asked = Arc::new(AtomicU64::new(0));
    let counting = Arc::clone(&asked);
    let commands = open_with(
        folder.path(),
        Arc::new(move || {
            counting.fetch_add(1, Ordering::Relaxed);
        }),
    );
    let limit = |pages: u32| {
        commands.change(move |change| {
            change.run(|c| c.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(())))
        })
    };
    limit(1).await.unwrap();
    let mut long = new(1);
    long.arguments = "x".repeat(100_000);
    let again = long.clone();
    let full = commands.change(move |change| change.add_command(&long, State::Ready, (None, None)));
    assert_eq!(full.await, Err(CommandsError::NoSpace));
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    limit(100_000).await.unwrap();
    let taken =
        commands.change(move |change| change.add_command(&again, State::Ready, (None, None)));
    taken.await.unwrap();
    assert_eq!(commands.counts().of(State::Ready), 1);
}

/// A change that adds a command, and then meets an error of SQLite that it makes nothing of.
async fn meet(commands: &Commands, n: u8, code: std::ffi::c_int) -> Result<(), CommandsError> {
    let met = commands.change(move |change| {
        change.add_command(&new(n), State::Ready, (None, None))?;
        let fails = change.run(|_| {
            let error = rusqlite::ffi::Error::new(code);
            Err::<(), _>(rusqlite::Error::SqliteFailure(error, None))
        });
        assert!(matches!(fails, Err(CommandsError::Closed { .. })));
        Ok::<_, CommandsError>(())
    });
    met.await
}

#[tokio::test]
async fn after_a_write_that_failed_the_log_is_replaced_and_what_was_answered_stays() {
    let folder = tempfile::tempdir().unwrap();
    let commands = open(folder.path());
    add(&commands, 1, State::Ready).await.unwrap();
    let log = folder.path().join("commands.db-wal");
    assert!(log.metadata().unwrap().len() > 0);
    let failed = meet(&commands, 2, rusqlite::ffi::SQLITE_IOERR_FSYNC).await;
    assert!(
        matches!(failed, Err(CommandsError::Closed { .. })),
        "{failed:?}"
    );
    // The next change waits for the new log.
    add(&commands, 3, State::Ready).await.unwrap();
    assert_eq!(commands.closed(), None);
    let there = |n: u8| commands.read(|view| view.state(id(n))).unwrap().is_some();
    assert_eq!([1, 2, 3].map(there), [true, false, true]);
    commands.stop();
    let commands = open(folder.path());
    assert_eq!(commands.counts().of(State::Ready), 2);
}

#[tokio::test]
async fn while_a_reader_keeps_an_uncertain_log_nothing_is_taken_and_that_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let commands = open(folder.path());
    add(&commands, 1, State::Ready).await.unwrap();
    let (begun, has_begun) = std::sync::mpsc::channel();
    let (end, ending) = std::sync::mpsc::channel();
    let reading = commands.clone();
    let reader = std::thread::spawn(move || {
        reading.read(|view| {
            let state = view.state(id(1));
            begun.send(()).unwrap();
            ending.recv().unwrap();
            state.map(drop)
        })
    });
    has_begun.recv().unwrap();
    let failed = meet(&commands, 2, rusqlite::ffi::SQLITE_IOERR_WRITE).await;
    assert!(matches!(failed, Err(CommandsError::Closed { .. })));
    let next = add(&commands, 3, State::Ready).await;
    assert!(
        matches!(next, Err(CommandsError::Closed { .. })),
        "{next:?}"
    );
    assert!(commands.closed().is_some());
    end.send(()).unwrap();
    reader.join().unwrap().unwrap();
    while add(&commands, 3, State::Ready).await.is_err() {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(commands.closed(), None);
    assert_eq!(commands.counts().of(State::Ready), 2);
}

#[tokio::test]
async fn a_change_that_refuses_first_leaves_nothing_and_takes_nobody_with_it_unless_it_breaks_its_word()
 {
    let folder = tempfile::tempdir().unwrap();
    let commands = open(folder.path());
    let checked = |n: u8, breaks_its_word: bool, refuses: bool| {
        commands.change_once_checked(move |change| {
            if refuses && !breaks_its_word {
                return Err(CommandsError::Busy);
            }
            change.add_command(&new(n), State::Ready, (None, None))?;
            match refuses {
                true => Err(CommandsError::Busy),
                false => Ok(()),
            }
        })
    };
    let (kept, refused, also_kept) = tokio::join!(
        checked(1, false, false),
        checked(2, false, true),
        add(&commands, 3, State::Ready)
    );
    assert_eq!(
        (kept, refused, also_kept),
        (Ok(()), Err(CommandsError::Busy), Ok(()))
    );
    assert_eq!(checked(4, true, true).await, Err(CommandsError::Busy));
    // Nothing of it is left, and the file takes changes as before.
    assert_eq!(commands.read(|view| view.state(id(4))), Ok(None));
    assert_eq!(checked(4, false, false).await, Ok(()));
    assert_eq!(commands.closed(), None);
    commands.stop();
    let commands = open(folder.path());
    let states = [1, 2, 3, 4].map(|n| commands.read(|view| view.state(id(n))).unwrap());
    let ready = Some(State::Ready);
    assert_eq!(states, [ready, None, ready, ready]);
    assert_eq!(commands.counts().of(State::Ready), 3);
}

#[tokio::test]
async fn a_damaged_file_takes_nothing_until_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let commands = open(folder.path());
    add(&commands, 1, State::Ready).await.unwrap();
    let failed = meet(&commands, 2, rusqlite::ffi::SQLITE_CORRUPT).await;
    assert!(matches!(failed, Err(CommandsError::Closed { .. })));
    for n in [3, 4] {
        let next = add(&commands, n, State::Ready).await;
        assert!(
            matches!(next, Err(CommandsError::Closed { .. })),
            "{next:?}"
        );
    }
    assert!(commands.closed().is_some());
    // What was synced is still read.
    assert_eq!(
        commands.read(|view| view.state(id(1))),
        Ok(Some(State::Ready))
    );
    commands.stop();
    let commands = open(folder.path());
    add(&commands, 3, State::Ready).await.unwrap();
    assert_eq!(commands.counts().of(State::Ready), 2);
}

#[tokio::test]
async fn lists_go_back_in_time_and_hold_what_was_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let commands = open(folder.path());
    for n in 1..=5 {
        let state = if n % 2 == 0 {
            State::Denied
        } else {
            State::Ready
        };
        add(&commands, n, state).await.unwrap();
    }
    let list = |filter: &CommandFilter, before, max| {
        let found = commands.read(|view| view.commands(filter, before, max));
        let ids = found
            .unwrap()
            .into_iter()
            .map(|command| (command.new.id, command.number));
        ids.collect::<Vec<_>>()
    };
    let any = CommandFilter::default();
    assert_eq!(list(&any, None, 2), [(id(5), 5), (id(4), 4)]);
    assert_eq!(list(&any, Some(4), 2), [(id(3), 3), (id(2), 2)]);
    let denied = CommandFilter {
        states: vec![State::Denied, State::Dead],
        kind: Some("po_create".to_owned()),
        ..any.clone()
    };
    assert_eq!(list(&denied, None, 9), [(id(4), 4), (id(2), 2)]);
    let elsewhere = CommandFilter {
        destination: Some("wms".to_owned()),
        ..any
    };
    assert!(list(&elsewhere, None, 9).is_empty());
    let due = commands
        .read(|view| view.to_hand_over((1, u64::MAX), 9))
        .unwrap();
    assert_eq!(due.iter().map(|one| one.number).collect::<Vec<_>>(), [3, 5]);
}

#[tokio::test]
async fn what_is_erased_is_gone_from_the_command_and_its_edits_too() {
    let folder = tempfile::tempdir().unwrap();
    let commands = open(folder.path());
    let [first, second, answer] = ["first", "second", "answer"].map(|name| {
        format!(
            "{{\"{name}\":\"{}\"}}",
            format!("{name} 0151-2223344 ").repeat(9)
        )
    });
    let asked = NewCommand {
        arguments: first.clone(),
        ..new(1)
    };
    let add = move |change: &mut Change<'_>| {
        change.add_command(&asked, State::PendingApproval, (None, None))
    };
    commands.change(add).await.unwrap();
    let with = second.clone();
    let edit = move |change: &mut Change<'_>| {
        let edited = Edited {
            arguments: &with,
            digest: &Digest([2; 32]),
            order_key: None,
        };
        change.edit_command(id(1), "ada", edited)
    };
    assert!(commands.change(edit).await.unwrap());
    let keep = answer.clone();
    let keep = move |change: &mut Change<'_>| change.keep_result(id(1), &keep);
    commands.change(keep).await.unwrap();

    let mut held = Vec::new();
    for (kind, text) in [
        ("command.accepted", &first),
        ("command.edited", &second),
        ("attempt.finished", &answer),
    ] {
        let payload = Payload::new(Salt([7; 32]), text.clone().into_bytes());
        let body = json!({ "said": payload.reference(), "outcome": "delivered" });
        let (actor, trace) = (Actor::system("test"), Trace::default());
        let record = Draft::new(format!("cmd:{}", id(1)), kind, &actor, &trace, &body).unwrap();
        let commitment = payload.commitment;
        let append = move |change: &mut Change<'_>| change.append_with(&record, &[payload]);
        held.push((commands.change(append).await.unwrap(), commitment));
    }
    let erase = async |(idx, commitment)| {
        let erase = move |change: &mut Change<'_>| change.erase(idx, commitment);
        commands.change(erase).await.unwrap()
    };
    assert_eq!(
        erase(held[0]).await,
        Erasing::NotEnded(State::PendingApproval)
    );
    let kept = || commands.read(|view| view.command(id(1))).unwrap().unwrap();
    assert_eq!(
        (kept().new.arguments, kept().result),
        (second, Some(answer))
    );

    assert!(
        go(&commands, 1, State::PendingApproval, State::Cancelled)
            .await
            .unwrap()
    );
    for payload in held {
        assert_eq!(erase(payload).await, Erasing::Erased);
    }
    assert!(kept().new.is_erased());
    assert_eq!(kept().result, None);
    let edits = commands.read(|view| view.edits_of(id(1))).unwrap();
    assert_eq!(edits[0].arguments, "null");
    commands.stop();
    let file = std::fs::read(folder.path().join("commands.db")).unwrap();
    let found = file.windows(12).any(|bytes| bytes == b"0151-2223344");
    assert!(!found, "the file still holds what was erased");
}

/// Numbers of the commands that are in memory, and whether there are others.
fn fresh(commands: &Commands) -> (Vec<u64>, bool, bool) {
    let fresh = commands.take_fresh();
    let numbers = fresh.commands.iter().map(|command| command.number);
    (numbers.collect(), fresh.has_others, fresh.has_ended)
}

#[tokio::test]
async fn what_is_proposed_ready_is_known_in_memory_and_all_else_is_looked_for() {
    let folder = tempfile::tempdir().unwrap();
    let commands = open(folder.path());
    assert_eq!(fresh(&commands), (vec![], true, false), "an earlier run's");
    assert_eq!(fresh(&commands), (vec![], false, false));
    add(&commands, 1, State::Ready).await.unwrap();
    add(&commands, 2, State::PendingApproval).await.unwrap();
    add(&commands, 3, State::Ready).await.unwrap();
    let refused = commands.change(|change| {
        change.add_command(&new(4), State::Ready, (None, None))?;
        Err::<(), _>(CommandsError::Busy)
    });
    assert_eq!(refused.await, Err(CommandsError::Busy));
    let in_memory = commands.take_fresh().commands;
    assert_eq!(in_memory.len(), 2);
    for command in in_memory {
        let id = command.new.id;
        let kept = commands.read(|view| view.command(id)).unwrap();
        assert_eq!(kept.as_ref(), Some(&*command));
    }
    let (first, last) = (1, 3);
    let plain = |range| commands.read(|view| view.are_to_hand_over(range)).unwrap();
    assert!(plain((first, first)) && plain((last, last)) && !plain((first, last)));

    // One that waits, or became ready later, is not.
    let waits = NewCommand {
        needs: vec![id(1)],
        ..new(5)
    };
    let work = move |change: &mut Change<'_>| {
        change.add_command(&new(6), State::Ready, (None, None))?;
        change.add_command(&waits, State::Ready, (None, None))
    };
    commands.change(work).await.unwrap();
    assert_eq!(fresh(&commands), (vec![], true, false));
    go(&commands, 2, State::PendingApproval, State::Ready)
        .await
        .unwrap();
    add(&commands, 7, State::Ready).await.unwrap();
    assert_eq!(fresh(&commands), (vec![], true, false));
    go(&commands, 3, State::Ready, State::Cancelled)
        .await
        .unwrap();
    add(&commands, 8, State::Ready).await.unwrap();
    assert_eq!(fresh(&commands), (vec![7], false, true));
}

#[tokio::test]
async fn what_does_not_fit_into_memory_is_looked_for_with_all_that_comes_after_it() {
    let folder = tempfile::tempdir().unwrap();
    let commands = open(folder.path());
    commands.take_fresh();
    let large = |n: u8| NewCommand {
        arguments: "x".repeat(6 << 20),
        ..new(n)
    };
    for n in 1..=2 {
        let large = large(n);
        let work =
            move |change: &mut Change<'_>| change.add_command(&large, State::Ready, (None, None));
        commands.change(work).await.unwrap();
    }
    assert_eq!(fresh(&commands), (vec![1, 2], false, false));
    for n in 3..=6 {
        let one = if n == 6 { new(n) } else { large(n) };
        let work =
            move |change: &mut Change<'_>| change.add_command(&one, State::Ready, (None, None));
        commands.change(work).await.unwrap();
    }
    assert_eq!(fresh(&commands), (vec![], true, false));
    add(&commands, 7, State::Ready).await.unwrap();
    assert_eq!(fresh(&commands), (vec![7], false, false));
}
