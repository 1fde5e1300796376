//! A client of the line protocol: blocking, pipelined, reconnecting. Used by the command line, the bench and the tests.
//!
//! One [`Client`] is one connection. Requests are answered in order, so publishes may be pipelined: thousands are in
//! flight with a system call for many of them.
//!
//! ```no_run
//! use plimsoll::client::{Client, Options, Outcome, Publication};
//! use plimsoll_core::protocol::Level;
//!
//! let mut client = Client::connect("127.0.0.1:7717", Options::default())?;
//! for text in ["one", "two", "three"] {
//!     client.publish_nowait(None, Level::Durable, &Publication::new(text.as_bytes()))?;
//! }
//! while let Some(outcome) = client.recv_reply() {
//!     match outcome {
//!         Outcome::Stored { offset, level } => println!("{offset} is {}", level.as_str()),
//!         Outcome::Refused(error) => println!("not stored: {error}"),
//!         Outcome::Unknown => println!("nobody knows: {:?}", client.loss()),
//!     }
//! }
//! # Ok::<(), plimsoll::client::Error>(())
//! ```
//!
//! # What a lost connection means
//!
//! A publish whose reply is lost is *indeterminate*: it may be stored or not, and the client says so
//! ([`Outcome::Unknown`]). It never repeats one by itself; [`Publisher`] does, when told to, and then a message may be
//! stored twice, unless it has an id ([`Publication::id`]). The next request connects again, for as long as [`Options::reconnect_for`] allows.

mod publisher;
mod queue;
#[cfg(test)]
mod tests;
pub mod wire;

pub use publisher::{Publisher, Summary};
pub use wire::{Batch, Delivered, Message, Publication};

use plimsoll_core::error::Code;
use plimsoll_core::message;
use plimsoll_core::protocol::{GroupStatus, Level, SeekTo, TopicStatus};
use plimsoll_core::record::{self, Decoded, Frame, Salt};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::fmt;
use std::io::{self, Read};
use std::net::{TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};
use wire::{BatchParser, Inbox, Progress, PublishReply};

/// How patient a client is.
#[derive(Clone, Debug)]
pub struct Options {
    /// For one attempt to connect. Default 5 s.
    pub connect_timeout: Duration,
    /// How long the broker may be silent while a reply is due (beside the wait that a FETCH asks for). Default 30 s.
    pub reply_timeout: Duration,
    /// For how long a lost connection, or a first one that fails, is tried again. Default: not at all.
    pub reconnect_for: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            connect_timeout: Duration::from_secs(5),
            reply_timeout: Duration::from_secs(30),
            reconnect_for: Duration::ZERO,
        }
    }
}

/// What became of a request instead of its reply.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// Nobody answers at the address. Nothing was sent.
    #[error("cannot connect to {address}: {detail}")]
    Connect {
        /// Where.
        address: String,
        /// What the system said.
        detail: String,
    },
    /// The broker answered `ERR`.
    #[error("{0}")]
    Broker(BrokerError),
    /// The connection broke before the reply came. Whether the request was carried out is unknown.
    #[error("the connection to {address} was lost before the reply came: {detail}")]
    Disconnected {
        /// Whom to.
        address: String,
        /// What the system said.
        detail: String,
    },
    /// The broker was silent for this long. Whether the request was carried out is unknown.
    #[error("no reply from {address} within {} s", after.as_secs_f64())]
    Timeout {
        /// Whom.
        address: String,
        /// How long was waited.
        after: Duration,
    },
    /// What came is not the reply to what was asked. Whether the request was carried out is unknown.
    #[error("not understood: {0}; is this a Plimsoll broker?")]
    Protocol(String),
    /// The request can't be made. Nothing was sent.
    #[error("{0}")]
    Request(String),
}

impl Error {
    /// Whether the request may have been carried out all the same.
    pub fn is_indeterminate(&self) -> bool {
        matches!(self, Error::Disconnected { .. } | Error::Timeout { .. } | Error::Protocol(_))
    }

    /// Whether the broker answered with this code.
    pub fn is(&self, code: Code) -> bool {
        matches!(self, Error::Broker(error) if error.known() == Some(code))
    }
}

/// An `ERR` reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BrokerError {
    /// The code as it came; a newer broker may have codes that this client does not know.
    pub code: String,
    /// What to do about it, for people.
    pub sentence: String,
}

