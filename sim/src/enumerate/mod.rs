//! The exhaustive mode: every crash of a small workload, every disk that each may leave, recovered and checked.
//!
//! A [`Workload`] runs on a [`SimDisk`], one effect at a time. Before and after each effect, and where several are pending for
//! every subset of them that the contract lets be executed first, the process is killed, and the power fails in every way
//! that the disk's profile allows. On each disk that is left the production broker starts, and everything it had promised is
//! read back by clients and checked. The same happens inside that recovery, to the depth that is asked for.
//!
//! Two states are the same when their disks are byte for byte the same, under any future, and the same was promised: such a state is
//! recovered once. Nothing is sampled: where there are more states than the bound, the run fails.
//!
//! # What is checked after every recovery
//!
//! - The start is never refused (P8), and comes to an end.
//! - What was answered DURABLE is there (P1), what was ever delivered is there and the same (P4); after the kill of a process
//!   also what was answered WRITTEN, unless a force had failed.
//! - Offsets are dense from 0, no message stands twice, no other bytes than those sent; of a batch all messages stand side by side, or
//!   none (P2, P7).
//! - Groups go on where they were told that they are, and not further (P5, P6).
//! - A recovery that was interrupted comes to the same end as the one that was not (P9).
//! - Where a bit rots after the crash: the start is refused and changes nothing, or nothing promised is missing (P7).
//! - What was published with an id is repeated, and stands once (P16).
//! - What a client was told to be gone never comes back, what a policy keeps stays, what was refused is nowhere (P11, P12).
//! - In a work queue what was confirmed never comes again, what was not is handed out or is a dead letter, once, and counts are never too
//!   high; a queue is deleted as a whole, and packing takes only what all queues are done with (P15, P12).
//! - The broker takes another message, and a repeated ACK is answered from what will survive (P3, P5).

mod ledger;
mod machine;
mod queue;
mod workload;

pub use ledger::Broken;
pub use workload::{WORKLOADS, Workload};

use crate::disk::{CrashStates, Enumerator, Fault, Options, Replay, SimDisk, StateHash, Vandal};
use ledger::{LETTERS, Ledger, View};
use machine::{Aim, Blind, Machine, Observer, changes_something, in_words};
use plimsoll_core::config::Config;
use plimsoll_core::effect::{EffectId, HaltKind, IoErrorKind};
use plimsoll_core::settings::Setting;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use workload::{Fails, Step};

/// How the exhaustive mode is run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// 1: crashes of the workload; 2: also crashes in each recovery; 3: also in the recovery of that. `None`: as the
    /// workload says.
    pub depth: Option<usize>,
    /// The result does not depend on it.
    pub threads: usize,
    /// The most disks that one crash may leave.
    pub states_max: u64,
    /// Stop at the first broken promise.
    pub first_only: bool,
}

/// What was done at one depth.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Effects executed that change something, while crashes were looked at.
    pub ops: u64,
    /// Moments at which the power was cut, counted once for each subset of the pending effects.
    pub crash_points: u64,
    /// Disks that were left.
    pub states: u64,
    /// Different ones, each recovered and checked.
    pub distinct: u64,
    /// Of these, how many broke a promise.
    pub violations: u64,
    /// Of every state and its outcome, in any order.
    pub hash: u128,
}

/// What came out for a workload.
#[derive(Clone, Debug)]
pub struct Findings {
    /// One for each depth, beginning with 1.
    pub tallies: Vec<Tally>,
    /// Broken promises: the first that one thread would find, if there are any.
    pub broken: Option<Broken>,
}

/// How far a run has come.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// States of the first depth that are finished, with all that follows from them.
    pub done: usize,
    /// How many there are.
    pub of: usize,
    /// Different states so far, of any depth.
    pub distinct: u64,
}

/// Runs one workload.
///
/// # Errors
/// Where a crash leaves more states than the bound.
pub fn enumerate(
    workload: &'static Workload,
    settings: &Settings,
    configure: &(dyn Fn(&mut Config) + Sync),
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Findings, String> {
    let findings = Search::new(workload, settings, configure).run(progress)?;
    if findings.broken.is_none() || settings.threads == 1 {
        return Ok(findings);
    }
    // Which of several threads found which story is an accident; one thread finds the same one every time.
    let alone = Settings { threads: 1, first_only: true, ..settings.clone() };
    let broken = Search::new(workload, &alone, configure).run(progress)?.broken;
    Ok(Findings { broken: broken.or(findings.broken), ..findings })
}

/// Goes one way again, as [`Broken::path`] tells it, and says what happens.
///
/// # Errors
/// A path that leads nowhere.
pub fn replay(
    workload: &'static Workload,
    path: &str,
    configure: &(dyn Fn(&mut Config) + Sync),
    say: &mut dyn FnMut(String),
) -> Result<Option<Broken>, String> {
    let settings = Settings { depth: Some(0), threads: 1, states_max: u64::MAX, first_only: true };
    Search::new(workload, &settings, configure).replay(path, say)
}

/// How a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Killed,
    PowerLost,
}

