//! What the disk can do without a broker: the bytes of stored messages, written and forced one after the other.

use super::super::connection::Failure;
use super::Interrupt;
use super::load::Limit;
use plimsoll_core::record::OVERHEAD_BYTES;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

/// Space that is written before; a loop that fills it ends.
const ZEROED_BYTES_MAX: u64 = 64 << 20;
const ZEROED_RECORDS: u64 = 100_000;

/// Records a second, each appended to a growing file and forced.
pub(super) fn append(dir: &Path, size: usize, limit: Limit, interrupt: &Interrupt) -> Result<f64, Failure> {
    with_file(dir, |file| force_each(file, size, limit, u64::MAX, interrupt))
}

/// The same into space that was filled with zeros, and forced, before.
pub(super) fn zeroed(dir: &Path, size: usize, limit: Limit, interrupt: &Interrupt) -> Result<f64, Failure> {
    let record = (size + OVERHEAD_BYTES) as u64;
    let space = (record * ZEROED_RECORDS).min(ZEROED_BYTES_MAX).max(record * 16);
    with_file(dir, |file| {
        let zeros = vec![0; 1 << 20];
        let mut position = 0;
        while position < space {
            let length = (space - position).min(zeros.len() as u64);
            file.write_all_at(&zeros[..length as usize], position).map_err(failure)?;
            position += length;
        }
        file.sync_all().map_err(failure)?;
        force_each(file, size, limit, space, interrupt)
    })
}

fn force_each(file: &File, size: usize, limit: Limit, space: u64, interrupt: &Interrupt) -> Result<f64, Failure> {
    let record: Vec<u8> = (0..size + OVERHEAD_BYTES).map(|i| b'A' + (i % 26) as u8).collect();
    let (mut position, mut records) = (0, 0);
    let begun = Instant::now();
    while limit.goes_on(begun, records) && position + record.len() as u64 <= space {
        file.write_all_at(&record, position).map_err(failure)?;
        file.sync_data().map_err(failure)?;
        position += record.len() as u64;
        records += 1;
        interrupt.check()?;
    }
    Ok(records as f64 / begun.elapsed().as_secs_f64())
}

fn with_file(dir: &Path, run: impl FnOnce(&File) -> Result<f64, Failure>) -> Result<f64, Failure> {
    let path = dir.join("raw");
    let file = OpenOptions::new().write(true).create_new(true).open(&path).map_err(failure)?;
    let rate = run(&file);
    std::fs::remove_file(&path).map_err(failure)?;
    rate
}

fn failure(error: io::Error) -> Failure {
    Failure::Bench(format!("the raw loop failed: {error}"))
}
