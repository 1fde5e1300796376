//! A stage for crash stories: a broker on a simulated disk, a script that stops it at the dangerous moment, a crash whose
//! outcome is named in words, and a book of what the clients were promised.

use bytes::Bytes;
use plimsoll_core::broker::Broker;
use plimsoll_core::config::Config;
use plimsoll_core::effect::{ConnectionId, Effect, EffectId, FileId, Halt, HaltKind, IoErrorKind, ReplyPart};
use plimsoll_core::event::{Event, Now};
use plimsoll_core::layout;
use plimsoll_core::log::topic_file::TopicToml;
use plimsoll_core::log::watermark::{self, Slot};
use plimsoll_core::record::Salt;
use plimsoll_sim::disk::{Fault, Options, Profile, Replay, SimDisk, Vandal};
use std::collections::{BTreeMap, VecDeque};

/// More effects than any story needs before it is quiet.
const STEPS_MAX: usize = 100_000;
/// More states than any story leaves open after a power loss.
const STATES_MAX: u64 = 100_000;
/// No broker gets so far with its own ids.
const PERSON: u64 = 1 << 40;

/// A promise that was broken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Broken {
    /// Its number in docs/promises.md.
    pub(crate) promise: &'static str,
    /// What happened.
    pub(crate) what: String,
}

/// How a scene of a story ends.
pub(crate) type Told = Result<(), Broken>;

pub(crate) fn broken(promise: &'static str, what: impl Into<String>) -> Told {
    Err(Broken { promise, what: what.into() })
}

type Matcher = Box<dyn Fn(&Effect, &str) -> bool>;

/// The stage.
pub(crate) struct Scene {
    pub(crate) disk: SimDisk,
    config: Config,
    broker: Broker,
    now: Now,
    events: VecDeque<Event>,
    failure: Option<(Matcher, Fault)>,
    received: BTreeMap<ConnectionId, Vec<u8>>,
    connections: u64,
    person: u64,
    pub(crate) halted: Option<Halt>,
    stopped: bool,
    /// Messages that were answered DURABLE, by offset.
    durable: BTreeMap<u64, String>,
    /// What readers were sent.
    delivered: BTreeMap<u64, String>,
    /// What groups were told ACKED.
    acked: BTreeMap<String, u64>,
}

impl Scene {
    /// A broker in front of an empty disk.
    pub(crate) fn new(config: Config, profile: &'static Profile) -> Scene {
        Scene {
            disk: SimDisk::new(Options::new(profile)),
            broker: Broker::new(config.clone()).expect("a valid configuration"),
            config,
            now: Now { monotonic_ns: 1_000_000_000, wall_ms: 1_700_000_000_000 },
            events: VecDeque::new(),
            failure: None,
            received: BTreeMap::new(),
            connections: 0,
            person: PERSON,
            halted: None,
            stopped: false,
            durable: BTreeMap::new(),
            delivered: BTreeMap::new(),
            acked: BTreeMap::new(),
        }
    }

    /// The same after its first start.
    pub(crate) fn started(config: Config, profile: &'static Profile) -> Scene {
        let mut scene = Scene::new(config, profile);
        scene.events.push_back(Event::Start);
        scene.run();
        assert_eq!(scene.halted, None, "the first start");
        scene
    }

    // ---- acting -------------------------------------------------------------------------------------------------------

    /// A new client.
    pub(crate) fn connect(&mut self) -> ConnectionId {
        self.connections += 1;
        let connection = ConnectionId(self.connections);
        self.events.push_back(Event::Connected { connection, peer: String::from("sim") });
        connection
    }

    /// A client sends something; nothing runs yet.
    pub(crate) fn send(&mut self, connection: ConnectionId, bytes: &[u8]) {
        self.events.push_back(Event::Received { connection, bytes: Bytes::copy_from_slice(bytes) });
    }

    /// A new client sends one request and waits for the reply.
    pub(crate) fn ask(&mut self, request: &str) -> String {
        let client = self.connect();
        self.ask_as(client, request)
    }

    /// A client sends requests and waits for the replies.
    pub(crate) fn ask_as(&mut self, client: ConnectionId, request: &str) -> String {
        self.send(client, format!("{request}\n").as_bytes());
        self.run();
        self.replies(client)
    }

    /// A client goes away.
    pub(crate) fn disconnect(&mut self, connection: ConnectionId) {
        self.events.push_back(Event::Disconnected { connection });
        self.run();
    }

    /// What a client has been sent since the last time.
    pub(crate) fn replies(&mut self, client: ConnectionId) -> String {
        let bytes = std::mem::take(self.received.entry(client).or_default());
        String::from_utf8_lossy(&bytes).trim_end().to_owned()
    }

