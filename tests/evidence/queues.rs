//! P15: a message of a work queue is one consumer's at a time, and is done when its confirmation was answered.

use crate::rig::Run;
use plimsoll_tests::work::{self, Plan};
use std::time::Duration;

/// Kills that make the case worth its name.
const KILLS_MIN: u64 = 4;
/// A checkpoint of what 16 consumers can have, and twice `--journal-bytes`.
const JOURNAL_BYTES_MAX: u64 = 48 << 10;

pub(crate) fn crashing_consumers(run: &Run) -> String {
    let plan = Plan {
        messages: 10_000,
        consumers: 16,
        work: Duration::from_millis(8),
        kill_every: Duration::from_secs(1),
        seed: 7,
    };
    let tally = work::until_all_is_done(&plan, &run.data(), |data, address| {
        let listen = address.map_or(vec![], |address| vec!["--listen", address]);
        run.broker(data, &[work::SETTINGS, &listen].concat())
    });
    run.note(format!("{tally:?}"));
    assert!(tally.kills >= KILLS_MIN, "the broker was killed only {} times", tally.kills);
    assert!(tally.crashes >= plan.consumers, "only {} consumers crashed", tally.crashes);
    assert!(tally.journal_bytes_max <= JOURNAL_BYTES_MAX, "the journal had {} bytes", tally.journal_bytes_max);
    format!(
        "{} applied at least once, each confirmed once, none handed out after CONFIRMED; the other {} are the dead letters, each once, \
         with dead-deliveries=20; the journal never over {} KiB",
        tally.applied,
        tally.dead,
        JOURNAL_BYTES_MAX >> 10
    )
}
