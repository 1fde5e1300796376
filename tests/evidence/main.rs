//! Claims, shown on the real binary: each case does something to `plimsoll`, and what is observed must be what its row in
//! docs/evidence.md says. `tests/evidence/run` writes the rows.
//!
//! What a run printed, asked and answered is kept in `target/evidence/<case>/`. What happens between two effects is done by the
//! program `plimsoll-inject`, which is `plimsoll` with a wrapper round the disk (`realfs/src/inject.rs`).

mod consumers;
mod controls;
mod corruption;
mod crash_points;
mod durability;
mod failing_disk;
mod full_disk;
mod limits;
mod queues;
mod rig;

use plimsoll_tests::broker::{binary, injecting_binary};
use plimsoll_tests::workspace;
use rig::Case;
use std::path::Path;
use std::process::Command;

/// The table, and a test for each row.
macro_rules! cases {
    ($($name:ident: $kind:literal, $promises:literal, $done:literal, $run:path;)*) => {
        const CASES: &[Case] =
            &[$(Case { name: stringify!($name), kind: $kind, promises: $promises, done: $done, run: $run }),*];

        $(#[test]
        fn $name() {
            rig::check(CASES, stringify!($name));
        })*
    };
}

cases! {
    normal_group_commit: "group commit", "P1, P2, P3",
        "4 producers that wait for each reply publish 400 order events DURABLE; SIGKILL; restart", durability::group_commit;
    compare_force_each: "group commit", "P1, P2, P3",
        "the same with `--group-commit off`", durability::force_each;
    boundary_segments_and_rejects: "limits", "P2, P13, P14",
        "100 events into segments of 4096 bytes; payloads of 1000 and 1001 bytes with `--max-payload 1000`; FETCH with 300 ms at the end; ACK of what was not delivered; a second consumer of the group; two clients before a disk that hangs, with `--queue-messages 4`",
        limits::segments_and_rejects;
    kill9_durable_acked_survive: "SIGKILL", "P1, P2",
        "4 producers with 64 in flight, DURABLE; SIGKILL in the middle; restart", durability::kill_durable;
    kill9_written_acked_survive: "SIGKILL", "P2, P3",
        "the same, WRITTEN", durability::kill_written;
    kill9_mixed_load: "SIGKILL", "P1, P2, P4, P5, P9",
        "3 producers at all levels, 2 topics, 2 groups, rolls every few dozen messages; SIGKILL again and again on one directory, now and then during the start", durability::kill_loop;
    crash_partial_write_truncated: "crash point", "P1, P8",
        "30 events DURABLE; crash when 77 bytes of the record of offset 30 are written; restart", crash_points::partial_write;
    crash_written_before_force: "crash point", "P3, P4",
        "10 events DURABLE; crash between the write and the force of the next; restart", crash_points::written_before_force;
    crash_forced_before_reply_dup: "crash point", "P1, P6",
        "10 events DURABLE; crash between the force of evt-000010 and the reply; restart; the producer repeats", crash_points::forced_before_reply;
    accepted_offset_not_stable: "crash point", "P2",
        "5 events DURABLE; evt-000005 ACCEPTED, crash before its write; restart; evt-000201 DURABLE", crash_points::accepted_offset;
    group_offset_crash_before_rename: "crash point", "P5, P9",
        "ACK up to 19 answered; crash in the ACK up to 39, before the rename; restart", crash_points::group_before_rename;
    group_offset_crash_before_directory_force: "crash point", "P5, P9",
        "the same between the rename and the force of the directory", crash_points::group_before_directory_force;
    mid_corruption_flipped_payload: "corruption", "P7",
        "41 events DURABLE, SIGKILL; a bit of the payload of record 20 turned; restart", corruption::flipped_payload;
    mid_corruption_changed_length: "corruption", "P7",
        "the same; the length of record 20 set to 60000, 20 good records behind it", corruption::changed_length;
    mid_corruption_last_record: "corruption", "P7",
        "the same; a bit of the very last byte of the log turned", corruption::last_record;
    mid_corruption_last_segment_deleted: "corruption", "P7",
        "the same in segments of 4096 bytes; the last one deleted", corruption::last_segment_deleted;
    mid_corruption_cut_below_line: "corruption", "P7",
        "the same; the file cut in the middle of record 30", corruption::cut_below_the_line;
    control_acknowledge_before_force: "negative control", "P1, P3",
        "16 events DURABLE, one after the other; the last force is never done; SIGKILL, and of each file only what was forced is kept; once with a broker that is told the force was done", controls::acknowledged_before_the_force;
    control_length_only_zeros: "negative control", "P8",
        "10 events, and a torn tail: the header of the next record and zeros as long as its payload", controls::length_only_and_zeros;
    control_length_only_flip: "negative control", "P7",
        "10 events, one bit of one turned", controls::length_only_and_a_flipped_bit;
    consumer_redelivery_dedup_by_offset: "consumer", "P5, P6",
        "60 events; a consumer writes each into PostgreSQL, keyed by offset, `on conflict do nothing`, and ACKs every 10; it crashes when 25 are applied; a second one", consumers::dedup_by_offset;
    control_consumer_without_dedup: "negative control", "P6",
        "the same without the key", consumers::without_key;
    consumer_handler_throws: "consumer", "P5, P6",
        "the same with the key; the handler throws at offset 12, without a crash", consumers::handler_throws;
    consumer_effect_and_offset_in_one_transaction: "consumer", "P2, P6",
        "the same without a group and without a key: side effect and the consumer's own position in one transaction, and it reads from that position", consumers::one_transaction;
    queue_crashing_consumers: "work queue", "P1, P15, P16",
        "10,000 messages, 50 of which no consumer can do, `--max-deliveries 20`, `--journal-bytes 16KiB`; 16 consumers that take up to 10 at a time, and now and then lose their connection with all they have; SIGKILL of the broker every second; a restart at the end",
        queues::crashing_consumers;
    queue_endless_aborts: "work queue", "P13, P15",
        "a message is taken and given back 100,000 times; the same beside 10 consumers that hold 1,000 others each; after both SIGKILL, restart",
        queues::endless_aborts;
    full_disk_with_space_ahead: "full disk", "P11",
        "ext4 of 128 MiB, nine tenths taken; publishing at all levels to the end; 20 ACKs; room is made", full_disk::space_ahead;
    full_disk_appending: "full disk", "P11",
        "the same with `--space-ahead 0`: the write itself meets the full disk", full_disk::appending;
    full_disk_start: "full disk", "P8, P11",
        "filled as above, with default settings; SIGKILL when it is full, and a start; room is made", full_disk::start;
    full_disk_retention: "full disk", "P11, P12",
        "filled as above, and nobody makes room: half is acknowledged with `--retain-consumed yes`, then half of it purged, then all is too old by `retain-ms`; each time from a full disk on, and while a client takes nothing of a READRAW of the first segment", full_disk::retention;
    full_disk_work_queue: "full disk", "P11, P15",
        "filled as above, with `--journal-bytes 16KiB`; 300 times RESERVE and CONFIRM; what is free then, that of the ballast, is taken by something else, and RESERVE and CONFIRM go on until 20 are refused, of which one is given back and one runs out; a `queue work --lease 1s` for 3 s; room is made, and what is left is confirmed; SIGKILL, restart", full_disk::work_queue;
    read_only_remount: "failing disk", "P10",
        "20 events DURABLE; the ext4 turns read-only under the broker (`remount,abort`); one more; mounted anew, restart", failing_disk::read_only;
    eio_on_write: "failing disk", "P10",
        "20 events DURABLE; EIO on the write of the next (injected); restart", failing_disk::write;
    eio_on_force: "failing disk", "P10",
        "20 events DURABLE; EIO on the force of the next (injected); restart", failing_disk::force;
    eio_on_read: "failing disk", "P7",
        "20 events DURABLE; EIO on a consumer's read (injected)", failing_disk::read;
    eio_on_read_at_start: "failing disk", "P7, P10",
        "20 events DURABLE, SIGKILL; EIO on the first read of the log in the start (injected); restart", failing_disk::read_at_start;
    device_fills_under_force: "failing disk", "P10",
        "ext4 on a device whose blocks run out (thin provisioning) under DURABLE publishing; blocks again, and a restart above the same page cache; SIGKILL, mounted anew, restart", failing_disk::device_fills_up;
    device_unreadable: "failing disk", "P7, P10",
        "ext4 on a device that answers reads with EIO; READ, then PUB; the device mended, restart", failing_disk::device_is_unreadable;
}

