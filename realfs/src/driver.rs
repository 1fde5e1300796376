//! The one event loop. It owns the broker, the sockets and the disk, carries events in and effects out, and takes no
//! decision about offsets, acknowledgement, order or recovery.
//!
//! A round: wait; hand in what the disk has completed; accept, receive, wake; hand in what was completed meanwhile; and
//! only then send, so that all replies of a round leave a connection in one system call.

use crate::directory::Directory;
#[cfg(not(feature = "inject"))]
use crate::disk::Disk;
#[cfg(feature = "inject")]
use crate::inject::Disk;
use crate::net::{self, Connection, Flushed, Received};
use crate::report::LogFormat;
use mio::net::{TcpListener, TcpStream, UnixStream};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use plimsoll_core::broker::Broker;
use plimsoll_core::config::Config;
use plimsoll_core::effect::{ConnectionId, Effect, EffectId, Effects, FieldValue, HaltKind, ReplyPart, Report};
use plimsoll_core::event::{Event, Now};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::process::{Resource, Rlimit};
use rustix::time::{ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Stopped cleanly.
pub const EXIT_STOPPED: i32 = 0;
/// Usage or configuration is wrong.
pub const EXIT_USAGE: i32 = 2;
/// Corrupt data, refused to start.
pub const EXIT_CORRUPT: i32 = 3;
/// Halted on an I/O failure.
pub const EXIT_HALTED: i32 = 4;
/// The data directory is in use, unreadable or of an unknown format.
pub const EXIT_DIRECTORY: i32 = 5;
/// Cannot listen.
pub const EXIT_LISTEN: i32 = 6;
/// Told a second time to stop.
const EXIT_INTERRUPTED: i32 = 130;

const WAKER: Token = Token(0);
const TIMER: Token = Token(1);
const SIGNALS: Token = Token(2);
const FIRST_LISTENER: usize = 3;
/// Connections have their id plus this for a token.
const FIRST_CONNECTION: usize = 1 << 16;

/// Connections accepted in a round, bytes received in a round, completions handed in in a row: bounds that keep one kind
/// of work from starving the others.
const ACCEPTS: usize = 64;
const ROUND_BYTES: usize = 1 << 20;
const COMPLETIONS: usize = 1024;
/// How often a round sends: sending makes room for more replies.
const FLUSHES: usize = 2;
/// How long to wait when there is no descriptor for a new connection.
const ACCEPT_PAUSE_NS: u64 = 100_000_000;
/// A client counts as alone when no other was heard for this long.
const ALONE_NS: u64 = 10_000_000;
/// … and when it sends no more than this at once: one that sends more has more on the way, to be read during the force.
const ALONE_BYTES: usize = 4 << 10;
/// How long the loop goes on looking for input after it has sent replies: who waits for a reply sends again at once, and
/// being woken costs more than that (measured: 57 µs for a round trip between two sleepers, 21 µs when one looks).
/// It also looks instead of sleeping when it would be woken within this time.
const LOOK_NS: u64 = 50_000;
/// A closed connection's input is dropped for this long, because closing a socket with unread input makes the kernel
/// take back what the client has not read yet, the last reply among it.
const LINGER_NS: u64 = 1_000_000_000;
/// At most so many do that.
const LINGERING: usize = 128;
/// How long the last replies may take: at a clean stop, and at a halt.
const STOP_NS: u64 = 2_000_000_000;
const HALT_NS: u64 = 1_000_000_000;
/// For this long after a halt requests are still answered.
const HALT_GRACE_NS: u64 = 100_000_000;
/// Descriptors that are neither files of the broker nor connections: the standard ones, epoll, directories, …
const DESCRIPTORS_ELSEWHERE: u64 = 64;

/// What [`serve`] is to do.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// The data directory; made when it is missing.
    pub data: PathBuf,
    /// Where to listen: `host:port`, at least one.
    pub listen: Vec<String>,
    /// The broker's limits and policies.
    pub config: Config,
    /// How the lines on standard output are written.
    pub log: LogFormat,
    /// How many threads do what waits for the disk; forces of that many topics run side by side.
    pub disk_threads: usize,
}

