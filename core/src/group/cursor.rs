//! An ordered consumer group: one committed offset, one holder at a time, one cursor for that holder.
//!
//! Delivery starts at the committed offset when a connection first fetches, goes on after the last delivered message
//! within that connection, and starts again from the committed offset on the next connection (P6).
//! A committed offset is answered only after its file has been replaced and the directory forced (P5; crash story:
//! *ACKED from the cache*). What is asked for while one replacement is under way goes into one next replacement.

use crate::effect::ConnectionId;
use crate::log::read::Hint;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// The connection that a group is delivered to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Holder {
    pub(crate) connection: ConnectionId,
    /// The next offset to deliver; everything from the committed offset up to it was sent to this connection.
    pub(crate) next: u64,
    pub(crate) hint: Option<Hint>,
}

/// Someone who waits for a commit to be on the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Waiter {
    pub(crate) connection: ConnectionId,
    pub(crate) request: u64,
    /// What it asked for.
    pub(crate) purpose: Purpose,
}

/// Why a group's offset is replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// It only moves forward.
    Ack,
    /// It goes anywhere, and nobody else may hold the group meanwhile.
    Seek,
    /// It goes to 0, and then the file is removed. Nobody may hold the group meanwhile.
    Delete,
}

/// One replacement of the offset file, wished for or under way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Replacement {
    pub(crate) offset: u64,
    pub(crate) purpose: Purpose,
    pub(crate) waiters: Vec<Waiter>,
}

/// A group.
#[derive(Debug, Default)]
pub(crate) struct Group {
    /// Everything below is acknowledged, on disk.
    pub(crate) committed: u64,
    /// Whether there is a file.
    pub(crate) stored: bool,
    pub(crate) holder: Option<Holder>,
    pub(crate) running: Option<Replacement>,
    wished: VecDeque<Replacement>,
}

impl Group {
    /// A group whose committed offset came from its file.
    pub(crate) fn recovered(committed: u64) -> Group {
        Group { committed, stored: true, ..Group::default() }
    }

    /// Whether nothing is under way.
    pub(crate) fn is_settled(&self) -> bool {
        self.running.is_none() && self.wished.is_empty()
    }

    /// The lowest offset that it has committed or is being moved to: what a SEEK goes back to is not to go before it is answered.
    pub(crate) fn lowest(&self) -> u64 {
        let wished = self.running.iter().chain(&self.wished).map(|replacement| replacement.offset);
        wished.fold(self.committed, u64::min)
    }

    /// Whether forgetting the group loses nothing.
    pub(crate) fn is_empty(&self) -> bool {
        !self.stored && self.holder.is_none() && self.is_settled()
    }

    /// The cursor of this connection, if it holds the group.
    pub(crate) fn holder_mut(&mut self, connection: ConnectionId) -> Option<&mut Holder> {
        self.holder.as_mut().filter(|holder| holder.connection == connection)
    }

    /// Whether another connection's SEEK (or DELETE) is being stored. Who came to hold the group meanwhile would read on from before it, and
    /// its next ACK would undo it.
    pub(crate) fn is_sought_by_other(&self, connection: ConnectionId) -> bool {
        let seeks = self.running.iter().chain(&self.wished).filter(|replacement| replacement.purpose != Purpose::Ack);
        seeks.flat_map(|replacement| &replacement.waiters).any(|waiter| waiter.connection != connection)
    }

    /// Takes an acknowledgement in. ACKs are coalesced; one behind a SEEK stays behind it.
    pub(crate) fn wish_ack(&mut self, offset: u64, waiter: Waiter) {
        match self.wished.back_mut().filter(|last| last.purpose == Purpose::Ack) {
            Some(last) => {
                last.offset = last.offset.max(offset);
                last.waiters.push(waiter);
            }
            None => self.wish(offset, waiter),
        }
    }

    /// Takes a SEEK in.
    pub(crate) fn wish_seek(&mut self, offset: u64, waiter: Waiter) {
        self.wish(offset, waiter);
    }

    /// Takes a DELETE in.
    pub(crate) fn wish_delete(&mut self, waiter: Waiter) {
        self.wish(0, waiter);
    }

    fn wish(&mut self, offset: u64, waiter: Waiter) {
        let purpose = waiter.purpose;
        self.wished.push_back(Replacement { offset, purpose, waiters: Vec::from([waiter]) });
    }

    /// Begins the next replacement, if none is under way. An ACK never moves the offset backwards (P5).
    pub(crate) fn begin(&mut self) -> Option<(u64, Purpose)> {
        if self.running.is_some() {
            return None;
        }
        let mut next = self.wished.pop_front()?;
        if next.purpose == Purpose::Ack {
            next.offset = next.offset.max(self.committed);
        }
        let begun = (next.offset, next.purpose);
        self.running = Some(next);
        Some(begun)
    }

    /// The replacement is on the disk, directory and all.
    pub(crate) fn committed(&mut self) -> Replacement {
        let done = self.running.take().expect("a replacement was under way");
        self.committed = done.offset;
        self.stored = done.purpose != Purpose::Delete;
        // The ACK of a connection that is gone, told to the next one: what it acknowledged is not sent again.
        if let Some(holder) =
            self.holder.as_mut().filter(|holder| done.purpose == Purpose::Ack && holder.next < done.offset)
        {
            (holder.next, holder.hint) = (done.offset, None);
        }
        done
    }

    /// It failed for want of room; the old offset stands.
    pub(crate) fn refused(&mut self) -> Replacement {
        self.running.take().expect("a replacement was under way")
    }
}
