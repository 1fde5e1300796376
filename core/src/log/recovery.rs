//! Recovery, first half: read everything, change nothing, conclude.
//!
//! # The cases
//!
//! Segments that lie wholly below the recorded start are ignored, whatever is missing among them (crash story: *unlinks out
//! of order*). The others are read in order; a segment ends at the latest where the next one begins. Let **b** be the expected offset
//! at the first place where no valid frame with offset b stands, and let the **evidence** be the largest of the persisted
//! watermark, the committed offsets of the groups, and (offset − lag) of every valid frame found after that place,
//! searched byte by byte. Zero bytes up to the end of a segment are unused space, not an invalid place.
//!
//! | first invalid place | evidence ≤ b | evidence > b |
//! |---|---|---|
//! | none, the log ends at b | `OK` | `CORRUPT`: acknowledged messages are missing |
//! | in the last segment | `TRUNCATED_TAIL`: only frames that no force covered are hurt | `CORRUPT` |
//! | in an earlier segment, or one is missing, or the first begins above the start | `CORRUPT` | `CORRUPT` |
//!
//! Why not "a valid frame after the damage means corruption"? Unforced sectors reach the platter in any order: a plain power
//! loss can leave good-bad-good above the line, and a broker that refuses to start after a plain power loss is broken
//! (P8). Why not simply truncate? Below the line that deletes acknowledged messages (P1, P7). A flipped bit in
//! the very last durable frame looks just like a torn tail; the watermark tells them apart. The limit: after
//! a *power loss* the running slot may be one batch old, so rot in exactly the last forced batch before it looks like a torn
//! tail.
//!
//! An earlier segment is never torn: a roll forces the old segment before the new one exists.

use super::dedup::{self, Dedup, Window};
use super::index::Index;
use super::scan::{Scan, Step};
use super::search::{Found, Search};
use super::topic_file::{FileError, TopicToml};
use super::watermark::{self, Slot, Watermark};
use crate::config::Config;
use crate::effect::{Effects, FieldValue, FileId, HaltKind, IoError, IoErrorKind, Report};
use crate::event::{Event, Now};
use crate::group::journal::Replayed;
use crate::group::offset_file;
use crate::io::{Io, Owner, Task, TaskId, poll};
use crate::layout;
use crate::planted::planted;
use crate::record::{self, Decoded, Frame, Invalid, Kind, LogId, PREFIX_BYTES, Salt};
use crate::settings::Policy;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use bytes::Bytes;

/// Where the first place is at which no valid frame with the expected offset stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FirstInvalid {
    /// There is none: the log ends.
    None,
    /// In the last segment.
    InLast,
    /// In an earlier one, or between two, or before the first.
    Earlier,
}

/// What recovery concludes about one log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Conclusion {
    /// Every record is whole.
    Ok,
    /// The tail is torn, above everything that was acknowledged DURABLE.
    TruncatedTail,
    /// Damage below the evidence of durability. The start is refused and nothing is changed (P7).
    Corrupt,
}

impl Conclusion {
    /// The word in the `RECOVERY` line.
    pub fn as_str(self) -> &'static str {
        match self {
            Conclusion::Ok => "OK",
            Conclusion::TruncatedTail => "TRUNCATED_TAIL",
            Conclusion::Corrupt => "CORRUPT",
        }
    }
}

/// The decision table of this page. `end` is b.
pub fn conclude(first_invalid: FirstInvalid, evidence: u64, end: u64) -> Conclusion {
    match (first_invalid, evidence > end) {
        (FirstInvalid::None, false) => Conclusion::Ok,
        (FirstInvalid::InLast, false) => Conclusion::TruncatedTail,
        (FirstInvalid::None | FirstInvalid::InLast, true) => Conclusion::Corrupt,
        (FirstInvalid::Earlier, _) => Conclusion::Corrupt,
    }
}

/// The reason of a topic that a newer version has written.
pub const UNKNOWN_FORMAT: &str = "unknown-format";

/// Where something is wrong, and what.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Damage {
    /// The word of the printed line.
    pub reason: &'static str,
    /// The file, relative to the data directory.
    pub file: String,
    /// Where in it.
    pub position: u64,
    /// Which offset should stand there.
    pub expected: u64,
    /// The position of a valid frame behind it.
    pub valid_record_at: Option<u64>,
}

