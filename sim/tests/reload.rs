//! Another configuration while the broker runs: what may change holds from then on, also for what was begun before.

mod common;

use common::*;
use plimsoll_core::config::Config;
use plimsoll_core::settings::Setting;
use plimsoll_sim::naive::Harness;

/// The lines about configurations, and the one of the end of the start.
fn told(h: &Harness) -> Vec<String> {
    let about = |line: &String| line.starts_with("CONFIG_") || line.starts_with("READY");
    h.reports.iter().map(ToString::to_string).filter(about).collect()
}

#[test]
fn limits_hold_from_then_on_and_what_needs_a_restart_stays() {
    let mut h = started(plain());
    let c = h.connect();
    assert_eq!(h.ask(c, b"CREATE @a\n"), "CREATED a\n");
    h.reconfigure(Config { segment_bytes: 512, topics_max: 2, pad_forces: 512, ..plain() });
    assert_eq!(
        told(&h)[1..],
        ["CONFIG_RELOADED changed=segment-bytes,max-topics", "CONFIG_NEEDS_RESTART settings=pad-forces"]
    );
    assert!(h.ask(c, b"CREATE @b\n").starts_with("ERR BAD_REQUEST there are 2 topics already"));
    for n in 0..9 {
        assert_eq!(h.ask(c, format!("PUB DURABLE {}\n", "v".repeat(150)).as_bytes()), format!("OK {n} DURABLE\n"));
    }
    assert_eq!(segments(&h.disk).len(), 5, "two to a segment of 512 bytes");
    // No padding came in between, and the same configuration again changes nothing.
    assert_eq!(h.disk.file(&segment(0)).expect("a segment").len(), 2 * 179);
    h.reconfigure(Config { segment_bytes: 512, topics_max: 2, ..plain() });
    assert_eq!(told(&h).last().expect("a line"), "CONFIG_UNCHANGED");
    assert_eq!(read_all(&mut h).lines().count(), 9);
}

/// What waits for a force by the old policy is forced by the new one at once.
#[test]
fn another_flush_policy_holds_for_what_waits_already() {
    let lazy = |ms: u64| {
        let mut config = plain();
        config.topic_defaults.set(Setting::FlushIntervalMs, Some(ms));
        config
    };
    let mut h = started(lazy(10_000));
    let c = h.connect();
    assert_eq!(h.ask(c, b"PUB WRITTEN waits\n"), "OK 0 WRITTEN\n");
    assert!(h.ask(c, b"STATUS\n").contains(" durable=0 written=1 "));
    h.reconfigure(lazy(0));
    assert!(h.ask(c, b"STATUS\n").contains(" durable=1 written=1 "));
    assert_eq!(told(&h).last().expect("a line"), "CONFIG_RELOADED changed=flush-interval-ms");
    // A topic's own word goes before the default.
    assert_eq!(h.ask(c, b"ALTER @default flush-interval-ms=0\n"), "ALTERED default\n");
    h.reconfigure(lazy(10_000));
    assert_eq!(h.ask(c, b"PUB WRITTEN does not wait\n"), "OK 1 WRITTEN\n");
    assert!(h.ask(c, b"STATUS\n").contains(" durable=2 "));
}

#[test]
fn one_that_comes_during_the_start_holds_when_it_is_over() {
    let mut h = Harness::new(plain());
    h.reconfigure(Config { topics_max: 1, ..plain() });
    h.reconfigure(Config { topics_max: 2, ..plain() });
    assert_eq!(told(&h), [""; 0]);
    h.start();
    assert_eq!(told(&h), ["READY", "CONFIG_RELOADED changed=max-topics"]);
    // And one that comes when the broker ends is for nobody.
    h.stop();
    h.reconfigure(Config { topics_max: 9, ..plain() });
    assert_eq!(told(&h).len(), 2);
}
