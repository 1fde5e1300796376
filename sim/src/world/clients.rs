//! Clients as state machines over the line protocol: what each does next, and what it makes of an answer.

use super::network::Owner;
use super::{MICROS, MILLIS, Part, SECONDS, Step, Todo, World};
use crate::checker::{Ask, SETTING};
use crate::model::{Attempt, Repeats};
use crate::reply::Seen;
use crate::tape::Concern;
use crate::trace::Lane;
use crate::workload::Role;
use plimsoll_core::effect::ConnectionId;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;

/// A client.
pub(super) struct Client {
    role: Role,
    pub(super) connection: Option<ConnectionId>,
    actions: u32,
    /// What the requests under way were, in order.
    in_flight: VecDeque<Flight>,
    /// Publishes without an answer, to be sent again.
    again: VecDeque<Message>,
    /// ACKs without a good answer, to be sent again: topic, group, offset.
    acks_again: VecDeque<(String, String, u64)>,
    /// The highest offset delivered on this connection, by topic and group.
    delivered: BTreeMap<(String, String), u64>,
    /// What this connection has reserved, as far as it knows, by topic and work queue.
    reserved: BTreeMap<(String, String), Vec<u64>>,
    /// It sends no more on this connection.
    ended: bool,
    done: bool,
}

#[derive(Clone)]
enum Flight {
    Publish(Message),
    Fetch(String, String),
    Ack(String, String, u64),
    Reserve(String, String),
    Other,
}

/// What a client wants to publish.
#[derive(Clone)]
struct Message {
    topic: String,
    level: &'static str,
    bytes: usize,
    binary: bool,
    /// So many messages of so many bytes as one.
    batch: Option<usize>,
    /// The producer's id, if it has one.
    producer: Option<u64>,
    /// Sent before: it has an id, so it can be sent again as it is.
    sent: Option<usize>,
}

impl Client {
    pub(super) fn new(role: Role) -> Client {
        Client {
            role,
            connection: None,
            actions: 0,
            in_flight: VecDeque::new(),
            again: VecDeque::new(),
            acks_again: VecDeque::new(),
            delivered: BTreeMap::new(),
            reserved: BTreeMap::new(),
            ended: false,
            done: false,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.done
    }

    /// It does not know what became of an ACK (crash story: ACKED from the cache).
    fn repeat_ack(&mut self, topic: String, group: String, offset: u64) {
        if self.acks_again.len() < 4 {
            self.acks_again.push_back((topic, group, offset));
        }
    }
}

/// What a client may do: the words, and how likely for a producer, a consumer, a reader, a rude client.
const ACTIONS: [(&str, [u32; 4]); 48] = [
    ("rests", [2, 2, 2, 2]),
    ("publishes DURABLE", [30, 3, 3, 4]),
    ("publishes WRITTEN", [10, 1, 1, 2]),
    ("publishes ACCEPTED", [10, 1, 1, 2]),
    ("publishes bytes with key and headers", [10, 1, 2, 2]),
    ("publishes several at once", [10, 1, 1, 2]),
    (BATCH, [12, 1, 1, 2]),
    (WITH_ID, [25, 1, 1, 3]),
    (REPEAT, [12, 1, 1, 3]),
    ("fetches", [2, 40, 4, 4]),
    ("fetches and waits", [1, 10, 2, 4]),
    ("acknowledges all", [1, 25, 1, 2]),
    ("acknowledges the first", [1, 6, 1, 1]),
    ("reads", [3, 3, 30, 4]),
    ("reads raw", [1, 1, 15, 2]),
    ("seeks", [1, 3, 2, 2]),
    ("asks for the status", [1, 1, 4, 1]),
    ("asks for topics and groups", [1, 1, 6, 1]),
    ("creates a topic", [1, 0, 1, 1]),
    ("alters a topic", [1, 0, 2, 1]),
    ("says hello", [1, 1, 2, 1]),
    ("hangs up", [1, 2, 1, 2]),
    ("resets its connection", [1, 2, 1, 6]),
    ("vanishes", [0, 1, 1, 4]),
    ("sends garbage", [0, 0, 1, 12]),
    ("sends an oversized line", [0, 0, 0, 6]),
    ("loses the framing", [0, 0, 0, 5]),
    ("stops reading for a while", [0, 1, 1, 6]),
    ("leaves a request unfinished", [0, 0, 0, 5]),
    ("publishes too much", [1, 0, 0, 3]),
    ("publishes a frame", [2, 0, 0, 6]),
    ("acknowledges what it was not sent", [0, 2, 1, 3]),
    // In worlds that have it.
    ("purges", [6, 3, 6, 2]),
    (DELETE, [2, 1, 1, 1]),
    (ANEW, [5, 1, 2, 1]),
    (DELETE_GROUP, [1, 5, 1, 1]),
    ("reserves", [3, 45, 6, 6]),
    ("reserves and waits", [1, 14, 2, 4]),
    ("confirms all", [2, 25, 2, 2]),
    ("confirms some", [1, 14, 1, 2]),
    ("confirms one after the other", [1, 4, 1, 2]),
    ("gives back", [1, 14, 1, 3]),
    ("extends", [1, 6, 1, 2]),
    ("confirms what it does not have", [0, 4, 1, 4]),
    ("gives back what it does not have", [0, 2, 1, 3]),
    ("steals", [0, 3, 1, 3]),
    ("asks for what is pending", [1, 4, 6, 1]),
    ("deletes a work queue", [0, 1, 0, 1]),
];

/// In some worlds only.
const BATCH: &str = "publishes a batch";
const WITH_ID: &str = "publishes with an id";
const REPEAT: &str = "repeats a publish";
const DELETE: &str = "deletes a topic";
const ANEW: &str = "makes a topic anew";
const DELETE_GROUP: &str = "deletes a group";

const LEVELS: [&str; 3] = ["DURABLE", "WRITTEN", "ACCEPTED"];

impl World {
    /// A client does something, if it is its turn.
    pub(super) fn turn(&mut self, number: usize) -> Step {
        if self.part != Part::Storm || self.clients[number].done {
            return Ok(());
        }
        let action = self.clients[number].actions;
        if action >= self.plan.actions {
            self.clients[number].done = true;
            return Ok(());
        }
        let Some(connection) = self.clients[number].connection else {
            let connected = self.connect(Owner::Client(number))?;
            let wait = if connected.is_some() { 0 } else { 2 * MILLIS };
            self.clients[number].connection = connected;
            self.next_turn(number, wait);
            return Ok(());
        };
        let client = &self.clients[number];
        if client.ended || client.in_flight.len() >= self.plan.window {
            // Its next turn comes with an answer, or with the end of the connection.
            return Ok(());
        }
        self.clients[number].actions += 1;
        self.operate(format_args!("operator, before action {action} of client {number}"))?;
        if self.clients[number].connection != Some(connection) {
            self.next_turn(number, MILLIS);
            return Ok(());
        }
        if let Some((topic, group, offset)) = self.clients[number].acks_again.pop_front() {
            self.send_ack(number, connection, topic, group, offset);
        } else if let Some(message) = self.clients[number].again.pop_front() {
            self.publish(number, connection, message);
        } else {
            self.act(number, connection, action)?;
        }
        let pause = self.d.choose(
            Concern::Schedule,
            4,
            format_args!("pause after action {action} of client {number}"),
            &|picked| format!("{} times", [1, 2, 4, 20][picked]),
        );
        self.next_turn(number, self.plan.pause_ns * [1, 2, 4, 20][pause]);
        Ok(())
    }

