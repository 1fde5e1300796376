//! Groups whose holder leaves, is replaced or comes back, at moments that are easy to forget (P5, P6).

mod common;

use common::*;
use plimsoll_core::config::Config;
use plimsoll_core::effect::Effect;

fn is_store(effect: &Effect, path: &str) -> bool {
    matches!(effect, Effect::ForceDir { .. }) && path.ends_with("groups")
}

/// The file says where it stands, also when nobody holds it.
#[test]
fn p5_a_group_of_before_the_start_survives_that_its_holder_leaves_without_an_ack() {
    let mut h = started(plain());
    let a = h.connect();
    h.ask(a, &b"PUB DURABLE x\n".repeat(3));
    h.ask(a, b"FETCH g 1 0\nACK g 0\n");
    h.kill_and_restart(plain());
    for _ in 0..2 {
        let b = h.connect();
        assert_eq!(h.ask(b, b"FETCH g 1 0\n"), "MSG 1 x\nEND 1\n");
        h.disconnect(b);
    }
    let c = h.connect();
    assert_eq!(h.ask(c, b"GROUPS\n"), "GROUP name=g committed=1 lag=2 held=no\nEND 1\n");
}

#[test]
fn p5_a_holder_that_leaves_while_its_first_ack_is_stored_loses_nothing() {
    let mut h = started(plain());
    let a = h.connect();
    h.ask(a, &b"PUB DURABLE x\n".repeat(3));
    h.ask(a, b"FETCH g 2 0\n");
    h.hold(is_store);
    h.send(a, b"ACK g 0\n");
    h.disconnect(a);
    let b = h.connect();
    assert_eq!(h.ask(b, b"GROUPS\n"), "GROUP name=g committed=0 lag=3 held=no\nEND 1\n");
    h.release();
    h.run();
    assert_eq!(h.ask(b, b"FETCH g 1 0\n"), "MSG 1 x\nEND 1\n");
}

/// The next replacement takes what is furthest, whatever came last.
#[test]
fn p5_acks_that_come_together_move_the_offset_to_the_furthest() {
    let mut h = started(plain());
    let c = h.connect();
    h.ask(c, &b"PUB DURABLE x\n".repeat(5));
    h.ask(c, b"FETCH g 5 0\n");
    h.hold(is_store);
    h.send(c, b"ACK g 0\nACK g 3\nACK g 1\n");
    h.release();
    h.run();
    assert_eq!(h.replies(c), "ACKED 1\nACKED 4\nACKED 4\n");
    // An ACK of less, asked for while more was on its way, does not take it back.
    h.hold(is_store);
    h.send(c, b"ACK g 4\n");
    h.send(c, b"ACK g 4\n");
    h.release();
    h.run();
    assert_eq!(h.replies(c), "ACKED 5\nACKED 5\n");
}

#[test]
fn an_ack_behind_a_seek_stays_behind_it() {
    let mut h = started(plain());
    let c = h.connect();
    h.ask(c, &b"PUB DURABLE x\n".repeat(5));
    h.ask(c, b"FETCH g 5 0\nACK g 3\n");
    let b = h.connect();
    assert_eq!(h.ask(c, b"SEEK g 1\nFETCH g 2 0\nACK g 1\n"), "SOUGHT 1\nMSG 1 x\nMSG 2 x\nEND 2\nACKED 2\n");
    assert_eq!(h.ask(b, b"GROUPS\n"), "GROUP name=g committed=2 lag=3 held=yes\nEND 1\n");
}

#[test]
fn the_silence_that_loses_a_group_is_counted_to_the_millisecond() {
    let mut h = started(Config { group_idle_ms: 1000, ..plain() });
    let (a, b) = (h.connect(), h.connect());
    h.ask(a, b"PUB DURABLE x\n");
    h.ask(a, b"FETCH g 1 0\n");
    h.advance_ms(999);
    assert!(h.ask(b, b"FETCH g 1 0\n").contains("silent for 999 ms; after 1000 ms of silence"));
    h.advance_ms(1);
    assert_eq!(h.ask(b, b"FETCH g 1 0\n"), "MSG 0 x\nEND 1\n");
    // Whoever lost it and leaves takes nothing from the one who has it.
    h.disconnect(a);
    let c = h.connect();
    assert!(h.ask(c, b"FETCH g 1 0\n").starts_with("ERR GROUP_BUSY "));
    assert_eq!(h.ask(b, b"ACK g 0\n"), "ACKED 1\n");
}

/// While its request is carried out a holder is not silent, however long that takes.
#[test]
fn a_holder_whose_request_is_under_way_keeps_its_group() {
    let mut h = started(Config { group_idle_ms: 1000, ..plain() });
    let (a, b) = (h.connect(), h.connect());
    h.ask(a, b"PUB DURABLE x\n");
    h.ask(a, b"FETCH g 1 0\n");
    h.hold(is_store);
    h.send(a, b"ACK g 0\n");
    h.advance_ms(5000);
    assert!(h.ask(b, b"FETCH g 1 0\n").starts_with("ERR GROUP_BUSY "));
    h.release();
    h.run();
    assert_eq!(h.replies(a), "ACKED 1\n");
    assert_eq!(h.ask(b, b"FETCH g 1 0\n"), "END 0\n", "answered, and silent for long");
}

