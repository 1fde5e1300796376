//! Group commit to the byte and the nanosecond: which batches go out together, and how long a force is held.

mod common;

use common::*;
use plimsoll_core::config::Config;
use plimsoll_core::effect::{ConnectionId, Effect, IoErrorKind};
use plimsoll_core::log::watermark;
use plimsoll_sim::naive::Harness;

const FRAME_BYTES: u64 = 30;
/// How long the forces of these tests take.
const FORCE_NS: u64 = 200_000;

fn is_default_force(effect: &Effect, path: &str) -> bool {
    is_log_force(effect, path) && path.starts_with("topics/default/")
}

fn forces(h: &Harness) -> usize {
    count(&trace(h), "force topics/default/log")
}

fn writes(h: &Harness) -> usize {
    count(&trace(h), "write topics/default/log")
}

/// A broker whose first force is in flight, with one message of a client that does not come back, and some clients.
fn first_force<const N: usize>(config: Config) -> (Harness, [ConnectionId; N]) {
    let mut h = started(config);
    let first = h.connect();
    let clients = std::array::from_fn(|_| h.connect());
    h.hold(is_default_force);
    h.send(first, b"PUB DURABLE x\n");
    assert_eq!(h.held(), 1);
    (h, clients)
}

/// These publish while a force is in flight, which then returns. Says whether the next one begins at once.
fn round(h: &mut Harness, clients: &[ConnectionId]) -> bool {
    for client in clients {
        h.send(*client, b"PUB DURABLE x\n");
    }
    assert_eq!(h.held(), 1, "a force is in flight");
    h.advance_ns(FORCE_NS);
    let before = forces(h);
    h.release();
    h.hold(is_default_force);
    h.run();
    forces(h) > before
}

/// A force that is held for want of others begins after half of a recent force.
fn wait(h: &mut Harness) {
    assert_eq!(h.held(), 0, "no force is in flight");
    h.advance_ns(FORCE_NS / 2);
    assert_eq!(h.held(), 1, "the wait is over");
}

fn config() -> Config {
    Config { gather_ns_max: 1_000_000, ..plain() }
}

#[test]
fn a_force_is_held_for_half_of_a_recent_one() {
    let (mut h, [a, b]) = first_force(config());
    assert!(round(&mut h, &[a, b]));
    assert!(!round(&mut h, &[a, b]), "the first one may come back, too");
    h.advance_ns(FORCE_NS / 2 - 1);
    assert_eq!(h.held(), 0);
    h.advance_ns(1);
    assert_eq!(h.held(), 1);
}

#[test]
fn a_force_is_held_for_the_configured_time_at_most() {
    let (mut h, [a, b]) = first_force(Config { gather_ns_max: 50_000, ..plain() });
    assert!(round(&mut h, &[a, b]));
    assert!(!round(&mut h, &[a, b]));
    h.advance_ns(49_999);
    assert_eq!(h.held(), 0);
    h.advance_ns(1);
    assert_eq!(h.held(), 1);
}

/// Who was in both of the last two batches is expected once, however much it sent.
#[test]
fn those_of_the_last_two_batches_are_expected() {
    let (mut h, [a, b, c]) = first_force(config());
    assert!(round(&mut h, &[a, b, b]));
    assert!(!round(&mut h, &[a, b]), "the first client was in the last batch but one");
    wait(&mut h);
    assert!(round(&mut h, &[a, b]), "it was not, any more");
    assert!(!round(&mut h, &[a]), "b is missing");
    h.send(b, b"PUB DURABLE x\n");
    assert_eq!(h.held(), 1, "not any more");
    assert!(round(&mut h, &[c, a, b]), "one more than expected");
    assert!(!round(&mut h, &[a, b, a]));
    wait(&mut h);
}

/// Two halves that take turns become one batch: both are expected.
#[test]
fn halves_that_take_turns_are_joined() {
    let (mut h, [a, b, c, d]) = first_force(config());
    assert!(round(&mut h, &[a, b]));
    assert!(!round(&mut h, &[c, d]));
    wait(&mut h);
    assert!(!round(&mut h, &[a, b, c]), "d is missing");
    h.send(d, b"PUB DURABLE x\n");
    assert_eq!(h.held(), 1);
}

