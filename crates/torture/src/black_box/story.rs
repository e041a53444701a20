//! A server under load with everything around it: producers, an operator at work, a receiver that fails now and
//! then and refuses some events for good, and where asked for a volume that can lose power.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;

use super::ending::invalid;
use super::history::{Account, Bounds, judge_run};
use super::load::{Load, PRODUCERS, Plan};
use super::operator::{Focus, Operator, retire_guest};
use super::receiver::{Mood, Receiver};
use super::server::{SMALL_SEGMENTS, Server, shards_of};
use super::volume::Volume;

/// Segments and a window so small that index files are forgotten during an episode. Producers are patient then:
/// what they send again is known.
const SMALL_WINDOW: &str = "window_ids = 2000\nsegment_rows = 250\n";

/// What is resolved is not kept for long: shards that take no more events go within an episode only without it.
const SHORT_RETENTION: &str = "time = \"3s\"\n";

/// Size of the volume: what an episode accepts, and the space that must stay free, several times over.
const VOLUME_MIB: u64 = 192;

/// The server that holds points and planted faults: this executable, where it was built with `failpoints`.
pub fn instrumented() -> PathBuf {
    if !cfg!(feature = "failpoints") {
        invalid("this build holds no points; scripts/torture makes one that does");
    }
    std::env::current_exe().unwrap()
}

/// A server, and everything around it. What uses the volume is dropped before it.
pub struct Story {
    pub server: Server,
    pub receiver: Receiver,
    pub plan: Arc<Plan>,
    pub volume: Option<Volume>,
    /// What its operator has an eye on.
    pub focus: Arc<Focus>,
    root: TempDir,
}

impl Story {
    /// On an ordinary folder.
    pub fn new(seed: u64) -> Self {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("server");
        std::fs::create_dir(&folder).unwrap();
        Self::in_folder(seed, root, &folder, None)
    }

    /// On a volume that can lose power.
    pub fn on_volume(seed: u64) -> Self {
        let root = tempfile::tempdir().unwrap();
        let Some(volume) = Volume::make(root.path(), VOLUME_MIB, "power cuts") else {
            invalid("power cuts need root, ext4 in a loop image and a C compiler");
        };
        let folder = volume.path().to_owned();
        Self::in_folder(seed, root, &folder, Some(volume))
    }

    fn in_folder(seed: u64, root: TempDir, folder: &Path, volume: Option<Volume>) -> Self {
        let receiver = Receiver::start(seed, Mood::Picky);
        let store = format!("{SMALL_WINDOW}{SMALL_SEGMENTS}{SHORT_RETENTION}");
        let mut server = Server::prepare_sharded(folder, receiver.address, &store, shards_of(seed));
        server.set_program(instrumented());
        receiver.follow(&server);
        let plan = Plan::patient(server.address, seed);
        plan.keep_pace_with(&receiver);
        Self {
            plan,
            server,
            receiver,
            volume,
            focus: Arc::default(),
            root,
        }
    }

    /// Where what belongs to the story may be put, outside of the volume.
    pub fn folder(&self) -> &Path {
        self.root.path()
    }

    /// Plants a fault for all that follows.
    #[must_use]
    pub fn with_fault(mut self, fault: &str) -> Self {
        self.server.plant(fault);
        self
    }

    /// Lets faults happen under load, which answer how many unclean stops there were; then starts it again, with
    /// everything healed.
    pub fn under_load(&mut self, faults: impl FnOnce(&mut Self) -> u64) -> u64 {
        let plan = Arc::clone(&self.plan);
        let load = Load::start(&plan, PRODUCERS);
        let operator = Operator::start(&plan, &self.focus);
        let unclean_stops = faults(self);
        self.server.set_environment(Vec::new());
        self.server.set_guest(false);
        self.server.start();
        operator.stop(&plan);
        load.stop();
        unclean_stops
    }

    /// Heals everything and judges.
    pub fn judge(&mut self, stored_min: usize, unclean_stops: u64) -> Account {
        self.receiver.feel(Mood::Well);
        // A guest that left is owed what nobody will fetch.
        retire_guest(&self.plan);
        self.server.redrive_all(&["archive", "hook"]);
        let bounds = Bounds {
            stored_min,
            unclean_stops,
        };
        judge_run(&mut self.server, &self.plan.history, &self.receiver, bounds)
    }
}
