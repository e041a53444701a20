//! Bodies of operators' requests: small JSON objects, of which every field is known.

use axum::extract::{FromRequest, Request};
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
        let collected = Limited::new(request.into_body(), BODY_BYTES_MAX)
            .collect()
            .await;
        let bytes = collected
            .map_err(|error| {
                if error.is::<LengthLimitError>() {
                    let detail = format!("body: expected at most {BODY_BYTES_MAX} bytes");
                    Problem::new(ProblemType::TooLarge, detail)
                } else {
                    Problem::new(ProblemType::MalformedBody, "the body ended early")
                }
            })?
            .to_bytes();
        let text = if bytes.is_empty() {
            b"{}"
        } else {
            bytes.as_ref()
        };
        let wish = serde_json::from_slice(text)
            .map_err(|error| Problem::new(ProblemType::MalformedBody, format!("body: {error}")))?;
        Ok(Self(wish))
    }
}
