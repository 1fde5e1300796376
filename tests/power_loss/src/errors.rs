//! A device that begins to fail under the broker: what is read, written or flushed is answered by an I/O error.
//!
//! A failed write or force halts the broker with exit code 4 (P10); a failed read is an error for that reader alone (P7). When the
//! device is well again, nothing that was acknowledged DURABLE is missing (P1).

use crate::broker::{Broker, Program};
use crate::device::{Disk, Failure, FileSystem};
use crate::load::SETTINGS;
use crate::store::{Failing, Kind};
use plimsoll::client::{Client, Delivered, Options, Outcome, Publication};
use plimsoll_core::protocol::Level;
use std::fmt;

/// Messages before the device begins to fail.
const BEFORE: usize = 60;
/// How many are tried at most before the broker has to have noticed.
const AFTER: usize = 400;

/// What was seen.
#[derive(Clone, Debug)]
pub struct Seen {
    file_system: FileSystem,
    kind: Kind,
    /// Messages that were answered DURABLE.
    pub acknowledged: usize,
    /// How the broker ended.
    pub exit: Option<i32>,
    /// A reader was told so.
    pub reader_told: bool,
    /// Acknowledged messages that are missing or changed when the device is well again.
    pub lost: usize,
}

impl Seen {
    /// Whether this is what was promised.
    pub fn is_as_promised(&self) -> bool {
        let ended = match self.kind {
            Kind::Read => self.reader_told && self.exit == Some(0),
            Kind::Write | Kind::Flush => self.exit == Some(4),
        };
        ended && self.lost == 0 && self.acknowledged >= BEFORE
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Read => "read",
            Kind::Write => "write",
            Kind::Flush => "flush",
        };
        let exit = self.exit.map_or("none".to_owned(), |code| code.to_string());
        write!(
            f,
            "fs={} fails={kind} acknowledged={} exit={exit} readerTold={} lostAcked={}",
            self.file_system.name(),
            self.acknowledged,
            if self.reader_told { "yes" } else { "no" },
            self.lost
        )
    }
}

/// Lets every request of a kind fail, until the broker has noticed, and looks at what is there afterwards.
///
/// # Errors
/// When the rig itself can't work.
pub fn run(disk: &mut Disk, program: &Program, kind: Kind) -> Result<Seen, Failure> {
    let failed = |what: &str, error: String| Failure::from(format!("{what}: {error}"));
    disk.reload(disk.store.image())?;
    disk.mount()?;
    let program = program.inside(disk);
    let data = disk.at().join(format!("data-{kind:?}"));
    let settings = [SETTINGS, &["--recent-bytes", "0"]].concat();
    let start =
        || Broker::start(&program, &data, &settings).map_err(|refused| failed("a start", format!("{refused:?}")));
    let connect = |broker: &Broker| {
        Client::connect(&broker.address, Options::default()).map_err(|e| failed("a client", e.to_string()))
    };

    let broker = start()?;
    let mut client = connect(&broker)?;
    let mut acknowledged: Vec<String> = Vec::new();
    let mut publish = |client: &mut Client| {
        let value = format!("m{}.{}", acknowledged.len(), "x".repeat(300));
        let reply = client.publish(None, Level::Durable, &Publication::new(value.as_bytes()));
        let stored = matches!(reply, Ok(Outcome::Stored { offset, .. }) if offset == acknowledged.len() as u64);
        if stored {
            acknowledged.push(value);
        }
        stored
    };
    for _ in 0..BEFORE {
        if !publish(&mut client) {
            return Err(failed("a publish", "was not answered DURABLE on a device that is well".to_owned()));
        }
    }
    let mut reader_told = false;
    if kind == Kind::Read {
        // What was written is in the page cache, from where a read never fails.
        std::fs::write("/proc/sys/vm/drop_caches", "1").map_err(|e| failed("drop_caches", e.to_string()))?;
        disk.store.fail(Failing::every(kind));
        reader_told = matches!(client.read(None, 0, 10, false), Err(error) if error.to_string().contains("CORRUPT"));
        disk.store.heal();
    } else {
        disk.store.fail(Failing::every(kind));
        for _ in 0..AFTER {
            if !publish(&mut client) {
                break;
            }
        }
    }
    drop(client);
    let exit = broker.stop().and_then(|status| status.code());

    // As after a reboot: nothing that the kernel remembers of the device is left.
    disk.reload(disk.store.image())?;
    disk.mount()?;
    let broker = start()?;
    let mut client = connect(&broker)?;
    let mut found: Vec<Vec<u8>> = Vec::new();
    loop {
        let before = found.len();
        let batch = client.read(None, before as u64, 1000, false).map_err(|e| failed("a read", e.to_string()))?;
        found.extend(batch.iter().map_while(|delivered| match delivered {
            Delivered::Message(message) => Some(message.value.to_vec()),
            Delivered::Gap { .. } => None,
        }));
        if found.len() == before {
            break;
        }
    }
    broker.stop();
    let same = |(at, value): &(usize, &String)| found.get(*at).is_some_and(|found| found == value.as_bytes());
    let lost = acknowledged.iter().enumerate().filter(|message| !same(message)).count();
    Ok(Seen { file_system: disk.file_system(), kind, acknowledged: acknowledged.len(), exit, reader_told, lost })
}
