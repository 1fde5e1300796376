//! The line protocol: bytes to requests here, replies to bytes in `encode`. The grammar is in docs/protocol.md.
//!
//! Bytes come in any fragmentation, one at a time if need be, and what a stream means does not depend on it:
//! - No byte is searched twice for the end of a line: the codec remembers how far it got.
//! - Memory is bounded (P13): what is too long is refused once, as soon as that is certain, and then passed over up to
//!   where the next request begins, without being kept.
//! - A line or a body that was refused is one request with one reply (P14). Only where the beginning of the next request
//!   can't be found any more is the framing lost.

mod encode;
#[cfg(test)]
mod tests;

pub use encode::{encode_end, encode_gap, encode_message, encode_reply};

use crate::error::{Code, RequestError};
use crate::layout;
use crate::protocol::{Body, Input, Level, Next, Publish, Request, SeekTo, TopicRef, percent};
use crate::settings::{Change, Definition, SETTINGS, Settings};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use bytes::Bytes;
use core::{fmt, mem, str};

/// How much longer than the payload limit a line may be: room for the verb, names, numbers, short keys and headers.
pub const LINE_BYTES_BESIDE_PAYLOAD: u32 = 4096;
/// The most headers that one message may have. With their lengths they fit into the 64 KiB by which the format's largest
/// frame exceeds the largest payload limit.
pub const HEADERS_MAX: usize = 1000;
/// A body that is refused is passed over if it is no longer than this. A longer one is taken for a broken client.
pub const SKIPPED_BYTES_MAX: u64 = 1 << 30;

/// Longer than any valid beginning of a PUB line: verb, topic, level, and the spaces behind them.
const HEAD_BYTES_MAX: usize = 128;

/// Finds requests in what one connection sends. See the module.
#[derive(Debug)]
pub struct LineCodec {
    payload_bytes_max: usize,
    batch_bytes_max: usize,
    batch_messages_max: u32,
    line_bytes_max: usize,
    state: State,
}

