//! The client against a scripted broker: what it sends is compared, what it gets is written down. Against the real
//! broker it runs in the tests of the workspace.

use super::*;
use plimsoll_core::message;
use plimsoll_core::protocol::{PendingState, line};
use plimsoll_core::record::Kind;
use std::io::Write;
use std::net::{Shutdown, TcpListener};
use std::thread::JoinHandle;

/// What a scripted broker does next.
enum Step {
    /// These bytes must come.
    Expect(Vec<u8>),
    /// Send these.
    Send(Vec<u8>),
    /// Send these one by one.
    Trickle(Vec<u8>),
    /// Break the connection and take the next one.
    Hangup,
    /// Keep silent until the client is gone.
    Silence,
}
use Step::*;

fn expect(text: &str) -> Step {
    Expect(text.as_bytes().to_vec())
}

fn reply(text: &str) -> Step {
    Send(text.as_bytes().to_vec())
}

/// Runs the script; the thread panics where the client says something else.
fn broker(script: Vec<Step>) -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let thread = thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        for step in script {
            match step {
                Expect(bytes) => {
                    let mut got = vec![0; bytes.len()];
                    stream.read_exact(&mut got).unwrap();
                    assert_eq!(got.escape_ascii().to_string(), bytes.escape_ascii().to_string());
                }
                Send(bytes) => stream.write_all(&bytes).unwrap(),
                Trickle(bytes) => bytes.iter().for_each(|byte| stream.write_all(&[*byte]).unwrap()),
                Hangup => {
                    stream.shutdown(Shutdown::Both).unwrap();
                    stream = listener.accept().unwrap().0;
                }
                Silence => {
                    let _ = stream.read(&mut [0; 1]);
                }
            }
        }
    });
    (address, thread)
}

fn connect(address: &str) -> Client {
    let options = Options { reply_timeout: Duration::from_millis(300), ..Options::default() };
    Client::connect(address, options).unwrap()
}

#[test]
fn every_request_and_its_reply() {
    let (address, thread) = broker(vec![
        expect("PING\n"),
        reply("PONG\n"),
        expect("PUB DURABLE hello\n"),
        Trickle(b"OK 15 DURABLE\n".to_vec()),
        expect("PUBN @t WRITTEN 3 key=k%20 id=7:1 h.a=%00\na\nb\n"),
        reply("OK 18446744073709551615 WRITTEN\n"),
        expect("PUBB @t DURABLE 2 13 id=9:4\n\0\0\0\x02a\n\0\0\0\x03 b\r\n"),
        reply("OK 7 DURABLE 2\n"),
        expect("ACK @t g 7\n"),
        reply("ACKED 8\n"),
        expect("SEEK g time=-5\n"),
        reply("SOUGHT 0\n"),
        expect("STATUS @t\n"),
        reply(
            "STATUS topic=t start=1 durable=2 written=3 next=4 segments=5 bytes=6 groups=7 forces=8 forceMeanUs=9 forceTotalMs=10 unforcedMax=11 unforcedMaxMs=12 packed=13 packedBytes=14 packFailures=15 later=x\n",
        ),
        expect("TOPICS\n"),
        reply("TOPIC name=default start=0 durable=0 next=0 bytes=0\nTOPIC name=t\nEND 2\n"),
        expect("GROUPS\n"),
        reply("GROUP name=g committed=3 lag=4 held=yes\nEND 1\n"),
        expect("CREATE @new\n"),
        reply("ERR BAD_NAME no such name\n"),
        expect("CREATE @new\n"),
        reply("CREATED new\n"),
        expect("HELLO\n"),
        reply("HELLO version=1.2 maxPayload=1 maxUnanswered=2 maxFetchWaitMs=3 maxFetchBytes=4\n"),
        expect("QUIT\n"),
        reply("BYE\n"),
    ]);
    let mut client = connect(&address);
    client.ping().unwrap();
    let outcome = client.publish(None, Level::Durable, &Publication::new(b"hello")).unwrap();
    assert_eq!(outcome, Outcome::Stored { offset: 15, level: Level::Durable });
    let headers = [(b"a".to_vec(), b"\0".to_vec())];
    let message = Publication { value: b"a\nb", key: Some(b"k "), headers: &headers, id: Some((7, 1)) };
    let outcome = client.publish(Some("t"), Level::Written, &message).unwrap();
    assert_eq!(outcome, Outcome::Stored { offset: u64::MAX, level: Level::Written });
    let outcome = client.publish_batch(Some("t"), Level::Durable, Some((9, 4)), &[b"a\n", b" b\r"]).unwrap();
    assert_eq!(outcome, Outcome::Stored { offset: 7, level: Level::Durable });
    assert_eq!(client.ack(Some("t"), "g", 7), Ok(8));
    assert_eq!(client.seek(None, "g", SeekTo::TimeMs(-5)), Ok(0));
    let status = client.status(Some("t")).unwrap();
    assert_eq!((status.topic.as_str(), status.start, status.force_mean_us, status.pack_failures), ("t", 1, 9, 15));
    assert_eq!(client.topics().unwrap(), ["default", "t"]);
    let group = GroupStatus { group: "g".into(), committed: 3, lag: 4, held: true };
    assert_eq!(client.groups(None).unwrap(), [group]);
    assert!(client.create("new").unwrap_err().is(Code::BadName));
    client.create("new").unwrap();
    assert_eq!(client.hello().unwrap().fetch_bytes_max, 4);
    client.quit().unwrap();
    thread.join().unwrap();
}

