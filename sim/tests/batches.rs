//! Batches: one frame, all or none, each message with an offset of its own.

mod common;

use common::*;
use plimsoll_core::config::Config;
use plimsoll_core::effect::{Effect, IoErrorKind};
use plimsoll_core::record::{self, Decoded, Kind};
use plimsoll_sim::naive::Harness;

/// The request that publishes these messages as one.
fn pubb(words: &str, messages: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for message in messages {
        bytes.extend_from_slice(&(message.len() as u32).to_be_bytes());
        bytes.extend_from_slice(message.as_bytes());
    }
    [format!("PUBB {words} {} {}\n", messages.len(), bytes.len()).as_bytes(), &bytes, b"\n"].concat()
}

fn letters(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("message-{n}")).collect()
}

fn refs(messages: &[String]) -> Vec<&str> {
    messages.iter().map(String::as_str).collect()
}

#[test]
fn a_batch_is_one_frame_and_each_message_has_an_offset() {
    let mut h = started(plain());
    let c = h.connect();
    assert_eq!(h.ask(c, b"PUB DURABLE zero\n"), "OK 0 DURABLE\n");
    let writes = count(&trace(&h), "write topics/default/log");
    assert_eq!(h.ask(c, &pubb("DURABLE", &["a", "b\n", "c\r"])), "OK 1 DURABLE 3\n");
    assert_eq!(count(&trace(&h), "write topics/default/log"), writes + 1);
    assert_eq!(h.ask(c, &pubb("WRITTEN", &["d"])), "OK 4 WRITTEN 1\n");
    assert_eq!(h.ask(c, &pubb("ACCEPTED", &["e", "f"])), "OK 5 ACCEPTED 2\n");
    assert_eq!(h.ask(c, b"PUB DURABLE seven\n"), "OK 7 DURABLE\n");
    let all = "MSG 0 zero\nMSG 1 a\nMSGN 2 2\nb\n\nMSGN 3 2\nc\r\nMSG 4 d\nMSG 5 e\nMSG 6 f\nMSG 7 seven\nEND 8\n";
    assert_eq!(h.ask(c, b"READ 0 100\n"), all);
    let bytes = h.disk.file(&segment(0)).expect("the segment").to_vec();
    let (mut at, mut frames) = (0, Vec::new());
    while let Decoded::Frame(frame) = record::decode(&bytes[at..], salt(&h.disk, "default", 0)) {
        frames.push((frame.kind, frame.offset, frame.count));
        at += frame.size();
    }
    let expected =
        [(Kind::Message, 0, 1), (Kind::Batch, 1, 3), (Kind::Batch, 4, 1), (Kind::Batch, 5, 2), (Kind::Message, 7, 1)];
    assert_eq!(frames, expected);
    h.kill_and_restart(plain());
    let c = h.connect();
    assert_eq!(h.ask(c, b"READ 0 100\n"), all);
    assert_eq!(h.ask(c, b"PUB DURABLE eight\n"), "OK 8 DURABLE\n");
}

#[test]
fn p3_a_durable_batch_is_answered_when_it_is_forced() {
    let mut h = started(plain());
    let (c, d) = (h.connect(), h.connect());
    h.hold(is_log_force);
    assert_eq!(h.ask(c, &pubb("DURABLE", &["a", "b"])), "");
    assert_eq!(h.ask(d, &pubb("WRITTEN", &["c", "d"])), "OK 2 WRITTEN 2\n");
    assert_eq!(h.ask(d, b"READ 0 10\n"), "END 0\n");
    h.release();
    h.run();
    assert_eq!(h.replies(c), "OK 0 DURABLE 2\n");
}