/// What hangs off the end of the last segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tail {
    /// From the first invalid place to the last byte that is not zero.
    pub bytes: u64,
    /// Valid frames behind the place that no force had covered.
    pub dropped: u64,
}

/// One segment as it was found.
#[derive(Debug)]
pub(crate) struct FoundSegment {
    pub(crate) base: u64,
    pub(crate) file: FileId,
    pub(crate) length: u64,
    /// Where its frames end.
    pub(crate) end: u64,
    pub(crate) index: Index,
    /// Offsets that stand in it as runs.
    pub(crate) removed: u64,
}

/// One segment as it was found, for tools that show it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentFindings {
    /// The offset in its name.
    pub base: u64,
    /// How long its file is.
    pub length: u64,
    /// Where its valid frames end. Behind them stands unused space, or what the damage or the tail tells.
    pub end: u64,
}

/// One topic as it was found, or the journal of a work queue. Nothing of it has been changed.
#[derive(Debug)]
pub struct TopicFindings {
    /// The topic's name.
    pub name: String,
    /// Of a journal: the work queue.
    pub group: Option<String>,
    /// The journals of the topic's work queues.
    pub queues: Vec<TopicFindings>,
    /// What follows.
    pub conclusion: Conclusion,
    /// Messages from the start to the end of the log.
    pub records: u64,
    /// The persisted Plimsoll line, as found.
    pub line: u64,
    /// The log start offset.
    pub start: u64,
    /// The end of the log: the first offset without a valid frame.
    pub end: u64,
    /// What is wrong, if anything is.
    pub damage: Option<Damage>,
    /// The torn tail, if there is one.
    pub tail: Option<Tail>,
    /// Bytes of its segments.
    pub bytes: u64,
    /// The committed offsets of its groups.
    pub groups: Vec<(String, u64)>,
    /// Replacements that were not finished, and sidecars without a closed segment, to be removed.
    pub leftovers: Vec<String>,
    /// Files that are none of ours.
    pub unknown: Vec<String>,
    /// How long reading it took.
    pub elapsed_ms: u64,
    pub(crate) toml: TopicToml,
    pub(crate) slots: Watermark,
    pub(crate) watermark: Option<FileId>,
    pub(crate) segments: Vec<FoundSegment>,
    /// Bases of segments below the recorded start.
    pub(crate) below_start: Vec<u64>,
    /// Where in the last segment the frame at the line begins (the segment's own begin if the line is lower).
    pub(crate) line_position: u64,
    /// Of a journal: what its operations come to.
    pub(crate) replayed: Replayed,
    /// What the log, and the file of what has gone from it, say of its producers.
    pub(crate) dedup: Dedup,
    /// The index of the last segment up to there.
    pub(crate) index_below_line: Index,
}

impl TopicFindings {
    fn new(name: &str, group: Option<&str>, stride: u64) -> TopicFindings {
        TopicFindings {
            name: name.into(),
            group: group.map(String::from),
            queues: Vec::new(),
            conclusion: Conclusion::Corrupt,
            records: 0,
            line: 0,
            start: 0,
            end: 0,
            damage: None,
            tail: None,
            bytes: 0,
            groups: Vec::new(),
            leftovers: Vec::new(),
            unknown: Vec::new(),
            elapsed_ms: 0,
            toml: TopicToml::default(),
            slots: Watermark { running: None, anchored: None },
            watermark: None,
            segments: Vec::new(),
            below_start: Vec::new(),
            line_position: 0,
            replayed: Replayed::default(),
            dedup: Dedup::default(),
            index_below_line: Index::new(stride),
        }
    }

    /// Its segments from the start on, as far as they were read: reading ends at the first damage.
    pub fn segments(&self) -> Vec<SegmentFindings> {
        let shown =
            |segment: &FoundSegment| SegmentFindings { base: segment.base, length: segment.length, end: segment.end };
        self.segments.iter().map(shown).collect()
    }

    /// The persisted line's two slots. One of them may be torn by a power loss, which harms nothing.
    pub fn slots(&self) -> Watermark {
        self.slots
    }