#[test]
fn values_that_a_line_would_change_go_with_their_length() {
    for (value, request) in [
        (&b"a b"[..], &b"PUB WRITTEN a b\n"[..]),
        (b"a\rb", b"PUB WRITTEN a\rb\n"),
        (b"a\r", b"PUBN WRITTEN 2\na\r\n"),
        (b" a", b"PUBN WRITTEN 2\n a\n"),
        (b"a\nPUB", b"PUBN WRITTEN 5\na\nPUB\n"),
        (b"", b"PUB WRITTEN \n"),
    ] {
        let mut out = Vec::new();
        wire::encode_publish(&mut out, None, Level::Written, &Publication::new(value)).unwrap();
        assert_eq!(out.escape_ascii().to_string(), request.escape_ascii().to_string());
    }
}

#[test]
fn names_cannot_smuggle_a_request() {
    let (address, thread) = broker(vec![Silence]);
    let mut client = connect(&address);
    let message = Publication::new(b"x");
    assert!(matches!(client.publish(Some("a b"), Level::Durable, &message), Err(Error::Request(_))));
    assert!(matches!(client.status(Some("a\nQUIT")), Err(Error::Request(_))));
    assert!(matches!(client.ack(None, "", 1), Err(Error::Request(_))));
    let headers = [(b"a=\n".to_vec(), vec![])];
    let message = Publication { headers: &headers, ..message };
    assert!(matches!(client.publish(None, Level::Durable, &message), Err(Error::Request(_))));
    drop(client);
    thread.join().unwrap();
}

#[test]
fn a_lost_connection_leaves_what_was_in_flight_unknown() {
    let (address, thread) = broker(vec![
        expect("PUB DURABLE a\nPUB DURABLE b\nPUB DURABLE c\n"),
        reply("OK 0 DURABLE\nERR QUEUE_FULL wait\nOK"),
        Hangup,
        expect("PUB DURABLE d\n"),
        reply("OK 2 DURABLE\n"),
    ]);
    let mut client = connect(&address);
    for value in [b"a", b"b", b"c"] {
        client.publish_nowait(None, Level::Durable, &Publication::new(value)).unwrap();
    }
    assert!(matches!(client.status(None), Err(Error::Request(_))), "replies must be taken first");
    assert_eq!(client.recv_reply(), Some(Outcome::Stored { offset: 0, level: Level::Durable }));
    assert!(matches!(client.recv_reply(), Some(Outcome::Refused(error)) if error.known() == Some(Code::QueueFull)));
    assert_eq!(client.recv_reply(), Some(Outcome::Unknown));
    assert!(matches!(client.loss(), Some(Error::Disconnected { .. })));
    assert_eq!(client.recv_reply(), None);
    let outcome = client.publish(None, Level::Durable, &Publication::new(b"d")).unwrap();
    assert_eq!(outcome, Outcome::Stored { offset: 2, level: Level::Durable });
    thread.join().unwrap();
}

