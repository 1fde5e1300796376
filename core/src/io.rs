//! Emitting effects and waiting for their completions.
//!
//! Long sequences (recovery, roll, anchoring, replacing a group file) are written as `async` functions, so that
//! they read top-down like the crash stories that they prevent. There is no runtime: the broker polls a task
//! when a completion for it has come, with a waker that does nothing. Between two `await`s nothing happens, and a
//! power loss may fall at every one of them.

use crate::effect::{DirEntry, Effect, EffectId, Effects, FileId, IoError, IoErrorKind, Outcome};
use crate::event::Now;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use core::cell::RefCell;
use core::future::{Future, poll_fn};
use core::pin::Pin;
use core::task::{Context, Poll, Waker};

/// What an effect ended with.
pub(crate) type IoResult<T = Outcome> = Result<T, IoError>;

/// Names a running task.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct TaskId(pub(crate) u64);

/// Names a topic in memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct TopicId(pub(crate) usize);

/// Who waits for the completion of an effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    /// Nobody decides anything by it.
    Nobody,
    /// A task.
    Task(TaskId),
    /// A topic: a write of frames.
    Write(TopicId),
    /// A topic: a force of the active segment.
    Force(TopicId),
    /// A topic: a write of the running slot.
    Slot(TopicId),
    /// A topic: a chunk of space ahead.
    Reserve(TopicId),
    /// The broker: the ballast was given back.
    BallastRemoved,
}

#[derive(Default)]
struct Shared {
    now: Now,
    next_effect: u64,
    next_file: u64,
    outbox: Vec<(EffectId, Effect)>,
    owners: BTreeMap<EffectId, Owner>,
    results: BTreeMap<EffectId, IoResult>,
    #[cfg(feature = "planted")]
    planted: Option<crate::planted::Planted>,
}

/// Emits effects on behalf of one owner.
#[derive(Clone)]
pub(crate) struct Io {
    shared: Rc<RefCell<Shared>>,
    owner: Owner,
}

impl Io {
    pub(crate) fn new() -> Io {
        Io { shared: Rc::default(), owner: Owner::Nobody }
    }

    /// The same, with completions going to `owner`.
    pub(crate) fn owned_by(&self, owner: Owner) -> Io {
        Io { shared: self.shared.clone(), owner }
    }

    pub(crate) fn now(&self) -> Now {
        self.shared.borrow().now
    }

    pub(crate) fn set_now(&self, now: Now) {
        self.shared.borrow_mut().now = now;
    }

    #[cfg(feature = "planted")]
    pub(crate) fn plant(&self, bug: Option<crate::planted::Planted>) {
        self.shared.borrow_mut().planted = bug;
    }

    #[cfg(feature = "planted")]
    pub(crate) fn planted(&self) -> Option<crate::planted::Planted> {
        self.shared.borrow().planted
    }

    /// A fresh file id.
    pub(crate) fn file_id(&self) -> FileId {
        let mut shared = self.shared.borrow_mut();
        shared.next_file += 1;
        FileId(shared.next_file)
    }

    /// A number that was never given before in the life of this process.
    pub(crate) fn unique(&self) -> u64 {
        let mut shared = self.shared.borrow_mut();
        shared.next_effect += 1;
        shared.next_effect
    }

    /// Emits an effect that has no completion.
    pub(crate) fn tell(&self, effect: Effect) {
        let mut shared = self.shared.borrow_mut();
        shared.next_effect += 1;
        let id = EffectId(shared.next_effect);
        shared.outbox.push((id, effect));
    }

    /// Emits an effect on the disk; its completion goes to the owner.
    pub(crate) fn start(&self, effect: Effect) -> EffectId {
        let mut shared = self.shared.borrow_mut();
        shared.next_effect += 1;
        let id = EffectId(shared.next_effect);
        shared.outbox.push((id, effect));
        let owner = self.owner;
        shared.owners.insert(id, owner);
        id
    }

    /// Hands what was emitted to the backend, in order.
    pub(crate) fn drain(&self, effects: &mut dyn Effects) {
        let outbox = core::mem::take(&mut self.shared.borrow_mut().outbox);
        for (id, effect) in outbox {
            effects.emit(id, effect);
        }
    }