    /// Bases of segments below the recorded start, which the next start removes.
    pub fn below_start(&self) -> &[u64] {
        &self.below_start
    }

    /// Whether its making was not finished: it has its name, but nobody was told of it, and the name may be in the page cache alone.
    /// Its slots are the first ones still, and nothing is in it (crash story: *the topic without a name*); or its directory is
    /// empty (*the name that came back*).
    pub(crate) fn is_unfinished(&self) -> bool {
        // Both of them: a torn one was being written again, and that begins only when the name has been forced.
        let is_first = |slot: Option<Slot>| slot.is_some_and(|slot| slot.sequence == watermark::SEQUENCE_UNFINISHED);
        let first_slots = is_first(self.slots.running) && is_first(self.slots.anchored);
        let nothing_in_it = self.groups.is_empty()
            && self.queues.is_empty()
            && matches!(self.segments[..], [FoundSegment { base: 0, length: 0, .. }]);
        self.conclusion == Conclusion::Ok && (self.watermark.is_none() || first_slots && nothing_in_it)
    }

    /// The topic's name, with the queue's behind it.
    pub fn full_name(&self) -> String {
        self.group.as_ref().map_or(self.name.clone(), |group| format!("{}/{group}", self.name))
    }

    /// It, and the journals of its work queues.
    pub fn with_queues(&self) -> impl Iterator<Item = &TopicFindings> {
        [self].into_iter().chain(&self.queues)
    }

    /// Of a journal, as far as it was read: below which offset everything is confirmed, and how many messages above it were reserved and are
    /// not.
    pub fn queue(&self) -> Option<(u64, u64)> {
        let Replayed { next, pending, .. } = &self.replayed;
        let confirmed = pending.keys().next().copied().unwrap_or(*next);
        self.group.is_some().then_some((confirmed, pending.len() as u64))
    }

    /// Closes its files: it will not be served.
    pub(crate) fn close(self, io: &Io) {
        let files = self.segments.iter().map(|segment| segment.file).chain(self.watermark);
        files.for_each(|file| io.close(file));
    }

    pub(crate) fn dir(&self) -> String {
        let dir = layout::topic(&self.name);
        self.group.as_ref().map_or(dir.clone(), |group| layout::queue(&dir, group))
    }

    fn damaged(mut self, reason: &'static str, file: String, position: u64, expected: u64) -> TopicFindings {
        self.damage = Some(Damage { reason, file, position, expected, valid_record_at: None });
        self.conclusion = Conclusion::Corrupt;
        self
    }

    /// The `RECOVERY` line.
    pub fn report(&self) -> Report {
        use FieldValue::{Number, Text};
        let mut fields = Vec::from([("topic", Text(self.name.clone()))]);
        if let Some(group) = &self.group {
            fields.push(("queue", Text(group.clone())));
        }
        fields.extend([
            ("status", Text(self.conclusion.as_str().into())),
            ("records", Number(self.records)),
            ("durable", Number(self.line)),
        ]);
        if let Some(tail) = &self.tail {
            fields.push(("truncatedBytes", Number(tail.bytes)));
            fields.push(("truncatedAtOffset", Number(self.end)));
            fields.push(("droppedUnforced", Number(tail.dropped)));
        }
        if let Some(damage) = &self.damage {
            fields.push(("reason", Text(damage.reason.into())));
            fields.push(("expectedOffset", Number(damage.expected)));
            fields.push(("position", Number(damage.position)));
            if let Some(at) = damage.valid_record_at {
                fields.push(("validRecordAt", Number(at)));
            }
            fields.push(("file", Text(damage.file.clone())));
        }
        if self.group.is_some() {
            fields.push(("pending", Number(self.replayed.pending.len() as u64)));
            fields.push(("bytes", Number(self.bytes)));
        }
        fields.push(("elapsedMs", Number(self.elapsed_ms)));
        Report { name: "RECOVERY", fields }
    }
}

