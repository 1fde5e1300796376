//! Work queues: what a consumer reserves is its own until it confirms, gives it back, its lease runs out or the connection is lost.

use super::{Batch, Client, Error, check_word, wire};
use plimsoll_core::protocol::{PendingState, PendingStatus, QueueStatus};
use std::time::Duration;

impl Client {
    /// Messages that nobody else has, at most `max`, for `lease_ms`; waits up to `wait_ms` for the first. Each of them is to be confirmed or
    /// given back on this connection. With `meta` they come with how often they were handed out.
    ///
    /// # Errors
    /// Every kind of [`Error`]. What was reserved on a connection that was lost is nobody's any more.
    pub fn reserve(
        &mut self,
        topic: Option<&str>,
        group: &str,
        max: u64,
        wait_ms: u64,
        lease_ms: u64,
        meta: bool,
    ) -> Result<Batch<'_>, Error> {
        check_word("topic", topic)?;
        check_word("group", Some(group))?;
        self.send(|out| {
            wire::begin(out, "RESERVE", topic);
            wire::word(out, group.as_bytes());
            [max, wait_ms, lease_ms].into_iter().for_each(|n| wire::number(out, n));
            if meta {
                wire::word(out, b"META");
            }
        })?;
        self.receive_batch(Duration::from_millis(wait_ms))
    }

    /// These are done, and safe from a power loss when this returns: all of them, or none where one is not this connection's.
    ///
    /// # Errors
    /// Every kind of [`Error`].
    pub fn confirm(&mut self, topic: Option<&str>, group: &str, offsets: &[u64]) -> Result<(), Error> {
        let (Some(_), Ok(count)) = (offsets.first(), u64::try_from(offsets.len())) else {
            return Err(Error::Request("say which messages are confirmed".into()));
        };
        let text = self.about(topic, group, "CONFIRM", offsets)?;
        self.answer(&text, "CONFIRMED ", |rest| wire::parse_number(rest).filter(|confirmed| *confirmed <= count))?;
        Ok(())
    }

    /// Gives a message back; it can be reserved again in `delay_ms`.
    ///
    /// # Errors
    /// Every kind of [`Error`].
    pub fn abort(&mut self, topic: Option<&str>, group: &str, offset: u64, delay_ms: u64) -> Result<(), Error> {
        let text = self.about(topic, group, "ABORT", &[offset, delay_ms])?;
        self.one_answer(&text, "ABORTED ", offset)
    }

    /// Keeps a message for `lease_ms` from now on.
    ///
    /// # Errors
    /// Every kind of [`Error`].
    pub fn extend(&mut self, topic: Option<&str>, group: &str, offset: u64, lease_ms: u64) -> Result<(), Error> {
        let text = self.about(topic, group, "EXTEND", &[offset, lease_ms])?;
        self.one_answer(&text, "EXTENDED ", offset)
    }

    /// Takes a message's lease away from whoever has it; the next may reserve it.
    ///
    /// # Errors
    /// Every kind of [`Error`].
    pub fn steal(&mut self, topic: Option<&str>, group: &str, offset: u64) -> Result<(), Error> {
        let text = self.about(topic, group, "STEAL", &[offset])?;
        self.one_answer(&text, "STOLEN ", offset)
    }

    /// The work queues of a topic.
    ///
    /// # Errors
    /// Every kind of [`Error`].
    pub fn queues(&mut self, topic: Option<&str>) -> Result<Vec<QueueStatus>, Error> {
        check_word("topic", topic)?;
        self.list(
            |out| wire::begin(out, "QUEUES", topic),
            "QUEUE ",
            |fields| {
                Some(QueueStatus {
                    group: fields.text("name")?,
                    confirmed: fields.number("confirmed")?,
                    next: fields.number("next")?,
                    ready: fields.number("ready")?,
                    reserved: fields.number("reserved")?,
                    delayed: fields.number("delayed")?,
                    dying: fields.number("dying")?,
                    waiting: fields.number("waiting")?,
                    journal_bytes: fields.number("journalBytes")?,
                    journal_forces: fields.number("journalForces")?,
                })
            },
        )
    }

    /// Messages from `from` on that were reserved and are not confirmed, at most `max`. The broker has a bound of its own, so there may be
    /// more behind the last also where there are fewer than `max`.
    ///
    /// # Errors
    /// Every kind of [`Error`].
    pub fn pending(
        &mut self,
        topic: Option<&str>,
        group: &str,
        from: u64,
        max: u64,
    ) -> Result<Vec<PendingStatus>, Error> {
        check_word("topic", topic)?;
        check_word("group", Some(group))?;
        let request = |out: &mut Vec<u8>| {
            wire::begin(out, "PENDING", topic);
            wire::word(out, group.as_bytes());
            wire::number(out, from);
            wire::number(out, max);
        };
        self.list(request, "PENDING ", |fields| {
            Some(PendingStatus {
                offset: wire::parse_number(wire::words(fields.0).next()?)?,
                deliveries: u32::try_from(fields.number("deliveries")?).ok()?,
                state: match fields.get("state")? {
                    b"reserved" => PendingState::Reserved {
                        connection: fields.number("connection")?,
                        peer: String::from_utf8_lossy(fields.get("peer")?).into_owned(),
                        left_ms: fields.number("leftMs")?,
                    },
                    b"ready" => PendingState::Ready { due_ms: 0 },
                    b"delayed" => PendingState::Ready { due_ms: fields.number("dueMs")? },
                    b"dying" => PendingState::Dying,
                    _ => return None,
                },
            })
        })
    }

    /// Sends a verb about messages of a work queue, and takes the line that answers it.
    fn about(&mut self, topic: Option<&str>, group: &str, verb: &str, numbers: &[u64]) -> Result<Vec<u8>, Error> {
        check_word("topic", topic)?;
        check_word("group", Some(group))?;
        self.request(|out| {
            wire::begin(out, verb, topic);
            wire::word(out, group.as_bytes());
            numbers.iter().for_each(|n| wire::number(out, *n));
        })
    }

    fn one_answer(&mut self, text: &[u8], prefix: &'static str, offset: u64) -> Result<(), Error> {
        self.answer(text, prefix, |rest| (wire::parse_number(rest)? == offset).then_some(()))
    }
}
