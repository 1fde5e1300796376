//! What every case has: a name, a row in the table, and a folder in which all that happened is kept.

use plimsoll_core::record::OVERHEAD_BYTES;
use plimsoll_tests::broker::{Broker, Connection, binary, injecting_binary, serve};
use plimsoll_tests::workspace;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

/// One row of the table, and how it comes about.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) promises: &'static str,
    pub(crate) done: &'static str,
    /// Checks, and answers what was observed: the same words in every run.
    pub(crate) run: fn(&Run) -> String,
}

const PAGE: &str = "docs/evidence.md";
const BEGIN: &str = "<!-- The table is made by tests/evidence/run. -->";
const HEAD: [&str; 2] = ["| case | kind | what was done | what was observed | shows |", "|---|---|---|---|---|"];

/// The page is changed by one case at a time.
static WRITING: Mutex<()> = Mutex::new(());

/// Runs a case, and compares what was observed with its row, or writes the row where `tests/evidence/run` asks for that.
pub(crate) fn check(cases: &[Case], name: &str) {
    let case = cases.iter().find(|case| case.name == name).expect("a case");
    let run = Run::new(name);
    let observed = (case.run)(&run);
    run.note(format!("observed: {observed}"));
    let row = row(case, &observed);
    if is_writing() {
        let guard = WRITING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        write_row(cases, name, &row);
        drop(guard);
        return;
    }
    let stands = table().into_iter().find(|row| name_of(row) == name);
    assert_eq!(
        stands.as_deref(),
        Some(&row[..]),
        "what was observed is not what {PAGE} says; see {}. If it is what it should be, ./tests/evidence/run writes it",
        run.kept.display()
    );
}

/// Whether rows are to be written instead of compared.
pub(crate) fn is_writing() -> bool {
    std::env::var_os("PLIMSOLL_EVIDENCE").is_some_and(|mode| mode == "write")
}

/// The rows of the page.
pub(crate) fn table() -> Vec<String> {
    let page = fs::read_to_string(workspace().join(PAGE)).expect("the page");
    let (_, behind) = page.split_once(BEGIN).expect("the page has its mark");
    behind.trim_start().lines().skip(HEAD.len()).take_while(|line| line.starts_with('|')).map(String::from).collect()
}

pub(crate) fn name_of(row: &str) -> &str {
    row.split('`').nth(1).unwrap_or_default()
}

fn row(case: &Case, observed: &str) -> String {
    let Case { name, kind, promises, done, .. } = case;
    let cell = |text: &str| text.replace('|', "\\|");
    format!("| `{name}` | {kind} | {} | {} | {promises} |", cell(done), cell(observed))
}

/// Puts a row into the page's table, whose order is that of the cases.
fn write_row(cases: &[Case], name: &str, row: &str) {
    let old = table();
    let path = workspace().join(PAGE);
    let page = fs::read_to_string(&path).expect("the page");
    let (before, behind) = page.split_once(BEGIN).expect("the page has its mark");
    let rest: Vec<&str> = behind.trim_start().lines().skip_while(|line| line.starts_with('|')).collect();
    let rows = cases.iter().filter_map(|case| {
        let stands = old.iter().find(|row| name_of(row) == case.name).cloned();
        if case.name == name { Some(row.to_owned()) } else { stands }
    });
    let table: Vec<String> = HEAD.iter().map(|line| (*line).to_owned()).chain(rows).collect();
    let text = format!("{before}{BEGIN}\n\n{}\n{}\n", table.join("\n"), rest.join("\n"));
    // Others read the page.
    if text != page {
        fs::write(path, text).expect("the page can be written");
    }
}

/// One run of a case. What it keeps is in `target/evidence/<case>/`.
pub(crate) struct Run {
    pub(crate) kept: PathBuf,
    scratch: tempfile::TempDir,
    notes: Mutex<File>,
    processes: AtomicU32,
}

impl Run {
    fn new(name: &str) -> Run {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it lies in the target directory");
        let kept = target.join("evidence").join(name);
        let _ = fs::remove_dir_all(&kept);
        fs::create_dir_all(&kept).expect("a folder");
        fs::write(kept.join("environment"), environment()).expect("a file");
        let notes = File::create(kept.join("transcript")).expect("a file");
        let scratch = tempfile::tempdir().expect("a temporary directory");
        Run { kept, scratch, notes: Mutex::new(notes), processes: AtomicU32::new(0) }
    }

    /// A directory that is removed at the end.
    pub(crate) fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// The data directory of a case that needs one.
    pub(crate) fn data(&self) -> PathBuf {
        self.scratch.path().join("data")
    }

    /// A line of the transcript.
    pub(crate) fn note(&self, line: impl AsRef<str>) {
        let mut notes = self.notes.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        writeln!(notes, "{}", line.as_ref()).expect("the transcript can be written");
    }

    /// Starts the broker that users run.
    pub(crate) fn broker(&self, data: &Path, args: &[&str]) -> Broker {
        self.spawn(serve(binary(), data, args))
    }

    /// Starts one with failures on demand; the rules are explained in `realfs/src/inject.rs`.
    pub(crate) fn injected(&self, data: &Path, args: &[&str], rules: &str) -> Broker {
        self.note(format!("injected: {rules}"));
        let mut command = serve(injecting_binary(), data, args);
        command.env("PLIMSOLL_INJECT", rules);
        self.spawn(command)
    }

    /// Starts a prepared command; its output is kept.
    pub(crate) fn spawn(&self, mut command: Command) -> Broker {
        let (out, err) = self.logs("serve");
        command.stderr(err);
        self.note(format!("$ {}", shown(&command)));
        Broker::spawn_logged(command, Some(out))
    }

