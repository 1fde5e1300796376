//! The frame: length, checksum, offset, payload. Encode and decode; bytes are described in docs/file-format.md,
//! and a golden test holds that page and these constants together.
//!
//! The checksum starts from the segment's **salt**, which no client learns while the segment is active. So a
//! payload that happens to contain a valid frame (a backup of a segment, an attacker's message) can't be taken
//! for one (crash story: the smuggled frame), and a segment copied in from elsewhere is recognised.

use crate::message;
use alloc::vec::Vec;
use core::fmt;
use core::hash::Hasher;
use siphasher::sip::SipHasher24;

/// Bytes before the payload: length u32, checksum u32, offset u64.
pub const HEADER_BYTES: usize = 16;
/// The first bytes of every payload: lag u32, kind u8, timestamp i64.
pub const PREFIX_BYTES: usize = 13;
/// The smallest payload: a prefix and one byte.
pub const LENGTH_MIN: u32 = PREFIX_BYTES as u32 + 1;
/// The largest payload that a reader accepts: a constant of the format, whatever is admitted today.
pub const LENGTH_MAX: u32 = (16 << 20) + (64 << 10);
/// The largest limit that can be configured for what is admitted.
pub const PAYLOAD_BYTES_CEILING: u32 = 16 << 20;
/// The largest limit that can be configured for a published batch: each of its messages is published with its length and a byte at
/// least, and takes one byte more in the frame.
pub const BATCH_BYTES_CEILING: u32 = 8 << 20;
const _: () = assert!((BATCH_BYTES_CEILING / 5 * 6) as usize + PREFIX_BYTES + 4 + 12 < LENGTH_MAX as usize);
/// What every stored message costs beside its value (without key and headers).
pub const OVERHEAD_BYTES: usize = HEADER_BYTES + PREFIX_BYTES;
/// A lag that stands for "this or more". It is no evidence.
pub const LAG_SATURATED: u32 = u32::MAX;

/// The 16 random bytes that name a log.
pub type LogId = [u8; 16];

/// What a segment's checksums start from: SipHash-2-4 of the base offset under the log id, the low 32 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Salt(pub u32);

impl Salt {
    /// The salt of the segment of this log that begins at `base`.
    pub fn new(log_id: &LogId, base: u64) -> Salt {
        let mut hasher = SipHasher24::new_with_key(log_id);
        hasher.write(&base.to_be_bytes());
        Salt(hasher.finish() as u32)
    }

    /// The checksum of a frame with this header and payload.
    pub fn checksum(self, length: u32, offset: u64, payload: &[u8]) -> u32 {
        let crc = crc32c::crc32c_append(self.0, &length.to_be_bytes());
        let crc = crc32c::crc32c_append(crc, &offset.to_be_bytes());
        crc32c::crc32c_append(crc, payload)
    }
}

/// What a frame is: the low four bits of its kind byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// One message.
    Message = 0,
    /// Repair could not save n messages.
    LostRun = 1,
    /// n messages were confirmed and packed away.
    RemovedRun = 2,
    /// An operation of a work queue.
    QueueOperation = 3,
    /// n messages published as one.
    Batch = 4,
    /// Fills a force up to a multiple of `--pad-forces`; counts 0.
    Padding = 5,
}

/// Flag in the kind byte: a producer id u64 and sequence u32 follow.
pub const HAS_PRODUCER: u8 = 0x10;
/// Flag in the kind byte: a key follows (u32 length, bytes).
pub const HAS_KEY: u8 = 0x20;
/// Flag in the kind byte: headers follow (u16 count, each u16 + name, u32 + value).
pub const HAS_HEADERS: u8 = 0x40;
const UNKNOWN_FLAGS: u8 = 0x80;

impl Kind {
    /// The kind in a kind byte, or `None` where a reader must refuse it (an unknown kind or an unknown bit).
    pub fn from_byte(byte: u8) -> Option<Kind> {
        if byte & UNKNOWN_FLAGS != 0 {
            return None;
        }
        match byte & 0x0f {
            0 => Some(Kind::Message),
            1 => Some(Kind::LostRun),
            2 => Some(Kind::RemovedRun),
            3 => Some(Kind::QueueOperation),
            4 => Some(Kind::Batch),
            5 => Some(Kind::Padding),
            _ => None,
        }
    }
}