impl BrokerError {
    /// The code, if this client knows it.
    pub fn known(&self) -> Option<Code> {
        Code::ALL.iter().find(|(_, word)| *word == self.code).map(|(code, _)| *code)
    }
}

impl fmt::Display for BrokerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.code, self.sentence)
    }
}

/// What became of a publish.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The message has this offset and is this safe.
    Stored {
        /// Its offset; of a batch that of its first message, and the others follow.
        offset: u64,
        /// The level reached.
        level: Level,
    },
    /// The broker refused it. Nothing was stored.
    Refused(BrokerError),
    /// The reply was lost, see [`Client::loss`]: stored or not, at most once and whole.
    Unknown,
}

/// Version and limits of a broker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// The broker's version.
    pub version: String,
    /// The largest payload: key, headers and value together, bytes.
    pub payload_bytes_max: u64,
    /// The largest batch, bytes with the length (4) of each message. 0: a broker that takes none.
    pub publish_batch_bytes_max: u64,
    /// The most messages of a batch.
    pub publish_batch_messages_max: u64,
    /// Unanswered requests of one connection after which it is not read.
    pub unanswered_max: u64,
    /// The longest wait of a FETCH, milliseconds.
    pub fetch_wait_ms_max: u64,
    /// Where a reply of messages stops, bytes.
    pub fetch_bytes_max: u64,
}

/// A connection to a broker. See the module.
#[derive(Debug)]
pub struct Client {
    address: String,
    options: Options,
    connection: Option<Connection>,
    /// Publishes sent on the present connection whose replies have not been taken.
    in_flight: u64,
    /// Publishes before those whose replies are lost.
    unknown: u64,
    loss: Option<Error>,
    parser: BatchParser,
}

impl Client {
    /// Connects to `host:port`.
    ///
    /// # Errors
    /// [`Error::Connect`].
    pub fn connect(address: &str, options: Options) -> Result<Client, Error> {
        let mut client = Client {
            address: address.to_owned(),
            options,
            connection: None,
            in_flight: 0,
            unknown: 0,
            loss: None,
            parser: BatchParser::default(),
        };
        client.connected()?;
        Ok(client)
    }

    /// Where it connects to.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Why the last connection was lost, if one was.
    pub fn loss(&self) -> Option<&Error> {
        self.loss.as_ref()
    }

    /// Publishes and waits for the reply.
    ///
    /// # Errors
    /// [`Error::Connect`] and [`Error::Request`]: nothing was sent. What happened to what was sent is an [`Outcome`].
    pub fn publish(&mut self, topic: Option<&str>, level: Level, message: &Publication<'_>) -> Result<Outcome, Error> {
        self.nothing_in_flight()?;
        self.publish_nowait(topic, level, message)?;
        Ok(self.recv_reply().expect("one is in flight"))
    }

    /// Publishes messages as one, which an id names as a whole, and waits for the reply: all of them are stored or, after any crash, none. The broker says in
    /// [`Hello`] how many there may be, and how many bytes.
    ///
    /// # Errors
    /// As [`Client::publish`].
    pub fn publish_batch(
        &mut self,
        topic: Option<&str>,
        level: Level,
        id: Option<(u64, u32)>,
        values: &[&[u8]],
    ) -> Result<Outcome, Error> {
        self.nothing_in_flight()?;
        check_word("topic", topic)?;
        let count =
            u32::try_from(values.len()).map_err(|_| Error::Request("no broker takes as many messages".into()))?;
        let mut body = Vec::new();
        values.iter().for_each(|value| wire::append_to_batch(&mut body, value));
        wire::encode_batch(&mut self.connected()?.outbox, topic, level, id, count, &body);
        self.sent_one();
        Ok(self.recv_reply().expect("one is in flight"))
    }

    /// Publishes without waiting. What is sent gathers in a buffer until there is much of it, or until
    /// [`Client::flush`] or [`Client::recv_reply`]. The caller bounds how many are in flight.
    ///
    /// # Errors
    /// As [`Client::publish`].
    pub fn publish_nowait(
        &mut self,
        topic: Option<&str>,
        level: Level,
        message: &Publication<'_>,
    ) -> Result<(), Error> {
        check_word("topic", topic)?;
        wire::encode_publish(&mut self.connected()?.outbox, topic, level, message)?;
        self.sent_one();
        Ok(())
    }

