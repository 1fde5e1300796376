//! The program as people run it: every verb, its exit codes, and what it leaves behind.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn sim(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll-sim"));
    command.current_dir(dir).stdin(Stdio::null());
    command
}

fn run(dir: &Path, line: &str) -> Output {
    sim(dir).args(line.split_whitespace()).output().expect("the program runs")
}

fn says(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Runs it, holds the exit code, and gives what was said.
fn expect(dir: &Path, line: &str, code: i32) -> String {
    let output = run(dir, line);
    let said = says(&output);
    assert_eq!(output.status.code(), Some(code), "{line}\n{said}");
    assert!(!said.contains("backtrace"), "{line}\n{said}");
    said
}

fn dir() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

#[test]
fn clean_seeds_end_with_0_and_the_same_hash_from_one_thread_or_two() {
    let dir = dir();
    let hash_of = |said: &str| {
        let (_, hash) = said.split_once("finalHash=").expect("a hash");
        hash.split_whitespace().next().expect("a hash").to_owned()
    };
    let one = expect(dir.path(), "run --seed 7 --count 6 --threads 1", 0);
    let two = expect(dir.path(), "run --seed 7 --count 6 --threads 2 --twice", 0);
    assert!(one.starts_with("seeds=6 violations=0"), "{one}");
    assert_eq!(hash_of(&one), hash_of(&two));
    let json = expect(dir.path(), "run --seed 7 --count 6 --json", 0);
    assert!(json.starts_with('{') && json.contains(&hash_of(&one)), "{json}");
}

/// From the failure to the page, as somebody who found one would go.
#[test]
fn a_failure_becomes_a_tape_a_smaller_tape_and_a_page() {
    let dir = dir();
    let said = expect(dir.path(), "run --count 40 --mutant drop-force-of-segment --max-failures 1", 10);
    let tape =
        said.split_once("shrink --tape ").expect("a command").1.lines().next().expect("a file").trim().to_owned();
    let again = said.split_once("reproduce: plimsoll-sim ").expect("a command").1.lines().next().expect("a line");
    expect(dir.path(), &format!("{again} --tapes ."), 10);
    expect(dir.path(), &format!("replay --tape {tape}"), 10);
    expect(dir.path(), &format!("shrink --tape {tape} --out small.tape"), 10);
    let lines = |name: &str| fs::read_to_string(dir.path().join(name)).expect("a tape").lines().count();
    assert!(lines("small.tape") < lines(&tape));
    expect(dir.path(), "replay --tape small.tape", 10);
    expect(dir.path(), "report --tape small.tape --html page.html", 10);
    let page = fs::read_to_string(dir.path().join("page.html")).expect("a page");
    assert!(page.contains("</html>"));
    for outside in ["src=\"http", "href=\"http", "@import", "url(http"] {
        assert!(!page.contains(outside), "the page is not self-contained: {outside}");
    }
    expect(dir.path(), "report --seed 3 --html clean.html", 0);
}

#[test]
fn an_overnight_run_goes_on_from_its_file() {
    let dir = dir();
    let seeds = dir.path().join("overnight.txt");
    fs::write(&seeds, "17000\n").expect("written");
    let mut child = sim(dir.path())
        .args(["run", "--continue", "overnight.txt"])
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("the program runs");
    let mut line = String::new();
    BufReader::new(child.stderr.take().expect("piped")).read_line(&mut line).expect("a line a chapter");
    child.kill().expect("killed");
    child.wait().expect("gone");
    let next: u64 = fs::read_to_string(&seeds).expect("the file").trim().parse().expect("a seed");
    assert!(next > 17000 && line.contains(&format!("up to {}", next - 1)), "{next}: {line}");
    assert!(line.contains("0 failures"), "{line}");
}

#[test]
fn what_it_can_do_is_listed() {
    let dir = dir();
    for (line, word) in [
        ("enumerate --list", "first-start"),
        ("mutants --list", "drop-force-of-segment"),
        ("coverage --reasons", "first start"),
        ("enumerate --workload first-start --depth 1", "violations=0"),
    ] {
        let said = expect(dir.path(), line, 0);
        assert!(said.contains(word), "{line}: {said}");
    }
    for verb in ["run", "enumerate", "mutants", "planted", "coverage", "replay", "shrink", "report"] {
        expect(dir.path(), &format!("{verb} --help"), 0);
    }
}

#[test]
fn mistakes_are_told_in_a_line_and_end_with_2() {
    let dir = dir();
    fs::write(dir.path().join("words.txt"), "not a seed").expect("written");
    for line in [
        "",
        "fly",
        "run --seed x",
        "run --mutant no-such",
        "run --continue words.txt",
        "enumerate --workload no-such",
        "enumerate --workload first-start --states-max 1",
        "replay --tape missing.tape",
        "shrink --tape missing.tape",
        "report --tape missing.tape --html page.html",
        "report --seed 1 --html missing/page.html",
    ] {
        expect(dir.path(), line, 2);
    }
}

#[test]
fn a_reader_that_goes_away_is_no_bug() {
    let dir = dir();
    let mut child = sim(dir.path())
        .args(["run", "--count", "400", "--verbose"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program runs");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(141), "{}", says(&output));
    assert_eq!(says(&output), "");
}
