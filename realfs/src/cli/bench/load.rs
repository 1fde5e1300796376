//! Producers: many connections driven from one thread, so that they don't take the processors from the broker.

use super::super::connection::Failure;
use super::Interrupt;
use super::socket::{Socket, io_failure, look_or_sleep, not_silent};
use crate::client::wire::{self, PublishReply};
use crate::client::{BrokerError, Publication};
use hdrhistogram::Histogram;
use mio::{Events, Interest, Poll, Token};
use plimsoll_core::error::Code;
use plimsoll_core::protocol::Level;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Who publishes what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Load {
    /// Connections.
    pub(super) producers: usize,
    /// Messages that each has in flight.
    pub(super) in_flight: usize,
    /// Bytes of a message.
    pub(super) size: usize,
    /// How safe.
    pub(super) level: Level,
}

/// When to stop.
#[derive(Clone, Copy, Debug)]
pub(super) enum Limit {
    Time(Duration),
    Messages(u64),
}

impl Limit {
    /// For the raw loops, of which there are two for each case.
    pub(super) fn raw(self) -> Limit {
        match self {
            Limit::Time(time) => Limit::Time(time / 3),
            Limit::Messages(messages) => Limit::Messages(messages.min(10_000)),
        }
    }

    /// Whether to go on after this many messages.
    pub(super) fn goes_on(self, begun: Instant, messages: u64) -> bool {
        match self {
            Limit::Time(time) => begun.elapsed() < time,
            Limit::Messages(limit) => messages < limit,
        }
    }
}

/// What one round of a load brought.
pub(super) struct Slice {
    pub(super) messages: u64,
    pub(super) elapsed: Duration,
    /// From the sending of a message to its reply, nanoseconds.
    pub(super) latency: Histogram<u64>,
    /// The checksum of the message that got each offset, from the first offset of the round on.
    pub(super) acknowledged: Vec<Option<u32>>,
    /// How often the broker answered QUEUE_FULL.
    pub(super) queue_full: u64,
}

/// Nanoseconds; wide enough for any wait, three digits of precision.
pub(super) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(100, 120_000_000_000, 3).expect("the bounds are valid")
}

/// Publishes until the limit, then waits for every reply. `base` is the topic's next offset.
pub(super) fn run(
    address: &str,
    topic: &str,
    load: &Load,
    limit: Limit,
    base: u64,
    interrupt: &Interrupt,
) -> Result<Slice, Failure> {
    let mut poll = Poll::new().map_err(io_failure)?;
    let mut producers = Vec::new();
    for id in 0..load.producers {
        let mut producer = Producer::connect(address, topic, load, id)?;
        let interest = Interest::READABLE | Interest::WRITABLE;
        poll.registry().register(&mut producer.socket.stream, Token(id), interest).map_err(io_failure)?;
        producers.push(producer);
    }
    let mut run = Run {
        load: *load,
        base,
        to_send: if let Limit::Messages(messages) = limit { messages } else { u64::MAX },
        in_flight: 0,
        slice: Slice {
            messages: 0,
            elapsed: Duration::ZERO,
            latency: histogram(),
            acknowledged: Vec::new(),
            queue_full: 0,
        },
    };

    let begun = Instant::now();
    for producer in &mut producers {
        for _ in 0..load.in_flight {
            run.publish(producer, begun);
        }
        producer.socket.write()?;
    }
    let mut events = Events::with_capacity(1024);
    let mut last_reply = begun;
    while run.in_flight > 0 {
        look_or_sleep(&mut poll, &mut events)?;
        interrupt.check()?;
        if let Limit::Time(time) = limit
            && begun.elapsed() >= time
        {
            run.to_send = 0;
        }
        for event in &events {
            let producer = &mut producers[event.token().0];
            if event.is_readable() {
                while let Some(drained) = producer.socket.read()? {
                    last_reply = Instant::now();
                    run.take_replies(producer, last_reply)?;
                    if drained {
                        break;
                    }
                }
            }
            producer.socket.write()?;
        }
        not_silent(last_reply)?;
    }
    run.slice.elapsed = last_reply - begun;
    Ok(run.slice)
}

struct Run {
    load: Load,
    base: u64,
    to_send: u64,
    in_flight: u64,
    slice: Slice,
}

