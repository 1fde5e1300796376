//! Work queues: reserving, confirming, giving back, leases that run out, the journal and its checkpoints, dead letters (P15).

mod common;

use common::*;
use plimsoll_core::config::Config;
use plimsoll_core::effect::{Effect, IoErrorKind};
use plimsoll_core::settings::Setting;
use plimsoll_sim::naive::Harness;
use std::cell::Cell;
use std::rc::Rc;

/// A broker with messages `0`, `1`, … in the default topic.
fn with_messages(config: Config, count: u64) -> Harness {
    let mut h = started(config);
    let p = h.connect();
    for value in 0..count {
        assert_eq!(h.ask(p, format!("PUB DURABLE {value}\n").as_bytes()), format!("OK {value} DURABLE\n"));
    }
    h.disconnect(p);
    h
}

fn is_journal_force(effect: &Effect, path: &str) -> bool {
    matches!(effect, Effect::Force { .. }) && path.starts_with("topics/default/queues/q/log/")
}

fn is_journal_write(effect: &Effect, path: &str) -> bool {
    matches!(effect, Effect::Write { .. }) && path.starts_with("topics/default/queues/q/log/")
}

fn journal_segments(h: &Harness) -> Vec<String> {
    h.disk.files().into_keys().filter(|path| path.starts_with("topics/default/queues/q/log/")).collect()
}

#[test]
fn p15_a_message_is_one_consumers_until_it_confirms() {
    let mut h = with_messages(plain(), 3);
    let (a, b) = (h.connect(), h.connect());
    assert_eq!(h.ask(a, b"RESERVE q 2 0 1000\n"), "MSG 0 0\nMSG 1 1\nEND 2\n");
    assert_eq!(h.ask(b, b"RESERVE q 5 0 1000\n"), "MSG 2 2\nEND 1\n");
    assert_eq!(h.ask(b, b"RESERVE q 5 0 1000\n"), "END 0\n");
    let refused = h.ask(b, b"CONFIRM q 2 0 1\n");
    assert!(
        refused.starts_with("ERR NOT_RESERVED offset 0 (and 1 more) is not reserved by this connection"),
        "{refused}"
    );
    assert_eq!(h.ask(a, b"CONFIRM q 1 0 1\n"), "CONFIRMED 2\n");
    assert_eq!(h.ask(b, b"CONFIRM q 2\n"), "CONFIRMED 1\n");
    assert!(h.ask(b, b"CONFIRM q 2\n").starts_with("ERR NOT_RESERVED"));
    h.disconnect(a);
    h.disconnect(b);
    h.kill_and_restart(plain());
    let c = h.connect();
    assert_eq!(h.ask(c, b"RESERVE q 5 0 1000\n"), "END 0\n");
    assert_eq!(
        h.ask(c, b"QUEUES\n"),
        "QUEUE name=q confirmed=3 next=3 ready=0 reserved=0 delayed=0 dying=0 waiting=0 journalBytes=168 journalForces=0\nEND 1\n"
    );
}

#[test]
fn p15_confirmed_is_answered_when_the_journal_is_forced_and_a_reservation_when_it_is_written() {
    let mut h = with_messages(plain(), 1);
    let a = h.connect();
    h.ask(a, b"RESERVE q 1 0 1000\nABORT q 0\n");
    h.hold(is_journal_write);
    h.send(a, b"RESERVE q 1 0 1000\n");
    assert_eq!(h.replies(a), "");
    h.release();
    h.run();
    assert_eq!(h.replies(a), "MSG 0 0\nEND 1\n");
    h.hold(is_journal_force);
    h.send(a, b"CONFIRM q 0\n");
    assert_eq!(h.replies(a), "");
    h.release();
    h.run();
    assert_eq!(h.replies(a), "CONFIRMED 1\n");
}

#[test]
fn what_is_given_back_comes_before_what_is_new_in_the_order_of_becoming_due() {
    let mut h = with_messages(plain(), 6);
    let (a, b) = (h.connect(), h.connect());
    h.ask(a, b"RESERVE q 4 0 100000\n");
    assert_eq!(h.ask(a, b"ABORT q 2 50\nABORT q 0 20\nABORT q 3\n"), "ABORTED 2\nABORTED 0\nABORTED 3\n");
    assert_eq!(h.ask(b, b"RESERVE q 2 0 100000\n"), "MSG 3 3\nMSG 4 4\nEND 2\n");
    h.advance_ms(60);
    assert_eq!(h.ask(b, b"RESERVE q 9 0 100000 META\n").matches("deliveries=2").count(), 2);
    assert_eq!(
        h.ask(b, b"PENDING q\n"),
        "PENDING 0 deliveries=2 state=reserved connection=2 peer=sim:2 leftMs=100000\n\
         PENDING 1 deliveries=1 state=reserved connection=1 peer=sim:1 leftMs=99940\n\
         PENDING 2 deliveries=2 state=reserved connection=2 peer=sim:2 leftMs=100000\n\
         PENDING 3 deliveries=2 state=reserved connection=2 peer=sim:2 leftMs=99940\n\
         PENDING 4 deliveries=1 state=reserved connection=2 peer=sim:2 leftMs=99940\n\
         PENDING 5 deliveries=1 state=reserved connection=2 peer=sim:2 leftMs=100000\nEND 6\n"
    );
    assert_eq!(h.ask(b, b"PENDING q 3 1\n").lines().count(), 2);
}

