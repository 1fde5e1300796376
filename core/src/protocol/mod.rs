//! Requests and replies as plain data. A codec turns bytes into them and back; [`mod@line`] is the one there is.
//! A second wire protocol is a second codec and changes nothing else.

pub mod line;
pub mod percent;

use crate::error::RequestError;
use crate::settings::{Change, Definition, Origin, Settings};
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use bytes::{Buf, Bytes, BytesMut};
use core::{mem, slice};

/// How safe a message is: the product's signature. Ordered: a later level includes the earlier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Level {
    /// In memory: the offset is assigned, the message is queued.
    Accepted,
    /// In the page cache: write() has returned. Survives a process crash.
    Written,
    /// Forced: a force issued after the write has returned. Survives a power loss.
    Durable,
}

impl Level {
    /// All levels, from the least safe.
    pub const ALL: [Level; 3] = [Level::Accepted, Level::Written, Level::Durable];

    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Level::Accepted => "ACCEPTED",
            Level::Written => "WRITTEN",
            Level::Durable => "DURABLE",
        }
    }

    /// The level of that word, which must be in capitals.
    pub fn parse(word: &[u8]) -> Option<Level> {
        Level::ALL.into_iter().find(|level| level.as_str().as_bytes() == word)
    }
}

/// A topic as a request names it; `None` is the default topic. Checked to be a possible name.
pub type TopicRef = Option<String>;

/// A payload, in the pieces in which it came in, so that it is copied only once: into the batch.
/// Nearly all come in one; those cost no allocation. Equal are those with the same bytes, however they are cut.
#[derive(Clone, Debug)]
pub enum Body {
    /// It came in one piece.
    One(Bytes),
    /// It came in several, in order.
    Many(Vec<Bytes>),
}

impl Body {
    /// The pieces, in order. Together never larger than the limit.
    pub fn pieces(&self) -> &[Bytes] {
        match self {
            Body::One(piece) => slice::from_ref(piece),
            Body::Many(pieces) => pieces,
        }
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.pieces().iter().map(Bytes::len).sum()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.pieces().iter().all(Bytes::is_empty)
    }

    /// Reads it from its beginning.
    pub fn reader(&self) -> BodyReader<'_> {
        BodyReader { pieces: self.pieces().iter(), piece: &[] }
    }
}

/// Reads a [`Body`] from its beginning, over the ends of its pieces.
#[derive(Clone, Debug)]
pub struct BodyReader<'a> {
    pieces: slice::Iter<'a, Bytes>,
    piece: &'a [u8],
}

impl<'a> BodyReader<'a> {
    /// The next `n` bytes, piece by piece; `false` where there are fewer.
    pub fn read(&mut self, mut n: usize, mut take: impl FnMut(&'a [u8])) -> bool {
        loop {
            let taken;
            (taken, self.piece) = self.piece.split_at(n.min(self.piece.len()));
            take(taken);
            n -= taken.len();
            if n == 0 {
                return true;
            }
            let Some(next) = self.pieces.next() else { return false };
            self.piece = next;
        }
    }

    /// The next four bytes as a number.
    pub fn u32(&mut self) -> Option<u32> {
        let (mut bytes, mut filled) = ([0; 4], 0);
        let whole = self.read(4, |piece| {
            bytes[filled..filled + piece.len()].copy_from_slice(piece);
            filled += piece.len();
        });
        whole.then(|| u32::from_be_bytes(bytes))
    }
}

impl Default for Body {
    fn default() -> Body {
        Body::One(Bytes::new())
    }
}

impl From<Bytes> for Body {
    fn from(piece: Bytes) -> Body {
        Body::One(piece)
    }
}

impl PartialEq for Body {
    fn eq(&self, other: &Body) -> bool {
        self.len() == other.len() && self.pieces().iter().flatten().eq(other.pieces().iter().flatten())
    }
}

impl Eq for Body {}

/// A message to be published, or several as one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Publish {
    /// Where to.
    pub topic: TopicRef,
    /// When to reply.
    pub level: Level,
    /// The key, decoded.
    pub key: Option<Vec<u8>>,
    /// Headers in the order of the request, decoded.
    pub headers: Vec<(Vec<u8>, Vec<u8>)>,
    /// The producer and its sequence, by which a repeated publish is known.
    pub id: Option<(u64, u32)>,
    /// For a batch: how many messages it has. All of them are stored or, after any crash, none.
    pub batch: Option<u32>,
    /// The value; of a batch each message's length (u32) and value, as many as `batch` says and nothing else.
    pub value: Body,
}