impl ServeOptions {
    /// Checks every value against its range.
    ///
    /// # Errors
    /// One sentence that begins with the setting's name.
    pub fn validate(&self) -> Result<(), String> {
        if !(1..=DISK_THREADS_MAX).contains(&self.disk_threads) {
            return Err(format!("disk-threads must be 1 to {DISK_THREADS_MAX}, not {}", self.disk_threads));
        }
        self.config.validate()
    }
}

const DISK_THREADS_MAX: usize = 64;

/// Another configuration, wished for while the broker runs.
#[derive(Clone, Debug)]
pub struct Reloaded {
    /// What the broker is told; it decides what of it can hold without a restart.
    pub config: Config,
    /// Other settings that were to change, and can't while the process runs.
    pub kept: Vec<&'static str>,
}

/// Reads the configuration again, or says in one line why there is none.
pub type Reload = Box<dyn FnMut() -> Result<Reloaded, String>>;

/// Runs a broker until SIGTERM or SIGINT, or until it halts. Returns the exit code (docs/protocol.md).
///
/// Raises the process's soft limit of descriptors to the hard one, and takes over these signals and SIGHUP, at which the
/// configuration is read again. A second signal to stop ends the process at once. A code other than 0 has been explained in one line, on standard error unless the broker reported
/// it on standard output.
pub fn serve(mut options: ServeOptions, reload: Reload) -> i32 {
    if let Err(sentence) = options.validate() {
        return refuse(EXIT_USAGE, &sentence);
    }
    // A busy port is told before the data directory is touched.
    let listeners = match listen(&options.listen) {
        Ok(listeners) => listeners,
        Err((code, sentence)) => return refuse(code, &sentence),
    };
    let mut directory = match Directory::open(&options.data) {
        Ok(directory) => directory,
        Err(sentence) => return refuse(EXIT_DIRECTORY, &sentence),
    };
    let addresses: Vec<String> = listeners.iter().map(|(_, address)| address.to_string()).collect();
    directory.sign(&addresses.join(", "));
    if let Some(name) = directory.doubtful_file_system() {
        options.log.warn(format!(
            "data directory is on a network or memory file system ({name}): a power loss may take what was acknowledged"
        ));
    }
    if let Err(errno) = rustix::rand::getrandom(&mut options.config.entropy, rustix::rand::GetRandomFlags::empty()) {
        return refuse(EXIT_HALTED, &format!("no random bytes: {}", io::Error::from(errno)));
    }
    match Driver::new(options, listeners, directory, reload).and_then(|mut driver| driver.run()) {
        Ok(code) => code,
        // Nothing here depends on the data directory or on clients: the process lacks threads or descriptors.
        Err(error) => refuse(EXIT_HALTED, &format!("cannot run the event loop: {error}")),
    }
}

fn refuse(code: i32, sentence: &str) -> i32 {
    crate::cli::complain("serve", sentence);
    code
}

fn listen(addresses: &[String]) -> Result<Vec<(TcpListener, SocketAddr)>, (i32, String)> {
    let bind = |text: &String| {
        let mut resolved = text
            .to_socket_addrs()
            .map_err(|error| (EXIT_USAGE, format!("--listen {text}: {error}; write host:port")))?;
        let address = resolved.next().ok_or_else(|| (EXIT_USAGE, format!("--listen {text}: no such host")))?;
        let bound = TcpListener::bind(address).and_then(|listener| Ok((listener.local_addr()?, listener)));
        match bound {
            Ok((address, listener)) => Ok((listener, address)),
            Err(error) => Err((
                EXIT_LISTEN,
                format!("cannot listen on {text}: {error}; stop what listens there or choose another with --listen"),
            )),
        }
    };
    addresses.iter().map(bind).collect()
}

/// How the process's descriptors are shared out, so that no number of clients can keep the broker from its own files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Shares {
    /// Sockets at once: clients, those that are told that there are too many, and those that linger.
    sockets: usize,
    /// Files at once.
    files: usize,
}

impl Shares {
    /// What a process that may have `limit` descriptors can do with them, where `clients` are wished for.
    fn of(limit: u64, clients: u32) -> Shares {
        let available = limit.saturating_sub(DESCRIPTORS_ELSEWHERE.min(limit / 3)).max(2);
        let wished = u64::from(clients) + (LINGERING + ACCEPTS) as u64;
        let sockets = wished.min(available / 2);
        let in_memory = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        Shares { sockets: in_memory(sockets), files: in_memory(available - sockets) }
    }
}

