//! What holds over several shards as it does over one: order per key, identity, fairness, the account.

#![expect(unreachable_pub, reason = "the support is shared by suites")]
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

#[expect(dead_code, reason = "other suites need more of it")]
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use proptest::prelude::*;
use support::{HandClock, copy_of, destinations, drain, event, eventually, fill, ids, open, tiny};
use wayhold_model::{DestinationId, Position, ShardId};
use wayhold_store::{
    AppendError, AttemptRecord, Delivery, Lane, NewEvent, OpenError, Options, Receipt, Resolution,
    Store,
};

fn sharded(shards: u16) -> Options {
    Options { shards, ..tiny() }
}

fn shards_of(receipts: &[Receipt]) -> BTreeSet<ShardId> {
    receipts.iter().map(|one| one.position.shard).collect()
}

/// A key whose events lie in that shard.
async fn key_in(store: &Store, shard: u16, to: &[DestinationId]) -> String {
    for n in 0.. {
        let key = format!("in-{shard}-{n}");
        let probe = event(&format!("probe-{key}"), &key, "", to);
        let receipts = store.append(vec![probe]).await.unwrap();
        if receipts[0].position.shard == ShardId(shard) {
            return key;
        }
    }
    unreachable!()
}

#[tokio::test]
async fn a_batch_lies_in_the_shards_of_its_keys_and_is_found_again() {
    // So many keys leave no shard out, however they are hashed: but for one in 10^13.
    const KEYS: usize = 80;
    let dir = tempfile::tempdir().unwrap();
    let clock = HandClock::new();
    let (store, _) = open(dir.path(), &sharded(3), &clock);
    let to = destinations(&store, 1);
    let key = |n: usize| format!("k{}", n % KEYS);
    let batch = |_| (0..3 * KEYS).map(|n| event(&n.to_string(), &key(n), "x", &to));
    let [batch, again] = [0, 1].map(batch).map(Iterator::collect::<Vec<NewEvent>>);
    let receipts = store.append(batch).await.unwrap();
    assert_eq!(shards_of(&receipts).len(), 3);
    for (n, receipt) in receipts.iter().enumerate() {
        assert_eq!(receipt.position.shard, receipts[n % KEYS].position.shard);
        let found = store.event(receipt.position).unwrap().unwrap();
        assert_eq!(found.event.unwrap().event.id(), n.to_string());
        let found = store.find("/test", &n.to_string()).unwrap().unwrap();
        assert_eq!(found.position, receipt.position);
    }
    let repeated = store.append(again).await.unwrap();
    for (receipt, first) in repeated.iter().zip(&receipts) {
        assert!(receipt.duplicate && receipt.position == first.position);
    }
    assert_eq!(store.totals(to[0]).accepted, 3 * KEYS as u64);
    assert_eq!(store.figures().group_events, 3 * KEYS as u64);
    store.stop();
    // The number of shards is the directory's, whatever is configured later.
    let (store, recovery) = open(dir.path(), &sharded(1), &clock);
    assert_eq!((store.shards(), recovery.unclean), (3, false));
    assert_eq!(drain(&mut store.lane(to[0]).unwrap(), 7).len(), 3 * KEYS);
    store.stop();
}

#[tokio::test]
async fn events_without_a_key_go_along_with_their_batch() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path(), &sharded(4), &HandClock::new());
    let to = destinations(&store, 1);
    let keyless = |first: u32| (first..first + 8).map(|n| event(&n.to_string(), "", "x", &to));
    let mut seen = BTreeSet::new();
    for first in (0..960).step_by(8) {
        let receipts = store.append(keyless(first).collect()).await.unwrap();
        assert_eq!(shards_of(&receipts).len(), 1);
        seen.extend(shards_of(&receipts));
    }
    assert_eq!(seen.len(), 4, "load spreads");
    let mut batch: Vec<_> = keyless(1000).collect();
    batch.push(event("keyed", "k", "x", &to));
    assert_eq!(shards_of(&store.append(batch).await.unwrap()).len(), 1);
    store.stop();
}

