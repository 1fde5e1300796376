//! A file system on the device: loop device, mkfs, mount. All of it goes away with what holds it, however that ends.
//!
//! What touches a mounted file system or the loop device does so in a process of its own. Were this one killed in the middle
//! of a system call that waits for the device, the call would wait for an answer that nobody is left to give. For the same reason
//! the file system is mounted where this process is not, in a mount namespace that another holds: the last to leave one
//! unmounts what is in it, and the kernel has a dying process do that before it gives /dev/fuse back.

use crate::fuse::Served;
use crate::store::{BlockStore, Image, Whole};
use plimsoll_sim::disk::{BTRFS, EXT4, EXT4_WRITEBACK, Profile, XFS};
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// A file system, with the options that it has by default.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, clap::ValueEnum)]
pub enum FileSystem {
    /// ext4, data=ordered.
    Ext4,
    /// ext4, data=writeback.
    Ext4Writeback,
    /// xfs.
    Xfs,
    /// btrfs.
    Btrfs,
}

impl FileSystem {
    /// All of them.
    pub const ALL: [FileSystem; 4] = [FileSystem::Ext4, FileSystem::Ext4Writeback, FileSystem::Xfs, FileSystem::Btrfs];

    /// Its name on the command line and in what is printed: that of its simulated profile.
    pub fn name(self) -> &'static str {
        self.profile().name
    }

    /// What the simulator takes it for.
    pub fn profile(self) -> &'static Profile {
        match self {
            FileSystem::Ext4 => &EXT4,
            FileSystem::Ext4Writeback => &EXT4_WRITEBACK,
            FileSystem::Xfs => &XFS,
            FileSystem::Btrfs => &BTRFS,
        }
    }

    fn device_bytes(self) -> u64 {
        match self {
            FileSystem::Ext4 | FileSystem::Ext4Writeback => 128 << 20,
            // Smaller ones mkfs refuses.
            FileSystem::Xfs => 300 << 20,
            FileSystem::Btrfs => 128 << 20,
        }
    }

    /// What it demands of the device to be written whole or not at all, because it does not mount otherwise (all measured):
    /// ext4 and btrfs their superblocks, of 1024 and 4096 bytes under one checksum, overwritten in place; xfs the blocks of its
    /// directories and trees, because one whose first sector is new is not replayed from the log.
    fn whole(self) -> Whole {
        match self {
            FileSystem::Ext4 | FileSystem::Ext4Writeback => |position, _| position < 4096,
            FileSystem::Btrfs => |position, _| [64 << 10, 64 << 20].contains(&position),
            FileSystem::Xfs => |_, bytes| {
                const MAGIC: [&[u8]; 9] =
                    [b"XDB3", b"XDD3", b"AB3B", b"AB3C", b"IAB3", b"FIB3", b"BMA3", b"RMB3", b"R3FC"];
                MAGIC.iter().any(|magic| bytes.starts_with(magic))
            },
        }
    }

    /// Small file systems get small blocks from mkfs.ext4, which hardly anybody has; and what it leaves to be done by the
    /// kernel later would only be noise.
    fn mkfs(self) -> &'static [&'static str] {
        match self {
            FileSystem::Ext4 | FileSystem::Ext4Writeback => {
                &["mkfs.ext4", "-q", "-F", "-b", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"]
            }
            FileSystem::Xfs => &["mkfs.xfs", "-q", "-f", "-K"],
            FileSystem::Btrfs => &["mkfs.btrfs", "-q", "-f", "-K"],
        }
    }

    fn mount_options(self) -> &'static [&'static str] {
        match self {
            FileSystem::Ext4 => &["-t", "ext4", "-o", "data=ordered"],
            FileSystem::Ext4Writeback => &["-t", "ext4", "-o", "data=writeback"],
            FileSystem::Xfs => &["-t", "xfs"],
            FileSystem::Btrfs => &["-t", "btrfs"],
        }
    }
}

/// Something on the way to a mounted file system failed: one line.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Failure(String);

impl From<String> for Failure {
    fn from(line: String) -> Failure {
        Failure(line)
    }
}

/// A device with a file system of a kind, to be mounted, unmounted and given another content again and again.
pub struct Disk {
    /// The device.
    pub store: BlockStore,
    file_system: FileSystem,
    path: PathBuf,
    /// Keeps the loop device, which goes with its last user.
    hold: Option<File>,
    served: Option<Served>,
    at: PathBuf,
    mounted: bool,
    /// Holds the mount namespace, and ends with this process.
    holder: Option<Child>,
    _place: tempfile::TempDir,
}

impl Disk {
    /// Makes the file system. Needs root, /dev/fuse and loop devices.
    ///
    /// # Errors
    /// One line that says what is missing.
    pub fn make(file_system: FileSystem) -> Result<Disk, Failure> {
        let store = BlockStore::new(file_system.device_bytes());
        store.keep_whole(file_system.whole());
        let mut disk = Disk::of(store, file_system)?;
        let [program, args @ ..] = file_system.mkfs() else { unreachable!("a program") };
        run(Command::new(program).args(args).arg(&disk.path))?;
        disk.reload(disk.store.image())?;
        Ok(disk)
    }