#[test]
fn a_lease_runs_out_to_the_millisecond_and_whoever_waits_gets_the_message() {
    let mut h = with_messages(plain(), 1);
    let (a, b, c) = (h.connect(), h.connect(), h.connect());
    h.ask(a, b"RESERVE q 1 0 100\n");
    h.send(b, b"RESERVE q 1 10000 100\n");
    h.send(c, b"RESERVE q 1 10000 100\n");
    h.advance_ms(50);
    assert_eq!(h.ask(a, b"EXTEND q 0 100\n"), "EXTENDED 0\n");
    h.advance_ms(99);
    assert_eq!(h.replies(b), "");
    h.advance_ms(1);
    assert_eq!((h.replies(b).as_str(), h.replies(c).as_str()), ("MSG 0 0\nEND 1\n", ""));
    assert!(h.ask(a, b"CONFIRM q 0\n").starts_with("ERR NOT_RESERVED"));
    assert!(h.ask(a, b"EXTEND q 0 100\n").starts_with("ERR NOT_RESERVED"));
    assert!(h.ask(a, b"ABORT q 0\n").starts_with("ERR NOT_RESERVED"));
    // Who is gone gives it back at once.
    h.disconnect(b);
    assert_eq!(h.replies(c), "MSG 0 0\nEND 1\n");
    assert_eq!(h.ask(a, b"STEAL q 0\n"), "STOLEN 0\n");
    assert!(h.ask(a, b"STEAL q 0\n").starts_with("ERR NOT_RESERVED"));
    assert_eq!(h.ask(a, b"RESERVE q 1 0 100\n"), "MSG 0 0\nEND 1\n");
    assert!(h.ask(c, b"CONFIRM q 0\n").starts_with("ERR NOT_RESERVED"));
}

#[test]
fn who_waits_is_served_in_turn_and_gets_no_more_than_there_is() {
    let mut h = with_messages(plain(), 0);
    let (p, a, b, c) = (h.connect(), h.connect(), h.connect(), h.connect());
    for consumer in [a, b, c] {
        h.send(consumer, b"RESERVE q 1 1000 100000\n");
    }
    h.ask(p, b"PUB DURABLE x\n");
    assert_eq!((h.replies(a), h.replies(b), h.replies(c)), ("MSG 0 x\nEND 1\n".into(), String::new(), String::new()));
    h.ask(p, b"PUB DURABLE y\n");
    assert_eq!((h.replies(b), h.replies(c)), ("MSG 1 y\nEND 1\n".into(), String::new()));
    h.advance_ms(1000);
    assert_eq!(h.replies(c), "END 0\n");
}

/// Whoever waits goes on waiting where as many messages are handed out as may be, and is served when one of them is done with.
#[test]
fn who_waits_is_not_refused_for_what_others_have() {
    let mut h = with_messages(Config { pending_max: 1, ..plain() }, 0);
    let (p, a, b) = (h.connect(), h.connect(), h.connect());
    for consumer in [a, b] {
        h.send(consumer, b"RESERVE q 1 1000 100000\n");
    }
    h.ask(p, b"PUB DURABLE x\nPUB DURABLE y\n");
    assert_eq!((h.replies(a), h.replies(b)), ("MSG 0 x\nEND 1\n".into(), String::new()));
    assert_eq!(h.ask(a, b"CONFIRM q 0\n"), "CONFIRMED 1\n");
    assert_eq!(h.replies(b), "MSG 1 y\nEND 1\n");
}

#[test]
fn what_can_be_reserved_is_counted_apart_from_what_is_not_due() {
    let mut h = with_messages(plain(), 9);
    let a = h.connect();
    h.ask(a, b"RESERVE q 5 0 1000\nABORT q 0\nABORT q 1 50\nABORT q 2 50\n");
    let counts = h.ask(a, b"QUEUES\n");
    assert!(counts.contains(" ready=5 reserved=2 delayed=2 dying=0 "), "{counts}");
    h.advance_ms(50);
    let counts = h.ask(a, b"QUEUES\n");
    assert!(counts.contains(" ready=7 reserved=2 delayed=0 dying=0 "), "{counts}");
}

