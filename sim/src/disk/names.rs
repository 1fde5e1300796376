//! One directory: its entries for sure, and the journal of operations on them that no force has committed.

use super::hash::StateHash;
use std::collections::BTreeMap;

/// A file or a directory, whatever its name.
pub(super) type Ino = u64;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// Create, MakeDir.
    Link { name: String, ino: Ino },
    /// Remove, RemoveDir.
    Unlink { name: String, ino: Ino },
    /// One step: old or new, never neither.
    Rename { from: String, to: String, ino: Ino, replaces: bool },
}

impl Change {
    /// Whose name it is about.
    pub(super) fn ino(&self) -> Ino {
        match self {
            Change::Link { ino, .. } | Change::Unlink { ino, .. } | Change::Rename { ino, .. } => *ino,
        }
    }

    /// Whether it gives a name.
    pub(super) fn names(&self) -> bool {
        !matches!(self, Change::Unlink { .. })
    }

    pub(super) fn describe(&self, dir: &str) -> String {
        let slash = if dir.is_empty() { "" } else { "/" };
        match self {
            Change::Link { name, .. } => format!("creation of {dir}{slash}{name}"),
            Change::Unlink { name, .. } => format!("removal of {dir}{slash}{name}"),
            Change::Rename { from, to, .. } => format!("rename of {dir}{slash}{from} to {to}"),
        }
    }

    /// Each kept operation is carried out on whatever the lost ones left: later kept and earlier lost is legal, so a
    /// rename may find no old name, and a removal another file under its name.
    fn apply(&self, entries: &mut BTreeMap<String, Ino>) {
        let mut unlink = |name: &String, ino: &Ino| {
            if entries.get(name) == Some(ino) {
                entries.remove(name);
            }
        };
        match self {
            Change::Link { .. } => {}
            Change::Unlink { name, ino } => unlink(name, ino),
            Change::Rename { from, ino, .. } => unlink(from, ino),
        }
        if let Change::Link { name, ino } | Change::Rename { to: name, ino, .. } = self {
            entries.insert(name.clone(), *ino);
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Status {
    /// Lost in a power loss, or not.
    Pending,
    /// Durable, though an earlier one may not be.
    Committed,
    /// Its force failed: as pending, but no later force will commit it.
    Soft,
}

#[derive(Clone, Debug)]
pub(super) struct NameOp {
    pub(super) seq: u64,
    pub(super) status: Status,
    pub(super) change: Change,
}

#[derive(Clone, Default)]
pub(super) struct Dir {
    /// What the process sees.
    pub(super) cached: BTreeMap<String, Ino>,
    /// What is durable, but for the committed part of the journal.
    base: BTreeMap<String, Ino>,
    journal: Vec<NameOp>,
}

impl Dir {
    /// A directory whose entries are durable.
    pub(super) fn settled(entries: BTreeMap<String, Ino>) -> Dir {
        Dir { cached: entries.clone(), base: entries, journal: Vec::new() }
    }

    pub(super) fn is_settled(&self) -> bool {
        self.journal.is_empty()
    }

    pub(super) fn journal(&self) -> &[NameOp] {
        &self.journal
    }

    pub(super) fn change(&mut self, seq: u64, change: Change) {
        change.apply(&mut self.cached);
        self.journal.push(NameOp { seq, status: Status::Pending, change });
    }

    /// Gives every pending operation that `which` names another status.
    pub(super) fn mark(&mut self, status: Status, which: impl Fn(&NameOp) -> bool) {
        for op in &mut self.journal {
            if op.status == Status::Pending && which(op) {
                op.status = status;
            }
        }
        let settled = self.journal.iter().take_while(|op| op.status == Status::Committed).count();
        for op in self.journal.drain(..settled) {
            op.change.apply(&mut self.base);
        }
    }

    /// The entries after a power loss that kept what is committed and what `keep` says.
    pub(super) fn survive(&self, mut keep: impl FnMut(&NameOp) -> bool) -> BTreeMap<String, Ino> {
        let mut entries = self.base.clone();
        for op in &self.journal {
            if op.status == Status::Committed || keep(op) {
                op.change.apply(&mut entries);
            }
        }
        entries
    }

    /// Every file and directory that it may still name.
    pub(super) fn mentions(&self) -> impl Iterator<Item = Ino> {
        let entries = self.cached.values().chain(self.base.values()).copied();
        entries.chain(self.journal.iter().map(|op| op.change.ino()))
    }

    /// Everything that can influence what the directory will be; `child` is the hash of what a name stands for.
    pub(super) fn hash(&self, hash: &mut StateHash, child: &mut dyn FnMut(Ino) -> u128) {
        let mut entries = |hash: &mut StateHash, entries: &BTreeMap<String, Ino>| {
            hash.number(entries.len() as u64);
            for (name, ino) in entries {
                hash.bytes(name.as_bytes());
                hash.wide(child(*ino));
            }
        };
        entries(hash, &self.cached);
        if self.is_settled() {
            return;
        }
        entries(hash, &self.base);
        for op in &self.journal {
            hash.number(op.status as u64);
            hash.bytes(op.change.describe("").as_bytes());
            hash.wide(child(op.change.ino()));
        }
    }
}
