//! The real binary as a child process that ends with this one.

use crate::device::Disk;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long anything may take before it counts as stuck: far more than it does on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What is run, and how.
#[derive(Clone, Debug)]
pub struct Program {
    /// `plimsoll`.
    pub binary: PathBuf,
    /// Words before it: a program that runs it under some condition.
    pub before: Vec<OsString>,
}

impl Program {
    /// The same where a disk is mounted.
    pub fn inside(&self, disk: &Disk) -> Program {
        Program { binary: self.binary.clone(), before: [disk.inside(), self.before.clone()].concat() }
    }

    fn serve(&self, data: &Path, settings: &[&str]) -> Command {
        // A broker does not outlive its tester, however that ends.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).args(&self.before).arg(&self.binary);
        command.arg("serve").arg("--data").arg(data).args(["--listen", "127.0.0.1:0"]).args(settings);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

/// A broker that is ready. It is killed when this is dropped.
pub struct Broker {
    process: Process,
    /// Where it listens.
    pub address: String,
    /// What it printed before it was ready.
    pub lines: Vec<String>,
}

/// A broker that did not become ready.
#[derive(Clone, Debug)]
pub struct Refused {
    /// The exit code; `None`: it was killed, or stuck.
    pub code: Option<i32>,
    /// What it printed.
    pub said: String,
}

struct Process {
    child: Child,
    lines: Receiver<String>,
}

impl Broker {
    /// Starts one and waits until it is ready.
    ///
    /// # Errors
    /// When it ends instead, or is not ready in time.
    pub fn start(program: &Program, data: &Path, settings: &[&str]) -> Result<Broker, Refused> {
        let mut process = Process::spawn(program, data, settings);
        let mut lines = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        loop {
            match process.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if line.starts_with("READY ") => {
                    let address = line.split("address=").nth(1).unwrap_or_default().trim().to_owned();
                    return Ok(Broker { process, address, lines });
                }
                Ok(line) => lines.push(line),
                Err(RecvTimeoutError::Timeout) => {
                    return Err(Refused { code: None, said: format!("not ready in time: {}", lines.join("; ")) });
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let code = process.child.wait().expect("the child is ours").code();
                    return Err(Refused { code, said: lines.join("; ") });
                }
            }
        }
    }

    /// Starts one and kills it after a while, wherever it is.
    pub fn start_and_kill(program: &Program, data: &Path, settings: &[&str], after: Duration) {
        let process = Process::spawn(program, data, settings);
        std::thread::sleep(after);
        drop(process);
    }

    /// SIGKILL. It is gone when this returns.
    pub fn kill(self) {}

    /// SIGTERM, and how it ended. `None`: not in time.
    pub fn stop(mut self) -> Option<ExitStatus> {
        let pid = rustix::process::Pid::from_child(&self.process.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("the child is ours");
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(status) = self.process.child.try_wait().expect("the child is ours") {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        None
    }
}

impl Process {
    fn spawn(program: &Program, data: &Path, settings: &[&str]) -> Process {
        let mut command = program.serve(data, settings);
        let mut child = command.spawn().unwrap_or_else(|e| panic!("setpriv(1) of util-linux: {e}"));
        let (sender, lines) = channel();
        let (stdout, stderr) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
        let errors = sender.clone();
        std::thread::spawn(move || forward(BufReader::new(stdout), &sender));
        std::thread::spawn(move || forward(BufReader::new(stderr), &errors));
        Process { child, lines }
    }
}

fn forward(output: impl BufRead, sender: &std::sync::mpsc::Sender<String>) {
    for line in output.lines().map_while(Result::ok) {
        // Read to the end also where nobody listens, or the broker would meet a broken pipe.
        let _ = sender.send(line);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails where it has ended already, which is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
