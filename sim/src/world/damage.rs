//! The tier that can only be detected (P7): rot, a lost sector, a misdirected write, a person with a shell. At the end of some
//! runs, when everything has been forced and its line anchored, so that nothing excuses a loss.
//!
//! The start is then refused with every byte as it was, or every message that is delivered is right and every one that is missing is
//! missing by an error.

use super::{Part, Step, Todo, World};
use crate::disk::{SimDisk, Vandal};
use crate::model::broken;
use crate::tape::Concern;
use crate::trace::Lane;
use crate::view::{Depth, LogView};
use plimsoll_core::layout::INDEX_SUFFIX;
use std::collections::BTreeMap;
use std::fmt;

/// What is remembered of the disk.
#[derive(Default)]
pub(super) struct Evidence {
    /// As it was at the end of the storm: a backup.
    pub(super) backup: Option<SimDisk>,
    /// As it was before the start after the damage.
    before_start: Option<BTreeMap<String, Option<Vec<u8>>>>,
    /// What was done.
    pub(super) deed: String,
    /// To be done before the next start.
    planned: bool,
}

impl World {
    /// Stops the process, so that the disk can be damaged; or damages it under the running one; or leaves it alone.
    pub(super) fn damage(&mut self) -> Step {
        let words = ["nobody", "while it is stopped", "while it runs"];
        let picked =
            self.d.weighted(Concern::Operator, &[4, 2, 1], format_args!("somebody is at the disk"), &|picked| {
                words[picked].to_owned()
            });
        match picked {
            0 => {
                self.part = Part::Over;
                Ok(())
            }
            1 => {
                self.evidence.planned = true;
                self.ask_to_stop()
            }
            _ => {
                self.vandalise();
                self.at(self.now_ns, Todo::AuditTurn);
                Ok(())
            }
        }
    }

    /// To be called before every start.
    pub(super) fn before_start(&mut self) {
        if std::mem::take(&mut self.evidence.planned) {
            self.vandalise();
        }
        if self.checker.damaged {
            self.evidence.before_start = Some(self.disk.tree());
        }
    }

    /// The process has ended by itself after the damage: a refused start must not have changed a byte.
    pub(super) fn refused(&mut self) -> Step {
        self.part = Part::Over;
        let changed = self.evidence.before_start.as_ref().is_some_and(|before| *before != self.disk.tree());
        if changed && !self.checker.is_ready() && self.checker.refused_as_corrupt() {
            return Ok(broken(
                "P7",
                format!("the start was refused after {}, but something was changed", self.evidence.deed),
            )?);
        }
        Ok(())
    }

    /// Somebody deletes a sidecar, empties it, or puts that of another segment in its place: whatever it is then, it must not matter.
    pub(super) fn meddle(&mut self, moment: fmt::Arguments<'_>) {
        let sidecars: Vec<(String, u64)> = self
            .disk
            .tree()
            .into_iter()
            .filter_map(|(path, bytes)| Some((path, bytes?.len() as u64)))
            .filter(|(path, length)| path.ends_with(INDEX_SUFFIX) && *length > 1)
            .collect();
        if sidecars.is_empty() {
            return;
        }
        let mut one = |which: &str| {
            let words = |picked: usize| sidecars[picked].0.clone();
            self.d.choose(Concern::Operator, sidecars.len(), format_args!("{moment}, {which}"), &words)
        };
        let (path, length) = &sidecars[one("index")];
        let (other, _) = &sidecars[one("other index")];
        let deeds = ["is deleted", "is zeroed", "is cut", "has a flipped bit", "is another one's"];
        let deed = self
            .d
            .choose(Concern::Operator, deeds.len(), format_args!("{moment}, deed"), &|picked| deeds[picked].to_owned());
        self.trace.note(self.now_ns, Lane::World, format_args!("{path} {}", deeds[deed]));
        let mut vandal = Vandal::of_sidecars(&mut self.disk);
        match deed {
            0 => vandal.delete(path),
            1 => vandal.zero(path),
            2 => vandal.truncate(path, length / 2),
            3 => vandal.flip(path, length / 3, 4),
            _ => vandal.copy_file(other, path),
        }
    }

