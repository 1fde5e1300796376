//! Group commit: how messages become batches, writes and forces, and when the line moves.
//!
//! - Frames are built at admission, into the open batch. A full batch is written at once; one that is not full waits while
//!   a write is under way, and gathers what is admitted meanwhile.
//! - One force is in flight at a time. It covers every write emitted before it. Writes don't wait for it, so WRITTEN
//!   does not pay for DURABLE (P3).
//! - When a force has returned, the running slot is written; when that has completed, the line moves, for replies and
//!   readers alike. Crash story: were DURABLE answered before the slot, a kill would leave a line below what was
//!   acknowledged, and damage in that part would pass for a torn tail.
//! - **Flush policy.** What nobody waits for as DURABLE may be forced later: after a time, after so many messages, whichever
//!   comes first, and at the latest when the topic has been quiet for a while, rolls or stops. Readers see it then. A DURABLE
//!   publish is forced at once, whatever the policy, and what stands before it with it.
//! - **Gathering.** Closed-loop producers split into two halves that alternate, one writing while the other's force is
//!   in flight. So a force is held while producers of the last two batches have not sent again: never longer than half
//!   of a recent force and the configured bound, and never for a lone producer.

use super::{Roll, Topic};
use crate::config::Config;
use crate::effect::{ConnectionId, Effect, EffectId, FileId, IoError, IoErrorKind};
use crate::event::Now;
use crate::io::{Io, Owner, TopicId};
use crate::log::anchor::Place;
use crate::log::watermark::{self, Slot};
use crate::planted::planted;
use crate::record::{self, Salt};
use crate::settings::Setting;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use bytes::Bytes;

/// After this long without a force, who sent before says nothing about who will send now.
const GATHER_STALE_NS: u64 = 5_000_000;

/// Writes of full batches that may be under way at once: more would only queue up before a stalled disk.
const WRITES_MAX: usize = 16;

/// Frames that go into one write.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) bytes: Vec<u8>,
    position: u64,
    first: u64,
    pub(crate) end: u64,
}

/// A write that has been emitted.
#[derive(Debug)]
struct Write {
    bytes: Bytes,
    position: u64,
    first: u64,
    end: u64,
    state: WriteState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WriteState {
    InFlight(EffectId),
    Done,
    /// For want of room: it has offsets, so it is tried again until there is (P11).
    Failed,
}

/// A force in flight. What it covers was fixed when it was emitted.
#[derive(Clone, Copy, Debug)]
struct Force {
    id: EffectId,
    end: u64,
    begun_ns: u64,
    /// When the first message that it covers was handed to the disk.
    since_ns: u64,
}

/// Someone who waits for a mark to pass an offset.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Waiter {
    pub(crate) offset: u64,
    pub(crate) connection: ConnectionId,
    /// Which of the connection's requests.
    pub(crate) request: u64,
    /// What it is answered then.
    pub(crate) answer: Answer,
}

/// What somebody who waits is answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// That the message has reached the level that was waited for; for a batch, how many messages it has.
    Published { batch: Option<u32> },
    /// What is known beforehand: it is held in its place, where it counts for its client (P13).
    Held,
    /// What is known only then.
    Other,
}

/// A written batch, kept in memory, or the end of one.
#[derive(Clone, Debug)]
pub(crate) struct Recent {
    first: u64,
    end: u64,
    /// The segment that it stands in, and where.
    pub(crate) base: u64,
    pub(crate) salt: Salt,
    pub(crate) position: u64,
    pub(crate) bytes: Bytes,
}

/// The newest batches, for readers at the line. Bounded in bytes.
#[derive(Debug, Default)]
pub(crate) struct RecentBatches {
    batches: VecDeque<Recent>,
    bytes: u64,
    /// In the batch that begins with the first of these, the frame of the second begins so many bytes behind its beginning.
    sought: (u64, u64, usize),
    /// The bound: this topic's share.
    pub(crate) bytes_max: u64,
}

impl RecentBatches {
    fn push(&mut self, batch: Recent) {
        self.bytes += batch.bytes.len() as u64;
        self.batches.push_back(batch);
        self.trim();
    }

    /// Keeps the bound.
    pub(crate) fn trim(&mut self) {
        while self.bytes > self.bytes_max {
            self.forget_oldest();
        }
    }

