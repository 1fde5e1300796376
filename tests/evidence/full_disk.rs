//! P11: a full disk is not a crash. Publishing is refused, everything else goes on, and publishing resumes by itself.
//!
//! The disk is an ext4 file system in a loop device.

use crate::rig::Run;
use plimsoll::client::{Client, Delivered, Options, Outcome, Publication};
use plimsoll_core::error::Code;
use plimsoll_core::protocol::Level;
use plimsoll_tests::broker::{Broker, PATIENCE, binary};
use plimsoll_tests::mount::{Image, room};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

pub(crate) fn space_ahead(run: &Run) -> String {
    fill_and_free(run, &["--segment-bytes", "1MiB"])
}

/// Without space ahead a write itself meets the full disk, when its messages have their offsets: none of them is dropped.
pub(crate) fn appending(run: &Run) -> String {
    fill_and_free(run, &["--segment-bytes", "1MiB", "--space-ahead", "0"])
}

/// A broker whose disk is full can be killed, started again, read and stopped.
pub(crate) fn start(run: &Run) -> String {
    let disk = Disk::new(run);
    let broker = run.broker(&disk.data, &[]);
    let mut stored = fill(&broker, &disk);
    broker.kill();
    drop(broker);
    // What was only accepted may be gone, and its offset may name another message.
    stored.retain(|_, (level, _)| *level >= Level::Written);

    let broker = run.broker(&disk.data, &[]);
    check(&broker, &stored, Waiting::None);
    let mut client = connect(&broker);
    acknowledge_one(&mut client, 0);
    refused(&mut client);
    disk.make_room();
    let offset = publish_until_stored(&mut client, LAST);
    stored.insert(offset, (Level::Durable, LAST.to_vec()));
    assert!(broker.stop().success());

    let broker = run.broker(&disk.data, &[]);
    check(&broker, &stored, Waiting::None);
    assert!(broker.stop().success());
    "READY; all that was acknowledged WRITTEN or DURABLE is read, an ACK is stored, publishing: DISK_FULL; with room made: stored, without a restart".into()
}

/// What retention removes is room, too, and it needs none: nobody else has to make any.
pub(crate) fn retention(run: &Run) -> String {
    let settings = ["--segment-bytes", "1MiB", "--retain-consumed", "yes"];
    let disk = Disk::new(run);
    let broker = run.broker(&disk.data, &settings);
    let mut client = connect(&broker);
    // Everything is kept for a group that has acknowledged nothing.
    client.fetch(None, "readers", 1, 0, false).unwrap();
    let mut stored = Stored::new();
    let mut protected = 0;
    for how in [acknowledge_half, purge_half, let_all_be_too_old] {
        stored.extend(fill(&broker, &disk));
        let reader = stalled_reader(&broker, client.status(None).unwrap().start);
        refused(&mut client);
        protected = how(&mut client);
        for n in 0..30 {
            let value = vec![b'0' + n; 60_000];
            let offset = publish_until_stored(&mut client, &value);
            stored.insert(offset, (Level::Durable, value));
        }
        assert!(disk.something_else().exists());
        broker.holds_no_deleted_file_open();
        drop(reader);
        let start = check_from_start(&mut client, &stored);
        assert!(start > 0 && start <= protected, "the log begins at {start}, and nothing above {protected} was to go");
        stored = stored.split_off(&start);
        run.note(format!("the log begins at {start}, of {protected} that were to go"));
    }
    assert!(broker.stop().success());
    let broker = run.broker(&disk.data, &settings);
    let start = check_from_start(&mut connect(&broker), &stored);
    assert!(start <= protected);
    assert!(broker.stop().success());
    "publishing: DISK_FULL; by that alone, 30 messages of 60000 bytes are stored, three times, without a restart; of what was to stay, before and after a restart: 0 missing, 0 different; no removed file stays open".into()
}

