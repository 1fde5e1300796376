//! A work-queue group: which message is reserved by whom, and until when (P15).
//!
//! A message is handed out to one connection at a time, and is that connection's alone until it confirms, gives it back, its lease
//! runs out or it is gone. What was given back is handed out again in the order of becoming due, before anything new. Leases are
//! of this process, by the clock that never steps; what outlives it is in the [`journal`](super::journal).
//!
//! | a message | is |
//! |---|---|
//! | below `next` and not pending | confirmed, or gone |
//! | pending, reserved | some connection's |
//! | pending, ready | to be handed out when it is due |
//! | pending, dying | on its way to the dead letters, nobody's |
//! | from `next` on | never handed out |

use super::journal::{Dying, Kept, Reason, Replayed, Run};
use crate::effect::ConnectionId;
use crate::event::Now;
use crate::protocol::{PendingState, PendingStatus};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;

/// What a pending message waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Reserved { connection: ConnectionId, until_ns: u64 },
    Ready { due_ns: u64 },
    Dying(Dying),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Pending {
    deliveries: u32,
    /// Why it was given back last.
    reason: Reason,
    state: State,
}

/// A message that was given to a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Taken {
    pub(crate) offset: u64,
    /// This delivery included.
    pub(crate) deliveries: u32,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Share {
    next: u64,
    pending: BTreeMap<u64, Pending>,
    leases: BTreeSet<(u64, u64)>,
    owned: BTreeMap<ConnectionId, BTreeSet<u64>>,
    ready: BTreeSet<(u64, u64)>,
    dying: BTreeSet<u64>,
    /// The sequence that the next dead letter gets.
    sequence: u32,
}

impl Share {
    /// As the journal has left it. All leases are gone: whoever had them is.
    pub(crate) fn recovered(replayed: &Replayed, now: Now) -> Share {
        let mut share = Share { next: replayed.next, sequence: replayed.sequence, ..Share::default() };
        for (offset, kept) in &replayed.pending {
            // A clock that was set back keeps nobody waiting for longer than it was to be.
            let left_ms = u64::try_from(kept.due_ms.saturating_sub(now.wall_ms)).unwrap_or(0).min(kept.delay_ms);
            let due_ns = if left_ms == 0 { 0 } else { after_ms(now.monotonic_ns, left_ms) };
            let state = kept.dying.map_or(State::Ready { due_ns }, State::Dying);
            share.insert(*offset, Pending { deliveries: kept.deliveries, reason: Reason::Restarted, state });
        }
        share
    }

    /// What is to outlive this process.
    pub(crate) fn checkpoint(&self, now: Now) -> Replayed {
        let kept = |pending: &Pending| {
            let mut kept = Kept { deliveries: pending.deliveries, ..Kept::default() };
            match pending.state {
                State::Ready { due_ns } if due_ns > now.monotonic_ns => {
                    let left_ms = (due_ns - now.monotonic_ns).div_ceil(1_000_000);
                    kept.due_ms = now.wall_ms.saturating_add_unsigned(left_ms);
                }
                // It is still being read. That it was handed out is recorded behind the checkpoint, and would count twice.
                State::Reserved { until_ns: u64::MAX, .. } => kept.deliveries -= 1,
                State::Dying(dying) => kept.dying = Some(dying),
                State::Ready { .. } | State::Reserved { .. } => {}
            }
            kept
        };
        let pending = self.pending.iter().map(|(offset, pending)| (*offset, kept(pending))).collect();
        Replayed { next: self.next, pending, sequence: self.sequence }
    }

    /// The first offset that was never handed out.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Everything below is confirmed, or gone.
    pub(crate) fn floor(&self) -> u64 {
        self.pending.keys().next().copied().unwrap_or(self.next)
    }

