//! A disk that never fails and a harness that drives a broker on it, for scenario tests of the core.
//!
//! [`NaiveDisk`] carries out each effect correctly and at once; it knows no power loss and loses in a process
//! kill only what was not executed.
//! [`Harness`] owns a broker, such a disk, a clock and the clients, and delivers completions in order:
//!
//! ```
//! use plimsoll_core::config::Config;
//! use plimsoll_core::effect::{Effect, IoErrorKind};
//! use plimsoll_sim::naive::Harness;
//!
//! let mut h = Harness::new(Config { gather_ns_max: 0, ..Config::default() });
//! h.start();
//! let client = h.connect();
//! h.hold(|effect, path| matches!(effect, Effect::Force { .. }) && path.ends_with(".log"));
//! h.send(client, b"PUB WRITTEN hello\n");
//! h.run();
//! let _without_a_force = h.replies(client);
//! h.release();
//! h.run();
//! h.fail_next(|effect, _| matches!(effect, Effect::Force { .. }), IoErrorKind::Other);
//! h.kill_and_restart(Config::default());
//! ```

use crate::disk::SimDisk;
use bytes::Bytes;
use plimsoll_core::broker::Broker;
use plimsoll_core::config::Config;
use plimsoll_core::effect::{
    ConnectionId, DirEntry, Effect, EffectId, Effects, FileId, Halt, IoError, IoErrorKind, Outcome, ReplyPart, Report,
};
use plimsoll_core::event::{Event, Now};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// More events than any scenario needs before it is quiet; beyond it, the broker is going round in circles.
const RUN_STEPS_MAX: u64 = 10_000_000;

/// Decides by an effect and the path it is about (for effects on a [`FileId`]: the file's present name).
pub type Matcher = Box<dyn Fn(&Effect, &str) -> bool>;

/// Owns a broker, a [`NaiveDisk`], a clock and clients.
///
/// Effects are executed one after the other in the order in which they were emitted, which is one of the orders that
/// their contract allows. No time passes but by [`Harness::advance_ms`] and [`Harness::advance_ns`].
pub struct Harness {
    /// The disk, to be looked at and meddled with.
    pub disk: NaiveDisk,
    /// Every effect ever emitted, over all restarts, in order.
    pub effects: Vec<(EffectId, Effect)>,
    /// Every report, in order.
    pub reports: Vec<Report>,
    /// The last `Halt`, until a restart.
    pub halted: Option<Halt>,
    /// Whether `Stopped` was emitted since the last start.
    pub stopped: bool,
    broker: Broker,
    now: Now,
    todo: VecDeque<(EffectId, Effect)>,
    events: VecDeque<Event>,
    held: Vec<Event>,
    hold: Option<Matcher>,
    stop_before: Option<Matcher>,
    failures: Vec<(Matcher, IoErrorKind)>,
    clients: BTreeMap<ConnectionId, Client>,
}

struct Client {
    connected: bool,
    reading: bool,
    unread: VecDeque<Event>,
    received: Vec<u8>,
    /// Whether it takes what it is sent.
    taking: bool,
    untaken: u64,
}

impl Harness {
    /// A broker on an empty disk that has not started. Panics when the configuration is not valid.
    pub fn new(config: Config) -> Harness {
        Harness::with_disk(config, NaiveDisk::default())
    }

    /// A broker that has not started, on a disk that was made before.
    pub fn with_disk(config: Config, disk: NaiveDisk) -> Harness {
        Harness {
            disk,
            effects: Vec::new(),
            reports: Vec::new(),
            halted: None,
            stopped: false,
            broker: Broker::new(config).expect("a valid configuration"),
            now: Now { monotonic_ns: 1_000_000_000, wall_ms: 1_700_000_000_000 },
            todo: VecDeque::new(),
            events: VecDeque::new(),
            held: Vec::new(),
            hold: None,
            stop_before: None,
            failures: Vec::new(),
            clients: BTreeMap::new(),
        }
    }

    /// Tells `Start` and runs until all is quiet.
    pub fn start(&mut self) {
        self.tell(Event::Start);
        self.run();
    }

    /// Tells `Stop` and runs until all is quiet.
    pub fn stop(&mut self) {
        self.tell(Event::Stop);
        self.run();
    }

