//! Any bytes as a segment, as a watermark or as a group's file: a start never panics, refuses without a change or gives
//! the same messages again after a kill.
//!
//! A plain test here; `cargo bolero test -p plimsoll-sim recovery` drives the same with a coverage-guided fuzzer.

mod common;

use common::*;
use plimsoll_core::effect::HaltKind;
use plimsoll_core::record::{self, Kind, Salt};
use plimsoll_sim::naive::{Harness, NaiveDisk};

#[test]
fn recovery() {
    let disk = {
        let mut h = started(plain());
        let c = h.connect();
        h.send(c, &b"PUB DURABLE hello\n".repeat(5));
        h.ask(c, b"FETCH g 2 0\n");
        h.ask(c, b"ACK g 1\n");
        h.kill(plain());
        h.disk
    };
    let salt = salt(&disk, "default", 0);
    let bytes = bolero::produce::<Vec<u8>>().with().len(0..600usize);
    let input = (bolero::produce::<u8>(), bolero::produce::<u8>(), bytes);
    bolero::check!().with_generator(input).for_each(|(place, mended, bytes)| {
        let mut disk = disk.clone();
        match place % 5 {
            0 => disk.put(&segment(0), bytes),
            1 => disk.file_mut(&segment(0)).extend_from_slice(bytes),
            2 => {
                let mut bytes = bytes.clone();
                mend(&mut bytes, usize::from(*mended) % 60, salt);
                disk.file_mut(&segment(0)).extend_from_slice(&bytes);
            }
            3 => disk.put("topics/default/watermark", bytes),
            _ => disk.put("topics/default/groups/g.offset", bytes),
        }
        start(disk);
    });
}

fn start(disk: NaiveDisk) {
    let before = disk.files();
    let mut h = Harness::with_disk(plain(), disk);
    h.start();
    if let Some(halt) = &h.halted {
        assert_eq!(halt.kind, HaltKind::Corrupt);
        assert_eq!(h.disk.files(), before);
        return;
    }
    let c = h.connect();
    let all = h.ask(c, b"READ 0 1000\nFETCH g 1000 0\nSTATUS\n");
    h.kill_and_restart(plain());
    assert_eq!(h.halted, None);
    let c = h.connect();
    assert_eq!(h.ask(c, b"READ 0 1000\nFETCH g 1000 0\nSTATUS\n"), all);
}

/// Makes valid frames of some of the bytes: random ones would never have one.
fn mend(bytes: &mut [u8], every: usize, salt: Salt) {
    let mut offset = 5;
    let mut position = 0;
    while position + 64 < bytes.len() {
        let size = 1 + usize::from(bytes[position]) % 30;
        // Of any kind, known or not.
        let kind = match bytes[position + 1] {
            0..64 => Kind::Message as u8,
            64..128 => Kind::Batch as u8,
            kind => kind,
        };
        let mut frame = Vec::new();
        let mut body = bytes[position + 29..position + 29 + size].to_vec();
        // Of a batch what it says of itself is right, or nearly.
        if kind == Kind::Batch as u8 && size > 9 {
            let length = size as u8 - 8 - bytes[position + 3] / 100;
            body[..9].copy_from_slice(&[0, 0, 0, 1 + bytes[position + 4] / 200, 0, 0, 0, length, 0]);
        }
        record::encode(&mut frame, salt, offset, u64::from(bytes[position + 2]) % 8, kind, 0, |out| out.extend(body));
        bytes[position..position + frame.len()].copy_from_slice(&frame);
        position += frame.len() + every % 7;
        offset += record::interpret(offset, &frame[record::HEADER_BYTES..]).map_or(1, |frame| frame.count.min(9));
    }
}
