//! Recovery, second half: after an unclean stop, nothing that only the page cache may hold is believed.
//!
//! A failed force leaves pages that look right and are marked clean; a kill leaves renames that no force has covered; and
//! forcing again does nothing for either. So, before anything is served:
//!
//! 1. **The doubtful tail is copied**: the frames of the last segment at or above the persisted line go into a new file
//!    with a new directory entry, also when there are none (crash story: *the soft directory force*). Then the old
//!    segment is cut there and forced. Nothing that may be durable is overwritten in place (crash story: *exactness
//!    believed twice*); a crash anywhere leaves the old frames or the new, and where they overlap "a segment ends where
//!    the next one begins" decides. While the last segment is small all of it is copied, under its own name, so that kills
//!    don't litter.
//! 2. Every group file and `topic.toml` is written anew (crash story: *ACKED from the cache*).
//! 3. Every file and directory is forced (crash story: *the topic that was a tmp*), also after a clean stop: a restored
//!    backup may never have been.
//! 4. The line and the start are anchored, the slot that may be torn first (crash story: *both slots torn*); where the slots say
//!    different starts, in a new file (*the slot that was too old*). Only then are leftovers removed (crash story: *believed, removed,
//!    forgotten*).
//!
//! Each step can be interrupted and done again (P9).

use super::anchor::{self, Place, Stop};
use super::create::{self, remove_tree, replace};
use super::group_commit::Commit;
use super::recovery::{FoundSegment, TopicFindings};
use super::retention::Retention;
use super::scan::{Scan, Step};
use super::sidecar::Indexes;
use super::watermark::{self, Slot};
use super::{Segment, Topic, Trouble};
use crate::config::Config;
use crate::effect::{Effect, FieldValue, Report};
use crate::group::cursor::Group;
use crate::group::offset_file;
use crate::io::{Io, TopicId};
use crate::layout;
use crate::planted::planted;
use crate::record::{self, Salt};
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use core::cell::RefCell;

const COPY_BYTES: u64 = 1 << 20;

/// Steps 1 to 3 for one topic. It is not to be served before [`settle`].
pub(crate) async fn restore(
    io: &Io,
    config: &Config,
    indexes: &Indexes,
    id: TopicId,
    found: &mut TopicFindings,
) -> Result<Rc<RefCell<Topic>>, Trouble> {
    let dir = found.dir();
    let watermark = found.watermark.expect("a topic that is not corrupt has its watermark file");
    let name = found.full_name();
    let mut topic = create::empty(indexes.clone(), config, id, name, dir.clone(), found.toml, watermark);
    topic.start = found.start;
    topic.retention = Retention::recovered(found.start);
    (topic.durable, topic.written, topic.next) = (found.end, found.end, found.end);
    topic.sequence = found.slots.current().map_or(0, |slot| slot.sequence);

    let clean = stopped_cleanly(io, config, found);
    if !clean {
        if planted!(io, TailInPlace) {
            rewrite_tail_in_place(io, found).await?;
        } else if !planted!(io, NoTailCopy) {
            copy_tail(io, config, indexes, found, &dir).await?;
        }
        if planted!(io, RollWithoutAnchor) {
            doubt_closed_segments(io, found).await?;
        }
        let groups = layout::groups(&dir);
        let rewritten = if planted!(io, NoGroupRewrite) { &[][..] } else { &found.groups[..] };
        for (group, offset) in rewritten {
            let text = Bytes::from(offset_file::encode_offset(*offset));
            replace(io, &groups, &layout::group_offset(&dir, group), text).await?;
        }
        if !planted!(io, NoSettingsRewrite) {
            let text = Bytes::from(found.toml.render());
            replace(io, &dir, &layout::log_toml(&dir), text).await?;
        }
    }
    let forced = if planted!(io, RollWithoutAnchor) { 1 } else { found.segments.len() };
    for segment in found.segments.iter().rev().take(forced).rev() {
        io.force(segment.file).await.map_err(Trouble::Halt)?;
    }
    force_file(io, layout::log_toml(&dir)).await?;
    if found.dedup.is_stored {
        force_file(io, layout::producers(&dir)).await?;
    }
    for path in layout::inner_dirs(&dir) {
        io.make_dir(&path).await.map_err(Trouble::full_or_halt)?;
        io.force_dir(&path).await.map_err(Trouble::Halt)?;
    }
    io.force_dir(&dir).await.map_err(Trouble::Halt)?;

    if !planted!(io, WindowForgotten) {
        topic.dedup = core::mem::take(&mut found.dedup);
    }
    let last = found.segments.len() - 1;
    for (at, mut segment) in core::mem::take(&mut found.segments).into_iter().enumerate() {
        if at < last {
            // What is asked for can be made anew; memory for all of it would grow with the log (P13).
            segment.index.close();
        }
        topic.space.ready = if clean { segment.length } else { segment.end };
        topic.commit = Commit::recovered(found.end, segment.end);
        topic.segments.push_back(Segment {
            base: segment.base,
            file: segment.file,
            salt: Salt::new(&found.toml.log_id, segment.base),
            end: segment.end,
            index: segment.index,
            removed: segment.removed,
            kept: None,
        });
    }
    topic.resize(topic.segments.iter().map(|segment| segment.end).sum(), 0);
    topic.retention.active_since_ns = (found.end > topic.active().base).then_some(io.now().monotonic_ns);
    topic.groups = found.groups.iter().map(|(name, offset)| (name.clone(), Group::recovered(*offset))).collect();
    Ok(Rc::new(RefCell::new(topic)))
}

