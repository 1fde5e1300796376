//! Work queues: handing messages out, taking confirmations, recording both in the journal (P15).
//!
//! What is decided about one message is in [`Share`]; what outlives the process goes into the journal, in the order in which it is
//! decided. A reservation is answered when its record is written, so that a kill loses no count; a confirmation when its record is forced.
//!
//! Operations that have been carried out and found no place in the journal yet wait in [`Queue::operations`], and nothing goes into the
//! journal before them. A **checkpoint** contains what they have done, so it takes their place. It is the first frame of each new segment;
//! when it is forced, the journal begins there, and what stood before it goes as retention lets segments go (crash story: *the checkpoint
//! that was not there yet*).

use super::burials::Burial;
use super::{Broker, Ended, Phase, Reader, Timer, end_of_nothing};
use crate::connection::{Connection, Slot, Stall};
use crate::effect::{ConnectionId, FieldValue};
use crate::error::{Code, RequestError};
use crate::group::journal::{self, Reason, Replayed, Run};
use crate::group::share::{Bounds, Share, Taken, after_ms};
use crate::io::TopicId;
use crate::layout;
use crate::log::group_commit::{self, Answer, Waiter};
use crate::log::read::{self, Handed};
use crate::log::{Appended, QueueRef, Topic, Trouble, create};
use crate::planted::planted;
use crate::protocol::{QueueStatus, Reply, Request, TopicRef, line};
use crate::settings::{Setting, Settings};
use crate::start;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::RefCell;

/// A damaged message is not handed out again before this has passed, so that those behind it are.
const DAMAGED_MS: u64 = 1_000;

/// A work queue. Its journal is in the table of topics.
pub(super) struct Queue {
    pub(super) topic: TopicId,
    pub(super) group: String,
    pub(super) share: Share,
    /// Connections whose RESERVE waits for a message, first come first served.
    waiting: VecDeque<ConnectionId>,
    /// Those are being served, one after the other: whoever finds that there is more for them leaves it to that.
    waking: bool,
    /// Messages that were taken for a connection and are being read.
    reading: BTreeMap<ConnectionId, Vec<Taken>>,
    /// What was carried out and has no place in the journal yet.
    pub(super) operations: VecDeque<Operation>,
    checkpoint: Checkpoint,
    /// Everything below the second is confirmed, once the journal is forced up to and including the first.
    confirmed: VecDeque<(u64, u64)>,
    /// Messages on their way to the dead letters.
    pub(super) burials: BTreeMap<u64, Burial>,
    /// When a burial that could not go on is tried again.
    pub(super) retry_ns: Option<u64>,
    timer_ns: Option<u64>,
}

/// An operation that was carried out, and who waits for it to be written.
pub(super) struct Operation {
    bytes: Vec<u8>,
    waiting: Option<Written>,
}

impl Operation {
    /// One that nobody waits for.
    pub(super) fn unwaited(bytes: Vec<u8>) -> Operation {
        Operation { bytes, waiting: None }
    }
}

/// Who is answered when an operation has been written.
struct Written {
    connection: ConnectionId,
    slot: u64,
}

/// How far a journal is on its way to begin at its newest checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Checkpoint {
    No,
    /// A new segment has begun, or something was left out for want of room: before anything else goes in.
    Due,
    /// It has this offset, in the segment with this base.
    At {
        offset: u64,
        base: u64,
    },
}

impl Queue {
    pub(super) fn new(topic: TopicId, group: String, share: Share) -> Queue {
        Queue {
            topic,
            group,
            share,
            waiting: VecDeque::new(),
            waking: false,
            reading: BTreeMap::new(),
            operations: VecDeque::new(),
            checkpoint: Checkpoint::No,
            confirmed: VecDeque::new(),
            burials: BTreeMap::new(),
            retry_ns: None,
            timer_ns: None,
        }
    }

    /// The broker stops: nobody waits any more.
    pub(super) fn stop(&mut self) {
        self.waiting.clear();
    }

    /// Whether everything that was carried out stands in the journal, if that has room, and nothing is being read.
    fn is_settled(&self, has_room: bool) -> bool {
        self.operations.is_empty() && self.reading.is_empty() && (self.checkpoint != Checkpoint::Due || !has_room)
    }
}

impl Broker {
    /// Whether a broker that stops need not wait for any queue.
    pub(super) fn queues_are_settled(&self) -> bool {
        self.queues.iter().all(|(journal, queue)| queue.is_settled(self.takes_operations(*journal)))
    }

