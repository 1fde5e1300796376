//! The system calls, and what their failures are called.

use bytes::Bytes;
use plimsoll_core::effect::{DirEntry, IoError, IoErrorKind};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags};
use rustix::io::{self, Errno, ReadWriteFlags};
use std::io::{IoSlice, IoSliceMut};

/// Zeros for [`reserve`].
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// What a failed system call is told as.
pub(crate) fn failure(operation: &str, path: impl std::fmt::Display, errno: Errno) -> IoError {
    let kind = match errno {
        Errno::NOSPC | Errno::DQUOT => IoErrorKind::NoSpace,
        Errno::MFILE | Errno::NFILE => IoErrorKind::TooManyFiles,
        Errno::NOENT => IoErrorKind::NotFound,
        Errno::EXIST | Errno::NOTEMPTY => IoErrorKind::Exists,
        _ => IoErrorKind::Other,
    };
    IoError { kind, detail: format!("{operation} {path}: {}", std::io::Error::from(errno)) }
}

/// The boundary's spelling of a path, relative to the open data directory.
fn relative(path: &str) -> &str {
    if path.is_empty() { "." } else { path }
}

pub(crate) fn list(root: BorrowedFd<'_>, dir: &str) -> Result<Vec<DirEntry>, Errno> {
    let fd = open_dir(root, dir)?;
    let mut entries = Vec::new();
    for entry in fs::Dir::read_from(&fd)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let is_dir = match entry.file_type() {
            FileType::Directory => true,
            FileType::RegularFile => false,
            // A file system that does not say, or a link: look at what it leads to.
            _ => match fs::statat(&fd, name, AtFlags::empty()) {
                Ok(stat) => FileType::from_raw_mode(stat.st_mode) == FileType::Directory,
                Err(Errno::NOENT | Errno::LOOP) => false,
                Err(errno) => return Err(errno),
            },
        };
        entries.push(DirEntry { name: name.to_string_lossy().into_owned(), is_dir });
    }
    entries.sort();
    Ok(entries)
}

pub(super) fn make_dir(root: BorrowedFd<'_>, path: &str) -> Result<(), Errno> {
    fs::mkdirat(root, path, Mode::RWXU)
}

pub(super) fn create(root: BorrowedFd<'_>, path: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    again(|| fs::openat(root, path, flags, Mode::RUSR | Mode::WUSR))
}

pub(super) fn open(root: BorrowedFd<'_>, path: &str) -> Result<OwnedFd, Errno> {
    again(|| fs::openat(root, path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()))
}

/// For tools that only look: neither the bytes nor, where that may be chosen, the time of the last access changes. Does not
/// wait for somebody at the other end of a pipe.
pub(crate) fn open_read_only(root: BorrowedFd<'_>, path: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    // Only a file's owner may leave the time alone.
    match again(|| fs::openat(root, path, flags | OFlags::NOATIME, Mode::empty())) {
        Err(Errno::PERM) => again(|| fs::openat(root, path, flags, Mode::empty())),
        opened => opened,
    }
}

pub(crate) fn length(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    Ok(fs::fstat(fd)?.st_size as u64)
}

pub(super) fn force_dir(root: BorrowedFd<'_>, dir: &str) -> Result<(), Errno> {
    fs::fsync(open_dir(root, dir)?)
}

pub(super) fn rename(root: BorrowedFd<'_>, from: &str, to: &str) -> Result<(), Errno> {
    fs::renameat(root, from, root, to)
}

pub(super) fn remove(root: BorrowedFd<'_>, path: &str) -> Result<(), Errno> {
    fs::unlinkat(root, path, AtFlags::empty())
}

pub(super) fn remove_dir(root: BorrowedFd<'_>, path: &str) -> Result<(), Errno> {
    fs::unlinkat(root, path, AtFlags::REMOVEDIR)
}

/// Writes all the bytes.
pub(super) fn write(fd: BorrowedFd<'_>, mut position: u64, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match again(|| io::pwrite(fd, bytes, position))? {
            // Not an error by the letter of the call, and endless if it were repeated.
            0 => return Err(Errno::IO),
            n => {
                position += n as u64;
                bytes = &bytes[n..];
            }
        }
    }
    Ok(())
}

