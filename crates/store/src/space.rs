//! Room on the volume: accepting stops before the disk is full, and a reserve file is given up when it
//! is, so that what was accepted can still be recorded as delivered.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::{info, warn};

use crate::disk::Disk;

/// Accepting begins again with so many hundredths of `min_free` free: what an event takes must not stop
/// it at once.
const HIGH_MARK_PERCENT: u64 = 110;

/// How long to wait where space does not come free at a rate that could be measured: who frees it by hand
/// needs longer to do so.
const WAIT_UNKNOWN: Duration = Duration::from_secs(10);

/// Bounds of a measured wait: less than a second helps nobody, and space often comes free at once.
const WAIT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// A time without room.
#[derive(Clone, Copy, Debug)]
struct Stopped {
    since: Instant,
    /// When there was the least room, and how much.
    lowest: (Instant, u64),
}

/// Watches the volume of one data directory.
#[derive(Debug)]
pub(crate) struct Space {
    disk: Arc<dyn Disk>,
    reserve: PathBuf,
    reserve_bytes: u64,
    /// Follows the number of shards.
    min_free: AtomicU64,
    free: AtomicU64,
    /// Bytes that are kept only as long as nobody needs the room.
    yielding: AtomicU64,
    /// Bytes of those that somebody needs, so that they do not give way.
    needed_again: AtomicU64,
    /// Bytes that somebody is making free.
    promised: Mutex<u64>,
    /// Bytes that compactions are about to write.
    claimed: AtomicU64,
    low: AtomicBool,
    /// What is known of the time since accepting stopped.
    stopped: Mutex<Option<Stopped>>,
    reserved: AtomicBool,
    /// Whether it was said that the reserve cannot be made.
    complained: AtomicBool,
}

