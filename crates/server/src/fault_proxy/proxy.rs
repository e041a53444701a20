//! The proxy itself: a listener, two directions for each connection, and the fault that all of them look
//! at before they pass anything on.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use super::exchange::{Exchanges, Protocol};
use super::fault::{Fault, Step, Toward};

/// Bytes of one direction of a connection that are in memory at most.
const BUFFER_BYTES: usize = 16 * 1024;

/// Most connections at a time; more are reset. A destination has as many as it has attempts in flight.
const CONNECTIONS_MAX: usize = 4_096;

/// How long nothing is accepted after the system refused a connection for lack of descriptors.
const REFUSED_WAIT: Duration = Duration::from_millis(50);

/// A running proxy; it ends with this value, and all of its connections with it.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

/// What passed so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections that came.
    pub connections: u64,
    /// Answers that began and whose requests had arrived whole.
    pub answers: u64,
    /// Of these, lost.
    pub lost: u64,
}

#[derive(Debug)]
struct Shared {
    destination: SocketAddr,
    protocol: Protocol,
    fault: watch::Sender<Fault>,
    connections: AtomicU64,
    answers: AtomicU64,
    lost: AtomicU64,
}

impl FaultProxy {
    /// Begins on a free loopback port, with no fault.
    ///
    /// # Errors
    /// When no port can be had.
    pub async fn start(destination: SocketAddr, protocol: Protocol) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        Self::over(listener, destination, protocol)
    }

    /// The same where the port was chosen before, as for a destination that has to name it.
    ///
    /// # Errors
    /// When the listener has no address.
    pub fn over(
        listener: TcpListener,
        destination: SocketAddr,
        protocol: Protocol,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            destination,
            protocol,
            fault: watch::Sender::new(Fault::None),
            connections: AtomicU64::new(0),
            answers: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self {
            address,
            shared,
            accepting,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Something else is wrong from now on, also on connections that are open.
    pub fn set(&self, fault: Fault) {
        self.shared.fault.send_replace(fault);
    }

    /// What passed so far.
    pub fn counts(&self) -> Counts {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counts {
            connections: of(&self.shared.connections),
            answers: of(&self.shared.answers),
            lost: of(&self.shared.lost),
        }
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    // Dropped with this task, it ends the connections.
    let mut connections = JoinSet::new();
    loop {
        let Ok((sender, _)) = listener.accept().await else {
            tokio::time::sleep(REFUSED_WAIT).await;
            continue;
        };
        shared.connections.fetch_add(1, Ordering::Relaxed);
        while connections.try_join_next().is_some() {}
        if connections.len() >= CONNECTIONS_MAX {
            reset(&sender);
        } else {
            connections.spawn(serve(sender, Arc::clone(&shared)));
        }
    }
}

/// Serves one connection to its end.
async fn serve(mut sender: TcpStream, shared: Arc<Shared>) {
    let mut fault = shared.fault.subscribe();
    let cut = async move {
        // The value is never dropped before the connections are.
        drop(fault.wait_for(|fault| *fault == Fault::Cut).await);
    };
    let passed = async {
        let mut destination = TcpStream::connect(shared.destination).await?;
        sender.set_nodelay(true)?;
        destination.set_nodelay(true)?;
        let passed = pass(&mut sender, &mut destination, &shared).await;
        if passed.is_err() {
            reset(&destination);
        }
        passed
    };
    let whole = tokio::select! {
        biased;
        () = cut => false,
        passed = passed => passed.is_ok(),
    };
    if !whole {
        reset(&sender);
    }
}

/// Both directions until both have ended, or one breaks.
async fn pass(
    sender: &mut TcpStream,
    destination: &mut TcpStream,
    shared: &Shared,
) -> io::Result<()> {
    let exchanges = Mutex::new(Exchanges::of(shared.protocol));
    let link = Link {
        shared,
        exchanges: &exchanges,
    };
    let (from_sender, to_sender) = sender.split();
    let (from_destination, to_destination) = destination.split();
    tokio::try_join!(
        link.pump(from_sender, to_destination, Toward::Destination),
        link.pump(from_destination, to_sender, Toward::Sender),
    )
    .map(drop)
}

/// What both directions of a connection look at.
#[derive(Clone, Copy)]
struct Link<'a> {
    shared: &'a Shared,
    exchanges: &'a Mutex<Exchanges>,
}

impl Link<'_> {
    async fn pump(
        self,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
        toward: Toward,
    ) -> io::Result<()> {
        let mut fault = self.shared.fault.subscribe();
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let read = from.read(&mut buffer).await?;
            if read == 0 {
                return to.shutdown().await;
            }
            let mut waiting = buffer.get_mut(..read).unwrap_or_default();
            while !waiting.is_empty() {
                let now = *fault.borrow_and_update();
                let Step::Pass {
                    bytes,
                    after,
                    altered,
                } = now.step(toward, waiting.len())
                else {
                    changed(&mut fault).await?;
                    continue;
                };
                if !after.is_zero() {
                    tokio::select! {
                        changed = changed(&mut fault) => {
                            changed?;
                            continue;
                        }
                        () = tokio::time::sleep(after) => {}
                    }
                }
                let (passing, rest) = waiting.split_at_mut(bytes);
                let wanted = self.look(passing, toward);
                if altered && let Some(first) = passing.first_mut() {
                    *first = !*first;
                }
                to.write_all(passing.get(..wanted).unwrap_or_default())
                    .await?;
                if wanted < bytes {
                    return Err(io::Error::other("the answer is lost"));
                }
                waiting = rest;
            }
        }
    }

    /// How many of these bytes pass before an answer that is lost; all where none is.
    fn look(self, bytes: &[u8], toward: Toward) -> usize {
        let shared = self.shared;
        let mut exchanges = self
            .exchanges
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match toward {
            Toward::Destination => {
                exchanges.asked(bytes);
                bytes.len()
            }
            Toward::Sender => exchanges.answered(bytes, &mut || {
                let number = shared.answers.fetch_add(1, Ordering::Relaxed) + 1;
                let lost = shared.fault.borrow().loses(number);
                shared.lost.fetch_add(u64::from(lost), Ordering::Relaxed);
                lost
            }),
        }
    }
}

async fn changed(fault: &mut watch::Receiver<Fault>) -> io::Result<()> {
    fault.changed().await.map_err(io::Error::other)
}

/// Closing the socket from here on breaks the connection instead of ending it.
fn reset(stream: &TcpStream) {
    // Where that fails it is closed, which a sender that waits for an answer takes for the same.
    drop(stream.set_zero_linger());
}

#[cfg(test)]
mod tests;
