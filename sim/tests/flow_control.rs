//! Where exactly a client is slowed down, goes on, and is cut off (P13).

mod common;

use common::*;
use plimsoll_core::config::Config;
use plimsoll_core::effect::Effect;
use plimsoll_sim::naive::Harness;

/// `PUB DURABLE` of one letter, so that this many requests of a client are without a reply.
fn publish_without_reply(h: &mut Harness, client: plimsoll_core::effect::ConnectionId, requests: usize) {
    h.send(client, &b"PUB DURABLE x\n".repeat(requests));
}

#[test]
fn a_client_whose_request_waits_is_read_up_to_64_kib_ahead() {
    let mut h = started(plain());
    let c = h.connect();
    h.send(c, b"FETCH g 1 5000\n");
    h.send(c, &[b'x'; (64 << 10) - 1]);
    assert!(h.is_reading(c));
    h.send(c, b"x");
    assert!(!h.is_reading(c));
    h.advance_ms(5000);
    assert!(h.is_reading(c), "answered, and the bytes are taken up");
    // The backend is told when it changes, and only then.
    let told = h.effects.iter().filter_map(|(_, effect)| match effect {
        Effect::SetReading { on, .. } => Some(*on),
        _ => None,
    });
    assert_eq!(told.collect::<Vec<_>>(), [false, true]);
}

/// It is read all the while, so no more bytes come that would wake it: what it takes must.
#[test]
fn requests_behind_replies_that_are_not_taken_go_on_when_they_are() {
    let mut h = started(Config { unsent_bytes_max: 1000, ..plain() });
    let (c, other) = (h.connect(), h.connect());
    h.ask(other, format!("PUB DURABLE {}\n", "x".repeat(900)).as_bytes());
    h.set_taking(c, false);
    h.send(c, &b"READ 0 1\n".repeat(6));
    assert!(h.is_reading(c));
    assert_eq!(h.replies(c).matches("END 1\n").count(), 2, "the bound is met by the second");
    h.take(c, 1000);
    assert_eq!(h.replies(c).matches("END 1\n").count(), 1);
    h.set_taking(c, true);
    assert_eq!(h.replies(c).matches("END 1\n").count(), 3);
}

#[test]
fn unsent_bytes_are_bounded_exactly() {
    // `PONG` and a line feed are five bytes.
    for (bytes, pongs) in [(9, 2), (10, 2), (11, 3)] {
        let mut h = started(Config { unsent_bytes_max: bytes, ..plain() });
        let c = h.connect();
        h.set_taking(c, false);
        h.send(c, &b"PING\n".repeat(5));
        assert_eq!(h.replies(c), "PONG\n".repeat(pongs), "{bytes}");
        h.set_taking(c, true);
        assert_eq!(h.replies(c), "PONG\n".repeat(5 - pongs), "{bytes}");
        // The same where each is sent before the next comes.
        h.set_taking(c, false);
        for _ in 0..5 {
            h.send(c, b"PING\n");
        }
        assert_eq!(h.replies(c), "PONG\n".repeat(pongs), "{bytes}");
    }
}

/// Replies that wait behind one that is not due count as well.
#[test]
fn owed_bytes_count_too() {
    let mut h = started(Config { unsent_bytes_max: 10, ..plain() });
    let c = h.connect();
    h.hold(is_log_force);
    h.send(c, &[&b"PUB DURABLE x\n"[..], &b"PING\n".repeat(3), b"PUB ACCEPTED y\n"].concat());
    assert_eq!(h.replies(c), "");
    let other = h.connect();
    assert!(h.ask(other, b"STATUS\n").contains(" next=1 "), "two PONGs are owed: the PUB is not taken up");
    h.release();
    h.run();
    assert_eq!(h.replies(c), "OK 0 DURABLE\nPONG\nPONG\nPONG\nOK 1 ACCEPTED\n");
    assert_eq!(h.ask(c, b"PING\n"), "PONG\n", "nothing is owed any more");
}

#[test]
fn unanswered_requests_are_bounded_exactly() {
    let mut h = started(Config { unanswered_max: 3, ..plain() });
    let (c, other) = (h.connect(), h.connect());
    h.hold(is_log_force);
    publish_without_reply(&mut h, c, 2);
    assert!(h.ask(other, b"STATUS\n").contains(" next=2 "));
    publish_without_reply(&mut h, c, 2);
    assert!(h.ask(other, b"STATUS\n").contains(" next=3 "));
    h.release();
    h.run();
    assert_eq!(h.replies(c).lines().count(), 4);
}

#[test]
fn who_takes_nothing_is_cut_off_at_the_millisecond() {
    let mut h = started(Config { send_stall_ms_max: 1000, ..plain() });
    let c = h.connect();
    h.set_taking(c, false);
    h.send(c, b"PING\nPING\n");
    h.advance_ms(999);
    assert!(h.is_connected(c));
    h.advance_ms(1);
    assert!(!h.is_connected(c));
    assert!(matches!(h.effects.last(), Some((_, Effect::Disconnect { now: true, .. }))));
}

