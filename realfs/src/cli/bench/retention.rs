//! What rolls and retention cost those who wait for a force: the same load on two brokers in turn, one of which rolls and removes
//! several segments a second.

use super::super::connection::{Failure, output};
use super::super::table::Table;
use super::broker::Broker;
use super::load::{self, Load, histogram};
use super::report::{micros, rounded};
use super::{Args, Interrupt, Variant, directory, progress};
use hdrhistogram::Histogram;
use plimsoll_core::protocol::Level;
use serde_json::json;
use std::io::Write;

/// Enough producers that a roll, which all of them wait for, shows in one message of a thousand.
const LOAD: Load = Load { producers: 4, in_flight: 16, size: 128, level: Level::Durable };

/// One broker over all rounds.
struct Case {
    name: &'static str,
    broker: Broker,
    messages: u64,
    seconds: f64,
    latency: Histogram<u64>,
    /// Messages that retention has removed.
    removed: u64,
}

/// Measures and prints.
pub(super) fn run(args: &Args, interrupt: &Interrupt) -> Result<(), Failure> {
    let dir = directory(args)?;
    let mut cases = Vec::new();
    for (name, variant) in [("without", Variant::Default), ("with", Variant::Retained)] {
        let broker = Broker::start(None, dir.path(), variant, args.size_max())?;
        cases.push(Case { name, broker, messages: 0, seconds: 0.0, latency: histogram(), removed: 0 });
    }
    let rounds = args.rounds();
    let bar = progress(u64::from(rounds) * cases.len() as u64);
    for _ in 0..rounds {
        for case in &mut cases {
            bar.set_message(case.name);
            let topic = case.broker.topic();
            let mut client = case.broker.client()?;
            let before = client.status(Some(topic))?;
            let slice = load::run(&case.broker.address, topic, &LOAD, args.limit(), before.next, interrupt)?;
            let after = client.status(Some(topic))?;
            case.messages += slice.messages;
            case.seconds += slice.elapsed.as_secs_f64();
            case.latency.add(slice.latency).expect("all histograms have the same bounds");
            case.removed += after.start - before.start;
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
                "removed": case.removed,
                "p50_us": rounded(micros(&case.latency, 0.5), 1),
                "p99_us": rounded(micros(&case.latency, 0.99), 1),
                "p999_us": rounded(micros(&case.latency, 0.999), 1),
                "max_us": rounded(micros(&case.latency, 1.0), 1),
            })
        };
        let rows: Vec<_> = cases.iter().map(row).collect();
        writeln!(out, "{}", json!({ "cases": rows, "p999_ratio": rounded(ratio, 3) }))?;
    } else {
        let heads = ["rolls and retention", "messages/s", "removed", "p50 µs", "p99 µs", "p99.9 µs", "max µs"];
        let mut table = Table::new(&heads);
        for case in &cases {
            let latency = [0.5, 0.99, 0.999, 1.0].map(|quantile| format!("{:.0}", micros(&case.latency, quantile)));
            let rate = format!("{:.0}", case.messages as f64 / case.seconds);
            let counts = [rate, case.removed.to_string()];
            table.row([case.name.to_owned()].into_iter().chain(counts).chain(latency));
        }
        table.print(&mut out)?;
        writeln!(out, "\np99.9 with, to without: {ratio:.2}")?;
    }
    out.flush()?;
    cases.into_iter().try_for_each(|case| case.broker.stop())
}
