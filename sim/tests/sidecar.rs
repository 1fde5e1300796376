//! The sidecar of a closed segment: it saves reading, and nothing follows from it.

mod common;

use common::*;
use plimsoll_core::config::Config;
use plimsoll_core::effect::{Effect, IoErrorKind};
use plimsoll_core::layout;
use plimsoll_core::log::sidecar::{self, Sidecar};
use plimsoll_sim::naive::{Harness, NaiveDisk};

const DIR: &str = "topics/default";

/// Small segments, an entry for every third message or so, and nothing in memory.
fn config() -> Config {
    Config {
        segment_bytes: 1024,
        index_stride_bytes: 200,
        index_bytes: 0,
        recent_bytes: 0,
        auto_create: true,
        ..plain()
    }
}

/// Messages over several segments, at times that step back in the middle of one.
fn publish(h: &mut Harness, topic: &str, count: usize) {
    let c = h.connect();
    for n in 0..count {
        h.advance_ms(10);
        if n % 17 == 9 {
            h.step_wall_ms(-55);
        }
        let reply = h.ask(c, format!("PUB @{topic} DURABLE message-{n:03}-{}\n", "v".repeat(20)).as_bytes());
        assert!(reply.starts_with("OK "), "{reply}");
    }
    h.disconnect(c);
}

fn indexes(disk: &NaiveDisk) -> Vec<String> {
    disk.files().into_keys().filter(|path| path.ends_with(layout::INDEX_SUFFIX)).collect()
}

/// What every request that needs an index is answered, from everywhere.
fn answers(h: &mut Harness) -> Vec<Vec<u8>> {
    let c = h.connect();
    let begin = 1_700_000_000_000_i64;
    let requests = (0..60)
        .flat_map(|n| [format!("READ {n} 2 META"), format!("READRAW {n} 150"), format!("READRAW {n} 600")])
        .chain((-2..70).map(|n| format!("SEEK g time={}", begin + n * 10 + 5)));
    let mut all = Vec::new();
    for request in requests {
        h.send(c, format!("{request}\n").as_bytes());
        all.push(h.reply_bytes(c));
    }
    h.disconnect(c);
    all
}

fn served() -> Harness {
    let mut h = started(config());
    publish(&mut h, "default", 60);
    h
}

#[test]
fn a_roll_writes_one_and_nothing_waits_for_it() {
    let h = served();
    let segments = segments(&h.disk);
    assert!(segments.len() > 3, "{segments:?}");
    let closed = segments[..segments.len() - 1].iter().map(|path| path.replace(".log", ".index"));
    assert_eq!(indexes(&h.disk), closed.collect::<Vec<_>>());
    let trace = trace(&h);
    assert_eq!(count(&trace, "force topics/default/log/00000000000000000000.index"), 0);
    // The new segment stands, forced, before its sidecar is begun.
    let at = |what: &str| trace.iter().position(|line| line == what).unwrap_or_else(|| panic!("{what}: {trace:#?}"));
    let create = at(&format!("create {}", indexes(&h.disk)[0]));
    assert!(at(&format!("create {}", segments[1])) < create);

    let mut held = started(config());
    held.hold(|effect, path| matches!(effect, Effect::Create { .. }) && path.ends_with(".index"));
    publish(&mut held, "default", 60);
    assert!(held.held() > 2);
    assert!(read_all(&mut held).contains("message-059"));
}

#[test]
fn it_says_what_its_segment_holds() {
    let h = served();
    for path in indexes(&h.disk) {
        let said = sidecar::decode(h.disk.file(&path).expect("a sidecar")).expect("a whole one");
        let base = said.base;
        assert_eq!(path, layout::index(DIR, base));
        let segment = h.disk.file(&segment(base)).expect("its segment");
        assert_eq!(said.end, segment.len() as u64);
        assert!(said.entries.len() > 2, "{said:?}");
        for entry in &said.entries {
            let stored = u64::from_be_bytes(segment[entry.position as usize + 8..][..8].try_into().expect("an offset"));
            assert_eq!(stored, entry.offset);
        }
    }
}

/// Everything that can be done to the file of one.
fn meddle(disk: &mut NaiveDisk, how: &mut dyn FnMut(&mut NaiveDisk, &str)) {
    for path in indexes(disk) {
        how(disk, &path);
    }
}

