//! One topic's log: its marks, its segments, and the admission of messages.
//!
//! All marks are exclusive ends: `start ≤ durable ≤ written ≤ next`. An offset is given only to a message whose bytes fit
//! into space that stands ready, so that a full disk is an answer at admission and not a failure after a promise (P11).

pub(crate) mod anchor;
pub(crate) mod capacity;
pub(crate) mod create;
pub(crate) mod dedup;
pub(crate) mod group_commit;
pub mod index;
pub(crate) mod pack;
pub(crate) mod read;
pub mod recovery;
pub(crate) mod restore;
pub(crate) mod retention;
pub(crate) mod roll;
pub mod scan;
pub mod search;
pub mod sidecar;
pub mod topic_file;
pub mod watermark;

use crate::config::Config;
use crate::effect::{ConnectionId, Effect, FileId, IoError, IoErrorKind};
use crate::error::{Code, RequestError};
use crate::event::Now;
use crate::group::cursor::Group;
use crate::io::{Io, Owner, TopicId};
use crate::message;
use crate::planted::planted;
use crate::protocol::{BodyReader, Publish, TopicStatus};
use crate::record::{self, Kind, Salt};
use crate::settings::{Policy, Setting};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use capacity::{OverTotal, Size};
use dedup::{Dedup, First, Window};
use group_commit::Commit;
use index::{Index, Places};
use pack::Packing;
use retention::Retention;
use sidecar::Indexes;
use topic_file::{Alters, TopicToml};

/// Why a sequence on the disk could not be finished.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Trouble {
    /// No room, or no descriptor: nothing is harmed, it is tried again later (P11).
    Full(IoError),
    /// The effect is unknown: nothing may be acknowledged any more (P10).
    Halt(IoError),
}

impl Trouble {
    /// For creating a file or writing: a full disk is no reason to halt.
    pub(crate) fn full_or_halt(error: IoError) -> Trouble {
        match error.kind {
            IoErrorKind::NoSpace | IoErrorKind::TooManyFiles => Trouble::Full(error),
            _ => Trouble::Halt(error),
        }
    }
}

/// One segment file.
#[derive(Debug)]
pub(crate) struct Segment {
    /// The offset of its first frame, and its name.
    pub(crate) base: u64,
    pub(crate) file: FileId,
    pub(crate) salt: Salt,
    /// Where the frames end, with those that are planned but not yet written.
    pub(crate) end: u64,
    /// Without its entries once the segment is closed.
    pub(crate) index: Index,
    /// Offsets that stand in it as runs.
    pub(crate) removed: u64,
    /// How many of its messages were not confirmed when it was packed; `None`: it was not since the start.
    pub(crate) kept: Option<u64>,
}

impl Segment {
    /// Whether every message in it was accepted before this moment.
    pub(crate) fn is_older_than(&self, oldest_ms: i64) -> bool {
        self.index.time_max_ms().is_none_or(|newest| newest < oldest_ms)
    }
}

/// How far the change to a new segment has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Roll {
    No,
    /// The next message does not fit: everything before it is forced first.
    Wanted,
    Running,
}

/// Zero-written space in the active segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Space {
    /// Where the space that stands ready ends.
    pub(crate) ready: u64,
    /// The end of the chunk that is being written.
    pub(crate) coming: Option<u64>,
    /// A chunk, a write or a roll failed for want of room, here or in another topic.
    pub(crate) full: bool,
}

/// What became of an operation for a journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Appended {
    /// It has this offset.
    At(u64),
    /// A roll, a chunk of space, a write is waited for.
    Later,
    /// There is no room on the disk.
    Full,
}

/// What became of a message at the door.
pub(crate) enum Admission {
    /// It has this offset.
    Admitted(u64),
    /// It has been stored before, here (P16).
    Known(First),
    /// Its connection waits for room: a roll, a chunk of space, a write.
    Parked,
    /// All topics together have no room for it, unless the oldest messages of some of them go.
    OverTotal(OverTotal),
    /// It was refused, and nothing of it is stored.
    Refused(RequestError),
}

