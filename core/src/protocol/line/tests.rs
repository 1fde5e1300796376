use super::*;
use crate::message::{self, Message};
use crate::protocol::{GroupStatus, Hello, PendingState, PendingStatus, QueueStatus, Reply, TopicStatus};
use crate::record;
use crate::settings::{Origin, Setting};
use alloc::string::ToString;
use alloc::vec;
use proptest::collection::vec as any_vec;
use proptest::prelude::*;

/// Small, so that limits are met by short inputs.
const LIMIT: u32 = 16;
const BATCH_LIMIT: u32 = 60;
const BATCH_MESSAGES: u32 = 5;

fn limits(payload_bytes_max: u32) -> Limits {
    Limits { payload_bytes_max, batch_bytes_max: BATCH_LIMIT, batch_messages_max: BATCH_MESSAGES }
}

/// All that comes of a stream which arrives in these pieces. After each piece no more may be kept than one unfinished
/// request of a permitted length.
fn decode<'a>(limit: u32, pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<Next> {
    let mut codec = LineCodec::new(limits(limit));
    let mut input = Input::default();
    let mut found = Vec::new();
    for piece in pieces {
        input.push(Bytes::copy_from_slice(piece));
        loop {
            match codec.next(&mut input) {
                Next::NeedMore => break,
                next => found.push(next),
            }
        }
        let limit = limit.max(BATCH_LIMIT);
        assert!(input.len() <= (limit + LINE_BYTES_BESIDE_PAYLOAD) as usize, "{} bytes kept", input.len());
    }
    found
}

fn decode_whole(bytes: &[u8]) -> Vec<Next> {
    decode(LIMIT, [bytes])
}

fn request_of(line: &str) -> Request {
    match decode_whole(line.as_bytes()).as_slice() {
        [Next::Request(request)] => request.clone(),
        other => panic!("{line:?}: {other:?}"),
    }
}

/// The one refusal that comes of these bytes; a PING behind them must be understood.
fn refusal_of(bytes: &[u8]) -> RequestError {
    let mut stream = bytes.to_vec();
    stream.extend_from_slice(b"PING\n");
    match decode_whole(&stream).as_slice() {
        [Next::Refused(error), Next::Request(Request::Ping)] => error.clone(),
        other => panic!("{}: {other:?}", bytes.escape_ascii()),
    }
}

fn publish(topic: Option<&str>, level: Level, value: &[u8]) -> Request {
    Request::Publish(Publish {
        topic: topic.map(String::from),
        level,
        value: Bytes::copy_from_slice(value).into(),
        ..EMPTY_PUBLISH
    })
}

fn batch(topic: Option<&str>, level: Level, count: u32, bytes: &[u8]) -> Request {
    let Request::Publish(publish) = publish(topic, level, bytes) else { panic!("just made") };
    Request::Publish(Publish { batch: Some(count), ..publish })
}

fn topic(name: &str) -> TopicRef {
    Some(name.to_string())
}

fn group() -> String {
    "g".to_string()
}

fn created(topic: &str, set: &[(Setting, u64)]) -> Request {
    let mut settings = Settings::NONE;
    set.iter().for_each(|(setting, value)| settings.set(*setting, Some(*value)));
    Request::Create { topic: topic.to_string(), settings }
}

fn altered(topic: &str, changes: &[(Setting, Option<u64>)]) -> Request {
    let mut change = Change::default();
    assert!(changes.iter().all(|(setting, value)| change.add(*setting, *value)));
    Request::Alter { topic: topic.to_string(), change }
}

