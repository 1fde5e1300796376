//! SIGKILL in the middle of a mixed load, again and again on one data directory: what was acknowledged is there, and what
//! consumers saw stays true.
//!
//! All levels, two topics, groups that fetch and acknowledge, rolls every few dozen messages, and starts that are killed, too.

use crate::broker::Broker;
use crate::draws::Draws;
use plimsoll::client::{Client, Delivered, Options, Outcome, Publication};
use plimsoll_core::protocol::Level;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

const TOPICS: [&str; 2] = ["orders", "payments"];
const PRODUCERS: usize = 3;
const IN_FLIGHT: u64 = 64;

/// What the brokers of [`under_mixed_load`] run with: small segments, so that rolls are among what is interrupted.
pub const SETTINGS: &[&str] = &["--segment-bytes", "8192", "--auto-create", "--space-ahead", "2048"];

/// What happened in [`under_mixed_load`].
#[derive(Clone, Copy, Default, Debug)]
pub struct Tally {
    /// Brokers that were killed while they served.
    pub kills: u64,
    /// Starts that were killed, in recovery for the most part.
    pub killed_starts: u64,
    /// Messages that must be there: acknowledged WRITTEN or DURABLE, or delivered once.
    pub stored: u64,
    /// What the groups have acknowledged.
    pub committed: u64,
}

/// Kills a broker this often, and each time compares what the next one has with all that clients were told: P1 and what
/// WRITTEN promises after a crash of the process; P2, P4, P5.
///
/// `start` starts a broker with [`SETTINGS`] on the data directory. Panics with the seed where something is missing,
/// different, or was never sent.
pub fn under_mixed_load(seed: u64, kills: u64, data: &Path, start: impl Fn(&Path) -> Broker) -> Tally {
    let start = || {
        let broker = start(data);
        for line in broker.lines().iter().filter(|line| line.starts_with("RECOVERY ")) {
            assert!(line.contains(" status=OK ") || line.contains(" status=TRUNCATED_TAIL "), "seed {seed}: {line}");
        }
        broker
    };
    let mut draws = Draws::new(seed);
    let mut known: BTreeMap<&str, Known> = TOPICS.iter().map(|topic| (*topic, Known::default())).collect();
    let mut tally = Tally { kills, ..Tally::default() };
    for kill in 0..kills {
        let broker = start();
        for (topic, known) in &mut known {
            known.check(&broker, topic, &format!("seed {seed}, after kill {kill}"));
        }
        let replies_until_kill = 1 + draws.below(1500);
        let seeds: Vec<u64> = (0..PRODUCERS).map(|_| draws.below(u64::MAX)).collect();
        for (topic, learnt) in run_until_killed(&broker, kill, replies_until_kill, &seeds) {
            known.get_mut(topic).unwrap().learn(learnt);
        }
        drop(broker);
        if draws.below(3) == 0 {
            Broker::start_and_kill(data, SETTINGS, Duration::from_micros(draws.below(30_000)));
            tally.killed_starts += 1;
        }
    }
    let broker = start();
    for (topic, known) in &mut known {
        known.check(&broker, topic, &format!("seed {seed}, at the end"));
        tally.stored += known.stored.len() as u64;
        tally.committed += known.committed;
    }
    assert!(broker.stop().success());
    tally
}

/// What clients were told about a topic.
#[derive(Default)]
struct Known {
    /// Every value that was ever sent.
    sent: BTreeSet<String>,
    /// What must stand at an offset: acknowledged WRITTEN or DURABLE, or delivered once.
    stored: BTreeMap<u64, String>,
    /// The largest ACKED that was received.
    committed: u64,
    /// The largest that was asked for.
    wished: u64,
}

impl Known {
    fn learn(&mut self, other: Known) {
        for (offset, value) in other.stored {
            let before = self.stored.insert(offset, value.clone());
            assert!(before.is_none_or(|before| before == value), "offset {offset} was acknowledged for two messages");
        }
        self.sent.extend(other.sent);
        self.committed = self.committed.max(other.committed);
        self.wished = self.wished.max(other.wished);
    }

