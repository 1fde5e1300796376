//! Effects on files and directories, carried out on Linux. Decides only where and when work runs, never what it means.
//!
//! The contract is the one of [`plimsoll_core::effect`]. It is kept like this:
//!
//! - Each file has a queue. Writes leave it one at a time; a force leaves it when the writes before it are done,
//!   and the writes behind it go on while the force runs.
//! - Each directory has a queue for its names, one at a time.
//! - Small writes, and reads that the page cache can answer, run at once in the calling thread: handing them over costs
//!   more than doing them. Everything else runs on a few threads, so that forces of different files run side by side.
//!
//! # Descriptors
//!
//! There may be more open files than the process may have descriptors, so a descriptor is a cache: the least recently
//! used file loses its own and gets one again by its path. Two kinds of files never lose it:
//! - One with unforced writes. Linux reports a failed write-back at the next force of a descriptor that was open at
//!   that time; without one the failure can be forgotten together with the inode, and a force would answer "done" for
//!   bytes that are gone. When there are none but such files, one is forced first, and the failure of that is kept for
//!   the force that the broker will ask for.
//! - One whose name was removed or given to another file: the path no longer leads to it.
//!
//! Where all are in use, work waits for a descriptor that other work will free, and fails only when there is none such.

pub(crate) mod calls;
mod pool;

use bytes::Bytes;
use calls::{Reading, failure};
use plimsoll_core::effect::{Effect, EffectId, FileId, IoError, IoErrorKind, Outcome};
use pool::{Class, Pool};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Writes up to this run in the calling thread: copying 256 KiB into pages that exist takes some 30 µs, a thread's turn
/// as long (measured).
const INLINE_WRITE_BYTES: usize = 256 << 10;
/// The same for zeros, which go into pages that do not exist yet and cost five times as much.
const INLINE_RESERVE_BYTES: u64 = 32 << 10;
/// Reads up to this try the page cache in the calling thread.
const INLINE_READ_BYTES: u32 = 1 << 20;
/// A force may run in the calling thread while the recent ones took less than this.
const INLINE_FORCE: Duration = Duration::from_millis(1);

/// A completed effect: its id and how it ended.
pub type Completion = (EffectId, Result<Outcome, IoError>);

/// The data directory and all that is open in it.
pub struct Disk {
    root: Arc<OwnedFd>,
    shown: Arc<Path>,
    files: BTreeMap<FileId, File>,
    /// The path of every open file, to find those that a rename is about.
    names: BTreeSet<(String, FileId)>,
    /// The directories that have work on their names.
    dirs: BTreeMap<String, Names>,
    descriptors: Descriptors,
    /// Who needs a descriptor that another's work will free.
    waiting: VecDeque<Waiting>,
    pool: Pool<Finished>,
    finished: VecDeque<Finished>,
    completed: VecDeque<Completion>,
    warmed: Vec<u64>,
    /// How many jobs the threads have.
    out: usize,
    forces: Forces,
}

enum Waiting {
    File(FileId),
    Dir(String),
}

/// Where the next force runs.
struct Forces {
    /// Set by [`Disk::set_lone`].
    lone: bool,
    /// The one force that waits for [`Disk::run_deferred`].
    deferred: Option<FileId>,
    /// How long forces take, smoothed.
    mean: Duration,
}

/// The cache of descriptors.
struct Descriptors {
    open: usize,
    /// How many there may be.
    limit: usize,
    /// Files that may lose theirs, by when they were used.
    idle: BTreeMap<u64, FileId>,
    clock: u64,
}

/// One file that the broker has open.
struct File {
    path: String,
    fd: Option<Arc<OwnedFd>>,
    /// Its `Create` or `Open` has not ended.
    opening: bool,
    /// Renames of it, or of a directory above it, that have not ended. Until then its path may be either.
    renames: usize,
    /// Its name was removed or given away.
    nameless: bool,
    close: Option<EffectId>,
    queue: VecDeque<(EffectId, Work)>,
    /// A thread has a write of it.
    writing: bool,
    /// How many reads of it the threads have.
    reading: usize,
    /// Forces whose writes are done. One runs at a time: of two at once, either might get the error that the kernel
    /// reports only once, and the other would answer "done" for the same bytes.
    forces: VecDeque<EffectId>,
    forcing: bool,
    /// Counts what changed the file, and how far forces have covered that.
    changes: u64,
    forced: u64,
    /// A write failed: the next force fails too.
    write_failed: bool,
    /// The failure of a force that only the descriptor cache asked for: the next force fails with it.
    force_failed: Option<IoError>,
    used: u64,
    in_idle: bool,
    waiting: bool,
}

