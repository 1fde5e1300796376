//! The client verbs as a person runs them, against the real broker: the binary of this very build.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const PLIMSOLL: &str = env!("CARGO_BIN_EXE_plimsoll");

/// A broker on a temporary directory, killed at the end.
struct Broker {
    child: Child,
    address: String,
    _dir: TempDir,
}

impl Broker {
    fn start(more: &[&str]) -> Broker {
        let dir = tempfile::tempdir().unwrap();
        let mut child = Command::new(PLIMSOLL)
            .args(["serve", "--listen", "127.0.0.1:0", "--data"])
            .arg(dir.path().join("data"))
            .args(more)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let ready = lines.by_ref().find(|line| line.starts_with("READY ")).expect("it starts");
        let address = ready.split("address=").nth(1).unwrap().split(' ').next().unwrap().to_owned();
        thread::spawn(move || lines.for_each(drop));
        Broker { child, address, _dir: dir }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(PLIMSOLL);
        command.args(args).env("PLIMSOLL_ADDRESS", &self.address);
        command
    }

    /// Runs a verb to its end: exit code, standard output, standard error.
    fn run(&self, args: &[&str]) -> (i32, String, String) {
        told(self.command(args).stdin(Stdio::null()).output().unwrap())
    }

    /// The same, with something on standard input.
    fn run_with(&self, input: &[u8], args: &[&str]) -> (i32, String, String) {
        let mut child =
            self.command(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_vec();
        let writer = thread::spawn(move || stdin.write_all(&input));
        let told = told(child.wait_with_output().unwrap());
        let _ = writer.join().unwrap();
        told
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn told(output: Output) -> (i32, String, String) {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().expect("not killed"), text(output.stdout), text(output.stderr))
}

#[test]
fn publish_consume_and_look_around() {
    let broker = Broker::start(&[]);
    let (code, out, _) = broker.run(&["pub", "one", "two"]);
    assert_eq!(code, 0);
    assert!(out.starts_with("2 messages DURABLE, offsets 0 to 1, in "), "{out}");
    let (code, out, _) = broker.run(&["pub", "--json", "--level", "written", "three"]);
    let object: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &object["level"], &object["messages"]), (0, &"WRITTEN".into(), &1.into()));
    let (code, out, _) = broker.run_with(b"four\n\nfive", &["pub"]);
    assert_eq!(code, 0);
    assert!(out.starts_with("2 messages DURABLE, offsets 3 to 4, in ") && out.ends_with("1 empty lines left out\n"));

    assert_eq!(broker.run(&["consume", "--group", "g", "--count", "2"]).1, "one\ntwo\n");
    assert_eq!(broker.run(&["consume", "--group", "g", "--ack-every", "1"]).1, "three\nfour\nfive\n");
    assert_eq!(broker.run(&["consume", "--group", "g"]), (0, String::new(), String::new()));
    assert_eq!(broker.run(&["seek", "g", "3"]).1, "group g is at 3\n");
    let (_, out, _) = broker.run(&["groups"]);
    assert_eq!(
        out.split_whitespace().collect::<Vec<_>>(),
        ["topic", "group", "committed", "lag", "held", "default", "g", "3", "2", "no"]
    );
    assert_eq!(broker.run(&["consume", "--group", "g", "--format", "raw"]).1, "fourfive");
    assert_eq!(broker.run(&["consume", "--offset", "1", "--count", "1"]).1, "two\n");

    assert_eq!(broker.run(&["create", "orders"]).1, "created orders\n");
    assert_eq!(broker.run(&["topics"]).1, "default\norders\n");
    let status: serde_json::Value = serde_json::from_str(&broker.run(&["status", "--json"]).1).unwrap();
    assert_eq!((&status[0]["durable"], &status[0]["next"]), (&5.into(), &5.into()));
    assert_eq!((&status[1]["topic"], &status[1]["next"]), (&"orders".into(), &0.into()));
    assert!(broker.run(&["status"]).1.starts_with("topic "));
}