/// Why no valid frame with the expected offset stands at a place. The names are those of the printed line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Invalid {
    /// Fewer than 16 bytes left, and not all zero.
    ShortHeader,
    /// A length outside the format's range.
    BadLength,
    /// The payload would end past the file's end.
    ShortPayload,
    /// The checksum does not fit.
    CrcMismatch,
    /// A whole frame, but of another offset.
    OffsetMismatch,
    /// A whole frame of a kind or with a flag that this version does not know, or whose inside contradicts itself.
    UnknownKind,
}

impl Invalid {
    /// The word in the `RECOVERY` line.
    pub fn as_str(self) -> &'static str {
        match self {
            Invalid::ShortHeader => "short-header",
            Invalid::BadLength => "bad-length",
            Invalid::ShortPayload => "short-payload",
            Invalid::CrcMismatch => "crc-mismatch",
            Invalid::OffsetMismatch => "offset-mismatch",
            Invalid::UnknownKind => "unknown-kind",
        }
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A whole, valid frame, borrowed from the bytes it stands in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    /// The offset of its first message.
    pub offset: u64,
    /// By how much the expected offset advances.
    pub count: u64,
    /// `offset` − the durable watermark when the frame was built.
    pub lag: u32,
    /// What it is.
    pub kind: Kind,
    /// The whole payload, from `lag` on.
    pub payload: &'a [u8],
}

impl Frame<'_> {
    /// How many bytes it takes in the file.
    pub fn size(&self) -> usize {
        HEADER_BYTES + self.payload.len()
    }

    /// What had been forced before the frame was built: proof that everything below was durable once.
    /// `None` where the lag is saturated or larger than the offset.
    pub fn evidence(&self) -> Option<u64> {
        if self.lag == LAG_SATURATED { None } else { self.offset.checked_sub(u64::from(self.lag)) }
    }

    /// When its messages were accepted, milliseconds since 1970. `None`: it holds none.
    pub fn time_ms(&self) -> Option<i64> {
        matches!(self.kind, Kind::Message | Kind::Batch).then(|| self.stamped_ms())
    }

    /// The wall clock when it was made, whatever it is, milliseconds since 1970.
    pub fn stamped_ms(&self) -> i64 {
        i64::from_be_bytes(self.payload[5..PREFIX_BYTES].try_into().expect("eight bytes"))
    }
}

/// What stands at the beginning of `bytes`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decoded<'a> {
    /// A valid frame with a known kind. Its offset has **not** been compared with anything.
    Frame(Frame<'a>),
    /// The frame may be whole, but this many bytes are needed to tell.
    NeedBytes(usize),
    /// No valid frame.
    Invalid(Invalid),
}

/// The length field of a header, if it is in the format's range.
pub fn frame_size(header: &[u8; HEADER_BYTES]) -> Option<usize> {
    let length = u32::from_be_bytes(header[..4].try_into().expect("four bytes"));
    (LENGTH_MIN..=LENGTH_MAX).contains(&length).then_some(HEADER_BYTES + length as usize)
}

/// How long the frame at the beginning of `bytes` is, which are a broker's own and whole, and its offset. `None`: there is no other one.
pub(crate) fn outside(bytes: &[u8]) -> Option<(usize, u64)> {
    let header = bytes.first_chunk::<HEADER_BYTES>()?;
    Some((frame_size(header)?, u64::from_be_bytes(header[8..16].try_into().expect("eight bytes"))))
}

/// Decodes the frame at the beginning of `bytes`. Never panics, whatever the bytes are.
///
/// `NeedBytes` is answered for bytes that end too early; at the end of a file the caller turns it into
/// `ShortHeader` or `ShortPayload`.
pub fn decode(bytes: &[u8], salt: Salt) -> Decoded<'_> {
    let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else {
        return Decoded::NeedBytes(HEADER_BYTES);
    };
    let Some(size) = frame_size(header) else {
        return Decoded::Invalid(Invalid::BadLength);
    };
    let Some(payload) = bytes.get(HEADER_BYTES..size) else {
        return Decoded::NeedBytes(size);
    };
    let checksum = u32::from_be_bytes(header[4..8].try_into().expect("four bytes"));
    let offset = u64::from_be_bytes(header[8..16].try_into().expect("eight bytes"));
    if salt.checksum(payload.len() as u32, offset, payload) != checksum {
        return Decoded::Invalid(Invalid::CrcMismatch);
    }
    match interpret(offset, payload) {
        Some(frame) => Decoded::Frame(frame),
        None => Decoded::Invalid(Invalid::UnknownKind),
    }
}

