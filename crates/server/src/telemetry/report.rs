//! What an operator sees of the whole server at one moment: gathered in one place, shown by
//! `/v1/status`, `/readyz` and `/metrics`. Values only; making the report is `App`'s business.

use std::sync::Arc;
use std::time::Duration;

use wayhold_model::Timestamp;
use wayhold_store::catalog::ReplayState;
use wayhold_store::commands::Counts;
use wayhold_store::{Figures, GenerationFigures, Health, Recovery};

use super::accounting::Accounting;
use crate::auth::Openness;
use crate::command::anchors::AnchorState;
use crate::command::counted::DecisionsReport;
use crate::command::standing::Standing;
use crate::dispatch::{LaneSnapshot, LaneState};
use crate::ingest::LimitReport;
use crate::source::SourceReport;

/// The server at one moment.
#[derive(Clone, Debug)]
pub struct Report {
    /// When it was made.
    pub at: Timestamp,
    /// When the process began to serve.
    pub started_at: Timestamp,
    /// Name of the data directory's node.
    pub node: String,
    /// Whether requests are taken without tokens although the listener is public.
    pub no_auth: bool,
    /// Since when the configuration that is in force is.
    pub config_since: Timestamp,
    /// Whether events can be accepted, and what is not as it should be.
    pub readiness: Readiness,
    /// How the limits on backlogs stand.
    pub limits: Vec<LimitReport>,
    /// Sizes and counts of the store.
    pub figures: Figures,
    /// Every generation of shards that has files, oldest first.
    pub generations: Vec<GenerationFigures>,
    /// What opening the store found.
    pub recovery: Arc<Recovery>,
    /// Every destination that is configured or still owed something, by name.
    pub destinations: Vec<DestinationReport>,
    /// Tables that are read, by name.
    pub sources: Vec<SourceReport>,
    /// Replays that have not ended, by their state.
    pub replays: Vec<(ReplayState, u64)>,
    /// Commands by state; `None` where there never were any.
    pub commands: Option<Counts>,
    /// How the ledger stands; `None` where there never were any commands.
    pub ledger: Option<Standing>,
    /// How its second places are, by name.
    pub anchors: Vec<AnchorState>,
    /// How requests for approval ended.
    pub decisions: DecisionsReport,
    /// What targets said when they were asked, by kind and result.
    pub reconciled: Vec<((String, &'static str), u64)>,
}

/// One destination at one moment.
#[derive(Clone, Debug)]
pub struct DestinationReport {
    /// What speaks to it; `None` once it left the configuration.
    pub kind: Option<&'static str>,
    /// Who set its state, where a person did.
    pub by: Option<String>,
    /// Its counts.
    pub accounting: Accounting,
    /// Dead letters that are not under redrive, by class.
    pub dead_letters: Vec<(String, u64)>,
    /// Its lane.
    pub lane: LaneSnapshot,
}

impl DestinationReport {
    /// Age at `now` of its oldest pending event, where the lane knows it.
    pub fn oldest_pending_age(&self, now: Timestamp) -> Option<Duration> {
        self.lane
            .oldest_accepted
            .map(|accepted| now.since(accepted))
    }
}

/// Whether events can be durably accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readiness {
    /// Why not, where that is so.
    pub unready: Option<String>,
    /// What a person should know although events are accepted. Names neither keys nor payloads.
    pub degraded: Vec<String>,
}

impl Readiness {
    /// Decides from the store's health and how the server runs. A destination that is away makes the
    /// server degraded, never unready: holding events meanwhile is what it is for.
    pub fn decide(
        health: Health,
        stopping: bool,
        openness: Openness,
        lanes: &[LaneSnapshot],
    ) -> Self {
        let unready = if stopping {
            Some("the server is stopping".to_owned())
        } else {
            health.unavailable
        };
        let mut degraded = health.degraded;
        if openness == Openness::Open {
            degraded.push("--no-auth: every request is taken without a token".to_owned());
        }
        let held = lanes.iter().filter(|lane| lane.state != LaneState::Running);
        degraded.extend(held.map(|lane| {
            format!(
                "destination {} is {} since {}",
                lane.name,
                lane.state.name(),
                lane.since
            )
        }));
        Self { unready, degraded }
    }
}

impl Report {
    /// Whether every destination's identity holds; `None` where counts were in motion and none is
    /// known to be broken.
    pub fn accounting_holds(&self) -> Option<bool> {
        let verdicts: Vec<_> = self
            .destinations
            .iter()
            .map(|destination| destination.accounting.holds())
            .collect();
        if verdicts.contains(&Some(false)) {
            Some(false)
        } else if verdicts.contains(&None) {
            None
        } else {
            Some(true)
        }
    }

