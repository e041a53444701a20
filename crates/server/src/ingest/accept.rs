//! Accepting: what every event goes through, whatever mode it came in. Owns no state but the compiled
//! rules; a crash before the store's commit leaves nothing, and after it everything.

use std::ops::Deref;
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::HeaderMap;
use wayhold_model::admission::Fill;
use wayhold_model::{Clock, DestinationSet, Event};
use wayhold_store::{AppendError, NewEvent, Receipt, Store};

use super::draft::Draft;
use super::envelope;
use super::mode::Mode;
use super::rules::Rules;
use super::stream::Stream;
use super::{Admission, Difference, Refusal, Refused, binary, json, plain, trace};
use crate::blocking::blocking;
use crate::clock::Entropy;
use crate::config::Limits;
use crate::telemetry::metrics::Metrics;

/// One event that was accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The event as stored.
    pub event: Arc<Event>,
    /// Its receipt; `None` where no route wanted it and the configuration says to ignore such events.
    pub receipt: Option<Receipt>,
}

/// An event that has passed every check but the store's.
pub(crate) struct Admitted {
    pub(crate) event: Arc<Event>,
    /// `None`: accepted, but not to be stored.
    pub(crate) destinations: Option<Arc<DestinationSet>>,
    pub(super) identified: bool,
    /// Of its destinations, those for which it is a dead letter from the beginning.
    pub(super) set_aside: Option<Arc<DestinationSet>>,
}

/// Accepts events. A cheap handle; every way in shares it.
#[derive(Clone)]
pub struct Accept(Arc<Inner>);

struct Inner {
    door: Door,
    terms: ArcSwap<Terms>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    metrics: Arc<Metrics>,
}

/// What decides at the door, replaced as a whole when a newer configuration is followed. A request is read by
/// one version; the next one may be read by another.
struct Terms {
    rules: Rules,
    admission: Admission,
}

/// The bounds that whoever reads a request must keep, as they are at this moment.
pub struct LimitsNow(Guard<Arc<Terms>>);

impl Deref for LimitsNow {
    type Target = Limits;

    fn deref(&self) -> &Limits {
        &self.0.rules.limits
    }
}

/// Where admitted events go.
enum Door {
    Store(Store),
    Other(Arc<dyn Keeper>),
}

/// Something that keeps events in the store's place, behind the same way in: what benchmarks compare
/// the store with.
pub trait Keeper: Send + Sync + 'static {
    /// Keeps all events, or none.
    fn append(&self, events: Vec<NewEvent>) -> BoxFuture<'_, Result<Vec<Receipt>, AppendError>>;
}

impl Accept {
    /// Accepts into `store` whom `admission` lets in.
    pub fn new(
        store: Store,
        admission: Admission,
        rules: Rules,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self(Arc::new(Inner {
            door: Door::Store(store),
            terms: ArcSwap::from_pointee(Terms { rules, admission }),
            clock,
            entropy,
            metrics,
        }))
    }

    /// Accepts into something else than the store.
    pub fn into_other(
        keeper: Arc<dyn Keeper>,
        rules: Rules,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self(Arc::new(Inner {
            door: Door::Other(keeper),
            terms: ArcSwap::from_pointee(Terms {
                rules,
                admission: Admission::unlimited(),
            }),
            clock,
            entropy,
            metrics,
        }))
    }

    /// Decides by these from now on.
    pub(crate) fn follow(&self, rules: Rules, admission: Admission) {
        self.0.terms.store(Arc::new(Terms { rules, admission }));
    }

    /// Who is let in.
    pub fn admission(&self) -> Admission {
        self.0.terms.load().admission.clone()
    }

    /// Whether nobody of this mark is refused anywhere.
    pub(crate) fn is_open(&self, admit_until: Fill) -> bool {
        self.0.terms.load().admission.is_open(admit_until)
    }

    /// The bounds that whoever reads requests must keep. Not to be kept over a wait.
    pub fn limits(&self) -> LimitsNow {
        LimitsNow(self.0.terms.load())
    }

