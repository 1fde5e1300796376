//! PURGE and DELETE, scripted: what clients see, and which effects it takes.

mod common;

use common::*;
use plimsoll_core::config::Config;
use plimsoll_core::effect::{Effect, IoErrorKind};
use plimsoll_core::record::OVERHEAD_BYTES;
use plimsoll_core::settings::{Setting, Settings};
use plimsoll_sim::naive::Harness;
use proptest::prelude::*;

const FILL: &str =
    "....:....1....:....2....:....3....:....4....:....5....:....6....:....7....:....8....:....9....:....0";

/// Three messages of 100 bytes fill a segment.
fn small() -> Config {
    Config { segment_bytes: 512, recent_bytes: 0, idle_anchor_ms: 1_000_000, ..plain() }
}

/// `count` messages of 100 bytes.
fn filled(config: Config, count: u64) -> Harness {
    let mut h = started(config);
    publish(&mut h, "default", 0, count);
    h
}

fn publish(h: &mut Harness, topic: &str, first: u64, count: u64) {
    let client = h.connect();
    for offset in first..first + count {
        let request = format!("PUB @{topic} DURABLE {FILL}\n");
        assert_eq!(h.ask(client, request.as_bytes()), format!("OK {offset} DURABLE\n"));
    }
    h.disconnect(client);
}

fn ask(h: &mut Harness, request: &str) -> String {
    let client = h.connect();
    let reply = h.ask(client, request.as_bytes());
    h.disconnect(client);
    reply
}

fn status(h: &mut Harness, key: &str) -> u64 {
    let line = ask(h, "STATUS\n");
    let value = line.split([' ', '\n']).find_map(|word| word.strip_prefix(&format!("{key}=")).map(str::to_owned));
    value.unwrap_or_else(|| panic!("no {key} in {line}")).parse().expect("a number")
}

/// A reply with every filled message told as `<offset>`.
fn brief(reply: &str) -> String {
    reply.replace(FILL, "")
}

fn log_files(h: &Harness) -> Vec<String> {
    let names = segments(&h.disk).into_iter().map(|path| path.rsplit('/').next().expect("a name").to_owned());
    names.map(|name| name.trim_start_matches('0').trim_end_matches(".log").to_owned()).collect()
}

#[test]
fn purge_takes_whole_segments_and_answers_the_start() {
    let mut h = filled(small(), 10);
    assert_eq!(log_files(&h), ["", "3", "6", "9"]);
    assert_eq!(ask(&mut h, "PURGE 0\n"), "PURGED 0\n");
    assert_eq!(ask(&mut h, "PURGE 7\n"), "PURGED 7\n");
    assert_eq!(log_files(&h), ["6", "9"]);
    assert_eq!(status(&mut h, "start"), 7);
    assert_eq!(ask(&mut h, "PURGE 2\n"), "PURGED 7\n");
    assert!(
        ask(&mut h, "PURGE 11\n").starts_with("ERR OUT_OF_RANGE offset 11 is outside the log, which goes from 7 to 10")
    );
    assert_eq!(brief(&ask(&mut h, "READ 0 2\n")), "GAP 0 7\nMSG 7 \nMSG 8 \nEND 2\n");
    assert_eq!(brief(&ask(&mut h, "READ 7 1\n")), "MSG 7 \nEND 1\n");
    assert!(ask(&mut h, "READRAW 6 100\n").starts_with("ERR OUT_OF_RANGE"));
    assert!(ask(&mut h, "READRAW 7 100\n").starts_with("FRAMES 7 "));
    assert!(ask(&mut h, "SEEK g 6\n").starts_with("ERR OUT_OF_RANGE"));
    assert_eq!(ask(&mut h, "SEEK g start\n"), "SOUGHT 7\n");
    // The start in the middle of a segment is the same after a crash, and after a stop.
    h.kill_and_restart(small());
    assert_eq!((status(&mut h, "start"), status(&mut h, "durable")), (7, 10));
    h.stop();
    h.kill_and_restart(small());
    assert_eq!(brief(&ask(&mut h, "READ 0 9\n")), "GAP 0 7\nMSG 7 \nMSG 8 \nMSG 9 \nEND 3\n");
}

#[test]
fn the_start_is_recorded_before_a_segment_goes_and_the_oldest_goes_first() {
    let mut h = filled(small(), 10);
    h.effects.clear();
    let client = h.connect();
    h.hold(|effect, path| matches!(effect, Effect::Force { .. }) && path.ends_with("/watermark"));
    h.send(client, b"PURGE 9\n");
    h.run();
    // Neither visible nor removed before it is anchored.
    assert_eq!((h.replies(client), status(&mut h, "start"), log_files(&h).len()), (String::new(), 0, 4));
    h.release();
    h.run();
    assert_eq!(h.replies(client), "PURGED 9\n");
    let of_purge = |line: &String| !line.starts_with("list") && !line.starts_with("open");
    let lines: Vec<String> = trace(&h).into_iter().filter(of_purge).collect();
    let short = |line: &str| {
        line.replace("topics/default/", "")
            .replace("log/00000000000000000000", "0")
            .replace("log/0000000000000000000", "")
    };
    let lines: Vec<String> = lines.iter().map(|line| short(line)).collect();
    assert_eq!(
        lines,
        [
            "write ",
            "force ",
            "write ",
            "force ",
            "remove 0.index",
            "remove 0.log",
            "remove 3.index",
            "remove 3.log",
            "remove 6.index",
            "remove 6.log",
            "forcedir log"
        ]
    );
}

