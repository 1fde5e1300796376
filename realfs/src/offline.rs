//! A data directory that is looked at and never changed, while no broker runs.
//!
//! What is found in it is for the core to say: this carries out what
//! [`Inspector`](plimsoll_core::log::recovery::Inspector) asks for, one read after the other.

use crate::disk::calls::{self, Reading, failure};
use plimsoll_core::effect::{Effect, EffectId, FileId, IoError, IoErrorKind, Outcome};
use plimsoll_core::event::{Event, Now};
use plimsoll_core::layout;
use plimsoll_core::log::recovery::{DirectoryFindings, Inspector};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{self, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::collections::{BTreeMap, VecDeque};
use std::io::Read;
use std::path::Path;
use std::time::Instant;

/// An open data directory that no broker uses.
pub(crate) struct Offline {
    root: OwnedFd,
    /// Keeps brokers away while it lives: what they change meanwhile would look like damage.
    _lock: Option<std::fs::File>,
    files: BTreeMap<FileId, String>,
    /// There may be more segments than a process may have descriptors, and the inspector reads one after the other.
    current: Option<(FileId, OwnedFd)>,
}

impl Offline {
    /// Opens it.
    ///
    /// # Errors
    /// One sentence: it is in use, or can't be read.
    pub(crate) fn open(path: &Path) -> Result<Offline, String> {
        let shown = path.display();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = fs::open(path, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::NOENT => format!("{shown} does not exist"),
            Errno::NOTDIR => format!("{shown} is not a directory; for a single file there is plimsoll dump"),
            errno => format!("cannot open {shown}: {}", words(errno)),
        })?;
        let lock = match calls::open_read_only(root.as_fd(), layout::LOCK) {
            Ok(lock) => Some(std::fs::File::from(lock)),
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(format!("cannot open {shown}/{}: {}", layout::LOCK, words(errno))),
        };
        if let Some(mut lock) = lock.as_ref() {
            match fs::flock(lock.as_fd(), FlockOperation::NonBlockingLockShared) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => {
                    let mut holder = String::new();
                    // Only a help: it may be just being written.
                    let _ = lock.read_to_string(&mut holder);
                    let holder = if holder.trim().is_empty() { "another process" } else { holder.trim() };
                    return Err(format!("{shown} is in use by {holder}; stop that first, or look at a copy"));
                }
                Err(errno) => return Err(format!("cannot lock {shown}/{}: {}", layout::LOCK, words(errno))),
            }
        }
        Ok(Offline { root, _lock: lock, files: BTreeMap::new(), current: None })
    }

    /// Lets the core read everything and say what it finds. `progress` is told after each read which file and how
    /// many bytes.
    ///
    /// # Errors
    /// One sentence: it is no data directory, of an unknown format, or can't be read.
    pub(crate) fn inspect(mut self, progress: &mut dyn FnMut(&str, usize)) -> Result<DirectoryFindings, String> {
        let begun = Instant::now();
        let now = || Now { monotonic_ns: u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX), wall_ms: 0 };
        let mut inspector = Inspector::new();
        let mut emitted: Vec<(EffectId, Effect)> = Vec::new();
        let mut waiting = VecDeque::new();
        let mut ended = inspector.handle(now(), Event::Start, &mut emitted);
        loop {
            waiting.extend(emitted.drain(..));
            if let Some(ended) = ended {
                return ended;
            }
            let (id, effect) = waiting.pop_front().ok_or("the inspection waits for nothing; this is a bug")?;
            let Some(result) = self.perform(&effect) else { continue };
            if let (Effect::Read { file, .. }, Ok(Outcome::Read(bytes))) = (&effect, &result) {
                progress(self.files.get(file).map_or("", String::as_str), bytes.len());
            }
            ended = inspector.handle(now(), Event::Completed { id, result }, &mut emitted);
        }
    }

    /// `None`: an effect without a completion.
    fn perform(&mut self, effect: &Effect) -> Option<Result<Outcome, IoError>> {
        Some(match effect {
            Effect::List { dir } => match calls::list(self.root.as_fd(), dir) {
                Ok(entries) => Ok(Outcome::Listed(entries)),
                Err(errno) => Err(failure("list", if dir.is_empty() { "." } else { dir }, errno)),
            },
            Effect::Open { file, path } => {
                self.files.insert(*file, path.clone());
                self.descriptor(*file)
                    .and_then(|fd| calls::length(fd.as_fd()).map_err(|errno| failure("open", path, errno)))
                    .map(|length| Outcome::Opened { length })
            }
            Effect::Read { file, position, length } => {
                let reading = Reading::new(*position, *length);
                let path = self.files.get(file).cloned().unwrap_or_default();
                self.descriptor(*file)
                    .and_then(|fd| reading.wait_for_all(fd.as_fd()).map_err(|errno| failure("read", path, errno)))
                    .map(Outcome::Read)
            }
            Effect::CloseFile { file } => {
                self.files.remove(file);
                self.current.take_if(|(current, _)| current == file);
                return None;
            }
            Effect::Report(_) => return None,
            other => Err(IoError {
                kind: IoErrorKind::Other,
                detail: format!("refused, because nothing may be changed: {other:?}"),
            }),
        })
    }

    fn descriptor(&mut self, file: FileId) -> Result<&OwnedFd, IoError> {
        if self.current.as_ref().is_none_or(|(current, _)| *current != file) {
            let path = self.files.get(&file).map_or("", String::as_str);
            let fd = calls::open_read_only(self.root.as_fd(), path).map_err(|errno| failure("open", path, errno))?;
            self.current = Some((file, fd));
        }
        Ok(&self.current.as_ref().expect("just opened").1)
    }
}

fn words(errno: Errno) -> String {
    std::io::Error::from(errno).to_string()
}
