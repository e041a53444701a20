//! Histories that are broken on purpose, each rule in several ways, and sound ones that look suspicious.

use super::*;

/// Two events of one key in the order of their acceptance, one of another key, one without, and one that
/// is not for the webhook.
struct Cast {
    first: u64,
    second: u64,
    other: u64,
    keyless: u64,
    elsewhere: u64,
}

fn cast() -> Cast {
    let hooked = |number: &u64| Event(*number).is_for_hook();
    let keyed = |number: &u64| hooked(number) && Event(*number).key().is_some();
    let first = (1..).find(keyed).unwrap();
    let key = Event(first).key();
    let of_key = |number: &u64| keyed(number) && Event(*number).key() == key;
    Cast {
        first,
        second: (first + 1..).find(of_key).unwrap(),
        other: (1..).find(|n| keyed(n) && Event(*n).key() != key).unwrap(),
        keyless: (1..)
            .find(|n| hooked(n) && Event(*n).key().is_none())
            .unwrap(),
        elsewhere: (1..).find(|n| !hooked(n)).unwrap(),
    }
}

fn arrival(number: u64) -> Arrival {
    Arrival {
        number,
        intact: true,
        confirmed: true,
        is_tried_again: false,
        watched: 0,
        run: 1,
        at: 100,
        not_before: None,
    }
}

fn unconfirmed(number: u64) -> Arrival {
    Arrival {
        confirmed: false,
        ..arrival(number)
    }
}

fn tried_again(number: u64) -> Arrival {
    Arrival {
        is_tried_again: true,
        ..unconfirmed(number)
    }
}

/// A history that can be broken: what `Evidence` borrows is owned here.
#[derive(Clone)]
struct Tale {
    evidence: Evidence<'static>,
    arrivals: Vec<Arrival>,
    contradictions: Vec<String>,
}

/// All five stored, in order; four of them arrived at the webhook.
fn sound() -> Tale {
    let Cast {
        first,
        second,
        other,
        keyless,
        elsewhere,
    } = cast();
    let stored = [first, second, other, keyless, elsewhere].into_iter();
    let told = stored.zip((10..).map(Told::Stored)).collect();
    Tale {
        evidence: Evidence {
            told,
            routed: Some(Event::is_for_hook),
            books: Books {
                accepted: 4,
                delivered: 4,
                ..Books::default()
            },
            repeats_max: 2,
            ..Evidence::default()
        },
        arrivals: [first, second, other, keyless].map(arrival).into(),
        contradictions: Vec::new(),
    }
}

fn rules(tale: &Tale) -> Vec<Rule> {
    let evidence = Evidence {
        arrivals: &tale.arrivals,
        contradictions: &tale.contradictions,
        ..tale.evidence.clone()
    };
    let mut rules: Vec<Rule> = judge(&evidence)
        .findings
        .into_iter()
        .map(|finding| finding.rule)
        .collect();
    rules.sort_unstable();
    rules.dedup();
    rules
}