    /// The files say something else of what lies below `end` than they did.
    pub(crate) fn forget_below(&mut self, end: u64) {
        while self.batches.front().is_some_and(|oldest| oldest.first < end) {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let oldest = self.batches.pop_front().expect("bytes are counted");
        self.bytes -= oldest.bytes.len() as u64;
    }

    /// The batch that holds `offset`, from the frame on in which that is. A reader that takes one message after the other does not walk over
    /// those before it each time.
    pub(crate) fn find(&mut self, offset: u64) -> Option<Recent> {
        let at = self.batches.partition_point(|batch| batch.end <= offset);
        let batch = self.batches.get(at).filter(|batch| batch.first <= offset)?;
        let (first, sought, mut skipped) = self.sought;
        if first != batch.first || sought > offset {
            skipped = 0;
        }
        while let Some((size, _)) = record::outside(&batch.bytes[skipped..])
            && record::outside(&batch.bytes[skipped + size..]).is_some_and(|(_, next)| next <= offset)
        {
            skipped += size;
        }
        self.sought = (batch.first, offset, skipped);
        Some(Recent { position: batch.position + skipped as u64, bytes: batch.bytes.slice(skipped..), ..batch.clone() })
    }
}

/// Group commit's state.
#[derive(Debug, Default)]
pub(crate) struct Commit {
    queue: VecDeque<Batch>,
    writes: VecDeque<Write>,
    /// Everything below has been emitted as a write.
    emitted: u64,
    /// Where the frames of the completed writes end.
    pub(crate) written_position: u64,
    pub(super) planned_position: u64,
    force: Option<Force>,
    /// This force failed behind a failed write whose own end may not have been told yet.
    failed_force: Option<EffectId>,
    /// Everything below is covered by a force that has returned.
    forced: u64,
    slot: Option<u64>,
    slot_wanted: Option<u64>,
    slot_failed: bool,
    pub(crate) waiting_written: VecDeque<Waiter>,
    pub(crate) waiting_durable: VecDeque<Waiter>,
    /// The broker itself waits for everything up to and including this to be forced.
    pub(crate) wanted_durable: Option<u64>,
    pub(crate) gather: Gather,
    /// Who filled the queue, and whether it was more than one.
    pub(crate) queue_owner: Option<ConnectionId>,
    pub(crate) queue_shared: bool,
    pub(crate) recent: RecentBatches,
    /// When the first message that no force covers yet was handed to the disk.
    unforced_since_ns: Option<u64>,
    /// Nothing is waited for any more: the topic is quiet, or the broker stops. Until the next message.
    pub(crate) flush_now: bool,
    pub(crate) forces: u64,
    pub(crate) force_mean_ns: u64,
    pub(crate) force_total_ns: u64,
    /// The most messages that had an offset and were not forced, when a force returned.
    pub(crate) unforced_max: u64,
    /// The longest that one of them was.
    pub(crate) unforced_ns_max: u64,
    last_force_end_ns: u64,
}

/// A connection's membership: the last batch that it put a message into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mark {
    topic: TopicId,
    generation: u64,
}

/// Who is expected in the next batch: as many connections as were in the last two together.
#[derive(Debug, Default)]
pub(crate) struct Gather {
    /// The batch that gathers now.
    generation: u64,
    /// Connections in it.
    current: u64,
    /// Of these, how many were in the one before.
    returned: u64,
    /// Connections in the one before.
    last: u64,
    expected: u64,
    held_since_ns: Option<u64>,
}

impl Gather {
    /// A connection has put a message into the current batch.
    pub(crate) fn count(&mut self, topic: TopicId, mark: &mut Option<Mark>) {
        let now = Mark { topic, generation: self.generation };
        if *mark == Some(now) {
            return;
        }
        self.current += 1;
        if mark.is_some_and(|mark| mark.topic == topic && mark.generation + 1 == self.generation) {
            self.returned += 1;
        }
        *mark = Some(now);
    }

    fn close_batch(&mut self) {
        self.expected = self.current + self.last - self.returned.min(self.last);
        self.last = self.current;
        self.current = 0;
        self.returned = 0;
        self.generation += 1;
        self.held_since_ns = None;
    }
}

/// What the broker has to see to after a topic was pumped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Pumped {
    /// Pump again at this moment.
    pub(crate) wake_ns: Option<u64>,
    /// Everything is forced: begin the roll.
    pub(crate) roll: bool,
    /// The anchored slot may be half written: begin to anchor.
    pub(crate) repair: bool,
}

