//! How the attempts at a destination ended, as the server counts them.

use std::collections::BTreeMap;

use super::support::http;
use super::support::server::Server;

/// Attempts that were no delivery, by outcome and class.
#[derive(Debug, Default)]
pub(crate) struct Failures(BTreeMap<(String, String), u64>);

impl Failures {
    /// Those of the server's run so far.
    pub(crate) fn of(server: &Server, destination: &str) -> Self {
        let answer = http::ask(&server.metrics, "GET", "/metrics", &[], b"").unwrap();
        Self::read(&answer.text(), destination)
    }

    fn read(exposition: &str, destination: &str) -> Self {
        let prefix = format!(r#"wayhold_attempts_total{{destination="{destination}",outcome=""#);
        let samples = exposition
            .lines()
            .filter_map(|line| line.strip_prefix(&prefix));
        let mut failures = BTreeMap::new();
        for sample in samples {
            let (outcome, rest) = sample.split_once(r#"",class=""#).unwrap();
            let (class, count) = rest.split_once(r#""} "#).unwrap();
            let count = count.parse().unwrap();
            if outcome != "delivered" && count > 0 {
                failures.insert((outcome.to_owned(), class.to_owned()), count);
            }
        }
        Self(failures)
    }

    /// How many there were.
    pub(crate) fn count(&self) -> u64 {
        self.0.values().sum()
    }

    /// Those that may have written something: each allows one repeat.
    pub(crate) fn unknown(&self) -> u64 {
        self.of_outcome("unknown")
    }

    /// Those that gave an event up.
    pub(crate) fn refused(&self) -> u64 {
        self.of_outcome("refused")
    }

    fn of_outcome(&self, wanted: &str) -> u64 {
        let those = self.0.iter().filter(|((outcome, _), _)| outcome == wanted);
        those.map(|(_, count)| count).sum()
    }
}

#[test]
fn attempts_are_read_from_the_exposition() {
    let exposition = r#"
wayhold_attempts_total{destination="a",outcome="delivered",class="none"} 9
wayhold_attempts_total{destination="a",outcome="unknown",class="timeout"} 2
wayhold_attempts_total{destination="a",outcome="refused",class="invalid"} 0
wayhold_attempts_total{destination="b",outcome="unknown",class="timeout"} 5
"#;
    let failures = Failures::read(exposition, "a");
    assert_eq!(
        (failures.count(), failures.unknown(), failures.refused()),
        (2, 2, 0)
    );
}