#[test]
fn p1_whatever_becomes_of_it_the_answers_are_the_same() {
    let mut h = served();
    let right = answers(&mut h);
    let whole: Vec<(String, Vec<u8>)> =
        indexes(&h.disk).into_iter().map(|path| (path.clone(), h.disk.file(&path).expect("one").to_vec())).collect();
    // Another log, whose segments have the same names.
    let mut foreign = started(Config { entropy: [9; 16], ..config() });
    publish(&mut foreign, "default", 60);
    let foreign = foreign.disk.files();

    type Deed<'a> = Box<dyn FnMut(&mut NaiveDisk, &str) + 'a>;
    let mut deeds: Vec<(String, Deed<'_>)> = vec![
        ("deleted".into(), Box::new(|disk, path| disk.take_away(path))),
        ("zeroed".into(), Box::new(|disk, path| disk.file_mut(path).fill(0))),
        ("emptied".into(), Box::new(|disk, path| disk.file_mut(path).clear())),
        ("too long".into(), Box::new(|disk, path| disk.file_mut(path).resize(1 << 20, 7))),
        ("of another log".into(), Box::new(|disk, path| disk.put(path, &foreign[path]))),
    ];
    for rest in 1..whole[0].1.len() {
        deeds.push((format!("cut to {rest}"), Box::new(move |disk, path| disk.file_mut(path).truncate(rest))));
    }
    for shift in 1..whole.len() {
        let whole = &whole;
        deeds.push((
            format!("of the segment {shift} further"),
            Box::new(move |disk, path| {
                let at = whole.iter().position(|(other, _)| other == path).expect("one of them");
                disk.put(path, &whole[(at + shift) % whole.len()].1);
            }),
        ));
    }
    for (n, (what, deed)) in deeds.iter_mut().enumerate() {
        meddle(&mut h.disk, deed);
        if n % 2 == 1 {
            h.kill_and_restart(config());
        }
        assert!(answers(&mut h) == right, "{what}");
        // What was needed and wrong is right again.
        for (path, bytes) in &whole {
            assert_eq!(h.disk.file(path), Some(&bytes[..]), "{path} after it was {what}");
        }
    }
}

#[test]
fn p1_no_flipped_byte_in_it_is_believed() {
    let mut h = served();
    let right = answers(&mut h);
    let path = layout::index(DIR, 0);
    for at in 0..h.disk.file(&path).expect("one").len() {
        h.disk.file_mut(&path)[at] ^= 1 << (at % 8);
        assert!(answers(&mut h) == right, "byte {at}");
    }
}

/// With a right head, a right checksum and the right fingerprint: what it says of frames is looked at all the same.
#[test]
fn p1_a_position_that_it_gives_is_looked_at_first() {
    let mut h = served();
    let right = answers(&mut h);
    type Lie = fn(&mut Sidecar);
    let lies: [Lie; 4] = [
        |said| said.entries[1..].iter_mut().for_each(|entry| entry.position += 1),
        |said| said.entries[1..].iter_mut().for_each(|entry| entry.offset += 1),
        // Past the end, and frames of other offsets.
        |said| said.entries[1..].iter_mut().for_each(|entry| entry.position += 10_000),
        |said| {
            let positions: Vec<u64> = said.entries.iter().map(|entry| entry.position).collect();
            let last = said.entries.len() - 1;
            (1..last).for_each(|n| said.entries[n].position = positions[n + 1]);
            said.entries.truncate(last);
        },
    ];
    for lie in lies {
        meddle(&mut h.disk, &mut |disk, path| {
            let mut said = sidecar::decode(disk.file(path).expect("one")).expect("a whole one");
            lie(&mut said);
            disk.put(path, &sidecar::encode(&said));
        });
        assert!(answers(&mut h) == right);
    }
}

/// As the crash story *the index of another life* tells it, and everything that is asked by an index.
#[test]
fn p1_one_of_another_run_of_the_same_log_is_not_believed() {
    let mut h = started(config());
    publish(&mut h, "default", 2);
    let mut disk = h.disk.clone();
    publish(&mut h, "default", 58);
    let of_the_first = h.disk.files();

    disk.close_all();
    let mut h = Harness::with_disk(config(), disk);
    h.start();
    // Later, and with other steps of the clock.
    h.advance_ms(333);
    let c = h.connect();
    for n in 0..58 {
        h.advance_ms(7);
        let line = format!("PUB DURABLE message-{n:03}-{}\n", "w".repeat(20));
        assert!(h.ask(c, line.as_bytes()).starts_with("OK "));
    }
    let right = answers(&mut h);
    meddle(&mut h.disk, &mut |disk, path| disk.put(path, &of_the_first[path]));
    assert!(answers(&mut h) == right);
    meddle(&mut h.disk, &mut |disk, path| disk.put(path, &of_the_first[path]));
    h.kill_and_restart(config());
    assert!(answers(&mut h) == right);
}

