//! The byte-by-byte search for evidence behind the first invalid place of a log's last segment.
//!
//! A power loss may leave good-bad-good: unforced sectors reach the platter in any order. So recovery, having met a
//! place where no valid frame stands, asks what the frames behind it prove to have been durable once. It decides by
//! that whether the tail was only torn (P8) or acknowledged messages are damaged (P7).
//!
//! # Why the work is bounded
//!
//! A message may be made of bytes that look like the header of a 16 MiB frame at every position. To checksum each of
//! these from its beginning would be quadratic: 64 MiB of them would take hours. But a checksum is affine: with
//! P(i) the checksum of the first i bytes, and `shift(c, n)` the multiplication by x^8n modulo the CRC polynomial,
//!
//! ```text
//! the checksum of bytes i..j, started from s  =  P(j) ^ shift(P(i) ^ s, j - i)
//! ```
//!
//! P is kept every 64 bytes, and x^8n is the product of two powers from tables. So a candidate costs two
//! multiplications and at most 63 checksummed bytes at its end, however long it is. What passes is checksummed once
//! more directly, so that no mistake in this arithmetic can make evidence; a frame found is not looked into, so this
//! too touches every byte at most once. [`Work`] counts all of it.
//!
//! # Why a frame found is not looked into
//!
//! Its checksum says that all its bytes are as they were written: what is inside it is payload. No client can place
//! a valid frame there, as none knows the salt, but any content that makes candidates at every byte makes a lucky one
//! in every 2^32.
//!
//! # Why an offset has a bound
//!
//! A lucky one could refuse a start for good, if its offset could be any. But offsets are dense, and in the last segment
//! each has cost bytes: it holds no runs, and the cheapest message is one of a batch. So a frame that stands n bytes
//! behind the place where `expected` should stand has no offset above `expected + n / 5`. An older life of the same file
//! may have had more messages in those bytes; what it proves then lies before the place, where both lives are the same.

use crate::record::{self, Decoded, Frame, HEADER_BYTES, LENGTH_MAX, LENGTH_MIN, Salt};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::array;

/// What stood in the searched bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Found {
    /// Valid frames with the expected offset or a higher one. They don't overlap: the search goes on behind each.
    pub frames: u64,
    /// Where in the file the first of them stands.
    pub first: Option<u64>,
    /// The strongest evidence among them; of equal ones the first.
    pub evidence: Option<Evidence>,
    /// The position in the file behind the last byte that is not zero.
    pub nonzero_end: Option<u64>,
    /// What the search cost.
    pub work: Work,
}

/// A valid frame's proof that messages were durable when it was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Evidence {
    /// Everything below this offset had been forced: the frame's offset − lag.
    pub durable: u64,
    /// Where in the file the frame stands.
    pub position: u64,
}

/// What a search cost, counted, so that a test can bound it without a clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Work {
    /// Positions where everything but the checksum looked like a frame.
    pub candidates: u64,
    /// Multiplications modulo the CRC polynomial, those for the tables of powers included.
    pub multiplications: u64,
    /// Bytes that went through the checksum: for prefixes, for candidates, for confirming what was found.
    pub checksummed_bytes: u64,
    /// Bytes moved inside the window.
    pub moved_bytes: u64,
}

/// A search that is given the bytes piece by piece, in order. It keeps only what an undecided candidate needs: about
/// 33 MiB and one piece at most (P13), and far less when no long candidate is met.
///
/// ```
/// use plimsoll_core::{log::search::Search, record::{self, Kind, Salt}};
/// let salt = Salt(7);
/// let mut file = vec![0xff; 100];
/// record::encode(&mut file, salt, 12, 10, Kind::Message as u8, 0, |out| out.push(b'x'));
/// let mut search = Search::new(4096, 9, salt);
/// file.chunks(50).for_each(|piece| search.push(piece));
/// let found = search.finish();
/// assert_eq!((found.frames, found.first), (1, Some(4196)));
/// assert_eq!(found.evidence.unwrap().durable, 10);
/// ```
#[derive(Debug)]
pub struct Search {
    salt: Salt,
    expected: u64,
    /// The position in the file at which a frame with the expected offset should stand.
    begin: u64,
    /// The position in the file of the window's first byte.
    position: u64,
    /// Bytes of which not all are decided.
    window: Vec<u8>,
    /// Every position of the window before this one is decided.
    decided: usize,
    prefixes: Prefixes,
    /// Built for the first candidate: most tails are zeros and need none.
    powers: Option<Box<Powers>>,
    found: Found,
}

