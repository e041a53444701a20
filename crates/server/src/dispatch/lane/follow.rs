//! How a lane follows its configuration: what was not sent yet goes by the newest version, attempts in flight
//! end at the one that they were handed to. Order, pace and run state go on; nothing waits for the old version
//! but a destination that takes one writer at a time.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use tracing::info;
use wayhold_store::{DestinationRecord, RunState};

use super::errand::Done;
use super::{END_GRACE, LaneTask};
use crate::dispatch::dispatcher::Service;
use crate::dispatch::order::OrderPolicy;
use crate::sink::Sink;

impl LaneTask {
    /// Takes what the configuration says now; `None` where it has no such destination any more.
    pub(super) fn follow(&mut self, record: DestinationRecord, service: Option<Service>) {
        debug_assert!(
            self.ready.is_empty(),
            "handed over before anything else is done"
        );
        let retired = [&record, &self.record].map(|one| one.state == RunState::Retired);
        // Else the lane may have stopped by itself, and the catalogue does not know it yet.
        if retired.contains(&true) {
            self.record = record;
        }
        info!(
            destination = self.record.name,
            in_flight = self.flight.len(),
            served = service.is_some(),
            "following a newer configuration"
        );
        // Without a service everything is held, and what ends late is still judged as before.
        let concurrency = service
            .as_ref()
            .map_or(1, |service| service.policy.concurrency.max(1));
        self.part(concurrency);
        let Some(service) = service else {
            return;
        };
        let Service { policy, sink } = service;
        let now = self.now();
        self.pace
            .follow(concurrency, policy.breaker, policy.rate, now);
        self.order.follow(OrderPolicy::of(&policy));
        self.policy = policy;
        self.sink_panicked = false;
        self.trusted_from = Some(Instant::now());
        self.streak = None;
        self.delivered_at = None;
        if sink.is_exclusive() && !self.former.is_empty() {
            self.next = Some(sink);
        } else {
            self.sink = Some(sink);
        }
    }

    /// Parts with the present version: an errand brings the outcomes of what is in flight and then lets its
    /// sink go. From here on there is none.
    fn part(&mut self, concurrency: usize) {
        // Room for everything that can be unfinished at once: what is in flight, and what comes after it.
        let (finish, finished) = mpsc::channel(concurrency + self.flight.len());
        let mut before = std::mem::replace(&mut self.finished, finished);
        self.finish = finish.clone();
        let sink = self.sink.take();
        // One that never began needs no farewell.
        self.next = None;
        self.former.extend(sink.clone());
        self.errands.spawn(async move {
            // Ends with the last attempt, since each holds the other end.
            while let Some(outcome) = before.recv().await {
                // Nobody takes it once the lane has ended: then it is pending, and comes again.
                finish.send(outcome).await.ok();
            }
            if let Some(sink) = &sink {
                sink.stop(END_GRACE).await;
            }
            Done::Parted(sink)
        });
    }

    /// An older version has let go.
    pub(super) fn parted(&mut self, sink: Option<Arc<dyn Sink>>) {
        let Some(sink) = sink else {
            return;
        };
        self.former.retain(|former| !Arc::ptr_eq(former, &sink));
        if self.former.is_empty() && self.next.is_some() {
            self.sink = self.next.take();
        }
    }

    /// Waits for the last outcomes of older versions, whose sinks were told to stop.
    pub(super) async fn hear_former(&mut self, by: Instant) {
        while !self.former.is_empty()
            && let Ok(Some(done)) = timeout_at(by, self.errands.join_next()).await
        {
            if let Ok(Done::Parted(sink)) = done {
                self.parted(sink);
            }
        }
    }
}
