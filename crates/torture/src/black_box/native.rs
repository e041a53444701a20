//! What has to be C, compiled when a test needs it: the shim before the disk's syncs and the power cut.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

/// Says what is skipped and why; fails instead where everything must run.
pub fn skip(what: &str) {
    println!("skipped: {what}");
    let all = std::env::var("WAYHOLD_TESTS_REQUIRE_ALL");
    assert_ne!(all.as_deref(), Ok("1"), "{what}");
}

/// Compiles a source of this folder into `folder`; `None` where there is no compiler.
pub fn compile(source: &str, arguments: &[&str], folder: &Path) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("src/black_box")
        .join(source);
    let output = folder.join(source.replace(".c", ".built"));
    let run = Command::new("cc")
        .args(["-O1", "-Wall", "-Werror"])
        .args(arguments)
        .arg(path)
        .arg("-o")
        .arg(&output)
        .arg("-ldl")
        .output()
        .ok()?;
    let words = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{source} does not compile: {words}");
    Some(output)
}

/// What the shim does to a sync.
#[derive(Clone, Copy, Debug)]
pub enum Action {
    /// EIO, once.
    FailOnce,
    /// EIO from then on.
    Fail,
    /// Success from then on, and nothing is synced.
    Swallow,
    /// So many milliseconds from then on.
    Delay(u64),
    KillBefore,
    KillAfter,
}

/// The WAL of any segment.
pub const SEGMENT_WAL: &str = "*/s[0-9]*/[0-9]*.db-wal";

/// The shim, its rules and its log.
pub struct Shim {
    library: PathBuf,
    rules: PathBuf,
    log: PathBuf,
    generation: AtomicU64,
}

impl Shim {
    /// Compiles it; without a compiler says what is skipped.
    pub fn build(folder: &Path, test: &str) -> Option<Self> {
        let Some(library) = compile("shim.c", &["-shared", "-fPIC"], folder) else {
            skip(&format!("{test} because there is no C compiler"));
            return None;
        };
        Some(Self {
            library,
            rules: folder.join("rules"),
            log: folder.join("syncs"),
            generation: AtomicU64::new(1),
        })
    }

    /// Environment of a server that is behind the shim.
    pub fn environment(&self) -> Vec<(String, String)> {
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        vec![
            ("LD_PRELOAD".into(), text(&self.library)),
            ("WAYHOLD_SHIM_RULES".into(), text(&self.rules)),
            ("WAYHOLD_SHIM_LOG".into(), text(&self.log)),
        ]
    }

    /// From now on does this to the `nth` sync, counted from now, of files whose path matches.
    pub fn rule(&self, action: Action, nth: u64, pattern: &str) {
        let (name, milliseconds) = match action {
            Action::FailOnce => ("fail-once", 0),
            Action::Fail => ("fail", 0),
            Action::Swallow => ("swallow", 0),
            Action::Delay(milliseconds) => ("delay", milliseconds),
            Action::KillBefore => ("kill-before", 0),
            Action::KillAfter => ("kill-after", 0),
        };
        let generation = self.generation.fetch_add(1, Ordering::Relaxed);
        let line = format!("{generation} {name} {nth} {milliseconds} {pattern}\n");
        let new = self.rules.with_extension("new");
        std::fs::write(&new, line).unwrap();
        std::fs::rename(new, &self.rules).unwrap();
    }

    /// Lets every sync through again.
    pub fn clear(&self) {
        drop(std::fs::remove_file(&self.rules));
    }

    /// The log's file.
    pub fn log_path(&self) -> PathBuf {
        self.log.clone()
    }

    /// Paths of all syncs that succeeded, in order, of the log's first `bytes`.
    pub fn synced(&self, bytes: u64) -> Vec<String> {
        let mut text = std::fs::read_to_string(&self.log).unwrap_or_default();
        text.truncate(usize::try_from(bytes).unwrap());
        text.lines()
            .filter_map(|line| line.strip_prefix("0 "))
            .map(str::to_owned)
            .collect()
    }

    /// Bytes of the log so far.
    pub fn log_bytes(&self) -> u64 {
        std::fs::metadata(&self.log).map_or(0, |it| it.len())
    }
}