/// A planted bug: takes a frame whose checksum does not fit.
#[cfg(feature = "planted")]
pub(crate) fn decode_trusting<'a>(bytes: &'a [u8], decoded: Decoded<'a>) -> Decoded<'a> {
    if decoded != Decoded::Invalid(Invalid::CrcMismatch) {
        return decoded;
    }
    let header = bytes.first_chunk::<HEADER_BYTES>().expect("decoded");
    let offset = u64::from_be_bytes(header[8..16].try_into().expect("eight bytes"));
    let size = frame_size(header).expect("decoded");
    interpret(offset, &bytes[HEADER_BYTES..size]).map_or(decoded, Decoded::Frame)
}

/// What a payload whose checksum has been verified says of itself, or `None` where a reader must refuse it.
///
/// The inside of a batch is looked at too, once: whoever has a frame can rely on its count, and take its messages
/// ([`messages`](crate::message::messages)) without meeting a contradiction.
pub fn interpret(offset: u64, payload: &[u8]) -> Option<Frame<'_>> {
    let frame = outline(offset, payload)?;
    (frame.kind != Kind::Batch || message::is_batch(&payload[PREFIX_BYTES..])).then_some(frame)
}

/// The same, from the first bytes alone: what a batch says of itself is believed.
///
/// For the search behind damage, which asks at every position and before the checksum. Were batches walked there, a message made of
/// bytes that look like long batches everywhere would cost the square of its length.
pub(crate) fn outline(offset: u64, payload: &[u8]) -> Option<Frame<'_>> {
    let lag = u32::from_be_bytes(*payload.first_chunk()?);
    let kind_byte = *payload.get(4)?;
    let kind = Kind::from_byte(kind_byte)?;
    let value = payload.get(PREFIX_BYTES..)?;
    let count = match kind {
        Kind::Message | Kind::QueueOperation => 1,
        Kind::LostRun | Kind::RemovedRun => u64::from_be_bytes(value.try_into().ok()?),
        // What belongs to a message of a batch stands in that message.
        Kind::Batch if kind_byte != Kind::Batch as u8 => return None,
        Kind::Batch => u64::from(u32::from_be_bytes(*value.first_chunk()?)),
        Kind::Padding => 0,
    };
    // A run of nothing, or past the last offset there can be, contradicts itself.
    if (count == 0 && kind != Kind::Padding) || offset.checked_add(count).is_none() {
        return None;
    }
    Some(Frame { offset, count, lag, kind, payload })
}

/// Appends a frame to `out`; `body` appends what follows the 13-byte prefix.
///
/// `durable` is the line now: the lag is taken from it and saturates.
pub fn encode(
    out: &mut Vec<u8>,
    salt: Salt,
    offset: u64,
    durable: u64,
    kind_byte: u8,
    timestamp_ms: i64,
    body: impl FnOnce(&mut Vec<u8>),
) {
    let start = out.len();
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&offset.to_be_bytes());
    let lag = u32::try_from(offset.saturating_sub(durable)).unwrap_or(LAG_SATURATED);
    out.extend_from_slice(&lag.to_be_bytes());
    out.push(kind_byte);
    out.extend_from_slice(&timestamp_ms.to_be_bytes());
    body(out);
    let length = (out.len() - start - HEADER_BYTES) as u32;
    let crc = salt.checksum(length, offset, &out[start + HEADER_BYTES..]);
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
    out[start + 4..start + 8].copy_from_slice(&crc.to_be_bytes());
}

/// Appends a frame with a payload that is complete already, sealed with the salt of the segment that it goes into.
pub fn seal(out: &mut Vec<u8>, salt: Salt, offset: u64, payload: &[u8]) {
    let length = payload.len() as u32;
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(&salt.checksum(length, offset, payload).to_be_bytes());
    out.extend_from_slice(&offset.to_be_bytes());
    out.extend_from_slice(payload);
}

/// The smallest padding frame.
pub const PADDING_BYTES_MIN: u64 = HEADER_BYTES as u64 + LENGTH_MIN as u64;

/// How many bytes of padding a force that ends at `position` needs (0, or at least a whole frame).
pub fn padding_bytes(position: u64, pad_forces: u32) -> u64 {
    let unit = u64::from(pad_forces);
    if unit == 0 || position.is_multiple_of(unit) {
        return 0;
    }
    let gap = unit - position % unit;
    if gap >= PADDING_BYTES_MIN { gap } else { gap + unit }
}

