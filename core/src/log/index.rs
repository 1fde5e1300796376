//! Where in a segment to begin looking for an offset or a time: one entry for every stride of frames, so that memory grows
//! with bytes and not with messages. Built while frames pass by; never evidence.
//!
//! The entries of the active segment stay in memory. Those of a closed one go into its [sidecar](super::sidecar), and what
//! stays is of one size, however large the log: its newest time, and the fingerprint by which its sidecar is known again.

use crate::record::{Frame, Kind};
use alloc::vec::Vec;

/// More entries than this are thinned out: every other one goes, and the stride doubles. So the index of a segment of any
/// size is at most 96 KiB.
pub const ENTRIES_MAX: usize = 4096;

/// What stays of all frames of a segment, by which its sidecar is known again: of offset, position and timestamp of each.
pub fn fingerprint(frames: impl IntoIterator<Item = (u64, u64, i64)>) -> u64 {
    frames.into_iter().fold(0, take_in)
}

fn take_in(fingerprint: u64, (offset, position, timestamp_ms): (u64, u64, i64)) -> u64 {
    [offset, position, timestamp_ms as u64]
        .into_iter()
        .fold(fingerprint, |print, value| (print ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29))
}

/// A frame of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The offset of the frame at `position`.
    pub offset: u64,
    /// Where that frame begins, in bytes from the segment's begin.
    pub position: u64,
    /// The latest timestamp of all frames of the segment before it, milliseconds; `i64::MIN` for the first.
    pub time_before_ms: i64,
}

impl Entry {
    /// The first frame of the segment at `base`.
    pub fn first(base: u64) -> Entry {
        Entry { offset: base, position: 0, time_before_ms: i64::MIN }
    }
}

/// The entries of one segment, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Places(pub(crate) Vec<Entry>);

impl Places {
    /// The last place at or before the frame that holds `offset`.
    pub(crate) fn locate(&self, offset: u64) -> Option<Entry> {
        self.last_where(|entry| entry.offset <= offset)
    }

    /// The last place before which every frame is older than `time_ms`.
    pub(crate) fn locate_time(&self, time_ms: i64) -> Option<Entry> {
        self.last_where(|entry| entry.time_before_ms < time_ms)
    }

    /// The last place at or before `position`.
    pub(crate) fn boundary_before(&self, position: u64) -> Option<Entry> {
        self.last_where(|entry| entry.position <= position)
    }

    fn last_where(&self, holds: impl Fn(&Entry) -> bool) -> Option<Entry> {
        self.0[..self.0.partition_point(holds)].last().copied()
    }
}

/// The sparse index of one segment.
#[derive(Clone, Debug)]
pub(crate) struct Index {
    /// At least this many bytes of frames stand between two entries.
    stride: u64,
    places: Places,
    time_max_ms: Option<i64>,
    fingerprint: u64,
}

impl Index {
    /// The index of an empty segment.
    pub(crate) fn new(stride: u64) -> Index {
        Index { stride, places: Places::default(), time_max_ms: None, fingerprint: 0 }
    }

    /// Takes note of a frame. Frames come in the order of their positions.
    pub(crate) fn note(&mut self, offset: u64, position: u64, timestamp_ms: i64) {
        let entries = &mut self.places.0;
        if entries.last().is_none_or(|last| position >= last.position + self.stride) {
            let time_before_ms = self.time_max_ms.unwrap_or(i64::MIN);
            entries.push(Entry { offset, position, time_before_ms });
        }
        if entries.len() > ENTRIES_MAX {
            let mut n = 0;
            entries.retain(|_| {
                n += 1;
                n % 2 == 1
            });
            self.stride *= 2;
        }
        self.time_max_ms = Some(self.time_max_ms.map_or(timestamp_ms, |max| max.max(timestamp_ms)));
        self.fingerprint = take_in(self.fingerprint, (offset, position, timestamp_ms));
    }

    /// Takes note of a frame that was read. Padding holds nothing that is looked for.
    pub(crate) fn note_frame(&mut self, position: u64, frame: &Frame<'_>) {
        if frame.kind != Kind::Padding {
            self.note(frame.offset, position, frame.time_ms().unwrap_or(i64::MIN));
        }
    }

    /// The entries, while the segment is active.
    pub(crate) fn places(&self) -> &Places {
        &self.places
    }

    /// The segment is closed: takes the entries out.
    pub(crate) fn close(&mut self) -> Places {
        core::mem::take(&mut self.places)
    }

    /// The latest timestamp in the segment.
    pub(crate) fn time_max_ms(&self) -> Option<i64> {
        self.time_max_ms
    }

    /// See [`fingerprint`].
    pub(crate) fn fingerprint(&self) -> u64 {
        self.fingerprint
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_one_entry_a_stride_and_finds_the_place_before() {
        let stride = 64 << 10;
        let mut index = Index::new(stride);
        for n in 0..10_000u64 {
            index.note(n, n * 157, 1000 + n as i64);
        }
        assert_eq!(index.places.0.len(), (9_999 * 157 / 65_536 + 1) as usize);
        for offset in [0, 1, 417, 418, 5_000, 9_999, 1 << 40] {
            let position = index.places().locate(offset).unwrap().position;
            assert!(position <= offset.saturating_mul(157));
            assert!(offset > 9_999 || offset * 157 - position <= stride + 157);
        }
        assert_eq!(index.places().locate_time(0).unwrap(), Entry::first(0));
        let entry = index.places().locate_time(6_000).unwrap();
        assert!(entry.offset <= 5_000 && entry.offset + 600 > 5_000);
        assert_eq!(index.time_max_ms(), Some(10_999));
        assert_eq!(index.places().boundary_before(157), Some(Entry::first(0)));
    }

    /// However many frames a segment has, its index is no larger, and still begins at the beginning.
    #[test]
    fn is_thinned_out_and_stays_right() {
        let mut index = Index::new(1);
        // The clock steps back in the middle.
        let time = |n: u64| if n < 60_000 { n as i64 } else { n as i64 - 30_000 };
        for n in 0..100_000u64 {
            index.note(n, n * 40, time(n));
        }
        assert!((ENTRIES_MAX / 2..=ENTRIES_MAX).contains(&index.places.0.len()), "{}", index.places.0.len());
        assert_eq!(index.places.0[0], Entry::first(0));
        for entry in &index.places.0[1..] {
            assert_eq!(entry.position, entry.offset * 40);
            assert_eq!(entry.time_before_ms, (0..entry.offset).map(time).max().unwrap());
        }
        for offset in [0, 1, 50_000, 99_999] {
            let entry = index.places().locate(offset).unwrap();
            assert!(entry.offset <= offset && offset - entry.offset < 64, "{offset}: {entry:?}");
        }
    }

    #[test]
    fn any_other_frame_makes_another_fingerprint() {
        let of = |frames: &[(u64, u64, i64)]| {
            let mut index = Index::new(1);
            frames.iter().for_each(|(offset, position, time)| index.note(*offset, *position, *time));
            assert_eq!(index.fingerprint(), fingerprint(frames.iter().copied()));
            index.fingerprint()
        };
        let frames = [(5, 0, 100), (6, 40, 90), (7, 80, 100)];
        for other in [
            &[(5, 0, 100), (6, 40, 91), (7, 80, 100)][..],
            &[(5, 0, 100), (6, 41, 90), (7, 80, 100)],
            &[(5, 0, 100), (7, 40, 90), (8, 80, 100)],
            &[(5, 0, 90), (6, 40, 100), (7, 80, 100)],
            &frames[..2],
        ] {
            assert_ne!(of(&frames), of(other));
        }
    }
}