#[test]
fn purging_everything_rolls_so_that_the_space_is_given_back() {
    let mut h = filled(small(), 5);
    assert_eq!(ask(&mut h, "PURGE 5\n"), "PURGED 5\n");
    assert_eq!((log_files(&h), status(&mut h, "bytes")), (vec!["5".to_owned()], 0));
    assert_eq!(ask(&mut h, "READ 0 10\n"), "GAP 0 5\nEND 0\n");
    assert_eq!(ask(&mut h, "PURGE 5\n"), "PURGED 5\n");
    publish(&mut h, "default", 5, 1);
    h.kill_and_restart(small());
    assert_eq!(brief(&ask(&mut h, "READ 0 10\n")), "GAP 0 5\nMSG 5 \nEND 1\n");
}

#[test]
fn a_consumer_behind_the_start_is_told_of_the_gap_and_goes_on() {
    let mut h = filled(small(), 4);
    let consumer = h.connect();
    assert_eq!(brief(&h.ask(consumer, b"FETCH g 1 0\nACK g 0\n")), "MSG 0 \nEND 1\nACKED 1\n");
    publish(&mut h, "default", 4, 3);
    assert_eq!(ask(&mut h, "PURGE 5\n"), "PURGED 5\n");
    assert_eq!(brief(&h.ask(consumer, b"FETCH g 1 0\n")), "GAP 1 5\nMSG 5 \nEND 1\n");
    assert_eq!(h.ask(consumer, b"ACK g 5\n"), "ACKED 6\n");
    // One that has nothing more to come is told, too, and can acknowledge that.
    assert_eq!(ask(&mut h, "PURGE 7\n"), "PURGED 7\n");
    assert_eq!(h.ask(consumer, b"FETCH g 1 1000\n"), "GAP 6 7\nEND 0\n");
    assert_eq!(h.ask(consumer, b"ACK g 6\n"), "ACKED 7\n");
    h.kill_and_restart(small());
    assert_eq!(ask(&mut h, "GROUPS\n"), "GROUP name=g committed=7 lag=0 held=no\nEND 1\n");
}

#[test]
fn a_read_in_progress_goes_on_behind_what_was_removed() {
    let mut h = filled(small(), 10);
    let (reader, raw, seeker) = (h.connect(), h.connect(), h.connect());
    h.hold(|effect, _| matches!(effect, Effect::Read { .. }));
    h.send(reader, b"READ 0 100\n");
    h.send(raw, b"READRAW 1 1\n");
    h.send(seeker, b"SEEK g time=0\n");
    h.run();
    assert_eq!(ask(&mut h, "PURGE 8\n"), "PURGED 8\n");
    assert_eq!(log_files(&h), ["6", "9"]);
    h.release();
    h.run();
    // What had been asked of the disk came back; no closed file was asked for anything.
    assert_eq!(brief(&h.replies(reader)), "MSG 0 \nMSG 1 \nMSG 2 \nGAP 3 8\nMSG 8 \nMSG 9 \nEND 5\n");
    assert!(h.replies(raw).starts_with("ERR OUT_OF_RANGE offset 1 was removed meanwhile; the log begins at 8"));
    assert_eq!(h.replies(seeker), "SOUGHT 8\n");
}

#[test]
fn a_stalled_readraw_of_a_removed_segment_is_cut_off() {
    let mut h = filled(small(), 10);
    let (stalled, pipelining, other) = (h.connect(), h.connect(), h.connect());
    for client in [stalled, pipelining, other] {
        h.set_taking(client, false);
    }
    h.send(stalled, b"READRAW 0 1000\n");
    h.send(other, b"READRAW 6 1000\n");
    h.run();
    // Its first reply is not there yet, so the frames of the second are not on their way.
    h.hold(|effect, path| matches!(effect, Effect::Force { .. }) && path.ends_with(".log"));
    h.send(pipelining, b"PUB DURABLE x\nREADRAW 0 1000\n");
    h.run();
    assert_eq!(ask(&mut h, "PURGE 4\n"), "PURGED 4\n");
    assert!(!h.is_connected(stalled));
    assert!(h.is_connected(pipelining) && h.is_connected(other));
    h.release();
    h.set_taking(pipelining, true);
    h.run();
    let replies = h.replies(pipelining);
    assert!(
        replies.starts_with("OK 10 DURABLE\nERR OUT_OF_RANGE what was to be read was removed meanwhile"),
        "{replies}"
    );
    let before = h.effects.iter().position(|(_, e)| matches!(e, Effect::Disconnect { now: true, .. })).expect("cut");
    let first_close = h.effects[before..].iter().position(|(_, e)| matches!(e, Effect::CloseFile { .. }));
    assert!(first_close.is_some(), "it is cut off before the file is closed");
}