/// Who was in the last batch but two doesn't count as one who came back.
#[test]
fn a_client_of_long_ago_is_a_new_one() {
    let (mut h, [a, b, c, d]) = first_force(config());
    assert!(round(&mut h, &[a, b]));
    assert!(!round(&mut h, &[c, d]));
    wait(&mut h);
    assert!(!round(&mut h, &[a]));
    wait(&mut h);
    // Expected are c and d of the last batch but one, and a.
    assert!(!round(&mut h, &[c, d]), "a is missing");
    h.send(a, b"PUB DURABLE x\n");
    assert_eq!(h.held(), 1);
}

/// What a client sends to another topic says nothing about this one.
#[test]
fn topics_gather_apart() {
    let (mut h, [a, b]) = first_force(config());
    h.send(a, b"CREATE @t\n");
    assert!(round(&mut h, &[a, b]));
    h.send(a, b"PUB @t ACCEPTED x\n");
    assert!(!round(&mut h, &[a, b]), "the first client is missing, and a is one more");
    wait(&mut h);
    assert!(!round(&mut h, &[a, b]), "a counted as new");
}

#[test]
fn nobody_is_awaited_before_a_roll() {
    let (mut h, [a, b]) = first_force(Config { segment_bytes: 512, ..config() });
    assert!(round(&mut h, &[a, b]));
    assert!(!round(&mut h, &[a]), "b is missing");
    h.send(b, format!("PUB DURABLE {}\n", "v".repeat(450)).as_bytes());
    assert_eq!(h.held(), 1, "it needs a new segment");
}

#[test]
fn after_five_milliseconds_without_a_force_nobody_is_expected() {
    for (ns, at_once) in [(5_000_000, false), (5_000_001, true)] {
        let (mut h, [a, b]) = first_force(config());
        assert!(round(&mut h, &[a, b]));
        assert!(!round(&mut h, &[]), "nothing to force");
        h.advance_ns(ns);
        h.send(a, b"PUB DURABLE x\n");
        assert_eq!(h.held() == 1, at_once, "{ns}");
    }
}

#[test]
fn the_mean_of_forces_is_told() {
    let mut h = started(config());
    let c = h.connect();
    for (took_us, mean_us) in [(800, 800), (1600, 900), (100, 800)] {
        h.hold(is_default_force);
        h.send(c, b"PUB DURABLE x\n");
        h.advance_ns(took_us * 1000);
        h.release();
        h.run();
        h.replies(c);
        let status = h.ask(c, b"STATUS\n");
        assert!(status.contains(&format!(" forceMeanUs={mean_us} ")), "{status}");
    }
    assert!(h.ask(c, b"STATUS\n").contains(" forces=3 "));
}

#[test]
fn sixteen_writes_of_full_batches_are_under_way_at_most() {
    let mut h = started(Config { batch_messages: 1, ..plain() });
    let c = h.connect();
    h.hold(is_log_io);
    h.send(c, &b"PUB ACCEPTED x\n".repeat(40));
    assert_eq!(writes(&h), 16);
    assert_eq!(h.replies(c).lines().count(), 40);
    h.release();
    h.run();
    assert_eq!(writes(&h), 40);
    assert_eq!(read_all(&mut h).lines().count(), 40);
}

/// Reads that the memory answers touch no file.
#[test]
fn the_newest_batches_are_read_from_memory_up_to_the_bound() {
    let mut h = started(Config { recent_bytes: 3 * FRAME_BYTES, ..plain() });
    let c = h.connect();
    for _ in 0..5 {
        h.ask(c, b"PUB DURABLE x\n");
    }
    let mut reads = |offset: u64| {
        let before = h.effects.len();
        assert_eq!(h.ask(c, format!("READ {offset} 1\n").as_bytes()), format!("MSG {offset} x\nEND 1\n"));
        h.effects[before..].iter().filter(|(_, effect)| matches!(effect, Effect::Read { .. })).count()
    };
    assert_eq!([reads(0), reads(1), reads(2), reads(3), reads(4)], [1, 1, 0, 0, 0]);
}

/// With several topics each has its share of that memory, also of what it holds already.
#[test]
fn the_memory_for_the_newest_batches_is_shared() {
    let mut h = started(Config { recent_bytes: 4 * FRAME_BYTES, ..plain() });
    let c = h.connect();
    for _ in 0..4 {
        h.ask(c, b"PUB DURABLE x\n");
    }
    h.ask(c, b"CREATE @t\n");
    let mut reads = |offset: u64| {
        let before = h.effects.len();
        assert_eq!(h.ask(c, format!("READ {offset} 1\n").as_bytes()), format!("MSG {offset} x\nEND 1\n"));
        h.effects[before..].iter().filter(|(_, effect)| matches!(effect, Effect::Read { .. })).count()
    };
    assert_eq!([reads(0), reads(1), reads(2), reads(3)], [1, 1, 0, 0]);
}

