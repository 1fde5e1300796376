//! The flush policy: when what nobody waits for is forced, and seen.

mod common;

use common::*;
use plimsoll_core::config::Config;
use plimsoll_core::effect::ConnectionId;
use plimsoll_core::settings::Setting;
use plimsoll_sim::naive::Harness;

fn forces(h: &Harness) -> usize {
    count(&trace(h), "force topics/default/log")
}

/// A broker whose topics have this policy, and a client.
fn with_policy(policy: &[(Setting, u64)], config: Config) -> (Harness, ConnectionId) {
    let mut config = config;
    policy.iter().for_each(|(setting, value)| config.topic_defaults.set(*setting, Some(*value)));
    let mut h = started(config);
    let c = h.connect();
    (h, c)
}

const INTERVAL: (Setting, u64) = (Setting::FlushIntervalMs, 50);
const MESSAGES: (Setting, u64) = (Setting::FlushMessages, 3);

fn line(h: &mut Harness) -> String {
    let c = h.connect();
    let status = h.ask(c, b"STATUS\n");
    status.split(' ').find(|word| word.starts_with("durable=")).expect("a line").to_owned()
}

#[test]
fn an_interval_begins_with_the_first_message_that_is_not_forced() {
    let (mut h, c) = with_policy(&[INTERVAL], plain());
    h.advance_ms(1000);
    let before = forces(&h);
    assert_eq!(h.ask(c, b"PUB WRITTEN x\n"), "OK 0 WRITTEN\n");
    h.advance_ms(30);
    assert_eq!(h.ask(c, b"PUB ACCEPTED x\n"), "OK 1 ACCEPTED\n");
    h.advance_ns(19_999_999);
    assert_eq!((forces(&h), line(&mut h).as_str()), (before, "durable=0"));
    assert_eq!(h.ask(c, b"READ 0 9\n"), "END 0\n", "readers stay below the line (P4)");
    h.advance_ns(1);
    assert_eq!((forces(&h), line(&mut h).as_str()), (before + 1, "durable=2"));
    assert!(h.ask(c, b"READ 0 9\n").ends_with("END 2\n"));
}

#[test]
fn so_many_messages_are_forced_together() {
    let (mut h, c) = with_policy(&[MESSAGES], plain());
    let before = forces(&h);
    h.ask(c, b"PUB WRITTEN x\nPUB WRITTEN x\n");
    h.advance_ms(400);
    assert_eq!(forces(&h), before);
    h.ask(c, b"PUB WRITTEN x\n");
    assert_eq!((forces(&h), line(&mut h).as_str()), (before + 1, "durable=3"));
}

#[test]
fn of_two_bounds_the_first_one_counts() {
    let (mut h, c) = with_policy(&[INTERVAL, MESSAGES], plain());
    h.ask(c, b"PUB WRITTEN x\nPUB WRITTEN x\nPUB WRITTEN x\n");
    assert_eq!(line(&mut h), "durable=3");
    h.ask(c, b"PUB WRITTEN x\n");
    h.advance_ms(50);
    assert_eq!(line(&mut h), "durable=4");
}

/// P3: the policy is no excuse.
#[test]
fn a_durable_message_is_forced_at_once_and_what_stands_before_it_too() {
    let (mut h, c) = with_policy(&[INTERVAL, MESSAGES], plain());
    let before = forces(&h);
    assert_eq!(h.ask(c, b"PUB ACCEPTED a\nPUB DURABLE x\n"), "OK 0 ACCEPTED\nOK 1 DURABLE\n");
    assert_eq!((forces(&h), line(&mut h).as_str()), (before + 1, "durable=2"));
    assert_eq!(h.ask(c, b"PUB WRITTEN b\n"), "OK 2 WRITTEN\n");
    assert_eq!((forces(&h), line(&mut h).as_str()), (before + 1, "durable=2"));
    h.advance_ms(50);
    assert_eq!((forces(&h), line(&mut h).as_str()), (before + 2, "durable=3"));
}

/// Without an interval the last few messages would never be seen.
#[test]
fn a_quiet_topic_is_forced() {
    let (mut h, c) = with_policy(&[MESSAGES], Config { idle_anchor_ms: 20, ..plain() });
    h.ask(c, b"PUB WRITTEN x\n");
    h.advance_ms(19);
    assert_eq!(line(&mut h), "durable=0");
    h.advance_ms(1);
    assert_eq!(line(&mut h), "durable=1");
    // … and the next message is no part of that.
    let before = forces(&h);
    h.ask(c, b"PUB WRITTEN x\n");
    assert_eq!(forces(&h), before);
    // Nor is the topic quiet while something is published.
    h.advance_ms(10);
    h.ask(c, b"PUB WRITTEN x\n");
    h.advance_ms(19);
    assert_eq!(forces(&h), before);
    h.advance_ms(20);
    assert_eq!(line(&mut h), "durable=3");
}

#[test]
fn a_roll_and_a_stop_wait_for_no_policy() {
    let (mut h, c) = with_policy(&[MESSAGES], Config { segment_bytes: 512, idle_anchor_ms: 1_000_000, ..plain() });
    let large = [b"PUB WRITTEN ".as_slice(), &[b'x'; 400], b"\n"].concat();
    h.ask(c, &large);
    assert_eq!(line(&mut h), "durable=0");
    assert_eq!(h.ask(c, &large), "OK 1 WRITTEN\n");
    assert_eq!(line(&mut h), "durable=1");
    h.stop();
    assert!(h.stopped);
    h.kill_and_restart(plain());
    assert_eq!(line(&mut h), "durable=2");
}

#[test]
fn an_altered_policy_holds_from_the_answer_on() {
    let (mut h, c) = with_policy(&[], plain());
    assert_eq!(h.ask(c, b"ALTER @default flush-messages=2\nPUB WRITTEN x\n"), "ALTERED default\nOK 0 WRITTEN\n");
    assert_eq!(line(&mut h), "durable=0");
    assert_eq!(h.ask(c, b"ALTER @default flush-messages=0\n"), "ALTERED default\n");
    assert_eq!(line(&mut h), "durable=1", "what has waited is forced");
}

/// For comparison: each message has a force of its own, whatever the policy.
#[test]
fn without_group_commit_there_is_no_policy() {
    let (mut h, c) = with_policy(&[INTERVAL], Config { group_commit: false, ..plain() });
    h.ask(c, b"PUB WRITTEN x\nPUB WRITTEN x\n");
    assert_eq!(line(&mut h), "durable=2");
}

#[test]
fn the_largest_window_is_told() {
    let (mut h, c) = with_policy(&[INTERVAL], plain());
    h.ask(c, b"PUB WRITTEN x\n");
    h.advance_ms(20);
    h.ask(c, b"PUB WRITTEN x\nPUB WRITTEN x\n");
    h.advance_ms(30);
    h.ask(c, b"PUB DURABLE x\n");
    let status = h.ask(c, b"STATUS\n");
    assert!(status.contains(" unforcedMax=3 unforcedMaxMs=50 "), "{status}");
}

#[test]
fn what_a_force_takes_is_told() {
    let mut h = started(plain());
    let c = h.connect();
    h.hold(is_log_force);
    h.ask(c, b"PUB DURABLE x\n");
    h.advance_ns(3_500_000);
    h.release();
    h.run();
    let status = h.ask(c, b"STATUS\n");
    assert!(status.contains(" forces=1 forceMeanUs=3500 forceTotalMs=3 "), "{status}");
}
