//! Effects that fail in a recovery or while something small is replaced: which of them are no failure, and which halt (P10).

mod common;

use common::*;
use plimsoll_core::config::Config;
use plimsoll_core::effect::{Effect, HaltKind, IoErrorKind};
use plimsoll_sim::naive::{Harness, NaiveDisk};

/// A directory after a kill, with a topic, a group, and what interrupted steps leave behind.
fn littered() -> NaiveDisk {
    let mut h = started(Config { ballast_bytes: 1000, ..plain() });
    let c = h.connect();
    h.ask(c, b"CREATE @t\nPUB DURABLE x\nPUB @t DURABLE x\n");
    h.ask(c, b"FETCH g 1 0\nACK g 0\n");
    h.kill(plain());
    h.disk.put("topics/half.tmp/log/00000000000000000000.log", b"");
    h.disk.put("topics/t.tmp/topic.toml", b"");
    h.disk
}

fn restarted(meddle: impl FnOnce(&mut Harness)) -> Harness {
    let mut h = Harness::with_disk(plain(), littered());
    meddle(&mut h);
    h.start();
    h
}

#[test]
fn what_interrupted_steps_leave_behind_is_removed_beside_what_is_whole() {
    let mut h = restarted(|_| {});
    assert_eq!(h.halted, None);
    assert!(h.disk.files().keys().all(|path| !path.contains(".tmp") && path != "ballast"));
    assert!(h.disk.dirs().iter().all(|path| !path.contains(".tmp") && !path.contains("half")));
    let c = h.connect();
    assert_eq!(h.ask(c, b"READ @t 0 1\n"), "MSG 0 x\nEND 1\n");
    assert_eq!(h.ask(c, b"FETCH g 1 0\n"), "END 0\n");
}

#[test]
fn p10_a_recovery_that_cannot_do_a_step_halts() {
    type Case = (&'static str, fn(&Effect, &str) -> bool);
    let cases: [Case; 10] = [
        ("remove the ballast", |effect, path| matches!(effect, Effect::Remove { .. }) && path == "ballast"),
        ("remove a file of a leftover", |effect, path| {
            matches!(effect, Effect::Remove { .. }) && path == "topics/t.tmp/topic.toml"
        }),
        ("list a leftover", |effect, path| matches!(effect, Effect::List { .. }) && path == "topics/half.tmp/log"),
        ("remove a leftover", |effect, path| matches!(effect, Effect::RemoveDir { .. }) && path == "topics/half.tmp"),
        ("take a name", |effect, path| matches!(effect, Effect::MakeDir { .. }) && path == "topics/half"),
        ("give it back", |effect, path| matches!(effect, Effect::RemoveDir { .. }) && path == "topics/half"),
        ("make a directory", |effect, path| matches!(effect, Effect::MakeDir { .. }) && path == "topics/t/queues"),
        ("force a segment", |effect, path| matches!(effect, Effect::Force { .. }) && path == "topics/t/topic.toml"),
        ("force the copy", |effect, path| matches!(effect, Effect::Force { .. }) && path.ends_with(".log.tmp")),
        ("force a group", |effect, path| matches!(effect, Effect::Force { .. }) && path.ends_with("g.offset.tmp")),
    ];
    for (name, matches) in cases {
        let mut h = restarted(|h| h.fail_next(matches, IoErrorKind::Other));
        assert_eq!(h.unfired_failures(), 0, "{name}");
        assert_eq!(h.halted.as_ref().map(|halt| halt.kind), Some(HaltKind::IoFailure), "{name}");
        h.kill_and_restart(plain());
        assert_eq!(h.halted, None, "{name}: the next one can");
        let c = h.connect();
        assert_eq!(h.ask(c, b"READ 0 1\nREAD @t 0 1\n"), "MSG 0 x\nEND 1\n".repeat(2), "{name}");
    }
}

/// Between the look and the removal somebody else may have removed it; what can't be looked at stays, and is not forgotten.
#[test]
fn a_leftover_that_is_gone_is_removed_and_one_that_cannot_be_listed_is_not() {
    let half = |effect: &Effect, path: &str| {
        matches!(effect, Effect::List { .. } | Effect::RemoveDir { .. }) && path == "topics/half.tmp"
    };
    let listed = move |effect: &Effect, path: &str| matches!(effect, Effect::List { .. }) && half(effect, path);
    let removed = move |effect: &Effect, path: &str| matches!(effect, Effect::RemoveDir { .. }) && half(effect, path);
    let h = restarted(|h| h.fail_next(removed, IoErrorKind::NotFound));
    assert_eq!((h.halted.is_some(), h.unfired_failures()), (false, 0));
    let h = restarted(|h| (0..2).for_each(|_| h.fail_next(listed, IoErrorKind::Other)));
    assert_eq!((h.halted.is_some(), h.unfired_failures()), (true, 0));
}

/// The mark of a write that failed for want of room, and was given up, hits the next force: that one was not tried.
#[test]
fn p10_only_a_force_behind_a_failed_write_is_tried_again() {
    for (kind, halts) in
        [(IoErrorKind::AfterFailedWrite, false), (IoErrorKind::Other, true), (IoErrorKind::NoSpace, true)]
    {
        let mut h = started(plain());
        let c = h.connect();
        h.ask(c, b"PUB DURABLE x\n");
        h.ask(c, b"FETCH g 1 0\n");
        h.fail_next(|effect, path| matches!(effect, Effect::Force { .. }) && path.ends_with(".offset.tmp"), kind);
        let reply = h.ask(c, b"ACK g 0\n");
        assert_eq!((h.halted.is_some(), h.unfired_failures()), (halts, 0), "{kind:?}");
        assert!(reply.starts_with(if halts { "ERR HALTED " } else { "ACKED 1\n" }), "{kind:?}: {reply}");
    }
}

/// Nothing was published in it: all there is of it is what its making left.
#[test]
fn a_topic_that_was_answered_survives_a_kill() {
    let mut h = started(plain());
    let c = h.connect();
    assert_eq!(h.ask(c, b"CREATE @t\n"), "CREATED t\n");
    h.kill_and_restart(plain());
    let c = h.connect();
    assert_eq!(h.ask(c, b"PUB @t DURABLE x\n"), "OK 0 DURABLE\n");
}
