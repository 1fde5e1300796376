//! Reading: what was acknowledged is read back and compared, and reading itself is measured.

use super::super::connection::Failure;
use super::Interrupt;
use super::broker::Broker;
use super::load::{self, Limit, Load};
use super::report::ReadCase;
use crate::client::{Client, Delivered, Outcome, Publication};
use plimsoll_core::protocol::{Level, SeekTo};
use rustix::fs::sendfile;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

/// Messages in one request while verifying.
const READ_MESSAGES: u64 = 10_000;
/// Messages in one FETCH, as a consumer that works in batches would ask for.
const FETCH_MESSAGES: u64 = 1000;
/// Bytes in one READRAW, and in one sendfile of the raw loop.
const RAW_BYTES: u64 = 1 << 20;
/// How often READRAW and its raw loop take turns within a round: each takes only a moment.
const RAW_PASSES: u32 = 4;

/// A checksum chained over (offset, checksum of the message) in the order of offsets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Chain {
    checksum: u32,
    messages: u64,
}

impl Chain {
    fn add(&mut self, offset: u64, message: u32) {
        let mut link = [0; 12];
        link[..8].copy_from_slice(&offset.to_be_bytes());
        link[8..].copy_from_slice(&message.to_be_bytes());
        self.checksum = crc32c::crc32c_append(self.checksum, &link);
        self.messages += 1;
    }

    /// Of what the producers were told; `None` where an offset in between was never acknowledged to them.
    fn of_acknowledged(base: u64, acknowledged: &[Option<u32>]) -> Option<Chain> {
        let mut chain = Chain::default();
        for (index, message) in acknowledged.iter().enumerate() {
            chain.add(base + index as u64, (*message)?);
        }
        Some(chain)
    }
}

/// Reads back everything from `base` on and compares it with what the producers were told. Whether it is the same.
pub(super) fn verify(
    client: &mut Client,
    topic: &str,
    base: u64,
    acknowledged: &[Option<u32>],
    interrupt: &Interrupt,
) -> Result<bool, Failure> {
    let expected = Chain::of_acknowledged(base, acknowledged);
    barrier(client, topic)?;
    let end = base + acknowledged.len() as u64;
    let mut found = Chain::default();
    let mut next = base;
    while next < end {
        interrupt.check()?;
        let batch = client.read(Some(topic), next, READ_MESSAGES.min(end - next), false)?;
        let before = next;
        for delivered in batch.iter() {
            match delivered {
                Delivered::Message(message) => {
                    found.add(message.offset, crc32c::crc32c(message.value));
                    next = message.offset + 1;
                }
                Delivered::Gap { next: behind, .. } => next = behind,
            }
        }
        if next == before {
            return Ok(false);
        }
    }
    Ok(Some(found) == expected)
}

/// Readers see what is durable: one more message, forced, makes everything before it so.
fn barrier(client: &mut Client, topic: &str) -> Result<(), Failure> {
    match client.publish(Some(topic), Level::Durable, &Publication::new(b"end of a round"))? {
        Outcome::Stored { .. } => Ok(()),
        outcome => Err(Failure::Bench(format!("the last message of a round was not stored: {outcome:?}"))),
    }
}

/// A log filled to be read, and what must be found in it.
pub(super) struct Reading {
    client: Client,
    topic: &'static str,
    base: u64,
    end: u64,
    chain: Chain,
    round: u32,
    /// The requests that READRAW answers with frames of closed segments.
    raw_requests: Vec<u64>,
    raw_bytes: u64,
    raw_messages: u64,
    /// The same bytes in a file, for the raw loop.
    raw_file: PathBuf,
}

impl Reading {
    /// Fills the log, reads all of it raw once, with all checks, and keeps a copy of the bytes.
    pub(super) fn prepare(
        broker: &Broker,
        messages: u64,
        dir: &Path,
        interrupt: &Interrupt,
    ) -> Result<Reading, Failure> {
        let mut client = broker.client()?;
        let topic = broker.topic();
        let base = client.status(Some(topic))?.next;
        let load = Load { producers: 4, in_flight: 256, size: 128, level: Level::Written };
        let slice = load::run(&broker.address, topic, &load, Limit::Messages(messages), base, interrupt)?;
        barrier(&mut client, topic)?;
        let chain = Chain::of_acknowledged(base, &slice.acknowledged)
            .ok_or_else(|| Failure::Bench("somebody else publishes to the topic; it can't be measured".into()))?;
        let mut reading = Reading {
            client,
            topic,
            base,
            end: base + slice.acknowledged.len() as u64,
            chain,
            round: 0,
            raw_requests: Vec::new(),
            raw_bytes: 0,
            raw_messages: 0,
            raw_file: dir.join("frames"),
        };
        reading.check_raw(&slice.acknowledged, interrupt)?;
        Ok(reading)
    }

