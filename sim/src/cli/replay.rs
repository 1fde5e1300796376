//! `replay`: a tape again.

use super::Exit;
use super::run::parse_mutant;
use plimsoll_sim::batch;
use plimsoll_sim::tape::Tape;
use std::fs;
use std::path::{Path, PathBuf};

pub(crate) const ABOUT: &str = "Replay the decisions of a tape, as written or as edited";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The tape
    #[arg(long, value_name = "FILE")]
    tape: PathBuf,
    /// Print every step
    #[arg(short, long)]
    verbose: bool,
    /// A broker with a bug [default: the one that the tape was made with]
    #[arg(long, value_name = "NAME")]
    mutant: Option<String>,
}

pub(crate) fn run(args: Args) -> Result<Exit, String> {
    batch::silence_panics();
    let tape = read_tape(&args.tape)?;
    let mutant = parse_mutant(args.mutant.as_deref())?.or_else(|| batch::mutant_of(&tape));
    let finished = batch::replay(&tape, mutant, args.verbose);
    for line in finished.trace.lines.iter().flatten() {
        println!("{:>6} {:>12.6} {:<9} {}", line.step, line.at_ns as f64 / 1e9, format!("{:?}", line.lane), line.text);
    }
    for line in &finished.unmet {
        eprintln!("never asked, or no answer to it: {line}");
    }
    let verdict = &finished.verdict;
    println!("{} after step {}: {} hash={:032x}", verdict.promise(), finished.steps, verdict.words(), finished.hash);
    Ok(super::exit_of(verdict))
}

pub(crate) fn read_tape(path: &Path) -> Result<Tape, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Tape::parse(&text).map_err(|error| format!("{}: {error}", path.display()))
}
