//! What a frame's payload says: time, producer, key, headers, value; and the messages of a batch.

use crate::record::{Frame, HAS_HEADERS, HAS_KEY, HAS_PRODUCER, Kind, PREFIX_BYTES};
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
        let timestamp_ms = i64::from_be_bytes(payload.get(5..PREFIX_BYTES)?.try_into().ok()?);
        Message::parse_body(kind_byte, timestamp_ms, payload.get(PREFIX_BYTES..)?)
    }

    fn parse_body(kind_byte: u8, timestamp_ms: i64, body: &'a [u8]) -> Option<Message<'a>> {
        if Kind::from_byte(kind_byte)? != Kind::Message {
            return None;
        }
        let mut rest = Cursor(body);
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

    /// How many bytes its key, its headers and its value take as they are stored.
    pub fn bytes(&self) -> usize {
        self.key.map_or(0, <[u8]>::len) + self.headers.len() + self.value.len()
    }

    /// The headers as (name, value), in the order in which they were published.
    pub fn headers(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let mut rest = Cursor(self.headers);
        core::iter::from_fn(move || rest.header())
    }
}

/// The messages of a frame, each with its offset; `None` where it holds none, or what is no message.
pub fn messages<'a>(frame: &Frame<'a>) -> Option<Messages<'a>> {
    let timestamp_ms = frame.time_ms()?;
    if frame.kind == Kind::Message {
        let one = Some(Message::parse(frame.payload)?);
        return Some(Messages { one, rest: Cursor(&[]), left: 0, offset: frame.offset, timestamp_ms });
    }
    let mut rest = Cursor(&frame.payload[PREFIX_BYTES..]);
    let left = rest.u32()?;
    Some(Messages { one: None, rest, left, offset: frame.offset, timestamp_ms })
}

/// Goes through the messages of one frame, see [`messages`].
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    one: Option<Message<'a>>,
    rest: Cursor<'a>,
    left: u32,
    offset: u64,
    timestamp_ms: i64,
}

impl<'a> Iterator for Messages<'a> {
    type Item = (u64, Message<'a>);

    fn next(&mut self) -> Option<(u64, Message<'a>)> {
        if let Some(message) = self.one.take() {
            return Some((self.offset, message));
        }
        self.left = self.left.checked_sub(1)?;
        let offset = self.offset;
        self.offset += 1;
        Some((offset, self.rest.batched(self.timestamp_ms)?))
    }
}

/// Whether these bytes are the value of a batch: as many messages as it says, each with at least one byte, and nothing else.
pub(crate) fn is_batch(value: &[u8]) -> bool {
    let mut rest = Cursor(value);
    let Some(count) = rest.u32() else { return false };
    // Each takes bytes, so a count that is made up ends soon.
    (0..count).all(|_| rest.batched(0).is_some_and(|message| !message.value.is_empty())) && rest.0.is_empty()
}

/// How many bytes the value of a batch takes whose messages take `bytes` together as they are published: each its length
/// (u32) and its value.
pub fn batch_bytes(producer: bool, count: u32, bytes: usize) -> usize {
    4 + count as usize + bytes + if producer { 12 } else { 0 }
}

/// Appends what stands before the value of a batch's next message. Before the first one stands how many there are, u32; the producer
/// and its sequence, which name the batch, stand in the first.
pub fn encode_batched_head(out: &mut Vec<u8>, producer: Option<(u64, u32)>, value: usize) {
    let head = if producer.is_some() { 13 } else { 1 };
    out.extend_from_slice(&(head + value as u32).to_be_bytes());
    out.push(Kind::Message as u8 | flags(producer.is_some(), false, false));
    encode_head(out, producer, None, &[(b"", b""); 0]);
}

/// The producer and the sequence that name what a frame holds: a message, or a batch as a whole.
pub fn producer_of(frame: &Frame<'_>) -> Option<(u64, u32)> {
    // Most messages have none: those are not looked into.
    if frame.kind == Kind::Message && frame.payload[4] & HAS_PRODUCER == 0 {
        return None;
    }
    messages(frame)?.next()?.1.producer
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

#[derive(Clone, Debug)]
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

    /// The next message of a batch.
    fn batched(&mut self, timestamp_ms: i64) -> Option<Message<'a>> {
        let length = self.u32()? as usize;
        let (kind_byte, body) = self.take(length)?.split_first()?;
        Message::parse_body(*kind_byte, timestamp_ms, body)
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
    use crate::protocol::Body;
    use crate::record::{self, Decoded, Salt};
    use alloc::vec;
    use bytes::Bytes;
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

        /// Also from any pieces in which it was received.
        #[test]
        fn the_messages_of_a_batch_come_back(
            offset in 0..u64::MAX - 20,
            time: i64,
            values in any_vec(any_vec(any::<u8>(), 1..40), 1..20),
            piece in 1usize..30,
            producer: Option<(u64, u32)>,
        ) {
            let mut sent = Vec::new();
            for value in &values {
                sent.extend_from_slice(&(value.len() as u32).to_be_bytes());
                sent.extend_from_slice(value);
            }
            let body = Body::Many(sent.chunks(piece).map(Bytes::copy_from_slice).collect());
            let (mut reader, mut frame) = (body.reader(), Vec::new());
            record::encode(&mut frame, Salt(3), offset, offset, Kind::Batch as u8, time, |out| {
                out.extend_from_slice(&(values.len() as u32).to_be_bytes());
                for at in 0..values.len() {
                    let length = reader.u32().expect("a length") as usize;
                    encode_batched_head(out, producer.filter(|_| at == 0), length);
                    assert!(reader.read(length, |piece| out.extend_from_slice(piece)));
                }
            });
            prop_assert_eq!(reader.u32(), None);
            prop_assert_eq!(frame.len(), record::OVERHEAD_BYTES + batch_bytes(producer.is_some(), values.len() as u32, sent.len()));
            let Decoded::Frame(frame) = record::decode(&frame, Salt(3)) else { panic!("not a frame") };
            prop_assert_eq!((frame.count, frame.time_ms()), (values.len() as u64, Some(time)));
            prop_assert_eq!(producer_of(&frame), producer);
            let back: Vec<(u64, &[u8], i64)> =
                messages(&frame).expect("a batch").map(|(offset, m)| (offset, m.value, m.timestamp_ms)).collect();
            prop_assert!(back.into_iter().eq(values.iter().zip(offset..).map(|(value, at)| (at, &value[..], time))));
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
