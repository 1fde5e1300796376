//! `plimsoll consume`: delivers a group's messages, or reads without one.

use super::complain;
use super::connection::{Failure, exit_code, output};
use super::place::Place;
use crate::client::{Batch, Client, Delivered, Message, Options};
use clap::ValueEnum;
use plimsoll_core::error::Code;
use serde::Serialize;
use std::io::Write;
use std::thread;
use std::time::Duration;

/// Print messages, for a group (acknowledging them) or from an offset on (leaving no trace)
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  plimsoll consume --group billing
  plimsoll consume --group billing --topic orders --follow | ./bill
  plimsoll consume --group billing --count 10 --format json
  plimsoll consume --offset 100 --count 10

A group's messages are acknowledged after they were written out, so a consumer that is killed gets the last of them \
again: each message is delivered at least once. Use `plimsoll seek` to move a group. Offsets that are gone are told \
on standard error: GAP <first> <next>.

Exit codes: 0 done, 1 the broker answered ERR, 2 usage, 6 cannot connect, 7 outcome unknown.")]
pub(crate) struct Args {
    /// Deliver to this group, from its committed offset on
    #[arg(long, value_name = "GROUP", conflicts_with = "offset")]
    group: Option<String>,
    /// Without a group: begin here [default: the first message there is]
    #[arg(long, value_name = "OFFSET")]
    offset: Option<u64>,
    /// Go on for ever: wait for new messages, and connect again when the connection is lost
    #[arg(long)]
    follow: bool,
    /// Acknowledge after this many messages (fewer where fewer come)
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    ack_every: u64,
    /// Stop after this many messages
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Wait this long for the next message before stopping, milliseconds [default: 0; with --follow 30000, again and again]
    #[arg(long, value_name = "MS")]
    wait: Option<u64>,
    /// How messages are printed
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    #[command(flatten)]
    at: Place,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Format {
    /// The value and a newline
    Text,
    /// One JSON object a line: offset, time_ms, key, headers, value
    Json,
    /// The value and nothing else
    Raw,
}

/// How often a reader without a group, for which the broker does not wait, looks again.
const POLL_PAUSE: Duration = Duration::from_millis(200);
/// How long to wait before asking again for a group that somebody else holds.
const BUSY_PAUSE: Duration = Duration::from_secs(1);

/// Consumes.
pub(crate) fn run(args: Args) -> i32 {
    exit_code("consume", consume(&args))
}

fn consume(args: &Args) -> Result<(), Failure> {
    // A first connection that fails is an error; a lost one is tried again for as long as we are to follow.
    let mut client = args.at.connection.connect()?;
    let mut out = output();
    let mut left = args.count.unwrap_or(u64::MAX);
    let mut position = match (&args.group, args.offset) {
        (None, None) => client.status(Some(&args.at.topic))?.start,
        (_, offset) => offset.unwrap_or(0),
    };
    let mut was_busy = false;
    while left > 0 {
        match round(args, &mut client, &mut out, left, &mut position) {
            Ok(0) if !args.follow => break,
            Ok(messages) => left -= messages,
            Err(Failure::Client(error)) if args.follow && error.is_indeterminate() => {
                complain("consume", format_args!("{error}; connecting again"));
                let patient = Options { reconnect_for: Duration::MAX / 4, ..Options::default() };
                client = args.at.connection.connect_with(patient)?;
            }
            // Our own lost connection may hold the group until the broker notices, or another consumer does its work.
            Err(Failure::Client(error)) if args.follow && error.is(Code::GroupBusy) => {
                if !was_busy {
                    complain("consume", format_args!("{error}; waiting for it"));
                }
                was_busy = true;
                thread::sleep(BUSY_PAUSE);
                continue;
            }
            Err(failure) => return Err(failure),
        }
        was_busy = false;
    }
    Ok(())
}

/// One reply printed, and for a group acknowledged. Answers how many messages it had.
fn round(
    args: &Args,
    client: &mut Client,
    out: &mut impl Write,
    left: u64,
    position: &mut u64,
) -> Result<u64, Failure> {
    let topic = Some(&args.at.topic[..]);
    let max = left.min(args.ack_every);
    let meta = args.format == Format::Json;
    let wait = args.wait.unwrap_or(if args.follow { 30_000 } else { 0 });
    let Some(group) = &args.group else {
        let messages = {
            let batch = client.read(topic, *position, max, meta)?;
            *position = print(args, batch, out)?.unwrap_or(*position);
            batch.messages()
        };
        if messages == 0 && args.follow {
            thread::sleep(POLL_PAUSE);
        }
        return Ok(messages);
    };
    let (messages, next) = {
        let batch = client.fetch(topic, group, max, wait, meta)?;
        print(args, batch, out)?;
        let last = batch.iter().filter_map(|delivered| match delivered {
            Delivered::Message(message) => Some(message.offset),
            Delivered::Gap { .. } => None,
        });
        (batch.messages(), last.last())
    };
    if let Some(last) = next {
        client.ack(topic, group, last)?;
    }
    Ok(messages)
}

/// Writes a reply out, whole, and answers the offset behind it.
fn print(args: &Args, batch: Batch<'_>, out: &mut impl Write) -> Result<Option<u64>, Failure> {
    let mut behind = None;
    for delivered in batch.iter() {
        match delivered {
            Delivered::Message(message) => {
                behind = Some(message.offset + 1);
                match args.format {
                    Format::Text => {
                        out.write_all(message.value)?;
                        out.write_all(b"\n")?;
                    }
                    Format::Raw => out.write_all(message.value)?,
                    Format::Json => {
                        serde_json::to_writer(&mut *out, &Json::new(&message))?;
                        out.write_all(b"\n")?;
                    }
                }
            }
            Delivered::Gap { first, next } => {
                behind = Some(next);
                let _ = writeln!(std::io::stderr(), "GAP {first} {next}");
            }
        }
    }
    // Only what has left our hands may be acknowledged.
    out.flush()?;
    Ok(behind)
}

/// A message as JSON. Bytes that are not UTF-8 stand in hex, under a name that says so.
#[derive(Serialize)]
struct Json {
    offset: u64,
    time_ms: Option<i64>,
    #[serde(flatten)]
    key: Option<Key>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    headers: Vec<Header>,
    #[serde(flatten)]
    value: Value,
}

#[derive(Serialize)]
enum Key {
    #[serde(rename = "key")]
    Text(String),
    #[serde(rename = "key_hex")]
    Hex(String),
}

#[derive(Serialize)]
enum Value {
    #[serde(rename = "value")]
    Text(String),
    #[serde(rename = "value_hex")]
    Hex(String),
}

#[derive(Serialize)]
struct Header {
    name: String,
    #[serde(flatten)]
    value: Value,
}

impl Json {
    fn new(message: &Message<'_>) -> Json {
        let value = |bytes: &[u8]| text_or_hex(bytes, Value::Text, Value::Hex);
        Json {
            offset: message.offset,
            time_ms: message.time_ms(),
            key: message.key().map(|key| text_or_hex(&key, Key::Text, Key::Hex)),
            headers: message
                .headers()
                .map(|(name, bytes)| Header { name: String::from_utf8_lossy(name).into_owned(), value: value(&bytes) })
                .collect(),
            value: value(message.value),
        }
    }
}

fn text_or_hex<T>(bytes: &[u8], text: fn(String) -> T, hex: fn(String) -> T) -> T {
    match std::str::from_utf8(bytes) {
        Ok(valid) => text(valid.to_owned()),
        Err(_) => hex(bytes.iter().map(|byte| format!("{byte:02x}")).collect()),
    }
}
