//! Building what survives: first the names, top down, then of each file that still has one its length, then each of
//! its dirty sectors. One piece of code for the seed, the tape and the enumerator.

use super::choices::{Choices, Decision, Enumerator, Recorder, Replay, pick};
use super::file::{Fate, File, LengthOption, Sector, SectorOption};
use super::names::{Change, Dir, Ino, NameOp, Status};
use super::profile::Names;
use super::{REMOVED_MAX, ROOT, SimDisk};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;

/// How many different answers there are where the field leaves infinitely many.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Alphabet {
    /// For the exhaustive mode: every combination of old, unforced versions, new, zero, shorn, one garbage pattern and
    /// one stale content, at the lengths of [`File::length_options`]. The past is forgotten, so that equal hashes mean
    /// equal futures.
    Fixed,
    /// For seeds: any length, many patterns of garbage, any stale content there is, and fates that come in runs.
    Wide,
}

/// There are more states than the caller wants to look at. Nothing was sampled instead.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TooMany {
    /// What the caller allowed.
    pub bound: u64,
    /// Why it is not enough.
    pub reason: String,
}

impl fmt::Display for TooMany {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "more than {} states after a power loss: {}", self.bound, self.reason)
    }
}

impl std::error::Error for TooMany {}

/// One disk that a power loss may leave.
#[derive(Clone)]
pub struct CrashState {
    /// The choices that lead to it, for [`SimDisk::crash_state`].
    pub picks: Vec<usize>,
    /// The disk, with nothing pending.
    pub disk: SimDisk,
}

/// Every disk that a power loss may leave, by [`SimDisk::crash_states`]. The first is the one that lost nothing. Some
/// may be equal in the end: see [`SimDisk::hash`].
///
/// States are numbered, so that several threads can share them out.
pub struct CrashStates {
    disk: SimDisk,
    namings: Vec<Naming>,
    /// What may become of a file, by the file and by what its surviving name says of its length.
    fates: BTreeMap<(Ino, u64), Vec<FileFate>>,
    total: u64,
    next: u64,
}

/// One way in which the names survive.
struct Naming {
    picks: Vec<usize>,
    names: SurvivingNames,
    /// The number of its first state.
    first: u64,
}

/// One way in which a file survives.
struct FileFate {
    picks: Vec<usize>,
    file: Arc<File>,
}

impl CrashStates {
    /// How many there are in all.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The state of that number. Panics when there are not so many.
    pub fn get(&self, number: u64) -> CrashState {
        assert!(number < self.total, "there are {} states, none of them is number {number}", self.total);
        let naming = &self.namings[self.namings.partition_point(|naming| naming.first <= number) - 1];
        let mut rest = number - naming.first;
        let mut picks = naming.picks.clone();
        let mut files = BTreeMap::new();
        for key in &naming.names.files {
            let fates = &self.fates[key];
            let fate = &fates[(rest % fates.len() as u64) as usize];
            rest /= fates.len() as u64;
            picks.extend_from_slice(&fate.picks);
            files.insert(key.0, fate.file.clone());
        }
        CrashState { picks, disk: self.disk.assemble(naming.names.dirs.clone(), files, VecDeque::new()) }
    }
}

impl Iterator for CrashStates {
    type Item = CrashState;

    fn next(&mut self) -> Option<CrashState> {
        if self.next == self.total {
            return None;
        }
        self.next += 1;
        Some(self.get(self.next - 1))
    }
}

impl SimDisk {
    /// Power fails: the disk becomes one of those that may be left. What was submitted and not executed is lost, every
    /// file is closed, and of what no force covers `choices` decides.
    pub fn crash(&mut self, choices: &mut dyn Choices) {
        *self = self.survive(Alphabet::Wide, choices);
    }

