//! Segments, limits, and what is answered at them.

use crate::rig::{Run, compare, events};
use std::time::{Duration, Instant};

/// P2, P13, P14.
pub(crate) fn segments_and_rejects(run: &Run) -> String {
    let events = events();
    let broker = run.broker(&run.data(), &["--segment-bytes", "4096", "--max-payload", "1000"]);
    let mut talk = run.connect(&broker);
    for (offset, event) in events[..100].iter().enumerate() {
        talk.publish("DURABLE", event, offset as u64);
    }
    let acknowledged = (0..).zip(events[..100].iter().map(|event| event.as_bytes()));
    assert_eq!(compare(&broker.read_all(None), acknowledged), (0, 0));
    let status = talk.ask("STATUS");
    let segments: u64 = field(&status, "segments=");
    assert!(segments >= 4, "{status}");

    let too_large = talk.ask(&format!("PUBN DURABLE 1001\n{}", "x".repeat(1001)));
    assert!(too_large.starts_with("ERR TOO_LARGE ") && too_large.contains("1000"), "{too_large}");
    talk.publish("DURABLE", &"x".repeat(1000), 100);

    assert_eq!(talk.ask("SEEK reader 101"), "SOUGHT 101");
    let begun = Instant::now();
    assert_eq!(talk.ask("FETCH reader 10 300"), "END 0");
    let waited = begun.elapsed();
    run.note(format!("waited {} ms", waited.as_millis()));
    assert!(waited >= Duration::from_millis(300), "{waited:?}");

    let not_delivered = talk.ask("ACK reader 200");
    assert!(not_delivered.starts_with("ERR NOT_DELIVERED "), "{not_delivered}");
    let mut second = run.connect(&broker);
    let busy = second.ask("FETCH reader 10 0");
    assert!(busy.starts_with("ERR GROUP_BUSY "), "{busy}");
    assert!(broker.stop().success());

    queue_full(run);
    format!(
        "100 of 100 read back identical from {segments} segments; limit + 1: TOO_LARGE, the limit itself: taken; an empty FETCH: END 0 after its 300 ms or a little more; NOT_DELIVERED; GROUP_BUSY; QUEUE_FULL when 4 messages wait for a disk that hangs"
    )
}

/// Two clients before a disk that hangs: the queue fills, and who comes too late is told.
fn queue_full(run: &Run) {
    let data = run.scratch().join("stalled");
    let broker = run.injected(&data, &["--queue-messages", "4"], "hold write 1 of default/log/");
    let (mut first, mut second) = (run.connect(&broker), run.connect(&broker));
    // The first is in the write that hangs; the queue holds those behind it.
    for offset in 0..5 {
        let talk = if offset % 2 == 0 { &mut first } else { &mut second };
        talk.publish("ACCEPTED", "waits", offset);
    }
    let full = second.ask("PUB ACCEPTED one too many");
    assert!(full.starts_with("ERR QUEUE_FULL ") && full.contains("limits are 4"), "{full}");
    broker.kill();
}

fn field(line: &str, name: &str) -> u64 {
    let word = line.split(' ').find_map(|word| word.strip_prefix(name));
    word.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no {name} in {line}"))
}
