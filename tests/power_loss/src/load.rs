//! A broker under load on the device: what clients did and were told, and the log of what the device was given meanwhile.

use crate::broker::{Broker, Program};
use crate::device::Disk;
use crate::history::{Confirmed, History, Safe, Step};
use crate::store::{BlockStore, Log};
use plimsoll::client::{Client, Delivered, Options, Outcome, Publication};
use plimsoll_core::protocol::{Level, SeekTo};
use plimsoll_sim::disk::Seeded;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Small segments, so that it rolls all the time.
pub const SETTINGS: &[&str] = &[
    "--segment-bytes",
    "8192",
    "--space-ahead",
    "4096",
    "--ballast-bytes",
    "65536",
    "--idle-anchor",
    "20ms",
    "--max-payload",
    "4096",
    "--journal-bytes",
    "1024",
    "--max-reserved",
    "100000",
];
/// Who reads, in every topic.
pub const GROUP: &str = "readers";
/// Who shares the messages of a topic.
pub const WORKERS: &str = "workers";
/// Longer than any run.
pub const LEASE_MS: u64 = 3_600_000;
const IN_FLIGHT: usize = 8;

/// What a session of a broker does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// Publishing at all levels, consuming, acknowledging, seeking, making topics; in work queues reserving, confirming, giving back.
    Everything,
    /// Publishing DURABLE alone, so that all that is asked of the disk is forces and rolls.
    DurablePublishes,
}

/// A recording.
pub struct Recording {
    /// What the device was given.
    pub log: Log,
    /// What clients know.
    pub history: History,
    /// Before this position nothing was tried out.
    pub from: usize,
}

/// Runs the brokers of these sessions on a mounted disk, one after the other, each until `replies` publishes were answered; all but the
/// last end in a clean stop, in a kill, or in a kill followed by one in recovery; the last is killed.
///
/// # Errors
/// When a broker does not start.
pub fn record(
    disk: &Disk,
    program: &Program,
    history: History,
    work: Work,
    sessions: Range<u64>,
    replies: u64,
    seed: u64,
) -> Result<Recording, String> {
    let data = disk.at().join("data");
    let store = &disk.store;
    let from = store.position();
    let mut history = history;
    let mut draws = Seeded::new(seed, 2);
    store.set_overtaking(true);
    for session in sessions.clone() {
        let broker = Broker::start(program, &data, SETTINGS).map_err(|refused| format!("{refused:?}"))?;
        let address = broker.address.clone();
        let worker = Worker { store, address: &address, answered: &AtomicU64::new(0), over: &AtomicBool::new(false) };
        let mut topics = vec!["orders", "payments", "late"];
        if session < 2 || work == Work::DurablePublishes {
            topics.pop();
        }
        let mut made = History::default();
        for topic in &topics {
            worker.make(topic, &mut made);
        }
        worker.look_at_groups(&topics, &mut made);
        history.add(made);
        let learnt = std::thread::scope(|scope| {
            let worker = &worker;
            let mut threads = Vec::new();
            for topic in &topics {
                for producer in 0..2 {
                    let (name, seed) = (format!("{session}-{producer}"), draws.next_u64());
                    threads.push(scope.spawn(move || worker.produce(topic, &name, work, seed)));
                }
                if work == Work::Everything {
                    let seed = draws.next_u64();
                    threads.push(scope.spawn(move || worker.consume(topic, seed)));
                    for _ in 0..2 {
                        let seed = draws.next_u64();
                        threads.push(scope.spawn(move || worker.work(topic, seed)));
                    }
                }
            }
            while worker.answered.load(Ordering::Relaxed) < replies {
                std::thread::sleep(Duration::from_micros(200));
            }
            // At a clean stop clients are waited for; at a kill they are in the middle of it.
            let clean = session + 1 < sessions.end && draws.chance(1, 3);
            if clean {
                worker.over.store(true, Ordering::Relaxed);
                let learnt = threads.into_iter().map(|thread| thread.join().expect("a client")).collect::<Vec<_>>();
                assert!(broker.stop().is_some_and(|status| status.success()), "a clean stop");
                return learnt;
            }
            broker.kill();
            threads.into_iter().map(|thread| thread.join().expect("a client")).collect()
        });
        learnt.into_iter().for_each(|learnt| history.add(learnt));
        if session + 1 < sessions.end && draws.chance(1, 2) {
            Broker::start_and_kill(program, &data, SETTINGS, Duration::from_micros(draws.below(40_000)));
        }
    }
    store.set_overtaking(false);
    history.nothing_comes_again()?;
    Ok(Recording { log: store.log(), history, from })
}

struct Worker<'a> {
    store: &'a BlockStore,
    address: &'a str,
    answered: &'a AtomicU64,
    over: &'a AtomicBool,
}

