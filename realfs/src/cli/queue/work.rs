//! `plimsoll queue work`: a command for each message of a work queue.
//!
//! Each job is a thread with a connection of its own: the broker gives back what a connection had reserved when it is lost, so a worker
//! that is killed holds up nobody. While its command runs, and while the broker has no room to record that it has ended, the thread extends
//! the lease.

use super::super::complain;
use super::super::connection::{Failure, exit_code, output};
use super::super::place::Place;
use super::super::values;
use crate::client::{Client, Delivered, Error, Options};
use plimsoll_core::error::Code;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::MemfdFlags;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Run a command for each message of a work queue: exit code 0 confirms the message, any other gives it back
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  plimsoll queue work mails --exec ./send-mail
  plimsoll queue work thumbnails --topic pictures --exec 'convert - -resize 200 \"thumbs/$PLIMSOLL_OFFSET.png\"' --jobs 4
  plimsoll queue work mails --exec ./send-mail --wait 0s     # until there is nothing left to do

The command is run by `sh -c`, with the message on its standard input, and PLIMSOLL_TOPIC, PLIMSOLL_GROUP, PLIMSOLL_OFFSET, \
PLIMSOLL_DELIVERIES, PLIMSOLL_TIME_MS, PLIMSOLL_KEY and for each header PLIMSOLL_HEADER_<name> (with _ for . and -) in its \
environment; a value with a zero byte is left out. As long as it runs its lease is extended. When the lease is lost all the same (the \
connection broke, `plimsoll queue steal`), somebody else has the message: the command is sent SIGTERM, and SIGKILL ten seconds later. \
Where the broker's disk has no room to record that the message is done, the worker keeps the message and says it again until there is.

A message is given back with a delay, which doubles with each delivery. After as many deliveries as the topic's max-deliveries says it \
goes to the dead letters. A command may run again for the same message, after a crash or a lost connection.

At SIGTERM and SIGINT nothing more is reserved, running commands finish and are confirmed; at a second one they are sent SIGTERM, and \
nothing is said again.

Exit codes: 0 stopped, whatever became of the commands, 1 the broker answered ERR, 2 usage, 6 cannot connect.")]
pub(super) struct Args {
    /// The work queue; made when it is not there
    group: String,
    /// The command for each message
    #[arg(long, value_name = "COMMAND")]
    exec: String,
    /// Commands that run at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    jobs: u16,
    /// How long a message is this worker's without word from it
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = lease)]
    lease: Duration,
    /// A message whose command failed can be reserved again after this
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = values::duration)]
    delay: Duration,
    /// The delay doubles with each delivery, up to this
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = values::duration)]
    delay_max: Duration,
    /// Stop when no message has come for this long [default: never]
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    wait: Option<Duration>,
    /// Stop after this many messages
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Print a JSON object for each message; what commands print goes to standard error
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    at: Place,
}

/// A lease shorter than this would run out between two words of a worker that is well.
const LEASE_MIN: Duration = Duration::from_secs(1);
/// How often a worker that waits for a message looks whether it is to stop.
const WAIT_STEP: Duration = Duration::from_secs(1);
/// How long before something that was refused for want of room is tried again.
const PAUSE: Duration = Duration::from_secs(1);
/// Between SIGTERM and SIGKILL.
const MERCY: Duration = Duration::from_secs(10);
/// How often a signal to stop is looked for while a command runs.
const LOOK: Duration = Duration::from_millis(200);
/// How long a worker goes on trying to reach a broker that was there before.
const PATIENCE: Options = Options {
    connect_timeout: Duration::from_secs(5),
    reply_timeout: Duration::from_secs(30),
    reconnect_for: WAIT_STEP,
};

fn lease(text: &str) -> Result<Duration, String> {
    values::duration(text).and_then(|lease| match lease < LEASE_MIN {
        true => Err("must be at least 1s".to_owned()),
        false => Ok(lease),
    })
}

/// What the jobs have together.
struct Shared {
    /// How many signals to stop have come.
    stops: [Arc<AtomicBool>; 2],
    /// A job met what is no use to go on after.
    failed: AtomicBool,
    /// Messages that may still be begun.
    left: AtomicU64,
    confirmed: AtomicU64,
    given_back: AtomicU64,
    /// Somebody else has the message, or will.
    lost: AtomicU64,
    /// The connection broke before the reply came.
    unknown: AtomicU64,
}

impl Shared {
    fn is_stopping(&self) -> bool {
        self.stops[0].load(Ordering::Acquire) || self.failed.load(Ordering::Acquire)
    }

    fn is_hurried(&self) -> bool {
        self.stops[1].load(Ordering::Acquire)
    }

