//! The drill with a throw-away server: everything and everyone that takes part, and what happens when.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::super::bench::folder::bytes_below;
use super::super::client::Client;
use super::super::exit::{Exit, Failure};
use super::super::output::{Output, items};
use super::super::rehearsal::books::Books;
use super::super::rehearsal::distribution::Distribution;
use super::super::rehearsal::producer::{Acknowledged, OnRefusal, produce};
use super::super::rehearsal::proof::Proof;
use super::super::rehearsal::receiver::{Mood, Receiver};
use super::super::rehearsal::server::Server;
use super::super::rehearsal::story::Story;
use super::configuration::{Configuration, DESTINATION, Room};
use super::drain::Drain;
use super::plan::Plan;
use super::report::{Figures, Report};
use super::{Middle, failed};
use crate::config::quantity::show_duration;
use crate::fault_proxy::{Fault, FaultProxy, Protocol};

/// Producers at work: as many requests are in flight at most.
const PRODUCERS: usize = 64;

/// How often is looked at what arrived and what the disk holds.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How long nothing may arrive, beside the server's own waits, before the drill gives up on the rest.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long is waited after the last arrival for repeats that are still under way.
const QUIET_FOR: Duration = Duration::from_millis(500);

/// Everything and everyone that takes part.
pub struct Stage<'a> {
    plan: Plan,
    output: &'a mut Output,
    server: Server,
    configuration: Configuration,
    proxy: FaultProxy,
    receiver: Receiver,
    acknowledged: Acknowledged,
    books: Books,
    disk_peak_bytes: u64,
    returned: Option<Instant>,
    drain: Drain,
    broken: Vec<String>,
}

/// The producers, and how they are told to stop.
struct Producing {
    task: JoinHandle<Result<(), Failure>>,
    stop: Arc<AtomicBool>,
}

/// 99 of 100 were acknowledged within so many milliseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Latencies {
    before: Option<f64>,
    during: Option<f64>,
    after: Option<f64>,
}

impl<'a> Stage<'a> {
    /// Plays a drill in this empty folder and says what it found. `control` makes the receiver forget.
    ///
    /// # Errors
    /// When it cannot be played to its end.
    pub async fn play(
        plan: Plan,
        middle: Middle,
        control: bool,
        folder: &Path,
        output: &'a mut Output,
    ) -> Result<Report, Failure> {
        let receiver = Receiver::start()
            .await
            .map_err(|error| failed("the receiver cannot listen", &error))?;
        if control {
            receiver.feel(Mood::Forgetful);
        }
        let proxy = FaultProxy::start(receiver.address(), Protocol::Http)
            .await
            .map_err(|error| failed("the proxy cannot listen", &error))?;
        let server = Server::prepare(folder)
            .map_err(|error| failed("the server cannot be prepared", &error))?;
        let url = format!("http://{}/events", proxy.address());
        let configuration = Configuration::new(&server.listen(), &url, &plan, &server.config())?;
        let mut stage = Self {
            plan,
            output,
            server,
            configuration,
            proxy,
            receiver,
            acknowledged: Acknowledged::default(),
            books: Books::default(),
            disk_peak_bytes: 0,
            returned: None,
            drain: Drain::default(),
            broken: Vec::new(),
        };
        stage.configure(Room::Usual)?;
        let latencies = stage.act(middle).await?;
        Ok(stage.report(latencies))
    }

    async fn act(&mut self, middle: Middle) -> Result<Latencies, Failure> {
        let (well, away) = (self.plan.well, self.plan.away);
        self.server.start().await?;
        let mut producing = self.begin()?;
        self.say(&format!(
            "{} events a second; all is well for {}",
            self.plan.rate,
            show_duration(well)
        ));
        self.watch(well, &mut producing).await?;
        let mut latencies = Latencies {
            before: self.p99(),
            ..Latencies::default()
        };
        self.proxy.set(Fault::Cut);
        self.say(&format!(
            "the destination is away for {}",
            show_duration(away)
        ));
        self.watch(away / 2, &mut producing).await?;
        let accepted = self.go_through(middle).await?;
        self.watch(away / 2, &mut producing).await?;
        latencies.during = self.p99();
        self.proxy.set(Fault::None);
        self.returned = Some(Instant::now());
        self.look();
        self.say("the destination is back");
        if middle == Middle::DiskFull {
            self.find_room(accepted).await?;
        }
        self.watch(well, &mut producing).await?;
        latencies.after = self.p99();
        producing.stop.store(true, Ordering::Relaxed);
        ended(&mut producing.task).await?;
        self.say("no more events are sent; what is pending arrives");
        if !self.arrive().await? {
            self.say("not everything arrived");
        }
        tokio::time::sleep(QUIET_FOR).await;
        let mut client = self.server.client()?;
        self.books.read_quiet(&mut client).await?;
        self.server.stop().await?;
        Ok(latencies)
    }

    fn begin(&self) -> Result<Producing, Failure> {
        let mut clients = Vec::with_capacity(PRODUCERS);
        for _ in 0..PRODUCERS {
            clients.push(self.server.client()?);
        }
        let stop = Arc::<AtomicBool>::default();
        let stopped = Arc::clone(&stop);
        let story = Story::new(1).take_while(move |_| !stopped.load(Ordering::Relaxed));
        let task = tokio::spawn(produce(
            story,
            self.plan.rate,
            clients,
            OnRefusal::GiveUp,
            self.acknowledged.clone(),
        ));
        Ok(Producing { task, stop })
    }