#[test]
fn the_table_has_a_row_for_each_case() {
    let table = rig::table();
    let rows: Vec<&str> = table.iter().map(|row| rig::name_of(row)).collect();
    let cases: Vec<&str> = CASES.iter().map(|case| case.name).collect();
    // While it is being written it grows.
    if !rig::is_writing() {
        assert_eq!(rows, cases, "./tests/evidence/run writes the table");
    }
}

/// Failures on demand exist in their own program alone.
#[test]
fn the_program_that_users_run_has_no_injection() {
    let has = |path: &Path| {
        let bytes = std::fs::read(path).expect("a program");
        bytes.windows(15).any(|bytes| bytes == b"PLIMSOLL_INJECT")
    };
    assert!(has(injecting_binary()), "the check finds nothing where there is something");
    assert!(!has(binary()));

    // Nor can it be built with them by mistake.
    let built = Command::new(env!("CARGO"))
        .args(["build", "--locked", "--package", "plimsoll", "--features", "inject", "--bin", "plimsoll"])
        .current_dir(workspace())
        .output()
        .expect("cargo runs");
    let said = String::from_utf8_lossy(&built.stderr).into_owned();
    assert!(!built.status.success() && said.contains("never this program"), "{said}");
}

/// A rule that is misspelled must not pass for one that never comes true.
#[test]
fn a_rule_that_is_none_is_refused() {
    let data = tempfile::tempdir().expect("a temporary directory");
    for rule in [
        "crash before write 3 of /log/",
        "crash-before wrte 3 of /log/",
        "hold write 0 of /log/",
        "hold write 1",
        "claim read 1 of /log/",
    ] {
        let mut command = Command::new(injecting_binary());
        command.arg("serve").arg("--data").arg(data.path()).args(["--listen", "127.0.0.1:0"]);
        let output = command.env("PLIMSOLL_INJECT", rule).output().expect("it can be run");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("is no rule"), "{rule}: {said}");
    }
}
