//! Packing: a closed segment of which most messages are confirmed is written anew, with runs in their place, so that one stuck
//! message does not pin gigabytes.
//!
//! The new file takes the name of the old one: `.tmp`, force, rename, force the directory. A crash at any step leaves the old file or the
//! new one under the name, and both say the same of every message that is not confirmed; a directory force that fails may bring the
//! old one back, which harms nothing. Crash story: *the pack that was not there yet* – were the rename before the force, a power
//! loss would leave a file of zeros in place of messages that were forced long ago.
//!
//! Nothing but closed segments is packed, so no run ever stands in the last one, where recovery searches byte by byte. What is known of
//! the producers of messages that go is stored before they do, as when the start moves (P16).

use super::index::Index;
use super::scan::{Scan, Step};
use super::{Segment, Topic, Trouble, dedup};
use crate::effect::{FileId, IoError};
use crate::io::Io;
use crate::layout;
use crate::planted::planted;
use crate::record::{self, Frame, Kind, Salt};
use crate::settings::Setting;
use alloc::format;
use alloc::rc::Rc;
use alloc::vec::Vec;
use bytes::Bytes;
use core::cell::RefCell;
use core::ops::Range;

const READ_BYTES: u64 = 1 << 20;
/// So much is written between two forces of the new file: a force of all of it would hold up those of producers.
const FORCE_BYTES: u64 = 4 << 20;

/// A topic's packing.
#[derive(Debug, Default)]
pub(crate) struct Packing {
    /// Messages were confirmed since it was last looked whether a segment is worth it.
    pub(crate) due: bool,
    /// The segment that is being packed: retention leaves it where it is.
    pub(crate) segment: Option<u64>,
    /// The broker stops, the topic goes, or there comes a queue that has not seen what is to go: it is given up.
    pub(crate) cancelled: bool,
    /// Not before this moment, after a failure.
    pub(crate) retry_ns: u64,
    /// Segments that were packed since the start.
    pub(crate) packed: u64,
    /// Bytes that were given back by that.
    pub(crate) saved_bytes: u64,
    /// Attempts that failed.
    pub(crate) failed: u64,
}

/// What came of it.
#[derive(Debug)]
pub(crate) enum Packed {
    /// The new file has the name.
    Done { file: FileId, end: u64, index: Index, removed: u64, live: u64 },
    /// There was no reason any more.
    GivenUp,
    /// The old file stands as it was, and nothing is left of the new one.
    Failed(IoError),
    /// It is not known which of the two has the name (P10).
    Halt(IoError),
}

impl Segment {
    /// Of a closed one: the offsets that it holds.
    fn offsets(&self, next: &Segment) -> Range<u64> {
        self.base..next.base
    }
}

impl Topic {
    /// How small the share of live messages is at which a segment is packed, in percent; `None`: none is, now or ever.
    pub(crate) fn packs_below(&self) -> Option<u64> {
        // Whoever may read a message by its offset keeps it: only what retention by consumption could take is packed.
        let may = self.policy.get(Setting::RetainConsumed) == 1 && self.groups.is_empty() && !self.queues.is_empty();
        self.policy.bound(Setting::PackBelow).filter(|_| may && !self.deleting && !self.is_journal)
    }

    /// The offsets of the first closed segment that is worth it. `live` are the messages that are not confirmed, by all queues together, in ascending order;
    /// whatever comes from `next` on was not handed out. Where that is, consumers are at work, and the segment is about to go by itself.
    pub(crate) fn worth_packing(&self, live: &[u64], next: u64) -> Option<Range<u64>> {
        let below = self.packs_below()?;
        let closed = self.segments.iter().zip(self.segments.iter().skip(1));
        let all = closed.map(|(segment, after)| (segment, segment.offsets(after)));
        // What lies below the start is about to be removed.
        let mut settled = all.filter(|(_, offsets)| offsets.end > self.start && offsets.end <= next);
        let found = settled.find(|(segment, offsets)| {
            let live = within(live, offsets.clone()).len() as u64;
            let there = offsets.end - offsets.start - segment.removed;
            // A batch stays as long as one of its messages does, however often it is written anew.
            let is_new = segment.kept.is_none_or(|kept| live * 2 <= kept && live < kept);
            live < there && live * 100 < there * below && is_new
        });
        found.map(|(_, offsets)| offsets)
    }

