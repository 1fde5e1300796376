//! One file: what the process sees, what is durable for sure, and the versions of each sector that lie between.

use super::hash::StateHash;
use super::profile::{FailedForce, Profile};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

/// The bytes of one sector, shared between all the states that have them.
pub(super) type Sector = Arc<[u8]>;

/// More versions of one sector than this are not kept apart (the oldest goes that no force under way will make durable): in a
/// long run the same place may be overwritten thousands of times without a force. The exhaustive mode refuses such a file.
const VERSIONS_MAX: usize = 16;

/// What a file system allocates. Behind the new end of a file that is cut it zeroes the rest of the block at once, in the page
/// cache, and that may be written back before the shorter length is durable: a cut that is lost has left zeros behind. Measured on
/// ext4 and xfs (`power-loss conformance`).
const BLOCK_BYTES: u64 = 4096;

/// Sectors that are not there are holes and read as zeros.
#[derive(Clone, Default)]
pub(super) struct Content {
    pub(super) sectors: BTreeMap<u64, Sector>,
    pub(super) length: u64,
}

impl Content {
    fn read(&self, unit: u64, position: u64, length: u64) -> Vec<u8> {
        let end = self.length.min(position.saturating_add(length));
        let mut bytes = vec![0; end.saturating_sub(position) as usize];
        for index in sector_range(unit, position, bytes.len() as u64) {
            let Some(sector) = self.sectors.get(&index) else { continue };
            let start = index * unit;
            let from = position.max(start);
            let to = end.min(start + unit);
            bytes[(from - position) as usize..(to - position) as usize]
                .copy_from_slice(&sector[(from - start) as usize..(to - start) as usize]);
        }
        bytes
    }
}

/// What a sector became by one write or cut that no force has covered yet.
#[derive(Clone)]
pub(super) struct Version {
    seq: u64,
    content: Option<Sector>,
    /// By a cut: metadata, which a failed force of data leaves alone.
    by_cut: bool,
    /// Marked clean by a failed force: no later force will write it.
    clean: bool,
}

#[derive(Clone)]
struct LengthChange {
    seq: u64,
    length: u64,
    cut: bool,
}

#[derive(Clone, Default)]
pub(super) struct File {
    pub(super) cached: Content,
    pub(super) durable: Content,
    versions: BTreeMap<u64, Vec<Version>>,
    lengths: Vec<LengthChange>,
    /// What stood in a place before the durable content: stale content that a tear may bring back.
    ancestors: BTreeMap<u64, Sector>,
    /// Some sector had more than [`VERSIONS_MAX`] versions.
    overflowed: bool,
    /// The next force reports an error that happened behind the process's back.
    pub(super) late_error: bool,
    /// The next force answers OK and covers nothing (detect-only).
    pub(super) lie_once: bool,
    /// Sectors that can't be read (detect-only).
    pub(super) unreadable: BTreeSet<u64>,
    /// The next read shows what stood there before (detect-only).
    pub(super) stale_read: bool,
    hash: OnceLock<u128>,
}

/// What a force made durable.
#[derive(Clone, Copy, Default)]
pub(super) struct Forced {
    pub(super) data: bool,
    /// The last change among a new length, a cut, and blocks that were never durable before.
    pub(super) metadata: Option<u64>,
}

/// One length that may survive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LengthOption {
    pub(super) length: u64,
    /// Changes of the length up to this one have happened.
    upto: u64,
}

/// What may have become of a dirty sector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    New,
    /// An older unforced version, counted from the oldest.
    Version(usize),
    Old,
    Zero,
    Shorn,
    Garbage,
    Stale,
}

impl Fate {
    pub(super) fn describe(self) -> String {
        match self {
            Fate::New => "new".to_owned(),
            Fate::Version(n) => format!("unforced version {n}"),
            Fate::Old => "old".to_owned(),
            Fate::Zero => "zero".to_owned(),
            Fate::Shorn => "shorn".to_owned(),
            Fate::Garbage => "garbage".to_owned(),
            Fate::Stale => "stale".to_owned(),
        }
    }
}

