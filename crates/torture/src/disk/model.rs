//! What a disk may hold after a power failure: what was synced, and of the rest whatever fate left. A name
//! is durable once its directory was synced, bytes once their file was.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::image::Image;
use super::recorder::{Call, Inode, Recording};
use crate::dice::Dice;

/// What a disk writes whole, in bytes: less is never torn.
const SECTOR: u64 = 512;

/// What the system writes back whole when it is not the power that fails in the middle of it.
const PAGE: u64 = 4096;

/// What happens to that which was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// All of it is gone.
    Lost,
    /// All of it is there.
    Kept,
    /// Each block and each name is there or not, as this seed has it.
    Some(u64),
    /// All is there, but of the last write only some sectors.
    Torn(u64),
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost => f.write_str("lost"),
            Self::Kept => f.write_str("kept"),
            Self::Some(seed) => write!(f, "some:{seed}"),
            Self::Torn(seed) => write!(f, "torn:{seed}"),
        }
    }
}

impl FromStr for Fate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let seeded = text.split_once(':').and_then(|(kind, seed)| {
            let seed = seed.parse().ok()?;
            match kind {
                "some" => Some(Self::Some(seed)),
                "torn" => Some(Self::Torn(seed)),
                _ => None,
            }
        });
        match text {
            "lost" => Ok(Self::Lost),
            "kept" => Ok(Self::Kept),
            _ => seeded.ok_or_else(|| format!("{text}: expected lost, kept, some:N or torn:N")),
        }
    }
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Node {
    File(Inode),
    Directory,
}

/// Names that change together.
type Rename = Vec<(PathBuf, Option<Node>)>;

#[derive(Clone, Debug)]
enum Change {
    Write { offset: u64, data: Box<[u8]> },
    SetLength(u64),
}

#[derive(Clone, Debug, Default)]
struct File {
    durable: Vec<u8>,
    unsynced: Vec<Change>,
}

/// The disk after the first so many calls of a recording.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    names: BTreeMap<PathBuf, Node>,
    /// Changes of names that were not synced, by directory.
    unsynced: BTreeMap<PathBuf, Vec<Rename>>,
    /// What the running system sees.
    present: HashMap<PathBuf, Node>,
    files: HashMap<Inode, File>,
    /// The last write, while it is not synced.
    last_write: Option<Inode>,
    /// Whether it lies over what was there before.
    is_written_over: bool,
}

impl Model {
    /// The disk before the first call.
    pub(crate) fn new(recording: &Recording) -> Self {
        let mut model = Self {
            names: BTreeMap::new(),
            unsynced: BTreeMap::new(),
            present: HashMap::new(),
            files: HashMap::new(),
            last_write: None,
            is_written_over: false,
        };
        for path in recording.before.directories() {
            model.names.insert(path.clone(), Node::Directory);
        }
        // A recorder numbers what was there before first, in the order of the names.
        for (number, (path, content)) in recording.before.files().iter().enumerate() {
            let inode = Inode(u32::try_from(number).unwrap_or(u32::MAX));
            model.names.insert(path.clone(), Node::File(inode));
            let file = File {
                durable: content.clone(),
                unsynced: Vec::new(),
            };
            model.files.insert(inode, file);
        }
        model.present = model.names.clone().into_iter().collect();
        model
    }

    /// Makes the next call.
    pub(crate) fn apply(&mut self, call: &Call) {
        match call {
            Call::MakeDirectory { path } => {
                self.rename(path, vec![(path.clone(), Some(Node::Directory))]);
            }
            Call::Create { path, inode } => {
                self.files.entry(*inode).or_default();
                self.rename(path, vec![(path.clone(), Some(Node::File(*inode)))]);
            }
            Call::Remove { path } => self.rename(path, vec![(path.clone(), None)]),
            Call::Rename { from, to } => {
                let node = self.present.get(from).copied();
                self.rename(to, vec![(from.clone(), None), (to.clone(), node)]);
            }
            Call::SyncDirectory { path } => {
                for rename in self.unsynced.remove(path).unwrap_or_default() {
                    set(&mut self.names, rename);
                }
            }
            Call::Write {
                inode,
                offset,
                data,
            } => {
                self.last_write = Some(*inode);
                self.is_written_over = *offset < self.file(*inode).length();
                let change = Change::Write {
                    offset: *offset,
                    data: data.clone(),
                };
                self.file(*inode).unsynced.push(change);
            }
            Call::SetLength { inode, bytes } => {
                self.file(*inode).unsynced.push(Change::SetLength(*bytes));
            }
            Call::Sync { inode } => {
                self.file(*inode).sync();
                self.last_write.take_if(|last| last == inode);
            }
            Call::SyncFailed { inode } => {
                self.file(*inode).unsynced.clear();
                self.last_write.take_if(|last| last == inode);
            }
        }
    }

