//! The committed order events are what their generator makes.

use plimsoll_tests::{orders, workspace};

#[test]
fn the_committed_events_are_the_generators_output() {
    let committed = std::fs::read_to_string(workspace().join("tests/data/orders-events.jsonl")).expect("is committed");
    assert!(
        committed == orders::events(orders::SEED, orders::EVENTS),
        "differs: cargo run -p plimsoll-tests --bin generate-orders > tests/data/orders-events.jsonl"
    );
}

#[test]
fn every_event_is_an_object_with_an_id_of_its_own_and_whole_orders() {
    let mut created = std::collections::BTreeSet::new();
    for (index, line) in orders::events(orders::SEED, orders::EVENTS).lines().enumerate() {
        let event: serde_json::Value = serde_json::from_str(line).expect("JSON");
        assert_eq!(event["message_id"], format!("evt-{index:06}"));
        let order = event["order_id"].as_str().expect("an order id").to_string();
        assert_eq!(event["type"] == "order.created", created.insert(order), "{line}");
    }
    assert!(created.len() > 500);
}