    // ---- finding and making queues -----------------------------------------------------------------------------------

    /// The journal of the group, which must be a work queue that is there.
    pub(super) fn queue_id(&self, topic: &TopicRef, group: &str) -> Result<TopicId, RequestError> {
        let topic_id = self.topic_or_error(topic)?;
        let topic = self.topics[topic_id.0].borrow();
        if let Some(queue) = topic.queues.get(group) {
            return Ok(queue.journal);
        }
        if topic.groups.contains_key(group) {
            return Err(wrong_kind(group, "an ordered group", "FETCH and ACK"));
        }
        let sentence = format!("topic {} has no work queue {group}; RESERVE makes it", topic.name);
        Err(RequestError::new(Code::NoGroup, sentence))
    }

    /// That a group is not a work queue, for the verbs of ordered groups.
    pub(super) fn is_ordered_or_error(&self, topic: TopicId, group: &str) -> Result<(), RequestError> {
        match self.topics[topic.0].borrow().queues.contains_key(group) {
            true => Err(wrong_kind(group, "a work queue", "RESERVE and CONFIRM")),
            false => Ok(()),
        }
    }

    /// The first request for a queue makes it.
    pub(super) fn reserve_when_ready(&mut self, id: ConnectionId, client: &mut Connection, request: Request) {
        let Request::Reserve { topic, group, .. } = &request else { return };
        match self.queue_id(topic, group) {
            Ok(journal) => {
                // What is to be recorded later must not pile up.
                self.run_operations(journal);
                if self.queues[&journal].is_behind() && self.takes_operations(journal) {
                    return self.park(client, id, journal, request);
                }
                let slot = client.open_slot();
                self.reserve(id, client, slot, request);
            }
            Err(error) if error.code == Code::NoGroup => match self.make_queue(id, topic, group) {
                Ok(()) => client.stall = Some(Stall::Creation(request)),
                Err(error) => client.answer_now(Slot::of(&Reply::Error(error))),
            },
            Err(error) => client.answer_now(Slot::of(&Reply::Error(error))),
        }
    }

    fn make_queue(&mut self, connection: ConnectionId, topic: &TopicRef, group: &str) -> Result<(), RequestError> {
        let topic_id = self.topic_or_error(topic)?;
        let topic = self.topics[topic_id.0].clone();
        let key = format!("{}/{group}", topic.borrow().name);
        if let Some(waiting) = self.creating.get_mut(&key) {
            waiting.push(connection);
            return Ok(());
        }
        if let Some(deletion) = self.deleting.get_mut(&key) {
            deletion.creators.push(connection);
            return Ok(());
        }
        self.room_for_group(&topic.borrow())?;
        // It begins with what is there, and what is being packed is still there.
        topic.borrow_mut().packing.cancelled = true;
        self.creating.insert(key.clone(), Vec::from([connection]));
        let toml = start::new_topic(&self.io, &self.config, &key, Settings::NONE);
        let (config, indexes, group) = (self.config.clone(), self.indexes.clone(), String::from(group));
        self.spawn(|io| {
            Box::pin(async move {
                let dir = layout::queue(&topic.borrow().dir, &group);
                let created = create::create(io, indexes, &config, TopicId(usize::MAX), key.clone(), dir, toml).await;
                // A topic is not deleted under the making of its queue.
                drop(topic);
                Ended::QueueCreated { topic: topic_id, group, key, result: created.map(Box::new) }
            })
        });
        Ok(())
    }

    /// Whether a work queue of the topic is being made.
    pub(super) fn makes_queue_of(&self, topic: TopicId) -> bool {
        let topic = self.topics[topic.0].borrow();
        self.creating.keys().any(|key| is_queue_of(key, &topic.name))
    }

    pub(super) fn queue_created(
        &mut self,
        topic: TopicId,
        group: String,
        key: &str,
        result: Result<Box<Topic>, Trouble>,
    ) {
        let result = result.map(|journal| {
            let journal = self.topics.add(Rc::new(RefCell::new(*journal)));
            self.add_queue(topic, group, journal, &Replayed::default());
            self.share_recent();
        });
        self.making_ended(key, result);
    }

