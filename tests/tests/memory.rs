//! P13: memory does not grow with what is stored. `tests/long/memory` measures the same with ten million messages.

use plimsoll_tests::broker::Broker;
use plimsoll_tests::memory::{peak_kib, publish, resident_kib};

const WARM: u64 = 500_000;
const MORE: u64 = 2_000_000;

#[test]
fn two_million_messages_cost_less_than_a_byte_each() {
    let data = tempfile::tempdir().unwrap();
    let broker = Broker::start(data.path(), &[]);
    // What is kept of the newest messages, and every buffer, has its full size after these. What is left is the noise of the
    // allocator, up to a megabyte.
    publish(broker.address(), WARM);
    let before = resident_kib(broker.pid());
    publish(broker.address(), MORE);
    let grown_bytes = resident_kib(broker.pid()).saturating_sub(before) * 1024;
    assert!(grown_bytes < MORE, "{grown_bytes} bytes for {MORE} messages more");
    assert!(peak_kib(broker.pid()) < 64 << 10, "{} KiB at most", peak_kib(broker.pid()));
    assert!(broker.stop().success());

    // The same after a start, which reads all of it.
    let broker = Broker::start(data.path(), &[]);
    let recovery = broker.wait_for_line("RECOVERY ");
    assert!(recovery.contains(&format!(" status=OK records={} ", WARM + MORE)), "{recovery}");
    assert!(resident_kib(broker.pid()) < 64 << 10, "{} KiB after a start", resident_kib(broker.pid()));
    assert!(broker.stop().success());
}
