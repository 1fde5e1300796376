//! The process: what the broker is told and what it says, how it dies and starts again.

use super::{MICROS, MILLIS, PACKING, Part, SECONDS, Step, Todo, Verdict, World};
use crate::checker::Checker;
use crate::disk::SimDisk;
use crate::model::End;
use crate::mutant::{Fate, Mutation};
use crate::tape::{Concern, Loss, Rate};
use crate::trace::Lane;
use crate::view::{Depth, LogView};
use plimsoll_core::broker::Broker;
use plimsoll_core::config::Config;
use plimsoll_core::effect::{Effect, EffectId, IoError, Outcome, ReplyPart};
use plimsoll_core::event::Event;
use plimsoll_core::layout;
use plimsoll_core::layout::INDEX_SUFFIX;
use plimsoll_core::log::watermark::{self, Watermark};
use plimsoll_core::settings::{Policy, Setting, Settings};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};

thread_local! {
    static IN_CORE: Cell<bool> = const { Cell::new(false) };
    static PLACE: Cell<String> = const { Cell::new(String::new()) };
}

/// For a panic hook: whether the core is what panics; its place is kept for the verdict.
pub(crate) fn note_panic(info: &PanicHookInfo<'_>) -> bool {
    let in_core = IN_CORE.get();
    if in_core {
        PLACE.set(info.location().map_or_else(String::new, |place| format!("{}:{}", place.file(), place.line())));
    }
    in_core
}

impl World {
    /// Tells the broker something, and carries out what it says.
    pub(super) fn tell(&mut self, event: Event) -> Step {
        let now = self.now();
        self.wall_max_ms = self.wall_max_ms.max(now.wall_ms);
        let Some(broker) = &mut self.broker else { return Ok(()) };
        let mut said: Vec<(EffectId, Effect)> = Vec::new();
        IN_CORE.set(true);
        let handled = catch_unwind(AssertUnwindSafe(|| broker.handle(now, event, &mut said)));
        IN_CORE.set(false);
        if let Err(panic) = handled {
            let words = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            let place = PLACE.take();
            return Err(Verdict::Panicked(format!(
                "the core panicked at {place}: {}",
                words.unwrap_or("without words")
            )));
        }
        if said.iter().any(|(_, effect)| matches!(effect, Effect::Halt(_))) {
            self.checker.is_halting();
        }
        for (id, effect, fate) in self.mutation.mutate(said, &self.files) {
            match fate {
                Fate::AsItIs => self.say(id, effect)?,
                Fate::Lost => self.in_this_life(self.now_ns, Todo::Complete { id, effect, result: Ok(Outcome::Done) }),
                Fate::AnsweredEarly => {
                    self.in_this_life(
                        self.now_ns,
                        Todo::Complete { id, effect: effect.clone(), result: Ok(Outcome::Done) },
                    );
                    self.say(id, effect)?;
                }
            }
        }
        Ok(())
    }

