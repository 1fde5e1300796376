//! The operations of a work queue as its journal keeps them. The journal is a log like a topic's, in a directory of its own; each
//! operation is one frame.
//!
//! A reservation is tentative: its record is written before the message is handed out, and not forced. A confirmation is forced before
//! it is answered (P15). So after a kill every delivery is counted; after a power loss counts may be low, and what was confirmed stays
//! confirmed. A checkpoint says everything anew; what stands before it is not needed any more.
//!
//! The bytes are described in docs/file-format.md.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;

/// Offsets that follow each other: the first, and how many.
pub type Run = (u64, u32);

/// Why a message became a dead letter: what happened after its last delivery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Reason {
    /// Its consumer gave it back.
    Aborted = 1,
    /// Its lease ran out.
    Expired = 2,
    /// Its consumer's connection was lost.
    Disconnected = 3,
    /// The broker was started again while it was reserved.
    Restarted = 4,
    /// A person took its lease away.
    Stolen = 5,
}

impl Reason {
    const ALL: [(Reason, &'static str); 5] = [
        (Reason::Aborted, "aborted"),
        (Reason::Expired, "expired"),
        (Reason::Disconnected, "disconnected"),
        (Reason::Restarted, "restarted"),
        (Reason::Stolen, "stolen"),
    ];

    /// The word in a dead letter's header.
    pub fn as_str(self) -> &'static str {
        Reason::ALL[self as usize - 1].1
    }

    fn from_byte(byte: u8) -> Option<Reason> {
        Reason::ALL.into_iter().map(|(reason, _)| reason).find(|reason| *reason as u8 == byte)
    }
}

/// That a message is to become a dead letter: under this sequence it is published there, however often that is tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dying {
    /// With the first eight bytes of the journal's log id it is the id of the dead letter (P16).
    pub sequence: u32,
    /// What happened after its last delivery.
    pub reason: Reason,
}

/// A message that was reserved once and is not confirmed, as it outlives a restart.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Kept {
    /// How often it was handed out.
    pub deliveries: u32,
    /// Before this moment it is not handed out again, milliseconds since 1970 by the wall clock. 0: at once.
    pub due_ms: i64,
    /// How long that was when it was recorded, milliseconds. A frame says it by its timestamp alone, so it is 0 in an [`Operation`].
    pub delay_ms: u64,
    /// Whether it is on its way to the dead letters.
    pub dying: Option<Dying>,
}

/// What one frame of a journal says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation {
    /// These were handed out once more.
    Reserve(Vec<Run>),
    /// These are done, or gone.
    Confirm(Vec<Run>),
    /// It was given back.
    Abort {
        /// The message.
        offset: u64,
        /// When it may be handed out again, milliseconds since 1970.
        due_ms: i64,
    },
    /// It is to become a dead letter.
    Dying {
        /// The message.
        offset: u64,
        /// As what.
        dying: Dying,
    },
    /// All that was said before, and is not needed any more.
    Checkpoint {
        /// Nothing from here on was ever handed out.
        next: u64,
        /// The sequence that the next dead letter gets.
        sequence: u32,
        /// Below `next`, all that is not confirmed, in the order of offsets.
        pending: Vec<(u64, Kept)>,
    },
}

/// What a journal says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Replayed {
    /// Nothing from here on was ever reserved. The topic had as many messages forced: nothing above the line is handed out (P4).
    pub next: u64,
    /// Below `next`, all that is not confirmed.
    pub pending: BTreeMap<u64, Kept>,
    /// The sequence that the next dead letter gets.
    pub sequence: u32,
}

const RESERVE: u8 = 1;
const CONFIRM: u8 = 2;
const ABORT: u8 = 3;
const DYING: u8 = 4;
const CHECKPOINT: u8 = 5;
/// The most messages of one queue that can be reserved and not confirmed: a checkpoint of them is a frame that every reader takes.
pub(crate) const PENDING_CEILING: u64 = 500_000;
const _: () = assert!(PENDING_CEILING * CHECKPOINT_ENTRY_BYTES + 64 < crate::record::LENGTH_MAX as u64);
/// What one message takes in a checkpoint.
pub(crate) const CHECKPOINT_ENTRY_BYTES: u64 = 8 + 4 + 8 + 4 + 1;

