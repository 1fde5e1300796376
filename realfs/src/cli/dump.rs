//! `plimsoll dump`: what stands in one file of a data directory.

use super::connection::output;
use super::verify::EXIT_DIRECTORY;
use super::{EXIT_USAGE, complain};
use plimsoll_core::group::journal::{Dying, Operation, Run};
use plimsoll_core::group::offset_file;
use plimsoll_core::layout;
use plimsoll_core::log::index::Entry;
use plimsoll_core::log::scan::{Scan, Step};
use plimsoll_core::log::search::{self, Search};
use plimsoll_core::log::sidecar::{self, Sidecar};
use plimsoll_core::log::topic_file::TopicToml;
use plimsoll_core::log::watermark::{self, Slot, Watermark};
use plimsoll_core::message::{self, Message};
use plimsoll_core::record::{self, Frame, HEADER_BYTES, Invalid, Kind, LogId, PREFIX_BYTES, Salt};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

/// Bytes read at once.
const PIECE: usize = 1 << 20;
/// Bytes of a value that are shown.
const PREVIEW: usize = 60;
/// Frames that are asked for the salt at most.
const WITNESSES: usize = 100;

/// Show what stands in a segment, its index, a watermark or a group's offset file
#[derive(clap::Args, Debug)]
#[command(after_help = "\
A segment is shown one record a line. Damage is shown in its place, and the dump goes on at the next valid record; whether \
it matters is for `plimsoll verify` to say. A work queue's journal is shown one operation a line. The checksums start from the log id in the \
topic.toml or queue.toml beside log/; without one \
the records themselves yield it.

Examples:
  plimsoll dump data/topics/default/log/00000000000000000000.log
  plimsoll dump --json data/topics/default/log/00000000000000000000.log | jq .offset
  plimsoll dump data/topics/default/watermark
  plimsoll dump data/topics/default/groups/billing.offset
  plimsoll dump data/topics/orders/queues/mails/log/00000000000000000000.log

Exit codes: 0, 2 usage (also a file of another kind), 5 unreadable.")]
pub(crate) struct Args {
    /// A segment (.log), its index (.index), a watermark or a group's .offset file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print a JSON object a line
    #[arg(long)]
    json: bool,
}

/// Dumps the file.
pub(crate) fn run(args: Args) -> i32 {
    let mut lines = Lines { out: output(), json: args.json };
    let dumped = dump(&args.file, &mut lines).and_then(|()| Ok(lines.out.flush()?));
    match dumped {
        Ok(()) => 0,
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => 0,
        Err(Failure::Output(error)) => {
            complain("dump", format_args!("cannot write to standard output: {error}"));
            1
        }
        Err(Failure::Usage(sentence)) => {
            complain("dump", sentence);
            EXIT_USAGE
        }
        Err(Failure::Input(error)) => {
            complain("dump", format_args!("cannot read {}: {error}", args.file.display()));
            EXIT_DIRECTORY
        }
        Err(Failure::NoSalt) => {
            let sentence = format_args!(
                "{}: no topic.toml, queue.toml or watermark beside log/, and no record yields the salt of the checksums",
                args.file.display()
            );
            complain("dump", sentence);
            EXIT_DIRECTORY
        }
    }
}

enum Failure {
    Output(io::Error),
    Input(io::Error),
    Usage(String),
    NoSalt,
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Output(error)
    }
}

/// Prints name and value pairs, as `name=value` or as a JSON object.
struct Lines<W> {
    out: W,
    json: bool,
}