#[test]
fn every_verb_is_understood() {
    use Level::{Accepted, Durable, Written};
    let cases = [
        ("PUB ACCEPTED x\n", publish(None, Accepted, b"x")),
        ("PUB WRITTEN x y\n", publish(None, Written, b"x y")),
        ("PUB DURABLE x\n", publish(None, Durable, b"x")),
        ("PUB @orders DURABLE x\n", publish(Some("orders"), Durable, b"x")),
        ("PUB @default DURABLE x\n", publish(None, Durable, b"x")),
        ("PUB DURABLE x\r\n", publish(None, Durable, b"x")),
        ("PUB DURABLE x\r\r\n", publish(None, Durable, b"x\r")),
        ("PUB DURABLE   x \n", publish(None, Durable, b"  x ")),
        ("PUB DURABLE  \n", publish(None, Durable, b" ")),
        ("PUB DURABLE 0123456789abcdef\n", publish(None, Durable, b"0123456789abcdef")),
        ("PUB DURABLE 0123456789abcdef\r\n", publish(None, Durable, b"0123456789abcdef")),
        ("PUB DURABLE DURABLE\n", publish(None, Durable, b"DURABLE")),
        ("PUB DURABLE ü\0\n", publish(None, Durable, "ü\0".as_bytes())),
        ("PUBN DURABLE 3\na\nb\n", publish(None, Durable, b"a\nb")),
        ("PUBN @orders WRITTEN 1 \r\n\n\n", publish(Some("orders"), Written, b"\n")),
        ("PUBN ACCEPTED 16\n0123456789abcdef\n", publish(None, Accepted, b"0123456789abcdef")),
        (
            "PUBN @t DURABLE 1 key=a%20b h.t=%0A h.A_.-9=a h.t=\nx\n",
            Request::Publish(Publish {
                topic: topic("t"),
                level: Durable,
                key: Some(b"a b".to_vec()),
                headers: vec![
                    (b"t".to_vec(), b"\n".to_vec()),
                    (b"A_.-9".to_vec(), b"a".to_vec()),
                    (b"t".to_vec(), vec![]),
                ],
                id: None,
                batch: None,
                value: Bytes::from_static(b"x").into(),
            }),
        ),
        (
            "PUBN DURABLE 1 key=\nx\n",
            Request::Publish(Publish {
                level: Durable,
                key: Some(vec![]),
                value: Bytes::from_static(b"x").into(),
                ..EMPTY_PUBLISH
            }),
        ),
        ("PUBB DURABLE 1 5\n\0\0\0\x01x\n", batch(None, Durable, 1, b"\0\0\0\x01x")),
        (
            "PUBB @orders ACCEPTED 5 25\r\n\0\0\0\x01a\0\0\0\x01\n\0\0\0\x01\0\0\0\0\x01\n\0\0\0\x01e\n",
            batch(Some("orders"), Accepted, 5, b"\0\0\0\x01a\0\0\0\x01\n\0\0\0\x01\0\0\0\0\x01\n\0\0\0\x01e"),
        ),
        (
            "PUBB WRITTEN 3 60\n\0\0\0\x100123456789abcdef\0\0\0\x100123456789abcdef\0\0\0\x100123456789abcdef\n",
            batch(None, Written, 3, &b"\0\0\0\x100123456789abcdef".repeat(3)),
        ),
        ("FETCH g 10 500\n", Request::Fetch { topic: None, group: group(), max: 10, wait_ms: 500, meta: false }),
        (
            "FETCH  @orders  g 1 0 META \r\n",
            Request::Fetch { topic: topic("orders"), group: group(), max: 1, wait_ms: 0, meta: true },
        ),
        ("ACK g 7\n", Request::Ack { topic: None, group: group(), offset: 7 }),
        ("ACK @t g 18446744073709551615\n", Request::Ack { topic: topic("t"), group: group(), offset: u64::MAX }),
        ("READ 0 5\n", Request::Read { topic: None, offset: 0, max: 5, meta: false }),
        ("READ @t 007 5 META\n", Request::Read { topic: topic("t"), offset: 7, max: 5, meta: true }),
        ("READRAW 3 1000\n", Request::ReadRaw { topic: None, offset: 3, max_bytes: 1000 }),
        ("READRAW @t 3 0\n", Request::ReadRaw { topic: topic("t"), offset: 3, max_bytes: 0 }),
        ("SEEK g 9\n", Request::Seek { topic: None, group: group(), to: SeekTo::Offset(9) }),
        ("SEEK g start\n", Request::Seek { topic: None, group: group(), to: SeekTo::Start }),
        ("SEEK @t g end\n", Request::Seek { topic: topic("t"), group: group(), to: SeekTo::End }),
        (
            "SEEK g time=1700000000000\n",
            Request::Seek { topic: None, group: group(), to: SeekTo::TimeMs(1_700_000_000_000) },
        ),
        ("FIND time=5\n", Request::Find { topic: None, time_ms: 5 }),
        ("FIND @t time=-1\n", Request::Find { topic: topic("t"), time_ms: -1 }),
        ("SEEK g time=-1\n", Request::Seek { topic: None, group: group(), to: SeekTo::TimeMs(-1) }),
        ("STATUS\n", Request::Status { topic: None }),
        ("STATUS @t\n", Request::Status { topic: topic("t") }),
        ("STATUS @default\n", Request::Status { topic: None }),
        ("TOPICS\n", Request::Topics),
        ("GROUPS\n", Request::Groups { topic: None }),
        ("GROUPS @t\n", Request::Groups { topic: topic("t") }),
        ("PURGE 7\n", Request::Purge { topic: None, before: 7 }),
        ("PURGE @orders 0\n", Request::Purge { topic: topic("orders"), before: 0 }),
        ("DELETE @orders\n", Request::Delete { topic: "orders".to_string(), group: None }),
        ("DELETE @orders  g \n", Request::Delete { topic: "orders".to_string(), group: Some(group()) }),
        ("CREATE @orders.v2\n", created("orders.v2", &[])),
        ("CREATE @default\n", created("default", &[])),
        (
            "CREATE @t  retain-ms=60000 on-full=drop-oldest roll-ms=default\n",
            created("t", &[(Setting::RetainMs, 60_000), (Setting::OnFull, 1)]),
        ),
        ("ALTER @t flush-messages=0\n", altered("t", &[(Setting::FlushMessages, Some(0))])),
        (
            "ALTER @default dedup-ms=default retain-consumed=yes\n",
            altered("default", &[(Setting::DedupMs, None), (Setting::RetainConsumed, Some(1))]),
        ),
        ("SETTINGS\n", Request::Settings { topic: None }),
        ("SETTINGS @t\n", Request::Settings { topic: topic("t") }),
        (
            "RESERVE @t g 2 50 1000 META\n",
            Request::Reserve { topic: topic("t"), group: group(), max: 2, wait_ms: 50, lease_ms: 1000, meta: true },
        ),
        (
            "RESERVE g 1 0 1\r\n",
            Request::Reserve { topic: None, group: group(), max: 1, wait_ms: 0, lease_ms: 1, meta: false },
        ),
        (
            "CONFIRM @t g 7 18446744073709551615  3\n",
            Request::Confirm { topic: topic("t"), group: group(), offsets: vec![7, u64::MAX, 3] },
        ),
        ("ABORT g 7\n", Request::Abort { topic: None, group: group(), offset: 7, delay_ms: 0 }),
        ("ABORT @t g 7 500\n", Request::Abort { topic: topic("t"), group: group(), offset: 7, delay_ms: 500 }),
        ("EXTEND g 7 500\n", Request::Extend { topic: None, group: group(), offset: 7, lease_ms: 500 }),
        ("EXTEND @t g 7 1\n", Request::Extend { topic: topic("t"), group: group(), offset: 7, lease_ms: 1 }),
        ("QUEUES\n", Request::Queues { topic: None }),
        ("QUEUES @t\n", Request::Queues { topic: topic("t") }),
        ("PENDING g\n", Request::Pending { topic: None, group: group(), from: 0, max: 10_000 }),
        ("PENDING @t g 7\n", Request::Pending { topic: topic("t"), group: group(), from: 7, max: 10_000 }),
        ("PENDING g 7 5\n", Request::Pending { topic: None, group: group(), from: 7, max: 5 }),
        ("PENDING g 7 10001\n", Request::Pending { topic: None, group: group(), from: 7, max: 10_000 }),
        ("STEAL @t g 7\n", Request::Steal { topic: topic("t"), group: group(), offset: 7 }),
        ("STEAL g 7\n", Request::Steal { topic: None, group: group(), offset: 7 }),
        ("PING\n", Request::Ping),
        ("PING\r\n", Request::Ping),
        ("HELLO\n", Request::Hello),
        ("QUIT\n", Request::Quit),
    ];
    for (line, expected) in cases {
        assert_eq!(request_of(line), expected, "{line:?}");
    }
    for (verb, _) in &VERBS {
        assert!(verb.usage.starts_with(verb.name), "{verb:?}");
    }
}