    /// Accepts the one event of a request, whose sender is admitted until this filling of limits. Once it
    /// is with the store it is stored, even if the caller drops this future.
    ///
    /// # Errors
    /// Says why nothing was stored.
    pub(crate) async fn one(
        &self,
        mode: Mode,
        headers: &HeaderMap,
        query: &str,
        body: Bytes,
        admit_until: Fill,
    ) -> Result<Accepted, Refusal> {
        let result = match self.read_one(mode, headers, query, body) {
            Ok(mut admitted) => match self.let_in(&mut admitted, admit_until).await {
                Ok(()) => self.store_one(admitted).await,
                Err(refusal) => Err(refusal),
            },
            Err(refusal) => Err(refusal),
        };
        result.inspect_err(|refusal| self.count_refused(refusal))
    }

    /// Accepts all events of a batch or none, but for `Refusal::Partly`.
    ///
    /// # Errors
    /// Says why, and which event is to blame where one is.
    pub(crate) async fn batch(
        &self,
        headers: &HeaderMap,
        query: &str,
        body: Bytes,
        admit_until: Fill,
    ) -> Result<Vec<Accepted>, Refused> {
        let read = match self.read_batch(headers, query, &body) {
            Ok(mut admitted) => {
                let let_in = self.let_all_in(&mut admitted, admit_until).await;
                let_in.map(|()| admitted)
            }
            Err(refused) => Err(refused),
        };
        let result = match read {
            Ok(admitted) => match self.store_all(&admitted).await {
                Err(Refused {
                    index: Some(index),
                    refusal,
                }) => Err(match admitted.get(index) {
                    Some(sent) => self.explained(refusal, &sent.event).await,
                    None => refusal,
                }
                .at(index)),
                stored => stored,
            },
            Err(refused) => Err(refused),
        };
        result.inspect_err(|refused| self.count_refused(&refused.refusal))
    }

    /// Accepts a stream of lines, each an event of its own.
    ///
    /// # Errors
    /// When the request says what streams do not understand.
    pub(crate) fn stream(
        &self,
        headers: &HeaderMap,
        query: &str,
        admit_until: Fill,
    ) -> Result<Stream, Refusal> {
        refuse_query(query).inspect_err(|refusal| self.count_refused(refusal))?;
        Ok(Stream::new(
            self.clone(),
            trace::context(headers),
            admit_until,
        ))
    }

    /// Counts a refusal that never reached an event.
    pub(crate) fn count_refused(&self, refusal: &Refusal) {
        self.0.metrics.refused(refusal.reason()).inc();
    }

    fn read_one(
        &self,
        mode: Mode,
        headers: &HeaderMap,
        query: &str,
        body: Bytes,
    ) -> Result<Admitted, Refusal> {
        let terms = self.0.terms.load();
        let rules = &terms.rules;
        let reading = rules.reading();
        let trace = trace::context(headers);
        if mode == Mode::Plain {
            let draft = plain::read(headers, query, body, reading)?;
            return self.admit_plain(rules, draft, trace.as_ref());
        }
        refuse_query(query)?;
        if mode == Mode::Binary {
            let draft = binary::read(headers, body, reading)?;
            return rules.admit(draft, trace.as_ref());
        }
        let text = json::text(&body)?;
        let draft = envelope::read_one(text, reading, &envelope::Share(&body))?;
        rules.admit(draft, trace.as_ref())
    }

    fn read_batch(
        &self,
        headers: &HeaderMap,
        query: &str,
        body: &[u8],
    ) -> Result<Vec<Admitted>, Refused> {
        refuse_query(query)?;
        let terms = self.0.terms.load();
        let rules = &terms.rules;
        let trace = trace::context(headers);
        let mut admitted = Vec::new();
        envelope::read_batch(
            json::text(body)?,
            rules.reading(),
            rules.limits.batch_events,
            |draft| {
                admitted.push(rules.admit(draft, trace.as_ref())?);
                Ok(())
            },
        )?;
        Ok(admitted)
    }

    /// Reads one line of a stream.
    pub(crate) fn read_line(
        &self,
        line: &[u8],
        trace: Option<&trace::Context>,
    ) -> Result<Admitted, Refusal> {
        let text = json::text(line)?;
        let terms = self.0.terms.load();
        let draft = envelope::read_one(text, terms.rules.reading(), &envelope::Copy)?;
        terms.rules.admit(draft, trace)
    }

    /// Gives an event that was read elsewhere its key and its destinations.
    pub(super) fn admit_draft(&self, draft: Draft<'_>) -> Result<Admitted, Refusal> {
        self.0.terms.load().rules.admit(draft, None)
    }