/// A whole data directory as it was found.
#[derive(Debug, Default)]
pub struct DirectoryFindings {
    /// Its topics, by name.
    pub topics: Vec<TopicFindings>,
    /// Topics that were not finished, to be removed.
    pub leftovers: Vec<String>,
    /// Entries of the topics directory that are none of ours. From an [`Inspector`] also those of the data directory.
    pub unknown: Vec<String>,
    /// No broker has finished a first start here: there is no topic, and nothing to be found. Only from an [`Inspector`].
    pub never_started: bool,
}

impl DirectoryFindings {
    /// Topics and journals with damage below the evidence of durability.
    pub fn corrupt(&self) -> impl Iterator<Item = &TopicFindings> {
        let all = self.topics.iter().flat_map(TopicFindings::with_queues);
        all.filter(|topic| topic.conclusion == Conclusion::Corrupt)
    }

    /// Why the start has to be refused, if it has (P7). Topics of a newer format alone are no damage.
    pub fn refusal(&self) -> Option<HaltKind> {
        let mut damages = self.corrupt().peekable();
        damages.peek()?;
        let newer = |topic: &TopicFindings| topic.damage.as_ref().is_some_and(|damage| damage.reason == UNKNOWN_FORMAT);
        Some(if damages.all(newer) { HaltKind::Directory } else { HaltKind::Corrupt })
    }
}

/// Reads every topic.
pub(crate) async fn inspect(io: &Io, config: &Config) -> Result<DirectoryFindings, IoError> {
    let mut findings = DirectoryFindings::default();
    for entry in io.list(layout::TOPICS).await? {
        let path = layout::topic(&entry.name);
        if entry.name.ends_with(layout::TMP) {
            findings.leftovers.push(path);
        } else if entry.is_dir && layout::is_topic_name(&entry.name) {
            findings.topics.push(inspect_topic(io, config, &entry.name, None).await?);
        } else {
            findings.unknown.push(path);
        }
    }
    Ok(findings)
}

async fn inspect_topic(io: &Io, config: &Config, name: &str, group: Option<&str>) -> Result<TopicFindings, IoError> {
    let begun = io.now().monotonic_ns;
    let mut findings = TopicFindings::new(name, group, config.index_stride_bytes);
    // Their operations are evidence of what the topic had.
    if group.is_none() {
        inspect_queues(io, config, &mut findings).await?;
    }
    let mut findings = inspect_files(io, config, findings).await?;
    findings.elapsed_ms = io.now().monotonic_ns.saturating_sub(begun) / 1_000_000;
    Ok(findings)
}

async fn inspect_queues(io: &Io, config: &Config, topic: &mut TopicFindings) -> Result<(), IoError> {
    let dir = layout::queues(&topic.dir());
    for entry in list_or_nothing(io, &dir).await? {
        let path = format!("{dir}/{}", entry.name);
        if entry.name.ends_with(layout::TMP) {
            topic.leftovers.push(path);
        } else if entry.is_dir && layout::is_group_name(&entry.name) {
            let queue = Box::pin(inspect_topic(io, config, &topic.name, Some(&entry.name)));
            topic.queues.push(queue.await?);
        } else {
            topic.unknown.push(path);
        }
    }
    Ok(())
}