/// A work queue, as its topic knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct QueueRef {
    pub(crate) journal: TopicId,
    /// Everything below is confirmed, and forced to be so.
    pub(crate) confirmed: u64,
}

/// A topic; or the journal of a work queue, which is the same log again.
pub(crate) struct Topic {
    pub(crate) id: TopicId,
    pub(crate) name: String,
    /// Its directory.
    pub(crate) dir: String,
    pub(crate) toml: TopicToml,
    /// What holds for it: what was set for it, and the broker's defaults.
    pub(crate) policy: Policy,
    /// Changes to its settings, one after the other.
    pub(crate) alters: Alters,
    pub(crate) start: u64,
    pub(crate) durable: u64,
    pub(crate) written: u64,
    pub(crate) next: u64,
    /// Never empty; the last one is active.
    pub(crate) segments: VecDeque<Segment>,
    /// Of the segments.
    pub(crate) size: Size,
    pub(crate) space: Space,
    pub(crate) roll: Roll,
    pub(crate) commit: Commit,
    /// The indexes of closed segments, shared with all topics.
    pub(crate) indexes: Indexes,
    pub(crate) watermark: FileId,
    /// The sequence of the last slot written.
    pub(crate) sequence: u64,
    /// The line that both slots hold forced.
    pub(crate) anchored: u64,
    pub(crate) anchoring: bool,
    /// The slot that an anchoring may have left half written, for want of room.
    pub(crate) torn: Option<anchor::Place>,
    pub(crate) groups: BTreeMap<String, Group>,
    pub(crate) queues: BTreeMap<String, QueueRef>,
    pub(crate) packing: Packing,
    /// It holds operations, and nobody publishes to it or reads it.
    pub(crate) is_journal: bool,
    /// Of a journal: what its last checkpoint took.
    pub(crate) checkpoint_bytes: u64,
    /// What is known of its producers' publishes.
    pub(crate) dedup: Dedup,
    /// Connections whose next publish waits for room, first come first served.
    pub(crate) parked: VecDeque<ConnectionId>,
    /// Connections whose FETCH waits for the line to move.
    pub(crate) fetchers: VecDeque<ConnectionId>,
    pub(crate) retention: Retention,
    /// It has lost its name, and goes as soon as nothing is under way: nothing new is begun.
    pub(crate) deleting: bool,
    pub(crate) last_publish_ns: u64,
    pub(crate) idle_timer_armed: bool,
}

impl Topic {
    pub(crate) fn active(&self) -> &Segment {
        self.segments.back().expect("a topic has an active segment")
    }

    fn active_mut(&mut self) -> &mut Segment {
        self.segments.back_mut().expect("a topic has an active segment")
    }

    /// The segment that holds `offset`, or the one before a hole.
    pub(crate) fn segment_of(&self, offset: u64) -> Option<&Segment> {
        let after = self.segments.partition_point(|segment| segment.base <= offset);
        self.segments.get(after.checked_sub(1)?)
    }