/// Of ten publishes while the disk takes its time so many are admitted at first, and the others when it is done.
fn assert_admitted(h: &mut Harness, c: ConnectionId, admitted: usize) {
    h.hold(is_log_io);
    h.send(c, &b"PUB ACCEPTED x\n".repeat(10));
    assert_eq!(h.replies(c).lines().count(), admitted);
    h.release();
    h.run();
    assert_eq!(h.replies(c).lines().count(), 10 - admitted);
}

#[test]
fn the_queue_is_bounded_to_the_byte() {
    for (queue_bytes, admitted) in [(3 * FRAME_BYTES - 1, 2), (3 * FRAME_BYTES, 3)] {
        let mut h = started(Config { queue_bytes, ..plain() });
        let c = h.connect();
        assert_admitted(&mut h, c, admitted);
    }
}

/// Padding that is on its way is in the queue as well: 512 bytes with the first message, then two messages and no third.
#[test]
fn padding_counts_in_the_queue() {
    let mut h = started(Config { pad_forces: 512, queue_bytes: 512 + 3 * FRAME_BYTES - 1, ..plain() });
    let c = h.connect();
    h.hold(is_log_io);
    h.send(c, b"PUB ACCEPTED x\n");
    h.send(c, &b"PUB ACCEPTED x\n".repeat(9));
    assert_eq!(h.replies(c).lines().count(), 3);
    h.release();
    h.run();
    assert_eq!(h.replies(c).lines().count(), 7);
}

/// What a recovery has found is forced, and in no queue.
#[test]
fn after_a_restart_the_queue_is_empty() {
    let bounds = [(4, 1 << 20, 5), (1024, 3 * FRAME_BYTES, 3)];
    for (queue_messages, queue_bytes, admitted) in bounds {
        let mut h = started(plain());
        let c = h.connect();
        h.send(c, &b"PUB DURABLE x\n".repeat(10));
        h.kill_and_restart(Config { queue_messages, queue_bytes, ..plain() });
        h.advance_ms(10_000);
        let c = h.connect();
        assert!(h.ask(c, b"STATUS\n").contains(" forces=0 "), "nothing to force");
        assert_admitted(&mut h, c, admitted);
    }
}

#[test]
fn after_a_restart_there_is_nothing_to_force() {
    for group_commit in [true, false] {
        let config = Config { group_commit, ..plain() };
        let mut h = started(config.clone());
        let c = h.connect();
        h.send(c, &b"PUB DURABLE x\n".repeat(10));
        h.kill_and_restart(config.clone());
        let before = forces(&h);
        h.stop();
        assert_eq!((forces(&h), h.stopped), (before, true));
        h.kill_and_restart(config);
        let c = h.connect();
        assert_eq!(h.ask(c, b"PUB DURABLE x\n"), "OK 10 DURABLE\n");
    }
}

/// What was written is no longer in the queue, whoever wrote it: the next one may fill it alone again.
#[test]
fn a_queue_that_was_empty_has_a_new_owner() {
    let mut h = started(Config { queue_messages: 1, ..plain() });
    let (a, b) = (h.connect(), h.connect());
    assert_eq!(h.ask(a, b"PUB WRITTEN x\n"), "OK 0 WRITTEN\n");
    h.hold(is_log_io);
    h.send(b, &b"PUB ACCEPTED x\n".repeat(5));
    assert_eq!(h.replies(b).lines().count(), 2, "b waits, and is not told off");
    assert!(h.ask(a, b"PUB ACCEPTED x\n").starts_with("ERR QUEUE_FULL topic default has 1 messages"));
    h.release();
    h.run();
    assert_eq!(h.replies(b).lines().count(), 3);
    // Where two have filled it, both are told.
    h.hold(is_log_io);
    h.send(a, b"PUB ACCEPTED x\n");
    h.send(b, b"PUB ACCEPTED x\n");
    assert!(h.ask(a, b"PUB ACCEPTED x\n").contains("ERR QUEUE_FULL "));
    assert!(h.ask(b, b"PUB ACCEPTED x\n").contains("ERR QUEUE_FULL "));
}