/// What an offset costs in a segment without runs is more than this: a batch's message has its length, its kind byte and a value of
/// at least one byte, so six ([`message::is_batch`](crate::message::is_batch) takes no less).
const OFFSET_BYTES_MIN: u64 = 4 + 1;
/// No frame is shorter.
const FRAME_BYTES_MIN: usize = HEADER_BYTES + LENGTH_MIN as usize;
/// What the window holds at most when a piece arrives.
const WINDOW_BYTES_MAX: usize = 2 * (HEADER_BYTES + LENGTH_MAX as usize);

impl Search {
    /// A search in bytes that begin at this position of the file, for frames with offset `expected` or higher: lower
    /// ones prove nothing that is not known.
    pub fn new(position: u64, expected: u64, salt: Salt) -> Search {
        Search {
            salt,
            expected,
            begin: position,
            position,
            window: Vec::new(),
            decided: 0,
            prefixes: Prefixes::default(),
            powers: None,
            found: Found::default(),
        }
    }

    /// Takes the next bytes of the file.
    pub fn push(&mut self, piece: &[u8]) {
        // Moving no more than what is dropped keeps the moved bytes below the pushed ones.
        if 2 * self.decided >= self.window.len() {
            self.found.work.moved_bytes += (self.window.len() - self.decided) as u64;
            self.window.drain(..self.decided);
            self.position += self.decided as u64;
            self.decided = 0;
            self.prefixes.clear();
        }
        if let Some(last) = piece.iter().rposition(|&byte| byte != 0) {
            self.found.nonzero_end = Some(self.position + (self.window.len() + last + 1) as u64);
        }
        // Undecided is less than a frame, decided is less than that: twice a frame is all that the piece can meet.
        let (len, capacity) = (self.window.len(), self.window.capacity());
        if len + piece.len() > capacity {
            let doubled = (2 * capacity).min(WINDOW_BYTES_MAX);
            self.window.reserve_exact(doubled.max(len + piece.len()) - len);
        }
        self.window.extend_from_slice(piece);
        self.advance(false);
    }

    /// What has been found so far, for a reader that wants only the next frame.
    pub fn found(&self) -> &Found {
        &self.found
    }

    /// There are no more bytes.
    pub fn finish(mut self) -> Found {
        self.advance(true);
        self.found
    }

    /// Decides one position after the other, until the end of the window or a candidate that may end behind it.
    fn advance(&mut self, at_end: bool) {
        while let Some(header) = self.header() {
            if header[..4] == [0; 4] {
                // The first position whose length field is not zero is three before the first other byte.
                self.decided += zeros(&self.window[self.decided..]) - 3;
                continue;
            }
            let Some(size) = record::frame_size(header) else {
                self.decided += 1;
                continue;
            };
            if self.window.len() - self.decided < size {
                if at_end || !self.is_plausible(header) {
                    self.decided += 1;
                    continue;
                }
                return;
            }
            self.decided += self.try_frame(size).unwrap_or(1);
        }
    }

    /// The header at the first undecided position, if a frame might still fit there.
    fn header(&self) -> Option<&[u8; HEADER_BYTES]> {
        let rest = &self.window[self.decided..];
        if rest.len() < FRAME_BYTES_MIN { None } else { rest.first_chunk() }
    }

    /// Whether it is worth waiting for the rest of a frame with this header.
    fn is_plausible(&self, header: &[u8; HEADER_BYTES]) -> bool {
        let kind_byte = self.window[self.decided + HEADER_BYTES + 4];
        self.is_possible(offset_of(header)) && record::Kind::from_byte(kind_byte).is_some()
    }

    /// Whether a frame of this log with this offset can stand at the first undecided position.
    fn is_possible(&self, offset: u64) -> bool {
        let behind = self.position + self.decided as u64 - self.begin;
        (self.expected..=self.expected.saturating_add(behind / OFFSET_BYTES_MIN)).contains(&offset)
    }

