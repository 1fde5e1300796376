//! The sidecar of a closed segment: its index in a file, so that it needs no memory while nobody reads the segment.
//!
//! It is written after a roll, unforced, and every failure of that is ignored: it can be made anew from the segment at any time,
//! and is, when it is needed and missing. So nothing may follow from what it says:
//!
//! - It is read only if it bears the log id, the base, the end and the **fingerprint** of the segment, which this process has
//!   computed itself, from the frames, in recovery's scan or when they were published. So one that is stale, of another segment or
//!   of another run of the same log is known as such (crash story: *the index of another life*).
//! - Before anybody goes on from a position that it gives, the frame there is decoded, and must have the offset that it says.
//! - Recovery doesn't look at it at all.
//!
//! Where either fails, the segment is walked from its beginning, as without a sidecar, and a new one is written.

use super::index::{ENTRIES_MAX, Entry, Index, Places};
use super::{Segment, Topic, read};
use crate::effect::{FileId, IoErrorKind};
use crate::io::Io;
use crate::layout;
use crate::planted::planted;
use crate::record::{self, Decoded, Frame, LogId, Salt};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use core::array;
use core::cell::RefCell;

const MAGIC: [u8; 4] = *b"PLIX";
const HEAD_BYTES: usize = 4 + 16 + 8 + 8 + 8 + 4;
const ENTRY_BYTES: usize = 24;
const CHECKSUM_BYTES: usize = 4;
/// The largest sidecar.
pub const FILE_BYTES_MAX: usize = HEAD_BYTES + ENTRIES_MAX * ENTRY_BYTES + CHECKSUM_BYTES;

/// What a sidecar says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sidecar {
    /// The log of its segment.
    pub log_id: LogId,
    /// The offset in the segment's name.
    pub base: u64,
    /// Where the segment's frames end, bytes.
    pub end: u64,
    /// Of offset, position and time of every frame of the segment.
    pub fingerprint: u64,
    /// In order; the first is the segment's first frame.
    pub entries: Vec<Entry>,
}

/// The bytes of a sidecar.
pub fn encode(sidecar: &Sidecar) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEAD_BYTES + sidecar.entries.len() * ENTRY_BYTES + CHECKSUM_BYTES);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&sidecar.log_id);
    for number in [sidecar.base, sidecar.end, sidecar.fingerprint] {
        out.extend_from_slice(&number.to_be_bytes());
    }
    out.extend_from_slice(&(sidecar.entries.len() as u32).to_be_bytes());
    for entry in &sidecar.entries {
        out.extend_from_slice(&entry.offset.to_be_bytes());
        out.extend_from_slice(&entry.position.to_be_bytes());
        out.extend_from_slice(&entry.time_before_ms.to_be_bytes());
    }
    out.extend_from_slice(&crc32c::crc32c(&out).to_be_bytes());
    out
}

/// The sidecar that `bytes` hold, or `None` where they are torn, of another kind, or contradict themselves.
pub fn decode(bytes: &[u8]) -> Option<Sidecar> {
    let (covered, checksum) = bytes.split_last_chunk::<CHECKSUM_BYTES>()?;
    let (head, entries) = covered.split_first_chunk::<HEAD_BYTES>()?;
    if head[..4] != MAGIC || crc32c::crc32c(covered).to_be_bytes() != *checksum {
        return None;
    }
    let u64_at = |bytes: &[u8], at: usize| u64::from_be_bytes(array::from_fn(|i| bytes[at + i]));
    let count = u32::from_be_bytes(array::from_fn(|i| head[HEAD_BYTES - 4 + i])) as usize;
    if count == 0 || count > ENTRIES_MAX || entries.len() != count * ENTRY_BYTES {
        return None;
    }
    let entries = entries.chunks_exact(ENTRY_BYTES).map(|bytes| Entry {
        offset: u64_at(bytes, 0),
        position: u64_at(bytes, 8),
        time_before_ms: u64_at(bytes, 16) as i64,
    });
    let sidecar = Sidecar {
        log_id: array::from_fn(|i| head[4 + i]),
        base: u64_at(head, 20),
        end: u64_at(head, 28),
        fingerprint: u64_at(head, 36),
        entries: entries.collect(),
    };
    let goes_on = |pair: &[Entry]| {
        pair[0].offset < pair[1].offset
            && pair[0].position < pair[1].position
            && pair[0].time_before_ms <= pair[1].time_before_ms
    };
    let consistent = sidecar.entries[0] == Entry::first(sidecar.base) && sidecar.entries.windows(2).all(goes_on);
    consistent.then_some(sidecar)
}