/// One crash on the way to a state. The way is kept so that it can be told; it costs nothing before that.
struct Hop<'a> {
    before: Option<&'a Hop<'a>>,
    /// Which run of the workload (the failed force), for the first hop.
    run: usize,
    point: u64,
    subset: usize,
    end: End,
    picks: &'a [usize],
    /// A bit that was flipped afterwards.
    rot: Option<&'a Rot>,
    /// The disk at the crash, with what was pending.
    disk: &'a SimDisk,
}

/// A byte that rots, after the crash.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Rot {
    path: String,
    position: u64,
}

/// Stands for the promise where something panicked.
pub const PANIC: &str = "PANIC";

/// Which bit of the byte.
const ROT_MASK: u8 = 0x10;

impl Hop<'_> {
    fn tell(&self, broken: &mut Broken) {
        if let Some(before) = self.before {
            before.tell(broken);
        }
        let (end, word) = match self.end {
            End::Killed => ("the process is killed", 'k'),
            End::PowerLost => ("the power fails", 'p'),
        };
        let pending: Vec<String> = self
            .disk
            .pending()
            .filter(|(_, effect)| changes_something(effect))
            .map(|(_, effect)| in_words(self.disk, effect))
            .collect();
        let when = match &pending[..] {
            [] => "with nothing pending".to_owned(),
            pending => format!("before: {}", pending.join("; ")),
        };
        let mut told = format!("crash point {}: {end} {when}", self.point);
        if self.end == End::PowerLost {
            let (_, decisions) = self.disk.crash_state(self.picks);
            for decision in decisions {
                told.push_str(&format!("\n    {decision}"));
            }
        } else if !self.picks.is_empty() {
            told.push_str(&format!("\n    writes in progress: parts {:?}", self.picks));
        }
        if let Some(Rot { path, position }) = self.rot {
            told.push_str(&format!("\n    a bit of byte {position} of {path} rots"));
        }
        broken.story.push(told);
        let rot = self
            .rot
            .map(|Rot { path, position }| format!("!{}@{position}", path.replace('/', "|")))
            .unwrap_or_default();
        let picks: Vec<String> = self.picks.iter().map(usize::to_string).collect();
        let run = if self.before.is_none() { format!("{}:", self.run) } else { String::new() };
        broken.path.push(format!("{run}{}.{}{word}{}{rot}", self.point, self.subset, picks.join(",")));
    }
}

/// A state of the first depth, to be recovered by some thread.
struct Item {
    run: usize,
    point: u64,
    subset: usize,
    end: End,
    picks: Vec<usize>,
    rot: Option<Rot>,
    /// The disk at the crash.
    at: Arc<SimDisk>,
    /// What was left.
    left: SimDisk,
    ledger: Arc<Ledger>,
    key: u128,
}

struct Search<'a> {
    workload: &'static Workload,
    settings: &'a Settings,
    config: Config,
    depths: Vec<Depth>,
    broken: Mutex<Option<Broken>>,
    too_many: Mutex<Option<String>>,
    stop: AtomicBool,
}

#[derive(Default)]
struct Depth {
    states_seen: Seen<()>,
    /// Crash points that were gone through, and how many states each has.
    points_seen: Seen<u64>,
    ops: AtomicU64,
    crash_points: AtomicU64,
    states: AtomicU64,
    distinct: AtomicU64,
    violations: AtomicU64,
    hash: Mutex<u128>,
}

impl Depth {
    fn tally(&self) -> Tally {
        Tally {
            ops: self.ops.load(Relaxed),
            crash_points: self.crash_points.load(Relaxed),
            states: self.states.load(Relaxed),
            distinct: self.distinct.load(Relaxed),
            violations: self.violations.load(Relaxed),
            hash: *self.hash.lock().expect("no thread panics"),
        }
    }
}

