//! Reads JSON text (RFC 8259) without building values: it checks the grammar, bounds the depth, and
//! hands out slices of what was received, so that data stays byte for byte and costs one pass. It
//! never recurses, so no input can exhaust the stack.

use std::borrow::Cow;

use super::Refusal;

/// Most levels of nesting that can be asked for: the open levels are the bits of one `u128`.
pub(crate) const DEPTH_MAX: usize = 128;

/// What a value is, by its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    String,
    Number,
    True,
    False,
    Null,
    Object,
    Array,
}

/// A value as it stands in the text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Raw<'a> {
    /// The text, quotes and brackets included.
    pub(crate) text: &'a str,
    /// Where it begins.
    pub(crate) offset: usize,
    pub(crate) kind: Kind,
}

impl<'a> Raw<'a> {
    /// The characters of a string; borrowed unless an escape forces a copy.
    pub(crate) fn unescaped(self) -> Result<Cow<'a, str>, Refusal> {
        if self.text.contains('\\') {
            // The grammar was checked, so what remains is a surrogate without its pair.
            return serde_json::from_str(self.text)
                .map(Cow::Owned)
                .map_err(|_not_text| {
                    Refusal::malformed(self.offset, "a string whose escapes are Unicode text")
                });
        }
        let inner = self
            .text
            .strip_prefix('"')
            .and_then(|text| text.strip_suffix('"'));
        Ok(Cow::Borrowed(inner.unwrap_or_default()))
    }
}

/// Checks that `text` is exactly one JSON value, at most `depth_max` deep.
pub(crate) fn check(text: &str, depth_max: usize) -> Result<(), Refusal> {
    let mut scanner = Scanner::new(text, depth_max);
    scanner.value()?;
    scanner.end()
}

/// `bytes` as text, or the offset of the first byte that is not UTF-8.
pub(crate) fn text(bytes: &[u8]) -> Result<&str, Refusal> {
    std::str::from_utf8(bytes)
        .map_err(|error| Refusal::malformed(error.valid_up_to(), "JSON text in UTF-8"))
}

/// A place in a JSON text and the levels that are open there.
pub(crate) struct Scanner<'a> {
    text: &'a str,
    at: usize,
    /// Levels opened by `enter` and not yet left.
    entered: usize,
    depth_max: usize,
}

impl<'a> Scanner<'a> {
    pub(crate) fn new(text: &'a str, depth_max: usize) -> Self {
        Self {
            text,
            at: 0,
            entered: 0,
            depth_max: depth_max.min(DEPTH_MAX),
        }
    }

    /// Nothing may follow.
    pub(crate) fn end(&mut self) -> Result<(), Refusal> {
        match self.next_byte() {
            None => Ok(()),
            Some(_) => self.expected("the end of the text"),
        }
    }

    /// Steps into an array or object that must begin here.
    pub(crate) fn enter(&mut self, open: u8, expected: &'static str) -> Result<(), Refusal> {
        if self.next_byte() != Some(open) {
            return self.expected(expected);
        }
        if self.entered == self.depth_max {
            return self.too_deep();
        }
        self.entered += 1;
        self.at += 1;
        Ok(())
    }

    /// Steps to the next member of what was entered, or out of it. `first` says that none was read yet.
    pub(crate) fn advance(&mut self, first: bool, close: u8) -> Result<bool, Refusal> {
        match self.next_byte() {
            Some(byte) if byte == close => {
                self.at += 1;
                self.entered = self.entered.saturating_sub(1);
                Ok(false)
            }
            Some(_) if first => Ok(true),
            Some(b',') => {
                self.at += 1;
                Ok(true)
            }
            _ => self.expected("a comma or the closing bracket"),
        }
    }