    /// As [`Client::publish_nowait`], with a request made by [`wire::encode_publish`].
    ///
    /// # Errors
    /// As [`Client::publish`].
    pub fn publish_encoded(&mut self, request: &[u8]) -> Result<(), Error> {
        self.connected()?.outbox.extend_from_slice(request);
        self.sent_one();
        Ok(())
    }

    fn sent_one(&mut self) {
        self.in_flight += 1;
        if self.connection.as_ref().is_some_and(|connection| connection.outbox.len() >= OUTBOX_BYTES) {
            self.flush();
        }
    }

    /// Sends what has gathered. A connection that breaks here shows when the replies are taken.
    pub fn flush(&mut self) {
        let timeout = self.options.reply_timeout;
        if let Some(connection) = &mut self.connection {
            connection.flush(timeout);
        }
    }

    /// How many publishes have a reply still to be taken.
    pub fn in_flight(&self) -> u64 {
        self.unknown + self.in_flight
    }

    /// What became of the oldest publish in flight; sends and waits where needed. `None`: nothing is in flight.
    pub fn recv_reply(&mut self) -> Option<Outcome> {
        if self.unknown > 0 {
            self.unknown -= 1;
            return Some(Outcome::Unknown);
        }
        if self.in_flight == 0 {
            return None;
        }
        let reply = self.line().and_then(wire::publish_reply);
        match reply {
            Ok(reply) => {
                self.in_flight -= 1;
                self.used_line();
                Some(match reply {
                    PublishReply::Stored { offset, level } => Outcome::Stored { offset, level },
                    PublishReply::Refused(error) => Outcome::Refused(error),
                })
            }
            Err(error) => {
                self.lost(&error);
                self.recv_reply()
            }
        }
    }

    /// Whether [`Client::recv_reply`] would answer without waiting.
    pub fn has_reply(&mut self) -> bool {
        self.unknown > 0 || self.connection.as_mut().is_some_and(|connection| connection.inbox.line().is_some())
    }

