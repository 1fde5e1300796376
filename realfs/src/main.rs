//! The `plimsoll` command.

#[cfg(feature = "inject")]
compile_error!(
    "failures on demand are for tests: build --bin plimsoll-inject, never this program, with the feature `inject`"
);

fn main() {
    std::process::exit(plimsoll::cli::run(std::env::args_os()));
}
