//! Groups of consumers.

pub(crate) mod cursor;
pub mod offset_file;
