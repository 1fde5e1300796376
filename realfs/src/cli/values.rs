//! Parsers for values that people write with a unit.

use std::time::Duration;

/// Bytes: `4096`, `64KiB`, `1 MB`. One without a unit counts bytes; `K`, `KB` are 1000, `KiB` is 1024.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    parse_size::parse_size(text).map_err(|error| format!("{error}; write a size like 4096, 64KiB or 1MiB"))
}

/// Writes a size in the largest unit that it is a whole number of.
pub(crate) fn show_bytes(value: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.iter().find(|(shift, _)| value != 0 && value.trailing_zeros() >= *shift) {
        Some((shift, unit)) => format!("{}{unit}", value >> shift),
        None => value.to_string(),
    }
}

/// As [`bytes`], for settings that must fit 32 bits.
pub(crate) fn bytes_u32(text: &str) -> Result<u32, String> {
    u32::try_from(bytes(text)?).map_err(|_| "must be less than 4GiB".to_owned())
}

/// A time span: `500ms`, `30s`, `5m`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error}; write a time like 500ms, 30s or 5m"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_are_exact() {
        for (text, value) in [("0", 0), ("4096", 4096), ("64KiB", 65_536), ("64 MiB", 67_108_864), ("1k", 1000)] {
            assert_eq!(bytes(text), Ok(value), "{text}");
        }
        assert!(bytes("many").unwrap_err().contains("64KiB"));
        assert!(bytes_u32("4GiB").is_err());
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert!(duration("5").unwrap_err().contains("30s"));
    }
}