    /// The next messages for a group, at most `max`, waiting up to `wait_ms` for the first.
    ///
    /// # Errors
    /// Every kind of [`Error`]. After a lost connection delivery starts again from the committed offset.
    pub fn fetch(
        &mut self,
        topic: Option<&str>,
        group: &str,
        max: u64,
        wait_ms: u64,
        meta: bool,
    ) -> Result<Batch<'_>, Error> {
        check_word("topic", topic)?;
        check_word("group", Some(group))?;
        self.send(|out| {
            wire::begin(out, "FETCH", topic);
            wire::word(out, group.as_bytes());
            wire::number(out, max);
            wire::number(out, wait_ms);
            if meta {
                wire::word(out, b"META");
            }
        })?;
        self.receive_batch(Duration::from_millis(wait_ms))
    }

    /// Messages from an offset on, at most `max`, without a group.
    ///
    /// # Errors
    /// Every kind of [`Error`].
    pub fn read(&mut self, topic: Option<&str>, offset: u64, max: u64, meta: bool) -> Result<Batch<'_>, Error> {
        check_word("topic", topic)?;
        self.send(|out| {
            wire::begin(out, "READ", topic);
            wire::number(out, offset);
            wire::number(out, max);
            if meta {
                wire::word(out, b"META");
            }
        })?;
        self.receive_batch(Duration::ZERO)
    }

    /// Acknowledges everything up to and including `offset`; answers the committed offset.
    ///
    /// # Errors
    /// Every kind of [`Error`].
    pub fn ack(&mut self, topic: Option<&str>, group: &str, offset: u64) -> Result<u64, Error> {
        check_word("topic", topic)?;
        check_word("group", Some(group))?;
        self.request(|out| {
            wire::begin(out, "ACK", topic);
            wire::word(out, group.as_bytes());
            wire::number(out, offset);
        })
        .and_then(|text| self.answer(&text, "ACKED ", wire::parse_number))
    }

    /// Sets a group's committed offset; answers it.
    ///
    /// # Errors
    /// Every kind of [`Error`].
    pub fn seek(&mut self, topic: Option<&str>, group: &str, to: SeekTo) -> Result<u64, Error> {
        check_word("topic", topic)?;
        check_word("group", Some(group))?;
        self.request(|out| {
            wire::begin(out, "SEEK", topic);
            wire::word(out, group.as_bytes());
            match to {
                SeekTo::Offset(offset) => wire::number(out, offset),
                SeekTo::Start => wire::word(out, b"start"),
                SeekTo::End => wire::word(out, b"end"),
                SeekTo::TimeMs(time_ms) => wire::word(out, format!("time={time_ms}").as_bytes()),
            }
        })
        .and_then(|text| self.answer(&text, "SOUGHT ", wire::parse_number))
    }

    /// Whole stored frames of a closed segment, beginning with the one that holds `offset`. No frames: `offset` lies in
    /// the active segment; go on with [`Client::read`].
    ///
    /// # Errors
    /// Every kind of [`Error`].
    pub fn read_raw(&mut self, topic: Option<&str>, offset: u64, bytes_max: u64) -> Result<RawFrames<'_>, Error> {
        check_word("topic", topic)?;
        let head = self.request(|out| {
            wire::begin(out, "READRAW", topic);
            wire::number(out, offset);
            wire::number(out, bytes_max);
        })?;
        let [first, length, salt] = self.answer(&head, "FRAMES ", |rest| {
            let mut numbers = wire::words(rest).map(wire::parse_number);
            Some([numbers.next()??, numbers.next()??, numbers.next()??])
        })?;
        let Ok(salt) = u32::try_from(salt) else {
            return Err(self.refuse("a salt of 32 bits", &head));
        };
        self.receive_bytes(length as usize)?;
        let connection = self.connection.as_mut().expect("they have just come");
        connection.spent = length as usize;
        Ok(RawFrames { first, salt: Salt(salt), bytes: &connection.inbox.unused()[..length as usize] })
    }

    /// Marks and counts of a topic.
    ///
    /// # Errors
    /// Every kind of [`Error`].
    pub fn status(&mut self, topic: Option<&str>) -> Result<TopicStatus, Error> {
        check_word("topic", topic)?;
        let text = self.request(|out| wire::begin(out, "STATUS", topic))?;
        self.answer(&text, "STATUS ", |rest| {
            let fields = Fields(rest);
            Some(TopicStatus {
                topic: fields.text("topic")?,
                start: fields.number("start")?,
                durable: fields.number("durable")?,
                written: fields.number("written")?,
                next: fields.number("next")?,
                segments: fields.number("segments")?,
                bytes: fields.number("bytes")?,
                groups: fields.number("groups")?,
                forces: fields.number("forces")?,
                force_mean_us: fields.number("forceMeanUs")?,
                force_total_ms: fields.number("forceTotalMs")?,
                unforced_max: fields.number("unforcedMax")?,
                unforced_ms_max: fields.number("unforcedMaxMs")?,
                packed: fields.number("packed")?,
                packed_bytes: fields.number("packedBytes")?,
                pack_failures: fields.number("packFailures")?,
            })
        })
    }

    /// The names of all topics.
    ///
    /// # Errors
    /// Every kind of [`Error`].
    pub fn topics(&mut self) -> Result<Vec<String>, Error> {
        self.list(|out| wire::begin(out, "TOPICS", None), "TOPIC ", |fields| fields.text("name"))
    }

    /// The groups of a topic.
    ///
    /// # Errors
    /// Every kind of [`Error`].
    pub fn groups(&mut self, topic: Option<&str>) -> Result<Vec<GroupStatus>, Error> {
        check_word("topic", topic)?;
        self.list(
            |out| wire::begin(out, "GROUPS", topic),
            "GROUP ",
            |fields| {
                Some(GroupStatus {
                    group: fields.text("name")?,
                    committed: fields.number("committed")?,
                    lag: fields.number("lag")?,
                    held: fields.get("held")? == b"yes",
                })
            },
        )
    }

    /// Makes a topic.
    ///
    /// # Errors
    /// Every kind of [`Error`].
    pub fn create(&mut self, topic: &str) -> Result<(), Error> {
        self.create_with(topic, &[])
    }

    /// Makes a topic that is kept as its settings say: names and values as in docs/protocol.md.
    ///
    /// # Errors
    /// Every kind of [`Error`].
    pub fn create_with(&mut self, topic: &str, settings: &[(&str, String)]) -> Result<(), Error> {
        self.tell(topic, "CREATE", "CREATED ", settings)
    }

    /// Changes settings of a topic; the value `default` takes one back.
    ///
    /// # Errors
    /// Every kind of [`Error`].
    pub fn alter(&mut self, topic: &str, settings: &[(&str, String)]) -> Result<(), Error> {
        self.tell(topic, "ALTER", "ALTERED ", settings)
    }

    fn tell(
        &mut self,
        topic: &str,
        verb: &'static str,
        answer: &'static str,
        settings: &[(&str, String)],
    ) -> Result<(), Error> {
        check_word("topic", Some(topic))?;
        for (_, value) in settings {
            check_word("setting", Some(value))?;
        }
        let text = self.request(|out| {
            wire::begin(out, verb, Some(topic));
            settings.iter().for_each(|(name, value)| wire::word(out, format!("{name}={value}").as_bytes()));
        })?;
        self.answer(&text, answer, |name| (name == topic.as_bytes()).then_some(()))
    }

    /// The settings of a topic: name, value, and who has said so (`topic`, `broker`, `default`).
    ///
    /// # Errors
    /// Every kind of [`Error`].
    pub fn settings(&mut self, topic: Option<&str>) -> Result<Vec<(String, String, String)>, Error> {
        check_word("topic", topic)?;
        self.list(
            |out| wire::begin(out, "SETTINGS", topic),
            "SETTING ",
            |fields| {
                let mut words = wire::words(fields.0).map(|word| String::from_utf8_lossy(word).into_owned());
                Some((words.next()?, words.next()?, words.next()?))
            },
        )
    }

    /// Removes every message below `before`, which must not lie above the line. Answers where the log begins then.
    ///
    /// # Errors
    /// Every kind of [`Error`].
    pub fn purge(&mut self, topic: Option<&str>, before: u64) -> Result<u64, Error> {
        check_word("topic", topic)?;
        let text = self.request(|out| {
            wire::begin(out, "PURGE", topic);
            wire::number(out, before);
        })?;
        self.answer(&text, "PURGED ", wire::parse_number)
    }

    /// Deletes a topic with all that is in it, or one of its groups.
    ///
    /// # Errors
    /// Every kind of [`Error`].
    pub fn delete(&mut self, topic: &str, group: Option<&str>) -> Result<(), Error> {
        check_word("topic", Some(topic))?;
        check_word("group", group)?;
        let text = self.request(|out| {
            wire::begin(out, "DELETE", Some(topic));
            group.into_iter().for_each(|group| wire::word(out, group.as_bytes()));
        })?;
        let deleted = [topic].into_iter().chain(group).collect::<Vec<_>>().join(" ");
        self.answer(&text, "DELETED ", |rest| (rest == deleted.as_bytes()).then_some(()))
    }

    /// The first offset, in the order of offsets, whose message was accepted at or after a time, milliseconds since 1970; the line where
    /// there is none.
    ///
    /// # Errors
    /// Every kind of [`Error`].
    pub fn find_time(&mut self, topic: Option<&str>, time_ms: i64) -> Result<u64, Error> {
        check_word("topic", topic)?;
        let text = self.request(|out| {
            wire::begin(out, "FIND", topic);
            wire::word(out, format!("time={time_ms}").as_bytes());
        })?;
        self.answer(&text, "FOUND ", wire::parse_number)
    }

    /// Asks whether anybody is there.
    ///
    /// # Errors
    /// Every kind of [`Error`].
    pub fn ping(&mut self) -> Result<(), Error> {
        let text = self.request(|out| wire::begin(out, "PING", None))?;
        self.answer(&text, "PONG", |rest| rest.is_empty().then_some(()))
    }

    /// Version and limits of the broker.
    ///
    /// # Errors
    /// Every kind of [`Error`].
    pub fn hello(&mut self) -> Result<Hello, Error> {
        let text = self.request(|out| wire::begin(out, "HELLO", None))?;
        self.answer(&text, "HELLO ", |rest| {
            let fields = Fields(rest);
            Some(Hello {
                version: fields.text("version")?,
                payload_bytes_max: fields.number("maxPayload")?,
                publish_batch_bytes_max: fields.number("maxPublishBatch").unwrap_or(0),
                publish_batch_messages_max: fields.number("maxPublishBatchMessages").unwrap_or(0),
                unanswered_max: fields.number("maxUnanswered")?,
                fetch_wait_ms_max: fields.number("maxFetchWaitMs")?,
                fetch_bytes_max: fields.number("maxFetchBytes")?,
            })
        })
    }

    /// Takes leave: everything before has been answered, and the broker closes the connection.
    ///
    /// # Errors
    /// Every kind of [`Error`].
    pub fn quit(mut self) -> Result<(), Error> {
        let text = self.request(|out| wire::begin(out, "QUIT", None))?;
        self.answer(&text, "BYE", |rest| rest.is_empty().then_some(()))
    }

    /// Sends a request and takes its one line of a reply. `ERR` is an error.
    fn request(&mut self, build: impl FnOnce(&mut Vec<u8>)) -> Result<Vec<u8>, Error> {
        self.send(build)?;
        self.take_line()
    }

    /// What stands behind `prefix`, or a protocol error that ends the connection: nobody knows what comes next.
    fn answer<T>(
        &mut self,
        text: &[u8],
        prefix: &'static str,
        parse: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Result<T, Error> {
        match text.strip_prefix(prefix.as_bytes()).and_then(parse) {
            Some(value) => Ok(value),
            None => Err(self.refuse(prefix.trim_end(), text)),
        }
    }

    fn refuse(&mut self, expected: &str, text: &[u8]) -> Error {
        let error = wire::unexpected(expected, text);
        self.lost(&error);
        error
    }

    fn list<T>(
        &mut self,
        request: impl FnOnce(&mut Vec<u8>),
        prefix: &'static str,
        parse: impl Fn(&Fields<'_>) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        self.send(request)?;
        let mut found = Vec::new();
        loop {
            let text = self.take_line()?;
            if let Some(count) = text.strip_prefix(b"END ") {
                return match wire::parse_number(count) == Some(found.len() as u64) {
                    true => Ok(found),
                    false => Err(self.refuse(&format!("END {}", found.len()), &text)),
                };
            }
            found.push(self.answer(&text, prefix, |rest| parse(&Fields(rest)))?);
        }
    }

    fn take_line(&mut self) -> Result<Vec<u8>, Error> {
        let taken = self.line().map(|text| (text.to_vec(), wire::broker_error(text)));
        match taken {
            Ok((text, refused)) => {
                self.used_line();
                refused.map_or(Ok(text), |error| Err(Error::Broker(error)))
            }
            Err(error) => {
                self.lost(&error);
                Err(error)
            }
        }
    }

    fn receive_batch(&mut self, wait: Duration) -> Result<Batch<'_>, Error> {
        let timeout = self.options.reply_timeout + wait;
        let received = self.receive_whole(timeout);
        match received {
            Ok(None) => {
                let connection = self.connection.as_ref().expect("a reply has just come");
                Ok(self.parser.batch(&connection.inbox.unused()[..connection.spent]))
            }
            Ok(Some(refused)) => Err(Error::Broker(refused)),
            Err(error) => {
                self.lost(&error);
                Err(error)
            }
        }
    }

    fn receive_bytes(&mut self, length: usize) -> Result<(), Error> {
        let timeout = self.options.reply_timeout;
        loop {
            let connection = self.connection.as_mut().expect("a reply has just come");
            if connection.inbox.unused().len() >= length {
                return Ok(());
            }
            if let Err(loss) = connection.fill(timeout) {
                let error = loss.error(&self.address, timeout);
                self.lost(&error);
                return Err(error);
            }
        }
    }

    fn receive_whole(&mut self, timeout: Duration) -> Result<Option<BrokerError>, Error> {
        let Client { connection, parser, address, .. } = self;
        let connection = connection.as_mut().expect("a request has just been sent");
        parser.clear();
        loop {
            match parser.advance(connection.inbox.unused())? {
                Progress::NeedMore => connection.fill(timeout).map_err(|loss| loss.error(address, timeout))?,
                Progress::Whole(bytes) => {
                    connection.spent = bytes;
                    return Ok(None);
                }
                Progress::Refused(error, bytes) => {
                    connection.spent = bytes;
                    return Ok(Some(error));
                }
            }
        }
    }

    fn send(&mut self, build: impl FnOnce(&mut Vec<u8>)) -> Result<(), Error> {
        self.nothing_in_flight()?;
        let connection = self.connected()?;
        build(&mut connection.outbox);
        connection.outbox.push(b'\n');
        self.flush();
        Ok(())
    }

    fn nothing_in_flight(&self) -> Result<(), Error> {
        match self.in_flight() {
            0 => Ok(()),
            n => Err(Error::Request(format!("{n} publishes are in flight: take their replies first (recv_reply)"))),
        }
    }

    /// The next line, without its end, left in the inbox until [`Client::used_line`].
    fn line(&mut self) -> Result<&[u8], Error> {
        let timeout = self.options.reply_timeout;
        let Client { connection, address, .. } = self;
        let connection = connection.as_mut().expect("something is due on this connection");
        let end = loop {
            match connection.inbox.line() {
                Some(end) => break end,
                None if connection.inbox.unused().len() > LINE_BYTES_MAX => {
                    return Err(Error::Protocol("a line without an end".into()));
                }
                None => {
                    connection.flush(timeout);
                    connection.fill(timeout).map_err(|loss| loss.error(address, timeout))?;
                }
            }
        };
        Ok(&connection.inbox.unused()[..end])
    }

    fn used_line(&mut self) {
        if let Some(connection) = &mut self.connection {
            let end = connection.inbox.line().expect("it has just been used");
            connection.inbox.consume(end + 1);
        }
    }

    fn lost(&mut self, error: &Error) {
        self.connection = None;
        self.unknown += std::mem::take(&mut self.in_flight);
        self.loss = Some(error.clone());
    }

    /// The connection; makes one where there is none, and drops what the last reply left behind.
    fn connected(&mut self) -> Result<&mut Connection, Error> {
        if self.connection.is_none() {
            self.connection = Some(self.connect_patiently()?);
        }
        let connection = self.connection.as_mut().expect("just made");
        let spent = std::mem::take(&mut connection.spent);
        connection.inbox.consume(spent);
        Ok(connection)
    }

    fn connect_patiently(&self) -> Result<Connection, Error> {
        let deadline = Instant::now() + self.options.reconnect_for;
        let mut pause = Duration::from_millis(20);
        loop {
            match Connection::open(&self.address, self.options.connect_timeout) {
                Ok(connection) => return Ok(connection),
                Err(source) if Instant::now() + pause > deadline => {
                    return Err(Error::Connect { address: self.address.clone(), detail: source.to_string() });
                }
                Err(_) => thread::sleep(pause),
            }
            pause = (pause * 2).min(Duration::from_secs(2));
        }
    }
}

