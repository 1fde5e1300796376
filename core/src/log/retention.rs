//! Retention: how the front of a log goes away (P12).
//!
//! A removal has four steps, each of which may be the last before a crash:
//!
//! 1. the new start is **recorded**: anchored in both slots, like the line. Until then readers see the old start;
//! 2. the segments that lie wholly below it are closed, and who is still being sent a part of one is cut off: a file that is held open
//!    gives no space back;
//! 3. they are removed, the oldest first, so that there is never a hole in what is left;
//! 4. the directory is forced.
//!
//! A crash before the end of 1 leaves the old start or the new one, and every segment. A crash behind it leaves segments below the start:
//! recovery ignores them, whatever is missing among them, and removes them when it has anchored the start itself (crash stories: *the start
//! that went back*, *believed, removed, forgotten*, *unlinks out of order*).
//!
//! Once a start is being recorded it is written with every slot, so it never goes back, whatever fails.

use super::group_commit::Waiter;
use super::{Roll, Segment, Topic, Trouble, dedup};
use crate::event::Now;
use crate::group::cursor::Group;
use crate::io::Io;
use crate::layout;
use crate::planted::planted;
use crate::settings::Setting;
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::mem;

/// How far the front of a log is on its way to go.
#[derive(Debug, Default)]
pub(crate) struct Retention {
    /// Where the log is to begin because somebody asked for that, or there is no other way to make room.
    wanted: u64,
    /// Where the policies let it begin, when they were asked last. A group may move back before that is recorded.
    allowed: u64,
    /// Up to here, what has to outlive the messages has been stored.
    prepared: u64,
    pub(super) preparing: bool,
    /// What the slots say from now on; at or above the start that readers see, which follows when it is anchored.
    pub(crate) recorded: u64,
    removing: bool,
    /// The policies are to be asked again: a segment was closed, a group has moved on, time has passed, …
    pub(crate) due: bool,
    /// When the active segment got its first message, as far as this process knows. By the clock that never steps.
    pub(crate) active_since_ns: Option<u64>,
    /// There was no room at the last attempt; it is tried again together with the writes.
    pub(crate) blocked: bool,
    /// A roll is wanted so that the space of the active segment can be given back. It is tried even though the disk is full.
    pub(crate) rolls: bool,
    /// The active segment goes as soon as it is closed.
    pub(crate) drops_active: bool,
    /// Clients that wait for their PURGE.
    pub(crate) purges: VecDeque<Waiter>,
}

/// What can be begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// [`dedup::before_start_moves`], with this start.
    Prepare(u64),
    /// Anchoring.
    Anchor,
    /// [`Topic::take_removable`] and [`remove`].
    Remove,
}

impl Retention {
    /// Of a log whose both slots will say this start.
    pub(crate) fn recovered(start: u64) -> Retention {
        Retention { wanted: start, prepared: start, recorded: start, due: true, ..Retention::default() }
    }

    /// Where the log is to begin for sure.
    pub(crate) fn wanted(&self) -> u64 {
        self.wanted
    }

    fn goal(&self) -> u64 {
        self.wanted.max(self.allowed)
    }

    /// What had to be stored before the start may move to `start` is stored, or there was no room.
    pub(crate) fn prepare_ended(&mut self, start: u64, is_stored: bool) {
        self.preparing = false;
        self.blocked |= !is_stored;
        if is_stored {
            self.prepared = start;
        }
    }

    /// Up to here everything is stored that has to be before the start may move there.
    pub(crate) fn prepared(&self) -> u64 {
        self.prepared
    }

    /// The files are gone.
    pub(crate) fn remove_ended(&mut self) {
        self.removing = false;
    }
}

impl Topic {
    /// The log is to begin at `start`, at or below the line. Whole segments below it go.
    pub(crate) fn want_start(&mut self, start: u64) {
        debug_assert!(start <= self.durable);
        self.retention.wanted = self.retention.wanted.max(start);
        // Were the active segment left, the space of everything that was purged would stay taken.
        if start == self.next && start > self.active().base {
            self.want_roll();
        }
    }

