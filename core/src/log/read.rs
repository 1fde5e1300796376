//! Reading below the line: messages for FETCH and READ, whole frames for READRAW, the offset of a time.
//!
//! Nothing at or above the limit that the caller gives is ever looked at (P4). A damaged record is an error for the
//! reader, never wrong bytes and never a skipped record (P7): what stands before it is delivered, and the next
//! request meets the error.

use super::{Topic, sidecar};
use crate::effect::{FileId, IoError};
use crate::error::{Code, RequestError};
use crate::group::share::Taken;
use crate::io::Io;
use crate::log::index::Entry;
use crate::message::{self, Messages};
use crate::protocol::line;
use crate::record::{self, Decoded, Frame, Kind, Salt};
use alloc::format;
use alloc::rc::Rc;
use alloc::vec::Vec;
use bytes::Bytes;
use core::cell::RefCell;

/// What a message takes in a reply beside its key, headers and value, roughly.
const LINE_BYTES: u64 = 53;
const READ_BYTES_MIN: u64 = 4 << 10;
const READ_BYTES_MAX: u64 = 1 << 20;

/// Where the frame that holds `offset` begins, so that a consumer that goes on needs no search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Hint {
    pub(crate) origin: Origin,
    pub(crate) position: u64,
    pub(crate) offset: u64,
}

/// A segment as long as it is not packed: then frames stand elsewhere in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Origin {
    pub(crate) base: u64,
    /// Offsets that stand in it as runs. Packing makes them more.
    pub(crate) removed: u64,
}

impl Origin {
    fn of(segment: &super::Segment) -> Origin {
        Origin { base: segment.base, removed: segment.removed }
    }
}

/// What a reader asks for.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) next: u64,
    /// The line when the request was taken up.
    pub(crate) limit: u64,
    pub(crate) messages_max: u64,
    pub(crate) bytes_max: u64,
    pub(crate) meta: bool,
    pub(crate) hint: Option<Hint>,
    /// Of a work queue: how often each message from `next` on has been reserved. Else empty.
    pub(crate) deliveries: Vec<u32>,
}

/// What it gets.
#[derive(Debug, Default)]
pub(crate) struct Delivered {
    /// Encoded messages and gaps.
    pub(crate) out: Vec<u8>,
    pub(crate) messages: u64,
    /// Offsets that are gone: the first, and the one behind the last.
    pub(crate) gaps: Vec<(u64, u64)>,
    /// The offset after the last one delivered.
    pub(crate) next: u64,
    pub(crate) hint: Option<Hint>,
    /// Damage was met, at this offset.
    pub(crate) damage: Option<RequestError>,
}

/// Whole frames of a closed segment.
pub(crate) struct Raw {
    pub(crate) first: u64,
    pub(crate) file: FileId,
    pub(crate) position: u64,
    pub(crate) length: u64,
    pub(crate) salt: Salt,
}

/// A place in a segment file.
#[derive(Clone, Copy)]
struct Place {
    base: u64,
    removed: u64,
    file: FileId,
    salt: Salt,
    position: u64,
    /// Where the segment's frames end.
    end: u64,
    /// Roughly what a frame takes here.
    frame_bytes: u64,
}