/// Puts a waiter into its place. Nearly all come in the order of their offsets; who repeats a publish waits for an earlier one.
pub(crate) fn wait(waiting: &mut VecDeque<Waiter>, waiter: Waiter) {
    let at = waiting.partition_point(|other| other.offset <= waiter.offset);
    waiting.insert(at, waiter);
}

impl Commit {
    /// A log whose frames end at `next`, all of them forced.
    pub(crate) fn recovered(next: u64, position: u64) -> Commit {
        Commit {
            emitted: next,
            forced: next,
            written_position: position,
            planned_position: position,
            ..Commit::default()
        }
    }

    /// The batch that the next `count` messages, a frame of `size` bytes, go into.
    pub(crate) fn batch_for(
        &mut self,
        config: &Config,
        position: u64,
        offset: u64,
        count: u32,
        size: u64,
    ) -> &mut Batch {
        let (messages, bytes) =
            if config.group_commit { (u64::from(config.batch_messages), config.batch_bytes) } else { (1, 0) };
        let fits = self.queue.back().is_some_and(|batch| {
            batch.end - batch.first + u64::from(count) <= messages && batch.bytes.len() as u64 + size <= bytes
        });
        if !fits {
            let capacity = size.max(512) as usize;
            self.queue.push_back(Batch { bytes: Vec::with_capacity(capacity), position, first: offset, end: offset });
        }
        self.planned_position = position + size;
        self.queue.back_mut().expect("just pushed or fitting")
    }

    /// Everything below is covered by a force that has returned.
    #[cfg_attr(not(feature = "planted"), allow(dead_code, reason = "only a planted bug asks"))]
    pub(crate) fn forced(&self) -> u64 {
        self.forced
    }

    /// Everything below has been handed to the disk.
    pub(crate) fn emitted(&self) -> u64 {
        self.emitted
    }

    /// Bytes with an offset that are not written.
    pub(crate) fn queued_bytes(&self) -> u64 {
        self.planned_position.saturating_sub(self.written_position)
    }

    /// Whether a write failed for want of room and waits to be tried again.
    pub(crate) fn write_blocked(&self) -> bool {
        self.writes.iter().any(|write| write.state == WriteState::Failed) || self.slot_failed
    }

    fn has_in_flight_before(&self, force: EffectId) -> bool {
        self.writes.iter().any(|write| matches!(write.state, WriteState::InFlight(id) if id < force))
    }

    /// Whether the running slot is being written: nothing else may write to the watermark file then.
    pub(crate) fn is_slot_in_flight(&self) -> bool {
        self.slot.is_some()
    }

    /// Whether a write waits for room and nothing else is under way: by itself nothing will change.
    pub(crate) fn is_stuck(&self) -> bool {
        let is_writing = self.writes.iter().any(|write| matches!(write.state, WriteState::InFlight(_)));
        self.write_blocked() && !is_writing && self.force.is_none() && self.slot.is_none()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty()
            && self.writes.is_empty()
            && self.force.is_none()
            && self.slot.is_none()
            && self.slot_wanted.is_none()
    }
}

impl Topic {
    /// Emits what can be emitted now.
    pub(crate) fn pump(&mut self, config: &Config, io: &Io, now: Now) -> Pumped {
        self.emit_writes(config, io);
        let wake_ns = self.emit_force(config, io, now);
        let repair = self.begin_repair();
        self.emit_slot(io);
        let roll = self.roll == Roll::Wanted
            && self.durable == self.next
            && self.commit.is_idle()
            && self.space.coming.is_none()
            && !self.anchoring
            && (!self.space.full || self.retention.rolls);
        Pumped { wake_ns, roll, repair }
    }

    /// Whether the anchored slot is to be written again, for which there was no room and may be now. It counts as begun.
    fn begin_repair(&mut self) -> bool {
        let begins = self.torn == Some(Place::Anchored)
            && !self.anchoring
            && self.roll != Roll::Running
            && !self.commit.is_slot_in_flight()
            && !self.retention.blocked;
        self.anchoring |= begins;
        begins
    }