#[test]
fn deliveries_are_counted_over_a_kill_and_a_delay_goes_on() {
    let mut h = with_messages(plain(), 2);
    for _ in 0..3 {
        let a = h.connect();
        h.ask(a, b"RESERVE q 1 0 100\nABORT q 0\n");
        h.disconnect(a);
    }
    let a = h.connect();
    h.ask(a, b"RESERVE q 1 0 100\nABORT q 0 5000\n");
    h.kill_and_restart(plain());
    let a = h.connect();
    assert_eq!(h.ask(a, b"PENDING q\n"), "PENDING 0 deliveries=4 state=delayed dueMs=5000\nEND 1\n");
    assert_eq!(h.ask(a, b"RESERVE q 2 0 100\n"), "MSG 1 1\nEND 1\n");
    h.advance_ms(5000);
    // The lease of the other has run out before that.
    let again = h.ask(a, b"RESERVE q 2 0 100 META\n");
    assert!(again.starts_with("MSGX 1 1 time="), "{again}");
    assert!(again.contains(" deliveries=2\n1\nMSGX 0 1 time=") && again.contains(" deliveries=5\n"), "{again}");
}

/// What a checkpoint says in place of the records before it: who is due when.
#[test]
fn p15_a_delay_outlives_the_records_that_a_checkpoint_replaces() {
    let config = Config { journal_bytes: 600, ..plain() };
    let mut h = with_messages(config.clone(), 2);
    let a = h.connect();
    h.ask(a, b"RESERVE q 1 0 100\nABORT q 0 60000\n");
    h.advance_ms(10_000);
    for _ in 0..20 {
        h.ask(a, b"RESERVE q 1 0 100\nABORT q 1\n");
    }
    assert!(!journal_segments(&h).contains(&format!("topics/default/queues/q/log/{:020}.log", 0)));
    h.kill_and_restart(config);
    let b = h.connect();
    assert_eq!(h.ask(b, b"PENDING q 0 1\n"), "PENDING 0 deliveries=1 state=delayed dueMs=50000\nEND 1\n");
    h.advance_ms(49_999);
    assert_eq!(h.ask(b, b"RESERVE q 9 0 1000\nCONFIRM q 1\n"), "MSG 1 1\nEND 1\nCONFIRMED 1\n");
    h.advance_ms(1);
    assert_eq!(h.ask(b, b"RESERVE q 9 0 1000\n"), "MSG 0 0\nEND 1\n");
}

/// What can't be read is told to whoever would get it, and holds up nobody else (P7).
#[test]
fn p7_a_message_that_can_not_be_read_is_named_and_those_behind_it_are_handed_out() {
    let config = Config { recent_bytes: 0, segment_bytes: 1024, ..plain() };
    let mut h = with_messages(config, 40);
    let second = segments(&h.disk)[1].clone();
    let first_of_it: u64 = second.rsplit('/').next().and_then(|name| name.strip_suffix(".log")?.parse().ok()).unwrap();
    let fails = |h: &mut Harness| {
        let path = second.clone();
        h.fail_next(move |effect, read| matches!(effect, Effect::Read { .. }) && read == path, IoErrorKind::Other);
    };
    let a = h.connect();
    fails(&mut h);
    // Those before it are handed out, and it is not.
    let found = h.ask(a, b"RESERVE q 40 0 100000\n");
    assert!(found.ends_with(&format!("MSG {0} {0}\nEND {first_of_it}\n", first_of_it - 1)), "{found}");
    assert_eq!(reports(&h, "CORRUPT_RECORD").len(), 1);
    let behind = h.ask(a, b"RESERVE q 40 0 100000\n");
    assert!(
        behind.starts_with(&format!("MSG {0} {0}\n", first_of_it + 1)) && behind.contains("MSG 39 39\n"),
        "{behind}"
    );
    h.advance_ms(999);
    assert_eq!(h.ask(a, b"RESERVE q 1 0 100000\n"), "END 0\n");
    h.advance_ms(1);
    fails(&mut h);
    let refused = h.ask(a, b"RESERVE q 1 0 100000\n");
    assert!(refused.starts_with("ERR CORRUPT "), "{refused}");
    h.advance_ms(1000);
    assert_eq!(h.ask(a, b"RESERVE q 1 0 100000\n"), format!("MSG {first_of_it} {first_of_it}\nEND 1\n"));
}