    /// A queue that was made or found.
    pub(super) fn add_queue(&mut self, topic: TopicId, group: String, journal: TopicId, replayed: &Replayed) {
        let mut replayed = replayed.clone();
        if planted!(self.io, DeliveriesForgotten) {
            replayed.pending.values_mut().for_each(|kept| kept.deliveries = 0);
        }
        let share = Share::recovered(&replayed, self.now());
        let confirmed = share.floor();
        self.topics[topic.0].borrow_mut().queues.insert(group.clone(), QueueRef { journal, confirmed });
        self.queues.insert(journal, Queue::new(topic, group, share));
        self.bury(journal);
        self.arm_queue(journal);
    }

    // ---- RESERVE -----------------------------------------------------------------------------------------------------

    pub(super) fn reserve(&mut self, id: ConnectionId, client: &mut Connection, slot: u64, request: Request) {
        let Request::Reserve { topic, group, max, wait_ms, lease_ms, meta } = &request else { return };
        let journal = match self.queue_id(topic, group) {
            Ok(journal) => journal,
            Err(error) => return client.answer(slot, Slot::of(&Reply::Error(error))),
        };
        let own: u64 = client
            .queues
            .iter()
            .filter_map(|queue| self.queues.get(queue))
            .map(|queue| queue.share.reserved_by(id))
            .sum();
        let reserved_max = u64::from(self.config.reserved_max);
        let Some(left) = reserved_max.checked_sub(own).filter(|left| *left > 0) else {
            let sentence = format!(
                "this connection has {own} messages reserved, the most that --max-reserved allows; CONFIRM or ABORT some"
            );
            return client.answer(slot, Slot::of(&Reply::Error(RequestError::new(Code::QueueFull, sentence))));
        };
        let now_ns = self.now().monotonic_ns;
        let bounds = self.bounds(journal);
        let queue = self.queues.get_mut(&journal).expect("just found");
        let topic_id = queue.topic;
        let log = self.topics[topic_id.0].clone();
        let (start, limit) = (log.borrow().start, log.borrow().durable);
        // What retention took before it was ever handed out is told with the next message.
        let gap = Some((queue.share.next(), start)).filter(|(next, start)| next < start && *start < limit);
        if let Some((next, start)) = gap {
            let gone = queue.share.gone(next, start, id);
            queue.operations.push_back(Operation::unwaited(journal::encode_confirm(&gone)));
        }
        let taken = queue.share.take((*max).min(left), limit, bounds, id, now_ns);
        if !taken.is_empty() {
            client.queues.insert(journal);
            queue.reading.insert(id, taken.clone());
            client.stall = Some(Stall::Reading);
            let (bytes_max, meta, lease_ms) = (self.config.fetch_bytes_max, *meta, *lease_ms);
            let reader = Reader { connection: id, slot, topic: topic_id, group: None };
            let ended = self.begin_task(|io| {
                Box::pin(async move {
                    let handed = read::hand_out(io, log, gap, taken, limit, bytes_max, meta).await;
                    Ended::Handed { reader, journal, lease_ms, handed }
                })
            });
            if let Some(Ended::Handed { reader, handed, .. }) = ended {
                self.hand_to(client, &reader, journal, lease_ms, handed);
            }
            return self.bury(journal);
        }
        if limit > queue.share.next() && queue.share.pending() >= bounds.pending_max {
            let sentence = format!(
                "work queue {group} has {} messages that were reserved and are not confirmed, the most that --max-pending allows",
                queue.share.pending()
            );
            client.answer(slot, Slot::of(&Reply::Error(RequestError::new(Code::QueueFull, sentence))));
        } else if *wait_ms == 0 {
            client.answer(slot, end_of_nothing());
        } else {
            let until_ns = after_ms(now_ns, (*wait_ms).min(self.config.fetch_wait_ms_max));
            self.timers.insert((until_ns, Timer::Fetch(id)));
            queue.waiting.push_back(id);
            client.stall = Some(Stall::Line { topic: topic_id, until_ns, request, slot });
        }
        self.bury(journal);
        self.arm_queue(journal);
    }

    /// What was read for a connection that may be gone meanwhile.
    pub(super) fn handed(&mut self, reader: &Reader, journal: TopicId, lease_ms: u64, handed: Handed) {
        let Some(mut client) = self.connections.remove(&reader.connection) else { return };
        self.hand_to(&mut client, reader, journal, lease_ms, handed);
        self.connections.insert(reader.connection, client);
        self.connections_to_serve.insert(reader.connection);
    }

