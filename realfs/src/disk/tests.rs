use super::*;
use plimsoll_core::effect::DirEntry;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::os::unix::fs::{FileExt, symlink};
use std::sync::mpsc;

/// A disk on a directory of its own, and the numbers of its effects.
struct Bench {
    disk: Disk,
    dir: tempfile::TempDir,
    wakes: mpsc::Receiver<()>,
    next: u64,
    completed: BTreeMap<EffectId, Result<Outcome, IoError>>,
    order: Vec<EffectId>,
}

impl Bench {
    fn new(descriptors: usize) -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let root = rustix::fs::open(dir.path(), OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let (wake, wakes) = mpsc::channel();
        let disk = Disk::new(root, dir.path().into(), 4, descriptors, move || {
            let _ = wake.send(());
        });
        Bench { disk: disk.unwrap(), dir, wakes, next: 0, completed: BTreeMap::new(), order: Vec::new() }
    }

    fn emit(&mut self, effect: Effect) -> EffectId {
        self.next += 1;
        self.disk.submit(EffectId(self.next), effect);
        EffectId(self.next)
    }

    /// What an effect came to.
    fn wait(&mut self, id: EffectId) -> Result<Outcome, IoError> {
        loop {
            self.disk.collect();
            self.disk.run_deferred();
            while let Some((id, result)) = self.disk.next_completion() {
                assert!(self.completed.insert(id, result).is_none(), "{id:?} completed twice");
                self.order.push(id);
            }
            if let Some(result) = self.completed.get(&id) {
                return result.clone();
            }
            if self.disk.fall_asleep() {
                self.wakes.recv_timeout(Duration::from_secs(20)).expect("a completion");
            }
        }
    }

    fn done(&mut self, effect: Effect) -> Outcome {
        let shown = format!("{effect:?}");
        let id = self.emit(effect);
        self.wait(id).unwrap_or_else(|error| panic!("{shown}: {error}"))
    }

    fn fails(&mut self, effect: Effect) -> IoError {
        let id = self.emit(effect);
        self.wait(id).unwrap_err()
    }

    fn create(&mut self, number: u64, path: &str) -> FileId {
        let file = FileId(number);
        self.done(Effect::Create { file, path: path.into() });
        file
    }

    fn content(&self, path: &str) -> Vec<u8> {
        std::fs::read(self.dir.path().join(path)).unwrap()
    }
}

fn write(file: FileId, position: u64, bytes: &[u8]) -> Effect {
    Effect::Write { file, position, bytes: Bytes::copy_from_slice(bytes) }
}

fn read(file: FileId, position: u64, length: u32) -> Effect {
    Effect::Read { file, position, length }
}

#[test]
fn a_file_is_created_written_forced_read_and_closed() {
    let mut bench = Bench::new(100);
    bench.done(Effect::MakeDir { path: "topics".into() });
    let file = bench.create(1, "topics/a");
    bench.done(write(file, 0, b"hello"));
    bench.done(Effect::Reserve { file, position: 5, length: 300_000 });
    bench.done(Effect::Force { file });
    bench.done(Effect::ForceDir { dir: "topics".into() });
    bench.done(Effect::ForceDir { dir: "".into() });
    bench.done(Effect::ForceDir { dir: "..".into() });
    assert_eq!(bench.done(read(file, 1, 3)), Outcome::Read("ell".into()));
    bench.done(Effect::Truncate { file, length: 7 });
    // Short only at the end of the file, and empty behind it.
    assert_eq!(bench.done(read(file, 3, 100)), Outcome::Read("lo\0\0".into()));
    assert_eq!(bench.done(read(file, 7, 100)), Outcome::Read(Bytes::new()));
    assert_eq!(bench.done(read(file, 3, 8 << 20)), Outcome::Read("lo\0\0".into()));
    bench.done(Effect::CloseFile { file });
    assert_eq!(bench.fails(read(file, 0, 1)).kind, IoErrorKind::NotFound);
    assert_eq!(bench.done(Effect::Open { file: FileId(2), path: "topics/a".into() }), Outcome::Opened { length: 7 });
    let entries = [("a", false), ("b", true)].map(|(name, is_dir)| DirEntry { name: name.into(), is_dir });
    bench.done(Effect::MakeDir { path: "topics/b".into() });
    assert_eq!(bench.done(Effect::List { dir: "topics".into() }), Outcome::Listed(entries.into()));
    assert_eq!(bench.fails(Effect::RemoveDir { path: "topics".into() }).kind, IoErrorKind::Exists);
}

