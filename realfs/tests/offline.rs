//! `verify` and `dump`, the real binary, on data directories that the broker made on an in-memory disk.

use plimsoll_core::config::Config;
use plimsoll_core::layout;
use plimsoll_core::log::topic_file::TopicToml;
use plimsoll_core::record::{self, Kind, Salt};
use plimsoll_sim::naive::{Harness, NaiveDisk};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const TOPIC: &str = "topics/default";

fn small() -> Config {
    Config { segment_bytes: 512, space_ahead: 256, ballast_bytes: 1000, gather_ns_max: 0, ..Config::default() }
}

/// Twelve durable messages over several segments, a group that has acknowledged seven of them.
fn filled(stop: bool) -> NaiveDisk {
    let mut h = Harness::new(small());
    h.start();
    let client = h.connect();
    for n in 0..11 {
        h.ask(client, format!("PUB DURABLE order {n} {}\n", "x".repeat(40)).as_bytes());
    }
    let last = h.ask(client, b"PUBN DURABLE 5 key=k%201 h.type=a\na\n\"b\xff\n");
    assert_eq!(last, "OK 11 DURABLE\n");
    assert!(h.ask(client, b"FETCH billing 7 0\n").ends_with("END 7\n"));
    assert_eq!(h.ask(client, b"ACK billing 6\n"), "ACKED 7\n");
    if stop {
        h.stop();
    }
    h.disk
}

fn written(disk: &NaiveDisk) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for path in disk.dirs().iter().filter(|path| !path.is_empty()) {
        fs::create_dir_all(dir.path().join(path)).unwrap();
    }
    for (path, bytes) in disk.files() {
        fs::write(dir.path().join(path), bytes).unwrap();
    }
    dir
}

fn plimsoll(arguments: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_plimsoll")).args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn tree(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files.extend(tree(&path)),
            false => drop(files.insert(path.clone(), fs::read(&path).unwrap())),
        }
    }
    files
}

/// Runs `verify` and `verify --json`; the exit code, the text and the object. Nothing may have changed.
fn verify(dir: &Path) -> (i32, String, Value) {
    let before = tree(dir);
    let shown = dir.to_str().unwrap();
    let (code, text, error) = plimsoll(&["verify", shown]);
    let (json_code, object, _) = plimsoll(&["verify", "--json", shown]);
    assert_eq!(code, json_code);
    assert_eq!(tree(dir), before);
    let object = serde_json::from_str(&object).unwrap_or(Value::String(error));
    (code, text, object)
}

fn last_segment(dir: &Path) -> PathBuf {
    let mut names: Vec<PathBuf> =
        fs::read_dir(dir.join(TOPIC).join("log")).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    names.pop().unwrap()
}

