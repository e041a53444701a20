//! What limits refuse, tell and take over.

use wayhold_model::EventParts;

use super::*;
use crate::config::{self, Environment, Overrides};

const ONE: DestinationId = DestinationId(1);
const TWO: DestinationId = DestinationId(2);

fn event(source: &str) -> Event {
    Event::new(&EventParts {
        id: "1",
        source,
        kind: "t",
        ..EventParts::default()
    })
    .unwrap()
}

fn events(limit: u64) -> BacklogLimits {
    BacklogLimits {
        events: Some(limit),
        ..BacklogLimits::default()
    }
}

/// A limit of 100 events on the whole, of 50 on `one`; telemetry is admitted until 0.8.
fn limited() -> Admission {
    let telemetry = Source {
        when: Some(Condition::compile("source == \"/telemetry\"").unwrap()),
        admit_until: Fill::from_fraction(0.8).unwrap(),
    };
    let one = Limit::new(Some("one".to_owned()), events(50), OnLimit::Refuse);
    Admission::of(
        vec![telemetry],
        Limit::new(None, events(100), OnLimit::Refuse),
        vec![(ONE, one)],
    )
}

/// So much is pending for one and for two; `resolved` counts what was.
fn pending(one: u64, two: u64, resolved: i64) -> Backlogs {
    let of = |events, resolved| Pending {
        events,
        resolved,
        ..Pending::default()
    };
    Backlogs {
        whole: of(one + two, resolved),
        destinations: vec![(ONE, of(one, resolved)), (TWO, of(two, 0))],
    }
}

#[test]
fn bulk_is_refused_first_and_a_full_destination_only_for_its_own_events() {
    let admission = limited();
    let both = DestinationSet::new([ONE, TWO]);
    let other = DestinationSet::new([TWO]);
    let is_in = |source: &str, to: &DestinationSet| {
        admission.decide(&event(source), to, Fill::FULL).is_ok()
    };
    // one, two pending: orders to both, telemetry to both, orders to two, telemetry to two.
    for (one, two, expected, open) in [
        (0, 0, [true; 4], true),
        (39, 40, [true; 4], true),
        (40, 0, [true, false, true, true], false),
        (50, 0, [false, false, true, true], false),
        // Still above nine tenths of 50, and of 40.
        (46, 0, [false, false, true, true], false),
        (44, 0, [true, false, true, true], false),
        (36, 44, [true, false, true, false], false),
        (35, 65, [false; 4], false),
        (35, 36, [true, true, true, true], true),
    ] {
        admission.observe(&pending(one, two, 0), Timestamp::EPOCH, Instant::now());
        let decided = [
            is_in("/orders", &both),
            is_in("/telemetry", &both),
            is_in("/orders", &other),
            is_in("/telemetry", &other),
        ];
        assert_eq!(decided, expected, "{one} {two}");
        assert_eq!(admission.is_open(Fill::FULL), open, "{one} {two}");
    }
}

#[test]
fn a_token_is_refused_at_its_own_mark_and_the_lower_one_counts() {
    let admission = limited();
    let to = DestinationSet::new([TWO]);
    admission.observe(&pending(0, 60, 0), Timestamp::EPOCH, Instant::now());
    for (source, until, is_in) in [
        ("/orders", 1.0, true),
        ("/orders", 0.61, true),
        ("/orders", 0.6, false),
        ("/telemetry", 0.9, true),
        ("/telemetry", 0.5, false),
    ] {
        let until = Fill::from_fraction(until).unwrap();
        let decided = admission.decide(&event(source), &to, until);
        assert_eq!(decided.is_ok(), is_in, "{source} {until:?}");
    }
}

