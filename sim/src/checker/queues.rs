//! Work queues (P15): what the requests and answers about them say, held against the [reference queue](crate::work_queue), and against
//! their journals on the disk.

use super::{Ask, Asked, Checker};
use crate::disk::SimDisk;
use crate::model::{Check, End, broken};
use crate::reply::{Delivery, Seen};
use crate::view::{self, Depth, Journal};
use crate::work_queue::{self, Bounds, Letter, Open, Topic, Wish, WorkQueue};
use plimsoll_core::effect::ConnectionId;
use plimsoll_core::layout;
use plimsoll_core::settings::{Policy, Setting, Settings};
use std::collections::BTreeMap;

const MILLIS: u64 = 1_000_000;
/// What an operation takes in a journal, but for the checkpoint and what a request with many offsets needs.
const OPERATION_BYTES_MAX: u64 = 16 << 10;
/// A message that can't be read is handed out no sooner than this, and a checkpoint may round it up.
const HELD_BACK_NS: u64 = 1_001 * MILLIS;
/// The most messages that a client lets `PENDING` tell of, and what telling of one takes.
const PENDING_LINES_MAX: u64 = 1_000;
const PENDING_LINE_BYTES: u64 = 110;

/// All that is known of work queues.
#[derive(Clone, Debug, Default)]
pub(super) struct Queues {
    /// By topic and name.
    all: BTreeMap<(String, String), WorkQueue>,
    /// What stands among the dead letters of a topic: by offset there, the queue and what the letter says.
    letters: BTreeMap<String, BTreeMap<u64, (String, Letter)>>,
    /// Where the dead letters of a topic begin, as far as that was told.
    letters_start: BTreeMap<String, u64>,
    /// When a read failed last, in whatever life.
    read_failed_ns: Option<u64>,
}

/// What a request asks of which queue.
fn wish_of(ask: &Ask) -> Option<(&str, Wish)> {
    Some(match ask {
        Ask::Reserve { queue, wait_ms, lease_ms, .. } => {
            (queue, Wish::Reserve { lease_ns: lease_ms * MILLIS, wait_ns: wait_ms * MILLIS })
        }
        Ask::Confirm { queue, offsets } => (queue, Wish::Confirm(offsets.clone())),
        Ask::Abort { queue, offset, delay_ms } => (queue, Wish::Abort { offset: *offset, delay_ns: delay_ms * MILLIS }),
        Ask::Extend { queue, offset, lease_ms } => {
            (queue, Wish::Extend { offset: *offset, lease_ns: lease_ms * MILLIS })
        }
        Ask::Steal { queue, offset } => (queue, Wish::Steal(*offset)),
        Ask::Pending { queue, .. } => (queue, Wish::Look),
        Ask::DeleteQueue { queue } => (queue, Wish::Delete),
        _ => return None,
    })
}

pub(super) fn name_of(topic: &str, queue: &str) -> String {
    format!("work queue {queue} of {topic}")
}

impl Checker {
    /// The work queues of a topic that somebody has asked for.
    pub(crate) fn queues_of(&self, topic: &str) -> Vec<String> {
        let of_topic = self.queues.all.iter().filter(|((of, _), queue)| of == topic && queue.may_exist);
        of_topic.map(|((_, queue), _)| queue.clone()).collect()
    }

    /// Whether a queue was found empty.
    pub(crate) fn is_drained(&self, topic: &str, queue: &str) -> bool {
        self.queues.all.get(&(topic.to_owned(), queue.to_owned())).is_some_and(|queue| queue.drained)
    }

    pub(super) fn queue(&mut self, topic: &str, queue: &str) -> &mut WorkQueue {
        self.queues.all.entry((topic.to_owned(), queue.to_owned())).or_default()
    }

    pub(super) fn queue_bounds(&self, topic: &str) -> Bounds {
        let policy = Policy::new(&Settings::NONE, &self.limits.topic_defaults);
        Bounds {
            reserved_max: u64::from(self.limits.reserved_max),
            pending_max: u64::from(self.limits.pending_max),
            deliveries_max: policy.bound(Setting::MaxDeliveries).filter(|_| !layout::is_of_dead_letters(topic)),
            whole_replies: self.limits.fetch_bytes_max >= 1 << 20,
        }
    }