#[test]
fn names_files_and_modes_are_what_the_contract_says() {
    use std::os::unix::fs::PermissionsExt;
    let mut bench = Bench::new(100);
    bench.done(Effect::MakeDir { path: "d".into() });
    bench.create(1, "d/f");
    let mode = |path: &str| std::fs::metadata(bench.dir.path().join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("d"), mode("d/f")), (0o700, 0o600));
    let error = bench.fails(Effect::Create { file: FileId(2), path: "d/f".into() });
    assert_eq!(error.kind, IoErrorKind::Exists);
    assert!(error.detail.starts_with("create ") && error.detail.contains("/d/f: File exists"), "{error}");
    assert_eq!(bench.fails(Effect::MakeDir { path: "d".into() }).kind, IoErrorKind::Exists);
    assert_eq!(bench.fails(Effect::Open { file: FileId(3), path: "d/g".into() }).kind, IoErrorKind::NotFound);
    assert_eq!(bench.fails(Effect::Remove { path: "d/g".into() }).kind, IoErrorKind::NotFound);
    // The ids of failed attempts are not taken, and not open.
    assert_eq!(bench.fails(write(FileId(2), 0, b"x")).kind, IoErrorKind::NotFound);
}

#[test]
fn work_emitted_behind_an_open_waits_for_it_and_fails_with_it() {
    let mut bench = Bench::new(100);
    let file = FileId(1);
    bench.emit(Effect::Create { file, path: "a".into() });
    bench.emit(write(file, 0, b"abc"));
    let force = bench.emit(Effect::Force { file });
    let close = bench.emit(Effect::CloseFile { file });
    assert_eq!(bench.wait(close), Ok(Outcome::Done));
    assert_eq!(bench.completed[&force], Ok(Outcome::Done));
    assert_eq!(bench.content("a"), b"abc");
    let file = FileId(2);
    bench.emit(Effect::Open { file, path: "missing".into() });
    let lost = bench.emit(write(file, 0, b"abc"));
    let close = bench.emit(Effect::CloseFile { file });
    assert_eq!(bench.wait(close), Ok(Outcome::Done));
    assert_eq!(bench.completed[&lost].as_ref().unwrap_err().kind, IoErrorKind::NotFound);
}

#[test]
fn writes_of_a_file_run_in_the_order_emitted() {
    let mut bench = Bench::new(100);
    let file = bench.create(1, "a");
    let mut expected = vec![0; 2 << 20];
    let mut last = EffectId(0);
    // Large ones go to a thread, small ones would overtake them if they could; all overlap.
    for round in 0..100_usize {
        let length = [2 << 20, 10, 1 << 20, 100_000][round % 4];
        let byte = round as u8;
        expected[..length].fill(byte);
        last = match round % 7 {
            6 => {
                expected[..length].fill(0);
                bench.emit(Effect::Reserve { file, position: 0, length: length as u64 })
            }
            _ => bench.emit(write(file, 0, &vec![byte; length])),
        };
    }
    bench.wait(last).unwrap();
    assert_eq!(bench.content("a"), expected);
    let mut in_order = bench.order.clone();
    in_order.sort();
    assert_eq!(bench.order, in_order);
}

#[test]
fn a_write_does_not_wait_for_a_force_emitted_before_it() {
    let mut bench = Bench::new(100);
    let file = bench.create(1, "a");
    bench.done(write(file, 0, &vec![1; 8 << 20]));
    let force = bench.emit(Effect::Force { file });
    let after = bench.emit(write(file, 0, b"later"));
    // It is complete at once, in the calling thread; the force is still under way.
    assert_eq!(bench.disk.next_completion(), Some((after, Ok(Outcome::Done))));
    assert!(bench.disk.files[&file].forcing);
    bench.wait(force).unwrap();
    // And is not covered by it.
    let state = &bench.disk.files[&file];
    assert!(state.forced < state.changes && !state.in_idle);
    bench.done(Effect::Force { file });
    assert!(bench.disk.files[&file].in_idle);
}

#[test]
fn a_force_waits_for_the_writes_before_it() {
    let mut bench = Bench::new(100);
    let file = bench.create(1, "a");
    let write = bench.emit(write(file, 0, &vec![1; 4 << 20]));
    let first = bench.emit(Effect::Force { file });
    let second = bench.emit(Effect::Force { file });
    bench.wait(second).unwrap();
    let place = |id| bench.order.iter().position(|done| *done == id).unwrap();
    assert!(place(write) < place(first) && place(first) < place(second));
}

