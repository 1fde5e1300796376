//! The signatures of crc32c, without its code.
//!
//! The real crate asks the processor for its features through the standard library and does nothing else with it.
//! It is the one dependency of the core that needs `std`, so while the core is compiled without a standard library
//! this stands in for it. Nothing of it is ever run.
#![no_std]

/// As in crc32c.
pub fn crc32c(data: &[u8]) -> u32 {
    crc32c_append(0, data)
}

/// As in crc32c.
pub fn crc32c_append(crc: u32, data: &[u8]) -> u32 {
    crc ^ data.len() as u32
}

/// As in crc32c.
pub fn crc32c_combine(crc1: u32, crc2: u32, len2: usize) -> u32 {
    crc1 ^ crc2 ^ len2 as u32
}
