//! The start: from a data directory, or none, to topics that can be served.
//!
//! Everything is read and judged before a byte is changed (crash story: *a refusal that changed something*).

use crate::config::Config;
use crate::effect::{Effect, FieldValue, Halt, HaltKind, IoError, IoErrorKind, Report};
use crate::group::journal::Replayed;
use crate::io::{Io, TopicId};
use crate::layout;
use crate::log::recovery::{self, TopicFindings, read_small};
use crate::log::restore::{self, remove_leftover};
use crate::log::sidecar::Indexes;
use crate::log::topic_file::{self, FileError, TopicToml};
use crate::log::{Topic, Trouble, create};
use crate::planted::planted;
use crate::record::LogId;
use crate::settings::Settings;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use core::cell::RefCell;
use core::fmt;
use core::hash::Hasher;
use siphasher::sip::SipHasher24;

/// Why the data directory can't be used. Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Refusal(String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What the broker serves after a start.
pub(crate) struct Started {
    pub(crate) topics: Vec<Rc<RefCell<Topic>>>,
    pub(crate) queues: Vec<StartedQueue>,
    pub(crate) ballast: bool,
}

/// A work queue after a start.
pub(crate) struct StartedQueue {
    pub(crate) topic: String,
    pub(crate) group: String,
    pub(crate) journal: Rc<RefCell<Topic>>,
    pub(crate) replayed: Replayed,
}

/// Whether the directory is ours: `true`, or `false` for one that has never been started in.
pub(crate) async fn check_format(io: &Io) -> Result<bool, Refusal> {
    let entries = io.list(layout::DATA).await.map_err(unreadable)?;
    let format = read_small(io, layout::FORMAT).await.map_err(unreadable)?;
    if let Some(bytes) = format {
        return match topic_file::check_data_format(&bytes) {
            Ok(()) => {
                if entries.iter().any(|entry| entry.is_dir && entry.name == layout::TOPICS) {
                    return Ok(true);
                }
                Err(Refusal(format!(
                    "{} is there but the directory {} is missing; restore it from a backup",
                    layout::FORMAT,
                    layout::TOPICS
                )))
            }
            Err(FileError::UnknownFormat(format)) => Err(Refusal(format!(
                "the data directory has format {format}, this version knows format 1; use the version that wrote it"
            ))),
            Err(FileError::Damaged(reason)) => Err(Refusal(format!(
                "{} can't be read ({reason}); it should hold the line \"format = 1\"",
                layout::FORMAT
            ))),
        };
    }
    // A first start that was interrupted has left at most these.
    let ours = [layout::LOCK, layout::TOPICS, &layout::tmp(layout::FORMAT)];
    let known = |name: &str| ours.contains(&name) || layout::FOREIGN_ALLOWED.contains(&name);
    if let Some(foreign) = entries.iter().find(|entry| !known(&entry.name)) {
        return Err(Refusal(format!(
            "the directory is not empty ({} is in it) and has no {}; give --data an empty or a new directory",
            foreign.name,
            layout::FORMAT
        )));
    }
    if entries.iter().any(|entry| entry.name == layout::TOPICS) {
        let topics = io.list(layout::TOPICS).await.map_err(unreadable)?;
        if let Some(topic) = topics.first() {
            return Err(Refusal(format!(
                "{} is missing but there are topics ({}); restore it: it holds the line \"format = 1\"",
                layout::FORMAT,
                topic.name
            )));
        }
    }
    Ok(false)
}

