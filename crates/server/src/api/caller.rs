//! Who calls, proven before a handler runs: a handler that takes `Caller<Operate>` cannot be reached
//! without that role, and one that takes none is open to everybody.

use std::marker::PhantomData;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use http::request::Parts;

use crate::app::App;
use crate::auth::{Peer, Principal, Role};
use crate::http::{Problem, ProblemType};

/// A role, as a type.
pub trait Requires: Send {
    /// The role.
    const ROLE: Role;
}

macro_rules! requires {
    ($($(#[$doc:meta])* $name:ident,)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub enum $name {}

        impl Requires for $name {
            const ROLE: Role = Role::$name;
        }
    )*};
}

requires! {
    /// To look.
    Read,
    /// To pause and resume, redrive and discard.
    Operate,
    /// To decide on commands.
    Approve,
    /// To propose commands.
    Propose,
    /// To read the audit trail.
    Audit,
    /// To make and revoke tokens.
    Admin,
}

/// The principal of a request, who has the role `R`.
#[derive(Clone, Debug)]
pub struct Caller<R> {
    /// Who it is.
    pub principal: Arc<Principal>,
    role: PhantomData<fn() -> R>,
}

impl<R: Requires> FromRequestParts<Arc<App>> for Caller<R> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        // Every connection has one; a request without is refused rather than trusted.
        let peer = parts.extensions.get::<Peer>().copied().ok_or_else(|| {
            Problem::new(
                ProblemType::Internal,
                "the request came without its connection",
            )
        })?;
        let principal = app.auth.authorise(parts, &peer, R::ROLE)?;
        Ok(Self {
            principal,
            role: PhantomData,
        })
    }
}
