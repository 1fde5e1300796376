//! `plimsoll create`: makes a topic.

use super::connection::{Connection, Failure, exit_code, output, topic_name};
use std::io::Write;

/// Create a topic
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  plimsoll create orders

The topic `default` is always there.")]
pub(crate) struct Args {
    /// Its name: 1 to 100 of A-Z a-z 0-9 . _ -
    #[arg(value_name = "TOPIC", value_parser = topic_name)]
    topic: String,
    #[command(flatten)]
    connection: Connection,
}

/// Creates the topic.
pub(crate) fn run(args: Args) -> i32 {
    exit_code("create", create(&args))
}

fn create(args: &Args) -> Result<(), Failure> {
    args.connection.connect()?.create(&args.topic)?;
    let mut out = output();
    writeln!(out, "created {}", args.topic)?;
    Ok(out.flush()?)
}