/// What the next byte of the input is.
#[derive(Debug)]
enum State {
    /// The first of a line, `scanned` bytes of which are known to hold no newline.
    Line { scanned: usize },
    /// In the middle of a line that was refused for its length; its body may follow.
    OverlongLine { body: Option<(&'static Verb, usize)> },
    /// The first of the `length` bytes of this PUBN or PUBB; a newline follows them.
    Body { publish: Box<Publish>, length: usize },
    /// One of the last `left` bytes of a request that was refused; a newline follows them.
    RefusedBody { verb: &'static Verb, left: usize },
    /// One that nobody can say the meaning of.
    Broken,
}

const LINE_BEGINS: State = State::Line { scanned: 0 };

/// How large what a connection publishes may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Bytes of a message: key, names and values of headers, and value together.
    pub payload_bytes_max: u32,
    /// Bytes of a batch, with the length of each message.
    pub batch_bytes_max: u32,
    /// Messages of a batch.
    pub batch_messages_max: u32,
}

impl LineCodec {
    /// For a new connection.
    pub fn new(limits: Limits) -> LineCodec {
        LineCodec {
            payload_bytes_max: limits.payload_bytes_max as usize,
            batch_bytes_max: limits.batch_bytes_max as usize,
            batch_messages_max: limits.batch_messages_max,
            line_bytes_max: limits.payload_bytes_max as usize + LINE_BYTES_BESIDE_PAYLOAD as usize,
            state: LINE_BEGINS,
        }
    }

    /// Takes the next request from the beginning of `input`, whose unread rest must come again in the next call.
    ///
    /// After [`Next::NeedMore`] the input holds no more than one unfinished request of a permitted length.
    /// After [`Next::Broken`] everything is dropped, and nothing but `NeedMore` comes any more.
    pub fn next(&mut self, input: &mut Input) -> Next {
        loop {
            match &mut self.state {
                State::Line { scanned } => match input.find(b'\n', *scanned) {
                    Some(end) if end <= self.line_bytes_max => {
                        self.state = LINE_BEGINS;
                        if let Some(next) = self.line(input, end) {
                            return next;
                        }
                    }
                    None if input.len() <= self.line_bytes_max => {
                        *scanned = input.len();
                        return Next::NeedMore;
                    }
                    _ => return self.overlong(input),
                },
                State::OverlongLine { body } => match input.find(b'\n', 0) {
                    Some(end) => {
                        input.skip(end + 1);
                        self.state = match *body {
                            Some((verb, left)) => State::RefusedBody { verb, left },
                            None => LINE_BEGINS,
                        };
                    }
                    None => {
                        input.skip(usize::MAX);
                        return Next::NeedMore;
                    }
                },
                State::Body { publish, length } => {
                    let length = *length;
                    if input.len() <= length {
                        return Next::NeedMore;
                    }
                    let mut publish = mem::replace(&mut **publish, EMPTY_PUBLISH);
                    publish.value = input.take(length);
                    let verb = if publish.batch.is_some() { &PUBB } else { &PUBN };
                    if let Err(error) = self.newline_behind_body(input, verb) {
                        return Next::Broken(error);
                    }
                    return match self.inside_of_batch(&publish) {
                        Ok(()) => Next::Request(Request::Publish(publish)),
                        Err(error) => Next::Refused(error),
                    };
                }
                State::RefusedBody { verb, left } => {
                    let verb = *verb;
                    *left -= input.skip(*left);
                    if input.is_empty() {
                        return Next::NeedMore;
                    }
                    if let Err(error) = self.newline_behind_body(input, verb) {
                        return Next::Broken(error);
                    }
                }
                State::Broken => {
                    input.skip(usize::MAX);
                    return Next::NeedMore;
                }
            }
        }
    }

    /// Takes a line of which `end` bytes stand before the newline. `None`: a body follows that belongs to it.
    fn line(&mut self, input: &mut Input, end: usize) -> Option<Next> {
        let carriage_return = end > 0 && input.byte(end - 1) == b'\r';
        let length = end - usize::from(carriage_return);

        // The payload of a PUB is not touched: only the head of the line is looked at, in place where it can be.
        let mut copy = [0; HEAD_BYTES_MAX];
        let head_length = length.min(HEAD_BYTES_MAX);
        let head = match input.first_piece().get(..head_length) {
            Some(head) => head,
            None => {
                input.peek(&mut copy[..head_length]);
                &copy[..head_length]
            }
        };
        if let Some(rest) = behind_pub(head) {
            let next = match publish_head(rest) {
                Ok((topic, level, payload)) => {
                    let begin = head_length - payload.len();
                    if begin == length {
                        Next::Refused(empty())
                    } else if length - begin > self.payload_bytes_max {
                        Next::Refused(self.too_large(length - begin))
                    } else {
                        input.skip(begin);
                        let value = input.take(length - begin);
                        input.skip(end + 1 - length);
                        let publish = Publish { topic, level, value, ..EMPTY_PUBLISH };
                        return Some(Next::Request(Request::Publish(publish)));
                    }
                }
                Err(error) => Next::Refused(error),
            };
            input.skip(end + 1);
            return Some(next);
        }

        let line = input.take_joined(end + 1);
        let line = &line[..length];
        let (verb, rest) = split_word(line);
        if is_http(verb, line) {
            self.state = State::Broken;
            return Some(Next::Broken(http()));
        }
        if let Some((verb, words)) = with_body(line) {
            return self.line_with_body(verb, words);
        }
        Some(match request(verb, rest) {
            Ok(request) => Next::Request(request),
            Err(error) => Next::Refused(error),
        })
    }

    /// Whatever else is wrong with such a line: as long as it says how many bytes follow, the next request can be found.
    fn line_with_body(&mut self, verb: &'static Verb, words: Words<'_>) -> Option<Next> {
        let Some(length) = body_length(words.clone()) else {
            self.state = State::Broken;
            return Some(Next::Broken(verb.no_length()));
        };
        match self.publish_with_body(words, length) {
            Ok(publish) => {
                self.state = State::Body { publish: Box::new(publish), length };
                None
            }
            Err(error) => {
                self.state = State::RefusedBody { verb, left: length };
                Some(Next::Refused(error))
            }
        }
    }

    fn publish_with_body(&self, words: Words<'_>, length: usize) -> Result<Publish, RequestError> {
        if words.verb.name == PUBB.name { self.batch(words, length) } else { self.message(words, length) }
    }

    /// Reads a PUBB's line; what it says of the bytes behind it is held against them when they are there.
    fn batch(&self, mut words: Words<'_>, length: usize) -> Result<Publish, RequestError> {
        let (topic, level) = (words.topic()?, words.level()?);
        let count = words.number("the number of messages")?;
        words.next();
        let id = words.next().map(|word| words.id(word)).transpose()?;
        if let Some(word) = words.next() {
            return Err(words.wrong(format_args!("{} is one word too many", quoted(word))));
        }
        if count == 0 {
            return Err(RequestError::new(Code::Empty, "a batch has at least one message; nothing was stored"));
        }
        let Some(count) = u32::try_from(count).ok().filter(|count| *count <= self.batch_messages_max) else {
            return Err(RequestError::new(
                Code::TooLarge,
                format!(
                    "{count} messages are over the limit of {} for a batch; send fewer, or start the broker with a larger \
                     --queue-messages",
                    self.batch_messages_max
                ),
            ));
        };
        if length > self.batch_bytes_max {
            return Err(RequestError::new(
                Code::TooLarge,
                format!(
                    "a batch of {length} bytes is over the limit of {}; send less, or start the broker with a larger \
                     --max-publish-batch",
                    self.batch_bytes_max
                ),
            ));
        }
        Ok(Publish { topic, level, id, batch: Some(count), ..EMPTY_PUBLISH })
    }

    /// Whether a batch's messages are as many as it says, each with at least one byte and within the limit, and fill it.
    fn inside_of_batch(&self, publish: &Publish) -> Result<(), RequestError> {
        let Some(count) = publish.batch else { return Ok(()) };
        let mut messages = publish.value.reader();
        let mut left = publish.value.len();
        for at in 1..=count {
            let length = messages.u32().map(|length| length as usize);
            left = left.saturating_sub(4);
            match length {
                Some(0) => {
                    let sentence = format!("message {at} of the batch has no byte; nothing of it was stored");
                    return Err(RequestError::new(Code::Empty, sentence));
                }
                Some(length) if length <= left && length > self.payload_bytes_max => {
                    return Err(RequestError::new(
                        Code::TooLarge,
                        format!(
                            "message {at} of the batch has {length} bytes, over the limit of {}; nothing of it was stored; \
                             send less, or start the broker with a larger --max-payload",
                            self.payload_bytes_max
                        ),
                    ));
                }
                Some(length) if length <= left => {
                    messages.read(length, |_| ());
                    left -= length;
                }
                _ => return Err(PUBB.wrong(format_args!("message {at} of {count} does not end within the batch"))),
            }
        }
        match left {
            0 => Ok(()),
            left => Err(PUBB.wrong(format_args!("{left} bytes are left behind message {count}, the last"))),
        }
    }

    fn message(&self, mut words: Words<'_>, length: usize) -> Result<Publish, RequestError> {
        let mut publish = Publish { topic: words.topic()?, level: words.level()?, ..EMPTY_PUBLISH };
        words.next();
        while let Some(word) = words.next() {
            let Some(equals) = memchr::memchr(b'=', word) else {
                return Err(words.wrong(format_args!("{} is not key=…, id=… or h.<name>=…", quoted(word))));
            };
            let (name, value) = (&word[..equals], &word[equals + 1..]);
            let decoded = percent::decode(value).ok_or_else(|| {
                words.wrong(format_args!(
                    "in {} a % is not followed by two hex digits (a % itself is %25)",
                    quoted(word)
                ))
            });
            if name == b"key" {
                if publish.key.replace(decoded?).is_some() {
                    return Err(words.wrong(format_args!("key= stands there twice")));
                }
            } else if let Some(header) = name.strip_prefix(b"h.") {
                if !is_header_name(header) {
                    return Err(RequestError::new(
                        Code::BadName,
                        format!("a header's name is 1 to 100 of A-Z a-z 0-9 . _ -, not {}", quoted(header)),
                    ));
                }
                if publish.headers.len() == HEADERS_MAX {
                    return Err(words.wrong(format_args!("a message may have at most {HEADERS_MAX} headers")));
                }
                publish.headers.push((header.to_vec(), decoded?));
            } else if name == b"id" {
                if publish.id.replace(words.id(word)?).is_some() {
                    return Err(words.wrong(format_args!("id= stands there twice")));
                }
            } else {
                return Err(words.wrong(format_args!("{} is not key=…, id=… or h.<name>=…", quoted(word))));
            }
        }
        if length == 0 {
            return Err(empty());
        }
        let headers: usize = publish.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        let all = publish.key.as_ref().map_or(0, Vec::len) + headers + length;
        if all > self.payload_bytes_max { Err(self.too_large(all)) } else { Ok(publish) }
    }

    /// Takes the newline that closes a body, and goes on with the next line.
    fn newline_behind_body(&mut self, input: &mut Input, verb: &Verb) -> Result<(), RequestError> {
        let byte = input.byte(0);
        if byte == b'\n' {
            input.skip(1);
            self.state = LINE_BEGINS;
            return Ok(());
        }
        self.state = State::Broken;
        Err(verb.wrong(format_args!(
            "its bytes must be followed by a newline, not {}; where the next request begins can't be known and the \
             connection is closed",
            quoted(&[byte])
        )))
    }

    /// Refuses the line at the beginning of the input, which is certain to be too long.
    fn overlong(&mut self, input: &Input) -> Next {
        let mut head = [0; HEAD_BYTES_MAX];
        let filled = input.peek(&mut head);
        let head = &head[..filled];
        self.state = State::OverlongLine { body: None };
        if behind_pub(head).is_some() {
            return Next::Refused(RequestError::new(
                Code::TooLarge,
                format!(
                    "the payload is over the limit of {} bytes; send less, or start the broker with a larger \
                     --max-payload",
                    self.payload_bytes_max
                ),
            ));
        }
        if let Some((verb, _)) = with_body(head) {
            // What follows such a line is a payload. Were it taken for lines, then whoever wrote the payload could give
            // orders in the name of the client that only passes it on. The last word may be cut off: it is left aside.
            let whole = head.iter().rposition(|byte| *byte == b' ').unwrap_or(0);
            let Some(length) = with_body(&head[..whole]).and_then(|(_, words)| body_length(words)) else {
                self.state = State::Broken;
                return Next::Broken(verb.no_length());
            };
            self.state = State::OverlongLine { body: Some((verb, length)) };
        }
        Next::Refused(RequestError::new(
            Code::LineTooLong,
            format!("a line may have at most {} bytes before its newline", self.line_bytes_max),
        ))
    }

    fn too_large(&self, bytes: usize) -> RequestError {
        RequestError::new(
            Code::TooLarge,
            format!(
                "key, headers and value have {bytes} bytes, over the limit of {}; send less, or start the broker with a \
                 larger --max-payload",
                self.payload_bytes_max
            ),
        )
    }
}

/// Where reading a PUB or PUBN begins.
const EMPTY_PUBLISH: Publish = Publish {
    topic: None,
    level: Level::Accepted,
    key: None,
    headers: Vec::new(),
    id: None,
    batch: None,
    value: Body::One(Bytes::new()),
};

/// A verb and what stands behind it, for the error sentences.
#[derive(Debug)]
struct Verb {
    name: &'static str,
    usage: &'static str,
}

static PUB: Verb = Verb { name: "PUB", usage: "PUB [@topic] ACCEPTED|WRITTEN|DURABLE <payload>" };
static PUBN: Verb = Verb {
    name: "PUBN",
    usage: "PUBN [@topic] ACCEPTED|WRITTEN|DURABLE <number of bytes> [key=<key>] [id=<producer>:<sequence>] \
            [h.<name>=<value>]… and then the bytes and a newline",
};
static PUBB: Verb = Verb {
    name: "PUBB",
    usage: "PUBB [@topic] ACCEPTED|WRITTEN|DURABLE <messages> <number of bytes> [id=<producer>:<sequence>] and then the bytes \
            (before each message its length, u32) and a newline",
};

/// Reads what stands behind a verb, up to its last optional word.
type Read = fn(&mut Words<'_>) -> Result<Request, RequestError>;

/// The verbs whose requests are one line of words.
static VERBS: [(Verb, Read); 24] = [
    (Verb { name: "FETCH", usage: "FETCH [@topic] <group> <max messages> <wait ms> [META]" }, |words| {
        Ok(Request::Fetch {
            topic: words.topic()?,
            group: words.group()?,
            max: words.positive("the number of messages")?,
            wait_ms: words.number("the wait in ms")?,
            meta: words.meta()?,
        })
    }),
    (Verb { name: "ACK", usage: "ACK [@topic] <group> <offset>" }, |words| {
        Ok(Request::Ack { topic: words.topic()?, group: words.group()?, offset: words.number("the offset")? })
    }),
    (Verb { name: "RESERVE", usage: "RESERVE [@topic] <group> <max messages> <wait ms> <lease ms> [META]" }, |words| {
        Ok(Request::Reserve {
            topic: words.topic()?,
            group: words.group()?,
            max: words.positive("the number of messages")?,
            wait_ms: words.number("the wait in ms")?,
            lease_ms: words.positive("the lease in ms")?,
            meta: words.meta()?,
        })
    }),
    (Verb { name: "CONFIRM", usage: "CONFIRM [@topic] <group> <offset>…" }, |words| {
        let (topic, group) = (words.topic()?, words.group()?);
        let mut offsets = Vec::from([words.number("the offset")?]);
        while !words.rest.is_empty() {
            offsets.push(words.number("the offset")?);
        }
        Ok(Request::Confirm { topic, group, offsets })
    }),
    (Verb { name: "ABORT", usage: "ABORT [@topic] <group> <offset> [<delay ms>]" }, |words| {
        Ok(Request::Abort {
            topic: words.topic()?,
            group: words.group()?,
            offset: words.number("the offset")?,
            delay_ms: words.number_or("the delay in ms", 0)?,
        })
    }),
    (Verb { name: "EXTEND", usage: "EXTEND [@topic] <group> <offset> <lease ms>" }, |words| {
        Ok(Request::Extend {
            topic: words.topic()?,
            group: words.group()?,
            offset: words.number("the offset")?,
            lease_ms: words.positive("the lease in ms")?,
        })
    }),
    (Verb { name: "QUEUES", usage: "QUEUES [@topic]" }, |words| Ok(Request::Queues { topic: words.topic()? })),
    (Verb { name: "PENDING", usage: "PENDING [@topic] <group> [<from offset> [<max messages>]]" }, |words| {
        Ok(Request::Pending {
            topic: words.topic()?,
            group: words.group()?,
            from: words.number_or("the offset", 0)?,
            max: words.number_or("the number of messages", PENDING_MAX)?.clamp(1, PENDING_MAX),
        })
    }),
    (Verb { name: "STEAL", usage: "STEAL [@topic] <group> <offset>" }, |words| {
        Ok(Request::Steal { topic: words.topic()?, group: words.group()?, offset: words.number("the offset")? })
    }),
    (Verb { name: "READ", usage: "READ [@topic] <offset> <max messages> [META]" }, |words| {
        Ok(Request::Read {
            topic: words.topic()?,
            offset: words.number("the offset")?,
            max: words.positive("the number of messages")?,
            meta: words.meta()?,
        })
    }),
    (Verb { name: "READRAW", usage: "READRAW [@topic] <offset> <max bytes>" }, |words| {
        Ok(Request::ReadRaw {
            topic: words.topic()?,
            offset: words.number("the offset")?,
            max_bytes: words.number("the number of bytes")?,
        })
    }),
    (Verb { name: "SEEK", usage: "SEEK [@topic] <group> <offset>|start|end|time=<ms since 1970>" }, |words| {
        Ok(Request::Seek { topic: words.topic()?, group: words.group()?, to: words.seek_to()? })
    }),
    (Verb { name: "FIND", usage: "FIND [@topic] time=<ms since 1970>" }, |words| {
        Ok(Request::Find { topic: words.topic()?, time_ms: words.time()? })
    }),
    (Verb { name: "STATUS", usage: "STATUS [@topic]" }, |words| Ok(Request::Status { topic: words.topic()? })),
    (Verb { name: "TOPICS", usage: "TOPICS" }, |_| Ok(Request::Topics)),
    (Verb { name: "GROUPS", usage: "GROUPS [@topic]" }, |words| Ok(Request::Groups { topic: words.topic()? })),
    (Verb { name: "PURGE", usage: "PURGE [@topic] <before offset>" }, |words| {
        Ok(Request::Purge { topic: words.topic()?, before: words.number("the offset")? })
    }),
    (Verb { name: "DELETE", usage: "DELETE @topic [<group>]" }, |words| {
        Ok(Request::Delete { topic: words.named_topic()?, group: words.group_if_any()? })
    }),
    (Verb { name: "CREATE", usage: "CREATE @topic [<setting>=<value>]…" }, |words| {
        let (topic, change) = (words.named_topic()?, words.change()?);
        Ok(Request::Create { topic, settings: change.apply(Settings::NONE) })
    }),
    (Verb { name: "ALTER", usage: "ALTER @topic <setting>=<value>|default …" }, |words| {
        let (topic, change) = (words.named_topic()?, words.change()?);
        if change.is_empty() {
            return Err(words.wrong(format_args!("a setting is missing")));
        }
        Ok(Request::Alter { topic, change })
    }),
    (Verb { name: "SETTINGS", usage: "SETTINGS [@topic]" }, |words| Ok(Request::Settings { topic: words.topic()? })),
    (Verb { name: "PING", usage: "PING" }, |_| Ok(Request::Ping)),
    (Verb { name: "HELLO", usage: "HELLO" }, |_| Ok(Request::Hello)),
    (Verb { name: "QUIT", usage: "QUIT" }, |_| Ok(Request::Quit)),
];

/// The most lines of an answer to PENDING (P13).
const PENDING_MAX: u64 = 10_000;

fn request(name: &[u8], rest: &[u8]) -> Result<Request, RequestError> {
    let Some((verb, read)) = VERBS.iter().find(|(verb, _)| verb.name.as_bytes() == name) else {
        return Err(unknown_verb(name));
    };
    let mut words = Words { verb, rest };
    let request = read(&mut words)?;
    match words.next() {
        None => Ok(request),
        Some(word) => Err(words.wrong(format_args!("{} is one word too many", quoted(word)))),
    }
}

/// What stands behind `PUB` at the beginning of a line.
fn behind_pub(line: &[u8]) -> Option<&[u8]> {
    let rest = line.strip_prefix(b"PUB")?;
    if rest.is_empty() { Some(rest) } else { rest.strip_prefix(b" ") }
}

/// Splits what stands behind `PUB ` into topic, level and payload. Here one space is one space: those that follow belong
/// to the payload.
fn publish_head(rest: &[u8]) -> Result<(TopicRef, Level, &[u8]), RequestError> {
    let (mut word, mut rest) = split_word(rest);
    let mut topic = None;
    if let Some(name) = word.strip_prefix(b"@") {
        topic = topic_ref(name)?;
        (word, rest) = split_word(rest);
    }
    Ok((topic, level(&PUB, word)?, rest))
}

/// The verb and the other words of a line that a body follows.
fn with_body(line: &[u8]) -> Option<(&'static Verb, Words<'_>)> {
    let (name, rest) = split_word(line);
    let verb = [&PUBN, &PUBB].into_iter().find(|verb| verb.name.as_bytes() == name)?;
    Some((verb, Words { verb, rest }))
}

/// How many bytes follow the line of a PUBN or PUBB.
fn body_length(mut words: Words<'_>) -> Option<usize> {
    words.next_if_topic();
    let words_between = if words.verb.name == PUBB.name { 2 } else { 1 };
    for _ in 0..words_between {
        words.next()?;
    }
    parse_number(words.next()?).filter(|length| *length <= SKIPPED_BYTES_MAX).map(|length| length as usize)
}

/// The words of a line that have not been read yet. Any number of spaces stands between two.
#[derive(Clone)]
struct Words<'a> {
    verb: &'static Verb,
    rest: &'a [u8],
}

impl<'a> Words<'a> {
    fn next(&mut self) -> Option<&'a [u8]> {
        let begin = self.rest.iter().position(|byte| *byte != b' ')?;
        let (word, rest) = split_word(&self.rest[begin..]);
        self.rest = rest;
        Some(word)
    }

    fn expect(&mut self, what: &str) -> Result<&'a [u8], RequestError> {
        self.next().ok_or_else(|| self.verb.wrong(format_args!("{what} is missing")))
    }