#[test]
fn silence_and_nonsense_are_told_apart() {
    let (address, thread) = broker(vec![expect("PING\n"), Silence]);
    let mut client = connect(&address);
    assert!(matches!(client.ping(), Err(Error::Timeout { .. })));
    thread.join().unwrap();

    let (address, thread) = broker(vec![expect("PUB DURABLE a\n"), reply("HTTP/1.1 400 Bad Request\r\n"), Silence]);
    let mut client = connect(&address);
    let outcome = client.publish(None, Level::Durable, &Publication::new(b"a")).unwrap();
    assert_eq!(outcome, Outcome::Unknown);
    assert!(matches!(client.loss(), Some(Error::Protocol(_))));
    thread.join().unwrap();

    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    assert!(matches!(Client::connect(&nobody, Options::default()), Err(Error::Connect { .. })));
}

#[test]
fn a_broker_that_answers_before_it_reads_on_blocks_nobody() {
    // Megabytes both ways: a client that only writes would wait for a broker that waits for it.
    const COUNT: u64 = 200_000;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let thread = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let (mut offset, mut received) = (0u64, vec![0; 4096]);
        while let Ok(n @ 1..) = stream.read(&mut received) {
            let mut replies = Vec::new();
            for _ in 0..received[..n].iter().filter(|byte| **byte == b'\n').count() {
                writeln!(replies, "OK {offset} ACCEPTED").unwrap();
                offset += 1;
            }
            stream.write_all(&replies).unwrap();
        }
    });
    let mut client = connect(&address);
    for _ in 0..COUNT {
        client.publish_nowait(None, Level::Accepted, &Publication::new(&[b'x'; 100])).unwrap();
    }
    for offset in 0..COUNT {
        assert_eq!(client.recv_reply(), Some(Outcome::Stored { offset, level: Level::Accepted }));
    }
    drop(client);
    thread.join().unwrap();
}

/// A reply with every kind of line in it, by the broker's own encoder.
fn reply_of_messages() -> Vec<u8> {
    let mut body = vec![0, 0, 0, 0, message::flags(false, true, true)];
    body.extend_from_slice(&1234i64.to_be_bytes());
    message::encode_head(&mut body, None, Some(b"k%"), &[(b"h", b"v ")]);
    body.extend_from_slice(b"with\nall");
    let full = message::Message::parse(&body).unwrap();
    let plain = [b"\0\0\0\0\0\0\0\0\0\0\0\0\0plain".to_vec(), b"\0\0\0\0\0\0\0\0\0\0\0\0\0ends in\r".to_vec()];

    let mut out = Vec::new();
    line::encode_message(&mut out, 7, &message::Message::parse(&plain[0]).unwrap(), false, None);
    line::encode_message(&mut out, 8, &message::Message::parse(&plain[1]).unwrap(), false, None);
    line::encode_gap(&mut out, 9, 12);
    line::encode_message(&mut out, 12, &full, true, None);
    line::encode_end(&mut out, 3);
    out
}

#[test]
fn a_reply_means_the_same_in_any_fragmentation() {
    let reply = reply_of_messages();
    for cut in 0..reply.len() {
        for second in [cut, cut + 1, (cut + reply.len()) / 2] {
            let mut parser = BatchParser::default();
            for so_far in [cut, second] {
                let progress = parser.advance(&reply[..so_far]).unwrap();
                assert!(matches!(progress, Progress::NeedMore) || so_far == reply.len());
            }
            assert!(matches!(parser.advance(&reply).unwrap(), Progress::Whole(n) if n == reply.len()));
            let found: Vec<_> = parser.batch(&reply).iter().collect();
            let [
                Delivered::Message(a),
                Delivered::Message(b),
                Delivered::Gap { first: 9, next: 12 },
                Delivered::Message(c),
            ] = found[..]
            else {
                panic!("{found:?}")
            };
            assert_eq!((a.offset, a.value, a.time_ms()), (7, &b"plain"[..], None));
            assert_eq!((b.offset, b.value, b.key()), (8, &b"ends in\r"[..], None));
            assert_eq!((c.offset, c.value, c.time_ms()), (12, &b"with\nall"[..], Some(1234)));
            assert_eq!(c.key().as_deref(), Some(&b"k%"[..]));
            let headers: Vec<_> = c.headers().map(|(name, value)| (name.to_vec(), value.into_owned())).collect();
            assert_eq!(headers, [(b"h".to_vec(), b"v ".to_vec())]);
        }
    }
}

