//! The world that the broker lives in: a disk, a network, clients, an operator and a clock, all in one thread and all decided
//! by one [`Decider`].
//!
//! Time is virtual. Every effect on the disk, every completion, every piece of a request and every client's next move lies
//! on the agenda at some moment; the earliest happens next. What varies is how long things take, and so what happens before
//! what; the process may die and the power may go after every effect, also during recovery and during that recovery's
//! recovery.
//!
//! A run has three parts. In the **storm** everything that its [`Plan`] has happens. In the **calm** nothing goes wrong any more:
//! every request has to be answered. In the **audit** one client reads everything, twice after a restart: once after a power
//! loss, once after a clean stop.

mod audit;
mod clients;
mod damage;
mod network;
mod process;
mod uninterrupted;

use crate::checker::Checker;
use crate::disk::{Fault, Options, SimDisk};
use crate::model::{Broken, broken};
use crate::mutant::Mutation;
use crate::tape::{Concern, Decider, Rate, Tape};
use crate::trace::{Lane, Trace};
use crate::view::{Depth, LogView};
use crate::workload::{Plan, Rates};
use audit::Audit;
use clients::Client;
use damage::Evidence;
use network::Conn;
use plimsoll_core::broker::Broker;
use plimsoll_core::effect::{ConnectionId, Effect, EffectId, FileId, IoError, IoErrorKind, Outcome as Completion};
use plimsoll_core::event::Now;
use plimsoll_core::layout;
use plimsoll_core::log::watermark::{self, Watermark};
pub(crate) use process::note_panic;
use std::collections::{BTreeMap, BTreeSet};

const MICROS: u64 = 1_000;
const MILLIS: u64 = 1_000_000;
const SECONDS: u64 = 1_000_000_000;
/// A storm that has not ended by then is called off.
const STORM_STEPS_MAX: u64 = 60_000;
/// How many steps and how much time the broker has to answer everything once nothing goes wrong any more.
const CALM_STEPS_MAX: u64 = 400_000;
const CALM_NS_MAX: u64 = 3_600 * SECONDS;

/// How a run ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Every promise was kept.
    Clean,
    /// One was not.
    Broken(Broken),
    /// Nothing goes wrong any more, and yet something is never answered, delivered or ready.
    Stuck(String),
    /// The core panicked.
    Panicked(String),
}

impl Verdict {
    /// The promise that it is about, as a word.
    pub fn promise(&self) -> &'static str {
        match self {
            Verdict::Clean => "none",
            Verdict::Broken(broken) => broken.promise,
            Verdict::Stuck(_) => "liveness",
            Verdict::Panicked(_) => "panic",
        }
    }

    /// What happened, in a sentence.
    pub fn words(&self) -> &str {
        match self {
            Verdict::Clean => "every promise was kept",
            Verdict::Broken(broken) => &broken.words,
            Verdict::Stuck(words) | Verdict::Panicked(words) => words,
        }
    }
}

impl From<Broken> for Verdict {
    fn from(broken: Broken) -> Verdict {
        Verdict::Broken(broken)
    }
}

/// What an effect can be for; a first start lasts until some process was ready: the last part of the keys of [`Stats::coverage`].
pub const PHASES: [&str; 9] = [
    "first start",
    "recovery",
    "recovery of recovery",
    "serving",
    "roll",
    "shutdown",
    "retention",
    "work queue",
    PACKING,
];

/// A segment is being packed.
const PACKING: &str = "packing";

/// The kinds of effects on the disk: the first part of the keys of [`Stats::coverage`].
pub const KINDS: [&str; 14] = [
    "list",
    "mkdir",
    "create",
    "open",
    "close",
    "read",
    "write",
    "reserve",
    "cut",
    "force",
    "force-dir",
    "rename",
    "remove",
    "rmdir",
];

/// What can become of an effect: the middle part of the keys of [`Stats::coverage`]. The last two are what happens to the process
/// right after it.
pub const FATES: [&str; 6] = ["done", "failed", "no space", "too many files", "process killed", "power lost"];

/// What a run was made of.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Requests that were answered.
    pub requests: u64,
    /// Forces of files and directories.
    pub forces: u64,
    /// New segments while serving.
    pub rolls: u64,
    /// Segments that were packed.
    pub packed: u64,
    /// Kills of the process, other than by itself.
    pub kills: u64,
    /// Power losses.
    pub power_losses: u64,
    /// Starts of the process.
    pub starts: u64,
    /// Of them, ended before they were ready.
    pub recoveries_interrupted: u64,
    /// Effects that failed.
    pub faults: u64,
    /// Faults, resets or crashes that the plan had and that never happened.
    pub armed_never_fired: u64,
    /// Effect kind, what became of it, and what the broker was doing: how often.
    pub coverage: BTreeMap<(&'static str, &'static str, &'static str), u64>,
}

