//! A page of a command whose every text tries to get out of its place.

use std::sync::Arc;

use serde_json::{Value, json};
use wayhold_model::ledger::{Actor, ActorKind, Draft, Salt, Trace};
use wayhold_store::commands::{Commands, Payload};
use wayhold_store::{Options, Store};

use super::*;
use crate::clock::SystemClock;

/// What every text of the command is: a script, an attribute's end, a terminal's command, another line of the page.
const HOSTILE: &str =
    "<script>alert(1)</script>\" onload='x' \u{1b}[2J\u{202e}\nWho allowed it\n  everybody";

async fn append(
    commands: &Commands,
    kind: &'static str,
    body: Value,
    payloads: Vec<Payload>,
) -> u64 {
    let actor = Actor {
        kind: ActorKind::Model,
        on_behalf_of: Some(HOSTILE.into()),
        ..Actor::system(HOSTILE)
    };
    let draft = Draft::new("cmd:7".into(), kind, &actor, &Trace::default(), &body).unwrap();
    let appended = commands.change(move |change| change.append_with(&draft, &payloads));
    appended.await.unwrap()
}

async fn page(folder: &std::path::Path) -> Evidence {
    let (store, _) = Store::open(folder, Options::default(), Arc::new(SystemClock)).unwrap();
    let commands = store.commands().unwrap();
    let input = Payload::new(Salt([1; 32]), HOSTILE.into());
    let erased = Payload::new(Salt([2; 32]), b"a telephone number".to_vec());
    let body = json!({
        HOSTILE: HOSTILE, "input": input.reference(), "args": erased.reference(),
        "rationale": {"summary": HOSTILE}, "events": [{"id": HOSTILE}, {"id": "2"}], "labels": ["a", HOSTILE]
    });
    let gone = erased.commitment;
    let idx = append(&commands, "command.accepted", body, vec![input, erased]).await;
    commands
        .change(move |change| change.erase(idx, gone))
        .await
        .unwrap();
    for kind in [
        "policy.evaluated",
        "approval.granted",
        "attempt.started",
        "attempt.finished",
    ] {
        append(&commands, kind, json!({ "note": HOSTILE }), Vec::new()).await;
    }
    append(
        &commands,
        "command.state",
        json!({ "to": "succeeded" }),
        Vec::new(),
    )
    .await;
    let evidence = commands.read(|view| collect(view, "7")).unwrap().unwrap();
    assert_eq!(commands.read(|view| collect(view, "8")), Ok(None));
    store.stop();
    evidence
}

#[tokio::test]
async fn the_page_answers_each_question_and_shows_payloads_where_they_are_held() {
    let folder = tempfile::tempdir().unwrap();
    let evidence = page(folder.path()).await;
    let titles: Vec<&str> = evidence
        .sections
        .iter()
        .map(|section| section.title)
        .collect();
    assert_eq!(
        titles,
        [
            "What was asked for, and why",
            "What the policy said",
            "Who allowed it",
            "What was sent, and what came back",
            "What became of it",
        ]
    );
    let asked = &evidence.sections[0].entries[0];
    let field = |name: &str| {
        let field = asked.fields.iter().find(|field| field.name == name);
        field.map(|field| field.text.clone()).unwrap_or_default()
    };
    assert_eq!(field("input"), HOSTILE);
    assert!(field("args").starts_with("(erased"), "{}", field("args"));
    assert_eq!(field("rationale.summary"), HOSTILE);
    assert_eq!(field("events[1].id"), "2");
    assert_eq!(field("labels"), format!("a, {HOSTILE}"));
    assert_eq!(evidence.sections[3].entries.len(), 2);
    assert!(!json!(evidence).to_string().contains("a telephone number"));
}

#[tokio::test]
async fn no_text_gets_out_of_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let evidence = page(folder.path()).await;
    let html = html(&evidence);
    assert!(
        !html.contains("<script") && !html.contains('\u{1b}'),
        "{html}"
    );
    for part in html.split('<').skip(1) {
        let tag = part.split('>').next().unwrap();
        let known = [
            "!doctype", "html", "/html", "meta", "title", "/title", "style", "/style", "h1", "/h1",
            "h2",
        ];
        let known = known.iter().chain(&[
            "/h2", "h3", "/h3", "p", "/p", "table", "/table", "tr", "/tr", "th",
        ]);
        let mut known = known.chain(&["/th", "td", "/td", "pre", "/pre"]);
        let name = tag.split(' ').next().unwrap();
        assert!(known.any(|one| *one == name), "<{tag}>");
        assert!(!tag.contains("onload"), "<{tag}>");
    }
    let text = text(&evidence);
    assert!(
        !text.contains('\u{1b}') && !text.contains('\u{202e}'),
        "{text}"
    );
    let headings = text
        .lines()
        .filter(|line| *line == "Who allowed it")
        .count();
    assert_eq!(headings, 1, "{text}");
}
