//! Failures on demand, for tests of the real binary. Only with the cargo feature `inject`, which the program `plimsoll` refuses
//! to be built with; the program that has it is called `plimsoll-inject`.
//!
//! [`Disk`] stands round the real one, where effects go in and completions come out, and knows nothing of what they mean.
//!
//! # Rules
//!
//! The environment variable `PLIMSOLL_INJECT` holds rules, separated by `;`:
//!
//! ```text
//! <action> <effect> <n>[+] of <path> [after <bytes>]
//! ```
//!
//! A rule is about the n-th effect of a kind whose path contains `<path>`, counted from the start of the process; with `+`
//! about that and all behind it. Effects are `write`, `reserve`, `truncate`, `force`, `force-dir`, `create`, `open`, `rename`, `remove`, `read`.
//!
//! | action | what happens |
//! |---|---|
//! | `crash-before` | what was emitted before it is done; the process gets SIGKILL |
//! | `crash-within` | the same, and the first `<bytes>` bytes of this write are written |
//! | `crash-after` | it is done, and the process gets SIGKILL before the broker is told |
//! | `hold` | it never begins, nor does anything behind it on that file: a device that hangs |
//! | `fail` | it is not done and fails with EIO, as does the force behind a write |
//! | `claim` | it is not done and the broker is told that it is: a broker, or a device, that lies |
//!
//! # What a power loss would leave
//!
//! `PLIMSOLL_INJECT_FORCED` names a copy of the data directory. Each file is copied there when a force of it has returned, so
//! the copy holds what was forced and nothing else. (Names of files are not watched: new ones are there with their first force.)

use crate::disk::{self, Completion, calls};
use plimsoll_core::effect::{Effect, EffectId, FileId, IoError, IoErrorKind, Outcome};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const RULES: &str = "PLIMSOLL_INJECT";
const FORCED: &str = "PLIMSOLL_INJECT_FORCED";
const EFFECTS: [&str; 10] =
    ["write", "reserve", "truncate", "force", "force-dir", "create", "open", "rename", "remove", "read"];

/// The real disk with rules round it.
pub(crate) struct Disk {
    real: disk::Disk,
    rules: Vec<Rule>,
    paths: BTreeMap<FileId, String>,
    /// What a rule has completed.
    completed: VecDeque<Completion>,
    held: BTreeSet<FileId>,
    write_failed: BTreeSet<FileId>,
    /// Effects whose completions are the end, with what is printed then.
    crash_after: BTreeMap<EffectId, String>,
    renames: BTreeMap<EffectId, (String, String)>,
    data: Arc<Path>,
    forced: Option<PathBuf>,
    forces: BTreeMap<EffectId, FileId>,
}

struct Rule {
    text: String,
    action: Action,
    effect: String,
    n: u64,
    and_later: bool,
    path: String,
    seen: u64,
}

#[derive(Clone, Copy)]
enum Action {
    CrashBefore,
    CrashWithin(usize),
    CrashAfter,
    Hold,
    Fail,
    Claim,
}

impl Deref for Disk {
    type Target = disk::Disk;

    fn deref(&self) -> &disk::Disk {
        &self.real
    }
}

impl DerefMut for Disk {
    fn deref_mut(&mut self) -> &mut disk::Disk {
        &mut self.real
    }
}

