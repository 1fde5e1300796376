//! The byte blocks of docs/file-format.md are what the code makes. Page and code can't drift apart.

use plimsoll_core::group::journal::{Kept, Operation, Replayed};
use plimsoll_core::group::offset_file::{encode_offset, parse_offset};
use plimsoll_core::log::index::{self, Entry};
use plimsoll_core::log::sidecar::{self, Sidecar};
use plimsoll_core::log::watermark::{self, Slot};
use plimsoll_core::message;
use plimsoll_core::record::{self, Decoded, Kind, LogId, PREFIX_BYTES, Salt};
use plimsoll_tests::{page, workspace};

const LOG_ID: LogId = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
const ACCEPTED_MS: i64 = 1_767_225_600_000;
const NO_HEADERS: [(&[u8], &[u8]); 0] = [];

fn text() -> String {
    std::fs::read_to_string(workspace().join("docs/file-format.md")).expect("docs/file-format.md")
}

/// The bytes of the page's block `hex <name>`.
fn golden(name: &str) -> Vec<u8> {
    let info = format!("hex {name}");
    let blocks = page::blocks(&text());
    let block = blocks.iter().find(|block| block.info == info).unwrap_or_else(|| panic!("no block {info}"));
    page::hex(block)
}

fn assert_golden(name: &str, made: &[u8]) {
    let words: Vec<String> = made.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(golden(name) == made, "docs/file-format.md, block {name}: the code makes {}", words.join(" "));
}

fn salt() -> Salt {
    Salt::new(&LOG_ID, 0)
}

fn frame(offset: u64, durable: u64, key: Option<&[u8]>, headers: &[(&[u8], &[u8])], value: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let kind = message::flags(false, key.is_some(), !headers.is_empty());
    record::encode(&mut out, salt(), offset, durable, kind, ACCEPTED_MS + 1000 * offset as i64, |out| {
        message::encode_head(out, None, key, headers);
        out.extend_from_slice(value);
    });
    out
}

#[test]
fn the_salt_of_the_example() {
    assert!(text().contains(&format!("so its salt is `{:08x}`", salt().0)), "the salt is {:08x}", salt().0);
}

#[test]
fn a_message() {
    assert_golden("hello", &frame(0, 0, None, &NO_HEADERS, b"hello"));
}

#[test]
fn a_message_with_key_and_header() {
    assert_golden("keyed", &frame(1, 1, Some(b"k"), &[(b"type", b"greeting")], b"world"));
}

#[test]
fn a_batch() {
    let mut out = Vec::new();
    record::encode(&mut out, salt(), 2, 2, Kind::Batch as u8, ACCEPTED_MS + 2000, |out| {
        out.extend_from_slice(&2u32.to_be_bytes());
        for value in [&b"a"[..], b"bc"] {
            message::encode_batched_head(out, None, value.len());
            out.extend_from_slice(value);
        }
    });
    assert_golden("batch", &out);
    let bytes = golden("batch");
    let Decoded::Frame(frame) = record::decode(&bytes, salt()) else { panic!("a frame") };
    let messages: Vec<(u64, &[u8])> =
        message::messages(&frame).expect("a batch").map(|(offset, message)| (offset, message.value)).collect();
    assert_eq!(messages, [(2, &b"a"[..]), (3, b"bc")]);
}

#[test]
fn a_slot_of_the_watermark() {
    let slot = Slot { log_id: LOG_ID, sequence: 3, start: 0, durable: 2, clean: true };
    assert_golden("slot", &watermark::encode(&slot));
    assert_eq!(watermark::decode(&golden("slot")), Some(slot));
    assert_eq!((watermark::RUNNING_POSITION, watermark::ANCHORED_POSITION), (0, 4096));
}

