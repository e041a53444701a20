//! The window against a model that keeps every id, at sizes at which tables overflow, entries die and
//! numbers come round.

use std::collections::HashMap;
use std::path::Path;

use proptest::prelude::*;

use super::table::CHAPTERS_MAX;
use super::*;
use crate::shard::index_file::Identity;
use crate::shard::recent::Recent;

/// Hashes as even as real ones.
pub(super) fn id(number: u64) -> u128 {
    let hash = |seed| u128::from(wayhold_model::hash::checksum(&number.to_le_bytes(), seed));
    hash(1) << 64 | hash(2)
}

pub(super) fn window(ids: usize) -> Window {
    Window::new(Reach {
        ids,
        micros: 1_000_000,
    })
}

pub(super) fn segment(number: u64) -> Arc<Segment> {
    let identity = Identity {
        generation: 1,
        shard: 0,
        number,
        uuid: 0,
        covers: None,
    };
    Arc::new(Segment::unindexed(
        Path::new("/nowhere"),
        identity,
        Recent::default(),
    ))
}

fn accept(window: &Window, segment: &Arc<Segment>, id_hash: u128, at: u64) -> u64 {
    let placed = window.place(segment, 1, at);
    window.remember(id_hash, placed.chapter);
    placed.chapter
}

#[test]
fn a_second_reservation_is_refused_until_the_first_ends() {
    let window = window(100);
    assert_eq!(window.reserve(id(1)), Reserve::Reserved(vec![]));
    assert_eq!(window.reserve(id(1)), Reserve::Taken);
    window.release(id(1));
    assert_eq!(window.reserve(id(1)), Reserve::Reserved(vec![]));
    let chapter = accept(&window, &segment(1), id(1), 0);
    assert_eq!(window.reserve(id(1)), Reserve::Reserved(vec![chapter]));
}

#[test]
fn what_is_placed_never_exceeds_a_chapter_and_all_of_it_gets_one() {
    let window = window(1_600);
    let (one, mut left, mut chapters) = (segment(1), 1_000, Vec::new());
    while left > 0 {
        let placed = window.place(&one, left, 0);
        assert!((1..=100).contains(&placed.ids));
        left -= placed.ids;
        chapters.push(placed.chapter);
    }
    assert_eq!(chapters, (1..=10).collect::<Vec<u64>>());
    assert_eq!(window.len(), 1_000);
}

#[test]
fn a_window_of_a_day_lets_go_of_a_quiet_segment_and_keeps_a_later_one() {
    let window = window(1_000);
    let (old, new) = (segment(1), segment(2));
    accept(&window, &old, id(1), 10);
    window.expire(11);
    assert!(!window.names(&old));
    assert_eq!((window.candidates(id(1)), window.len()), (vec![], 0));
    accept(&window, &new, id(2), 20);
    window.expire(20);
    assert!(window.names(&new));
    assert_eq!(window.oldest(), Some(20));
}

#[test]
fn an_id_of_a_table_that_is_far_too_small_is_kept_aside() {
    let mut table = Table::new(1);
    let live = Live {
        newest: 3,
        count: 2,
    };
    for number in 0..500 {
        table.insert(id(number), 2 + number % 2, live);
    }
    for number in 0..500 {
        assert!(
            table
                .candidates(id(number), live)
                .contains(&(2 + number % 2))
        );
    }
    // A chapter later the half of them is dead and makes room.
    let live = Live {
        newest: 4,
        count: 2,
    };
    for number in (0..500).step_by(2) {
        assert!(!table.candidates(id(number), live).contains(&2));
        table.insert(id(number), 4, live);
    }
    for number in 0..500 {
        let chapter = if number % 2 == 0 { 4 } else { 3 };
        assert!(table.candidates(id(number), live).contains(&chapter));
    }
}

#[test]
fn a_hash_whose_bits_are_all_zero_is_remembered_like_any_other() {
    let window = window(100);
    for chapter in [1, CHAPTERS_MAX as u64, 2 * CHAPTERS_MAX as u64] {
        let mut table = Table::new(100);
        let live = Live {
            newest: chapter,
            count: 1,
        };
        table.insert(0, chapter, live);
        assert_eq!(table.candidates(0, live), vec![chapter]);
    }
    let chapter = accept(&window, &segment(1), 0, 0);
    assert_eq!(window.candidates(0), vec![chapter]);
}

