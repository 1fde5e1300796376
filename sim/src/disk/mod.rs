//! A simulated disk that can lose power.
//!
//! [`SimDisk`] takes the disk's part of [`Effect`] and keeps each one **pending** until a driver executes it, in any
//! order that the contract of [`plimsoll_core::effect`] allows. It keeps apart what the process sees (the page
//! cache), what is durable for sure, and every version of every sector in between; so at any moment it can become any
//! of the disks that a power loss may leave, one of them drawn from a seed ([`SimDisk::crash`]) or all of them
//! ([`SimDisk::crash_states`]). It knows nothing of Plimsoll's log: anything that writes files by these effects can
//! be tested with it.
//!
//! # What can fail, in the model
//!
//! A log must keep its promises through all of this.
//!
//! - **Kill of the process**: pending effects are lost, a write in progress may have been done in part, the cache
//!   stays.
//! - **Power loss**: of what no completed force covers,
//!   - each sector (512 or 4096 bytes) is by itself new, old, an unforced version in between, shorn (first half new),
//!     zero, garbage or stale (what once stood there, or in a removed file); by seed also in runs and prefixes;
//!   - the length grows, or is cut, independently of the data;
//!   - files are independent of each other;
//!   - each creation, rename, removal of a name is kept or lost, later ones kept and earlier ones lost, until its
//!     directory is forced; also a removal that did happen. A file that no surviving name leads to is gone.
//! - **Failed force**: with the cache marked clean, dropped, or reported late ([`FailedForce`]); which of its sectors
//!   were written is open until power fails. A failed `ForceDir` leaves its operations *soft*: the process sees them,
//!   but no later force commits them. That is the harshest reading of a clean directory block after a failed write.
//! - **Failed anything else** ([`Fault`]): nothing done, or done in part, or done in whole; a full disk
//!   ([`Options::capacity_bytes`]).
//! - **Order**: whatever the contract allows, and nothing else.
//!
//! # What can't fail, in the model
//!
//! - What a completed force covers stays, byte for byte. What it covers was fixed when it was submitted.
//! - **Power-safe overwrite**: bytes that are equal in a sector's old and new version survive a torn overwrite. The
//!   profile `posix-torn` drops this.
//! - A rename is old or new, never neither. (ALICE's model of POSIX also has both names gone; no file system was seen
//!   to do that, and it is assumed away.)
//! - A completed `ForceDir` makes its directory's entries durable, under every profile.
//!
//! The [`Profile`]s restrict this to what a file system does: [`POSIX`] (the harshest), [`POSIX_TORN`], [`EXT4`],
//! [`EXT4_WRITEBACK`], [`XFS`], [`BTRFS`]. They restrict names and sectors; what they leave open beyond the measured
//! file system is in favour of more states, never of fewer (the length of one file and the names, say, are not tied
//! to the same journal transaction).
//!
//! # Detect only
//!
//! Bit rot, unreadable sectors, misdirected writes, stale reads, a flush that lied, a person who deletes, cuts or
//! restores files: [`Vandal`]. A log can only notice these, so they are a tier of their own, and a disk that saw one
//! says so ([`SimDisk::is_damaged`]).
//!
//! # Example
//!
//! A toy log that forces its file but forgets to force the directory. The disk finds the power loss that loses it:
//!
//! ```
//! use bytes::Bytes;
//! use plimsoll_core::effect::{Effect, EffectId, FileId};
//! use plimsoll_sim::disk::{Options, POSIX, SimDisk};
//!
//! /// Appends one record to a new log and answers "durable".
//! fn publish(disk: &mut SimDisk, force_dir: bool) {
//!     let file = FileId(1);
//!     let mut protocol = vec![
//!         Effect::Create { file, path: "toy.log".into() },
//!         Effect::Write { file, position: 0, bytes: Bytes::from_static(b"record") },
//!         Effect::Force { file },
//!     ];
//!     if force_dir {
//!         protocol.push(Effect::ForceDir { dir: "".into() });
//!     }
//!     for (id, effect) in (1..).zip(protocol) {
//!         disk.submit(EffectId(id), effect);
//!         disk.execute(EffectId(id), None).expect("no fault was asked for");
//!     }
//! }
//!
//! /// What a reader finds after every possible power loss: the decisions that break the promise, if any do.
//! fn broken(disk: &SimDisk) -> Option<String> {
//!     for state in disk.crash_states(10_000).expect("a small log") {
//!         if state.disk.read_file("toy.log").as_deref() != Some(b"record") {
//!             let (_, decisions) = disk.crash_state(&state.picks);
//!             return Some(decisions.iter().map(|decision| decision.to_string()).collect::<Vec<_>>().join(", "));
//!         }
//!     }
//!     None
//! }
//!
//! let mut disk = SimDisk::new(Options::new(&POSIX));
//! publish(&mut disk, false);
//! assert_eq!(broken(&disk).as_deref(), Some("creation of toy.log: lost"));
//!
//! let mut disk = SimDisk::new(Options::new(&POSIX));
//! publish(&mut disk, true);
//! assert_eq!(broken(&disk), None);
//! ```

