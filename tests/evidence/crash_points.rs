//! The process ends between two effects, at each place where that makes a difference to somebody.

use crate::rig::{Run, events, frame_bytes};
use plimsoll_core::layout;
use plimsoll_tests::broker::Broker;
use plimsoll_tests::{contents, files};
use std::fs;
use std::os::unix::process::ExitStatusExt;

/// A crash in the middle of a write (P8): the record is cut off, all before it are whole.
pub(crate) fn partial_write(run: &Run) -> String {
    const WRITTEN: u64 = 77;
    let (events, data) = (events(), run.data());
    let broker = run.injected(&data, &[], &format!("crash-within write 31 of default/log/ after {WRITTEN}"));
    let mut talk = run.connect(&broker);
    for (offset, event) in events[..30].iter().enumerate() {
        talk.publish("DURABLE", event, offset as u64);
    }
    talk.send(&format!("PUB DURABLE {}", events[30]));
    assert!(talk.is_lost());
    assert_killed(broker);
    assert!(frame_bytes(&events[30]) > WRITTEN, "the write was a part of the record");

    let broker = run.broker(&data, &[]);
    let recovery = broker.wait_for_line("RECOVERY ");
    let told = format!(
        "RECOVERY topic=default status=TRUNCATED_TAIL records=30 durable=30 truncatedBytes={WRITTEN} truncatedAtOffset=30 droppedUnforced=0 "
    );
    assert!(recovery.starts_with(&told), "{recovery}");
    assert_log(&broker, &events[..30]);
    run.connect(&broker).publish("DURABLE", &events[30], 30);
    assert!(broker.stop().success());
    format!(
        "no reply; TRUNCATED_TAIL, truncatedBytes={WRITTEN}, truncatedAtOffset=30; 0 to 29 whole; the next message gets offset 30"
    )
}

/// A crash between the write and the force: no reply, and the record is there after a crash of the process.
pub(crate) fn written_before_force(run: &Run) -> String {
    let (events, data) = (events(), run.data());
    let broker = run.injected(&data, &[], "crash-before force 11 of default/log/");
    publish_until_lost(run, &broker, &events[..11]);
    assert_killed(broker);

    let broker = run.broker(&data, &[]);
    let recovery = broker.wait_for_line("RECOVERY ");
    assert!(recovery.starts_with("RECOVERY topic=default status=OK records=11 durable=10 "), "{recovery}");
    assert_log(&broker, &events[..11]);
    assert!(broker.stop().success());
    "no reply; the record is there at offset 10, status=OK, 11 records; the line stood at 10 and is at 11 when it is served".into()
}

