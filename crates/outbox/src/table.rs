//! The table and its columns: what a row of it is inserted by.

use std::borrow::Cow;

use crate::error::Invalid;
use crate::event::{Event, check_attribute_name};
use crate::schema::Database;

/// Longest name that PostgreSQL keeps whole; MySQL allows one more.
const MAX_IDENTIFIER_BYTES: usize = 63;

/// The columns of Debezium's layout, and the one that is added for the order of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    /// `id`: what receivers know a repeat by.
    Id,
    /// `aggregatetype`: what a route or a topic is chosen by.
    AggregateType,
    /// `aggregateid`: what order is kept by.
    AggregateId,
    /// `type`: what happened.
    Type,
    /// `payload`: the data.
    Payload,
    /// `position`: given by the database, in the order of inserts.
    Position,
}

const COLUMNS: [(Column, &str); 6] = [
    (Column::Id, "id"),
    (Column::AggregateType, "aggregatetype"),
    (Column::AggregateId, "aggregateid"),
    (Column::Type, "type"),
    (Column::Payload, "payload"),
    (Column::Position, "position"),
];

/// An outbox table: its name, what its columns are called, and which attributes have columns.
/// The default is `outboxevent` in Debezium's layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    pub(crate) schema: Option<String>,
    pub(crate) name: String,
    columns: [String; COLUMNS.len()],
    pub(crate) attributes: Vec<String>,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            schema: None,
            name: "outboxevent".into(),
            columns: COLUMNS.map(|(_, name)| name.into()),
            attributes: Vec::new(),
        }
    }
}

impl Table {
    /// A table by its name, `table` or `schema.table`.
    ///
    /// # Errors
    /// When that is no plain name: letters, digits and `_`, not a digit first, at most 63 of them.
    pub fn new(name: &str) -> Result<Self, Invalid> {
        let (schema, name) = match name.split_once('.') {
            Some((schema, name)) => (Some(identifier("table", schema)?), name),
            None => (None, name),
        };
        Ok(Self {
            schema,
            name: identifier("table", name)?,
            ..Self::default()
        })
    }

    /// The same table with another name for a column.
    ///
    /// # Errors
    /// When that is no plain name.
    pub fn rename(mut self, column: Column, name: &str) -> Result<Self, Invalid> {
        for ((known, usual), slot) in COLUMNS.iter().zip(&mut self.columns) {
            if *known == column {
                *slot = identifier(usual, name)?;
            }
        }
        Ok(self)
    }

    /// The same table with a text column for a CloudEvents attribute, called as that is: `time`,
    /// `traceparent`. Wayhold reads it by `"table.fields.additional.placement" = "traceparent:header"`.
    ///
    /// # Errors
    /// When no attribute may be called so.
    pub fn with_attribute(mut self, name: &str) -> Result<Self, Invalid> {
        check_attribute_name(name)?;
        if self.attributes.iter().any(|known| known == name)
            || self.columns.iter().any(|c| c == name)
        {
            return Err(Invalid::new(
                format!("attribute {name:?}"),
                "a name that no other column has",
            ));
        }
        self.attributes.push(name.into());
        Ok(self)
    }

    /// What a column is called here.
    pub fn column(&self, column: Column) -> &str {
        let named = COLUMNS.iter().zip(&self.columns);
        named
            .filter(|((known, _), _)| *known == column)
            .map(|(_, name)| name.as_str())
            .next()
            .unwrap_or_default()
    }

    /// The statement that inserts an event, and the texts to bind to it in order. For libraries other
    /// than those that this crate has functions for: every value is bound as text (or NULL), and the
    /// statement itself turns it into the column's type.
    ///
    /// # Errors
    /// When the event has an attribute that the table has no column for, or data that this database
    /// cannot hold.
    pub fn insert<'a>(&self, event: &'a Event, database: Database) -> Result<Insert<'a>, Invalid> {
        for (name, _) in event.attributes() {
            if !self.attributes.iter().any(|known| known == name) {
                return Err(Invalid::new(
                    format!("attribute {name:?}"),
                    "a column of that name in the outbox table (Table::with_attribute)",
                ));
            }
        }
        if database == Database::Postgres && event.data().is_some_and(escapes_nul) {
            return Err(Invalid::new(
                "data",
                "texts without the character U+0000, which PostgreSQL's jsonb cannot hold",
            ));
        }
        let mut values = vec![
            Some(Cow::Owned(event.id().to_string())),
            Some(Cow::Borrowed(event.aggregate_type())),
            Some(Cow::Borrowed(event.aggregate_id())),
            Some(Cow::Borrowed(event.r#type())),
            event.data().map(Cow::Borrowed),
        ];
        values.extend(self.attributes.iter().map(|column| {
            let mut given = event.attributes().filter(|(name, _)| name == column);
            given.next().map(|(_, value)| Cow::Borrowed(value))
        }));
        Ok(Insert {
            statement: self.insert_statement(database),
            values,
        })
    }

    fn insert_statement(&self, database: Database) -> String {
        let columns = [
            Column::Id,
            Column::AggregateType,
            Column::AggregateId,
            Column::Type,
            Column::Payload,
        ];
        let named = columns.iter().map(|column| self.column(*column));
        let names: Vec<_> = named
            .chain(self.attributes.iter().map(String::as_str))
            .map(|name| database.quoted(name))
            .collect();
        let places: Vec<_> = (1..=names.len())
            .map(|place| match (database, columns.get(place - 1)) {
                (Database::Postgres, Some(Column::Id)) => format!("${place}::text::uuid"),
                (Database::Postgres, Some(Column::Payload)) => format!("${place}::text::jsonb"),
                (Database::Postgres, _) => format!("${place}::text"),
                (Database::MySql | Database::Sqlite, _) => "?".to_owned(),
            })
            .collect();
        format!(
            "INSERT INTO {} ({}) VALUES ({})",
            self.quoted(database),
            names.join(", "),
            places.join(", ")
        )
    }

    /// The table's name as a statement of this database has it.
    pub(crate) fn quoted(&self, database: Database) -> String {
        let name = database.quoted(&self.name);
        match &self.schema {
            Some(schema) => format!("{}.{name}", database.quoted(schema)),
            None => name,
        }
    }
}

