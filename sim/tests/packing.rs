//! Packing: one stuck message does not pin the others (P2, P7, P12, P16).

mod common;

use common::*;
use plimsoll_core::config::Config;
use plimsoll_core::effect::{ConnectionId, Effect, IoErrorKind};
use plimsoll_sim::naive::Harness;

fn small() -> Config {
    Config { segment_bytes: 1024, ..plain() }
}

/// A topic with `count` messages of a queue; all but those in `stuck` are confirmed.
fn confirmed_but(stuck: &[u64], count: u64) -> (Harness, ConnectionId) {
    let mut h = started(small());
    let c = h.connect();
    assert_eq!(h.ask(c, b"ALTER @default retain-consumed=yes\n"), "ALTERED default\n");
    for value in 0..count {
        let publish = format!("PUBN DURABLE 8 id=7:{value}\nvalue{value:03}\n");
        assert_eq!(h.ask(c, publish.as_bytes()), format!("OK {value} DURABLE\n"));
    }
    h.ask(c, format!("RESERVE q {count} 0 1000000\n").as_bytes());
    let done: String = (0..count).filter(|offset| !stuck.contains(offset)).map(|offset| format!(" {offset}")).collect();
    h.ask(c, format!("CONFIRM q{done}\n").as_bytes());
    (h, c)
}

fn status(h: &mut Harness, c: ConnectionId, field: &str) -> u64 {
    let status = h.ask(c, b"STATUS\n");
    let rest = status.split(&format!(" {field}=")).nth(1).expect("the field");
    rest.split([' ', '\n']).next().and_then(|number| number.parse().ok()).expect("a number")
}

/// Whether it is the file that a segment is written anew to.
fn is_packed(path: &str) -> bool {
    path.ends_with(".log.tmp")
}

fn is_tmp(effect: &Effect, path: &str) -> bool {
    matches!(effect, Effect::Write { .. } | Effect::Force { .. }) && is_packed(path)
}

#[test]
fn a_segment_with_few_messages_left_is_written_anew() {
    let (mut h, c) = confirmed_but(&[3], 100);
    let before = status(&mut h, c, "bytes");
    h.advance_ms(1_000);
    // The first one for 3, and those behind it, which it pins, for nothing at all.
    assert_eq!(status(&mut h, c, "packed"), 4);
    assert_eq!(status(&mut h, c, "packFailures"), 0);
    assert_eq!(status(&mut h, c, "start"), 0);
    assert_eq!(before - status(&mut h, c, "bytes"), status(&mut h, c, "packedBytes"));
    // It is gone from memory, too: who asks now is told what is told after a restart.
    let read = h.ask(c, b"READ 0 2\n");
    assert!(read.starts_with("GAP 0 3\nMSG 3 value003\nGAP 4 "), "{read}");
    h.kill_and_restart(small());
    assert_eq!(h.halted, None);
    let c = h.connect();
    assert_eq!(h.ask(c, b"READ 0 2\n"), read);
    // The others of the segment are known still.
    assert_eq!(h.ask(c, b"PUBN DURABLE 1 id=7:2\nx\n"), "OK 2 DURABLE\n");
    assert_eq!(h.ask(c, b"RESERVE q 9 0 1000\n"), "MSG 3 value003\nEND 1\n");
    h.ask(c, b"CONFIRM q 3\n");
    h.advance_ms(100);
    assert_eq!(status(&mut h, c, "start"), 80);
}

#[test]
fn a_packing_that_fails_leaves_the_segment_as_it_was_and_is_tried_again() {
    for kind in [IoErrorKind::NoSpace, IoErrorKind::Other] {
        let (mut h, c) = confirmed_but(&[3], 100);
        let before = h.disk.file(&segment(0)).expect("the segment").to_vec();
        h.fail_next(is_tmp, kind);
        h.advance_ms(1_000);
        assert_eq!(h.halted, None);
        assert_eq!((status(&mut h, c, "packed"), status(&mut h, c, "packFailures")), (0, 1));
        assert_eq!(h.disk.file(&segment(0)), Some(&before[..]));
        assert!(!h.disk.files().keys().any(|path| path.ends_with(".tmp")));
        assert_eq!(reports(&h, "PACK_FAILED").len(), 1);
        assert!(h.ask(c, b"PUB DURABLE x\n").starts_with("OK 100 DURABLE"));
        h.advance_ms(31_000);
        assert_eq!(status(&mut h, c, "packed"), 4);
    }
}