    fn say(&mut self, id: EffectId, effect: Effect) -> Step {
        if SimDisk::takes(&effect) {
            let is_roll =
                matches!(&effect, Effect::Create { path, .. } if path.ends_with(".log") && !path.contains(".tmp/"));
            if let Effect::Truncate { file, .. } = &effect
                && self.checker.is_ready()
            {
                let topic = self.files.get(file).and_then(|path| Some(path.split_once("/log/")?.0.to_owned()));
                self.rolling.extend(topic);
            }
            self.may_begin_retention(&effect);
            self.may_go_back(&effect);
            if let Effect::Remove { path } = &effect {
                self.removed_bytes += self.disk.cached_file(path, 0, u64::MAX).unwrap_or_default().len() as u64;
            }
            if is_roll && self.checker.is_ready() {
                self.stats.rolls += 1;
            }
            self.submit(id, effect);
            return Ok(());
        }
        match effect {
            Effect::Reply { connection, part } => {
                let (bytes, in_memory) = match part {
                    ReplyPart::Bytes(bytes) => (bytes, true),
                    ReplyPart::FileRange { file, position, length } => {
                        (self.disk.range(file, position, length).unwrap_or_default(), false)
                    }
                };
                self.reply(connection, bytes, in_memory)
            }
            Effect::SetReading { connection, on } => {
                if let Some(conn) = self.conns.get_mut(&connection) {
                    conn.reading = on;
                    self.in_this_life(self.now_ns, Todo::Arrive(connection));
                }
                Ok(())
            }
            Effect::Disconnect { connection, now } => {
                if let Some(conn) = self.conns.get_mut(&connection) {
                    conn.closing = true;
                    let wait = if now || conn.unsent == 0 { 0 } else { MILLIS };
                    if now {
                        conn.unsent = 0;
                    }
                    self.in_this_life(self.now_ns + wait, Todo::Gone(connection));
                }
                Ok(())
            }
            Effect::Report(report) => {
                self.trace.note(self.now_ns, Lane::Broker, format_args!("{report}"));
                let is_refusal = Checker::is_refusal(&report);
                if is_refusal || report.name == "READY" {
                    self.chain_ends(is_refusal)?;
                }
                Ok(self.checker.reported(&report, &self.disk)?)
            }
            Effect::Halt(halt) => {
                self.trace.note(self.now_ns, Lane::Broker, format_args!("halts: {}", halt.reason));
                self.halting = true;
                self.in_this_life(self.now_ns + 2 * MILLIS, Todo::Exit { stopped: false });
                if !self.checker.is_ready() && !self.checker.is_stopping() && !self.checker.has_failure() {
                    self.chain_ends(true)?;
                }
                Ok(self.checker.halted(&halt)?)
            }
            Effect::Stopped => {
                self.in_this_life(self.now_ns + 2 * MILLIS, Todo::Exit { stopped: true });
                Ok(())
            }
            other => unreachable!("the disk takes {other:?}"),
        }
    }

    /// A slot with another start than the one before it: the front of the log is about to go.
    fn may_begin_retention(&mut self, effect: &Effect) {
        let Effect::Write { file, bytes, .. } = effect else { return };
        let Some(dir) = self.files.get(file).and_then(|path| path.strip_suffix("/watermark")) else { return };
        let slots = self.disk.cached_file(&layout::watermark(dir), 0, watermark::FILE_BYTES as u64);
        let start = Watermark::read(&slots.unwrap_or_default()).current().map(|slot| slot.start);
        let new = watermark::decode(bytes).map(|slot| slot.start);
        if self.checker.is_ready()
            && let Some(new) = new.filter(|new| Some(*new) > start)
        {
            self.retaining.insert(dir.to_owned());
            let topic = dir.trim_start_matches("topics/").to_owned();
            if layout::is_topic_name(&topic)
                && self.checker.model.may_be_gone(&topic, new).is_err()
                && self.policies_give_up(dir, new)
            {
                self.checker.model.log(&topic).start_max = new;
            }
        }
    }

    /// Below this all groups of a topic are done, by what is in the files.
    fn consumed(&self, dir: &str) -> Option<u64> {
        let groups = self.disk.cached_names(&layout::groups(dir)).unwrap_or_default();
        let committed = groups.iter().filter(|name| layout::parse_group_offset(name).is_some()).map(|name| {
            let text = self.disk.cached_file(&format!("{}/{name}", layout::groups(dir)), 0, 100).unwrap_or_default();
            plimsoll_core::group::offset_file::parse_offset(&text).unwrap_or(0)
        });
        let there = self.disk.cached_names(&layout::queues(dir)).unwrap_or_default();
        let done = self.checker.queues_are_done_up_to(dir.trim_start_matches("topics/"), &there);
        committed.chain(done).min()
    }