/// Step 4, when every directory up to the data directory has been forced.
pub(crate) async fn settle(io: &Io, topic: &Rc<RefCell<Topic>>, found: &TopicFindings) -> Result<(), Trouble> {
    if planted!(io, RemovalBeforeAnchoring) {
        remove_below_start(io, found).await?;
    }
    if found.slots.starts_differ() || (found.slots.is_renewed() && !planted!(io, RenewedNameBelieved)) {
        renew_watermark(io, topic).await?;
    } else {
        let first = if planted!(io, RunningSlotFirst) {
            Place::Running
        } else {
            // A write that a kill has interrupted leaves a slot that may look as before and is in the page cache alone (crash story: *both
            // slots torn*).
            let file = topic.borrow().watermark;
            io.force(file).await.map_err(Trouble::Halt)?;
            first_to_write(found)
        };
        anchor::anchor(io, topic, first, Stop::Open).await?;
    }
    remove_below_start(io, found).await?;
    let dir = found.dir();
    for path in &found.leftovers {
        match create::forget_name(io, path).await {
            // A queue that was deleted, or not finished: it stays until a start with more room.
            Err(Trouble::Full(_)) => {}
            forgotten => {
                forgotten?;
                remove_leftover(io, path).await?;
            }
        }
    }
    if !found.below_start.is_empty() || !found.leftovers.is_empty() {
        for path in layout::inner_dirs(&dir).into_iter().chain([dir]) {
            io.force_dir(&path).await.map_err(Trouble::Halt)?;
        }
    }
    Ok(())
}

/// Oldest first.
async fn remove_below_start(io: &Io, found: &TopicFindings) -> Result<(), Trouble> {
    let dir = found.dir();
    for base in &found.below_start {
        io.remove(&layout::segment(&dir, *base)).await.map_err(Trouble::Halt)?;
    }
    Ok(())
}

/// Removes a replacement that was not finished, or the sidecar of no closed segment, with its line.
pub(crate) async fn remove_leftover(io: &Io, path: &str) -> Result<(), Trouble> {
    // A file, a directory, or gone already because a replacement of the same name was made meanwhile.
    if io.remove(path).await.is_err() {
        remove_tree(io, path).await.map_err(Trouble::Halt)?;
    }
    let (name, key) = match path {
        path if path.ends_with(layout::INDEX_SUFFIX) => ("INDEX_REMOVED", "path"),
        path if layout::is_of_groups(path) => ("GROUP_TMP_REMOVED", "file"),
        _ => ("TMP_REMOVED", "path"),
    };
    io.tell(Effect::Report(Report { name, fields: Vec::from([(key, FieldValue::Text(path.into()))]) }));
    Ok(())
}

/// Whether the last process ended by a clean stop: the flag that only it writes, in the newest slot, and a log that
/// ends exactly there.
///
/// That an anchored slot equals the log's end says nothing by itself: a roll whose directory force failed leaves just that
/// (crash story: *the soft directory force*), and so does a moment of idleness before a kill (*ACKED from the cache*).
pub(crate) fn stopped_cleanly(io: &Io, config: &Config, found: &TopicFindings) -> bool {
    let padded =
        found.segments.last().is_some_and(|segment| record::padding_bytes(segment.end, config.pad_forces) == 0);
    found.tail.is_none()
        && padded
        && found
            .slots
            .current()
            .is_some_and(|slot| (slot.clean || planted!(io, CleanByEquality)) && slot.durable == found.end)
}

