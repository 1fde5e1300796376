//! The `plimsoll` command with failures on demand: see `plimsoll::inject`. For tests only.

fn main() {
    std::process::exit(plimsoll::cli::run(std::env::args_os()));
}