/// Work on a file, in its queue.
enum Work {
    Read { position: u64, length: u32 },
    Write { position: u64, bytes: Bytes },
    Reserve { position: u64, length: u64 },
    Truncate { length: u64 },
    Force,
}

/// Work on the names of one directory.
#[derive(Default)]
struct Names {
    queue: VecDeque<(EffectId, NameWork)>,
    running: bool,
    waiting: bool,
}

#[derive(Clone)]
enum NameWork {
    List,
    MakeDir(String),
    Create(FileId, String),
    Open(FileId, String),
    Force,
    Rename { from: String, to: String, moved: Vec<FileId> },
    Remove(String),
    RemoveDir(String),
}

/// What a thread brings back.
enum Finished {
    Write { file: FileId, effect: EffectId, result: Result<(), IoError> },
    Read { file: FileId, effect: EffectId, result: Result<Bytes, IoError> },
    Force { file: FileId, effect: EffectId, changes: u64, took: Duration, result: Result<(), IoError> },
    Name { dir: String, effect: EffectId, work: NameWork, result: Result<(Outcome, Option<OwnedFd>), IoError> },
    Warm { token: u64 },
}

impl Disk {
    /// Takes over an open data directory.
    ///
    /// `shown` is its path in messages. At most `descriptors` are kept open for files, where that is possible.
    /// `wake` rouses the caller from a sleep before which [`Disk::fall_asleep`] said `true`.
    ///
    /// # Errors
    /// When the threads can't be started.
    pub fn new(
        root: OwnedFd,
        shown: Arc<Path>,
        threads: usize,
        descriptors: usize,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> std::io::Result<Disk> {
        Ok(Disk {
            root: Arc::new(root),
            shown,
            files: BTreeMap::new(),
            names: BTreeSet::new(),
            dirs: BTreeMap::new(),
            descriptors: Descriptors { open: 0, limit: descriptors.max(1), idle: BTreeMap::new(), clock: 0 },
            waiting: VecDeque::new(),
            pool: Pool::start(threads, wake)?,
            finished: VecDeque::new(),
            completed: VecDeque::new(),
            warmed: Vec::new(),
            out: 0,
            forces: Forces { lone: false, deferred: None, mean: Duration::ZERO },
        })
    }

    /// Takes an effect on the disk. Its completion comes from [`Disk::next_completion`], also when it is done already.
    pub fn submit(&mut self, id: EffectId, effect: Effect) {
        match effect {
            Effect::List { dir } => self.queue_name(id, dir, NameWork::List),
            Effect::ForceDir { dir } => self.queue_name(id, dir, NameWork::Force),
            Effect::MakeDir { path } => self.queue_name(id, parent(&path), NameWork::MakeDir(path)),
            Effect::Remove { path } => self.queue_name(id, parent(&path), NameWork::Remove(path)),
            Effect::RemoveDir { path } => self.queue_name(id, parent(&path), NameWork::RemoveDir(path)),
            Effect::Rename { from, to } => {
                self.queue_name(id, parent(&from), NameWork::Rename { from, to, moved: Vec::new() });
            }
            Effect::Create { file, path } => {
                self.add_file(file, &path);
                self.queue_name(id, parent(&path), NameWork::Create(file, path));
            }
            Effect::Open { file, path } => {
                self.add_file(file, &path);
                self.queue_name(id, parent(&path), NameWork::Open(file, path));
            }
            Effect::CloseFile { file } => match self.files.get_mut(&file) {
                Some(open) => {
                    open.close = Some(id);
                    self.settle(file);
                }
                None => self.completed.push_back((id, Err(not_open("close", file)))),
            },
            Effect::Read { file, position, length } => self.queue_work(id, file, Work::Read { position, length }),
            Effect::Write { file, position, bytes } => self.queue_work(id, file, Work::Write { position, bytes }),
            Effect::Reserve { file, position, length } => self.queue_work(id, file, Work::Reserve { position, length }),
            Effect::Truncate { file, length } => self.queue_work(id, file, Work::Truncate { length }),
            Effect::Force { file } => self.queue_work(id, file, Work::Force),
            Effect::Reply { .. }
            | Effect::SetReading { .. }
            | Effect::Disconnect { .. }
            | Effect::Report(_)
            | Effect::Halt(_)
            | Effect::Stopped => unreachable!("not an effect on the disk: {effect:?}"),
        }
    }

    /// The next effect that has ended.
    pub fn next_completion(&mut self) -> Option<Completion> {
        self.completed.pop_front()
    }

    /// Whether [`Disk::next_completion`] has something.
    pub fn has_completions(&self) -> bool {
        !self.completed.is_empty()
    }

    /// Takes in what the threads have finished, and starts what waited for it.
    pub fn collect(&mut self) {
        if self.out == 0 {
            return;
        }
        self.pool.collect(&mut self.finished);
        while let Some(finished) = self.finished.pop_front() {
            self.out -= 1;
            match finished {
                Finished::Write { file, effect, result } => {
                    self.end_write(file, effect, result);
                    self.pump(file);
                }
                Finished::Read { file, effect, result } => {
                    self.change(file, |file| file.reading -= 1);
                    self.completed.push_back((effect, result.map(Outcome::Read)));
                    self.pump(file);
                }
                Finished::Force { file, effect, changes, took, result } => {
                    self.end_force(file, effect, changes, took, result);
                }
                Finished::Name { dir, effect, work, result } => self.end_name(dir, effect, work, result),
                Finished::Warm { token } => self.warmed.push(token),
            }
        }
        self.retry_waiting();
    }

    /// Whether the threads have work.
    #[cfg(feature = "inject")]
    pub(crate) fn is_running(&self) -> bool {
        self.out > 0
    }

    /// Announces that the caller will sleep until the `wake` of [`Disk::new`] is called. `false`: there is something to
    /// do first.
    pub fn fall_asleep(&mut self) -> bool {
        self.completed.is_empty()
            && self.warmed.is_empty()
            && self.forces.deferred.is_none()
            && (self.out == 0 || self.pool.fall_asleep())
    }

    /// Says whether a single client is all there is to serve. Then a force may run in the calling thread, in
    /// [`Disk::run_deferred`], which saves two turns of threads, some 25 µs.
    pub fn set_lone(&mut self, lone: bool) {
        self.forces.lone = lone;
    }

    /// Runs the force that was put off, if there is one. To be called when replies have been sent.
    pub fn run_deferred(&mut self) {
        let Some(id) = self.forces.deferred.take() else { return };
        if !self.forces.lone {
            self.send_force(id);
            return;
        }
        let Some(file) = self.files.get_mut(&id) else { return };
        let (Some(effect), Some(fd)) = (file.forces.pop_front(), file.fd.clone()) else { return };
        let changes = file.changes;
        let begun = Instant::now();
        let result = calls::force(fd.as_fd()).map_err(|errno| failure("fdatasync", self.shown(id), errno));
        self.end_force(id, effect, changes, begun.elapsed(), result);
        self.retry_waiting();
    }

    /// The descriptor of a file, to send from it. It stays usable after the file is closed.
    ///
    /// # Errors
    /// When it had to be opened anew and could not.
    pub fn descriptor_to_send(&mut self, file: FileId) -> Result<Arc<OwnedFd>, IoError> {
        let result = self.descriptor(file, false);
        self.settle(file);
        result?.ok_or_else(|| not_open("send from", file))
    }

    /// Whether a range of a file is in the page cache, as far as a few probes tell, so that sending it will not wait for
    /// the device.
    pub fn is_cached(fd: &OwnedFd, position: u64, length: u64) -> bool {
        calls::is_cached(fd.as_fd(), position, length)
    }

    /// Brings a range of a file into the page cache, in a thread. Then [`Disk::take_warmed`] names the token.
    pub fn warm(&mut self, token: u64, fd: Arc<OwnedFd>, position: u64, length: u32) {
        self.run(Class::Read, move || {
            // A failure shows when the range is sent.
            let _ = Reading::new(position, length).wait_for_all(fd.as_fd());
            Finished::Warm { token }
        });
    }

    /// The tokens of the ranges that [`Disk::warm`] has dealt with since the last call.
    pub fn take_warmed(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.warmed)
    }

