//! `plimsoll pub`: publishes messages from arguments, standard input or a file.

use super::complain;
use super::connection::{Connection, EXIT_UNKNOWN, Failure, exit_code, output, topic_name};
use crate::client::{Client, Options, Publication, Publisher, Summary};
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use memchr::memchr;
use plimsoll_core::protocol::Level;
use plimsoll_core::record::PAYLOAD_BYTES_CEILING;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Publish messages: the arguments, else the lines of standard input or of a file
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  plimsoll pub 'order 17 paid'
  plimsoll pub @orders 'order 17 paid' --key 17 --header source=shop
  tail -f events.jsonl | plimsoll pub --topic orders
  plimsoll pub --file events.jsonl --level written --in-flight 1000
  plimsoll pub --batch 100 --file events.jsonl
  plimsoll pub --producer 17 --retry --file events.jsonl
  plimsoll pub --whole --file picture.png

A first argument that begins with @ names the topic; a message that begins with @ needs --topic before it. \
Empty lines are left out and counted. A message whose reply is lost is UNKNOWN: stored or not, nobody knows.

Exit codes: 0 all stored, 1 the broker answered ERR, 2 usage, 6 cannot connect, 7 outcome unknown.")]
pub(crate) struct Args {
    /// [@topic] and the messages, each argument one
    #[arg(value_name = "PAYLOAD")]
    payloads: Vec<String>,
    /// The topic [default: default]
    #[arg(long, value_name = "TOPIC", value_parser = topic_name)]
    topic: Option<String>,
    /// Publish the lines of this file
    #[arg(long, value_name = "FILE", conflicts_with = "payloads")]
    file: Option<PathBuf>,
    /// Publish standard input or the file as one message, whatever bytes it has
    #[arg(long)]
    whole: bool,
    /// How safe a message must be before the broker replies
    #[arg(long, value_enum, default_value_t = LevelArg::Durable, ignore_case = true)]
    level: LevelArg,
    /// The key of every message
    #[arg(long)]
    key: Option<String>,
    /// A header of every message; may be given several times
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header)]
    headers: Vec<(Vec<u8>, Vec<u8>)>,
    /// Publish this many messages at a time as one batch: all of them are stored, or none. Where the input pauses or ends, and where a batch
    /// would be over the broker's limit of bytes, there are fewer
    #[arg(long, value_name = "N", conflicts_with_all = ["key", "headers", "whole"], value_parser = clap::value_parser!(u32).range(1..))]
    batch: Option<u32>,
    /// Messages (or batches) sent before the first reply must have come; 1 keeps the order even when a full queue refuses some
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    in_flight: u32,
    /// Repeat after a lost connection, for up to a minute; messages may then be stored twice, unless there is --producer
    #[arg(long)]
    retry: bool,
    /// Give each message (or batch) the id of this producer and the next sequence. One that is repeated, also by the same command run
    /// again, is stored once, as long as it is within the topic's window (settings dedup-sequences, dedup-ms)
    #[arg(long, value_name = "ID")]
    producer: Option<u64>,
    /// The sequence of the first message (or batch); a producer that publishes something else goes on behind its last
    #[arg(long, value_name = "N", requires = "producer", default_value_t = 0)]
    sequence: u32,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

/// How safe; see the protocol.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LevelArg {
    /// In memory
    Accepted,
    /// In the page cache: survives a crash of the broker
    Written,
    /// Forced to the device: survives a power loss
    Durable,
}

impl LevelArg {
    /// The protocol's level.
    pub(crate) fn level(self) -> Level {
        match self {
            LevelArg::Accepted => Level::Accepted,
            LevelArg::Written => Level::Written,
            LevelArg::Durable => Level::Durable,
        }
    }
}

fn header(text: &str) -> Result<(Vec<u8>, Vec<u8>), String> {
    let (name, value) = text.split_once('=').ok_or("a header is written name=value")?;
    Ok((name.as_bytes().to_vec(), value.as_bytes().to_vec()))
}