/// The two messages above, as a closed segment.
#[test]
fn a_sidecar() {
    let entries = vec![Entry::first(0), Entry { offset: 1, position: 34, time_before_ms: ACCEPTED_MS }];
    let frames = [(0, 0, ACCEPTED_MS), (1, 34, ACCEPTED_MS + 1000)];
    let sidecar = Sidecar { log_id: LOG_ID, base: 0, end: 93, fingerprint: index::fingerprint(frames), entries };
    assert_golden("sidecar", &sidecar::encode(&sidecar));
    assert_eq!(sidecar::decode(&golden("sidecar")), Some(sidecar));
    assert!(text().contains(&format!("at most {}", index::ENTRIES_MAX)));
}

#[test]
fn a_run_of_a_packed_segment() {
    let mut out = Vec::new();
    record::encode(&mut out, salt(), 0, 4, Kind::RemovedRun as u8, ACCEPTED_MS + 2000, |out| {
        out.extend_from_slice(&1u64.to_be_bytes());
    });
    assert_golden("run", &out);
    let run = golden("run");
    assert!(text().contains(&format!("position {}, and end with another run", run.len())));
    let Decoded::Frame(frame) = record::decode(&run, salt()) else { panic!("a frame") };
    assert_eq!((frame.kind, frame.count), (Kind::RemovedRun, 1));
}

/// A frame of a journal whose segment has this base.
fn operation(base: u64, offset: u64, time_ms: i64, operation: &Operation) -> Vec<u8> {
    let mut out = Vec::new();
    let salt = Salt::new(&LOG_ID, base);
    record::encode(&mut out, salt, offset, offset, Kind::QueueOperation as u8, time_ms, |out| {
        out.extend_from_slice(&operation.encode());
    });
    out
}

#[test]
fn the_operations_of_a_work_queue() {
    let reserve = Operation::Reserve(vec![(0, 3)]);
    assert_golden("reserve", &operation(0, 0, ACCEPTED_MS, &reserve));
    let kept = Kept { deliveries: 1, due_ms: ACCEPTED_MS + 11_000, delay_ms: 0, dying: None };
    let checkpoint = Operation::Checkpoint { next: 3, sequence: 0, pending: vec![(1, kept)] };
    assert_golden("checkpoint", &operation(2, 2, ACCEPTED_MS + 1000, &checkpoint));
    let salt = Salt::new(&LOG_ID, 2).0;
    assert!(text().contains(&format!("the salt `{salt:08x}`")), "{salt:08x}");

    // What stands in the page is what the operations of the story come to.
    let mut state = Replayed::default();
    let confirm = Operation::Confirm(vec![(0, 1), (2, 1)]);
    let abort = Operation::Abort { offset: 1, due_ms: kept.due_ms };
    for operation in [reserve, confirm, abort] {
        state.apply(&operation.encode(), ACCEPTED_MS + 1000).expect("an operation");
    }
    let bytes = golden("checkpoint");
    let Decoded::Frame(frame) = record::decode(&bytes, Salt(salt)) else { panic!("a frame") };
    let mut read = Replayed::default();
    read.apply(&frame.payload[PREFIX_BYTES..], ACCEPTED_MS + 1000).expect("an operation");
    assert_eq!(read, state);
}

#[test]
fn a_group_offset() {
    assert_golden("group", encode_offset(2).as_bytes());
    assert_eq!(parse_offset(&golden("group")), Some(2));
}

#[test]
fn the_numbers_of_the_page() {
    let text = text();
    assert!(text.contains("14 bytes to 16 MiB + 64 KiB"));
    assert_eq!((record::LENGTH_MIN, record::LENGTH_MAX), (14, (16 << 20) + (64 << 10)));
    assert!(text.contains("29 bytes a message beside its value"));
    assert_eq!(record::OVERHEAD_BYTES, 29);
}

#[test]
fn the_page_can_be_read_back() {
    let bytes = golden("keyed");
    let Decoded::Frame(frame) = record::decode(&bytes, salt()) else { panic!("not a frame") };
    assert_eq!((frame.offset, frame.lag, frame.size()), (1, 0, bytes.len()));
    let message = message::Message::parse(frame.payload).expect("a message");
    assert_eq!(message.value, b"world");
    assert_eq!(message.key, Some(&b"k"[..]));
    assert_eq!(message.headers().collect::<Vec<_>>(), [(&b"type"[..], &b"greeting"[..])]);
}
