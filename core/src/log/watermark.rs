//! The watermark file: the persisted Plimsoll line, in two slots with fixed roles.
//!
//! - The **running** slot is overwritten after each completed force, without being forced itself. After a process
//!   crash it is exact; a power loss may leave it a little low, or torn.
//! - The **anchored** slot is written, and forced, only after the running slot has been forced with the same values.
//!   So at every moment one of the two is whole on the platter. Two unreadable slots are damage, not a crash.
//!
//! A slot is only ever a lower bound, so an old one is safe. Bytes are described in docs/file-format.md.

use crate::record::LogId;
use alloc::vec;
use alloc::vec::Vec;
use core::array;

/// Where the running slot begins.
pub const RUNNING_POSITION: u64 = 0;
/// Where the anchored slot begins: in a sector of its own, so that tearing one slot leaves the other alone.
pub const ANCHORED_POSITION: u64 = 4096;
/// A slot's size: magic u32, log id 16 bytes, sequence u64, start u64, durable u64, flags u8, checksum u32.
pub const SLOT_BYTES: usize = CHECKSUM_AT + 4;
/// The size of the whole file.
pub const FILE_BYTES: usize = ANCHORED_POSITION as usize + SLOT_BYTES;

/// The sequence of both slots until the topic's own name is forced: only then is the making of a topic finished.
pub const SEQUENCE_UNFINISHED: u64 = 1;

const MAGIC: [u8; 4] = *b"PLWM";
const CHECKSUM_AT: usize = 4 + 16 + 8 + 8 + 8 + 1;
const FLAG_CLEAN: u8 = 0x01;

/// The values that the two slots hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot {
    /// The log that the file belongs to. The third place where it stands, after `topic.toml` and the salts.
    pub log_id: LogId,
    /// Grows with every write of a slot; the higher one counts.
    pub sequence: u64,
    /// The first offset that retention has not removed.
    pub start: u64,
    /// The Plimsoll line: everything below has been forced.
    pub durable: u64,
    /// Set by an orderly shutdown alone, after it has forced everything, and cleared by the next write.
    ///
    /// Nothing else tells a clean stop. A line that equals the log's end does not: a roll whose directory force failed
    /// leaves just that, and the new segment may not survive a power loss (crash story: the soft directory force).
    pub clean: bool,
}

/// The bytes of a slot.
pub fn encode(slot: &Slot) -> [u8; SLOT_BYTES] {
    let mut out = Vec::with_capacity(SLOT_BYTES);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&slot.log_id);
    out.extend_from_slice(&slot.sequence.to_be_bytes());
    out.extend_from_slice(&slot.start.to_be_bytes());
    out.extend_from_slice(&slot.durable.to_be_bytes());
    out.push(if slot.clean { FLAG_CLEAN } else { 0 });
    out.extend_from_slice(&crc32c::crc32c(&out).to_be_bytes());
    array::from_fn(|i| out[i])
}

/// The slot at the beginning of `bytes`, or `None` where it is short, torn, of another kind, or has a flag that this
/// version doesn't know.
pub fn decode(bytes: &[u8]) -> Option<Slot> {
    let bytes: &[u8; SLOT_BYTES] = bytes.first_chunk()?;
    let (covered, checksum) = bytes.split_at(CHECKSUM_AT);
    let flags = covered[CHECKSUM_AT - 1];
    if covered[..4] != MAGIC || crc32c::crc32c(covered).to_be_bytes() != checksum || flags & !FLAG_CLEAN != 0 {
        return None;
    }
    let u64_at = |at: usize| u64::from_be_bytes(array::from_fn(|i| covered[at + i]));
    Some(Slot {
        log_id: array::from_fn(|i| covered[4 + i]),
        sequence: u64_at(20),
        start: u64_at(28),
        durable: u64_at(36),
        clean: flags & FLAG_CLEAN != 0,
    })
}

/// A new file: both slots are valid from its creation on.
pub fn new_file(slot: &Slot) -> Vec<u8> {
    let mut file = vec![0; FILE_BYTES];
    for position in [RUNNING_POSITION, ANCHORED_POSITION] {
        file[position as usize..][..SLOT_BYTES].copy_from_slice(&encode(slot));
    }
    file
}

/// What a watermark file says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watermark {
    /// The running slot, if it is valid.
    pub running: Option<Slot>,
    /// The anchored slot, if it is valid.
    pub anchored: Option<Slot>,
}

impl Watermark {
    /// Reads both slots from the file's bytes, of which there may be too few.
    pub fn read(file: &[u8]) -> Watermark {
        let at = |position: u64| file.get(position as usize..).and_then(decode);
        Watermark { running: at(RUNNING_POSITION), anchored: at(ANCHORED_POSITION) }
    }

    /// Whether both slots are whole and say different starts: a start was being recorded, or one of them is older than it should be.
    pub fn starts_differ(&self) -> bool {
        matches!((self.running, self.anchored), (Some(running), Some(anchored)) if running.start != anchored.start)
    }

