//! Pages and code name the same things: promises, crash stories, printed lines, error codes, reasons.

use plimsoll_core::error::Code;
use plimsoll_core::record::Invalid;
use plimsoll_tests::{files, workspace};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

fn page(name: &str) -> String {
    let path = workspace().join("docs").join(name);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// What the product says and what its tests say: files of tests and all behind `#[cfg(test)]` count as tests.
#[derive(Default)]
struct Sources {
    code: String,
    tests: String,
}

impl Sources {
    fn read() -> Sources {
        let mut sources = Sources::default();
        for (dir, all_tests) in [
            ("core/src", false),
            ("realfs/src", false),
            ("core/tests", true),
            ("realfs/tests", true),
            ("sim/src", true),
            ("sim/tests", true),
            ("tests/tests", true),
            ("tests/src", true),
            ("tests/evidence", true),
        ] {
            let dir = workspace().join(dir);
            let found = if dir.is_dir() { files(&dir, ".rs") } else { Vec::new() };
            // This file names numbers without checking a promise.
            let others = found.iter().filter(|path| !path.ends_with(file!()));
            others.for_each(|path| sources.add(path, all_tests));
        }
        sources
    }

    fn add(&mut self, path: &Path, all_tests: bool) {
        let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let is_tests = all_tests || path.file_name().is_some_and(|name| name == "tests.rs");
        let at = if is_tests { 0 } else { text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len()) };
        self.code.push_str(&text[..at]);
        self.tests.push_str(&text[at..]);
    }
}

/// Promise and what the last column of its row says.
fn promises() -> BTreeMap<u32, String> {
    let mut table = BTreeMap::new();
    for row in page("promises.md").lines().filter(|line| line.starts_with("| P")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let number = cells[1].strip_prefix('P').and_then(|n| n.parse().ok()).expect("a number");
        table.insert(number, cells[3].to_string());
    }
    table
}

#[test]
fn seventeen_promises_are_kept_or_not_yet() {
    let promises = promises();
    assert_eq!(promises.keys().copied().collect::<Vec<_>>(), (1..=17).collect::<Vec<_>>());
    for (number, state) in promises {
        assert!(state == "kept" || state.starts_with("not yet"), "P{number}: {state}");
    }
}

#[test]
fn a_promise_that_is_kept_is_cited_in_code_and_tests() {
    let Sources { code, tests } = Sources::read();
    let mut missing = Vec::new();
    for (number, _) in promises().into_iter().filter(|(_, state)| state == "kept") {
        for (place, text) in [("code", &code), ("tests", &tests)] {
            if !cites(text, number) {
                missing.push(format!("P{number} is called kept and not cited in {place}"));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

/// Whether the number of a promise stands in the text as a word of its own, or begins the name of a test.
fn cites(text: &str, number: u32) -> bool {
    if text.contains(&format!("fn p{number}_")) {
        return true;
    }
    let citation = format!("P{number}");
    text.match_indices(&citation).any(|(at, _)| {
        let ends_word = |c: Option<char>| !c.is_some_and(|c| c.is_ascii_alphanumeric());
        ends_word(text[..at].chars().next_back()) && ends_word(text[at + citation.len()..].chars().next())
    })
}

#[test]
fn a_citation_is_a_whole_word() {
    assert!(cites("halting (P1).", 1) && cites("P1", 1) && cites("fn p1_durable_survives()", 1));
    assert!(!cites("P10 and P17, MP1, P1x, fn p10_fail_stop()", 1));
}

#[test]
fn crash_stories_are_told_where_they_are_named_and_named_where_they_are_prevented() {
    let told: BTreeSet<String> = headings(&page("crash-stories.md"));
    let code = words(&Sources::read().code).to_lowercase();
    for story in &told {
        assert!(code.contains(&story.to_lowercase()), "no code names the crash story {story:?}");
    }
    for (at, mark) in code.match_indices("crash story: ") {
        let rest = &code[at + mark.len()..];
        // Some stories stand alone, told in full where they are prevented.
        let Some(name) = rest.strip_prefix('*').and_then(|rest| rest.split('*').next()) else { continue };
        assert!(told.iter().any(|story| story.to_lowercase() == name), "the crash story {name:?} is told nowhere");
    }
}

fn headings(page: &str) -> BTreeSet<String> {
    page.lines().filter_map(|line| line.strip_prefix("## ")).map(String::from).collect()
}

/// The text with line breaks, indentation and comment marks made one space each.
fn words(text: &str) -> String {
    text.split_whitespace().filter(|word| !["//", "///", "//!"].contains(word)).collect::<Vec<_>>().join(" ")
}

#[test]
fn every_printed_line_is_in_operations() {
    let code = words(&Sources::read().code);
    let page = page("operations.md");
    let mut found = 0;
    for before in ["Report { name: \"", "report(\""] {
        for (at, _) in code.match_indices(before) {
            let name = code[at + before.len()..].split('"').next().expect("a string ends");
            assert!(page.contains(&format!("`{name}")), "docs/operations.md does not explain {name}");
            found += 1;
        }
    }
    assert!(found >= 6, "only {found} printed lines were found in the code");
}

#[test]
fn every_error_code_is_in_protocol() {
    let page = page("protocol.md");
    for (_, code) in Code::ALL {
        assert!(page.contains(&format!("| `{code}` |")), "docs/protocol.md does not explain {code}");
    }
}

#[test]
fn every_reason_is_in_file_format() {
    let page = page("file-format.md");
    let code = words(&Sources::read().code);
    for (at, before) in code.match_indices("damaged(\"") {
        let reason = code[at + before.len()..].split('"').next().expect("a string ends");
        assert!(page.contains(&format!("| `{reason}` |")), "docs/file-format.md does not explain {reason}");
    }
    for reason in [
        Invalid::ShortHeader,
        Invalid::BadLength,
        Invalid::ShortPayload,
        Invalid::CrcMismatch,
        Invalid::OffsetMismatch,
        Invalid::UnknownKind,
    ] {
        assert!(page.contains(&format!("| `{reason}` |")), "docs/file-format.md does not explain {reason}");
    }
}