    fn next_turn(&mut self, number: usize, wait_ns: u64) {
        self.at(self.now_ns + MICROS + wait_ns, Todo::Turn(number));
    }

    fn act(&mut self, number: usize, connection: ConnectionId, action: u32) -> Step {
        let role = self.clients[number].role as usize;
        let exists = |action: &str| match action {
            BATCH => self.plan.batches,
            WITH_ID | REPEAT => !self.plan.producers.is_empty(),
            "purges" => self.plan.purges,
            DELETE_GROUP => self.plan.deletes && !self.plan.groups.is_empty(),
            DELETE | ANEW => self.plan.deletes,
            action if of_queues(action) => !self.plan.queues.is_empty(),
            action if of_groups(action) => !self.plan.groups.is_empty(),
            _ => true,
        };
        let weight = |(action, weights): &(&str, [u32; 4])| if exists(action) { weights[role] } else { 0 };
        let weights: Vec<u32> = ACTIONS.iter().map(weight).collect();
        let what = format!("client {number}, action {action}");
        let picked =
            self.d.weighted(Concern::Clients, &weights, format_args!("{what}"), &|picked| ACTIONS[picked].0.to_owned());
        if picked != 0 {
            self.trace.note(self.now_ns, Lane::Client(number), format_args!("{}", ACTIONS[picked].0));
        }
        match ACTIONS[picked].0 {
            "publishes DURABLE" => self.publish_new(number, connection, &what, "DURABLE", false),
            "publishes WRITTEN" => self.publish_new(number, connection, &what, "WRITTEN", false),
            "publishes ACCEPTED" => self.publish_new(number, connection, &what, "ACCEPTED", false),
            "publishes bytes with key and headers" => {
                let level = self.level(&what);
                self.publish_new(number, connection, &what, level, true);
            }
            "publishes several at once" => {
                let several = [3, 2, 8, 30];
                let count =
                    several[self.one_of(&what, "how many", several.len(), &|picked| several[picked].to_string())];
                for at in 0..count {
                    let what = format!("{what}, message {at}");
                    let level = self.level(&what);
                    self.publish_new(number, connection, &what, level, false);
                }
            }
            BATCH => self.publish_batch(number, connection, &what, None),
            WITH_ID => self.publish_with_id(number, connection, &what),
            REPEAT => self.repeat(number, connection, &what),
            "fetches" => self.fetch(number, connection, &what, 0),
            "fetches and waits" => self.fetch(number, connection, &what, 30),
            "acknowledges all" => self.acknowledge(number, connection, &what, false),
            "acknowledges the first" => self.acknowledge(number, connection, &what, true),
            "acknowledges what it was not sent" => {
                let topic = self.topic(&what);
                let (group, offset) = (self.group(&what), self.offset(&what, &topic));
                self.send_ack(number, connection, topic, group, offset);
            }
            "reads" => {
                let topic = self.topic(&what);
                let (offset, max) = (self.offset(&what, &topic), self.maximum(&what));
                let meta = self.one_of(&what, "meta", 2, &yes_or_no) == 1;
                let line = format!("READ @{topic} {offset} {max}{}\n", if meta { " META" } else { "" });
                self.ask(number, connection, &topic, Ask::Read { offset, max }, line.into_bytes());
            }
            "reads raw" => {
                let topic = self.topic(&what);
                let offset = self.offset(&what, &topic);
                let sizes = [100_000, 1, 300];
                let size = sizes[self.one_of(&what, "bytes", sizes.len(), &|picked| sizes[picked].to_string())];
                let line = format!("READRAW @{topic} {offset} {size}\n");
                self.ask(number, connection, &topic, Ask::ReadRaw { offset }, line.into_bytes());
            }
            "seeks" => self.seek(number, connection, &what),
            "asks for the status" => {
                let topic = self.topic(&what);
                self.ask(number, connection, &topic, Ask::Status, format!("STATUS @{topic}\n").into_bytes());
            }
            "asks for topics and groups" => {
                let topic = self.topic(&what);
                self.ask(number, connection, &topic, Ask::Topics, b"TOPICS\n".to_vec());
                self.ask(number, connection, &topic, Ask::Groups, format!("GROUPS @{topic}\n").into_bytes());
                self.ask(number, connection, &topic, Ask::Settings, format!("SETTINGS @{topic}\n").into_bytes());
            }
            "purges" => {
                let topic = self.topic(&what);
                let before = self.offset(&what, &topic);
                self.ask(
                    number,
                    connection,
                    &topic,
                    Ask::Purge { before },
                    format!("PURGE @{topic} {before}\n").into_bytes(),
                );
            }
            action if of_queues(action) => self.use_queue(number, connection, &what, action),
            "creates a topic" => {
                let topic = self.topic(&what);
                self.create(number, connection, &topic);
            }
            DELETE => drop(self.delete(number, connection, &what)),
            ANEW => {
                let topic = self.delete(number, connection, &what);
                self.create(number, connection, &topic);
                let level = self.level(&what);
                let (bytes, binary) = (self.plan.payload_bytes as usize, false);
                let message = Message { topic, level, bytes, binary, batch: None, producer: None, sent: None };
                self.publish(number, connection, message);
            }
            DELETE_GROUP => {
                let (topic, group) = (self.topic(&what), self.group(&what));
                self.clients[number].delivered.remove(&(topic.clone(), group.clone()));
                let line = format!("DELETE @{topic} {group}\n").into_bytes();
                self.ask(number, connection, &topic, Ask::DeleteGroup { group }, line);
            }
            "alters a topic" => {
                let topic = self.topic(&what);
                // A value that nobody else asks for.
                let value = (1 << 40) + u64::from(action) * self.clients.len() as u64 + number as u64;
                let line = format!("ALTER @{topic} {SETTING}={value}\n");
                self.ask(number, connection, &topic, Ask::Alter(value), line.into_bytes());
            }
            "says hello" => {
                self.ask(number, connection, "default", Ask::Word("HELLO"), b"HELLO\n".to_vec());
                self.ask(number, connection, "default", Ask::Word("PONG"), b"PING\n".to_vec());
            }
            "hangs up" => {
                self.clients[number].ended = true;
                if self.one_of(&what, "by QUIT", 2, &yes_or_no) == 1 {
                    self.ask(number, connection, "default", Ask::Word("BYE"), b"QUIT\n".to_vec());
                } else {
                    self.end_input(connection);
                }
            }
            "resets its connection" => self.reset(connection)?,
            "vanishes" => {
                if let Some(conn) = self.conns.get_mut(&connection) {
                    conn.owner = Owner::Nobody;
                }
                self.client_disconnected(number);
            }
            "sends garbage" => self.garbage(number, connection, &what),
            "sends an oversized line" => {
                let length = self.plan.config.payload_bytes_max as usize + 5000;
                let lines: [(&str, &[&str]); 2] = [("NOISE ", &["LINE_TOO_LONG"]), ("PUB DURABLE ", &["TOO_LARGE"])];
                let (verb, codes) = lines[self.one_of(&what, "verb", 2, &|picked| lines[picked].0.trim().to_owned())];
                let mut line = verb.as_bytes().to_vec();
                line.resize(length, b'x');
                line.push(b'\n');
                self.ask(number, connection, "default", Ask::Wrong(codes), line);
            }
            "loses the framing" => {
                let lines: [&[u8]; 3] = [b"PUBN DURABLE many\n", b"GET / HTTP/1.1\r\n", b"PUBN DURABLE 3\nabcX\n"];
                let picked = self.one_of(&what, "how", 3, &|picked| {
                    ["no length", "HTTP", "no newline behind the body"][picked].to_owned()
                });
                self.clients[number].ended = true;
                self.ask(number, connection, "default", Ask::Fatal(&["BAD_REQUEST"]), lines[picked].to_vec());
            }
            "stops reading for a while" => {
                let waits = [20 * MILLIS, SECONDS, 120 * SECONDS];
                let wait = waits[self.one_of(&what, "how long", 3, &|picked| format!("{} ms", waits[picked] / MILLIS))];
                if let Some(conn) = self.conns.get_mut(&connection) {
                    conn.takes = false;
                }
                // It goes on reading with its next turn; until then it asks for as much as it may.
                let topic = self.topic(&what);
                for _ in 0..12 {
                    let line = format!("READ @{topic} 0 1000\n").into_bytes();
                    self.ask(number, connection, &topic, Ask::Read { offset: 0, max: 1000 }, line);
                }
                self.in_this_life(self.now_ns + wait, Todo::TakeAgain(connection));
            }
            "leaves a request unfinished" => {
                let pieces: [&[u8]; 3] = [b"PUBN DURABLE 100\nnot all of", b"FETCH g", b"PUB DURABLE no newline"];
                let piece =
                    pieces[self.one_of(&what, "which", 3, &|picked| ["body", "fetch", "pub"][picked].to_owned())];
                self.send(connection, piece.to_vec());
                self.clients[number].ended = true;
                self.end_input(connection);
            }
            "publishes too much" => {
                let limit = self.plan.config.payload_bytes_max as usize;
                let line = format!("PUBN DURABLE {}\n{}\n", limit + 1, "x".repeat(limit + 1));
                self.ask(number, connection, "default", Ask::Wrong(&["TOO_LARGE"]), line.into_bytes());
            }
            "publishes a frame" => self.publish_frame(number, connection, &what),
            _ => {}
        }
        Ok(())
    }

