//! The `format` keyword, for the formats that API servers check.

use serde_json::Value;

/// Whether `value` has the named format. Every value has a format that is not checked.
pub(super) fn holds(format: &str, value: &Value) -> bool {
    match value {
        Value::String(text) => text_holds(format, text),
        Value::Number(number) => match (format, number.as_i64()) {
            ("int32", Some(number)) => i32::try_from(number).is_ok(),
            ("int32" | "int64", None) => {
                number.as_f64().is_some_and(|n| n.fract() == 0.0 && n.abs() < 9.3e18)
            }
            _ => true,
        },
        _ => true,
    }
}

fn text_holds(format: &str, text: &str) -> bool {
    match format {
        "date-time" | "datetime" => text.parse::<jiff::Timestamp>().is_ok() && text.contains(['T', 't']),
        "date" => text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok(),
        "duration" => duration(text),
        "ipv4" => text.parse::<std::net::Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<std::net::Ipv6Addr>().is_ok(),
        "cidr" => text.split_once('/').is_some_and(|(address, bits)| {
            let max = match address.parse() {
                Ok(std::net::IpAddr::V4(_)) => 32,
                Ok(std::net::IpAddr::V6(_)) => 128,
                Err(_) => return false,
            };
            bits.parse::<u8>().is_ok_and(|bits| bits <= max)
        }),
        "uri" => text.parse::<http::Uri>().is_ok_and(|uri| uri.scheme().is_some() || text.starts_with('/')),
        "uuid" | "uuid4" => uuid::Uuid::try_parse(text).is_ok(),
        "byte" => {
            use base64::Engine as _;
            base64::engine::general_purpose::STANDARD.decode(text).is_ok()
        }
        _ => true,
    }
}

/// Go's notation: `1h30m`, `-1.5s`, `0`.
fn duration(text: &str) -> bool {
    let mut rest = text.trim_start_matches(['-', '+']);
    if rest == "0" {
        return true;
    }
    if rest.is_empty() {
        return false;
    }
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        if rest[..number].parse::<f64>().is_err() {
            return false;
        }
        rest = &rest[number..];
        let Some(unit) =
            ["ns", "us", "µs", "ms", "s", "m", "h", "d", "w"].iter().find(|u| rest.starts_with(**u))
        else {
            return false;
        };
        rest = &rest[unit.len()..];
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn formats_are_checked() {
        for (format, value, want) in [
            ("date-time", json!("2026-11-16T00:00:00Z"), true),
            ("date-time", json!("2026-11-16T00:00:00.5+02:00"), true),
            ("date-time", json!("tomorrow"), false),
            ("duration", json!("1h30m"), true),
            ("duration", json!("5 minutes"), false),
            ("int32", json!(3_000_000_000_i64), false),
            ("int64", json!(3_000_000_000_i64), true),
            ("ipv4", json!("10.0.0.256"), false),
            ("cidr", json!("10.0.0.0/8"), true),
            ("unheard-of", json!("x"), true),
        ] {
            assert_eq!(holds(format, &value), want, "{format} {value}");
        }
    }
}
