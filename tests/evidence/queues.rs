//! P15: a message of a work queue is one consumer's at a time, and is done when its confirmation was answered.

use crate::rig::Run;
use plimsoll_core::layout;
use plimsoll_tests::broker::{Broker, Connection};
use plimsoll_tests::files;
use plimsoll_tests::work::{self, Plan};
use std::fs;
use std::time::Duration;

/// Kills that make the case worth its name.
const KILLS_MIN: u64 = 4;
/// A checkpoint of what 16 consumers can have, and twice `--journal-bytes`.
const JOURNAL_BYTES_MAX: u64 = 48 << 10;

pub(crate) fn crashing_consumers(run: &Run) -> String {
    let plan = Plan {
        messages: 10_000,
        consumers: 16,
        work: Duration::from_millis(8),
        kill_every: Duration::from_secs(1),
        seed: 7,
    };
    let tally = work::until_all_is_done(&plan, &run.data(), |data, address| {
        let listen = address.map_or(vec![], |address| vec!["--listen", address]);
        run.broker(data, &[work::SETTINGS, &listen].concat())
    });
    run.note(format!("{tally:?}"));
    assert!(tally.kills >= KILLS_MIN, "the broker was killed only {} times", tally.kills);
    assert!(tally.crashes >= plan.consumers, "only {} consumers crashed", tally.crashes);
    assert!(tally.journal_bytes_max <= JOURNAL_BYTES_MAX, "the journal had {} bytes", tally.journal_bytes_max);
    format!(
        "{} applied at least once, each confirmed once, none handed out after CONFIRMED; the other {} are the dead letters, each once, \
         with dead-deliveries=20; the journal never over {} KiB",
        tally.applied,
        tally.dead,
        JOURNAL_BYTES_MAX >> 10
    )
}

/// How often a message is taken and given back.
const ROUNDS: u64 = 100_000;
/// … so many times with one write.
const AT_ONCE: u64 = 100;
/// Consumers that hold messages meanwhile, and messages of each.
const HOLDERS: (u64, u64) = (10, 1_000);
/// Two segments of 1 MiB: until a checkpoint is forced the one before it is there, too.
const BYTES_MAX: u64 = 2 << 20;
/// A checkpoint of 10,000 leases has 245 KiB. A segment may have two of them more, and there may be two segments.
const BYTES_MAX_WITH_LEASES: u64 = 3 << 20;

pub(crate) fn endless_aborts(run: &Run) -> String {
    let data = run.data();
    let mut broker = run.broker(&data, &[]);
    for (topic, held, bound) in [("alone", 0, BYTES_MAX), ("leased", HOLDERS.0 * HOLDERS.1, BYTES_MAX_WITH_LEASES)] {
        let mut client = run.connect(&broker);
        assert_eq!(client.ask(&format!("CREATE @{topic}")), format!("CREATED {topic}"));
        let mut producer = Connection::open(broker.address());
        for _ in 0..=held / 500 {
            producer.send(format!("PUB @{topic} DURABLE job\n").repeat(500));
            assert!((0..500).all(|_| producer.line().starts_with("OK ")));
        }
        // They hold what they have to the end.
        let holders: Vec<Connection> = (0..held / HOLDERS.1).map(|_| hold(&broker, topic)).collect();
        let journal_bytes = take_and_give_back(&broker, topic, held);
        run.note(format!("{topic}: the journal had at most {journal_bytes} bytes"));
        assert!(journal_bytes <= bound, "the journal of {topic} had {journal_bytes} bytes");
        drop((client, producer));
        broker.kill();
        drop((broker, holders));

        let dir = data.join(layout::queue(&layout::topic(topic), "q"));
        let on_disk: u64 = files(&dir, "").iter().map(|path| fs::metadata(path).expect("a file").len()).sum();
        broker = run.broker(&data, &[]);
        let found = broker.wait_for_line(&format!("RECOVERY topic={topic} queue=q "));
        run.note(format!("{on_disk} bytes on disk; {found}"));
        let number = |name: &str| {
            let field = found.split(' ').find_map(|field| field.strip_prefix(name));
            field.and_then(|value| value.parse::<u64>().ok()).expect("a number")
        };
        assert!(found.contains(" status=OK ") && number("bytes=") <= bound, "{found}");
        assert_eq!(number("pending="), held + 1, "{found}");
    }
    assert!(broker.stop().success());
    format!(
        "the journal is never over {} MiB, with the leases never over {} MiB, and no more than that is read by the next start; it knows of 1 and \
         of 10,001 messages that are pending",
        BYTES_MAX >> 20,
        BYTES_MAX_WITH_LEASES >> 20
    )
}

/// A consumer that has taken its messages.
fn hold(broker: &Broker, topic: &str) -> Connection {
    let mut holder = Connection::open(broker.address());
    holder.send(format!("RESERVE @{topic} q {} 1000 3600000\n", HOLDERS.1));
    assert!((0..HOLDERS.1).all(|_| holder.line().starts_with("MSG ")));
    assert_eq!(holder.line(), format!("END {}", HOLDERS.1));
    holder
}

/// Takes the message at this offset and gives it back, again and again; the most bytes that the journal had when it was looked at.
fn take_and_give_back(broker: &Broker, topic: &str, offset: u64) -> u64 {
    let mut client = Connection::open(broker.address());
    let round = format!("RESERVE @{topic} q 1 0 3600000\nABORT @{topic} q {offset}\n");
    let mut bytes_max = 0;
    for _ in 0..ROUNDS / AT_ONCE {
        client.send(round.repeat(AT_ONCE as usize));
        for _ in 0..AT_ONCE {
            let replies = [client.line(), client.line(), client.line()];
            assert_eq!(replies, [format!("MSG {offset} job"), "END 1".into(), format!("ABORTED {offset}")]);
        }
        let queue = client.ask(&format!("QUEUES @{topic}"));
        assert_eq!(client.line(), "END 1");
        let bytes = queue.split(' ').find_map(|field| field.strip_prefix("journalBytes="));
        bytes_max = bytes_max.max(bytes.and_then(|bytes| bytes.parse().ok()).expect("a number"));
    }
    bytes_max
}