    /// The operator wants another configuration. Runs until all is quiet.
    pub fn reconfigure(&mut self, config: Config) {
        self.tell(Event::Reconfigure { config: Box::new(config), kept_elsewhere: Vec::new() });
        self.run();
    }

    /// A new client.
    pub fn connect(&mut self) -> ConnectionId {
        let connection = ConnectionId(self.clients.len() as u64);
        let client = Client {
            connected: true,
            reading: true,
            unread: VecDeque::new(),
            received: Vec::new(),
            taking: true,
            untaken: 0,
        };
        self.clients.insert(connection, client);
        self.tell(Event::Connected { connection, peer: format!("sim:{}", connection.0) });
        connection
    }

    /// Sends bytes and runs until all is quiet. Bytes wait here while the broker does not read (flow control).
    pub fn send(&mut self, connection: ConnectionId, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.client_says(connection, Event::Received { connection, bytes: Bytes::copy_from_slice(bytes) });
        }
        self.run();
    }

    /// The client sends no more.
    pub fn end_input(&mut self, connection: ConnectionId) {
        self.client_says(connection, Event::InputEnded { connection });
        self.run();
    }

    /// The client is gone at once.
    pub fn disconnect(&mut self, connection: ConnectionId) {
        self.cut(connection);
        self.run();
    }

    /// Whether the client takes what it is sent. What it doesn't take stays in the broker's memory: no `Sent` comes for it
    /// until it takes again. [`Harness::replies`] shows it all the same.
    pub fn set_taking(&mut self, connection: ConnectionId, on: bool) {
        let client = self.clients.get_mut(&connection).expect("a known connection");
        client.taking = on;
        let bytes = std::mem::take(&mut client.untaken);
        if on && bytes > 0 && client.connected {
            self.tell(Event::Sent { connection, bytes });
        }
        self.run();
    }

    /// A client that does not take what it is sent takes this many bytes of it after all.
    pub fn take(&mut self, connection: ConnectionId, bytes: u64) {
        let client = self.clients.get_mut(&connection).expect("a known connection");
        let bytes = bytes.min(client.untaken);
        client.untaken -= bytes;
        if bytes > 0 && client.connected {
            self.tell(Event::Sent { connection, bytes });
        }
        self.run();
    }

    /// Whether the connection stands.
    pub fn is_connected(&self, connection: ConnectionId) -> bool {
        self.clients[&connection].connected
    }

    /// Whether the broker reads from the connection.
    pub fn is_reading(&self, connection: ConnectionId) -> bool {
        self.clients[&connection].reading
    }

    /// What the client was sent since the last call, as text.
    pub fn replies(&mut self, connection: ConnectionId) -> String {
        String::from_utf8_lossy(&self.reply_bytes(connection)).into_owned()
    }

    /// What the client was sent since the last call.
    pub fn reply_bytes(&mut self, connection: ConnectionId) -> Vec<u8> {
        std::mem::take(&mut self.clients.get_mut(&connection).expect("a known connection").received)
    }

    /// [`Harness::send`], then [`Harness::replies`].
    pub fn ask(&mut self, connection: ConnectionId, bytes: &[u8]) -> String {
        self.send(connection, bytes);
        self.replies(connection)
    }

    /// The time now.
    pub fn now(&self) -> Now {
        self.now
    }

    /// When the broker wants to be woken, milliseconds from now, rounded down.
    pub fn wakes_in_ms(&self) -> Option<u64> {
        self.broker.next_wake().map(|wake| wake.saturating_sub(self.now.monotonic_ns) / 1_000_000)
    }

    /// Lets milliseconds pass; the broker is woken when it wants to be.
    pub fn advance_ms(&mut self, ms: u64) {
        self.advance_ns(ms * 1_000_000);
    }

    /// Lets nanoseconds pass; the broker is woken when it wants to be.
    pub fn advance_ns(&mut self, ns: u64) {
        let end = self.now.monotonic_ns + ns;
        self.run();
        while let Some(wake) = self.broker.next_wake().filter(|wake| *wake <= end) {
            self.set_time(wake.max(self.now.monotonic_ns));
            self.run();
            if self.stop_before.is_some() && !self.todo.is_empty() {
                return;
            }
        }
        self.set_time(end);
        self.run();
    }

    /// Steps the wall clock, forwards or back. The monotonic clock stays.
    pub fn step_wall_ms(&mut self, ms: i64) {
        self.now.wall_ms += ms;
    }

    /// Executes effects and delivers events until there is nothing left to do at this moment, or until
    /// [`Harness::stop_before`] matches. Panics when that never comes to an end.
    pub fn run(&mut self) {
        for _ in 0..RUN_STEPS_MAX {
            if !self.step() {
                return;
            }
        }
        panic!("the broker is not quiet after {RUN_STEPS_MAX} steps");
    }

    /// Delivers one event or executes one effect. `false`: there is nothing to do.
    pub fn step(&mut self) -> bool {
        if let Some(event) = self.events.pop_front() {
            self.handle(event);
            return true;
        }
        if let Some((_, effect)) = self.todo.front() {
            let path = self.disk.path_of(effect);
            if self.stop_before.as_ref().is_some_and(|matches| matches(effect, &path)) {
                return false;
            }
            let (id, effect) = self.todo.pop_front().expect("just seen");
            self.execute(id, effect, &path);
            return true;
        }
        if self.broker.next_wake().is_some_and(|wake| wake <= self.now.monotonic_ns) {
            self.handle(Event::Wake);
            return true;
        }
        false
    }

    /// From now on the completions of matching effects are held back (the effects are executed all the same).
    pub fn hold(&mut self, matches: impl Fn(&Effect, &str) -> bool + 'static) {
        self.hold = Some(Box::new(matches));
    }

    /// Nothing is held back any more; what was, is delivered at the next [`Harness::run`], in order.
    pub fn release(&mut self) {
        self.hold = None;
        self.events.extend(self.held.drain(..));
    }

    /// Delivers what was held back, last first, and holds nothing back any more.
    pub fn release_reversed(&mut self) {
        self.hold = None;
        self.events.extend(self.held.drain(..).rev());
    }

    /// How many completions are held back.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// [`Harness::run`] stops before the next matching effect is executed: the place for a kill.
    pub fn stop_before(&mut self, matches: impl Fn(&Effect, &str) -> bool + 'static) {
        self.stop_before = Some(Box::new(matches));
    }

    /// Takes [`Harness::stop_before`] back.
    pub fn go_on(&mut self) {
        self.stop_before = None;
    }

    /// The next effect that matches fails, once, without doing anything.
    pub fn fail_next(&mut self, matches: impl Fn(&Effect, &str) -> bool + 'static, kind: IoErrorKind) {
        self.failures.push((Box::new(matches), kind));
    }

    /// How many failures asked for by [`Harness::fail_next`] have not happened.
    pub fn unfired_failures(&self) -> usize {
        self.failures.len()
    }

    /// Kills the process: what was not executed is lost, the files stay, every connection is gone, held completions and
    /// hooks are forgotten. Then a new broker starts, and runs until all is quiet.
    pub fn kill_and_restart(&mut self, config: Config) {
        self.kill(config);
        self.start();
    }

    /// [`Harness::kill_and_restart`] without the start.
    pub fn kill(&mut self, config: Config) {
        self.broker = Broker::new(config).expect("a valid configuration");
        self.disk.close_all();
        self.todo.clear();
        self.events.clear();
        self.held.clear();
        self.hold = None;
        self.stop_before = None;
        self.failures.clear();
        self.halted = None;
        self.stopped = false;
        for client in self.clients.values_mut() {
            client.connected = false;
            client.unread.clear();
        }
    }

    fn set_time(&mut self, monotonic_ns: u64) {
        let passed_ms = monotonic_ns / 1_000_000 - self.now.monotonic_ns / 1_000_000;
        self.now.monotonic_ns = monotonic_ns;
        self.now.wall_ms += passed_ms as i64;
    }

    fn tell(&mut self, event: Event) {
        self.events.push_back(event);
    }

    fn client_says(&mut self, connection: ConnectionId, event: Event) {
        let client = self.clients.get_mut(&connection).expect("a known connection");
        match (client.connected, client.reading) {
            (false, _) => {}
            (true, false) => client.unread.push_back(event),
            (true, true) => self.events.push_back(event),
        }
    }

    fn cut(&mut self, connection: ConnectionId) {
        let client = self.clients.get_mut(&connection).expect("a known connection");
        if client.connected {
            client.connected = false;
            client.unread.clear();
            self.events.push_back(Event::Disconnected { connection });
        }
    }

    fn handle(&mut self, event: Event) {
        let mut emitted = Vec::new();
        self.broker.handle(self.now, event, &mut emitted);
        self.effects.extend(emitted.iter().cloned());
        self.todo.extend(emitted);
    }

    fn execute(&mut self, id: EffectId, effect: Effect, path: &str) {
        match effect {
            Effect::Reply { connection, part } => {
                let bytes = match part {
                    ReplyPart::Bytes(bytes) => bytes,
                    ReplyPart::FileRange { file, position, length } => self.disk.file_range(file, position, length),
                };
                let client = self.clients.get_mut(&connection).expect("a known connection");
                if client.connected {
                    client.received.extend_from_slice(&bytes);
                    if client.taking {
                        self.events.push_back(Event::Sent { connection, bytes: bytes.len() as u64 });
                    } else {
                        client.untaken += bytes.len() as u64;
                    }
                }
            }
            Effect::SetReading { connection, on } => {
                let client = self.clients.get_mut(&connection).expect("a known connection");
                client.reading = on;
                if on {
                    self.events.extend(client.unread.drain(..));
                }
            }
            // Not now: only once everything has been sent, which a client that takes nothing prevents.
            Effect::Disconnect { connection, now } => {
                if now || self.clients[&connection].untaken == 0 {
                    self.cut(connection);
                }
            }
            Effect::Report(report) => self.reports.push(report),
            Effect::Halt(halt) => self.halted = Some(halt),
            Effect::Stopped => self.stopped = true,
            effect => {
                let hold = self.hold.as_ref().is_some_and(|matches| matches(&effect, path));
                let failure = self.failures.iter().position(|(matches, _)| matches(&effect, path));
                let result = match failure {
                    Some(index) => self.disk.fail(&effect, self.failures.remove(index).1),
                    None => self.disk.execute(&effect),
                };
                let event = Event::Completed { id, result };
                if hold {
                    self.held.push(event);
                } else {
                    self.events.push_back(event);
                }
            }
        }
    }
}

