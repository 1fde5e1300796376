//! Settings of a topic as people write them: `--retain-age 7d`, `--flush interval=50ms,messages=500`.
//!
//! The core counts in milliseconds and bytes; one table says how each is written. `serve` takes the same for all topics that
//! were told nothing else.

use super::values;
use plimsoll_core::settings::{Definition, SETTINGS, Setting, Settings};
use std::time::Duration;

/// How values of one flag are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// `always`, `interval=50ms`, `messages=500`, or both with a comma between.
    Flush,
    Time(Setting),
    Bytes(Setting),
    Count(Setting),
    /// A count of which `off` means that there is no such bound.
    Bound(Setting),
    Word(Setting),
}

/// One flag.
pub(crate) struct Flag {
    /// Without its dashes.
    pub(crate) name: &'static str,
    kind: Kind,
    pub(crate) help: &'static str,
}

/// In the order in which they are shown.
pub(crate) static FLAGS: [Flag; 11] = [
    Flag {
        name: "flush",
        kind: Kind::Flush,
        help: "When what was written is forced: `always` at once, `interval=50ms`, `messages=500`, or both with a comma \
               between; a DURABLE publish always forces at once",
    },
    Flag { name: "retain-age", kind: Kind::Time(Setting::RetainMs), help: "Messages older than this are removed" },
    Flag {
        name: "retain-bytes",
        kind: Kind::Bytes(Setting::RetainBytes),
        help: "The oldest messages are removed while the log has more bytes than this",
    },
    Flag {
        name: "retain-consumed",
        kind: Kind::Word(Setting::RetainConsumed),
        help: "Messages that every group has acknowledged are removed",
    },
    Flag {
        name: "roll-age",
        kind: Kind::Time(Setting::RollMs),
        help: "A segment takes messages for no longer than this",
    },
    Flag { name: "capacity", kind: Kind::Bytes(Setting::CapacityBytes), help: "The most bytes that the log may have" },
    Flag {
        name: "on-full",
        kind: Kind::Word(Setting::OnFull),
        help: "What becomes of a message beyond the capacity: it is refused, or the oldest ones of the topic are removed for it",
    },
    Flag {
        name: "dedup-sequences",
        kind: Kind::Count(Setting::DedupSequences),
        help: "Of each producer so many of its last sequences are known, and stored once",
    },
    Flag { name: "dedup-age", kind: Kind::Time(Setting::DedupMs), help: "… for this long" },
    Flag {
        name: "pack-below-percent",
        kind: Kind::Bound(Setting::PackBelow),
        help: "Where messages that every work queue has confirmed may go (--retain-consumed yes): a segment of which fewer messages are \
               left than this is written anew without the others",
    },
    Flag {
        name: "max-deliveries",
        kind: Kind::Bound(Setting::MaxDeliveries),
        help: "So often a work queue hands a message out; one that is not confirmed then goes to the dead letters, topic \
               <topic>.dead",
    },
];

/// The flag of that name. Panics where there is none: names come from the table.
#[cfg(test)]
fn flag(name: &str) -> &'static Flag {
    FLAGS.iter().find(|flag| flag.name == name).expect("a flag of the table")
}

fn row(setting: Setting) -> &'static Definition {
    &SETTINGS[setting as usize]
}

impl Flag {
    /// What a value is called in `--help`.
    pub(crate) const fn value(&self) -> &'static str {
        match self.kind {
            Kind::Flush => "POLICY",
            Kind::Time(_) => "TIME|off",
            Kind::Bytes(_) => "BYTES|off",
            Kind::Count(_) => "N",
            Kind::Bound(_) => "N|off",
            Kind::Word(Setting::OnFull) => "reject|drop-oldest",
            Kind::Word(_) => "no|yes",
        }
    }

    /// The core's settings that the flag sets.
    pub(crate) fn definitions(&self) -> impl Iterator<Item = &'static Definition> + use<> {
        let (first, second) = match self.kind {
            Kind::Flush => (Setting::FlushIntervalMs, Some(Setting::FlushMessages)),
            Kind::Time(setting)
            | Kind::Bytes(setting)
            | Kind::Count(setting)
            | Kind::Bound(setting)
            | Kind::Word(setting) => (setting, None),
        };
        [first].into_iter().chain(second).map(row)
    }

    /// Reads a value.
    ///
    /// # Errors
    /// Half a sentence that says what can be written.
    pub(crate) fn set(&self, settings: &mut Settings, text: &str) -> Result<(), String> {
        let (setting, value) = match self.kind {
            Kind::Flush => return set_flush(settings, text),
            Kind::Time(setting) | Kind::Bytes(setting) | Kind::Bound(setting) if text == "off" => (setting, 0),
            Kind::Time(setting) => (setting, milliseconds(text)?),
            Kind::Bytes(setting) => (setting, values::bytes(text)?),
            Kind::Count(setting) | Kind::Bound(setting) | Kind::Word(setting) => (setting, row(setting).parse(text)?),
        };
        settings.set(setting, Some(row(setting).parse(&row(setting).show(value))?));
        Ok(())
    }

    /// Writes what holds.
    pub(crate) fn show(&self, value: impl Fn(Setting) -> u64) -> String {
        match self.kind {
            Kind::Flush => show_flush(value(Setting::FlushIntervalMs), value(Setting::FlushMessages)),
            Kind::Time(setting) | Kind::Bytes(setting) | Kind::Bound(setting) if value(setting) == 0 => "off".into(),
            Kind::Time(setting) => time(value(setting)),
            Kind::Bytes(setting) => values::show_bytes(value(setting)),
            Kind::Count(setting) | Kind::Bound(setting) | Kind::Word(setting) => row(setting).show(value(setting)),
        }
    }

    /// As [`Flag::show`], for the broker's defaults.
    pub(crate) fn show_default(&self, settings: &Settings) -> String {
        self.show(|setting| settings.get(setting).unwrap_or(row(setting).default))
    }
}

