//! One rule of order each.

use super::*;

#[test]
fn a_later_event_waits_for_the_earlier_of_its_key_and_other_keys_do_not() {
    let mut order = blocking();
    assert!(order.goes(1, Some(7)));
    assert!(!order.goes(2, Some(7)));
    assert!(order.goes(3, Some(8)));
    assert_eq!(order.turn(), None);
    order.resolved(Some(7), FIRST);
    assert_eq!(order.turn(), Some(2));
    order.resolved(Some(8), FIRST);
    order.resolved(Some(7), FIRST);
    assert_eq!(order.turn(), None);
    assert!(order.keys.is_empty(), "an idle key is forgotten");
}

#[test]
fn events_without_a_key_never_wait_for_each_other() {
    let mut order = blocking();
    assert!((1..=50).all(|sequence| order.goes(sequence, None)));
    order.failed(&event(1, None), FIRST, SECOND, secs(5));
    assert!(order.goes(51, None));
    order.wake(secs(4));
    assert_eq!(order.turn(), None);
    order.wake(secs(5));
    assert_eq!(order.turn(), Some(1));
}

#[test]
fn a_failed_delivery_holds_its_key_under_block() {
    let mut order = blocking();
    assert!(order.goes(1, Some(7)));
    order.failed(&event(1, Some(7)), FIRST, SECOND, secs(30));
    assert!(!order.goes(2, Some(7)));
    assert!(order.goes(3, Some(8)));
    order.wake(secs(29));
    assert_eq!(order.turn(), None);
    assert_eq!(order.blocked_count(), 1);
    assert_eq!(order.ahead_of(at(2), 7), Some(at(1)));
    order.wake(secs(30));
    assert_eq!(order.turn(), Some(1));
    order.resolved(Some(7), SECOND);
    assert_eq!(order.blocked_count(), 0);
    assert_eq!(order.turn(), Some(2));
}

#[test]
fn a_failed_delivery_is_set_aside_under_park_and_comes_back_alone() {
    let mut order = parking();
    assert!(order.goes(1, Some(7)));
    assert!(!order.goes(2, Some(7)));
    order.failed(&event(1, Some(7)), FIRST, SECOND, secs(30));
    assert_eq!(order.turn(), Some(2));
    order.wake(secs(30));
    assert_eq!(
        order.turn(),
        None,
        "one in flight per key, also among retries"
    );
    order.resolved(Some(7), FIRST);
    assert_eq!(order.turn(), Some(1));
    assert!(!order.goes(3, Some(7)));
    order.resolved(Some(7), SECOND);
    assert_eq!(order.turn(), Some(3));
}

#[test]
fn a_busy_key_whose_deliveries_all_fail_parks_no_more_than_the_bound() {
    let bound = 5;
    let mut order = Order::new(OrderPolicy {
        blocked_max: bound,
        ..policy(OnFailure::Park, OnDeadLetter::Release)
    });
    assert!(order.goes(1, Some(7)));
    for sequence in 2..=40 {
        assert!(!order.goes(sequence, Some(7)));
    }
    let mut sequence = 1;
    loop {
        order.failed(&event(sequence, Some(7)), FIRST, SECOND, secs(30));
        match order.turn() {
            Some(next) => sequence = next,
            None => break,
        }
    }
    assert_eq!(order.retries(), bound, "the rest waits");
    // One that failed comes due and arrives: one more gets its first attempt.
    order.wake(secs(30));
    assert_eq!(order.turn(), Some(1));
    order.resolved(Some(7), SECOND);
    for parked in 2..=5 {
        assert_eq!(order.turn(), Some(parked));
        order.resolved(Some(7), SECOND);
    }
    assert_eq!(order.turn(), Some(6));
}

#[test]
fn due_times_wake_but_positions_decide() {
    // Two in flight per key: the later one fails first and is due first.
    let mut order = Order::new(OrderPolicy {
        in_flight_per_key: 2,
        ..policy(OnFailure::Block, OnDeadLetter::Release)
    });
    assert!(order.goes(1, Some(7)));
    assert!(order.goes(2, Some(7)));
    order.failed(&event(2, Some(7)), FIRST, SECOND, secs(1));
    order.failed(&event(1, Some(7)), FIRST, SECOND, secs(9));
    order.wake(secs(1));
    assert_eq!(order.turn(), None);
    order.wake(secs(9));
    assert_eq!(order.turn(), Some(1));
    assert_eq!(order.turn(), Some(2));
}

