//! Tiles (C2SP `tlog-tiles`): the tree's hashes in files of 256, named so that a full one never changes and can
//! be cached for good. Level 0 holds leaf hashes, level 1 the roots over each 256 of those, and so on.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::checkpoint::decimal;
use super::hash::Hash;
use super::tree::{Node, root_of};

/// Hashes of a full tile, and entries of a full bundle.
pub const TILE_WIDTH: u64 = 256;

/// Levels of the tree that a tile's level spans: 2^8 = 256.
const LEVELS_OF_A_TILE: u8 = 8;

/// Highest level of tiles: eight of eight levels each span 64 bits.
pub const TILE_LEVEL_MAX: u8 = 7;

/// One tile of hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tile {
    /// Its level; 0 holds leaf hashes.
    pub level: u8,
    /// How many tiles of the level come before it.
    pub number: u64,
    /// How many hashes it holds: [`TILE_WIDTH`], or fewer at the tree's right edge.
    pub width: u64,
}

impl Tile {
    /// The tile of that level and number in a tree of `size` records, as wide as it is there; `None` where it
    /// would hold nothing.
    pub fn in_tree(level: u8, number: u64, size: u64) -> Option<Self> {
        let hashes = size >> (u32::from(level) * u32::from(LEVELS_OF_A_TILE));
        let first = number.checked_mul(TILE_WIDTH)?;
        let width = hashes.checked_sub(first)?.min(TILE_WIDTH);
        (level <= TILE_LEVEL_MAX && width > 0).then_some(Self {
            level,
            number,
            width,
        })
    }

    /// Whether it will never change.
    pub fn is_full(self) -> bool {
        self.width == TILE_WIDTH
    }

    /// The nodes of the tree that it holds.
    pub fn nodes(self) -> impl Iterator<Item = Node> {
        let first = self.number * TILE_WIDTH;
        (first..first + self.width).map(move |index| Node {
            level: self.level * LEVELS_OF_A_TILE,
            index,
        })
    }
}

/// Where in the tiles a node's hash is found: the tile's level and number, the first of its hashes and how many
/// of them have the node as their root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Level of the tile.
    pub level: u8,
    /// Its number.
    pub number: u64,
    /// First hash within it.
    pub first: usize,
    /// How many, a power of two up to 128.
    pub count: usize,
}

impl Span {
    /// Where `node` is found.
    pub fn of(node: Node) -> Self {
        let (level, inner) = (node.level / LEVELS_OF_A_TILE, node.level % LEVELS_OF_A_TILE);
        let first = node.index << inner;
        Self {
            level,
            number: first / TILE_WIDTH,
            // A remainder of 256.
            first: usize::try_from(first % TILE_WIDTH).unwrap_or_default(),
            count: 1 << inner,
        }
    }

    /// The node's hash, from those of the tile; `None` where the tile is too narrow.
    pub fn root(self, hashes: &[Hash]) -> Option<Hash> {
        hashes.get(self.first..self.first + self.count).map(root_of)
    }
}

/// A path below `/tile/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TilePath {
    /// Hashes.
    Hashes(Tile),
    /// Records; its `level` is 0.
    Entries(Tile),
}

/// A path that names no tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "not a tile; expected LEVEL/NUMBER or entries/NUMBER, with the number in groups of three \
     digits (1234067 is x001/x234/067), and .p/WIDTH behind a partial one"
)]
pub struct InvalidTilePath;

impl fmt::Display for TilePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tile = match self {
            Self::Hashes(tile) => {
                write!(f, "{}/", tile.level)?;
                tile
            }
            Self::Entries(tile) => {
                f.write_str("entries/")?;
                tile
            }
        };
        let mut groups = vec![tile.number % 1_000];
        let mut rest = tile.number / 1_000;
        while rest > 0 {
            groups.push(rest % 1_000);
            rest /= 1_000;
        }
        for group in groups.iter().skip(1).rev() {
            write!(f, "x{group:03}/")?;
        }
        write!(f, "{:03}", tile.number % 1_000)?;
        if tile.is_full() {
            Ok(())
        } else {
            write!(f, ".p/{}", tile.width)
        }
    }
}

impl FromStr for TilePath {
    type Err = InvalidTilePath;

    fn from_str(path: &str) -> Result<Self, InvalidTilePath> {
        let parsed = parse(path).ok_or(InvalidTilePath)?;
        // Zeros in front would give a tile many names.
        (parsed.to_string() == path)
            .then_some(parsed)
            .ok_or(InvalidTilePath)
    }
}

