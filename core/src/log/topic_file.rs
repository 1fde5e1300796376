//! The text files that say what a directory is: `topic.toml` and `plimsoll.toml`.
//!
//! A reader refuses a format that it doesn't know, and a key that it doesn't know: it might be one that changes what
//! the other bytes mean.

use crate::effect::ConnectionId;
use crate::record::LogId;
use crate::settings::{Change, SETTINGS, Settings};
use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::str;
use toml::de::{DeTable, DeValue};

/// The format that this version writes and knows.
pub const FORMAT: i64 = 1;

/// Why one of these files can't be used: one line for the person who has to mend it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FileError {
    /// Another version wrote it.
    #[error("format {0} is not known to this version, which knows {FORMAT}")]
    UnknownFormat(i64),
    /// No version wrote it like this.
    #[error("{0}")]
    Damaged(String),
}

/// The key of the checksum of all that stands below it.
const CHECKSUM: &str = "crc32c";

/// What `topic.toml` says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TopicToml {
    /// The 16 random bytes that name the log.
    pub log_id: LogId,
    /// When the topic was made, milliseconds since 1970 by the broker's wall clock.
    pub created_ms: i64,
    /// What was set for the topic.
    pub settings: Settings,
}

impl TopicToml {
    /// The file's text.
    pub fn render(&self) -> String {
        let log_id = u128::from_be_bytes(self.log_id);
        let created_ms = self.created_ms;
        let mut text = format!("log_id = \"{log_id:032x}\"\ncreated_ms = {created_ms}\n");
        for (row, value) in self.settings.iter() {
            let name = row.name.replace('-', "_");
            let value = row.show(value);
            let quote = if row.words.is_empty() { "" } else { "\"" };
            text.push_str(&format!("{name} = {quote}{value}{quote}\n"));
        }
        let checksum = crc32c::crc32c(text.as_bytes());
        format!(
            "# A Plimsoll topic. Do not edit while a broker runs; who edits it takes out the line {CHECKSUM}.\n\
             format = {FORMAT}\n\
             {CHECKSUM} = \"{checksum:08x}\"\n\
             {text}"
        )
    }

    /// Reads a file's whole content.
    ///
    /// # Errors
    /// An unknown format, or damage: no TOML, a key that is missing, unknown or of the wrong type, a value out of range, an
    /// empty file.
    pub fn parse(file: &[u8]) -> Result<TopicToml, FileError> {
        let names = SETTINGS.each_ref().map(|row| row.name.replace('-', "_"));
        let known: Vec<&str> =
            [CHECKSUM, "log_id", "created_ms"].into_iter().chain(names.iter().map(String::as_str)).collect();
        let keys = Keys::read(file, &known)?;
        keys.check_sum(file)?;
        let mut settings = Settings::default();
        for (row, name) in SETTINGS.iter().zip(&names) {
            if let Some(text) = keys.text(name, row.words.is_empty())? {
                let value = row.parse(&text).map_err(|reason| damaged(format!("{name} {reason}")))?;
                settings.set(row.setting, Some(value));
            }
        }
        Ok(TopicToml { log_id: keys.log_id("log_id")?, created_ms: keys.integer("created_ms")?, settings })
    }
}

/// Changes to a topic's settings: one replacement of `topic.toml` at a time, in the order of the requests.
#[derive(Debug, Default)]
pub(crate) struct Alters {
    waiting: VecDeque<Alter>,
    running: Option<(Alter, Settings)>,
}

/// One change, and who waits for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Alter {
    pub(crate) change: Change,
    pub(crate) connection: ConnectionId,
    pub(crate) request: u64,
}

impl Alters {
    pub(crate) fn push(&mut self, alter: Alter) {
        self.waiting.push_back(alter);
    }

    /// Begins the next change to `now`, if none is under way. Says what is to be stored.
    pub(crate) fn begin(&mut self, now: &Settings) -> Option<Settings> {
        if self.running.is_some() {
            return None;
        }
        let alter = self.waiting.pop_front()?;
        let settings = alter.change.apply(*now);
        self.running = Some((alter, settings));
        Some(settings)
    }

    /// The one that was under way has ended.
    pub(crate) fn end(&mut self) -> (Alter, Settings) {
        self.running.take().expect("a change was under way")
    }

    /// Whether nothing is under way.
    pub(crate) fn is_settled(&self) -> bool {
        self.running.is_none() && self.waiting.is_empty()
    }
}

/// The text of `plimsoll.toml`, which says which format a data directory has.
pub fn render_data_format() -> String {
    format!("# A Plimsoll data directory. Do not edit.\nformat = {FORMAT}\n")
}

/// Whether a data directory with this `plimsoll.toml` is one for this version.
///
/// # Errors
/// As [`TopicToml::parse`].
pub fn check_data_format(file: &[u8]) -> Result<(), FileError> {
    Keys::read(file, &[]).map(|_| ())
}

