//! Groups of consumers.

pub(crate) mod cursor;
pub(crate) mod journal;
pub mod offset_file;
pub(crate) mod share;