    // ---- requests -----------------------------------------------------------------------------------------------------

    fn publish_new(&mut self, number: usize, connection: ConnectionId, what: &str, level: &'static str, binary: bool) {
        let topic = self.topic(what);
        let full = self.plan.payload_bytes as usize;
        let limit = self.plan.config.payload_bytes_max as usize
            - if binary { 40.min(self.plan.config.payload_bytes_max as usize / 2) } else { 0 };
        let sizes = [full, 1, full / 3 + 1, full * 2, limit.min(20_000)];
        let bytes = sizes[self.one_of(what, "size", sizes.len(), &|picked| {
            ["usual", "tiny", "small", "large", "the limit"][picked].to_owned()
        })];
        let bytes = bytes.min(limit);
        let message = Message { topic, level, bytes, binary, batch: None, producer: None, sent: None };
        self.publish(number, connection, message);
    }

    fn publish_with_id(&mut self, number: usize, connection: ConnectionId, what: &str) {
        let producers = self.plan.producers.clone();
        let words = |picked: usize| producers[picked].to_string();
        // A tape that was made smaller may ask for it in a world without producers.
        let picked = if producers.is_empty() { 0 } else { self.one_of(what, "producer", producers.len(), &words) };
        let producer = Some(producers.get(picked).copied().unwrap_or(0));
        if self.plan.batches && self.one_of(what, "as a batch", 3, &|picked| yes_or_no(picked / 2)) == 2 {
            return self.publish_batch(number, connection, what, producer);
        }
        let (topic, level) = (self.topic(what), self.level(what));
        let message = Message { topic, level, bytes: 20, binary: true, batch: None, producer, sent: None };
        self.publish(number, connection, message);
    }

