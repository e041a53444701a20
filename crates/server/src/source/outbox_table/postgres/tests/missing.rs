//! What is missing is named with the statement that mends it: the tests give that to the database.

use sqlx::Connection as _;
use sqlx::postgres::PgConnection;

use super::super::super::port::{Database as _, Finding, Trouble};
use super::super::Postgres;
use super::{OWN, Real};
use crate::config::{Database, Secret};

fn missing(findings: &[Finding]) -> Vec<&str> {
    let missing = findings.iter().filter(|finding| !finding.advice);
    missing.map(|finding| finding.problem.as_str()).collect()
}

async fn mend(real: &mut Real, findings: &[Finding]) {
    for finding in findings {
        real.run(finding.remedy.as_deref().unwrap()).await;
    }
}

#[tokio::test]
async fn columns_that_are_missing_are_named_with_the_key_that_wants_them() {
    let Some(mut real) = Real::table("id uuid").await else {
        return;
    };
    let keys = "after_accept = \"mark\"\nmark_column = \"taken\"\norder_by = \"place\"";
    let database = real.database(keys);
    let findings = database.check().await.unwrap();
    let told = missing(&findings).join("\n");
    for wanted in [
        "aggregateid, which table.field.event.key names",
        "payload",
        "mark_column",
        "order_by",
    ] {
        assert!(told.contains(wanted), "{told}");
    }
    let refused = database.connect().await.err();
    assert!(matches!(refused, Some(Trouble::Misfit(_))), "{refused:?}");
    mend(&mut real, &findings).await;
    let findings = database.check().await.unwrap();
    assert_eq!(missing(&findings), [] as [&str; 0]);
    // What is left is advice, of which the statements run as well.
    let told = format!("{findings:?}");
    assert!(
        told.contains("has no index") && told.contains("no trigger"),
        "{told}"
    );
    // Others may have transactions open, which are not this test's to end.
    let advice = findings
        .iter()
        .filter(|one| !one.problem.contains("process"));
    for finding in advice {
        real.run(finding.remedy.as_deref().unwrap()).await;
    }
    let told = format!("{:?}", database.check().await.unwrap());
    assert!(
        !told.contains("index") && !told.contains("trigger"),
        "{told}"
    );
    drop(real.connect(keys).await);
    real.drop().await;
}

#[tokio::test]
async fn a_table_that_is_not_there_and_one_that_is_none_are_told_apart() {
    let Some(mut real) = Real::table(OWN).await else {
        return;
    };
    let mut config = real.config("");
    let Database::Postgres(url) = config.database.clone() else {
        unreachable!("the URL names PostgreSQL");
    };
    let table = config.table.name.clone();
    config.table.name = format!("{table}_absent");
    let absent = Postgres::new(&config, &url).check().await.unwrap();
    assert!(
        absent[0].problem.contains("there is no table"),
        "{absent:?}"
    );
    real.run("CREATE VIEW {t}_view AS SELECT * FROM {t}").await;
    config.table.name = format!("{table}_view");
    let view = Postgres::new(&config, &url).check().await.unwrap();
    assert!(view[0].problem.contains("not a plain table"), "{view:?}");
    real.run("DROP VIEW {t}_view").await;
    real.drop().await;
}

#[tokio::test]
async fn privileges_that_are_missing_are_granted_by_the_statement_that_is_told() {
    let Some(mut real) = Real::table(OWN).await else {
        return;
    };
    let role = real.table.replace("outbox", "role");
    real.run(&format!("CREATE ROLE {role} LOGIN PASSWORD 'hunter2'"))
        .await;
    real.run("ALTER TABLE {t} ENABLE ROW LEVEL SECURITY").await;
    let config = real.config("");
    let url = real
        .url
        .replace("wayhold:wayhold@", &format!("{role}:hunter2@"));
    let database = Postgres::new(&config, &Secret::new(&url));
    let findings = database.check().await.unwrap();
    let told = missing(&findings).join("\n");
    for wanted in ["may not SELECT", "may not DELETE", "row-level security"] {
        assert!(told.contains(wanted), "{told}");
    }
    mend(&mut real, &findings).await;
    assert_eq!(
        missing(&database.check().await.unwrap()),
        [] as [&str; 0],
        "all of it is mended"
    );
    real.run(&format!("DROP OWNED BY {role}; DROP ROLE {role}"))
        .await;
    real.drop().await;
}

#[tokio::test]
async fn no_trouble_names_a_password() {
    let Some(real) = Real::table(OWN).await else {
        return;
    };
    let config = real.config("");
    for url in [
        real.url.replace("wayhold:wayhold@", "nobody_here:hunter2@"),
        "postgres://u:hunter2@127.0.0.1:1/x".to_owned(),
        "postgres://u:hunter2@127.0.0.1:1/x?sslmode=nonsense".to_owned(),
        "postgres://u:hunter2@no.such.host.invalid/x".to_owned(),
    ] {
        let trouble = Postgres::new(&config, &Secret::new(&url)).connect().await;
        let trouble = trouble.err().expect("no such database");
        assert!(matches!(trouble, Trouble::Unreachable(_)), "{trouble:?}");
        assert!(
            !format!("{trouble:?} {trouble}").contains("hunter2"),
            "{trouble}"
        );
    }
    real.drop().await;
}

#[tokio::test]
async fn a_transaction_that_holds_everything_up_is_named() {
    let Some(real) = Real::table(OWN).await else {
        return;
    };
    // Those of tests are not open for long enough to be named; the query itself must run.
    let mut connection = PgConnection::connect(&real.url).await.unwrap();
    super::super::check::open_transactions(&mut connection, 0)
        .await
        .unwrap();
    real.drop().await;
}