async fn inspect_files(io: &Io, config: &Config, mut topic: TopicFindings) -> Result<TopicFindings, IoError> {
    let stride = config.index_stride_bytes;
    let dir = topic.dir();
    let entries = io.list(&dir).await?;
    if entries.is_empty() {
        // Whoever ever promised something of it left more than that.
        topic.conclusion = Conclusion::Ok;
        return Ok(topic);
    }
    for entry in entries {
        let path = format!("{dir}/{}", entry.name);
        if entry.name.ends_with(layout::TMP) {
            topic.leftovers.push(path);
        } else if !(if topic.group.is_some() { layout::is_queue_entry } else { layout::is_topic_entry })(&entry.name) {
            topic.unknown.push(path);
        }
    }
    let toml = layout::log_toml(&dir);
    topic.toml = match read_small(io, &toml).await?.map(|bytes| TopicToml::parse(&bytes)) {
        Some(Ok(file)) => file,
        Some(Err(FileError::UnknownFormat(_))) => return Ok(topic.damaged(UNKNOWN_FORMAT, toml, 0, 0)),
        _ => return Ok(topic.damaged("topic-unreadable", toml, 0, 0)),
    };

    // The persisted line.
    let path = layout::watermark(&dir);
    let bytes = match io.open(path.clone()).await {
        Ok((file, _)) => {
            topic.watermark = Some(file);
            io.read(file, 0, watermark::FILE_BYTES as u32).await?
        }
        Err(error) if error.kind == IoErrorKind::NotFound => Bytes::new(),
        Err(error) => return Err(error),
    };
    topic.slots = slots_of(&bytes, &topic.toml.log_id);
    let Some(slot) = topic.slots.current() else {
        return Ok(topic.damaged("watermark-unreadable", path, 0, 0));
    };
    (topic.line, topic.start) = (slot.durable, slot.start);

    // The groups. A journal has none, nor producers.
    for entry in list_or_nothing(io, &layout::groups(&dir)).await? {
        let path = format!("{}/{}", layout::groups(&dir), entry.name);
        if entry.name.ends_with(layout::TMP) {
            topic.leftovers.push(path);
            continue;
        }
        let Some(group) = layout::parse_group_offset(&entry.name) else {
            topic.unknown.push(path);
            continue;
        };
        // Guessing 0 would repeat everything, guessing high would lose messages.
        match read_small(io, &path).await?.as_deref().and_then(offset_file::parse_offset) {
            Some(offset) => topic.groups.push((group.into(), offset)),
            None if planted!(io, ResetUnreadableOffset) => topic.groups.push((group.into(), 0)),
            None => return Ok(topic.damaged("group-unreadable", path, 0, 0)),
        }
    }

    // What is known of producers whose messages are gone. To guess that it is nothing would store repeated messages twice (P16).
    let path = layout::producers(&dir);
    let mut producers = Vec::new();
    if let Some(file) = read_whole(io, &path).await? {
        topic.dedup.is_stored = true;
        producers = match dedup::parse(&file, &topic.toml.log_id) {
            Some(publishes) => publishes,
            None => return Ok(topic.damaged("producers-unreadable", path, 0, 0)),
        };
    }

    // The segments.
    let (mut bases, mut sidecars) = (Vec::new(), Vec::new());
    for entry in list_or_nothing(io, &layout::log(&dir)).await? {
        let path = format!("{}/{}", layout::log(&dir), entry.name);
        match (layout::parse_segment(&entry.name), layout::parse_index(&entry.name)) {
            (Some(base), _) => bases.push(base),
            (_, Some(base)) => sidecars.push((base, path)),
            _ if entry.name.ends_with(layout::TMP) => topic.leftovers.push(path),
            _ => topic.unknown.push(path),
        }
    }
    bases.sort_unstable();
    while bases.len() > 1 && bases[1] <= topic.start && !planted!(io, HoleBelowStart) {
        topic.below_start.push(bases.remove(0));
    }
    let closed = &bases[..bases.len().saturating_sub(1)];
    let orphans = sidecars.into_iter().filter(|(base, _)| closed.binary_search(base).is_err());
    topic.leftovers.extend(orphans.map(|(_, path)| path));
    let first = bases.first().copied();
    let Some(first) = first.filter(|first| *first <= topic.start) else {
        let path = layout::segment(&dir, topic.start);
        let expected = topic.start;
        return Ok(topic.damaged("missing-segment", path, 0, expected));
    };
    let window = Window::new(&Policy::new(&topic.toml.settings, &config.topic_defaults), config);
    // What is in the log still, because a crash came before its removal, is taken from there.
    let mut producers = producers.into_iter().peekable();
    while let Some((id, publish)) = producers.next_if(|(_, publish)| publish.offset < first) {
        topic.dedup.note(id, publish, window);
    }
    let mut expected = first;
    // The first frame of a journal that is no operation, though its checksum fits.
    let mut unreadable = None;
    for (at, &base) in bases.iter().enumerate() {
        let path = layout::segment(&dir, base);
        let (file, length) = io.open(path.clone()).await?;
        let next_base = bases.get(at + 1).copied();
        let salt = Salt::new(&topic.toml.log_id, base);
        let mut removed = 0;
        let mut scanned =
            scan_segment(io, stride, file, length, salt, base, next_base, topic.line, &mut |frame| match topic.group {
                None if matches!(frame.kind, Kind::RemovedRun | Kind::LostRun) => {
                    removed += frame.count;
                    // Nor is what was packed away in the log.
                    let end = frame.offset + frame.count;
                    while let Some((id, publish)) = producers.next_if(|(_, publish)| publish.offset < end) {
                        if publish.offset >= frame.offset {
                            topic.dedup.note(id, publish, window);
                        }
                    }
                }
                None => topic.dedup.note_frame(frame, window),
                Some(_) if frame.kind == Kind::Padding => {}
                Some(_) => {
                    let operation = (frame.kind == Kind::QueueOperation).then(|| &frame.payload[PREFIX_BYTES..]);
                    let applied = operation.and_then(|operation| topic.replayed.apply(operation, frame.stamped_ms()));
                    if applied.is_none() {
                        unreadable.get_or_insert(frame.offset);
                    }
                }
            })
            .await?;
        if let Some(offset) = unreadable {
            return Ok(topic.damaged("operation-unreadable", path, 0, offset));
        }
        expected = scanned.expected;
        topic.bytes += scanned.end;
        topic.end = expected;
        topic.records = expected.saturating_sub(first.max(topic.start));
        (topic.line_position, topic.index_below_line) = scanned.line.take().unwrap_or((0, Index::new(stride)));
        let mut index = core::mem::replace(&mut scanned.index, Index::new(stride));
        if next_base.is_some() {
            index.close();
        }
        topic.segments.push(FoundSegment { base, file, length, end: scanned.end, index, removed });
        match next_base {
            Some(next) if expected == next => {}
            Some(_) => {
                let reason = scanned.invalid.map_or("missing-segment", Invalid::as_str);
                return Ok(topic.damaged(reason, path, scanned.end, expected));
            }
            None => return Ok(judge(io, topic, path, scanned)),
        }
    }
    // Not reached: the loop returns at the last segment, and there is one.
    Ok(topic.damaged("missing-segment", layout::log(&dir), 0, expected))
}