/// Answers where the log may begin afterwards.
fn acknowledge_half(client: &mut Client) -> u64 {
    let status = client.status(None).unwrap();
    let end = status.start + (status.durable - status.start) / 2;
    let mut next = status.start;
    while next < end {
        let batch = client.fetch(None, "readers", end - next, 0, false).unwrap();
        next = batch.iter().map(delivered_end).last().expect("messages");
        assert_eq!(client.ack(None, "readers", next - 1).unwrap(), next);
    }
    end
}

fn purge_half(client: &mut Client) -> u64 {
    let status = client.status(None).unwrap();
    let before = status.start + (status.durable - status.start) / 2;
    assert_eq!(client.purge(None, before).unwrap(), before);
    before
}

/// The segment that takes messages is closed for that, too.
fn let_all_be_too_old(client: &mut Client) -> u64 {
    let status = client.status(None).unwrap();
    client.alter("default", &[("retain-ms", "1000".to_owned())]).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while client.status(None).unwrap().start < status.durable {
        assert!(Instant::now() < deadline, "{:?}", client.status(None));
        thread::sleep(Duration::from_millis(50));
    }
    client.alter("default", &[("retain-ms", "default".to_owned())]).unwrap();
    // What waited for room with its offset has become too old as well.
    status.next
}

fn delivered_end(delivered: Delivered<'_>) -> u64 {
    match delivered {
        Delivered::Message(message) => message.offset + 1,
        Delivered::Gap { next, .. } => next,
    }
}

/// A client that asks for the frames of a closed segment, and takes none of them.
fn stalled_reader(broker: &Broker, first: u64) -> TcpStream {
    let mut stream = TcpStream::connect(broker.address()).unwrap();
    for _ in 0..50 {
        stream.write_all(format!("READRAW {first} 1000000\n").as_bytes()).unwrap();
    }
    thread::sleep(Duration::from_millis(200));
    stream
}

/// Every message that was acknowledged and is not below the start is what it was. Answers the start.
fn check_from_start(client: &mut Client, stored: &Stored) -> u64 {
    let status = client.status(None).unwrap();
    let mut next = status.start;
    while next < status.durable {
        for delivered in client.read(None, next, 10_000, false).unwrap().iter() {
            let Delivered::Message(message) = delivered else { panic!("{delivered:?} at {next}") };
            assert_eq!(message.offset, next);
            if let Some((_, value)) = stored.get(&next) {
                assert!(*message.value == **value, "offset {next} holds another message");
            }
            next += 1;
        }
    }
    assert_eq!(stored.range(next..).count(), 0, "acknowledged messages are lost");
    status.start
}

fn fill_and_free(run: &Run, settings: &[&str]) -> String {
    let disk = Disk::new(run);
    let broker = run.broker(&disk.data, settings);
    let mut stored = fill(&broker, &disk);
    let said = broker.wait_for_line("DISK_FULL ");
    assert!(said.contains("No space left on device"), "{said}");

    // Consumers go on, and their acknowledgements are stored.
    let mut client = connect(&broker);
    for n in 0..20 {
        acknowledge_one(&mut client, n);
    }
    refused(&mut client);
    check(&broker, &stored, Waiting::ForRoom);

    disk.make_room();
    let offset = publish_until_stored(&mut client, LAST);
    stored.insert(offset, (Level::Durable, LAST.to_vec()));
    broker.wait_for_line("DISK_FREE");
    check(&broker, &stored, Waiting::None);
    assert_eq!(client.groups(None).unwrap()[0].committed, 20);
    assert!(broker.stop().success());

    // Nothing acknowledged is lost, and not by the next start either.
    let broker = run.broker(&disk.data, settings);
    check(&broker, &stored, Waiting::None);
    assert_eq!(connect(&broker).groups(None).unwrap()[0].committed, 20);
    assert!(broker.stop().success());
    run.note(format!("{} messages were acknowledged", stored.len()));
    "DISK_FULL at the end; 20 of 20 ACKs are stored meanwhile; with room made: DISK_FREE, and publishing resumes without a restart; of all acknowledged messages, before and after a restart: 0 missing, 0 different".into()
}

