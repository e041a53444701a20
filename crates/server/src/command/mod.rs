//! What commands ask of the outside world, and the ledger that proves what became of it. Modules in suggested reading
//! order.

pub mod export;
pub mod verify;