    /// Takes a message or a batch in, or says why not; the offset is that of the first. `mark` is the connection's membership in the batches (see
    /// [`group_commit::Gather`]).
    pub(crate) fn admit(
        &mut self,
        config: &Config,
        io: &Io,
        now: Now,
        connection: ConnectionId,
        mark: &mut Option<group_commit::Mark>,
        publish: &Publish,
    ) -> Admission {
        if let Some(first) = publish.id.and_then(|id| self.known(id, now)) {
            return Admission::Known(first);
        }
        let count = publish.count();
        let has_id = publish.id.is_some();
        let body = match publish.batch {
            None => message::body_bytes(has_id, publish.key.as_deref(), &publish.headers, publish.value.len()),
            Some(count) => message::batch_bytes(has_id, count, publish.value.len()),
        };
        let mut size = (record::OVERHEAD_BYTES + body) as u64;
        if planted!(io, BatchInTwoFrames) && count > 1 {
            size += (record::OVERHEAD_BYTES + message::batch_bytes(false, 0, 0)) as u64;
        }

        self.emit_writes(config, io);
        if let Some(admission) = self.queue_is_full(config, connection, count, size) {
            return admission;
        }
        if let Some(admission) = self.keep_capacity(config, io, size) {
            return admission;
        }
        if let Some(admission) = self.make_room(config, io, size) {
            return admission;
        }

        let durable = self.durable;
        let mut messages = publish.value.reader();
        let offset = self.put(config, now, count, size, |bytes, salt, offset| match publish.batch {
            None => {
                let kind =
                    Kind::Message as u8 | message::flags(has_id, publish.key.is_some(), !publish.headers.is_empty());
                record::encode(bytes, salt, offset, durable, kind, now.wall_ms, |out| {
                    message::encode_head(out, publish.id, publish.key.as_deref(), &publish.headers);
                    publish.value.pieces().iter().for_each(|piece| out.extend_from_slice(piece));
                });
            }
            // All or none: one frame has one checksum, and one write.
            Some(count) => {
                let parts = if planted!(io, BatchInTwoFrames) && count > 1 {
                    [count / 2, count - count / 2]
                } else {
                    [count, 0]
                };
                let mut first = offset;
                for part in parts.into_iter().filter(|part| *part > 0) {
                    record::encode(bytes, salt, first, durable, Kind::Batch as u8, now.wall_ms, |out| {
                        let id = publish.id.filter(|_| first == offset);
                        encode_batch(out, id, part, &mut messages);
                    });
                    first += u64::from(part);
                }
            }
        });
        if let Some(id) = publish.id {
            self.dedup.note(id, First { offset, count, time_ms: now.wall_ms }, self.window(config));
        }
        self.commit.gather.count(self.id, mark);
        if self.commit.queue_owner.is_none() {
            self.commit.queue_owner = Some(connection);
        } else if self.commit.queue_owner != Some(connection) {
            self.commit.queue_shared = true;
        }
        self.reserve_ahead(config, io);
        Admission::Admitted(offset)
    }

    /// Puts an operation into a journal; says its offset, or that its time is later.
    pub(crate) fn append(&mut self, config: &Config, io: &Io, now: Now, operation: &[u8]) -> Appended {
        let size = (record::OVERHEAD_BYTES + operation.len()) as u64;
        self.emit_writes(config, io);
        // Before a stalled disk operations are not gathered without end (P13).
        let queued = self.next - self.commit.emitted();
        if queued >= u64::from(config.queue_messages) || self.commit.queued_bytes() >= config.queue_bytes {
            return if self.commit.write_blocked() { Appended::Full } else { Appended::Later };
        }
        match self.make_room(config, io, size) {
            None => {}
            Some(Admission::Refused(_)) => return Appended::Full,
            Some(_) => return Appended::Later,
        }
        let durable = self.durable;
        let offset = self.put(config, now, 1, size, |bytes, salt, offset| {
            let kind = Kind::QueueOperation as u8;
            record::encode(bytes, salt, offset, durable, kind, now.wall_ms, |out| out.extend_from_slice(operation));
        });
        self.reserve_ahead(config, io);
        Appended::At(offset)
    }

    /// Gives offsets to what has its place, and puts it into the open batch.
    fn put(
        &mut self,
        config: &Config,
        now: Now,
        count: u32,
        size: u64,
        encode: impl FnOnce(&mut Vec<u8>, Salt, u64),
    ) -> u64 {
        let offset = self.next;
        let end = offset + u64::from(count);
        let segment = self.segments.back_mut().expect("a topic has an active segment");
        let position = segment.end;
        let batch = self.commit.batch_for(config, position, offset, count, size);
        encode(&mut batch.bytes, segment.salt, offset);
        batch.end = end;
        segment.index.note(offset, position, now.wall_ms);
        segment.end += size;
        self.next = end;
        self.resize(size, 0);
        self.last_publish_ns = now.monotonic_ns;
        self.retention.active_since_ns.get_or_insert(now.monotonic_ns);
        // What is on its way out, or stops, is not waited for.
        self.commit.flush_now = self.deleting;
        offset
    }