    /// Sleeps, but not through what is a reason not to.
    fn pause(&self, time: Duration, is_over: impl Fn(&Shared) -> bool) {
        let until = Instant::now() + time;
        while !is_over(self) && Instant::now() < until {
            thread::sleep(LOOK.min(time));
        }
    }
}

/// Works.
pub(super) fn run(args: Args) -> i32 {
    let signals = match take_signals() {
        Ok(signals) => signals,
        Err(error) => {
            let sentence = format!("cannot take over the signals to stop: {error}");
            return exit_code("queue work", Err(Failure::Usage(sentence)));
        }
    };
    let shared = Shared {
        stops: signals,
        failed: AtomicBool::new(false),
        left: AtomicU64::new(args.count.unwrap_or(u64::MAX)),
        confirmed: AtomicU64::new(0),
        given_back: AtomicU64::new(0),
        lost: AtomicU64::new(0),
        unknown: AtomicU64::new(0),
    };
    let results: Vec<Result<(), Failure>> = thread::scope(|scope| {
        let work = || {
            let result = Job::new(&args, &shared).and_then(|mut job| job.work());
            if result.is_err() {
                shared.failed.store(true, Ordering::Release);
            }
            result
        };
        let jobs: Vec<_> = (0..args.jobs).map(|_| scope.spawn(work)).collect();
        jobs.into_iter().map(|job| job.join().expect("a job")).collect()
    });
    let result = results.into_iter().find(Result::is_err).unwrap_or(Ok(()));
    let summed = summary(&args, &shared, result.is_err());
    match exit_code("queue work", result) {
        0 => exit_code("queue work", summed),
        code => code,
    }
}

/// The first signal sets the first flag, a later one both.
fn take_signals() -> io::Result<[Arc<AtomicBool>; 2]> {
    let flags = [Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false))];
    let [first, second] = flags.clone();
    let (mut came, told) = UnixStream::pair()?;
    for signal in [SIGTERM, SIGINT] {
        signal_hook::low_level::pipe::register(signal, told.try_clone()?)?;
    }
    thread::spawn(move || {
        // A byte for each signal.
        while came.read_exact(&mut [0]).is_ok() {
            if first.swap(true, Ordering::AcqRel) {
                second.store(true, Ordering::Release);
            }
        }
    });
    Ok(flags)
}

fn summary(args: &Args, shared: &Shared, has_failed: bool) -> Result<(), Failure> {
    let Shared { confirmed, given_back, lost, unknown, .. } = shared;
    let counts = [confirmed, given_back, lost, unknown].map(|count| count.load(Ordering::Acquire));
    // Of a failure before the first message the error says all.
    if args.json || (has_failed && counts == [0; 4]) {
        return Ok(());
    }
    let [confirmed, given_back, lost, unknown] = counts;
    let mut out = output();
    write!(out, "{confirmed} confirmed, {given_back} given back")?;
    for (count, what) in [(lost, "lost to others while the command ran"), (unknown, "of unknown outcome")] {
        if count > 0 {
            write!(out, ", {count} {what}")?;
        }
    }
    writeln!(out)?;
    Ok(out.flush()?)
}

/// A message that is this worker's.
struct Task {
    offset: u64,
    deliveries: u64,
    value: Vec<u8>,
    environment: Vec<(OsString, OsString)>,
}

/// What became of a command.
enum Ended {
    By(ExitStatus),
    /// Somebody else has the message, or may have.
    LeaseLost(Error),
    NotRun(io::Error),
}

struct Job<'a> {
    args: &'a Args,
    shared: &'a Shared,
    client: Client,
    /// It has been told already.
    was_full: bool,
}

