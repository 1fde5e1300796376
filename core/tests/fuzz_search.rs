//! Any bytes, in any pieces: the search never panics, finds what a naive one finds and stays within its bound of work.
//!
//! A plain test here; `cargo bolero test -p plimsoll-core search` drives the same with a coverage-guided fuzzer.

use plimsoll_core::log::search::{Evidence, Found, Search, Work};
use plimsoll_core::record::{self, Decoded, Salt};

const SALT: Salt = Salt(0x5eed_0001);
const POSITION: u64 = 4096;

#[test]
fn search() {
    let bytes = bolero::produce::<Vec<u8>>().with().len(0..2000usize);
    let input = (bolero::produce::<u8>(), bolero::produce::<u8>(), bolero::produce::<u8>(), bytes);
    bolero::check!().with_generator(input).for_each(|(expected, piece, mended, bytes)| {
        let mut bytes = bytes.clone();
        mend(&mut bytes, usize::from(*mended));
        let mut search = Search::new(POSITION, u64::from(*expected), SALT);
        bytes.chunks(usize::from(*piece) + 1).for_each(|piece| search.push(piece));
        let found = search.finish();
        assert_bounded(found.work, bytes.len() as u64);
        assert_eq!(Found { work: Work::default(), ..found }, naive(&bytes, u64::from(*expected)));
    });
}

/// Gives a header at every `every`th byte the length and the checksum of a valid frame, if any fits there: random
/// bytes would never have one.
fn mend(bytes: &mut [u8], every: usize) {
    for start in (0..bytes.len()).rev().filter(|start| start % (every + 1) == 0) {
        let bytes = &mut bytes[start..];
        let Some(room) = bytes.len().checked_sub(record::HEADER_BYTES + record::LENGTH_MIN as usize) else {
            continue;
        };
        // The byte that was there chooses the length, and a small offset and lag make it plausible.
        let payload = record::LENGTH_MIN as usize + usize::from(bytes[3]).min(room);
        bytes[..4].copy_from_slice(&(payload as u32).to_be_bytes());
        bytes[8..15].fill(0);
        bytes[16..19].fill(0);
        let offset = u64::from(bytes[15]);
        let checksum = SALT.checksum(payload as u32, offset, &bytes[record::HEADER_BYTES..][..payload]);
        bytes[4..8].copy_from_slice(&checksum.to_be_bytes());
    }
}

fn naive(bytes: &[u8], expected: u64) -> Found {
    let mut found = Found::default();
    let mut at = 0;
    while at < bytes.len() {
        let Decoded::Frame(frame) = record::decode(&bytes[at..], SALT) else {
            at += 1;
            continue;
        };
        if !(expected..=expected + at as u64 / 5).contains(&frame.offset) {
            at += 1;
            continue;
        }
        let position = POSITION + at as u64;
        found.frames += 1;
        found.first.get_or_insert(position);
        if let Some(durable) = frame.evidence()
            && found.evidence.is_none_or(|strongest| durable > strongest.durable)
        {
            found.evidence = Some(Evidence { durable, position });
        }
        at += frame.size();
    }
    found.nonzero_end = bytes.iter().rposition(|&byte| byte != 0).map(|last| POSITION + last as u64 + 1);
    found
}

fn assert_bounded(work: Work, bytes: u64) {
    assert!(work.candidates <= bytes);
    assert!(work.multiplications <= 2 * work.candidates + 8300);
    assert!(work.checksummed_bytes <= 4 * bytes + 63 * work.candidates, "{work:?} for {bytes} bytes");
    assert!(work.moved_bytes <= bytes);
}
