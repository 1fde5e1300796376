//! Groups of consumers.

pub(crate) mod cursor;
pub mod journal;
pub mod offset_file;
pub(crate) mod share;
