//! Who may do what: tokens, roles, and what a server does without them.

use std::path::Path;

use crate::support::http;
use crate::support::server::{Server, run, stderr, stdout};

/// Every route of the API with the role it needs; `None` is open to everybody. A test below holds this
/// list against the source.
const ROUTES: &[(&str, &str, Option<&str>)] = &[
    ("GET", "/livez", None),
    ("GET", "/readyz", None),
    ("GET", "/problems", None),
    ("GET", "/problems/{name}", None),
    ("GET", "/metrics", Some("read")),
    ("GET", "/v1/status", Some("read")),
    ("POST", "/v1/events", Some("ingest")),
    ("GET", "/v1/events", Some("read")),
    ("GET", "/v1/events/{position}", Some("read")),
    ("GET", "/v1/events/{position}/attempts", Some("read")),
    ("GET", "/v1/destinations", Some("read")),
    ("GET", "/v1/destinations/{name}", Some("read")),
    ("GET", "/v1/destinations/{name}/explain", Some("read")),
    ("POST", "/v1/destinations/{name}/pause", Some("operate")),
    ("POST", "/v1/destinations/{name}/disable", Some("operate")),
    ("POST", "/v1/destinations/{name}/resume", Some("operate")),
    ("POST", "/v1/destinations/{name}/retire", Some("operate")),
    ("POST", "/v1/destinations/{name}/test", Some("operate")),
    ("GET", "/v1/dead-letters", Some("read")),
    ("GET", "/v1/dead-letters/groups", Some("read")),
    ("POST", "/v1/dead-letters/redrive", Some("operate")),
    ("POST", "/v1/dead-letters/discard", Some("operate")),
    ("GET", "/v1/dead-letters/redrives", Some("read")),
    (
        "POST",
        "/v1/dead-letters/redrives/{destination}/stop",
        Some("operate"),
    ),
    ("GET", "/v1/dead-letters/{id}", Some("read")),
    ("POST", "/v1/dead-letters/{id}/redrive", Some("operate")),
    ("POST", "/v1/dead-letters/{id}/discard", Some("operate")),
    ("GET", "/v1/destinations/{name}/explain", Some("read")),
    ("POST", "/v1/destinations/{name}/disable", Some("operate")),
    ("GET", "/v1/replays", Some("read")),
    ("POST", "/v1/replays", Some("operate")),
    ("GET", "/v1/replays/{id}", Some("read")),
    ("POST", "/v1/replays/{id}/pause", Some("operate")),
    ("POST", "/v1/replays/{id}/resume", Some("operate")),
    ("POST", "/v1/replays/{id}/cancel", Some("operate")),
    ("GET", "/v1/approvals", Some("read")),
    ("GET", "/v1/approvals/{id}", Some("read")),
    ("POST", "/v1/approvals/approve", Some("approve")),
    ("POST", "/v1/approvals/reject", Some("approve")),
    ("POST", "/v1/approvals/simulate", Some("read")),
    ("POST", "/v1/approvals/{id}/approve", Some("approve")),
    ("POST", "/v1/approvals/{id}/reject", Some("approve")),
    ("GET", "/v1/commands/halts", Some("read")),
    ("POST", "/v1/commands/{id}/edit", Some("propose")),
    ("POST", "/v1/commands/halt", Some("operate")),
    ("POST", "/v1/commands/continue", Some("operate")),
    ("GET", "/v1/commands", Some("read")),
    ("POST", "/v1/commands", Some("propose")),
    ("GET", "/v1/commands/{id}", Some("read")),
    ("GET", "/v1/commands/{id}/evidence", Some("audit")),
    ("POST", "/v1/commands/{id}/assign", Some("operate")),
    ("POST", "/v1/commands/{id}/cancel", Some("operate")),
    ("POST", "/v1/commands/{id}/undo", Some("propose")),
    ("POST", "/v1/commands/{id}/replay", Some("propose")),
    ("POST", "/v1/commands/{id}/reconcile", Some("operate")),
    ("POST", "/v1/commands/reconcile", Some("operate")),
    ("GET", "/v1/ledger", Some("audit")),
    ("GET", "/v1/ledger/checkpoint", Some("audit")),
    ("GET", "/v1/ledger/keys", Some("audit")),
    ("GET", "/v1/ledger/anchors", Some("audit")),
    ("GET", "/v1/ledger/consistency", Some("audit")),
    ("POST", "/v1/ledger/exports", Some("audit")),
    ("GET", "/v1/ledger/tile/{*path}", Some("audit")),
    ("GET", "/v1/ledger/{idx}", Some("audit")),
    ("GET", "/v1/ledger/{idx}/proof", Some("audit")),
    ("POST", "/v1/ledger/{idx}/erase", Some("admin")),
    ("GET", "/v1/sources", Some("read")),
    ("GET", "/v1/sources/{name}", Some("read")),
    ("POST", "/v1/sources/{name}/check", Some("operate")),
    ("GET", "/v1/shards", Some("read")),
    ("PUT", "/v1/shards", Some("operate")),
    ("GET", "/v1/tokens", Some("admin")),
    ("POST", "/v1/tokens", Some("admin")),
    ("POST", "/v1/tokens/{prefix}/revoke", Some("admin")),
    ("GET", "/v1/audit", Some("audit")),
    ("GET", "/v1/config/diff", Some("operate")),
    ("POST", "/v1/config/reload", Some("operate")),
    ("GET", "/v1/backups", Some("admin")),
    ("POST", "/v1/backups", Some("admin")),
];