/// Stored frames as they lie on the disk. The checksums are checked here, end to end, by [`RawFrames::frames`].
#[derive(Clone, Copy, Debug)]
pub struct RawFrames<'a> {
    /// The offset of the first frame.
    pub first: u64,
    /// What the checksums of the segment start from.
    pub salt: Salt,
    /// The frames.
    pub bytes: &'a [u8],
}

impl<'a> RawFrames<'a> {
    /// Each frame, its checksum verified and its offset the expected one; the iterator ends behind an error.
    pub fn frames(&self) -> impl Iterator<Item = Result<Frame<'a>, Error>> + use<'a> {
        let (salt, mut expected, mut rest) = (self.salt, self.first, self.bytes);
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let problem = match record::decode(rest, salt) {
                Decoded::Frame(frame) if frame.offset == expected => {
                    expected += frame.count;
                    rest = &rest[frame.size()..];
                    return Some(Ok(frame));
                }
                Decoded::Frame(frame) => format!("a frame of offset {}", frame.offset),
                Decoded::NeedBytes(_) => "half a frame".to_owned(),
                Decoded::Invalid(reason) => reason.to_string(),
            };
            rest = &[];
            Some(Err(Error::Protocol(format!("where frame {expected} should stand: {problem}"))))
        })
    }

    /// Each message with its offset, also those of batches; as [`RawFrames::frames`].
    pub fn messages(&self) -> impl Iterator<Item = Result<(u64, message::Message<'a>), Error>> + use<'a> {
        self.frames().flat_map(|frame| {
            let (frame, error) = match frame {
                Ok(frame) => (Some(frame), None),
                Err(error) => (None, Some(Err(error))),
            };
            let messages = frame.and_then(|frame| message::messages(&frame)).into_iter().flatten().map(Ok);
            messages.chain(error)
        })
    }
}