impl<W: Write> Lines<W> {
    fn line(&mut self, fields: &[(&str, Value)]) -> io::Result<()> {
        if self.json {
            let object: serde_json::Map<String, Value> =
                fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
            return writeln!(self.out, "{}", Value::Object(object));
        }
        let mut separator = "";
        for (name, value) in fields {
            match value {
                Value::String(text) if is_word(text) => write!(self.out, "{separator}{name}={text}")?,
                Value::Array(values) if values.iter().all(|value| value.as_str().is_some_and(is_word)) => {
                    let words: Vec<&str> = values.iter().filter_map(Value::as_str).collect();
                    write!(self.out, "{separator}{name}={}", words.join(","))?;
                }
                // Previews are escaped already, but for the quote.
                Value::String(text) => write!(self.out, "{separator}{name}=\"{}\"", text.replace('"', "\\\""))?,
                value => write!(self.out, "{separator}{name}={value}")?,
            }
            separator = " ";
        }
        writeln!(self.out)
    }
}

/// Whether a text needs no quotes.
fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'"' | b'=' | b',' | b'\\'))
}

fn dump(path: &Path, lines: &mut Lines<impl Write>) -> Result<(), Failure> {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let name = name.strip_suffix(layout::TMP).unwrap_or(&name);
    let is_group = layout::parse_group_offset(name).is_some();
    let is_watermark = layout::watermark("").trim_start_matches('/') == name;
    let is_sidecar = name.ends_with(layout::INDEX_SUFFIX);
    if !is_group && !is_watermark && !is_sidecar && !name.ends_with(layout::LOG_SUFFIX) {
        let sentence = "is no segment (.log), no index (.index), no watermark and no group's .offset file";
        return Err(Failure::Usage(format!("{} {sentence}", path.display())));
    }
    let file = File::open(path).map_err(Failure::Input)?;
    let metadata = file.metadata().map_err(Failure::Input)?;
    if !metadata.is_file() {
        return Err(Failure::Input(io::Error::other("it is not a file")));
    }
    if is_watermark {
        dump_watermark(&read_at(&file, 0, watermark::FILE_BYTES)?, lines)
    } else if is_sidecar {
        dump_sidecar(&read_at(&file, 0, sidecar::FILE_BYTES_MAX + 1)?, lines)
    } else if is_group {
        let bytes = read_at(&file, 0, PIECE)?;
        Ok(match offset_file::parse_offset(&bytes) {
            Some(offset) => lines.line(&[("committed", offset.into())]),
            None => lines.line(&[("damage", "group-unreadable".into()), ("bytes", preview(&bytes))]),
        }?)
    } else {
        Segment::open(path, name, file, metadata.len())?.dump(lines)
    }
}

fn dump_watermark(bytes: &[u8], lines: &mut Lines<impl Write>) -> Result<(), Failure> {
    let slots = Watermark::read(bytes);
    let current = slots.current();
    for (name, position, slot) in [
        ("running", watermark::RUNNING_POSITION, slots.running),
        ("anchored", watermark::ANCHORED_POSITION, slots.anchored),
    ] {
        let place = [("slot", name.into()), ("position", position.into())];
        match slot {
            Some(slot) => {
                let Slot { log_id, sequence, start, durable, clean } = slot;
                let values = [
                    ("sequence", sequence.into()),
                    ("start", start.into()),
                    ("durable", durable.into()),
                    ("clean", clean.into()),
                    ("logId", hex(&log_id).into()),
                    ("counts", (current == Some(slot)).into()),
                ];
                lines.line(&[&place[..], &values].concat())?;
            }
            None => lines.line(&[&place[..], &[("damage", "slot-unreadable".into())]].concat())?,
        }
    }
    Ok(())
}

fn dump_sidecar(bytes: &[u8], lines: &mut Lines<impl Write>) -> Result<(), Failure> {
    let Some(Sidecar { log_id, base, end, fingerprint, entries }) = sidecar::decode(bytes) else {
        return Ok(lines.line(&[("damage", "index-unreadable".into())])?);
    };
    lines.line(&[
        ("logId", hex(&log_id).into()),
        ("base", base.into()),
        ("end", end.into()),
        ("fingerprint", format!("{fingerprint:016x}").into()),
        ("entries", entries.len().into()),
    ])?;
    for Entry { offset, position, time_before_ms } in entries {
        let time = if time_before_ms == i64::MIN { Value::Null } else { time_before_ms.into() };
        lines.line(&[("offset", offset.into()), ("position", position.into()), ("timeBefore", time)])?;
    }
    Ok(())
}