    fn hand_to(
        &mut self,
        client: &mut Connection,
        reader: &Reader,
        journal: TopicId,
        lease_ms: u64,
        mut handed: Handed,
    ) {
        client.stall = None;
        let now_ns = self.now().monotonic_ns;
        let Some(queue) = self.queues.get_mut(&journal) else {
            let gone = RequestError::new(Code::NoGroup, "the work queue was deleted meanwhile");
            return client.answer(reader.slot, Slot::of(&Reply::Error(gone)));
        };
        let taken = queue.reading.remove(&reader.connection).unwrap_or_default();
        for offset in &handed.offsets {
            queue.share.extend(*offset, after_ms(now_ns, lease_ms));
        }
        let mut gone: Vec<Run> = Vec::new();
        for (first, end) in &handed.gaps {
            gone.extend(queue.share.gone(*first, *end, reader.connection));
        }
        // What the reply had no room for, or what was damaged, is not handed out.
        let damaged = handed.damage.as_ref().map(|(offset, _)| *offset);
        for taken in taken {
            let is_left = queue.share.holder(taken.offset) == Some((reader.connection, u64::MAX));
            if is_left && !handed.offsets.contains(&taken.offset) {
                let due_ns = if damaged == Some(taken.offset) { after_ms(now_ns, DAMAGED_MS) } else { 0 };
                queue.share.put_back(taken.offset, due_ns);
            }
        }
        if !gone.is_empty() {
            queue.operations.push_back(Operation::unwaited(journal::encode_confirm(&gone)));
        }
        let (connection, slot) = (reader.connection, reader.slot);
        if let Some((_, damage)) = &handed.damage {
            self.report("CORRUPT_RECORD", Vec::from([("reason", FieldValue::Text(damage.sentence.clone()))]));
        }
        match handed.damage {
            Some((_, damage)) if handed.out.is_empty() => client.answer(slot, Slot::of(&Reply::Error(damage))),
            _ => {
                line::encode_end(&mut handed.out, handed.offsets.len() as u64);
                if handed.offsets.is_empty() {
                    client.answer(slot, Slot::Bytes(handed.out));
                } else {
                    handed.offsets.sort_unstable();
                    let bytes = journal::encode_reserve(&journal::runs(handed.offsets));
                    // Held there it counts as owed to this client (P13).
                    client.answer(slot, Slot::Held(handed.out));
                    let waiting = Some(Written { connection, slot });
                    let queue = self.queues.get_mut(&journal).expect("just seen");
                    queue.operations.push_back(Operation { bytes, waiting });
                }
            }
        }
        // The client is not in its place: whoever is answered at once is answered here.
        for written in self.place_operations(journal) {
            self.answer_written_operation(client, connection, written);
        }
        self.wake_queue(journal);
        self.arm_queue(journal);
    }

    fn answer_written_operation(&mut self, client: &mut Connection, id: ConnectionId, written: Written) {
        if written.connection == id {
            client.release(written.slot);
        } else if let Some(other) = self.connections.get_mut(&written.connection) {
            other.release(written.slot);
            self.connections_to_serve.insert(written.connection);
        }
    }

    // ---- CONFIRM, ABORT, EXTEND, STEAL -------------------------------------------------------------------------------

    pub(super) fn confirm(
        &mut self,
        id: ConnectionId,
        client: &mut Connection,
        topic: TopicRef,
        group: String,
        mut offsets: Vec<u64>,
    ) -> Result<Option<Reply>, RequestError> {
        let journal = self.queue_id(&topic, &group)?;
        offsets.sort_unstable();
        offsets.dedup();
        self.all_reserved(journal, &offsets, id, "nothing was confirmed")?;
        self.run_operations(journal);
        let count = offsets.len() as u64;
        let operation = journal::encode_confirm(&journal::runs(offsets.iter().copied()));
        match self.append(journal, &operation) {
            Appended::At(offset) => {
                let confirmed = Reply::Confirmed { count };
                if planted!(self.io, ConfirmBeforeForce) {
                    client.answer_now(Slot::of(&confirmed));
                } else {
                    let mut bytes = Vec::new();
                    line::encode_reply(&mut bytes, &confirmed);
                    let request = client.open_slot();
                    client.answer(request, Slot::Held(bytes));
                    let waiter = Waiter { offset, connection: id, request, answer: Answer::Held };
                    let mut log = self.topics[journal.0].borrow_mut();
                    log.commit.gather.count(journal, &mut client.mark);
                    group_commit::wait(&mut log.commit.waiting_durable, waiter);
                }
                let queue = self.queues.get_mut(&journal).expect("just found");
                offsets.iter().for_each(|offset| queue.share.finish(*offset));
                let floor = queue.share.floor();
                queue.confirmed.push_back((offset, floor));
                self.wake_queue(journal);
                Ok(None)
            }
            Appended::Later => {
                self.park(client, id, journal, Request::Confirm { topic, group, offsets });
                Ok(None)
            }
            Appended::Full => Err(RequestError::new(
                Code::DiskFull,
                format!("no room to record the confirmation in work queue {group}; nothing was confirmed; try again"),
            )),
        }
    }

