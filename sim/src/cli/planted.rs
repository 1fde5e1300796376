//! `planted`: bugs in the broker's own source, each found from a random start and shrunk to a tape that a person can read.

use super::Exit;

pub(crate) const ABOUT: &str = "Find the bugs that can be planted in the broker, and shrink each to a short tape";

#[derive(clap::Args)]
#[command(after_help = "Needs a build with the bugs in it:

  cargo run --release -p plimsoll-sim --features planted -- planted

Each line: the bug, the promise that it is made to break, the promise whose check caught it first, how many seeds that took, and how many \
decisions are left of the tape after shrinking. A tape can be kept with --tapes and looked at with `plimsoll-sim replay`. \
Exit code 14 if a bug survives, or if no tape of it is short enough.")]
pub(crate) struct Args {
    /// Only this bug; may be given several times
    #[arg(long, value_name = "NAME")]
    bug: Vec<String>,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// After so many seeds one has survived
    #[arg(long, default_value_t = 10_000)]
    seeds_max: u64,
    /// The most decisions that a shrunk tape may have
    #[arg(long, default_value_t = 12)]
    decisions_max: usize,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
    /// Where the shrunk tapes are written
    #[arg(long, value_name = "DIR")]
    tapes: Option<std::path::PathBuf>,
    /// Threads [default: one for each core]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

#[cfg(not(feature = "planted"))]
pub(crate) fn run(_: Args) -> Result<Exit, String> {
    Err("this build has no bugs to plant; build it with --features planted".into())
}

#[cfg(feature = "planted")]
pub(crate) use hunt::run;

#[cfg(feature = "planted")]
mod hunt {
    use super::super::run::cores;
    use super::{Args, Exit};
    use plimsoll_core::planted::Planted;
    use plimsoll_sim::batch::{self, Batch};
    use plimsoll_sim::mutant::Mutant;
    use plimsoll_sim::shrink::shrink;
    use plimsoll_sim::tape::Tape;
    use std::fs;
    use std::time::Instant;

    /// How many tapes a shrinking may try.
    const SHRINK_BUDGET: u64 = 1500;
    /// How many failing seeds are shrunk in search of a short tape.
    const SHRUNK_MAX: usize = 4;

    /// Bugs that no random start can reach yet, and why. Each is shown by its crash story in sim/tests/stories.
    const OUT_OF_REACH: [(Planted, &str); 3] = [
        (Planted::AnchorAlone, "nothing moves the start of a log before there is retention"),
        (Planted::RemovalBeforeAnchoring, "nothing moves the start of a log before there is retention"),
        (Planted::HoleBelowStart, "nothing moves the start of a log before there is retention"),
    ];

    struct Row {
        bug: String,
        expected: &'static str,
        /// Promise, seeds, the shortest tape; `None`: it survived.
        caught: Option<(&'static str, u64, Tape)>,
    }

    #[expect(clippy::disallowed_methods, reason = "the rate is for people and decides nothing")]
    pub(crate) fn run(args: Args) -> Result<Exit, String> {
        batch::silence_panics();
        let threads = args.threads.map_or_else(cores, usize::from);
        for name in &args.bug {
            if !Planted::ALL.iter().any(|(bug, _)| name_of(*bug) == *name) {
                let names: Vec<String> = Planted::ALL.iter().map(|(bug, _)| name_of(*bug)).collect();
                return Err(format!("there is no bug {name}; there are {}", names.join(", ")));
            }
        }
        let began = Instant::now();
        let (mut rows, mut survived, mut long) = (Vec::new(), 0, 0);
        for (bug, expected) in Planted::ALL {
            let name = name_of(bug);
            if !args.bug.is_empty() && !args.bug.contains(&name) {
                continue;
            }
            if let Some((_, reason)) = OUT_OF_REACH.iter().find(|(other, _)| *other == bug) {
                if !args.json {
                    println!("{name:<26} {expected:<4} out of reach: {reason}");
                }
                continue;
            }
            let caught = hunt(Mutant::Planted(bug), &args, threads);
            if let (Some(dir), Some((_, _, tape))) = (&args.tapes, &caught) {
                let path = dir.join(format!("{name}.tape"));
                fs::write(&path, tape.to_string()).map_err(|error| format!("{}: {error}", path.display()))?;
            }
            survived += u64::from(caught.is_none());
            long += u64::from(caught.as_ref().is_some_and(|(_, _, tape)| tape.lines.len() > args.decisions_max));
            let row = Row { bug: name, expected, caught };
            if !args.json {
                println!("{}", row.text());
            }
            rows.push(row);
        }
        if args.json {
            let rows: Vec<String> = rows.iter().map(Row::json).collect();
            println!("[{}]", rows.join(",\n "));
        } else {
            let elapsed = began.elapsed().as_secs_f64();
            println!("bugs={} survived={survived} longTapes={long} elapsed={elapsed:.1}s", rows.len());
        }
        Ok(if survived + long == 0 { Exit::Clean } else { Exit::Gate })
    }

    fn name_of(bug: Planted) -> String {
        Mutant::Planted(bug).name().trim_start_matches("planted-").to_owned()
    }

    /// Seeds until one notices, and the shortest tape of the first few that do.
    fn hunt(bug: Mutant, args: &Args, threads: usize) -> Option<(&'static str, u64, Tape)> {
        let batch = Batch { first: args.seed, count: args.seeds_max, threads, twice: false, mutant: Some(bug) };
        let mut failing: Vec<(&'static str, u64)> = Vec::new();
        batch::run(&batch, &mut |result| {
            // What the broker without the bug does too is no proof.
            if !result.is_clean() && batch::run_seed(result.seed, None, false).is_clean() {
                failing.push((result.verdict.promise(), result.seed));
            }
            // Not for ever: of one that is caught once in a long while one tape is enough.
            let first = failing.first().map_or(u64::MAX, |(_, seed)| *seed);
            failing.len() < SHRUNK_MAX && result.seed < first.saturating_add(args.seeds_max / 20)
        });
        let (promise, first) = *failing.first()?;
        let shrunk = std::thread::scope(|scope| {
            let shrinking = failing.iter().map(|(promise, seed)| {
                scope.spawn(|| {
                    let tape = batch::record_seed(*seed, Some(bug)).tape;
                    shrink(&tape, Some(bug), promise, SHRINK_BUDGET).tape
                })
            });
            let shrinking: Vec<_> = shrinking.collect();
            let tapes = shrinking.into_iter().map(|thread| thread.join().expect("shrinking does not panic"));
            tapes.min_by_key(|tape| tape.lines.len()).unwrap_or_default()
        });
        Some((promise, first - args.seed + 1, shrunk))
    }

    impl Row {
        fn text(&self) -> String {
            let Row { bug, expected, caught } = self;
            match caught {
                None => format!("{bug:<26} {expected:<4} SURVIVED"),
                Some((promise, seeds, tape)) => format!(
                    "{bug:<26} {expected:<4} caught by {promise:<8} seeds {seeds:<5} decisions {}",
                    tape.lines.len()
                ),
            }
        }

        fn json(&self) -> String {
            let Row { bug, expected, caught } = self;
            let caught = caught.as_ref().map_or("null".to_owned(), |(promise, seeds, tape)| {
                format!("{{\"promise\": \"{promise}\", \"seeds\": {seeds}, \"decisions\": {}}}", tape.lines.len())
            });
            format!("{{\"bug\": \"{bug}\", \"expected\": \"{expected}\", \"caught\": {caught}}}")
        }
    }
}