/// One content that a sector may survive with.
pub(super) struct SectorOption {
    pub(super) fate: Fate,
    pub(super) content: Option<Sector>,
    /// For garbage: which overwrite was torn, so that another pattern can be made.
    torn: Option<(Option<Sector>, Sector)>,
}

impl File {
    /// A file whose content is durable and has no past.
    pub(super) fn settled(content: Content) -> File {
        File { cached: content.clone(), durable: content, ..File::default() }
    }

    pub(super) fn is_settled(&self) -> bool {
        self.versions.is_empty() && self.lengths.is_empty() && !self.late_error && !self.lie_once
    }

    pub(super) fn overflowed(&self) -> bool {
        self.overflowed
    }

    pub(super) fn has_past(&self) -> bool {
        !self.ancestors.is_empty()
    }

    pub(super) fn ancestor(&self, index: u64) -> Option<&Sector> {
        self.ancestors.get(&index)
    }

    /// The sectors with unforced versions.
    pub(super) fn dirty_sectors(&self) -> impl Iterator<Item = u64> {
        self.versions.keys().copied()
    }

    /// How many sectors a write would newly take.
    pub(super) fn new_sectors(&self, unit: u64, position: u64, length: u64) -> u64 {
        sector_range(unit, position, length).filter(|index| !self.cached.sectors.contains_key(index)).count() as u64
    }

    pub(super) fn read(&self, unit: u64, position: u64, length: u64) -> Vec<u8> {
        self.cached.read(unit, position, length)
    }

    /// The same of what is durable.
    pub(super) fn read_forced(&self, unit: u64, position: u64, length: u64) -> Vec<u8> {
        self.durable.read(unit, position, length)
    }

    /// Writes into the cache. `skip_equal`: a sector that stays as it durably is does not become dirty. `forces` are the forces under
    /// way, each of which will make durable what was done before it.
    pub(super) fn write(&mut self, seq: u64, unit: u64, position: u64, bytes: &[u8], skip_equal: bool, forces: &[u64]) {
        self.hash.take();
        let end = position + bytes.len() as u64;
        for index in sector_range(unit, position, bytes.len() as u64) {
            let start = index * unit;
            let from = position.max(start);
            let to = end.min(start + unit);
            let mut sector = match self.cached.sectors.get(&index) {
                Some(sector) => sector.to_vec(),
                None => vec![0; unit as usize],
            };
            sector[(from - start) as usize..(to - start) as usize]
                .copy_from_slice(&bytes[(from - position) as usize..(to - position) as usize]);
            let unchanged = self.cached.sectors.get(&index).is_some_and(|old| old[..] == sector[..]);
            if !(unchanged && skip_equal && !self.versions.contains_key(&index)) {
                let sector: Sector = sector.into();
                self.cached.sectors.insert(index, sector.clone());
                self.push_version(index, Version { seq, content: Some(sector), by_cut: false, clean: false }, forces);
            }
            // A sector that could not be read is remapped by writing it.
            self.unreadable.remove(&index);
        }
        if !bytes.is_empty() && end > self.cached.length {
            self.change_length(seq, end, false);
        }
    }

    pub(super) fn truncate(&mut self, seq: u64, unit: u64, length: u64, forces: &[u64]) {
        self.hash.take();
        if length < self.cached.length {
            let removed = self.cached.sectors.split_off(&length.div_ceil(unit));
            for index in removed.into_keys() {
                self.push_version(index, Version { seq, content: None, by_cut: true, clean: false }, forces);
            }
            let index = length / unit;
            if let Some(sector) = self.cached.sectors.get(&index) {
                let kept = fit(sector, index, unit, length);
                if kept[..] != sector[..] {
                    self.cached.sectors.insert(index, kept.clone());
                    self.push_version(index, Version { seq, content: Some(kept), by_cut: true, clean: false }, forces);
                }
            }
            self.change_length(seq, length, true);
        } else if length > self.cached.length {
            self.change_length(seq, length, false);
        }
    }

