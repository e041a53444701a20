//! The way to commands: changes and looks, and waiting for what becomes of one.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::{Semaphore, oneshot, watch};
use wayhold_model::Clock;
use wayhold_model::command::{CommandId, State};

use super::change::{Change, View};
use super::counts::Counts;
use super::error::CommandsError;
use super::file::{self, MoveAfter};
use super::fresh::{Fresh, Gathered};
use super::keys::NewestKeys;
use super::ledger;
use super::readers::Readers;
use super::writer::{Made, Order, Waiting, Writer};
use crate::connection::ConnectionError;
use crate::disk::Disk;

/// Changes that may wait for the disk: a few groups, so that whoever comes next hears soon that it does not keep up.
const CHANGES_QUEUED_MAX: usize = 4096;

/// How long a change waits for a place in the queue.
const PLACE_WAIT: Duration = Duration::from_secs(5);

/// Commands that may be waited for at once: each is a request that is held open.
const WATCHED_MAX: usize = 10_000;

/// What commands are opened with.
pub(crate) struct CommandsOptions {
    pub(crate) directory: PathBuf,
    pub(crate) vfs: Option<String>,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) clock: Arc<dyn Clock>,
    /// When the log is moved although changes wait.
    pub(crate) move_after: MoveAfter,
    /// Called when a change was refused for lack of space; releases the reserve.
    pub(crate) on_no_space: Arc<dyn Fn() + Send + Sync>,
}

/// Commands of one data directory; a cheap handle.
#[derive(Clone)]
pub struct Commands {
    shared: Arc<Shared>,
    orders: Sender<Order>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
}

/// What handles and the writer share.
pub(super) struct Shared {
    pub(super) directory: PathBuf,
    pub(super) disk: Arc<dyn Disk>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) move_after: MoveAfter,
    pub(super) on_no_space: Arc<dyn Fn() + Send + Sync>,
    pub(super) readers: Readers,
    places: Arc<Semaphore>,
    state: Mutex<Seen>,
    /// Counts groups in which a command became ready, for whoever hands them over.
    ready: watch::Sender<u64>,
    /// Number of records in the ledger.
    ledger: watch::Sender<u64>,
}

struct Seen {
    counts: Counts,
    closed: Option<String>,
    watched: HashMap<CommandId, watch::Sender<Option<State>>>,
    fresh: Gathered,
}

impl std::fmt::Debug for Commands {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Commands")
            .field("directory", &self.shared.directory)
            .finish_non_exhaustive()
    }
}

impl Commands {
    /// Opens the file in the data directory, or makes it, and starts its writer. Blocking.
    pub(crate) fn open(options: CommandsOptions) -> Result<Self, ConnectionError> {
        let vfs = options.vfs.as_deref();
        let connection = file::open(&options.directory, vfs, options.disk.as_ref())?;
        let counts = Counts::read(&connection)?;
        let tree = ledger::restore(&connection)?;
        let keys = NewestKeys::read(&connection)?;
        let (orders, received) = channel();
        let shared = Arc::new(Shared {
            readers: Readers::new(&options.directory, options.vfs.clone()),
            directory: options.directory,
            disk: options.disk,
            clock: options.clock,
            move_after: options.move_after,
            on_no_space: options.on_no_space,
            places: Arc::new(Semaphore::new(CHANGES_QUEUED_MAX)),
            state: Mutex::new(Seen {
                counts,
                closed: None,
                watched: HashMap::new(),
                fresh: Gathered::at_start(),
            }),
            ready: watch::Sender::new(0),
            ledger: watch::Sender::new(tree.size()),
        });
        let before = (shared.clock.now(), tree, keys);
        let writer = Writer::new(Arc::clone(&shared), connection, received, before);
        let thread = std::thread::Builder::new()
            .name("commands".to_owned())
            .spawn(move || writer.run())
            .map_err(ConnectionError::Make)?;
        Ok(Self {
            shared,
            orders,
            thread: Arc::new(Mutex::new(Some(thread))),
        })
    }