#[test]
fn p11_a_purge_on_a_full_disk_waits_for_room_and_never_goes_back() {
    let mut h = filled(small(), 7);
    let client = h.connect();
    let slot_of_anchor = |effect: &Effect, path: &str| {
        matches!(effect, Effect::Write { position, .. } if *position > 0) && path.ends_with("/watermark")
    };
    // The second attempt has the ballast's room.
    h.fail_next(slot_of_anchor, IoErrorKind::NoSpace);
    h.fail_next(slot_of_anchor, IoErrorKind::NoSpace);
    assert_eq!(h.ask(client, b"PURGE 5\n"), "");
    assert_eq!((status(&mut h, "start"), log_files(&h).len()), (0, 3));
    h.advance_ms(1000);
    assert_eq!(h.replies(client), "PURGED 5\n");
    assert_eq!(log_files(&h), ["3", "6"]);
}

#[test]
fn a_deleted_group_begins_anew() {
    let mut h = filled(small(), 3);
    let (consumer, other) = (h.connect(), h.connect());
    assert_eq!(
        h.ask(other, b"DELETE @default g\n"),
        "ERR NO_GROUP topic default has no group g; GROUPS @default lists them\n"
    );
    assert_eq!(brief(&h.ask(consumer, b"FETCH g 2 0\nACK g 1\n")), "MSG 0 \nMSG 1 \nEND 2\nACKED 2\n");
    assert!(h.ask(other, b"DELETE @default g\n").starts_with("ERR GROUP_BUSY"));
    assert_eq!(
        brief(&h.ask(consumer, b"DELETE @default g\nGROUPS\nFETCH g 1 0\n")),
        "DELETED default g\nEND 0\nMSG 0 \nEND 1\n"
    );
    assert_eq!(h.ask(consumer, b"ACK g 0\n"), "ACKED 1\n");
    h.disconnect(consumer);
    assert_eq!(h.ask(other, b"DELETE @default g\n"), "DELETED default g\n");
    assert!(h.disk.files().keys().all(|path| !path.contains("groups/")));
    h.kill_and_restart(small());
    assert_eq!(ask(&mut h, "GROUPS\n"), "END 0\n");
}

#[test]
fn a_deleted_topic_is_gone_and_its_name_is_free() {
    let mut h = started(small());
    assert_eq!(ask(&mut h, "DELETE @t\n").split(' ').nth(1), Some("NO_TOPIC"));
    assert!(ask(&mut h, "DELETE @default\n").starts_with("ERR BAD_REQUEST topic default can't be deleted"));
    assert_eq!(ask(&mut h, "CREATE @t\n"), "CREATED t\n");
    publish(&mut h, "t", 0, 7);
    let before = h.disk.file("topics/t/topic.toml").expect("a topic").to_vec();
    assert_eq!(ask(&mut h, "DELETE @t\nPUB @t DURABLE x\nCREATE @t\nREAD @t 0 9\nDELETE @t\n").lines().count(), 5);
    assert_eq!(h.disk.dirs().iter().filter(|dir| dir.starts_with("topics/t")).count(), 0);
    assert_eq!(ask(&mut h, "CREATE @t\n"), "CREATED t\n");
    assert_ne!(h.disk.file("topics/t/topic.toml").expect("a topic"), before, "it has another log id");
    assert_eq!(ask(&mut h, "READ @t 0 9\n"), "END 0\n");
    h.kill_and_restart(small());
    assert_eq!(ask(&mut h, "READ @t 0 9\nPUB @t DURABLE x\n"), "END 0\nOK 0 DURABLE\n");
}

#[test]
fn who_waits_for_a_topic_that_is_deleted_is_answered() {
    let mut h = started(small());
    assert_eq!(ask(&mut h, "CREATE @t\n"), "CREATED t\n");
    publish(&mut h, "t", 0, 1);
    let (fetcher, producer, parked, deleter) = (h.connect(), h.connect(), h.connect(), h.connect());
    h.send(fetcher, b"SEEK @t g end\nFETCH @t g 1 60000\n");
    h.run();
    h.hold(|effect, path| matches!(effect, Effect::Force { .. }) && path.ends_with(".log"));
    h.send(producer, format!("PUB @t DURABLE {FILL}\n").as_bytes());
    h.send(producer, format!("PUB @t DURABLE {FILL}\n").as_bytes());
    h.send(parked, format!("PUB @t DURABLE {FILL}{FILL}\n").as_bytes());
    h.run();
    h.send(deleter, b"DELETE @t\n");
    h.run();
    // The publish that had no place yet, and the consumer, are told at once.
    assert!(h.replies(parked).starts_with("ERR NO_TOPIC"));
    assert_eq!(h.replies(fetcher).lines().nth(1).map(|line| line.starts_with("ERR NO_TOPIC")), Some(true));
    assert_eq!((h.replies(producer), h.replies(deleter)), (String::new(), String::new()));
    h.release();
    h.run();
    // What had an offset is forced and answered before.
    assert_eq!(
        (h.replies(producer), h.replies(deleter)),
        ("OK 1 DURABLE\nOK 2 DURABLE\n".into(), "DELETED t\n".into())
    );
}

