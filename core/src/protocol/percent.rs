//! Percent-encoding of keys and header values, so that any bytes fit into one word of a line.

use alloc::vec::Vec;

/// Appends `bytes` to `out`. Printable ASCII stands for itself, except `%` and `=`; all else is `%` and two hex digits.
pub fn encode(out: &mut Vec<u8>, bytes: &[u8]) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for &byte in bytes {
        if byte.is_ascii_graphic() && byte != b'%' && byte != b'=' {
            out.push(byte);
        } else {
            out.extend_from_slice(&[b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        }
    }
}

/// Undoes [`encode`], and takes any byte but `%` for itself. `None` where a `%` is not followed by two hex digits.
pub fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, behind)) = rest.split_first() {
        rest = behind;
        if byte == b'%' {
            let (digits, behind) = rest.split_first_chunk::<2>()?;
            rest = behind;
            out.push(hex(digits[0])? << 4 | hex(digits[1])?);
        } else {
            out.push(byte);
        }
    }
    Some(out)
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn words_hold_no_separator() {
        for (plain, encoded) in [
            (&b"order-17"[..], &b"order-17"[..]),
            (b"", b""),
            (b"a b", b"a%20b"),
            (b"50%=\n", b"50%25%3D%0A"),
            ("ü\0".as_bytes(), b"%C3%BC%00"),
        ] {
            let mut out = Vec::new();
            encode(&mut out, plain);
            assert_eq!(out, encoded);
            assert_eq!(decode(encoded).as_deref(), Some(plain));
        }
        assert_eq!(decode(b"%c3%Bc").as_deref(), Some("ü".as_bytes()));
        for bad in [&b"%"[..], b"%2", b"a%2", b"%zz", b"%+1"] {
            assert_eq!(decode(bad), None);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_come_back(bytes: Vec<u8>) {
            let mut out = Vec::new();
            encode(&mut out, &bytes);
            prop_assert!(out.iter().all(|b| b.is_ascii_graphic()));
            prop_assert_eq!(decode(&out), Some(bytes));
        }

        #[test]
        fn decoding_never_panics(bytes: Vec<u8>) {
            let _ = decode(&bytes);
        }
    }
}