mod choices;
mod crash;
mod damage;
mod execute;
mod file;
mod hash;
mod membership;
mod names;
mod profile;
#[cfg(test)]
mod tests;

pub use choices::{Choices, Decision, Enumerator, Recorder, Replay, Seeded};
pub use crash::{CrashState, CrashStates, TooMany};
pub use damage::Vandal;
pub use membership::Tree;
pub use profile::{BTRFS, EXT4, EXT4_WRITEBACK, FailedForce, Names, POSIX, POSIX_TORN, Profile, XFS};

use bytes::Bytes;
use choices::pick;
use crash::LazyPath;
use file::File;
pub(crate) use hash::StateHash;
use names::{Dir, Ino};
use plimsoll_core::effect::{Effect, EffectId, FileId, IoError, IoErrorKind, Outcome};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

const ROOT: Ino = 1;
/// So many removed files may show through as stale content.
const REMOVED_MAX: usize = 4;

/// What kind of disk.
#[derive(Clone, Debug)]
pub struct Options {
    /// What the file system leaves open.
    pub profile: &'static Profile,
    /// 512 or 4096: what the device writes in one piece.
    pub sector_bytes: u32,
    /// A write, creation or directory beyond this finds no space. Counted in whole sectors of files that have a name or
    /// are open. `None`: no end.
    pub capacity_bytes: Option<u64>,
    /// The directory that everything is in was made just now: unless its parent (`".."`) is forced, or the journal
    /// that holds its name, a power loss may take it as a whole.
    pub root_is_new: bool,
}

impl Options {
    /// 512-byte sectors, no end of space, a root that is durable.
    pub fn new(profile: &'static Profile) -> Options {
        Options { profile, sector_bytes: 512, capacity_bytes: None, root_is_new: false }
    }
}

/// What goes wrong when an effect is executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It fails and nothing of it was done. A force fails in the first way of the profile's
    /// [`failed_force`](Profile::failed_force); a directory force leaves its operations soft.
    Error(IoErrorKind),
    /// It fails after a part: the first `bytes` of a write. An effect on names, a cut or a `CloseFile` was done in
    /// whole, and fails all the same. Reads and forces fail as by `Error`.
    Partial {
        /// How it fails.
        kind: IoErrorKind,
        /// How much of a write was done before.
        bytes: u64,
    },
    /// A force fails in this way, with [`IoErrorKind::Other`]. Only for `Force`.
    Force(FailedForce),
}

