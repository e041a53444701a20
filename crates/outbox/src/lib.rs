#![doc = include_str!("../README.md")]

mod error;
mod event;
mod schema;
mod table;

#[cfg(feature = "rusqlite")]
pub mod rusqlite;
#[cfg(any(
    feature = "sqlx-mysql",
    feature = "sqlx-postgres",
    feature = "sqlx-sqlite"
))]
mod sqlx;
#[cfg(feature = "sqlx-mysql")]
pub mod sqlx_mysql;
#[cfg(feature = "sqlx-postgres")]
pub mod sqlx_postgres;
#[cfg(feature = "sqlx-sqlite")]
pub mod sqlx_sqlite;
#[cfg(feature = "tokio-postgres")]
pub mod tokio_postgres;

pub use error::{InsertError, Invalid};
pub use event::{Builder, Event};
pub use schema::{CHANNEL, Database};
pub use table::{Column, Insert, Table};