#[test]
fn every_mistake_gets_a_code_and_a_sentence_that_helps() {
    use Code::{BadName, BadRequest, Empty, LineTooLong, TooLarge};
    let long_name = "n".repeat(101);
    let long_topic = format!("PUB @{long_name} DURABLE x\n");
    let long_header = format!("PUBN DURABLE 1 h.{long_name}=v\nx\n");
    let (word, long_word) = (format!("{}\n", "W".repeat(40)), format!("{}\n", "W".repeat(200)));
    let quoted_word = format!("'{}' is not a verb", "W".repeat(40));
    let overlong_pub = format!("PUB DURABLE {}\n", "x".repeat(5000));
    let overlong = format!("FETCH {}\n", "x".repeat(5000));
    let overlong_pubn = format!("PUBN DURABLE 5 {}\nQUIT\n\n", "x".repeat(5000));
    let overlong_pubb = format!("PUBB @t DURABLE 1 5 {}\nQUIT\n\n", "x".repeat(5000));
    let large_batch = format!("PUBB DURABLE 5 61\n{}\n", "x".repeat(61));
    let large_message = format!("PUBB DURABLE 2 26\n\0\0\0\x01x\0\0\0\x11{}\n", "x".repeat(17));
    let cases: &[(&str, Code, &str)] = &[
        ("\n", BadRequest, "a line begins with a verb; there are PUB PUBN PUBB FETCH"),
        ("\r\n", BadRequest, "a line begins with a verb"),
        (" PING\n", BadRequest, "a line begins with a verb"),
        ("PUSH x\n", BadRequest, "'PUSH' is not a verb; there are PUB PUBN PUBB"),
        ("P\x07\n", BadRequest, r"'P\x07' is not a verb"),
        (&word, BadRequest, &quoted_word),
        (&long_word, BadRequest, "WWWW…' is not a verb"),
        ("pub DURABLE x\n", BadRequest, "a verb is written in capitals, not 'pub'"),
        ("Fetch g 1 1\n", BadRequest, "a verb is written in capitals, not 'Fetch'"),
        ("reserve g 1 1\n", BadRequest, "a verb is written in capitals, not 'reserve'"),
        // PUB
        ("PUB\n", BadRequest, "the level is missing; expected PUB [@topic] ACCEPTED|WRITTEN|DURABLE <payload>"),
        ("PUB \n", BadRequest, "the level is missing"),
        ("PUB @t\n", BadRequest, "the level is missing"),
        ("PUB  DURABLE x\n", BadRequest, "the level is missing"),
        ("PUB durable x\n", BadRequest, "a level is written in capitals, not 'durable'; expected PUB"),
        ("PUB SAFE x\n", BadRequest, "the level must be ACCEPTED, WRITTEN or DURABLE, not 'SAFE'; expected PUB"),
        ("PUB hello\n", BadRequest, "the level must be ACCEPTED, WRITTEN or DURABLE, not 'hello'"),
        ("PUB @a/b DURABLE x\n", BadName, "'a/b' can't be a topic: a name is 1 to 100 of A-Z a-z 0-9 . _ -"),
        ("PUB @ DURABLE x\n", BadName, "'' can't be a topic"),
        ("PUB @.. DURABLE x\n", BadName, "'..' can't be a topic"),
        (&long_topic, BadName, "nnnn…' can't be a topic"),
        ("PUB DURABLE\n", Empty, "at least one byte"),
        ("PUB DURABLE \n", Empty, "at least one byte"),
        ("PUB DURABLE \r\n", Empty, "at least one byte"),
        ("PUB @t DURABLE\r\n", Empty, "at least one byte"),
        (
            "PUB DURABLE 0123456789abcdefg\n",
            TooLarge,
            "17 bytes, over the limit of 16; send less, or start the broker with a larger --max-payload",
        ),
        (&overlong_pub, TooLarge, "over the limit of 16 bytes"),
        (&overlong, LineTooLong, "at most 4112 bytes before its newline"),
        (&overlong_pubn, LineTooLong, "at most 4112 bytes"),
        (&overlong_pubb, LineTooLong, "at most 4112 bytes"),
        // PUBN: the bytes are passed over, whatever they are
        (
            "PUBN SAFE 7\nPUBN 1\n\n",
            BadRequest,
            "the level must be ACCEPTED, WRITTEN or DURABLE, not 'SAFE'; expected PUBN",
        ),
        ("PUBN @a/b DURABLE 1\nx\n", BadName, "'a/b' can't be a topic"),
        ("PUBN DURABLE 0\n\n", Empty, "at least one byte"),
        ("PUBN DURABLE 0 key=k\n\n", Empty, "at least one byte"),
        ("PUBN DURABLE 17\n0123456789abcdefg\n", TooLarge, "17 bytes, over the limit of 16"),
        ("PUBN DURABLE 14 key=abc\n0123456789abcd\n", TooLarge, "17 bytes, over the limit of 16"),
        ("PUBN DURABLE 14 h.n=v%41\n0123456789abcd\n", TooLarge, "17 bytes, over the limit of 16"),
        ("PUBN DURABLE 1 key=a key=b\nx\n", BadRequest, "key= stands there twice"),
        ("PUBN DURABLE 1 key=%4\nx\n", BadRequest, "in 'key=%4' a % is not followed by two hex digits"),
        ("PUBN DURABLE 1 h.a=%zz\nx\n", BadRequest, "in 'h.a=%zz' a %"),
        ("PUBN DURABLE 1 h.=v\nx\n", BadName, "a header's name is 1 to 100 of A-Z a-z 0-9 . _ -, not ''"),
        (&long_header, BadName, "a header's name is 1 to 100 of"),
        ("PUBN DURABLE 1 h.a/b=v\nx\n", BadName, "not 'a/b'"),
        ("PUBN DURABLE 1 Key=v\nx\n", BadRequest, "'Key=v' is not key=…, id=… or h.<name>=…"),
        ("PUBN DURABLE 1 word\nx\n", BadRequest, "'word' is not key=…, id=… or h.<name>=…"),
        (
            "PUBN DURABLE 1 id=7\nx\n",
            BadRequest,
            "'id=7' is not id=<producer>:<sequence> with whole numbers, the sequence up to 4294967295",
        ),
        ("PUBN DURABLE 1 id=7:4294967296\nx\n", BadRequest, "is not id="),
        ("PUBN DURABLE 1 id=:1\nx\n", BadRequest, "is not id="),
        ("PUBN DURABLE 1 id=1:1 id=1:1\nx\n", BadRequest, "id= stands there twice"),
        // Verbs of words
        (
            "FETCH\n",
            BadRequest,
            "the group is missing; expected FETCH [@topic] <group> <max messages> <wait ms> [META]",
        ),
        ("FETCH @t\n", BadRequest, "the group is missing"),
        ("FETCH g\n", BadRequest, "the number of messages is missing"),
        ("FETCH g 1\n", BadRequest, "the wait in ms is missing"),
        ("FETCH g 0 1\n", BadRequest, "the number of messages must be at least 1"),
        (
            "FETCH g x 1\n",
            BadRequest,
            "the number of messages must be a whole number from 0 to 18446744073709551615, not 'x'",
        ),
        ("FETCH g +1 1\n", BadRequest, "not '+1'"),
        (
            "FETCH g 1 18446744073709551616\n",
            BadRequest,
            "the wait in ms must be a whole number from 0 to 18446744073709551615",
        ),
        ("FETCH g 1 1 meta\n", BadRequest, "'meta' is not META"),
        ("FETCH g 1 1 META x\n", BadRequest, "'x' is one word too many"),
        ("FETCH g/h 1 1\n", BadName, "'g/h' can't be a group: a name is 1 to 100 of"),
        ("FETCH g.offset 1 1\n", BadName, "'g.offset' can't be a group"),
        ("FETCH @a/b g 1 1\n", BadName, "'a/b' can't be a topic"),
        ("ACK g\n", BadRequest, "the offset is missing; expected ACK"),
        ("ACK g -1\n", BadRequest, "the offset must be a whole number"),
        ("ACK g 1 2\n", BadRequest, "'2' is one word too many; expected ACK"),
        ("READ\n", BadRequest, "the offset is missing; expected READ [@topic]"),
        ("READ 0 0\n", BadRequest, "the number of messages must be at least 1"),
        ("READRAW 0\n", BadRequest, "the number of bytes is missing; expected READRAW"),
        ("SEEK g\n", BadRequest, "the place is missing; expected SEEK"),
        (
            "SEEK g middle\n",
            BadRequest,
            "the place must be an offset, start, end or time= with milliseconds since 1970, not 'middle'",
        ),
        ("FIND\n", BadRequest, "the time is missing; expected FIND"),
        ("FIND 5\n", BadRequest, "the time must be time= with milliseconds since 1970, not '5'"),
        ("FIND time=5 6\n", BadRequest, "'6' is one word too many"),
        ("SEEK g time=\n", BadRequest, "not 'time='"),
        ("SEEK g time=+1\n", BadRequest, "not 'time=+1'"),
        ("SEEK g time=9223372036854775808\n", BadRequest, "the place must be"),
        ("STATUS t\n", BadRequest, "'t' is one word too many; expected STATUS [@topic]"),
        ("TOPICS @t\n", BadRequest, "'@t' is one word too many; expected TOPICS"),
        ("GROUPS @/\n", BadName, "'/' can't be a topic"),
        ("CREATE\n", BadRequest, "the topic is missing; expected CREATE @topic"),
        ("CREATE orders\n", BadRequest, "the topic is missing; expected CREATE @topic"),
        ("CREATE @a.tmp\n", BadName, "'a.tmp' can't be a topic"),
        (
            "CREATE @a retention=1d\n",
            BadRequest,
            "'retention' is no setting; there are flush-interval-ms, flush-messages",
        ),
        ("CREATE @a b\n", BadRequest, "'b' is not <setting>=<value>; expected CREATE @topic"),
        ("CREATE @a retain-ms=1d\n", BadRequest, "retain-ms must be a whole number from 0 to 3162240000000, not '1d'"),
        ("CREATE @a roll-ms=1 roll-ms=1\n", BadRequest, "roll-ms stands there twice"),
        ("CREATE @a on-full=\x07\n", BadRequest, r"on-full must be reject or drop-oldest, not '\x07'"),
        ("ALTER t roll-ms=1\n", BadRequest, "the topic is missing; expected ALTER @topic"),
        ("ALTER @t\n", BadRequest, "a setting is missing; expected ALTER @topic <setting>=<value>|default"),
        ("SETTINGS t\n", BadRequest, "'t' is one word too many"),
        ("PING x\n", BadRequest, "'x' is one word too many; expected PING"),
        ("HELLO x\n", BadRequest, "'x' is one word too many; expected HELLO"),
        ("QUIT x\n", BadRequest, "'x' is one word too many; expected QUIT"),
        // Work queues
        ("RESERVE\n", BadRequest, "the group is missing; expected RESERVE [@topic] <group> <max messages>"),
        ("RESERVE g 0 1 1\n", BadRequest, "the number of messages must be at least 1"),
        ("RESERVE g 1\n", BadRequest, "the wait in ms is missing"),
        ("RESERVE g 1 x 1\n", BadRequest, "the wait in ms must be a whole number"),
        ("RESERVE g 1 1\n", BadRequest, "the lease in ms is missing"),
        ("RESERVE g 1 1 0\n", BadRequest, "the lease in ms must be at least 1"),
        ("RESERVE g 1 1 1 meta\n", BadRequest, "'meta' is not META"),
        ("RESERVE g 1 1 1 META x\n", BadRequest, "'x' is one word too many"),
        ("RESERVE ../g 1 1 1\n", BadName, "'../g' can't be a group"),
        ("CONFIRM\n", BadRequest, "the group is missing; expected CONFIRM [@topic] <group> <offset>…"),
        ("CONFIRM g\n", BadRequest, "the offset is missing"),
        ("CONFIRM g 1 x\n", BadRequest, "the offset must be a whole number"),
        ("CONFIRM g 1 -1\n", BadRequest, "the offset must be a whole number"),
        ("ABORT g\n", BadRequest, "the offset is missing; expected ABORT [@topic] <group> <offset> [<delay ms>]"),
        ("ABORT g 1 x\n", BadRequest, "the delay in ms must be a whole number"),
        ("ABORT g 1 2 3\n", BadRequest, "'3' is one word too many"),
        ("EXTEND g\n", BadRequest, "the offset is missing; expected EXTEND [@topic] <group> <offset> <lease ms>"),
        ("EXTEND g 1\n", BadRequest, "the lease in ms is missing"),
        ("EXTEND g 1 0\n", BadRequest, "the lease in ms must be at least 1"),
        ("QUEUES t\n", BadRequest, "'t' is one word too many; expected QUEUES [@topic]"),
        ("PENDING\n", BadRequest, "the group is missing; expected PENDING [@topic] <group> [<from offset>"),
        ("PENDING g x\n", BadRequest, "the offset must be a whole number"),
        ("PENDING g 1 x\n", BadRequest, "the number of messages must be a whole number"),
        ("PENDING g 1 2 3\n", BadRequest, "'3' is one word too many"),
        ("STEAL g\n", BadRequest, "the offset is missing; expected STEAL [@topic] <group> <offset>"),
        ("STEAL g 1 2\n", BadRequest, "'2' is one word too many"),
        // PUBB
        (
            "PUBB SAFE 1 5\nPING\n\n",
            BadRequest,
            "the level must be ACCEPTED, WRITTEN or DURABLE, not 'SAFE'; expected PUBB [@topic]",
        ),
        ("PUBB @a/b DURABLE 1 5\nPING\n\n", BadName, "'a/b' can't be a topic"),
        ("PUBB DURABLE one 5\nPING\n\n", BadRequest, "the number of messages must be a whole number"),
        ("PUBB DURABLE 1 5 key=k\nPING\n\n", BadRequest, "'key=k' is not id=<producer>:<sequence> with whole numbers"),
        ("PUBB DURABLE 1 5 id=1:2 x\nPING\n\n", BadRequest, "'x' is one word too many; expected PUBB"),
        ("PUBB DURABLE 0 0\n\n", Empty, "a batch has at least one message; nothing was stored"),
        (
            "PUBB DURABLE 6 30\n.............................!\n",
            TooLarge,
            "6 messages are over the limit of 5 for a batch",
        ),
        ("PUBB DURABLE 99999999999 5\nPING\n\n", TooLarge, "start the broker with a larger --queue-messages"),
        (
            &large_batch,
            TooLarge,
            "a batch of 61 bytes is over the limit of 60; send less, or start the broker with a larger --max-publish-batch",
        ),
        (
            &large_message,
            TooLarge,
            "message 2 of the batch has 17 bytes, over the limit of 16; nothing of it was stored; send less",
        ),
        (
            "PUBB DURABLE 2 9\n\0\0\0\x01x\0\0\0\0\n",
            Empty,
            "message 2 of the batch has no byte; nothing of it was stored",
        ),
        ("PUBB DURABLE 1 5\n\0\0\0\x02x\n", BadRequest, "message 1 of 1 does not end within the batch; expected PUBB"),
        ("PUBB DURABLE 1 3\n\0\0\0\n", BadRequest, "message 1 of 1 does not end within the batch"),
        ("PUBB DURABLE 1 0\n\n", BadRequest, "message 1 of 1 does not end within the batch"),
        ("PUBB DURABLE 2 5\n\0\0\0\x01x\n", BadRequest, "message 2 of 2 does not end within the batch"),
        ("PUBB DURABLE 1 10\n\0\0\0\x01x\0\0\0\x01y\n", BadRequest, "5 bytes are left behind message 1, the last"),
        ("PUBB DURABLE 1 5\n\x7f\x7f\x7f\x7fx\n", BadRequest, "message 1 of 1 does not end within the batch"),
        ("PURGE @t\n", BadRequest, "the offset is missing; expected PURGE [@topic] <before offset>"),
        ("PURGE @t -1\n", BadRequest, "the offset must be a whole number"),
        ("PURGE @t 1 2\n", BadRequest, "'2' is one word too many"),
        ("DELETE g\n", BadRequest, "the topic is missing; expected DELETE @topic [<group>]"),
        ("DELETE @t g h\n", BadRequest, "'h' is one word too many"),
        ("DELETE @t .g\n", BadName, "'.g' can't be a group"),
    ];
    for (line, code, sentence) in cases {
        let error = refusal_of(line.as_bytes());
        assert_eq!(error.code, *code, "{line:?}: {error}");
        assert!(error.sentence.contains(sentence), "{line:?}: {error}");
        assert!(!error.sentence.contains(|c: char| c.is_control()), "{line:?}: {error:?}");
    }
    assert_eq!(refusal_of(b"PUB @\xff DURABLE x\n").code, BadName);
    assert_eq!(refusal_of(b"FETCH \xff 1 1\n").code, BadName);
}