    /// Sends something again that has an id, whoever sent it first and whatever it was answered: the last, or one further back.
    fn repeat(&mut self, number: usize, connection: ConnectionId, what: &str) {
        let sent: Vec<usize> = self.checker.model.with_ids().rev().take(8).collect();
        let picks = [0, 1, 3, 7];
        let picked =
            picks[self.one_of(what, "which", picks.len(), &|picked| format!("{} before the last", picks[picked]))];
        let level = self.level(what);
        let Some(first) = sent.get(picked.min(sent.len().saturating_sub(1))).copied() else { return };
        let topic = self.checker.model.attempts[first].topic.clone();
        let message = Message { topic, level, bytes: 0, binary: true, batch: None, producer: None, sent: Some(first) };
        self.publish(number, connection, message);
    }

    fn publish_batch(&mut self, number: usize, connection: ConnectionId, what: &str, producer: Option<u64>) {
        let (topic, level) = (self.topic(what), self.level(what));
        let config = &self.plan.config;
        let (count_max, batch_bytes_max) = (config.queue_messages as usize, config.publish_batch_bytes_max as usize);
        let payload_max = (config.payload_bytes_max as usize).min(batch_bytes_max - 4).min(20_000);
        let full = self.plan.payload_bytes as usize;
        let counts = [3, 1, 2, 10, 40];
        let count = counts[self.one_of(what, "messages", counts.len(), &|picked| counts[picked].to_string())];
        let sizes = [full / 3 + 1, 1, full, payload_max];
        let words = |picked: usize| ["small", "tiny", "usual", "the limit"][picked].to_owned();
        let bytes = sizes[self.one_of(what, "size", sizes.len(), &words)].min(payload_max);
        // A payload is never shorter than the number in it.
        let count = count.min(count_max).min(batch_bytes_max / (4 + bytes.max(NUMBER_BYTES_MAX))).max(1);
        let message = Message { topic, level, bytes, binary: true, batch: Some(count), producer, sent: None };
        self.publish(number, connection, message);
    }

    fn publish(&mut self, number: usize, connection: ConnectionId, mut message: Message) {
        // To a topic that was made anew everything is new.
        let first = match message.sent.filter(|first| self.checker.model.is_current(*first)) {
            Some(first) => first,
            None => self.new_attempts(&message),
        };
        message.sent = self.checker.model.attempts[first].repeats.as_ref().map(|_| first);
        let line = self.publish_request(first, message.level, message.binary);
        let topic = message.topic.clone();
        self.request(number, connection, &topic, Ask::Publish(first), line, Flight::Publish(message));
    }

    /// Makes up what is to be published: a message, or those of a batch. Says the number of the first.
    fn new_attempts(&mut self, message: &Message) -> usize {
        let Message { topic, bytes, binary, .. } = message;
        let first = self.checker.model.attempts.len();
        for at in first..first + message.batch.unwrap_or(1) {
            let mut attempt = Attempt::new(topic, payload(at, *bytes, *binary));
            attempt.batch = message.batch.map(|count| (first, count));
            if *binary && message.batch.is_none() && *bytes > 0 {
                attempt.key = (!at.is_multiple_of(3)).then(|| vec![b'k', (at % 251) as u8, b' ']);
                if at.is_multiple_of(2) {
                    attempt.headers.push((b"h-1".to_vec(), format!("v{}=%", at % 7).into_bytes()));
                }
            }
            if at == first {
                attempt.repeats = message.producer.map(|producer| Repeats::new((producer, sequence_of(at))));
            }
            self.checker.model.attempts.push(attempt);
        }
        first
    }