    /// A group may be sought back behind what is on its way to go, and a work queue be made there.
    fn may_go_back(&mut self, effect: &Effect) {
        let Effect::Rename { to, .. } = effect else { return };
        let of_group = to.split_once("/groups/").filter(|(_, name)| layout::parse_group_offset(name).is_some());
        let of_queue = to.split_once("/queues/").filter(|(_, name)| layout::is_group_name(name));
        if let Some((dir, _)) = of_group.or(of_queue)
            && let Some(before) = self.consumed(dir)
        {
            let (highest, at_ns) = self.gone_back.get(dir).copied().unwrap_or_default();
            if before >= highest || self.now_ns - at_ns >= SECONDS {
                self.gone_back.insert(dir.to_owned(), (before, self.now_ns));
            }
        }
    }

    /// P12, from what is in the files: whether each segment below `start` is one that a policy gives up. The moment before the start is recorded.
    fn policies_give_up(&self, dir: &str, start: u64) -> bool {
        let policy = Policy::new(&Settings::NONE, &self.plan.config.topic_defaults);
        let names = self.disk.cached_names(&layout::log(dir)).unwrap_or_default();
        let mut bases: Vec<u64> = names.iter().filter_map(|name| layout::parse_segment(name)).collect();
        bases.sort_unstable();
        let bytes = |base: u64| self.disk.cached_file(&layout::segment(dir, base), 0, u64::MAX).unwrap_or_default();
        let before =
            self.gone_back.get(dir).filter(|(_, at_ns)| self.now_ns - at_ns < SECONDS).map(|(before, _)| *before);
        let consumed = self.consumed(dir).max(before).filter(|_| policy.get(Setting::RetainConsumed) == 1);
        let drops = policy.get(Setting::OnFull) == 1;
        let capacity = policy.bound(Setting::CapacityBytes).filter(|_| drops);
        // What has an offset and is not written yet counts as well.
        let message_max = u64::from(self.plan.config.payload_bytes_max.max(self.plan.config.publish_batch_bytes_max))
            + 100
            + self.plan.config.queue_bytes.min(1 << 20);
        // The oldest of all topics go. By now others of those may have gone, and there is more room than when these were chosen.
        let total_capacity = Some(self.plan.config.total_capacity_bytes).filter(|bytes| drops && *bytes > 0);
        let topics = self.plan.topics.iter().flat_map(|topic| [topic.clone(), layout::dead_letters(topic)]);
        let of_others: u64 = (topics.map(|topic| layout::topic(&topic)).filter(|other| other != dir))
            .map(|other| self.log_bytes(&other) + message_max)
            .sum();
        let beside = of_others + self.removed_bytes;
        let oldest_ms = policy.bound(Setting::RetainMs).map(|ms| self.wall_max_ms - ms as i64);
        bases.iter().enumerate().filter(|(_, base)| **base < start).all(|(at, base)| {
            let next = bases.get(at + 1).copied().unwrap_or(start);
            let left: u64 = bases[at + 1..].iter().map(|base| bytes(*base).len() as u64).sum();
            let newest = LogView::new(Depth::Cache, dir.trim_start_matches("topics/")).newest_ms(&self.disk, *base);
            next <= start
                && (policy.bound(Setting::RetainBytes).is_some_and(|kept| left >= kept)
                    || capacity.is_some_and(|capacity| left + bytes(*base).len() as u64 + message_max > capacity)
                    || total_capacity
                        .is_some_and(|total| left + bytes(*base).len() as u64 + message_max + beside > total)
                    || oldest_ms.is_some_and(|oldest| newest.is_none_or(|newest| newest < oldest))
                    || consumed.is_some_and(|consumed| next <= consumed))
        })
    }

    /// Of the segments of a topic, in the page cache.
    fn log_bytes(&self, dir: &str) -> u64 {
        let names = self.disk.cached_names(&layout::log(dir)).unwrap_or_default();
        let bases = names.iter().filter_map(|name| layout::parse_segment(name));
        let bytes = |base| self.disk.cached_file(&layout::segment(dir, base), 0, u64::MAX).unwrap_or_default().len();
        bases.map(|base| bytes(base) as u64).sum()
    }

