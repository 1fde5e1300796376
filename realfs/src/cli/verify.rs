//! `plimsoll verify`: what recovery would find in a data directory, without changing it.

use super::complain;
use super::connection::output;
use super::table::Table;
use crate::offline::Offline;
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use plimsoll_core::effect::HaltKind;
use plimsoll_core::log::recovery::{Conclusion, DirectoryFindings, TopicFindings};
use serde_json::{Value, json};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Damage below the line.
const EXIT_CORRUPT: i32 = 3;
/// Not a data directory, in use, unreadable or of an unknown format.
pub(crate) const EXIT_DIRECTORY: i32 = 5;

/// Check every file of a data directory while no broker runs; nothing is changed
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Reads and judges exactly as the start of the broker does. A torn tail is what a crash leaves behind the last forced \
message; it is cut at the next start and harms nothing that was acknowledged DURABLE.

Examples:
  plimsoll verify /var/lib/plimsoll
  plimsoll verify --json /mnt/backup | jq '.topics[] | ., .queues[] | select(.status == \"CORRUPT\")'

Exit codes: 0 OK (also with a torn tail), 2 usage, 3 corrupt, 5 not a data directory, in use, unreadable or of an \
unknown format.")]
pub(crate) struct Args {
    /// The data directory
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Verifies and says what was found.
pub(crate) fn run(args: Args) -> i32 {
    let findings = match inspect(&args.dir) {
        Ok(findings) => findings,
        Err(sentence) => {
            complain("verify", sentence);
            return EXIT_DIRECTORY;
        }
    };
    let mut out = output();
    let printed = match args.json {
        true => writeln!(out, "{}", json(&findings)),
        false => print(&mut out, &args.dir, &findings),
    };
    match printed.and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            complain("verify", format_args!("cannot write to standard output: {error}"));
            1
        }
        // Whoever reads the output has seen enough; the exit code tells the rest.
        _ => match findings.refusal() {
            None => 0,
            Some(HaltKind::Directory) => EXIT_DIRECTORY,
            Some(_) => EXIT_CORRUPT,
        },
    }
}

fn inspect(dir: &Path) -> Result<DirectoryFindings, String> {
    let offline = Offline::open(dir)?;
    // Drawn on a terminal only.
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {bytes} {bytes_per_sec} {wide_msg}") {
        bar.set_style(style);
    }
    let findings = offline.inspect(&mut |path, bytes| {
        bar.set_message(path.to_owned());
        bar.inc(bytes as u64);
    });
    bar.finish_and_clear();
    match findings {
        Ok(findings) if findings.never_started => {
            Err(format!("{} is not a data directory yet: no broker has finished a start in it", dir.display()))
        }
        Ok(findings) => Ok(findings),
        Err(sentence) => Err(format!("{}: {sentence}", dir.display())),
    }
}

fn print(out: &mut impl Write, dir: &Path, findings: &DirectoryFindings) -> io::Result<()> {
    let mut table = Table::new(&["topic", "status", "records", "start", "line", "end", "segments", "bytes", "groups"]);
    let logs = || findings.topics.iter().flat_map(TopicFindings::with_queues);
    for topic in logs() {
        table.row([
            topic.full_name(),
            topic.conclusion.as_str().to_owned(),
            topic.records.to_string(),
            topic.start.to_string(),
            topic.line.to_string(),
            topic.end.to_string(),
            topic.segments().len().to_string(),
            topic.bytes.to_string(),
            topic.groups.len().to_string(),
        ]);
    }
    table.print(out)?;
    for topic in logs() {
        notes(out, topic)?;
    }
    for path in &findings.leftovers {
        writeln!(out, "leftover: {path} (not finished; removed at the next start)")?;
    }
    for path in &findings.unknown {
        writeln!(out, "unknown: {path} (not Plimsoll's; left alone)")?;
    }
    let is = |topic: &TopicFindings, conclusion| topic.with_queues().any(|log| log.conclusion == conclusion);
    let count = |conclusion| findings.topics.iter().filter(|topic| is(topic, conclusion)).count();
    let (torn, corrupt) = (count(Conclusion::TruncatedTail), count(Conclusion::Corrupt));
    let shown = dir.display();
    writeln!(out)?;
    match (corrupt, torn) {
        (0, 0) => writeln!(out, "{shown} is OK"),
        (0, _) => writeln!(out, "{shown} is OK; the torn tail is cut at the next start"),
        _ => {
            writeln!(
                out,
                "{shown} is CORRUPT ({corrupt} of {} topics); a broker refuses to start on it",
                findings.topics.len()
            )
        }
    }
}