    pub(super) fn publish_request(&self, first: usize, level: &str, binary: bool) -> Vec<u8> {
        let model = &self.checker.model;
        let Attempt { topic, payload, key, headers, batch, repeats, .. } = &model.attempts[first];
        let mut id = String::new();
        if let Some(Repeats { id: (producer, sequence), .. }) = repeats {
            write!(id, " id={producer}:{sequence}").expect("a string");
        }
        if let Some((_, count)) = batch {
            let mut body = Vec::new();
            for attempt in &model.attempts[model.together(first)] {
                body.extend_from_slice(&(attempt.payload.len() as u32).to_be_bytes());
                body.extend_from_slice(&attempt.payload);
            }
            let head = format!("PUBB @{topic} {level} {count} {}{id}\n", body.len());
            return [head.as_bytes(), &body, b"\n"].concat();
        }
        if !binary {
            return [format!("PUB @{topic} {level} ").as_bytes(), payload, b"\n"].concat();
        }
        let mut head = format!("PUBN @{topic} {level} {}", payload.len());
        if let Some(key) = key {
            write!(head, " key={}", percent(key)).expect("a string");
        }
        head.push_str(&id);
        for (name, value) in headers {
            write!(head, " h.{}={}", String::from_utf8_lossy(name), percent(value)).expect("a string");
        }
        head.push('\n');
        [head.as_bytes(), payload, b"\n"].concat()
    }

    /// A payload that holds what looks like a frame (crash story: the smuggled frame).
    fn publish_frame(&mut self, number: usize, connection: ConnectionId, what: &str) {
        let kinds = ["a frame of another log", "zeros", "a frame without a checksum"];
        let kind = self.one_of(what, "kind", kinds.len(), &|picked| kinds[picked].to_owned());
        let at = self.checker.model.attempts.len();
        let mut payload = format!("m{at}.").into_bytes();
        // In another sector than the header of the frame around it, so that a power loss can take the one and leave the other.
        let before = [0, 600];
        let before = before[self.one_of(what, "bytes before it", 2, &|picked| before[picked].to_string())];
        let ahead = [2, 0, 10];
        let ahead = ahead[self.one_of(what, "offsets ahead", 3, &|picked| ahead[picked].to_string())];
        match kind {
            1 => payload.extend_from_slice(&[0; 60]),
            _ => {
                // The best that a client can guess: the first segment of a log whose id is not random.
                let guess = plimsoll_core::record::Salt::new(&[0; 16], 0);
                let salt = if kind == 0 { guess } else { plimsoll_core::record::Salt(0) };
                // No higher than the bytes before it can hold, or nobody would believe it.
                let offset = self.checker.model.log(&self.plan.topics[0]).firm_end + ahead;
                payload.resize(payload.len() + before, b'-');
                let body = [&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], b"inner"].concat();
                plimsoll_core::record::seal(&mut payload, salt, offset, &body);
            }
        }
        payload.truncate(self.plan.config.payload_bytes_max as usize);
        let mut line = format!("PUBN DURABLE {}\n", payload.len()).into_bytes();
        line.extend_from_slice(&payload);
        line.push(b'\n');
        self.checker.model.attempts.push(Attempt::new("default", payload));
        self.ask(number, connection, "default", Ask::Publish(at), line);
    }

    fn fetch(&mut self, number: usize, connection: ConnectionId, what: &str, wait_ms: u64) {
        let topic = self.topic(what);
        let (group, max) = (self.group(what), self.maximum(what));
        let meta = self.one_of(what, "meta", 2, &yes_or_no) == 1;
        let line = format!("FETCH @{topic} {group} {max} {wait_ms}{}\n", if meta { " META" } else { "" });
        let flight = Flight::Fetch(topic.clone(), group.clone());
        self.request(number, connection, &topic, Ask::Fetch { group, max }, line.into_bytes(), flight);
    }