    pub(super) fn complete(&mut self, id: EffectId, effect: &Effect, result: Result<Outcome, IoError>) -> Step {
        if self.mutation.was_answered(id) {
            return Ok(());
        }
        if let Effect::ForceDir { dir } = effect
            && let Some(topic) = dir.strip_suffix("/log")
        {
            self.rolling.remove(topic);
            self.retaining.remove(topic);
            if self.packing.remove(topic) {
                self.checker.another_file_stands(topic.trim_start_matches("topics/"));
            }
        }
        let mut halts = false;
        // What becomes of a sidecar has no consequence, but where all of a topic is to go.
        let of_sidecar =
            self.path_of(effect).is_some_and(|path| path.ends_with(INDEX_SUFFIX) && !path.contains(".tmp/"));
        if let Err(error) = &result
            && !self.halting
            && !of_sidecar
            && !self.is_given_up(effect)
            && !Mutation::is_besides(id)
        {
            halts = self.checker.failed(effect, error);
        }
        let result = self.mutation.told(effect, result);
        self.tell(Event::Completed { id, result })?;
        if halts { Ok(self.checker.must_have_halted()?) } else { Ok(()) }
    }

    /// What becomes of the new file of a segment that is packed has no consequence, until it has the old one's name.
    fn is_given_up(&self, effect: &Effect) -> bool {
        let path = match effect {
            Effect::Create { path, .. } => Some(path),
            Effect::Write { file, .. } | Effect::Force { file } => self.files.get(file),
            _ => None,
        };
        path.is_some_and(|path| self.is_of_packing(path))
    }

    /// The process may be killed here, and the power may go.
    pub(super) fn maybe_crash(&mut self, when: fmt::Arguments<'_>, kind: &'static str) -> Step {
        let answers = ["nothing", "power lost", "process killed"];
        let words = |picked: usize| answers[picked].to_owned();
        let both = self.rates.kill.times + self.rates.power.times;
        self.died = when.to_string();
        let picked = if both == 0 {
            self.d.rarely(Concern::Crashes, Rate::NEVER, 3, when, &words)
        } else {
            // In thousandths.
            let part = |rate: Rate| {
                let rate = if self.phase == PACKING { rate.at_a_rare_place() } else { rate };
                100_000 * rate.times / rate.of
            };
            let (kill, power) = (part(self.rates.kill), part(self.rates.power));
            self.d.weighted(Concern::Crashes, &[100_000 - kill - power, power, kill], when, &words)
        };
        // Only a tape can ask for a crash once it is calm: then somebody has edited it.
        if picked == 0 || self.broker.is_none() {
            return Ok(());
        }
        *self.stats.coverage.entry((kind, answers[picked], self.phase)).or_insert(0) += 1;
        if picked == 1 { self.power_loss() } else { self.kill(false) }
    }

    pub(super) fn power_loss(&mut self) -> Step {
        self.fired.power = true;
        self.stats.power_losses += 1;
        self.trace.note(self.now_ns, Lane::World, format_args!("POWER LOST"));
        self.losses += 1;
        self.checker.the_dead_have_letters(&self.disk)?;
        self.end_process(End::PowerLost);
        let before = if self.trace.lines.is_some() { self.disk.tree() } else { BTreeMap::new() };
        self.disk.crash(&mut Loss { decider: &mut self.d, when: &self.died });
        self.trace.bytes(&self.disk.hash().to_be_bytes());
        self.tell_survivors(&before);
        Ok(())
    }

