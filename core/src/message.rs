//! What a frame's payload says: time, producer, key, headers, value.

use crate::record::{HAS_HEADERS, HAS_KEY, HAS_PRODUCER, Kind, PREFIX_BYTES};
use alloc::vec::Vec;

/// A stored message, borrowed from its frame's payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message<'a> {
    /// When it was accepted, milliseconds since 1970 by the broker's wall clock.
    pub timestamp_ms: i64,
    /// Producer id and sequence.
    pub producer: Option<(u64, u32)>,
    /// The key.
    pub key: Option<&'a [u8]>,
    /// The headers, still encoded: see [`Message::headers`].
    headers: &'a [u8],
    /// What the producer sent.
    pub value: &'a [u8],
}

impl<'a> Message<'a> {
    /// Reads the payload of a `Message` frame. `None` where its inside contradicts itself (which, behind a valid
    /// checksum, only another writer can have done). Never panics.
    pub fn parse(payload: &'a [u8]) -> Option<Message<'a>> {
        let kind_byte = *payload.get(4)?;
        if Kind::from_byte(kind_byte)? != Kind::Message {
            return None;
        }
        let timestamp_ms = i64::from_be_bytes(payload.get(5..PREFIX_BYTES)?.try_into().ok()?);
        let mut rest = Cursor(payload.get(PREFIX_BYTES..)?);
        let producer = match kind_byte & HAS_PRODUCER {
            0 => None,
            _ => Some((u64::from_be_bytes(rest.take(8)?.try_into().ok()?), rest.u32()?)),
        };
        let key = match kind_byte & HAS_KEY {
            0 => None,
            _ => {
                let length = rest.u32()? as usize;
                Some(rest.take(length)?)
            }
        };
        let headers = match kind_byte & HAS_HEADERS {
            0 => &[][..],
            _ => {
                let before = rest.0;
                let count = rest.u16()?;
                for _ in 0..count {
                    rest.header()?;
                }
                &before[2..before.len() - rest.0.len()]
            }
        };
        Some(Message { timestamp_ms, producer, key, headers, value: rest.0 })
    }

    /// The headers as (name, value), in the order in which they were published.
    pub fn headers(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let mut rest = Cursor(self.headers);
        core::iter::from_fn(move || rest.header())
    }
}

/// The flags of the kind byte for a message with these parts.
pub fn flags(producer: bool, key: bool, headers: bool) -> u8 {
    (u8::from(producer) * HAS_PRODUCER) | (u8::from(key) * HAS_KEY) | (u8::from(headers) * HAS_HEADERS)
}

/// How many bytes a message takes behind the frame's prefix.
pub fn body_bytes(
    producer: bool,
    key: Option<&[u8]>,
    headers: &[(impl AsRef<[u8]>, impl AsRef<[u8]>)],
    value: usize,
) -> usize {
    let producer = if producer { 12 } else { 0 };
    let key = key.map_or(0, |key| 4 + key.len());
    let heads: usize = headers.iter().map(|(name, value)| 6 + name.as_ref().len() + value.as_ref().len()).sum();
    producer + key + heads + if headers.is_empty() { 0 } else { 2 } + value
}

/// Appends everything of a message's body that stands before its value.
pub fn encode_head(
    out: &mut Vec<u8>,
    producer: Option<(u64, u32)>,
    key: Option<&[u8]>,
    headers: &[(impl AsRef<[u8]>, impl AsRef<[u8]>)],
) {
    if let Some((id, sequence)) = producer {
        out.extend_from_slice(&id.to_be_bytes());
        out.extend_from_slice(&sequence.to_be_bytes());
    }
    if let Some(key) = key {
        out.extend_from_slice(&(key.len() as u32).to_be_bytes());
        out.extend_from_slice(key);
    }
    if !headers.is_empty() {
        out.extend_from_slice(&(headers.len() as u16).to_be_bytes());
        for (name, value) in headers {
            out.extend_from_slice(&(name.as_ref().len() as u16).to_be_bytes());
            out.extend_from_slice(name.as_ref());
            out.extend_from_slice(&(value.as_ref().len() as u32).to_be_bytes());
            out.extend_from_slice(value.as_ref());
        }
    }
}

struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.take(2)?.try_into().ok()?))
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    fn header(&mut self) -> Option<(&'a [u8], &'a [u8])> {
        let name_length = self.u16()? as usize;
        let name = self.take(name_length)?;
        let value_length = self.u32()? as usize;
        Some((name, self.take(value_length)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::collection::vec as any_vec;
    use proptest::prelude::*;

    type Headers = Vec<(Vec<u8>, Vec<u8>)>;

    fn payload(
        time: i64,
        producer: Option<(u64, u32)>,
        key: Option<&[u8]>,
        headers: &[(impl AsRef<[u8]>, impl AsRef<[u8]>)],
        value: &[u8],
    ) -> Vec<u8> {
        let mut out = vec![0; 4];
        out.push(flags(producer.is_some(), key.is_some(), !headers.is_empty()));
        out.extend_from_slice(&time.to_be_bytes());
        encode_head(&mut out, producer, key, headers);
        out.extend_from_slice(value);
        out
    }

    #[test]
    fn parts_stand_where_the_format_says() {
        let none: [(&[u8], &[u8]); 0] = [];
        let prefix = [0, 0, 0, 0];
        for (bytes, expected) in [
            (payload(-1, None, None, &none, b"v"), &b"\x00\xff\xff\xff\xff\xff\xff\xff\xffv"[..]),
            (payload(1, Some((2, 3)), None, &none, b"v"), b"\x10\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\x03v"),
            (payload(1, None, Some(b""), &none, b"v"), b"\x20\0\0\0\0\0\0\0\x01\0\0\0\0v"),
            (payload(1, None, None, &[(b"n", b"")], b"v"), b"\x40\0\0\0\0\0\0\0\x01\0\x01\0\x01n\0\0\0\0v"),
        ] {
            assert_eq!(bytes, [&prefix[..], expected].concat());
        }
    }

    #[test]
    fn what_contradicts_itself_is_no_message() {
        let whole = payload(1, Some((2, 3)), Some(b"key"), &[(b"name", b"value")], b"");
        assert!(Message::parse(&whole).is_some());
        for cut in 0..whole.len() {
            assert_eq!(Message::parse(&whole[..cut]), None, "cut at {cut}");
        }
        for (kind_byte, why) in [(1, "a run"), (5, "padding"), (6, "an unknown kind"), (0x80, "an unknown flag")] {
            let mut other = whole.clone();
            other[4] = kind_byte;
            assert_eq!(Message::parse(&other), None, "{why}");
        }
        let mut long_key = whole.clone();
        long_key[25] = 0xff;
        assert_eq!(Message::parse(&long_key), None);
    }

    proptest! {
        #[test]
        fn a_message_comes_back(
            time: i64,
            producer: Option<(u64, u32)>,
            key in prop::option::of(any_vec(any::<u8>(), 0..40)),
            headers in any_vec((any_vec(any::<u8>(), 0..20), any_vec(any::<u8>(), 0..20)), 0..6),
            value: Vec<u8>,
        ) {
            let headers: Headers = headers;
            let bytes = payload(time, producer, key.as_deref(), &headers, &value);
            let size = body_bytes(producer.is_some(), key.as_deref(), &headers, value.len());
            prop_assert_eq!(bytes.len(), PREFIX_BYTES + size);
            let message = Message::parse(&bytes).expect("a message");
            prop_assert_eq!((message.timestamp_ms, message.producer), (time, producer));
            prop_assert_eq!((message.key, message.value), (key.as_deref(), &value[..]));
            let back: Headers = message.headers().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
            prop_assert_eq!(back, headers);
        }

        #[test]
        fn any_bytes_are_parsed_without_a_panic(mut bytes: Vec<u8>, flags in prop::sample::select(vec![0, 0x10, 0x20, 0x40, 0x70])) {
            if let Some(kind_byte) = bytes.get_mut(4) {
                *kind_byte = flags;
            }
            if let Some(message) = Message::parse(&bytes) {
                prop_assert!(message.headers().all(|(name, value)| name.len() + value.len() <= bytes.len()));
            }
        }
    }
}