impl Publish {
    /// How many offsets it takes.
    pub fn count(&self) -> u32 {
        self.batch.unwrap_or(1)
    }
}

/// Where a SEEK goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SeekTo {
    /// This offset.
    Offset(u64),
    /// The log start offset.
    Start,
    /// The durable watermark.
    End,
    /// The first message whose timestamp is at or after this, milliseconds since 1970.
    TimeMs(i64),
}

/// What a client asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// `PUB`, `PUBN`, `PUBB`.
    Publish(Publish),
    /// `FETCH`.
    Fetch {
        /// From where.
        topic: TopicRef,
        /// For which group.
        group: String,
        /// How many messages at most; at least 1.
        max: u64,
        /// How long to wait for the first one, milliseconds.
        wait_ms: u64,
        /// Whether messages come with time, key and headers.
        meta: bool,
    },
    /// `ACK`.
    Ack {
        /// From where.
        topic: TopicRef,
        /// For which group.
        group: String,
        /// Everything up to and including this.
        offset: u64,
    },
    /// `RESERVE`.
    Reserve {
        /// From where.
        topic: TopicRef,
        /// For which work queue.
        group: String,
        /// How many messages at most; at least 1.
        max: u64,
        /// How long to wait for the first one, milliseconds.
        wait_ms: u64,
        /// For how long they are this connection's alone, milliseconds; at least 1.
        lease_ms: u64,
        /// Whether messages come with time, key, headers and the count of their deliveries.
        meta: bool,
    },
    /// `CONFIRM`.
    Confirm {
        /// From where.
        topic: TopicRef,
        /// In which work queue.
        group: String,
        /// All of them, or none if one of them is not this connection's. At least one.
        offsets: Vec<u64>,
    },
    /// `ABORT`.
    Abort {
        /// From where.
        topic: TopicRef,
        /// In which work queue.
        group: String,
        /// What is given back.
        offset: u64,
        /// How long before it can be reserved again, milliseconds.
        delay_ms: u64,
    },
    /// `EXTEND`.
    Extend {
        /// From where.
        topic: TopicRef,
        /// In which work queue.
        group: String,
        /// What is kept for longer.
        offset: u64,
        /// For how long from now, milliseconds; at least 1.
        lease_ms: u64,
    },
    /// `QUEUES`.
    Queues {
        /// Of which topic.
        topic: TopicRef,
    },
    /// `PENDING`.
    Pending {
        /// Of which topic.
        topic: TopicRef,
        /// Of which work queue.
        group: String,
        /// From this offset on.
        from: u64,
        /// How many at most; at least 1.
        max: u64,
    },
    /// `STEAL`.
    Steal {
        /// Of which topic.
        topic: TopicRef,
        /// In which work queue.
        group: String,
        /// Whoever has it reserved loses it.
        offset: u64,
    },
    /// `READ`.
    Read {
        /// From where.
        topic: TopicRef,
        /// Beginning with this.
        offset: u64,
        /// How many messages at most; at least 1.
        max: u64,
        /// Whether messages come with time, key and headers.
        meta: bool,
    },
    /// `READRAW`.
    ReadRaw {
        /// From where.
        topic: TopicRef,
        /// Beginning with the frame that holds this.
        offset: u64,
        /// How many bytes at most (but at least one frame).
        max_bytes: u64,
    },
    /// `SEEK`.
    Seek {
        /// In which topic.
        topic: TopicRef,
        /// Which group.
        group: String,
        /// Where to.
        to: SeekTo,
    },
    /// `FIND`.
    Find {
        /// In which topic.
        topic: TopicRef,
        /// The first message that is no older than this, milliseconds since 1970.
        time_ms: i64,
    },
    /// `STATUS`.
    Status {
        /// Of which topic.
        topic: TopicRef,
    },
    /// `TOPICS`.
    Topics,
    /// `GROUPS`.
    Groups {
        /// Of which topic.
        topic: TopicRef,
    },
    /// `CREATE`.
    Create {
        /// Its name.
        topic: String,
        /// What is set for it.
        settings: Settings,
    },
    /// `ALTER`.
    Alter {
        /// Its name.
        topic: String,
        /// What is to be another.
        change: Change,
    },
    /// `SETTINGS`.
    Settings {
        /// Of which topic.
        topic: TopicRef,
    },
    /// `PURGE`.
    Purge {
        /// In which topic.
        topic: TopicRef,
        /// Everything below this goes.
        before: u64,
    },
    /// `DELETE`.
    Delete {
        /// Which topic, or one of its groups.
        topic: String,
        /// Which group; `None`: the whole topic.
        group: Option<String>,
    },
    /// `PING`.
    Ping,
    /// `HELLO`.
    Hello,
    /// `QUIT`.
    Quit,
}

