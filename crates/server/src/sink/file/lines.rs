//! A file of lines that survives what disks and people do to it. The file's last known good length is
//! held here: bytes after it were never confirmed.
//!
//! A crash leaves at most a torn last line, which the next opening cuts off. After a failed write the
//! file is cut back before anything is added. After a failed sync nothing of the file is trusted any
//! more (the kernel may have dropped the dirty pages and report success next time): it is set aside
//! under its next number and a new one begins.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::config::FileConfig;

/// Bytes read at a time when looking backwards for the last line break.
const TAIL_STEP: u64 = 64 * 1024;

/// Owner writes, group reads, nobody else: events can be personal data.
const FILE_MODE: u32 = 0o640;

/// What the lines need of an open file; a port, so that tests can let it fail.
pub(super) trait Backing: Send {
    /// Adds these bytes at the end.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Makes everything durable.
    fn sync(&mut self) -> io::Result<()>;
    /// Cuts the file to this many bytes.
    fn cut(&mut self, length: u64) -> io::Result<()>;
    /// Device and inode: what tells whether the path still leads here.
    fn identity(&self) -> io::Result<(u64, u64)>;
}

/// Opens a backing at a path and tells its good length.
pub(super) type Opener = Box<dyn Fn(&Path) -> io::Result<(Box<dyn Backing>, u64)> + Send>;

/// How an append failed, by what it means for the lines.
#[derive(Debug)]
pub(super) enum AppendError {
    /// None of them is in the file.
    NotWritten(io::Error),
    /// They may be in the file.
    Doubtful(io::Error),
}

/// The file behind a destination, opened when it is needed.
pub(super) struct Lines {
    config: FileConfig,
    opener: Opener,
    open: Option<Open>,
}

struct Open {
    backing: Box<dyn Backing>,
    good_length: u64,
}

impl Lines {
    /// Lines in the real file system.
    pub(super) fn new(config: FileConfig) -> Self {
        Self::with_opener(config, Box::new(open_regular))
    }

    pub(super) fn with_opener(config: FileConfig, opener: Opener) -> Self {
        Self {
            config,
            opener,
            open: None,
        }
    }

    /// Adds whole lines and makes them durable: one write, one sync.
    pub(super) fn append(&mut self, lines: &[u8]) -> Result<(), AppendError> {
        self.prepare(lines.len()).map_err(AppendError::NotWritten)?;
        let Some(open) = &mut self.open else {
            return Err(AppendError::NotWritten(io::ErrorKind::NotFound.into()));
        };
        if let Err(error) = open.backing.append(lines) {
            let good_length = open.good_length;
            let cut = open
                .backing
                .cut(good_length)
                .and_then(|()| open.backing.sync());
            if cut.is_ok() {
                return Err(AppendError::NotWritten(error));
            }
            self.set_aside();
            return Err(AppendError::Doubtful(error));
        }
        if let Err(error) = open.backing.sync() {
            self.set_aside();
            return Err(AppendError::Doubtful(error));
        }
        open.good_length += lines.len() as u64;
        Ok(())
    }

    /// Sees to it that a file is open, is still the one at the path, and has room for `more` bytes.
    fn prepare(&mut self, more: usize) -> io::Result<()> {
        if let Some(open) = &self.open
            && !leads_to(&self.config.path, open.backing.identity()?)
        {
            tracing::warn!(path = %self.config.path.display(), "file was moved or removed; beginning a new one");
            self.open = None;
        }
        let full = |open: &Open| {
            open.good_length > 0 && open.good_length + more as u64 > self.config.rotate_bytes
        };
        if self.open.as_ref().is_some_and(full) {
            self.open = None;
            rename_to_next_number(&self.config.path)?;
        }
        if self.open.is_none() {
            let (backing, good_length) = (self.opener)(&self.config.path)?;
            self.open = Some(Open {
                backing,
                good_length,
            });
            // A file that was already there may be full, too.
            if self.open.as_ref().is_some_and(full) {
                return self.prepare(more);
            }
        }
        Ok(())
    }

    /// Leaves a file that cannot be trusted under its next number; the next append begins a new one.
    fn set_aside(&mut self) {
        self.open = None;
        match rename_to_next_number(&self.config.path) {
            Ok(aside) => {
                tracing::error!(path = %aside.display(), "file set aside after a failed write or sync");
            }
            Err(error) => {
                tracing::error!(path = %self.config.path.display(), %error, "file could not be set aside");
            }
        }
    }
}

/// Whether `path` names the file of this device and inode.
fn leads_to(path: &Path, identity: (u64, u64)) -> bool {
    fs::metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == identity)
}

/// Opens or creates the file, takes it for this process alone and cuts off a torn last line.
pub(super) fn open_regular(path: &Path) -> io::Result<(Box<dyn Backing>, u64)> {
    let mut file = OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .mode(FILE_MODE)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    file.try_lock()
        .map_err(|error| io::Error::other(format!("in use by another process: {error}")))?;
    let length = file.metadata()?.len();
    let good_length = end_of_last_line(&mut file, length)?;
    if good_length < length {
        let cut = length - good_length;
        tracing::warn!(path = %path.display(), bytes = cut, "cut off a torn last line");
        file.set_len(good_length)?;
    }
    file.sync_all()?;
    sync_directory_of(path)?;
    Ok((Box::new(file), good_length))
}

/// Length of the file up to and including its last line break.
fn end_of_last_line(file: &mut File, length: u64) -> io::Result<u64> {
    let mut end = length;
    let mut buffer = Vec::new();
    while end > 0 {
        let start = end.saturating_sub(TAIL_STEP);
        buffer.clear();
        file.seek(SeekFrom::Start(start))?;
        (&*file).take(end - start).read_to_end(&mut buffer)?;
        if let Some(index) = buffer.iter().rposition(|&b| b == b'\n') {
            return Ok(start + index as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

/// Renames `path` to `path.N` with the first N above all that are there.
fn rename_to_next_number(path: &Path) -> io::Result<PathBuf> {
    let prefix = format!(
        "{}.",
        path.file_name().unwrap_or_default().to_string_lossy()
    );
    let mut last = 0_u64;
    for entry in fs::read_dir(directory_of(path))? {
        let name = entry?.file_name();
        let number = name
            .to_str()
            .and_then(|name| name.strip_prefix(&prefix)?.parse().ok());
        last = last.max(number.unwrap_or(0));
    }
    let mut target = path.as_os_str().to_owned();
    target.push(format!(".{}", last + 1));
    let target = PathBuf::from(target);
    fs::rename(path, &target)?;
    sync_directory_of(path)?;
    Ok(target)
}

fn sync_directory_of(path: &Path) -> io::Result<()> {
    File::open(directory_of(path))?.sync_all()
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

impl Backing for File {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }

    fn cut(&mut self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }

    fn identity(&self) -> io::Result<(u64, u64)> {
        let found = self.metadata()?;
        Ok((found.dev(), found.ino()))
    }
}