#[test]
fn a_refusal_names_the_limit_and_how_long_its_drain_takes() {
    let admission = limited();
    let to = DestinationSet::new([ONE]);
    let start = Instant::now();
    let refusal = |admission: &Admission| {
        admission
            .decide(&event("/orders"), &to, Fill::FULL)
            .unwrap_err()
    };
    // Nothing drains.
    admission.observe(&pending(60, 0, 0), Timestamp::EPOCH, start);
    let told = refusal(&admission);
    assert_eq!(told.destination.as_deref(), Some("one"));
    assert_eq!(
        (told.measure, told.retry_after),
        (Measure::Events, WAIT_UNKNOWN)
    );
    // Two a second: from 56 down to 44 takes 6 s.
    for second in 1..=2 {
        let at = start + Duration::from_secs(second);
        let resolved = second.cast_signed() * 2;
        let left = 60 - second * 2;
        admission.observe(&pending(left, 0, resolved), Timestamp::EPOCH, at);
    }
    let wait = refusal(&admission).retry_after.as_secs_f64();
    assert!((wait - 6.0).abs() < 0.01, "{wait}");
    // It stops to drain: after the ten seconds nothing is known of it again.
    for second in 3..=30 {
        let at = start + Duration::from_secs(second);
        admission.observe(&pending(56, 0, 4), Timestamp::EPOCH, at);
    }
    assert_eq!(refusal(&admission).retry_after, WAIT_UNKNOWN);
    // And a wait that the rate makes endless ends at a bound.
    let at = start + Duration::from_secs(31);
    admission.observe(&pending(55, 0, 5), Timestamp::EPOCH, at);
    assert_eq!(refusal(&admission).retry_after, Duration::from_secs(110));
    admission.observe(&pending(1_000_000, 0, 5), Timestamp::EPOCH, at);
    assert_eq!(refusal(&admission).retry_after, WAIT.1);
}

#[test]
fn a_limit_that_refuses_goes_on_to_do_so_under_a_newer_configuration_that_keeps_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("wayhold.toml");
    let config = |events: u64, rate: &str| {
        let text = format!(
            "[destinations.one]\nkind = \"null\"\n{rate}\nlimits = {{ events = {events} }}\n[[routes]]\nto = [\"one\"]\n"
        );
        std::fs::write(&path, text).unwrap();
        let none = (Overrides::default(), Environment::default());
        config::load(Some(&path), &none.0, &none.1).unwrap().config
    };
    let first = Admission::new(&config(50, ""), |_| ONE);
    let to = DestinationSet::new([ONE]);
    let refuses = |admission: &Admission, pending_now| {
        admission.observe(
            &pending(pending_now, 0, 0),
            Timestamp::EPOCH,
            Instant::now(),
        );
        admission.decide(&event("/s"), &to, Fill::FULL).is_err()
    };
    assert!(refuses(&first, 50));
    assert!(refuses(&first, 46));
    // Below its limit, and not yet as far below as it has to drain.
    let second = first.succeeding(&config(50, "rate = \"1/s\""), |_| ONE);
    assert!(refuses(&second, 46));
    assert!(!refuses(&second, 44));
    assert!(refuses(&second, 50));
    // Another limit is another matter.
    assert!(!refuses(&second.succeeding(&config(60, ""), |_| ONE), 46));
}

#[test]
fn what_refuses_is_told_with_its_beginning_until_nobody_is_refused() {
    let admission = limited();
    let observe = |one, micros| {
        let now = Timestamp::from_micros(micros);
        admission.observe(&pending(one, 0, 0), now, Instant::now());
    };
    observe(39, 1_000_000);
    assert_eq!(admission.findings(), Vec::<String>::new());
    observe(50, 2_000_000);
    observe(48, 3_000_000);
    let [finding] = &admission.findings()[..] else {
        panic!("one limit refuses");
    };
    for part in ["destination one", "events", "96 %", "1970-01-01T00:00:02"] {
        assert!(finding.contains(part), "{finding}");
    }
    let report = admission.report();
    let used: Vec<_> = report.iter().map(|one| (one.used, one.limit)).collect();
    assert_eq!(used, [(48, 100), (48, 50)]);
    observe(0, 4_000_000);
    assert_eq!(admission.findings(), Vec::<String>::new());
}