/// Recovers, or makes what a first start needs.
pub(crate) async fn start(io: Io, config: Rc<Config>, indexes: Indexes) -> Result<Started, Halt> {
    let directory = |refusal: Refusal| Halt { kind: HaltKind::Directory, reason: refusal.0 };
    if !check_format(&io).await.map_err(directory)? {
        first_start(&io).await.map_err(|trouble| halt(trouble, "the first start"))?;
    }
    let findings = recovery::inspect(&io, &config).await;
    let findings = findings.map_err(|error| halt(Trouble::Halt(error), "recovery"))?;
    report(&io, &findings);
    if planted!(io, LeftoversBeforeJudgement) {
        for path in findings.topics.iter().flat_map(TopicFindings::with_queues).flat_map(|topic| &topic.leftovers) {
            remove_leftover(&io, path).await.map_err(|trouble| halt(trouble, "recovery"))?;
        }
    }
    if let Some(kind) = findings.refusal() {
        let refused = findings.corrupt().next();
        let damage = refused.and_then(|topic| Some((topic.full_name(), topic.damage.as_ref()?.reason)));
        let (name, reason) = damage.expect("a refusal has a damaged topic");
        return Err(Halt { kind, reason: format!("topic {name}: {reason}") });
    }
    // From here on things change.
    let mut attempt = Attempt { io: &io, ballast_given: false };
    let mut topics = Vec::new();
    // Each topic before its queues: it forces the directory that holds theirs.
    let logs = findings.topics.into_iter().flat_map(|mut topic| {
        let queues = core::mem::take(&mut topic.queues);
        [topic].into_iter().chain(queues)
    });
    let (unfinished, mut found): (Vec<_>, Vec<_>) =
        logs.partition(|topic| topic.is_unfinished() && !(planted!(io, NoTopicsForce) && topic.watermark.is_some()));
    if found.is_empty() || found.iter().any(|topic| !restore::stopped_cleanly(&io, &config, topic)) {
        match write_format(&io).await {
            Err(Trouble::Full(_)) if attempt.give_ballast().await? => {
                write_format(&io).await.map_err(|trouble| halt(trouble, "recovery"))?;
            }
            written => written.map_err(|trouble| halt(trouble, "recovery"))?,
        }
    }
    for topic in &mut found {
        let id = TopicId(topics.len());
        topics.push(
            match restore::restore(&io, &config, &indexes, id, topic).await {
                Err(Trouble::Full(_)) if attempt.give_ballast().await? => {
                    restore::restore(&io, &config, &indexes, id, topic).await
                }
                restored => restored,
            }
            .map_err(|trouble| halt(trouble, "recovery"))?,
        );
    }
    let traces = !findings.leftovers.is_empty() || !unfinished.is_empty();
    let forced = async {
        force_format(&io).await?;
        if !planted!(io, NoTopicsForce) {
            io.force_dir(layout::TOPICS).await.map_err(Trouble::Halt)?;
        }
        io.force_dir(layout::DATA).await.map_err(Trouble::Halt)?;
        for (topic, found) in topics.iter().zip(&found) {
            match restore::settle(&io, topic, found).await {
                Err(Trouble::Full(_)) if attempt.give_ballast_or_halt().await? => {
                    restore::settle(&io, topic, found).await?
                }
                settled => settled?,
            }
        }
        for path in &findings.leftovers {
            match create::forget_name(&io, path).await {
                // It stays until a start with more room.
                Err(Trouble::Full(_)) => {}
                forgotten => {
                    forgotten?;
                    remove_leftover(&io, path).await?;
                }
            }
        }
        for topic in unfinished {
            let nameless = create::unname(&io, &topic.dir()).await?;
            topic.close(&io);
            remove_leftover(&io, &nameless).await?;
        }
        if traces {
            io.force_dir(layout::TOPICS).await.map_err(Trouble::Halt)?;
        }
        Ok(())
    };
    forced.await.map_err(|trouble| halt(trouble, "recovery"))?;
    if !found.iter().any(|topic| topic.name == layout::DEFAULT_TOPIC) {
        let name = String::from(layout::DEFAULT_TOPIC);
        let toml = new_topic(&io, &config, &name, Settings::NONE);
        let dir = layout::topic(&name);
        let created = create::create(io.clone(), indexes, &config, TopicId(topics.len()), name, dir, toml).await;
        topics.push(Rc::new(RefCell::new(created.map_err(|trouble| halt(trouble, "making topic default"))?)));
    }
    let ballast = match make_ballast(&io, config.ballast_bytes).await {
        Ok(()) => true,
        Err(Trouble::Full(_)) => false,
        Err(trouble) => return Err(halt(trouble, "making the ballast")),
    };
    let mut queues = Vec::new();
    for (found, journal) in found.into_iter().zip(&topics) {
        if let Some(group) = found.group {
            queues.push(StartedQueue { topic: found.name, group, journal: journal.clone(), replayed: found.replayed });
        }
    }
    Ok(Started { topics, queues, ballast })
}

struct Attempt<'a> {
    io: &'a Io,
    ballast_given: bool,
}

impl Attempt<'_> {
    /// On a full disk: the ballast is there to let recovery through. Once.
    async fn give_ballast(&mut self) -> Result<bool, Halt> {
        self.give_ballast_or_halt().await.map_err(|trouble| halt(trouble, "giving the ballast back"))
    }

    async fn give_ballast_or_halt(&mut self) -> Result<bool, Trouble> {
        if self.ballast_given {
            return Ok(false);
        }
        self.ballast_given = true;
        self.io.remove(layout::BALLAST).await.map_err(Trouble::Halt)?;
        Ok(true)
    }
}

