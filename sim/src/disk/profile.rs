//! What file systems leave open after a power loss, as a table of switches.
//!
//! Where a cell of the measured table and a switch differ, the switch allows more: a profile may be harsher than its
//! file system, never milder. Sources: measurements on Linux 6.18 (docs/simulation.md), Linux
//! Documentation/admin-guide/ext4.rst, ALICE (OSDI'14), xfstests generic/392, "Can Applications Recover from fsync
//! Failures?" (ATC'20).

/// How unforced operations on names survive a power loss.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Names {
    /// Each by itself, kept or lost, until its directory is forced. Forcing a file says nothing about its name.
    Independent,
    /// One ordered queue over all directories: what is kept is a beginning of it. A force commits what is in the queue up to the
    /// last change of what is forced: of a directory its last entry; of a file its creation, a new length, a cut, new
    /// blocks, and nothing where it is purely overwritten. What came later it need not commit: the kernel may have
    /// committed that change by itself, and the force then finds nothing to do (measured on ext4; xfs asks the same
    /// question, `xfs_fsync_lsn`).
    Queue,
    /// A queue too, but a forced file takes its own names (and the directories above it) out of it, and a forced
    /// directory its own entries: so a file's rename survives while another file's earlier unlink is lost. And a rename or a
    /// removal of a file whose name is durable is in the log at once, so that any later force may bring it along while the
    /// creation of another file, which came before, is lost (measured; `btrfs_log_new_name`).
    QueueByInode,
}

/// What a failed force leaves in the page cache.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum FailedForce {
    /// The error is reported once; the pages are marked clean and show the **new** bytes, which any part of the
    /// device may lack. The next force succeeds and does nothing for them (measured: ext4, xfs).
    MarkedClean,
    /// The error is reported once; the dirty pages are dropped and the file shows the **old** bytes or a hole again
    /// (ATC'20 and measured: btrfs).
    Dropped,
    /// This force succeeds and what it covers is safe in the journal; the **next** force of the file fails as
    /// `MarkedClean` (ATC'20: ext4 data=journal). The harsher reading, that the first force's bytes can be lost
    /// too, leaves no log a chance and is in the detect-only tier ([`Vandal::lie_about`](super::Vandal::lie_about)).
    ReportedLate,
}

/// What a file system (on its device) leaves open after a power loss.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Profile {
    /// `posix`, `ext4`, …
    pub name: &'static str,
    /// An overwritten sector may also come out shorn, zero, garbage or stale, not only old or new.
    pub overwrite_tears: bool,
    /// In a torn overwrite the bytes that are the same in both versions survive (SQLite's assumption of power-safe
    /// overwrite).
    pub power_safe_overwrite: bool,
    /// A sector that was never forced before may hold garbage or stale content, not only zeros or new bytes.
    pub fresh_garbage: bool,
    /// An unforced cut has happened or not, but for zeros that it may leave in the block in which the file was to end;
    /// otherwise it may leave any size between, and bytes of either side.
    pub cut_is_atomic: bool,
    /// Unforced operations on names.
    pub names: Names,
    /// A rename over an existing file that survives brings the new file's full length with it, maybe as zeros (ext4's
    /// auto_da_alloc); otherwise the file may be empty.
    pub replace_keeps_length: bool,
    /// How a failed force may leave the page cache.
    pub failed_force: &'static [FailedForce],
}

/// The least that the standard promises: the harshest.
pub static POSIX: Profile = Profile {
    name: "posix",
    overwrite_tears: true,
    power_safe_overwrite: true,
    fresh_garbage: true,
    cut_is_atomic: false,
    names: Names::Independent,
    replace_keeps_length: false,
    failed_force: &[FailedForce::MarkedClean, FailedForce::Dropped, FailedForce::ReportedLate],
};

/// As [`POSIX`], on a device without power-safe overwrite.
pub static POSIX_TORN: Profile = Profile { name: "posix-torn", power_safe_overwrite: false, ..POSIX };

/// ext4 with data=ordered.
pub static EXT4: Profile = Profile {
    name: "ext4",
    overwrite_tears: false,
    power_safe_overwrite: true,
    fresh_garbage: false,
    cut_is_atomic: true,
    names: Names::Queue,
    replace_keeps_length: true,
    failed_force: &[FailedForce::MarkedClean, FailedForce::ReportedLate],
};

/// ext4 with data=writeback: new blocks may show what they held before.
pub static EXT4_WRITEBACK: Profile = Profile { name: "ext4-writeback", fresh_garbage: true, ..EXT4 };

/// xfs.
pub static XFS: Profile =
    Profile { name: "xfs", replace_keeps_length: false, failed_force: &[FailedForce::MarkedClean], ..EXT4 };

/// btrfs.
pub static BTRFS: Profile = Profile {
    name: "btrfs",
    names: Names::QueueByInode,
    replace_keeps_length: false,
    failed_force: &[FailedForce::Dropped],
    ..EXT4
};

impl Profile {
    /// All profiles, the harshest first.
    pub fn all() -> [&'static Profile; 6] {
        [&POSIX, &POSIX_TORN, &EXT4, &EXT4_WRITEBACK, &XFS, &BTRFS]
    }

    /// The profile of that name.
    pub fn named(name: &str) -> Option<&'static Profile> {
        Profile::all().into_iter().find(|profile| profile.name == name)
    }
}
