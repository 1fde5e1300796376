//! `coverage`: whether every kind of effect has met every fault in every phase, over a fixed number of seeds.

use super::Exit;
use super::run::cores;
use plimsoll_sim::batch::{self, Batch};
use plimsoll_sim::world::{FATES, KINDS, PHASES};
use std::collections::BTreeMap;
use std::time::Instant;

pub(crate) const ABOUT: &str = "Count which effect met which fault in which phase, and fail at an empty cell";

#[derive(clap::Args)]
#[command(after_help = "One row for each kind of effect and each fate, one column for each phase. A dot is a cell that can't be: \
--reasons says why. Exit code 14 if a cell is empty that could be, or is not that could not.")]
pub(crate) struct Args {
    /// The first seed
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// How many seeds
    #[arg(long, default_value_t = 10_000)]
    count: u64,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
    /// Print why the cells with a dot can't be
    #[arg(long)]
    reasons: bool,
    /// Threads [default: one for each core]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

/// Cells that can't be: kinds, fates and phases (empty: all), and why. The first that fits counts.
type Rule = (&'static [&'static str], &'static [&'static str], &'static [&'static str], &'static str);

const IMPOSSIBLE: &[Rule] = &[
    (&["close"], &["failed", "no space", "too many files"], &[], "closing a file has no failure that the broker acts on"),
    (
        &["list", "open", "read", "cut", "force", "force-dir", "rename", "remove", "rmdir"],
        &["no space"],
        &[],
        "takes no space that was not taken before",
    ),
    (
        &["list", "mkdir", "read", "write", "reserve", "cut", "force", "force-dir", "rename", "remove", "rmdir"],
        &["too many files"],
        &[],
        "needs no descriptor that is not open (directories are opened by the backend one at a time)",
    ),
    (
        &["list", "mkdir", "open", "read", "reserve", "rename", "rmdir"],
        &[],
        &["roll"],
        "a roll cuts, forces, writes slots, creates and forces the directory; beside it files are closed and removed by retention",
    ),
    (
        &["list", "mkdir", "create", "open", "read", "reserve", "cut", "rename", "rmdir"],
        &[],
        &["retention"],
        "retention anchors the new start, closes and removes segments, and forces the directory",
    ),
    (
        &["list", "mkdir", "create", "open", "close", "read", "reserve", "cut", "force-dir", "rename", "remove", "rmdir"],
        &[],
        &["shutdown"],
        "a shutdown writes, forces and anchors; what else is under way was begun by an earlier request",
    ),
    (
        &["read", "cut"],
        &[],
        &["work queue"],
        "a journal is not read while serving; the first effect of a roll is its cut, and nothing else is cut",
    ),
    (
        &["list", "mkdir", "open", "read", "reserve", "cut", "rmdir"],
        &[],
        &["packing"],
        "packing makes, writes, forces and renames a new file, removes and closes one that failed, and forces the directory; reading the \
old one is like any reading",
    ),
    (&["cut"], &[], &["first start"], "nothing was ever written that a first start could cut off"),
    (&["cut"], &[], &["serving"], "the first effect of a roll is its cut, and nothing else is cut while serving"),
];

fn impossible(kind: &str, fate: &str, phase: &str) -> Option<&'static str> {
    let fits = |of: &[&str], word: &str| of.is_empty() || of.contains(&word);
    let rule = IMPOSSIBLE.iter().find(|(kinds, fates, phases, _)| fits(kinds, kind) && fits(fates, fate) && fits(phases, phase));
    rule.map(|(.., reason)| *reason)
}

#[expect(clippy::disallowed_methods, reason = "the rate is for people and decides nothing")]
pub(crate) fn run(args: Args) -> Result<Exit, String> {
    batch::silence_panics();
    if args.reasons {
        for (kinds, fates, phases, reason) in IMPOSSIBLE {
            let all = |of: &[&str]| if of.is_empty() { "any".to_owned() } else { of.join(", ") };
            println!("{} × {} × {}\n    {reason}", all(kinds), all(fates), all(phases));
        }
        return Ok(Exit::Clean);
    }
    let began = Instant::now();
    let threads = args.threads.map_or_else(cores, usize::from);
    let batch = Batch { first: args.seed, count: args.count, threads, twice: false, mutant: None };
    let mut cells: BTreeMap<(&str, &str, &str), u64> = BTreeMap::new();
    let mut broken = None;
    batch::run(&batch, &mut |result| {
        for (cell, count) in &result.stats.coverage {
            *cells.entry(*cell).or_insert(0) += count;
        }
        if !result.is_clean() && broken.is_none() {
            broken = Some(result);
        }
        true
    });
    if let Some(result) = broken {
        eprintln!("seed {} breaks {}: {}", result.seed, result.verdict.promise(), result.verdict.words());
        return Ok(super::exit_of(&result.verdict));
    }
    let (mut filled, mut empty, mut unexpected) = (0, Vec::new(), Vec::new());
    if !args.json {
        print!("{:<10} {:<15}", "effect", "fate");
        PHASES.iter().for_each(|phase| print!(" {phase:>20}"));
        println!();
    }
    for kind in KINDS {
        for fate in FATES {
            let mut row = Vec::new();
            for phase in PHASES {
                let count = cells.get(&(kind, fate, phase)).copied().unwrap_or(0);
                let reason = impossible(kind, fate, phase);
                match (count, reason) {
                    (0, None) => empty.push(format!("{kind} × {fate} × {phase}")),
                    (0, Some(_)) => {}
                    (_, Some(reason)) => unexpected.push(format!("{kind} × {fate} × {phase}: {reason}")),
                    (_, None) => filled += 1,
                }
                row.push(if count == 0 && reason.is_some() { ".".to_owned() } else { count.to_string() });
            }
            if !args.json && row.iter().any(|cell| cell != ".") {
                print!("{kind:<10} {fate:<15}");
                row.iter().for_each(|cell| print!(" {cell:>20}"));
                println!();
            }
        }
    }
    let all = KINDS.len() * FATES.len() * PHASES.len();
    let elapsed = began.elapsed().as_secs_f64();
    if args.json {
        let list = |of: &[String]| of.iter().map(|cell| format!("\"{cell}\"")).collect::<Vec<_>>().join(", ");
        println!(
            "{{\"seeds\": {}, \"cells\": {all}, \"filled\": {filled}, \"empty\": [{}], \"unexpected\": [{}], \"elapsed_s\": {elapsed:.1}}}",
            args.count,
            list(&empty),
            list(&unexpected)
        );
    } else {
        empty.iter().for_each(|cell| println!("EMPTY: {cell}"));
        unexpected.iter().for_each(|cell| println!("NOT IMPOSSIBLE: {cell}"));
        println!(
            "seeds={} cells={all} filled={filled} impossible={} empty={} elapsed={elapsed:.1}s",
            args.count,
            all - filled - empty.len() - unexpected.len(),
            empty.len()
        );
    }
    Ok(if empty.is_empty() && unexpected.is_empty() { Exit::Clean } else { Exit::Gate })
}
