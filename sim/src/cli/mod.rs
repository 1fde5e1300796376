//! The command line: one file a verb, one line here for each.

use clap::{Parser, Subcommand};
use plimsoll_sim::world::Verdict;
use std::panic::{self, PanicHookInfo};
use std::process::ExitCode;

/// What the process ends with. The numbers are those of docs/simulation.md.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Exit {
    /// Nothing found, and nothing skipped.
    Clean = 0,
    /// The command line, or a file that it names, can't be used.
    Usage = 2,
    /// A promise was broken.
    Broken = 10,
    /// Something is never answered, delivered or ready.
    Stuck = 11,
    /// The core panicked.
    Panicked = 12,
    /// The same seed gave two results.
    NotDeterministic = 13,
    /// A gate failed: a mutant survived, a cell of the coverage table is empty.
    Gate = 14,
}

#[derive(Parser)]
#[command(name = "plimsoll-sim", version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

/// The verbs: `Name => file`. Each file has `Args` (its flags) and `run(Args) -> Result<Exit, String>`; an `Err` is a mistake of
/// the user in one line.
macro_rules! verbs {
    ($($verb:ident => $file:ident,)*) => {
        $(mod $file;)*

        #[derive(Subcommand)]
        enum Verb {
            $(#[command(about = $file::ABOUT)] $verb($file::Args),)*
        }

        fn dispatch(verb: Verb) -> Result<Exit, String> {
            match verb {
                $(Verb::$verb(args) => $file::run(args),)*
            }
        }
    };
}

verbs! {
    Enumerate => enumerate,
    Run => run,
    Replay => replay,
    Shrink => shrink,
    Mutants => mutants,
    Planted => planted,
    Coverage => coverage,
    Report => report,
}

/// `println!` panics when nobody reads any more (`plimsoll-sim … | head`): that ends the program, and is no bug. What becomes of
/// any other panic is told by `others`.
fn end_without_readers(others: impl Fn(&PanicHookInfo<'_>) + Send + Sync + 'static) {
    panic::set_hook(Box::new(move |info| {
        if info.payload_as_str().is_some_and(|words| words.starts_with("failed printing to stdout")) {
            std::process::exit(EXIT_NO_READER);
        }
        others(info);
    }));
}

/// As a shell says it of a process that SIGPIPE has ended.
const EXIT_NO_READER: i32 = 141;

pub(crate) fn main() -> ExitCode {
    end_without_readers(panic::take_hook());
    match dispatch(Cli::parse().verb) {
        Ok(exit) => ExitCode::from(exit as u8),
        Err(sentence) => {
            eprintln!("plimsoll-sim: {sentence}");
            ExitCode::from(Exit::Usage as u8)
        }
    }
}

/// The exit code of how a run ended.
pub(crate) fn exit_of(verdict: &Verdict) -> Exit {
    match verdict {
        Verdict::Clean => Exit::Clean,
        Verdict::Broken(_) => Exit::Broken,
        Verdict::Stuck(_) => Exit::Stuck,
        Verdict::Panicked(_) => Exit::Panicked,
    }
}
