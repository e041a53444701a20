//! The thread that alone writes `commands.db`: what waits while one group is synced is the next group, each change
//! in a savepoint of its own unless it needs none, all answered after the sync.
//!
//! A log whose write or sync failed is never added to: what it holds of the last group is uncertain, and whoever asked
//! for it is told so. What was synced before is moved into the file and synced there, and the log cut off; only then is
//! the next group taken, into a log of its own. Where that does not work it is tried again, and nothing is taken
//! meanwhile.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use wayhold_model::Timestamp;
use wayhold_model::command::{CommandId, State};
use wayhold_model::ledger::Frontier;

use super::change::Change;
use super::counts::Deltas;
use super::error::{CommandsError, Trouble};
use super::file::{self, Moved, Occasion};
use super::handle::Shared;
use super::keys::{NewestKeys, Sorted};
use super::rows::Command;

/// Changes that are synced together at most: more would only make the first of them wait longer.
const CHANGES_PER_GROUP: usize = 512;

/// How long after a log could not be replaced that is tried again: soon enough for whoever tries again as `Retry-After`
/// says, and seldom enough for a disk in trouble.
const MEND_EVERY: Duration = Duration::from_millis(500);

/// How long nobody asks for anything before the log is moved into the file beforehand.
const QUIET: Duration = Duration::from_millis(100);

/// What the writer is asked.
pub(super) enum Order {
    /// To make this change.
    Change(Box<dyn Wanted>),
    /// To commit what is queued and end.
    Stop,
}