#[test]
fn of_a_key_with_several_in_flight_none_is_overtaken_while_it_is_fetched() {
    let mut order = Order::new(OrderPolicy {
        in_flight_per_key: 3,
        ..policy(OnFailure::Block, OnDeadLetter::Release)
    });
    assert!(order.offer(fresh(1, Some(7)), None).is_some());
    for waits in [2, 3, 4] {
        assert!(order.offer(fresh(waits, Some(7)), None).is_none());
    }
    assert!(matches!(order.next_released(), Next::Nothing));
    // Handed over, or not sent after all: either way the next may go.
    order.handed_over(Some(7));
    assert_eq!(order.turn(), Some(2));
    assert_eq!(order.turn(), Some(3));
    assert_eq!(order.turn(), None, "three are in flight");
    order.resolved(Some(7), FIRST);
    assert_eq!(order.turn(), Some(4));
}

#[test]
fn what_a_batch_gave_back_waits_for_the_dead_letter_before_it_where_that_holds() {
    for on_failure in [OnFailure::Block, OnFailure::Park] {
        let mut order = Order::new(OrderPolicy {
            in_flight_per_key: 3,
            ..policy(on_failure, OnDeadLetter::Hold)
        });
        assert!(order.goes(1, Some(7)) && order.goes(2, Some(7)));
        order.dead_lettered(at(1), Some(7), FIRST);
        let put_off = History {
            put_off: 1,
            ..FIRST
        };
        order.failed(&event(2, Some(7)), FIRST, put_off, secs(1));
        order.wake(secs(1));
        assert_eq!(order.turn(), None, "{on_failure:?}");
        order.discarded(at(1), Some(7));
        assert_eq!(order.turn(), Some(2), "{on_failure:?}");
    }
}

#[test]
fn a_redriven_delivery_goes_before_any_unsent_later_event_of_its_key() {
    for mut order in [blocking(), parking()] {
        assert!(order.goes(1, Some(7)));
        assert!(!order.goes(2, Some(7)));
        assert!(!order.goes(3, Some(7)));
        order.dead_lettered(at(1), Some(7), FIRST);
        assert_eq!(order.turn(), Some(2), "released");
        order.redrive(
            &event(1, Some(7)),
            Redrive {
                letter: 1,
                attempts_before: 1,
                of_replay: false,
            },
        );
        assert_eq!(order.turn(), None);
        order.resolved(Some(7), FIRST);
        assert_eq!(order.turn(), Some(1));
        let redriven = History {
            attempts: 1,
            put_off: 0,
            letter: Some(Redrive {
                letter: 1,
                attempts_before: 1,
                of_replay: false,
            }),
            after_unknown: false,
        };
        order.resolved(Some(7), redriven);
        assert_eq!(order.turn(), Some(3));
    }
}

#[test]
fn a_dead_letter_holds_its_key_until_it_is_redriven_or_discarded() {
    let hold = || Order::new(policy(OnFailure::Block, OnDeadLetter::Hold));
    let mut order = hold();
    assert!(order.goes(1, Some(7)));
    order.dead_lettered(at(1), Some(7), FIRST);
    assert!(!order.goes(2, Some(7)));
    assert_eq!(order.turn(), None);
    assert!(order.top_blocked(1)[0].held);
    order.redrive(
        &event(1, Some(7)),
        Redrive {
            letter: 1,
            attempts_before: 1,
            of_replay: false,
        },
    );
    assert_eq!(order.turn(), Some(1));
    order.resolved(Some(7), SECOND);
    assert_eq!(order.turn(), Some(2));

    let mut order = hold();
    order.found_dead(at(1), Some(7));
    assert!(!order.goes(2, Some(7)));
    order.discarded(at(1), Some(7));
    assert_eq!(order.turn(), Some(2));
    order.resolved(Some(7), FIRST);
    assert!(order.keys.is_empty());
}

#[test]
fn a_letter_of_a_replay_holds_nobody_and_frees_nobody() {
    let mut order = Order::new(policy(OnFailure::Block, OnDeadLetter::Hold));
    let redrive = Redrive {
        letter: 9,
        attempts_before: 1,
        of_replay: true,
    };
    let redriven = History {
        attempts: 1,
        letter: Some(redrive),
        ..FIRST
    };
    for own_letter in [false, true] {
        if own_letter {
            order.found_dead(at(1), Some(7));
        }
        order.redrive(&event(1, Some(7)), redrive);
        assert_eq!(order.turn(), Some(1), "{own_letter}");
        order.dead_lettered(at(1), Some(7), redriven);
        let sequence = if own_letter { 3 } else { 2 };
        assert_eq!(order.goes(sequence, Some(7)), !own_letter);
        if !own_letter {
            order.resolved(Some(7), FIRST);
        }
    }
    assert!(order.top_blocked(1)[0].held, "by the event's own letter");
}