/// What nobody waits for is forced later by such a policy; a DELETE waits for it.
#[test]
fn a_topic_is_deleted_whatever_its_flush_policy_waits_for() {
    let mut h = started(small());
    assert_eq!(ask(&mut h, "CREATE @t flush-messages=100\n"), "CREATED t\n");
    assert_eq!(ask(&mut h, "PUB @t ACCEPTED x\nDELETE @t\n"), "OK 0 ACCEPTED\nDELETED t\n");
}

#[test]
fn p11_a_topic_whose_writes_find_no_room_can_be_deleted() {
    let mut h = started(small());
    assert_eq!(ask(&mut h, "CREATE @t\n"), "CREATED t\n");
    let (producer, deleter) = (h.connect(), h.connect());
    for _ in 0..50 {
        h.fail_next(is_log_write, IoErrorKind::NoSpace);
    }
    assert_eq!(h.ask(producer, b"PUB @t DURABLE x\nPUB @t ACCEPTED y\nPUB @t WRITTEN z\n").lines().count(), 0);
    assert_eq!(h.ask(deleter, b"DELETE @t\n"), "DELETED t\n");
    assert!(h.replies(producer).lines().all(|line| line.starts_with("ERR NO_TOPIC")
        || line.starts_with("ERR DISK_FULL")
        || line.starts_with("OK 1 ACCEPTED")));
}

#[test]
fn p13_making_and_deleting_ten_thousand_topics_leaves_nothing() {
    let mut h = started(Config { topics_max: 3, ..small() });
    let client = h.connect();
    for _ in 0..10_000 {
        h.effects.clear();
        assert_eq!(h.ask(client, b"CREATE @t\nPUB @t DURABLE x\n"), "CREATED t\nOK 0 DURABLE\n");
        assert_eq!(h.ask(client, b"DELETE @t\n"), "DELETED t\n");
    }
    assert_eq!(h.ask(client, b"TOPICS\n").lines().count(), 2);
    assert!(h.disk.files().keys().all(|path| !path.starts_with("topics/t")));
}

// ---- policies ---------------------------------------------------------------------------------------------------------

fn with(settings: &[(Setting, u64)]) -> Config {
    let mut topic_defaults = Settings::NONE;
    settings.iter().for_each(|(setting, value)| topic_defaults.set(*setting, Some(*value)));
    Config { topic_defaults, ..small() }
}

#[test]
fn p12_retain_bytes_keeps_at_least_so_many() {
    let mut h = started(with(&[(Setting::RetainBytes, 500)]));
    publish(&mut h, "default", 0, 20);
    // 129 bytes a message, three to a segment: what a roll leaves is the least that is not below the bound without the new segment.
    assert_eq!(log_files(&h), ["12", "15", "18"]);
    assert!(status(&mut h, "bytes") >= 500);
    assert_eq!(ask(&mut h, "ALTER @default retain-bytes=300\n"), "ALTERED default\n");
    assert_eq!(log_files(&h), ["15", "18"]);
    assert_eq!(ask(&mut h, "ALTER @default retain-bytes=1\n"), "ALTERED default\n");
    assert_eq!(log_files(&h), ["18"]);
    assert_eq!(brief(&ask(&mut h, "READ 0 1\n")), "GAP 0 18\nMSG 18 \nEND 1\n");
}

#[test]
fn p12_retain_ms_takes_what_is_older_also_of_an_idle_topic() {
    let mut h = started(with(&[(Setting::RetainMs, 10_000)]));
    publish(&mut h, "default", 0, 4);
    h.advance_ms(6_000);
    publish(&mut h, "default", 4, 3);
    assert_eq!(log_files(&h), ["", "3", "6"]);
    h.advance_ms(6_000);
    // The second segment has younger messages.
    assert_eq!(log_files(&h), ["3", "6"]);
    h.advance_ms(10_000);
    assert_eq!((log_files(&h), status(&mut h, "start")), (vec!["7".to_owned()], 7));
    publish(&mut h, "default", 7, 1);
    // A wall clock that is set back keeps messages longer, one that is set forward takes them earlier; nothing else happens.
    h.step_wall_ms(-3_600_000);
    h.advance_ms(20_000);
    assert_eq!(status(&mut h, "start"), 7);
    h.step_wall_ms(7_200_000);
    h.advance_ms(2_000);
    assert_eq!(status(&mut h, "start"), 8);
}

#[test]
fn p12_retain_consumed_waits_for_every_group_and_takes_nothing_without_one() {
    let mut h = started(with(&[(Setting::RetainConsumed, 1)]));
    publish(&mut h, "default", 0, 10);
    assert_eq!(log_files(&h).len(), 4);
    let (a, b) = (h.connect(), h.connect());
    assert_eq!(h.ask(a, b"FETCH a 10 0\nACK a 7\n").lines().last(), Some("ACKED 8"));
    assert_eq!(log_files(&h), ["6", "9"]);
    // A group that has committed nothing keeps everything.
    assert_eq!(brief(&h.ask(b, b"FETCH b 1 0\n")), "GAP 0 6\nMSG 6 \nEND 1\n");
    assert_eq!(h.ask(a, b"ACK a 9\n"), "ACKED 10\n");
    assert_eq!(log_files(&h), ["6", "9"]);
    assert_eq!(h.ask(b, b"FETCH b 10 0\nACK b 8\n").lines().last(), Some("ACKED 9"));
    assert_eq!(log_files(&h), ["9"]);
}