fn parse(path: &str) -> Option<TilePath> {
    let (kind, rest) = path.split_once('/')?;
    let (number, width) = match rest.split_once(".p/") {
        Some((number, width)) => (number, decimal(width)?),
        None => (rest, TILE_WIDTH),
    };
    let partial = rest.contains(".p/");
    if width == 0 || width > TILE_WIDTH || (partial && width == TILE_WIDTH) {
        return None;
    }
    let (front, last) = number.rsplit_once('/').unwrap_or(("", number));
    let groups = front
        .split('/')
        .filter(|group| !group.is_empty())
        .map(|group| group.strip_prefix('x'))
        .chain([Some(last)]);
    let number = groups.into_iter().try_fold(0u64, |number, group| {
        let group = group?;
        let digits = group.len() == 3 && group.bytes().all(|byte| byte.is_ascii_digit());
        let group: u64 = digits.then(|| group.parse().ok())??;
        number.checked_mul(1_000)?.checked_add(group)
    })?;
    let tile = |level| Tile {
        level,
        number,
        width,
    };
    if kind == "entries" {
        return Some(TilePath::Entries(tile(0)));
    }
    let level = u8::try_from(decimal(kind)?).ok()?;
    (level <= TILE_LEVEL_MAX).then(|| TilePath::Hashes(tile(level)))
}

#[cfg(test)]
mod tests {
    use super::super::tree::tests::node_of;
    use super::*;

    #[test]
    fn a_tree_of_70_000_has_the_published_tiles() {
        let widths = |level: u8| {
            let tiles: Vec<Tile> = (0..)
                .map_while(|number| Tile::in_tree(level, number, 70_000))
                .collect();
            let full = tiles.iter().filter(|tile| tile.is_full()).count();
            (
                full,
                tiles
                    .last()
                    .filter(|tile| !tile.is_full())
                    .map(|tile| tile.width),
            )
        };
        assert_eq!(widths(0), (273, Some(112)));
        assert_eq!(widths(1), (1, Some(17)));
        assert_eq!(widths(2), (0, Some(1)));
        assert_eq!(widths(3), (0, None));
    }

    #[test]
    fn paths_are_written_in_groups_of_three_and_have_one_form() {
        let tile = |level, number, width| Tile {
            level,
            number,
            width,
        };
        for (path, tile) in [
            ("0/x001/x234/067", TilePath::Hashes(tile(0, 1_234_067, 256))),
            ("0/000", TilePath::Hashes(tile(0, 0, 256))),
            ("2/000.p/1", TilePath::Hashes(tile(2, 0, 1))),
            ("entries/273.p/112", TilePath::Entries(tile(0, 273, 112))),
            ("entries/x001/000", TilePath::Entries(tile(0, 1_000, 256))),
        ] {
            assert_eq!(tile.to_string(), path);
            assert_eq!(path.parse(), Ok(tile));
        }
        for path in [
            "",
            "0",
            "0/",
            "0/1",
            "0/0001",
            "0/x000/001",
            "0/001/002",
            "0/x001",
            "00/001",
            "8/000",
            "-1/000",
            "0/000.p/0",
            "0/000.p/256",
            "0/000.p/257",
            "0/000.p/01",
            "0/000.p/",
            "0/+01",
            "entries/000/",
            "other/000",
            "0/x999/x999/x999/x999/x999/x999/x999/999",
        ] {
            assert_eq!(path.parse::<TilePath>(), Err(InvalidTilePath), "{path}");
        }
    }

    #[test]
    fn every_node_is_found_in_the_tiles() {
        let leaves: Vec<Hash> = (0u32..600).map(|n| Hash::of(&n.to_be_bytes())).collect();
        let hashes = |level, number| -> Vec<Hash> {
            let tile = Tile::in_tree(level, number, leaves.len() as u64).unwrap();
            tile.nodes()
                .map(|node| node_of(&leaves, node).unwrap())
                .collect()
        };
        for level in 0..=9 {
            for index in 0..leaves.len() as u64 >> level {
                let node = Node { level, index };
                let span = Span::of(node);
                let found = span.root(&hashes(span.level, span.number));
                assert_eq!(found, node_of(&leaves, node).ok(), "{node:?}");
            }
        }
    }
}