    /// Does something with a work queue.
    fn use_queue(&mut self, number: usize, connection: ConnectionId, what: &str, action: &str) {
        match action {
            "reserves" => self.reserve(number, connection, what, 0),
            "reserves and waits" => self.reserve(number, connection, what, 30),
            "confirms all" | "confirms some" | "confirms one after the other" | "gives back" | "extends" => {
                let held: Vec<((String, String), Vec<u64>)> =
                    self.clients[number].reserved.iter().map(|(key, all)| (key.clone(), all.clone())).collect();
                if held.is_empty() {
                    return;
                }
                let words = |picked: usize| format!("{} of {}", held[picked].0.1, held[picked].0.0);
                let (key, all) = held[self.one_of(what, "queue", held.len(), &words)].clone();
                // From the end: what was reserved last.
                let some = [all.len(), 1, all.len().div_ceil(2)];
                let picked =
                    self.one_of(what, "which", some.len(), &|picked| ["all", "one", "half"][picked].to_owned());
                let some = if action == "confirms all" { all.len() } else { some[picked] };
                let (left, taken) = all.split_at(all.len() - some);
                let keeps = action == "extends";
                let entry = self.clients[number].reserved.entry(key.clone()).or_default();
                *entry = if keeps { all.clone() } else { left.to_vec() };
                if entry.is_empty() {
                    self.clients[number].reserved.remove(&key);
                }
                match action {
                    "gives back" => {
                        let delays = [0, 20, 3000];
                        let words = |picked: usize| format!("{} ms", delays[picked]);
                        let delay_ms = delays[self.one_of(what, "delay", delays.len(), &words)];
                        taken.iter().for_each(|offset| self.give_back(number, connection, &key, *offset, delay_ms));
                    }
                    "extends" => {
                        let lease_ms = self.lease(what);
                        for offset in taken {
                            let (topic, queue) = key.clone();
                            let line = format!("EXTEND @{topic} {queue} {offset} {lease_ms}\n");
                            let ask = Ask::Extend { queue, offset: *offset, lease_ms };
                            self.ask(number, connection, &topic, ask, line.into_bytes());
                        }
                    }
                    "confirms one after the other" => {
                        taken.iter().for_each(|offset| self.confirm(number, connection, &key, vec![*offset]));
                    }
                    _ => self.confirm(number, connection, &key, taken.to_vec()),
                }
            }
            "confirms what it does not have" => {
                let key = (self.topic(what), self.queue(what));
                let mut offsets = vec![self.offset(what, &key.0)];
                offsets.extend(self.clients[number].reserved.get(&key).and_then(|all| all.last()));
                self.confirm(number, connection, &key, offsets);
            }
            "gives back what it does not have" => {
                let key = (self.topic(what), self.queue(what));
                let offset = self.offset(what, &key.0);
                self.give_back(number, connection, &key, offset, 0);
            }
            "steals" => {
                let (topic, queue) = (self.topic(what), self.queue(what));
                let offset = self.offset(what, &topic);
                let line = format!("STEAL @{topic} {queue} {offset}\n");
                self.ask(number, connection, &topic, Ask::Steal { queue, offset }, line.into_bytes());
            }
            "asks for what is pending" => {
                let (topic, queue) = (self.topic(what), self.queue(what));
                self.ask(number, connection, &topic, Ask::Queues, format!("QUEUES @{topic}\n").into_bytes());
                let (from, max) = (self.offset(what, &topic), self.maximum(what));
                for (from, max) in [(0, 1000), (from, max)] {
                    let line = format!("PENDING @{topic} {queue} {from} {max}\n");
                    let ask = Ask::Pending { queue: queue.clone(), from, max };
                    self.ask(number, connection, &topic, ask, line.into_bytes());
                }
            }
            _ => {
                let (topic, queue) = (self.topic(what), self.queue(what));
                let line = format!("DELETE @{topic} {queue}\n");
                self.ask(number, connection, &topic, Ask::DeleteQueue { queue }, line.into_bytes());
            }
        }
    }

    fn reserve(&mut self, number: usize, connection: ConnectionId, what: &str, wait_ms: u64) {
        let (topic, queue, max, lease_ms) = (self.topic(what), self.queue(what), self.maximum(what), self.lease(what));
        let meta = if self.one_of(what, "meta", 2, &yes_or_no) == 0 { " META" } else { "" };
        let line = format!("RESERVE @{topic} {queue} {max} {wait_ms} {lease_ms}{meta}\n");
        let flight = Flight::Reserve(topic.clone(), queue.clone());
        // No longer than the broker lets it wait, nor than until it is told that no more is coming.
        let wait_ms = wait_ms.min(self.plan.config.fetch_wait_ms_max);
        let ask = Ask::Reserve { queue, max, wait_ms, lease_ms };
        self.request(number, connection, &topic, ask, line.into_bytes(), flight);
    }

    fn confirm(&mut self, number: usize, connection: ConnectionId, key: &(String, String), mut offsets: Vec<u64>) {
        offsets.sort_unstable();
        offsets.dedup();
        let (topic, queue) = key.clone();
        let words: String = offsets.iter().map(|offset| format!(" {offset}")).collect();
        let line = format!("CONFIRM @{topic} {queue}{words}\n");
        self.ask(number, connection, &topic, Ask::Confirm { queue, offsets }, line.into_bytes());
    }

    fn give_back(
        &mut self,
        number: usize,
        connection: ConnectionId,
        key: &(String, String),
        offset: u64,
        delay_ms: u64,
    ) {
        let (topic, queue) = key.clone();
        let delay = if delay_ms > 0 { format!(" {delay_ms}") } else { String::new() };
        let line = format!("ABORT @{topic} {queue} {offset}{delay}\n");
        self.ask(number, connection, &topic, Ask::Abort { queue, offset, delay_ms }, line.into_bytes());
    }

    fn acknowledge(&mut self, number: usize, connection: ConnectionId, what: &str, first: bool) {
        let held: Vec<((String, String), u64)> =
            self.clients[number].delivered.iter().map(|(key, last)| (key.clone(), *last)).collect();
        if held.is_empty() {
            return;
        }
        let picked =
            self.one_of(what, "group", held.len(), &|picked| format!("{} of {}", held[picked].0.1, held[picked].0.0));
        let ((topic, group), last) = held[picked].clone();
        let offset = if first { last / 2 } else { last };
        self.send_ack(number, connection, topic, group, offset);
    }

    fn send_ack(&mut self, number: usize, connection: ConnectionId, topic: String, group: String, offset: u64) {
        let line = format!("ACK @{topic} {group} {offset}\n");
        let flight = Flight::Ack(topic.clone(), group.clone(), offset);
        self.request(number, connection, &topic, Ask::Ack { group, offset }, line.into_bytes(), flight);
    }