    /// The name behind an `@`.
    fn next_if_topic(&mut self) -> Option<&'a [u8]> {
        let mut ahead = self.clone();
        let name = ahead.next()?.strip_prefix(b"@")?;
        *self = ahead;
        Some(name)
    }

    fn topic(&mut self) -> Result<TopicRef, RequestError> {
        self.next_if_topic().map_or(Ok(None), topic_ref)
    }

    fn named_topic(&mut self) -> Result<String, RequestError> {
        let name = self.next_if_topic().ok_or_else(|| self.wrong(format_args!("the topic is missing")))?;
        topic_name(name).map(String::from)
    }

    /// All that follow: `name=value`, with `default` for a value that is taken back.
    fn change(&mut self) -> Result<Change, RequestError> {
        let mut change = Change::default();
        while let Some(word) = self.next() {
            let (name, value) = str::from_utf8(word)
                .ok()
                .and_then(|word| word.split_once('='))
                .ok_or_else(|| self.wrong(format_args!("{} is not <setting>=<value>", quoted(word))))?;
            let row = Definition::named(name).ok_or_else(|| {
                let names = SETTINGS.each_ref().map(|row| row.name).join(", ");
                self.wrong(format_args!("{} is no setting; there are {names}", quoted(name.as_bytes())))
            })?;
            let value = match value {
                "default" => None,
                value => Some(row.parse(value).map_err(|_| {
                    let reason = row.parse(&quoted(value.as_bytes()).to_string()).unwrap_err();
                    self.wrong(format_args!("{name} {reason}"))
                })?),
            };
            if !change.add(row.setting, value) {
                return Err(self.wrong(format_args!("{name} stands there twice")));
            }
        }
        Ok(change)
    }

    fn group(&mut self) -> Result<String, RequestError> {
        let word = self.expect("the group")?;
        str::from_utf8(word).ok().filter(|name| layout::is_group_name(name)).map(String::from).ok_or_else(|| {
            RequestError::new(
                Code::BadName,
                format!(
                    "{} can't be a group: a name is 1 to 100 of A-Z a-z 0-9 . _ -, does not begin with . and does not \
                     end in .tmp or .offset",
                    quoted(word)
                ),
            )
        })
    }

    fn group_if_any(&mut self) -> Result<Option<String>, RequestError> {
        if self.clone().next().is_none() { Ok(None) } else { self.group().map(Some) }
    }

    fn level(&mut self) -> Result<Level, RequestError> {
        let word = self.next().unwrap_or_default();
        level(self.verb, word)
    }

    fn number(&mut self, what: &str) -> Result<u64, RequestError> {
        let word = self.expect(what)?;
        parse_number(word).ok_or_else(|| {
            self.wrong(format_args!("{what} must be a whole number from 0 to {}, not {}", u64::MAX, quoted(word)))
        })
    }

    /// A number that may be left out.
    fn number_or(&mut self, what: &str, default: u64) -> Result<u64, RequestError> {
        if self.rest.is_empty() { Ok(default) } else { self.number(what) }
    }

    fn positive(&mut self, what: &str) -> Result<u64, RequestError> {
        match self.number(what)? {
            0 => Err(self.wrong(format_args!("{what} must be at least 1"))),
            number => Ok(number),
        }
    }

    fn meta(&mut self) -> Result<bool, RequestError> {
        match self.next() {
            None => Ok(false),
            Some(b"META") => Ok(true),
            Some(word) => Err(self.wrong(format_args!("{} is not META", quoted(word)))),
        }
    }

    /// A word that should name a publish.
    fn id(&self, word: &[u8]) -> Result<(u64, u32), RequestError> {
        let numbers = || {
            let id = word.strip_prefix(b"id=")?;
            let colon = memchr::memchr(b':', id)?;
            Some((parse_number(&id[..colon])?, u32::try_from(parse_number(&id[colon + 1..])?).ok()?))
        };
        numbers().ok_or_else(|| {
            self.wrong(format_args!(
                "{} is not id=<producer>:<sequence> with whole numbers, the sequence up to {}",
                quoted(word),
                u32::MAX
            ))
        })
    }

    fn seek_to(&mut self) -> Result<SeekTo, RequestError> {
        let word = self.expect("the place")?;
        let place = match word {
            b"start" => Some(SeekTo::Start),
            b"end" => Some(SeekTo::End),
            _ => match word.strip_prefix(b"time=") {
                Some(time) => parse_time(time).map(SeekTo::TimeMs),
                None => parse_number(word).map(SeekTo::Offset),
            },
        };
        place.ok_or_else(|| {
            self.wrong(format_args!(
                "the place must be an offset, start, end or time= with milliseconds since 1970, not {}",
                quoted(word)
            ))
        })
    }

    fn time(&mut self) -> Result<i64, RequestError> {
        let word = self.expect("the time")?;
        let time_ms = word.strip_prefix(b"time=").and_then(parse_time);
        time_ms.ok_or_else(|| {
            self.wrong(format_args!("the time must be time= with milliseconds since 1970, not {}", quoted(word)))
        })
    }

    fn wrong(&self, what: fmt::Arguments<'_>) -> RequestError {
        self.verb.wrong(what)
    }
}

