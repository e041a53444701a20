//! The one form of lists: a page of items and where the next page begins.

use serde::Serialize;

/// A page of a list.
#[derive(Debug, Serialize)]
pub struct List<T> {
    /// The items.
    pub items: Vec<T>,
    /// Opaque; given back as `after` it asks for the next page. `null` on the last one.
    pub next: Option<String>,
}

impl<T> List<T> {
    /// A list that fits on one page.
    pub fn whole(items: Vec<T>) -> Self {
        Self { items, next: None }
    }
}