    /// All that are pending, in order.
    pub(crate) fn offsets(&self) -> impl Iterator<Item = u64> + '_ {
        self.pending.keys().copied()
    }

    /// How many messages are pending.
    pub(crate) fn pending(&self) -> u64 {
        self.pending.len() as u64
    }

    /// Whether anything could be handed out now, of messages below `limit`.
    pub(crate) fn has_ready(&self, limit: u64, pending_max: u64, now_ns: u64) -> bool {
        self.ready.first().is_some_and(|(due_ns, _)| *due_ns <= now_ns)
            || (self.next < limit && self.pending() < pending_max)
    }

    /// Hands out at most `max` messages below `limit`: what is due again first, then new ones in their order. One that has been handed
    /// out often enough is dying instead. They are the connection's until [`Share::extend`] says until when.
    pub(crate) fn take(
        &mut self,
        max: u64,
        limit: u64,
        bounds: Bounds,
        connection: ConnectionId,
        now_ns: u64,
    ) -> Vec<Taken> {
        let mut taken = Vec::new();
        while (taken.len() as u64) < max {
            let due = self.ready.first().copied().filter(|(due_ns, _)| *due_ns <= now_ns);
            let offset = match due {
                Some((_, offset)) => offset,
                None if self.next < limit && self.pending() < bounds.pending_max => {
                    let first = Pending { deliveries: 0, reason: Reason::Restarted, state: State::Ready { due_ns: 0 } };
                    self.insert(self.next, first);
                    self.next += 1;
                    self.next - 1
                }
                None => break,
            };
            let before = self.remove(offset).expect("it was just seen");
            if bounds.deliveries_max.is_some_and(|max| u64::from(before.deliveries) >= max) {
                self.die(offset, before);
                continue;
            }
            let deliveries = before.deliveries.saturating_add(1);
            let state = State::Reserved { connection, until_ns: u64::MAX };
            self.insert(offset, Pending { deliveries, state, ..before });
            taken.push(Taken { offset, deliveries });
        }
        taken
    }

    /// It was not handed out after all: as if it had never been taken. From `due_ns` on it can be.
    pub(crate) fn put_back(&mut self, offset: u64, due_ns: u64) {
        if let Some(pending) = self.remove(offset) {
            let state = State::Ready { due_ns };
            self.insert(offset, Pending { deliveries: pending.deliveries - 1, state, ..pending });
        }
    }

    /// How many messages are this connection's.
    pub(crate) fn reserved_by(&self, connection: ConnectionId) -> u64 {
        self.owned.get(&connection).map_or(0, BTreeSet::len) as u64
    }

    /// Whose the message is, and until when.
    pub(crate) fn holder(&self, offset: u64) -> Option<(ConnectionId, u64)> {
        match self.pending.get(&offset)?.state {
            State::Reserved { connection, until_ns } => Some((connection, until_ns)),
            _ => None,
        }
    }

    /// It is done, or gone; it is never handed out again.
    pub(crate) fn finish(&mut self, offset: u64) {
        self.remove(offset);
    }

    /// The messages from `first` to `end` are not in the log any more. One that is reserved stays so: its consumer has it, and may be this
    /// connection from before; what is just being read for it is gone. Says which were pending, or never handed out.
    pub(crate) fn gone(&mut self, first: u64, end: u64, connection: ConnectionId) -> Vec<Run> {
        let others = |pending: &Pending| match pending.state {
            State::Reserved { connection: owner, until_ns } => owner != connection || until_ns < u64::MAX,
            State::Dying(_) => true,
            State::Ready { .. } => false,
        };
        let pending = self.pending.range(first..end).filter(|(_, pending)| !others(pending));
        let mut offsets: Vec<u64> = pending.map(|(offset, _)| *offset).collect();
        offsets.iter().for_each(|offset| self.finish(*offset));
        if first <= self.next && end > self.next {
            let skipped = self.next;
            self.next = end;
            let mut gone = super::journal::runs(core::mem::take(&mut offsets));
            // Many may be gone at once: they are said in as few words as there are.
            let mut from = skipped;
            while from < end {
                let count = u32::try_from(end - from).unwrap_or(u32::MAX);
                gone.push((from, count));
                from += u64::from(count);
            }
            return gone;
        }
        super::journal::runs(offsets)
    }

    /// It is kept until another moment.
    pub(crate) fn extend(&mut self, offset: u64, until_ns: u64) {
        // The end of time stands for what is still being read: a lease that were as long would be nobody's to confirm.
        let until_ns = until_ns.min(u64::MAX - 1);
        if let Some(pending) = self.remove(offset)
            && let State::Reserved { connection, .. } = pending.state
        {
            self.insert(offset, Pending { state: State::Reserved { connection, until_ns }, ..pending });
        }
    }

    /// A reserved message is nobody's any more: it can be handed out again from `due_ns` on, or has been often enough.
    pub(crate) fn give_back(&mut self, offset: u64, due_ns: u64, reason: Reason, deliveries_max: Option<u64>) {
        let Some(pending) = self.remove(offset) else { return };
        let pending = Pending { reason, state: State::Ready { due_ns }, ..pending };
        if deliveries_max.is_some_and(|max| u64::from(pending.deliveries) >= max) {
            self.die(offset, pending);
        } else {
            self.insert(offset, pending);
        }
    }

    /// Messages whose lease has run out are given back.
    pub(crate) fn expire(&mut self, now_ns: u64, deliveries_max: Option<u64>) {
        while let Some((until_ns, offset)) = self.leases.first().copied().filter(|(until_ns, _)| *until_ns <= now_ns) {
            self.give_back(offset, until_ns, Reason::Expired, deliveries_max);
        }
    }

    /// All that is this connection's is given back.
    pub(crate) fn disconnect(&mut self, connection: ConnectionId, now_ns: u64, deliveries_max: Option<u64>) {
        let lost = self.owned.get(&connection).cloned().unwrap_or_default();
        for offset in lost {
            self.give_back(offset, now_ns, Reason::Disconnected, deliveries_max);
        }
    }

    /// The next moment at which something changes by itself.
    pub(crate) fn wake_ns(&self, now_ns: u64) -> Option<u64> {
        let lease = self.leases.first().map(|(at_ns, _)| *at_ns).filter(|at_ns| *at_ns < u64::MAX);
        // What is due already waits for a consumer, not for time.
        let due = self.ready.range((now_ns + 1, 0)..).next().map(|(at_ns, _)| *at_ns);
        [lease, due].into_iter().flatten().min()
    }

    /// Messages on their way to the dead letters.
    pub(crate) fn dying(&self) -> impl Iterator<Item = (u64, Dying)> + '_ {
        let dying_of = |offset: &u64| match self.pending[offset].state {
            State::Dying(dying) => (*offset, dying),
            _ => unreachable!("the set says what the map says"),
        };
        self.dying.iter().map(dying_of)
    }

    /// How often it was handed out.
    pub(crate) fn deliveries(&self, offset: u64) -> u32 {
        self.pending.get(&offset).map_or(0, |pending| pending.deliveries)
    }

    /// Messages that can be handed out now, that are reserved, and that are not due yet.
    pub(crate) fn counts(&self, limit: u64, now_ns: u64) -> (u64, u64, u64) {
        let delayed = self.ready.range((now_ns + 1, 0)..).count() as u64;
        let ready = self.ready.len() as u64 - delayed + limit.saturating_sub(self.next);
        (ready, self.leases.len() as u64, delayed)
    }

    /// Pending messages from `from` on, at most so many.
    pub(crate) fn list(
        &self,
        from: u64,
        max: u64,
        now_ns: u64,
        peer: impl Fn(ConnectionId) -> String,
    ) -> Vec<PendingStatus> {
        let ms = |until_ns: u64| until_ns.saturating_sub(now_ns).div_ceil(1_000_000);
        let status = |(offset, pending): (&u64, &Pending)| PendingStatus {
            offset: *offset,
            deliveries: pending.deliveries,
            state: match pending.state {
                State::Reserved { connection, until_ns } => {
                    PendingState::Reserved { connection: connection.0, peer: peer(connection), left_ms: ms(until_ns) }
                }
                State::Ready { due_ns } => PendingState::Ready { due_ms: ms(due_ns) },
                State::Dying(_) => PendingState::Dying,
            },
        };
        self.pending.range(from..).take(max as usize).map(status).collect()
    }

    fn die(&mut self, offset: u64, pending: Pending) {
        let dying = Dying { sequence: self.sequence, reason: pending.reason };
        self.sequence = self.sequence.wrapping_add(1);
        self.insert(offset, Pending { state: State::Dying(dying), ..pending });
    }

    fn insert(&mut self, offset: u64, pending: Pending) {
        match pending.state {
            State::Reserved { connection, until_ns } => {
                self.owned.entry(connection).or_default().insert(offset);
                self.leases.insert((until_ns, offset))
            }
            State::Ready { due_ns } => self.ready.insert((due_ns, offset)),
            State::Dying(_) => self.dying.insert(offset),
        };
        self.pending.insert(offset, pending);
    }

    fn remove(&mut self, offset: u64) -> Option<Pending> {
        let pending = self.pending.remove(&offset)?;
        match pending.state {
            State::Reserved { connection, until_ns } => {
                if let Some(owned) = self.owned.get_mut(&connection) {
                    owned.remove(&offset);
                    if owned.is_empty() {
                        self.owned.remove(&connection);
                    }
                }
                self.leases.remove(&(until_ns, offset))
            }
            State::Ready { due_ns } => self.ready.remove(&(due_ns, offset)),
            State::Dying(_) => self.dying.remove(&offset),
        };
        Some(pending)
    }
}

