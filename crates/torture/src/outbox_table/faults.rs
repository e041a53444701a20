//! What fails while rows are read, one thing after the other.

use std::fmt;
use std::time::Duration;

use wayhold::fault_proxy::Fault;

use super::database::Database;
use super::reader::{Link, Reader};
use crate::dice::Dice;

/// How long everything is well before the next fault, in milliseconds, at least and beyond that.
const WELL: (u64, u64) = (80, 700);

/// How often each happened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    kills: u64,
    stops: u64,
    links: u64,
    databases: u64,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} kills and {} stops of a reader, {} of the database, {} broken links",
            self.kills, self.stops, self.databases, self.links
        )
    }
}

/// Lets one thing fail, and be well again.
pub(super) fn one(
    dice: &mut Dice,
    readers: &mut [Reader],
    database: &Database,
    link: &Link,
    tally: &mut Tally,
) {
    std::thread::sleep(Duration::from_millis(WELL.0 + dice.below(WELL.1)));
    let which = usize::try_from(dice.below(readers.len() as u64)).unwrap();
    let server = &mut readers[which].server;
    match dice.below(10) {
        0..4 => {
            server.kill();
            // Another one may take over meanwhile.
            std::thread::sleep(Duration::from_millis(dice.below(200)));
            server.spawn();
            if dice.one_in(3) {
                std::thread::sleep(Duration::from_millis(dice.below(120)));
                server.kill();
                server.spawn();
            }
            server.await_ready();
            tally.kills += 1;
        }
        4 => {
            let (status, _) = server.terminate();
            if !status.success() {
                server.fail(&format!("does not stop as it should: {status}"));
            }
            server.start();
            tally.stops += 1;
        }
        5..8 if link.is_there() => {
            let fault = match dice.one_in(3) {
                true => Fault::Stall,
                false => Fault::Cut,
            };
            link.suffer(fault, Duration::from_millis(20 + dice.below(500)));
            tally.links += 1;
        }
        8 if database.kill() => {
            std::thread::sleep(Duration::from_millis(dice.below(500)));
            database.start();
            tally.databases += 1;
        }
        _ => {}
    }
}