/// Reads messages from `wanted.next` on.
pub(crate) async fn deliver(io: Io, topic: Rc<RefCell<Topic>>, wanted: Wanted) -> Delivered {
    let mut sink = Sink {
        delivered: Delivered { next: wanted.next, hint: wanted.hint, ..Delivered::default() },
        first: wanted.next,
        full: false,
        topic: topic.clone(),
        wanted,
    };
    let capacity = (sink.wanted.messages_max.saturating_mul(96)).min(256 << 10) as usize;
    sink.delivered.out.reserve(capacity);
    while !sink.is_full() {
        let start = topic.borrow().start;
        if sink.delivered.next < start {
            sink.gap(start);
            continue;
        }
        let recent = topic.borrow_mut().commit.recent.find(sink.delivered.next);
        if let Some(batch) = recent {
            let mut take =
                |position, frame: Frame<'_>| sink.take(Origin { base: batch.base, removed: 0 }, position, frame);
            if let Walked::Damaged(position) = walk(&batch.bytes, batch.salt, batch.position, &mut take) {
                sink.damage(batch.base, position, "a damaged record in memory");
            }
            continue;
        }
        let Some(mut place) = locate(&io, &topic, sink.delivered.next, sink.delivered.hint).await else {
            // Retention may have moved the start meanwhile.
            if sink.delivered.next < topic.borrow().start {
                continue;
            }
            sink.damage(0, 0, "no segment holds it");
            break;
        };
        let wished = place.frame_bytes.saturating_mul(sink.messages_left());
        let mut length = wished.clamp(READ_BYTES_MIN, READ_BYTES_MAX).min(sink.bytes_left()).max(READ_BYTES_MIN);
        // One segment.
        while !sink.is_full() && place.position < place.end && is_there(&topic, place) {
            let asked = length.min(place.end - place.position) as u32;
            let bytes = match io.read(place.file, place.position, asked).await {
                Ok(bytes) => bytes,
                Err(IoError { detail, .. }) => {
                    sink.damage(place.base, place.position, &detail);
                    break;
                }
            };
            // Frames above the limit may be planned and not yet written: they are not missed.
            let short = (bytes.len() as u32) < asked;
            let mut take = |position, frame: Frame<'_>| sink.take(place.origin(), position, frame);
            match walk(&bytes, place.salt, place.position, &mut take) {
                Walked::Stopped => break,
                Walked::Damaged(position) => sink.damage(place.base, position, "a damaged record"),
                Walked::NeedBytes { position, bytes } => {
                    if short {
                        sink.damage(place.base, position, "the file is shorter than it was");
                    } else if position < place.end && position + bytes > place.end {
                        sink.damage(place.base, position, "a record that does not end");
                    }
                    place.position = position;
                    // Twice as much: at once as much as may be would read a MiB for the last message of a small reply.
                    length = (2 * length).min(READ_BYTES_MAX).min(sink.bytes_left()).max(READ_BYTES_MIN).max(bytes);
                }
            }
        }
        // One that retention took meanwhile lies below the start: the next round says so.
        if !sink.is_full() && is_there(&topic, place) {
            // The segment ended: the next offset is the base of the next one, or something is missing.
            let moved = topic.borrow().segment_of(sink.delivered.next).is_some_and(|segment| segment.base > place.base);
            if !moved {
                sink.damage(place.base, place.position, "the segment ends before it");
            }
        }
    }
    sink.delivered
}

/// Finds whole frames of a closed segment, from the frame that holds `offset` on. `None`: the segment is active.
pub(crate) async fn raw(
    io: Io,
    topic: Rc<RefCell<Topic>>,
    offset: u64,
    bytes_max: u64,
) -> Result<Option<Raw>, RequestError> {
    loop {
        if let Some(found) = raw_if_unchanged(&io, &topic, offset, bytes_max).await? {
            return Ok(found);
        }
        let start = topic.borrow().start;
        if offset < start {
            let sentence = format!("offset {offset} was removed meanwhile; the log begins at {start}");
            return Err(RequestError::new(Code::OutOfRange, sentence));
        }
        // The segment was packed meanwhile.
    }
}

