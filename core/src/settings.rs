//! What a topic can be told about itself: one table, from which requests, `topic.toml`, the broker's defaults and the
//! answers to `SETTINGS` are made.
//!
//! A topic keeps what was set for it. For the rest the broker's default holds, and where that says nothing, the table's.

use alloc::format;
use alloc::string::String;

/// One thing that a topic can be told. The order is that of [`SETTINGS`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Setting {
    /// The longest that a written message waits for a force, milliseconds. 0 with `FlushMessages` 0: every batch is forced at once.
    FlushIntervalMs,
    /// Written messages that are forced together at the latest. 0: no such bound.
    FlushMessages,
    /// Messages older than this go, milliseconds. 0: never for their age.
    RetainMs,
    /// The oldest messages go while the log has more bytes than this. 0: never for their size.
    RetainBytes,
    /// Messages that every group has acknowledged go.
    RetainConsumed,
    /// A segment takes messages for no longer than this, milliseconds. 0: until it is full.
    RollMs,
    /// The most bytes that the log may have. 0: no bound of its own.
    CapacityBytes,
    /// What becomes of a message for which `CapacityBytes` leaves no room.
    OnFull,
    /// Of each producer so many of its last sequences are known. 0: no publish is told from an earlier one.
    DedupSequences,
    /// … for this long, milliseconds. 0: for as long as there is no more room for them.
    DedupMs,
    /// A closed segment with a smaller share of messages that are not confirmed is packed, percent. Needs `RetainConsumed`, and no group but
    /// work queues. 0: none is.
    PackBelow,
    /// So often a work queue hands a message out, then it becomes a dead letter. 0: as often as it takes.
    MaxDeliveries,
}

/// A row of [`SETTINGS`].
#[derive(PartialEq, Eq, Debug)]
pub struct Definition {
    /// Which.
    pub setting: Setting,
    /// Its name in a request. In `topic.toml` it has `_` for `-`.
    pub name: &'static str,
    /// The largest number; the smallest is 0. Of a choice the number of words less one.
    pub max: u64,
    /// What holds where neither the topic nor the broker was told anything.
    pub default: u64,
    /// The words of a choice, by number. Empty: a number is written as digits.
    pub words: &'static [&'static str],
}

/// A hundred years.
const MS_MAX: u64 = 100 * 366 * 24 * 3_600_000;
const BYTES_MAX: u64 = 1 << 50;

const fn number(setting: Setting, name: &'static str, max: u64, default: u64) -> Definition {
    Definition { setting, name, max, default, words: &[] }
}

const fn choice(setting: Setting, name: &'static str, words: &'static [&'static str]) -> Definition {
    Definition { setting, name, max: words.len() as u64 - 1, default: 0, words }
}

/// Every setting, in the order in which they are shown.
pub static SETTINGS: [Definition; 12] = [
    number(Setting::FlushIntervalMs, "flush-interval-ms", 3_600_000, 0),
    number(Setting::FlushMessages, "flush-messages", 1_000_000, 0),
    number(Setting::RetainMs, "retain-ms", MS_MAX, 0),
    number(Setting::RetainBytes, "retain-bytes", BYTES_MAX, 0),
    choice(Setting::RetainConsumed, "retain-consumed", &["no", "yes"]),
    number(Setting::RollMs, "roll-ms", MS_MAX, 0),
    number(Setting::CapacityBytes, "capacity-bytes", BYTES_MAX, 0),
    choice(Setting::OnFull, "on-full", &["reject", "drop-oldest"]),
    number(Setting::DedupSequences, "dedup-sequences", 1 << 20, 1000),
    number(Setting::DedupMs, "dedup-ms", MS_MAX, 24 * 3_600_000),
    number(Setting::PackBelow, "pack-below-percent", 100, 50),
    number(Setting::MaxDeliveries, "max-deliveries", 1_000_000, 0),
];

impl Definition {
    /// The row of that name, as a request or (with `_`) a file writes it.
    pub fn named(name: &str) -> Option<&'static Definition> {
        let equal = |a: u8, b: u8| a == b || (a == b'_' && b == b'-');
        SETTINGS
            .iter()
            .find(|row| row.name.len() == name.len() && name.bytes().zip(row.name.bytes()).all(|(a, b)| equal(a, b)))
    }

    /// Reads a value.
    ///
    /// # Errors
    /// Half a sentence that says what can be written: `must be …, not …`.
    pub fn parse(&self, text: &str) -> Result<u64, String> {
        let digits = text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten();
        let value = match self.words {
            [] => digits.filter(|value| *value <= self.max),
            words => words.iter().position(|word| *word == text).map(|at| at as u64),
        };
        value.ok_or_else(|| match self.words {
            [] => format!("must be a whole number from 0 to {}, not {text}", self.max),
            words => format!("must be {}, not {text}", words.join(" or ")),
        })
    }

    /// Writes a value as [`Definition::parse`] reads it.
    pub fn show(&self, value: u64) -> String {
        match self.words.get(value as usize) {
            Some(word) => String::from(*word),
            None => format!("{value}"),
        }
    }
}

/// What one topic, or the broker for all topics, was told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Settings([Option<u64>; SETTINGS.len()]);

impl Settings {
    /// Nothing was set.
    pub const NONE: Settings = Settings([None; SETTINGS.len()]);

    /// The value that was set.
    pub fn get(&self, setting: Setting) -> Option<u64> {
        self.0[setting as usize]
    }