    /// Up to here something of the log may be known from the topic's file alone, now or when what is being packed has its name.
    pub(crate) fn packed_below(&self) -> u64 {
        let closed = self.segments.iter().zip(self.segments.iter().skip(1)).rev();
        let is_packed = |segment: &Segment| segment.removed > 0 || self.packing.segment == Some(segment.base);
        let mut packed = closed.filter(|(segment, _)| is_packed(segment));
        packed.next().map_or(0, |(_, after)| after.base)
    }
}

/// Of offsets in ascending order those in the range.
pub(crate) fn within(offsets: &[u64], range: Range<u64>) -> &[u64] {
    let begin = offsets.partition_point(|offset| *offset < range.start);
    let behind = &offsets[begin..];
    &behind[..behind.partition_point(|offset| *offset < range.end)]
}

/// Writes the segment at `base` anew. `live` are its messages that are not confirmed, in ascending order.
pub(crate) async fn pack(io: Io, topic: Rc<RefCell<Topic>>, base: u64, live: Vec<u64>) -> Packed {
    let (path, log, end) = {
        let topic = topic.borrow();
        let Some(at) = topic.segments.iter().position(|segment| segment.base == base) else { return Packed::GivenUp };
        let Some(next) = topic.segments.get(at + 1) else { return Packed::GivenUp };
        (layout::segment(&topic.dir, base), layout::log(&topic.dir), next.base)
    };
    // The start waits meanwhile: what is stored is stored for both.
    topic.borrow_mut().retention.preparing = true;
    let stored = dedup::before_start_moves(&io, &topic, end).await;
    topic.borrow_mut().retention.preparing = false;
    match stored {
        Ok(()) => {}
        Err(Trouble::Full(error)) => return Packed::Failed(error),
        Err(Trouble::Halt(error)) => return Packed::Halt(error),
    }
    let tmp = layout::tmp(&path);
    if let Err(error) = io.remove(&tmp).await {
        return Packed::Halt(error);
    }
    let file = match io.create(tmp.clone()).await {
        Ok(file) => file,
        Err(error) => return Packed::Failed(error),
    };
    let written = write(&io, &topic, base, &live, file).await;
    let is_there = topic.borrow().segments.iter().any(|segment| segment.base == base);
    let (end, index, removed) = match written {
        Ok(Some(written)) if is_there && !topic.borrow().packing.cancelled => written,
        given_up => {
            // Nobody relies on a byte of it: that its force has failed, too, says nothing about the log.
            io.close(file);
            return match (io.remove(&tmp).await, given_up) {
                (Err(error), _) => Packed::Halt(error),
                (Ok(()), Err(error)) => Packed::Failed(error),
                (Ok(()), Ok(_)) => Packed::GivenUp,
            };
        }
    };
    // A sidecar of the old file is none of the new one's.
    let index_path = layout::index(&topic.borrow().dir, base);
    let _ = io.remove(&index_path).await;
    let renamed = match io.rename(&tmp, &path).await {
        Ok(()) => io.force_dir(&log).await,
        failed => failed,
    };
    match renamed {
        Ok(()) => Packed::Done { file, end, index, removed, live: live.len() as u64 },
        Err(error) => Packed::Halt(error),
    }
}

/// What was written: where the frames end, their index, and how many offsets are in runs.
type Written = (u64, Index, u64);

/// Writes and forces the new file. `None`: it was given up.
async fn write(
    io: &Io,
    topic: &Rc<RefCell<Topic>>,
    base: u64,
    live: &[u64],
    file: FileId,
) -> Result<Option<Written>, IoError> {
    let (old, length, salt, durable, mut index) = {
        let topic = topic.borrow();
        let Some(segment) = topic.segment_of(base).filter(|segment| segment.base == base) else { return Ok(None) };
        (segment.file, segment.end, segment.salt, topic.durable, topic.indexes.new_index())
    };
    let mut scan = Scan::new(salt, 0, base);
    let mut out = Out { bytes: Vec::new(), position: 0, run: None, removed: 0, salt, durable };
    let (mut read_to, mut written, mut forced) = (0, 0, 0);
    while scan.position() < length {
        match scan.step() {
            Step::Frame { frame, .. } => {
                out.take(&frame, live, io.now().wall_ms, &mut index);
                continue;
            }
            Step::NeedBytes(_) => {}
            Step::Invalid(invalid) => return Err(damaged(scan.position(), base, invalid.as_str())),
        }
        if topic.borrow().packing.cancelled {
            return Ok(None);
        }
        written = flush(io, file, &mut out, written).await?;
        if written - forced >= FORCE_BYTES {
            io.force(file).await?;
            forced = written;
        }
        let bytes = io.read(old, read_to, (length - read_to).min(READ_BYTES) as u32).await?;
        if bytes.is_empty() {
            return Err(damaged(read_to, base, "the file is shorter than it was"));
        }
        read_to += bytes.len() as u64;
        scan.push(&bytes);
    }
    out.end_run(io.now().wall_ms, &mut index);
    flush(io, file, &mut out, written).await?;
    if !planted!(io, RenameBeforePackForce) {
        io.force(file).await?;
    }
    index.close();
    Ok(Some((out.position, index, out.removed)))
}

