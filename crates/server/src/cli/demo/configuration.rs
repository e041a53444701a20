//! The demo's configuration, which a person may go on with afterwards.

/// The text, for a server that listens on `listen` and a webhook at `receiver`.
pub fn configuration(listen: &str, receiver: &str) -> String {
    format!(
        r#"# Written by `wayhold demo`. Paths are relative to this file; everything not said here is a default,
# which `wayhold config show --config wayhold.toml` names.
data = "data"
listen = ["{listen}"]

# The first destination: one CloudEvent per line.
[destinations.archive]
kind = "file"
path = "archive.ndjson"

# The second: a customer portal. In the demo it fails and is slow; afterwards nobody listens there,
# so events wait for it until somebody does.
[destinations.portal]
kind = "webhook"
url = "{receiver}"
allow_networks = ["127.0.0.0/8"]
timeout = "5s"
on_failure = "block"

# Short waits, so that the demo does not take all day.
[destinations.portal.retry]
base = "200ms"
cap = "2s"

[destinations.portal.breaker]
open = "500ms"
open_max = "2s"

[[routes]]
to = ["archive", "portal"]
"#
    )
}
