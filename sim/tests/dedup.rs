//! P16: a publish with an id that is repeated answers with the first offset and stores nothing.

mod common;

use common::*;
use plimsoll_core::config::Config;
use plimsoll_core::effect::IoErrorKind;
use plimsoll_core::settings::{Setting, Settings};
use plimsoll_sim::naive::Harness;

fn with(settings: &[(Setting, u64)]) -> Config {
    let mut topic_defaults = Settings::NONE;
    settings.iter().for_each(|(setting, value)| topic_defaults.set(*setting, Some(*value)));
    Config { topic_defaults, ..plain() }
}

fn pubn(level: &str, id: &str, value: &str) -> Vec<u8> {
    format!("PUBN {level} {} id={id}\n{value}\n", value.len()).into_bytes()
}

fn pubb(level: &str, id: &str, messages: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for message in messages {
        bytes.extend_from_slice(&(message.len() as u32).to_be_bytes());
        bytes.extend_from_slice(message.as_bytes());
    }
    [format!("PUBB {level} {} {} id={id}\n", messages.len(), bytes.len()).as_bytes(), &bytes, b"\n"].concat()
}

#[test]
fn p16_a_repeated_publish_is_stored_once_also_behind_a_restart() {
    let mut h = started(plain());
    for _ in 0..3 {
        let c = h.connect();
        assert_eq!(h.ask(c, &pubn("DURABLE", "7:1", "a")), "OK 0 DURABLE\n");
        assert_eq!(h.ask(c, &pubn("ACCEPTED", "7:1", "other bytes")), "OK 0 ACCEPTED\n");
        assert_eq!(h.ask(c, &pubn("WRITTEN", "7:0", "b")), "OK 1 WRITTEN\n");
        assert_eq!(h.ask(c, &pubn("WRITTEN", "8:1", "c")), "OK 2 WRITTEN\n");
        assert_eq!(h.ask(c, &pubb("DURABLE", "7:9", &["d", "e"])), "OK 3 DURABLE 2\n");
        assert_eq!(h.ask(c, &pubb("DURABLE", "7:9", &["d"])), "OK 3 DURABLE 2\n", "as many as there are");
        assert_eq!(h.ask(c, &pubn("DURABLE", "7:9", "d")), "OK 3 DURABLE\n");
        assert_eq!(h.ask(c, &pubn("DURABLE", "18446744073709551615:4294967295", "f")), "OK 5 DURABLE\n");
        assert_eq!(read_all(&mut h), "MSG 0 a\nMSG 1 b\nMSG 2 c\nMSG 3 d\nMSG 4 e\nMSG 5 f\n");
        h.kill_and_restart(plain());
    }
    let c = h.connect();
    let shown = h.ask(c, b"READ 3 2 META\n");
    let words =
        |offset: &str| shown.lines().find(|line| line.starts_with(&format!("MSGX {offset} "))).expect("it").to_owned();
    assert!(words("3").ends_with(" id=7:9") && !words("4").contains("id="), "{shown}");
    // Another topic knows nothing of it.
    h.ask(c, b"CREATE @t\n");
    assert_eq!(h.ask(c, b"PUBN @t DURABLE 1 id=7:1\na\n"), "OK 0 DURABLE\n");
}

/// Without an id, everything is new.
#[test]
fn what_has_no_id_is_never_taken_for_another() {
    let mut h = started(plain());
    let c = h.connect();
    assert_eq!(
        h.ask(c, b"PUB DURABLE a\nPUB DURABLE a\nPUBN DURABLE 1\na\n"),
        "OK 0 DURABLE\nOK 1 DURABLE\nOK 2 DURABLE\n"
    );
}