/// What is confirmed and not forced goes on holding its segment, also while the line of the journal moves for another one.
#[test]
fn p15_retention_waits_for_the_force_of_each_confirmation() {
    let mut h = with_messages(Config { segment_bytes: 1024, ..plain() }, 60);
    let (a, b) = (h.connect(), h.connect());
    assert_eq!(h.ask(a, b"ALTER @default retain-consumed=yes\n"), "ALTERED default\n");
    let count = |reply: String| reply.matches("MSG ").count();
    assert_eq!(count(h.ask(a, b"RESERVE q 1 0 100000\n")), 1);
    assert_eq!(count(h.ask(b, b"RESERVE q 100 0 100000\n")), 59);
    let rest: String = (1..60).map(|offset| format!(" {offset}")).collect();
    h.hold(is_journal_force);
    h.send(a, b"CONFIRM q 0\n");
    h.send(b, format!("CONFIRM q{rest}\n").as_bytes());
    h.release();
    h.hold(is_journal_force);
    h.advance_ms(5_000);
    assert_eq!((h.replies(a), h.replies(b)), ("CONFIRMED 1\n".into(), String::new()));
    assert!(h.disk.files().contains_key(&segment(0)));
    h.release();
    h.advance_ms(5_000);
    assert_eq!(h.replies(b), "CONFIRMED 59\n");
    assert!(!h.disk.files().contains_key(&segment(0)));
}

/// The delay goes by the wall clock over a restart, and whoever sets that back lengthens none.
#[test]
fn a_clock_that_was_set_back_lengthens_no_delay() {
    let mut h = with_messages(plain(), 1);
    let a = h.connect();
    h.ask(a, b"RESERVE q 1 0 100\nABORT q 0 5000\n");
    for _ in 0..2 {
        h.step_wall_ms(-3_600_000);
        h.kill_and_restart(plain());
        let a = h.connect();
        assert_eq!(h.ask(a, b"PENDING q\n"), "PENDING 0 deliveries=1 state=delayed dueMs=5000\nEND 1\n");
    }
    h.advance_ms(5000);
    let a = h.connect();
    assert_eq!(h.ask(a, b"RESERVE q 1 0 100\n"), "MSG 0 0\nEND 1\n");
}

#[test]
fn a_group_is_of_one_kind() {
    let mut h = with_messages(plain(), 1);
    let a = h.connect();
    h.ask(a, b"RESERVE q 1 0 100\nFETCH g 1 0\n");
    for (request, answer) in [
        ("FETCH q 1 0", "ERR WRONG_KIND q is a work queue; its verbs are RESERVE and CONFIRM\n"),
        ("ACK q 0", "ERR WRONG_KIND q is a work queue"),
        ("SEEK q 0", "ERR WRONG_KIND q is a work queue"),
        ("RESERVE g 1 0 100", "ERR WRONG_KIND g is an ordered group; its verbs are FETCH and ACK\n"),
        ("CONFIRM g 0", "ERR WRONG_KIND g is an ordered group"),
        ("CONFIRM n 0", "ERR NO_GROUP topic default has no work queue n; RESERVE makes it\n"),
        ("PENDING n", "ERR NO_GROUP"),
        ("RESERVE @n q 1 0 100", "ERR NO_TOPIC"),
    ] {
        let reply = h.ask(a, format!("{request}\n").as_bytes());
        assert!(reply.starts_with(answer), "{request}: {reply}");
    }
}

#[test]
fn bounds_are_named() {
    let mut h = with_messages(Config { reserved_max: 2, pending_max: 3, ..plain() }, 6);
    let (a, b) = (h.connect(), h.connect());
    assert_eq!(h.ask(a, b"RESERVE q 9 0 100\n"), "MSG 0 0\nMSG 1 1\nEND 2\n");
    let full = h.ask(a, b"RESERVE q 1 0 100\n");
    assert!(full.starts_with("ERR QUEUE_FULL this connection has 2 messages reserved"), "{full}");
    assert_eq!(h.ask(b, b"RESERVE q 9 0 100\n"), "MSG 2 2\nEND 1\n");
    let full = h.ask(b, b"RESERVE q 1 0 100\n");
    assert!(full.contains("QUEUE_FULL work queue q has 3 messages that were reserved"), "{full}");
    // A confirmation makes room, for who waits too.
    assert_eq!(h.ask(a, b"CONFIRM q 1\n"), "CONFIRMED 1\n");
    assert_eq!(h.ask(b, b"RESERVE q 1 0 100\n"), "MSG 3 3\nEND 1\n");
}

