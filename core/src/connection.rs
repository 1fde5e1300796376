//! One client: what it sent and was not carried out yet, and the replies that it is owed, in order (P14).

use crate::effect::{FileId, ReplyPart};
use crate::io::TopicId;
use crate::log::group_commit::Mark;
use crate::protocol::line::{self, Limits, LineCodec};
use crate::protocol::{Input, Level, Reply, Request};
use alloc::collections::{BTreeSet, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;

/// A reply, or the place that is kept for one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Slot {
    /// The request is being carried out.
    Waiting,
    /// Encoded, and to be released when a record of it stands where it must.
    Held(Vec<u8>),
    /// `OK <offset> <level>`, for a batch also its count.
    Published { offset: u64, level: Level, batch: Option<u32> },
    /// Encoded.
    Bytes(Vec<u8>),
    /// Encoded, and a range of a file behind it.
    Raw { head: Vec<u8>, file: FileId, position: u64, length: u64 },
}

impl Slot {
    /// Encodes any reply.
    pub(crate) fn of(reply: &Reply) -> Slot {
        let mut bytes = Vec::new();
        line::encode_reply(&mut bytes, reply);
        Slot::Bytes(bytes)
    }

    fn is_due(&self) -> bool {
        !matches!(self, Slot::Waiting | Slot::Held(_))
    }

    /// What it takes of memory.
    fn bytes(&self) -> u64 {
        match self {
            Slot::Waiting => 0,
            Slot::Published { .. } => 50,
            Slot::Bytes(bytes) | Slot::Held(bytes) => bytes.len() as u64,
            Slot::Raw { head, .. } => head.len() as u64,
        }
    }
}

/// Why the next request is not taken up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Stall {
    /// The request at hand waits for room in a topic, and is tried again.
    Room(Request),
    /// The request at hand waits for a topic to be made, and is tried again.
    Creation(Request),
    /// A FETCH waits for the line of a topic to move, until this moment.
    Line { topic: TopicId, until_ns: u64, request: Request, slot: u64 },
    /// A task reads for it, or stores where its group stands; the broker tells the rest at its end.
    Reading,
}

/// A client.
pub(crate) struct Connection {
    /// Where it comes from, for people.
    pub(crate) peer: String,
    pub(crate) input: Input,
    pub(crate) codec: LineCodec,
    slots: VecDeque<Slot>,
    /// The number of the request that the first slot belongs to.
    first_slot: u64,
    /// Bytes of replies that are filled in and not emitted.
    pub(crate) owed: u64,
    pub(crate) stall: Option<Stall>,
    /// Reply bytes that were emitted and not yet taken by the kernel.
    pub(crate) unsent: u64,
    /// Reply bytes that were ever emitted.
    emitted: u64,
    /// Ranges of files that may not have been sent whole: what had been emitted at the end of each.
    ranges: VecDeque<(u64, FileId)>,
    /// Since when none of them was taken.
    pub(crate) stuck_since_ns: u64,
    pub(crate) stuck_timer_armed: bool,
    /// Whether the backend was told to read.
    pub(crate) reading: bool,
    /// The client sends no more.
    pub(crate) ended: bool,
    /// No request is taken up any more; the connection is closed when every reply has been sent.
    pub(crate) closing: bool,
    pub(crate) disconnected: bool,
    /// It was cut off: what is unsent is dropped.
    pub(crate) cut: bool,
    pub(crate) last_request_ns: u64,
    pub(crate) mark: Option<Mark>,
    /// The groups that it holds.
    pub(crate) held: Vec<(TopicId, String)>,
    /// The work queues, by their journals, of which it has had messages reserved.
    pub(crate) queues: BTreeSet<TopicId>,
}

impl Connection {
    pub(crate) fn new(peer: String, limits: Limits, now_ns: u64) -> Connection {
        Connection {
            peer,
            input: Input::default(),
            codec: LineCodec::new(limits),
            slots: VecDeque::new(),
            first_slot: 0,
            owed: 0,
            stall: None,
            unsent: 0,
            emitted: 0,
            ranges: VecDeque::new(),
            stuck_since_ns: now_ns,
            stuck_timer_armed: false,
            reading: true,
            ended: false,
            closing: false,
            disconnected: false,
            cut: false,
            last_request_ns: now_ns,
            mark: None,
            held: Vec::new(),
            queues: BTreeSet::new(),
        }
    }

