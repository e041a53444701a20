//! The task that reads one table: takes the lock, sweeps, hands rows in, settles what is durable, waits to
//! be woken. While one batch is accepted the one before it is settled and the next one is read. A crash at
//! any point leaves a row that is read again, and its event is known by its identity then.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};
use wayhold_model::Clock;
use wayhold_model::backoff::Backoff;

use super::held::{Held, REFUSED_MAX};
use super::mapping::Mapping;
use super::port::{Batch, Connected, Database, End, Reader, Settler, Trouble};
use super::row::{Place, Row};
use super::standing::{Standing, State};
use crate::clock::Entropy;
use crate::config::OutboxTableConfig;
use crate::ingest::{Accept, Refusal, RowDraft, RowResult};

/// How often the waiting rows are counted.
const COUNT_EVERY: Duration = Duration::from_secs(10);

/// How soon they are counted again when the table was read to its end: what was counted before that is of another
/// time. Not at once, since counting is a look at the whole table, dead rows and all.
const COUNT_SOON: Duration = Duration::from_secs(3);

/// First pause where rows wait for a transaction that is open: most are over at once. It doubles up to the
/// poll interval.
const OPEN_FIRST: Duration = Duration::from_millis(20);

/// Longest pause where a limit here refuses rows; the limit's own wait may be longer than it takes.
const FULL_MAX: Duration = Duration::from_secs(5);
const FULL_MIN: Duration = Duration::from_millis(50);

/// Pauses between attempts to reach a database, with full jitter; and how soon a reader that stands by asks
/// for the lock again.
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(30);
const STANDBY: Duration = Duration::from_secs(2);

/// What reading takes from the server.
#[derive(Clone)]
pub struct Surroundings {
    /// The way in.
    pub accept: Accept,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
    /// Randomness for jitter.
    pub entropy: Arc<dyn Entropy>,
}