#[test]
fn where_the_framing_is_lost_nothing_more_is_believed() {
    for (stream, sentence) in [
        ("PUBN\nPING\n", "it does not say how many bytes follow"),
        ("PUBN DURABLE\nPING\n", "it does not say how many bytes follow"),
        ("PUBN 5\nhello\nPING\n", "it does not say how many bytes follow"),
        ("PUBN DURABLE five\nPING\n", "(a number up to 1073741824)"),
        ("PUBN DURABLE 1073741825\nPING\n", "expected PUBN"),
        ("PUBN DURABLE 99999999999999999999\nPING\n", "the connection is closed"),
        ("PUBB DURABLE 1\nPING\n", "expected PUBB"),
        ("PUBN DURABLE 2\nxyz\nPING\n", "its bytes must be followed by a newline, not 'z'"),
        ("PUBN DURABLE 2\nxy\r\nPING\n", r"not '\r'"),
        ("PUBB DURABLE 1 5\n\0\0\0\x01xyPING\n", "not 'y'; where the next request begins can't be known"),
        ("GET / HTTP/1.1\r\nHost: x\r\n\r\nPING\n", "not HTTP"),
        ("DELETE /x HTTP/1.0\r\nPING\n", "not HTTP"),
        ("Host: localhost:7717\r\nPING\n", "not HTTP"),
    ] {
        match decode_whole(stream.as_bytes()).as_slice() {
            [Next::Broken(error)] => {
                assert_eq!(error.code, Code::BadRequest, "{stream:?}");
                assert!(error.sentence.contains(sentence), "{stream:?}: {error}");
            }
            other => panic!("{stream:?}: {other:?}"),
        }
    }
    let found = decode_whole(b"PUBN DURABLE 1073741824\n");
    assert!(matches!(found.as_slice(), [Next::Refused(error)] if error.code == Code::TooLarge), "{found:?}");
    // The number in which the searched beginning of an overlong line is cut off is not believed.
    for line in [format!("PUBN {}DURABLE 12345", " ".repeat(112)), "PUBN DURABLE".to_string()] {
        let found = decode_whole(format!("{line} {}\nPING\n", "x".repeat(5000)).as_bytes());
        assert!(matches!(found.as_slice(), [Next::Broken(_)]), "{found:?}");
    }
    // A refused body that does not end where it said.
    let found = decode_whole(b"PUBN SAFE 2\nxyz\nPING\n");
    assert!(matches!(found.as_slice(), [Next::Refused(_), Next::Broken(_)]), "{found:?}");
}