impl<'a> Search<'a> {
    fn new(
        workload: &'static Workload,
        settings: &'a Settings,
        configure: &(dyn Fn(&mut Config) + Sync),
    ) -> Search<'a> {
        let mut config = (workload.config)();
        configure(&mut config);
        Search {
            workload,
            settings,
            config,
            depths: (0..settings.depth.unwrap_or(workload.depth)).map(|_| Depth::default()).collect(),
            broken: Mutex::new(None),
            too_many: Mutex::new(None),
            stop: AtomicBool::new(false),
        }
    }

    fn run(&self, progress: &(dyn Fn(Progress) + Sync)) -> Result<Findings, String> {
        let mut items = Vec::new();
        for run in 0.. {
            let mut explorer = Explorer::new(self, 1, None, None);
            explorer.run = run;
            explorer.collect = Some(&mut items);
            match self.workload_run(run, &mut explorer) {
                Ok(true) => {}
                Ok(false) => break,
                Err(broken) => self.broken(0, broken, None),
            }
        }
        let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..self.settings.threads {
                scope.spawn(|| {
                    while !self.stop.load(Relaxed) {
                        let Some(item) = items.get(next.fetch_add(1, Relaxed)) else { break };
                        let hop = Hop {
                            before: None,
                            run: item.run,
                            point: item.point,
                            subset: item.subset,
                            end: item.end,
                            picks: &item.picks,
                            rot: item.rot.as_ref(),
                            disk: &item.at,
                        };
                        self.state(&item.left, &item.ledger, None, 1, item.key, &hop);
                        let done = done.fetch_add(1, Relaxed) + 1;
                        let distinct = self.depths.iter().map(|depth| depth.distinct.load(Relaxed)).sum();
                        progress(Progress { done, of: items.len(), distinct });
                    }
                });
            }
        });
        if let Some(sentence) = self.too_many.lock().expect("no thread panics").take() {
            return Err(format!("workload {}: {sentence}", self.workload.name));
        }
        Ok(Findings {
            tallies: self.depths.iter().map(Depth::tally).collect(),
            broken: self.broken.lock().expect("no thread panics").take(),
        })
    }

    /// Runs the workload for the n-th time; `false`: there is no such run. Only one whose forces fail has more than one.
    fn workload_run(&self, run: usize, observer: &mut dyn Observer) -> Result<bool, Broken> {
        let workload = self.workload;
        let options = Options {
            sector_bytes: workload.sector_bytes,
            root_is_new: workload.before.is_none(),
            ..Options::new(workload.profile)
        };
        let mut machine = Machine::boot(&self.config, SimDisk::new(options), 0);
        let refuses = self.config.topic_defaults.get(Setting::CapacityBytes).is_some()
            && self.config.topic_defaults.get(Setting::OnFull) == Some(0);
        let may_refuse = refuses || self.config.total_capacity_bytes > 0;
        let deliveries_max = self.config.topic_defaults.get(Setting::MaxDeliveries);
        let mut ledger = Ledger::new(workload, may_refuse, deliveries_max);
        if workload.beside.is_some() {
            ledger = ledger.with_beside();
        }
        ledger.clock_shows(machine.wall_ms());
        if let Some(before) = workload.before {
            machine.run(&mut ledger, &mut Blind, usize::MAX)?;
            self.steps(before, &mut machine, &mut ledger, &mut Blind)?;
        }
        let (aim, ways) = match workload.fails {
            Fails::Nothing => {
                if run > 0 {
                    return Ok(false);
                }
                let before = machine.ops;
                self.steps(workload.steps, &mut machine, &mut ledger, observer)?;
                self.count_ops(0, machine.ops - before);
                return Ok(true);
            }
            Fails::Forces => {
                let ways = workload.profile.failed_force.iter().map(|way| Fault::Force(*way)).collect();
                (Aim::Force, ways)
            }
            Fails::Packing => {
                let half = Fault::Partial { kind: IoErrorKind::NoSpace, bytes: 100 };
                (Aim::Packing, vec![Fault::Error(IoErrorKind::NoSpace), Fault::Error(IoErrorKind::Other), half])
            }
        };
        let before = machine.ops;
        machine.fault = Some((aim, (run / ways.len()) as u64, ways[run % ways.len()]));
        self.steps(workload.steps, &mut machine, &mut ledger, &mut AfterFault(observer))?;
        self.count_ops(0, machine.ops - before);
        Ok(machine.fault.is_none())
    }

    fn count_ops(&self, depth: usize, ops: u64) {
        if let Some(depth) = self.depths.get(depth) {
            depth.ops.fetch_add(ops, Relaxed);
        }
    }

    fn steps(
        &self,
        steps: &[Step],
        machine: &mut Machine,
        ledger: &mut Ledger,
        observer: &mut dyn Observer,
    ) -> Result<(), Broken> {
        let mut boots = 0;
        for step in steps {
            if machine.is_over() && !matches!(step, Step::Restart) {
                continue;
            }
            match *step {
                Step::Send(client, requests) => {
                    let requests = workload::written_out(requests);
                    ledger.note(client, &requests, self.workload.groups);
                    machine.send(client, &workload::on_the_wire(&requests));
                }
                Step::Effects(n) => machine.run(ledger, observer, n)?,
                Step::Quiet => machine.run(ledger, observer, usize::MAX)?,
                Step::Ms(ms) => machine.advance(ms, ledger, observer)?,
                Step::Stop => machine.stop(),
                Step::Restart => {
                    boots += 1;
                    let mut disk = machine.disk.clone();
                    disk.kill(&mut Replay::new([]));
                    let (ops, fault) = (machine.ops, machine.fault);
                    *machine = Machine::boot(&self.config, disk, boots * self.workload.restart_ms);
                    (machine.ops, machine.fault) = (ops, fault);
                    *ledger = ledger.restarted(false);
                    ledger.clock_shows(machine.wall_ms());
                }
                Step::Begins(start) => ledger.begins(start)?,
            }
        }
        Ok(())
    }

    /// Recovers a state, checks it, and goes through the crashes of its recovery.
    fn state(&self, left: &SimDisk, ledger: &Ledger, expected: Option<&View>, depth: usize, key: u128, hop: &Hop<'_>) {
        let recovered = self.recover(left, ledger, expected, depth, &mut Blind);
        let mut hash = StateHash::new();
        hash.wide(key);
        match &recovered {
            Ok(view) => view.hash_into(&mut hash),
            Err(broken) => hash.bytes(broken.promise.as_bytes()),
        }
        let mut sum = self.depths[depth - 1].hash.lock().expect("no thread panics");
        *sum = sum.wrapping_add(hash.finish());
        drop(sum);
        match recovered {
            Err(broken) => self.broken(depth, broken, Some(hop)),
            // What rots is detected or it is not; what recovery does about it is nothing that can be interrupted.
            Ok(_) if depth == self.depths.len() || left.is_damaged() || self.stop.load(Relaxed) => {}
            Ok(view) => {
                // The whole again, with crashes: now it is known what the recovery comes to.
                let mut explorer = Explorer::new(self, depth + 1, Some((&view, hop.end)), Some(hop));
                let again = self.recover(left, ledger, expected, depth, &mut explorer);
                debug_assert!(again.is_ok());
            }
        }
    }

    /// Starts a broker on the disk and reads everything back. Says what it looked like.
    fn recover(
        &self,
        left: &SimDisk,
        ledger: &Ledger,
        expected: Option<&View>,
        depth: usize,
        observer: &mut dyn Observer,
    ) -> Result<View, Broken> {
        let attempt = catch_unwind(AssertUnwindSafe(|| {
            let mut machine = Machine::boot(&self.config, left.clone(), depth as i64 * self.workload.restart_ms);
            let mut ledger = ledger.clone();
            ledger.clock_shows(machine.wall_ms());
            let recovered = self.session(&mut machine, &mut ledger, expected, depth, observer);
            if observer.counts() {
                self.count_ops(depth, machine.ops);
            }
            recovered
        }));
        attempt.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            Err(Broken::new(PANIC, text))
        })
    }

    fn session(
        &self,
        machine: &mut Machine,
        ledger: &mut Ledger,
        expected: Option<&View>,
        depth: usize,
        observer: &mut dyn Observer,
    ) -> Result<View, Broken> {
        let groups = self.workload.groups;
        machine.run(ledger, observer, usize::MAX)?;
        match &machine.halted {
            Some(_) if machine.disk.is_damaged() => {
                // Detected. Then nothing may have been changed, so that what is left can be saved.
                if machine.ops > 0 {
                    return Err(Broken::new("P7", format!("a start that was refused made {} changes", machine.ops)));
                }
                return Ok(View::default());
            }
            Some(halt) if halt.kind == HaltKind::Corrupt => {
                return Err(Broken::new("P8", format!("the start was refused: {}", halt.reason)));
            }
            Some(halt) => return Err(Broken::new("P8", format!("the start failed: {}", halt.reason))),
            None if !machine.ready => return Err(Broken::new("P8", "the start does not come to an end")),
            None => {}
        }
        let mut ask_of = |client: usize, topic: &str, machine: &mut Machine, ledger: &mut Ledger, requests: &str| {
            let with_topic = |line: &str| match line.split_once(' ') {
                _ if line == LETTERS => format!("{line}\n"),
                // It says by itself where it goes.
                Some(("ID", _)) => format!("{line}\n"),
                Some((verb, rest)) => format!("{verb} @{topic} {rest}\n"),
                None => format!("{line} @{topic}\n"),
            };
            let requests: String = requests.lines().map(with_topic).collect();
            ledger.note(client, &requests, groups);
            machine.send(client, &workload::on_the_wire(&requests));
            machine.run(ledger, observer, usize::MAX)
        };
        let beside = self.workload.beside;
        if let Some(topic) = beside {
            ask_of(workload::BESIDE, topic, machine, ledger, "READ 0 1000\nSTATUS\n")?;
        }
        let topic = self.workload.topic;
        let mut ask =
            |machine: &mut Machine, ledger: &mut Ledger, requests: &str| ask_of(0, topic, machine, ledger, requests);
        ask(machine, ledger, "READ 0 1000\n")?;
        let is_gone = ledger.view().is_gone;
        if is_gone {
            // A topic of this name can be made at once, and nothing of the old one is in it.
            ask(machine, ledger, "CREATE\nREAD 0 1000\n")?;
        }
        for group in groups {
            ask(machine, ledger, &format!("FETCH {group} 1000 0\n"))?;
        }
        if ledger.has_altered() {
            ask(machine, ledger, "SETTINGS\n")?;
        }
        ask(machine, ledger, "STATUS\n")?;
        ledger.check_view(groups)?;
        let queues: String =
            self.workload.queues.iter().map(|queue| format!("RESERVE {queue} 1000 0 1000000\n")).collect();
        // Who dies of it is buried before anybody looks.
        let mut shown: String = self.workload.queues.iter().map(|queue| format!("PENDING {queue}\n")).collect();
        if ledger.has_letters() {
            shown.push_str(&format!("{LETTERS}\n"));
        }
        ask(machine, ledger, &queues)?;
        ask(machine, ledger, &shown)?;
        ledger.check_queues()?;
        if self.config.index_stride_bytes < self.config.segment_bytes {
            // Each from the middle, so that what sidecars say is used.
            for offset in ledger.view().start + 1..ledger.view().end {
                ask(machine, ledger, &format!("READ {offset} 1\n"))?;
            }
        }
        let view = View { is_gone, ..ledger.view() };
        let is_later = ledger.keeps_by_time();
        if let Some(expected) = expected.filter(|expected| !view.is_as_good_as(expected, is_later)) {
            let what = format!("the recovery that was not interrupted came to {expected:?}, this one to {view:?}");
            return Err(Broken::new("P9", what));
        }
        for (group, committed) in &view.committed {
            if *committed > 0 && groups.contains(group) {
                ask(machine, ledger, &format!("ACK {group} 0\n"))?;
            }
        }
        for queue in self.workload.queues {
            if let Some(offset) = ledger.first_held(queue) {
                ask(machine, ledger, &format!("CONFIRM {queue} {offset}\n"))?;
            }
        }
        // Whatever became of it: what has an id is stored once (P16).
        let repeated = ledger.repeated();
        ask(machine, ledger, &repeated)?;
        let message = format!("after-restart-{depth}");
        ask(machine, ledger, &format!("PUB DURABLE {message}\n"))?;
        if ledger.has_refused(&message) {
            // A purge makes room.
            let message = format!("after-purge-{depth}");
            ask(machine, ledger, &format!("PURGE {}\n", view.end))?;
            ask(machine, ledger, &format!("PUB DURABLE {message}\n"))?;
            if ledger.has_refused(&message) {
                return Err(Broken::new("P12", "everything was purged, and there is no room for a message"));
            }
        }
        ask(machine, ledger, "READ 0 1000\nSTATUS\n")?;
        if let Some(beside) = beside {
            for requests in [&format!("PUB DURABLE n-restart-{depth}\n"), "READ 0 1000\nSTATUS\n"] {
                ask_of(workload::BESIDE, beside, machine, ledger, requests)?;
            }
            // What it may have taken from the other one.
            ask_of(0, topic, machine, ledger, "READ 0 1000\nSTATUS\n")?;
        }
        ledger.check_view(&[])?;
        // The message is handed out, and nothing else.
        ask_of(0, topic, machine, ledger, &queues)?;
        ledger.look_at_queues_again();
        ask_of(0, topic, machine, ledger, &shown)?;
        ledger.check_queues()?;
        Ok(view)
    }

    fn broken(&self, depth: usize, mut broken: Broken, hop: Option<&Hop<'_>>) {
        if let Some(depth) = depth.checked_sub(1) {
            self.depths[depth].violations.fetch_add(1, Relaxed);
        }
        if let Some(hop) = hop {
            hop.tell(&mut broken);
        }
        self.broken.lock().expect("no thread panics").get_or_insert(broken);
        if self.settings.first_only {
            self.stop.store(true, Relaxed);
        }
    }

    fn replay(&self, path: &str, say: &mut dyn FnMut(String)) -> Result<Option<Broken>, String> {
        let mut hops = path.split('/');
        let first = hops.next().unwrap_or_default();
        let (run, first) = first.split_once(':').ok_or("a path begins with the number of the run, as in 0:17.0p")?;
        let run = run.parse().map_err(|_| format!("{run} is no number of a run"))?;
        let mut seeker = Seeker::parse(first)?;
        if let Err(broken) = self.workload_run(run, &mut seeker) {
            return Ok(Some(broken));
        }
        let (mut left, mut ledger) = seeker.found.take().ok_or(format!("the workload has no crash point {first}"))?;
        say(seeker.told);
        let mut expected = None;
        for depth in 1.. {
            let recovered = self.recover(&left, &ledger, expected.as_ref(), depth, &mut Blind);
            let view = match recovered {
                Err(broken) => return Ok(Some(broken)),
                Ok(view) => view,
            };
            say(format!("recovery {depth} comes to {} messages: {:?}", view.log.len(), view.log));
            let Some(hop) = hops.next() else { return Ok(None) };
            let mut seeker = Seeker::parse(hop)?;
            let _ = self.recover(&left, &ledger, expected.as_ref(), depth, &mut seeker);
            let found = seeker.found.take().ok_or(format!("recovery {depth} has no crash point {hop}"))?;
            say(seeker.told);
            expected = if seeker.before_ready && seeker.end == End::Killed { Some(view) } else { None };
            (left, ledger) = found;
        }
        Ok(None)
    }
}

