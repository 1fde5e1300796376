//! Work queues on the real binary: leases and counts over a kill, consumers that crash, a worker that outlives its broker.

use plimsoll_tests::broker::{Broker, Connection, binary, serve};
use plimsoll_tests::work::{self, Plan};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

#[test]
fn p15_crashing_consumers_and_a_killed_broker_lose_nothing_and_repeat_nothing_confirmed() {
    let data = tempfile::tempdir().unwrap();
    let plan = Plan {
        messages: 1_000,
        consumers: 4,
        work: Duration::from_millis(2),
        kill_every: Duration::from_millis(300),
        seed: 1,
    };
    let tally = work::until_all_is_done(&plan, &data.path().join("data"), |data, address| {
        let listen = address.map_or(vec![], |address| vec!["--listen", address]);
        Broker::start(data, &[work::SETTINGS, &listen].concat())
    });
    assert!(tally.kills >= 1 && tally.crashes >= 1, "{tally:?}");
    assert_eq!((tally.applied, tally.dead), (995, 5), "{tally:?}");
    assert!(tally.journal_bytes_max < 64 << 10, "{tally:?}");
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
    // The message is confirmed after its command has ended; a crash in between would hand it out again.
    while Connection::open(&address).ask("QUEUES").contains(" confirmed=0 ") {
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
