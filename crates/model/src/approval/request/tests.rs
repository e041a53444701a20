//! Decisions one by one. Whole histories are in `approval/histories.rs`.

use std::time::Duration;

use super::super::facts::actor_for_tests;
use super::*;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn start() -> Timestamp {
    Timestamp::from_micros(1_000_000)
}

fn digest(n: u8) -> Digest {
    Digest([n; 32])
}

fn binding() -> Binding {
    Binding {
        command: "c1".to_owned(),
        bound: digest(1),
        presented: digest(2),
        policies: digest(3),
        excluded: ["bot", "olaf"].map(str::to_owned).into(),
    }
}

fn verdict(requirement: Requirement) -> Verdict {
    Verdict {
        requirement,
        policy: Some("large".to_owned()),
        reasons: vec!["policy"],
        faults: Vec::new(),
    }
}

fn buyer_and_finance(on_expiry: OnExpiry) -> Requirement {
    let labels = ["buyer".to_owned(), "finance".to_owned()];
    Requirement::Approvers(Quorum::new(2, &labels, DAY, on_expiry).unwrap())
}

fn asked(requirement: Requirement) -> Request {
    let (opened, records) =
        Request::open("a1".to_owned(), &verdict(requirement), binding(), start());
    let kinds: Vec<_> = records.iter().map(|record| record.kind).collect();
    assert_eq!(kinds, ["policy.evaluated", "approval.requested"]);
    let Opened::Asked(request) = opened else {
        panic!("expected a request, got {opened:?}");
    };
    *request
}

fn somebody(name: &str, kind: ActorKind, labels: &[&str]) -> Approver {
    Approver {
        actor: actor_for_tests(name, kind),
        labels: labels.iter().map(|&label| label.to_owned()).collect(),
        channel: "api",
    }
}

fn person(name: &str, labels: &[&str]) -> Approver {
    somebody(name, ActorKind::Person, labels)
}

fn yes(request: &Request, by: &Approver) -> Result<Progress, Refusal> {
    request.approve(by, &digest(1), "", start())
}

fn kinds(progress: &Progress) -> Vec<&'static str> {
    progress.records.iter().map(|record| record.kind).collect()
}

#[test]
fn what_needs_nobody_leaves_at_once_and_what_is_denied_never() {
    let open =
        |requirement| Request::open(String::new(), &verdict(requirement), binding(), start());
    let (opened, records) = open(Requirement::Auto);
    let Opened::Ready(release) = opened else {
        panic!("{opened:?}");
    };
    assert!(release.is_for("c1", &digest(1)));
    assert!(!release.is_for("c2", &digest(1)) && !release.is_for("c1", &digest(9)));
    assert_eq!(records.len(), 1);
    assert_eq!(records[0].body["verdict"], "allow");
    let (opened, records) = open(Requirement::Deny {
        reason: "not on Sundays".to_owned(),
    });
    assert_eq!(opened, Opened::Denied("not on Sundays".to_owned()));
    assert_eq!(records[0].body["verdict"], "deny");
}

#[test]
fn a_quorum_consumes_the_request_in_the_step_that_completes_it() {
    let request = asked(buyer_and_finance(OnExpiry::Deny));
    let half = yes(&request, &person("anna", &["buyer"])).unwrap();
    assert_eq!(kinds(&half), ["approval.granted"]);
    assert_eq!((half.release, half.request.state), (None, State::Pending));
    let whole = yes(&half.request, &person("bert", &["finance"])).unwrap();
    assert_eq!(kinds(&whole), ["approval.granted", "approval.consumed"]);
    assert_eq!(whole.request.state, State::Consumed);
    assert!(whole.release.unwrap().is_for("c1", &digest(1)));
    for record in &whole.records {
        assert_eq!(record.body["bound_sha256"], digest(1).to_string());
        assert_eq!(record.body["command_id"], "c1");
    }
    let again = yes(&whole.request, &person("cleo", &["buyer", "finance"]));
    assert_eq!(again, Err(Refusal::NotPending(State::Consumed)));
}

#[test]
fn who_may_not_decide_is_refused_and_recorded() {
    let request = asked(buyer_and_finance(OnExpiry::Deny));
    let half = yes(&request, &person("anna", &["buyer"])).unwrap().request;
    let both = &["buyer", "finance"][..];
    for (by, expected) in [
        (somebody("gpt", ActorKind::Model, both), Refusal::NotAPerson),
        (
            somebody("robo", ActorKind::Service, both),
            Refusal::NotAPerson,
        ),
        (somebody("rule", ActorKind::Rule, both), Refusal::NotAPerson),
        (person("bot", both), Refusal::Requester),
        (person("olaf", both), Refusal::Requester),
        (person("anna", both), Refusal::AlreadyGranted),
        (person("alan", &["buyer"]), Refusal::NoSeat),
        (person("emil", &[]), Refusal::NoSeat),
    ] {
        let refusal = yes(&half, &by).unwrap_err();
        assert_eq!(refusal, expected, "{by:?}");
        let record = half.refused("approve", &by, &digest(1), refusal);
        assert_eq!(record.kind, "approval.refused");
        assert_eq!(record.actor, by.actor);
        assert_eq!(record.body["reason"], expected.code());
        if ![Refusal::AlreadyGranted, Refusal::NoSeat].contains(&expected) {
            let no = half.reject(&by, &digest(1), "no", start());
            assert_eq!(no, Err(expected), "{by:?}");
        }
    }
    let bert = person("bert", &["finance"]);
    let seen = half.approve(&bert, &digest(7), "", start());
    assert_eq!(seen, Err(Refusal::OtherDigest));
    let late = half.approve(&bert, &digest(1), "", half.due_at);
    assert_eq!(late, Err(Refusal::Late));
}

