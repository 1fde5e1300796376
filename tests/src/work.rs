//! Many consumers of one work queue that crash at random, and a broker that is killed again and again, until all is done: no message is
//! lost, none comes again after its confirmation was answered, and what nobody can do is among the dead letters (P15).

use crate::broker::Broker;
use crate::draws::Draws;
use plimsoll::client::{Client, Delivered, Error, Options, Outcome, Publication};
use plimsoll_core::error::Code;
use plimsoll_core::layout;
use plimsoll_core::protocol::Level;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Where the messages are.
pub const TOPIC: &str = "jobs";
/// Who does them.
pub const QUEUE: &str = "workers";
/// Messages that a consumer takes at a time.
const AT_ONCE: u64 = 10;
/// Longer than any run: leases end with their connection.
const LEASE_MS: u64 = 3_600_000;
/// How often a message is handed out. One that crashes hit so often by chance would be no poison and die all the same.
const DELIVERIES: u64 = 20;
/// One in so many is a message that no consumer can do.
const POISON_EVERY: u64 = 200;
/// One in so many times a consumer loses its connection, with all that it has taken.
const CRASH_EVERY: u64 = 40;

/// What the brokers of [`until_all_is_done`] run with: journals that begin anew many times.
pub const SETTINGS: &[&str] = &["--journal-bytes", "16KiB", "--max-deliveries", "20"];

/// How much there is to do, and how it is disturbed.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Messages.
    pub messages: u64,
    /// Consumers at once.
    pub consumers: u64,
    /// What one message takes.
    pub work: Duration,
    /// The broker is killed after this, as long as there is something to do.
    pub kill_every: Duration,
    /// For the draws.
    pub seed: u64,
}

/// What happened in [`until_all_is_done`].
#[derive(Clone, Copy, Default, Debug)]
pub struct Tally {
    /// Brokers that were killed.
    pub kills: u64,
    /// Consumers that lost their connection on purpose.
    pub crashes: u64,
    /// Messages that can be done. Each was applied.
    pub applied: u64,
    /// … and how often in all: what is above is what crashes made to be done again.
    pub applications: u64,
    /// Messages that no consumer can do. Each is among the dead letters, once.
    pub dead: u64,
    /// The largest that the journal ever was when somebody looked, bytes.
    pub journal_bytes_max: u64,
}

/// Works a queue off. `start` starts a broker with [`SETTINGS`] on the data directory, at the address if one is given.
///
/// Panics where a message is applied by nobody, comes again after its confirmation was answered, is confirmed for two consumers, or where
/// the dead letters are not exactly those that nobody can do.
pub fn until_all_is_done(plan: &Plan, data: &Path, start: impl Fn(&Path, Option<&str>) -> Broker) -> Tally {
    let first = start(data, None);
    let address = first.address().to_owned();
    publish(&address, plan);
    let book = Book::new(plan.messages);
    let mut tally = Tally::default();
    let broker = thread::scope(|scope| {
        let mut broker = first;
        for consumer in 0..plan.consumers {
            let (book, address) = (&book, &address);
            scope.spawn(move || consume(address, plan, consumer, book));
        }
        // Whatever happens here, the consumers come to an end.
        let _ends = Ends(&book.is_over);
        loop {
            let begun = Instant::now();
            while begun.elapsed() < plan.kill_every {
                thread::sleep(Duration::from_millis(50));
                if is_done(&address, plan, &mut tally) {
                    return broker;
                }
                assert!(book.failure().is_none(), "{:?}", book.failure());
            }
            broker.kill();
            tally.kills += 1;
            // It has the address until it is gone.
            drop(broker);
            broker = start(data, Some(&address));
        }
    });
    let failure = book.failure();
    assert_eq!(failure, None);
    tally.crashes = book.crashes.load(Ordering::Relaxed);
    check(&broker, plan, &book, &mut tally);
    broker.kill();
    drop(broker);
    // A restart more brings nothing back.
    let broker = start(data, None);
    assert!(is_done(broker.address(), plan, &mut tally), "after a restart there is something to do again");
    assert!(broker.stop().success());
    tally
}

struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Whether no consumer can do it.
pub fn is_poison(message: u64) -> bool {
    message % POISON_EVERY == POISON_EVERY / 2
}

fn publish(address: &str, plan: &Plan) {
    let mut client = Client::connect(address, Options::default()).unwrap();
    client.create(TOPIC).unwrap();
    for message in 0..plan.messages {
        client.publish_nowait(Some(TOPIC), Level::Durable, &Publication::new(message.to_string().as_bytes())).unwrap();
        while client.in_flight() >= 500 || message + 1 == plan.messages && client.in_flight() > 0 {
            assert!(matches!(client.recv_reply(), Some(Outcome::Stored { .. })));
        }
    }
}

/// What consumers have seen, in an order that all of them agree on.
struct Book {
    clock: AtomicU64,
    /// By message, when the confirmation was answered; 0: not yet.
    confirmed: Vec<AtomicU64>,
    applied: Vec<AtomicU64>,
    crashes: AtomicU64,
    is_over: AtomicBool,
    failure: Mutex<Option<String>>,
}

impl Book {
    fn new(messages: u64) -> Book {
        let zeros = || (0..messages).map(|_| AtomicU64::new(0)).collect();
        Book {
            clock: AtomicU64::new(1),
            confirmed: zeros(),
            applied: zeros(),
            crashes: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            failure: Mutex::new(None),
        }
    }

    fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// A message was handed out to somebody who had asked at this moment.
    fn handed_out(&self, message: u64, asked: u64) {
        let confirmed = self.confirmed[message as usize].load(Ordering::SeqCst);
        if confirmed != 0 && confirmed < asked {
            self.fail(format!("message {message} was confirmed, and is handed out again"));
        }
    }

    /// A confirmation was answered at this moment.
    fn confirm(&self, message: u64, now: u64) {
        if self.confirmed[message as usize].swap(now, Ordering::SeqCst) != 0 {
            self.fail(format!("the confirmation of message {message} was answered twice"));
        }
    }

    fn fail(&self, what: String) {
        self.failure.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get_or_insert(what);
    }

    fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }
}

/// Takes messages, does them and confirms them, until it is over; now and then it crashes in between.
fn consume(address: &str, plan: &Plan, consumer: u64, book: &Book) {
    let mut draws = Draws::new(plan.seed ^ (consumer << 32));
    while !book.is_over.load(Ordering::Acquire) {
        // The broker may be down.
        let Ok(mut client) = Client::connect(address, Options::default()) else {
            thread::sleep(Duration::from_millis(5));
            continue;
        };
        while !book.is_over.load(Ordering::Acquire) && book.failure().is_none() {
            match work_once(&mut client, plan, &mut draws, book) {
                Ok(true) => {}
                // The connection is closed without a word.
                Ok(false) => {
                    book.crashes.fetch_add(1, Ordering::Relaxed);
                    break;
                }
                Err(error) if error.is_indeterminate() || matches!(error, Error::Connect { .. }) => break,
                Err(error) if error.is(Code::Stopping) => break,
                Err(error) => return book.fail(error.to_string()),
            }
        }
    }
}

