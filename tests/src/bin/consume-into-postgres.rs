//! A consumer with side effects in PostgreSQL, as an application would have it: the subject of `tests/evidence/consumers.rs`.
//!
//! It consumes the topic `default` to its end, writes a row for each message, and prints what it has seen. It can be told
//! to crash when it has applied so many messages, or that its handler throws at the next one.

use plimsoll::client::{Client, Delivered, Options};
use plimsoll_core::error::Code;
use plimsoll_tests::postgres::{Session, literal};
use rustix::process::{Signal, getpid, kill_process};
use std::path::Path;
use std::time::Duration;

/// Messages between two ACKs, and in one request.
const ACK_EVERY: u64 = 10;

fn main() {
    let mut args = std::env::args().skip(1);
    let mut next = || args.next().expect("<address> <socket> <how> [<what happens> <after>]");
    let (address, socket, how) = (next(), next(), next());
    let fate = args.next().map(|fate| (fate, args.next().and_then(|n| n.parse().ok()).expect("a number")));
    let mut consumer = Consumer {
        client: Client::connect(&address, Options::default()).expect("the broker listens"),
        session: Session::open(Path::new(&socket)),
        fate,
        first: None,
        last: 0,
        seen: 0,
        applied: 0,
        skipped: 0,
    };
    match how.as_str() {
        // `on conflict do nothing`: the offset is the key of a side effect.
        "by-offset" => consumer.group(" on conflict do nothing"),
        "without-key" => consumer.group(""),
        "own-position" => consumer.own_position(),
        other => panic!("{other} is no way to consume"),
    }
    consumer.tell();
}

struct Consumer {
    client: Client,
    session: Session,
    /// `crash` or `throw`, and behind how many applied messages.
    fate: Option<(String, u64)>,
    first: Option<u64>,
    last: u64,
    seen: u64,
    applied: u64,
    skipped: u64,
}

impl Consumer {
    /// As a consumer group: a message's effect first, its acknowledgement later. Between the two a crash repeats it (P6).
    fn group(&mut self, on_conflict: &str) {
        loop {
            let messages = self.fetch();
            let Some((last, _)) = messages.last() else { return };
            let last = *last;
            let handled = messages.into_iter().all(|(offset, value)| {
                if self.throws(offset) {
                    return false;
                }
                let sql = format!(
                    "insert into effects (message_offset, body) values ({offset}, {}){on_conflict} returning 1",
                    literal(&value)
                );
                let inserted = self.session.run(&sql).len();
                self.saw(offset, inserted == 1);
                self.crashes();
                true
            });
            if handled {
                self.client.ack(None, "billing", last).expect("an acknowledgement");
            }
        }
    }

    fn fetch(&mut self) -> Vec<(u64, String)> {
        loop {
            match self.client.fetch(None, "billing", ACK_EVERY, 0, false) {
                Ok(batch) => return batch.iter().map(message).collect(),
                // The connection of a consumer that crashed is about to be closed.
                Err(error) if error.is(Code::GroupBusy) => std::thread::sleep(Duration::from_millis(10)),
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Without a group: the effect and the consumer's own position are one transaction, and it reads on from there.
    fn own_position(&mut self) {
        loop {
            let position = self.session.number("select next_offset from position");
            let end = self.client.status(None).expect("a status").durable;
            if position == end {
                return;
            }
            let batch = self.client.read(None, position, ACK_EVERY, false).expect("messages");
            let messages: Vec<(u64, String)> = batch.iter().map(message).collect();
            for (offset, value) in messages {
                self.session.run(&format!(
                    "begin; insert into effects (message_offset, body) values ({offset}, {})",
                    literal(&value)
                ));
                self.saw(offset, true);
                // Before the commit: the transaction is lost as a whole.
                self.crashes();
                self.session.run(&format!("update position set next_offset = {}; commit", offset + 1));
            }
        }
    }

    fn saw(&mut self, offset: u64, applied: bool) {
        self.first.get_or_insert(offset);
        self.last = offset;
        self.seen += 1;
        if applied {
            self.applied += 1;
        } else {
            self.skipped += 1;
        }
    }

    fn crashes(&self) {
        if self.fate.as_ref().is_some_and(|(fate, after)| fate == "crash" && self.seen == *after) {
            self.tell();
            kill_process(getpid(), Signal::KILL).expect("it is this process");
        }
    }

    /// The handler throws, once. What was fetched is not acknowledged; the next connection begins at what is committed.
    fn throws(&mut self, offset: u64) -> bool {
        let now = self.fate.take_if(|(fate, after)| fate == "throw" && self.seen == *after).is_some();
        if now {
            self.tell();
            let committed = self.client.groups(None).expect("groups")[0].committed;
            println!("threw at offset={offset} committed={committed}");
            self.client = Client::connect(self.client.address(), Options::default()).expect("the broker listens");
            (self.first, self.seen, self.applied, self.skipped) = (None, 0, 0, 0);
        }
        now
    }

    fn tell(&self) {
        let Consumer { first, last, seen, applied, skipped, .. } = self;
        let first = first.map_or("none".into(), |first| first.to_string());
        println!("firstOffset={first} lastOffset={last} seen={seen} applied={applied} skippedDuplicates={skipped}");
    }
}

fn message(delivered: Delivered<'_>) -> (u64, String) {
    let Delivered::Message(message) = delivered else { panic!("{delivered:?}") };
    (message.offset, String::from_utf8(message.value.to_vec()).expect("an event is text"))
}
