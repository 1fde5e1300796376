//! The audit: one client that reads everything, and the restarts between its rounds.

use super::network::Owner;
use super::{MILLIS, Part, SECONDS, Step, Todo, World};
use crate::checker::Ask;
use crate::model::{Attempt, broken};
use crate::reply::Seen;
use plimsoll_core::effect::ConnectionId;
use plimsoll_core::layout;
use std::collections::VecDeque;

/// What comes after each round of reading.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Then {
    LosePower,
    Stop,
    /// Somebody is at the disk (P7), in some runs.
    Damage,
    End,
}

const ROUNDS: [Then; 4] = [Then::LosePower, Then::Stop, Then::Damage, Then::End];

/// One thing to ask.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Task {
    /// STATUS, GROUPS.
    Look { topic: String },
    /// READ to the end.
    ReadOn { topic: String, offset: u64 },
    /// SEEK to a time: which of the stamps that were read.
    SeekTime { topic: String, which: Stamp },
    /// FETCH to the end, acknowledging.
    FetchOn { topic: String, group: String },
    /// RESERVE until there is nothing, confirming all of it.
    Drain { topic: String, queue: String, tries: u32 },
    /// Whether that was all.
    IsEmpty { topic: String, queue: String, tries: u32 },
    /// READ of the dead letters, to the end.
    Letters { topic: String, offset: u64 },
    /// What has an id and was stored is not stored again (P16).
    Repeat { first: usize },
    /// Publishing works: with the disk free again, too (P11).
    Publish { topic: String, tries: u32 },
}

/// A time, made of the stamps that a topic's messages have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stamp {
    Middle,
    AfterMiddle,
    Newest,
    AfterAll,
}

/// The group that is sought with. Nobody else uses it.
const SEEKER: &str = "seeker";

/// The auditor.
#[derive(Default)]
pub(super) struct Audit {
    connection: Option<ConnectionId>,
    round: usize,
    tasks: VecDeque<Task>,
    planned: bool,
    /// The task that the reply under way belongs to, and how many replies it still gets.
    waiting: u32,
    /// The power was cut, or the stop asked for, after the round.
    ended_round: bool,
}

impl Audit {
    pub(super) fn begin(&mut self) {
        self.planned = false;
    }

    pub(super) fn disconnected(&mut self) {
        self.connection = None;
        self.waiting = 0;
        self.tasks.clear();
        self.planned = false;
    }

    pub(super) fn whereabouts(&self) -> String {
        format!("round {}, {:?}, {} replies to come", self.round, self.tasks.front(), self.waiting)
    }
}