    /// Publishes one message and notes what is promised by the reply.
    pub(crate) fn publish(&mut self, level: &str, payload: &str) {
        let reply = self.ask(&format!("PUB {level} {payload}"));
        self.note_published(payload, &reply);
    }

    /// Notes what a reply to `PUB` promises.
    pub(crate) fn note_published(&mut self, payload: &str, reply: &str) {
        let words: Vec<&str> = reply.split(' ').collect();
        let ["OK", offset, level] = words[..] else { panic!("{payload} was answered {reply}") };
        if level == "DURABLE" {
            self.durable.insert(offset.parse().expect("an offset"), payload.to_owned());
        }
    }

    /// Fetches what there is for a group and acknowledges up to an offset; says what was answered.
    pub(crate) fn fetch_and_ack(&mut self, group: &str, offset: u64) -> String {
        let client = self.connect();
        self.ask_as(client, &format!("FETCH {group} 100 0"));
        let reply = self.ask_as(client, &format!("ACK {group} {offset}"));
        if let Some(committed) = reply.strip_prefix("ACKED ") {
            self.acked.insert(group.to_owned(), committed.parse().expect("an offset"));
        }
        self.disconnect(client);
        reply
    }

    /// Executes effects until all is quiet.
    pub(crate) fn run(&mut self) {
        let ran_to = self.run_until(|_, _| false);
        assert!(!ran_to);
    }

    /// Executes effects until one that matches is next: it is not executed. `false`: there was none.
    pub(crate) fn run_until(&mut self, matches: impl Fn(&Effect, &str) -> bool) -> bool {
        for _ in 0..STEPS_MAX {
            self.handle_events();
            if self.is_over() {
                return false;
            }
            let Some(id) = self.disk.runnable().first().copied() else { return false };
            let effect = self.effect(id);
            let path = self.path_of(&effect);
            if matches(&effect, &path) {
                return true;
            }
            let failure = self.failure.take_if(|(fails, _)| fails(&effect, &path));
            let result = self.disk.execute(id, failure.map(|(_, fault)| fault));
            self.events.push_back(Event::Completed { id, result });
        }
        panic!("the broker is not quiet after {STEPS_MAX} effects");
    }

    /// Executes effects until none is left but such that match: they take their time.
    pub(crate) fn run_all_but(&mut self, matches: impl Fn(&Effect, &str) -> bool) {
        loop {
            self.handle_events();
            let others = |id: &EffectId| {
                let effect = self.effect(*id);
                !matches(&effect, &self.path_of(&effect))
            };
            let Some(id) = self.disk.runnable().into_iter().find(others) else { return };
            let result = self.disk.execute(id, None);
            self.events.push_back(Event::Completed { id, result });
        }
    }

    /// As [`Scene::run_until`], and there must be one.
    pub(crate) fn run_to(&mut self, matches: impl Fn(&Effect, &str) -> bool) {
        assert!(self.run_until(matches), "the story never comes to this effect");
    }

    /// Executes exactly the next effect.
    pub(crate) fn step(&mut self) {
        let id = self.disk.runnable()[0];
        let result = self.disk.execute(id, None);
        self.events.push_back(Event::Completed { id, result });
    }

    /// The next effect that matches fails.
    pub(crate) fn fail(&mut self, matches: impl Fn(&Effect, &str) -> bool + 'static, fault: Fault) {
        self.failure = Some((Box::new(matches), fault));
    }

    /// Lets time pass until an effect that matches is next.
    pub(crate) fn wait_for(&mut self, matches: impl Fn(&Effect, &str) -> bool) {
        loop {
            let wake = self.broker.next_wake().expect("the story never comes to this effect");
            self.now.monotonic_ns = wake.max(self.now.monotonic_ns);
            self.events.push_back(Event::Wake);
            if self.run_until(&matches) {
                return;
            }
        }
    }

    // ---- crashing -----------------------------------------------------------------------------------------------------

    /// The process is killed between two effects: the page cache stays.
    pub(crate) fn kill(&mut self) {
        self.disk.kill(&mut Replay::default());
        self.forget_process();
    }