/// A segment file and what its checksums start from.
struct Segment {
    file: File,
    length: u64,
    /// The offset in its name, else that of the first frame.
    base: u64,
    salt: Salt,
}

impl Segment {
    fn open(path: &Path, name: &str, file: File, length: u64) -> Result<Segment, Failure> {
        let named = layout::parse_segment(name);
        let log_id = path.canonicalize().ok().as_deref().and_then(log_id_beside);
        let (base, salt) = match (named, log_id) {
            (Some(base), Some(log_id)) => (base, Salt::new(&log_id, base)),
            (named, _) => {
                let (first, salt) = salt_from_frames(&file)?;
                (named.unwrap_or(first), salt)
            }
        };
        Ok(Segment { file, length, base, salt })
    }

    fn dump(&self, lines: &mut Lines<impl Write>) -> Result<(), Failure> {
        let mut place = Some((0, self.base));
        while let Some((position, expected)) = place {
            place = self.dump_from(position, expected, lines)?;
        }
        Ok(())
    }

    /// Dumps frames up to damage or the end. Returns where to go on: the position of the next valid frame and its offset.
    fn dump_from(
        &self,
        position: u64,
        expected: u64,
        lines: &mut Lines<impl Write>,
    ) -> Result<Option<(u64, u64)>, Failure> {
        let mut scan = Scan::new(self.salt, position, expected);
        let mut read_to = position;
        let invalid = loop {
            match scan.step() {
                Step::Frame { position, frame } => dump_frame(position, &frame, lines)?,
                Step::Invalid(invalid) => break invalid,
                Step::NeedBytes(needed) => {
                    let bytes = read_at(&self.file, read_to, PIECE)?;
                    read_to += bytes.len() as u64;
                    if bytes.is_empty() {
                        match scan.at_end(needed) {
                            None => return Ok(None),
                            Some(invalid) => break invalid,
                        }
                    }
                    scan.push(&bytes.into());
                }
            }
        };
        self.dump_damage(scan.position(), scan.expected(), invalid, lines)
    }

    fn dump_damage(
        &self,
        position: u64,
        expected: u64,
        invalid: Invalid,
        lines: &mut Lines<impl Write>,
    ) -> Result<Option<(u64, u64)>, Failure> {
        // Every offset counts here: also a copy of an old segment is to be shown.
        let mut search = Search::new(position, 0, self.salt);
        let mut read_to = position;
        while search.found().first.is_none() {
            let bytes = read_at(&self.file, read_to, PIECE)?;
            if bytes.is_empty() {
                break;
            }
            read_to += bytes.len() as u64;
            search.push(&bytes);
        }
        let found = search.finish();
        let mut fields = vec![("position", position.into())];
        let Some(next) = found.first else {
            if found.nonzero_end.is_none() {
                fields.extend([("unusedBytes", (self.length - position).into())]);
            } else {
                let first = read_at(&self.file, position, PREVIEW)?;
                fields.extend([
                    ("damage", invalid.as_str().into()),
                    ("expectedOffset", expected.into()),
                    ("bytes", (self.length - position).into()),
                    ("preview", preview(&first)),
                ]);
            }
            lines.line(&fields)?;
            return Ok(None);
        };
        let bytes = read_at(&self.file, next, HEADER_BYTES)?;
        let header: [u8; HEADER_BYTES] = bytes.try_into().map_err(|_| shrank())?;
        let offset = u64::from_be_bytes(header[8..].try_into().expect("eight bytes"));
        fields.extend([
            ("damage", invalid.as_str().into()),
            ("expectedOffset", expected.into()),
            ("bytes", (next - position).into()),
            ("validRecordAt", next.into()),
            ("validRecordOffset", offset.into()),
        ]);
        lines.line(&fields)?;
        Ok(Some((next, offset)))
    }
}