#[test]
fn a_force_behind_a_failed_write_fails_once() {
    let mut bench = Bench::new(100);
    // Every write to it fails with ENOSPC.
    symlink("/dev/full", bench.dir.path().join("full")).unwrap();
    let file = FileId(1);
    bench.done(Effect::Open { file, path: "full".into() });
    // Also when the write is large and in a thread.
    for length in [10, 1 << 20] {
        let write = bench.emit(write(file, 0, &vec![1; length]));
        let force = bench.emit(Effect::Force { file });
        let error = bench.wait(write).unwrap_err();
        assert_eq!(error.kind, IoErrorKind::NoSpace);
        assert!(error.detail.contains("/full: No space left on device"), "{error}");
        assert_eq!(bench.wait(force).unwrap_err().kind, IoErrorKind::AfterFailedWrite);
        // The device can't be forced; what matters is that the mark is gone.
        assert_eq!(bench.fails(Effect::Force { file }).kind, IoErrorKind::Other);
    }
    // A reserve is a write in this.
    assert_eq!(bench.fails(Effect::Reserve { file, position: 0, length: 1 << 20 }).kind, IoErrorKind::NoSpace);
    assert_eq!(bench.fails(Effect::Force { file }).kind, IoErrorKind::AfterFailedWrite);
}

#[test]
fn names_of_a_directory_change_in_the_order_emitted() {
    let mut bench = Bench::new(100);
    bench.create(1, "a");
    let mut last = EffectId(0);
    for _ in 0..50 {
        for (from, to) in [("a", "b"), ("b", "c"), ("c", "a")] {
            last = bench.emit(Effect::Rename { from: from.into(), to: to.into() });
        }
        bench.emit(Effect::ForceDir { dir: "".into() });
    }
    bench.wait(last).unwrap();
    assert!(bench.completed.values().all(Result::is_ok));
    assert!(bench.dir.path().join("a").exists());
}

#[test]
fn a_renamed_file_keeps_its_id_also_without_a_descriptor() {
    let mut bench = Bench::new(1);
    bench.done(Effect::MakeDir { path: "t.tmp".into() });
    let file = bench.create(1, "t.tmp/a");
    bench.done(write(file, 0, b"first"));
    bench.done(Effect::Force { file });
    // Takes the only descriptor.
    let other = bench.create(2, "other");
    assert!(bench.disk.files[&file].fd.is_none());
    bench.emit(Effect::Rename { from: "t.tmp".into(), to: "t".into() });
    let early = bench.emit(read(file, 0, 100));
    assert_eq!(bench.wait(early), Ok(Outcome::Read("first".into())));
    bench.done(write(other, 0, b"x"));
    bench.done(write(file, 0, b"FIRST"));
    assert_eq!(bench.content("t/a"), b"FIRST");
    bench.done(Effect::Rename { from: "t/a".into(), to: "t/b".into() });
    assert_eq!(bench.done(read(file, 0, 100)), Outcome::Read("FIRST".into()));
}

#[test]
fn a_file_whose_name_was_taken_over_stays_the_same_file() {
    let mut bench = Bench::new(1);
    let old = bench.create(1, "a");
    bench.done(write(old, 0, b"old"));
    bench.done(Effect::Force { file: old });
    let new = bench.create(2, "a.tmp");
    bench.done(write(new, 0, b"new"));
    bench.done(Effect::Force { file: new });
    bench.done(Effect::Rename { from: "a.tmp".into(), to: "a".into() });
    let third = bench.create(3, "third");
    assert_eq!(bench.done(read(old, 0, 9)), Outcome::Read("old".into()));
    assert_eq!(bench.done(read(new, 0, 9)), Outcome::Read("new".into()));
    bench.done(Effect::Remove { path: "third".into() });
    bench.done(write(third, 0, b"3"));
    // A force of a file that has no name left would promise what no restart can find.
    assert_eq!(bench.fails(Effect::Force { file: third }).kind, IoErrorKind::NotFound);
}