    /// Requests without a reply.
    pub(crate) fn unanswered(&self) -> usize {
        self.slots.len()
    }

    /// Keeps a place for the reply to the request at hand; says its number.
    pub(crate) fn open_slot(&mut self) -> u64 {
        self.slots.push_back(Slot::Waiting);
        self.first_slot + self.slots.len() as u64 - 1
    }

    /// Answers the request at hand at once.
    pub(crate) fn answer_now(&mut self, slot: Slot) {
        self.owed += slot.bytes();
        self.slots.push_back(slot);
    }

    /// Fills the place of an earlier request.
    pub(crate) fn answer(&mut self, number: u64, slot: Slot) {
        let at = number.checked_sub(self.first_slot).and_then(|at| self.slots.get_mut(at as usize));
        if let Some(place) = at {
            debug_assert!(!place.is_due(), "one reply a request");
            self.owed = self.owed - place.bytes() + slot.bytes();
            *place = slot;
        }
    }

    /// What was held back may go out.
    pub(crate) fn release(&mut self, number: u64) {
        let at = number.checked_sub(self.first_slot).and_then(|at| self.slots.get_mut(at as usize));
        if let Some(place) = at
            && let Slot::Held(bytes) = place
        {
            *place = Slot::Bytes(core::mem::take(bytes));
        }
    }

    /// Answers everything that was not sent yet with the same reply: the broker halts. Also what waits behind an earlier
    /// request with a reply of its own: from now on nothing is acknowledged (P10).
    pub(crate) fn answer_rest(&mut self, slot: &Slot) {
        self.slots.iter_mut().for_each(|place| *place = slot.clone());
        self.owed = self.slots.len() as u64 * slot.bytes();
    }

    /// A part of a reply is emitted.
    pub(crate) fn emitted(&mut self, part: &ReplyPart) {
        self.unsent += part.len();
        self.emitted += part.len();
        if let ReplyPart::FileRange { file, .. } = part {
            self.ranges.push_back((self.emitted, *file));
        }
    }

    /// So many more bytes have been taken.
    pub(crate) fn sent(&mut self, bytes: u64) {
        self.unsent = self.unsent.saturating_sub(bytes);
        let sent = self.emitted - self.unsent;
        while self.ranges.front().is_some_and(|(end, _)| *end <= sent) {
            self.ranges.pop_front();
        }
    }

    /// These files are about to be closed: a reply that would still send a part of one is another reply. Says whether one has been
    /// emitted that is not sent: nothing but cutting the connection off stops that one.
    pub(crate) fn lets_go_of(&mut self, files: &[FileId], instead: &Slot) -> bool {
        for slot in &mut self.slots {
            if matches!(slot, Slot::Raw { file, .. } if files.contains(file)) {
                self.owed = self.owed - slot.bytes() + instead.bytes();
                *slot = instead.clone();
            }
        }
        self.ranges.iter().any(|(_, file)| files.contains(file))
    }

    /// Takes the replies that are due, as far as there is no gap.
    pub(crate) fn take_due(&mut self, parts: &mut Vec<ReplyPart>) {
        let due = self.slots.iter().take_while(|slot| slot.is_due()).count();
        if due == 0 {
            return;
        }
        self.first_slot += due as u64;
        let mut out = Vec::with_capacity(due.min(4096) * 20);
        for slot in self.slots.drain(..due) {
            self.owed -= slot.bytes();
            match slot {
                Slot::Waiting | Slot::Held(_) => unreachable!("counted as due"),
                Slot::Published { offset, level, batch } => {
                    line::encode_reply(&mut out, &Reply::Published { offset, level, batch });
                }
                // A large reply goes out as it lies.
                Slot::Bytes(bytes) if out.is_empty() => out = bytes,
                Slot::Bytes(bytes) => out.extend_from_slice(&bytes),
                Slot::Raw { head, file, position, length } => {
                    out.extend_from_slice(&head);
                    parts.push(ReplyPart::Bytes(Bytes::from(core::mem::take(&mut out))));
                    parts.push(ReplyPart::FileRange { file, position, length });
                }
            }
        }
        if !out.is_empty() {
            parts.push(ReplyPart::Bytes(Bytes::from(out)));
        }
    }
}