/// Raises the soft limit of descriptors to the hard one, and says what it is now.
fn raise_descriptor_limit() -> u64 {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let limit = match rustix::process::setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    limit.unwrap_or(1 << 20)
}

struct Driver {
    broker: Broker,
    backend: Backend,
    poll: Poll,
    timer: OwnedFd,
    /// When the timer goes off, in `monotonic_ns`.
    alarm: Option<u64>,
    signals: Signals,
    reload: Reload,
    stopping: bool,
    listeners: Vec<TcpListener>,
    /// Connections are waiting to be accepted.
    accept: bool,
    /// Not before this.
    accept_after: u64,
    next_connection: u64,
    sockets_max: usize,
    scratch: Vec<u8>,
    lingering: BTreeMap<Token, (TcpStream, u64)>,
    alone: Alone,
    /// Until then the loop looks for input instead of sleeping.
    look_until_ns: u64,
    send_stall: Duration,
    _directory: Directory,
}

/// Where effects go. The broker is beside it, so that it can be called with it.
struct Backend {
    disk: Disk,
    log: LogFormat,
    connections: BTreeMap<ConnectionId, Connection>,
    /// The one client that was heard lately, while it waits for a reply.
    lone: Option<ConnectionId>,
    /// Those that have something to send, or to be closed.
    touched: Vec<ConnectionId>,
    /// Those that have something to receive.
    readable: VecDeque<ConnectionId>,
    addresses: Vec<SocketAddr>,
    ready: bool,
    ending: Option<Ending>,
}

/// The process is about to end.
struct Ending {
    code: i32,
    /// How long it may take, and takes at least.
    at_most_ns: u64,
    at_least_ns: u64,
    begun: Option<u64>,
}

/// Whether one client is all there is to serve.
#[derive(Default)]
struct Alone {
    last: Option<ConnectionId>,
    until_mixed_ns: u64,
}