impl Disk {
    /// See [`disk::Disk::new`].
    pub(crate) fn new(
        root: OwnedFd,
        shown: Arc<Path>,
        threads: usize,
        descriptors: usize,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> io::Result<Disk> {
        let text = std::env::var(RULES).unwrap_or_default();
        let rules = text.split(';').map(str::trim).filter(|rule| !rule.is_empty());
        let parsed = rules.map(|rule| {
            Rule::parse(rule).ok_or_else(|| io::Error::other(format!("{RULES}: {rule:?} is no rule; see inject.rs")))
        });
        Ok(Disk {
            rules: parsed.collect::<io::Result<_>>()?,
            real: disk::Disk::new(root, shown.clone(), threads, descriptors, wake)?,
            paths: BTreeMap::new(),
            completed: VecDeque::new(),
            held: BTreeSet::new(),
            write_failed: BTreeSet::new(),
            crash_after: BTreeMap::new(),
            renames: BTreeMap::new(),
            data: shown,
            forced: std::env::var_os(FORCED).map(PathBuf::from),
            forces: BTreeMap::new(),
        })
    }

    /// See [`disk::Disk::submit`].
    pub(crate) fn submit(&mut self, id: EffectId, effect: Effect) {
        let (kind, path, file) = self.about(&effect);
        let rule = self.rules.iter_mut().find_map(|rule| rule.concerns(kind, &path));
        match rule {
            Some((Action::CrashBefore, rule)) => self.crash(&rule),
            Some((Action::CrashWithin(bytes_written), rule)) => {
                if let Effect::Write { file, position, bytes } = &effect {
                    let bytes = bytes.slice(..bytes_written.min(bytes.len()));
                    self.real.submit(id, Effect::Write { file: *file, position: *position, bytes });
                }
                self.crash(&rule);
            }
            Some((Action::CrashAfter, rule)) => {
                self.crash_after.insert(id, rule);
            }
            Some((Action::Hold, rule)) => {
                say(&rule);
                self.held.extend(file);
            }
            Some((Action::Fail, rule)) => {
                say(&rule);
                if let (Effect::Write { .. } | Effect::Reserve { .. } | Effect::Truncate { .. }, Some(file)) =
                    (&effect, file)
                {
                    self.write_failed.insert(file);
                }
                let error = calls::failure(kind, format!("{path} (injected)"), Errno::IO);
                self.completed.push_back((id, Err(error)));
                return;
            }
            Some((Action::Claim, rule)) => {
                say(&rule);
                self.completed.push_back((id, Ok(Outcome::Done)));
                return;
            }
            None => {}
        }
        let read = matches!(effect, Effect::Read { .. });
        if file.is_some_and(|file| self.held.contains(&file)) && !read {
            return;
        }
        if let Effect::Force { file } = effect {
            if self.write_failed.remove(&file) {
                let error = IoError { kind: IoErrorKind::AfterFailedWrite, detail: format!("force {path} (injected)") };
                self.completed.push_back((id, Err(error)));
                return;
            }
            self.forces.insert(id, file);
        }
        match &effect {
            Effect::Create { file, path } | Effect::Open { file, path } => {
                self.paths.insert(*file, path.clone());
            }
            Effect::Rename { from, to } => {
                self.renames.insert(id, (from.clone(), to.clone()));
            }
            _ => {}
        }
        self.real.submit(id, effect);
    }

    /// See [`disk::Disk::next_completion`].
    pub(crate) fn next_completion(&mut self) -> Option<Completion> {
        let (id, result) = self.completed.pop_front().or_else(|| self.real.next_completion())?;
        if let Some((from, to)) = self.renames.remove(&id) {
            for path in self.paths.values_mut() {
                if let Some(rest) = path.strip_prefix(&from).filter(|rest| rest.is_empty() || rest.starts_with('/')) {
                    *path = format!("{to}{rest}");
                }
            }
        }
        if let (Some(file), true) = (self.forces.remove(&id), result.is_ok()) {
            self.keep_forced(file);
        }
        if let Some(rule) = self.crash_after.remove(&id) {
            self.crash(&rule);
        }
        Some((id, result))
    }

    /// See [`disk::Disk::has_completions`].
    pub(crate) fn has_completions(&self) -> bool {
        !self.completed.is_empty() || self.real.has_completions()
    }

    /// See [`disk::Disk::fall_asleep`].
    pub(crate) fn fall_asleep(&mut self) -> bool {
        self.completed.is_empty() && self.real.fall_asleep()
    }

    /// What an effect is called, and which path and file it is about.
    fn about(&self, effect: &Effect) -> (&'static str, String, Option<FileId>) {
        let of = |file: &FileId| (self.paths.get(file).cloned().unwrap_or_default(), Some(*file));
        let (kind, (path, file)) = match effect {
            Effect::Write { file, .. } => ("write", of(file)),
            Effect::Reserve { file, .. } => ("reserve", of(file)),
            Effect::Truncate { file, .. } => ("truncate", of(file)),
            Effect::Force { file } => ("force", of(file)),
            Effect::Read { file, .. } => ("read", of(file)),
            Effect::CloseFile { file } => ("close", of(file)),
            Effect::Create { path, .. } => ("create", (path.clone(), None)),
            Effect::Open { path, .. } => ("open", (path.clone(), None)),
            Effect::Rename { to, .. } => ("rename", (to.clone(), None)),
            Effect::Remove { path } => ("remove", (path.clone(), None)),
            Effect::ForceDir { dir } => ("force-dir", (dir.clone(), None)),
            _ => ("", (String::new(), None)),
        };
        (kind, path, file)
    }

    /// Copies a file to where what was forced is kept.
    fn keep_forced(&self, file: FileId) {
        let (Some(forced), Some(path)) = (&self.forced, self.paths.get(&file)) else { return };
        if let Err(error) = std::fs::copy(self.data.join(path), forced.join(path)) {
            say(&format!("{path} can't be copied to {}: {error}", forced.display()));
            std::process::abort();
        }
    }

    /// Ends the process as a crash does, when what was emitted before is done.
    fn crash(&mut self, rule: &str) {
        self.real.collect();
        while self.real.is_running() {
            std::thread::sleep(Duration::from_millis(1));
            self.real.collect();
        }
        say(rule);
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        std::process::abort();
    }
}

impl Rule {
    fn parse(text: &str) -> Option<Rule> {
        let mut words = text.split_whitespace();
        let (action, effect, n) = (words.next()?, words.next()?, words.next()?);
        let path = words.next().filter(|of| *of == "of").and_then(|_| words.next())?;
        let bytes = match (words.next(), words.next(), words.next()) {
            (None, ..) => None,
            (Some("after"), Some(bytes), None) => Some(bytes.parse().ok()?),
            _ => return None,
        };
        if !EFFECTS.contains(&effect) {
            return None;
        }
        let action = match (action, bytes) {
            ("crash-before", None) => Action::CrashBefore,
            ("crash-within", Some(bytes)) if effect == "write" => Action::CrashWithin(bytes),
            ("crash-after", None) => Action::CrashAfter,
            ("hold", None) if ["write", "reserve", "truncate", "force"].contains(&effect) => Action::Hold,
            ("fail", None) => Action::Fail,
            // These have an outcome that can't be made up.
            ("claim", None) if !["create", "open", "read"].contains(&effect) => Action::Claim,
            _ => return None,
        };
        Some(Rule {
            text: text.to_owned(),
            action,
            effect: effect.to_owned(),
            n: n.trim_end_matches('+').parse().ok().filter(|n| *n > 0)?,
            and_later: n.ends_with('+'),
            path: path.to_owned(),
            seen: 0,
        })
    }

    /// Counts an effect, and answers what to do with it.
    fn concerns(&mut self, kind: &str, path: &str) -> Option<(Action, String)> {
        if kind != self.effect || !path.contains(&self.path) {
            return None;
        }
        self.seen += 1;
        let now = self.seen == self.n || (self.and_later && self.seen > self.n);
        now.then(|| (self.action, self.text.clone()))
    }
}

/// Into the log of whoever runs the test.
fn say(what: &str) {
    eprintln!("plimsoll-inject: {what}");
}
