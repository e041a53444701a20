//! One connection: hyper's HTTP/1.1 over a stream that the watchdog sees, ended by its client, by the
//! watchdog, or by the server's stop.

use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::front::{Client, Front};
use super::listener::Stream;
use super::server::Stop;
use super::watchdog::{Call, Phase, Place, Watch};
use crate::auth::Peer;
use crate::config::Limits;

/// The protocol's bounds.
pub(super) fn protocol(limits: &Limits) -> http1::Builder {
    let mut protocol = http1::Builder::new();
    protocol
        // Our watchdog keeps the times: hyper's own timer is armed for every request.
        .header_read_timeout(None)
        .max_headers(limits.headers)
        .max_header_size(limits.header_bytes)
        // Answers are small: one buffer and one `write` cost less than a vector of two.
        .writev(false)
        // While an event waits for its sync nothing is read: to look for the end of the connection hyper
        // sets a new buffer aside for every request, and what the store was given is stored anyway.
        .half_close(true);
    protocol
}

/// Serves one connection to its end.
pub(super) async fn serve(
    stream: Stream,
    peer: Peer,
    place: Place,
    front: Arc<Front>,
    protocol: http1::Builder,
    stop: Stop,
) {
    let client = Client {
        peer,
        watch: Arc::clone(&place.watch),
        stop: stop.clone(),
    };
    let service = service_fn(|request| {
        let (front, client) = (&front, &client);
        async move {
            client.watch.begin_request();
            let answer = front.answer(request, client).await;
            client.watch.enter(Phase::Idle);
            Ok::<_, Infallible>(answer)
        }
    });
    let io = TokioIo::new(Watched {
        stream,
        watch: Arc::clone(&place.watch),
    });
    let mut connection = pin!(protocol.serve_connection(io, service));
    if stop.has_begun() {
        // Admitted too late to be called with the others.
        place.watch.call(Call::Stop);
    }
    let called = tokio::select! {
        ended = connection.as_mut() => return note(ended),
        call = place.watch.called() => call,
    };
    if called == Call::Overdue {
        return;
    }
    // Answers what was asked, says so, and closes.
    connection.as_mut().graceful_shutdown();
    tokio::select! {
        ended = connection => note(ended),
        () = place.watch.overdue() => {}
        () = stop.due() => {}
    }
}

fn note(ended: hyper::Result<()>) {
    if let Err(error) = ended {
        // Clients break off and speak other protocols all day; that is nobody's alarm.
        tracing::debug!(%error, "connection ended early");
    }
}

/// Tells the watchdog that something was received.
struct Watched {
    stream: Stream,
    watch: Arc<Watch>,
}

impl AsyncRead for Watched {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            this.watch.received();
        }
        read
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