/// Splits at the first space, which belongs to neither part.
fn split_word(text: &[u8]) -> (&[u8], &[u8]) {
    match text.iter().position(|byte| *byte == b' ') {
        Some(space) => (&text[..space], &text[space + 1..]),
        None => (text, &[]),
    }
}

/// Digits only, so that there is one spelling: no sign, no `_`.
fn parse_number(word: &[u8]) -> Option<u64> {
    if !word.iter().all(u8::is_ascii_digit) {
        return None;
    }
    str::from_utf8(word).ok()?.parse().ok()
}

/// Milliseconds since 1970, with a `-` for what was before.
fn parse_time(word: &[u8]) -> Option<i64> {
    let digits = word.strip_prefix(b"-").unwrap_or(word);
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    str::from_utf8(word).ok()?.parse().ok()
}

fn level(verb: &Verb, word: &[u8]) -> Result<Level, RequestError> {
    Level::parse(word).ok_or_else(|| {
        if word.is_empty() {
            verb.wrong(format_args!("the level is missing"))
        } else if Level::parse(&word.to_ascii_uppercase()).is_some() {
            verb.wrong(format_args!("a level is written in capitals, not {}", quoted(word)))
        } else {
            verb.wrong(format_args!("the level must be ACCEPTED, WRITTEN or DURABLE, not {}", quoted(word)))
        }
    })
}

