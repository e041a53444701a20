//! MySQL and MariaDB by `sqlx`.

crate::sqlx::driver!(MySql, crate::schema::Database::MySql);