    /// Emits full batches, and one that is not full if it would wait for nothing.
    pub(crate) fn emit_writes(&mut self, config: &Config, io: &Io) {
        loop {
            let commit = &self.commit;
            // Without group commit every message has a force of its own, so the next one waits for it.
            let ready = match config.group_commit {
                true => commit.writes.is_empty() || (commit.queue.len() > 1 && commit.writes.len() < WRITES_MAX),
                false => commit.writes.is_empty() && commit.force.is_none() && commit.emitted == commit.forced,
            };
            if !ready || self.commit.write_blocked() {
                return;
            }
            let Some(batch) = self.commit.queue.pop_front() else { return };
            self.emit_batch(io, batch);
        }
    }

    fn emit_batch(&mut self, io: &Io, batch: Batch) {
        let file = self.active().file;
        self.commit.unforced_since_ns.get_or_insert(io.now().monotonic_ns);
        self.commit.emitted = batch.end;
        push_write(
            &mut self.commit,
            io,
            self.id,
            file,
            Bytes::from(batch.bytes),
            batch.position,
            batch.first,
            batch.end,
        );
    }

    fn emit_force(&mut self, config: &Config, io: &Io, now: Now) -> Option<u64> {
        let commit = &mut self.commit;
        if commit.force.is_some() || commit.emitted == commit.forced || commit.write_blocked() {
            return None;
        }
        // The next force stands for itself: it would return, and cover nothing of the write that failed (P3).
        if commit.failed_force.is_some_and(|force| commit.has_in_flight_before(force)) {
            return None;
        }
        match self.flush_due(config, now) {
            FlushDue::Now => {}
            FlushDue::At(at_ns) => return Some(at_ns),
            FlushDue::Later => return None,
        }
        if let Some(until) = hold_until(&mut self.commit, config, self.roll, now) {
            return Some(until);
        }
        self.emit_padding(config, io, now);
        let file = if planted!(io, ForceWrongFile) { self.watermark } else { self.active().file };
        let commit = &mut self.commit;
        let id = io.owned_by(Owner::Force(self.id)).start(Effect::Force { file });
        if planted!(io, SlotBeforeForce) {
            commit.slot_wanted = Some(commit.emitted);
        }
        let since_ns = commit.unforced_since_ns.take().unwrap_or(now.monotonic_ns);
        commit.force = Some(Force { id, end: commit.emitted, begun_ns: now.monotonic_ns, since_ns });
        commit.gather.close_batch();
        None
    }

    /// What the topic's flush policy says about the messages that were handed to the disk and are not forced.
    fn flush_due(&self, config: &Config, now: Now) -> FlushDue {
        let interval_ns = self.policy.bound(Setting::FlushIntervalMs).map(|ms| ms * 1_000_000);
        let messages = self.policy.bound(Setting::FlushMessages);
        let commit = &self.commit;
        let covered = commit.waiting_durable.partition_point(|waiter| waiter.offset < commit.emitted);
        let waited_for = commit.waiting_durable.range(..covered).next_back();
        let wanted = commit.wanted_durable.is_some_and(|wanted| wanted >= commit.forced);
        let at_once = (interval_ns.is_none() && messages.is_none())
            || !config.group_commit
            || commit.flush_now
            || self.roll != Roll::No
            || wanted
            || waited_for.is_some_and(|waiter| waiter.offset >= commit.forced)
            || messages.is_some_and(|messages| commit.emitted - commit.forced >= messages);
        if at_once {
            return FlushDue::Now;
        }
        let since_ns = commit.unforced_since_ns.unwrap_or(now.monotonic_ns);
        match interval_ns.map(|interval_ns| since_ns + interval_ns) {
            Some(at_ns) if at_ns <= now.monotonic_ns => FlushDue::Now,
            Some(at_ns) => FlushDue::At(at_ns),
            None => FlushDue::Later,
        }
    }

    /// With `--pad-forces` every force begins on a sector of its own (crash story: neighbours in a sector). What is queued
    /// has its position already, so it goes out first and the padding stands behind it.
    fn emit_padding(&mut self, config: &Config, io: &Io, now: Now) {
        if config.pad_forces == 0 || planted!(io, NoPadding) {
            return;
        }
        while let Some(batch) = self.commit.queue.pop_front() {
            self.emit_batch(io, batch);
        }
        let (offset, durable, id) = (self.next, self.durable, self.id);
        let segment = self.active_for_padding();
        let size = record::padding_bytes(segment.end, config.pad_forces);
        if size == 0 {
            return;
        }
        let mut bytes = Vec::new();
        record::encode_padding(&mut bytes, segment.salt, offset, durable, now.wall_ms, size);
        let (file, position) = (segment.file, segment.end);
        segment.end += size;
        self.resize(size, 0);
        self.commit.planned_position = position + size;
        push_write(&mut self.commit, io, id, file, Bytes::from(bytes), position, offset, offset);
    }

