//! Negative controls: what goes wrong where a rule is left out, each beside the broker that keeps it. They show that these
//! cases can fail.

use crate::corruption::flip;
use crate::rig::{Run, compare, events, frame_bytes};
use plimsoll_core::layout;
use plimsoll_tests::broker::{injecting_binary, serve};
use plimsoll_tests::{contents, files};
use std::fs;
use std::path::{Path, PathBuf};

/// P3: a broker that answers before the force, and loses the page cache, has lied.
pub(crate) fn acknowledged_before_the_force(run: &Run) -> String {
    let wrong = acknowledged_then_lost(run, "wrong", "claim force 17+ of default/log/");
    let right = acknowledged_then_lost(run, "right", "hold force 17 of default/log/");
    format!("acknowledging before the force: {wrong}; Plimsoll: {right}")
}

/// 16 messages are published one after the other; of the last one the force is never done. Then the page cache is lost:
/// what is left is a copy of each file as it was when it was last forced.
fn acknowledged_then_lost(run: &Run, name: &str, rule: &str) -> String {
    let events = events();
    let (data, forced) = (run.scratch().join(name), run.scratch().join(format!("{name}-forced")));
    // A clean stop forces everything, so this copy is what the device has.
    assert!(run.broker(&data, &[]).stop().success());
    copy_directory(&data, &forced);
    let mut command = serve(injecting_binary(), &data, &["--idle-anchor", "1h"]);
    command.env("PLIMSOLL_INJECT", rule).env("PLIMSOLL_INJECT_FORCED", &forced);
    run.note(format!("injected: {rule}"));
    let broker = run.spawn(command);
    let mut talk = run.connect(&broker);
    for (offset, event) in events[..15].iter().enumerate() {
        talk.publish("DURABLE", event, offset as u64);
    }
    let mut acknowledged = 15;
    talk.send(&format!("PUB DURABLE {}", events[15]));
    // Another client sees that the last one is written, and whether anybody calls it durable.
    let mut other = run.connect(&broker);
    while !other.ask("STATUS").contains(" written=16 ") {}
    if name == "wrong" {
        assert_eq!(talk.line(), "OK 15 DURABLE");
        acknowledged = 16;
    } else {
        assert!(other.ask("STATUS").contains(" durable=15 "));
    }
    broker.kill();
    drop(broker);
    if name == "right" {
        assert!(talk.is_lost());
    }

    let broker = run.broker(&forced, &[]);
    let log = broker.read_all(None);
    let sent = (0..).zip(events[..acknowledged].iter().map(|event| event.as_bytes()));
    let (missing, different) = compare(&log, sent);
    assert_eq!(different, 0);
    assert!(broker.stop().success());
    format!("{acknowledged} acknowledged, {missing} missing")
}

/// P8: a torn tail of a header and an extended file.
pub(crate) fn length_only_and_zeros(run: &Run) -> String {
    let (data, segment, events) = ten_events(run);
    let end: u64 = events.iter().map(|event| frame_bytes(event)).sum();
    // The header of the next record came through, its payload did not, and the file is as long as if it had.
    let mut bytes = fs::read(&segment).expect("the segment");
    bytes.truncate(end as usize);
    bytes.extend_from_slice(&100_u32.to_be_bytes());
    bytes.extend_from_slice(&[0xab; 4]);
    bytes.extend_from_slice(&10_u64.to_be_bytes());
    bytes.resize(end as usize + 16 + 100, 0);
    fs::write(&segment, bytes).expect("the segment");

    let naive = length_only(&segment);
    let zeros = naive.iter().filter(|value| value.iter().all(|byte| *byte == 0)).count();
    let broker = run.broker(&data, &[]);
    let recovery = broker.wait_for_line("RECOVERY ");
    assert!(recovery.contains(" status=TRUNCATED_TAIL records=10 durable=10 truncatedBytes=16 "), "{recovery}");
    let log = broker.read_all(None);
    assert!(log.iter().zip(&events).all(|(found, sent)| found == sent.as_bytes()));
    assert!(broker.stop().success());
    format!(
        "a reader by lengths alone: {} records, {zeros} of them zeros; Plimsoll: TRUNCATED_TAIL, {} records, none of them zeros",
        naive.len(),
        log.len()
    )
}

/// P7: a flipped bit in a durable record.
pub(crate) fn length_only_and_a_flipped_bit(run: &Run) -> String {
    let (data, segment, events) = ten_events(run);
    let position: u64 = events[..5].iter().map(|event| frame_bytes(event)).sum();
    flip(&segment, position + 40);
    let naive = length_only(&segment);
    let mismatched = naive.iter().zip(&events).filter(|(found, sent)| *found != sent.as_bytes()).count();
    let before = contents(&data);
    let (code, said) = run.refused(&data);
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains(" reason=crc-mismatch expectedOffset=5 ") && contents(&data) == before, "{said}");
    format!(
        "a reader by lengths alone: {} records, mismatched={mismatched}; Plimsoll: refused, crc-mismatch at offset 5",
        naive.len()
    )
}

/// Ten durable events in one segment, left by SIGKILL.
fn ten_events(run: &Run) -> (PathBuf, PathBuf, Vec<String>) {
    let data = run.data();
    let mut events = events();
    events.truncate(10);
    let broker = run.broker(&data, &[]);
    let mut talk = run.connect(&broker);
    for (offset, event) in events.iter().enumerate() {
        talk.publish("DURABLE", event, offset as u64);
    }
    broker.kill();
    let segment = files(&data, layout::LOG_SUFFIX).pop().expect("a segment");
    (data, segment, events)
}

/// The recovery that is left when checksums, offsets and the watermark are not looked at: a length leads to the next
/// length, up to the end of the file or a length of zero. A few lines of its own, so no part of the real one.
fn length_only(segment: &Path) -> Vec<Vec<u8>> {
    let bytes = fs::read(segment).expect("the segment");
    let mut rest = &bytes[..];
    let mut values = Vec::new();
    while let Some((length, _)) = rest.split_first_chunk::<4>() {
        let end = 16 + u32::from_be_bytes(*length) as usize;
        if end == 16 || rest.len() < end {
            break;
        }
        values.push(rest[29..end].to_vec());
        rest = &rest[end..];
    }
    values
}

fn copy_directory(from: &Path, to: &Path) {
    fs::create_dir(to).expect("a new directory");
    for entry in fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_directory(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("a file");
        }
    }
}