impl Driver {
    fn new(
        options: ServeOptions,
        bound: Vec<(TcpListener, SocketAddr)>,
        directory: Directory,
        reload: Reload,
    ) -> io::Result<Driver> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKER)?;
        let timer =
            rustix::time::timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        poll.registry().register(&mut SourceFd(&timer.as_raw_fd()), TIMER, Interest::READABLE)?;
        let mut signals = Signals::take()?;
        poll.registry().register(&mut signals.came, SIGNALS, Interest::READABLE)?;

        let limit = raise_descriptor_limit();
        let shares = Shares::of(limit, options.config.connections_max);
        if (shares.sockets as u64) < u64::from(options.config.connections_max) {
            options.log.warn(format!(
                "the process may have {limit} descriptors, enough for {} clients at once; more than that wait to be accepted; raise ulimit -n",
                shares.sockets
            ));
        }
        let root = directory.root.try_clone()?;
        let shown = Arc::from(options.data.as_path());
        let disk = Disk::new(root, shown, options.disk_threads, shares.files, move || {
            // The loop then finds what is finished when it wakes for something else.
            let _ = waker.wake();
        })?;

        let (listeners, addresses): (Vec<TcpListener>, Vec<SocketAddr>) = bound.into_iter().unzip();
        let send_stall = Duration::from_millis(options.config.send_stall_ms_max);
        let broker = Broker::new(options.config).map_err(io::Error::other)?;
        Ok(Driver {
            broker,
            backend: Backend {
                disk,
                log: options.log,
                connections: BTreeMap::new(),
                lone: None,
                touched: Vec::new(),
                readable: VecDeque::new(),
                addresses,
                ready: false,
                ending: None,
            },
            poll,
            timer,
            alarm: None,
            signals,
            reload,
            stopping: false,
            listeners,
            accept: false,
            accept_after: 0,
            next_connection: 0,
            sockets_max: shares.sockets,
            scratch: vec![0; net::RECEIVE_BYTES],
            lingering: BTreeMap::new(),
            alone: Alone::default(),
            look_until_ns: 0,
            send_stall,
            _directory: directory,
        })
    }

    fn run(&mut self) -> io::Result<i32> {
        let mut events = Events::with_capacity(1024);
        let mut listening = false;
        self.tell(Event::Start);
        loop {
            self.complete();
            self.accept();
            self.receive();
            self.wake();
            self.complete();
            for _ in 0..FLUSHES {
                self.flush();
                self.complete();
            }
            if let Some(code) = self.end() {
                return Ok(code);
            }
            // One that has its reply already must not wait for a force.
            self.backend.disk.set_lone(self.backend.lone.is_some());
            self.backend.disk.run_deferred();
            if self.backend.disk.has_completions() {
                continue;
            }
            if self.backend.ready && !listening && !self.stopping {
                listening = true;
                self.accept = true;
                for (index, listener) in self.listeners.iter_mut().enumerate() {
                    self.poll.registry().register(listener, Token(FIRST_LISTENER + index), Interest::READABLE)?;
                }
            }
            self.wait(&mut events)?;
        }
    }

    /// Tells the broker, now.
    fn tell(&mut self, event: Event) {
        self.broker.handle(now(), event, &mut self.backend);
    }

    /// Hands in what the disk has completed, and what those completions led to at once.
    fn complete(&mut self) {
        self.backend.disk.collect();
        for _ in 0..COMPLETIONS {
            let Some((id, result)) = self.backend.disk.next_completion() else { break };
            self.tell(Event::Completed { id, result });
        }
        for token in self.backend.disk.take_warmed() {
            let id = ConnectionId(token);
            if let Some(connection) = self.backend.connections.get_mut(&id) {
                connection.warmed();
                self.backend.touch(id);
            }
        }
    }

    fn accept(&mut self) {
        if !self.accept || self.stopping || monotonic_ns() < self.accept_after {
            return;
        }
        self.accept = false;
        for index in 0..self.listeners.len() {
            for _ in 0..ACCEPTS {
                if self.backend.connections.len() + self.lingering.len() >= self.sockets_max {
                    self.accept_later();
                    return;
                }
                match self.listeners[index].accept() {
                    Ok((stream, _)) => self.connect(stream),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) if lacks_descriptors(&error) => {
                        self.backend.disk.give_back_descriptors(8);
                        self.accept_later();
                        return;
                    }
                    // This client has gone again; the next may be there.
                    Err(_) => {}
                }
            }
            // Where ACCEPTS were not enough, the next round goes on: the listener does not tell again.
            self.accept |= self.has_waiting(index);
        }
    }

    fn accept_later(&mut self) {
        self.accept = true;
        self.accept_after = monotonic_ns() + ACCEPT_PAUSE_NS;
    }

    /// Whether a listener has somebody waiting.
    fn has_waiting(&self, index: usize) -> bool {
        let mut fds = [rustix::event::PollFd::new(&self.listeners[index], rustix::event::PollFlags::IN)];
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&zero)).is_ok_and(|ready| ready > 0)
    }

    fn connect(&mut self, mut stream: TcpStream) {
        let id = ConnectionId(self.next_connection);
        let token = token_of(id);
        // One that is gone again already has none.
        let peer = stream.peer_addr().map_or_else(|_| "-".to_owned(), |address| address.to_string());
        if self.poll.registry().register(&mut stream, token, Interest::READABLE | Interest::WRITABLE).is_err() {
            return;
        }
        self.next_connection += 1;
        self.backend.connections.insert(id, Connection::new(stream, self.send_stall));
        self.tell(Event::Connected { connection: id, peer });
    }

    /// Receives from everybody who has sent something, each once and in turn.
    fn receive(&mut self) {
        let mut bytes_left = ROUND_BYTES;
        for _ in 0..self.backend.readable.len() {
            if bytes_left < net::RECEIVE_BYTES {
                break;
            }
            let Some(id) = self.backend.readable.pop_front() else { break };
            let Some(connection) = self.backend.connections.get_mut(&id) else { continue };
            connection.listed = false;
            if !connection.reading || connection.close || connection.cut || connection.input_ended {
                continue;
            }
            match connection.receive(&mut self.scratch) {
                Received::Bytes(bytes) => {
                    bytes_left -= bytes.len();
                    let alone = self.alone.heard(id, monotonic_ns()) && bytes.len() <= ALONE_BYTES;
                    self.backend.lone = alone.then_some(id);
                    self.backend.disk.set_lone(alone);
                    self.tell(Event::Received { connection: id, bytes });
                }
                Received::End => self.tell(Event::InputEnded { connection: id }),
                Received::Nothing => {}
                Received::Broken => {
                    connection.cut = true;
                    self.backend.touch(id);
                }
            }
            self.backend.list(id);
        }
    }

    fn wake(&mut self) {
        if let Some(at) = self.broker.next_wake()
            && at <= monotonic_ns()
        {
            self.tell(Event::Wake);
        }
    }

    /// Sends what there is to everybody, and closes what is to be closed.
    fn flush(&mut self) {
        for id in std::mem::take(&mut self.backend.touched) {
            let Backend { connections, disk, .. } = &mut self.backend;
            let Some(connection) = connections.get_mut(&id) else { continue };
            connection.touched = false;
            if connection.cut {
                self.close(id, false);
                continue;
            }
            let (sent, flushed) = connection.flush(id.0, disk);
            let close = connection.close;
            if sent > 0 {
                self.look_until_ns = monotonic_ns() + LOOK_NS;
                self.tell(Event::Sent { connection: id, bytes: sent });
            }
            match flushed {
                Flushed::Broken => self.close(id, false),
                Flushed::Empty if close => self.close(id, true),
                Flushed::More => self.backend.touch(id),
                Flushed::Empty | Flushed::Waiting => {}
            }
        }
    }

    /// Forgets a connection; `politely`: lets the client read what was sent to it.
    fn close(&mut self, id: ConnectionId, politely: bool) {
        let Some(mut connection) = self.backend.connections.remove(&id) else { return };
        if politely && !connection.input_ended && self.lingering.len() < LINGERING {
            self.lingering.insert(token_of(id), (connection.end(), monotonic_ns() + LINGER_NS));
        } else {
            let _ = self.poll.registry().deregister(connection.stream());
        }
        self.tell(Event::Disconnected { connection: id });
    }

    /// Sleeps until something happens, and takes note of it.
    fn wait(&mut self, events: &mut Events) -> io::Result<()> {
        let now_ns = monotonic_ns();
        let idle = self.backend.readable.is_empty()
            && self.backend.touched.is_empty()
            && !(self.accept && !self.stopping && self.accept_after <= now_ns)
            && now_ns >= self.look_until_ns
            && self.broker.next_wake().is_none_or(|at| at > now_ns + LOOK_NS)
            && self.set_alarm(now_ns)?
            && self.backend.disk.fall_asleep();
        match self.poll.poll(events, if idle { None } else { Some(Duration::ZERO) }) {
            Ok(()) if !idle && events.is_empty() => std::thread::yield_now(),
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(error) => return Err(error),
        }
        for event in events.iter() {
            match event.token() {
                WAKER => {}
                TIMER => {
                    let _ = rustix::io::read(&self.timer, &mut [0_u8; 8]);
                    self.alarm = None;
                }
                SIGNALS => self.signalled(),
                Token(listener) if listener < FIRST_CONNECTION => self.accept = true,
                token => self.notice(token, event),
            }
        }
        if !self.lingering.is_empty() {
            let now_ns = monotonic_ns();
            self.lingering.retain(|_, (_, until)| *until > now_ns);
        }
        Ok(())
    }

    fn notice(&mut self, token: Token, event: &mio::event::Event) {
        let id = ConnectionId((token.0 - FIRST_CONNECTION) as u64);
        if let Some(connection) = self.backend.connections.get_mut(&id) {
            connection.notice(event);
            if connection.cut || (event.is_writable() && !connection.is_empty()) {
                self.backend.touch(id);
            }
            self.backend.list(id);
        } else if let Some((stream, _)) = self.lingering.get_mut(&token)
            && net::drain(stream, &mut self.scratch)
        {
            self.lingering.remove(&token);
        }
    }

    fn signalled(&mut self) {
        while matches!(self.signals.came.read(&mut [0; 16]), Ok(n) if n > 0) {}
        if self.signals.reload.swap(false, Ordering::AcqRel) {
            self.read_configuration();
        }
        if self.signals.stop.load(Ordering::Acquire) {
            self.stop();
        }
    }

    /// What is wrong with it changes nothing, and is said.
    fn read_configuration(&mut self) {
        let wanted = (self.reload)().and_then(|wanted| wanted.config.validate().map(|()| wanted));
        match wanted {
            Ok(Reloaded { config, kept }) => {
                self.tell(Event::Reconfigure { config: Box::new(config), kept_elsewhere: kept });
            }
            Err(sentence) => {
                let fields = vec![("reason", FieldValue::Text(sentence))];
                self.backend.log.print(&Report { name: "CONFIG_REFUSED", fields });
            }
        }
    }

    /// Stops cleanly.
    fn stop(&mut self) {
        if !self.stopping {
            self.stopping = true;
            // Who tries to connect from now on is refused.
            self.listeners.clear();
            self.tell(Event::Stop);
        }
    }

    /// Sets the timer for whatever is due next. `false`: something is due already.
    fn set_alarm(&mut self, now_ns: u64) -> io::Result<bool> {
        let mut due = self.broker.next_wake();
        let mut also = |at: u64| due = Some(due.map_or(at, |due| due.min(at)));
        if self.accept && !self.stopping {
            also(self.accept_after);
        }
        if let Some(until) = self.lingering.values().map(|(_, until)| *until).min() {
            also(until);
        }
        if let Some(Ending { begun: Some(begun), at_most_ns, at_least_ns, .. }) = self.backend.ending {
            let at = begun + at_least_ns;
            also(if at > now_ns { at } else { begun + at_most_ns });
        }
        let Some(due) = due else { return Ok(true) };
        if due <= now_ns {
            return Ok(false);
        }
        // One that goes off earlier will do: setting it costs as much as waking up for nothing.
        if self.alarm.is_none_or(|alarm| alarm > due) {
            let value = Timespec { tv_sec: (due / 1_000_000_000) as i64, tv_nsec: (due % 1_000_000_000) as _ };
            let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
            rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &once)?;
            self.alarm = Some(due);
        }
        Ok(true)
    }

    /// The exit code, when nothing is left to be sent or time is up.
    fn end(&mut self) -> Option<i32> {
        let ending = self.backend.ending.as_mut()?;
        let now_ns = monotonic_ns();
        let begun = *ending.begun.get_or_insert(now_ns);
        let everything_sent = self.backend.connections.values().all(Connection::is_empty);
        let due = now_ns >= begun + ending.at_most_ns || (everything_sent && now_ns >= begun + ending.at_least_ns);
        due.then_some(ending.code)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        for id in self.signals.ids.drain(..) {
            signal_hook::low_level::unregister(id);
        }
        for (_, connection) in std::mem::take(&mut self.backend.connections) {
            let _ = connection.end();
        }
    }
}