/// A change that somebody waits for.
pub(super) trait Wanted: Send {
    /// Makes it; whether it is to stay.
    fn make(&mut self, change: &mut Change<'_>) -> bool;

    /// Whether it refuses before it writes, or not at all.
    fn refuses_first(&self) -> bool;

    /// Answers, once the group is synced or has failed.
    fn answer(self: Box<Self>, synced: Result<(), CommandsError>);
}

/// A change as a closure, and where its outcome goes.
pub(super) struct Waiting<F, T, E> {
    pub(super) work: Option<F>,
    pub(super) made: Option<Result<T, E>>,
    pub(super) reply: oneshot::Sender<Result<T, E>>,
    pub(super) refuses_first: bool,
    /// Its place in the queue.
    pub(super) _place: OwnedSemaphorePermit,
}

impl<F, T, E> Wanted for Waiting<F, T, E>
where
    F: FnOnce(&mut Change<'_>) -> Result<T, E> + Send,
    T: Send,
    E: From<CommandsError> + Send,
{
    fn make(&mut self, change: &mut Change<'_>) -> bool {
        let Some(work) = self.work.take() else {
            return false;
        };
        // A change that panics must not end the ledger for everybody else.
        let made = catch_unwind(AssertUnwindSafe(|| work(change)))
            .unwrap_or_else(|panic| Err(panicked(panic.as_ref()).into()));
        let stays = made.is_ok();
        self.made = Some(made);
        stays
    }

    fn refuses_first(&self) -> bool {
        self.refuses_first
    }

    fn answer(self: Box<Self>, synced: Result<(), CommandsError>) {
        let answer = match (synced, self.made) {
            // What it was refused for holds whatever became of the group: it left nothing in it.
            (_, Some(Err(refused))) => Err(refused),
            (Ok(()), Some(Ok(done))) => Ok(done),
            (Ok(()), None) => Err(CommandsError::Stopping.into()),
            (Err(error), _) => Err(error.into()),
        };
        // Whoever asked may have gone.
        drop(self.reply.send(answer));
    }
}

fn panicked(panic: &(dyn Any + Send)) -> CommandsError {
    let what = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a word");
    CommandsError::Unfit {
        reason: format!("a change panicked: {what}"),
    }
}

pub(super) struct Writer {
    shared: Arc<Shared>,
    connection: Connection,
    orders: Receiver<Order>,
    /// Time of the last group.
    time: Timestamp,
    /// The ledger's tree after the last group.
    tree: Frontier,
    /// Keys that are not sorted into their places.
    keys: NewestKeys,
    /// When replacing the log is tried, where a write of it has failed.
    mend_at: Option<Instant>,
    /// Groups since the log was moved.
    groups: u32,
    /// Part of the log was moved and is not synced, nor would SQLite move it again.
    is_partly_moved: bool,
    /// Something was erased, and the log may still hold it.
    has_erased: bool,
}

/// What a group did besides rows.
#[derive(Default)]
pub(super) struct Made {
    pub(super) deltas: Deltas,
    pub(super) touched: Vec<(CommandId, State)>,
    pub(super) ready: Vec<Arc<Command>>,
    pub(super) tree: Frontier,
    keys: NewestKeys,
    /// How far keys were sorted into their places.
    sorted: Option<Sorted>,
    has_erased: bool,
}

impl Writer {
    pub(super) fn new(
        shared: Arc<Shared>,
        connection: Connection,
        orders: Receiver<Order>,
        (time, tree, keys): (Timestamp, Frontier, NewestKeys),
    ) -> Self {
        Self {
            shared,
            connection,
            orders,
            time,
            tree,
            keys,
            mend_at: None,
            groups: 0,
            is_partly_moved: false,
            has_erased: false,
        }
    }

    pub(super) fn run(mut self) {
        let mut stopping = false;
        while !stopping {
            let Some(first) = self.next() else {
                break;
            };
            let mut group = Vec::new();
            let mut next = Some(first);
            while let Some(order) = next.take() {
                match order {
                    Order::Change(wanted) => group.push(wanted),
                    Order::Stop => {
                        stopping = true;
                        break;
                    }
                }
                if group.len() < CHANGES_PER_GROUP {
                    next = self.orders.try_recv().ok();
                }
            }
            if !group.is_empty() {
                self.commit(group);
            }
        }
        failpoint!("commands.before-last-checkpoint");
        self.shared.readers.close();
        if self.shared.closed().is_none()
            && let Err(error) = file::cut_off(&self.connection)
        {
            tracing::warn!(%error, "commands.db not checkpointed at stop");
        }
    }

    /// The next order; `None` where none will come. The log is replaced meanwhile, where it has to be, and moved into the
    /// file where there is time for it.
    fn next(&mut self) -> Option<Order> {
        loop {
            let wait = match self.mend_at {
                Some(at) => at.saturating_duration_since(Instant::now()),
                None => QUIET,
            };
            match self.orders.recv_timeout(wait) {
                Ok(order) => return Some(order),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) if self.mend_at.is_some() => self.mend(),
                Err(RecvTimeoutError::Timeout) => {
                    self.keep_log_short(Occasion::Quiet);
                    let waits_to_cut_off = self.has_erased && self.shared.closed().is_none();
                    if self.mend_at.is_none() && !waits_to_cut_off {
                        return self.orders.recv().ok();
                    }
                }
            }
        }
    }

    /// Puts a new log in place of one that is uncertain.
    fn mend(&mut self) {
        match file::cut_off_now(&self.connection) {
            Ok(moved) => {
                self.follow(moved);
                self.mend_at = match moved.is_over {
                    true => None,
                    // A reader is in the way; it will be done soon.
                    false => Instant::now().checked_add(MEND_EVERY),
                };
                if moved.is_over {
                    self.has_erased = false;
                    self.shared.reopen();
                }
            }
            Err(error) => self.fail(&error),
        }
    }

    fn follow(&mut self, moved: Moved) {
        self.is_partly_moved = !moved.is_whole;
        if moved.is_whole {
            self.groups = 0;
        }
    }

    /// Takes no changes for now, or until the next start.
    fn fail(&mut self, error: &rusqlite::Error) {
        match Trouble::of_move(error, self.is_partly_moved) {
            Some(Trouble::Broken(reason)) if !is_busy(error) => {
                self.mend_at = None;
                self.shared.close(reason);
            }
            trouble => {
                if trouble == Some(Trouble::NoSpace) {
                    (self.shared.on_no_space)();
                }
                self.mend_at = Instant::now().checked_add(MEND_EVERY);
            }
        }
    }

    /// Makes a group durable and answers it.
    fn commit(&mut self, mut group: Vec<Box<dyn Wanted>>) {
        if self.mend_at.is_some_and(|at| at <= Instant::now()) {
            self.mend();
        }
        if let Some(reason) = self.shared.closed() {
            return answer(group, &Err(CommandsError::Closed { reason }));
        }
        self.time = self.time.max(self.shared.clock.now());
        failpoint!("commands.group-begins");
        let made = make_all(
            &mut self.connection,
            (self.time, &self.tree, &self.keys),
            &mut group,
        );
        failpoint!("commands.group-synced");
        let done = match made {
            Ok(mut made) => {
                let (keys, sorted) = (std::mem::take(&mut made.keys), made.sorted.take());
                self.keys.extend(keys);
                self.keys.follow(sorted);
                self.has_erased |= made.has_erased;
                self.groups = self.groups.saturating_add(1);
                // Seen before anybody is answered, so that whoever was answered sees it.
                self.tree = made.tree.clone();
                self.shared.follow(made);
                Ok(())
            }
            Err(trouble) => {
                let error = trouble.answer();
                self.meet(trouble);
                Err(error)
            }
        };
        answer(group, &done);
        failpoint!("commands.group-answered");
        match done {
            Ok(()) => self.keep_log_short(Occasion::Busy {
                groups: self.groups,
                after: self.shared.move_after,
            }),
            Err(_) if self.mend_at.is_some() => self.mend(),
            Err(_) => {}
        }
    }

    /// Does what a failure asks for.
    fn meet(&mut self, trouble: Trouble) {
        match trouble {
            Trouble::NoSpace => (self.shared.on_no_space)(),
            // Rolled back; the file is as it was.
            Trouble::Spoilt => {}
            Trouble::Failed(reason) => {
                self.shared.close(reason);
                self.mend_at = Some(Instant::now());
            }
            Trouble::Broken(reason) => self.shared.close(reason),
        }
    }

    /// Moves the log into the file where it is time for that, and cuts it off where it may hold what was erased.
    fn keep_log_short(&mut self, occasion: Occasion) {
        if self.shared.closed().is_some() {
            return;
        }
        let moved = match self.has_erased {
            true => file::cut_off_now(&self.connection).map(Some),
            false => file::move_if_due(&self.connection, occasion),
        };
        match moved {
            Ok(None) => {}
            Ok(Some(moved)) => {
                self.follow(moved);
                self.has_erased &= !moved.is_over;
            }
            // A reader is in the way, or something else that passes: it is tried again after the next group.
            Err(error) if is_busy(&error) => {}
            Err(error) => {
                if let Some(trouble) = Trouble::of_move(&error, self.is_partly_moved) {
                    self.meet(trouble);
                }
            }
        }
    }
}

fn is_busy(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy)
}