/// One of everything, so that every state of the codec is met at every byte.
fn transcript() -> Vec<u8> {
    let mut stream = b"PUB DURABLE first\nPUB @orders WRITTEN   spaces \r\nPUBN DURABLE 5 key=a%20b h.x=y\na\nb\r\n\nFETCH g 10 0\r\n\
        PUBN DURABLE 40\n0123456789012345678901234567890123456789\nPUBB DURABLE 1 6\n\0\0\0\x02ab\n\nping\n\
        PUB DURABLE \nPUB DURABLE 0123456789abcdef\nPUB DURABLE 0123456789abcdef0\nSEEK g end\nRESERVE @orders g 2 0 500 META\n\
        CONFIRM g 1 2  3\r\nCONFIRM g 1 x\nABORT g 4 100\nEXTEND g 5 0\nPENDING g\n"
        .to_vec();
    for (line, behind) in [("PUB DURABLE ", "\n"), ("NOTHING ", "\r\n"), ("PUBN DURABLE 4 ", "\nQUIT\n")] {
        stream.extend_from_slice(line.as_bytes());
        stream.resize(stream.len() + 4200, b'x');
        stream.extend_from_slice(behind.as_bytes());
    }
    stream.extend_from_slice(b"ACK g 5\nPUBN DURABLE 3\nabcd\nPING\n");
    stream
}

#[test]
fn fragmentation_changes_nothing() {
    let stream = transcript();
    let whole = decode_whole(&stream);
    assert_eq!(whole.len(), 23);
    assert!(matches!(whole[21], Next::Request(Request::Ack { .. })));
    assert!(matches!(whole[22], Next::Broken(_)));
    assert_eq!(decode(LIMIT, stream.chunks(1)), whole);
    for cut in 0..=stream.len() {
        let (before, behind) = stream.split_at(cut);
        assert_eq!(decode(LIMIT, [before, behind]), whole, "cut at {cut}");
    }
}

#[test]
fn a_line_of_exactly_the_limit_is_read_and_one_byte_more_is_not() {
    let limit = (LIMIT + LINE_BYTES_BESIDE_PAYLOAD) as usize;
    for (length, newline, code) in [
        (limit, "\n", Code::BadRequest),
        (limit - 1, "\r\n", Code::BadRequest),
        (limit + 1, "\n", Code::LineTooLong),
        (limit, "\r\n", Code::LineTooLong),
    ] {
        let line = format!("{}{newline}", "x".repeat(length));
        assert_eq!(refusal_of(line.as_bytes()).code, code, "{length}");
        let found = decode(LIMIT, line.as_bytes().chunks(1));
        assert!(matches!(found.as_slice(), [Next::Refused(error)] if error.code == code), "{found:?}");
    }
}

