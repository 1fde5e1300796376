//! The text of a group's offset file: one line with the decimal offset, a space and the CRC-32C of those digits in
//! eight hex digits, so that a person can read it and a torn or edited one is noticed.
//!
//! A file that doesn't parse refuses the start (P7): to guess 0 would repeat everything, to guess high would lose
//! messages. So nothing but the exact text is taken, not even another spelling of the same number.

use alloc::format;
use alloc::string::String;
use core::str;

/// The file of a group that has acknowledged everything below `offset`.
pub fn encode_offset(offset: u64) -> String {
    let digits = format!("{offset}");
    let checksum = crc32c::crc32c(digits.as_bytes());
    format!("{digits} {checksum:08x}\n")
}

/// The committed offset in a file's whole content; `None` for anything that [`encode_offset`] doesn't write.
pub fn parse_offset(file: &[u8]) -> Option<u64> {
    let digits = file.split(|&byte| byte == b' ').next()?;
    let offset = str::from_utf8(digits).ok()?.parse().ok()?;
    (encode_offset(offset).as_bytes() == file).then_some(offset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_text_is_as_documented() {
        assert_eq!(encode_offset(0), "0 629e1ae0\n");
        assert_eq!(encode_offset(15), "15 a79fa08b\n");
        assert_eq!(encode_offset(u64::MAX), "18446744073709551615 99c65f29\n");
    }

    #[test]
    fn nothing_else_is_taken() {
        let checksum = |digits: &str| format!("{:08x}", crc32c::crc32c(digits.as_bytes()));
        for digits in ["", "+1", "-1", "01", "1.0", "0x1", "18446744073709551616"] {
            assert_eq!(parse_offset(format!("{digits} {}\n", checksum(digits)).as_bytes()), None, "{digits}");
        }
        let good = encode_offset(15);
        let line = good.trim_end();
        for bad in [
            line.into(),
            format!("{good}\n"),
            format!("{good}{good}"),
            format!(" {good}"),
            format!("{line}\r\n"),
            format!("{line}\0"),
            good.to_uppercase(),
            good.replace(' ', "  "),
            String::new(),
        ] {
            assert_eq!(parse_offset(bad.as_bytes()), None, "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn every_offset_comes_back(offset: u64) {
            prop_assert_eq!(parse_offset(encode_offset(offset).as_bytes()), Some(offset));
        }

        #[test]
        fn no_flipped_bit_and_no_cut_is_taken(offset: u64, at: prop::sample::Index, bit in 0u32..8) {
            let mut file = encode_offset(offset).into_bytes();
            let at = at.index(file.len());
            prop_assert_eq!(parse_offset(&file[..at]), None);
            file[at] ^= 1u8 << bit;
            prop_assert_eq!(parse_offset(&file), None);
        }

        #[test]
        fn no_bytes_panic(file in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Some(offset) = parse_offset(&file) {
                prop_assert_eq!(encode_offset(offset).into_bytes(), file);
            }
        }
    }
}
