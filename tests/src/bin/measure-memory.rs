//! Measures a broker with many stored messages: resident memory, and how fast a start reads them from the page cache.
//! `tests/long/memory` runs it.

use plimsoll_tests::broker::Broker;
use plimsoll_tests::memory::{peak_kib, publish, resident_kib};
use std::time::Instant;

const STARTS: u32 = 5;

fn main() {
    let messages: u64 = std::env::args().nth(1).map_or(10_000_000, |text| text.parse().expect("a number of messages"));
    let data = tempfile::tempdir().expect("a temporary directory");
    let broker = Broker::start(data.path(), &[]);
    println!("resident at the start: {}", mib(resident_kib(broker.pid())));
    let begun = Instant::now();
    publish(broker.address(), messages);
    println!("{messages} messages of 128 bytes published WRITTEN in {:.1} s", begun.elapsed().as_secs_f64());
    println!("resident with them: {}, at most: {}", mib(resident_kib(broker.pid())), mib(peak_kib(broker.pid())));
    assert!(broker.stop().success());

    let segments = plimsoll_tests::files(data.path(), ".log");
    let bytes: u64 = segments.iter().map(|path| std::fs::metadata(path).expect("a segment").len()).sum();
    println!("{bytes} bytes in {} segments", segments.len());
    for _ in 0..STARTS {
        let broker = Broker::start(data.path(), &[]);
        let recovery = broker.wait_for_line("RECOVERY ");
        let field = |name: &str| recovery.split(' ').find_map(|word| word.strip_prefix(name)).expect("a field");
        assert_eq!(field("records=").parse(), Ok(messages), "{recovery}");
        let elapsed_ms: u64 = field("elapsedMs=").parse().expect("a number");
        println!(
            "a start reads them in {elapsed_ms} ms: {:.2} GB/s; resident: {}, at most: {}",
            bytes as f64 / 1e6 / elapsed_ms.max(1) as f64,
            mib(resident_kib(broker.pid())),
            mib(peak_kib(broker.pid()))
        );
        assert!(broker.stop().success());
    }
}

fn mib(kib: u64) -> String {
    format!("{:.1} MiB", kib as f64 / 1024.0)
}