/// Reading, fetching, seeking and acknowledging know no batches: any offset will do.
#[test]
fn a_batch_is_read_from_the_middle_and_to_the_middle() {
    for recent_bytes in [0, 8 << 20] {
        for segment_bytes in [512, 64 << 20] {
            let mut h = started(Config { recent_bytes, segment_bytes, ..plain() });
            let c = h.connect();
            let messages = letters(20);
            h.ask(c, b"PUB DURABLE zero\n");
            assert_eq!(h.ask(c, &pubb("DURABLE", &refs(&messages))), "OK 1 DURABLE 20\n");
            h.ask(c, b"PUB DURABLE last\n");
            let shown = |from: usize, to: usize| {
                let lines: Vec<String> = (from..to)
                    .map(|n| match n {
                        0 => "MSG 0 zero\n".to_owned(),
                        21 => "MSG 21 last\n".to_owned(),
                        n => format!("MSG {n} message-{}\n", n - 1),
                    })
                    .collect();
                format!("{}END {}\n", lines.concat(), lines.len())
            };
            for from in 0..22 {
                for max in [1, 2, 7, 100] {
                    let to = (from + max).min(22);
                    assert_eq!(h.ask(c, format!("READ {from} {max}\n").as_bytes()), shown(from, to), "{from} {max}");
                }
            }
            // A group goes on in the middle, by its hint and without one.
            assert_eq!(h.ask(c, b"FETCH g 5 0\nFETCH g 5 0\n"), shown(0, 5) + &shown(5, 10));
            assert_eq!(h.ask(c, b"ACK g 7\n"), "ACKED 8\n");
            h.kill_and_restart(Config { recent_bytes, segment_bytes, ..plain() });
            let c = h.connect();
            assert_eq!(h.ask(c, b"FETCH g 100 0\n"), shown(8, 22));
            assert_eq!(h.ask(c, b"SEEK g 13\nFETCH g 2 0\n"), format!("SOUGHT 13\n{}", shown(13, 15)));
            let time = h.ask(c, b"READ 9 1 META\n");
            assert!(time.starts_with("MSGX 9 9 time=17"), "{time}");
        }
    }
}

#[test]
fn a_reply_that_may_hold_few_bytes_ends_within_a_batch() {
    let mut h = started(Config { fetch_bytes_max: 100, ..plain() });
    let c = h.connect();
    let messages = letters(10);
    h.ask(c, &pubb("DURABLE", &refs(&messages)));
    let mut next = 0;
    let mut replies = 0;
    while next < 10 {
        let reply = h.ask(c, format!("READ {next} 100\n").as_bytes());
        assert!(reply.starts_with(&format!("MSG {next} message-{next}\n")), "{reply}");
        next += reply.lines().count() as u64 - 1;
        replies += 1;
    }
    assert!((3..=10).contains(&replies), "{replies} replies");
}

#[test]
fn a_time_is_found_within_batches() {
    let mut h = started(plain());
    let c = h.connect();
    for n in 0..5 {
        h.ask(c, &pubb("DURABLE", &[&format!("{n}a"), &format!("{n}b")]));
        h.advance_ms(1000);
    }
    let at = |h: &mut Harness, ms: i64| h.ask(c, format!("SEEK g time={ms}\n").as_bytes());
    let first: i64 = {
        let reply = h.ask(c, b"READ 0 1 META\n");
        let time = reply.split("time=").nth(1).and_then(|rest| rest.split('\n').next());
        time.expect("a time").parse().expect("a number")
    };
    assert_eq!(at(&mut h, first), "SOUGHT 0\n");
    assert_eq!(at(&mut h, first + 1), "SOUGHT 2\n");
    assert_eq!(at(&mut h, first + 4000), "SOUGHT 8\n");
    assert_eq!(at(&mut h, first + 4001), "SOUGHT 10\n");
    // The copy of the tail knows the times, too.
    h.kill_and_restart(plain());
    let c = h.connect();
    assert_eq!(h.ask(c, format!("SEEK g time={}\n", first + 2500).as_bytes()), "SOUGHT 6\n");
}

#[test]
fn raw_frames_begin_with_the_batch_that_holds_the_offset() {
    let mut h = started(Config { segment_bytes: 512, ..plain() });
    let c = h.connect();
    h.ask(c, b"PUB DURABLE zero\n");
    h.ask(c, &pubb("DURABLE", &["a", "b", "c"]));
    h.ask(c, &[b"PUB DURABLE ", &[b'x'; 600][..], b"\n"].concat());
    for offset in 1..4 {
        let reply = h.ask(c, format!("READRAW {offset} 1\n").as_bytes());
        assert!(reply.starts_with("FRAMES 1 51 "), "{reply:?}");
    }
}

