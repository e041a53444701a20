//! How a destination's failures are treated, tables `[destinations.NAME.retry]` and
//! `[destinations.NAME.on.CLASS]`.

use std::time::Duration;

use wayhold_model::FailureClass;
use wayhold_model::backoff::{Backoff, WaitList, Waits};
use wayhold_model::verdict::{Patience, Reaction, RetryPolicy, Rule};

use crate::config::section::Section;
use crate::config::setting::Choice;

impl Choice for Reaction {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("retry", Self::Retry),
        ("dead_letter", Self::DeadLetter),
        ("pause", Self::Pause),
        ("disable", Self::Disable),
    ];
}

/// Reads `retry` and `on` of a destination; `None` only with a problem noted.
pub(super) fn read_retry_policy(section: &mut Section<'_, '_, '_>) -> Option<RetryPolicy> {
    let patience = section.table("retry", |section| read_patience(section, &usual()));
    // What is wrong with the rules is told even where the table that they build on is wrong.
    let base = patience.clone().unwrap_or_else(usual);
    let mut policy = RetryPolicy::new(base);
    let whole = section.table("on", |section| read_rules(section, &mut policy));
    patience?;
    whole.then_some(policy)
}

/// Waits begin near a second, since most failures pass at once, and end at five minutes: a key that
/// failed in an outage is not left waiting long after it, and a receiver that always fails sees few
/// attempts.
fn usual() -> Patience {
    Patience {
        waits: Waits::Backoff(Backoff::default()),
        attempts_max: None,
        age_max: None,
    }
}

const MILLISECOND: Duration = Duration::from_millis(1);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Most waits of a list: each is configured by hand.
const WAITS_MAX: usize = 100;

/// Whether every rule could be read.
fn read_rules(section: &mut Section<'_, '_, '_>, policy: &mut RetryPolicy) -> bool {
    let mut whole = true;
    for key in section.keys() {
        let usual = policy.patience.clone();
        let rule = section.table(&key, |section| {
            let then = section.find("then");
            let patience = read_patience(section, &usual)?;
            Some(Rule { then, patience })
        });
        let of_attempts = |class: &FailureClass| class.is_of_attempts();
        let class = FailureClass::from_name(&key).filter(of_attempts);
        match (class, key.parse::<i32>(), rule) {
            (Some(class), _, Some(rule)) => drop(policy.of_class.insert(class, rule)),
            (None, Ok(status), Some(rule)) => drop(policy.of_status.insert(status, rule)),
            (None, Err(_), _) => {
                let classes = FailureClass::ALL.into_iter().filter(of_attempts);
                let names: Vec<_> = classes.map(FailureClass::name).collect();
                let message = format!(
                    "expected a number that the receiver answers with, such as \"503\", or a class of \
                     failure: {}",
                    names.join(", ")
                );
                section.problem(&key, message);
                whole = false;
            }
            (_, _, None) => whole = false,
        }
    }
    whole
}

/// Waits and limits; what is not set is as in `default`.
fn read_patience(section: &mut Section<'_, '_, '_>, default: &Patience) -> Option<Patience> {
    let attempts_max = section.find::<u32>("attempts_max");
    if attempts_max == Some(0) {
        section.problem(
            "attempts_max",
            "expected at least 1; leave it out to try for ever",
        );
    }
    let age_max = section.find::<Duration>("age_max");
    if age_max == Some(Duration::ZERO) {
        section.problem(
            "age_max",
            "expected a time above zero; leave it out to set no end",
        );
    }
    let waits = read_waits(section, &default.waits)?;
    Some(Patience {
        waits,
        attempts_max: attempts_max.or(default.attempts_max),
        age_max: age_max.or(default.age_max),
    })
}

fn read_waits(section: &mut Section<'_, '_, '_>, default: &Waits) -> Option<Waits> {
    let list = section.find::<Vec<Duration>>("waits");
    if section.has("waits") {
        for key in ["base", "cap"] {
            if section.find::<Duration>(key).is_some() {
                section.problem(key, "expected either waits, or base and cap");
            }
        }
        let list = list?;
        if list.len() > WAITS_MAX || list.iter().any(|wait| *wait > DAY) {
            section.problem(
                "waits",
                format!("expected at most {WAITS_MAX} times of at most 1d each"),
            );
        }
        return WaitList::try_new(&list)
            .map(Waits::List)
            .map_err(|error| section.problem("waits", error.to_string()))
            .ok();
    }
    let (base, cap) = match default {
        Waits::Backoff(backoff) => (backoff.base(), backoff.cap()),
        Waits::List(_) if !section.has("base") && !section.has("cap") => {
            return Some(default.clone());
        }
        Waits::List(_) => (Backoff::default().base(), Backoff::default().cap()),
    };
    let base = section.within("base", base, MILLISECOND, DAY);
    let cap = section.within("cap", cap.max(base), MILLISECOND, DAY);
    Backoff::try_new(base, cap)
        .map(Waits::Backoff)
        .map_err(|error| section.problem("cap", error.to_string()))
        .ok()
}