#[test]
fn nothing_is_packed_that_somebody_else_may_read() {
    let (mut h, c) = confirmed_but(&[3], 100);
    h.ask(c, b"FETCH g 1 0\n");
    h.advance_ms(5_000);
    assert_eq!(status(&mut h, c, "packed"), 0);
    let (mut h, c) = confirmed_but(&[3], 100);
    // Another queue has had none of them.
    h.ask(c, b"RESERVE r 1 0 1000000\n");
    h.advance_ms(5_000);
    assert_eq!(status(&mut h, c, "packed"), 0);
}

/// Where consumers are at work a segment is about to go by itself.
#[test]
fn nothing_is_packed_that_was_not_handed_out_whole() {
    let mut h = started(small());
    let c = h.connect();
    assert_eq!(h.ask(c, b"ALTER @default retain-consumed=yes\n"), "ALTERED default\n");
    for value in 0..60 {
        h.ask(c, format!("PUB DURABLE value{value:03}\n").as_bytes());
    }
    // All but one of the first 15, of some 20 that the first segment has.
    for offset in 0..15 {
        h.ask(c, b"RESERVE q 1 0 1000000\n");
        if offset != 3 {
            assert_eq!(h.ask(c, format!("CONFIRM q {offset}\n").as_bytes()), "CONFIRMED 1\n");
        }
    }
    h.advance_ms(5_000);
    assert_eq!(status(&mut h, c, "packed"), 0);
    h.ask(c, b"RESERVE q 30 0 1000000\n");
    h.ask(c, b"CONFIRM q 15 16\n");
    h.advance_ms(5_000);
    assert_eq!(status(&mut h, c, "packed"), 1);
}

/// A message that is not forced to be confirmed stays.
#[test]
fn p15_what_is_confirmed_in_memory_alone_is_not_packed_away() {
    let (mut h, c) = confirmed_but(&[3, 4], 100);
    h.hold(|effect, path| matches!(effect, Effect::Force { .. }) && path.contains("/queues/q/log/"));
    h.send(c, b"CONFIRM q 4\n");
    h.advance_ms(10_000);
    let packed = h.disk.file(&segment(0)).expect("the segment").to_vec();
    assert!(packed.windows(8).any(|bytes| bytes == b"value004"));
    h.release();
    h.run();
    h.advance_ms(2_000);
    let packed = h.disk.file(&segment(0)).expect("the segment").to_vec();
    assert!(!packed.windows(8).any(|bytes| bytes == b"value004"));
    assert!(packed.windows(8).any(|bytes| bytes == b"value003"));
}

/// Whatever step of the packing is the last before a kill.
#[test]
fn p9_a_kill_at_any_step_of_packing_loses_nothing() {
    let mut steps = 0u32;
    loop {
        let (mut h, _) = confirmed_but(&[3], 100);
        let left = std::cell::Cell::new(steps);
        h.hold(move |effect, path| {
            let is_step = path.starts_with("topics/default/")
                && matches!(
                    effect,
                    Effect::Create { .. }
                        | Effect::Write { .. }
                        | Effect::Force { .. }
                        | Effect::Rename { .. }
                        | Effect::ForceDir { .. }
                );
            is_step && left.replace(left.get().saturating_sub(1)) == 0
        });
        h.advance_ms(1_000);
        let ended = h.held() == 0;
        h.kill_and_restart(small());
        assert_eq!(h.halted, None, "after {steps} steps");
        let c = h.connect();
        let read = h.ask(c, b"RESERVE q 9 0 1000\n");
        assert_eq!(read, "MSG 3 value003\nEND 1\n", "after {steps} steps");
        assert_eq!(h.ask(c, b"PUBN DURABLE 1 id=7:2\nx\n"), "OK 2 DURABLE\n", "after {steps} steps");
        if ended {
            break;
        }
        steps += 1;
    }
    assert!(steps > 5, "{steps}");
}

