//! `--evidence`: one page about a command, which the server makes from the ledger.

use bytes::Bytes;
use http::Request;
use http_body_util::Full;

use super::client::{Client, path, with_query};
use super::exit::{Exit, Failure};
use super::output::Output;

/// Prints the page about a command: as text, as HTML, or with `--json` as JSON.
///
/// # Errors
/// When no server answers, or it knows no such command.
pub async fn show(
    client: &mut Client,
    command: &str,
    as_html: bool,
    output: &mut Output,
) -> Result<(), Failure> {
    let path = path(["v1", "commands", command, "evidence"]);
    // Asked for as JSON first: a refusal then has its own words, and its own exit code.
    let page = client.get(&path).await?;
    if output.is_json() {
        output.json(&page);
        return Ok(());
    }
    let format = if as_html { "html" } else { "text" };
    let mut request = Request::new(Full::new(Bytes::new()));
    *request.uri_mut() = with_query(path, &[("format", format)])
        .parse()
        .map_err(|_| Failure::usage(format!("{command}: not the id of a command")))?;
    let answer = client.request(request).await?;
    if !answer.status().is_success() {
        let words = format!("the server answered {}", answer.status());
        return Err(Failure::new(Exit::Failed, words));
    }
    for line in String::from_utf8_lossy(answer.body()).lines() {
        output.line(line);
    }
    Ok(())
}
