//! PURGE and DELETE on the real binary: what goes gives its space back at once, whoever was reading it (P12).

use plimsoll_tests::broker::{Broker, Connection, PATIENCE};
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

const SEGMENT: &str = "1048576";

fn fill(connection: &mut Connection, topic: &str, messages: u64) {
    let value = "v".repeat(60_000);
    for n in 0..messages {
        assert_eq!(connection.ask(&format!("PUB @{topic} WRITTEN {value}")), format!("OK {n} WRITTEN"));
    }
}

/// Asks for raw frames and takes none of them.
fn stalled(broker: &Broker, topic: &str) -> TcpStream {
    let mut stream = TcpStream::connect(broker.address()).unwrap();
    for _ in 0..50 {
        stream.write_all(format!("READRAW @{topic} 0 1000000\n").as_bytes()).unwrap();
    }
    std::thread::sleep(Duration::from_millis(300));
    stream
}

#[test]
fn a_stalled_reader_of_purged_segments_holds_no_file_open() {
    let data = tempfile::tempdir().unwrap();
    let broker = Broker::start(data.path(), &["--segment-bytes", SEGMENT]);
    let mut connection = Connection::open(broker.address());
    fill(&mut connection, "default", 60);
    let reader = stalled(&broker, "default");
    assert_eq!(connection.ask("PUB DURABLE last"), "OK 60 DURABLE");
    assert_eq!(connection.ask("PURGE 61"), "PURGED 61");
    broker.holds_no_deleted_file_open();
    // The one segment that is left is the new, empty one.
    let log = data.path().join("topics/default/log");
    let begun = Instant::now();
    while std::fs::read_dir(&log).unwrap().count() > 1 {
        assert!(begun.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(connection.ask("PUB DURABLE next"), "OK 61 DURABLE");
    connection.send("READ 0 10\n");
    assert_eq!([connection.line(), connection.line(), connection.line()], ["GAP 0 61", "MSG 61 next", "END 1"]);
    drop(reader);
    assert!(broker.stop().success());
}

#[test]
fn a_stalled_reader_of_a_deleted_topic_holds_no_file_open() {
    let data = tempfile::tempdir().unwrap();
    let broker = Broker::start(data.path(), &["--segment-bytes", SEGMENT]);
    let mut connection = Connection::open(broker.address());
    assert_eq!(connection.ask("CREATE @t"), "CREATED t");
    fill(&mut connection, "t", 40);
    let reader = stalled(&broker, "t");
    assert_eq!(connection.ask("DELETE @t"), "DELETED t");
    broker.holds_no_deleted_file_open();
    assert!(!data.path().join("topics/t").exists() && !data.path().join("topics/t.tmp").exists());
    assert_eq!(connection.ask("CREATE @t"), "CREATED t");
    assert_eq!(connection.ask("PUB @t DURABLE new"), "OK 0 DURABLE");
    drop(reader);
    assert!(broker.stop().success());
}
