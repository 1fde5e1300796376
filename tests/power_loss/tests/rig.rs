//! What tests/long/power_loss does at length, in small: power loss under the real broker on real file systems, brokers that
//! don't force, and the simulated disk held against the same file systems.

use plimsoll_tests::broker::binary;
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const RIG: &str = env!("CARGO_BIN_EXE_power-loss");
const FILE_SYSTEMS: [&str; 4] = ["ext4", "ext4-writeback", "xfs", "btrfs"];

/// Runs it; its exit code and, for each file system, the line that it printed.
fn run(args: &str, file_systems: &[&str]) -> (Option<i32>, Vec<Line>) {
    let output = Command::new(RIG).args(args.split(' ')).env("PLIMSOLL_BIN", binary()).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    print!("power-loss {args}\n{said}{}", String::from_utf8_lossy(&output.stderr));
    let line = |name: &&str| {
        let begin = format!("fs={name} ");
        let line = said.lines().find(|line| line.starts_with(&begin));
        Line(line.unwrap_or_else(|| panic!("nothing of {name} in {said:?}")).to_owned())
    };
    (output.status.code(), file_systems.iter().map(line).collect())
}

struct Line(String);

impl Line {
    fn number(&self, key: &str) -> u64 {
        let value = self.0.split(' ').find_map(|word| word.strip_prefix(&format!("{key}=")));
        value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {key} in {}", self.0))
    }
}

/// P1 to P9, P15.
#[test]
fn no_power_loss_breaks_a_promise() {
    let (code, lines) = run("images --images 80 --sessions 3 --replies 60", &FILE_SYSTEMS);
    for line in &lines {
        for none in ["refused", "lostAcked", "unmountable", "otherwise"] {
            assert_eq!(line.number(none), 0, "{}", line.0);
        }
        assert!(line.number("images") == 80 && line.number("distinct") >= 40, "{}", line.0);
        assert!(line.number("durable") >= 30 && line.number("flushes") >= 100, "{}", line.0);
        assert!(line.number("confirmed") >= 20, "{}", line.0);
        for some in ["killedInRecovery", "powerLostInRecovery", "powerLostAfterReading"] {
            assert!(line.number(some) > 0, "{}", line.0);
        }
    }
    assert_eq!(code, Some(0));
}

/// P10, P7 and P1 on a device that fails.
#[test]
fn a_device_that_fails_halts_the_broker_and_nothing_acknowledged_is_lost() {
    let output = Command::new(RIG).arg("errors").env("PLIMSOLL_BIN", binary()).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    for name in FILE_SYSTEMS {
        for (kind, exit) in [("write", 4), ("flush", 4), ("read", 0)] {
            let told = if kind == "read" { "yes" } else { "no" };
            let line = format!("fs={name} fails={kind} acknowledged=60 exit={exit} readerTold={told} lostAcked=0");
            assert!(said.lines().any(|said| said == line), "{line} is not in {said}");
        }
    }
    assert_eq!(output.status.code(), Some(0));
}

/// The rig can see a loss: DURABLE is answered for what nobody has forced.
#[test]
fn a_broker_that_acknowledges_early_loses_messages() {
    let (code, lines) = run("control files --images 100 --sessions 1 --replies 100", &FILE_SYSTEMS);
    // Gone, or missed by the broker itself, which then refuses to start (P7).
    lines.iter().for_each(|line| assert!(line.number("lostAcked") + line.number("refused") > 0, "{}", line.0));
    assert!(lines.iter().map(|line| line.number("lostAcked")).sum::<u64>() > 0);
    assert_eq!(code, Some(0));
}

/// A group file is renamed and ACKED is answered, and the old one comes back (P5).
#[test]
fn a_broker_that_does_not_force_directories_loses_progress() {
    let (code, lines) = run("control directories --images 40 --sessions 1 --replies 60", &FILE_SYSTEMS);
    lines.iter().for_each(|line| assert!(line.number("otherwise") > 0, "{}", line.0));
    assert_eq!(code, Some(0));
}

