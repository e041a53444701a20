//! `wayhold demo`: the main job at once. A server of its own on a free port and a folder of its own, a
//! story of logistics events, a file and a webhook as destinations. The webhook fails and is slow, the
//! server is killed in the middle, and at the end a checker that knows only the story says what was
//! lost, reordered or repeated. Modules in suggested reading order.

pub mod configuration;

pub mod archive;

pub mod figures;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::exit::{Exit, Failure};
use super::output::Output;
use super::rehearsal::books::Books;
use super::rehearsal::producer::{Acknowledged, OnRefusal, produce};
use super::rehearsal::proof::Proof;
use super::rehearsal::receiver::{Mood, Receiver};
use super::rehearsal::server::Server;
use super::rehearsal::story::Story;
use archive::Archive;
use configuration::configuration;
use figures::{Figures, Moment};

/// Producers at work: as many requests are in flight at most.
const PRODUCERS: usize = 16;

/// How often the figures are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How long what is pending may take to arrive once everything is well again.
const DRAINED_WITHIN: Duration = Duration::from_secs(60);

/// How long is waited after the last arrival for repeats that are still under way.
const QUIET_FOR: Duration = Duration::from_millis(500);

/// Show what Wayhold is for: outage, kill, restart, and the proof that nothing was lost.
#[derive(Debug, clap::Args)]
pub struct Demo {
    /// Keep configuration, data and log in this new or empty folder.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Which story is told; one seed is one story.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Events in the story.
    #[arg(long, default_value_t = 16_000)]
    events: usize,
    /// Events sent per second.
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u32).range(1..))]
    rate: u32,
}

/// What happens when so many percent of the story are acknowledged.
const PLOT: [(u64, Turn); 5] = [
    (
        15,
        Turn::Portal(
            Mood::Failing,
            "the portal fails: it answers 503 to everything",
        ),
    ),
    (40, Turn::Kill),
    (50, Turn::Portal(Mood::Well, "the portal is well again")),
    (
        65,
        Turn::Portal(Mood::Slow, "the portal is slow: 60 ms for each event"),
    ),
    (
        80,
        Turn::Portal(Mood::Well, "the portal is as quick as before"),
    ),
];

#[derive(Clone, Copy, Debug)]
enum Turn {
    Portal(Mood, &'static str),
    Kill,
}

impl Demo {
    /// Runs the demo; the proof is its result.
    ///
    /// # Errors
    /// When the proof fails, or the demo cannot be run here.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let cannot = |what: &str, error: &std::io::Error| {
            Failure::new(Exit::Failed, format!("{what}: {error}"))
        };
        let temporary = tempfile::Builder::new()
            .prefix("wayhold-demo-")
            .tempdir()
            .map_err(|error| cannot("cannot make a temporary folder", &error))?;
        let folder = match &self.keep {
            Some(folder) => empty(folder)?,
            None => temporary.path().to_owned(),
        };
        let receiver = Receiver::start()
            .await
            .map_err(|error| cannot("the portal cannot listen", &error))?;
        let unwritable = |error| cannot("cannot write into the demo's folder", &error);
        let server = Server::prepare(&folder).map_err(unwritable)?;
        server
            .configure(&configuration(&server.listen(), &receiver.url()))
            .map_err(unwritable)?;
        let mut stage = Stage {
            archive: Archive::new(folder.join("archive.ndjson")),
            receiver,
            server,
            acknowledged: Acknowledged::default(),
            figures: Figures::begin(),
            books: Books::default(),
            kills: 0,
        };
        let outcome = stage.play(&self, output).await;
        stage.figures.finish();
        outcome?;
        let proofs = stage.proofs();
        stage.report(&proofs, output);
        if self.keep.is_some() {
            output.note(format!(
                "configuration, data and log are in {}",
                folder.display()
            ));
            output.line(format!(
                "wayhold serve --config {}",
                stage.server.config().display()
            ));
        }
        if stage.holds(&proofs) {
            Ok(())
        } else {
            Err(Failure::new(Exit::Failed, "a promise was broken"))
        }
    }
}

/// An absolute path of a folder that is there and empty: a demo never mixes with other data.
fn empty(folder: &Path) -> Result<PathBuf, Failure> {
    let unusable = |what: &dyn std::fmt::Display| {
        Failure::usage(format!("--keep {}: {what}", folder.display()))
    };
    std::fs::create_dir_all(folder).map_err(|error| unusable(&error))?;
    let mut entries = std::fs::read_dir(folder).map_err(|error| unusable(&error))?;
    if entries.next().is_some() {
        return Err(unusable(&"expected a new or empty folder"));
    }
    folder.canonicalize().map_err(|error| unusable(&error))
}

/// Everything and everyone that takes part.
struct Stage {
    server: Server,
    receiver: Receiver,
    archive: Archive,
    acknowledged: Acknowledged,
    figures: Figures,
    books: Books,
    kills: u32,
}

impl Stage {
    async fn play(&mut self, demo: &Demo, output: &mut Output) -> Result<(), Failure> {
        self.server.start().await?;
        self.figures.say(
            &format!("the server accepts events at {}", self.server.address()),
            output,
        );
        let mut producing = self.begin(demo)?;
        let total = demo.events as u64;
        for (percent, turn) in PLOT {
            while self.acknowledged.count() * 100 < total * percent && !producing.is_finished() {
                self.look(output).await?;
            }
            self.turn(turn, output).await?;
        }
        while !producing.is_finished() {
            self.look(output).await?;
        }
        (&mut producing).await.map_err(|error| {
            Failure::new(Exit::Failed, format!("the producers ended: {error}"))
        })??;
        self.figures.say(
            "all events are acknowledged; what is pending arrives",
            output,
        );
        self.drain(output).await?;
        let mut client = self.server.client()?;
        self.books.read_quiet(&mut client).await?;
        self.server.stop().await?;
        self.archive.follow().map_err(|error| unreadable(&error))
    }

