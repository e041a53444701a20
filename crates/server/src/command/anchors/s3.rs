//! A bucket of S3, or of a server that speaks like it, as a second place. Each request carries its signature in its
//! address, so the address is a secret and stands in no message.

use std::time::Duration;

use reqwest::{Client, Response, StatusCode};
use rusty_s3::{Bucket, Credentials, S3Action as _};

use crate::config::S3Place;

/// How long a signature counts: a slow answer and clocks that are a little apart.
const SIGNED_FOR: Duration = Duration::from_secs(300);

/// What is read of an answer that refuses, to find its code.
const ANSWER_BYTES_MAX: usize = 16 * 1_024;

/// Longest code that is told on.
const CODE_BYTES_MAX: usize = 64;

const CONTENT_TYPE: &str = "text/plain; charset=utf-8";

/// A bucket and who may put into it.
pub(super) struct S3 {
    bucket: Bucket,
    prefix: String,
    credentials: Credentials,
}

impl S3 {
    pub(super) fn new(config: &S3Place) -> Self {
        let (key, secret) = (
            config.access_key_id.expose(),
            config.secret_access_key.expose(),
        );
        Self {
            bucket: config.bucket.clone(),
            prefix: config.prefix.clone(),
            credentials: match &config.session_token {
                Some(token) => Credentials::new_with_token(key, secret, token.expose()),
                None => Credentials::new(key, secret),
            },
        }
    }

    /// Puts an object there, unless there is one. One that is there already and says something else is left as it is:
    /// that is what a second place is for.
    ///
    /// # Errors
    /// Why it is not there, in words.
    pub(super) async fn put(&self, client: &Client, name: &str, text: &str) -> Result<(), String> {
        let name = format!("{}{name}", self.prefix);
        let mut put = self.bucket.put_object(Some(&self.credentials), &name);
        let headers = [("if-none-match", "*"), ("content-type", CONTENT_TYPE)];
        for (header, value) in headers {
            put.headers_mut().insert(header, value);
        }
        let mut request = client.put(put.sign(SIGNED_FOR)).body(text.to_owned());
        for (header, value) in headers {
            request = request.header(header, value);
        }
        let answer = request.send().await.map_err(words)?;
        match answer.status() {
            status if status.is_success() => Ok(()),
            StatusCode::PRECONDITION_FAILED => self.compare(client, &name, text).await,
            _ => Err(refusal(answer).await),
        }
    }

    /// Whether the object that is there says the same: it may be ours, from a try whose answer was lost.
    async fn compare(&self, client: &Client, name: &str, text: &str) -> Result<(), String> {
        let get = self.bucket.get_object(Some(&self.credentials), name);
        let answer = client.get(get.sign(SIGNED_FOR)).send().await;
        let answer = answer.map_err(words)?;
        if !answer.status().is_success() {
            let refusal = refusal(answer).await;
            return Err(format!(
                "{name}: there is one already, and reading it failed: {refusal}"
            ));
        }
        match read(answer, text.len() + 1).await? == text.as_bytes() {
            true => Ok(()),
            false => Err(super::of_another_history(name)),
        }
    }
}

/// What went wrong on the way.
fn words(error: reqwest::Error) -> String {
    error.without_url().to_string()
}

/// What an answer that refuses says: its status, and the code that S3 gives in XML.
async fn refusal(answer: Response) -> String {
    let status = answer.status();
    let body = read(answer, ANSWER_BYTES_MAX).await.unwrap_or_default();
    let body = String::from_utf8_lossy(&body);
    let code = body
        .split_once("<Code>")
        .and_then(|(_, rest)| rest.split_once("</Code>"));
    match code {
        Some((code, _)) if is_code(code) => format!("it answered {status}: {code}"),
        _ => format!("it answered {status}"),
    }
}

fn is_code(code: &str) -> bool {
    code.len() <= CODE_BYTES_MAX && code.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// At most so many bytes of an answer.
async fn read(mut answer: Response, max: usize) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    while bytes.len() < max
        && let Some(chunk) = answer.chunk().await.map_err(words)?
    {
        bytes.extend_from_slice(&chunk);
    }
    bytes.truncate(max);
    Ok(bytes)
}
