//! Who asks, and whether they may. Tokens and principals lie in the catalogue; this part makes tokens,
//! proves them, and counts failures. Modules in suggested reading order.

mod access;
mod failures;
mod peer;
mod principal;
mod token;

pub use access::{Auth, Openness};
pub use peer::Peer;
pub use principal::{InvalidPrincipal, Principal, PrincipalKind, Role};
pub use token::{CreateError, Created};
