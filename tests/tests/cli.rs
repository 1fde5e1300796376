//! The verbs as a person runs them, through crashes and beside each other.

use plimsoll_tests::broker::{Broker, Connection, PATIENCE, binary, run};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

#[test]
fn every_verb_explains_itself_with_examples() {
    let (code, help, _) = told(run(["--help"]));
    assert_eq!(code, 0);
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let verbs: Vec<&str> = commands
        // A description that goes on stands further in.
        .filter_map(|line| line.strip_prefix("  ").filter(|rest| !rest.starts_with(' ')))
        .filter_map(|line| line.split(' ').next())
        .collect();
    assert!(verbs.contains(&"serve") && verbs.contains(&"pub") && verbs.len() > 8, "{help}");
    for verb in verbs.into_iter().filter(|verb| *verb != "help") {
        let (code, help, error) = told(run([verb, "--help"]));
        assert_eq!((code, error.as_str()), (0, ""), "{verb}");
        assert!(help.contains("Examples:\n") && help.contains(&format!("  plimsoll {verb}")), "{verb}: {help}");
        // Paragraphs are wrapped once, to the width of the terminal (100 where there is none).
        let lines: Vec<&str> = help.lines().collect();
        for pair in lines.windows(2).filter(|pair| pair.iter().all(|line| !line.starts_with(' ') && !line.is_empty())) {
            let first_word = pair[1].split(' ').next().unwrap_or("");
            let fits = pair[0].chars().count() + 1 + first_word.chars().count() <= 100;
            assert!(!fits || pair[0].ends_with(':'), "{verb} is wrapped in the middle: {pair:?}");
        }
    }
    let (code, version, _) = told(run(["--version"]));
    assert_eq!((code, version.as_str()), (0, concat!("plimsoll ", env!("CARGO_PKG_VERSION"), "\n")));
}

#[test]
fn what_is_meant_for_programs_parses() {
    let data = tempfile::tempdir().unwrap();
    let broker = Broker::start(data.path(), &[]);
    let json = |args: &[&str]| -> serde_json::Value {
        let (code, out, error) = told(client(&broker, args));
        assert_eq!((code, error.as_str()), (0, ""), "{args:?}");
        serde_json::from_str(&out).unwrap_or_else(|e| panic!("{args:?}: {e}: {out}"))
    };
    assert_eq!(json(&["pub", "--json", "one", "two"])["last_offset"], 1);
    assert_eq!(json(&["consume", "--group", "g", "--count", "1", "--format", "json"])["value"], "one");
    assert_eq!(json(&["groups", "--json"])[0]["committed"], 1);
    assert_eq!(json(&["topics", "--json"]), serde_json::json!(["default"]));
    assert_eq!(json(&["status", "--json"])[0]["durable"], 2);
    assert!(broker.stop().success());
}

/// `--retry` sees a file through a crash of the broker. It says that duplicates are possible, and is right about how many.
#[test]
fn a_file_is_published_through_a_crash() {
    let data = tempfile::tempdir().unwrap();
    let (file, lines) = many_lines();
    let broker = Broker::start(data.path(), &[]);
    let address = broker.address().to_owned();
    let publishing = spawn(&broker, &["pub", "--file", file.path().to_str().unwrap(), "--retry", "--in-flight", "64"]);
    kill_after(broker, 2000);
    std::thread::sleep(Duration::from_millis(100));
    let broker = Broker::start(data.path(), &["--listen", &address]);
    let (code, out, error) = finish(publishing);
    assert_eq!(code, 0, "{error}");
    assert!(out.starts_with(&format!("{} messages DURABLE, offsets 0 to ", lines.len())), "{out}");
    let repeated: usize = match error.as_str() {
        "" => 0,
        _ => {
            assert!(error.contains("may be stored twice") && error.lines().count() == 1, "{error}");
            error.split_whitespace().find_map(|word| word.parse().ok()).expect("a number of messages")
        }
    };
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    let (_, all, _) = told(client(&broker, &["consume", "--offset", "0"]));
    for line in all.lines() {
        *times.entry(line.to_owned()).or_default() += 1;
    }
    assert_eq!(times.len(), lines.len(), "a line is missing, or one is there that nobody sent");
    let twice = times.values().filter(|times| **times > 1).count();
    assert!(
        twice <= repeated && times.values().all(|times| *times <= 2),
        "{twice} are there twice, {repeated} repeated"
    );
    assert!(broker.stop().success());
}

