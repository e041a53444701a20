//! Which failures are the same failure. The *fingerprint* of an error is a short name made of its class, the
//! receiver's number and what of its words does not change from one event to the next: digits, ids, times and
//! quoted values are taken out. Ten thousand dead letters of one cause have one fingerprint.
//!
//! Fingerprints are kept with dead letters, so the rules below are a format: to change them is to change the
//! version of the file.

use crate::hash;

/// Hexadecimal digits of a fingerprint: 48 bits tell a million kinds of failure apart with hardly a doubt, and
/// people can still read one to each other.
pub const FINGERPRINT_DIGITS: usize = 12;

/// Longest quoted word of a receiver's answer that may be the name of an error: longer ones are values.
const NAME_BYTES_MAX: usize = 40;

/// Fewest words of a quoted text that make it a sentence, and no value.
const SENTENCE_WORDS_MIN: usize = 3;

/// The fingerprint of a failure of this class, with the receiver's number, our own words for it and the
/// beginning of the receiver's answer, where there are any.
pub fn fingerprint(class: &str, status: Option<i32>, reason: &str, answer: Option<&str>) -> String {
    let mut text = String::with_capacity(reason.len() + answer.map_or(0, str::len) + 32);
    text.push_str(class);
    text.push('\0');
    if let Some(status) = status {
        text.push_str(&status.to_string());
    }
    text.push('\0');
    // What we quote are values, always.
    normalise(reason, |_, _| Quoted::Value, &mut text);
    text.push('\0');
    normalise(answer.unwrap_or_default(), Quoted::of_answer, &mut text);
    let mut digits = format!("{:016x}", hash::checksum(text.as_bytes(), 0));
    digits.truncate(FINGERPRINT_DIGITS);
    digits
}

/// What a quoted text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quoted {
    /// It stays as it is: the name of a field or an error.
    Name,
    /// It stays without what changes in it.
    Sentence,
    /// It is taken out.
    Value,
}

impl Quoted {
    /// A quoted text of a receiver's answer, and what follows it. Answers are mostly JSON, in which the code and
    /// the message of an error are quoted like everything else.
    fn of_answer(text: &str, after: &str) -> Self {
        let is_name = |byte: u8| byte.is_ascii_lowercase() || b"_-.:/".contains(&byte);
        if after.trim_start().starts_with(':') {
            return Self::Name;
        }
        if text.len() <= NAME_BYTES_MAX && text.bytes().all(is_name) {
            return Self::Name;
        }
        match text.split_whitespace().count() >= SENTENCE_WORDS_MIN {
            true => Self::Sentence,
            false => Self::Value,
        }
    }
}

/// Appends `text` without what changes from one event to the next.
fn normalise(text: &str, judge: impl Fn(&str, &str) -> Quoted + Copy, to: &mut String) {
    let mut rest = text;
    while let Some((before, quoted, after)) = next_quoted(rest) {
        push_words(before, to);
        match judge(quoted, after) {
            Quoted::Name => to.push_str(quoted),
            Quoted::Sentence => push_words(quoted, to),
            Quoted::Value => to.push('"'),
        }
        rest = after;
    }
    push_words(rest, to);
}

/// The first quoted text, with what stands before and after it. A mark that is never closed quotes nothing, and
/// neither does one within a word, as in "don't".
fn next_quoted(text: &str) -> Option<(&str, &str, &str)> {
    let mut last = ' ';
    for (at, mark) in text.char_indices() {
        let within_word = last.is_alphanumeric() || last == '\\';
        last = mark;
        if !matches!(mark, '"' | '\'' | '`') || within_word {
            continue;
        }
        let (before, from) = text.split_at(at);
        let inside = from.get(1..)?;
        let is_escaped = |at: usize| {
            at.checked_sub(1)
                .is_some_and(|at| inside.as_bytes().get(at) == Some(&b'\\'))
        };
        let close = inside.find(mark).filter(|at| !is_escaped(*at));
        if let Some((quoted, after)) = close.map(|at| inside.split_at(at)) {
            return Some((before, quoted, after.get(1..).unwrap_or_default()));
        }
    }
    None
}

/// Appends words: one that holds a digit is an id, a time or a number, whatever else is in it, and so becomes
/// `#`; one of only hexadecimal digits, as long as ids are, does too. Blanks become one.
fn push_words(text: &str, to: &mut String) {
    let is_of_word = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = rest
            .find(|c| is_of_word(c) != is_of_word(first))
            .unwrap_or(rest.len());
        let (piece, after) = rest.split_at(end);
        rest = after;
        if is_of_word(first) {
            match is_value(piece) {
                true if to.ends_with('#') => {}
                true => to.push('#'),
                false => to.push_str(piece),
            }
        } else {
            push_marks(piece, to);
        }
    }
}