/// The keys of a file whose format is known.
struct Keys<'a>(DeTable<'a>);

impl<'a> Keys<'a> {
    fn read(file: &'a [u8], known: &[&str]) -> Result<Keys<'a>, FileError> {
        let text = str::from_utf8(file).map_err(|error| damaged(format!("byte {} is no text", error.valid_up_to())))?;
        let table = DeTable::parse(text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or(text);
            let line = 1 + before.bytes().filter(|&byte| byte == b'\n').count();
            damaged(format!("line {line}: {}", error.message()))
        })?;
        let keys = Keys(table.into_inner());
        // The format first: what another version wrote may well have other keys.
        match keys.integer("format")? {
            FORMAT => {}
            format => return Err(FileError::UnknownFormat(format)),
        }
        for name in keys.0.keys() {
            let name: &str = name.get_ref();
            if name != "format" && !known.contains(&name) {
                return Err(damaged(format!("{name:?} is no setting that this version knows")));
            }
        }
        Ok(keys)
    }

    fn get(&self, name: &str) -> Result<&DeValue<'a>, FileError> {
        self.0.get(name).map(|value| value.get_ref()).ok_or_else(|| damaged(format!("{name} is missing")))
    }

    fn integer(&self, name: &str) -> Result<i64, FileError> {
        let DeValue::Integer(digits) = self.get(name)? else {
            return Err(damaged(format!("{name} is no whole number")));
        };
        i64::from_str_radix(digits.as_str(), digits.radix()).map_err(|_| damaged(format!("{name} is out of range")))
    }

    /// A line that is cut off, or a digit that is another, would change a setting without a word (P7). The checksum is of all that
    /// stands behind its own line; a cut that takes it takes the log id, too.
    fn check_sum(&self, file: &[u8]) -> Result<(), FileError> {
        let Some(told) = self.text(CHECKSUM, false)? else { return Ok(()) };
        let mut end = 0;
        for line in file.split_inclusive(|byte| *byte == b'\n') {
            end += line.len();
            if line.starts_with(CHECKSUM.as_bytes()) {
                break;
            }
        }
        let found = format!("{:08x}", crc32c::crc32c(&file[end..]));
        if told == found {
            return Ok(());
        }
        Err(damaged(format!(
            "{CHECKSUM} is {told}, but that of the lines below it is {found}; it was damaged or edited"
        )))
    }

    /// The value of a key that may be missing: the digits of a number, the text of a string.
    fn text(&self, name: &str, number: bool) -> Result<Option<String>, FileError> {
        match (self.0.get(name).map(|value| value.get_ref()), number) {
            (None, _) => Ok(None),
            (Some(_), true) => self.integer(name).map(|value| Some(format!("{value}"))),
            (Some(DeValue::String(text)), false) => Ok(Some(String::from(&**text))),
            (Some(_), false) => Err(damaged(format!("{name} is no string"))),
        }
    }

    fn log_id(&self, name: &str) -> Result<LogId, FileError> {
        let DeValue::String(digits) = self.get(name)? else {
            return Err(damaged(format!("{name} is no string")));
        };
        if digits.len() != 32 || !digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(damaged(format!("{name} is not 32 hex digits")));
        }
        let id = u128::from_str_radix(digits, 16).expect("32 hex digits");
        Ok(id.to_be_bytes())
    }
}

