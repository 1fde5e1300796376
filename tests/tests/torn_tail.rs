//! P8: what was never acknowledged `DURABLE` may look like anything, and never prevents a start.

use plimsoll_tests::broker::{Broker, Connection};
use plimsoll_tests::files;
use std::fs;

#[test]
fn a_torn_tail_is_cut_and_told() {
    for tail in [&b"\0\0\0\x20"[..], &[0xff; 700], b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01"] {
        let data = tempfile::tempdir().unwrap();
        let broker = Broker::start(data.path(), &[]);
        assert_eq!(Connection::open(broker.address()).ask("PUB DURABLE kept"), "OK 0 DURABLE");
        assert!(broker.stop().success());
        let segment = files(data.path(), ".log").pop().expect("a segment");
        let mut bytes = fs::read(&segment).unwrap();
        bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).expect("a message") + 1);
        bytes.extend_from_slice(tail);
        fs::write(&segment, bytes).unwrap();

        let broker = Broker::start(data.path(), &[]);
        let recovery = broker.wait_for_line("RECOVERY topic=default");
        let told = format!(" status=TRUNCATED_TAIL records=1 durable=1 truncatedBytes={} ", tail.len());
        assert!(recovery.contains(&told) && recovery.contains(" truncatedAtOffset=1 "), "{recovery}");
        let mut connection = Connection::open(broker.address());
        assert_eq!(connection.ask("READ 0 2"), "MSG 0 kept");
        assert_eq!(connection.line(), "END 1");
        assert_eq!(connection.ask("PUB DURABLE the next"), "OK 1 DURABLE");
        broker.kill();
        drop(broker);
        let broker = Broker::start(data.path(), &[]);
        let recovery = broker.wait_for_line("RECOVERY topic=default");
        assert!(recovery.contains(" status=OK records=2 durable=2 "), "it was cut once and for all: {recovery}");
    }
}