#[test]
fn fetch_and_read_borrow_what_came() {
    let (address, thread) = broker(vec![
        expect("FETCH @t g 10 50 META\n"),
        Trickle(reply_of_messages()),
        expect("READ 3 1\n"),
        reply("ERR OUT_OF_RANGE no\n"),
        expect("READ 7 3\n"),
        Send(reply_of_messages()),
        expect("READ 7 3\n"),
        reply("MSG 7 x\nEND 2\n"),
        Silence,
    ]);
    let mut client = connect(&address);
    assert_eq!(client.fetch(Some("t"), "g", 10, 50, true).unwrap().messages(), 3);
    assert!(client.read(None, 3, 1, false).unwrap_err().is(Code::OutOfRange));
    let batch = client.read(None, 7, 3, false).unwrap();
    assert_eq!((batch.messages(), batch.iter().count(), batch.is_empty()), (3, 4, false));
    assert!(matches!(client.read(None, 7, 3, false), Err(Error::Protocol(_))), "a count that is not true");
    thread.join().unwrap();
}

#[test]
fn raw_frames_are_checked_end_to_end() {
    let salt = Salt(77);
    let mut frames = Vec::new();
    for offset in 5..8 {
        record::encode(&mut frames, salt, offset, 0, 0, 1, |out| out.extend_from_slice(b"value"));
    }
    record::encode(&mut frames, salt, 8, 0, Kind::Batch as u8, 1, |out| {
        out.extend_from_slice(b"\0\0\0\x02\0\0\0\x02\0x\0\0\0\x02\0y");
    });
    let mut flipped = frames.clone();
    *flipped.last_mut().unwrap() ^= 1;
    let head = |bytes: &[u8]| reply(&format!("FRAMES 5 {} 77\n", bytes.len()));
    let (address, thread) = broker(vec![
        expect("READRAW 5 1000\n"),
        head(&frames),
        Trickle(frames.clone()),
        expect("READRAW 5 1000\n"),
        head(&flipped),
        Send(flipped.clone()),
        expect("READRAW 10 1000\n"),
        reply("FRAMES 10 0 0\n"),
    ]);
    let mut client = connect(&address);
    let raw = client.read_raw(None, 5, 1000).unwrap();
    let offsets: Vec<_> = raw.frames().map(|frame| frame.unwrap().offset).collect();
    assert_eq!(offsets, [5, 6, 7, 8]);
    let messages: Vec<_> = raw.messages().map(|message| message.map(|(offset, m)| (offset, m.value))).collect();
    assert_eq!(messages[2..], [Ok((7, &b"value"[..])), Ok((8, b"x")), Ok((9, b"y"))]);
    let raw = client.read_raw(None, 5, 1000).unwrap();
    let results: Vec<_> = raw.frames().map(|frame| frame.is_ok()).collect();
    assert_eq!(results, [true, true, true, false]);
    assert_eq!(raw.messages().map(|message| message.is_ok()).collect::<Vec<_>>(), results);
    assert_eq!(client.read_raw(None, 10, 1000).unwrap().frames().count(), 0);
    thread.join().unwrap();
}

#[test]
fn a_publisher_repeats_what_was_not_stored() {
    let (address, thread) = broker(vec![
        expect("PUB DURABLE a\nPUB DURABLE b\n"),
        reply("ERR QUEUE_FULL wait\nOK 0 DURABLE\n"),
        expect("PUB DURABLE a\n"),
        reply("OK 1 DURABLE\n"),
    ]);
    let mut publisher = Publisher::new(connect(&address), None, Level::Durable, 2, false);
    publisher.push(&Publication::new(b"a")).unwrap();
    publisher.push(&Publication::new(b"b")).unwrap();
    let (summary, error) = publisher.finish();
    assert_eq!((summary.stored, summary.queue_full, summary.unknown, error), (2, 1, 0, None));
    assert_eq!(summary.level, Some(Level::Durable));
    thread.join().unwrap();
}

