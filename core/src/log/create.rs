//! Making a topic, or a work queue: whole, or not at all.
//!
//! Everything is made and forced inside `<name>.tmp/`, which then gets its name. So half a topic never exists
//! under its name. Crash story: *the topic that was a tmp* – the parent directory is forced before the topic is used.
//!
//! Crash story: *the topic without a name* – the force of the parent fails. The restart sees the topic, its own force of the
//! parent does nothing, a message becomes durable, and a power loss takes the name. So a topic is finished only when, after
//! the force of the parent, its slots have been written a second time and forced; one that is not finished was
//! promised to nobody, and is removed at the start.

use super::capacity::Size;
use super::dedup::Dedup;
use super::group_commit::Commit;
use super::pack::Packing;
use super::retention::Retention;
use super::sidecar::Indexes;
use super::topic_file::{Alters, TopicToml};
use super::watermark::{self, Slot};
use super::{Roll, Space, Topic, Trouble};
use crate::config::Config;
use crate::effect::{Effect, FileId, IoError, IoErrorKind};
use crate::io::{Io, TopicId};
use crate::layout;
use crate::planted::planted;
use crate::record::LogId;
use crate::settings::{Policy, SETTINGS, Setting, Settings};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::string::String;
use bytes::Bytes;
use core::pin::Pin;

/// Makes the log in this directory. On `Full` what was begun is removed again as far as possible; a leftover is removed at the next start.
pub(crate) async fn create(
    io: Io,
    indexes: Indexes,
    config: &Config,
    id: TopicId,
    name: String,
    dir: String,
    toml: TopicToml,
) -> Result<Topic, Trouble> {
    let tmp = layout::tmp(&dir);
    forget_name(&io, &tmp).await?;
    remove_tree(&io, &tmp).await.map_err(Trouble::Halt)?;
    if let Err(trouble) = fill(&io, &tmp, &toml).await {
        if let Trouble::Full(_) = trouble {
            remove_tree(&io, &tmp).await.map_err(Trouble::Halt)?;
        }
        return Err(trouble);
    }
    io.rename(&tmp, &dir).await.map_err(Trouble::Halt)?;
    io.force_dir(layout::parent(&dir)).await.map_err(Trouble::Halt)?;
    match open_first(&io, &dir, toml.log_id).await {
        Ok((watermark, segment)) => {
            let mut topic = empty(indexes, config, id, name, dir, toml, watermark);
            topic.sequence = watermark::SEQUENCE_UNFINISHED + 2;
            topic.push_segment(segment, 0);
            Ok(topic)
        }
        Err(trouble) => {
            // The next attempt needs the name.
            if let Trouble::Full(_) = trouble {
                unname(&io, &dir).await?;
                remove_tree(&io, &tmp).await.map_err(Trouble::Halt)?;
            }
            Err(trouble)
        }
    }
}

/// Takes a topic's name away, for good; what is left is `<name>.tmp`. Were it emptied under its own name, a power loss in
/// between would leave half a topic, and the next start would refuse that.
pub(crate) async fn unname(io: &Io, dir: &str) -> Result<String, Trouble> {
    let tmp = layout::tmp(dir);
    remove_tree(io, &tmp).await.map_err(Trouble::Halt)?;
    io.rename(dir, &tmp).await.map_err(Trouble::Halt)?;
    io.force_dir(layout::parent(dir)).await.map_err(Trouble::Halt)?;
    Ok(tmp)
}

/// Before `<name>.tmp` is emptied: makes sure that it never gets the name again.
///
/// Crash story: *the name that came back* – the force in [`unname`] fails. The restart sees `<name>.tmp`, its own force does
/// nothing for the rename, it empties the directory, and a power loss gives half a topic its name back. So the absence of the name
/// is made anew: an empty directory gets the name and loses it again, and that is forced. A power loss in between may leave
/// the empty directory, which counts as a topic that was not finished.
pub(crate) async fn forget_name(io: &Io, tmp: &str) -> Result<(), Trouble> {
    let Some(dir) = layout::left_behind(tmp) else { return Ok(()) };
    if planted!(io, NameComesBack) || io.list(tmp).await.is_err() {
        return Ok(());
    }
    match io.call(Effect::MakeDir { path: dir.into() }).await {
        // Another topic has it.
        Err(error) if error.kind == IoErrorKind::Exists => return Ok(()),
        made => made.map_err(Trouble::full_or_halt)?,
    };
    io.call(Effect::RemoveDir { path: dir.into() }).await.map_err(Trouble::Halt)?;
    io.force_dir(layout::parent(dir)).await.map_err(Trouble::Halt)
}

/// Opens the files of a topic that has its name, and marks it as finished.
async fn open_first(io: &Io, dir: &str, log_id: LogId) -> Result<(FileId, FileId), Trouble> {
    let (watermark, _) = io.open(layout::watermark(dir)).await.map_err(Trouble::full_or_halt)?;
    let segment = match io.open(layout::segment(dir, 0)).await {
        Ok((segment, _)) => segment,
        Err(error) => {
            io.close(watermark);
            return Err(Trouble::full_or_halt(error));
        }
    };
    // Both: a power loss may bring back what once stood in a slot that is being written, and with two first ones the topic would
    // pass for unfinished, though somebody was told of it.
    for (position, sequence) in [(watermark::RUNNING_POSITION, 1), (watermark::ANCHORED_POSITION, 2)] {
        let slot = Slot { sequence: watermark::SEQUENCE_UNFINISHED + sequence, ..first_slot(log_id) };
        let bytes = Bytes::copy_from_slice(&watermark::encode(&slot));
        io.write(watermark, position, bytes).await.map_err(Trouble::Halt)?;
        io.force(watermark).await.map_err(Trouble::Halt)?;
    }
    Ok((watermark, segment))
}