/// What holds for a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Bounds {
    /// Messages that may be pending.
    pub(crate) pending_max: u64,
    /// How often a message is handed out before it dies.
    pub(crate) deliveries_max: Option<u64>,
}

/// So many milliseconds later.
pub(crate) fn after_ms(now_ns: u64, ms: u64) -> u64 {
    now_ns.saturating_add(ms.saturating_mul(1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However long a lease is asked for: the message is the consumer's, and counted as handed out.
    #[test]
    fn p15_a_lease_without_an_end_is_a_lease() {
        let (bounds, connection) = (Bounds { pending_max: 10, deliveries_max: None }, ConnectionId(1));
        let mut share = Share::default();
        share.take(1, 9, bounds, connection, 0);
        share.extend(0, after_ms(5, u64::MAX));
        assert_eq!(share.holder(0), Some((connection, u64::MAX - 1)));
        let now = Now { monotonic_ns: 5, wall_ms: 0 };
        assert_eq!(share.checkpoint(now).pending[&0].deliveries, 1);
    }

    /// A gap takes what is just being read for its connection, and nothing that the connection has from before.
    #[test]
    fn p15_what_a_consumer_has_stays_its_own_when_it_is_gone_from_the_log() {
        let (bounds, connection) = (Bounds { pending_max: 10, deliveries_max: None }, ConnectionId(1));
        let mut share = Share::default();
        share.take(3, 9, bounds, connection, 0);
        [1, 2].into_iter().for_each(|offset| share.extend(offset, 99));
        assert_eq!(share.gone(0, 5, connection), [(0, 1), (3, 2)]);
        let holders: Vec<_> = (0..4).map(|offset| share.holder(offset).map(|(_, until_ns)| until_ns)).collect();
        assert_eq!(holders, [None, Some(99), Some(99), None]);
    }
}
