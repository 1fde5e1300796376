//! What something that the broker does by itself costs those who wait for a force: the same load on two brokers in turn, of which only
//! one does it.

use super::super::connection::{Failure, output};
use super::super::table::Table;
use super::broker::Broker;
use super::load::{self, Load, histogram};
use super::report::{micros, rounded};
use super::{Args, Interrupt, Variant, directory, progress};
use crate::client::{Client, Delivered, Error, Options};
use hdrhistogram::Histogram;
use plimsoll_core::protocol::{Level, TopicStatus};
use serde_json::json;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Enough producers that a roll, which all of them wait for, shows in one message of a thousand.
const LOAD: Load = Load { producers: 4, in_flight: 16, size: 128, level: Level::Durable };

/// What is done beside the load.
pub(super) struct Beside {
    name: &'static str,
    without: Variant,
    with: Variant,
    /// What shows that it was done, and how much of it.
    counted: &'static str,
    count: fn(&TopicStatus) -> u64,
    /// Whether a consumer does the messages meanwhile, of both brokers.
    consumer: bool,
}

/// Rolls and removes several segments a second.
pub(super) const RETENTION: Beside = Beside {
    name: "rolls and retention",
    without: Variant::Default,
    with: Variant::Retained,
    counted: "removed",
    count: |status| status.start,
    consumer: false,
};

/// Packs several segments a second.
pub(super) const PACKING: Beside = Beside {
    name: "packing",
    without: Variant::Unpacked,
    with: Variant::Packed,
    counted: "packed",
    count: |status| status.packed,
    consumer: true,
};

/// One broker over all rounds.
struct Case {
    name: &'static str,
    broker: Broker,
    messages: u64,
    seconds: f64,
    latency: Histogram<u64>,
    /// How much of it was done.
    count: u64,
}

/// Measures and prints.
pub(super) fn run(beside: &Beside, args: &Args, interrupt: &Interrupt) -> Result<(), Failure> {
    let dir = directory(args)?;
    let mut cases = Vec::new();
    for (name, variant) in [("without", beside.without), ("with", beside.with)] {
        let broker = Broker::start(None, dir.path(), variant, args.size_max())?;
        cases.push(Case { name, broker, messages: 0, seconds: 0.0, latency: histogram(), count: 0 });
    }
    let rounds = args.rounds();
    let bar = progress(u64::from(rounds) * cases.len() as u64);
    for _ in 0..rounds {
        for case in &mut cases {
            bar.set_message(case.name);
            case.round(beside, args, interrupt)?;
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let [without, with] = &cases[..] else { unreachable!("two cases") };
    let ratio = micros(&with.latency, 0.999) / micros(&without.latency, 0.999);
    let mut out = output();
    if args.json {
        let row = |case: &Case| {
            json!({
                "case": case.name,
                "messages": case.messages,
                "messages_per_second": rounded(case.messages as f64 / case.seconds, 1),
                beside.counted: case.count,
                "p50_us": rounded(micros(&case.latency, 0.5), 1),
                "p99_us": rounded(micros(&case.latency, 0.99), 1),
                "p999_us": rounded(micros(&case.latency, 0.999), 1),
                "max_us": rounded(micros(&case.latency, 1.0), 1),
            })
        };
        let rows: Vec<_> = cases.iter().map(row).collect();
        writeln!(out, "{}", json!({ "cases": rows, "p999_ratio": rounded(ratio, 3) }))?;
    } else {
        let heads = [beside.name, "messages/s", beside.counted, "p50 µs", "p99 µs", "p99.9 µs", "max µs"];
        let mut table = Table::new(&heads);
        for case in &cases {
            let latency = [0.5, 0.99, 0.999, 1.0].map(|quantile| format!("{:.0}", micros(&case.latency, quantile)));
            let rate = format!("{:.0}", case.messages as f64 / case.seconds);
            let counts = [rate, case.count.to_string()];
            table.row([case.name.to_owned()].into_iter().chain(counts).chain(latency));
        }
        table.print(&mut out)?;
        writeln!(out, "\np99.9 with, to without: {ratio:.2}")?;
    }
    out.flush()?;
    cases.into_iter().try_for_each(|case| case.broker.stop())
}

impl Case {
    fn round(&mut self, beside: &Beside, args: &Args, interrupt: &Interrupt) -> Result<(), Failure> {
        let topic = self.broker.topic();
        let mut client = self.broker.client()?;
        let before = client.status(Some(topic))?;
        let (address, over) = (&self.broker.address, AtomicBool::new(false));
        let slice = thread::scope(|scope| {
            let consumer = beside.consumer.then(|| scope.spawn(|| consume(address, topic, &over)));
            let slice = load::run(address, topic, &LOAD, args.limit(), before.next, interrupt);
            over.store(true, Ordering::Release);
            consumer.map_or(Ok(()), |consumer| consumer.join().expect("it does not panic"))?;
            slice
        })?;
        let after = client.status(Some(topic))?;
        self.messages += slice.messages;
        self.seconds += slice.elapsed.as_secs_f64();
        self.latency.add(slice.latency).expect("all histograms have the same bounds");
        self.count += (beside.count)(&after) - (beside.count)(&before);
        Ok(())
    }
}

const QUEUE: &str = "bench";
const LEASE_MS: u64 = 3_600_000;
/// Messages that are reserved, and confirmed, at a time.
const AT_ONCE: u64 = 1_000;
/// One message in so many is done only at the end of a round, so that segments are packed and don't go.
const KEPT: u64 = 10;

/// Does messages until it is over and nothing is left.
fn consume(address: &str, topic: &str, over: &AtomicBool) -> Result<(), Error> {
    let mut client = Client::connect(address, Options::default())?;
    let mut kept = Vec::new();
    loop {
        let is_over = over.load(Ordering::Acquire);
        let batch = client.reserve(Some(topic), QUEUE, AT_ONCE, if is_over { 0 } else { 50 }, LEASE_MS, false)?;
        let offsets = batch.iter().filter_map(|delivered| match delivered {
            Delivered::Message(message) => Some(message.offset),
            Delivered::Gap { .. } => None,
        });
        let (later, now): (Vec<u64>, Vec<u64>) = offsets.partition(|offset| offset % KEPT == 0);
        if is_over && later.is_empty() && now.is_empty() {
            break;
        }
        if !now.is_empty() {
            client.confirm(Some(topic), QUEUE, &now)?;
        }
        kept.extend(later);
    }
    kept.chunks(AT_ONCE as usize).try_for_each(|offsets| client.confirm(Some(topic), QUEUE, offsets))
}
