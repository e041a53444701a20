//! The one tree over all records (RFC 6962): how it grows by a leaf, and its root. The trees that are
//! complete are all that growing needs, one per bit of the size.

use super::hash::Hash;

/// Most levels of complete trees: one per bit of the size.
const LEVELS: usize = 64;

/// A node over a complete tree: it covers the leaves from `index << level` on, `1 << level` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// Levels below it; 0 for a leaf.
    pub level: u8,
    /// How many nodes of that level come before it.
    pub index: u64,
}

/// What of a tree is needed to let it grow. A copy of it is how the tree of before is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frontier {
    size: u64,
    /// By level; an entry counts where that bit of the size is set.
    complete: [Hash; LEVELS],
}

impl Default for Frontier {
    fn default() -> Self {
        Self::new()
    }
}

impl Frontier {
    /// The tree without leaves.
    pub const fn new() -> Self {
        Self {
            size: 0,
            complete: [Hash::ZERO; LEVELS],
        }
    }

    /// A tree of that size, whose complete trees are asked for one by one.
    ///
    /// # Errors
    ///
    /// What `node` answers.
    pub fn restore<E>(size: u64, mut node: impl FnMut(Node) -> Result<Hash, E>) -> Result<Self, E> {
        let mut frontier = Self::new();
        frontier.size = size;
        for (level, complete) in (0u8..).zip(&mut frontier.complete) {
            if size >> level & 1 == 1 {
                // Before the tree of this bit lie those of all higher bits.
                let index = (size >> level) - 1;
                *complete = node(Node { level, index })?;
            }
        }
        Ok(frontier)
    }

    /// Number of leaves.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Adds a leaf.
    pub fn push(&mut self, leaf: Hash) {
        let mut carried = leaf;
        for (level, complete) in self.complete.iter_mut().enumerate() {
            if self.size >> level & 1 == 0 {
                *complete = carried;
                break;
            }
            carried = Hash::of_node(complete, &carried);
        }
        self.size += 1;
    }

    /// Hash of the whole tree.
    pub fn root(&self) -> Hash {
        let levels = self.complete.iter().enumerate();
        levels
            .filter(|(level, _)| self.size >> level & 1 == 1)
            .fold(None, |right, (_, left)| match right {
                None => Some(*left),
                Some(right) => Some(Hash::of_node(left, &right)),
            })
            .unwrap_or_else(Hash::of_empty_tree)
    }
}

/// Hash of the tree over leaves that are at hand.
pub fn root_of(leaves: &[Hash]) -> Hash {
    let mut frontier = Frontier::new();
    for leaf in leaves {
        frontier.push(*leaf);
    }
    frontier.root()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Leaves of the published vectors of RFC 6962.
    pub(in super::super) fn published() -> Vec<Hash> {
        [
            "",
            "00",
            "10",
            "2021",
            "3031",
            "40414243",
            "5051525354555657",
            "606162636465666768696a6b6c6d6e6f",
        ]
        .iter()
        .map(|hex| Hash::of_leaf(&data_encoding::HEXLOWER.decode(hex.as_bytes()).unwrap()))
        .collect()
    }

    /// The hash of a node, from the leaves.
    pub(in super::super) fn node_of(leaves: &[Hash], node: Node) -> Result<Hash, String> {
        let first = usize::try_from(node.index << node.level).unwrap();
        leaves
            .get(first..first + (1 << node.level))
            .map(root_of)
            .ok_or_else(|| format!("{node:?} is not complete"))
    }

    #[test]
    fn the_published_trees_have_the_published_roots() {
        let leaves = published();
        for (size, root) in [
            (
                0,
                "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            ),
            (
                1,
                "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
            ),
            (
                2,
                "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
            ),
            (
                3,
                "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
            ),
            (
                4,
                "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
            ),
            (
                5,
                "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
            ),
            (
                6,
                "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
            ),
            (
                7,
                "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
            ),
            (
                8,
                "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
            ),
        ] {
            assert_eq!(root_of(&leaves[..size]).to_string(), root, "{size}");
        }
    }

    #[test]
    fn a_tree_restored_at_any_size_grows_as_the_one_that_was_never_closed() {
        let leaves: Vec<Hash> = (0u32..70).map(|n| Hash::of(&n.to_be_bytes())).collect();
        for size in 0..=leaves.len() {
            let mut restored =
                Frontier::restore(size as u64, |node| node_of(&leaves, node)).unwrap();
            assert_eq!(restored.root(), root_of(&leaves[..size]), "{size}");
            for leaf in &leaves[size..] {
                restored.push(*leaf);
            }
            assert_eq!(restored.root(), root_of(&leaves), "{size}");
        }
    }
}