    fn check_raw(&mut self, acknowledged: &[Option<u32>], interrupt: &Interrupt) -> Result<(), Failure> {
        let mut copy = File::create(&self.raw_file).map_err(failure)?;
        let mut next = self.base;
        loop {
            interrupt.check()?;
            let raw = self.client.read_raw(Some(self.topic), next, RAW_BYTES)?;
            if raw.bytes.is_empty() {
                return Ok(());
            }
            self.raw_requests.push(next);
            for message in raw.messages() {
                let (offset, message) = message?;
                // Before and behind ours stand the messages of others, and the one that made all durable.
                let index = offset.checked_sub(self.base).and_then(|index| usize::try_from(index).ok());
                if let Some(expected) = index.and_then(|index| acknowledged.get(index))
                    && Some(crc32c::crc32c(message.value)) != *expected
                {
                    return Err(Failure::Bench(format!("READRAW shows other bytes at offset {offset}")));
                }
                next = offset + 1;
                self.raw_messages += 1;
            }
            self.raw_bytes += raw.bytes.len() as u64;
            copy.write_all(raw.bytes).map_err(failure)?;
        }
    }

    /// A new group fetches everything.
    pub(super) fn fetch(&mut self, case: &mut ReadCase, interrupt: &Interrupt) -> Result<(), Failure> {
        self.round += 1;
        let group = format!("bench-{}-{}", std::process::id(), self.round);
        let mut found = Chain::default();
        let mut bytes = 0;
        let mut next = self.base;
        self.client.seek(Some(self.topic), &group, SeekTo::Offset(self.base))?;
        let begun = Instant::now();
        while next < self.end {
            interrupt.check()?;
            let asked = Instant::now();
            let max = FETCH_MESSAGES.min(self.end - next);
            let batch = self.client.fetch(Some(self.topic), &group, max, 0, false)?;
            case.latency.saturating_record(asked.elapsed().as_nanos() as u64);
            let before = next;
            for delivered in batch.iter() {
                if let Delivered::Message(message) = delivered {
                    found.add(message.offset, crc32c::crc32c(message.value));
                    bytes += message.value.len() as u64;
                    next = message.offset + 1;
                }
            }
            if next == before {
                break;
            }
        }
        case.add(found.messages, bytes, begun.elapsed(), found == self.chain, None);
        if next > self.base {
            self.client.ack(Some(self.topic), &group, next - 1)?;
        }
        Ok(())
    }

    /// Every closed segment, and the same bytes sent from a file by a thread that does nothing else.
    pub(super) fn read_raw(&mut self, case: &mut ReadCase, interrupt: &Interrupt) -> Result<(), Failure> {
        if self.raw_bytes == 0 {
            return Err(Failure::Bench("there is no closed segment to read raw; publish more".into()));
        }
        for _ in 0..RAW_PASSES {
            let raw_rate = self.loopback()?;
            let mut bytes = 0;
            let begun = Instant::now();
            for &offset in &self.raw_requests {
                interrupt.check()?;
                let asked = Instant::now();
                bytes += self.client.read_raw(Some(self.topic), offset, RAW_BYTES)?.bytes.len() as u64;
                case.latency.saturating_record(asked.elapsed().as_nanos() as u64);
            }
            case.add(self.raw_messages, bytes, begun.elapsed(), bytes == self.raw_bytes, Some(raw_rate));
        }
        Ok(())
    }

    /// Bytes a second over a loopback connection from sendfile.
    fn loopback(&self) -> Result<f64, Failure> {
        let file = File::open(&self.raw_file).map_err(failure)?;
        let listener = TcpListener::bind("127.0.0.1:0").map_err(failure)?;
        let mut stream = TcpStream::connect(listener.local_addr().map_err(failure)?).map_err(failure)?;
        let (peer, _) = listener.accept().map_err(failure)?;
        let begun = Instant::now();
        let sender = thread::spawn(move || -> io::Result<()> {
            while sendfile(&peer, &file, None, RAW_BYTES as usize)? > 0 {}
            Ok(())
        });
        let mut buffer = vec![0; RAW_BYTES as usize];
        let mut bytes = 0;
        loop {
            match stream.read(&mut buffer).map_err(failure)? {
                0 => break,
                n => bytes += n as u64,
            }
        }
        let rate = bytes as f64 / begun.elapsed().as_secs_f64();
        sender.join().expect("the sender does not panic").map_err(failure)?;
        if bytes == self.raw_bytes { Ok(rate) } else { Err(Failure::Bench("the raw loop lost bytes".into())) }
    }
}

fn failure(error: io::Error) -> Failure {
    Failure::Bench(format!("reading raw failed: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_notices_order_holes_and_other_bytes() {
        let of = |acknowledged: &[Option<u32>]| Chain::of_acknowledged(5, acknowledged);
        let whole = of(&[Some(1), Some(2), Some(3)]);
        assert!(whole.is_some_and(|chain| chain.messages == 3));
        assert_ne!(whole, of(&[Some(1), Some(3), Some(2)]));
        assert_ne!(whole, of(&[Some(1), Some(2), Some(4)]));
        assert_ne!(whole, Chain::of_acknowledged(6, &[Some(1), Some(2), Some(3)]));
        assert_eq!(of(&[Some(1), None, Some(3)]), None);
    }
}