    fn queue_topic(&self, topic: &str, firm_end: u64) -> Topic {
        let life = &self.life;
        let is_well = !(self.damaged || life.stopping || life.halted || life.read_failed || life.failure.is_some());
        let start_max = self.model.logs.get(topic).map_or(0, |log| log.start_max);
        Topic { firm_end, start_max, is_well, reads_failed: self.queues.read_failed_ns.is_some() }
    }

    /// Whether a message that could not be read may have to wait, be it that the process has ended since: a checkpoint keeps its delay.
    fn holds_back(&self, asked_ns: u64) -> bool {
        let waits = |failed_ns: u64| asked_ns <= failed_ns + HELD_BACK_NS || self.producers.clock_set > 0;
        self.queues.read_failed_ns.is_some_and(waits)
    }

    /// A read failed, or a file could not be opened.
    pub(super) fn queue_read_failed(&mut self) {
        self.queues.read_failed_ns = Some(self.producers.now_ns);
    }

    /// A request about queues is sent.
    pub(super) fn asked_of_queues(&mut self, id: u64, connection: ConnectionId, topic: &str, ask: &Ask) {
        let now_ns = self.producers.now_ns;
        if *ask == Ask::Queues {
            for ((_, _), queue) in self.queues.all.iter_mut().filter(|((of, _), _)| of == topic) {
                queue.asked(id, connection, now_ns, Wish::Look);
            }
        }
        if let Some((queue, wish)) = wish_of(ask) {
            // The broker makes it when somebody dies.
            self.model.log(&layout::dead_letters(topic)).may_exist |= self.queue_bounds(topic).deliveries_max.is_some();
            if !self.queues.all.contains_key(&(topic.to_owned(), queue.to_owned())) {
                // One that is made later never had what was packed away.
                let packed: Vec<u64> = self.model.log(topic).packed.iter().copied().collect();
                packed.into_iter().for_each(|offset| self.queue(topic, queue).may_be_gone(offset));
            }
            self.queue(topic, queue).asked(id, connection, now_ns, wish);
        }
    }

    /// These were packed away: a queue that is made anew does not have them.
    pub(super) fn packed_for_queues(&mut self, topic: &str, offsets: &[u64]) {
        for ((of, _), queue) in &mut self.queues.all {
            offsets.iter().filter(|_| of == topic).for_each(|offset| queue.may_be_gone(*offset));
        }
    }

    /// The topic is another one: its queues went with the one before.
    pub(super) fn queues_begin_anew(&mut self, topic: &str) {
        let of_topic = self.queues.all.iter_mut().filter(|((of, _), _)| of == topic);
        of_topic.for_each(|(_, queue)| queue.topic_was_deleted());
    }

    pub(super) fn queues_lose(&mut self, connection: ConnectionId) {
        let now_ns = self.producers.now_ns;
        self.queues.all.values_mut().for_each(|queue| queue.disconnected(connection, now_ns));
    }

    pub(super) fn queues_after(&mut self, end: End) {
        let (full, now_ns) = (self.life.full, self.producers.now_ns);
        let clock_was_set = self.producers.clock_set > 0;
        self.queues.all.values_mut().for_each(|queue| queue.process_ended(end, full, clock_was_set, now_ns));
    }