const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

/// Makes a token on a stopped server's data.
fn token(dir: &Path, name: &str, roles: &[&str]) -> String {
    let mut arguments = vec!["tokens", "create", name, "--data", "data"];
    arguments.extend(roles.iter().flat_map(|role| ["--role", role]));
    let output = run(dir, &arguments);
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output).trim().to_owned()
}

/// A path that exists, or might.
fn real(path: &str) -> String {
    let path = path
        .replace("{name}", "delivered")
        .replace("{position}", "g1.s0.1");
    path.replace("{id}", "1")
        .replace("{idx}", "0")
        .replace("{*path}", "0/000")
        .replace("{prefix}", "0123456789ab")
}

#[test]
fn no_route_gives_anything_without_a_token() {
    let dir = tempfile::tempdir().unwrap();
    token(dir.path(), "somebody", &["admin"]);
    let server = Server::start(dir.path(), &[]);
    for (_, path, _) in ROUTES {
        for method in METHODS {
            let open = ROUTES.iter().any(|(known, same, role)| {
                let reads = *known == "GET" && method == "HEAD";
                path == same && role.is_none() && (*known == method || reads)
            });
            for authorization in [
                None,
                Some("Basic YTpi"),
                Some("Bearer "),
                Some("Bearer wh_a_b"),
            ] {
                let headers: Vec<_> = authorization
                    .iter()
                    .map(|value| ("authorization", *value))
                    .collect();
                let answer = server.ask(method, &real(path), &headers, b"");
                let expected: &[u16] = if open { &[200, 404] } else { &[401, 405, 429] };
                let (status, text) = (answer.status, answer.text());
                assert!(
                    expected.contains(&status),
                    "{method} {path} {authorization:?}: {status} {text}"
                );
                assert!(
                    open || !text.contains("\"name\""),
                    "{method} {path}: {text}"
                );
            }
        }
    }
}

#[test]
fn every_route_asks_for_its_role_and_no_other_role_opens_it() {
    let dir = tempfile::tempdir().unwrap();
    let roles = [
        "ingest", "read", "operate", "propose", "approve", "audit", "admin",
    ];
    let tokens = roles.map(|role| (role, token(dir.path(), role, &[role])));
    let server = Server::start(dir.path(), &[]);
    for (method, path, needed) in ROUTES {
        let Some(needed) = needed else { continue };
        for (role, token) in &tokens {
            let authorization = format!("Bearer {token}");
            let headers = [("authorization", authorization.as_str())];
            let answer = server.ask(method, &real(path), &headers, b"");
            let expected = if role == needed {
                answer.status != 403
            } else {
                answer.status == 403
            };
            assert!(
                expected && answer.status != 401,
                "{method} {path} as {role}: {}",
                answer.status
            );
        }
    }
}