#[test]
fn a_segment_is_filled_to_the_byte() {
    let mut h = started(Config { segment_bytes: 512, ..plain() });
    let c = h.connect();
    // A frame of 128 bytes.
    let publish = format!("PUB DURABLE {}\n", "v".repeat(99));
    for _ in 0..5 {
        h.send(c, publish.as_bytes());
    }
    assert_eq!(segments(&h.disk), [segment(0), segment(4)]);
    assert_eq!(h.disk.file(&segment(0)).map(<[u8]>::len), Some(512));
}

/// Padding is nobody's message: it takes no room from them.
#[test]
fn padding_is_not_kept_in_memory() {
    let mut h = started(Config { pad_forces: 512, recent_bytes: 3 * FRAME_BYTES, ..plain() });
    let c = h.connect();
    for _ in 0..5 {
        h.ask(c, b"PUB DURABLE x\n");
    }
    let before = h.effects.len();
    assert_eq!(h.ask(c, b"READ 2 3\n").lines().count(), 4);
    assert!(h.effects[before..].iter().all(|(_, effect)| !matches!(effect, Effect::Read { .. })));
}

#[test]
fn without_group_commit_a_message_waits_for_the_force_of_the_one_before() {
    let mut h = started(Config { group_commit: false, ..plain() });
    let c = h.connect();
    h.hold(is_default_force);
    h.send(c, b"PUB DURABLE x\nPUB DURABLE y\n");
    assert_eq!((writes(&h), h.held()), (1, 1));
    h.release();
    h.run();
    assert_eq!(h.replies(c), "OK 0 DURABLE\nOK 1 DURABLE\n");
}

/// … also when the write had to be tried again, and with it the force.
#[test]
fn without_group_commit_a_write_that_is_tried_again_has_a_force_of_its_own() {
    let mut h = started(Config { group_commit: false, ballast_bytes: 1000, ..plain() });
    let c = h.connect();
    let before = trace(&h).len();
    h.fail_next(is_log_write, IoErrorKind::NoSpace);
    h.send(c, b"PUB DURABLE x\nPUB DURABLE y\n");
    h.advance_ms(1000);
    assert_eq!(h.replies(c), "OK 0 DURABLE\nOK 1 DURABLE\n");
    let lines = &trace(&h)[before..];
    let log: Vec<&str> = lines.iter().filter(|line| line.contains(".log")).map(|line| &line[..5]).collect();
    assert_eq!(log, ["write", "force"].repeat(3));
}

/// A write that is still under way behind one that failed keeps its place.
#[test]
fn what_is_under_way_is_not_written_again() {
    let mut h = started(Config { batch_messages: 1, ballast_bytes: 1000, ..plain() });
    let c = h.connect();
    h.fail_next(is_log_write, IoErrorKind::NoSpace);
    h.hold(|effect, path| is_log_write(effect, path) && matches!(effect, Effect::Write { position: 1.., .. }));
    h.send(c, &b"PUB WRITTEN x\n".repeat(3));
    assert_eq!((writes(&h), h.held()), (3, 1), "the first one twice");
    h.release();
    h.run();
    assert_eq!(h.replies(c), "OK 0 WRITTEN\nOK 1 WRITTEN\nOK 2 WRITTEN\n");
    assert_eq!(read_all(&mut h).lines().count(), 3);
}

/// The higher one counts, so each that is written is higher than all before it, in either place and in any process.
#[test]
fn every_slot_has_a_higher_sequence() {
    let mut h = started(Config { segment_bytes: 512, ..plain() });
    for _ in 0..3 {
        let c = h.connect();
        for _ in 0..20 {
            h.ask(c, b"PUB DURABLE x\n");
        }
        h.advance_ms(1000);
        h.kill_and_restart(Config { segment_bytes: 512, ..plain() });
    }
    let effects: Vec<Effect> = h.effects.iter().map(|(_, effect)| effect.clone()).collect();
    let slots = traced(&effects).into_iter().filter(|(line, _)| line == "write topics/default/watermark");
    let sequences: Vec<u64> = slots
        .map(|(_, effect)| match effect {
            Effect::Write { bytes, .. } => watermark::decode(&bytes).expect("a slot").sequence,
            _ => unreachable!("only writes"),
        })
        .collect();
    assert!(sequences.len() > 60 && sequences.is_sorted_by(|a, b| a < b), "{sequences:?}");
}