/// Looks only once the fault has happened.
struct AfterFault<'a>(&'a mut dyn Observer);

impl Observer for AfterFault<'_> {
    fn at(&mut self, machine: &Machine, ledger: &Ledger) -> Result<(), Broken> {
        if machine.fault.is_some() { Ok(()) } else { self.0.at(machine, ledger) }
    }
}

/// Goes through every crash at every moment.
struct Explorer<'s, 'a> {
    search: &'s Search<'a>,
    /// Of the states that it finds.
    depth: usize,
    /// What the recovery that is looked at comes to, and how the process before it ended.
    comes_to: Option<(&'s View, End)>,
    hop: Option<&'s Hop<'s>>,
    run: usize,
    collect: Option<&'s mut Vec<Item>>,
    point: u64,
    /// What was gone through in this run.
    seen: BTreeSet<u128>,
}

/// A crash that is being gone through.
struct Crash<'c> {
    end: End,
    picks: &'c [usize],
    /// The disk at the crash.
    at: &'c Arc<SimDisk>,
    subset: usize,
}

/// Whether a byte belongs to something: not the empty space between the slots of a watermark file.
fn is_used(bytes: &[u8], at: usize) -> bool {
    const BLOCK: usize = 512;
    let start = at / BLOCK * BLOCK;
    bytes[start..bytes.len().min(start + BLOCK)].iter().any(|byte| *byte != 0)
}