/// The indexes of closed segments that are in memory: those that were asked for last, over all topics, within a bound (P13).
#[derive(Clone)]
pub(crate) struct Indexes(Rc<RefCell<Shared>>);

struct Shared {
    stride: u64,
    bytes_max: u64,
    bytes: u64,
    uses: u64,
    /// By file, which names a segment for the life of the process: when it was used last, and its index.
    kept: BTreeMap<FileId, (u64, Kept)>,
    by_use: BTreeMap<u64, FileId>,
    /// Sidecars that are being written.
    writing: BTreeSet<FileId>,
}

/// An index in memory.
#[derive(Clone)]
struct Kept {
    places: Rc<Places>,
    /// Made from frames, and not read from a sidecar.
    made: bool,
}

impl Kept {
    fn bytes(&self) -> u64 {
        const OVERHEAD: usize = 160;
        (OVERHEAD + self.places.0.len() * size_of::<Entry>()) as u64
    }
}

impl Shared {
    fn trim(&mut self) {
        while self.bytes > self.bytes_max {
            let (_, oldest) = self.by_use.pop_first().expect("bytes are counted");
            let (_, kept) = self.kept.remove(&oldest).expect("both know it");
            self.bytes -= kept.bytes();
        }
    }
}

impl Indexes {
    pub(crate) fn new(stride: u64, bytes_max: u64) -> Indexes {
        Indexes(Rc::new(RefCell::new(Shared {
            stride,
            bytes_max,
            bytes: 0,
            uses: 0,
            kept: BTreeMap::new(),
            by_use: BTreeMap::new(),
            writing: BTreeSet::new(),
        })))
    }

    /// The index of a new segment.
    pub(crate) fn new_index(&self) -> Index {
        Index::new(self.0.borrow().stride)
    }

    /// Keeps the index of a segment that has just been closed.
    pub(crate) fn keep_closed(&self, file: FileId, places: &Rc<Places>) {
        self.keep(file, Kept { places: places.clone(), made: true });
    }

    fn keep(&self, file: FileId, kept: Kept) {
        self.forget(file);
        let mut shared = self.0.borrow_mut();
        shared.uses += 1;
        let now = shared.uses;
        shared.bytes += kept.bytes();
        shared.kept.insert(file, (now, kept));
        shared.by_use.insert(now, file);
        shared.trim();
    }

    /// Another bound for all of them.
    pub(crate) fn bound(&self, bytes_max: u64) {
        let mut shared = self.0.borrow_mut();
        shared.bytes_max = bytes_max;
        shared.trim();
    }

    fn get(&self, file: FileId) -> Option<Kept> {
        let mut shared = self.0.borrow_mut();
        shared.uses += 1;
        let now = shared.uses;
        let (used, kept) = shared.kept.get_mut(&file)?;
        let before = core::mem::replace(used, now);
        let kept = kept.clone();
        shared.by_use.remove(&before);
        shared.by_use.insert(now, file);
        Some(kept)
    }

    /// Forgets the index of a segment.
    pub(crate) fn forget(&self, file: FileId) {
        let mut shared = self.0.borrow_mut();
        if let Some((used, kept)) = shared.kept.remove(&file) {
            shared.by_use.remove(&used);
            shared.bytes -= kept.bytes();
        }
    }

    fn begin_writing(&self, file: FileId) -> bool {
        self.0.borrow_mut().writing.insert(file)
    }

    fn end_writing(&self, file: FileId) {
        self.0.borrow_mut().writing.remove(&file);
    }
}

/// A closed segment, as a reader needs it.
struct Closed {
    file: FileId,
    base: u64,
    end: u64,
    salt: Salt,
    fingerprint: u64,
    log_id: LogId,
    path: String,
}

/// The segment at `base`, while it is there and closed.
fn closed(topic: &Rc<RefCell<Topic>>, base: u64) -> Option<Closed> {
    let topic = topic.borrow();
    let segment: &Segment = topic.segment_of(base).filter(|segment| segment.base == base)?;
    (topic.active().base != base).then(|| Closed {
        file: segment.file,
        base,
        end: segment.end,
        salt: segment.salt,
        fingerprint: segment.index.fingerprint(),
        log_id: topic.toml.log_id,
        path: layout::index(&topic.dir, base),
    })
}

