//! How much memory a broker takes for what it stores.

use plimsoll::client::{Client, Options, Outcome, Publication, wire};
use plimsoll_core::protocol::Level;

/// Memory of a process that is in RAM, KiB: `VmRSS` of proc(5).
pub fn resident_kib(pid: u32) -> u64 {
    field(pid, "VmRSS:")
}

/// The most it ever was, KiB: `VmHWM`.
pub fn peak_kib(pid: u32) -> u64 {
    field(pid, "VmHWM:")
}

fn field(pid: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status.lines().find(|line| line.starts_with(name)).expect("the kernel says");
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number of kB")
}

/// Publishes `messages` messages of 128 bytes at level WRITTEN, a thousand in flight, and one DURABLE behind them.
///
/// Panics where one is refused or lost.
pub fn publish(address: &str, messages: u64) {
    let mut client = Client::connect(address, Options::default()).expect("the broker listens");
    let mut request = Vec::new();
    let value = [b'm'; 128];
    wire::encode_publish(&mut request, None, Level::Written, &Publication::new(&value)).expect("a plain message");
    let stored = |outcome: Option<Outcome>| assert!(matches!(outcome, Some(Outcome::Stored { .. })), "{outcome:?}");
    for _ in 1..messages {
        client.publish_encoded(&request).expect("the broker is there");
        if client.in_flight() == 1000 {
            for _ in 0..500 {
                stored(client.recv_reply());
            }
        }
    }
    while client.in_flight() > 0 {
        stored(client.recv_reply());
    }
    let last = client.publish(None, Level::Durable, &Publication::new(&value));
    stored(last.ok());
}

/// Publishes about so many bytes in messages of 32 KiB at level WRITTEN, and one DURABLE behind them.
///
/// Panics where one is refused or lost.
pub fn publish_bytes(address: &str, bytes: u64) {
    const VALUE_BYTES: usize = 32 << 10;
    let mut client = Client::connect(address, Options::default()).expect("the broker listens");
    let value = vec![b'm'; VALUE_BYTES];
    let mut request = Vec::new();
    wire::encode_publish(&mut request, None, Level::Written, &Publication::new(&value)).expect("a plain message");
    let stored = |outcome: Option<Outcome>| assert!(matches!(outcome, Some(Outcome::Stored { .. })), "{outcome:?}");
    for _ in 0..bytes / VALUE_BYTES as u64 {
        client.publish_encoded(&request).expect("the broker is there");
        if client.in_flight() == 64 {
            (0..32).for_each(|_| stored(client.recv_reply()));
        }
    }
    while client.in_flight() > 0 {
        stored(client.recv_reply());
    }
    stored(client.publish(None, Level::Durable, &Publication::new(&value)).ok());
}

/// Reads one message at so many places of the default topic, from its start to its end.
///
/// Panics where one does not come.
pub fn read_everywhere(address: &str, places: u64) {
    let mut client = Client::connect(address, Options::default()).expect("the broker listens");
    let status = client.status(None).expect("the topic default");
    for place in 0..places {
        let offset = status.start + (status.durable - 1 - status.start) * place / places;
        let batch = client.read(None, offset, 1, false).expect("a message");
        assert_eq!(batch.messages(), 1, "offset {offset}");
    }
}
