//! A quorum: seats that people take. A seat is for somebody with a label, or for anybody who may approve; one person
//! takes one seat. `labels = ["buyer", "finance"]` is therefore one of each, by two people, and a person who is both
//! takes whichever of the two is left.

use std::time::Duration;

use serde_json::{Value, json};

/// Most seats of a quorum: more people than that decide nothing in time.
pub const SEATS_MAX: usize = 8;

/// A place in a quorum.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seat {
    /// Labels of which one is enough; empty where anybody who may approve will do.
    any_of: Vec<String>,
}

/// What becomes of a request that nobody decided in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnExpiry {
    /// The command is refused.
    Deny,
    /// Holders of another label are asked too, and may take every seat, for a while longer. Then it is refused.
    Escalate {
        /// The label.
        to: String,
        /// How much longer.
        wait: Duration,
    },
}

/// Who must say yes, and until when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quorum {
    seats: Vec<Seat>,
    expires: Duration,
    on_expiry: OnExpiry,
}

impl Seat {
    /// For anybody who may approve.
    pub const fn anybody() -> Self {
        Self { any_of: Vec::new() }
    }

    /// For a holder of one of these labels.
    pub fn of(labels: impl IntoIterator<Item = String>) -> Self {
        let mut any_of: Vec<_> = labels.into_iter().collect();
        any_of.sort_unstable();
        any_of.dedup();
        Self { any_of }
    }

    /// The labels of which one is enough; none where anybody will do.
    pub fn labels(&self) -> &[String] {
        &self.any_of
    }

    fn takes(&self, labels: &[String]) -> bool {
        self.any_of.is_empty() || self.any_of.iter().any(|label| labels.contains(label))
    }
}

impl Quorum {
    /// So many people, among them one for each label (each its own person). `None` where that asks for nobody, for
    /// more than [`SEATS_MAX`], or for fewer people than labels.
    pub fn new(
        approvers: usize,
        labels: &[String],
        expires: Duration,
        on_expiry: OnExpiry,
    ) -> Option<Self> {
        let seats = labels
            .iter()
            .map(|label| Seat::of([label.clone()]))
            .chain(
                std::iter::repeat_with(Seat::anybody).take(approvers.saturating_sub(labels.len())),
            )
            .collect();
        (labels.len() <= approvers)
            .then(|| Self::of_seats(seats, expires, on_expiry))
            .flatten()
    }

    /// A quorum of these seats; `None` for none or more than [`SEATS_MAX`].
    pub fn of_seats(mut seats: Vec<Seat>, expires: Duration, on_expiry: OnExpiry) -> Option<Self> {
        seats.sort_unstable();
        (1..=SEATS_MAX).contains(&seats.len()).then_some(Self {
            seats,
            expires,
            on_expiry,
        })
    }

    /// The seats, free ones first.
    pub fn seats(&self) -> &[Seat] {
        &self.seats
    }

    /// How long a request waits.
    pub const fn expires(&self) -> Duration {
        self.expires
    }

    /// What becomes of it then.
    pub const fn on_expiry(&self) -> &OnExpiry {
        &self.on_expiry
    }

