//! Problem details (RFC 9457): the one form of every error answer, and the one place that gives an
//! error its HTTP status. Each type's address, `/problems/<name>`, is served as a page (see `pages`).

use std::fmt::Write as _;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use serde_json::{Value, json};
use wayhold_store::{CatalogError, LetterError, ReadError, ReshardError, RetireError};

use crate::auth::CreateError;
use crate::backups::BeginError;
use crate::blocking::Interrupted;
use crate::dispatch::DispatchError;
use crate::ingest::{Accepted, Refusal, Refused};
use crate::redelivery::edit::EditError;
use crate::redelivery::{RedeliveryError, ReplayError};

/// What went wrong, by what the client should do about it. Closed: a new type is a new reaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProblemType {
    /// The request itself cannot be understood: query, header, or path.
    InvalidRequest,
    /// The body is not what its content type says.
    MalformedBody,
    /// An event breaks a rule of CloudEvents or a limit on its fields.
    InvalidEvent,
    /// More bytes, lines or events than a limit allows.
    TooLarge,
    /// A content type, charset or encoding that is not spoken here.
    UnsupportedMedia,
    /// No route wants the event.
    NoRoute,
    /// The condition of a route or key rule could not be evaluated.
    RouteFailed,
    /// The same source and id was accepted with other content.
    EventConflict,
    /// A command of no configured kind, or whose arguments do not fit it.
    InvalidCommand,
    /// The Idempotency-Key came before with another request.
    KeyReused,
    /// The thing is not in a state that allows the action.
    StateConflict,
    /// No token, or one that is not known.
    Unauthenticated,
    /// The token's principal lacks the role.
    Forbidden,
    /// Too many failed authentications from this address.
    TooManyFailures,
    /// More is waiting to be stored than the queue holds.
    Busy,
    /// More is pending than the limits on the whole backlog allow.
    BacklogFull,
    /// More is pending for a destination than its limits allow.
    DestinationFull,
    /// The configuration file is wrong.
    InvalidConfiguration,
    /// The configuration asks for what only a restart can change.
    RestartNeeded,
    /// Less disk is free than must stay free.
    NoSpace,
    /// The store cannot accept right now.
    Unavailable,
    /// The server is stopping.
    Stopping,
    /// Nothing of that name.
    NotFound,
    /// The path exists, the method does not.
    MethodNotAllowed,
    /// A fault of the server's own.
    Internal,
}

impl ProblemType {
    /// Every type, in the order of the index page.
    pub const ALL: [Self; 25] = [
        Self::InvalidRequest,
        Self::MalformedBody,
        Self::InvalidEvent,
        Self::TooLarge,
        Self::UnsupportedMedia,
        Self::NoRoute,
        Self::RouteFailed,
        Self::EventConflict,
        Self::InvalidCommand,
        Self::KeyReused,
        Self::StateConflict,
        Self::Unauthenticated,
        Self::Forbidden,
        Self::TooManyFailures,
        Self::Busy,
        Self::BacklogFull,
        Self::DestinationFull,
        Self::InvalidConfiguration,
        Self::RestartNeeded,
        Self::NoSpace,
        Self::Unavailable,
        Self::Stopping,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::Internal,
    ];