impl Effects for Harness {
    /// Takes an effect as if the broker had emitted it.
    fn emit(&mut self, id: EffectId, effect: Effect) {
        self.effects.push((id, effect.clone()));
        self.todo.push_back((id, effect));
    }
}

/// An in-memory disk that executes each effect at once and correctly.
#[derive(Clone, Default)]
pub struct NaiveDisk {
    inodes: BTreeMap<u64, Vec<u8>>,
    files: BTreeMap<String, u64>,
    dirs: BTreeSet<String>,
    handles: BTreeMap<FileId, Handle>,
    inode_next: u64,
}

#[derive(Clone)]
struct Handle {
    inode: u64,
    open: bool,
    write_failed: bool,
}

impl NaiveDisk {
    /// Executes one effect. Panics for an effect that has nothing to do with the disk.
    pub fn execute(&mut self, effect: &Effect) -> Result<Outcome, IoError> {
        match effect {
            Effect::List { dir } => {
                self.dir_must_exist(dir)?;
                let files = self.files.keys().map(|path| (path, false));
                let dirs = self.dirs.iter().map(|path| (path, true));
                let mut entries: Vec<DirEntry> = files
                    .chain(dirs)
                    .filter(|(path, _)| parent(path) == dir)
                    .map(|(path, is_dir)| DirEntry { name: name(path).to_owned(), is_dir })
                    .collect();
                entries.sort();
                return Ok(Outcome::Listed(entries));
            }
            Effect::MakeDir { path } => {
                self.name_must_be_free(path)?;
                self.dirs.insert(path.clone());
            }
            Effect::Create { file, path } => {
                self.name_must_be_free(path)?;
                let inode = self.new_inode(Vec::new());
                self.files.insert(path.clone(), inode);
                self.open(*file, inode);
            }
            Effect::Open { file, path } => {
                let inode = self.inode_at(path)?;
                self.open(*file, inode);
                return Ok(Outcome::Opened { length: self.inodes[&inode].len() as u64 });
            }
            Effect::CloseFile { file } => self.handle(*file)?.open = false,
            Effect::Read { file, position, length } => {
                let content = self.content(*file)?;
                let from = usize::try_from(*position).unwrap_or(usize::MAX).min(content.len());
                let to = (from + *length as usize).min(content.len());
                return Ok(Outcome::Read(Bytes::copy_from_slice(&content[from..to])));
            }
            Effect::Write { file, position, bytes } => write_at(self.content(*file)?, *position, bytes),
            Effect::Reserve { file, position, length } => {
                write_at(self.content(*file)?, *position, &vec![0; *length as usize]);
            }
            Effect::Truncate { file, length } => self.content(*file)?.resize(*length as usize, 0),
            Effect::Force { file } => {
                let handle = self.handle(*file)?;
                if std::mem::take(&mut handle.write_failed) {
                    return Err(error(IoErrorKind::AfterFailedWrite, "a write before this force failed", ""));
                }
            }
            Effect::ForceDir { dir } => {
                if dir != ".." {
                    self.dir_must_exist(dir)?;
                }
            }
            Effect::Rename { from, to } => self.rename(from, to)?,
            Effect::Remove { path } => {
                self.inode_at(path)?;
                self.files.remove(path);
            }
            Effect::RemoveDir { path } => {
                self.dir_must_exist(path)?;
                self.dir_must_be_empty(path)?;
                self.dirs.remove(path);
            }
            Effect::Reply { .. }
            | Effect::SetReading { .. }
            | Effect::Disconnect { .. }
            | Effect::Report(_)
            | Effect::Halt(_)
            | Effect::Stopped => panic!("not an effect on the disk: {effect:?}"),
        }
        Ok(Outcome::Done)
    }