    /// Gives up to `count` descriptors back to the process.
    pub fn give_back_descriptors(&mut self, count: usize) {
        for _ in 0..count {
            if !self.close_one() {
                break;
            }
        }
    }
}

// Files.
impl Disk {
    fn add_file(&mut self, id: FileId, path: &str) {
        self.names.insert((path.to_owned(), id));
        let file = File {
            path: path.to_owned(),
            fd: None,
            opening: true,
            renames: 0,
            nameless: false,
            close: None,
            queue: VecDeque::new(),
            writing: false,
            reading: 0,
            forces: VecDeque::new(),
            forcing: false,
            changes: 0,
            forced: 0,
            write_failed: false,
            force_failed: None,
            used: 0,
            in_idle: false,
            waiting: false,
        };
        self.files.insert(id, file);
    }

    fn queue_work(&mut self, id: EffectId, file: FileId, work: Work) {
        match self.files.get_mut(&file) {
            Some(open) => {
                open.queue.push_back((id, work));
                self.pump(file);
            }
            None => self.completed.push_back((id, Err(not_open("use", file)))),
        }
    }

    /// Starts what a file's queue has and nothing holds up.
    fn pump(&mut self, id: FileId) {
        loop {
            let Some(file) = self.files.get_mut(&id) else { return };
            let Some((_, next)) = file.queue.front() else { break };
            let path_unknown = file.opening || (file.fd.is_none() && file.renames > 0);
            let in_order = !matches!(next, Work::Read { .. });
            if path_unknown || (in_order && file.writing) {
                break;
            }
            let fd = self.descriptor(id, true);
            let Some(file) = self.files.get_mut(&id) else { return };
            if let Ok(None) = fd {
                if !std::mem::replace(&mut file.waiting, true) {
                    self.waiting.push_back(Waiting::File(id));
                }
                break;
            }
            let Some((effect, work)) = file.queue.pop_front() else { break };
            match fd {
                Ok(None) => {}
                Ok(Some(fd)) => self.start(id, &fd, effect, work),
                Err(error) => {
                    file.write_failed |= in_order && !matches!(work, Work::Force);
                    self.completed.push_back((effect, Err(error)));
                }
            }
        }
        self.settle(id);
    }

