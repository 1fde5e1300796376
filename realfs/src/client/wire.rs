//! Requests as bytes and replies out of bytes, without a socket. The blocking client and the bench, which drives many
//! sockets from one thread, share it.

use super::{BrokerError, Error};
use memchr::memchr;
use plimsoll_core::protocol::Level;
use plimsoll_core::protocol::percent;
use plimsoll_core::record::PAYLOAD_BYTES_CEILING;
use std::borrow::Cow;

/// A message to publish, borrowed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Publication<'a> {
    /// What it says. Any bytes, at least one.
    pub value: &'a [u8],
    /// Its key. Any bytes.
    pub key: Option<&'a [u8]>,
    /// Headers as (name, value), in order.
    pub headers: &'a [(Vec<u8>, Vec<u8>)],
    /// The producer and its sequence: repeated within the topic's window, the message is stored once, and the reply names the first offset.
    pub id: Option<(u64, u32)>,
}

impl<'a> Publication<'a> {
    /// A message without key and headers.
    pub fn new(value: &'a [u8]) -> Publication<'a> {
        Publication { value, ..Publication::default() }
    }
}

/// Appends the request that publishes a message: `PUB` where a line can hold it, else `PUBN`.
///
/// # Errors
/// [`Error::Request`] where a header's name can't stand in a line; nothing is appended then.
pub fn encode_publish(
    out: &mut Vec<u8>,
    topic: Option<&str>,
    level: Level,
    message: &Publication<'_>,
) -> Result<(), Error> {
    let value = message.value;
    let begins_or_ends_alike = value.first() == Some(&b' ') || value.last() == Some(&b'\r');
    let plain = message.key.is_none() && message.headers.is_empty() && message.id.is_none();
    if plain && !begins_or_ends_alike && memchr(b'\n', value).is_none() {
        begin(out, "PUB", topic);
        word(out, level.as_str().as_bytes());
        word(out, value);
        out.push(b'\n');
        return Ok(());
    }
    if let Some((name, _)) = message.headers.iter().find(|(name, _)| !is_word(name) || name.contains(&b'=')) {
        let name = name.escape_ascii();
        return Err(Error::Request(format!("\"{name}\" can't be a header's name: use A-Z a-z 0-9 . _ -")));
    }
    begin(out, "PUBN", topic);
    word(out, level.as_str().as_bytes());
    number(out, value.len() as u64);
    if let Some(key) = message.key {
        out.extend_from_slice(b" key=");
        percent::encode(out, key);
    }
    append_id(out, message.id);
    for (name, value) in message.headers {
        out.extend_from_slice(b" h.");
        out.extend_from_slice(name);
        out.push(b'=');
        percent::encode(out, value);
    }
    out.push(b'\n');
    out.extend_from_slice(value);
    out.push(b'\n');
    Ok(())
}

/// Appends a message to the body of a batch: its length, u32, and its value.
pub fn append_to_batch(body: &mut Vec<u8>, value: &[u8]) {
    body.extend_from_slice(&(value.len() as u32).to_be_bytes());
    body.extend_from_slice(value);
}

/// Appends the request that publishes `count` messages as one (`PUBB`): all of them are stored or, after any crash, none. The body is
/// made by [`append_to_batch`]; an id names the batch as a whole.
pub fn encode_batch(
    out: &mut Vec<u8>,
    topic: Option<&str>,
    level: Level,
    id: Option<(u64, u32)>,
    count: u32,
    body: &[u8],
) {
    begin(out, "PUBB", topic);
    word(out, level.as_str().as_bytes());
    number(out, u64::from(count));
    number(out, body.len() as u64);
    append_id(out, id);
    out.push(b'\n');
    out.extend_from_slice(body);
    out.push(b'\n');
}

fn append_id(out: &mut Vec<u8>, id: Option<(u64, u32)>) {
    if let Some((producer, sequence)) = id {
        word(out, format!("id={producer}:{sequence}").as_bytes());
    }
}

/// Whether these bytes stay one word of a line. Whether they are a possible name, the broker says.
pub(super) fn is_word(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|byte| *byte > b' ' && *byte != 0x7f)
}