    pub(super) fn abort(
        &mut self,
        id: ConnectionId,
        client: &mut Connection,
        topic: TopicRef,
        group: String,
        offset: u64,
        delay_ms: u64,
    ) -> Result<Option<Reply>, RequestError> {
        let journal = self.queue_id(&topic, &group)?;
        self.all_reserved(journal, &[offset], id, "nothing was given back")?;
        self.run_operations(journal);
        if self.queues[&journal].is_behind() && self.takes_operations(journal) {
            self.park(client, id, journal, Request::Abort { topic, group, offset, delay_ms });
            return Ok(None);
        }
        let now = self.now();
        let deliveries_max = self.bounds(journal).deliveries_max;
        let queue = self.queues.get_mut(&journal).expect("just found");
        queue.share.give_back(offset, after_ms(now.monotonic_ns, delay_ms), Reason::Aborted, deliveries_max);
        // Without a delay a restart has nothing to know of it.
        if delay_ms > 0 {
            let bytes = journal::encode_abort(offset, now.wall_ms.saturating_add_unsigned(delay_ms));
            queue.operations.push_back(Operation::unwaited(bytes));
        }
        client.answer_now(Slot::of(&Reply::Aborted { offset }));
        for written in self.place_operations(journal) {
            self.answer_written_operation(client, id, written);
        }
        self.changed(journal);
        Ok(None)
    }

    pub(super) fn extend(
        &mut self,
        id: ConnectionId,
        topic: &TopicRef,
        group: &str,
        offset: u64,
        lease_ms: u64,
    ) -> Result<Option<Reply>, RequestError> {
        let journal = self.queue_id(topic, group)?;
        self.all_reserved(journal, &[offset], id, "its lease was not extended")?;
        let until_ns = after_ms(self.now().monotonic_ns, lease_ms);
        self.queues.get_mut(&journal).expect("just found").share.extend(offset, until_ns);
        self.arm_queue(journal);
        Ok(Some(Reply::Extended { offset }))
    }

    pub(super) fn steal(&mut self, topic: &TopicRef, group: &str, offset: u64) -> Result<Option<Reply>, RequestError> {
        let journal = self.queue_id(topic, group)?;
        let now_ns = self.now().monotonic_ns;
        let deliveries_max = self.bounds(journal).deliveries_max;
        let queue = self.queues.get_mut(&journal).expect("just found");
        // One that is just being read for somebody is not that client's yet.
        if queue.share.holder(offset).is_none_or(|(_, until_ns)| until_ns == u64::MAX) {
            let sentence = format!("offset {offset} is not reserved in work queue {group}; PENDING lists what is");
            return Err(RequestError::new(Code::NotReserved, sentence));
        }
        queue.share.give_back(offset, now_ns, Reason::Stolen, deliveries_max);
        self.changed(journal);
        Ok(Some(Reply::Stolen { offset }))
    }

    /// That each of these is this connection's, and not just being read for it.
    fn all_reserved(
        &self,
        journal: TopicId,
        offsets: &[u64],
        id: ConnectionId,
        consequence: &str,
    ) -> Result<(), RequestError> {
        if planted!(self.io, LeaseWithoutOwner) {
            return Ok(());
        }
        let queue = &self.queues[&journal];
        let is_own = |offset: u64| {
            queue.share.holder(offset).is_some_and(|(owner, until_ns)| owner == id && until_ns < u64::MAX)
        };
        let mut others = offsets.iter().filter(|offset| !is_own(**offset));
        let Some(first) = others.next() else { return Ok(()) };
        let more = match others.count() {
            0 => String::new(),
            count => format!(" (and {count} more)"),
        };
        let sentence = format!(
            "offset {first}{more} is not reserved by this connection in work queue {}; {consequence}; its lease may have run out",
            queue.group
        );
        Err(RequestError::new(Code::NotReserved, sentence))
    }

    // ---- showing -----------------------------------------------------------------------------------------------------

