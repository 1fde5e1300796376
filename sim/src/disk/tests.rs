//! The disk held against the table of what file systems do, and against its own contract.

use super::*;
use plimsoll_core::effect::DirEntry;

/// A disk and a process on it that does one thing after the other.
#[derive(Clone)]
pub(super) struct Process {
    pub(super) disk: SimDisk,
    effects: u64,
    files: u64,
}

impl Process {
    pub(super) fn on(profile: &'static Profile) -> Process {
        Process { disk: SimDisk::new(Options::new(profile)), effects: 0, files: 0 }
    }

    fn submit(&mut self, effect: Effect) -> EffectId {
        self.effects += 1;
        self.disk.submit(EffectId(self.effects), effect);
        EffectId(self.effects)
    }

    fn attempt(&mut self, effect: Effect, fault: Option<Fault>) -> Result<Outcome, IoError> {
        let id = self.submit(effect);
        self.disk.execute(id, fault)
    }

    pub(super) fn run(&mut self, effect: Effect) {
        self.attempt(effect, None).unwrap();
    }

    pub(super) fn create(&mut self, path: &str) -> FileId {
        self.files += 1;
        let file = FileId(self.files);
        self.run(Effect::Create { file, path: path.into() });
        file
    }

    pub(super) fn write(&mut self, file: FileId, position: u64, bytes: &[u8]) {
        self.run(Effect::Write { file, position, bytes: Bytes::copy_from_slice(bytes) });
    }

    pub(super) fn force(&mut self, file: FileId) {
        self.run(Effect::Force { file });
    }

    fn force_dir(&mut self, dir: &str) {
        self.run(Effect::ForceDir { dir: dir.into() });
    }

    fn rename(&mut self, from: &str, to: &str) {
        self.run(Effect::Rename { from: from.into(), to: to.into() });
    }

    /// A file that is durable, name and all.
    pub(super) fn durable(&mut self, path: &str, bytes: &[u8]) -> FileId {
        let file = self.create(path);
        self.write(file, 0, bytes);
        self.force(file);
        self.force_dir("");
        file
    }

    /// Something of every state after a power loss.
    fn outcomes<T: Ord>(&self, look: impl Fn(&SimDisk) -> T) -> BTreeSet<T> {
        self.disk.crash_states(1_000_000).unwrap().map(|state| look(&state.disk)).collect()
    }

    fn contents(&self, path: &str) -> BTreeSet<Option<Vec<u8>>> {
        self.outcomes(|disk| disk.read_file(path))
    }
}

/// Data that repeats nowhere.
fn data(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|i| (i as u8).wrapping_mul(31) ^ seed.wrapping_mul(97) | 1).collect()
}

/// One word for what became of a file.
fn describe(found: Option<&[u8]>, old: &[u8], new: &[u8]) -> &'static str {
    let Some(found) = found else { return "absent" };
    let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    let sector_of = |bytes: &[u8], at: usize, length: usize| -> Vec<u8> {
        let mut sector = bytes.get(at..).unwrap_or(&[]).to_vec();
        sector.resize(length, 0);
        sector
    };
    let clean = found.chunks(512).enumerate().all(|(index, chunk)| {
        let is = |bytes| sector_of(bytes, index * 512, chunk.len()) == chunk;
        is_zero(chunk) || is(old) || is(new)
    });
    match () {
        _ if found.is_empty() => "empty",
        _ if found == new => "new",
        _ if found == old => "old",
        _ if is_zero(found) && found.len() == new.len() => "zeros",
        _ if !clean => "garbage",
        _ if found.len() != new.len() && found.len() != old.len() => "other-size",
        _ => "mixed",
    }
}

