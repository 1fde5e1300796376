//! `plimsoll config`: what `serve` would run with, and where each value comes from.

use super::connection::{Failure, exit_code, output};
use super::settings::{self, Given, Origin};
use super::table::Table;
use std::io::Write;

/// Show or check the configuration, without starting anything
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  plimsoll config show
  plimsoll config show --json --config /etc/plimsoll.conf
  plimsoll config check --config /etc/plimsoll.conf --segment-bytes 32MiB")]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand, Debug)]
enum Verb {
    /// Say whether `serve` could run with this file, environment and flags
    ///
    /// Exit codes: 0 it could, 2 it could not, and the line says why.
    Check(CheckArgs),
    /// Print every setting, its value, and where that comes from
    Show(ShowArgs),
}

#[derive(clap::Args, Debug)]
struct CheckArgs {
    #[command(flatten)]
    given: Given,
}

#[derive(clap::Args, Debug)]
struct ShowArgs {
    /// Print a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    given: Given,
}

/// Checks or shows.
pub(crate) fn run(args: Args) -> i32 {
    match args.verb {
        Verb::Check(args) => exit_code("config check", check(&args)),
        Verb::Show(args) => exit_code("config show", show(&args)),
    }
}

fn check(args: &CheckArgs) -> Result<(), Failure> {
    let resolved = settings::resolve(&args.given).map_err(Failure::Usage)?;
    let given = resolved.rows().filter(|(.., origin)| **origin != Origin::Default).count();
    let mut out = output();
    writeln!(out, "OK: {given} settings are given, the others have their defaults")?;
    Ok(out.flush()?)
}

fn show(args: &ShowArgs) -> Result<(), Failure> {
    let resolved = settings::resolve(&args.given).map_err(Failure::Usage)?;
    let mut out = output();
    if args.json {
        let settings: serde_json::Map<String, serde_json::Value> = resolved
            .rows()
            .map(|(name, value, origin)| {
                (name.to_owned(), serde_json::json!({ "value": value, "origin": origin.to_string() }))
            })
            .collect();
        writeln!(out, "{}", serde_json::Value::from(settings))?;
    } else {
        let mut table = Table::new(&["setting", "value", "from"]);
        for (name, value, origin) in resolved.rows() {
            table.row([name.to_owned(), value, origin.to_string()]);
        }
        table.print(&mut out)?;
    }
    Ok(out.flush()?)
}
