//! The rules of settling, retrying, giving up and dropping, one by one.

use wayhold_model::FailureClass;

use super::*;
use crate::progress::durability::NotDurable;
use crate::progress::memory::ResolvedSegment;
use crate::progress::{LetterError, LetterQuery, letter_queries};

#[test]
fn a_settlement_is_seen_at_once_and_survives_a_restart() {
    let shard = Shard::new();
    assert!(shard.opened.is_fresh);
    shard.settle(5, Resolution::Delivered);
    shard.settle(6, Resolution::Expired);
    assert!(shard.progress.is_resolved(LANE, Sequence(5)));
    assert!(!shard.progress.is_resolved(LANE, Sequence(7)));
    let shard = shard.reopen();
    assert!(!shard.opened.is_fresh);
    assert_eq!(shard.opened.findings, Vec::<String>::new());
    let all = [4, 5, 6, 7].map(Sequence);
    assert_eq!(shard.progress.count_unresolved(LANE, &all), 2);
    let totals = shard.progress.totals(LANE);
    assert_eq!((totals.delivered, totals.expired), (1, 1));
}

#[test]
fn a_settlement_that_comes_twice_counts_once() {
    let shard = Shard::new();
    shard.settle(5, Resolution::Delivered);
    shard.settle(5, dead(1));
    shard.progress.deliver(LANE, [Sequence(5), Sequence(5)]);
    shard.progress.raise_floor(LANE, Sequence(10));
    shard.settle(5, Resolution::Delivered);
    let totals = shard.progress.totals(LANE);
    assert_eq!((totals.delivered, totals.dead), (1, 0));
}

#[test]
fn what_nobody_waits_for_is_in_the_file_soon() {
    let shard = Shard::new();
    shard.settle(5, Resolution::Delivered);
    eventually("flushed", || {
        shard.killed().progress.is_resolved(LANE, Sequence(5))
    });
}

#[test]
fn a_retry_keeps_its_attempts_and_takes_them_into_the_dead_letter() {
    let shard = Shard::new();
    let at = Timestamp::from_micros(99);
    for number in 1..=3 {
        shard
            .progress
            .record_failure(LANE, Sequence(5), attempt(number), at);
    }
    let shard = shard.reopen();
    let retry = shard.progress.retry_of(LANE, Sequence(5)).unwrap();
    assert_eq!((retry.attempts, retry.retry_at), (3, Some(at)));
    let DeliveryState::Retrying { attempts, last, .. } = shard.state(5) else {
        panic!("{:?}", shard.state(5));
    };
    assert_eq!((attempts, last), (3, attempt(3)));

    // Begun, and perhaps cut off: it counts, but there is nothing to tell of it.
    shard.progress.record_start(LANE, Sequence(5), 4);
    let shard = shard.reopen();
    assert_eq!(
        shard.progress.retry_of(LANE, Sequence(5)).unwrap().attempts,
        4
    );
    for number in 5..30 {
        shard
            .progress
            .record_failure(LANE, Sequence(5), attempt(number), at);
    }
    shard.settle(5, dead(30));
    let letter = shard.letters().list(None, None, 10).unwrap().remove(0);
    let numbers: Vec<_> = letter.attempts.iter().map(|a| a.number).collect();
    assert_eq!(numbers, (11..=30).collect::<Vec<_>>());
    assert_eq!(shard.progress.retry_of(LANE, Sequence(5)), None);
    let shard = shard.reopen();
    assert_eq!(shard.progress.retry_of(LANE, Sequence(5)), None);
}

#[test]
fn a_dead_letter_holds_the_whole_event() {
    let shard = Shard::new();
    shard.settle(5, dead(1));
    shard.settle(6, dead(1));
    let shard = shard.reopen();
    let letters = shard.letters();
    let all = letters.list(Some(DESTINATION), None, 10).unwrap();
    assert_eq!(all.len(), 2);
    assert_eq!(
        letters
            .list(Some(DestinationId(8)), None, 10)
            .unwrap()
            .len(),
        0
    );
    assert_eq!(
        letters.list(None, Some(all[0].id), 10).unwrap()[0].id,
        all[1].id
    );
    let (letter, original) = (&all[0], event(5));
    assert_eq!(*letter.event.event, *original.event);
    assert_eq!(letter.event.position, original.position);
    assert_eq!(letter.event.destinations, original.destinations);
    assert_eq!(letter.event.key_hash, original.key_hash);
    assert_eq!(
        (letter.class.as_str(), letter.status, letter.reason.as_str()),
        ("invalid", Some(400), "no, 1")
    );
    assert_eq!(letter.destination, DESTINATION);
    assert_eq!(
        letters.counts().unwrap(),
        [(DESTINATION, "invalid".to_owned(), 2)]
    );
    assert_eq!(
        shard.state(5),
        DeliveryState::Dead {
            letter: letter.id,
            redriving: false
        }
    );
}