impl<'s, 'a> Explorer<'s, 'a> {
    fn new(
        search: &'s Search<'a>,
        depth: usize,
        comes_to: Option<(&'s View, End)>,
        hop: Option<&'s Hop<'s>>,
    ) -> Explorer<'s, 'a> {
        Explorer { search, depth, comes_to, hop, run: 0, collect: None, point: 0, seen: BTreeSet::new() }
    }

    /// Every crash of this disk, with what is pending on it.
    fn crashes(&mut self, disk: &SimDisk, subset: usize, ledger: &Ledger, ready: bool) -> Result<(), String> {
        let at = Arc::new(disk.clone());
        let mut enumerator = Enumerator::default();
        let killed = Arc::new(ledger.restarted(false));
        let expected = self.comes_to.filter(|_| !ready).map(|(view, _)| view);
        let promised = hash_of(&killed, expected);
        loop {
            let mut left = disk.clone();
            left.kill(&mut enumerator);
            self.tally().states.fetch_add(1, Relaxed);
            let crash = Crash { end: End::Killed, picks: &enumerator.picks(), at: &at, subset };
            self.left(&crash, None, left, &killed, expected, promised);
            if !enumerator.advance() {
                break;
            }
        }
        // What a recovery comes to is fixed only where it began from a disk without a cache.
        let expected = self.comes_to.filter(|(_, end)| !ready && *end == End::PowerLost).map(|(view, _)| view);
        let lost = Arc::new(ledger.restarted(true));
        let promised = hash_of(&lost, expected);
        let key = key_of(disk, promised);
        if let Some(states) = self.tally().points_seen.get(key) {
            self.tally().states.fetch_add(states, Relaxed);
            return Ok(());
        }
        let states = disk.crash_states(self.search.settings.states_max).map_err(|too_many| {
            let point = self.point;
            format!("crash point {point} of depth {} leaves {too_many}", self.depth)
        })?;
        self.tally().states.fetch_add(states.total(), Relaxed);
        if !self.tally().points_seen.insert(key, states.total()) {
            return Ok(());
        }
        self.power_losses(&states, &at, subset, &lost, expected, promised);
        Ok(())
    }

    fn power_losses(
        &mut self,
        states: &CrashStates,
        at: &Arc<SimDisk>,
        subset: usize,
        ledger: &Arc<Ledger>,
        expected: Option<&View>,
        promised: u128,
    ) {
        for number in 0..states.total() {
            let state = states.get(number);
            let crash = Crash { end: End::PowerLost, picks: &state.picks, at, subset };
            self.left(&crash, None, state.disk, ledger, expected, promised);
            if self.search.stop.load(Relaxed) {
                return;
            }
        }
    }

    fn left(
        &mut self,
        crash: &Crash<'_>,
        rot: Option<Rot>,
        left: SimDisk,
        ledger: &Arc<Ledger>,
        expected: Option<&View>,
        promised: u128,
    ) {
        let key = key_of(&left, promised);
        if !self.tally().states_seen.insert(key, ()) {
            return;
        }
        self.tally().distinct.fetch_add(1, Relaxed);
        let (run, point) = (self.run, self.point);
        let Crash { end, picks, at, subset } = *crash;
        // The states of a power loss are many; only those with nothing under way are left to rot.
        if self.search.workload.rots && rot.is_none() && (end == End::Killed || at.pending().next().is_none()) {
            self.rot(crash, &left, ledger);
        }
        match &mut self.collect {
            Some(items) => {
                let (at, ledger) = (at.clone(), ledger.clone());
                items.push(Item { run, point, subset, end, picks: picks.to_vec(), rot, at, left, ledger, key });
            }
            None => {
                let hop = Hop { before: self.hop, run, point, subset, end, picks, rot: rot.as_ref(), disk: at };
                self.search.state(&left, ledger, expected, self.depth, key, &hop);
            }
        }
    }

    /// Each byte of this disk rots in turn.
    fn rot(&mut self, crash: &Crash<'_>, left: &SimDisk, ledger: &Arc<Ledger>) {
        for (path, bytes) in left.tree() {
            let Some(bytes) = bytes else { continue };
            for (position, _) in bytes.iter().enumerate().filter(|(at, _)| is_used(&bytes, *at)) {
                let mut rotten = left.clone();
                let position = position as u64;
                Vandal::new(&mut rotten).flip(&path, position, ROT_MASK);
                let mut ledger = Ledger::clone(ledger);
                if crash.end == End::PowerLost {
                    // The stated limit: the running slot may be a batch old, and then rot in the last forced batch looks like
                    // a torn tail.
                    ledger.forgive_last();
                }
                let ledger = Arc::new(ledger);
                let promised = hash_of(&ledger, None);
                self.tally().states.fetch_add(1, Relaxed);
                let rot = Rot { path: path.clone(), position };
                self.left(crash, Some(rot), rotten, &ledger, None, promised);
            }
        }
    }

    fn tally(&self) -> &'s Depth {
        &self.search.depths[self.depth - 1]
    }
}

