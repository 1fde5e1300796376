//! Starting, stopping and a full disk: when exactly, and how often.

mod common;

use common::*;
use plimsoll_core::config::Config;
use plimsoll_core::effect::{Effect, HaltKind, IoErrorKind};
use plimsoll_sim::naive::Harness;

fn is_slot_force_of_default(effect: &Effect, path: &str) -> bool {
    matches!(effect, Effect::Force { .. }) && path == "topics/default/watermark"
}

#[test]
fn a_second_start_changes_nothing() {
    let mut h = started(plain());
    let effects = h.effects.len();
    h.start();
    assert_eq!(h.effects.len(), effects);
}

#[test]
fn a_stop_that_goes_on_is_given_five_more_seconds() {
    let mut h = started(plain());
    let c = h.connect();
    h.ask(c, b"CREATE @t\nPUB DURABLE x\nPUB @t DURABLE x\n");
    h.hold(is_slot_force_of_default);
    h.stop();
    assert!(!h.stopped);
    h.advance_ms(5000);
    assert_eq!(h.halted, None, "the other topic was anchored meanwhile");
    h.advance_ms(4999);
    assert_eq!(h.halted, None);
    h.advance_ms(1);
    assert_eq!(h.halted.as_ref().map(|halt| halt.kind), Some(HaltKind::IoFailure));
    assert!(!h.stopped);
}

#[test]
fn a_stop_without_any_progress_gives_up_after_five_seconds() {
    let mut h = started(plain());
    let c = h.connect();
    h.ask(c, b"PUB DURABLE x\n");
    h.hold(is_slot_force_of_default);
    h.stop();
    h.advance_ms(4999);
    assert_eq!(h.halted, None);
    h.advance_ms(1);
    assert!(h.halted.is_some());
}

/// What is recorded last is the line; nothing is written beside it.
#[test]
fn no_room_is_looked_for_while_the_line_is_recorded() {
    let mut h = started(Config { ballast_bytes: 1000, ..plain() });
    let c = h.connect();
    h.ask(c, b"PUB DURABLE x\n");
    h.fail_next(|effect, _| matches!(effect, Effect::Create { .. }), IoErrorKind::NoSpace);
    assert!(h.ask(c, b"CREATE @t\n").starts_with("ERR DISK_FULL "));
    h.hold(is_slot_force_of_default);
    h.stop();
    h.advance_ms(3000);
    assert_eq!(count(&trace(&h), "create ballast"), 1, "the one of the start");
    h.release();
    h.run();
    assert!(h.stopped);
}

#[test]
fn room_is_looked_for_at_the_millisecond() {
    let mut h = started(Config { ballast_bytes: 1000, disk_full_retry_ms: 300, ..plain() });
    let c = h.connect();
    h.fail_next(|effect, _| matches!(effect, Effect::Create { .. }), IoErrorKind::NoSpace);
    assert!(h.ask(c, b"CREATE @t\n").starts_with("ERR DISK_FULL "));
    assert_eq!(h.disk.file("ballast"), None);
    h.advance_ms(299);
    assert!(h.ask(c, b"PUB ACCEPTED x\n").starts_with("ERR DISK_FULL "));
    h.advance_ms(1);
    assert_eq!(reports(&h, "DISK_FREE").len(), 1);
    assert_eq!(h.disk.file("ballast").map(<[u8]>::len), Some(1000));
    assert_eq!(h.ask(c, b"PUB ACCEPTED x\n"), "OK 0 ACCEPTED\n");
    // … and the next time it is given back and told again.
    h.fail_next(|effect, _| matches!(effect, Effect::Create { .. }), IoErrorKind::NoSpace);
    assert!(h.ask(c, b"CREATE @t\n").starts_with("ERR DISK_FULL "));
    assert_eq!(h.disk.file("ballast"), None);
    assert_eq!(reports(&h, "DISK_FULL").len(), 2);
}

#[test]
fn a_ballast_of_an_earlier_configuration_is_removed_at_the_start() {
    let mut h = started(Config { ballast_bytes: 1000, ..plain() });
    assert!(h.disk.file("ballast").is_some());
    h.kill_and_restart(plain());
    assert_eq!(h.disk.file("ballast"), None);
}

/// After that, only what was tried is removed.
#[test]
fn without_a_ballast_there_is_nothing_to_give_back() {
    let mut h = started(Config { disk_full_retry_ms: 100, ..plain() });
    let c = h.connect();
    let mut removed = Vec::new();
    for full in 1..=3 {
        h.fail_next(|effect, _| matches!(effect, Effect::Create { .. }), IoErrorKind::NoSpace);
        assert!(h.ask(c, b"CREATE @t\n").starts_with("ERR DISK_FULL "));
        h.advance_ms(100);
        assert_eq!(reports(&h, "DISK_FREE").len(), full);
        removed.push(count(&trace(&h), "remove ballast"));
    }
    assert_eq!([removed[1] - removed[0], removed[2] - removed[1]], [1, 1]);
}