    /// Whether fate has anything to decide.
    pub(crate) fn has_unsynced(&self) -> bool {
        let names = self.unsynced.values().any(|renames| !renames.is_empty());
        names || self.files.values().any(|file| !file.unsynced.is_empty())
    }

    /// Names of files whose bytes are not synced, as the running system sees them.
    pub(crate) fn unsynced_files(&self) -> impl Iterator<Item = &Path> {
        self.present.iter().filter_map(|(path, node)| match node {
            Node::File(inode) => {
                let file = self.files.get(inode)?;
                (!file.unsynced.is_empty()).then_some(path.as_path())
            }
            Node::Directory => None,
        })
    }

    /// All names, as the running system sees them.
    pub(crate) fn names(&self) -> impl Iterator<Item = &Path> {
        self.present.keys().map(PathBuf::as_path)
    }

    /// Whether a change of names is not synced.
    pub(crate) fn has_unsynced_names(&self) -> bool {
        self.unsynced.values().any(|renames| !renames.is_empty())
    }

    /// The file that was written last, while that is not synced.
    pub(crate) fn last_written(&self) -> Option<&Path> {
        let last = self.last_write?;
        let mut present = self.present.iter();
        present.find_map(|(path, node)| (*node == Node::File(last)).then_some(path.as_path()))
    }

    /// The same where that write lies over what was there before.
    pub(crate) fn last_written_over(&self) -> Option<&Path> {
        self.last_written().filter(|_| self.is_written_over)
    }

    /// What the disk holds after the power failed now.
    pub(crate) fn after(&self, fate: Fate) -> Image {
        let mut names = self.names.clone();
        let mut dice = match fate {
            Fate::Lost | Fate::Kept => Dice::new(0),
            Fate::Some(seed) | Fate::Torn(seed) => Dice::new(seed),
        };
        let block = if dice.one_in(2) { SECTOR } else { PAGE };
        for renames in self.unsynced.values() {
            for rename in renames {
                let stays = match fate {
                    Fate::Lost => false,
                    Fate::Kept | Fate::Torn(_) => true,
                    Fate::Some(_) => dice.one_in(2),
                };
                if stays {
                    set(&mut names, rename.clone());
                }
            }
        }
        let (mut directories, mut files) = (Vec::new(), BTreeMap::new());
        for (path, node) in names {
            // What lies in a directory that is not there is not there either.
            let parent = path.parent().unwrap_or(Path::new(""));
            if !parent.as_os_str().is_empty() && !directories.iter().any(|one| one == parent) {
                continue;
            }
            match node {
                Node::Directory => directories.push(path),
                Node::File(inode) => {
                    let Some(file) = self.files.get(&inode) else {
                        continue;
                    };
                    let content = match fate {
                        Fate::Lost => file.durable.clone(),
                        Fate::Kept => file.kept(),
                        Fate::Torn(_) if self.last_write == Some(inode) => file.torn(&mut dice),
                        Fate::Torn(_) => file.kept(),
                        Fate::Some(_) => file.some(block, &mut dice),
                    };
                    files.insert(path, content);
                }
            }
        }
        Image::new(directories, files)
    }

    /// A file as it is durable, and the stretches of it that were written since.
    pub(super) fn durable(&self, inode: Inode) -> (&[u8], Vec<(u64, usize)>) {
        let Some(file) = self.files.get(&inode) else {
            return (&[], Vec::new());
        };
        let written = file.unsynced.iter().filter_map(|change| match change {
            Change::Write { offset, data } => Some((*offset, data.len())),
            Change::SetLength(_) => None,
        });
        (&file.durable, written.collect())
    }

    fn file(&mut self, inode: Inode) -> &mut File {
        self.files.entry(inode).or_default()
    }