/// Publishes.
pub(crate) fn run(mut args: Args) -> i32 {
    if args.topic.is_none() && args.payloads.first().is_some_and(|first| first.starts_with('@')) {
        match topic_name(&args.payloads.remove(0)) {
            Ok(name) => args.topic = Some(name),
            Err(sentence) => return exit_code("pub", Err(Failure::Usage(sentence))),
        }
    }
    if args.whole && !args.payloads.is_empty() {
        let sentence = "--whole takes standard input or --file, not arguments".to_owned();
        return exit_code("pub", Err(Failure::Usage(sentence)));
    }
    let source = match Source::open(&args) {
        Ok(source) => source,
        Err(failure) => return exit_code("pub", Err(failure)),
    };
    let patience = if args.retry { Duration::from_secs(60) } else { Duration::ZERO };
    let options = Options { reconnect_for: patience, ..Options::default() };
    match args.connection.connect_with(options) {
        Ok(client) => publish(&args, client, source),
        Err(failure) => exit_code("pub", Err(failure)),
    }
}

fn publish(args: &Args, client: Client, source: Source) -> i32 {
    let begun = Instant::now();
    let level = args.level.level();
    let mut client = client;
    let limits = match args.batch.map(|_| client.hello()).transpose() {
        Ok(limits) => limits,
        Err(error) => return exit_code("pub", Err(Failure::Client(error))),
    };
    let mut publisher = Publisher::new(client, args.topic.as_deref(), level, args.in_flight as usize, args.retry);
    if let (Some(count), Some(limits)) = (args.batch, limits) {
        publisher = publisher.in_batches(count, limits.publish_batch_bytes_max as usize);
    }
    if let Some(producer) = args.producer {
        publisher = publisher.with_ids(producer, args.sequence);
    }
    let progress = source.progress();
    let mut empty = 0;
    let sent = push_all(args, source, &mut publisher, &progress, &mut empty);
    let (summary, rest) = publisher.finish();
    progress.finish_and_clear();
    let printed = print(args, &summary, empty, begun.elapsed());

    if summary.repeated > 0 && args.producer.is_none() {
        complain("pub", format_args!("{} messages were repeated and may be stored twice", summary.repeated));
    }
    let failure = sent.err().or(rest.map(Failure::Client));
    let code = exit_code("pub", failure.map_or(Ok(()), Err));
    match printed {
        _ if summary.unknown > 0 => EXIT_UNKNOWN,
        Err(failure) if code == 0 => exit_code("pub", Err(failure)),
        _ => code,
    }
}

fn push_all(
    args: &Args,
    source: Source,
    publisher: &mut Publisher,
    progress: &ProgressBar,
    empty: &mut u64,
) -> Result<(), Failure> {
    let message =
        Publication { value: &[], key: args.key.as_deref().map(str::as_bytes), headers: &args.headers, id: None };
    match source {
        Source::Arguments(payloads) => {
            for payload in &payloads {
                publisher.push(&Publication { value: payload.as_bytes(), ..message })?;
            }
        }
        Source::Whole(mut reader) => {
            let mut value = Vec::new();
            reader
                .by_ref()
                .take(u64::from(PAYLOAD_BYTES_CEILING) + 1)
                .read_to_end(&mut value)
                .map_err(|error| Failure::Usage(format!("cannot read the input: {error}")))?;
            publisher.push(&Publication { value: &value, ..message })?;
        }
        Source::Lines { mut reader, .. } => {
            let mut line = Vec::new();
            let mut number = 0u64;
            loop {
                // Nothing to read yet (somebody types, `tail -f`): what was sent is seen through first.
                if publisher.in_flight() > 0 && memchr(b'\n', reader.buffer()).is_none() && !is_ready(reader.get_ref())
                {
                    publisher.settle()?;
                }
                line.clear();
                let bytes = reader
                    .by_ref()
                    .take(u64::from(PAYLOAD_BYTES_CEILING) + 1)
                    .read_until(b'\n', &mut line)
                    .map_err(|error| Failure::Usage(format!("cannot read the input: {error}")))?;
                if bytes == 0 {
                    break;
                }
                number += 1;
                let value = line.strip_suffix(b"\n").unwrap_or(&line);
                if value.len() > PAYLOAD_BYTES_CEILING as usize {
                    let sentence =
                        format!("line {number} is longer than {PAYLOAD_BYTES_CEILING} bytes, which no broker takes");
                    return Err(Failure::Usage(sentence));
                }
                match value.is_empty() {
                    true => *empty += 1,
                    false => publisher.push(&Publication { value, ..message })?,
                }
                if number.is_multiple_of(64) {
                    progress.set_position(publisher.summary().stored);
                }
            }
        }
    }
    Ok(publisher.settle()?)
}