type Change = fn(&mut Tale, &Cast);

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn a_broken_history_is_recognised_whatever_is_broken() {
    let broken: [(&str, Rule, Change); 40] = [
        ("one is missing", Rule::NothingLost, |t, c| {
            t.arrivals.retain(|it| it.number != c.other);
        }),
        ("the last is missing", Rule::NothingLost, |t, _| {
            t.arrivals.pop();
        }),
        ("all are missing", Rule::NothingLost, |t, _| {
            t.arrivals.clear();
        }),
        ("one came and was not taken", Rule::NothingLost, |t, _| {
            t.arrivals[3].confirmed = false;
        }),
        (
            "one came twice and was never taken",
            Rule::NothingLost,
            |t, _| {
                t.arrivals[3].confirmed = false;
                t.arrivals.push(t.arrivals[3]);
            },
        ),
        (
            "another's dead letter is no end",
            Rule::NothingLost,
            |t, c| {
                t.arrivals.retain(|it| it.number != c.other);
                t.evidence.dead.insert(c.first);
            },
        ),
        ("another's discard is no end", Rule::NothingLost, |t, c| {
            t.arrivals.retain(|it| it.number != c.other);
            t.evidence.discards_asked.insert(c.first);
        }),
        (
            "what was left open is found stored, and did not come",
            Rule::NothingLost,
            |t, _| {
                let number = (1000..).find(|n| Event(*n).is_for_hook()).unwrap();
                t.evidence.told.insert(number, Told::Stored(99));
            },
        ),
        ("nobody sent it", Rule::NothingInvented, |t, _| {
            let number = (1000..).find(|n| Event(*n).is_for_hook()).unwrap();
            t.arrivals.push(arrival(number));
        }),
        ("it was refused", Rule::NothingInvented, |t, c| {
            t.evidence.told.insert(c.other, Told::Refused);
        }),
        (
            "it was refused and came once",
            Rule::NothingInvented,
            |t, c| {
                t.evidence.told.insert(c.keyless, Told::Refused);
                t.arrivals[3].confirmed = false;
            },
        ),
        ("it is stored nowhere", Rule::NothingInvented, |t, c| {
            t.evidence.told.insert(c.other, Told::Unknown);
        }),
        (
            "a dead letter of what was refused",
            Rule::NothingInvented,
            |t, c| {
                t.arrivals.retain(|it| it.number != c.other);
                t.evidence.told.insert(c.other, Told::Refused);
                t.evidence.dead.insert(c.other);
            },
        ),
        (
            "a dead letter of what nobody sent",
            Rule::NothingInvented,
            |t, _| {
                t.evidence.dead.insert(1001);
            },
        ),
        ("the second first", Rule::Order, |t, _| {
            t.arrivals.swap(0, 1);
        }),
        (
            "the second first, with others between",
            Rule::Order,
            |t, _| {
                t.arrivals.swap(0, 3);
            },
        ),
        ("the second first and again", Rule::Order, |t, c| {
            t.arrivals.insert(0, arrival(c.second));
        }),
        (
            "the second while the first is untaken yet unseen",
            Rule::Order,
            |t, c| {
                t.arrivals.insert(0, unconfirmed(c.second));
            },
        ),
        ("accepted the other way round", Rule::Order, |t, c| {
            t.evidence.told.insert(c.first, Told::Stored(20));
        }),
        ("accepted in another generation", Rule::Order, |t, c| {
            t.evidence.told.insert(c.first, Told::Stored(2 << 56));
        }),
        (
            "the second while the first is tried again",
            Rule::Order,
            |t, c| {
                t.arrivals[0] = tried_again(c.first);
                t.arrivals.push(arrival(c.first));
            },
        ),
        (
            "the second after the first failed twice",
            Rule::Order,
            |t, c| {
                t.arrivals[0] = tried_again(c.first);
                t.arrivals.insert(0, tried_again(c.first));
                t.arrivals.push(arrival(c.first));
            },
        ),
        ("another body", Rule::Intact, |t, _| {
            t.arrivals[0].intact = false;
        }),
        ("another body the second time", Rule::Intact, |t, c| {
            t.arrivals.push(Arrival {
                intact: false,
                ..arrival(c.keyless)
            });
        }),
        ("another body that was not taken", Rule::Intact, |t, c| {
            t.arrivals.insert(
                0,
                Arrival {
                    intact: false,
                    ..unconfirmed(c.first)
                },
            );
        }),
        ("where it is not routed to", Rule::OnlyItsOwn, |t, c| {
            t.arrivals.push(arrival(c.elsewhere));
        }),
        ("not routed to, not taken", Rule::OnlyItsOwn, |t, c| {
            t.arrivals.push(unconfirmed(c.elsewhere));
        }),
        ("too many repeats of one", Rule::Repeats, |t, c| {
            t.arrivals.extend([arrival(c.keyless); 3]);
        }),
        ("too many repeats of several", Rule::Repeats, |t, c| {
            t.arrivals.extend([c.first, c.second, c.other].map(arrival));
        }),
        ("one repeat and no unclean stop", Rule::Repeats, |t, c| {
            t.evidence.repeats_max = 0;
            t.arrivals.push(arrival(c.keyless));
        }),
        ("two receipts", Rule::OneReceipt, |t, _| {
            t.contradictions.push("two receipts".to_owned());
        }),
        ("one more accepted than was sent", Rule::Accounts, |t, _| {
            t.evidence.books.accepted = 5;
            t.evidence.books.delivered = 5;
        }),
        (
            "one less accepted than was acknowledged",
            Rule::Accounts,
            |t, _| {
                t.evidence.books.accepted = 3;
                t.evidence.books.delivered = 3;
            },
        ),
        ("the counts do not add up", Rule::Accounts, |t, _| {
            t.evidence.books.delivered = 3;
        }),
        ("one is pending for ever", Rule::Accounts, |t, _| {
            t.evidence.books.delivered = 3;
            t.evidence.books.pending = 1;
        }),
        (
            "a dead letter that is not listed",
            Rule::Accounts,
            |t, _| {
                t.evidence.books.delivered = 3;
                t.evidence.books.dead = 1;
            },
        ),
        ("a discard that nobody asked for", Rule::Accounts, |t, _| {
            t.evidence.books.delivered = 3;
            t.evidence.books.discarded = 1;
        }),
        ("delivered without an arrival", Rule::Accounts, |t, c| {
            t.arrivals.retain(|it| it.number != c.other);
            t.evidence.dead.insert(c.other);
        }),
        ("sent again at once", Rule::NotTooEarly, |t, c| {
            let asked = Arrival {
                not_before: Some(1100),
                ..unconfirmed(c.first)
            };
            t.arrivals.insert(0, asked);
        }),
        ("sent again a little early", Rule::NotTooEarly, |t, c| {
            let asked = Arrival {
                not_before: Some(1100),
                ..unconfirmed(c.first)
            };
            t.arrivals.insert(0, asked);
            t.arrivals[1].at = 1090;
        }),
    ];
    assert!(broken.len() >= 30);
    for (what, rule, change) in broken {
        let mut tale = sound();
        change(&mut tale, &cast());
        assert!(rules(&tale).contains(&rule), "{what}: {:?}", rules(&tale));
    }
}