    /// Makes a change; it is on the disk when this returns without error. The closure runs on the writer's thread,
    /// between others: it decides by rows that it reads and by values at hand, and leaves what takes longer to whoever
    /// calls. Where it refuses, nothing that it did remains. A call that is dropped may be carried out all the same.
    ///
    /// # Errors
    /// The closure's own, or that the change could not be recorded.
    pub async fn change<T, E, F>(&self, work: F) -> Result<T, E>
    where
        F: FnOnce(&mut Change<'_>) -> Result<T, E> + Send + 'static,
        T: Send + 'static,
        E: From<CommandsError> + Send + 'static,
    {
        self.ask(work, false).await
    }

    /// The same for a closure that refuses before it writes, or not at all, which costs much less. One that refuses
    /// later fails everything that is written together with it.
    ///
    /// # Errors
    /// As of `change`.
    pub async fn change_once_checked<T, E, F>(&self, work: F) -> Result<T, E>
    where
        F: FnOnce(&mut Change<'_>) -> Result<T, E> + Send + 'static,
        T: Send + 'static,
        E: From<CommandsError> + Send + 'static,
    {
        self.ask(work, true).await
    }

    async fn ask<T, E, F>(&self, work: F, refuses_first: bool) -> Result<T, E>
    where
        F: FnOnce(&mut Change<'_>) -> Result<T, E> + Send + 'static,
        T: Send + 'static,
        E: From<CommandsError> + Send + 'static,
    {
        let place = match Arc::clone(&self.shared.places).try_acquire_owned() {
            Ok(place) => place,
            Err(_) => {
                let waiting = Arc::clone(&self.shared.places).acquire_owned();
                match tokio::time::timeout(PLACE_WAIT, waiting).await {
                    Ok(Ok(place)) => place,
                    Ok(Err(_)) => return Err(CommandsError::Stopping.into()),
                    Err(_) => return Err(CommandsError::Busy.into()),
                }
            }
        };
        let (reply, answer) = oneshot::channel();
        let waiting = Waiting {
            work: Some(work),
            made: None,
            reply,
            refuses_first,
            _place: place,
        };
        self.orders
            .send(Order::Change(Box::new(waiting)))
            .map_err(|_| CommandsError::Stopping)?;
        answer.await.unwrap_or(Err(CommandsError::Stopping.into()))
    }

    /// Looks at what is synced, as it stood at one moment. Blocking.
    ///
    /// # Errors
    /// The closure's own, or that the file cannot be read.
    pub fn read<T, E: From<CommandsError>>(
        &self,
        look: impl FnOnce(&View<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        self.shared.readers.read(look)
    }

    /// How many commands are in each state.
    pub fn counts(&self) -> Counts {
        self.shared.seen().counts
    }

    /// What became ready since the last call. Meant for one caller, who hands it over.
    pub fn take_fresh(&self) -> Fresh {
        self.shared.seen().fresh.take()
    }

    /// Tells each time when commands have become ready: by groups, so look for all of them.
    pub fn ready(&self) -> watch::Receiver<u64> {
        self.shared.ready.subscribe()
    }

    /// Tells how many records the ledger has.
    pub fn ledger(&self) -> watch::Receiver<u64> {
        self.shared.ledger.subscribe()
    }

    /// Tells when a command becomes something else, from now on: first `None`, then where it stands; `None` where too
    /// many are waited for. Look where it stands after this, and before waiting.
    pub fn watch(&self, id: CommandId) -> Option<watch::Receiver<Option<State>>> {
        let mut seen = self.shared.seen();
        if seen.watched.len() >= WATCHED_MAX {
            // Those that nobody waits for any more go first.
            seen.watched.retain(|_, sender| !sender.is_closed());
        }
        if seen.watched.len() >= WATCHED_MAX && !seen.watched.contains_key(&id) {
            return None;
        }
        let sender = seen.watched.entry(id);
        let sender = sender.or_insert_with(|| watch::Sender::new(None));
        Some(sender.subscribe())
    }

    /// Why no change is taken now, for health; `None` when all is well.
    pub fn closed(&self) -> Option<String> {
        self.shared.closed()
    }

    /// Commits what is queued and moves the log into the file. Blocking; a second call does nothing.
    pub fn stop(&self) {
        self.shared.places.close();
        drop(self.orders.send(Order::Stop));
        let thread = {
            let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
            thread.take()
        };
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the writer of commands.db ended by a panic");
        }
    }

    /// Hands out a connection of its own, for copying the file.
    pub(crate) fn with_reader<T>(
        &self,
        with: impl FnOnce(&Connection) -> Result<T, ConnectionError>,
    ) -> Result<T, ConnectionError> {
        with(&self.shared.readers.one()?)
    }

    /// Bytes of the file and its log. Blocking, for a moment.
    pub fn bytes(&self) -> u64 {
        let path = file::path_in(&self.shared.directory);
        let log = crate::disk::with_suffix(&path, "-wal");
        [path.as_path(), log.as_ref()]
            .map(|path: &Path| self.shared.disk.len(path).unwrap_or(0))
            .iter()
            .sum()
    }
}

impl Shared {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn closed(&self) -> Option<String> {
        self.seen().closed.clone()
    }

    /// Takes no change for now.
    pub(super) fn close(&self, reason: String) {
        tracing::error!(%reason, "commands.db is closed for changes");
        self.seen().closed = Some(reason);
    }

    /// Takes changes again.
    pub(super) fn reopen(&self) {
        tracing::info!("commands.db takes changes again, in a new log");
        self.seen().closed = None;
    }

    /// A group is synced.
    pub(super) fn follow(&self, made: Made) {
        let records = made.tree.size();
        self.ledger
            .send_if_modified(|known| std::mem::replace(known, records) != records);
        let touched = made.touched;
        let ready = touched.iter().filter(|(_, state)| *state == State::Ready);
        let ready = ready.count();
        let has_others = ready > made.ready.len();
        let has_ended = touched.iter().any(|(_, state)| state.is_ended());
        let mut seen = self.seen();
        seen.counts = seen.counts.after(&made.deltas);
        seen.fresh.add(Fresh {
            commands: made.ready,
            has_others,
            has_ended,
        });
        if !seen.watched.is_empty() {
            for (id, state) in &touched {
                let gone = match seen.watched.get(id) {
                    Some(sender) => sender.send(Some(*state)).is_err(),
                    None => false,
                };
                if gone {
                    seen.watched.remove(id);
                }
            }
        }
        drop(seen);
        if ready > 0 || has_ended {
            self.ready.send_modify(|groups| *groups += 1);
        }
    }
}
