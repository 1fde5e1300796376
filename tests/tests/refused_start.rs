//! Starts that must not happen: each ends with the right exit code and one clear line, and changes nothing.

use plimsoll_core::group::offset_file::encode_offset;
use plimsoll_core::layout;
use plimsoll_tests::broker::{Broker, Connection, run};
use plimsoll_tests::mount::Mounted;
use plimsoll_tests::{contents, files};
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

#[test]
fn a_busy_port_is_told_before_the_data_directory_is_touched() {
    let parent = tempfile::tempdir().unwrap();
    let data = parent.path().join("data");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let line = refused(&data, &["--listen", &address], 6);
    assert!(line.contains(&format!("cannot listen on {address}")) && line.contains("--listen"), "{line}");
    assert!(!data.exists(), "the data directory was made for nothing");
}

#[test]
fn an_address_that_is_none_is_a_matter_of_usage() {
    let parent = tempfile::tempdir().unwrap();
    let data = parent.path().join("data");
    for address in ["7717", "no such host:7717", "127.0.0.1:77177"] {
        let line = refused(&data, &["--listen", address], 2);
        assert!(line.contains(&format!("--listen {address}")) && line.contains("host:port"), "{line}");
    }
    assert!(!data.exists());
}

#[test]
fn a_setting_out_of_its_range_is_a_matter_of_usage() {
    let parent = tempfile::tempdir().unwrap();
    let data = parent.path().join("data");
    assert_eq!(run(["serve", "--no-such-option"]).status.code(), Some(2));
    let line = refused(&data, &["--listen", "127.0.0.1:0", "--segment-bytes", "1"], 2);
    assert!(line.contains("segment-bytes must be 512 to"), "{line}");
    assert!(!data.exists());
}

#[test]
fn a_directory_in_use_names_the_process() {
    let data = tempfile::tempdir().unwrap();
    let broker = Broker::start(data.path(), &[]);
    let line = refused(data.path(), FREE_PORT, 5);
    let holder = format!("in use by process {} (listening on {})", broker.pid(), broker.address());
    assert!(line.contains(&holder) && line.contains("--data"), "{line}");
    // The one that was there has not noticed.
    assert_eq!(Connection::open(broker.address()).ask("PUB DURABLE still here"), "OK 0 DURABLE");
    assert!(broker.stop().success());
}

#[test]
fn a_newer_format_is_left_to_its_version() {
    let (_keep, data) = stopped_broker();
    fs::write(data.join(layout::FORMAT), "format = 2\n").unwrap();
    let line = refused_unchanged(&data, 5);
    assert!(line.contains("format 2") && line.contains("format 1"), "{line}");
}

#[test]
fn a_directory_of_something_else_is_left_alone() {
    let data = tempfile::tempdir().unwrap();
    fs::write(data.path().join("letter.txt"), "dear diary").unwrap();
    let line = refused_unchanged(data.path(), 5);
    assert!(line.contains("not empty (letter.txt is in it)") && line.contains("--data"), "{line}");
}

#[test]
fn a_file_is_no_directory() {
    let parent = tempfile::tempdir().unwrap();
    let data = parent.path().join("data");
    fs::write(&data, "a file").unwrap();
    let line = refused(&data, FREE_PORT, 5);
    assert!(line.contains("is not a directory"), "{line}");
    assert_eq!(fs::read(&data).unwrap(), b"a file");
}

#[test]
fn the_parent_of_the_directory_must_be_there() {
    let parent = tempfile::tempdir().unwrap();
    let line = refused(&parent.path().join("not/there"), FREE_PORT, 5);
    assert!(line.contains("its parent does not exist"), "{line}");
    assert!(!parent.path().join("not").exists());
}

#[test]
fn a_read_only_file_system_is_told() {
    let (_keep, data) = stopped_broker();
    let mounted = Mounted::read_only(&data);
    let line = refused_unchanged(mounted.path(), 5);
    assert!(line.contains("Read-only file system"), "{line}");
    let line = refused(&mounted.path().join("new"), FREE_PORT, 5);
    assert!(line.contains("cannot create the data directory") && line.contains("Read-only file system"), "{line}");
}

#[test]
fn a_directory_in_memory_is_served_with_a_warning() {
    let data = tempfile::tempdir_in("/dev/shm").unwrap();
    let broker = Broker::start(data.path(), &[]);
    let warning = broker.wait_for_line("WARN ");
    assert!(warning.contains("network or memory file system (tmpfs)"), "{warning}");
    assert!(broker.stop().success());
}