    /// What is answered to a request about a queue, if it is that.
    /// `across`: the topic is another one than when it was asked.
    pub(super) fn judge_queues(&mut self, asked: &Asked, seen: &Seen, across: bool, disk: &SimDisk) -> Option<Check> {
        let topic = &asked.topic;
        match (&asked.ask, seen) {
            (Ask::Queues, Seen::Lines(lines)) => return Some(self.queues_listed(asked, lines)),
            (Ask::Letters { max, .. }, Seen::Messages(delivery)) => {
                return Some(self.letters_read(topic, delivery, *max, disk));
            }
            _ => {}
        }
        let (queue, wish) = wish_of(&asked.ask)?;
        let now_ns = self.producers.now_ns;
        let name = name_of(topic, queue);
        let open = self.queue(topic, queue).take(asked.id, now_ns)?;
        let is_line = |word: &str, number: u64| match seen {
            Seen::Lines(lines) => lines[0] == format!("{word} {number}"),
            _ => false,
        };
        Some(match (&asked.ask, &wish, seen) {
            (Ask::Reserve { max, .. }, _, Seen::Messages(delivery)) => {
                self.reserved(asked, queue, &open, (delivery, across), *max, disk)
            }
            (Ask::Confirm { offsets, .. }, ..) if is_line("CONFIRMED", offsets.len() as u64) => {
                self.confirmed(topic, queue, &open, offsets, disk)
            }
            (Ask::Abort { offset, .. }, ..) if is_line("ABORTED", *offset) => {
                self.queue(topic, queue).aborted(&name, &open, now_ns)
            }
            (Ask::Extend { offset, .. }, ..) if is_line("EXTENDED", *offset) => {
                self.queue(topic, queue).extended(&name, &open, now_ns)
            }
            (Ask::Steal { offset, .. }, ..) if is_line("STOLEN", *offset) => {
                self.queue(topic, queue).stolen(&name, &open, now_ns)
            }
            (Ask::Pending { from, max, .. }, _, Seen::Lines(lines)) => {
                self.pending_listed(asked, queue, &open, (*from, *max), lines)
            }
            (Ask::DeleteQueue { queue }, _, Seen::Lines(lines)) if lines[0] == format!("DELETED {topic} {queue}") => {
                self.queue(topic, queue).deleted();
                Ok(())
            }
            _ => broken("P14", format!("{:?} was answered by {seen:?}", asked.ask)),
        })
    }

    /// Which refusals of requests about queues are legal; `None`: it is not one.
    pub(super) fn judge_queue_error(&mut self, asked: &Asked, code: &str) -> Option<Check> {
        let now_ns = self.producers.now_ns;
        let topic = asked.topic.clone();
        if let Ask::Letters { .. } = asked.ask {
            let legal = match code {
                // Nobody has died.
                "NO_TOPIC" => self.queues.letters.get(&topic).is_none_or(BTreeMap::is_empty),
                "CORRUPT" => self.life.read_failed || self.damaged,
                "HALTED" => self.life.halted,
                "STOPPING" => self.life.stopping,
                _ => false,
            };
            let words = format!("reading the dead letters of {topic} was answered by ERR {code}");
            return Some(if legal { Ok(()) } else { broken("P15", words) });
        }
        let (queue_name, wish) = wish_of(&asked.ask)?;
        let name = name_of(&topic, queue_name);
        let bounds = self.queue_bounds(&topic);
        let (life, damaged) = (self.life.clone(), self.damaged);
        let log = self.model.log(&topic);
        let existed = asked.existed && log.generation == asked.generation && log.deletions.is_empty();
        let queue = self.queue(&topic, queue_name);
        let open = queue.take(asked.id, now_ns)?;
        let is_write = matches!(wish, Wish::Reserve { .. } | Wish::Confirm(_) | Wish::Delete | Wish::Abort { .. });
        let (legal, promise) = match code {
            "HALTED" => (life.halted, "P10"),
            "STOPPING" => (life.stopping, "P14"),
            "NO_TOPIC" => (!existed, "P1"),
            "NO_GROUP" => (!open.existed || !queue.is_certain(&open), "P15"),
            "DISK_FULL" => (life.full && is_write, "P11"),
            "CORRUPT" => ((life.read_failed || damaged) && matches!(wish, Wish::Reserve { .. }), "P1"),
            "QUEUE_FULL" => {
                let (_, reserved) = queue.reserved_by(open.connection, now_ns);
                // One that could not be read is pending though it was never handed out.
                let is_full = queue.pending_at_most(&open).saturating_add(life.read_failed.into())
                    >= bounds.pending_max
                    || !queue.is_certain(&open);
                // The bound on reservations is over all the queues that there are.
                let reserved: u64 = reserved + self.reserved_elsewhere(&topic, &asked.ask, open.connection, now_ns);
                (matches!(wish, Wish::Reserve { .. }) && (is_full || reserved >= bounds.reserved_max), "P13")
            }
            "NOT_RESERVED" => match &wish {
                Wish::Confirm(_) | Wish::Abort { .. } | Wish::Extend { .. } | Wish::Steal(_) => {
                    if let Err(broken) = queue.not_reserved(&name, &open, now_ns) {
                        return Some(Err(broken));
                    }
                    (true, "P15")
                }
                _ => (false, "P15"),
            },
            _ => (false, "P14"),
        };
        if !legal {
            return Some(broken(promise, format!("{:?} of topic {topic} was answered by ERR {code}", asked.ask)));
        }
        let queue = self.queue(&topic, queue_name);
        if code == "HALTED" {
            queue.abandoned(&open, now_ns);
        } else {
            queue.refused(&open);
        }
        Some(Ok(()))
    }

