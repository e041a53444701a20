//! Names are resolved for each connection, and the connection goes to exactly the addresses that were
//! checked: a name that changes its mind between check and use has nothing to change.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use crate::sink::BoxFuture;
use crate::sink::webhook::address::Guard;
use crate::sink::webhook::classify::Unresolved;

/// Looks names up; tests hand in their own.
pub(in crate::sink) trait Names: Send + Sync + 'static {
    /// All addresses of a name.
    fn look_up(&self, name: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>>;
}

/// The system's resolver.
pub(in crate::sink) struct SystemNames;

impl Names for SystemNames {
    fn look_up(&self, name: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name, 0)).await?;
            Ok(found.map(|address| address.ip()).collect())
        })
    }
}

/// Lets a name through only when every address it has may be reached: of several, the client would try
/// one after the other.
pub(super) struct CheckedResolver {
    pub(super) guard: Guard,
    pub(super) names: Arc<dyn Names>,
}

impl Resolve for CheckedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = self.guard.clone();
        let found = self.names.look_up(name.as_str().to_owned());
        Box::pin(async move {
            let found = found.await.map_err(Unresolved)?;
            for address in &found {
                guard.check(*address)?;
            }
            // The client puts the URL's port in place of 0.
            let found = found.into_iter().map(|address| SocketAddr::new(address, 0));
            let addresses: Addrs = Box::new(found);
            Ok(addresses)
        })
    }
}