#[test]
fn an_overlong_line_is_refused_before_it_ends_and_is_not_kept() {
    let mut codec = LineCodec::new(limits(LIMIT));
    let mut input = Input::default();
    input.push(Bytes::from(vec![b'x'; 5000]));
    assert!(matches!(codec.next(&mut input), Next::Refused(error) if error.code == Code::LineTooLong));
    for _ in 0..100 {
        assert_eq!(codec.next(&mut input), Next::NeedMore);
        assert!(input.is_empty());
        input.push(Bytes::from(vec![b'y'; 70_000]));
    }
    input.push(Bytes::from_static(b"\nPING\n"));
    assert_eq!(codec.next(&mut input), Next::Request(Request::Ping));
}

#[test]
fn a_body_over_the_limit_is_passed_over_without_being_kept() {
    let mut codec = LineCodec::new(limits(LIMIT));
    let mut input = Input::default();
    input.push(Bytes::from_static(b"PUBN DURABLE 7000000\n"));
    assert!(matches!(codec.next(&mut input), Next::Refused(error) if error.code == Code::TooLarge));
    for _ in 0..100 {
        input.push(Bytes::from(vec![b'\n'; 70_000]));
        assert_eq!(codec.next(&mut input), Next::NeedMore);
        assert!(input.is_empty());
    }
    input.push(Bytes::from_static(b"\nPING\n"));
    assert_eq!(codec.next(&mut input), Next::Request(Request::Ping));
}

#[test]
fn no_byte_is_searched_twice() {
    let mut codec = LineCodec::new(limits(LIMIT));
    let mut input = Input::default();
    for _ in 0..1000 {
        input.push(Bytes::from_static(b"xyz"));
        assert_eq!(codec.next(&mut input), Next::NeedMore);
        assert!(matches!(codec.state, State::Line { scanned } if scanned == input.len()));
    }
}

#[test]
fn a_payload_is_not_copied() {
    let bytes = Bytes::from(b"PUB DURABLE payload\n".to_vec());
    let place = bytes[12..].as_ptr();
    let mut input = Input::default();
    input.push(bytes);
    match LineCodec::new(limits(LIMIT)).next(&mut input) {
        Next::Request(Request::Publish(Publish { value: Body::One(value), .. })) => assert_eq!(value.as_ptr(), place),
        other => panic!("{other:?}"),
    }
}

#[test]
fn single_bytes_do_not_cost_a_piece_each() {
    let mut input = Input::default();
    for _ in 0..100_000 {
        input.push(Bytes::from_static(b"x"));
    }
    assert_eq!(input.len(), 100_000);
    assert!(input.pieces().count() <= 100_000 / 4096 + 1);
}

#[test]
fn a_small_piece_joins_a_small_one() {
    for (first, second, pieces) in
        [(1, 511, 1), (1, 512, 2), (511, 511, 1), (4095, 511, 1), (4096, 511, 2), (4096, 512, 2)]
    {
        let mut input = Input::default();
        input.push(Bytes::from(vec![b'x'; first]));
        input.push(Bytes::from(vec![b'x'; second]));
        assert_eq!(input.pieces().count(), pieces, "{first} {second}");
    }
}

