//! What a reader gets and what it costs: which bytes of which file are read.

mod common;

use common::*;
use plimsoll_core::config::Config;
use plimsoll_core::effect::{ConnectionId, Effect};
use plimsoll_sim::naive::Harness;

/// Nothing is kept in memory, so that every read is seen.
fn config() -> Config {
    Config { recent_bytes: 0, ..plain() }
}

/// Publishes one after the other, with values of this many bytes. A frame has 29 more.
fn publish(h: &mut Harness, client: ConnectionId, count: usize, bytes: usize) {
    h.send(client, format!("PUB DURABLE {}\n", "v".repeat(bytes)).repeat(count).as_bytes());
    assert_eq!(h.replies(client).lines().count(), count);
}

/// Asks, and says which messages came and what was read for it: position and length.
fn reads(h: &mut Harness, client: ConnectionId, request: &str) -> (Vec<u64>, Vec<(u64, u64)>) {
    let before = h.effects.len();
    let reply = h.ask(client, format!("{request}\n").as_bytes());
    let offsets = reply.lines().filter_map(|line| line.strip_prefix("MSG ")?.split(' ').next()?.parse().ok()).collect();
    let read = h.effects[before..].iter().filter_map(|(_, effect)| match effect {
        Effect::Read { position, length, .. } => Some((*position, u64::from(*length))),
        _ => None,
    });
    (offsets, read.collect())
}

#[test]
fn about_as_much_is_read_as_the_messages_take() {
    let mut h = started(config());
    let c = h.connect();
    publish(&mut h, c, 2000, 1);
    // A frame takes 30 bytes, and is taken for 46.
    for (request, messages, read) in [
        ("READ 0 1", 1, vec![(0, 4096)]),
        ("READ 0 100", 100, vec![(0, 4600)]),
        ("READ 0 1000", 1000, vec![(0, 46_000)]),
        ("READ 0 5000", 2000, vec![(0, 60_000)]),
    ] {
        let (offsets, seen) = reads(&mut h, c, request);
        assert_eq!(offsets, (0..messages).collect::<Vec<u64>>(), "{request}");
        assert_eq!(seen, read, "{request}");
    }
}

/// Where messages are larger than they are on average, each further piece is twice as large.
#[test]
fn what_was_too_little_is_doubled() {
    let mut h = started(config());
    let c = h.connect();
    publish(&mut h, c, 2000, 1);
    publish(&mut h, c, 10, 2971);
    let (offsets, seen) = reads(&mut h, c, "READ 1990 13");
    assert_eq!(offsets, (1990..2003).collect::<Vec<u64>>());
    // From the segment's begin on, for its index has an entry for 64 KiB only. The last whole frame ends what was read.
    assert_eq!(seen, [(0, 4096), (4080, 8192), (12_270, 16_384), (28_650, 32_768), (60_000, 30_000)]);
}

/// Cut off by what was read first, it ends where the segment ends.
#[test]
fn the_last_message_may_take_a_second_read() {
    let mut h = started(config());
    let c = h.connect();
    publish(&mut h, c, 2000, 1);
    publish(&mut h, c, 1, 2971);
    let (offsets, seen) = reads(&mut h, c, "READ 1999 2");
    assert_eq!(offsets, [1999, 2000]);
    assert_eq!(seen, [(0, 4096), (4080, 8192), (12_270, 16_384), (28_650, 32_768), (60_000, 3000)]);
}

#[test]
fn never_more_is_read_at_once_than_a_reply_may_hold() {
    let mut h = started(Config { fetch_bytes_max: 10_000, ..config() });
    let c = h.connect();
    publish(&mut h, c, 2000, 1);
    let (offsets, seen) = reads(&mut h, c, "READ 0 2000");
    // 333 messages take 3220 bytes of it, 226 more 2260, and so on.
    assert_eq!(seen, [(0, 10_000), (9990, 6780), (16_770, 4520), (21_270, 4096), (25_350, 4096), (29_430, 4096)]);
    assert_eq!(offsets.len(), 1006);
}