/// `name=value` words of a line.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn get(&self, name: &str) -> Option<&'a [u8]> {
        wire::words(self.0).find_map(|word| word.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
    }

    fn number(&self, name: &str) -> Option<u64> {
        wire::parse_number(self.get(name)?)
    }

    fn text(&self, name: &str) -> Option<String> {
        String::from_utf8(self.get(name)?.to_vec()).ok()
    }
}

/// When this much has gathered, it is sent.
const OUTBOX_BYTES: usize = 64 << 10;
/// No line of a reply other than of messages is nearly this long.
const LINE_BYTES_MAX: usize = 64 << 10;

/// A socket with its buffers. Reads block; writes never do, because a broker that is not read stops reading: while
/// there is no room for requests, replies are taken in.
#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    outbox: Vec<u8>,
    inbox: Inbox,
    /// Bytes of the inbox that a borrowed reply still shows; dropped by the next request.
    spent: usize,
    read_timeout: Option<Duration>,
    /// Sending failed. What the broker said before is still taken: it may say why, and it lessens what is unknown.
    send_failure: Option<io::Error>,
}

/// Why a reply will not come.
enum Loss {
    Silent,
    Closed,
    Failed(io::Error),
}

impl Loss {
    fn error(self, address: &str, after: Duration) -> Error {
        let address = address.to_owned();
        let detail = match self {
            Loss::Silent => return Error::Timeout { address, after },
            Loss::Closed => "the broker closed it".to_owned(),
            Loss::Failed(error) => error.to_string(),
        };
        Error::Disconnected { address, detail }
    }
}