#[tokio::test]
async fn an_id_is_one_event_whichever_shard_its_key_belongs_to() {
    let dir = tempfile::tempdir().unwrap();
    let clock = HandClock::new();
    let (store, _) = open(dir.path(), &sharded(3), &clock);
    let to = destinations(&store, 1);
    let mut keys = Vec::new();
    for shard in 0..3 {
        keys.push(key_in(&store, shard, &to).await);
    }
    let first = store.append(vec![event("a", &keys[0], "x", &to)]).await;
    let first = first.unwrap()[0].position;
    // Far enough that the first lies in an index file.
    fill(&store, 0, 60, 7, &to).await;
    store.stop();
    let (store, _) = open(dir.path(), &sharded(3), &clock);
    for key in &keys[1..] {
        let batch = vec![event("b", key, "x", &to), event("a", key, "x", &to)];
        let conflict = store.append(batch).await.unwrap_err();
        assert_eq!(conflict, AppendError::Conflict { index: 1, first });
    }
    assert!(store.find("/test", "b").unwrap().is_none());
    let again = store.append(vec![event("a", &keys[0], "x", &to)]).await;
    assert!(again.unwrap()[0].duplicate);
    let batch = vec![event("c", &keys[1], "", &to), event("c", &keys[2], "", &to)];
    assert_eq!(
        store.append(batch).await.unwrap_err(),
        AppendError::ConflictInBatch { index: 1, first: 0 }
    );
    store.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_parallel_requests_with_one_id_and_keys_of_all_shards_one_is_stored() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path(), &sharded(4), &HandClock::new());
    let to = destinations(&store, 1);
    for round in 0..40 {
        let tasks: Vec<_> = (0..32)
            .map(|n| {
                let store = store.clone();
                let mut batch = ["x", "y", "z"]
                    .map(|id| event(&format!("{id}{round}"), &format!("k{n}"), "same", &to))
                    .to_vec();
                // Batches in opposite orders must not wait for each other.
                if n % 2 == 0 {
                    batch.reverse();
                }
                tokio::spawn(async move { store.append(batch).await })
            })
            .collect();
        let mut stored = 0;
        for task in tasks {
            match task.await.unwrap() {
                Ok(receipts) => stored += receipts.iter().filter(|one| !one.duplicate).count(),
                Err(error) => assert!(matches!(error, AppendError::Conflict { .. }), "{error}"),
            }
        }
        assert_eq!(stored, 3);
    }
    assert_eq!(store.totals(to[0]).accepted, 120);
    assert_eq!(drain(&mut store.lane(to[0]).unwrap(), 50).len(), 120);
    store.stop();
}

#[tokio::test]
async fn the_backlog_of_one_shard_keeps_none_of_the_others_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path(), &sharded(2), &HandClock::new());
    let to = destinations(&store, 1);
    let [busy, calm] = [key_in(&store, 0, &to).await, key_in(&store, 1, &to).await];
    let mut lane = store.lane(to[0]).unwrap();
    // Beyond what the tail holds, so that it has to be read from the disk.
    for n in 0..400 {
        let new = event(&format!("busy{n}"), &busy, &"x".repeat(200), &to);
        store.append(vec![new]).await.unwrap();
    }
    drain_probes(&mut lane);
    for n in 0..20 {
        let new = event(&format!("calm{n}"), &calm, "x", &to);
        store.append(vec![new]).await.unwrap();
    }
    let (mut of_busy, mut of_calm) = (0, 0);
    while of_calm < 20 {
        for id in ids(&lane.read(10).unwrap()) {
            of_busy += u32::from(id.starts_with("busy"));
            of_calm += u32::from(id.starts_with("calm"));
        }
    }
    assert!(
        (10..=60).contains(&of_busy),
        "{of_busy} before the last of the calm"
    );
    store.stop();
}

