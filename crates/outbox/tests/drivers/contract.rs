//! What every driver of `sqlx` must do, over the real database.

/// Tests that what commits is there with every column, once, and that what is rolled back is not: over the
/// connection that an expression opens (nothing where there is no such database), with the driver's module, for a
/// table of this name whose rows the statement reads in order.
macro_rules! of_sqlx {
    ($connect:expr, $driver:ident, $table:literal, $rows:expr) => {
        #[tokio::test]
        async fn sqlx_tells_what_commits_and_nothing_else() {
            let Some(mut connection) = $connect.await else {
                return;
            };
            let drop = concat!("DROP TABLE IF EXISTS ", $table);
            sqlx::raw_sql(drop).execute(&mut connection).await.unwrap();
            let table = crate::table($table);
            for _ in 0..2 {
                // One that is there is left as it is.
                wayhold_outbox::$driver::create_table(&mut connection, &table)
                    .await
                    .unwrap();
            }
            let (one, two, never) = (crate::event("1"), crate::bare("2"), crate::event("3"));

            let mut transaction = connection.begin().await.unwrap();
            for event in [&one, &two] {
                wayhold_outbox::$driver::insert(&mut transaction, &table, event)
                    .await
                    .unwrap();
            }
            transaction.commit().await.unwrap();

            let mut transaction = connection.begin().await.unwrap();
            wayhold_outbox::$driver::insert(&mut transaction, &table, &never)
                .await
                .unwrap();
            transaction.rollback().await.unwrap();

            let mut transaction = connection.begin().await.unwrap();
            let again = wayhold_outbox::$driver::insert(&mut transaction, &table, &one).await;
            let again = again.unwrap_err();
            assert!(
                matches!(again, wayhold_outbox::InsertError::Database(_)),
                "{again}"
            );
            transaction.rollback().await.unwrap();

            let found = sqlx::query_as($rows).fetch_all(&mut connection).await;
            let mut found: Vec<crate::Row> = found.unwrap();
            for row in &mut found {
                row.4 = row.4.as_deref().map(crate::without_blanks);
            }
            assert_eq!(found, crate::rows(&[&one, &two]));
            sqlx::raw_sql(drop).execute(&mut connection).await.unwrap();
        }
    };
}

pub(crate) use of_sqlx;
