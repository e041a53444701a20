//! Ten ways in which a receiver can be bad. Each has a path of its own at the receiver, but for the one where nobody
//! listens.

use std::convert::Infallible;
use std::sync::LazyLock;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use hyper::header::{HeaderValue, LOCATION, RETRY_AFTER};
use hyper::{Response, StatusCode};

/// How long a slow one takes.
const SLOW: Duration = Duration::from_secs(2);

/// Between two bytes of an answer that drips.
const DRIP: Duration = Duration::from_millis(100);

/// An answer that nobody asked for so much of, made once: making it anew each time would cost the receiver, which shares
/// the processor, more than sending what is read of it.
static HUGE: LazyLock<Bytes> = LazyLock::new(|| Bytes::from(vec![b'x'; 4 * 1024 * 1024]));

/// What an answer carries.
pub type Body = BoxBody<Bytes, Infallible>;

/// One way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    NobodyListens,
    Unavailable,
    Broken,
    Throttled,
    NeverAnswers,
    Slow,
    Drips,
    HangsUp,
    Huge,
    SendsElsewhere,
}

impl Way {
    const ALL: [Self; 10] = [
        Self::NobodyListens,
        Self::Unavailable,
        Self::Broken,
        Self::Throttled,
        Self::NeverAnswers,
        Self::Slow,
        Self::Drips,
        Self::HangsUp,
        Self::Huge,
        Self::SendsElsewhere,
    ];

    /// They take turns.
    pub fn of(number: u64) -> Self {
        let place = usize::try_from(number).unwrap_or_default() % Self::ALL.len();
        Self::ALL.get(place).copied().unwrap_or(Self::NobodyListens)
    }

    /// Where such a one is, beside the receiver of this address.
    pub fn url(self, receiver: &str) -> String {
        let place = Self::ALL.iter().position(|way| *way == self);
        match self {
            // The port for discarding, which no system serves any more.
            Self::NobodyListens => "http://127.0.0.1:9/hook".to_owned(),
            _ => format!("{receiver}/bad/{}", place.unwrap_or_default()),
        }
    }

    /// Which way a path of the receiver asks for.
    pub fn asked_by(path: &str) -> Option<Self> {
        let (_, place) = path.split_once("/bad/")?;
        Self::ALL.get(place.parse::<usize>().ok()?).copied()
    }

    /// Its answer; `None` where it hangs up without one.
    pub async fn answer(self) -> Option<Response<Body>> {
        let mut response = Response::new(empty());
        *response.status_mut() = match self {
            Self::HangsUp => return None,
            Self::Unavailable | Self::NobodyListens => StatusCode::SERVICE_UNAVAILABLE,
            Self::Broken => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Throttled => StatusCode::TOO_MANY_REQUESTS,
            Self::SendsElsewhere => StatusCode::FOUND,
            Self::NeverAnswers | Self::Slow | Self::Drips | Self::Huge => StatusCode::OK,
        };
        match self {
            Self::NeverAnswers => std::future::pending::<()>().await,
            Self::Slow => tokio::time::sleep(SLOW).await,
            Self::Drips => *response.body_mut() = dripping(),
            Self::Huge => {
                *response.body_mut() = Full::new(Bytes::clone(&HUGE)).boxed();
            }
            Self::Throttled => {
                let headers = response.headers_mut();
                headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            Self::SendsElsewhere => {
                let headers = response.headers_mut();
                headers.insert(LOCATION, HeaderValue::from_static("/elsewhere"));
            }
            _ => {}
        }
        Some(response)
    }
}

/// Nothing.
pub fn empty() -> Body {
    Full::default().boxed()
}

/// A byte now and then, without an end.
fn dripping() -> Body {
    let bytes = stream::unfold((), |()| async {
        tokio::time::sleep(DRIP).await;
        Some((Ok(Frame::data(Bytes::from_static(b"."))), ()))
    });
    BodyExt::boxed(StreamBody::new(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_is_found_again_by_its_path() {
        for number in 0..20 {
            let way = Way::of(number);
            let url = way.url("http://127.0.0.1:80/hook");
            match way {
                Way::NobodyListens => assert_eq!(Way::asked_by(&url), None),
                _ => assert_eq!(Way::asked_by(&url), Some(way)),
            }
        }
        assert_eq!(Way::asked_by("/hook"), None);
    }
}
