//! Recovery: a data directory is made by running the broker, then damaged, then started again.

mod common;

use common::*;
use plimsoll_core::config::Config;
use plimsoll_core::effect::{Effect, Halt, HaltKind, IoErrorKind};
use plimsoll_core::event::Event;
use plimsoll_core::group::offset_file::encode_offset;
use plimsoll_core::log::recovery::{Conclusion, DirectoryFindings, FirstInvalid, Inspector, conclude};
use plimsoll_core::log::topic_file::TopicToml;
use plimsoll_core::log::watermark::{self, Slot, Watermark};
use plimsoll_core::record::{self, Kind};
use plimsoll_sim::disk::SimDisk;
use plimsoll_sim::naive::{Harness, NaiveDisk};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

const WATERMARK: &str = "topics/default/watermark";
/// What a message of [`directory`] takes in the file.
const FRAME_BYTES: usize = record::OVERHEAD_BYTES + VALUE_BYTES;
const VALUE_BYTES: usize = 99;

/// The value of a message: its offset and the same bytes behind it, always as many.
fn value(offset: u64) -> String {
    format!("{offset:04}{}", "abcdefgh-".repeat(12)).chars().take(VALUE_BYTES).collect()
}

/// What READ shows of the messages up to `end`.
fn messages(end: u64) -> String {
    (0..end).map(|offset| format!("MSG {offset} {}\n", value(offset))).collect()
}

fn publish(h: &mut Harness, level: &str, from: u64, to: u64) {
    let client = h.connect();
    for offset in from..to {
        let reply = h.ask(client, format!("PUB {level} {}\n", value(offset)).as_bytes());
        assert_eq!(reply, format!("OK {offset} {level}\n"));
    }
    h.disconnect(client);
}

/// A directory after a kill: so many durable messages, and so many more that were written and not forced.
fn directory(config: &Config, durable: u64, unforced: u64) -> NaiveDisk {
    let mut h = started(config.clone());
    publish(&mut h, "DURABLE", 0, durable);
    // A full segment is rolled, and forced for that, before the next message.
    let full = config.segment_bytes == 512 && durable > 0 && durable.is_multiple_of(4);
    let last = segments(&h.disk).pop().expect("a segment");
    h.hold(move |effect, path| is_log_force(effect, path) && !(full && path == last));
    publish(&mut h, "WRITTEN", durable, durable + unforced);
    h.kill(config.clone());
    h.disk
}

/// A directory after a clean stop.
fn clean_directory(config: &Config, durable: u64) -> NaiveDisk {
    let mut h = started(config.clone());
    publish(&mut h, "DURABLE", 0, durable);
    h.stop();
    assert!(h.stopped);
    h.disk.close_all();
    h.disk
}

fn restarted(config: &Config, disk: &NaiveDisk) -> Harness {
    let mut disk = disk.clone();
    disk.close_all();
    let mut h = Harness::with_disk(config.clone(), disk);
    h.start();
    h
}

/// The last RECOVERY line of a topic.
fn recovery_line(h: &Harness, topic: &str) -> String {
    let line = reports(h, "RECOVERY").into_iter().rfind(|line| line.contains(&format!("topic={topic} ")));
    line.unwrap_or_else(|| panic!("no RECOVERY line of {topic}"))
}

fn field(line: &str, key: &str) -> String {
    let value = line.split(' ').find_map(|word| word.strip_prefix(&format!("{key}=")));
    value.unwrap_or_else(|| panic!("no {key} in {line}")).to_owned()
}

#[track_caller]
fn assert_fields(line: &str, expected: &[(&str, &str)]) {
    for (key, value) in expected {
        assert_eq!(field(line, key), *value, "{key} in {line}");
    }
}

/// Starts on a damaged directory, which has to be refused without a byte changed (P7), and says the line.
#[track_caller]
fn refused(disk: &NaiveDisk, reason: &str) -> String {
    let h = restarted(&plain(), disk);
    let halt = h.halted.clone().expect("refused");
    assert_eq!(halt.kind, HaltKind::Corrupt, "{halt:?}");
    assert_eq!(h.disk.files(), disk.files(), "not a byte is changed");
    assert_eq!(h.disk.dirs(), disk.dirs());
    let only_looks = |effect: &Effect| {
        matches!(
            effect,
            Effect::List { .. }
                | Effect::Open { .. }
                | Effect::Read { .. }
                | Effect::CloseFile { .. }
                | Effect::Report(_)
                | Effect::Halt(_)
        )
    };
    assert!(h.effects.iter().all(|(_, effect)| only_looks(effect)));
    assert!(reports(&h, "REFUSE_START").iter().any(|line| line.ends_with(&format!("reason={reason}"))));
    let line = reports(&h, "RECOVERY").into_iter().find(|line| line.contains("status=CORRUPT")).expect("a line");
    assert_fields(&line, &[("reason", reason)]);
    // Looking at it from outside says the same and changes nothing.
    let (findings, inspected) = inspect(disk);
    let findings = findings.expect("findings");
    assert_eq!(findings.refusal(), Some(HaltKind::Corrupt));
    assert_eq!(inspected.files(), disk.files());
    line
}

/// Starts, which has to cut off a torn tail (P8), and says the line. What is below `end` is there.
#[track_caller]
fn truncated(disk: &NaiveDisk, end: u64) -> String {
    let (findings, inspected) = inspect(disk);
    assert_eq!(inspected.files(), disk.files());
    assert_eq!(findings.expect("findings").topics[0].conclusion, Conclusion::TruncatedTail);
    let mut h = restarted(&plain(), disk);
    assert_eq!(h.halted, None);
    let line = recovery_line(&h, "default");
    assert_fields(&line, &[("status", "TRUNCATED_TAIL"), ("truncatedAtOffset", &end.to_string())]);
    assert_eq!(read_all(&mut h), messages(end));
    publish(&mut h, "DURABLE", end, end + 1);
    h.kill_and_restart(plain());
    assert_fields(&recovery_line(&h, "default"), &[("status", "OK"), ("records", &(end + 1).to_string())]);
    assert_eq!(read_all(&mut h), messages(end + 1));
    line
}

/// Runs an inspector over a disk.
fn inspect(disk: &NaiveDisk) -> (Result<DirectoryFindings, String>, NaiveDisk) {
    let mut disk = disk.clone();
    disk.close_all();
    let mut inspector = Inspector::new();
    let mut events = std::collections::VecDeque::from([Event::Start]);
    let now = Harness::new(plain()).now();
    while let Some(event) = events.pop_front() {
        let mut effects = Vec::new();
        if let Some(findings) = inspector.handle(now, event, &mut effects) {
            return (findings, disk);
        }
        for (id, effect) in effects {
            let result = disk.execute(&effect);
            if !matches!(effect, Effect::CloseFile { .. }) {
                events.push_back(Event::Completed { id, result });
            }
        }
    }
    panic!("the inspector came to no end");
}

fn slots(disk: &NaiveDisk) -> Watermark {
    Watermark::read(disk.file(WATERMARK).expect("a watermark"))
}

/// Writes both slots anew.
fn set_line(disk: &mut NaiveDisk, change: impl Fn(&mut Slot)) {
    let mut slot = slots(disk).current().expect("a slot");
    change(&mut slot);
    let file = watermark::new_file(&slot);
    *disk.file_mut(WATERMARK) = file;
}

