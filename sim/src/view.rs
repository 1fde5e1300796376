//! Where a topic's log ends on the platter, and in the page cache, read from the simulated disk itself.
//!
//! Both views are read with core's frame decoder and nothing else of core: an answer is held against what is really
//! there, not against what the broker believes.

use crate::disk::SimDisk;
use plimsoll_core::log::topic_file::TopicToml;
use plimsoll_core::log::watermark::{self, Watermark};
use plimsoll_core::record::{self, Decoded, Frame, Kind, LogId, Salt};
use std::collections::{BTreeMap, BTreeSet};

const READ_BYTES: u64 = 8 << 10;

/// Which of the two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Depth {
    /// What the process sees.
    Cache,
    /// What no power loss can take.
    Platter,
}

impl Depth {
    /// At most so many bytes of a file. `None`: there is none of this name.
    fn file(self, disk: &SimDisk, path: &str, position: u64, length: u64) -> Option<Vec<u8>> {
        match self {
            Depth::Cache => disk.cached_file(path, position, length),
            Depth::Platter => disk.forced_file(path, position, length),
        }
    }
}

/// The frames that stand one behind the other, up to the first that is none, each with its position.
fn frames(bytes: &[u8], salt: Salt) -> impl Iterator<Item = (usize, Frame<'_>)> {
    let mut end = 0;
    std::iter::from_fn(move || {
        let Decoded::Frame(frame) = record::decode(&bytes[end..], salt) else { return None };
        let position = end;
        end += frame.size();
        Some((position, frame))
    })
}

/// A reading of one topic's log that goes on where it stopped.
#[derive(Clone, Debug)]
pub(crate) struct LogView {
    depth: Depth,
    dir: String,
    log_id: Option<LogId>,
    /// The segment that is being read.
    base: Option<u64>,
    position: u64,
    end: u64,
}

impl LogView {
    pub(crate) fn new(depth: Depth, topic: &str) -> LogView {
        let dir = format!("topics/{topic}");
        LogView { depth, dir, log_id: None, base: None, position: 0, end: 0 }
    }

    /// The offset behind the last whole frame without a hole before it, if it is below `wanted` read anew.
    pub(crate) fn end(&mut self, disk: &SimDisk, wanted: u64) -> u64 {
        while self.end < wanted && self.advance(disk) {}
        self.end
    }

    /// The salt of the newest segment, which no client may learn.
    pub(crate) fn active_salt(&mut self, disk: &SimDisk) -> Option<Salt> {
        let newest = self.bases(disk).into_iter().max()?;
        Some(Salt::new(&self.log_id(disk)?, newest))
    }

    /// Every message without a hole before it, with its offset.
    pub(crate) fn messages(&mut self, disk: &SimDisk) -> Vec<(u64, Vec<u8>)> {
        let mut messages = Vec::new();
        let Some(log_id) = self.log_id(disk) else { return messages };
        let mut bases = self.bases(disk);
        bases.sort_unstable();
        // A name from before the start may come back, and is nobody's.
        let first = self.first(disk).unwrap_or(0);
        let mut expected = first;
        for base in bases.into_iter().filter(|base| *base >= first) {
            // What lies behind a gap is no log; what stands behind the beginning of the next segment is not this one's.
            if base != expected {
                messages.retain(|(offset, _)| *offset < base);
            }
            if base > expected {
                break;
            }
            expected = base;
            for (_, frame) in frames(&self.segment(disk, base), Salt::new(&log_id, base)) {
                if frame.offset != expected {
                    break;
                }
                for (offset, message) in plimsoll_core::message::messages(&frame).into_iter().flatten() {
                    messages.push((offset, message.value.to_vec()));
                }
                expected += frame.count;
            }
        }
        messages
    }

    /// The offsets in place of which a segment has a run that tells of their removal.
    pub(crate) fn removed(&mut self, disk: &SimDisk, base: u64) -> Vec<u64> {
        let Some(log_id) = self.log_id(disk) else { return Vec::new() };
        let bytes = self.segment(disk, base);
        let runs = frames(&bytes, Salt::new(&log_id, base)).filter(|(_, frame)| frame.kind == Kind::RemovedRun);
        runs.flat_map(|(_, frame)| frame.offset..frame.offset + frame.count).collect()
    }

    /// The latest timestamp of a segment's messages.
    pub(crate) fn newest_ms(&mut self, disk: &SimDisk, base: u64) -> Option<i64> {
        let salt = Salt::new(&self.log_id(disk)?, base);
        frames(&self.segment(disk, base), salt).filter_map(|(_, frame)| frame.time_ms()).max()
    }

