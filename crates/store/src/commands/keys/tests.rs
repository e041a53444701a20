//! Which answer a key has, wherever it is found.

use wayhold_model::Timestamp;
use wayhold_model::command::State;

use super::super::tests::{add, id, new, open};
use super::super::{Change, Commands};
use super::*;

#[tokio::test]
async fn a_key_is_kept_once_and_forgotten_only_when_its_command_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let commands = open(folder.path());
    for (n, state) in [(1, State::Ready), (2, State::Succeeded)] {
        commands
            .change(move |change| {
                change.add_command(&new(n), state, (None, None))?;
                change.keep_key(&[n; 32], (&[7; 32], id(n)), (202, "{}"))
            })
            .await
            .unwrap();
    }
    let again = commands
        .change(|change| change.keep_key(&[1; 32], (&[7; 32], id(1)), (202, "{}")))
        .await;
    assert!(matches!(again, Err(CommandsError::Unfit { .. })));
    // One that begins alike is another one.
    let mut like = [1; 32];
    like[31] = 2;
    let both = commands.change(move |change| {
        assert_eq!(change.key(&like)?, None);
        change.keep_key(&like, (&[8; 32], id(1)), (202, "[]"))?;
        Ok::<_, CommandsError>([change.key(&[1; 32])?, change.key(&like)?])
    });
    let answers = both.await.unwrap().map(|row| row.unwrap().answer);
    assert_eq!(answers, ["{}", "[]"]);
    let (later, latest) = (1 << 60, 1 << 61);
    let old = |young: (u64, u64), after, max| {
        let young = (
            Timestamp::from_micros(young.0),
            Timestamp::from_micros(young.1),
        );
        let look = commands.read(|view| view.keys_to_forget(young, after, max));
        look.unwrap()
    };
    assert_eq!(old((later, latest), 0, 2), (vec![2], Some(2)));
    assert_eq!(old((later, latest), 2, 2), (vec![], None));
    assert_eq!(old((0, latest), 0, 9), (vec![], None));
    // Kept by a clock that was far ahead: it keeps nothing that came later.
    assert_eq!(old((0, 0), 0, 9), (vec![2], None));
    commands
        .change(|change| change.forget_keys(&[2, 9]))
        .await
        .unwrap();
    assert_eq!(
        key(&commands, [1; 32])
            .await
            .map(|row| (row.command, row.status)),
        Some((id(1), 202))
    );
    assert_eq!(key(&commands, [2; 32]).await, None);
}

async fn key(commands: &Commands, key: [u8; 32]) -> Option<KeyRow> {
    let found = commands.change(move |change| change.key(&key));
    found.await.unwrap()
}

/// More keys than are known in memory at a time, a restart in between and one that is forgotten: each is answered as it was.
#[tokio::test]
async fn every_key_is_found_whether_it_was_sorted_into_its_place_or_not() {
    const KEYS: u32 = 20_000;
    const AT_ONCE: u32 = 1_000;
    let folder = tempfile::tempdir().unwrap();
    let hash = |n: u32| {
        let mut key = [0; 32];
        // Pairs of them begin alike.
        key[..4].copy_from_slice(&(n / 2).wrapping_mul(0x9e37_79b1).to_be_bytes());
        key[8..12].copy_from_slice(&(n % 2).to_be_bytes());
        key
    };
    let mut commands = open(folder.path());
    add(&commands, 1, State::Ready).await.unwrap();
    for from in (0..KEYS).step_by(AT_ONCE as usize) {
        let keep = move |change: &mut Change<'_>| {
            for n in from..from + AT_ONCE {
                assert_eq!(change.key(&hash(n))?, None, "{n}");
                let answer = n.to_string();
                change.keep_key(&hash(n), (&[7; 32], id(1)), (202, &answer))?;
            }
            Ok::<_, CommandsError>(())
        };
        commands.change(keep).await.unwrap();
        // What is refused leaves none behind.
        let refused = commands.change(move |change| {
            change.keep_key(&hash(KEYS), (&[7; 32], id(1)), (202, "no"))?;
            Err::<(), _>(CommandsError::Busy)
        });
        assert_eq!(refused.await, Err(CommandsError::Busy));
        if from == KEYS / 2 {
            commands.stop();
            commands = open(folder.path());
        }
    }
    for n in (0..KEYS).step_by(97) {
        let found = key(&commands, hash(n)).await.unwrap();
        assert_eq!(found.answer, n.to_string());
    }
    assert_eq!(key(&commands, hash(KEYS)).await, None);
    let forget = commands.change(|change| change.forget_keys(&[1, u64::from(KEYS)]));
    forget.await.unwrap();
    for restarted in [false, true] {
        assert_eq!(key(&commands, hash(0)).await, None, "{restarted}");
        assert_eq!(key(&commands, hash(KEYS - 1)).await, None, "{restarted}");
        let other = key(&commands, hash(1)).await;
        assert_eq!(other.unwrap().answer, "1", "{restarted}");
        commands.stop();
        commands = open(folder.path());
    }
    // It may have the number of one that was forgotten.
    let again = commands
        .change(move |change| change.keep_key(&hash(KEYS - 1), (&[7; 32], id(1)), (202, "again")));
    again.await.unwrap();
    commands.stop();
    let commands = open(folder.path());
    assert_eq!(
        key(&commands, hash(KEYS - 1)).await.unwrap().answer,
        "again"
    );
}
