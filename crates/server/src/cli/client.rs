//! The client side of the API: one connection to a server over TCP or a Unix socket, and what its
//! answers mean for the exit code.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use super::exit::{Exit, Failure};

/// How long a connection may take to come about: a local server answers at once, a far one in a
/// few round trips.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long an answer may take. The server itself ends what takes longer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// Most bytes of one answer; an NDJSON request of 100,000 lines has receipts of some 20 MiB.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Longest token file: a token has below 100 bytes.
const TOKEN_FILE_BYTES_MAX: u64 = 4096;

/// What is left as it is in a path segment or query value.
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Which server to speak to, and as whom.
#[derive(Clone, Debug, clap::Args)]
pub struct ServerArguments {
    /// Where the server listens: a URL, or unix:PATH.
    #[arg(
        long,
        value_name = "URL",
        default_value = "http://127.0.0.1:8700",
        global = true
    )]
    pub server: Address,
    /// File that holds the token to present.
    #[arg(long, value_name = "FILE", global = true)]
    pub token_file: Option<PathBuf>,
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Host and port, as in a URL's authority.
    Tcp {
        /// Name or address; IPv6 without brackets.
        host: String,
        /// Port.
        port: u16,
    },
    /// Path of a Unix socket.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() {
                Err("expected a path after unix:".to_owned())
            } else {
                Ok(Self::Unix(path.into()))
            };
        }
        let url = url::Url::parse(text)
            .map_err(|error| format!("{error}; expected http://HOST:PORT or unix:PATH"))?;
        if url.scheme() != "http" {
            return Err(
                "expected http://HOST:PORT or unix:PATH; for https put a proxy before the server"
                    .to_owned(),
            );
        }
        if url.path() != "/" || url.query().is_some() || url.username() != "" {
            return Err("expected no path, query or user in the server's URL".to_owned());
        }
        let host = url
            .host_str()
            .ok_or("expected a host in the server's URL")?;
        Ok(Self::Tcp {
            host: host.trim_matches(['[', ']']).to_owned(),
            port: url.port_or_known_default().unwrap_or(80),
        })
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "http://[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "http://{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// No whole answer came. Whether the request was carried out is not known, unless `sent` is false.
#[derive(Debug, Error)]
#[error("{address} {what}")]
pub struct NoAnswer {
    address: Address,
    what: String,
    /// Whether the request may have reached the server.
    pub sent: bool,
}

impl From<NoAnswer> for Failure {
    fn from(no_answer: NoAnswer) -> Self {
        Self::new(Exit::Unreachable, no_answer.to_string())
    }
}

/// One connection to a server, opened when first needed and again when it was closed.
#[derive(Debug)]
pub struct Client {
    address: Address,
    authorization: Option<HeaderValue>,
    host: HeaderValue,
    connection: Option<SendRequest<Full<Bytes>>>,
}

impl Client {
    /// A client that has not connected yet.
    ///
    /// # Errors
    /// When the token file cannot be read or holds no token.
    pub fn new(arguments: &ServerArguments) -> Result<Self, Failure> {
        let authorization = arguments.token_file.as_ref().map(read_token).transpose()?;
        let host = match &arguments.server {
            Address::Tcp { .. } => {
                let authority = arguments.server.to_string();
                HeaderValue::from_str(authority.trim_start_matches("http://")).map_err(|_| {
                    Failure::usage("--server: expected a host without control characters")
                })?
            }
            Address::Unix(_) => HeaderValue::from_static("localhost"),
        };
        Ok(Self {
            address: arguments.server.clone(),
            authorization,
            host,
            connection: None,
        })
    }

    /// Where the server listens.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Asks for a JSON answer.
    ///
    /// # Errors
    /// When no server answers, or it answers with a problem.
    pub async fn get(&mut self, path: &str) -> Result<Value, Failure> {
        self.json(Method::GET, path, None).await
    }

    /// Puts the server into a state.
    ///
    /// # Errors
    /// When no server answers, or it answers with a problem.
    pub async fn put(&mut self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.json(Method::PUT, path, Some(body)).await
    }

    /// Asks the server to do something, with a JSON body or none.
    ///
    /// # Errors
    /// When no server answers, or it answers with a problem.
    pub async fn post(&mut self, path: &str, body: Option<&Value>) -> Result<Value, Failure> {
        self.json(Method::POST, path, body).await
    }

