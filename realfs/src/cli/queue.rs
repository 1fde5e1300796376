//! `plimsoll queue`: works on what stands in a work queue, shows it, takes leases away and brings dead letters back.

mod redrive;
mod work;

use super::complain;
use super::connection::{EXIT_REFUSED, Failure, exit_code, output};
use super::place::{Listing, Place};
use super::table::Table;
use clap::Subcommand;
use plimsoll_core::error::Code;
use plimsoll_core::protocol::{PendingState, PendingStatus, QueueStatus};
use serde_json::{Value, json};
use std::io::Write;

/// Work on the messages of a work queue, show what is reserved, take leases away, bring dead letters back
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  plimsoll queue work mails --topic orders --exec ./send-mail --jobs 4
  plimsoll queue list --topic orders
  plimsoll queue list --all
  plimsoll queue pending mails --topic orders
  plimsoll queue steal mails 1207 --topic orders
  plimsoll queue redrive --topic orders --dry-run

A work queue is a group whose messages are handed out to many consumers at once, each to one of them at a time, in any order. The \
first RESERVE makes it; `plimsoll topic delete TOPIC --group GROUP` deletes it.")]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    Work(work::Args),
    List(ListArgs),
    Pending(PendingArgs),
    Steal(StealArgs),
    Redrive(redrive::Args),
}

/// List the work queues of a topic, and how many messages are how far
#[derive(clap::Args, Debug)]
#[command(after_help = "\
ready: could be reserved now. reserved: somebody has them. delayed: given back, and not due yet. dying: on their way to the dead \
letters. waiting: consumers that wait for a message.")]
struct ListArgs {
    #[command(flatten)]
    listing: Listing,
}

/// List messages that were reserved and are not confirmed: by whom they are leased, and until when
#[derive(clap::Args, Debug)]
struct PendingArgs {
    /// The work queue
    group: String,
    /// Begin with this offset
    #[arg(long, value_name = "OFFSET", default_value_t = 0)]
    from: u64,
    /// List at most so many
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max: Option<u64>,
    /// Print an array of JSON objects
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    at: Place,
}

/// Take leases away: the messages can be reserved by others at once, and whoever had them can't confirm them any more
#[derive(clap::Args, Debug)]
#[command(after_help = "\
One that is not reserved is named, and the others are taken away all the same.

Exit codes: 0 all taken away, 1 the broker answered ERR, to one of them at least, 2 usage, 6 cannot connect, 7 outcome unknown.")]
struct StealArgs {
    /// The work queue
    group: String,
    /// The messages
    #[arg(required = true)]
    offsets: Vec<u64>,
    #[command(flatten)]
    at: Place,
}

/// Does what was asked for.
pub(crate) fn run(args: Args) -> i32 {
    match args.verb {
        Verb::Work(args) => work::run(args),
        Verb::List(args) => exit_code("queue list", list(&args.listing)),
        Verb::Pending(args) => exit_code("queue pending", pending(&args)),
        Verb::Steal(args) => match steal(&args) {
            Ok(refused) if refused > 0 => EXIT_REFUSED,
            stolen => exit_code("queue steal", stolen.map(|_| ())),
        },
        Verb::Redrive(args) => redrive::run(args),
    }
}

fn list(listing: &Listing) -> Result<(), Failure> {
    listing.print(
        |client, topic| client.queues(Some(topic)),
        ["queue", "confirmed", "next", "ready", "reserved", "delayed", "dying", "waiting", "journal"],
        |queue| {
            let number = |number: u64| number.to_string();
            [
                queue.group.clone(),
                number(queue.confirmed),
                number(queue.next),
                number(queue.ready),
                number(queue.reserved),
                number(queue.delayed),
                number(queue.dying),
                number(queue.waiting),
                number(queue.journal_bytes),
            ]
        },
        queue_json,
    )
}

fn queue_json(queue: &QueueStatus) -> Value {
    json!({
        "queue": queue.group,
        "confirmed": queue.confirmed,
        "next": queue.next,
        "ready": queue.ready,
        "reserved": queue.reserved,
        "delayed": queue.delayed,
        "dying": queue.dying,
        "waiting": queue.waiting,
        "journal_bytes": queue.journal_bytes,
        "journal_forces": queue.journal_forces,
    })
}

fn pending(args: &PendingArgs) -> Result<(), Failure> {
    let mut client = args.at.connection.connect()?;
    let mut found: Vec<PendingStatus> = Vec::new();
    let max = args.max.unwrap_or(u64::MAX);
    // The broker answers with a bounded number of lines; a message that is done meanwhile is left out.
    let mut from = Some(args.from);
    while let Some(first) = from
        && (found.len() as u64) < max
    {
        let more = client.pending(Some(&args.at.topic), &args.group, first, max - found.len() as u64)?;
        from = more.last().and_then(|last| last.offset.checked_add(1));
        found.extend(more);
    }
    let mut out = output();
    if args.json {
        let objects: Vec<Value> = found.iter().map(pending_json).collect();
        writeln!(out, "{}", Value::from(objects))?;
    } else {
        let mut table = Table::new(&["offset", "deliveries", "state", "connection", "peer", "time"]);
        for message in found {
            let (state, holder, ms) = told(&message.state);
            let text = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
            table.row([
                message.offset.to_string(),
                message.deliveries.to_string(),
                state.to_owned(),
                text(holder.map(|(connection, _)| connection.to_string())),
                text(holder.map(|(_, peer)| peer.to_owned())),
                text(ms.map(time)),
            ]);
        }
        table.print(&mut out)?;
    }
    Ok(out.flush()?)
}

/// What it is called, whose it is, and for how many milliseconds that stays so.
fn told(state: &PendingState) -> (&'static str, Option<(u64, &str)>, Option<u64>) {
    match state {
        PendingState::Reserved { connection, peer, left_ms } => ("reserved", Some((*connection, peer)), Some(*left_ms)),
        PendingState::Ready { due_ms: 0 } => ("ready", None, None),
        PendingState::Ready { due_ms } => ("delayed", None, Some(*due_ms)),
        PendingState::Dying => ("dying", None, None),
    }
}

fn pending_json(message: &PendingStatus) -> Value {
    let (state, holder, ms) = told(&message.state);
    json!({
        "offset": message.offset,
        "deliveries": message.deliveries,
        "state": state,
        "connection": holder.map(|(connection, _)| connection),
        "peer": holder.map(|(_, peer)| peer),
        "left_ms": ms,
    })
}

/// Seconds, with tenths where there are few of them.
fn time(ms: u64) -> String {
    match ms {
        0..10_000 => format!("{}.{} s", ms / 1000, ms % 1000 / 100),
        _ => format!("{} s", ms / 1000),
    }
}

/// Says how many are nobody's to take away, which is no reason to leave the others.
fn steal(args: &StealArgs) -> Result<usize, Failure> {
    let mut client = args.at.connection.connect()?;
    let mut out = output();
    let mut refused = 0;
    for offset in &args.offsets {
        match client.steal(Some(&args.at.topic), &args.group, *offset) {
            Err(error) if error.is(Code::NotReserved) => {
                complain("queue steal", error);
                refused += 1;
            }
            stolen => {
                stolen?;
                writeln!(out, "{offset} can be reserved by others")?;
                out.flush()?;
            }
        }
    }
    Ok(refused)
}
