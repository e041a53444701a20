//! Whether a run met what it has to meet: one in which nothing happened proves nothing.

/// How often what a run is to meet was met.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub(super) accepted: u64,
    pub(super) refused: u64,
    pub(super) duplicates: u64,
    pub(super) conflicts: u64,
    pub(super) read: u64,
    pub(super) settled: u64,
    pub(super) parked: u64,
    pub(super) redriven: u64,
    pub(super) discarded: u64,
    pub(super) set_aside: u64,
    pub(super) revived: u64,
    pub(super) resharded: u64,
    pub(super) restarted: u64,
    pub(super) killed: u64,
    pub(super) cut: u64,
    /// Deliveries that a kill took back, because they were not synced.
    pub(super) repeated: u64,
    /// Events of which only the trace was left.
    pub(super) dropped: u64,
    /// Compactions of segments.
    pub(super) compacted: u64,
}

impl Seen {
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            accepted: self.accepted + other.accepted,
            refused: self.refused + other.refused,
            duplicates: self.duplicates + other.duplicates,
            conflicts: self.conflicts + other.conflicts,
            read: self.read + other.read,
            settled: self.settled + other.settled,
            parked: self.parked + other.parked,
            redriven: self.redriven + other.redriven,
            discarded: self.discarded + other.discarded,
            set_aside: self.set_aside + other.set_aside,
            revived: self.revived + other.revived,
            resharded: self.resharded + other.resharded,
            restarted: self.restarted + other.restarted,
            killed: self.killed + other.killed,
            cut: self.cut + other.cut,
            repeated: self.repeated + other.repeated,
            dropped: self.dropped + other.dropped,
            compacted: self.compacted + other.compacted,
        }
    }

    /// What a run has to meet and did not. A store that is in time with everything refuses nothing.
    pub(super) fn never(&self) -> Option<&'static str> {
        [
            (self.accepted, "an accepted event"),
            (self.duplicates, "a duplicate"),
            (self.conflicts, "a conflict"),
            (self.read, "a delivery"),
            (self.settled, "a settlement"),
            (self.parked, "a failed attempt"),
            (self.redriven, "a redrive"),
            (self.discarded, "a discarded letter"),
            (self.set_aside, "a delivery that was set aside"),
            (self.revived, "one that was made pending again"),
            (self.resharded, "another number of shards"),
            (self.restarted, "a restart"),
            (self.killed, "a kill"),
            (self.cut, "a power cut"),
            (self.repeated, "a settlement that a kill took back"),
            (self.dropped, "an event that was dropped"),
            (self.compacted, "a compaction"),
        ]
        .into_iter()
        .find_map(|(count, what)| (count == 0).then_some(what))
    }
}
