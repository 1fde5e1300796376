//! What the scenario tests share: how to look at effects and at files.
#![allow(dead_code, reason = "each test file uses its own part")]

use plimsoll_core::config::Config;
use plimsoll_core::effect::{Effect, FileId};
use plimsoll_core::layout;
use plimsoll_core::log::topic_file::TopicToml;
use plimsoll_core::record::Salt;
use plimsoll_sim::naive::{Harness, NaiveDisk};
use std::collections::BTreeMap;

/// No ballast, no space ahead, no waiting: what is in the files is what was published.
pub(crate) fn plain() -> Config {
    Config { space_ahead: 0, ballast_bytes: 0, ..Config::default() }
}

/// A broker that has started on an empty disk.
pub(crate) fn started(config: Config) -> Harness {
    let mut h = Harness::new(config);
    h.start();
    assert_eq!(h.halted, None);
    h
}

pub(crate) fn is_log_force(effect: &Effect, path: &str) -> bool {
    matches!(effect, Effect::Force { .. }) && path.ends_with(".log")
}

pub(crate) fn is_log_write(effect: &Effect, path: &str) -> bool {
    matches!(effect, Effect::Write { .. }) && path.ends_with(".log")
}

/// A write or a force of the log: while one of them is told, the other says nothing.
pub(crate) fn is_log_io(effect: &Effect, path: &str) -> bool {
    is_log_write(effect, path) || is_log_force(effect, path)
}

pub(crate) fn is_slot_write(effect: &Effect, path: &str) -> bool {
    matches!(effect, Effect::Write { .. }) && path.ends_with("watermark")
}

pub(crate) fn is_reserve(effect: &Effect, path: &str) -> bool {
    matches!(effect, Effect::Reserve { .. }) && path.ends_with(".log")
}

/// The effects on the disk, one a line, with the names that the files had when the effect was emitted.
pub(crate) fn trace(h: &Harness) -> Vec<String> {
    traced(&h.effects.iter().map(|(_, effect)| effect.clone()).collect::<Vec<_>>())
        .into_iter()
        .map(|(line, _)| line)
        .collect()
}

/// The same, each with its effect.
pub(crate) fn traced(effects: &[Effect]) -> Vec<(String, Effect)> {
    let mut names: BTreeMap<FileId, String> = BTreeMap::new();
    let mut lines = Vec::new();
    for effect in effects {
        let of = |file: &FileId| names.get(file).cloned().unwrap_or_default();
        let line = match effect {
            Effect::List { dir } => format!("list {dir}"),
            Effect::MakeDir { path } => format!("mkdir {path}"),
            Effect::Create { file, path } => {
                names.insert(*file, path.clone());
                format!("create {path}")
            }
            Effect::Open { file, path } => {
                names.insert(*file, path.clone());
                format!("open {path}")
            }
            Effect::Read { file, .. } => format!("read {}", of(file)),
            Effect::Write { file, .. } => format!("write {}", of(file)),
            Effect::Reserve { file, .. } => format!("reserve {}", of(file)),
            Effect::Truncate { file, .. } => format!("truncate {}", of(file)),
            Effect::Force { file } => format!("force {}", of(file)),
            Effect::ForceDir { dir } => format!("forcedir {dir}"),
            Effect::Rename { from, to } => {
                for name in names.values_mut() {
                    if let Some(rest) = name.strip_prefix(from.as_str())
                        && (rest.is_empty() || rest.starts_with('/'))
                    {
                        *name = format!("{to}{rest}");
                    }
                }
                format!("rename {from} -> {to}")
            }
            Effect::Remove { path } => format!("remove {path}"),
            Effect::RemoveDir { path } => format!("rmdir {path}"),
            _ => continue,
        };
        lines.push((line, effect.clone()));
    }
    lines
}

/// How many lines of a trace begin with this.
pub(crate) fn count(trace: &[String], what: &str) -> usize {
    trace.iter().filter(|line| line.starts_with(what)).count()
}

/// The salt of a segment, from the topic's file.
pub(crate) fn salt(disk: &NaiveDisk, topic: &str, base: u64) -> Salt {
    let toml = disk.file(&layout::log_toml(&layout::topic(topic))).expect("topic.toml");
    Salt::new(&TopicToml::parse(toml).expect("a topic file").log_id, base)
}

/// The path of a segment of the default topic.
pub(crate) fn segment(base: u64) -> String {
    layout::segment(&layout::topic("default"), base)
}

/// The paths of the segments of the default topic, in order.
pub(crate) fn segments(disk: &NaiveDisk) -> Vec<String> {
    disk.files().into_keys().filter(|path| path.starts_with("topics/default/log/") && path.ends_with(".log")).collect()
}

/// Everything that a reader sees, from the log's start on.
pub(crate) fn read_all(h: &mut Harness) -> String {
    let client = h.connect();
    let mut all = String::new();
    let mut next = 0;
    loop {
        let replies = h.ask(client, format!("READ {next} 1000\n").as_bytes());
        let lines = replies.lines().filter(|line| line.starts_with("MSG "));
        let Some(last) = lines.clone().next_back() else {
            assert!(replies.ends_with("END 0\n"), "{replies}");
            break;
        };
        next = last.split(' ').nth(1).expect("an offset").parse::<u64>().expect("an offset") + 1;
        lines.for_each(|line| all.push_str(&format!("{line}\n")));
    }
    h.disconnect(client);
    all
}

/// The lines of the reports of this name.
pub(crate) fn reports(h: &Harness, name: &str) -> Vec<String> {
    h.reports.iter().filter(|report| report.name == name).map(ToString::to_string).collect()
}