/// Marks and counts of one topic, for `STATUS` and metrics. Ends are exclusive.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TopicStatus {
    /// Its name.
    pub topic: String,
    /// The first offset that is still there.
    pub start: u64,
    /// The Plimsoll line.
    pub durable: u64,
    /// Everything below has been written.
    pub written: u64,
    /// The next offset.
    pub next: u64,
    /// Segments.
    pub segments: u64,
    /// Bytes of all frames.
    pub bytes: u64,
    /// Groups with a committed offset or a holder.
    pub groups: u64,
    /// Forces of the log since the start.
    pub forces: u64,
    /// Their recent mean, microseconds.
    pub force_mean_us: u64,
    /// What they took together, milliseconds.
    pub force_total_ms: u64,
    /// Segments that were packed since the start.
    pub packed: u64,
    /// Bytes that were given back by that.
    pub packed_bytes: u64,
    /// Attempts to pack that failed.
    pub pack_failures: u64,
    /// The most messages since the start that had an offset and were not forced.
    pub unforced_max: u64,
    /// The longest since the start that a written message was not forced, milliseconds.
    pub unforced_ms_max: u64,
}

/// One group, for `GROUPS`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupStatus {
    /// Its name.
    pub group: String,
    /// Everything below has been acknowledged.
    pub committed: u64,
    /// The line minus `committed`.
    pub lag: u64,
    /// Whether a connection holds it.
    pub held: bool,
}

/// One work queue, for `QUEUES`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct QueueStatus {
    /// Its name.
    pub group: String,
    /// Everything below has been confirmed.
    pub confirmed: u64,
    /// The first offset that has never been reserved.
    pub next: u64,
    /// Messages that could be reserved now: those never reserved, and those given back.
    pub ready: u64,
    /// Messages that are reserved.
    pub reserved: u64,
    /// Messages that were given back and are not due yet.
    pub delayed: u64,
    /// Messages on their way to the dead letters.
    pub dying: u64,
    /// Connections that wait for a message.
    pub waiting: u64,
    /// Bytes of the journal.
    pub journal_bytes: u64,
    /// Forces of the journal since the broker started.
    pub journal_forces: u64,
}

/// How a message that was reserved once and is not confirmed stands, for `PENDING`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PendingState {
    /// Reserved by this connection, for so many milliseconds more.
    Reserved {
        /// The number by which the broker knows the connection.
        connection: u64,
        /// Where that comes from: an address and a port.
        peer: String,
        /// Milliseconds.
        left_ms: u64,
    },
    /// Given back; it can be reserved in so many milliseconds (0: now).
    Ready {
        /// Milliseconds.
        due_ms: u64,
    },
    /// On its way to the dead letters.
    Dying,
}

/// One message of a work queue, for `PENDING`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PendingStatus {
    /// Its offset.
    pub offset: u64,
    /// How often it was reserved.
    pub deliveries: u32,
    /// What it waits for.
    pub state: PendingState,
}