/// What is still being read is in a checkpoint as it was before: the record of its reservation comes behind.
#[test]
fn p15_a_checkpoint_does_not_count_what_is_still_being_read() {
    let config = Config { journal_bytes: 600, ..plain() };
    let mut h = with_messages(config.clone(), 1);
    let a = h.connect();
    h.ask(a, b"RESERVE q 1 0 100\nABORT q 0\n");
    h.kill_and_restart(config.clone());
    let (a, b) = (h.connect(), h.connect());
    h.ask(b, b"PUB DURABLE 1\n");
    h.hold(|effect, path| matches!(effect, Effect::Read { .. }) && path == segment(0));
    h.send(a, b"RESERVE q 1 0 100 META\n");
    h.run();
    let journals = |h: &Harness| {
        h.disk.files().into_keys().filter(|path| path.contains("/queues/q/log/")).min().expect("a journal")
    };
    let first = journals(&h);
    while journals(&h) == first {
        assert_eq!(h.ask(b, b"RESERVE q 1 0 100\nABORT q 1\n"), "MSG 1 1\nEND 1\nABORTED 1\n");
    }
    h.release();
    h.run();
    let told = h.replies(a);
    assert!(told.contains(" deliveries=2\n0\n"), "{told}");
    h.kill_and_restart(config);
    let a = h.connect();
    assert!(h.ask(a, b"PENDING q\n").starts_with("PENDING 0 deliveries=2 "));
}

/// A journal of many operations stays small, and what it says stays the same.
#[test]
fn the_journal_begins_anew_with_a_checkpoint() {
    let config = Config { journal_bytes: 600, ..plain() };
    let mut h = with_messages(config.clone(), 4);
    let a = h.connect();
    h.ask(a, b"RESERVE q 1 0 100\nCONFIRM q 0\n");
    let mut largest = 0;
    for round in 0..100 {
        assert_eq!(
            h.ask(a, b"RESERVE q 3 0 100\nABORT q 1\nABORT q 3\nABORT q 2\n").matches("ABORTED").count(),
            3,
            "{round}"
        );
        let bytes: u64 =
            journal_segments(&h).iter().map(|path| h.disk.file(path).expect("a segment").len() as u64).sum();
        largest = largest.max(bytes);
    }
    assert!(largest < 2_000, "{largest}");
    assert!(!journal_segments(&h).contains(&format!("topics/default/queues/q/log/{:020}.log", 0)));
    let pending = h.ask(a, b"PENDING q\n");
    assert_eq!(pending.matches("deliveries=100 state=ready").count(), 3, "{pending}");
    h.kill_and_restart(config);
    let b = h.connect();
    assert_eq!(h.ask(b, b"PENDING q\n"), pending);
    let report = reports(&h, "RECOVERY").pop().expect("a report");
    assert!(
        report.starts_with("RECOVERY topic=default queue=q status=OK") && report.contains(" pending=3 bytes="),
        "{report}"
    );
}

#[test]
fn a_message_that_is_handed_out_often_enough_goes_to_the_dead_letters() {
    let mut h = with_messages(plain(), 1);
    let a = h.connect();
    assert_eq!(h.ask(a, b"ALTER @default max-deliveries=2\n"), "ALTERED default\n");
    h.ask(a, b"PUBN DURABLE 3 key=k h.kind=order\nabc\n");
    h.ask(a, b"RESERVE q 2 0 100\nABORT q 0\nABORT q 1\nRESERVE q 2 0 100\nABORT q 1\n");
    h.advance_ms(100);
    let dead = h.ask(a, b"READ @default.dead 0 9 META\n");
    let lines: Vec<&str> = dead.lines().collect();
    assert!(lines[0].starts_with("MSGX 0 3 time=") && lines[0].contains(" key=k h.kind=order h.dead-topic=default h.dead-group=q h.dead-offset=1 h.dead-deliveries=2 h.dead-reason=aborted h.dead-time="), "{dead}");
    assert!(lines[2].contains(" h.dead-offset=0 h.dead-deliveries=2 h.dead-reason=expired"), "{dead}");
    assert_eq!(h.ask(a, b"RESERVE q 2 0 100\n"), "END 0\n");
    assert!(h.ask(a, b"QUEUES\n").starts_with("QUEUE name=q confirmed=2 next=2 ready=0 reserved=0 delayed=0 dying=0"));
    // Dead letters don't die again.
    h.ask(a, b"ALTER @default.dead max-deliveries=1\nRESERVE @default.dead q 1 0 100\nABORT @default.dead q 0\n");
    assert!(h.ask(a, b"RESERVE @default.dead q 1 0 100\n").starts_with("MSG 0 abc"));
    h.kill_and_restart(plain());
    let b = h.connect();
    assert_eq!(h.ask(b, b"RESERVE q 2 0 100\n"), "END 0\n");
    assert_eq!(h.ask(b, b"READ @default.dead 0 9\n").matches("MSG ").count(), 2);
}