impl World {
    pub(super) fn audit_turn(&mut self) -> Step {
        if self.part != Part::Audit || self.audit.waiting > 0 {
            return Ok(());
        }
        if self.broker.is_none() || !self.checker.is_ready() || self.halting {
            self.at(self.now_ns + MILLIS, Todo::AuditTurn);
            return Ok(());
        }
        if self.audit.ended_round {
            self.audit.ended_round = false;
            self.audit.round += 1;
        }
        let connection = match self.audit.connection {
            Some(connection) => connection,
            None => {
                let Some(connection) = self.connect(Owner::Auditor)? else { return Ok(()) };
                self.audit.connection = Some(connection);
                connection
            }
        };
        if !self.audit.planned {
            self.audit.planned = true;
            self.plan_audit();
        }
        let Some(task) = self.audit.tasks.front().cloned() else { return self.end_round() };
        match task {
            Task::Look { topic } => {
                self.ask_audit(connection, &topic, Ask::Status, format!("STATUS @{topic}\n"));
                self.ask_audit(connection, &topic, Ask::Topics, "TOPICS\n".into());
                self.ask_audit(connection, &topic, Ask::Groups, format!("GROUPS @{topic}\n"));
                self.ask_audit(connection, &topic, Ask::Settings, format!("SETTINGS @{topic}\n"));
            }
            Task::ReadOn { topic, offset } => {
                let ask = Ask::Read { offset, max: 50 };
                self.ask_audit(connection, &topic, ask, format!("READ @{topic} {offset} 50 META\n"));
            }
            Task::SeekTime { topic, which } => {
                let Some((time, to)) = self.sought(&topic, which) else {
                    self.audit.tasks.pop_front();
                    self.at(self.now_ns, Todo::AuditTurn);
                    return Ok(());
                };
                // Where a log begins that moves is the answer's to say.
                let to = to.filter(|_| !self.plan.moves_start());
                let ask = Ask::Seek { group: SEEKER.into(), to };
                self.ask_audit(connection, &topic, ask, format!("SEEK @{topic} {SEEKER} time={time}\n"));
            }
            Task::FetchOn { topic, group } => {
                let ask = Ask::Fetch { group: group.clone(), max: 40 };
                self.ask_audit(connection, &topic, ask, format!("FETCH @{topic} {group} 40 0\n"));
            }
            Task::Drain { topic, queue, .. } => {
                let line = format!("RESERVE @{topic} {queue} 40 0 30000 META\n");
                let ask = Ask::Reserve { queue, max: 40, wait_ms: 0, lease_ms: 30_000 };
                self.ask_audit(connection, &topic, ask, line);
            }
            Task::IsEmpty { topic, queue, .. } => {
                let line = format!("PENDING @{topic} {queue}\n");
                self.ask_audit(connection, &topic, Ask::Pending { queue, from: 0, max: 1000 }, line);
                self.ask_audit(connection, &topic, Ask::Queues, format!("QUEUES @{topic}\n"));
            }
            Task::Letters { topic, offset } => {
                let line = format!("READ @{} {offset} 50 META\n", layout::dead_letters(&topic));
                self.ask_audit(connection, &topic, Ask::Letters { offset, max: 50 }, line);
            }
            Task::Repeat { first } => {
                let topic = self.checker.model.attempts[first].topic.clone();
                let request = self.publish_request(first, "DURABLE", true);
                self.ask_audit_bytes(connection, &topic, Ask::Publish(first), request);
            }
            Task::Publish { topic, .. } => {
                let at = self.checker.model.attempts.len();
                let payload = format!("m{at}.audit");
                let line = format!("PUB @{topic} DURABLE {payload}\n");
                self.checker.model.attempts.push(Attempt::new(&topic, payload.into_bytes()));
                self.ask_audit(connection, &topic, Ask::Publish(at), line);
            }
        }
        Ok(())
    }

    fn plan_audit(&mut self) {
        let mut tasks = VecDeque::new();
        // The last of them: what lies further back may be older than what is remembered. Before all is read: some may be stored now.
        let last: Vec<usize> = self.checker.model.with_ids().rev().take(6).collect();
        tasks.extend(last.into_iter().map(|first| Task::Repeat { first }));
        if self.checker.damaged {
            tasks.clear();
        }
        // What is among the dead letters was published elsewhere: they are read with the topic that they come from.
        let logs = self.checker.model.logs.iter().filter(|(topic, _)| !layout::is_of_dead_letters(topic));
        for (topic, log) in logs {
            let topic = topic.clone();
            // One that was deleted is not to be there any more.
            tasks.push_back(Task::Look { topic: topic.clone() });
            if !log.exists {
                continue;
            }
            tasks.push_back(Task::ReadOn { topic: topic.clone(), offset: 0 });
            // To seek makes a group.
            let stamps = [Stamp::Middle, Stamp::AfterMiddle, Stamp::Newest, Stamp::AfterAll];
            for which in stamps.into_iter().filter(|_| !self.plan.packs) {
                tasks.push_back(Task::SeekTime { topic: topic.clone(), which });
            }
            tasks.push_back(Task::Publish { topic: topic.clone(), tries: 0 });
            for group in &self.plan.groups {
                tasks.push_back(Task::FetchOn { topic: topic.clone(), group: group.clone() });
            }
            for queue in self.checker.queues_of(&topic) {
                tasks.push_back(Task::Drain { topic: topic.clone(), queue, tries: 0 });
            }
            if !self.plan.queues.is_empty() {
                tasks.push_back(Task::Letters { topic, offset: 0 });
            }
        }
        self.audit.tasks = tasks;
    }