impl Space {
    /// Looks at the volume: makes the reserve where there is room for it, gives it up where there is none.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        reserve: PathBuf,
        reserve_bytes: u64,
        min_free: u64,
    ) -> Self {
        let space = Self {
            disk,
            reserve,
            reserve_bytes,
            min_free: AtomicU64::new(min_free),
            free: AtomicU64::new(u64::MAX),
            yielding: AtomicU64::new(0),
            needed_again: AtomicU64::new(0),
            promised: Mutex::default(),
            claimed: AtomicU64::new(0),
            low: AtomicBool::new(false),
            stopped: Mutex::default(),
            reserved: AtomicBool::new(false),
            complained: AtomicBool::new(false),
        };
        let held = space
            .disk
            .len(&space.reserve)
            .is_ok_and(|bytes| bytes >= reserve_bytes);
        space.reserved.store(held, Ordering::Relaxed);
        space.check();
        // Opening writes too: it seals what the last run left and begins a segment.
        if space.free() < reserve_bytes {
            space.exhausted();
        }
        space
    }

    /// Free bytes below which accepting stops.
    pub(crate) fn min_free(&self) -> u64 {
        self.min_free.load(Ordering::Relaxed)
    }

    /// Asks for so many free bytes from now on, because another number of shards takes events.
    pub(crate) fn ask_for(&self, min_free: u64) {
        if self.min_free.swap(min_free, Ordering::Relaxed) != min_free {
            self.check();
        }
    }

    /// Free bytes, and those that are kept only as long as nobody needs the room.
    pub(crate) fn room(&self) -> u64 {
        let yielding = self.yielding.load(Ordering::Relaxed);
        let needed = self.needed_again.load(Ordering::Relaxed);
        self.free().saturating_add(yielding.saturating_sub(needed))
    }

    /// Whether accepting must wait for room.
    pub(crate) fn is_low(&self) -> bool {
        self.low.load(Ordering::Relaxed)
    }

    /// Free bytes of the volume when last looked at.
    pub(crate) fn free(&self) -> u64 {
        self.free.load(Ordering::Relaxed)
    }

    /// So many more bytes are kept only as long as nobody needs the room: while there are such, accepting
    /// goes on and they give way.
    pub(crate) fn keep(&self, bytes: u64) {
        self.yielding.fetch_add(bytes, Ordering::Relaxed);
    }

    /// So many of them are given back.
    pub(crate) fn give_back(&self, bytes: u64) {
        self.yielding.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Of what is kept so many bytes give way to nobody for now, where it were `before`.
    pub(crate) fn need_again(&self, before: u64, now: u64) {
        self.needed_again.fetch_add(now, Ordering::Relaxed);
        self.needed_again.fetch_sub(before, Ordering::Relaxed);
    }

    /// Bytes that the volume lacked when last looked at, and that what is kept must make up for.
    pub(crate) fn wanted(&self) -> u64 {
        self.min_free().saturating_sub(self.free())
    }

    /// Bytes that are free for what can wait: above what accepting, settling and draining need, and what others
    /// have claimed.
    pub(crate) fn spare(&self) -> u64 {
        let claimed = self.claimed.load(Ordering::Relaxed);
        self.free()
            .saturating_sub(self.needed().saturating_add(claimed))
    }

    /// Bytes that stay free for accepting, settling and draining: with those of the reserve, where that was given
    /// up.
    fn needed(&self) -> u64 {
        let given_up = self.reserve_bytes.saturating_sub(self.reserve_bytes());
        self.min_free().saturating_add(given_up)
    }

    /// So many bytes of that, for as long as the claim lives; `None` where there are fewer.
    pub(crate) fn claim(&self, bytes: u64) -> Option<Claim<'_>> {
        // Taken first, so that of two who claim at once not both are let in.
        self.claimed.fetch_add(bytes, Ordering::Relaxed);
        let claim = Claim { space: self, bytes };
        let claimed = self.claimed.load(Ordering::Relaxed);
        (self.free() >= self.needed().saturating_add(claimed)).then_some(claim)
    }

    /// Lets `decide` say, of the bytes that the volume lacks and nobody is making free yet, how many it makes
    /// free. So several shards free together what is lacking, and not each of them all of it.
    pub(crate) fn make_room<T>(&self, decide: impl FnOnce(u64) -> (T, u64)) -> (T, Promise<'_>) {
        let mut promised = self.promised.lock().unwrap_or_else(PoisonError::into_inner);
        let (decided, bytes) = decide(self.wanted().saturating_sub(*promised));
        *promised = promised.saturating_add(bytes);
        (decided, Promise { space: self, bytes })
    }

    /// Bytes of the reserve file.
    pub(crate) fn reserve_bytes(&self) -> u64 {
        if self.reserved.load(Ordering::Relaxed) {
            self.reserve_bytes
        } else {
            0
        }
    }

    /// Looks at the volume: stops or resumes accepting, and makes the reserve again once there is room.
    pub(crate) fn check(&self) {
        let free = match self.disk.space(&self.reserve.with_file_name("")) {
            Ok(space) => space.free,
            Err(error) => {
                warn!(%error, "the volume's free space cannot be read");
                return;
            }
        };
        self.free.store(free, Ordering::Relaxed);
        let room = self.room();
        let low = room < self.mark();
        self.note(low.then_some(room));
        if self.low.swap(low, Ordering::Relaxed) != low {
            if low {
                warn!(
                    free,
                    min_free = self.min_free(),
                    "accepting stops: the disk has too little free space"
                );
            } else {
                info!(free, "accepting resumes: the disk has room again");
            }
        }
        if !self.reserved.load(Ordering::Relaxed) && free >= self.enough_for_reserve() {
            self.make_reserve();
        }
    }

    /// How much must be free, or kept only as long as nobody needs it, for accepting to go on or to begin
    /// again.
    pub(crate) fn mark(&self) -> u64 {
        let min_free = self.min_free();
        match self.is_low() {
            true => min_free.saturating_add(min_free / 100 * (HIGH_MARK_PERCENT - 100)),
            false => min_free,
        }
    }

    /// How long until accepting begins again, if space goes on to come free as it did since it was least.
    pub(crate) fn wait(&self) -> Duration {
        let stopped = *self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        let room = self.room();
        let measured = stopped.and_then(|stopped| {
            let (since, least) = stopped.lowest;
            let freed = room.checked_sub(least).filter(|freed| *freed > 0)?;
            let lacking = u128::from(self.mark().saturating_sub(room));
            let millis = since.elapsed().as_millis() * lacking / u128::from(freed);
            Some(Duration::from_millis(u64::try_from(millis).ok()?))
        });
        measured.map_or(WAIT_UNKNOWN, |wait| wait.clamp(WAIT.0, WAIT.1))
    }

    /// For how long accepting has been stopped.
    pub(crate) fn stopped_for(&self) -> Option<Duration> {
        let stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        stopped.map(|stopped| stopped.since.elapsed())
    }

    /// Notes how much room there is while accepting is stopped.
    fn note(&self, room: Option<u64>) {
        let mut stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        *stopped = room.map(|room| {
            let now = (Instant::now(), room);
            match *stopped {
                Some(known) if room >= known.lowest.1 => known,
                Some(known) => Stopped {
                    lowest: now,
                    ..known
                },
                None => Stopped {
                    since: now.0,
                    lowest: now,
                },
            }
        });
    }

    /// The reserve counts twice: what was just given up must not be taken back at once from those it was
    /// given up for.
    fn enough_for_reserve(&self) -> u64 {
        self.min_free()
            .saturating_add(self.reserve_bytes.saturating_mul(2))
    }

    fn make_reserve(&self) {
        match self.disk.preallocate(&self.reserve, self.reserve_bytes) {
            Ok(()) => self.reserved.store(true, Ordering::Relaxed),
            // Once: a file system that cannot do it never will.
            Err(error) if !self.complained.swap(true, Ordering::Relaxed) => {
                warn!(%error, "the reserve file cannot be made");
            }
            Err(_) => {}
        }
    }

    /// A write was refused for lack of space: accepting stops and the reserve is given up. Neither helps where the
    /// volume has so much room that both would end at the next look: then what lies below the volume is full.
    pub(crate) fn exhausted(&self) {
        let looked = self.disk.space(&self.reserve.with_file_name(""));
        if looked.is_ok_and(|space| space.free >= self.enough_for_reserve()) {
            return;
        }
        self.low.store(true, Ordering::Relaxed);
        if self.reserved.swap(false, Ordering::Relaxed) {
            warn!(
                "the disk is full: the reserve file is given up so that progress can be recorded"
            );
            if let Err(error) = self.disk.unlink(&self.reserve) {
                warn!(%error, "the reserve file cannot be removed");
            }
        }
    }
}