#[test]
fn a_dead_letter_that_was_published_before_a_crash_is_published_once() {
    let mut h = with_messages(plain(), 1);
    let a = h.connect();
    h.ask(a, b"CREATE @default.dead\nALTER @default max-deliveries=1\nRESERVE q 1 0 100\n");
    let writes = Cell::new(0);
    // The confirmation, which stands behind the record of the dying, does not reach the journal.
    h.hold(move |effect, path| {
        is_journal_write(effect, path) && {
            writes.set(writes.get() + 1);
            writes.get() > 1
        }
    });
    h.send(a, b"ABORT q 0\n");
    h.kill_and_restart(plain());
    let b = h.connect();
    assert_eq!(h.ask(b, b"READ @default.dead 0 9\n"), "MSG 0 0\nEND 1\n");
    assert_eq!(h.ask(b, b"RESERVE q 1 0 100\n"), "END 0\n");
}

/// Letters are numbered, and the numbers go on over a restart: with one that there was before, a letter would be taken for that, and nobody would
/// hear of its message.
#[test]
fn p15_letters_of_different_lives_are_different_ones() {
    let mut h = with_messages(plain(), 2);
    let a = h.connect();
    h.ask(a, b"ALTER @default max-deliveries=1\nRESERVE q 1 0 100\nABORT q 0\n");
    h.kill_and_restart(plain());
    let b = h.connect();
    h.ask(b, b"RESERVE q 1 0 100\nABORT q 1\n");
    assert_eq!(h.ask(b, b"READ @default.dead 0 9\n"), "MSG 0 0\nMSG 1 1\nEND 2\n");
    assert_eq!(h.ask(b, b"RESERVE q 1 0 100\n"), "END 0\n");
}

/// However short the window is in which other messages are known, a letter is known as long as its burial may be repeated (P15, P16).
#[test]
fn a_dead_letter_is_known_also_where_other_messages_are_soon_forgotten() {
    let mut config = plain();
    config.topic_defaults.set(Setting::DedupSequences, Some(1));
    config.topic_defaults.set(Setting::DedupMs, Some(1));
    let mut h = with_messages(config.clone(), 3);
    let a = h.connect();
    h.ask(a, b"ALTER @default max-deliveries=1\nRESERVE q 3 0 100\n");
    let writes = Cell::new(0);
    // Of the confirmations, none reaches the journal.
    h.hold(move |effect, path| {
        is_journal_write(effect, path) && {
            writes.set(writes.get() + 1);
            writes.get() > 1
        }
    });
    h.advance_ms(500);
    h.kill_and_restart(config);
    let b = h.connect();
    let letters = h.ask(b, b"READ @default.dead 0 9\n");
    assert_eq!(letters.matches("MSG ").count(), 3, "{letters}");
    assert_eq!(h.ask(b, b"RESERVE q 3 0 100\n"), "END 0\n");
}

/// What had no room in the journal is not missing before what comes later: a checkpoint says all of it.
#[test]
fn p15_what_found_no_room_in_the_journal_is_said_when_there_is_some() {
    let config = Config { queue_bytes: 200, ..plain() };
    let mut h = with_messages(config.clone(), 20);
    let (a, b) = (h.connect(), h.connect());
    h.ask(a, b"RESERVE q 1 0 100000\n");
    // Also for the attempt that is made at once.
    (0..2).for_each(|_| h.fail_next(is_journal_write, IoErrorKind::NoSpace));
    // This one is answered when it is written. That nobody gets anything would be worse: others are known in memory alone.
    assert_eq!(h.ask(a, b"RESERVE q 1 0 100000\n"), "");
    for offset in 2..20 {
        assert_eq!(h.ask(b, b"RESERVE q 1 0 100000\n"), format!("MSG {offset} {offset}\nEND 1\n"));
    }
    h.advance_ms(5_000);
    assert_eq!(h.replies(a), "MSG 1 1\nEND 1\n");
    assert_eq!(h.ask(a, b"CONFIRM q 0\n"), "CONFIRMED 1\n");
    h.kill_and_restart(config);
    let b = h.connect();
    let ready: String = (1..20).map(|offset| format!("PENDING {offset} deliveries=1 state=ready\n")).collect();
    assert_eq!(h.ask(b, b"PENDING q\n"), format!("{ready}END 19\n"));
}