    /// Makes durable what was done before `seq`. What a failed force marked clean is left out: that is the danger.
    pub(super) fn force(&mut self, seq: u64) -> Forced {
        self.hash.take();
        let mut forced = Forced::default();
        let (durable, ancestors) = (&mut self.durable, &mut self.ancestors);
        self.versions.retain(|index, versions| {
            let Some(last) = versions.iter().rposition(|version| version.seq < seq && !version.clean) else {
                return true;
            };
            // A block may have been allocated as soon as it was first written.
            let first = versions.first().filter(|_| !durable.sectors.contains_key(index)).map(|version| version.seq);
            let version = versions.drain(..=last).next_back().expect("at least one");
            forced.data = true;
            forced.metadata = forced.metadata.max(version.by_cut.then_some(version.seq)).max(first);
            let before = match version.content {
                Some(content) => durable.sectors.insert(*index, content),
                None => durable.sectors.remove(index),
            };
            ancestors.extend(before.map(|before| (*index, before)));
            !versions.is_empty()
        });
        forced.metadata = forced.metadata.max(self.force_length(seq));
        forced
    }

    /// Makes the length durable as it was before `seq`, and answers which change of it that was.
    pub(super) fn force_length(&mut self, seq: u64) -> Option<u64> {
        self.hash.take();
        let last = self.lengths.iter().rposition(|change| change.seq < seq)?;
        let change = self.lengths.drain(..=last).next_back().expect("at least one");
        self.durable.length = change.length;
        Some(change.seq)
    }

    /// A force of what was done before `seq` fails: some, all or nothing of it may have been written.
    pub(super) fn fail_force(&mut self, seq: u64, how: FailedForce) {
        self.hash.take();
        let (cached, durable) = (&mut self.cached, &self.durable);
        self.versions.retain(|index, versions| {
            // A page that was written again meanwhile is dirty again: a later force writes all of it.
            if versions.last().is_some_and(|last| last.seq >= seq) {
                return true;
            }
            match how {
                FailedForce::MarkedClean | FailedForce::ReportedLate => {
                    versions.iter_mut().filter(|version| !version.by_cut).for_each(|version| version.clean = true);
                }
                FailedForce::Dropped => {
                    versions.retain(|version| version.by_cut);
                    let shown = versions.last().map_or(durable.sectors.get(index), |cut| cut.content.as_ref());
                    match shown {
                        Some(sector) => cached.sectors.insert(*index, sector.clone()),
                        None => cached.sectors.remove(index),
                    };
                }
            }
            !versions.is_empty()
        });
    }

    /// The lengths that may survive, the newest first: every one there was, the middle between two, and the ends of
    /// sectors between two. Changes before `floor` have happened for sure.
    pub(super) fn length_options(&self, profile: &Profile, unit: u64, floor: u64) -> Vec<LengthOption> {
        let mut options: Vec<LengthOption> = Vec::new();
        let mut seen = BTreeSet::new();
        let mut push = |option: LengthOption| {
            if seen.insert((option.length, self.cuts(profile, option.upto))) {
                options.push(option);
            }
        };
        let steps = self.length_steps(floor);
        for (at, step) in steps.iter().enumerate().rev() {
            push(LengthOption { length: step.length, upto: step.seq });
            let Some(before) = at.checked_sub(1).map(|at| &steps[at]) else { break };
            if step.cut && profile.cut_is_atomic {
                continue;
            }
            let (low, high) = (before.length.min(step.length), before.length.max(step.length));
            let ends_of_sectors = (low / unit + 1..high.div_ceil(unit)).map(|index| index * unit);
            for length in std::iter::once(low.midpoint(high)).chain(ends_of_sectors) {
                push(LengthOption { length, upto: step.seq });
            }
        }
        options
    }

    /// Chooses any length that may survive: `choose(n)` answers a number below n, 0 being the newest.
    pub(super) fn any_length(
        &self,
        profile: &Profile,
        floor: u64,
        choose: &mut dyn FnMut(usize) -> usize,
    ) -> LengthOption {
        let steps = self.length_steps(floor);
        let at = steps.len() - 1 - choose(steps.len());
        let step = &steps[at];
        let mut length = step.length;
        let before = at.checked_sub(1).map_or(length, |at| steps[at].length);
        if !(step.cut && profile.cut_is_atomic) {
            let away = choose(before.abs_diff(length) as usize + 1) as u64;
            length = if before < length { length - away } else { length + away };
        }
        LengthOption { length, upto: step.seq }
    }

