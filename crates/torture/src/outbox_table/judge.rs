//! What became of committed rows, as a pure function: what the database says was committed, when each
//! transaction was under way, and what arrived. Every finding is a broken promise.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use serde_json::Value;

/// One row that the database holds as committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    pub id: String,
    pub transaction: u64,
    /// Which row of its transaction, counted from 0.
    pub nth: u64,
    pub aggregate: String,
    /// How often the aggregate had been locked, where the transaction locked it first.
    pub version: Option<u64>,
}

impl Committed {
    /// The event's data.
    pub fn payload(&self) -> Value {
        payload(self.transaction, self.nth)
    }
}

/// The data of an event.
pub fn payload(transaction: u64, nth: u64) -> Value {
    serde_json::json!({ "transaction": transaction, "nth": nth })
}

/// One event as it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrived {
    pub id: String,
    pub key: String,
    pub data: Value,
}

/// When a transaction was under way, as its client saw it: it was not before it was begun and not after its end
/// was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub begun: Duration,
    /// Nothing where no answer came.
    pub ended: Option<Duration>,
}

/// The order that is promised for one aggregate's events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// None, as where the reader moved between servers.
    Ids,
    /// That of a column that counts up: of transactions that did not overlap, and of those that locked the
    /// aggregate before they wrote.
    Column,
    /// That of transactions' ids, then of events': of transactions that did not overlap.
    Transactions,
    /// That of commits: these transactions, in the order in which the database says that they were committed.
    Commits(Vec<u64>),
}

/// What is known of a run.
#[derive(Debug)]
pub struct Evidence<'a> {
    pub committed: &'a [Committed],
    /// By the transaction's number.
    pub spans: &'a BTreeMap<u64, Span>,
    /// In the order of arrival, repeats included.
    pub arrived: &'a [Arrived],
    pub order: &'a Order,
}

/// What broke, in words; nothing where all held.
pub fn judge(evidence: &Evidence<'_>) -> Vec<String> {
    let by_id: HashMap<&str, &Committed> = evidence
        .committed
        .iter()
        .map(|row| (row.id.as_str(), row))
        .collect();
    let mut findings = Vec::new();
    let mut seen = BTreeSet::new();
    let mut of_aggregates: BTreeMap<&str, Vec<&Committed>> = BTreeMap::new();
    for event in evidence.arrived {
        let Some(row) = by_id.get(event.id.as_str()) else {
            findings.push(format!(
                "{} arrived and was never committed: {}",
                event.id, event.data
            ));
            continue;
        };
        if event.key != row.aggregate || event.data != row.payload() {
            findings.push(format!(
                "{} was altered: key {}, {}",
                event.id, event.key, event.data
            ));
        }
        // Repeats are allowed; the order is that of first appearances.
        if seen.insert(event.id.as_str()) {
            of_aggregates.entry(&row.aggregate).or_default().push(row);
        }
    }
    for row in evidence.committed {
        if !seen.contains(row.id.as_str()) {
            findings.push(format!(
                "{} was committed and never arrived: {row:?}",
                row.id
            ));
        }
    }
    for rows in of_aggregates.values() {
        findings.extend(disorder(rows, evidence));
    }
    findings
}

/// What of one aggregate's events arrived in another order than promised.
fn disorder(rows: &[&Committed], evidence: &Evidence<'_>) -> Vec<String> {
    match evidence.order {
        Order::Ids => Vec::new(),
        Order::Column => [
            by_real_time(rows, evidence.spans),
            within_transactions(rows, |row| row.nth),
            by_lock(rows),
        ]
        .concat(),
        Order::Transactions => [
            by_real_time(rows, evidence.spans),
            within_transactions(rows, |row| row.id.clone()),
        ]
        .concat(),
        Order::Commits(order) => [
            by_commit(rows, order),
            within_transactions(rows, |row| row.nth),
        ]
        .concat(),
    }
}

/// A transaction that ended before another was begun comes first.
fn by_real_time(rows: &[&Committed], spans: &BTreeMap<u64, Span>) -> Vec<String> {
    let mut findings = Vec::new();
    // Of all that came later the one that ended first.
    let mut earliest: Option<(Duration, &Committed)> = None;
    for row in rows.iter().rev() {
        let Some(span) = spans.get(&row.transaction) else {
            continue;
        };
        if let Some((ended, other)) = earliest
            && ended < span.begun
        {
            findings.push(before(row, other, "was begun after the end of"));
        }
        if let Some(ended) = span.ended
            && earliest.is_none_or(|(least, _)| ended < least)
        {
            earliest = Some((ended, row));
        }
    }
    findings
}

