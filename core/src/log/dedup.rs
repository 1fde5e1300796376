//! Producer dedup (P16): which publishes of a producer have been stored, so that a repeated one answers with the first offset and
//! stores nothing.
//!
//! - A producer names itself by a number and each of its publishes by a sequence. What is remembered follows from the log alone: of
//!   each producer the last so many publishes that have an id, in the order of their offsets, whatever their sequences are. So a
//!   start that reads the log comes to the same as the process before it, and a message that a crash took is not remembered.
//! - Of producers, too, only so many are remembered (P13): the one whose last publish is the oldest goes.
//! - How old a publish may be is asked when it is looked for. The time is the broker's wall clock's, as in the frame.
//! - What is removed from the log's beginning is written to a file before the new start is recorded ([`Dedup::encode_below`]), and
//!   read again at the next start. A crash in between leaves a file that says what the log says, too: the log goes before it.
//!
//! A publish that is older than what is remembered is stored as a new one: to refuse it would take away messages from a producer that
//! begins anew with its sequences, and to say `OK` would lose them.

use super::{Topic, Trouble, create};
use crate::config::Config;
use crate::io::Io;
use crate::layout;
use crate::message;
use crate::record::{Frame, LogId};
use crate::settings::{Policy, Setting};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::rc::Rc;
use alloc::vec::Vec;
use bytes::Bytes;
use core::cell::RefCell;

/// Names a publish: the producer, and which of its publishes.
pub(crate) type Id = (u64, u32);

/// Where a publish with an id was stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct First {
    /// Its offset; of a batch that of its first message.
    pub(crate) offset: u64,
    /// How many offsets it took.
    pub(crate) count: u32,
    /// When it was accepted.
    pub(crate) time_ms: i64,
}

/// How much is remembered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    /// Publishes of each producer. 0: none.
    pub(crate) sequences: u64,
    /// The most producers.
    pub(crate) producers: u64,
}

impl Window {
    /// What holds for a topic.
    pub(crate) fn new(policy: &Policy, config: &Config) -> Window {
        Window { sequences: policy.get(Setting::DedupSequences), producers: u64::from(config.producers_max) }
    }
}

/// To be called when messages below `end` are about to go, because the topic's start moves or a segment is packed: what is known of them is
/// stored in the topic's file, and forced. On `Full` nothing is harmed, and the start stays.
pub(crate) async fn before_start_moves(io: &Io, topic: &Rc<RefCell<Topic>>, end: u64) -> Result<(), Trouble> {
    let (dir, file) = {
        let topic = topic.borrow();
        // The start may be on its way already to where the last file has reached.
        let end = end.max(topic.packed_below()).max(topic.retention.prepared());
        let age_ms_max = topic.policy.bound(Setting::DedupMs);
        (topic.dir.clone(), topic.dedup.encode_below(end, &topic.toml.log_id, io.now().wall_ms, age_ms_max))
    };
    let Some(file) = file else { return Ok(()) };
    // Also when it would say the same: the name of the last one may be in the page cache alone (crash story: *ACKED from the cache*).
    create::replace(io, &dir, &layout::producers(&dir), Bytes::from(file)).await?;
    topic.borrow_mut().dedup.is_stored = true;
    Ok(())
}

/// What one topic remembers of its producers.
#[derive(Debug, Default)]
pub(crate) struct Dedup {
    producers: BTreeMap<u64, Producer>,
    /// The producers by their last publish's offset.
    by_last: BTreeMap<u64, u64>,
    /// Whether the topic's file holds anything.
    pub(crate) is_stored: bool,
}

#[derive(Debug, Default)]
struct Producer {
    firsts: BTreeMap<u32, First>,
    /// Sequences and offsets in the order of the offsets. One that was stored again stands here twice.
    order: VecDeque<(u32, u64)>,
}

impl Dedup {
    /// Where the publish was stored, if that is remembered and no older than `age_ms_max`.
    pub(crate) fn find(&self, (producer, sequence): Id, now_ms: i64, age_ms_max: Option<u64>) -> Option<First> {
        let first = *self.producers.get(&producer)?.firsts.get(&sequence)?;
        // Where the clock was set back the message seems to come from the future: it is young.
        let age_ms = u64::try_from(now_ms.saturating_sub(first.time_ms)).unwrap_or(0);
        age_ms_max.is_none_or(|max| age_ms <= max).then_some(first)
    }

    /// Takes note of a publish that has been stored. They come in the order of their offsets.
    pub(crate) fn note(&mut self, (producer, sequence): Id, first: First, window: Window) {
        if window.sequences == 0 {
            return;
        }
        let entry = self.producers.entry(producer).or_default();
        if let Some((_, last)) = entry.order.back() {
            self.by_last.remove(last);
        }
        self.by_last.insert(first.offset, producer);
        entry.firsts.insert(sequence, first);
        entry.order.push_back((sequence, first.offset));
        while entry.order.len() as u64 > window.sequences {
            let (sequence, offset) = entry.order.pop_front().expect("just counted");
            if entry.firsts.get(&sequence).is_some_and(|first| first.offset == offset) {
                entry.firsts.remove(&sequence);
            }
        }
        while self.producers.len() as u64 > window.producers {
            let (_, oldest) = self.by_last.pop_first().expect("each producer has a last publish");
            self.producers.remove(&oldest);
        }
    }

