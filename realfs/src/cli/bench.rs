//! `plimsoll bench`: measures a broker, verifies what it stored, and runs raw loops on the same disk beside it.
//!
//! All cases take turns, round by round, each with its raw loops, so that noise of the machine hits all alike; medians
//! are printed. Everything that was acknowledged is read back and compared.

mod beside;
mod broker;
mod flush;
mod load;
mod queue;
mod raw;
mod reading;
mod report;
mod socket;

use super::connection::{Failure, exit_code, output};
use super::publish::LevelArg;
use super::values;
use broker::Broker;
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use load::{Limit, Load};
use plimsoll_core::config::Config;
use plimsoll_core::protocol::Level;
use reading::Reading;
use report::{Published, ReadCase, Report};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Measure how fast and how safe: producers × in flight × size × level, beside raw loops on the same disk
#[derive(Parser, Debug)]
#[command(after_help = "\
Examples:
  plimsoll bench --quick
  plimsoll bench --data /var/lib --json
  plimsoll bench --producers 1,4,64 --in-flight 1,256 --size 128,4096 --level durable
  plimsoll bench --address 127.0.0.1:7717 --level written
  plimsoll bench --flush
  plimsoll bench --retention
  plimsoll bench --queue
  plimsoll bench --packing

Starts a broker of this very program in a temporary directory, and leaves nothing behind. With --address it publishes \
to the topic `bench` of a running broker instead. Cases take turns, round by round; medians are printed. `raw append` \
writes the bytes of a stored message and forces them, one after the other, in the same directory; `raw zeroed` does \
the same into space written before. What was acknowledged is read back and compared by a chained checksum.

Exit codes: 0 all verified, 1 something was not as it should be, 2 usage, 6 cannot connect or start, 130 interrupted.")]
pub(crate) struct Args {
    /// Short rounds: 15 seconds in all
    #[arg(long)]
    quick: bool,
    /// Print an array of JSON objects, one a case
    #[arg(long)]
    json: bool,
    /// Measure this broker instead of starting one
    #[arg(long, value_name = "ADDR")]
    address: Option<String>,
    /// Where to make the temporary directory: choose the disk to be measured
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// How many connections publish [default: the standard cases]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=10_000))]
    producers: Vec<u16>,
    /// How many messages each has in flight
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=100_000))]
    in_flight: Vec<u32>,
    /// Bytes of a message
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = values::bytes_u32)]
    size: Vec<u32>,
    /// How safe
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum, ignore_case = true)]
    level: Vec<LevelArg>,
    /// Flush policies instead: one producer in batches of 100, one consumer
    #[arg(long, conflicts_with_all = ["address", "producers", "in_flight", "size", "level"])]
    flush: bool,
    /// A load with rolls and retention beside the same without, instead
    #[arg(long, conflicts_with_all = ["flush", "address", "producers", "in_flight", "size", "level"])]
    retention: bool,
    /// The same of packing, instead: a consumer does nine messages of ten meanwhile
    #[arg(long, conflicts_with_all = ["retention", "flush", "address", "producers", "in_flight", "size", "level"])]
    packing: bool,
    /// A work queue instead: consumers that reserve, and confirm each message by itself
    #[arg(long, conflicts_with_all = ["packing", "retention", "flush", "address", "producers", "level", "seconds"])]
    queue: bool,
    /// With --queue: how many connections consume [default: 16; --in-flight 64 and 1]
    #[arg(long, value_name = "LIST", value_delimiter = ',', requires = "queue", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    consumers: Vec<u16>,
    /// How long each case publishes in each round
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    seconds: Option<Duration>,
    /// How many messages each case publishes in each round
    #[arg(long, value_name = "N", conflicts_with = "seconds", value_parser = clap::value_parser!(u64).range(1..))]
    messages: Option<u64>,
    /// How often the cases take turns [default: 5, with --quick 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let value: f64 = text.parse().map_err(|_| "write a number of seconds, like 2 or 0.5".to_owned())?;
    Duration::try_from_secs_f64(value).map_err(|error| error.to_string())
}

/// Measures.
pub(crate) fn run(args: Args) -> i32 {
    let interrupt = match Interrupt::listen() {
        Ok(interrupt) => interrupt,
        Err(error) => return exit_code("bench", Err(Failure::Bench(format!("cannot listen for signals: {error}")))),
    };
    // By the end of this everything has been dropped: brokers stopped, directories removed.
    let result = match &args {
        Args { flush: true, .. } => flush::run(&args, &interrupt),
        Args { retention: true, .. } => beside::run(&beside::RETENTION, &args, &interrupt),
        Args { packing: true, .. } => beside::run(&beside::PACKING, &args, &interrupt),
        Args { queue: true, .. } => queue::run(&args, &interrupt),
        _ => bench(&args, &interrupt),
    };
    match result {
        Err(_) if interrupt.is_set() => {
            super::complain("bench", "interrupted; nothing was left behind");
            130
        }
        result => exit_code("bench", result),
    }
}

