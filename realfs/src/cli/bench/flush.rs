//! Flush policies side by side: one producer that sends batches of 100 messages of 128 bytes and waits for their replies, and one
//! consumer at the line.

use super::super::connection::{Failure, output};
use super::super::table::Table;
use super::broker::Broker;
use super::load::{Limit, histogram};
use super::report::{median, micros, rounded};
use super::{Args, Interrupt, Variant, directory, progress};
use crate::client::{Delivered, Outcome, Publication};
use hdrhistogram::Histogram;
use plimsoll_core::protocol::Level;
use serde_json::json;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const BATCH: usize = 100;
const SIZE: usize = 128;
/// What the consumer asks for at once.
const FETCH_MESSAGES: u64 = 1000;
/// It waits no longer, so that it sees the end of a round.
const FETCH_WAIT_MS: u64 = 100;
/// A consumer that is sent nothing for this long, though there is more, will get nothing.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// The cases: how safe each reply says a message is, and how the broker was started. The first one is what the others are held
/// against.
const CASES: [(&str, Level, Variant); 3] = [
    ("sync", Level::Durable, Variant::Default),
    ("async", Level::Written, Variant::FlushAsync),
    ("mixed", Level::Written, Variant::FlushMixed),
];

/// One case over all rounds.
struct Case {
    name: &'static str,
    level: Level,
    broker: Broker,
    messages: u64,
    /// Messages a second, by round.
    rates: Vec<f64>,
    /// The share of the time spent forcing, by round.
    forcing: Vec<f64>,
    forces: u64,
    /// From sending to delivery, nanoseconds.
    seen: Histogram<u64>,
    unforced_max: u64,
    unforced_ms_max: u64,
}

