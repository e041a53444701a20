//! The events: a made-up week of a European online shop. Orders are placed, paid and picked,
//! parcels get an SSCC and leave, some deliveries fail and are tried again. One seed is one story, to
//! the byte; every order's events carry their number within the order, so a checker needs no other
//! source to know what should arrive and in which order.

use std::collections::VecDeque;

use serde_json::json;

/// Source of all events of the story.
pub const SOURCE: &str = "/demo/shop";

/// Orders under way at the same time: enough keys that several move at once.
const ORDERS_OPEN: usize = 60;

/// The story begins on Monday 2 March 2026, 06:00 UTC, in seconds since the epoch.
const BEGIN: u64 = 1_772_431_200;

/// GS1 company prefix from the range reserved for examples in the standards.
const COMPANY_PREFIX: &str = "4012345";

const CITIES: [(&str, &str); 14] = [
    ("DE", "Köln"),
    ("DE", "Hamburg"),
    ("DE", "Leipzig"),
    ("DE", "München"),
    ("DE", "Görlitz"),
    ("NL", "Rotterdam"),
    ("BE", "Liège"),
    ("AT", "Graz"),
    ("FR", "Besançon"),
    ("PL", "Łódź"),
    ("CZ", "Plzeň"),
    ("DK", "Århus"),
    ("ES", "A Coruña"),
    ("IT", "Forlì"),
];

const ARTICLES: [(&str, u64, u64); 8] = [
    ("rain jacket, petrol, M", 8_990, 640),
    ("head torch 300 lm", 3_495, 120),
    ("steel bottle 0.7 l", 2_790, 310),
    ("tent, two persons", 24_900, 2_450),
    ("merino socks, 42-44", 1_890, 90),
    ("pannier, pair", 13_950, 1_760),
    ("stove, gas", 4_590, 210),
    ("map set, Erzgebirge", 1_650, 180),
];

const CARRIERS: [&str; 3] = ["rhenus-express", "nordpost", "alpina-kurier"];

const EXCEPTIONS: [(&str, &str); 4] = [
    ("recipient_absent", "nobody at home, card left"),
    ("address_incomplete", "no house number"),
    ("delayed", "road closed after snow"),
    ("refused", "recipient refused the parcel"),
];

/// One event of the story.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Happening {
    /// The order it belongs to: the ordering key.
    pub order: u64,
    /// Its number within the order, from 1.
    pub step: u32,
    /// CloudEvents `type`.
    pub kind: String,
    /// CloudEvents `time`.
    pub time: String,
    /// The data, JSON.
    pub data: String,
}

impl Happening {
    /// CloudEvents `id`.
    pub fn id(&self) -> String {
        format!("{}-{}", self.order, self.step)
    }
}

/// The story, told event by event without end.
#[derive(Debug)]
pub struct Story {
    dice: Dice,
    orders: Vec<Order>,
    next_order: u64,
    now: u64,
}

/// An order and what will still happen to it.
#[derive(Debug)]
struct Order {
    number: u64,
    step: u32,
    city: (&'static str, &'static str),
    article: (&'static str, u64, u64),
    quantity: u64,
    carrier: &'static str,
    zone: usize,
    sscc: String,
    ahead: VecDeque<Chapter>,
}

#[derive(Clone, Copy, Debug)]
enum Chapter {
    Placed,
    Paid,
    PickingStarted,
    OutOfStock,
    Restocked,
    Picked,
    Packed,
    Dispatched,
    Exception(&'static str, &'static str),
    OutForDelivery,
    Delivered,
}

impl Story {
    /// The story of this seed.
    pub fn new(seed: u64) -> Self {
        Self {
            dice: Dice(seed),
            orders: Vec::with_capacity(ORDERS_OPEN),
            next_order: 260_300_001,
            now: BEGIN,
        }
    }

    fn begin_order(&mut self) -> Order {
        let number = self.next_order;
        self.next_order += 1;
        let dice = &mut self.dice;
        let mut ahead = VecDeque::from([Chapter::Placed, Chapter::Paid, Chapter::PickingStarted]);
        if dice.below(12) == 0 {
            ahead.extend([Chapter::OutOfStock, Chapter::Restocked]);
        }
        ahead.extend([Chapter::Picked, Chapter::Packed, Chapter::Dispatched]);
        ahead.push_back(Chapter::OutForDelivery);
        while dice.below(5) == 0 {
            let (reason, note) = dice.one_of(&EXCEPTIONS);
            ahead.extend([Chapter::Exception(reason, note), Chapter::OutForDelivery]);
        }
        ahead.push_back(Chapter::Delivered);
        Order {
            number,
            step: 0,
            city: dice.one_of(&CITIES),
            article: dice.one_of(&ARTICLES),
            quantity: 1 + dice.below(4) as u64,
            carrier: dice.one_of(&CARRIERS),
            zone: dice.below(3),
            sscc: sscc(number % 1_000_000_000),
            ahead,
        }
    }
}

impl Iterator for Story {
    type Item = Happening;