/// Whatever a batch is refused for: it is one request with one reply, and the next one is understood.
#[test]
fn p14_a_batch_over_a_limit_is_refused_by_name_and_stores_nothing() {
    let config = Config { payload_bytes_max: 20, publish_batch_bytes_max: 60, queue_messages: 4, ..plain() };
    let mut h = started(config.clone());
    let c = h.connect();
    let long = "x".repeat(21);
    for (request, code, names) in [
        (pubb("DURABLE", &["a"; 5]), "TOO_LARGE", "--queue-messages"),
        (pubb("DURABLE", &["ok", &long]), "TOO_LARGE", "--max-payload"),
        (pubb("DURABLE", &[&long[1..]; 3]), "TOO_LARGE", "--max-publish-batch"),
        (pubb("DURABLE", &["a", ""]), "EMPTY", "message 2"),
        (pubb("DURABLE", &[]), "EMPTY", "at least one"),
        (b"PUBB DURABLE 2 5\n\0\0\0\x01x\n".to_vec(), "BAD_REQUEST", "message 2 of 2"),
        (pubb("@nowhere DURABLE", &["a", "b"]), "NO_TOPIC", "nowhere"),
    ] {
        let reply = h.ask(c, &[&request[..], b"PING\n"].concat());
        assert!(reply.starts_with(&format!("ERR {code} ")) && reply.contains(names), "{reply}");
        assert!(reply.ends_with("\nPONG\n"), "{reply}");
    }
    assert_eq!(h.ask(c, &pubb("DURABLE", &["a"; 4])), "OK 0 DURABLE 4\n");
    assert_eq!(h.ask(c, &pubb("DURABLE", &[&long[1..], &long[1..]])), "OK 4 DURABLE 2\n");
    let hello = h.ask(c, b"HELLO\n");
    assert!(hello.contains(" maxPublishBatch=60 maxPublishBatchMessages=4 "), "{hello}");
}

/// A queue counts messages and not frames: what does not fit as a whole waits, or is refused as a whole.
#[test]
fn p13_the_queue_counts_every_message_of_a_batch() {
    let mut h = started(Config { queue_messages: 4, ..plain() });
    let (a, b) = (h.connect(), h.connect());
    h.hold(is_log_io);
    // Emitted at once; what follows gathers.
    h.send(a, b"PUB ACCEPTED first\n");
    assert_eq!(h.replies(a), "OK 0 ACCEPTED\n");
    assert_eq!(h.ask(a, &pubb("ACCEPTED", &["1", "2", "3"])), "OK 1 ACCEPTED 3\n");
    assert_eq!(h.ask(b, &pubb("ACCEPTED", &["x", "y"])).split(' ').nth(1), Some("QUEUE_FULL"));
    assert_eq!(h.ask(b, b"PUB ACCEPTED 4\n"), "OK 4 ACCEPTED\n");
    assert_eq!(h.ask(b, b"PUB ACCEPTED 5\n").split(' ').nth(1), Some("QUEUE_FULL"));
    h.release();
    h.run();
    assert_eq!(h.ask(b, &pubb("DURABLE", &["5", "6", "7", "8"])), "OK 5 DURABLE 4\n");
    // One client alone waits, and is not told off.
    h.hold(is_log_io);
    h.send(a, b"PUB ACCEPTED 9\n");
    assert_eq!(
        h.ask(a, &[pubb("ACCEPTED", &["10", "11", "12"]), pubb("WRITTEN", &["13", "14"])].concat()),
        "OK 9 ACCEPTED\nOK 10 ACCEPTED 3\n"
    );
    h.release();
    h.run();
    assert_eq!(h.replies(a), "OK 13 WRITTEN 2\n");
}

#[test]
fn a_batch_is_larger_than_a_segment_and_than_the_space_ahead() {
    for config in [
        Config { segment_bytes: 512, ..plain() },
        Config { segment_bytes: 2048, space_ahead: 512, ..plain() },
        Config { pad_forces: 512, ..plain() },
        Config { group_commit: false, ..plain() },
        Config { batch_messages: 3, batch_bytes: 100, ..plain() },
    ] {
        let mut h = started(config.clone());
        let c = h.connect();
        let messages: Vec<String> = (0..30).map(|n| format!("{n:0100}")).collect();
        for n in 0..4 {
            let reply = h.ask(c, &pubb("DURABLE", &refs(&messages)));
            assert_eq!(reply, format!("OK {} DURABLE 30\n", n * 31));
            assert_eq!(h.ask(c, b"PUB DURABLE between\n"), format!("OK {} DURABLE\n", n * 31 + 30));
        }
        let all = read_all(&mut h);
        assert_eq!(all.lines().count(), 124, "{config:?}");
        h.kill_and_restart(config);
        assert_eq!(read_all(&mut h), all);
    }
}