    fn seek(&mut self, number: usize, connection: ConnectionId, what: &str) {
        let topic = self.topic(what);
        let group = self.group(what);
        let targets = ["start", "end", "an offset", "a time"];
        let picked = self.one_of(what, "to", targets.len(), &|picked| targets[picked].to_owned());
        let (to, word) = match picked {
            // Where a log begins that is being purged is the answer's to say.
            0 if self.plan.moves_start() => (None, "start".to_owned()),
            0 => (Some(0), "start".to_owned()),
            1 => (None, "end".to_owned()),
            2 => {
                let offset = self.offset(what, &topic);
                (Some(offset), offset.to_string())
            }
            _ => (None, format!("time={}", self.now().wall_ms - 5)),
        };
        self.clients[number].delivered.remove(&(topic.clone(), group.clone()));
        let line = format!("SEEK @{topic} {group} {word}\n");
        self.ask(number, connection, &topic, Ask::Seek { group, to }, line.into_bytes());
    }

    fn create(&mut self, number: usize, connection: ConnectionId, topic: &str) {
        self.ask(number, connection, topic, Ask::Create, format!("CREATE @{topic}\n").into_bytes());
    }

    /// Asks for a topic to be deleted, and says which.
    fn delete(&mut self, number: usize, connection: ConnectionId, what: &str) -> String {
        // Nearly always one that can be.
        let (default, others) = self.plan.topics.split_first().expect("there is a default topic");
        let mut topics = [others, others, others, others].concat();
        topics.push(default.clone());
        let topic = topics[self.one_of(what, "topic", topics.len(), &|picked| topics[picked].clone())].clone();
        let ask = if topic == self.plan.topics[0] { Ask::Wrong(&["BAD_REQUEST"]) } else { Ask::Delete };
        self.ask(number, connection, &topic, ask, format!("DELETE @{topic}\n").into_bytes());
        topic
    }

    fn garbage(&mut self, number: usize, connection: ConnectionId, what: &str) {
        let lines: [(&[u8], &[&str]); 9] = [
            (b"NONSENSE\n", &["BAD_REQUEST"]),
            (b"\xff\x00\xfe\n", &["BAD_REQUEST"]),
            (b"PUB NEVER x\n", &["BAD_REQUEST"]),
            (b"FETCH g 0 0\n", &["BAD_REQUEST"]),
            (b"READ x y\n", &["BAD_REQUEST"]),
            (b"PUB @../etc DURABLE x\n", &["BAD_NAME", "BAD_REQUEST"]),
            (b"PUB DURABLE \n", &["EMPTY", "BAD_REQUEST"]),
            (b"ACK g 99999999999999999999999\n", &["BAD_REQUEST"]),
            // The second message is missing; or there may be no batch of two.
            (b"PUBB DURABLE 2 5\n\0\0\0\x01x\n", &["BAD_REQUEST", "TOO_LARGE"]),
        ];
        // A decision is one line.
        let words =
            |picked: usize| String::from_utf8_lossy(lines[picked].0).lines().next().unwrap_or("").trim().to_owned();
        let (line, codes) = lines[self.one_of(what, "line", lines.len(), &words)];
        self.ask(number, connection, "default", Ask::Wrong(codes), line.to_vec());
    }

    fn ask(&mut self, number: usize, connection: ConnectionId, topic: &str, ask: Ask, line: Vec<u8>) {
        self.request(number, connection, topic, ask, line, Flight::Other);
    }

    fn request(
        &mut self,
        number: usize,
        connection: ConnectionId,
        topic: &str,
        ask: Ask,
        line: Vec<u8>,
        flight: Flight,
    ) {
        let shown = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let shown = String::from_utf8_lossy(&shown[..shown.len().min(60)]).into_owned();
        self.trace.note(self.now_ns, Lane::Client(number), format_args!("sends {shown}"));
        self.trace.bytes(&line);
        self.checker.asked(connection, topic, ask);
        self.clients[number].in_flight.push_back(flight);
        self.send(connection, line);
    }

    // ---- choices ------------------------------------------------------------------------------------------------------

    fn one_of(&mut self, what: &str, which: &str, n: usize, answer: &dyn Fn(usize) -> String) -> usize {
        self.d.choose(Concern::Clients, n, format_args!("{what}, {which}"), answer)
    }