/// A finished run.
pub struct Finished {
    /// How it ended.
    pub verdict: Verdict,
    /// The hash of everything that happened.
    pub hash: u128,
    /// How many steps it had.
    pub steps: u64,
    /// What it was made of.
    pub stats: Stats,
    /// Its decisions, if they were recorded.
    pub tape: Tape,
    /// Lines of the tape that it came from that were never asked for.
    pub unmet: Vec<String>,
    /// The trace, with words if they were kept.
    pub trace: Trace,
}

enum Todo {
    /// Tell the broker how an effect ended.
    Complete { id: EffectId, effect: Effect, result: Result<Completion, IoError> },
    /// A piece of a request comes in.
    Arrive(ConnectionId),
    /// The client's end of a connection takes what was sent to it.
    Take(ConnectionId),
    /// A slow client reads again.
    TakeAgain(ConnectionId),
    /// A mutant counts bytes as sent that nobody has taken.
    CountAsSent(ConnectionId, u64),
    /// The broker's end of a connection is closed.
    Gone(ConnectionId),
    /// A connection is reset.
    ResetNow(ConnectionId),
    /// A client's next move.
    Turn(usize),
    /// The auditor's next move.
    AuditTurn,
    /// The process ends by itself.
    Exit { stopped: bool },
    /// It may give up stopping, as it says in its configuration.
    StopLate,
    /// It should have stopped by now.
    StopOverdue,
    /// A new process begins.
    Restart,
}

/// An effect that the disk has not carried out.
struct Flying {
    ready_ns: u64,
    label: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    Storm,
    Calm,
    Audit,
    Over,
}

/// Everything there is.
pub struct World {
    d: Decider,
    plan: Plan,
    rates: Rates,
    trace: Trace,
    disk: SimDisk,
    broker: Option<Broker>,
    mutation: Mutation,
    part: Part,
    part_steps: u64,
    steps_max: u64,
    part_began_ns: u64,
    now_ns: u64,
    wall_offset_ms: i64,
    /// The latest that the wall clock has ever shown to the broker.
    wall_max_ms: i64,
    /// By moment and order of entry, with the life of the process that it belongs to (0: any).
    agenda: BTreeMap<(u64, u64), (u32, Todo)>,
    entries: u64,
    life: u32,
    flying: BTreeMap<EffectId, Flying>,
    files: BTreeMap<FileId, String>,
    counts: BTreeMap<String, u32>,
    losses: u32,
    /// After what the process died last, in words.
    died: String,
    conns: BTreeMap<ConnectionId, Conn>,
    next_connection: u64,
    clients: Vec<Client>,
    audit: Audit,
    evidence: Evidence,
    checker: Checker,
    stats: Stats,
    fired: Fired,
    halting: bool,
    /// The process before this one ended before it was ready.
    interrupted: bool,
    /// The recoveries that go on where interrupted ones stopped.
    chain: Option<uninterrupted::Chain>,
    /// The topics whose segment is being changed for a new one: their directories.
    rolling: BTreeSet<String>,
    /// The topics whose start is being moved: their directories.
    retaining: BTreeSet<String>,
    /// By topic, below what its groups were done lately, and when, before one of them was moved.
    gone_back: BTreeMap<String, (u64, u64)>,
    /// The topics in which a packed segment has its name, and that is not forced: their directories.
    packing: BTreeSet<String>,
    /// What this process has removed.
    removed_bytes: u64,
    /// Some process was ready.
    was_ready: bool,
    /// What the effect that was executed last is for.
    phase: &'static str,
}

/// Which of the plan's faults have happened.
#[derive(Default)]
struct Fired {
    kill: bool,
    power: bool,
    write: bool,
    space: bool,
    force: bool,
    read: bool,
    files: bool,
    reset: bool,
}

type Step = Result<(), Verdict>;

/// Runs a world to its end.
pub fn run(d: Decider, mutation: Mutation, keep_words: bool) -> Finished {
    run_until(d, mutation, keep_words, u64::MAX)
}

/// Runs a world to its end, or for so many steps: nothing was found in them, then.
pub(crate) fn run_until(d: Decider, mutation: Mutation, keep_words: bool, steps_max: u64) -> Finished {
    let mut world = World::new(d, mutation, keep_words);
    world.steps_max = steps_max;
    let verdict = match world.live() {
        Ok(()) => Verdict::Clean,
        Err(verdict) => verdict,
    };
    world.finish(verdict)
}

