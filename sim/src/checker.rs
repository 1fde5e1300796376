//! Holds the promises against what happens, at the effect that breaks them.
//!
//! The checker stands at the broker's outputs: it reads every reply at the moment it is emitted (it may have reached the
//! client from then on) and holds it against the [reference model](crate::model) and against what the simulated disk
//! really has. So a reply that comes before its force is caught at the reply, not at some later power loss (P3, P4).

mod deletion;
mod packing;
mod queues;

use crate::disk::SimDisk;
use crate::model::{Broken, Check, End, Log, Model, Open, broken};
use crate::reply::{self, Delivery, Message, Seen, Shape};
use crate::view::{Depth, LogView};
use plimsoll_core::config::Config;
use plimsoll_core::effect::{ConnectionId, Effect, Halt, HaltKind, IoError, IoErrorKind, Report};
use plimsoll_core::message;
use plimsoll_core::record::{self, Decoded, Kind, Salt};
use plimsoll_core::settings::{Policy, Setting, Settings};
use std::collections::{BTreeMap, VecDeque};

/// How many batches are being written at once, at most.
const WRITES_MAX: u64 = 16;

/// What a client asked for, as far as the answer can be judged by it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ask {
    /// `PUB`, `PUBN`: an attempt of the model. `PUBB`: the first of several.
    Publish(usize),
    /// `FETCH`.
    Fetch {
        /// For this group.
        group: String,
        /// At most.
        max: u64,
    },
    /// `ACK`.
    Ack {
        /// For this group.
        group: String,
        /// Up to and including this.
        offset: u64,
    },
    /// `SEEK`.
    Seek {
        /// For this group.
        group: String,
        /// To this offset; `None`: the end, a time.
        to: Option<u64>,
    },
    /// `READ`.
    Read {
        /// From here.
        offset: u64,
        /// At most.
        max: u64,
    },
    /// `READRAW`.
    ReadRaw {
        /// From here.
        offset: u64,
    },
    /// `STATUS`.
    Status,
    /// `TOPICS`.
    Topics,
    /// `GROUPS`.
    Groups,
    /// `CREATE`.
    Create,
    /// `DELETE` of the topic.
    Delete,
    /// `DELETE` of a group.
    DeleteGroup {
        /// This one.
        group: String,
    },
    /// `PURGE`.
    Purge {
        /// Everything below this.
        before: u64,
    },
    /// `RESERVE`.
    Reserve {
        /// From this work queue.
        queue: String,
        /// At most.
        max: u64,
        /// For the first one, milliseconds.
        wait_ms: u64,
        /// Milliseconds.
        lease_ms: u64,
    },
    /// `CONFIRM`.
    Confirm {
        /// In this work queue.
        queue: String,
        /// All of these.
        offsets: Vec<u64>,
    },
    /// `ABORT`.
    Abort {
        /// In this work queue.
        queue: String,
        /// This one.
        offset: u64,
        /// Milliseconds.
        delay_ms: u64,
    },
    /// `EXTEND`.
    Extend {
        /// In this work queue.
        queue: String,
        /// This one.
        offset: u64,
        /// Milliseconds.
        lease_ms: u64,
    },
    /// `STEAL`.
    Steal {
        /// In this work queue.
        queue: String,
        /// This one.
        offset: u64,
    },
    /// `QUEUES`.
    Queues,
    /// `PENDING`.
    Pending {
        /// Of this work queue.
        queue: String,
        /// From here.
        from: u64,
        /// At most.
        max: u64,
    },
    /// `DELETE` of a work queue.
    DeleteQueue {
        /// This one.
        queue: String,
    },
    /// `READ` of the dead letters of the topic.
    Letters {
        /// From here.
        offset: u64,
        /// At most.
        max: u64,
    },
    /// `ALTER` of [`SETTING`] to this.
    Alter(u64),
    /// `SETTINGS`.
    Settings,
    /// `PING`, `HELLO`, `QUIT`: answered by a line that begins so.
    Word(&'static str),
    /// Something wrong, to be refused with one of these codes.
    Wrong(&'static [&'static str]),
    /// Something after which the connection has to be closed; first an error with one of these codes.
    Fatal(&'static [&'static str]),
}

/// The setting that clients change: to values so large that nothing follows from them.
pub const SETTING: &str = "retain-bytes";

impl Ask {
    fn shape(&self) -> Shape {
        match self {
            Ask::Fetch { .. } | Ask::Read { .. } | Ask::Reserve { .. } | Ask::Letters { .. } => Shape::Messages,
            Ask::ReadRaw { .. } => Shape::Frames,
            Ask::Topics | Ask::Groups | Ask::Settings | Ask::Queues | Ask::Pending { .. } => Shape::List,
            _ => Shape::Line,
        }
    }

    /// Whether it is about one topic.
    fn is_of_topic(&self) -> bool {
        !matches!(self, Ask::Topics | Ask::Word(_) | Ask::Wrong(_) | Ask::Fatal(_) | Ask::Letters { .. })
    }
}

/// A request on its way, with what was certain when it was sent.
#[derive(Clone, Debug)]
struct Asked {
    id: u64,
    topic: String,
    ask: Ask,
    /// Which log had the topic's name.
    generation: u32,
    /// The topic existed.
    existed: bool,
    /// Everything below was durable.
    firm_end: u64,
    /// Everything below was gone.
    start: u64,
    /// Where the group's history stood.
    moment: usize,
    /// For `GROUPS`: where each group's history stood.
    moments: BTreeMap<String, usize>,
    /// For `TOPICS`: the generation of each topic that was there for sure (`true`), or for sure not.
    topics: BTreeMap<String, (u32, bool)>,
}

/// Where a connection reads on in a group.
#[derive(Clone, Copy, Debug)]
struct Cursor {
    next: u64,
    /// Another connection has asked for the group since.
    doubtful: bool,
    /// It may read on anywhere.
    unknown: bool,
}

#[derive(Default)]
struct Conn {
    asked: VecDeque<Asked>,
    buffer: Vec<u8>,
    /// Reply bytes that were emitted.
    emitted: u64,
    /// Replies, and after how many bytes each is whole.
    seen: VecDeque<(u64, Seen)>,
    cursors: BTreeMap<(String, String), Cursor>,
    /// The broker said that there are too many connections.
    turned_away: bool,
    /// The last request lost the framing: the connection must be closed.
    fatal: bool,
}