    /// What may have become of a dirty sector if the file survives with this length; the new content first. `stale` are
    /// older contents that a tear may bring back.
    pub(super) fn sector_options(
        &self,
        profile: &Profile,
        unit: u64,
        index: u64,
        survived: LengthOption,
        stale: &[Sector],
    ) -> Vec<SectorOption> {
        let (base, versions) = self.eligible(profile, unit, index, survived.upto);
        let mut options: Vec<SectorOption> = Vec::new();
        let mut push = |fate, content: Option<Sector>, torn: Option<(Option<Sector>, Sector)>| {
            let content = content.map(|sector| fit(&sector, index, unit, survived.length));
            if !options.iter().any(|option| same(option.content.as_ref(), content.as_ref())) {
                options.push(SectorOption { fate, content, torn });
            }
        };
        for (n, version) in versions.iter().enumerate().rev() {
            let fate = if n + 1 == versions.len() { Fate::New } else { Fate::Version(n) };
            push(fate, version.content.clone(), None);
        }
        push(Fate::Old, base.cloned(), None);
        let tears = if base.is_some() { profile.overwrite_tears } else { profile.fresh_garbage };
        if tears {
            // Written back once, from the durable content to any version, or at each version.
            let mut before = base;
            for version in versions {
                let Some(new) = &version.content else {
                    before = None;
                    continue;
                };
                let both = [base, before];
                let distinct = if before.map(Arc::as_ptr) == base.map(Arc::as_ptr) { &both[..1] } else { &both[..] };
                for old in distinct.iter().copied() {
                    let half = new.len() / 2;
                    let old_at = |i: usize| old.map_or(0, |old| old[i]);
                    let torn = |fill: &dyn Fn(usize) -> u8| Some(tear(profile, old, new, fill));
                    push(Fate::Zero, torn(&|_| 0), None);
                    push(Fate::Shorn, torn(&|i| if i < half { new[i] } else { old_at(i) }), None);
                    push(Fate::Garbage, torn(&garbage(0)), Some((old.cloned(), new.clone())));
                    for past in stale {
                        push(Fate::Stale, torn(&|i| past[i]), None);
                    }
                }
                before = Some(new);
            }
        }
        options
    }

    /// The ways in which the file may survive with exactly this length.
    pub(super) fn lengths_that_lead_to(&self, profile: &Profile, floor: u64, length: u64) -> Vec<LengthOption> {
        let steps = self.length_steps(floor);
        let leads = |at: usize| {
            let (before, step) = (at.checked_sub(1).map_or(steps[at].length, |at| steps[at].length), &steps[at]);
            let between = before.min(step.length)..=before.max(step.length);
            length == step.length || (between.contains(&length) && !(step.cut && profile.cut_is_atomic))
        };
        (0..steps.len()).filter(|at| leads(*at)).map(|at| LengthOption { length, upto: steps[at].seq }).collect()
    }

    /// Whether a sector may hold these bytes, up to the end of the file, if the file survives with this length.
    pub(super) fn sector_may_be(
        &self,
        profile: &Profile,
        unit: u64,
        index: u64,
        survived: LengthOption,
        found: &[u8],
    ) -> bool {
        let is = |content: Option<&Sector>| match content {
            Some(sector) => sector[..found.len()] == *found,
            None => found.iter().all(|byte| *byte == 0),
        };
        if !self.versions.contains_key(&index) {
            return is(self.durable.sectors.get(&index));
        }
        let (base, versions) = self.eligible(profile, unit, index, survived.upto);
        if is(base) || versions.iter().any(|version| is(version.content.as_ref())) {
            return true;
        }
        let tears = if base.is_some() { profile.overwrite_tears } else { profile.fresh_garbage };
        // As in `sector_options`: written back once, from the durable content to any version, or at each version.
        let befores = std::iter::once(base).chain(versions.iter().map(|version| version.content.as_ref()));
        tears
            && befores.zip(versions).any(|(before, version)| {
                let Some(new) = &version.content else { return false };
                [base, before].into_iter().any(|old| {
                    found.iter().enumerate().all(|(i, byte)| {
                        !(profile.power_safe_overwrite && old.is_some_and(|old| old[i] == new[i])) || *byte == new[i]
                    })
                })
            })
    }

