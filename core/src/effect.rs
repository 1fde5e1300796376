//! What the broker says is to be done. Plain data and one trait; no policy.
//!
//! # The contract that a backend keeps
//!
//! - Effects on **one file** (`Write`, `Reserve`, `Truncate`) run in the order in which they were emitted.
//!   Across files there is no order: where the broker needs one, it waits for a completion.
//! - A [`Effect::Force`] runs after the writes to its file that were emitted before it and covers exactly
//!   those. What it covers is fixed when it is emitted: a later write need not wait for it and is not
//!   covered by it. Behind a failed write it fails too, with [`IoErrorKind::AfterFailedWrite`], and that
//!   failure clears the mark: the next force stands for itself.
//! - Effects on **names** (`Create`, `Rename`, `Remove`, `MakeDir`, `RemoveDir`, `ForceDir`) run in the order in
//!   which they were emitted among those of the same directory. A rename does not force its directory.
//! - Every effect that touches the disk is completed exactly once, by [`Event::Completed`](crate::event::Event)
//!   with its id, never from inside [`Effects::emit`]. Effects on connections, `Report`, `Halt` and `Stopped`
//!   have no completion.
//! - An [`EffectId`] is never reused in the life of a process, so that a late completion can't match newer work.
//! - After an `Open` or `Create` the broker uses the file by its [`FileId`] alone until `CloseFile`. The file
//!   keeps its id when it is renamed. A backend may close and open descriptors behind an id as long as
//!   no unforced write, and no failure of one, gets lost by it.

use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use core::fmt;

/// Names one emitted effect. Never reused in the life of a process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EffectId(pub u64);

/// Names an open file. Chosen by the broker, never reused in the life of a process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileId(pub u64);

/// Names a client connection. Chosen by the backend, never reused in the life of a process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnectionId(pub u64);

/// Where effects go. The one boundary between deciding and doing.
///
/// The broker pushes; nothing is returned, so it is never re-entered: the outcome of an effect arrives as a
/// later [`Event`](crate::event::Event). A `Vec<(EffectId, Effect)>` implements the trait and records.
pub trait Effects {
    /// Takes one effect. Must not call back into the broker.
    fn emit(&mut self, id: EffectId, effect: Effect);
}

impl Effects for Vec<(EffectId, Effect)> {
    fn emit(&mut self, id: EffectId, effect: Effect) {
        self.push((id, effect));
    }
}

/// One thing to do. Paths are relative to the data directory and use `/`; `""` is the data directory itself
/// and `".."` its parent (only ever forced). All positions and lengths are bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// List a directory. Completes with [`Outcome::Listed`], sorted by name.
    List {
        /// The directory.
        dir: String,
    },
    /// Make a directory (mode 0700). Its parent exists. Fails with `Exists` where it is already there.
    MakeDir {
        /// The new directory.
        path: String,
    },
    /// Create a new empty file (mode 0600) and open it. Fails with `Exists` where the name is taken.
    Create {
        /// The id under which the file is used from now on.
        file: FileId,
        /// Its name.
        path: String,
    },
    /// Open an existing file for reading and writing. Completes with [`Outcome::Opened`].
    Open {
        /// The id under which the file is used from now on.
        file: FileId,
        /// Its name.
        path: String,
    },
    /// Forget an open file. Work on it that was emitted before still runs.
    CloseFile {
        /// The file.
        file: FileId,
    },
    /// Read up to `length` bytes. Completes with [`Outcome::Read`]; fewer bytes only at the end of the file.
    Read {
        /// The file.
        file: FileId,
        /// Where to begin.
        position: u64,
        /// How many bytes at most.
        length: u32,
    },
    /// Write all the bytes (a backend goes on after a short write). A failure leaves any part of them written.
    Write {
        /// The file.
        file: FileId,
        /// Where to begin.
        position: u64,
        /// What to write.
        bytes: Bytes,
    },
    /// Write zeros ahead of the log, so that later forces are pure data writes and a full disk shows at
    /// admission. Ordered as a write. A failure leaves any part of it written.
    Reserve {
        /// The file.
        file: FileId,
        /// Where to begin.
        position: u64,
        /// How many zero bytes.
        length: u64,
    },
    /// Set the length of a file. Ordered as a write.
    Truncate {
        /// The file.
        file: FileId,
        /// The new length.
        length: u64,
    },
    /// Force a file's data, and the metadata needed to read it, to the device (fdatasync).
    Force {
        /// The file.
        file: FileId,
    },
    /// Force a directory's entries to the device.
    ForceDir {
        /// The directory.
        dir: String,
    },
    /// Rename a file or a directory, replacing a file of the new name.
    Rename {
        /// The old name.
        from: String,
        /// The new name, in the same directory.
        to: String,
    },
    /// Remove a file's name.
    Remove {
        /// The name.
        path: String,
    },
    /// Remove an empty directory.
    RemoveDir {
        /// The name.
        path: String,
    },
    /// Send bytes to a client, after all that was emitted for it before. Progress comes back as
    /// [`Event::Sent`](crate::event::Event).
    Reply {
        /// Whom to.
        connection: ConnectionId,
        /// What.
        part: ReplyPart,
    },
    /// Read from this connection, or stop reading until told to go on (flow control).
    SetReading {
        /// The connection.
        connection: ConnectionId,
        /// Whether to read.
        on: bool,
    },
    /// Close a connection once everything emitted for it has been sent, or cut it now.
    Disconnect {
        /// The connection.
        connection: ConnectionId,
        /// `true`: drop what is unsent.
        now: bool,
    },
    /// Tell the operator. See [`Report`].
    Report(Report),
    /// Nothing will be acknowledged any more: send what was emitted, then end the process with this code.
    Halt(Halt),
    /// The last effect of a clean stop: everything is forced and recorded; end the process with 0.
    Stopped,
}