    /// Reads one event as it would be accepted, with its ordering key, and stores nothing: what a
    /// destination is tried with.
    pub(crate) fn read_event(&self, text: &[u8]) -> Result<Event, Refusal> {
        let text = json::text(text)?;
        let terms = self.0.terms.load();
        let mut draft = envelope::read_one(text, terms.rules.reading(), &envelope::Copy)?;
        terms.rules.event_of(&mut draft)
    }

    fn admit_plain<'a>(
        &self,
        rules: &'a Rules,
        mut draft: Draft<'a>,
        trace: Option<&trace::Context>,
    ) -> Result<Admitted, Refusal> {
        let identified = !draft.id.is_empty();
        if !identified {
            draft.id = plain::make_id(&*self.0.clock, &*self.0.entropy).into();
        }
        if draft.source.is_empty() {
            draft.source = rules.source.as_str().into();
        }
        let admitted = rules.admit(draft, trace)?;
        Ok(Admitted {
            identified,
            ..admitted
        })
    }

    /// Lets an event in whose sender is admitted until this filling, or says which limit is in its way.
    pub(super) async fn let_in(
        &self,
        admitted: &mut Admitted,
        admit_until: Fill,
    ) -> Result<(), Refusal> {
        if self.is_open(admit_until) {
            return Ok(());
        }
        match self.decide(admitted, admit_until) {
            Ok(()) => Ok(()),
            // Boxed, so that requests do not carry the room for it while nobody is refused.
            Err(refusal) => Box::pin(self.unless_known(admitted, refusal)).await,
        }
    }

    /// Lets a batch in as a whole.
    async fn let_all_in(&self, batch: &mut [Admitted], admit_until: Fill) -> Result<(), Refused> {
        if self.is_open(admit_until) {
            return Ok(());
        }
        for (index, admitted) in batch.iter_mut().enumerate() {
            let let_in = self.let_in(admitted, admit_until).await;
            let_in.map_err(|refusal| refusal.at(index))?;
        }
        Ok(())
    }

    /// What the limits say of an event; sets its destinations aside whose limits say so.
    pub(crate) fn decide(&self, admitted: &mut Admitted, admit_until: Fill) -> Result<(), Refusal> {
        let Some(destinations) = &admitted.destinations else {
            return Ok(());
        };
        let terms = self.0.terms.load();
        let aside = terms
            .admission
            .decide(&admitted.event, destinations, admit_until)
            .map_err(Refusal::Full)?;
        admitted.set_aside = (!aside.is_empty()).then(|| Arc::new(DestinationSet::new(aside)));
        Ok(())
    }

    /// An event that was accepted before takes no room: it goes on to its receipt, whatever refuses it.
    pub(crate) async fn unless_known(
        &self,
        admitted: &Admitted,
        refusal: Refusal,
    ) -> Result<(), Refusal> {
        let (Door::Store(store), Some(new)) = (&self.0.door, admitted.to_new()) else {
            return Err(refusal);
        };
        match store.recall(new).await {
            Ok(Some(_first)) => Ok(()),
            Ok(None) => Err(refusal),
            Err(error) => {
                let refusal = Refusal::from_append(error).refusal;
                Err(self.explained(refusal, &admitted.event).await)
            }
        }
    }

    async fn store_one(&self, admitted: Admitted) -> Result<Accepted, Refusal> {
        let Some(new) = admitted.to_new() else {
            self.0.metrics.events_ignored.inc();
            return Ok(Accepted {
                event: admitted.event,
                receipt: None,
            });
        };
        match self.append(vec![new]).await {
            Ok(receipts) => Ok(Accepted {
                event: admitted.event,
                receipt: receipts.first().copied(),
            }),
            Err(error) => {
                let refusal = Refusal::from_append(error).refusal;
                Err(self.explained(refusal, &admitted.event).await)
            }
        }
    }

    /// Stores all or none (but for `Refusal::Partly`), and pairs each with its receipt.
    pub(crate) async fn store_all(&self, admitted: &[Admitted]) -> Result<Vec<Accepted>, Refused> {
        let mut accepted: Vec<_> = admitted
            .iter()
            .map(|admitted| Accepted {
                event: Arc::clone(&admitted.event),
                receipt: None,
            })
            .collect();
        let mut places = Vec::with_capacity(admitted.len());
        let mut events = Vec::with_capacity(admitted.len());
        for (place, admitted) in admitted.iter().enumerate() {
            if let Some(new) = admitted.to_new() {
                places.push(place);
                events.push(new);
            }
        }
        let ignored = accepted.len() - events.len();
        if !events.is_empty() {
            let (receipts, cause) = match self.append(events).await {
                Ok(receipts) => (receipts.into_iter().map(Some).collect(), None),
                Err(AppendError::Partly { receipts, cause }) => (receipts, Some(cause)),
                Err(error) => return Err(in_request(Refusal::from_append(error), &places)),
            };
            for (place, receipt) in places.iter().zip(receipts) {
                if let Some(accepted) = accepted.get_mut(*place) {
                    accepted.receipt = receipt;
                }
            }
            if let Some(cause) = cause {
                return Err(partly(accepted, &places, *cause).into());
            }
        }
        self.0.metrics.events_ignored.inc_by(ignored as u64);
        Ok(accepted)
    }

    /// Looks at the first event of a conflict to say in what the two differ. Conflicts are rare and
    /// mistakes, so they may cost a read.
    async fn explained(&self, refusal: Refusal, sent: &Arc<Event>) -> Refusal {
        let (Refusal::Conflict { first, .. }, Door::Store(store)) = (&refusal, &self.0.door) else {
            return refusal;
        };
        let (first, store) = (*first, store.clone());
        let stored = match blocking(move || store.event(first)).await {
            Ok(Ok(Some(found))) => found.event,
            // What the first was is gone or cannot be read; the conflict stands all the same.
            Ok(Ok(None) | Err(_)) | Err(_) => None,
        };
        let difference = stored.map(|stored| Box::new(Difference::between(sent, &stored.event)));
        Refusal::Conflict { first, difference }
    }

    async fn append(&self, events: Vec<NewEvent>) -> Result<Vec<Receipt>, AppendError> {
        if wayhold_store::planted!("payload-logged") {
            for new in &events {
                tracing::warn!(data = %String::from_utf8_lossy(new.event.data()), "accepted");
            }
        }
        let appended = match &self.0.door {
            Door::Store(store) => store.append(events).await,
            Door::Other(keeper) => keeper.append(events).await,
        };
        match &appended {
            Ok(receipts) => self.count_accepted(receipts.iter()),
            Err(AppendError::Partly { receipts, .. }) => {
                self.count_accepted(receipts.iter().flatten());
            }
            Err(_) => {}
        }
        wayhold_store::failpoint!("ingest.before-answer");
        appended
    }

    fn count_accepted<'a>(&self, receipts: impl Iterator<Item = &'a Receipt>) {
        let (mut stored, mut duplicates) = (0, 0);
        for receipt in receipts {
            *if receipt.duplicate {
                &mut duplicates
            } else {
                &mut stored
            } += 1;
        }
        self.0.metrics.events_accepted.inc_by(stored);
        self.0.metrics.events_duplicate.inc_by(duplicates);
    }
}