/// The disk. See the [module](self) for what it does to a log.
///
/// # How it is driven
///
/// 1. [`submit`](SimDisk::submit) each effect on the disk as it is emitted.
/// 2. [`runnable`](SimDisk::runnable) says which may be executed next; the driver picks one, and a fault or none, and
///    [`execute`](SimDisk::execute)s it. When the completion is delivered is the driver's affair.
/// 3. At any moment [`kill`](SimDisk::kill), [`crash`](SimDisk::crash), or clone and crash the clone: a clone shares
///    all content that neither changes.
#[derive(Clone)]
pub struct SimDisk {
    options: Options,
    dirs: BTreeMap<Ino, Arc<Dir>>,
    files: BTreeMap<Ino, Arc<File>>,
    /// Directories with a journal.
    dirty_dirs: BTreeSet<Ino>,
    root_is_durable: bool,
    handles: BTreeMap<FileId, Handle>,
    /// In the order in which they were submitted.
    pending: Vec<Pending>,
    /// Counts submissions; what a force covers are the effects with a lower number.
    seq: u64,
    ino_next: Ino,
    /// Files that lost their name, newest last.
    removed: VecDeque<Arc<File>>,
    damaged: bool,
    lying: bool,
}

#[derive(Clone)]
struct Handle {
    ino: Ino,
    /// The writes that failed and that no force has told of.
    failed_writes: BTreeSet<u64>,
}

#[derive(Clone)]
struct Pending {
    id: EffectId,
    seq: u64,
    effect: Effect,
}

impl SimDisk {
    /// An empty disk. Panics when the sector size is not 512 or 4096.
    pub fn new(options: Options) -> SimDisk {
        assert!(matches!(options.sector_bytes, 512 | 4096), "sectors have 512 or 4096 bytes");
        SimDisk {
            root_is_durable: !options.root_is_new,
            options,
            dirs: BTreeMap::from([(ROOT, Arc::new(Dir::default()))]),
            files: BTreeMap::new(),
            dirty_dirs: BTreeSet::new(),
            handles: BTreeMap::new(),
            pending: Vec::new(),
            seq: 0,
            ino_next: ROOT + 1,
            removed: VecDeque::new(),
            damaged: false,
            lying: false,
        }
    }

    /// What kind of disk it is.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Gives the disk another capacity, as a person does who makes room or takes it.
    pub fn set_capacity(&mut self, bytes: Option<u64>) {
        self.options.capacity_bytes = bytes;
    }

    /// The path that an effect on the disk is about: its own (the new one of a rename), or what `name` says of its file.
    /// `None` for an effect that is not the disk's affair.
    pub fn path_in(effect: &Effect, name: impl FnOnce(FileId) -> String) -> Option<String> {
        match effect {
            Effect::List { dir: path }
            | Effect::MakeDir { path }
            | Effect::Create { path, .. }
            | Effect::Open { path, .. }
            | Effect::ForceDir { dir: path }
            | Effect::Rename { to: path, .. }
            | Effect::Remove { path }
            | Effect::RemoveDir { path } => Some(path.clone()),
            Effect::CloseFile { file }
            | Effect::Read { file, .. }
            | Effect::Write { file, .. }
            | Effect::Reserve { file, .. }
            | Effect::Truncate { file, .. }
            | Effect::Force { file } => Some(name(*file)),
            Effect::Reply { .. }
            | Effect::SetReading { .. }
            | Effect::Disconnect { .. }
            | Effect::Report(_)
            | Effect::Halt(_)
            | Effect::Stopped => None,
        }
    }

    /// Whether an effect is the disk's affair: it will be completed.
    pub fn takes(effect: &Effect) -> bool {
        !matches!(
            effect,
            Effect::Reply { .. }
                | Effect::SetReading { .. }
                | Effect::Disconnect { .. }
                | Effect::Report(_)
                | Effect::Halt(_)
                | Effect::Stopped
        )
    }

    /// Takes an effect. What a force covers is fixed now. Panics for what the disk does not [take](SimDisk::takes).
    pub fn submit(&mut self, id: EffectId, effect: Effect) {
        assert!(SimDisk::takes(&effect), "not an effect on the disk: {effect:?}");
        self.seq += 1;
        self.pending.push(Pending { id, seq: self.seq, effect });
    }

    /// What was submitted and not executed, in the order of submission.
    pub fn pending(&self) -> impl Iterator<Item = (EffectId, &Effect)> {
        self.pending.iter().map(|pending| (pending.id, &pending.effect))
    }