    fn topic_of(&self, task: &Task) -> String {
        match task {
            Task::Repeat { first } => self.checker.model.attempts[*first].topic.clone(),
            Task::Look { topic }
            | Task::ReadOn { topic, .. }
            | Task::SeekTime { topic, .. }
            | Task::FetchOn { topic, .. }
            | Task::Drain { topic, .. }
            | Task::IsEmpty { topic, .. }
            | Task::Letters { topic, .. }
            | Task::Publish { topic, .. } => topic.clone(),
        }
    }

    /// A time, and the first offset in the order of offsets whose message was stamped then or later: the clock may have stepped back.
    /// `None`: that is no message that was read.
    fn sought(&mut self, topic: &str, which: Stamp) -> Option<(i64, Option<u64>)> {
        let log = self.checker.model.log(topic);
        let middle = *log.stamps.get(&(log.firm_end / 2))?;
        let newest = *log.stamps.values().max()?;
        let time = match which {
            Stamp::Middle => middle,
            Stamp::AfterMiddle => middle + 1,
            Stamp::Newest => newest,
            Stamp::AfterAll => newest + 1,
        };
        let first = log.stamps.iter().find(|(_, stamp)| **stamp >= time).map(|(offset, _)| *offset);
        Some((time, first))
    }

    fn end_round(&mut self) -> Step {
        self.audit.ended_round = true;
        self.audit.planned = false;
        match ROUNDS[self.audit.round] {
            Then::LosePower => {
                self.died = "after the audit".into();
                self.power_loss()
            }
            Then::Stop => self.ask_to_stop(),
            Then::Damage => self.damage(),
            Then::End => {
                self.part = Part::Over;
                Ok(())
            }
        }
    }

    fn ask_audit(&mut self, connection: ConnectionId, topic: &str, ask: Ask, line: String) {
        self.ask_audit_bytes(connection, topic, ask, line.into_bytes());
    }

    fn ask_audit_bytes(&mut self, connection: ConnectionId, topic: &str, ask: Ask, request: Vec<u8>) {
        self.checker.asked(connection, topic, ask);
        self.audit.waiting += 1;
        self.send(connection, request);
    }

    /// Purges what was read, so that `full` has room. Its answers come before the next task is asked, which is a look at `topic`.
    fn make_room(&mut self, topic: &str, full: &str) -> bool {
        // Where one bound is for all topics, another one may have all the bytes.
        let is_bounded_together = self.plan.config.total_capacity_bytes > 0;
        let takes_part = |name: &str| name == full || is_bounded_together;
        for topic in self.plan.topics.clone() {
            // What was published and never answered has its bytes, too. When it is read it can be purged.
            if is_bounded_together {
                let offset = self.checker.model.log(&topic).firm_end;
                self.audit.tasks.push_front(Task::ReadOn { topic: topic.clone(), offset });
            }
            if !self.plan.queues.is_empty() && takes_part(&layout::dead_letters(&topic)) {
                let offset = self.checker.letters_end(&topic);
                self.audit.tasks.push_front(Task::Letters { topic, offset });
            }
        }
        self.audit.tasks.push_front(Task::Look { topic: topic.to_owned() });
        let Some(connection) = self.audit.connection else { return false };
        let logs = self.checker.model.logs.iter().filter(|(name, log)| log.exists && takes_part(name));
        let mut purges: Vec<(String, u64)> = logs.map(|(name, log)| (name.clone(), log.firm_end)).collect();
        let letters = self.plan.topics.iter().map(|name| (layout::dead_letters(name), self.checker.letters_end(name)));
        purges.extend(letters.filter(|(name, end)| *end > 0 && takes_part(name)));
        let asks = !purges.is_empty();
        for (topic, before) in purges {
            let line = format!("PURGE @{topic} {before}\n");
            self.ask_audit(connection, &topic, Ask::Purge { before }, line);
        }
        asks
    }