/// They were handed out once more.
pub(crate) fn encode_reserve(runs: &[Run]) -> Vec<u8> {
    encode_runs(RESERVE, runs)
}

/// They are done, or gone.
pub(crate) fn encode_confirm(runs: &[Run]) -> Vec<u8> {
    encode_runs(CONFIRM, runs)
}

fn encode_runs(operation: u8, runs: &[Run]) -> Vec<u8> {
    let mut out = Vec::with_capacity(1 + runs.len() * 12);
    out.push(operation);
    for (first, count) in runs {
        out.extend_from_slice(&first.to_be_bytes());
        out.extend_from_slice(&count.to_be_bytes());
    }
    out
}

/// It was given back, and is due at this moment of the wall clock.
pub(crate) fn encode_abort(offset: u64, due_ms: i64) -> Vec<u8> {
    let mut out = Vec::from([ABORT]);
    out.extend_from_slice(&offset.to_be_bytes());
    out.extend_from_slice(&due_ms.to_be_bytes());
    out
}

/// It is to become a dead letter.
pub(crate) fn encode_dying(offset: u64, dying: Dying) -> Vec<u8> {
    let mut out = Vec::from([DYING]);
    out.extend_from_slice(&offset.to_be_bytes());
    out.extend_from_slice(&dying.sequence.to_be_bytes());
    out.push(dying.reason as u8);
    out
}

/// Everything.
pub(crate) fn encode_checkpoint(state: &Replayed) -> Vec<u8> {
    encode_state(state.next, state.sequence, state.pending.iter())
}

fn encode_state<'a>(next: u64, sequence: u32, pending: impl ExactSizeIterator<Item = (&'a u64, &'a Kept)>) -> Vec<u8> {
    let mut out = Vec::with_capacity(13 + pending.len() * CHECKPOINT_ENTRY_BYTES as usize);
    out.push(CHECKPOINT);
    out.extend_from_slice(&next.to_be_bytes());
    out.extend_from_slice(&sequence.to_be_bytes());
    for (offset, kept) in pending {
        out.extend_from_slice(&offset.to_be_bytes());
        out.extend_from_slice(&kept.deliveries.to_be_bytes());
        out.extend_from_slice(&kept.due_ms.to_be_bytes());
        let (sequence, reason) = kept.dying.map_or((0, 0), |dying| (dying.sequence, dying.reason as u8));
        out.extend_from_slice(&sequence.to_be_bytes());
        out.push(reason);
    }
    out
}

impl Operation {
    /// Reads what a frame of a journal holds. `None`: that is no operation.
    pub fn parse(operation: &[u8]) -> Option<Operation> {
        let (kind, mut rest) = operation.split_first()?;
        let operation = match *kind {
            RESERVE => Operation::Reserve(all_runs(&mut rest)?),
            CONFIRM => Operation::Confirm(all_runs(&mut rest)?),
            ABORT => Operation::Abort {
                offset: u64::from_be_bytes(take(&mut rest)?),
                due_ms: i64::from_be_bytes(take(&mut rest)?),
            },
            DYING => Operation::Dying { offset: u64::from_be_bytes(take(&mut rest)?), dying: dying(&mut rest)?? },
            CHECKPOINT => {
                let next = u64::from_be_bytes(take(&mut rest)?);
                let sequence = u32::from_be_bytes(take(&mut rest)?);
                let mut pending: Vec<(u64, Kept)> = Vec::new();
                while !rest.is_empty() {
                    let offset = u64::from_be_bytes(take(&mut rest)?);
                    let kept = Kept {
                        deliveries: u32::from_be_bytes(take(&mut rest)?),
                        due_ms: i64::from_be_bytes(take(&mut rest)?),
                        delay_ms: 0,
                        dying: dying(&mut rest)?,
                    };
                    let is_behind = pending.last().is_none_or(|(before, _)| *before < offset);
                    if offset >= next || !is_behind {
                        return None;
                    }
                    pending.push((offset, kept));
                }
                Operation::Checkpoint { next, sequence, pending }
            }
            _ => return None,
        };
        rest.is_empty().then_some(operation)
    }

