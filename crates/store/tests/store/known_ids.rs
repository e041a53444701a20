//! An id that came before is known again: one event, one receipt, and a conflict where its content is another.

use super::*;

#[tokio::test]
async fn the_same_id_is_one_event_and_other_content_is_a_conflict() {
    with_any_shards(|options| async move {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = open(dir.path(), &options, &HandClock::new());
        let to = destinations(&store, 1);
        let first = store
            .append(vec![event("a", "k", "one", &to)])
            .await
            .unwrap();
        assert!(!first[0].duplicate);
        // Far enough of its own key that the first lies in an index file, whichever shard that is in.
        for n in 0..20 {
            let next = event(&n.to_string(), "k", "data", &to);
            store.append(vec![next]).await.unwrap();
        }
        eventually("the first segment is indexed", || {
            files_of_shards(dir.path(), ".idx")
                .iter()
                .any(|names| !names.is_empty())
        });
        let again = store
            .append(vec![event("a", "k", "one", &to)])
            .await
            .unwrap();
        assert!(again[0].duplicate && again[0].position == first[0].position);
        for other in [event("a", "k", "two", &to), event("a", "other", "one", &to)] {
            let conflict = store
                .append(vec![event("new", "", "", &to), other])
                .await
                .unwrap_err();
            assert_eq!(
                conflict,
                AppendError::Conflict {
                    index: 1,
                    first: first[0].position
                }
            );
        }
        assert!(
            store.find("/test", "new").unwrap().is_none(),
            "nothing of a refused batch is stored"
        );

        let batch = vec![
            event("b", "", "x", &to),
            event("c", "", "x", &to),
            event("b", "", "x", &to),
        ];
        let receipts = store.append(batch).await.unwrap();
        assert_eq!(
            receipts.iter().map(|r| r.duplicate).collect::<Vec<_>>(),
            [false, false, true]
        );
        assert_eq!(receipts[0].position, receipts[2].position);
        let batch = vec![event("d", "", "x", &to), event("d", "", "y", &to)];
        assert_eq!(
            store.append(batch).await.unwrap_err(),
            AppendError::ConflictInBatch { index: 1, first: 0 }
        );
        assert!(store.find("/test", "d").unwrap().is_none());
        store.stop();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn parallel_requests_with_one_id_store_one_event() {
    with_any_shards(|options| async move {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = open(dir.path(), &options, &HandClock::new());
        let to = destinations(&store, 1);
        for round in 0..50 {
            let tasks: Vec<_> = (0..32)
                .map(|n| {
                    let store = store.clone();
                    // Batches in opposite orders must not wait for each other.
                    let mut batch = vec![
                        event(&format!("x{round}"), "", "same", &to),
                        event(&format!("y{round}"), "", "same", &to),
                    ];
                    if n % 2 == 0 {
                        batch.reverse();
                    }
                    tokio::spawn(async move { (n, store.append(batch).await.unwrap()) })
                })
                .collect();
            let mut firsts = 0;
            let mut positions = std::collections::BTreeSet::new();
            for task in tasks {
                let (_, receipts) = task.await.unwrap();
                firsts += receipts.iter().filter(|receipt| !receipt.duplicate).count();
                positions.extend(receipts.iter().map(|receipt| receipt.position));
            }
            assert_eq!((firsts, positions.len()), (2, 2));
        }
        assert_eq!(store.totals(to[0]).accepted, 100);
        store.stop();
    })
    .await;
}

#[tokio::test]
async fn an_id_is_forgotten_after_the_window_and_by_acceptance_time() {
    with_any_shards(|options| async move {
        let clock = HandClock::new();
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = open(dir.path(), &options, &clock);
        let to = destinations(&store, 1);
        fill(&store, 0, 20, 3, &to).await;
        clock.forward(Duration::from_secs(23 * 3600));
        assert!(
            fill(&store, 0, 20, 3, &to)
                .await
                .iter()
                .all(|receipt| receipt.duplicate)
        );
        clock.forward(Duration::from_secs(3601));
        assert!(
            fill(&store, 0, 20, 3, &to)
                .await
                .iter()
                .all(|receipt| !receipt.duplicate)
        );
        store.stop();
    })
    .await;
}

#[tokio::test]
async fn an_id_made_here_is_never_a_duplicate_and_is_still_found() {
    with_any_shards(|options| async move {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = open(dir.path(), &options, &HandClock::new());
        let to = destinations(&store, 1);
        let made = || {
            let mut new = event("made", "", "x", &to);
            new.identified = false;
            new
        };
        let [first, second] = [
            store.append(vec![made()]).await.unwrap(),
            store.append(vec![made()]).await.unwrap(),
        ];
        assert!(!first[0].duplicate && !second[0].duplicate);
        let found = store.find("/test", "made").unwrap().unwrap();
        assert!([first[0].position, second[0].position].contains(&found.position));
        store.stop();
    })
    .await;
}
