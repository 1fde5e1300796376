//! What the broker is told. Plain data; no policy.

use crate::config::Config;
use crate::effect::{ConnectionId, EffectId, IoError, Outcome};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;

/// The time at which an event is handled. The broker reads no clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Now {
    /// Nanoseconds since an arbitrary moment; never goes back. For timers.
    pub monotonic_ns: u64,
    /// Milliseconds since 1970 (UTC); may step. For stamps.
    pub wall_ms: i64,
}

/// One thing that happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The first event: recover what is on disk.
    Start,
    /// Stop cleanly: no new requests, force, record the exact line, then `Stopped`.
    Stop,
    /// The moment that [`Broker::next_wake`](crate::broker::Broker::next_wake) named has come.
    Wake,
    /// The operator wants another configuration, one that [`Config::validate`](crate::config::Config::validate) takes. What may change
    /// changes; what it was is told by a report.
    Reconfigure {
        /// All of it.
        config: Box<Config>,
        /// What is not the broker's, was to change too, and can't while the process runs.
        kept_elsewhere: Vec<&'static str>,
    },
    /// An effect has ended.
    Completed {
        /// Which.
        id: EffectId,
        /// How.
        result: Result<Outcome, IoError>,
    },
    /// A client has connected.
    Connected {
        /// Its new name.
        connection: ConnectionId,
        /// Where it comes from, for people: an address and a port. One word.
        peer: String,
    },
    /// Bytes came in, in any fragmentation.
    Received {
        /// From whom.
        connection: ConnectionId,
        /// What; never empty.
        bytes: Bytes,
    },
    /// The client will send no more, but may still read replies.
    InputEnded {
        /// Which client.
        connection: ConnectionId,
    },
    /// That many further bytes of replies have left the broker's memory (or been taken by the kernel).
    Sent {
        /// Which client.
        connection: ConnectionId,
        /// How many bytes.
        bytes: u64,
    },
    /// The connection is gone; nothing more can be sent. Also comes after a `Disconnect` has been carried out.
    Disconnected {
        /// Which client.
        connection: ConnectionId,
    },
}