impl World {
    fn new(mut d: Decider, mutation: Mutation, keep_words: bool) -> World {
        let mut plan = Plan::draw(&mut d);
        mutation.plant(&mut plan.config);
        let options = Options { sector_bytes: plan.sector_bytes, root_is_new: true, ..Options::new(plan.profile) };
        let checker = Checker::new(&plan.config);
        let clients = plan.clients.iter().map(|role| Client::new(*role)).collect();
        World {
            rates: plan.rates.clone(),
            plan,
            d,
            trace: Trace::new(keep_words),
            disk: SimDisk::new(options),
            broker: None,
            mutation,
            part: Part::Storm,
            part_steps: 0,
            steps_max: u64::MAX,
            part_began_ns: 0,
            now_ns: SECONDS,
            wall_offset_ms: 1_700_000_000_000,
            wall_max_ms: 0,
            agenda: BTreeMap::new(),
            entries: 0,
            life: 0,
            flying: BTreeMap::new(),
            files: BTreeMap::new(),
            counts: BTreeMap::new(),
            losses: 0,
            died: String::new(),
            conns: BTreeMap::new(),
            next_connection: 0,
            clients,
            audit: Audit::default(),
            evidence: Evidence::default(),
            checker,
            stats: Stats::default(),
            fired: Fired::default(),
            halting: false,
            interrupted: false,
            chain: None,
            rolling: BTreeSet::new(),
            retaining: BTreeSet::new(),
            gone_back: BTreeMap::new(),
            packing: BTreeSet::new(),
            removed_bytes: 0,
            was_ready: false,
            phase: PHASES[0],
        }
    }

    fn live(&mut self) -> Step {
        self.at(self.now_ns, Todo::Restart);
        for client in 0..self.clients.len() {
            self.at(self.now_ns + client as u64 * MICROS, Todo::Turn(client));
        }
        while self.part != Part::Over {
            if self.trace.steps > self.steps_max {
                return Ok(());
            }
            self.step()?;
        }
        if self.checker.damaged {
            return Ok(());
        }
        Ok(self.checker.everyone_got_everything()?)
    }

    fn finish(mut self, verdict: Verdict) -> Finished {
        self.trace.note(self.now_ns, Lane::World, format_args!("the end: {}", verdict.words()));
        self.trace.bytes(&self.disk.hash().to_be_bytes());
        self.stats.requests = self.checker.replies;
        let (rates, fired) = (&self.plan.rates, &self.fired);
        let armed = [
            (rates.kill, fired.kill),
            (rates.power, fired.power),
            (rates.write_error, fired.write),
            (rates.no_space, fired.space),
            (rates.force_error, fired.force),
            (rates.read_error, fired.read),
            (rates.too_many_files, fired.files),
            (rates.reset, fired.reset),
        ];
        self.stats.armed_never_fired = armed.iter().filter(|(rate, fired)| rate.times > 0 && !fired).count() as u64;
        Finished {
            verdict,
            hash: self.trace.hash(),
            steps: self.trace.steps,
            stats: self.stats,
            tape: self.d.take_tape(),
            unmet: self.d.unmet(),
            trace: self.trace,
        }
    }

    fn now(&self) -> Now {
        Now { monotonic_ns: self.now_ns, wall_ms: self.wall_offset_ms + (self.now_ns / MILLIS) as i64 }
    }

    /// Puts something on the agenda that does not depend on the process.
    fn at(&mut self, at_ns: u64, todo: Todo) {
        self.entries += 1;
        self.agenda.insert((at_ns, self.entries), (0, todo));
    }

    /// Puts something on the agenda that goes with the process.
    fn in_this_life(&mut self, at_ns: u64, todo: Todo) {
        self.entries += 1;
        self.agenda.insert((at_ns, self.entries), (self.life, todo));
    }

    /// The earliest thing happens.
    fn step(&mut self) -> Step {
        self.part_steps += 1;
        self.change_part()?;
        let on_disk = self.next_on_disk();
        let on_agenda = self.agenda.first_key_value().map(|(key, _)| *key);
        let wake = self.broker.as_ref().and_then(Broker::next_wake);
        let first = [on_disk.map(|(at, _)| at), on_agenda.map(|(at, _)| at), wake].into_iter().flatten().min();
        let Some(first) = first else {
            if self.part == Part::Storm {
                return self.begin_calm();
            }
            return Err(Verdict::Stuck(format!("nothing will ever happen again: {}", self.whereabouts())));
        };
        self.now_ns = self.now_ns.max(first);
        self.checker.time_is(self.now_ns);
        if let Some((at, id)) = on_disk
            && at == first
        {
            return self.execute(id);
        }
        if on_agenda.is_some_and(|(at, _)| at == first) {
            let (_, (life, todo)) = self.agenda.pop_first().expect("just seen");
            if life != 0 && life != self.life {
                return Ok(());
            }
            return self.carry_on(todo);
        }
        self.tell(plimsoll_core::event::Event::Wake)
    }

