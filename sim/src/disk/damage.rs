//! What no contract excuses: damage that a log can only detect. A tier of its own, so that it can't be mixed with
//! power losses by mistake: a disk has no method that damages it.

use super::file::Sector;
use super::{ROOT, SimDisk};
use crate::disk::names::Ino;
use plimsoll_core::layout::INDEX_SUFFIX;
use std::sync::Arc;

/// Damages a disk. From then on [`SimDisk::is_damaged`] is true, and of the promises only those about detection hold:
/// a typed error or a refused start, never wrong bytes, never silence.
///
/// Paths must exist; a method panics where they don't.
pub struct Vandal<'a> {
    disk: &'a mut SimDisk,
    sidecars_only: bool,
}

impl<'a> Vandal<'a> {
    /// Lets a vandal at the disk.
    pub fn new(disk: &'a mut SimDisk) -> Vandal<'a> {
        disk.damaged = true;
        Vandal { disk, sidecars_only: false }
    }

    /// Lets somebody at the sidecars of closed segments. Nothing is promised by them, so the disk doesn't count as damaged, and
    /// every promise holds on. Every method panics for another file.
    pub fn of_sidecars(disk: &'a mut SimDisk) -> Vandal<'a> {
        Vandal { disk, sidecars_only: true }
    }

    /// All bytes become zero, on the platter and in the cache.
    pub fn zero(&mut self, path: &str) {
        let unit = self.disk.unit();
        for index in 0..self.disk.file_at(path).cached.length.div_ceil(unit) {
            self.set_sector(path, index, Some(vec![0; unit as usize].into()));
        }
    }

    /// Bit rot: the bits of `mask` are flipped at a position, on the platter and in the cache. Panics outside the
    /// file and for a mask of 0.
    pub fn flip(&mut self, path: &str, position: u64, mask: u8) {
        assert!(mask != 0, "a mask of 0 flips nothing");
        let unit = self.disk.unit();
        let index = position / unit;
        let mut bytes = self.sector(path, index);
        assert!(position < self.disk.file_at(path).cached.length, "{position} is outside of {path}");
        bytes[(position % unit) as usize] ^= mask;
        self.set_sector(path, index, Some(bytes.into()));
    }

    /// A sector can't be read any more, until it is written.
    pub fn unreadable(&mut self, path: &str, sector: u64) {
        let ino = self.ino(path);
        let file = self.disk.file_mut(ino);
        file.unreadable.insert(sector);
        file.touched();
    }

    /// A write that went to the wrong place: what stands in `sector` stands in `to_sector` of `to_path` instead, and
    /// the right place shows what it held before.
    pub fn misdirect(&mut self, path: &str, sector: u64, to_path: &str, to_sector: u64) {
        let bytes: Sector = self.sector(path, sector).into();
        let before = self.disk.file_at(path).ancestor(sector).cloned();
        self.set_sector(path, sector, before);
        self.set_sector(to_path, to_sector, Some(bytes));
    }

    /// The next read of the file shows, sector by sector, what stood there before the last force, where that is known.
    pub fn stale_read(&mut self, path: &str) {
        let ino = self.ino(path);
        let file = self.disk.file_mut(ino);
        file.stale_read = true;
        file.touched();
    }

    /// A device that lies about flushes: while `on`, every force and directory force answers OK and covers nothing,
    /// so that a power loss may take any part of what came since.
    pub fn lie(&mut self, on: bool) {
        self.disk.lying = on;
    }

    /// The next force of the file answers OK and covers nothing, the one after it fails (the harsh reading of ext4
    /// data=journal whose checkpoint fails).
    pub fn lie_about(&mut self, path: &str) {
        let ino = self.ino(path);
        let file = self.disk.file_mut(ino);
        file.lie_once = true;
        file.touched();
    }

    /// A person deletes a file, durably.
    pub fn delete(&mut self, path: &str) {
        let ino = self.ino(path);
        for dir in self.disk.dirs.values_mut() {
            if dir.mentions().any(|named| named == ino) {
                let mut entries = dir.cached.clone();
                entries.retain(|_, named| *named != ino);
                *dir = Arc::new(super::names::Dir::settled(entries));
            }
        }
        self.disk.settle_dirty_dirs();
    }

    /// A person cuts a file, durably. Everything else in it becomes durable too. Panics when it is not longer than
    /// that.
    pub fn truncate(&mut self, path: &str, length: u64) {
        assert!(length < self.disk.file_at(path).cached.length, "{path} is not longer than {length}");
        let (ino, unit) = (self.ino(path), self.disk.unit());
        self.disk.seq += 2;
        let seq = self.disk.seq;
        let file = self.disk.file_mut(ino);
        file.truncate(seq - 1, unit, length, &[]);
        file.force(seq);
    }

    /// A person puts one file of a backup in the place of the newer one (or of none), durably. Its directory must
    /// exist.
    pub fn restore_file(&mut self, backup: &SimDisk, path: &str) {
        let file = super::File::settled(backup.file_at(path).cached.clone());
        let ino = self.disk.new_ino();
        self.disk.files.insert(ino, Arc::new(file));
        self.name(ino, path);
    }

    /// A person, or a tool that was interrupted, leaves a copy of a file under another name, durably.
    pub fn copy_file(&mut self, path: &str, to: &str) {
        let file = super::File::settled(self.disk.file_at(path).cached.clone());
        let ino = self.disk.new_ino();
        self.disk.files.insert(ino, Arc::new(file));
        self.name(ino, to);
    }

    /// A person restores a whole backup over the newer data. Nothing may be open.
    pub fn restore_all(&mut self, backup: &SimDisk) {
        assert!(self.disk.handles.is_empty() && self.disk.pending.is_empty(), "the disk is in use");
        let mut restored = backup.clone();
        restored.forget_process();
        restored.settle_everything();
        restored.damaged = true;
        restored.lying = self.disk.lying;
        *self.disk = restored;
    }

    fn name(&mut self, ino: Ino, path: &str) {
        self.may_touch(path);
        let (dir, name) = self.disk.parent_of(path).unwrap_or_else(|error| panic!("{error}"));
        let mut entries = self.disk.dirs[&dir].cached.clone();
        entries.insert(name.to_owned(), ino);
        self.disk.dirs.insert(dir, Arc::new(super::names::Dir::settled(entries)));
        self.disk.settle_dirty_dirs();
    }

    fn may_touch(&self, path: &str) {
        assert!(!self.sidecars_only || path.ends_with(INDEX_SUFFIX), "{path} is no sidecar");
    }

    fn ino(&self, path: &str) -> Ino {
        self.may_touch(path);
        let ino = self.disk.find(path).unwrap_or_else(|error| panic!("{error}"));
        assert!(ino != ROOT && self.disk.files.contains_key(&ino), "{path} is not a file");
        ino
    }

    fn sector(&self, path: &str, index: u64) -> Vec<u8> {
        let sector = self.disk.file_at(path).cached.sectors.get(&index);
        sector.map_or_else(|| vec![0; self.disk.unit() as usize], |sector| sector.to_vec())
    }

    fn set_sector(&mut self, path: &str, index: u64, sector: Option<Sector>) {
        let ino = self.ino(path);
        self.disk.file_mut(ino).alter(index, sector);
    }
}
