//! `plimsoll queue redrive`: brings dead letters back to the topic that they come from.
//!
//! A letter is published with an id before it is confirmed among the dead: after a crash in between it is published again, with the same
//! id, and stored once (P16). The id is the letter's own, under which it was published among the dead: the broker made it of the queue's
//! log id and a number that no other death in that queue has. So a message that dies again comes back again.

use super::super::complain;
use super::super::connection::{EXIT_REFUSED, EXIT_UNKNOWN, Failure, exit_code, output};
use super::super::place::Place;
use crate::client::{BrokerError, Client, Delivered, Error, Message, Outcome, Publication};
use plimsoll_core::error::Code;
use plimsoll_core::layout;
use plimsoll_core::protocol::{Level, PendingStatus};
use std::collections::BTreeSet;
use std::io::Write;
use std::mem;

/// Bring dead letters back: publish them to their topic again, and confirm them among the dead
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  plimsoll queue redrive --topic orders --dry-run
  plimsoll queue redrive --topic orders --group mails --max 100
  plimsoll queue redrive --topic orders --key customer-17

The dead letters of topic orders are topic orders.dead. A letter comes back as a new message, DURABLE, before it is done among the dead; \
one that was published when a crash came is not stored again when it is repeated within the topic's dedup window. It keeps its key and \
headers, and the dead-… headers that tell where it comes from: every group of the topic gets it, and may pass over what died in another.

One that the topic can't take, because it has become too large, say, is named and stays; the others come back.

Exit codes: 0 done, 1 the broker answered ERR, 2 usage, 6 cannot connect, 7 outcome unknown: run it again.")]
pub(super) struct Args {
    /// Only those that died in this work queue
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// Only those with this key
    #[arg(long)]
    key: Option<String>,
    /// At most so many
    #[arg(long, value_name = "N")]
    max: Option<u64>,
    /// Only list them; nothing is changed
    #[arg(long)]
    dry_run: bool,
    /// Print a JSON object for each letter
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    at: Place,
}

/// The work queue in which dead letters are done.
const GROUP: &str = "redrive";
/// Letters that are on their way at once.
const AT_ONCE: u64 = 100;
/// Letters that are passed over stay reserved to the end, so that they do not come again. Whoever is killed loses them at once.
const LEASE_MS: u64 = 3_600_000;
/// What the headers of a death begin with.
const DEAD: &[u8] = b"dead-";
/// Bytes of a value that are shown.
const PREVIEW: usize = 60;

/// Brings them back.
pub(super) fn run(args: Args) -> i32 {
    let mut tally = Tally::default();
    let client = match args.at.connection.connect() {
        Ok(client) => client,
        failed => return exit_code("queue redrive", failed.map(drop)),
    };
    let result = match args.dry_run {
        true => show(&args, client, &mut tally),
        false => redrive(&args, client, &mut tally),
    };
    let summed = summary(&args, &tally, result.is_err());
    match exit_code("queue redrive", result) {
        _ if tally.unknown > 0 => EXIT_UNKNOWN,
        0 if tally.refused > 0 => EXIT_REFUSED,
        0 => exit_code("queue redrive", summed),
        code => code,
    }
}

#[derive(Default, PartialEq, Eq)]
struct Tally {
    done: u64,
    passed_over: u64,
    /// The topic can't take them as they are.
    refused: u64,
    unknown: u64,
}

fn summary(args: &Args, tally: &Tally, has_failed: bool) -> Result<(), Failure> {
    // Of a failure before the first letter the error says all.
    if args.json || (has_failed && *tally == Tally::default()) {
        return Ok(());
    }
    let mut out = output();
    let plural = if tally.done == 1 { "" } else { "s" };
    let what = if args.dry_run { "would come back" } else { "came back" };
    write!(out, "{} dead letter{plural} {what} to {}", tally.done, args.at.topic)?;
    if tally.passed_over > 0 {
        write!(out, ", {} passed over", tally.passed_over)?;
    }
    if tally.refused > 0 {
        write!(out, ", {} refused", tally.refused)?;
    }
    writeln!(out)?;
    if tally.unknown > 0 {
        writeln!(out, "UNKNOWN {}: sent, but the reply did not come; run it again", tally.unknown)?;
    }
    Ok(out.flush()?)
}

impl Args {
    fn takes(&self, letter: &Letter) -> bool {
        let is = |wanted: &Option<String>, found: Option<&[u8]>| {
            wanted.as_ref().is_none_or(|wanted| found == Some(wanted.as_bytes()))
        };
        is(&self.group, letter.header("dead-group")) && is(&self.key, letter.key.as_deref())
    }
}