    /// Fails an effect without doing anything of it.
    pub fn fail(&mut self, effect: &Effect, kind: IoErrorKind) -> Result<Outcome, IoError> {
        let path = self.path_of(effect);
        if let Effect::Write { file, .. } | Effect::Reserve { file, .. } | Effect::Truncate { file, .. } = effect {
            self.handle(*file)?.write_failed = true;
        }
        Err(error(kind, "injected failure", &path))
    }

    /// The path that an effect is about: its own, or the present name of its file (`""` when it has none).
    pub fn path_of(&self, effect: &Effect) -> String {
        let name = |file: FileId| {
            let inode = self.handles.get(&file).map(|handle| handle.inode);
            let named = self.files.iter().find(|(_, named)| Some(**named) == inode);
            named.map(|(path, _)| path.clone()).unwrap_or_default()
        };
        match effect {
            Effect::Reply { part: ReplyPart::FileRange { file, .. }, .. } => name(*file),
            _ => SimDisk::path_in(effect, name).unwrap_or_default(),
        }
    }

    /// Every file with its bytes, by path: to compare before and after.
    pub fn files(&self) -> BTreeMap<String, Vec<u8>> {
        self.files.iter().map(|(path, inode)| (path.clone(), self.inodes[inode].clone())).collect()
    }

