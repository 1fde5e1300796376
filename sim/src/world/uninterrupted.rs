//! P9, by comparison: the disk that a chain of interrupted recoveries began with is recovered once more, on a copy and to its end,
//! and what the chain has come to is held against that.
//!
//! After kills alone both must be the same. A power loss within the chain may take what was promised to nobody, so then a
//! log is a beginning of the other; that nothing promised is missing is for P1. A chain in which something failed proves nothing:
//! the page cache is then not to be believed (P10).

use super::{Step, World};
use crate::disk::SimDisk;
use crate::model::broken;
use crate::mutant::{Fate, Mutation};
use crate::view::{Depth, LogView};
use plimsoll_core::broker::Broker;
use plimsoll_core::config::Config;
use plimsoll_core::effect::{Effect, EffectId, FileId, Outcome};
use plimsoll_core::event::{Event, Now};
use plimsoll_core::layout;
use std::collections::BTreeMap;

/// A chain of recoveries: the first, and those that came because one before them was interrupted.
pub(super) struct Chain {
    /// What the first one began with.
    disk: SimDisk,
    config: Config,
    now: Now,
    interrupted: bool,
    power_lost: bool,
    /// Something failed, or somebody was at the disk.
    failed: bool,
}

/// What a recovery has come to.
#[derive(PartialEq, Eq, Debug)]
struct Topic {
    /// Where the log begins, as far as whole segments go.
    start: u64,
    /// Offsets and values.
    messages: Vec<(u64, Vec<u8>)>,
    /// Committed offsets, as their files say.
    groups: BTreeMap<String, Vec<u8>>,
}

impl World {
    /// A process is about to start.
    pub(super) fn chain_begins_or_goes_on(&mut self, config: &Config) {
        if self.chain.as_ref().is_none_or(|chain| !chain.interrupted) || !self.interrupted {
            let (disk, config, now) = (self.disk.clone(), config.clone(), self.now());
            self.chain = Some(Chain { disk, config, now, interrupted: false, power_lost: false, failed: false });
        }
    }

    /// A process has ended, or the power has gone after that.
    pub(super) fn chain_is_interrupted(&mut self, power_lost: bool) {
        match &mut self.chain {
            Some(chain) if self.interrupted => {
                chain.interrupted = true;
                chain.power_lost |= power_lost;
            }
            chain => *chain = None,
        }
    }

    /// Something has failed.
    pub(super) fn chain_has_failure(&mut self) {
        if let Some(chain) = &mut self.chain {
            chain.failed = true;
        }
    }

    /// The process says that it is ready, or (`refused`) that it will not be.
    pub(super) fn chain_ends(&mut self, refused: bool) -> Step {
        let Some(chain) = self.chain.take_if(|chain| chain.interrupted) else { return Ok(()) };
        // A failure may change what is kept; it is no reason to refuse a later start.
        let is_excused = if refused { self.checker.has_failure() } else { chain.failed };
        if is_excused || self.checker.damaged {
            return Ok(());
        }
        let power_lost = chain.power_lost;
        let Some(expected) = uninterrupted(chain, self.mutation.again()) else { return Ok(()) };
        if refused {
            return Ok(broken("P9", "the start is refused after an interrupted recovery, and was not without".into())?);
        }
        let outcome = outcome(&self.disk);
        if power_lost {
            for (name, topic) in &outcome {
                // A topic of which the first recovery found no more than a leftover may have its name back, and a start that it
                // believed may be the one before it.
                let Some(expected) = expected.get(name) else { continue };
                // The power loss may have taken a rename: where a segment was packed the one before it is back.
                let (from, packed) =
                    (expected.start.max(topic.start), self.checker.model.logs.get(name).map(|log| &log.packed));
                let stays = |(offset, _): &&(u64, Vec<u8>)| {
                    *offset >= from && !packed.is_some_and(|packed| packed.contains(offset))
                };
                let mut whole = expected.messages.iter().filter(stays);
                if !topic.messages.iter().filter(stays).all(|message| whole.next() == Some(message)) {
                    return Ok(differs(name, "messages", topic.messages.len(), expected.messages.len())?);
                }
            }
            return Ok(());
        }
        for name in expected.keys().chain(outcome.keys()) {
            let (Some(is), Some(was)) = (outcome.get(name), expected.get(name)) else {
                return Ok(differs(name, "topics", outcome.len(), expected.len())?);
            };
            if is.messages != was.messages {
                return Ok(differs(name, "messages", is.messages.len(), was.messages.len())?);
            }
            if is.groups != was.groups {
                return Ok(differs(name, "groups", is.groups.len(), was.groups.len())?);
            }
        }
        Ok(())
    }
}

fn differs(topic: &str, what: &str, is: usize, expected: usize) -> crate::model::Check {
    broken(
        "P9",
        format!(
            "after an interrupted recovery {topic} has other {what} ({is}) than after one that was not ({expected})"
        ),
    )
}

/// Recovers to the end, with nothing that fails. `None`: it does not become ready.
fn uninterrupted(chain: Chain, mut mutation: Mutation) -> Option<BTreeMap<String, Topic>> {
    let Chain { mut disk, config, now, .. } = chain;
    let mut broker = Broker::new(config).ok()?;
    let mut files: BTreeMap<FileId, String> = BTreeMap::new();
    let mut events = vec![Event::Start];
    loop {
        let mut said: Vec<(EffectId, Effect)> = Vec::new();
        for event in std::mem::take(&mut events) {
            broker.handle(now, event, &mut said);
        }
        for (id, effect, fate) in mutation.mutate(said, &files) {
            match &effect {
                Effect::Report(report) if report.name == "READY" => return Some(outcome(&disk)),
                Effect::Halt(_) | Effect::Stopped => return None,
                Effect::Create { file, path } | Effect::Open { file, path } => {
                    files.insert(*file, path.clone());
                }
                _ => {}
            }
            if fate != Fate::AsItIs {
                events.push(Event::Completed { id, result: Ok(Outcome::Done) });
            }
            if fate != Fate::Lost && SimDisk::takes(&effect) {
                disk.submit(id, effect);
            }
        }
        for (id, result) in disk.execute_all() {
            if !mutation.was_answered(id) {
                events.push(Event::Completed { id, result });
            }
        }
        if events.is_empty() {
            return None;
        }
    }
}

/// What stands on a disk, as a process sees it.
fn outcome(disk: &SimDisk) -> BTreeMap<String, Topic> {
    let names = disk.cached_names(layout::TOPICS).unwrap_or_default();
    let topics = names.into_iter().filter(|name| layout::is_topic_name(name)).map(|name| {
        let groups = layout::groups(&layout::topic(&name));
        let files = disk.cached_names(&groups).unwrap_or_default();
        let stored = files.into_iter().filter(|file| !file.ends_with(layout::TMP)).filter_map(|file| {
            let bytes = disk.cached_file(&format!("{groups}/{file}"), 0, 100)?;
            Some((file, bytes))
        });
        let mut view = LogView::new(Depth::Cache, &name);
        let start = view.first(disk).unwrap_or(0);
        // Whatever is left below the start is none of the log, and goes sooner or later.
        let messages = view.messages(disk).into_iter().filter(|(offset, _)| *offset >= start).collect();
        let topic = Topic { start, messages, groups: stored.collect() };
        (name, topic)
    });
    topics.collect()
}