/// Where to begin looking in a segment: the frame that `pick` chooses from its index, or its first one.
pub(crate) async fn begin(
    io: &Io,
    topic: &Rc<RefCell<Topic>>,
    base: u64,
    pick: impl Fn(&Places) -> Option<Entry>,
) -> Entry {
    let first = Entry::first(base);
    let Some(closed) = closed(topic, base) else {
        let topic = topic.borrow();
        let active = topic.segments.back().filter(|segment| segment.base == base);
        return active.and_then(|segment| pick(segment.index.places())).unwrap_or(first);
    };
    let indexes = topic.borrow().indexes.clone();
    if closed.end <= indexes.0.borrow().stride {
        return first;
    }
    let kept = match indexes.get(closed.file) {
        Some(kept) => kept,
        None => match load(io, &closed).await {
            Some(places) => {
                let kept = Kept { places: Rc::new(places), made: false };
                indexes.keep(closed.file, kept.clone());
                kept
            }
            None => rebuild(io, topic, &indexes, &closed).await,
        },
    };
    let entry = pick(&kept.places).unwrap_or(first);
    if kept.made || entry == first || planted!(io, SidecarBelieved) || stands(io, topic, &closed, entry).await {
        return entry;
    }
    indexes.forget(closed.file);
    let kept = rebuild(io, topic, &indexes, &closed).await;
    pick(&kept.places).unwrap_or(first)
}

/// Reads the sidecar; `None` where there is none of just this segment.
async fn load(io: &Io, closed: &Closed) -> Option<Places> {
    let (file, length) = io.open(closed.path.clone()).await.ok()?;
    let bytes = if length <= FILE_BYTES_MAX as u64 { io.read(file, 0, length as u32).await.ok() } else { None };
    io.close(file);
    let sidecar = decode(&bytes?)?;
    let is_of_it = sidecar.log_id == closed.log_id
        && sidecar.base == closed.base
        && sidecar.end == closed.end
        && sidecar.fingerprint == closed.fingerprint;
    (is_of_it || planted!(io, SidecarBelieved)).then_some(Places(sidecar.entries))
}

/// Whether the frame that an entry tells of stands where it says.
async fn stands(io: &Io, topic: &Rc<RefCell<Topic>>, closed: &Closed, entry: Entry) -> bool {
    const FRAME_BYTES_GUESSED: u64 = 4 << 10;
    let mut wanted = FRAME_BYTES_GUESSED;
    loop {
        // Retention may have closed the file meanwhile.
        if !is_there(topic, closed) {
            return false;
        }
        let left = closed.end.saturating_sub(entry.position);
        let Ok(bytes) = io.read(closed.file, entry.position, wanted.min(left) as u32).await else { return false };
        match record::decode(&bytes, closed.salt) {
            Decoded::Frame(frame) => return frame.offset == entry.offset,
            Decoded::NeedBytes(n) if n as u64 > wanted && n as u64 <= left => wanted = n as u64,
            _ => return false,
        }
    }
}

/// Walks the segment, and writes its sidecar. What stands before damage is known afterwards; the reader meets the damage itself.
async fn rebuild(io: &Io, topic: &Rc<RefCell<Topic>>, indexes: &Indexes, closed: &Closed) -> Kept {
    let mut index = indexes.new_index();
    let mut note = |position, frame: Frame<'_>| {
        index.note_frame(position, &frame);
        true
    };
    let walked = read::walk_segment(io, topic, closed.base, &mut note).await;
    let is_whole = walked.is_ok() && index.fingerprint() == closed.fingerprint;
    let kept = Kept { places: Rc::new(index.close()), made: true };
    if is_whole {
        indexes.keep(closed.file, kept.clone());
        store(io, topic, indexes, closed, &kept.places).await;
    }
    kept
}

/// Writes the sidecar of a segment that a roll has just closed.
pub(crate) async fn write(io: Io, topic: Rc<RefCell<Topic>>, base: u64, places: Rc<Places>) {
    let indexes = topic.borrow().indexes.clone();
    // The index of a short one would say no more than that it begins at its beginning.
    if let Some(closed) = closed(&topic, base).filter(|_| places.0.len() > 1) {
        store(&io, &topic, &indexes, &closed, &places).await;
    }
}

