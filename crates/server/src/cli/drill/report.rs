//! What a drill found: one object, the same for every kind, and whether a promise broke.

use serde::Serialize;

use super::super::exit::{Exit, Failure};
use super::super::output::Output;

/// The object. What a drill cannot tell is `null`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Events that were acknowledged.
    pub accepted: u64,
    /// Events that were refused with 429 or 503 and not sent again.
    pub refused: u64,
    /// Of those accepted, arrived at least once.
    pub delivered: u64,
    /// Arrivals beyond the first of an event.
    pub repeated: u64,
    /// Accepted and not arrived when all was well again.
    pub lost: Option<u64>,
    /// Arrived for the first time after a later event of their key.
    pub reordered: Option<u64>,
    /// 99 of 100 events were acknowledged within so many milliseconds before the outage.
    pub p99_before_ms: Option<f64>,
    /// During it.
    pub p99_during_ms: Option<f64>,
    /// After it.
    pub p99_after_ms: Option<f64>,
    /// Deliveries a second from the first after the return until the backlog was gone.
    pub drain_per_s: Option<f64>,
    /// The most that the data directory occupied.
    pub disk_peak_bytes: u64,
}

/// The object and everything else that has to hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// What is printed.
    pub figures: Figures,
    /// Words for promises that broke otherwise than by loss or order.
    pub broken: Vec<String>,
}

impl Report {
    /// Prints the object.
    ///
    /// # Errors
    /// When a promise broke.
    pub fn print(&self, output: &mut Output) -> Result<(), Failure> {
        let object = serde_json::to_value(&self.figures).unwrap_or_default();
        output.json(&object);
        output.fields(&object);
        let broken = self.broken();
        if broken.is_empty() {
            output.note("no promise broke");
            Ok(())
        } else {
            Err(Failure::new(Exit::Failed, broken.join("\n")))
        }
    }

    fn broken(&self) -> Vec<String> {
        let Figures {
            lost, reordered, ..
        } = self.figures;
        let mut broken = Vec::new();
        if let Some(lost) = lost.filter(|lost| *lost > 0) {
            broken.push(format!(
                "a promise broke: {lost} acknowledged events are lost"
            ));
        }
        if let Some(reordered) = reordered.filter(|reordered| *reordered > 0) {
            broken.push(format!(
                "a promise broke: {reordered} events arrived after a later one of their key"
            ));
        }
        let others = self.broken.iter();
        broken.extend(others.map(|words| format!("a promise broke: {words}")));
        broken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_broken_promise_fails_the_drill_and_is_named() {
        let well = Report::default();
        assert_eq!(well.print(&mut Output::new(true)), Ok(()));
        let figures = |lost, reordered| Figures {
            lost,
            reordered,
            ..Figures::default()
        };
        let of = |figures, broken| Report { figures, broken };
        for (report, words) in [
            (
                of(figures(Some(3), Some(0)), vec![]),
                "3 acknowledged events are lost",
            ),
            (
                of(figures(Some(0), Some(2)), vec![]),
                "2 events arrived after",
            ),
            (
                of(figures(None, None), vec!["books".to_owned()]),
                "broke: books",
            ),
        ] {
            let failure = report.print(&mut Output::new(true)).unwrap_err();
            assert_eq!(failure.exit, Exit::Failed);
            assert!(failure.message.contains(words), "{failure:?}");
        }
    }

    #[test]
    fn the_object_has_its_fields_in_their_order() {
        let object = serde_json::to_string(&Figures::default()).unwrap();
        let names = [
            "accepted",
            "refused",
            "delivered",
            "repeated",
            "lost",
            "reordered",
            "p99_before_ms",
            "p99_during_ms",
            "p99_after_ms",
            "drain_per_s",
            "disk_peak_bytes",
        ];
        let at = names.map(|name| object.find(&format!("\"{name}\":")).unwrap());
        assert!(at.is_sorted(), "{object}");
    }
}