#[test]
fn the_list_of_routes_above_misses_none() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    let mut folders = vec![source.join("api"), source.join("http")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => files.push(path),
            }
        }
    }
    let mut found = 0;
    for file in files {
        let text = std::fs::read_to_string(file).unwrap();
        for after in text.split(".route(").skip(1) {
            // Other things have routes too; those of HTTP begin with a literal path.
            let Some(path) = after.trim_start().strip_prefix('"') else {
                continue;
            };
            let path = path.split('"').next().unwrap();
            assert!(
                ROUTES.iter().any(|(_, known, _)| *known == path),
                "{path} is not in the list"
            );
            found += 1;
        }
    }
    assert!(found > 10, "the search found only {found} routes");
}

#[test]
fn a_public_listener_needs_tokens_or_the_word_of_the_operator() {
    let dir = tempfile::tempdir().unwrap();
    let refused = run(dir.path(), &["serve", "--listen", "0.0.0.0:0"]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    assert!(
        stderr(&refused).contains("wayhold tokens create"),
        "{}",
        stderr(&refused)
    );

    let here = |server: &Server, path: &str, headers: &[(&str, &str)]| {
        let port = server.authority.rsplit_once(':').unwrap().1;
        http::ask(&format!("127.0.0.1:{port}"), "GET", path, headers, b"").unwrap()
    };
    let open = Server::start(dir.path(), &["--listen", "0.0.0.0:0", "--no-auth"]);
    let ready = here(&open, "/readyz", &[]);
    assert_eq!(ready.header("wayhold-auth"), Some("off"));
    assert!(ready.text().contains("--no-auth"), "{}", ready.text());
    assert!(
        here(&open, "/metrics", &[])
            .text()
            .contains("wayhold_no_auth 1")
    );
    assert!(open.terminate().success());

    let token = token(dir.path(), "ops", &["admin", "read"]);
    let server = Server::start(dir.path(), &["--listen", "0.0.0.0:0"]);
    let authorization = format!("Bearer {token}");
    assert_eq!(here(&server, "/v1/status", &[]).status, 401);
    assert_eq!(
        here(&server, "/v1/status", &[("authorization", &authorization)]).status,
        200
    );
}

#[test]
fn the_first_token_closes_the_door_and_a_revoked_one_opens_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let wish = r#"{"name":"ops","type":"person","roles":["admin","read","operate"]}"#;
    let created = server.post("/v1/tokens", wish);
    let token = created["token"].as_str().unwrap().to_owned();
    assert_eq!(server.ask("GET", "/v1/status", &[], b"").status, 401);
    let authorization = format!("Bearer {token}");
    let headers = [("authorization", authorization.as_str())];
    assert_eq!(server.ask("GET", "/v1/status", &headers, b"").status, 200);
    let paused = server.ask("POST", "/v1/destinations/delivered/pause", &headers, b"");
    assert_eq!(paused.json()["by"], "ops");
    let listed = server.ask("GET", "/v1/tokens", &headers, b"").json();
    assert_eq!(listed["items"][0]["created_by"], "local");
    assert!(!listed.to_string().contains(&token), "{listed}");
    let malformed = server.ask("POST", "/v1/tokens", &headers, br#"{"name":"x"}"#);
    assert_eq!(malformed.status, 400);
    assert_eq!(
        malformed.header("content-type"),
        Some("application/problem+json")
    );
    let prefix = created["prefix"].as_str().unwrap();
    let revoke = format!("/v1/tokens/{prefix}/revoke");
    assert_eq!(server.ask("POST", &revoke, &headers, b"").status, 200);
    assert_eq!(server.ask("GET", "/v1/status", &headers, b"").status, 401);
}

#[test]
fn what_strangers_ask_for_makes_no_new_series() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    server.send("order.created", "first", "7");
    server.wait_for_destination("delivered", "1 delivered", |one| {
        one["accounting"]["delivered"] == 1
    });
    let series = || {
        let page = server.ask("GET", "/metrics", &[], b"").text();
        page.lines().filter(|line| !line.starts_with('#')).count()
    };
    let before = series();
    for number in 0..100 {
        server.ask("GET", &format!("/random/{number}"), &[], b"");
        server.ask("POST", "/v1/events?type=", &[], b"not json");
        let name = |what: &str| format!("{what}{number}");
        server.send(&name("type"), &name("id"), &name("key"));
    }
    assert_eq!(series(), before);
}