/// A consumer goes on where it was, without a search.
#[test]
fn a_consumer_that_goes_on_reads_on() {
    let mut h = started(config());
    let c = h.connect();
    publish(&mut h, c, 2000, 1);
    assert_eq!(reads(&mut h, c, "FETCH g 100 0"), ((0..100).collect(), vec![(0, 4600)]));
    assert_eq!(reads(&mut h, c, "FETCH g 100 0"), ((100..200).collect(), vec![(3000, 4600)]));
    assert_eq!(h.ask(c, b"ACK g 199\n"), "ACKED 200\n");
    assert_eq!(reads(&mut h, c, "FETCH g 1 0"), (vec![200], vec![(6000, 4096)]));
    // After a SEEK it looks for the place.
    assert_eq!(h.ask(c, b"SEEK g 10\n"), "SOUGHT 10\n");
    assert_eq!(reads(&mut h, c, "FETCH g 1 0"), (vec![10], vec![(0, 4096)]));
    assert_eq!(reads(&mut h, c, "FETCH g 1 0"), (vec![11], vec![(330, 4096)]));
}

/// The index has an entry for every 64 KiB.
#[test]
fn a_search_begins_at_the_last_entry_of_the_index() {
    let mut h = started(config());
    let c = h.connect();
    // Frames of 128 bytes.
    publish(&mut h, c, 1100, 99);
    for (offset, position) in [(0, 0), (511, 0), (512, 65_536), (513, 65_536), (1023, 65_536), (1024, 131_072)] {
        let (offsets, seen) = reads(&mut h, c, &format!("READ {offset} 1"));
        assert_eq!(offsets, [offset]);
        assert_eq!(seen[0].0, position, "{offset}");
    }
    // All of them are of one millisecond, those before the later entries, too.
    let time = h.now().wall_ms;
    assert_eq!(h.ask(c, format!("SEEK g time={time}\n").as_bytes()), "SOUGHT 0\n");
    h.kill_and_restart(config());
    let c = h.connect();
    for (offset, position) in [(511, 0), (512, 65_536), (1024, 131_072)] {
        assert_eq!(reads(&mut h, c, &format!("READ {offset} 1")).1[0].0, position, "{offset}, after a restart");
    }
}

#[test]
fn a_reply_is_filled_to_the_byte() {
    // A message of one byte takes `MSG 0 x` and a line feed in the reply, and is taken for its 14 bytes and 40 more.
    for (bytes, messages) in [(8 + 54 - 1, 1), (8 + 54, 2), (16 + 54 - 1, 2), (16 + 54, 3)] {
        for recent_bytes in [0, 1 << 20] {
            let mut h = started(Config { fetch_bytes_max: bytes, recent_bytes, ..plain() });
            let c = h.connect();
            publish(&mut h, c, 9, 1);
            assert_eq!(reads(&mut h, c, "READ 0 9").0.len(), messages, "{bytes}");
        }
    }
}

/// Asks for frames as they lie: the first offset, and how many bytes.
fn raw(h: &mut Harness, client: ConnectionId, offset: u64, bytes_max: u64) -> (u64, u64) {
    h.send(client, format!("READRAW {offset} {bytes_max}\n").as_bytes());
    let reply = h.reply_bytes(client);
    let line = reply.iter().position(|&byte| byte == b'\n').expect("a line");
    let text = std::str::from_utf8(&reply[..line]).expect("text");
    let words: Vec<u64> = text.split(' ').skip(1).map(|word| word.parse().expect("a number")).collect();
    assert_eq!(words[1], (reply.len() - line - 1) as u64);
    (words[0], words[1])
}

