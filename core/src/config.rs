//! Limits and policies, validated once, before anything is opened.

use crate::group::journal::PENDING_CEILING;
use crate::record;
use crate::settings::{SETTINGS, Settings};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// Everything that the broker can be told beforehand. All sizes are bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// A segment is rolled before it would grow past this. Default 64 MiB.
    pub segment_bytes: u64,
    /// The largest payload admitted (key, headers and value together count as one). Default 64 KiB, at most 16 MiB.
    pub payload_bytes_max: u32,
    /// The most bytes of one published batch (`PUBB`), with the length of each message. Default 1 MiB, at most 8 MiB: with what each
    /// message costs beside that it is then still a frame that every reader takes.
    pub publish_batch_bytes_max: u32,
    /// Messages of a topic that have an offset and wait for a write to begin. Default 1024. Also the most messages of one
    /// published batch: it gets its offsets as a whole.
    pub queue_messages: u32,
    /// Bytes of a topic that have an offset and are not written yet. Default 64 MiB.
    pub queue_bytes: u64,
    /// Messages in one write. Default 256.
    pub batch_messages: u32,
    /// Bytes in one write. Default 1 MiB. One larger message is a batch of its own.
    pub batch_bytes: u64,
    /// `false`: every message is written and forced alone, one after the other. For comparison.
    pub group_commit: bool,
    /// How far the active segment is extended ahead of the writes. 0 appends plainly. Default 256 KiB.
    pub space_ahead: u64,
    /// Every force ends on a multiple of this (0: no padding). For devices without power-safe overwrite.
    pub pad_forces: u32,
    /// The longest that a force is held back while recent producers have not sent again, nanoseconds.
    /// Also never longer than half of a recent force. Default 100 µs; 0 never waits.
    pub gather_ns_max: u64,
    /// Clients at once. Default 1024.
    pub connections_max: u32,
    /// Requests of one connection without a reply, after which it is not read. Default 1024.
    pub unanswered_max: u32,
    /// Unsent reply bytes of one connection, after which it is not read. Default 1 MiB.
    pub unsent_bytes_max: u64,
    /// A connection that takes none of its replies for this long is cut off, milliseconds. Default 30 s.
    pub send_stall_ms_max: u64,
    /// The longest wait that a FETCH may ask for, milliseconds. Default 60 s.
    pub fetch_wait_ms_max: u64,
    /// A reply to FETCH or READ stops here (but holds at least one message). Default 4 MiB.
    pub fetch_bytes_max: u64,
    /// A holder of a group that sent no request for this long loses it to the next who asks, milliseconds.
    /// Default 300 s.
    pub group_idle_ms: u64,
    /// Whether publishing to an unknown topic creates it. Default no.
    pub auto_create: bool,
    /// Topics at most. Default 10,000.
    pub topics_max: u32,
    /// Groups of one topic at most. Default 1,000.
    pub groups_max: u32,
    /// Messages that one connection may have reserved in work queues, over all of them. Default 1,024.
    pub reserved_max: u32,
    /// Messages of one work queue that may be reserved once and not be confirmed. Default 100,000; each takes some 150 bytes of memory.
    pub pending_max: u32,
    /// A work queue's journal begins a new segment, with a checkpoint, before one would grow past this and what the checkpoint takes.
    /// Default 1 MiB.
    pub journal_bytes: u64,
    /// Producers of one topic whose publishes are remembered, at most. The one whose last publish is the oldest goes. Each costs about
    /// 60 bytes for each of its `dedup-sequences`. Default 1,000.
    pub producers_max: u32,
    /// After this long without a publish, the line is anchored, milliseconds. Default 500.
    pub idle_anchor_ms: u64,
    /// The size of the ballast that a full disk gives back. Default 4 MiB; 0: none.
    pub ballast_bytes: u64,
    /// How long after a full disk the broker tries again, milliseconds. Default 500.
    pub disk_full_retry_ms: u64,
    /// Bytes of the newest batches kept in memory for readers, over all topics. Default 8 MiB.
    pub recent_bytes: u64,
    /// The doubtful tail is copied under its segment's own name while the segment's frames are no more than this.
    /// Default 1 MiB.
    pub copy_whole_bytes_max: u64,
    /// Memory for the indexes of closed segments, over all topics. Default 4 MiB; 0: none is kept between two requests.
    pub index_bytes: u64,
    /// At least so many bytes of frames stand between two entries of an index. A closed segment of no more has no sidecar.
    /// Default 64 KiB.
    pub index_stride_bytes: u64,
    /// The most bytes of the logs of all topics together: a message beyond it is refused, unless topics that drop their oldest
    /// messages can make room for it. Default 0: no bound.
    pub total_capacity_bytes: u64,
    /// What holds for topics that were told nothing else.
    pub topic_defaults: Settings,
    /// Random bytes from outside, from which the log ids of new topics are derived.
    pub entropy: [u8; 16],
    /// The bug that is planted.
    #[cfg(feature = "planted")]
    pub planted: Option<crate::planted::Planted>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            segment_bytes: 64 << 20,
            payload_bytes_max: 64 << 10,
            publish_batch_bytes_max: 1 << 20,
            queue_messages: 1024,
            queue_bytes: 64 << 20,
            batch_messages: 256,
            batch_bytes: 1 << 20,
            group_commit: true,
            space_ahead: 256 << 10,
            pad_forces: 0,
            gather_ns_max: 100_000,
            connections_max: 1024,
            unanswered_max: 1024,
            unsent_bytes_max: 1 << 20,
            send_stall_ms_max: 30_000,
            fetch_wait_ms_max: 60_000,
            fetch_bytes_max: 4 << 20,
            group_idle_ms: 300_000,
            auto_create: false,
            topics_max: 10_000,
            groups_max: 1_000,
            reserved_max: 1_024,
            pending_max: 100_000,
            journal_bytes: 1 << 20,
            producers_max: 1_000,
            idle_anchor_ms: 500,
            ballast_bytes: 4 << 20,
            disk_full_retry_ms: 500,
            recent_bytes: 8 << 20,
            copy_whole_bytes_max: 1 << 20,
            index_bytes: 4 << 20,
            index_stride_bytes: 64 << 10,
            total_capacity_bytes: 0,
            topic_defaults: Settings::NONE,
            entropy: [0; 16],
            #[cfg(feature = "planted")]
            planted: None,
        }
    }
}

