//! Amounts: what a command moves, as an exact number. Limits add them up, so that floating point would let a budget
//! drift; a millionth is finer than any currency.

use std::fmt;

use serde_json::Value;

/// Parts of one.
const SCALE: i128 = 1_000_000;

/// Digits behind the point that are kept.
const DECIMALS: usize = 6;

/// Longest text that is read as an amount, in bytes: far beyond any sum of money.
const TEXT_BYTES_MAX: usize = 40;

/// A number of millionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Amount(i128);

impl Amount {
    /// Nothing.
    pub const ZERO: Self = Self(0);

    /// From millionths.
    pub const fn from_millionths(millionths: i128) -> Self {
        Self(millionths)
    }

    /// Millionths.
    pub const fn millionths(self) -> i128 {
        self.0
    }

    /// Reads a decimal number such as `12`, `-3.50` or `1e3`. What is finer than a millionth is rounded away from
    /// zero, so that no limit is passed by rounding. `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() > TEXT_BYTES_MAX {
            return None;
        }
        let (number, exponent) = match text.split_once(['e', 'E']) {
            Some((number, exponent)) => (number, exponent.parse::<i32>().ok()?),
            None => (text, 0),
        };
        let (negative, number) = match number.strip_prefix('-') {
            Some(number) => (true, number),
            None => (false, number),
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if !is_digits(whole) || !is_digits(fraction) || exponent.unsigned_abs() > 30 {
            return None;
        }
        let digits = format!("{whole}{fraction}");
        let mut value: i128 = digits.parse().ok()?;
        let shift =
            i32::try_from(DECIMALS).ok()? + exponent - i32::try_from(fraction.len()).ok()?;
        let power = 10_i128.checked_pow(shift.unsigned_abs())?;
        value = if shift >= 0 {
            value.checked_mul(power)?
        } else {
            value / power + i128::from(value % power != 0)
        };
        Some(Self(if negative { -value } else { value }))
    }

    /// The amount that a JSON value says: a number, or a text that holds one. `None` for everything else.
    pub fn of_json(value: &Value) -> Option<Self> {
        match value {
            Value::Number(number) => Self::parse(&number.to_string()),
            Value::String(text) => Self::parse(text),
            _ => None,
        }
    }

    /// Without its sign: what a refund moves counts as what a payment moves.
    #[must_use]
    pub const fn size(self) -> Self {
        Self(self.0.saturating_abs())
    }

    /// The sum; saturates instead of wrapping.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The whole number that it is, where 64 bits hold it.
    pub fn whole(self) -> Option<i64> {
        (self.0 % SCALE == 0)
            .then(|| i64::try_from(self.0 / SCALE).ok())
            .flatten()
    }
}

impl fmt::Display for Amount {
    /// `500`, `-3.5`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let size = self.0.unsigned_abs();
        let scale = SCALE.unsigned_abs();
        let fraction = format!("{:06}", size % scale);
        match fraction.trim_end_matches('0') {
            "" => write!(f, "{sign}{}", size / scale),
            fraction => write!(f, "{sign}{}.{fraction}", size / scale),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn amounts_are_exact() {
        for (json, expected) in [
            (json!(500), Some("500")),
            (json!(0.1), Some("0.1")),
            (json!(1e3), Some("1000")),
            (json!(-12.5), Some("-12.5")),
            (json!("612.50"), Some("612.5")),
            (json!("0.0000001"), Some("0.000001")),
            (json!("-0.0000001"), Some("-0.000001")),
            (json!("1E2"), Some("100")),
            (json!("15e-1"), Some("1.5")),
            (
                json!(18_446_744_073_709_551_615_u64),
                Some("18446744073709551615"),
            ),
            (json!("1e30"), Some("1000000000000000000000000000000")),
            (json!("1e31"), None),
            (json!(1e300), None),
            (json!(""), None),
            (json!("-"), None),
            (json!("1."), None),
            (json!(".5"), None),
            (json!("1,5"), None),
            (json!("+1"), None),
            (json!(" 1"), None),
            (json!("NaN"), None),
            (json!("1e99999999999"), None),
            (json!("9".repeat(41)), None),
            (json!(null), None),
            (json!(true), None),
            (json!([1]), None),
        ] {
            let amount = Amount::of_json(&json).map(|amount| amount.to_string());
            assert_eq!(amount.as_deref(), expected, "{json}");
        }
    }

    #[test]
    fn what_goes_back_counts_as_what_goes_out() {
        let refund = Amount::parse("-2.5").unwrap();
        assert_eq!(refund.size().plus(refund.size()).to_string(), "5");
        assert_eq!(
            Amount::from_millionths(i128::MIN)
                .size()
                .plus(Amount::from_millionths(1)),
            Amount::from_millionths(i128::MAX)
        );
    }

    #[test]
    fn whole_numbers_are_told_from_others() {
        assert_eq!(Amount::parse("7").unwrap().whole(), Some(7));
        assert_eq!(Amount::parse("7.5").unwrap().whole(), None);
        assert_eq!(Amount::parse("1e25").unwrap().whole(), None);
    }
}