impl Worker<'_> {
    fn connect(&self) -> Option<Client> {
        Client::connect(self.address, Options::default()).ok()
    }

    fn make(&self, topic: &str, history: &mut History) {
        let Some(mut client) = self.connect() else { return };
        // It may be there from the session before, made by a broker that was killed before it could say so.
        if client.create(topic).is_ok() || client.topics().is_ok_and(|topics| topics.iter().any(|name| name == topic)) {
            history.topics.push((self.store.position(), topic.to_owned()));
        }
    }

    /// A restart has stored what is committed anew before it tells anybody.
    fn look_at_groups(&self, topics: &[&str], history: &mut History) {
        let Some(mut client) = self.connect() else { return };
        for topic in topics {
            let asked = self.store.position();
            let Ok(groups) = client.groups(Some(topic)) else { continue };
            let committed = groups.iter().find(|group| group.group == GROUP).map_or(0, |group| group.committed);
            let step = Step { asked, committed, answered: Some(self.store.position()) };
            history.progress.entry(((*topic).to_owned(), GROUP.to_owned())).or_default().push(step);
        }
    }

    /// Publishes until the connection breaks or all is over.
    fn produce(&self, topic: &str, name: &str, work: Work, seed: u64) -> History {
        let mut history = History::default();
        let mut draws = Seeded::new(seed, 0);
        let Some(mut client) = self.connect() else { return history };
        let mut in_flight: VecDeque<String> = VecDeque::new();
        for n in 0.. {
            let over = self.over.load(Ordering::Relaxed);
            if !over {
                let length = if draws.chance(1, 20) { draws.below(3000) } else { draws.below(300) };
                let value = format!("{topic}-{name}-{n}-{}", "x".repeat(length as usize));
                let level = match work {
                    Work::Everything => Level::ALL[draws.below(3) as usize],
                    Work::DurablePublishes => Level::Durable,
                };
                history.sent.push((self.store.position(), topic.to_owned(), value.clone()));
                if client.publish_nowait(Some(topic), level, &Publication::new(value.as_bytes())).is_err() {
                    return history;
                }
                client.flush();
                in_flight.push_back(value);
            }
            let most = if over { 0 } else { draws.below(IN_FLIGHT as u64) as usize };
            while in_flight.len() > most {
                let value = in_flight.pop_front().expect("one is in flight");
                match client.recv_reply() {
                    Some(Outcome::Stored { offset, level }) => {
                        if level == Level::Durable {
                            let (position, topic) = (self.store.position(), topic.to_owned());
                            history.safe.push(Safe { position, topic, offset, value, acknowledged: true });
                        }
                        self.answered.fetch_add(1, Ordering::Relaxed);
                    }
                    Some(Outcome::Unknown) => {}
                    other => panic!("{other:?}"),
                }
            }
            if over || client.loss().is_some() {
                return history;
            }
        }
        history
    }

    /// Fetches, acknowledges and now and then seeks, until the connection breaks or all is over.
    fn consume(&self, topic: &str, seed: u64) -> History {
        let mut history = History::default();
        let mut draws = Seeded::new(seed, 0);
        let Some(mut client) = self.connect() else { return history };
        let mut steps = Vec::new();
        let mut end = 0;
        while !self.over.load(Ordering::Relaxed) {
            let Ok(batch) = client.fetch(Some(topic), GROUP, 1 + draws.below(20), 20, false) else { break };
            let mut last = None;
            for delivered in batch.iter() {
                let Delivered::Message(message) = delivered else { panic!("{delivered:?}") };
                let value = String::from_utf8(message.value.to_vec()).expect("what was sent is text");
                let (position, topic) = (self.store.position(), topic.to_owned());
                history.safe.push(Safe { position, topic, offset: message.offset, value, acknowledged: false });
                last = Some(message.offset);
            }
            let Some(last) = last else { continue };
            end = end.max(last + 1);
            let asked = self.store.position();
            let (committed, answer) = if draws.chance(1, 8) {
                let to = draws.below(end + 1);
                (to, client.seek(Some(topic), GROUP, SeekTo::Offset(to)))
            } else {
                (last + 1, client.ack(Some(topic), GROUP, last))
            };
            match answer {
                Ok(answer) => {
                    assert_eq!(answer, committed, "an ACK or a SEEK of a delivered offset");
                    steps.push(Step { asked, committed, answered: Some(self.store.position()) });
                }
                Err(_) => {
                    steps.push(Step { asked, committed, answered: None });
                    break;
                }
            }
        }
        history.progress.insert((topic.to_owned(), GROUP.to_owned()), steps);
        history
    }

    /// Takes messages of the work queue, confirms some of them, gives some back and keeps some until the connection is lost, now and then on
    /// purpose; until the broker is gone or all is over.
    fn work(&self, topic: &str, seed: u64) -> History {
        let mut history = History::default();
        let mut draws = Seeded::new(seed, 0);
        while !self.over.load(Ordering::Relaxed) {
            let Some(mut client) = self.connect() else { break };
            // Each round one message more may be kept.
            while !self.over.load(Ordering::Relaxed) && !draws.chance(1, 16) {
                if self.work_once(topic, &mut client, &mut draws, &mut history).is_none() {
                    break;
                }
            }
            if client.loss().is_some() {
                break;
            }
        }
        history
    }

    /// `None` when the connection is lost.
    fn work_once(&self, topic: &str, client: &mut Client, draws: &mut Seeded, history: &mut History) -> Option<()> {
        let asked = self.store.position();
        let batch = client.reserve(Some(topic), WORKERS, 1 + draws.below(8), 20, LEASE_MS, false).ok()?;
        let (mut done, mut given_back) = (Vec::new(), Vec::new());
        for delivered in batch.iter() {
            let Delivered::Message(message) = delivered else { panic!("{delivered:?}") };
            let (position, offset) = (self.store.position(), message.offset);
            let value = String::from_utf8(message.value.to_vec()).expect("what was sent is text");
            history.safe.push(Safe { position, topic: topic.to_owned(), offset, value, acknowledged: false });
            history.handed_out.push((asked, topic.to_owned(), offset));
            match draws.below(8) {
                0 => {}
                1 | 2 => given_back.push(offset),
                _ => done.push(offset),
            }
        }
        for offset in given_back {
            client.abort(Some(topic), WORKERS, offset, draws.below(2) * 5).ok()?;
        }
        if !done.is_empty() {
            let asked = self.store.position();
            let answer = client.confirm(Some(topic), WORKERS, &done);
            let answered = answer.is_ok().then(|| self.store.position());
            history.confirmed.push(Confirmed { asked, topic: topic.to_owned(), offsets: done, answered });
            answer.ok()?;
        }
        Some(())
    }
}
