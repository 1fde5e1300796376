//! What README.md and docs/ show is what happens: every `console` block is run, every `transcript` block is spoken.
//!
//! In what is expected, `…` stands for any text within a line, and a line of its own for any number of lines.

use plimsoll_tests::broker::{Broker, Connection, PATIENCE, binary};
use plimsoll_tests::page::{Block, blocks};
use plimsoll_tests::{files, workspace};
use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Instant;

/// The pages, and what may stand behind a fence. Nothing that looks like a command can hide from being run.
fn pages() -> Vec<PathBuf> {
    let mut pages = files(&workspace().join("docs"), ".md");
    pages.extend(["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|name| workspace().join(name)));
    pages
}

fn blocks_of(page: &Path) -> Vec<Block> {
    blocks(&std::fs::read_to_string(page).unwrap_or_else(|e| panic!("{}: {e}", page.display())))
}

#[test]
fn every_block_is_of_a_kind_that_is_checked_or_plain_text() {
    for page in pages() {
        for block in blocks_of(&page) {
            let kind = block.info.split(' ').next().unwrap_or_default();
            let at = format!("{}:{}", page.display(), block.line);
            assert!(["console", "transcript", "hex", "text"].contains(&kind), "{at}: a block of kind {kind:?}");
            if kind == "text" {
                let command = block.lines.iter().find(|line| line.starts_with("$ ") || line.starts_with("plimsoll "));
                assert_eq!(command, None, "{at}: a command that is not run");
            }
        }
    }
}

#[test]
fn links_lead_somewhere() {
    for page in pages() {
        let text = std::fs::read_to_string(&page).expect("a page");
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            if file.contains("://") {
                continue;
            }
            let there = if file.is_empty() { page.clone() } else { page.parent().expect("a folder").join(file) };
            let text = std::fs::read_to_string(&there).unwrap_or_else(|e| panic!("{}: {target}: {e}", page.display()));
            let anchors = text.lines().filter(|line| line.starts_with('#')).map(|heading| {
                let words = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
                words.chars().filter(|c| c.is_alphanumeric() || *c == '-').collect::<String>()
            });
            assert!(anchor.is_empty() || anchors.into_iter().any(|a| a == anchor), "{}: {target}", page.display());
        }
    }
}

#[test]
fn transcripts_are_what_the_broker_answers() {
    let mut spoken = 0;
    for page in pages() {
        let transcripts: Vec<Block> = blocks_of(&page).into_iter().filter(|block| block.info == "transcript").collect();
        if transcripts.is_empty() {
            continue;
        }
        let scratch = tempfile::tempdir().expect("a temporary directory");
        let broker = Broker::start(&scratch.path().join("data"), &[]);
        let mut connection = Connection::open(broker.address());
        for block in transcripts {
            for (index, line) in block.lines.iter().enumerate() {
                let at = format!("{}:{}", page.display(), block.line + 1 + index);
                if let Some(sent) = line.strip_prefix("> ") {
                    connection.send(format!("{sent}\n"));
                    spoken += 1;
                } else {
                    let expected = line.strip_prefix("< ").unwrap_or_else(|| panic!("{at}: neither > nor <"));
                    let came = connection.line();
                    assert!(matches(expected, &came), "{at}: expected {expected:?}, came {came:?}");
                }
            }
        }
        assert_eq!(broker.stop().code(), Some(0));
    }
    assert!(spoken > 20, "only {spoken} lines");
}

#[test]
fn commands_print_what_the_pages_show() {
    let mut run = 0;
    for page in pages() {
        let consoles: Vec<Block> = blocks_of(&page).into_iter().filter(|block| block.info == "console").collect();
        if !consoles.is_empty() {
            let mut shell = Shell::start();
            for block in &consoles {
                run += shell.run_block(&page, block);
            }
        }
    }
    assert!(run > 10, "only {run} commands");
}

/// Whether a line that came is the expected one, `…` standing for any text.
fn matches(expected: &str, came: &str) -> bool {
    let parts: Vec<&str> = expected.split('…').collect();
    let [first, middle @ .., last] = &parts[..] else { return expected == came };
    let Some(mut rest) = came.strip_prefix(first) else { return false };
    for part in middle {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.len() >= last.len() && rest.ends_with(last)
}

#[test]
fn an_ellipsis_stands_for_any_text_within_a_line() {
    for (expected, came) in [("a", "a"), ("a …", "a b c"), ("a…c", "ac"), ("… b …", "a b c"), ("", "")] {
        assert!(matches(expected, came), "{expected} {came}");
    }
    for (expected, came) in [("a", "ab"), ("a…", "b"), ("a…c", "a"), ("a…a", "a"), ("x … y … z", "x y z")] {
        assert!(!matches(expected, came), "{expected} {came}");
    }
}

/// One shell for the commands of a page, so that `&` and `%1` mean what they do in a reader's terminal. Commands that name
/// something of the repository run in its root, all others in an empty directory.
///
/// The port is a free one instead of 7717, by the variables that `plimsoll` reads its defaults from.
struct Shell {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
    port: u16,
    commands: usize,
    _scratch: tempfile::TempDir,
}

impl Shell {
    fn start() -> Shell {
        let scratch = tempfile::tempdir().expect("a temporary directory");
        let installed = scratch.path().join("installed");
        // `cargo install` puts its program here, and what is shown before that is what tests/run has built.
        let built = binary().parent().expect("a folder");
        let path = format!(
            "{}/bin:{}:{}",
            installed.display(),
            built.display(),
            std::env::var("PATH").expect("there is a PATH")
        );
        // Free now; somebody else would have to take it within the second.
        let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port();
        let address = format!("127.0.0.1:{port}");
        let work = scratch.path().join("work");
        std::fs::create_dir(&work).expect("an empty directory");
        let mut child = Command::new("bash")
            .args(["--noprofile", "--norc"])
            .current_dir(&work)
            .env("PATH", path)
            .env("PLIMSOLL_LISTEN", &address)
            .env("PLIMSOLL_ADDRESS", &address)
            .env("CARGO_INSTALL_ROOT", installed)
            .env("CARGO_TERM_QUIET", "true")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .process_group(0)
            .spawn()
            .expect("bash can be started");
        let stdin = child.stdin.take().expect("piped");
        let stdout = child.stdout.take().expect("piped");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut shell = Shell { child, stdin, lines, port, commands: 0, _scratch: scratch };
        shell.tell("exec 2>&1");
        shell.tell(&format!("root={}", workspace().display()));
        shell
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").expect("bash takes a line");
    }

    /// Runs the commands of a block, and says how many.
    fn run_block(&mut self, page: &Path, block: &Block) -> usize {
        let mut commands: Vec<(usize, &str, Vec<&str>)> = Vec::new();
        for (index, line) in block.lines.iter().enumerate() {
            match (line.strip_prefix("$ "), commands.last_mut()) {
                (Some(command), _) => commands.push((block.line + 1 + index, command, Vec::new())),
                (None, Some((_, _, expected))) => expected.push(line),
                (None, None) => panic!("{}:{}: output before a command", page.display(), block.line),
            }
        }
        for (line, command, expected) in &commands {
            self.run(&format!("{}:{line}: $ {command}", page.display()), command, expected);
        }
        commands.len()
    }

    fn run(&mut self, at: &str, command: &str, expected: &[&str]) {
        self.commands += 1;
        let of_repository = command.starts_with("./") || command.starts_with("cargo ");
        let done = format!("\u{1}{}", self.commands);
        if of_repository {
            self.tell(&format!("(cd \"$root\" && {command})"));
        } else {
            self.tell(command);
        }
        self.tell(&format!("echo \"{done} $?\""));
        if command.starts_with("kill ") {
            // A busy machine takes its time to end a process, and a person to type the next command.
            self.tell("while kill -0 %1; do sleep 0.01; done 2>/dev/null");
        }
        let shown = expected.iter().map(|line| line.replace("7717", &self.port.to_string()));
        let mut missing: VecDeque<String> = shown.collect();
        let deadline = Instant::now() + if of_repository { 10 * PATIENCE } else { PATIENCE };
        let mut ended = false;
        // What runs in the background prints after the marker.
        while !ended || (command.ends_with('&') && missing.iter().any(|line| line != "…")) {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(came) if came.starts_with(&done) => {
                    assert_eq!(came, format!("{done} 0"), "{at}: exit status");
                    ended = true;
                }
                Ok(came) if expects(&mut missing, &came) => {}
                // A terminal says "[1]+ Killed" instead; and a temporary directory may be in memory.
                Ok(came) if came.starts_with("bash: line ") || came.starts_with("WARN ") || of_repository => {}
                Ok(came) => panic!("{at}: printed {came:?}, expected {missing:?}"),
                Err(RecvTimeoutError::Timeout) => panic!("{at}: has not printed {missing:?}, ended: {ended}"),
                Err(RecvTimeoutError::Disconnected) => panic!("{at}: the shell is gone"),
            }
        }
        assert!(missing.iter().all(|line| line == "…"), "{at}: has not printed {missing:?}");
    }
}

/// Takes the line that has come off those that are missing, if it is the next of them.
fn expects(missing: &mut VecDeque<String>, came: &str) -> bool {
    let any = missing.front().is_some_and(|line| line == "…");
    if missing.get(usize::from(any)).is_some_and(|line| matches(line, came)) {
        missing.drain(..=usize::from(any));
        return true;
    }
    any
}

#[test]
fn an_ellipsis_on_a_line_of_its_own_stands_for_lines() {
    let taken = |lines: &[&str], came: &[&str]| {
        let mut missing: VecDeque<String> = lines.iter().map(|line| line.to_string()).collect();
        came.iter().all(|line| expects(&mut missing, line)) && missing.iter().all(|line| line == "…")
    };
    assert!(taken(&["a", "…", "d"], &["a", "b", "c", "d"]) && taken(&["…"], &[]) && taken(&["a", "…"], &["a", "b"]));
    assert!(!taken(&["a", "d"], &["a", "b", "d"]) && !taken(&["…", "d"], &["a"]) && !taken(&["a"], &["a", "b"]));
}

impl Drop for Shell {
    fn drop(&mut self) {
        // With all that it has started.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}
