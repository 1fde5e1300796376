//! Publishing many messages with a bounded number in flight, and repeating what the broker stored nothing of.

use super::wire::encode_publish;
use super::{Client, Error, Outcome, Publication};
use plimsoll_core::error::Code;
use plimsoll_core::protocol::Level;
use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

/// Publishes to one topic at one level, `window` messages in flight.
///
/// - A message refused with `QUEUE_FULL` was not stored: it is sent again after a pause, behind what is in flight by
///   then. With one in flight the order is thus always kept.
/// - A message whose reply was lost is counted as unknown, or, with `retry`, sent again in its order; it may then be
///   stored twice.
pub struct Publisher {
    client: Client,
    topic: Option<String>,
    level: Level,
    window: usize,
    retry: bool,
    /// The requests in flight, oldest first, kept to be repeated.
    pending: VecDeque<Vec<u8>>,
    /// Request buffers to use again.
    spare: Vec<Vec<u8>>,
    summary: Summary,
    full_since: Option<Instant>,
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
    /// Messages sent again after a lost reply; each may be stored twice.
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
            pending: VecDeque::new(),
            spare: Vec::new(),
            summary: Summary::default(),
            full_since: None,
        }
    }

    /// Publishes one message; waits while the window is full.
    ///
    /// # Errors
    /// [`Error::Broker`]: an earlier message was refused. [`Error::is_indeterminate`]: an earlier message's fate is unknown
    /// and it is not to be repeated. [`Error::Connect`], [`Error::Request`]. In each case this message was not sent;
    /// call [`Publisher::finish`] for the rest.
    pub fn push(&mut self, message: &Publication<'_>) -> Result<(), Error> {
        while self.pending.len() >= self.window {
            self.settle_one()?;
        }
        let mut request = self.spare.pop().unwrap_or_default();
        request.clear();
        encode_publish(&mut request, self.topic.as_deref(), self.level, message)?;
        self.send(request)
    }

    /// Sends what has gathered and waits until nothing is in flight.
    ///
    /// # Errors
    /// As [`Publisher::push`].
    pub fn settle(&mut self) -> Result<(), Error> {
        while !self.pending.is_empty() {
            self.settle_one()?;
        }
        Ok(())
    }

    /// What is known so far.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// How many messages are in flight.
    pub fn in_flight(&self) -> usize {
        self.pending.len()
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

    fn send(&mut self, request: Vec<u8>) -> Result<(), Error> {
        self.client.publish_encoded(&request)?;
        self.pending.push_back(request);
        Ok(())
    }

    /// Takes the oldest reply and repeats its message where that is called for.
    fn settle_one(&mut self) -> Result<(), Error> {
        let Some(outcome) = self.client.recv_reply() else { return Ok(()) };
        let request = self.pending.pop_front().expect("one request for each reply");
        match outcome {
            Outcome::Unknown if self.retry => {
                self.summary.repeated += 1;
                self.send(request).inspect_err(|_| self.summary.unknown += 1)
            }
            Outcome::Refused(error) if error.known() == Some(Code::QueueFull) => {
                let since = *self.full_since.get_or_insert_with(Instant::now);
                if since.elapsed() > QUEUE_FULL_PATIENCE {
                    return self.count(Outcome::Refused(error));
                }
                self.summary.queue_full += 1;
                if !self.client.has_reply() {
                    thread::sleep(QUEUE_FULL_PAUSE);
                }
                self.send(request).inspect_err(|_| self.summary.refused += 1)
            }
            outcome => {
                self.spare.push(request);
                self.count(outcome)
            }
        }
    }

    fn count_one(&mut self) -> Result<(), Error> {
        self.pending.pop_front();
        match self.client.recv_reply() {
            Some(outcome) => self.count(outcome),
            None => Ok(()),
        }
    }

    fn count(&mut self, outcome: Outcome) -> Result<(), Error> {
        let summary = &mut self.summary;
        match outcome {
            Outcome::Stored { offset, level } => {
                self.full_since = None;
                summary.stored += 1;
                summary.first_offset.get_or_insert(offset);
                summary.last_offset = Some(offset);
                summary.level = Some(summary.level.map_or(level, |least| least.min(level)));
                Ok(())
            }
            Outcome::Refused(error) => {
                summary.refused += 1;
                Err(Error::Broker(error))
            }
            Outcome::Unknown => {
                summary.unknown += 1;
                Err(self.client.loss().expect("an unknown outcome comes from a lost connection").clone())
            }
        }
    }
}