    pub(super) fn queues_of(&self, topic: TopicId) -> Reply {
        let now_ns = self.now().monotonic_ns;
        let log = self.topics[topic.0].borrow();
        let status = |(group, queue): (&String, &QueueRef)| {
            let journal = self.topics[queue.journal.0].borrow().status();
            let queue = &self.queues[&queue.journal];
            let (ready, reserved, delayed) = queue.share.counts(log.durable, now_ns);
            QueueStatus {
                group: group.clone(),
                confirmed: queue.share.floor(),
                next: queue.share.next(),
                ready,
                reserved,
                delayed,
                dying: queue.share.dying().count() as u64,
                waiting: queue.waiting.len() as u64,
                journal_bytes: journal.bytes,
                journal_forces: journal.forces,
            }
        };
        Reply::Queues(log.queues.iter().map(status).collect())
    }

    pub(super) fn pending(
        &mut self,
        id: ConnectionId,
        client: &Connection,
        topic: &TopicRef,
        group: &str,
        from: u64,
        max: u64,
    ) -> Result<Option<Reply>, RequestError> {
        let journal = self.queue_id(topic, group)?;
        let now_ns = self.now().monotonic_ns;
        let peer = |of: ConnectionId| match self.connections.get(&of) {
            // Whoever asks is not in its place.
            _ if of == id => client.peer.clone(),
            Some(other) => other.peer.clone(),
            None => String::new(),
        };
        Ok(Some(Reply::Pending(self.queues[&journal].share.list(from, max, now_ns, peer))))
    }

    // ---- the journal -------------------------------------------------------------------------------------------------

    /// Puts what waits for it into the journal, as far as there is a place; whoever need not wait is answered.
    pub(super) fn run_operations(&mut self, journal: TopicId) {
        for written in self.place_operations(journal) {
            if let Some(client) = self.connections.get_mut(&written.connection) {
                client.release(written.slot);
                self.connections_to_serve.insert(written.connection);
            }
        }
    }

    /// The same; says who is to be answered at once, because there is no room for a record.
    fn place_operations(&mut self, journal: TopicId) -> Vec<Written> {
        let Some(queue) = self.queues.get_mut(&journal) else { return Vec::new() };
        let mut waiting: VecDeque<Operation> = core::mem::take(&mut queue.operations);
        let mut placed = Vec::new();
        let mut unrecorded = Vec::new();
        if queue.checkpoint == Checkpoint::Due {
            let bytes = journal::encode_checkpoint(&queue.share.checkpoint(self.io.now()));
            match self.append_now(journal, &bytes) {
                Appended::At(offset) => {
                    let mut log = self.topics[journal.0].borrow_mut();
                    log.checkpoint_bytes = bytes.len() as u64;
                    log.commit.wanted_durable = Some(offset);
                    let base = log.active().base;
                    let queue = self.queues.get_mut(&journal).expect("just seen");
                    queue.checkpoint = Checkpoint::At { offset, base };
                    // It says what they have done.
                    placed.extend(waiting.drain(..).filter_map(|operation| operation.waiting).map(|who| (offset, who)));
                    if planted!(self.io, RemovalBeforeCheckpoint) {
                        log.want_start(base);
                    }
                }
                Appended::Later => {}
                Appended::Full => unrecorded.extend(waiting.drain(..).filter_map(|operation| operation.waiting)),
            }
        }
        while let Some(operation) = waiting.front() {
            if self.queues[&journal].checkpoint == Checkpoint::Due {
                break;
            }
            match self.append_now(journal, &operation.bytes) {
                Appended::At(offset) => {
                    let who = waiting.pop_front().and_then(|operation| operation.waiting);
                    placed.extend(who.map(|who| (offset, who)));
                }
                Appended::Later => break,
                // That nobody gets anything would be worse than a count that is too low after a restart. What comes later must not stand
                // there without what was left out: a checkpoint says all of it.
                Appended::Full => {
                    unrecorded.extend(waiting.drain(..).filter_map(|operation| operation.waiting));
                    self.queues.get_mut(&journal).expect("just seen").checkpoint = Checkpoint::Due;
                }
            }
        }
        self.queues.get_mut(&journal).expect("just seen").operations = waiting;
        let mut log = self.topics[journal.0].borrow_mut();
        for (offset, Written { connection, slot }) in placed {
            let waiter = Waiter { offset, connection, request: slot, answer: Answer::Held };
            group_commit::wait(&mut log.commit.waiting_written, waiter);
        }
        unrecorded
    }