    /// A frame of the newest segment that a later one there proves to have been durable: the segment, and where the frame's payload
    /// begins.
    pub(crate) fn proved_frame(&mut self, disk: &SimDisk) -> Option<(String, u64)> {
        let newest = self.bases(disk).into_iter().max()?;
        let salt = Salt::new(&self.log_id(disk)?, newest);
        let bytes = self.segment(disk, newest);
        let frames: Vec<_> = frames(&bytes, salt).collect();
        let proved = frames.iter().filter_map(|(_, frame)| frame.evidence()).max()?;
        // What it proves is below itself, so it is a later frame that does.
        let (position, _) = frames.into_iter().rfind(|(_, frame)| frame.offset < proved)?;
        Some((plimsoll_core::layout::segment(&self.dir, newest), (position + record::HEADER_BYTES) as u64))
    }

    /// Reads one piece; says whether there was anything new.
    fn advance(&mut self, disk: &SimDisk) -> bool {
        let Some(log_id) = self.log_id(disk) else { return false };
        let base = match self.base {
            Some(base) => base,
            None => match self.first(disk) {
                Some(base) => {
                    (self.base, self.position, self.end) = (Some(base), 0, base);
                    base
                }
                None => return false,
            },
        };
        let salt = Salt::new(&log_id, base);
        let path = format!("{}/log/{base:020}.log", self.dir);
        let mut length = READ_BYTES;
        loop {
            let Some(bytes) = self.depth.file(disk, &path, self.position, length) else {
                return self.go_on_behind_what_was_removed(disk);
            };
            let (mut at, mut needed) = (0, 0);
            loop {
                match record::decode(&bytes[at..], salt) {
                    Decoded::Frame(frame) if frame.offset == self.end => {
                        self.end += frame.count;
                        at += frame.size();
                    }
                    Decoded::NeedBytes(bytes) => {
                        needed = bytes as u64;
                        break;
                    }
                    _ => break,
                }
            }
            self.position += at as u64;
            if at > 0 {
                return true;
            }
            if needed > bytes.len() as u64 && bytes.len() as u64 == length {
                length = needed;
                continue;
            }
            // The next segment begins where this one ends.
            if self.end > base && self.bases(disk).contains(&self.end) {
                (self.base, self.position) = (Some(self.end), 0);
                return true;
            }
            // What lies below the start may be back, and what came behind it not.
            if let Some(first) = self.first(disk).filter(|first| *first > base) {
                (self.base, self.position, self.end) = (Some(first), 0, first);
                return true;
            }
            return false;
        }
    }

    /// The segment that was being read is gone: retention has taken it, and the log begins with a later one.
    fn go_on_behind_what_was_removed(&mut self, disk: &SimDisk) -> bool {
        let bases = self.bases(disk);
        let holds_end = bases.iter().copied().filter(|base| *base <= self.end).max();
        match holds_end.or(bases.into_iter().min()).filter(|base| Some(*base) != self.base) {
            Some(base) => {
                (self.base, self.position, self.end) = (Some(base), 0, base);
                true
            }
            None => false,
        }
    }

    /// Where the log begins: the segment that holds the recorded start. Whatever else is there below it is none of the log.
    pub(crate) fn first(&self, disk: &SimDisk) -> Option<u64> {
        let path = format!("{}/watermark", self.dir);
        let slots = self.depth.file(disk, &path, 0, watermark::FILE_BYTES as u64);
        let start = Watermark::read(&slots.unwrap_or_default()).current().map_or(0, |slot| slot.start);
        let bases = self.bases(disk);
        bases.iter().copied().filter(|base| *base <= start).max().or(bases.into_iter().min())
    }

    /// The bytes of a segment, none if it is not there.
    fn segment(&self, disk: &SimDisk, base: u64) -> Vec<u8> {
        let path = plimsoll_core::layout::segment(&self.dir, base);
        self.depth.file(disk, &path, 0, u64::from(u32::MAX)).unwrap_or_default()
    }

    fn bases(&self, disk: &SimDisk) -> Vec<u64> {
        let dir = format!("{}/log", self.dir);
        let names = match self.depth {
            Depth::Cache => disk.cached_names(&dir),
            Depth::Platter => disk.forced_names(&dir),
        };
        let names = names.unwrap_or_default();
        names.iter().filter_map(|name| plimsoll_core::layout::parse_segment(name)).collect()
    }