#[test]
fn p11_no_failure_of_it_is_a_failure_of_the_broker() {
    for (which, kind) in [
        ("create", IoErrorKind::NoSpace),
        ("create", IoErrorKind::TooManyFiles),
        ("create", IoErrorKind::Other),
        ("write", IoErrorKind::NoSpace),
        ("write", IoErrorKind::Other),
        ("remove", IoErrorKind::Other),
    ] {
        let mut h = started(config());
        for _ in 0..3 {
            h.fail_next(
                move |effect, path| {
                    let of_kind = match which {
                        "create" => matches!(effect, Effect::Create { .. }),
                        "remove" => matches!(effect, Effect::Remove { .. }),
                        _ => matches!(effect, Effect::Write { .. }),
                    };
                    of_kind && path.ends_with(".index")
                },
                kind,
            );
        }
        if which == "remove" {
            h.fail_next(|effect, path| matches!(effect, Effect::Write { .. }) && path.ends_with(".index"), kind);
        }
        publish(&mut h, "default", 60);
        assert_eq!(h.halted, None, "{which} {kind:?}");
        if which != "remove" {
            assert_eq!(h.unfired_failures(), 0, "{which} {kind:?}");
            let closed = segments(&h.disk).len() - 1;
            assert_eq!(indexes(&h.disk).len(), closed - 3, "nothing is left of what failed");
        }
        let right = answers(&mut h);
        assert!(right == answers(&mut served()), "{which} {kind:?}");
    }
}

/// Nothing but the segment tells of the frames in it: its sidecar is made anew by whoever needs it, and read by the next.
#[test]
fn it_is_written_by_the_first_reader_and_read_by_the_next() {
    let reads = |h: &mut Harness, request: &str| {
        let before = h.effects.len();
        let c = h.connect();
        assert!(h.ask(c, format!("{request}\n").as_bytes()).starts_with("MSG "));
        traced(&h.effects.iter().map(|(_, effect)| effect.clone()).collect::<Vec<_>>()[..])
            .into_iter()
            .skip(traced(&h.effects[..before].iter().map(|(_, effect)| effect.clone()).collect::<Vec<_>>()).len())
            .map(|(line, _)| {
                line.rsplit_once('/').map_or(line.clone(), |(verb, name)| {
                    format!("{} {}", verb.split(' ').next().unwrap_or_default(), name.trim_start_matches('0'))
                })
            })
            .collect::<Vec<String>>()
    };
    let remembering = Config { index_bytes: 1 << 20, ..config() };
    let mut h = served();
    h.kill_and_restart(remembering.clone());
    h.disk.take_away(&layout::index(DIR, 0));
    let first = reads(&mut h, "READ 9 1");
    assert_eq!(first, ["open .index", "read .log", "create .index", "write .index", "read .log"]);
    assert_eq!(reads(&mut h, "READ 9 1"), ["read .log"], "it is in memory");
    h.kill_and_restart(remembering);
    assert_eq!(reads(&mut h, "READ 9 1"), ["open .index", "read .index", "read .log", "read .log"]);
    assert_eq!(reads(&mut h, "READ 9 1"), ["read .log", "read .log"], "what it says is looked at each time");
    h.kill_and_restart(config());
    for _ in 0..2 {
        assert_eq!(reads(&mut h, "READ 9 1"), ["open .index", "read .index", "read .log", "read .log"], "none is kept");
    }
    // Where a segment begins needs no looking for.
    assert_eq!(reads(&mut h, "READ 0 1"), ["read .log"]);
}

