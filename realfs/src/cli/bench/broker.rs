//! The broker that is measured: a child process of the same program, or one that runs already.

use super::super::connection::Failure;
use super::Variant;
use crate::client::{Client, Options};
use plimsoll_core::error::Code;
use plimsoll_core::layout::DEFAULT_TOPIC;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The topic used on a broker that is not ours.
const FOREIGN_TOPIC: &str = "bench";
/// How long a child may take from SIGTERM to its end.
const STOP_PATIENCE: Duration = Duration::from_secs(10);

/// A broker. A child is stopped when this is dropped.
pub(super) struct Broker {
    pub(super) address: String,
    pub(super) variant: Variant,
    child: Option<Child>,
}

/// Resident memory of a broker, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Memory {
    /// Now.
    pub(super) resident: u64,
    /// At most, since it started.
    pub(super) resident_max: u64,
}

impl Broker {
    /// Starts one on a directory of its own in `dir`, unless an address is given.
    pub(super) fn start(
        address: Option<&str>,
        dir: &Path,
        variant: Variant,
        payload_bytes_max: u32,
    ) -> Result<Broker, Failure> {
        if let Some(address) = address {
            let broker = Broker { address: address.to_owned(), variant, child: None };
            let mut client = broker.client()?;
            match client.status(Some(FOREIGN_TOPIC)) {
                Err(error) if error.is(Code::NoTopic) => client.create(FOREIGN_TOPIC)?,
                status => drop(status?),
            }
            return Ok(broker);
        }
        let failed = |error: io::Error| Failure::Start(error.to_string());
        let program = std::env::current_exe().map_err(failed)?;
        let mut child = Command::new(program)
            .arg("serve")
            .args(["--listen", "127.0.0.1:0", "--data"])
            .arg(dir.join(variant.name().replace(' ', "-")))
            .args(["--max-payload", &payload_bytes_max.to_string()])
            .args(variant.serve_args())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        // Dropped from here on, it stops the child.
        let mut broker = Broker { address: String::new(), variant, child: Some(child) };
        let address = lines.by_ref().map_while(Result::ok).find_map(|line| {
            let fields = line.strip_prefix("READY ")?.to_owned();
            fields.split(' ').find_map(|field| field.strip_prefix("address=").map(str::to_owned))
        });
        broker.address =
            address.ok_or_else(|| Failure::Start("it ended before it printed READY; see above".to_owned()))?;
        // A pipe that nobody reads would block the broker some day.
        thread::spawn(move || lines.for_each(drop));
        Ok(broker)
    }

    /// The topic to publish to.
    pub(super) fn topic(&self) -> &'static str {
        if self.child.is_some() { DEFAULT_TOPIC } else { FOREIGN_TOPIC }
    }

    /// A new connection.
    pub(super) fn client(&self) -> Result<Client, Failure> {
        Ok(Client::connect(&self.address, Options::default())?)
    }

    /// `None` for a broker that is not ours.
    pub(super) fn memory(&self) -> Option<Memory> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.as_ref()?.id())).ok()?;
        let field = |name: &str| {
            let kib = status.lines().find_map(|line| line.strip_prefix(name))?.trim().strip_suffix(" kB")?;
            Some(kib.trim().parse::<u64>().ok()? * 1024)
        };
        Some(Memory { resident: field("VmRSS:")?, resident_max: field("VmHWM:")? })
    }

    /// Stops a child; an error where it did not stop cleanly.
    pub(super) fn stop(mut self) -> Result<(), Failure> {
        match self.child.take() {
            None => Ok(()),
            Some(child) => match end(child) {
                Ok(Some(0)) => Ok(()),
                ended => Err(Failure::Bench(format!("the broker did not stop cleanly: {ended:?}"))),
            },
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            let _ = end(child);
        }
    }
}

fn end(mut child: Child) -> io::Result<Option<i32>> {
    kill_process(Pid::from_child(&child), Signal::TERM)?;
    let deadline = Instant::now() + STOP_PATIENCE;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait()? {
            return Ok(status.code());
        }
        thread::sleep(Duration::from_millis(5));
    }
    child.kill()?;
    child.wait()?;
    Err(io::Error::new(io::ErrorKind::TimedOut, format!("killed after {} s", STOP_PATIENCE.as_secs())))
}