impl Observer for Explorer<'_, '_> {
    fn at(&mut self, machine: &Machine, ledger: &Ledger) -> Result<(), Broken> {
        let mut hash = StateHash::new();
        ledger.hash_into(&mut hash);
        hash.number(u64::from(machine.ready));
        let promised = hash.finish();
        for (subset, disk) in subsets(&machine.disk).iter().enumerate() {
            // What is pending counts too: a kill may leave a part of it.
            let mut hash = StateHash::new();
            hash.wide(key_of(disk, promised));
            disk.pending().for_each(|(id, _)| hash.number(id.0));
            if self.search.stop.load(Relaxed) || !self.seen.insert(hash.finish()) {
                continue;
            }
            self.tally().crash_points.fetch_add(1, Relaxed);
            if let Err(sentence) = self.crashes(disk, subset, ledger, machine.ready) {
                self.search.too_many.lock().expect("no thread panics").get_or_insert(sentence);
                self.search.stop.store(true, Relaxed);
            }
        }
        self.point += 1;
        Ok(())
    }

    fn counts(&self) -> bool {
        true
    }
}

/// Goes to one crash.
struct Seeker {
    point: u64,
    subset: usize,
    end: End,
    picks: Vec<usize>,
    rot: Option<Rot>,
    at: u64,
    before_ready: bool,
    found: Option<(SimDisk, Ledger)>,
    told: String,
}