fn topic_ref(name: &[u8]) -> Result<TopicRef, RequestError> {
    let name = topic_name(name)?;
    Ok((name != layout::DEFAULT_TOPIC).then(|| String::from(name)))
}

fn topic_name(name: &[u8]) -> Result<&str, RequestError> {
    str::from_utf8(name).ok().filter(|name| layout::is_topic_name(name)).ok_or_else(|| {
        RequestError::new(
            Code::BadName,
            format!(
                "{} can't be a topic: a name is 1 to 100 of A-Z a-z 0-9 . _ -, does not begin with . and does not end \
                 in .tmp",
                quoted(name)
            ),
        )
    })
}

fn is_header_name(name: &[u8]) -> bool {
    (1..=100).contains(&name.len()) && name.iter().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(b))
}

impl Verb {
    /// What is wrong, and what was expected.
    fn wrong(&self, what: fmt::Arguments<'_>) -> RequestError {
        RequestError::new(Code::BadRequest, format!("{what}; expected {}", self.usage))
    }

    fn no_length(&self) -> RequestError {
        self.wrong(format_args!(
            "it does not say how many bytes follow (a number up to {SKIPPED_BYTES_MAX}), so where the next request begins \
             can't be known and the connection is closed"
        ))
    }
}

fn empty() -> RequestError {
    RequestError::new(Code::Empty, "a message has at least one byte; nothing was stored")
}

