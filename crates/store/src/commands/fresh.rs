//! Commands that have just become ready, kept in memory for whoever hands them over: reading them again from a file that
//! changes all the time costs more than proposing them did. What does not fit is found in the file.

use std::sync::Arc;

use super::rows::Command;

/// Most commands that wait in memory: a few batches of whoever hands them over.
const COMMANDS_MAX: usize = 4096;

/// Most bytes of what they say.
const BYTES_MAX: usize = 16 << 20;

/// What became ready since it was asked last.
#[derive(Debug, Default)]
pub struct Fresh {
    /// Commands that were proposed ready, wait for nothing and were synced, in the order in which they were proposed. None
    /// where there are others, so that all are handed over in that order.
    pub commands: Vec<Arc<Command>>,
    /// Whether others are ready, or these do not fit: all are to be looked for in the file.
    pub has_others: bool,
    /// Whether commands have ended, which may let go those that need them.
    pub has_ended: bool,
}

/// Gathers it, within bounds.
#[derive(Debug)]
pub(super) struct Gathered {
    fresh: Fresh,
    bytes: usize,
}

impl Gathered {
    /// Nothing is known yet: commands of an earlier run may be ready.
    pub(super) fn at_start() -> Self {
        let fresh = Fresh {
            has_others: true,
            ..Fresh::default()
        };
        Self { fresh, bytes: 0 }
    }

    /// Adds what became ready with a group, as far as there is room.
    pub(super) fn add(&mut self, group: Fresh) {
        self.fresh.has_others |= group.has_others;
        self.fresh.has_ended |= group.has_ended;
        for command in group.commands {
            let bytes = command.new.arguments.len() + command.new.detail.len();
            self.fresh.has_others |=
                self.fresh.commands.len() >= COMMANDS_MAX || self.bytes + bytes > BYTES_MAX;
            if self.fresh.has_others {
                break;
            }
            self.bytes += bytes;
            self.fresh.commands.push(command);
        }
        if self.fresh.has_others {
            self.fresh.commands = Vec::new();
        }
    }

    /// Gives away what there is.
    pub(super) fn take(&mut self) -> Fresh {
        self.bytes = 0;
        std::mem::take(&mut self.fresh)
    }
}