#[test]
fn p3_a_repetition_waits_for_the_level_that_it_asks_for() {
    let mut h = started(plain());
    let (a, b, c) = (h.connect(), h.connect(), h.connect());
    h.hold(is_log_io);
    assert_eq!(h.ask(a, &pubn("ACCEPTED", "7:1", "a")), "OK 0 ACCEPTED\n");
    assert_eq!(h.ask(b, &pubn("WRITTEN", "7:1", "a")), "");
    assert_eq!(h.ask(c, &pubn("ACCEPTED", "7:1", "a")), "OK 0 ACCEPTED\n");
    assert_eq!(h.ask(c, &pubn("DURABLE", "8:1", "b")), "");
    // Behind a later one, and answered before it.
    assert_eq!(h.ask(a, &pubn("DURABLE", "7:1", "a")), "");
    h.release();
    h.hold(is_slot_write);
    h.run();
    assert_eq!(h.replies(b), "OK 0 WRITTEN\n");
    assert_eq!((h.replies(a), h.replies(c)), (String::new(), String::new()));
    h.release();
    h.run();
    assert_eq!((h.replies(a), h.replies(c)), ("OK 0 DURABLE\n".to_owned(), "OK 1 DURABLE\n".to_owned()));
}

/// A flush policy holds forces back for what nobody waits for; a repetition that asks for DURABLE waits.
#[test]
fn a_repetition_that_wants_more_is_not_held_back_by_the_flush_policy() {
    let mut h = started(with(&[(Setting::FlushMessages, 1000)]));
    let c = h.connect();
    assert_eq!(h.ask(c, &pubn("WRITTEN", "7:1", "a")), "OK 0 WRITTEN\n");
    assert_eq!(h.ask(c, b"READ 0 1\n"), "END 0\n");
    assert_eq!(h.ask(c, &pubn("DURABLE", "7:1", "a")), "OK 0 DURABLE\n");
}

#[test]
fn what_a_crash_took_is_stored_by_the_repetition() {
    let mut h = started(plain());
    let c = h.connect();
    h.ask(c, &pubn("DURABLE", "7:1", "a"));
    h.stop_before(is_log_write);
    h.send(c, &pubn("ACCEPTED", "7:2", "b"));
    assert_eq!(h.replies(c), "OK 1 ACCEPTED\n");
    h.kill_and_restart(plain());
    let c = h.connect();
    assert_eq!(h.ask(c, b"PUB DURABLE x\n"), "OK 1 DURABLE\n");
    assert_eq!(h.ask(c, &pubn("DURABLE", "7:2", "b")), "OK 2 DURABLE\n");
    assert_eq!(h.ask(c, &pubn("DURABLE", "7:2", "b")), "OK 2 DURABLE\n");
}

/// What was refused is not remembered.
#[test]
fn p11_a_publish_that_found_no_room_is_stored_when_there_is_some() {
    let mut h = started(Config { space_ahead: 512, ..plain() });
    let c = h.connect();
    h.fail_next(is_reserve, IoErrorKind::NoSpace);
    assert_eq!(h.ask(c, &pubn("DURABLE", "7:1", "a")).split(' ').nth(1), Some("DISK_FULL"));
    h.advance_ms(1000);
    assert_eq!(h.ask(c, &pubn("DURABLE", "7:1", "a")), "OK 0 DURABLE\n");
    assert_eq!(h.ask(c, &pubn("DURABLE", "7:1", "a")), "OK 0 DURABLE\n");
}