    fn start(&mut self, id: FileId, fd: &Arc<OwnedFd>, effect: EffectId, work: Work) {
        match work {
            Work::Read { position, length } => {
                let mut reading = Reading::new(position, length);
                let cached = if length <= INLINE_READ_BYTES { reading.try_cached(fd.as_fd()) } else { None };
                if let Some(Ok(bytes)) = cached {
                    self.completed.push_back((effect, Ok(Outcome::Read(bytes))));
                    return;
                }
                self.change(id, |file| file.reading += 1);
                let (fd, shown) = (fd.clone(), self.shown(id));
                self.run(Class::Read, move || {
                    let result = reading.wait_for_all(fd.as_fd()).map_err(|errno| failure("read", shown, errno));
                    Finished::Read { file: id, effect, result }
                });
            }
            Work::Force => {
                let Some(file) = self.files.get_mut(&id) else { return };
                if std::mem::take(&mut file.write_failed) {
                    let detail = format!("fdatasync {}: a write before it failed", self.shown(id));
                    let error = IoError { kind: IoErrorKind::AfterFailedWrite, detail };
                    self.completed.push_back((effect, Err(error)));
                } else if let Some(error) = file.force_failed.take() {
                    self.completed.push_back((effect, Err(error)));
                } else {
                    file.forces.push_back(effect);
                    self.start_force(id);
                }
            }
            Work::Write { position, bytes } => {
                let inline = bytes.len() <= INLINE_WRITE_BYTES;
                self.write(id, fd, effect, inline, "write", move |fd| calls::write(fd, position, &bytes));
            }
            Work::Reserve { position, length } => {
                let inline = length <= INLINE_RESERVE_BYTES;
                self.write(id, fd, effect, inline, "write", move |fd| calls::reserve(fd, position, length));
            }
            Work::Truncate { length } => {
                self.write(id, fd, effect, false, "truncate", move |fd| calls::truncate(fd, length));
            }
        }
    }