#[tokio::test]
async fn a_shard_that_cannot_be_read_keeps_none_of_the_others_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path(), &sharded(2), &HandClock::new());
    let to = destinations(&store, 1);
    let keys = [key_in(&store, 0, &to).await, key_in(&store, 1, &to).await];
    for n in 0..80 {
        let new = event(&n.to_string(), &keys[n % 2], &"x".repeat(200), &to);
        store.append(vec![new]).await.unwrap();
    }
    let accepted = usize::try_from(store.totals(to[0]).accepted).unwrap();
    // Index files of the second shard are damaged, and nothing lets them be made again.
    let folder = dir.path().join("g1/s1");
    eventually("segments of the second shard are indexed", || {
        files_in(&folder, ".idx").len() >= 3
    });
    let mut obstacles = Vec::new();
    for name in files_in(&folder, ".idx") {
        let path = folder.join(&name);
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 0xff;
        std::fs::write(&path, bytes).unwrap();
        let obstacle = folder.join(format!("{name}.tmp"));
        std::fs::create_dir(&obstacle).unwrap();
        obstacles.push(obstacle);
    }
    let mut lane = store.lane(to[0]).unwrap();
    let (mut read, mut failures) = (Vec::new(), 0);
    loop {
        match lane.read(5) {
            Ok(batch) if batch.is_empty() => break,
            Ok(batch) => read.extend(batch),
            Err(_) => failures += 1,
        }
    }
    assert_eq!(failures, 1, "it is left alone after the first time");
    let of_first = |one: &&Delivery| one.event.position.shard == ShardId(0);
    assert!(read.iter().filter(of_first).count() >= 40);
    assert!(read.len() < accepted);
    assert!(
        store
            .health()
            .degraded
            .iter()
            .any(|finding| finding.starts_with("g1.s1: "))
    );
    for obstacle in obstacles {
        std::fs::remove_dir(obstacle).unwrap();
    }
    assert!(lane.read(5).unwrap().is_empty(), "until somebody says so");
    lane.read_failed_again();
    read.extend(drain(&mut lane, 5));
    let positions: BTreeSet<_> = read.iter().map(|one| one.event.position).collect();
    assert_eq!((read.len(), positions.len()), (accepted, accepted));
    store.stop();
}

fn files_in(folder: &Path, ending: &str) -> Vec<String> {
    let names = std::fs::read_dir(folder).unwrap();
    names
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(ending))
        .collect()
}

/// Reads nothing but what `key_in` left, which lies first in each shard.
fn drain_probes(lane: &mut Lane) {
    let probes = lane.read(1).unwrap();
    assert!(ids(&probes)[0].starts_with("probe"));
}

#[tokio::test]
async fn dead_letters_of_all_shards_are_listed_by_age_and_page_by_page() {
    let dir = tempfile::tempdir().unwrap();
    let clock = HandClock::new();
    let (store, _) = open(dir.path(), &sharded(3), &clock);
    let to = destinations(&store, 2);
    fill(&store, 0, 30, 9, &to[..1]).await;
    let mut lane = store.lane(to[0]).unwrap();
    let handle = lane.handle();
    let mut given_up = Vec::new();
    for delivery in drain(&mut lane, 4) {
        handle.settle(&delivery.event, Resolution::DeadLettered(failure(1)));
        given_up.push(delivery.event.event.id().to_owned());
    }
    let letters = store.dead_letters();
    let listed = |store: &Store, page: usize| {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let more = store.dead_letters().list(None, after, page).unwrap();
            let Some(last) = more.last() else { return all };
            after = Some(last.id);
            all.extend(more);
        }
    };
    for page in [1, 7, 100] {
        let all = listed(&store, page);
        let ids: Vec<_> = all
            .iter()
            .map(|one| one.event.event.id().to_owned())
            .collect();
        assert_eq!(ids, given_up);
        assert!(
            all.is_sorted_by(|one, other| one.id < other.id),
            "numbers are unique"
        );
    }
    let counts = letters.counts().unwrap();
    assert_eq!(counts.iter().map(|(_, _, count)| count).sum::<u64>(), 30);
    let all = listed(&store, 100);
    let [redriven, discarded, again] = [&all[3], &all[11], &all[20]];
    letters.discard(discarded.id, "ada", "of no use").unwrap();
    for letter in [redriven, again] {
        letters.redrive(letter.id, "ada").unwrap();
    }
    handle.settle_letter(redriven.id, Resolution::Delivered);
    handle.settle_letter(again.id, Resolution::DeadLettered(failure(2)));
    handle.durable().await.unwrap();
    let totals = store.totals(to[0]);
    assert_eq!((totals.accepted, totals.pending, totals.dead), (30, 0, 28));
    assert_eq!(
        (totals.delivered, totals.discarded, totals.redriven),
        (1, 1, 2)
    );
    store.stop();
    // Numbers go on above the highest that any shard gave.
    let (store, _) = open(dir.path(), &sharded(3), &clock);
    fill(&store, 30, 1, 9, &to[1..]).await;
    let mut lane = store.lane(to[1]).unwrap();
    let last = lane.read(1).unwrap().remove(0);
    lane.handle()
        .settle(&last.event, Resolution::DeadLettered(failure(1)));
    let all = listed(&store, 100);
    assert_eq!(all.len(), 29);
    assert_eq!(all.last().unwrap().event.position, last.event.position);
    store.stop();
}