fn flip(path: &Path, position: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[position] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_whole_directory_is_ok() {
    for stop in [false, true] {
        let dir = written(&filled(stop));
        let (code, text, object) = verify(dir.path());
        assert_eq!(code, 0, "{text}");
        assert!(text.ends_with(&format!("{} is OK\n", dir.path().display())), "{text}");
        assert!(text.contains("billing") && text.contains("default  OK"), "{text}");
        assert_eq!(object["status"], "OK");
        let topic = &object["topics"][0];
        for (name, value) in [("records", 12), ("start", 0), ("line", 12), ("end", 12)] {
            assert_eq!(topic[name], value, "{name}: {object}");
        }
        assert_eq!(topic["groups"], json!([{ "group": "billing", "committed": 7 }]));
        assert_eq!(topic["slots"], json!({ "running": true, "anchored": true }));
        assert!(topic["segments"].as_array().unwrap().len() >= 2, "{object}");
        assert_eq!(
            (&topic["damage"], &object["unknown"], &object["leftovers"]),
            (&Value::Null, &json!([]), &json!([]))
        );
    }
}

#[test]
fn a_read_only_directory_can_be_verified() {
    let dir = written(&filled(true));
    let set = |mode| {
        for path in [dir.path().to_owned(), dir.path().join("topics"), dir.path().join(TOPIC).join("log")] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
    };
    set(0o500);
    let (code, text, _) = verify(dir.path());
    set(0o700);
    assert_eq!(code, 0, "{text}");
}

#[test]
fn every_flipped_byte_of_a_frame_below_the_line_is_corruption() {
    let dir = written(&filled(false));
    let paths: Vec<PathBuf> = {
        let log = dir.path().join(TOPIC).join("log");
        [log.join("00000000000000000000.log"), last_segment(dir.path())].into()
    };
    for path in paths {
        let good = fs::read(&path).unwrap();
        // In the last segment the frames end where the zeros begin.
        let end = good.iter().rposition(|byte| *byte != 0).unwrap() + 1;
        for position in (0..end).step_by(7) {
            flip(&path, position);
            let (code, text, object) = verify(dir.path());
            assert_eq!(code, 3, "{} at {position}: {text}", path.display());
            assert!(text.ends_with("is CORRUPT (1 of 1 topics); a broker refuses to start on it\n"), "{text}");
            let damage = &object["topics"][0]["damage"];
            assert!(path.ends_with(damage["file"].as_str().unwrap()), "{object}");
            let at = damage["position"].as_u64().unwrap() as usize;
            assert!(at <= position, "{object}");
            assert!(damage["reason"].is_string() && damage["expectedOffset"].is_u64());
            fs::write(&path, &good).unwrap();
        }
    }
}

#[test]
fn a_torn_tail_is_told_and_is_no_corruption() {
    let dir = written(&filled(false));
    let path = last_segment(dir.path());
    let mut bytes = fs::read(&path).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    bytes.truncate(end);
    bytes.extend_from_slice(b"torn off in the middle of a record");
    fs::write(&path, bytes).unwrap();
    let (code, text, object) = verify(dir.path());
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("torn tail") && text.contains("harmless: 34 B, all above the line"), "{text}");
    assert!(text.ends_with("is OK; the torn tail is cut at the next start\n"), "{text}");
    assert_eq!(object["topics"][0]["status"], "TRUNCATED_TAIL");
    assert_eq!(object["topics"][0]["tornTail"], json!({ "bytes": 34, "droppedUnforced": 0 }));
}

#[test]
fn one_torn_slot_is_harmless_and_two_are_not() {
    let dir = written(&filled(true));
    let path = dir.path().join(TOPIC).join("watermark");
    flip(&path, 20);
    let (code, text, object) = verify(dir.path());
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("the running slot of the watermark is torn"), "{text}");
    assert_eq!(object["topics"][0]["slots"], json!({ "running": false, "anchored": true }));
    flip(&path, 4096 + 20);
    let (code, text, object) = verify(dir.path());
    assert_eq!(code, 3, "{text}");
    assert_eq!(object["topics"][0]["damage"]["reason"], "watermark-unreadable");
}

#[test]
fn other_damage_leftovers_and_unknown_files() {
    let dir = written(&filled(true));
    let topic = dir.path().join(TOPIC);
    fs::write(topic.join("groups/billing.offset.tmp"), "7").unwrap();
    fs::create_dir(dir.path().join("topics/orders.tmp")).unwrap();
    fs::write(dir.path().join("notes.txt"), "mine").unwrap();
    fs::write(topic.join("log/x.bak"), "mine").unwrap();
    let (code, text, object) = verify(dir.path());
    assert_eq!(code, 0, "{text}");
    assert_eq!(object["leftovers"], json!(["topics/orders.tmp"]));
    assert_eq!(object["unknown"], json!(["notes.txt"]));
    assert_eq!(object["topics"][0]["leftovers"], json!(["topics/default/groups/billing.offset.tmp"]));
    assert_eq!(object["topics"][0]["unknown"], json!(["topics/default/log/x.bak"]));
    assert!(text.contains("leftover: topics/orders.tmp") && text.contains("unknown: notes.txt"), "{text}");

    for (file, reason) in [("groups/billing.offset", "group-unreadable"), ("topic.toml", "topic-unreadable")] {
        let path = topic.join(file);
        let good = fs::read(&path).unwrap();
        fs::write(&path, "?").unwrap();
        let (code, _, object) = verify(dir.path());
        assert_eq!((code, &object["topics"][0]["damage"]["reason"]), (3, &json!(reason)));
        fs::write(&path, good).unwrap();
    }
    fs::remove_file(topic.join("log/00000000000000000000.log")).unwrap();
    let (code, _, object) = verify(dir.path());
    assert_eq!((code, &object["topics"][0]["damage"]["reason"]), (3, &json!("missing-segment")));
}