// ---- the table --------------------------------------------------------------------------------------------------------

#[test]
fn the_table_over_every_combination_of_its_inputs() {
    use Conclusion::{Corrupt, Ok, TruncatedTail};
    let rows = [
        (FirstInvalid::None, [Ok, Corrupt]),
        (FirstInvalid::InLast, [TruncatedTail, Corrupt]),
        (FirstInvalid::Earlier, [Corrupt, Corrupt]),
    ];
    for (first_invalid, [at_or_below, above]) in rows {
        for end in [0, 1, 7, u64::MAX - 1, u64::MAX] {
            for evidence in [0, 1, 6, 7, 8, u64::MAX - 1, u64::MAX] {
                let expected = if evidence > end { above } else { at_or_below };
                assert_eq!(conclude(first_invalid, evidence, end), expected, "{first_invalid:?} {evidence} {end}");
            }
        }
    }
}

// ---- above the line: a torn tail ------------------------------------------------------------------------------------------

#[test]
fn whole_frames_above_the_line_are_kept() {
    let disk = directory(&plain(), 5, 3);
    let mut h = restarted(&plain(), &disk);
    let line = "RECOVERY topic=default status=OK records=8 durable=5 elapsedMs=0";
    assert_eq!(recovery_line(&h, "default"), line, "nothing is wrong, so there is no reason");
    assert_eq!(read_all(&mut h), messages(8));
}

#[test]
fn p8_a_tail_that_is_short() {
    let disk = directory(&plain(), 5, 1);
    for (left, reason) in
        [(1, "short-header"), (15, "short-header"), (16, "short-payload"), (FRAME_BYTES - 1, "short-payload")]
    {
        let mut disk = disk.clone();
        disk.file_mut(&segment(0)).truncate(5 * FRAME_BYTES + left);
        // The last byte that is not zero counts.
        let file = disk.file(&segment(0)).expect("it");
        let bytes = file.iter().rposition(|&byte| byte != 0).expect("some") + 1 - 5 * FRAME_BYTES;
        if bytes == 0 {
            continue;
        }
        let line = truncated(&disk, 5);
        assert_fields(
            &line,
            &[
                ("reason", reason),
                ("truncatedBytes", &bytes.to_string()),
                ("droppedUnforced", "0"),
                ("position", &(5 * FRAME_BYTES).to_string()),
                ("expectedOffset", "5"),
                ("durable", "5"),
                ("records", "5"),
            ],
        );
    }
}

#[test]
fn p8_a_tail_of_zeros_is_unused_space() {
    for zeros in [1, 7, 16, 30, 5000] {
        let mut disk = directory(&plain(), 5, 1);
        let file = disk.file_mut(&segment(0));
        file.truncate(5 * FRAME_BYTES);
        file.resize(5 * FRAME_BYTES + zeros, 0);
        let mut h = restarted(&plain(), &disk);
        assert_fields(&recovery_line(&h, "default"), &[("status", "OK"), ("records", "5")]);
        assert_eq!(read_all(&mut h), messages(5));
    }
}

#[test]
fn p8_a_tail_of_garbage_or_with_a_zeroed_sector() {
    let mut disk = directory(&plain(), 5, 1);
    let file = disk.file_mut(&segment(0));
    file.truncate(5 * FRAME_BYTES);
    file.extend((0..777).map(|n: usize| (n * 131 + 7) as u8 | 1));
    assert_fields(
        &truncated(&disk, 5),
        &[("truncatedBytes", "777"), ("reason", "bad-length"), ("droppedUnforced", "0")],
    );

    let mut disk = directory(&plain(), 5, 3);
    disk.file_mut(&segment(0))[6 * FRAME_BYTES..][..FRAME_BYTES].fill(0);
    let line = truncated(&disk, 6);
    assert_fields(&line, &[("reason", "bad-length"), ("droppedUnforced", "1")]);
    assert_fields(&line, &[("validRecordAt", &(7 * FRAME_BYTES).to_string())]);
}

#[test]
fn p8_good_bad_good_above_the_line_drops_what_no_force_covered() {
    let mut disk = directory(&plain(), 5, 6);
    disk.file_mut(&segment(0))[7 * FRAME_BYTES + 50] ^= 0x10;
    let line = truncated(&disk, 7);
    assert_fields(
        &line,
        &[
            ("reason", "crc-mismatch"),
            ("droppedUnforced", "3"),
            ("truncatedBytes", &(4 * FRAME_BYTES).to_string()),
            ("position", &(7 * FRAME_BYTES).to_string()),
            ("validRecordAt", &(8 * FRAME_BYTES).to_string()),
        ],
    );
}

#[test]
fn a_frame_of_an_unknown_kind_or_another_offset_ends_the_log_above_the_line() {
    for (offset, kind, reason) in [(5, 0x0e, "unknown-kind"), (5, 0x80, "unknown-kind"), (6, 0, "offset-mismatch")] {
        let mut disk = directory(&plain(), 5, 0);
        let salt = salt(&disk, "default", 0);
        record::encode(disk.file_mut(&segment(0)), salt, offset, 5, kind, 0, |out| out.push(b'x'));
        assert_fields(&truncated(&disk, 5), &[("reason", reason), ("truncatedBytes", "30")]);
    }
}

// ---- below the line: corruption ---------------------------------------------------------------------------------------------

#[test]
fn p7_damage_below_the_line_refuses_the_start() {
    let disk = directory(&plain(), 8, 2);
    for at in [0, 3, 5, 12, 17, 20, 60, FRAME_BYTES - 1] {
        for frame in [0, 3, 7] {
            let mut disk = disk.clone();
            disk.file_mut(&segment(0))[frame * FRAME_BYTES + at] ^= 0x80;
            let reason = if at == 0 { "bad-length" } else { "crc-mismatch" };
            // A length that reaches behind the end of the file.
            let reason = if at == 3 { None } else { Some(reason) };
            if let Some(reason) = reason {
                let line = refused(&disk, reason);
                assert_fields(
                    &line,
                    &[
                        ("position", &(frame * FRAME_BYTES).to_string()),
                        ("expectedOffset", &frame.to_string()),
                        ("validRecordAt", &((frame + 1) * FRAME_BYTES).to_string()),
                        ("file", &segment(0)),
                    ],
                );
            }
        }
    }
}

#[test]
fn p7_a_flipped_bit_in_the_very_last_durable_record_is_no_torn_tail() {
    for clean in [false, true] {
        let mut disk = if clean { clean_directory(&plain(), 5) } else { directory(&plain(), 5, 0) };
        disk.file_mut(&segment(0))[5 * FRAME_BYTES - 1] ^= 1;
        let line = refused(&disk, "crc-mismatch");
        assert_fields(&line, &[("expectedOffset", "4"), ("durable", "5"), ("status", "CORRUPT")]);
    }
}

#[test]
fn p7_a_length_of_60000_with_twenty_good_records_behind() {
    let mut disk = directory(&plain(), 24, 0);
    disk.file_mut(&segment(0))[3 * FRAME_BYTES..][..4].copy_from_slice(&60_000u32.to_be_bytes());
    let line = refused(&disk, "short-payload");
    assert_fields(&line, &[("expectedOffset", "3"), ("validRecordAt", &(4 * FRAME_BYTES).to_string())]);
}