#[test]
fn a_sound_history_is_accepted_however_suspicious_it_looks() {
    let sounds: [(&str, Change); 15] = [
        ("as it is", |_, _| {}),
        ("keys in another order", |t, _| t.arrivals.swap(1, 2)),
        ("what has no key in any order", |t, _| {
            let keyless = t.arrivals.pop().unwrap();
            t.arrivals.insert(0, keyless);
        }),
        ("not taken at first", |t, c| {
            t.arrivals.insert(0, unconfirmed(c.first));
        }),
        ("other keys go on while one is tried again", |t, c| {
            t.arrivals[0] = tried_again(c.first);
            t.arrivals.retain(|it| it.number != c.second);
            t.arrivals.extend([c.first, c.second].map(arrival));
        }),
        (
            "the second goes on after the first was refused for good",
            |t, c| {
                t.arrivals[0] = unconfirmed(c.first);
                t.arrivals.push(tried_again(c.first));
                t.arrivals.push(arrival(c.first));
            },
        ),
        ("taken at the third time", |t, c| {
            t.arrivals.splice(0..0, [unconfirmed(c.first); 2]);
        }),
        ("repeats that an unclean stop explains", |t, c| {
            t.arrivals.extend([c.first, c.second].map(arrival));
        }),
        ("a repeat of the first after the second", |t, c| {
            t.arrivals.push(arrival(c.first));
        }),
        ("refused and never seen", |t, _| {
            t.evidence.told.insert(1001, Told::Refused);
        }),
        ("left open and not stored", |t, _| {
            t.evidence.told.insert(1001, Told::Unknown);
        }),
        ("a dead letter", |t, c| {
            t.arrivals[2].confirmed = false;
            t.evidence.dead.insert(c.other);
            t.evidence.books.delivered = 3;
            t.evidence.books.dead = 1;
        }),
        ("discarded, and the confirmation was lost", |t, c| {
            t.arrivals[2].confirmed = false;
            t.evidence.discards_asked.insert(c.other);
            t.evidence.books.delivered = 3;
            t.evidence.books.discarded = 1;
        }),
        ("a discard that came too late", |t, c| {
            t.evidence.discards_asked.insert(c.other);
        }),
        ("sent again early after another start", |t, c| {
            let asked = Arrival {
                not_before: Some(1100),
                run: 0,
                ..unconfirmed(c.first)
            };
            t.arrivals.insert(0, asked);
        }),
    ];
    for (what, change) in sounds {
        let mut tale = sound();
        change(&mut tale, &cast());
        assert_eq!(rules(&tale), [], "{what}");
    }
}
