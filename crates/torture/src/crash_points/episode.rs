//! One script, played once and recorded.

use crate::disk::{Call, Plan, Recorded, Recording};
use crate::workload::{Actor, HandClock, History, Patience, Script, empty_disk};
use crate::workplace::{folder, runtime};

/// A script with what its store did to the disk.
pub(super) struct Episode {
    pub(super) script: Script,
    pub(super) recording: Recording,
    pub(super) history: History,
    pub(super) clock: HandClock,
}

impl Episode {
    /// Plays the script of a seed. With a planted fault no sync does anything.
    ///
    /// # Errors
    /// A promise broke without any power failure.
    pub(super) fn record(seed: u64, planted: bool) -> Result<Self, String> {
        let script = Script::new(seed);
        let folder = folder()?;
        let root = folder.path().join("disk");
        let before = empty_disk();
        let made = before.write_to(&root);
        made.map_err(|error| error.to_string())?;
        let disk = Recorded::new(&root, before);
        disk.recorder.set_plan(Plan {
            lying: planted,
            ..Plan::default()
        });
        let runtime = runtime()?;
        let (clock, (history, result)) = {
            let actor = Actor::open(&script, &disk, Patience::Full)?;
            (actor.clock(), runtime.block_on(actor.play()))
        };
        result.map_err(|what| format!("{what}\n{script:?}"))?;
        Ok(Self {
            recording: disk.recorder.recording(),
            script,
            history,
            clock,
        })
    }

    pub(super) fn calls(&self) -> usize {
        self.recording.calls.len()
    }

    pub(super) fn acknowledged(&self) -> usize {
        self.history.all().acknowledged()
    }

    /// A call in words, with what the same file saw just before.
    pub(super) fn before_call(&self, point: usize) -> String {
        let call = |number: usize| {
            let call = self.recording.calls.get(number);
            call.map_or_else(|| "the end".to_owned(), |call| self.told(call))
        };
        match point.checked_sub(1) {
            Some(last) => format!("after call {last} ({}), before {}", call(last), call(point)),
            None => format!("before {}", call(point)),
        }
    }

    fn told(&self, call: &Call) -> String {
        let name = |inode| {
            let name = self.recording.names.get(inode);
            name.map_or_else(String::new, |name| name.display().to_string())
        };
        match call {
            Call::Write {
                inode,
                offset,
                data,
            } => format!(
                "write of {} bytes at {offset} of {}",
                data.len(),
                name(inode)
            ),
            Call::SetLength { inode, bytes } => format!("{} gets {bytes} bytes", name(inode)),
            Call::Sync { inode } => format!("sync of {}", name(inode)),
            Call::SyncFailed { inode } => format!("failed sync of {}", name(inode)),
            other => format!("{other:?}"),
        }
    }
}
