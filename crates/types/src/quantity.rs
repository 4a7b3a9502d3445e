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

const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
/// From billionths on.
const DECIMAL: [(&str, i32); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];

impl Quantity {
    /// Reads a number or text; none when it is neither.
    pub fn of(value: &Value) -> Option<Self> {
        match value {
            Value::Number(number) => Self::parse(&number.to_string()),
            Value::String(text) => Self::parse(text),
            _ => None,
        }
    }

    /// The one spelling that Kubernetes writes for a quantity: `1000m` is `1`, `1024Mi` is `1Gi`.
    pub fn canonical(value: &Value) -> Option<String> {
        let text = match value {
            Value::Number(number) => number.to_string(),
            Value::String(text) => text.trim().to_owned(),
            _ => return None,
        };
        let Self(value) = Self::parse(&text)?;
        let suffix =
            text.trim_start_matches(['+', '-']).trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        let small = value.abs() < 1024 * ONE;
        Some(match suffix {
            _ if value == 0 => "0".to_owned(),
            _ if suffix.ends_with('i') && !small && value % ONE == 0 => binary(value / ONE),
            "E" => decimal(value, false),
            _ => decimal(value, suffix.starts_with(['e', 'E'])),
        })
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

fn binary(mut value: i128) -> String {
    let mut at = 0;
    while value % 1024 == 0 && at < BINARY.len() - 1 {
        (value, at) = (value / 1024, at + 1);
    }
    format!("{value}{}", BINARY[at])
}

/// With an exponent, or with the suffix that stands for it.
fn decimal(mut value: i128, exponent: bool) -> String {
    let mut at = 0;
    while value % 1000 == 0 && at < DECIMAL.len() - 1 {
        (value, at) = (value / 1000, at + 1);
    }
    let (suffix, power) = DECIMAL[at];
    match exponent && power != 0 {
        true => format!("{value}e{power}"),
        false => format!("{value}{suffix}"),
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
    fn a_quantity_has_one_spelling() {
        for (given, canonical) in [
            (json!("1000m"), "1"),
            (json!("1500m"), "1500m"),
            (json!(0.5), "500m"),
            (json!(1), "1"),
            (json!("1024Mi"), "1Gi"),
            (json!("1536Mi"), "1536Mi"),
            (json!("1.5Gi"), "1536Mi"),
            (json!("512"), "512"),
            (json!("1Ki"), "1Ki"),
            (json!("1023Ki"), "1023Ki"),
            (json!("0.5Ki"), "512"),
            (json!("0.0001Ki"), "102400u"),
            (json!("2000"), "2k"),
            (json!("1000000"), "1M"),
            (json!("1e3"), "1e3"),
            (json!("12e6"), "12e6"),
            (json!("1E"), "1E"),
            (json!("0Gi"), "0"),
            (json!("-1000m"), "-1"),
        ] {
            assert_eq!(Quantity::canonical(&given).as_deref(), Some(canonical), "{given}");
        }
        assert_eq!(Quantity::canonical(&json!("1gb")), None);
    }

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