    /// How far the policies let the front of the log go: over whole segments, as long as any policy gives one up. The active segment is
    /// none of them, unless it `is_closing`.
    fn policy_start(&self, wall_ms: i64, is_closing: bool) -> u64 {
        let bytes_kept = self.policy.bound(Setting::RetainBytes);
        let oldest_ms = self.oldest_ms(wall_ms);
        // Groups that have committed nothing count as well; without groups nothing is consumed.
        let wants_consumed = self.policy.get(Setting::RetainConsumed) == 1;
        // Asked with every ACK: most topics have no policy, and some have many segments.
        if bytes_kept.is_none() && oldest_ms.is_none() && !wants_consumed {
            return self.start;
        }
        let by_groups = self.groups.values().map(Group::lowest);
        let by_queues = self.queues.values().map(|queue| queue.confirmed);
        let consumed = by_groups.chain(by_queues).min().filter(|_| wants_consumed);
        // What has an offset and is not written may still be lost, so it is not counted as kept.
        let active_bytes = if is_closing { self.active().end } else { self.commit.written_position };
        let mut bytes = self.size.bytes() - self.active().end + active_bytes;
        let mut start = self.start;
        for (at, segment) in self.segments.iter().enumerate() {
            let next = self.segments.get(at + 1).map(|next| next.base).or(is_closing.then_some(self.next));
            let Some(next) = next.filter(|next| *next > segment.base) else { break };
            bytes -= segment.end;
            let goes = bytes_kept.is_some_and(|kept| bytes >= kept)
                || oldest_ms.is_some_and(|oldest| segment.is_older_than(oldest))
                || consumed.is_some_and(|consumed| next <= consumed);
            if !goes {
                break;
            }
            start = next;
        }
        start.max(self.start)
    }

    /// Messages of before this moment go by their age.
    fn oldest_ms(&self, wall_ms: i64) -> Option<i64> {
        self.policy.bound(Setting::RetainMs).map(|ms| wall_ms.saturating_sub(ms as i64))
    }

    /// Some time has passed: a segment that takes messages for too long, or whose messages are all too old, is closed.
    pub(crate) fn age(&mut self, now: Now) {
        self.retention.due = true;
        let is_empty = self.next == self.active().base;
        let is_old = self.oldest_ms(now.wall_ms).is_some_and(|oldest| self.active().is_older_than(oldest));
        let roll_ns = self.policy.bound(Setting::RollMs).map(|ms| ms.saturating_mul(1_000_000));
        let since_ns = self.retention.active_since_ns.unwrap_or(now.monotonic_ns);
        let is_due = roll_ns.is_some_and(|roll_ns| now.monotonic_ns - since_ns >= roll_ns);
        if !is_empty && !self.deleting && (is_due || is_old) {
            self.want_roll();
        }
    }

    /// How often time has to be looked at for this topic, milliseconds; `None`: never.
    pub(crate) fn age_interval_ms(&self) -> Option<u64> {
        let bounds = [Setting::RetainMs, Setting::RollMs].map(|setting| self.policy.bound(setting));
        bounds.into_iter().flatten().min()
    }

    /// Whole segments go, the oldest first, until so many bytes are free. Where only the active one is left, it is closed for that; then
    /// every message in it is forced, and every DURABLE publish answered, before it goes.
    pub(crate) fn drop_oldest(&mut self, bytes: u64) {
        let (mut freed, mut start) = (0, self.start);
        for (segment, next) in self.segments.iter().zip(self.segments.iter().skip(1)) {
            if freed >= bytes {
                break;
            }
            freed += segment.end;
            start = next.base;
        }
        self.retention.wanted = self.retention.wanted.max(start);
        if freed < bytes && self.next > self.active().base {
            self.want_roll();
        }
    }

    /// The active segment is to be closed, so that it can go.
    pub(crate) fn want_roll(&mut self) {
        self.retention.rolls = true;
        if self.roll == Roll::No {
            self.roll = Roll::Wanted;
        }
    }