    /// What may be executed next by the contract, in the order of submission. The work on a file begins after the
    /// `Open` or `Create` that names its id, and ends before its `CloseFile`.
    pub fn runnable(&self) -> Vec<EffectId> {
        self.runnable_places().into_iter().map(|at| self.pending[at].id).collect()
    }

    /// Executes an effect that is [runnable](SimDisk::runnable), and says what its completion is to tell.
    ///
    /// # Panics
    /// When the effect is not runnable: then the driver breaks the contract, not the log.
    ///
    /// # Errors
    /// What the fault says, and what a correct disk answers: `NotFound`, `Exists`, `NoSpace`, `AfterFailedWrite`.
    pub fn execute(&mut self, id: EffectId, fault: Option<Fault>) -> Result<Outcome, IoError> {
        let at = self.runnable_places().into_iter().find(|at| self.pending[*at].id == id);
        let pending = self.pending.remove(at.unwrap_or_else(|| panic!("{id:?} is not runnable")));
        self.carry_out(pending.seq, &pending.effect, fault)
    }

    /// Executes everything pending in the order of submission, without faults.
    pub fn execute_all(&mut self) -> Vec<(EffectId, Result<Outcome, IoError>)> {
        let pending = std::mem::take(&mut self.pending);
        pending.iter().map(|pending| (pending.id, self.carry_out(pending.seq, &pending.effect, None))).collect()
    }

    /// The process is killed: what is pending is lost, but a write that was in progress may have been done in part.
    /// Every file is closed. The page cache stays, and with it what no force has covered.
    pub fn kill(&mut self, choices: &mut dyn Choices) {
        for at in self.runnable_places() {
            let Pending { seq, ref effect, .. } = self.pending[at];
            let (file, position, bytes) = match effect {
                Effect::Write { file, position, bytes } => (*file, *position, bytes.clone()),
                Effect::Reserve { file, position, length } => (*file, *position, vec![0; *length as usize].into()),
                _ => continue,
            };
            let Some(ino) = self.handles.get(&file).map(|handle| handle.ino) else { continue };
            let parts = [0, bytes.len() / 2, bytes.len().saturating_sub(1)];
            let path = LazyPath { dirs: &self.dirs, ino };
            let asked = format_args!("write in progress to {path} at {position}");
            let done = parts[pick(choices, parts.len(), asked, &|picked| format!("{} bytes done", parts[picked]))];
            self.write(ino, seq, position, &bytes[..done]);
        }
        self.forget_process();
    }

    /// The bytes of a reply's file range. To be asked for when the reply is emitted: its file may be closed after it.
    ///
    /// # Errors
    /// When the file is not open, or its sectors can't be read.
    pub fn range(&self, file: FileId, position: u64, length: u64) -> Result<Bytes, IoError> {
        let ino = self.handle(file)?.ino;
        self.read(ino, position, length).map(Bytes::from)
    }

    /// The bytes of a file as the process would read them, or `None` where there is none.
    pub fn read_file(&self, path: &str) -> Option<Vec<u8>> {
        let file = self.files.get(&self.find(path).ok()?)?;
        Some(file.read(self.unit(), 0, file.cached.length))
    }

    /// At most `length` bytes of a file from `from` on that no power loss can take any more, if it has a name that none can take:
    /// what stands on the platter. `None` where there is no such file.
    pub fn forced_file(&self, path: &str, from: u64, length: u64) -> Option<Vec<u8>> {
        let file = self.files.get(&self.find_forced(path)?)?;
        Some(file.read_forced(self.unit(), from, length))
    }

    /// The names in a directory that no power loss can take any more. `None` where there is no such directory.
    pub fn forced_names(&self, dir: &str) -> Option<Vec<String>> {
        let dir = self.dirs.get(&self.find_forced(dir)?)?;
        Some(dir.survive(|_| false).into_keys().collect())
    }