/// The slots of this log: one with another log's id is no slot of ours.
fn slots_of(bytes: &[u8], log_id: &LogId) -> Watermark {
    let ours = |slot: &Slot| slot.log_id == *log_id && slot.start <= slot.durable;
    let slots = Watermark::read(bytes);
    Watermark { running: slots.running.filter(ours), anchored: slots.anchored.filter(ours) }
}

/// Applies the table to a log whose earlier segments are whole.
fn judge(io: &Io, mut topic: TopicFindings, path: String, scanned: Scanned) -> TopicFindings {
    let by_groups = topic.groups.iter().map(|(_, offset)| *offset);
    let mut groups = by_groups.chain(topic.queues.iter().map(|queue| queue.replayed.next)).max().unwrap_or(0);
    if planted!(io, GroupsNoEvidence) {
        groups = 0;
    }
    let found = scanned.found.as_ref().and_then(|found| found.evidence).map_or(0, |evidence| evidence.durable);
    let mut evidence = topic.line.max(groups).max(found);
    if planted!(io, TruncateWithoutEvidence) && scanned.invalid.is_some() {
        evidence = 0;
    }
    if planted!(io, EvidenceOffByOne) && scanned.invalid.is_some() {
        evidence += 1;
    }
    if planted!(io, ValidFrameIsEvidence) && scanned.found.as_ref().is_some_and(|found| found.frames > 0) {
        evidence = u64::MAX;
    }
    let first_invalid = if scanned.invalid.is_some() { FirstInvalid::InLast } else { FirstInvalid::None };
    topic.conclusion = conclude(first_invalid, evidence, topic.end);
    let reason = match scanned.invalid {
        Some(invalid) => invalid.as_str(),
        None if topic.conclusion == Conclusion::Ok => return topic,
        None if topic.line > topic.end => "below-watermark",
        None => "below-group",
    };
    let valid_record_at = scanned.found.as_ref().and_then(|found| found.first);
    topic.damage = Some(Damage { reason, file: path, position: scanned.end, expected: topic.end, valid_record_at });
    if topic.conclusion == Conclusion::TruncatedTail {
        let found = scanned.found.as_ref().expect("an invalid place was searched");
        topic.tail = Some(Tail {
            bytes: found.nonzero_end.map_or(0, |end| end.saturating_sub(scanned.end)),
            dropped: found.frames,
        });
    }
    topic
}