    /// Whose completion this is; a task's result is kept for it. `None`: nobody emitted it, or it completed already.
    pub(crate) fn complete(&self, id: EffectId, result: IoResult) -> Option<(Owner, Option<IoResult>)> {
        let mut shared = self.shared.borrow_mut();
        let owner = shared.owners.remove(&id)?;
        if let Owner::Task(_) = owner {
            shared.results.insert(id, result);
            return Some((owner, None));
        }
        Some((owner, Some(result)))
    }

    /// Waits for the completion of an effect that this owner, a task, has started.
    pub(crate) async fn wait(&self, id: EffectId) -> IoResult {
        poll_fn(|_| match self.shared.borrow_mut().results.remove(&id) {
            Some(result) => Poll::Ready(result),
            None => Poll::Pending,
        })
        .await
    }

    /// Emits an effect and waits for it.
    pub(crate) async fn call(&self, effect: Effect) -> IoResult {
        let id = self.start(effect);
        self.wait(id).await
    }

    pub(crate) async fn list(&self, dir: &str) -> IoResult<Vec<DirEntry>> {
        match self.call(Effect::List { dir: dir.into() }).await? {
            Outcome::Listed(entries) => Ok(entries),
            other => Err(surprise(&other)),
        }
    }

    pub(crate) async fn create(&self, path: String) -> IoResult<FileId> {
        let file = self.file_id();
        self.call(Effect::Create { file, path }).await?;
        Ok(file)
    }

    /// Opens a file; says its length too.
    pub(crate) async fn open(&self, path: String) -> IoResult<(FileId, u64)> {
        let file = self.file_id();
        match self.call(Effect::Open { file, path }).await? {
            Outcome::Opened { length } => Ok((file, length)),
            other => Err(surprise(&other)),
        }
    }

    pub(crate) fn close(&self, file: FileId) {
        self.tell(Effect::CloseFile { file });
    }

    pub(crate) async fn wait_read(&self, id: EffectId) -> IoResult<Bytes> {
        match self.wait(id).await? {
            Outcome::Read(bytes) => Ok(bytes),
            other => Err(surprise(&other)),
        }
    }

    pub(crate) async fn read(&self, file: FileId, position: u64, length: u32) -> IoResult<Bytes> {
        let id = self.start(Effect::Read { file, position, length });
        self.wait_read(id).await
    }

    pub(crate) async fn write(&self, file: FileId, position: u64, bytes: Bytes) -> IoResult<()> {
        self.call(Effect::Write { file, position, bytes }).await.map(|_| ())
    }

    /// Forces a file of which every write has been waited for. One that failed for want of room was told, and done again or
    /// given up: the force that meets its mark was not tried, and clears the mark.
    pub(crate) async fn force(&self, file: FileId) -> IoResult<()> {
        match self.call(Effect::Force { file }).await {
            Err(error) if error.kind == IoErrorKind::AfterFailedWrite => self.call(Effect::Force { file }).await,
            forced => forced,
        }
        .map(|_| ())
    }

    pub(crate) async fn force_dir(&self, dir: &str) -> IoResult<()> {
        self.call(Effect::ForceDir { dir: dir.into() }).await.map(|_| ())
    }

    pub(crate) async fn rename(&self, from: &str, to: &str) -> IoResult<()> {
        self.call(Effect::Rename { from: from.into(), to: to.into() }).await.map(|_| ())
    }

    /// Removes a name; that it is gone already is no failure.
    pub(crate) async fn remove(&self, path: &str) -> IoResult<()> {
        match self.call(Effect::Remove { path: path.into() }).await {
            Err(error) if error.kind != IoErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Makes a directory; that it is there already is no failure.
    pub(crate) async fn make_dir(&self, path: &str) -> IoResult<()> {
        match self.call(Effect::MakeDir { path: path.into() }).await {
            Err(error) if error.kind != IoErrorKind::Exists => Err(error),
            _ => Ok(()),
        }
    }
}

fn surprise(outcome: &Outcome) -> IoError {
    IoError { kind: IoErrorKind::Other, detail: alloc::format!("the backend answered {outcome:?}") }
}

/// A sequence in progress. `T` is what the broker is told at its end.
pub(crate) type Task<T> = Pin<Box<dyn Future<Output = T>>>;

/// Polls a task once.
pub(crate) fn poll<T>(task: &mut Task<T>) -> Option<T> {
    match task.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}
