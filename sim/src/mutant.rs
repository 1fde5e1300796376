//! Effect mutants: what a broker with a bug would say, made from what the real one says, without a rebuild.
//!
//! A checker that can't fail is worth nothing. Each mutant drops, answers early, misplaces or reorders one kind of effect;
//! each has to be caught, by the promise that it breaks.

use plimsoll_core::config::Config;
use plimsoll_core::effect::{Effect, EffectId, FileId, IoError, Outcome, ReplyPart};
use plimsoll_core::layout;
use plimsoll_core::log::watermark::{self, Slot};
use plimsoll_core::message;
#[cfg(feature = "planted")]
use plimsoll_core::planted::Planted;
use plimsoll_core::record::{self, Decoded, LogId, Salt};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

/// What becomes of an effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// The disk gets it.
    AsItIs,
    /// Nobody gets it, and it is answered as done.
    Lost,
    /// It is answered as done before it is.
    AnsweredEarly,
}

/// One way in which a broker may be wrong.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Mutant {
    /// A segment is never forced.
    DropForceOfSegment,
    /// The watermark file is never forced.
    DropForceOfWatermark,
    /// A `.tmp` file is renamed without having been forced.
    DropForceOfTmp,
    /// A directory is never forced.
    DropForceDir,
    /// The directory of the segments is not forced after a roll.
    DropForceDirOfLog,
    /// The data directory's parent is not forced.
    DropForceDirOfParent,
    /// A force of a segment is answered before it is done.
    AnswerForceEarly,
    /// A write to a segment is answered before it is done.
    AnswerWriteEarly,
    /// A directory force is answered before it is done.
    AnswerForceDirEarly,
    /// The write of a slot is answered, and never done.
    DropSlot,
    /// Messages are written 7 bytes further.
    Misplace,
    /// One message write in eight is lost.
    DropWrite,
    /// The force goes down before the write that it is for.
    ForceBeforeWrite,
    /// The force goes to the watermark file instead of the segment.
    ForceTheWrongFile,
    /// The copy of the doubtful tail never gets its name.
    DropRenameOfTail,
    /// A segment's unused space is cut off too late: not at all.
    DropCut,
    /// The rename of a group's offset is lost.
    DropRenameOfGroup,
    /// One byte of each message write is another.
    FlipByte,
    /// The reply names one offset too much.
    WrongOffsetInReply,
    /// One reply in eight is sent twice.
    ReplyTwice,
    /// One reply in eight is not sent.
    DropReply,
    /// A failed force is taken for a good one.
    SwallowForceFailure,
    /// One publish in eight that is stored is refused.
    RefuseWhatIsStored,
    /// The second of several messages is not delivered.
    SkipMessage,
    /// The first message of a delivery is not delivered.
    SkipFirstMessage,
    /// The last of several messages is not delivered.
    SkipLastMessage,
    /// A byte of the first message of a delivery is another.
    FlipByteOfDelivery,
    /// What is written to the copy of the doubtful tail is lost.
    DropWriteOfTail,
    /// A roll cuts one byte too much.
    CutTooShort,
    /// A start that is refused has removed something before.
    TidyBeforeRefusal,
    /// The segment is removed before its copy is whole.
    RemoveBeforeTheCopy,
    /// What waits for a slow reader is counted as sent.
    CountAsSent,
    /// Looks into the directory now and then, by a number that is not the seed's.
    OutsideEntropy,
    /// An id that was heard before is taken for another one.
    ForgetIds,
    /// Every slot says that the log begins at 0.
    ForgetStart,
    /// A roll removes the first segment, though nobody asked for that.
    RemoveAtRoll,
    /// A topic that is deleted keeps its name.
    DropRenameOfTopic,
    /// A force of a work queue's journal is answered before it is done.
    AnswerForceOfJournalEarly,
    /// One write to a work queue's journal in four is lost.
    DropWriteOfJournal,
    /// The copy of the doubtful tail is cut short, and taken for whole.
    CutTheCopy,
    /// The copy of the doubtful tail has other bytes, and checksums that agree with them.
    ChangeInTheCopy,
    /// What is copied is cut off before the copy has its name.
    CutBeforeTheCopy,
    /// The copy that an interrupted recovery has left is not removed.
    DropRemoveOfCopy,
    /// What is known of producers whose messages go is never stored.
    DropRenameOfProducers,
    /// An id that was heard before the process began is taken for another one.
    ForgetIdsAtRestart,
    /// `queues/` is not forced.
    DropForceDirOfQueues,
    /// The new file of a segment that is packed is not forced before it has the old one's name.
    DropForceOfPacked,
    /// What is written to the new file of a segment that is packed is lost.
    DropWriteOfPacked,
    /// Files stay open until the process ends.
    DropClose,
    /// A bug in the broker's own source.
    #[cfg(feature = "planted")]
    Planted(Planted),
}

