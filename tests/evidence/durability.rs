//! What a crash of the process leaves, and what it costs to make sure of that.

use crate::rig::{Run, compare, events};
use plimsoll::client::{Client, Options, Outcome, Publication};
use plimsoll_core::protocol::Level;
use plimsoll_tests::broker::Broker;
use plimsoll_tests::kills;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const PRODUCERS: usize = 4;
const EACH: usize = 100;

/// P1 with gathered forces.
pub(crate) fn group_commit(run: &Run) -> String {
    let (found, forces) = four_producers(run, &[]);
    assert!(forces < 300, "{forces} forces: nothing was gathered");
    format!("{found}; fewer than 300 forces for 400 messages")
}

/// The same with a force for each message.
pub(crate) fn force_each(run: &Run) -> String {
    let (found, forces) = four_producers(run, &["--group-commit", "off"]);
    format!("{found}; {forces} forces")
}

/// Producers that wait for each reply publish 400 events; the broker is killed when all are acknowledged. Answers what is
/// there afterwards, and how many forces it took.
fn four_producers(run: &Run, args: &[&str]) -> (String, u64) {
    let events = events();
    let data = run.data();
    let broker = run.broker(&data, args);
    let begun = Instant::now();
    let acknowledged: BTreeMap<u64, &str> = thread::scope(|scope| {
        let producers: Vec<_> = (0..PRODUCERS)
            .map(|producer| {
                let mine = events[..PRODUCERS * EACH].iter().skip(producer).step_by(PRODUCERS);
                let address = broker.address();
                scope.spawn(move || {
                    let mut client = Client::connect(address, Options::default()).expect("it is ready");
                    mine.map(|event| (publish(&mut client, event), event.as_str())).collect::<Vec<_>>()
                })
            })
            .collect();
        producers.into_iter().flat_map(|producer| producer.join().expect("a producer")).collect()
    });
    let elapsed = begun.elapsed();
    let mut client = Client::connect(broker.address(), Options::default()).expect("it is ready");
    let status = client.status(None).expect("a status");
    run.note(format!(
        "forces={} forceMeanUs={} elapsedMs={}",
        status.forces,
        status.force_mean_us,
        elapsed.as_millis()
    ));
    broker.kill();
    drop(broker);

    let broker = run.broker(&data, args);
    let log = broker.read_all(None);
    let (missing, different) = compare(&log, bytes(&acknowledged));
    assert!(broker.stop().success());
    let identical = acknowledged.len() - missing - different;
    (format!("{identical} of {} there and identical, {} in all", PRODUCERS * EACH, log.len()), status.forces)
}

fn publish(client: &mut Client, event: &str) -> u64 {
    match client.publish(None, Level::Durable, &Publication::new(event.as_bytes())).expect("a plain message") {
        Outcome::Stored { offset, level: Level::Durable } => offset,
        other => panic!("{other:?}"),
    }
}

fn bytes<'a>(acknowledged: &'a BTreeMap<u64, &str>) -> impl Iterator<Item = (u64, &'a [u8])> {
    acknowledged.iter().map(|(offset, value)| (*offset, value.as_bytes()))
}

/// P1.
pub(crate) fn kill_durable(run: &Run) -> String {
    killed_in_the_middle(run, Level::Durable)
}

/// What WRITTEN promises after a crash of the process.
pub(crate) fn kill_written(run: &Run) -> String {
    killed_in_the_middle(run, Level::Written)
}

/// Acknowledged messages that a kill must find: thousands.
const ACKNOWLEDGED_MIN: u64 = 4000;
const IN_FLIGHT: u64 = 64;

fn killed_in_the_middle(run: &Run, level: Level) -> String {
    let events = events();
    let data = run.data();
    let broker = run.broker(&data, &["--segment-bytes", "262144"]);
    let answered = AtomicU64::new(0);
    let acknowledged: BTreeMap<u64, &str> = thread::scope(|scope| {
        let producers: Vec<_> =
            (0..PRODUCERS).map(|_| scope.spawn(|| publish_until_killed(&broker, level, &events, &answered))).collect();
        while answered.load(Ordering::Relaxed) < ACKNOWLEDGED_MIN {
            thread::sleep(Duration::from_micros(100));
        }
        broker.kill();
        producers.into_iter().flat_map(|producer| producer.join().expect("a producer")).collect()
    });
    drop(broker);
    assert!(acknowledged.len() as u64 >= ACKNOWLEDGED_MIN);

    let broker = run.broker(&data, &[]);
    let recovery = broker.wait_for_line("RECOVERY ");
    assert!(recovery.contains(" status=OK ") || recovery.contains(" status=TRUNCATED_TAIL "), "{recovery}");
    let log = broker.read_all(None);
    let (missing, different) = compare(&log, bytes(&acknowledged));
    run.note(format!("acknowledged={} stored={}", acknowledged.len(), log.len()));
    assert!(broker.stop().success());
    format!("at least {ACKNOWLEDGED_MIN} acknowledged {}: {missing} missing, {different} different", level.as_str())
}

fn publish_until_killed<'a>(
    broker: &Broker,
    level: Level,
    events: &'a [String],
    answered: &AtomicU64,
) -> Vec<(u64, &'a str)> {
    let mut acknowledged = Vec::new();
    // The kill may come before this.
    let Ok(mut client) = Client::connect(broker.address(), Options::default()) else { return acknowledged };
    let mut sent = events.iter().cycle();
    let mut replies = events.iter().cycle();
    loop {
        while client.in_flight() < IN_FLIGHT {
            let event = sent.next().expect("a cycle").as_bytes();
            if client.publish_nowait(None, level, &Publication::new(event)).is_err() {
                return acknowledged;
            }
        }
        let event = replies.next().expect("a cycle");
        match client.recv_reply().expect("something is in flight") {
            Outcome::Stored { offset, level: reached } => {
                assert_eq!(reached, level);
                acknowledged.push((offset, event.as_str()));
                answered.fetch_add(1, Ordering::Relaxed);
            }
            Outcome::Unknown => return acknowledged,
            Outcome::Refused(error) => panic!("{error}"),
        }
    }
}

const KILLS: u64 = 20;

/// P1, P2, P4, P5, P9 as far as the page cache survives. `tests/long/kills` does the same a thousand times.
pub(crate) fn kill_loop(run: &Run) -> String {
    let data = run.data();
    let tally = kills::under_mixed_load(20, KILLS, &data, |data| run.broker(data, kills::SETTINGS));
    run.note(format!("{tally:?}"));
    assert!(tally.stored > 2000 && tally.committed > 200, "too little was done to mean something: {tally:?}");
    format!(
        "{} kills and {} starts killed: more than 2000 messages acknowledged or delivered, 0 missing, 0 different, 0 that nobody sent; progress never below what was ACKED",
        tally.kills, tally.killed_starts
    )
}