struct Scanned {
    /// Where the valid frames end.
    end: u64,
    /// Which offset comes next.
    expected: u64,
    invalid: Option<Invalid>,
    /// What the search behind an invalid place brought.
    found: Option<Found>,
    index: Index,
    /// Where the frame at the line begins, and the index up to there, if the line is in this segment.
    line: Option<(u64, Index)>,
}

const READ_BYTES: u64 = 1 << 20;

/// Walks one segment: up to `next_base` if another one follows, else to its end and, behind an invalid place, byte by byte.
#[expect(clippy::too_many_arguments, reason = "each is what the segment's place in the log says")]
async fn scan_segment(
    io: &Io,
    stride: u64,
    file: FileId,
    length: u64,
    salt: Salt,
    base: u64,
    next_base: Option<u64>,
    line: u64,
    visit: &mut dyn FnMut(&Frame<'_>),
) -> Result<Scanned, IoError> {
    let mut reader = ReadAhead::new(io, file, length);
    let mut scan = Scan::new(salt, 0, base);
    #[cfg(feature = "planted")]
    {
        scan.trusting = planted!(io, LengthOnlyRecovery);
    }
    let mut index = Index::new(stride);
    let mut at_line = None;
    let scanned = |scan: &Scan, invalid, found, index, line| Scanned {
        end: scan.position(),
        expected: scan.expected(),
        invalid,
        found,
        index,
        line,
    };
    let invalid = loop {
        if scan.expected() == line {
            at_line = Some((scan.position(), index.clone()));
        }
        // The padding behind the last message belongs to the force that covers it. Cut off, it would leave an end in the middle of a
        // sector, and a power loss during the cut could take the message with it (crash story: neighbours in a sector).
        if next_base.is_some_and(|next| scan.expected() >= next) && !at_padding(&mut scan, &mut reader, salt).await? {
            let invalid = (Some(scan.expected()) != next_base).then_some(Invalid::OffsetMismatch);
            reader.finish().await?;
            return Ok(scanned(&scan, invalid, None, index, at_line));
        }
        match scan.step() {
            Step::Frame { position, frame } => {
                index.note_frame(position, &frame);
                visit(&frame);
            }
            Step::Invalid(invalid) => break invalid,
            Step::NeedBytes(needed) => match reader.next().await? {
                Some(bytes) => scan.push(&bytes),
                None => match scan.at_end(needed) {
                    None => return Ok(scanned(&scan, None, None, index, at_line)),
                    Some(invalid) => break invalid,
                },
            },
        }
    };
    let mut search = Search::new(scan.position(), scan.expected(), salt);
    search.push(scan.rest());
    while let Some(bytes) = reader.next().await? {
        search.push(&bytes);
    }
    let mut found = search.finish();
    if planted!(io, NoByteSearch) {
        found.evidence = None;
    }
    if found.nonzero_end.is_none() {
        // Unused space ahead.
        return Ok(scanned(&scan, None, None, index, at_line));
    }
    Ok(scanned(&scan, Some(invalid), Some(found), index, at_line))
}

/// Whether the next frame is padding.
async fn at_padding(scan: &mut Scan, reader: &mut ReadAhead<'_>, salt: Salt) -> Result<bool, IoError> {
    loop {
        match record::decode(scan.rest(), salt) {
            Decoded::Frame(frame) => return Ok(frame.kind == Kind::Padding && frame.offset == scan.expected()),
            Decoded::Invalid(_) => return Ok(false),
            Decoded::NeedBytes(_) => match reader.next().await? {
                Some(bytes) => scan.push(&bytes),
                None => return Ok(false),
            },
        }
    }
}

/// Reads a file from front to back, one read ahead of what is being looked at.
struct ReadAhead<'a> {
    io: &'a Io,
    file: FileId,
    length: u64,
    position: u64,
    pending: Option<crate::effect::EffectId>,
}

