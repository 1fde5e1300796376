//! SIGHUP: the configuration is read again, and what may change without a restart changes.

use plimsoll_tests::broker::{Broker, Connection, binary, serve};
use std::fs;
use std::path::Path;

fn start(data: &Path, file: &Path) -> Broker {
    let file = file.to_str().expect("a path of text");
    Broker::spawn(serve(binary(), data, &["--config", file, "--max-groups", "3"]))
}

/// The lines that a SIGHUP leads to, up to one that begins so.
fn reload(broker: &Broker, start: &str) -> Vec<String> {
    let before = broker.lines().len();
    broker.reload();
    broker.wait_for_line_after(before, start);
    broker.lines().split_off(before)
}

#[test]
fn what_may_change_changes_and_the_rest_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (data, file) = (dir.path().join("data"), dir.path().join("plimsoll.conf"));
    fs::write(&file, "max-topics = 2\nqueue-messages = 500\n").unwrap();
    let broker = start(&data, &file);
    let mut client = Connection::open(broker.address());
    assert_eq!(client.ask("CREATE @one"), "CREATED one");
    assert!(client.ask("CREATE @two").starts_with("ERR BAD_REQUEST there are 2 topics already"));
    assert_eq!(reload(&broker, "CONFIG_"), ["CONFIG_UNCHANGED"]);

    // The flag goes before the file, also now.
    fs::write(&file, "max-topics = 3\nqueue-messages = 500\nmax-groups = 99\nflush = \"interval=50ms\"\n").unwrap();
    assert_eq!(reload(&broker, "CONFIG_"), ["CONFIG_RELOADED changed=max-topics,flush-interval-ms"]);
    assert_eq!(client.ask("CREATE @two"), "CREATED two");
    assert_eq!(client.ask("SETTINGS @one"), "SETTING flush-interval-ms 50 broker");
    assert!(std::iter::repeat_with(|| client.line()).take(13).any(|line| line == "END 12"));

    fs::write(
        &file,
        "max-topics = 4\nqueue-messages = 500\nflush = \"interval=50ms\"\ndisk-threads = 9\npad-forces = 512\n",
    )
    .unwrap();
    assert_eq!(
        reload(&broker, "CONFIG_NEEDS_RESTART"),
        ["CONFIG_RELOADED changed=max-topics", "CONFIG_NEEDS_RESTART settings=pad-forces,disk-threads"]
    );
    assert_eq!(client.ask("CREATE @three"), "CREATED three");
    assert_eq!(client.ask("PUB DURABLE still there"), "OK 0 DURABLE");
    assert!(broker.stop().success());
}

#[test]
fn a_file_with_a_mistake_changes_nothing_and_is_told_in_a_line() {
    let dir = tempfile::tempdir().unwrap();
    let (data, file) = (dir.path().join("data"), dir.path().join("plimsoll.conf"));
    fs::write(&file, "max-topics = 2\n").unwrap();
    let broker = start(&data, &file);
    let told = |text: Option<&str>| {
        match text {
            Some(text) => fs::write(&file, text).unwrap(),
            None => fs::remove_file(&file).unwrap(),
        }
        let [line] = &reload(&broker, "CONFIG_")[..] else { panic!("one line") };
        line.strip_prefix("CONFIG_REFUSED reason=").unwrap_or_else(|| panic!("{line}")).to_owned()
    };
    let path = file.display();
    let found = told(Some("max-topics = 9\nmax_groups = 4\n"));
    assert_eq!(found, format!("{path}:2: there is no setting max_groups; it is called max-groups"));
    assert_eq!(
        told(Some("max-topics = 9\nsegment-bytes = 5\n")),
        format!("{path}:2: segment-bytes must be 512 to 1099511627776, not 5")
    );
    assert!(told(None).starts_with(&format!("the file of settings {path} can't be read")));
    let mut client = Connection::open(broker.address());
    assert_eq!(client.ask("CREATE @one"), "CREATED one");
    assert!(client.ask("CREATE @two").starts_with("ERR BAD_REQUEST there are 2 topics already"));
    assert!(broker.stop().success());
}