    fn next(&mut self) -> Option<Happening> {
        self.now += 1 + self.dice.below(30) as u64;
        while self.orders.len() < ORDERS_OPEN {
            let order = self.begin_order();
            self.orders.push(order);
        }
        let index = self.dice.below(self.orders.len());
        let order = self.orders.get_mut(index)?;
        let chapter = order.ahead.pop_front()?;
        order.step += 1;
        let happening = order.tell(chapter, self.now);
        if order.ahead.is_empty() {
            self.orders.swap_remove(index);
        }
        Some(happening)
    }
}

impl Order {
    fn tell(&self, chapter: Chapter, now: u64) -> Happening {
        let (country, city) = self.city;
        let (article, price_cents, weight_g) = self.article;
        let (kind, detail) = match chapter {
            Chapter::Placed => (
                "order.placed",
                json!({
                    "article": article, "quantity": self.quantity,
                    "total_cents": self.quantity * price_cents,
                    "ship_to": {"city": city, "country": country},
                }),
            ),
            Chapter::Paid => (
                "order.paid",
                json!({"total_cents": self.quantity * price_cents, "currency": "EUR"}),
            ),
            Chapter::PickingStarted => ("picking.started", json!({"zone": self.zone})),
            Chapter::OutOfStock => ("picking.out_of_stock", json!({"article": article})),
            Chapter::Restocked => ("picking.restocked", json!({"article": article})),
            Chapter::Picked => ("picking.done", json!({"quantity": self.quantity})),
            Chapter::Packed => (
                "shipment.packed",
                json!({"sscc": self.sscc, "weight_g": self.quantity * weight_g}),
            ),
            Chapter::Dispatched => (
                "shipment.dispatched",
                json!({"sscc": self.sscc, "carrier": self.carrier}),
            ),
            Chapter::OutForDelivery => {
                ("delivery.started", json!({"sscc": self.sscc, "city": city}))
            }
            Chapter::Exception(reason, note) => (
                "delivery.exception",
                json!({"sscc": self.sscc, "reason": reason, "note": note}),
            ),
            Chapter::Delivered => (
                "delivery.done",
                json!({"sscc": self.sscc, "city": city, "country": country}),
            ),
        };
        Happening {
            order: self.number,
            step: self.step,
            kind: format!("com.example.{kind}"),
            time: time(now),
            data: json!({"order": self.number, "step": self.step, "detail": detail}).to_string(),
        }
    }
}

fn time(seconds: u64) -> String {
    i64::try_from(seconds)
        .ok()
        .and_then(|seconds| jiff::Timestamp::from_second(seconds).ok())
        .unwrap_or(jiff::Timestamp::UNIX_EPOCH)
        .to_string()
}

/// Serial Shipping Container Code: extension digit, company prefix, serial and GS1 check digit, 18
/// digits in all.
fn sscc(serial: u64) -> String {
    let digits = format!("0{COMPANY_PREFIX}{serial:09}");
    let check = check_digit(&digits);
    format!("{digits}{check}")
}

/// GS1 check digit: weights 3 and 1 from the right, up to the next multiple of ten.
fn check_digit(digits: &str) -> u32 {
    let sum: u32 = digits
        .chars()
        .rev()
        .zip([3, 1].into_iter().cycle())
        .map(|(digit, weight)| digit.to_digit(10).unwrap_or_default() * weight)
        .sum();
    (10 - sum % 10) % 10
}

/// SplitMix64: small, fast, and the same on every machine.
#[derive(Debug)]
struct Dice(u64);

impl Dice {
    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        let choice = choices.get(self.below(choices.len()));
        *choice.expect("the index is below the length, and no list of the story is empty")
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        // The high bits of a product: unbiased enough for a story, and without a division.
        let scaled = (u128::from(z) * bound as u128) >> 64;
        usize::try_from(scaled).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn one_seed_is_one_story() {
        let told: Vec<_> = Story::new(7).take(500).collect();
        assert_eq!(told, Story::new(7).take(500).collect::<Vec<_>>());
        assert_ne!(told, Story::new(8).take(500).collect::<Vec<_>>());
    }

    #[test]
    fn steps_of_an_order_count_from_one_without_gaps() {
        let mut steps = BTreeMap::new();
        for happening in Story::new(1).take(5000) {
            let step = steps.entry(happening.order).or_insert(0);
            *step += 1;
            assert_eq!(happening.step, *step);
        }
        assert!(steps.len() > 400);
    }

    #[test]
    fn the_story_has_exceptions_and_stock_outs() {
        let told: Vec<_> = Story::new(1).take(3000).collect();
        for kind in [
            "delivery.exception",
            "picking.out_of_stock",
            "delivery.done",
        ] {
            assert!(told.iter().any(|h| h.kind.ends_with(kind)), "{kind}");
        }
    }

    #[test]
    fn check_digits_are_those_of_gs1() {
        // GTIN-13 4006381333931 and SSCC 106141411234567897, both from GS1's own examples.
        assert_eq!(check_digit("400638133393"), 1);
        assert_eq!(check_digit("10614141123456789"), 7);
        assert_eq!(sscc(111_111_111).len(), 18);
    }
}