/// Confirmations take what the ballast gives. Where that is used up, too, they are refused, and each message stays whose it is.
pub(crate) fn work_queue(run: &Run) -> String {
    const ROUNDS: usize = 300;
    const REFUSED: usize = 20;
    let disk = Disk::new(run);
    let settings = ["--segment-bytes", "1MiB", "--journal-bytes", "16KiB"];
    let broker = run.broker(&disk.data, &settings);
    let (mut client, mut other) = (connect(&broker), connect(&broker));
    // The queue is there before.
    reserve_one(&mut client).inspect(|_| panic!("nothing was published"));
    let stored = fill(&broker, &disk);
    let mut confirmed = BTreeSet::new();
    for _ in 0..ROUNDS {
        let offset = reserve_one(&mut client).expect("a message");
        client.confirm(None, QUEUE, &[offset]).expect("the ballast gives room");
        assert!(confirmed.insert(offset));
    }
    refused(&mut client);

    let (mut left, deadline) = (Vec::new(), Instant::now() + PATIENCE);
    while left.len() < REFUSED {
        assert!(Instant::now() < deadline, "{} confirmed, {} refused", confirmed.len(), left.len());
        disk.take_the_rest();
        let offset = reserve_one(&mut client).expect("a message");
        if confirm(&mut client, offset, Some(Code::DiskFull)) {
            assert!(confirmed.insert(offset));
        } else {
            left.push(offset);
        }
    }
    run.note(format!("{} were confirmed before {REFUSED} were refused", confirmed.len()));

    // Of the others, nobody gets any.
    let (aborted, expired) = (left.remove(0), left.remove(0));
    let new = reserve_one(&mut other).expect("a message");
    assert!(new > *left.last().expect("more of them"), "{new} was handed out to another");
    client.abort(None, QUEUE, aborted, 0).unwrap();
    assert_eq!(reserve_one(&mut other), Some(aborted));
    client.extend(None, QUEUE, expired, 200).unwrap();
    thread::sleep(Duration::from_millis(400));
    assert_eq!(reserve_one(&mut other), Some(expired));
    for offset in [aborted, expired] {
        assert!(!confirm(&mut client, offset, Some(Code::NotReserved)));
    }
    let mut worker = Worker::start(run, &broker);
    worker.wait_for_refusal();
    let until = Instant::now() + 3 * WORKER_LEASE;
    while Instant::now() < until {
        disk.take_the_rest();
        thread::sleep(Duration::from_millis(100));
    }
    assert!(worker.child.try_wait().unwrap().is_none(), "there is no room, and the worker has ended");
    assert!(!confirm(&mut client, left[0], Some(Code::DiskFull)));

    disk.make_room();
    let worked = worker.ended();
    assert!(confirmed.insert(worked));
    for offset in [aborted, expired] {
        assert!(confirm(&mut other, offset, None) && confirmed.insert(offset));
    }
    for offset in &left {
        assert!(confirm(&mut client, *offset, None) && confirmed.insert(*offset));
        assert!(!confirm(&mut client, *offset, Some(Code::NotReserved)));
    }
    broker.wait_for_line("DISK_FREE");
    broker.kill();
    drop(broker);

    let broker = run.broker(&disk.data, &settings);
    let mut client = connect(&broker);
    let expected: Vec<u64> =
        (0..stored.len() as u64).filter(|offset| !confirmed.contains(offset)).take(ROUNDS).collect();
    assert_eq!(expected[0], new, "it was reserved, and nobody has confirmed it");
    let found: Vec<u64> = expected.iter().filter_map(|_| reserve_one(&mut client)).collect();
    assert_eq!(found, expected);
    assert!(broker.stop().success());
    format!(
        "{ROUNDS} of {ROUNDS} are CONFIRMED on the full disk; without the ballast's room {REFUSED} of {REFUSED} CONFIRMs are answered DISK_FULL, while \
         RESERVE, ABORT and EXTEND go on; other consumers get none of the {REFUSED} but the one that was given back and the one whose lease ran \
         out, and CONFIRM of these by whoever had them: NOT_RESERVED; with room made, without a restart: {REFUSED} of {REFUSED} are CONFIRMED once by \
         whoever has them, and the worker, which has run its command once, says 1 confirmed; after a restart 0 of what was confirmed is handed \
         out again, and the next {} are all that follow",
        found.len()
    )
}

