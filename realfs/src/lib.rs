//! Plimsoll on Linux files and TCP: the backend, the client library and the command line.

pub mod cli;
pub mod client;
mod directory;
pub mod disk;
pub mod driver;
#[cfg(feature = "inject")]
mod inject;
mod net;
mod offline;
pub mod report;

// A broker with planted bugs is for the simulator alone.
const _: () = assert!(!plimsoll_core::planted::ENABLED, "plimsoll must not be built with the feature `planted`");