    /// The bytes that [`Operation::parse`] reads.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Operation::Reserve(runs) => encode_reserve(runs),
            Operation::Confirm(runs) => encode_confirm(runs),
            Operation::Abort { offset, due_ms } => encode_abort(*offset, *due_ms),
            Operation::Dying { offset, dying } => encode_dying(*offset, *dying),
            Operation::Checkpoint { next, sequence, pending } => {
                encode_state(*next, *sequence, pending.iter().map(|(offset, kept)| (offset, kept)))
            }
        }
    }
}

impl Replayed {
    /// Takes in what a frame of the journal holds, which was recorded at that moment of the wall clock. `None`: that is no operation, or
    /// none that a broker has written there.
    pub fn apply(&mut self, operation: &[u8], recorded_ms: i64) -> Option<()> {
        let delay_ms = |due_ms: i64| u64::try_from(due_ms.saturating_sub(recorded_ms)).unwrap_or(0);
        match Operation::parse(operation)? {
            Operation::Reserve(runs) => {
                for offset in runs.into_iter().flat_map(range) {
                    self.reach(offset + 1)?;
                    if let Some(kept) = self.pending.get_mut(&offset) {
                        kept.deliveries = kept.deliveries.saturating_add(1);
                        (kept.due_ms, kept.delay_ms) = (0, 0);
                    }
                }
            }
            Operation::Confirm(runs) => {
                for run in runs.into_iter().map(range) {
                    self.reach(run.start)?;
                    // Messages that are gone may be many.
                    self.next = self.next.max(run.end);
                    let mut left = self.pending.split_off(&run.start);
                    self.pending.append(&mut left.split_off(&run.end));
                }
            }
            Operation::Abort { offset, due_ms } => {
                if let Some(kept) = self.pending.get_mut(&offset) {
                    (kept.due_ms, kept.delay_ms) = (due_ms, delay_ms(due_ms));
                }
            }
            Operation::Dying { offset, dying } => {
                self.sequence = self.sequence.max(dying.sequence.saturating_add(1));
                if let Some(kept) = self.pending.get_mut(&offset) {
                    kept.dying = Some(dying);
                }
            }
            Operation::Checkpoint { next, sequence, pending } => {
                let dated = |(offset, kept): (u64, Kept)| (offset, Kept { delay_ms: delay_ms(kept.due_ms), ..kept });
                *self = Replayed { next, sequence, pending: pending.into_iter().map(dated).collect() };
            }
        }
        Some(())
    }

    /// Where the record of a reservation is missing, because there was no room for it, nothing is known of the messages before.
    fn reach(&mut self, next: u64) -> Option<()> {
        while self.next < next {
            // More than any broker lets be pending: another writer's, and memory is bounded (P13).
            if self.pending.len() as u64 >= PENDING_CEILING {
                return None;
            }
            self.pending.insert(self.next, Kept::default());
            self.next += 1;
        }
        Some(())
    }
}

fn all_runs(rest: &mut &[u8]) -> Option<Vec<Run>> {
    let mut runs = Vec::new();
    while !rest.is_empty() {
        let (first, count) = (u64::from_be_bytes(take(rest)?), u32::from_be_bytes(take(rest)?));
        first.checked_add(u64::from(count))?;
        runs.push((first, count));
    }
    Some(runs)
}

fn range((first, count): Run) -> Range<u64> {
    first..first + u64::from(count)
}

/// What stands for no dying is a sequence and a reason of 0.
fn dying(rest: &mut &[u8]) -> Option<Option<Dying>> {
    let sequence = u32::from_be_bytes(take(rest)?);
    let [reason] = take(rest)?;
    match (sequence, reason) {
        (0, 0) => Some(None),
        (_, reason) => Some(Some(Dying { sequence, reason: Reason::from_byte(reason)? })),
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, left) = rest.split_first_chunk()?;
    *rest = left;
    Some(*taken)
}