    /// Last segment of its address, and its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::InvalidRequest => "invalid-request",
            Self::MalformedBody => "malformed-body",
            Self::InvalidEvent => "invalid-event",
            Self::TooLarge => "too-large",
            Self::UnsupportedMedia => "unsupported-media",
            Self::NoRoute => "no-route",
            Self::RouteFailed => "route-failed",
            Self::EventConflict => "event-conflict",
            Self::InvalidCommand => "invalid-command",
            Self::KeyReused => "key-reused",
            Self::StateConflict => "state-conflict",
            Self::Unauthenticated => "unauthenticated",
            Self::Forbidden => "forbidden",
            Self::TooManyFailures => "too-many-failures",
            Self::Busy => "busy",
            Self::BacklogFull => "backlog-full",
            Self::DestinationFull => "destination-full",
            Self::InvalidConfiguration => "invalid-configuration",
            Self::RestartNeeded => "restart-needed",
            Self::NoSpace => "no-space",
            Self::Unavailable => "unavailable",
            Self::Stopping => "stopping",
            Self::NotFound => "not-found",
            Self::MethodNotAllowed => "method-not-allowed",
            Self::Internal => "internal",
        }
    }

    /// The type of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Its HTTP status.
    pub fn status(self) -> StatusCode {
        match self {
            Self::InvalidRequest | Self::MalformedBody | Self::InvalidEvent => {
                StatusCode::BAD_REQUEST
            }
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::UnsupportedMedia => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::NoRoute
            | Self::RouteFailed
            | Self::InvalidConfiguration
            | Self::InvalidCommand
            | Self::KeyReused => StatusCode::UNPROCESSABLE_ENTITY,
            Self::EventConflict | Self::StateConflict | Self::RestartNeeded => StatusCode::CONFLICT,
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
            Self::Forbidden => StatusCode::FORBIDDEN,
            Self::TooManyFailures | Self::Busy | Self::BacklogFull | Self::DestinationFull => {
                StatusCode::TOO_MANY_REQUESTS
            }
            Self::NoSpace | Self::Unavailable | Self::Stopping => StatusCode::SERVICE_UNAVAILABLE,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// One line for a person, the same for every occurrence.
    pub fn title(self) -> &'static str {
        match self {
            Self::InvalidRequest => "The request cannot be understood",
            Self::MalformedBody => "The body is not what its content type says",
            Self::InvalidEvent => "The event cannot be accepted as it is",
            Self::TooLarge => "The request exceeds a limit",
            Self::UnsupportedMedia => "The body's type or encoding is not supported",
            Self::NoRoute => "No route wants this event",
            Self::RouteFailed => "A condition cannot be decided for this event",
            Self::EventConflict => "This id was used before for another event",
            Self::InvalidCommand => "The command cannot be accepted as it is",
            Self::KeyReused => "This Idempotency-Key was used before for another request",
            Self::StateConflict => "The state of the thing does not allow this",
            Self::Unauthenticated => "A valid token is needed",
            Self::Forbidden => "The token does not allow this",
            Self::TooManyFailures => "Too many failed authentications",
            Self::Busy => "Too much is waiting to be stored",
            Self::BacklogFull => "Too much is waiting to be delivered",
            Self::DestinationFull => "Too much is waiting for a destination",
            Self::InvalidConfiguration => "The configuration is wrong",
            Self::RestartNeeded => "Only a restart can change this",
            Self::NoSpace => "Too little disk space is free",
            Self::Unavailable => "The store cannot accept right now",
            Self::Stopping => "The server is stopping",
            Self::NotFound => "There is no such thing",
            Self::MethodNotAllowed => "The method is not allowed here",
            Self::Internal => "The server failed",
        }
    }
}

/// One error answer.
#[derive(Clone, Debug)]
pub struct Problem {
    /// What went wrong.
    pub kind: ProblemType,
    /// What is special about this occurrence: one sentence fragment without payload or secret.
    pub detail: String,
    /// When to come back; every 429 and 503 has one.
    pub retry_after: Option<Duration>,
    // Extension members in the order they were added.
    members: Vec<(&'static str, Value)>,
}

/// `Retry-After` of a 429 or 503 whose cause names none: one second is long for a commit and short for
/// a person.
const RETRY_AFTER_DEFAULT: Duration = Duration::from_secs(1);

impl Problem {
    /// A problem of this type; 429 and 503 get a `Retry-After` of a second.
    pub fn new(kind: ProblemType, detail: impl Into<String>) -> Self {
        let retry = matches!(
            kind.status(),
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
        );
        Self {
            kind,
            detail: detail.into(),
            retry_after: retry.then_some(RETRY_AFTER_DEFAULT),
            members: Vec::new(),
        }
    }

