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

All marks are exclusive ends: durable 15 means that messages 0 to 14 survive a power loss. Where segments were packed since the start: \
how many, how many bytes that gave back, and how often it failed.")]
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
        // Few pack: who does not is not to read past columns of zeros.
        let is_packing = topics.iter().any(|topic| topic.packed > 0 || topic.pack_failures > 0);
        let columns: Vec<Column> =
            COLUMNS.into_iter().chain(is_packing.then_some(PACKING).into_iter().flatten()).collect();
        let heads: Vec<&str> = ["topic"].into_iter().chain(columns.iter().map(|(head, _)| *head)).collect();
        let mut table = Table::new(&heads);
        for topic in topics {
            let numbers = columns.iter().map(|(_, number)| number(&topic).to_string());
            table.row([topic.topic.clone()].into_iter().chain(numbers));
        }
        table.print(&mut out)?;
    }
    Ok(out.flush()?)
}

/// Its head, and what a topic has in it.
type Column = (&'static str, fn(&TopicStatus) -> u64);

const COLUMNS: [Column; 9] = [
    ("start", |topic| topic.start),
    ("durable", |topic| topic.durable),
    ("written", |topic| topic.written),
    ("next", |topic| topic.next),
    ("segments", |topic| topic.segments),
    ("bytes", |topic| topic.bytes),
    ("groups", |topic| topic.groups),
    ("forces", |topic| topic.forces),
    ("force mean µs", |topic| topic.force_mean_us),
];

const PACKING: [Column; 3] = [
    ("packed", |topic| topic.packed),
    ("packed bytes", |topic| topic.packed_bytes),
    ("pack failures", |topic| topic.pack_failures),
];

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
