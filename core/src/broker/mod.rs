//! The broker: events to topics and clients, tasks and timers, starting, stopping and halting.
//!
//! What becomes of an event is in the other files of this folder.

mod burials;
mod capacity;
mod clients;
mod delete;
mod disk_full;
mod groups;
mod packing;
mod queues;
mod requests;
mod retention;
mod settings;
mod table;
mod topics;

use crate::config::Config;
use crate::connection::{Connection, Slot, Stall};
use crate::effect::{
    ConnectionId, Effect, EffectId, Effects, FieldValue, Halt, HaltKind, IoError, IoErrorKind, Report,
};
use crate::error::{Code, RequestError};
use crate::event::{Event, Now};
use crate::group::cursor::{Group, Waiter as GroupWaiter};
use crate::io::{Io, Owner, Task, TaskId, TopicId, poll};
use crate::log::anchor::{self, Place, Stop};
use crate::log::index::Places;
use crate::log::pack::Packed;
use crate::log::read::{Delivered, Handed, Raw, Stored};
use crate::log::sidecar::{self, Indexes};
use crate::log::{Roll, Topic, Trouble};
use crate::planted::planted;
use crate::protocol::{Reply, line};
use crate::start::{self, Started};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use delete::Deletion;
use packing::Packing;
use queues::Queue;
use table::Topics;

/// Received bytes of a connection that is not being served, after which it is not read.
const INPUT_BYTES_MAX: usize = 64 << 10;
/// A stop that can't finish its writes (a full disk), or makes no progress, gives up after this.
const STOP_NS_MAX: u64 = 5_000_000_000;

