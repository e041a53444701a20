//! PostgreSQL by `sqlx`.

crate::sqlx::driver!(Postgres, crate::schema::Database::Postgres);
