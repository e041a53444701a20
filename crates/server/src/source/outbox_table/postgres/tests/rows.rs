//! What columns of any type become, and what becomes of a row that was taken.

use super::super::super::row::{Column, Payload};
use super::{OWN, Real, numbers};

#[tokio::test]
async fn columns_of_every_type_are_read_under_any_name() {
    let columns = "event_id bigint PRIMARY KEY, \"Kind of\" text, owner uuid, what text, body bytea, \
                   at timestamptz, version int, tenant text, amount numeric, urgent boolean, more jsonb, \
                   due timestamp, share float8";
    let Some(mut real) = Real::table(columns).await else {
        return;
    };
    real.run(
        "INSERT INTO {t} VALUES (7, 'order', '00000000-0000-0000-0000-000000000001', 'created', \
         '\\x00ff', '2026-01-31 13:00:00.5+01', 3, 'a', 12.50, true, '{\"b\": 1}', \
         '2026-01-31 12:00', 'NaN')",
    )
    .await;
    let keys = r#"
        "table.field.event.id" = "event_id"
        "route.by.field" = "Kind of"
        "table.field.event.key" = "owner"
        "table.field.event.type" = "what"
        "table.field.event.payload" = "body"
        "table.field.event.timestamp" = "at"
        "table.field.event.schema.version" = "version"
        "table.fields.additional.placement" = "tenant:header,amount:envelope,urgent:header,more:envelope,due:header,share:envelope"
    "#;
    let rows = real.drain(keys).await;
    let [row] = &rows[..] else {
        panic!("one row: {rows:?}");
    };
    assert_eq!(row.id.as_deref(), Some("7"));
    assert_eq!(row.route.as_deref(), Some("order"));
    assert_eq!(
        row.key.as_deref(),
        Some("00000000-0000-0000-0000-000000000001")
    );
    assert_eq!(row.kind.as_deref(), Some("created"));
    assert_eq!(row.payload, Payload::Binary(vec![0, 255]));
    assert_eq!(
        row.timestamp.as_deref(),
        Some("2026-01-31T12:00:00.500000Z")
    );
    assert_eq!(row.schema_version.as_deref(), Some("3"));
    assert_eq!(
        row.additional,
        [
            Column::Text("a".to_owned()),
            Column::Json("12.50".to_owned()),
            Column::Json("true".to_owned()),
            Column::Json("{\"b\": 1}".to_owned()),
            Column::Text("2026-01-31T12:00:00.000000Z".to_owned()),
            Column::Json("\"NaN\"".to_owned()),
        ]
    );
    assert_eq!(real.count().await, 0);
    real.drop().await;
}

#[tokio::test]
async fn nothing_in_a_column_is_nothing_and_text_is_text() {
    let columns =
        "id text, aggregatetype text, aggregateid text, type text, payload text, at bigint";
    let Some(mut real) = Real::table(columns).await else {
        return;
    };
    real.run("INSERT INTO {t} VALUES (NULL, NULL, NULL, NULL, NULL, NULL)")
        .await;
    real.run("INSERT INTO {t} VALUES ('1', 'a', 'b', 'c', 'hello', 1500)")
        .await;
    let rows = real.drain("\"table.field.event.timestamp\" = \"at\"").await;
    assert_eq!(rows[0].id, None);
    assert_eq!(
        (&rows[0].key, &rows[0].payload, &rows[0].timestamp),
        (&None, &Payload::Null, &None)
    );
    assert_eq!(rows[1].payload, Payload::Text("hello".to_owned()));
    assert_eq!(
        rows[1].timestamp.as_deref(),
        Some("1970-01-01T00:00:01.500000Z")
    );
    real.drop().await;
}

#[tokio::test]
async fn a_marked_row_stays_and_is_not_read_again() {
    for (kind, marked) in [
        ("timestamptz", "taken IS NOT NULL"),
        ("timestamp", "taken IS NOT NULL"),
        ("boolean NOT NULL DEFAULT false", "taken"),
    ] {
        let Some(mut real) = Real::table(&format!("{OWN}, taken {kind}")).await else {
            return;
        };
        for number in 0..5 {
            real.insert(number, "a").await;
        }
        let keys = "after_accept = \"mark\"\nmark_column = \"taken\"";
        assert_eq!(numbers(&real.drain(keys).await), [0, 1, 2, 3, 4]);
        assert!(real.drain(keys).await.is_empty(), "{kind}");
        assert_eq!(real.count().await, 5);
        real.run(&format!("DELETE FROM {{t}} WHERE {marked}")).await;
        assert_eq!(real.count().await, 0);
        real.drop().await;
    }
}

#[tokio::test]
async fn what_waits_is_counted_with_its_age() {
    let columns = format!("{OWN}, at timestamptz DEFAULT now() - interval '1 hour'");
    let Some(mut real) = Real::table(&columns).await else {
        return;
    };
    real.insert(1, "a").await;
    real.insert(2, "a").await;
    let keys = "\"table.field.event.timestamp\" = \"at\"";
    let mut connected = real.connect(keys).await;
    let lag = connected.settler.lag().await.unwrap();
    assert_eq!(lag.rows, 2);
    assert!(lag.oldest.unwrap().as_secs() >= 3600, "{lag:?}");
    drop(connected);
    let mut plain = real.connect("").await;
    assert_eq!(plain.settler.lag().await.unwrap().oldest, None);
    real.drop().await;
}