impl Run {
    fn publish(&mut self, producer: &mut Producer, now: Instant) {
        if self.to_send > 0 {
            self.to_send -= 1;
            self.in_flight += 1;
            producer.publish(self.load.level, now);
        }
    }

    fn take_replies(&mut self, producer: &mut Producer, now: Instant) -> Result<(), Failure> {
        while let Some(end) = producer.socket.inbox.line() {
            let reply = wire::publish_reply(&producer.socket.inbox.unused()[..end])?;
            producer.socket.inbox.consume(end + 1);
            let (sent, checksum) = producer
                .in_flight
                .pop_front()
                .ok_or_else(|| Failure::Bench("a reply came to a message that was never sent".into()))?;
            self.in_flight -= 1;
            match reply {
                PublishReply::Stored { offset, level } => {
                    if level < self.load.level {
                        return Err(Failure::Bench(format!("offset {offset} is only {}", level.as_str())));
                    }
                    self.acknowledge(offset, checksum)?;
                    let waited = (now - sent).as_nanos() as u64;
                    self.slice.latency.saturating_record(waited);
                    self.slice.messages += 1;
                }
                // Nothing was stored: another message takes its place.
                PublishReply::Refused(BrokerError { code, .. }) if code == Code::QueueFull.as_str() => {
                    self.slice.queue_full += 1;
                    self.to_send = self.to_send.saturating_add(u64::from(self.to_send > 0));
                }
                PublishReply::Refused(error) => return Err(Failure::Client(crate::client::Error::Broker(error))),
            }
            self.publish(producer, now);
        }
        Ok(())
    }

    /// Notes which message has an offset: dense and once each (P2), whoever else publishes to the topic.
    fn acknowledge(&mut self, offset: u64, checksum: u32) -> Result<(), Failure> {
        let index = offset.checked_sub(self.base).and_then(|index| usize::try_from(index).ok());
        // What is in flight bounds how far ahead an offset can be, unless a stranger publishes too.
        let Some(index) = index.filter(|index| *index < self.slice.acknowledged.len() + (1 << 24)) else {
            return Err(Failure::Bench(format!("offset {offset} was acknowledged, far from {}", self.base)));
        };
        if index >= self.slice.acknowledged.len() {
            self.slice.acknowledged.resize(index + 1, None);
        }
        match self.slice.acknowledged[index].replace(checksum) {
            None => Ok(()),
            Some(_) => Err(Failure::Bench(format!("offset {offset} was acknowledged twice"))),
        }
    }
}

/// Producer and sequence in hex, at the end of each message, as far as it fits.
const MARK_BYTES: usize = 16;

struct Producer {
    socket: Socket,
    topic: String,
    id: usize,
    sequence: u64,
    /// The message; its end is different in each.
    value: Vec<u8>,
    /// The checksum of what stays the same, so that checking costs a producer next to nothing.
    same: u32,
    /// When each message was sent, and its checksum.
    in_flight: VecDeque<(Instant, u32)>,
}

impl Producer {
    fn connect(address: &str, topic: &str, load: &Load, id: usize) -> Result<Producer, Failure> {
        let value: Vec<u8> = (0..load.size).map(|i| b'a' + (i % 26) as u8).collect();
        Ok(Producer {
            socket: Socket::connect(address)?,
            topic: topic.to_owned(),
            id,
            sequence: 0,
            same: crc32c::crc32c(&value[..value.len().saturating_sub(MARK_BYTES)]),
            value,
            in_flight: VecDeque::with_capacity(load.in_flight),
        })
    }

    fn publish(&mut self, level: Level, now: Instant) {
        self.sequence += 1;
        let mark = (self.id as u64) << 48 | self.sequence;
        let same = self.value.len().saturating_sub(MARK_BYTES);
        for (nibble, byte) in self.value[same..].iter_mut().rev().enumerate() {
            *byte = b"0123456789abcdef"[(mark >> (4 * nibble) & 15) as usize];
        }
        let message = Publication::new(&self.value);
        wire::encode_publish(&mut self.socket.outbox, Some(&self.topic), level, &message).expect("it has no headers");
        self.in_flight.push_back((now, crc32c::crc32c_append(self.same, &self.value[same..])));
    }
}