    /// Runs a command to its end; its output is kept.
    pub(crate) fn output(&self, mut command: Command, called: &str) -> Output {
        self.note(format!("$ {}", shown(&command)));
        let output = command.stdin(Stdio::null()).output().expect("it can be run");
        let (mut out, mut err) = self.logs(called);
        out.write_all(&output.stdout).and_then(|()| err.write_all(&output.stderr)).expect("it is kept");
        self.note(format!("{}{}", String::from_utf8_lossy(&output.stdout), output.status));
        output
    }

    /// A start that must refuse: the exit code and what was printed.
    pub(crate) fn refused(&self, data: &Path) -> (Option<i32>, String) {
        let output = self.output(serve(binary(), data, &[]), "serve");
        (output.status.code(), String::from_utf8(output.stdout).expect("text"))
    }

    /// A connection by hand, whose words are in the transcript.
    pub(crate) fn connect(&self, broker: &Broker) -> Talk<'_> {
        Talk { run: self, connection: Connection::open(broker.address()) }
    }

    /// The path of the log of a process, by the order in which they were started.
    pub(crate) fn log(&self, called: &str) -> PathBuf {
        let n = self.processes.fetch_add(1, Ordering::Relaxed) + 1;
        self.kept.join(format!("{n:02}-{called}"))
    }

    fn logs(&self, called: &str) -> (File, File) {
        let path = self.log(called);
        let file = |end: &str| File::create(path.with_extension(end)).expect("a log file");
        (file("out"), file("err"))
    }
}

/// A connection that keeps what is said.
pub(crate) struct Talk<'a> {
    run: &'a Run,
    connection: Connection,
}

impl Talk<'_> {
    /// Sends a line, and answers the first line of the reply.
    pub(crate) fn ask(&mut self, line: &str) -> String {
        self.send(line);
        self.line()
    }

    pub(crate) fn send(&mut self, line: &str) {
        self.run.note(format!("> {line}"));
        self.connection.send(format!("{line}\n"));
    }

    /// A line of the reply; empty when the connection is closed.
    pub(crate) fn line(&mut self) -> String {
        let line = self.connection.line();
        self.run.note(format!("< {line}"));
        line
    }

    /// As [`Talk::ask`]; `None` when the connection is gone.
    pub(crate) fn ask_or_lost(&mut self, line: &str) -> Option<String> {
        self.run.note(format!("> {line}"));
        self.connection.try_send(format!("{line}\n"))?;
        let reply = self.connection.try_line().filter(|line| !line.is_empty());
        self.run.note(format!("< {}", reply.as_deref().unwrap_or("(the connection is gone)")));
        reply
    }

    /// Whether no reply comes any more, because the connection is gone.
    pub(crate) fn is_lost(&mut self) -> bool {
        let lost = self.connection.try_line().is_none_or(|line| line.is_empty());
        self.run.note(if lost { "the connection is gone" } else { "a reply came" });
        lost
    }

    /// Publishes a message and checks that it gets this offset at this level.
    #[track_caller]
    pub(crate) fn publish(&mut self, level: &str, value: &str, offset: u64) {
        assert_eq!(self.ask(&format!("PUB {level} {value}")), format!("OK {offset} {level}"));
    }

    /// A reply of several messages: what stands behind `MSG`, and the number behind `END`.
    pub(crate) fn messages(&mut self, request: &str) -> Vec<(u64, String)> {
        self.send(request);
        let mut messages = Vec::new();
        loop {
            let line = self.line();
            if let Some(count) = line.strip_prefix("END ") {
                assert_eq!(count.parse(), Ok(messages.len()));
                return messages;
            }
            let message = line.strip_prefix("MSG ").and_then(|rest| rest.split_once(' '));
            let (offset, value) = message.unwrap_or_else(|| panic!("{line}"));
            messages.push((offset.parse().expect("an offset"), value.to_owned()));
        }
    }
}

/// The events that the main job runs on: real input, and the same in every run.
pub(crate) fn events() -> Vec<String> {
    let text = fs::read_to_string(workspace().join("tests/data/orders-events.jsonl")).expect("the events");
    text.lines().map(String::from).collect()
}

/// How many bytes a message without key and headers takes: docs/file-format.md, *Frame*.
pub(crate) fn frame_bytes(value: &str) -> u64 {
    (OVERHEAD_BYTES + value.len()) as u64
}

/// How many of the acknowledged messages are missing, and how many are others.
pub(crate) fn compare<'a>(log: &[Vec<u8>], acknowledged: impl IntoIterator<Item = (u64, &'a [u8])>) -> (usize, usize) {
    let (mut missing, mut different) = (0, 0);
    for (offset, value) in acknowledged {
        match log.get(offset as usize) {
            None => missing += 1,
            Some(found) => different += usize::from(found != value),
        }
    }
    (missing, different)
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// What the outcome may depend on.
fn environment() -> String {
    let told = |program: &str, args: &[&str]| {
        let output = Command::new(program).args(args).output();
        output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
    };
    let temporary = std::env::temp_dir();
    format!(
        "{}{}{} processors\n{}{}",
        told("uname", &["-a"]),
        told(
            "findmnt",
            &["--noheadings", "--output", "SOURCE,FSTYPE,OPTIONS", "--target", &temporary.to_string_lossy()]
        ),
        std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
        told(&binary().to_string_lossy(), &["--version"]),
        told("rustc", &["--version"]),
    )
}
