//! Where in a segment to begin looking for an offset or a time: one entry for every 64 KiB of frames, so that memory
//! grows with bytes / 64 Ki and not with messages. Held in memory, built while frames pass by; never evidence.

use alloc::vec::Vec;

/// At least this many bytes of frames stand between two entries.
pub(crate) const STRIDE_BYTES: u64 = 64 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The offset of the frame at `position`.
    pub(crate) offset: u64,
    /// Where that frame begins.
    pub(crate) position: u64,
    /// The latest timestamp of all frames of the segment before it.
    pub(crate) time_before_ms: i64,
}

/// The sparse index of one segment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    entries: Vec<Entry>,
    time_max_ms: Option<i64>,
}

impl Index {
    /// Takes note of a frame. Frames come in the order of their positions.
    pub(crate) fn note(&mut self, offset: u64, position: u64, timestamp_ms: i64) {
        if self.entries.last().is_none_or(|last| position >= last.position + STRIDE_BYTES) {
            let time_before_ms = self.time_max_ms.unwrap_or(i64::MIN);
            self.entries.push(Entry { offset, position, time_before_ms });
        }
        self.time_max_ms = Some(self.time_max_ms.map_or(timestamp_ms, |max| max.max(timestamp_ms)));
    }

    /// The last place at or before the frame that holds `offset`.
    pub(crate) fn locate(&self, offset: u64) -> u64 {
        let after = self.entries.partition_point(|entry| entry.offset <= offset);
        after.checked_sub(1).map_or(0, |at| self.entries[at].position)
    }

    /// The last place before which every frame is older than `time_ms`, with its offset.
    pub(crate) fn locate_time(&self, time_ms: i64) -> Option<Entry> {
        let after = self.entries.partition_point(|entry| entry.time_before_ms < time_ms);
        after.checked_sub(1).map(|at| self.entries[at])
    }

    /// The last noted frame boundary at or before `position`.
    pub(crate) fn boundary_before(&self, position: u64) -> u64 {
        let after = self.entries.partition_point(|entry| entry.position <= position);
        after.checked_sub(1).map_or(0, |at| self.entries[at].position)
    }

    /// The latest timestamp in the segment.
    pub(crate) fn time_max_ms(&self) -> Option<i64> {
        self.time_max_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_one_entry_a_stride_and_finds_the_place_before() {
        let mut index = Index::default();
        for n in 0..10_000u64 {
            index.note(n, n * 157, 1000 + n as i64);
        }
        assert_eq!(index.entries.len(), (9_999 * 157 / 65_536 + 1) as usize);
        for offset in [0, 1, 417, 418, 5_000, 9_999, 1 << 40] {
            let position = index.locate(offset);
            assert!(position <= offset.saturating_mul(157));
            assert!(offset > 9_999 || offset * 157 - position <= STRIDE_BYTES + 157);
        }
        assert_eq!(index.locate_time(0).unwrap().offset, 0);
        let entry = index.locate_time(6_000).unwrap();
        assert!(entry.offset <= 5_000 && entry.offset + 600 > 5_000);
        assert_eq!(index.time_max_ms(), Some(10_999));
        assert_eq!(index.boundary_before(157), 0);
    }
}