    fn vandalise(&mut self) {
        let files: Vec<(String, u64)> = self
            .disk
            .tree()
            .into_iter()
            .filter_map(|(path, bytes)| Some((path, bytes?.len() as u64)))
            .filter(|(path, length)| *length > 0 && path != "ballast" && !path.ends_with(".tmp"))
            .collect();
        if files.is_empty() {
            return;
        }
        let is_stopped = self.broker.is_none();
        let one_file = |world: &mut World, which: &str| {
            let words = |picked: usize| files[picked].0.clone();
            world.d.choose(Concern::Operator, files.len(), format_args!("damage, {which}"), &words)
        };
        let (path, length) = files[one_file(self, "file")].clone();
        let unit = u64::from(self.plan.sector_bytes);
        let places = [0, length / 2, length - 1, length / 3, length / 5 * 4];
        let place =
            places[self.d.choose(Concern::Operator, places.len(), format_args!("damage, position"), &|picked| {
                format!("{} of {length}", places[picked])
            })];
        let backup = self.evidence.backup.take();
        // A group that is removed, or put back to an older state, by hand leaves no trace (docs/file-format.md), nor do older settings.
        let is_group = path.ends_with(".offset");
        let has_trace = !is_group && !path.ends_with("/topic.toml");
        let backed_up = has_trace && backup.as_ref().is_some_and(|backup| backup.read_file(&path).is_some());
        let topic = path.strip_prefix("topics/").and_then(|path| path.split('/').next()).map(str::to_owned);
        let older = backup.as_ref().zip(topic.as_deref()).filter(|_| is_stopped);
        let proved = older.and_then(|(backup, topic)| Rollback::of_all_but_the_log(&self.disk, backup, topic));
        let below_groups = older.and_then(|(backup, topic)| Rollback::of_the_log(&self.disk, backup, topic));
        let deeds = [
            "a bit flips",
            "a sector can't be read",
            "a write goes astray",
            "is cut",
            "is deleted",
            "an old copy is put back",
            "a bit flips in its log, and an old copy of all but the log is put back",
            "an old copy of its log is put back under newer groups",
        ];
        let legal: Vec<usize> = (0..deeds.len())
            .filter(|deed| match deed {
                4 => !is_group,
                5 => backed_up,
                6 => proved.is_some(),
                7 => below_groups.is_some(),
                _ => true,
            })
            .collect();
        let deed = legal[self.d.choose(Concern::Operator, legal.len(), format_args!("damage, deed"), &|picked| {
            deeds[legal[picked]].to_owned()
        })];
        let (to, to_length) = files[one_file(self, "other file")].clone();
        let bit = self.d.choose(Concern::Operator, 8, format_args!("damage, bit"), &|picked| picked.to_string());
        let leaves = |picked: usize| ["nothing", "a copy that was not finished"][picked].to_owned();
        let leaves_copy =
            is_stopped && self.d.choose(Concern::Operator, 2, format_args!("damage, what else is left"), &leaves) == 1;
        // In a file that nobody forces there may be what once was a group's: that is an older copy of it, which leaves no trace.
        let astray = self.disk.read_file(&path).unwrap_or_default();
        let astray = astray.get((place / unit * unit) as usize..).unwrap_or_default();
        let astray = &astray[..astray.len().min(to_length as usize)];
        let is_of_group = to.ends_with(".offset") && plimsoll_core::group::offset_file::parse_offset(astray).is_some();
        let mut vandal = Vandal::new(&mut self.disk);
        if leaves_copy {
            vandal.copy_file(&path, &plimsoll_core::layout::tmp(&path));
        }
        match (deed, &backup) {
            (0, _) => vandal.flip(&path, place, 1 << bit),
            (1, _) => vandal.unreadable(&path, place / unit),
            (2, _) if is_of_group => vandal.unreadable(&path, place / unit),
            (2, _) => vandal.misdirect(&path, place / unit, &to, (to_length - 1) / unit),
            (3, _) => vandal.truncate(&path, place),
            (4, _) => vandal.delete(&path),
            (5, Some(backup)) => vandal.restore_file(backup, &path),
            (6, Some(backup)) => proved.expect("legal only then").done_by(&mut vandal, backup, 1 << bit),
            (_, Some(backup)) => below_groups.expect("legal only then").done_by(&mut vandal, backup, 1 << bit),
            (_, None) => unreachable!("what needs a backup is legal only where there is one"),
        }
        self.evidence.deed = format!("{}: {} at {place}", path, deeds[deed]);
        self.trace.note(self.now_ns, Lane::World, format_args!("DAMAGE to {}", self.evidence.deed));
        self.checker.damaged = true;
    }
}