fn bench(args: &Args, interrupt: &Interrupt) -> Result<(), Failure> {
    let dir = directory(args)?;
    let cases = cases(args);
    let reads = !args.is_custom();
    if args.address.is_some() && reads {
        super::complain("bench", "cases that need a broker started differently are left out (--address)");
    }
    let mut brokers: Vec<Broker> = Vec::new();
    for case in &cases {
        if brokers.iter().all(|broker| broker.variant != case.variant) {
            brokers.push(Broker::start(args.address.as_deref(), dir.path(), case.variant, args.size_max())?);
        }
    }
    let rounds = args.rounds();
    let progress = progress(u64::from(rounds) * (cases.len() as u64 + 2 * u64::from(reads)));
    let mut report =
        Report { published: cases.iter().map(|case| Published::new(case.clone())).collect(), read: vec![] };
    let mut reading = None;
    if reads {
        progress.set_message("filling a log to read");
        let broker = Broker::start(args.address.as_deref(), dir.path(), Variant::Reading, args.size_max())?;
        let messages = if args.quick { 300_000 } else { 1_000_000 };
        reading = Some(Reading::prepare(&broker, messages, dir.path(), interrupt)?);
        report.read = vec![ReadCase::new("FETCH"), ReadCase::new("READRAW")];
        brokers.push(broker);
    }

    let limit = args.limit();
    for _ in 0..rounds {
        for (case, published) in cases.iter().zip(&mut report.published) {
            progress.set_message(case.to_string());
            let broker = brokers.iter_mut().find(|broker| broker.variant == case.variant).expect("started above");
            measure(case, broker, limit, dir.path(), interrupt, published)?;
            progress.inc(1);
        }
        if let (Some(reading), [fetch, read_raw]) = (&mut reading, &mut report.read[..]) {
            progress.set_message("FETCH");
            reading.fetch(fetch, interrupt)?;
            progress.inc(1);
            progress.set_message("READRAW");
            reading.read_raw(read_raw, interrupt)?;
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    let memory: Vec<_> = brokers.iter().filter_map(|broker| Some((broker.variant, broker.memory()?))).collect();
    for broker in brokers {
        broker.stop()?;
    }
    let mut out = output();
    match args.json {
        true => writeln!(out, "{}", report.json(&memory))?,
        false => report.print(&memory, &mut out)?,
    }
    out.flush()?;
    report.verdict()
}

/// One case in one round: half its raw loops before it, half after, so that a change in the machine hits both.
fn measure(
    case: &Case,
    broker: &mut Broker,
    limit: Limit,
    dir: &Path,
    interrupt: &Interrupt,
    published: &mut Published,
) -> Result<(), Failure> {
    let raw_limit = limit.raw();
    let raw_append = raw::append(dir, case.load.size, raw_limit, interrupt)?;

    let mut client = broker.client()?;
    let topic = broker.topic();
    let before = client.status(Some(topic))?;
    let slice = load::run(&broker.address, topic, &case.load, limit, before.next, interrupt)?;
    let after = client.status(Some(topic))?;

    let raw_zeroed = raw::zeroed(dir, case.load.size, raw_limit, interrupt)?;
    let verified = reading::verify(&mut client, topic, before.next, &slice.acknowledged, interrupt)?;
    published.add(slice, after.forces - before.forces, raw_append, raw_zeroed, verified, broker.memory());
    Ok(())
}

/// What is measured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Case {
    load: Load,
    variant: Variant,
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Load { producers, in_flight, size, level } = self.load;
        write!(f, "{} {producers}×{in_flight} {size} B{}", level.as_str(), self.variant.suffix())
    }
}

/// How the broker is started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Variant {
    /// As anybody would.
    Default,
    /// Never holds a force back for producers that are about to send.
    GatherOff,
    /// Each message forced alone.
    GroupCommitOff,
    /// Small segments, so that there are closed ones to read.
    Reading,
    /// Forces 100 messages together, or those of 100 ms.
    FlushAsync,
    /// Forces 500 messages together, or those of 100 ms.
    FlushMixed,
    /// Rolls and removes several segments a second.
    Retained,
    /// Packs several segments a second, when most of their messages are done.
    Packed,
    /// The same, and packs none.
    Unpacked,
}

/// For a work queue whose messages may go when they are done, and whose consumer may have many of them. The last two are for no packing.
const UNPACKED: [&str; 10] = [
    "--segment-bytes",
    "4MiB",
    "--retain-consumed",
    "yes",
    "--max-reserved",
    "1000000",
    "--max-pending",
    "500000",
    "--pack-below-percent",
    "off",
];

