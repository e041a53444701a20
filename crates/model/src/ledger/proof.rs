//! Proofs: that a record is in a tree (inclusion), and that a later tree holds an earlier one unchanged
//! (consistency), made from hashes of complete trees and checked with roots alone (RFC 9162, section 2.1).

use thiserror::Error;

use super::hash::Hash;
use super::tree::Node;

/// Why no proof is made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProofError<E> {
    /// No such place or size in the tree.
    #[error(
        "outside of the tree; expected a record below its size, or a size of at least 1 up to it"
    )]
    Outside,
    /// A hash could not be read.
    #[error("cannot read a hash of the tree: {0}")]
    Node(E),
}

/// A proof that does not prove.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the proof does not lead from what it starts at to the root")]
pub struct NotProven;

/// The hashes that lead from the leaf at `index` to the root of the tree of that size, the leaf's sibling first.
///
/// # Errors
///
/// No such leaf; what `node` answers.
pub fn inclusion<E>(
    index: u64,
    size: u64,
    mut node: impl FnMut(Node) -> Result<Hash, E>,
) -> Result<Vec<Hash>, ProofError<E>> {
    if index >= size {
        return Err(ProofError::Outside);
    }
    let mut path = Vec::new();
    let (mut first, mut count) = (0, size);
    while count > 1 {
        let left = split(count);
        // The half that the leaf is not in; the path is found from the root down.
        let (other, other_count);
        if index - first < left {
            (other, other_count) = (first + left, count - left);
            count = left;
        } else {
            (other, other_count) = (first, left);
            first += left;
            count -= left;
        }
        path.push(root_between(other, other_count, &mut node).map_err(ProofError::Node)?);
    }
    path.reverse();
    Ok(path)
}

/// The hashes that show that the tree of size `new` begins with the tree of size `old`.
///
/// # Errors
///
/// Sizes that are not in order, or an old tree without leaves; what `node` answers.
pub fn consistency<E>(
    old: u64,
    new: u64,
    mut node: impl FnMut(Node) -> Result<Hash, E>,
) -> Result<Vec<Hash>, ProofError<E>> {
    if old == 0 || old > new {
        return Err(ProofError::Outside);
    }
    let mut path = Vec::new();
    let (mut first, mut count, mut wanted) = (0, new, old);
    let mut is_left_edge = true;
    while wanted < count {
        let left = split(count);
        let (other, other_count);
        if wanted <= left {
            (other, other_count) = (first + left, count - left);
            count = left;
        } else {
            (other, other_count) = (first, left);
            first += left;
            count -= left;
            wanted -= left;
            is_left_edge = false;
        }
        path.push(root_between(other, other_count, &mut node).map_err(ProofError::Node)?);
    }
    if !is_left_edge {
        path.push(root_between(first, count, &mut node).map_err(ProofError::Node)?);
    }
    path.reverse();
    Ok(path)
}

/// Checks that `leaf` is the one at `index` of the tree of that size and root.
///
/// # Errors
///
/// It is not, or the proof is not one.
pub fn check_inclusion(
    leaf: Hash,
    index: u64,
    size: u64,
    root: Hash,
    path: &[Hash],
) -> Result<(), NotProven> {
    if index >= size {
        return Err(NotProven);
    }
    let (mut place, mut last, mut hash) = (index, size - 1, leaf);
    for sibling in path {
        if last == 0 {
            return Err(NotProven);
        }
        if place & 1 == 1 || place == last {
            hash = Hash::of_node(sibling, &hash);
            while place & 1 == 0 && place != 0 {
                place >>= 1;
                last >>= 1;
            }
        } else {
            hash = Hash::of_node(&hash, sibling);
        }
        place >>= 1;
        last >>= 1;
    }
    (last == 0 && hash == root).then_some(()).ok_or(NotProven)
}

/// A tree, as checkpoints name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Number of leaves.
    pub size: u64,
    /// Hash of the whole.
    pub root: Hash,
}

/// Checks that the tree `new` begins with the tree `old`.
///
/// # Errors
///
/// It does not, or the proof is not one.
pub fn check_consistency(old: Head, new: Head, path: &[Hash]) -> Result<(), NotProven> {
    if old.size == new.size {
        let same = path.is_empty() && old.root == new.root;
        return same.then_some(()).ok_or(NotProven);
    }
    if old.size == 0 || old.size > new.size {
        return Err(NotProven);
    }
    let mut path = path.iter();
    let (mut place, mut last) = (old.size - 1, new.size - 1);
    while place & 1 == 1 {
        place >>= 1;
        last >>= 1;
    }
    // An old tree that is complete is a node of the new one, and left out of the proof.
    let start = if old.size.is_power_of_two() {
        old.root
    } else {
        *path.next().ok_or(NotProven)?
    };
    let (mut old_hash, mut new_hash) = (start, start);
    for sibling in path {
        if last == 0 {
            return Err(NotProven);
        }
        if place & 1 == 1 || place == last {
            old_hash = Hash::of_node(sibling, &old_hash);
            new_hash = Hash::of_node(sibling, &new_hash);
            while place & 1 == 0 && place != 0 {
                place >>= 1;
                last >>= 1;
            }
        } else {
            new_hash = Hash::of_node(&new_hash, sibling);
        }
        place >>= 1;
        last >>= 1;
    }
    let proven = last == 0 && old_hash == old.root && new_hash == new.root;
    proven.then_some(()).ok_or(NotProven)
}