    /// A slot write is never in flight beside an anchoring: a power loss could tear both slots.
    fn emit_slot(&mut self, io: &Io) {
        if self.commit.slot.is_some() || self.commit.slot_failed || self.anchoring {
            return;
        }
        // The other one may be half written: a power loss could tear both (crash story: both slots torn). This one waits for room, too.
        if self.torn == Some(Place::Anchored) {
            self.commit.slot_failed = self.commit.slot_wanted.is_some();
            return;
        }
        let Some(durable) = self.commit.slot_wanted.take() else { return };
        self.sequence += 1;
        let start = self.retention.recorded;
        let slot = Slot { log_id: self.toml.log_id, sequence: self.sequence, start, durable, clean: false };
        self.commit.slot = Some(durable);
        io.owned_by(Owner::Slot(self.id)).start(Effect::Write {
            file: self.watermark,
            position: watermark::RUNNING_POSITION,
            bytes: Bytes::copy_from_slice(&watermark::encode(&slot)),
        });
    }

    /// A write of frames has ended. `Err`: no room, or halt.
    pub(crate) fn write_ended(&mut self, id: EffectId, result: Result<(), IoError>) -> Result<(), super::Trouble> {
        let commit = &mut self.commit;
        let write = commit.writes.iter_mut().find(|write| write.state == WriteState::InFlight(id));
        let Some(write) = write else { return Ok(()) };
        let trouble = match result {
            Ok(()) => {
                write.state = WriteState::Done;
                None
            }
            Err(error) => {
                write.state = WriteState::Failed;
                Some(super::Trouble::full_or_halt(error))
            }
        };
        self.take_written();
        trouble.map_or(Ok(()), Err)
    }

    /// Moves the written mark over the writes that are done, in order.
    fn take_written(&mut self) {
        let commit = &mut self.commit;
        while commit.writes.front().is_some_and(|write| write.state == WriteState::Done) {
            let write = commit.writes.pop_front().expect("just seen");
            commit.written_position = write.position + write.bytes.len() as u64;
            self.written = write.end;
            if write.end > write.first {
                let segment = self.segments.back().expect("a topic has an active segment");
                let Write { bytes, position, first, end, .. } = write;
                commit.recent.push(Recent { first, end, base: segment.base, salt: segment.salt, position, bytes });
            }
        }
    }

    /// There may be room again: every write that failed is emitted once more, in order.
    pub(crate) fn retry_writes(&mut self, io: &Io) {
        let file = self.active().file;
        let id = self.id;
        // An earlier one that is still in flight keeps its place; one behind a failed one is written again, too.
        let mut failed = false;
        for write in &mut self.commit.writes {
            failed |= write.state == WriteState::Failed;
            if failed && !matches!(write.state, WriteState::InFlight(_)) {
                let effect = Effect::Write { file, position: write.position, bytes: write.bytes.clone() };
                write.state = WriteState::InFlight(io.owned_by(Owner::Write(id)).start(effect));
            }
        }
        self.commit.slot_failed = false;
    }

    /// A force has ended. Only a failure that is none of the force's own is forgiven.
    pub(crate) fn force_ended(&mut self, io: &Io, result: Result<(), IoError>, now: Now) -> Result<(), super::Trouble> {
        let commit = &mut self.commit;
        let force = commit.force.take().expect("a force was in flight");
        match result {
            Ok(()) => {
                let took = now.monotonic_ns.saturating_sub(force.begun_ns);
                commit.force_mean_ns = match commit.force_mean_ns {
                    0 => took,
                    mean => mean - mean / 8 + took / 8,
                };
                commit.forces += 1;
                commit.force_total_ns += took;
                commit.unforced_max = commit.unforced_max.max(self.next - commit.forced);
                commit.unforced_ns_max = commit.unforced_ns_max.max(now.monotonic_ns.saturating_sub(force.since_ns));
                commit.last_force_end_ns = now.monotonic_ns;
                let end = if planted!(io, ForceCoversLater) { commit.emitted } else { force.end };
                commit.forced = end;
                // Padding alone moves no line.
                if end > self.durable {
                    commit.slot_wanted = Some(end);
                }
                // What it covers is written, though the writes' own ends may be told later.
                for write in &mut commit.writes {
                    if matches!(write.state, WriteState::InFlight(id) if id < force.id) {
                        write.state = WriteState::Done;
                    }
                }
                self.take_written();
                Ok(())
            }
            // The write's own failure has been told, and it will be written and forced again.
            Err(error) if error.kind == IoErrorKind::AfterFailedWrite => {
                commit.failed_force = Some(force.id);
                commit.unforced_since_ns = Some(force.since_ns);
                Ok(())
            }
            // Never tried again: after a failed force the page cache shows what the disk does not have (P10).
            Err(error) => Err(super::Trouble::Halt(error)),
        }
    }

