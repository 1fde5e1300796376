//! The main job on its real input: the order events go through the real binary, which is killed at random moments, and come
//! out whole and in order at a consumer group that is killed with it.
//!
//! What a killed process shows is P1, P2, P5 and P6 as far as the page cache survives, and that recovery can be interrupted
//! (P9). That the same holds when power fails, the simulator shows.

use plimsoll::client::{Client, Delivered, Error, Options, Outcome, Publication};
use plimsoll_core::protocol::Level;
use plimsoll_tests::broker::{Broker, run};
use plimsoll_tests::draws::Draws;
use plimsoll_tests::workspace;
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::time::Duration;

/// How many publishes are in flight when the kill comes.
const WINDOW: u64 = 64;
/// Lives that must end by a kill for the test to mean something.
const KILLS_MIN: u32 = 8;

#[test]
fn with_default_settings() {
    main_job(1, &[]);
}

#[test]
fn across_many_rolls() {
    main_job(2, &["--segment-bytes", "32768"]);
}

#[test]
fn with_padded_forces_and_no_space_ahead() {
    main_job(3, &["--segment-bytes", "65536", "--pad-forces", "4096", "--space-ahead", "0"]);
}

fn main_job(seed: u64, args: &[&str]) {
    println!("seed {seed}, {args:?}");
    let mut draws = Draws::new(seed);
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let data = scratch.path().join("data");
    let file = std::fs::read_to_string(workspace().join("tests/data/orders-events.jsonl")).expect("the events");
    let events: Vec<&[u8]> = file.lines().map(str::as_bytes).collect();

    let acknowledged = publish_all(&mut draws, &data, args, &events);
    let log = read_all(&data, args);
    check_log(&log, &acknowledged, &events);
    consume_all(&mut draws, &data, args, &log);

    // Nothing of all this has hurt what was there, and the files say so themselves.
    assert!(read_all(&data, args) == log);
    let verified = run(["verify".as_ref(), data.as_os_str()]);
    assert_eq!(verified.status.code(), Some(0), "{verified:?}");
}

/// A start, often after others that did not get far.
fn start(draws: &mut Draws, data: &Path, args: &[&str]) -> Broker {
    while draws.below(3) == 0 {
        Broker::start_and_kill(data, args, Duration::from_micros(draws.below(20_000)));
    }
    Broker::start(data, args)
}

/// Publishes every event until its `DURABLE` reply has come. Returns the events' indexes by the offset in the reply.
fn publish_all(draws: &mut Draws, data: &Path, args: &[&str], events: &[&[u8]]) -> BTreeMap<u64, usize> {
    let mut acknowledged: BTreeMap<u64, usize> = BTreeMap::new();
    let mut todo: VecDeque<usize> = (0..events.len()).collect();
    let mut kills = 0;
    while !todo.is_empty() {
        let broker = start(draws, data, args);
        let mut client = Client::connect(broker.address(), Options::default()).expect("it is ready");
        let kill_at = 1 + draws.below(2 * events.len() as u64 / u64::from(KILLS_MIN) / 2);
        let kill_after = Duration::from_micros(draws.below(3000));
        let mut in_flight: VecDeque<usize> = VecDeque::new();
        // Sent, and nobody knows what became of them: to be repeated, in their order and before all others.
        let mut unknown: Vec<usize> = Vec::new();
        let mut replies = 0;
        std::thread::scope(|scope| {
            while unknown.is_empty() && !(todo.is_empty() && in_flight.is_empty()) {
                if let Some(&event) = todo.front().filter(|_| client.in_flight() < WINDOW) {
                    let sent = client.publish_nowait(None, Level::Durable, &Publication::new(events[event]));
                    if let Err(Error::Connect { .. }) = sent {
                        break;
                    }
                    sent.expect("a valid request");
                    in_flight.extend(todo.pop_front());
                    continue;
                }
                let event = *in_flight.front().expect("something is in flight");
                match client.recv_reply().expect("something is in flight") {
                    Outcome::Stored { offset, level } => {
                        assert_eq!(level, Level::Durable);
                        assert_eq!(acknowledged.insert(offset, event), None, "offset {offset} was given twice");
                        in_flight.pop_front();
                    }
                    Outcome::Unknown => unknown.extend(in_flight.drain(..)),
                    Outcome::Refused(error) => panic!("event {event}: {error}"),
                }
                replies += 1;
                if replies == kill_at {
                    kills += 1;
                    scope.spawn(|| {
                        std::thread::sleep(kill_after);
                        broker.kill();
                    });
                }
            }
        });
        for event in unknown.into_iter().chain(in_flight).rev() {
            todo.push_front(event);
        }
    }
    println!("{} acknowledged, {kills} kills", acknowledged.len());
    assert!(kills >= KILLS_MIN, "only {kills} kills");
    assert_eq!(acknowledged.len(), events.len());
    acknowledged
}