/// On each of these file systems the first force of a new file brings its name along, so that here nobody can see that the
/// directory was not forced at a roll. docs/power-loss.md says so, and that the simulator sees it.
#[test]
fn a_roll_without_a_directory_force_can_not_be_seen_here() {
    let (code, lines) = run("control directories-at-roll --images 40 --sessions 1 --replies 100", &FILE_SYSTEMS);
    for line in &lines {
        assert!(["refused", "lostAcked", "otherwise"].iter().all(|none| line.number(none) == 0), "{}", line.0);
    }
    assert_eq!(code, Some(10), "nothing was found");
}

#[test]
fn real_file_systems_do_only_what_the_simulator_expects() {
    let (code, lines) = run("conformance --sequences 26 --images 12", &FILE_SYSTEMS);
    for line in &lines {
        assert_eq!((line.number("sequences"), line.number("images")), (26, 312), "{}", line.0);
        assert!(line.number("outside") == 0 && line.number("trees") > 50, "{}", line.0);
    }
    assert_eq!(code, Some(0));
}

/// The same check finds what one file system does and another does not.
#[test]
fn btrfs_is_not_ext4() {
    let (code, lines) = run("conformance --fs btrfs --as ext4 --sequences 12 --images 30", &["btrfs"]);
    assert!(lines[0].number("outside") > 0, "{}", lines[0].0);
    assert_eq!(code, Some(10));
}

/// However it ends: no process, no loop device, no mount and no file stays.
#[test]
fn a_rig_that_is_killed_leaves_nothing_behind() {
    // While it records, and among its images.
    [0, 500, 1500].into_iter().for_each(|ms| kill_a_rig(Duration::from_millis(ms)));
}

fn kill_a_rig(later: Duration) {
    let args = ["images", "--fs", "xfs", "--images", "4000", "--sessions", "1", "--replies", "60"];
    let rig = Command::new(RIG).args(args).env("PLIMSOLL_BIN", binary()).stdout(Stdio::null()).spawn();
    let mut rig = KilledOnDrop(rig.expect("it runs"));
    let id = rig.0.id();
    let deadline = Instant::now() + Duration::from_secs(60);
    let wait = |what: &str, mut is: Box<dyn FnMut() -> bool>| {
        while !is() {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    // unshare(1), sh(1) and the rig are one process, one after the other.
    wait("no loop device", Box::new(move || loop_device(id).is_some()));
    let device = loop_device(id).expect("seen");
    wait("no broker", Box::new(move || children(id).iter().any(|child| command(*child).contains("serve"))));
    std::thread::sleep(later);
    let (backing, children) = (backing(&device), children(id));
    assert!(!backing.is_empty());
    kill_process(Pid::from_child(&rig.0), Signal::KILL).expect("the child is ours");
    rig.0.wait().expect("the child is ours");
    wait("a child stays", Box::new(move || children.iter().all(|child| !command(*child).contains("power-loss"))));
    let what = format!("{} stays: {backing}", device.display());
    wait(&what, Box::new(move || self::backing(&device) != backing));
    let scratch = Path::new(RIG).ancestors().nth(2).expect("a target directory").join("power-loss/scratch");
    assert_eq!(std::fs::read_dir(scratch).expect("there is one").count(), 0);
    assert!(!std::fs::read_to_string("/proc/self/mounts").expect("a list").contains("power-loss/scratch"));
}

struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        // Fails where it has ended already, which is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The loop device that a process has open.
fn loop_device(process: u32) -> Option<PathBuf> {
    let open = std::fs::read_dir(format!("/proc/{process}/fd")).ok()?;
    let mut targets = open.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    targets.find(|target| target.to_string_lossy().starts_with("/dev/loop") && !target.ends_with("loop-control"))
}

/// What a loop device stands on: the device and inode numbers of its file. Empty: on nothing.
fn backing(device: &Path) -> String {
    let output =
        Command::new("losetup").args(["--noheadings", "--output", "BACK-MAJ:MIN,BACK-INO"]).arg(device).output();
    String::from_utf8_lossy(&output.expect("losetup(8) runs").stdout).trim().to_owned()
}

fn children(process: u32) -> Vec<u32> {
    let listed =
        std::fs::read_dir("/proc").expect("proc(5)").filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_child = |id: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        let behind_name = stat.rsplit(") ").next().unwrap_or_default();
        behind_name.split(' ').nth(1) == Some(&process.to_string())
    };
    listed.filter(is_child).collect()
}

fn command(process: u32) -> String {
    let words = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&words).replace('\0', " ")
}
