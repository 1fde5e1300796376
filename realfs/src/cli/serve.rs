//! `plimsoll serve`: runs the broker.

use super::settings::{self, Given};
use super::{EXIT_USAGE, complain};
use crate::driver;

/// Run the broker on a data directory.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Every setting can also be given in the environment (PLIMSOLL_SEGMENT_BYTES=32MiB), or as a line of the file that --config \
names (segment-bytes = \"32 MiB\"). A flag goes before the environment, the environment before the file. \
`plimsoll config show` tells which holds. At SIGHUP they are read again; what may change without a restart changes, and the lines that are \
printed say what.

Examples:
  plimsoll serve
  plimsoll serve --data /var/lib/plimsoll --listen 127.0.0.1:7717 --listen '[::1]:7717'
  plimsoll serve --listen 127.0.0.1:0 --log json
  plimsoll serve --config /etc/plimsoll.conf

Exit codes: 0 stopped cleanly, 2 usage, 3 corrupt data (nothing was changed), 4 halted on an I/O failure, \
5 the data directory is in use, unreadable or of an unknown format, 6 cannot listen.")]
pub(crate) struct Args {
    #[command(flatten)]
    given: Given,
}

/// Serves until told to stop.
pub(crate) fn run(args: Args) -> i32 {
    match settings::resolve(&args.given) {
        Ok(resolved) => {
            let first = resolved.options.clone();
            driver::serve(resolved.options, Box::new(move || settings::reload(&args.given, &first)))
        }
        Err(sentence) => {
            complain("serve", sentence);
            EXIT_USAGE
        }
    }
}
