//! Work queues on the real binary: leases and counts over a kill, consumers that crash, a worker that outlives its broker.

use plimsoll::client::{Client, Delivered, Options, Publication};
use plimsoll_core::layout;
use plimsoll_core::protocol::Level;
use plimsoll_tests::broker::{Broker, Connection, binary, serve};
use plimsoll_tests::work::{self, Plan, QUEUE, TOPIC};
use std::fs;
use std::io::{BufRead, BufReader};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const SMALL: Plan = Plan {
    messages: 1_000,
    consumers: 4,
    work: Duration::from_millis(3),
    kill_every: Duration::from_millis(250),
    seed: 1,
};

fn start(data: &Path, address: Option<&str>) -> Broker {
    let listen = address.map_or(vec![], |address| vec!["--listen", address]);
    Broker::start(data, &[work::SETTINGS, &listen].concat())
}

#[test]
fn p15_crashing_consumers_and_a_killed_broker_lose_nothing_and_repeat_nothing_confirmed() {
    let data = tempfile::tempdir().unwrap();
    let tally = work::until_all_is_done(&SMALL, &data.path().join("data"), start);
    assert!(tally.kills >= 1 && tally.crashes >= 1, "{tally:?}");
    assert_eq!((tally.applied, tally.dead), (995, 5), "{tally:?}");
    assert!(tally.journal_bytes_max < 64 << 10, "{tally:?}");
}

/// What somebody does behind the back of the broker that is started as the n-th, from 0 on: before it is started, and when it serves.
type Foul = fn(data: &Path, n: u64, broker: Option<&Broker>);

/// The check of the test above, and of the evidence, finds what it is there to find.
#[test]
fn a_queue_that_loses_or_repeats_is_found() {
    let fouls: [(&str, Foul); 5] = [
        ("was applied by nobody", confirm_what_is_not_done),
        ("the dead letters, and how often each was handed out", confirm_what_cannot_be_done),
        ("is among the dead letters twice", bury_again),
        ("was confirmed, and is handed out again", |data, n, broker| forget(data, n, broker, 2)),
        ("after a restart there is something to do again", |data, n, broker| forget(data, n, broker, LAST)),
    ];
    for (told, foul) in fouls {
        let data = tempfile::tempdir().unwrap();
        let starts = AtomicU64::new(0);
        let start = |data: &Path, address: Option<&str>| {
            let n = starts.fetch_add(1, Ordering::Relaxed);
            let n = if n > 0 && address.is_none() { LAST } else { n };
            foul(data, n, None);
            let broker = start(data, address);
            foul(data, n, Some(&broker));
            broker
        };
        let run = AssertUnwindSafe(|| work::until_all_is_done(&SMALL, &data.path().join("data"), start));
        let failure = catch_unwind(run).expect_err(told);
        let failure = failure.downcast_ref::<String>().map(String::as_str).or(failure.downcast_ref::<&str>().copied());
        assert!(failure.is_some_and(|failure| failure.contains(told)), "{told}: {failure:?}");
    }
}

/// The start after all is done.
const LAST: u64 = u64::MAX;

fn confirm_what_is_not_done(_: &Path, n: u64, broker: Option<&Broker>) {
    confirm_where(broker.filter(|_| n == 1), |message| !work::is_poison(message));
}

fn confirm_what_cannot_be_done(_: &Path, n: u64, broker: Option<&Broker>) {
    confirm_where(broker.filter(|_| n == 1), work::is_poison);
}

/// Confirms one message, without having done it.
fn confirm_where(broker: Option<&Broker>, is: fn(u64) -> bool) {
    let Some(broker) = broker else { return };
    let mut client = Client::connect(broker.address(), Options::default()).unwrap();
    let batch = client.reserve(Some(TOPIC), QUEUE, 1_000, 1_000, 60_000, false).unwrap();
    // One that nobody has had before.
    let found = batch.iter().filter_map(|delivered| match delivered {
        Delivered::Message(message) => Some(message.offset).filter(|offset| is(*offset)),
        Delivered::Gap { .. } => None,
    });
    let found = found.last().expect("half is not done yet");
    client.confirm(Some(TOPIC), QUEUE, &[found]).unwrap();
}

fn bury_again(_: &Path, n: u64, broker: Option<&Broker>) {
    let Some(broker) = broker.filter(|_| n != LAST) else { return };
    let mut client = Client::connect(broker.address(), Options::default()).unwrap();
    let dead = layout::dead_letters(TOPIC);
    // At first nothing has died.
    let Ok(batch) = client.read(Some(&dead), 0, 1, true) else { return };
    let Some(Delivered::Message(letter)) = batch.iter().next() else { return };
    let (value, headers) = (letter.value.to_vec(), letter.headers().map(|(name, value)| (name.to_vec(), value.into())));
    let headers: Vec<(Vec<u8>, Vec<u8>)> = headers.collect();
    let again = Publication { value: &value, headers: &headers, ..Publication::default() };
    client.publish(Some(&dead), Level::Durable, &again).unwrap();
}