/// Offsets, in ascending order, as runs.
pub(crate) fn runs(offsets: impl IntoIterator<Item = u64>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for offset in offsets {
        match runs.last_mut() {
            Some((first, count)) if *first + u64::from(*count) == offset => *count += 1,
            _ => runs.push((offset, 1)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RECORDED_MS: i64 = 90;

    fn replay(operations: &[Vec<u8>]) -> Replayed {
        let mut state = Replayed::default();
        operations.iter().for_each(|operation| state.apply(operation, RECORDED_MS).expect("an operation"));
        state
    }

    #[test]
    fn what_is_reserved_is_pending_until_it_is_confirmed() {
        let dying = Dying { sequence: 7, reason: Reason::Expired };
        let state = replay(&[
            encode_reserve(&[(0, 3)]),
            encode_confirm(&[(1, 1)]),
            encode_abort(2, 99),
            encode_reserve(&[(0, 1)]),
            encode_dying(0, dying),
            // Of 3 and 4 no reservation was recorded.
            encode_confirm(&[(5, 1)]),
        ]);
        let kept =
            |deliveries, due_ms, dying| Kept { deliveries, due_ms, delay_ms: if due_ms == 0 { 0 } else { 9 }, dying };
        let pending: Vec<_> = state.pending.clone().into_iter().collect();
        assert_eq!(
            pending,
            [(0, kept(2, 0, Some(dying))), (2, kept(1, 99, None)), (3, kept(0, 0, None)), (4, kept(0, 0, None))]
        );
        assert_eq!((state.next, state.sequence), (6, 8));
        assert_eq!(replay(&[encode_reserve(&[(9, 1)]), encode_checkpoint(&state)]), state);
    }

    #[test]
    fn what_no_broker_writes_is_told() {
        let whole = [
            encode_reserve(&[(0, 3)]),
            encode_abort(2, 99),
            encode_dying(2, Dying { sequence: 0, reason: Reason::Stolen }),
            encode_checkpoint(&replay(&[encode_reserve(&[(0, 3)])])),
        ];
        for operation in &whole {
            for cut in 1..operation.len() {
                let mut state = Replayed::default();
                // A cut between two entries is one operation less.
                let between = match operation[0] {
                    RESERVE => cut == 1,
                    CHECKPOINT => cut >= 13 && (cut as u64 - 13).is_multiple_of(CHECKPOINT_ENTRY_BYTES),
                    _ => false,
                };
                assert_eq!(state.apply(&operation[..cut], 0).is_some(), cut >= 1 && between, "{operation:?} at {cut}");
            }
            assert_eq!(Replayed::default().apply(&[operation, &[0][..]].concat(), 0), None, "{operation:?}");
        }
        for wrong in [
            &[][..],
            &[0],
            &[6],
            &encode_reserve(&[(u64::MAX, 1)]),
            &encode_reserve(&[(PENDING_CEILING, 1)]),
            &[&encode_dying(1, Dying { sequence: 0, reason: Reason::Stolen })[..13], &[6]].concat(),
        ] {
            assert_eq!(Replayed::default().apply(wrong, 0), None, "{wrong:?}");
        }
        let mut state = Replayed { next: 1, ..Replayed::default() };
        state.pending.insert(1, Kept::default());
        assert_eq!(Replayed::default().apply(&encode_checkpoint(&state), 0), None, "pending at next");
        let twice = [encode_checkpoint(&replay(&[encode_reserve(&[(0, 1)])])), Vec::from([0; 25])].concat();
        assert_eq!(Replayed::default().apply(&twice, 0), None, "pending twice");
    }

    #[test]
    fn every_reason_comes_back() {
        for (at, (reason, word)) in Reason::ALL.into_iter().enumerate() {
            assert_eq!((reason.as_str(), reason as usize), (word, at + 1));
            let mut state = replay(&[encode_reserve(&[(4, 1)])]);
            let dying = Dying { sequence: u32::MAX, reason };
            state.apply(&encode_dying(4, dying), 0).expect("an operation");
            assert_eq!(state.pending[&4].dying, Some(dying));
            assert_eq!(replay(&[encode_checkpoint(&state)]), state);
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(operation in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = Replayed::default().apply(&operation, 0);
        }

        #[test]
        fn runs_hold_the_offsets(offsets in prop::collection::btree_set(0u64..200, 0..60)) {
            let runs = runs(offsets.iter().copied());
            let all: Vec<u64> = runs.iter().flat_map(|(first, count)| *first..*first + u64::from(*count)).collect();
            prop_assert_eq!(&all, &offsets.into_iter().collect::<Vec<_>>());
            prop_assert!(runs.windows(2).all(|pair| pair[0].0 + u64::from(pair[0].1) < pair[1].0));
        }
    }
}