#[test]
fn roll_ms_closes_a_segment_by_its_age() {
    let mut h = started(with(&[(Setting::RollMs, 1_000)]));
    publish(&mut h, "default", 0, 1);
    h.advance_ms(500);
    publish(&mut h, "default", 1, 1);
    h.advance_ms(400);
    assert_eq!(log_files(&h), [""]);
    h.advance_ms(300);
    assert_eq!(log_files(&h), ["", "2"]);
    // An empty one stays.
    h.advance_ms(5_000);
    assert_eq!(log_files(&h), ["", "2"]);
}

#[test]
fn a_roll_records_the_new_start_with_its_own_anchoring() {
    let mut h = started(with(&[(Setting::RetainBytes, 300)]));
    publish(&mut h, "default", 0, 5);
    h.effects.clear();
    publish(&mut h, "default", 5, 4);
    assert_eq!(log_files(&h), ["3", "6"]);
    let forces = trace(&h).into_iter().filter(|line| line.starts_with("force ")).count();
    // Four messages, the cut segment, and two slots.
    assert_eq!(forces, 4 + 1 + 2);
}

// ---- capacity ---------------------------------------------------------------------------------------------------------

#[test]
fn p12_a_full_topic_refuses_and_stores_nothing_until_there_is_room() {
    let mut h = started(with(&[(Setting::CapacityBytes, 1000)]));
    publish(&mut h, "default", 0, 7);
    let refused = ask(&mut h, &format!("PUB DURABLE {FILL}\n"));
    assert!(
        refused.starts_with("ERR OVER_CAPACITY topic default has 903 bytes, and capacity-bytes is 1000"),
        "{refused}"
    );
    assert_eq!((status(&mut h, "start"), status(&mut h, "next")), (0, 7));
    assert_eq!(ask(&mut h, "PUB DURABLE small\n"), "OK 7 DURABLE\n");
    assert_eq!(ask(&mut h, "PURGE 3\n"), "PURGED 3\n");
    publish(&mut h, "default", 8, 1);
}

#[test]
fn a_full_topic_that_drops_its_oldest_messages_lets_the_publisher_wait() {
    let mut h = started(with(&[(Setting::CapacityBytes, 1000), (Setting::OnFull, 1)]));
    publish(&mut h, "default", 0, 20);
    assert!(status(&mut h, "bytes") <= 1000);
    assert_eq!(status(&mut h, "next"), 20);
    let told = ask(&mut h, &format!("PUB DURABLE {}\n", FILL.repeat(10)));
    assert!(told.starts_with("ERR OVER_CAPACITY"), "it would never fit: {told}");
    // One segment alone is closed, so that it can go.
    let mut h =
        started(Config { segment_bytes: 1 << 20, ..with(&[(Setting::CapacityBytes, 300), (Setting::OnFull, 1)]) });
    publish(&mut h, "default", 0, 5);
    assert!(status(&mut h, "bytes") <= 300);
}

#[test]
fn p11_a_topic_that_drops_its_oldest_answers_on_a_full_disk_instead_of_waiting() {
    let capacity = [(Setting::CapacityBytes, 300), (Setting::OnFull, 1)];
    let config = Config { segment_bytes: 1 << 20, ..with(&capacity) };
    let mut h = filled(config, 2);
    // The one segment can't go before there is a next one.
    (0..20).for_each(|_| h.fail_next(is_new_segment, IoErrorKind::NoSpace));
    h.effects.clear();
    let request = format!("PUB DURABLE {FILL}\n");
    assert!(ask(&mut h, &request).starts_with("ERR DISK_FULL no room for another message in topic default"));
    // It does not try without end: once when it was asked, and once with what the ballast may have given.
    assert!((1..=2).contains(&count(&trace(&h), "truncate ")));
    h.advance_ms(20_000);
    assert_eq!(h.unfired_failures(), 0);
    publish(&mut h, "default", 2, 3);
    assert_eq!((status(&mut h, "start") > 0, status(&mut h, "next")), (true, 5));
}

fn is_new_segment(effect: &Effect, path: &str) -> bool {
    matches!(effect, Effect::Create { .. }) && path.ends_with(".log")
}

// ---- the capacity of all topics together ------------------------------------------------------------------------------

fn total(bytes: u64, settings: &[(Setting, u64)]) -> Config {
    Config { total_capacity_bytes: bytes, ..with(settings) }
}

const DROPS: [(Setting, u64); 1] = [(Setting::OnFull, 1)];

fn started_with_topic_t(config: Config, settings: &str) -> Harness {
    let mut h = started(config);
    assert_eq!(ask(&mut h, &format!("CREATE @t{settings}\n")), "CREATED t\n");
    h
}

/// The first offsets of a topic's segments.
fn bases(h: &Harness, topic: &str) -> Vec<u64> {
    let log = format!("topics/{topic}/log/");
    let files = h.disk.files().into_keys();
    files.filter_map(|path| path.strip_prefix(&log)?.strip_suffix(".log")?.parse().ok()).collect()
}