#[test]
fn p7_the_lag_of_later_frames_is_evidence_when_the_line_is_lost_with_its_slots() {
    // The slots are of long ago; the frames behind the damage say what had been forced when they were written.
    let mut disk = directory(&plain(), 12, 0);
    set_line(&mut disk, |slot| slot.durable = 0);
    disk.file_mut(&segment(0))[4 * FRAME_BYTES + 40] ^= 1;
    refused(&disk, "crc-mismatch");
    // Behind the last frame that proves it, nothing does: the limit that the documentation states.
    let mut disk = directory(&plain(), 12, 0);
    set_line(&mut disk, |slot| slot.durable = 0);
    disk.file_mut(&segment(0))[11 * FRAME_BYTES + 40] ^= 1;
    truncated(&disk, 11);
}

#[test]
fn p7_a_file_cut_below_the_line() {
    for length in [0, 1, FRAME_BYTES, 4 * FRAME_BYTES + 20, 5 * FRAME_BYTES - 1] {
        let mut disk = directory(&plain(), 5, 0);
        disk.file_mut(&segment(0)).truncate(length);
        let reason = match length % FRAME_BYTES {
            0 => "below-watermark",
            n if n < 16 => continue_reason(&disk),
            _ => "short-payload",
        };
        refused(&disk, reason);
    }
}

/// A single zero byte is unused space, anything else a short header.
fn continue_reason(disk: &NaiveDisk) -> &'static str {
    let file = disk.file(&segment(0)).expect("it");
    if file.last() == Some(&0) { "below-watermark" } else { "short-header" }
}

fn several_segments() -> (Config, NaiveDisk) {
    let config = Config { segment_bytes: 512, ..plain() };
    let disk = directory(&config, 19, 1);
    assert_eq!(segments(&disk).len(), 5, "{:?}", segments(&disk));
    (config, disk)
}

#[test]
fn p7_a_segment_that_is_missing() {
    let (_, disk) = several_segments();
    let paths = segments(&disk);
    for (gone, reason) in
        [(0, "missing-segment"), (1, "missing-segment"), (3, "missing-segment"), (4, "below-watermark")]
    {
        let mut disk = disk.clone();
        disk.take_away(&paths[gone]);
        // With the newest one 16 … 18 are gone, which were durable.
        refused(&disk, reason);
    }
    let mut disk = disk.clone();
    paths.iter().for_each(|path| disk.take_away(path));
    refused(&disk, "missing-segment");
}

#[test]
fn p7_an_earlier_segment_is_never_torn() {
    let (_, disk) = several_segments();
    let paths = segments(&disk);
    for path in &paths[..4] {
        let mut cut = disk.clone();
        let length = cut.file(path).expect("it").len();
        cut.file_mut(path).truncate(length - 5);
        refused(&cut, "short-payload");
        let mut flipped = disk.clone();
        flipped.file_mut(path)[length - 1] ^= 4;
        refused(&flipped, "crc-mismatch");
    }
    // Also above the line, which a watermark of long ago would allow.
    let mut disk = disk.clone();
    set_line(&mut disk, |slot| slot.durable = 0);
    disk.file_mut(&paths[3])[10] ^= 1;
    refused(&disk, "crc-mismatch");
}

#[test]
fn unused_zeros_behind_an_earlier_segment_are_no_damage_but_other_bytes_before_the_next_are() {
    let (config, disk) = several_segments();
    let mut zeros = disk.clone();
    zeros.file_mut(&segments(&disk)[1]).extend([0; 100]);
    let mut h = restarted(&config, &zeros);
    assert_eq!(read_all(&mut h), messages(20));
    assert_eq!(h.disk.file(&segments(&disk)[1]).map(<[u8]>::len), Some(4 * FRAME_BYTES), "recovery cut them off");
}

/// Crash story: the topic without a name.
#[test]
fn a_topic_is_unfinished_while_both_its_slots_are_the_first_and_nothing_is_in_it() {
    let first = watermark::SEQUENCE_UNFINISHED;
    for (request, sequence, stays) in [
        ("PING\n", first, false),
        ("PING\n", first + 1, true),
        ("PUB @t DURABLE x\n", first, true),
        ("SEEK @t g start\n", first, true),
    ] {
        let mut h = started(plain());
        let c = h.connect();
        h.ask(c, format!("CREATE @t\n{request}").as_bytes());
        h.kill(plain());
        let slots = Watermark::read(h.disk.file("topics/t/watermark").expect("it"));
        let mut slot = slots.current().expect("a slot");
        assert!(slot.sequence > first);
        slot.sequence = sequence;
        *h.disk.file_mut("topics/t/watermark") = watermark::new_file(&slot);
        let (before, disk) = (h.effects.len(), h.disk.clone());
        h.start();
        let c = h.connect();
        assert_eq!(h.ask(c, b"STATUS @t\n").starts_with("STATUS topic=t "), stays, "{request} {sequence}");
        if !stays {
            let mut open = BTreeSet::new();
            for (_, effect) in &h.effects[before..] {
                match effect {
                    Effect::Open { file, path } if path.starts_with("topics/t/") && disk.file(path).is_some() => {
                        open.insert(*file);
                    }
                    Effect::CloseFile { file } => _ = open.remove(file),
                    _ => {}
                }
            }
            assert_eq!(open, BTreeSet::new(), "every file of it is closed");
        }
    }
}

/// The read ahead is waited for also where the next segment begins before it.
#[test]
fn p10_a_read_that_fails_is_told_though_nobody_needs_its_bytes() {
    let (config, mut disk) = several_segments();
    let path = segments(&disk)[1].clone();
    disk.file_mut(&path).resize(3 << 20, 0);
    assert_eq!(restarted(&config, &disk).halted, None);
    let mut h = Harness::with_disk(config, disk);
    h.fail_next(
        move |effect, at| matches!(effect, Effect::Read { position, .. } if *position > 0) && at == path,
        IoErrorKind::Other,
    );
    h.start();
    assert_eq!((h.halted.as_ref().map(|halt| halt.kind), h.unfired_failures()), (Some(HaltKind::IoFailure), 0));
}

#[test]
fn p7_both_slots_unreadable_are_damage() {
    for clean in [false, true] {
        let mut disk = if clean { clean_directory(&plain(), 5) } else { directory(&plain(), 5, 1) };
        disk.file_mut(WATERMARK)[30] ^= 1;
        disk.file_mut(WATERMARK)[4096 + 30] ^= 1;
        refused(&disk, "watermark-unreadable");
        disk.file_mut(WATERMARK).clear();
        refused(&disk, "watermark-unreadable");
        disk.take_away(WATERMARK);
        refused(&disk, "watermark-unreadable");
    }
    // Of another log: somebody copied the file in.
    let mut disk = directory(&plain(), 5, 1);
    set_line(&mut disk, |slot| slot.log_id[0] ^= 1);
    refused(&disk, "watermark-unreadable");
}

