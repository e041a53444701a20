//! The page of each problem type: what it means and what to do, served under the address that error
//! answers carry; and the answers for what is not served at all.

use axum::Router;
use axum::extract::Path;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use http::{Method, Uri};

use super::problem::{Problem, ProblemType};

/// Routes of the pages.
pub fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new()
        .route("/problems", get(index))
        .route("/problems/{name}", get(page))
}

/// Answers what `router` does not serve with problems.
pub fn unserved<S: Clone + Send + Sync + 'static>(router: Router<S>) -> Router<S> {
    router
        .fallback(unknown)
        .method_not_allowed_fallback(not_allowed)
}

async fn unknown(uri: Uri) -> Problem {
    Problem::new(
        ProblemType::NotFound,
        format!("nothing is served at {}", uri.path()),
    )
}

async fn not_allowed(method: Method, uri: Uri) -> Problem {
    Problem::new(
        ProblemType::MethodNotAllowed,
        format!("{method} is not for {}", uri.path()),
    )
}

/// What to do about a problem of this type.
#[expect(clippy::too_many_lines, reason = "one text for each type")]
fn advice(kind: ProblemType) -> &'static str {
    match kind {
        ProblemType::InvalidRequest => {
            "A header or query parameter is wrong; field names it and detail says what was expected. \
             Correct the request; sending it again as it is gives the same answer."
        }
        ProblemType::MalformedBody => {
            "The body does not parse. offset counts bytes from 0, in the body or in the line of a \
             stream. Nothing of a single event or a batch was stored."
        }
        ProblemType::InvalidEvent => {
            "An attribute is missing, is given twice, is too long, or breaks a rule of CloudEvents 1.0; \
             field names it, and index the event of a batch. Producers with upper-case attribute names \
             are accepted with ingest.mode = \"lenient\"."
        }
        ProblemType::TooLarge => {
            "limit is the limit that was exceeded; the table [limits] of the configuration sets it. \
             Send smaller batches, or a stream of lines, which may be larger. Compressed bodies are \
             measured expanded."
        }
        ProblemType::UnsupportedMedia => {
            "Understood are CloudEvents in binary mode (any data), structured and batch mode (JSON), \
             NDJSON, and plain JSON; bodies may be gzip, once."
        }
        ProblemType::NoRoute => {
            "routes lists the routes that were tried; none matches this event. Add a route, or set \
             ingest.unmatched to \"keep\" or \"ignore\"."
        }
        ProblemType::RouteFailed => {
            "The condition of the named route or key rule has no answer for this event, for instance \
             because it compares a text with a number. Correct the condition in the configuration."
        }
        ProblemType::EventConflict => {
            "The same source and id was accepted before with another type, subject, key, content type, \
             schema or data; position names the first. Nothing was stored. Give different events \
             different ids."
        }
        ProblemType::InvalidCommand => {
            "No kind of that name is configured, or the arguments do not fit its JSON Schema; errors names \
             each place. Nothing was kept, and the same Idempotency-Key may be used again."
        }
        ProblemType::KeyReused => {
            "A key names one request: it came before with another body. Use a new key for a new command, and \
             the old one only to hear the first answer again."
        }
        ProblemType::StateConflict => {
            "What was asked does not fit the present state; detail says what that is. Look at it again \
             before trying once more."
        }
        ProblemType::Unauthenticated => {
            "Send a token as Authorization: Bearer wh_... Tokens are made with wayhold tokens create; \
             a revoked token does not come back."
        }
        ProblemType::Forbidden => {
            "The request was understood and its sender may not do this; role names the role that is \
             needed. Requests without a token are taken only from this machine itself, not on behalf \
             of web pages."
        }
        ProblemType::TooManyFailures => {
            "Too many unknown tokens came from this address. Wait as long as Retry-After says, and \
             correct the token."
        }
        ProblemType::Busy => {
            "More is waiting to be stored than the queue may hold. Send again after Retry-After; \
             events with ids are safe to send again."
        }
        ProblemType::BacklogFull | ProblemType::DestinationFull => {
            "More is waiting to be delivered than a limit allows: limit says which, destination whose. Nothing \
             was stored. Send again after Retry-After, which is how long the backlog needs to drain at its \
             present rate; events with ids are safe to send again. Events that go elsewhere than to a full \
             destination are accepted."
        }
        ProblemType::InvalidConfiguration => {
            "The configuration file, or a file that it refers to, is wrong: problems lists each place with what \
             was expected. Nothing has changed; the server goes on with the configuration that was in force. \
             Correct the file and reload again."
        }
        ProblemType::RestartNeeded => {
            "changes lists what only a restart can change. Nothing has changed, not even what could have been. \
             Take these changes back and reload again, or restart the server."
        }
        ProblemType::NoSpace => {
            "Less disk space is free than store.min_free asks for. Deliveries go on and free space; \
             make room or wait, and send again after Retry-After."
        }
        ProblemType::Unavailable => {
            "The store cannot make events durable right now, and does not pretend to. It mends itself \
             where it can; /readyz says what is wrong. Send again after Retry-After. Where the answer has \
             receipts, some events of the batch are stored and listed with their receipts; send the \
             whole batch again, and only the others, null there, are stored."
        }
        ProblemType::Stopping => {
            "The server is stopping or restarting. Events that were acknowledged are safe; send the \
             others again after Retry-After."
        }
        ProblemType::NotFound => {
            "Nothing has this address, name or number. Events can be looked up by position, or by \
             source and id."
        }
        ProblemType::MethodNotAllowed => "The address exists; the Allow header lists its methods.",
        ProblemType::Internal => {
            "A fault of the server, which its log describes. Whether events of the request were stored \
             is not known; sending events with ids again is safe."
        }
    }
}

async fn page(Path(name): Path<String>) -> Response {
    let Some(kind) = ProblemType::from_name(&name) else {
        return Problem::new(
            ProblemType::NotFound,
            "there is no problem type of this name",
        )
        .into_response();
    };
    let (title, status, advice) = (kind.title(), kind.status(), escaped(advice(kind)));
    Html(format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title>\
         <h1>{title}</h1><p>{status}</p><p>{advice}</p><p><a href=\"/problems\">All problems</a></p>"
    ))
    .into_response()
}

async fn index() -> Html<String> {
    let items: String = ProblemType::ALL
        .iter()
        .map(|kind| {
            let name = kind.name();
            format!(
                "<li><a href=\"/problems/{name}\">{name}</a>: {}</li>",
                kind.title()
            )
        })
        .collect();
    Html(format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Problems</title>\
         <h1>Problems</h1><ul>{items}</ul>"
    ))
}

/// Our own texts, but they speak of JSON.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_found_by_its_name_and_says_what_to_do() {
        for kind in ProblemType::ALL {
            assert_eq!(ProblemType::from_name(kind.name()), Some(kind));
            assert!(advice(kind).len() > 40, "{}", kind.name());
        }
    }
}
