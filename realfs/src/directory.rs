//! The data directory before the broker sees it: made where it is missing, and locked.

use plimsoll_core::layout;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{self, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::io::{Read, Write};
use std::path::Path;

/// An open data directory that no other process uses.
pub(crate) struct Directory {
    /// The directory itself; every path of the broker is below it.
    pub(crate) root: OwnedFd,
    /// Keeps the lock as long as it lives.
    lock: std::fs::File,
}

impl Directory {
    /// Makes the directory where it is missing, and locks it.
    ///
    /// Its parent must exist: of several new directories the broker would force only the last into its parent.
    ///
    /// # Errors
    /// One sentence that says what is in the way.
    pub(crate) fn open(path: &Path) -> Result<Directory, String> {
        let shown = path.display();
        match fs::mkdir(path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(Errno::NOENT) => {
                return Err(format!(
                    "cannot create the data directory {shown}: its parent does not exist; create that first"
                ));
            }
            // It may be there all the same, in a directory that is read-only: opening it tells.
            Err(_) if path.exists() => {}
            Err(errno) => return Err(format!("cannot create the data directory {shown}: {}", words(errno))),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = fs::open(path, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::NOTDIR => format!("{shown} is not a directory; choose another with --data"),
            errno => format!("cannot open the data directory {shown}: {}", words(errno)),
        })?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let lock = fs::openat(&root, layout::LOCK, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|errno| format!("cannot write in the data directory {shown}: {}", words(errno)))?;
        let mut lock = std::fs::File::from(lock);
        match fs::flock(lock.as_fd(), FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Directory { root, lock }),
            Err(Errno::WOULDBLOCK) => {
                let mut holder = String::new();
                let _ = lock.read_to_string(&mut holder);
                let holder = if holder.trim().is_empty() { "another process" } else { holder.trim() };
                Err(format!(
                    "the data directory {shown} is in use by {holder}; stop that or choose another with --data"
                ))
            }
            Err(errno) => Err(format!("cannot lock {shown}/{}: {}", layout::LOCK, words(errno))),
        }
    }

    /// Writes into the lock file who holds it, for whoever finds it held.
    pub(crate) fn sign(&mut self, address: &str) {
        let line = format!("process {} (listening on {address})\n", std::process::id());
        // Only a help: the lock itself is the kernel's.
        let _ = self.lock.set_len(0).and_then(|()| self.lock.write_all(line.as_bytes()));
    }

    /// The name of the file system, if it is one that a force on does not reach a disk of this machine.
    pub(crate) fn doubtful_file_system(&self) -> Option<&'static str> {
        let kind = fs::fstatfs(&self.root).ok()?.f_type as u32;
        DOUBTFUL.iter().find(|(magic, _)| *magic == kind).map(|(_, name)| *name)
    }
}

/// Network and memory file systems by the number that statfs(2) gives them (linux/magic.h).
const DOUBTFUL: [(u32, &str); 11] = [
    (0x0102_1994, "tmpfs"),
    (0x8584_58f6, "ramfs"),
    (0x0000_6969, "nfs"),
    (0x0000_517b, "smb"),
    (0xff53_4d42, "cifs"),
    (0xfe53_4d42, "smb2"),
    (0x6573_5546, "fuse"),
    (0x0102_1997, "9p"),
    (0x00c3_6400, "ceph"),
    (0x5346_414f, "afs"),
    (0x0bd0_0bd0, "lustre"),
];

fn words(errno: Errno) -> String {
    std::io::Error::from(errno).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_made_locked_and_tells_who_holds_it() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("data");
        let mut directory = Directory::open(&path).unwrap();
        directory.sign("127.0.0.1:7717");
        let refused = Directory::open(&path).err().unwrap();
        let holder = format!("in use by process {} (listening on 127.0.0.1:7717);", std::process::id());
        assert!(refused.contains(&holder), "{refused}");
        drop(directory);
        let mut again = Directory::open(&path).unwrap();
        again.sign("[::1]:1");
        assert!(std::fs::read_to_string(path.join("LOCK")).unwrap().ends_with("(listening on [::1]:1)\n"));
    }

    #[test]
    fn what_is_no_place_for_data_is_refused_with_a_sentence() {
        let parent = tempfile::tempdir().unwrap();
        let file = parent.path().join("file");
        std::fs::write(&file, "").unwrap();
        for (path, sentence) in
            [(file.clone(), "is not a directory"), (parent.path().join("a/b"), "its parent does not")]
        {
            let refused = Directory::open(&path).err().unwrap();
            assert!(refused.contains(sentence) && refused.contains(path.to_str().unwrap()), "{refused}");
        }
        let inside = Directory::open(&file.join("x")).err().unwrap();
        assert!(inside.contains("Not a directory"), "{inside}");
    }
}