#[test]
fn raw_frames_end_at_the_last_that_fits() {
    let mut h = started(Config { segment_bytes: 200_000, ..config() });
    let c = h.connect();
    // 1562 frames of 128 bytes in the first segment.
    publish(&mut h, c, 2000, 99);
    for (offset, bytes_max, bytes) in [
        (0, 1, 128),
        (0, 127, 128),
        (0, 128, 128),
        (0, 255, 128),
        (0, 256, 256),
        (600, 256, 256),
        (600, 257, 256),
        (0, 65_536, 65_536),
        (0, 65_535, 65_408),
        (0, 100_000, 99_968),
        (600, 100_000, 99_968),
        (1561, 1 << 20, 128),
        (1500, 62 * 128, 62 * 128),
        (1500, 62 * 128 - 1, 61 * 128),
        (0, u64::MAX, 1562 * 128),
    ] {
        assert_eq!(raw(&mut h, c, offset, bytes_max), (offset, bytes), "{offset} {bytes_max}");
    }
    let (_, seen) = reads(&mut h, c, "READRAW 0 140000");
    let read: u64 = seen.iter().map(|(_, length)| length).sum();
    assert!(read < 3 * 65_536, "both ends are looked up in the index: {seen:?}");
    assert_eq!(raw(&mut h, c, 1562, 1000), (1562, 0), "the active segment");
    assert_eq!(raw(&mut h, c, 2000, 1000), (2000, 0), "the line");
    assert!(h.ask(c, b"READRAW 2001 1000\n").starts_with("ERR OUT_OF_RANGE "));
    assert!(h.ask(c, b"READ 2001 1\n").starts_with("ERR OUT_OF_RANGE "));
    assert_eq!(h.ask(c, b"READ 2000 1\n"), "END 0\n");
}

#[test]
fn a_frame_that_lies_across_two_reads_is_found() {
    let mut h = started(Config { segment_bytes: 65_700, ..config() });
    let c = h.connect();
    // 497 frames of 132 bytes in the first segment. Of the last one 64 bytes come with the first 64 KiB.
    publish(&mut h, c, 496, 103);
    h.advance_ms(10);
    publish(&mut h, c, 2, 103);
    assert_eq!(raw(&mut h, c, 496, 1), (496, 132));
    // Its begin, then its end.
    assert_eq!(reads(&mut h, c, "READRAW 496 1").1, [(0, 65_536), (65_472, 132), (65_472, 132)]);
    let time = h.now().wall_ms;
    assert_eq!(reads(&mut h, c, &format!("SEEK g time={time}")).1, [(0, 65_536), (65_472, 132)]);
    assert!(h.ask(c, b"FETCH g 1 0\n").starts_with("MSG 496 "));
}

/// Clocks step; the first message at or after a time is the first in the log that says so.
#[test]
fn a_time_is_found_in_any_segment() {
    for (segment_bytes, messages) in [(512, 60u64), (1 << 20, 60)] {
        let mut h = started(Config { segment_bytes, ..config() });
        let c = h.connect();
        let mut times = Vec::new();
        for n in 0..messages {
            times.push(h.now().wall_ms);
            publish(&mut h, c, 1, 20);
            h.advance_ms(10);
            if n % 13 == 12 {
                h.step_wall_ms(-35);
            }
        }
        let (first, last) = (times[0], *times.iter().max().expect("some"));
        for time in first - 1..=last + 1 {
            let expected = times.iter().position(|stamp| *stamp >= time).map_or(messages, |at| at as u64);
            assert_eq!(h.ask(c, format!("SEEK g time={time}\n").as_bytes()), format!("SOUGHT {expected}\n"), "{time}");
        }
        // Nothing at or above the line is met: the next message begins a segment, or stands behind the others in theirs.
        let active = segment(if segment_bytes == 512 { messages } else { 0 });
        h.hold(move |effect, path| is_log_io(effect, path) && path == active);
        let late = h.now().wall_ms + 1_000_000;
        h.step_wall_ms(1_000_000);
        let other = h.connect();
        assert_eq!(h.ask(other, b"PUB ACCEPTED x\n"), "OK 60 ACCEPTED\n");
        let (_, seen) = reads(&mut h, c, &format!("SEEK g time={late}"));
        assert_eq!(seen.len(), usize::from(segment_bytes != 512));
        assert_eq!(h.ask(c, b"FETCH g 1 0\n"), "END 0\n");
    }
}