    /// Counts the frame of this size at the first undecided position, if one stands there, and returns the size.
    fn try_frame(&mut self, size: usize) -> Option<usize> {
        let start = self.decided;
        let end = start + size;
        let bytes = &self.window[start..end];
        let header: &[u8; HEADER_BYTES] = bytes.first_chunk()?;
        let offset = offset_of(header);
        if !self.is_possible(offset) {
            return None;
        }
        record::outline(offset, &bytes[HEADER_BYTES..])?;

        let work = &mut self.found.work;
        work.candidates += 1;
        let powers = self.powers.get_or_insert_with(|| {
            work.multiplications += Powers::MULTIPLICATIONS;
            Box::new(Powers::new())
        });
        // The checksum covers the length, leaves itself out and goes on with the offset: header bytes 0..4, then 8...
        let after_length = append_length(self.salt.0, header);
        let before = self.prefixes.at_next_start(&self.window, start + 8, work);
        let through = self.prefixes.at(&self.window, end, work);
        let shifted = powers.shift(before ^ after_length, size - 8, work);
        if through ^ shifted != checksum_of(header) {
            return None;
        }

        work.checksummed_bytes += size as u64;
        let decoded = record::decode(bytes, self.salt);
        let Decoded::Frame(frame) = decoded else {
            // A batch whose inside contradicts itself: another writer's.
            debug_assert_eq!(
                decoded,
                Decoded::Invalid(record::Invalid::UnknownKind),
                "prefix arithmetic and the checksum disagree"
            );
            return None;
        };
        self.found.count(&frame, self.position + start as u64);
        Some(size)
    }
}

/// The salt that makes the frame at the beginning of `bytes` valid: how a segment is read whose log id is lost.
///
/// Whatever looks like a frame yields one, so it means something only when other frames yield the same. `None`
/// where no frame of a known kind can stand, or not all of it is there.
///
/// With n covered bytes, checksum = (the checksum from 0) ^ shift(salt, n), and a shift can be taken back: x has an inverse modulo
/// the CRC polynomial.
///
/// ```
/// use plimsoll_core::{log::search::derive_salt, record::{self, Kind, Salt}};
/// let mut file = Vec::new();
/// record::encode(&mut file, Salt(7), 12, 10, Kind::Message as u8, 0, |out| out.push(b'x'));
/// assert_eq!(derive_salt(&file), Some(Salt(7)));
/// ```
pub fn derive_salt(bytes: &[u8]) -> Option<Salt> {
    let header: &[u8; HEADER_BYTES] = bytes.first_chunk()?;
    let payload = bytes.get(HEADER_BYTES..record::frame_size(header)?)?;
    record::interpret(offset_of(header), payload)?;
    let from_zero = Salt(0).checksum(payload.len() as u32, offset_of(header), payload);
    let covered = 4 + 8 + payload.len();
    Some(Salt(multiply(checksum_of(header) ^ from_zero, power(X8_INVERSE, covered))))
}

impl Found {
    fn count(&mut self, frame: &Frame<'_>, position: u64) {
        self.frames += 1;
        self.first.get_or_insert(position);
        if let Some(durable) = frame.evidence()
            && self.evidence.is_none_or(|strongest| durable > strongest.durable)
        {
            self.evidence = Some(Evidence { durable, position });
        }
    }
}

fn checksum_of(header: &[u8; HEADER_BYTES]) -> u32 {
    u32::from_be_bytes(array::from_fn(|i| header[4 + i]))
}

fn offset_of(header: &[u8; HEADER_BYTES]) -> u64 {
    u64::from_be_bytes(array::from_fn(|i| header[8 + i]))
}

/// How many zero bytes `bytes` begins with.
fn zeros(bytes: &[u8]) -> usize {
    // Sixteen at a time: the unused space of a segment may be nearly all of it.
    let (blocks, _) = bytes.as_chunks::<16>();
    let whole = 16 * blocks.iter().take_while(|block| u128::from_ne_bytes(**block) == 0).count();
    whole + bytes[whole..].iter().take_while(|&&byte| byte == 0).count()
}

/// The checksums of the window's beginnings.
#[derive(Debug, Default)]
struct Prefixes {
    /// The checksums of the first 0, 64, 128 … bytes, as far as they were needed.
    every_64: Vec<u32>,
    /// The last that was asked for as a start: the next one is a byte further on hostile content.
    last_start: (usize, u32),
}