    fn carry_on(&mut self, todo: Todo) -> Step {
        match todo {
            Todo::Complete { id, effect, result } => self.complete(id, &effect, result),
            Todo::Arrive(connection) => self.arrive(connection),
            Todo::Take(connection) => self.take(connection),
            Todo::TakeAgain(connection) => {
                self.take_again(connection);
                Ok(())
            }
            Todo::CountAsSent(connection, bytes) => {
                if self.conns.contains_key(&connection) {
                    self.tell(plimsoll_core::event::Event::Sent { connection, bytes })?;
                }
                Ok(())
            }
            Todo::Gone(connection) => self.gone(connection),
            Todo::ResetNow(connection) => self.reset(connection),
            Todo::Turn(client) => self.turn(client),
            Todo::AuditTurn => self.audit_turn(),
            Todo::Exit { stopped } => self.exit(stopped),
            Todo::StopLate => {
                self.checker.stop_is_late();
                Ok(())
            }
            Todo::StopOverdue => Err(Verdict::Stuck("a stop was asked for, and the process is still there".into())),
            Todo::Restart => self.restart(),
        }
    }

    fn change_part(&mut self) -> Step {
        match self.part {
            Part::Storm => {
                let done = self.clients.iter().all(|client| client.is_done());
                if done || self.part_steps > STORM_STEPS_MAX {
                    return self.begin_calm();
                }
            }
            Part::Calm if self.is_quiet() => return self.begin_audit(),
            Part::Calm | Part::Audit => {
                let spent = self.now_ns - self.part_began_ns;
                if self.part_steps > CALM_STEPS_MAX || spent > CALM_NS_MAX {
                    return Err(Verdict::Stuck(format!(
                        "nothing goes wrong any more, but after {} steps and {} s: {}",
                        self.part_steps,
                        spent / SECONDS,
                        self.whereabouts()
                    )));
                }
            }
            Part::Over => {}
        }
        Ok(())
    }

    /// From here on nothing goes wrong: every well-behaved request has to be answered.
    fn begin_calm(&mut self) -> Step {
        self.enter(Part::Calm);
        self.rates = Rates::CALM;
        self.disk.set_capacity(None);
        self.calm_clients();
        Ok(())
    }

    fn begin_audit(&mut self) -> Step {
        self.enter(Part::Audit);
        self.send_clients_home();
        self.evidence.backup = Some(self.disk.clone());
        self.audit.begin();
        self.at(self.now_ns, Todo::AuditTurn);
        Ok(())
    }

    fn enter(&mut self, part: Part) {
        self.part = part;
        self.part_steps = 0;
        self.part_began_ns = self.now_ns;
        self.trace.note(self.now_ns, Lane::World, format_args!("the {part:?} begins"));
    }

    fn whereabouts(&self) -> String {
        let waiting: Vec<String> = self
            .conns
            .iter()
            .filter(|(id, _)| self.checker.unanswered(**id) > 0)
            .map(|(id, conn)| format!("{} waits for {} replies", conn.who(), self.checker.unanswered(*id)))
            .collect();
        format!(
            "process {}, {}; {} effects under way; {}; audit: {}",
            self.life,
            if self.broker.is_none() {
                "down"
            } else if self.checker.is_ready() {
                "ready"
            } else {
                "recovering"
            },
            self.flying.len(),
            if waiting.is_empty() { "nobody waits".to_owned() } else { waiting.join(", ") },
            self.audit.whereabouts(),
        )
    }

    // ---- the disk -----------------------------------------------------------------------------------------------------

    fn next_on_disk(&self) -> Option<(u64, EffectId)> {
        if self.flying.is_empty() {
            return None;
        }
        self.disk.runnable().into_iter().map(|id| (self.flying[&id].ready_ns.max(self.now_ns), id)).min()
    }

