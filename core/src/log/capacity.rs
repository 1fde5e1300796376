//! Capacity: the bound on the bytes of a log, and on those of all logs together.
//!
//! What counts are the frames in the segments of a log, written or planned. A log without a message counts nothing: it may have padding,
//! or messages that were purged in its active segment, and nobody could take either away. What becomes of a message that has no room is
//! the topic's to say (`on-full`): its messages stay and the new one is refused, or its oldest ones go.

use super::{Admission, Topic};
use crate::config::Config;
use crate::error::{Code, RequestError};
use crate::io::Io;
use crate::planted::planted;
use crate::settings::Setting;
use alloc::format;
use alloc::rc::Rc;
use core::cell::Cell;

/// The bytes of a log, kept up to date where segments grow and go: adding them up would take longer the longer the log is.
#[derive(Debug, Default)]
pub(crate) struct Size {
    bytes: u64,
    counted: u64,
    /// What counts of this log and those that it has joined.
    total: Rc<Cell<u64>>,
}

impl Size {
    /// Of all segments.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What of it counts against a capacity.
    pub(crate) fn counted(&self) -> u64 {
        self.counted
    }

    /// From now on it is part of this total.
    pub(crate) fn join(&mut self, total: &Rc<Cell<u64>>) {
        self.leave();
        total.set(total.get() + self.counted);
        self.total = total.clone();
    }

    /// It is a total of its own again.
    pub(crate) fn leave(&mut self) {
        self.total.set(self.total.get() - self.counted);
        self.total = Rc::new(Cell::new(self.counted));
    }
}

/// A message that would take all logs together over their capacity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OverTotal {
    /// What counts of all logs.
    bytes: u64,
    capacity: u64,
    /// The message's.
    size: u64,
}

impl OverTotal {
    /// So many bytes have to go for it. `None`: it would never have its place.
    pub(crate) fn bytes_too_many(&self) -> Option<u64> {
        (self.size <= self.capacity).then(|| self.bytes + self.size - self.capacity)
    }

    /// The answer where they can't.
    pub(crate) fn refusal(&self) -> RequestError {
        RequestError::new(
            Code::OverCapacity,
            format!(
                "all topics together have {} bytes, and total-capacity is {}; nothing of the message was stored; PURGE or DELETE a topic, or raise it",
                self.bytes, self.capacity
            ),
        )
    }
}

/// A segment that may go so that others have room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Droppable {
    pub(crate) newest_ms: Option<i64>,
    /// What would count less.
    pub(crate) bytes: u64,
}

impl Topic {
    /// Bytes of its segments have come or gone, or its marks have moved.
    pub(crate) fn resize(&mut self, come: u64, gone: u64) {
        let has_messages = self.start < self.next;
        let size = &mut self.size;
        size.bytes = size.bytes + come - gone;
        let counted = if has_messages { size.bytes } else { 0 };
        size.total.set(size.total.get() - size.counted + counted);
        size.counted = counted;
    }

    /// Whether its oldest messages may go where there is no room for new ones.
    pub(crate) fn drops_oldest(&self, io: &Io) -> bool {
        self.policy.get(Setting::OnFull) == 1 || planted!(io, CapacityDrops)
    }

    /// What counts of it and is on its way to go, whatever happens: so many bytes, in so many segments.
    pub(crate) fn going(&self) -> (u64, usize) {
        let wanted = self.retention.wanted().max(self.start);
        if self.deleting || wanted >= self.next {
            return (self.size.counted, self.segments.len());
        }
        let segments = self.segments.partition_point(|segment| segment.base <= wanted).saturating_sub(1);
        (self.segments.iter().take(segments).map(|segment| segment.end).sum(), segments)
    }

    /// Its segment at this place, if it has messages.
    pub(crate) fn droppable(&self, at: usize) -> Option<Droppable> {
        let segment = self.segments.get(at)?;
        let next = self.segments.get(at + 1).map_or(self.next, |next| next.base);
        // A log that has no messages left counts nothing, also where it has padding.
        let padding: u64 =
            self.segments.iter().skip(at + 1).filter(|rest| rest.base == self.next).map(|rest| rest.end).sum();
        let (newest_ms, bytes) = (segment.index.time_max_ms(), segment.end + padding);
        (next > segment.base).then_some(Droppable { newest_ms, bytes })
    }

    /// Everything up to and with the segment at this place is to go. The active one is closed first; every message in it is forced, and every
    /// DURABLE publish answered, before it goes.
    pub(crate) fn drop_through(&mut self, at: usize) {
        match self.segments.get(at + 1) {
            Some(next) => {
                let start = next.base;
                self.want_start(start);
            }
            None => {
                self.want_roll();
                self.retention.drops_active = true;
            }
        }
    }

    /// The bounds on the bytes of the log, and of all logs. `None`: the message keeps them.
    pub(super) fn keep_capacity(&mut self, config: &Config, io: &Io, size: u64) -> Option<Admission> {
        debug_assert_eq!(self.size.bytes, self.segments.iter().map(|segment| segment.end).sum::<u64>());
        debug_assert_eq!(self.size.counted, if self.start < self.next { self.size.bytes } else { 0 });
        self.keep_own_capacity(io, size).or_else(|| {
            let (bytes, capacity) = (self.size.total.get(), config.total_capacity_bytes);
            let is_over = capacity > 0 && bytes + size > capacity;
            is_over.then_some(Admission::OverTotal(OverTotal { bytes, capacity, size }))
        })
    }

    fn keep_own_capacity(&mut self, io: &Io, size: u64) -> Option<Admission> {
        let capacity = self.policy.bound(Setting::CapacityBytes)?;
        let bytes = self.size.counted;
        let over = (bytes + size).checked_sub(capacity).filter(|over| *over > 0)?;
        // A message larger than the capacity would never have its place.
        if self.drops_oldest(io) && size <= capacity {
            self.drop_oldest(over);
            // On a full disk it would wait for who knows how long (P11).
            return Some(self.park_or_refuse());
        }
        Some(Admission::Refused(RequestError::new(
            Code::OverCapacity,
            format!(
                "topic {} has {bytes} bytes, and capacity-bytes is {capacity}; nothing of the message was stored; PURGE the topic, or raise it",
                self.name
            ),
        )))
    }
}
