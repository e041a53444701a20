//! A small filesystem of its own, ext4 in a loop image, that can lose power or be full. Needs root.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::FallocateFlags;

use super::native::{compile, skip};

/// Whether power can be cut here: says what is skipped where it cannot.
pub fn can_cut_power(test: &str) -> bool {
    let root = tempfile::tempdir().unwrap();
    Volume::make(root.path(), 8, test).is_some()
}

/// A mounted image; unmounted when dropped, so whatever uses it must end before.
pub struct Volume {
    image: PathBuf,
    mount: PathBuf,
    cut: PathBuf,
    mounted: bool,
    single_blocks: bool,
}

impl Volume {
    /// Makes and mounts an image of so many MiB under `root`; where that is impossible says what is
    /// skipped.
    pub fn make(root: &Path, mebibytes: u64, test: &str) -> Option<Self> {
        let image = root.join("image");
        Self::make_in(&image, root, &[], mebibytes, test)
    }

    /// The same with the image at a place of its own and with more to ask of `mkfs.ext4`; what the image has
    /// already stays allocated.
    pub fn make_in(
        image: &Path,
        root: &Path,
        options: &[&str],
        mebibytes: u64,
        test: &str,
    ) -> Option<Self> {
        let because = |why: &str| skip(&format!("{test} because {why}"));
        // Only root may mount, and only root's process directory belongs to root.
        if std::fs::metadata("/proc/self").map_or(1, |it| it.uid()) != 0 {
            because("it mounts a filesystem, which needs root");
            return None;
        }
        let Some(cut) = compile("cut.c", &[], root) else {
            because("there is no C compiler");
            return None;
        };
        let volume = Self {
            image: image.to_owned(),
            mount: root.join("volume"),
            cut,
            mounted: false,
            single_blocks: false,
        };
        std::fs::create_dir(&volume.mount).unwrap();
        let file = File::options().create(true).append(true).open(image);
        file.unwrap().set_len(mebibytes << 20).unwrap();
        let image = volume.image.to_str().unwrap();
        // Blocks as on a disk of usual size; mkfs gives small ones less.
        let mut arguments = vec!["-q", "-F", "-m", "0", "-b", "4096"];
        arguments.extend(options);
        arguments.push(image);
        if !run("mkfs.ext4", &arguments) {
            because("mkfs.ext4 does not run");
            return None;
        }
        let mut volume = volume;
        if !volume.try_mount() {
            because("a loop image cannot be mounted");
            return None;
        }
        Some(volume)
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.mount
    }

    /// Power fails: what was not synced is gone.
    pub fn cut(&self) {
        let cut = self.cut.to_str().unwrap();
        assert!(run(cut, &[self.mount.to_str().unwrap()]), "no power cut");
    }

    /// Power comes back; nothing may have files open.
    pub fn mount_again(&mut self) {
        self.unmount();
        assert!(!self.mounted, "the volume is in use");
        assert!(self.try_mount(), "the volume does not mount again");
    }

    /// Gives the blocks that nobody uses back to whatever holds the image.
    pub fn trim(&self) {
        let mount = self.mount.to_str().unwrap();
        assert!(run("fstrim", &[mount]), "the volume cannot be trimmed");
    }

    /// Writes what the kernel still holds of it, as it does after a while by itself; nobody learns how that went.
    pub fn write_back(&self) {
        let folder = File::open(&self.mount).unwrap();
        rustix::fs::syncfs(folder).ok();
    }

    /// Whether it takes writes. A journal that could not be written ends that until it is mounted again.
    pub fn takes_writes(&self) -> bool {
        let probe = self.mount.join("probe");
        let written = File::create(&probe)
            .and_then(|mut file| file.write_all(b"?").and_then(|()| file.sync_all()));
        written.and_then(|()| std::fs::remove_file(probe)).is_ok()
    }

    fn try_mount(&mut self) -> bool {
        let (image, mount) = (self.image.to_str().unwrap(), self.mount.to_str().unwrap());
        self.mounted = run("mount", &["-o", "loop", image, mount]);
        if self.mounted && self.single_blocks {
            self.limit_requests();
        }
        self.mounted
    }

    /// From now on writes each block to the image by a request of its own. A loop device reports a request of which
    /// it could write only a part as done, which no filesystem can survive (Linux 6.18).
    pub fn write_single_blocks(&mut self) {
        self.single_blocks = true;
        self.limit_requests();
    }

    fn limit_requests(&self) {
        let device = std::fs::metadata(&self.mount).unwrap().dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let limit = format!("/sys/dev/block/{major}:{minor}/queue/max_sectors_kb");
        std::fs::write(limit, "4").unwrap();
    }

    fn unmount(&mut self) {
        if self.mounted {
            self.mounted = !run("umount", &[self.mount.to_str().unwrap()]);
        }
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        self.unmount();
        if self.mounted {
            // Somebody failed with a file open: let it go once that is closed.
            run("umount", &["-l", self.mount.to_str().unwrap()]);
        }
    }
}

/// Bytes that a process may still write to the volume of a path.
pub fn free_bytes(path: &Path) -> u64 {
    let space = rustix::fs::statvfs(path).unwrap();
    space.f_bavail * space.f_frsize
}

/// Makes a file of so many bytes whose blocks are all allocated.
pub(super) fn claim(path: &Path, bytes: u64) {
    let file = File::create(path).unwrap();
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes).unwrap();
}

/// A file that takes room away from others, until it is dropped. It is open only while it grows, so that its
/// volume can be mounted again meanwhile.
pub struct Ballast {
    path: PathBuf,
}

impl Ballast {
    /// An empty one in this folder.
    pub fn new(folder: &Path) -> Self {
        Self {
            path: folder.join("ballast"),
        }
    }

    /// Grows until this many bytes are left to others.
    pub fn leave(&self, bytes: u64) {
        let file = self.open();
        let more = free_bytes(&self.path).saturating_sub(bytes);
        allocate(&file, more);
    }

    /// Grows until nothing more goes. Somebody who gives room up afterwards loses that at the next call.
    pub fn take_all(&self) {
        let mut file = self.open();
        allocate(&file, free_bytes(&self.path));
        for chunk in [1 << 20, 1 << 12, 1] {
            while file
                .write_all(&vec![7; chunk])
                .and_then(|()| file.sync_all())
                .is_ok()
            {}
        }
    }

    fn open(&self) -> File {
        let file = File::options().create(true).append(true).open(&self.path);
        file.unwrap()
    }
}

/// Takes so many bytes at a file's end, durably, where they are there.
fn allocate(file: &File, bytes: u64) {
    let end = file.metadata().unwrap().len();
    if bytes > 0 && rustix::fs::fallocate(file, FallocateFlags::empty(), end, bytes).is_ok() {
        file.sync_all().ok();
    }
}

impl Drop for Ballast {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.path));
    }
}

pub(super) fn run(command: &str, arguments: &[&str]) -> bool {
    let output = Command::new(command).args(arguments).output();
    match output {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            println!("{command}: {}", String::from_utf8_lossy(&output.stderr));
            false
        }
        Err(error) => {
            println!("{command}: {error}");
            false
        }
    }
}

/// Forgets cached pages that are clean: what is read next comes from the disk.
pub fn drop_caches() {
    // Not allowed in some containers; a power cut forgets them as well.
    drop(std::fs::write("/proc/sys/vm/drop_caches", "3"));
}
