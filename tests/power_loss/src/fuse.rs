//! The device as a file that the kernel can put a loop device on.

use crate::store::BlockStore;
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyWrite, Request, Session, WriteFlags,
};
use plimsoll_sim::disk::Seeded;
use rustix::mount::UnmountFlags;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

const NAME: &str = "device";
const INODE: INodeNo = INodeNo(2);
/// Nothing that the kernel may remember ever changes.
const FOREVER: Duration = Duration::from_secs(1 << 30);

/// A device that is served. It is gone when this is dropped.
pub struct Served {
    file: PathBuf,
    session: Option<BackgroundSession>,
    late: Arc<Late>,
    answering: Option<JoinHandle<()>>,
}

impl BlockStore {
    /// Serves the device as a file of fixed size in an empty directory, through /dev/fuse. Needs root.
    ///
    /// # Errors
    /// One line that says what is missing.
    pub fn mount(&self, directory: &Path) -> io::Result<Served> {
        let late = Arc::new(Late::default());
        let answering = std::thread::Builder::new().name("late answers".into()).spawn({
            let (store, late) = (self.clone(), Arc::clone(&late));
            move || late.answer(&store)
        })?;
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("power-loss".into())];
        let device = Device { store: self.clone(), late: Arc::clone(&late), since: SystemTime::UNIX_EPOCH };
        // From here on dropping it ends the thread.
        let file = directory.join(NAME);
        let mut served = Served { file, session: None, late, answering: Some(answering) };
        served.session = Some(Session::new(device, directory, &config)?.spawn()?);
        Ok(served)
    }
}

impl Served {
    /// The file.
    pub fn file(&self) -> &Path {
        &self.file
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            // The loop device lets go of the file a moment after its own end.
            let directory = self.file.parent().expect("a file in a directory");
            let patience = std::iter::repeat_n(UnmountFlags::empty(), 100).chain([UnmountFlags::DETACH]);
            patience.into_iter().any(|how| {
                let unmounted = rustix::mount::unmount(directory, how).is_ok();
                if !unmounted {
                    std::thread::sleep(Duration::from_millis(10));
                }
                unmounted
            });
            drop(session);
        }
        self.late.end();
        if let Some(answering) = self.answering.take() {
            let _ = answering.join();
        }
    }
}

/// Writes that wait for their answer.
#[derive(Default)]
struct Late {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Waiting>,
    ended: bool,
}

struct Waiting {
    /// Which write of the log.
    write: usize,
    bytes: u32,
    reply: ReplyWrite,
}

impl Late {
    fn push(&self, waiting: Waiting) {
        self.queue.lock().expect("no panic").waiting.push(waiting);
        self.changed.notify_one();
    }

    fn end(&self) {
        self.queue.lock().expect("no panic").ended = true;
        self.changed.notify_one();
    }

    /// Answers until the end. Which writes a flush overtakes is chance: the kernel's threads don't know it either.
    fn answer(&self, store: &BlockStore) {
        let mut draws = Seeded::new(1, 0);
        loop {
            let mut queue = self.queue.lock().expect("no panic");
            while queue.waiting.is_empty() {
                if queue.ended {
                    return;
                }
                queue = self.changed.wait(queue).expect("no panic");
            }
            drop(queue);
            std::thread::sleep(Duration::from_micros(draws.below(150)));
            let mut now = std::mem::take(&mut self.queue.lock().expect("no panic").waiting);
            draws.shuffle(&mut now);
            let later = now.split_off(now.len() - draws.below(now.len() as u64) as usize);
            for Waiting { write, bytes, reply } in now {
                store.done(write);
                reply.written(bytes);
            }
            self.queue.lock().expect("no panic").waiting.extend(later);
        }
    }
}

struct Device {
    store: BlockStore,
    late: Arc<Late>,
    since: SystemTime,
}

impl Device {
    fn attributes(&self, inode: INodeNo) -> FileAttr {
        let is_dir = inode != INODE;
        let size = if is_dir { 0 } else { self.store.size() };
        FileAttr {
            ino: inode,
            size,
            blocks: size / 512,
            atime: self.since,
            mtime: self.since,
            ctime: self.since,
            crtime: self.since,
            kind: if is_dir { FileType::Directory } else { FileType::RegularFile },
            perm: if is_dir { 0o700 } else { 0o600 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            flags: 0,
            blksize: 4096,
        }
    }
}

impl Filesystem for Device {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Without it the kernel gives one write at a time, and no flush could overtake any.
        config.add_capabilities(InitFlags::FUSE_ASYNC_DIO).map_err(|_| io::Error::other("the kernel's FUSE is too old"))
    }

    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match name == NAME {
            true => reply.entry(&FOREVER, &self.attributes(INODE), Generation(0)),
            false => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&FOREVER, &self.attributes(inode));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // No page cache in between, so that what the loop device is given comes here at once.
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let length = u64::from(size).min(self.store.size().saturating_sub(offset));
        let mut buffer = vec![0; length as usize];
        match self.store.read(offset, &mut buffer) {
            Ok(()) => reply.data(&buffer),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if offset + data.len() as u64 > self.store.size() {
            return reply.error(Errno::ENOSPC);
        }
        match self.store.given(offset, data) {
            Err(_) => reply.error(Errno::EIO),
            Ok(write) if self.store.is_overtaking() => {
                self.late.push(Waiting { write, bytes: data.len() as u32, reply });
            }
            Ok(write) => {
                self.store.done(write);
                reply.written(data.len() as u32);
            }
        }
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        match self.store.flush() {
            Ok(()) => reply.ok(),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    /// The end of a descriptor, not of a cache.
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fallocate(&self, _: &Request, _: INodeNo, _: FileHandle, _: u64, _: u64, _: i32, reply: ReplyEmpty) {
        // The device can't discard. The kernel then writes zeros where a file system wants them.
        reply.error(Errno::EOPNOTSUPP);
    }
}
