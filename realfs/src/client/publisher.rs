//! Publishing many messages with a bounded number in flight, and repeating what the broker stored nothing of.

use super::wire::{append_to_batch, encode_batch, encode_publish};
use super::{Client, Error, Outcome, Publication};
use plimsoll_core::error::Code;
use plimsoll_core::protocol::Level;
use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

/// Publishes to one topic at one level, `window` messages in flight.
///
/// - A message (or a batch, see [`Publisher::in_batches`]) refused with `QUEUE_FULL` was not stored: it is sent again after a pause, behind what is in flight by
///   then. With one in flight the order is thus always kept.
/// - A message whose reply was lost is counted as unknown, or, with `retry`, sent again in its order; it may then be
///   stored twice, unless it has an id ([`Publisher::with_ids`]).
pub struct Publisher {
    client: Client,
    topic: Option<String>,
    level: Level,
    window: usize,
    retry: bool,
    batch: Option<Gathered>,
    /// The producer, and the sequence of the next request; `None` behind the last that there is.
    producer: Option<(u64, Option<u32>)>,
    /// The requests in flight, oldest first, kept to be repeated.
    pending: VecDeque<Request>,
    /// Request buffers to use again.
    spare: Vec<Vec<u8>>,
    summary: Summary,
    full_since: Option<Instant>,
}

/// A request in flight.
struct Request {
    bytes: Vec<u8>,
    /// How many messages it publishes.
    count: u64,
}

/// Messages for the next batch.
struct Gathered {
    body: Vec<u8>,
    count: u32,
    count_max: u32,
    bytes_max: usize,
}

/// What became of everything that was published.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// Messages with an `OK`.
    pub stored: u64,
    /// The offset of the first of them.
    pub first_offset: Option<u64>,
    /// The offset of the last of them.
    pub last_offset: Option<u64>,
    /// The least level that was reached.
    pub level: Option<Level>,
    /// Messages that are stored or not: nobody knows.
    pub unknown: u64,
    /// Messages sent again after a lost reply; each without an id may be stored twice.
    pub repeated: u64,
    /// How often a full queue was waited for.
    pub queue_full: u64,
    /// Messages that the broker refused.
    pub refused: u64,
}

/// For how long a full queue is tried again without a single message getting in.
const QUEUE_FULL_PATIENCE: Duration = Duration::from_secs(30);
const QUEUE_FULL_PAUSE: Duration = Duration::from_millis(5);

impl Publisher {
    /// Makes one; `window` is at least 1.
    pub fn new(client: Client, topic: Option<&str>, level: Level, window: usize, retry: bool) -> Publisher {
        Publisher {
            client,
            topic: topic.map(str::to_owned),
            level,
            window: window.max(1),
            retry,
            batch: None,
            producer: None,
            pending: VecDeque::new(),
            spare: Vec::new(),
            summary: Summary::default(),
            full_since: None,
        }
    }

    /// Publishes `count_max` messages at a time as one batch, or fewer where they have more than `bytes_max` bytes with four for the length
    /// of each; what has gathered is sent when all is to be settled, too. All messages of a batch are stored, or none. The window then counts
    /// batches.
    pub fn in_batches(mut self, count_max: u32, bytes_max: usize) -> Publisher {
        self.batch = Some(Gathered { body: Vec::new(), count: 0, count_max: count_max.max(1), bytes_max });
        self
    }

    /// Gives each message (or batch) an id: this producer, and sequences that count up from `first`. A repeated one is then stored once, as
    /// long as it is within the topic's window; so is everything when a producer begins again with the same sequences and the same messages.
    pub fn with_ids(mut self, producer: u64, first: u32) -> Publisher {
        self.producer = Some((producer, Some(first)));
        self
    }

    /// Publishes one message; waits while the window is full.
    ///
    /// # Errors
    /// [`Error::Broker`]: an earlier message was refused. [`Error::is_indeterminate`]: an earlier message's fate is unknown
    /// and it is not to be repeated. [`Error::Connect`], [`Error::Request`]. In each case this message was not sent;
    /// call [`Publisher::finish`] for the rest.
    pub fn push(&mut self, message: &Publication<'_>) -> Result<(), Error> {
        if let Some(batch) = &self.batch {
            if message.key.is_some() || !message.headers.is_empty() || message.id.is_some() {
                return Err(Error::Request("the messages of a batch have no key, headers or id of their own".into()));
            }
            if batch.count > 0 && batch.body.len() + 4 + message.value.len() > batch.bytes_max {
                self.send_batch()?;
            }
        }
        if let Some(batch) = &mut self.batch {
            append_to_batch(&mut batch.body, message.value);
            batch.count += 1;
            return if batch.count < batch.count_max { Ok(()) } else { self.send_batch() };
        }
        let mut bytes = self.next_request()?;
        let id = self.next_id()?.or(message.id);
        encode_publish(&mut bytes, self.topic.as_deref(), self.level, &Publication { id, ..*message })?;
        self.send(Request { bytes, count: 1 })
    }