/// Marks between parts of a value, as in `12.5` or `10:31:07`, belong to it.
fn push_marks(marks: &str, to: &mut String) {
    if to.ends_with('#') && matches!(marks, "." | ":" | "," | "/" | "+") {
        return;
    }
    for c in marks.chars() {
        if !c.is_whitespace() {
            to.push(c);
        } else if !to.ends_with(' ') {
            to.push(' ');
        }
    }
}

/// Hexadecimal digits that are no word any more: `deadbeef` is one, `bad` and `decade` are none.
const HEX_WORD_MIN: usize = 8;

fn is_value(word: &str) -> bool {
    let is_hex = || {
        word.bytes()
            .all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
    };
    word.bytes().any(|byte| byte.is_ascii_digit()) || (word.len() >= HEX_WORD_MIN && is_hex())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(reason: &str) -> String {
        fingerprint("invalid", Some(400), reason, None)
    }

    fn of_answer(answer: &str) -> String {
        fingerprint("invalid", Some(400), "host answered 400", Some(answer))
    }

    #[test]
    fn what_changes_with_the_event_does_not_change_the_fingerprint() {
        for (one, other) in [
            ("order 17 is unknown", "order 4711 is unknown"),
            ("order A-17 is unknown", "order B-9 is unknown"),
            (
                "no answer at 2026-11-30T10:43:01.5Z",
                "no answer at 2025-01-02T03:04:05+01:00",
            ),
            (
                "event 0193f7a1-aaaa-7bbb-8ccc-ddddeeeeffff refused",
                "event 0193f7a2-0000-7123-8456-123456789abc refused",
            ),
            ("trace deadbeefcafe failed", "trace feedfacebead failed"),
            ("sku \"red shoe\" is gone", "sku \"hat\" is gone"),
            ("sku 'a' is gone", "sku 'b' is gone"),
            ("took 12.5 ms", "took 3 ms"),
            ("10.0.0.7:8080 refused", "192.168.1.2:80 refused"),
            ("a   b", "a b"),
        ] {
            assert_eq!(of(one), of(other), "{one}");
        }
        for (one, other) in [
            (
                r#"{"error":"unknown_sku","sku":"A-17"}"#,
                r#"{"error":"unknown_sku","sku":"B-18"}"#,
            ),
            (
                r#"{"message":"the sku 17 is unknown","at":"10:31"}"#,
                r#"{"message":"the sku 18 is unknown","at":"11:47"}"#,
            ),
        ] {
            assert_eq!(of_answer(one), of_answer(other), "{one}");
        }
    }

    #[test]
    fn another_cause_is_another_fingerprint() {
        let base = of("order is unknown");
        for other in [
            of("customer is unknown"),
            of("don't know the order, isn't there"),
            fingerprint("invalid", Some(422), "order is unknown", None),
            fingerprint("invalid", None, "order is unknown", None),
            fingerprint("conflict", Some(400), "order is unknown", None),
            fingerprint("invalid", Some(400), "order is unknown", Some("why")),
        ] {
            assert_ne!(base, other);
        }
        assert_ne!(of("don't do this"), of("don't do that"));
        for (one, other) in [
            (r#"{"error":"unknown_sku"}"#, r#"{"error":"blocked"}"#),
            (r#"{"sku":"A1"}"#, r#"{"customer":"A1"}"#),
            (
                r#"{"detail":"The sku is unknown"}"#,
                r#"{"detail":"The customer is blocked"}"#,
            ),
        ] {
            assert_ne!(of_answer(one), of_answer(other), "{one}");
        }
    }

    #[test]
    fn the_fingerprint_of_the_disk_format_does_not_move() {
        let print = fingerprint(
            "invalid",
            Some(400),
            "wms.example.com answered 400",
            Some(r#"{"error":"unknown_sku","sku":"A-17"}"#),
        );
        assert_eq!(print, "2748aee97895");
    }

    proptest! {
        #[test]
        fn any_text_has_one_fingerprint_of_its_length(
            class in ".{0,20}", status in any::<Option<i32>>(),
            reason in ".{0,80}", answer in proptest::option::of("[\"'`\\\\a-z0-9 :{}é]{0,80}"),
        ) {
            let print = fingerprint(&class, status, &reason, answer.as_deref());
            prop_assert_eq!(print.len(), FINGERPRINT_DIGITS);
            prop_assert_eq!(&print, &fingerprint(&class, status, &reason, answer.as_deref()));
        }

        #[test]
        fn any_number_in_a_reason_is_the_same(number in any::<u64>(), other in any::<u32>()) {
            prop_assert_eq!(of(&format!("order {number} is late")), of(&format!("order {other} is late")));
        }
    }
}
