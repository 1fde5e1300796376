//! File systems mounted for a test.

use std::path::Path;
use std::process::Command;

/// A mounted file system. It is unmounted when this is dropped, also by a panic.
pub struct Mounted {
    at: tempfile::TempDir,
}

impl Mounted {
    /// A file system in memory that is full after so many bytes. The kernel's answers are those of a full disk.
    ///
    /// Panics where mounting is not allowed: a test that can't do what it says must not pass.
    pub fn tmpfs(bytes: u64) -> Mounted {
        let at = tempfile::tempdir().expect("a temporary directory");
        mount(&["-t", "tmpfs", "-o", &format!("size={bytes},mode=0700"), "tmpfs"], at.path());
        Mounted { at }
    }

    /// The same directory as `of`, but read-only.
    ///
    /// Panics where mounting is not allowed.
    pub fn read_only(of: &Path) -> Mounted {
        let at = tempfile::tempdir().expect("a temporary directory");
        mount(&["--bind", of.to_str().expect("a path of text")], at.path());
        let mounted = Mounted { at };
        mount(&["-o", "remount,bind,ro"], mounted.path());
        mounted
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.at.path()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Lazily: a broker that a failed test leaves to be killed may still have files open.
        let unmounted = Command::new("umount").arg("--lazy").arg(self.path()).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            eprintln!("{} could not be unmounted", self.path().display());
        }
    }
}

fn mount(args: &[&str], at: &Path) {
    let output = Command::new("mount").args(args).arg(at).output().expect("mount(8) is installed");
    assert!(
        output.status.success(),
        "this test mounts a file system, which takes root with CAP_SYS_ADMIN (a container needs --privileged): {}",
        String::from_utf8_lossy(&output.stderr)
    );
}