/// P7: damage below the line makes the start fail, and not a byte is changed, in no topic.
#[test]
fn corruption_is_refused_and_nothing_is_changed() {
    let (_keep, data) = stopped_broker();
    // What a start would clear away: it must not before everything has been judged (crash story 11).
    let leftover = data.join(layout::tmp(&layout::group_offset(&layout::topic("orders"), "billing")));
    fs::write(&leftover, "half of a repla").unwrap();
    let whole = contents(&data);

    let topic = layout::topic("orders");
    let segments = files(&data.join(layout::log(&topic)), ".log");
    assert!(segments.len() >= 3, "{segments:?}");
    let (first, last) = (&segments[0], &segments[segments.len() - 1]);
    type Damage<'a> = &'a dyn Fn(&Path);
    let damages: [(&str, &Path, Damage<'_>); 8] = [
        ("crc-mismatch", first, &|path| flip(path, 40)),
        ("crc-mismatch", last, &|path| flip(path, 40)),
        ("missing-segment", &segments[1], &|path| fs::remove_file(path).unwrap()),
        ("below-watermark", last, &|path| fs::write(path, "").unwrap()),
        ("watermark-unreadable", &data.join(layout::watermark(&topic)), &|path| {
            flip(path, 20);
            flip(path, 4096 + 20);
        }),
        ("group-unreadable", &data.join(layout::group_offset(&topic, "billing")), &|path| {
            fs::write(path, "5 0badcafe\n").unwrap();
        }),
        ("below-group", &data.join(layout::group_offset(&topic, "billing")), &|path| {
            fs::write(path, encode_offset(1_000_000)).unwrap();
        }),
        ("topic-unreadable", &data.join(layout::log_toml(&topic)), &|path| fs::write(path, "").unwrap()),
    ];
    for (reason, path, damage) in damages {
        damage(path);
        let line = refused_unchanged(&data, 3);
        assert!(line.starts_with("REFUSE_START topic=orders reason="), "{}: {line}", path.display());
        assert!(line.contains(reason), "{}: {line}, not {reason}", path.display());
        fs::write(path, &whole[path]).unwrap();
    }
    let broker = Broker::start(&data, &[]);
    assert_eq!(
        broker.wait_for_line("GROUP_TMP_REMOVED "),
        "GROUP_TMP_REMOVED file=topics/orders/groups/billing.offset.tmp"
    );
    assert!(broker.stop().success());
}

const FREE_PORT: &[&str] = &["--listen", "127.0.0.1:0"];

/// Starts a broker that must refuse, and answers the one line that says why.
#[track_caller]
fn refused(data: &Path, args: &[&str], code: i32) -> String {
    let output = run(["serve", "--data", data.to_str().unwrap()].iter().chain(args));
    let out = String::from_utf8(output.stdout).unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{out}{err}");
    let said: Vec<&str> = out.lines().filter(|line| !line.starts_with("RECOVERY ")).chain(err.lines()).collect();
    assert_eq!(said.len(), 1, "not one line: {said:?}");
    said[0].to_owned()
}

#[track_caller]
fn refused_unchanged(data: &Path, code: i32) -> String {
    let before = contents(data);
    let line = refused(data, FREE_PORT, code);
    assert!(contents(data) == before, "something was changed although: {line}");
    line
}

/// A data directory after a clean stop: two topics, several segments, a group.
fn stopped_broker() -> (tempfile::TempDir, PathBuf) {
    let parent = tempfile::tempdir().unwrap();
    let data = parent.path().join("data");
    let broker = Broker::start(&data, &["--segment-bytes", "1024"]);
    let mut connection = Connection::open(broker.address());
    assert_eq!(connection.ask("CREATE @orders"), "CREATED orders");
    for n in 0..60 {
        for topic in ["default", "orders"] {
            assert_eq!(connection.ask(&format!("PUB @{topic} DURABLE message number {n}")), format!("OK {n} DURABLE"));
        }
    }
    assert!(connection.ask("FETCH @orders billing 1 0").starts_with("MSG 0 "));
    assert_eq!(connection.line(), "END 1");
    assert_eq!(connection.ask("ACK @orders billing 0"), "ACKED 1");
    assert!(broker.stop().success());
    (parent, data)
}

/// Turns a bit of a file.
fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 1;
    fs::write(path, bytes).unwrap();
}