#[test]
fn one_torn_slot_is_a_crash_and_is_written_first() {
    let torn = |at: usize| {
        let mut disk = directory(&plain(), 5, 1);
        disk.file_mut(WATERMARK)[at + 35] ^= 0xff;
        disk
    };
    for (disk, end, order) in [
        (torn(0), 6, [0, 4096]),
        (torn(4096), 6, [4096, 0]),
        // Both valid: the newer one first.
        (directory(&plain(), 5, 1), 6, [0, 4096]),
        (clean_directory(&plain(), 5), 5, [4096, 0]),
    ] {
        let mut h = restarted(&plain(), &disk);
        assert_eq!(h.halted, None);
        let effects: Vec<Effect> = h.effects.iter().map(|(_, effect)| effect.clone()).collect();
        let steps: Vec<u64> = traced(&effects)
            .iter()
            .filter_map(|(line, effect)| match effect {
                Effect::Write { position, .. } if line.ends_with(WATERMARK) => Some(*position),
                Effect::Force { .. } if line.ends_with(WATERMARK) => Some(1),
                _ => None,
            })
            .collect();
        assert_eq!(steps, [1, order[0], 1, order[1], 1], "each forced before the other is touched");
        let slots = slots(&h.disk);
        assert!(slots.running.is_some_and(|slot| !slot.clean) && slots.anchored.is_some_and(|slot| !slot.clean));
        assert_eq!(read_all(&mut h), messages(end));
    }
}

/// Crash story: *the soft directory force*.
#[test]
fn a_watermark_file_that_was_made_anew_and_never_written_to_is_made_once_more() {
    let mut equal = directory(&plain(), 5, 1);
    set_line(&mut equal, |_| ());
    let mut h = restarted(&plain(), &equal);
    assert_eq!(h.halted, None);
    let lines = trace(&h);
    let at =
        |what: String| lines.iter().position(|line| *line == what).unwrap_or_else(|| panic!("{what} in {lines:?}"));
    let renamed = at(format!("rename {WATERMARK}.tmp -> {WATERMARK}"));
    assert!(lines[renamed..].contains(&"forcedir topics/default".to_owned()));
    assert!(!lines.contains(&format!("write {WATERMARK}")), "{lines:?}");
    assert_eq!(read_all(&mut h), messages(6));
}

#[test]
fn p7_groups_that_are_damaged_or_above_the_log() {
    let path = "topics/default/groups/g.offset";
    let with_group = || {
        let mut h = started(plain());
        publish(&mut h, "DURABLE", 0, 5);
        let c = h.connect();
        h.ask(c, b"FETCH g 3 0\n");
        assert_eq!(h.ask(c, b"ACK g 2\n"), "ACKED 3\n");
        h.kill(plain());
        h.disk
    };
    for bytes in [&b""[..], b"3", b"3 00000000\n", b"4 1b0f7a2d\n", b"\0\0\0\0\0\0\0\0\0\0\0", b"0\n"] {
        let mut disk = with_group();
        disk.put(path, bytes);
        let line = refused(&disk, "group-unreadable");
        assert_fields(&line, &[("file", path)]);
    }
    let mut disk = with_group();
    disk.put(path, encode_offset(6).as_bytes());
    refused(&disk, "below-group");
    disk.put(path, encode_offset(5).as_bytes());
    let mut h = restarted(&plain(), &disk);
    let c = h.connect();
    assert_eq!(h.ask(c, b"FETCH g 9 0\n"), "END 0\n");
    // A group is evidence also against a tail that looks torn.
    let mut disk = with_group();
    set_line(&mut disk, |slot| slot.durable = 0);
    let file = disk.file_mut(&segment(0));
    file.truncate(3 * FRAME_BYTES - 1);
    refused(&disk, "short-payload");
    disk.put(path, encode_offset(2).as_bytes());
    truncated_with_group(&disk);
}

fn truncated_with_group(disk: &NaiveDisk) {
    let mut h = restarted(&plain(), disk);
    assert_fields(&recovery_line(&h, "default"), &[("status", "TRUNCATED_TAIL"), ("truncatedAtOffset", "2")]);
    let c = h.connect();
    assert_eq!(h.ask(c, b"FETCH g 9 0\n"), "END 0\n");
}

#[test]
fn p7_a_topic_file_that_is_damaged_or_missing() {
    let toml = "topics/default/topic.toml";
    let mut disk = directory(&plain(), 3, 1);
    let text = String::from_utf8(disk.file(toml).expect("it").to_vec()).expect("text");
    for newer in ["format = 2\n", &text.replace("format = 1", "format = 3")] {
        disk.put(toml, newer.as_bytes());
        let h = restarted(&plain(), &disk);
        assert_eq!(h.halted.as_ref().expect("refused").kind, HaltKind::Directory, "{newer}");
        assert_eq!(h.disk.files(), disk.files());
    }
    for bad in ["", &text[..40], &text.replace("log_id", "log-id")] {
        disk.put(toml, bad.as_bytes());
        refused(&disk, "topic-unreadable");
    }
    disk.take_away(toml);
    refused(&disk, "topic-unreadable");
    // With another id no slot and no frame is ours.
    let other = TopicToml { log_id: [0; 16], ..TopicToml::parse(text.as_bytes()).expect("it") };
    disk.put(toml, other.render().as_bytes());
    refused(&disk, "watermark-unreadable");
}

// ---- the directory itself -----------------------------------------------------------------------------------------------------

#[test]
fn a_directory_of_another_format_or_of_something_else_is_left_alone() {
    let ours = directory(&plain(), 3, 0);
    let mut cases: Vec<(&str, NaiveDisk)> = Vec::new();
    for (says, text) in [
        ("format 2", &b"format = 2\nnew = true\n"[..]),
        ("plimsoll.toml can't be read", b"\0\0\0"),
        ("plimsoll.toml can't be read", b""),
    ] {
        let mut disk = ours.clone();
        disk.put("plimsoll.toml", text);
        cases.push((says, disk));
    }
    let mut lost = ours.clone();
    lost.take_away("plimsoll.toml");
    cases.push(("", lost));
    let mut foreign = NaiveDisk::default();
    foreign.put("holiday/beach.jpg", b"sand");
    cases.push(("holiday", foreign));
    let mut half = NaiveDisk::default();
    half.put("plimsoll.toml", ours.file("plimsoll.toml").expect("it"));
    half.put("lost+found/.keep", b"");
    half.put("topics", b"no directory");
    cases.push(("topics", half));
    for (says, disk) in cases {
        let h = restarted(&plain(), &disk);
        let Some(Halt { kind, reason }) = &h.halted else { panic!("not refused: {says}") };
        assert_eq!(*kind, HaltKind::Directory, "{reason}");
        assert!(reason.contains(says) && reason.lines().count() == 1, "{reason}");
        assert_eq!((h.disk.files(), h.disk.dirs()), (disk.files(), disk.dirs()));
        assert_eq!(inspect(&disk).0.expect_err("refused"), *reason);
    }
    let mut mounted = NaiveDisk::default();
    mounted.put("lost+found/.keep", b"");
    mounted.put("LOCK", b"");
    assert_eq!(restarted(&plain(), &mounted).halted, None);
}

#[test]
fn a_directory_that_cannot_be_read_is_told() {
    let disk = directory(&plain(), 3, 0);
    let mut h = Harness::with_disk(plain(), disk.clone());
    h.fail_next(|effect, path| matches!(effect, Effect::List { .. }) && path.is_empty(), IoErrorKind::Other);
    h.start();
    assert_eq!(h.halted.map(|halt| halt.kind), Some(HaltKind::Directory));
}