    /// The disk takes an effect.
    fn submit(&mut self, id: EffectId, effect: Effect) {
        let label = self.label(&effect);
        match &effect {
            Effect::Create { file, path } | Effect::Open { file, path } => {
                self.files.insert(*file, path.clone());
            }
            Effect::Rename { from, to } => {
                for path in self.files.values_mut().filter(|path| *path == from) {
                    *path = to.clone();
                }
            }
            _ => {}
        }
        let base = match &effect {
            Effect::Force { .. } | Effect::ForceDir { .. } => 400 * MICROS,
            Effect::Read { .. } | Effect::List { .. } | Effect::CloseFile { .. } => 5 * MICROS,
            _ => 20 * MICROS,
        };
        let times = [1, 3, 12, 60];
        let slow = self.d.rarely(
            Concern::Schedule,
            self.rates.slow,
            times.len(),
            format_args!("time for {label}"),
            &|picked| format!("{} times", times[picked]),
        );
        self.trace.note(self.now_ns, Lane::Broker, format_args!("{label}"));
        if let Effect::Write { bytes, position, .. } = &effect {
            self.trace.bytes(&position.to_be_bytes());
            self.trace.bytes(bytes);
        }
        self.disk.submit(id, effect);
        self.flying.insert(id, Flying { ready_ns: self.now_ns + base * times[slow], label });
    }

    /// The disk carries an effect out; then the world may end for the process.
    fn execute(&mut self, id: EffectId) -> Step {
        let Flying { label, .. } = self.flying.remove(&id).expect("an effect under way");
        let effect =
            self.disk.pending().find(|(other, _)| *other == id).map(|(_, effect)| effect.clone()).expect("pending");
        let fault = self.fault(&effect, &label);
        if fault.is_some() {
            self.chain_has_failure();
        }
        self.phase = self.phase_of(&effect);
        let result = self.disk.execute(id, fault);
        if let Effect::Remove { path } = &effect
            && result.is_ok()
        {
            self.segment_removed(path)?;
        }
        if let Effect::Create { path, .. } = &effect
            && result.is_ok()
        {
            self.journal_is_bounded(path)?;
        }
        if let Effect::Rename { from, to } = &effect {
            self.topic_renamed(from)?;
            self.topic_renamed(to)?;
            self.may_be_packed(from, to)?;
        }
        if matches!(effect, Effect::Force { .. } | Effect::ForceDir { .. }) {
            self.stats.forces += 1;
        }
        let lane = match effect {
            Effect::Force { .. } | Effect::ForceDir { .. } => Lane::Disk,
            _ => Lane::Cache,
        };
        match &result {
            Ok(_) => self.trace.note(self.now_ns, lane, format_args!("{label}: done")),
            Err(error) => self.trace.note(self.now_ns, lane, format_args!("{label}: {error}")),
        }
        if result.as_ref().is_err_and(|error| !matches!(error.kind, IoErrorKind::NotFound | IoErrorKind::Exists)) {
            self.chain_has_failure();
        }
        // Nobody relies on a byte of the new file of a segment that is packed.
        let is_packing = self.phase == PHASES[8] && matches!(effect, Effect::Force { .. });
        if matches!(effect, Effect::Force { .. }) && result.is_err() && !is_packing {
            self.checker.force_failed();
        }
        if let Effect::CloseFile { file } = &effect {
            self.files.remove(file);
        }
        let kind = kind_of(&effect);
        let became = match &result {
            Ok(_) => "done",
            Err(error) if error.kind == IoErrorKind::NoSpace => "no space",
            Err(error) if error.kind == IoErrorKind::TooManyFiles => "too many files",
            // It was done, and this is what it found.
            Err(error) if matches!(error.kind, IoErrorKind::NotFound | IoErrorKind::Exists) => "done",
            Err(_) => "failed",
        };
        *self.stats.coverage.entry((kind, became, self.phase)).or_insert(0) += 1;
        let waits = [0, 300 * MICROS, 5 * MILLIS, 100 * MILLIS];
        let late = self.d.rarely(
            Concern::Schedule,
            self.rates.slow,
            waits.len(),
            format_args!("completion of {label}"),
            &|picked| format!("{} µs later", waits[picked] / MICROS),
        );
        self.in_this_life(self.now_ns + waits[late], Todo::Complete { id, effect, result });
        self.maybe_crash(format_args!("after {label}"), kind)
    }