    /// Power fails. Everything survives but what `picks` names: a question that the disk asks ("sector 0 of …", "rename of …")
    /// and the answer to it. A question that is not asked is none that this broker leaves open. Says what was decided.
    pub(crate) fn lose_power(&mut self, picks: &[(&str, &str)]) -> Vec<String> {
        let mut path = Vec::new();
        let decisions = loop {
            let (disk, decisions) = self.disk.crash_state(&path);
            let Some(decision) = decisions.get(path.len()) else {
                self.disk = disk;
                break decisions;
            };
            let wanted = picks.iter().find(|(question, _)| decision.question == *question);
            path.push(0);
            let Some((_, answer)) = wanted else { continue };
            while self.disk.crash_state(&path).1[path.len() - 1].answer != *answer {
                let at = path.len() - 1;
                path[at] += 1;
                assert!(path[at] < decision.of, "{} has no answer {answer}", decision.question);
            }
        };
        self.forget_process();
        decisions.iter().filter(|decision| decision.picked != 0).map(ToString::to_string).collect()
    }

    /// Power fails, in every way that this moment leaves open. Says what went wrong in the first of them that breaks a promise.
    pub(crate) fn lose_power_in_every_way(&mut self) -> Told {
        self.lose_power_and(Scene::check)
    }

    /// The same, with something else that is to hold afterwards.
    pub(crate) fn lose_power_and(&mut self, holds: impl Fn(&mut Scene) -> Told) -> Told {
        let before = self.disk.clone();
        for state in before.crash_states(STATES_MAX).expect("a moment with few states") {
            self.disk = state.disk;
            self.forget_process();
            self.start().and_then(|()| holds(self)).map_err(|broken| {
                let lost = before.crash_state(&state.picks).1.into_iter().filter(|decision| decision.picked != 0);
                let lost: Vec<String> = lost.map(|decision| decision.to_string()).collect();
                Broken { what: format!("{} ({})", broken.what, lost.join(", ")), ..broken }
            })?;
        }
        Ok(())
    }

    /// A process that has stopped or halted is gone.
    fn forget_process(&mut self) {
        self.broker = Broker::new(self.config.clone()).expect("a valid configuration");
        self.events.clear();
        self.received.clear();
        self.failure = None;
        self.halted = None;
        self.stopped = false;
        self.now.wall_ms += 60_000;
    }

    // ---- recovering ---------------------------------------------------------------------------------------------------

    /// A new process begins; nothing runs yet.
    pub(crate) fn begin_start(&mut self) {
        self.events.push_back(Event::Start);
    }

    /// A new process starts.
    pub(crate) fn start(&mut self) -> Told {
        let before = self.disk.tree();
        self.begin_start();
        self.run();
        self.check_start(&before)
    }

    /// Judges how a start ended.
    fn check_start(&self, before: &BTreeMap<String, Option<Vec<u8>>>) -> Told {
        let damaged = self.disk.is_damaged();
        match &self.halted {
            None if damaged => broken("P7", "a damaged log was served"),
            Some(halt) if !damaged => {
                broken("P8", format!("after crashes alone the start was refused: {}", halt.reason))
            }
            Some(halt) if halt.kind == HaltKind::Corrupt && self.disk.tree() != *before => {
                broken("P7", "the start was refused, and something was changed")
            }
            _ => Ok(()),
        }
    }

    /// Stops the broker and starts it again.
    pub(crate) fn stop(&mut self) {
        self.events.push_back(Event::Stop);
        self.run();
        assert!(self.stopped, "the broker does not stop");
        self.forget_process();
        self.disk.kill(&mut Replay::default());
    }

    /// Everything that was promised is there.
    pub(crate) fn check(&mut self) -> Told {
        let log = self.read_all()?;
        for (promise, why, promised) in
            [("P1", "was answered DURABLE", &self.durable), ("P4", "was delivered", &self.delivered)]
        {
            for (offset, payload) in promised {
                if log.get(offset) != Some(payload) {
                    return broken(promise, format!("offset {offset} {why}, and now it is {:?}", log.get(offset)));
                }
            }
        }
        for (group, acked) in self.acked.clone() {
            let client = self.connect();
            let found = self.ask_as(client, &format!("FETCH {group} 1 0"));
            self.disconnect(client);
            let next = match found.strip_prefix("MSG ") {
                Some(message) => message.split(' ').next().expect("an offset").parse().expect("an offset"),
                None => log.len() as u64,
            };
            if next < acked {
                return broken("P5", format!("group {group} was told ACKED {acked} and goes on at {next}"));
            }
        }
        self.delivered = log;
        Ok(())
    }

    /// Everything that readers see.
    pub(crate) fn read_all(&mut self) -> Result<BTreeMap<u64, String>, Broken> {
        let reply = self.ask("READ 0 1000");
        let lines: Vec<&str> = reply.lines().collect();
        let [messages @ .., last] = &lines[..] else { panic!("READ was not answered") };
        if !last.starts_with("END ") {
            return Err(Broken { promise: "P1", what: format!("READ was answered {reply}") });
        }
        let mut log = BTreeMap::new();
        for message in messages.iter().filter(|line| !line.starts_with("GAP ")) {
            let (offset, payload) = message.strip_prefix("MSG ").and_then(|rest| rest.split_once(' ')).expect("a MSG");
            log.insert(offset.parse().expect("an offset"), payload.to_owned());
        }
        Ok(log)
    }