/// What is known of producers is stored by one of the two at a time, and for both (P16).
#[test]
fn p16_the_start_may_move_while_a_segment_is_packed() {
    let is_producers = |effect: &Effect, path: &str| {
        path.contains("/producers") && !matches!(effect, Effect::Open { .. } | Effect::Read { .. })
    };
    let mut steps = 0u32;
    loop {
        // The first segment goes when 3 is confirmed; 50 is in one that is packed.
        let (mut h, c) = confirmed_but(&[3, 50], 100);
        let left = std::cell::Cell::new(steps);
        h.hold(move |effect, path| is_producers(effect, path) && left.replace(left.get().saturating_sub(1)) == 0);
        h.advance_ms(1_000);
        let ended = h.held() == 0;
        h.send(c, b"CONFIRM q 3\n");
        h.release();
        h.advance_ms(2_000);
        assert_eq!(h.halted, None, "after {steps} steps");
        assert!(status(&mut h, c, "packed") > 1 && status(&mut h, c, "start") > 3, "after {steps} steps");
        h.kill_and_restart(small());
        let c = h.connect();
        for offset in [2, 45, 99] {
            let again = format!("PUBN DURABLE 1 id=7:{offset}\nx\n");
            assert_eq!(h.ask(c, again.as_bytes()), format!("OK {offset} DURABLE\n"), "after {steps} steps");
        }
        if ended {
            return assert!(steps > 3, "{steps}");
        }
        steps += 1;
    }
}

/// The first segment is packed while a PURGE takes it and the one behind it, 20 to 40. Of the others nothing is confirmed.
fn purged_while_packed(stuck: &[u64]) -> Harness {
    let is_start = |effect: &Effect, path: &str| is_slot_write(effect, path) && path == "topics/default/watermark";
    let begins_packing = |effect: &Effect, path: &str| matches!(effect, Effect::Create { .. }) && is_packed(path);
    let stuck: Vec<u64> = stuck.iter().copied().chain(40..100).collect();
    let (mut h, c) = confirmed_but(&stuck, 100);
    assert_eq!(segments(&h.disk)[..3], [0, 20, 40].map(segment));
    h.advance_ms(990);
    // The producers' file says all that there is below 40, and 40 is on its way to the slots, when the packing begins.
    h.hold(move |effect, path| is_start(effect, path) || begins_packing(effect, path));
    let purging = h.connect();
    h.send(purging, b"PURGE 40\n");
    h.advance_ms(10);
    assert_eq!((h.held(), status(&mut h, c, "start")), (2, 0));
    // The slots say it before the packing ends.
    h.release();
    h.hold(|effect, path| matches!(effect, Effect::Force { .. }) && is_packed(path));
    h.advance_ms(0);
    assert_eq!((h.held(), status(&mut h, c, "start")), (1, 40));
    h.release();
    h.advance_ms(60_000);
    assert_eq!(h.replies(purging), "PURGED 40\n");
    assert_eq!((status(&mut h, c, "packed"), segments(&h.disk)[0].clone()), (1, segment(40)));
    h
}

/// The start is on its way further than what is packed: what was stored for that stays stored (P16). Nothing is stored later that would
/// make up for it: the segments below the new start are gone by then, and none above it is worth packing.
#[test]
fn p16_packing_forgets_nobody_whose_messages_the_start_takes() {
    // Only the first segment is worth packing.
    let stuck: Vec<u64> = [3].into_iter().chain(20..40).collect();
    let mut h = purged_while_packed(&stuck);
    h.kill_and_restart(small());
    let c = h.connect();
    for offset in [2, 25, 39] {
        let again = format!("PUBN DURABLE 1 id=7:{offset}\nx\n");
        assert_eq!(h.ask(c, again.as_bytes()), format!("OK {offset} DURABLE\n"));
    }
}