/// Beyond the window a publish is new; the window is the same behind a restart.
#[test]
fn p13_the_window_is_bounded_by_sequences_by_producers_and_by_age() {
    let sequences = || with(&[(Setting::DedupSequences, 2)]);
    let mut h = started(sequences());
    let c = h.connect();
    for (sequence, offset) in [(5, 0), (3, 1), (5, 0), (9, 2), (3, 1), (5, 3), (9, 2), (3, 4)] {
        let reply = h.ask(c, &pubn("DURABLE", &format!("7:{sequence}"), "x"));
        assert_eq!(reply, format!("OK {offset} DURABLE\n"), "{sequence}");
    }
    h.kill_and_restart(sequences());
    let c = h.connect();
    assert_eq!(h.ask(c, &pubn("DURABLE", "7:5", "x")), "OK 3 DURABLE\n");
    assert_eq!(h.ask(c, &pubn("DURABLE", "7:9", "x")), "OK 5 DURABLE\n");

    let producers = || Config { producers_max: 2, ..plain() };
    let mut h = started(producers());
    let c = h.connect();
    for (producer, offset) in [(1, 0), (2, 1), (1, 0), (3, 2), (2, 1), (1, 3)] {
        assert_eq!(h.ask(c, &pubn("DURABLE", &format!("{producer}:0"), "x")), format!("OK {offset} DURABLE\n"));
    }
    h.kill_and_restart(producers());
    let c = h.connect();
    assert_eq!(h.ask(c, &pubn("DURABLE", "3:0", "x")), "OK 2 DURABLE\n");
    assert_eq!(h.ask(c, &pubn("DURABLE", "2:0", "x")), "OK 4 DURABLE\n");

    let age = || with(&[(Setting::DedupMs, 1000)]);
    let mut h = started(age());
    let c = h.connect();
    h.ask(c, &pubn("DURABLE", "7:1", "x"));
    h.advance_ms(1000);
    assert_eq!(h.ask(c, &pubn("DURABLE", "7:1", "x")), "OK 0 DURABLE\n");
    h.advance_ms(1);
    assert_eq!(h.ask(c, &pubn("DURABLE", "7:1", "x")), "OK 1 DURABLE\n");
    assert_eq!(h.ask(c, &pubn("DURABLE", "7:1", "x")), "OK 1 DURABLE\n");

    let off = || with(&[(Setting::DedupSequences, 0)]);
    let mut h = started(off());
    let c = h.connect();
    assert_eq!(
        h.ask(c, &[pubn("DURABLE", "7:1", "x"), pubn("DURABLE", "7:1", "x")].concat()),
        "OK 0 DURABLE\nOK 1 DURABLE\n"
    );
}

#[test]
fn a_topic_can_be_told_how_much_to_remember() {
    let mut h = started(plain());
    let c = h.connect();
    h.ask(c, b"CREATE @t dedup-sequences=1\n");
    let publish =
        |h: &mut Harness, sequence: u32| h.ask(c, format!("PUBN @t DURABLE 1 id=7:{sequence}\nx\n").as_bytes());
    assert_eq!(
        [1, 2, 2, 1].map(|n| publish(&mut h, n)),
        ["OK 0 DURABLE\n", "OK 1 DURABLE\n", "OK 1 DURABLE\n", "OK 2 DURABLE\n"]
    );
    assert_eq!(h.ask(c, b"ALTER @t dedup-sequences=2\n"), "ALTERED t\n");
    assert_eq!([3, 1, 3].map(|n| publish(&mut h, n)), ["OK 3 DURABLE\n", "OK 2 DURABLE\n", "OK 3 DURABLE\n"]);
    assert_eq!(h.ask(c, b"ALTER @t dedup-sequences=0\n"), "ALTERED t\n");
    assert_eq!([3, 3].map(|n| publish(&mut h, n)), ["OK 4 DURABLE\n", "OK 5 DURABLE\n"]);
}

/// P7: a file of producers that is not whole refuses the start, and nothing is changed.
#[test]
fn p7_a_damaged_file_of_producers_refuses_the_start() {
    let mut h = started(plain());
    let c = h.connect();
    h.ask(c, &pubn("DURABLE", "7:1", "a"));
    h.kill(plain());
    for bytes in [&b""[..], b"PLPR", &[0; 100]] {
        let mut disk = h.disk.clone();
        disk.put("topics/default/producers", bytes);
        let before = disk.files();
        let mut h = Harness::with_disk(plain(), disk);
        h.start();
        assert!(h.halted.is_some());
        assert!(reports(&h, "RECOVERY").pop().expect("a report").contains("reason=producers-unreadable"));
        assert_eq!(h.disk.files(), before);
    }
}
