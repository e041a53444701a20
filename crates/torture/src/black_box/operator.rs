//! An operator at work beside the load: redrives and discards dead letters, pauses and resumes, makes backups, so
//! that faults meet these as well; and where asked for changes the number of shards and retires destinations.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::client::Client;
use super::ending::joined;
use super::history::Event;
use super::load::Plan;

/// Between two actions.
const PAUSE: Duration = Duration::from_millis(15);

/// Generations of shards from which on the operator makes no new one: what is held stays small.
const GENERATIONS_MAX: usize = 4;

/// Most shards that the operator asks for.
const SHARDS_MAX: u64 = 3;

const JSON: &str = "Content-Type: application/json\r\n";

/// What an operator has an eye on: every other action is this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Duty {
    /// A bit of everything, but for what changes the store's shape.
    Everyday,
    /// One backup after the other.
    Backups,
    /// Another number of shards, and destinations that left the configuration.
    Shape,
}

/// The duty as it is now; it may change while the operator works.
#[derive(Debug)]
pub struct Focus(AtomicU8);

impl Default for Focus {
    fn default() -> Self {
        Self(AtomicU8::new(Duty::Everyday as u8))
    }
}

impl Focus {
    pub fn set(&self, duty: Duty) {
        self.0.store(duty as u8, Ordering::Relaxed);
    }

    fn is(&self, duty: Duty) -> bool {
        self.0.load(Ordering::Relaxed) == duty as u8
    }
}

/// An operator at work.
pub struct Operator {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Operator {
    pub fn start(plan: &Arc<Plan>, focus: &Arc<Focus>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (plan, focus, until) = (Arc::clone(plan), Arc::clone(focus), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let backups = tempfile::tempdir().expect("a place for backups");
            let backup = backups.path().join("backup");
            while !until.load(Ordering::Relaxed) {
                act(&plan, &focus, &backup);
                std::thread::sleep(PAUSE);
            }
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }

    /// Ends its work; whatever it paused runs again.
    pub fn stop(mut self, plan: &Plan) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            joined(thread);
        }
        post(plan, "/v1/destinations/hook/resume", "{}");
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// One action; that the server is away or says no is no surprise.
fn act(plan: &Plan, focus: &Focus, backup: &Path) {
    if plan.seed.one_in(2) {
        if focus.is(Duty::Backups) {
            return back_up(plan, backup);
        }
        if focus.is(Duty::Shape) {
            return match plan.seed.one_in(2) {
                true => reshard(plan),
                false => {
                    retire_guest(plan);
                    forget_guest(plan);
                }
            };
        }
    }
    match plan.seed.below(16) {
        2 => back_up(plan, backup),
        0 | 8 => {
            post(
                plan,
                "/v1/destinations/hook/pause",
                r#"{"reason":"a look"}"#,
            );
            post(plan, "/v1/destinations/hook/resume", "{}");
        }
        1 | 9 => {
            if let Some((letter, event)) = a_letter(plan) {
                plan.history.discard(event, false);
                let target = format!("/v1/dead-letters/{letter}/discard");
                let done = post(plan, &target, r#"{"reason":"not wanted any more"}"#);
                if done == Some(200) {
                    plan.history.discard(event, true);
                }
            }
        }
        _ => {
            if let Some((letter, _)) = a_letter(plan) {
                post(plan, &format!("/v1/dead-letters/{letter}/redrive"), "{}");
            }
        }
    }
}

/// The backup before is in the way; what is left of one that was cut off is for the server to clean up.
fn back_up(plan: &Plan, backup: &Path) {
    if backup.join("manifest.json").exists() {
        std::fs::remove_dir_all(backup).ok();
    }
    let body = format!(r#"{{"to":{:?}}}"#, backup.display().to_string());
    post(plan, "/v1/backups", &body);
}

fn reshard(plan: &Plan) {
    let Ok(answer) = Client::new(plan.address).get("/v1/shards") else {
        return;
    };
    let listed = answer.json();
    let held = listed["items"].as_array().map_or(0, Vec::len);
    if (1..GENERATIONS_MAX).contains(&held) {
        let body = format!(r#"{{"count":{}}}"#, 1 + plan.seed.below(SHARDS_MAX));
        Client::new(plan.address)
            .put("/v1/shards", body.as_bytes())
            .ok();
    }
}

/// Ends what the guest is owed; refused while the configuration names it.
pub fn retire_guest(plan: &Plan) {
    let fate = match plan.seed.one_in(2) {
        true => "discard",
        false => "dead-letter",
    };
    let body = format!(r#"{{"pending":"{fate}"}}"#);
    post(plan, "/v1/destinations/guest/retire", &body);
}

/// Discards all dead letters of the guest that left, whose deliveries are nobody's history: each keeps a generation
/// of shards that could go otherwise, and then there is no room for a new one.
fn forget_guest(plan: &Plan) {
    let discard = |how: &str| {
        let body = format!(r#"{{"destination":"guest","reason":"the guest left",{how}}}"#);
        Client::new(plan.address).post("/v1/dead-letters/discard", JSON, body.as_bytes())
    };
    let counted = discard(r#""dry_run":true"#).map(|answer| answer.json()["selected"].as_u64());
    if let Ok(Some(count)) = counted
        && count > 0
    {
        discard(&format!(r#""expect":{count}"#)).ok();
    }
}

/// One of the webhook's dead letters, with its event.
fn a_letter(plan: &Plan) -> Option<(u64, Event)> {
    let answer = Client::new(plan.address).get("/v1/dead-letters?destination=hook&limit=20");
    let page = answer.ok()?.json();
    let letters = page["items"].as_array().filter(|items| !items.is_empty())?;
    let letter = &letters[usize::try_from(plan.seed.below(letters.len() as u64)).ok()?];
    let event = letter["event_id"].as_str()?.parse().ok()?;
    Some((letter["id"].as_u64()?, Event(event)))
}

fn post(plan: &Plan, target: &str, body: &str) -> Option<u16> {
    let answer = Client::new(plan.address).post(target, JSON, body.as_bytes());
    answer.ok().map(|answer| answer.status)
}