/// Counts processes of [`Mutant::OutsideEntropy`], over all runs and threads: nothing that follows from a seed.
static OUTSIDE: AtomicU64 = AtomicU64::new(0);

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 48] = [
        Mutant::DropForceOfSegment,
        Mutant::DropForceOfWatermark,
        Mutant::DropForceOfTmp,
        Mutant::DropForceDir,
        Mutant::DropForceDirOfLog,
        Mutant::DropForceDirOfParent,
        Mutant::AnswerForceEarly,
        Mutant::AnswerWriteEarly,
        Mutant::AnswerForceDirEarly,
        Mutant::DropSlot,
        Mutant::Misplace,
        Mutant::DropWrite,
        Mutant::ForceBeforeWrite,
        Mutant::ForceTheWrongFile,
        Mutant::DropRenameOfTail,
        Mutant::DropCut,
        Mutant::DropRenameOfGroup,
        Mutant::FlipByte,
        Mutant::WrongOffsetInReply,
        Mutant::ReplyTwice,
        Mutant::DropReply,
        Mutant::SwallowForceFailure,
        Mutant::RefuseWhatIsStored,
        Mutant::SkipMessage,
        Mutant::SkipFirstMessage,
        Mutant::SkipLastMessage,
        Mutant::FlipByteOfDelivery,
        Mutant::DropWriteOfTail,
        Mutant::CutTooShort,
        Mutant::TidyBeforeRefusal,
        Mutant::RemoveBeforeTheCopy,
        Mutant::CountAsSent,
        Mutant::OutsideEntropy,
        Mutant::ForgetIds,
        Mutant::ForgetStart,
        Mutant::RemoveAtRoll,
        Mutant::DropRenameOfTopic,
        Mutant::AnswerForceOfJournalEarly,
        Mutant::DropWriteOfJournal,
        Mutant::DropForceDirOfQueues,
        Mutant::DropForceOfPacked,
        Mutant::DropWriteOfPacked,
        Mutant::CutTheCopy,
        Mutant::ChangeInTheCopy,
        Mutant::CutBeforeTheCopy,
        Mutant::DropRemoveOfCopy,
        Mutant::DropRenameOfProducers,
        Mutant::ForgetIdsAtRestart,
    ];

    /// Those that break no promise, and why. Whether that is so is tried like everything else.
    pub const EQUIVALENTS: [(Mutant, &'static str); 1] =
        [(Mutant::DropClose, "what is not closed ends with the process; it costs descriptors and no promise")];

    /// Its name on the command line.
    pub fn name(self) -> String {
        #[cfg(feature = "planted")]
        if let Mutant::Planted(bug) = self {
            return format!("planted-{}", kebab(&format!("{bug:?}")));
        }
        kebab(&format!("{self:?}"))
    }

    /// The mutant of that name.
    pub fn named(name: &str) -> Option<Mutant> {
        #[cfg(feature = "planted")]
        if let Some(bug) = Planted::ALL.iter().map(|(bug, _)| Mutant::Planted(*bug)).find(|bug| bug.name() == name) {
            return Some(bug);
        }
        let equivalents = Mutant::EQUIVALENTS.into_iter().map(|(mutant, _)| mutant);
        Mutant::ALL.into_iter().chain(equivalents).find(|mutant| mutant.name() == name)
    }
}

fn kebab(words: &str) -> String {
    let mut name = String::new();
    for c in words.chars() {
        if c.is_ascii_uppercase() && !name.is_empty() {
            name.push('-');
        }
        name.push(c.to_ascii_lowercase());
    }
    name
}

/// In the ids of effects that the broker has not asked for.
const BESIDES: u64 = 1 << 62;

/// A mutant at work, or none.
#[derive(Debug, Default)]
pub struct Mutation {
    mutant: Option<Mutant>,
    seen: u64,
    answered: BTreeSet<EffectId>,
    /// Ids that were heard, and in which process for the first time.
    ids: BTreeMap<Vec<u8>, u32>,
    watermarks: BTreeMap<String, FileId>,
    /// By the topics' directories: what a slot that was written says.
    log_ids: BTreeMap<String, LogId>,
    /// How many processes have begun.
    life: u32,
    /// The process that runs has not said READY.
    recovering: bool,
    /// The copy of the doubtful tail that is being made.
    copy: Option<FileId>,
}

impl Mutation {
    /// The broker as it is.
    pub fn none() -> Mutation {
        Mutation::default()
    }

    /// A broker with this bug.
    pub fn of(mutant: Mutant) -> Mutation {
        let seen = if mutant == Mutant::OutsideEntropy { OUTSIDE.fetch_add(1, Ordering::Relaxed) % 8 } else { 0 };
        Mutation { mutant: Some(mutant), seen, ..Mutation::default() }
    }

    /// The same bug, in a broker that has not done anything yet.
    pub(crate) fn again(&self) -> Mutation {
        Mutation { mutant: self.mutant, log_ids: self.log_ids.clone(), ..Mutation::default() }
    }

    /// Whether the broker is told that bytes were sent when it has said them.
    pub(crate) fn counts_as_sent(&self) -> bool {
        self.mutant == Some(Mutant::CountAsSent)
    }

    /// What the broker hears of what a client sends.
    pub(crate) fn hear(&mut self, bytes: &mut [u8]) {
        let at_restart = self.mutant == Some(Mutant::ForgetIdsAtRestart);
        if !at_restart && self.mutant != Some(Mutant::ForgetIds) {
            return;
        }
        const BEFORE: &[u8] = b" id=";
        let mut at = 0;
        while let Some(found) = bytes[at..].windows(BEFORE.len()).position(|window| window == BEFORE) {
            let begin = at + found + BEFORE.len();
            let length = bytes[begin..].iter().take_while(|byte| byte.is_ascii_digit() || **byte == b':').count();
            let id = &mut bytes[begin..begin + length];
            let is_known = self.ids.contains_key(&id[..]);
            let heard_in = *self.ids.entry(id.to_vec()).or_insert(self.life);
            if is_known && (!at_restart || heard_in < self.life) {
                // Another producer, and one that there is not: those that there are end in 1, 5, 7, 8 and 9.
                let last = id.iter_mut().take_while(|byte| **byte != b':').last();
                last.into_iter().for_each(|digit| *digit = b'0' + (*digit - b'0' + 5) % 10);
            }
            at = begin + length;
        }
    }

    /// Gives the broker its bug, where that is one of its own source.
    pub(crate) fn plant(&self, config: &mut Config) {
        #[cfg(feature = "planted")]
        if let Some(Mutant::Planted(bug)) = self.mutant {
            config.planted = Some(bug);
        }
        let _ = config;
    }

    /// Whether a mutant does this besides: the broker knows nothing of it.
    pub(crate) fn is_besides(id: EffectId) -> bool {
        id.0 & BESIDES != 0
    }

    /// Whether this effect's completion has been told already, so that its real one is not told.
    pub(crate) fn was_answered(&mut self, id: EffectId) -> bool {
        // The first completion is the early one.
        if self.answered.remove(&id) {
            self.answered.insert(EffectId(id.0 | 1 << 63));
            return false;
        }
        self.answered.remove(&EffectId(id.0 | 1 << 63))
    }

    /// What the broker is told of how an effect ended.
    pub(crate) fn told(&self, effect: &Effect, result: Result<Outcome, IoError>) -> Result<Outcome, IoError> {
        match (self.mutant, effect) {
            (Some(Mutant::SwallowForceFailure), Effect::Force { .. } | Effect::ForceDir { .. }) => Ok(Outcome::Done),
            _ => result,
        }
    }

    /// What becomes of what the broker said.
    pub(crate) fn mutate(
        &mut self,
        said: Vec<(EffectId, Effect)>,
        files: &BTreeMap<FileId, String>,
    ) -> Vec<(EffectId, Effect, Fate)> {
        let Some(mutant) = self.mutant else {
            return said.into_iter().map(|(id, effect)| (id, effect, Fate::AsItIs)).collect();
        };
        // A process that begins has no file open, and one that is ready has.
        if files.is_empty() && !self.recovering {
            (self.recovering, self.life) = (true, self.life + 1);
        }
        let mut out = Vec::new();
        for (id, effect) in said {
            self.recovering &= !matches!(&effect, Effect::Report(report) if report.name == "READY");
            let (effect, fate) = self.one(mutant, effect, files);
            if fate == Fate::AnsweredEarly {
                self.answered.insert(id);
            }
            if let Some(more) = self.more(mutant, &effect, files) {
                out.push((EffectId(id.0 | BESIDES), more, Fate::AsItIs));
            }
            if mutant == Mutant::ReplyTwice
                && let Effect::Reply { .. } = &effect
            {
                self.seen += 1;
                if self.seen.is_multiple_of(8) {
                    out.push((id, effect.clone(), Fate::AsItIs));
                }
            }
            out.push((id, effect, fate));
        }
        if mutant == Mutant::ForceBeforeWrite {
            for at in 1..out.len() {
                let same = match (&out[at - 1].1, &out[at].1) {
                    (Effect::Write { file: a, .. }, Effect::Force { file: b }) => a == b,
                    _ => false,
                };
                if same {
                    out.swap(at - 1, at);
                }
            }
        }
        out
    }

    /// What it does besides, before this. Nobody waits for it.
    fn more(&mut self, mutant: Mutant, effect: &Effect, files: &BTreeMap<FileId, String>) -> Option<Effect> {
        match (mutant, effect) {
            (Mutant::CutBeforeTheCopy, Effect::Create { file, path }) if is_copy(path) => {
                self.copy = Some(*file);
                None
            }
            (Mutant::CutBeforeTheCopy, Effect::Force { file }) if self.copy == Some(*file) => {
                self.copy = None;
                let segment = files.get(file)?.strip_suffix(layout::TMP)?;
                let (file, _) = files.iter().find(|(_, path)| *path == segment)?;
                Some(Effect::Truncate { file: *file, length: 0 })
            }
            (Mutant::TidyBeforeRefusal, Effect::Report(report)) if report.name == "REFUSE_START" => {
                Some(Effect::Remove { path: layout::FORMAT.into() })
            }
            (Mutant::RemoveBeforeTheCopy, Effect::Create { path, .. }) => {
                let segment = path.strip_suffix(layout::TMP).filter(|_| is_copy(path))?;
                Some(Effect::Remove { path: segment.into() })
            }
            (Mutant::RemoveAtRoll, Effect::Create { path, .. }) => {
                let (dir, name) = path.split_once("/log/")?;
                let is_roll = layout::parse_segment(name).is_some_and(|base| base > 0);
                is_roll.then(|| Effect::Remove { path: layout::segment(dir, 0) })
            }
            (Mutant::OutsideEntropy, Effect::Write { .. }) => {
                self.seen += 1;
                self.seen.is_multiple_of(8).then(|| Effect::List { dir: layout::DATA.into() })
            }
            _ => None,
        }
    }

    fn one(&mut self, mutant: Mutant, effect: Effect, files: &BTreeMap<FileId, String>) -> (Effect, Fate) {
        let path = match &effect {
            Effect::Write { file, .. } | Effect::Force { file } | Effect::Truncate { file, .. } => {
                files.get(file).cloned().unwrap_or_default()
            }
            Effect::ForceDir { dir } => dir.clone(),
            Effect::Rename { from, .. } => from.clone(),
            _ => String::new(),
        };
        let segment = path.ends_with(".log");
        let is_journal = segment && layout::is_queue(&path);
        let is_packed = !self.recovering && path.ends_with(".log.tmp");
        if let (Effect::Open { file, path } | Effect::Create { file, path }, true) = (
            &effect,
            matches!(&effect, Effect::Open { path, .. } | Effect::Create { path, .. } if path.ends_with("/watermark")),
        ) {
            self.watermarks.insert(path.trim_end_matches("/watermark").to_owned(), *file);
        }
        let keep_or = |fate: Fate, hit: bool| if hit { fate } else { Fate::AsItIs };
        let (is_write, is_force) = (matches!(effect, Effect::Write { .. }), matches!(effect, Effect::Force { .. }));
        let is_force_dir = matches!(effect, Effect::ForceDir { .. });
        let is_rename = matches!(effect, Effect::Rename { .. });
        let fate = match mutant {
            Mutant::DropForceOfSegment => keep_or(Fate::Lost, is_force && segment),
            Mutant::DropForceOfWatermark => keep_or(Fate::Lost, is_force && path.ends_with("/watermark")),
            Mutant::DropForceOfTmp => keep_or(Fate::Lost, is_force && path.ends_with(".tmp")),
            Mutant::DropForceDir => keep_or(Fate::Lost, is_force_dir),
            Mutant::DropForceDirOfLog => keep_or(Fate::Lost, is_force_dir && path.ends_with("/log")),
            Mutant::DropForceDirOfParent => keep_or(Fate::Lost, is_force_dir && path == ".."),
            Mutant::AnswerForceEarly => keep_or(Fate::AnsweredEarly, is_force && segment),
            Mutant::AnswerForceOfJournalEarly => keep_or(Fate::AnsweredEarly, is_force && is_journal),
            Mutant::DropWriteOfJournal => {
                self.seen += u64::from(is_write && is_journal);
                keep_or(Fate::Lost, is_write && is_journal && self.seen.is_multiple_of(4))
            }
            Mutant::DropForceOfPacked => keep_or(Fate::Lost, is_force && is_packed),
            Mutant::DropWriteOfPacked => keep_or(Fate::Lost, is_write && is_packed),
            Mutant::AnswerWriteEarly => keep_or(Fate::AnsweredEarly, is_write && segment),
            Mutant::AnswerForceDirEarly => keep_or(Fate::AnsweredEarly, is_force_dir),
            Mutant::DropSlot => keep_or(Fate::Lost, is_write && path.ends_with("/watermark")),
            Mutant::DropWrite => {
                self.seen += u64::from(is_write && segment);
                keep_or(Fate::Lost, is_write && segment && self.seen.is_multiple_of(8))
            }
            Mutant::DropRenameOfTail => keep_or(Fate::Lost, is_rename && path.ends_with(".log.tmp")),
            Mutant::DropRenameOfGroup => keep_or(Fate::Lost, is_rename && path.ends_with(".offset.tmp")),
            Mutant::DropRemoveOfCopy => {
                keep_or(Fate::Lost, matches!(&effect, Effect::Remove { path } if is_copy(path)))
            }
            Mutant::DropRenameOfProducers => keep_or(Fate::Lost, is_rename && path.ends_with("/producers.tmp")),
            Mutant::DropRenameOfTopic => {
                let topic = path.strip_prefix("topics/").filter(|name| layout::is_topic_name(name));
                keep_or(Fate::Lost, is_rename && topic.is_some_and(|topic| topic != layout::DEFAULT_TOPIC))
            }
            Mutant::DropWriteOfTail => keep_or(Fate::Lost, is_write && path.ends_with(".log.tmp")),
            Mutant::DropForceDirOfQueues => keep_or(Fate::Lost, is_force_dir && path.ends_with("/queues")),
            Mutant::DropClose => keep_or(Fate::Lost, matches!(effect, Effect::CloseFile { .. })),
            Mutant::DropCut => keep_or(Fate::Lost, matches!(effect, Effect::Truncate { .. })),
            Mutant::DropReply => {
                let is_reply = matches!(effect, Effect::Reply { .. });
                self.seen += u64::from(is_reply);
                keep_or(Fate::Lost, is_reply && self.seen.is_multiple_of(8))
            }
            _ => Fate::AsItIs,
        };
        if let Effect::Write { bytes, .. } = &effect
            && let Some((dir, slot)) = path.strip_suffix("/watermark").zip(watermark::decode(bytes))
        {
            self.log_ids.insert(dir.trim_end_matches(layout::TMP).to_owned(), slot.log_id);
        }
        let effect = match (mutant, effect) {
            (Mutant::CutTheCopy, Effect::Write { file, position, bytes }) if is_copy(&path) => {
                Effect::Write { file, position, bytes: bytes.slice(..bytes.len() - bytes.len() / 4) }
            }
            (Mutant::ChangeInTheCopy, Effect::Write { file, position, bytes }) if is_copy(&path) => {
                let changed = change_frames(&bytes, &path, &self.log_ids);
                Effect::Write { file, position, bytes: changed.map_or(bytes, Into::into) }
            }
            (Mutant::Misplace, Effect::Write { file, position, bytes }) if segment => {
                Effect::Write { file, position: position + 7, bytes }
            }
            (Mutant::CutTooShort, Effect::Truncate { file, length }) if length > 0 => {
                Effect::Truncate { file, length: length - 1 }
            }
            (Mutant::ForgetStart, Effect::Write { file, position, bytes }) if path.ends_with("/watermark") => {
                let slot = watermark::decode(&bytes).map(|slot| watermark::encode(&Slot { start: 0, ..slot }).to_vec());
                Effect::Write { file, position, bytes: slot.map_or(bytes, Into::into) }
            }
            (Mutant::FlipByte, Effect::Write { file, position, bytes }) if segment => {
                let mut changed = bytes.to_vec();
                let middle = changed.len() / 2;
                changed[middle] ^= 0x20;
                Effect::Write { file, position, bytes: changed.into() }
            }
            (Mutant::ForceTheWrongFile, Effect::Force { file }) if segment => {
                let topic = path.split("/log/").next().unwrap_or_default();
                // One that an earlier process had open, or that is closed, can't be forced by mistake.
                let open = self.watermarks.get(topic).filter(|watermark| files.contains_key(watermark));
                Effect::Force { file: open.copied().unwrap_or(file) }
            }
            (Mutant::WrongOffsetInReply, Effect::Reply { connection, part }) => {
                Effect::Reply { connection, part: wrong_offset(part) }
            }
            (Mutant::SkipMessage, Effect::Reply { connection, part }) => {
                Effect::Reply { connection, part: skip_message(part, |_| 1) }
            }
            (Mutant::SkipFirstMessage, Effect::Reply { connection, part }) => {
                Effect::Reply { connection, part: skip_message(part, |_| 0) }
            }
            (Mutant::SkipLastMessage, Effect::Reply { connection, part }) => {
                Effect::Reply { connection, part: skip_message(part, |count| count - 1) }
            }
            (Mutant::FlipByteOfDelivery, Effect::Reply { connection, part }) => {
                Effect::Reply { connection, part: flip_in_message(part) }
            }
            (Mutant::RefuseWhatIsStored, Effect::Reply { connection, part }) => {
                self.seen += 1;
                let part = if self.seen.is_multiple_of(8) { refused(part) } else { part };
                Effect::Reply { connection, part }
            }
            (_, effect) => effect,
        };
        (effect, fate)
    }
}

/// The file that the doubtful tail is copied to.
fn is_copy(path: &str) -> bool {
    path.strip_suffix(layout::TMP).is_some_and(|path| path.ends_with(layout::LOG_SUFFIX))
}

/// Frames of a copy as they would be had the first of them another last byte, the same with each attempt. `None`: that can't be told.
fn change_frames(bytes: &[u8], path: &str, log_ids: &BTreeMap<String, LogId>) -> Option<Vec<u8>> {
    let (dir, name) = path.trim_end_matches(layout::TMP).split_once("/log/")?;
    let salt = Salt::new(log_ids.get(dir)?, layout::parse_segment(name)?);
    let Decoded::Frame(frame) = record::decode(bytes, salt) else { return None };
    message::messages(&frame)?;
    let mut payload = frame.payload.to_vec();
    *payload.last_mut()? = b'!';
    let mut changed = Vec::new();
    record::seal(&mut changed, salt, frame.offset, &payload);
    changed.extend_from_slice(&bytes[frame.size()..]);
    Some(changed)
}

/// Leaves a message out of a reply that is nothing but messages of one line each.
fn skip_message(part: ReplyPart, which: impl Fn(usize) -> usize) -> ReplyPart {
    let ReplyPart::Bytes(bytes) = &part else { return part };
    let text = String::from_utf8_lossy(bytes);
    let mut lines: Vec<&str> = text.lines().collect();
    let Some(count) = lines.pop().and_then(|end| end.strip_prefix("END ")?.parse::<usize>().ok()) else { return part };
    if count != lines.len() || count < 2 || which(count) >= count || !lines.iter().all(|line| line.starts_with("MSG "))
    {
        return part;
    }
    lines.remove(which(count));
    ReplyPart::Bytes(format!("{}\nEND {}\n", lines.join("\n"), count - 1).into_bytes().into())
}

/// Changes the last byte of the first message, where that is a line.
fn flip_in_message(part: ReplyPart) -> ReplyPart {
    let ReplyPart::Bytes(bytes) = &part else { return part };
    match bytes.iter().position(|byte| *byte == b'\n') {
        Some(end) if bytes.starts_with(b"MSG ") => {
            let mut changed = bytes.to_vec();
            changed[end - 1] ^= 1;
            ReplyPart::Bytes(changed.into())
        }
        _ => part,
    }
}

fn refused(part: ReplyPart) -> ReplyPart {
    match &part {
        ReplyPart::Bytes(bytes)
            if bytes.starts_with(b"OK ") && bytes.iter().filter(|byte| **byte == b'\n').count() == 1 =>
        {
            ReplyPart::Bytes("ERR QUEUE_FULL not really\n".into())
        }
        _ => part,
    }
}

fn wrong_offset(part: ReplyPart) -> ReplyPart {
    let ReplyPart::Bytes(bytes) = &part else { return part };
    let text = String::from_utf8_lossy(bytes);
    let changed = text.strip_prefix("OK ").and_then(|rest| {
        let (offset, rest) = rest.split_once(' ')?;
        Some(format!("OK {} {rest}", offset.parse::<u64>().ok()? + 1))
    });
    changed.map_or(part.clone(), |text| ReplyPart::Bytes(text.into_bytes().into()))
}
