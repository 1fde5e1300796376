//! Fuzz target for the line protocol. A plain test under `cargo test`; `cargo bolero test -p plimsoll-core fuzz_protocol`
//! goes on.

use bytes::Bytes;
use plimsoll_core::protocol::line::{LINE_BYTES_BESIDE_PAYLOAD, Limits, LineCodec};
use plimsoll_core::protocol::{Input, Next, Publish, Request};

const PAYLOAD_BYTES_MAX: u32 = 24;
const BATCH_BYTES_MAX: u32 = 60;
const BATCH_MESSAGES_MAX: u32 = 4;

/// What single bytes of the input stand for, so that noise reaches every verb. Other bytes stand for themselves.
const WORDS: [&[u8]; 45] = [
    b"PUB ",
    b"PUBN ",
    b"PUBB ",
    b"FETCH ",
    b"ACK ",
    b"READ ",
    b"READRAW ",
    b"SEEK ",
    b"FIND ",
    b"RESERVE ",
    b"CONFIRM ",
    b"ABORT ",
    b"EXTEND ",
    b"PENDING ",
    b"STEAL ",
    b"QUEUES",
    b"DELETE ",
    b"STATUS",
    b"\n",
    b"TOPICS",
    b"GROUPS",
    b"CREATE ",
    b"\r",
    b"PING",
    b"HELLO",
    b"QUIT",
    b"@orders ",
    b"@default ",
    b"ACCEPTED ",
    b"WRITTEN ",
    b"DURABLE ",
    b"3 ",
    b"24 ",
    b"25 ",
    b"key=%41 ",
    b"h.name=a%20b ",
    b"group ",
    b"META",
    b"time=-5",
    b"\nabc\n",
    b"1 9 \n",
    b"2 10\n",
    b"\0\0\0\x01y",
    b"\0\0\0\x05hello",
    &[b'x'; 4096],
];

#[test]
fn fuzz_protocol() {
    bolero::check!().with_type::<(Vec<u8>, Vec<u16>)>().for_each(|(noise, lengths)| {
        let stream: Vec<u8> = noise
            .iter()
            .flat_map(|byte| WORDS.get(usize::from(*byte)).map_or(vec![*byte], |word| word.to_vec()))
            .collect();
        let whole = decode(&stream, &[usize::MAX]);
        let lengths: Vec<usize> = lengths.iter().map(|length| usize::from(*length) % 300 + 1).collect();
        assert_eq!(decode(&stream, &lengths), whole);
        assert_eq!(decode(&stream, &[1]), whole);
    });
}

/// All that comes of a stream cut into pieces of these lengths, over and over.
fn decode(mut stream: &[u8], lengths: &[usize]) -> Vec<Next> {
    let mut codec = LineCodec::new(Limits {
        payload_bytes_max: PAYLOAD_BYTES_MAX,
        batch_bytes_max: BATCH_BYTES_MAX,
        batch_messages_max: BATCH_MESSAGES_MAX,
    });
    let mut input = Input::default();
    let mut found = Vec::new();
    for length in lengths.iter().chain([&7]).cycle() {
        let (piece, rest) = stream.split_at((*length).min(stream.len()));
        input.push(Bytes::copy_from_slice(piece));
        loop {
            match codec.next(&mut input) {
                Next::NeedMore => break,
                next => found.push(next),
            }
        }
        assert!(input.len() <= (BATCH_BYTES_MAX + LINE_BYTES_BESIDE_PAYLOAD) as usize);
        stream = rest;
        if stream.is_empty() {
            break;
        }
    }
    for next in &found {
        match next {
            Next::Request(Request::Publish(publish)) if publish.batch.is_some() => batch(publish),
            Next::Request(Request::Publish(publish)) => {
                assert!((1..=PAYLOAD_BYTES_MAX as usize).contains(&publish.value.len()));
            }
            Next::Request(Request::Confirm { offsets, .. }) => assert!(!offsets.is_empty()),
            Next::Request(Request::Reserve { max, lease_ms, .. }) => assert!(*max >= 1 && *lease_ms >= 1),
            Next::Request(Request::Extend { lease_ms, .. }) => assert!(*lease_ms >= 1),
            Next::Request(Request::Pending { max, .. }) => assert!((1..=10_000).contains(max)),
            Next::Refused(error) | Next::Broken(error) => {
                assert!(!error.sentence.contains(char::is_control) && error.sentence.len() < 400, "{error}");
            }
            _ => {}
        }
    }
    found
}

/// A batch that is let through is what it says, so that nobody behind the codec has to ask.
fn batch(publish: &Publish) {
    assert!((1..=BATCH_MESSAGES_MAX).contains(&publish.count()));
    let (mut messages, mut bytes) = (publish.value.reader(), 0);
    for _ in 0..publish.count() {
        let length = messages.u32().expect("a length");
        assert!((1..=PAYLOAD_BYTES_MAX).contains(&length));
        assert!(messages.read(length as usize, |_| ()));
        bytes += 4 + length as usize;
    }
    assert_eq!(bytes, publish.value.len());
}
