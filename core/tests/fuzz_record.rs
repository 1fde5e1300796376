//! Fuzz target for the frame. A plain test under `cargo test`; `cargo bolero test -p plimsoll-core fuzz_record` goes on.

use plimsoll_core::message::{self, Message};
use plimsoll_core::record::{self, Decoded, HEADER_BYTES, Kind, Salt};

/// The input becomes the payload of a frame with a valid checksum, so that a fuzzer gets behind the checksum; bytes that
/// are left over change the frame.
#[test]
fn fuzz_record() {
    bolero::check!().with_type::<(u32, u64, Vec<u8>, Vec<(u16, u8)>)>().for_each(|(salt, offset, payload, changes)| {
        let salt = Salt(*salt);
        let _ = record::decode(payload, salt);
        let _ = record::interpret(*offset, payload);
        let _ = Message::parse(payload);

        let mut frame = (payload.len() as u32).to_be_bytes().to_vec();
        frame.extend_from_slice(&salt.checksum(payload.len() as u32, *offset, payload).to_be_bytes());
        frame.extend_from_slice(&offset.to_be_bytes());
        frame.extend_from_slice(payload);
        let length_fits = (record::LENGTH_MIN..=record::LENGTH_MAX).contains(&(payload.len() as u32));
        match record::decode(&frame, salt) {
            Decoded::Frame(found) => {
                assert!(length_fits);
                assert_eq!((found.offset, found.payload, found.size()), (*offset, &payload[..], frame.len()));
                assert!(found.evidence().is_none_or(|evidence| evidence <= *offset));
                assert!(offset.checked_add(found.count).is_some());
                // Whoever has a frame takes its messages without meeting a contradiction.
                if let Some(messages) = message::messages(&found) {
                    let messages: Vec<_> = messages.collect();
                    assert_eq!(messages.len() as u64, found.count);
                    assert!(messages.iter().map(|(offset, _)| *offset).eq(found.offset..found.offset + found.count));
                    assert!(messages.iter().map(|(_, message)| message.bytes()).sum::<usize>() < payload.len());
                } else {
                    assert!(found.kind != Kind::Batch);
                }
                if let Some(message) = Message::parse(found.payload) {
                    let parts: usize = message.headers().map(|(name, value)| name.len() + value.len()).sum();
                    assert!(parts + message.value.len() <= payload.len());
                }
            }
            Decoded::NeedBytes(needed) => panic!("a whole frame asks for {needed} of {} bytes", frame.len()),
            Decoded::Invalid(_) => assert!(!length_fits || record::interpret(*offset, payload).is_none()),
        }

        // A change within four bytes is always noticed by a checksum of 32 bits. (Behind a changed length another
        // checksum stands over other bytes: noticed but for one in four billion, so it is left out here.)
        if let Some((place, change)) = changes.first()
            && *change != 0
        {
            let place = 4 + usize::from(*place) % (frame.len() - 4);
            frame[place] ^= change;
            assert!(!matches!(record::decode(&frame, salt), Decoded::Frame(_)));
        }
        for (place, change) in changes {
            let place = usize::from(*place) % frame.len();
            frame[place] ^= change;
        }
        if let Decoded::Frame(found) = record::decode(&frame, salt) {
            assert!(found.size() <= frame.len() && found.size() > HEADER_BYTES);
        }
    });
}