/// Appends a padding frame of exactly `size` bytes (from [`padding_bytes`]).
pub fn encode_padding(out: &mut Vec<u8>, salt: Salt, offset: u64, durable: u64, timestamp_ms: i64, size: u64) {
    let fill = size as usize - OVERHEAD_BYTES;
    encode(out, salt, offset, durable, Kind::Padding as u8, timestamp_ms, |out| out.resize(out.len() + fill, 0));
}
#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{self, Message};
    use proptest::prelude::*;

    const LOG_ID: LogId = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

    /// The worked example of docs/file-format.md: the fourth message of a log, published when two were durable, with the
    /// key `k1`, the header `type: a` and the value `hello`. Computed by other code than this.
    #[rustfmt::skip]
    const WORKED_FRAME: [u8; 53] = [
        0x00, 0x00, 0x00, 0x25,                         // length: 37
        0x38, 0x15, 0x4e, 0xa7,                         // crc32c, from the salt a07681a7
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x03, // offset: 3
        0x00, 0x00, 0x00, 0x02,                         // lag: 2, so everything below 1 was durable
        0x60,                                           // kind: a message with key and headers
        0x00, 0x00, 0x01, 0x8b, 0xcf, 0xe5, 0x68, 0x00, // timestamp: 1700000000000
        0x00, 0x00, 0x00, 0x02, 0x6b, 0x31,             // key: 2 bytes, "k1"
        0x00, 0x01,                                     // headers: 1
        0x00, 0x04, 0x74, 0x79, 0x70, 0x65,             // name: 4 bytes, "type"
        0x00, 0x00, 0x00, 0x01, 0x61,                   // value: 1 byte, "a"
        0x68, 0x65, 0x6c, 0x6c, 0x6f,                   // value: "hello"
    ];

    #[test]
    fn the_worked_frame_of_the_documentation() {
        let salt = Salt::new(&LOG_ID, 0);
        assert_eq!(salt, Salt(0xa076_81a7));
        let headers = [(b"type", b"a")];
        let mut out = Vec::new();
        encode(&mut out, salt, 3, 1, message::flags(false, true, true), 1_700_000_000_000, |out| {
            message::encode_head(out, None, Some(b"k1"), &headers);
            out.extend_from_slice(b"hello");
        });
        assert_eq!(out, WORKED_FRAME);

        let Decoded::Frame(frame) = decode(&WORKED_FRAME, salt) else { panic!("not a frame") };
        assert_eq!((frame.offset, frame.count, frame.lag, frame.kind), (3, 1, 2, Kind::Message));
        assert_eq!((frame.evidence(), frame.size()), (Some(1), WORKED_FRAME.len()));
        let message = Message::parse(frame.payload).expect("a message");
        assert_eq!(
            (message.timestamp_ms, message.key, message.value),
            (1_700_000_000_000, Some(&b"k1"[..]), &b"hello"[..])
        );
        assert!(message.headers().eq([(&b"type"[..], &b"a"[..])]));
    }

    #[test]
    fn a_payload_advances_by_what_its_kind_says() {
        let count = |offset: u64, kind_byte: u8, value: &[u8]| {
            let payload = [&[0, 0, 0, 0, kind_byte, 0, 0, 0, 0, 0, 0, 0, 0], value].concat();
            interpret(offset, &payload).map(|frame| frame.count)
        };
        for (kind_byte, value, expected) in [
            (0, &b"x"[..], Some(1)),
            (HAS_KEY | HAS_HEADERS | HAS_PRODUCER, b"x", Some(1)),
            (1, &[0, 0, 0, 0, 0, 0, 0, 7], Some(7)),
            (2, &[0, 0, 0, 1, 0, 0, 0, 0], Some(1 << 32)),
            (1, &[0, 0, 0, 0, 0, 0, 0, 0], None),
            (2, &[0, 0, 0, 0, 0, 0, 7], None),
            (2, &[0, 0, 0, 0, 0, 0, 0, 7, 0], None),
            (3, b"x", Some(1)),
            (4, &[0, 0, 0, 2, 0, 0, 0, 2, 0, b'a', 0, 0, 0, 3, 0, b'b', b'c'], Some(2)),
            // No message, half a count, a message missing, something behind the last.
            (4, &[0, 0, 0, 0], None),
            (4, &[0, 0, 0, 0, 9], None),
            (4, &[0, 0, 3], None),
            (4, &[0, 0, 0, 2, 0, 0, 0, 2, 0, b'a'], None),
            (4, &[0, 0, 0, 1, 0, 0, 0, 2, 0, b'a', 0], None),
            (4, &[0, 0, 0, 1, 0, 0, 0, 2, 0, b'a', 0, 0, 0, 2, 0, b'b'], None),
            (4, &[255, 255, 255, 255, 0, 0, 0, 2, 0, b'a'], None),
            // A message longer than what is there, without a value, of another kind, with an unknown flag, half a producer.
            (4, &[0, 0, 0, 1, 0, 0, 0, 3, 0, b'a'], None),
            (4, &[0, 0, 0, 1, 255, 255, 255, 255, 0, b'a'], None),
            (4, &[0, 0, 0, 1, 0, 0, 0, 0], None),
            (4, &[0, 0, 0, 1, 0, 0, 0, 1, 0], None),
            (4, &[0, 0, 0, 1, 0, 0, 0, 2, 4, b'a'], None),
            (4, &[0, 0, 0, 1, 0, 0, 0, 2, 5, b'a'], None),
            (4, &[0, 0, 0, 1, 0, 0, 0, 2, 0x80, b'a'], None),
            (4, &[0, 0, 0, 1, 0, 0, 0, 2, 0x10, b'a'], None),
            (4, &[0, 0, 0, 1, 0, 0, 0, 14, 0x10, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 1, b'a'], Some(1)),
            // A flag of the batch itself.
            (4 | HAS_PRODUCER, &[0, 0, 0, 1, 0, 0, 0, 2, 0, b'a'], None),
            (5, &[0], Some(0)),
            (6, b"x", None),
            (15, b"x", None),
            (UNKNOWN_FLAGS, b"x", None),
        ] {
            assert_eq!(count(0, kind_byte, value), expected, "kind byte {kind_byte:#x}, value {value:?}");
        }
        assert_eq!(count(u64::MAX - 7, 1, &[0, 0, 0, 0, 0, 0, 0, 7]), Some(7));
        assert_eq!(count(u64::MAX - 6, 1, &[0, 0, 0, 0, 0, 0, 0, 7]), None);
        assert_eq!(count(u64::MAX, 0, b"x"), None);
    }

    #[test]
    fn a_length_outside_the_format_is_no_frame_and_is_not_waited_for() {
        let header = |length: u32| {
            let mut header = [0; HEADER_BYTES];
            header[..4].copy_from_slice(&length.to_be_bytes());
            header
        };
        for (length, expected) in [
            (0, Decoded::Invalid(Invalid::BadLength)),
            (LENGTH_MIN - 1, Decoded::Invalid(Invalid::BadLength)),
            (LENGTH_MIN, Decoded::NeedBytes(HEADER_BYTES + LENGTH_MIN as usize)),
            (LENGTH_MAX, Decoded::NeedBytes(HEADER_BYTES + LENGTH_MAX as usize)),
            (LENGTH_MAX + 1, Decoded::Invalid(Invalid::BadLength)),
            (u32::MAX, Decoded::Invalid(Invalid::BadLength)),
        ] {
            assert_eq!(decode(&header(length), Salt(0)), expected, "{length}");
        }
        assert_eq!((LENGTH_MIN, LENGTH_MAX, PADDING_BYTES_MIN), (14, 16_842_752, 30));
        assert_eq!(alloc::format!("{}", Invalid::BadLength), "bad-length");
    }

    #[test]
    fn a_lag_is_evidence_unless_it_is_saturated() {
        let evidence = |offset: u64, durable: u64| {
            let mut out = Vec::new();
            encode(&mut out, Salt(1), offset, durable, 0, 0, |out| out.push(b'x'));
            match decode(&out, Salt(1)) {
                Decoded::Frame(frame) => frame.evidence(),
                other => panic!("{other:?}"),
            }
        };
        let saturated = u64::from(LAG_SATURATED);
        assert_eq!(evidence(10, 10), Some(10));
        assert_eq!(evidence(10, 0), Some(0));
        assert_eq!(evidence(saturated + 4, 5), Some(5));
        assert_eq!(evidence(saturated + 5, 5), None);
        assert_eq!(evidence(u64::MAX - 1, 0), None);
        // A lag that reaches below offset 0 proves nothing.
        assert_eq!(
            interpret(1, &[0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, b'x']).map(|frame| frame.evidence()),
            Some(None)
        );
    }

    /// Any frame that can be written: one of a message, with its parts.
    fn frame() -> impl Strategy<Value = (Salt, u64, u64, Vec<u8>, Vec<u8>)> {
        (any::<u32>(), 0..u64::MAX, any::<u64>(), prop::collection::vec(any::<u8>(), 1..300), any::<i64>()).prop_map(
            |(salt, offset, durable, value, time)| {
                let salt = Salt(salt);
                let mut bytes = Vec::new();
                encode(&mut bytes, salt, offset, durable, 0, time, |out| out.extend_from_slice(&value));
                (salt, offset, durable, value, bytes)
            },
        )
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_decoded((salt, offset, durable, value, bytes) in frame(), behind: Vec<u8>) {
            let stream = [&bytes[..], &behind].concat();
            let Decoded::Frame(frame) = decode(&stream, salt) else { panic!("not a frame") };
            prop_assert_eq!((frame.offset, frame.count, frame.kind, frame.size()), (offset, 1, Kind::Message, bytes.len()));
            prop_assert_eq!(&frame.payload[PREFIX_BYTES..], &value[..]);
            if let Some(evidence) = frame.evidence() {
                prop_assert_eq!(evidence, durable.min(offset));
            }
        }

        /// A cut frame is never taken for a whole one, and says how much it needs.
        #[test]
        fn a_cut_frame_asks_for_the_rest((salt, _, _, _, bytes) in frame(), cut: prop::sample::Index) {
            let cut = cut.index(bytes.len());
            let needed = if cut < HEADER_BYTES { HEADER_BYTES } else { bytes.len() };
            prop_assert_eq!(decode(&bytes[..cut], salt), Decoded::NeedBytes(needed));
        }

        #[test]
        fn a_flipped_bit_is_noticed((salt, _, _, _, mut bytes) in frame(), place: prop::sample::Index, bit in 0_u32..8) {
            let place = place.index(bytes.len());
            bytes[place] ^= 1_u8 << bit;
            prop_assert!(!matches!(decode(&bytes, salt), Decoded::Frame(_)));
        }

        /// So a frame inside a payload, or in a segment from elsewhere, is not one.
        #[test]
        fn another_salt_is_noticed((salt, _, _, _, bytes) in frame(), other: u32) {
            prop_assume!(Salt(other) != salt);
            prop_assert_eq!(decode(&bytes, Salt(other)), Decoded::Invalid(Invalid::CrcMismatch));
        }

        #[test]
        fn any_bytes_are_decoded_without_a_panic(mut bytes: Vec<u8>, salt: u32, length in 0_u32..200, plausible: bool) {
            if plausible && bytes.len() >= 4 {
                bytes[..4].copy_from_slice(&length.to_be_bytes());
            }
            if let Decoded::Frame(frame) = decode(&bytes, Salt(salt)) {
                prop_assert!(frame.size() <= bytes.len());
            }
            let _ = interpret(u64::from(salt), &bytes);
        }

        /// Inside a unit and over its end, with gaps of every size.
        #[test]
        fn padding_is_a_whole_frame_that_ends_on_the_unit(position in 0_u64..1 << 40, exponent in 9_u32..=14) {
            let unit = 1_u32 << exponent;
            let padding = padding_bytes(position, unit);
            prop_assert_eq!((position + padding) % u64::from(unit), 0);
            prop_assert!(padding == 0 || (PADDING_BYTES_MIN..u64::from(unit) + PADDING_BYTES_MIN).contains(&padding));
            prop_assert_eq!(padding_bytes(position, 0), 0);
            if padding > 0 {
                let mut out = Vec::new();
                encode_padding(&mut out, Salt(7), 5, 5, 0, padding);
                prop_assert_eq!(out.len() as u64, padding);
                let Decoded::Frame(frame) = decode(&out, Salt(7)) else { panic!("not a frame") };
                prop_assert_eq!((frame.kind, frame.count, frame.offset), (Kind::Padding, 0, 5));
            }
        }
    }

    #[test]
    fn every_gap_before_a_unit_is_padded() {
        for position in 0..=1024 {
            let padding = padding_bytes(position, 512);
            assert!(padding == 0 || padding >= 30, "{position}: {padding}");
            assert_eq!((position + padding) % 512, 0);
        }
    }

    #[test]
    fn salts_differ_by_log_and_by_segment() {
        let salts = [Salt::new(&LOG_ID, 0), Salt::new(&LOG_ID, 1), Salt::new(&[7; 16], 0)];
        assert!(salts[0] != salts[1] && salts[0] != salts[2] && salts[1] != salts[2]);
    }
}