fn damaged(reason: String) -> FileError {
    FileError::Damaged(reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Setting;
    use alloc::string::ToString;
    use proptest::prelude::*;

    const TEXT: &str = "# A Plimsoll topic. Do not edit while a broker runs; who edits it takes out the line crc32c.\n\
        format = 1\n\
        crc32c = \"f698e16b\"\n\
        log_id = \"000102030405060708090a0b0c0d0eff\"\n\
        created_ms = 1700000000000\n";
    const TOPIC: TopicToml = TopicToml {
        log_id: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255],
        created_ms: 1_700_000_000_000,
        settings: Settings::NONE,
    };

    /// The text as somebody leaves it who has edited it.
    fn edited() -> String {
        TEXT.replace("crc32c = \"f698e16b\"\n", "")
    }

    fn refused(text: &str) -> String {
        match TopicToml::parse(text.as_bytes()) {
            Err(error) => error.to_string(),
            Ok(topic) => panic!("{text:?} was taken as {topic:?}"),
        }
    }

    #[test]
    fn the_text_is_as_documented() {
        assert_eq!(TOPIC.render(), TEXT);
        assert_eq!(TopicToml::parse(TEXT.as_bytes()), Ok(TOPIC));
        assert_eq!(render_data_format(), "# A Plimsoll data directory. Do not edit.\nformat = 1\n");
        assert_eq!(check_data_format(render_data_format().as_bytes()), Ok(()));
    }

    #[test]
    fn a_newer_format_is_told_from_damage_whatever_else_it_has() {
        let newer = "format = 2\ncodec = \"zstd\"\n";
        assert_eq!(TopicToml::parse(newer.as_bytes()), Err(FileError::UnknownFormat(2)));
        assert_eq!(check_data_format(newer.as_bytes()), Err(FileError::UnknownFormat(2)));
        assert_eq!(refused(newer), "format 2 is not known to this version, which knows 1");
    }

    #[test]
    fn damage_is_named() {
        for (from, to, reason) in [
            (edited().as_str(), "", "format is missing"),
            ("format = 1\n", "", "format is missing"),
            ("format = 1", "format = \"1\"", "format is no whole number"),
            ("created_ms = 1700000000000\n", "", "created_ms is missing"),
            ("1700000000000", "17000000000000000000", "created_ms is out of range"),
            ("1700000000000", "1.5", "created_ms is no whole number"),
            ("0eff", "0ef", "log_id is not 32 hex digits"),
            ("0eff", "0eFF", "log_id is not 32 hex digits"),
            ("0001", "+001", "log_id is not 32 hex digits"),
            ("\"000102030405060708090a0b0c0d0eff\"", "7", "log_id is no string"),
            ("created_ms", "fsync = \"never\"\ncreated_ms", "\"fsync\" is no setting that this version knows"),
            ("1700000000000", "1700000000000\n[retention]", "\"retention\" is no setting that this version knows"),
        ] {
            assert_eq!(refused(&edited().replace(from, to)), reason);
        }
        assert_eq!(refused(&edited()[..110]), "line 3: key with no value, expected `=`");
        assert!(refused(&edited().replace("format", "created_ms")).starts_with("line 4: "));
        assert_eq!(TopicToml::parse(b"format\xff"), Err(damaged("byte 6 is no text".into())));
        assert_eq!(TopicToml::parse(&[0; 100]).unwrap_err().to_string().lines().count(), 1);
        assert!(check_data_format(TEXT.as_bytes()).is_err());
    }

    #[test]
    fn settings_are_written_as_in_requests_and_checked() {
        let text = format!("{}retain_ms = 60000\non_full = \"drop-oldest\"\n", edited());
        let topic = TopicToml::parse(text.as_bytes()).expect("a topic");
        assert_eq!(TopicToml::parse(topic.render().as_bytes()), Ok(topic));
        assert_eq!(topic.settings.get(Setting::RetainMs), Some(60_000));
        assert_eq!(topic.settings.get(Setting::OnFull), Some(1));
        for (from, to, reason) in [
            ("60000", "-1", "retain_ms must be a whole number from 0 to 3162240000000, not -1"),
            ("60000", "\"1h\"", "retain_ms is no whole number"),
            ("\"drop-oldest\"", "1", "on_full is no string"),
            ("drop-oldest", "drop", "on_full must be reject or drop-oldest, not drop"),
            ("retain_ms", "retain_min", "\"retain_min\" is no setting that this version knows"),
        ] {
            assert_eq!(refused(&text.replace(from, to)), reason);
        }
    }

    #[test]
    fn comments_and_spaces_are_free() {
        let edited = edited().replace("format = 1", "# edited\r\n  format=1 # still");
        assert_eq!(TopicToml::parse(edited.as_bytes()), Ok(TOPIC));
    }

    proptest! {
        #[test]
        fn every_topic_comes_back(
            log_id: LogId, created_ms: i64, values: [Option<u64>; SETTINGS.len()],
        ) {
            let mut settings = Settings::default();
            for (row, value) in SETTINGS.iter().zip(values) {
                settings.set(row.setting, value.map(|value| value % (row.max + 1)));
            }
            let topic = TopicToml { log_id, created_ms, settings };
            prop_assert_eq!(TopicToml::parse(topic.render().as_bytes()), Ok(topic));
        }

        /// Of what stands below its line, and of the line: a setting that is another, or none, is not taken.
        #[test]
        fn p7_no_damage_changes_what_is_said(at in 0..200_usize, with: u8, is_cut: bool) {
            let mut settings = Settings::default();
            settings.set(Setting::RetainMs, Some(60_000));
            let topic = TopicToml { settings, ..TOPIC };
            let mut file = topic.render().into_bytes();
            let at = at % file.len();
            if is_cut {
                file.truncate(at);
            } else {
                file[at] = with;
            }
            if let Ok(read) = TopicToml::parse(&file) {
                prop_assert_eq!(read, topic);
            }
        }

        #[test]
        fn no_damage_panics_or_takes_two_lines(at in 0..TEXT.len(), with: u8, cut in 0..TEXT.len()) {
            let mut file = TEXT.as_bytes().to_vec();
            file[at] = with;
            for file in [&file[..], &file[..cut]] {
                if let Err(error) = TopicToml::parse(file) {
                    prop_assert_eq!(error.to_string().lines().count(), 1);
                }
            }
        }
    }
}