/// Where messages come from.
enum Source {
    Arguments(Vec<String>),
    Whole(BufReader<File>),
    Lines { reader: BufReader<File>, terminal: bool },
}

impl Source {
    fn open(args: &Args) -> Result<Source, Failure> {
        if !args.payloads.is_empty() {
            return Ok(Source::Arguments(args.payloads.clone()));
        }
        let file = match &args.file {
            Some(path) => File::open(path).map_err(|error| (path.display().to_string(), error)),
            // A descriptor of our own: the standard library's buffer hides whether more stands ready.
            None => rustix::io::dup(io::stdin())
                .map(File::from)
                .map_err(|error| ("standard input".to_owned(), error.into())),
        };
        let file = file.map_err(|(name, error)| Failure::Usage(format!("cannot read {name}: {error}")))?;
        let terminal = file.is_terminal();
        if terminal && !args.whole {
            complain("pub", "each line you type is a message; end with Ctrl-D");
        }
        let reader = BufReader::with_capacity(1 << 20, file);
        Ok(if args.whole { Source::Whole(reader) } else { Source::Lines { reader, terminal } })
    }

    /// Drawn on a terminal only, and not where somebody types.
    fn progress(&self) -> ProgressBar {
        let Source::Lines { terminal: false, .. } = self else { return ProgressBar::hidden() };
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {human_pos} messages, {per_sec}, {elapsed}") {
            bar.set_style(style);
        }
        bar
    }
}

fn is_ready(file: &File) -> bool {
    let mut ready = [PollFd::new(file, PollFlags::IN)];
    // What can't be polled is read, and says then what is wrong with it.
    poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).map_or(true, |n| n > 0)
}

fn print(args: &Args, summary: &Summary, empty: u64, elapsed: Duration) -> Result<(), Failure> {
    let seconds = elapsed.as_secs_f64();
    let rate = summary.stored as f64 / seconds.max(1e-9);
    let level = summary.level.map(Level::as_str);
    let mut out = output();
    if args.json {
        let object = serde_json::json!({
            "messages": summary.stored,
            "level": level,
            "first_offset": summary.first_offset,
            "last_offset": summary.last_offset,
            "unknown": summary.unknown,
            "refused": summary.refused,
            "repeated": summary.repeated,
            "queue_full": summary.queue_full,
            "empty_lines": empty,
            "seconds": seconds,
            "messages_per_second": rate,
        });
        writeln!(out, "{object}")?;
    } else {
        if let (Some(level), Some(first), Some(last)) = (level, summary.first_offset, summary.last_offset) {
            let offsets = if first == last { format!("offset {first}") } else { format!("offsets {first} to {last}") };
            let plural = if summary.stored == 1 { "" } else { "s" };
            writeln!(
                out,
                "{} message{plural} {level}, {offsets}, in {seconds:.3} s, {rate:.0} messages/s",
                summary.stored
            )?;
        } else {
            writeln!(out, "0 messages")?;
        }
        if empty > 0 {
            writeln!(out, "{empty} empty lines left out")?;
        }
        if summary.unknown > 0 {
            writeln!(out, "UNKNOWN {}: sent, but the reply did not come; stored or not", summary.unknown)?;
        }
    }
    Ok(out.flush()?)
}