/// What one group loses is that group alone.
#[test]
fn a_connection_that_loses_one_group_keeps_its_others() {
    let mut h = started(Config { group_idle_ms: 1000, ..plain() });
    let (a, b, c) = (h.connect(), h.connect(), h.connect());
    h.ask(a, b"CREATE @t\nPUB DURABLE x\nPUB @t DURABLE x\n");
    assert_eq!(h.ask(a, b"FETCH g 1 0\nFETCH h 1 0\nFETCH @t g 1 0\n"), "MSG 0 x\nEND 1\n".repeat(3));
    h.advance_ms(1000);
    assert_eq!(h.ask(b, b"FETCH g 1 0\n"), "MSG 0 x\nEND 1\n");
    assert_eq!(h.ask(a, b"PING\nACK h 0\nACK @t g 0\n"), "PONG\nACKED 1\nACKED 1\n");
    // … and gives the others back when it leaves.
    h.disconnect(a);
    let groups = "GROUP name=g committed=0 lag=1 held=yes\nGROUP name=h committed=1 lag=0 held=no\nEND 2\n";
    assert_eq!(h.ask(c, b"GROUPS\n"), groups);
    assert_eq!(h.ask(c, b"GROUPS @t\n"), "GROUP name=g committed=1 lag=0 held=no\nEND 1\n");
    assert_eq!(h.ask(c, b"FETCH h 1 0\nFETCH @t g 1 0\n"), "END 0\nEND 0\n");
}

#[test]
fn a_lag_is_what_lies_between_the_offset_and_the_line() {
    let mut h = started(plain());
    let c = h.connect();
    h.ask(c, &b"PUB DURABLE x\n".repeat(4));
    assert_eq!(h.ask(c, b"FETCH g 4 0\n").lines().count(), 5);
    assert_eq!(h.ask(c, b"ACK g 2\n"), "ACKED 3\n");
    assert_eq!(h.ask(c, b"GROUPS\n"), "GROUP name=g committed=3 lag=1 held=yes\nEND 1\n");
    assert_eq!(h.ask(c, b"ACK g 3\n"), "ACKED 4\n");
    assert_eq!(h.ask(c, b"GROUPS\n"), "GROUP name=g committed=4 lag=0 held=yes\nEND 1\n");
}

/// One that waits for messages and was ended: the next one need not wait until it is silent for long.
#[test]
fn an_ended_holder_that_waits_gives_way_and_gives_back_what_it_holds() {
    let mut h = started(plain());
    let (a, b) = (h.connect(), h.connect());
    h.ask(a, b"CREATE @t\nPUB DURABLE x\nPUB @t DURABLE x\n");
    h.ask(a, b"FETCH h 1 0\nFETCH @t g 1 0\nFETCH g 1 0\n");
    h.ask(a, b"ACK h 0\nACK @t g 0\nACK g 0\n");
    h.send(a, b"FETCH g 1 5000\n");
    h.end_input(a);
    assert!(h.is_connected(a));
    assert_eq!(h.ask(b, b"FETCH g 1 0\n"), "END 0\n");
    assert_eq!(h.replies(a), "END 0\n");
    assert!(!h.is_connected(a));
    let groups = "GROUP name=g committed=1 lag=0 held=yes\nGROUP name=h committed=1 lag=0 held=no\nEND 2\n";
    assert_eq!(h.ask(b, b"GROUPS\n"), groups);
    assert_eq!(h.ask(b, b"GROUPS @t\n"), "GROUP name=g committed=1 lag=0 held=no\nEND 1\n");
    // Its wait is over, too: nobody is answered twice.
    h.advance_ms(10_000);
    assert_eq!(h.replies(a), "");
}

/// SEEK by one who doesn't hold the group: the holder goes on where it is until it comes back.
#[test]
fn a_seek_of_an_unheld_group_holds_nothing() {
    let mut h = started(plain());
    let (a, b) = (h.connect(), h.connect());
    h.ask(a, &b"PUB DURABLE x\n".repeat(4));
    assert_eq!(h.ask(b, b"SEEK g 2\n"), "SOUGHT 2\n");
    assert_eq!(h.ask(a, b"GROUPS\n"), "GROUP name=g committed=2 lag=2 held=no\nEND 1\n");
    assert_eq!(h.ask(a, b"FETCH g 1 0\n"), "MSG 2 x\nEND 1\n");
    // To the very ends, and not past them.
    assert_eq!(h.ask(a, b"SEEK g 4\n"), "SOUGHT 4\n");
    assert!(
        h.ask(a, b"SEEK g 5\n").starts_with("ERR OUT_OF_RANGE offset 5 is outside the log, which goes from 0 to 4")
    );
    assert_eq!(h.ask(a, b"SEEK g 0\n"), "SOUGHT 0\n");
    assert_eq!(h.ask(a, b"FETCH g 1 0\n"), "MSG 0 x\nEND 1\n");
}

/// A broker runs for long, and descriptors are few.
#[test]
fn an_ack_leaves_no_file_open() {
    let mut h = started(plain());
    let c = h.connect();
    h.ask(c, &b"PUB DURABLE x\n".repeat(3));
    h.ask(c, b"FETCH g 3 0\n");
    let before = h.disk.open_files();
    assert_eq!(h.ask(c, b"ACK g 0\nACK g 1\nACK g 2\n"), "ACKED 1\nACKED 3\nACKED 3\n");
    assert_eq!(h.disk.open_files(), before);
}