    fn reserved_elsewhere(&self, topic: &str, ask: &Ask, connection: ConnectionId, now_ns: u64) -> u64 {
        let is_this = |of: &str, name: &str| of == topic && matches!(ask, Ask::Reserve { queue, .. } if queue == name);
        let others = self.queues.all.iter().filter(|((of, name), _)| !is_this(of, name));
        others.map(|(_, queue)| queue.reserved_by(connection, now_ns).1).sum()
    }

    /// RESERVE: the bytes that were published, below the line (P4); to nobody else (P15).
    fn reserved(
        &mut self,
        asked: &Asked,
        queue: &str,
        open: &Open,
        (delivery, across): (&Delivery, bool),
        max: u64,
        disk: &SimDisk,
    ) -> Check {
        let topic = &asked.topic;
        for (_, first, next) in delivery.gaps.iter().filter(|_| !across) {
            if next <= first {
                return broken("P14", format!("{topic} has a gap from {first} to {next}"));
            }
            if !self.damaged {
                self.model.lacks(topic, *first..*next)?;
            }
        }
        let messages = &delivery.messages;
        if messages.len() as u64 > max {
            return broken("P14", format!("{} messages where at most {max} were asked for", messages.len()));
        }
        let mut handed_out: Vec<(u64, Option<u64>)> = Vec::new();
        for message in messages {
            if handed_out.iter().any(|(offset, _)| *offset == message.offset) {
                return broken("P15", format!("offset {} of {topic} stands twice in one answer", message.offset));
            }
            if !across {
                self.is_below_the_line(topic, message.offset, disk)?;
                self.message(topic, message, asked.start, disk)?;
            }
            let told = message.meta.as_ref().map(|words| {
                let told = words.iter().find_map(|word| word.strip_prefix("deliveries=")?.parse().ok());
                told.ok_or_else(|| format!("no deliveries in {words:?}"))
            });
            let told = match told {
                Some(Err(words)) => return broken("P14", words),
                told => told.and_then(Result::ok),
            };
            handed_out.push((message.offset, told));
        }
        let (mut known, bounds) = (self.queue_topic(topic, asked.firm_end), self.queue_bounds(topic));
        // What is gone may be all that there is room to tell of.
        known.is_well &= delivery.gaps.is_empty() && !self.holds_back(open.asked_ns);
        let now_ns = self.producers.now_ns;
        let name = name_of(topic, queue);
        if self.damaged {
            return Ok(());
        }
        self.queue(topic, queue).handed_out(&name, open, &handed_out, &known, &bounds, now_ns)?;
        // That it was handed out is written before it is told; where there is no room, the count is lost.
        if !self.life.full && !self.life.cache_doubtful {
            let journal = Journal::read(Depth::Cache, topic, queue, disk);
            // One may be done with by the time that its answer is the next: others were answered before it.
            let is_done = |offset: u64| journal.as_ref().is_some_and(|journal| journal.is_done(offset));
            for (offset, _) in handed_out.iter().filter(|(offset, _)| !is_done(*offset)) {
                let least = self.queue(topic, queue).counted(*offset, open);
                let written = journal.as_ref().and_then(|journal| journal.pending.get(offset)).copied().unwrap_or(0);
                if u64::from(written) < least {
                    let words = format!(
                        "{name} handed offset {offset} out for the {least}. time, and the journal says {written}"
                    );
                    return broken("P15", words);
                }
            }
        }
        Ok(())
    }

    /// CONFIRMED: it is sent when no power loss takes it back.
    fn confirmed(&mut self, topic: &str, queue: &str, open: &Open, offsets: &[u64], disk: &SimDisk) -> Check {
        let now_ns = self.producers.now_ns;
        let name = name_of(topic, queue);
        if self.damaged {
            return Ok(());
        }
        self.queue(topic, queue).confirmed_by(&name, open, now_ns)?;
        if !self.queue(topic, queue).is_certain(open) {
            return Ok(());
        }
        let journal = Journal::read(Depth::Platter, topic, queue, disk).unwrap_or_default();
        match offsets.iter().find(|offset| !journal.is_done(**offset)) {
            Some(offset) => broken("P15", format!("CONFIRMED {offset} of {name}, but the platter has it pending")),
            None => Ok(()),
        }
    }

