//! Wayhold as the reader of a table, behind a link that can be cut.

use std::path::Path;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::Value;
use wayhold::fault_proxy::{Fault, FaultProxy, Protocol};

use super::database::{Database, Engine};
use super::judge::Arrived;
use super::transaction::UNWANTED;
use crate::black_box::client::Client;
use crate::black_box::server::{SMALL_SEGMENTS, Server};

/// What hands the database's address and password to the server.
const URL: &str = "TORTURE_DATABASE_URL";

/// How long the last rows may take without any of them getting further: more than a reader waits at most before it
/// tries again, also where other work leaves it a fiftieth of a core, with which one batch took longer than a minute.
const PATIENCE: Duration = Duration::from_secs(300);

/// How often is looked whether rows are left.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How rows are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Poll,
    Logical,
}

/// A link to a server, which can be cut; a file has none.
pub struct Link {
    proxy: Option<FaultProxy>,
    // Dropped after the proxy, whose tasks run on it.
    runtime: tokio::runtime::Runtime,
}

impl Link {
    pub fn to(database: &Database) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let proxy = database.address().map(|address| {
            // What passes is no HTTP, so that it passes as it is.
            let started = FaultProxy::start(address, Protocol::Http);
            runtime.block_on(started).unwrap()
        });
        Self { proxy, runtime }
    }

    /// How it is reached.
    pub fn url(&self, database: &Database) -> String {
        database.url_at(self.proxy.as_ref().map(FaultProxy::address))
    }

    /// Something is wrong with it for so long; nothing where there is no link.
    pub fn suffer(&self, fault: Fault, time: Duration) {
        if let Some(proxy) = &self.proxy {
            proxy.set(fault);
            std::thread::sleep(time);
            proxy.set(Fault::None);
        }
    }

    /// Whether there is one.
    pub fn is_there(&self) -> bool {
        self.proxy.is_some()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let _entered = self.runtime.enter();
        self.proxy = None;
    }
}

/// A server that reads the table and writes what it accepted to a file.
pub struct Reader {
    pub server: Server,
}

impl Reader {
    /// Prepares it, without a start.
    pub fn prepare(folder: &Path, database: &Database, url: &str, mode: Mode) -> Self {
        std::fs::create_dir_all(folder).unwrap();
        let mut server = Server::configured(folder, &configuration(database, mode));
        server.set_environment(vec![(URL.to_owned(), url.to_owned())]);
        Self { server }
    }

    /// Waits until it reads: from then on it sees every commit.
    pub fn await_reading(&self) {
        let begun = Instant::now();
        loop {
            let said = sources(&self.server);
            if said[0]["state"] == "reading" {
                return;
            }
            if begun.elapsed() > PATIENCE {
                self.server.fail(&format!("does not begin to read: {said}"));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// What arrived, repeats included.
    pub fn arrived(&self) -> Vec<Arrived> {
        let text = std::fs::read_to_string(self.server.archive()).unwrap_or_default();
        // What a kill cut off was never confirmed, and came again.
        text.lines()
            .filter_map(|line| serde_json::from_str::<Line>(line).ok())
            .map(|line| Arrived {
                id: line.id,
                key: line.partitionkey,
                data: line.data,
            })
            .collect()
    }
}

/// Waits until the table is empty and everything is delivered, whoever of them reads.
pub fn drain(readers: &mut [Reader], database: &Database) {
    let (mut further, mut least) = (Instant::now(), u64::MAX);
    loop {
        let left = database.rows_left();
        if left == 0 {
            break;
        }
        if left < least {
            (further, least) = (Instant::now(), left);
        }
        if further.elapsed() > PATIENCE {
            let said: Vec<Value> = readers.iter().map(|one| sources(&one.server)).collect();
            let seconds = PATIENCE.as_secs();
            readers[0].server.fail(&format!(
                "leaves {left} rows in the table, no further after {seconds} s: {said:?}"
            ));
        }
        std::thread::sleep(LOOK_EVERY);
    }
    for reader in readers {
        reader.server.drain();
    }
}

/// What a server says of its sources.
fn sources(server: &Server) -> Value {
    let answer = Client::new(server.address).get("/v1/status");
    answer.map_or(Value::Null, |answer| answer.json()["sources"].clone())
}

#[derive(Deserialize)]
struct Line {
    id: String,
    #[serde(default)]
    partitionkey: String,
    #[serde(default)]
    data: Value,
}

fn configuration(database: &Database, mode: Mode) -> String {
    let order = match database.table.counts {
        true => "order_by = \"position\"\n",
        false => "",
    };
    let mode = match mode {
        Mode::Poll => "poll",
        Mode::Logical => "logical",
    };
    let after = match database.table.marks {
        true => "after_accept = \"mark\"\nmark_column = \"taken\"\n",
        false => "",
    };
    // One shard: the file then shows the order of acceptance for each key, as it would for several.
    debug_assert!(mode == "poll" || database.engine == Engine::Postgres);
    format!(
        r#"
[store]
{SMALL_SEGMENTS}

[sources.app]
kind = "outbox_table"
url = {{ env = "{URL}" }}
table = "outboxevent"
mode = "{mode}"
{order}{after}
[destinations.archive]
kind = "file"
path = "archive.ndjson"

[[routes]]
when = 'type != "{UNWANTED}"'
to = ["archive"]
"#
    )
}