/// What is known of the process that runs.
#[derive(Clone, Debug, Default)]
struct Life {
    number: u32,
    ready: bool,
    stopping: bool,
    /// A failure after which nothing may be acknowledged (P10) has been told.
    failure: Option<String>,
    /// A read failed, or a file could not be opened.
    read_failed: bool,
    /// Anything failed at all.
    any_failed: bool,
    /// It was asked to stop some time ago, and may give up.
    late: bool,
    /// A force or a write has failed on the disk, whether or not it has been told: the page cache is not to be believed.
    cache_doubtful: bool,
    /// No room, or no descriptor, has been told.
    full: bool,
    halted: bool,
    /// It has refused the start because of damage.
    corrupt: bool,
}

/// What bounds the windows of producers (P16), as far as it can be seen from outside.
#[derive(Clone, Debug, Default)]
struct Producers {
    now_ns: u64,
    /// How often the wall clock was set.
    clock_set: u32,
    /// Requests with an id, by topic and producer.
    asked: BTreeMap<String, BTreeMap<u64, u64>>,
    /// When each was first sent, and how often the clock had been set by then.
    first_asked: BTreeMap<usize, (u64, u32)>,
}

impl Producers {
    /// Whether the broker has to know the request if it has stored it: not too many others were sent since, and it is not too old.
    fn is_in_window(&self, limits: &Config, model: &Model, number: usize) -> bool {
        let attempt = &model.attempts[number];
        let Some(repeats) = &attempt.repeats else { return true };
        let policy = Policy::new(&Settings::NONE, &limits.topic_defaults);
        let Some(of_topic) = self.asked.get(&attempt.topic) else { return true };
        let asked = of_topic.get(&repeats.id.0).copied().unwrap_or(0);
        let (first_ns, clock_set) = self.first_asked[&number];
        let age_ms = (self.now_ns - first_ns).div_ceil(1_000_000);
        let is_young = policy.bound(Setting::DedupMs).is_none_or(|max| clock_set == self.clock_set && age_ms <= max);
        asked <= policy.get(Setting::DedupSequences)
            && of_topic.len() as u64 <= u64::from(limits.producers_max)
            && is_young
    }
}

/// The checker.
pub struct Checker {
    /// What the reference broker knows.
    pub model: Model,
    /// Several clients use each group, a limit turns connections away, …: what else than a success is legal.
    limits: Config,
    conns: BTreeMap<ConnectionId, Conn>,
    views: BTreeMap<(String, bool), LogView>,
    life: Life,
    next_ask: u64,
    producers: Producers,
    queues: queues::Queues,
    /// The most messages that were published as one.
    largest_batch: u64,
    /// Replies that were checked.
    pub replies: u64,
    /// Only detection can be asked for: somebody was at the disk.
    pub damaged: bool,
}

impl Checker {
    /// A checker of a broker with this configuration.
    pub fn new(config: &Config) -> Checker {
        Checker {
            model: Model::default(),
            limits: config.clone(),
            conns: BTreeMap::new(),
            views: BTreeMap::new(),
            life: Life::default(),
            next_ask: 0,
            producers: Producers::default(),
            queues: queues::Queues::default(),
            largest_batch: 0,
            replies: 0,
            damaged: false,
        }
    }

    // ---- the process --------------------------------------------------------------------------------------------------

    /// A process begins.
    pub fn process_began(&mut self) {
        self.life = Life { number: self.life.number + 1, ..Life::default() };
        // What the process before it was asked it has done, or nobody will.
        self.model.logs.values_mut().for_each(|log| log.deletions.clear());
        self.views.clear();
        self.conns.clear();
    }

    /// The process has ended.
    pub fn process_ended(&mut self, end: End) {
        let end = match end {
            End::Killed { .. } => {
                End::Killed { after_failure: self.life.failure.is_some() || self.life.cache_doubtful }
            }
            end => end,
        };
        self.model.ended(end);
        self.queues_after(end);
        self.conns.clear();
    }

    /// Time goes on.
    pub(crate) fn time_is(&mut self, now_ns: u64) {
        self.producers.now_ns = now_ns;
    }

    /// The wall clock was set: how old a publish is can't be told from outside any more.
    pub(crate) fn clock_was_set(&mut self) {
        self.producers.clock_set += 1;
    }

    /// It was asked to stop.
    pub fn stop_asked(&mut self) {
        self.life.stopping = true;
    }

    /// A force has failed on the disk, and will be told later: what was WRITTEN may be gone from now on.
    pub fn force_failed(&mut self) {
        self.life.cache_doubtful = true;
    }

    /// It was asked to stop some time ago, and may give up.
    pub fn stop_is_late(&mut self) {
        self.life.late = true;
    }

    /// Whether it was asked to stop.
    pub fn is_stopping(&self) -> bool {
        self.life.stopping
    }

    /// Whether it has said that it is ready.
    pub fn is_ready(&self) -> bool {
        self.life.ready
    }

    /// Whether it has halted because of damage, before it has changed anything.
    pub fn refused_as_corrupt(&self) -> bool {
        self.life.corrupt
    }

    /// Whether anything has failed in this life of the process.
    pub(crate) fn has_failure(&self) -> bool {
        self.life.any_failed
    }

    /// Whether it has halted.
    pub fn is_halted(&self) -> bool {
        self.life.halted
    }

    /// A line for the operator.
    pub fn reported(&mut self, report: &Report, disk: &SimDisk) -> Check {
        if report.name == "READY" {
            self.life.ready = true;
            self.views.clear();
            self.model.ready();
            self.everything_survived(disk)?;
            self.deletions_are_done(disk)?;
        }
        if Checker::is_refusal(report) && !self.damaged && !self.life.any_failed {
            return broken("P8", format!("the start was refused though nothing but crashes happened: {report}"));
        }
        if report.name == "CORRUPT_RECORD" && !self.damaged && !self.life.read_failed {
            return broken("P1", format!("a damaged record was met though nothing damaged it: {report}"));
        }
        Ok(())
    }