    /// The same for a frame that recovery meets in the log.
    pub(crate) fn note_frame(&mut self, frame: &Frame<'_>, window: Window) {
        if let Some(id) = message::producer_of(frame)
            && let Some(time_ms) = frame.time_ms()
        {
            self.note(id, First { offset: frame.offset, count: frame.count as u32, time_ms }, window);
        }
    }

    /// What is remembered of messages below `end`, in the order of their offsets.
    fn below(&self, end: u64) -> Vec<(Id, First)> {
        let mut found: Vec<(Id, First)> = Vec::new();
        for (producer, entry) in &self.producers {
            let firsts = entry.firsts.iter().filter(|(_, first)| first.offset < end);
            found.extend(firsts.map(|(sequence, first)| ((*producer, *sequence), *first)));
        }
        found.sort_unstable_by_key(|(_, first)| first.offset);
        found
    }

    /// The topic's file: what is remembered of the messages below `end`, but for those that are too old to be found by now.
    /// `None`: there is nothing to be written, and nothing in the file that would have to go.
    pub(crate) fn encode_below(
        &self,
        end: u64,
        log_id: &LogId,
        now_ms: i64,
        age_ms_max: Option<u64>,
    ) -> Option<Vec<u8>> {
        let mut entries = self.below(end);
        entries.retain(|(id, _)| self.find(*id, now_ms, age_ms_max).is_some());
        if entries.is_empty() && !self.is_stored {
            return None;
        }
        let mut out = Vec::with_capacity(HEAD_BYTES + entries.len() * ENTRY_BYTES + 4);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(log_id);
        out.extend_from_slice(&(entries.len() as u32).to_be_bytes());
        for ((producer, sequence), First { offset, count, time_ms }) in entries {
            out.extend_from_slice(&producer.to_be_bytes());
            out.extend_from_slice(&sequence.to_be_bytes());
            out.extend_from_slice(&offset.to_be_bytes());
            out.extend_from_slice(&count.to_be_bytes());
            out.extend_from_slice(&time_ms.to_be_bytes());
        }
        let checksum = crc32c::crc32c(&out);
        out.extend_from_slice(&checksum.to_be_bytes());
        Some(out)
    }
}

const MAGIC: [u8; 4] = *b"PLPR";
const HEAD_BYTES: usize = 4 + 16 + 4;
const ENTRY_BYTES: usize = 8 + 4 + 8 + 4 + 8;

/// Reads the topic's file, which [`Dedup::encode_below`] has made: publishes in the order of their offsets. `None` where it is none,
/// or that of another log.
pub(crate) fn parse(file: &[u8], log_id: &LogId) -> Option<Vec<(Id, First)>> {
    let (body, checksum) = file.split_last_chunk::<4>()?;
    let (head, entries) = body.split_at_checked(HEAD_BYTES)?;
    let count = u32::from_be_bytes(*head.last_chunk()?) as usize;
    let is_ours = head.starts_with(&MAGIC) && head[4..20] == log_id[..];
    if !is_ours || entries.len() != count.checked_mul(ENTRY_BYTES)? || crc32c::crc32c(body).to_be_bytes() != *checksum {
        return None;
    }
    let (entries, _) = entries.as_chunks::<ENTRY_BYTES>();
    let entries: Option<Vec<(Id, First)>> = entries.iter().map(read_entry).collect();
    entries.filter(|entries| {
        entries
            .is_sorted_by(|(_, a), (_, b)| a.offset.checked_add(u64::from(a.count)).is_some_and(|end| end <= b.offset))
    })
}