/// The log id in the `topic.toml` or `queue.toml` or, if that is lost, in the watermark of the topic whose `log/` the file lies in.
fn log_id_beside(path: &Path) -> Option<LogId> {
    let topic = path.parent()?.parent()?;
    let read = |name: &str| std::fs::read(topic.join(name.trim_start_matches('/'))).ok();
    let written = [layout::TOPIC_TOML, layout::QUEUE_TOML]
        .into_iter()
        .find_map(read)
        .and_then(|bytes| TopicToml::parse(&bytes).ok());
    written.map(|toml| toml.log_id).or_else(|| {
        let slots = Watermark::read(&read(&layout::watermark(""))?);
        slots.current().map(|slot| slot.log_id)
    })
}

/// The first frame's offset, and the salt that most of the first frames agree on, so that damage in one of them does not
/// matter.
fn salt_from_frames(file: &File) -> Result<(u64, Salt), Failure> {
    let mut votes: BTreeMap<u32, (usize, usize)> = BTreeMap::new();
    let mut first = None;
    let mut position = 0;
    for at in 0..WITNESSES {
        let header = read_at(file, position, HEADER_BYTES)?;
        let Some(header) = header.first_chunk::<HEADER_BYTES>() else { break };
        let Some(size) = record::frame_size(header) else { break };
        let bytes = read_at(file, position, size)?;
        first.get_or_insert(u64::from_be_bytes(header[8..].try_into().expect("eight bytes")));
        if let Some(Salt(salt)) = search::derive_salt(&bytes) {
            votes.entry(salt).or_insert((0, WITNESSES - at)).0 += 1;
        }
        position += size as u64;
    }
    // Of equally many, the one that was met first.
    let best = votes.into_iter().max_by_key(|(_, votes)| *votes).map(|(salt, _)| Salt(salt));
    first.zip(best).ok_or(Failure::NoSalt)
}

/// A line for the frame and, behind that of a batch, one for each message.
fn dump_frame(position: u64, frame: &Frame<'_>, lines: &mut Lines<impl Write>) -> io::Result<()> {
    lines.line(&frame_fields(position, frame))?;
    if frame.kind == Kind::Batch {
        for (offset, message) in message::messages(frame).into_iter().flatten() {
            let mut fields = vec![("batch", frame.offset.into()), ("offset", offset.into())];
            fields.extend(message_fields(&message));
            lines.line(&fields)?;
        }
    }
    if let Some(Operation::Checkpoint { pending, .. }) = operation_of(frame) {
        for (offset, kept) in pending {
            let mut fields = vec![
                ("checkpoint", frame.offset.into()),
                ("message", offset.into()),
                ("deliveries", kept.deliveries.into()),
            ];
            if kept.due_ms != 0 {
                fields.push(("due", time_text(kept.due_ms)));
            }
            fields.extend(kept.dying.into_iter().flat_map(dying_fields));
            lines.line(&fields)?;
        }
    }
    Ok(())
}

fn operation_of(frame: &Frame<'_>) -> Option<Operation> {
    (frame.kind == Kind::QueueOperation).then(|| Operation::parse(&frame.payload[PREFIX_BYTES..])).flatten()
}

/// What an operation of a work queue says; messages are those of the topic.
fn operation_fields(operation: Operation) -> Vec<(&'static str, Value)> {
    let runs = |runs: Vec<Run>| {
        let run = |(first, count): Run| match count {
            1 => first.to_string().into(),
            _ => format!("{first}..{}", first + u64::from(count)).into(),
        };
        runs.into_iter().map(run).collect::<Vec<Value>>().into()
    };
    match operation {
        Operation::Reserve(reserved) => vec![("operation", "reserve".into()), ("messages", runs(reserved))],
        Operation::Confirm(confirmed) => vec![("operation", "confirm".into()), ("messages", runs(confirmed))],
        Operation::Abort { offset, due_ms } => {
            vec![("operation", "abort".into()), ("message", offset.into()), ("due", time_text(due_ms))]
        }
        Operation::Dying { offset, dying } => {
            let fields = [("operation", "dying".into()), ("message", offset.into())];
            fields.into_iter().chain(dying_fields(dying)).collect()
        }
        Operation::Checkpoint { next, sequence, pending } => vec![
            ("operation", "checkpoint".into()),
            ("next", next.into()),
            ("sequence", sequence.into()),
            ("pending", pending.len().into()),
        ],
    }
}