    /// Every directory but the root, by path.
    pub fn dirs(&self) -> &BTreeSet<String> {
        &self.dirs
    }

    /// The bytes of a file.
    pub fn file(&self, path: &str) -> Option<&[u8]> {
        self.files.get(path).map(|inode| &self.inodes[inode][..])
    }

    /// The bytes of a file, to be meddled with. Panics where there is none.
    pub fn file_mut(&mut self, path: &str) -> &mut Vec<u8> {
        let inode = self.files.get(path).unwrap_or_else(|| panic!("no file {path}"));
        self.inodes.get_mut(inode).expect("a named inode")
    }

    /// Puts a file there, replacing what stood under its name; makes the directories on the way.
    pub fn put(&mut self, path: &str, bytes: &[u8]) {
        let mut dir = parent(path);
        while !dir.is_empty() {
            self.dirs.insert(dir.to_owned());
            dir = parent(dir);
        }
        let inode = self.new_inode(bytes.to_vec());
        self.files.insert(path.to_owned(), inode);
    }

    /// Takes a file away, as a person would. Panics where there is none.
    pub fn take_away(&mut self, path: &str) {
        self.files.remove(path).unwrap_or_else(|| panic!("no file {path}"));
    }

    /// How many files stand open.
    pub fn open_files(&self) -> usize {
        self.handles.values().filter(|handle| handle.open).count()
    }