/// A crash when the message is durable and nobody was told: who repeats it stores it twice.
pub(crate) fn forced_before_reply(run: &Run) -> String {
    let events = events();
    // Behind the force, and behind the write of the running slot, upon which the reply is sent.
    for (at, rule) in
        ["crash-after force 11 of default/log/", "crash-after write 13 of default/watermark"].iter().enumerate()
    {
        let data = run.scratch().join(format!("data-{at}"));
        // The first writes of the two slots under this name finish the making of the topic.
        let broker = run.injected(&data, &["--idle-anchor", "1h"], rule);
        publish_until_lost(run, &broker, &events[..11]);
        assert_killed(broker);

        let broker = run.broker(&data, &[]);
        let recovery = broker.wait_for_line("RECOVERY ");
        let line = 10 + at;
        let told = format!("RECOVERY topic=default status=OK records=11 durable={line} ");
        assert!(recovery.starts_with(&told), "{recovery}");
        run.connect(&broker).publish("DURABLE", &events[10], 11);
        let mut twice = events[..11].to_vec();
        twice.push(events[10].clone());
        assert_log(&broker, &twice);
        assert!(broker.stop().success());
    }
    assert!(events[10].contains(r#""message_id":"evt-000010""#));
    "no reply; the producer repeats evt-000010; it stands at offsets 10 and 11; the same with the line written and the reply not sent".into()
}

/// What ACCEPTED does not promise.
pub(crate) fn accepted_offset(run: &Run) -> String {
    let (events, data) = (events(), run.data());
    let broker = run.injected(&data, &[], "hold write 6 of default/log/");
    let mut talk = run.connect(&broker);
    for (offset, event) in events[..5].iter().enumerate() {
        talk.publish("DURABLE", event, offset as u64);
    }
    talk.publish("ACCEPTED", &events[5], 5);
    broker.kill();
    drop(broker);

    let broker = run.broker(&data, &[]);
    let mut talk = run.connect(&broker);
    talk.publish("DURABLE", &events[201], 5);
    assert!(events[5].contains(r#""message_id":"evt-000005""#) && events[201].contains(r#""message_id":"evt-000201""#));
    let mut expected = events[..5].to_vec();
    expected.push(events[201].clone());
    assert_log(&broker, &expected);
    assert!(broker.stop().success());
    let anywhere = contents(&data).values().any(|bytes| bytes.windows(10).any(|bytes| bytes == b"evt-000005"));
    assert!(!anywhere, "the first payload is in a file");
    "OK 5 ACCEPTED; after the restart offset 5 names evt-000201, and evt-000005 is in no file".into()
}

/// A crash while an ACK is being stored, before its rename (P5).
pub(crate) fn group_before_rename(run: &Run) -> String {
    let (committed, lines) = acknowledged_twice(run, "crash-before rename 2 of /groups/");
    let removed = lines.iter().find(|line| line.starts_with("GROUP_TMP_REMOVED ")).expect("a leftover");
    assert_eq!(removed, "GROUP_TMP_REMOVED file=topics/default/groups/billing.offset.tmp");
    format!(
        "no reply; progress {committed}; the leftover is removed: `{removed}`; ACK 39 then works once the messages came again"
    )
}

/// The same between the rename and the force of the directory.
pub(crate) fn group_before_directory_force(run: &Run) -> String {
    let (committed, lines) = acknowledged_twice(run, "crash-after rename 2 of /groups/");
    assert!(!lines.iter().any(|line| line.starts_with("GROUP_TMP_REMOVED ")), "{lines:?}");
    format!(
        "no reply; progress {committed}, written anew before it is answered; ACK 39 again answers ACKED 40 and changes nothing"
    )
}

/// A consumer's first ACK is answered, the second meets the rule. Answers the progress found by the next start, and what
/// that printed.
fn acknowledged_twice(run: &Run, rule: &str) -> (u64, Vec<String>) {
    let (events, data) = (events(), run.data());
    let broker = run.injected(&data, &[], rule);
    let mut talk = run.connect(&broker);
    for (offset, event) in events[..60].iter().enumerate() {
        talk.publish("WRITTEN", event, offset as u64);
    }
    talk.publish("DURABLE", &events[60], 60);
    assert_eq!(talk.messages("FETCH billing 40 0").len(), 40);
    assert_eq!(talk.ask("ACK billing 19"), "ACKED 20");
    talk.send("ACK billing 39");
    assert!(talk.is_lost());
    assert_killed(broker);

    let broker = run.broker(&data, &[]);
    let mut talk = run.connect(&broker);
    let group = talk.ask("GROUPS");
    assert!(talk.line().starts_with("END 1"));
    let committed = group.split(' ').find_map(|word| word.strip_prefix("committed=")).expect("a number");
    let committed: u64 = committed.parse().expect("a number");
    let file = data.join(layout::group_offset(&layout::topic("default"), "billing"));
    let before = (fs::read(&file).expect("the group's file"), inode(&file));
    if committed < 40 {
        // Not delivered on this connection yet.
        assert_eq!(talk.messages("FETCH billing 20 0")[0].0, committed);
        assert_eq!(talk.ask("ACK billing 19"), "ACKED 20");
        assert_eq!((fs::read(&file).expect("the group's file"), inode(&file)), before);
    }
    assert_eq!(talk.ask("ACK billing 39"), "ACKED 40");
    if committed == 40 {
        assert_eq!((fs::read(&file).expect("the group's file"), inode(&file)), before);
    }
    assert_eq!(talk.messages("FETCH billing 1 0")[0].0, 40);
    let lines = broker.lines();
    assert!(broker.stop().success());
    assert!(files(&data, ".tmp").is_empty());
    (committed, lines)
}

fn inode(path: &std::path::Path) -> u64 {
    std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).expect("a file"))
}

/// Publishes DURABLE, one after the other; the last is never answered.
fn publish_until_lost(run: &Run, broker: &Broker, events: &[String]) {
    let mut talk = run.connect(broker);
    let (last, others) = events.split_last().expect("events");
    for (offset, event) in others.iter().enumerate() {
        talk.publish("DURABLE", event, offset as u64);
    }
    talk.send(&format!("PUB DURABLE {last}"));
    assert!(talk.is_lost());
}

fn assert_log(broker: &Broker, expected: &[String]) {
    let log = broker.read_all(None);
    assert_eq!(log.len(), expected.len());
    assert!(log.iter().zip(expected).all(|(found, sent)| found == sent.as_bytes()));
}

/// It ended as by a crash, and not by itself.
pub(crate) fn assert_killed(broker: Broker) {
    assert_eq!(broker.wait().signal(), Some(9));
}
