//! Where a topic's log ends on the platter, and in the page cache, read from the simulated disk itself.
//!
//! Both views are read with core's frame decoder and nothing else of core: an answer is held against what is really
//! there, not against what the broker believes.

use crate::disk::SimDisk;
use plimsoll_core::log::topic_file::TopicToml;
use plimsoll_core::log::watermark::{self, Watermark};
use plimsoll_core::record::{self, Decoded, LogId, Salt};

const READ_BYTES: u64 = 8 << 10;

/// Which of the two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Depth {
    /// What the process sees.
    Cache,
    /// What no power loss can take.
    Platter,
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
        // A removal that no force has covered may leave some below the start, with a gap behind them.
        let first = self.first(disk);
        bases.retain(|base| Some(*base) >= first);
        let mut expected = bases.first().copied().unwrap_or(0);
        for base in bases {
            // What lies behind a gap is no log; what stands behind the beginning of the next segment is not this one's.
            if base != expected {
                messages.retain(|(offset, _)| *offset < base);
            }
            if base > expected {
                break;
            }
            expected = base;
            let path = format!("{}/log/{base:020}.log", self.dir);
            let bytes = match self.depth {
                Depth::Cache => disk.cached_file(&path, 0, u64::from(u32::MAX)),
                Depth::Platter => disk.forced_file(&path, 0, u64::from(u32::MAX)),
            };
            let (bytes, mut at) = (bytes.unwrap_or_default(), 0);
            while let Decoded::Frame(frame) = record::decode(&bytes[at..], Salt::new(&log_id, base)) {
                if frame.offset != expected {
                    break;
                }
                for (offset, message) in plimsoll_core::message::messages(&frame).into_iter().flatten() {
                    messages.push((offset, message.value.to_vec()));
                }
                expected += frame.count;
                at += frame.size();
            }
        }
        messages
    }

    /// The latest timestamp of a segment's messages.
    pub(crate) fn newest_ms(&mut self, disk: &SimDisk, base: u64) -> Option<i64> {
        let salt = Salt::new(&self.log_id(disk)?, base);
        let bytes = disk.cached_file(&format!("{}/log/{base:020}.log", self.dir), 0, u64::from(u32::MAX))?;
        let (mut at, mut newest) = (0, None);
        while let Decoded::Frame(frame) = record::decode(&bytes[at..], salt) {
            newest = newest.max(frame.time_ms());
            at += frame.size();
        }
        newest
    }

    /// A frame of the newest segment that a later one there proves to have been durable: the segment, and where the frame's payload
    /// begins.
    pub(crate) fn proved_frame(&mut self, disk: &SimDisk) -> Option<(String, u64)> {
        let newest = self.bases(disk).into_iter().max()?;
        let salt = Salt::new(&self.log_id(disk)?, newest);
        let path = format!("{}/log/{newest:020}.log", self.dir);
        let bytes = disk.cached_file(&path, 0, u64::from(u32::MAX))?;
        let (mut at, mut frames, mut proved) = (0, Vec::new(), 0);
        while let Decoded::Frame(frame) = record::decode(&bytes[at..], salt) {
            proved = proved.max(frame.evidence().unwrap_or(0));
            frames.push((at, frame.offset));
            at += frame.size();
        }
        // What it proves is below itself, so it is a later frame that does.
        let (position, _) = frames.into_iter().rfind(|(_, offset)| *offset < proved)?;
        Some((path, (position + record::HEADER_BYTES) as u64))
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
            let bytes = match self.depth {
                Depth::Cache => disk.cached_file(&path, self.position, length),
                Depth::Platter => disk.forced_file(&path, self.position, length),
            };
            let Some(bytes) = bytes else { return self.go_on_behind_what_was_removed(disk) };
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
        let slots = match self.depth {
            Depth::Cache => disk.cached_file(&path, 0, watermark::FILE_BYTES as u64),
            Depth::Platter => disk.forced_file(&path, 0, watermark::FILE_BYTES as u64),
        };
        let start = Watermark::read(&slots.unwrap_or_default()).current().map_or(0, |slot| slot.start);
        let bases = self.bases(disk);
        bases.iter().copied().filter(|base| *base <= start).max().or(bases.into_iter().min())
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
            let path = format!("{}/topic.toml", self.dir);
            let bytes = match self.depth {
                Depth::Cache => disk.cached_file(&path, 0, 4096),
                Depth::Platter => disk.forced_file(&path, 0, 4096),
            };
            self.log_id = TopicToml::parse(&bytes?).ok().map(|toml| toml.log_id);
        }
        self.log_id
    }
}
