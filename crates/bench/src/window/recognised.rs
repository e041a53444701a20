//! Sends ids again that the window was filled with.

use std::net::SocketAddr;

use wayhold_model::Event;

use crate::BenchError;
use crate::run::control::send;
use crate::serve::wayhold::prefill;

/// Sends `count` of the ids of a window again, evenly from those numbered `from` to before `end`; how many
/// were recognised.
///
/// # Errors
/// The server does not answer, or with anything but a receipt.
pub fn send_again(
    server: SocketAddr,
    (from, end): (u64, u64),
    count: u64,
) -> Result<u64, BenchError> {
    let prefill = prefill(end);
    let mut recognised = 0;
    for step in 0..count {
        let event = prefill.event(from + (end - from) * step / count.max(1))?;
        let answer = send(server, &envelope(&event))?;
        recognised += u64::from(answer.contains("\"duplicate\":true"));
    }
    Ok(recognised)
}

fn envelope(event: &Event) -> String {
    serde_json::json!({
        "specversion": "1.0",
        "id": event.id(),
        "source": event.source(),
        "type": event.kind(),
        "partitionkey": event.key(),
    })
    .to_string()
}