/// The slot that a power loss may have torn or made old: the invalid one, else the newer one.
fn first_to_write(found: &TopicFindings) -> Place {
    match (found.slots.running, found.slots.anchored) {
        (Some(running), Some(anchored)) if anchored.sequence > running.sequence => Place::Anchored,
        (Some(_), None) => Place::Anchored,
        _ => Place::Running,
    }
}

/// Anchoring where the slots say different starts: a new file with both slots takes the place of the old one.
///
/// Crash story: *the slot that was too old* – a power loss leaves a version of one slot that is older than the one that was forced there,
/// with the start of a log of which segments have been removed since. Were the other slot written first and torn, the old start would be
/// left alone. Were the old one written first: after a kill the newer one may be in the page cache alone, and both could be torn. Which
/// of the two it is can't be told.
///
/// The new name can be lost as well (crash story: *the soft directory force*): the force of the directory fails, the next process finds the
/// new file and removes what lies below its start, and a power loss brings back the old one, with the old start. So a file
/// to which nothing was written since it was made is made once more.
async fn renew_watermark(io: &Io, topic: &Rc<RefCell<Topic>>) -> Result<(), Trouble> {
    let (dir, slot) = {
        let mut topic = topic.borrow_mut();
        topic.sequence += 1;
        let (log_id, sequence, start, durable) = (topic.toml.log_id, topic.sequence, topic.start, topic.durable);
        (topic.dir.clone(), Slot { log_id, sequence, start, durable, clean: false })
    };
    let path = layout::watermark(&dir);
    let tmp = layout::tmp(&path);
    io.remove(&tmp).await.map_err(Trouble::Halt)?;
    let file = io.create(tmp.clone()).await.map_err(Trouble::full_or_halt)?;
    let bytes = Bytes::copy_from_slice(&watermark::encode(&slot));
    for position in [watermark::RUNNING_POSITION, watermark::ANCHORED_POSITION] {
        if let Err(error) = io.write(file, position, bytes.clone()).await {
            io.close(file);
            let trouble = Trouble::full_or_halt(error);
            if let Trouble::Full(_) = trouble {
                io.remove(&tmp).await.map_err(Trouble::Halt)?;
            }
            return Err(trouble);
        }
    }
    io.force(file).await.map_err(Trouble::Halt)?;
    io.rename(&tmp, &path).await.map_err(Trouble::Halt)?;
    io.force_dir(&dir).await.map_err(Trouble::Halt)?;
    let mut topic = topic.borrow_mut();
    io.close(core::mem::replace(&mut topic.watermark, file));
    topic.anchored = topic.durable;
    Ok(())
}

/// Step 1. Afterwards the last of `found.segments` is the new file.
async fn copy_tail(
    io: &Io,
    config: &Config,
    indexes: &Indexes,
    found: &mut TopicFindings,
    dir: &str,
) -> Result<(), Trouble> {
    let last = found.segments.last().expect("a log has a segment");
    let whole = last.end <= config.copy_whole_bytes_max || found.line_position == 0;
    let (base, from) = if whole { (last.base, 0) } else { (found.line, found.line_position) };
    let path = layout::segment(dir, base);
    let tmp = layout::tmp(&path);
    io.remove(&tmp).await.map_err(Trouble::Halt)?;
    let copied = copy_frames(io, config, indexes, found, base, from, tmp.clone()).await;
    let new = match copied {
        Ok(new) => new,
        Err(trouble) => {
            if let Trouble::Full(_) = trouble {
                io.remove(&tmp).await.map_err(Trouble::Halt)?;
            }
            return Err(trouble);
        }
    };
    io.rename(&tmp, &path).await.map_err(Trouble::Halt)?;
    io.force_dir(&layout::log(dir)).await.map_err(Trouble::Halt)?;
    let old = found.segments.pop().expect("a log has a segment");
    if whole {
        io.close(old.file);
    } else {
        // Only now: the frames from here on stand forced in the new segment.
        found.segments.push(FoundSegment { end: from, index: found.index_below_line.clone(), ..old });
        // For a second attempt, when the disk turns out to be full further on.
        found.line_position = 0;
    }
    // Also what an interrupted recovery left behind the base of a later segment.
    for segment in &mut found.segments {
        if segment.length > segment.end {
            io.call(Effect::Truncate { file: segment.file, length: segment.end }).await.map_err(Trouble::Halt)?;
            io.force(segment.file).await.map_err(Trouble::Halt)?;
            segment.length = segment.end;
        }
    }
    found.segments.push(new);
    Ok(())
}

