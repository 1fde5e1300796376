//! What happened, step by step: always as a hash, so that two runs can be compared (P17), and on request as words.

use crate::disk::StateHash;
use std::fmt::{self, Write};

/// Whose affair a step is: the columns of the report.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Lane {
    /// The world: crashes, restarts, the clock.
    World,
    /// A client, by number.
    Client(usize),
    /// What the broker said or was told.
    Broker,
    /// What has reached the page cache.
    Cache,
    /// What has reached the platter.
    Disk,
}

/// One step in words.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its number.
    pub step: u64,
    /// When, in virtual nanoseconds.
    pub at_ns: u64,
    /// Whose.
    pub lane: Lane,
    /// What.
    pub text: String,
    /// The Plimsoll line of the first topic at that moment, where it is known.
    pub line: Option<u64>,
}

/// The trace of a run.
pub struct Trace {
    hash: StateHash,
    /// How many steps there were.
    pub steps: u64,
    /// The words, where they are kept.
    pub lines: Option<Vec<Line>>,
}

impl Trace {
    /// An empty trace. `keep`: with words.
    pub fn new(keep: bool) -> Trace {
        Trace { hash: StateHash::new(), steps: 0, lines: keep.then(Vec::new) }
    }

    /// Notes a step.
    pub fn note(&mut self, at_ns: u64, lane: Lane, text: fmt::Arguments<'_>) {
        self.steps += 1;
        self.hash.number(at_ns);
        let lane_number = match lane {
            Lane::World => 0,
            Lane::Broker => 1,
            Lane::Cache => 2,
            Lane::Disk => 3,
            Lane::Client(number) => 4 + number as u64,
        };
        self.hash.number(lane_number);
        write!(Hashing(&mut self.hash), "{text}").expect("a hash takes everything");
        if let Some(lines) = &mut self.lines {
            lines.push(Line { step: self.steps, at_ns, lane, text: text.to_string(), line: None });
        }
    }

    /// Adds words to the last step, for people only: the hash does not know whether words are kept.
    pub fn tell(&mut self, at_ns: u64, lane: Lane, text: fmt::Arguments<'_>) {
        if let Some(lines) = &mut self.lines {
            lines.push(Line { step: self.steps, at_ns, lane, text: text.to_string(), line: None });
        }
    }

    /// Adds the content of a step.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.hash.bytes(bytes);
    }

    /// Says where the Plimsoll line stood at the last step.
    pub fn mark(&mut self, line: u64) {
        if let Some(last) = self.lines.as_mut().and_then(|lines| lines.last_mut()) {
            last.line = Some(line);
        }
    }

    /// The hash of everything that was noted.
    pub fn hash(&self) -> u128 {
        self.hash.clone().finish()
    }
}

struct Hashing<'a>(&'a mut StateHash);

impl fmt::Write for Hashing<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.bytes(text.as_bytes());
        Ok(())
    }
}