/// The same; `None`: the segment is not what it was when this began.
async fn raw_if_unchanged(
    io: &Io,
    topic: &Rc<RefCell<Topic>>,
    offset: u64,
    bytes_max: u64,
) -> Result<Option<Option<Raw>>, RequestError> {
    let Some(place) = locate(io, topic, offset, None).await else {
        let is_gone = offset < topic.borrow().start;
        return if is_gone { Ok(None) } else { Err(corrupt(topic, offset, 0, 0, "no segment holds it")) };
    };
    if topic.borrow().active().base == place.base {
        return Ok(Some(None));
    }
    let damaged = |position| corrupt(topic, offset, place.base, position, "a damaged record");
    let mut first = None;
    find(io, topic, place, place.end, &mut |position, frame| {
        if frame.offset + frame.count > offset {
            first = Some((frame.offset, position));
        }
        first.is_none()
    })
    .await
    .map_err(damaged)?;
    let Some((first, position)) = first.filter(|_| is_there(topic, place)) else {
        return if is_there(topic, place) { Err(damaged(place.end)) } else { Ok(None) };
    };
    let target = position.saturating_add(bytes_max);
    let end = if target >= place.end {
        place.end
    } else {
        let boundary = sidecar::begin(io, topic, place.base, |places| places.boundary_before(target)).await;
        let from = Place { position: boundary.position.max(position), ..place };
        let mut end = from.position;
        find(io, topic, from, place.end, &mut |at, frame| {
            let behind = at + frame.size() as u64;
            // At least one frame, however large.
            if behind <= target || end == position {
                end = behind;
            }
            behind < target
        })
        .await
        .map_err(damaged)?;
        if !is_there(topic, place) {
            return Ok(None);
        }
        end
    };
    Ok(Some(Some(Raw { first, file: place.file, position, length: end - position, salt: place.salt })))
}

/// The first offset below `limit` whose message was accepted at or after `time_ms`; `limit` where there is none.
pub(crate) async fn find_time(
    io: Io,
    topic: Rc<RefCell<Topic>>,
    time_ms: i64,
    limit: u64,
) -> Result<u64, RequestError> {
    let mut below = 0;
    loop {
        let base = {
            let topic = topic.borrow();
            let later = |segment: &&super::Segment| {
                segment.base >= below && segment.index.time_max_ms().is_some_and(|max| max >= time_ms)
            };
            topic.segments.iter().find(later).map(|segment| (segment.base, segment.file))
        };
        let Some((base, file)) = base.filter(|(base, _)| *base < limit) else {
            return Ok(limit.max(topic.borrow().start));
        };
        let Entry { offset, position, .. } =
            sidecar::begin(&io, &topic, base, |places| places.locate_time(time_ms)).await;
        // Above the limit there may be frames that are not written yet.
        if offset >= limit {
            return Ok(limit);
        }
        let (start, place) = {
            let topic = topic.borrow();
            let segment = topic.segment_of(base).filter(|segment| segment.base == base && segment.file == file);
            (topic.start, segment.map(|segment| place_in(segment, position, u64::MAX)))
        };
        let mut found = None;
        let Some(place) = place else { continue };
        find(&io, &topic, place, place.end, &mut |_, frame| {
            // The start may lie within a batch, whose messages are all of one time.
            let is_there = frame.offset < limit && frame.offset + frame.count > start;
            let hit = is_there && frame.time_ms().is_some_and(|accepted| accepted >= time_ms);
            if hit {
                found = Some(frame.offset.max(start));
            }
            !hit && frame.offset + frame.count < limit
        })
        .await
        .map_err(|position| corrupt(&topic, offset, place.base, position, "a damaged record"))?;
        if let Some(found) = found {
            // What was found may have been removed while it was looked for.
            return Ok(found.max(topic.borrow().start));
        }
        // It may have been packed meanwhile: then what it holds is looked at again.
        if topic.borrow().segment_of(base).is_none_or(|segment| segment.base != base || segment.file == file) {
            below = base + 1;
        }
    }
}

struct Sink {
    wanted: Wanted,
    /// What `wanted.deliveries` begins with.
    first: u64,
    delivered: Delivered,
    full: bool,
    topic: Rc<RefCell<Topic>>,
}