/// A statement and what is bound to it: `$1, $2, ...` for PostgreSQL, `?` for the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Insert<'a> {
    /// The statement. It holds names only, never a value.
    pub statement: String,
    /// The values in order; `None` is NULL.
    pub values: Vec<Option<Cow<'a, str>>>,
}

fn identifier(field: &str, name: &str) -> Result<String, Invalid> {
    let plain = name.len() <= MAX_IDENTIFIER_BYTES
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && !name.bytes().next().is_none_or(|b| b.is_ascii_digit());
    if plain {
        Ok(name.into())
    } else {
        Err(Invalid::new(
            field,
            format!(
                "a name of 1 to {MAX_IDENTIFIER_BYTES} letters, digits and _, not a digit first, found {name:?}"
            ),
        ))
    }
}

/// Whether a text in this JSON holds U+0000, which JSON writes as an escape.
fn escapes_nul(json: &str) -> bool {
    let mut rest = json;
    while let Some((_, after)) = rest.split_once('\\') {
        if after.starts_with("u0000") {
            return true;
        }
        let mut chars = after.chars();
        chars.next();
        rest = chars.as_str();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> Event {
        Event::of_type("placed")
            .aggregate("order", "42")
            .data("x")
            .build()
            .unwrap()
    }

    #[test]
    fn each_database_has_its_own_statement() {
        let table = Table::new("shop.outboxevent")
            .unwrap()
            .rename(Column::AggregateId, "key")
            .unwrap()
            .with_attribute("traceparent")
            .unwrap();
        let statement = |database| table.insert(&event(), database).unwrap().statement;
        assert_eq!(
            statement(Database::Postgres),
            r#"INSERT INTO "shop"."outboxevent" ("id", "aggregatetype", "key", "type", "payload", "traceparent") VALUES ($1::text::uuid, $2::text, $3::text, $4::text, $5::text::jsonb, $6::text)"#
        );
        assert_eq!(
            statement(Database::MySql),
            "INSERT INTO `shop`.`outboxevent` (`id`, `aggregatetype`, `key`, `type`, `payload`, `traceparent`) VALUES (?, ?, ?, ?, ?, ?)"
        );
        assert_eq!(
            statement(Database::Sqlite),
            r#"INSERT INTO "shop"."outboxevent" ("id", "aggregatetype", "key", "type", "payload", "traceparent") VALUES (?, ?, ?, ?, ?, ?)"#
        );
    }

    #[test]
    fn values_are_in_the_order_of_the_columns() {
        let table = Table::default()
            .with_attribute("a")
            .unwrap()
            .with_attribute("b")
            .unwrap();
        let event = Event::of_type("placed")
            .aggregate("order", "42")
            .attribute("b", "2");
        let event = event.build().unwrap();
        let id = event.id().to_string();
        let bound = table.insert(&event, Database::Sqlite).unwrap().values;
        let bound: Vec<_> = bound.iter().map(Option::as_deref).collect();
        let expected = [
            Some(id.as_str()),
            Some("order"),
            Some("42"),
            Some("placed"),
            None,
            None,
            Some("2"),
        ];
        assert_eq!(bound, expected);
    }

    #[test]
    fn names_that_are_not_plain_are_refused() {
        for name in ["", "a-b", "1a", "a.b.c", "a\"", "a b", "ä", &"x".repeat(64)] {
            let said = Table::new(name).unwrap_err().to_string();
            assert!(
                said.starts_with("table: expected a name of 1 to 63"),
                "{said}"
            );
        }
        let said = Table::default().rename(Column::Type, "type;").unwrap_err();
        assert_eq!(said.field(), "type");
        let twice = Table::default().with_attribute("type").unwrap_err();
        assert_eq!(twice.field(), "attribute \"type\"");
    }

    #[test]
    fn what_the_table_has_no_column_for_is_named() {
        let event = Event::of_type("placed")
            .aggregate("order", "42")
            .attribute("traceparent", "x");
        let event = event.build().unwrap();
        let said = Table::default()
            .insert(&event, Database::Sqlite)
            .unwrap_err();
        assert_eq!(said.field(), "attribute \"traceparent\"");
    }

    #[test]
    fn data_that_jsonb_cannot_hold_is_refused_beforehand() {
        for (text, held) in [
            ("a\0b", false),
            ("a\\u0000b", true),
            ("\\\0", false),
            ("plain", true),
        ] {
            let event = Event::of_type("placed").aggregate("order", "42").data(text);
            let event = event.build().unwrap();
            let inserted = Table::default().insert(&event, Database::Postgres);
            assert_eq!(inserted.is_ok(), held, "{text:?}");
            assert!(Table::default().insert(&event, Database::MySql).is_ok());
        }
    }
}
