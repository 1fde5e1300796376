//! Many seeds at once, over several threads, with the same result for any number of them.

use crate::mutant::{Mutant, Mutation};
use crate::tape::{Decider, Leaning, Tape};
use crate::world::{self, Finished, Stats, Verdict};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::{panic, thread};

/// What is run.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The first seed.
    pub first: u64,
    /// How many.
    pub count: u64,
    /// On how many threads; at least 1.
    pub threads: usize,
    /// Each seed twice, and the hashes compared (P17).
    pub twice: bool,
    /// A broker with this bug.
    pub mutant: Option<Mutant>,
}

/// One seed's result.
#[derive(Clone, Debug)]
pub struct SeedResult {
    /// The seed.
    pub seed: u64,
    /// How it ended.
    pub verdict: Verdict,
    /// The hash of everything that happened.
    pub hash: u128,
    /// The other hash, where a second run had another one.
    pub differs: Option<u128>,
    /// How many steps it had.
    pub steps: u64,
    /// What it was made of.
    pub stats: Stats,
}

impl SeedResult {
    /// Whether nothing was found.
    pub fn is_clean(&self) -> bool {
        self.verdict == Verdict::Clean && self.differs.is_none()
    }
}

fn mutation(mutant: Option<Mutant>) -> Mutation {
    mutant.map_or_else(Mutation::none, Mutation::of)
}

/// Runs one seed.
pub fn run_seed(seed: u64, mutant: Option<Mutant>, twice: bool) -> SeedResult {
    let finished = world::run(Decider::seeded(seed, false), mutation(mutant), false);
    let mut differs = None;
    if twice && finished.verdict == Verdict::Clean {
        let again = world::run(Decider::seeded(seed, false), mutation(mutant), false);
        differs = (again.hash != finished.hash).then_some(again.hash);
    }
    let Finished { verdict, hash, steps, stats, .. } = finished;
    SeedResult { seed, verdict, hash, differs, steps, stats }
}

/// Runs one seed with its decisions written down, and the trace in words.
pub fn record_seed(seed: u64, mutant: Option<Mutant>) -> Finished {
    let mut finished = world::run(Decider::seeded(seed, true), mutation(mutant), true);
    finished.tape.comments = comments(&finished.verdict, finished.steps, mutant);
    finished.tape.comments.insert(1, format!("from seed {seed}"));
    finished
}

/// Runs one seed with a leaning, for so many steps at most; its tape is that of the run.
pub fn record_leaning(seed: u64, leaning: &Leaning, mutant: Option<Mutant>, steps_max: u64) -> Finished {
    world::run_until(Decider::leaning(seed, true, leaning), mutation(mutant), false, steps_max)
}

/// Runs a tape.
pub fn replay(tape: &Tape, mutant: Option<Mutant>, keep_words: bool) -> Finished {
    let mut finished = world::run(Decider::replaying(tape), mutation(mutant), keep_words);
    finished.tape.comments = comments(&finished.verdict, finished.steps, mutant);
    finished
}

/// Runs a tape for so many steps at most.
pub(crate) fn replay_until(tape: &Tape, mutant: Option<Mutant>, steps_max: u64) -> Finished {
    world::run_until(Decider::replaying(tape), mutation(mutant), false, steps_max)
}

/// The mutant that a tape was made with, as its comments say.
pub fn mutant_of(tape: &Tape) -> Option<Mutant> {
    tape.comments.iter().find_map(|comment| Mutant::named(comment.strip_prefix("mutant ")?))
}

fn comments(verdict: &Verdict, steps: u64, mutant: Option<Mutant>) -> Vec<String> {
    let mut comments = vec!["plimsoll-sim tape 1".to_owned()];
    comments.extend(mutant.map(|mutant| format!("mutant {}", mutant.name())));
    comments.push(format!("{} after step {steps}", verdict.promise()));
    comments.push(verdict.words().replace('\n', " "));
    comments
}

/// Panics of the core are caught and reported as findings, with their place; their backtraces would only hide the line that
/// matters. Any other panic is a bug of the simulator and shows as ever.
pub fn silence_panics() {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !world::note_panic(info) {
            before(info);
        }
    }));
}

/// Runs a batch. `each` sees every result, in the order of the seeds; `false` ends the batch early.
pub fn run(batch: &Batch, each: &mut (dyn FnMut(SeedResult) -> bool + Send)) {
    in_order(batch, &|seed| run_seed(seed, batch.mutant, batch.twice), each);
}

/// Runs something for every seed of a batch, as [`run`].
pub fn in_order<T: Send>(batch: &Batch, one: &(dyn Fn(u64) -> T + Sync), each: &mut (dyn FnMut(T) -> bool + Send)) {
    // Handed out one by one, since some seeds take a hundred times as long as others; shown in their order.
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let done: Mutex<Shown<'_, T>> = Mutex::new(Shown { at: 0, waiting: Default::default(), each });
    thread::scope(|scope| {
        for _ in 0..batch.threads.max(1) {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= batch.count {
                        break;
                    }
                    let result = one(batch.first.wrapping_add(at));
                    let mut shown = done.lock().expect("no thread panics while it holds the results");
                    shown.waiting.insert(at, result);
                    if !shown.show_due() {
                        stop.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
    });
}

struct Shown<'a, T> {
    at: u64,
    waiting: std::collections::BTreeMap<u64, T>,
    each: &'a mut (dyn FnMut(T) -> bool + Send),
}

impl<T> Shown<'_, T> {
    fn show_due(&mut self) -> bool {
        while let Some(result) = self.waiting.remove(&self.at) {
            self.at += 1;
            if !(self.each)(result) {
                // Whatever other threads still bring is not shown.
                self.at = u64::MAX;
                return false;
            }
        }
        true
    }
}
