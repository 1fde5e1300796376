//! Measures what closed segments cost a broker that has just started: resident memory as the log grows, and with as many segments
//! as 100 GB have. `tests/long/segments` runs it. Fails above the bound.

use plimsoll_tests::broker::Broker;
use plimsoll_tests::memory::{publish_bytes, read_everywhere, resident_kib};
use std::process::ExitCode;

/// A start with 100 GB of closed segments may take so much.
const BOUND_MIB: f64 = 64.0;
const GB: u64 = 1_000_000_000;
/// 100 GB in segments of 64 MiB.
const SEGMENTS: u64 = 100 * GB / (64 << 20) + 1;

fn main() -> ExitCode {
    let data = tempfile::tempdir().expect("a temporary directory");
    let mut measured: Vec<(f64, f64)> = Vec::new();
    for gb in [1, 2, 4] {
        let held = bytes(data.path());
        let broker = Broker::start(data.path(), &[]);
        publish_bytes(broker.address(), gb * GB - held);
        assert!(broker.stop().success());
        let (resident, read) = start(data.path(), &[]);
        let held = bytes(data.path()) as f64 / GB as f64;
        println!(
            "{held:.2} GB in segments of 64 MiB: {resident:.1} MiB after a start, {read:.1} MiB after reading everywhere"
        );
        measured.push((held, resident));
    }
    let (first, last) = (measured[0], measured[measured.len() - 1]);
    let growth = ((last.1 - first.1) / (last.0 - first.0)).max(0.0);
    let at_100 = last.1 + growth * (100.0 - last.0);
    println!("{growth:.3} MiB more for each GB; at 100 GB that is {at_100:.1} MiB");
    drop(data);

    let data = tempfile::tempdir().expect("a temporary directory");
    let small = ["--segment-bytes", "1MiB"];
    let broker = Broker::start(data.path(), &small);
    publish_bytes(broker.address(), SEGMENTS << 20);
    assert!(broker.stop().success());
    let segments = plimsoll_tests::files(data.path(), ".log").len() as u64;
    assert!(segments >= SEGMENTS, "{segments} segments");
    let (resident, read) = start(data.path(), &small);
    println!(
        "{segments} segments, as many as 100 GB have: {resident:.1} MiB after a start, {read:.1} MiB after reading everywhere"
    );
    let worst = at_100.max(resident).max(read);
    if worst > BOUND_MIB {
        println!("over the bound of {BOUND_MIB} MiB");
        return ExitCode::FAILURE;
    }
    println!("within the bound of {BOUND_MIB} MiB");
    ExitCode::SUCCESS
}

/// Resident MiB after a start, and after reads in every segment.
fn start(data: &std::path::Path, args: &[&str]) -> (f64, f64) {
    let broker = Broker::start(data, args);
    let mib = || resident_kib(broker.pid()) as f64 / 1024.0;
    let started = mib();
    read_everywhere(broker.address(), 2000);
    let read = mib();
    assert!(broker.stop().success());
    (started, read)
}

fn bytes(data: &std::path::Path) -> u64 {
    plimsoll_tests::files(data, ".log").iter().map(|path| std::fs::metadata(path).expect("a segment").len()).sum()
}