/// Of a window of two ids a chapter is one id: the numbers in entries come round several times. Every id
/// must be found while it is in the window, and what an entry that is long dead points at must be told from
/// it by asking the chapter, which is what confirming does.
#[test]
fn numbers_of_chapters_come_round_and_no_id_is_taken_for_another() {
    let window = window(2);
    let segments: Vec<_> = (0..3).map(segment).collect();
    let mut chapter_of: HashMap<u64, u64> = HashMap::new();
    for number in 0..3 * CHAPTERS_MAX as u64 {
        let segment = &segments[usize::try_from(number % 3).unwrap()];
        chapter_of.insert(number, accept(&window, segment, id(number), number));
        for known in number.saturating_sub(1)..=number {
            assert!(window.candidates(id(known)).contains(&chapter_of[&known]));
        }
        // One that has left is either not found, or found in a chapter that it is not of.
        if let Some(gone) = number.checked_sub(CHAPTERS_MAX as u64) {
            assert!(!window.candidates(id(gone)).contains(&chapter_of[&gone]));
        }
        assert!(window.len() <= 3);
    }
}

#[test]
fn a_table_of_usual_load_keeps_nothing_aside() {
    let window = window(100_000);
    let one = segment(1);
    for number in 0..400_000 {
        accept(&window, &one, id(number), 0);
    }
    for stripe in &window.stripes {
        assert_eq!(lock(&stripe.ids).table.ids_aside(), 0);
    }
    let found = (300_000..400_000).filter(|number| !window.candidates(id(*number)).is_empty());
    assert_eq!(found.count(), 100_000);
    // Tags of other ids: one look-up of 2,700.
    let mistaken = (500_000..600_000).filter(|number| !window.candidates(id(*number)).is_empty());
    assert!(mistaken.count() < 100);
}

#[derive(Clone, Debug)]
enum Step {
    /// Accept so many ids, of a shard.
    Accept(u64, usize),
    Wait(u64),
    NextSegment(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1_u64..8, 0_usize..3).prop_map(|(ids, shard)| Step::Accept(ids, shard)),
        1 => (0_u64..300).prop_map(Step::Wait),
        2 => (0_usize..3).prop_map(Step::NextSegment),
    ]
}

proptest! {
    /// The newest ids are known, with a segment that has them; those that are older by a chapter than the
    /// window reaches are not, and their segments are let go.
    #[test]
    fn it_remembers_exactly_the_newest_ids(
        steps in prop::collection::vec(step(), 1..200),
        reach in 1_usize..120,
    ) {
        let micros = 1_000;
        let window = Window::new(Reach { ids: reach, micros });
        let (mut now, mut numbers) = (10_000_u64, 0..);
        let mut active = [1, 2, 3].map(segment);
        // Id, segment, time; in order of acceptance.
        let mut accepted: Vec<(u128, Arc<Segment>, u64)> = Vec::new();
        for step in steps {
            match step {
                Step::Wait(micros) => now += micros,
                Step::NextSegment(shard) => active[shard] = segment(accepted.len() as u64 + 10),
                Step::Accept(count, shard) => {
                    let mut left: Vec<u64> = numbers.by_ref().take(usize::try_from(count).unwrap()).collect();
                    while !left.is_empty() {
                        let placed = window.place(&active[shard], left.len(), now);
                        for number in left.drain(..placed.ids) {
                            window.reserve(id(number));
                            window.remember(id(number), placed.chapter);
                            accepted.push((id(number), Arc::clone(&active[shard]), now));
                        }
                    }
                }
            }
            window.expire(now.saturating_sub(micros));
        }
        let held = window.reach().ids_held();
        prop_assert!(window.len() <= held);
        for (age, (hash, segment, at)) in accepted.iter().rev().enumerate() {
            let names_it = window
                .candidates(*hash)
                .iter()
                .flat_map(|chapter| window.segments(*chapter))
                .any(|found| Arc::ptr_eq(&found, segment));
            if age < reach && *at >= now.saturating_sub(micros) {
                prop_assert!(names_it, "{age} of {reach}");
                prop_assert!(window.names(segment));
            }
        }
        let old = accepted.iter().rev().skip(held);
        for (_, segment, _) in old {
            let is_newer = accepted.iter().rev().take(held).any(|(_, other, _)| Arc::ptr_eq(other, segment));
            prop_assert!(is_newer || !window.names(segment));
        }
    }
}