/// What a new topic is to say about itself.
pub(crate) fn new_topic(io: &Io, config: &Config, name: &str, settings: Settings) -> TopicToml {
    TopicToml { log_id: new_log_id(io, config, name), created_ms: io.now().wall_ms, settings }
}

/// The id of a new log: unique as long as the entropy or the moment differs.
fn new_log_id(io: &Io, config: &Config, name: &str) -> LogId {
    let mut id = [0; 16];
    if planted!(io, KnownSalt) {
        return id;
    }
    let wall_ms = io.now().wall_ms;
    for (half, chunk) in id.chunks_mut(8).enumerate() {
        let mut hasher = SipHasher24::new_with_key(&config.entropy);
        hasher.write(&wall_ms.to_be_bytes());
        // A topic that is made again in the same millisecond has another log.
        hasher.write(&io.unique().to_be_bytes());
        hasher.write(&[half as u8]);
        hasher.write(name.as_bytes());
        chunk.copy_from_slice(&hasher.finish().to_be_bytes());
    }
    id
}

/// Makes the ballast, zero-written and whole; of 0 bytes: removes it. On `Full` nothing is left of it.
pub(crate) async fn make_ballast(io: &Io, bytes: u64) -> Result<(), Trouble> {
    if bytes == 0 {
        return io.remove(layout::BALLAST).await.map_err(Trouble::Halt);
    }
    let file = match io.create(layout::BALLAST.into()).await {
        Ok(file) => file,
        Err(error) if error.kind == IoErrorKind::Exists => return Ok(()),
        Err(error) => return Err(Trouble::full_or_halt(error)),
    };
    let reserved = io.call(Effect::Reserve { file, position: 0, length: bytes }).await;
    io.close(file);
    if let Err(error) = reserved {
        let trouble = Trouble::full_or_halt(error);
        if let Trouble::Full(_) = trouble {
            io.remove(layout::BALLAST).await.map_err(Trouble::Halt)?;
        }
        return Err(trouble);
    }
    Ok(())
}

/// Each step forced before the next: where there is a format there is a topics directory, and where there is a topic there
/// is a format.
async fn first_start(io: &Io) -> Result<(), Trouble> {
    // One that is there is empty, or the start was refused. Its name may be one that no force can make durable any more, because
    // that force has failed (crash story: the soft directory force), so it is made anew.
    create::remove_tree(io, layout::TOPICS).await.map_err(Trouble::Halt)?;
    io.make_dir(layout::TOPICS).await.map_err(Trouble::full_or_halt)?;
    io.force_dir(layout::DATA).await.map_err(Trouble::Halt)?;
    // Before there is a format: a start that finds one doesn't come here again.
    io.force_dir(layout::DATA_PARENT).await.map_err(Trouble::Halt)?;
    write_format(io).await
}

/// Also after an unclean stop: its name may be in the page cache alone (crash story: *the soft directory force*).
async fn write_format(io: &Io) -> Result<(), Trouble> {
    create::replace(io, layout::DATA, layout::FORMAT, Bytes::from(topic_file::render_data_format())).await
}

async fn force_format(io: &Io) -> Result<(), Trouble> {
    let (file, _) = io.open(layout::FORMAT.into()).await.map_err(Trouble::full_or_halt)?;
    let forced = io.force(file).await.map_err(Trouble::Halt);
    io.close(file);
    forced
}

fn report(io: &Io, findings: &recovery::DirectoryFindings) {
    let text = |value: &str| FieldValue::Text(value.into());
    for topic in findings.topics.iter().flat_map(TopicFindings::with_queues) {
        io.tell(Effect::Report(topic.report()));
        for path in &topic.unknown {
            io.tell(Effect::Report(Report { name: "UNKNOWN_FILE", fields: Vec::from([("path", text(path))]) }));
        }
    }
    for path in &findings.unknown {
        io.tell(Effect::Report(Report { name: "UNKNOWN_FILE", fields: Vec::from([("path", text(path))]) }));
    }
    for topic in findings.corrupt() {
        let reason = topic.damage.as_ref().map_or("unknown", |damage| damage.reason);
        let fields = Vec::from([("topic", text(&topic.full_name())), ("reason", text(reason))]);
        io.tell(Effect::Report(Report { name: "REFUSE_START", fields }));
    }
}

fn unreadable(error: IoError) -> Refusal {
    Refusal(format!("the data directory can't be read: {error}"))
}

fn halt(trouble: Trouble, during: &str) -> Halt {
    let reason = match trouble {
        Trouble::Full(error) => format!("no room during {during}: {error}; make room and start again"),
        Trouble::Halt(error) => format!("I/O failure during {during}: {error}"),
    };
    Halt { kind: HaltKind::IoFailure, reason }
}
