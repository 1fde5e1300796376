//! The command line: one file a verb, each with its arguments and `run`, which returns the exit code.

mod bench;
mod config;
mod connection;
mod consume;
mod create;
mod dump;
mod find;
mod generate;
mod groups;
mod place;
mod publish;
mod queue;
mod seek;
mod serve;
mod settings;
mod status;
mod table;
mod topic;
mod topic_settings;
mod topics;
mod values;
mod verify;

use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::fmt::Display;
use std::io::Write;

/// Usage or configuration is wrong.
pub const EXIT_USAGE: i32 = 2;

/// A durable log broker that says, with every reply, how safe a message is.
#[derive(Parser, Debug)]
#[command(name = "plimsoll", version, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Serve(serve::Args),
    Config(config::Args),
    Pub(publish::Args),
    Consume(consume::Args),
    Status(status::Args),
    Topic(topic::Args),
    Topics(topics::Args),
    Groups(groups::Args),
    Queue(queue::Args),
    Seek(seek::Args),
    Find(find::Args),
    Create(create::Args),
    Bench(bench::Args),
    Completions(generate::CompletionsArgs),
    Manual(generate::ManualArgs),
    Verify(verify::Args),
    Dump(dump::Args),
}

/// Runs the command of these arguments, the first being the program's name. Returns the exit code.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> i32 {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // Also `--help` and `--version`; a closed pipe is no reason to complain.
            let _ = error.print();
            return error.exit_code();
        }
    };
    match cli.command {
        Command::Serve(args) => serve::run(args),
        Command::Config(args) => config::run(args),
        Command::Pub(args) => publish::run(args),
        Command::Consume(args) => consume::run(args),
        Command::Status(args) => status::run(args),
        Command::Topic(args) => topic::run(args),
        Command::Topics(args) => topics::run(args),
        Command::Groups(args) => groups::run(args),
        Command::Queue(args) => queue::run(args),
        Command::Seek(args) => seek::run(args),
        Command::Find(args) => find::run(args),
        Command::Create(args) => create::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Completions(args) => generate::completions(args),
        Command::Manual(args) => generate::manual(args),
        Command::Verify(args) => verify::run(args),
        Command::Dump(args) => dump::run(args),
    }
}

/// Says on standard error what went wrong, in one line. A closed standard error is no reason to stop.
pub(crate) fn complain(verb: &str, sentence: impl Display) {
    let _ = writeln!(std::io::stderr(), "plimsoll {verb}: {sentence}");
}