fn all_bytes(h: &mut Harness) -> u64 {
    let lines = ask(h, "TOPICS\n");
    lines.split([' ', '\n']).filter_map(|word| word.strip_prefix("bytes=")?.parse::<u64>().ok()).sum()
}

#[test]
fn p12_a_full_broker_refuses_whatever_topic_it_is_and_takes_nothing() {
    let config = total(1000, &[]);
    let mut h = started_with_topic_t(config.clone(), "");
    publish(&mut h, "default", 0, 4);
    publish(&mut h, "t", 0, 3);
    for restarted in [false, true] {
        if restarted {
            h.kill_and_restart(config.clone());
        }
        for topic in ["default", "t"] {
            let refused = ask(&mut h, &format!("PUB @{topic} DURABLE {FILL}\n"));
            assert!(
                refused.starts_with(
                    "ERR OVER_CAPACITY all topics together have 903 bytes, and total-capacity is 1000; nothing of the message was stored"
                ),
                "{refused}"
            );
        }
        assert_eq!((bases(&h, "default"), bases(&h, "t"), all_bytes(&mut h)), (vec![0, 3], vec![0], 903));
    }
    assert_eq!(ask(&mut h, "PUB @t DURABLE small\n"), "OK 3 DURABLE\n");
    // What is purged in one topic is room for another one, and so is a topic that is deleted.
    assert_eq!(ask(&mut h, "PURGE 3\n"), "PURGED 3\n");
    publish(&mut h, "t", 4, 3);
    assert!(ask(&mut h, &format!("PUB DURABLE {FILL}{FILL}\n")).starts_with("ERR OVER_CAPACITY"));
    assert_eq!(ask(&mut h, "DELETE @t\n"), "DELETED t\n");
    publish(&mut h, "default", 4, 3);
    assert_eq!(all_bytes(&mut h), 4 * 129);
    // A stop changes nothing about it.
    h.stop();
    h.kill_and_restart(config);
    publish(&mut h, "default", 7, 3);
    assert!(ask(&mut h, &format!("PUB DURABLE {FILL}\n")).starts_with("ERR OVER_CAPACITY"));
}

#[test]
fn the_oldest_segments_of_all_topics_go_first() {
    for restarted in [false, true] {
        let config = total(1200, &DROPS);
        let mut h = started_with_topic_t(config.clone(), "");
        // By their age: default 0, t 0, default 3, t 3.
        for first in [0, 3] {
            for topic in ["default", "t"] {
                publish(&mut h, topic, first, if first == 0 { 3 } else { 1 });
                h.advance_ms(1000);
            }
        }
        if restarted {
            h.kill_and_restart(config);
        }
        assert_eq!(all_bytes(&mut h), 8 * 129);
        publish(&mut h, "t", 4, 1);
        assert_eq!((bases(&h, "default"), bases(&h, "t")), (vec![0, 3], vec![0, 3]));
        publish(&mut h, "t", 5, 1);
        assert_eq!((bases(&h, "default"), bases(&h, "t")), (vec![3], vec![0, 3]));
        publish(&mut h, "default", 4, 2);
        assert_eq!((bases(&h, "default"), bases(&h, "t")), (vec![3], vec![0, 3]));
        publish(&mut h, "default", 6, 1);
        assert_eq!((bases(&h, "default"), bases(&h, "t")), (vec![3, 6], vec![3]));
        publish(&mut h, "t", 6, 20);
        // Each topic keeps what it publishes itself at the end, and the sum is never above the bound.
        assert!(all_bytes(&mut h) <= 1200);
        let told = ask(&mut h, &format!("PUB @t DURABLE {}\n", FILL.repeat(12)));
        assert!(told.starts_with("ERR OVER_CAPACITY"), "it would never fit: {told}");
    }
}

#[test]
fn p12_a_topic_that_rejects_loses_nothing_to_another_one() {
    let mut h = started_with_topic_t(total(1200, &DROPS), " on-full=reject");
    publish(&mut h, "t", 0, 5);
    h.advance_ms(1000);
    publish(&mut h, "default", 0, 4);
    // It is older, and it stays.
    publish(&mut h, "default", 4, 4);
    assert_eq!((bases(&h, "default"), bases(&h, "t")), (vec![6], vec![0, 3]));
    // For its own messages those of others go.
    publish(&mut h, "t", 5, 4);
    assert_eq!((status(&mut h, "start"), bases(&h, "t")), (8, vec![0, 3, 6]));
    let refused = ask(&mut h, &format!("PUB @t DURABLE {FILL}\n"));
    assert!(refused.starts_with("ERR OVER_CAPACITY all topics together have 1161 bytes"), "{refused}");
    assert_eq!(bases(&h, "t"), [0, 3, 6]);
}

