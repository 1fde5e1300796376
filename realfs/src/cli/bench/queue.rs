//! RESERVE and CONFIRM: consumers that share a work queue, each with some messages in flight. A message is confirmed by itself, by a request of
//! its own.

use super::super::connection::{Failure, output};
use super::super::table::Table;
use super::broker::Broker;
use super::load::{self, Limit, Load, histogram};
use super::report::{median, micros, rounded};
use super::socket::{Socket, io_failure, look_or_sleep, not_silent};
use super::{Args, Interrupt, Variant, directory, progress};
use crate::client::wire::{self, BatchParser, Progress};
use crate::client::{Client, Delivered, Error};
use hdrhistogram::Histogram;
use mio::{Events, Interest, Poll, Token};
use plimsoll_core::protocol::{Level, QueueStatus};
use serde_json::json;
use std::collections::VecDeque;
use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

const QUEUE: &str = "bench";
/// Longer than any run.
const LEASE_MS: u64 = 3_600_000;
/// Messages of a case in a round, unless somebody says how many.
const MESSAGES: u64 = 200_000;
/// … and at most so many for each that is in flight: a case that waits for every reply would take long.
const MESSAGES_EACH: u64 = 2_000;

/// Consumers and what they did in all rounds.
struct Case {
    consumers: usize,
    in_flight: usize,
    topic: String,
    /// Messages a second, by round.
    rates: Vec<f64>,
    confirms: u64,
    forces: u64,
    /// From the sending of a CONFIRM to its reply, nanoseconds.
    latency: Histogram<u64>,
}