    fn pending_listed(
        &mut self,
        asked: &Asked,
        queue: &str,
        open: &Open,
        (from, max): (u64, u64),
        lines: &[String],
    ) -> Check {
        let topic = &asked.topic;
        let (known, bounds) = (self.queue_topic(topic, asked.firm_end), self.queue_bounds(topic));
        let (now_ns, name) = (self.producers.now_ns, name_of(topic, queue));
        let mut listed = Vec::new();
        for line in lines {
            let Some((offset, deliveries, reserved)) = pending_line(line) else {
                return broken("P14", format!("not a line of PENDING: {line}"));
            };
            if offset < from || listed.last().is_some_and(|last| *last >= offset) {
                return broken("P14", format!("PENDING from {from} on is not in order: {line}"));
            }
            listed.push(offset);
            if !self.damaged {
                let line = (offset, deliveries, reserved);
                self.queue(topic, queue).is_pending(&name, open, line, &bounds, now_ns)?;
            }
        }
        if listed.len() as u64 > max.min(bounds.pending_max) {
            return broken("P13", format!("{} lines of PENDING, over {max} or --max-pending", listed.len()));
        }
        let end = if (listed.len() as u64) < max { u64::MAX } else { listed.last().map_or(from, |last| last + 1) };
        if self.damaged {
            return Ok(());
        }
        self.queue(topic, queue).are_all(&name, open, &listed, (from, end), &known, &bounds)
    }

    fn queues_listed(&mut self, asked: &Asked, lines: &[String]) -> Check {
        let topic = &asked.topic;
        let (known, bounds) = (self.queue_topic(topic, asked.firm_end), self.queue_bounds(topic));
        let (now_ns, damaged) = (self.producers.now_ns, self.damaged);
        let journal_max = self.journal_bytes_max();
        let mut listed = Vec::new();
        for line in lines {
            let word = |name: &str| line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            let number = |name: &str| word(name).and_then(|value| value.parse::<u64>().ok());
            let (Some(queue), Some(floor), Some(next)) = (word("name"), number("confirmed"), number("next")) else {
                return broken("P14", format!("not a line of QUEUES: {line}"));
            };
            listed.push(queue.to_owned());
            let name = name_of(topic, queue);
            if floor > next {
                return broken("P14", format!("not in order: {line}"));
            }
            if number("journalBytes").is_none_or(|bytes| bytes > journal_max) && !damaged {
                return broken("P13", format!("the journal of {name} is larger than {journal_max} bytes: {line}"));
            }
            let state = self.queue(topic, queue);
            if let Some(open) = state.take(asked.id, now_ns)
                && !damaged
            {
                state.stands_at(&name, &open, (floor, next), &known, &bounds)?;
            }
            let is_empty = ["ready", "reserved", "delayed", "dying"].iter().all(|word| number(word) == Some(0));
            state.drained = is_empty;
        }
        for ((of, queue), state) in self.queues.all.iter_mut().filter(|((of, _), _)| of == topic) {
            let Some(open) = state.take(asked.id, now_ns) else { continue };
            if open.existed && state.is_certain(&open) && !listed.contains(queue) && !damaged {
                return broken("P15", format!("{} is not in the list {lines:?}", name_of(of, queue)));
            }
        }
        Ok(())
    }

    /// What the segments of a journal may take together: that which is being left, the new one, and one more that is being removed.
    pub(crate) fn journal_bytes_max(&self) -> u64 {
        let pending =
            u64::from(self.limits.pending_max).min(self.model.logs.values().map(|log| log.firm_end).max().unwrap_or(0));
        let segment = self.limits.journal_bytes + 2 * (100 + 25 * pending) + OPERATION_BYTES_MAX;
        3 * (segment + self.limits.space_ahead + u64::from(self.limits.pad_forces))
    }

