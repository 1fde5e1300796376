//! What may be executed next, and what each effect does to the cache, to the journal of names, and to what is durable.

use super::file::File;
use super::names::{Change, Dir, Ino, NameOp, Status};
use super::profile::{FailedForce, Names};
use super::{Fault, Handle, REMOVED_MAX, ROOT, SimDisk, base_name, error, not_open, parent};
use plimsoll_core::effect::{DirEntry, Effect, FileId, IoError, IoErrorKind, Outcome};
use std::collections::BTreeSet;
use std::sync::Arc;

impl SimDisk {
    pub(super) fn runnable_places(&self) -> Vec<usize> {
        let mut opening = BTreeSet::new();
        let mut writing = BTreeSet::new();
        let mut working = BTreeSet::new();
        let mut naming = BTreeSet::new();
        let mut places = Vec::new();
        for (at, pending) in self.pending.iter().enumerate() {
            let runs = match &pending.effect {
                Effect::Open { file, .. } => {
                    opening.insert(*file);
                    true
                }
                Effect::Create { file, path } => {
                    opening.insert(*file);
                    naming.insert(parent(path))
                }
                Effect::MakeDir { path }
                | Effect::Rename { to: path, .. }
                | Effect::Remove { path }
                | Effect::RemoveDir { path } => naming.insert(parent(path)),
                Effect::ForceDir { dir } => naming.insert(&dir[..]),
                Effect::Write { file, .. } | Effect::Reserve { file, .. } | Effect::Truncate { file, .. } => {
                    working.insert(*file);
                    writing.insert(*file) && !opening.contains(file)
                }
                Effect::Force { file } => {
                    working.insert(*file);
                    !writing.contains(file) && !opening.contains(file)
                }
                Effect::Read { file, .. } => {
                    working.insert(*file);
                    !opening.contains(file)
                }
                Effect::CloseFile { file } => !working.contains(file) && !opening.contains(file),
                _ => true,
            };
            if runs {
                places.push(at);
            }
        }
        places
    }

    pub(super) fn carry_out(&mut self, seq: u64, effect: &Effect, fault: Option<Fault>) -> Result<Outcome, IoError> {
        match effect {
            Effect::Write { .. } | Effect::Reserve { .. } | Effect::Truncate { .. } => self.change(seq, effect, fault),
            Effect::Force { file } => self.force(seq, *file, fault),
            Effect::ForceDir { dir } => self.force_dir(dir, fault),
            _ => {
                assert!(!matches!(fault, Some(Fault::Force(_))), "only a force fails as a force: {effect:?}");
                if let Some(Fault::Error(kind)) = fault {
                    return Err(failure(kind, "injected failure of", effect));
                }
                let done = self.look_or_name(seq, effect)?;
                match fault {
                    Some(Fault::Partial { kind, .. }) => Err(failure(kind, "injected failure after", effect)),
                    _ => Ok(done),
                }
            }
        }
    }

    /// Everything but writes and forces.
    fn look_or_name(&mut self, seq: u64, effect: &Effect) -> Result<Outcome, IoError> {
        match effect {
            Effect::List { dir } => {
                let ino = self.find(dir)?;
                let entries = self.dirs.get(&ino).ok_or_else(|| error(IoErrorKind::Other, "not a directory", dir))?;
                let entry =
                    |(name, ino): (&String, &Ino)| DirEntry { name: name.clone(), is_dir: self.dirs.contains_key(ino) };
                return Ok(Outcome::Listed(entries.cached.iter().map(entry).collect()));
            }
            Effect::Open { file, path } => {
                let ino = self.find(path)?;
                let found = self.files.get(&ino).ok_or_else(|| error(IoErrorKind::Other, "is a directory", path))?;
                let length = found.cached.length;
                self.open(*file, ino);
                return Ok(Outcome::Opened { length });
            }
            Effect::Read { file, position, length } => {
                let ino = self.handle(*file)?.ino;
                let read = self.read(ino, *position, u64::from(*length));
                if self.files[&ino].stale_read {
                    let file = self.file_mut(ino);
                    file.stale_read = false;
                    file.touched();
                }
                return read.map(|bytes| Outcome::Read(bytes.into()));
            }
            Effect::CloseFile { file } => {
                self.handle(*file)?;
                self.handles.remove(file);
            }
            Effect::MakeDir { path } => {
                let (dir, name) = self.free_name(path)?;
                let ino = self.new_ino();
                self.dirs.insert(ino, Arc::new(Dir::default()));
                self.rename_in(dir, seq, Change::Link { name, ino });
            }
            Effect::Create { file, path } => {
                let (dir, name) = self.free_name(path)?;
                let ino = self.new_ino();
                self.files.insert(ino, Arc::new(File::default()));
                self.rename_in(dir, seq, Change::Link { name, ino });
                self.open(*file, ino);
            }
            Effect::Rename { from, to } => self.rename(seq, from, to)?,
            Effect::Remove { path } => {
                let ino = self.find(path)?;
                if !self.files.contains_key(&ino) {
                    return Err(error(IoErrorKind::Other, "is a directory", path));
                }
                self.unlink(seq, path, ino)?;
                self.bury(ino);
            }
            Effect::RemoveDir { path } => {
                let ino = self.find(path)?;
                let Some(dir) = self.dirs.get(&ino) else {
                    return Err(error(IoErrorKind::Other, "not a directory", path));
                };
                if !dir.cached.is_empty() {
                    return Err(error(IoErrorKind::Exists, "directory not empty", path));
                }
                self.unlink(seq, path, ino)?;
            }
            _ => unreachable!("carried out elsewhere: {effect:?}"),
        }
        Ok(Outcome::Done)
    }