/// Who locked first comes first.
fn by_lock(rows: &[&Committed]) -> Vec<String> {
    let locked: Vec<_> = rows.iter().filter(|row| row.version.is_some()).collect();
    let pairs = locked.windows(2).filter_map(|pair| match pair {
        [first, second] if second.version < first.version => {
            Some(before(first, second, "locked the aggregate after"))
        }
        _ => None,
    });
    pairs.collect()
}

/// Who committed first comes first.
fn by_commit(rows: &[&Committed], order: &[u64]) -> Vec<String> {
    let rank: HashMap<u64, usize> = order
        .iter()
        .enumerate()
        .map(|(rank, transaction)| (*transaction, rank))
        .collect();
    let pairs = rows.windows(2).filter_map(|pair| match pair {
        [first, second] if rank.get(&second.transaction) < rank.get(&first.transaction) => {
            Some(before(first, second, "was committed after"))
        }
        _ => None,
    });
    pairs.collect()
}

/// Rows of one transaction come in this order.
fn within_transactions<T: Ord>(rows: &[&Committed], by: impl Fn(&Committed) -> T) -> Vec<String> {
    let mut last: HashMap<u64, &Committed> = HashMap::new();
    let mut findings = Vec::new();
    for row in rows {
        if let Some(earlier) = last.insert(row.transaction, row)
            && by(row) < by(earlier)
        {
            findings.push(before(
                earlier,
                row,
                "is of the same transaction, and later than,",
            ));
        }
    }
    findings
}