/// The broker.
///
/// The same events at the same times lead to the same effects, on any machine (P17): nothing here reads a clock, draws a number or
/// follows the order of a hash.
///
/// # How it is driven
///
/// 1. [`Broker::new`], then [`Broker::handle`] with [`Event::Start`]: recovery begins, by effects. `READY` is reported at
///    its end.
/// 2. Everything that happens is told by [`Broker::handle`]; the effects that it emits are carried out in any order that
///    their contract allows (see [`crate::effect`]), and their outcomes told as [`Event::Completed`].
/// 3. [`Broker::next_wake`] names the moment for the next [`Event::Wake`], in `monotonic_ns`.
/// 4. [`Event::Stop`] leads to [`Effect::Stopped`]; [`Effect::Halt`] may come at any time. After either, effects may still be
///    emitted to answer clients, but none on the disk.
pub struct Broker {
    config: Rc<Config>,
    io: Io,
    indexes: Indexes,
    phase: Phase,
    stop_wanted: bool,
    /// Came before the start was over.
    wanted_config: Option<(Config, Vec<&'static str>)>,
    /// Topics whose last anchoring has ended since the stop was last looked at.
    stop_progress: usize,
    halt: Option<Halt>,
    topics: Topics,
    names: BTreeMap<String, TopicId>,
    /// Topics being made, and who waits for them.
    creating: BTreeMap<String, Vec<ConnectionId>>,
    /// Topics that have lost their names and are not gone yet.
    deleting: BTreeMap<String, Deletion>,
    /// Work queues, by their journals.
    queues: BTreeMap<TopicId, Queue>,
    /// Those with messages on their way to the dead letters.
    burying: BTreeSet<TopicId>,
    packing: Packing,
    pack_timer_armed: bool,
    connections: BTreeMap<ConnectionId, Connection>,
    tasks: BTreeMap<TaskId, Task<Ended>>,
    next_task: u64,
    timers: BTreeSet<(u64, Timer)>,
    topics_to_pump: BTreeSet<TopicId>,
    connections_to_serve: BTreeSet<ConnectionId>,
    /// Topics with publishes that wait for room in the capacity of all topics together.
    waiting_for_total: BTreeSet<TopicId>,
    /// The disk was found full, and is tried again by a timer.
    full: bool,
    /// … for want of room, and not of descriptors.
    no_space: bool,
    ballast: bool,
    /// When time is looked at next for the topics that have something to do with it.
    age_ns: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    New,
    Starting,
    Serving,
    /// What was taken in is finished; nothing new is.
    Stopping,
    /// The last anchoring is under way.
    Anchoring,
    Stopped,
    Halted,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Timer {
    /// A held force.
    Pump(TopicId),
    /// Anchor a topic that has become quiet.
    Idle(TopicId),
    /// A FETCH has waited long enough.
    Fetch(ConnectionId),
    /// A lease of a work queue runs out, or a delay ends.
    Queue(TopicId),
    /// Look whether a segment is worth packing.
    Pack,
    /// Has a slow reader taken anything?
    Stuck(ConnectionId),
    /// Look whether messages have become too old, or a segment has taken messages for too long.
    Age,
    /// Try again whether there is room.
    Full,
    /// Give up stopping.
    Stop,
}

/// What a task tells at its end.
enum Ended {
    Started(Result<Started, Halt>),
    Created { name: String, result: Result<Box<Topic>, Trouble> },
    QueueCreated { topic: TopicId, group: String, key: String, result: Result<Box<Topic>, Trouble> },
    Handed { reader: Reader, journal: TopicId, lease_ms: u64, handed: Handed },
    DeadRead { journal: TopicId, offset: u64, result: Result<Option<Stored>, RequestError> },
    Packed { topic: TopicId, base: u64, packed: Packed },
    Rolled { topic: TopicId, result: Result<Rc<Places>, Trouble> },
    Indexed,
    Anchored { topic: TopicId, result: Result<(), Trouble> },
    StartPrepared { topic: TopicId, start: u64, result: Result<(), Trouble> },
    Removed { topic: TopicId, result: Result<(), Trouble> },
    Deleted { name: String, result: Result<(), Trouble> },
    Stored { topic: TopicId, group: String, result: Result<(), Trouble> },
    Delivered { reader: Reader, delivered: Delivered },
    Raw { connection: ConnectionId, slot: u64, offset: u64, result: Result<Option<Raw>, RequestError> },
    Found { connection: ConnectionId, slot: u64, result: Result<u64, RequestError> },
    TimeFound { topic: TopicId, group: String, waiter: GroupWaiter, result: Result<u64, RequestError> },
    Altered { topic: TopicId, result: Result<(), Trouble> },
    Ballast(Result<(), Trouble>),
    StopAnchored(Result<(), Trouble>),
}

/// For whom messages are read.
struct Reader {
    connection: ConnectionId,
    slot: u64,
    topic: TopicId,
    group: Option<String>,
}

impl Broker {
    /// Makes a broker that has not started.
    ///
    /// # Errors
    /// What [`Config::validate`] says.
    pub fn new(config: Config) -> Result<Broker, String> {
        config.validate()?;
        let io = Io::new();
        #[cfg(feature = "planted")]
        io.plant(config.planted);
        Ok(Broker {
            indexes: Indexes::new(config.index_stride_bytes, config.index_bytes),
            config: Rc::new(config),
            io,
            phase: Phase::New,
            stop_wanted: false,
            wanted_config: None,
            stop_progress: 0,
            halt: None,
            topics: Topics::default(),
            names: BTreeMap::new(),
            creating: BTreeMap::new(),
            deleting: BTreeMap::new(),
            queues: BTreeMap::new(),
            burying: BTreeSet::new(),
            packing: Packing::No,
            pack_timer_armed: false,
            connections: BTreeMap::new(),
            tasks: BTreeMap::new(),
            next_task: 0,
            timers: BTreeSet::new(),
            topics_to_pump: BTreeSet::new(),
            connections_to_serve: BTreeSet::new(),
            waiting_for_total: BTreeSet::new(),
            full: false,
            no_space: false,
            ballast: false,
            age_ns: None,
        })
    }

    /// Takes one event and emits what is to be done.
    pub fn handle(&mut self, now: Now, event: Event, effects: &mut dyn Effects) {
        self.io.set_now(now);
        match event {
            Event::Start => self.begin(),
            Event::Stop => self.stop(),
            Event::Reconfigure { config, kept_elsewhere } => self.reconfigure(&config, kept_elsewhere),
            Event::Wake => {}
            Event::Completed { id, result } => self.completed(id, result),
            Event::Connected { connection, peer } => self.connected(connection, peer),
            Event::Received { connection, bytes } => {
                if let Some(client) = self.connections.get_mut(&connection) {
                    client.input.push(bytes);
                    self.connections_to_serve.insert(connection);
                }
            }
            Event::InputEnded { connection } => {
                if let Some(client) = self.connections.get_mut(&connection) {
                    client.ended = true;
                    self.connections_to_serve.insert(connection);
                }
            }
            Event::Sent { connection, bytes } => {
                if let Some(client) = self.connections.get_mut(&connection) {
                    client.sent(bytes);
                    client.stuck_since_ns = now.monotonic_ns;
                    // Nothing can have changed for a client that was not held back, and there is none without input that is
                    // not read.
                    if !client.input.is_empty() {
                        self.connections_to_serve.insert(connection);
                    }
                }
            }
            Event::Disconnected { connection } => self.disconnected(connection),
        }
        self.fire_timers();
        self.settle();
        self.io.drain(effects);
    }

    /// When the broker wants to be woken, in `monotonic_ns`; `None`: by events only.
    pub fn next_wake(&self) -> Option<u64> {
        self.timers.first().map(|(at, _)| *at)
    }

    fn now(&self) -> Now {
        self.io.now()
    }

    /// Does what the event has made possible, until there is nothing more to do.
    fn settle(&mut self) {
        loop {
            if let Some(topic) = self.topics_to_pump.pop_first() {
                self.pump(topic);
            } else if let Some(connection) = self.connections_to_serve.pop_first() {
                self.serve(connection);
            } else if let Some(name) = self.deletion_to_begin() {
                self.begin_deletion(&name);
            } else if self.phase == Phase::Stopping && self.is_settled() {
                self.phase = Phase::Anchoring;
                self.anchor_all();
            } else if self.phase == Phase::Anchoring && self.tasks.is_empty() {
                self.stopped();
            } else {
                break;
            }
        }
        if let Some(halt) = self.halt.take() {
            self.io.tell(Effect::Halt(halt));
        }
    }

    // ---- start, stop, halt -------------------------------------------------------------------------------------------

    fn begin(&mut self) {
        if self.phase != Phase::New {
            return;
        }
        self.phase = Phase::Starting;
        let (config, indexes) = (self.config.clone(), self.indexes.clone());
        self.spawn(|io| Box::pin(async move { Ended::Started(start::start(io, config, indexes).await) }));
    }

    fn started(&mut self, result: Result<Started, Halt>) {
        let started = match result {
            Ok(started) => started,
            Err(halt) => return self.halt_with(halt),
        };
        self.ballast = started.ballast;
        for topic in started.topics {
            let (name, is_journal) = (topic.borrow().name.clone(), topic.borrow().is_journal);
            let id = self.topics.add(topic);
            if !is_journal {
                self.names.insert(name, id);
            }
        }
        self.share_recent();
        self.phase = Phase::Serving;
        self.report("READY", Vec::new());
        for queue in started.queues {
            let (topic, journal) = (self.names[&queue.topic], queue.journal.borrow().id);
            self.add_queue(topic, queue.group, journal, &queue.replayed);
        }
        self.topics_to_pump.extend(self.topics.ids());
        self.arm_age();
        if let Some((config, kept_elsewhere)) = self.wanted_config.take() {
            self.reconfigure(&config, kept_elsewhere);
        }
        if !self.ballast {
            self.disk_is_full(None);
        }
        self.connections_to_serve.extend(self.connections.keys());
        if self.stop_wanted {
            self.stop();
        }
    }

    fn stop(&mut self) {
        self.stop_wanted = true;
        if self.phase != Phase::Serving {
            return;
        }
        self.phase = Phase::Stopping;
        self.arm_stop();
        let ids: Vec<ConnectionId> = self.connections.keys().copied().collect();
        for id in ids {
            let Some(client) = self.connections.get_mut(&id) else { continue };
            match client.stall.take() {
                Some(Stall::Line { slot, .. }) => client.answer(slot, end_of_nothing()),
                Some(Stall::Room(_) | Stall::Creation(_)) => client.answer_now(Slot::of(&Reply::Error(stopping()))),
                reading => client.stall = reading,
            }
            self.connections_to_serve.insert(id);
        }
        for topic in self.topics.iter() {
            let mut topic = topic.borrow_mut();
            topic.parked.clear();
            topic.fetchers.clear();
            topic.commit.flush_now = true;
            if topic.roll == Roll::Wanted {
                topic.roll = Roll::No;
            }
            self.topics_to_pump.insert(topic.id);
        }
        for queue in self.queues.values_mut() {
            queue.stop();
        }
        self.give_up_packing();
    }

    fn arm_stop(&mut self) {
        self.stop_progress = 0;
        self.timers.insert((self.now().monotonic_ns + STOP_NS_MAX, Timer::Stop));
    }

    /// Whether everything that was taken in has been finished and answered.
    fn is_settled(&self) -> bool {
        self.tasks.is_empty()
            && self.deleting.is_empty()
            && self.queues_are_settled()
            && self.topics.iter().all(|topic| {
                let topic = topic.borrow();
                topic.is_settled() && !topic.is_moving_start() && topic.groups.values().all(Group::is_settled)
            })
    }

    /// Records the exact line of every topic, side by side: a thousand topics one after the other would take too long.
    fn anchor_all(&mut self) {
        for topic in self.topics.iter().cloned().collect::<Vec<_>>() {
            self.spawn(|io| {
                Box::pin(
                    async move { Ended::StopAnchored(anchor::anchor(&io, &topic, Place::Running, Stop::Clean).await) },
                )
            });
        }
    }

    fn stop_anchored(&mut self, result: Result<(), Trouble>) {
        match result {
            Ok(()) => self.stop_progress += 1,
            Err(Trouble::Full(error) | Trouble::Halt(error)) => self.halt("recording the line at the stop", &error),
        }
    }

    fn stopped(&mut self) {
        self.phase = Phase::Stopped;
        // Nothing on the disk any more, no second look for room either.
        self.timers.clear();
        let ids: Vec<ConnectionId> = self.connections.keys().copied().collect();
        for id in ids {
            self.serve(id);
        }
        self.io.tell(Effect::Stopped);
    }

    /// Nothing is acknowledged any more (P10): every topic stops, for they share the device.
    fn halt(&mut self, during: &str, error: &IoError) {
        let reason = format!("{during}: {error}");
        self.halt_with(Halt { kind: HaltKind::IoFailure, reason });
    }

    fn halt_with(&mut self, halt: Halt) {
        if matches!(self.phase, Phase::Halted | Phase::Stopped) {
            return;
        }
        self.phase = Phase::Halted;
        let reason = || Vec::from([("reason", FieldValue::Text(halt.reason.clone()))]);
        match halt.kind {
            HaltKind::IoFailure => self.report("HALTED", reason()),
            HaltKind::Directory => self.report("REFUSE_START", reason()),
            // Told with each topic's findings.
            HaltKind::Corrupt => {}
        }
        self.halt = Some(halt);
        self.tasks.clear();
        self.timers.clear();
        self.topics_to_pump.clear();
        let slot = Slot::of(&Reply::Error(halted()));
        for (id, client) in &mut self.connections {
            if let Some(Stall::Room(_) | Stall::Creation(_)) = client.stall.take() {
                client.answer_now(slot.clone());
            }
            client.answer_rest(&slot);
            self.connections_to_serve.insert(*id);
        }
    }

    // ---- tasks and completions ----------------------------------------------------------------------------------------

    fn spawn(&mut self, make: impl FnOnce(Io) -> Task<Ended>) {
        if let Some(ended) = self.begin_task(make) {
            self.task_ended(ended);
        }
    }

    /// As [`Broker::spawn`], for a task on behalf of the connection that is being served: what ends at once is the
    /// caller's to deal with, for the connection is not in its place.
    fn begin_task(&mut self, make: impl FnOnce(Io) -> Task<Ended>) -> Option<Ended> {
        self.next_task += 1;
        let id = TaskId(self.next_task);
        let mut task = make(self.io.owned_by(Owner::Task(id)));
        let ended = poll(&mut task);
        if ended.is_none() {
            self.tasks.insert(id, task);
        }
        ended
    }

    fn poll_task(&mut self, id: TaskId) {
        let Some(mut task) = self.tasks.remove(&id) else { return };
        match poll(&mut task) {
            Some(ended) => self.task_ended(ended),
            None => {
                self.tasks.insert(id, task);
            }
        }
    }

    fn completed(&mut self, id: EffectId, result: crate::io::IoResult) {
        let Some((owner, result)) = self.io.complete(id, result) else { return };
        // What was under way when the broker halted tells nobody anything (P10).
        if matches!(self.phase, Phase::Halted | Phase::Stopped) {
            return;
        }
        let result = result.map(|result| result.map(|_| ()));
        match (owner, result) {
            (Owner::Task(task), _) => self.poll_task(task),
            // Of one that was deleted: that a write has ended may be told behind the force that covers it, and behind all else.
            (Owner::Write(topic) | Owner::Force(topic) | Owner::Slot(topic) | Owner::Reserve(topic), _)
                if !self.topics.has(topic) => {}
            (Owner::Write(topic), Some(result)) => {
                let ended = self.topics[topic.0].borrow_mut().write_ended(id, result);
                if planted!(self.io, AcknowledgeBeforeForce) {
                    let written = self.topics[topic.0].borrow().written;
                    self.answer_durable_below(topic, written);
                }
                self.log_step(topic, "writing", ended);
                self.answer_written(topic);
            }
            (Owner::Force(topic), Some(result)) => {
                let now = self.now();
                let ended = self.topics[topic.0].borrow_mut().force_ended(&self.io, result, now);
                if planted!(self.io, ReplyBeforeSlot) {
                    let forced = self.topics[topic.0].borrow().commit.forced();
                    self.answer_durable_below(topic, forced);
                }
                self.log_step(topic, "forcing", ended);
            }
            (Owner::Slot(topic), Some(result)) => {
                let ended = self.topics[topic.0].borrow_mut().slot_ended(result);
                self.log_step(topic, "recording the line of", ended);
                self.answer_durable(topic);
            }
            (Owner::Reserve(topic), Some(result)) => {
                let ended = self.topics[topic.0].borrow_mut().reserved(result);
                self.log_step(topic, "making room in", ended);
            }
            (Owner::BallastRemoved, Some(_)) => self.retry_writes(),
            (Owner::Nobody, _) | (_, None) => {}
        }
    }

    /// After a step of a topic's log: whoever waits for room tries again, or learns that there is none.
    fn log_step(&mut self, topic: TopicId, doing: &str, ended: Result<(), Trouble>) {
        match ended {
            Ok(()) => {}
            Err(Trouble::Full(error)) => self.disk_is_full(Some(&error)),
            Err(Trouble::Halt(error)) => {
                let name = self.topics[topic.0].borrow().name.clone();
                return self.halt(&format!("{doing} topic {name}"), &error);
            }
        }
        self.topics_to_pump.insert(topic);
        self.unpark(topic);
    }

    fn task_ended(&mut self, ended: Ended) {
        match ended {
            Ended::Started(result) => self.started(result),
            Ended::Created { name, result } => self.created(&name, result),
            Ended::QueueCreated { topic, group, key, result } => self.queue_created(topic, group, &key, result),
            Ended::Handed { reader, journal, lease_ms, handed } => self.handed(&reader, journal, lease_ms, handed),
            Ended::DeadRead { journal, offset, result } => self.dead_read(journal, offset, result),
            Ended::Rolled { topic, result } => {
                self.topics[topic.0].borrow_mut().retention.rolls = false;
                if matches!(result, Err(Trouble::Full(_))) {
                    let mut topic = self.topics[topic.0].borrow_mut();
                    // A broker that stops needs no new segment.
                    topic.roll = if self.phase == Phase::Serving { Roll::Wanted } else { Roll::No };
                    topic.space.full = true;
                }
                if result.is_ok() {
                    self.journal_rolled(topic);
                }
                let (result, closed) = match result {
                    Ok(closed) => (Ok(()), Some(closed)),
                    Err(trouble) => (Err(trouble), None),
                };
                self.log_step(topic, "rolling", result);
                self.begin_packing();
                if let Some(closed) = closed {
                    self.write_sidecar(topic, closed);
                }
            }
            Ended::Packed { topic, base, packed } => self.packed(topic, base, packed),
            Ended::Indexed => {}
            Ended::Anchored { topic, result } => {
                if matches!(result, Err(Trouble::Full(_))) {
                    self.topics[topic.0].borrow_mut().retention.blocked = true;
                }
                self.log_step(topic, "anchoring", result);
                self.arm_idle(topic);
                self.total_may_have_room();
            }
            Ended::StartPrepared { topic, start, result } => {
                self.topics[topic.0].borrow_mut().retention.prepare_ended(start, result.is_ok());
                self.log_step(topic, "moving the start of", result);
                self.begin_packing();
            }
            Ended::Removed { topic, result } => {
                self.topics[topic.0].borrow_mut().retention.remove_ended();
                self.log_step(topic, "removing segments of", result);
                self.total_may_have_room();
            }
            Ended::Deleted { name, result } => self.deleted(&name, result),
            Ended::Stored { topic, group, result } => self.stored(topic, &group, result),
            Ended::Delivered { reader, delivered } => self.delivered(&reader, delivered),
            Ended::Raw { connection, slot, offset, result } => {
                if let Some(client) = self.connections.get_mut(&connection) {
                    requests::raw_found(client, slot, offset, result);
                    self.connections_to_serve.insert(connection);
                }
            }
            Ended::Found { connection, slot, result } => {
                if let Some(client) = self.connections.get_mut(&connection) {
                    requests::found(client, slot, result);
                    self.connections_to_serve.insert(connection);
                }
            }
            Ended::TimeFound { topic, group, waiter, result } => match self.connections.remove(&waiter.connection) {
                Some(mut client) => {
                    self.time_found(&mut client, topic, &group, waiter, result);
                    self.connections.insert(waiter.connection, client);
                    self.connections_to_serve.insert(waiter.connection);
                }
                None => self.forget_empty_group(topic, &group),
            },
            Ended::Altered { topic, result } => self.altered(topic, result),
            Ended::Ballast(result) => self.ballast_made(result),
            Ended::StopAnchored(result) => self.stop_anchored(result),
        }
    }

    /// Of the segment before the active one. Nobody waits for it.
    fn write_sidecar(&mut self, topic: TopicId, places: Rc<Places>) {
        let topic = self.topics[topic.0].clone();
        // Nobody looks for a place in a journal.
        let closed = topic.borrow().segments.iter().rev().nth(1).map(|segment| segment.base);
        let Some(base) = closed.filter(|_| !topic.borrow().is_journal) else { return };
        self.spawn(|io| {
            Box::pin(async move {
                sidecar::write(io, topic, base, places).await;
                Ended::Indexed
            })
        });
    }

    fn fire_timers(&mut self) {
        let now_ns = self.now().monotonic_ns;
        while let Some((at, timer)) = self.timers.first().copied() {
            if at > now_ns {
                break;
            }
            self.timers.pop_first();
            match timer {
                // One that was deleted meanwhile has nothing to be done.
                Timer::Pump(topic) | Timer::Idle(topic) | Timer::Queue(topic) if !self.topics.has(topic) => {}
                Timer::Pump(topic) => {
                    self.topics_to_pump.insert(topic);
                }
                Timer::Idle(topic) => self.idle(topic),
                Timer::Pack => self.look_for_packing(),
                Timer::Queue(journal) => self.queue_timer(journal),
                Timer::Fetch(connection) => self.fetch_timed_out(connection),
                Timer::Stuck(connection) => self.check_stuck(connection),
                Timer::Age => self.age(),
                Timer::Full if matches!(self.phase, Phase::Serving | Phase::Stopping) => self.try_for_room(),
                Timer::Full => {}
                Timer::Stop if self.phase == Phase::Anchoring && self.stop_progress > 0 => self.arm_stop(),
                // Whoever has stopped or halted has no timers.
                Timer::Stop => {
                    let detail = "what was accepted could not be written in time".into();
                    self.halt("stopping", &IoError { kind: IoErrorKind::Other, detail });
                }
            }
        }
    }

    fn report(&self, name: &'static str, fields: Vec<(&'static str, FieldValue)>) {
        self.io.tell(Effect::Report(Report { name, fields }));
    }
}

fn end_of_nothing() -> Slot {
    let mut bytes = Vec::new();
    line::encode_end(&mut bytes, 0);
    Slot::Bytes(bytes)
}

fn out_of_range(offset: u64, start: u64, durable: u64) -> RequestError {
    RequestError::new(
        Code::OutOfRange,
        format!("offset {offset} is outside the log, which goes from {start} to {durable}"),
    )
}

fn stopping() -> RequestError {
    RequestError::new(
        Code::Stopping,
        "the broker is stopping; nothing of this request was done; try again after its restart",
    )
}

fn halted() -> RequestError {
    RequestError::new(
        Code::Halted,
        "the broker has halted on an I/O failure; what was not answered before may or may not be stored",
    )
}