/// What a client is answered. Delivered messages are not here: a codec writes them straight into the reply that is
/// being built, see [`line::encode_message`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// `OK <offset> <level>`, for a batch also ` <count>`.
    Published {
        /// The offset it got; of a batch that of its first message.
        offset: u64,
        /// The level reached.
        level: Level,
        /// For a batch: how many messages it has.
        batch: Option<u32>,
    },
    /// `ERR <CODE> <sentence>`.
    Error(RequestError),
    /// `ACKED <committed>`.
    Acked {
        /// The committed offset: everything below is acknowledged.
        committed: u64,
    },
    /// `CONFIRMED <count>`.
    Confirmed {
        /// How many messages the request named.
        count: u64,
    },
    /// `ABORTED <offset>`.
    Aborted {
        /// The message that was given back.
        offset: u64,
    },
    /// `EXTENDED <offset>`.
    Extended {
        /// The message that is kept for longer.
        offset: u64,
    },
    /// `QUEUE …` lines and `END <count>`.
    Queues(Vec<QueueStatus>),
    /// `PENDING …` lines and `END <count>`.
    Pending(Vec<PendingStatus>),
    /// `STOLEN <offset>`.
    Stolen {
        /// The message that can be reserved by others now.
        offset: u64,
    },
    /// `SOUGHT <offset>`.
    Sought {
        /// The committed offset now.
        offset: u64,
    },
    /// `FOUND <offset>`.
    Found {
        /// The first message's; the line where there is none.
        offset: u64,
    },
    /// `FRAMES <first offset> <bytes> <salt>`; the bytes follow as a range of a file.
    Frames {
        /// The offset of the first frame.
        first: u64,
        /// How many bytes follow.
        bytes: u64,
        /// What the checksums of this closed segment start from (0 when no bytes follow).
        salt: u32,
    },
    /// `STATUS …`.
    Status(TopicStatus),
    /// `TOPIC …` lines and `END <count>`.
    Topics(Vec<TopicStatus>),
    /// `GROUP …` lines and `END <count>`.
    Groups(Vec<GroupStatus>),
    /// `CREATED <topic>`.
    Created {
        /// Its name.
        topic: String,
    },
    /// `PURGED <start>`.
    Purged {
        /// The first offset that is still there.
        start: u64,
    },
    /// `DELETED <topic>`, `DELETED <topic> <group>`.
    Deleted {
        /// The topic's name.
        topic: String,
        /// The group, where only that was deleted.
        group: Option<String>,
    },
    /// `ALTERED <topic>`.
    Altered {
        /// Its name.
        topic: String,
    },
    /// `SETTING <name> <value> <who has said so>` lines and `END <count>`.
    Settings(Vec<(&'static Definition, u64, Origin)>),
    /// `PONG`.
    Pong,
    /// `HELLO …`.
    Hello(Hello),
    /// `BYE`.
    Bye,
}

/// Version and limits, for `HELLO`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// The broker's version.
    pub version: &'static str,
    /// See [`Config`](crate::config::Config), as all that follow.
    pub payload_bytes_max: u32,
    /// Bytes of one batch.
    pub publish_batch_bytes_max: u32,
    /// Messages of one batch: as many as the queue takes.
    pub queue_messages: u32,
    /// Requests without a reply before a connection is not read.
    pub unanswered_max: u32,
    /// The longest wait of a FETCH.
    pub fetch_wait_ms_max: u64,
    /// Where a reply of messages stops.
    pub fetch_bytes_max: u64,
}

/// Received bytes that no request has been made of yet, in the pieces in which they came.
#[derive(Debug, Default)]
pub struct Input {
    pieces: VecDeque<Bytes>,
    length: usize,
}

/// A piece smaller than this is appended to the one before it, while that one is smaller than [`JOINED_BYTES_MAX`]. So a
/// client that sends single bytes costs what its bytes take, not a handle and an allocation for each (P13).
const SMALL_BYTES: usize = 512;
const JOINED_BYTES_MAX: usize = 4096;