    /// What happens in the middle of the outage; how many events were accepted until then.
    async fn go_through(&mut self, middle: Middle) -> Result<u64, Failure> {
        match middle {
            Middle::Quiet => {}
            Middle::Kill => {
                self.books.read(&mut self.server.client()?).await?;
                self.server
                    .kill()
                    .map_err(|error| failed("the server cannot be killed", &error))?;
                let killed = Instant::now();
                self.server.start().await?;
                self.say(&format!(
                    "kill -9 of the server; it accepts again after {} ms",
                    killed.elapsed().as_millis()
                ));
            }
            Middle::DiskFull => {
                self.restart(Room::None).await?;
                self.say("the server finds too little room on its disk, and refuses");
            }
        }
        Ok(self.acknowledged.count())
    }

    /// Works off the backlog without room, then gives the room back. `accepted` is how many events were
    /// accepted before there was none.
    async fn find_room(&mut self, accepted: u64) -> Result<(), Failure> {
        if !self.arrive().await? {
            self.broken
                .push("what was pending did not arrive while there was no room".to_owned());
        }
        let since = self.acknowledged.count() - accepted;
        if since > 0 || self.acknowledged.refused() == 0 {
            self.broken.push(format!(
                "{since} events were accepted without room for them"
            ));
        }
        self.restart(Room::Usual).await?;
        self.acknowledged.take_latencies();
        self.say("there is room again");
        Ok(())
    }

    async fn restart(&mut self, room: Room) -> Result<(), Failure> {
        self.books.read(&mut self.server.client()?).await?;
        self.server.stop().await?;
        self.configure(room)?;
        match room {
            Room::Usual => self.server.start().await,
            Room::None => self.server.start_refusing().await,
        }
    }

    fn configure(&self, room: Room) -> Result<(), Failure> {
        self.server
            .configure(&self.configuration.text(room))
            .map_err(|error| failed("the configuration cannot be written", &error))
    }

    async fn watch(&mut self, time: Duration, producing: &mut Producing) -> Result<(), Failure> {
        let until = Instant::now() + time;
        while Instant::now() < until {
            tokio::time::sleep_until(until.min(Instant::now() + LOOK_EVERY)).await;
            if producing.task.is_finished() {
                ended(&mut producing.task).await?;
                return Err(Failure::new(Exit::Failed, "the producers ended early"));
            }
            self.look();
        }
        Ok(())
    }

    /// Waits until nothing is pending; whether it came to that.
    async fn arrive(&mut self) -> Result<bool, Failure> {
        let patience = PATIENCE + self.configuration.longest_wait();
        let mut client = self.server.client()?;
        let mut newest = (self.receiver.counts().0, Instant::now());
        while pending(&mut client).await? > 0 {
            tokio::time::sleep(LOOK_EVERY).await;
            self.look();
            let arrived = self.receiver.counts().0;
            if arrived > newest.0 {
                newest = (arrived, Instant::now());
            } else if newest.1.elapsed() > patience {
                return Ok(false);
            }
        }
        self.look();
        Ok(true)
    }

    fn look(&mut self) {
        if let Some(returned) = self.returned {
            let (arrived, _) = self.receiver.counts();
            let accepted = self.acknowledged.count();
            self.drain.look(returned.elapsed(), arrived, accepted);
        }
        // A folder that changes while it is read is looked at again soon.
        if let Ok(bytes) = bytes_below(&self.server.data()) {
            self.disk_peak_bytes = self.disk_peak_bytes.max(bytes);
        }
    }

    /// Of what was acknowledged since this was last asked.
    fn p99(&self) -> Option<f64> {
        let latencies = Distribution::of(self.acknowledged.take_latencies());
        (latencies.count > 0).then_some(latencies.p99_ms)
    }

    fn say(&mut self, words: &str) {
        self.output.note(format!(
            "{words}; accepted {}, refused {}, arrived {}",
            self.acknowledged.count(),
            self.acknowledged.refused(),
            self.receiver.counts().0
        ));
    }

    fn report(mut self, latencies: Latencies) -> Report {
        let proof = Proof::of(&self.acknowledged.steps(), &self.receiver.confirmed());
        if !proof.unasked.is_empty() {
            // After an answer that was cut off an event may be stored whatever was answered later.
            self.output.note(format!(
                "{} events arrived that were not acknowledged in the end",
                proof.unasked.len()
            ));
        }
        if self.books.holds != Some(true) {
            self.broken
                .push("the server's own accounting does not hold".to_owned());
        }
        let stated = self.books.repeats_stated(DESTINATION);
        if proof.repeats > stated {
            self.broken.push(format!(
                "{} repeats, and by the server's own count there can be {stated}",
                proof.repeats
            ));
        }
        let figures = Figures {
            accepted: proof.acknowledged,
            refused: self.acknowledged.refused(),
            delivered: proof.arrived,
            repeated: proof.repeats,
            lost: Some(proof.lost.len() as u64),
            reordered: Some(proof.reordered.len() as u64),
            p99_before_ms: latencies.before,
            p99_during_ms: latencies.during,
            p99_after_ms: latencies.after,
            drain_per_s: self.drain.per_second(),
            disk_peak_bytes: self.disk_peak_bytes,
        };
        Report {
            figures,
            broken: self.broken,
        }
    }
}

async fn ended(producing: &mut JoinHandle<Result<(), Failure>>) -> Result<(), Failure> {
    producing
        .await
        .map_err(|error| Failure::new(Exit::Failed, format!("the producers ended: {error}")))?
}

async fn pending(client: &mut Client) -> Result<u64, Failure> {
    let list = client.get("/v1/destinations").await?;
    let pending = |one: &Value| one.get("pending").and_then(Value::as_u64);
    Ok(items(&list).iter().filter_map(pending).sum())
}