/// A dead letter.
struct Letter {
    offset: u64,
    id: (u64, u32),
    key: Option<Vec<u8>>,
    headers: Vec<(Vec<u8>, Vec<u8>)>,
    value: Vec<u8>,
}

impl Letter {
    fn new(message: &Message<'_>) -> Letter {
        Letter {
            offset: message.offset,
            // One that somebody else has put among the dead has none of its own: its place in time stands for it.
            id: message.id().unwrap_or((message.time_ms().unwrap_or(0).unsigned_abs(), message.offset as u32)),
            key: message.key().map(|key| key.into_owned()),
            headers: message.headers().map(|(name, value)| (name.to_vec(), value.into_owned())).collect(),
            value: message.value.to_vec(),
        }
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        let mut headers = self.headers.iter();
        headers.find(|(header, _)| header == name.as_bytes()).map(|(_, value)| &value[..])
    }

    fn publication(&self) -> Publication<'_> {
        Publication { value: &self.value, key: self.key.as_deref(), headers: &self.headers, id: Some(self.id) }
    }
}

fn redrive(args: &Args, mut client: Client, tally: &mut Tally) -> Result<(), Failure> {
    let topic = Some(&args.at.topic[..]);
    let dead = layout::dead_letters(&args.at.topic);
    // To make the queue would be to make a trace where nothing has died.
    if !client.topics()?.contains(&dead) {
        // It says that there is no such topic, if there is none.
        client.status(topic)?;
        return Ok(());
    }
    let mut out = output();
    let mut seen = BTreeSet::new();
    // What stays reserved fills one connection after the other.
    let mut full: Vec<Client> = Vec::new();
    let mut is_new = true;
    loop {
        let left = args.max.unwrap_or(u64::MAX) - tally.done;
        if left == 0 {
            return Ok(());
        }
        let batch = match client.reserve(Some(&dead), GROUP, left.min(AT_ONCE), 0, LEASE_MS, true) {
            Ok(batch) => batch,
            Err(error) if error.is(Code::QueueFull) && !seen.is_empty() => {
                if is_new {
                    return Err(Failure::Usage(format!(
                        "{error}; {} letters that were passed over are in the way: leave out --group and --key",
                        seen.len()
                    )));
                }
                full.push(mem::replace(&mut client, args.at.connection.connect()?));
                is_new = true;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let is_empty = batch.is_empty();
        let letters: Vec<Letter> = batch.iter().filter_map(letter).collect();
        // One that was passed over comes a second time: it was reserved for an hour.
        if is_empty || letters.iter().any(|letter| seen.contains(&letter.offset)) {
            return Ok(());
        }
        is_new = false;
        let (taken, others): (Vec<Letter>, Vec<Letter>) = letters.into_iter().partition(|letter| args.takes(letter));
        tally.passed_over += others.len() as u64;
        seen.extend(others.iter().map(|letter| letter.offset));
        seen.extend(bring_back(args, &mut client, &dead, &taken, tally, &mut out)?);
    }
}

fn letter(delivered: Delivered<'_>) -> Option<Letter> {
    match delivered {
        Delivered::Message(message) => Some(Letter::new(&message)),
        Delivered::Gap { .. } => None,
    }
}

/// Publishes these and confirms those that are safe, whatever becomes of the others; says which can't come back.
fn bring_back(
    args: &Args,
    client: &mut Client,
    dead: &str,
    letters: &[Letter],
    tally: &mut Tally,
    out: &mut impl Write,
) -> Result<Vec<u64>, Failure> {
    let topic = Some(&args.at.topic[..]);
    for letter in letters {
        client.publish_nowait(topic, Level::Durable, &letter.publication())?;
    }
    let outcomes: Vec<Outcome> = letters.iter().map_while(|_| client.recv_reply()).collect();
    let mut failure = None;
    let mut safe: Vec<(&Letter, u64)> = Vec::new();
    let mut refused: Vec<u64> = Vec::new();
    for (letter, outcome) in letters.iter().zip(outcomes) {
        let outcome = match outcome {
            // What tells of its death was added to a message that was as large as it may be.
            Outcome::Refused(error) if is_about_the_letter(&error) => {
                let mut headers = letter.headers.clone();
                headers.retain(|(name, _)| !name.starts_with(DEAD));
                let plain = Publication { headers: &headers, ..letter.publication() };
                client.publish(topic, Level::Durable, &plain)?
            }
            outcome => outcome,
        };
        match outcome {
            Outcome::Stored { offset, .. } => safe.push((letter, offset)),
            Outcome::Unknown => tally.unknown += 1,
            // No repetition helps, and those behind it come back all the same.
            Outcome::Refused(error) if is_about_the_letter(&error) => {
                complain("queue redrive", format_args!("dead letter {} stays where it is: {error}", letter.offset));
                tally.refused += 1;
                refused.push(letter.offset);
            }
            Outcome::Refused(error) => failure = Some(Error::Broker(error)),
        }
    }
    if tally.unknown > 0 {
        // The leases went with the connection; a next run publishes them with the same ids.
        return Err(client
            .loss()
            .cloned()
            .map_or_else(|| Failure::Usage("the connection was lost".into()), Failure::Client));
    }
    if !safe.is_empty() {
        let offsets: Vec<u64> = safe.iter().map(|(letter, _)| letter.offset).collect();
        client.confirm(Some(dead), GROUP, &offsets)?;
        tally.done += safe.len() as u64;
        if args.json {
            for (letter, offset) in safe {
                print(out, letter, Some(offset), true)?;
            }
            out.flush()?;
        }
    }
    failure.map_or(Ok(refused), |error| Err(error.into()))
}

/// Whether it is what it is that keeps a letter from being published, and not the time.
fn is_about_the_letter(error: &BrokerError) -> bool {
    matches!(error.known(), Some(Code::TooLarge | Code::LineTooLong | Code::BadRequest))
}

/// Lists what would come back, by reading: nothing is reserved.
fn show(args: &Args, mut client: Client, tally: &mut Tally) -> Result<(), Failure> {
    let dead = layout::dead_letters(&args.at.topic);
    if !client.topics()?.contains(&dead) {
        client.status(Some(&args.at.topic))?;
        return Ok(());
    }
    let status = client.status(Some(&dead))?;
    let queue = client.queues(Some(&dead))?.into_iter().find(|queue| queue.group == GROUP);
    // Below `next` only what is pending is left.
    let (mut position, next) = queue.map_or((status.start, 0), |queue| (queue.confirmed.max(status.start), queue.next));
    let mut pending: BTreeSet<u64> = BTreeSet::new();
    let mut from = position;
    while from < next {
        let more: Vec<PendingStatus> = client.pending(Some(&dead), GROUP, from, u64::MAX)?;
        let Some(last) = more.last() else { break };
        from = last.offset + 1;
        pending.extend(more.iter().map(|message| message.offset));
    }
    let mut out = output();
    while position < status.durable && args.max.is_none_or(|max| tally.done < max) {
        let mut letters = Vec::new();
        let batch = client.read(Some(&dead), position, AT_ONCE, true)?;
        for delivered in batch.iter() {
            position = match delivered {
                Delivered::Message(message) => message.offset + 1,
                Delivered::Gap { next, .. } => next,
            };
            letters.extend(letter(delivered));
        }
        if batch.is_empty() {
            break;
        }
        for letter in letters.iter().filter(|letter| letter.offset >= next || pending.contains(&letter.offset)) {
            if args.max.is_some_and(|max| tally.done >= max) {
                break;
            }
            match args.takes(letter) {
                true => {
                    tally.done += 1;
                    print(&mut out, letter, None, args.json)?;
                }
                false => tally.passed_over += 1,
            }
        }
    }
    Ok(out.flush()?)
}

/// A line for a letter: where it stands among the dead, what it died of, and what it says.
fn print(out: &mut impl Write, letter: &Letter, back_at: Option<u64>, json: bool) -> Result<(), Failure> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let told = |name: &str| letter.header(name).map(text);
    let number = |name: &str| told(name).and_then(|value| value.parse::<u64>().ok());
    let key = letter.key.as_deref().map(text);
    if json {
        let object = serde_json::json!({
            "dead_offset": letter.offset,
            "group": told("dead-group"),
            "offset": number("dead-offset"),
            "deliveries": number("dead-deliveries"),
            "reason": told("dead-reason"),
            "key": key,
            "value_bytes": letter.value.len(),
            "back_at": back_at,
        });
        writeln!(out, "{object}")?;
        return Ok(());
    }
    write!(out, "dead={}", letter.offset)?;
    for name in ["group", "offset", "deliveries", "reason"] {
        write!(out, " {name}={}", told(&format!("dead-{name}")).unwrap_or_else(|| "-".to_owned()))?;
    }
    if let Some(key) = key {
        write!(out, " key={}", key.escape_default())?;
    }
    let value = text(&letter.value[..letter.value.len().min(PREVIEW)]);
    let more = if letter.value.len() > PREVIEW { "…" } else { "" };
    writeln!(out, " value=\"{}{more}\"", value.escape_debug())?;
    Ok(())
}
