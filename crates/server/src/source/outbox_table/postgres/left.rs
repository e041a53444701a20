//! Rows that stay in the table while the log is read on: those that were refused, and those of their aggregates that
//! came behind them. They are kept in the order of their commits, which the table cannot tell any more. Pure.

use std::collections::{HashMap, HashSet};

/// Most rows that are kept so: their ids, about 2 MB of so many, are noted at the publication each time that some are
/// added. Tests go beyond it with fewer rows.
pub(super) const LEFT_MAX: usize = if cfg!(test) { 2_000 } else { 50_000 };

/// A row that stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LeftRow {
    /// Its event's id, by which it is found again.
    pub(super) id: String,
    /// The key whose later rows wait for it; never empty.
    pub(super) key: Option<String>,
}

/// All rows of a source that stay, in the order of their commits.
#[derive(Debug, Default)]
pub(super) struct Left {
    rows: Vec<LeftRow>,
    keys: HashSet<String>,
}

impl Left {
    /// These rows, in this order; `None` where they are more than may be kept, or one has no id.
    pub(super) fn of(rows: Vec<LeftRow>) -> Option<Self> {
        let mut left = Self::default();
        left.add(rows).then_some(left)
    }

    /// Adds rows that came behind all others; those that are kept already stay where they are. Answers whether all
    /// could be kept.
    pub(super) fn add(&mut self, rows: Vec<LeftRow>) -> bool {
        let mut known: HashSet<String> = self.rows.iter().map(|row| row.id.clone()).collect();
        for row in rows {
            if row.id.is_empty() {
                return false;
            }
            if known.insert(row.id.clone()) {
                self.rows.push(row);
            }
        }
        self.note_keys();
        self.rows.len() <= LEFT_MAX
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Their ids, in order.
    pub(super) fn ids(&self) -> Vec<String> {
        self.rows.iter().map(|row| row.id.clone()).collect()
    }

    /// Whether later rows of this key wait for one of these.
    pub(super) fn holds(&self, key: &str) -> bool {
        self.keys.contains(key)
    }

    /// Whether any of them has no key, so that nobody else tells when to try it again.
    pub(super) fn has_keyless(&self) -> bool {
        self.rows.iter().any(|row| row.key.is_none())
    }

    /// Ids of those to be read again, in order: of all keys but these, and of rows without a key where they are asked for.
    pub(super) fn due(&self, without: &[String], keyless: bool) -> Vec<String> {
        let without: HashSet<&str> = without.iter().map(String::as_str).collect();
        let is_due = |row: &&LeftRow| match &row.key {
            Some(key) => !without.contains(key.as_str()),
            None => keyless,
        };
        let due = self.rows.iter().filter(is_due);
        due.map(|row| row.id.clone()).collect()
    }

    /// What became of rows that were read again: those that stay do so with the key that they have now, the others
    /// are durable, or gone from the table.
    pub(super) fn looked_at(&mut self, ids: &[String], stay: Vec<LeftRow>) {
        let ids: HashSet<&str> = ids.iter().map(String::as_str).collect();
        let mut stay: HashMap<String, Option<String>> =
            stay.into_iter().map(|row| (row.id, row.key)).collect();
        self.rows.retain_mut(|row| {
            if !ids.contains(row.id.as_str()) {
                return true;
            }
            match stay.remove(&row.id) {
                Some(key) => {
                    row.key = key;
                    true
                }
                None => false,
            }
        });
        self.note_keys();
    }

    fn note_keys(&mut self) {
        let keys = self.rows.iter().filter_map(|row| row.key.clone());
        self.keys = keys.collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: &str, key: &str) -> LeftRow {
        LeftRow {
            id: id.to_owned(),
            key: Some(key.to_owned()).filter(|key| !key.is_empty()),
        }
    }

    fn left(rows: &[(&str, &str)]) -> Left {
        Left::of(rows.iter().map(|(id, key)| row(id, key)).collect()).unwrap()
    }

    #[test]
    fn rows_keep_their_order_and_are_kept_once() {
        let mut left = left(&[("3", "a"), ("1", "b"), ("2", "a")]);
        assert!(left.add(vec![row("1", "b"), row("0", "a"), row("9", "")]));
        assert_eq!(left.ids(), ["3", "1", "2", "0", "9"]);
        assert!(left.holds("a") && left.holds("b") && !left.holds("c"));
        assert!(left.has_keyless());
    }

    #[test]
    fn due_is_what_no_refused_row_holds_up() {
        let left = left(&[("3", "a"), ("1", "b"), ("2", "a"), ("9", "")]);
        let key = |key: &str| vec![key.to_owned()];
        assert_eq!(left.due(&key("b"), false), ["3", "2"]);
        assert_eq!(left.due(&key("a"), true), ["1", "9"]);
        assert_eq!(left.due(&[], true), ["3", "1", "2", "9"]);
        assert!(
            left.due(&["a".to_owned(), "b".to_owned()], false)
                .is_empty()
        );
    }

    #[test]
    fn what_was_read_again_and_does_not_stay_is_done() {
        let mut left = left(&[("3", "a"), ("1", "b"), ("2", "a")]);
        // Somebody gave it to another aggregate.
        left.looked_at(&["3".to_owned(), "2".to_owned()], vec![row("2", "c")]);
        assert_eq!(left.ids(), ["1", "2"]);
        assert!(!left.holds("a") && left.holds("c"));
        left.looked_at(&left.ids(), Vec::new());
        assert!(left.is_empty() && !left.holds("b"));
    }

    #[test]
    fn what_cannot_be_kept_is_said() {
        assert!(Left::of(vec![row("", "a")]).is_none());
        let many = |count: usize| (0..count).map(|n| row(&n.to_string(), "a")).collect();
        assert!(Left::of(many(LEFT_MAX)).is_some());
        assert!(Left::of(many(LEFT_MAX + 1)).is_none());
    }
}