/// A piece of a reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReplyPart {
    /// These bytes.
    Bytes(Bytes),
    /// This range of a file, which the backend may send without a copy. It never changes any more.
    FileRange {
        /// The file. It stays usable for this range even if `CloseFile` follows.
        file: FileId,
        /// Where the range begins.
        position: u64,
        /// How long it is.
        length: u64,
    },
}

impl ReplyPart {
    /// How many bytes the client will be sent.
    pub fn len(&self) -> u64 {
        match self {
            ReplyPart::Bytes(bytes) => bytes.len() as u64,
            ReplyPart::FileRange { length, .. } => *length,
        }
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Why the process must end other than by a clean stop. The kinds are the exit codes of docs/protocol.md.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HaltKind {
    /// Exit code 3: damage below the line; nothing was changed (P7).
    Corrupt,
    /// Exit code 4: an I/O failure whose effect is unknown (P10).
    IoFailure,
    /// Exit code 5: the data directory is unreadable, foreign or of an unknown format.
    Directory,
}

/// See [`Effect::Halt`]. The line has been reported before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Halt {
    /// Which exit code.
    pub kind: HaltKind,
    /// One sentence for people.
    pub reason: String,
}

/// What a completed effect brings back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It is done.
    Done,
    /// The entries of a directory, sorted by name.
    Listed(Vec<DirEntry>),
    /// A file is open.
    Opened {
        /// Its length now.
        length: u64,
    },
    /// What was read.
    Read(Bytes),
}

/// One entry of a listed directory.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct DirEntry {
    /// The name within the directory. An entry whose name is not UTF-8 is listed with replacement characters.
    pub name: String,
    /// Whether it is a directory.
    pub is_dir: bool,
}

/// What kind of failure, as far as the broker decides by it (promises: what an I/O error does).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoErrorKind {
    /// ENOSPC, EDQUOT.
    NoSpace,
    /// EMFILE, ENFILE, after the backend closed what was idle and tried again.
    TooManyFiles,
    /// ENOENT.
    NotFound,
    /// EEXIST, ENOTEMPTY.
    Exists,
    /// A force behind a failed write: the write's own failure tells the story.
    AfterFailedWrite,
    /// Anything else: EIO, EROFS, EACCES, …
    Other,
}

/// A failed effect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IoError {
    /// The kind, for decisions.
    pub kind: IoErrorKind,
    /// The cause in words, for people, with the path.
    pub detail: String,
}

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

/// A line for the operator, as a name and fields, so that a backend can print it as text or as JSON. The lines
/// that scripts rely on are in docs/protocol.md.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// `RECOVERY`, `HALTED`, …
    pub name: &'static str,
    /// In printing order.
    pub fields: Vec<(&'static str, FieldValue)>,
}

/// A value in a [`Report`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FieldValue {
    /// A number.
    Number(u64),
    /// A word or a sentence.
    Text(String),
}

impl fmt::Display for Report {
    /// `NAME key=value key=value`. A text with a space stands last in every report, so the line can be split.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        for (key, value) in &self.fields {
            match value {
                FieldValue::Number(n) => write!(f, " {key}={n}")?,
                FieldValue::Text(t) => write!(f, " {key}={t}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn a_part_is_as_long_as_what_is_sent() {
        for (length, empty) in [(0, true), (1, false), (7, false)] {
            let bytes = ReplyPart::Bytes(Bytes::from(alloc::vec![b'x'; length as usize]));
            let range = ReplyPart::FileRange { file: FileId(1), position: 9, length };
            for part in [bytes, range] {
                assert_eq!((part.len(), part.is_empty()), (length, empty), "{part:?}");
            }
        }
    }

    #[test]
    fn lines_for_people_are_as_documented() {
        let fields = Vec::from([("durable", FieldValue::Number(7)), ("reason", FieldValue::Text("no room".into()))]);
        assert_eq!(Report { name: "HALTED", fields }.to_string(), "HALTED durable=7 reason=no room");
        let error = IoError { kind: IoErrorKind::NoSpace, detail: "no room for x".into() };
        assert_eq!(error.to_string(), "no room for x");
    }
}
