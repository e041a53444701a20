//! `wayhold config diff` and `reload`: what a running server's file says that is not in force, and following it.

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use serde_json::{Value, json};

use crate::cli::client::{Client, ServerArguments, refusal};
use crate::cli::exit::{Exit, Failure};
use crate::cli::output::{Output, cell};

/// Problem types that mean: the configuration cannot be followed as it is written.
const UNFIT: [&str; 2] = [
    "/problems/invalid-configuration",
    "/problems/restart-needed",
];

/// Shows what a reload would change.
pub(super) async fn diff(server: &ServerArguments, output: &mut Output) -> Result<(), Failure> {
    let answer = ask(server, Method::GET, "/v1/config/diff", output).await?;
    output.json(&answer);
    show(&answer, "nothing: the file says what is in force", output);
    Ok(())
}

/// Has the server follow its file, and shows what that changed.
pub(super) async fn reload(server: &ServerArguments, output: &mut Output) -> Result<(), Failure> {
    let answer = ask(server, Method::POST, "/v1/config/reload", output).await?;
    output.json(&answer);
    show(
        &answer,
        "nothing changed: the file says what was in force",
        output,
    );
    Ok(())
}

async fn ask(
    server: &ServerArguments,
    method: Method,
    path: &'static str,
    output: &mut Output,
) -> Result<Value, Failure> {
    let mut request = Request::new(Full::new(Bytes::new()));
    *request.method_mut() = method;
    *request.uri_mut() = http::Uri::from_static(path);
    let answer = Client::new(server)?.request(request).await?;
    let body: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
    if answer.status().is_success() {
        return Ok(body);
    }
    let failure = refusal(answer.status(), answer.body());
    let kind = body.get("type").and_then(Value::as_str).unwrap_or_default();
    if !UNFIT.contains(&kind) {
        return Err(failure);
    }
    let list = |name: &str| {
        body.get(name)
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default()
    };
    let (problems, changes) = (list("problems"), list("changes"));
    output.json(&json!({ "problems": problems, "changes": changes }));
    let mut message = failure.message;
    for line in problems
        .iter()
        .map(problem)
        .chain(changes.iter().map(change))
    {
        message.push('\n');
        message.push_str(&line);
    }
    Err(Failure::new(Exit::Usage, message))
}

fn show(answer: &Value, nothing: &str, output: &mut Output) {
    let changes = answer.get("changes").and_then(Value::as_array);
    let changes = changes.map(Vec::as_slice).unwrap_or_default();
    if changes.is_empty() {
        output.line(nothing);
    }
    for one in changes {
        output.line(change(one));
    }
}

/// One problem, as `config check` writes it.
fn problem(problem: &Value) -> String {
    let text = |field: &str| problem.get(field).and_then(Value::as_str);
    let place = text("at").map(|at| format!("{at}: ")).unwrap_or_default();
    let line = format!(
        "{place}{}: {}",
        cell(problem, "key"),
        cell(problem, "message")
    );
    match text("add") {
        Some(add) => format!("{line}\n  add: {add}"),
        None => line,
    }
}

/// `limits.body_bytes: "1 MiB" -> "2 MiB" (applied)`.
fn change(change: &Value) -> String {
    let value = |field: &str| match change.get(field) {
        None | Some(Value::Null) => "unset".to_owned(),
        Some(value) => value.to_string(),
    };
    let (path, effect) = (cell(change, "path"), cell(change, "effect"));
    match change.get("content").and_then(Value::as_bool) {
        Some(true) => format!("{path}: {} with another content ({effect})", value("to")),
        _ => format!("{path}: {} -> {} ({effect})", value("from"), value("to")),
    }
}