    /// The same garbled sector with another pattern of garbage.
    pub(super) fn regarble(
        profile: &Profile,
        unit: u64,
        index: u64,
        length: u64,
        option: &SectorOption,
        pattern: u64,
    ) -> Option<Sector> {
        let (old, new) = option.torn.as_ref()?;
        Some(fit(&tear(profile, old.as_ref(), new, &garbage(pattern)), index, unit, length))
    }

    /// The file after a power loss: `sectors` are the dirty ones, as they survived.
    pub(super) fn survive(&self, unit: u64, length: u64, sectors: Vec<(u64, Option<Sector>)>, keep_past: bool) -> File {
        let mut content = self.durable.clone();
        content.length = length;
        for (index, sector) in sectors {
            match sector {
                Some(sector) => content.sectors.insert(index, sector),
                None => content.sectors.remove(&index),
            };
        }
        content.sectors.split_off(&length.div_ceil(unit));
        if let Some(sector) = content.sectors.get_mut(&(length / unit)) {
            *sector = fit(sector, length / unit, unit, length);
        }
        let mut file = File::settled(content);
        file.unreadable = self.unreadable.clone();
        if keep_past {
            file.ancestors = self.ancestors.clone();
            file.ancestors.extend(self.durable.sectors.iter().filter_map(|(index, sector)| {
                let differs = file.durable.sectors.get(index).is_none_or(|now| now[..] != sector[..]);
                differs.then(|| (*index, sector.clone()))
            }));
        }
        file
    }

    /// Everything that can influence what the file will be.
    pub(super) fn hash(&self) -> u128 {
        *self.hash.get_or_init(|| {
            let mut hash = StateHash::new();
            let sectors = |hash: &mut StateHash, sectors: &BTreeMap<u64, Sector>| {
                hash.number(sectors.len() as u64);
                for (index, sector) in sectors {
                    hash.number(*index);
                    hash.bytes(sector);
                }
            };
            hash.number(self.cached.length);
            sectors(&mut hash, &self.cached.sectors);
            sectors(&mut hash, &self.ancestors);
            hash.number(u64::from(self.late_error) | u64::from(self.lie_once) << 1 | u64::from(self.stale_read) << 2);
            self.unreadable.iter().for_each(|index| hash.number(*index));
            if !self.is_settled() {
                hash.number(self.durable.length);
                sectors(&mut hash, &self.durable.sectors);
                for change in &self.lengths {
                    hash.number(change.length);
                    hash.number(u64::from(change.cut));
                }
                for (index, versions) in &self.versions {
                    hash.number(*index);
                    for version in versions {
                        hash.number(u64::from(version.by_cut) | u64::from(version.clean) << 1);
                        hash.bytes(version.content.as_ref().map_or(&[], |content| &content[..]));
                    }
                }
            }
            hash.finish()
        })
    }

    /// To be called by whoever changes a public field.
    pub(super) fn touched(&mut self) {
        self.hash.take();
    }

    /// Changes bytes behind everyone's back, on the platter and in the cache (detect-only).
    pub(super) fn alter(&mut self, index: u64, sector: Option<Sector>) {
        self.hash.take();
        for content in [&mut self.cached, &mut self.durable] {
            match &sector {
                Some(sector) => content.sectors.insert(index, sector.clone()),
                None => content.sectors.remove(&index),
            };
        }
        self.versions.remove(&index);
    }

    fn push_version(&mut self, index: u64, version: Version, forces: &[u64]) {
        let versions = self.versions.entry(index).or_default();
        versions.push(version);
        if versions.len() > VERSIONS_MAX {
            // Were the last version before a force dropped, the force would cover nothing.
            let is_needed =
                |pair: &[Version]| forces.iter().any(|force| (pair[0].seq + 1..=pair[1].seq).contains(force));
            if let Some(oldest) = versions.windows(2).position(|pair| !is_needed(pair)) {
                versions.remove(oldest);
                self.overflowed = true;
            }
        }
    }