    /// Forgets every open file, as the end of a process does.
    pub fn close_all(&mut self) {
        self.handles.clear();
        let named: BTreeSet<u64> = self.files.values().copied().collect();
        self.inodes.retain(|inode, _| named.contains(inode));
    }

    fn file_range(&mut self, file: FileId, position: u64, length: u64) -> Bytes {
        // The range stays usable after CloseFile.
        let handle = self.handles.get(&file).expect("a file that was opened");
        let content = &self.inodes[&handle.inode];
        Bytes::copy_from_slice(&content[position as usize..(position + length) as usize])
    }

    fn new_inode(&mut self, content: Vec<u8>) -> u64 {
        self.inode_next += 1;
        self.inodes.insert(self.inode_next, content);
        self.inode_next
    }

    fn open(&mut self, file: FileId, inode: u64) {
        let before = self.handles.insert(file, Handle { inode, open: true, write_failed: false });
        assert!(before.is_none(), "the contract: {file:?} is used twice");
    }

    fn handle(&mut self, file: FileId) -> Result<&mut Handle, IoError> {
        let handle = self.handles.get_mut(&file).filter(|handle| handle.open);
        handle.ok_or_else(|| error(IoErrorKind::Other, "not an open file", &format!("{file:?}")))
    }

    fn content(&mut self, file: FileId) -> Result<&mut Vec<u8>, IoError> {
        let inode = self.handle(file)?.inode;
        Ok(self.inodes.get_mut(&inode).expect("an open inode"))
    }

    fn inode_at(&self, path: &str) -> Result<u64, IoError> {
        match self.files.get(path) {
            Some(inode) => Ok(*inode),
            None if self.is_dir(path) => Err(error(IoErrorKind::Other, "is a directory", path)),
            None => Err(self.nothing_at(path)),
        }
    }

    fn is_dir(&self, path: &str) -> bool {
        path.is_empty() || self.dirs.contains(path)
    }

    fn dir_must_exist(&self, path: &str) -> Result<(), IoError> {
        if self.is_dir(path) { Ok(()) } else { Err(self.nothing_at(path)) }
    }

    /// Why there is no file or no directory of this name.
    fn nothing_at(&self, path: &str) -> IoError {
        let mut prefix = path;
        while !prefix.is_empty() {
            if self.files.contains_key(prefix) {
                return error(IoErrorKind::Other, "not a directory", path);
            }
            prefix = parent(prefix);
        }
        error(IoErrorKind::NotFound, "no such file or directory", path)
    }

    fn dir_must_be_empty(&self, path: &str) -> Result<(), IoError> {
        if self.files.keys().chain(&self.dirs).any(|inner| !inner.is_empty() && parent(inner) == path) {
            return Err(error(IoErrorKind::Exists, "directory not empty", path));
        }
        Ok(())
    }

    fn name_must_be_free(&self, path: &str) -> Result<(), IoError> {
        self.dir_must_exist(parent(path))?;
        if self.files.contains_key(path) || self.is_dir(path) {
            return Err(error(IoErrorKind::Exists, "exists already", path));
        }
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), IoError> {
        assert_eq!(parent(from), parent(to), "the contract: a rename stays in its directory");
        if let Some(inode) = self.files.get(from).copied() {
            if self.is_dir(to) {
                return Err(error(IoErrorKind::Other, "is a directory", to));
            }
            self.files.remove(from);
            self.files.insert(to.to_owned(), inode);
            return Ok(());
        }
        self.dir_must_exist(from)?;
        if self.files.contains_key(to) {
            return Err(error(IoErrorKind::Other, "not a directory", to));
        }
        if from != to {
            self.dir_must_be_empty(to)?;
        }
        let moved = |path: &String| match path.strip_prefix(from) {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("{to}{rest}"),
            _ => path.clone(),
        };
        self.files = self.files.iter().map(|(path, inode)| (moved(path), *inode)).collect();
        self.dirs = self.dirs.iter().map(moved).collect();
        Ok(())
    }
}

fn error(kind: IoErrorKind, what: &str, path: &str) -> IoError {
    IoError { kind, detail: format!("{what}: {path}") }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(dir, _)| dir)
}

fn name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