#[test]
fn where_all_that_may_go_is_too_little_nothing_goes() {
    let mut h = started_with_topic_t(total(1200, &DROPS), " on-full=reject");
    publish(&mut h, "t", 0, 5);
    publish(&mut h, "default", 0, 4);
    let refused = ask(&mut h, &format!("PUB @t DURABLE {}\n", FILL.repeat(6)));
    assert!(refused.starts_with("ERR OVER_CAPACITY"), "{refused}");
    assert_eq!((bases(&h, "default"), status(&mut h, "start")), (vec![0, 3], 0));
    // All but the very last byte is not too little.
    assert_eq!(ask(&mut h, &format!("PUB @t DURABLE {}\n", "x".repeat(1200 - 5 * 129 - 29))), "OK 5 DURABLE\n");
    assert_eq!((all_bytes(&mut h), status(&mut h, "start")), (1200, 4));
}

#[test]
fn an_active_segment_is_closed_for_the_messages_of_another_topic() {
    let mut h = started_with_topic_t(Config { segment_bytes: 1 << 20, ..total(800, &DROPS) }, "");
    publish(&mut h, "t", 0, 2);
    h.advance_ms(1000);
    publish(&mut h, "default", 0, 4);
    assert_eq!((bases(&h, "default"), bases(&h, "t")), (vec![0], vec![0]));
    publish(&mut h, "default", 4, 2);
    assert_eq!((bases(&h, "default"), bases(&h, "t")), (vec![0], vec![2]));
    publish(&mut h, "default", 6, 1);
    assert_eq!((bases(&h, "default"), bases(&h, "t")), (vec![6], vec![2]));
    assert_eq!(brief(&ask(&mut h, "READ @t 0 9\n")), "GAP 0 2\nEND 0\n");
}

#[test]
fn a_publish_waits_for_what_is_on_its_way_in_another_topic() {
    let is_force_of_watermark =
        |effect: &Effect, path: &str| matches!(effect, Effect::Force { .. }) && path.starts_with("topics/t/watermark");
    for request in ["PURGE @t 3\n", "PURGE @t 4\n", "DELETE @t\n"] {
        let mut h = started_with_topic_t(total(1000, &[]), "");
        publish(&mut h, "t", 0, 4);
        publish(&mut h, "default", 0, 3);
        let (remover, producer) = (h.connect(), h.connect());
        if request.starts_with("DELETE") {
            // It is not gone before its last force is.
            h.hold(|effect, path| is_log_force(effect, path) && path.starts_with("topics/t/"));
            h.send(remover, b"PUB @t DURABLE x\n");
            h.run();
        } else {
            h.hold(is_force_of_watermark);
        }
        h.send(remover, request.as_bytes());
        h.run();
        assert_eq!(h.ask(producer, format!("PUB DURABLE {FILL}\n").as_bytes()), "", "{request}");
        h.release();
        h.run();
        assert_eq!(h.replies(producer), "OK 3 DURABLE\n", "{request}");
    }
}

#[test]
fn who_waits_for_all_topics_is_answered_at_a_stop_and_goes_on_when_the_bound_is_raised() {
    let is_force_of_watermark =
        |effect: &Effect, path: &str| matches!(effect, Effect::Force { .. }) && path.starts_with("topics/t/watermark");
    for raised in [false, true] {
        let mut h = started_with_topic_t(total(1000, &DROPS), "");
        publish(&mut h, "t", 0, 4);
        h.advance_ms(1);
        publish(&mut h, "default", 0, 3);
        h.hold(is_force_of_watermark);
        let producer = h.connect();
        assert_eq!(h.ask(producer, format!("PUB DURABLE {FILL}\n").as_bytes()), "");
        if raised {
            h.reconfigure(total(2000, &DROPS));
            assert_eq!(h.replies(producer), "OK 3 DURABLE\n");
        } else {
            h.stop();
            assert!(h.replies(producer).starts_with("ERR STOPPING"));
        }
    }
}

#[test]
fn p11_all_topics_over_their_capacity_on_a_full_disk_are_answered_and_go_on_when_there_is_room() {
    // Without descriptors only the topic that needs one is full.
    for (kind, expected) in [(IoErrorKind::NoSpace, "ERR DISK_FULL"), (IoErrorKind::TooManyFiles, "")] {
        let mut h = started_with_topic_t(Config { segment_bytes: 1 << 20, ..total(800, &DROPS) }, "");
        publish(&mut h, "t", 0, 3);
        h.advance_ms(1000);
        publish(&mut h, "default", 0, 3);
        (0..20).for_each(|_| h.fail_next(is_new_segment, kind));
        h.effects.clear();
        let producer = h.connect();
        h.send(producer, format!("PUB DURABLE {FILL}\n").as_bytes());
        h.run();
        let told = h.replies(producer);
        assert!(told.starts_with(expected) && told.is_empty() == expected.is_empty(), "{kind:?}: {told}");
        assert!((1..=2).contains(&count(&trace(&h), "truncate ")), "{kind:?}");
        assert_eq!(bases(&h, "t"), [0]);
        h.advance_ms(20_000);
        assert_eq!(h.unfired_failures(), 0, "{kind:?}");
        if expected.is_empty() {
            assert_eq!(h.replies(producer), "OK 3 DURABLE\n");
        } else {
            publish(&mut h, "default", 3, 1);
        }
        assert_eq!(bases(&h, "t"), [3]);
        publish(&mut h, "default", 4, 1);
    }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Publish {
        topic: usize,
        bytes: usize,
    },
    Purge {
        topic: usize,
        percent: usize,
    },
    /// Of one but the default topic; it is made anew.
    Delete {
        topic: usize,
    },
    Restart,
}

