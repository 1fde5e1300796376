//! `plimsoll find`: looks for messages of a producer's sequence or of a key.

use super::connection::{Failure, exit_code, output};
use super::place::Place;
use super::seek::seek_to;
use crate::client::{Client, Delivered, Message};
use indicatif::{ProgressBar, ProgressStyle};
use plimsoll_core::protocol::SeekTo;
use std::io::{IsTerminal, Write};
use std::time::{Duration, SystemTime};

/// Nothing was found in the range.
const EXIT_NOTHING: i32 = 8;
/// A reply ends earlier, by its bytes.
const MESSAGES_A_READ: u64 = 100_000;

/// Find messages by producer and sequence, or by key
#[derive(clap::Args, Debug)]
#[command(
    group = clap::ArgGroup::new("what").required(true).args(["id", "key"]),
    after_help = "\
Examples:
  plimsoll find --id 7:1200
  plimsoll find --topic orders --key customer-17 --from time=2026-01-31T12:00:00Z
  plimsoll find --key k1 --from 1000 --to 2000 --json

Reads every message of the range: all that is durable, unless --from or --to say less. A time stands for the first message, in the order of \
offsets, that was accepted then or later. For each hit a line: offset, time, bytes, key, id.

Exit codes: 0 found, 8 nothing found, 1 the broker answered ERR, 2 usage, 6 cannot connect, 7 outcome unknown."
)]
pub(crate) struct Args {
    /// The number of a producer and of its message
    #[arg(long, value_name = "PRODUCER:SEQUENCE", value_parser = producer_id)]
    id: Option<(u64, u32)>,
    /// The key, as it was published
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Where to begin: an offset, `start`, `end`, or `time=` with a date or milliseconds since 1970
    #[arg(long, value_name = "FROM", value_parser = seek_to, default_value = "start")]
    from: SeekTo,
    /// Where to end, before this
    #[arg(long, value_name = "TO", value_parser = seek_to, default_value = "end")]
    to: SeekTo,
    /// Stop at the first hit
    #[arg(long)]
    first: bool,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    at: Place,
}

fn producer_id(text: &str) -> Result<(u64, u32), String> {
    let id =
        text.split_once(':').and_then(|(producer, sequence)| Some((producer.parse().ok()?, sequence.parse().ok()?)));
    id.ok_or_else(|| "write two numbers, like 7:1200".to_owned())
}

/// Looks for them.
pub(crate) fn run(args: Args) -> i32 {
    match find(&args) {
        Ok(0) => EXIT_NOTHING,
        found => exit_code("find", found.map(|_| ())),
    }
}

/// Says how many were found.
fn find(args: &Args) -> Result<u64, Failure> {
    let topic = Some(&args.at.topic[..]);
    let mut client = args.at.connection.connect()?;
    let status = client.status(topic)?;
    let place = |client: &mut Client, to: SeekTo| match to {
        SeekTo::Offset(offset) => Ok(offset),
        SeekTo::Start => Ok(status.start),
        SeekTo::End => Ok(status.durable),
        SeekTo::TimeMs(time_ms) => client.find_time(topic, time_ms),
    };
    let from = place(&mut client, args.from)?;
    let to = place(&mut client, args.to)?.min(status.durable);
    let progress = progress(to.saturating_sub(from));
    let mut out = output();
    let (mut found, mut position) = (0, from);
    while position < to && !(args.first && found > 0) {
        let batch = client.read(topic, position, MESSAGES_A_READ.min(to - position), true)?;
        let before = position;
        for delivered in batch.iter() {
            match delivered {
                Delivered::Message(message) => {
                    position = message.offset + 1;
                    if is_wanted(args, &message) && !(args.first && found > 0) {
                        found += 1;
                        progress.suspend(|| print(args, &message, &mut out))?;
                    }
                }
                Delivered::Gap { next, .. } => position = next,
            }
        }
        if position == before {
            // The log ends earlier than it did a moment ago: nothing that was durable can be missing, so it was removed.
            break;
        }
        progress.set_position(position.saturating_sub(from));
    }
    progress.finish_and_clear();
    out.flush()?;
    if found == 0 {
        let Place { topic, .. } = &args.at;
        super::complain("find", format_args!("nothing was found in topic {topic} from offset {from} to {to}"));
    }
    Ok(found)
}

fn is_wanted(args: &Args, message: &Message<'_>) -> bool {
    match (&args.id, &args.key) {
        (Some(id), _) => message.id() == Some(*id),
        (_, Some(key)) => message.key().is_some_and(|found| *found == *key.as_bytes()),
        (None, None) => unreachable!("one of them is required"),
    }
}

fn print(args: &Args, message: &Message<'_>, out: &mut impl Write) -> Result<(), Failure> {
    let time_ms = message.time_ms().unwrap_or_default();
    let key = message.key();
    let id = message.id().map(|(producer, sequence)| format!("{producer}:{sequence}"));
    if args.json {
        let mut object = serde_json::json!({
            "offset": message.offset,
            "time_ms": time_ms,
            "bytes": message.value.len(),
        });
        match key.as_deref().map(|key| std::str::from_utf8(key).map_err(|_| hex(key))) {
            Some(Ok(key)) => object["key"] = key.into(),
            Some(Err(hex)) => object["key_hex"] = hex.into(),
            None => {}
        }
        if let Some(id) = id {
            object["id"] = id.into();
        }
        writeln!(out, "{object}")?;
    } else {
        write!(out, "{} {} {} bytes", message.offset, date(time_ms), message.value.len())?;
        if let Some(key) = key {
            write!(out, " key={}", String::from_utf8_lossy(&key))?;
        }
        if let Some(id) = id {
            write!(out, " id={id}")?;
        }
        writeln!(out)?;
    }
    // A hit is seen at once, however long the rest takes.
    Ok(out.flush()?)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A date where it is one, else the milliseconds.
fn date(time_ms: i64) -> String {
    match u64::try_from(time_ms).ok().and_then(|ms| SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(ms))) {
        // The last year that the library writes is 9999.
        Some(time) if time_ms < 253_402_300_800_000 => humantime::format_rfc3339_millis(time).to_string(),
        _ => format!("{time_ms}ms"),
    }
}

fn progress(messages: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} messages  {per_sec}  {eta}");
    ProgressBar::new(messages).with_style(style.expect("a template that is right"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_dates() {
        assert_eq!(producer_id("7:1200"), Ok((7, 1200)));
        for wrong in ["7", "7:", ":1", "a:b", "7:4294967296"] {
            assert!(producer_id(wrong).unwrap_err().contains("7:1200"), "{wrong}");
        }
        assert_eq!(date(1_767_225_600_123), "2026-01-01T00:00:00.123Z");
        assert_eq!((date(-5), date(i64::MAX)), ("-5ms".to_owned(), format!("{}ms", i64::MAX)));
    }
}