async fn flush(io: &Io, file: FileId, out: &mut Out, written: u64) -> Result<u64, IoError> {
    if out.bytes.is_empty() {
        return Ok(written);
    }
    let bytes = Bytes::from(core::mem::take(&mut out.bytes));
    let end = written + bytes.len() as u64;
    io.write(file, written, bytes).await?;
    Ok(end)
}

fn damaged(position: u64, base: u64, what: &str) -> IoError {
    let kind = crate::effect::IoErrorKind::Other;
    IoError { kind, detail: format!("segment {base} has damage at position {position} ({what}); run plimsoll verify") }
}

/// The new file, as far as it is not written.
struct Out {
    bytes: Vec<u8>,
    /// Where the next frame begins.
    position: u64,
    /// Offsets that go, one behind the other.
    run: Option<Range<u64>>,
    removed: u64,
    salt: Salt,
    durable: u64,
}

impl Out {
    fn take(&mut self, frame: &Frame<'_>, live: &[u64], wall_ms: i64, index: &mut Index) {
        let end = frame.offset + frame.count;
        let goes = match frame.kind {
            // It was for a force that is over.
            Kind::Padding => return,
            Kind::RemovedRun => true,
            Kind::Message | Kind::Batch => within(live, frame.offset..end).is_empty(),
            Kind::LostRun | Kind::QueueOperation => false,
        };
        if goes {
            let from = self.run.take().map_or(frame.offset, |run| run.start);
            self.run = Some(from..end);
            return;
        }
        self.end_run(wall_ms, index);
        index.note_frame(self.position, frame);
        record::seal(&mut self.bytes, self.salt, frame.offset, frame.payload);
        self.position += frame.size() as u64;
    }

    fn end_run(&mut self, wall_ms: i64, index: &mut Index) {
        let Some(run) = self.run.take() else { return };
        let count = run.end - run.start;
        index.note(run.start, self.position, i64::MIN);
        record::encode(&mut self.bytes, self.salt, run.start, self.durable, Kind::RemovedRun as u8, wall_ms, |out| {
            out.extend_from_slice(&count.to_be_bytes());
        });
        self.position += RUN_BYTES;
        self.removed += count;
    }
}

/// A frame that stands for a run.
const RUN_BYTES: u64 = (record::OVERHEAD_BYTES + 8) as u64;

/// The new file takes the place of the old one, whose id is said.
pub(crate) fn replace(
    topic: &mut Topic,
    base: u64,
    live: u64,
    (file, end, index, removed): (FileId, u64, Index, u64),
) -> Option<FileId> {
    let at = topic.segments.iter().position(|segment| segment.base == base)?;
    // Crash story: the message that memory had. A queue that was made anew handed it out, and after a restart it was gone.
    let behind = topic.segments.get(at + 1).map_or(u64::MAX, |next| next.base);
    topic.commit.recent.forget_below(behind);
    let segment = &mut topic.segments[at];
    topic.packing.packed += 1;
    topic.packing.saved_bytes += segment.end.saturating_sub(end);
    topic.retention.due = true;
    let before = core::mem::replace(&mut segment.end, end);
    (segment.index, segment.removed, segment.kept) = (index, removed, Some(live));
    let old = core::mem::replace(&mut segment.file, file);
    topic.resize(end, before);
    Some(old)
}

#[cfg(test)]
mod tests {
    use super::{Range, within};

    #[test]
    fn what_is_within_a_range_is_found() {
        let offsets = [3, 4, 8, 20];
        for (range, found) in [
            (0..3, &[][..]),
            (0..4, &[3]),
            (3..9, &[3, 4, 8]),
            (9..9, &[]),
            (Range { start: 8, end: 1 }, &[]),
            (20..99, &[20]),
        ] {
            assert_eq!(within(&offsets, range.clone()), found, "{range:?}");
        }
    }
}
