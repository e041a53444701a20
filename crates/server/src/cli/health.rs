//! `wayhold health`: whether the server can durably accept events, and what is degraded.

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::Value;

use super::client::{Client, ServerArguments};
use super::exit::{Exit, Failure};
use super::output::Output;

/// Say whether the server can durably accept events; exit code 1 when it cannot.
#[derive(Debug, clap::Args)]
pub struct Health {
    #[command(flatten)]
    server: ServerArguments,
}

impl Health {
    /// Asks `/readyz`, which needs no token.
    ///
    /// # Errors
    /// When no server answers, or it is not ready.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let mut client = Client::new(&self.server)?;
        let mut request = Request::new(Full::new(Bytes::new()));
        *request.uri_mut() = http::Uri::from_static("/readyz");
        let answer = client.request(request).await?;
        let body: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
        output.json(&body);
        let degraded = body
            .get("degraded")
            .and_then(Value::as_array)
            .map_or(&[][..], Vec::as_slice);
        if answer.status().is_success() {
            output.line("ready");
        }
        for finding in degraded.iter().filter_map(Value::as_str) {
            output.line(format!("degraded: {finding}"));
        }
        if answer.status().is_success() {
            return Ok(());
        }
        let reason = body
            .get("reason")
            .and_then(Value::as_str)
            .unwrap_or("it does not say why");
        Err(Failure::new(Exit::Failed, format!("not ready: {reason}")))
    }
}