/// Parts of a topic that are put back to an older state, in a way that the newer parts prove.
struct Rollback {
    restored: Vec<String>,
    deleted: Vec<String>,
    /// A place that a later frame of the same segment proves.
    flipped: Option<(String, u64)>,
}

impl Rollback {
    /// Everything that says how far the log went is older, and the frame that rots is proved by the frames behind it alone.
    fn of_all_but_the_log(disk: &SimDisk, backup: &SimDisk, topic: &str) -> Option<Rollback> {
        let flipped = LogView::new(Depth::Cache, topic).proved_frame(disk)?;
        let log = format!("topics/{topic}/log/");
        Rollback::of(disk, backup, topic, |path| !path.starts_with(&log), Some(flipped))
    }

    /// The log and its line are older than what a group has acknowledged.
    fn of_the_log(disk: &SimDisk, backup: &SimDisk, topic: &str) -> Option<Rollback> {
        let groups = plimsoll_core::layout::groups(&format!("topics/{topic}"));
        let end = LogView::new(Depth::Cache, topic).end(backup, u64::MAX);
        let acknowledged = disk.cached_names(&groups)?.into_iter().filter_map(|name| {
            let bytes = disk.cached_file(&format!("{groups}/{name}"), 0, 100)?;
            std::str::from_utf8(bytes.split(|byte| *byte == b' ').next()?).ok()?.parse::<u64>().ok()
        });
        if acknowledged.max()? <= end {
            return None;
        }
        Rollback::of(disk, backup, topic, |path| !path.starts_with(&groups), None)
    }

    fn of(
        disk: &SimDisk,
        backup: &SimDisk,
        topic: &str,
        is_part: impl Fn(&str) -> bool,
        flipped: Option<(String, u64)>,
    ) -> Option<Rollback> {
        // The log must be the same one.
        let toml = plimsoll_core::layout::log_toml(&format!("topics/{topic}"));
        if backup.read_file(&toml)? != disk.read_file(&toml)? {
            return None;
        }
        let dir = format!("topics/{topic}/");
        let parts = |disk: &SimDisk| -> Vec<String> {
            let files = disk.tree().into_iter().filter(|(path, bytes)| bytes.is_some() && path.starts_with(&dir));
            files.map(|(path, _)| path).filter(|path| is_part(path) && !path.ends_with(".tmp")).collect()
        };
        let restored = parts(backup);
        let deleted = parts(disk).into_iter().filter(|path| !restored.contains(path)).collect();
        Some(Rollback { restored, deleted, flipped })
    }

    fn done_by(&self, vandal: &mut Vandal<'_>, backup: &SimDisk, mask: u8) {
        for path in &self.restored {
            vandal.restore_file(backup, path);
        }
        for path in &self.deleted {
            vandal.delete(path);
        }
        if let Some((path, position)) = &self.flipped {
            vandal.flip(path, *position, mask);
        }
    }
}