/// A row of the table: a sequence, and per profile (posix, posix-torn, ext4, ext4-writeback, xfs, btrfs) exactly the
/// words that describe `A` after a power loss. What the real file systems were seen to do is checked to be among
/// them.
struct Row {
    sequence: &'static str,
    run: fn(&mut Process),
    old: fn() -> Vec<u8>,
    new: fn() -> Vec<u8>,
    allowed: [&'static str; 6],
    measured: [&'static str; 6],
}

fn nothing() -> Vec<u8> {
    Vec::new()
}

fn old_data() -> Vec<u8> {
    data(1, 700)
}

fn new_data() -> Vec<u8> {
    data(2, 1024)
}

fn appended() -> Vec<u8> {
    [old_data(), data(2, 700)].concat()
}

const TABLE: &[Row] = &[
    Row {
        sequence: "append, no force",
        run: |p| {
            let a = p.durable("A", &old_data());
            p.write(a, 700, &data(2, 700));
        },
        old: old_data,
        new: appended,
        allowed: [
            "old new other-size mixed garbage",
            "old new other-size mixed garbage",
            "old new other-size mixed",
            "old new other-size mixed garbage",
            "old new other-size mixed",
            "old new other-size mixed",
        ],
        measured: [
            "old new other-size mixed garbage",
            "",
            "old new other-size mixed",
            "garbage",
            "old new mixed",
            "old new mixed",
        ],
    },
    Row {
        sequence: "append, fdatasync",
        run: |p| {
            let a = p.durable("A", &old_data());
            p.write(a, 700, &data(2, 700));
            p.force(a);
        },
        old: old_data,
        new: appended,
        allowed: ["new"; 6],
        measured: ["new"; 6],
    },
    Row {
        sequence: "create, write, force file, directory not forced",
        run: |p| {
            let a = p.create("A");
            p.write(a, 0, &new_data());
            p.force(a);
        },
        old: nothing,
        new: new_data,
        allowed: ["absent new", "absent new", "new", "new", "new", "new"],
        measured: ["absent new", "", "new", "new", "new", "new"],
    },
    Row {
        sequence: "create A, write, no force; force another new file",
        run: |p| {
            let a = p.create("A");
            p.write(a, 0, &new_data());
            let b = p.create("B");
            p.write(b, 0, &new_data());
            p.force(b);
        },
        old: nothing,
        new: new_data,
        allowed: [
            "absent empty new other-size zeros mixed garbage",
            "absent empty new other-size zeros mixed garbage",
            "empty new other-size zeros mixed",
            "empty new other-size zeros mixed garbage",
            "empty new other-size zeros mixed",
            "absent empty new other-size zeros mixed",
        ],
        measured: ["absent empty new zeros garbage", "", "empty", "empty", "empty", "absent"],
    },
    Row {
        sequence: "write tmp without force, rename over target, force directory",
        run: |p| {
            p.durable("A", &old_data());
            let tmp = p.create("A.tmp");
            p.write(tmp, 0, &new_data());
            p.rename("A.tmp", "A");
            p.force_dir("");
        },
        old: old_data,
        new: new_data,
        allowed: [
            "empty new other-size zeros mixed garbage",
            "empty new other-size zeros mixed garbage",
            "new zeros mixed",
            "new zeros mixed garbage",
            "empty new other-size zeros mixed",
            "empty new other-size zeros mixed",
        ],
        measured: ["empty new zeros garbage", "", "new zeros", "new zeros", "empty", "empty new"],
    },
    Row {
        sequence: "the same without an earlier target",
        run: |p| {
            let tmp = p.create("A.tmp");
            p.write(tmp, 0, &new_data());
            p.rename("A.tmp", "A");
            p.force_dir("");
        },
        old: nothing,
        new: new_data,
        allowed: [
            "empty new other-size zeros mixed garbage",
            "empty new other-size zeros mixed garbage",
            "empty new other-size zeros mixed",
            "empty new other-size zeros mixed garbage",
            "empty new other-size zeros mixed",
            "empty new other-size zeros mixed",
        ],
        measured: ["empty new zeros garbage", "", "empty", "empty", "empty", "empty"],
    },
    Row {
        sequence: "force tmp, rename, directory not forced",
        run: |p| {
            p.durable("A", &old_data());
            let tmp = p.create("A.tmp");
            p.write(tmp, 0, &new_data());
            p.force(tmp);
            p.rename("A.tmp", "A");
        },
        old: old_data,
        new: new_data,
        allowed: ["old new"; 6],
        measured: ["old new"; 6],
    },
    Row {
        sequence: "the same, then force directory",
        run: |p| {
            p.durable("A", &old_data());
            let tmp = p.create("A.tmp");
            p.write(tmp, 0, &new_data());
            p.force(tmp);
            p.rename("A.tmp", "A");
            p.force_dir("");
        },
        old: old_data,
        new: new_data,
        allowed: ["new"; 6],
        measured: ["new"; 6],
    },
    Row {
        sequence: "unlink A; then append and force B",
        run: |p| {
            p.durable("A", &old_data());
            let b = p.durable("B", &old_data());
            p.run(Effect::Remove { path: "A".into() });
            p.write(b, 700, &data(2, 700));
            p.force(b);
        },
        old: old_data,
        new: new_data,
        allowed: ["absent old", "absent old", "absent", "absent", "absent", "absent old"],
        measured: ["absent old", "", "absent", "absent", "absent", "old"],
    },
    Row {
        sequence: "unlink A; then overwrite B in place and force it",
        run: |p| {
            p.durable("A", &old_data());
            let b = p.durable("B", &old_data());
            p.run(Effect::Remove { path: "A".into() });
            p.write(b, 0, &data(2, 700));
            p.force(b);
        },
        old: old_data,
        new: new_data,
        allowed: ["absent old"; 6],
        measured: ["absent old", "", "absent old", "absent old", "absent old", "old"],
    },
    Row {
        sequence: "unlink, force directory",
        run: |p| {
            p.durable("A", &old_data());
            p.run(Effect::Remove { path: "A".into() });
            p.force_dir("");
        },
        old: old_data,
        new: new_data,
        allowed: ["absent"; 6],
        measured: ["absent"; 6],
    },
    Row {
        sequence: "ftruncate smaller, no force",
        run: |p| {
            let a = p.durable("A", &data(1, 1400));
            p.run(Effect::Truncate { file: a, length: 300 });
        },
        old: || data(1, 1400),
        new: || data(1, 300),
        allowed: [
            "old new other-size mixed garbage",
            "old new other-size mixed zeros garbage",
            "old new mixed",
            "old new mixed",
            "old new mixed",
            "old new mixed",
        ],
        measured: ["old new other-size", "", "old new mixed", "old new mixed", "old new mixed", "old new"],
    },
    Row {
        sequence: "ftruncate larger, write, no force",
        run: |p| {
            let a = p.durable("A", &old_data());
            p.run(Effect::Truncate { file: a, length: 1400 });
            p.write(a, 700, &data(2, 700));
        },
        old: old_data,
        new: appended,
        allowed: [
            "old new other-size mixed garbage",
            "old new other-size mixed garbage",
            "old new other-size mixed",
            "old new other-size mixed garbage",
            "old new other-size mixed",
            "old new other-size mixed",
        ],
        measured: ["old new other-size mixed garbage", "", "mixed", "mixed", "new", "old"],
    },
    Row {
        sequence: "reserve and force, then write, no force",
        run: |p| {
            let a = p.create("A");
            p.run(Effect::Reserve { file: a, position: 0, length: 1024 });
            p.force(a);
            p.force_dir("");
            p.write(a, 0, &new_data());
        },
        old: || vec![0; 1024],
        new: new_data,
        allowed: [
            "old new mixed garbage",
            "old new mixed garbage",
            "old new mixed",
            "old new mixed",
            "old new mixed",
            "old new mixed",
        ],
        measured: ["old new mixed", "", "old", "old", "old", "old"],
    },
    Row {
        sequence: "the last, then fdatasync",
        run: |p| {
            let a = p.create("A");
            p.run(Effect::Reserve { file: a, position: 0, length: 1024 });
            p.force(a);
            p.force_dir("");
            p.write(a, 0, &new_data());
            p.force(a);
        },
        old: || vec![0; 1024],
        new: new_data,
        allowed: ["new"; 6],
        measured: ["new"; 6],
    },
    Row {
        sequence: "overwrite in place, no force",
        run: |p| {
            let a = p.durable("A", &data(1, 1024));
            p.write(a, 0, &new_data());
        },
        old: || data(1, 1024),
        new: new_data,
        allowed: [
            "old new zeros mixed garbage",
            "old new zeros mixed garbage",
            "old new mixed",
            "old new mixed",
            "old new mixed",
            "old new mixed",
        ],
        measured: ["old new mixed garbage", "", "old new mixed", "old new mixed", "old new mixed", "old new mixed"],
    },
];

fn words(text: &str) -> BTreeSet<&str> {
    text.split_whitespace().collect()
}

#[test]
fn every_profile_leaves_what_its_row_of_the_table_says_and_nothing_else() {
    let mut wrong = Vec::new();
    for row in TABLE {
        for (at, profile) in Profile::all().into_iter().enumerate() {
            let mut process = Process::on(profile);
            (row.run)(&mut process);
            let (old, new) = ((row.old)(), (row.new)());
            let found = process.outcomes(|disk| describe(disk.read_file("A").as_deref(), &old, &new));
            if found != words(row.allowed[at]) {
                wrong.push(format!("{} on {}: {found:?}", row.sequence, profile.name));
            }
            let missing: Vec<&str> = words(row.measured[at]).difference(&found).copied().collect();
            if !missing.is_empty() {
                wrong.push(format!("{} on {}: measured {missing:?} can't happen", row.sequence, profile.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_replacement_by_the_book_leaves_old_or_new_after_every_power_loss_between_its_steps() {
    for profile in Profile::all() {
        for steps in 0..=6 {
            let mut p = Process::on(profile);
            p.durable("A", &old_data());
            let tmp = FileId(2);
            let protocol = [
                Effect::Create { file: tmp, path: "A.tmp".into() },
                Effect::Write { file: tmp, position: 0, bytes: new_data().into() },
                Effect::Force { file: tmp },
                Effect::Rename { from: "A.tmp".into(), to: "A".into() },
                Effect::ForceDir { dir: "".into() },
            ];
            protocol.into_iter().take(steps).for_each(|effect| p.run(effect));
            let found = p.outcomes(|disk| describe(disk.read_file("A").as_deref(), &old_data(), &new_data()));
            let allowed = if steps < 4 { "old" } else { "old new" };
            let allowed = if steps >= 5 { "new" } else { allowed };
            assert_eq!(found, words(allowed), "{} after {steps} steps", profile.name);
        }
    }
}

#[test]
fn a_directory_renamed_into_place_is_there_whole_or_under_its_old_name() {
    for profile in Profile::all() {
        let mut p = Process::on(profile);
        p.run(Effect::MakeDir { path: "t.tmp".into() });
        let a = p.create("t.tmp/A");
        p.write(a, 0, b"all of it");
        p.force(a);
        p.force_dir("t.tmp");
        p.force_dir("");
        p.rename("t.tmp", "t");
        let whole = |disk: &SimDisk, dir: &str| disk.read_file(&format!("{dir}/A")) == Some(b"all of it".to_vec());
        let found = p.outcomes(|disk| (whole(disk, "t.tmp"), whole(disk, "t")));
        assert_eq!(found, BTreeSet::from([(true, false), (false, true)]), "{}", profile.name);
        p.force_dir("");
        assert_eq!(p.outcomes(|disk| (whole(disk, "t.tmp"), whole(disk, "t"))), BTreeSet::from([(false, true)]));
        // Its file was never renamed, and is still known by its id.
        assert_eq!(p.disk.path_of(a).as_deref(), Some("t/A"));
    }
}

#[test]
fn removals_are_kept_in_any_order_on_posix_and_from_the_first_on_where_there_is_a_journal() {
    let survivors = |profile| {
        let mut p = Process::on(profile);
        p.durable("0", b"a");
        p.durable("1", b"b");
        p.run(Effect::Remove { path: "0".into() });
        p.run(Effect::Remove { path: "1".into() });
        p.outcomes(|disk| disk.tree().into_keys().collect::<Vec<_>>().join(" "))
    };
    assert_eq!(survivors(&POSIX), BTreeSet::from(["".into(), "0".into(), "1".into(), "0 1".into()]));
    assert_eq!(survivors(&EXT4), BTreeSet::from(["".into(), "1".into(), "0 1".into()]));
}

/// The kernel may have committed the change by itself before the rename, and a force then has nothing to commit.
#[test]
fn a_force_need_not_commit_what_happened_to_names_after_the_last_change_of_the_file() {
    for profile in [&EXT4, &XFS] {
        let mut p = Process::on(profile);
        let a = p.create("A.tmp");
        p.write(a, 0, &old_data());
        p.rename("A.tmp", "A");
        p.force(a);
        let names = |p: &Process| p.outcomes(|disk| disk.tree().into_keys().collect::<Vec<_>>());
        assert_eq!(names(&p), BTreeSet::from([vec!["A".to_owned()], vec!["A.tmp".to_owned()]]), "{}", profile.name);
        p.write(a, 700, &new_data());
        p.force(a);
        assert_eq!(names(&p), BTreeSet::from([vec!["A".to_owned()]]), "{}", profile.name);
        // The same of a directory in which nothing has happened since.
        p.run(Effect::MakeDir { path: "D".into() });
        p.rename("A", "B");
        p.force_dir("D");
        assert_eq!(p.outcomes(|disk| disk.read_file("A").is_some()), BTreeSet::from([false, true]), "{}", profile.name);
    }
}

#[test]
fn on_btrfs_a_forced_successor_survives_next_to_what_was_removed_before_it() {
    let mut p = Process::on(&BTRFS);
    p.durable("old", b"a");
    p.run(Effect::Remove { path: "old".into() });
    let packed = p.create("packed");
    p.write(packed, 0, b"b");
    p.force(packed);
    let found = p.outcomes(|disk| disk.tree().into_keys().collect::<Vec<_>>().join(" "));
    assert_eq!(found, BTreeSet::from(["old packed".into(), "packed".into()]));
}

/// A rename of what is in the log goes into the log, and any later force may bring it along.
#[test]
fn on_btrfs_a_rename_of_a_durable_file_survives_the_loss_of_an_earlier_creation() {
    let mut p = Process::on(&BTRFS);
    p.create("A");
    let tmp = p.create("B.tmp");
    p.force(tmp);
    p.rename("B.tmp", "B");
    let names = p.outcomes(|disk| disk.tree().into_keys().collect::<Vec<_>>().join(" "));
    assert_eq!(names, ["B", "B.tmp", "A B", "A B.tmp"].map(String::from).into());
    let mut p = Process::on(&EXT4);
    p.durable("B.tmp", &[]);
    p.create("A");
    p.rename("B.tmp", "B");
    let names = p.outcomes(|disk| disk.tree().into_keys().collect::<Vec<_>>().join(" "));
    assert_eq!(names, ["B.tmp", "A B", "A B.tmp"].map(String::from).into());
}

#[test]
fn bytes_that_an_overwrite_does_not_change_survive_it_unless_the_device_tears() {
    let neighbour = |profile| {
        let mut p = Process::on(profile);
        let a = p.durable("A", &data(1, 100));
        p.write(a, 100, &data(2, 100));
        p.force_dir("");
        p.outcomes(|disk| disk.read_file("A").is_some_and(|bytes| bytes[..100] == data(1, 100)[..]))
    };
    for profile in [&POSIX, &EXT4, &EXT4_WRITEBACK, &XFS, &BTRFS] {
        assert_eq!(neighbour(profile), BTreeSet::from([true]), "{}", profile.name);
    }
    assert_eq!(neighbour(&POSIX_TORN), BTreeSet::from([false, true]));
}

#[test]
fn a_sector_comes_out_in_each_way_of_the_alphabet() {
    for sector_bytes in [512, 4096_u32] {
        let mut p = Process::on(&POSIX_TORN);
        p.disk = SimDisk::new(Options { sector_bytes, ..Options::new(&POSIX_TORN) });
        let sector = sector_bytes as usize;
        let versions: Vec<Vec<u8>> = (0..4).map(|seed| data(seed, sector)).collect();
        let a = p.durable("A", &versions[0]);
        p.write(a, 0, &versions[1]);
        p.force(a);
        p.write(a, 0, &versions[2]);
        p.write(a, 0, &versions[3]);
        let found = p.contents("A");
        let shorn = |old: usize, new: usize| [&versions[new][..sector / 2], &versions[old][sector / 2..]].concat();
        for (what, content) in [
            ("old", versions[1].clone()),
            ("in between", versions[2].clone()),
            ("new", versions[3].clone()),
            ("zero", vec![0; sector]),
            ("shorn", shorn(1, 2)),
            ("shorn across both", shorn(1, 3)),
            ("shorn later", shorn(2, 3)),
            ("stale", versions[0].clone()),
        ] {
            assert!(found.contains(&Some(content)), "{what} of {sector_bytes}");
        }
        assert_eq!(found.len(), 9, "the eight and garbage");
    }
}

#[test]
fn a_removed_file_shows_through_in_fresh_blocks() {
    for (profile, shows) in [(&POSIX, true), (&EXT4_WRITEBACK, true), (&EXT4, false), (&BTRFS, false)] {
        let mut p = Process::on(profile);
        p.durable("removed", &data(9, 512));
        p.run(Effect::Remove { path: "removed".into() });
        p.force_dir("");
        let a = p.durable("A", b"");
        p.write(a, 0, &data(1, 512));
        assert_eq!(p.contents("A").contains(&Some(data(9, 512))), shows, "{}", profile.name);
    }
}

#[test]
fn files_and_sectors_do_not_depend_on_each_other() {
    let mut p = Process::on(&EXT4);
    let a = p.durable("A", &data(1, 1024));
    let b = p.durable("B", &data(1, 512));
    p.write(a, 0, &data(2, 1024));
    p.write(b, 0, &data(2, 512));
    let found = p.outcomes(|disk| (disk.read_file("A"), disk.read_file("B")));
    assert_eq!(found.len(), 8, "two sectors and one, each old or new");
    assert_eq!(p.disk.crash_states(8).unwrap().total(), 8);
    let refused = p.disk.crash_states(7).err().expect("eight are more than seven");
    assert_eq!(
        refused.to_string(),
        "more than 7 states after a power loss: 3 dirty sectors in 2 files, 0 unforced operations on names"
    );
}

#[test]
fn a_lost_cut_leaves_zeros_in_its_block_and_nothing_behind_where_a_cut_is_atomic() {
    for profile in [&EXT4, &XFS, &BTRFS] {
        let (old, new) = (data(1, 5000), data(2, 300));
        let mut p = Process::on(profile);
        let a = p.durable("A", &old);
        p.run(Effect::Truncate { file: a, length: 300 });
        p.write(a, 4200, &new);
        let found = p.contents("A");
        let either = |found: &[u8], other: &[u8]| found.iter().zip(other).all(|(a, b)| *a == 0 || a == b);
        for bytes in found.iter().map(|bytes| bytes.as_ref().unwrap()) {
            let lost = bytes.len() == 5000 && either(&bytes[300..4096], &old[300..]) && bytes[4096..] == old[4096..];
            let kept = bytes.len() <= 4500 && either(&bytes[300..], &[&[0; 3900][..], &new].concat());
            assert!(bytes[..300] == old[..300] && (lost || kept), "{}: {bytes:?}", profile.name);
        }
        for length in [300, 512, 2400, 4096, 4500, 5000] {
            assert!(found.iter().flatten().any(|bytes| bytes.len() == length), "{}: {length}", profile.name);
        }
        let zeroed = [&old[..300], &[0; 3796], &old[4096..]].concat();
        assert!(found.contains(&Some(zeroed)) && found.contains(&Some(old.clone())), "{}", profile.name);
        p.force(a);
        assert_eq!(p.contents("A"), BTreeSet::from([Some([&old[..300], &[0; 3900], &new].concat())]));
    }
}

#[test]
fn what_can_not_be_enumerated_is_refused() {
    let mut p = Process::on(&POSIX);
    let a = p.durable("A", b"x");
    for seed in 0..20 {
        p.write(a, 0, &data(seed, 100));
    }
    let refused = p.disk.crash_states(1_000_000).err().unwrap();
    assert_eq!(refused.reason, "A was overwritten too often without a force");
    let mut p = Process::on(&POSIX);
    (0..40).for_each(|n| p.run(Effect::MakeDir { path: format!("d{n}") }));
    let refused = p.disk.crash_states(1000).err().unwrap();
    assert_eq!(refused.reason, "40 unforced operations on names");
    let mut p = Process::on(&EXT4);
    let a = p.durable("A", &data(1, 512 * 40));
    p.write(a, 0, &data(2, 512 * 40));
    assert_eq!(p.disk.crash_states(1_000_000).err().unwrap().reason, "40 dirty sectors in A");
}

#[test]
fn a_force_covers_what_was_submitted_before_it_and_not_what_ran_before_it() {
    let mut p = Process::on(&POSIX);
    let a = p.durable("A", &data(1, 1024));
    p.write(a, 0, &data(2, 512));
    let force = p.submit(Effect::Force { file: a });
    // Submitted after the force and executed before it: not covered.
    p.write(a, 512, &data(3, 512));
    p.disk.execute(force, None).unwrap();
    let halves: BTreeSet<(bool, bool)> = p.outcomes(|disk| {
        let bytes = disk.read_file("A").unwrap();
        (bytes[..512] == data(2, 512)[..], bytes[512..] == data(3, 512)[..])
    });
    assert_eq!(halves, BTreeSet::from([(true, false), (true, true)]));
}

#[test]
fn the_order_of_execution_is_free_but_for_the_contract() {
    let mut p = Process::on(&POSIX);
    p.run(Effect::MakeDir { path: "d".into() });
    let (a, b) = (p.create("A"), p.create("B"));
    let write = |file| Effect::Write { file, position: 0, bytes: Bytes::from_static(b"x") };
    let ids: Vec<EffectId> = [
        write(a),                                               // 0 runs
        write(b),                                               // 1 runs
        Effect::Force { file: a },                              // 2 after 0
        Effect::Truncate { file: a, length: 0 },                // 3 after 0, not after 2
        Effect::Create { file: FileId(7), path: "C".into() },   // 4 runs
        Effect::Rename { from: "A".into(), to: "D".into() },    // 5 after 4
        Effect::ForceDir { dir: "".into() },                    // 6 after 4 and 5
        Effect::Create { file: FileId(8), path: "d/E".into() }, // 7 runs: another directory
        write(FileId(7)),                                       // 8 after 4
        Effect::CloseFile { file: a },                          // 9 after 0, 2, 3, 11
        Effect::Read { file: b, position: 0, length: 1 },       // 10 runs
        Effect::List { dir: "".into() },                        // 11 runs
    ]
    .into_iter()
    .map(|effect| p.submit(effect))
    .collect();
    let runnable = |p: &Process| -> Vec<usize> {
        p.disk.runnable().iter().map(|id| ids.iter().position(|known| known == id).unwrap()).collect()
    };
    assert_eq!(runnable(&p), [0, 1, 4, 7, 10, 11]);
    p.disk.execute(ids[0], None).unwrap();
    assert_eq!(runnable(&p), [1, 2, 3, 4, 7, 10, 11]);
    p.disk.execute(ids[3], None).unwrap();
    assert_eq!(runnable(&p), [1, 2, 4, 7, 10, 11]);
    p.disk.execute(ids[2], None).unwrap();
    p.disk.execute(ids[4], None).unwrap();
    assert_eq!(runnable(&p), [1, 5, 7, 8, 9, 10, 11]);
    p.disk.execute(ids[5], None).unwrap();
    assert_eq!(runnable(&p), [1, 6, 7, 8, 9, 10, 11]);
    // The cut ran before the force, but was submitted after it: the force has made "x" durable. (A cut that got only
    // as far as clearing the sector leaves a zero.)
    p.disk.execute(ids[6], None).unwrap();
    let left = [Some(b"x".to_vec()), Some(b"\0".to_vec()), Some(b"".to_vec())];
    assert_eq!(p.contents("D"), BTreeSet::from(left));
}

#[test]
#[should_panic(expected = "is not runnable")]
fn a_driver_that_breaks_the_contract_is_told() {
    let mut p = Process::on(&POSIX);
    let a = p.create("A");
    p.submit(Effect::Write { file: a, position: 0, bytes: Bytes::from_static(b"x") });
    p.attempt(Effect::Force { file: a }, None).ok();
}

#[test]
fn a_force_behind_a_failed_write_fails_and_the_next_stands_for_itself() {
    let mut p = Process::on(&POSIX);
    let a = p.durable("A", b"");
    let before = p.submit(Effect::Force { file: a });
    let write = Effect::Write { file: a, position: 0, bytes: Bytes::from_static(b"abcdef") };
    let error = p.attempt(write, Some(Fault::Partial { kind: IoErrorKind::Other, bytes: 4 })).unwrap_err();
    assert_eq!(error.kind, IoErrorKind::Other);
    assert_eq!(p.disk.read_file("A").unwrap(), b"abcd");
    assert!(p.disk.execute(before, None).is_ok(), "it is not behind the failed write");
    let behind = p.attempt(Effect::Force { file: a }, None).unwrap_err();
    assert_eq!(behind.kind, IoErrorKind::AfterFailedWrite);
    p.force(a);
    assert_eq!(p.contents("A"), BTreeSet::from([Some(b"abcd".to_vec())]));
}

#[test]
fn after_a_failed_force_a_second_one_succeeds_and_does_nothing() {
    let mut p = Process::on(&EXT4);
    let a = p.durable("A", &data(1, 1024));
    p.write(a, 0, &data(2, 1024));
    assert!(p.attempt(Effect::Force { file: a }, Some(Fault::Force(FailedForce::MarkedClean))).is_err());
    p.force(a);
    assert_eq!(p.disk.read_file("A").unwrap(), data(2, 1024), "the cache shows the new bytes");
    // A restart without a reboot still reads them, and forces them in vain.
    p.disk.kill(&mut Replay::default());
    let b = FileId(99);
    p.run(Effect::Open { file: b, path: "A".into() });
    p.force(b);
    p.force_dir("");
    let halves = p.outcomes(|disk| {
        let bytes = disk.read_file("A").unwrap();
        (bytes[..512] == data(2, 512)[..], bytes[512..] == data(2, 1024)[512..])
    });
    assert_eq!(halves.len(), 4, "each sector may have been written or not");
    // Only what is written again is forced again.
    p.write(b, 0, &data(2, 512));
    p.force(b);
    let first_half: BTreeSet<bool> = p.outcomes(|disk| disk.read_file("A").unwrap()[..512] == data(2, 512)[..]);
    assert_eq!(first_half, BTreeSet::from([true]));
}

#[test]
fn after_a_failed_force_of_a_grown_file_the_length_may_come_without_the_data() {
    let mut p = Process::on(&EXT4);
    let a = p.durable("A", &data(1, 512));
    p.write(a, 512, &data(2, 512));
    p.attempt(Effect::Force { file: a }, Some(Fault::Error(IoErrorKind::Other))).unwrap_err();
    p.force(a);
    let zeros_behind = [data(1, 512), vec![0; 512]].concat();
    let grown = [data(1, 512), data(2, 512)].concat();
    assert_eq!(p.contents("A"), BTreeSet::from([Some(zeros_behind), Some(grown)]));
}

#[test]
fn a_failed_force_on_btrfs_shows_the_old_bytes_again() {
    let mut p = Process::on(&BTRFS);
    let a = p.durable("A", &data(1, 512));
    p.write(a, 0, &data(2, 1024));
    p.attempt(Effect::Force { file: a }, Some(Fault::Error(IoErrorKind::Other))).unwrap_err();
    assert_eq!(p.disk.read_file("A").unwrap(), [data(1, 512), vec![0; 512]].concat(), "the old content and a hole");
    p.force(a);
    assert_eq!(p.contents("A"), BTreeSet::from([Some([data(1, 512), vec![0; 512]].concat())]));
}

#[test]
fn a_failure_reported_late_comes_with_the_next_force() {
    let mut p = Process::on(&POSIX);
    let a = p.durable("A", &data(1, 512));
    p.write(a, 0, &data(2, 512));
    p.attempt(Effect::Force { file: a }, Some(Fault::Force(FailedForce::ReportedLate))).unwrap();
    assert_eq!(p.contents("A"), BTreeSet::from([Some(data(2, 512))]), "what it covers is safe in the journal");
    p.write(a, 0, &data(3, 512));
    assert!(p.attempt(Effect::Force { file: a }, None).is_err());
    p.force(a);
    let found = p.contents("A");
    assert!(found.contains(&Some(data(2, 512))) && found.contains(&Some(data(3, 512))));
}

#[test]
fn the_entries_of_a_failed_directory_force_are_soft() {
    for profile in Profile::all() {
        let mut p = Process::on(profile);
        let a = p.create("A");
        p.write(a, 0, b"x");
        p.attempt(Effect::ForceDir { dir: "".into() }, Some(Fault::Error(IoErrorKind::Other))).unwrap_err();
        assert!(p.disk.read_file("A").is_some(), "the process sees it");
        p.force(a);
        p.force_dir("");
        // Made anew, with a new name entry, it can be made durable.
        let b = p.create("B.tmp");
        p.write(b, 0, b"y");
        p.force(b);
        p.rename("B.tmp", "B");
        p.force_dir("");
        let found = p.outcomes(|disk| (disk.read_file("A").is_some(), disk.read_file("B").is_some()));
        assert_eq!(found, BTreeSet::from([(false, true), (true, true)]), "{}", profile.name);
        // Even over the soft name itself.
        p.rename("B", "A");
        p.force_dir("");
        assert_eq!(p.contents("A"), BTreeSet::from([Some(b"y".to_vec())]), "{}", profile.name);
    }
}

/// In one queue, too: a force that succeeds has covered what it was submitted for.
#[test]
fn a_failed_directory_force_takes_nothing_from_another_that_succeeds() {
    for profile in Profile::all() {
        let mut p = Process::on(profile);
        for dir in ["a", "b"] {
            p.run(Effect::MakeDir { path: dir.into() });
        }
        p.force_dir("");
        p.durable("a/A", b"x");
        let b = p.create("b/B");
        p.write(b, 0, b"y");
        p.force(b);
        p.create("a/C");
        let (first, second) = (EffectId(1_000_001), EffectId(1_000_002));
        p.disk.submit(first, Effect::ForceDir { dir: "b".into() });
        p.disk.submit(second, Effect::ForceDir { dir: "a".into() });
        p.disk.execute(second, Some(Fault::Error(IoErrorKind::Other))).unwrap_err();
        p.disk.execute(first, None).unwrap();
        assert_eq!(p.contents("b/B"), BTreeSet::from([Some(b"y".to_vec())]), "{}", profile.name);
    }
}

#[test]
fn a_new_root_may_go_as_a_whole_until_its_parent_is_forced() {
    let mut p = Process::on(&POSIX);
    p.disk = SimDisk::new(Options { root_is_new: true, ..Options::new(&POSIX) });
    p.durable("A", b"x");
    assert_eq!(p.contents("A"), BTreeSet::from([None, Some(b"x".to_vec())]));
    p.force_dir("..");
    assert_eq!(p.contents("A"), BTreeSet::from([Some(b"x".to_vec())]));
}

#[test]
fn a_kill_loses_what_is_pending_and_keeps_the_cache() {
    let mut p = Process::on(&POSIX);
    let a = p.durable("A", b"");
    p.write(a, 0, b"unforced");
    p.submit(Effect::Write { file: a, position: 8, bytes: Bytes::from_static(b" torn") });
    p.submit(Effect::Write { file: a, position: 0, bytes: Bytes::from_static(b"never begun") });
    let mut found = BTreeSet::new();
    let mut enumerator = Enumerator::default();
    loop {
        let mut killed = p.disk.clone();
        killed.kill(&mut enumerator);
        assert_eq!(killed.pending().count(), 0);
        found.insert(String::from_utf8(killed.read_file("A").unwrap()).unwrap());
        if !enumerator.advance() {
            break;
        }
    }
    assert_eq!(found, BTreeSet::from(["unforced".into(), "unforced t".into(), "unforced tor".into()]));
    // And what was unforced stays so.
    p.disk.kill(&mut Replay::default());
    assert!(p.contents("A").contains(&Some(b"".to_vec())));
}

#[test]
fn a_full_disk_takes_what_fits_and_gives_space_back() {
    let mut p = Process::on(&POSIX);
    p.disk.set_capacity(Some(2048));
    let a = p.durable("A", &data(1, 1000));
    let long = Effect::Write { file: a, position: 1000, bytes: data(2, 3000).into() };
    let error = p.attempt(long, None).unwrap_err();
    assert_eq!((error.kind, p.disk.used_bytes()), (IoErrorKind::NoSpace, 2048));
    assert_eq!(p.disk.read_file("A").unwrap().len(), 2048, "it fills the last sector");
    assert_eq!(
        p.attempt(Effect::Create { file: FileId(9), path: "B".into() }, None).unwrap_err().kind,
        IoErrorKind::NoSpace
    );
    p.write(a, 0, &data(3, 2048));
    p.run(Effect::Truncate { file: a, length: 1024 });
    assert_eq!(p.disk.used_bytes(), 1024);
    p.run(Effect::Remove { path: "A".into() });
    assert_eq!(p.disk.used_bytes(), 1024, "it is still open");
    p.run(Effect::CloseFile { file: a });
    assert_eq!(p.disk.used_bytes(), 0);
}

#[test]
fn names_answer_as_a_file_system_does() {
    let mut p = Process::on(&POSIX);
    p.run(Effect::MakeDir { path: "d".into() });
    let a = p.create("d/A");
    p.write(a, 3, b"x");
    let mut kind = |effect| p.attempt(effect, None).unwrap_err().kind;
    assert_eq!(kind(Effect::MakeDir { path: "d".into() }), IoErrorKind::Exists);
    assert_eq!(kind(Effect::Create { file: FileId(7), path: "d/A".into() }), IoErrorKind::Exists);
    assert_eq!(kind(Effect::Create { file: FileId(7), path: "e/A".into() }), IoErrorKind::NotFound);
    assert_eq!(kind(Effect::Open { file: FileId(7), path: "d/B".into() }), IoErrorKind::NotFound);
    assert_eq!(kind(Effect::RemoveDir { path: "d".into() }), IoErrorKind::Exists);
    assert_eq!(kind(Effect::Remove { path: "d".into() }), IoErrorKind::Other);
    assert_eq!(kind(Effect::ForceDir { dir: "e".into() }), IoErrorKind::NotFound);
    assert_eq!(kind(Effect::Read { file: FileId(7), position: 0, length: 1 }), IoErrorKind::Other);
    let read = p.attempt(Effect::Read { file: a, position: 2, length: 9 }, None).unwrap();
    assert_eq!(read, Outcome::Read(Bytes::from_static(b"\0x")));
    let listed = p.attempt(Effect::List { dir: "".into() }, None).unwrap();
    assert_eq!(listed, Outcome::Listed(vec![DirEntry { name: "d".into(), is_dir: true }]));
    assert_eq!(p.disk.range(a, 3, 1).unwrap(), Bytes::from_static(b"x"));
    let failed = p.attempt(
        Effect::Rename { from: "d".into(), to: "e".into() },
        Some(Fault::Partial { kind: IoErrorKind::Other, bytes: 0 }),
    );
    assert!(failed.is_err() && p.disk.read_file("e/A").is_some(), "it fails, and was done all the same");
}

#[test]
fn without_faults_it_does_what_the_naive_disk_does() {
    let mut kinds = BTreeSet::new();
    for seed in 0..400 {
        let mut seeded = Seeded::new(seed, 0);
        let mut p = Process::on(&POSIX);
        let mut naive = crate::naive::NaiveDisk::default();
        for step in 0..60 {
            let mut path = || ["A", "B", "d", "d/A", "d/B", "d/e"][seeded.below(6) as usize].to_owned();
            let (one, two) = (path(), path());
            let file = FileId(seeded.below(8));
            let position = seeded.below(1500);
            let effect = match seeded.below(13) {
                0 => Effect::List { dir: one },
                1 => Effect::MakeDir { path: one },
                2 => Effect::Create { file: FileId(step), path: one },
                3 => Effect::Open { file: FileId(step), path: one },
                4 => Effect::CloseFile { file },
                5 => Effect::Read { file, position, length: 700 },
                6 => Effect::Write { file, position, bytes: data(step as u8, 1 + position as usize / 2).into() },
                7 => Effect::Reserve { file, position, length: 600 },
                8 => Effect::Truncate { file, length: position },
                9 => Effect::Force { file },
                10 => Effect::ForceDir { dir: one },
                11 if parent(&one) == parent(&two) => Effect::Rename { from: one, to: two },
                11 => Effect::RemoveDir { path: one },
                _ => Effect::Remove { path: one },
            };
            let expected = naive.execute(&effect).map_err(|error| error.kind);
            let found = p.attempt(effect.clone(), None).map_err(|error| error.kind);
            assert_eq!(found, expected, "seed {seed}: {effect:?}");
            kinds.insert((format!("{effect:?}").split(' ').next().unwrap().to_owned(), found.is_ok()));
            let tree = p.disk.tree();
            let files = tree.iter().filter_map(|(path, bytes)| Some((path.clone(), bytes.clone()?)));
            assert_eq!(files.collect::<BTreeMap<_, _>>(), naive.files(), "seed {seed}: {effect:?}");
        }
    }
    assert_eq!(kinds.len(), 28, "each effect was seen to succeed and to fail: {kinds:?}");
}

#[test]
fn equal_states_have_equal_hashes_and_others_do_not() {
    let mut p = Process::on(&POSIX);
    let a = p.durable("A", &data(1, 600));
    p.write(a, 300, &data(2, 600));
    p.rename("A", "B");
    let mut by_hash = BTreeMap::new();
    let mut states = 0;
    for state in p.disk.crash_states(100_000).unwrap() {
        states += 1;
        let tree = by_hash.entry(state.disk.hash()).or_insert_with(|| state.disk.tree());
        assert_eq!(*tree, state.disk.tree());
        let (again, decisions) = p.disk.crash_state(&state.picks);
        assert_eq!((again.hash(), decisions.len()), (state.disk.hash(), state.picks.len()));
    }
    let trees: BTreeSet<_> = by_hash.values().collect();
    assert_eq!(states, p.disk.crash_states(100_000).unwrap().total());
    assert!(trees.len() > 20 && trees.len() <= by_hash.len(), "{} trees, {} hashes", trees.len(), by_hash.len());
    // Recovered alike on both, the same content is the same state whatever led to it.
    let mut q = Process::on(&POSIX);
    q.durable("C", &data(7, 10));
    let mut r = Process::on(&POSIX);
    r.create("C.tmp");
    r.rename("C.tmp", "C");
    r.write(FileId(1), 0, &data(7, 10));
    r.force(FileId(1));
    assert_ne!(q.disk.hash(), r.disk.hash(), "one of them may still lose its name");
    r.force_dir("");
    assert_eq!(q.disk.hash(), r.disk.hash());
}

#[test]
fn a_seed_draws_only_from_what_is_legal_and_the_zero_tape_loses_nothing() {
    for profile in Profile::all() {
        for seed in 0..100 {
            let mut seeded = Seeded::new(seed, 0);
            let mut p = Process::on(profile);
            let a = p.create("A");
            p.force_dir("");
            // Model: what was forced last, and which of its sectors were not touched since.
            let mut content = Vec::new();
            let mut forced = Vec::new();
            let mut covered = BTreeSet::new();
            for step in 0..seeded.below(30) {
                let position = seeded.below(4000);
                let bytes = data(step as u8, 1 + seeded.below(1500) as usize);
                match seeded.below(4) {
                    0 => {
                        p.force(a);
                        covered.extend(0..20);
                        forced = content.clone();
                    }
                    _ => {
                        p.write(a, position, &bytes);
                        let end = position as usize + bytes.len();
                        content.resize(content.len().max(end), 0);
                        content[position as usize..end].copy_from_slice(&bytes);
                        (position / 512..=(end as u64 - 1) / 512).for_each(|index| {
                            covered.remove(&index);
                        });
                    }
                }
            }
            let mut crashed = p.disk.clone();
            crashed.crash(&mut seeded);
            let survived = crashed.read_file("A").unwrap();
            for (index, sector) in forced.chunks(512).enumerate() {
                let found = survived.get(index * 512..).unwrap_or(&[]);
                let survives = found.starts_with(sector) || !covered.contains(&(index as u64));
                assert!(survives, "{} seed {seed}: sector {index} was forced", profile.name);
            }
            assert!(survived.len() <= content.len());
            let mut mild = p.disk.clone();
            mild.crash(&mut Replay::default());
            assert_eq!(mild.read_file("A").unwrap(), content, "{} seed {seed}", profile.name);
            let mut again = p.disk.clone();
            again.crash(&mut Seeded::new(seed, 1));
            let mut twin = p.disk.clone();
            twin.crash(&mut Seeded::new(seed, 1));
            assert_eq!(again.hash(), twin.hash());
        }
    }
}

#[test]
fn decisions_read_like_sentences() {
    let mut p = Process::on(&POSIX);
    p.run(Effect::MakeDir { path: "log".into() });
    p.force_dir("");
    let a = p.create("log/A");
    p.write(a, 0, &data(1, 512));
    let lost = p.disk.crash_states(1000).unwrap().last().unwrap();
    let (_, decisions) = p.disk.crash_state(&lost.picks);
    assert_eq!(decisions[0].to_string(), "creation of log/A: lost");
    let (_, decisions) = p.disk.crash_state(&[0, 0, 1]);
    let words: Vec<String> = decisions.iter().map(|decision| decision.to_string()).collect();
    assert_eq!(words, ["creation of log/A: kept", "length of log/A: 512 bytes", "sector 0 of log/A: old"]);
}

#[test]
fn a_vandal_leaves_its_mark() {
    let mut p = Process::on(&EXT4);
    let a = p.durable("A", &data(1, 1024));
    p.write(a, 0, &data(2, 1024));
    p.force(a);
    let backup = p.disk.clone();
    let read = |p: &mut Process| p.attempt(Effect::Read { file: a, position: 0, length: 1024 }, None);
    Vandal::new(&mut p.disk).stale_read("A");
    assert_eq!(read(&mut p).unwrap(), Outcome::Read([data(1, 512), data(2, 1024)[512..].to_vec()].concat().into()));
    assert_eq!(read(&mut p).unwrap(), Outcome::Read(data(2, 1024).into()));
    assert!(p.disk.is_damaged() && !backup.is_damaged());
    Vandal::new(&mut p.disk).flip("A", 600, 0x10);
    assert_eq!(p.disk.read_file("A").unwrap()[600], data(2, 1024)[600] ^ 0x10);
    Vandal::new(&mut p.disk).unreadable("A", 1);
    assert!(read(&mut p).is_err());
    p.write(a, 512, &data(3, 512));
    assert!(read(&mut p).is_ok(), "a written sector is mapped elsewhere");
    p.force(a);
    p.durable("B", &data(4, 512));
    Vandal::new(&mut p.disk).misdirect("A", 1, "B", 0);
    assert_eq!(p.disk.read_file("B").unwrap(), data(3, 512));
    assert_ne!(p.disk.read_file("A").unwrap()[512..], data(3, 512)[..]);
    Vandal::new(&mut p.disk).truncate("B", 100);
    Vandal::new(&mut p.disk).delete("A");
    assert_eq!(
        p.outcomes(|disk| disk.tree()),
        BTreeSet::from([BTreeMap::from([("B".to_owned(), Some(data(3, 100)))])])
    );
    Vandal::new(&mut p.disk).restore_file(&backup, "A");
    assert_eq!(p.contents("A"), BTreeSet::from([Some(data(2, 1024))]));
    p.disk.kill(&mut Replay::default());
    Vandal::new(&mut p.disk).restore_all(&backup);
    assert_eq!(p.disk.tree(), backup.tree());
    assert!(p.disk.is_damaged());
}

#[test]
fn a_device_that_lies_loses_what_it_said_was_forced() {
    let mut p = Process::on(&EXT4);
    let a = p.durable("A", &data(1, 512));
    Vandal::new(&mut p.disk).lie(true);
    p.write(a, 0, &data(2, 512));
    p.force(a);
    p.force_dir("");
    assert_eq!(p.contents("A"), BTreeSet::from([Some(data(1, 512)), Some(data(2, 512))]));
    Vandal::new(&mut p.disk).lie(false);
    p.force(a);
    assert_eq!(p.contents("A"), BTreeSet::from([Some(data(2, 512))]));
    Vandal::new(&mut p.disk).lie_about("A");
    p.write(a, 0, &data(3, 512));
    p.force(a);
    assert_eq!(p.contents("A").len(), 2);
    assert!(p.attempt(Effect::Force { file: a }, None).is_err());
}

#[test]
fn a_directory_that_is_gone_is_forgotten_with_its_process() {
    let mut disk = SimDisk::new(Options::new(&POSIX));
    let effects = [
        Effect::MakeDir { path: "a".into() },
        Effect::MakeDir { path: "a/b".into() },
        Effect::RemoveDir { path: "a/b".into() },
        Effect::RemoveDir { path: "a".into() },
        Effect::ForceDir { dir: "".into() },
    ];
    for (id, effect) in (1..).zip(effects) {
        disk.submit(EffectId(id), effect);
    }
    assert!(disk.execute_all().iter().all(|(_, result)| result.is_ok()));
    disk.kill(&mut Replay::new([]));
    disk.submit(EffectId(9), Effect::ForceDir { dir: "".into() });
    disk.execute(EffectId(9), None).unwrap();
}