    /// How many seats these people take together at most, each with the labels given: a maximum matching. The quorum is
    /// complete when that is every seat.
    pub fn seated<'a>(&self, people: impl IntoIterator<Item = &'a [String]>) -> usize {
        let people: Vec<&[String]> = people.into_iter().collect();
        let mut holder: Vec<Option<usize>> = vec![None; self.seats.len()];
        (0..people.len())
            .filter(|&person| self.seat(person, &people, &mut holder, &mut Vec::new()))
            .count()
    }

    /// Gives a person a seat, asking those who sit to move (Kuhn's algorithm).
    fn seat(
        &self,
        person: usize,
        people: &[&[String]],
        holder: &mut [Option<usize>],
        asked: &mut Vec<usize>,
    ) -> bool {
        for (at, seat) in self.seats.iter().enumerate() {
            let fits = people.get(person).is_some_and(|labels| seat.takes(labels));
            if !fits || asked.contains(&at) {
                continue;
            }
            asked.push(at);
            let free = match holder.get(at).copied().flatten() {
                Some(other) => self.seat(other, people, holder, asked),
                None => true,
            };
            if free && let Some(place) = holder.get_mut(at) {
                *place = Some(person);
                return true;
            }
        }
        false
    }

    /// The quorum that is complete only when both are: every seat that either asks for, and as many people as the
    /// larger.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let mut seats = self.seats.clone();
        let mut spare = self.seats.clone();
        for seat in &other.seats {
            match spare.iter().position(|mine| mine == seat) {
                Some(at) => drop(spare.swap_remove(at)),
                None if seat.any_of.is_empty() => {}
                None => seats.push(seat.clone()),
            }
        }
        // Free seats of one are as well taken by whoever sits on a labelled seat of the other.
        let people = self.seats.len().max(other.seats.len());
        while seats.len() > people
            && let Some(free) = seats.iter().position(|seat| seat.any_of.is_empty())
        {
            seats.swap_remove(free);
        }
        while seats.len() < people {
            seats.push(Seat::anybody());
        }
        seats.sort_unstable();
        Self {
            seats,
            expires: self.expires.min(other.expires),
            on_expiry: if self.on_expiry == other.on_expiry {
                self.on_expiry.clone()
            } else {
                OnExpiry::Deny
            },
        }
    }

    /// The same with every labelled seat open to holders of another label too.
    #[must_use]
    pub(super) fn opened_to(&self, label: &str) -> Self {
        let open = |seat: &Seat| match &*seat.any_of {
            [] => Seat::anybody(),
            labels => Seat::of(labels.iter().cloned().chain([label.to_owned()])),
        };
        let mut seats: Vec<_> = self.seats.iter().map(open).collect();
        seats.sort_unstable();
        Self {
            seats,
            ..self.clone()
        }
    }

    /// As records and answers show it.
    pub fn to_json(&self) -> Value {
        let labels: Vec<_> = self
            .seats
            .iter()
            .filter(|seat| !seat.any_of.is_empty())
            .map(|seat| seat.any_of.join("|"))
            .collect();
        json!({ "approvers": self.seats.len(), "labels": labels })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LABELS: [&str; 3] = ["buyer", "finance", "head"];

    fn texts(labels: &[&str]) -> Vec<String> {
        labels.iter().map(|&label| label.to_owned()).collect()
    }

    fn quorum(approvers: usize, labels: &[&str]) -> Quorum {
        let expires = Duration::from_secs(60);
        Quorum::new(approvers, &texts(labels), expires, OnExpiry::Deny).unwrap()
    }

    fn seated(quorum: &Quorum, people: &[&[&str]]) -> usize {
        let people: Vec<_> = people.iter().map(|labels| texts(labels)).collect();
        quorum.seated(people.iter().map(Vec::as_slice))
    }

    #[test]
    fn one_person_takes_one_seat() {
        let both = quorum(2, &["buyer", "finance"]);
        for (people, expected) in [
            (&[][..], 0),
            (&[&["buyer"][..]], 1),
            (&[&["buyer", "finance"]], 1),
            (&[&["buyer"], &["buyer"]], 1),
            (&[&[], &["buyer"]], 1),
            (&[&["buyer"], &["finance"]], 2),
            (&[&["finance"], &["buyer"]], 2),
            // Whoever is both moves to the seat that is left.
            (&[&["buyer", "finance"], &["buyer"]], 2),
            (&[&["buyer", "finance"], &["finance"]], 2),
            (&[&["buyer"], &["buyer"], &["finance"]], 2),
        ] {
            assert_eq!(seated(&both, people), expected, "{people:?}");
        }
        let third = quorum(3, &["buyer", "finance"]);
        assert_eq!(seated(&third, &[&["buyer"], &["buyer"], &["finance"]]), 3);
        assert_eq!(seated(&third, &[&["buyer"], &["buyer"], &["buyer"]]), 2);
        let twice = quorum(2, &["buyer", "buyer"]);
        assert_eq!(seated(&twice, &[&["buyer"], &["finance"]]), 1);
        assert_eq!(seated(&twice, &[&["buyer"], &["buyer"]]), 2);
    }

    #[test]
    fn a_quorum_that_nobody_can_make_up_is_none() {
        for (approvers, labels) in [(0, &[][..]), (1, &["buyer", "finance"]), (9, &[])] {
            let expires = Duration::from_secs(60);
            let made = Quorum::new(approvers, &texts(labels), expires, OnExpiry::Deny);
            assert_eq!(made, None, "{approvers} {labels:?}");
        }
    }

    fn some_labels() -> impl Strategy<Value = Vec<String>> {
        prop::collection::vec(prop::sample::select(LABELS.to_vec()), 0..3)
            .prop_map(|labels| texts(&labels))
    }

    fn some_quorum() -> impl Strategy<Value = Quorum> {
        (some_labels(), 0_usize..3).prop_filter_map("somebody", |(labels, more)| {
            let approvers = labels.len() + more;
            Quorum::new(approvers, &labels, Duration::from_secs(60), OnExpiry::Deny)
        })
    }

    /// The most seats that people take, by trying every order of them.
    fn by_trying(seats: &[Seat], people: &[Vec<String>]) -> usize {
        let Some((seat, rest)) = seats.split_first() else {
            return 0;
        };
        let empty = by_trying(rest, people);
        let with = (0..people.len())
            .filter(|&at| {
                seat.any_of.is_empty() || seat.any_of.iter().any(|l| people[at].contains(l))
            })
            .map(|at| {
                let mut others = people.to_vec();
                others.remove(at);
                1 + by_trying(rest, &others)
            })
            .max();
        empty.max(with.unwrap_or(0))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn as_many_sit_as_can(
            quorum in some_quorum(),
            people in prop::collection::vec(some_labels(), 0..5),
        ) {
            let seated = quorum.seated(people.iter().map(Vec::as_slice));
            prop_assert_eq!(seated, by_trying(quorum.seats(), &people));
        }

        #[test]
        fn whoever_makes_up_both_makes_up_each(
            one in some_quorum(),
            other in some_quorum(),
            people in prop::collection::vec(some_labels(), 0..6),
        ) {
            let both = one.and(&other);
            let complete = |quorum: &Quorum| {
                quorum.seated(people.iter().map(Vec::as_slice)) == quorum.seats().len()
            };
            prop_assert!(!complete(&both) || (complete(&one) && complete(&other)));
            prop_assert_eq!(&both.and(&one), &both);
            prop_assert_eq!(&both.and(&other), &both);
            prop_assert_eq!(&one.and(&one), &one);
        }
    }
}