    /// Whether both slots are whole and the same: the file has taken the place of another one, and nothing was written to it since.
    pub fn is_renewed(&self) -> bool {
        matches!((self.running, self.anchored), (Some(running), Some(anchored)) if running.sequence == anchored.sequence)
    }

    /// The slot that counts: the valid one with the higher sequence, the running one when they are equal.
    pub fn current(&self) -> Option<Slot> {
        match (self.running, self.anchored) {
            (Some(running), Some(anchored)) if anchored.sequence > running.sequence => Some(anchored),
            (running, anchored) => running.or(anchored),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SLOT: Slot = Slot { log_id: *b"0123456789abcdef", sequence: 7, start: 0x0102, durable: 0x0304, clean: true };

    fn some_slot() -> impl Strategy<Value = Slot> {
        any::<(LogId, u64, u64, u64, bool)>().prop_map(|(log_id, sequence, start, durable, clean)| Slot {
            log_id,
            sequence,
            start,
            durable,
            clean,
        })
    }

    #[test]
    fn the_bytes_are_as_documented() {
        let expected = [
            &b"PLWM"[..],
            b"0123456789abcdef",
            &[0, 0, 0, 0, 0, 0, 0, 7],
            &[0, 0, 0, 0, 0, 0, 1, 2],
            &[0, 0, 0, 0, 0, 0, 3, 4],
            &[1],
            &[0x8a, 0x01, 0x0a, 0x64],
        ];
        assert_eq!(encode(&SLOT).to_vec(), expected.concat());
        let file = new_file(&SLOT);
        assert_eq!(file.len(), 4096 + 49);
        assert_eq!(file[..49], encode(&SLOT));
        assert_eq!(file[4096..], encode(&SLOT));
        assert!(file[49..4096].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn an_unknown_flag_is_refused() {
        for flag in 1..8 {
            let mut bytes = encode(&SLOT);
            bytes[44] |= 1 << flag;
            let checksum = crc32c::crc32c(&bytes[..45]);
            bytes[45..].copy_from_slice(&checksum.to_be_bytes());
            assert_eq!(decode(&bytes), None, "{flag}");
        }
    }

    #[test]
    fn the_higher_valid_sequence_counts() {
        let slot = |sequence, durable| Some(Slot { sequence, durable, ..SLOT });
        let current = |running, anchored| Watermark { running, anchored }.current();
        assert_eq!(current(slot(2, 10), slot(1, 9)), slot(2, 10));
        assert_eq!(current(slot(1, 9), slot(2, 10)), slot(2, 10));
        assert_eq!(current(slot(2, 10), slot(2, 11)), slot(2, 10));
        assert_eq!(current(None, slot(1, 9)), slot(1, 9));
        assert_eq!(current(slot(1, 9), None), slot(1, 9));
        assert_eq!(current(None, None), None);
    }

    #[test]
    fn a_short_file_has_the_slots_that_it_has() {
        let file = new_file(&SLOT);
        let slots = |len: usize| {
            let Watermark { running, anchored } = Watermark::read(&file[..len]);
            (running.is_some(), anchored.is_some())
        };
        assert_eq!(slots(0), (false, false));
        assert_eq!(slots(SLOT_BYTES - 1), (false, false));
        assert_eq!(slots(SLOT_BYTES), (true, false));
        assert_eq!(slots(4096), (true, false));
        assert_eq!(slots(FILE_BYTES - 1), (true, false));
        assert_eq!(slots(FILE_BYTES), (true, true));
    }

    proptest! {
        #[test]
        fn every_slot_comes_back(slot in some_slot()) {
            prop_assert_eq!(decode(&encode(&slot)), Some(slot));
            let both = Watermark::read(&new_file(&slot));
            prop_assert_eq!(both, Watermark { running: Some(slot), anchored: Some(slot) });
        }

        #[test]
        fn no_damage_up_to_four_bytes_is_taken(
            slot in some_slot(), at in 0..SLOT_BYTES, with in prop::array::uniform4(any::<u8>()),
        ) {
            let good = encode(&slot);
            let mut bytes = good;
            for (byte, with) in bytes[at..].iter_mut().zip(with) {
                *byte ^= with;
            }
            prop_assert_eq!(decode(&bytes), (bytes == good).then_some(slot));
        }

        #[test]
        fn a_torn_slot_is_old_or_new_or_none(old in some_slot(), new in some_slot(), cut in 0..=SLOT_BYTES) {
            let mut bytes = encode(&old);
            bytes[..cut].copy_from_slice(&encode(&new)[..cut]);
            let read = decode(&bytes);
            prop_assert!(read.is_none() || read == Some(old) || read == Some(new));
        }

        #[test]
        fn no_bytes_panic(file in prop::collection::vec(any::<u8>(), 0..5000)) {
            Watermark::read(&file);
        }
    }
}