    fn change(&mut self, seq: u64, effect: &Effect, fault: Option<Fault>) -> Result<Outcome, IoError> {
        let (Effect::Write { file, .. } | Effect::Reserve { file, .. } | Effect::Truncate { file, .. }) = effect else {
            unreachable!("not a change of a file: {effect:?}");
        };
        let ino = self.handle(*file)?.ino;
        let (part, mut failed) = match fault {
            None => (u64::MAX, None),
            Some(Fault::Error(kind)) => (0, Some(failure(kind, "injected failure of", effect))),
            Some(Fault::Partial { kind, bytes }) => (bytes, Some(failure(kind, "injected failure in", effect))),
            Some(Fault::Force(_)) => panic!("only a force fails as a force: {effect:?}"),
        };
        let unit = self.unit();
        let mut put = |disk: &mut SimDisk, position: u64, bytes: &[u8]| {
            let wanted = part.min(bytes.len() as u64);
            let fits = disk.fits(ino, position, wanted);
            disk.write(ino, seq, position, &bytes[..fits as usize]);
            if fits < wanted {
                failed = Some(failure(IoErrorKind::NoSpace, "no space left for", effect));
            }
        };
        match effect {
            Effect::Write { position, bytes, .. } => put(self, *position, bytes),
            Effect::Reserve { position, length, .. } => put(self, *position, &vec![0; *length as usize]),
            Effect::Truncate { length, .. } if !matches!(fault, Some(Fault::Error(_))) => {
                let forces = self.forces_under_way(ino);
                self.file_mut(ino).truncate(seq, unit, *length, &forces);
            }
            _ => {}
        }
        match failed {
            None => Ok(Outcome::Done),
            Some(error) => {
                self.handles.get_mut(file).expect("seen above").failed_writes.insert(seq);
                Err(error)
            }
        }
    }

    fn force(&mut self, seq: u64, file: FileId, fault: Option<Fault>) -> Result<Outcome, IoError> {
        let handle = self.handle_mut(file)?;
        let ino = handle.ino;
        let later = handle.failed_writes.split_off(&seq);
        if !std::mem::replace(&mut handle.failed_writes, later).is_empty() {
            return Err(error(IoErrorKind::AfterFailedWrite, "a write before this force failed", &self.label(ino)));
        }
        let lying = self.lying;
        let forced_file = self.file_mut(ino);
        if std::mem::take(&mut forced_file.lie_once) {
            forced_file.late_error = true;
            return Ok(Outcome::Done);
        }
        if std::mem::take(&mut forced_file.late_error) {
            forced_file.fail_force(seq, FailedForce::MarkedClean);
            return Err(error(IoErrorKind::Other, "late failure of a force of", &self.label(ino)));
        }
        if lying {
            return Ok(Outcome::Done);
        }
        let (how, kind) = match fault {
            None => {
                self.commit_file(seq, ino);
                return Ok(Outcome::Done);
            }
            Some(Fault::Force(how)) => (how, IoErrorKind::Other),
            Some(Fault::Error(kind) | Fault::Partial { kind, .. }) => (self.options.profile.failed_force[0], kind),
        };
        if how == FailedForce::ReportedLate {
            self.commit_file(seq, ino);
            self.file_mut(ino).late_error = true;
            return Ok(Outcome::Done);
        }
        self.file_mut(ino).fail_force(seq, how);
        Err(error(kind, "injected failure of a force of", &self.label(ino)))
    }

    fn commit_file(&mut self, seq: u64, ino: Ino) {
        let forced = self.file_mut(ino).force(seq);
        let created = self.newly_created(ino);
        match self.options.profile.names {
            Names::Independent => {}
            Names::Queue => {
                // That change may be durable since it happened, by the kernel's own doing. Then the force finds nothing to do,
                // and what happened to names since then stays in memory.
                if let Some(last) = forced.metadata.max(created) {
                    self.commit_names(|_, op| op.seq <= last);
                }
            }
            Names::QueueByInode if forced.data || forced.metadata.is_some() || created.is_some() => {
                self.commit_names_of(ino, |_| false);
            }
            Names::QueueByInode => {}
        }
    }