fn dying_fields(dying: Dying) -> [(&'static str, Value); 2] {
    [("sequence", dying.sequence.into()), ("reason", dying.reason.as_str().into())]
}

fn frame_fields(position: u64, frame: &Frame<'_>) -> Vec<(&'static str, Value)> {
    let time = i64::from_be_bytes(frame.payload[5..PREFIX_BYTES].try_into().expect("eight bytes"));
    let mut fields = vec![
        ("position", position.into()),
        ("offset", frame.offset.into()),
        ("count", frame.count.into()),
        ("kind", kind_name(frame.kind).into()),
        ("lag", frame.lag.into()),
        ("time", time_text(time)),
    ];
    if let Some(operation) = operation_of(frame) {
        fields.extend(operation_fields(operation));
        return fields;
    }
    let Some(message) = Message::parse(frame.payload) else {
        if frame.kind == Kind::QueueOperation {
            fields.push(("damage", "operation-unreadable".into()));
        }
        let value = &frame.payload[PREFIX_BYTES..];
        fields.push(("valueBytes", value.len().into()));
        if !matches!(frame.kind, Kind::Padding | Kind::Batch) {
            fields.push(("value", preview(value)));
        }
        return fields;
    };
    fields.extend(message_fields(&message));
    fields
}

fn message_fields(message: &Message<'_>) -> Vec<(&'static str, Value)> {
    let mut fields = Vec::new();
    if let Some((producer, sequence)) = message.producer {
        fields.extend([("producer", producer.into()), ("sequence", sequence.into())]);
    }
    if let Some(key) = message.key {
        fields.push(("key", preview(key)));
    }
    let headers: Vec<Value> = message.headers().map(|(name, _)| preview(name)).collect();
    if !headers.is_empty() {
        fields.push(("headers", headers.into()));
    }
    fields.extend([("valueBytes", message.value.len().into()), ("value", preview(message.value))]);
    fields
}

fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Message => "message",
        Kind::LostRun => "lost-run",
        Kind::RemovedRun => "removed-run",
        Kind::QueueOperation => "queue-operation",
        Kind::Batch => "batch",
        Kind::Padding => "padding",
    }
}

/// UTC, or the bare number where a calendar has no name for it.
fn time_text(ms: i64) -> Value {
    /// The last millisecond of the year 9999.
    const LAST: u64 = 253_402_300_799_999;
    match u64::try_from(ms) {
        Ok(ms) if ms <= LAST => {
            humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(ms)).to_string().into()
        }
        _ => ms.into(),
    }
}

/// The beginning of some bytes, with what can't be printed escaped.
fn preview(bytes: &[u8]) -> Value {
    let mut text = String::new();
    for chunk in bytes[..bytes.len().min(PREVIEW)].utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => text.push_str("\\\\"),
                c if c.is_control() => text.extend(c.escape_default()),
                c => text.push(c),
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    if bytes.len() > PREVIEW {
        text.push('…');
    }
    text.into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Fewer bytes only at the end of the file.
fn read_at(file: &File, position: u64, length: usize) -> Result<Vec<u8>, Failure> {
    let mut bytes = vec![0; length];
    let mut filled = 0;
    while filled < length {
        match file.read_at(&mut bytes[filled..], position + filled as u64) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Failure::Input(error)),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

fn shrank() -> Failure {
    Failure::Input(io::Error::other("it became shorter meanwhile"))
}