    /// Sets a value, which [`Definition::parse`] has read, or takes it back.
    pub fn set(&mut self, setting: Setting, value: Option<u64>) {
        self.0[setting as usize] = value;
    }

    /// What was set, in the order of the table.
    pub fn iter(&self) -> impl Iterator<Item = (&'static Definition, u64)> {
        SETTINGS.iter().filter_map(|row| Some((row, self.get(row.setting)?)))
    }
}

/// A change to some of a topic's settings: `None` takes one back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Change([Option<Option<u64>>; SETTINGS.len()]);

impl Change {
    /// Takes in what a request says. `false`: it says so twice.
    pub fn add(&mut self, setting: Setting, value: Option<u64>) -> bool {
        self.0[setting as usize].replace(value).is_none()
    }

    /// Whether nothing is to be changed.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    /// The settings after the change.
    pub fn apply(&self, mut settings: Settings) -> Settings {
        for (value, change) in settings.0.iter_mut().zip(self.0) {
            *value = change.unwrap_or(*value);
        }
        settings
    }
}

/// Who has said what a value is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// It was set for the topic.
    Topic,
    /// The broker was started with it.
    Broker,
    /// Nobody.
    Default,
}

impl Origin {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Origin::Topic => "topic",
            Origin::Broker => "broker",
            Origin::Default => "default",
        }
    }
}

/// The value that holds for a topic, and who has said so.
pub fn effective(topic: &Settings, broker: &Settings, row: &Definition) -> (u64, Origin) {
    match (topic.get(row.setting), broker.get(row.setting)) {
        (Some(value), _) => (value, Origin::Topic),
        (None, Some(value)) => (value, Origin::Broker),
        (None, None) => (row.default, Origin::Default),
    }
}

/// What holds for one topic, ready to be asked at every message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Policy([u64; SETTINGS.len()]);

impl Policy {
    /// The values that hold.
    pub fn new(topic: &Settings, broker: &Settings) -> Policy {
        Policy(core::array::from_fn(|at| effective(topic, broker, &SETTINGS[at]).0))
    }

    /// A number or a choice.
    pub fn get(&self, setting: Setting) -> u64 {
        self.0[setting as usize]
    }

    /// A number of which 0 means that there is no such bound.
    pub fn bound(&self, setting: Setting) -> Option<u64> {
        Some(self.get(setting)).filter(|value| *value > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_settings() {
        for (at, row) in SETTINGS.iter().enumerate() {
            assert_eq!(row.setting as usize, at, "{}", row.name);
            assert!(row.default <= row.max);
            assert_eq!(Definition::named(row.name).map(|found| found.setting), Some(row.setting));
            assert_eq!(Definition::named(&row.name.replace('-', "_")).map(|found| found.setting), Some(row.setting));
        }
        for other in ["", "flush", "retain-m", "retain-mss", "RETAIN-MS", "retain ms"] {
            assert!(Definition::named(other).is_none(), "{other}");
        }
    }

    #[test]
    fn a_value_is_read_as_it_is_shown_and_others_are_told_what_to_write() {
        for row in &SETTINGS {
            for value in [0, 1, row.max] {
                assert_eq!(row.parse(&row.show(value)), Ok(value), "{}", row.name);
            }
            for wrong in ["", "-1", "+1", "1.5", "1k", " 1", "18446744073709551616", "maybe"] {
                assert!(row.parse(wrong).is_err(), "{} {wrong}", row.name);
            }
            assert!(row.parse(&format!("{}", row.max + 1)).is_err());
        }
        let sentence = |name: &str, text: &str| Definition::named(name).expect("a setting").parse(text).unwrap_err();
        assert_eq!(sentence("on-full", "drop"), "must be reject or drop-oldest, not drop");
        assert_eq!(sentence("flush-messages", "1000001"), "must be a whole number from 0 to 1000000, not 1000001");
    }

    #[test]
    fn the_topic_goes_before_the_broker_and_the_broker_before_the_table() {
        let (mut topic, mut broker) = (Settings::default(), Settings::default());
        let holds = |topic: &Settings, broker: &Settings| {
            let row = &SETTINGS[Setting::DedupSequences as usize];
            assert_eq!(effective(topic, broker, row).0, Policy::new(topic, broker).get(row.setting));
            effective(topic, broker, row)
        };
        assert_eq!(holds(&topic, &broker), (1000, Origin::Default));
        broker.set(Setting::DedupSequences, Some(7));
        assert_eq!(holds(&topic, &broker), (7, Origin::Broker));
        topic.set(Setting::DedupSequences, Some(0));
        assert_eq!(holds(&topic, &broker), (0, Origin::Topic));
        assert_eq!(Policy::new(&topic, &broker).bound(Setting::DedupSequences), None);
        assert_eq!(Policy::new(&topic, &broker).bound(Setting::DedupMs), Some(86_400_000));
    }

    #[test]
    fn a_change_touches_what_it_names() {
        let mut before = Settings::default();
        before.set(Setting::RetainMs, Some(5));
        before.set(Setting::RollMs, Some(6));
        let mut change = Change::default();
        assert!(change.is_empty());
        assert!(change.add(Setting::RetainMs, None) && change.add(Setting::OnFull, Some(1)));
        assert!(!change.add(Setting::OnFull, Some(0)));
        assert!(!change.is_empty());
        let after = change.apply(before);
        let set: alloc::vec::Vec<_> = after.iter().map(|(row, value)| (row.name, value)).collect();
        assert_eq!(set, [("roll-ms", 6), ("on-full", 0)]);
    }
}