    fn write(
        &mut self,
        id: FileId,
        fd: &Arc<OwnedFd>,
        effect: EffectId,
        inline: bool,
        operation: &'static str,
        call: impl FnOnce(rustix::fd::BorrowedFd<'_>) -> Result<(), Errno> + Send + 'static,
    ) {
        if inline {
            let result = call(fd.as_fd()).map_err(|errno| failure(operation, self.shown(id), errno));
            self.end_write(id, effect, result);
        } else {
            self.change(id, |file| file.writing = true);
            let (fd, shown) = (fd.clone(), self.shown(id));
            self.run(Class::Commit, move || {
                let result = call(fd.as_fd()).map_err(|errno| failure(operation, shown, errno));
                Finished::Write { file: id, effect, result }
            });
        }
    }

    fn end_write(&mut self, id: FileId, effect: EffectId, result: Result<(), IoError>) {
        self.change(id, |file| {
            file.writing = false;
            // Counted when it has ended: a force that runs beside it must not seem to cover it.
            file.changes += 1;
            file.write_failed |= result.is_err();
        });
        self.completed.push_back((effect, result.map(|()| Outcome::Done)));
    }

    /// Starts the next force of a file, or puts it off for [`Disk::run_deferred`].
    fn start_force(&mut self, id: FileId) {
        let alone = self.forces.lone && self.out == 0 && self.forces.mean < INLINE_FORCE;
        let Some(file) = self.files.get_mut(&id) else { return };
        if file.forcing || file.forces.is_empty() {
            return;
        }
        file.forcing = true;
        match self.forces.deferred.take() {
            None if alone => self.forces.deferred = Some(id),
            deferred => {
                // Two at once are better off side by side.
                if let Some(other) = deferred {
                    self.send_force(other);
                }
                self.send_force(id);
            }
        }
    }

    /// Hands the next force of a file to the threads.
    fn send_force(&mut self, id: FileId) {
        let Some(file) = self.files.get_mut(&id) else { return };
        let (Some(effect), Some(fd)) = (file.forces.pop_front(), file.fd.clone()) else { return };
        let changes = file.changes;
        let shown = self.shown(id);
        self.run(Class::Commit, move || {
            let begun = Instant::now();
            let result = calls::force(fd.as_fd()).map_err(|errno| failure("fdatasync", shown, errno));
            Finished::Force { file: id, effect, changes, took: begun.elapsed(), result }
        });
    }

    fn end_force(&mut self, id: FileId, effect: EffectId, changes: u64, took: Duration, result: Result<(), IoError>) {
        self.forces.mean = (self.forces.mean * 7 + took) / 8;
        self.change(id, |file| {
            file.forcing = false;
            if result.is_ok() {
                file.forced = file.forced.max(changes);
            }
        });
        self.completed.push_back((effect, result.map(|()| Outcome::Done)));
        self.start_force(id);
        self.pump(id);
    }

    fn run(&mut self, class: Class, job: impl FnOnce() -> Finished + Send + 'static) {
        self.out += 1;
        self.pool.run(class, job);
    }

    fn change(&mut self, id: FileId, with: impl FnOnce(&mut File)) {
        if let Some(file) = self.files.get_mut(&id) {
            with(file);
        }
    }

    /// The path of a file, for people.
    fn shown(&self, id: FileId) -> Shown {
        Shown { root: self.shown.clone(), path: self.files.get(&id).map(|file| file.path.clone()).unwrap_or_default() }
    }
}

// Descriptors.
impl Disk {
    /// The descriptor of a file, opened anew when it was given back. `None`, only if it `may_wait`: there is none now, but
    /// work that is under way will free one.
    fn descriptor(&mut self, id: FileId, may_wait: bool) -> Result<Option<Arc<OwnedFd>>, IoError> {
        let may_wait = may_wait && self.is_busy();
        let Some(file) = self.files.get_mut(&id) else { return Err(not_open("use", id)) };
        self.descriptors.clock += 1;
        if file.in_idle {
            self.descriptors.idle.remove(&file.used);
            file.in_idle = false;
        }
        file.used = self.descriptors.clock;
        if let Some(fd) = &file.fd {
            return Ok(Some(fd.clone()));
        }
        if file.nameless {
            return Err(not_open("use", id));
        }
        let path = file.path.clone();
        if !self.make_room() && may_wait {
            return Ok(None);
        }
        loop {
            match calls::open(self.root.as_fd(), &path) {
                Ok(fd) => {
                    let fd = Arc::new(fd);
                    self.descriptors.open += 1;
                    self.change(id, |file| file.fd = Some(fd.clone()));
                    return Ok(Some(fd));
                }
                Err(Errno::MFILE | Errno::NFILE) if self.close_one() => {}
                Err(Errno::MFILE | Errno::NFILE) if may_wait => return Ok(None),
                Err(errno) => return Err(failure("open", self.shown(id), errno)),
            }
        }
    }