#[test]
fn batches_are_published_counted_and_dumped() {
    let broker = Broker::start(&["--max-publish-batch", "40"]);
    let (code, out, error) = broker.run_with(b"one\ntwo\nthree\nfour\nfive", &["pub", "--batch", "2"]);
    assert_eq!(code, 0, "{error}");
    assert!(out.starts_with("5 messages DURABLE, offsets 0 to 4, in "), "{out}");
    // Three of these would be over the limit of bytes.
    assert_eq!(broker.run(&["pub", "--batch", "3", "0123456789", "0123456789", "0123456789"]).0, 0);
    assert_eq!(broker.run(&["consume", "--offset", "1", "--count", "3"]).1, "two\nthree\nfour\n");
    let segment = broker._dir.path().join("data/topics/default/log/00000000000000000000.log");
    let (code, out, _) = broker.run(&["dump", segment.to_str().unwrap()]);
    assert_eq!(code, 0);
    let counts: Vec<&str> = out
        .lines()
        .filter(|line| line.contains(" kind=batch "))
        .map(|line| line.split(' ').find_map(|word| word.strip_prefix("count=")).unwrap())
        .collect();
    assert_eq!(counts, ["2", "2", "1", "2", "1"]);
    assert!(out.contains("\nbatch=2 offset=3 valueBytes=4 value=four\n"), "{out}");
    // What a batch can't have, and what no batch can be.
    assert_eq!(broker.run(&["pub", "--batch", "2", "--key", "k", "x"]).0, 2);
    let (code, _, error) = broker.run(&["pub", "--batch", "2", &"x".repeat(50)]);
    assert!(code == 1 && error.contains("TOO_LARGE") && error.contains("--max-publish-batch"), "{error}");
}

/// P16: the same command run again publishes nothing new.
#[test]
fn a_producer_that_is_run_again_stores_nothing_twice() {
    let broker = Broker::start(&[]);
    for _ in 0..2 {
        let (code, out, _) = broker.run(&["pub", "--producer", "17", "--retry", "one", "two"]);
        assert_eq!(code, 0);
        assert!(out.starts_with("2 messages DURABLE, offsets 0 to 1, in "), "{out}");
    }
    let batch = ["pub", "--producer", "17", "--sequence", "2", "--batch", "2", "three", "four", "five"];
    for _ in 0..2 {
        assert!(broker.run(&batch).1.starts_with("3 messages DURABLE, offsets 2 to 4, in "));
    }
    let (_, out, _) = broker.run(&["consume", "--offset", "0", "--format", "json"]);
    let ids: Vec<serde_json::Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(ids.len(), 5);
    assert_eq!(broker.run(&["pub", "--sequence", "2", "x"]).0, 2);
}

#[test]
fn any_bytes_key_and_headers_come_back() {
    let broker = Broker::start(&[]);
    let bytes: Vec<u8> = (0..=255).chain([b'\r']).collect();
    assert_eq!(broker.run_with(&bytes, &["pub", "--whole", "--key", "a b%", "--header", "h=ü"]).0, 0);
    let output = broker.command(&["consume", "--offset", "0", "--format", "raw"]).output().unwrap();
    assert_eq!(output.stdout, bytes);
    let (_, out, _) = broker.run(&["consume", "--offset", "0", "--format", "json"]);
    let object: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&object["key"], &object["offset"]), (&"a b%".into(), &0.into()));
    assert_eq!(object["headers"], serde_json::json!([{ "name": "h", "value": "ü" }]));
    assert!(object["time_ms"].as_i64().unwrap() > 1_500_000_000_000);
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(object["value_hex"], hex);
}

#[test]
fn exit_codes_tell_what_happened() {
    let broker = Broker::start(&[]);
    let (code, out, error) = broker.run(&["pub", "@nowhere", "x"]);
    assert_eq!((code, out.as_str()), (1, "0 messages\n"));
    assert!(error.starts_with("plimsoll pub: NO_TOPIC ") && error.lines().count() == 1, "{error}");
    assert_eq!(broker.run(&["seek", "g", "999"]).0, 1);
    assert_eq!(broker.run(&["seek", "g", "yesterday"]).0, 2);
    assert_eq!(broker.run(&["status", "--topic", "a b"]).0, 2);
    assert_eq!(broker.run(&["pub", "--file", "/nonexistent"]).0, 2);

    // Nobody there.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let (code, _, error) = broker.run(&["status", "--address", &free]);
    assert_eq!((code, error.lines().count()), (6, 1), "{error}");

    // Somebody who takes the message and hangs up.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let deaf = thread::spawn(move || drop(listener.accept().unwrap().0.read(&mut [0; 4])));
    let (code, out, _) = broker.run(&["pub", "x", "--address", &address]);
    assert_eq!(code, 7);
    assert!(out.contains("UNKNOWN 1"), "{out}");
    deaf.join().unwrap();
}