/// What the queue's journal was at the first restart it is again at another.
fn forget(data: &Path, n: u64, broker: Option<&Broker>, at: u64) {
    let journal = data.join(layout::queue(&layout::topic(TOPIC), QUEUE));
    let kept = data.with_extension("kept");
    let (from, to) = match n {
        _ if broker.is_some() => return,
        1 => (&journal, &kept),
        n if n == at => (&kept, &journal),
        _ => return,
    };
    let _ = fs::remove_dir_all(to);
    copy(from, to);
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(fs::copy(entry.path(), &to).unwrap()),
        }
    }
}

#[test]
fn after_a_kill_leases_are_gone_counts_are_not_and_delays_go_on() {
    let data = tempfile::tempdir().unwrap();
    let broker = Broker::start(data.path(), &[]);
    let mut client = Connection::open(broker.address());
    for n in 0..4 {
        assert_eq!(client.ask(&format!("PUB DURABLE {n}")), format!("OK {n} DURABLE"));
    }
    client.send("RESERVE q 4 0 3600000\nCONFIRM q 1\nABORT q 2 3600000\nABORT q 3 1\n");
    let replies: Vec<String> = (0..8).map(|_| client.line()).collect();
    assert_eq!(replies[5..], ["CONFIRMED 1", "ABORTED 2", "ABORTED 3"]);
    broker.kill();
    drop(broker);

    let broker = Broker::start(data.path(), &[]);
    let recovery = broker.wait_for_line("RECOVERY topic=default queue=q ");
    assert!(recovery.contains(" status=OK ") && recovery.contains(" pending=3 bytes="), "{recovery}");
    let mut client = Connection::open(broker.address());
    client.send("RESERVE q 9 0 1000 META\n");
    let mut replies: Vec<String> = Vec::new();
    while !replies.last().is_some_and(|line| line.starts_with("END ")) {
        replies.push(client.line());
    }
    let offsets: Vec<(&str, bool)> = replies
        .iter()
        .filter_map(|line| Some((line.strip_prefix("MSGX ")?.split(' ').next()?, line.ends_with(" deliveries=2"))))
        .collect();
    assert_eq!(offsets, [("0", true), ("3", true)], "{replies:?}");
    let pending = client.ask("PENDING q 2 1");
    assert!(pending.starts_with("PENDING 2 deliveries=1 state=delayed dueMs=35"), "{pending}");
    assert_eq!(client.line(), "END 1");
    assert!(broker.stop().success());
}

#[test]
fn a_worker_goes_on_after_a_crash_of_the_broker() {
    let data = tempfile::tempdir().unwrap();
    let broker = Broker::start(data.path(), &[]);
    let address = broker.address().to_owned();
    let publish = |value: &str| {
        let mut client = Connection::open(&address);
        assert!(client.ask(&format!("PUB DURABLE {value}")).starts_with("OK "));
    };
    publish("before");
    let mut worker = Command::new(binary())
        .args(["queue", "work", "q", "--count", "2", "--exec", "cat; echo", "--address", &address])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(worker.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert_eq!(lines.next().as_deref(), Some("before"));
    // The message is confirmed after its command has ended, and only a worker that was told so asks for the next one. A crash in between
    // would hand it out again.
    while !Connection::open(&address)
        .ask("QUEUES")
        .contains(" confirmed=1 next=1 ready=0 reserved=0 delayed=0 dying=0 waiting=1 ")
    {
        std::thread::sleep(Duration::from_millis(10));
    }
    broker.kill();
    drop(broker);
    let broker = Broker::spawn(serve(binary(), data.path(), &["--listen", &address]));
    publish("after");
    assert_eq!(lines.next().as_deref(), Some("after"));
    assert_eq!(lines.next().as_deref(), Some("2 confirmed, 0 given back"));
    let output = worker.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && error.contains("connecting again"), "{error}");
    assert!(broker.stop().success());
}

/// Each consumer that is served makes way for the next. On a stack of half a MiB they must not be served inside of one another.
#[test]
fn p13_hundreds_of_waiting_consumers_are_served_at_once_in_their_order() {
    const CONSUMERS: usize = 400;
    let data = tempfile::tempdir().unwrap();
    let served = serve(binary(), data.path(), &[]);
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -s 512; exec \"$@\"", "sh"]).arg(served.get_program()).args(served.get_args());
    let broker = Broker::spawn(command);
    let mut consumers: Vec<Connection> = (0..CONSUMERS).map(|_| Connection::open(broker.address())).collect();
    let mut client = Connection::open(broker.address());
    for (waiting, consumer) in consumers.iter_mut().enumerate() {
        consumer.send("RESERVE q 1 60000 60000\n");
        let mut told = String::new();
        while !told.contains(&format!(" waiting={} ", waiting + 1)) {
            told = client.ask("QUEUES");
            // The first of them has to make the queue.
            if told != "END 0" {
                assert_eq!(client.line(), "END 1");
            }
        }
    }
    let batch = "\0\0\0\u{1}x".repeat(CONSUMERS);
    assert_eq!(client.ask(&format!("PUBB DURABLE {CONSUMERS} {}\n{batch}", batch.len())), "OK 0 DURABLE 400");
    for (offset, consumer) in consumers.iter_mut().enumerate() {
        assert_eq!(consumer.line(), format!("MSG {offset} x"));
    }
    assert!(broker.stop().success());
}