impl Prefixes {
    const STEP: usize = 64;

    /// The window's beginning has changed.
    fn clear(&mut self) {
        self.every_64.clear();
        self.last_start = (0, 0);
    }

    /// The checksum of `window[..i]`.
    fn at(&mut self, window: &[u8], i: usize, work: &mut Work) -> u32 {
        let index = i / Prefixes::STEP;
        if self.every_64.is_empty() {
            self.every_64.push(0);
        }
        while self.every_64.len() <= index {
            let known = self.every_64.len() - 1;
            let block = &window[known * Prefixes::STEP..(known + 1) * Prefixes::STEP];
            self.every_64.push(append(self.every_64[known], block, work));
        }
        append(self.every_64[index], &window[index * Prefixes::STEP..i], work)
    }

    /// The same where `i` only grows.
    fn at_next_start(&mut self, window: &[u8], i: usize, work: &mut Work) -> u32 {
        let (last, checksum) = self.last_start;
        let checksum =
            if i - last < Prefixes::STEP { append(checksum, &window[last..i], work) } else { self.at(window, i, work) };
        self.last_start = (i, checksum);
        checksum
    }
}

fn append(checksum: u32, bytes: &[u8], work: &mut Work) -> u32 {
    work.checksummed_bytes += bytes.len() as u64;
    crc32c::crc32c_append(checksum, bytes)
}

/// The checksum after a frame's length field: four bytes are not worth a call of the CRC library.
fn append_length(salt: u32, header: &[u8; HEADER_BYTES]) -> u32 {
    !times_x32(!salt ^ u32::from_le_bytes(array::from_fn(|i| header[i])))
}

/// Powers of x^8 modulo the CRC polynomial, in two digits. Polynomials are written as CRC-32C writes them: the highest
/// bit is the coefficient of x^0.
#[derive(Debug)]
struct Powers {
    /// x^8n.
    low: [u32; Powers::RADIX],
    /// x^(8 · 4096 n).
    high: [u32; Powers::HIGH],
}

impl Powers {
    const RADIX: usize = 4096;
    /// Enough for the offset and the payload of the longest frame.
    const HIGH: usize = (8 + LENGTH_MAX as usize) / Powers::RADIX + 1;
    const MULTIPLICATIONS: u64 = (Powers::RADIX + Powers::HIGH) as u64;
    const ONE: u32 = 1 << 31;
    const X8: u32 = Powers::ONE >> 8;

    fn new() -> Powers {
        let mut power = Powers::ONE;
        let low = array::from_fn(|_| {
            let this = power;
            power = multiply(power, Powers::X8);
            this
        });
        // By now it is x^(8 · 4096).
        let step = power;
        power = Powers::ONE;
        let high = array::from_fn(|_| {
            let this = power;
            power = multiply(power, step);
            this
        });
        Powers { low, high }
    }

    /// What a checksum's difference becomes when n more bytes go through it.
    fn shift(&self, difference: u32, n: usize, work: &mut Work) -> u32 {
        work.multiplications += 2;
        let product = multiply(difference, self.low[n % Powers::RADIX]);
        multiply(product, self.high[n / Powers::RADIX])
    }
}

/// What [`Powers::X8`] has to be multiplied by to give [`Powers::ONE`].
const X8_INVERSE: u32 = {
    let mut value = Powers::ONE;
    let mut bit = 0;
    while bit < 8 {
        // The step of a checksum taken back: only the polynomial sets the lowest coefficient.
        value = if value & Powers::ONE == 0 { value << 1 } else { (value ^ POLYNOMIAL) << 1 | 1 };
        bit += 1;
    }
    value
};

/// `base` to the power n, by squaring.
fn power(mut base: u32, mut n: usize) -> u32 {
    let mut product = Powers::ONE;
    while n > 0 {
        if n & 1 == 1 {
            product = multiply(product, base);
        }
        base = multiply(base, base);
        n >>= 1;
    }
    product
}

