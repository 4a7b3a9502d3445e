//! Quantities: `500m`, `1.5Gi`, `1e3`.

use serde_json::Value;

/// A number of billionths, so that quantities compare exactly.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity(i128);

const ONE: i128 = 1_000_000_000;
/// What a suffix stands for, in billionths.
const SUFFIXES: [(&str, i128); 16] = [
    ("Ki", ONE << 10),
    ("Mi", ONE << 20),
    ("Gi", ONE << 30),
    ("Ti", ONE << 40),
    ("Pi", ONE << 50),
    ("Ei", ONE << 60),
    ("n", 1),
    ("u", 1_000),
    ("m", 1_000_000),
    ("", ONE),
    ("k", ONE * 1_000),
    ("M", ONE * 1_000_000),
    ("G", ONE * 1_000_000_000),
    ("T", ONE * 1_000_000_000_000),
    ("P", ONE * 1_000_000_000_000_000),
    ("E", ONE * 1_000_000_000_000_000_000),
];

impl Quantity {
    /// Reads a number or text; none when it is neither.
    pub fn of(value: &Value) -> Option<Self> {
        match value {
            Value::Number(number) => Self::parse(&number.to_string()),
            Value::String(text) => Self::parse(text),
            _ => None,
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let (negative, rest) = match text.as_bytes().first()? {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (digits, suffix) = rest.split_at(end);
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return None;
        }
        let unit = unit(suffix)?;
        let mut value = 0_i128;
        for digit in whole.bytes() {
            value = value.saturating_mul(10).saturating_add(i128::from(digit - b'0'));
        }
        value = value.saturating_mul(unit);
        let mut place = unit;
        for digit in fraction.bytes() {
            place /= 10;
            value = value.saturating_add(place * i128::from(digit - b'0'));
        }
        Some(Self(if negative { -value } else { value }))
    }

    pub fn is_negative(self) -> bool {
        self.0 < 0
    }

    pub fn is_positive(self) -> bool {
        self.0 > 0
    }

    pub fn is_whole(self) -> bool {
        self.0 % ONE == 0
    }

    /// Rounded up to whole ones: bytes, or pieces.
    pub fn whole(self) -> i64 {
        rounded_up(self.0, ONE)
    }

    /// Rounded up to thousandths: processors.
    pub fn thousandths(self) -> i64 {
        rounded_up(self.0, ONE / 1000)
    }
}

/// As Kubernetes rounds: away from zero.
fn rounded_up(value: i128, unit: i128) -> i64 {
    let more = i128::from(value % unit != 0) * value.signum();
    i64::try_from(value / unit + more).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

fn unit(suffix: &str) -> Option<i128> {
    if let Some((_, unit)) = SUFFIXES.iter().find(|(name, _)| *name == suffix) {
        return Some(*unit);
    }
    let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    // What is too small counts as nothing, what is too large as the largest that can be told.
    Some(match exponent {
        ..-9 => 0,
        -9..=0 => ONE / 10_i128.pow(exponent.unsigned_abs()),
        1..=20 => ONE * 10_i128.pow(exponent.unsigned_abs()),
        _ => i128::MAX,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn quantities_compare_across_notations() {
        let of = |value: Value| Quantity::of(&value).expect("a quantity");
        for (a, b) in [
            (json!("1"), json!(1)),
            (json!("1000m"), json!("1")),
            (json!("0.5"), json!("500m")),
            (json!(".5Gi"), json!("512Mi")),
            (json!("1e3"), json!("1k")),
            (json!("1E3"), json!("1000")),
            (json!("+1."), json!("1")),
            (json!(0.1), json!("100m")),
        ] {
            assert_eq!(of(a.clone()), of(b.clone()), "{a} {b}");
        }
        assert!(of(json!("1Gi")) > of(json!("1G")));
        assert!(of(json!("-1")).is_negative() && !of(json!("0")).is_positive());
        assert!(of(json!("1e40")) > of(json!("1E")));
        assert!(!of(json!("1500m")).is_whole() && of(json!("2000m")).is_whole());
        assert_eq!([of(json!("1500m")).whole(), of(json!("1500m")).thousandths()], [2, 1500]);
        assert_eq!([of(json!("1u")).thousandths(), of(json!("0.5Gi")).whole()], [1, 1 << 29]);
        assert_eq!([of(json!("1e40")).whole(), of(json!("-1500m")).whole()], [i64::MAX, -2]);
        for wrong in ["", "-", "Gi", "1.2.3", "1gb", "1 Gi", "e3", "1ex"] {
            assert_eq!(Quantity::of(&json!(wrong)), None, "{wrong}");
        }
    }
}