    /// A device that holds such a file system already.
    ///
    /// # Errors
    /// As [`Disk::make`].
    pub fn of(store: BlockStore, file_system: FileSystem) -> Result<Disk, Failure> {
        let failed = |what: &str, error: std::io::Error| Failure(format!("{what}: {error}"));
        let place = tempfile::Builder::new().prefix("power-loss-").tempdir().map_err(|e| failed("a directory", e))?;
        let (device, at) = (place.path().join("device"), place.path().join("files"));
        for directory in [&device, &at] {
            std::fs::create_dir(directory).map_err(|e| failed("a directory", e))?;
        }
        let served = store.mount(&device).map_err(|e| failed(NEEDS, e))?;
        let file = served.file().to_path_buf();
        let mut disk = Disk {
            store,
            file_system,
            path: PathBuf::new(),
            hold: None,
            served: Some(served),
            at,
            mounted: false,
            holder: None,
            _place: place,
        };
        let output = run(Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(file))?;
        disk.path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
        disk.hold = Some(File::open(&disk.path).map_err(|e| failed("the loop device", e))?);
        // Takes effect when the last one closes it.
        run(Command::new("losetup").arg("--detach").arg(&disk.path))?;
        // What is unmounted outside is unmounted there too.
        let mut holder = Command::new("unshare");
        holder.args(["--mount", "--propagation", "slave", "--", "sh", "-c", "echo; exec cat"]);
        let holder = holder.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let holder = disk.holder.insert(holder.map_err(|e| failed("unshare(1) of util-linux", e))?);
        let is_there = holder.stdout.as_mut().expect("piped").read_exact(&mut [0]);
        is_there.map_err(|e| failed("a mount namespace", e))?;
        Ok(disk)
    }

    /// What stands before a command that is to see the mounted file system. It is run in the root directory.
    pub fn inside(&self) -> Vec<OsString> {
        let holder = self.holder.as_ref().expect("as long as the disk is there").id();
        ["nsenter".into(), format!("--mount=/proc/{holder}/ns/mnt").into(), "--".into()].into()
    }

    fn run_inside(&self, command: &[&str], paths: &[&Path]) -> Result<Output, Failure> {
        let [program, words @ ..] = &self.inside()[..] else { unreachable!("a program") };
        run(Command::new(program).args(words).args(command).args(paths))
    }

    /// Which file system it is.
    pub fn file_system(&self) -> FileSystem {
        self.file_system
    }

    /// Where it is mounted.
    pub fn at(&self) -> &Path {
        &self.at
    }

    /// Gives the device another content; what is mounted is unmounted before.
    ///
    /// # Errors
    /// When it is still in use.
    pub fn reload(&mut self, image: Image) -> Result<(), Failure> {
        self.unmount()?;
        self.store.heal();
        // The kernel remembers what it read from the device as long as anybody has it open, and this process has.
        run(Command::new("blockdev").arg("--flushbufs").arg(&self.path))?;
        self.store.replace(image);
        Ok(())
    }

    /// Mounts the file system.
    ///
    /// # Errors
    /// What mount(8) says.
    pub fn mount(&mut self) -> Result<(), Failure> {
        let command = [&["mount"], self.file_system.mount_options()].concat();
        self.run_inside(&command, &[&self.path, &self.at])?;
        self.mounted = true;
        Ok(())
    }

    /// Unmounts it, if it is mounted.
    ///
    /// # Errors
    /// When it is in use.
    pub fn unmount(&mut self) -> Result<(), Failure> {
        if self.mounted {
            self.run_inside(&["umount"], &[&self.at])?;
            self.mounted = false;
        }
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // With it goes what is mounted.
        if let Some(mut holder) = self.holder.take() {
            let _ = holder.kill();
            let _ = holder.wait();
        }
        self.hold.take();
        self.served.take();
    }
}

/// Has the rest of the program run where its mounts and temporary files are nobody else's and end with it: in a mount namespace
/// of its own, made by unshare(1), with `scratch` in memory for [`std::env::temp_dir`]. Comes back at once where it is
/// there already.
///
/// # Errors
/// Where this is not allowed.
pub fn enter_private_mounts(scratch: &Path) -> Result<(), Failure> {
    const INSIDE: &str = "POWER_LOSS_INSIDE";
    if std::env::var_os(INSIDE).is_some() {
        return Ok(());
    }
    let own = std::env::current_exe().map_err(|e| Failure(format!("this program: {e}")))?;
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        return Err(Failure(NEEDS.into()));
    }
    std::fs::create_dir_all(scratch).map_err(|e| Failure(format!("{}: {e}", scratch.display())))?;
    let error = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--", "sh", "-c"])
        .args([r#"mount --make-rshared / && mount -t tmpfs tmpfs "$TMPDIR" && exec "$@""#, "sh"])
        .arg(own)
        .args(std::env::args_os().skip(1))
        .env(INSIDE, "1")
        .env("TMPDIR", scratch)
        .exec();
    Err(Failure(format!("unshare(1) of util-linux: {error}")))
}

const NEEDS: &str = "power loss on real file systems is tested through FUSE and loop devices, which takes root with CAP_SYS_ADMIN and /dev/fuse (a container needs --privileged)";

/// Runs a program to its end.
fn run(command: &mut Command) -> Result<Output, Failure> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|e| Failure(format!("{program} (tests/setup installs it): {e}")))?;
    if output.status.success() {
        return Ok(output);
    }
    let said = String::from_utf8_lossy(&output.stderr).split_whitespace().collect::<Vec<_>>().join(" ");
    Err(Failure(format!("{program}: {said} ({})", output.status)))
}