    /// Every disk that a power loss may leave now, in the fixed alphabet: for each dirty sector old, each unforced
    /// version, zero, shorn, one garbage pattern and one stale content, as far as the profile allows them; times the
    /// lengths; times the names. Files do not depend on each other.
    ///
    /// # Errors
    /// When there are more than `bound`; nothing is sampled quietly.
    pub fn crash_states(&self, bound: u64) -> Result<CrashStates, TooMany> {
        let too_many = |reason| TooMany { bound, reason };
        let mut namings = Vec::new();
        let mut fates = BTreeMap::new();
        let mut total: u64 = 0;
        let mut seen = BTreeSet::new();
        let mut enumerator = Enumerator::default();
        for runs in 1.. {
            if runs > bound {
                return Err(too_many(format!("{} unforced operations on names", self.unforced_names().len())));
            }
            let names = self.surviving_names(Alphabet::Fixed, &mut enumerator);
            if seen.insert(names.key()) {
                let mut product: u64 = 1;
                for (ino, floor) in &names.files {
                    let of_file = match fates.entry((*ino, *floor)) {
                        Entry::Occupied(known) => known.into_mut(),
                        Entry::Vacant(unknown) => {
                            let path = names.path(*ino);
                            unknown.insert(self.file_fates(*ino, *floor, bound, &path).map_err(too_many)?)
                        }
                    };
                    product = product.saturating_mul(of_file.len() as u64);
                }
                namings.push(Naming { picks: enumerator.picks(), names, first: total });
                total = total.saturating_add(product);
            }
            if total > bound {
                let names = &namings.last().expect("one was pushed").names;
                let dirty: usize = names.files.iter().map(|(ino, _)| self.files[ino].dirty_sectors().count()).sum();
                let files = names.files.iter().filter(|(ino, _)| !self.files[ino].is_settled()).count();
                let names = self.unforced_names().len();
                let reason = format!("{dirty} dirty sectors in {files} files, {names} unforced operations on names");
                return Err(too_many(reason));
            }
            if !enumerator.advance() {
                break;
            }
        }
        let disk = self.assemble(BTreeMap::new(), BTreeMap::new(), VecDeque::new());
        Ok(CrashStates { disk, namings, fates, total, next: 0 })
    }

    /// One of the [`SimDisk::crash_states`] again, with the decisions that lead to it in words.
    pub fn crash_state(&self, picks: &[usize]) -> (SimDisk, Vec<Decision>) {
        let mut recorder = Recorder::new(Replay::new(picks));
        let disk = self.survive(Alphabet::Fixed, &mut recorder);
        (disk, recorder.decisions)
    }

    /// Everything that may become of one file, each content once.
    fn file_fates(&self, ino: Ino, floor: u64, bound: u64, path: &LazyPath<'_>) -> Result<Vec<FileFate>, String> {
        let file = &self.files[&ino];
        if file.overflowed() {
            return Err(format!("{path} was overwritten too often without a force"));
        }
        if self.count_file(file, floor) > bound {
            return Err(format!("{} dirty sectors in {path}", file.dirty_sectors().count()));
        }
        let mut fates = Vec::new();
        let mut seen = BTreeSet::new();
        let mut enumerator = Enumerator::default();
        loop {
            let survivor = self.surviving_file(file, floor, Alphabet::Fixed, &mut enumerator, path);
            if seen.insert(survivor.hash()) {
                fates.push(FileFate { picks: enumerator.picks(), file: survivor });
            }
            if !enumerator.advance() {
                return Ok(fates);
            }
        }
    }

    fn count_file(&self, file: &File, floor: u64) -> u64 {
        let unit = self.unit();
        let lengths = file.length_options(self.options.profile, unit, floor);
        let with_length = |survived: &LengthOption| {
            let sectors = file.dirty_sectors().filter(|index| index * unit < survived.length);
            let counts = sectors.map(|index| self.sector_options(file, index, *survived, Alphabet::Fixed).len() as u64);
            counts.fold(1, u64::saturating_mul)
        };
        lengths.iter().map(with_length).fold(0, u64::saturating_add)
    }