#[test]
fn without_retry_the_outcome_of_the_rest_is_unknown() {
    let data = tempfile::tempdir().unwrap();
    let (file, _) = many_lines();
    let broker = Broker::start(data.path(), &[]);
    let publishing = spawn(&broker, &["pub", "--file", file.path().to_str().unwrap(), "--in-flight", "64"]);
    kill_after(broker, 2000);
    let (code, out, error) = finish(publishing);
    assert_eq!(code, 7, "{out}{error}");
    let unknown = out.lines().find_map(|line| line.strip_prefix("UNKNOWN ")).expect("what is unknown is told");
    let unknown: u64 = unknown.split(':').next().unwrap().parse().unwrap();
    assert!((1..=64).contains(&unknown), "{out}");
    assert!(error.starts_with("plimsoll pub: outcome unknown: ") && error.lines().count() == 1, "{error}");
    let acknowledged: u64 = out.split(' ').next().unwrap().parse().unwrap();

    let broker = Broker::start(data.path(), &[]);
    let status = Connection::open(broker.address()).ask("STATUS");
    let stored: u64 = status.split(' ').find_map(|word| word.strip_prefix("durable=")).unwrap().parse().unwrap();
    assert!((acknowledged..=acknowledged + unknown).contains(&stored), "{stored} stored: {out}");
    assert!(broker.stop().success());
}

#[test]
fn a_follower_goes_on_after_a_crash() {
    let data = tempfile::tempdir().unwrap();
    let broker = Broker::start(data.path(), &[]);
    let address = broker.address().to_owned();
    let mut following = spawn(&broker, &["consume", "--group", "g", "--follow", "--count", "2"]);
    let mut printed = BufReader::new(following.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert_eq!(told(client(&broker, &["pub", "before"])).0, 0);
    assert_eq!(printed.next().as_deref(), Some("before"));
    // The message is acknowledged after it was printed; a crash in between would deliver it again.
    wait_until(|| Connection::open(broker.address()).ask("GROUPS").contains("committed=1"));
    broker.kill();
    drop(broker);
    let broker = Broker::start(data.path(), &["--listen", &address]);
    assert_eq!(told(client(&broker, &["pub", "after"])).0, 0);
    assert_eq!(printed.next().as_deref(), Some("after"));
    let (code, _, error) = finish(following);
    assert_eq!(code, 0, "{error}");
    assert!(error.contains("connecting again"), "{error}");
    assert!(broker.stop().success());
}

/// The second consumer of a group is told who is in its way; it need not wait once the first has gone.
#[test]
fn a_consumer_takes_over_from_one_that_was_ended() {
    let data = tempfile::tempdir().unwrap();
    let broker = Broker::start(data.path(), &[]);
    let first = spawn(&broker, &["consume", "--group", "g", "--follow"]);
    wait_until(|| Connection::open(broker.address()).ask("GROUPS").contains("held=yes"));
    let (code, out, error) = told(client(&broker, &["consume", "--group", "g"]));
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(error.starts_with("plimsoll consume: GROUP_BUSY ") && error.lines().count() == 1, "{error}");
    let mut first = first;
    first.kill().unwrap();
    first.wait().unwrap();
    assert_eq!(told(client(&broker, &["pub", "for the second"])).0, 0);
    let (code, out, error) = told(client(&broker, &["consume", "--group", "g"]));
    assert_eq!((code, out.as_str(), error.as_str()), (0, "for the second\n", ""));
    assert!(broker.stop().success());
}

/// A message that can't be taken is named, and what came before it is stored.
#[test]
fn a_line_that_is_too_long_is_named() {
    let data = tempfile::tempdir().unwrap();
    let broker = Broker::start(data.path(), &["--max-payload", "100"]);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("one\ntwo\n{}\nfour\n", "x".repeat(101))).unwrap();
    let (code, out, error) =
        told(client(&broker, &["pub", "--in-flight", "1", "--file", file.path().to_str().unwrap()]));
    assert_eq!(code, 1, "{out}{error}");
    assert!(out.starts_with("2 messages DURABLE, offsets 0 to 1, "), "{out}");
    assert!(error.starts_with("plimsoll pub: TOO_LARGE ") && error.contains("100"), "{error}");
}

fn many_lines() -> (tempfile::NamedTempFile, Vec<String>) {
    let lines: Vec<String> = (0..60_000).map(|n| format!("line {n}")).collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), lines.join("\n")).unwrap();
    (file, lines)
}

/// Kills it when so many messages are stored.
fn kill_after(broker: Broker, messages: u64) {
    let mut connection = Connection::open(broker.address());
    wait_until(|| {
        let status = connection.ask("STATUS");
        let stored = status.split(' ').find_map(|word| word.strip_prefix("durable=")).unwrap();
        stored.parse::<u64>().unwrap() >= messages
    });
    broker.kill();
}

fn client(broker: &Broker, args: &[&str]) -> Output {
    run(args.iter().chain(&["--address", broker.address()]))
}

fn spawn(broker: &Broker, args: &[&str]) -> Child {
    Command::new(binary())
        .args(args)
        .args(["--address", broker.address()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits for its end.
fn finish(mut child: Child) -> (i32, String, String) {
    let (mut out, mut error) = (String::new(), String::new());
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_string(&mut out).unwrap();
    }
    child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
    (child.wait().unwrap().code().unwrap(), out, error)
}

fn told(output: Output) -> (i32, String, String) {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn wait_until(mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "it never came true");
        std::thread::sleep(Duration::from_millis(2));
    }
}