    /// The same with an extension member.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.members.push((name, value.into()));
        self
    }

    /// The same with the time after which to come back.
    #[must_use]
    pub fn with_retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// Its HTTP status.
    pub fn status(&self) -> StatusCode {
        self.kind.status()
    }

    /// The text of the `application/problem+json` body.
    pub fn to_json(&self) -> String {
        let mut text = format!(
            r#"{{"type":"/problems/{}","title":{},"status":{},"detail":{}"#,
            self.kind.name(),
            Value::from(self.kind.title()),
            self.status().as_u16(),
            Value::from(self.detail.as_str()),
        );
        for (name, value) in &self.members {
            // Writing to a String cannot fail.
            let _infallible = write!(text, r#","{name}":{value}"#);
        }
        text.push('}');
        text
    }

    /// The answer that carries it.
    pub fn to_response<B: From<String>>(&self) -> http::Response<B> {
        self.to_response_with(self.to_json())
    }

    /// The answer that carries it and one more member, given as JSON text.
    pub(crate) fn to_response_with_member<B: From<String>>(
        &self,
        name: &'static str,
        json: &str,
    ) -> http::Response<B> {
        let mut text = self.to_json();
        text.pop();
        // Writing to a String cannot fail.
        let _infallible = write!(text, r#","{name}":{json}}}"#);
        self.to_response_with(text)
    }

    fn to_response_with<B: From<String>>(&self, text: String) -> http::Response<B> {
        let mut response = http::Response::new(B::from(text));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        if let Some(wait) = self.retry_after {
            let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
            // Rounded up: coming back too early would be refused again.
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.kind == ProblemType::Unauthenticated {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        self.to_response::<Body>()
    }
}

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Self {
        let problem = Self::from(refused.refusal);
        match refused.index {
            Some(index) => problem.with("index", index),
            None => problem,
        }
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let detail = refusal.to_string();
        match refusal {
            Refusal::Malformed { offset, .. } => {
                Self::new(ProblemType::MalformedBody, detail).with("offset", offset)
            }
            Refusal::Invalid { field, .. } => {
                Self::new(ProblemType::InvalidEvent, detail).with("field", field)
            }
            Refusal::Request { field, .. } => {
                Self::new(ProblemType::InvalidRequest, detail).with("field", field)
            }
            Refusal::TooLarge { limit, .. } => {
                Self::new(ProblemType::TooLarge, detail).with("limit", limit)
            }
            Refusal::Unsupported { .. } => Self::new(ProblemType::UnsupportedMedia, detail),
            Refusal::Cut => Self::new(ProblemType::MalformedBody, detail),
            Refusal::Unmatched { named, .. } => {
                Self::new(ProblemType::NoRoute, detail).with("routes", named)
            }
            Refusal::RouteFailed { route, .. } => {
                Self::new(ProblemType::RouteFailed, detail).with("route", route)
            }
            Refusal::KeyFailed { rule, .. } => {
                Self::new(ProblemType::RouteFailed, detail).with("key_rule", rule)
            }
            Refusal::Conflict { first, difference } => {
                let problem = Self::new(ProblemType::EventConflict, detail)
                    .with("position", first.to_string());
                match difference {
                    None => problem,
                    Some(difference) => problem
                        .with("differs", difference.fields)
                        .with("sent_data_sha256", difference.sent)
                        .with("stored_data_sha256", difference.stored),
                }
            }
            Refusal::ConflictInBatch { first } => {
                Self::new(ProblemType::EventConflict, detail).with("first_index", first)
            }
            Refusal::Busy { retry_after } => {
                Self::new(ProblemType::Busy, detail).with_retry_after(retry_after)
            }
            Refusal::Full(full) => {
                let kind = match full.destination {
                    None => ProblemType::BacklogFull,
                    Some(_) => ProblemType::DestinationFull,
                };
                let problem = Self::new(kind, detail)
                    .with_retry_after(full.retry_after)
                    .with("limit", full.measure.name())
                    .with("admit_until", full.admit_until.fraction());
                match full.destination {
                    None => problem,
                    Some(destination) => problem.with("destination", destination),
                }
            }
            Refusal::NoSpace { retry_after } => {
                Self::new(ProblemType::NoSpace, detail).with_retry_after(retry_after)
            }
            Refusal::Unavailable { retry_after, .. } => {
                Self::new(ProblemType::Unavailable, detail).with_retry_after(retry_after)
            }
            Refusal::Stopping { retry_after } => {
                Self::new(ProblemType::Stopping, detail).with_retry_after(retry_after)
            }
            Refusal::Partly { accepted, cause } => {
                let receipts: Vec<Value> =
                    accepted.iter().map(|one| receipt(one.as_ref())).collect();
                let cause = Self::from(*cause);
                Self { detail, ..cause }.with("receipts", receipts)
            }
        }
    }
}

/// The receipt of an event as a success answers it, or `null`.
fn receipt(accepted: Option<&Accepted>) -> Value {
    let Some(accepted) = accepted else {
        return Value::Null;
    };
    let receipt = accepted.receipt;
    json!({
        "id": accepted.event.id(),
        "source": accepted.event.source(),
        "position": receipt.map(|receipt| receipt.position.to_string()),
        "duplicate": receipt.is_some_and(|receipt| receipt.duplicate),
    })
}

impl From<Interrupted> for Problem {
    fn from(interrupted: Interrupted) -> Self {
        Self::new(ProblemType::Internal, interrupted.to_string())
    }
}

impl From<CatalogError> for Problem {
    fn from(error: CatalogError) -> Self {
        let detail = error.to_string();
        match error {
            CatalogError::NotFound { .. } => Self::new(ProblemType::NotFound, detail),
            CatalogError::Exists { .. }
            | CatalogError::Retired
            | CatalogError::InTheWay { .. }
            | CatalogError::HasEnded { .. } => Self::new(ProblemType::StateConflict, detail),
            CatalogError::NoSpace => Self::new(ProblemType::NoSpace, detail),
            // Paths of the server's disk are for its log, which has them already.
            CatalogError::Closed { .. }
            | CatalogError::Newer { .. }
            | CatalogError::Unusable { .. }
            | CatalogError::Lost { .. } => Self::new(
                ProblemType::Unavailable,
                "the catalogue takes no changes; see /readyz",
            ),
        }
    }
}

impl From<DispatchError> for Problem {
    fn from(error: DispatchError) -> Self {
        let detail = error.to_string();
        match error {
            DispatchError::Unknown { .. } => Self::new(ProblemType::NotFound, detail),
            DispatchError::Catalog(error) => error.into(),
            DispatchError::Retire(RetireError::Catalog(error)) => error.into(),
            DispatchError::Retire(RetireError::Configured { .. }) => {
                Self::new(ProblemType::StateConflict, detail)
            }
            DispatchError::Retire(RetireError::Read(_) | RetireError::NotDurable(_)) => {
                Self::new(ProblemType::Unavailable, detail)
            }
            DispatchError::Stopping => Self::new(ProblemType::Stopping, detail),
        }
    }
}

impl From<RedeliveryError> for Problem {
    fn from(error: RedeliveryError) -> Self {
        let detail = error.to_string();
        match error {
            RedeliveryError::Letter(LetterError::NotFound { .. }) => {
                Self::new(ProblemType::NotFound, detail)
            }
            RedeliveryError::Letter(
                LetterError::Redriving { .. }
                | LetterError::Damaged { .. }
                | LetterError::Another { .. },
            ) => Self::new(ProblemType::StateConflict, detail),
            RedeliveryError::Letter(LetterError::Audit(error)) => error.into(),
            RedeliveryError::Letter(LetterError::Unavailable { .. }) => {
                Self::new(ProblemType::Unavailable, detail)
            }
            RedeliveryError::NoReason => Self::new(ProblemType::InvalidRequest, detail),
            RedeliveryError::Unexpected { expected, found } => {
                Self::new(ProblemType::StateConflict, detail)
                    .with("expected", expected)
                    .with("found", found)
            }
            RedeliveryError::TooMany | RedeliveryError::Running => {
                Self::new(ProblemType::StateConflict, detail)
            }
            RedeliveryError::Stopping => Self::new(ProblemType::Stopping, detail),
        }
    }
}

impl From<EditError> for Problem {
    fn from(error: EditError) -> Self {
        let detail = error.to_string();
        match error {
            EditError::Refused(refusal) => refusal.into(),
            EditError::Unreadable(_) => Self::new(ProblemType::Internal, detail),
            EditError::Fixed { name, .. } => {
                let field = format!("edit.{name}");
                Self::new(ProblemType::InvalidRequest, detail).with("field", field)
            }
            EditError::Empty | EditError::TwoData | EditError::Invalid(_) => {
                Self::new(ProblemType::InvalidRequest, detail).with("field", "edit")
            }
        }
    }
}

impl From<BeginError> for Problem {
    fn from(error: BeginError) -> Self {
        let detail = error.to_string();
        match error {
            BeginError::Running { .. } => Self::new(ProblemType::StateConflict, detail),
            BeginError::Relative => {
                Self::new(ProblemType::InvalidRequest, detail).with("field", "to")
            }
            BeginError::Audit(error) => error.into(),
        }
    }
}

impl From<ReshardError> for Problem {
    fn from(error: ReshardError) -> Self {
        let detail = error.to_string();
        match error {
            ReshardError::Count => {
                Self::new(ProblemType::InvalidRequest, detail).with("field", "count")
            }
            ReshardError::TooMany { .. } => Self::new(ProblemType::StateConflict, detail),
            ReshardError::NoSpace { .. } => Self::new(ProblemType::NoSpace, detail),
            ReshardError::Catalog(error) => error.into(),
            // Paths of the server's disk are for its log.
            ReshardError::Files(error) => {
                tracing::error!(%error, "files of a new generation of shards cannot be made");
                Self::new(
                    ProblemType::Unavailable,
                    "the files of the new shards cannot be made; events go where they went before",
                )
            }
            ReshardError::Stopping => Self::new(ProblemType::Stopping, detail),
        }
    }
}

impl From<CreateError> for Problem {
    fn from(error: CreateError) -> Self {
        match error {
            CreateError::Randomness => Self::new(ProblemType::Unavailable, error.to_string()),
            CreateError::Catalog(error) => error.into(),
        }
    }
}

impl From<ReplayError> for Problem {
    fn from(error: ReplayError) -> Self {
        let detail = error.to_string();
        let invalid =
            |field: &str| Self::new(ProblemType::InvalidRequest, &detail).with("field", field);
        match error {
            ReplayError::Selection(error) => invalid(&format!("select.{}", error.field)),
            ReplayError::Rate(_) => invalid("rate"),
            ReplayError::Nowhere => invalid("destination"),
            ReplayError::Unknown { .. } => Self::new(ProblemType::NotFound, detail),
            ReplayError::Unserved { .. } => Self::new(ProblemType::StateConflict, detail),
            ReplayError::TooMany => Self::new(ProblemType::TooLarge, detail),
            ReplayError::Read(error) => error.into(),
            ReplayError::Catalog(error) => error.into(),
            ReplayError::Stopping => Self::new(ProblemType::Stopping, detail),
        }
    }
}

impl From<ReadError> for Problem {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Damaged { .. } => Self::new(ProblemType::Internal, error.to_string()),
            // File names are for the log.
            ReadError::Failed { .. } => {
                tracing::warn!(%error, "an event could not be read");
                Self::new(
                    ProblemType::Unavailable,
                    "the event cannot be read this time",
                )
            }
        }
    }
}