impl Sink {
    fn is_full(&self) -> bool {
        self.full || self.messages_left() == 0 || self.delivered.next >= self.wanted.limit
    }

    fn messages_left(&self) -> u64 {
        self.wanted.messages_max - self.delivered.messages
    }

    fn bytes_left(&self) -> u64 {
        self.wanted.bytes_max.saturating_sub(self.delivered.out.len() as u64)
    }

    /// What comes before `end` is gone.
    fn gap(&mut self, end: u64) {
        line::encode_gap(&mut self.delivered.out, self.delivered.next, end);
        self.delivered.gaps.push((self.delivered.next, end));
        self.delivered.next = end;
    }

    /// Takes a frame if it is the next one; says whether to go on.
    fn take(&mut self, origin: Origin, position: u64, frame: Frame<'_>) -> bool {
        let end = frame.offset + frame.count;
        if end <= self.delivered.next {
            return true;
        }
        if frame.offset > self.delivered.next {
            self.damage(origin.base, position, "a record is missing");
            return false;
        }
        match frame.kind {
            Kind::LostRun | Kind::RemovedRun => {
                self.gap(end);
            }
            _ => {
                let Some(messages) = message::messages(&frame) else {
                    self.damage(origin.base, position, "a record that is no message");
                    return false;
                };
                return self.take_messages(origin, position, frame, messages);
            }
        }
        self.delivered.next = end;
        self.delivered.hint = Some(Hint { origin, position: position + frame.size() as u64, offset: end });
        !self.is_full()
    }

    /// Takes those of a frame's messages that come next; of a batch it may be that some were taken before, and that some are left
    /// for the next request.
    fn take_messages(&mut self, origin: Origin, position: u64, frame: Frame<'_>, messages: Messages<'_>) -> bool {
        for (offset, message) in messages {
            if offset < self.delivered.next {
                continue;
            }
            // At least one message, however large.
            let bytes = message.bytes() as u64 + LINE_BYTES;
            if self.delivered.messages > 0 && bytes > self.bytes_left() {
                self.full = true;
            }
            if self.is_full() {
                return false;
            }
            let deliveries = self.wanted.deliveries.get((offset - self.first) as usize).copied();
            line::encode_message(&mut self.delivered.out, offset, &message, self.wanted.meta, deliveries);
            self.delivered.messages += 1;
            self.delivered.next = offset + 1;
            let is_last = offset + 1 == frame.offset + frame.count;
            let position = if is_last { position + frame.size() as u64 } else { position };
            self.delivered.hint = Some(Hint { origin, position, offset: offset + 1 });
        }
        !self.is_full()
    }

    fn damage(&mut self, base: u64, position: u64, what: &str) {
        self.full = true;
        self.delivered.damage = Some(corrupt(&self.topic, self.delivered.next, base, position, what));
    }
}

fn corrupt(topic: &Rc<RefCell<Topic>>, offset: u64, base: u64, position: u64, what: &str) -> RequestError {
    let topic = topic.borrow();
    RequestError::new(
        Code::Corrupt,
        format!(
            "offset {offset} of topic {} can't be read: {what}, segment {base}, position {position}; stop the broker and run plimsoll verify",
            topic.name
        ),
    )
}

impl Place {
    fn origin(self) -> Origin {
        Origin { base: self.base, removed: self.removed }
    }
}

fn place_in(segment: &super::Segment, position: u64, next_base: u64) -> Place {
    let messages = next_base.saturating_sub(segment.base).max(1);
    Place {
        base: segment.base,
        removed: segment.removed,
        file: segment.file,
        salt: segment.salt,
        position,
        end: segment.end,
        frame_bytes: segment.end / messages + 16,
    }
}

