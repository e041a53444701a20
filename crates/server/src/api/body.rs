//! Bodies of operators' requests: small JSON objects, of which every field is known.

use axum::extract::{FromRequest, Request};
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;

use crate::http::{Problem, ProblemType};

/// Longest body of an operator's request, in bytes: a name, some roles, a reason.
const BODY_BYTES_MAX: usize = 16 * 1024;

/// What an operator's request asks for. No body at all means an object without fields.
#[derive(Debug)]
pub struct Wish<T>(pub T);

impl<T: DeserializeOwned, S: Sync> FromRequest<S> for Wish<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let bytes = whole(request, BODY_BYTES_MAX).await?;
        let text = if bytes.is_empty() {
            b"{}"
        } else {
            bytes.as_ref()
        };
        read(text).map(Self)
    }
}

/// Reads the whole text; what does not fit names its field.
pub(super) fn read<T: DeserializeOwned>(text: &[u8]) -> Result<T, Problem> {
    let malformed = |detail| Problem::new(ProblemType::MalformedBody, detail);
    let mut json = serde_json::Deserializer::from_slice(text);
    let wish = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        if error.path().iter().next().is_none() {
            return malformed(format!("body: {}", error.inner()));
        }
        let field = error.path().to_string();
        malformed(format!("{field}: {}", error.inner())).with("field", field)
    })?;
    json.end()
        .map_err(|error| malformed(format!("body: {error}")))?;
    Ok(wish)
}

/// The whole body, where it has at most `most` bytes.
pub(super) async fn whole(request: Request, most: usize) -> Result<Bytes, Problem> {
    let collected = Limited::new(request.into_body(), most).collect().await;
    let collected = collected.map_err(|error| {
        if error.is::<LengthLimitError>() {
            let detail = format!("body: expected at most {most} bytes");
            Problem::new(ProblemType::TooLarge, detail)
        } else {
            Problem::new(ProblemType::MalformedBody, "the body ended early")
        }
    })?;
    Ok(collected.to_bytes())
}