#[test]
fn what_is_no_data_directory_exits_with_5_and_one_line() {
    let dir = written(&filled(true));
    let empty = tempfile::tempdir().unwrap();
    let foreign = tempfile::tempdir().unwrap();
    fs::write(foreign.path().join("a"), "").unwrap();
    let newer = written(&filled(true));
    fs::write(newer.path().join(layout::FORMAT), "format = 2\n").unwrap();
    let missing = empty.path().join("missing");
    let file = dir.path().join(layout::FORMAT);
    for (path, sentence) in [
        (empty.path(), "no broker has finished a start"),
        (foreign.path(), "the directory is not empty"),
        (newer.path(), "format 2"),
        (&missing, "does not exist"),
        (&file, "plimsoll dump"),
    ] {
        let (code, out, error) = plimsoll(&["verify", path.to_str().unwrap()]);
        assert_eq!((code, out.as_str(), error.lines().count()), (5, "", 1), "{error}");
        assert!(error.contains(sentence), "{error}");
    }
    assert_eq!(plimsoll(&["verify"]).0, 2);
}

#[test]
fn a_directory_in_use_is_refused_and_says_by_whom() {
    let dir = written(&filled(true));
    let path = dir.path().join(layout::LOCK);
    fs::write(&path, "process 7 (listening on 127.0.0.1:7717)\n").unwrap();
    let lock = fs::File::open(&path).unwrap();
    lock.lock().unwrap();
    let (code, _, error) = plimsoll(&["verify", dir.path().to_str().unwrap()]);
    assert_eq!(code, 5);
    assert!(error.contains("in use by process 7 (listening on 127.0.0.1:7717);"), "{error}");
    drop(lock);
    assert_eq!(verify(dir.path()).0, 0);
}

