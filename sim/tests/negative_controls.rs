//! Known mistakes, planted in the broker: the exhaustive mode finds each, names the promise, and its path leads there again.
#![cfg(feature = "planted")]

use plimsoll_core::config::Config;
use plimsoll_core::planted::Planted;
use plimsoll_sim::enumerate::{Settings, WORKLOADS, enumerate, replay};

/// The mistake, the workload that shows it, the crashes that it takes, and the promise that is broken first.
const CONTROLS: [(Planted, &str, usize, &str); 33] = [
    (Planted::AcknowledgeBeforeForce, "levels", 1, "P1"),
    (Planted::LengthOnlyRecovery, "ahead", 1, "P8"),
    (Planted::NoByteSearch, "rot", 1, "P1"),
    (Planted::TruncateWithoutEvidence, "rot", 1, "P1"),
    (Planted::NoDirectoryForceAtRoll, "roll", 1, "P8"),
    (Planted::RenameBeforeForce, "acks", 1, "P8"),
    (Planted::NoTailCopy, "failed-force", 2, "P8"),
    (Planted::ResetUnreadableOffset, "rot", 1, "P5"),
    (Planted::ReadPastLine, "levels", 1, "P4"),
    (Planted::ReplyBeforeCompletion, "levels", 1, "P1"),
    (Planted::SlotBeforeForce, "levels", 1, "P8"),
    (Planted::ForceWrongFile, "levels", 1, "P8"),
    (Planted::ForceCoversLater, "levels", 1, "P8"),
    (Planted::EvidenceOffByOne, "levels", 1, "P8"),
    (Planted::NoDirectoryForceAtAck, "acks", 1, "P5"),
    (Planted::TailInPlace, "levels", 2, "P1"),
    (Planted::RunningSlotFirst, "anchors", 2, "P8"),
    (Planted::NoGroupRewrite, "failed-force", 2, "P5"),
    (Planted::BatchInTwoFrames, "atomic-batch", 1, "P2"),
    (Planted::WindowForgotten, "repeats", 1, "P16"),
    (Planted::NoDirectoryForceAtAlter, "settings", 1, "P3"),
    (Planted::NoSettingsRewrite, "settings-failed-force", 2, "P3"),
    (Planted::PolicyTakesOneMore, "retain-age", 1, "P12"),
    (Planted::CapacityDrops, "reject", 1, "P12"),
    (Planted::CapacityDrops, "total-capacity", 1, "P12"),
    (Planted::RenewedNameBelieved, "purge-failed-force", 1, "P8"),
    (Planted::DeletedInPlace, "delete", 1, "P8"),
    (Planted::ConfirmBeforeForce, "queue", 1, "P15"),
    (Planted::LeaseWithoutOwner, "queue", 1, "P15"),
    (Planted::DeliveriesForgotten, "queue", 1, "P15"),
    (Planted::RemovalBeforeCheckpoint, "journal", 1, "P15"),
    (Planted::ConfirmBeforeBurial, "dead-letters", 1, "P15"),
    (Planted::RenameBeforePackForce, "packing", 1, "P8"),
];

#[test]
fn every_control_is_found_and_can_be_replayed() {
    for (bug, name, depth, promise) in CONTROLS {
        let workload = WORKLOADS.iter().find(|workload| workload.name == name).unwrap();
        let settings = Settings { depth: Some(depth), threads: 1, states_max: 100_000, first_only: true };
        let plant = move |config: &mut Config| config.planted = Some(bug);
        let findings = enumerate(workload, &settings, &plant, &|_| {}).unwrap();
        let broken = findings.broken.unwrap_or_else(|| panic!("{bug:?} was not found by {name}"));
        assert_eq!(broken.promise, promise, "{bug:?}: {}", broken.what);
        assert_eq!(broken.story.len(), broken.path.len());
        if broken.path.is_empty() {
            // It takes no crash, so there is no way to it.
            continue;
        }
        let mut told = Vec::new();
        let again = replay(workload, &broken.path.join("/"), &plant, &mut |line| told.push(line)).unwrap();
        let again = again.unwrap_or_else(|| panic!("{bug:?}: {} leads nowhere", broken.path.join("/")));
        assert_eq!((again.promise, &again.what), (broken.promise, &broken.what), "{bug:?}");
        // Without the mistake the same way leads to no harm.
        let mended = replay(workload, &broken.path.join("/"), &|_| {}, &mut |_| {});
        assert!(!matches!(mended, Ok(Some(_))), "{bug:?}: {mended:?}");
    }
}