/// Where there is no room for it a confirmation changes nothing: the message stays whose it is, as long as it would have without it (P11).
#[test]
fn p15_a_confirmation_without_room_is_refused_and_can_be_said_again() {
    let config = Config { space_ahead: 512, ballast_bytes: 4096, ..plain() };
    let mut h = with_messages(config.clone(), 40);
    let (a, b) = (h.connect(), h.connect());
    h.ask(a, b"RESERVE q 40 0 100000\n");
    // Nor is there any when the ballast has been given back.
    let full = Rc::new(Cell::new(true));
    for _ in 0..100 {
        let full = full.clone();
        h.fail_next(move |effect, _| full.get() && matches!(effect, Effect::Reserve { .. }), IoErrorKind::NoSpace);
    }
    let confirm = |offset: u64| format!("CONFIRM q {offset}\n").into_bytes();
    // What stands ready is given out.
    let refused = (0..).map(|offset| (offset, h.ask(a, &confirm(offset)))).find(|(_, reply)| reply != "CONFIRMED 1\n");
    let (first, reply) = refused.expect("there is an end");
    assert!((1..37).contains(&first), "{first}");
    assert!(
        reply.starts_with("ERR DISK_FULL no room to record the confirmation in work queue q; nothing was"),
        "{reply}"
    );
    assert_eq!(reports(&h, "DISK_FULL").len(), 1);
    for _ in 0..3 {
        h.advance_ms(600);
        assert!(h.ask(a, &confirm(first)).starts_with("ERR DISK_FULL "));
    }
    assert_eq!(h.ask(b, b"RESERVE q 9 0 100000\n"), "END 0\n");

    // To keep it, to give it back and to lose it needs no room.
    let (kept, aborted, lost) = (first, first + 1, first + 2);
    assert_eq!(h.ask(a, format!("EXTEND q {kept} 300000\n").as_bytes()), format!("EXTENDED {kept}\n"));
    assert_eq!(h.ask(a, format!("ABORT q {aborted} 50\n").as_bytes()), format!("ABORTED {aborted}\n"));
    h.ask(a, format!("EXTEND q {lost} 100\n").as_bytes());
    h.advance_ms(99);
    assert_eq!(h.ask(b, b"RESERVE q 9 0 300000\n"), format!("MSG {aborted} {aborted}\nEND 1\n"));
    h.advance_ms(1);
    assert_eq!(h.ask(b, b"RESERVE q 9 0 300000\n"), format!("MSG {lost} {lost}\nEND 1\n"));
    for offset in [aborted, lost] {
        assert!(h.ask(a, &confirm(offset)).starts_with("ERR NOT_RESERVED "), "{offset}");
    }

    full.set(false);
    h.advance_ms(600);
    assert_eq!(reports(&h, "DISK_FREE").len(), 1);
    for (consumer, offset) in [(a, kept), (b, aborted), (b, lost)] {
        assert_eq!(h.ask(consumer, &confirm(offset)), "CONFIRMED 1\n");
        assert!(h.ask(consumer, &confirm(offset)).starts_with("ERR NOT_RESERVED "));
    }
    h.kill_and_restart(config);
    let c = h.connect();
    let left: String = (first + 3..40).map(|offset| format!("MSG {offset} {offset}\n")).collect();
    assert_eq!(h.ask(c, b"RESERVE q 40 0 1000\n"), format!("{left}END {}\n", 40 - (first + 3)));
}

#[test]
fn a_topic_is_deleted_while_one_of_its_queues_is() {
    for steps in 0..20u32 {
        let mut h = started(plain());
        let (a, b) = (h.connect(), h.connect());
        h.ask(a, b"CREATE @t\nPUB @t DURABLE x\nRESERVE @t q 1 0 100\n");
        let left = Cell::new(steps);
        h.hold(move |_, path| path.starts_with("topics/t/") && left.replace(left.get().saturating_sub(1)) == 0);
        h.send(a, b"DELETE @t q\n");
        h.send(b, b"DELETE @t\n");
        h.release();
        h.advance_ms(100);
        assert_eq!(h.halted, None, "{steps}");
        let told = (h.replies(a), h.replies(b));
        assert_eq!(told, ("DELETED t q\n".into(), "DELETED t\n".into()), "{steps}");
    }
}

/// A segment that is too small for the checkpoint that it begins with takes an operation besides, or each new one would be as full.
#[test]
fn a_journal_whose_checkpoint_is_larger_than_a_segment_rolls_no_more_than_it_has_to() {
    let config = Config { journal_bytes: 512, pad_forces: 4096, ..plain() };
    let mut h = with_messages(config.clone(), 60);
    let a = h.connect();
    assert!(h.ask(a, b"RESERVE q 60 0 100000\n").ends_with("END 60\n"));
    for offset in 0..30 {
        assert_eq!(h.ask(a, format!("CONFIRM q {offset}\n").as_bytes()), "CONFIRMED 1\n");
    }
    assert!(journal_segments(&h).len() <= 2, "{:?}", journal_segments(&h));
    h.kill_and_restart(config);
    let b = h.connect();
    assert!(h.ask(b, b"RESERVE q 60 0 100\n").ends_with("END 30\n"));
}

