//! Bugs that can be planted, so that the simulator can prove that it would notice them.
//!
//! Only with the cargo feature `planted`, which the production binary refuses to be built with. Each is one
//! place in the code that reads `planted!(io, Name)`.

/// A bug. At most one is planted at a time, by [`Config::planted`](crate::config::Config::planted).
#[cfg(feature = "planted")]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Planted {
    /// DURABLE is answered when the write has returned.
    AcknowledgeBeforeForce,
    /// WRITTEN is answered when the message has an offset.
    ReplyBeforeCompletion,
    /// DURABLE is answered when the force has returned, before the running slot is written.
    ReplyBeforeSlot,
    /// The running slot is written together with the force, not after it.
    SlotBeforeForce,
    /// The watermark file is forced instead of the segment.
    ForceWrongFile,
    /// A force covers writes that were emitted after it.
    ForceCoversLater,
    /// Recovery looks at lengths and offsets, and not at checksums.
    LengthOnlyRecovery,
    /// No search behind the first invalid place.
    NoByteSearch,
    /// A torn tail is cut whatever the evidence says.
    TruncateWithoutEvidence,
    /// Evidence is compared off by one.
    EvidenceOffByOne,
    /// Any valid frame behind the first invalid place counts as damage below the line.
    ValidFrameIsEvidence,
    /// An unreadable group file counts as 0.
    ResetUnreadableOffset,
    /// The directory is not forced at a roll.
    NoDirectoryForceAtRoll,
    /// A group file is renamed before it is forced.
    RenameBeforeForce,
    /// The directory is not forced after the rename of a group file.
    NoDirectoryForceAtAck,
    /// The doubtful tail is not copied.
    NoTailCopy,
    /// Consumers see what is written.
    ReadPastLine,
    /// An ACK moves a cursor that was not delivered.
    AckPastDelivery,
    /// Story 1: padding is left out.
    NoPadding,
    /// Story 2: the doubtful tail is written anew in place.
    TailInPlace,
    /// Story 3: the roll does not anchor the line, and recovery doubts closed segments too. Either alone does no harm.
    RollWithoutAnchor,
    /// Story 4: recovery always writes the running slot first, and forces neither before.
    RunningSlotFirst,
    /// Story 5: anchoring forces the running slot as it stands.
    AnchorAlone,
    /// Story 6: segments below the start are removed before the line is anchored.
    RemovalBeforeAnchoring,
    /// Story 7: group files are not written anew.
    NoGroupRewrite,
    /// The settings of topics are not written anew.
    NoSettingsRewrite,
    /// ALTERED is answered when the file is renamed, before the directory is forced.
    NoDirectoryForceAtAlter,
    /// Story 8: a topic whose making was not finished is served, and recovery does not force the directory of topics.
    NoTopicsForce,
    /// A topic's leftover is emptied though its name may come back.
    NameComesBack,
    /// Story 9: an anchored slot at the log's end counts as a clean stop.
    CleanByEquality,
    /// Story 11: leftovers are removed before everything is judged.
    LeftoversBeforeJudgement,
    /// Story 12: every log has the same, known id.
    KnownSalt,
    /// Story 13: a hole among the segments below the start counts as damage.
    HoleBelowStart,
    /// Segments are removed before the new start is recorded.
    RemovalBeforeStart,
    /// Segments are removed newest first.
    NewestFirst,
    /// A retention policy takes one segment more than it says.
    PolicyTakesOneMore,
    /// A topic that is to refuse what is over its capacity drops its oldest messages.
    CapacityDrops,
    /// A watermark file that took the place of another one is believed, though the force of its name may have failed.
    RenewedNameBelieved,
    /// A topic that is deleted is emptied under its own name.
    DeletedInPlace,
    /// Story 14: SEEK goes anywhere.
    SeekUnbounded,
    /// Story 14: what the groups have acknowledged is no evidence.
    GroupsNoEvidence,
    /// A batch is written as two frames.
    BatchInTwoFrames,
    /// What was published before a restart is not remembered.
    WindowForgotten,
    /// A repeated publish is answered at once, whatever level it asks for.
    RepeatAnsweredAtOnce,
    /// CONFIRMED is answered before the journal is forced.
    ConfirmBeforeForce,
    /// A journal begins at a checkpoint that is not forced yet.
    RemovalBeforeCheckpoint,
    /// Whoever asks may confirm what another has reserved.
    LeaseWithoutOwner,
    /// After a restart nothing is known of how often messages were handed out.
    DeliveriesForgotten,
    /// A message is confirmed before it stands among the dead letters.
    ConfirmBeforeBurial,
    /// A packed segment takes the old one's place before it is forced.
    RenameBeforePackForce,
    /// A sidecar is believed: nobody looks whose it is, nor what stands where it says. Either alone does no harm.
    SidecarBelieved,
}

