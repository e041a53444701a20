//! Running listeners and stopping them: first nothing new is taken, then what was asked is answered,
//! then, when the time is over, what is left is closed.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;

use super::connection;
use super::front::Front;
use super::limits::SharedLimits;
use super::listener::Listener;
use super::watchdog::Watchdog;
use crate::config::ListenAddr;

/// Pause after `accept` failed, usually because the process has no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Running listeners with their connections.
pub struct Server {
    addresses: Vec<ListenAddr>,
    stage: watch::Sender<Stage>,
    watchdog: Arc<Watchdog>,
    listeners: JoinSet<()>,
}

/// How far the stop has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Serving,
    Stopping,
    Due,
}

/// Tells connections and bodies of the stop.
#[derive(Clone, Debug)]
pub(super) struct Stop(watch::Receiver<Stage>);

impl Server {
    /// Serves `front` on these listeners.
    ///
    /// # Errors
    /// When a listener does not know its own address.
    pub fn start(
        listeners: Vec<Listener>,
        front: Arc<Front>,
        limits: impl Into<SharedLimits>,
    ) -> io::Result<Self> {
        let limits = limits.into();
        let addresses = listeners
            .iter()
            .map(Listener::address)
            .collect::<io::Result<_>>()?;
        let (stage, receiver) = watch::channel(Stage::Serving);
        let watchdog = Arc::new(Watchdog::new(limits.clone()));
        let mut tasks = JoinSet::new();
        for listener in listeners {
            let accepting = Accepting {
                listener,
                front: Arc::clone(&front),
                watchdog: Arc::clone(&watchdog),
                limits: limits.clone(),
                stop: Stop(receiver.clone()),
            };
            tasks.spawn(accepting.run());
        }
        let (watched, mut stop) = (Arc::clone(&watchdog), Stop(receiver));
        tasks.spawn(async move {
            tokio::select! {
                () = watched.run() => {}
                () = stop.reached(Stage::Due) => {}
            }
        });
        Ok(Self {
            addresses,
            stage,
            watchdog,
            listeners: tasks,
        })
    }

    /// Where it listens.
    pub fn addresses(&self) -> &[ListenAddr] {
        &self.addresses
    }

    /// Takes no new connection, answers what was asked (503 where the request is not whole), and
    /// returns once all connections are closed, at the latest after `grace`.
    pub async fn stop(mut self, grace: Duration) {
        self.stage.send_replace(Stage::Stopping);
        self.watchdog.stop();
        let connections_closed = async {
            // The watchdog's task ends only when the stop is due; the listeners' end by themselves.
            while self.listeners.len() > 1 && self.listeners.join_next().await.is_some() {}
        };
        if tokio::time::timeout(grace, connections_closed)
            .await
            .is_err()
        {
            tracing::info!("connections still open when the time to stop was over are closed");
        }
        self.stage.send_replace(Stage::Due);
        while self.listeners.join_next().await.is_some() {}
    }
}

impl Stop {
    /// Whether the stop has begun. Asked for every request: it looks at a number, where `borrow` would
    /// take a lock that all connections share. Nothing ever marks this receiver's first value as old.
    pub(super) fn has_begun(&self) -> bool {
        self.0.has_changed().unwrap_or(true)
    }

    /// Resolves when the stop begins.
    pub(super) async fn begun(&self) {
        self.clone().reached(Stage::Stopping).await;
    }

    /// Resolves when everything must be closed.
    pub(super) async fn due(&self) {
        self.clone().reached(Stage::Due).await;
    }

    async fn reached(&mut self, wanted: Stage) {
        // An error means that the server is gone, which is the last stage.
        drop(self.0.wait_for(|stage| *stage >= wanted).await);
    }
}

/// One listener's loop.
struct Accepting {
    listener: Listener,
    front: Arc<Front>,
    watchdog: Arc<Watchdog>,
    limits: SharedLimits,
    stop: Stop,
}

impl Accepting {
    async fn run(self) {
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                Some(_ended) = connections.join_next() => continue,
                () = self.stop.begun() => break,
            };
            match accepted {
                Ok((stream, peer)) => match self.watchdog.admit(peer.address) {
                    Some(place) => {
                        connections.spawn(connection::serve(
                            stream,
                            peer,
                            place,
                            Arc::clone(&self.front),
                            connection::protocol(&self.limits.now()),
                            self.stop.clone(),
                        ));
                    }
                    None => tracing::debug!("connection refused: too many are open"),
                },
                Err(error) => {
                    tracing::warn!(%error, "no connection could be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        // The address is free from here on: a successor can bind while the last answers are given.
        drop(self.listener);
        while connections.join_next().await.is_some() {}
    }
}