/// Nor is it taken for one that is empty, or damaged.
#[test]
fn p10_a_file_or_directory_of_a_topic_that_cannot_be_read_halts() {
    let mut h = started(plain());
    publish(&mut h, "DURABLE", 0, 3);
    let c = h.connect();
    h.ask(c, b"FETCH g 3 0\nACK g 0\n");
    h.kill(plain());
    let disk = h.disk;
    for path in
        ["", "/topic.toml", "/watermark", "/groups", "/groups/g.offset", "/log", &segment(0)["topics/default".len()..]]
    {
        let path = format!("topics/default{path}");
        let halts = |matches: fn(&Effect) -> bool| {
            let (mut h, path) = (Harness::with_disk(plain(), disk.clone()), path.clone());
            h.fail_next(move |effect, at| matches(effect) && at == path, IoErrorKind::Other);
            h.start();
            let halted = h.halted.as_ref().map(|halt| halt.kind);
            assert_eq!((halted, h.unfired_failures()), (Some(HaltKind::IoFailure), 0));
            assert_eq!(h.disk.files(), disk.files());
        };
        if disk.file(&path).is_none() {
            halts(|effect| matches!(effect, Effect::List { .. }));
        } else {
            halts(|effect| matches!(effect, Effect::Open { .. }));
            halts(|effect| matches!(effect, Effect::Read { .. }));
        }
    }
}

#[test]
fn directories_of_groups_that_are_gone_are_made_again() {
    let mut disk = directory(&plain(), 3, 0);
    for dir in ["topics/default/groups", "topics/default/queues"] {
        disk.execute(&Effect::RemoveDir { path: dir.into() }).expect("an empty one");
    }
    let mut h = restarted(&plain(), &disk);
    assert_eq!(h.halted, None);
    let c = h.connect();
    assert_eq!(h.ask(c, b"FETCH g 1 0\nACK g 0\n"), format!("MSG 0 {}\nEND 1\nACKED 1\n", value(0)));
    assert!(h.disk.dirs().contains("topics/default/queues"));
}

#[test]
fn a_refusal_changes_nothing_of_the_other_topics() {
    let mut h = started(plain());
    let c = h.connect();
    h.ask(c, b"CREATE @a\nCREATE @z\n");
    for topic in ["a", "z", "default"] {
        for _ in 0..3 {
            h.ask(c, format!("PUB @{topic} DURABLE hello\n").as_bytes());
        }
    }
    h.kill(plain());
    let mut disk = h.disk.clone();
    // "a" has a torn tail and leftovers; "z", which is looked at later, is corrupt.
    disk.file_mut("topics/a/log/00000000000000000000.log").extend(b"torn");
    disk.put("topics/a/groups/g.offset.tmp", b"1");
    disk.put("topics/new.tmp/topic.toml", b"");
    disk.file_mut("topics/z/log/00000000000000000000.log")[40] ^= 1;
    refused(&disk, "crc-mismatch");
    // And in the other order.
    let mut disk = h.disk.clone();
    disk.file_mut("topics/z/log/00000000000000000000.log").extend(b"torn");
    disk.file_mut("topics/a/log/00000000000000000000.log")[40] ^= 1;
    refused(&disk, "crc-mismatch");
}

#[test]
fn leftovers_are_removed_with_their_lines_after_the_anchoring_and_unknown_files_stay() {
    let mut disk = directory(&plain(), 3, 1);
    let tmp = [
        "topics/default/groups/g.offset.tmp",
        "topics/default/log/00000000000000000000.log.tmp",
        "topics/default/x.tmp",
        "topics/file.tmp",
    ];
    let unknown = [
        "topics/default/notes.txt",
        "topics/default/log/12.log",
        "topics/default/groups/README",
        "topics/.hidden",
        "topics/file",
    ];
    tmp.iter().chain(&unknown).for_each(|path| disk.put(path, b"?"));
    disk.put("topics/new.tmp/log/00000000000000000000.log", b"");
    disk.put("topics/.trash/x", b"?");
    let mut h = restarted(&plain(), &disk);
    assert_eq!(h.halted, None);
    assert!(h.disk.files().keys().all(|path| !path.contains(".tmp")), "{:?}", h.disk.files().keys());
    assert!(h.disk.dirs().iter().all(|path| !path.contains(".tmp")));
    for path in unknown {
        assert_eq!(h.disk.file(path), Some(&b"?"[..]));
        assert!(reports(&h, "UNKNOWN_FILE").contains(&format!("UNKNOWN_FILE path={path}")), "{path}");
    }
    assert!(reports(&h, "UNKNOWN_FILE").contains(&"UNKNOWN_FILE path=topics/.trash".to_owned()));
    assert_eq!(reports(&h, "GROUP_TMP_REMOVED"), [format!("GROUP_TMP_REMOVED file={}", tmp[0])]);
    let mut removed = reports(&h, "TMP_REMOVED");
    removed.sort();
    let mut expected = vec![
        format!("TMP_REMOVED path={}", tmp[1]),
        format!("TMP_REMOVED path={}", tmp[2]),
        format!("TMP_REMOVED path={}", tmp[3]),
        "TMP_REMOVED path=topics/new.tmp".to_owned(),
    ];
    expected.sort();
    assert_eq!(removed, expected);
    // Crash story: believed, removed, forgotten.
    let lines = trace(&h);
    let anchored = lines.iter().rposition(|line| *line == format!("force {WATERMARK}")).expect("anchored");
    for what in [tmp[0], tmp[2], "topics/new.tmp/log/00000000000000000000.log"] {
        let at = lines.iter().position(|line| *line == format!("remove {what}")).expect("removed");
        assert!(at > anchored, "{what}");
    }
    let last = |line: &str| lines.iter().rposition(|other| other == line);
    assert!(last("forcedir topics") > last("rmdir topics/new.tmp"), "the removal is forced");
    // Of a directory the name is made sure of first; a file was no topic.
    assert_eq!((count(&lines, "mkdir topics/new"), count(&lines, "mkdir topics/file")), (1, 0));
    assert_eq!(read_all(&mut h), messages(4));
}

#[test]
fn segments_below_the_start_are_ignored_whatever_is_missing_and_removed_after_the_anchoring() {
    let (config, mut disk) = several_segments();
    let paths = segments(&disk);
    set_line(&mut disk, |slot| slot.start = 12);
    // Crash story: unlinks out of order. And what is left of the first is damaged.
    disk.take_away(&paths[1]);
    disk.file_mut(&paths[0])[3] ^= 1;
    let topic = inspect(&disk).0.expect("findings").topics.remove(0);
    assert_eq!((topic.below_start(), topic.bytes), (&[0, 8][..], 8 * FRAME_BYTES as u64));
    let mut h = restarted(&config, &disk);
    assert_eq!(h.halted, None);
    assert_eq!(segments(&h.disk), paths[3..].to_vec(), "both are gone, and the rest is there");
    let lines = trace(&h);
    let at = |what: &str| lines.iter().rposition(|line| line == what).unwrap_or_else(|| panic!("{what} in {lines:?}"));
    // Both slots are the same, so the file is made anew.
    let renamed = at(&format!("rename {WATERMARK}.tmp -> {WATERMARK}"));
    assert!(lines[renamed..at(&format!("remove {}", paths[2]))].contains(&"forcedir topics/default".to_owned()));
    assert!(
        lines.iter().rposition(|line| line == "forcedir topics/default/log").expect("it")
            > at(&format!("remove {}", paths[0]))
    );
    let c = h.connect();
    assert_eq!(h.ask(c, b"READ 0 1\n"), format!("GAP 0 12\nMSG 12 {}\nEND 1\n", value(12)));
    assert_eq!(h.ask(c, b"FETCH g 1 0\n"), format!("GAP 0 12\nMSG 12 {}\nEND 1\n", value(12)));
    assert!(h.ask(c, b"SEEK h 11\n").starts_with("ERR OUT_OF_RANGE "));
    assert_eq!(h.ask(c, b"SEEK h start\n"), "SOUGHT 12\n");
    // A start inside a segment keeps it.
    let (config, mut disk) = several_segments();
    set_line(&mut disk, |slot| slot.start = 13);
    let mut h = restarted(&config, &disk);
    assert_eq!(segments(&h.disk), paths[3..].to_vec());
    let c = h.connect();
    assert_eq!(h.ask(c, b"READ 12 1\n"), format!("GAP 12 13\nMSG 13 {}\nEND 1\n", value(13)));
}

