//! Space ahead and rolls, to the byte (P11).

mod common;

use common::*;
use plimsoll_core::config::Config;
use plimsoll_core::effect::{ConnectionId, Effect, IoErrorKind};
use plimsoll_core::record::PADDING_BYTES_MIN;
use plimsoll_sim::naive::Harness;

/// The chunks of space that were asked for, position and length.
fn chunks(h: &Harness) -> Vec<(u64, u64)> {
    let reserved = h.effects.iter().filter_map(|(_, effect)| match effect {
        Effect::Reserve { position, length, .. } => Some((*position, *length)),
        _ => None,
    });
    reserved.collect()
}

/// A frame of this many bytes.
fn frame(h: &mut Harness, client: ConnectionId, bytes: usize) -> String {
    h.ask(client, format!("PUB DURABLE {}\n", "v".repeat(bytes - 29)).as_bytes())
}

#[test]
fn the_next_chunk_is_begun_when_less_than_half_is_free() {
    let mut h = started(Config { space_ahead: 4096, ..plain() });
    let c = h.connect();
    for n in 0..16 {
        assert_eq!(frame(&mut h, c, 128), format!("OK {n} DURABLE\n"));
    }
    assert_eq!(chunks(&h), [(0, 4096)], "half is free");
    frame(&mut h, c, 128);
    assert_eq!(chunks(&h), [(0, 4096), (4096, 4096)]);
}

/// … and one after the other.
#[test]
fn one_chunk_is_under_way_at_a_time() {
    let mut h = started(Config { space_ahead: 4096, ..plain() });
    let c = h.connect();
    frame(&mut h, c, 128);
    h.hold(is_reserve);
    for _ in 1..32 {
        frame(&mut h, c, 128);
    }
    assert_eq!(frame(&mut h, c, 128), "", "the chunk is full to the byte");
    assert_eq!(chunks(&h).len(), 2);
    h.release();
    h.run();
    assert_eq!(h.replies(c), "OK 32 DURABLE\n");
}

/// While there is no room, nobody asks for it but the one who looks for it.
#[test]
fn no_chunk_is_begun_while_the_disk_is_full() {
    let mut h = started(Config { space_ahead: 4096, ballast_bytes: 1000, disk_full_retry_ms: 500, ..plain() });
    let c = h.connect();
    frame(&mut h, c, 128);
    h.fail_next(|effect, _| matches!(effect, Effect::Create { .. }), IoErrorKind::NoSpace);
    assert!(h.ask(c, b"CREATE @t\n").starts_with("ERR DISK_FULL "));
    let before = chunks(&h);
    for n in 1..32 {
        assert_eq!(frame(&mut h, c, 128), format!("OK {n} DURABLE\n"), "what stands ready is given out");
    }
    for _ in 0..3 {
        assert!(frame(&mut h, c, 128).starts_with("ERR DISK_FULL "));
    }
    assert_eq!(chunks(&h), before);
    h.advance_ms(500);
    assert_eq!(frame(&mut h, c, 128), "OK 32 DURABLE\n");
}

/// A padded force may take one sector more than the message: who might not fit goes into the next segment.
#[test]
fn a_message_needs_room_for_its_padding() {
    let fits = 512 - PADDING_BYTES_MIN as usize;
    for (bytes, base) in [(fits, 0), (fits + 1, 6)] {
        let mut h = started(Config { pad_forces: 512, segment_bytes: 4096, ..plain() });
        let c = h.connect();
        for _ in 0..6 {
            frame(&mut h, c, 30);
        }
        assert_eq!(frame(&mut h, c, bytes), "OK 6 DURABLE\n");
        assert_eq!(segments(&h.disk).pop(), Some(segment(base)), "{bytes}");
    }
}

#[test]
fn a_stop_waits_for_the_chunk_that_is_under_way() {
    let mut h = started(Config { space_ahead: 4096, ..plain() });
    let c = h.connect();
    h.hold(is_reserve);
    h.send(c, b"PUB DURABLE x\n");
    h.stop();
    assert!(!h.stopped);
    assert!(h.replies(c).starts_with("ERR STOPPING "));
    h.release();
    h.run();
    assert!(h.stopped);
}

/// Another client's chunk is enough for those who wait behind it, in their order.
#[test]
fn those_who_wait_for_space_go_on_in_their_order() {
    let mut h = started(Config { space_ahead: 4096, ..plain() });
    let clients: [ConnectionId; 4] = std::array::from_fn(|_| h.connect());
    h.hold(is_reserve);
    for client in clients {
        h.send(client, b"PUB ACCEPTED x\n");
    }
    h.release();
    h.run();
    let replies: Vec<String> = clients.iter().map(|client| h.replies(*client)).collect();
    assert_eq!(replies, ["OK 0 ACCEPTED\n", "OK 1 ACCEPTED\n", "OK 2 ACCEPTED\n", "OK 3 ACCEPTED\n"]);
}