/// Measures and prints.
pub(super) fn run(args: &Args, interrupt: &Interrupt) -> Result<(), Failure> {
    let dir = directory(args)?;
    let broker = Broker::start(None, dir.path(), Variant::Default, args.size_max())?;
    let mut client = broker.client()?;
    let size = args.size.first().map_or(128, |size| *size as usize);
    let mut cases = Vec::new();
    for (consumers, in_flight) in args.consumers_and_in_flight() {
        let topic = format!("{consumers}x{in_flight}");
        client.create(&topic)?;
        // The first RESERVE makes the queue.
        client.reserve(Some(&topic), QUEUE, 1, 0, LEASE_MS, false)?;
        let latency = histogram();
        cases.push(Case { consumers, in_flight, topic, rates: vec![], confirms: 0, forces: 0, latency });
    }
    let rounds = args.rounds();
    let bar = progress(u64::from(rounds) * cases.len() as u64);
    for _ in 0..rounds {
        for case in &mut cases {
            bar.set_message(case.topic.clone());
            let each = MESSAGES_EACH * (case.consumers * case.in_flight) as u64;
            let messages = args.messages.unwrap_or(MESSAGES.min(each));
            case.round(&broker.address, &mut client, size, messages, interrupt)?;
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let mut out = output();
    if args.json {
        let rows: Vec<_> = cases.iter().map(|case| case.json(size)).collect();
        writeln!(out, "{}", serde_json::Value::from(rows))?;
    } else {
        let heads = ["consumers × in flight", "messages/s", "p50 µs", "p99 µs", "p99.9 µs", "forces a confirm"];
        let mut table = Table::new(&heads);
        for case in &cases {
            let latency = [0.5, 0.99, 0.999].map(|quantile| format!("{:.0}", micros(&case.latency, quantile)));
            let name = format!("{}×{}", case.consumers, case.in_flight);
            let ends = [name, format!("{:.0}", median(case.rates.clone()))];
            table.row(ends.into_iter().chain(latency).chain([format!("{:.4}", case.forces_per_confirm())]));
        }
        table.print(&mut out)?;
    }
    out.flush()?;
    broker.stop()
}

impl Case {
    /// Publishes messages, and measures how long it takes to do all of them.
    fn round(
        &mut self,
        address: &str,
        client: &mut Client,
        size: usize,
        messages: u64,
        interrupt: &Interrupt,
    ) -> Result<(), Failure> {
        let base = client.status(Some(&self.topic))?.next;
        let load = Load { producers: 4, in_flight: 256, size, level: Level::Written };
        load::run(address, &self.topic, &load, Limit::Messages(messages), base, interrupt)?;
        while client.status(Some(&self.topic))?.durable < base + messages {
            interrupt.check()?;
            thread::sleep(Duration::from_millis(1));
        }
        let before = self.queue(client)?;
        let elapsed = self.consume(address, base..base + messages, interrupt)?;
        let after = self.queue(client)?;
        if (after.confirmed, after.next) != (base + messages, base + messages) {
            return Err(Failure::Bench(format!("{} is not empty: {after:?}", self.topic)));
        }
        self.rates.push(messages as f64 / elapsed.as_secs_f64());
        self.confirms += messages;
        self.forces += after.journal_forces - before.journal_forces;
        Ok(())
    }

    fn queue(&self, client: &mut Client) -> Result<QueueStatus, Failure> {
        let queues = client.queues(Some(&self.topic))?;
        queues.into_iter().next().ok_or_else(|| Failure::Bench(format!("{} has no queue", self.topic)))
    }

    fn consume(
        &mut self,
        address: &str,
        messages: std::ops::Range<u64>,
        interrupt: &Interrupt,
    ) -> Result<Duration, Failure> {
        let mut poll = Poll::new().map_err(io_failure)?;
        let mut consumers = Vec::new();
        for id in 0..self.consumers {
            let mut socket = Socket::connect(address)?;
            let interest = Interest::READABLE | Interest::WRITABLE;
            poll.registry().register(&mut socket.stream, Token(id), interest).map_err(io_failure)?;
            consumers.push(Consumer { socket, asked: VecDeque::new(), parser: BatchParser::default() });
        }
        let base = messages.start;
        let mut seen = vec![false; (messages.end - base) as usize];
        let begun = Instant::now();
        for consumer in &mut consumers {
            consumer.reserve(self);
            consumer.socket.write()?;
        }
        let mut events = Events::with_capacity(1024);
        let mut last_reply = begun;
        while consumers.iter().any(|consumer| !consumer.asked.is_empty()) {
            look_or_sleep(&mut poll, &mut events)?;
            interrupt.check()?;
            for event in &events {
                let consumer = &mut consumers[event.token().0];
                if event.is_readable() {
                    while let Some(drained) = consumer.socket.read()? {
                        last_reply = Instant::now();
                        consumer.take_replies(self, base, &mut seen, last_reply)?;
                        if drained {
                            break;
                        }
                    }
                }
                consumer.socket.write()?;
            }
            not_silent(last_reply)?;
        }
        match seen.iter().position(|seen| !seen) {
            None => Ok(last_reply - begun),
            Some(at) => Err(Failure::Bench(format!("offset {} was handed out to nobody", base + at as u64))),
        }
    }

    fn forces_per_confirm(&self) -> f64 {
        self.forces as f64 / self.confirms as f64
    }

    fn json(&self, size: usize) -> serde_json::Value {
        json!({
            "consumers": self.consumers,
            "in_flight": self.in_flight,
            "size": size,
            "messages": self.confirms,
            "messages_per_second": rounded(median(self.rates.clone()), 1),
            "p50_us": rounded(micros(&self.latency, 0.5), 1),
            "p99_us": rounded(micros(&self.latency, 0.99), 1),
            "p999_us": rounded(micros(&self.latency, 0.999), 1),
            "forces_per_confirm": rounded(self.forces_per_confirm(), 5),
        })
    }
}

/// A request that is not answered yet.
enum Asked {
    Reserve,
    /// When it was sent.
    Confirm(Instant),
}

struct Consumer {
    socket: Socket,
    asked: VecDeque<Asked>,
    parser: BatchParser,
}

impl Consumer {
    fn reserve(&mut self, case: &Case) {
        let out = &mut self.socket.outbox;
        wire::begin(out, "RESERVE", Some(&case.topic));
        wire::word(out, QUEUE.as_bytes());
        [case.in_flight as u64, 0, LEASE_MS].into_iter().for_each(|n| wire::number(out, n));
        out.push(b'\n');
        self.asked.push_back(Asked::Reserve);
    }

    fn take_replies(&mut self, case: &mut Case, base: u64, seen: &mut [bool], now: Instant) -> Result<(), Failure> {
        loop {
            match self.asked.front() {
                None => return Ok(()),
                Some(Asked::Confirm(sent)) => {
                    let Some(end) = self.socket.inbox.line() else { return Ok(()) };
                    let text = &self.socket.inbox.unused()[..end];
                    if text != b"CONFIRMED 1" {
                        return Err(refused(text).into());
                    }
                    case.latency.saturating_record((now - *sent).as_nanos() as u64);
                    self.socket.inbox.consume(end + 1);
                    self.asked.pop_front();
                }
                Some(Asked::Reserve) => {
                    let unused = self.socket.inbox.unused();
                    let size = match self.parser.advance(unused)? {
                        Progress::NeedMore => return Ok(()),
                        Progress::Refused(error, _) => return Err(Error::Broker(error).into()),
                        Progress::Whole(size) => size,
                    };
                    self.asked.pop_front();
                    let out = &mut self.socket.outbox;
                    for delivered in self.parser.batch(unused).iter() {
                        let Delivered::Message(message) = delivered else {
                            return Err(Failure::Bench(format!("{delivered:?} in a topic that keeps everything")));
                        };
                        let seen = message.offset.checked_sub(base).and_then(|at| seen.get_mut(at as usize));
                        if seen.is_none_or(|seen| std::mem::replace(seen, true)) {
                            return Err(Failure::Bench(format!("offset {} was handed out twice", message.offset)));
                        }
                        wire::begin(out, "CONFIRM", Some(&case.topic));
                        wire::word(out, QUEUE.as_bytes());
                        wire::number(out, message.offset);
                        out.push(b'\n');
                        self.asked.push_back(Asked::Confirm(now));
                    }
                    let is_empty = self.asked.is_empty();
                    self.socket.inbox.consume(size);
                    self.parser.clear();
                    // Behind the confirmations, so that no more are in flight. Where there is nothing left it is over.
                    if !is_empty {
                        self.reserve(case);
                    }
                }
            }
        }
    }
}

fn refused(text: &[u8]) -> Error {
    wire::broker_error(text).map_or_else(|| wire::unexpected("CONFIRMED 1", text), Error::Broker)
}