#[test]
fn a_first_segment_above_the_start_is_a_missing_one() {
    let (_, mut disk) = several_segments();
    let paths = segments(&disk);
    set_line(&mut disk, |slot| slot.start = 7);
    disk.take_away(&paths[0]);
    disk.take_away(&paths[1]);
    let line = refused(&disk, "missing-segment");
    assert_fields(&line, &[("expectedOffset", "7")]);
}

// ---- frames that are not ours ---------------------------------------------------------------------------------------------------

#[test]
fn a_smuggled_frame_is_no_evidence() {
    // A payload that holds a frame with the expected offset and a far higher one, as of another log.
    let mut h = started(plain());
    publish(&mut h, "DURABLE", 0, 3);
    let mut inner = Vec::new();
    for offset in [3, 4, 1 << 40] {
        record::encode(&mut inner, record::Salt(0), offset, offset, Kind::Message as u8, 0, |out| out.push(b'x'));
    }
    let c = h.connect();
    h.hold(is_log_force);
    h.send(c, &[format!("PUBN WRITTEN {}\n", inner.len()).as_bytes(), &inner, b"\n"].concat());
    assert_eq!(h.replies(c), "OK 3 WRITTEN\n");
    h.kill(plain());
    // The outer one is torn at its head.
    let mut disk = h.disk.clone();
    disk.file_mut(&segment(0))[3 * FRAME_BYTES + 7] ^= 1;
    assert_fields(&truncated(&disk, 3), &[("droppedUnforced", "0")]);
    // With the right salt it would be: this is what the salt is for.
    let mut disk = h.disk.clone();
    let salt = salt(&disk, "default", 0);
    let mut inner = Vec::new();
    record::encode(&mut inner, salt, 4, 4, Kind::Message as u8, 0, |out| out.push(b'x'));
    let file = disk.file_mut(&segment(0));
    file[3 * FRAME_BYTES + 7] ^= 1;
    file[3 * FRAME_BYTES + 29..][..inner.len()].copy_from_slice(&inner);
    refused(&disk, "crc-mismatch");
}

#[test]
fn a_segment_copied_in_from_another_log_is_recognised() {
    let other = directory(&Config { entropy: [9; 16], ..plain() }, 5, 0);
    let mut disk = directory(&plain(), 5, 0);
    disk.put(&segment(0), other.file(&segment(0)).expect("it"));
    refused(&disk, "crc-mismatch");
    let (_, mut disk) = several_segments();
    let paths = segments(&disk);
    let copy = disk.file(&paths[1]).expect("it").to_vec();
    disk.put(&paths[2], &copy);
    refused(&disk, "crc-mismatch");
}

// ---- what is done before anything is served -----------------------------------------------------------------------------------------

#[test]
fn a_clean_stop_leaves_nothing_to_copy_and_the_flag_is_cleared_before_anything_is_served() {
    let disk = clean_directory(&plain(), 5);
    assert!(slots(&disk).current().is_some_and(|slot| slot.clean));
    let mut h = restarted(&plain(), &disk);
    let lines = trace(&h);
    assert_eq!((count(&lines, "create"), count(&lines, "rename"), count(&lines, "truncate")), (0, 0, 0), "{lines:?}");
    // Forced all the same: a restored backup may never have been.
    for path in ["plimsoll.toml", "topics/default/topic.toml", &segment(0)] {
        assert!(lines.contains(&format!("force {path}")), "{path}");
    }
    assert!(slots(&h.disk).current().is_some_and(|slot| !slot.clean));
    let is_ready = |effect: &Effect| matches!(effect, Effect::Report(report) if report.name == "READY");
    let ready = h.effects.iter().position(|(_, effect)| is_ready(effect)).expect("READY");
    let forced = h.effects.iter().rposition(|(_, effect)| matches!(effect, Effect::Force { .. })).expect("forces");
    assert!(forced < ready);
    // A kill now, with nothing published, is no clean stop.
    let before = trace(&h).len();
    h.kill_and_restart(plain());
    assert_eq!(count(&trace(&h)[before..], "create topics/default/log"), 1);
}

/// A restored backup may never have been forced.
#[test]
fn every_segment_is_forced_at_every_start() {
    let config = Config { segment_bytes: 512, ..plain() };
    for disk in [clean_directory(&config, 18), directory(&config, 18, 0)] {
        let lines = trace(&restarted(&config, &disk));
        let closed = segments(&disk)[..4].iter().filter(|path| lines.contains(&format!("force {path}"))).count();
        assert_eq!(closed, 4, "{lines:?}");
    }
}

#[test]
fn after_an_unclean_stop_the_tail_is_copied_and_groups_and_directories_are_made_sure_of() {
    let mut h = started(plain());
    publish(&mut h, "DURABLE", 0, 5);
    let c = h.connect();
    h.ask(c, b"FETCH g 2 0\n");
    h.ask(c, b"ACK g 0\n");
    h.kill(plain());
    let h = restarted(&plain(), &h.disk);
    let lines = trace(&h);
    let (log, group) = (segment(0), "topics/default/groups/g.offset");
    let first_change =
        lines.iter().position(|line| !["list", "open", "read"].iter().any(|look| line.starts_with(look)));
    let changes: Vec<&str> = lines[first_change.expect("changes")..]
        .iter()
        .map(String::as_str)
        .filter(|line| !line.starts_with("open"))
        .collect();
    let expected = [
        "create plimsoll.toml.tmp".to_owned(),
        "write plimsoll.toml.tmp".to_owned(),
        "force plimsoll.toml.tmp".to_owned(),
        "rename plimsoll.toml.tmp -> plimsoll.toml".to_owned(),
        "forcedir ".to_owned(),
        format!("remove {log}.tmp"),
        format!("create {log}.tmp"),
        format!("read {log}"),
        format!("write {log}.tmp"),
        format!("force {log}.tmp"),
        format!("rename {log}.tmp -> {log}"),
        "forcedir topics/default/log".to_owned(),
        format!("create {group}.tmp"),
        format!("write {group}.tmp"),
        format!("force {group}.tmp"),
        format!("rename {group}.tmp -> {group}"),
        "forcedir topics/default/groups".to_owned(),
    ];
    let reads_as_documented: Vec<&str> = expected.iter().map(String::as_str).collect();
    assert_eq!(changes[..expected.len()], reads_as_documented[..]);
    // Crash story: the topic that was a tmp. Every directory from the data directory down, before the line is anchored.
    let anchored = changes.iter().position(|line| *line == format!("write {WATERMARK}")).expect("anchored");
    for dir in ["topics/default/log", "topics/default/groups", "topics/default/queues", "topics/default", "topics", ""]
    {
        let forced = changes.iter().rposition(|line| *line == format!("forcedir {dir}")).expect(dir);
        assert!(forced < anchored, "{dir}");
    }
}

