//! Memory by destinations: the same events once to one and once to many.

use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::super::exit::Failure;
use super::accept::millis;
use super::backlog::NO_WINDOW;
use super::load::Load;
use super::server::Server;

/// Few destinations, and many.
pub const LANES: [usize; 2] = [1, 50];

/// Events that each destination gets: its tables have their usual size then.
const EVENTS: u64 = 2_000;

/// How often is looked whether all have arrived.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Memory of a server with so many destinations, each of which has had the same events.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Lanes {
    /// Destinations.
    pub lanes: usize,
    /// Resident bytes.
    pub bytes: u64,
}

/// Measures a few and many destinations within `time`.
///
/// # Errors
/// When server or load cannot be run.
pub async fn measure(folder: &Path, time: Duration) -> Result<Vec<Lanes>, Failure> {
    let mut all = Vec::new();
    let each = time / u32::try_from(LANES.len()).unwrap_or(1);
    for lanes in LANES {
        let until = Instant::now() + each;
        let mut server = Server::start(folder, lanes, NO_WINDOW).await?;
        let load = Load {
            target: server.address(),
            callers: 4,
            batch: 100,
            millis: millis(each),
            events: EVENTS,
        };
        load.run_apart().await?;
        while server.pending().await? > 0 && Instant::now() < until {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        let bytes = server.resident()?.now;
        all.push(Lanes { lanes, bytes });
        server.end()?;
    }
    Ok(all)
}

/// What one more destination takes, in bytes.
pub fn bytes_per_lane(all: &[Lanes]) -> u64 {
    match (all.first(), all.last()) {
        (Some(few), Some(many)) => many
            .bytes
            .saturating_sub(few.bytes)
            .checked_div((many.lanes - few.lanes) as u64)
            .unwrap_or_default(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_more_destination_takes_its_part_of_the_difference() {
        let of = |few, many| {
            let [a, b] = LANES;
            bytes_per_lane(&[
                Lanes {
                    lanes: a,
                    bytes: few,
                },
                Lanes {
                    lanes: b,
                    bytes: many,
                },
            ])
        };
        assert_eq!(of(10_000_000, 10_000_000 + 49 * 70_000), 70_000);
        // Noise may be larger than what destinations take.
        assert_eq!(of(10_000_000, 9_000_000), 0);
        assert_eq!(bytes_per_lane(&[]), 0);
    }
}