/// What stays of the index is of the frames that stay in the segment.
#[test]
fn one_of_a_segment_whose_tail_a_recovery_has_copied_is_known_again() {
    let config = Config { segment_bytes: 1 << 20, copy_whole_bytes_max: 0, ..config() };
    let mut h = started(config.clone());
    publish(&mut h, "default", 20);
    let c = h.connect();
    h.hold(is_log_force);
    assert_eq!(h.ask(c, b"PUB WRITTEN tail\n"), "OK 20 WRITTEN\n");
    h.kill_and_restart(config);
    assert_eq!(segments(&h.disk).len(), 2);
    let c = h.connect();
    h.ask(c, b"READ 9 1\n");
    assert_eq!(indexes(&h.disk), [layout::index(DIR, 0)]);
    let before = trace(&h).len();
    h.ask(c, b"READ 9 1\n");
    let lines = &trace(&h)[before..];
    assert_eq!((count(lines, &format!("read {}", layout::index(DIR, 0))), count(lines, "write")), (1, 0), "{lines:?}");
}

#[test]
fn one_without_a_closed_segment_is_removed_at_the_start_with_its_line() {
    let mut h = served();
    let newest = segments(&h.disk).len() - 1;
    let active = segments(&h.disk)[newest].replace(".log", ".index");
    let orphans = [layout::index(DIR, 7_777), active];
    orphans.iter().for_each(|path| h.disk.put(path, b"?"));
    let before = indexes(&h.disk).len();
    h.kill_and_restart(config());
    let mut removed = reports(&h, "INDEX_REMOVED");
    removed.sort();
    let mut expected: Vec<String> = orphans.iter().map(|path| format!("INDEX_REMOVED path={path}")).collect();
    expected.sort();
    assert_eq!(removed, expected);
    assert_eq!(indexes(&h.disk).len(), before - 2);
    assert_eq!(reports(&h, "UNKNOWN_FILE"), [""; 0]);

    // A start that is refused changes nothing (P7).
    h.disk.put(&orphans[0], b"?");
    h.disk.file_mut(&segment(0))[40] ^= 1;
    let before = h.disk.files();
    h.kill_and_restart(config());
    assert!(h.halted.is_some());
    assert!(h.disk.files() == before);
}

/// A sidecar leads past a record that rots while the broker runs; without one, the walk ends there. Either way nothing is skipped.
#[test]
fn p7_damage_before_the_place_is_not_looked_for_and_not_hidden() {
    let mut h = served();
    h.disk.file_mut(&segment(0))[60] ^= 1;
    let c = h.connect();
    assert!(h.ask(c, b"READ 9 1\n").starts_with("MSG 9 "));
    assert!(h.ask(c, b"READ 0 1\n").starts_with("ERR CORRUPT "));
    h.disk.take_away(&layout::index(DIR, 0));
    assert!(h.ask(c, b"READ 9 1\n").starts_with("ERR CORRUPT "));
    assert!(h.disk.file(&layout::index(DIR, 0)).is_none(), "of a damaged segment none is written");
}

/// The first message at or after a time, in the order of offsets, however the clock stepped.
#[test]
fn seek_by_time_answers_in_the_order_of_offsets() {
    for stride in [1, 200, 1 << 16] {
        let config = Config { index_stride_bytes: stride, ..config() };
        let mut h = started(config.clone());
        let c = h.connect();
        let mut times = Vec::new();
        for (n, step) in
            [0, 500, -200, -100, 0, 3_000, -4_000, 10, 10, 10, -5, 2_000].iter().cycle().take(70).enumerate()
        {
            h.step_wall_ms(*step);
            h.advance_ms(3);
            times.push(h.now().wall_ms);
            assert_eq!(
                h.ask(c, format!("PUB DURABLE m{n}-{}\n", "v".repeat(30)).as_bytes()),
                format!("OK {n} DURABLE\n")
            );
        }
        assert!(segments(&h.disk).len() > 4);
        // What is above the line is not found.
        assert_eq!(h.ask(c, b"FIND time=99999999999999\n"), format!("FOUND {}\n", times.len()));
        assert!(h.ask(c, b"FIND @nowhere time=0\n").starts_with("ERR NO_TOPIC "));
        for restart in [false, true] {
            if restart {
                h.kill_and_restart(config.clone());
            }
            let c = h.connect();
            for time in times.iter().flat_map(|time| [time - 1, *time, time + 1]).chain([i64::MIN, 0, i64::MAX]) {
                let right = times.iter().position(|stamp| *stamp >= time).unwrap_or(times.len());
                assert_eq!(h.ask(c, format!("SEEK g time={time}\n").as_bytes()), format!("SOUGHT {right}\n"), "{time}");
                assert_eq!(h.ask(c, format!("FIND time={time}\n").as_bytes()), format!("FOUND {right}\n"), "{time}");
            }
        }
    }
}