#[cfg(feature = "planted")]
impl Planted {
    /// All of them, each with the promise that it breaks.
    pub const ALL: [(Planted, &'static str); 51] = [
        (Planted::AcknowledgeBeforeForce, "P3"),
        (Planted::ReplyBeforeCompletion, "P3"),
        (Planted::ReplyBeforeSlot, "P3"),
        (Planted::SlotBeforeForce, "P3"),
        (Planted::ForceWrongFile, "P3"),
        (Planted::ForceCoversLater, "P3"),
        (Planted::LengthOnlyRecovery, "P7"),
        (Planted::NoByteSearch, "P7"),
        (Planted::TruncateWithoutEvidence, "P7"),
        (Planted::EvidenceOffByOne, "P8"),
        (Planted::ValidFrameIsEvidence, "P8"),
        (Planted::ResetUnreadableOffset, "P5"),
        (Planted::NoDirectoryForceAtRoll, "P1"),
        (Planted::RenameBeforeForce, "P5"),
        (Planted::NoDirectoryForceAtAck, "P5"),
        (Planted::NoTailCopy, "P10"),
        (Planted::ReadPastLine, "P4"),
        (Planted::AckPastDelivery, "P6"),
        (Planted::NoPadding, "P1"),
        (Planted::TailInPlace, "P1"),
        (Planted::RollWithoutAnchor, "P1"),
        (Planted::RunningSlotFirst, "P8"),
        (Planted::AnchorAlone, "P8"),
        (Planted::RemovalBeforeAnchoring, "P8"),
        (Planted::NoGroupRewrite, "P5"),
        (Planted::NoSettingsRewrite, "P3"),
        (Planted::NoDirectoryForceAtAlter, "P3"),
        (Planted::NoTopicsForce, "P1"),
        (Planted::NameComesBack, "P8"),
        (Planted::CleanByEquality, "P1"),
        (Planted::LeftoversBeforeJudgement, "P7"),
        (Planted::KnownSalt, "P8"),
        (Planted::HoleBelowStart, "P8"),
        (Planted::RemovalBeforeStart, "P12"),
        (Planted::NewestFirst, "P12"),
        (Planted::PolicyTakesOneMore, "P12"),
        (Planted::CapacityDrops, "P12"),
        (Planted::RenewedNameBelieved, "P8"),
        (Planted::DeletedInPlace, "P8"),
        (Planted::SeekUnbounded, "P5"),
        (Planted::GroupsNoEvidence, "P7"),
        (Planted::BatchInTwoFrames, "P2"),
        (Planted::WindowForgotten, "P16"),
        (Planted::RepeatAnsweredAtOnce, "P3"),
        (Planted::ConfirmBeforeForce, "P15"),
        (Planted::RemovalBeforeCheckpoint, "P15"),
        (Planted::LeaseWithoutOwner, "P15"),
        (Planted::DeliveriesForgotten, "P15"),
        (Planted::ConfirmBeforeBurial, "P15"),
        (Planted::RenameBeforePackForce, "P7"),
        (Planted::SidecarBelieved, "P1"),
    ];
}

/// Whether bugs can be planted in this build.
pub const ENABLED: bool = cfg!(feature = "planted");

#[cfg(feature = "planted")]
macro_rules! planted {
    ($io:expr, $bug:ident) => {
        $io.planted() == Some($crate::planted::Planted::$bug)
    };
}

#[cfg(not(feature = "planted"))]
macro_rules! planted {
    ($io:expr, $bug:ident) => {{
        let _ = &$io;
        false
    }};
}

pub(crate) use planted;