    fn begin(&self, demo: &Demo) -> Result<JoinHandle<Result<(), Failure>>, Failure> {
        let mut clients = Vec::new();
        for _ in 0..PRODUCERS {
            clients.push(self.server.client()?);
        }
        let (events, rate) = (demo.events, demo.rate);
        let story = Story::new(demo.seed).take(events);
        let acknowledged = self.acknowledged.clone();
        Ok(tokio::spawn(produce(
            story,
            rate,
            clients,
            OnRefusal::Repeat,
            acknowledged,
        )))
    }

    async fn turn(&mut self, turn: Turn, output: &mut Output) -> Result<(), Failure> {
        match turn {
            Turn::Portal(mood, words) => {
                self.receiver.feel(mood);
                self.figures.say(words, output);
            }
            Turn::Kill => {
                self.books.read(&mut self.server.client()?).await?;
                self.figures.say(
                    "kill -9: the server is gone, requests were in flight",
                    output,
                );
                self.server.kill().map_err(|error| {
                    Failure::new(Exit::Failed, format!("cannot kill the server: {error}"))
                })?;
                self.kills += 1;
                let killed = Instant::now();
                self.server.start().await?;
                let away = killed.elapsed().as_millis();
                self.figures
                    .say(&format!("it accepts again after {away} ms"), output);
            }
        }
        Ok(())
    }

    /// Waits until every acknowledged event has arrived everywhere, and a moment longer.
    async fn drain(&mut self, output: &mut Output) -> Result<(), Failure> {
        let given_up = Instant::now() + DRAINED_WITHIN;
        while !self.proofs().iter().all(|(_, proof)| proof.lost.is_empty()) {
            if Instant::now() > given_up {
                self.figures
                    .say("not everything arrived within 60 s", output);
                return Ok(());
            }
            self.look(output).await?;
        }
        tokio::time::sleep(QUIET_FOR).await;
        self.look(output).await
    }

    async fn look(&mut self, output: &mut Output) -> Result<(), Failure> {
        tokio::time::sleep(LOOK_EVERY).await;
        self.archive.follow().map_err(|error| unreadable(&error))?;
        let (portal, rejected) = self.receiver.counts();
        let moment = Moment {
            accepted: self.acknowledged.count(),
            archive: self.archive.arrived().len() as u64,
            portal,
            rejected,
            latency: self.acknowledged.latency(),
        };
        self.figures.show(&moment, output);
        Ok(())
    }

    fn proofs(&self) -> [(&'static str, Proof); 2] {
        let acknowledged = self.acknowledged.steps();
        [
            ("archive", Proof::of(&acknowledged, self.archive.arrived())),
            (
                "portal",
                Proof::of(&acknowledged, &self.receiver.confirmed()),
            ),
        ]
    }

    /// Whether everything arrived in order, no more often than the server says, and its books agree.
    fn holds(&self, proofs: &[(&'static str, Proof)]) -> bool {
        let arrivals = proofs
            .iter()
            .all(|(name, proof)| proof.holds() && proof.repeats <= self.books.repeats_stated(name));
        arrivals && self.books.holds == Some(true)
    }

    fn report(&self, proofs: &[(&'static str, Proof)], output: &mut Output) {
        output.line(format!(
            "{} events acknowledged through {} kill -9 of the server ({} requests were repeated)",
            self.acknowledged.count(),
            self.kills,
            self.acknowledged.repeated()
        ));
        for (name, proof) in proofs {
            output.line(format!(
                "{name:8} {} of {} arrived, {} lost, {} reordered, {} never acknowledged, {} repeats (at most {} by the server's count)",
                proof.arrived,
                proof.acknowledged,
                proof.lost.len(),
                proof.reordered.len(),
                proof.unasked.len(),
                proof.repeats,
                self.books.repeats_stated(name)
            ));
        }
        output.line(match self.books.holds {
            Some(true) => "the server's own accounting holds",
            Some(false) => "the server's own accounting does not hold",
            None => "the server's own counts did not come to rest",
        });
        if self.holds(proofs) {
            let repeats: u64 = proofs.iter().map(|(_, proof)| proof.repeats).sum();
            output.line(format!(
                "nothing lost, nothing reordered, {repeats} repeats"
            ));
        }
        let destinations: serde_json::Map<_, _> = proofs
            .iter()
            .map(|(name, proof)| {
                let counts = json!({
                    "arrived": proof.arrived, "lost": proof.lost.len(), "repeats": proof.repeats,
                    "reordered": proof.reordered.len(), "never_acknowledged": proof.unasked.len(),
                    "repeats_stated": self.books.repeats_stated(name),
                });
                ((*name).to_owned(), counts)
            })
            .collect();
        output.json(&json!({
            "acknowledged": self.acknowledged.count(), "kills": self.kills,
            "accounting_holds": self.books.holds,
            "destinations": destinations,
        }));
    }
}

fn unreadable(error: &std::io::Error) -> Failure {
    Failure::new(Exit::Failed, format!("the archive cannot be read: {error}"))
}
