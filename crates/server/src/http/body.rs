//! The body of a request: read as it comes, expanded where it is gzip, never beyond a limit, and never
//! slower than the watchdog allows.

use std::io::{self, Write as _};

use bytes::Bytes;
use flate2::write::MultiGzDecoder;
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use super::front::Client;
use super::watchdog::Phase;
use crate::ingest::Refusal;

/// Compressed bytes expanded at a time. Deflate expands at most 1032 times, so one step gives at most
/// a megabyte.
const INFLATE_STEP: usize = 1024;

/// Most bytes set aside on a client's word alone, before any of them arrived.
const RESERVE_MAX: usize = 64 * 1024;

/// A body that is read piece by piece.
pub(crate) struct RequestBody<'a, B = Incoming> {
    incoming: B,
    client: &'a Client,
    inflate: Option<MultiGzDecoder<Vec<u8>>>,
    /// Compressed bytes that were not expanded yet.
    compressed: Bytes,
    limit: usize,
    expanded: usize,
    announced: usize,
    ended: bool,
}

impl<'a, B> RequestBody<'a, B>
where
    B: hyper::body::Body<Data = Bytes> + Unpin,
{
    /// A body of at most `limit` bytes once expanded.
    ///
    /// # Errors
    /// When the encoding is not understood, or the client announces too much.
    pub(crate) fn new(
        incoming: B,
        headers: &HeaderMap,
        limit: usize,
        client: &'a Client,
    ) -> Result<Self, Refusal> {
        let inflate = is_gzip(headers)?.then(|| MultiGzDecoder::new(Vec::new()));
        let announced = headers
            .get(CONTENT_LENGTH)
            .and_then(|value| value.to_str().ok()?.parse().ok())
            .unwrap_or(0);
        if announced > limit {
            return Err(too_large(limit));
        }
        Ok(Self {
            incoming,
            client,
            inflate,
            compressed: Bytes::new(),
            limit,
            expanded: 0,
            announced,
            ended: false,
        })
    }

    /// All of it, in memory of its own: an event that waits long keeps no connection's buffer alive.
    ///
    /// # Errors
    /// As `next`.
    pub(crate) async fn whole(mut self) -> Result<Bytes, Refusal> {
        let mut bytes = Vec::with_capacity(self.announced.min(RESERVE_MAX));
        while let Some(piece) = self.next().await? {
            bytes.extend_from_slice(&piece);
        }
        Ok(Bytes::from(bytes))
    }

    /// The next piece, of at most what was received at once or one step of expansion.
    ///
    /// # Errors
    /// When the limit is exceeded, the body breaks off or is no gzip, or the server stops.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Refusal> {
        loop {
            let piece = match self.inflate_step()? {
                Some(piece) => piece,
                None if self.ended => return Ok(None),
                None => match self.receive().await? {
                    Some(bytes) if self.inflate.is_some() => {
                        self.compressed = bytes;
                        continue;
                    }
                    Some(bytes) => bytes,
                    None => {
                        self.ended = true;
                        match self.inflate_end()? {
                            Some(piece) => piece,
                            None => return Ok(None),
                        }
                    }
                },
            };
            self.expanded += piece.len();
            if self.expanded > self.limit {
                return Err(too_large(self.limit));
            }
            if !piece.is_empty() {
                return Ok(Some(piece));
            }
        }
    }

    async fn receive(&mut self) -> Result<Option<Bytes>, Refusal> {
        loop {
            self.client.watch.enter(Phase::Body);
            let frame = tokio::select! {
                biased;
                frame = self.incoming.frame() => frame,
                () = self.client.stop.begun() => {
                    return Err(Refusal::Stopping { retry_after: super::front::STOP_RETRY_AFTER });
                }
            };
            self.client.watch.enter(Phase::Working);
            match frame {
                None => return Ok(None),
                Some(Err(_broken_off)) => return Err(Refusal::Cut),
                Some(Ok(frame)) => {
                    // Anything but data is a trailer, which nothing here reads.
                    if let Ok(bytes) = frame.into_data() {
                        self.client.watch.body_received(bytes.len());
                        return Ok(Some(bytes));
                    }
                }
            }
        }
    }

    fn inflate_step(&mut self) -> Result<Option<Bytes>, Refusal> {
        let Some(inflate) = self
            .inflate
            .as_mut()
            .filter(|_| !self.compressed.is_empty())
        else {
            return Ok(None);
        };
        let step = self
            .compressed
            .split_to(self.compressed.len().min(INFLATE_STEP));
        inflate.write_all(&step).map_err(|error| not_gzip(&error))?;
        Ok(Some(std::mem::take(inflate.get_mut()).into()))
    }

    fn inflate_end(&mut self) -> Result<Option<Bytes>, Refusal> {
        let Some(mut inflate) = self.inflate.take() else {
            return Ok(None);
        };
        inflate.try_finish().map_err(|error| not_gzip(&error))?;
        Ok(Some(std::mem::take(inflate.get_mut()).into()))
    }
}

fn not_gzip(_error: &io::Error) -> Refusal {
    Refusal::request("content-encoding", "a whole body in gzip")
}

fn too_large(limit: usize) -> Refusal {
    Refusal::TooLarge {
        what: "the number of bytes of the body",
        limit,
    }
}

/// Whether the body is gzip; any other encoding, and any encoding of an encoding, is refused.
fn is_gzip(headers: &HeaderMap) -> Result<bool, Refusal> {
    let mut values = headers.get_all(CONTENT_ENCODING).iter();
    let Some(value) = values.next() else {
        return Ok(false);
    };
    let name = value.as_bytes().trim_ascii();
    let single = values.next().is_none();
    if single && name.eq_ignore_ascii_case(b"identity") {
        return Ok(false);
    }
    if single && (name.eq_ignore_ascii_case(b"gzip") || name.eq_ignore_ascii_case(b"x-gzip")) {
        return Ok(true);
    }
    Err(Refusal::Unsupported {
        what: "content-encoding",
        expected: "gzip, once, or none",
    })
}
