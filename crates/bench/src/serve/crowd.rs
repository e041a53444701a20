//! Very many webhook destinations with one key each, of which some are bad in every way that a receiver can be bad.

use std::fmt::Write as _;

use super::args::Args;
use crate::payload::key;
use crate::webhook::hostile::Way;

/// Names of those whose receiver is well begin so.
pub const WELL: &str = "well-";

/// Names of the others.
const BAD: &str = "bad-";

/// Their tables and routes, where a crowd is asked for. The last ones are bad.
pub fn destinations(args: &Args) -> Option<String> {
    let (receiver, crowd) = (args.webhook.as_ref()?, args.crowd?);
    let well = crowd.saturating_sub(args.bad);
    let mut text = String::new();
    for number in 0..crowd {
        let (name, url) = match number < well {
            true => (format!("{WELL}{number}"), receiver.clone()),
            false => (
                format!("{BAD}{number}"),
                Way::of(number - well).url(receiver),
            ),
        };
        let key = key(number);
        // Writing to a text cannot fail.
        let _written = write!(
            text,
            "[destinations.{name}]\nkind = \"webhook\"\nurl = {url:?}\n\
             allow_networks = [\"127.0.0.0/8\"]\n\
             [[routes]]\nwhen = 'partitionkey == \"{key}\"'\nto = [\"{name}\"]\n"
        );
    }
    Some(text)
}