impl Admitted {
    fn to_new(&self) -> Option<NewEvent> {
        Some(NewEvent {
            event: Arc::clone(&self.event),
            destinations: Arc::clone(self.destinations.as_ref()?),
            identified: self.identified,
            set_aside: self.set_aside.clone(),
        })
    }
}

/// A batch of which only some events were stored. What was not given to the store is accepted as it is.
fn partly(accepted: Vec<Accepted>, given: &[usize], cause: AppendError) -> Refusal {
    let is_lost =
        |place: usize, one: &Accepted| one.receipt.is_none() && given.binary_search(&place).is_ok();
    let accepted = accepted.into_iter().enumerate();
    Refusal::Partly {
        accepted: accepted
            .map(|(place, one)| (!is_lost(place, &one)).then_some(one))
            .collect(),
        cause: Box::new(Refusal::from_append(cause).refusal),
    }
}

/// The store counts only what it was given; the producer counts what it sent.
fn in_request(refused: Refused, places: &[usize]) -> Refused {
    let place = |index: usize| places.get(index).copied().unwrap_or(index);
    let refusal = match refused.refusal {
        Refusal::ConflictInBatch { first } => Refusal::ConflictInBatch {
            first: place(first),
        },
        other => other,
    };
    Refused {
        index: refused.index.map(place),
        refusal,
    }
}

/// A query belongs to plain JSON; elsewhere it is a mistake that would otherwise pass in silence.
fn refuse_query(query: &str) -> Result<(), Refusal> {
    if query.is_empty() {
        return Ok(());
    }
    Err(Refusal::request(
        "query",
        "none: CloudEvents carry their attributes themselves",
    ))
}