    /// P1: what had to outlive the process before this one is on the platter when this one is ready, byte for byte.
    fn everything_survived(&self, disk: &SimDisk) -> Check {
        if self.damaged {
            return Ok(());
        }
        for (topic, log) in &self.model.logs {
            let mut view = LogView::new(Depth::Platter, topic);
            // What lies before it went by retention, or P12 is broken.
            let first = view.first(disk).unwrap_or(0);
            let stored: BTreeMap<u64, Vec<u8>> = view.messages(disk).into_iter().collect();
            for offset in first..log.firm_end {
                // It was packed away; only a power loss may have brought the old file back.
                if log.packed.contains(&offset) && !stored.contains_key(&offset) {
                    continue;
                }
                let Some(value) = stored.get(&offset) else {
                    let words = format!("offset {offset} of {topic} is not there after the start; it had to survive");
                    return broken("P1", words);
                };
                let published = log.message_at(offset).map(|number| (number, &self.model.attempts[number].payload));
                if let Some((number, published)) = published.filter(|(_, published)| published[..] != value[..]) {
                    let (is, was) = (String::from_utf8_lossy(value), String::from_utf8_lossy(published));
                    let words =
                        format!("offset {offset} of {topic} is {is:?} after the start; message {number} was {was:?}");
                    return broken("P1", words);
                }
            }
        }
        Ok(())
    }

    /// Whether there is a bound on the bytes of each topic, or of all together.
    pub(crate) fn has_capacity(&self) -> bool {
        self.limits.topic_defaults.get(Setting::CapacityBytes).is_some() || self.limits.total_capacity_bytes > 0
    }

    /// Whether a line for the operator says that the start is refused.
    pub(crate) fn is_refusal(report: &Report) -> bool {
        report.name == "REFUSE_START" || report.to_string().contains("status=CORRUPT")
    }

    /// An effect has ended with a failure, and the broker is about to be told.
    pub fn failed(&mut self, effect: &Effect, error: &IoError) -> bool {
        match error.kind {
            IoErrorKind::NoSpace | IoErrorKind::TooManyFiles => self.life.full = true,
            _ => {}
        }
        if matches!(effect, Effect::Read { .. } | Effect::Open { .. } | Effect::List { .. })
            && error.kind != IoErrorKind::NotFound
        {
            self.life.read_failed = true;
            self.queue_read_failed();
        }
        self.life.any_failed |= !matches!(error.kind, IoErrorKind::NotFound | IoErrorKind::Exists);
        let halts = must_halt(effect, error);
        if halts && self.life.failure.is_none() {
            self.life.failure = Some(format!("{error}"));
        }
        halts
    }

    /// What was told should have made the broker halt (P10).
    pub fn must_have_halted(&self) -> Check {
        match &self.life.failure {
            Some(failure) if !self.life.halted => broken("P10", format!("the broker goes on after {failure}")),
            _ => Ok(()),
        }
    }

    /// Among what the broker has just said there is a halt: answers that say so may stand before it.
    pub fn is_halting(&mut self) {
        self.life.halted = true;
    }

    /// The broker halts.
    pub fn halted(&mut self, halt: &Halt) -> Check {
        self.life.halted = true;
        self.life.corrupt = matches!(halt.kind, HaltKind::Corrupt | HaltKind::Directory);
        let legal = self.life.any_failed || (self.life.stopping && self.life.late);
        if legal || self.damaged {
            return Ok(());
        }
        let promise = if halt.kind == HaltKind::IoFailure { "P10" } else { "P8" };
        broken(promise, format!("the broker halted though nothing failed in this life: {}", halt.reason))
    }

    /// At the end, when every group has been read to its end (P6): nobody has missed a message.
    pub fn everyone_got_everything(&self) -> Check {
        for (topic, log) in &self.model.logs {
            for (name, group) in log.groups.iter().filter(|(_, group)| !group.was_sought) {
                let missed = (0..log.firm_end).find(|offset| !group.delivered.contains(offset));
                if let Some(missed) = missed {
                    return broken("P6", format!("group {name} of {topic} was never sent offset {missed}"));
                }
            }
        }
        self.every_queue_is_done()
    }

    // ---- clients ------------------------------------------------------------------------------------------------------

    /// A client has connected.
    pub fn connected(&mut self, connection: ConnectionId) {
        self.conns.insert(connection, Conn::default());
    }

    /// The connection is gone: what is not answered is indeterminate.
    pub fn disconnected(&mut self, connection: ConnectionId) {
        let Some(conn) = self.conns.remove(&connection) else { return };
        self.queues_lose(connection);
        for asked in conn.asked {
            match &asked.ask {
                Ask::Ack { group, .. } | Ask::Seek { group, .. } | Ask::DeleteGroup { group } => {
                    self.abandoned(&asked.topic, Some(group), asked.id);
                }
                Ask::Alter(_) => self.abandoned(&asked.topic, None, asked.id),
                _ => {}
            }
        }
    }

    /// A client has sent a request.
    pub fn asked(&mut self, connection: ConnectionId, topic: &str, ask: Ask) {
        self.next_ask += 1;
        let (id, life) = (self.next_ask, self.life.number);
        let log = self.model.log(topic);
        let (generation, existed, firm_end, start) = (log.generation, log.exists, log.firm_end, log.start);
        let mut moment = 0;
        match &ask {
            Ask::Purge { before } => log.start_max = log.start_max.max(*before),
            Ask::Create => log.may_exist = true,
            Ask::Publish(_) => log.may_exist |= self.limits.auto_create,
            Ask::Delete => drop(log.deletions.insert(id)),
            _ => {}
        }
        if let Ask::Publish(number) = ask {
            self.model.asked(number);
            if let Some(repeats) = &self.model.attempts[number].repeats {
                let of_topic = self.producers.asked.entry(topic.to_owned()).or_default();
                *of_topic.entry(repeats.id.0).or_default() += 1;
                let now = (self.producers.now_ns, self.producers.clock_set);
                self.producers.first_asked.entry(number).or_insert(now);
            }
            self.largest_batch = self.largest_batch.max(self.model.together(number).len() as u64);
        }
        self.asked_of_queues(id, connection, topic, &ask);
        let log = self.model.log(topic);
        if let Ask::Fetch { group, .. }
        | Ask::Ack { group, .. }
        | Ask::Seek { group, .. }
        | Ask::DeleteGroup { group } = &ask
        {
            let group_model = log.groups.entry(group.clone()).or_default();
            moment = group_model.moment();
            match &ask {
                Ask::Ack { offset, .. } => {
                    // Whoever acknowledges what is still on its way to it does without.
                    let is_coming = |asked: &Asked| {
                        asked.topic == topic && matches!(&asked.ask, Ask::Fetch { group: of, .. } if of == group)
                    };
                    let conn = self.conns.get(&connection);
                    if !group_model.delivered.contains(offset)
                        && conn.is_some_and(|conn| conn.asked.iter().any(is_coming))
                    {
                        group_model.delivered.extend(0..=*offset);
                    }
                    group_model.asked(Open { id, value: Some(offset + 1), seek: false, life, abandoned: false })
                }
                Ask::Seek { to, .. } => group_model.asked(Open { id, value: *to, seek: true, life, abandoned: false }),
                Ask::DeleteGroup { .. } => {
                    group_model.asked(Open { id, value: Some(0), seek: true, life, abandoned: false });
                }
                _ => {}
            }
            if !matches!(ask, Ask::Ack { .. }) {
                self.others_may_lose(connection, topic, group);
            }
        }
        if let Ask::Alter(_) | Ask::Settings = ask {
            let setting = &mut self.model.log(topic).setting;
            moment = setting.moment();
            if let Ask::Alter(value) = ask {
                setting.asked(Open { id, value: Some(value), seek: true, life, abandoned: false });
            }
        }
        let moments = match ask {
            Ask::Groups => log_moments(self.model.log(topic)),
            _ => BTreeMap::new(),
        };
        let is_certain = |log: &&Log| log.exists && log.firm_end > 0 && log.deletions.is_empty();
        let certain = self.model.logs.iter().filter(|(_, log)| is_certain(log) || !log.may_exist);
        let topics = match ask {
            Ask::Topics => certain.map(|(name, log)| (name.clone(), (log.generation, log.exists))).collect(),
            _ => BTreeMap::new(),
        };
        let topic = topic.to_owned();
        if let Some(conn) = self.conns.get_mut(&connection) {
            let asked = Asked { id, topic, ask, generation, existed, firm_end, start, moment, moments, topics };
            conn.asked.push_back(asked);
        }
    }

