//! Random histories: whatever people do together, the ledger shows that nothing left without what its policy asks.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, Debug)]
enum Op {
    Decide {
        command: usize,
        who: usize,
        yes: bool,
        stale: bool,
    },
    Edit {
        command: usize,
        who: usize,
        amount: i64,
    },
    Wait {
        hours: u32,
    },
}

fn some_op() -> impl Strategy<Value = Op> {
    let command = 0_usize..4;
    let who = 0..PEOPLE.len();
    prop_oneof![
        12 => (command.clone(), who.clone(), prop::bool::weighted(0.9), prop::bool::weighted(0.1))
            .prop_map(|(command, who, yes, stale)| Op::Decide { command, who, yes, stale }),
        2 => (command, who, prop::sample::select(vec![5, 100, 600, 3000]))
            .prop_map(|(command, who, amount)| Op::Edit { command, who, amount }),
        1 => (1_u32..30).prop_map(|hours| Op::Wait { hours }),
    ]
}

/// Runs operations several at a time, and judges every command by its records.
async fn run(ops: Vec<Op>) {
    let rig = Rig::new(book());
    let mut commands = Vec::new();
    for amount in [600, 3000, 3000, 5] {
        commands.push((rig.propose(amount).await.0, vec![amount]));
    }
    let mut refused = 0;
    for together in ops.chunks(3) {
        let mut decisions = Vec::new();
        for op in together {
            match *op {
                Op::Decide {
                    command,
                    who,
                    yes,
                    stale,
                } => {
                    let row = rig.request(commands[command].0).await;
                    let seen = if stale {
                        Digest([9; 32])
                    } else {
                        row.request.bound
                    };
                    let id = row.request.id.clone();
                    decisions.push(rig.approvals.decide(id, decision(who, yes, seen)));
                }
                Op::Edit {
                    command,
                    who,
                    amount,
                } => {
                    let (id, amounts) = &mut commands[command];
                    let seen = rig.request(*id).await.request.bound;
                    let edit = edited(amount, seen, PEOPLE[who].0);
                    if rig.approvals.edit(*id, edit).await.is_ok() {
                        amounts.push(amount);
                    }
                }
                Op::Wait { hours } => {
                    rig.wait(HOUR * hours);
                    rig.approvals.elapse_due().await.unwrap();
                }
            }
        }
        for decided in join_all(decisions).await {
            match decided {
                Ok(_) => {}
                Err(ApprovalError::Refused { .. }) => refused += 1,
                Err(other) => panic!("{other}"),
            }
        }
    }
    let mut recorded = 0;
    for (id, amounts) in &commands {
        let state = rig.state(*id).await;
        recorded += judge(&rig.records(*id).await, amounts, state);
    }
    assert_eq!(recorded, refused, "every refusal is a record");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn the_ledger_shows_that_nothing_left_without_what_its_policy_asks(
        ops in prop::collection::vec(some_op(), 0..40),
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.unwrap().block_on(run(ops));
    }
}