/// Every message of the topic, by `READ`, in order; checks that offsets are dense.
fn read_all(data: &Path, args: &[&str]) -> Vec<Vec<u8>> {
    let broker = Broker::start(data, args);
    let log = broker.read_all(None);
    assert_eq!(broker.stop().code(), Some(0));
    log
}

/// P1 and P2: what was acknowledged stands at its offset; every event is there; duplicates come only from repeating what
/// was unknown, and without them the order is that of the producer.
fn check_log(log: &[Vec<u8>], acknowledged: &BTreeMap<u64, usize>, events: &[&[u8]]) {
    for (&offset, &event) in acknowledged {
        assert!(log.get(offset as usize).is_some_and(|value| value == events[event]), "offset {offset}, event {event}");
    }
    let mut firsts: Vec<&[u8]> = Vec::new();
    let mut duplicates = 0;
    for value in log {
        match firsts.iter().rposition(|first| first == value) {
            None => firsts.push(value),
            Some(_) => duplicates += 1,
        }
    }
    println!("{} stored, {duplicates} of them twice", log.len());
    assert!(firsts == events, "the order, or something that nobody has published");
}

/// Consumes as a group, acknowledging, through kills, and checks P5 and P6.
fn consume_all(draws: &mut Draws, data: &Path, args: &[&str], log: &[Vec<u8>]) {
    let end = log.len() as u64;
    // What an `ACKED` has answered, what was asked for at most, and everything up to what was delivered.
    let (mut acked, mut asked, mut delivered_to) = (0, 0, 0);
    let mut kills = 0;
    while acked < end {
        let broker = start(draws, data, args);
        let mut client = Client::connect(broker.address(), Options::default()).expect("it is ready");
        let kill_at = 1 + draws.below(end / 25 / u64::from(KILLS_MIN));
        let kill_after = Duration::from_micros(draws.below(3000));
        let mut expected = None;
        std::thread::scope(|scope| {
            for round in 1.. {
                if round == kill_at {
                    kills += 1;
                    scope.spawn(|| {
                        std::thread::sleep(kill_after);
                        broker.kill();
                    });
                }
                let batch = match client.fetch(None, "billing", 1 + draws.below(49), 0, false) {
                    Err(error) => {
                        assert!(error.is_indeterminate() || matches!(error, Error::Connect { .. }), "{error}");
                        break;
                    }
                    Ok(batch) => batch,
                };
                for delivered in batch.iter() {
                    let Delivered::Message(message) = delivered else { panic!("{delivered:?}") };
                    // A connection begins at the committed offset, which is at least what was answered and at most what was asked.
                    let next = expected.unwrap_or(message.offset);
                    assert_eq!(message.offset, next, "out of order");
                    assert!(expected.is_some() || (acked..=asked).contains(&next), "{next} is not {acked}..={asked}");
                    assert!(message.value == log[next as usize], "offset {next} has changed");
                    expected = Some(next + 1);
                    delivered_to = delivered_to.max(next + 1);
                }
                // The first that this connection was sent and everything behind it, or what an unanswered ACK of an earlier
                // one has committed.
                let Some(last) = expected else {
                    assert!(batch.is_empty() && asked == end, "nothing came, but {asked} is not the end {end}");
                    acked = end;
                    break;
                };
                asked = asked.max(last);
                match client.ack(None, "billing", last - 1) {
                    Ok(committed) => {
                        assert_eq!(committed, last);
                        acked = committed;
                        if acked == end {
                            break;
                        }
                    }
                    Err(error) => {
                        assert!(error.is_indeterminate() || matches!(error, Error::Connect { .. }), "{error}");
                        break;
                    }
                }
            }
        });
    }
    println!("{delivered_to} delivered, {kills} kills");
    assert!(kills >= KILLS_MIN, "only {kills} kills");
    assert_eq!(delivered_to, end);
}