/// What the start has left behind is about to be removed: it is not written anew first.
#[test]
fn nothing_is_packed_that_lies_below_the_start() {
    purged_while_packed(&[3]);
}

/// A batch stays as long as one of its messages does: it is no reason to write its segment anew again and again.
/// What is due comes in the order of becoming due. A gap that was told among higher offsets is none among lower ones.
#[test]
fn p6_a_gap_hides_nothing_that_lies_below_it() {
    let config = Config { fetch_bytes_max: 150, ..small() };
    let mut h = started(config);
    let c = h.connect();
    assert_eq!(h.ask(c, b"ALTER @default retain-consumed=yes\n"), "ALTERED default\n");
    for offset in 0..60 {
        let value = format!("{offset:0>size$}", size = if offset == 1 { 200 } else { 8 });
        h.ask(c, format!("PUB DURABLE {value}\n").as_bytes());
    }
    for offset in 0..60 {
        h.ask(c, b"RESERVE q 1 0 1000000\n");
        if ![0, 1, 2, 9].contains(&offset) {
            assert_eq!(h.ask(c, format!("CONFIRM q {offset}\n").as_bytes()), "CONFIRMED 1\n");
        }
    }
    h.advance_ms(1_000);
    assert!(status(&mut h, c, "packed") > 0);
    h.ask(c, b"DELETE @default q\n");
    h.ask(c, b"RESERVE q 1 0 1000000\n");
    assert_eq!(h.ask(c, b"ABORT q 0 500\n"), "ABORTED 0\n");
    // There is room for one: 2 to 9 are put back.
    let read = h.ask(c, b"RESERVE q 9 0 1000000\n");
    assert!(read.starts_with("MSG 1 0000") && read.ends_with("\nEND 1\n"), "{read}");
    h.advance_ms(500);
    let read = h.ask(c, b"RESERVE q 9 0 1000000\n");
    assert_eq!(read, "MSG 2 00000002\nGAP 3 9\nMSG 9 00000009\nMSG 0 00000000\nEND 3\n");
}

#[test]
fn a_segment_that_can_get_no_smaller_is_packed_once() {
    let mut h = started(small());
    let c = h.connect();
    h.ask(c, b"ALTER @default retain-consumed=yes\n");
    let mut batch = format!("PUBB DURABLE 30 {}\n", 30 * 14).into_bytes();
    for value in 0..30 {
        batch.extend_from_slice(&10u32.to_be_bytes());
        batch.extend_from_slice(format!("value{value:05}").as_bytes());
    }
    batch.push(b'\n');
    assert_eq!(h.ask(c, &batch), "OK 0 DURABLE 30\n");
    for value in 0..60 {
        h.ask(c, format!("PUB DURABLE value{value:05}\n").as_bytes());
    }
    h.ask(c, b"RESERVE q 90 0 10000000\n");
    let done: String = (1..90).map(|offset| format!(" {offset}")).collect();
    h.ask(c, format!("CONFIRM q{done}\n").as_bytes());
    h.advance_ms(2_000);
    let packed = status(&mut h, c, "packed");
    h.advance_ms(60_000);
    assert!(packed > 0);
    assert_eq!(status(&mut h, c, "packed"), packed);
}

/// A queue begins with what is there, also with what was about to be packed away.
#[test]
fn p15_a_queue_that_is_made_meanwhile_loses_nothing() {
    let (mut h, c) = confirmed_but(&[3], 100);
    h.hold(|effect, path| matches!(effect, Effect::Force { .. }) && is_packed(path));
    h.advance_ms(1_000);
    assert_eq!(h.held(), 1);
    h.send(c, b"RESERVE new 2 0 100\n");
    h.release();
    h.advance_ms(0);
    assert_eq!(h.replies(c), "MSG 0 value000\nMSG 1 value001\nEND 2\n");
    // Nobody has confirmed them for good.
    h.advance_ms(60_000);
    assert_eq!(status(&mut h, c, "packed"), 0);
    assert_eq!(h.ask(c, b"RESERVE new 2 0 100\n"), "MSG 0 value000\nMSG 1 value001\nEND 2\n");
}
