//! Which librdkafka properties an operator may set: all but those that would break a promise.

/// Properties that belong to the sink, and why.
const OWNED: [(&str, &str); 22] = [
    ("acks", "a delivery is confirmed by all in-sync replicas"),
    (
        "request.required.acks",
        "a delivery is confirmed by all in-sync replicas",
    ),
    (
        "enable.idempotence",
        "retries inside the client must not repeat or reorder records",
    ),
    (
        "enable.gapless.guarantee",
        "one refused record must not stop the others",
    ),
    ("transactional.id", "deliveries are not transactions"),
    (
        "message.timeout.ms",
        "the attempt's timeout decides, see `timeout`",
    ),
    (
        "delivery.timeout.ms",
        "the attempt's timeout decides, see `timeout`",
    ),
    ("retries", "the attempt's timeout decides, see `timeout`"),
    (
        "message.send.max.retries",
        "the attempt's timeout decides, see `timeout`",
    ),
    (
        "max.in.flight",
        "more than five would break the order of retries",
    ),
    (
        "max.in.flight.requests.per.connection",
        "more than five would break the order of retries",
    ),
    (
        "partitioner",
        "keys go to the partitions that Java producers choose",
    ),
    ("bootstrap.servers", "it is set by `bootstrap_servers`"),
    ("metadata.broker.list", "it is set by `bootstrap_servers`"),
    ("compression.type", "it is set by `compression`"),
    ("compression.codec", "it is set by `compression`"),
    (
        "queue.buffering.max.messages",
        "the destination's concurrency bounds the queue",
    ),
    (
        "queue.buffering.max.kbytes",
        "the destination's concurrency bounds the queue",
    ),
    (
        "delivery.report.only.error",
        "every delivery must be reported",
    ),
    ("dr_cb", "every delivery must be reported"),
    ("debug", "client traces can hold secrets and payloads"),
    ("plugin.library.paths", "no foreign code is loaded"),
];

/// Whether a property may be passed through.
///
/// # Errors
/// Says why it may not, as the end of the sentence "property X cannot be set: ...".
pub fn check_property(name: &str) -> Result<(), &'static str> {
    match OWNED.iter().find(|(owned, _)| *owned == name) {
        Some((_, reason)) => Err(reason),
        None if name.starts_with("group.") || name.starts_with("auto.offset") => {
            Err("it belongs to consumers")
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_that_would_break_a_promise_are_refused_with_words() {
        for (name, _) in OWNED {
            assert!(check_property(name).is_err(), "{name}");
        }
        for name in [
            "security.protocol",
            "sasl.password",
            "linger.ms",
            "message.max.bytes",
        ] {
            assert_eq!(check_property(name), Ok(()), "{name}");
        }
    }
}