/// Begins a request: the verb and, where one is named, the topic.
pub(crate) fn begin(out: &mut Vec<u8>, verb: &str, topic: Option<&str>) {
    out.extend_from_slice(verb.as_bytes());
    if let Some(topic) = topic {
        out.extend_from_slice(b" @");
        out.extend_from_slice(topic.as_bytes());
    }
}

/// Appends a space and a word.
pub(crate) fn word(out: &mut Vec<u8>, word: &[u8]) {
    out.push(b' ');
    out.extend_from_slice(word);
}

/// Appends a space and a number.
pub(crate) fn number(out: &mut Vec<u8>, number: u64) {
    out.push(b' ');
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// What the broker says to a publish.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PublishReply {
    /// `OK <offset> <level>`, for a batch ` <count>` behind it.
    Stored {
        /// The offset it got; of a batch that of its first message.
        offset: u64,
        /// How safe it is.
        level: Level,
    },
    /// `ERR <CODE> <sentence>`: nothing was stored.
    Refused(BrokerError),
}

/// Reads the reply to a publish from a line without its end.
///
/// # Errors
/// [`Error::Protocol`] where the line is neither.
pub fn publish_reply(text: &[u8]) -> Result<PublishReply, Error> {
    let stored = || {
        let rest = text.strip_prefix(b"OK ")?;
        let (offset, used) = digits(rest)?;
        let mut words = rest.get(used..)?.strip_prefix(b" ")?.split(|byte| *byte == b' ');
        let level = Level::parse(words.next()?)?;
        if let Some(count) = words.next() {
            parse_number(count)?;
        }
        if words.next().is_some() {
            return None;
        }
        Some(PublishReply::Stored { offset, level })
    };
    match stored() {
        Some(reply) => Ok(reply),
        None => match broker_error(text) {
            Some(refused) => Ok(PublishReply::Refused(refused)),
            None => Err(unexpected("OK <offset> <level>", text)),
        },
    }
}

/// `ERR <CODE> <sentence>`, or `None` where the line is something else.
pub(crate) fn broker_error(text: &[u8]) -> Option<BrokerError> {
    let rest = text.strip_prefix(b"ERR ")?;
    let rest = String::from_utf8_lossy(rest);
    let (code, sentence) = rest.split_once(' ').unwrap_or((&rest, ""));
    Some(BrokerError { code: code.to_owned(), sentence: sentence.to_owned() })
}

/// The error for a line that is not what was asked for; shows its beginning.
pub(crate) fn unexpected(expected: &str, text: &[u8]) -> Error {
    let shown = String::from_utf8_lossy(&text[..text.len().min(80)]);
    Error::Protocol(format!("expected {expected}, got {shown:?}"))
}

/// The number at the beginning and how many bytes it takes; `None` without one, or past 64 bits.
#[inline]
pub(super) fn digits(text: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0u64;
    let mut used = 0;
    for byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            break;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
        used += 1;
    }
    (used > 0).then_some((value, used))
}

/// A whole word as a number.
pub(super) fn parse_number(word: &[u8]) -> Option<u64> {
    digits(word).and_then(|(value, used)| (used == word.len()).then_some(value))
}

/// The words of a line.
pub(super) fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == b' ').filter(|word| !word.is_empty())
}

/// Received bytes that have not been used yet. Grows to hold one whole reply, and no more.
#[derive(Debug)]
pub struct Inbox {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes behind `start` in which no line end was found.
    searched: usize,
}

impl Default for Inbox {
    fn default() -> Inbox {
        Inbox { bytes: vec![0; 64 << 10], start: 0, end: 0, searched: 0 }
    }
}

impl Inbox {
    /// Free space to receive into. Never empty.
    pub fn room(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.bytes.len() - self.end < self.bytes.len() / 4 {
            // Move what is there to the front; grow only where that would not make much room.
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            if self.end > self.bytes.len() / 2 {
                self.bytes.resize(self.bytes.len() * 2, 0);
            }
        }
        &mut self.bytes[self.end..]
    }

    /// Notes that `n` bytes were received into [`Inbox::room`].
    pub fn received(&mut self, n: usize) {
        self.end += n;
    }