fn before(first: &Committed, second: &Committed, why: &str) -> String {
    format!("{first:?} arrived before {second:?}, although it {why} it")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row of aggregate `a`, alone in its transaction.
    fn row(transaction: u64) -> Committed {
        Committed {
            id: format!("id-{transaction}"),
            transaction,
            nth: 0,
            aggregate: "a".to_owned(),
            version: None,
        }
    }

    fn arrived(row: &Committed) -> Arrived {
        Arrived {
            id: row.id.clone(),
            key: row.aggregate.clone(),
            data: row.payload(),
        }
    }

    /// Transactions one after the other, each a second long and a second apart.
    fn one_after_the_other(count: u64) -> BTreeMap<u64, Span> {
        (0..count)
            .map(|number| {
                let begun = Duration::from_secs(2 * number);
                let ended = Some(begun + Duration::from_secs(1));
                (number, Span { begun, ended })
            })
            .collect()
    }

    /// All at once.
    fn overlapping(count: u64) -> BTreeMap<u64, Span> {
        let span = Span {
            begun: Duration::ZERO,
            ended: Some(Duration::from_secs(1)),
        };
        (0..count).map(|number| (number, span)).collect()
    }

    fn found(
        committed: &[Committed],
        arrived: &[Arrived],
        spans: &BTreeMap<u64, Span>,
        order: &Order,
    ) -> Vec<String> {
        judge(&Evidence {
            committed,
            spans,
            arrived,
            order,
        })
    }

    const ORDERS: [Order; 4] = [
        Order::Ids,
        Order::Column,
        Order::Transactions,
        Order::Commits(Vec::new()),
    ];

    #[test]
    fn what_arrived_as_it_was_committed_holds_repeats_included() {
        let rows = [row(0), row(1), row(2)];
        let mut events: Vec<_> = rows.iter().map(arrived).collect();
        events.extend(rows.iter().map(arrived));
        let spans = one_after_the_other(3);
        for order in ORDERS.into_iter().chain([Order::Commits(vec![0, 1, 2])]) {
            assert_eq!(found(&rows, &events, &spans, &order), [""; 0], "{order:?}");
        }
    }

    #[test]
    fn a_gap_a_ghost_and_an_altered_event_are_found_whatever_the_order() {
        let rows = [row(0), row(1)];
        let whole: Vec<_> = rows.iter().map(arrived).collect();
        let ghost = [whole.clone(), vec![arrived(&row(5))]].concat();
        let other_key = Arrived {
            key: "b".to_owned(),
            ..whole[1].clone()
        };
        let other_data = Arrived {
            data: payload(1, 7),
            ..whole[1].clone()
        };
        for order in ORDERS {
            for (events, words) in [
                (whole[..1].to_vec(), "never arrived"),
                (ghost.clone(), "never committed"),
                (vec![whole[0].clone(), other_key.clone()], "altered"),
                (vec![whole[0].clone(), other_data.clone()], "altered"),
            ] {
                let found = found(&rows, &events, &one_after_the_other(2), &order);
                assert_eq!(found.len(), 1, "{found:?}");
                assert!(found[0].contains(words), "{found:?}");
            }
        }
    }

    #[test]
    fn transactions_that_did_not_overlap_keep_their_order() {
        let rows = [row(0), row(1), row(2)];
        // The last one overtakes the first, which is noticed across the one between them.
        let events = [arrived(&rows[2]), arrived(&rows[1]), arrived(&rows[0])];
        for order in [Order::Column, Order::Transactions] {
            let overlapped = found(&rows, &events, &overlapping(3), &order);
            assert_eq!(overlapped, [""; 0]);
            let mut spans = overlapping(3);
            spans.insert(
                2,
                Span {
                    begun: Duration::from_secs(5),
                    ended: None,
                },
            );
            let one = found(&rows, &events, &spans, &order);
            assert_eq!(one.len(), 1, "{one:?}");
            assert!(one[0].contains("begun after the end of"), "{one:?}");
        }
        assert_eq!(
            found(&rows, &events, &one_after_the_other(3), &Order::Ids),
            [""; 0]
        );
    }

    #[test]
    fn of_a_transaction_without_an_answer_nothing_is_said_but_for_when_it_was_begun() {
        let rows = [row(0), row(1)];
        let events = [arrived(&rows[1]), arrived(&rows[0])];
        let mut spans = one_after_the_other(2);
        spans.get_mut(&0).unwrap().ended = None;
        assert_eq!(found(&rows, &events, &spans, &Order::Column), [""; 0]);
    }

    #[test]
    fn who_locked_first_comes_first_where_a_column_counts() {
        let locked = |transaction, version| Committed {
            version: Some(version),
            ..row(transaction)
        };
        let rows = [locked(0, 2), row(1), locked(2, 1)];
        let events: Vec<_> = rows.iter().map(arrived).collect();
        let spans = overlapping(3);
        let one = found(&rows, &events, &spans, &Order::Column);
        assert_eq!(one.len(), 1, "{one:?}");
        assert!(one[0].contains("locked the aggregate after"), "{one:?}");
        assert_eq!(found(&rows, &events, &spans, &Order::Transactions), [""; 0]);
    }

    #[test]
    fn commits_keep_their_order_also_where_they_overlapped() {
        let rows = [row(0), row(1)];
        let events: Vec<_> = rows.iter().map(arrived).collect();
        let one = found(&rows, &events, &overlapping(2), &Order::Commits(vec![1, 0]));
        assert_eq!(one.len(), 1, "{one:?}");
        assert!(one[0].contains("committed after"), "{one:?}");
    }

    #[test]
    fn rows_of_one_transaction_come_as_they_were_written_or_by_their_ids() {
        let nth = |nth: u64, id: &str| Committed {
            nth,
            id: id.to_owned(),
            ..row(0)
        };
        let rows = [nth(1, "a"), nth(0, "b")];
        let events: Vec<_> = rows.iter().map(arrived).collect();
        let spans = overlapping(1);
        for (order, holds) in [
            (Order::Ids, true),
            (Order::Column, false),
            (Order::Commits(vec![0]), false),
            (Order::Transactions, true),
        ] {
            let found = found(&rows, &events, &spans, &order);
            assert_eq!(found.is_empty(), holds, "{order:?}: {found:?}");
        }
    }

    #[test]
    fn aggregates_are_judged_apart() {
        let other = Committed {
            aggregate: "b".to_owned(),
            ..row(0)
        };
        let rows = [row(1), other];
        let events: Vec<_> = rows.iter().map(arrived).collect();
        let spans = one_after_the_other(2);
        assert_eq!(found(&rows, &events, &spans, &Order::Column), [""; 0]);
    }
}