fn dump(path: &Path) -> (String, Vec<Value>) {
    let shown = path.to_str().unwrap();
    let (code, text, error) = plimsoll(&["dump", shown]);
    assert_eq!(code, 0, "{error}");
    let (_, objects, _) = plimsoll(&["dump", "--json", shown]);
    (text, objects.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

#[test]
fn a_segment_is_dumped_record_by_record() {
    let dir = written(&filled(false));
    let path = last_segment(dir.path());
    let (text, objects) = dump(&path);
    let last = objects.iter().rfind(|object| object["offset"].is_u64()).unwrap();
    for (name, value) in [
        ("offset", json!(11)),
        ("count", json!(1)),
        ("kind", json!("message")),
        ("lag", json!(0)),
        ("time", json!("2023-11-14T22:13:20.000Z")),
        ("key", json!("k 1")),
        ("headers", json!(["type"])),
        ("valueBytes", json!(5)),
        ("value", json!("a\\n\"b\\xff")),
    ] {
        assert_eq!(last[name], value, "{name}: {last}");
    }
    let line = text.lines().find(|line| line.contains("offset=11 ")).unwrap();
    assert!(line.contains("kind=message lag=0 time=2023-11-14T22:13:20.000Z key=\"k 1\" headers=type"), "{line}");
    assert!(line.ends_with(r#"valueBytes=5 value="a\n\"b\xff""#), "{line}");
    assert!(objects.last().unwrap()["unusedBytes"].is_u64(), "{text}");
}

#[test]
fn a_dump_goes_on_behind_damage_whether_or_not_the_log_id_is_known() {
    let dir = written(&filled(false));
    let path = dir.path().join(TOPIC).join("log/00000000000000000000.log");
    let (_, whole) = dump(&path);
    assert!(whole.len() >= 4);
    let second = whole[1]["position"].as_u64().unwrap();
    let third = whole[2]["position"].as_u64().unwrap();
    flip(&path, second as usize + 40);
    let mut expected = whole.clone();
    expected[1] = json!({
        "position": second, "damage": "crc-mismatch", "expectedOffset": 1,
        "bytes": third - second, "validRecordAt": third, "validRecordOffset": 2,
    });
    let topic = dir.path().join(TOPIC);
    for lost in ["nothing", "topic.toml", "watermark"] {
        let _ = fs::remove_file(topic.join(lost));
        assert_eq!(dump(&path).1, expected, "{lost} is lost");
    }
    // Under another name the base offset is unknown, but not the salt.
    let renamed = dir.path().join("copy.log");
    fs::copy(&path, &renamed).unwrap();
    assert_eq!(dump(&renamed).1, expected);
}

#[test]
fn watermark_and_offset_files_are_dumped() {
    let dir = written(&filled(true));
    let topic = dir.path().join(TOPIC);
    let (text, slots) = dump(&topic.join("watermark"));
    assert_eq!((slots.len(), text.lines().count()), (2, 2));
    assert_eq!((&slots[1]["slot"], &slots[1]["durable"]), (&json!("anchored"), &json!(12)));
    assert_eq!((&slots[1]["clean"], &slots[1]["counts"]), (&json!(true), &json!(true)));
    flip(&topic.join("watermark"), 30);
    assert_eq!(dump(&topic.join("watermark")).1[0]["damage"], "slot-unreadable");

    let group = topic.join("groups/billing.offset");
    assert_eq!(dump(&group).0, "committed=7\n");
    fs::write(&group, "7\n").unwrap();
    assert_eq!(dump(&group).0, "damage=group-unreadable bytes=\"7\\n\"\n");
}

#[test]
fn what_cannot_be_dumped_is_told_in_one_line() {
    let dir = written(&filled(true));
    fs::write(dir.path().join("noise.log"), [7; 100]).unwrap();
    fs::create_dir(dir.path().join("dir.log")).unwrap();
    for (name, code, sentence) in [
        ("plimsoll.toml", 2, "is no segment"),
        ("missing.log", 5, "No such file"),
        ("dir.log", 5, "not a file"),
        ("noise.log", 5, "yields the salt"),
    ] {
        let (found, out, error) = plimsoll(&["dump", dir.path().join(name).to_str().unwrap()]);
        assert_eq!((found, out.as_str(), error.lines().count()), (code, "", 1), "{error}");
        assert!(error.contains(sentence), "{error}");
    }
}

#[test]
fn an_index_is_dumped_and_no_concern_of_verify() {
    let mut h = Harness::new(Config { segment_bytes: 512, index_stride_bytes: 100, ..Config::default() });
    h.start();
    let client = h.connect();
    for n in 0..9 {
        h.send(client, format!("PUB DURABLE {n}-{}\n", "v".repeat(100)).as_bytes());
    }
    let dir = written(&h.disk);
    let log = dir.path().join(TOPIC).join("log");
    let index = log.join("00000000000000000000.index");
    let (text, lines) = dump(&index);
    assert_eq!((&lines[0]["base"], &lines[0]["entries"]), (&json!(0), &json!(lines.len() - 1)), "{text}");
    assert_eq!(lines[1], json!({ "offset": 0, "position": 0, "timeBefore": null }));
    assert!(lines.len() > 3 && lines[2]["position"].as_u64().unwrap() > 100, "{text}");
    let whole = verify(dir.path());
    assert!(whole.1.ends_with(" is OK\n"), "{}", whole.1);
    flip(&index, 20);
    assert_eq!(dump(&index).1, [json!({ "damage": "index-unreadable" })]);
    assert_eq!(verify(dir.path()).0, 0);
    fs::remove_file(&index).unwrap();
    assert_eq!(verify(dir.path()).0, 0);
    // One without a segment goes at the next start.
    fs::write(log.join("00000000000000077777.index"), "?").unwrap();
    let (code, text, _) = verify(dir.path());
    assert_eq!(code, 0);
    assert!(text.contains("leftover: topics/default/log/00000000000000077777.index"), "{text}");
}

/// A queue with a message of each fate, and its journal anew behind a checkpoint.
fn queue() -> NaiveDisk {
    let mut h = Harness::new(Config { journal_bytes: 512, ..small() });
    h.start();
    let client = h.connect();
    h.ask(client, b"ALTER @default max-deliveries=9\n");
    for n in 0..5 {
        h.ask(client, format!("PUB DURABLE {n}\n").as_bytes());
    }
    h.ask(client, b"RESERVE pack 5 0 60000\nCONFIRM pack 0 2\nABORT pack 1 5000\n");
    for _ in 0..8 {
        h.ask(client, b"EXTEND pack 4 60000\nABORT pack 3 1\n");
        h.advance_ms(1);
        h.ask(client, b"RESERVE pack 1 0 60000\n");
    }
    h.ask(client, b"ABORT pack 3\n");
    h.stop();
    h.disk
}

#[test]
fn a_queues_journal_is_verified_and_its_operations_are_dumped() {
    let disk = queue();
    let dir = written(&disk);
    let (code, text, object) = verify(dir.path());
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("\ndefault/pack  OK "), "{text}");
    assert!(
        text.contains("\nwork queue default/pack\n  confirmed: all below 1; reserved once and not confirmed: 2\n"),
        "{text}"
    );
    let found = &object["topics"][0]["queues"][0];
    assert_eq!((&found["queue"], &found["confirmed"], &found["pending"]), (&json!("pack"), &json!(1), &json!(2)));

    let log = dir.path().join(layout::log(&layout::queue(TOPIC, "pack")));
    let segments: Vec<PathBuf> = tree(&log).into_keys().collect();
    let (text, objects) = dump(&segments[0]);
    println!("{text}");
    assert_eq!(objects[0]["operation"], "checkpoint");
    assert_eq!((&objects[0]["next"], &objects[0]["pending"]), (&json!(5), &json!(3)));
    let pending = |n: usize| (&objects[n]["message"], &objects[n]["deliveries"]);
    assert_eq!([pending(1), pending(3)], [(&json!(1), &json!(1)), (&json!(4), &json!(1))]);
    assert!(text.contains(" operation=reserve messages=3\n"), "{text}");
    assert!(text.contains(" operation=abort message=3 due=2023-"), "{text}");
    assert!(text.contains(" operation=dying message=3 sequence=0 reason=aborted\n"), "{text}");
    assert!(text.contains(" operation=confirm messages=3\n"), "{text}");

    // An operation that is none, under a checksum that fits, refuses the start; and so it is shown.
    let mut bytes = fs::read(&segments[0]).unwrap();
    let toml = fs::read(dir.path().join(layout::log_toml(&layout::queue(TOPIC, "pack")))).unwrap();
    let base = objects[0]["offset"].as_u64().unwrap();
    let salt = Salt::new(&TopicToml::parse(&toml).unwrap().log_id, base);
    let mut frame = Vec::new();
    record::encode(&mut frame, salt, base, base, Kind::QueueOperation as u8, 0, |out| out.extend_from_slice(&[9; 13]));
    bytes[..frame.len()].copy_from_slice(&frame);
    fs::write(&segments[0], bytes).unwrap();
    let (code, text, object) = verify(dir.path());
    assert_eq!(code, 3, "{text}");
    assert_eq!(object["topics"][0]["queues"][0]["damage"]["reason"], "operation-unreadable");
    assert!(text.contains("is CORRUPT (1 of 2 topics)"), "{text}");
    assert!(
        dump(&segments[0])
            .0
            .contains(" kind=queue-operation lag=0 time=1970-01-01T00:00:00.000Z damage=operation-unreadable ")
    );
}