impl<'a> ReadAhead<'a> {
    fn new(io: &'a Io, file: FileId, length: u64) -> ReadAhead<'a> {
        let mut reader = ReadAhead { io, file, length, position: 0, pending: None };
        reader.ask();
        reader
    }

    fn ask(&mut self) {
        let length = (self.length - self.position).min(READ_BYTES) as u32;
        if length > 0 {
            let effect = crate::effect::Effect::Read { file: self.file, position: self.position, length };
            self.pending = Some(self.io.start(effect));
            self.position += u64::from(length);
        }
    }

    async fn next(&mut self) -> Result<Option<Bytes>, IoError> {
        let Some(id) = self.pending.take() else { return Ok(None) };
        let bytes = self.io.wait_read(id).await?;
        if bytes.is_empty() {
            return Ok(None);
        }
        self.ask();
        Ok(Some(bytes))
    }

    /// Waits for what was asked for and is not needed.
    async fn finish(&mut self) -> Result<(), IoError> {
        if let Some(id) = self.pending.take() {
            self.io.wait_read(id).await?;
        }
        Ok(())
    }
}

/// A file whole, or `None` where there is none.
async fn read_whole(io: &Io, path: &str) -> Result<Option<Vec<u8>>, IoError> {
    let (file, length) = match io.open(path.into()).await {
        Err(error) if error.kind == IoErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut bytes = Vec::new();
    let mut reader = ReadAhead::new(io, file, length);
    while let Some(piece) = reader.next().await? {
        bytes.extend_from_slice(&piece);
    }
    io.close(file);
    Ok(Some(bytes))
}

/// A small file whole, or `None` where there is none.
pub(crate) async fn read_small(io: &Io, path: &str) -> Result<Option<Bytes>, IoError> {
    let (file, length) = match io.open(path.into()).await {
        Err(error) if error.kind == IoErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let bytes = io.read(file, 0, length.min(1 << 20) as u32).await;
    io.close(file);
    bytes.map(Some)
}

async fn list_or_nothing(io: &Io, dir: &str) -> Result<Vec<crate::effect::DirEntry>, IoError> {
    match io.list(dir).await {
        Err(error) if error.kind == IoErrorKind::NotFound => Ok(Vec::new()),
        entries => entries,
    }
}

/// Recovery's first half on its own, for tools that look at a data directory and never change it. It emits only `List`,
/// `Open`, `Read` and `CloseFile`.
pub struct Inspector {
    io: Io,
    task: Task<Result<DirectoryFindings, String>>,
    started: bool,
}

impl Default for Inspector {
    fn default() -> Inspector {
        Inspector::new()
    }
}

impl Inspector {
    /// One that has not begun.
    pub fn new() -> Inspector {
        let io = Io::new().owned_by(Owner::Task(TaskId(0)));
        let task_io = io.clone();
        let task = Box::pin(async move {
            if !crate::start::check_format(&task_io).await.map_err(|refusal| refusal.to_string())? {
                return Ok(DirectoryFindings { never_started: true, ..DirectoryFindings::default() });
            }
            let mut findings = inspect(&task_io, &Config::default()).await.map_err(|error| error.to_string())?;
            for entry in task_io.list(layout::DATA).await.map_err(|error| error.to_string())? {
                if entry.name.ends_with(layout::TMP) {
                    findings.leftovers.push(entry.name);
                } else if !layout::is_data_entry(&entry.name) {
                    findings.unknown.push(entry.name);
                }
            }
            Ok(findings)
        });
        Inspector { io, task, started: false }
    }

    /// Takes an event (`Start`, then `Completed`); says what was found, or why the directory can't be read.
    pub fn handle(
        &mut self,
        now: Now,
        event: Event,
        effects: &mut dyn Effects,
    ) -> Option<Result<DirectoryFindings, String>> {
        self.io.set_now(now);
        match event {
            Event::Start => self.started = true,
            Event::Completed { id, result } => {
                self.io.complete(id, result)?;
            }
            _ => return None,
        }
        let ended = if self.started { poll(&mut self.task) } else { None };
        self.io.drain(effects);
        ended
    }
}