    /// What has been received and not used.
    pub fn unused(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Drops the first `n` bytes.
    pub fn consume(&mut self, n: usize) {
        self.start += n;
        self.searched = 0;
        debug_assert!(self.start <= self.end);
    }

    /// The length of the first line without its end, when it is whole. Bytes are looked at once.
    pub fn line(&mut self) -> Option<usize> {
        match memchr(b'\n', &self.bytes[self.start + self.searched..self.end]) {
            Some(at) => Some(self.searched + at),
            None => {
                self.searched = self.end - self.start;
                None
            }
        }
    }
}

/// Something that stands in a reply to FETCH or READ, borrowed from the bytes received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delivered<'a> {
    /// A message.
    Message(Message<'a>),
    /// Offsets `first` … `next` − 1 are gone (retention, repair). Consumers are told, never skipped silently.
    Gap {
        /// The first that is gone.
        first: u64,
        /// The first after them.
        next: u64,
    },
}

/// A delivered message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message<'a> {
    /// Its offset.
    pub offset: u64,
    /// What the producer sent.
    pub value: &'a [u8],
    /// `time=… key=… h.…=…` as received; empty unless META was asked for.
    attributes: &'a [u8],
}

impl<'a> Message<'a> {
    /// When the broker accepted it, milliseconds since 1970. `None` unless META was asked for.
    pub fn time_ms(&self) -> Option<i64> {
        std::str::from_utf8(self.attribute(b"time=")?).ok()?.parse().ok()
    }

    /// Its key. `None` unless it has one and META was asked for.
    pub fn key(&self) -> Option<Cow<'a, [u8]>> {
        self.attribute(b"key=").map(decoded)
    }

    /// The producer and its sequence. `None` unless it was published with them and META was asked for; of a batch the
    /// first message tells it.
    pub fn id(&self) -> Option<(u64, u32)> {
        let mut numbers = self.attribute(b"id=")?.split(|byte| *byte == b':').map(parse_number);
        Some((numbers.next()??, u32::try_from(numbers.next()??).ok()?))
    }

    /// How often it has been delivered (work queues). `None` where the broker does not say.
    pub fn deliveries(&self) -> Option<u64> {
        parse_number(self.attribute(b"deliveries=")?)
    }

    /// Headers as (name, value), in the order in which they were published.
    pub fn headers(&self) -> impl Iterator<Item = (&'a [u8], Cow<'a, [u8]>)> {
        words(self.attributes).filter_map(|word| {
            let header = word.strip_prefix(b"h.")?;
            let equals = memchr(b'=', header)?;
            Some((&header[..equals], decoded(&header[equals + 1..])))
        })
    }

    fn attribute(&self, name: &[u8]) -> Option<&'a [u8]> {
        words(self.attributes).find_map(|word| word.strip_prefix(name))
    }
}

fn decoded(text: &[u8]) -> Cow<'_, [u8]> {
    if memchr(b'%', text).is_none() {
        return Cow::Borrowed(text);
    }
    // What does not decode is shown as it came: it is the broker's word, and no decision hangs on it.
    percent::decode(text).map_or(Cow::Borrowed(text), Cow::Owned)
}

/// Places in the bytes of one reply, so that nothing is copied.
#[derive(Clone, Copy, Debug)]
enum Entry {
    Message { offset: u64, attributes: (u32, u32), value: (u32, u32) },
    Gap { first: u64, next: u64 },
}

/// Finds the messages of a reply to FETCH or READ while its bytes come in.
#[derive(Debug, Default)]
pub struct BatchParser {
    entries: Vec<Entry>,
    messages: u64,
    at: usize,
    searched: usize,
}

/// How far a [`BatchParser`] got.
#[derive(Debug)]
pub enum Progress {
    /// The reply goes on.
    NeedMore,
    /// The reply is whole and takes this many bytes.
    Whole(usize),
    /// The broker refused; the reply takes this many bytes.
    Refused(BrokerError, usize),
}

impl BatchParser {
    /// Begins with a new reply, keeping the memory.
    pub fn clear(&mut self) {
        self.entries.clear();
        (self.messages, self.at, self.searched) = (0, 0, 0);
    }

