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

    #[test]
    fn what_is_left_at_the_end_of_a_file_is_named() {
        let mut bytes = Vec::new();
        record::encode(&mut bytes, Salt(7), 5, 5, record::Kind::Message as u8, 0, |out| out.push(b'x'));
        for (left, invalid) in [
            (0, None),
            (1, Some(Invalid::ShortHeader)),
            (15, Some(Invalid::ShortHeader)),
            (16, Some(Invalid::ShortPayload)),
            (29, Some(Invalid::ShortPayload)),
        ] {
            let mut scan = Scan::new(Salt(7), 0, 5);
            scan.push(&Bytes::copy_from_slice(&bytes[..left]));
            let Step::NeedBytes(needed) = scan.step() else { panic!("a whole frame of {left} bytes") };
            assert_eq!(scan.at_end(needed), invalid, "{left}");
        }
    }
}
