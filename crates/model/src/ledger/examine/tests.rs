use serde_json::json;

use super::*;
use crate::ledger::{Actor, Draft, Place, Trace};
use crate::time::Timestamp;

/// Records of a small ledger: two streams, a key, a payload that was erased.
fn records() -> Vec<Vec<u8>> {
    let mut streams: HashMap<&str, (u64, Hash)> = HashMap::new();
    let drafts = [
        ("key:1", "key.added", json!({"verifier": "k"})),
        (
            "cmd:1",
            "command.accepted",
            json!({"input": {"commit": Hash::of(b"p").to_string()}}),
        ),
        ("cmd:2", "command.accepted", json!({})),
        ("cmd:1", "command.state", json!({"to": "ready"})),
        (
            "cmd:1",
            "redaction.applied",
            json!({"erased": Hash::of(b"p").to_string()}),
        ),
    ];
    let mut written = Vec::new();
    for (idx, (stream, kind, body)) in (0..).zip(drafts) {
        let (actor, trace) = (Actor::system("test"), Trace::default());
        let draft = Draft::new(stream.into(), kind, &actor, &trace, &body).unwrap();
        let (sseq, prev) = streams.get(stream).copied().unwrap_or((0, Hash::ZERO));
        let ts = Timestamp::from_micros(idx);
        let (bytes, leaf) = draft.seal(&Place {
            idx,
            sseq,
            prev,
            ts,
        });
        streams.insert(stream, (sseq + 1, leaf));
        written.push(bytes);
    }
    written
}

fn leaves(records: &[Vec<u8>]) -> Vec<Hash> {
    records.iter().map(|record| Hash::of_leaf(record)).collect()
}

fn head(records: &[Vec<u8>]) -> Head {
    let leaves = leaves(records);
    Head {
        size: leaves.len() as u64,
        root: root_of(&leaves),
    }
}

fn examine(
    signed: &[Vec<u8>],
    given: &[Vec<u8>],
    leaves: Option<Vec<Hash>>,
) -> Result<Examined, (Problem, Option<u64>)> {
    let mut examination = Examination::new(head(signed), leaves, 0);
    given
        .iter()
        .try_for_each(|line| examination.record(line))
        .and_then(|()| examination.end())
        .map_err(|finding| (finding.problem, finding.record))
}

#[test]
fn what_was_not_touched_is_found_good() {
    let records = records();
    let examined = examine(&records, &records, Some(leaves(&records))).unwrap();
    assert_eq!((examined.records(), examined.first()), (5, 0));
    assert_eq!(examined.payloads(), [(1, Hash::of(b"p"))]);
    assert!(examined.is_erased(Hash::of(b"p")));
    assert_eq!(examined.check_key("k", 1), Ok(()));
    assert!(examined.check_key("k", 0).is_err());
    assert!(examined.check_key("other", 5).is_err());
}

#[test]
fn each_kind_of_damage_is_found_at_its_record() {
    let good = records();
    let text = |at: usize| String::from_utf8(good[at].clone()).unwrap();
    let with = |at: usize, line: String| {
        let mut records = good.clone();
        records[at] = line.into_bytes();
        records
    };
    let deleted = |at: usize| {
        let mut records = good.clone();
        records.remove(at);
        records
    };
    let mut swapped = good.clone();
    swapped.swap(1, 2);
    let mut longer = good.clone();
    longer.push(text(4).replace("\"idx\":4", "\"idx\":5").into_bytes());
    for (given, problem, record) in [
        (
            with(2, text(2).replace("system", "person")),
            Problem::Changed,
            2,
        ),
        (
            with(3, text(3).replace("ready", "ready ")),
            Problem::Changed,
            3,
        ),
        (with(3, text(3) + " "), Problem::Record, 3),
        (with(1, String::new()), Problem::Record, 1),
        (with(1, "{\"idx\":1}".into()), Problem::Record, 1),
        (
            with(1, text(1).replace("\"v\":1", "\"v\":2")),
            Problem::Record,
            1,
        ),
        (with(1, text(2)), Problem::Order, 1),
        (swapped, Problem::Order, 1),
        (deleted(0), Problem::Order, 0),
        (deleted(3), Problem::Order, 3),
        (deleted(4), Problem::Missing, 4),
        (Vec::new(), Problem::Missing, 0),
        (longer, Problem::Beyond, 5),
    ] {
        let found = examine(&good, &given, Some(leaves(&good)));
        assert_eq!(found.unwrap_err(), (problem, Some(record)), "{given:?}");
    }
}