    /// Sends what has gathered.
    fn send_batch(&mut self) -> Result<(), Error> {
        if self.batch.as_ref().is_none_or(|batch| batch.count == 0) {
            return Ok(());
        }
        let mut bytes = self.next_request()?;
        let id = self.next_id()?;
        let batch = self.batch.as_mut().expect("just seen");
        encode_batch(&mut bytes, self.topic.as_deref(), self.level, id, batch.count, &batch.body);
        let count = u64::from(std::mem::take(&mut batch.count));
        batch.body.clear();
        self.send(Request { bytes, count })
    }

    fn next_id(&mut self) -> Result<Option<(u64, u32)>, Error> {
        let Some((producer, next)) = &mut self.producer else { return Ok(None) };
        let sequence =
            next.ok_or_else(|| Error::Request(format!("producer {producer} has used all of its sequences")))?;
        *next = sequence.checked_add(1);
        Ok(Some((*producer, sequence)))
    }

    /// A buffer for a request, when there is room for it in the window.
    fn next_request(&mut self) -> Result<Vec<u8>, Error> {
        while self.pending.len() >= self.window {
            self.settle_one()?;
        }
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        Ok(bytes)
    }

    /// Sends what has gathered and waits until nothing is in flight.
    ///
    /// # Errors
    /// As [`Publisher::push`].
    pub fn settle(&mut self) -> Result<(), Error> {
        self.send_batch()?;
        while !self.pending.is_empty() {
            self.settle_one()?;
        }
        Ok(())
    }

    /// What is known so far.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// How many messages are in flight, or gathered for the next batch.
    pub fn in_flight(&self) -> usize {
        let gathered = self.batch.as_ref().map_or(0, |batch| batch.count as usize);
        self.pending.iter().map(|request| request.count as usize).sum::<usize>() + gathered
    }

    /// Waits for what is in flight and says what became of everything, with the first error met.
    pub fn finish(mut self) -> (Summary, Option<Error>) {
        let mut first = None;
        while !self.pending.is_empty() {
            // After an error the rest is only counted: nothing new is sent.
            let settled = if first.is_none() { self.settle_one() } else { self.count_one() };
            if let Err(error) = settled {
                first.get_or_insert(error);
            }
        }
        (self.summary, first)
    }

    fn send(&mut self, request: Request) -> Result<(), Error> {
        self.client.publish_encoded(&request.bytes)?;
        self.pending.push_back(request);
        Ok(())
    }

    /// Takes the oldest reply and repeats its request where that is called for.
    fn settle_one(&mut self) -> Result<(), Error> {
        let Some(outcome) = self.client.recv_reply() else { return Ok(()) };
        let request = self.pending.pop_front().expect("one request for each reply");
        let count = request.count;
        match outcome {
            Outcome::Unknown if self.retry => {
                self.summary.repeated += count;
                self.send(request).inspect_err(|_| self.summary.unknown += count)
            }
            Outcome::Refused(error) if error.known() == Some(Code::QueueFull) => {
                let since = *self.full_since.get_or_insert_with(Instant::now);
                if since.elapsed() > QUEUE_FULL_PATIENCE {
                    return self.count(count, Outcome::Refused(error));
                }
                self.summary.queue_full += 1;
                if !self.client.has_reply() {
                    thread::sleep(QUEUE_FULL_PAUSE);
                }
                self.send(request).inspect_err(|_| self.summary.refused += count)
            }
            outcome => {
                self.spare.push(request.bytes);
                self.count(count, outcome)
            }
        }
    }

    fn count_one(&mut self) -> Result<(), Error> {
        let count = self.pending.pop_front().map_or(0, |request| request.count);
        match self.client.recv_reply() {
            Some(outcome) => self.count(count, outcome),
            None => Ok(()),
        }
    }

    /// What became of a request of so many messages.
    fn count(&mut self, count: u64, outcome: Outcome) -> Result<(), Error> {
        let summary = &mut self.summary;
        match outcome {
            Outcome::Stored { offset, level } => {
                self.full_since = None;
                summary.stored += count;
                summary.first_offset.get_or_insert(offset);
                summary.last_offset = Some(offset + count - 1);
                summary.level = Some(summary.level.map_or(level, |least| least.min(level)));
                Ok(())
            }
            Outcome::Refused(error) => {
                summary.refused += count;
                Err(Error::Broker(error))
            }
            Outcome::Unknown => {
                summary.unknown += count;
                Err(self.client.loss().expect("an unknown outcome comes from a lost connection").clone())
            }
        }
    }
}
