//! What `serve` can be told: one table, from which flags, environment, file and `config show` are made.
//!
//! A flag goes before the environment, the environment before the file, the file before the default.

use super::{topic_settings, values};
use crate::driver::{Reloaded, ServeOptions};
use crate::report::LogFormat;
use clap::{Arg, ArgAction, ArgMatches, Command};
use plimsoll_core::config::Config;
use std::env;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::de::{DeTable, DeValue};

/// One thing that `serve` can be told.
struct Setting {
    /// The flag without its dashes, and the key in the file.
    name: &'static str,
    /// What a value is called in `--help`.
    value: &'static str,
    help: &'static str,
    /// May be given several times.
    several: bool,
    set: fn(&mut ServeOptions, &str) -> Result<(), String>,
    show: fn(&ServeOptions) -> String,
}

/// A row: name, kind of value, the field, help. The kinds are the modules below.
macro_rules! row {
    ($name:literal, $kind:ident, $($field:ident).+, $help:literal) => {
        Setting {
            name: $name,
            value: $kind::VALUE,
            help: $help,
            several: false,
            set: |options, text| $kind::set(&mut options.$($field).+, text),
            show: |options| $kind::show(&options.$($field).+),
        }
    };
}

/// A row of what holds for topics that were told nothing else.
macro_rules! topic_row {
    ($at:literal) => {
        Setting {
            name: topic_settings::FLAGS[$at].name,
            value: topic_settings::FLAGS[$at].value(),
            help: topic_settings::FLAGS[$at].help,
            several: false,
            set: |options, text| topic_settings::FLAGS[$at].set(&mut options.config.topic_defaults, text),
            show: |options| topic_settings::FLAGS[$at].show_default(&options.config.topic_defaults),
        }
    };
}

/// In the order of `--help`.
static SETTINGS: [Setting; 45] = [
    row!("data", path, data, "Where the messages are; created when missing (its parent must exist)"),
    Setting {
        several: true,
        ..row!(
            "listen",
            list,
            listen,
            "Address to listen on; port 0 takes a free one, and READY says which. May be given several times"
        )
    },
    row!("log", format, log, "How the lines on standard output are written: `text`, or one JSON object a line"),
    row!(
        "disk-threads",
        count,
        disk_threads,
        "Threads that wait for the disk; forces of that many topics run side by side"
    ),
    row!("segment-bytes", bytes, config.segment_bytes, "A segment is rolled before it would grow past this"),
    row!("max-payload", bytes, config.payload_bytes_max, "The largest payload admitted"),
    row!(
        "max-publish-batch",
        bytes,
        config.publish_batch_bytes_max,
        "The most bytes of messages published as one; the most messages are those of --queue-messages"
    ),
    row!("queue-messages", count, config.queue_messages, "Messages of a topic that wait to be written"),
    row!("queue-bytes", bytes, config.queue_bytes, "Bytes of the same"),
    row!("batch-messages", count, config.batch_messages, "Messages in one write"),
    row!("batch-bytes", bytes, config.batch_bytes, "Bytes in one write"),
    row!("group-commit", switch, config.group_commit, "`off` writes and forces each message alone, for comparison"),
    row!(
        "space-ahead",
        bytes,
        config.space_ahead,
        "How far the active segment is zero-written ahead; 0 appends plainly"
    ),
    row!(
        "pad-forces",
        bytes,
        config.pad_forces,
        "End every force on a multiple of this, for devices without power-safe overwrite"
    ),
    row!(
        "gather",
        nanoseconds,
        config.gather_ns_max,
        "The longest that a force is held for producers that are about to send again"
    ),
    row!("max-connections", count, config.connections_max, "Clients at once"),
    row!(
        "max-unanswered",
        count,
        config.unanswered_max,
        "Unanswered requests of a connection, after which it is not read"
    ),
    row!(
        "max-unsent-bytes",
        bytes,
        config.unsent_bytes_max,
        "Unsent reply bytes of a connection, after which it is not read"
    ),
    row!(
        "send-stall",
        milliseconds,
        config.send_stall_ms_max,
        "A client that takes none of its replies for this long is cut off"
    ),
    row!("max-fetch-wait", milliseconds, config.fetch_wait_ms_max, "The longest wait that a FETCH may ask for"),
    row!("max-fetch-bytes", bytes, config.fetch_bytes_max, "Where a reply to FETCH or READ stops"),
    row!(
        "group-idle",
        milliseconds,
        config.group_idle_ms,
        "A silent holder of a group loses it to the next who asks after this long"
    ),
    row!("auto-create", switch, config.auto_create, "Create a topic when it is first published to"),
    row!("max-topics", count, config.topics_max, "Topics at most"),
    row!("max-groups", count, config.groups_max, "Groups of one topic at most"),
    row!(
        "max-reserved",
        count,
        config.reserved_max,
        "Messages that one connection may have reserved in work queues, over all of them"
    ),
    row!(
        "max-pending",
        count,
        config.pending_max,
        "Messages of one work queue that were reserved and are not confirmed"
    ),
    row!(
        "journal-bytes",
        bytes,
        config.journal_bytes,
        "A work queue's journal begins anew with a checkpoint before it would grow past this and the checkpoint"
    ),
    row!(
        "max-producers",
        count,
        config.producers_max,
        "Producers of one topic whose publishes are remembered; the one that has been silent the longest goes"
    ),
    row!(
        "idle-anchor",
        milliseconds,
        config.idle_anchor_ms,
        "After this long without a publish the line is anchored on disk"
    ),
    row!("ballast-bytes", bytes, config.ballast_bytes, "Space kept back for acknowledging on a full disk; 0: none"),
    row!("recent-bytes", bytes, config.recent_bytes, "Memory for the newest messages, over all topics"),
    row!("index-bytes", bytes, config.index_bytes, "Memory for the indexes of closed segments, over all topics"),
    row!(
        "total-capacity",
        capacity,
        config.total_capacity_bytes,
        "The most bytes that the logs of all topics together may have; whose oldest messages go for a new one, --on-full says"
    ),
    topic_row!(0),
    topic_row!(1),
    topic_row!(2),
    topic_row!(3),
    topic_row!(4),
    topic_row!(5),
    topic_row!(6),
    topic_row!(7),
    topic_row!(8),
    topic_row!(9),
    topic_row!(10),
];