impl<'a> Job<'a> {
    fn new(args: &'a Args, shared: &'a Shared) -> Result<Job<'a>, Failure> {
        Ok(Job { args, shared, client: args.at.connection.connect()?, was_full: false })
    }

    fn topic(&self) -> Option<&'a str> {
        Some(&self.args.at.topic)
    }

    fn work(&mut self) -> Result<(), Failure> {
        let mut idle_since = Instant::now();
        while !self.shared.is_stopping() {
            let left = self.shared.left.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1));
            if left.is_err() {
                break;
            }
            match self.next()? {
                Some(task) => {
                    self.carry_out(&task)?;
                    idle_since = Instant::now();
                }
                None => {
                    self.shared.left.fetch_add(1, Ordering::AcqRel);
                    if self.args.wait.is_some_and(|wait| idle_since.elapsed() >= wait) {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Reserves one message, if one comes soon.
    fn next(&mut self) -> Result<Option<Task>, Failure> {
        let Args { group, lease, wait, .. } = self.args;
        let step = wait.map_or(WAIT_STEP, |wait| wait.min(WAIT_STEP));
        let topic = self.topic();
        let reserved = self.client.reserve(topic, group, 1, ms(step), ms(*lease), true).map(|batch| {
            let mut task = None;
            for delivered in batch.iter() {
                match delivered {
                    Delivered::Message(message) => task = Some(Task::new(&self.args.at.topic, group, &message)),
                    Delivered::Gap { first, next } => complain("queue work", format_args!("GAP {first} {next}")),
                }
            }
            task
        });
        match reserved {
            Ok(task) => {
                self.was_full = false;
                Ok(task)
            }
            Err(error) => self.go_on_after(error).map(|()| None),
        }
    }

    /// Whether it is of use to go on; waits until it may be.
    fn go_on_after(&mut self, error: Error) -> Result<(), Failure> {
        let code = match &error {
            Error::Broker(refused) => refused.known(),
            _ => None,
        };
        match code {
            // Others have as many messages as may be out, one is damaged, or the disk is full: that passes.
            Some(Code::QueueFull | Code::Corrupt | Code::DiskFull) => {
                self.tell_full(&error);
                self.shared.pause(PAUSE, Shared::is_stopping);
                Ok(())
            }
            Some(Code::Stopping | Code::Halted) => self.connect_again(&error),
            None if error.is_indeterminate() || matches!(error, Error::Connect { .. }) => self.connect_again(&error),
            _ => Err(error.into()),
        }
    }

    fn tell_full(&mut self, error: &Error) {
        if !std::mem::replace(&mut self.was_full, true) {
            complain("queue work", format_args!("{error}; trying again"));
        }
    }

    /// Until the broker is there again, or a signal comes.
    fn connect_again(&mut self, error: &Error) -> Result<(), Failure> {
        complain("queue work", format_args!("{error}; connecting again"));
        while !self.shared.is_stopping() {
            match self.args.at.connection.connect_with(PATIENCE) {
                Ok(client) => {
                    self.client = client;
                    return Ok(());
                }
                Err(Failure::Client(Error::Connect { .. })) => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(())
    }

    /// Runs the command and says to the broker how it ended.
    fn carry_out(&mut self, task: &Task) -> Result<(), Failure> {
        let begun = Instant::now();
        let ended = self.run_command(task);
        let (topic, group, offset) = (self.topic(), &self.args.group, task.offset);
        let told = match &ended {
            Ended::By(status) if status.success() => self.confirm(offset),
            Ended::By(status) => {
                complain("queue work", format_args!("offset {offset}, delivery {}: {status}", task.deliveries));
                let delay = ms(self.delay(task.deliveries));
                self.client.abort(topic, group, offset, delay)
            }
            Ended::NotRun(error) => {
                let sentence = format!("cannot run {}: {error}", self.args.exec);
                let _ = self.client.abort(topic, group, offset, 0);
                return Err(Failure::Usage(sentence));
            }
            Ended::LeaseLost(error) => Err(error.clone()),
        };
        let (outcome, count) = match (&ended, &told) {
            (Ended::By(status), Ok(())) if status.success() => ("confirmed", &self.shared.confirmed),
            (_, Ok(())) => ("given back", &self.shared.given_back),
            (Ended::By(_), Err(error)) if error.is_indeterminate() => ("unknown", &self.shared.unknown),
            (_, Err(_)) => ("lost", &self.shared.lost),
        };
        count.fetch_add(1, Ordering::AcqRel);
        if self.args.json {
            let (code, signal) = match ended {
                Ended::By(status) => (status.code(), status.signal()),
                _ => (None, None),
            };
            let mut out = output();
            let object = serde_json::json!({
                "offset": offset, "deliveries": task.deliveries, "outcome": outcome,
                "exit_code": code, "signal": signal, "seconds": begun.elapsed().as_secs_f64(),
            });
            writeln!(out, "{object}")?;
            out.flush()?;
        }
        match told {
            Err(error) if error.is(Code::NotReserved) => {
                complain("queue work", format_args!("offset {offset}: {error}; somebody else has it, or will"));
                Ok(())
            }
            Err(error) => self.go_on_after(error),
            Ok(()) => Ok(()),
        }
    }

    /// Says that it is done until that is recorded: where the disk is full what was done is not done again for that. Whoever let the lease
    /// run out meanwhile would have somebody else do it.
    fn confirm(&mut self, offset: u64) -> Result<(), Error> {
        let Args { group, lease, .. } = self.args;
        let topic = self.topic();
        loop {
            match self.client.confirm(topic, group, &[offset]) {
                Err(error) if error.is(Code::DiskFull) && !self.shared.is_hurried() => self.tell_full(&error),
                told => return told,
            }
            self.client.extend(topic, group, offset, ms(*lease))?;
            self.shared.pause(PAUSE.min(*lease / 3), Shared::is_hurried);
        }
    }

    fn delay(&self, deliveries: u64) -> Duration {
        let doubled = u32::try_from(deliveries.saturating_sub(1)).unwrap_or(u32::MAX).min(31);
        self.args.delay.saturating_mul(1 << doubled).min(self.args.delay_max)
    }

    fn run_command(&mut self, task: &Task) -> Ended {
        let mut child = match self.spawn(task) {
            Ok(child) => child,
            Err(error) => return Ended::NotRun(error),
        };
        let pid = Pid::from_child(&child);
        // It stays this child's until it has been waited for.
        let watched = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(watched) => watched,
            Err(error) => {
                let _ = kill_process_group(pid, Signal::KILL);
                let _ = child.wait();
                return Ended::NotRun(error.into());
            }
        };
        let (topic, group, offset) = (self.topic(), &self.args.group, task.offset);
        let third = self.args.lease / 3;
        let mut extended = Instant::now();
        let mut lost = None;
        let mut killing: Option<Instant> = None;
        loop {
            let mut ready = [PollFd::new(&watched, PollFlags::IN)];
            let wait = LOOK.min(third.saturating_sub(extended.elapsed()));
            let wait = Timespec::try_from(wait).expect("less than a second");
            if matches!(poll(&mut ready, Some(&wait)), Ok(n) if n > 0) {
                let ended = child.wait();
                return match (lost, ended) {
                    (Some(error), _) => Ended::LeaseLost(error),
                    (None, Ok(status)) => Ended::By(status),
                    (None, Err(error)) => Ended::NotRun(error),
                };
            }
            if lost.is_none() && extended.elapsed() >= third {
                extended = Instant::now();
                lost = self.client.extend(topic, group, offset, ms(self.args.lease)).err();
            }
            match killing {
                None if lost.is_some() || self.shared.is_hurried() => {
                    killing = Some(Instant::now());
                    let _ = kill_process_group(pid, Signal::TERM);
                }
                Some(since) if since.elapsed() >= MERCY => {
                    killing = Some(Instant::now());
                    let _ = kill_process_group(pid, Signal::KILL);
                }
                _ => {}
            }
        }
    }

    fn spawn(&self, task: &Task) -> io::Result<Child> {
        let mut command = Command::new("sh");
        // A group of its own: what a terminal sends to end this worker does not reach it.
        command.arg("-c").arg(&self.args.exec).envs(task.environment.iter().cloned()).process_group(0);
        command.stdin(message_file(&task.value)?);
        if self.args.json {
            command.stdout(Stdio::from(io::stderr().as_fd().try_clone_to_owned()?));
        }
        command.spawn()
    }
}

/// A file in memory: the command can read it, or not, at its own pace.
fn message_file(value: &[u8]) -> io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create("message", MemfdFlags::CLOEXEC)?);
    file.write_all(value)?;
    file.rewind()?;
    Ok(file)
}

impl Task {
    fn new(topic: &str, group: &str, message: &crate::client::Message<'_>) -> Task {
        let deliveries = message.deliveries().unwrap_or(1);
        let text = |name: &str, value: String| (name.as_bytes().to_vec(), value.into_bytes());
        let mut environment = vec![
            text("TOPIC", topic.to_owned()),
            text("GROUP", group.to_owned()),
            text("OFFSET", message.offset.to_string()),
            text("DELIVERIES", deliveries.to_string()),
        ];
        environment.extend(message.time_ms().map(|time| text("TIME_MS", time.to_string())));
        environment.extend(message.key().map(|key| (b"KEY".to_vec(), key.into_owned())));
        environment.extend(message.headers().map(|(name, value)| {
            let name = name.iter().map(|byte| if b".-".contains(byte) { b'_' } else { *byte });
            (b"HEADER_".iter().copied().chain(name).collect(), value.into_owned())
        }));
        environment.retain(|(_, value)| !value.contains(&0));
        let variable = |(name, value): (Vec<u8>, Vec<u8>)| {
            (OsString::from_vec([b"PLIMSOLL_", &name[..]].concat()), OsString::from_vec(value))
        };
        Task {
            offset: message.offset,
            deliveries,
            value: message.value.to_vec(),
            environment: environment.into_iter().map(variable).collect(),
        }
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