    /// Puts an operation into the journal that nothing else has to go before.
    pub(super) fn append(&mut self, journal: TopicId, operation: &[u8]) -> Appended {
        if self.queues[&journal].is_behind() {
            return if self.takes_operations(journal) { Appended::Later } else { Appended::Full };
        }
        self.append_now(journal, operation)
    }

    fn append_now(&mut self, journal: TopicId, operation: &[u8]) -> Appended {
        let appended = self.topics[journal.0].borrow_mut().append(&self.config, &self.io, self.io.now(), operation);
        self.topics_to_pump.insert(journal);
        if self.phase != Phase::Serving {
            self.topics[journal.0].borrow_mut().commit.flush_now = true;
        }
        let arm = matches!(appended, Appended::At(_)) && !self.topics[journal.0].borrow().idle_timer_armed;
        if arm {
            self.arm_idle(journal);
        }
        appended
    }

    /// Whether the journal has room, now or soon.
    fn takes_operations(&self, journal: TopicId) -> bool {
        let log = self.topics[journal.0].borrow();
        !log.space.full && !log.commit.write_blocked()
    }

    fn park(&mut self, client: &mut Connection, id: ConnectionId, journal: TopicId, request: Request) {
        self.topics[journal.0].borrow_mut().parked.push_back(id);
        client.stall = Some(Stall::Room(request));
        self.topics_to_pump.insert(journal);
    }

    /// The journal has a new segment.
    pub(super) fn journal_rolled(&mut self, journal: TopicId) {
        if let Some(queue) = self.queues.get_mut(&journal) {
            queue.checkpoint = Checkpoint::Due;
            self.run_operations(journal);
        }
    }

    /// The line of a journal has moved: what is confirmed stays so, and what stands before a checkpoint may go.
    pub(super) fn journal_forced(&mut self, journal: TopicId) {
        let Some(queue) = self.queues.get_mut(&journal) else { return };
        let durable = self.topics[journal.0].borrow().durable;
        let mut confirmed = None;
        while let Some((_, floor)) = queue.confirmed.pop_front_if(|(offset, _)| *offset < durable) {
            confirmed = Some(floor);
        }
        if let Some(confirmed) = confirmed {
            let mut topic = self.topics[queue.topic.0].borrow_mut();
            if let Some(queue) = topic.queues.get_mut(&queue.group) {
                queue.confirmed = confirmed;
            }
            topic.retention.due = true;
            drop(topic);
            let topic = queue.topic;
            self.topics_to_pump.insert(topic);
            self.arm_packing(topic);
        }
        self.begin_packing();
        let Some(queue) = self.queues.get_mut(&journal) else { return };
        if let Checkpoint::At { offset, base } = queue.checkpoint
            && offset < durable
        {
            queue.checkpoint = Checkpoint::No;
            self.topics[journal.0].borrow_mut().want_start(base);
            self.topics_to_pump.insert(journal);
        }
    }

    // ---- time, and who waits -----------------------------------------------------------------------------------------

    /// Hands out what can be, to who has waited longest.
    ///
    /// To hand out to one may make more ready, which leads here again. Were the next one served from there, a thousand consumers
    /// would be a thousand calls deep on the stack (P13).
    pub(super) fn wake_queue(&mut self, journal: TopicId) {
        match self.queues.get_mut(&journal) {
            Some(queue) if !queue.waking => queue.waking = true,
            _ => return,
        }
        while let Some(connection) = self.next_to_wake(journal) {
            // One that sends no more would never confirm.
            match self.connections.get(&connection).is_some_and(|client| client.ended) {
                true => self.fetch_timed_out(connection),
                false => self.fetch_again(connection),
            }
        }
        if let Some(queue) = self.queues.get_mut(&journal) {
            queue.waking = false;
        }
    }

    /// Who has waited longest for what there is now.
    fn next_to_wake(&mut self, journal: TopicId) -> Option<ConnectionId> {
        let now_ns = self.now().monotonic_ns;
        let queue = self.queues.get_mut(&journal).filter(|queue| !queue.waiting.is_empty())?;
        let limit = self.topics[queue.topic.0].borrow().durable;
        let is_ready = queue.share.has_ready(limit, u64::from(self.config.pending_max), now_ns);
        if is_ready && self.phase == Phase::Serving { queue.waiting.pop_front() } else { None }
    }

    /// Messages of the queue may have come to be ready, or to be dying.
    pub(super) fn changed(&mut self, journal: TopicId) {
        self.bury(journal);
        self.wake_queue(journal);
        self.arm_queue(journal);
    }

