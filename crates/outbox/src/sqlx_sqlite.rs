//! SQLite by `sqlx`.

crate::sqlx::driver!(Sqlite, crate::schema::Database::Sqlite);
