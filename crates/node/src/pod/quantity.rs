//! Kubernetes quantities.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// A Kubernetes quantity in thousandths.
pub fn millis(quantity: &Quantity) -> Option<u128> {
    const SUFFIXES: &[(&str, f64)] = &[
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("Pi", 1_125_899_906_842_624.0),
        ("Ei", 1_152_921_504_606_846_976.0),
        ("n", 1e-9),
        ("u", 1e-6),
        ("m", 1e-3),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("P", 1e15),
        ("E", 1e18),
    ];
    let text = quantity.0.trim();
    // An exponent such as 1E3 ends in a digit, so it is never mistaken for the suffix E.
    let suffix = SUFFIXES.iter().find_map(|(suffix, factor)| Some((text.strip_suffix(suffix)?, *factor)));
    let (number, factor) = suffix.unwrap_or((text, 1.0));
    let value: f64 = number.parse().ok()?;
    (value.is_finite() && value >= 0.0).then(|| (value * factor * 1000.0).ceil() as u128)
}

/// A quantity of bytes, whole ones.
pub fn bytes(quantity: &Quantity) -> Option<u64> {
    millis(quantity).and_then(|millis| u64::try_from(millis / 1000).ok())
}

/// Bytes as Kubernetes writes them: exact, in the largest unit that is.
pub fn binary(mut bytes: u64) -> String {
    let mut suffix = "";
    for unit in ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"] {
        if bytes == 0 || !bytes.is_multiple_of(1024) {
            break;
        }
        (bytes, suffix) = (bytes / 1024, unit);
    }
    format!("{bytes}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_fractions_and_exponents_are_read() {
        for (text, expected) in
            [("1", 1000), ("0.5", 500), ("1k", 1_000_000), ("1e3", 1_000_000), ("2Ki", 2_048_000)]
        {
            assert_eq!(millis(&Quantity(text.into())), Some(expected), "{text}");
        }
        for text in ["0", "1", "1023", "1Ki", "1536Mi", "3Gi"] {
            assert_eq!(binary(bytes(&Quantity(text.into())).unwrap()), text);
        }
        for text in ["", "lots", "-1", "1Zi"] {
            assert_eq!(millis(&Quantity(text.into())), None, "{text}");
        }
    }
}
