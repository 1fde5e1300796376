//! `plimsoll status`: marks and counts of topics.

use super::connection::{Connection, Failure, exit_code, output, topic_name};
use super::table::Table;
use plimsoll_core::protocol::TopicStatus;
use std::io::Write;

/// Show how far each topic is: start, durable (the Plimsoll line), written, next
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  plimsoll status
  plimsoll status --topic orders --json

All marks are exclusive ends: durable 15 means that messages 0 to 14 survive a power loss.")]
pub(crate) struct Args {
    /// Only this topic
    #[arg(long, value_name = "TOPIC", value_parser = topic_name)]
    topic: Option<String>,
    /// Print an array of JSON objects
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

/// Prints the status.
pub(crate) fn run(args: Args) -> i32 {
    exit_code("status", status(&args))
}

fn status(args: &Args) -> Result<(), Failure> {
    let mut client = args.connection.connect()?;
    let names = match &args.topic {
        Some(topic) => vec![topic.clone()],
        None => client.topics()?,
    };
    let mut topics = Vec::new();
    for name in &names {
        topics.push(client.status(Some(name))?);
    }
    let mut out = output();
    if args.json {
        let objects: Vec<serde_json::Value> = topics.iter().map(json).collect();
        writeln!(out, "{}", serde_json::Value::from(objects))?;
    } else {
        let mut table = Table::new(&[
            "topic",
            "start",
            "durable",
            "written",
            "next",
            "segments",
            "bytes",
            "groups",
            "forces",
            "force mean µs",
        ]);
        for topic in topics {
            let numbers = [
                topic.start,
                topic.durable,
                topic.written,
                topic.next,
                topic.segments,
                topic.bytes,
                topic.groups,
                topic.forces,
                topic.force_mean_us,
            ];
            table.row([topic.topic].into_iter().chain(numbers.map(|number| number.to_string())));
        }
        table.print(&mut out)?;
    }
    Ok(out.flush()?)
}

fn json(status: &TopicStatus) -> serde_json::Value {
    serde_json::json!({
        "topic": status.topic,
        "start": status.start,
        "durable": status.durable,
        "written": status.written,
        "next": status.next,
        "segments": status.segments,
        "bytes": status.bytes,
        "groups": status.groups,
        "forces": status.forces,
        "force_mean_us": status.force_mean_us,
        "force_total_ms": status.force_total_ms,
        "unforced_max": status.unforced_max,
        "unforced_ms_max": status.unforced_ms_max,
        "packed": status.packed,
        "packed_bytes": status.packed_bytes,
        "pack_failures": status.pack_failures,
    })
}