#[test]
fn a_publisher_sends_batches_and_counts_their_messages() {
    let (address, thread) = broker(vec![
        expect("PUBB DURABLE 2 10\n\0\0\0\x01a\0\0\0\x01b\n"),
        reply("ERR QUEUE_FULL wait\n"),
        expect("PUBB DURABLE 2 10\n\0\0\0\x01a\0\0\0\x01b\n"),
        reply("OK 4 DURABLE 2\n"),
        // The next two would be over the bytes.
        expect("PUBB DURABLE 1 24\n\0\0\0\x14cccccccccccccccccccc\n"),
        reply("OK 6 DURABLE 1\n"),
        expect("PUBB DURABLE 1 5\n\0\0\0\x01d\n"),
        reply("OK 7 DURABLE 1\n"),
    ]);
    let mut publisher = Publisher::new(connect(&address), None, Level::Durable, 1, false).in_batches(2, 25);
    for value in [&b"a"[..], b"b", &[b'c'; 20], b"d"] {
        publisher.push(&Publication::new(value)).unwrap();
    }
    let keyed = Publication { key: Some(b"k"), ..Publication::new(b"e") };
    assert!(matches!(publisher.push(&keyed), Err(Error::Request(_))));
    publisher.settle().unwrap();
    let (summary, error) = publisher.finish();
    assert_eq!(
        (summary.stored, summary.queue_full, summary.first_offset, summary.last_offset),
        (4, 1, Some(4), Some(7))
    );
    assert_eq!(error, None);
    thread.join().unwrap();
}

#[test]
fn a_publisher_repeats_what_has_an_id_with_the_same_id() {
    let (address, thread) = broker(vec![
        expect("PUBN DURABLE 1 id=7:4294967294\na\n"),
        Hangup,
        expect("PUBN DURABLE 1 id=7:4294967294\na\n"),
        reply("OK 3 DURABLE\n"),
        expect("PUBN DURABLE 1 id=7:4294967295\nb\n"),
        reply("OK 4 DURABLE\n"),
    ]);
    let mut publisher = Publisher::new(connect(&address), None, Level::Durable, 1, true).with_ids(7, u32::MAX - 1);
    publisher.push(&Publication::new(b"a")).unwrap();
    publisher.push(&Publication::new(b"b")).unwrap();
    assert!(matches!(publisher.push(&Publication::new(b"c")), Err(Error::Request(_))), "there are no more");
    let (summary, error) = publisher.finish();
    assert_eq!((summary.stored, summary.repeated, summary.last_offset, error), (2, 1, Some(4), None));
    thread.join().unwrap();
}

#[test]
fn a_publisher_repeats_lost_ones_only_when_told_to() {
    let script = |again: &str| {
        let mut script = vec![expect("PUB DURABLE a\nPUB DURABLE b\n"), reply("OK 0 DURABLE\n"), Hangup];
        if !again.is_empty() {
            script.extend([expect(again), reply("OK 2 DURABLE\nOK 3 DURABLE\n")]);
        }
        broker(script)
    };
    let publish = |address: &str, retry| {
        let mut publisher = Publisher::new(connect(address), None, Level::Durable, 2, retry);
        publisher.push(&Publication::new(b"a")).unwrap();
        publisher.push(&Publication::new(b"b")).unwrap();
        let third = publisher.push(&Publication::new(b"c")).and_then(|()| publisher.settle());
        let (summary, _) = publisher.finish();
        (summary, third)
    };

    let (address, thread) = script("PUB DURABLE b\nPUB DURABLE c\n");
    let (summary, third) = publish(&address, true);
    // The third was sent before anybody knew.
    assert_eq!((summary.stored, summary.repeated, summary.unknown, third), (3, 2, 0, Ok(())));
    thread.join().unwrap();

    let (address, thread) = script("");
    let (summary, third) = publish(&address, false);
    assert!(third.unwrap_err().is_indeterminate());
    assert_eq!((summary.stored, summary.repeated), (1, 0));
    assert!(summary.unknown >= 1);
    let _unblock_accept = TcpStream::connect(&address);
    thread.join().unwrap();
}

