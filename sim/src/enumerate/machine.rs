//! A broker on a simulated disk that executes one effect at a time, so that somebody can look between any two.

use super::ledger::{Broken, Ledger};
use crate::disk::{Fault, SimDisk};
use bytes::Bytes;
use plimsoll_core::broker::Broker;
use plimsoll_core::config::Config;
use plimsoll_core::effect::{ConnectionId, Effect, EffectId, Halt, IoErrorKind, ReplyPart};
use plimsoll_core::event::{Event, Now};
use plimsoll_core::layout;
use std::collections::VecDeque;

/// More effects than any small workload needs before it is quiet.
const STEPS_MAX: usize = 100_000;

/// The client that a request comes from. Its number is that of its connection.
pub(super) type ClientId = usize;

pub(super) struct Machine {
    broker: Broker,
    pub(super) disk: SimDisk,
    now: Now,
    events: VecDeque<Event>,
    /// What each client was sent of a reply that is not complete.
    clients: Vec<Vec<u8>>,
    pub(super) halted: Option<Halt>,
    pub(super) ready: bool,
    pub(super) stopped: bool,
    /// Effects that were executed and can change something.
    pub(super) ops: u64,
    /// The n-th of these effects from now fails like this.
    pub(super) fault: Option<(Aim, u64, Fault)>,
}

/// What a fault is meant for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Aim {
    /// Forces of files and directories.
    Force,
    /// Whatever is done with the new file of a segment that is packed, up to the rename: after that nobody knows which has the name (P10).
    Packing,
}

/// Looks at the machine whenever the power may fail.
pub(super) trait Observer {
    /// Called before each effect is executed and when all is quiet.
    fn at(&mut self, machine: &Machine, ledger: &Ledger) -> Result<(), Broken>;

    /// Whether the effects executed under its eyes are counted.
    fn counts(&self) -> bool {
        false
    }
}

/// Looks at nothing.
pub(super) struct Blind;

impl Observer for Blind {
    fn at(&mut self, _: &Machine, _: &Ledger) -> Result<(), Broken> {
        Ok(())
    }
}

impl Machine {
    /// A process that was just started on a disk, so much after the first one of its run.
    pub(super) fn boot(config: &Config, disk: SimDisk, after_ms: i64) -> Machine {
        // The same moment whatever the effect was at which the last process ended: then states can be told by their bytes.
        let now = Now { monotonic_ns: 1_000_000_000, wall_ms: 1_700_000_000_000 + after_ms };
        Machine {
            broker: Broker::new(config.clone()).expect("a workload has a valid configuration"),
            disk,
            now,
            events: VecDeque::from([Event::Start]),
            clients: Vec::new(),
            halted: None,
            ready: false,
            stopped: false,
            ops: 0,
            fault: None,
        }
    }

    /// What the wall clock shows.
    pub(super) fn wall_ms(&self) -> i64 {
        self.now.wall_ms
    }

    /// A client sends something; it connects first if it is new.
    pub(super) fn send(&mut self, client: ClientId, bytes: &[u8]) {
        while self.clients.len() <= client {
            let connection = ConnectionId(self.clients.len() as u64);
            self.clients.push(Vec::new());
            self.events.push_back(Event::Connected { connection, peer: String::from("sim") });
        }
        let bytes = Bytes::copy_from_slice(bytes);
        self.events.push_back(Event::Received { connection: ConnectionId(client as u64), bytes });
    }

    pub(super) fn stop(&mut self) {
        self.events.push_back(Event::Stop);
    }

    /// Whether the process has ended by itself.
    pub(super) fn is_over(&self) -> bool {
        self.halted.is_some() || self.stopped
    }

    /// Executes effects until none is left, or `steps` have been executed.
    pub(super) fn run(&mut self, ledger: &mut Ledger, observer: &mut dyn Observer, steps: usize) -> Result<(), Broken> {
        for _ in 0..steps.min(STEPS_MAX) {
            self.handle_events(ledger)?;
            if self.is_over() {
                return observer.at(self, ledger);
            }
            let Some((id, effect)) = self.next() else { return observer.at(self, ledger) };
            if changes_something(&effect) {
                observer.at(self, ledger)?;
                self.ops += 1;
            }
            let fault = self.fault_of(&effect);
            // Nobody relies on a byte of it.
            let is_packing = self.ready && self.is_of_packing(&effect);
            let result = self.disk.execute(id, fault);
            if result.is_err() && !is_packing && matches!(effect, Effect::Force { .. } | Effect::ForceDir { .. }) {
                ledger.a_force_failed();
            }
            self.events.push_back(Event::Completed { id, result });
        }
        if steps >= STEPS_MAX {
            return Err(Broken::new("P8", format!("the broker is not quiet after {STEPS_MAX} effects")));
        }
        self.handle_events(ledger)
    }

    /// Lets time pass, and wakes the broker when it wants to be.
    pub(super) fn advance(&mut self, ms: u64, ledger: &mut Ledger, observer: &mut dyn Observer) -> Result<(), Broken> {
        let begin = self.now;
        let end_ns = begin.monotonic_ns + ms * 1_000_000;
        let at = |ns: u64| {
            let wall_ms = begin.wall_ms + ((ns - begin.monotonic_ns) / 1_000_000) as i64;
            Now { monotonic_ns: ns, wall_ms }
        };
        while let Some(wake) = self.broker.next_wake().filter(|wake| *wake <= end_ns) {
            self.now = at(wake.max(self.now.monotonic_ns));
            ledger.clock_shows(self.now.wall_ms);
            self.events.push_back(Event::Wake);
            self.run(ledger, observer, usize::MAX)?;
        }
        self.now = at(end_ns);
        ledger.clock_shows(self.now.wall_ms);
        Ok(())
    }