const QUEUE: &str = "workers";

fn reserve_one(client: &mut Client) -> Option<u64> {
    let batch = client.reserve(None, QUEUE, 1, 0, 3_600_000, false).unwrap();
    batch.iter().find_map(|delivered| match delivered {
        Delivered::Message(message) => Some(message.offset),
        Delivered::Gap { .. } => None,
    })
}

/// Whether it was confirmed. It may be refused for this reason and no other.
fn confirm(client: &mut Client, offset: u64, refusal: Option<Code>) -> bool {
    match client.confirm(None, QUEUE, &[offset]) {
        Ok(()) => true,
        Err(error) if refusal.is_some_and(|code| error.is(code)) => false,
        Err(error) => panic!("{offset}: {error}"),
    }
}

const WORKER_LEASE: Duration = Duration::from_secs(1);

/// A `plimsoll queue work` for one message, killed at the end.
struct Worker {
    child: Child,
    log: PathBuf,
}

impl Worker {
    fn start(run: &Run, broker: &Broker) -> Worker {
        let log = run.log("queue-work");
        let mut command = Command::new(binary());
        command.args(["queue", "work", QUEUE, "--count", "1", "--lease", "1s", "--exec", "echo $PLIMSOLL_OFFSET"]);
        command.args(["--address", broker.address()]);
        let file = |end: &str| fs::File::create(log.with_extension(end)).unwrap();
        let child = command.stdout(file("out")).stderr(file("err")).spawn().expect("it can be run");
        Worker { child, log }
    }

    fn said(&self, end: &str) -> String {
        fs::read_to_string(self.log.with_extension(end)).unwrap()
    }