    /// Requests of this connection that were not answered.
    pub fn unanswered(&self, connection: ConnectionId) -> usize {
        self.conns.get(&connection).map_or(0, |conn| conn.asked.len())
    }

    /// The replies that are whole once the client has received so many bytes.
    pub fn received(&mut self, connection: ConnectionId, bytes: u64) -> Vec<Seen> {
        let Some(conn) = self.conns.get_mut(&connection) else { return Vec::new() };
        let whole = conn.seen.partition_point(|(end, _)| *end <= bytes);
        conn.seen.drain(..whole).map(|(_, seen)| seen).collect()
    }

    /// The broker has emitted a piece of a reply.
    pub fn replied(&mut self, connection: ConnectionId, bytes: &[u8], disk: &SimDisk) -> Check {
        let Some(mut conn) = self.conns.remove(&connection) else { return Ok(()) };
        conn.emitted += bytes.len() as u64;
        conn.buffer.extend_from_slice(bytes);
        let result = self.read_replies(connection, &mut conn, disk);
        self.conns.insert(connection, conn);
        // On a damaged disk every wrong answer is a damage that was not told.
        result.map_err(|broken| if self.damaged { Broken { promise: "P7", ..broken } } else { broken })
    }

    fn read_replies(&mut self, connection: ConnectionId, conn: &mut Conn, disk: &SimDisk) -> Check {
        let mut at = 0;
        let begun = conn.emitted - conn.buffer.len() as u64;
        if begun == 0 && conn.buffer.starts_with(b"ERR TOO_MANY_CONNECTIONS ") && conn.buffer.ends_with(b"\n") {
            if self.conns.len() < self.limits.connections_max as usize {
                return broken("P13", format!("turned away with only {} other connections", self.conns.len()));
            }
            conn.turned_away = true;
            conn.asked.clear();
        }
        if conn.turned_away {
            conn.buffer.clear();
            return Ok(());
        }
        while at < conn.buffer.len() {
            let Some(asked) = conn.asked.front() else {
                let more = String::from_utf8_lossy(&conn.buffer[at..]).into_owned();
                return broken("P14", format!("a reply that nobody asked for: {more:?}"));
            };
            if conn.fatal {
                return broken("P14", "another reply after the framing was lost".into());
            }
            let Some((seen, length)) = reply::take(asked.ask.shape(), &conn.buffer[at..])? else { break };
            at += length;
            let asked = conn.asked.pop_front().expect("just seen");
            conn.fatal = matches!(asked.ask, Ask::Fatal(_));
            self.replies += 1;
            self.judge(connection, conn, &asked, &seen, disk)?;
            conn.seen.push_back((begun + at as u64, seen));
        }
        conn.buffer.drain(..at);
        Ok(())
    }

