//! `shrink`: a failing tape or seed, made as small as it goes.

use super::replay::read_tape;
use super::run::parse_mutant;
use super::Exit;
use plimsoll_sim::batch;
use plimsoll_sim::shrink;
use std::fs;
use std::path::PathBuf;

pub(crate) const ABOUT: &str = "Leave out every decision that a failure does not need";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The tape of a failing run
    #[arg(long, value_name = "FILE", required_unless_present = "seed")]
    tape: Option<PathBuf>,
    /// Or its seed
    #[arg(long, conflicts_with = "tape")]
    seed: Option<u64>,
    /// A broker with a bug [default: the one that the tape was made with]
    #[arg(long, value_name = "NAME")]
    mutant: Option<String>,
    /// Where the smaller tape is written [default: standard output]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// How many tapes are tried at most
    #[arg(long, default_value_t = 20_000)]
    budget: u64,
}

pub(crate) fn run(args: Args) -> Result<Exit, String> {
    batch::silence_panics();
    let named = parse_mutant(args.mutant.as_deref())?;
    let (tape, mutant) = match (&args.tape, args.seed) {
        (Some(path), _) => {
            let tape = read_tape(path)?;
            let mutant = named.or_else(|| batch::mutant_of(&tape));
            (tape, mutant)
        }
        (None, seed) => (batch::record_seed(seed.unwrap_or_default(), named).tape, named),
    };
    let whole = batch::replay(&tape, mutant, false);
    let promise = whole.verdict.promise();
    if super::exit_of(&whole.verdict) == Exit::Clean {
        return Err("nothing fails, so there is nothing to shrink".into());
    }
    let shrunk = shrink::shrink(&tape, mutant, promise, args.budget);
    let finished = batch::replay(&shrunk.tape, mutant, false);
    eprintln!("{} decisions became {}, after {} tries; {promise} is broken all the same", tape.lines.len(), shrunk.tape.lines.len(), shrunk.tried);
    let text = finished.tape.to_string();
    match &args.out {
        Some(path) => fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))?,
        None => print!("{text}"),
    }
    Ok(super::exit_of(&finished.verdict))
}