    /// What is read among the dead letters of a topic: each tells of one death, and there is one of each.
    fn letters_read(&mut self, topic: &str, delivery: &Delivery, max: u64, disk: &SimDisk) -> Check {
        let dead = layout::dead_letters(topic);
        if delivery.messages.len() as u64 > max {
            return broken("P14", format!("{} messages where at most {max} were asked for", delivery.messages.len()));
        }
        if let Some((.., next)) = delivery.gaps.last() {
            self.queues.letters_start.insert(topic.to_owned(), *next);
        }
        let bounds = self.queue_bounds(topic);
        for message in &delivery.messages {
            self.is_below_the_line(&dead, message.offset, disk)?;
            if self.damaged {
                continue;
            }
            let words = message.meta.as_deref().unwrap_or_default();
            let told = |name: &str| {
                let word =
                    words.iter().find_map(|word| word.strip_prefix("h.dead-")?.strip_prefix(name)?.strip_prefix('='));
                word.map(|word| String::from_utf8_lossy(&super::unpercent(word)).into_owned())
            };
            let number = |name: &str| told(name).and_then(|value| value.parse::<u64>().ok());
            let (Some(of), Some(queue), Some(offset), Some(deliveries), Some(reason), Some(time)) =
                (told("topic"), told("group"), number("offset"), number("deliveries"), told("reason"), number("time"))
            else {
                return broken("P15", format!("dead letter {} of {topic} says too little: {words:?}", message.offset));
            };
            if of != topic {
                return broken("P15", format!("dead letter {} of {topic} is of {of}", message.offset));
            }
            // What was published, and nothing else; with a name that is the broker's own.
            let published: Vec<String> =
                words.iter().filter(|word| !word.starts_with("h.dead-") && !word.starts_with("id=")).cloned().collect();
            let is_the_only_log = self.queue(topic, &queue).deletions == 0;
            let number = match self.of_value(topic, &message.value) {
                _ if is_the_only_log => self.delivered(topic, offset, &message.value, 0, disk)?,
                Some(number) => number,
                None => {
                    let words = format!("the dead letter of offset {offset} of {topic} is what nobody published");
                    return broken("P15", words);
                }
            };
            self.meta_with_id(number, offset, &published, None)?;
            if self.queue(topic, &queue).deletions == 0 {
                self.model.stamped(topic, offset, time as i64)?;
            }
            let letter = Letter { offset, deliveries, reason };
            let known = self.queues.letters.entry(topic.to_owned()).or_default();
            let before = known.entry(message.offset).or_insert_with(|| (queue.clone(), letter.clone()));
            if *before != (queue.clone(), letter.clone()) {
                return broken(
                    "P1",
                    format!("dead letter {} of {topic} was {before:?}, and is {letter:?}", message.offset),
                );
            }
            let name = name_of(topic, &queue);
            // Of more queues than producers it can't be known which letters there are.
            let queues = self.queues.all.iter().filter(|((of, _), _)| of == topic);
            let producers: u64 = queues.map(|(_, queue)| 1 + queue.deletions).sum();
            let is_known = producers <= u64::from(self.limits.producers_max);
            self.queue(topic, &queue).died(&name, &letter, message.offset, is_known, &bounds)?;
        }
        Ok(())
    }

    fn of_value(&self, topic: &str, value: &[u8]) -> Option<usize> {
        self.model.attempts.iter().position(|attempt| attempt.topic == topic && attempt.payload == value)
    }

    // ---- the disk -----------------------------------------------------------------------------------------------------

    /// A segment of a journal goes: all that was confirmed is so on the platter.
    pub(crate) fn journal_removed(&mut self, topic: &str, queue: &str, disk: &SimDisk) -> Check {
        if self.damaged {
            return Ok(());
        }
        let name = name_of(topic, queue);
        let journal = Journal::read(Depth::Platter, topic, queue, disk).unwrap_or_default();
        match self.queue(topic, queue).confirmed().find(|offset| !journal.is_done(*offset)) {
            Some(offset) => {
                broken("P15", format!("a segment of {name} was removed, and on the platter {offset} is not confirmed"))
            }
            None => Ok(()),
        }
    }