fn failure(number: u32) -> AttemptRecord {
    AttemptRecord {
        answer: None,
        duration: None,
        number,
        at: wayhold_model::Timestamp::from_micros(u64::from(number)),
        outcome: wayhold_model::OutcomeKind::Refused,
        class: wayhold_model::FailureClass::Invalid,
        status: Some(400),
        reason: "no".to_owned(),
    }
}

#[tokio::test]
async fn a_shard_that_is_missing_is_named_and_not_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let clock = HandClock::new();
    let (store, _) = open(dir.path(), &sharded(3), &clock);
    let to = destinations(&store, 1);
    let receipts = fill(&store, 0, 30, 9, &to).await;
    store.stop();
    drop(store);
    let lost = dir.path().join("g1/s1");
    std::fs::remove_dir_all(&lost).unwrap();
    let refused = Store::open(dir.path(), sharded(3), std::sync::Arc::new(clock.clone()));
    let Err(OpenError::Unusable { path, reason }) = refused else {
        panic!("it opened without a shard that held events");
    };
    assert!(path == lost && reason.contains("is missing"), "{reason}");
    // Whoever makes it anew goes on without what it held.
    std::fs::create_dir(&lost).unwrap();
    let (store, _) = open(dir.path(), &sharded(3), &clock);
    let kept = receipts
        .iter()
        .filter(|one| one.position.shard != ShardId(1))
        .count();
    assert_eq!(drain(&mut store.lane(to[0]).unwrap(), 9).len(), kept);
    store.stop();
}

#[tokio::test]
async fn the_catalogue_alone_touches_no_shard_and_leaves_their_number_open() {
    let dir = tempfile::tempdir().unwrap();
    let clock = HandClock::new();
    let alone = || Store::catalog_alone(dir.path(), std::sync::Arc::new(clock.clone()));
    let first = alone().unwrap();
    first.catalog.audit("ada", "test", "one", None).unwrap();
    assert!(matches!(alone(), Err(OpenError::Locked { .. })));
    drop(first);
    assert!(!dir.path().join("g1").exists());
    let (store, _) = open(dir.path(), &sharded(3), &clock);
    assert_eq!(store.shards(), 3);
    assert!(matches!(alone(), Err(OpenError::Locked { .. })));
    store.stop();
    drop(alone().unwrap());
    let (store, recovery) = open(dir.path(), &sharded(1), &clock);
    assert_eq!((store.shards(), recovery.unclean), (3, false));
    store.stop();
}

/// What a random history does.
#[derive(Clone, Debug)]
enum Step {
    /// Sends a batch with these keys.
    Send(Vec<u8>),
    /// Delivers so many of what the lane reads.
    Deliver(usize),
    /// Kills the process and starts it again.
    Kill,
    /// Stops the store and opens it again.
    Stop,
    /// Makes new events go to so many shards.
    Reshard(u16),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => prop::collection::vec(0_u8..7, 1..12).prop_map(Step::Send),
        4 => (1_usize..20).prop_map(Step::Deliver),
        1 => Just(Step::Kill),
        1 => Just(Step::Stop),
        2 => (1_u16..=4).prop_map(Step::Reshard),
    ]
}

/// Every key's ids as they were accepted, and how many of them are known to be delivered for good.
#[derive(Default)]
struct Model {
    accepted: BTreeMap<u8, Vec<u32>>,
    delivered: BTreeSet<Position>,
    next: u32,
}

