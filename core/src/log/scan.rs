//! Walks the frames of a segment, from bytes that come in pieces. Recovery, `verify`, `dump` and readers all walk
//! with this, so there is one answer to what a segment holds.

use crate::record::{self, Decoded, Frame, Invalid, Salt};
use alloc::vec::Vec;
use bytes::Bytes;

/// What stands at the place that a [`Scan`] has come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step<'a> {
    /// A valid frame with the expected offset; the scan has moved behind it.
    Frame {
        /// Where it begins.
        position: u64,
        /// The frame.
        frame: Frame<'a>,
    },
    /// More bytes are needed, this many from [`Scan::position`] on.
    NeedBytes(usize),
    /// No valid frame with the expected offset; the scan stays here.
    Invalid(Invalid),
}

/// A walk over frames with dense offsets.
#[derive(Clone, Debug)]
pub struct Scan {
    salt: Salt,
    position: u64,
    expected: u64,
    buffer: Vec<u8>,
    consumed: usize,
    #[cfg(feature = "planted")]
    pub(crate) trusting: bool,
}

impl Scan {
    /// Begins at `position`, where a frame with offset `expected` should stand.
    pub fn new(salt: Salt, position: u64, expected: u64) -> Scan {
        Scan {
            salt,
            position,
            expected,
            buffer: Vec::new(),
            consumed: 0,
            #[cfg(feature = "planted")]
            trusting: false,
        }
    }

    /// Appends the bytes that follow those pushed before.
    pub fn push(&mut self, bytes: &Bytes) {
        // What is left over is less than one frame, so each byte is moved at most once more.
        self.buffer.drain(..self.consumed);
        self.consumed = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// Where the next frame should begin.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Which offset it should have.
    pub fn expected(&self) -> u64 {
        self.expected
    }

    /// What was pushed and not walked over, from [`Scan::position`] on.
    pub fn rest(&self) -> &[u8] {
        &self.buffer[self.consumed..]
    }

    /// Looks at the next frame.
    pub fn step(&mut self) -> Step<'_> {
        let decoded = record::decode(&self.buffer[self.consumed..], self.salt);
        #[cfg(feature = "planted")]
        let decoded =
            if self.trusting { record::decode_trusting(&self.buffer[self.consumed..], decoded) } else { decoded };
        match decoded {
            Decoded::NeedBytes(n) => Step::NeedBytes(n),
            Decoded::Invalid(invalid) => Step::Invalid(invalid),
            Decoded::Frame(frame) if frame.offset != self.expected => Step::Invalid(Invalid::OffsetMismatch),
            Decoded::Frame(frame) => {
                let position = self.position;
                self.position += frame.size() as u64;
                self.consumed += frame.size();
                self.expected += frame.count;
                Step::Frame { position, frame }
            }
        }
    }

    /// What a [`Step::NeedBytes`] means when the file has no more: `None` where nothing is left.
    pub fn at_end(&self, needed: usize) -> Option<Invalid> {
        match self.rest().len() {
            0 => None,
            _ if needed <= record::HEADER_BYTES => Some(Invalid::ShortHeader),
            _ => Some(Invalid::ShortPayload),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Kind;
    use alloc::vec;

    const SALT: Salt = Salt(7);

    /// Frames of 30 bytes with these offsets.
    fn frames(offsets: &[u64]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for offset in offsets {
            record::encode(&mut bytes, SALT, *offset, 0, Kind::Message as u8, 0, |out| out.push(b'x'));
        }
        bytes
    }

    #[test]
    fn frames_come_with_their_places_in_whatever_pieces() {
        let bytes = frames(&[5, 6, 7]);
        for piece in [1, 16, 29, 30, 31, 90] {
            let mut scan = Scan::new(SALT, 1000, 5);
            let mut places = Vec::new();
            for bytes in bytes.chunks(piece) {
                scan.push(&Bytes::copy_from_slice(bytes));
                while let Step::Frame { position, frame } = scan.step() {
                    places.push((frame.offset, position));
                }
            }
            assert_eq!(places, [(5, 1000), (6, 1030), (7, 1060)], "{piece}");
            assert_eq!((scan.position(), scan.expected(), scan.rest()), (1090, 8, &[][..]));
        }
    }

    #[test]
    fn a_frame_of_another_offset_stops_the_scan_before_it() {
        for other in [5, 7] {
            let mut scan = Scan::new(SALT, 0, 5);
            scan.push(&Bytes::from(frames(&[5, other])));
            assert!(matches!(scan.step(), Step::Frame { .. }));
            for _ in 0..2 {
                assert_eq!(scan.step(), Step::Invalid(Invalid::OffsetMismatch));
                assert_eq!((scan.position(), scan.expected(), scan.rest()), (30, 6, &frames(&[other])[..]));
            }
        }
    }

    #[test]
    fn what_is_missing_at_the_end_is_told() {
        let whole = frames(&[5]);
        for (left, needed, told) in [
            (0, 16, None),
            (1, 16, Some(Invalid::ShortHeader)),
            (15, 16, Some(Invalid::ShortHeader)),
            (16, 30, Some(Invalid::ShortPayload)),
            (29, 30, Some(Invalid::ShortPayload)),
        ] {
            let mut scan = Scan::new(SALT, 0, 5);
            scan.push(&Bytes::copy_from_slice(&whole[..left]));
            assert_eq!(scan.step(), Step::NeedBytes(needed));
            assert_eq!(scan.at_end(needed), told, "{left}");
        }
        let mut scan = Scan::new(SALT, 0, 5);
        scan.push(&Bytes::from(vec![0; 16]));
        assert_eq!(scan.step(), Step::Invalid(Invalid::BadLength));
    }
}