    /// Which log stands under the topic's name.
    pub(crate) fn log_id(&mut self, disk: &SimDisk) -> Option<LogId> {
        if self.log_id.is_none() {
            let path = plimsoll_core::layout::log_toml(&self.dir);
            self.log_id = TopicToml::parse(&self.depth.file(disk, &path, 0, 4096)?).ok().map(|toml| toml.log_id);
        }
        self.log_id
    }
}

/// What the journal of a work queue says: the state of its operations, one after the other.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Journal {
    /// Nothing from here on was handed out.
    pub(crate) next: u64,
    /// Below that, what is not confirmed, and how often each was handed out.
    pub(crate) pending: BTreeMap<u64, u32>,
}

impl Journal {
    /// As it stands in the directory of the queue. Read by the bytes alone (docs/file-format.md). `None`: there is no such queue.
    pub(crate) fn read(depth: Depth, topic: &str, queue: &str, disk: &SimDisk) -> Option<Journal> {
        let mut view = LogView::new(depth, &format!("{topic}/queues/{queue}"));
        let log_id = view.log_id(disk)?;
        let mut bases = view.bases(disk);
        bases.sort_unstable();
        let first = view.first(disk)?;
        let (mut journal, mut expected) = (Journal::default(), first);
        for base in bases.into_iter().filter(|base| *base >= first) {
            if base != expected {
                break;
            }
            for (_, frame) in frames(&view.segment(disk, base), Salt::new(&log_id, base)) {
                if frame.offset != expected {
                    break;
                }
                if frame.kind == Kind::QueueOperation {
                    journal.apply(&frame.payload[record::PREFIX_BYTES..])?;
                }
                expected += frame.count;
            }
        }
        Some(journal)
    }

    /// Whether it is done, or gone.
    pub(crate) fn is_done(&self, offset: u64) -> bool {
        offset < self.next && !self.pending.contains_key(&offset)
    }

    fn apply(&mut self, operation: &[u8]) -> Option<()> {
        let (kind, mut rest) = operation.split_first()?;
        match kind {
            // RESERVE and CONFIRM: runs of offsets.
            1 | 2 => {
                while !rest.is_empty() {
                    let first = u64::from_be_bytes(take(&mut rest)?);
                    let count = u64::from(u32::from_be_bytes(take(&mut rest)?));
                    let reached = self.next..first.max(self.next);
                    self.pending.extend(reached.map(|offset| (offset, 0)));
                    for offset in first..first + count {
                        if *kind == 2 {
                            self.pending.remove(&offset);
                        } else if offset >= self.next {
                            self.pending.insert(offset, 1);
                        } else if let Some(deliveries) = self.pending.get_mut(&offset) {
                            *deliveries += 1;
                        }
                    }
                    self.next = self.next.max(first + count);
                }
            }
            // A checkpoint.
            5 => {
                let next = u64::from_be_bytes(take(&mut rest)?);
                let _sequence: [u8; 4] = take(&mut rest)?;
                let mut pending = BTreeMap::new();
                while !rest.is_empty() {
                    let offset = u64::from_be_bytes(take(&mut rest)?);
                    pending.insert(offset, u32::from_be_bytes(take(&mut rest)?));
                    let _due_and_dying: [u8; 13] = take(&mut rest)?;
                }
                *self = Journal { next, pending };
            }
            _ => {}
        }
        Some(())
    }
}

/// What stands among the dead letters of a topic.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Letters {
    /// Where they begin: what lies below is gone.
    pub(crate) start: u64,
    /// The queue that each comes from, and its offset there.
    pub(crate) all: BTreeSet<(String, u64)>,
}

/// The dead letters of a topic.
pub(crate) fn letters(depth: Depth, topic: &str, disk: &SimDisk) -> Letters {
    let mut view = LogView::new(depth, &plimsoll_core::layout::dead_letters(topic));
    let Some(log_id) = view.log_id(disk) else { return Letters::default() };
    let mut letters = Letters { start: view.first(disk).unwrap_or(0), all: BTreeSet::new() };
    for base in view.bases(disk) {
        for (_, frame) in frames(&view.segment(disk, base), Salt::new(&log_id, base)) {
            for (_, message) in plimsoll_core::message::messages(&frame).into_iter().flatten() {
                let told = |name: &str| {
                    let (_, value) = message.headers().find(|(header, _)| *header == name.as_bytes())?;
                    String::from_utf8(value.to_vec()).ok()
                };
                let offset = told("dead-offset").and_then(|offset| offset.parse().ok());
                letters.all.extend(told("dead-group").zip(offset));
            }
        }
    }
    letters
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, left) = rest.split_first_chunk()?;
    *rest = left;
    Some(*taken)
}