/// Writes zeros.
pub(super) fn reserve(fd: BorrowedFd<'_>, mut position: u64, mut length: u64) -> Result<(), Errno> {
    while length > 0 {
        let slices: [IoSlice<'_>; 16] = std::array::from_fn(|index| {
            let rest = length.saturating_sub((index * ZEROS.len()) as u64);
            IoSlice::new(&ZEROS[..rest.min(ZEROS.len() as u64) as usize])
        });
        match again(|| io::pwritev(fd, &slices, position))? {
            0 => return Err(Errno::IO),
            n => {
                position += n as u64;
                length -= n as u64;
            }
        }
    }
    Ok(())
}

pub(super) fn truncate(fd: BorrowedFd<'_>, length: u64) -> Result<(), Errno> {
    again(|| fs::ftruncate(fd, length))
}

/// Forces a file's data. Never repeated, not even after EINTR: a second force reports success for pages that the first
/// one lost (after a failed write-back Linux marks them clean).
pub(super) fn force(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    fs::fdatasync(fd)?;
    // A file that somebody removed is forced without a complaint, and gone with the process.
    // Asks for the links alone: fstat would ask for the times, and then every write after it has to store a new one.
    let links = fs::statx(fd, c"", fs::AtFlags::EMPTY_PATH, fs::StatxFlags::NLINK)?.stx_nlink;
    if links == 0 { Err(Errno::NOENT) } else { Ok(()) }
}

/// A read in the making.
pub(crate) struct Reading {
    buffer: Vec<u8>,
    filled: usize,
    position: u64,
}

impl Reading {
    pub(crate) fn new(position: u64, length: u32) -> Reading {
        Reading { buffer: vec![0; length as usize], filled: 0, position }
    }

    /// Reads what the page cache has. `None`: the rest must come from the device.
    pub(super) fn try_cached(&mut self, fd: BorrowedFd<'_>) -> Option<Result<Bytes, Errno>> {
        loop {
            match self.step(fd, ReadWriteFlags::NOWAIT) {
                Ok(true) => {}
                Ok(false) => return Some(Ok(self.take())),
                // EOPNOTSUPP: a file system that can't say. The blocking read tells every other error.
                Err(_) => return None,
            }
        }
    }

    /// Reads all of it, waiting for the device.
    pub(crate) fn wait_for_all(mut self, fd: BorrowedFd<'_>) -> Result<Bytes, Errno> {
        while self.step(fd, ReadWriteFlags::empty())? {}
        Ok(self.take())
    }

    /// One system call. `false`: there is nothing more to read.
    fn step(&mut self, fd: BorrowedFd<'_>, flags: ReadWriteFlags) -> Result<bool, Errno> {
        let rest = &mut self.buffer[self.filled..];
        if rest.is_empty() {
            return Ok(false);
        }
        let position = self.position + self.filled as u64;
        let n = again(|| io::preadv2(fd, &mut [IoSliceMut::new(rest)], position, flags))?;
        self.filled += n;
        Ok(n > 0)
    }

    fn take(&mut self) -> Bytes {
        let mut bytes = std::mem::take(&mut self.buffer);
        bytes.truncate(self.filled);
        if bytes.len() < bytes.capacity() / 2 {
            bytes.shrink_to_fit();
        }
        bytes.into()
    }
}

/// Probes the page cache at distances below the least read-ahead.
pub(super) fn is_cached(fd: BorrowedFd<'_>, position: u64, length: u64) -> bool {
    const STEP: usize = 64 << 10;
    let last = position + length.saturating_sub(1);
    (position..last).step_by(STEP).chain([last]).all(|at| {
        let probe = io::preadv2(fd, &mut [IoSliceMut::new(&mut [0])], at, ReadWriteFlags::NOWAIT);
        // Only this one says no. Where the question is not understood, sending it may wait.
        probe != Err(Errno::AGAIN)
    })
}

fn open_dir(root: BorrowedFd<'_>, dir: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    again(|| fs::openat(root, relative(dir), flags, Mode::empty()))
}

/// Repeats a call that a signal interrupted before it did anything.
fn again<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}