impl Backend {
    /// Notes that a connection has something to send or is to be closed.
    fn touch(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(&id)
            && !std::mem::replace(&mut connection.touched, true)
        {
            self.touched.push(id);
        }
    }

    /// Notes that a connection has something to receive, if it has.
    fn list(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(&id)
            && connection.readable
            && connection.reading
            && !connection.input_ended
            && !std::mem::replace(&mut connection.listed, true)
        {
            self.readable.push_back(id);
        }
    }

    fn reply(&mut self, id: ConnectionId, part: ReplyPart) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        match part {
            ReplyPart::Bytes(bytes) => connection.push_bytes(bytes),
            ReplyPart::FileRange { file, position, length } => match self.disk.descriptor_to_send(file) {
                Ok(fd) => connection.push_file(fd, position, length),
                // The client was promised these bytes; nothing else may follow.
                Err(_) => connection.cut = true,
            },
        }
        self.touch(id);
    }

    fn report(&mut self, report: Report) {
        if report.name != "READY" {
            self.log.print(&report);
            return;
        }
        self.ready = true;
        for address in &self.addresses {
            let mut line = report.clone();
            line.fields.push(("address", FieldValue::Text(address.to_string())));
            self.log.print(&line);
        }
    }
}

impl Effects for Backend {
    fn emit(&mut self, id: EffectId, effect: Effect) {
        match effect {
            Effect::Reply { connection, part } => {
                if self.lone == Some(connection) {
                    self.lone = None;
                }
                self.reply(connection, part);
            }
            Effect::SetReading { connection, on } => {
                if let Some(connection) = self.connections.get_mut(&connection) {
                    connection.reading = on;
                }
                self.list(connection);
            }
            Effect::Disconnect { connection, now } => {
                if let Some(connection) = self.connections.get_mut(&connection) {
                    connection.close = true;
                    connection.cut |= now;
                }
                self.touch(connection);
            }
            Effect::Report(report) => self.report(report),
            Effect::Halt(halt) => {
                let code = match halt.kind {
                    HaltKind::Corrupt => EXIT_CORRUPT,
                    HaltKind::IoFailure => EXIT_HALTED,
                    HaltKind::Directory => EXIT_DIRECTORY,
                };
                let at_least_ns = if self.ready { HALT_GRACE_NS } else { 0 };
                self.ending.get_or_insert(Ending { code, at_most_ns: HALT_NS, at_least_ns, begun: None });
            }
            Effect::Stopped => {
                let ending = Ending { code: EXIT_STOPPED, at_most_ns: STOP_NS, at_least_ns: 0, begun: None };
                self.ending.get_or_insert(ending);
            }
            on_disk => self.disk.submit(id, on_disk),
        }
    }
}