/// One field, for [`Config::reload`].
struct Field {
    /// As `serve` calls it.
    name: &'static str,
    /// Whether it can change while the broker runs: it is looked at anew at each use, and nothing was made by it.
    may_change: bool,
    get: fn(&Config) -> u64,
    set: fn(&mut Config, &Config),
}

macro_rules! field {
    ($name:literal, $may_change:literal, $field:ident) => {
        Field {
            name: $name,
            may_change: $may_change,
            get: |config| config.$field as u64,
            set: |config, from| config.$field = from.$field,
        }
    };
}

/// Every field that an operator can set, but for the defaults of topics, which may change too.
static FIELDS: [Field; 28] = [
    field!("segment-bytes", true, segment_bytes),
    // Each connection was given its buffer by it.
    field!("max-payload", false, payload_bytes_max),
    field!("queue-messages", true, queue_messages),
    field!("queue-bytes", true, queue_bytes),
    field!("batch-messages", true, batch_messages),
    field!("batch-bytes", true, batch_bytes),
    // What is under way was begun in the other way, and space that stands ready was made by it.
    field!("group-commit", false, group_commit),
    field!("space-ahead", false, space_ahead),
    field!("pad-forces", false, pad_forces),
    field!("gather", true, gather_ns_max),
    // The process's descriptors were shared out by it.
    field!("max-connections", false, connections_max),
    field!("max-unanswered", true, unanswered_max),
    field!("max-unsent-bytes", true, unsent_bytes_max),
    // Sockets were told it, too.
    field!("send-stall", false, send_stall_ms_max),
    field!("max-fetch-wait", true, fetch_wait_ms_max),
    field!("max-fetch-bytes", true, fetch_bytes_max),
    field!("group-idle", true, group_idle_ms),
    field!("auto-create", true, auto_create),
    field!("max-topics", true, topics_max),
    field!("max-groups", true, groups_max),
    field!("max-reserved", true, reserved_max),
    field!("max-pending", true, pending_max),
    field!("journal-bytes", true, journal_bytes),
    field!("idle-anchor", true, idle_anchor_ms),
    // The file is there with its size.
    field!("ballast-bytes", false, ballast_bytes),
    field!("recent-bytes", true, recent_bytes),
    field!("index-bytes", true, index_bytes),
    field!("total-capacity", true, total_capacity_bytes),
];

/// What comes of a new configuration while the broker runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reload {
    /// What holds from now on.
    pub config: Config,
    /// What has changed in it.
    pub changed: Vec<&'static str>,
    /// What was to change, and can't without a restart.
    pub kept: Vec<&'static str>,
}