    fn survive(&self, alphabet: Alphabet, choices: &mut dyn Choices) -> SimDisk {
        let names = self.surviving_names(alphabet, choices);
        let mut files = BTreeMap::new();
        for (ino, floor) in &names.files {
            let survivor = self.surviving_file(&self.files[ino], *floor, alphabet, choices, &names.path(*ino));
            files.insert(*ino, survivor);
        }
        let mut removed = VecDeque::new();
        if alphabet == Alphabet::Wide {
            let lost = self.files.iter().filter(|(ino, _)| !files.contains_key(ino)).map(|(_, file)| file);
            removed.extend(self.removed.iter().chain(lost).cloned());
            removed.drain(..removed.len().saturating_sub(REMOVED_MAX));
        }
        self.assemble(names.dirs, files, removed)
    }

    fn assemble(
        &self,
        dirs: BTreeMap<Ino, Arc<Dir>>,
        files: BTreeMap<Ino, Arc<File>>,
        removed: VecDeque<Arc<File>>,
    ) -> SimDisk {
        SimDisk {
            options: self.options.clone(),
            dirs,
            files,
            dirty_dirs: Default::default(),
            root_is_durable: true,
            handles: BTreeMap::new(),
            pending: Vec::new(),
            seq: self.seq,
            ino_next: self.ino_next,
            removed,
            damaged: self.damaged,
            lying: self.lying,
        }
    }

    pub(super) fn surviving_names(&self, alphabet: Alphabet, choices: &mut dyn Choices) -> SurvivingNames {
        let mut names = SurvivingNames::default();
        let kept_or_lost = |picked: usize| ["kept", "lost"][picked].to_owned();
        if !self.root_is_durable && pick(choices, 2, format_args!("the data directory itself"), &kept_or_lost) == 1 {
            names.dirs.insert(ROOT, Arc::new(Dir::default()));
            return names;
        }
        let journal = self.unforced_names();
        let keep = match self.options.profile.names {
            Names::Independent if alphabet == Alphabet::Wide && journal.len() > 1 => {
                let styles = ["all kept", "each by itself", "all lost"];
                let asked = format_args!("{} unforced operations on names", journal.len());
                match pick(choices, styles.len(), asked, &|picked| styles[picked].to_owned()) {
                    0 => Keep::Until(u64::MAX),
                    1 => Keep::Each,
                    _ => Keep::Until(0),
                }
            }
            Names::Independent => Keep::Each,
            Names::Queue | Names::QueueByInode => {
                let asked = format_args!("the journal of {} operations on names", journal.len());
                let lost = pick(choices, journal.len() + 1, asked, &|lost| format!("the last {lost} lost"));
                Keep::Until((journal.len() - lost).checked_sub(1).map_or(0, |last| journal[last]))
            }
        };
        let mut walk = NamesWalk { disk: self, choices, keep, names, floors: BTreeMap::new() };
        walk.dir(ROOT);
        walk.names
    }

    /// The numbers of the pending operations on names, in order.
    fn unforced_names(&self) -> Vec<u64> {
        let journals = self.dirty_dirs.iter().flat_map(|ino| self.dirs[ino].journal());
        let pending = journals.filter(|op| op.status == Status::Pending);
        let mut numbers: Vec<u64> = pending.map(|op| op.seq).collect();
        numbers.sort_unstable();
        numbers
    }

    fn surviving_file(
        &self,
        file: &Arc<File>,
        floor: u64,
        alphabet: Alphabet,
        choices: &mut dyn Choices,
        path: &LazyPath<'_>,
    ) -> Arc<File> {
        let forget = alphabet == Alphabet::Fixed && file.has_past();
        if file.is_settled() && !forget {
            return file.clone();
        }
        let (profile, unit) = (self.options.profile, self.unit());
        let lengths = file.length_options(profile, unit, floor);
        let bytes = |length: u64| format!("{length} bytes");
        let survived = match alphabet {
            Alphabet::Fixed => {
                let asked = format_args!("length of {path}");
                lengths[pick(choices, lengths.len(), asked, &|picked| bytes(lengths[picked].length))]
            }
            Alphabet::Wide => file.any_length(profile, floor, &mut |n| {
                pick(choices, n, format_args!("length of {path}"), &|away| format!("{away} back from the newest"))
            }),
        };
        let dirty: Vec<u64> = file.dirty_sectors().filter(|index| index * unit < survived.length).collect();
        let mut style = match alphabet {
            Alphabet::Fixed => Style::Each,
            Alphabet::Wide => Style::choose(choices, path, dirty.len()),
        };
        let mut sectors = Vec::with_capacity(dirty.len());
        for (at, index) in dirty.iter().copied().enumerate() {
            let options = self.sector_options(file, index, survived, alphabet);
            let asked = format_args!("sector {index} of {path}");
            let option = &options[style.next(choices, asked, at, &options)];
            let mut content = option.content.clone();
            if alphabet == Alphabet::Wide && option.fate == Fate::Garbage {
                let asked = format_args!("garbage in sector {index} of {path}");
                let pattern = pick(choices, 1 << 16, asked, &|pattern| format!("pattern {pattern}"));
                content = File::regarble(profile, unit, index, survived.length, option, pattern as u64).or(content);
            }
            sectors.push((index, content));
        }
        Arc::new(file.survive(unit, survived.length, sectors, alphabet == Alphabet::Wide))
    }

