//! A backup that is made under load, restored, and held against what was acknowledged before it began.

use std::process::Command;
use std::time::{Duration, Instant};

use super::checks::{Check, STORED_MIN, await_stored};
use crate::black_box::client::Client;
use crate::black_box::receiver::Mood;
use crate::black_box::server::{SMALL_SEGMENTS, Server, binary};
use crate::black_box::story::Story;

/// A backup, restored.
pub(super) const BACKUP: Check = Check {
    name: "a backup that is restored",
    run: restored,
};

/// Longest that the backup of some hundred events may take.
const BACKUP_TAKES_MAX: Duration = Duration::from_secs(30);

fn restored(seed: u64, fault: &str) {
    let mut story = Story::new(seed).with_fault(fault);
    story.receiver.feel(Mood::Well);
    let backup = story.folder().join("backup");
    let mut before = Vec::new();
    story.under_load(|story| {
        story.server.start();
        await_stored(story, STORED_MIN);
        before = story.plan.history.acknowledged();
        let body = format!(r#"{{"to":{:?}}}"#, backup.display().to_string());
        let headers = "Content-Type: application/json\r\n";
        let begun = Client::new(story.server.address).post("/v1/backups", headers, body.as_bytes());
        await_backup(&story.server, &format!("{begun:?}"));
        story.server.kill();
        1
    });
    story.judge(STORED_MIN, 1);
    story.server.kill();

    let folder = story.folder().join("restored");
    std::fs::create_dir(&folder).unwrap();
    let mut server = Server::prepare(&folder, story.receiver.address, SMALL_SEGMENTS);
    let run = Command::new(binary())
        .args(["store", "restore", "--from"])
        .arg(&backup)
        .arg("--data")
        .arg(server.data())
        .output()
        .unwrap();
    if !run.status.success() {
        server.fail(&format!("does not restore its backup: {run:?}"));
    }
    server.start();
    let lost = before.iter().filter(|event| !server.knows(**event)).count();
    if lost > 0 {
        let of = before.len();
        let what = format!("restored lacks {lost} of {of} events acknowledged before its backup");
        server.fail(&what);
    }
}

/// Waits until the only backup is done.
fn await_backup(server: &Server, begun: &str) {
    let since = Instant::now();
    loop {
        let listed = server.get("/v1/backups");
        let newest = listed.pointer("/items/0/state");
        match newest.and_then(|state| state.as_str()) {
            Some("done") => return,
            Some("running") if since.elapsed() < BACKUP_TAKES_MAX => {}
            _ => server.fail(&format!("does not make a backup ({begun}): {listed}")),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