#[test]
fn without_leaf_hashes_the_chain_and_the_root_still_tell() {
    let good = records();
    assert_eq!(
        examine(&good, &good, None).unwrap_err(),
        (Problem::Leaves, None)
    );
    let mut changed = good.clone();
    let text = String::from_utf8(good[1].clone()).unwrap();
    changed[1] = text.replace("system", "person").into_bytes();
    // The next record of the stream does not follow a changed one; what was changed last shows in the root alone.
    assert_eq!(
        examine(&good, &changed, None).unwrap_err(),
        (Problem::Chain, Some(3))
    );
    let text = String::from_utf8(good[4].clone()).unwrap();
    let mut changed = good.clone();
    changed[4] = text.replace("system", "person").into_bytes();
    assert_eq!(
        examine(&good, &changed, None).unwrap_err(),
        (Problem::Root, None)
    );
    let forged = Some(leaves(&changed));
    assert_eq!(
        examine(&good, &changed, forged).unwrap_err(),
        (Problem::Root, None)
    );
}

#[test]
fn a_signed_tree_whose_streams_do_not_hold_together_is_found() {
    let mut broken = records();
    let text = String::from_utf8(broken[3].clone()).unwrap();
    broken[3] = text.replace("\"sseq\":1", "\"sseq\":2").into_bytes();
    let found = examine(&broken, &broken, Some(leaves(&broken)));
    assert_eq!(found.unwrap_err(), (Problem::Chain, Some(3)));
    let mut broken = records();
    let text = String::from_utf8(broken[2].clone()).unwrap();
    broken[2] = text.replace("\"sseq\":0", "\"sseq\":1").into_bytes();
    let found = examine(&broken, &broken, Some(leaves(&broken)));
    assert_eq!(found.unwrap_err(), (Problem::Chain, Some(2)));
}

#[test]
fn a_checkpoint_from_outside_tells_of_what_is_missing_and_of_another_history() {
    let all = records();
    let examined = examine(&all, &all, Some(leaves(&all))).unwrap();
    let outside = |size: u64, root| Checkpoint {
        origin: "o".into(),
        head: Head { size, root },
        extensions: Vec::new(),
    };
    for size in 0..=all.len() {
        let Head { size, root } = head(&all[..size]);
        assert_eq!(examined.check_outside(&outside(size, root)), Ok(()));
    }
    let found = |outside| {
        let finding = examined.check_outside(&outside).unwrap_err();
        (finding.problem, finding.record)
    };
    assert_eq!(found(outside(6, Hash::ZERO)), (Problem::Truncated, Some(5)));
    assert_eq!(found(outside(3, Hash::ZERO)), (Problem::Forked, None));
}

#[test]
fn records_may_begin_later_where_a_record_says_so_and_nowhere_else() {
    let mut all = records();
    let body = json!({"first": 2, "keys": ["old"]});
    let (actor, trace) = (Actor::system("test"), Trace::default());
    let draft = Draft::new(
        "ledger:retention".into(),
        "retention.applied",
        &actor,
        &trace,
        &body,
    );
    let place = Place {
        idx: 5,
        sseq: 0,
        prev: Hash::ZERO,
        ts: Timestamp::EPOCH,
    };
    all.push(draft.unwrap().seal(&place).0);
    let examine = |first: u64| {
        let mut examination = Examination::new(head(&all), Some(leaves(&all)), first);
        let held = all.iter().skip(usize::try_from(first).unwrap());
        for line in held {
            examination.record(line)?;
        }
        examination.end()
    };
    let examined = examine(2).unwrap();
    assert_eq!((examined.records(), examined.first()), (4, 2));
    assert_eq!(examined.check_key("old", 6), Ok(()));
    for (first, missing) in [(0, 0), (1, 1), (3, 2)] {
        let finding = examine(first).unwrap_err();
        assert_eq!(
            (finding.problem, finding.record),
            (Problem::Missing, Some(missing))
        );
    }
}