/// Room that somebody is about to use.
#[derive(Debug)]
pub(crate) struct Claim<'a> {
    space: &'a Space,
    bytes: u64,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.space.claimed.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Bytes that somebody is making free.
#[derive(Debug)]
pub(crate) struct Promise<'a> {
    space: &'a Space,
    bytes: u64,
}

impl Promise<'_> {
    /// So many of them are free now, or will not be.
    pub(crate) fn settle(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        // First, or somebody would make free what just was.
        self.space.check();
        let promised = self.space.promised.lock();
        let mut promised = promised.unwrap_or_else(PoisonError::into_inner);
        *promised = promised.saturating_sub(bytes);
        self.bytes -= bytes;
    }
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.settle(self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::io;
    use std::path::Path;

    use super::*;
    use crate::disk::{Overwrite, Space as VolumeSpace, SystemDisk};

    /// A volume whose free space is set by hand; what its one file holds is not free.
    #[derive(Debug, Default)]
    struct Volume {
        room: AtomicU64,
        held: AtomicU64,
    }

    impl Disk for Volume {
        fn space(&self, _: &Path) -> io::Result<VolumeSpace> {
            let total = self.room.load(Ordering::Relaxed);
            let free = total - self.held.load(Ordering::Relaxed);
            Ok(VolumeSpace { free, total })
        }
        fn preallocate(&self, _: &Path, bytes: u64) -> io::Result<()> {
            self.held.store(bytes, Ordering::Relaxed);
            Ok(())
        }
        fn shorten(&self, _: &Path, bytes: u64) -> io::Result<()> {
            self.held.fetch_min(bytes, Ordering::Relaxed);
            Ok(())
        }
        fn unlink(&self, _: &Path) -> io::Result<()> {
            self.held.store(0, Ordering::Relaxed);
            Ok(())
        }
        fn len(&self, _: &Path) -> io::Result<u64> {
            Ok(self.held.load(Ordering::Relaxed))
        }
        fn remove_directory(&self, path: &Path) -> io::Result<()> {
            SystemDisk.remove_directory(path)
        }
        fn create_directory(&self, path: &Path) -> io::Result<()> {
            SystemDisk.create_directory(path)
        }
        fn list(&self, directory: &Path) -> io::Result<Vec<OsString>> {
            SystemDisk.list(directory)
        }
        fn sync_directory(&self, directory: &Path) -> io::Result<()> {
            SystemDisk.sync_directory(directory)
        }
        fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
            SystemDisk.read(path)
        }
        fn read_range(&self, path: &Path, offset: u64, length: usize) -> io::Result<Vec<u8>> {
            SystemDisk.read_range(path, offset, length)
        }
        fn replace(&self, path: &Path, content: &[u8]) -> io::Result<()> {
            SystemDisk.replace(path, content)
        }
        fn overwrite(&self, path: &Path) -> io::Result<Box<dyn Overwrite>> {
            SystemDisk.overwrite(path)
        }
        fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
            SystemDisk.rename(from, to)
        }
        fn copy(&self, from: &Path, to: &Path) -> io::Result<()> {
            SystemDisk.copy(from, to)
        }
        fn exists(&self, path: &Path) -> io::Result<bool> {
            SystemDisk.exists(path)
        }
    }

    fn open(volume: &Arc<Volume>, min_free: u64) -> Space {
        let disk: Arc<dyn Disk> = Arc::<Volume>::clone(volume);
        Space::open(disk, PathBuf::from("data/reserve"), 32, min_free)
    }

    #[test]
    fn a_reserve_that_was_given_up_is_not_taken_back_from_those_it_was_given_up_for() {
        for min_free in [0, 100] {
            let volume = Arc::new(Volume::default());
            volume.room.store(1_000, Ordering::Relaxed);
            let space = open(&volume, min_free);
            assert_eq!((space.reserve_bytes(), space.is_low()), (32, false));
            // Full: a write was refused.
            volume.room.store(32, Ordering::Relaxed);
            space.exhausted();
            space.check();
            assert_eq!((space.reserve_bytes(), space.free()), (0, 32));
            volume.room.store(1_000, Ordering::Relaxed);
            space.check();
            assert_eq!((space.reserve_bytes(), space.is_low()), (32, false));
        }
    }

    #[test]
    fn a_refusal_on_a_volume_with_room_gives_nothing_up() {
        let volume = Arc::new(Volume::default());
        volume.room.store(1_000, Ordering::Relaxed);
        let space = open(&volume, 100);
        // A thin volume whose store is full says so at the sync, and has room all the same.
        space.exhausted();
        assert_eq!((space.reserve_bytes(), space.is_low()), (32, false));
        volume.room.store(100 + 64 + 31, Ordering::Relaxed);
        space.exhausted();
        assert_eq!((space.reserve_bytes(), space.is_low()), (0, true));
    }

    #[test]
    fn what_is_kept_gives_way_before_anything_is_refused() {
        let volume = Arc::new(Volume::default());
        volume.room.store(1_000, Ordering::Relaxed);
        let space = open(&volume, 100);
        space.keep(50);
        for (room, wanted, is_low) in [
            (132, 0, false),
            (131, 1, false),
            (82, 50, false),
            (81, 51, true),
            (132, 0, false),
        ] {
            volume.room.store(room, Ordering::Relaxed);
            space.check();
            assert_eq!((space.wanted(), space.is_low()), (wanted, is_low), "{room}");
        }
        space.give_back(50);
        volume.room.store(131, Ordering::Relaxed);
        space.check();
        assert!(space.is_low());
    }

    #[test]
    fn several_make_free_together_what_is_lacking_and_not_each_all_of_it() {
        let volume = Arc::new(Volume::default());
        volume.room.store(1_000, Ordering::Relaxed);
        let space = open(&volume, 100);
        volume.room.store(82, Ordering::Relaxed);
        space.check();
        // 50 bytes are lacking: 32 of what is there are the reserve's.
        let (lacking, mut first) = space.make_room(|lacking| (lacking, 30));
        assert_eq!(lacking, 50);
        let (lacking, second) = space.make_room(|lacking| (lacking, 40));
        assert_eq!(lacking, 20);
        let (lacking, _none) = space.make_room(|lacking| (lacking, 0));
        assert_eq!(lacking, 0);
        // The first has freed a third of its bytes, the second gives up.
        volume.room.store(92, Ordering::Relaxed);
        first.settle(10);
        drop(second);
        let (lacking, _none) = space.make_room(|lacking| (lacking, 0));
        assert_eq!(lacking, 20);
        drop(first);
        let (lacking, _none) = space.make_room(|lacking| (lacking, 0));
        assert_eq!(lacking, 40);
    }

    #[test]
    fn room_is_claimed_once_and_given_back() {
        let volume = Arc::new(Volume::default());
        volume.room.store(300, Ordering::Relaxed);
        let space = open(&volume, 100);
        // What it has made of the reserve is seen at the next look.
        space.check();
        assert_eq!(space.spare(), 300 - 32 - 100);
        let claim = space.claim(100).unwrap();
        assert_eq!(space.spare(), 68);
        assert!(space.claim(69).is_none());
        let other = space.claim(68).unwrap();
        assert_eq!(space.spare(), 0);
        drop((claim, other));
        // A reserve that was given up comes back before anything else.
        volume.room.store(120, Ordering::Relaxed);
        space.exhausted();
        volume.room.store(150, Ordering::Relaxed);
        space.check();
        assert_eq!((space.reserve_bytes(), space.spare()), (0, 150 - 100 - 32));
    }

    #[test]
    fn accepting_begins_again_above_where_it_stopped_and_says_when() {
        let volume = Arc::new(Volume::default());
        volume.room.store(2_000, Ordering::Relaxed);
        let space = open(&volume, 1_000);
        for (free, is_low) in [
            (1_000, false),
            (999, true),
            (1_000, true),
            (1_099, true),
            (1_100, false),
            (1_000, false),
            (999, true),
        ] {
            volume.room.store(free + 32, Ordering::Relaxed);
            space.check();
            assert_eq!(space.is_low(), is_low, "{free}");
        }
        assert_eq!(space.wait(), WAIT_UNKNOWN, "nothing came free yet");
        let waits: Vec<Duration> = [1_001, 1_099]
            .into_iter()
            .map(|free| {
                std::thread::sleep(Duration::from_millis(20));
                volume.room.store(free + 32, Ordering::Relaxed);
                space.check();
                space.wait()
            })
            .collect();
        assert!(waits[0] >= waits[1], "{waits:?}");
        assert_eq!(waits[1], WAIT.0, "next to nothing is lacking");
        space.exhausted();
        assert!(space.is_low());
    }

    #[test]
    fn opening_on_a_full_volume_gives_the_reserve_up_for_the_opening() {
        let volume = Arc::new(Volume::default());
        volume.room.store(40, Ordering::Relaxed);
        volume.held.store(32, Ordering::Relaxed);
        let space = open(&volume, 100);
        assert_eq!((space.reserve_bytes(), space.is_low()), (0, true));
        assert_eq!(volume.held.load(Ordering::Relaxed), 0);
    }
}
