//! `plimsoll topics`: the names of all topics.

use super::connection::{Connection, Failure, exit_code, output};
use std::io::Write;

/// List the topics, one name a line
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  plimsoll topics
  plimsoll topics --json")]
pub(crate) struct Args {
    /// Print a JSON array
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

/// Prints the names.
pub(crate) fn run(args: Args) -> i32 {
    exit_code("topics", topics(&args))
}

fn topics(args: &Args) -> Result<(), Failure> {
    let names = args.connection.connect()?.topics()?;
    let mut out = output();
    match args.json {
        true => writeln!(out, "{}", serde_json::Value::from(names))?,
        false => names.iter().try_for_each(|name| writeln!(out, "{name}"))?,
    }
    Ok(out.flush()?)
}
