//! The planted control: a reader as it is often written, which remembers the last place that it has read and asks for
//! what comes after it. A row whose place was drawn before that of another, and which is committed after it, is behind
//! its back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::database::Database;
use super::judge::Arrived;
use super::session::Gone;
use crate::black_box::ending::{invalid, joined};

/// How often it asks.
const POLL_EVERY: Duration = Duration::from_millis(5);

/// Rows of one answer.
const ROWS_MAX: usize = 200;

/// A reader at work.
pub struct Naive {
    is_over: Arc<AtomicBool>,
    reading: JoinHandle<Vec<Arrived>>,
}

impl Naive {
    pub fn start(database: &Arc<Database>) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let (database, over) = (Arc::clone(database), Arc::clone(&is_over));
        let reading = std::thread::spawn(move || {
            read(&database, &over).unwrap_or_else(|Gone| invalid("the naive reader's client ended"))
        });
        Self { is_over, reading }
    }

    /// What it has read once nothing more comes.
    pub fn join(self) -> Vec<Arrived> {
        self.is_over.store(true, Ordering::SeqCst);
        joined(self.reading)
    }
}

fn read(database: &Database, is_over: &AtomicBool) -> Result<Vec<Arrived>, Gone> {
    let mut session = database.session().ok_or(Gone)?;
    let (mut arrived, mut last) = (Vec::new(), 0);
    loop {
        // Looked at before the rows: what is committed by then is asked for once more.
        let is_last = is_over.load(Ordering::SeqCst);
        session.send(&format!(
            "SELECT position, id, aggregateid, payload FROM outboxevent WHERE position > {last} \
             ORDER BY position LIMIT {ROWS_MAX};\nSELECT 'read';"
        ))?;
        let lines = session.until("read")?;
        for line in &lines {
            let (place, event) = row(line);
            last = place;
            arrived.push(event);
        }
        if is_last && lines.is_empty() {
            return Ok(arrived);
        }
        std::thread::sleep(POLL_EVERY);
    }
}

fn row(line: &str) -> (u64, Arrived) {
    let columns: Vec<&str> = line.splitn(4, '\t').collect();
    let [place, id, key, data] = columns[..] else {
        invalid(&format!("the database says {line:?}"));
    };
    let event = Arrived {
        id: id.to_owned(),
        key: key.to_owned(),
        data: serde_json::from_str(data).unwrap(),
    };
    (place.parse().unwrap(), event)
}