/// A log without segments, marks at 0.
pub(crate) fn empty(
    indexes: Indexes,
    config: &Config,
    id: TopicId,
    name: String,
    dir: String,
    toml: TopicToml,
    watermark: FileId,
) -> Topic {
    Topic {
        id,
        name,
        policy: policy_of(&dir, &toml, config),
        is_journal: layout::is_queue(&dir),
        dir,
        toml,
        alters: Alters::default(),
        start: 0,
        durable: 0,
        written: 0,
        next: 0,
        segments: VecDeque::new(),
        size: Size::default(),
        space: Space::default(),
        roll: Roll::No,
        commit: Commit::default(),
        indexes,
        watermark,
        sequence: 0,
        anchored: 0,
        anchoring: false,
        torn: None,
        groups: BTreeMap::new(),
        queues: BTreeMap::new(),
        packing: Packing::default(),
        checkpoint_bytes: 0,
        dedup: Dedup::default(),
        parked: VecDeque::new(),
        fetchers: VecDeque::new(),
        retention: Retention::default(),
        deleting: false,
        last_publish_ns: 0,
        idle_timer_armed: false,
    }
}

/// What holds for the log in this directory. A journal has no settings: what nobody waits for is forced when there is more, or when it has
/// been quiet.
pub(crate) fn policy_of(dir: &str, toml: &TopicToml, config: &Config) -> Policy {
    if !layout::is_queue(dir) {
        return Policy::new(&toml.settings, &config.topic_defaults);
    }
    let mut settings = Settings::NONE;
    settings.set(Setting::FlushMessages, Some(SETTINGS[Setting::FlushMessages as usize].max));
    settings.set(Setting::DedupSequences, Some(0));
    Policy::new(&settings, &Settings::NONE)
}

async fn fill(io: &Io, dir: &str, toml: &TopicToml) -> Result<(), Trouble> {
    let inner = layout::inner_dirs(dir);
    io.call(Effect::MakeDir { path: dir.into() }).await.map_err(Trouble::full_or_halt)?;
    for path in &inner {
        io.call(Effect::MakeDir { path: path.clone() }).await.map_err(Trouble::full_or_halt)?;
    }
    new_file(io, layout::log_toml(dir), Bytes::from(toml.render())).await?;
    // Both slots are valid from creation on: two unreadable slots are damage, not a crash.
    new_file(io, layout::watermark(dir), Bytes::from(watermark::new_file(&first_slot(toml.log_id)))).await?;
    new_file(io, layout::segment(dir, 0), Bytes::new()).await?;
    for path in inner.iter().map(String::as_str).chain([dir]) {
        io.force_dir(path).await.map_err(Trouble::Halt)?;
    }
    Ok(())
}

fn first_slot(log_id: LogId) -> Slot {
    Slot { log_id, sequence: watermark::SEQUENCE_UNFINISHED, start: 0, durable: 0, clean: false }
}

async fn new_file(io: &Io, path: String, bytes: Bytes) -> Result<(), Trouble> {
    let tmp_of_group = layout::is_of_groups(&path);
    let file = io.create(path).await.map_err(Trouble::full_or_halt)?;
    let result = async {
        if !bytes.is_empty() {
            io.write(file, 0, bytes).await.map_err(Trouble::full_or_halt)?;
        }
        if planted!(io, RenameBeforeForce) && tmp_of_group {
            return Ok(());
        }
        io.force(file).await.map_err(Trouble::Halt)
    }
    .await;
    io.close(file);
    result
}

/// Replaces a small file: write `<path>.tmp`, force it, rename, force the directory. On `Full` the old file stands.
pub(crate) async fn replace(io: &Io, dir: &str, path: &str, bytes: Bytes) -> Result<(), Trouble> {
    let tmp = layout::tmp(path);
    let mut made = new_file(io, tmp.clone(), bytes.clone()).await;
    if matches!(&made, Err(Trouble::Halt(error)) if error.kind == IoErrorKind::Exists) {
        // One that a crash left behind.
        io.remove(&tmp).await.map_err(Trouble::Halt)?;
        made = new_file(io, tmp.clone(), bytes).await;
    }
    if let Err(trouble) = made {
        if let Trouble::Full(_) = trouble {
            io.remove(&tmp).await.map_err(Trouble::Halt)?;
        }
        return Err(trouble);
    }
    io.rename(&tmp, path).await.map_err(Trouble::Halt)?;
    if planted!(io, NoDirectoryForceAtAck) && layout::is_of_groups(path) {
        return Ok(());
    }
    if planted!(io, NoDirectoryForceAtAlter) && path == layout::log_toml(dir) {
        return Ok(());
    }
    io.force_dir(dir).await.map_err(Trouble::Halt)
}

/// Removes a file, so that no power loss brings it back.
pub(crate) async fn remove(io: &Io, dir: &str, path: &str) -> Result<(), Trouble> {
    io.remove(path).await.map_err(Trouble::Halt)?;
    io.force_dir(dir).await.map_err(Trouble::Halt)
}

/// Removes a directory and all that is in it; that it is not there is no failure.
pub(crate) fn remove_tree<'a>(io: &'a Io, dir: &'a str) -> Pin<Box<dyn Future<Output = Result<(), IoError>> + 'a>> {
    Box::pin(async move {
        let entries = match io.list(dir).await {
            Err(error) if error.kind == IoErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let path = format!("{dir}/{}", entry.name);
            if entry.is_dir {
                remove_tree(io, &path).await?;
            } else {
                io.remove(&path).await?;
            }
        }
        match io.call(Effect::RemoveDir { path: dir.into() }).await {
            Err(error) if error.kind != IoErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    })
}
