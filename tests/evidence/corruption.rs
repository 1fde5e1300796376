//! Damage below the line: refused, located, and not a byte changed (P7).

use crate::rig::{Run, events, frame_bytes};
use plimsoll_core::layout;
use plimsoll_tests::{contents, files};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const MESSAGES: usize = 41;

/// A data directory with 41 durable events in one segment, or in several, left by SIGKILL.
struct Log {
    data: PathBuf,
    events: Vec<String>,
}

impl Log {
    fn new(run: &Run, segment_bytes: &str) -> Log {
        let (events, data) = (events(), run.data());
        let broker = run.broker(&data, &["--segment-bytes", segment_bytes]);
        let mut talk = run.connect(&broker);
        for (offset, event) in events[..MESSAGES].iter().enumerate() {
            talk.publish("DURABLE", event, offset as u64);
        }
        broker.kill();
        Log { data, events }
    }

    /// Where a record begins in the only segment.
    fn position(&self, record: usize) -> u64 {
        self.events[..record].iter().map(|event| frame_bytes(event)).sum()
    }

    fn segments(&self) -> Vec<PathBuf> {
        files(&self.data, layout::LOG_SUFFIX)
    }

    /// What is told when record 20 is damaged and those behind it are whole.
    fn record_20_is_damaged(&self) -> String {
        let (damaged, valid) = (self.position(20), self.position(21));
        format!("reason=crc-mismatch expectedOffset=20 position={damaged} validRecordAt={valid}")
    }

    /// The start is refused with this line, and every file stays as it is. Answers the line's fields from `reason=` on, but
    /// for the time that it took.
    fn assert_refused(&self, run: &Run) -> String {
        let before = contents(&self.data);
        let (code, said) = run.refused(&self.data);
        assert_eq!(code, Some(3), "{said}");
        assert!(contents(&self.data) == before, "a file was changed");
        let recovery = said.lines().find(|line| line.starts_with("RECOVERY ")).expect("a line");
        assert!(recovery.contains(" status=CORRUPT ") && recovery.contains(" durable=41 "), "{recovery}");
        let (_, where_and_what) = recovery.split_once(" reason=").expect("a reason");
        let (where_and_what, _) = where_and_what.split_once(" elapsedMs=").expect("the last field");
        let reason = where_and_what.split(' ').next().expect("a word");
        assert!(said.contains(&format!("REFUSE_START topic=default reason={reason}")), "{said}");
        // The file is spelled out in the kept output.
        let where_and_what = where_and_what.split(" file=").next().expect("what stands before");
        format!("reason={where_and_what}")
    }
}

const REFUSED: &str = "exit 3, every file unchanged";

pub(crate) fn flipped_payload(run: &Run) -> String {
    let log = Log::new(run, "1MiB");
    // Behind the 16 bytes of the header and the 13 of lag, kind and time.
    flip(&log.segments()[0], log.position(20) + 29);
    let told = log.assert_refused(run);
    assert_eq!(told, log.record_20_is_damaged());
    format!("{REFUSED}: `{told}`")
}

pub(crate) fn changed_length(run: &Run) -> String {
    let log = Log::new(run, "1MiB");
    write_at(&log.segments()[0], log.position(20), &60_000_u32.to_be_bytes());
    let told = log.assert_refused(run);
    // Space ahead reaches further than this length does.
    assert_eq!(told, log.record_20_is_damaged());
    format!("{REFUSED}: `{told}`")
}

/// Nothing stands behind it: only the watermark knows that it was durable.
pub(crate) fn last_record(run: &Run) -> String {
    let log = Log::new(run, "1MiB");
    flip(&log.segments()[0], log.position(MESSAGES) - 1);
    let told = log.assert_refused(run);
    assert_eq!(told, format!("reason=crc-mismatch expectedOffset=40 position={}", log.position(40)));
    format!("{REFUSED}: `{told}`")
}

pub(crate) fn last_segment_deleted(run: &Run) -> String {
    let log = Log::new(run, "4096");
    let segments = log.segments();
    assert!(segments.len() >= 3, "{segments:?}");
    let last = &segments[segments.len() - 1];
    let first_of_it: u64 = last.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.parse().ok()).unwrap();
    assert!(first_of_it < MESSAGES as u64, "there is something in it");
    fs::remove_file(last).expect("the last segment");
    let told = log.assert_refused(run);
    assert!(told.starts_with(&format!("reason=below-watermark expectedOffset={first_of_it} ")), "{told}");
    format!("{REFUSED}: `{told}`")
}

pub(crate) fn cut_below_the_line(run: &Run) -> String {
    let log = Log::new(run, "1MiB");
    let file = OpenOptions::new().write(true).open(&log.segments()[0]).expect("the segment");
    file.set_len(log.position(30) + 20).expect("it can be cut");
    let told = log.assert_refused(run);
    assert_eq!(told, format!("reason=short-payload expectedOffset=30 position={}", log.position(30)));
    format!("{REFUSED}: `{told}`")
}

/// Turns a bit of a file.
pub(crate) fn flip(path: &Path, position: u64) {
    let mut byte = [0];
    fs::File::open(path).and_then(|file| file.read_exact_at(&mut byte, position)).expect("a byte");
    write_at(path, position, &[byte[0] ^ 1]);
}

fn write_at(path: &Path, position: u64, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(path).expect("the file");
    file.write_all_at(bytes, position).expect("it can be written");
}