/// A table that is being read.
pub struct Reading {
    standing: Arc<Standing>,
    nudge: Arc<Notify>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Reading {
    /// Begins to read, in a task on the current runtime.
    pub fn start(
        config: &OutboxTableConfig,
        database: Arc<dyn Database>,
        around: Surroundings,
    ) -> Self {
        let standing = Arc::new(Standing::new(around.clock.now()));
        let nudge = Arc::new(Notify::new());
        let (stop, stopped) = watch::channel(false);
        let task = Task {
            mapping: Mapping::new(config),
            config: config.clone(),
            database,
            around,
            standing: Arc::clone(&standing),
            nudge: Arc::clone(&nudge),
            stopped,
            held: Held::default(),
            failures: 0,
            count_at: Instant::now(),
            counted: Instant::now(),
            taken: false,
        };
        Self {
            standing,
            nudge,
            stop,
            task: tokio::spawn(task.run()),
        }
    }

    /// How it is doing.
    pub fn standing(&self) -> &Arc<Standing> {
        &self.standing
    }

    /// Tries at once what was refused or stopped: something may be otherwise now.
    pub fn nudge(&self) {
        self.nudge.notify_one();
    }

    /// Stops reading; what is accepted by then is settled, and the lock is free.
    pub async fn stop(self, grace: Duration) {
        self.stop.send_replace(true);
        let abort = self.task.abort_handle();
        if timeout(grace, self.task).await.is_err() {
            // Rows that are not settled now are read again, and known.
            abort.abort();
        }
    }
}

struct Task {
    config: OutboxTableConfig,
    mapping: Mapping,
    database: Arc<dyn Database>,
    around: Surroundings,
    standing: Arc<Standing>,
    nudge: Arc<Notify>,
    stopped: watch::Receiver<bool>,
    held: Held,
    /// Attempts that failed one after the other.
    failures: u32,
    /// When to count next what waits.
    count_at: Instant,
    /// When it was counted last, and whether rows were taken since.
    counted: Instant,
    taken: bool,
}

/// Why reading from a connection ended.
enum Ended {
    Stopped,
    Trouble(Trouble),
}

/// What a sweep came to.
enum Swept {
    /// It ended as its last batch said; whether any row was accepted.
    Whole(End, bool),
    /// A limit here was in the way.
    Full(Refusal),
    /// As many rows are refused as may be.
    TooManyRefused,
    /// The server stops.
    Stopped,
}

/// What became of a batch.
#[derive(Default)]
struct Outcome {
    accepted: Vec<Place>,
    /// Rows that stay in the table; with a reason where they are refused now.
    stay: Vec<(Row, Option<Refusal>)>,
    later: Option<Refusal>,
}

impl Task {
    async fn run(mut self) {
        loop {
            let mut stopped = self.stopped.clone();
            let connected = tokio::select! {
                connected = within(self.config.timeout, self.database.connect()) => connected,
                _ = stopped.wait_for(|stop| *stop) => return,
            };
            let ended = match connected {
                Ok(connected) => self.read(connected).await,
                Err(trouble) => Ended::Trouble(trouble),
            };
            let Ended::Trouble(trouble) = ended else {
                return;
            };
            self.failures = self.failures.saturating_add(1);
            let pause = self.note(&trouble);
            let wait = async {
                match pause {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = wait => {}
                () = self.nudge.notified() => {}
                _ = stopped.wait_for(|stop| *stop) => return,
            }
        }
    }

    /// Tells of a trouble, and when to try again; `None`: not before somebody has done something.
    fn note(&self, trouble: &Trouble) -> Option<Duration> {
        let (state, pause) = match trouble {
            Trouble::Elsewhere => (State::Standby, Some(STANDBY)),
            Trouble::Unreachable(_) => (State::Connecting, Some(self.backoff())),
            Trouble::Misfit(_) => (State::Unfit, Some(self.backoff())),
            Trouble::Lost { .. } => (State::Stopped, None),
        };
        self.enter(state, Some(trouble.to_string()));
        pause
    }

    fn backoff(&self) -> Duration {
        let backoff = Backoff::try_new(RETRY_FIRST, RETRY_MAX).unwrap_or_default();
        let ceiling = backoff.ceiling(self.failures);
        let part = u32::try_from(self.around.entropy.next() % 1000).unwrap_or_default();
        ceiling * part / 1000
    }

    fn enter(&self, state: State, reason: Option<String>) {
        let source = self.config.name.as_str();
        let told = reason.clone();
        if self.standing.enter(state, reason, self.around.clock.now()) {
            let (state, reason) = (state.name(), told.unwrap_or_default());
            match state {
                "reading" => tracing::info!(source, state, reason, "the source reads its table"),
                _ => tracing::warn!(source, state, reason, "the source does not read its table"),
            }
        }
    }

    async fn read(&mut self, connected: Connected) -> Ended {
        let Connected {
            mut reader,
            mut settler,
            mut waker,
        } = connected;
        self.count_at = Instant::now();
        let mut open_wait = OPEN_FIRST;
        loop {
            if self.held.due().is_some_and(|due| due <= Instant::now()) {
                self.held.try_again();
            }
            let swept = match self.sweep(&mut *reader, &mut *settler).await {
                Ok(swept) => swept,
                Err(trouble) => return Ended::Trouble(trouble),
            };
            self.standing.refused(self.held.rows());
            self.failures = 0;
            let next = self.counted + pause_of_counting(self.taken, &swept);
            self.count_at = self.count_at.min(next);
            if let Err(trouble) = self.count_if_due(&mut *settler).await {
                return Ended::Trouble(trouble);
            }
            let Some(wait) = self.wait_after(&swept, &mut open_wait) else {
                return Ended::Stopped;
            };
            if wait.is_zero() {
                continue;
            }
            let mut until = (Instant::now() + wait).min(self.count_at);
            if let Some(due) = self.held.due() {
                until = until.min(due);
            }
            // What waits for a transaction is woken by nothing that the others commit.
            let wakes = matches!(swept, Swept::Whole(End::Empty, _));
            let mut stopped = self.stopped.clone();
            tokio::select! {
                () = sleep_until(until) => {}
                () = self.nudge.notified() => self.held.try_again(),
                woken = waker.woken(), if wakes => if let Err(trouble) = woken {
                    return Ended::Trouble(trouble);
                },
                _ = stopped.wait_for(|stop| *stop) => return Ended::Stopped,
            }
        }
    }

    /// Counts what waits in the table, where it was not done for a while.
    async fn count_if_due(&mut self, settler: &mut dyn Settler) -> Result<(), Trouble> {
        if self.count_at > Instant::now() {
            return Ok(());
        }
        let lag = within(self.config.timeout, settler.lag()).await?;
        self.standing.counted(lag, self.around.clock.now());
        self.counted = Instant::now();
        self.count_at = self.counted + COUNT_EVERY;
        self.taken = false;
        Ok(())
    }

    /// How long to wait before the next sweep; `None`: there is none.
    fn wait_after(&self, swept: &Swept, open_wait: &mut Duration) -> Option<Duration> {
        let wait = match swept {
            Swept::Stopped => return None,
            Swept::Full(refusal) => {
                self.enter(State::Waiting, Some(refusal.to_string()));
                let wait = refusal.retry_after().unwrap_or(FULL_MIN);
                return Some(wait.clamp(FULL_MIN, FULL_MAX));
            }
            Swept::TooManyRefused => {
                let reason =
                    format!("{REFUSED_MAX} rows are refused; mend them, or what refuses them");
                self.enter(State::Waiting, Some(reason));
                return Some(FULL_MAX);
            }
            Swept::Whole(End::More | End::Again, _) => Duration::ZERO,
            Swept::Whole(End::Empty, _) => self.config.poll_interval,
            Swept::Whole(End::Open, true) => OPEN_FIRST,
            Swept::Whole(End::Open, false) => (*open_wait * 2).min(self.config.poll_interval),
        };
        *open_wait = match swept {
            Swept::Whole(End::Open, _) => wait,
            _ => OPEN_FIRST,
        };
        self.enter(State::Reading, None);
        Some(wait)
    }

    /// One sweep: every batch is read, accepted and settled, three of them under way at a time.
    async fn sweep(
        &mut self,
        reader: &mut dyn Reader,
        settler: &mut dyn Settler,
    ) -> Result<Swept, Trouble> {
        let time = self.config.timeout;
        let mut any = false;
        let mut settling = Vec::new();
        let mut batch = within(time, reader.next(self.held.list())).await?;
        loop {
            let Batch { rows, end } = batch;
            let following = async {
                match end {
                    End::More => Some(within(time, reader.next(self.held.list())).await),
                    End::Again | End::Empty | End::Open => None,
                }
            };
            // The database is asked before the rows are made events, so that it works meanwhile.
            let (settled, following, outcome) = tokio::join!(
                settle(time, settler, &settling),
                following,
                self.accept(rows),
            );
            settled?;
            any |= !outcome.accepted.is_empty();
            self.taken |= any;
            settling = outcome.accepted;
            let now = self.around.clock.now();
            for (row, refusal) in &outcome.stay {
                reader.stays(row);
                if let Some(refusal) = refusal
                    && self.held.hold(row, refusal, now)
                {
                    let (source, id) = (self.config.name.as_str(), row.id.as_deref());
                    tracing::warn!(source, id, reason = %refusal, "a row is refused and stays");
                }
            }
            // A sweep of a large table is long.
            if !outcome.stay.is_empty() {
                self.standing.refused(self.held.rows());
            }
            self.count_if_due(settler).await?;
            let stops = *self.stopped.borrow();
            let next = match following {
                Some(next) if outcome.later.is_none() && !stops && !self.held.is_full() => next,
                following => {
                    settle(time, settler, &settling).await?;
                    if following.is_some() || outcome.later.is_some() {
                        within(time, reader.abandon()).await?;
                    }
                    return Ok(match outcome.later {
                        _ if stops => Swept::Stopped,
                        Some(refusal) => Swept::Full(refusal),
                        None if self.held.is_full() => Swept::TooManyRefused,
                        None => Swept::Whole(end, any),
                    });
                }
            };
            batch = match next {
                Ok(batch) => batch,
                Err(trouble) => {
                    // They are durable here, whoever reads on.
                    let settled = settle(time, settler, &settling).await;
                    return Err(settled.err().unwrap_or(trouble));
                }
            };
        }
    }

    /// Hands rows in.
    async fn accept(&self, rows: Vec<Row>) -> Outcome {
        let mut outcome = Outcome::default();
        let (known, rows): (Vec<_>, Vec<_>) =
            rows.into_iter().partition(|row| self.held.has(&row.place));
        outcome.stay = known.into_iter().map(|row| (row, None)).collect();
        if rows.is_empty() {
            return outcome;
        }
        let drafts = rows.iter().map(|row| RowDraft {
            key: row.key.as_deref().filter(|key| !key.is_empty()),
            event: self.mapping.draft(row),
        });
        let results = self
            .around
            .accept
            .rows(drafts.collect(), self.config.admit_until, self.held.keys())
            .await;
        for (row, result) in rows.into_iter().zip(results) {
            match result {
                RowResult::Accepted => outcome.accepted.push(row.place),
                RowResult::Refused(refusal) => outcome.stay.push((row, Some(refusal))),
                RowResult::Behind => outcome.stay.push((row, None)),
                RowResult::Later(refusal) => outcome.later = Some(refusal),
            }
        }
        self.standing.accepted(outcome.accepted.len() as u64);
        outcome
    }
}

/// How long after a count the next one is due, where rows were taken since and this sweep was the last one.
fn pause_of_counting(taken: bool, swept: &Swept) -> Duration {
    match swept {
        Swept::Whole(End::Empty, _) if taken => COUNT_SOON,
        _ => COUNT_EVERY,
    }
}

async fn settle(
    time: Duration,
    settler: &mut dyn Settler,
    places: &[Place],
) -> Result<(), Trouble> {
    if places.is_empty() {
        return Ok(());
    }
    within(time, settler.settle(places)).await
}

/// What a database does, within the time it may take.
async fn within<T>(time: Duration, work: BoxFuture<'_, Result<T, Trouble>>) -> Result<T, Trouble> {
    let silent = || Trouble::Unreachable(format!("no answer within {} s", time.as_secs_f64()));
    timeout(time, work).await.unwrap_or_else(|_| Err(silent()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_counted_again_soon_once_rows_were_taken_and_none_is_left_to_read() {
        let sweeps = [End::More, End::Again, End::Open, End::Empty]
            .into_iter()
            .flat_map(|end| [true, false].map(|any| Swept::Whole(end, any)))
            .chain([Swept::TooManyRefused, Swept::Stopped]);
        for swept in sweeps {
            let is_last = matches!(swept, Swept::Whole(End::Empty, _));
            assert_eq!(pause_of_counting(true, &swept) == COUNT_SOON, is_last);
            assert_eq!(pause_of_counting(false, &swept), COUNT_EVERY);
        }
    }
}