    /// Age of the oldest pending event, as far as the lanes know it, else of the oldest segment that
    /// holds one.
    pub fn oldest_pending_age(&self) -> Duration {
        let pending: Vec<_> = self
            .destinations
            .iter()
            .filter(|destination| destination.accounting.totals.pending > 0)
            .collect();
        let known = pending
            .iter()
            .filter_map(|destination| destination.oldest_pending_age(self.at))
            .max();
        let bound = self
            .figures
            .oldest_unresolved
            .filter(|_| !pending.is_empty());
        known.or(bound).unwrap_or_default()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use wayhold_model::DestinationId;
    use wayhold_model::admission::{Measure, OnLimit};
    use wayhold_store::LaneTotals;

    use super::*;
    use crate::command::counted::Decisions;
    use crate::command::standing::Signed;
    use crate::config::Mode;
    use crate::source::outbox_table::{Lag, Snapshot};

    pub(crate) fn lane(name: &str, state: LaneState) -> LaneSnapshot {
        LaneSnapshot {
            destination: DestinationId(1),
            name: name.to_owned(),
            state,
            reason: None,
            since: Timestamp::EPOCH,
            in_flight: 0,
            retries: 0,
            last_error: None,
            next_attempt: None,
            oldest: None,
            oldest_accepted: None,
            blocked_keys: 0,
            blocked: Vec::new(),
            repeats: 0,
            repeats_possible: 0,
        }
    }

    pub(crate) fn report(destinations: &[(&str, LaneTotals)]) -> Report {
        Report {
            at: Timestamp::from_micros(2_000_000),
            started_at: Timestamp::from_micros(1_000_000),
            node: "node".to_owned(),
            no_auth: false,
            config_since: Timestamp::EPOCH,
            readiness: Readiness {
                unready: None,
                degraded: Vec::new(),
            },
            limits: [None, Some("orders")]
                .map(|destination| LimitReport {
                    destination: destination.map(str::to_owned),
                    measure: Measure::Events,
                    used: 1,
                    limit: 2,
                    on_limit: OnLimit::Refuse,
                    since: None,
                })
                .to_vec(),
            figures: Figures::default(),
            generations: Vec::new(),
            recovery: Arc::default(),
            sources: vec![SourceReport {
                name: "erp".to_owned(),
                database: "postgres",
                table: "outboxevent".to_owned(),
                mode: Mode::Poll,
                snapshot: Snapshot {
                    lag: Some(Lag {
                        log_bytes: Some(0),
                        ..Lag::default()
                    }),
                    ..Snapshot::beginning(Timestamp::EPOCH)
                },
            }],
            replays: vec![(ReplayState::Running, 2), (ReplayState::Paused, 0)],
            commands: Some(Counts::default()),
            ledger: Some(Standing {
                records: 7,
                bytes: 4_096,
                signed: Some(Signed {
                    size: 5,
                    at: Timestamp::from_micros(500_000),
                }),
            }),
            anchors: vec![AnchorState {
                name: "notary".to_owned(),
                size: Some(3),
                at: Some(Timestamp::from_micros(1_000_000)),
                failures: 2,
                failure: None,
            }],
            decisions: Decisions::default().report(),
            reconciled: vec![(("refund".to_owned(), "confirmed"), 2)],
            destinations: destinations
                .iter()
                .map(|(name, totals)| DestinationReport {
                    kind: Some("null"),
                    by: None,
                    accounting: Accounting::take(|| *totals),
                    dead_letters: vec![("invalid".to_owned(), totals.dead)],
                    lane: lane(name, LaneState::Running),
                })
                .collect(),
        }
    }

    fn healthy() -> Health {
        Health {
            unavailable: None,
            degraded: Vec::new(),
        }
    }

    #[test]
    fn a_destination_that_is_away_degrades_but_never_unreadies() {
        let lanes = [
            lane("orders", LaneState::Waiting),
            lane("wms", LaneState::Running),
        ];
        let readiness = Readiness::decide(healthy(), false, Openness::Guarded, &lanes);
        assert_eq!(readiness.unready, None);
        assert_eq!(
            readiness.degraded,
            ["destination orders is waiting since 1970-01-01T00:00:00.000000Z"]
        );
    }

    #[test]
    fn stopping_and_a_store_that_cannot_write_make_it_unready() {
        let broken = || Health {
            unavailable: Some("the disk has too little free space".to_owned()),
            degraded: vec!["tail of 7.db is damaged".to_owned()],
        };
        let readiness = Readiness::decide(broken(), false, Openness::Open, &[]);
        assert_eq!(
            readiness.unready.as_deref(),
            Some("the disk has too little free space")
        );
        assert_eq!(readiness.degraded.len(), 2);
        let stopping = Readiness::decide(healthy(), true, Openness::Guarded, &[]);
        assert_eq!(stopping.unready.as_deref(), Some("the server is stopping"));
    }

    #[test]
    fn one_broken_identity_is_told_whatever_the_others_say() {
        let whole = LaneTotals {
            accepted: 1,
            delivered: 1,
            ..LaneTotals::default()
        };
        let lost = LaneTotals {
            accepted: 2,
            delivered: 1,
            ..LaneTotals::default()
        };
        assert_eq!(report(&[("a", whole)]).accounting_holds(), Some(true));
        assert_eq!(
            report(&[("a", whole), ("b", lost)]).accounting_holds(),
            Some(false)
        );
    }
}