/// A planted bug: what story 2 tells.
async fn rewrite_tail_in_place(io: &Io, found: &TopicFindings) -> Result<(), Trouble> {
    let last = found.segments.last().expect("a log has a segment");
    let length = last.end - found.line_position;
    if length == 0 {
        return Ok(());
    }
    let bytes = io.read(last.file, found.line_position, length as u32).await.map_err(Trouble::Halt)?;
    let cut = Effect::Truncate { file: last.file, length: found.line_position };
    io.call(cut).await.map_err(Trouble::Halt)?;
    io.write(last.file, found.line_position, bytes).await.map_err(Trouble::Halt)?;
    io.force(last.file).await.map_err(Trouble::Halt)
}

/// A planted bug: what story 3 tells. Everything above the line is written anew, and only the last segment is forced.
async fn doubt_closed_segments(io: &Io, found: &TopicFindings) -> Result<(), Trouble> {
    for pair in found.segments.windows(2).filter(|pair| pair[1].base > found.line) {
        let (file, length) = (pair[0].file, pair[0].end as u32);
        let bytes = io.read(file, 0, length).await.map_err(Trouble::Halt)?;
        io.call(Effect::Truncate { file, length: 0 }).await.map_err(Trouble::Halt)?;
        io.write(file, 0, bytes).await.map_err(Trouble::Halt)?;
    }
    Ok(())
}

/// Copies the frames of the last segment from `from` on into a new file, sealed with its own salt, and forces it.
async fn copy_frames(
    io: &Io,
    config: &Config,
    indexes: &Indexes,
    found: &TopicFindings,
    base: u64,
    from: u64,
    tmp: String,
) -> Result<FoundSegment, Trouble> {
    let last = found.segments.last().expect("a log has a segment");
    let mut scan = Scan::new(Salt::new(&found.toml.log_id, last.base), from, base);
    let salt = Salt::new(&found.toml.log_id, base);
    let file = io.create(tmp).await.map_err(Trouble::full_or_halt)?;
    let mut index = indexes.new_index();
    let mut out = Vec::new();
    let (mut read_to, mut written, mut end) = (from, 0, 0);
    while scan.position() < last.end {
        if let Step::Frame { frame, .. } = scan.step() {
            index.note_frame(end, &frame);
            record::seal(&mut out, salt, frame.offset, frame.payload);
            end = written + out.len() as u64;
            if (out.len() as u64) < COPY_BYTES {
                continue;
            }
            let bytes = Bytes::from(core::mem::take(&mut out));
            written += bytes.len() as u64;
            io.write(file, end - bytes.len() as u64, bytes).await.map_err(Trouble::full_or_halt)?;
            continue;
        }
        let length = (last.end - read_to).min(COPY_BYTES) as u32;
        let bytes = io.read(last.file, read_to, length).await.map_err(Trouble::Halt)?;
        read_to += bytes.len() as u64;
        if bytes.is_empty() {
            // What was whole a moment ago: the device is not to be trusted.
            let detail = alloc::format!("{} changed while it was being copied", layout::segment("", last.base));
            return Err(Trouble::Halt(crate::effect::IoError { kind: crate::effect::IoErrorKind::Other, detail }));
        }
        scan.push(&bytes);
    }
    let padding = record::padding_bytes(end, config.pad_forces);
    if padding > 0 {
        record::encode_padding(&mut out, salt, found.end, found.line, io.now().wall_ms, padding);
        end += padding;
    }
    if !out.is_empty() {
        io.write(file, written, Bytes::from(out)).await.map_err(Trouble::full_or_halt)?;
    }
    io.force(file).await.map_err(Trouble::Halt)?;
    Ok(FoundSegment { base, file, length: end, end, index, removed: 0 })
}

async fn force_file(io: &Io, path: String) -> Result<(), Trouble> {
    let (file, _) = io.open(path).await.map_err(Trouble::full_or_halt)?;
    let forced = io.force(file).await.map_err(Trouble::Halt);
    io.close(file);
    forced
}