#[test]
fn work_queues_are_spoken_to() {
    let (address, thread) = broker(vec![
        expect("RESERVE @t q 2 50 1000 META\n"),
        Trickle(b"GAP 0 7\nMSGX 7 1 time=5 key=k h.a=b deliveries=3\nx\nMSGX 8 1 time=5\ny\nEND 2\n".to_vec()),
        expect("RESERVE q 1 0 1\n"),
        reply("END 0\n"),
        expect("CONFIRM @t q 7 8\n"),
        reply("CONFIRMED 2\n"),
        expect("CONFIRM q 7\n"),
        reply("ERR NOT_RESERVED offset 7 is not\n"),
        expect("ABORT q 7 500\n"),
        reply("ABORTED 7\n"),
        expect("EXTEND @t q 7 500\n"),
        reply("EXTENDED 7\n"),
        expect("STEAL q 7\n"),
        reply("STOLEN 7\n"),
        expect("QUEUES @t\n"),
        reply(
            "QUEUE name=q confirmed=1 next=2 ready=3 reserved=4 delayed=5 dying=6 waiting=7 journalBytes=8 journalForces=9 later=x\nEND 1\n",
        ),
        expect("PENDING q 3 10\n"),
        reply(
            "PENDING 3 deliveries=1 state=reserved connection=2 peer=192.0.2.1:5 leftMs=5\nPENDING 4 deliveries=1 state=ready\n\
             PENDING 5 deliveries=1 state=delayed dueMs=9\nPENDING 6 deliveries=1 state=dying\nEND 4\n",
        ),
        expect("PENDING q 0 1\n"),
        reply("PENDING 3 deliveries=1 state=lost\n"),
        Hangup,
        expect("STEAL q 7\n"),
        reply("STOLEN 8\n"),
        Hangup,
        expect("CONFIRM q 7\n"),
        reply("CONFIRMED 2\n"),
    ]);
    let mut client = connect(&address);
    let batch = client.reserve(Some("t"), "q", 2, 50, 1000, true).unwrap();
    let found: Vec<_> = batch.iter().collect();
    let [Delivered::Gap { first: 0, next: 7 }, Delivered::Message(a), Delivered::Message(b)] = found[..] else {
        panic!("{found:?}")
    };
    assert_eq!((a.offset, a.deliveries(), a.key().as_deref(), b.deliveries()), (7, Some(3), Some(&b"k"[..]), None));
    assert!(client.reserve(None, "q", 1, 0, 1, false).unwrap().is_empty());
    client.confirm(Some("t"), "q", &[7, 8]).unwrap();
    assert!(client.confirm(None, "q", &[7]).unwrap_err().is(Code::NotReserved));
    client.abort(None, "q", 7, 500).unwrap();
    client.extend(Some("t"), "q", 7, 500).unwrap();
    client.steal(None, "q", 7).unwrap();
    let queue = client.queues(Some("t")).unwrap().remove(0);
    assert_eq!(
        (queue.group.as_str(), queue.confirmed, queue.waiting, queue.journal_bytes, queue.journal_forces),
        ("q", 1, 7, 8, 9)
    );
    let pending = client.pending(None, "q", 3, 10).unwrap();
    assert_eq!(pending.iter().map(|message| message.offset).collect::<Vec<_>>(), [3, 4, 5, 6]);
    let states: Vec<_> = pending.into_iter().map(|message| message.state).collect();
    let reserved = PendingState::Reserved { connection: 2, peer: "192.0.2.1:5".to_owned(), left_ms: 5 };
    let ready = |due_ms| PendingState::Ready { due_ms };
    assert_eq!(states, [reserved, ready(0), ready(9), PendingState::Dying]);
    assert!(matches!(client.pending(None, "q", 0, 1), Err(Error::Protocol(_))), "a state that is none");
    assert!(matches!(client.steal(None, "q", 7), Err(Error::Protocol(_))), "another message");
    assert!(matches!(client.confirm(None, "q", &[7]), Err(Error::Protocol(_))), "more than was asked for");
    assert!(matches!(client.confirm(None, "q", &[]), Err(Error::Request(_))));
    assert!(matches!(client.reserve(None, "q q", 1, 0, 1, false), Err(Error::Request(_))));
    thread.join().unwrap();
}
