//! A started broker is held against what clients were told before power failed.

use crate::broker::Broker;
use crate::history::{Committed, Expected, Must, Work};
use crate::load::{LEASE_MS, WORKERS};
use plimsoll::client::{Client, Delivered, Error, Options, Outcome, Publication};
use plimsoll_core::protocol::Level;
use std::collections::{BTreeMap, BTreeSet};

/// What a broker showed that is not what was promised.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Broken {
    /// The file system itself can't be mounted.
    Unmountable(String),
    /// The broker does not start (P7, P8).
    Refused(String),
    /// Messages that were answered DURABLE are not there (P1).
    Lost {
        /// How many.
        messages: u64,
        /// The first.
        first: String,
    },
    /// Something else, which begins with the number of the promise.
    Other(String),
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Broken::Unmountable(why) => write!(f, "the file system can't be mounted: {why}"),
            Broken::Refused(why) => write!(f, "P8: refused to start: {why}"),
            Broken::Lost { messages, first } => {
                write!(f, "P1: {messages} messages that were answered DURABLE are lost, the first is {first}")
            }
            Broken::Other(what) => f.write_str(what),
        }
    }
}

/// What a broker has shown or answered, and what must stay so.
#[derive(Default)]
pub struct Shown {
    /// By topic, all its messages in order.
    pub messages: BTreeMap<String, Vec<String>>,
    /// By topic, what its work queue has done.
    pub work: BTreeMap<String, Work>,
}

/// Reads all that a broker has, and lets it go on a little.
///
/// # Errors
/// The first promise that is broken: P1, P2, P4, P5, P6 or P15.
pub fn audit(broker: &Broker, expected: &Expected) -> Result<Shown, Broken> {
    for line in broker.lines.iter().filter(|line| line.starts_with("RECOVERY ")) {
        if !line.contains(" status=OK ") && !line.contains(" status=TRUNCATED_TAIL ") {
            return Err(Broken::Other(format!("P8: {line}")));
        }
    }
    let io = |error: Error| Broken::Other(format!("P6: a request is not answered: {error}"));
    let mut client = Client::connect(&broker.address, Options::default()).map_err(io)?;
    let topics: BTreeSet<String> = client.topics().map_err(io)?.into_iter().collect();
    let nothing = (BTreeSet::new(), BTreeMap::new());
    let mut shown = Shown::default();
    for topic in topics.iter().chain(&expected.topics).collect::<BTreeSet<_>>() {
        let safe = expected.safe.get(topic).unwrap_or(&nothing.1);
        if !topics.contains(topic) {
            lost(topic, safe, &[])?;
            return Err(Broken::Other(format!("P1: topic {topic}, whose making was answered, is gone")));
        }
        let found = read(&mut client, topic)?;
        lost(topic, safe, &found)?;
        let sent = expected.sent.get(topic).unwrap_or(&nothing.0);
        let mut once = BTreeSet::new();
        for (offset, value) in found.iter().enumerate() {
            if !sent.contains(value) || !once.insert(value) {
                let what = format!("offset {offset} of {topic} holds {value:?}");
                return Err(Broken::Other(format!("P2: {what}, which nobody sent by then or which is there twice")));
            }
        }
        let status = client.status(Some(topic)).map_err(io)?;
        let end = found.len() as u64;
        if (status.start, status.durable, status.next) != (0, end, end) {
            return Err(Broken::Other(format!("P2: {end} messages of {topic} can be read, and it says {status:?}")));
        }
        shown.messages.insert(topic.clone(), found);
    }
    for committed in &expected.committed {
        progress(&mut client, committed, shown.messages.get(&committed.topic).map_or(&[], |found| found))?;
    }
    for (topic, found) in &shown.messages {
        let done = expected.work.get(topic).cloned().unwrap_or_default();
        shown.work.insert(topic.clone(), work(&mut client, topic, done, found)?);
    }
    for (topic, found) in &mut shown.messages {
        let value = format!("{topic}-after-{}", found.len());
        match client.publish(Some(topic), Level::Durable, &Publication::new(value.as_bytes())).map_err(io)? {
            Outcome::Stored { offset, level: Level::Durable } if offset == found.len() as u64 => found.push(value),
            other => {
                return Err(Broken::Other(format!("P2: publishing goes on with {other:?} behind {}", found.len())));
            }
        }
    }
    Ok(shown)
}

fn read(client: &mut Client, topic: &str) -> Result<Vec<String>, Broken> {
    let mut found = Vec::new();
    loop {
        let batch = client.read(Some(topic), found.len() as u64, 10_000, false);
        let batch = batch.map_err(|e| Broken::Other(format!("P7: reading {topic} from {}: {e}", found.len())))?;
        if batch.is_empty() {
            return Ok(found);
        }
        for delivered in batch.iter() {
            match delivered {
                Delivered::Message(message) if message.offset == found.len() as u64 => {
                    found.push(String::from_utf8_lossy(message.value).into_owned());
                }
                other => return Err(Broken::Other(format!("P2: {topic} at {}: {other:?}", found.len()))),
            }
        }
    }
}