    /// Posts JSON with an `Idempotency-Key`: however often, it is done once.
    ///
    /// # Errors
    /// When the key is none, no server answers, or it answers with a problem.
    pub async fn post_keyed(
        &mut self,
        path: &str,
        body: &Value,
        key: &str,
    ) -> Result<Value, Failure> {
        let key = HeaderValue::from_str(key)
            .map_err(|_| Failure::usage("--key: expected visible characters"))?;
        let body = Bytes::from(body.to_string());
        self.send_keyed(Method::POST, path, body, Some(key)).await
    }

    /// Posts a text as it stands.
    ///
    /// # Errors
    /// When no server answers, or it answers with a problem.
    pub async fn post_text(&mut self, path: &str, text: Vec<u8>) -> Result<Value, Failure> {
        self.send(Method::POST, path, text.into()).await
    }

    async fn json(
        &mut self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, Failure> {
        let body = body
            .map(|value| Bytes::from(value.to_string()))
            .unwrap_or_default();
        self.send(method, path, body).await
    }

    async fn send(&mut self, method: Method, path: &str, body: Bytes) -> Result<Value, Failure> {
        self.send_keyed(method, path, body, None).await
    }

    async fn send_keyed(
        &mut self,
        method: Method,
        path: &str,
        body: Bytes,
        key: Option<HeaderValue>,
    ) -> Result<Value, Failure> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = path
            .parse()
            .map_err(|_| Failure::usage(format!("cannot ask for {path}: not a path")))?;
        request
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        request
            .headers_mut()
            .insert(ACCEPT, HeaderValue::from_static("application/json"));
        if let Some(key) = key {
            request.headers_mut().insert("idempotency-key", key);
        }
        let answer = self.request(request).await?;
        if answer.status().is_success() {
            Ok(parse(answer.body()))
        } else {
            Err(refusal(answer.status(), answer.body()))
        }
    }

    /// Sends any request (its URI a path) and reads the whole answer. Host, token and user agent are
    /// added here.
    ///
    /// # Errors
    /// When no whole answer came; a problem is an answer.
    pub async fn request(
        &mut self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<Bytes>, NoAnswer> {
        let headers = request.headers_mut();
        headers.insert(HOST, self.host.clone());
        headers.insert(
            USER_AGENT,
            HeaderValue::from_static(concat!("wayhold/", env!("CARGO_PKG_VERSION"))),
        );
        if let Some(authorization) = &self.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        let mut connection = self.connection().await?;
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, async {
            let (head, body) = connection
                .send_request(request)
                .await
                .map_err(|error| self.no_answer(closed_early(&error), true))?
                .into_parts();
            let body = Limited::new(body, ANSWER_BYTES_MAX)
                .collect()
                .await
                .map_err(|error| self.no_answer(format!("broke off its answer: {error}"), true))?;
            Ok(Response::from_parts(head, body.to_bytes()))
        })
        .await
        .map_err(|_| {
            self.no_answer(
                format!("did not answer within {} s", ANSWER_TIMEOUT.as_secs()),
                true,
            )
        })??;
        self.connection = Some(connection);
        Ok(answer)
    }

    async fn connection(&mut self) -> Result<SendRequest<Full<Bytes>>, NoAnswer> {
        if let Some(mut connection) = self.connection.take()
            && connection.ready().await.is_ok()
        {
            return Ok(connection);
        }
        let failed = |error: &dyn std::fmt::Display| {
            self.no_answer(format!("is not reachable: {error}"), false)
        };
        let connect = async {
            match &self.address {
                Address::Tcp { host, port } => {
                    let stream = TcpStream::connect((host.as_str(), *port))
                        .await
                        .map_err(|e| failed(&e))?;
                    stream.set_nodelay(true).map_err(|e| failed(&e))?;
                    handshake(stream).await.map_err(|e| failed(&e))
                }
                Address::Unix(path) => {
                    let stream = UnixStream::connect(path).await.map_err(|e| failed(&e))?;
                    handshake(stream).await.map_err(|e| failed(&e))
                }
            }
        };
        tokio::time::timeout(CONNECT_TIMEOUT, connect)
            .await
            .map_err(|_| failed(&"no connection came about within 5 s"))?
    }

    fn no_answer(&self, what: impl Into<String>, sent: bool) -> NoAnswer {
        NoAnswer {
            address: self.address.clone(),
            what: what.into(),
            sent,
        }
    }
}