#[test]
fn many_files_share_few_descriptors_and_unforced_ones_are_forced_first() {
    let mut bench = Bench::new(8);
    let files: Vec<FileId> = (0..100).map(|n| bench.create(n, &format!("f{n}"))).collect();
    for round in 0..3_u8 {
        for file in &files {
            bench.done(write(*file, u64::from(round), &[b'a' + round]));
        }
        assert!(bench.disk.descriptors.open <= 8, "{}", bench.disk.descriptors.open);
    }
    let with_one = bench.disk.files.values().filter(|file| file.fd.is_some()).count();
    assert_eq!(with_one, bench.disk.descriptors.open);
    // None was closed with a write that no force covers.
    assert!(bench.disk.files.values().all(|file| file.fd.is_some() || file.changes == file.forced));
    for n in 0..100 {
        assert_eq!(bench.content(&format!("f{n}")), b"abc");
    }
    // More work at once than there are descriptors: it waits for them.
    let mut last = EffectId(0);
    for file in &files {
        bench.emit(write(*file, 3, &[b'd'; 300_000]));
        last = bench.emit(Effect::Force { file: *file });
    }
    for n in 100..130 {
        bench.emit(Effect::Create { file: FileId(n), path: format!("f{n}") });
    }
    bench.wait(last).unwrap();
    for n in 100..130 {
        bench.done(Effect::CloseFile { file: FileId(n) });
    }
    assert!(bench.completed.values().all(Result::is_ok));
    assert!(bench.disk.descriptors.open <= 8, "{}", bench.disk.descriptors.open);
    for file in files {
        bench.done(Effect::CloseFile { file });
    }
    assert_eq!((bench.disk.descriptors.open, bench.disk.descriptors.idle.len()), (0, 0));
    assert!(bench.disk.files.is_empty() && bench.disk.names.is_empty());
}

#[test]
fn no_descriptor_left_in_the_process_is_an_error_only_when_nothing_can_be_closed() {
    // The limit belongs to the process: run this alone in one.
    const ALONE: &str = "PLIMSOLL_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let name = "disk::tests::no_descriptor_left_in_the_process_is_an_error_only_when_nothing_can_be_closed";
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--test-threads=1"])
            .env(ALONE, "1")
            .status();
        assert!(status.unwrap().success());
        return;
    }
    // More than the process has.
    let mut bench = Bench::new(1_000_000);
    let files: Vec<FileId> = (0..20).map(|n| bench.create(n, &format!("f{n}"))).collect();
    let old = getrlimit(Resource::Nofile);
    let highest = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    setrlimit(Resource::Nofile, Rlimit { current: Some(highest), maximum: old.maximum }).unwrap();
    let more: Vec<FileId> = (20..60).map(|n| bench.create(n, &format!("f{n}"))).collect();
    for file in files.iter().chain(&more) {
        bench.done(write(*file, 0, b"x"));
    }
    bench.done(Effect::ForceDir { dir: "".into() });
    bench.done(Effect::List { dir: "".into() });
    setrlimit(Resource::Nofile, Rlimit { current: Some(3), maximum: old.maximum }).unwrap();
    let error = bench.fails(Effect::Create { file: FileId(99), path: "one-too-many".into() });
    assert_eq!(error.kind, IoErrorKind::TooManyFiles);
    setrlimit(Resource::Nofile, old).unwrap();
    bench.done(Effect::Create { file: FileId(100), path: "one-too-many".into() });
}

#[test]
fn a_lone_force_runs_in_the_calling_thread_and_covers_what_came_before_it() {
    let mut bench = Bench::new(100);
    let file = bench.create(1, "a");
    bench.disk.set_lone(true);
    bench.done(write(file, 0, b"abc"));
    let force = bench.emit(Effect::Force { file });
    assert_eq!((bench.disk.out, bench.disk.next_completion()), (0, None));
    assert!(!bench.disk.fall_asleep());
    bench.disk.run_deferred();
    assert_eq!(bench.disk.next_completion(), Some((force, Ok(Outcome::Done))));
    // Two at once go to the threads, side by side.
    let other = bench.create(2, "b");
    let forces = [bench.emit(Effect::Force { file }), bench.emit(Effect::Force { file: other })];
    assert_eq!(bench.disk.out, 2);
    for force in forces {
        bench.wait(force).unwrap();
    }
}

#[test]
fn a_range_to_send_outlives_its_file() {
    let mut bench = Bench::new(1);
    let file = bench.create(1, "a");
    bench.done(write(file, 0, b"range"));
    bench.done(Effect::Force { file });
    let fd = bench.disk.descriptor_to_send(file).unwrap();
    bench.done(Effect::CloseFile { file });
    bench.done(Effect::Remove { path: "a".into() });
    let mut bytes = [0; 5];
    std::fs::File::from(fd.try_clone().unwrap()).read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"range");
    bench.disk.warm(7, fd, 0, 5);
    while bench.disk.fall_asleep() {
        bench.wakes.recv_timeout(Duration::from_secs(20)).unwrap();
        bench.disk.collect();
    }
    // It may have ended before anybody slept.
    bench.disk.collect();
    assert_eq!(bench.disk.take_warmed(), [7]);
}