#[test]
fn after_a_restart_the_same_structure_grows_again() {
    let mut order = blocking();
    let cut_off = Delivery {
        event: event(1, Some(7)),
        attempts: 2,
        retry_at: None,
    };
    assert!(order.offer(cut_off, None).is_none());
    let failed = Delivery {
        event: event(2, Some(8)),
        attempts: 1,
        retry_at: Some(secs(9)),
    };
    assert!(order.offer(failed, Some(secs(9))).is_none());
    assert!(!order.goes(3, Some(7)));
    assert!(!order.goes(4, Some(8)));
    order.wake(secs(1));
    let Next::Turn(turn) = order.next_retry() else {
        panic!("no turn")
    };
    assert_eq!((turn.position, turn.history.attempts), (at(1), 2));
    assert_eq!(order.turn(), None);
    order.wake(secs(9));
    assert_eq!(order.turn(), Some(2));
}

#[test]
fn a_key_costs_constant_memory_and_what_lies_beyond_is_fetched_again() {
    let mut order = blocking();
    assert!(order.goes(1, Some(7)));
    let last = 10 * KEY_POSITIONS_MAX as u64;
    for sequence in 2..=last {
        assert!(!order.goes(sequence, Some(7)));
    }
    assert!(order.top_blocked(1).is_empty(), "busy is not blocked");
    for sequence in 2..2 + KEY_POSITIONS_MAX as u64 {
        order.resolved(Some(7), FIRST);
        assert_eq!(order.turn(), Some(sequence));
    }
    order.resolved(Some(7), FIRST);
    let Next::Refill(refill) = order.next_released() else {
        panic!("no refill")
    };
    let after = 1 + KEY_POSITIONS_MAX as u64;
    assert_eq!(
        refill,
        Refill {
            key: 7,
            after: at(after),
            through: at(last)
        }
    );
    // What is read meanwhile lies behind; nothing starts before the answer.
    assert!(!order.goes(last + 1, Some(7)));
    assert_eq!(order.turn(), None);
    order.refilled(refill, vec![at(after + 1), at(after + 2)]);
    assert_eq!(order.turn(), Some(after + 1));
    order.resolved(Some(7), FIRST);
    assert_eq!(order.turn(), Some(after + 2));
    order.resolved(Some(7), FIRST);
    let Next::Refill(refill) = order.next_released() else {
        panic!("no refill")
    };
    assert_eq!(
        refill,
        Refill {
            key: 7,
            after: at(last),
            through: at(last + 1)
        }
    );
    order.refill_failed(refill, secs(1));
    assert_eq!(order.turn(), None);
    order.wake(secs(1));
    assert!(matches!(order.next_retry(), Next::Refill(again) if again == refill));
    order.refilled(refill, vec![]);
    assert!(order.keys.is_empty());
}

#[test]
fn reading_ahead_stops_at_the_bound_and_goes_on_below_it() {
    let mut order = Order::new(OrderPolicy {
        blocked_max: 2,
        ..policy(OnFailure::Block, OnDeadLetter::Release)
    });
    for sequence in 1..=2 {
        assert!(order.may_read_ahead());
        assert!(order.goes(sequence, Some(sequence)));
        order.failed(&event(sequence, Some(sequence)), FIRST, SECOND, secs(1));
    }
    assert!(!order.may_read_ahead());
    order.wake(secs(1));
    assert_eq!(order.turn(), Some(1));
    assert!(order.may_read_ahead());
}

#[test]
fn an_event_that_could_not_be_read_keeps_its_place() {
    let mut order = blocking();
    assert!(order.goes(1, Some(7)));
    assert!(!order.goes(2, Some(7)));
    let turn = Turn {
        position: at(1),
        key: Some(7),
        event: None,
        history: FIRST,
    };
    order.put_back(turn, secs(1));
    assert_eq!(order.turn(), None);
    order.wake(secs(1));
    assert_eq!(order.turn(), Some(1));
    order.resolved(Some(7), FIRST);
    assert_eq!(order.turn(), Some(2));
    order.resolved(Some(7), FIRST);
    assert!(order.keys.is_empty());
}
