//! The Plimsoll broker as a state machine.
//!
//! [`Broker`](broker::Broker) is told what happened ([`event::Event`]) and says what to do ([`effect::Effect`]). It opens no file, no
//! socket and no thread, reads no clock and draws no random number.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod broker;
pub mod config;
mod connection;
pub mod effect;
pub mod error;
pub mod event;
pub mod group;
mod io;
pub mod layout;
pub mod log;
pub mod message;
pub mod planted;
pub mod protocol;
pub mod record;
pub mod settings;
mod start;