    fn kill(&mut self, by_itself: bool) -> Step {
        if !by_itself {
            self.fired.kill = true;
            self.stats.kills += 1;
        }
        let words = if by_itself { "the process ends by itself" } else { "PROCESS KILLED" };
        self.trace.note(self.now_ns, Lane::World, format_args!("{words}"));
        self.losses += 1;
        self.checker.the_dead_have_letters(&self.disk)?;
        self.end_process(End::Killed { after_failure: false });
        self.disk.kill(&mut Loss { decider: &mut self.d, when: &self.died });
        Ok(())
    }

    /// For the report: what the process saw of each file, and what is left.
    fn tell_survivors(&mut self, before: &BTreeMap<String, Option<Vec<u8>>>) {
        if self.trace.lines.is_none() {
            return;
        }
        let after = self.disk.tree();
        let mut same = 0;
        let mut tell = |text: fmt::Arguments<'_>| self.trace.tell(self.now_ns, Lane::Disk, text);
        for (path, was) in before {
            let name = super::short(path);
            match (was, after.get(path)) {
                (_, None) => tell(format_args!("lost: {name}")),
                (Some(was), Some(Some(is))) if was != is => {
                    let differ = was.iter().zip(is).filter(|(was, is)| was != is).count();
                    let (was, is) = (was.len(), is.len());
                    tell(format_args!("left of {name}: {is} of {was} bytes, {differ} of them other ones"));
                }
                _ => same += 1,
            }
        }
        for path in after.keys().filter(|path| !before.contains_key(*path)) {
            tell(format_args!("back again: {}", super::short(path)));
        }
        tell(format_args!("left as they were: {same} files and directories"));
    }

    pub(super) fn exit(&mut self, stopped: bool) -> Step {
        self.died = format!("end of process {}", self.life);
        if !stopped {
            if self.checker.damaged {
                self.refused()?;
            }
            return self.kill(true);
        }
        self.trace.note(self.now_ns, Lane::World, format_args!("the process has stopped"));
        self.checker.the_dead_have_letters(&self.disk)?;
        self.end_process(End::Stopped);
        self.losses += 1;
        self.disk.kill(&mut Loss { decider: &mut self.d, when: &self.died });
        Ok(())
    }

    fn end_process(&mut self, end: End) {
        if !self.checker.is_ready() {
            self.stats.recoveries_interrupted += 1;
        }
        self.interrupted = !self.checker.is_ready();
        self.chain_is_interrupted(end == End::PowerLost);
        self.rolling.clear();
        self.retaining.clear();
        self.packing.clear();
        self.gone_back.clear();
        self.removed_bytes = 0;
        self.was_ready |= self.checker.is_ready();
        self.broker = None;
        self.halting = false;
        self.flying.clear();
        self.files.clear();
        self.checker.process_ended(end);
        let connections: Vec<_> = self.conns.keys().copied().collect();
        for connection in connections {
            self.cut(connection);
        }
        self.life += 1;
        let waits = [MILLIS, 40 * MILLIS, 4 * SECONDS];
        let died = self.died.clone();
        let wait = self.d.rarely(
            Concern::Schedule,
            self.rates.slow,
            waits.len(),
            format_args!("{died}, restart"),
            &|picked| format!("after {} ms", waits[picked] / MILLIS),
        );
        self.in_this_life(self.now_ns + waits[wait], Todo::Restart);
    }