impl Seeker {
    /// `17.2p0,1`: crash point 17, subset 2, power loss with these picks.
    fn parse(hop: &str) -> Result<Seeker, String> {
        let wrong = || format!("{hop:?} is no crash; one looks like 17.0p0,2,1 or 17.0k");
        let (hop, rot) = match hop.split_once('!') {
            None => (hop, None),
            Some((hop, rot)) => {
                let (path, position) = rot.split_once('@').ok_or_else(wrong)?;
                let position = position.parse().map_err(|_| wrong())?;
                (hop, Some(Rot { path: path.replace('|', "/"), position }))
            }
        };
        let at = hop.find(['k', 'p']).ok_or_else(wrong)?;
        let (point, subset) = hop[..at].split_once('.').ok_or_else(wrong)?;
        let end = if hop[at..].starts_with('k') { End::Killed } else { End::PowerLost };
        let picks = hop[at + 1..].split(',').filter(|pick| !pick.is_empty());
        let picks: Result<Vec<usize>, _> = picks.map(str::parse).collect();
        Ok(Seeker {
            point: point.parse().map_err(|_| wrong())?,
            subset: subset.parse().map_err(|_| wrong())?,
            end,
            picks: picks.map_err(|_| wrong())?,
            rot,
            at: 0,
            before_ready: true,
            found: None,
            told: String::new(),
        })
    }
}