    /// Closes until one more descriptor is within the limit. `false`: nothing more can be closed.
    fn make_room(&mut self) -> bool {
        while self.descriptors.open >= self.descriptors.limit {
            if !self.close_one() {
                return false;
            }
        }
        true
    }

    /// Whether something is under way that will be collected.
    fn is_busy(&self) -> bool {
        self.out > 0 || self.forces.deferred.is_some()
    }

    /// Something has ended: whoever waits for a descriptor tries again, in order, until one must go on waiting.
    fn retry_waiting(&mut self) {
        let mut waiting = std::mem::take(&mut self.waiting);
        while self.waiting.is_empty()
            && let Some(next) = waiting.pop_front()
        {
            match next {
                Waiting::File(id) => {
                    self.change(id, |file| file.waiting = false);
                    self.pump(id);
                }
                Waiting::Dir(dir) => {
                    if let Some(names) = self.dirs.get_mut(&dir) {
                        names.waiting = false;
                    }
                    self.pump_names(dir);
                }
            }
        }
        self.waiting.append(&mut waiting);
    }

    /// Takes the descriptor of the least recently used file that can do without.
    fn close_one(&mut self) -> bool {
        let id = match self.descriptors.idle.pop_first() {
            Some((_, id)) => id,
            None => match self.force_one_to_close() {
                Some(id) => id,
                None => return false,
            },
        };
        self.descriptors.open -= 1;
        self.change(id, |file| {
            file.fd = None;
            file.in_idle = false;
        });
        true
    }

    /// All files have unforced writes or work. Forces the least recently used of those without work. Happens only where
    /// the limit is far below the number of topics in use; the calling thread waits for it.
    fn force_one_to_close(&mut self) -> Option<FileId> {
        loop {
            let quiet = self.files.iter_mut().filter(|(_, file)| file.is_quiet() && file.force_failed.is_none());
            let (id, file) = quiet.filter(|(_, file)| file.can_be_reopened()).min_by_key(|(_, file)| file.used)?;
            let id = *id;
            let result = file.fd.as_ref().map(|fd| calls::force(fd.as_fd()))?;
            match result {
                Ok(()) => {
                    file.forced = file.changes;
                    return Some(id);
                }
                Err(errno) => {
                    let error = failure("fdatasync", self.shown(id), errno);
                    self.change(id, |file| file.force_failed = Some(error));
                }
            }
        }
    }

    /// Keeps the descriptors of files of this name, which the path will no longer lead to.
    fn hold_on_to(&mut self, path: &str) {
        for id in self.named(path) {
            // If it can't be opened any more, whoever uses the file next will be told.
            let _ = self.files.get(&id).is_some_and(|file| !file.opening).then(|| self.descriptor(id, false));
            self.change(id, |file| file.nameless = true);
        }
    }