/// Sizes: `4096`, `64 KiB`.
mod bytes {
    use super::*;
    pub(super) const VALUE: &str = "BYTES";

    pub(super) fn set<T: TryFrom<u64>>(field: &mut T, text: &str) -> Result<(), String> {
        let value = values::bytes(text)?;
        *field = T::try_from(value).map_err(|_| "must be less than 4GiB".to_owned())?;
        Ok(())
    }

    pub(super) fn show<T: Copy + Into<u64>>(field: &T) -> String {
        values::show_bytes((*field).into())
    }
}

/// Sizes, or none.
mod capacity {
    use super::*;
    pub(super) const VALUE: &str = "BYTES|off";

    pub(super) fn set(field: &mut u64, text: &str) -> Result<(), String> {
        if text == "off" {
            *field = 0;
            return Ok(());
        }
        bytes::set(field, text)
    }

    pub(super) fn show(field: &u64) -> String {
        if *field == 0 { "off".into() } else { bytes::show(field) }
    }
}

/// Whole numbers.
mod count {
    pub(super) const VALUE: &str = "N";

    pub(super) fn set<T: std::str::FromStr<Err = std::num::ParseIntError>>(
        field: &mut T,
        text: &str,
    ) -> Result<(), String> {
        *field = text.parse().map_err(|error| format!("{error}; write a whole number"))?;
        Ok(())
    }

    pub(super) fn show(field: &impl ToString) -> String {
        field.to_string()
    }
}

/// Times: `500ms`, `30s`, `5m`.
mod milliseconds {
    use super::*;
    pub(super) const VALUE: &str = "TIME";

    pub(super) fn set(field: &mut u64, text: &str) -> Result<(), String> {
        let time = values::duration(text)?;
        if time.subsec_nanos() % 1_000_000 != 0 {
            return Err("is kept in whole milliseconds".into());
        }
        *field = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Ok(())
    }

    pub(super) fn show(field: &u64) -> String {
        humantime::format_duration(Duration::from_millis(*field)).to_string()
    }
}

/// Short times: `100us`.
mod nanoseconds {
    use super::*;
    pub(super) const VALUE: &str = "TIME";

    pub(super) fn set(field: &mut u64, text: &str) -> Result<(), String> {
        *field = u64::try_from(values::duration(text)?.as_nanos()).unwrap_or(u64::MAX);
        Ok(())
    }

    pub(super) fn show(field: &u64) -> String {
        humantime::format_duration(Duration::from_nanos(*field)).to_string()
    }
}

/// `on`, `off`.
mod switch {
    pub(super) const VALUE: &str = "on|off";