    fn judge(
        &mut self,
        connection: ConnectionId,
        conn: &mut Conn,
        asked: &Asked,
        seen: &Seen,
        disk: &SimDisk,
    ) -> Check {
        let topic = &asked.topic;
        if let Seen::Error(code) = seen {
            return self.judge_error(asked, code);
        }
        let acknowledges = matches!(seen, Seen::Published { .. } | Seen::Acked(_) | Seen::Sought(_) | Seen::Purged(_))
            || matches!(asked.ask, Ask::Create | Ask::Alter(_) | Ask::Delete | Ask::DeleteGroup { .. })
            || matches!(asked.ask, Ask::Confirm { .. } | Ask::DeleteQueue { .. });
        if acknowledges && let Some(failure) = &self.life.failure {
            return broken("P10", format!("{seen:?} was answered after {failure}"));
        }
        if asked.ask == Ask::Delete {
            return match seen {
                Seen::Lines(lines) if lines[0].starts_with("DELETED ") => self.deleted(asked, disk),
                _ => broken("P14", format!("{:?} was answered by {seen:?}", asked.ask)),
            };
        }
        if asked.ask.is_of_topic() {
            let log = self.model.log(topic);
            if log.generation != asked.generation {
                if let Some(result) = self.judge_queues(asked, seen, true, disk) {
                    return result;
                }
                return self.answered_across(conn, asked, seen);
            }
            if !log.may_exist && !self.damaged {
                return broken("P12", format!("{:?} was answered for {topic}, which nobody has made", asked.ask));
            }
            // A topic is answered for only when it can't go any more.
            log.exists = true;
        }
        if let Some(result) = self.judge_queues(asked, seen, false, disk) {
            return result;
        }
        match (&asked.ask, seen) {
            (Ask::Publish(number), Seen::Published { offset, level, count })
                if self.model.attempts[*number].batch.map(|(_, count)| count as u64) == *count =>
            {
                let is_in_window = self.producers.is_in_window(&self.limits, &self.model, *number);
                self.model.published(*number, *offset, level, is_in_window)?;
                self.holds_level(topic, *offset + count.unwrap_or(1) - 1, level, disk)
            }
            (Ask::Fetch { group, max }, Seen::Messages(delivery)) => {
                self.messages(asked, delivery, *max, disk)?;
                self.fetched(conn, asked, group, delivery)
            }
            (Ask::Read { offset, max }, Seen::Messages(delivery)) => {
                self.messages(asked, delivery, *max, disk)?;
                match delivery.first() {
                    Some(first) if first != *offset => {
                        broken("P2", format!("READ of {topic} from {offset} begins at {first}"))
                    }
                    None if *offset < asked.firm_end => {
                        broken("P1", format!("READ of {topic} finds nothing at {offset}, below {}", asked.firm_end))
                    }
                    _ => Ok(()),
                }
            }
            (Ask::ReadRaw { offset }, Seen::Frames { first, salt, bytes }) => {
                self.frames(asked, *offset, *first, *salt, bytes, disk)
            }
            (Ask::Ack { group, offset }, Seen::Acked(committed)) => {
                if committed <= offset {
                    return broken("P5", format!("ACK {offset} of {group} was answered by {committed}"));
                }
                self.committed(topic, group, *committed, asked, disk)
            }
            (Ask::Seek { group, .. }, Seen::Sought(committed)) => {
                self.committed(topic, group, *committed, asked, disk)?;
                if let Some(cursor) = conn.cursors.get_mut(&(topic.clone(), group.clone())) {
                    (cursor.next, cursor.unknown) = (*committed, false);
                }
                Ok(())
            }
            (Ask::Status, Seen::Lines(lines)) => self.status(asked, &lines[0]),
            (Ask::Topics, Seen::Lines(lines)) => self.topics(asked, lines),
            (Ask::Groups, Seen::Lines(lines)) => self.groups(asked, lines, disk),
            (Ask::Purge { before }, Seen::Purged(start)) => self.purged(topic, *before, *start),
            (Ask::Create, Seen::Lines(lines)) if lines[0].starts_with("CREATED ") => self.creation_stands(topic, disk),
            (Ask::DeleteGroup { group }, Seen::Lines(lines)) if lines[0].starts_with("DELETED ") => {
                self.group_deleted(conn, asked, group, disk)
            }
            (Ask::Alter(value), Seen::Lines(lines)) if lines[0].starts_with("ALTERED ") => {
                self.altered(asked, *value, disk)
            }
            (Ask::Settings, Seen::Lines(lines)) => self.settings(asked, lines),
            (Ask::Word(word), Seen::Lines(lines)) if lines[0].starts_with(word) => Ok(()),
            _ => broken("P14", format!("{:?} was answered by {seen:?} (connection {})", asked.ask, connection.0)),
        }
    }

    /// Which refusals are legal.
    fn judge_error(&mut self, asked: &Asked, code: &str) -> Check {
        if let Some(result) = self.judge_queue_error(asked, code) {
            return result;
        }
        let topic = &asked.topic;
        let log = self.model.log(topic);
        // The topic may have gone, and another one of its name may have come.
        let is_across = asked.ask.is_of_topic() && log.generation != asked.generation;
        let legal = match code {
            "NO_TOPIC" => is_across || !asked.existed || !log.deletions.is_empty(),
            "OUT_OF_RANGE" if is_across => {
                matches!(
                    asked.ask,
                    Ask::Read { .. } | Ask::ReadRaw { .. } | Ask::Seek { to: Some(_), .. } | Ask::Purge { .. }
                )
            }
            "NO_GROUP" => match &asked.ask {
                Ask::DeleteGroup { group } => is_across || log.groups[group].may_be(0, asked.moment),
                _ => false,
            },
            "HALTED" => self.life.halted,
            "STOPPING" => self.life.stopping,
            "DISK_FULL" => {
                self.life.full
                    && matches!(
                        asked.ask,
                        Ask::Publish(_)
                            | Ask::Ack { .. }
                            | Ask::Seek { .. }
                            | Ask::DeleteGroup { .. }
                            | Ask::Create
                            | Ask::Alter(_)
                    )
            }
            "OVER_CAPACITY" => self.has_capacity() && matches!(asked.ask, Ask::Publish(_)),
            "QUEUE_FULL" => matches!(asked.ask, Ask::Publish(_)),
            "CORRUPT" => {
                (self.life.read_failed || self.damaged)
                    && matches!(
                        asked.ask,
                        Ask::Fetch { .. } | Ask::Read { .. } | Ask::ReadRaw { .. } | Ask::Seek { .. }
                    )
            }
            "GROUP_BUSY" => matches!(asked.ask, Ask::Fetch { .. } | Ask::Seek { .. } | Ask::DeleteGroup { .. }),
            "NOT_DELIVERED" => matches!(asked.ask, Ask::Ack { .. }),
            "OUT_OF_RANGE" => match asked.ask {
                Ask::Read { offset, .. } | Ask::Purge { before: offset } => offset > asked.firm_end,
                // READ goes on behind what is gone.
                Ask::ReadRaw { offset } | Ask::Seek { to: Some(offset), .. } => {
                    offset > asked.firm_end || offset < self.model.log(topic).start_max
                }
                _ => false,
            },
            code => match &asked.ask {
                Ask::Wrong(codes) | Ask::Fatal(codes) => codes.contains(&code),
                _ => false,
            },
        };
        if !legal {
            let promise = match code {
                "DISK_FULL" => "P11",
                "OVER_CAPACITY" => "P12",
                "CORRUPT" | "OUT_OF_RANGE" | "NO_TOPIC" => "P1",
                "NO_GROUP" => "P5",
                "HALTED" => "P10",
                _ => "P14",
            };
            return broken(promise, format!("{:?} of topic {topic} was answered by ERR {code}", asked.ask));
        }
        match &asked.ask {
            // HALTED leaves open what happened; every other refusal says that nothing of it was stored.
            _ if code == "HALTED" => {}
            Ask::Publish(number) => self.model.refused(*number),
            ask => self.was_refused(topic, ask, asked.id),
        }
        Ok(())
    }

