//! Synthetic order events: the committed input of the main-job test. All values are made up.

use crate::draws::Draws;
use std::fmt::Write;

/// How many events there are in `tests/data/orders-events.jsonl`.
pub const EVENTS: usize = 3000;
/// The seed that the committed file was made from.
pub const SEED: u64 = 7717;

/// Makes the events, one JSON object a line, each line ended by `\n`. A pure function of its arguments.
///
/// Orders go through `created`, `paid`, `shipped` and sometimes `cancelled` or `refunded`, several at a time, so that
/// the order of two events of one order means something. Amounts are in cents. A few notes hold characters of several
/// bytes, quotes and backslashes.
pub fn events(seed: u64, count: usize) -> String {
    let mut draws = Draws::new(seed);
    let mut open: Vec<Order> = Vec::new();
    let mut orders = 0;
    let mut at_ms: u64 = 1_767_225_600_000;
    let mut out = String::new();
    for event in 0..count {
        at_ms += draws.below(4000);
        let start_another = open.is_empty() || (open.len() < 40 && draws.below(3) == 0);
        let (order, kind) = if start_another {
            let order = Order {
                id: orders,
                customer: draws.below(500),
                cents: 100 + draws.below(250_000),
                items: 1 + draws.below(9),
                paid: false,
            };
            orders += 1;
            open.push(order);
            (order, "created")
        } else {
            let index = draws.below(open.len() as u64) as usize;
            let kind = match (open[index].paid, draws.below(8)) {
                (false, 0) => "cancelled",
                (false, _) => "paid",
                (true, 0) => "refunded",
                (true, _) => "shipped",
            };
            if kind == "paid" {
                open[index].paid = true;
                (open[index], kind)
            } else {
                (open.swap_remove(index), kind)
            }
        };
        let Order { id, customer, cents, items, .. } = order;
        write!(
            out,
            r#"{{"message_id":"evt-{event:06}","order_id":"ord-{id:05}","type":"order.{kind}","customer_id":"cus-{customer:04}","amount_cents":{cents},"currency":"EUR","items":{items},"at_ms":{at_ms}"#,
        )
        .expect("a String takes everything");
        if draws.below(5) == 0 {
            let note = NOTES[draws.below(NOTES.len() as u64) as usize];
            write!(out, r#","note":"{note}""#).expect("a String takes everything");
        }
        out.push_str("}\n");
    }
    out
}

/// As they stand in JSON.
const NOTES: [&str; 5] =
    ["leave at the door", "Grüße an das Lager", r#"the \"blue\" one, please"#, r"path C:\\orders\\7", "配達は午後 ☕"];

#[derive(Clone, Copy)]
struct Order {
    id: u64,
    customer: u64,
    cents: u64,
    items: u64,
    paid: bool,
}