async fn locate(io: &Io, topic: &Rc<RefCell<Topic>>, offset: u64, hint: Option<Hint>) -> Option<Place> {
    loop {
        let origin = Origin::of(topic.borrow().segment_of(offset)?);
        let position = match hint {
            Some(hint) if hint.origin == origin && hint.offset == offset => hint.position,
            _ if offset == origin.base => 0,
            _ => sidecar::begin(io, topic, origin.base, |places| places.locate(offset)).await.position,
        };
        let topic = topic.borrow();
        let after = topic.segments.partition_point(|segment| segment.base <= offset);
        let segment = topic.segments.get(after.checked_sub(1)?).filter(|segment| segment.base == origin.base)?;
        // It may have been packed while its index was read.
        if Origin::of(segment) == origin {
            let next_base = topic.segments.get(after).map_or(topic.next, |next| next.base);
            return Some(place_in(segment, position, next_base));
        }
    }
}

enum Walked {
    /// The visitor had enough.
    Stopped,
    /// The frame at `position` needs this many bytes.
    NeedBytes {
        position: u64,
        bytes: u64,
    },
    Damaged(u64),
}

/// Walks the frames in `bytes`, which stand at `begin`.
fn walk(bytes: &Bytes, salt: Salt, begin: u64, visit: &mut dyn FnMut(u64, Frame<'_>) -> bool) -> Walked {
    let mut at = 0;
    loop {
        let position = begin + at as u64;
        match record::decode(&bytes[at..], salt) {
            Decoded::Frame(frame) => {
                if !visit(position, frame) {
                    return Walked::Stopped;
                }
                at += frame.size();
            }
            Decoded::NeedBytes(n) => return Walked::NeedBytes { position, bytes: n as u64 },
            Decoded::Invalid(_) => return Walked::Damaged(position),
        }
    }
}

/// Walks all frames of a segment. An error is the position of damage.
pub(super) async fn walk_segment(
    io: &Io,
    topic: &Rc<RefCell<Topic>>,
    base: u64,
    visit: &mut dyn FnMut(u64, Frame<'_>) -> bool,
) -> Result<(), u64> {
    let place = topic.borrow().segment_of(base).map(|segment| place_in(segment, 0, u64::MAX)).ok_or(0_u64)?;
    find(io, topic, place, place.end, visit).await
}

/// Whether retention has left the segment: its file must not be read when it is closed.
fn is_there(topic: &Rc<RefCell<Topic>>, place: Place) -> bool {
    topic.borrow().segment_of(place.base).is_some_and(|segment| segment.file == place.file)
}

/// Walks the frames of a segment from `place` to `end`, or until retention takes it. An error is the position of damage.
async fn find(
    io: &Io,
    topic: &Rc<RefCell<Topic>>,
    mut place: Place,
    end: u64,
    visit: &mut dyn FnMut(u64, Frame<'_>) -> bool,
) -> Result<(), u64> {
    let mut length = READ_BYTES_MIN * 16;
    while place.position < end && is_there(topic, place) {
        let asked = length.min(end - place.position) as u32;
        let bytes = io.read(place.file, place.position, asked).await.map_err(|_| place.position)?;
        let short = (bytes.len() as u32) < asked;
        match walk(&bytes, place.salt, place.position, visit) {
            Walked::Stopped => return Ok(()),
            Walked::Damaged(position) => return Err(position),
            Walked::NeedBytes { position, bytes } => {
                if short || (position + bytes > end && position < end) {
                    return Err(position);
                }
                place.position = position;
                length = READ_BYTES_MAX.max(bytes);
            }
        }
    }
    Ok(())
}

/// What a consumer of a work queue gets of the messages that were taken for it.
#[derive(Debug, Default)]
pub(crate) struct Handed {
    /// Encoded messages and gaps.
    pub(crate) out: Vec<u8>,
    /// The messages in it.
    pub(crate) offsets: Vec<u64>,
    /// Offsets that are gone: the first, and the one behind the last.
    pub(crate) gaps: Vec<(u64, u64)>,
    /// Damage was met, at this offset.
    pub(crate) damage: Option<(u64, RequestError)>,
}

/// Reads messages that were taken for a consumer, in the order in which they were taken, until the reply is large enough; tells of a gap
/// before them.
pub(crate) async fn hand_out(
    io: Io,
    topic: Rc<RefCell<Topic>>,
    gap: Option<(u64, u64)>,
    taken: Vec<Taken>,
    limit: u64,
    bytes_max: u64,
    meta: bool,
) -> Handed {
    let mut handed = Handed::default();
    if let Some((first, end)) = gap {
        line::encode_gap(&mut handed.out, first, end);
        handed.gaps.push((first, end));
    }
    for run in taken.chunk_by(|one, next| one.offset + 1 == next.offset) {
        let (next, end) = (run[0].offset, run[0].offset + run.len() as u64);
        // What a gap before it has told already. Runs come in the order of becoming due, so a gap may lie above.
        let told = handed.gaps.iter().find(|gap| (gap.0..gap.1).contains(&next)).map_or(next, |gap| gap.1);
        if told >= end {
            continue;
        }
        let left = bytes_max.saturating_sub(handed.out.len() as u64);
        if left == 0 {
            break;
        }
        let skipped = (told - next) as usize;
        let deliveries = run[skipped..].iter().map(|taken| taken.deliveries).collect();
        let wanted = Wanted {
            next: told,
            limit: end.min(limit),
            messages_max: run.len() as u64,
            bytes_max: left,
            meta,
            hint: None,
            deliveries,
        };
        let delivered = deliver(io.clone(), topic.clone(), wanted).await;
        let is_gone = |offset: &u64| delivered.gaps.iter().any(|gap| (gap.0..gap.1).contains(offset));
        handed.offsets.extend((told..delivered.next.min(end)).filter(|offset| !is_gone(offset)));
        handed.out.extend_from_slice(&delivered.out);
        handed.gaps.extend(delivered.gaps);
        if let Some(damage) = delivered.damage {
            handed.damage = Some((delivered.next, damage));
            break;
        }
        if delivered.next < end {
            break;
        }
    }
    handed
}

/// A message as it is stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Stored {
    pub(crate) timestamp_ms: i64,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) headers: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) value: Vec<u8>,
}