#[test]
fn p11_a_batch_that_finds_no_room_stores_nothing() {
    let mut h = started(Config { space_ahead: 512, ..plain() });
    let c = h.connect();
    h.ask(c, b"PUB DURABLE zero\n");
    h.fail_next(is_reserve, IoErrorKind::NoSpace);
    let messages: Vec<String> = (0..10).map(|n| format!("{n:0100}")).collect();
    assert_eq!(h.ask(c, &pubb("DURABLE", &refs(&messages))).split(' ').nth(1), Some("DISK_FULL"));
    // A message for which there is room goes on, and the batch left no hole before it.
    assert_eq!(h.ask(c, b"PUB DURABLE one\n"), "OK 1 DURABLE\n");
    h.advance_ms(1000);
    assert_eq!(h.ask(c, &pubb("DURABLE", &refs(&messages))), "OK 2 DURABLE 10\n");
}

/// A torn write of a batch leaves nothing of it, whatever part was written; what came before stays.
#[test]
fn a_batch_cut_anywhere_is_gone_as_a_whole() {
    let mut h = started(plain());
    let c = h.connect();
    h.ask(c, b"PUB DURABLE zero\n");
    let before = h.disk.file(&segment(0)).expect("the segment").len();
    h.hold(is_log_force);
    h.send(c, &pubb("WRITTEN", &["one", "two", "three"]));
    h.kill(plain());
    let disk = h.disk.clone();
    let whole = disk.file(&segment(0)).expect("the segment").len();
    for cut in before..=whole {
        let mut disk = disk.clone();
        disk.file_mut(&segment(0)).truncate(cut);
        let mut h = Harness::with_disk(plain(), disk);
        h.start();
        assert_eq!(h.halted, None);
        let expected = if cut == whole { 4 } else { 1 };
        assert_eq!(read_all(&mut h).lines().count(), expected, "cut at {cut}");
        let c = h.connect();
        assert_eq!(h.ask(c, b"PUB DURABLE next\n"), format!("OK {expected} DURABLE\n"));
    }
}

/// P7: a batch whose inside contradicts itself is refused like an unknown kind, at the start and by a reader.
#[test]
fn p7_a_batch_that_contradicts_itself_is_no_frame() {
    let mut h = started(plain());
    let c = h.connect();
    h.ask(c, b"PUB DURABLE zero\n");
    h.kill(plain());
    let salt = salt(&h.disk, "default", 0);
    for inside in [
        &[0, 0, 0, 2, 0, 0, 0, 2, 0, b'a'][..],
        &[0, 0, 0, 1, 0, 0, 0, 9, 0, b'a'],
        &[255, 255, 255, 255],
        &[0, 0, 0, 0],
    ] {
        let mut disk = h.disk.clone();
        record::encode(disk.file_mut(&segment(0)), salt, 1, 1, Kind::Batch as u8, 0, |out| {
            out.extend_from_slice(inside)
        });
        let mut h = Harness::with_disk(plain(), disk);
        h.start();
        assert_eq!(h.halted, None);
        let report = reports(&h, "RECOVERY").pop().expect("a report");
        assert!(report.contains("status=TRUNCATED_TAIL") && report.contains("reason=unknown-kind"), "{report}");
        assert_eq!(read_all(&mut h), "MSG 0 zero\n");
    }
}

/// A write of a batch that fails for want of room is done again, whole.
#[test]
fn a_batch_that_has_offsets_is_never_dropped() {
    let mut h = started(plain());
    let c = h.connect();
    h.fail_next(is_log_write, IoErrorKind::NoSpace);
    assert_eq!(h.ask(c, &pubb("DURABLE", &["a", "b"])), "OK 0 DURABLE 2\n");
    assert_eq!(reports(&h, "DISK_FULL").len(), 1);
    assert_eq!(read_all(&mut h), "MSG 0 a\nMSG 1 b\n");
    let is_one_write = |effect: &Effect| matches!(effect, Effect::Write { bytes, .. } if bytes.len() > 40);
    assert!(h.effects.iter().any(|(_, effect)| is_one_write(effect)));
}
