//! `plimsoll groups`: the groups of a topic and how far behind they are.

use super::connection::{Failure, exit_code, output};
use super::place::Place;
use super::table::Table;
use std::io::Write;

/// List the groups of a topic: committed offset, lag, and whether a consumer is connected
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  plimsoll groups
  plimsoll groups --topic orders --json")]
pub(crate) struct Args {
    /// Print an array of JSON objects
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    at: Place,
}

/// Prints the groups.
pub(crate) fn run(args: Args) -> i32 {
    exit_code("groups", groups(&args))
}

fn groups(args: &Args) -> Result<(), Failure> {
    let groups = args.at.connection.connect()?.groups(Some(&args.at.topic))?;
    let mut out = output();
    if args.json {
        let objects: Vec<serde_json::Value> = groups
            .iter()
            .map(|group| {
                serde_json::json!({
                    "group": group.group,
                    "committed": group.committed,
                    "lag": group.lag,
                    "held": group.held,
                })
            })
            .collect();
        writeln!(out, "{}", serde_json::Value::from(objects))?;
    } else {
        let mut table = Table::new(&["group", "committed", "lag", "held"]);
        for group in groups {
            let held = if group.held { "yes" } else { "no" };
            table.row([group.group, group.committed.to_string(), group.lag.to_string(), held.to_owned()]);
        }
        table.print(&mut out)?;
    }
    Ok(out.flush()?)
}