fn set_flush(settings: &mut Settings, text: &str) -> Result<(), String> {
    const ADVICE: &str = "write always, interval=50ms, messages=500, or interval=50ms,messages=500";
    let (mut interval, mut messages) = (0, 0);
    for part in text.split(',').filter(|_| text != "always") {
        let set = match part.trim().split_once('=') {
            Some(("interval", value)) => (&mut interval, milliseconds(value)?),
            Some(("messages", value)) => (&mut messages, row(Setting::FlushMessages).parse(value)?),
            _ => return Err(ADVICE.into()),
        };
        if *set.0 != 0 || set.1 == 0 {
            return Err(ADVICE.into());
        }
        *set.0 = set.1;
    }
    for (setting, value) in [(Setting::FlushIntervalMs, interval), (Setting::FlushMessages, messages)] {
        settings.set(setting, Some(row(setting).parse(&value.to_string())?));
    }
    Ok(())
}

fn show_flush(interval_ms: u64, messages: u64) -> String {
    let interval = (interval_ms > 0).then(|| format!("interval={}", time(interval_ms)));
    let messages = (messages > 0).then(|| format!("messages={messages}"));
    let parts: Vec<String> = interval.into_iter().chain(messages).collect();
    if parts.is_empty() { "always".into() } else { parts.join(",") }
}

fn milliseconds(text: &str) -> Result<u64, String> {
    let time = values::duration(text)?;
    if time.subsec_nanos() % 1_000_000 != 0 {
        return Err("is kept in whole milliseconds".into());
    }
    Ok(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

/// Without spaces, so that it can be given again as one word.
fn time(ms: u64) -> String {
    humantime::format_duration(Duration::from_millis(ms)).to_string().replace(' ', "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, text: &str) -> Result<Settings, String> {
        let mut settings = Settings::NONE;
        flag(name).set(&mut settings, text).map(|()| settings)
    }

    #[test]
    fn every_setting_of_the_core_has_one_flag() {
        let mut of_flags: Vec<Setting> = FLAGS.iter().flat_map(Flag::definitions).map(|row| row.setting).collect();
        of_flags.sort();
        assert_eq!(of_flags, SETTINGS.each_ref().map(|row| row.setting));
    }

    #[test]
    fn values_are_read_as_they_are_shown() {
        for (name, text, shown) in [
            ("flush", "always", "always"),
            ("flush", "interval=50ms", "interval=50ms"),
            ("flush", "messages=500", "messages=500"),
            ("flush", "messages=500, interval=1s", "interval=1s,messages=500"),
            ("retain-age", "7d", "7days"),
            ("retain-age", "90m", "1h30m"),
            ("retain-age", "off", "off"),
            ("retain-bytes", "1.5 GiB", "1536MiB"),
            ("retain-consumed", "yes", "yes"),
            ("roll-age", "1day", "1day"),
            ("capacity", "2GiB", "2GiB"),
            ("on-full", "drop-oldest", "drop-oldest"),
            ("dedup-sequences", "0", "0"),
            ("dedup-age", "12h", "12h"),
            ("max-deliveries", "5", "5"),
            ("max-deliveries", "0", "off"),
        ] {
            let settings = read(name, text).unwrap_or_else(|why| panic!("{name} {text}: {why}"));
            assert_eq!(flag(name).show_default(&settings), shown);
            assert_eq!(read(name, shown), Ok(settings));
        }
    }

    #[test]
    fn a_mistake_is_told_with_what_to_write() {
        for (name, text, told) in [
            ("flush", "50ms", "write always, interval=50ms"),
            ("flush", "", "write always"),
            ("flush", "interval=0ms", "write always"),
            ("flush", "interval=5ms,interval=6ms", "write always"),
            ("flush", "interval=2h", "must be a whole number from 0 to 3600000, not 7200000"),
            ("flush", "messages=x", "must be a whole number from 0 to 1000000, not x"),
            ("retain-age", "5", "time unit needed"),
            ("retain-age", "5us", "is kept in whole milliseconds"),
            ("capacity", "2PiB", "must be a whole number from 0 to 1125899906842624"),
            ("max-deliveries", "often", "must be a whole number from 0 to 1000000, not often"),
            ("on-full", "drop", "must be reject or drop-oldest, not drop"),
        ] {
            let found = read(name, text).expect_err(text);
            assert!(found.starts_with(told), "{name} {text}: {found}");
        }
    }
}
