//! The `plimsoll` command.

fn main() {
    std::process::exit(plimsoll::cli::run(std::env::args_os()));
}