#[test]
fn a_redrive_is_pending_until_it_ends_and_only_one_is_under_way() {
    let shard = Shard::new();
    shard.settle(5, dead(1));
    let letters = shard.letters();
    let id = letters.list(None, None, 1).unwrap()[0].id;
    assert!(letters.redrive(id, "ada").unwrap().redriving);
    assert!(matches!(
        letters.redrive(id, "eve"),
        Err(LetterError::Redriving { .. })
    ));
    assert!(matches!(
        letters.discard(id, "eve", "gone"),
        Err(LetterError::Redriving { .. })
    ));
    drop(letters);

    let shard = shard.killed();
    let totals = shard.progress.totals(LANE);
    assert_eq!((totals.dead, totals.redriving, totals.redriven), (0, 1, 1));
    let under_way = shard.progress.redriving(DESTINATION, &|_| None).unwrap();
    assert_eq!((under_way.len(), under_way[0].id), (1, id));

    shard.progress.settle_letter(id, dead(2));
    shard.progress.settle_letter(id, Resolution::Delivered);
    let letters = shard.letters();
    let letter = letters.get(id).unwrap();
    assert_eq!((letter.redriving, letter.attempts.len()), (false, 2));
    letters.redrive(id, "ada").unwrap();
    shard.progress.settle_letter(id, Resolution::Delivered);
    assert!(matches!(letters.get(id), Err(LetterError::NotFound { .. })));
    assert_eq!(shard.state(5), DeliveryState::Resolved);
    let totals = shard.progress.totals(LANE);
    assert_eq!(
        (
            totals.dead,
            totals.redriving,
            totals.redriven,
            totals.delivered
        ),
        (0, 0, 2, 1)
    );
}

#[test]
fn what_an_operator_does_is_audited_and_on_disk_when_it_returns() {
    let shard = Shard::new();
    for sequence in [5, 6] {
        shard.settle(sequence, dead(1));
    }
    let catalog =
        Arc::new(Catalog::open(shard.folder.path(), &SystemDisk, Arc::new(Fixed), 1).unwrap());
    let letters = DeadLetters::new(
        progress_of(&shard.progress),
        Arc::clone(&catalog),
        Arc::new(|_| None),
    );
    let ids: Vec<_> = letters
        .list(None, None, 9)
        .unwrap()
        .iter()
        .map(|l| l.id)
        .collect();
    letters.redrive(ids[0], "ada").unwrap();
    letters.discard(ids[1], "bob", "test order").unwrap();
    let killed = shard.killed();
    let totals = killed.progress.totals(LANE);
    assert_eq!((totals.redriving, totals.discarded, totals.dead), (1, 1, 0));
    let trail = catalog.audit_trail(None, 10).unwrap();
    let told: Vec<_> = trail
        .iter()
        .map(|e| (e.by.as_str(), e.action.as_str(), e.reason.as_deref()))
        .collect();
    assert_eq!(
        told,
        [
            ("bob", "dead_letter.discarded", Some("test order")),
            ("ada", "dead_letter.redriven", None)
        ]
    );
}

#[test]
fn letter_numbers_are_never_reused() {
    let shard = Shard::new();
    shard.settle(5, dead(1));
    let letters = shard.letters();
    let first = letters.list(None, None, 1).unwrap()[0].id;
    letters.discard(first, "ada", "gone").unwrap();
    drop(letters);
    let shard = shard.reopen();
    shard.settle(6, dead(1));
    assert!(shard.letters().list(None, None, 1).unwrap()[0].id > first);
}

