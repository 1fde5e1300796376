//! Prints the synthetic order events of `tests/data/orders-events.jsonl`.
//!
//! `cargo run -p plimsoll-tests --bin generate-orders > tests/data/orders-events.jsonl`

use plimsoll_tests::orders;
use std::io::Write;

fn main() -> std::io::Result<()> {
    std::io::stdout().write_all(orders::events(orders::SEED, orders::EVENTS).as_bytes())
}