    fn next(&self) -> Option<(EffectId, Effect)> {
        let first = *self.disk.runnable().first()?;
        let (id, effect) = self.disk.pending().find(|(id, _)| *id == first)?;
        Some((id, effect.clone()))
    }

    fn fault_of(&mut self, effect: &Effect) -> Option<Fault> {
        let (aim, left, fault) = self.fault?;
        let is_dir = matches!(effect, Effect::ForceDir { .. });
        let is_meant = match aim {
            Aim::Force => is_dir || matches!(effect, Effect::Force { .. }),
            Aim::Packing => self.is_of_packing(effect),
        };
        if !is_meant {
            return None;
        }
        if left > 0 {
            self.fault = Some((aim, left - 1, fault));
            return None;
        }
        self.fault = None;
        let takes_space = matches!(effect, Effect::Create { .. } | Effect::Write { .. });
        match fault {
            // A directory has no page cache to be left in one state or another.
            Fault::Force(_) if is_dir => Some(Fault::Error(IoErrorKind::Other)),
            Fault::Error(IoErrorKind::NoSpace) | Fault::Partial { .. } if !takes_space => {
                Some(Fault::Error(IoErrorKind::Other))
            }
            fault => Some(fault),
        }
    }

    /// Whether a running broker does this with the new file of a segment.
    fn is_of_packing(&self, effect: &Effect) -> bool {
        let is_new = |path: &str| path.ends_with(&format!("{}{}", layout::LOG_SUFFIX, layout::TMP));
        match effect {
            Effect::Create { path, .. } => is_new(path),
            Effect::Write { file, .. } | Effect::Force { file } => {
                self.disk.path_of(*file).is_some_and(|path| is_new(&path))
            }
            _ => false,
        }
    }

    fn handle_events(&mut self, ledger: &mut Ledger) -> Result<(), Broken> {
        let mut emitted: Vec<(EffectId, Effect)> = Vec::new();
        loop {
            let event = match self.events.pop_front() {
                Some(event) => event,
                None if !self.is_over()
                    && self.broker.next_wake().is_some_and(|wake| wake <= self.now.monotonic_ns) =>
                {
                    Event::Wake
                }
                None => return Ok(()),
            };
            self.broker.handle(self.now, event, &mut emitted);
            for (id, effect) in emitted.drain(..) {
                self.take(id, effect, ledger)?;
            }
        }
    }

    fn take(&mut self, id: EffectId, effect: Effect, ledger: &mut Ledger) -> Result<(), Broken> {
        match effect {
            Effect::Reply { connection, part } => {
                let bytes = match part {
                    ReplyPart::Bytes(bytes) => bytes,
                    ReplyPart::FileRange { file, position, length } => {
                        self.disk.range(file, position, length).expect("a file that is open")
                    }
                };
                self.events.push_back(Event::Sent { connection, bytes: bytes.len() as u64 });
                let client = connection.0 as usize;
                self.clients[client].extend_from_slice(&bytes);
                while let Some(end) = self.clients[client].iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = self.clients[client].drain(..=end).collect();
                    ledger.line(client, &String::from_utf8_lossy(&line[..end]))?;
                }
            }
            Effect::Report(report) => self.ready |= report.name == "READY",
            Effect::Halt(halt) => self.halted = Some(halt),
            Effect::Stopped => self.stopped = true,
            Effect::SetReading { .. } | Effect::Disconnect { .. } => {}
            effect => self.disk.submit(id, effect),
        }
        Ok(())
    }
}

/// Whether a power loss after the effect can leave another disk than one before it.
pub(super) fn changes_something(effect: &Effect) -> bool {
    !matches!(effect, Effect::List { .. } | Effect::Open { .. } | Effect::Read { .. } | Effect::CloseFile { .. })
}

/// An effect in words, for whoever has to understand a crash.
pub(super) fn in_words(disk: &SimDisk, effect: &Effect) -> String {
    let path = |file| disk.path_of(file).unwrap_or_else(|| format!("a file without a name ({file:?})"));
    match effect {
        Effect::Create { path, .. } => format!("create {path}"),
        Effect::MakeDir { path } => format!("make directory {path}"),
        Effect::Open { path, .. } => format!("open {path}"),
        Effect::CloseFile { file } => format!("close {}", path(*file)),
        Effect::List { dir } => format!("list {dir}"),
        Effect::Read { file, .. } => format!("read {}", path(*file)),
        Effect::Write { file, position, bytes } => {
            format!("write of {} bytes at {position} of {}", bytes.len(), path(*file))
        }
        Effect::Reserve { file, position, length } => {
            format!("write of {length} zeros at {position} of {}", path(*file))
        }
        Effect::Truncate { file, length } => format!("cut of {} to {length} bytes", path(*file)),
        Effect::Force { file } => format!("force of {}", path(*file)),
        Effect::ForceDir { dir } if dir.is_empty() => "force of the data directory".to_owned(),
        Effect::ForceDir { dir } => format!("force of the directory {dir}"),
        Effect::Rename { from, to } => format!("rename of {from} to {to}"),
        Effect::Remove { path } => format!("removal of {path}"),
        Effect::RemoveDir { path } => format!("removal of the directory {path}"),
        other => format!("{other:?}"),
    }
}
