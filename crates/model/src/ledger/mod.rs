//! The ledger's values: what a record is, how it is written down and hashed, the one tree over all of
//! them, and the proofs and signed texts by which somebody who trusts nobody can check it. The bytes
//! are described for a writer of verifiers in `docs/ledger-format.md`. Modules in suggested reading
//! order.

pub mod canonical;
pub mod commitment;
pub mod hash;
pub mod record;

pub mod proof;
pub mod tree;

pub mod checkpoint;
pub mod cosignature;
pub mod note;
pub mod tile;
pub mod tlog_proof;

pub mod examine;
pub mod export;

pub use canonical::NotCanonical;
pub use checkpoint::Checkpoint;
pub use commitment::Salt;
pub use hash::Hash;
pub use record::{Actor, ActorKind, Auth, Draft, Place, Trace};
pub use tree::{Frontier, Node};
