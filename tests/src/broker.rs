//! The real binary as a child process.

use plimsoll::client::{Client, Delivered, Options};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// How long anything may take before a test gives up: far more than it does on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The `plimsoll` binary: what `PLIMSOLL_BIN` names (`tests/run` sets it), or else built once by cargo.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| match std::env::var_os("PLIMSOLL_BIN") {
        Some(named) => PathBuf::from(named),
        None => build(&["--bin", "plimsoll"]),
    })
}

/// The same program with failures on demand (`realfs/src/inject.rs`), built once by cargo. Its name is another, so the real
/// one stays as it is.
pub fn injecting_binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| build(&["--features", "inject", "--bin", "plimsoll-inject"]))
}

fn build(what: &[&str]) -> PathBuf {
    let built = Command::new(env!("CARGO"))
        .args(["build", "--locked", "--package", "plimsoll", "--message-format", "json"])
        .args(what)
        .current_dir(crate::workspace())
        .stderr(Stdio::inherit())
        .output()
        .expect("cargo runs");
    assert!(built.status.success(), "cargo build {what:?} failed");
    String::from_utf8_lossy(&built.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter_map(|message| message["executable"].as_str().map(PathBuf::from))
        .next_back()
        .expect("cargo names the executable")
}

/// Runs `plimsoll` to its end.
pub fn run<I: AsRef<OsStr>>(args: impl IntoIterator<Item = I>) -> Output {
    Command::new(binary()).args(args).stdin(Stdio::null()).output().expect("plimsoll runs")
}

/// A running broker. It is killed when this is dropped.
pub struct Broker {
    child: Child,
    address: String,
    printed: Arc<Printed>,
}

#[derive(Default)]
struct Printed {
    lines: Mutex<(Vec<String>, bool)>,
    changed: Condvar,
}

impl Broker {
    /// Starts `plimsoll serve` on a data directory and a free port, and waits until it is ready.
    ///
    /// Panics with what it printed when it ends or takes longer than [`PATIENCE`].
    pub fn start(data: &Path, args: &[&str]) -> Broker {
        Broker::spawn(serve(binary(), data, args))
    }

    /// Starts one and kills it after a while, wherever it is: in recovery, say.
    pub fn start_and_kill(data: &Path, args: &[&str], after: Duration) {
        let mut child =
            serve(binary(), data, args).stdout(Stdio::null()).spawn().expect("plimsoll serve can be started");
        std::thread::sleep(after);
        child.kill().expect("the child is ours");
        child.wait().expect("the child is ours");
    }

    /// The same for a prepared command, whose last arguments make it listen on a free port.
    pub fn spawn(command: Command) -> Broker {
        Broker::spawn_logged(command, None)
    }

    /// The same; what it prints on standard output is also appended to this file.
    pub fn spawn_logged(mut command: Command, mut log: Option<std::fs::File>) -> Broker {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("plimsoll serve can be started");
        let stdout = child.stdout.take().expect("piped");
        let printed = Arc::new(Printed::default());
        let collector = Arc::clone(&printed);
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some(log) = &mut log {
                    writeln!(log, "{line}").expect("the log can be written");
                }
                collector.lines.lock().expect("no panic").0.push(line);
                collector.changed.notify_all();
            }
            collector.lines.lock().expect("no panic").1 = true;
            collector.changed.notify_all();
        });
        // From here on a panic kills the child.
        let mut broker = Broker { child, address: String::new(), printed };
        let ready = broker.wait_for_line("READY ");
        let address = ready.split_whitespace().find_map(|word| word.strip_prefix("address="));
        broker.address = address.unwrap_or_else(|| panic!("no address in {ready:?}")).to_string();
        broker
    }

    /// Where it listens, as `host:port`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The lines that it has printed on standard output so far.
    pub fn lines(&self) -> Vec<String> {
        self.printed.lines.lock().expect("no panic").0.clone()
    }

    /// The first line that begins with `start`, when it has been printed.
    ///
    /// Panics when the output ends without it, or after [`PATIENCE`].
    pub fn wait_for_line(&self, start: &str) -> String {
        self.wait_for_line_after(0, start)
    }

    /// The same, without regard to the first lines.
    pub fn wait_for_line_after(&self, lines: usize, start: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        let mut guard = self.printed.lines.lock().expect("no panic");
        loop {
            if let Some(line) = guard.0.iter().skip(lines).find(|line| line.starts_with(start)) {
                return line.clone();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!guard.1 && !left.is_zero(), "no line {start:?} among {:?}", guard.0);
            guard = self.printed.changed.wait_timeout(guard, left).expect("no panic").0;
        }
    }

    /// Every message of a topic below the line, by offset, from 0 on.
    ///
    /// Panics where the offsets have a hole (P2).
    pub fn read_all(&self, topic: Option<&str>) -> Vec<Vec<u8>> {
        let mut client = Client::connect(&self.address, Options::default()).expect("it is ready");
        let end = client.status(topic).expect("a status").durable;
        let mut log: Vec<Vec<u8>> = Vec::new();
        while (log.len() as u64) < end {
            for delivered in client.read(topic, log.len() as u64, 10_000, false).expect("messages").iter() {
                let Delivered::Message(message) = delivered else { panic!("{delivered:?} behind {}", log.len()) };
                assert_eq!(message.offset, log.len() as u64, "a hole");
                log.push(message.value.to_vec());
            }
        }
        log
    }

    /// Waits until it has no file of a topic open whose name is gone: its space is not given back before that.
    ///
    /// Panics with their names after [`PATIENCE`].
    pub fn holds_no_deleted_file_open(&self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let entries = std::fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("it runs");
            let links = entries.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
            let links = links.map(|link| link.to_string_lossy().into_owned());
            let open: Vec<String> =
                links.filter(|link| link.ends_with(" (deleted)") && link.contains("/topics/")).collect();
            if open.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "{open:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// SIGKILL, as a crash of the process. It is gone when this is dropped.
    pub fn kill(&self) {
        // Its id is ours as long as nobody has waited for it, which needs `&mut self`.
        kill_process(Pid::from_child(&self.child), Signal::KILL).expect("the child is ours");
    }

    /// SIGHUP: it reads its configuration again.
    pub fn reload(&self) {
        kill_process(Pid::from_child(&self.child), Signal::HUP).expect("the child is ours");
    }

    /// SIGTERM, and the exit status of the clean stop.
    ///
    /// Panics when it takes longer than [`PATIENCE`].
    pub fn stop(self) -> ExitStatus {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("the child is ours");
        self.wait()
    }

    /// Waits for it to end by itself.
    ///
    /// Panics when it takes longer than [`PATIENCE`].
    pub fn wait(mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("the child is ours") {
                return status;
            }
            assert!(Instant::now() < deadline, "plimsoll serve has not ended; it printed {:?}", self.lines());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// `serve` on a data directory and a free port.
pub fn serve(binary: &Path, data: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(binary);
    command.arg("serve").arg("--data").arg(data).args(["--listen", "127.0.0.1:0"]).args(args).stdin(Stdio::null());
    command
}

impl Drop for Broker {
    fn drop(&mut self) {
        // Fails where it has ended already, which is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection that speaks the line protocol by hand, for tests of exactly what is sent and answered.
pub struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    /// Connects. Every read times out after [`PATIENCE`].
    pub fn open(address: &str) -> Connection {
        let stream = TcpStream::connect(address).unwrap_or_else(|e| panic!("{address}: {e}"));
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
        stream.set_nodelay(true).expect("nodelay can be set");
        Connection { stream: BufReader::new(stream) }
    }

    /// Sends these bytes as they are.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.get_mut().write_all(bytes.as_ref()).expect("the broker takes bytes");
    }

    /// The same; `None` when the connection broke.
    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> Option<()> {
        self.stream.get_mut().write_all(bytes.as_ref()).ok()
    }

    /// Sends a line and returns the first line of the reply, both without their line ends.
    pub fn ask(&mut self, line: &str) -> String {
        self.send(format!("{line}\n"));
        self.line()
    }

    /// Reads a line, without its end. Empty when the broker has closed the connection.
    pub fn line(&mut self) -> String {
        self.read_line().expect("the broker answers in time")
    }

    /// The same; `None` when the connection broke.
    ///
    /// Panics when nothing comes and the connection stands.
    pub fn try_line(&mut self) -> Option<String> {
        match self.read_line() {
            Ok(line) => Some(line),
            Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("the broker does not answer in time"),
            Err(_) => None,
        }
    }

    fn read_line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line)?;
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        Ok(String::from_utf8(line).expect("a line of text"))
    }

    /// Reads exactly n bytes.
    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        let mut bytes = vec![0; n];
        self.stream.read_exact(&mut bytes).expect("the broker answers in time");
        bytes
    }
}