impl Config {
    /// Takes over from `wanted` what may change while the broker runs.
    pub fn reload(&self, wanted: &Config) -> Reload {
        let mut reload = Reload { config: self.clone(), changed: Vec::new(), kept: Vec::new() };
        for field in FIELDS.iter().filter(|field| (field.get)(self) != (field.get)(wanted)) {
            if field.may_change {
                (field.set)(&mut reload.config, wanted);
                reload.changed.push(field.name);
            } else {
                reload.kept.push(field.name);
            }
        }
        for row in &SETTINGS {
            let value = |config: &Config| config.topic_defaults.get(row.setting).unwrap_or(row.default);
            if value(self) != value(wanted) {
                reload.changed.push(row.name);
            }
        }
        reload.config.topic_defaults = wanted.topic_defaults;
        reload
    }

    /// Checks every value against its range.
    ///
    /// # Errors
    /// One sentence that names the setting, its range and what was given.
    pub fn validate(&self) -> Result<(), String> {
        let ranges: [(&str, u64, u64, u64); 17] = [
            ("segment-bytes", self.segment_bytes, 512, 1 << 40),
            ("max-payload", self.payload_bytes_max as u64, 1, record::PAYLOAD_BYTES_CEILING as u64),
            ("max-publish-batch", self.publish_batch_bytes_max as u64, 1, record::BATCH_BYTES_CEILING as u64),
            ("queue-messages", self.queue_messages as u64, 1, 1 << 24),
            ("queue-bytes", self.queue_bytes, 1, 1 << 40),
            ("batch-messages", self.batch_messages as u64, 1, 1 << 20),
            ("batch-bytes", self.batch_bytes, 1, 1 << 30),
            ("space-ahead", self.space_ahead, 0, 1 << 30),
            ("max-connections", self.connections_max as u64, 1, 1 << 20),
            ("max-unanswered", self.unanswered_max as u64, 1, 1 << 20),
            ("max-unsent-bytes", self.unsent_bytes_max, 1, 1 << 40),
            ("max-fetch-bytes", self.fetch_bytes_max, 1, 1 << 30),
            ("max-producers", self.producers_max as u64, 1, 1 << 20),
            ("max-reserved", self.reserved_max as u64, 1, 1 << 20),
            ("max-pending", self.pending_max as u64, 1, PENDING_CEILING),
            ("journal-bytes", self.journal_bytes, 512, 1 << 30),
            ("total-capacity", self.total_capacity_bytes, 0, 1 << 50),
        ];
        for (name, value, min, max) in ranges {
            if value < min || value > max {
                return Err(format!("{name} must be {min} to {max}, not {value}"));
            }
        }
        const FETCH_WAIT_MS_MAX: u64 = 86_400_000;
        if self.fetch_wait_ms_max > FETCH_WAIT_MS_MAX {
            let given = self.fetch_wait_ms_max;
            return Err(format!("max-fetch-wait must be 0 to {FETCH_WAIT_MS_MAX} ms, not {given}"));
        }
        if !matches!(self.pad_forces, 0 | 512 | 1024 | 2048 | 4096 | 8192 | 16384) {
            return Err(format!("pad-forces must be 0 or a power of two from 512 to 16384, not {}", self.pad_forces));
        }
        if self.pad_forces != 0 && !self.group_commit {
            return Err("pad-forces needs group-commit on".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    /// What is wrong with the default changed like this.
    fn refused(change: impl FnOnce(&mut Config)) -> Option<String> {
        let mut config = Config::default();
        change(&mut config);
        config.validate().err()
    }

    #[test]
    fn every_range_ends_where_the_sentence_says() {
        type Set = fn(&mut Config, u64);
        let ranges: [(&str, Set, u64, u64); 18] = [
            ("segment-bytes", |config, n| config.segment_bytes = n, 512, 1_099_511_627_776),
            ("max-payload", |config, n| config.payload_bytes_max = n as u32, 1, 16_777_216),
            ("max-publish-batch", |config, n| config.publish_batch_bytes_max = n as u32, 1, 8_388_608),
            ("queue-messages", |config, n| config.queue_messages = n as u32, 1, 16_777_216),
            ("queue-bytes", |config, n| config.queue_bytes = n, 1, 1_099_511_627_776),
            ("batch-messages", |config, n| config.batch_messages = n as u32, 1, 1_048_576),
            ("batch-bytes", |config, n| config.batch_bytes = n, 1, 1_073_741_824),
            ("space-ahead", |config, n| config.space_ahead = n, 0, 1_073_741_824),
            ("max-connections", |config, n| config.connections_max = n as u32, 1, 1_048_576),
            ("max-unanswered", |config, n| config.unanswered_max = n as u32, 1, 1_048_576),
            ("max-unsent-bytes", |config, n| config.unsent_bytes_max = n, 1, 1_099_511_627_776),
            ("max-fetch-bytes", |config, n| config.fetch_bytes_max = n, 1, 1_073_741_824),
            ("max-producers", |config, n| config.producers_max = n as u32, 1, 1_048_576),
            ("max-reserved", |config, n| config.reserved_max = n as u32, 1, 1_048_576),
            ("max-pending", |config, n| config.pending_max = n as u32, 1, 500_000),
            ("journal-bytes", |config, n| config.journal_bytes = n, 512, 1_073_741_824),
            ("total-capacity", |config, n| config.total_capacity_bytes = n, 0, 1_125_899_906_842_624),
            ("max-fetch-wait", |config, n| config.fetch_wait_ms_max = n, 0, 86_400_000),
        ];
        assert_eq!(refused(|_| {}), None);
        for (name, set, min, max) in ranges {
            assert_eq!(refused(|config| set(config, min)), None, "{name}");
            assert_eq!(refused(|config| set(config, max)), None, "{name}");
            let unit = if name == "max-fetch-wait" { " ms" } else { "" };
            let sentence = |n: u64| Some(format!("{name} must be {min} to {max}{unit}, not {n}"));
            assert_eq!(refused(|config| set(config, max + 1)), sentence(max + 1));
            if min > 0 {
                assert_eq!(refused(|config| set(config, min - 1)), sentence(min - 1));
            }
        }
    }

    /// Each field comes over if it may, and is named in either case.
    #[test]
    fn a_reload_takes_what_may_change_and_names_the_rest() {
        let was = Config::default();
        for field in &FIELDS {
            let mut wanted = Config::default();
            let other = Config {
                segment_bytes: 7,
                payload_bytes_max: 7,
                queue_messages: 7,
                queue_bytes: 7,
                batch_messages: 7,
                batch_bytes: 7,
                group_commit: false,
                space_ahead: 7,
                pad_forces: 512,
                gather_ns_max: 7,
                connections_max: 7,
                unanswered_max: 7,
                unsent_bytes_max: 7,
                send_stall_ms_max: 7,
                fetch_wait_ms_max: 7,
                fetch_bytes_max: 7,
                group_idle_ms: 7,
                auto_create: true,
                topics_max: 7,
                groups_max: 7,
                reserved_max: 7,
                pending_max: 7,
                journal_bytes: 7,
                idle_anchor_ms: 7,
                ballast_bytes: 7,
                recent_bytes: 7,
                index_bytes: 7,
                total_capacity_bytes: 7,
                ..Config::default()
            };
            (field.set)(&mut wanted, &other);
            assert_ne!((field.get)(&wanted), (field.get)(&was), "{}", field.name);
            let reload = was.reload(&wanted);
            let (changed, kept): (&[&str], &[&str]) =
                if field.may_change { (&[field.name], &[]) } else { (&[], &[field.name]) };
            assert_eq!((&reload.changed[..], &reload.kept[..]), (changed, kept));
            assert_eq!(reload.config, if field.may_change { wanted } else { was.clone() });
        }
        let mut wanted = Config { pad_forces: 4096, ..Config::default() };
        wanted.topic_defaults.set(crate::settings::Setting::RetainMs, Some(5));
        let reload = was.reload(&wanted);
        assert_eq!((&reload.changed[..], &reload.kept[..]), (&["retain-ms"][..], &["pad-forces"][..]));
        assert_eq!(reload.config, Config { topic_defaults: wanted.topic_defaults, ..was.clone() });
        assert_eq!(was.reload(&was), Reload { config: was.clone(), changed: Vec::new(), kept: Vec::new() });
    }

    #[test]
    fn padding_is_of_a_sector_and_needs_group_commit() {
        for unit in [0, 512, 1024, 2048, 4096, 8192, 16384] {
            assert_eq!(refused(|config| config.pad_forces = unit), None);
            let alone = refused(|config| (config.pad_forces, config.group_commit) = (unit, false));
            assert_eq!(alone, (unit > 0).then(|| "pad-forces needs group-commit on".to_string()));
        }
        for unit in [1, 511, 513, 3072, 32768] {
            let sentence = format!("pad-forces must be 0 or a power of two from 512 to 16384, not {unit}");
            assert_eq!(refused(|config| config.pad_forces = unit), Some(sentence));
        }
    }
}
