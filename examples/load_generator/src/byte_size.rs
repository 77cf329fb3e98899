//! Sizes in settings, such as `512MiB`.

use bytesize::ByteSize;

/// Above this many bytes, a size is a mistake: no device has that much memory.
const BYTES_MAX: u64 = 9_000_000_000_000_000;

/// Parses a size of at least one byte.
pub(crate) fn parse(text: &str) -> Result<usize, String> {
    let size = text.parse().unwrap_or(ByteSize(0)).as_u64();
    usize::try_from(size)
        .ok()
        .filter(|_| (1..BYTES_MAX).contains(&size))
        .ok_or_else(|| format!("`{text}` is not a size; expected for example 512MiB or 2GiB"))
}

/// A number of bytes that prints as `512.0 MiB`.
pub(crate) fn of(bytes: usize) -> ByteSize {
    ByteSize(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        let check = |text: &str, bytes: Option<usize>| {
            assert_eq!(parse(text).ok(), bytes, "{text}");
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
}
