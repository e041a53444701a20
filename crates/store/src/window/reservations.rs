//! Ids of a request on their way to the disk.

use std::sync::Arc;

use super::{Candidates, Reserve, Window};

/// Ids that one request has reserved. They travel with it, so that they are given up when it ends in any
/// other way than by a commit: refused, abandoned, or never taken from the queue of a store that stopped.
pub(crate) struct Reservations {
    window: Arc<Window>,
    ids: Vec<u128>,
}

impl Reservations {
    /// None yet.
    pub(crate) fn new(window: &Arc<Window>) -> Self {
        Self {
            window: Arc::clone(window),
            ids: Vec::new(),
        }
    }

    /// Reserves an id, after the request that has it ended.
    pub(crate) async fn reserve(&mut self, id_hash: u128) -> Candidates {
        // Nearly always free: then nothing is made that could wait.
        if let Reserve::Reserved(candidates) = self.window.reserve(id_hash) {
            self.ids.push(id_hash);
            return candidates;
        }
        loop {
            let ended = self.window.ended(id_hash);
            match self.window.reserve(id_hash) {
                Reserve::Reserved(candidates) => {
                    self.ids.push(id_hash);
                    return candidates;
                }
                Reserve::Taken => ended.await,
            }
        }
    }

    /// Gives the id up that was reserved last.
    pub(crate) fn give_up_last(&mut self) {
        if let Some(id_hash) = self.ids.pop() {
            self.window.release(id_hash);
        }
    }

    /// Divides what is reserved among requests that end on their own: the ids of each. Together they are
    /// all that are reserved.
    pub(crate) fn divide(mut self, parts: Vec<Vec<u128>>) -> Vec<Self> {
        debug_assert_eq!(
            parts.iter().map(Vec::len).sum::<usize>(),
            self.ids.len(),
            "no reservation is lost or doubled"
        );
        self.ids.clear();
        parts
            .into_iter()
            .map(|ids| Self {
                window: Arc::clone(&self.window),
                ids,
            })
            .collect()
    }

    /// Every id of it was remembered, which ended its reservation.
    pub(crate) fn remembered(mut self) {
        self.ids.clear();
    }
}

impl Drop for Reservations {
    fn drop(&mut self) {
        for id_hash in &self.ids {
            self.window.release(*id_hash);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::tests::{id, segment, window};

    #[tokio::test]
    async fn who_waits_for_a_reservation_is_woken_by_its_end() {
        let window = Arc::new(window(100));
        window.reserve(id(1));
        let mut waiting = Reservations::new(&window);
        let waiter = tokio::spawn(async move { waiting.reserve(id(1)).await });
        tokio::task::yield_now().await;
        let placed = window.place(&segment(1), 1, 0);
        window.remember(id(1), placed.chapter);
        assert_eq!(waiter.await.unwrap(), vec![placed.chapter]);
    }

    #[tokio::test]
    async fn ids_of_a_request_are_free_again_when_it_ends_without_a_commit() {
        let window = Arc::new(window(100));
        let mut request = Reservations::new(&window);
        for number in [1, 2, 3] {
            request.reserve(id(number)).await;
        }
        request.give_up_last();
        assert_eq!(window.reserve(id(3)), Reserve::Reserved(vec![]));
        assert_eq!(window.reserve(id(1)), Reserve::Taken);
        drop(request);
        assert_eq!(window.reserve(id(1)), Reserve::Reserved(vec![]));
        // What another request reserved since is not touched by one that was committed.
        let committed = Reservations {
            window: Arc::clone(&window),
            ids: vec![id(1)],
        };
        committed.remembered();
        assert_eq!(window.reserve(id(1)), Reserve::Taken);
    }
}