impl Alone {
    /// Whether this one, who was just heard, is the only one lately.
    fn heard(&mut self, id: ConnectionId, now_ns: u64) -> bool {
        if self.last.replace(id).is_some_and(|last| last != id) {
            self.until_mixed_ns = now_ns + ALONE_NS;
        }
        now_ns >= self.until_mixed_ns
    }
}

fn token_of(id: ConnectionId) -> Token {
    Token(FIRST_CONNECTION + id.0 as usize)
}

/// The signals that the process has taken over.
struct Signals {
    /// Has something to read when one has come.
    came: UnixStream,
    stop: Arc<AtomicBool>,
    reload: Arc<AtomicBool>,
    ids: Vec<signal_hook::SigId>,
}

impl Signals {
    /// Routes SIGTERM, SIGINT and SIGHUP into a socket. The second of the first two ends the process at once, also when the loop
    /// hangs.
    fn take() -> io::Result<Signals> {
        let (read, write) = std::os::unix::net::UnixStream::pair()?;
        read.set_nonblocking(true)?;
        let (stop, reload) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let mut ids = Vec::new();
        for signal in [SIGTERM, SIGINT] {
            // In this order: at the first signal nothing has been told yet.
            ids.push(signal_hook::flag::register_conditional_shutdown(signal, EXIT_INTERRUPTED, stop.clone())?);
            ids.push(signal_hook::flag::register(signal, stop.clone())?);
            ids.push(signal_hook::low_level::pipe::register(signal, write.try_clone()?)?);
        }
        ids.push(signal_hook::flag::register(SIGHUP, reload.clone())?);
        ids.push(signal_hook::low_level::pipe::register(SIGHUP, write)?);
        // A write beyond `ulimit -f` is to be an error of that write, not the end of the process.
        ids.push(signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?);
        Ok(Signals { came: UnixStream::from_std(read), stop, reload, ids })
    }
}

fn lacks_descriptors(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM))
}

fn now() -> Now {
    let wall = rustix::time::clock_gettime(ClockId::Realtime);
    Now { monotonic_ns: monotonic_ns(), wall_ms: wall.tv_sec * 1000 + wall.tv_nsec as i64 / 1_000_000 }
}

fn monotonic_ns() -> u64 {
    let time = rustix::time::clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_never_take_the_descriptors_of_files() {
        assert_eq!(Shares::of(1 << 20, 1024).sockets, 1024 + LINGERING + ACCEPTS);
        assert_eq!(Shares::of(256, 1024), Shares { sockets: 96, files: 96 });
        for limit in 0..5000 {
            let shares = Shares::of(limit, 1024);
            assert!(shares.sockets >= 1 && shares.files >= 1, "{limit}: {shares:?}");
            assert!(limit < 3 || shares.sockets + shares.files <= limit as usize, "{limit}: {shares:?}");
        }
    }
}