    /// The next step that nothing stands in the way of; it counts as begun.
    pub(crate) fn begin_retention(&mut self, io: &Io) -> Option<Step> {
        if self.deleting {
            return None;
        }
        if mem::take(&mut self.retention.due) || self.retention.allowed > self.start {
            let mut start = self.policy_start(io.now().wall_ms, false);
            if planted!(io, PolicyTakesOneMore) && start > self.start {
                start = self.segments.iter().map(|segment| segment.base).find(|base| *base > start).unwrap_or(start);
            }
            self.retention.allowed = start;
        }
        // One that is being packed would get its name back.
        let is_packed = self.packing.segment.is_some_and(|base| base < self.start);
        if self.is_removable() && !self.retention.removing && !is_packed {
            self.retention.removing = true;
            return Some(Step::Remove);
        }
        let retention = &mut self.retention;
        if retention.blocked {
            return None;
        }
        if retention.goal() > retention.prepared && !retention.preparing {
            retention.preparing = true;
            return Some(Step::Prepare(retention.goal()));
        }
        // A roll anchors anyway. One that can't be begun for want of room is not waited for.
        let no_roll = self.roll == Roll::No || (self.roll == Roll::Wanted && self.space.full && !retention.rolls);
        if retention.goal().min(retention.prepared) > self.start
            && no_roll
            && !self.anchoring
            && !self.commit.is_slot_in_flight()
        {
            self.record_start(io);
            self.anchoring = true;
            return Some(Step::Anchor);
        }
        None
    }

    /// The next anchoring records the new start, if one is wanted and ready.
    pub(crate) fn record_start(&mut self, io: &Io) {
        let start = self.retention.goal().min(self.retention.prepared);
        self.retention.recorded = self.retention.recorded.max(start);
        if planted!(io, RemovalBeforeStart) {
            self.start = self.retention.recorded;
            self.resize(0, 0);
        }
    }

    fn is_removable(&self) -> bool {
        self.segments.get(1).is_some_and(|second| second.base <= self.start)
    }

    /// Takes the segments out that lie wholly below the start.
    pub(crate) fn take_removable(&mut self) -> Vec<Segment> {
        let mut gone = Vec::new();
        while self.is_removable() {
            gone.extend(self.segments.pop_front());
        }
        self.resize(0, gone.iter().map(|segment: &Segment| segment.end).sum());
        gone
    }

    /// Those whose PURGE is done: the start is recorded, and what lay below it is removed.
    pub(crate) fn purges_done(&mut self) -> Vec<Waiter> {
        if self.retention.removing || self.is_removable() {
            return Vec::new();
        }
        let start = self.start;
        let purges = mem::take(&mut self.retention.purges);
        let (done, open): (VecDeque<Waiter>, _) = purges.into_iter().partition(|purge| purge.offset <= start);
        self.retention.purges = open;
        done.into()
    }

    /// Whether what has to be stored before messages go is being stored.
    pub(crate) fn is_preparing_start(&self) -> bool {
        self.retention.preparing
    }

    /// Whether the front of the log is on its way.
    pub(crate) fn is_moving_start(&self) -> bool {
        self.retention.preparing || self.retention.removing || !self.retention.purges.is_empty()
    }
}

/// Before a roll anchors: the start that the policies allow once the active segment is closed is recorded with it.
pub(crate) async fn prepare_at_roll(io: &Io, topic: &Rc<RefCell<Topic>>) -> Result<(), Trouble> {
    let start = {
        let mut topic = topic.borrow_mut();
        let start = topic.policy_start(io.now().wall_ms, true);
        topic.retention.allowed = start;
        if start <= topic.retention.prepared || topic.retention.preparing {
            return Ok(());
        }
        topic.retention.preparing = true;
        start
    };
    let result = dedup::before_start_moves(io, topic, start).await;
    topic.borrow_mut().retention.prepare_ended(start, result.is_ok());
    result
}

/// Removes segments that were taken out and closed.
pub(crate) async fn remove(io: &Io, dir: &str, mut bases: Vec<u64>) -> Result<(), Trouble> {
    if planted!(io, NewestFirst) {
        bases.reverse();
    }
    for base in bases {
        // The index first: one without its segment says nothing. One that stays is removed by the next start.
        let _ = io.remove(&layout::index(dir, base)).await;
        io.remove(&layout::segment(dir, base)).await.map_err(Trouble::Halt)?;
    }
    let log: String = layout::log(dir);
    io.force_dir(&log).await.map_err(Trouble::Halt)
}