    /// How large a segment may grow. A journal's has room for operations behind the checkpoint that it begins with, however large.
    fn segment_bytes_max(&self, config: &Config) -> u64 {
        if self.is_journal { config.journal_bytes + 2 * self.checkpoint_bytes } else { config.segment_bytes }
    }

    /// Where a publish with this id was stored, if that is within the topic's window (P16). It may not be written yet.
    fn known(&self, id: dedup::Id, now: Now) -> Option<First> {
        self.policy.bound(Setting::DedupSequences)?;
        self.dedup.find(id, now.wall_ms, self.policy.bound(Setting::DedupMs))
    }

    /// How much is remembered of its producers.
    pub(crate) fn window(&self, config: &Config) -> Window {
        Window::new(&self.policy, config)
    }

    /// The bound on what has an offset and waits to be written (P13). A client that fills it alone waits, too; it is not
    /// told off for pipelining.
    fn queue_is_full(&mut self, config: &Config, connection: ConnectionId, count: u32, size: u64) -> Option<Admission> {
        let messages = self.next - self.commit.emitted();
        if self.next == self.written {
            self.commit.queue_owner = None;
            self.commit.queue_shared = false;
            return None;
        }
        let bytes = self.commit.queued_bytes();
        if messages + u64::from(count) <= u64::from(config.queue_messages) && bytes + size <= config.queue_bytes {
            return None;
        }
        if self.commit.write_blocked() {
            return Some(Admission::Refused(disk_full(&self.name)));
        }
        if self.commit.queue_owner == Some(connection) && !self.commit.queue_shared {
            return Some(Admission::Parked);
        }
        Some(Admission::Refused(RequestError::new(
            Code::QueueFull,
            format!(
                "topic {} has {messages} messages waiting to be written ({bytes} bytes are not written yet); the limits are {} and {}; try again",
                self.name, config.queue_messages, config.queue_bytes
            ),
        )))
    }

    /// Sees to it that the next `size` bytes have a place. `None`: they have.
    fn make_room(&mut self, config: &Config, io: &Io, size: u64) -> Option<Admission> {
        if self.roll != Roll::No {
            return Some(self.park_or_refuse());
        }
        if self.commit.write_blocked() {
            return Some(Admission::Refused(disk_full(&self.name)));
        }
        // A force may need padding behind this message.
        let padded = match config.pad_forces {
            0 => size,
            unit => size + u64::from(unit) + record::PADDING_BYTES_MIN,
        };
        let segment = self.active();
        // An empty segment is never rolled: its name would be taken. And a segment takes one frame, however large; a journal's one beside
        // the checkpoint that it begins with, or each new segment would be too small for it like the last.
        let least = if self.is_journal { 1 } else { 0 };
        if self.next > segment.base + least && segment.end + padded > self.segment_bytes_max(config) {
            self.roll = Roll::Wanted;
            return Some(self.park_or_refuse());
        }
        let needed = segment.end + padded;
        if config.space_ahead == 0 {
            return self.space.full.then(|| Admission::Refused(disk_full(&self.name)));
        }
        if needed <= self.space.ready {
            return None;
        }
        if self.space.coming.is_none() && !self.space.full {
            self.reserve(config, io, needed);
        }
        Some(self.park_or_refuse())
    }

    pub(crate) fn park_or_refuse(&self) -> Admission {
        if self.space.full { Admission::Refused(disk_full(&self.name)) } else { Admission::Parked }
    }

    /// Begins the next chunk while half of the last is free, so that nobody waits for it.
    fn reserve_ahead(&mut self, config: &Config, io: &Io) {
        if self.space.coming.is_some() || self.space.full {
            return;
        }
        let end = self.active().end;
        if self.space.ready < self.segment_bytes_max(config)
            && self.space.ready.saturating_sub(end) < config.space_ahead / 2
        {
            self.reserve(config, io, end);
        }
    }