/// Where a tree of at least two leaves divides: the largest power of two below its size.
fn split(count: u64) -> u64 {
    1 << (count - 1).ilog2()
}

/// Root over `count` leaves from `first` on, which is a multiple of the power of two at or above `count`.
fn root_between<E>(
    first: u64,
    count: u64,
    node: &mut impl FnMut(Node) -> Result<Hash, E>,
) -> Result<Hash, E> {
    if count.is_power_of_two() {
        let level = count.ilog2();
        return node(Node {
            // The logarithm of 64 bits is below 64.
            level: u8::try_from(level).unwrap_or_default(),
            index: first >> level,
        });
    }
    let left = split(count);
    let right = root_between(first + left, count - left, node)?;
    let left = root_between(first, left, node)?;
    Ok(Hash::of_node(&left, &right))
}

#[cfg(test)]
mod tests {
    use super::super::tree::root_of;
    use super::super::tree::tests::{node_of, published};
    use super::*;

    fn texts(path: &[Hash]) -> Vec<String> {
        path.iter().map(Hash::to_string).collect()
    }

    #[test]
    fn the_published_proofs_are_made() {
        let leaves = published();
        let node = |node| node_of(&leaves, node);
        assert_eq!(
            texts(&inclusion(5, 7, node).unwrap()),
            [
                "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
                "b08693ec2e721597130641e8211e7eedccb4c26413963eee6c1e2ed16ffb1a5f",
                "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
            ]
        );
        assert_eq!(
            texts(&consistency(3, 7, node).unwrap()),
            [
                "0298d122906dcfc10892cb53a73992fc5b9f493ea4c9badb27b791b4127a7fe7",
                "07506a85fd9dd2f120eb694f86011e5bb4662e5c415a62917033d4a9624487e7",
                "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
                "837dbb152e9b079010717e84e865da4ebc0fa198a806d59d31bf15accef22d0e",
            ]
        );
        assert_eq!(
            texts(&consistency(6, 8, node).unwrap()),
            [
                "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
                "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
                "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
            ]
        );
    }

    #[test]
    fn every_record_of_every_tree_is_proven_and_nothing_else() {
        let leaves: Vec<Hash> = (0u32..20).map(|n| Hash::of(&n.to_be_bytes())).collect();
        for size in 1..=leaves.len() {
            let root = root_of(&leaves[..size]);
            for index in 0..size {
                let (at, of) = (index as u64, size as u64);
                let path = inclusion(at, of, |node| node_of(&leaves, node)).unwrap();
                let check = |leaf, at, of, root, path: &[Hash]| {
                    check_inclusion(leaf, at, of, root, path).is_ok()
                };
                assert!(check(leaves[index], at, of, root, &path), "{index}/{size}");
                assert!(!check(Hash::ZERO, at, of, root, &path));
                assert!(!check(leaves[index], at, of, Hash::ZERO, &path));
                assert!(!check(leaves[index], of, of, root, &path));
                let longer = [path.clone(), vec![Hash::ZERO]].concat();
                assert!(!check(leaves[index], at, of, root, &longer));
                for left_out in 0..path.len() {
                    let mut shorter = path.clone();
                    shorter.remove(left_out);
                    assert!(!check(leaves[index], at, of, root, &shorter));
                }
                for other in (0..size).filter(|other| *other != index) {
                    assert!(!check(leaves[index], other as u64, of, root, &path));
                }
            }
            let none = inclusion(size as u64, size as u64, |node| node_of(&leaves, node));
            assert_eq!(none, Err(ProofError::Outside));
        }
    }

    #[test]
    fn every_earlier_tree_is_proven_to_be_the_beginning_and_no_other_tree() {
        let leaves: Vec<Hash> = (0u32..20).map(|n| Hash::of(&n.to_be_bytes())).collect();
        let head = |size: usize| Head {
            size: size as u64,
            root: root_of(&leaves[..size]),
        };
        for new in 1..=leaves.len() {
            for old in 1..=new {
                let path =
                    consistency(old as u64, new as u64, |node| node_of(&leaves, node)).unwrap();
                assert_eq!(
                    check_consistency(head(old), head(new), &path),
                    Ok(()),
                    "{old}/{new}"
                );
                let forked = Head {
                    root: Hash::ZERO,
                    ..head(old)
                };
                assert!(check_consistency(forked, head(new), &path).is_err());
                let forked = Head {
                    root: Hash::ZERO,
                    ..head(new)
                };
                assert!(check_consistency(head(old), forked, &path).is_err());
                let longer = [path.clone(), vec![Hash::ZERO]].concat();
                assert!(check_consistency(head(old), head(new), &longer).is_err());
                for other in (1..=new).filter(|other| *other != old) {
                    let wrong = Head {
                        size: other as u64,
                        ..head(old)
                    };
                    assert!(check_consistency(wrong, head(new), &path).is_err());
                }
            }
        }
    }
}