    /// Looks at `reply`, which holds everything received since the reply began.
    ///
    /// # Errors
    /// [`Error::Protocol`] where it is not a reply to FETCH or READ.
    pub fn advance(&mut self, reply: &[u8]) -> Result<Progress, Error> {
        loop {
            let from = self.at.max(self.searched);
            let Some(end) = memchr(b'\n', &reply[from..]) else {
                self.searched = reply.len();
                return if reply.len() - self.at > PAYLOAD_BYTES_CEILING as usize + 1024 {
                    Err(Error::Protocol("a line without an end".into()))
                } else {
                    Ok(Progress::NeedMore)
                };
            };
            let end = from + end;
            let text = &reply[self.at..end];
            if let Some(rest) = text.strip_prefix(b"MSG ") {
                let Some((offset, used)) = digits(rest).filter(|(_, used)| rest.get(*used) == Some(&b' ')) else {
                    return Err(unexpected("MSG <offset> <payload>", text));
                };
                let value = ((self.at + 4 + used + 1) as u32, end as u32);
                self.entries.push(Entry::Message { offset, attributes: (0, 0), value });
                self.messages += 1;
                self.at = end + 1;
                continue;
            }
            if text.starts_with(b"MSGN ") || text.starts_with(b"MSGX ") {
                let rest = &text[5..];
                let head = digits(rest).and_then(|(offset, used)| {
                    let (length, more) = digits(rest.get(used + 1..)?)?;
                    Some((offset, length, self.at + 5 + used + 1 + more))
                });
                let Some((offset, length, attributes)) = head.filter(|head| head.1 <= PAYLOAD_BYTES_CEILING as u64)
                else {
                    return Err(unexpected("MSGN <offset> <bytes>", text));
                };
                let value_end = end + 1 + length as usize;
                match reply.get(value_end) {
                    None => {
                        // The line's end was found; it is looked for again only once the value is there.
                        self.searched = end;
                        return Ok(Progress::NeedMore);
                    }
                    Some(b'\n') => {}
                    Some(_) => return Err(Error::Protocol(format!("no line end behind the value of {offset}"))),
                }
                self.entries.push(Entry::Message {
                    offset,
                    attributes: (attributes as u32, end as u32),
                    value: ((end + 1) as u32, value_end as u32),
                });
                self.messages += 1;
                self.at = value_end + 1;
                continue;
            }
            if let Some(rest) = text.strip_prefix(b"GAP ") {
                let mut numbers = words(rest).map(parse_number);
                match (numbers.next().flatten(), numbers.next().flatten()) {
                    (Some(first), Some(next)) => self.entries.push(Entry::Gap { first, next }),
                    _ => return Err(unexpected("GAP <first> <next>", text)),
                }
                self.at = end + 1;
                continue;
            }
            if let Some(rest) = text.strip_prefix(b"END ") {
                return if parse_number(rest) == Some(self.messages) {
                    Ok(Progress::Whole(end + 1))
                } else {
                    Err(Error::Protocol(format!("{} messages came, then {:?}", self.messages, text.escape_ascii())))
                };
            }
            return match broker_error(text) {
                Some(refused) => Ok(Progress::Refused(refused, end + 1)),
                None => Err(unexpected("MSG, GAP or END", text)),
            };
        }
    }

    /// What was found in `reply`, the same bytes that [`BatchParser::advance`] saw.
    pub fn batch<'a>(&'a self, reply: &'a [u8]) -> Batch<'a> {
        Batch { entries: &self.entries, messages: self.messages, reply }
    }
}

/// A reply to FETCH or READ: messages and gaps, in order, borrowed from the bytes received.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    entries: &'a [Entry],
    messages: u64,
    reply: &'a [u8],
}

impl<'a> Batch<'a> {
    /// How many messages there are, without gaps.
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// Whether there is nothing, not even a gap.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// What was delivered, in order.
    pub fn iter(&self) -> impl Iterator<Item = Delivered<'a>> + use<'a> {
        let reply = self.reply;
        let part = move |(from, to): (u32, u32)| &reply[from as usize..to as usize];
        self.entries.iter().map(move |entry| match *entry {
            Entry::Message { offset, attributes, value } => {
                Delivered::Message(Message { offset, value: part(value), attributes: part(attributes) })
            }
            Entry::Gap { first, next } => Delivered::Gap { first, next },
        })
    }
}