    /// Notes whether a file may lose its descriptor, and closes it where that was asked for and nothing is left to do.
    fn settle(&mut self, id: FileId) {
        let Some(file) = self.files.get_mut(&id) else { return };
        if !file.is_quiet() {
            return;
        }
        if let Some(effect) = file.close {
            if file.in_idle {
                self.descriptors.idle.remove(&file.used);
            }
            if file.fd.is_some() {
                self.descriptors.open -= 1;
            }
            let path = std::mem::take(&mut file.path);
            self.names.remove(&(path, id));
            self.files.remove(&id);
            self.completed.push_back((effect, Ok(Outcome::Done)));
        } else if !file.in_idle && file.can_be_reopened() && file.changes == file.forced && file.force_failed.is_none()
        {
            file.in_idle = true;
            self.descriptors.idle.insert(file.used, id);
        }
    }
}

impl File {
    /// Nothing is queued or under way.
    fn is_quiet(&self) -> bool {
        !self.opening
            && self.renames == 0
            && self.queue.is_empty()
            && !self.writing
            && self.reading == 0
            && !self.forcing
            && self.forces.is_empty()
    }

    /// It has a descriptor and its path leads to it.
    fn can_be_reopened(&self) -> bool {
        self.fd.is_some() && !self.nameless
    }
}

// Names.
impl Disk {
    fn queue_name(&mut self, id: EffectId, dir: impl Into<String>, work: NameWork) {
        let dir = dir.into();
        self.dirs.entry(dir.clone()).or_default().queue.push_back((id, work));
        self.pump_names(dir);
    }

    fn pump_names(&mut self, dir: String) {
        let Some(names) = self.dirs.get(&dir) else { return };
        if names.running || names.waiting {
            return;
        }
        let opens = match names.queue.front() {
            Some((_, work)) => matches!(work, NameWork::Create(..) | NameWork::Open(..)),
            None => {
                self.dirs.remove(&dir);
                return;
            }
        };
        if opens {
            if !self.make_room() && self.is_busy() {
                self.wait_with_names(dir);
                return;
            }
            self.descriptors.open += 1;
        }
        let Some(names) = self.dirs.get_mut(&dir) else { return };
        let Some((effect, mut work)) = names.queue.pop_front() else { return };
        names.running = true;
        match &mut work {
            NameWork::Remove(path) => self.hold_on_to(path),
            NameWork::Rename { from, to, moved } => {
                self.hold_on_to(to);
                *moved = self.below(from);
                for file in moved {
                    self.change(*file, |file| file.renames += 1);
                }
            }
            _ => {}
        }
        self.run_name(dir, effect, work);
    }

    fn wait_with_names(&mut self, dir: String) {
        if let Some(names) = self.dirs.get_mut(&dir) {
            names.waiting = true;
            self.waiting.push_back(Waiting::Dir(dir));
        }
    }

    fn run_name(&mut self, dir: String, effect: EffectId, work: NameWork) {
        let (root, shown) = (self.root.clone(), self.shown.clone());
        self.run(Class::Commit, move || {
            let result = work.run(&root, &dir).map_err(|errno| {
                let (operation, path) = work.described(&dir);
                failure(operation, Shown { root: shown, path: path.to_owned() }, errno)
            });
            Finished::Name { dir, effect, work, result }
        });
    }

    fn end_name(
        &mut self,
        dir: String,
        effect: EffectId,
        work: NameWork,
        result: Result<(Outcome, Option<OwnedFd>), IoError>,
    ) {
        if result.as_ref().is_err_and(|error| error.kind == IoErrorKind::TooManyFiles) {
            if self.close_one() {
                self.run_name(dir, effect, work);
                return;
            }
            if self.is_busy() {
                if let NameWork::Create(..) | NameWork::Open(..) = work {
                    self.descriptors.open -= 1;
                }
                if let Some(names) = self.dirs.get_mut(&dir) {
                    names.running = false;
                    names.queue.push_front((effect, work));
                }
                self.wait_with_names(dir);
                return;
            }
        }
        let (result, fd) = match result {
            Ok((outcome, fd)) => (Ok(outcome), fd),
            Err(error) => (Err(error), None),
        };
        let succeeded = result.is_ok();
        self.completed.push_back((effect, result));
        match work {
            NameWork::Create(file, _) | NameWork::Open(file, _) => self.end_open(file, fd.map(Arc::new)),
            NameWork::Rename { from, to, moved } => {
                for id in moved {
                    self.end_rename(id, &from, &to, succeeded);
                }
            }
            _ => {}
        }
        if let Some(names) = self.dirs.get_mut(&dir) {
            names.running = false;
        }
        self.pump_names(dir);
    }

