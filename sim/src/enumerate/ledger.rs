//! What the broker has promised so far, and whether what it says now breaks any of it.
//!
//! Clients ask one thing after the other and each payload is sent once, so every line that the broker answers can be held
//! against what went before.

use super::machine::ClientId;
use super::queue::Queue;
use super::workload::{self, Keeps, Workload};
use crate::disk::StateHash;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// A promise that was broken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Broken {
    /// Its number in docs/promises.md.
    pub promise: &'static str,
    /// What happened, in words.
    pub what: String,
    /// How it came to it, from the first process to the last.
    pub story: Vec<String>,
    /// The same for `--replay`.
    pub path: Vec<String>,
}

impl Broken {
    pub(super) fn new(promise: &'static str, what: impl Into<String>) -> Broken {
        Broken { promise, what: what.into(), story: Vec::new(), path: Vec::new() }
    }
}

type Payload = Arc<str>;

/// What a client waits for.
#[derive(Clone, Debug)]
enum Ask {
    /// One message, or a batch.
    Publish(Vec<Payload>),
    Read,
    /// One message, from the middle.
    ReadOne(u64),
    Fetch(&'static str),
    Ack(&'static str, u64),
    Alter(u64),
    Settings,
    Status,
    Purge(u64),
    Delete,
    DeleteGroup(&'static str),
    Create,
    /// For so many milliseconds; when it was sent.
    Reserve(&'static str, i64, i64),
    Confirm(&'static str, Vec<u64>),
    Abort(&'static str, u64),
    Pending(&'static str),
    DeleteQueue(&'static str),
    /// All dead letters of the topic.
    Letters,
}

/// The setting that workloads change. It grows from one ALTER to the next, as what a group has committed does, and is held
/// against the same promises under this name.
const SETTING: &str = "retain-bytes";
/// A request for all dead letters of the topic that workloads with work queues use.
pub(super) const LETTERS: &str = "READ @default.dead 0 1000";

/// What a log looks like to its clients.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct View {
    /// There is no such topic.
    pub(super) is_gone: bool,
    /// What lies below was said to be gone.
    pub(super) start: u64,
    /// What is there, by offset, from the start on; packing leaves holes.
    pub(super) log: BTreeMap<u64, Payload>,
    pub(super) end: u64,
    /// Where each group goes on.
    pub(super) committed: BTreeMap<&'static str, u64>,
    /// The other topic, in a workload that has two.
    pub(super) beside: Option<Box<View>>,
    /// What is pending in each work queue, and how often it was delivered.
    pub(super) pending: BTreeMap<&'static str, Vec<(u64, u64)>>,
    /// The dead letters.
    pub(super) letters: BTreeMap<u64, Payload>,
}

impl View {
    /// Whether a recovery may come to this where the one that was not interrupted comes to `other`. A start that is being recorded, and that
    /// nobody was told of, may still be the one before; `is_later`: or more has become too old since.
    pub(super) fn is_as_good_as(&self, other: &View, is_later: bool) -> bool {
        let from = self.start.max(other.start);
        let behind = |view: &View| (view.end.max(from), view.log.clone().split_off(&from));
        self.is_gone == other.is_gone
            && (self.start <= other.start || is_later)
            && behind(self) == behind(other)
            && (&self.committed, &self.pending, &self.letters) == (&other.committed, &other.pending, &other.letters)
            && match (&self.beside, &other.beside) {
                (Some(beside), Some(other)) => beside.is_as_good_as(other, is_later),
                (beside, other) => beside == other,
            }
    }

    /// All offsets.
    fn offsets(&self) -> Range<u64> {
        self.start..self.end
    }

    pub(super) fn hash_into(&self, hash: &mut StateHash) {
        hash.number(u64::from(self.is_gone));
        hash.number(self.start);
        hash.number(self.end);
        hash_messages(hash, &self.log);
        for (group, committed) in &self.committed {
            hash.bytes(group.as_bytes());
            hash.number(*committed);
        }
        for (queue, pending) in &self.pending {
            hash.bytes(queue.as_bytes());
            for (offset, deliveries) in pending {
                hash.number(*offset);
                hash.number(*deliveries);
            }
        }
        hash_messages(hash, &self.letters);
        self.beside.iter().for_each(|beside| beside.hash_into(hash));
    }
}

fn hash_messages(hash: &mut StateHash, messages: &BTreeMap<u64, Payload>) {
    hash.number(messages.len() as u64);
    for (offset, payload) in messages {
        hash.number(*offset);
        hash.bytes(payload.as_bytes());
    }
}

/// What was asked, answered and seen.
#[derive(Clone, Default)]
pub(super) struct Ledger {
    sent: BTreeSet<Payload>,
    /// Those that were sent as one.
    batches: Vec<Vec<Payload>>,
    /// Those that were sent with an id.
    ids: BTreeMap<Arc<str>, Payload>,
    /// Answered DURABLE: survives everything (P1).
    durable: BTreeMap<u64, Payload>,
    /// Answered WRITTEN or more: survives the kill of the process, unless a force failed.
    written: BTreeMap<u64, Payload>,
    /// Delivered to a reader: never changes, never vanishes (P4).
    seen: BTreeMap<u64, Payload>,
    acked: BTreeMap<&'static str, u64>,
    /// The highest that was asked for, answered or not.
    asked: BTreeMap<&'static str, u64>,
    /// The end of what each consumer was sent.
    delivered: BTreeMap<(ClientId, &'static str), u64>,
    a_force_failed: bool,
    /// The highest start that a client was told of, and that was asked for.
    purged: u64,
    purge_asked: u64,
    /// What a policy has to keep, for which groups and queues.
    keeps: Option<Keeps>,
    groups: &'static [&'static str],
    queues: BTreeMap<&'static str, Queue>,
    /// What all of its queues are done with may be missing in the middle of the log, too.
    packs: bool,
    /// How often a message is delivered before it dies.
    deliveries_max: Option<u64>,
    /// Dead letters that a reader was shown.
    letters: BTreeMap<u64, Payload>,
    /// A topic that is full refuses messages.
    may_refuse: bool,
    /// Those that it has refused: never to be seen (P11).
    refused: BTreeSet<Payload>,
    /// When each message was sent; the wall clock, and the latest that it has shown.
    sent_ms: BTreeMap<Payload, i64>,
    clock_ms: i64,
    clock_ms_max: i64,
    /// What was sent to a topic that was deleted since: never to be seen again (P12).
    dead: BTreeSet<Payload>,
    /// A DELETE of the topic, or no answer to its CREATE: it need not be there.
    may_be_gone: bool,
    waiting: BTreeMap<ClientId, VecDeque<Ask>>,
    /// What the reply under way has brought: its gaps, its messages, and where both end.
    gaps: Vec<(u64, u64)>,
    reply: Vec<(u64, Payload)>,
    reply_next: Option<u64>,
    /// What the last READ and FETCHes from the beginning have shown.
    view: View,
    /// The other topic, in a workload that has two: what its client, [`workload::BESIDE`], was told.
    beside: Option<Box<Ledger>>,
}

impl Ledger {
    /// Of a workload in which nothing has happened.
    pub(super) fn new(workload: &Workload, may_refuse: bool, deliveries_max: Option<u64>) -> Ledger {
        Ledger {
            keeps: Some(workload.keeps),
            groups: workload.groups,
            queues: workload.queues.iter().map(|queue| (*queue, Queue::default())).collect(),
            packs: workload.packs,
            may_refuse,
            deliveries_max,
            ..Ledger::default()
        }
    }

    /// The same with another topic, which keeps everything.
    pub(super) fn with_beside(self) -> Ledger {
        let beside = Ledger { keeps: Some(Keeps::All), may_refuse: self.may_refuse, ..Ledger::default() };
        Ledger { beside: Some(Box::new(beside)), ..self }
    }

    /// The other topic, if this is its client.
    fn beside(&mut self, client: ClientId) -> Option<&mut Ledger> {
        self.beside.as_deref_mut().filter(|_| client == workload::BESIDE)
    }

    /// The wall clock is shown to the broker.
    pub(super) fn clock_shows(&mut self, wall_ms: i64) {
        self.clock_ms = wall_ms;
        self.clock_ms_max = self.clock_ms_max.max(wall_ms);
        self.beside.iter_mut().for_each(|beside| beside.clock_shows(wall_ms));
    }

    /// A client is about to send these requests, one a line. Groups must be among `groups`.
    pub(super) fn note(&mut self, client: ClientId, requests: &str, groups: &[&'static str]) {
        if let Some(beside) = self.beside(client) {
            return beside.note(client, requests, groups);
        }
        for request in requests.lines() {
            if request == LETTERS {
                self.waiting.entry(client).or_default().push_back(Ask::Letters);
                continue;
            }
            let words = request.split(' ').filter(|word| !word.starts_with('@'));
            let request = &words.collect::<Vec<_>>().join(" ");
            if let Some([id, _, payload]) = workload::with_id(request) {
                let payload: Payload = payload.into();
                self.sent.insert(payload.clone());
                self.sent_ms.entry(payload.clone()).or_insert(self.clock_ms);
                let known = self.ids.entry(id.into()).or_insert_with(|| payload.clone());
                assert_eq!(*known, payload, "an id names one payload");
                self.waiting.entry(client).or_default().push_back(Ask::Publish(vec![payload]));
                continue;
            }
            let words: Vec<&str> = request.splitn(3, ' ').collect();
            let group = |name: &str| *groups.iter().find(|group| **group == name).expect("a group of the workload");
            let number = |word: &str| word.parse::<u64>().expect("a number");
            let queue = self.queues.iter_mut().find(|(queue, _)| words.get(1) == Some(*queue));
            if let Some((name, queue)) = queue {
                let rest: Vec<&str> = words.get(2).map_or(Vec::new(), |rest| rest.split(' ').collect());
                let ask = match (words[0], &rest[..]) {
                    ("RESERVE", [_, _, lease_ms]) => {
                        queue.reserve_asked();
                        Ask::Reserve(name, number(lease_ms) as i64, self.clock_ms)
                    }
                    ("CONFIRM", offsets) => {
                        let offsets: Vec<u64> = offsets.iter().map(|offset| number(offset)).collect();
                        queue.confirm_asked(&offsets);
                        Ask::Confirm(name, offsets)
                    }
                    ("ABORT", [offset, ..]) => {
                        queue.abort_asked(number(offset));
                        Ask::Abort(name, number(offset))
                    }
                    ("PENDING", []) => Ask::Pending(name),
                    ("DELETE", []) => {
                        queue.deletion_asked();
                        Ask::DeleteQueue(name)
                    }
                    _ => panic!("no workload asks {request:?}"),
                };
                self.waiting.entry(client).or_default().push_back(ask);
                continue;
            }
            let ask = match words[..] {
                ["PUB", _, payload] => Ask::Publish(vec![self.sent(payload)]),
                ["PUBB", _, payloads] => {
                    let batch: Vec<Payload> = payloads.split(' ').map(|payload| self.sent(payload)).collect();
                    self.batches.push(batch.clone());
                    Ask::Publish(batch)
                }
                ["READ", offset, "1"] => Ask::ReadOne(offset.parse().expect("an offset")),
                ["READ", ..] => Ask::Read,
                ["FETCH", name, _] => Ask::Fetch(group(name)),
                ["ACK", name, offset] => {
                    let offset = offset.parse().expect("an offset");
                    let asked = self.asked.entry(group(name)).or_default();
                    *asked = (*asked).max(offset + 1);
                    Ask::Ack(group(name), offset)
                }
                ["ALTER", change] => {
                    let value = change.strip_prefix(SETTING).and_then(|value| value.strip_prefix('=')?.parse().ok());
                    let value = value.expect("the setting that is looked at");
                    let asked = self.asked.entry(SETTING).or_default();
                    *asked = (*asked).max(value);
                    Ask::Alter(value)
                }
                ["SETTINGS"] => Ask::Settings,
                ["STATUS", ..] => Ask::Status,
                ["PURGE", before] => {
                    let before = before.parse().expect("an offset");
                    self.purge_asked = self.purge_asked.max(before);
                    Ask::Purge(before)
                }
                ["DELETE"] => {
                    self.may_be_gone = true;
                    Ask::Delete
                }
                ["DELETE", name] => {
                    // From now on it may be at its beginning.
                    self.acked.insert(group(name), 0);
                    Ask::DeleteGroup(group(name))
                }
                ["CREATE", ..] => {
                    self.may_be_gone |= self.sent.is_empty() || self.sent.iter().all(|sent| self.dead.contains(sent));
                    Ask::Create
                }
                _ => panic!("no workload asks {request:?}"),
            };
            self.waiting.entry(client).or_default().push_back(ask);
        }
    }

    fn sent(&mut self, payload: &str) -> Payload {
        let payload: Payload = payload.into();
        assert!(self.sent.insert(payload.clone()), "each payload is sent once: {payload}");
        self.sent_ms.insert(payload.clone(), self.clock_ms);
        payload
    }

    /// A force has failed: after this nothing is acknowledged any more (P10).
    pub(super) fn a_force_failed(&mut self) {
        self.a_force_failed = true;
        self.written.clear();
        self.beside.iter_mut().for_each(|beside| beside.a_force_failed());
        self.queues.values_mut().for_each(Queue::counts_are_lost);
    }

    /// The process has ended; what was not answered may or may not have happened.
    pub(super) fn restarted(&self, power_lost: bool) -> Ledger {
        let mut ledger = self.clone();
        ledger.waiting.clear();
        ledger.delivered.clear();
        ledger.reply.clear();
        ledger.gaps.clear();
        ledger.reply_next = None;
        ledger.queues.values_mut().for_each(Queue::restarted);
        ledger.view = View::default();
        ledger.a_force_failed = false;
        if power_lost {
            ledger.written.clear();
            ledger.queues.values_mut().for_each(Queue::counts_are_lost);
        }
        ledger.beside = self.beside.as_ref().map(|beside| Box::new(beside.restarted(power_lost)));
        ledger
    }

    /// The last message is no longer promised.
    pub(super) fn forgive_last(&mut self) {
        let last = self.durable.keys().chain(self.seen.keys()).max().copied();
        for messages in [&mut self.durable, &mut self.seen] {
            last.inspect(|last| drop(messages.remove(last)));
        }
    }

    /// What every group and the log looked like when they were last read from the beginning.
    pub(super) fn view(&self) -> View {
        View { beside: self.beside.as_ref().map(|beside| Box::new(beside.view())), ..self.view.clone() }
    }

    /// Whether a message was refused.
    pub(super) fn has_refused(&self, payload: &str) -> bool {
        self.refused.contains(payload)
    }

    /// Whether a later process may find more to be too old.
    pub(super) fn keeps_by_time(&self) -> bool {
        matches!(self.keeps, Some(Keeps::Ms(_)))
    }

    /// The log as the last READ has shown it begins here.
    pub(super) fn begins(&self, start: u64) -> Result<(), Broken> {
        if self.view.start == start {
            return Ok(());
        }
        Err(Broken::new("P12", format!("the log begins at {}, and should at {start}", self.view.start)))
    }

    /// Whether a topic's settings were to be changed.
    pub(super) fn has_altered(&self) -> bool {
        self.asked.contains_key(SETTING)
    }

    /// A request for each publish that was sent with an id: to be sent again.
    pub(super) fn repeated(&self) -> String {
        self.ids.iter().map(|(id, payload)| format!("ID {id} DURABLE {payload}\n")).collect()
    }

    /// Everything that decides what will count as broken.
    pub(super) fn hash_into(&self, hash: &mut StateHash) {
        hash.number(self.sent.len() as u64);
        self.sent.iter().for_each(|payload| hash.bytes(payload.as_bytes()));
        hash.number(self.batches.len() as u64);
        hash.number(self.ids.len() as u64);
        hash_messages(hash, &self.durable);
        hash_messages(hash, &self.written);
        hash_messages(hash, &self.seen);
        hash_messages(hash, &self.letters);
        self.queues.values().for_each(|queue| queue.hash_into(hash));
        for (group, offset) in self.acked.iter().chain(&self.asked) {
            hash.bytes(group.as_bytes());
            hash.number(*offset);
        }
        hash.number(self.acked.len() as u64);
        hash.number(self.purged);
        hash.number(self.purge_asked);
        hash.number(u64::from(self.may_be_gone));
        hash.number(self.dead.len() as u64);
        hash.number(self.refused.len() as u64);
        if self.keeps_by_time() {
            self.sent_ms.keys().for_each(|payload| hash.number(u64::from(self.is_young(payload))));
        }
        self.beside.iter().for_each(|beside| beside.hash_into(hash));
    }

    /// A line of a reply has come.
    pub(super) fn line(&mut self, client: ClientId, line: &str) -> Result<(), Broken> {
        if let Some(beside) = self.beside(client) {
            return beside.line(client, line);
        }
        let ask = self.waiting.get(&client).and_then(|waiting| waiting.front()).cloned();
        let Some(ask) = ask else { return Err(Broken::new("P14", format!("a reply that nobody asked for: {line}"))) };
        let words: Vec<&str> = line.splitn(3, ' ').collect();
        match (&ask, &words[..]) {
            (Ask::Read | Ask::ReadOne(_) | Ask::Fetch(_), ["MSG", offset, payload]) => {
                let offset = offset.parse().expect("an offset");
                self.in_order(offset, offset + 1, line)?;
                let payload = self.delivered(offset, payload)?;
                self.reply.push((offset, payload));
                return Ok(());
            }
            (Ask::Read | Ask::ReadOne(_) | Ask::Fetch(_), ["GAP", first, next]) => {
                let gap: (u64, u64) = (first.parse().expect("an offset"), next.parse().expect("an offset"));
                if self.packs {
                    self.are_done(gap.0..gap.1)?;
                } else {
                    self.begins_at(gap.1)?;
                    if self.reply_next.is_some() {
                        return Err(Broken::new("P2", format!("a hole in the middle of a log: {line}")));
                    }
                }
                self.in_order(gap.0, gap.1, line)?;
                self.gaps.push(gap);
                return Ok(());
            }
            (Ask::Reserve(..), ["GAP", first, next]) => {
                self.are_done(first.parse().expect("an offset")..next.parse().expect("an offset"))?;
                return Ok(());
            }
            (Ask::Reserve(queue, lease_ms, asked_ms), ["MSG", offset, payload]) => {
                let offset = offset.parse().expect("an offset");
                self.delivered(offset, payload)?;
                let times = (*asked_ms, self.clock_ms);
                self.queue(queue).handed_out(offset, client, *lease_ms, times)?;
                return Ok(());
            }
            (Ask::Reserve(queue, ..), ["END", ..]) => self.queue(queue).reserve_ended(true),
            (Ask::Reserve(queue, ..), ["ERR", "HALTED" | "STOPPING", _]) => self.queue(queue).reserve_ended(false),
            (Ask::Reserve(queue, ..), ["ERR", "NO_GROUP", _]) if self.queue(queue).may_be_gone => {
                self.queue(queue).reserve_ended(false);
            }
            (Ask::Confirm(queue, offsets), ["CONFIRMED", count]) => {
                self.nothing_failed(line)?;
                if count.parse() != Ok(offsets.len()) {
                    return Err(Broken::new("P14", format!("{ask:?} was answered {line}")));
                }
                let now_ms = self.clock_ms;
                self.queue(queue).confirm_ended(offsets, client, now_ms, Some(true))?;
            }
            (Ask::Confirm(queue, offsets), ["ERR", "NOT_RESERVED", _]) => {
                let now_ms = self.clock_ms;
                self.queue(queue).confirm_ended(offsets, client, now_ms, Some(false))?;
            }
            (Ask::Confirm(queue, offsets), ["ERR", "HALTED" | "STOPPING" | "NO_GROUP", _]) => {
                self.queue(queue).confirm_ended(offsets, client, 0, None)?;
            }
            (Ask::Abort(queue, offset), ["ABORTED", told]) if told.parse() == Ok(*offset) => {
                self.queue(queue).aborted(*offset, client);
            }
            (Ask::Pending(queue), ["PENDING", offset, rest]) => {
                let offset = offset.parse().expect("an offset");
                let deliveries = rest.split(' ').find_map(|word| word.strip_prefix("deliveries=")?.parse().ok());
                let deliveries = deliveries.expect("a number of deliveries");
                self.queue(queue).is_pending(offset, deliveries)?;
                if rest.contains("state=dying") {
                    let what = format!("nothing happens any more, and offset {offset} is still dying");
                    return Err(Broken::new("P15", what));
                }
                self.view.pending.entry(queue).or_default().push((offset, deliveries));
                return Ok(());
            }
            (Ask::Pending(_), ["END", ..]) => {}
            (Ask::DeleteQueue(queue), ["DELETED", ..]) => {
                self.nothing_failed(line)?;
                self.queue(queue).deleted();
            }
            (Ask::DeleteQueue(_), ["ERR", "NO_GROUP", _]) => {}
            (Ask::Letters, ["MSG", offset, payload]) => {
                let at: u64 = offset.parse().expect("an offset");
                let Some(payload) = self.sent.get(*payload).cloned() else {
                    return Err(Broken::new("P7", format!("dead letter {at} is {payload:?}, which nobody sent")));
                };
                if self.letters.get(&at).is_some_and(|other| *other != payload) {
                    return Err(Broken::new("P4", format!("dead letter {at} was another one before {payload:?}")));
                }
                if let Some((other, _)) = self.view.letters.iter().find(|(_, other)| **other == payload) {
                    return Err(Broken::new("P16", format!("dead letters {other} and {at} are both {payload:?}")));
                }
                self.in_order(at, at + 1, line)?;
                self.letters.insert(at, payload.clone());
                self.view.letters.insert(at, payload);
                return Ok(());
            }
            // Nobody has died.
            (Ask::Letters, ["ERR", "NO_TOPIC", _]) => {}
            (Ask::Letters, ["END", ..]) => self.reply_next = None,
            (Ask::Read, ["END", ..]) => {
                let (gaps, reply, next) = self.take_reply();
                let start = if self.packs { 0 } else { gaps.first().map_or(0, |(_, next)| *next) };
                let first = gaps
                    .first()
                    .map(|(first, _)| *first)
                    .into_iter()
                    .chain(reply.first().map(|(first, _)| *first))
                    .min();
                if first.is_some_and(|first| first != 0) {
                    return Err(Broken::new("P2", format!("a READ from 0 was told of {gaps:?} and then of {first:?}")));
                }
                (self.view.start, self.view.is_gone) = (start, false);
                self.purged = self.purged.max(start);
                self.view.log = reply.into_iter().collect();
                self.view.end = next.unwrap_or(start);
            }
            (Ask::ReadOne(offset), ["END", ..]) => {
                let (gaps, reply, _) = self.take_reply();
                if gaps.is_empty() && !matches!(&reply[..], [(found, _)] if found == offset) {
                    return Err(Broken::new("P2", format!("a READ of offset {offset} found {reply:?}")));
                }
            }
            (Ask::Read | Ask::Fetch(_) | Ask::Status, ["ERR", "NO_TOPIC", _]) if self.may_be_gone => {
                self.forget_topic();
                self.view = View { is_gone: true, ..View::default() };
            }
            (Ask::Create, ["CREATED", ..]) => self.may_be_gone = false,
            (Ask::Delete, ["DELETED", ..]) => {
                self.nothing_failed(line)?;
                self.forget_topic();
            }
            (Ask::DeleteGroup(group), ["DELETED", ..]) => {
                self.nothing_failed(line)?;
                self.asked.insert(group, 0);
            }
            (Ask::Purge(before), ["PURGED", start]) => {
                self.nothing_failed(line)?;
                let start: u64 = start.parse().expect("an offset");
                self.begins_at(start)?;
                if start < *before {
                    return Err(Broken::new("P12", format!("PURGE {before} was answered {line}")));
                }
                self.purged = self.purged.max(start);
            }
            (Ask::Fetch(group), ["END", ..]) => {
                let (gaps, reply, next) = self.take_reply();
                if let Some(next) = next {
                    self.delivered.insert((client, *group), next);
                }
                let first = gaps.first().map(|(first, _)| *first).or(reply.first().map(|(first, _)| *first));
                let committed = first.unwrap_or(self.view.end);
                self.view.committed.insert(group, committed);
            }
            (Ask::Publish(payloads), ["OK", offset, level]) => {
                let level = match level.split_once(' ') {
                    Some((level, count)) if count.parse() == Ok(payloads.len()) => level,
                    Some(_) => return Err(Broken::new("P14", format!("{ask:?} was answered {line}"))),
                    None => level,
                };
                let first: u64 = offset.parse().expect("an offset");
                for (payload, offset) in payloads.iter().zip(first..) {
                    self.published(offset, payload.clone(), level)?;
                }
            }
            (Ask::Ack(group, offset), ["ACKED", committed]) => {
                self.nothing_failed(line)?;
                let delivered = self.delivered.get(&(client, *group)).copied().unwrap_or(0);
                // At or below what is committed it changes nothing, delivered here or not.
                let known = self.acked.get(group).max(self.view.committed.get(group)).copied().unwrap_or(0);
                if *offset >= delivered.max(known) {
                    let what = format!(
                        "an ACK of {offset} was taken from a consumer that was sent only what is below {delivered}"
                    );
                    return Err(Broken::new("P6", what));
                }
                let committed = committed.parse().expect("an offset");
                let acked = self.acked.entry(group).or_default();
                if committed < *acked {
                    return Err(Broken::new("P5", format!("group {group} was at {acked} and is now at {committed}")));
                }
                *acked = committed;
            }
            (Ask::Alter(value), ["ALTERED", "default"]) => {
                self.nothing_failed(line)?;
                self.acked.insert(SETTING, *value);
            }
            (Ask::Settings, ["SETTING", name, rest]) => {
                if *name == SETTING {
                    let value = rest.split(' ').next().and_then(|value| value.parse().ok()).expect("a number");
                    self.view.committed.insert(SETTING, value);
                }
                return Ok(());
            }
            (Ask::Settings, ["END", ..]) => {
                let value = self.view.committed[SETTING];
                let acked = self.acked.insert(SETTING, value).unwrap_or(0);
                // What was once shown stays (crash story: ACKED from the cache).
                if value < acked {
                    return Err(Broken::new("P3", format!("{SETTING} was told to be {acked} and is {value}")));
                }
            }
            (Ask::Status, ["STATUS", ..]) => self.status(line)?,
            (Ask::DeleteGroup(_), ["ERR", "NO_GROUP", _]) => {}
            (Ask::Publish(payloads), ["ERR", "OVER_CAPACITY", _]) if self.may_refuse => {
                self.refused.extend(payloads.iter().cloned());
            }
            (_, ["ERR", "HALTED" | "STOPPING", _]) | (Ask::Ack(..), ["ERR", "NOT_DELIVERED", _]) => {}
            (_, ["ERR", code, _]) => {
                let promise = if *code == "CORRUPT" { "P7" } else { "P6" };
                return Err(Broken::new(promise, format!("{ask:?} was answered {line}")));
            }
            _ => return Err(Broken::new("P14", format!("{ask:?} was answered {line}"))),
        }
        self.waiting.get_mut(&client).expect("seen above").pop_front();
        Ok(())
    }

    /// All was read from the beginning, by clients of a process that had recovered: nothing promised may be missing.
    pub(super) fn check_view(&self, groups: &[&'static str]) -> Result<(), Broken> {
        self.beside.iter().try_for_each(|beside| beside.check_view(&[]))?;
        let (view, log) = (&self.view, &self.view.log);
        let unanswered = self.waiting.values().flatten().next();
        if let Some(ask) = unanswered {
            return Err(Broken::new("P14", format!("{ask:?} was not answered")));
        }
        for (promise, why, promised) in [
            ("P1", "was answered DURABLE", &self.durable),
            ("P4", "was delivered to a reader", &self.seen),
            ("P1", "was answered WRITTEN, and only the process was killed", &self.written),
        ] {
            // What was asked to go may be gone or not; what was answered to be gone is gone.
            for (offset, payload) in promised.iter().filter(|(offset, _)| **offset >= view.start) {
                let found = log.get(offset);
                let is_packed = found.is_none() && self.packs && self.is_done(*offset);
                if found != Some(payload) && !is_packed {
                    let found = found.map_or("nothing".to_owned(), |found| format!("{found:?}"));
                    let what = format!("offset {offset}, {payload:?}, {why}; now there is {found}");
                    return Err(Broken::new(promise, what));
                }
            }
        }
        if view.start < self.purged {
            let what =
                format!("what is below {} was told to be gone, and the log begins at {}", self.purged, view.start);
            return Err(Broken::new("P12", what));
        }
        for (id, payload) in &self.ids {
            let places: Vec<u64> = log.iter().filter(|(_, at)| *at == payload).map(|(at, _)| *at).collect();
            if places.len() > 1 {
                return Err(Broken::new("P16", format!("the id {id} stands at {places:?}")));
            }
        }
        let log: Vec<&Payload> = log.values().collect();
        let distinct: BTreeSet<&&Payload> = log.iter().collect();
        if distinct.len() != log.len() {
            return Err(Broken::new("P2", format!("a message stands at two offsets: {log:?}")));
        }
        // Before and behind a crash, whether or not it was answered.
        for batch in &self.batches {
            let first = log.iter().position(|payload| batch.contains(payload));
            let batch: Vec<&Payload> = batch.iter().collect();
            if let Some(first) = first
                && !log[first..].starts_with(&batch)
            {
                return Err(Broken::new("P2", format!("of the batch {batch:?} there is only a part: {log:?}")));
            }
        }
        let settings = self.has_altered().then_some(&SETTING);
        for group in groups.iter().chain(settings) {
            let committed = self.view.committed.get(group).copied().unwrap_or(0);
            let acked = self.acked.get(group).copied().unwrap_or(0);
            let asked = self.asked.get(group).copied().unwrap_or(0);
            if committed < acked {
                let what = format!("group {group} was told ACKED {acked} and goes on at {committed}");
                return Err(Broken::new("P5", what));
            }
            if committed > asked {
                let what = format!("group {group} goes on at {committed}, but nobody acknowledged more than {asked}");
                return Err(Broken::new("P6", what));
            }
        }
        Ok(())
    }

    fn published(&mut self, offset: u64, payload: Payload, level: &str) -> Result<(), Broken> {
        self.nothing_failed(&format!("OK {offset} {level}"))?;
        for (promise, known) in [("P2", &self.durable), ("P4", &self.seen)] {
            if let Some(other) = known.get(&offset).filter(|other| **other != payload) {
                let what = format!("offset {offset} names {other:?} and was given to {payload:?}");
                return Err(Broken::new(promise, what));
            }
        }
        if level == "DURABLE" {
            self.durable.insert(offset, payload.clone());
        }
        if level != "ACCEPTED" {
            self.written.insert(offset, payload);
        }
        Ok(())
    }

    fn nothing_failed(&self, line: &str) -> Result<(), Broken> {
        if self.a_force_failed {
            return Err(Broken::new("P10", format!("a force had failed, and then a client was told {line}")));
        }
        Ok(())
    }

    /// What stands in a reply comes in the order of offsets, without holes.
    fn in_order(&mut self, first: u64, next: u64, line: &str) -> Result<(), Broken> {
        match self.reply_next.replace(next) {
            Some(before) if before != first => {
                Err(Broken::new("P2", format!("the reply was at offset {before}, and then there is {line}")))
            }
            _ => Ok(()),
        }
    }

    /// The gaps, the messages, and where they end.
    #[expect(clippy::type_complexity, reason = "three parts of one thing, for one line each")]
    fn take_reply(&mut self) -> (Vec<(u64, u64)>, Vec<(u64, Payload)>, Option<u64>) {
        (std::mem::take(&mut self.gaps), std::mem::take(&mut self.reply), self.reply_next.take())
    }

    fn queue(&mut self, name: &str) -> &mut Queue {
        self.queues.get_mut(name).expect("a queue of the workload")
    }

    /// Whether all queues are done with it, or may be (P12).
    fn is_done(&self, offset: u64) -> bool {
        let is_done = |queue: &Queue| queue.may_be_confirmed(offset) || queue.may_be_dead(offset, self.deliveries_max);
        !self.queues.is_empty() && self.queues.values().all(is_done)
    }

    /// Messages that are told to be gone from the middle of a log.
    fn are_done(&self, mut gone: Range<u64>) -> Result<(), Broken> {
        match gone.find(|offset| *offset >= self.purge_asked && !self.is_done(*offset)) {
            Some(offset) => Err(Broken::new("P12", format!("offset {offset} is gone, and no queue is done with it"))),
            None => Ok(()),
        }
    }

    /// All that the work queues have was handed out: nothing is missing, and nothing comes again that should not.
    pub(super) fn check_queues(&mut self) -> Result<(), Broken> {
        if let Some((at, payload)) = self.letters.iter().find(|(at, _)| !self.view.letters.contains_key(at)) {
            return Err(Broken::new(
                "P4",
                format!("dead letter {at}, {payload:?}, was shown to a reader, and is gone"),
            ));
        }
        let letter = |offset: u64| {
            let payload = self.view.log.get(&offset)?;
            self.view.letters.iter().find(|(_, letter)| *letter == payload).map(|(at, _)| *at)
        };
        for (name, queue) in &mut self.queues {
            queue.check(name, self.view.offsets(), self.deliveries_max, &letter)?;
        }
        Ok(())
    }

    /// What is pending, and who is dead, is asked anew.
    pub(super) fn look_at_queues_again(&mut self) {
        self.view.pending.clear();
        self.view.letters.clear();
    }

    /// The first message that is handed out, of a queue.
    pub(super) fn first_held(&self, queue: &str) -> Option<u64> {
        self.queues[queue].held().next()
    }

    /// Whether messages of this workload die.
    pub(super) fn has_letters(&self) -> bool {
        self.deliveries_max.is_some()
    }

    fn delivered(&mut self, offset: u64, payload: &str) -> Result<Payload, Broken> {
        let Some(payload) = self.sent.get(payload).cloned() else {
            return Err(Broken::new("P7", format!("offset {offset} was delivered as {payload:?}, which nobody sent")));
        };
        if self.dead.contains(&payload) {
            return Err(Broken::new("P12", format!("{payload:?} is back from a topic that was deleted")));
        }
        if self.refused.contains(&payload) {
            return Err(Broken::new("P11", format!("{payload:?} was refused, and is delivered at offset {offset}")));
        }
        for (promise, known) in [("P1", &self.durable), ("P4", &self.seen)] {
            if let Some(other) = known.get(&offset).filter(|other| **other != payload) {
                let what = format!("offset {offset} is {other:?} and was delivered as {payload:?}");
                return Err(Broken::new(promise, what));
            }
        }
        self.seen.insert(offset, payload.clone());
        Ok(payload)
    }

    /// A quiet broker has forced all that it has, and its readers have seen all of it.
    fn status(&mut self, line: &str) -> Result<(), Broken> {
        let number = |name: &str| {
            let field = line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            field.and_then(|value| value.parse::<u64>().ok()).expect("a number in the status")
        };
        let (start, durable, written, next) = (number("start"), number("durable"), number("written"), number("next"));
        let read = self.view.end;
        if self.packs {
            // What is gone at the front is told like what is gone in the middle.
            self.begins_at(start)?;
            self.view.start = start;
            self.purged = self.purged.max(start);
        }
        if start != self.view.start || durable != next || written != next || read != next {
            return Err(Broken::new("P2", format!("readers see messages up to {read}, and the marks are {line}")));
        }
        Ok(())
    }

    fn begins_at(&self, start: u64) -> Result<(), Broken> {
        let asked = |group: &&str| self.asked.get(*group).copied().unwrap_or(0);
        let mut known = self.durable.iter().chain(&self.written).chain(&self.seen);
        let may_go = match self.keeps {
            None | Some(Keeps::All) => false,
            Some(Keeps::Unconsumed) => {
                self.groups.iter().all(|group| start <= asked(group))
                    && (self.queues.is_empty() || (0..start).all(|offset| self.is_done(offset)))
            }
            Some(Keeps::Ms(_)) => !known.any(|(offset, payload)| *offset < start && self.is_young(payload)),
            Some(Keeps::Last(count)) => start + count <= self.sent.len() as u64,
        };
        if start > self.purge_asked && !may_go {
            let what =
                format!("the log begins at {start}; {} was asked for, and {:?} is kept", self.purge_asked, self.keeps);
            return Err(Broken::new("P12", what));
        }
        Ok(())
    }

    /// Whether no clock has shown yet that a message is older than it may be.
    fn is_young(&self, payload: &Payload) -> bool {
        let Some(Keeps::Ms(ms)) = self.keeps else { return false };
        self.sent_ms.get(payload).is_some_and(|sent| self.clock_ms_max - sent <= ms)
    }

    /// The topic is gone: nothing of it may ever be seen again, and nothing is promised of it.
    fn forget_topic(&mut self) {
        let dead =
            std::mem::take(&mut self.durable).into_values().chain(std::mem::take(&mut self.written).into_values());
        self.dead.extend(dead.chain(self.sent.iter().cloned()));
        self.seen.clear();
        self.acked.clear();
        self.asked.clear();
        self.queues.values_mut().for_each(Queue::deleted);
        (self.purged, self.purge_asked) = (0, 0);
    }
}