    fn level(&mut self, what: &str) -> &'static str {
        LEVELS[self.one_of(what, "level", LEVELS.len(), &|picked| LEVELS[picked].to_owned())]
    }

    fn topic(&mut self, what: &str) -> String {
        let topics = self.plan.topics.clone();
        topics[self.one_of(what, "topic", topics.len(), &|picked| topics[picked].clone())].clone()
    }

    fn group(&mut self, what: &str) -> String {
        let groups = self.plan.groups.clone();
        // A tape that was made smaller may ask for one in a world without groups.
        let words = |picked: usize| groups[picked].clone();
        let picked = if groups.is_empty() { 0 } else { self.one_of(what, "group", groups.len(), &words) };
        groups.get(picked).cloned().unwrap_or("g0".to_owned())
    }

    fn queue(&mut self, what: &str) -> String {
        let queues = self.plan.queues.clone();
        // A tape that was made smaller may ask for one in a world without work queues.
        let words = |picked: usize| queues[picked].clone();
        let picked = if queues.is_empty() { 0 } else { self.one_of(what, "queue", queues.len(), &words) };
        queues.get(picked).cloned().unwrap_or("q0".to_owned())
    }

    fn lease(&mut self, what: &str) -> u64 {
        // What is packed was confirmed by somebody, pauses or not.
        let leases = if self.plan.packs { [60_000, 60_000, 60_000, 1000] } else { [60_000, 1, 40, 1000] };
        leases[self.one_of(what, "lease", leases.len(), &|picked| format!("{} ms", leases[picked]))]
    }

    fn maximum(&mut self, what: &str) -> u64 {
        let maxima = [10, 1, 3, 1000];
        maxima[self.one_of(what, "most", maxima.len(), &|picked| maxima[picked].to_string())]
    }

    fn offset(&mut self, what: &str, topic: &str) -> u64 {
        let end = self.checker.model.log(topic).firm_end;
        let offsets = [end / 2, 0, end.saturating_sub(1), end, end + 5];
        offsets[self.one_of(what, "offset", offsets.len(), &|picked| {
            ["in the middle", "the first", "the last", "the end", "beyond the end"][picked].to_owned()
        })]
    }

    // ---- answers ------------------------------------------------------------------------------------------------------

    pub(super) fn client_received(&mut self, number: usize, _: ConnectionId, seen: &Seen) {
        let client = &mut self.clients[number];
        match (client.in_flight.pop_front(), seen) {
            (Some(Flight::Fetch(topic, group)), Seen::Messages(delivery)) => {
                if let Some(next) = delivery.next() {
                    client.delivered.insert((topic, group), next - 1);
                }
            }
            (Some(Flight::Reserve(topic, queue)), Seen::Messages(delivery)) if !delivery.messages.is_empty() => {
                let offsets = delivery.messages.iter().map(|message| message.offset);
                let reserved = client.reserved.entry((topic, queue)).or_default();
                reserved.extend(offsets);
                reserved.sort_unstable();
                reserved.dedup();
            }
            // It tries again, but not for ever.
            (Some(Flight::Publish(message)), Seen::Error(code))
                if (code == "QUEUE_FULL" || code == "DISK_FULL") && client.again.len() < 4 =>
            {
                client.again.push_back(message);
            }
            (Some(Flight::Ack(topic, group, offset)), Seen::Error(code)) if code == "HALTED" => {
                client.repeat_ack(topic, group, offset);
            }
            _ => {}
        }
        self.next_turn(number, self.plan.pause_ns);
    }

    pub(super) fn client_disconnected(&mut self, number: usize) {
        let client = &mut self.clients[number];
        client.connection = None;
        client.ended = false;
        client.delivered.clear();
        client.reserved.clear();
        for flight in std::mem::take(&mut client.in_flight) {
            match flight {
                Flight::Publish(message) if client.again.len() < 20 => client.again.push_back(message),
                Flight::Ack(topic, group, offset) => client.repeat_ack(topic, group, offset),
                _ => {}
            }
        }
        self.next_turn(number, MILLIS);
    }

    // ---- the calm -----------------------------------------------------------------------------------------------------

    /// Everybody reads again, and those who vanished are noticed.
    pub(super) fn calm_clients(&mut self) {
        for client in &mut self.clients {
            client.done = true;
        }
        let connections: Vec<(ConnectionId, Owner)> = self.conns.iter().map(|(id, conn)| (*id, conn.owner)).collect();
        for (connection, owner) in connections {
            match owner {
                Owner::Nobody => self.in_this_life(self.now_ns, Todo::ResetNow(connection)),
                _ => self.take_again(connection),
            }
        }
    }

    /// Whether a process is ready and has answered everybody.
    pub(super) fn is_quiet(&self) -> bool {
        self.broker.is_some()
            && self.checker.is_ready()
            && !self.halting
            && !self.checker.is_stopping()
            && self.conns.keys().all(|connection| self.checker.unanswered(*connection) == 0)
    }

    /// The storm's clients leave.
    pub(super) fn send_clients_home(&mut self) {
        let connections: Vec<ConnectionId> = self.conns.keys().copied().collect();
        for connection in connections {
            self.in_this_life(self.now_ns, Todo::ResetNow(connection));
        }
    }
}

/// Whether an action makes a group: not in worlds that have none.
fn of_groups(action: &str) -> bool {
    ["fetches", "fetches and waits", "seeks"].contains(&action) || action.starts_with("acknowledges ")
}

/// Whether an action is about work queues: only in worlds that have them.
fn of_queues(action: &str) -> bool {
    let first = ACTIONS.iter().position(|(name, _)| *name == "reserves").expect("it is there");
    ACTIONS[first..].iter().any(|(name, _)| *name == action)
}

/// What stands before the bytes of a payload: `m<number>.`
const NUMBER_BYTES_MAX: usize = 12;

/// Sequences that go up, and not by one: nothing hangs on their order.
fn sequence_of(attempt: usize) -> u32 {
    (attempt as u32 * 3) ^ 1
}

fn yes_or_no(picked: usize) -> String {
    ["no", "yes"][picked].to_owned()
}

/// The payload of an attempt: its number, and bytes that follow from it. Text for PUB; anything for PUBN.
fn payload(attempt: usize, bytes: usize, binary: bool) -> Vec<u8> {
    let mut out = format!("m{attempt}.").into_bytes();
    let style = attempt % 5;
    let mut x = attempt as u64 + 1;
    while out.len() < bytes {
        x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let drawn = (x >> 33) as u8;
        out.push(match (binary, style) {
            (true, 0) => b'\n',
            (true, 1) => 0,
            (true, 2) => 0xff,
            (true, _) => drawn,
            (false, _) => b'a' + drawn % 26,
        });
    }
    out
}

fn percent(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, byte| {
        if byte.is_ascii_alphanumeric() {
            out.push(*byte as char);
        } else {
            write!(out, "%{byte:02x}").expect("a string");
        }
        out
    })
}