/// `false`: it is to crash.
fn work_once(client: &mut Client, plan: &Plan, draws: &mut Draws, book: &Book) -> Result<bool, Error> {
    let asked = book.now();
    let batch = client.reserve(Some(TOPIC), QUEUE, 1 + draws.below(AT_ONCE), 100, LEASE_MS, false)?;
    let messages: Vec<(u64, String)> = batch
        .iter()
        .filter_map(|delivered| match delivered {
            Delivered::Message(message) => Some((message.offset, String::from_utf8_lossy(message.value).into_owned())),
            Delivered::Gap { .. } => None,
        })
        .collect();
    for (message, value) in &messages {
        if *value != message.to_string() {
            book.fail(format!("message {message} says {value:?}"));
        }
        book.handed_out(*message, asked);
    }
    let (poison, good): (Vec<u64>, Vec<u64>) =
        messages.into_iter().map(|(message, _)| message).partition(|message| is_poison(*message));
    for message in &good {
        thread::sleep(plan.work);
        book.applied[*message as usize].fetch_add(1, Ordering::SeqCst);
    }
    if !(good.is_empty() && poison.is_empty()) && draws.below(CRASH_EVERY) == 0 {
        return Ok(false);
    }
    for message in poison {
        client.abort(Some(TOPIC), QUEUE, message, 0)?;
    }
    if !good.is_empty() {
        client.confirm(Some(TOPIC), QUEUE, &good)?;
        let now = book.now();
        for message in good {
            book.confirm(message, now);
        }
    }
    Ok(true)
}

/// Whether every message has been handed out and is settled.
fn is_done(address: &str, plan: &Plan, tally: &mut Tally) -> bool {
    let queues = Client::connect(address, Options::default()).and_then(|mut client| client.queues(Some(TOPIC)));
    let queue = queues.expect("the broker is there").into_iter().find(|queue| queue.group == QUEUE);
    let Some(queue) = queue else { return false };
    tally.journal_bytes_max = tally.journal_bytes_max.max(queue.journal_bytes);
    queue.confirmed == plan.messages
}

/// Compares what consumers have seen with what there was to do.
fn check(broker: &Broker, plan: &Plan, book: &Book, tally: &mut Tally) {
    for message in (0..plan.messages).filter(|message| !is_poison(*message)) {
        let applied = book.applied[message as usize].load(Ordering::SeqCst);
        assert!(applied > 0, "message {message} was applied by nobody");
        tally.applied += 1;
        tally.applications += applied;
    }
    let mut client = Client::connect(broker.address(), Options::default()).unwrap();
    let dead = layout::dead_letters(TOPIC);
    let mut letters: BTreeMap<u64, u64> = BTreeMap::new();
    let mut position = 0;
    loop {
        let batch = client.read(Some(&dead), position, 1000, true).unwrap();
        if batch.is_empty() {
            break;
        }
        for delivered in batch.iter() {
            let Delivered::Message(letter) = delivered else { panic!("{delivered:?}") };
            position = letter.offset + 1;
            let told = |name: &str| {
                let value = letter.headers().find(|(header, _)| *header == name.as_bytes()).expect("it is told").1;
                String::from_utf8_lossy(&value).parse::<u64>().expect("a number")
            };
            let message = told("dead-offset");
            assert_eq!(letter.value, message.to_string().as_bytes());
            let before = letters.insert(message, told("dead-deliveries"));
            assert_eq!(before, None, "message {message} is among the dead letters twice");
        }
    }
    let expected: BTreeMap<u64, u64> =
        (0..plan.messages).filter(|message| is_poison(*message)).map(|message| (message, DELIVERIES)).collect();
    assert_eq!(letters, expected, "the dead letters, and how often each was handed out");
    tally.dead = letters.len() as u64;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_confirmed_stays_so() {
        let book = Book::new(3);
        let (before, confirmed, after) = (book.now(), book.now(), book.now());
        book.handed_out(0, before);
        book.confirm(0, confirmed);
        book.confirm(1, confirmed);
        // Who had asked before may have it still, when its lease has gone.
        book.handed_out(0, before);
        book.handed_out(2, after);
        assert_eq!(book.failure(), None);
        book.handed_out(1, after);
        assert_eq!(book.failure().unwrap(), "message 1 was confirmed, and is handed out again");

        let book = Book::new(1);
        book.confirm(0, confirmed);
        book.confirm(0, after);
        assert_eq!(book.failure().unwrap(), "the confirmation of message 0 was answered twice");
    }
}
