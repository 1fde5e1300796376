//! Fuzz target for the operations of a work queue's journal. A plain test under `cargo test`; `cargo bolero test -p plimsoll-core
//! fuzz_journal` goes on.

use plimsoll_core::group::journal::{Kept, Operation, Replayed};

/// Whatever bytes a frame of a journal holds: they are no operation, or one that comes back the same from its bytes; and what all of them
/// together say is what a checkpoint of it says.
#[test]
fn fuzz_journal() {
    bolero::check!().with_type::<Vec<(u8, Vec<u8>)>>().for_each(|frames| {
        let mut state = Replayed::default();
        for (kind, rest) in frames {
            let bytes = [&[kind % 7], &rest[..]].concat();
            let Some(operation) = Operation::parse(&bytes) else {
                assert_eq!(state.clone().apply(&bytes, 0), None);
                continue;
            };
            assert_eq!(operation.encode(), bytes, "{operation:?}");
            // What no broker lets be pending is refused; nothing is known of the state then.
            if state.apply(&bytes, 0).is_none() {
                return;
            }
            assert!(state.pending.keys().all(|offset| *offset < state.next));
        }
        let mut again = Replayed::default();
        let pending: Vec<(u64, Kept)> = state.pending.iter().map(|(offset, kept)| (*offset, *kept)).collect();
        let checkpoint = Operation::Checkpoint { next: state.next, sequence: state.sequence, pending };
        assert_eq!(again.apply(&checkpoint.encode(), 0), Some(()));
        assert_eq!(again, state);
    });
}
