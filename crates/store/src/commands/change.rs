//! A change of commands under way, and a look at what is synced. Both read in the same words.

use std::cell::RefCell;
use std::ops::Deref;
use std::sync::Arc;

use rusqlite::Connection;
use wayhold_model::Timestamp;
use wayhold_model::command::{CommandId, State};
use wayhold_model::ledger::{Frontier, Hash};

use super::counts::Deltas;
use super::error::{CommandsError, Trouble};
use super::keys::NewestKeys;
use super::rows::Command;

/// Looks at commands as they stood at one moment. Within a change it sees what the change did so far.
#[derive(Debug)]
pub struct View<'a> {
    connection: &'a Connection,
    trouble: RefCell<Option<Trouble>>,
}

impl<'a> View<'a> {
    pub(super) fn new(connection: &'a Connection) -> Self {
        Self {
            connection,
            trouble: RefCell::default(),
        }
    }

    /// Runs statements: the only way in which the modules of this folder do. What failed is remembered, whatever
    /// the caller makes of it: a group in which a write failed must not be committed.
    pub(super) fn run<T>(
        &self,
        statements: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, CommandsError> {
        statements(self.connection).map_err(|error| {
            if let Some(trouble) = Trouble::of(&error) {
                self.trouble.borrow_mut().get_or_insert(trouble);
            }
            CommandsError::from(&error)
        })
    }

    /// What failed so far.
    pub(super) fn trouble(&self) -> Option<Trouble> {
        self.trouble.borrow().clone()
    }
}

/// One change, within the transaction of its group. Rows that it writes are there for nobody else before the group
/// is synced.
#[derive(Debug)]
pub struct Change<'a> {
    view: View<'a>,
    now: Timestamp,
    /// The ledger's tree with the records of this change.
    pub(super) tree: Frontier,
    /// The stream of the last record that it wrote, and what the next one of that stream says of its place.
    pub(super) last_stream: Option<(String, (u64, Hash))>,
    pub(super) deltas: Deltas,
    /// Commands that became something else, for whoever waits for them.
    pub(super) touched: Vec<(CommandId, State)>,
    /// Those among them that are new and wait for nothing.
    pub(super) ready: Vec<Arc<Command>>,
    /// The command that it added last, and its number.
    pub(super) last_added: Option<(CommandId, i64)>,
    /// Keys that are not sorted into their places, of groups before this one and of changes before this one.
    pub(super) known_keys: [&'a NewestKeys; 2],
    /// Keys that it added.
    pub(super) new_keys: NewestKeys,
    /// A key that was looked for and is not kept.
    pub(super) free_key: Option<[u8; 32]>,
    /// Whether it erased something, which must not stay in the log.
    pub(super) has_erased: bool,
}

impl<'a> Change<'a> {
    pub(super) fn new(
        connection: &'a Connection,
        now: Timestamp,
        tree: Frontier,
        known_keys: [&'a NewestKeys; 2],
    ) -> Self {
        let [_, newest] = known_keys;
        Self {
            view: View::new(connection),
            now,
            tree,
            last_stream: None,
            deltas: Deltas::default(),
            touched: Vec::new(),
            ready: Vec::new(),
            last_added: None,
            known_keys,
            new_keys: newest.after(),
            free_key: None,
            has_erased: false,
        }
    }

    /// The time that the change is recorded with; it never goes backwards from one change to the next.
    pub fn now(&self) -> Timestamp {
        self.now
    }
}

impl<'a> Deref for Change<'a> {
    type Target = View<'a>;

    fn deref(&self) -> &View<'a> {
        &self.view
    }
}