/// One message below the line; `None`: it is gone.
pub(crate) async fn message(io: Io, topic: Rc<RefCell<Topic>>, offset: u64) -> Result<Option<Stored>, RequestError> {
    loop {
        let is_gone = || offset < topic.borrow().start;
        let Some(place) = locate(&io, &topic, offset, None).await else {
            return if is_gone() { Ok(None) } else { Err(corrupt(&topic, offset, 0, 0, "no segment holds it")) };
        };
        let mut found = None;
        find(&io, &topic, place, place.end, &mut |_, frame| {
            if frame.offset + frame.count <= offset {
                return true;
            }
            let own = |message: message::Message<'_>| Stored {
                timestamp_ms: message.timestamp_ms,
                key: message.key.map(<[u8]>::to_vec),
                headers: message.headers().map(|(name, value)| (name.to_vec(), value.to_vec())).collect(),
                value: message.value.to_vec(),
            };
            let mut messages = message::messages(&frame).into_iter().flatten();
            let stored = messages.find(|(at, _)| *at == offset).map(|(_, message)| own(message));
            // A run stands for messages that are gone.
            let is_run = matches!(frame.kind, Kind::LostRun | Kind::RemovedRun);
            found = if is_run { Some(None) } else { stored.map(Some) };
            false
        })
        .await
        .map_err(|position| corrupt(&topic, offset, place.base, position, "a damaged record"))?;
        match found {
            Some(found) => return Ok(found),
            None if is_gone() => return Ok(None),
            None if is_there(&topic, place) => {
                return Err(corrupt(&topic, offset, place.base, place.position, "a record is missing"));
            }
            // The segment was packed meanwhile.
            None => {}
        }
    }
}
