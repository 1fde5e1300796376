//! `plimsoll serve`: runs the broker.

use super::values;
use crate::driver::{self, ServeOptions};
use crate::report::LogFormat;
use clap::ValueEnum;
use clap::builder::PossibleValue;
use plimsoll_core::config::Config;
use std::path::PathBuf;
use std::time::Duration;

/// Run the broker on a data directory.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  plimsoll serve
  plimsoll serve --data /var/lib/plimsoll --listen 127.0.0.1:7717 --listen '[::1]:7717'
  plimsoll serve --listen 127.0.0.1:0 --log json

Exit codes: 0 stopped cleanly, 2 usage, 3 corrupt data (nothing was changed), 4 halted on an I/O failure, \
5 the data directory is in use, unreadable or of an unknown format, 6 cannot listen.")]
pub(crate) struct Args {
    /// Where the messages are; created when missing (its parent must exist)
    #[arg(long, value_name = "DIR", env = "PLIMSOLL_DATA", default_value = "plimsoll-data")]
    data: PathBuf,
    /// Address to listen on; port 0 takes a free one, and READY says which. May be given several times
    #[arg(long, value_name = "ADDR", env = "PLIMSOLL_LISTEN", value_delimiter = ',', default_value = "127.0.0.1:7717")]
    listen: Vec<String>,
    /// How the lines on standard output are written
    #[arg(long, value_enum, default_value_t)]
    log: LogFormat,
    /// Threads that wait for the disk; forces of that many topics run side by side
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    disk_threads: u16,
    #[command(flatten)]
    limits: Limits,
}

