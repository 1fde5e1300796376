//! `plimsoll seek`: moves a group.

use super::connection::{Failure, exit_code, output};
use super::place::Place;
use plimsoll_core::protocol::SeekTo;
use std::io::Write;
use std::time::SystemTime;

/// Move a group: the next message delivered to it is the one at this offset
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  plimsoll seek billing start
  plimsoll seek billing 1200 --topic orders
  plimsoll seek billing time=2026-01-31T12:00:00Z

No consumer may hold the group meanwhile.")]
pub(crate) struct Args {
    /// The group
    group: String,
    /// An offset, `start`, `end`, or `time=` with a date or milliseconds since 1970
    #[arg(value_name = "TO", value_parser = seek_to)]
    to: SeekTo,
    #[command(flatten)]
    at: Place,
}

/// A place in a log, as people write it.
pub(crate) fn seek_to(text: &str) -> Result<SeekTo, String> {
    if let Some(time) = text.strip_prefix("time=") {
        if let Ok(time_ms) = time.parse() {
            return Ok(SeekTo::TimeMs(time_ms));
        }
        let time = humantime::parse_rfc3339_weak(time)
            .map_err(|error| format!("{error}; write a date like 2026-01-31T12:00:00Z, or milliseconds since 1970"))?;
        let since = time.duration_since(SystemTime::UNIX_EPOCH).map_err(|_| "the date lies before 1970".to_owned())?;
        return Ok(SeekTo::TimeMs(i64::try_from(since.as_millis()).unwrap_or(i64::MAX)));
    }
    match text {
        "start" => Ok(SeekTo::Start),
        "end" => Ok(SeekTo::End),
        _ => text
            .parse()
            .map(SeekTo::Offset)
            .map_err(|_| "write an offset, start, end, or time=2026-01-31T12:00:00Z".to_owned()),
    }
}

/// Moves the group.
pub(crate) fn run(args: Args) -> i32 {
    exit_code("seek", seek(&args))
}

fn seek(args: &Args) -> Result<(), Failure> {
    let offset = args.at.connection.connect()?.seek(Some(&args.at.topic), &args.group, args.to)?;
    let mut out = output();
    writeln!(out, "group {} is at {offset}", args.group)?;
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_understood() {
        assert_eq!(seek_to("12"), Ok(SeekTo::Offset(12)));
        assert_eq!(seek_to("end"), Ok(SeekTo::End));
        assert_eq!(seek_to("time=1500"), Ok(SeekTo::TimeMs(1500)));
        assert_eq!(seek_to("time=1970-01-01T00:00:02Z"), Ok(SeekTo::TimeMs(2000)));
        assert!(seek_to("yesterday").is_err());
        assert!(seek_to("time=yesterday").unwrap_err().contains("1970"));
    }
}