/// The time runs from the first byte that is not taken, and again from each that is.
#[test]
fn the_time_until_the_cut_begins_with_what_is_not_taken() {
    let mut h = started(Config { send_stall_ms_max: 1000, ..plain() });
    let c = h.connect();
    assert_eq!(h.ask(c, b"PING\n"), "PONG\n");
    h.advance_ms(5000);
    h.set_taking(c, false);
    h.send(c, b"PING\n");
    h.advance_ms(600);
    h.send(c, b"PING\n");
    h.advance_ms(300);
    h.take(c, 5);
    h.advance_ms(999);
    assert!(h.is_connected(c), "the first was taken 999 ms ago");
    h.set_taking(c, true);
    h.advance_ms(5000);
    assert!(h.is_connected(c), "everything is taken");
    // … and it can happen again.
    h.set_taking(c, false);
    h.send(c, b"PING\n");
    h.advance_ms(1000);
    assert!(!h.is_connected(c));
}

/// A client that has said that it sends no more is closed when it has its replies, and not before.
#[test]
fn a_client_that_quits_gets_its_replies_first() {
    for bye in [&b"QUIT\n"[..], b""] {
        let mut h = started(plain());
        let c = h.connect();
        h.hold(is_log_force);
        publish_without_reply(&mut h, c, 1);
        h.send(c, bye);
        assert_eq!(h.is_reading(c), bye.is_empty());
        h.end_input(c);
        assert!(h.is_connected(c));
        h.release();
        h.run();
        let expected = if bye.is_empty() { "OK 0 DURABLE\n" } else { "OK 0 DURABLE\nBYE\n" };
        assert_eq!(h.replies(c), expected);
        assert!(!h.is_connected(c));
        let cuts = h.effects.iter().filter(|(_, effect)| matches!(effect, Effect::Disconnect { .. })).count();
        assert_eq!(cuts, 1, "told once");
    }
}

/// Of two that wait for the same thing, one that leaves takes no place from the other.
#[test]
fn who_waits_goes_on_when_another_who_waits_leaves() {
    let mut h = started(Config { queue_messages: 1, ..plain() });
    let (a, b, p) = (h.connect(), h.connect(), h.connect());
    h.send(a, b"FETCH a 1 5000\n");
    h.send(b, b"FETCH b 1 5000\n");
    h.disconnect(a);
    h.ask(p, b"PUB DURABLE x\n");
    assert_eq!(h.replies(b), "MSG 0 x\nEND 1\n");
    // The same when one has waited long enough.
    let a = h.connect();
    h.send(a, b"SEEK a end\n");
    h.send(a, b"FETCH a 1 100\n");
    h.send(b, b"FETCH b 1 1000\n");
    h.advance_ms(100);
    assert_eq!(h.replies(a), "SOUGHT 1\nEND 0\n");
    h.ask(p, b"PUB DURABLE y\n");
    assert_eq!(h.replies(b), "MSG 1 y\nEND 1\n");
    // … and for room.
    h.kill_and_restart(Config { space_ahead: 4096, ..plain() });
    h.hold(is_reserve);
    let (a, b) = (h.connect(), h.connect());
    h.send(a, b"PUB ACCEPTED a\n");
    h.send(b, b"PUB ACCEPTED b\n");
    h.disconnect(a);
    h.release();
    h.run();
    assert_eq!(h.replies(b), "OK 2 ACCEPTED\n");
}

#[test]
fn what_follows_a_quit_is_not_taken_up() {
    let mut h = started(plain());
    let c = h.connect();
    assert_eq!(h.ask(c, b"QUIT\nPUB ACCEPTED x\n"), "BYE\n");
    let other = h.connect();
    assert!(h.ask(other, b"STATUS\n").contains(" next=0 "));
}

/// A broker that waits for nothing costs nothing.
#[test]
fn nobody_is_waited_for_in_vain() {
    let mut h = started(Config { send_stall_ms_max: 1000, ..plain() });
    let c = h.connect();
    h.send(c, b"PIN");
    assert_eq!(h.wakes_in_ms(), None, "it was sent nothing that it could take");
    assert_eq!(h.ask(c, b"G\n"), "PONG\n");
    assert_eq!(h.wakes_in_ms(), Some(1000));
    h.advance_ms(1000);
    assert_eq!(h.wakes_in_ms(), None, "it has taken everything");
    h.send(c, b"FETCH g 1 5000\n");
    assert_eq!(h.wakes_in_ms(), Some(5000));
    h.disconnect(c);
    assert_eq!(h.wakes_in_ms(), None, "it has left");
}