#[test]
fn a_resolved_segment_moves_its_obligations_to_the_base_once() {
    let shard = Shard::new();
    let resolved = ResolvedSegment {
        segment: 3,
        first: Sequence(1),
        last: Sequence(100),
    };
    let accepted = [(LANE, 40), (LaneId(2), 60)];
    shard.progress.resolve_segment(resolved, &accepted).unwrap();
    let shard = shard.killed();
    assert_eq!(shard.progress.resolved_segments(), [resolved]);
    shard.progress.resolve_segment(resolved, &accepted).unwrap();
    assert_eq!(shard.progress.totals(LANE).accepted_base, 40);
    assert_eq!(shard.progress.totals(LaneId(2)).accepted_base, 60);
    shard.progress.forget_segment(3);
    let shard = shard.reopen();
    assert_eq!(shard.progress.resolved_segments(), []);
    assert_eq!(shard.progress.totals(LANE).accepted_base, 40);
}

#[test]
fn chunks_below_the_floor_leave_the_file_and_its_pages_too() {
    let shard = Shard::new();
    let chunks = 3_000;
    shard
        .progress
        .deliver(LANE, (0..chunks).map(|chunk| Sequence(chunk << 12)));
    shard.progress.durable_soon().unwrap();
    let path = shard.folder.path().join("state-1.db");
    let figures = || {
        let c = rusqlite::Connection::open(&path).unwrap();
        let chunks: u64 = c
            .query_row("SELECT count(*) FROM chunks", [], |row| {
                row.get::<_, i64>(0)
            })
            .unwrap()
            .cast_unsigned();
        let pages: i64 = c
            .pragma_query_value(None, "page_count", |row| row.get(0))
            .unwrap();
        (chunks, pages)
    };
    let (before, pages) = figures();
    assert_eq!(before, chunks);
    shard
        .progress
        .raise_floor(LANE, Sequence((chunks - 1) << 12));
    eventually("cleaned", || {
        let (chunks, now) = figures();
        chunks == 1 && now < pages
    });
    assert!(shard.progress.is_resolved(LANE, Sequence(17)));
    let shard = shard.reopen();
    assert!(shard.progress.is_resolved(LANE, Sequence(17)));
    assert_eq!(shard.progress.totals(LANE).delivered, chunks);
}

#[test]
fn after_the_stop_nobody_is_told_that_something_is_on_disk() {
    let shard = Shard::new();
    shard.settle(5, Resolution::Delivered);
    shard.progress.stop();
    shard.progress.durable_soon().unwrap();
    shard.settle(6, Resolution::Delivered);
    assert_eq!(shard.progress.durable_soon(), Err(NotDurable));
}

#[tokio::test]
async fn a_task_that_waits_does_not_wait_for_the_interval() {
    let shard = Shard::new();
    for sequence in 0..50 {
        shard.progress.record_start(LANE, Sequence(sequence), 2);
        shard.progress.durable().await.unwrap();
    }
    assert!(
        shard
            .killed()
            .progress
            .retry_of(LANE, Sequence(49))
            .is_some()
    );
}

#[test]
fn a_page_of_a_rare_class_looks_at_a_bounded_number_of_letters() {
    let shard = Shard::new();
    let rows = letter_queries::ROWS_PER_LOOK.cast_unsigned();
    // One at the beginning and one at the end are of another class than all between.
    let ends = 5 + 2 * rows;
    for sequence in 5..=ends {
        let class = match sequence == 5 || sequence == ends {
            true => FailureClass::Gone,
            false => FailureClass::Invalid,
        };
        shard.settle(
            sequence,
            Resolution::DeadLettered(AttemptRecord {
                class,
                ..attempt(1)
            }),
        );
    }
    let letters = shard.letters();
    let rare = LetterQuery {
        class: Some("gone".to_owned()),
        ..LetterQuery::default()
    };
    let (mut pages, mut after) = (Vec::new(), None);
    loop {
        let page = letters.page(rare.clone(), after, 10).unwrap();
        pages.push(page.letters.len());
        let looked_at = page.next.unwrap_or(0).saturating_sub(after.unwrap_or(0));
        assert!(looked_at <= rows, "{looked_at}");
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(pages, [1, 0, 1]);
    // A full page says where it ended, whatever lies behind it.
    let page = letters.page(rare, None, 1).unwrap();
    assert_eq!(page.next, Some(page.letters[0].id));
    let all = letters.list(None, None, usize::MAX).unwrap();
    assert_eq!(all.len() as u64, 2 * rows + 1);
}
