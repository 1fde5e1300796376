//! `plimsoll-sim`: runs the broker on a disk that loses power, and says whether it kept its promises.
#![forbid(unsafe_code)]

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
