//! Memory is ahead of the file: what is under the one lock of a shard's progress, and who waits until the file knows.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use thiserror::Error;
use tokio::sync::oneshot;

use crate::progress::handle::Progress;
use crate::progress::memory::Memory;

/// How long a thread waits for the disk before it is told that nothing is certain.
const THREAD_WAIT: Duration = Duration::from_secs(5);

/// Notes of one run that are kept for health; a disk that fails for ever must not fill the memory.
const NOTES_MAX: usize = 100;

/// What was waited for is not on disk: the store stopped, or the disk takes nothing. Do not act on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("progress is not on disk")]
pub struct NotDurable;

/// Everything under the one lock.
pub(super) struct State {
    pub(super) memory: Memory,
    /// Changes made.
    pub(super) changed: u64,
    /// Changes of which the file knows.
    pub(super) durable: u64,
    /// When the first change was made of which it does not.
    pub(super) first_change: Option<Instant>,
    waiters: Vec<(u64, Waiter)>,
    pub(super) stopping: bool,
    pub(super) stopped: bool,
    /// Number of the file.
    pub(super) file: u64,
    /// Why the file does not follow at the moment.
    pub(super) trouble: Option<String>,
    /// What happened in this run that a person should know.
    pub(super) notes: Vec<String>,
}

enum Waiter {
    Task(oneshot::Sender<()>),
    Thread(mpsc::SyncSender<()>),
}

impl Progress {
    /// Resolves once everything recorded before this call is synced, however long the disk takes. The
    /// writer is asked at once, so that several shards can be waited for together.
    pub(crate) fn durable(&self) -> impl Future<Output = Result<(), NotDurable>> + use<> {
        let asked = {
            let mut state = self.shared.lock();
            state.must_wait().map(|changed| {
                changed.map(|changed| {
                    let (sender, receiver) = oneshot::channel();
                    state.waiters.push((changed, Waiter::Task(sender)));
                    self.shared.wake.notify_one();
                    receiver
                })
            })
        };
        async move {
            match asked? {
                Some(waiting) => waiting.await.map_err(|_| NotDurable),
                None => Ok(()),
            }
        }
    }

    /// The same for a thread, though not for ever.
    pub(crate) fn durable_soon(&self) -> Result<(), NotDurable> {
        let waiting = {
            let mut state = self.shared.lock();
            let Some(changed) = state.must_wait()? else {
                return Ok(());
            };
            let (sender, receiver) = mpsc::sync_channel(1);
            state.waiters.push((changed, Waiter::Thread(sender)));
            self.shared.wake.notify_one();
            receiver
        };
        waiting.recv_timeout(THREAD_WAIT).map_err(|_| NotDurable)
    }
}

impl State {
    /// Nothing was changed since this was read from the file of that number, with these findings.
    pub(super) fn new(memory: Memory, file: u64, notes: Vec<String>) -> Self {
        Self {
            memory,
            changed: 0,
            durable: 0,
            first_change: None,
            waiters: Vec::new(),
            stopping: false,
            stopped: false,
            file,
            trouble: None,
            notes,
        }
    }

    /// Up to which change somebody has to wait; `None` when there is nothing to wait for.
    fn must_wait(&self) -> Result<Option<u64>, NotDurable> {
        match self.changed {
            changed if changed == self.durable => Ok(None),
            _ if self.stopped => Err(NotDurable),
            changed => Ok(Some(changed)),
        }
    }

    /// Whether somebody waits.
    pub(super) fn is_awaited(&self) -> bool {
        !self.waiters.is_empty()
    }

    /// Everything up to this change is in the file; those who wait for it go on.
    pub(super) fn is_durable(&mut self, through: u64) {
        self.durable = through;
        self.first_change = (self.changed > through).then(Instant::now);
        self.trouble = None;
        let waiting = std::mem::take(&mut self.waiters);
        for (changed, waiter) in waiting {
            if changed > through {
                self.waiters.push((changed, waiter));
                continue;
            }
            // Who no longer waits needs no answer.
            match waiter {
                Waiter::Task(sender) => drop(sender.send(())),
                Waiter::Thread(sender) => drop(sender.try_send(())),
            }
        }
    }

    /// The writer is gone: nobody waits any longer.
    pub(super) fn has_stopped(&mut self) {
        self.stopped = true;
        self.waiters.clear();
    }

    /// Keeps what happened for health, once.
    pub(super) fn note(&mut self, note: String) {
        if self.notes.len() < NOTES_MAX && !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }
}
