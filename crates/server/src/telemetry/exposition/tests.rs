use std::collections::{BTreeMap, BTreeSet};

use wayhold_model::FailureClass;
use wayhold_store::LaneTotals;

use super::*;
use crate::telemetry::report::tests::report;

fn page() -> String {
    let metrics = Arc::new(Metrics::default());
    metrics.events_accepted.inc_by(3);
    let orders = metrics.destination("orders");
    orders.delivered.inc();
    let (refused, gone) = (OutcomeKind::Refused, FailureClass::Gone);
    orders.failed(refused, gone).inc();
    let totals = LaneTotals {
        accepted: 3,
        delivered: 1,
        pending: 1,
        dead: 1,
        ..LaneTotals::default()
    };
    render(&metrics, report(&[("orders", totals)]))
}

#[test]
fn samples_carry_their_values_and_labels() {
    let page = page();
    for line in [
        "wayhold_events_accepted_total 3",
        r#"wayhold_pending_deliveries{destination="orders"} 1"#,
        r#"wayhold_dead_letters{destination="orders",class="invalid"} 1"#,
        r#"wayhold_attempts_total{destination="orders",outcome="delivered",class="none"} 1"#,
        r#"wayhold_attempts_total{destination="orders",outcome="refused",class="gone"} 1"#,
        r#"wayhold_replays{state="running"} 2"#,
        r#"wayhold_destination_state{destination="orders",state="running"} 1"#,
        r#"wayhold_destination_state{destination="orders",state="paused"} 0"#,
        "wayhold_ledger_records 7.0",
        "wayhold_ledger_checkpoint_records 5.0",
        "wayhold_ledger_checkpoint_age_seconds 1.5",
        r#"wayhold_ledger_anchor_records{anchor="notary"} 3.0"#,
        r#"wayhold_ledger_anchor_age_seconds{anchor="notary"} 1.0"#,
        r#"wayhold_ledger_anchor_failures_total{anchor="notary"} 2"#,
        "# TYPE wayhold_sync_duration_seconds histogram",
    ] {
        assert!(
            page.lines().any(|found| found == line),
            "{line}\nis not in\n{page}"
        );
    }
}

/// Names with their label names, as the page shows them.
fn exposed(page: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut families = BTreeMap::new();
    for line in page.lines() {
        if let Some(name) = line.strip_prefix("# TYPE ") {
            let name = name.split(' ').next().unwrap();
            families
                .entry(name.to_owned())
                .or_insert_with(BTreeSet::new);
            continue;
        }
        let Some((sample, _)) = line.rsplit_once(' ').filter(|_| !line.starts_with('#')) else {
            continue;
        };
        let (name, labels) = sample.split_once('{').unwrap_or((sample, ""));
        let family = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|suffix| name.strip_suffix(suffix))
            .filter(|family| families.contains_key(*family))
            .unwrap_or(name);
        let labels = labels
            .trim_end_matches('}')
            .split(',')
            .filter_map(|label| label.split('=').next());
        let names = labels
            .filter(|name| !name.is_empty() && *name != "le")
            .map(str::to_owned);
        families.get_mut(family).expect(family).extend(names);
    }
    families
}

#[test]
fn the_page_and_its_documentation_name_the_same_metrics_and_labels() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
    let text = std::fs::read_to_string(path).unwrap();
    let documented: BTreeMap<_, BTreeSet<_>> = text
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .map(|row| {
            let name = row.split('`').next().unwrap();
            let (name, labels) = name.split_once('{').unwrap_or((name, ""));
            let labels = labels.trim_end_matches('}').split(',').map(str::trim);
            (
                name.to_owned(),
                labels
                    .filter(|l| !l.is_empty())
                    .map(str::to_owned)
                    .collect(),
            )
        })
        .collect();
    assert_eq!(exposed(&page()), documented);
}