#[test]
fn bodies_are_equal_when_their_bytes_are() {
    let body = |pieces: &[&'static [u8]]| Body::Many(pieces.iter().map(|piece| Bytes::from_static(piece)).collect());
    assert_eq!(body(&[b"ab", b"c"]), body(&[b"a", b"bc"]));
    assert_ne!(body(&[b"ab", b"c"]), body(&[b"ab", b"d"]));
    assert_ne!(body(&[b"ab"]), body(&[b"ab", b"c"]));
    assert!(body(&[b"", b""]).is_empty() && !body(&[b"", b"a"]).is_empty());
}

#[test]
fn headers_are_counted() {
    let publish = |count: usize| {
        let mut stream = b"PUBN DURABLE 1".to_vec();
        stream.extend_from_slice(&b" h.a=b".repeat(count));
        stream.extend_from_slice(b"\nx\n");
        decode(8192, [&stream[..]])
    };
    assert!(matches!(publish(HEADERS_MAX).as_slice(), [Next::Request(Request::Publish(p))] if p.headers.len() == 1000));
    assert!(
        matches!(publish(HEADERS_MAX + 1).as_slice(), [Next::Refused(e)] if e.sentence.contains("at most 1000 headers"))
    );
}

#[test]
fn the_most_headers_fit_into_the_largest_frame() {
    let around = record::PREFIX_BYTES + 12 + 4 + 2 + 6 * HEADERS_MAX;
    assert!(around + record::PAYLOAD_BYTES_CEILING as usize <= record::LENGTH_MAX as usize);
}

#[test]
fn replies_are_written_as_the_protocol_says() {
    let status = TopicStatus {
        topic: "orders".to_string(),
        start: 1,
        durable: 2,
        written: 3,
        next: 4,
        segments: 5,
        bytes: 6,
        groups: 7,
        forces: 8,
        force_mean_us: 9,
        force_total_ms: 10,
        unforced_max: 11,
        unforced_ms_max: 12,
        packed: 13,
        packed_bytes: 14,
        pack_failures: 15,
    };
    let group = |group: &str, held| GroupStatus { group: group.to_string(), committed: 5, lag: 2, held };
    let queue = QueueStatus {
        group: "pack".to_string(),
        confirmed: 1,
        next: 2,
        ready: 3,
        reserved: 4,
        delayed: 5,
        dying: 6,
        waiting: 7,
        journal_bytes: 8,
        journal_forces: 9,
    };
    let pending = [
        PendingState::Reserved { connection: 3, peer: "192.0.2.1:5".to_string(), left_ms: 4 },
        PendingState::Ready { due_ms: 0 },
        PendingState::Ready { due_ms: 5 },
        PendingState::Dying,
    ];
    let pending = (1..).zip(pending).map(|(offset, state)| PendingStatus { offset, deliveries: 2, state }).collect();
    let hello = Hello {
        version: "1.2.3",
        payload_bytes_max: 65536,
        publish_batch_bytes_max: 1_048_576,
        queue_messages: 1000,
        unanswered_max: 1024,
        fetch_wait_ms_max: 60_000,
        fetch_bytes_max: 4_194_304,
    };
    for (reply, expected) in [
        (Reply::Published { offset: 15, level: Level::Durable, batch: None }, "OK 15 DURABLE\n"),
        (
            Reply::Published { offset: u64::MAX, level: Level::Accepted, batch: None },
            "OK 18446744073709551615 ACCEPTED\n",
        ),
        (Reply::Published { offset: 15, level: Level::Written, batch: Some(3) }, "OK 15 WRITTEN 3\n"),
        (Reply::Error(RequestError::new(Code::NoTopic, "there is\r\nnone")), "ERR NO_TOPIC there is  none\n"),
        (Reply::Acked { committed: 16 }, "ACKED 16\n"),
        (Reply::Sought { offset: 0 }, "SOUGHT 0\n"),
        (Reply::Found { offset: 7 }, "FOUND 7\n"),
        (Reply::Frames { first: 7, bytes: 4096, salt: 0xffff_ffff }, "FRAMES 7 4096 4294967295\n"),
        (
            Reply::Status(status.clone()),
            "STATUS topic=orders start=1 durable=2 written=3 next=4 segments=5 bytes=6 groups=7 forces=8 forceMeanUs=9 forceTotalMs=10 unforcedMax=11 unforcedMaxMs=12 packed=13 packedBytes=14 packFailures=15\n",
        ),
        (Reply::Topics(vec![]), "END 0\n"),
        (
            Reply::Topics(vec![status.clone(), status]),
            "TOPIC name=orders start=1 durable=2 next=4 bytes=6\nTOPIC name=orders start=1 durable=2 next=4 bytes=6\nEND 2\n",
        ),
        (
            Reply::Groups(vec![group("a", true), group("b", false)]),
            "GROUP name=a committed=5 lag=2 held=yes\nGROUP name=b committed=5 lag=2 held=no\nEND 2\n",
        ),
        (Reply::Confirmed { count: 3 }, "CONFIRMED 3\n"),
        (Reply::Aborted { offset: 7 }, "ABORTED 7\n"),
        (Reply::Extended { offset: 7 }, "EXTENDED 7\n"),
        (Reply::Stolen { offset: 7 }, "STOLEN 7\n"),
        (Reply::Queues(vec![]), "END 0\n"),
        (
            Reply::Queues(vec![queue]),
            "QUEUE name=pack confirmed=1 next=2 ready=3 reserved=4 delayed=5 dying=6 waiting=7 journalBytes=8 journalForces=9\nEND 1\n",
        ),
        (Reply::Pending(vec![]), "END 0\n"),
        (
            Reply::Pending(pending),
            "PENDING 1 deliveries=2 state=reserved connection=3 peer=192.0.2.1:5 leftMs=4\nPENDING 2 deliveries=2 state=ready\n\
             PENDING 3 deliveries=2 state=delayed dueMs=5\nPENDING 4 deliveries=2 state=dying\nEND 4\n",
        ),
        (Reply::Created { topic: "orders".to_string() }, "CREATED orders\n"),
        (Reply::Purged { start: 7 }, "PURGED 7\n"),
        (Reply::Deleted { topic: "orders".to_string(), group: None }, "DELETED orders\n"),
        (Reply::Deleted { topic: "orders".to_string(), group: Some("g".to_string()) }, "DELETED orders g\n"),
        (Reply::Altered { topic: "orders".to_string() }, "ALTERED orders\n"),
        (
            Reply::Settings(vec![(&SETTINGS[2], 60_000, Origin::Topic), (&SETTINGS[4], 0, Origin::Default)]),
            "SETTING retain-ms 60000 topic\nSETTING retain-consumed no default\nEND 2\n",
        ),
        (Reply::Pong, "PONG\n"),
        (
            Reply::Hello(hello),
            "HELLO version=1.2.3 maxPayload=65536 maxPublishBatch=1048576 maxPublishBatchMessages=1000 maxUnanswered=1024 \
             maxFetchWaitMs=60000 maxFetchBytes=4194304\n",
        ),
        (Reply::Bye, "BYE\n"),
    ] {
        let mut out = Vec::new();
        encode_reply(&mut out, &reply);
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
    let mut out = Vec::new();
    encode_gap(&mut out, 3, 9);
    encode_end(&mut out, 0);
    assert_eq!(out, b"GAP 3 9\nEND 0\n");
}

#[test]
fn messages_are_written_as_the_protocol_says() {
    let none: &[(&[u8], &[u8])] = &[];
    let headers: &[(&[u8], &[u8])] = &[(b"type", b"a b"), (b"odd name=", b"")];
    for (key, headers, value, meta, expected) in [
        (None, none, &b"hello"[..], false, &b"MSG 7 hello\n"[..]),
        (None, none, b" x ", false, b"MSG 7  x \n"),
        (None, none, b"a\rb", false, b"MSG 7 a\rb\n"),
        (None, none, b"a\nb", false, b"MSGN 7 3\na\nb\n"),
        (None, none, b"a\r", false, b"MSGN 7 2\na\r\n"),
        (Some(&b"k"[..]), headers, b"x", false, b"MSG 7 x\n"),
        (None, none, b"x", true, b"MSGX 7 1 time=-5\nx\n"),
        (Some(b"a%b"), headers, b"x\n", true, b"MSGX 7 2 time=-5 key=a%25b h.type=a%20b h.odd%20name%3D=\nx\n\n"),
        (Some(b""), none, b"x", true, b"MSGX 7 1 time=-5 key=\nx\n"),
    ] {
        let payload = message_payload(-5, key, headers, value);
        let mut out = Vec::new();
        encode_message(&mut out, 7, &Message::parse(&payload).unwrap(), meta, None);
        assert_eq!(out, expected, "{}", out.escape_ascii());
    }
    // In a work queue the count stands at the end, and only with META.
    let payload = message_payload(-5, Some(b"k"), headers, b"x");
    for (meta, expected) in
        [(false, &b"MSG 7 x\n"[..]), (true, b"MSGX 7 1 time=-5 key=k h.type=a%20b h.odd%20name%3D= deliveries=3\nx\n")]
    {
        let mut out = Vec::new();
        encode_message(&mut out, 7, &Message::parse(&payload).unwrap(), meta, Some(3));
        assert_eq!(out, expected, "{}", out.escape_ascii());
    }
}

fn message_payload(time: i64, key: Option<&[u8]>, headers: &[(&[u8], &[u8])], value: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let flags = message::flags(false, key.is_some(), !headers.is_empty());
    record::encode(&mut frame, record::Salt(0), 7, 7, flags, time, |out| {
        message::encode_head(out, None, key, headers);
        out.extend_from_slice(value);
    });
    frame.split_off(record::HEADER_BYTES)
}

/// Pieces of streams: what clients send, what they send wrong, and noise.
fn stream() -> impl Strategy<Value = Vec<u8>> {
    let snippet = prop_oneof![
        4 => prop::sample::select(vec![
            &b"PUB DURABLE x\n"[..], b"PUB ", b"PUBN DURABLE 3\n", b"PUBN DURABLE 3\nxyz\n", b"PUBN SAFE 30\n", b"PUBB DURABLE 1 9\n",
            b"PUBB DURABLE 2 11\n\0\0\0\x01x\0\0\0\x02yz\n", b"PUBB WRITTEN 2 10\n", b"\0\0\0\x01",
            b"FETCH g 1 1\n", b"ACK g 1\n", b"PING\r\n", b"\n", b"\r", b" ", b"@orders", b"DURABLE", b"key=%41", b"h.a=b",
            b"PUBN ACCEPTED 1 key=k\nx\n", b"PUBN DURABLE 0\n\n", b"SEEK g time=1\n",
            b"RESERVE g 1 0 9\n", b"CONFIRM g 1", b" 2 3", b"ABORT g 1\n", b"EXTEND g 1 0\n", b"PENDING g 5\n", b"GET / HTTP/1.1\r\n", b"17", b"xyz\n",
        ]).prop_map(<[u8]>::to_vec),
        1 => any_vec(any::<u8>(), 0..40),
        1 => (any::<u8>(), 0_usize..6000).prop_map(|(byte, n)| vec![byte; n]),
    ];
    any_vec(snippet, 0..30).prop_map(|snippets| snippets.concat())
}

/// Cuts a stream into pieces of these lengths, over and over.
fn cut<'a>(mut stream: &'a [u8], lengths: &[usize]) -> Vec<&'a [u8]> {
    let mut pieces = Vec::new();
    for length in lengths.iter().cycle() {
        let (piece, rest) = stream.split_at((*length).min(stream.len()));
        pieces.push(piece);
        stream = rest;
        if stream.is_empty() {
            break;
        }
    }
    pieces
}