    pub(super) fn auditor_received(&mut self, seen: &Seen) -> Step {
        self.audit.waiting = self.audit.waiting.saturating_sub(1);
        if self.audit.waiting > 0 {
            return Ok(());
        }
        let mut wait_ns = 0;
        let task = self.audit.tasks.pop_front();
        match (task, seen) {
            (Some(Task::ReadOn { topic, offset }), Seen::Messages(delivery)) => {
                if let Some(next) = delivery.next() {
                    self.audit.tasks.push_front(Task::ReadOn { topic, offset: next });
                } else if offset < self.checker.model.log(&topic).firm_end {
                    let promise = if self.checker.damaged { "P7" } else { "P1" };
                    broken(promise, format!("{topic} ends at {offset}, and nobody says why"))?;
                }
            }
            (Some(Task::FetchOn { topic, group }), Seen::Messages(delivery)) => {
                if let (Some(next), Some(connection)) = (delivery.next(), self.audit.connection) {
                    let offset = next - 1;
                    self.audit.tasks.push_front(Task::FetchOn { topic: topic.clone(), group: group.clone() });
                    // Its answer comes before the next FETCH is sent.
                    self.audit.tasks.push_front(Task::Look { topic: topic.clone() });
                    let line = format!("ACK @{topic} {group} {offset}\n");
                    self.ask_audit(connection, &topic, Ask::Ack { group, offset }, line);
                    return Ok(());
                }
            }
            (Some(Task::Drain { topic, queue, tries }), Seen::Messages(delivery)) => {
                let offsets: Vec<u64> = delivery.messages.iter().map(|message| message.offset).collect();
                if offsets.is_empty() {
                    self.audit.tasks.push_front(Task::IsEmpty { topic, queue, tries });
                } else if let Some(connection) = self.audit.connection {
                    let next = Task::Drain { topic: topic.clone(), queue: queue.clone(), tries };
                    self.audit.tasks.push_front(next);
                    // Its answer comes before the next RESERVE is sent.
                    self.audit.tasks.push_front(Task::Look { topic: topic.clone() });
                    let words: String = offsets.iter().map(|offset| format!(" {offset}")).collect();
                    let mut sorted = offsets;
                    sorted.sort_unstable();
                    let line = format!("CONFIRM @{topic} {queue}{words}\n");
                    self.ask_audit(connection, &topic, Ask::Confirm { queue, offsets: sorted }, line);
                    return Ok(());
                }
            }
            // There was no room for a confirmation: when the lease is over all of it comes again.
            (Some(Task::Look { .. }), Seen::Error(code)) if code == "DISK_FULL" => wait_ns = SECONDS,
            // A delay goes on, or somebody is on the way to the dead letters.
            (Some(Task::IsEmpty { topic, queue, tries }), Seen::Lines(_))
                if !self.checker.is_drained(&topic, &queue) && tries < 60 =>
            {
                wait_ns = SECONDS;
                self.audit.tasks.push_front(Task::Drain { topic, queue, tries: tries + 1 });
            }
            (Some(Task::Letters { topic, .. }), Seen::Messages(delivery)) => {
                if let Some(next) = delivery.next() {
                    self.audit.tasks.push_front(Task::Letters { topic, offset: next });
                }
            }
            (Some(Task::Letters { .. }), Seen::Error(code)) if code == "NO_TOPIC" => {}
            // As many are pending as may be, and they are not due yet, or on the way to the dead letters, where there may be no room.
            (Some(Task::Drain { topic, queue, tries }), Seen::Error(code)) if code == "QUEUE_FULL" && tries < 60 => {
                wait_ns = SECONDS;
                self.audit.tasks.push_front(Task::Drain { topic: topic.clone(), queue, tries: tries + 1 });
                if self.checker.has_capacity()
                    && tries % 8 == 7
                    && self.make_room(&topic, &layout::dead_letters(&topic))
                {
                    return Ok(());
                }
            }
            // What is not known has no room.
            (Some(Task::Repeat { .. }), Seen::Error(code)) if code == "OVER_CAPACITY" => {}
            // The topic was never made. Or somebody has left who wanted it deleted, and that happens only now.
            (Some(task), Seen::Error(code)) if code == "NO_TOPIC" => {
                let gone = self.topic_of(&task);
                let mut tasks = std::mem::take(&mut self.audit.tasks);
                tasks.retain(|task| self.topic_of(task) != gone);
                self.audit.tasks = tasks;
            }
            (Some(task @ Task::Repeat { .. }), Seen::Error(code)) if code == "DISK_FULL" || code == "QUEUE_FULL" => {
                wait_ns = SECONDS;
                self.audit.tasks.push_front(task);
            }
            (Some(Task::SeekTime { topic, which }), Seen::Sought(offset)) => {
                let log = self.checker.model.log(&topic);
                let (end, start, start_max) = (log.firm_end, log.start, log.start_max);
                if let Some((time, right)) = self.sought(&topic, which)
                    && right.map_or(*offset < end, |right| right.max(start) != *offset)
                    // What was right may be gone, and then a later one is.
                    && !right.is_some_and(|right| right < start_max && right <= *offset)
                    && !self.checker.damaged
                {
                    let right = right.unwrap_or(end);
                    broken("P6", format!("SEEK time={time} of {topic} led to {offset}, past or before {right}"))?;
                }
            }
            // A purge makes room, as soon as what was to be forced later is.
            (Some(Task::Publish { topic, tries }), Seen::Error(code))
                if code == "OVER_CAPACITY" && tries % 2 == 0 && tries < 20 =>
            {
                self.audit.tasks.push_front(Task::Publish { topic: topic.clone(), tries: tries + 1 });
                if self.make_room(&topic, &topic) {
                    return Ok(());
                }
            }
            (Some(Task::Publish { topic, tries }), Seen::Error(code))
                if matches!(code.as_str(), "DISK_FULL" | "QUEUE_FULL" | "OVER_CAPACITY") =>
            {
                if tries > 20 {
                    return Err(super::Verdict::Stuck(format!("there is room, but {topic} answers {code}")));
                }
                wait_ns = SECONDS;
                self.audit.tasks.push_front(Task::Publish { topic: topic.clone(), tries: tries + 1 });
                // What has been forced meanwhile can be purged.
                let offset = self.checker.model.log(&topic).firm_end;
                self.audit.tasks.push_front(Task::ReadOn { topic, offset });
            }
            // The SEEK of a connection that is gone is still being stored. One that stays busy outlasts the audit.
            (Some(task @ Task::FetchOn { .. }), Seen::Error(code)) if code == "GROUP_BUSY" => {
                wait_ns = SECONDS;
                self.audit.tasks.push_front(task);
            }
            (_, Seen::Error(code)) if self.checker.damaged && matches!(code.as_str(), "CORRUPT" | "HALTED") => {}
            // A failure that was injected in the storm may be told only now; a new process answers.
            (_, Seen::Error(code)) if code == "HALTED" && self.halting => return Ok(()),
            (task, Seen::Error(code)) => {
                return Err(super::Verdict::Stuck(format!("nothing goes wrong, but {task:?} is answered {code}")));
            }
            _ => {}
        }
        self.at(self.now_ns + wait_ns, Todo::AuditTurn);
        Ok(())
    }
}