fn write_at(content: &mut Vec<u8>, position: u64, bytes: &[u8]) {
    let end = position as usize + bytes.len();
    if content.len() < end {
        content.resize(end, 0);
    }
    content[position as usize..end].copy_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(path: &str) -> String {
        path.to_owned()
    }

    #[test]
    fn a_file_keeps_its_id_through_a_rename_of_itself_and_of_its_directory() {
        let mut disk = NaiveDisk::default();
        let file = FileId(1);
        disk.execute(&Effect::MakeDir { path: s("t.tmp") }).unwrap();
        disk.execute(&Effect::MakeDir { path: s("t.tmp/log") }).unwrap();
        disk.execute(&Effect::Create { file, path: s("t.tmp/log/a") }).unwrap();
        disk.execute(&Effect::Write { file, position: 2, bytes: Bytes::from_static(b"xy") }).unwrap();
        disk.execute(&Effect::Rename { from: s("t.tmp/log/a"), to: s("t.tmp/log/b") }).unwrap();
        disk.execute(&Effect::Rename { from: s("t.tmp"), to: s("t") }).unwrap();
        disk.execute(&Effect::Write { file, position: 0, bytes: Bytes::from_static(b"vw") }).unwrap();
        assert_eq!(disk.file("t/log/b"), Some(&b"vwxy"[..]));
        assert_eq!(disk.path_of(&Effect::Force { file }), "t/log/b");
        let listed = disk.execute(&Effect::List { dir: s("t") }).unwrap();
        assert_eq!(listed, Outcome::Listed(vec![DirEntry { name: s("log"), is_dir: true }]));
        let error = disk.execute(&Effect::RemoveDir { path: s("t/log") }).unwrap_err();
        assert_eq!(error.kind, IoErrorKind::Exists);
    }

    #[test]
    fn a_force_behind_a_failed_write_fails_once() {
        let mut disk = NaiveDisk::default();
        let file = FileId(1);
        disk.execute(&Effect::Create { file, path: s("a") }).unwrap();
        let write = Effect::Write { file, position: 0, bytes: Bytes::from_static(b"x") };
        disk.fail(&write, IoErrorKind::NoSpace).unwrap_err();
        assert_eq!(disk.execute(&Effect::Force { file }).unwrap_err().kind, IoErrorKind::AfterFailedWrite);
        assert!(disk.execute(&Effect::Force { file }).is_ok());
        assert_eq!(disk.file("a"), Some(&b""[..]));
    }

    #[test]
    fn held_completions_come_in_the_order_asked_for_and_a_kill_loses_what_was_not_executed() {
        let mut h = Harness::new(Config::default());
        let create = |file, path| Effect::Create { file: FileId(file), path: s(path) };
        h.hold(|effect, path| matches!(effect, Effect::Create { .. }) && path == "a");
        h.emit(EffectId(1), create(1, "a"));
        h.emit(EffectId(2), create(2, "b"));
        h.run();
        assert_eq!((h.held(), h.disk.files().len()), (1, 2));
        h.stop_before(|effect, _| matches!(effect, Effect::Remove { .. }));
        h.emit(EffectId(3), Effect::Remove { path: s("a") });
        h.run();
        assert!(h.disk.file("a").is_some());
        h.kill_and_restart(Config::default());
        assert!(h.disk.file("a").is_some());
        assert_eq!(h.held(), 0);
    }

    #[test]
    fn bytes_wait_while_the_broker_does_not_read() {
        let mut h = Harness::new(Config::default());
        let client = h.connect();
        h.emit(EffectId(1), Effect::SetReading { connection: client, on: false });
        h.run();
        h.send(client, b"PING\n");
        assert!(!h.is_reading(client) && h.clients[&client].unread.len() == 1);
        h.emit(EffectId(2), Effect::SetReading { connection: client, on: true });
        h.run();
        assert!(h.clients[&client].unread.is_empty());
        h.emit(
            EffectId(3),
            Effect::Reply { connection: client, part: ReplyPart::Bytes(Bytes::from_static(b"PONG\n")) },
        );
        h.emit(EffectId(4), Effect::Disconnect { connection: client, now: false });
        h.run();
        assert_eq!(h.replies(client), "PONG\n");
        assert!(!h.is_connected(client));
    }
}
