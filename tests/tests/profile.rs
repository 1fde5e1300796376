//! One profile whole, from its file: segments of 32 MiB, a capacity of 2 GiB, a force every 50 ms, and at once for what is critical. What
//! happens at the capacity is shown with a smaller one.

use plimsoll::client::{Client, Delivered, Options, Outcome, Publication};
use plimsoll_core::error::Code;
use plimsoll_core::protocol::Level;
use plimsoll_core::record::OVERHEAD_BYTES;
use plimsoll_tests::broker::{Broker, PATIENCE, binary, run, serve};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, thread};

/// Were a quiet topic forced before that, the interval would not be seen.
const PROFILE: &str = "\
segment-bytes = \"32 MiB\"
total-capacity = \"2 GiB\"
flush = \"interval=50ms\"
idle-anchor = \"10min\"
";
const INTERVAL: Duration = Duration::from_millis(50);
const SEGMENT_BYTES: u64 = 32 << 20;

const VALUE_BYTES: usize = 60_000;
const FRAME_BYTES: u64 = (VALUE_BYTES + OVERHEAD_BYTES) as u64;

struct Setup {
    dir: tempfile::TempDir,
    file: PathBuf,
}

impl Setup {
    fn new(settings: &str) -> Setup {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("plimsoll.conf");
        fs::write(&file, settings).unwrap();
        Setup { dir, file }
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn start(&self) -> Broker {
        Broker::spawn(serve(binary(), &self.data(), &["--config", self.file.to_str().unwrap()]))
    }

    /// What `config show` says about a setting: its value and where that comes from.
    fn shown(&self, name: &str) -> (String, String) {
        let output = run([Path::new("config"), Path::new("show"), Path::new("--config"), &self.file]);
        let text = String::from_utf8(output.stdout).unwrap();
        let line = text.lines().find(|line| line.starts_with(&format!("{name} "))).expect("a line");
        let words: Vec<&str> = line.split_whitespace().collect();
        (words[1].to_owned(), words[2].to_owned())
    }
}

fn connect(broker: &Broker) -> Client {
    Client::connect(broker.address(), Options::default()).unwrap()
}

/// The value of a topic's n-th message. Each is another one.
fn value(n: u64) -> Vec<u8> {
    let mut value = format!("{n:08} ").into_bytes();
    value.resize(VALUE_BYTES, b'a' + (n % 26) as u8);
    value
}

fn stored(outcome: Outcome) -> u64 {
    match outcome {
        Outcome::Stored { offset, .. } => offset,
        other => panic!("{other:?}"),
    }
}

/// Publishes the messages of these offsets, all at once: the last one is critical, the others are not. Answers how many were stored.
fn publish(client: &mut Client, topic: Option<&str>, first: u64, count: u64) -> u64 {
    for n in first..first + count {
        let level =
            if n + 1 == first + count { Level::Durable } else { [Level::Accepted, Level::Written][n as usize % 2] };
        client.publish_nowait(topic, level, &Publication::new(&value(n))).unwrap();
    }
    let mut next = first;
    for _ in 0..count {
        match client.recv_reply().unwrap() {
            Outcome::Stored { offset, .. } if offset == next => next += 1,
            Outcome::Refused(error) if error.known() == Some(Code::OverCapacity) => {}
            other => panic!("{other:?} behind {next}"),
        }
    }
    next - first
}

/// Every message from the start of a topic to its end, each what was published at its offset.
fn check_all(client: &mut Client, topic: Option<&str>, start: u64, end: u64) {
    let status = client.status(topic).unwrap();
    assert_eq!((status.start, status.durable), (start, end));
    let mut next = start;
    while next < end {
        for delivered in client.read(topic, next, 1000, false).unwrap().iter() {
            let Delivered::Message(message) = delivered else { panic!("{delivered:?} at {next}") };
            assert!(message.offset == next && *message.value == *value(next), "offset {next} holds another message");
            next += 1;
        }
    }
}

fn log_sizes(data: &Path) -> Vec<u64> {
    plimsoll_tests::files(data, ".log").iter().map(|path| fs::metadata(path).unwrap().len()).collect()
}

#[test]
fn the_profile_whole() {
    let setup = Setup::new(PROFILE);
    for (line, name, value) in
        [(1, "segment-bytes", "32MiB"), (2, "total-capacity", "2GiB"), (3, "flush", "interval=50ms")]
    {
        assert_eq!(setup.shown(name), (value.to_owned(), format!("{}:{line}", setup.file.display())));
    }
    assert_eq!(setup.shown("on-full"), ("reject".to_owned(), "default".to_owned()));

    let broker = setup.start();
    let mut client = connect(&broker);
    let mut next = 0;

    // What is not critical is answered at once, and seen when the interval is over.
    for level in [Level::Accepted, Level::Written] {
        let (mut reply, mut seen) = (PATIENCE, PATIENCE);
        for _ in 0..5 {
            let begun = Instant::now();
            assert_eq!(stored(client.publish(None, level, &Publication::new(&value(next))).unwrap()), next);
            reply = reply.min(begun.elapsed());
            let batch = client.fetch(None, "readers", 1, 10_000, false).unwrap();
            assert!(matches!(batch.iter().next(), Some(Delivered::Message(message)) if message.offset == next));
            assert!(begun.elapsed() >= INTERVAL, "{level:?}: seen after {:?}", begun.elapsed());
            seen = seen.min(begun.elapsed());
            client.ack(None, "readers", next).unwrap();
            next += 1;
        }
        assert!(reply < INTERVAL && seen < 10 * INTERVAL, "{level:?}: answered after {reply:?}, seen after {seen:?}");
    }

    // What is critical is forced at once, and what stands before it with it.
    let mut fastest = PATIENCE;
    for _ in 0..5 {
        let begun = Instant::now();
        assert_eq!(publish(&mut client, None, next, 3), 3);
        fastest = fastest.min(begun.elapsed());
        next += 3;
        assert_eq!(client.status(None).unwrap().durable, next);
    }
    assert!(fastest < INTERVAL, "{fastest:?}");

    // Some segments.
    let mut critical = next;
    while next * FRAME_BYTES < 5 * SEGMENT_BYTES {
        assert_eq!(publish(&mut client, None, next, 64), 64);
        next += 64;
        critical = next;
    }
    for _ in 0..10 {
        assert_eq!(stored(client.publish(None, Level::Written, &Publication::new(&value(next))).unwrap()), next);
        next += 1;
    }
    let status = client.status(None).unwrap();
    assert_eq!((status.segments, status.bytes), (6, next * FRAME_BYTES));
    let (_, closed) = log_sizes(&setup.data()).split_last().map(|(last, closed)| (*last, closed.to_vec())).unwrap();
    let is_full = |bytes: &u64| (SEGMENT_BYTES - FRAME_BYTES..=SEGMENT_BYTES).contains(bytes);
    assert!(closed.iter().all(is_full), "{closed:?}");

    broker.kill();
    drop(broker);
    let broker = setup.start();
    let mut client = connect(&broker);
    let recovered = client.status(None).unwrap().durable;
    // A killed process leaves what was WRITTEN, too.
    assert!(recovered >= critical && recovered == next, "{recovered} of {next} messages, {critical} of them critical");
    check_all(&mut client, None, 0, next);
    assert_eq!(publish(&mut client, None, next, 1), 1);
    assert!(broker.stop().success());
}

const SMALL_CAPACITY: u64 = 128 << 20;

/// The same with another capacity, and a topic that is to lose nothing, whatever holds for others.
fn started_small(on_full: &str) -> (Setup, Broker, u64) {
    let settings = PROFILE.replace("2 GiB", "128 MiB");
    let setup = Setup::new(&format!("{settings}on-full = \"{on_full}\"\n"));
    assert_eq!(setup.shown("total-capacity").0, "128MiB");
    assert_eq!(setup.shown("on-full"), (on_full.to_owned(), format!("{}:5", setup.file.display())));
    let broker = setup.start();
    let mut client = connect(&broker);
    client.create_with("orders", &[("on-full", "reject".to_owned())]).unwrap();
    let orders = 20;
    assert_eq!(publish(&mut client, Some("orders"), 0, orders), orders);
    (setup, broker, orders)
}

fn bytes_of_all(client: &mut Client) -> u64 {
    client.status(None).unwrap().bytes + client.status(Some("orders")).unwrap().bytes
}

#[test]
fn p12_at_its_capacity_the_profile_rejects() {
    let (setup, broker, orders) = started_small("reject");
    let mut client = connect(&broker);
    let mut next = 0;
    loop {
        let stored = publish(&mut client, None, next, 64);
        next += stored;
        if stored < 64 {
            break;
        }
    }
    let bytes = bytes_of_all(&mut client);
    assert!((SMALL_CAPACITY - FRAME_BYTES..=SMALL_CAPACITY).contains(&bytes), "{bytes} bytes");
    broker.kill();
    drop(broker);

    // It is as full after a restart, and nothing has gone.
    let broker = setup.start();
    let mut client = connect(&broker);
    check_all(&mut client, Some("orders"), 0, orders);
    check_all(&mut client, None, 0, next);
    assert_eq!(bytes_of_all(&mut client), bytes);
    for (topic, n) in [(None, next), (Some("orders"), orders)] {
        assert_eq!(publish(&mut client, topic, n, 1), 0, "{topic:?}");
    }
    // Room made in one topic is room for any.
    assert_eq!(client.purge(None, next / 2).unwrap(), next / 2);
    assert_eq!(publish(&mut client, Some("orders"), orders, 5), 5);
    assert_eq!(publish(&mut client, None, next, 5), 5);
    assert!(broker.stop().success());
}

#[test]
fn p12_at_its_capacity_the_profile_drops_the_oldest_but_not_of_a_topic_that_rejects() {
    let (setup, broker, orders) = started_small("drop-oldest");
    let mut client = connect(&broker);
    let mut next = 0;
    while next * FRAME_BYTES < SMALL_CAPACITY + 2 * SEGMENT_BYTES {
        assert_eq!(publish(&mut client, None, next, 64), 64);
        next += 64;
        assert!(bytes_of_all(&mut client) <= SMALL_CAPACITY);
    }
    let status = client.status(None).unwrap();
    // By whole segments, and no more of them than it takes.
    let a_segment = SEGMENT_BYTES / FRAME_BYTES;
    assert!(status.start > 0 && status.start.is_multiple_of(a_segment), "{status:?}");
    assert!(bytes_of_all(&mut client) > SMALL_CAPACITY - SEGMENT_BYTES - FRAME_BYTES);
    broker.kill();
    drop(broker);

    let broker = setup.start();
    let mut client = connect(&broker);
    check_all(&mut client, Some("orders"), 0, orders);
    check_all(&mut client, None, status.start, next);
    assert_eq!(publish(&mut client, None, next, 64), 64);
    assert_eq!(publish(&mut client, Some("orders"), orders, 5), 5);
    // What is gone gives its space back.
    let begun = Instant::now();
    while log_sizes(&setup.data()).iter().sum::<u64>() > SMALL_CAPACITY + (1 << 20) {
        assert!(begun.elapsed() < PATIENCE, "{:?}", log_sizes(&setup.data()));
        thread::sleep(Duration::from_millis(20));
    }
    assert!(broker.stop().success());
}