    /// The running slot has been written: the line moves.
    pub(crate) fn slot_ended(&mut self, result: Result<(), IoError>) -> Result<(), super::Trouble> {
        let durable = self.commit.slot.take().expect("a slot write was in flight");
        match result {
            Ok(()) => {
                self.durable = self.durable.max(durable);
                Ok(())
            }
            Err(error) => {
                self.commit.slot_wanted = Some(self.commit.slot_wanted.unwrap_or(durable).max(durable));
                let trouble = super::Trouble::full_or_halt(error);
                self.commit.slot_failed = true;
                Err(trouble)
            }
        }
    }
}

/// When what was written is to be forced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FlushDue {
    Now,
    At(u64),
    /// When there is more, or somebody waits for it.
    Later,
}

#[allow(clippy::too_many_arguments, reason = "one place that emits a write")]
fn push_write(
    commit: &mut Commit,
    io: &Io,
    id: TopicId,
    file: FileId,
    bytes: Bytes,
    position: u64,
    first: u64,
    end: u64,
) {
    let effect = Effect::Write { file, position, bytes: bytes.clone() };
    let state = WriteState::InFlight(io.owned_by(Owner::Write(id)).start(effect));
    commit.writes.push_back(Write { bytes, position, first, end, state });
}

/// Until when a force that could begin now is held. `None`: it begins.
fn hold_until(commit: &mut Commit, config: &Config, roll: Roll, now: Now) -> Option<u64> {
    let bound = config.gather_ns_max.min(commit.force_mean_ns / 2);
    let stale = now.monotonic_ns.saturating_sub(commit.last_force_end_ns) > GATHER_STALE_NS;
    if !config.group_commit || roll != Roll::No || stale || commit.gather.current >= commit.gather.expected {
        return None;
    }
    let until = *commit.gather.held_since_ns.get_or_insert(now.monotonic_ns) + bound;
    (now.monotonic_ns < until).then_some(until)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Decoded, Kind};

    const SALT: Salt = Salt(7);

    fn batch(offsets: core::ops::Range<u64>) -> Recent {
        let mut bytes = Vec::new();
        for offset in offsets.clone() {
            record::encode(&mut bytes, SALT, offset, 0, Kind::Message as u8, 0, |out| out.extend_from_slice(b"value"));
        }
        Recent {
            first: offsets.start,
            end: offsets.end,
            base: 0,
            salt: SALT,
            position: 1000 * offsets.start,
            bytes: Bytes::from(bytes),
        }
    }

    /// Forwards, backwards, into another batch and past what was forgotten: what is found begins with the message.
    #[test]
    fn a_batch_in_memory_is_found_from_the_message_on() {
        let mut recent = RecentBatches { bytes_max: 1 << 20, ..RecentBatches::default() };
        [3..8, 8..9, 9..20].into_iter().for_each(|offsets| recent.push(batch(offsets)));
        for offset in [3, 4, 7, 5, 8, 19, 9, 3] {
            let found = recent.find(offset).expect("it is there");
            let Decoded::Frame(frame) = record::decode(&found.bytes, SALT) else { panic!("{offset}") };
            assert_eq!(frame.offset, offset);
            let skipped = found.position % 1000;
            assert_eq!(skipped, (offset - found.position / 1000) * frame.size() as u64);
        }
        assert!(recent.find(2).is_none() && recent.find(20).is_none());
        recent.forget_below(8);
        assert!(recent.find(7).is_none() && recent.find(8).is_some());
    }
}