    /// When a process ends: what left a queue and was confirmed by nobody stands among the dead letters, forced (crash story: the letter
    /// that was lost).
    pub(crate) fn the_dead_have_letters(&mut self, disk: &SimDisk) -> Check {
        if self.damaged {
            return Ok(());
        }
        let keys: Vec<(String, String)> = self.queues.all.keys().cloned().collect();
        for (topic, queue) in keys {
            let bounds = self.queue_bounds(&topic);
            let (end, start_max) = self.model.logs.get(&topic).map_or((0, 0), |log| (log.firm_end, log.start_max));
            let state = self.queue(&topic, &queue);
            if bounds.deliveries_max.is_none() || state.deletions > 0 {
                continue;
            }
            let Some(journal) = Journal::read(Depth::Cache, &topic, &queue, disk) else { continue };
            let left = (start_max..journal.next.min(end)).filter(|offset| journal.is_done(*offset));
            let left: Vec<u64> = left.filter(|offset| !state.was_asked_to_confirm(*offset)).collect();
            if left.is_empty() {
                continue;
            }
            let letters = view::letters(Depth::Platter, &topic, disk);
            // Those that retention has taken were there.
            let known = self.queues.letters.get(&topic);
            let is_known = |offset: u64| {
                known.is_some_and(|known| known.values().any(|(of, letter)| *of == queue && letter.offset == offset))
            };
            if letters.start > 0 {
                continue;
            }
            let lost =
                left.into_iter().find(|offset| !letters.all.contains(&(queue.clone(), *offset)) && !is_known(*offset));
            if let Some(lost) = lost {
                let name = name_of(&topic, &queue);
                return broken(
                    "P15",
                    format!("{name} is done with {lost}, which nobody confirmed, and no dead letter tells of it"),
                );
            }
        }
        Ok(())
    }

    /// The largest list that `PENDING` is answered with, bytes (P13).
    pub(crate) fn pending_list_bytes(&self) -> u64 {
        let messages = self.model.logs.values().map(|log| log.firm_end).max().unwrap_or(0);
        if self.queues.all.is_empty() { 0 } else { PENDING_LINE_BYTES * messages.min(PENDING_LINES_MAX) }
    }

    /// Behind the last dead letter of the topic that was read.
    pub(crate) fn letters_end(&self, topic: &str) -> u64 {
        self.queues.letters.get(topic).and_then(|letters| letters.keys().last()).map_or(0, |last| last + 1)
    }

    /// Up to where those of the topic's queues that are there are done with everything, at most; `None`: there are none (P12).
    pub(crate) fn queues_are_done_up_to(&self, topic: &str, there: &[String]) -> Option<u64> {
        let bounds = self.queue_bounds(topic);
        let (start, end) = self.model.logs.get(topic).map_or((0, 0), |log| (log.start_max, log.firm_end));
        let of_topic =
            self.queues.all.iter().filter(|((of, name), queue)| of == topic && queue.may_exist && there.contains(name));
        let done = of_topic
            .map(|(_, queue)| (start..end).find(|offset| !queue.may_be_done(*offset, &bounds)).unwrap_or(u64::MAX));
        done.min()
    }

    /// At the end, when queues have been read until they were empty: every message was confirmed, or tells of its death (P6, P15).
    pub(super) fn every_queue_is_done(&self) -> Check {
        let may_stay = self.limits.topic_defaults.get(Setting::CapacityBytes).is_some();
        for ((topic, queue), state) in self.queues.all.iter().filter(|(_, queue)| queue.drained) {
            let known = self.queue_topic(topic, self.model.logs.get(topic).map_or(0, |log| log.firm_end));
            let letters_went = self.queues.letters_start.get(topic).is_some_and(|start| *start > 0);
            let Some((offset, was_handed_out)) = state.lost(&known).filter(|_| !may_stay && !letters_went) else {
                continue;
            };
            let name = name_of(topic, queue);
            if was_handed_out {
                return broken(
                    "P15",
                    format!("offset {offset} of {name} was lost: nobody confirmed it, and there is no letter"),
                );
            }
            return broken("P6", format!("{name} never handed out offset {offset}"));
        }
        Ok(())
    }
}

/// The offset, the deliveries, and who has it for how many milliseconds more.
fn pending_line(line: &str) -> Option<work_queue::Pending> {
    let word = |name: &str| line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    let offset = line.strip_prefix("PENDING ")?.split(' ').next()?.parse().ok()?;
    let deliveries = word("deliveries")?.parse().ok()?;
    let reserved = match word("state")? {
        "reserved" => Some((word("connection")?.parse().ok()?, word("leftMs")?.parse().ok()?)),
        "ready" | "delayed" | "dying" => None,
        _ => return None,
    };
    Some((offset, deliveries, reserved))
}
