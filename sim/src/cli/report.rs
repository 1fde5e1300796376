//! `report`: a run as a page.

use super::Exit;
use super::replay::read_tape;
use super::run::parse_mutant;
use plimsoll_sim::{batch, report};
use std::fs;
use std::path::PathBuf;

pub(crate) const ABOUT: &str = "Write a run as one self-contained HTML page";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The seed
    #[arg(long, required_unless_present = "tape")]
    seed: Option<u64>,
    /// Or a tape, best a shrunk one
    #[arg(long, value_name = "FILE", conflicts_with = "seed")]
    tape: Option<PathBuf>,
    /// Where the page is written
    #[arg(long, value_name = "FILE")]
    html: PathBuf,
    /// A broker with a bug [default: the one that the tape was made with]
    #[arg(long, value_name = "NAME")]
    mutant: Option<String>,
}

pub(crate) fn run(args: Args) -> Result<Exit, String> {
    batch::silence_panics();
    let named = parse_mutant(args.mutant.as_deref())?;
    let (finished, title) = match (&args.tape, args.seed) {
        (Some(path), _) => {
            let tape = read_tape(path)?;
            let mutant = named.or_else(|| batch::mutant_of(&tape));
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            (batch::replay(&tape, mutant, true), name)
        }
        (None, seed) => {
            let seed = seed.unwrap_or_default();
            (batch::record_seed(seed, named), format!("Seed {seed}"))
        }
    };
    let page = report::render(&finished, &title);
    fs::write(&args.html, page).map_err(|error| format!("{}: {error}", args.html.display()))?;
    println!("{} after step {}: {}", finished.verdict.promise(), finished.steps, finished.verdict.words());
    Ok(super::exit_of(&finished.verdict))
}
