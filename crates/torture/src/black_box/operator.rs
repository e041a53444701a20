//! An operator at work beside the load: redrives and discards dead letters, pauses and resumes, makes backups, so
//! that faults meet these as well.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::client::Client;
use super::history::Event;
use super::load::Plan;

/// Between two actions.
const PAUSE: Duration = Duration::from_millis(15);

const JSON: &str = "Content-Type: application/json\r\n";

/// An operator at work.
pub struct Operator {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Operator {
    pub fn start(plan: &Arc<Plan>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (plan, until) = (Arc::clone(plan), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let backups = tempfile::tempdir().expect("a place for backups");
            let backup = backups.path().join("backup");
            while !until.load(Ordering::Relaxed) {
                act(&plan, &backup);
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
            thread.join().expect("an operator that did not fail");
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
fn act(plan: &Plan, backup: &Path) {
    match plan.seed.below(16) {
        // The backup before is in the way; what is left of one that was cut off is for the server to clean up.
        2 => {
            if backup.join("manifest.json").exists() {
                std::fs::remove_dir_all(backup).ok();
            }
            let body = format!(r#"{{"to":{:?}}}"#, backup.display().to_string());
            post(plan, "/v1/backups", &body);
        }
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

/// One of the dead letters, with its event.
fn a_letter(plan: &Plan) -> Option<(u64, Event)> {
    let answer = Client::new(plan.address).get("/v1/dead-letters?limit=20");
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

/// Redrives every dead letter until none is left: what arrived nowhere arrives now.
pub fn redrive_all(plan: &Plan) {
    while let Some((letter, _)) = a_letter(plan) {
        post(plan, &format!("/v1/dead-letters/{letter}/redrive"), "{}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