/// The last one is to lose nothing.
const TOPICS: [&str; 3] = ["default", "a", "r"];

fn op() -> impl Strategy<Value = Op> {
    let topic = || 0..TOPICS.len();
    prop_oneof![
        20 => (topic(), prop_oneof![4 => 1usize..150, 1 => 150usize..700]).prop_map(|(topic, bytes)| Op::Publish { topic, bytes }),
        1 => (topic(), 0..=100usize).prop_map(|(topic, percent)| Op::Purge { topic, percent }),
        1 => (1..TOPICS.len()).prop_map(|topic| Op::Delete { topic }),
        1 => Just(Op::Restart),
    ]
}

/// A topic as its clients know it.
#[derive(Clone, Debug, Default)]
struct Log {
    start: u64,
    /// Of each message: the bytes of its frame, and when it was published.
    messages: Vec<(u64, u64)>,
}

/// A segment with messages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Part {
    newest: u64,
    topic: usize,
    end: u64,
    bytes: u64,
}

fn parts(h: &Harness, topic: usize, log: &Log) -> Vec<Part> {
    let (bases, next) = (bases(h, TOPICS[topic]), log.messages.len() as u64);
    let ends = bases.iter().skip(1).copied().chain([next]);
    let parts = bases.iter().zip(ends).filter(|(base, end)| end > base).map(|(base, end)| {
        let messages = &log.messages[*base as usize..end as usize];
        let newest = messages.iter().map(|(_, time)| *time).max().expect("some");
        let bytes = messages.iter().map(|(bytes, _)| bytes).sum();
        Part { newest, topic, end, bytes }
    });
    parts.collect()
}

fn start_of(h: &mut Harness, topic: usize) -> u64 {
    let line = ask(h, &format!("STATUS @{}\n", TOPICS[topic]));
    let start = line.split(' ').find_map(|word| word.strip_prefix("start=")).expect("a start");
    start.parse().expect("a number")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn p12_all_topics_together_keep_their_capacity_and_lose_no_more_than_it_takes(
        ops in prop::collection::vec(op(), 1..120), capacity in 400u64..3000,
        segment_bytes in prop_oneof![Just(512u64), 512u64..2000, Just(1 << 20)],
    ) {
        let config = Config { segment_bytes, ..total(capacity, &DROPS) };
        let mut h = started(config.clone());
        let create = ["", "CREATE @a\n", "CREATE @r on-full=reject\n"];
        for request in &create[1..] {
            let reply = ask(&mut h, request);
            prop_assert!(reply.starts_with("CREATED"), "{reply}");
        }
        let mut logs = [const { Log { start: 0, messages: Vec::new() } }; 3];
        let mut time = 0;
        for op in ops {
            time += 1;
            h.advance_ms(1);
            match op {
                Op::Publish { topic, bytes } => {
                    let size = (OVERHEAD_BYTES + bytes) as u64;
                    let mut may_go: Vec<Part> = (0..2).flat_map(|topic| parts(&h, topic, &logs[topic])).collect();
                    may_go.sort_unstable();
                    let stays: u64 = parts(&h, 2, &logs[2]).iter().map(|part| part.bytes).sum();
                    let before = stays + may_go.iter().map(|part| part.bytes).sum::<u64>();
                    let reply = ask(&mut h, &format!("PUB @{} DURABLE {}\n", TOPICS[topic], "x".repeat(bytes)));
                    let fits = stays + size <= capacity;
                    let expected = if fits { "OK " } else { "ERR OVER_CAPACITY " };
                    prop_assert!(reply.starts_with(expected), "{op:?}: {reply}");
                    // The oldest, one after the other, until there is room.
                    let mut left = before;
                    for part in may_go {
                        if !fits || left + size <= capacity {
                            break;
                        }
                        left -= part.bytes;
                        logs[part.topic].start = part.end;
                    }
                    if fits {
                        logs[topic].messages.push((size, time));
                    }
                }
                Op::Purge { topic, percent } => {
                    let before = logs[topic].messages.len() * percent / 100;
                    let start = logs[topic].start.max(before as u64);
                    prop_assert_eq!(ask(&mut h, &format!("PURGE @{} {before}\n", TOPICS[topic])), format!("PURGED {start}\n"));
                    logs[topic].start = start;
                }
                Op::Delete { topic } => {
                    let name = TOPICS[topic];
                    prop_assert_eq!(ask(&mut h, &format!("DELETE @{name}\n")), format!("DELETED {name}\n"));
                    prop_assert_eq!(ask(&mut h, create[topic]), format!("CREATED {name}\n"));
                    logs[topic] = Log::default();
                }
                Op::Restart => h.kill_and_restart(config.clone()),
            }
            let starts = [0, 1, 2].map(|topic| start_of(&mut h, topic));
            prop_assert_eq!(starts, [0, 1, 2].map(|topic: usize| logs[topic].start), "{:?}", op);
            prop_assert!(all_bytes(&mut h) <= capacity);
        }
    }
}
