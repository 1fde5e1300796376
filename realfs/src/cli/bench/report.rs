//! What was measured, as a table for people and as JSON.

use super::super::connection::Failure;
use super::super::table::Table;
use super::broker::Memory;
use super::load::{Slice, histogram};
use super::{Case, Variant};
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use std::io::{self, Write};
use std::time::Duration;

/// Everything measured.
pub(super) struct Report {
    pub(super) published: Vec<Published>,
    pub(super) read: Vec<ReadCase>,
}

/// A case of publishing, over all rounds.
pub(super) struct Published {
    case: Case,
    messages: u64,
    latency: Histogram<u64>,
    forces: u64,
    queue_full: u64,
    verified: bool,
    memory: Option<Memory>,
    rounds: Vec<Round>,
}

struct Round {
    rate: f64,
    raw_append: f64,
    raw_zeroed: f64,
}

impl Published {
    pub(super) fn new(case: Case) -> Published {
        Published {
            case,
            messages: 0,
            latency: histogram(),
            forces: 0,
            queue_full: 0,
            verified: true,
            memory: None,
            rounds: Vec::new(),
        }
    }

    pub(super) fn add(
        &mut self,
        slice: Slice,
        forces: u64,
        raw_append: f64,
        raw_zeroed: f64,
        verified: bool,
        memory: Option<Memory>,
    ) {
        self.messages += slice.messages;
        self.latency.add(slice.latency).expect("all histograms have the same bounds");
        self.forces += forces;
        self.queue_full += slice.queue_full;
        self.verified &= verified;
        self.memory = memory;
        let rate = slice.messages as f64 / slice.elapsed.as_secs_f64();
        self.rounds.push(Round { rate, raw_append, raw_zeroed });
    }

    fn median(&self, value: impl Fn(&Round) -> f64) -> f64 {
        median(self.rounds.iter().map(value).collect())
    }

    fn forces_per_message(&self) -> f64 {
        self.forces as f64 / self.messages as f64
    }
}

/// A case of reading, over all rounds.
pub(super) struct ReadCase {
    verb: &'static str,
    messages: u64,
    /// Of one request, nanoseconds.
    pub(super) latency: Histogram<u64>,
    verified: bool,
    /// Messages a second, bytes a second, and bytes a second of the raw loop where there is one.
    rounds: Vec<(f64, f64, Option<f64>)>,
}

impl ReadCase {
    pub(super) fn new(verb: &'static str) -> ReadCase {
        ReadCase { verb, messages: 0, latency: histogram(), verified: true, rounds: Vec::new() }
    }

    pub(super) fn add(&mut self, messages: u64, bytes: u64, elapsed: Duration, verified: bool, raw: Option<f64>) {
        self.messages += messages;
        self.verified &= verified;
        let seconds = elapsed.as_secs_f64();
        self.rounds.push((messages as f64 / seconds, bytes as f64 / seconds, raw));
    }

    fn rates(&self) -> (f64, f64) {
        let (messages, bytes): (Vec<f64>, Vec<f64>) = self.rounds.iter().map(|round| (round.0, round.1)).unzip();
        (median(messages), median(bytes))
    }

    /// Of the raw loop: bytes a second and the ratio to it.
    fn raw(&self) -> Option<(f64, f64)> {
        let raw: Option<Vec<f64>> = self.rounds.iter().map(|round| round.2).collect();
        let ratios = self.rounds.iter().map(|round| Some(round.1 / round.2?)).collect::<Option<Vec<f64>>>();
        Some((median(raw?), median(ratios?)))
    }
}

/// The middle one, or the mean of the middle two.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}

pub(super) fn micros(latency: &Histogram<u64>, quantile: f64) -> f64 {
    latency.value_at_quantile(quantile) as f64 / 1000.0
}

const QUANTILES: [(&str, f64); 5] =
    [("p50_us", 0.5), ("p90_us", 0.9), ("p99_us", 0.99), ("p999_us", 0.999), ("max_us", 1.0)];

/// To a precision that a measurement can have.
pub(super) fn rounded(value: f64, digits: i32) -> Value {
    let unit = 10f64.powi(digits);
    json!((value * unit).round() / unit)
}