    /// P12: a segment goes only when that was asked for, when a start behind it is recorded, and before any later one.
    fn segment_removed(&mut self, path: &str) -> Step {
        let Some((dir, name)) = path.split_once("/log/") else { return Ok(()) };
        let Some(base) = layout::parse_segment(name) else { return Ok(()) };
        let of_queue = dir.strip_prefix("topics/").and_then(|dir| dir.split_once("/queues/"));
        if let Some((topic, queue)) = of_queue.filter(|(_, queue)| layout::is_group_name(queue)) {
            return Ok(self.checker.journal_removed(topic, queue, &self.disk)?);
        }
        // What has lost its name is no log any more.
        let Some(topic) = dir.strip_prefix("topics/").filter(|topic| layout::is_topic_name(topic)) else {
            return Ok(());
        };
        if self.checker.damaged {
            return Ok(());
        }
        let names = self.disk.cached_names(&layout::log(dir)).unwrap_or_default();
        let left: Vec<u64> = names.iter().filter_map(|name| layout::parse_segment(name)).collect();
        if left.iter().any(|other| *other < base) {
            return Ok(broken(
                "P12",
                format!("segment {base} of {topic} was removed before the oldest: {left:?} are left"),
            )?);
        }
        let Some(next) = left.into_iter().min() else {
            return Ok(broken("P12", format!("the last segment of {topic} was removed"))?);
        };
        let slots = self.disk.forced_file(&layout::watermark(dir), 0, watermark::FILE_BYTES as u64);
        let start = Watermark::read(&slots.unwrap_or_default()).current().map_or(0, |slot| slot.start);
        if start < next {
            let words =
                format!("segment {base} of {topic} was removed, and the start on the platter is {start}, below {next}");
            return Ok(broken("P12", words)?);
        }
        Ok(self.checker.model.may_be_gone(topic, next)?)
    }

    /// P13: a journal that begins a new segment leaves the older ones soon.
    fn journal_is_bounded(&self, path: &str) -> Step {
        let Some((dir, _)) = path.split_once("/log/").filter(|(dir, _)| layout::is_queue(dir)) else { return Ok(()) };
        let bound = self.checker.journal_bytes_max();
        let names = self.disk.cached_names(&layout::log(dir)).unwrap_or_default();
        let path = |name: &String| format!("{}/{name}", layout::log(dir));
        let size = |name: &String| self.disk.cached_file(&path(name), 0, u64::MAX).unwrap_or_default().len() as u64;
        let bytes: u64 = names.iter().map(size).sum();
        if bytes > bound && !self.checker.damaged {
            let words = format!("the journal in {dir} has {bytes} bytes, over {bound}: {names:?}");
            return Ok(broken("P13", words)?);
        }
        Ok(())
    }

    /// A new file may have come in place of a segment. One that is told to have failed may have, too.
    fn may_be_packed(&mut self, from: &str, to: &str) -> Step {
        let Some((dir, name)) = to.split_once("/log/").filter(|_| self.is_of_packing(from)) else { return Ok(()) };
        let (Some(topic), Some(base)) = (dir.strip_prefix("topics/"), layout::parse_segment(name)) else {
            return Ok(());
        };
        self.stats.packed += 1;
        self.packing.insert(dir.to_owned());
        Ok(self.checker.segment_packed(topic, base, &self.disk)?)
    }

    /// Whether this is the new file of a segment that a running broker packs.
    pub(super) fn is_of_packing(&self, path: &str) -> bool {
        self.checker.is_ready() && path.strip_suffix(layout::TMP).is_some_and(|path| path.ends_with(layout::LOG_SUFFIX))
    }

    /// A name may have come to a topic, or gone from it, also where that is told to have failed.
    fn topic_renamed(&mut self, path: &str) -> Step {
        let name = path.strip_prefix("topics/").filter(|name| layout::is_topic_name(name));
        let Some(topic) = name else { return Ok(()) };
        let log_id = LogView::new(Depth::Cache, topic).log_id(&self.disk);
        Ok(self.checker.stands(topic, log_id)?)
    }

