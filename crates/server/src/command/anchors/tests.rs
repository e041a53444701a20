//! Places that take checkpoints, that refuse them, and that have others already.

use rusty_s3::{Bucket, UrlStyle};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;
use wayhold_model::ledger::Hash;
use wayhold_model::ledger::note::{Algorithm, SigningNoteKey};
use wayhold_model::ledger::proof::Head;

use super::*;
use crate::clock::SystemClock;
use crate::config::{S3Place, Secret};

fn note(size: u64) -> Note {
    let key = SigningNoteKey::new("ledger.example", Algorithm::Ed25519, &[7; 32]).unwrap();
    let checkpoint = Checkpoint {
        origin: "ledger.example".into(),
        head: Head {
            size,
            root: Hash::of(&size.to_be_bytes()),
        },
        extensions: Vec::new(),
    };
    checkpoint.sign(&key)
}

fn start(place: AnchorPlace) -> Anchors {
    let config = AnchorConfig {
        name: "second".into(),
        every: Duration::from_millis(1),
        place,
    };
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    Anchors::start(&[config], &clock).unwrap()
}

/// Waits until the state is as wanted.
async fn until(anchors: &Anchors, wanted: impl Fn(&AnchorState) -> bool) {
    for _ in 0..2_000 {
        if wanted(&anchors.states()[0]) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{:?}", anchors.states());
}

#[tokio::test]
async fn a_folder_gets_each_checkpoint_once_and_keeps_what_it_has() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("made");
    let anchors = start(AnchorPlace::Folder(folder.clone()));
    for size in [3, 7] {
        anchors.offer(&note(size));
        until(&anchors, |state| state.size == Some(size)).await;
    }
    let names = |folder: &Path| {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    assert_eq!(
        names(&folder),
        [
            "checkpoint-00000000000000000003",
            "checkpoint-00000000000000000007"
        ]
    );
    let path = folder.join("checkpoint-00000000000000000007");
    assert_eq!(fs::read_to_string(&path).unwrap(), note(7).to_string());
    assert!(anchors.findings().is_empty());
    fs::write(&path, "another history").unwrap();
    anchors.offer(&note(7));
    until(&anchors, |state| state.failure.is_some()).await;
    assert!(anchors.findings()[0].contains("another checkpoint"));
    assert_eq!(fs::read_to_string(&path).unwrap(), "another history");
}

#[tokio::test]
async fn an_address_gets_it_by_put_with_its_credential_and_a_refusal_is_told() {
    let (put_there, mut got) = mpsc::channel(10);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/ledger/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"=\n") {
                client.read_buf(&mut request).await.unwrap();
            }
            let request = String::from_utf8(request).unwrap();
            let answer = match request.contains("08 HTTP/1.1") {
                true => "403 Forbidden",
                false => "201 Created",
            };
            put_there.send(request).await.unwrap();
            let answer =
                format!("HTTP/1.1 {answer}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
            client.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    let place = AnchorPlace::Http {
        url: url.parse().unwrap(),
        authorization: Some(Secret::new("Bearer s")),
    };
    let anchors = start(place);
    anchors.offer(&note(5));
    let request = got.recv().await.unwrap();
    assert!(
        request.starts_with("PUT /ledger/checkpoint-00000000000000000005 HTTP/1.1\r\n"),
        "{request}"
    );
    assert!(request.contains("authorization: Bearer s\r\n"), "{request}");
    assert!(
        request.ends_with(&format!("\r\n\r\n{}", note(5))),
        "{request}"
    );
    until(&anchors, |state| state.size == Some(5)).await;
    anchors.offer(&note(8));
    until(&anchors, |state| state.failure.is_some()).await;
    assert!(anchors.findings()[0].contains("403"));
    let state = anchors.states().remove(0);
    assert_eq!((state.size, state.failures), (Some(5), 1));
    assert!(state.at.is_some());
}

/// Where `scripts/services up s3` has a bucket, which takes only what is signed as it should be.
const REAL_S3: &str = "WAYHOLD_TEST_S3";

/// A place of one's own in that bucket.
fn bucket(endpoint: &str, secret: &str) -> S3Place {
    let endpoint = endpoint.parse().unwrap();
    let mut prefix = [0; 8];
    getrandom::fill(&mut prefix).unwrap();
    S3Place {
        bucket: Bucket::new(endpoint, UrlStyle::Path, "wayhold", "us-east-1").unwrap(),
        prefix: format!("ledger/{:x}/", u64::from_ne_bytes(prefix)),
        access_key_id: Secret::new("wayhold-key"),
        secret_access_key: Secret::new(secret),
        session_token: None,
    }
}

fn real_bucket() -> Option<S3Place> {
    let Ok(endpoint) = std::env::var(REAL_S3) else {
        let required = std::env::var("WAYHOLD_TESTS_REQUIRE_ALL").is_ok_and(|value| value == "1");
        assert!(!required, "{REAL_S3} is not set: scripts/services up s3");
        println!("skipped: second places in a bucket because {REAL_S3} is not set");
        return None;
    };
    Some(bucket(&endpoint, "wayhold-secret"))
}

#[tokio::test]
async fn a_bucket_gets_each_checkpoint_once_and_keeps_what_it_has() {
    let Some(place) = real_bucket() else { return };
    let anchors = start(AnchorPlace::S3(place.clone()));
    for size in [3, 7] {
        anchors.offer(&note(size));
        until(&anchors, |state| state.size == Some(size)).await;
    }
    let state = anchors.states().remove(0);
    assert_eq!((state.failures, state.failure), (0, None));
    assert!(state.at.is_some());

    // What is there is not written over, neither by an older checkpoint nor by another one of the same size.
    let (there, client) = (S3::new(&place), reqwest::Client::new());
    let name = "checkpoint-00000000000000000007";
    let again = there.put(&client, name, &note(7).to_string()).await;
    assert_eq!(again, Ok(()), "a try whose answer was lost is no conflict");
    let refused = there.put(&client, name, "another history").await;
    assert!(refused.unwrap_err().contains("another checkpoint"));
    let longer = format!("{}x", note(7));
    assert!(there.put(&client, name, &longer).await.is_err());
    assert_eq!(there.put(&client, name, &note(7).to_string()).await, Ok(()));

    // Credentials that were lent for a while are sent, and signed, with their token.
    let lent = S3Place {
        session_token: Some(Secret::new("lent/for+a=while")),
        ..place
    };
    let put = S3::new(&lent).put(&client, "checkpoint-9", "text").await;
    assert_eq!(put, Ok(()));
}

#[tokio::test]
async fn a_bucket_that_refuses_is_told_with_its_own_word_and_no_secret() {
    let Some(good) = real_bucket() else { return };
    let client = reqwest::Client::new();
    let unsigned = S3Place {
        secret_access_key: Secret::new("other-secret"),
        ..good.clone()
    };
    let unknown = S3Place {
        access_key_id: Secret::new("nobody"),
        ..good.clone()
    };
    let endpoint = good.bucket.object_url("").join("/").unwrap();
    let absent = S3Place {
        bucket: Bucket::new(endpoint, UrlStyle::Path, "absent", "us-east-1").unwrap(),
        ..good
    };
    for (place, told) in [
        (unsigned, "it answered 403 Forbidden: SignatureDoesNotMatch"),
        (unknown, "it answered 403 Forbidden: InvalidAccessKeyId"),
        (absent, "it answered 404 Not Found: NoSuchBucket"),
    ] {
        let refused = S3::new(&place).put(&client, "checkpoint-1", "text").await;
        assert_eq!(refused, Err(told.to_owned()));
    }
}

#[tokio::test]
async fn a_bucket_that_does_not_answer_is_told_without_the_address_that_holds_the_signature() {
    let place = bucket("http://127.0.0.1:1", "wayhold-secret");
    let anchors = start(AnchorPlace::S3(place));
    anchors.offer(&note(5));
    until(&anchors, |state| state.failures == 1).await;
    let findings = anchors.findings().join("\n");
    assert!(findings.contains("ledger.anchors.second"), "{findings}");
    assert!(
        !findings.contains("X-Amz") && !findings.contains("wayhold-key"),
        "{findings}"
    );
}