    fn sector_options(&self, file: &File, index: u64, survived: LengthOption, alphabet: Alphabet) -> Vec<SectorOption> {
        let mut stale: Vec<Sector> = file.ancestor(index).cloned().into_iter().collect();
        // Where blocks of a removed file are used again, its content may show through: at the same place if possible.
        for removed in self.removed.iter().rev() {
            let sectors = &removed.cached.sectors;
            stale.extend(sectors.get(&index).or_else(|| sectors.values().next()).cloned());
        }
        if alphabet == Alphabet::Fixed {
            stale.truncate(1);
        }
        file.sector_options(self.options.profile, self.unit(), index, survived, &stale)
    }
}

/// Which pending operations on names survive.
enum Keep {
    Each,
    Until(u64),
}

#[derive(Default)]
pub(super) struct SurvivingNames {
    dirs: BTreeMap<Ino, Arc<Dir>>,
    /// Each file that has a name, with the change before which its length can't be older.
    files: Vec<(Ino, u64)>,
}

impl SurvivingNames {
    /// What tells one naming from another.
    fn key(&self) -> impl Ord + use<> {
        let dirs: Vec<(Ino, BTreeMap<String, Ino>)> =
            self.dirs.iter().map(|(ino, dir)| (*ino, dir.cached.clone())).collect();
        (dirs, self.files.clone())
    }

    fn path(&self, ino: Ino) -> LazyPath<'_> {
        LazyPath { dirs: &self.dirs, ino }
    }

    pub(super) fn dirs(&self) -> &BTreeMap<Ino, Arc<Dir>> {
        &self.dirs
    }

    /// Each file that has a name, with the change before which its length can't be older.
    pub(super) fn files(&self) -> &[(Ino, u64)] {
        &self.files
    }

    pub(super) fn walk(&self, dir: Ino, path: &str, visit: &mut dyn FnMut(&str, Ino)) {
        for (name, ino) in &self.dirs[&dir].cached {
            let path = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
            visit(&path, *ino);
            if self.dirs.contains_key(ino) {
                self.walk(*ino, &path, visit);
            }
        }
    }
}

struct NamesWalk<'a, 'c> {
    disk: &'a SimDisk,
    choices: &'c mut dyn Choices,
    keep: Keep,
    names: SurvivingNames,
    floors: BTreeMap<Ino, u64>,
}

impl NamesWalk<'_, '_> {
    fn dir(&mut self, ino: Ino) {
        let dir = &self.disk.dirs[&ino];
        let survivor = if dir.is_settled() { dir.clone() } else { Arc::new(self.decide(ino, dir)) };
        self.names.dirs.insert(ino, survivor.clone());
        for child in survivor.cached.values() {
            if self.disk.dirs.contains_key(child) {
                self.dir(*child);
            } else {
                self.names.files.push((*child, self.floors.get(child).copied().unwrap_or(0)));
            }
        }
    }