/// What the table has no column for.
fn notes(out: &mut impl Write, topic: &TopicFindings) -> io::Result<()> {
    let slots = topic.slots();
    let one_slot = slots.running.is_some() != slots.anchored.is_some();
    let quiet = topic.groups.is_empty()
        && topic.damage.is_none()
        && topic.leftovers.is_empty()
        && topic.unknown.is_empty()
        && topic.below_start().is_empty()
        && topic.group.is_none()
        && !one_slot;
    if quiet {
        return Ok(());
    }
    match topic.queue() {
        None => writeln!(out, "\ntopic {}", topic.name)?,
        Some((confirmed, pending)) => {
            writeln!(out, "\nwork queue {}", topic.full_name())?;
            writeln!(out, "  confirmed: all below {confirmed}; reserved once and not confirmed: {pending}")?;
        }
    }
    if topic.conclusion == Conclusion::Corrupt {
        writeln!(out, "  reading ended at the damage; what lies behind it is not counted")?;
    }
    if let Some(damage) = &topic.damage {
        let what = if topic.tail.is_some() { "torn tail" } else { "damage" };
        writeln!(out, "  {what}: {} in {}", damage.reason, damage.file)?;
        writeln!(out, "    at position {}, where offset {} should stand", damage.position, damage.expected)?;
        if let Some(at) = damage.valid_record_at {
            writeln!(out, "    the next valid record stands at position {at}")?;
        }
    }
    if let Some(tail) = &topic.tail {
        let dropped = match tail.dropped {
            0 => String::new(),
            n => format!(" with {n} whole records that no force had covered"),
        };
        writeln!(out, "    harmless: {}{dropped}, all above the line", HumanBytes(tail.bytes))?;
    }
    if one_slot {
        let torn = if slots.running.is_none() { "running" } else { "anchored" };
        writeln!(out, "  the {torn} slot of the watermark is torn; the other one counts (harmless)")?;
    }
    let mut groups = Table::new(&["  group", "committed"]);
    for (group, committed) in &topic.groups {
        groups.row([format!("  {group}"), committed.to_string()]);
    }
    if !topic.groups.is_empty() {
        groups.print(out)?;
    }
    if let Some(last) = topic.below_start().last() {
        let n = topic.below_start().len();
        writeln!(out, "  {n} segments below the start, the last with base offset {last} (removed at the next start)")?;
    }
    for path in &topic.leftovers {
        writeln!(out, "  leftover: {path} (not finished; removed at the next start)")?;
    }
    for path in &topic.unknown {
        writeln!(out, "  unknown: {path} (not Plimsoll's; left alone)")?;
    }
    Ok(())
}

fn json(findings: &DirectoryFindings) -> Value {
    let status = if findings.refusal().is_some() { "CORRUPT" } else { "OK" };
    json!({
        "status": status,
        "topics": findings.topics.iter().map(topic_json).collect::<Vec<_>>(),
        "leftovers": findings.leftovers,
        "unknown": findings.unknown,
    })
}

fn topic_json(topic: &TopicFindings) -> Value {
    let mut object = log_json(topic);
    match topic.queue() {
        None => object["queues"] = topic.queues.iter().map(topic_json).collect(),
        Some((confirmed, pending)) => {
            object["queue"] = topic.group.clone().into();
            object["confirmed"] = confirmed.into();
            object["pending"] = pending.into();
        }
    }
    object
}

fn log_json(topic: &TopicFindings) -> Value {
    let slots = topic.slots();
    let segments = topic.segments();
    json!({
        "topic": topic.name,
        "status": topic.conclusion.as_str(),
        "records": topic.records,
        "start": topic.start,
        "line": topic.line,
        "end": topic.end,
        "bytes": topic.bytes,
        "segments": segments.iter().map(|segment| json!({
            "base": segment.base, "bytes": segment.end, "fileBytes": segment.length,
        })).collect::<Vec<_>>(),
        "belowStart": topic.below_start(),
        "groups": topic.groups.iter().map(|(group, committed)| json!({
            "group": group, "committed": committed,
        })).collect::<Vec<_>>(),
        "damage": topic.damage.as_ref().map(|damage| json!({
            "reason": damage.reason,
            "file": damage.file,
            "position": damage.position,
            "expectedOffset": damage.expected,
            "validRecordAt": damage.valid_record_at,
        })),
        "tornTail": topic.tail.map(|tail| json!({ "bytes": tail.bytes, "droppedUnforced": tail.dropped })),
        "slots": { "running": slots.running.is_some(), "anchored": slots.anchored.is_some() },
        "leftovers": topic.leftovers,
        "unknown": topic.unknown,
        "elapsedMs": topic.elapsed_ms,
    })
}