    /// The topic's line has moved.
    pub(super) fn wake_queues_of(&mut self, topic: TopicId) {
        let journals: Vec<TopicId> = self.topics[topic.0].borrow().queues.values().map(|queue| queue.journal).collect();
        for journal in journals {
            self.wake_queue(journal);
        }
    }

    /// Sees to it that the broker is woken when a lease runs out or a delay ends.
    pub(super) fn arm_queue(&mut self, journal: TopicId) {
        let now_ns = self.now().monotonic_ns;
        let Some(queue) = self.queues.get_mut(&journal) else { return };
        let wake_ns = [queue.share.wake_ns(now_ns), queue.retry_ns].into_iter().flatten().min();
        if wake_ns == queue.timer_ns {
            return;
        }
        if let Some(armed) = queue.timer_ns.take() {
            self.timers.remove(&(armed, Timer::Queue(journal)));
        }
        if let Some(at) = wake_ns.filter(|_| self.phase == Phase::Serving) {
            queue.timer_ns = Some(at);
            self.timers.insert((at, Timer::Queue(journal)));
        }
    }

    pub(super) fn queue_timer(&mut self, journal: TopicId) {
        let now_ns = self.now().monotonic_ns;
        let deliveries_max = self.bounds(journal).deliveries_max;
        let Some(queue) = self.queues.get_mut(&journal) else { return };
        queue.timer_ns = None;
        if queue.retry_ns.is_some_and(|at_ns| at_ns <= now_ns) {
            queue.retry_ns = None;
            for burial in queue.burials.values_mut().filter(|burial| matches!(burial, Burial::Damaged)) {
                // That it is dying has been recorded before.
                *burial = Burial::Recorded(0);
            }
        }
        if self.phase != Phase::Serving {
            return;
        }
        queue.share.expire(now_ns, deliveries_max);
        self.changed(journal);
    }

    /// A connection is gone: what it had reserved is given back; what was being read for it was never handed out.
    pub(super) fn give_back_leases(&mut self, id: ConnectionId, queues: impl IntoIterator<Item = TopicId>) {
        let now_ns = self.now().monotonic_ns;
        for journal in queues {
            let deliveries_max = self.bounds(journal).deliveries_max;
            let Some(queue) = self.queues.get_mut(&journal) else { continue };
            for taken in queue.reading.remove(&id).unwrap_or_default() {
                queue.share.put_back(taken.offset, 0);
            }
            queue.share.disconnect(id, now_ns, deliveries_max);
            if self.phase == Phase::Serving {
                self.changed(journal);
            }
        }
    }

    /// A connection waits no longer.
    pub(super) fn leave_queues(&mut self, id: ConnectionId) {
        for queue in self.queues.values_mut() {
            queue.waiting.retain(|waiting| *waiting != id);
        }
    }

    /// Nobody waits any more; says who did.
    pub(super) fn take_waiting(&mut self, journal: TopicId) -> VecDeque<ConnectionId> {
        self.queues.get_mut(&journal).map(|queue| core::mem::take(&mut queue.waiting)).unwrap_or_default()
    }

    pub(super) fn bounds(&self, journal: TopicId) -> Bounds {
        let topic = self.queues.get(&journal).and_then(|queue| self.topics.get(queue.topic));
        let deliveries_max = topic.and_then(|topic| deliveries_max(&topic.borrow()));
        Bounds { pending_max: u64::from(self.config.pending_max), deliveries_max }
    }
}

impl Queue {
    fn is_behind(&self) -> bool {
        !self.operations.is_empty() || self.checkpoint == Checkpoint::Due
    }
}

/// How often a message of this topic is handed out. Dead letters don't die again, and where a topic's name is so long that there can be none
/// for its dead letters, nothing does.
fn deliveries_max(topic: &Topic) -> Option<u64> {
    let has_place =
        !layout::is_of_dead_letters(&topic.name) && layout::is_topic_name(&layout::dead_letters(&topic.name));
    topic.policy.bound(Setting::MaxDeliveries).filter(|_| has_place)
}

/// Whether this is what a work queue of the topic goes by while it is made or deleted.
pub(super) fn is_queue_of(key: &str, topic: &str) -> bool {
    key.strip_prefix(topic).is_some_and(|rest| rest.starts_with('/'))
}

fn wrong_kind(group: &str, is: &str, verbs: &str) -> RequestError {
    RequestError::new(Code::WrongKind, format!("{group} is {is}; its verbs are {verbs}"))
}