    /// Commits the names of one file or directory, and of the directories above it, or they would lead nowhere; and
    /// all the entries of the directories that `entries_of` names.
    fn commit_names_of(&mut self, ino: Ino, entries_of: impl Fn(Ino) -> bool) {
        let mut wanted = BTreeSet::from([ino]);
        // A directory stays where it was made, so it has a higher number than the one above it.
        for dir in self.dirty_dirs.iter().rev() {
            if self.dirs[dir].journal().iter().any(|op| wanted.contains(&op.change.ino())) {
                wanted.insert(*dir);
            }
        }
        self.commit_names(|of, op| entries_of(of) || (op.change.names() && wanted.contains(&op.change.ino())));
    }

    /// When the file was created, if that is not durable.
    pub(super) fn newly_created(&self, ino: Ino) -> Option<u64> {
        let mut ops = self.dirty_dirs.iter().flat_map(|dir| self.dirs[dir].journal());
        let created = ops.find(|op| {
            op.status == Status::Pending && matches!(op.change, Change::Link { ino: linked, .. } if linked == ino)
        });
        created.map(|op| op.seq)
    }

    fn force_dir(&mut self, dir: &str, fault: Option<Fault>) -> Result<Outcome, IoError> {
        let profile = self.options.profile;
        let ino = if dir == ".." { ROOT } else { self.find(dir)? };
        if !self.dirs.contains_key(&ino) {
            return Err(error(IoErrorKind::Other, "not a directory", dir));
        }
        let covers = |of: Ino| dir != ".." && (of == ino || profile.names == Names::Queue);
        match fault {
            None if self.lying => {}
            None => {
                if dir == ".." {
                    self.root_is_durable = true;
                }
                match profile.names {
                    Names::QueueByInode => self.commit_names_of(ino, covers),
                    Names::Independent => self.commit_names(|of, _| covers(of)),
                    Names::Queue => {
                        let pending = self.dirs[&ino].journal().iter().filter(|op| op.status == Status::Pending);
                        let last = pending.map(|op| op.seq).max().max(self.newly_created(ino));
                        self.commit_names(|of, op| covers(of) && last.is_some_and(|last| op.seq <= last));
                    }
                }
            }
            Some(Fault::Error(kind) | Fault::Partial { kind, .. }) => {
                // What another force is on its way to cover is that one's to tell: were it to succeed, and cover nothing, no program
                // could know.
                let others: Vec<Ino> = self
                    .pending
                    .iter()
                    .filter_map(|pending| match &pending.effect {
                        Effect::ForceDir { dir } => self.find(dir).ok().filter(|of| *of != ino),
                        _ => None,
                    })
                    .collect();
                for of in self.dirty_dirs.iter().copied().filter(|of| covers(*of) && !others.contains(of)) {
                    let dir = self.dirs.get_mut(&of).expect("a dirty directory");
                    Arc::make_mut(dir).mark(Status::Soft, |_| true);
                }
                return Err(error(kind, "injected failure of a directory force of", dir));
            }
            Some(Fault::Force(_)) => panic!("a directory force fails by Fault::Error"),
        }
        Ok(Outcome::Done)
    }

    /// Makes the pending operations durable that `which` names by directory and change.
    fn commit_names(&mut self, which: impl Fn(Ino, &NameOp) -> bool) {
        let profile = self.options.profile;
        for of in self.dirty_dirs.clone() {
            let dir = Arc::make_mut(self.dirs.get_mut(&of).expect("a dirty directory"));
            if profile.replace_keeps_length {
                for op in dir.journal().iter().filter(|op| op.status == Status::Pending && which(of, op)) {
                    if let Change::Rename { ino, replaces: true, .. } = op.change
                        && let Some(file) = self.files.get_mut(&ino)
                    {
                        Arc::make_mut(file).force_length(op.seq);
                    }
                }
            }
            dir.mark(Status::Committed, |op| which(of, op));
        }
        // The root's own name is in the same journal.
        self.root_is_durable |= profile.names != Names::Independent;
        self.settle_dirty_dirs();
    }

