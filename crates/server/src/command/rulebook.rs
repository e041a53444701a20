//! The rulebook of a configuration: what the gate goes by.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use wayhold_model::approval::{Digest, Limit};

use super::gate::Rulebook;
use crate::config::{Config, ShownValue};

/// Keys of a destination that say where its events go and as what. A change of any of them asks waiting approvals
/// again: whoever approved saw another target. Pace, retries and credentials do not.
const TARGET: [&str; 8] = [
    "kind",
    "url",
    "path",
    "method",
    "body",
    "mode",
    "topic",
    "bootstrap_servers",
];

impl Rulebook {
    /// The rulebook of a configuration and its values as they are shown.
    pub fn of(config: &Config, values: &[ShownValue]) -> Self {
        let approving = &config.approving;
        Self {
            policies_digest: approving.policies.digest(),
            policies: approving.policies.clone(),
            limits: limits_of(config),
            announces: approving.requests_to.is_some(),
            kinds: config
                .commands
                .iter()
                .map(|kind| (kind.name.clone(), (kind.risk, kind.reversibility)))
                .collect(),
            destinations: targets(values),
        }
    }
}

/// Limits of all commands, then those of single kinds.
fn limits_of(config: &Config) -> Vec<Limit> {
    let kinds = config.commands.iter();
    let of_kinds = kinds.filter_map(|kind| kind.limits.clone());
    config
        .approving
        .limits
        .iter()
        .cloned()
        .chain(of_kinds)
        .collect()
}

fn targets(values: &[ShownValue]) -> BTreeMap<String, Digest> {
    let mut targets: BTreeMap<String, Map<String, Value>> = BTreeMap::new();
    for value in values {
        let below = value.key.strip_prefix("destinations.");
        let Some((name, key)) = below.and_then(|below| below.split_once('.')) else {
            continue;
        };
        if TARGET.contains(&key) {
            let target = targets.entry(name.to_owned()).or_default();
            target.insert(key.to_owned(), value.value.clone());
        }
    }
    let digest = |(name, target)| (name, Digest::of_json(&Value::Object(target)));
    targets.into_iter().map(digest).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::Origin;

    fn value(key: &str, value: Value) -> ShownValue {
        ShownValue {
            key: key.to_owned(),
            value,
            origin: Origin::Default,
            content: None,
        }
    }

    #[test]
    fn a_destination_is_another_one_when_it_goes_elsewhere() {
        let of = |url: &str, rate: &str| {
            targets(&[
                value("destinations.erp.url", json!(url)),
                value("destinations.erp.rate", json!(rate)),
                value("destinations.other.url", json!("https://other")),
                value("listen", json!([])),
            ])
        };
        let one = of("https://a", "5/s");
        assert_eq!(one.keys().collect::<Vec<_>>(), ["erp", "other"]);
        assert_eq!(one, of("https://a", "9/s"));
        let other = of("https://b", "5/s");
        assert_ne!(one["erp"], other["erp"]);
        assert_eq!(one["other"], other["other"]);
    }
}
