//! A connection of the bench: many of them are driven from one thread, so that they don't take the processors from the broker.

use super::super::connection::Failure;
use crate::client::wire::Inbox;
use mio::net::TcpStream;
use mio::{Events, Poll};
use std::io::{self, Read, Write};
use std::net::ToSocketAddrs;
use std::time::{Duration, Instant};

/// How long replies are looked for before the thread sleeps.
const LOOK: Duration = Duration::from_micros(200);
/// How long it sleeps at most.
const SLEEP: Duration = Duration::from_millis(100);
/// A broker that answers nothing for this long is given up.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// See the module.
pub(super) struct Socket {
    pub(super) stream: TcpStream,
    /// What is to be sent.
    pub(super) outbox: Vec<u8>,
    /// How much of it has been.
    sent: usize,
    pub(super) inbox: Inbox,
}

impl Socket {
    pub(super) fn connect(address: &str) -> Result<Socket, Failure> {
        let cannot = |detail: String| crate::client::Error::Connect { address: address.to_owned(), detail };
        let resolved = address
            .to_socket_addrs()
            .map_err(|error| cannot(error.to_string()))?
            .next()
            .ok_or_else(|| cannot("the name has no address".to_owned()))?;
        let stream = std::net::TcpStream::connect(resolved).map_err(|error| cannot(error.to_string()))?;
        stream.set_nodelay(true).map_err(io_failure)?;
        stream.set_nonblocking(true).map_err(io_failure)?;
        Ok(Socket { stream: TcpStream::from_std(stream), outbox: Vec::new(), sent: 0, inbox: Inbox::default() })
    }

    /// `Some(true)`: nothing more stands ready (a short read says so); `None`: nothing stood ready.
    pub(super) fn read(&mut self) -> Result<Option<bool>, Failure> {
        let room = self.inbox.room();
        let length = room.len();
        match self.stream.read(room) {
            Ok(0) => Err(Failure::Bench("the broker closed a connection".into())),
            Ok(n) => {
                self.inbox.received(n);
                Ok(Some(n < length))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Some(false)),
            Err(error) => Err(io_failure(error)),
        }
    }

    pub(super) fn write(&mut self) -> Result<(), Failure> {
        while self.sent < self.outbox.len() {
            match self.stream.write(&self.outbox[self.sent..]) {
                Ok(n) => self.sent += n,
                // The event that says there is room again brings us back here.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(io_failure(error)),
            }
        }
        self.outbox.clear();
        self.sent = 0;
        Ok(())
    }
}

/// An error where the last reply is too long ago.
pub(super) fn not_silent(last_reply: Instant) -> Result<(), Failure> {
    match last_reply.elapsed() > SILENCE_MAX {
        true => Err(Failure::Bench(format!("the broker was silent for {} s", SILENCE_MAX.as_secs()))),
        false => Ok(()),
    }
}

/// Looks for replies for a while before it sleeps: a sleeping processor takes longer to wake than many a force takes, and what is to
/// be measured is the broker.
pub(super) fn look_or_sleep(poll: &mut Poll, events: &mut Events) -> Result<(), Failure> {
    let begun = Instant::now();
    loop {
        let looking = begun.elapsed() < LOOK;
        match poll.poll(events, Some(if looking { Duration::ZERO } else { SLEEP })) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            polled => polled.map_err(io_failure)?,
        }
        if !looking || !events.is_empty() {
            return Ok(());
        }
        std::thread::yield_now();
    }
}

pub(super) fn io_failure(error: io::Error) -> Failure {
    Failure::Bench(format!("the connection to the broker failed: {error}"))
}