impl Input {
    /// Appends what was received.
    pub fn push(&mut self, bytes: Bytes) {
        if bytes.is_empty() {
            return;
        }
        self.length += bytes.len();
        match self.pieces.back_mut() {
            Some(last) if bytes.len() < SMALL_BYTES && last.len() < JOINED_BYTES_MAX => {
                // Its own buffer grows in place; one that is shared (with the backend, with payloads) is copied once.
                let mut joined = mem::take(last).try_into_mut().unwrap_or_else(|shared| {
                    let mut own = BytesMut::with_capacity(JOINED_BYTES_MAX);
                    own.extend_from_slice(&shared);
                    own
                });
                joined.extend_from_slice(&bytes);
                *last = joined.freeze();
            }
            _ => self.pieces.push_back(bytes),
        }
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The first piece; empty when there is none.
    pub fn first_piece(&self) -> &[u8] {
        self.pieces.front().map_or(&[], |piece| &piece[..])
    }

    /// The pieces in order.
    pub fn pieces(&self) -> impl Iterator<Item = &Bytes> {
        self.pieces.iter()
    }

    /// Where `byte` stands first, at `from` or behind. Costs what lies behind `from`, however much lies before it.
    pub fn find(&self, byte: u8, from: usize) -> Option<usize> {
        let first = self.first_piece();
        if let Some(found) = first.get(from..).and_then(|rest| memchr::memchr(byte, rest)) {
            return Some(from + found);
        }
        // From behind, because what is new stands there.
        let mut index = self.pieces.len();
        let mut begin = self.length;
        while begin > from && index > 1 {
            index -= 1;
            begin -= self.pieces[index].len();
        }
        for piece in self.pieces.range(index..) {
            let skipped = from.saturating_sub(begin);
            if let Some(found) = memchr::memchr(byte, &piece[skipped..]) {
                return Some(begin + skipped + found);
            }
            begin += piece.len();
        }
        None
    }

    /// The byte at this position. Panics when there is none.
    pub fn byte(&self, position: usize) -> u8 {
        let mut rest = position;
        for piece in &self.pieces {
            match piece.get(rest) {
                Some(byte) => return *byte,
                None => rest -= piece.len(),
            }
        }
        panic!("byte {position} of {}", self.length)
    }

    /// Copies the first bytes into `out`, as many as fit and are there; says how many.
    pub fn peek(&self, out: &mut [u8]) -> usize {
        let mut filled = 0;
        for piece in &self.pieces {
            let n = piece.len().min(out.len() - filled);
            out[filled..filled + n].copy_from_slice(&piece[..n]);
            filled += n;
        }
        filled
    }

    /// Takes the first `n` bytes as they lie, without a copy. Panics when there are fewer.
    pub fn take(&mut self, n: usize) -> Body {
        match self.pieces.front() {
            Some(piece) if n <= piece.len() => Body::One(self.take_of_first(n)),
            _ => {
                let mut pieces = Vec::new();
                let mut rest = n;
                while rest > 0 {
                    let piece = self.take_of_first(rest);
                    rest -= piece.len();
                    pieces.push(piece);
                }
                Body::Many(pieces)
            }
        }
    }

    /// Takes the first `n` bytes as one piece: without a copy where they came in one. Panics when there are fewer.
    pub fn take_joined(&mut self, n: usize) -> Bytes {
        match self.take(n) {
            Body::One(piece) => piece,
            Body::Many(pieces) => {
                let mut joined = BytesMut::with_capacity(n);
                for piece in &pieces {
                    joined.extend_from_slice(piece);
                }
                joined.freeze()
            }
        }
    }

    /// Drops the first `n` bytes, or all there are; says how many.
    pub fn skip(&mut self, n: usize) -> usize {
        let skipped = n.min(self.length);
        let mut rest = skipped;
        while let Some(piece) = self.pieces.front_mut()
            && rest > 0
        {
            if rest < piece.len() {
                piece.advance(rest);
                rest = 0;
            } else {
                rest -= piece.len();
                self.pieces.pop_front();
            }
        }
        self.length -= skipped;
        skipped
    }

    /// Takes up to `n` bytes of the first piece.
    fn take_of_first(&mut self, n: usize) -> Bytes {
        let piece = self.pieces.front_mut().expect("as many bytes as are taken");
        let taken =
            if n < piece.len() { piece.split_to(n) } else { self.pieces.pop_front().expect("the piece just seen") };
        self.length -= taken.len();
        taken
    }
}

/// What a codec finds at the beginning of the input.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Next {
    /// Nothing whole yet.
    NeedMore,
    /// A request.
    Request(Request),
    /// A request that can't be carried out; the next one stands behind it.
    Refused(RequestError),
    /// The framing is lost: answer and close.
    Broken(RequestError),
}