    pub(super) fn set(field: &mut bool, text: &str) -> Result<(), String> {
        *field = match text {
            "on" | "true" => true,
            "off" | "false" => false,
            _ => return Err("write on or off".into()),
        };
        Ok(())
    }

    pub(super) fn show(field: &bool) -> String {
        if *field { "on" } else { "off" }.into()
    }
}

/// A directory.
mod path {
    use super::*;
    pub(super) const VALUE: &str = "DIR";

    pub(super) fn set(field: &mut PathBuf, text: &str) -> Result<(), String> {
        *field = text.into();
        Ok(())
    }

    pub(super) fn show(field: &Path) -> String {
        field.display().to_string()
    }
}

/// Several, with commas between.
mod list {
    pub(super) const VALUE: &str = "ADDR";

    pub(super) fn set(field: &mut Vec<String>, text: &str) -> Result<(), String> {
        *field = text.split(',').map(|part| part.trim().to_owned()).collect();
        if field.iter().any(String::is_empty) { Err("an address is empty".into()) } else { Ok(()) }
    }

    pub(super) fn show(field: &[String]) -> String {
        field.join(",")
    }
}

/// How lines are written.
mod format {
    use super::*;
    pub(super) const VALUE: &str = "text|json";

    pub(super) fn set(field: &mut LogFormat, text: &str) -> Result<(), String> {
        *field = match text {
            "text" => LogFormat::Text,
            "json" => LogFormat::Json,
            _ => return Err("write text or json".into()),
        };
        Ok(())
    }

    pub(super) fn show(field: &LogFormat) -> String {
        match field {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        }
        .into()
    }
}

/// Where a value comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    Default,
    File { path: PathBuf, line: usize },
    Environment(String),
    Flag(&'static str),
}

/// As it is put before a sentence about the value.
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File { path, line } => write!(f, "{}:{line}", path.display()),
            Origin::Environment(variable) => f.write_str(variable),
            Origin::Flag(name) => write!(f, "--{name}"),
        }
    }
}

/// What the command line says.
#[derive(Clone, Debug, Default)]
pub(crate) struct Given {
    file: Option<PathBuf>,
    flags: Vec<(&'static str, String)>,
}

impl clap::Args for Given {
    fn augment_args(command: Command) -> Command {
        let file = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .env("PLIMSOLL_CONFIG")
            .value_parser(clap::value_parser!(PathBuf))
            .help("Read settings from this file: `name = value` lines (TOML), named as the flags");
        command.arg(file).args(SETTINGS.iter().map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Given::augment_args(command)
    }
}

fn argument(setting: &'static Setting) -> Arg {
    let default = (setting.show)(&defaults());
    let mut arg = Arg::new(setting.name)
        .long(setting.name)
        .value_name(setting.value)
        .help(format!("{} [default: {default}]", setting.help))
        .action(if setting.several { ArgAction::Append } else { ArgAction::Set })
        .value_parser(move |text: &str| (setting.set)(&mut defaults(), text).map(|()| text.to_owned()));
    if setting.value == switch::VALUE {
        // `--auto-create` alone is enough.
        arg = arg.num_args(0..=1).default_missing_value("on");
    }
    arg
}

impl clap::FromArgMatches for Given {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Given, clap::Error> {
        let mut given = Given::default();
        given.update_from_arg_matches(matches)?;
        Ok(given)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.file = matches.get_one::<PathBuf>("config").cloned();
        self.flags.clear();
        for setting in &SETTINGS {
            let Some(texts) = matches.get_many::<String>(setting.name) else { continue };
            self.flags.push((setting.name, texts.map(String::as_str).collect::<Vec<_>>().join(",")));
        }
        Ok(())
    }
}

/// `PLIMSOLL_SEGMENT_BYTES` for `segment-bytes`.
fn variable(name: &str) -> String {
    format!("PLIMSOLL_{}", name.replace('-', "_").to_uppercase())
}

fn defaults() -> ServeOptions {
    ServeOptions {
        config: Config::default(),
        data: "plimsoll-data".into(),
        listen: vec!["127.0.0.1:7717".into()],
        log: LogFormat::Text,
        disk_threads: 4,
    }
}

/// Every setting with its value and where that comes from.
pub(crate) struct Resolved {
    pub(crate) options: ServeOptions,
    origins: Vec<Origin>,
}

impl Resolved {
    /// Name, value, origin, in the order of `--help`.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (&'static str, String, &Origin)> {
        SETTINGS
            .iter()
            .zip(&self.origins)
            .map(|(setting, origin)| (setting.name, (setting.show)(&self.options), origin))
    }