impl ValueEnum for LogFormat {
    fn value_variants<'a>() -> &'a [LogFormat] {
        &[LogFormat::Text, LogFormat::Json]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(match self {
            LogFormat::Text => PossibleValue::new("text").help("NAME key=value …"),
            LogFormat::Json => PossibleValue::new("json").help("One object a line"),
        })
    }
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum OnOff {
    On,
    Off,
}

/// The settings of [`Config`]; what is not given keeps its default.
#[derive(clap::Args, Debug)]
struct Limits {
    /// A segment is rolled before it would grow past this [default: 64MiB]
    #[arg(long, value_name = "BYTES", value_parser = values::bytes)]
    segment_bytes: Option<u64>,
    /// The largest payload admitted [default: 64KiB]
    #[arg(long, value_name = "BYTES", value_parser = values::bytes_u32)]
    max_payload: Option<u32>,
    /// Messages of a topic that wait to be written [default: 1024]
    #[arg(long, value_name = "N")]
    queue_messages: Option<u32>,
    /// Bytes of the same [default: 64MiB]
    #[arg(long, value_name = "BYTES", value_parser = values::bytes)]
    queue_bytes: Option<u64>,
    /// Messages in one write [default: 256]
    #[arg(long, value_name = "N")]
    batch_messages: Option<u32>,
    /// Bytes in one write [default: 1MiB]
    #[arg(long, value_name = "BYTES", value_parser = values::bytes)]
    batch_bytes: Option<u64>,
    /// `off` writes and forces each message alone, for comparison [default: on]
    #[arg(long, value_enum, value_name = "on|off")]
    group_commit: Option<OnOff>,
    /// How far the active segment is zero-written ahead; 0 appends plainly [default: 256KiB]
    #[arg(long, value_name = "BYTES", value_parser = values::bytes)]
    space_ahead: Option<u64>,
    /// End every force on a multiple of this, for devices without power-safe overwrite [default: 0]
    #[arg(long, value_name = "BYTES", value_parser = values::bytes_u32)]
    pad_forces: Option<u32>,
    /// The longest that a force is held for producers that are about to send again, microseconds [default: 100]
    #[arg(long, value_name = "US")]
    gather_us: Option<u64>,
    /// Clients at once [default: 1024]
    #[arg(long, value_name = "N")]
    max_connections: Option<u32>,
    /// Unanswered requests of a connection, after which it is not read [default: 1024]
    #[arg(long, value_name = "N")]
    max_unanswered: Option<u32>,
    /// Unsent reply bytes of a connection, after which it is not read [default: 1MiB]
    #[arg(long, value_name = "BYTES", value_parser = values::bytes)]
    max_unsent_bytes: Option<u64>,
    /// A client that takes none of its replies for this long is cut off [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    send_stall: Option<Duration>,
    /// The longest wait that a FETCH may ask for, milliseconds [default: 60000]
    #[arg(long, value_name = "MS")]
    max_fetch_wait_ms: Option<u64>,
    /// Where a reply to FETCH or READ stops [default: 4MiB]
    #[arg(long, value_name = "BYTES", value_parser = values::bytes)]
    max_fetch_bytes: Option<u64>,
    /// A silent holder of a group loses it to the next who asks after this long [default: 5m]
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    group_idle: Option<Duration>,
    /// Create a topic when it is first published to
    #[arg(long)]
    auto_create: bool,
    /// Topics at most [default: 10000]
    #[arg(long, value_name = "N")]
    max_topics: Option<u32>,
    /// Groups of one topic at most [default: 1000]
    #[arg(long, value_name = "N")]
    max_groups: Option<u32>,
    /// After this long without a publish the line is anchored on disk [default: 500ms]
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    idle_anchor: Option<Duration>,
    /// Space kept back for acknowledging on a full disk; 0: none [default: 4MiB]
    #[arg(long, value_name = "BYTES", value_parser = values::bytes)]
    ballast: Option<u64>,
    /// Memory for the newest messages, over all topics [default: 8MiB]
    #[arg(long, value_name = "BYTES", value_parser = values::bytes)]
    recent_bytes: Option<u64>,
}

impl Limits {
    fn config(&self) -> Config {
        fn set<T: Copy>(setting: &mut T, given: Option<T>) {
            if let Some(value) = given {
                *setting = value;
            }
        }
        let ms = |time: Option<Duration>| time.map(|t| u64::try_from(t.as_millis()).unwrap_or(u64::MAX));
        let mut config = Config::default();
        set(&mut config.segment_bytes, self.segment_bytes);
        set(&mut config.payload_bytes_max, self.max_payload);
        set(&mut config.queue_messages, self.queue_messages);
        set(&mut config.queue_bytes, self.queue_bytes);
        set(&mut config.batch_messages, self.batch_messages);
        set(&mut config.batch_bytes, self.batch_bytes);
        set(&mut config.group_commit, self.group_commit.map(|given| given == OnOff::On));
        set(&mut config.space_ahead, self.space_ahead);
        set(&mut config.pad_forces, self.pad_forces);
        set(&mut config.gather_ns_max, self.gather_us.map(|us| us.saturating_mul(1000)));
        set(&mut config.connections_max, self.max_connections);
        set(&mut config.unanswered_max, self.max_unanswered);
        set(&mut config.unsent_bytes_max, self.max_unsent_bytes);
        set(&mut config.send_stall_ms_max, ms(self.send_stall));
        set(&mut config.fetch_wait_ms_max, self.max_fetch_wait_ms);
        set(&mut config.fetch_bytes_max, self.max_fetch_bytes);
        set(&mut config.group_idle_ms, ms(self.group_idle));
        set(&mut config.topics_max, self.max_topics);
        set(&mut config.groups_max, self.max_groups);
        set(&mut config.idle_anchor_ms, ms(self.idle_anchor));
        set(&mut config.ballast_bytes, self.ballast);
        set(&mut config.recent_bytes, self.recent_bytes);
        config.auto_create = self.auto_create;
        config
    }
}

/// Serves until told to stop.
pub(crate) fn run(args: Args) -> i32 {
    driver::serve(ServeOptions {
        config: args.limits.config(),
        data: args.data,
        listen: args.listen,
        log: args.log,
        disk_threads: args.disk_threads.into(),
    })
}