impl Report {
    /// An array of objects, one a case.
    pub(super) fn json(&self, memory: &[(Variant, Memory)]) -> Value {
        let published = self.published.iter().map(|published| {
            let load = published.case.load;
            let rate = published.median(|round| round.rate);
            let mut object = json!({
                "level": load.level.as_str(),
                "producers": load.producers,
                "in_flight": load.in_flight,
                "size": load.size,
                "broker": published.case.variant.name(),
                "messages": published.messages,
                "messages_per_second": rounded(rate, 1),
                "mb_per_second": rounded(rate * load.size as f64 / 1e6, 3),
                "forces": published.forces,
                "forces_per_message": rounded(published.forces_per_message(), 6),
                "queue_full": published.queue_full,
                "verified": published.verified,
                "raw_append_per_second": rounded(published.median(|round| round.raw_append), 1),
                "raw_zeroed_per_second": rounded(published.median(|round| round.raw_zeroed), 1),
                "ratio_to_raw_append": rounded(published.median(|round| round.rate / round.raw_append), 3),
                "ratio_to_raw_zeroed": rounded(published.median(|round| round.rate / round.raw_zeroed), 3),
                "rounds": published.rounds.iter().map(|round| json!({
                    "messages_per_second": rounded(round.rate, 1),
                    "raw_append_per_second": rounded(round.raw_append, 1),
                    "raw_zeroed_per_second": rounded(round.raw_zeroed, 1),
                })).collect::<Vec<_>>(),
                "broker_resident_bytes": published.memory.map(|memory| memory.resident),
                "broker_resident_bytes_max": published.memory.map(|memory| memory.resident_max),
            });
            add_latency(&mut object, &published.latency);
            object
        });
        let memory = memory.iter().find(|(variant, _)| *variant == Variant::Reading).map(|(_, memory)| memory);
        let read = self.read.iter().map(|case| {
            let (messages, bytes) = case.rates();
            let mut object = json!({
                "verb": case.verb,
                "messages": case.messages,
                "messages_per_second": rounded(messages, 1),
                "mb_per_second": rounded(bytes / 1e6, 3),
                "verified": case.verified,
                "raw_sendfile_mb_per_second": case.raw().map(|(rate, _)| rounded(rate / 1e6, 3)),
                "ratio_to_raw_sendfile": case.raw().map(|(_, ratio)| rounded(ratio, 3)),
                "broker_resident_bytes": memory.map(|memory| memory.resident),
                "broker_resident_bytes_max": memory.map(|memory| memory.resident_max),
            });
            add_latency(&mut object, &case.latency);
            object
        });
        published.chain(read).collect()
    }

    /// Tables.
    pub(super) fn print(&self, memory: &[(Variant, Memory)], out: &mut impl Write) -> io::Result<()> {
        let mut table = Table::new(&[
            "publish",
            "messages",
            "messages/s",
            "MB/s",
            "p50 µs",
            "p90 µs",
            "p99 µs",
            "p99.9 µs",
            "max µs",
            "forces",
            "forces/msg",
            "raw append/s",
            "ratio",
            "raw zeroed/s",
            "ratio",
            "verified",
        ]);
        for published in &self.published {
            let rate = published.median(|round| round.rate);
            let mut cells = vec![published.case.to_string(), published.messages.to_string()];
            cells.extend([format!("{rate:.0}"), format!("{:.2}", rate * published.case.load.size as f64 / 1e6)]);
            cells.extend(QUANTILES.map(|(_, quantile)| format!("{:.0}", micros(&published.latency, quantile))));
            cells.extend([published.forces.to_string(), format!("{:.4}", published.forces_per_message())]);
            cells.push(format!("{:.0}", published.median(|round| round.raw_append)));
            cells.push(format!("{:.2}", published.median(|round| round.rate / round.raw_append)));
            cells.push(format!("{:.0}", published.median(|round| round.raw_zeroed)));
            cells.push(format!("{:.2}", published.median(|round| round.rate / round.raw_zeroed)));
            cells.push(yes_no(published.verified));
            table.row(cells);
        }
        table.print(out)?;
        if !self.read.is_empty() {
            let mut table = Table::new(&[
                "read",
                "messages",
                "messages/s",
                "MB/s",
                "p50 µs",
                "p90 µs",
                "p99 µs",
                "p99.9 µs",
                "max µs",
                "raw sendfile MB/s",
                "ratio",
                "verified",
            ]);
            for case in &self.read {
                let (messages, bytes) = case.rates();
                let mut cells = vec![case.verb.to_owned(), case.messages.to_string()];
                cells.extend([format!("{messages:.0}"), format!("{:.1}", bytes / 1e6)]);
                cells.extend(QUANTILES.map(|(_, quantile)| format!("{:.0}", micros(&case.latency, quantile))));
                let raw = case.raw();
                cells.push(raw.map_or("-".to_owned(), |(rate, _)| format!("{:.1}", rate / 1e6)));
                cells.push(raw.map_or("-".to_owned(), |(_, ratio)| format!("{ratio:.2}")));
                cells.push(yes_no(case.verified));
                table.row(cells);
            }
            writeln!(out)?;
            table.print(out)?;
        }
        let queue_full: u64 = self.published.iter().map(|published| published.queue_full).sum();
        if queue_full > 0 {
            writeln!(out, "\nQUEUE_FULL was answered {queue_full} times; those messages are not counted")?;
        }
        if !memory.is_empty() {
            writeln!(out)?;
        }
        for (variant, memory) in memory {
            let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
            let (now, max) = (mib(memory.resident), mib(memory.resident_max));
            writeln!(out, "broker ({}): {now:.1} MiB resident, at most {max:.1} MiB", variant.name())?;
        }
        Ok(())
    }

    /// An error where something did not come back as it was acknowledged.
    pub(super) fn verdict(&self) -> Result<(), Failure> {
        let published = self.published.iter().filter(|published| !published.verified).map(|p| p.case.to_string());
        let read = self.read.iter().filter(|case| !case.verified).map(|case| case.verb.to_owned());
        let wrong: Vec<String> = published.chain(read).collect();
        match wrong.is_empty() {
            true => Ok(()),
            false => {
                Err(Failure::Bench(format!("what was read back is not what was acknowledged: {}", wrong.join("; "))))
            }
        }
    }
}

fn add_latency(object: &mut Value, latency: &Histogram<u64>) {
    for (name, quantile) in QUANTILES {
        object[name] = rounded(micros(latency, quantile), 1);
    }
}

fn yes_no(yes: bool) -> String {
    if yes { "yes" } else { "NO" }.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