    fn set(&mut self, name: &str, text: &str, origin: Origin) -> Result<(), String> {
        let Some(at) = SETTINGS.iter().position(|setting| setting.name == name) else {
            let plain = |name: &str| name.replace(['-', '_', '.'], "").to_lowercase();
            let meant = SETTINGS.iter().find(|setting| plain(setting.name) == plain(name));
            let advice = match meant {
                Some(setting) => format!("it is called {}", setting.name),
                None => "`plimsoll config show` lists them".into(),
            };
            return Err(format!("{origin}: there is no setting {name}; {advice}"));
        };
        (SETTINGS[at].set)(&mut self.options, text).map_err(|why| format!("{origin}: {name}: {why}"))?;
        self.origins[at] = origin;
        Ok(())
    }

    /// The core says which values go together.
    fn validate(&self) -> Result<(), String> {
        self.options.validate().map_err(|sentence| {
            let name = sentence.split(' ').next().unwrap_or_default();
            match SETTINGS.iter().position(|setting| setting.name == name).map(|at| &self.origins[at]) {
                Some(Origin::Flag(_)) => format!("--{sentence}"),
                Some(origin) => format!("{origin}: {sentence}"),
                None => sentence,
            }
        })
    }
}

/// Puts everything together.
///
/// # Errors
/// One line: where, which setting, what is wrong with it.
pub(crate) fn resolve(given: &Given) -> Result<Resolved, String> {
    let mut resolved = Resolved { options: defaults(), origins: vec![Origin::Default; SETTINGS.len()] };
    if let Some(path) = &given.file {
        let text = fs::read_to_string(path)
            .map_err(|error| format!("the file of settings {} can't be read: {error}", path.display()))?;
        read_file(&mut resolved, path, &text)?;
    }
    for setting in &SETTINGS {
        let variable = variable(setting.name);
        match env::var(&variable) {
            Ok(text) => resolved.set(setting.name, &text, Origin::Environment(variable))?,
            Err(env::VarError::NotPresent) => {}
            Err(error) => return Err(format!("{variable}: {error}")),
        }
    }
    for (name, text) in &given.flags {
        resolved.set(name, text, Origin::Flag(name))?;
    }
    resolved.validate()?;
    Ok(resolved)
}

/// Puts everything together again, for a broker that was started with `first`.
///
/// # Errors
/// As [`resolve`].
pub(crate) fn reload(given: &Given, first: &ServeOptions) -> Result<Reloaded, String> {
    let wanted = resolve(given)?.options;
    let config = wanted.config.clone();
    // The broker decides about its own. All the rest was used once, at the start.
    let elsewhere = ServeOptions { config: first.config.clone(), ..wanted };
    let differs = |setting: &&Setting| (setting.show)(first) != (setting.show)(&elsewhere);
    let kept = SETTINGS.iter().filter(differs).map(|setting| setting.name).collect();
    Ok(Reloaded { config, kept })
}

fn read_file(resolved: &mut Resolved, path: &Path, text: &str) -> Result<(), String> {
    let at = |position: usize| Origin::File {
        path: path.into(),
        line: 1 + text.as_bytes()[..position.min(text.len())].iter().filter(|byte| **byte == b'\n').count(),
    };
    let table = DeTable::parse(text).map_err(|error| {
        let origin = at(error.span().map_or(0, |span| span.start));
        format!("{origin}: {}", error.message().replace('\n', ", "))
    })?;
    for (key, value) in table.get_ref() {
        let origin = at(key.span().start);
        let text = match value.get_ref() {
            DeValue::Array(items) => {
                let items: Option<Vec<String>> = items.iter().map(|item| scalar(item.get_ref())).collect();
                items.map(|items| items.join(","))
            }
            value => scalar(value),
        };
        let text =
            text.ok_or_else(|| format!("{origin}: {}: a value is a text, a number, true or false", key.get_ref()))?;
        resolved.set(key.get_ref(), &text, origin)?;
    }
    Ok(())
}

fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => Some(number.to_string()),
        DeValue::Boolean(on) => Some(switch::show(on)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args, FromArgMatches};

    fn given(args: &[&str]) -> Result<Given, clap::Error> {
        let command = Given::augment_args(Command::new("serve").no_binary_name(true));
        Given::from_arg_matches(&command.try_get_matches_from(args)?)
    }

