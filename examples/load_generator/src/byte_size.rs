//! Byte sizes with units, such as `512MiB`.

use std::fmt;
use std::str::FromStr;

/// A number of bytes that reads and prints as `512 MiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(transparent)]
pub(crate) struct ByteSize(pub(crate) usize);

/// Units and their bytes; the binary ones first, which are used for printing.
const UNITS: [(&str, u64); 7] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
];

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("`{text}` is not a size; expected for example 512MiB or 2GiB");
        let digits = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let unit = match unit.trim() {
            "" => "B",
            unit => unit,
        };
        let (_, unit_bytes) = UNITS
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(unit))
            .ok_or_else(expected)?;
        let number: f64 = number.parse().map_err(|_| expected())?;
        let bytes = number * *unit_bytes as f64;
        // Above 2^53 an `f64` is not exact to a byte; no device has that much memory.
        if (1.0..9e15).contains(&bytes) {
            Ok(Self(bytes as usize))
        } else {
            Err(expected())
        }
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0 as f64;
        let binary = UNITS.iter().take(3);
        match binary
            .filter(|(_, unit_bytes)| bytes >= *unit_bytes as f64)
            .max_by_key(|(_, unit_bytes)| *unit_bytes)
        {
            Some((name, unit_bytes)) => {
                let number = bytes / *unit_bytes as f64;
                let decimals = usize::from(number < 100.0 && number.fract() != 0.0);
                write!(f, "{number:.decimals$} {name}")
            }
            None => write!(f, "{} B", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        let check = |text: &str, bytes: Option<usize>| {
            let found = text.parse::<ByteSize>().ok();
            assert_eq!(found, bytes.map(ByteSize), "{text}");
        };
        check("512MiB", Some(512 << 20));
        check("2GiB", Some(2 << 30));
        check("2 gib", Some(2 << 30));
        check("1.5KiB", Some(1536));
        check("3MB", Some(3_000_000));
        check("4096", Some(4096));
        check("12B", Some(12));
        check("", None);
        check("0", None);
        check("GiB", None);
        check("-1GiB", None);
        check("2GiBs", None);
        check("1e9", None);
        check("99999999GiB", None);
    }

    #[test]
    fn sizes_are_printed() {
        let check = |bytes: usize, text: &str| assert_eq!(ByteSize(bytes).to_string(), text);
        check(0, "0 B");
        check(1023, "1023 B");
        check(1024, "1 KiB");
        check(1536, "1.5 KiB");
        check(2 << 30, "2 GiB");
        check((300 << 20) + 1, "300 MiB");
    }
}