    fn decide(&mut self, ino: Ino, dir: &Dir) -> Dir {
        let keeps_length = self.disk.options.profile.replace_keeps_length;
        let entries = dir.survive(|op| {
            let kept = match self.keep {
                Keep::Until(last) if op.status == Status::Pending && !(op.seq > last && self.is_logged(op)) => {
                    op.seq <= last
                }
                _ => {
                    let here = LazyPath { dirs: &self.names.dirs, ino };
                    let asked = format_args!("{}", LazyChange { dir: here, change: &op.change });
                    pick(self.choices, 2, asked, &|picked| ["kept", "lost"][picked].to_owned()) == 0
                }
            };
            if kept && keeps_length && matches!(op.change, Change::Rename { replaces: true, .. }) {
                self.floors.insert(op.change.ino(), op.seq);
            }
            kept
        });
        Dir::settled(entries)
    }

    /// Whether a change of names may survive although earlier ones are lost.
    fn is_logged(&self, op: &NameOp) -> bool {
        let names = self.disk.options.profile.names;
        let of_old = !matches!(op.change, Change::Link { .. }) && self.disk.newly_created(op.change.ino()).is_none();
        names == Names::QueueByInode && of_old
    }
}

/// How the fates of one file's sectors hang together: writes reach the platter in order, in runs, or one by one.
enum Style {
    Same(Fate),
    Each,
    PrefixNew(usize),
    Runs(Fate),
}

impl Style {
    fn choose(choices: &mut dyn Choices, path: &LazyPath<'_>, dirty: usize) -> Style {
        let styles = ["all new", "each by itself", "all old", "the first ones new", "in runs"];
        let n = [0, 2].get(dirty).copied().unwrap_or(styles.len());
        match pick(choices, n, format_args!("dirty sectors of {path}"), &|picked| styles[picked].to_owned()) {
            0 => Style::Same(Fate::New),
            1 => Style::Each,
            2 => Style::Same(Fate::Old),
            3 => {
                let asked = format_args!("new sectors of {path}");
                let lost = pick(choices, dirty + 1, asked, &|lost| format!("all but the last {lost}"));
                Style::PrefixNew(dirty - lost)
            }
            _ => Style::Runs(Fate::New),
        }
    }

    fn next(
        &mut self,
        choices: &mut dyn Choices,
        asked: fmt::Arguments<'_>,
        at: usize,
        options: &[SectorOption],
    ) -> usize {
        let of_fate = |fate| options.iter().position(|option| option.fate == fate).unwrap_or(0);
        let mut one_by_one = || pick(choices, options.len(), asked, &|picked| options[picked].fate.describe());
        match self {
            Style::Same(fate) => of_fate(*fate),
            Style::Each => one_by_one(),
            Style::PrefixNew(kept) => of_fate(if at < *kept { Fate::New } else { Fate::Old }),
            Style::Runs(fate) => {
                // A run goes on three times in four.
                let again = ["as the one before", "as the one before", "as the one before", "another"];
                if pick(choices, again.len(), asked, &|picked| again[picked].to_owned()) == 3 {
                    *fate =
                        options[pick(choices, options.len(), asked, &|picked| options[picked].fate.describe())].fate;
                }
                of_fate(*fate)
            }
        }
    }
}

/// A path that is only looked for when somebody reads the label.
pub(super) struct LazyPath<'a> {
    pub(super) dirs: &'a BTreeMap<Ino, Arc<Dir>>,
    pub(super) ino: Ino,
}

impl LazyPath<'_> {
    fn write(&self, f: &mut fmt::Formatter<'_>, ino: Ino) -> fmt::Result {
        for (dir, entries) in self.dirs {
            if let Some((name, _)) = entries.cached.iter().find(|(_, child)| **child == ino) {
                if *dir != ROOT {
                    self.write(f, *dir)?;
                    f.write_str("/")?;
                }
                return f.write_str(name);
            }
        }
        if ino == ROOT { Ok(()) } else { write!(f, "nameless {ino}") }
    }
}

impl fmt::Display for LazyPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, self.ino)
    }
}

struct LazyChange<'a> {
    dir: LazyPath<'a>,
    change: &'a Change,
}

impl fmt::Display for LazyChange<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.change.describe(&self.dir.to_string()))
    }
}