    fn reserve(&mut self, config: &Config, io: &Io, needed: u64) {
        let from = self.space.ready.max(self.commit.written_position);
        let chunk_end = (from + config.space_ahead).min(self.segment_bytes_max(config));
        let end = chunk_end.max(needed);
        let file = self.active().file;
        self.space.coming = Some(end);
        io.owned_by(Owner::Reserve(self.id)).start(Effect::Reserve { file, position: from, length: end - from });
    }

    /// A chunk of space has been written, or not.
    pub(crate) fn reserved(&mut self, result: Result<(), IoError>) -> Result<(), Trouble> {
        let end = self.space.coming.take().expect("a chunk was under way");
        match result {
            Ok(()) => {
                self.space.ready = end;
                Ok(())
            }
            Err(error) => {
                let trouble = Trouble::full_or_halt(error);
                self.space.full = matches!(trouble, Trouble::Full(_));
                Err(trouble)
            }
        }
    }

    /// The new active segment after a roll or a recovery. Says what the index of the one before it is.
    pub(crate) fn push_segment(&mut self, file: FileId, base: u64) -> Rc<Places> {
        let closed = self.segments.back_mut().map(|segment| (segment.file, Rc::new(segment.index.close())));
        if let Some((file, places)) = &closed {
            self.indexes.keep_closed(*file, places);
        }
        self.segments.push_back(Segment {
            base,
            file,
            salt: Salt::new(&self.toml.log_id, base),
            end: 0,
            index: self.indexes.new_index(),
            removed: 0,
            kept: None,
        });
        self.space = Space::default();
        self.retention.due = true;
        self.retention.active_since_ns = None;
        if core::mem::take(&mut self.retention.drops_active) {
            self.want_start(base);
        }
        (self.commit.written_position, self.commit.planned_position) = (0, 0);
        closed.map(|(_, places)| places).unwrap_or_default()
    }

    /// Whether nothing is under way and every message is forced.
    pub(crate) fn is_settled(&self) -> bool {
        self.durable == self.next
            && self.commit.is_idle()
            && self.space.coming.is_none()
            && self.roll == Roll::No
            && !self.anchoring
            && self.alters.is_settled()
    }

    pub(crate) fn status(&self) -> TopicStatus {
        TopicStatus {
            topic: self.name.clone(),
            start: self.start,
            durable: self.durable,
            written: self.written,
            next: self.next,
            segments: self.segments.len() as u64,
            bytes: self.size.bytes(),
            groups: self.groups.len() as u64,
            forces: self.commit.forces,
            force_mean_us: self.commit.force_mean_ns / 1000,
            force_total_ms: self.commit.force_total_ns / 1_000_000,
            packed: self.packing.packed,
            packed_bytes: self.packing.saved_bytes,
            pack_failures: self.packing.failed,
            unforced_max: self.commit.unforced_max,
            unforced_ms_max: self.commit.unforced_ns_max / 1_000_000,
        }
    }

    pub(crate) fn active_for_padding(&mut self) -> &mut Segment {
        self.active_mut()
    }
}

/// Appends the value of a batch: how many messages, then each with its length, its kind and its value.
fn encode_batch(out: &mut Vec<u8>, id: Option<dedup::Id>, count: u32, messages: &mut BodyReader<'_>) {
    out.extend_from_slice(&count.to_be_bytes());
    for at in 0..count {
        let value = messages.u32().expect("the codec has counted them") as usize;
        message::encode_batched_head(out, id.filter(|_| at == 0), value);
        let whole = messages.read(value, |piece| out.extend_from_slice(piece));
        debug_assert!(whole, "the codec has measured them");
    }
}

/// The answer while there is no room (P11).
pub(crate) fn disk_full(topic: &str) -> RequestError {
    RequestError::new(
        Code::DiskFull,
        format!(
            "no room for another message in topic {topic}; nothing of it was stored; publishing resumes by itself when there is room"
        ),
    )
}
