//! A small filesystem of its own, ext4 in a loop image, that can lose power or be full. Needs root.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

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
}

impl Volume {
    /// Makes and mounts an image of so many MiB under `root`; where that is impossible says what is
    /// skipped.
    pub fn make(root: &Path, mebibytes: u64, test: &str) -> Option<Self> {
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
            image: root.join("image"),
            mount: root.join("volume"),
            cut,
            mounted: false,
        };
        std::fs::create_dir(&volume.mount).unwrap();
        let image = std::fs::File::create(&volume.image).unwrap();
        image.set_len(mebibytes << 20).unwrap();
        let image = volume.image.to_str().unwrap();
        // Blocks as on a disk of usual size; mkfs gives small ones less.
        if !run("mkfs.ext4", &["-q", "-F", "-m", "0", "-b", "4096", image]) {
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

    fn try_mount(&mut self) -> bool {
        let (image, mount) = (self.image.to_str().unwrap(), self.mount.to_str().unwrap());
        self.mounted = run("mount", &["-o", "loop", image, mount]);
        self.mounted
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

fn run(command: &str, arguments: &[&str]) -> bool {
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