/// What must be there and is not, or is something else.
fn lost(topic: &str, safe: &BTreeMap<u64, Must>, found: &[String]) -> Result<(), Broken> {
    let is_there = |(offset, must): &(&u64, &Must)| found.get(**offset as usize) == Some(&must.value);
    let missing: Vec<(&u64, &Must)> = safe.iter().filter(|entry| !is_there(entry)).collect();
    let Some((offset, _)) = missing.first() else { return Ok(()) };
    let what = match found.get(**offset as usize) {
        Some(other) => format!("offset {offset} of {topic}, now {other:?}"),
        None => format!("offset {offset} of {topic}, which ends at {}", found.len()),
    };
    let messages = missing.iter().filter(|(_, must)| must.acknowledged).count() as u64;
    match messages {
        0 => Err(Broken::Other(format!("P4: a message that was delivered is gone: {what}"))),
        _ => Err(Broken::Lost { messages, first: what }),
    }
}

/// P5, and P6: everything from there on is delivered, in order.
fn progress(client: &mut Client, of: &Committed, found: &[String]) -> Result<(), Broken> {
    let Committed { topic, group, allowed } = of;
    let groups = match client.groups(Some(topic)) {
        Ok(groups) => groups,
        // Whether it must be there was asked before.
        Err(_) if found.is_empty() => return Ok(()),
        Err(error) => return Err(Broken::Other(format!("P5: {topic}: {error}"))),
    };
    let committed = groups.iter().find(|known| known.group == *group).map_or(0, |known| known.committed);
    if !allowed.contains(&committed) || committed > found.len() as u64 {
        let end = found.len();
        return Err(Broken::Other(format!(
            "P5: {group} of {topic} is at {committed} of {end}, allowed is {allowed:?}"
        )));
    }
    let mut next = committed;
    while next < found.len() as u64 {
        let batch = client.fetch(Some(topic), group, 10_000, 1000, false);
        let batch = batch.map_err(|e| Broken::Other(format!("P6: {group} of {topic} at {next}: {e}")))?;
        if batch.is_empty() {
            return Err(Broken::Other(format!("P6: {group} of {topic} is not delivered what follows {next}")));
        }
        for delivered in batch.iter() {
            match delivered {
                Delivered::Message(message)
                    if message.offset == next
                        && found.get(next as usize).is_some_and(|v| v.as_bytes() == message.value) =>
                {
                    next += 1;
                }
                other => return Err(Broken::Other(format!("P6: {group} of {topic} at {next}: {other:?}"))),
            }
        }
    }
    Ok(())
}

/// P15: what is confirmed does not come again, and all else comes. Confirms half of it.
fn work(client: &mut Client, topic: &str, done: Work, found: &[String]) -> Result<Work, Broken> {
    let io = |error: Error| Broken::Other(format!("P15: {WORKERS} of {topic}: {error}"));
    let mut handed_out = BTreeSet::new();
    loop {
        let batch = client.reserve(Some(topic), WORKERS, 10_000, 0, LEASE_MS, false).map_err(io)?;
        if batch.is_empty() {
            break;
        }
        for delivered in batch.iter() {
            match delivered {
                Delivered::Message(message)
                    if found.get(message.offset as usize).is_some_and(|v| v.as_bytes() == message.value)
                        && handed_out.insert(message.offset) => {}
                other => {
                    let what = format!("{WORKERS} of {topic} is handed out what is not there, or has it already");
                    return Err(Broken::Other(format!("P15: {what}: {other:?}")));
                }
            }
        }
    }
    // Some were given back with a delay and are not due.
    let pending: BTreeSet<u64> =
        client.pending(Some(topic), WORKERS, 0, u64::MAX).map_err(io)?.iter().map(|message| message.offset).collect();
    if let Some(again) = pending.intersection(&done.confirmed).next() {
        return Err(Broken::Other(format!("P15: offset {again} of {topic} was confirmed, and {WORKERS} has it again")));
    }
    let is_done = |offset: &u64| done.confirmed.contains(offset) || done.asked.contains(offset);
    if let Some(missing) = (0..found.len() as u64).find(|offset| !pending.contains(offset) && !is_done(offset)) {
        let what = format!("offset {missing} of {topic} was never confirmed, and {WORKERS} does not get it");
        return Err(Broken::Other(format!("P15: {what}")));
    }
    let half: Vec<u64> = handed_out.into_iter().step_by(2).collect();
    if !half.is_empty() {
        client.confirm(Some(topic), WORKERS, &half).map_err(io)?;
    }
    let confirmed = (0..found.len() as u64).filter(|offset| !pending.contains(offset)).chain(half).collect();
    Ok(Work { confirmed, asked: BTreeSet::new() })
}