#[test]
fn one_no_is_enough() {
    let request = asked(buyer_and_finance(OnExpiry::Deny));
    let half = yes(&request, &person("anna", &["buyer"])).unwrap().request;
    let emil = person("emil", &[]);
    let no = half.reject(&emil, &digest(1), "too dear", start()).unwrap();
    assert_eq!(kinds(&no), ["approval.denied"]);
    assert_eq!(no.records[0].body["comment"], "too dear");
    assert_eq!((no.request.state, no.release), (State::Rejected, None));
}

#[test]
fn an_undo_window_asks_for_time_and_not_for_people() {
    let window = Duration::from_secs(600);
    let request = asked(Requirement::Delayed { window });
    let anna = person("anna", &["buyer"]);
    assert_eq!(yes(&request, &anna), Err(Refusal::NobodyAsked));
    let before = start().after(Duration::from_secs(599));
    assert_eq!(request.elapse(before), Elapsed::Nothing);
    assert!(request.reject(&anna, &digest(1), "stop", before).is_ok());
    let Elapsed::Released(progress) = request.elapse(start().after(window)) else {
        panic!("expected a release");
    };
    assert!(progress.release.unwrap().is_for("c1", &digest(1)));
    assert_eq!(
        progress.request.elapse(start().after(DAY)),
        Elapsed::Nothing
    );
}

#[test]
fn expiry_denies_or_asks_more_people_once() {
    let denied = asked(buyer_and_finance(OnExpiry::Deny));
    let Elapsed::Expired(progress) = denied.elapse(denied.due_at) else {
        panic!("expected an end");
    };
    assert_eq!(progress.request.state, State::Expired);

    let request = asked(buyer_and_finance(OnExpiry::Escalate {
        to: "head".to_owned(),
        wait: DAY,
    }));
    let dora = person("dora", &["head"]);
    assert_eq!(yes(&request, &dora), Err(Refusal::NoSeat));
    let half = yes(&request, &person("anna", &["buyer"])).unwrap().request;
    let Elapsed::Escalated(progress) = half.elapse(half.due_at) else {
        panic!("expected an escalation");
    };
    assert_eq!(kinds(&progress), ["approval.escalated"]);
    let escalated = progress.request;
    let now = escalated.due_at.before(Duration::from_secs(1));
    let whole = escalated.approve(&dora, &digest(1), "", now).unwrap();
    assert!(whole.release.is_some());
    assert!(matches!(
        escalated.elapse(escalated.due_at),
        Elapsed::Expired(_)
    ));
}

#[test]
fn a_request_that_is_void_decides_nothing() {
    let by = actor_for_tests("emil", ActorKind::Person);
    let request = asked(Requirement::people(1));
    for (why, kind, state) in [
        (
            Void::Cancelled {
                by: by.clone(),
                reason: String::new(),
            },
            "approval.cancelled",
            State::Cancelled,
        ),
        (
            Void::Edited { by, new: digest(8) },
            "approval.edited",
            State::Invalidated,
        ),
        (
            Void::PolicyChanged,
            "approval.invalidated",
            State::Invalidated,
        ),
        (
            Void::DestinationChanged,
            "approval.invalidated",
            State::Invalidated,
        ),
        (
            Void::FactsChanged,
            "approval.invalidated",
            State::Invalidated,
        ),
    ] {
        let progress = request.void(&why).unwrap();
        assert_eq!(kinds(&progress), [kind], "{why:?}");
        let void = progress.request;
        assert_eq!(void.state, state, "{why:?}");
        let anna = person("anna", &[]);
        assert_eq!(yes(&void, &anna), Err(Refusal::NotPending(state)));
        assert_eq!(void.void(&Void::PolicyChanged), None);
        assert_eq!(void.elapse(start().after(DAY * 90)), Elapsed::Nothing);
    }
}

#[test]
fn of_itself_nothing_becomes_easier() {
    let two = asked(Requirement::people(2));
    let easier = verdict(Requirement::people(1));
    assert_eq!(two.reconsider(&easier, false), None);
    let moved = two.reconsider(&easier, true).unwrap();
    assert_eq!(moved.requirement, Requirement::people(2));
    let labelled = two
        .reconsider(&verdict(buyer_and_finance(OnExpiry::Deny)), false)
        .unwrap();
    assert!(labelled.requirement.covers(&Requirement::people(2)));
    let no = Requirement::Deny {
        reason: "no".to_owned(),
    };
    let denied = two.reconsider(&verdict(no.clone()), false).unwrap();
    assert_eq!(denied.requirement, no);
}