fn closed_early(error: &hyper::Error) -> String {
    format!("closed the connection before it answered: {error}")
}

async fn handshake<S>(stream: S) -> hyper::Result<SendRequest<Full<Bytes>>>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Ends by itself when the sender is dropped or the server closes; errors reach the sender too.
    tokio::spawn(async move { drop(connection.await) });
    Ok(sender)
}

fn read_token(path: &PathBuf) -> Result<HeaderValue, Failure> {
    let unreadable = |what: &dyn std::fmt::Display| {
        Failure::usage(format!("--token-file {}: {what}", path.display()))
    };
    let length = std::fs::metadata(path)
        .map_err(|error| unreadable(&error))?
        .len();
    if length > TOKEN_FILE_BYTES_MAX {
        return Err(unreadable(&"expected one token"));
    }
    let text = std::fs::read_to_string(path).map_err(|error| unreadable(&error))?;
    let mut value = HeaderValue::from_str(&format!("Bearer {}", text.trim()))
        .map_err(|_| unreadable(&"expected one token on one line"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// A path of these segments, each percent-encoded.
pub fn path<const N: usize>(segments: [&str; N]) -> String {
    let mut path = String::new();
    for segment in segments {
        path.push('/');
        path.extend(utf8_percent_encode(segment, UNRESERVED));
    }
    path
}

/// The path with these query parameters, each value percent-encoded.
pub fn with_query(mut path: String, parameters: &[(&str, &str)]) -> String {
    for (index, (name, value)) in parameters.iter().enumerate() {
        path.push(if index == 0 { '?' } else { '&' });
        path.push_str(name);
        path.push('=');
        path.extend(utf8_percent_encode(value, UNRESERVED));
    }
    path
}

fn parse(body: &Bytes) -> Value {
    serde_json::from_slice(body).unwrap_or(Value::Null)
}

/// What a refusing answer means for the exit code, with the problem's own words.
pub fn refusal(status: StatusCode, body: &Bytes) -> Failure {
    let exit = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Exit::NotAllowed,
        StatusCode::NOT_FOUND => Exit::NotFound,
        StatusCode::BAD_REQUEST => Exit::Usage,
        _ => Exit::Failed,
    };
    let problem = parse(body);
    let text = |field: &str| {
        problem
            .get(field)
            .and_then(Value::as_str)
            .map(str::to_owned)
    };
    let message = match (text("title"), text("detail")) {
        (Some(title), Some(detail)) => format!("{title}: {detail}"),
        (Some(words), None) | (None, Some(words)) => words,
        (None, None) => format!("the server answered {status}"),
    };
    Failure::new(exit, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_urls_or_sockets() {
        for (text, shown) in [
            ("http://127.0.0.1:8700", "http://127.0.0.1:8700"),
            ("http://example.test", "http://example.test:80"),
            ("http://[::1]:9/", "http://[::1]:9"),
            ("unix:/run/wayhold.sock", "unix:/run/wayhold.sock"),
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), shown);
        }
        for text in [
            "",
            "8700",
            "https://a",
            "http://a/b",
            "http://u@a",
            "unix:",
            "ftp://a",
        ] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    #[test]
    fn names_cannot_leave_their_place_in_a_path() {
        assert_eq!(
            path(["v1", "destinations", "a/../b?c"]),
            "/v1/destinations/a%2F..%2Fb%3Fc"
        );
        assert_eq!(
            with_query("/x".into(), &[("id", "a&b"), ("source", "/s")]),
            "/x?id=a%26b&source=%2Fs"
        );
    }

    #[test]
    fn an_answer_decides_the_exit_code() {
        for (status, exit) in [
            (StatusCode::UNAUTHORIZED, Exit::NotAllowed),
            (StatusCode::FORBIDDEN, Exit::NotAllowed),
            (StatusCode::NOT_FOUND, Exit::NotFound),
            (StatusCode::BAD_REQUEST, Exit::Usage),
            (StatusCode::CONFLICT, Exit::Failed),
            (StatusCode::SERVICE_UNAVAILABLE, Exit::Failed),
        ] {
            assert_eq!(
                refusal(status, &Bytes::from_static(b"not json")).exit,
                exit,
                "{status}"
            );
        }
        let problem = Bytes::from_static(br#"{"title":"no such thing","detail":"the id is new"}"#);
        assert_eq!(
            refusal(StatusCode::NOT_FOUND, &problem).message,
            "no such thing: the id is new"
        );
    }
}