    fn rename(&mut self, path: &Path, rename: Rename) {
        for (path, node) in &rename {
            match node {
                Some(node) => self.present.insert(path.clone(), *node),
                None => self.present.remove(path),
            };
        }
        let directory = path.parent().unwrap_or(Path::new("")).to_owned();
        self.unsynced.entry(directory).or_default().push(rename);
    }
}

fn set(names: &mut BTreeMap<PathBuf, Node>, rename: Rename) {
    for (path, node) in rename {
        match node {
            Some(node) => names.insert(path, node),
            None => names.remove(&path),
        };
    }
}

impl File {
    /// How long it is, as the running system sees it.
    fn length(&self) -> u64 {
        let durable = self.durable.len() as u64;
        self.unsynced
            .iter()
            .fold(durable, |length, change| match change {
                Change::Write { offset, data } => length.max(offset + data.len() as u64),
                Change::SetLength(bytes) => *bytes,
            })
    }

    fn sync(&mut self) {
        let mut durable = std::mem::take(&mut self.durable);
        for change in self.unsynced.drain(..) {
            change.apply(&mut durable);
        }
        self.durable = durable;
    }

    fn kept(&self) -> Vec<u8> {
        let mut content = self.durable.clone();
        for change in &self.unsynced {
            change.apply(&mut content);
        }
        content
    }

    /// Everything, but of the last write only some sectors.
    fn torn(&self, dice: &mut Dice) -> Vec<u8> {
        let mut content = self.durable.clone();
        let last = self
            .unsynced
            .iter()
            .rposition(|change| matches!(change, Change::Write { .. }));
        for (number, change) in self.unsynced.iter().enumerate() {
            match change {
                Change::Write { offset, data } if Some(number) == last => {
                    for (offset, part) in blocks(*offset, data, SECTOR) {
                        if dice.one_in(2) {
                            write(&mut content, offset, part);
                        }
                    }
                }
                Change::Write { .. } | Change::SetLength(_) => change.apply(&mut content),
            }
        }
        content
    }

    /// Each block as it was after one of the writes to it, or before the first; lengths likewise.
    fn some(&self, block: u64, dice: &mut Dice) -> Vec<u8> {
        let mut written: BTreeMap<u64, u64> = BTreeMap::new();
        for change in &self.unsynced {
            if let Change::Write { offset, data } = change {
                for (offset, _) in blocks(*offset, data, block) {
                    *written.entry(offset / block).or_default() += 1;
                }
            }
        }
        // How many of the writes to a block reached the disk: a later one brings the earlier ones along.
        for reached in written.values_mut() {
            *reached = dice.below(*reached + 1);
        }
        let mut content = self.durable.clone();
        for change in &self.unsynced {
            match change {
                Change::Write { offset, data } => {
                    for (offset, part) in blocks(*offset, data, block) {
                        let left = written.entry(offset / block).or_default();
                        if *left > 0 {
                            *left -= 1;
                            write(&mut content, offset, part);
                        } else if offset + part.len() as u64 > content.len() as u64
                            && dice.one_in(4)
                        {
                            // The new length was written, the bytes were not.
                            let end = usize::try_from(offset).unwrap_or(0) + part.len();
                            content.resize(end, 0);
                        }
                    }
                }
                Change::SetLength(_) => {
                    if dice.one_in(2) {
                        change.apply(&mut content);
                    }
                }
            }
        }
        content
    }
}

impl Change {
    fn apply(&self, content: &mut Vec<u8>) {
        match self {
            Self::Write { offset, data } => write(content, *offset, data),
            Self::SetLength(bytes) => content.resize(usize::try_from(*bytes).unwrap_or(0), 0),
        }
    }
}

fn write(content: &mut Vec<u8>, offset: u64, data: &[u8]) {
    let start = usize::try_from(offset).unwrap_or(0);
    let end = start + data.len();
    if content.len() < end {
        content.resize(end, 0);
    }
    if let Some(place) = content.get_mut(start..end) {
        place.copy_from_slice(data);
    }
}

/// The parts of a write that lie in one block each, with their offsets.
fn blocks(offset: u64, data: &[u8], block: u64) -> impl Iterator<Item = (u64, &[u8])> {
    let (mut offset, mut rest) = (offset, data);
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let room = usize::try_from(block - offset % block).unwrap_or(usize::MAX);
        let (part, after) = rest.split_at(room.min(rest.len()));
        let at = offset;
        offset += part.len() as u64;
        rest = after;
        Some((at, part))
    })
}