impl Model {
    fn batch(&mut self, keys: &[u8], to: &[DestinationId]) -> Vec<NewEvent> {
        let mut batch = Vec::new();
        for key in keys {
            self.accepted.entry(*key).or_default().push(self.next);
            // Key 0 is none.
            let name = match key {
                0 => String::new(),
                key => format!("k{key}"),
            };
            batch.push(event(&self.next.to_string(), &name, &key.to_string(), to));
            self.next += 1;
        }
        batch
    }

    /// Whatever was not delivered comes, each key in order; what was delivered for good does not come.
    fn check(&self, deliveries: &[Delivery]) {
        let mut read: BTreeMap<u8, Vec<u32>> = BTreeMap::new();
        for delivery in deliveries {
            assert!(!self.delivered.contains(&delivery.event.position));
            let event = &delivery.event.event;
            let key = std::str::from_utf8(event.data()).unwrap().parse().unwrap();
            read.entry(key)
                .or_default()
                .push(event.id().parse().unwrap());
        }
        let mut count = 0;
        for (key, mut ids) in read {
            let accepted = &self.accepted[&key];
            if key == 0 {
                ids.sort_unstable();
            }
            assert!(
                ids.is_sorted_by(|one, other| one < other),
                "key {key}: {ids:?}"
            );
            assert!(ids.iter().all(|id| accepted.contains(id)));
            count += ids.len();
        }
        let accepted: usize = self.accepted.values().map(Vec::len).sum();
        assert_eq!(count + self.delivered.len(), accepted, "nothing is lost");
    }
}

struct Run {
    options: Options,
    clock: HandClock,
    dir: tempfile::TempDir,
    store: Store,
    lane: Lane,
    to: Vec<DestinationId>,
}

impl Run {
    fn start(dir: tempfile::TempDir, options: Options, clock: HandClock) -> Self {
        let (store, _) = open(dir.path(), &options, &clock);
        let to = destinations(&store, 1);
        Self {
            lane: store.lane(to[0]).unwrap(),
            options,
            clock,
            dir,
            store,
            to,
        }
    }

    fn again(self, is_killed: bool) -> Self {
        let dir = if is_killed {
            let copy = copy_of(self.dir.path());
            self.store.stop();
            copy
        } else {
            self.store.stop();
            self.dir
        };
        drop((self.lane, self.store));
        Self::start(dir, self.options, self.clock)
    }
}

async fn play(shards: u16, steps: Vec<Step>) {
    let dir = tempfile::tempdir().unwrap();
    let mut model = Model::default();
    let mut run = Run::start(dir, sharded(shards), HandClock::new());
    for step in steps {
        match step {
            Step::Send(keys) => {
                let batch = model.batch(&keys, &run.to);
                run.store.append(batch).await.unwrap();
            }
            Step::Deliver(count) => {
                let positions: Vec<Position> = run
                    .lane
                    .read(count)
                    .unwrap()
                    .iter()
                    .map(|delivery| delivery.event.position)
                    .collect();
                run.lane.handle().settle_delivered(&positions);
                run.lane.handle().durable().await.unwrap();
                model.delivered.extend(positions);
            }
            Step::Kill => run = run.again(true),
            Step::Stop => run = run.again(false),
            Step::Reshard(shards) => {
                run.store.set_shards(shards, "ada", None).unwrap();
                assert_eq!(run.store.shards(), usize::from(shards));
            }
        }
        let totals = run.store.totals(run.to[0]);
        assert_eq!(totals.accepted, u64::from(model.next));
        assert_eq!(totals.delivered, model.delivered.len() as u64);
        assert_eq!(totals.pending, totals.accepted - totals.delivered);
    }
    let mut run = run.again(true);
    model.check(&drain(&mut run.lane, 5));
    run.store.stop();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10, ..ProptestConfig::default() })]
    #[test]
    fn whatever_happens_every_key_stays_in_order_and_nothing_is_lost(
        shards in 1_u16..=4,
        steps in prop::collection::vec(step(), 1..20),
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        runtime.block_on(play(shards, steps));
    }
}

#[test]
fn segments_of_all_shards_lie_in_directories_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path(), &sharded(3), &HandClock::new());
    store.stop();
    let has = |path: &str| Path::new(dir.path()).join(path).exists();
    assert!(has("g1/s0/1.db") && has("g1/s1/1.db") && has("g1/s2/1.db") && !has("g1/s3"));
}