    fn fault(&mut self, effect: &Effect, label: &str) -> Option<Fault> {
        let error = |kind| Some(Fault::Error(kind));
        let partial = |kind, bytes| Some(Fault::Partial { kind, bytes });
        use IoErrorKind::{NoSpace, Other, TooManyFiles};
        type Options = Vec<(&'static str, Option<Fault>)>;
        let (concern_rates, options): (_, Options) = match effect {
            Effect::Write { bytes, .. } => {
                let half = bytes.len() as u64 / 2;
                let full = vec![("no space", error(NoSpace)), ("no space, half of it written", partial(NoSpace, half))];
                let failed = vec![
                    ("fails", error(Other)),
                    ("fails, half of it written", partial(Other, half)),
                    ("fails, but was written", partial(Other, bytes.len() as u64)),
                ];
                (self.rates.write_error, [failed, full].concat())
            }
            Effect::Reserve { length, .. } => {
                let full =
                    vec![("no space", error(NoSpace)), ("no space, half of it written", partial(NoSpace, length / 2))];
                // There are few of them, and most while serving.
                let rate = self.rates.write_error;
                let rate = Rate { of: rate.of.div_ceil(6), ..rate };
                (rate, [vec![("fails", error(Other))], full].concat())
            }
            Effect::Create { .. } | Effect::MakeDir { .. } => {
                let mut options = vec![("fails", error(Other)), ("no space", error(NoSpace))];
                if matches!(effect, Effect::Create { .. }) {
                    options.push(("too many files", error(TooManyFiles)));
                }
                (self.rates.write_error, options)
            }
            Effect::Truncate { .. } | Effect::Rename { .. } | Effect::Remove { .. } | Effect::RemoveDir { .. } => {
                (self.rates.write_error, vec![("fails", error(Other)), ("fails, but was done", partial(Other, 1))])
            }
            Effect::Force { .. } => {
                let ways = self.plan.profile.failed_force;
                let words = |way: &crate::disk::FailedForce| match way {
                    crate::disk::FailedForce::MarkedClean => "fails, pages marked clean",
                    crate::disk::FailedForce::Dropped => "fails, pages dropped",
                    crate::disk::FailedForce::ReportedLate => "succeeds, the next one fails",
                };
                (self.rates.force_error, ways.iter().map(|way| (words(way), Some(Fault::Force(*way)))).collect())
            }
            Effect::ForceDir { .. } => (self.rates.force_error, vec![("fails", error(Other))]),
            Effect::Read { .. } | Effect::List { .. } => (self.rates.read_error, vec![("fails", error(Other))]),
            Effect::Open { .. } => {
                (self.rates.read_error, vec![("fails", error(Other)), ("too many files", error(TooManyFiles))])
            }
            _ => return None,
        };
        // Each kind of failure has a rate of its own; they are asked for together, so that an effect is one question.
        let is_packing = self.phase_of(effect) == PACKING;
        let rate_of = |words: &str| {
            let rate = match words {
                words if words.starts_with("no space") => self.rates.no_space,
                "too many files" => self.rates.too_many_files,
                _ => concern_rates,
            };
            if is_packing { rate.at_a_rare_place() } else { rate }
        };
        let mut picked = 0;
        for class in ["no space", "too many files", ""] {
            let in_class = |words: &str| match class {
                "" => !words.starts_with("no space") && words != "too many files",
                class => words.starts_with(class),
            };
            let members: Vec<usize> = (0..options.len()).filter(|at| in_class(options[*at].0)).collect();
            let Some(first) = members.first() else { continue };
            let rate = rate_of(options[*first].0);
            let chosen = self.d.rarely(
                Concern::Faults,
                rate,
                members.len() + 1,
                format_args!("{label}{}{class}", if class.is_empty() { "" } else { ", " }),
                &|picked| if picked == 0 { "done".into() } else { options[members[picked - 1]].0.into() },
            );
            if chosen != 0 && picked == 0 {
                picked = members[chosen - 1] + 1;
            }
        }
        let (words, fault) = options.get(picked.checked_sub(1)?)?;
        self.stats.faults += 1;
        match *words {
            words if words.starts_with("no space") => self.fired.space = true,
            "too many files" => self.fired.files = true,
            _ => match effect {
                Effect::Force { .. } | Effect::ForceDir { .. } => self.fired.force = true,
                Effect::Read { .. } | Effect::List { .. } | Effect::Open { .. } => self.fired.read = true,
                _ => self.fired.write = true,
            },
        }
        *fault
    }

    /// An effect in words: its kind, its number among those of the kind on this file, and the file.
    fn label(&mut self, effect: &Effect) -> String {
        let file = |file: &FileId| self.files.get(file).map_or("a closed file", String::as_str);
        let path = match effect {
            Effect::List { dir } | Effect::ForceDir { dir } => dir,
            Effect::MakeDir { path }
            | Effect::Create { path, .. }
            | Effect::Open { path, .. }
            | Effect::Remove { path }
            | Effect::RemoveDir { path }
            | Effect::Rename { to: path, .. } => path,
            Effect::CloseFile { file: id }
            | Effect::Read { file: id, .. }
            | Effect::Write { file: id, .. }
            | Effect::Reserve { file: id, .. }
            | Effect::Truncate { file: id, .. }
            | Effect::Force { file: id } => file(id),
            other => unreachable!("not an effect on the disk: {other:?}"),
        };
        let (kind, path) = (kind_of(effect), short(path));
        let count = self.counts.entry(format!("{kind} {path}")).or_insert(0);
        *count += 1;
        let of = if matches!(effect, Effect::Rename { .. }) { "to" } else { "of" };
        format!("{kind} {count} {of} {path}")
    }

    /// The file that an effect writes, reads or makes.
    fn path_of<'a>(&'a self, effect: &'a Effect) -> Option<&'a str> {
        match effect {
            Effect::Create { path, .. } | Effect::Open { path, .. } | Effect::Remove { path } => Some(path),
            Effect::Read { file, .. } | Effect::Write { file, .. } => self.files.get(file).map(String::as_str),
            _ => None,
        }
    }

    /// What an effect is for.
    fn phase_of(&self, effect: &Effect) -> &'static str {
        if !self.checker.is_ready() {
            return match (self.was_ready, self.interrupted) {
                (false, _) => PHASES[0],
                (true, false) => PHASES[1],
                (true, true) => PHASES[2],
            };
        }
        let path = match effect {
            Effect::Write { file, .. }
            | Effect::Force { file }
            | Effect::CloseFile { file }
            | Effect::Read { file, .. }
            | Effect::Reserve { file, .. } => self.files.get(file).map_or("", String::as_str),
            Effect::Create { path, .. }
            | Effect::Open { path, .. }
            | Effect::Remove { path }
            | Effect::MakeDir { path }
            | Effect::RemoveDir { path }
            | Effect::Rename { from: path, .. } => path,
            Effect::List { dir } | Effect::ForceDir { dir } => dir,
            _ => "",
        };
        let names_packed = matches!(effect, Effect::ForceDir { .. })
            && path.strip_suffix("/log").is_some_and(|dir| self.packing.contains(dir));
        // What a segment was before: another file has its name.
        let is_replaced = matches!(effect, Effect::CloseFile { .. })
            && path.ends_with(layout::LOG_SUFFIX)
            && self.files.values().filter(|name| *name == path).count() > 1;
        if self.is_of_packing(path) || names_packed || is_replaced {
            return PACKING;
        }
        // Nothing else is cut, also where retention has forced the directory meanwhile.
        if let Effect::Truncate { .. } = effect {
            return PHASES[4];
        }
        let may_be_of_log = !matches!(
            effect,
            Effect::Read { .. }
                | Effect::Reserve { .. }
                | Effect::Open { .. }
                | Effect::Rename { .. }
                | Effect::List { .. }
                | Effect::MakeDir { .. }
                | Effect::RemoveDir { .. }
        );
        let of_log = path.ends_with(".log")
            || path.ends_with(".index")
            || path.ends_with("/watermark")
            || path.ends_with("/log");
        if of_log && may_be_of_log && !path.contains(".tmp") {
            if self.rolling.iter().any(|topic| path.strip_prefix(&topic[..]).is_some_and(|rest| rest.starts_with('/')))
            {
                return PHASES[4];
            }
            let is_close = matches!(effect, Effect::CloseFile { .. });
            if matches!(effect, Effect::Remove { .. })
                || (self
                    .retaining
                    .iter()
                    .any(|topic| path.strip_prefix(&topic[..]).is_some_and(|rest| rest.starts_with('/')))
                    && (is_close || path.ends_with("/watermark") || matches!(effect, Effect::ForceDir { .. })))
            {
                return PHASES[6];
            }
            // What else is under way was begun by a request that came before.
            if self.checker.is_stopping() && matches!(effect, Effect::Write { .. } | Effect::Force { .. }) {
                return PHASES[5];
            }
        }
        if path.contains("/queues") {
            return PHASES[7];
        }
        PHASES[3]
    }
}