/// Multiplies modulo the CRC polynomial, four bits at a time.
fn multiply(a: u32, b: u32) -> u32 {
    let mut multiples = [0u64; 16];
    for i in 1..16 {
        multiples[i] = if i % 2 == 0 { multiples[i / 2] << 1 } else { multiples[i - 1] ^ u64::from(b) };
    }
    let mut product = 0;
    for shift in (0..32).step_by(4) {
        product ^= multiples[(a >> shift & 15) as usize] << shift;
    }
    // With the bits in this order the product of two constants stands at bit 62. One more, and the upper half is the
    // remainder's; the lower stands for x^32 and up.
    product <<= 1;
    (product >> 32) as u32 ^ times_x32(product as u32)
}

/// Multiplies by x^32: what four zero bytes do to a checksum, but for its inverted bits.
fn times_x32(a: u32) -> u32 {
    let [b0, b1, b2, b3] = a.to_le_bytes().map(usize::from);
    TIMES_X32[0][b0] ^ TIMES_X32[1][b1] ^ TIMES_X32[2][b2] ^ TIMES_X32[3][b3]
}

/// The CRC-32C polynomial (Castagnoli), bits in the order described at [`Powers`].
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// x^32 times each value of each of the four bytes.
static TIMES_X32: [[u32; 256]; 4] = {
    let mut table = [[0; 256]; 4];
    let mut i = 0;
    while i < 4 * 256 {
        let mut value = (i as u32 % 256) << (8 * (i / 256));
        let mut bit = 0;
        while bit < 32 {
            value = if value & 1 == 0 { value >> 1 } else { value >> 1 ^ POLYNOMIAL };
            bit += 1;
        }
        table[i / 256][i % 256] = value;
        i += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Kind;
    use alloc::vec;
    use proptest::prelude::*;

    const SALT: Salt = Salt(0x5eed_0001);

    /// The same question answered in the obvious way.
    fn naive(bytes: &[u8], position: u64, expected: u64) -> Found {
        let mut found = Found::default();
        let mut at = 0;
        while at < bytes.len() {
            match record::decode(&bytes[at..], SALT) {
                Decoded::Frame(frame) if (expected..=expected + at as u64 / 5).contains(&frame.offset) => {
                    found.count(&frame, position + at as u64);
                    at += frame.size();
                }
                _ => at += 1,
            }
        }
        found.nonzero_end = bytes.iter().rposition(|&byte| byte != 0).map(|last| position + last as u64 + 1);
        found
    }

    fn search(bytes: &[u8], piece: usize, position: u64, expected: u64) -> Found {
        let mut search = Search::new(position, expected, SALT);
        for bytes in bytes.chunks(piece) {
            search.push(bytes);
            assert!(search.window.capacity() <= (33 << 20) + piece);
        }
        search.finish()
    }

    /// The value of a batch whose messages could not be shorter.
    fn smallest_batch(count: u32) -> Vec<u8> {
        let mut value = count.to_be_bytes().to_vec();
        (0..count).for_each(|_| value.extend_from_slice(&[0, 0, 0, 2, 0, b'x']));
        value
    }

    fn without_work(found: Found) -> Found {
        Found { work: Work::default(), ..found }
    }

    fn frame(salt: Salt, offset: u64, durable: u64, kind: Kind, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        record::encode(&mut out, salt, offset, durable, kind as u8, 0, |out| out.extend_from_slice(body));
        out
    }

    fn some_frame() -> impl Strategy<Value = Vec<u8>> {
        let kind = prop_oneof![
            4 => Just(Kind::Message),
            1 => Just(Kind::LostRun),
            1 => Just(Kind::Batch),
            1 => Just(Kind::Padding),
            1 => Just(Kind::QueueOperation),
        ];
        let salt = prop_oneof![4 => Just(SALT), 1 => Just(Salt(1))];
        let offset = prop_oneof![4 => 0u64..40, 1 => Just(u64::MAX), 1 => any::<u64>()];
        let body = prop_oneof![
            2 => some_bytes(),
            1 => Just(vec![0, 0, 0, 0, 0, 0, 0, 3]),
            1 => (1u32..5).prop_map(smallest_batch)
        ];
        (salt, offset, any::<u8>(), kind, body).prop_map(|(salt, offset, lag, kind, body)| {
            frame(salt, offset, offset.saturating_sub(u64::from(lag)), kind, &body)
        })
    }

    fn some_bytes() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            prop::collection::vec(any::<u8>(), 1..60),
            // Bytes that often make a length, a kind and an offset.
            prop::collection::vec(prop::sample::select(&[0, 0, 0, 1, 0x0f, 0x20][..]), 1..300),
            (1usize..300).prop_map(|n| vec![0; n]),
        ]
    }

    fn nested_frame() -> impl Strategy<Value = Vec<u8>> {
        (some_bytes(), some_frame(), some_bytes())
            .prop_map(|(before, inner, after)| frame(SALT, 20, 10, Kind::Message, &[before, inner, after].concat()))
    }

    /// Frames and other bytes, some written over what stood before, cut anywhere.
    fn tail() -> impl Strategy<Value = Vec<u8>> {
        let part = prop_oneof![some_bytes(), some_frame(), some_frame(), nested_frame()];
        (prop::collection::vec((part, 0usize..40), 0..12), 0usize..50).prop_map(|(parts, cut)| {
            let mut bytes = Vec::new();
            for (part, back) in parts {
                // One in five lands on the end of the one before.
                let at = if back < 8 { bytes.len() - back.min(bytes.len()) } else { bytes.len() };
                bytes.truncate(at);
                bytes.extend_from_slice(&part);
            }
            bytes.truncate(bytes.len() - cut.min(bytes.len()));
            bytes
        })
    }

    proptest! {
        #[test]
        fn it_finds_what_the_naive_search_finds(
            bytes in tail(), position in 0u64..5000, expected in 0u64..30, piece in 1usize..200,
        ) {
            let found = search(&bytes, piece, position, expected);
            prop_assert_eq!(without_work(found), naive(&bytes, position, expected));
        }

        #[test]
        fn shifting_is_what_zero_bytes_do(difference: u32, n in 0usize..20_000) {
            let zeros = vec![0; n];
            let by_bytes = crc32c::crc32c_append(difference, &zeros) ^ crc32c::crc32c_append(0, &zeros);
            prop_assert_eq!(POWERS.with(|powers| powers.shift(difference, n, &mut Work::default())), by_bytes);
        }

        #[test]
        fn zeros_are_counted(before in 0usize..100, after in prop::collection::vec(any::<u8>(), 0..40)) {
            let mut bytes = vec![0; before];
            bytes.extend_from_slice(&after);
            prop_assert_eq!(zeros(&bytes), bytes.iter().take_while(|&&byte| byte == 0).count());
        }
    }

    std::thread_local! {
        static POWERS: Powers = Powers::new();
    }

    #[test]
    fn the_longest_frame_is_found_behind_garbage() {
        let body = vec![7; LENGTH_MAX as usize - record::PREFIX_BYTES];
        let mut bytes = vec![0xee; 12_345];
        bytes.extend_from_slice(&frame(SALT, 100, 90, Kind::Message, &body));
        bytes.extend_from_slice(&frame(SALT, 101, 95, Kind::Message, b"behind it"));
        let found = search(&bytes, 1 << 20, 0, 50);
        assert_eq!(found.frames, 2);
        assert_eq!(found.first, Some(12_345));
        assert_eq!(found.evidence, Some(Evidence { durable: 95, position: (bytes.len() - 38) as u64 }));
    }

    #[test]
    fn a_saturated_lag_is_a_frame_but_no_evidence() {
        let bytes = frame(SALT, 1 << 40, 0, Kind::Message, b"x");
        let found = search(&bytes, 1000, 0, 1 << 40);
        assert_eq!((found.frames, found.evidence), (1, None));
    }

    #[test]
    fn an_offset_that_the_bytes_before_it_cannot_hold_is_luck_and_no_evidence() {
        for (behind, offset, frames) in
            [(0, 5, 1), (0, 6, 0), (99, 24, 1), (99, 25, 0), (100, 25, 1), (100, 1 << 60, 0)]
        {
            let mut bytes = vec![0xee; behind];
            bytes.extend_from_slice(&frame(SALT, offset, offset, Kind::Message, b"x"));
            for piece in [1, 1000] {
                let found = search(&bytes, piece, 4096, 5);
                assert_eq!(found.frames, frames, "offset {offset}, {behind} bytes behind offset 5");
                assert_eq!(found.evidence.is_some(), frames > 0);
            }
        }
        // Ever shorter messages don't pass the bound: a batch of the smallest.
        for count in [1, 2, 1000, 100_000] {
            let mut bytes = frame(SALT, 5, 5, Kind::Batch, &smallest_batch(count));
            bytes.extend_from_slice(&frame(SALT, 5 + u64::from(count), 5, Kind::Message, b"x"));
            assert_eq!(search(&bytes, 1000, 0, 5).frames, 2, "{count} messages");
        }
    }

    #[test]
    fn the_strongest_evidence_counts_and_of_equals_the_first() {
        let evidence = |durables: &[u64]| {
            let frames = durables.iter().zip(100..).map(|(&durable, n)| frame(SALT, n, durable, Kind::Message, b"x"));
            search(&frames.collect::<Vec<_>>().concat(), 1000, 0, 100).evidence
        };
        assert_eq!(evidence(&[7, 9, 9, 8]), Some(Evidence { durable: 9, position: 30 }));
        assert_eq!(evidence(&[9, 7, 9]), Some(Evidence { durable: 9, position: 0 }));
    }

    #[test]
    fn a_frame_of_another_segment_is_none() {
        let bytes = frame(Salt(SALT.0 ^ 1), 9, 9, Kind::Message, b"smuggled");
        assert_eq!(search(&bytes, 1000, 0, 9).frames, 0);
    }

    #[test]
    fn zeros_cost_nothing_and_are_not_kept() {
        let zeros = vec![0; 1 << 20];
        let mut search = Search::new(4096, 0, SALT);
        search.push(&zeros);
        // The last three may begin a length.
        [1000, 1 << 20, 1 << 20].into_iter().for_each(|end| search.push(&zeros[3..end]));
        assert_eq!(search.window.capacity(), 1 << 20);
        assert_eq!(search.finish(), Found { work: Work { moved_bytes: 3 * 3, ..Work::default() }, ..Found::default() });
    }

    #[test]
    fn a_frame_costs_two_multiplications_and_its_bytes_twice() {
        let bytes = frame(SALT, 5, 5, Kind::Message, &[7; 1000]);
        let mut search = Search::new(0, 5, SALT);
        search.push(&bytes);
        assert_eq!(search.found().frames, 1);
        // The tables of powers are of 4096 and 4113; the prefix to behind the header's checksum is asked for, too.
        let checksummed_bytes = 8 + 2 * bytes.len() as u64;
        let work = Work { candidates: 1, multiplications: 4096 + 4113 + 2, checksummed_bytes, moved_bytes: 0 };
        assert_eq!(search.finish().work, work);
    }

    #[test]
    fn only_what_may_be_a_frame_is_waited_for() {
        for (offset, kind_byte, waits) in
            [(5u64, Kind::Message as u8, true), (6, Kind::Message as u8, false), (5, 0x0f, false)]
        {
            let mut bytes = vec![0xee; 64];
            bytes[..4].copy_from_slice(&LENGTH_MAX.to_be_bytes());
            bytes[8..HEADER_BYTES].copy_from_slice(&offset.to_be_bytes());
            bytes[HEADER_BYTES + 4] = kind_byte;
            let mut search = Search::new(0, 5, SALT);
            search.push(&bytes);
            assert_eq!(search.decided == 0, waits, "offset {offset}, kind byte {kind_byte}");
        }
    }

    #[test]
    fn the_window_is_doubled_up_to_two_frames() {
        // Two that look like the longest frame. When the first is decided, less than half of the window can be dropped.
        let mut bytes = vec![0; 26 << 20];
        for begin in [0, 8 << 20] {
            bytes[begin..begin + 4].copy_from_slice(&LENGTH_MAX.to_be_bytes());
        }
        let mut search = Search::new(0, 0, SALT);
        let capacities = bytes.chunks(1_100_000).map(|piece| {
            search.push(piece);
            search.window.capacity()
        });
        let mut capacities: Vec<usize> = capacities.collect();
        capacities.dedup();
        assert_eq!(capacities, [1_100_000, 2_200_000, 4_400_000, 8_800_000, 17_600_000, 33_685_536]);
    }

    /// Debug builds search less: they take a hundred times as long for a byte.
    const WORST_BYTES: usize = if cfg!(debug_assertions) { 2 << 20 } else { 64 << 20 };

    fn assert_linear(found: &Found, bytes: usize) {
        let (bytes, work) = (bytes as u64, found.work);
        assert!(work.candidates <= bytes);
        assert_eq!(work.multiplications, 2 * work.candidates + Powers::MULTIPLICATIONS);
        // The prefixes twice, as moved bytes start them anew; the starts; frames found; and per candidate its end, half
        // a step on average.
        assert!(work.checksummed_bytes <= 4 * bytes + 32 * work.candidates, "{work:?}");
        assert!(work.moved_bytes <= bytes);
    }

    /// The period has an eight-byte offset behind every length that is small enough to be possible: offset 0 is expected.
    fn worst(period: &[u8]) -> Found {
        let bytes: Vec<u8> = period.iter().copied().cycle().take(WORST_BYTES).collect();
        let found = search(&bytes, 1 << 20, 0, 0);
        assert_linear(&found, bytes.len());
        assert_eq!(found.frames, 0);
        found
    }

    #[test]
    fn the_content_with_the_most_candidates_is_searched_in_linear_work() {
        // Every length in range has a byte that is not zero, and every possible offset begins with four that are, eight
        // bytes further on. Lengths of 15 bytes, 3840 and 983,040; as offsets they are possible after a while.
        let found = worst(&[0, 0, 0, 15, 0, 0, 0, 0, 0, 0, 0, 0]);
        let fitting = (WORST_BYTES - (1 << 20)) / 12 * 2 + WORST_BYTES.saturating_sub(6 << 20) / 12;
        assert!(found.work.candidates >= fitting as u64, "{:?}", found.work);
    }

    #[test]
    fn the_content_with_the_longest_candidates_is_searched_in_linear_work() {
        // Lengths of 256 bytes, 64 KiB and 16 MiB, with offsets 0, 1 and 256.
        let found = worst(&[0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let fitting = (WORST_BYTES - (1 << 20)) / 14 * 2 + WORST_BYTES.saturating_sub(17 << 20) / 14;
        assert!(found.work.candidates >= fitting as u64, "{:?}", found.work);
    }

    #[test]
    fn a_batch_is_not_walked_before_its_checksum_fits() {
        // One whose inside contradicts itself counts as a candidate, so nobody looked there; and then it is no frame, sealed or not.
        let mut bytes = frame(SALT, 3, 3, Kind::Batch, &[0, 0, 0, 9, 1, 2, 3]);
        let sealed = search(&bytes, 1000, 0, 3);
        assert_eq!((sealed.work.candidates, sealed.frames), (1, 0));
        bytes[4] ^= 1;
        let found = search(&bytes, 1000, 0, 3);
        assert_eq!((found.work.candidates, found.frames), (1, 0));
    }

    #[test]
    fn frames_within_frames_are_confirmed_once() {
        // Somebody who knew the salt: each frame is the body of the one before it.
        let mut bytes = vec![1];
        for offset in (10..3000).rev() {
            bytes = frame(SALT, offset, offset, Kind::Message, &bytes);
        }
        let found = search(&bytes, 1 << 20, 0, 10);
        assert_eq!(found.frames, 1);
        assert_linear(&found, bytes.len());
    }

    #[test]
    fn a_frame_yields_the_salt_it_was_sealed_with() {
        assert_eq!(multiply(X8_INVERSE, Powers::X8), Powers::ONE);
        for salt in [Salt(0), Salt(1), SALT, Salt(u32::MAX)] {
            for size in [1, 2, 3, 4, 100, 4096, 70_001] {
                let mut bytes = Vec::new();
                record::encode(&mut bytes, salt, 1 << 40, 3, Kind::Message as u8, -5, |out| {
                    out.resize(out.len() + size, b'v')
                });
                assert_eq!(derive_salt(&bytes), Some(salt), "{size} bytes");
                assert_eq!(derive_salt(&bytes[..bytes.len() - 1]), None);
                let last = bytes.len() - 1;
                bytes[last] ^= 1;
                assert_ne!(derive_salt(&bytes), Some(salt));
            }
        }
        assert_eq!(derive_salt(&[0; 64]), None);
        assert_eq!(derive_salt(&[]), None);
    }
}