#[test]
fn nothing_that_may_be_durable_is_overwritten_in_place() {
    // Crash story: exactness believed twice.
    for unforced in [0, 1, 4] {
        for copy_whole_bytes_max in [0, 1 << 20] {
            let config = Config { copy_whole_bytes_max, ..plain() };
            let mut disk = directory(&config, 5, unforced);
            disk.file_mut(&segment(0)).extend(b"torn");
            let mut h = restarted(&config, &disk);
            let effects: Vec<Effect> = h.effects.iter().map(|(_, effect)| effect.clone()).collect();
            for (line, effect) in traced(&effects) {
                if matches!(effect, Effect::Write { .. } | Effect::Reserve { .. }) {
                    assert!(line.ends_with(".tmp") || line.ends_with(WATERMARK), "{line}");
                }
            }
            assert_eq!(read_all(&mut h), messages(5 + unforced));
            // The old segment is cut only when the new one has its name, forced.
            let lines = trace(&h);
            if let Some(cut) = lines.iter().position(|line| line.starts_with("truncate")) {
                let named = lines.iter().position(|line| line == "forcedir topics/default/log").expect("forced");
                assert!(named < cut && copy_whole_bytes_max == 0);
                assert_eq!(lines[cut + 1], format!("force {}", segment(0)));
            }
            assert_eq!(segments(&h.disk).len(), if copy_whole_bytes_max == 0 { 2 } else { 1 });
        }
    }
}

#[test]
fn kills_do_not_litter_while_the_log_is_small() {
    let mut h = started(plain());
    for n in 0..20 {
        publish(&mut h, "DURABLE", n, n + 1);
        h.kill_and_restart(plain());
    }
    assert_eq!(segments(&h.disk).len(), 1);
    assert_eq!(read_all(&mut h), messages(20));
    // Nor when it is large, with nothing new in between.
    let config = Config { copy_whole_bytes_max: 0, ..plain() };
    for _ in 0..5 {
        h.kill_and_restart(config.clone());
    }
    assert!(segments(&h.disk).len() <= 2, "{:?}", segments(&h.disk));
    assert_eq!(read_all(&mut h), messages(20));
}

#[test]
fn a_recovery_on_a_full_disk_gets_the_ballast() {
    let config = Config { ballast_bytes: 1000, copy_whole_bytes_max: 0, ..plain() };
    let mut h = started(config.clone());
    publish(&mut h, "DURABLE", 0, 5);
    let c = h.connect();
    h.ask(c, b"FETCH g 3 0\nACK g 0\n");
    h.hold(is_log_force);
    publish(&mut h, "WRITTEN", 5, 8);
    h.kill(config.clone());
    for path in ["plimsoll.toml.tmp", ".log.tmp", "g.offset.tmp", "topic.toml.tmp"] {
        let mut h = Harness::with_disk(config.clone(), h.disk.clone());
        h.fail_next(
            move |effect, at| matches!(effect, Effect::Create { .. }) && at.ends_with(path),
            IoErrorKind::NoSpace,
        );
        h.start();
        assert_eq!((h.halted.clone(), h.unfired_failures()), (None, 0), "{path}");
        assert_eq!(count(&trace(&h), "remove ballast"), 1);
        assert_eq!(read_all(&mut h), messages(8));
    }
}

#[test]
fn the_first_start_makes_sure_of_the_data_directory_before_it_says_what_it_is() {
    let h = started(plain());
    let lines = trace(&h);
    let at = |what: &str| lines.iter().position(|line| line == what).unwrap_or_else(|| panic!("{what} in {lines:?}"));
    assert!(at("forcedir ..") < at("rename plimsoll.toml.tmp -> plimsoll.toml"));
    assert!(at("forcedir ") < at("rename plimsoll.toml.tmp -> plimsoll.toml"));
    // Crash story: the topic that was a tmp.
    assert!(!lines.contains(&"mkdir topics/default".to_owned()), "its name is free");
    let renamed = at("rename topics/default.tmp -> topics/default");
    assert!(lines[renamed..].iter().any(|line| line == "forcedir topics"));
    for path in ["topic.toml", "watermark", "log/00000000000000000000.log"] {
        assert!(at(&format!("force topics/default.tmp/{path}")) < renamed);
    }
    for dir in ["", "/log", "/groups", "/queues"] {
        assert!(at(&format!("forcedir topics/default.tmp{dir}")) < renamed);
    }
}

#[test]
fn p10_a_first_start_that_cannot_look_for_topics_halts() {
    let mut h = Harness::new(plain());
    h.fail_next(|effect, path| matches!(effect, Effect::List { .. }) && path == "topics", IoErrorKind::Other);
    h.start();
    assert_eq!(h.halted.map(|halt| halt.kind), Some(HaltKind::IoFailure));
}

// ---- interrupted, and done again (P9) ------------------------------------------------------------------------------------------------

/// Every directory that recovery has something to do in, with what a reader sees afterwards.
fn directories() -> Vec<(&'static str, Config, NaiveDisk, String)> {
    let whole = Config { segment_bytes: 512, ..plain() };
    let tail = Config { copy_whole_bytes_max: 0, ..whole.clone() };
    let padded = Config { pad_forces: 512, segment_bytes: 4096, ..plain() };
    let ahead = Config { space_ahead: 300, ballast_bytes: 100, ..whole.clone() };
    let torn = |config: &Config| {
        let mut disk = directory(config, 5, 2);
        let last = segments(&disk).pop().expect("a segment");
        disk.file_mut(&last).extend(b"torn off");
        disk
    };
    let with_groups = {
        let mut h = started(tail.clone());
        publish(&mut h, "DURABLE", 0, 6);
        let c = h.connect();
        h.ask(c, b"FETCH g 3 0\n");
        h.ask(c, b"ACK g 0\nSEEK other 5\nCREATE @t\nPUB @t DURABLE x\n");
        h.kill(tail.clone());
        h.disk.put("topics/default/groups/g.offset.tmp", b"7");
        h.disk.put("topics/default/log/00000000000000000004.log.tmp", b"");
        h.disk.put("topics/half.tmp/log/x", b"");
        h.disk
    };
    let good_bad_good = {
        let mut disk = directory(&plain(), 3, 5);
        disk.file_mut(&segment(0))[5 * FRAME_BYTES + 20] ^= 1;
        disk
    };
    let slot_torn = |at: usize| {
        let mut disk = directory(&plain(), 3, 1);
        disk.file_mut(WATERMARK)[at + 20] ^= 1;
        disk
    };
    vec![
        ("an empty directory", plain(), NaiveDisk::default(), messages(0)),
        ("a clean stop", plain(), clean_directory(&plain(), 5), messages(5)),
        ("a kill", whole.clone(), directory(&whole, 5, 2), messages(7)),
        ("a kill, copying the tail alone", tail.clone(), directory(&tail, 6, 1), messages(7)),
        ("a kill right after a roll", tail.clone(), directory(&tail, 4, 1), messages(5)),
        ("a torn tail", whole.clone(), torn(&whole), messages(7)),
        ("a torn tail, copying the tail alone", tail.clone(), torn(&tail), messages(7)),
        ("padding", padded.clone(), directory(&padded, 12, 1), messages(13)),
        ("space ahead and ballast", ahead.clone(), directory(&ahead, 9, 1), messages(10)),
        ("groups, topics and leftovers", tail.clone(), with_groups, messages(6)),
        ("good, bad, good", plain(), good_bad_good, messages(5)),
        ("the running slot torn", plain(), slot_torn(0), messages(4)),
        ("the anchored slot torn", plain(), slot_torn(4096), messages(4)),
    ]
}