    fn change_length(&mut self, seq: u64, length: u64, cut: bool) {
        self.cached.length = length;
        self.lengths.push(LengthChange { seq, length, cut });
    }

    fn length_steps(&self, floor: u64) -> Vec<LengthChange> {
        let durable = LengthChange { seq: 0, length: self.durable.length, cut: false };
        let mut steps: Vec<LengthChange> = std::iter::once(durable).chain(self.lengths.iter().cloned()).collect();
        let first = steps.iter().rposition(|step| step.seq < floor).unwrap_or(0);
        steps.drain(..first);
        steps
    }

    /// How many cuts have happened, where that decides which versions of a sector go with a length.
    fn cuts(&self, profile: &Profile, upto: u64) -> usize {
        let cuts = self.lengths.iter().filter(|change| change.cut && change.seq <= upto).count();
        if profile.cut_is_atomic { cuts } else { 0 }
    }

    /// What a sector may be if the changes of length up to `upto` have happened: for sure, and the versions since.
    fn eligible(&self, profile: &Profile, unit: u64, index: u64, upto: u64) -> (Option<&Sector>, &[Version]) {
        let mut base = self.durable.sectors.get(&index);
        let mut versions = &self.versions[&index][..];
        if profile.cut_is_atomic {
            let cuts = || self.lengths.iter().filter(|change| change.cut);
            // The block in which the file then ends stays where it is; what lies behind goes with the length.
            let stays = |cut: &LengthChange| {
                !cut.length.is_multiple_of(BLOCK_BYTES) && index * unit / BLOCK_BYTES == cut.length / BLOCK_BYTES
            };
            if let Some(next) = cuts().find(|cut| cut.seq > upto && !stays(cut)) {
                versions = &versions[..versions.partition_point(|version| version.seq < next.seq)];
            }
            if let Some(applied) = cuts().rfind(|cut| cut.seq <= upto)
                && let Some(at) = versions.iter().position(|version| version.by_cut && version.seq == applied.seq)
            {
                base = versions[at].content.as_ref();
                versions = &versions[at + 1..];
            }
        }
        (base, versions)
    }
}

/// The sectors that a range of bytes touches.
pub(super) fn sector_range(unit: u64, position: u64, length: u64) -> std::ops::Range<u64> {
    if length == 0 { 0..0 } else { position / unit..(position + length).div_ceil(unit) }
}

/// The sector with zeros from the end of the file on.
fn fit(sector: &Sector, index: u64, unit: u64, length: u64) -> Sector {
    let kept = length.saturating_sub(index * unit).min(unit) as usize;
    if sector[kept..].iter().all(|byte| *byte == 0) {
        return sector.clone();
    }
    let mut bytes = sector.to_vec();
    bytes[kept..].fill(0);
    bytes.into()
}

/// Whether a reader sees the same: a hole reads as zeros.
fn same(a: Option<&Sector>, b: Option<&Sector>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a == b,
        (Some(only), None) | (None, Some(only)) => only.iter().all(|byte| *byte == 0),
        (None, None) => true,
    }
}

/// An overwrite that power failed in. With power-safe overwrite, bytes that do not change are not hurt.
fn tear(profile: &Profile, old: Option<&Sector>, new: &Sector, fill: &dyn Fn(usize) -> u8) -> Sector {
    let is_safe = |i: usize, byte: u8| profile.power_safe_overwrite && old.is_some_and(|old| old[i] == byte);
    new.iter().enumerate().map(|(i, byte)| if is_safe(i, *byte) { *byte } else { fill(i) }).collect()
}

/// Bytes that nobody wrote; pattern 0 is the one of the exhaustive mode.
fn garbage(pattern: u64) -> impl Fn(usize) -> u8 {
    move |i| {
        let x = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ pattern.wrapping_mul(0xd6e8_feb8_6659_fd93);
        ((x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 56) as u8
    }
}
