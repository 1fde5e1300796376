//! Power loss on real file systems.
//!
//! ```text
//!   plimsoll serve          the real binary, under load
//!   ext4, xfs, btrfs        mounted
//!   loop device
//!   FUSE file               store, fuse: every write and every flush is remembered, in order
//! ```
//!
//! [`crash`] makes of such a log the images that a power loss may leave; [`images`] mounts each, starts the broker and holds
//! it against what clients were told ([`history`], [`audit`]). [`conformance`] holds the simulated disk against the same file
//! systems.
//!
//! The same device fails on demand: [`errors`].

pub mod act;
pub mod audit;
pub mod broker;
pub mod conformance;
pub mod crash;
pub mod device;
pub mod errors;
pub mod fuse;
pub mod history;
pub mod images;
pub mod load;
pub mod script;
pub mod store;
pub mod without;