/// It is told once, however many meet it.
#[test]
fn missing_descriptors_stop_no_publishing() {
    let mut h = started(Config { ballast_bytes: 1000, ..plain() });
    let c = h.connect();
    for name in ["t", "u"] {
        h.fail_next(|effect, _| matches!(effect, Effect::Create { .. }), IoErrorKind::TooManyFiles);
        assert!(h.ask(c, format!("CREATE @{name}\n").as_bytes()).starts_with("ERR DISK_FULL "));
    }
    assert_eq!(reports(&h, "DISK_FULL").len(), 1);
    assert_eq!(h.ask(c, b"PUB DURABLE x\n"), "OK 0 DURABLE\n");
    // Room that is missing as well is another matter.
    h.fail_next(|effect, _| matches!(effect, Effect::Create { .. }), IoErrorKind::NoSpace);
    assert!(h.ask(c, b"CREATE @t\n").starts_with("ERR DISK_FULL "));
    assert!(h.ask(c, b"PUB DURABLE x\n").starts_with("ERR DISK_FULL "));
    assert_eq!(reports(&h, "DISK_FULL").len(), 1);
    h.advance_ms(1000);
    assert_eq!(reports(&h, "DISK_FREE").len(), 1);
    assert_eq!(h.ask(c, b"PUB DURABLE x\n"), "OK 1 DURABLE\n");
}

#[test]
fn a_start_without_room_for_the_ballast_serves_and_says_so() {
    let mut h = Harness::new(Config { ballast_bytes: 1000, ..plain() });
    h.fail_next(|effect, path| matches!(effect, Effect::Create { .. }) && path == "ballast", IoErrorKind::NoSpace);
    h.start();
    assert_eq!((h.halted.clone(), h.unfired_failures()), (None, 0));
    assert_eq!(reports(&h, "DISK_FULL"), ["DISK_FULL reason=no room for the ballast"]);
    let c = h.connect();
    assert!(h.ask(c, b"PUB DURABLE x\n").starts_with("ERR DISK_FULL "));
    h.advance_ms(1000);
    assert_eq!(h.ask(c, b"PUB DURABLE x\n"), "OK 0 DURABLE\n");
    // With room, or without a ballast, nothing is said.
    for ballast_bytes in [0, 1000] {
        let h = started(Config { ballast_bytes, ..plain() });
        assert_eq!(reports(&h, "DISK_FULL").len(), 0);
    }
}

/// Those that are being made count.
#[test]
fn topics_in_the_making_are_bounded_too() {
    let mut h = started(Config { topics_max: 3, ..plain() });
    let (a, b, c) = (h.connect(), h.connect(), h.connect());
    h.hold(|effect, _| matches!(effect, Effect::Rename { .. }));
    h.send(a, b"CREATE @a\n");
    h.send(b, b"CREATE @b\n");
    assert!(h.ask(c, b"CREATE @c\n").starts_with("ERR BAD_REQUEST there are 3 topics already"));
    h.release();
    h.run();
    assert_eq!((h.replies(a), h.replies(b)), ("CREATED a\n".into(), "CREATED b\n".into()));
}

/// A topic that is quiet but not settled is looked at again, and one that nothing happened to is left alone.
#[test]
fn a_topic_is_anchored_when_it_is_quiet_and_settled() {
    let mut h = started(plain());
    let c = h.connect();
    let forces = |h: &Harness| count(&trace(h), "force topics/default/watermark");
    let before = forces(&h);
    h.hold(is_log_force);
    h.send(c, b"PUB DURABLE x\n");
    h.advance_ms(700);
    assert_eq!(forces(&h), before, "not while a force is under way");
    h.release();
    h.run();
    h.advance_ms(200);
    assert_eq!(forces(&h), before);
    h.send(c, b"PUB DURABLE y\n");
    h.advance_ms(499);
    assert_eq!(forces(&h), before, "something was published meanwhile");
    h.advance_ms(600);
    assert_eq!(forces(&h), before + 2);
    h.advance_ms(60_000);
    assert_eq!(forces(&h), before + 2, "once");
    assert_eq!(h.wakes_in_ms(), None, "nor is it looked at again");
    h.send(c, b"PUB DURABLE z\n");
    h.advance_ms(1000);
    assert_eq!(forces(&h), before + 4);
}