/// On any failure nothing is left of it, as far as that can be done.
async fn store(io: &Io, topic: &Rc<RefCell<Topic>>, indexes: &Indexes, closed: &Closed, places: &Places) {
    // Two readers may have found that there is none.
    if topic.borrow().space.full || !indexes.begin_writing(closed.file) {
        return;
    }
    let sidecar = Sidecar {
        log_id: closed.log_id,
        base: closed.base,
        end: closed.end,
        fingerprint: closed.fingerprint,
        entries: places.0.clone(),
    };
    let bytes = Bytes::from(encode(&sidecar));
    if let Some(file) = create(io, topic, closed).await {
        let written = io.write(file, 0, bytes).await;
        io.close(file);
        if written.is_err() {
            let _ = io.remove(&closed.path).await;
        }
    }
    indexes.end_writing(closed.file);
}

fn is_there(topic: &Rc<RefCell<Topic>>, closed: &Closed) -> bool {
    topic.borrow().segment_of(closed.base).is_some_and(|segment| segment.file == closed.file)
}

async fn create(io: &Io, topic: &Rc<RefCell<Topic>>, closed: &Closed) -> Option<FileId> {
    // Retention removes the sidecar of a segment that it has taken out of the topic, and none may come after.
    if !is_there(topic, closed) {
        return None;
    }
    match io.create(closed.path.clone()).await {
        Err(error) if error.kind == IoErrorKind::Exists => {
            io.remove(&closed.path).await.ok()?;
            if is_there(topic, closed) { io.create(closed.path.clone()).await.ok() } else { None }
        }
        created => created.ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sidecar(base: u64) -> Sidecar {
        let entries = (0..5).map(|n| Entry {
            offset: base + 10 * n,
            position: 700 * n,
            time_before_ms: if n == 0 { i64::MIN } else { 1000 + n as i64 / 2 },
        });
        Sidecar { log_id: [7; 16], base, end: 9000, fingerprint: 0x1234_5678_9abc_def0, entries: entries.collect() }
    }

    #[test]
    fn no_flipped_bit_and_no_cut_is_taken() {
        let bytes = encode(&sidecar(40));
        assert_eq!(decode(&bytes), Some(sidecar(40)));
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << bit;
                assert_eq!(decode(&flipped), None, "byte {at}, bit {bit}");
            }
            assert_eq!(decode(&bytes[..at]), None, "cut to {at}");
        }
        assert_eq!(decode(&[&bytes[..], &[0]].concat()), None);
    }

    /// A checksum alone says nothing about what was written.
    #[test]
    fn one_that_contradicts_itself_is_not_taken() {
        type Change = fn(&mut Sidecar);
        let changes: [Change; 5] = [
            |said| said.entries.clear(),
            |said| said.base += 1,
            |said| said.entries[3].offset = said.entries[2].offset,
            |said| said.entries[3].position = said.entries[2].position,
            |said| said.entries[3].time_before_ms = said.entries[2].time_before_ms - 1,
        ];
        for change in changes {
            let mut said = sidecar(40);
            change(&mut said);
            assert_eq!(decode(&encode(&said)), None, "{said:?}");
        }
    }

    /// P13: what was asked for last stays, within the bound.
    #[test]
    fn no_more_is_kept_than_the_bound_allows() {
        let places = || Rc::new(Places(sidecar(0).entries));
        let one = Kept { places: places(), made: true }.bytes();
        let indexes = Indexes::new(1, 3 * one);
        let is_kept = |file: u64| indexes.0.borrow().kept.contains_key(&FileId(file));
        (0..3).for_each(|file| indexes.keep_closed(FileId(file), &places()));
        assert!(indexes.get(FileId(0)).is_some());
        indexes.keep_closed(FileId(3), &places());
        assert_eq!([0, 1, 2, 3].map(is_kept), [true, false, true, true]);
        // The same one again counts once.
        indexes.keep_closed(FileId(3), &places());
        assert_eq!(indexes.0.borrow().bytes, 3 * one);
        indexes.bound(one);
        assert_eq!([0, 2, 3].map(is_kept), [false, false, true]);
        indexes.bound(one - 1);
        assert_eq!((is_kept(3), indexes.0.borrow().bytes, indexes.0.borrow().by_use.len()), (false, 0, 0));
        // One that does not fit is not kept, and nothing else goes wrong.
        indexes.keep_closed(FileId(9), &places());
        assert!(!is_kept(9) && indexes.get(FileId(9)).is_none());
    }
}