/// Where the writes end is counted anew in each segment: a bound on what is queued that is smaller than a segment is no bound on segments.
#[test]
fn a_small_bound_on_queued_bytes_outlives_a_roll() {
    let config = Config { journal_bytes: 600, queue_bytes: 400, ..plain() };
    let mut h = with_messages(config, 1);
    let a = h.connect();
    for round in 0..60 {
        assert_eq!(h.ask(a, b"RESERVE q 1 0 100\nABORT q 0\n"), "MSG 0 0\nEND 1\nABORTED 0\n", "{round}");
    }
}

/// A client that asks for more and takes nothing is read no further, also when its answers wait for the journal (P13).
#[test]
fn p13_answers_that_wait_for_the_journal_are_owed_to_their_client() {
    let mut h = with_messages(Config { unsent_bytes_max: 40, ..plain() }, 30);
    let a = h.connect();
    h.ask(a, b"RESERVE q 1 0 100000\n");
    h.hold(is_journal_write);
    for _ in 0..20 {
        h.send(a, b"RESERVE q 1 0 100000\n");
    }
    let b = h.connect();
    let queues = h.ask(b, b"QUEUES\n");
    let reserved = queues.split(" reserved=").nth(1).and_then(|rest| rest.split(' ').next()).expect("a number");
    assert!(reserved.parse::<u64>().expect("a number") <= 6, "{queues}");
    h.release();
    h.run();
    assert_eq!(h.replies(a).matches("END 1\n").count(), 20);
}

#[test]
fn what_retention_took_is_a_gap_and_retention_keeps_what_is_not_confirmed() {
    let mut h = with_messages(Config { segment_bytes: 512, ..plain() }, 40);
    let a = h.connect();
    h.ask(a, b"ALTER @default retain-consumed=yes\n");
    h.ask(a, b"RESERVE q 40 0 100000\n");
    let offsets: String = (1..40).map(|offset| format!(" {offset}")).collect();
    assert_eq!(h.ask(a, format!("CONFIRM q{offsets}\n").as_bytes()), "CONFIRMED 39\n");
    assert!(h.ask(a, b"STATUS\n").contains(" start=0 "));
    h.ask(a, b"CONFIRM q 0\n");
    let status = h.ask(a, b"STATUS\n");
    let start: u64 = status
        .split(" start=")
        .nth(1)
        .and_then(|rest| rest.split(' ').next())
        .expect("a start")
        .parse()
        .expect("a number");
    assert!(start > 20, "{status}");
    // Another queue begins where the log does.
    let reply = h.ask(a, b"RESERVE r 1 0 100000\n");
    assert_eq!(reply, format!("GAP 0 {start}\nMSG {start} {start}\nEND 1\n"));
    assert!(h.ask(a, b"QUEUES\n").contains(&format!("QUEUE name=r confirmed={start} next={} ", start + 1)));
}

#[test]
fn a_queue_is_deleted_with_its_journal_and_can_be_made_again() {
    let mut h = with_messages(plain(), 2);
    let (a, b) = (h.connect(), h.connect());
    h.ask(a, b"RESERVE q 2 0 100000\nCONFIRM q 0\n");
    h.send(b, b"RESERVE q 1 1000 100\n");
    assert_eq!(h.ask(a, b"DELETE @default q\n"), "DELETED default q\n");
    assert!(journal_segments(&h).is_empty());
    assert!(h.replies(b).starts_with("ERR NO_GROUP"));
    assert!(h.ask(a, b"CONFIRM q 1\n").starts_with("ERR NO_GROUP"));
    assert_eq!(h.ask(a, b"RESERVE q 9 0 100\n"), "MSG 0 0\nMSG 1 1\nEND 2\n");
    h.ask(a, b"CREATE @t\nPUB @t DURABLE x\nRESERVE @t q 1 0 1000\n");
    assert_eq!(h.ask(a, b"DELETE @t\n"), "DELETED t\n");
    assert!(!h.disk.files().keys().any(|path| path.starts_with("topics/t")));
    h.kill_and_restart(plain());
    assert_eq!(h.halted, None);
}

#[test]
fn a_damaged_journal_refuses_the_start() {
    let mut h = with_messages(plain(), 2);
    let a = h.connect();
    h.ask(a, b"RESERVE q 2 0 100000\nCONFIRM q 0\nCONFIRM q 1\n");
    h.stop();
    let path = journal_segments(&h).remove(0);
    h.disk.file_mut(&path)[60] ^= 1;
    h.kill_and_restart(plain());
    let refused = reports(&h, "REFUSE_START");
    assert!(refused.last().is_some_and(|line| line.contains("topic=default/q")), "{refused:?}");
}
