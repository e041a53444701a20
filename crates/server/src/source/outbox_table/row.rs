//! A row as a reader hands it over: columns by what they mean, as texts, and the place by which exactly
//! this row is deleted or marked later.

/// A committed row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// What settles exactly this row.
    pub place: Place,
    /// The event's id.
    pub id: Option<String>,
    /// What it is routed by (`route.by.field`).
    pub route: Option<String>,
    /// The aggregate's id: order is kept by it.
    pub key: Option<String>,
    /// The event's type.
    pub kind: Option<String>,
    /// The event's data.
    pub payload: Payload,
    /// The event's time, as RFC 3339.
    pub timestamp: Option<String>,
    /// The version of the payload's schema.
    pub schema_version: Option<String>,
    /// The additional columns, in the order of the configuration.
    pub additional: Vec<Column>,
}

impl Row {
    /// About how many bytes it takes.
    pub fn size(&self) -> usize {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let additional = self.additional.iter().map(Column::size).sum::<usize>();
        text(&self.id)
            + text(&self.route)
            + text(&self.key)
            + text(&self.kind)
            + self.payload.size()
            + additional
    }
}

/// A payload, by the type of its column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// `NULL`.
    Null,
    /// The text of a JSON column.
    Json(String),
    /// Some other text.
    Text(String),
    /// Bytes.
    Binary(Vec<u8>),
}

impl Payload {
    fn size(&self) -> usize {
        match self {
            Self::Null => 0,
            Self::Json(text) | Self::Text(text) => text.len(),
            Self::Binary(bytes) => bytes.len(),
        }
    }
}

/// An additional column's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Column {
    /// `NULL`.
    Null,
    /// A text, or what has a text form only.
    Text(String),
    /// Whatever JSON has a form of its own for (numbers, `true`, JSON itself), in that form.
    Json(String),
}

impl Column {
    /// A text, or what JSON has a form of its own for.
    pub(super) fn of(text: String, is_of_json: bool) -> Self {
        match is_of_json {
            true => Self::Json(text),
            false => Self::Text(text),
        }
    }

    fn size(&self) -> usize {
        match self {
            Self::Null => 0,
            Self::Text(text) | Self::Json(text) => text.len(),
        }
    }
}

/// Where a row lies. Only the reader that made it reads anything into it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// A version of a row in PostgreSQL: its tuple, and the transaction that put it in. A tuple's place may
    /// be given to another row later; the two together are never.
    Tuple {
        /// Block of the table.
        block: u32,
        /// Number within the block.
        offset: u16,
        /// Transaction, as it stands in `xmin`.
        xid: u32,
    },
    /// A row that was read in PostgreSQL's log, by its event's id.
    Logged {
        /// The id.
        id: String,
        /// Its number within its sweep, which begins where the slot is.
        at: u64,
    },
    /// A number that the table's rows have and that is given once.
    Number(i64),
    /// The event's id, in a table that has it as its key.
    Id(String),
}
