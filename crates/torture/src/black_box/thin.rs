//! A volume whose blocks are promised and not there: an image full of holes on a store of its own, as a thin
//! volume or a virtual machine's disk is. When the store is full, or takes no writes, the filesystem on the
//! image accepts what is written to it and fails the sync, for real.

use std::path::{Path, PathBuf};

use super::volume::{Ballast, Volume, claim, run};

/// Sizes in MiB: of the volume, and of the store under it, which has room for all of the volume.
const VOLUME_MIB: u64 = 96;
const STORE_MIB: u64 = 128;

/// The volume, on its store. Dropped, it heals first, so that both can be unmounted.
pub struct ThinVolume {
    pub volume: Volume,
    ballast: Option<Ballast>,
    image: PathBuf,
    /// Last, since the volume lies on it.
    store: Volume,
}

impl ThinVolume {
    /// Makes both under `root`; where that is impossible says what is skipped.
    pub fn make(root: &Path, test: &str) -> Option<Self> {
        let below = root.join("below");
        std::fs::create_dir(&below).ok()?;
        // Without a journal: it is never cut off from power.
        let options = ["-O", "^has_journal"];
        let image = below.join("image");
        let store = Volume::make_in(&image, &below, &options, STORE_MIB, test)?;
        let image = store.path().join("image");
        // Whole at first: what mkfs writes, the journal above all, has its blocks; the rest is given back.
        claim(&image, VOLUME_MIB << 20);
        let options = ["-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"];
        let mut volume = Volume::make_in(&image, root, &options, VOLUME_MIB, test)?;
        volume.write_single_blocks();
        volume.trim();
        Some(Self {
            volume,
            ballast: None,
            image,
            store,
        })
    }

    /// The store is full: no block that the volume has not used yet can be written.
    pub fn fill_store(&mut self) {
        self.volume.trim();
        let ballast = self.ballast.insert(Ballast::new(self.store.path()));
        ballast.take_all();
    }

    /// The store takes no write at all: every one to the volume's device fails with EIO.
    pub fn refuse_writes(&self) {
        assert!(self.set_immutable("+i"), "the image cannot be protected");
    }

    /// The store is as it was.
    pub fn heal(&mut self) {
        self.ballast = None;
        assert!(self.set_immutable("-i"), "the image stays protected");
    }

    fn set_immutable(&self, flag: &str) -> bool {
        run("chattr", &[flag, self.image.to_str().unwrap()])
    }
}

impl Drop for ThinVolume {
    fn drop(&mut self) {
        self.ballast = None;
        self.set_immutable("-i");
    }
}