    fn rename(&mut self, seq: u64, from: &str, to: &str) -> Result<(), IoError> {
        assert_eq!(parent(from), parent(to), "the contract: a rename stays in its directory");
        let ino = self.find(from)?;
        let (dir, name) = self.parent_of(to)?;
        let target = self.dirs[&dir].cached.get(name).copied();
        if target == Some(ino) {
            return Ok(());
        }
        if let Some(target) = target {
            match (self.files.contains_key(&ino), self.dirs.get(&target)) {
                (true, None) => self.bury(target),
                (false, Some(dir)) if dir.cached.is_empty() => {}
                (false, Some(_)) => return Err(error(IoErrorKind::Exists, "directory not empty", to)),
                _ => return Err(error(IoErrorKind::Other, "a file and a directory can't replace each other", to)),
            }
        }
        let (from, to) = (base_name(from).to_owned(), name.to_owned());
        self.rename_in(dir, seq, Change::Rename { from, to, ino, replaces: target.is_some() });
        Ok(())
    }

    fn unlink(&mut self, seq: u64, path: &str, ino: Ino) -> Result<(), IoError> {
        let (dir, name) = self.parent_of(path)?;
        let name = name.to_owned();
        self.rename_in(dir, seq, Change::Unlink { name, ino });
        Ok(())
    }

    fn rename_in(&mut self, dir: Ino, seq: u64, change: Change) {
        Arc::make_mut(self.dirs.get_mut(&dir).expect("a directory")).change(seq, change);
        self.dirty_dirs.insert(dir);
    }

    /// A file lost its name: its blocks may be used again, and its content show through.
    fn bury(&mut self, ino: Ino) {
        self.removed.push_back(self.files[&ino].clone());
        if self.removed.len() > REMOVED_MAX {
            self.removed.pop_front();
        }
    }

    pub(super) fn write(&mut self, ino: Ino, seq: u64, position: u64, bytes: &[u8]) {
        let (unit, profile) = (self.unit(), self.options.profile);
        let skip_equal = profile.power_safe_overwrite || !profile.overwrite_tears;
        let forces = self.forces_under_way(ino);
        self.file_mut(ino).write(seq, unit, position, bytes, skip_equal, &forces);
    }

    fn forces_under_way(&self, ino: Ino) -> Vec<u64> {
        let of_file = |file: &FileId| self.handles.get(file).is_some_and(|handle| handle.ino == ino);
        let forces =
            self.pending.iter().filter(|pending| matches!(&pending.effect, Effect::Force { file } if of_file(file)));
        forces.map(|pending| pending.seq).collect()
    }

    /// How many of these bytes there is space for.
    fn fits(&self, ino: Ino, position: u64, length: u64) -> u64 {
        let Some(capacity) = self.options.capacity_bytes else { return length };
        let file = &self.files[&ino];
        if file.new_sectors(self.unit(), position, length) == 0 {
            return length;
        }
        let free = capacity.saturating_sub(self.used_bytes()) / self.unit();
        let mut fits = length;
        while file.new_sectors(self.unit(), position, fits) > free {
            // Up to the beginning of its last sector.
            fits = ((position + fits - 1) / self.unit() * self.unit()).saturating_sub(position);
        }
        fits
    }

    fn open(&mut self, file: FileId, ino: Ino) {
        let before = self.handles.insert(file, Handle { ino, failed_writes: BTreeSet::new() });
        assert!(before.is_none(), "the contract: {file:?} is used twice");
    }

    fn handle_mut(&mut self, file: FileId) -> Result<&mut Handle, IoError> {
        self.handles.get_mut(&file).ok_or_else(|| not_open(file))
    }

    fn free_name(&self, path: &str) -> Result<(Ino, String), IoError> {
        let (dir, name) = self.parent_of(path)?;
        if name.is_empty() || self.dirs[&dir].cached.contains_key(name) {
            return Err(error(IoErrorKind::Exists, "exists already", path));
        }
        if self.options.capacity_bytes.is_some_and(|capacity| self.used_bytes() >= capacity) {
            return Err(error(IoErrorKind::NoSpace, "no space left for", path));
        }
        Ok((dir, name.to_owned()))
    }
}

fn failure(kind: IoErrorKind, what: &str, effect: &Effect) -> IoError {
    let words = match effect {
        Effect::List { dir } => format!("listing {dir}"),
        Effect::MakeDir { path } => format!("making {path}"),
        Effect::Create { path, .. } => format!("creating {path}"),
        Effect::Open { path, .. } => format!("opening {path}"),
        Effect::Rename { from, to } => format!("renaming {from} to {to}"),
        Effect::Remove { path } | Effect::RemoveDir { path } => format!("removing {path}"),
        Effect::Write { position, bytes, .. } => format!("writing {} bytes at {position}", bytes.len()),
        Effect::Reserve { position, length, .. } => format!("reserving {length} bytes at {position}"),
        Effect::Truncate { length, .. } => format!("cutting to {length} bytes"),
        Effect::Read { position, length, .. } => format!("reading {length} bytes at {position}"),
        other => format!("{other:?}"),
    };
    IoError { kind, detail: format!("{what} {words}") }
}