    fn resolved(args: &[&str]) -> Resolved {
        resolve(&given(args).expect("flags")).expect("settings")
    }

    fn from_file(text: &str) -> Result<Resolved, String> {
        let mut resolved = resolved(&[]);
        read_file(&mut resolved, Path::new("plimsoll.conf"), text)?;
        resolved.validate()?;
        Ok(resolved)
    }

    /// Whatever is shown can be given again, and means the same.
    #[test]
    fn every_default_reads_as_it_is_shown() {
        for setting in &SETTINGS {
            let shown = (setting.show)(&defaults());
            let mut options = defaults();
            (setting.set)(&mut options, &shown).unwrap_or_else(|why| panic!("{} {shown}: {why}", setting.name));
            assert_eq!((setting.show)(&options), shown, "{}", setting.name);
        }
        assert_eq!(resolved(&[]).options.config, Config::default());
    }

    /// Each row moves a field of its own, and the one that it is named after.
    #[test]
    fn no_two_settings_share_a_field() {
        for setting in &SETTINGS {
            let other = match setting.value {
                bytes::VALUE => "4096",
                "TIME" | "TIME|off" => "77ms",
                "BYTES|off" => "4096",
                "N" | "N|off" => "7",
                "POLICY" => "messages=7",
                "no|yes" => "yes",
                "reject|drop-oldest" => "drop-oldest",
                switch::VALUE if (setting.show)(&defaults()) == "on" => "off",
                switch::VALUE => "on",
                format::VALUE => "json",
                _ => "127.0.0.1:1",
            };
            let mut options = defaults();
            (setting.set)(&mut options, other).expect("a value");
            let changed = |of: &&Setting| (of.show)(&options) != (of.show)(&defaults());
            let changed: Vec<&str> = SETTINGS.iter().filter(changed).map(|of| of.name).collect();
            assert_eq!(changed, [setting.name]);
        }
    }

    #[test]
    fn a_flag_goes_before_the_file_and_the_file_before_the_default() {
        let mut resolved = from_file("segment-bytes = \"32 MiB\"\nqueue-messages = 7\n").expect("a file");
        assert_eq!((resolved.options.config.segment_bytes, resolved.options.config.queue_messages), (32 << 20, 7));
        let flags = given(&["--segment-bytes", "1MiB", "--auto-create"]).expect("flags");
        for (name, text) in &flags.flags {
            resolved.set(name, text, Origin::Flag(name)).expect("a value");
        }
        assert_eq!(resolved.options.config.segment_bytes, 1 << 20);
        assert!(resolved.options.config.auto_create);
        let origin = |of: &str| resolved.rows().find(|(name, ..)| *name == of).expect("a row").2.to_string();
        assert_eq!(origin("segment-bytes"), "--segment-bytes");
        assert_eq!(origin("queue-messages"), "plimsoll.conf:2");
        assert_eq!(origin("ballast-bytes"), "default");
    }

    #[test]
    fn a_mistake_says_where_and_what() {
        for (text, sentence) in [
            ("\nsegment_bytes = 5\n", "plimsoll.conf:2: there is no setting segment_bytes; it is called segment-bytes"),
            ("fast = true\n", "plimsoll.conf:1: there is no setting fast; `plimsoll config show` lists them"),
            ("segment-bytes = 5\n", "plimsoll.conf:1: segment-bytes must be 512 to 1099511627776, not 5"),
            ("gather = 5\n", "plimsoll.conf:1: gather: "),
            ("log = \"xml\"\n", "plimsoll.conf:1: log: write text or json"),
            ("[topic]\n", "plimsoll.conf:1: topic: a value is a text, a number, true or false"),
            ("a = 1\nb = \n", "plimsoll.conf:2: "),
            ("log = \"text\"\nlog = \"text\"\n", "plimsoll.conf:2: "),
            ("disk-threads = 0\n", "plimsoll.conf:1: disk-threads must be 1 to 64, not 0"),
        ] {
            let told = from_file(text).err().expect("a mistake");
            assert!(told.starts_with(sentence), "{text:?}: {told}");
            assert!(!told.contains('\n'), "{told:?}");
        }
        let flags = given(&["--segment-bytes", "5"]).expect("a number");
        let told = resolve(&flags).err().expect("a mistake");
        assert_eq!(told, "--segment-bytes must be 512 to 1099511627776, not 5");
        let told = given(&["--gather", "x"]).expect_err("a mistake").to_string();
        assert!(told.contains("--gather <TIME>"), "{told}");
    }
}