    /// At most `length` bytes of a file from `from` on as the process would read them, or `None` where there is none.
    pub fn cached_file(&self, path: &str, from: u64, length: u64) -> Option<Vec<u8>> {
        let file = self.files.get(&self.find(path).ok()?)?;
        Some(file.read(self.unit(), from, length))
    }

    /// The names in a directory as the process sees them. `None` where there is no such directory.
    pub fn cached_names(&self, dir: &str) -> Option<Vec<String>> {
        let dir = self.dirs.get(&self.find(dir).ok()?)?;
        Some(dir.cached.keys().cloned().collect())
    }

    fn find_forced(&self, path: &str) -> Option<Ino> {
        let mut ino = self.root_is_durable.then_some(ROOT)?;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            ino = *self.dirs.get(&ino)?.survive(|_| false).get(name)?;
        }
        Some(ino)
    }

    /// Every path with its bytes (`None`: a directory), as the process would see them.
    pub fn tree(&self) -> Tree {
        let mut tree = Tree::new();
        self.walk(ROOT, "", &mut |path, ino| {
            let file = self.files.get(&ino);
            tree.insert(path.to_owned(), file.map(|file| file.read(self.unit(), 0, file.cached.length)));
        });
        tree
    }

    /// The path under which an open file has its name now; `None` when it has none.
    pub fn path_of(&self, file: FileId) -> Option<String> {
        let ino = self.handles.get(&file)?.ino;
        let mut found = None;
        self.walk(ROOT, "", &mut |path, child| {
            if child == ino {
                found = Some(path.to_owned());
            }
        });
        found
    }

    /// How many bytes a capacity would count.
    pub fn used_bytes(&self) -> u64 {
        let mut live: BTreeSet<Ino> = self.handles.values().map(|handle| handle.ino).collect();
        let mut dirs = vec![ROOT];
        while let Some(dir) = dirs.pop() {
            let children = self.dirs[&dir].cached.values();
            dirs.extend(children.clone().filter(|ino| self.dirs.contains_key(ino)));
            live.extend(children);
        }
        let sectors = live.iter().filter_map(|ino| self.files.get(ino)).map(|file| file.cached.sectors.len() as u64);
        sectors.sum::<u64>() * self.unit()
    }

    /// Whether a [`Vandal`] was at it: then only detection can be asked for.
    pub fn is_damaged(&self) -> bool {
        self.damaged
    }

    /// A hash of everything that can influence what the disk will be, under any future: names, contents, unforced
    /// versions, and the past that may show through; but not of what is pending or open. Two disks out of
    /// [`SimDisk::crash_states`] with equal hashes are the same. The hash is stable between machines and builds.
    pub fn hash(&self) -> u128 {
        let mut hash = StateHash::new();
        hash.wide(self.hash_node(ROOT, &mut BTreeMap::new()));
        hash.number(u64::from(self.root_is_durable) | u64::from(self.lying) << 1 | u64::from(self.damaged) << 2);
        self.removed.iter().for_each(|file| hash.wide(file.hash()));
        hash.finish()
    }

    fn unit(&self) -> u64 {
        u64::from(self.options.sector_bytes)
    }

    fn settle_dirty_dirs(&mut self) {
        let dirs = &self.dirs;
        self.dirty_dirs.retain(|ino| dirs.get(ino).is_some_and(|dir| !dir.is_settled()));
    }

    /// Everything that the process sees becomes durable.
    fn settle_everything(&mut self) {
        for dir in self.dirs.values_mut() {
            *dir = Arc::new(Dir::settled(dir.cached.clone()));
        }
        for file in self.files.values_mut() {
            *file = Arc::new(File::settled(file.cached.clone()));
        }
        self.dirty_dirs.clear();
        self.root_is_durable = true;
    }

    fn forget_process(&mut self) {
        self.pending.clear();
        self.handles.clear();
        for file in self.files.values_mut().filter(|file| file.late_error) {
            // An error that nobody was told of goes with the last descriptor.
            let file = Arc::make_mut(file);
            file.late_error = false;
            file.touched();
        }
        let mentioned: BTreeSet<Ino> = self.dirs.values().flat_map(|dir| dir.mentions()).chain([ROOT]).collect();
        self.dirs.retain(|ino, _| mentioned.contains(ino));
        let dirs = &self.dirs;
        self.dirty_dirs.retain(|ino| dirs.contains_key(ino));
        self.files.retain(|ino, _| mentioned.contains(ino));
    }

    fn read(&self, ino: Ino, position: u64, length: u64) -> Result<Vec<u8>, IoError> {
        let file = &self.files[&ino];
        let mut bytes = file.read(self.unit(), position, length);
        let mut touched = file::sector_range(self.unit(), position, bytes.len() as u64);
        if touched.clone().any(|index| file.unreadable.contains(&index)) {
            return Err(error(IoErrorKind::Other, "unreadable sector", &self.label(ino)));
        }
        if file.stale_read
            && let Some((index, stale)) = touched.find_map(|index| Some((index, file.ancestor(index)?)))
        {
            let start = index * self.unit();
            let from = position.max(start);
            let to = (position + bytes.len() as u64).min(start + self.unit());
            bytes[(from - position) as usize..(to - position) as usize]
                .copy_from_slice(&stale[(from - start) as usize..(to - start) as usize]);
        }
        Ok(bytes)
    }

    fn handle(&self, file: FileId) -> Result<&Handle, IoError> {
        self.handles.get(&file).ok_or_else(|| not_open(file))
    }

    fn file_mut(&mut self, ino: Ino) -> &mut File {
        Arc::make_mut(self.files.get_mut(&ino).expect("a file"))
    }

    fn file_at(&self, path: &str) -> &File {
        let ino = self.find(path).unwrap_or_else(|error| panic!("{error}"));
        self.files.get(&ino).unwrap_or_else(|| panic!("{path} is a directory"))
    }

    fn new_ino(&mut self) -> Ino {
        self.ino_next += 1;
        self.ino_next - 1
    }

    fn find(&self, path: &str) -> Result<Ino, IoError> {
        let mut ino = ROOT;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let dir = self.dirs.get(&ino).ok_or_else(|| error(IoErrorKind::Other, "not a directory", path))?;
            let entry = dir.cached.get(name);
            ino = *entry.ok_or_else(|| error(IoErrorKind::NotFound, "no such file or directory", path))?;
        }
        Ok(ino)
    }

    fn parent_of<'p>(&self, path: &'p str) -> Result<(Ino, &'p str), IoError> {
        let dir = self.find(parent(path))?;
        if !self.dirs.contains_key(&dir) {
            return Err(error(IoErrorKind::Other, "not a directory", parent(path)));
        }
        Ok((dir, base_name(path)))
    }

    fn walk(&self, dir: Ino, path: &str, visit: &mut dyn FnMut(&str, Ino)) {
        for (name, ino) in &self.dirs[&dir].cached {
            let path = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
            visit(&path, *ino);
            if self.dirs.contains_key(ino) {
                self.walk(*ino, &path, visit);
            }
        }
    }

    fn label(&self, ino: Ino) -> String {
        LazyPath { dirs: &self.dirs, ino }.to_string()
    }

    fn hash_node(&self, ino: Ino, known: &mut BTreeMap<Ino, u128>) -> u128 {
        if let Some(known) = known.get(&ino) {
            return *known;
        }
        let hashed = match self.dirs.get(&ino) {
            Some(dir) => {
                let mut hash = StateHash::new();
                dir.hash(&mut hash, &mut |child| self.hash_node(child, known));
                hash.finish()
            }
            None => self.files[&ino].hash(),
        };
        known.insert(ino, hashed);
        hashed
    }
}

fn not_open(file: FileId) -> IoError {
    error(IoErrorKind::Other, "not an open file", &format!("{file:?}"))
}

fn error(kind: IoErrorKind, what: &str, path: &str) -> IoError {
    IoError { kind, detail: format!("{what}: {path}") }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(dir, _)| dir)
}

fn base_name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}