impl Variant {
    fn serve_args(self) -> &'static [&'static str] {
        match self {
            Variant::Default => &[],
            Variant::GatherOff => &["--gather", "0s"],
            Variant::GroupCommitOff => &["--group-commit", "off"],
            Variant::Reading => &["--segment-bytes", "16MiB"],
            Variant::FlushAsync => &["--flush", "interval=100ms,messages=100"],
            Variant::FlushMixed => &["--flush", "interval=100ms,messages=500"],
            Variant::Retained => &["--segment-bytes", "4MiB", "--retain-bytes", "16MiB"],
            Variant::Packed => &UNPACKED[..8],
            Variant::Unpacked => &UNPACKED,
        }
    }

    /// The flush policy.
    fn flush(self) -> &'static str {
        match self.serve_args() {
            ["--flush", policy] => policy,
            _ => "always",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Variant::Default => "default",
            Variant::GatherOff => "gather off",
            Variant::GroupCommitOff => "group-commit off",
            Variant::Reading => "small segments",
            Variant::FlushAsync => "flush async",
            Variant::FlushMixed => "flush mixed",
            Variant::Retained => "retained",
            Variant::Packed => "packed",
            Variant::Unpacked => "unpacked",
        }
    }

    fn suffix(self) -> &'static str {
        match self {
            Variant::GatherOff => ", gather off",
            Variant::GroupCommitOff => ", group-commit off",
            _ => "",
        }
    }
}

impl Args {
    /// The largest message that a broker must take.
    fn size_max(&self) -> u32 {
        self.size.iter().copied().fold(Config::default().payload_bytes_max, u32::max)
    }

    fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(if self.quick { 3 } else { 5 })
    }

    /// Of one case in one round.
    fn limit(&self) -> Limit {
        match self.messages {
            Some(messages) => Limit::Messages(messages),
            None => Limit::Time(self.seconds.unwrap_or(Duration::from_millis(if self.quick { 150 } else { 1000 }))),
        }
    }

    /// Of a work queue, each case.
    fn consumers_and_in_flight(&self) -> Vec<(usize, usize)> {
        let consumers = if self.consumers.is_empty() { &[16][..] } else { &self.consumers };
        let in_flight = if self.in_flight.is_empty() { &[64, 1][..] } else { &self.in_flight };
        consumers.iter().flat_map(|n| in_flight.iter().map(|each| (usize::from(*n), *each as usize))).collect()
    }

    /// Whether somebody asked for cases of their own.
    fn is_custom(&self) -> bool {
        !(self.producers.is_empty() && self.in_flight.is_empty() && self.size.is_empty() && self.level.is_empty())
    }
}

fn cases(args: &Args) -> Vec<Case> {
    let case = |variant, level, producers, in_flight, size| Case {
        load: Load { producers, in_flight, size: size as usize, level },
        variant,
    };
    if !args.is_custom() {
        let cases = [
            case(Variant::Default, Level::Durable, 1, 1, 128),
            case(Variant::Default, Level::Durable, 4, 1, 128),
            case(Variant::GatherOff, Level::Durable, 4, 1, 128),
            case(Variant::GroupCommitOff, Level::Durable, 4, 1, 128),
            case(Variant::Default, Level::Durable, 64, 1, 128),
            case(Variant::Default, Level::Durable, 4, 256, 128),
            case(Variant::Default, Level::Written, 4, 256, 128),
            case(Variant::Default, Level::Accepted, 4, 256, 128),
        ];
        // A running broker can't be started differently.
        return cases.into_iter().filter(|case| args.address.is_none() || case.variant == Variant::Default).collect();
    }
    fn or<T: Copy>(given: &[T], default: T) -> Vec<T> {
        if given.is_empty() { vec![default] } else { given.to_vec() }
    }
    let mut cases = Vec::new();
    for level in or(&args.level, LevelArg::Durable) {
        for size in or(&args.size, 128) {
            for in_flight in or(&args.in_flight, 1) {
                for producers in or(&args.producers, 1) {
                    cases.push(case(Variant::Default, level.level(), producers.into(), in_flight as usize, size));
                }
            }
        }
    }
    cases
}

/// A temporary directory on the disk to be measured. Removed when dropped.
fn directory(args: &Args) -> Result<tempfile::TempDir, Failure> {
    let parent = args.data.clone().unwrap_or_else(std::env::temp_dir);
    tempfile::Builder::new().prefix("plimsoll-bench-").tempdir_in(&parent).map_err(|error| {
        Failure::Usage(format!("cannot make a directory in {}: {error}; name another with --data", parent.display()))
    })
}

fn progress(steps: u64) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}") {
        bar.set_style(style);
    }
    bar
}

/// Set by SIGINT and SIGTERM; looked at in every loop, so that the way out is always the same.
#[derive(Clone)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    fn listen() -> io::Result<Interrupt> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::flag::register(signal, flag.clone())?;
        }
        Ok(Interrupt(flag))
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// An error once it is set.
    fn check(&self) -> Result<(), Failure> {
        if self.is_set() { Err(Failure::Bench("interrupted".into())) } else { Ok(()) }
    }
}
