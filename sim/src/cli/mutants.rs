//! `mutants`: brokers that are wrong, and whether it is noticed.

use super::Exit;
use super::run::{cores, parse_mutant};
use plimsoll_sim::batch::{self, Batch};
use plimsoll_sim::model::PROMISES;
use plimsoll_sim::mutant::Mutant;
use plimsoll_sim::world::Verdict;
use std::time::Instant;

pub(crate) const ABOUT: &str = "Run brokers with bugs, and fail if one is not caught";

#[derive(clap::Args)]
#[command(after_help = "Each line: the mutant, the promise whose check caught it first (in how many of the rounds), and the seeds that it took: \
the median of all rounds, and the most. Each round begins at another seed, and each seed is run twice (P17).

Then each promise with the mutants that its check is the first to catch in most of the rounds, and the mutants that change nothing that \
was promised, with the reason; they are run, too. Exit code 14 if a mutant survives, if a promise has none that its own check is the first \
to catch, or if one is caught of which that list says that it changes nothing.")]
pub(crate) struct Args {
    /// Only this one
    #[arg(long, value_name = "NAME")]
    mutant: Option<String>,
    /// List their names
    #[arg(long)]
    list: bool,
    /// How often each is hunted
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// After so many seeds one has survived
    #[arg(long, default_value_t = 1000)]
    seeds_max: u64,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
    /// Threads [default: one for each core]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}


/// A mutant and how it was caught.
struct Row {
    mutant: Mutant,
    /// Promise and seeds, for each round; `None`: it survived.
    rounds: Vec<Option<(&'static str, u64)>>,
}

#[expect(clippy::disallowed_methods, reason = "the rate is for people and decides nothing")]
pub(crate) fn run(args: Args) -> Result<Exit, String> {
    batch::silence_panics();
    if args.list {
        for mutant in Mutant::ALL {
            println!("{}", mutant.name());
        }
        return Ok(Exit::Clean);
    }
    let only = parse_mutant(args.mutant.as_deref())?;
    let threads = args.threads.map_or_else(cores, usize::from);
    let began = Instant::now();
    let mut rows = Vec::new();
    for mutant in Mutant::ALL.into_iter().filter(|mutant| only.is_none_or(|only| only == *mutant)) {
        let rounds = (0..args.rounds).map(|round| hunt(mutant, round, args.seeds_max, threads)).collect();
        let row = Row { mutant, rounds };
        if !args.json {
            println!("{}", row.text());
        }
        rows.push(row);
    }
    let survivors = rows.iter().filter(|row| row.survived() || row.seeds().0 > args.seeds_max).count();
    // Of a single mutant nobody wants to know what the others catch.
    let whole = only.is_none();
    let made = PROMISES.iter().map(|(promise, _)| *promise);
    let first: Vec<(&str, Vec<String>)> = made.map(|promise| (promise, first_caught(&rows, promise))).collect();
    let unguarded = if whole { first.iter().filter(|(_, mutants)| mutants.is_empty()).count() } else { 0 };
    let mut not_equivalent = 0;
    if whole && !args.json {
        for (promise, mutants) in &first {
            let mutants = if mutants.is_empty() { "NONE".to_owned() } else { mutants.join(", ") };
            println!("{promise:<4} is the first to catch {mutants}");
        }
    }
    if whole {
        for (mutant, reason) in Mutant::EQUIVALENTS {
            let caught = hunt(mutant, 0, EQUIVALENT_SEEDS, threads);
            not_equivalent += usize::from(caught.is_some());
            if !args.json {
                let verdict = caught.map_or("nothing".to_owned(), |(promise, seeds)| format!("CAUGHT by {promise} in seed {seeds}"));
                println!("equivalent: {} ({reason}); {EQUIVALENT_SEEDS} seeds: {verdict}", mutant.name());
            }
        }
    }
    if args.json {
        let rows: Vec<String> = rows.iter().map(Row::json).collect();
        println!("[{}]", rows.join(",\n "));
    } else {
        println!(
            "mutants={} survived={survivors} promisesWithout={unguarded} notEquivalent={not_equivalent} elapsed={:.1}s",
            rows.len(),
            began.elapsed().as_secs_f64()
        );
    }
    Ok(if survivors + unguarded + not_equivalent == 0 { Exit::Clean } else { Exit::Gate })
}

/// How many seeds a mutant that changes nothing must pass.
const EQUIVALENT_SEEDS: u64 = 100;

/// The mutants that this promise's check caught first in most of the rounds.
fn first_caught(rows: &[Row], promise: &str) -> Vec<String> {
    let caught = rows.iter().filter(|row| row.promises().first().is_some_and(|(first, _)| *first == promise));
    caught.map(|row| row.mutant.name()).collect()
}

/// Seeds until one notices.
fn hunt(mutant: Mutant, round: u64, seeds_max: u64, threads: usize) -> Option<(&'static str, u64)> {
    let batch = Batch { first: round * 1_000_000, count: seeds_max, threads, twice: true, mutant: Some(mutant) };
    let mut caught = None;
    batch::run(&batch, &mut |result| {
        // A seed that fails without the bug, too, says nothing about it.
        if !result.is_clean() && batch::run_seed(result.seed, None, false).is_clean() {
            let promise = if result.verdict == Verdict::Clean { "P17" } else { result.verdict.promise() };
            caught = Some((promise, result.seed - round * 1_000_000 + 1));
        }
        caught.is_none()
    });
    caught
}

impl Row {
    fn survived(&self) -> bool {
        self.rounds.iter().any(Option::is_none)
    }

    /// Median and most.
    fn seeds(&self) -> (u64, u64) {
        let mut seeds: Vec<u64> = self.rounds.iter().flatten().map(|(_, seeds)| *seeds).collect();
        seeds.sort_unstable();
        (seeds.get(seeds.len() / 2).copied().unwrap_or(0), seeds.last().copied().unwrap_or(0))
    }

    fn promises(&self) -> Vec<(&'static str, usize)> {
        let mut counts: Vec<(&'static str, usize)> = Vec::new();
        for (promise, _) in self.rounds.iter().flatten() {
            match counts.iter_mut().find(|(other, _)| other == promise) {
                Some((_, count)) => *count += 1,
                None => counts.push((promise, 1)),
            }
        }
        counts.sort_by_key(|(promise, count)| (std::cmp::Reverse(*count), *promise));
        counts
    }

    fn text(&self) -> String {
        let promises: Vec<String> = self.promises().iter().map(|(promise, count)| format!("{promise}×{count}")).collect();
        let (median, most) = self.seeds();
        let verdict = if self.survived() { "SURVIVED" } else { "caught" };
        format!("{:<28} {verdict:<8} seeds: median {median:<4} most {most:<4} {}", self.mutant.name(), promises.join(" "))
    }

    fn json(&self) -> String {
        let (median, most) = self.seeds();
        let promises: Vec<String> = self.promises().iter().map(|(promise, count)| format!("\"{promise}\": {count}")).collect();
        format!(
            "{{\"mutant\": \"{}\", \"survived\": {}, \"seeds_median\": {median}, \"seeds_most\": {most}, \"promises\": {{{}}}}}",
            self.mutant.name(),
            self.survived(),
            promises.join(", ")
        )
    }
}
