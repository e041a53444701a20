//! Tokens at the door: who needs one, what a wrong one gets, and that a revoked one ends at once.

use wayhold::auth::{Openness, Principal, PrincipalKind};

use crate::support::{Answer, Running, Setup};

fn principal(name: &str, role: &str) -> Principal {
    Principal::new(name, PrincipalKind::Service, &[role.to_owned()]).unwrap()
}

async fn post_with(server: &Running, token: &str) -> Answer {
    let header = format!("Authorization: Bearer {token}\r\n");
    server.post("?type=t", &header, b"1").await
}

#[tokio::test]
async fn the_first_token_closes_the_door_for_all_without_one() {
    let server = Running::start(Setup::default()).await;
    assert_eq!(server.post("?type=t", "", b"1").await.status, 202);
    let created = server
        .auth
        .create(&principal("shop", "ingest"), "ada")
        .unwrap();
    let answer = server.post("?type=t", "", b"1").await;
    assert_eq!(
        (answer.status, answer.problem().as_str()),
        (401, "unauthenticated")
    );
    assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
    assert_eq!(post_with(&server, &created.token).await.status, 202);
    let reader = server
        .auth
        .create(&principal("viewer", "read"), "ada")
        .unwrap();
    let answer = post_with(&server, &reader.token).await;
    assert_eq!(
        (answer.status, answer.problem().as_str()),
        (403, "forbidden")
    );
    server.auth.revoke(&created.record.prefix, "ada").unwrap();
    assert_eq!(post_with(&server, &created.token).await.status, 401);
}

#[tokio::test]
async fn guesses_are_refused_and_then_slowed() {
    let server = Running::start(Setup::default()).await;
    let created = server
        .auth
        .create(&principal("shop", "ingest"), "ada")
        .unwrap();
    let prefix = &created.record.prefix;
    let mut statuses = Vec::new();
    for n in 0..40 {
        let wrong = match n % 4 {
            0 => format!("wh_{prefix}_wrong"),
            1 => "wh_unknown_secret".to_owned(),
            2 => "something else".to_owned(),
            _ => format!("{}x", created.token),
        };
        statuses.push(post_with(&server, &wrong).await.status);
    }
    assert_eq!(statuses[..30], [401; 30]);
    assert_eq!(statuses[30..], [429; 10]);
    assert_eq!(
        post_with(&server, &created.token).await.status,
        202,
        "the right one still works"
    );
}

#[tokio::test]
async fn no_token_bytes_reach_the_disk() {
    let server = Running::start(Setup::default()).await;
    let created = server
        .auth
        .create(&principal("shop", "ingest"), "ada")
        .unwrap();
    // `wh_<prefix>_<secret>`, and the secret may hold such a line itself.
    let secret = created.token.splitn(3, '_').nth(2).unwrap().as_bytes();
    assert!(secret.len() >= 32, "{} bytes are no secret", secret.len());
    for entry in std::fs::read_dir(server.folder()).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            let bytes = std::fs::read(&path).unwrap();
            assert!(
                !bytes.windows(secret.len()).any(|window| window == secret),
                "{path:?}"
            );
        }
    }
}

#[tokio::test]
async fn web_pages_cannot_act_for_the_local_user() {
    let server = Running::start(Setup::default()).await;
    for (headers, status) in [
        ("Origin: https://evil.example\r\n", 403),
        ("Origin: null\r\n", 403),
        ("Origin: http://localhost\r\n", 202),
        ("", 202),
    ] {
        assert_eq!(
            server.post("?type=t", headers, b"1").await.status,
            status,
            "{headers}"
        );
    }
    let mut connection = server.connect().await;
    connection
        .send(b"POST /v1/events?type=t HTTP/1.1\r\nHost: rebound.example:8700\r\nContent-Length: 1\r\n\r\n1")
        .await;
    assert_eq!(connection.answer().await.unwrap().status, 403);
}

#[tokio::test]
async fn an_open_server_says_so_with_every_answer() {
    let server = Running::start(Setup {
        openness: Openness::Open,
        ..Setup::default()
    })
    .await;
    for head in [
        "POST /v1/events?type=t HTTP/1.1\r\n",
        "GET /nothing HTTP/1.1\r\n",
    ] {
        assert_eq!(
            server.send(head, b"1").await.header("wayhold-auth"),
            Some("off")
        );
    }
}