/// Measures and prints.
pub(super) fn run(args: &Args, interrupt: &Interrupt) -> Result<(), Failure> {
    let dir = directory(args)?;
    let mut cases = Vec::new();
    for (name, level, variant) in CASES {
        cases.push(Case {
            name,
            level,
            broker: Broker::start(None, dir.path(), variant, args.size_max())?,
            messages: 0,
            rates: Vec::new(),
            forcing: Vec::new(),
            forces: 0,
            seen: histogram(),
            unforced_max: 0,
            unforced_ms_max: 0,
        });
    }
    let rounds = args.rounds();
    let bar = progress(u64::from(rounds) * cases.len() as u64);
    for _ in 0..rounds {
        for case in &mut cases {
            bar.set_message(case.name);
            case.round(args.limit(), interrupt)?;
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let mut out = output();
    match args.json {
        true => writeln!(out, "{}", json(&cases))?,
        false => print(&cases, &mut out)?,
    }
    out.flush()?;
    cases.into_iter().try_for_each(|case| case.broker.stop())
}

impl Case {
    fn round(&mut self, limit: Limit, interrupt: &Interrupt) -> Result<(), Failure> {
        let topic = self.broker.topic();
        let mut client = self.broker.client()?;
        let before = client.status(Some(topic))?;
        // The end of the round, once it is known.
        let end = AtomicU64::new(u64::MAX);
        let begun = Instant::now();
        let (published, seen) = thread::scope(|scope| {
            let consumer = scope.spawn(|| consume(&self.broker, before.next, begun, &end, interrupt));
            let published = publish(&mut client, topic, self.level, limit, begun, interrupt);
            let next = match &published {
                Ok((messages, _)) => before.next + messages,
                Err(_) => 0,
            };
            end.store(next, Ordering::Relaxed);
            (published, consumer.join().expect("it does not panic"))
        });
        let (messages, elapsed) = published?;
        self.seen.add(seen?).expect("all histograms have the same bounds");
        let after = client.status(Some(topic))?;
        self.messages += messages;
        self.rates.push(messages as f64 / elapsed.as_secs_f64());
        let forced_ms = after.force_total_ms - before.force_total_ms;
        self.forcing.push(forced_ms as f64 / 1000.0 / elapsed.as_secs_f64());
        self.forces += after.forces - before.forces;
        (self.unforced_max, self.unforced_ms_max) = (after.unforced_max, after.unforced_ms_max);
        Ok(())
    }

    fn rate(&self) -> f64 {
        median(self.rates.clone())
    }

    /// To the case beside it, round by round.
    fn ratio_to(&self, other: &Case) -> f64 {
        median(self.rates.iter().zip(&other.rates).map(|(own, other)| own / other).collect())
    }
}

/// Batch after batch; says how many messages, and how long it took.
fn publish(
    client: &mut crate::client::Client,
    topic: &str,
    level: Level,
    limit: Limit,
    begun: Instant,
    interrupt: &Interrupt,
) -> Result<(u64, Duration), Failure> {
    let mut value = vec![b'x'; SIZE];
    let mut messages = 0;
    while limit.goes_on(begun, messages) {
        interrupt.check()?;
        // When it was sent, for the consumer.
        let sent_ns = begun.elapsed().as_nanos() as u64;
        value[..8].copy_from_slice(&sent_ns.to_be_bytes());
        for _ in 0..BATCH {
            client.publish_nowait(Some(topic), level, &Publication::new(&value))?;
        }
        while let Some(outcome) = client.recv_reply() {
            match outcome {
                Outcome::Stored { level: reached, .. } if reached >= level => messages += 1,
                outcome => return Err(Failure::Bench(format!("a message was not stored as asked: {outcome:?}"))),
            }
        }
    }
    Ok((messages, begun.elapsed()))
}

/// Reads from `base` on until the end that it is told.
fn consume(
    broker: &Broker,
    base: u64,
    begun: Instant,
    end: &AtomicU64,
    interrupt: &Interrupt,
) -> Result<Histogram<u64>, Failure> {
    let mut client = broker.client()?;
    let topic = broker.topic();
    let (mut next, mut seen, mut last) = (base, histogram(), Instant::now());
    // A group of its own, which acknowledges nothing: what is measured are the forces of the log.
    let group = format!("bench-{base}");
    client.seek(Some(topic), &group, plimsoll_core::protocol::SeekTo::Offset(base))?;
    while next < end.load(Ordering::Relaxed) {
        interrupt.check()?;
        let batch = client.fetch(Some(topic), &group, FETCH_MESSAGES, FETCH_WAIT_MS, false)?;
        let now_ns = begun.elapsed().as_nanos() as u64;
        for delivered in batch.iter() {
            let Delivered::Message(message) = delivered else { continue };
            if message.offset != next {
                return Err(Failure::Bench(format!("offset {} was delivered instead of {next}", message.offset)));
            }
            let sent_ns = message.value.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
            seen.saturating_record(now_ns.saturating_sub(sent_ns));
            next += 1;
            last = Instant::now();
        }
        if last.elapsed() > SILENCE_MAX {
            return Err(Failure::Bench(format!("the consumer was sent nothing after offset {next}")));
        }
    }
    Ok(seen)
}

fn json(cases: &[Case]) -> serde_json::Value {
    let rows = cases.iter().map(|case| {
        json!({
            "case": case.name,
            "policy": case.broker.variant.flush(),
            "level": case.level.as_str(),
            "batch": BATCH,
            "size": SIZE,
            "messages": case.messages,
            "messages_per_second": rounded(case.rate(), 1),
            "ratio_to_sync": rounded(case.ratio_to(&cases[0]), 3),
            "forces": case.forces,
            "forcing_share": rounded(median(case.forcing.clone()), 4),
            "unforced_messages_max": case.unforced_max,
            "unforced_ms_max": case.unforced_ms_max,
            "seen_p50_us": rounded(micros(&case.seen, 0.5), 1),
            "seen_p99_us": rounded(micros(&case.seen, 0.99), 1),
        })
    });
    rows.collect()
}

fn print(cases: &[Case], out: &mut impl Write) -> std::io::Result<()> {
    let mut table = Table::new(&[
        "batches of 100 × 128 B",
        "level",
        "messages/s",
        "ratio to sync",
        "forces",
        "time forcing",
        "most unforced",
        "ms unforced",
        "seen p50 ms",
        "seen p99 ms",
    ]);
    for case in cases {
        let ms = |quantile| format!("{:.1}", micros(&case.seen, quantile) / 1000.0);
        table.row([
            format!("{} ({})", case.name, case.broker.variant.flush()),
            case.level.as_str().to_owned(),
            format!("{:.0}", case.rate()),
            format!("{:.2}", case.ratio_to(&cases[0])),
            case.forces.to_string(),
            format!("{:.0} %", 100.0 * median(case.forcing.clone())),
            case.unforced_max.to_string(),
            case.unforced_ms_max.to_string(),
            ms(0.5),
            ms(0.99),
        ]);
    }
    table.print(out)
}