impl Connection {
    fn open(address: &str, timeout: Duration) -> io::Result<Connection> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, timeout) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    return Ok(Connection {
                        stream,
                        outbox: Vec::with_capacity(OUTBOX_BYTES * 2),
                        inbox: Inbox::default(),
                        spent: 0,
                        read_timeout: None,
                        send_failure: None,
                    });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn flush(&mut self, timeout: Duration) {
        let mut sent = 0;
        while sent < self.outbox.len() && self.send_failure.is_none() {
            match send(&self.stream, &self.outbox[sent..], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(n) => sent += n,
                Err(rustix::io::Errno::AGAIN) => {
                    if let Err(error) = self.wait_for_room(timeout) {
                        self.send_failure = Some(error);
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => self.send_failure = Some(error.into()),
            }
        }
        self.outbox.clear();
    }

    fn wait_for_room(&mut self, timeout: Duration) -> io::Result<()> {
        let timeout = timeout.try_into().map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let mut ready = [PollFd::new(&self.stream, PollFlags::IN | PollFlags::OUT)];
        match poll(&mut ready, Some(&timeout)) {
            Ok(0) => return Err(io::Error::new(io::ErrorKind::TimedOut, "the broker takes nothing")),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        if ready[0].revents().contains(PollFlags::IN) {
            match recv(&self.stream, self.inbox.room(), RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the broker closed it")),
                Ok((n, _)) => self.inbox.received(n),
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Waits for at least one byte.
    fn fill(&mut self, timeout: Duration) -> Result<(), Loss> {
        if self.read_timeout != Some(timeout) {
            self.stream.set_read_timeout(Some(timeout)).map_err(Loss::Failed)?;
            self.read_timeout = Some(timeout);
        }
        loop {
            match self.stream.read(self.inbox.room()) {
                Ok(0) => return Err(self.send_failure.take().map_or(Loss::Closed, Loss::Failed)),
                Ok(n) => {
                    self.inbox.received(n);
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    return Err(Loss::Silent);
                }
                Err(error) => return Err(Loss::Failed(error)),
            }
        }
    }
}

/// A name with a space or a newline in it would become another request.
fn check_word(what: &str, name: Option<&str>) -> Result<(), Error> {
    match name {
        Some(name) if !wire::is_word(name.as_bytes()) => {
            Err(Error::Request(format!("{name:?} can't be the name of a {what}: use A-Z a-z 0-9 . _ -")))
        }
        _ => Ok(()),
    }
}