proptest! {
    #[test]
    fn any_bytes_mean_the_same_in_any_fragmentation(
        stream in stream(),
        lengths in any_vec(prop_oneof![1_usize..4, 1_usize..600, 1_usize..9000], 1..20),
    ) {
        prop_assert_eq!(decode(LIMIT, cut(&stream, &lengths)), decode_whole(&stream));
    }

    #[test]
    fn whatever_is_published_with_a_length_comes_back(
        topic in prop::option::of("[A-Za-z0-9_-]{1,100}"),
        level in prop::sample::select(Level::ALL.to_vec()),
        key in prop::option::of(any_vec(any::<u8>(), 0..50)),
        id: Option<(u64, u32)>,
        headers in any_vec(("[A-Za-z0-9._-]{1,100}", any_vec(any::<u8>(), 0..50)), 0..10),
        value in any_vec(any::<u8>(), 1..300),
        length in 1_usize..400,
    ) {
        prop_assume!(topic.as_deref() != Some("default"));
        let mut stream = b"PUBN ".to_vec();
        if let Some(topic) = &topic {
            stream.extend_from_slice(format!("@{topic} ").as_bytes());
        }
        stream.extend_from_slice(format!("{} {}", level.as_str(), value.len()).as_bytes());
        if let Some(key) = &key {
            stream.extend_from_slice(b" key=");
            percent::encode(&mut stream, key);
        }
        if let Some((producer, sequence)) = id {
            stream.extend_from_slice(format!(" id={producer}:{sequence}").as_bytes());
        }
        for (name, value) in &headers {
            stream.extend_from_slice(format!(" h.{name}=").as_bytes());
            percent::encode(&mut stream, value);
        }
        stream.push(b'\n');
        stream.extend_from_slice(&value);
        stream.push(b'\n');
        let headers = headers.into_iter().map(|(name, value)| (name.into_bytes(), value)).collect();
        let publish = Publish { topic, level, key, headers, id, batch: None, value: Bytes::from(value).into() };
        prop_assert_eq!(decode(4096, stream.chunks(length)), vec![Next::Request(Request::Publish(publish))]);
    }

    #[test]
    fn a_delivered_message_can_be_told_from_what_follows(
        key in prop::option::of(any_vec(any::<u8>(), 0..20)),
        headers in any_vec((any_vec(any::<u8>(), 0..10), any_vec(any::<u8>(), 0..10)), 0..4),
        value in any_vec(prop_oneof![Just(b'\n'), Just(b'\r'), any::<u8>()], 1..30),
        meta: bool,
    ) {
        let borrowed: Vec<(&[u8], &[u8])> = headers.iter().map(|(name, value)| (&name[..], &value[..])).collect();
        let payload = message_payload(0, key.as_deref(), &borrowed, &value);
        let mut out = Vec::new();
        encode_message(&mut out, 1, &Message::parse(&payload).unwrap(), meta, None);
        let end = memchr::memchr(b'\n', &out).unwrap();
        let line = &out[..end];
        match line.strip_prefix(b"MSG 1 ") {
            Some(payload) => {
                prop_assert!(!meta && end + 1 == out.len());
                // A client drops a \r before the newline, as the broker does.
                prop_assert_eq!(payload.strip_suffix(b"\r").unwrap_or(payload), &value[..]);
            }
            None => {
                let mut words = line.split(|byte| *byte == b' ');
                prop_assert_eq!(words.next().unwrap(), if meta { &b"MSGX"[..] } else { b"MSGN" });
                prop_assert_eq!(words.next().unwrap(), b"1");
                prop_assert_eq!(words.next().and_then(parse_number), Some(value.len() as u64));
                prop_assert_eq!(&out[end + 1..], &[&value[..], b"\n"].concat()[..]);
                if meta {
                    prop_assert_eq!(words.next().unwrap(), b"time=0");
                    if let Some(key) = &key {
                        let word = words.next().and_then(|word| word.strip_prefix(b"key=")).unwrap();
                        prop_assert_eq!(&percent::decode(word).unwrap(), key);
                    }
                    for (name, value) in &headers {
                        let word = words.next().and_then(|word| word.strip_prefix(b"h.")).unwrap();
                        let equals = memchr::memchr(b'=', word).unwrap();
                        prop_assert_eq!(&percent::decode(&word[..equals]).unwrap(), name);
                        prop_assert_eq!(&percent::decode(&word[equals + 1..]).unwrap(), value);
                    }
                }
                prop_assert_eq!(words.next(), None);
            }
        }
    }

    #[test]
    fn input_is_its_pieces_one_behind_the_other(
        pieces in any_vec(any_vec(0_u8..4, 1..2000), 1..8),
        steps in any_vec((0_u8..3, 0_usize..3000, 0_u8..5), 0..12),
    ) {
        let mut input = Input::default();
        let mut model = Vec::new();
        let mut pieces = pieces.into_iter();
        let mut push = |input: &mut Input, model: &mut Vec<u8>| if let Some(piece) = pieces.next() {
            model.extend_from_slice(&piece);
            input.push(Bytes::from(piece));
        };
        push(&mut input, &mut model);
        for (step, n, byte) in steps {
            push(&mut input, &mut model);
            let n = n.min(model.len());
            prop_assert_eq!(input.len(), model.len());
            prop_assert_eq!(input.first_piece().is_empty(), model.is_empty());
            prop_assert_eq!(input.find(byte, n), memchr::memchr(byte, &model[n..]).map(|found| n + found));
            if let Some(byte) = model.get(n) {
                prop_assert_eq!(input.byte(n), *byte);
            }
            let mut peeked = vec![9; n];
            prop_assert_eq!(input.peek(&mut peeked), n);
            prop_assert_eq!(&peeked, &model[..n]);
            let taken: Vec<u8> = model.drain(..n).collect();
            match step {
                0 => prop_assert_eq!(input.take(n), Body::from(Bytes::from(taken))),
                1 => prop_assert_eq!(input.take_joined(n), taken),
                _ => prop_assert_eq!(input.skip(n), n),
            }
        }
        prop_assert_eq!(input.skip(usize::MAX), model.len());
        prop_assert!(input.is_empty() && input.first_piece().is_empty());
    }
}