    fn wait_for_refusal(&self) {
        let deadline = Instant::now() + PATIENCE;
        while !self.said("err").starts_with("plimsoll queue work: DISK_FULL ") {
            assert!(Instant::now() < deadline, "{:?} {:?}", self.said("out"), self.said("err"));
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Which message it has done, once.
    fn ended(&mut self) -> u64 {
        assert!(self.child.wait().unwrap().success());
        let (out, err) = (self.said("out"), self.said("err"));
        assert_eq!(err.lines().count(), 1, "{err}");
        let offset = out.strip_suffix("\n1 confirmed, 0 given back\n").and_then(|offset| offset.parse().ok());
        offset.unwrap_or_else(|| panic!("{out}"))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Fails where it has ended already, which is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const LAST: &[u8] = b"after the flood";
const DISK_BYTES: u64 = 128 << 20;

/// What was acknowledged, by offset, and how.
type Stored = BTreeMap<u64, (Level, Vec<u8>)>;

/// Whether messages with an offset may still wait to be written.
enum Waiting {
    None,
    ForRoom,
}

/// A small disk, nine tenths of it taken by something else that can be removed.
struct Disk {
    data: PathBuf,
    image: Image,
}

impl Disk {
    fn new(run: &Run) -> Disk {
        let image = Image::ext4(run.scratch(), DISK_BYTES);
        let disk = Disk { data: image.path().join("data"), image };
        let (all, free) = room(disk.image.path());
        let other = fs::File::create(disk.something_else()).unwrap();
        rustix::fs::fallocate(&other, FallocateFlags::empty(), 0, free - all / 10).unwrap();
        let (all, free) = room(disk.image.path());
        assert!((all / 12..=all / 10).contains(&free), "{free} of {all} bytes are free");
        disk
    }

    fn make_room(&self) {
        fs::remove_file(self.something_else()).unwrap();
    }

    /// What is free goes to the same, to the last block.
    fn take_the_rest(&self) {
        const BLOCK: u64 = 4096;
        let other = fs::File::options().append(true).open(self.something_else()).unwrap();
        let (_, mut bytes) = room(self.image.path());
        while bytes >= BLOCK {
            let end = other.metadata().unwrap().len();
            match rustix::fs::fallocate(&other, FallocateFlags::empty(), end, bytes) {
                Ok(()) => {}
                Err(Errno::NOSPC) => bytes /= 2,
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn something_else(&self) -> PathBuf {
        self.image.path().join("something-else")
    }
}

/// Publishes at every level until the disk is full. Answers what was acknowledged.
fn fill(broker: &Broker, disk: &Disk) -> Stored {
    let mut client = connect(broker);
    let mut stored = Stored::new();
    let deadline = Instant::now() + PATIENCE;
    let mut refusals = 0;
    let mut n: u64 = 0;
    // Small ones at the end, so that it is really full.
    while refusals < 20 {
        let (_, free) = room(disk.image.path());
        assert!(Instant::now() < deadline, "{free} bytes are free and publishing goes on");
        let size = if refusals == 0 { 3000 } else { 10 };
        let values: Vec<Vec<u8>> = (0..16).map(|k| format!("{}-{}", n + k, "f".repeat(size)).into_bytes()).collect();
        n += 16;
        for (k, value) in values.iter().enumerate() {
            client.publish_nowait(None, Level::ALL[k % 3], &Publication::new(value)).unwrap();
        }
        for value in values {
            match client.recv_reply().unwrap() {
                Outcome::Stored { offset, level } => assert_eq!(stored.insert(offset, (level, value)), None),
                Outcome::Refused(error) if error.known() == Some(Code::DiskFull) => refusals += 1,
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(disk.something_else().exists());
    stored
}

fn refused(client: &mut Client) {
    let outcome = client.publish(None, Level::Durable, &Publication::new(&[b'x'; 60_000])).unwrap();
    assert!(matches!(&outcome, Outcome::Refused(error) if error.known() == Some(Code::DiskFull)), "{outcome:?}");
}

/// Without a restart and without a new connection.
fn publish_until_stored(client: &mut Client, value: &[u8]) -> u64 {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match client.publish(None, Level::Durable, &Publication::new(value)).unwrap() {
            Outcome::Stored { offset, .. } => return offset,
            Outcome::Refused(error) => assert_eq!(error.known(), Some(Code::DiskFull), "{error}"),
            Outcome::Unknown => panic!("{:?}", client.loss()),
        }
        assert!(Instant::now() < deadline, "there is room, and publishing does not resume");
        thread::sleep(Duration::from_millis(50));
    }
}

fn acknowledge_one(client: &mut Client, offset: u64) {
    let batch = client.fetch(None, "readers", 1, 1000, false).unwrap();
    assert!(matches!(batch.iter().next(), Some(Delivered::Message(message)) if message.offset == offset));
    assert_eq!(client.ack(None, "readers", offset).unwrap(), offset + 1);
}

/// What was acknowledged is there, whatever its level: none that has an offset is dropped.
fn check(broker: &Broker, stored: &Stored, waiting: Waiting) {
    let found = broker.read_all(None);
    let durable = found.len() as u64;
    for (offset, (_, value)) in stored.range(..durable) {
        assert!(found[*offset as usize] == *value, "offset {offset} holds another message");
    }
    let above = stored.range(durable..);
    match waiting {
        Waiting::None => assert_eq!(above.count(), 0, "acknowledged messages are lost"),
        Waiting::ForRoom => {
            assert!(
                above.map(|(_, (level, _))| *level).all(|level| level < Level::Durable),
                "a durable message is lost"
            );
        }
    }
}

fn connect(broker: &Broker) -> Client {
    Client::connect(broker.address(), Options::default()).unwrap()
}