impl Observer for Seeker {
    fn at(&mut self, machine: &Machine, ledger: &Ledger) -> Result<(), Broken> {
        self.at += 1;
        if self.at - 1 != self.point {
            return Ok(());
        }
        let Some(disk) = subsets(&machine.disk).into_iter().nth(self.subset) else { return Ok(()) };
        let (run, point, subset, end) = (0, self.point, self.subset, self.end);
        let mut broken = Broken::new("", "");
        Hop { before: None, run, point, subset, end, picks: &self.picks, rot: self.rot.as_ref(), disk: &disk }
            .tell(&mut broken);
        self.told = broken.story.concat();
        self.before_ready = !machine.ready;
        let mut left = match self.end {
            End::PowerLost => disk.crash_state(&self.picks).0,
            End::Killed => {
                let mut left = disk;
                left.kill(&mut Replay::new(self.picks.clone()));
                left
            }
        };
        let mut ledger = ledger.restarted(self.end == End::PowerLost);
        if let Some(Rot { path, position }) = &self.rot {
            Vandal::new(&mut left).flip(path, *position, ROT_MASK);
            if self.end == End::PowerLost {
                ledger.forgive_last();
            }
        }
        self.found = Some((left, ledger));
        Ok(())
    }
}

/// The disk with every subset of the pending effects executed that can be, by the contract; the first has none.
fn subsets(disk: &SimDisk) -> Vec<SimDisk> {
    let mut found = Vec::new();
    let mut seen: BTreeSet<BTreeSet<EffectId>> = BTreeSet::new();
    let mut queue = VecDeque::from([(BTreeSet::new(), disk.clone())]);
    while let Some((done, mut disk)) = queue.pop_front() {
        // Looking changes nothing, whether or not it was done.
        while let Some(id) = runnable(&disk).into_iter().find(|(_, changes)| !changes).map(|(id, _)| id) {
            let _ = disk.execute(id, None);
        }
        for (id, _) in runnable(&disk) {
            let mut more: BTreeSet<EffectId> = done.clone();
            more.insert(id);
            if seen.insert(more.clone()) {
                let mut next = disk.clone();
                let _ = next.execute(id, None);
                queue.push_back((more, next));
            }
        }
        found.push(disk);
    }
    found
}

fn runnable(disk: &SimDisk) -> Vec<(EffectId, bool)> {
    let runnable = disk.runnable();
    let pending = disk.pending().filter(|(id, _)| runnable.contains(id));
    pending.map(|(id, effect)| (id, changes_something(effect))).collect()
}

fn hash_of(ledger: &Ledger, expected: Option<&View>) -> u128 {
    let mut hash = StateHash::new();
    ledger.hash_into(&mut hash);
    match expected {
        None => hash.number(0),
        Some(view) => {
            hash.number(1);
            view.hash_into(&mut hash);
        }
    }
    hash.finish()
}

fn key_of(disk: &SimDisk, promised: u128) -> u128 {
    let mut hash = StateHash::new();
    hash.wide(disk.hash());
    hash.wide(promised);
    hash.finish()
}

/// A map from hashes that several threads fill.
struct Seen<V> {
    shards: Vec<Mutex<BTreeMap<u128, V>>>,
}

impl<V> Default for Seen<V> {
    fn default() -> Seen<V> {
        Seen { shards: (0..64).map(|_| Mutex::default()).collect() }
    }
}

impl<V: Copy> Seen<V> {
    /// Whether it is new.
    fn insert(&self, key: u128, value: V) -> bool {
        self.shard(key).lock().expect("no thread panics").insert(key, value).is_none()
    }

    fn get(&self, key: u128) -> Option<V> {
        self.shard(key).lock().expect("no thread panics").get(&key).copied()
    }

    fn shard(&self, key: u128) -> &Mutex<BTreeMap<u128, V>> {
        &self.shards[(key >> 64) as usize % self.shards.len()]
    }
}