    /// P3: what the reply says was reached has been reached. P13: no more is queued than may be.
    fn holds_level(&mut self, topic: &str, offset: u64, level: &str, disk: &SimDisk) -> Check {
        if self.damaged {
            return Ok(());
        }
        let written = self.end(topic, Depth::Cache, offset + 1, disk);
        let queued = (offset + 1).saturating_sub(written);
        // What waits to be written, what went down with the last force (it was waiting, too), and the batches under way.
        let in_write = u64::from(self.limits.batch_messages).max(self.largest_batch);
        let bound = 2 * u64::from(self.limits.queue_messages) + WRITES_MAX * in_write;
        if queued > bound && level == "ACCEPTED" {
            return broken("P13", format!("{queued} messages of {topic} are queued, over the limit"));
        }
        match level {
            "WRITTEN" if written <= offset && !self.life.cache_doubtful => {
                broken("P3", format!("OK {offset} WRITTEN of {topic}, but the page cache ends at {written}"))
            }
            "DURABLE" => {
                let durable = self.end(topic, Depth::Platter, offset + 1, disk);
                if durable <= offset {
                    return broken("P3", format!("OK {offset} DURABLE of {topic}, but the platter ends at {durable}"));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn end(&mut self, topic: &str, depth: Depth, wanted: u64, disk: &SimDisk) -> u64 {
        let key = (topic.to_owned(), depth == Depth::Platter);
        self.views.entry(key).or_insert_with(|| LogView::new(depth, topic)).end(disk, wanted)
    }

    /// Messages that a client is sent: dense, below the line, the bytes that were published.
    fn messages(&mut self, asked: &Asked, delivery: &Delivery, max: u64, disk: &SimDisk) -> Check {
        let (topic, messages) = (&asked.topic[..], &delivery.messages);
        let parts = delivery.parts();
        for pair in parts.windows(2) {
            if pair[1].0 != pair[0].1 {
                return broken("P2", format!("{topic} delivers {} after {}", pair[1].0, pair[0].1 - 1));
            }
        }
        for (first, next, _) in parts.iter().filter(|(.., is_gap)| *is_gap) {
            if next <= first {
                return broken("P14", format!("{topic} has a gap from {first} to {next}"));
            }
            if !self.damaged {
                self.model.lacks(topic, *first..*next)?;
            }
        }
        if messages.len() as u64 > max {
            return broken("P14", format!("{} messages where at most {max} were asked for", messages.len()));
        }
        let Some(last) = messages.last() else { return Ok(()) };
        self.is_below_the_line(topic, last.offset, disk)?;
        for message in messages {
            self.message(topic, message, asked.start, disk)?;
        }
        Ok(())
    }

    /// P4: what is delivered is durable.
    fn is_below_the_line(&mut self, topic: &str, offset: u64, disk: &SimDisk) -> Check {
        if self.damaged {
            return Ok(());
        }
        let durable = self.end(topic, Depth::Platter, offset + 1, disk);
        if durable <= offset {
            return broken("P4", format!("offset {offset} of {topic} is delivered, but the platter ends at {durable}"));
        }
        Ok(())
    }

    /// The bytes that were published, with what belongs to them.
    fn message(&mut self, topic: &str, message: &Message, asked_start: u64, disk: &SimDisk) -> Check {
        let number = self.delivered(topic, message.offset, &message.value, asked_start, disk)?;
        if let Some(words) = &message.meta {
            self.meta(number, message.offset, words)?;
            let time = words.iter().find_map(|word| word.strip_prefix("time=")?.parse().ok());
            let Some(time) = time else { return broken("P14", format!("no time in {words:?}")) };
            self.model.stamped(topic, message.offset, time)?;
        }
        Ok(())
    }

    /// A message is delivered; if it is of a batch, all of that is as durable.
    fn delivered(
        &mut self,
        topic: &str,
        offset: u64,
        value: &[u8],
        asked_start: u64,
        disk: &SimDisk,
    ) -> Result<usize, Broken> {
        let (producers, limits) = (&self.producers, &self.limits);
        let is_in_window = |model: &Model, number: usize| producers.is_in_window(limits, model, number);
        let number = self.model.delivered(topic, offset, value, asked_start, &is_in_window)?;
        let behind = (self.model.together(number).end - number) as u64;
        if behind > 1 && !self.damaged {
            let durable = self.end(topic, Depth::Platter, offset + behind, disk);
            if durable < offset + behind {
                return broken(
                    "P2",
                    format!(
                        "offset {offset} of {topic} is delivered, and the batch that it is of ends behind {durable}"
                    ),
                );
            }
        }
        Ok(number)
    }

    fn meta(&self, number: usize, offset: u64, words: &[String]) -> Check {
        let attempt = &self.model.attempts[number];
        let id = attempt.repeats.as_ref().map(|repeats| repeats.id);
        self.meta_with_id(number, offset, words, id)
    }

    fn meta_with_id(&self, number: usize, offset: u64, words: &[String], id: Option<(u64, u32)>) -> Check {
        let attempt = &self.model.attempts[number];
        let percent = |bytes: &[u8]| -> String {
            bytes.iter().fold(String::new(), |mut out, byte| {
                if byte.is_ascii_alphanumeric() {
                    out.push(*byte as char)
                } else {
                    out.push_str(&format!("%{byte:02X}"))
                }
                out
            })
        };
        // Compared undone, since an encoder may leave more characters as they are.
        let undone = |word: &str| percent(&unpercent(word));
        let mut expected: Vec<(String, String)> = Vec::new();
        if let Some((producer, sequence)) = id {
            expected.push(("id".into(), percent(format!("{producer}:{sequence}").as_bytes())));
        }
        if let Some(key) = &attempt.key {
            expected.push(("key".into(), percent(key)));
        }
        for (name, value) in &attempt.headers {
            expected.push((format!("h.{}", String::from_utf8_lossy(name)), percent(value)));
        }
        let found: Vec<(String, String)> = words
            .iter()
            .filter_map(|word| word.split_once('='))
            .filter(|(name, _)| !["time", "deliveries"].contains(name))
            .map(|(name, value)| (String::from_utf8_lossy(&unpercent(name)).into_owned(), undone(value)))
            .collect();
        // Under another id the same would be stored once more.
        if found.first().filter(|(name, _)| name == "id") != expected.first().filter(|(name, _)| name == "id") {
            return broken("P16", format!("offset {offset} (message {number}) came with {found:?}, not {expected:?}"));
        }
        if found != expected {
            return broken("P1", format!("offset {offset} (message {number}) came with {found:?}, not {expected:?}"));
        }
        Ok(())
    }

    /// P5, P6: a delivery begins at the committed offset and goes on without a gap.
    fn fetched(&mut self, conn: &mut Conn, asked: &Asked, group: &str, delivery: &Delivery) -> Check {
        let key = (asked.topic.clone(), group.to_owned());
        let cursor = conn.cursors.get(&key).copied();
        let topic = &asked.topic;
        let log = self.model.log(topic);
        let group_model = log.groups.entry(group.to_owned()).or_default();
        // What is gone was told of, and that is all that can be done about it.
        group_model.delivered.extend(delivery.parts().iter().flat_map(|(first, next, _)| *first..*next));
        let Some(first) = delivery.first() else {
            // An ACK of a holder before this one may have moved it on.
            let certain = match cursor {
                Some(cursor) if cursor.doubtful => None,
                cursor => group_model
                    .highest(asked.moment)
                    .map(|committed| cursor.map_or(committed, |cursor| cursor.next.max(committed))),
            };
            return match certain {
                Some(next) if next < asked.firm_end && !self.life.stopping && !self.life.halted => broken(
                    "P6",
                    format!(
                        "group {group} of {topic} is at {next}, and a FETCH found nothing below {}",
                        asked.firm_end
                    ),
                ),
                _ => Ok(()),
            };
        };
        let goes_on = cursor.is_some_and(|cursor| cursor.unknown || cursor.next == first);
        if !goes_on {
            let moved_on = |next: u64| next < first && group_model.may_be(first, asked.moment);
            if let Some(cursor) = cursor.filter(|cursor| !cursor.doubtful && !moved_on(cursor.next)) {
                return broken("P6", format!("group {group} of {topic} goes on at {first} instead of {}", cursor.next));
            }
            group_model.observe(
                &format!("the committed offset of group {group} of {topic} (its delivery begins there)"),
                first,
                asked.moment,
            )?;
            group_model.settle_before(self.life.number);
        }
        let next = delivery.next().expect("not empty");
        // What another connection has asked for, and was not answered, may still take the group away.
        let wants_it = |asked: &Asked| {
            asked.topic == key.0
                && matches!(
                    &asked.ask,
                    Ask::Fetch { group, .. } | Ask::Seek { group, .. } | Ask::DeleteGroup { group } if *group == key.1
                )
        };
        let doubtful = self.conns.values().any(|other| other.asked.iter().any(wants_it));
        conn.cursors.insert(key, Cursor { next, doubtful, unknown: false });
        Ok(())
    }

    fn committed(&mut self, topic: &str, group: &str, value: u64, asked: &Asked, disk: &SimDisk) -> Check {
        if !self.damaged && self.end(topic, Depth::Platter, value, disk) < value {
            return broken("P5", format!("group {group} of {topic} is committed at {value}, above what is durable"));
        }
        let group_model = self.model.log(topic).groups.entry(group.to_owned()).or_default();
        // An ACK at or below what is committed is answered by what is committed at that moment, and told in its turn.
        let is_old_news = matches!(asked.ask, Ask::Ack { offset, .. } if offset + 1 != value);
        if is_old_news && !group_model.may_be(value, asked.moment) {
            group_model.refused(asked.id);
            return Ok(());
        }
        group_model.answered(
            &format!("the committed offset of group {group} of {topic}"),
            asked.id,
            value,
            asked.moment,
        )?;
        // ACKED is sent only when its file would survive a power loss (crash story: ACKED from the cache).
        if !self.damaged {
            let path = format!("topics/{topic}/groups/{group}.offset");
            let stored = disk.forced_file(&path, 0, 100).unwrap_or_default();
            let digits = stored.split(|byte| *byte == b' ').next().unwrap_or_default();
            let stored: Option<u64> = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
            // A later replacement may be there already.
            let group_model = &self.model.log(topic).groups[group];
            let legal = match stored {
                Some(stored) => stored == value || group_model.may_be(stored, asked.moment),
                // It may have been deleted since.
                None => group_model.may_be_back(asked.moment),
            };
            if !legal && value > 0 {
                return broken("P5", format!("ACKED {value} of group {group}, but the platter has {stored:?}"));
            }
        }
        Ok(())
    }

    /// P12: the start is what was asked for, or one that was asked for by somebody else.
    fn purged(&mut self, topic: &str, before: u64, start: u64) -> Check {
        if start < before {
            return broken("P12", format!("PURGE of {topic} up to {before} was answered by {start}"));
        }
        self.model.begins_at(topic, start)
    }

    fn creation_stands(&self, topic: &str, disk: &SimDisk) -> Check {
        let stands = self.damaged
            || disk.forced_file(&format!("topics/{topic}/topic.toml"), 0, 1).is_some_and(|b| !b.is_empty());
        if stands { Ok(()) } else { broken("P3", format!("CREATED {topic}, but a power loss could take it")) }
    }

    /// ALTERED is sent only when the file would survive a power loss.
    fn altered(&mut self, asked: &Asked, value: u64, disk: &SimDisk) -> Check {
        let topic = &asked.topic;
        let setting = &mut self.model.log(topic).setting;
        setting.answered(&format!("{SETTING} of {topic}"), asked.id, value, asked.moment).map_err(of_reply)?;
        if self.damaged {
            return Ok(());
        }
        let stored = disk.forced_file(&format!("topics/{topic}/topic.toml"), 0, 4096).unwrap_or_default();
        let stored = String::from_utf8_lossy(&stored).into_owned();
        let line = stored.lines().find_map(|line| line.strip_prefix("retain_bytes = ")?.parse::<u64>().ok());
        let legal = line.is_some_and(|stored| stored == value || setting.may_be(stored, asked.moment));
        if legal { Ok(()) } else { broken("P3", format!("ALTERED {topic} to {value}, but the platter has {line:?}")) }
    }

    fn settings(&mut self, asked: &Asked, lines: &[String]) -> Check {
        let found = lines.iter().find_map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["SETTING", SETTING, value, origin] => {
                    Some(if origin == "topic" { value.parse().ok() } else { Some(0) })
                }
                _ => None,
            }
        });
        let Some(Some(value)) = found else { return broken("P14", format!("no {SETTING} in {lines:?}")) };
        let life = self.life.number;
        let setting = &mut self.model.log(&asked.topic).setting;
        setting.observe(&format!("{SETTING} of {}", asked.topic), value, asked.moment).map_err(of_reply)?;
        setting.settle_before(life);
        Ok(())
    }

    fn status(&mut self, asked: &Asked, line: &str) -> Check {
        let field = |name: &str| -> u64 {
            let found = line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            found.and_then(|value| value.parse().ok()).unwrap_or(u64::MAX)
        };
        let marks = [field("start"), field("durable"), field("written"), field("next")];
        if !line.starts_with("STATUS ") || !marks.is_sorted() || marks[3] == u64::MAX {
            return broken("P2", format!("the marks are not in order: {line}"));
        }
        if !self.damaged {
            if marks[0] < asked.start {
                return broken("P12", format!("{} began at {} and begins at {}", asked.topic, asked.start, marks[0]));
            }
            self.model.begins_at(&asked.topic, marks[0])?;
        }
        if marks[1] < asked.firm_end {
            return broken(
                "P1",
                format!("{} is durable up to {}, but was up to {}", asked.topic, marks[1], asked.firm_end),
            );
        }
        Ok(())
    }

    /// One whose creation is answered while the list waits for its turn need not be in it, nor one that may have been deleted since.
    fn topics(&mut self, asked: &Asked, lines: &[String]) -> Check {
        for (name, (generation, was_there)) in &asked.topics {
            let log = self.model.log(name);
            let is_listed =
                lines.iter().any(|line| line.split(' ').any(|word| word.strip_prefix("name=") == Some(name)));
            let is_certain = log.generation == *generation && log.may_exist == *was_there && log.deletions.is_empty();
            match (is_certain, was_there, is_listed) {
                (true, true, false) => return broken("P1", format!("topic {name} is not in the list {lines:?}")),
                (true, false, true) if !self.damaged => {
                    return broken("P12", format!("topic {name} is in the list {lines:?}, and nobody has made it"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn groups(&mut self, asked: &Asked, lines: &[String], disk: &SimDisk) -> Check {
        for line in lines {
            let field = |name: &str| line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            let (Some(group), Some(Ok(committed))) = (field("name"), field("committed").map(str::parse::<u64>)) else {
                return broken("P14", format!("not a line of GROUPS: {line}"));
            };
            if !self.damaged && self.end(&asked.topic, Depth::Platter, committed, disk) < committed {
                return broken("P5", format!("{line}: above what is durable"));
            }
            let moment = asked.moments.get(group).copied().unwrap_or(0);
            let life = self.life.number;
            let group_model = self.model.log(&asked.topic).groups.entry(group.to_owned()).or_default();
            group_model.observe(
                &format!("the committed offset of group {group} of {}", asked.topic),
                committed,
                moment,
            )?;
            group_model.settle_before(life);
        }
        // One that is not listed has nothing committed.
        for (group, moment) in &asked.moments {
            let listed = lines.iter().any(|line| line.split(' ').any(|word| word.strip_prefix("name=") == Some(group)));
            let group_model = self.model.log(&asked.topic).groups.entry(group.clone()).or_default();
            if !listed && !group_model.may_be(0, *moment) {
                return broken("P5", format!("group {group} of {} is gone from {lines:?}", asked.topic));
            }
        }
        Ok(())
    }

    /// READRAW: the client checks the frames itself, end to end.
    fn frames(&mut self, asked: &Asked, offset: u64, first: u64, salt: u32, bytes: &[u8], disk: &SimDisk) -> Check {
        if bytes.is_empty() {
            return Ok(());
        }
        let topic = &asked.topic[..];
        if first > offset {
            return broken("P2", format!("READRAW of {topic} from {offset} begins at {first}"));
        }
        if !self.damaged {
            let view = LogView::new(Depth::Cache, topic).active_salt(disk);
            if view == Some(Salt(salt)) {
                return broken("P4", format!("READRAW of {topic} told the salt of the active segment"));
            }
        }
        let (mut at, mut expected) = (0, first);
        while at < bytes.len() {
            let Decoded::Frame(frame) = record::decode(&bytes[at..], Salt(salt)) else {
                return broken("P4", format!("READRAW of {topic} sent no whole frame at offset {expected}"));
            };
            if frame.offset != expected {
                return broken(
                    "P2",
                    format!("READRAW of {topic} sent offset {} where {expected} belongs", frame.offset),
                );
            }
            if matches!(frame.kind, Kind::Message | Kind::Batch) {
                let Some(messages) = message::messages(&frame) else {
                    return broken("P4", format!("READRAW of {topic}: offset {expected} is no message"));
                };
                let end = expected + frame.count;
                if !self.damaged && self.end(topic, Depth::Platter, end, disk) < end {
                    return broken(
                        "P4",
                        format!("READRAW delivers offset {expected} of {topic} above the platter's end"),
                    );
                }
                // Whole frames of a whole segment: what lies below the start is no news.
                for (offset, message) in messages {
                    self.delivered(topic, offset, message.value, 0, disk)?;
                }
            }
            expected += frame.count;
            at += frame.size();
        }
        Ok(())
    }
}

/// A setting is held against the same history as a committed offset, and what it breaks is that a reply came after its effect.
fn of_reply(broken: Broken) -> Broken {
    Broken { promise: "P3", ..broken }
}

fn log_moments(log: &Log) -> BTreeMap<String, usize> {
    log.groups.iter().map(|(name, group)| (name.clone(), group.moment())).collect()
}

/// Whether an effect's failure leaves open what happened, so that nothing may be acknowledged any more (promises: what an
/// I/O error does).
fn must_halt(effect: &Effect, error: &IoError) -> bool {
    use IoErrorKind::{AfterFailedWrite, Exists, NoSpace, NotFound, TooManyFiles};
    match effect {
        Effect::Write { .. } | Effect::Reserve { .. } => error.kind != NoSpace && error.kind != TooManyFiles,
        Effect::Create { .. } => !matches!(error.kind, NoSpace | TooManyFiles | Exists),
        Effect::Force { .. } => error.kind != AfterFailedWrite,
        Effect::ForceDir { .. } | Effect::Truncate { .. } => true,
        Effect::Rename { .. } => error.kind != NotFound,
        _ => false,
    }
}

fn unpercent(word: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut bytes = word.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let hex: String = bytes.by_ref().take(2).map(char::from).collect();
            out.push(u8::from_str_radix(&hex, 16).unwrap_or(b'?'));
        } else {
            out.push(byte);
        }
    }
    out
}