fn read_entry(entry: &[u8; ENTRY_BYTES]) -> Option<(Id, First)> {
    let (producer, rest) = entry.split_first_chunk()?;
    let (sequence, rest) = rest.split_first_chunk()?;
    let (offset, rest) = rest.split_first_chunk()?;
    let (count, rest) = rest.split_first_chunk()?;
    let time_ms = i64::from_be_bytes(*rest.first_chunk()?);
    let first = First { offset: u64::from_be_bytes(*offset), count: u32::from_be_bytes(*count), time_ms };
    (first.count > 0).then_some(((u64::from_be_bytes(*producer), u32::from_be_bytes(*sequence)), first))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    const WIDE: Window = Window { sequences: 100, producers: 100 };
    const LOG_ID: LogId = [7; 16];

    fn first(offset: u64) -> First {
        First { offset, count: 1, time_ms: 1000 + offset as i64 }
    }

    fn noted(ids: &[Id], window: Window) -> Dedup {
        let mut dedup = Dedup::default();
        ids.iter().zip(0..).for_each(|(id, offset)| dedup.note(*id, first(offset), window));
        dedup
    }

    #[test]
    fn p16_the_last_publishes_of_the_last_producers_are_known() {
        let window = Window { sequences: 2, producers: 2 };
        let dedup = noted(&[(1, 5), (1, 3), (2, 5), (1, 9)], window);
        let known = |dedup: &Dedup, id| dedup.find(id, 1000, None).map(|first| first.offset);
        // By the order in which they came, and not by number.
        assert_eq!([(1, 5), (1, 3), (1, 9), (2, 5)].map(|id| known(&dedup, id)), [None, Some(1), Some(3), Some(2)]);
        // The third producer takes the place of the one that has been silent the longest.
        let dedup = noted(&[(1, 5), (1, 3), (2, 5), (1, 9), (3, 0)], window);
        assert_eq!([(1, 9), (2, 5), (3, 0)].map(|id| known(&dedup, id)), [Some(3), None, Some(4)]);
        assert!(known(&noted(&[(1, 1)], Window { sequences: 0, ..WIDE }), (1, 1)).is_none());
    }

    #[test]
    fn a_publish_is_known_until_it_is_too_old_and_may_be_stored_again() {
        let mut dedup = noted(&[(1, 1)], WIDE);
        assert!(dedup.find((1, 1), 1500, Some(500)).is_some());
        assert!(dedup.find((1, 1), 1501, Some(500)).is_none());
        assert!(dedup.find((1, 1), i64::MAX, None).is_some());
        assert!(dedup.find((1, 1), i64::MIN, Some(0)).is_some(), "the clock was set back");
        dedup.note((1, 1), First { offset: 9, count: 3, time_ms: 2000 }, Window { sequences: 2, ..WIDE });
        dedup.note((1, 2), first(12), Window { sequences: 2, ..WIDE });
        // The place of the first goes, and not the second's.
        assert_eq!(dedup.find((1, 1), 2000, Some(5)), Some(First { offset: 9, count: 3, time_ms: 2000 }));
    }

    #[test]
    fn the_file_holds_what_goes_and_is_refused_where_it_is_hurt() {
        let dedup = noted(&[(1, 1), (2, 1), (1, 2), (2, 2)], WIDE);
        let file = dedup.encode_below(3, &LOG_ID, 1000, None).expect("a file");
        let expected = vec![((1, 1), first(0)), ((2, 1), first(1)), ((1, 2), first(2))];
        assert_eq!(parse(&file, &LOG_ID), Some(expected));
        assert_eq!(parse(&file, &[8; 16]), None, "of another log");
        for at in 0..file.len() {
            assert_eq!(parse(&file[..at], &LOG_ID), None, "cut at {at}");
            let mut flipped = file.clone();
            flipped[at] ^= 1;
            assert_eq!(parse(&flipped, &LOG_ID), None, "byte {at}");
        }
        // Too old by now: only what is in a file already has to go.
        assert_eq!(dedup.encode_below(3, &LOG_ID, 5000, Some(10)), None);
        let stored = Dedup { is_stored: true, ..noted(&[(1, 1)], WIDE) };
        let empty = stored.encode_below(3, &LOG_ID, 5000, Some(10)).expect("an empty file");
        assert_eq!(parse(&empty, &LOG_ID), Some(vec![]));
        assert_eq!(Dedup::default().encode_below(u64::MAX, &LOG_ID, 0, None), None);
    }

    proptest! {
        /// A start reads the file and then the log from some offset on: it comes to the same as the process before it.
        #[test]
        fn what_was_known_is_known_after_a_restart(
            ids in prop::collection::vec((0u64..5, 0u32..6), 1..60), removed in 0usize..60,
            sequences in 0u64..6, producers in 1u64..5,
        ) {
            let window = Window { sequences, producers };
            let before = noted(&ids, window);
            let removed = removed.min(ids.len());
            let mut after = Dedup::default();
            let file = before.encode_below(removed as u64, &LOG_ID, 0, None);
            for (id, first) in file.map(|file| parse(&file, &LOG_ID).expect("a file")).into_iter().flatten() {
                after.note(id, first, window);
            }
            ids.iter().zip(0..).skip(removed).for_each(|(id, offset)| after.note(*id, first(offset), window));
            for id in &ids {
                prop_assert_eq!(after.find(*id, 0, None), before.find(*id, 0, None), "{:?}", id);
            }
            prop_assert!(before.producers.len() as u64 <= producers);
            prop_assert!(before.producers.values().all(|producer| producer.order.len() as u64 <= sequences));
            prop_assert_eq!(before.by_last.len(), before.producers.len());
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(mut bytes: Vec<u8>, mended: bool) {
            if mended && bytes.len() >= HEAD_BYTES {
                bytes[..4].copy_from_slice(&MAGIC);
                bytes[4..20].copy_from_slice(&LOG_ID);
                let checksum = crc32c::crc32c(&bytes);
                bytes.extend_from_slice(&checksum.to_be_bytes());
            }
            let _ = parse(&bytes, &LOG_ID);
        }
    }
}
