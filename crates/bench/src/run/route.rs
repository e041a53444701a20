//! What routing costs: one event held against one route, and against a hundred of which one matches.
//! Of the library alone, in this process.

use std::hint::black_box;
use std::time::{Duration, Instant};

use wayhold_model::condition::Condition;
use wayhold_model::route::{RouteRule, Router};
use wayhold_model::{DestinationId, Event, EventParts};

use super::part::{Part, Round};
use super::series::Figures;
use crate::BenchError;
use crate::payload;

/// Figures and their numbers of routes.
const ROUTES: [(&str, u32); 2] = [("route.us.1", 1), ("route.us.100", 100)];
/// Events between two looks at the clock.
const EVENTS_PER_LOOK: usize = 1024;

/// Microseconds for each event.
pub const PART: Part = Part {
    names: &[ROUTES[0].0, ROUTES[1].0],
    targets: &[],
    round,
};

fn round(round: &Round<'_>, figures: &mut Figures) -> Result<(), BenchError> {
    for (name, routes) in ROUTES.iter().filter(|(name, _)| round.wants(name)) {
        let time = Duration::from_secs_f64(round.plan.route_seconds);
        figures.add(*name, "us/event", micros(&router(*routes)?, time)?);
    }
    Ok(())
}

/// Routes by the beginning of the type, as most are written. Only the last takes what is sent.
fn router(routes: u32) -> Result<Router, BenchError> {
    let rule = |number: u32| {
        let kind = match routes - number {
            1 => "com.example.".to_owned(),
            _ => format!("com.example{number}."),
        };
        Ok::<_, BenchError>(RouteRule {
            name: format!("route {number}"),
            when: Some(Condition::compile(&format!("type.startsWith(\"{kind}\")"))?),
            to: vec![DestinationId(number)],
        })
    };
    Ok(Router::new(
        (0..routes).map(rule).collect::<Result<Vec<_>, _>>()?,
    ))
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn micros(router: &Router, time: Duration) -> Result<f64, BenchError> {
    let events = events()?;
    let mut routed = 0;
    let started = Instant::now();
    while started.elapsed() < time {
        for event in events.iter().cycle().take(EVENTS_PER_LOOK) {
            black_box(router.route(black_box(event))?);
        }
        routed += EVENTS_PER_LOOK;
    }
    Ok(started.elapsed().as_secs_f64() * 1e6 / routed as f64)
}

fn events() -> Result<Vec<Event>, BenchError> {
    let event = |(number, body): (usize, String)| {
        Ok(Event::new(&EventParts {
            id: &format!("route-{number}"),
            source: "/bench",
            kind: "com.example.shipment.scanned",
            content_type: "application/json",
            key: &format!("key-{number}"),
            data: body.into(),
            ..EventParts::default()
        })?)
    };
    payload::bodies()
        .into_iter()
        .enumerate()
        .map(event)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_the_routes_takes_every_event() {
        for (_, routes) in ROUTES {
            let router = router(routes).unwrap();
            for event in events().unwrap() {
                let routed = router.route(&event).unwrap();
                assert_eq!(routed.destinations.ids(), [DestinationId(routes - 1)]);
            }
        }
    }
}