fn kind_of(effect: &Effect) -> &'static str {
    match effect {
        Effect::List { .. } => "list",
        Effect::MakeDir { .. } => "mkdir",
        Effect::Create { .. } => "create",
        Effect::Open { .. } => "open",
        Effect::CloseFile { .. } => "close",
        Effect::Read { .. } => "read",
        Effect::Write { .. } => "write",
        Effect::Reserve { .. } => "reserve",
        Effect::Truncate { .. } => "cut",
        Effect::Force { .. } => "force",
        Effect::ForceDir { .. } => "force-dir",
        Effect::Rename { .. } => "rename",
        Effect::Remove { .. } => "remove",
        Effect::RemoveDir { .. } => "rmdir",
        _ => "other",
    }
}

/// A path as people say it: without `topics/` and without the zeros of a segment's name.
fn short(path: &str) -> String {
    let path = path.strip_prefix("topics/").unwrap_or(path);
    match path {
        "" => "the data directory".into(),
        ".." => "its parent".into(),
        path => {
            let (dir, name) = path.rsplit_once('/').map_or(("", path), |(dir, name)| (dir, name));
            let slash = if dir.is_empty() { "" } else { "/" };
            if name.len() > 20 && name.as_bytes()[..20].iter().all(u8::is_ascii_digit) {
                let digits = name[..20].trim_start_matches('0');
                return format!("{dir}{slash}{}{}", if digits.is_empty() { "0" } else { digits }, &name[20..]);
            }
            path.to_owned()
        }
    }
}