/// Stops before the effect on the disk with this number.
fn stop_before_nth(h: &mut Harness, nth: usize) {
    let seen = Rc::new(Cell::new(0));
    h.stop_before(move |effect, _| {
        let on_disk = SimDisk::takes(effect);
        seen.set(seen.get() + usize::from(on_disk));
        on_disk && seen.get() == nth + 1
    });
}

fn assert_sound(h: &mut Harness, name: &str, content: &str, at: &str) {
    assert_eq!(h.halted, None, "{name}: {at}");
    assert_eq!(read_all(h), content, "{name}: {at}");
    assert!(h.disk.files().keys().all(|path| !path.contains(".tmp")), "{name}: {at}");
    let c = h.connect();
    let next = content.lines().count();
    assert_eq!(h.ask(c, b"PUB DURABLE more\n"), format!("OK {next} DURABLE\n"), "{name}: {at}");
}

#[test]
fn p9_a_recovery_killed_before_any_of_its_effects_and_done_again_comes_to_the_same() {
    for (name, config, disk, content) in directories() {
        let mut whole = restarted(&config, &disk);
        let effects = trace(&whole).len();
        assert_sound(&mut whole, name, &content, "undisturbed");
        for nth in 0..effects {
            let mut h = Harness::with_disk(config.clone(), disk.clone());
            stop_before_nth(&mut h, nth);
            h.start();
            h.kill_and_restart(config.clone());
            assert_sound(&mut h, name, &content, &format!("killed before effect {nth} of {effects}"));
            // And again, now that nothing is wrong.
            h.kill_and_restart(config.clone());
            assert!(read_all(&mut h).starts_with(&content), "{name}: {nth}");
        }
    }
}

#[test]
fn p9_also_when_the_recovery_after_it_is_killed_too() {
    for (name, config, disk, content) in directories() {
        let effects = trace(&restarted(&config, &disk)).len();
        for first in (0..effects).step_by(4) {
            for second in (first % 7..effects + 10).step_by(7) {
                let mut h = Harness::with_disk(config.clone(), disk.clone());
                stop_before_nth(&mut h, first);
                h.start();
                h.kill(config.clone());
                stop_before_nth(&mut h, second);
                h.start();
                h.kill_and_restart(config.clone());
                assert_sound(&mut h, name, &content, &format!("killed before effect {first}, then {second}"));
            }
        }
    }
}

#[test]
fn p9_a_failure_of_any_effect_of_a_recovery_halts_or_is_told_and_the_next_start_is_sound() {
    for kind in [IoErrorKind::Other, IoErrorKind::NoSpace] {
        for (name, config, disk, content) in directories() {
            let effects = trace(&restarted(&config, &disk)).len();
            for nth in 0..effects {
                let mut h = Harness::with_disk(config.clone(), disk.clone());
                let seen = Rc::new(Cell::new(0));
                h.fail_next(
                    move |effect, _| {
                        let fails = !matches!(effect, Effect::CloseFile { .. });
                        seen.set(seen.get() + usize::from(fails));
                        fails && seen.get() == nth + 1
                    },
                    kind,
                );
                h.start();
                if let Some(halt) = &h.halted {
                    assert_ne!(halt.kind, HaltKind::Corrupt, "{name}: effect {nth}: {halt:?}");
                }
                h.kill_and_restart(config.clone());
                assert_sound(&mut h, name, &content, &format!("{kind:?} at effect {nth}"));
            }
        }
    }
}

#[test]
fn a_kill_before_any_effect_of_a_running_broker_loses_nothing_that_was_answered() {
    let config = Config { segment_bytes: 512, space_ahead: 256, copy_whole_bytes_max: 200, ..plain() };
    let script = |h: &mut Harness| {
        let c = h.connect();
        let mut replies = String::new();
        for offset in 0..10 {
            h.send(c, format!("PUB DURABLE {}\n", value(offset)).as_bytes());
            h.send(c, b"FETCH g 5 0\n");
            h.send(c, format!("ACK g {offset}\n").as_bytes());
            replies.push_str(&h.replies(c));
        }
        h.advance_ms(1000);
        replies.push_str(&h.replies(c));
        replies
    };
    let mut h = started(config.clone());
    let start = trace(&h).len();
    script(&mut h);
    let effects = trace(&h).len() - start;
    assert!(effects > 100, "{effects}");
    for nth in 0..effects {
        let mut h = started(config.clone());
        stop_before_nth(&mut h, nth);
        let replies = script(&mut h);
        h.kill_and_restart(config.clone());
        assert_eq!(h.halted, None);
        let durable = replies.lines().filter(|line| line.ends_with("DURABLE") && line.starts_with("OK")).count() as u64;
        let all = read_all(&mut h);
        assert!(all.starts_with(&messages(durable)), "P1: killed before effect {nth}: {durable} in {all}");
        let acked =
            replies.lines().filter_map(|line| line.strip_prefix("ACKED ")?.parse::<u64>().ok()).max().unwrap_or(0);
        let c = h.connect();
        let groups = h.ask(c, b"GROUPS\n");
        let committed = groups
            .split(' ')
            .find_map(|word| word.strip_prefix("committed="))
            .map_or(0, |n| n.parse().expect("a number"));
        assert!(committed >= acked, "P5: killed before effect {nth}: {groups}");
        assert!(committed <= all.lines().count() as u64);
    }
}

// ---- how much is read -----------------------------------------------------------------------------------------------------------------

#[test]
fn a_recovery_reads_every_byte_once_in_large_pieces() {
    let config = Config { segment_bytes: 3 << 20, payload_bytes_max: 1 << 20, recent_bytes: 0, ..plain() };
    let mut h = started(config.clone());
    let c = h.connect();
    for _ in 0..120 {
        h.send(c, format!("PUB DURABLE {}\n", "m".repeat(99_971)).as_bytes());
    }
    h.stop();
    let before = h.effects.len();
    let bytes: usize = segments(&h.disk).iter().map(|path| h.disk.file(path).expect("it").len()).sum();
    h.kill_and_restart(config);
    let (mut reads, mut read) = (0, 0);
    for (_, effect) in &h.effects[before..] {
        if let Effect::Read { length, .. } = effect
            && *length > 5000
        {
            reads += 1;
            read += *length as usize;
        }
    }
    assert!(bytes > 11 << 20);
    assert_eq!(read, bytes, "once");
    assert!(reads <= bytes / (1 << 20) + segments(&h.disk).len(), "{reads} reads of {bytes} bytes");
}
