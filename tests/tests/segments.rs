//! P13: memory does not grow with the number and size of closed segments, whose indexes lie beside them. `tests/long/segments` measures
//! the same up to the number that 100 GB have.

use plimsoll_tests::broker::Broker;
use plimsoll_tests::memory::{publish_bytes, read_everywhere, resident_kib};

const SEGMENT_BYTES: u64 = 256 << 10;
/// 100 GB in segments of 64 MiB.
const SEGMENTS_OF_100_GB: u64 = 1500;

#[test]
fn a_start_with_100_gb_of_segments_would_take_less_than_64_mib() {
    let data = tempfile::tempdir().unwrap();
    let args = ["--segment-bytes", "256KiB"];
    let mut measured = Vec::new();
    for wanted in [20, 220] {
        let broker = Broker::start(data.path(), &args);
        let held = plimsoll_tests::files(data.path(), ".log").len() as u64;
        publish_bytes(broker.address(), (wanted - held) * SEGMENT_BYTES);
        assert!(broker.stop().success());
        let segments = plimsoll_tests::files(data.path(), ".log").len() as u64;
        assert!(segments >= wanted, "{segments} segments");
        // Each closed one has its index beside it.
        assert_eq!(plimsoll_tests::files(data.path(), ".index").len() as u64, segments - 1);
        let broker = Broker::start(data.path(), &args);
        read_everywhere(broker.address(), 300);
        measured.push((segments, resident_kib(broker.pid())));
        assert!(broker.stop().success());
    }
    let [(few, before), (many, after)] = measured[..] else { panic!("{measured:?}") };
    let grown = after.saturating_sub(before) * SEGMENTS_OF_100_GB / (many - few);
    assert!(after + grown < 64 << 10, "{before} KiB with {few} segments, {after} KiB with {many}");
}