fn unknown_verb(verb: &[u8]) -> RequestError {
    let names = || [PUB.name, PUBN.name, PUBB.name].into_iter().chain(VERBS.iter().map(|(verb, _)| verb.name));
    let known = names().collect::<Vec<_>>().join(" ");
    let what = if verb.is_empty() {
        String::from("a line begins with a verb")
    } else if names().any(|name| name.as_bytes().eq_ignore_ascii_case(verb)) {
        format!("a verb is written in capitals, not {}", quoted(verb))
    } else {
        format!("{} is not a verb", quoted(verb))
    };
    RequestError::new(Code::BadRequest, format!("{what}; there are {known}"))
}

/// Whether a line was sent by something that speaks HTTP. A page in somebody's browser can make it send any body to this
/// port; nothing behind such a line is carried out.
fn is_http(verb: &[u8], line: &[u8]) -> bool {
    line.ends_with(b" HTTP/1.1") || line.ends_with(b" HTTP/1.0") || verb.eq_ignore_ascii_case(b"Host:")
}

fn http() -> RequestError {
    RequestError::new(
        Code::BadRequest,
        "this port speaks the line protocol of Plimsoll, not HTTP; the connection is closed",
    )
}

/// A client's word, fit to stand in a sentence.
fn quoted(word: &[u8]) -> String {
    const SHOWN_BYTES_MAX: usize = 40;
    match word.get(..SHOWN_BYTES_MAX) {
        Some(shown) if shown.len() < word.len() => format!("'{}…'", shown.escape_ascii()),
        _ => format!("'{}'", word.escape_ascii()),
    }
}
