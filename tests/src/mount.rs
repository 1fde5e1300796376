//! File systems mounted for a test.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A mounted file system. It is unmounted when this is dropped, also by a panic.
pub struct Mounted {
    /// `None`: somebody has unmounted it.
    at: Option<tempfile::TempDir>,
}

/// A file with an ext4 file system in it, and mounted through a loop device.
pub struct Image {
    path: PathBuf,
    mounted: Mounted,
}

impl Image {
    /// Makes `ext4.image` in a directory, sparse, with room for about so many bytes, and mounts it.
    ///
    /// Panics where that is not allowed.
    pub fn ext4(dir: &Path, bytes: u64) -> Image {
        Image::ext4_with(dir, bytes, &[])
    }

    /// The same with further options of mkfs.ext4(8).
    pub fn ext4_with(dir: &Path, bytes: u64, options: &[&str]) -> Image {
        let path = dir.join("ext4.image");
        let file = std::fs::File::create(&path).expect("an image file");
        file.set_len(bytes).expect("an image file");
        // No blocks kept back for root, which runs the tests, and everything initialised now: what is full is full.
        let mkfs = Command::new("mkfs.ext4")
            .args(["-q", "-F", "-m", "0", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"])
            .args(options)
            .arg(&path)
            .output()
            .expect("mkfs.ext4 is installed (tests/setup)");
        assert!(mkfs.status.success(), "{}", String::from_utf8_lossy(&mkfs.stderr));
        Image::mount(path)
    }

    /// Mounts an image that there is.
    pub fn mount(path: PathBuf) -> Image {
        let at = tempfile::tempdir().expect("a temporary directory");
        // The loop device goes with the mount.
        mount(&["-t", "ext4", "-o", "loop", path.to_str().expect("a path of text")], at.path());
        Image { path, mounted: Mounted { at: Some(at) } }
    }

    /// Lets the file system become read-only as it does when its journal can't be written, also under open files.
    pub fn abort(&self) {
        mount(&["-o", "remount,abort"], self.path());
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.mounted.path()
    }

    /// The image file.
    pub fn file(&self) -> &Path {
        &self.path
    }

    /// Unmounts it and says where the image is. Nobody may have files open in it.
    pub fn unmount(self) -> PathBuf {
        let output = Command::new("umount").arg(self.path()).output().expect("umount(8) is installed");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let Image { path, mut mounted } = self;
        mounted.at = None;
        path
    }
}

impl Mounted {
    /// A file system in memory that is full after so many bytes. The kernel's answers are those of a full disk.
    ///
    /// Panics where mounting is not allowed: a test that can't do what it says must not pass.
    pub fn tmpfs(bytes: u64) -> Mounted {
        let at = tempfile::tempdir().expect("a temporary directory");
        mount(&["-t", "tmpfs", "-o", &format!("size={bytes},mode=0700"), "tmpfs"], at.path());
        Mounted { at: Some(at) }
    }

    /// The same directory as `of`, but read-only.
    ///
    /// Panics where mounting is not allowed.
    pub fn read_only(of: &Path) -> Mounted {
        let at = tempfile::tempdir().expect("a temporary directory");
        mount(&["--bind", of.to_str().expect("a path of text")], at.path());
        let mounted = Mounted { at: Some(at) };
        mount(&["-o", "remount,bind,ro"], mounted.path());
        mounted
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.at.as_ref().expect("it is mounted").path()
    }
}

/// How much room there is where a path lies: bytes in all, and bytes free.
pub fn room(path: &Path) -> (u64, u64) {
    let found = rustix::fs::statvfs(path).expect("a file system");
    (found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let Some(at) = &self.at else { return };
        // Lazily: a broker that a failed test leaves to be killed may still have files open.
        let unmounted = Command::new("umount").arg("--lazy").arg(at.path()).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            eprintln!("{} could not be unmounted", at.path().display());
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
