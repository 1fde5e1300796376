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
use std::collections::BTreeMap;

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
        // A group that is removed, or put back to an older state, by hand leaves no trace (docs/promises.md).
        let is_group = path.ends_with(".offset");
        let backed_up =
            !is_group && self.evidence.backup.as_ref().is_some_and(|backup| backup.read_file(&path).is_some());
        let deeds = [
            "a bit flips",
            "a sector can't be read",
            "a write goes astray",
            "is cut",
            "is deleted",
            "an old copy is put back",
        ];
        let legal: Vec<usize> = (0..deeds.len())
            .filter(|deed| match deed {
                4 => !is_group,
                5 => backed_up,
                _ => true,
            })
            .collect();
        let deed = legal[self.d.choose(Concern::Operator, legal.len(), format_args!("damage, deed"), &|picked| {
            deeds[legal[picked]].to_owned()
        })];
        let (to, to_length) = files[one_file(self, "other file")].clone();
        let bit = self.d.choose(Concern::Operator, 8, format_args!("damage, bit"), &|picked| picked.to_string());
        let backup = self.evidence.backup.take();
        let mut vandal = Vandal::new(&mut self.disk);
        match deed {
            0 => vandal.flip(&path, place, 1 << bit),
            1 => vandal.unreadable(&path, place / unit),
            2 => vandal.misdirect(&path, place / unit, &to, (to_length - 1) / unit),
            3 => vandal.truncate(&path, place),
            4 => vandal.delete(&path),
            _ => vandal.restore_file(backup.as_ref().expect("just seen"), &path),
        }
        self.evidence.deed = format!("{}: {} at {place}", path, deeds[deed]);
        self.trace.note(self.now_ns, Lane::World, format_args!("DAMAGE to {}", self.evidence.deed));
        self.checker.damaged = true;
    }
}
