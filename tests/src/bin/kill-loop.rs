//! The kills of `tests/evidence`, many times over. `tests/long/kills` runs it.

use indicatif::{ProgressBar, ProgressStyle};
use plimsoll_tests::broker::Broker;
use plimsoll_tests::kills::{SETTINGS, Tally, under_mixed_load};
use std::time::Instant;

/// Kills of one data directory, which is read whole after each.
const KILLS_A_DIRECTORY: u64 = 20;

fn main() {
    let mut args = std::env::args().skip(1).map(|text| text.parse().expect("a number"));
    let kills: u64 = args.next().unwrap_or(1000);
    let first_seed: u64 = args.next().unwrap_or(1);
    let progress = ProgressBar::new(kills)
        .with_style(ProgressStyle::with_template("{wide_bar} {pos} of {len} kills, {eta} left").expect("a template"));
    let begun = Instant::now();
    let mut total = Tally::default();
    let mut seed = first_seed;
    while total.kills < kills {
        let data = tempfile::tempdir().expect("a temporary directory");
        let these = KILLS_A_DIRECTORY.min(kills - total.kills);
        let tally = under_mixed_load(seed, these, data.path(), |data| Broker::start(data, SETTINGS));
        total.kills += tally.kills;
        total.killed_starts += tally.killed_starts;
        total.stored += tally.stored;
        total.committed += tally.committed;
        seed += 1;
        progress.set_position(total.kills);
        if progress.is_hidden() && total.kills.is_multiple_of(100) {
            eprintln!("{} of {kills} kills", total.kills);
        }
    }
    progress.finish_and_clear();
    let Tally { kills, killed_starts, stored, committed } = total;
    println!(
        "seeds={first_seed}..{} kills={kills} killedStarts={killed_starts} acknowledged={stored} committed={committed} missing=0 different=0 elapsed={:.0} s",
        seed - 1,
        begun.elapsed().as_secs_f64()
    );
}
