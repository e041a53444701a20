//! Where commands are proposed, looked at and taken back: what all of that shares.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use thiserror::Error;
use tokio::sync::watch;
use tokio::task::JoinSet;
use wayhold_model::Clock;
use wayhold_model::command::{CommandId, State};
use wayhold_store::{Commands, CommandsError, OpenError, Store};

use super::counted::Answers;
use super::gate::Gate;
use super::keys::KeysInUse;
use super::kinds::Kinds;
use super::proposal::InvalidProposal;

/// Why a command was not accepted, or not changed; each says what to do next.
#[derive(Clone, Debug, Error)]
pub enum CommandError {
    /// A field is not what it should be.
    #[error(transparent)]
    Invalid(#[from] InvalidProposal),
    /// The arguments do not fit the kind's schema.
    #[error("arguments do not fit the schema of {kind}")]
    Arguments {
        /// The kind.
        kind: String,
        /// What does not fit, as JSON pointer into the body and sentence.
        faults: Vec<(String, String)>,
    },
    /// No kind of that name is configured.
    #[error("no kind of command is called {kind:?}")]
    NoSuchKind {
        /// The name.
        kind: String,
    },
    /// No command has that id.
    #[error("no command is called {id}")]
    NotFound {
        /// The id as it was given.
        id: String,
    },
    /// The key came before with another body. Use a new key for a new command.
    #[error("this Idempotency-Key came before with another body")]
    OtherBody,
    /// The first request of this key is still being answered. Ask again in a moment.
    #[error("the first request with this Idempotency-Key is still being answered")]
    KeyInUse,
    /// There is a command of that id with other content.
    #[error("command {id} exists with another content")]
    Exists {
        /// Its id.
        id: CommandId,
    },
    /// It stands where that cannot be done.
    #[error("command {id} is {}, {why}", state.name())]
    WrongState {
        /// Its id.
        id: CommandId,
        /// Where it stands.
        state: State,
        /// Why that is in the way.
        why: &'static str,
    },
    /// Less disk is free than must stay free; what was accepted goes on.
    #[error("the disk has too little free space for new commands")]
    NoSpace,
    /// The change was not recorded.
    #[error(transparent)]
    Store(#[from] CommandsError),
    /// Commands cannot be opened.
    #[error("commands cannot be opened: {0}")]
    Closed(String),
}

/// Where commands are proposed, looked at and taken back. A cheap handle.
#[derive(Clone)]
pub struct CommandDesk(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) store: Store,
    pub(super) kinds: ArcSwap<Kinds>,
    pub(super) gate: Gate,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) keys: KeysInUse,
    /// What targets said.
    pub(super) answers: Answers,
    commands: OnceLock<Commands>,
    /// Says to whoever works for it that the server stops.
    stop: watch::Sender<bool>,
    workers: Mutex<Option<JoinSet<()>>>,
}

impl CommandDesk {
    /// A desk for these kinds. Nothing is opened before it is needed.
    pub fn new(store: Store, kinds: Kinds, gate: Gate, clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(Inner {
            store,
            kinds: ArcSwap::from_pointee(kinds),
            gate,
            clock,
            keys: KeysInUse::default(),
            answers: Answers::default(),
            commands: OnceLock::new(),
            stop: watch::Sender::new(false),
            workers: Mutex::default(),
        }))
    }

    /// Goes by these kinds from now on.
    pub fn follow(&self, kinds: Kinds) {
        self.0.kinds.store(Arc::new(kinds));
        self.start();
    }

    /// Starts handing over and looking after commands, where there are kinds or ever were commands; once, and on
    /// the current runtime.
    pub fn start(&self) {
        if self.0.kinds.load().is_empty() && !self.0.store.has_commands() {
            return;
        }
        let mut workers = self
            .0
            .workers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if workers.is_some() {
            return;
        }
        let mut started = JoinSet::new();
        started.spawn(self.clone().hand_over(self.0.stop.subscribe()));
        started.spawn(self.clone().care(self.0.stop.subscribe()));
        started.spawn(self.clone().reconcile_on_schedule(self.0.stop.subscribe()));
        *workers = Some(started);
    }

    /// Ends what `start` began, within `grace`.
    pub async fn stop(&self, grace: Duration) {
        self.0.stop.send_replace(true);
        let workers = {
            let mut workers = self
                .0
                .workers
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            workers.take()
        };
        if let Some(mut workers) = workers {
            let all = async { while workers.join_next().await.is_some() {} };
            if tokio::time::timeout(grace, all).await.is_err() {
                workers.shutdown().await;
            }
        }
    }

    /// What targets said when they were asked, since the process began: kind and result, and how often.
    pub fn answers(&self) -> Vec<((String, &'static str), u64)> {
        self.0.answers.report()
    }

    /// The kinds that are in force.
    pub fn kinds(&self) -> Arc<Kinds> {
        self.0.kinds.load_full()
    }

    /// Commands as they are kept; makes the file where there is none yet, which may block once.
    ///
    /// # Errors
    /// The file cannot be used.
    pub fn commands(&self) -> Result<&Commands, CommandError> {
        if let Some(commands) = self.0.commands.get() {
            return Ok(commands);
        }
        let commands = self
            .0
            .store
            .commands()
            .map_err(|error: OpenError| CommandError::Closed(error.to_string()))?;
        Ok(self.0.commands.get_or_init(|| commands))
    }

    /// Looks at what is kept, away from the threads that serve everybody.
    ///
    /// # Errors
    /// The look's own, or that the file cannot be read.
    pub async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&wayhold_store::commands::View<'_>) -> Result<T, CommandsError>
        + Send
        + 'static,
    ) -> Result<T, CommandError> {
        let commands = self.commands()?.clone();
        let looked = crate::blocking::blocking(move || commands.read(look)).await;
        let looked = looked.map_err(|_interrupted| CommandsError::Stopping)?;
        Ok(looked?)
    }
}

impl CommandDesk {
    /// Waits until a command stands where `is_over` says, though no longer than `wait`. Returns at once for one
    /// that is not there, and where too many are waited for.
    ///
    /// # Errors
    /// The file cannot be read.
    pub async fn wait_for(
        &self,
        id: CommandId,
        wait: Duration,
        is_over: impl Fn(State) -> bool + Send,
    ) -> Result<(), CommandError> {
        // Before looking, so that nothing is missed between the two.
        let Some(mut watched) = self.commands()?.watch(id) else {
            return Ok(());
        };
        let Some(state) = self.look(move |view| view.state(id)).await? else {
            return Ok(());
        };
        if is_over(state) {
            return Ok(());
        }
        let changed = watched.wait_for(|state| state.is_some_and(&is_over));
        drop(tokio::time::timeout(wait, changed).await);
        Ok(())
    }
}

/// The id in a path.
///
/// # Errors
/// It is none, so nothing is called that.
pub fn id_of(text: &str) -> Result<CommandId, CommandError> {
    text.parse().map_err(|_| CommandError::NotFound {
        id: text.to_owned(),
    })
}