fn answer(group: Vec<Box<dyn Wanted>>, synced: &Result<(), CommandsError>) {
    for wanted in group {
        wanted.answer(synced.clone());
    }
}

/// Runs a group in one transaction and syncs it.
fn make_all(
    connection: &mut Connection,
    (now, tree, keys): (Timestamp, &Frontier, &NewestKeys),
    group: &mut [Box<dyn Wanted>],
) -> Result<Made, Trouble> {
    let failed = |error: rusqlite::Error| {
        Trouble::of(&error).unwrap_or_else(|| Trouble::Broken(error.to_string()))
    };
    let transaction = connection
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .map_err(failed)?;
    let run = |statement: &str| -> Result<(), Trouble> {
        let mut statement = transaction.prepare_cached(statement).map_err(failed)?;
        statement.execute([]).map(drop).map_err(failed)
    };
    let mut made = Made {
        tree: tree.clone(),
        keys: keys.after(),
        ..Made::default()
    };
    for wanted in group {
        // A savepoint keeps a copy of every page that is written after it.
        let has_savepoint = !wanted.refuses_first();
        if has_savepoint {
            run("SAVEPOINT change")?;
        }
        let before = transaction.total_changes();
        let mut change = Change::new(&transaction, now, made.tree.clone(), [keys, &made.keys]);
        let stays = wanted.make(&mut change);
        if let Some(trouble) = change.trouble() {
            return Err(trouble);
        }
        let (deltas, tree) = (change.deltas, change.tree);
        let (touched, ready) = (change.touched, change.ready);
        let (new_keys, has_erased) = (change.new_keys, change.has_erased);
        if stays {
            made.tree = tree;
            made.deltas.add(&deltas);
            made.touched.extend(touched);
            made.ready.extend(ready);
            made.keys.extend(new_keys);
            made.has_erased |= has_erased;
        } else if has_savepoint {
            run("ROLLBACK TO change")?;
        } else if transaction.total_changes() != before {
            return Err(Trouble::Spoilt);
        }
        if has_savepoint {
            run("RELEASE change")?;
        }
    }
    made.deltas.write(&transaction).map_err(failed)?;
    made.sorted = keys.sort_some(&made.keys, &transaction).map_err(failed)?;
    failpoint!("commands.before-sync");
    transaction.commit().map_err(failed)?;
    Ok(made)
}