    fn end_open(&mut self, id: FileId, fd: Option<Arc<OwnedFd>>) {
        let Some(file) = self.files.get_mut(&id) else { return };
        file.opening = false;
        if fd.is_some() {
            file.fd = fd;
            file.used = self.descriptors.clock + 1;
            self.descriptors.clock += 1;
            self.pump(id);
            return;
        }
        // There is no such file: what was emitted for it in the meantime fails.
        self.descriptors.open -= 1;
        let Some(file) = self.files.remove(&id) else { return };
        self.names.remove(&(file.path, id));
        for (effect, _) in file.queue {
            self.completed.push_back((effect, Err(not_open("use", id))));
        }
        if let Some(effect) = file.close {
            self.completed.push_back((effect, Ok(Outcome::Done)));
        }
    }

    fn end_rename(&mut self, id: FileId, from: &str, to: &str, succeeded: bool) {
        let Some(file) = self.files.get_mut(&id) else { return };
        file.renames -= 1;
        if succeeded && let Some(rest) = file.path.strip_prefix(from) {
            let path = format!("{to}{rest}");
            self.names.remove(&(std::mem::replace(&mut file.path, path.clone()), id));
            self.names.insert((path, id));
        }
        self.pump(id);
    }

    /// The open files of exactly this path.
    fn named(&self, path: &str) -> Vec<FileId> {
        let first = (path.to_owned(), FileId(0));
        self.names.range(first..).take_while(|(name, _)| name == path).map(|(_, id)| *id).collect()
    }

    /// The open files of this path, and below it where it is a directory.
    fn below(&self, path: &str) -> Vec<FileId> {
        let mut ids = self.named(path);
        let inside = format!("{path}/");
        let first = (inside.clone(), FileId(0));
        ids.extend(self.names.range(first..).take_while(|(name, _)| name.starts_with(&inside)).map(|(_, id)| *id));
        ids
    }
}

impl NameWork {
    fn run(&self, root: &OwnedFd, dir: &str) -> Result<(Outcome, Option<OwnedFd>), Errno> {
        let root = root.as_fd();
        let done = |()| (Outcome::Done, None);
        match self {
            NameWork::List => Ok((Outcome::Listed(calls::list(root, dir)?), None)),
            NameWork::Force => calls::force_dir(root, dir).map(done),
            NameWork::MakeDir(path) => calls::make_dir(root, path).map(done),
            NameWork::Create(_, path) => Ok((Outcome::Done, Some(calls::create(root, path)?))),
            NameWork::Open(_, path) => {
                let fd = calls::open(root, path)?;
                Ok((Outcome::Opened { length: calls::length(fd.as_fd())? }, Some(fd)))
            }
            NameWork::Rename { from, to, .. } => calls::rename(root, from, to).map(done),
            NameWork::Remove(path) => calls::remove(root, path).map(done),
            NameWork::RemoveDir(path) => calls::remove_dir(root, path).map(done),
        }
    }

    /// The operation and the path for a failure's text.
    fn described<'a>(&'a self, dir: &'a str) -> (&'static str, &'a str) {
        match self {
            NameWork::List => ("list", dir),
            NameWork::Force => ("fsync", dir),
            NameWork::MakeDir(path) => ("mkdir", path),
            NameWork::Create(_, path) => ("create", path),
            NameWork::Open(_, path) => ("open", path),
            NameWork::Rename { to, .. } => ("rename to", to),
            NameWork::Remove(path) => ("remove", path),
            NameWork::RemoveDir(path) => ("rmdir", path),
        }
    }
}

/// A path with the data directory before it, put together only when it is printed.
struct Shown {
    root: Arc<Path>,
    path: String,
}

impl std::fmt::Display for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.path.is_empty() {
            write!(f, "{}", self.root.display())
        } else {
            write!(f, "{}/{}", self.root.display(), self.path)
        }
    }
}

/// The directory that a path's name is in.
fn parent(path: &str) -> String {
    path.rsplit_once('/').map_or_else(String::new, |(dir, _)| dir.to_owned())
}

fn not_open(operation: &str, file: FileId) -> IoError {
    IoError { kind: IoErrorKind::NotFound, detail: format!("{operation} file {}: it is not open", file.0) }
}

#[cfg(test)]
mod tests;