    /// Reads a member's name and the colon after it.
    pub(crate) fn name(&mut self) -> Result<Raw<'a>, Refusal> {
        if self.next_byte() != Some(b'"') {
            return self.expected("a name in quotes");
        }
        let start = self.at;
        self.string()?;
        let raw = self.raw(start, Kind::String);
        if self.next_byte() != Some(b':') {
            return self.expected("a colon");
        }
        self.at += 1;
        Ok(raw)
    }

    /// Reads one value of any kind and depth.
    pub(crate) fn value(&mut self) -> Result<Raw<'a>, Refusal> {
        self.skip_space();
        let start = self.at;
        let kind = self.peek().and_then(kind_of);
        self.skip_value()?;
        // `skip_value` has refused every other first byte.
        Ok(self.raw(start, kind.unwrap_or(Kind::Null)))
    }

    fn skip_value(&mut self) -> Result<(), Refusal> {
        // One bit for each open level, the innermost lowest: set for an object.
        let mut levels: u128 = 0;
        let mut depth = 0;
        loop {
            match self.next_byte().and_then(kind_of) {
                Some(kind @ (Kind::Object | Kind::Array)) => {
                    if self.entered + depth == self.depth_max {
                        return self.too_deep();
                    }
                    let object = kind == Kind::Object;
                    self.at += 1;
                    depth += 1;
                    levels = levels << 1 | u128::from(object);
                    let close = if object { b'}' } else { b']' };
                    if self.next_byte() != Some(close) {
                        if object {
                            self.name()?;
                        }
                        continue;
                    }
                }
                Some(Kind::String) => self.string()?,
                Some(Kind::Number) => self.number()?,
                Some(Kind::True) => self.literal("true")?,
                Some(Kind::False) => self.literal("false")?,
                Some(Kind::Null) => self.literal("null")?,
                None => return self.expected("a JSON value"),
            }
            // After a value: leave every level that closes here, or go on to the next member.
            loop {
                if depth == 0 {
                    return Ok(());
                }
                let object = levels & 1 == 1;
                match self.next_byte() {
                    Some(b'}') if object => {}
                    Some(b']') if !object => {}
                    Some(b',') => {
                        self.at += 1;
                        if object {
                            self.name()?;
                        }
                        break;
                    }
                    _ => return self.expected("a comma or the closing bracket"),
                }
                self.at += 1;
                depth -= 1;
                levels >>= 1;
            }
        }
    }

    /// From the opening quote past the closing one.
    fn string(&mut self) -> Result<(), Refusal> {
        self.at += 1;
        loop {
            let rest = self.text.as_bytes().get(self.at..).unwrap_or_default();
            self.at += plain_bytes(rest);
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => self.escape()?,
                Some(_) => return self.expected("control characters in a string to be escaped"),
                None => return self.expected("a closing quote"),
            }
        }
    }

    fn escape(&mut self) -> Result<(), Refusal> {
        self.at += 1;
        match self.peek() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                self.at += 1;
                Ok(())
            }
            Some(b'u') => {
                let digits = self.text.as_bytes().get(self.at + 1..self.at + 5);
                if !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
                    return self.expected("four hexadecimal digits");
                }
                self.at += 5;
                Ok(())
            }
            _ => self.expected("an escape that JSON knows"),
        }
    }

    fn number(&mut self) -> Result<(), Refusal> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    /// One digit or more.
    fn digits(&mut self) -> Result<(), Refusal> {
        let rest = self.text.as_bytes().get(self.at..).unwrap_or_default();
        let count = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if count == 0 {
            return self.expected("a digit");
        }
        self.at += count;
        Ok(())
    }

    fn literal(&mut self, word: &'static str) -> Result<(), Refusal> {
        let rest = self.text.as_bytes().get(self.at..).unwrap_or_default();
        if !rest.starts_with(word.as_bytes()) {
            return self.expected("a JSON value");
        }
        self.at += word.len();
        Ok(())
    }

    fn raw(&self, start: usize, kind: Kind) -> Raw<'a> {
        // Both ends stand beside ASCII, so they are character boundaries.
        Raw {
            text: self.text.get(start..self.at).unwrap_or_default(),
            offset: start,
            kind,
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// The next byte that is no white space.
    fn next_byte(&mut self) -> Option<u8> {
        self.skip_space();
        self.peek()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    fn expected<T>(&self, what: &'static str) -> Result<T, Refusal> {
        Err(Refusal::malformed(self.at, what))
    }

    fn too_deep<T>(&self) -> Result<T, Refusal> {
        Err(Refusal::malformed(
            self.at,
            format!("at most {} levels of JSON", self.depth_max),
        ))
    }
}

fn kind_of(first: u8) -> Option<Kind> {
    Some(match first {
        b'{' => Kind::Object,
        b'[' => Kind::Array,
        b'"' => Kind::String,
        b'-' | b'0'..=b'9' => Kind::Number,
        b't' => Kind::True,
        b'f' => Kind::False,
        b'n' => Kind::Null,
        _ => return None,
    })
}

/// How many bytes at the beginning stand for themselves in a string. Most of an event is such bytes,
/// so they are looked at in blocks, which the compiler turns into a few vector instructions.
fn plain_bytes(bytes: &[u8]) -> usize {
    const BLOCK: usize = 16;
    let is_plain = |&byte: &u8| (byte >= 0x20) & (byte != b'"') & (byte != b'\\');
    let all_plain = |block: &&[u8]| block.iter().fold(true, |all, byte| all & is_plain(byte));
    let whole = BLOCK * bytes.chunks_exact(BLOCK).take_while(all_plain).count();
    let rest = bytes.get(whole..).unwrap_or_default();
    whole + rest.iter().take_while(|byte| is_plain(byte)).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nesting_is_bounded_without_recursion() {
        for (depth, accepted) in [(64, true), (65, false), (10_000, false), (1_000_000, false)] {
            for (open, close) in [("[", "]"), (r#"{"a":"#, "}")] {
                let inner = if open == "[" { "" } else { "1" };
                let text = format!("{}{inner}{}", open.repeat(depth), close.repeat(depth));
                assert_eq!(check(&text, 64).is_ok(), accepted, "{depth} {open}");
            }
            assert!(check(&"[".repeat(depth), 64).is_err(), "{depth} unclosed");
        }
    }

    #[test]
    fn a_fault_is_told_with_its_offset() {
        for (text, offset) in [
            ("", 0),
            ("{", 1),
            (r#"{"a" 1}"#, 5),
            (r#"{"a":1,}"#, 7),
            ("[1 2]", 3),
            ("01", 1),
            ("-", 1),
            ("1.", 2),
            ("1e", 2),
            ("tru", 0),
            ("{} {}", 3),
            ("\"a\nb\"", 2),
            (r#""\x""#, 2),
            (r#""\u12g4""#, 2),
            ("\"abc", 4),
            ("[1}", 2),
            ("nul", 0),
        ] {
            match check(text, 64) {
                Err(Refusal::Malformed { offset: at, .. }) => assert_eq!(at, offset, "{text}"),
                other => panic!("{text}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_million_members_and_a_number_of_a_megabyte_are_only_bytes() {
        let members: Vec<_> = (0..1_000_000).map(|n| format!("\"{n}\":0")).collect();
        assert_eq!(check(&format!("{{{}}}", members.join(",")), 64), Ok(()));
        assert_eq!(check(&"9".repeat(1 << 20), 64), Ok(()));
    }

    fn agrees_with_serde(text: &str) {
        let theirs = serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
        assert_eq!(check(text, 64).is_ok(), theirs, "{text}");
    }

    proptest! {
        #[test]
        fn it_accepts_what_serde_json_accepts(text in r#"([ \[\]{},:"0-9eE.+\-]|\\u00e9|\\n|true|null|false|"a"|"a":){0,24}"#) {
            agrees_with_serde(&text);
        }

        #[test]
        fn any_text_is_judged_alike(text in ".{0,40}") {
            agrees_with_serde(&text);
        }
    }
}