    /// Compares all that a broker has with what is known.
    fn check(&mut self, broker: &Broker, topic: &str, when: &str) {
        let mut client = Client::connect(broker.address(), Options::default()).unwrap();
        if !client.topics().unwrap().iter().any(|name| name == topic) {
            assert!(self.stored.is_empty() && self.committed == 0, "{when}: topic {topic} is gone");
            return;
        }
        let text = |value| String::from_utf8(value).expect("a value that was sent");
        let found: Vec<String> = broker.read_all(Some(topic)).into_iter().map(text).collect();
        for (offset, value) in &self.stored {
            assert_eq!(found.get(*offset as usize), Some(value), "{when}: offset {offset} of {topic}");
        }
        let mut once = BTreeSet::new();
        for value in &found {
            assert!(self.sent.contains(value), "{when}: nobody sent {value:?}");
            assert!(once.insert(value), "{when}: {value:?} is stored twice");
        }
        let status = client.status(Some(topic)).unwrap();
        assert_eq!((status.start, status.durable, status.next), (0, found.len() as u64, found.len() as u64), "{when}");
        let groups = client.groups(Some(topic)).unwrap();
        let committed = groups.iter().find(|group| group.group == "readers").map_or(0, |group| group.committed);
        assert!(
            (self.committed..=self.wished.max(self.committed)).contains(&committed) && committed <= status.durable,
            "{when}: {topic} is committed to {committed}; acknowledged was {}, asked for {}",
            self.committed,
            self.wished
        );
        // Read by everybody from now on: it must stay.
        self.stored.extend((0..).zip(found));
    }
}

/// Producers and consumers work until the broker has answered so many publishes, and then it is killed. Answers what
/// they learnt.
fn run_until_killed(broker: &Broker, round: u64, replies: u64, seeds: &[u64]) -> Vec<(&'static str, Known)> {
    let answered = AtomicU64::new(0);
    thread::scope(|scope| {
        let mut workers = Vec::new();
        for (producer, seed) in seeds.iter().enumerate() {
            let answered = &answered;
            let topic = TOPICS[producer % TOPICS.len()];
            let name = format!("{round}-{producer}");
            workers.push((topic, scope.spawn(move || produce(broker.address(), topic, &name, *seed, answered))));
        }
        for topic in TOPICS {
            workers.push((topic, scope.spawn(move || consume(broker.address(), topic))));
        }
        while answered.load(Ordering::Relaxed) < replies {
            thread::sleep(Duration::from_micros(100));
        }
        broker.kill();
        workers.into_iter().map(|(topic, worker)| (topic, worker.join().expect("a worker"))).collect()
    })
}

/// Publishes at all levels until the connection breaks.
fn produce(address: &str, topic: &str, name: &str, seed: u64, answered: &AtomicU64) -> Known {
    let mut draws = Draws::new(seed);
    let mut known = Known::default();
    let mut in_flight: VecDeque<String> = VecDeque::new();
    // The kill may come before this.
    let Ok(mut client) = Client::connect(address, Options::default()) else { return known };
    for n in 0.. {
        let value = format!("{name}-{n}-{}", "p".repeat(draws.below(300) as usize));
        let level = Level::ALL[draws.below(3) as usize];
        if client.publish_nowait(Some(topic), level, &Publication::new(value.as_bytes())).is_err() {
            break;
        }
        known.sent.insert(value.clone());
        in_flight.push_back(value);
        while client.in_flight() >= IN_FLIGHT || client.has_reply() {
            let value = in_flight.pop_front().unwrap();
            match client.recv_reply() {
                Some(Outcome::Stored { offset, level }) => {
                    answered.fetch_add(1, Ordering::Relaxed);
                    if level >= Level::Written {
                        known.stored.insert(offset, value);
                    }
                }
                Some(Outcome::Unknown) => {}
                // Three producers may fill the queue together; nothing of it is stored then.
                Some(Outcome::Refused(error)) if error.code == "QUEUE_FULL" => {
                    known.sent.remove(&value);
                }
                other => panic!("{other:?}"),
            }
        }
        if client.loss().is_some() {
            break;
        }
    }
    known
}

/// Delivers to the group and acknowledges until the connection breaks.
fn consume(address: &str, topic: &str) -> Known {
    let mut known = Known::default();
    let Ok(mut client) = Client::connect(address, Options::default()) else { return known };
    loop {
        let last = match client.fetch(Some(topic), "readers", 20, 1000, false) {
            Ok(batch) => {
                for delivered in batch.iter() {
                    let Delivered::Message(message) = delivered else { panic!("{delivered:?}") };
                    known.stored.insert(message.offset, String::from_utf8(message.value.to_vec()).unwrap());
                }
                known.stored.last_key_value().map(|(offset, _)| *offset)
            }
            Err(error) if error.is(plimsoll_core::error::Code::NoTopic) => {
                thread::sleep(Duration::from_millis(1));
                continue;
            }
            Err(_) => return known,
        };
        if let Some(last) = last {
            known.wished = last + 1;
            match client.ack(Some(topic), "readers", last) {
                Ok(committed) => known.committed = committed,
                Err(_) => return known,
            }
        }
    }
}