#[test]
fn a_closed_pipe_ends_a_consumer_quietly() {
    let broker = Broker::start(&[]);
    let lines: String = (0..50_000).map(|n| format!("{n}\n")).collect();
    assert_eq!(broker.run_with(lines.as_bytes(), &["pub", "--level", "written"]).0, 0);
    assert_eq!(broker.run(&["pub", "last"]).0, 0);
    let mut child =
        broker.command(&["consume", "--group", "g"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert_eq!(first, "0\n");
    let (code, _, error) = told(child.wait_with_output().unwrap());
    assert_eq!((code, error.as_str()), (0, ""));
}

#[test]
fn a_follower_goes_on_through_a_restart_of_its_connection() {
    let broker = Broker::start(&[]);
    assert_eq!(broker.run(&["pub", "one"]).0, 0);
    let mut child = broker
        .command(&["consume", "--group", "g", "--follow", "--count", "2"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert_eq!(lines.next().as_deref(), Some("one"));
    assert_eq!(broker.run(&["pub", "two"]).0, 0);
    assert_eq!(lines.next().as_deref(), Some("two"));
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_bench_verifies_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let parent = dir.path().to_str().unwrap();
    let run = |more: &[&str]| {
        let args = ["bench", "--json", "--rounds", "1", "--messages", "40", "--data", parent];
        told(Command::new(PLIMSOLL).args(args).args(more).output().unwrap())
    };
    let (code, out, error) = run(&["--producers", "1,3", "--in-flight", "2", "--size", "20", "--level", "written"]);
    assert_eq!(code, 0, "{error}");
    let cases: Vec<serde_json::Value> = serde_json::from_str(&out).unwrap();
    assert_eq!(cases.len(), 2);
    for (case, producers) in cases.iter().zip([1, 3]) {
        assert_eq!(
            (
                &case["level"],
                &case["producers"],
                &case["in_flight"],
                &case["size"],
                &case["messages"],
                &case["verified"]
            ),
            (&"WRITTEN".into(), &producers.into(), &2.into(), &20.into(), &40.into(), &true.into())
        );
        for name in ["messages_per_second", "p50_us", "p99_us", "p999_us", "raw_append_per_second"] {
            assert!(case[name].as_f64().unwrap() > 0.0, "{name} in {case}");
        }
        for name in ["raw_zeroed_per_second", "ratio_to_raw_append", "broker_resident_bytes"] {
            assert!(case[name].as_f64().unwrap() > 0.0, "{name} in {case}");
        }
        assert!(case["forces"].is_u64() && case["forces_per_message"].is_number(), "{case}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "the directory was left behind");

    let (code, out, error) = run(&["--queue", "--consumers", "3", "--in-flight", "2,1"]);
    assert_eq!(code, 0, "{error}");
    let cases: Vec<serde_json::Value> = serde_json::from_str(&out).unwrap();
    let seen: Vec<_> = cases.iter().map(|case| (&case["consumers"], &case["in_flight"], &case["messages"])).collect();
    assert_eq!(seen, [(&3.into(), &2.into(), &40.into()), (&3.into(), &1.into(), &40.into())]);
    for name in ["messages_per_second", "p50_us", "p99_us", "p999_us", "forces_per_confirm"] {
        assert!(cases.iter().all(|case| case[name].as_f64().unwrap() > 0.0), "{name} in {out}");
    }
    for (what, counted) in [("--retention", "removed"), ("--packing", "packed")] {
        let (code, out, error) = run(&[what]);
        assert_eq!(code, 0, "{error}");
        let object: serde_json::Value = serde_json::from_str(&out).unwrap();
        let cases = object["cases"].as_array().unwrap();
        assert!(cases.len() == 2 && object["p999_ratio"].as_f64().unwrap() > 0.0, "{out}");
        assert!(cases.iter().all(|case| case["messages"] == 40 && case[counted].is_u64()), "{out}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "the directory was left behind");

    // Interrupted, it cleans up just the same.
    let mut child = Command::new(PLIMSOLL)
        .args(["bench", "--seconds", "60", "--level", "durable", "--data", parent])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while std::fs::read_dir(dir.path()).unwrap().count() == 0 {
        thread::yield_now();
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "the directory was left behind");
}

#[test]
fn completions_and_manual_pages_are_made() {
    for args in [&["completions", "bash"][..], &["manual"], &["manual", "serve"]] {
        let (code, out, _) = told(Command::new(PLIMSOLL).args(args).output().unwrap());
        assert_eq!(code, 0);
        assert!(out.contains("plimsoll"));
    }
    assert_eq!(told(Command::new(PLIMSOLL).args(["manual", "fly"]).output().unwrap()).0, 2);
}

/// The file, the environment and the flags reach the broker that is served.
#[test]
fn serve_takes_its_settings_from_a_file_the_environment_and_flags() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("plimsoll.conf");
    std::fs::write(&file, "listen = [\"127.0.0.1:0\"]\nmax-payload = 9\nmax-topics = 1\nlog = \"json\"\n").unwrap();
    let mut child = Command::new(PLIMSOLL)
        .args(["serve", "--log", "text", "--config"])
        .arg(&file)
        .env("PLIMSOLL_DATA", dir.path().join("data"))
        .env("PLIMSOLL_MAX_TOPICS", "2")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let ready = lines.by_ref().map(Result::unwrap).find(|line| line.starts_with("READY")).unwrap();
    let address = ready.split_once("address=").unwrap().1;
    let ask = |args: &[&str]| told(Command::new(PLIMSOLL).args(args).args(["--address", address]).output().unwrap());
    let (code, _, why) = ask(&["pub", "ten bytes!"]);
    assert_eq!((code, why.contains("TOO_LARGE")), (1, true), "{why}");
    assert_eq!(ask(&["create", "second"]).0, 0, "the environment goes before the file");
    assert_eq!(ask(&["create", "third"]).0, 1);
    child.kill().unwrap();
    child.wait().unwrap();
    let wrong =
        told(Command::new(PLIMSOLL).args(["config", "check"]).env("PLIMSOLL_BALLAST_BYTES", "x").output().unwrap());
    assert!(
        wrong.0 == 2 && wrong.2.starts_with("plimsoll config check: PLIMSOLL_BALLAST_BYTES: ballast-bytes: "),
        "{wrong:?}"
    );
    assert_eq!(wrong.2.lines().count(), 1);
}

#[test]
fn topics_are_made_and_told_how_they_are_kept() {
    let broker = Broker::start(&["--flush", "messages=7"]);
    let run = |args: &[&str]| broker.run(&[&["topic"], args].concat());
    assert_eq!(run(&["create", "orders", "--retain-age", "7d", "--capacity", "2GiB"]).1, "created orders\n");
    assert_eq!(run(&["list"]).1, "default\norders\n");
    assert_eq!(run(&["alter", "orders", "--flush", "interval=50ms", "--on-full", "drop-oldest"]).1, "altered orders\n");
    let shown = |topic: &str| -> Vec<Vec<String>> {
        let (code, out, _) = run(&["show", topic]);
        assert_eq!(code, 0);
        out.lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
    };
    let orders = shown("orders");
    for row in [["flush", "interval=50ms", "topic"], ["retain-age", "7days", "topic"], ["capacity", "2GiB", "topic"]] {
        assert!(orders.iter().any(|found| *found == row), "{row:?}: {orders:?}");
    }
    assert!(orders.iter().any(|row| *row == ["retain-bytes", "off", "default"]));
    assert!(shown("default").iter().any(|row| *row == ["flush", "messages=7", "broker"]));
    assert_eq!(run(&["alter", "orders", "--retain-age", "default"]).0, 0);
    let object: serde_json::Value = serde_json::from_str(&run(&["show", "orders", "--json"]).1).unwrap();
    assert_eq!(object["topic"], "orders");
    assert_eq!(object["settings"]["retain-ms"], serde_json::json!({ "value": 0, "origin": "default" }));
    assert_eq!(object["settings"]["on-full"], serde_json::json!({ "value": "drop-oldest", "origin": "topic" }));

    for (args, code, told) in [
        (&["alter", "orders"][..], 2, "say what is to be changed: --flush, --retain-age"),
        (&["alter", "orders", "--retain-age", "7"], 2, "--retain-age <TIME|off>"),
        (&["alter", "nowhere", "--capacity", "1GiB"], 1, "NO_TOPIC"),
        (&["create", "../x"], 1, "BAD_NAME"),
        (&["delete", "orders"], 2, "topic orders would go with all its messages and groups; say so with --yes"),
        (&["delete", "orders", "--group", "g"], 2, "say so with --yes"),
        (&["purge", "orders", "yesterday"], 2, "write an offset, or end"),
    ] {
        let (found, out, error) = run(args);
        assert_eq!((found, &out[..]), (code, ""), "{args:?}: {error}");
        assert!(error.contains(told), "{args:?}: {error}");
    }
}

#[test]
fn messages_are_found_by_key_in_a_range() {
    let broker = Broker::start(&["--segment-bytes", "4KiB"]);
    for n in 0..60 {
        let key = format!("k{}", n % 5);
        assert_eq!(broker.run(&["pub", "--key", &key, &"v".repeat(200)]).0, 0);
    }
    let offsets = |args: &[&str]| -> Vec<u64> {
        let (code, out, error) = broker.run(&[&["find"], args].concat());
        assert_eq!(code, 0, "{error}");
        out.lines().map(|line| line.split(' ').next().unwrap().parse().unwrap()).collect()
    };
    assert_eq!(offsets(&["--key", "k3"]), (0..60).filter(|n| n % 5 == 3).collect::<Vec<u64>>());
    assert_eq!(offsets(&["--key", "k3", "--from", "20", "--to", "29"]), [23, 28]);
    assert_eq!(offsets(&["--key", "k3", "--first"]), [3]);
    assert_eq!(offsets(&["--key", "k0", "--from", "time=0", "--to", "time=2100-01-01T00:00:00Z"]).len(), 12);
    let (_, out, _) = broker.run(&["find", "--key", "k3", "--first", "--json"]);
    let object: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&object["offset"], &object["key"], &object["bytes"]), (&3.into(), &"k3".into(), &200.into()));
    let time_ms = object["time_ms"].as_i64().unwrap();
    assert_eq!(offsets(&["--key", "k3", "--from", &format!("time={time_ms}"), "--to", "4"]), [3]);

    for (args, code, told) in [
        (&["find", "--key", "nobody"][..], 8, "nothing was found in topic default from offset 0 to 60"),
        (&["find", "--id", "7:1"], 8, "nothing was found"),
        (&["find", "--key", "k3", "--from", "4", "--to", "4"], 8, "from offset 4 to 4"),
        (&["find", "--key", "k3", "--topic", "nowhere"], 1, "NO_TOPIC"),
        (&["find", "--id", "7"], 2, "write two numbers, like 7:1200"),
        (&["find"], 2, "--id"),
        (&["find", "--key", "k3", "--from", "yesterday"], 2, "write an offset, start, end"),
    ] {
        let (found, out, error) = broker.run(args);
        assert_eq!((found, &out[..]), (code, ""), "{args:?}: {error}");
        assert!(error.contains(told), "{args:?}: {error}");
    }
}

#[test]
fn a_command_works_on_each_message_of_a_queue() {
    let broker = Broker::start(&[]);
    assert_eq!(broker.run(&["topic", "create", "orders", "--max-deliveries", "2"]).0, 0);
    for (key, value) in [("a", "one"), ("b", "two"), ("c", "three")] {
        assert_eq!(broker.run(&["pub", "@orders", value, "--key", key, "--header", "x.y=z"]).0, 0);
    }
    let exec = "read -r line; echo \"$PLIMSOLL_TOPIC/$PLIMSOLL_GROUP $PLIMSOLL_OFFSET $PLIMSOLL_KEY $PLIMSOLL_HEADER_x_y \
                $PLIMSOLL_DELIVERIES $line\"; [ $PLIMSOLL_OFFSET != 1 ]";
    let work = ["queue", "work", "q", "--topic", "orders", "--exec", exec, "--delay", "500ms", "--wait", "1s"];
    let (code, out, error) = broker.run(&work);
    assert_eq!(code, 0, "{error}");
    assert_eq!(
        out,
        "orders/q 0 a z 1 one\norders/q 1 b z 1 two\norders/q 2 c z 1 three\norders/q 1 b z 2 two\n\
         2 confirmed, 2 given back\n"
    );
    assert!(error.contains("offset 1, delivery 2: exit status: 1"), "{error}");

    let (_, out, _) = broker.run(&["queue", "list", "--topic", "orders"]);
    assert!(
        out.starts_with(
            "topic   queue  confirmed  next  ready  reserved  delayed  dying  waiting  journal\norders  q              3     3 "
        ),
        "{out}"
    );
    let (code, out, _) = broker.run(&["queue", "redrive", "--topic", "orders", "--dry-run"]);
    let letter = "dead=0 group=q offset=1 deliveries=2 reason=aborted key=b value=\"two\"\n";
    assert_eq!((code, out), (0, format!("{letter}1 dead letter would come back to orders\n")));
    // What was not asked for stays where it is.
    for filter in [["--group", "other"], ["--key", "a"]] {
        let (code, out, _) = broker.run(&[&["queue", "redrive", "--topic", "orders"][..], &filter].concat());
        assert_eq!((code, out.as_str()), (0, "0 dead letters came back to orders, 1 passed over\n"));
    }
    let (code, out, error) = broker.run(&["queue", "redrive", "--topic", "orders", "--key", "b", "--json"]);
    assert_eq!(code, 0, "{error}");
    let object: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&object["offset"], &object["reason"], &object["back_at"]), (&1.into(), &"aborted".into(), &3.into()));
    for again in [&["--dry-run"][..], &[]] {
        let (code, out, _) = broker.run(&[&["queue", "redrive", "--topic", "orders"][..], again].concat());
        assert!(code == 0 && out.starts_with("0 dead letters "), "{out}");
    }
    let (code, out, _) =
        broker.run(&["queue", "work", "q", "--topic", "orders", "--exec", "cat", "--wait", "0s", "--json"]);
    let object: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(code, 0);
    assert_eq!(
        (&object["offset"], &object["deliveries"], &object["outcome"]),
        (&3.into(), &1.into(), &"confirmed".into())
    );
}

/// What was not asked for is more than one connection may hold, and what the topic can't take is named: neither keeps the others away.
#[test]
fn dead_letters_come_back_from_behind_others() {
    let broker = Broker::start(&["--max-deliveries", "1", "--max-reserved", "4"]);
    // The bytes of a header may stand for themselves, and come back with three for each.
    let long = format!("PUBN DURABLE 1 h.long={}\nx\n", "\u{e9}".repeat(25_000));
    let mut stream = std::net::TcpStream::connect(&broker.address).unwrap();
    stream.write_all(long.as_bytes()).unwrap();
    let mut reply = String::new();
    BufReader::new(&stream).read_line(&mut reply).unwrap();
    assert_eq!(reply, "OK 0 DURABLE\n");
    for (key, value) in [("a", "1"), ("a", "2"), ("a", "3"), ("a", "4"), ("a", "5"), ("b", "6")] {
        assert_eq!(broker.run(&["pub", value, "--key", key]).0, 0);
    }
    let (code, out, _) = broker.run(&["queue", "work", "q", "--exec", "false", "--wait", "1s"]);
    assert_eq!((code, out.as_str()), (0, "0 confirmed, 7 given back\n"));

    let (code, out, error) = broker.run(&["queue", "redrive", "--key", "b"]);
    assert_eq!((code, out.as_str()), (0, "1 dead letter came back to default, 6 passed over\n"), "{error}");
    let (code, out, error) = broker.run(&["queue", "redrive"]);
    assert_eq!((code, out.as_str()), (1, "5 dead letters came back to default, 1 refused\n"), "{error}");
    assert!(error.starts_with("plimsoll queue redrive: dead letter 0 stays where it is: LINE_TOO_LONG "), "{error}");
}

/// A consumer that hangs is left alone as long as it says so, and a person can take the message away from it.
#[test]
fn a_lease_is_extended_shown_and_stolen() {
    let broker = Broker::start(&[]);
    assert_eq!(broker.run(&["pub", "slow"]).0, 0);
    let mut worker = broker
        .command(&["queue", "work", "q", "--exec", "echo begun; exec sleep 60", "--lease", "1s", "--count", "1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(worker.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert_eq!(lines.next().as_deref(), Some("begun"));
    thread::sleep(Duration::from_millis(1500));
    let (code, out, _) = broker.run(&["queue", "pending", "q", "--json"]);
    let pending: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &pending[0]["state"], &pending[0]["deliveries"]), (0, &"reserved".into(), &1.into()), "{out}");
    assert!(pending[0]["left_ms"].as_u64().unwrap() > 400, "{out}");
    // Whose it is, for somebody who looks for the process.
    assert!(pending[0]["peer"].as_str().is_some_and(|peer| peer.starts_with("127.0.0.1:")), "{out}");
    let (code, out, _) = broker.run(&["queue", "steal", "q", "0"]);
    assert_eq!((code, out.as_str()), (0, "0 can be reserved by others\n"));
    assert_eq!(lines.next().as_deref(), Some("0 confirmed, 0 given back, 1 lost to others while the command ran"));
    assert!(worker.wait().unwrap().success());
    let (_, out, _) = broker.run(&["queue", "pending", "q"]);
    assert_eq!(
        out,
        "offset  deliveries  state  connection  peer  time\n     0           1  ready           -     -     -\n"
    );
    let (code, _, error) = broker.run(&["queue", "steal", "q", "0"]);
    assert!(code == 1 && error.starts_with("plimsoll queue steal: NOT_RESERVED "), "{error}");
    let (code, _, error) = broker.run(&["queue", "pending", "r"]);
    assert!(code == 1 && error.starts_with("plimsoll queue pending: NO_GROUP "), "{error}");
}

/// One that nobody has is no reason to leave the others where they are.
#[test]
fn every_lease_that_is_named_is_stolen() {
    let broker = Broker::start(&[]);
    assert_eq!(broker.run(&["pub", "one", "two", "three"]).0, 0);
    let mut consumer = std::net::TcpStream::connect(&broker.address).unwrap();
    consumer.write_all(b"RESERVE q 3 0 60000\nCONFIRM q 1\n").unwrap();
    let replies = BufReader::new(&consumer).lines().map(Result::unwrap);
    assert_eq!(replies.take(5).last().unwrap(), "CONFIRMED 1");

    let (code, out, error) = broker.run(&["queue", "steal", "q", "7", "0", "1", "2"]);
    assert_eq!((code, out.as_str()), (1, "0 can be reserved by others\n2 can be reserved by others\n"), "{error}");
    let refused: Vec<&str> = error.lines().collect();
    assert_eq!(refused.len(), 2, "{error}");
    for (line, offset) in refused.iter().zip([7, 1]) {
        let told = format!("plimsoll queue steal: NOT_RESERVED offset {offset} ");
        assert!(line.starts_with(&told), "{error}");
    }
    let (_, out, _) = broker.run(&["queue", "list", "--json"]);
    let queues: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&queues[0]["ready"], &queues[0]["reserved"]), (&2.into(), &0.into()), "{out}");
}

/// Groups and work queues are told the same way: those of one topic, or of all.
#[test]
fn groups_and_queues_of_all_topics_are_listed() {
    let broker = Broker::start(&[]);
    for topic in ["default", "mails", "orders"] {
        if topic != "default" {
            assert_eq!(broker.run(&["create", topic]).0, 0);
        }
        let topic = ["--topic", topic];
        assert_eq!(broker.run(&[&["pub", "x"][..], &topic].concat()).0, 0);
        assert_eq!(broker.run(&[&["consume", "--group", "g"][..], &topic].concat()).0, 0);
        assert_eq!(broker.run(&[&["queue", "work", "q", "--exec", "true", "--wait", "0s"][..], &topic].concat()).0, 0);
    }
    for (verb, name) in [(&["groups"][..], "g"), (&["queue", "list"], "q")] {
        for (which, topics) in [
            (&[][..], &["default"][..]),
            (&["--topic", "mails"], &["mails"]),
            (&["--all"], &["default", "mails", "orders"]),
        ] {
            let (code, out, error) = broker.run(&[verb, which].concat());
            assert_eq!(code, 0, "{error}");
            let found: Vec<Vec<&str>> =
                out.lines().skip(1).map(|line| line.split_whitespace().take(2).collect()).collect();
            let wanted: Vec<Vec<&str>> = topics.iter().map(|topic| vec![*topic, name]).collect();
            assert_eq!(found, wanted, "{verb:?} {which:?}");
            let (_, out, _) = broker.run(&[verb, which, &["--json"]].concat());
            let objects: Vec<serde_json::Value> = serde_json::from_str(&out).unwrap();
            let found: Vec<&str> = objects.iter().map(|object| object["topic"].as_str().unwrap()).collect();
            assert_eq!(found, topics, "{verb:?} {which:?}");
        }
        let (code, _, error) = broker.run(&[verb, &["--all", "--topic", "mails"]].concat());
        assert!(code == 2 && error.contains("--topic"), "{error}");
    }
}

/// What was packed is told where there is any.
#[test]
fn status_tells_what_was_packed() {
    let broker = Broker::start(&["--segment-bytes", "4KiB", "--retain-consumed", "yes"]);
    assert_eq!(broker.run(&["create", "quiet"]).0, 0);
    let columns = || -> Vec<Vec<String>> {
        let (code, out, error) = broker.run(&["status"]);
        assert_eq!(code, 0, "{error}");
        out.lines()
            .map(|line| line.split("  ").map(|cell| cell.trim().to_owned()).filter(|cell| !cell.is_empty()).collect())
            .collect()
    };
    assert_eq!(columns()[0].last().unwrap(), "force mean µs");

    let value = "v".repeat(1000);
    for _ in 0..5 {
        assert_eq!(broker.run(&["pub", &value, &value]).0, 0);
    }
    // The first message keeps its segment and those behind it.
    let exec = "[ $PLIMSOLL_OFFSET != 0 ]";
    assert_eq!(broker.run(&["queue", "work", "q", "--exec", exec, "--delay", "5m", "--wait", "0s"]).0, 0);
    let until = Instant::now() + Duration::from_secs(60);
    let packed = || -> serde_json::Value { serde_json::from_str(&broker.run(&["status", "--json"]).1).unwrap() };
    let status = loop {
        let status = packed();
        if status[0]["packed"].as_u64().unwrap() == 3 {
            break status;
        }
        assert!(Instant::now() < until, "{status}");
        thread::sleep(Duration::from_millis(100));
    };
    let rows = columns();
    let told: Vec<Vec<&str>> =
        rows.iter().map(|row| row[row.len() - 3..].iter().map(String::as_str).collect()).collect();
    let bytes = status[0]["packed_bytes"].to_string();
    assert_eq!(told, [["packed", "packed bytes", "pack failures"], ["3", &bytes, "0"], ["0", "0", "0"]]);
    assert!(rows.iter().all(|row| row.len() == rows[0].len()), "{rows:?}");
}

/// Whoever has not begun has no counts to tell: not that nothing was confirmed, where nobody was asked.
#[test]
fn a_queue_command_that_fails_at_once_tells_only_why() {
    let broker = Broker::start(&[]);
    for verb in [
        &["work", "q", "--exec", "true", "--jobs", "2"][..],
        &["list"],
        &["pending", "q"],
        &["steal", "q", "0"],
        &["redrive"],
        &["redrive", "--dry-run"],
    ] {
        for (more, code, told) in [
            (["--address", "127.0.0.1:1"], 6, "cannot connect to 127.0.0.1:1"),
            (["--topic", "nowhere"], 1, "NO_TOPIC"),
        ] {
            let (found, out, error) = broker.run(&[&["queue"], verb, &more].concat());
            assert_eq!((found, out.as_str(), error.lines().count()), (code, "", 1), "{verb:?}: {error}");
            assert!(error.contains(told), "{verb:?}: {error}");
        }
    }
}

/// At the first signal what runs is finished; at the second it is ended and its message given back.
#[test]
fn a_worker_finishes_what_it_has_begun() {
    let broker = Broker::start(&[]);
    assert_eq!(broker.run(&["pub", "one", "two"]).0, 0);
    for (signals, command, summary) in [
        (1, "echo begun; sleep 1", "1 confirmed, 0 given back"),
        (2, "echo begun; exec sleep 60", "0 confirmed, 1 given back"),
    ] {
        let mut worker =
            broker.command(&["queue", "work", "q", "--exec", command]).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(worker.stdout.take().unwrap()).lines().map_while(Result::ok);
        assert_eq!(lines.next().as_deref(), Some("begun"));
        for _ in 0..signals {
            let pid = rustix::process::Pid::from_child(&worker);
            rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
            thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(lines.next().as_deref(), Some(summary));
        assert!(worker.wait().unwrap().success());
    }
    let (code, _, error) = broker.run(&["queue", "work", "q", "--exec", "true", "--lease", "10ms"]);
    assert!(code == 2 && error.contains("must be at least 1s"), "{error}");
}

/// While there is no room to record that a message is done the worker keeps it, and has done it once when there is. A broker that is told
/// what to answer: full disks are in `tests/evidence`.
#[test]
fn what_is_done_is_confirmed_when_there_is_room() {
    let lease = Duration::from_secs(1);
    let work = |address: &str| {
        let mut command = Command::new(PLIMSOLL);
        command.args(["queue", "work", "q", "--exec", "echo begun", "--lease", "1s", "--count", "1"]);
        command.args(["--address", address]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };

    let (address, confirms) = without_room(lease, lease * 3);
    let worker = work(&address);
    let (code, out, error) = told(worker.wait_with_output().unwrap());
    assert_eq!((code, out.as_str()), (0, "begun\n1 confirmed, 0 given back\n"), "{error}");
    assert_eq!(error, "plimsoll queue work: DISK_FULL no room; trying again\n");
    // It waits in between.
    assert!((4..=16).contains(&confirms.join().unwrap()));

    // At the first signal what is done is confirmed, if it can be; the second one ends it.
    let (address, confirms) = without_room(lease, Duration::MAX);
    let mut worker = work(&address);
    let mut lines = BufReader::new(worker.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert_eq!(lines.next().as_deref(), Some("begun"));
    let signal = || {
        thread::sleep(lease * 3 / 2);
        rustix::process::kill_process(rustix::process::Pid::from_child(&worker), rustix::process::Signal::TERM)
    };
    signal().unwrap();
    signal().unwrap();
    assert_eq!(lines.next().as_deref(), Some("0 confirmed, 0 given back, 1 lost to others while the command ran"));
    assert!(worker.wait().unwrap().success());
    assert!((4..=16).contains(&confirms.join().unwrap()));
}

/// Hands out one message, and has no room for its confirmation until so long after the first attempt; says how often it was asked for it.
/// Whoever lets the lease run out loses the message.
fn without_room(lease: Duration, full_for: Duration) -> (String, thread::JoinHandle<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serve = move || {
        let stream = listener.accept().unwrap().0;
        let (mut until, mut first, mut confirms) = (Instant::now(), None, 0);
        for line in BufReader::new(&stream).lines().map_while(Result::ok) {
            let now = Instant::now();
            let verb = line.split(' ').next().unwrap();
            let reply = match verb {
                "RESERVE" => "MSGX 0 3 time=1 deliveries=1\njob\nEND 1\n",
                _ if now > until => "ERR NOT_RESERVED its lease has run out\n",
                "EXTEND" => "EXTENDED 0\n",
                _ => {
                    confirms += 1;
                    match first.get_or_insert_with(Instant::now).elapsed() < full_for {
                        true => "ERR DISK_FULL no room\n",
                        false => "CONFIRMED 1\n",
                    }
                }
            };
            if verb != "CONFIRM" {
                until = now + lease;
            }
            (&stream).write_all(reply.as_bytes()).unwrap();
        }
        confirms
    };
    (address, thread::spawn(serve))
}
