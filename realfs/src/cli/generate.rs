//! `plimsoll completions` and `plimsoll manual`: made from the definitions of the command line itself.

use super::Cli;
use super::connection::{Failure, exit_code, output};
use clap::CommandFactory;
use clap_complete::Shell;
use std::io::Write;

/// Print a completion script for a shell
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  plimsoll completions bash > /etc/bash_completion.d/plimsoll
  plimsoll completions zsh > ~/.zfunc/_plimsoll")]
pub(crate) struct CompletionsArgs {
    /// For which shell
    shell: Shell,
}

/// Print a manual page
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  plimsoll manual | man -l -
  plimsoll manual serve > plimsoll-serve.1")]
pub(crate) struct ManualArgs {
    /// Of this verb [default: of plimsoll]
    verb: Option<String>,
}

/// Prints the script.
pub(crate) fn completions(args: CompletionsArgs) -> i32 {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "plimsoll", &mut script);
    exit_code("completions", write_out(&script))
}

/// Prints the page.
pub(crate) fn manual(args: ManualArgs) -> i32 {
    exit_code("manual", page(args.verb.as_deref()))
}

fn page(verb: Option<&str>) -> Result<(), Failure> {
    let mut command = Cli::command();
    command.build();
    let command = match verb {
        None => command,
        Some(verb) => command
            .find_subcommand(verb)
            .cloned()
            .ok_or_else(|| Failure::Usage(format!("there is no verb {verb}; `plimsoll --help` lists them")))?,
    };
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    write_out(&page)
}

fn write_out(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = output();
    out.write_all(bytes)?;
    Ok(out.flush()?)
}