    pub(super) fn restart(&mut self) -> Step {
        if self.life == 0 {
            self.life = 1;
        } else {
            // The power can also go while nobody is there to see it.
            let rate = if self.rates.power.times > 0 { Rate::one_in(8) } else { Rate::NEVER };
            let words = |picked: usize| ["power stays", "power lost"][picked].to_owned();
            let died = self.died.clone();
            if self.d.rarely(Concern::Crashes, rate, 2, format_args!("{died}, before the restart"), &words) == 1 {
                self.trace.note(self.now_ns, Lane::World, format_args!("POWER LOST while no process runs"));
                self.losses += 1;
                self.stats.power_losses += 1;
                self.checker.process_ended(End::PowerLost);
                self.chain_is_interrupted(true);
                let before = if self.trace.lines.is_some() { self.disk.tree() } else { BTreeMap::new() };
                self.disk.crash(&mut Loss { decider: &mut self.d, when: &self.died });
                self.tell_survivors(&before);
            }
        }
        self.stats.starts += 1;
        self.checker.stand_after_a_crash(&self.disk)?;
        self.before_start();
        self.trace.note(self.now_ns, Lane::World, format_args!("process {} starts", self.life));
        let mut entropy = [7; 16];
        entropy[..4].copy_from_slice(&self.life.to_be_bytes());
        let config = Config { entropy, ..self.plan.config.clone() };
        self.chain_begins_or_goes_on(&config);
        let broker = Broker::new(config)
            .map_err(|sentence| Verdict::Panicked(format!("the plan is no configuration: {sentence}")))?;
        self.broker = Some(broker);
        self.checker.process_began();
        if self.part != Part::Storm {
            self.at(self.now_ns + MILLIS, Todo::AuditTurn);
        }
        self.tell(Event::Start)
    }

    /// The operator wants the process to stop.
    pub(super) fn ask_to_stop(&mut self) -> Step {
        if self.broker.is_none() || self.halting {
            return Ok(());
        }
        self.trace.note(self.now_ns, Lane::World, format_args!("the process is asked to stop"));
        self.checker.stop_asked();
        self.in_this_life(self.now_ns + 4 * SECONDS, Todo::StopLate);
        self.in_this_life(self.now_ns + 60 * SECONDS, Todo::StopOverdue);
        self.tell(Event::Stop)
    }

    /// What the operator may do at any moment.
    pub(super) fn operate(&mut self, moment: fmt::Arguments<'_>) -> Step {
        let answers = [
            "nothing",
            "stops the process",
            "fills the disk",
            "makes room",
            "sets the clock back an hour",
            "sets the clock forward a day",
            "lets the machine sleep for ten minutes",
            "meddles with an index",
        ];
        let picked = self.d.rarely(Concern::Operator, self.rates.operator, answers.len(), moment, &|picked| {
            answers[picked].to_owned()
        });
        if picked != 0 {
            self.trace.note(self.now_ns, Lane::World, format_args!("the operator {}", answers[picked]));
        }
        match picked {
            1 => self.ask_to_stop(),
            2 => {
                let left = [0, 1, 3, 12, 40];
                let words = |picked: usize| format!("{} sectors are left", left[picked]);
                let sectors =
                    left[self.d.choose(Concern::Operator, left.len(), format_args!("{moment}, room"), &words)];
                let capacity = self.disk.used_bytes() + sectors * u64::from(self.plan.sector_bytes);
                self.disk.set_capacity(Some(capacity));
                Ok(())
            }
            3 => {
                self.disk.set_capacity(None);
                Ok(())
            }
            4 => {
                self.checker.clock_was_set();
                self.wall_offset_ms -= 3_600_000;
                Ok(())
            }
            5 => {
                self.checker.clock_was_set();
                self.wall_offset_ms += 86_400_000;
                Ok(())
            }
            6 => {
                self.sleep(600 * SECONDS);
                Ok(())
            }
            7 => {
                self.meddle(moment);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The clock goes on, and nothing else does.
    fn sleep(&mut self, ns: u64) {
        self.now_ns += ns;
        self.checker.time_is(self.now_ns);
        if self.checker.is_stopping() {
            self.checker.stop_is_late();
        }
        self.agenda =
            std::mem::take(&mut self.agenda).into_iter().map(|((at, n), todo)| ((at + ns, n), todo)).collect();
        for flying in self.flying.values_mut() {
            flying.ready_ns += ns;
        }
    }

    /// How long a client's bytes take.
    pub(super) fn network_ns(&self) -> u64 {
        30 * MICROS
    }
}
