//! A server under load with everything around it: producers, an operator at work, a receiver that fails now and
//! then and refuses some events for good, and where asked for a volume that can lose power.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;

use super::episode::invalid;
use super::history::{Account, Bounds, judge_run};
use super::load::{Load, PRODUCERS, Plan};
use super::operator::{Operator, redrive_all};
use super::receiver::{Mood, Receiver};
use super::server::{SMALL_SEGMENTS, Server, shards_of};
use super::volume::Volume;

/// Segments and a window so small that index files are forgotten during an episode. Producers are patient then:
/// what they send again is known.
const SMALL_WINDOW: &str = "window_ids = 2000\nsegment_rows = 250\n";

/// Size of the volume: what an episode accepts, and the space that must stay free, several times over.
const VOLUME_MIB: u64 = 192;

/// How long a story with a planted fault waits for what the fault may prevent.
const PATIENCE_WITH_FAULT: Duration = Duration::from_secs(8);

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
        let store = format!("{SMALL_WINDOW}{SMALL_SEGMENTS}");
        let mut server = Server::prepare_sharded(folder, receiver.address, &store, shards_of(seed));
        server.set_program(instrumented());
        receiver.follow(&server);
        Self {
            plan: Plan::patient(server.address, seed),
            server,
            receiver,
            volume,
            root,
        }
    }

    /// Where what belongs to the story may be put, outside of the volume.
    pub fn folder(&self) -> &Path {
        self.root.path()
    }

    /// Plants a fault for all that follows.
    #[must_use]
    pub fn with_fault(mut self, fault: Option<&str>) -> Self {
        if let Some(fault) = fault {
            self.server.plant(fault, PATIENCE_WITH_FAULT);
        }
        self
    }

    /// Lets faults happen under load, which answer how many unclean stops there were; then starts it again, with
    /// everything healed.
    pub fn under_load(&mut self, faults: impl FnOnce(&mut Self) -> u64) -> u64 {
        let plan = Arc::clone(&self.plan);
        let load = Load::start(&plan, PRODUCERS);
        let operator = Operator::start(&plan);
        let unclean_stops = faults(self);
        self.server.set_environment(Vec::new());
        self.server.start();
        operator.stop(&plan);
        load.stop();
        unclean_stops
    }

    /// Heals everything and judges.
    pub fn judge(&mut self, stored_min: usize, unclean_stops: u64) -> Account {
        self.receiver.feel(Mood::Well);
        redrive_all(&self.plan);
        let bounds = Bounds {
            stored_min,
            unclean_stops,
        };
        judge_run(&mut self.server, &self.plan.history, &self.receiver, bounds)
    }
}