    // ---- preparing ----------------------------------------------------------------------------------------------------

    /// Somebody who is not the broker lets the disk do something, without a force.
    pub(crate) fn by_hand(&mut self, effects: impl IntoIterator<Item = Effect>) {
        for effect in effects {
            self.person += 1;
            let id = EffectId(self.person);
            self.disk.submit(id, effect);
            self.disk.execute(id, None).expect("an effect that works");
        }
    }

    /// Writes a slot of the default topic's watermark file as anchoring would, and forces it if `forced`.
    pub(crate) fn write_slot(&mut self, position: u64, change: impl FnOnce(&mut Slot), forced: bool) {
        let path = "topics/default/watermark";
        let file = FileId(PERSON + self.person);
        let slots = watermark::Watermark::read(&self.disk.read_file(path).expect("a watermark file"));
        let mut slot = slots.current().expect("a whole slot");
        slot.sequence += 1;
        slot.clean = false;
        change(&mut slot);
        let bytes = Bytes::copy_from_slice(&watermark::encode(&slot));
        self.by_hand([Effect::Open { file, path: path.into() }, Effect::Write { file, position, bytes }]);
        if forced {
            self.by_hand([Effect::Force { file }]);
        }
        self.by_hand([Effect::CloseFile { file }]);
    }

    /// Time passes.
    pub(crate) fn wait_ms(&mut self, ms: u64) {
        self.now.monotonic_ns += ms * 1_000_000;
        self.now.wall_ms += ms as i64;
    }

    /// Damages the disk.
    pub(crate) fn vandal(&mut self) -> Vandal<'_> {
        Vandal::new(&mut self.disk)
    }

    /// The bases of the default topic's segments.
    pub(crate) fn bases(&self) -> Vec<u64> {
        let tree = self.disk.tree();
        tree.keys().filter_map(|path| layout::parse_segment(path.strip_prefix("topics/default/log/")?)).collect()
    }

    /// The salt of one of them, which no client knows.
    pub(crate) fn salt(&self, base: u64) -> Salt {
        let toml = self.disk.read_file("topics/default/topic.toml").expect("topic.toml");
        Salt::new(&TopicToml::parse(&toml).expect("a topic file").log_id, base)
    }

    // ---- inside -------------------------------------------------------------------------------------------------------

    fn is_over(&self) -> bool {
        self.halted.is_some() || self.stopped
    }

    fn effect(&self, id: EffectId) -> Effect {
        self.disk.pending().find(|(pending, _)| *pending == id).expect("a pending effect").1.clone()
    }

    fn path_of(&self, effect: &Effect) -> String {
        let name = |file| self.disk.path_of(file).unwrap_or_default();
        SimDisk::path_in(effect, name).unwrap_or_else(|| panic!("not an effect on the disk: {effect:?}"))
    }

    fn handle_events(&mut self) {
        loop {
            let due = |broker: &Broker, now: Now| broker.next_wake().is_some_and(|wake| wake <= now.monotonic_ns);
            let event = match self.events.pop_front() {
                Some(event) => event,
                None if !self.is_over() && due(&self.broker, self.now) => Event::Wake,
                None => return,
            };
            let mut emitted: Vec<(EffectId, Effect)> = Vec::new();
            self.broker.handle(self.now, event, &mut emitted);
            for (id, effect) in emitted {
                self.take(id, effect);
            }
        }
    }

    fn take(&mut self, id: EffectId, effect: Effect) {
        match effect {
            Effect::Reply { connection, part: ReplyPart::Bytes(bytes) } => {
                self.events.push_back(Event::Sent { connection, bytes: bytes.len() as u64 });
                self.received.entry(connection).or_default().extend_from_slice(&bytes);
            }
            Effect::Reply { part: ReplyPart::FileRange { .. }, .. } => panic!("no story reads raw frames"),
            Effect::Halt(halt) => self.halted = Some(halt),
            Effect::Stopped => self.stopped = true,
            Effect::Report(_) | Effect::SetReading { .. } | Effect::Disconnect { .. } => {}
            effect => self.disk.submit(id, effect),
        }
    }
}

/// A fault of an effect that is no force of a file.
pub(crate) fn error() -> Fault {
    Fault::Error(IoErrorKind::Other)
}
