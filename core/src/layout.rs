//! The names of directories and files. The only place that spells a path.
//!
//! All paths are relative to the data directory. The tree is described in docs/file-format.md.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// The data directory itself.
pub const DATA: &str = "";
/// The directory that holds the data directory; only ever forced, at the very first start.
pub const DATA_PARENT: &str = "..";
/// Held with flock by the process that owns the directory; the backend's business.
pub const LOCK: &str = "LOCK";
/// Says which format the directory has.
pub const FORMAT: &str = "plimsoll.toml";
/// Space that a full disk gives back.
pub const BALLAST: &str = "ballast";
/// The directory of all topics.
pub const TOPICS: &str = "topics";
/// The topic that exists from the first start on.
pub const DEFAULT_TOPIC: &str = "default";
/// What a replacement in the making ends in. Found at start it is a leftover.
pub const TMP: &str = ".tmp";
/// Files that a directory may hold without being ours.
pub const FOREIGN_ALLOWED: [&str; 1] = ["lost+found"];

/// What a segment's name ends in.
pub const LOG_SUFFIX: &str = ".log";
/// What the name of a closed segment's sidecar ends in.
pub const INDEX_SUFFIX: &str = ".index";
/// The name of [`log_toml`] in the directory of a topic.
pub const TOPIC_TOML: &str = "topic.toml";
/// The same in that of a work queue.
pub const QUEUE_TOML: &str = "queue.toml";
const GROUP_SUFFIX: &str = ".offset";
const DEAD_SUFFIX: &str = ".dead";

/// Whether the data directory may hold an entry of this name.
pub fn is_data_entry(name: &str) -> bool {
    [LOCK, FORMAT, BALLAST, TOPICS].contains(&name) || FOREIGN_ALLOWED.contains(&name)
}

/// The same name with `.tmp` behind it.
pub fn tmp(path: &str) -> String {
    format!("{path}{TMP}")
}

/// The directory of a topic.
pub fn topic(name: &str) -> String {
    format!("{TOPICS}/{name}")
}

/// The directory that a topic or a work queue had before it became a leftover: `topics/orders` for `topics/orders.tmp`.
pub fn left_behind(path: &str) -> Option<&str> {
    let dir = path.strip_suffix(TMP)?;
    let mut names = dir.strip_prefix(TOPICS)?.strip_prefix('/')?.split('/');
    let is_topic = is_topic_name(names.next()?);
    let is_whole = match (names.next(), names.next()) {
        (None, _) => true,
        (Some("queues"), Some(queue)) => is_group_name(queue) && names.next().is_none(),
        _ => false,
    };
    (is_topic && is_whole).then_some(dir)
}

/// The directory that holds the directory of a topic or of a work queue.
pub fn parent(dir: &str) -> &str {
    dir.rsplit_once('/').map_or(DATA, |(parent, _)| parent)
}

/// What a directory of a log says about it: the format, the log id, a topic's settings.
pub fn log_toml(dir: &str) -> String {
    let name = if is_queue(dir) { QUEUE_TOML } else { TOPIC_TOML };
    format!("{dir}/{name}")
}

/// The directories in that of a topic or a work queue.
pub fn inner_dirs(dir: &str) -> Vec<String> {
    if is_queue(dir) { Vec::from([log(dir)]) } else { Vec::from([log(dir), groups(dir), queues(dir)]) }
}

/// A topic's persisted Plimsoll line.
pub fn watermark(dir: &str) -> String {
    format!("{dir}/watermark")
}

/// The directory of a topic's segments.
pub fn log(dir: &str) -> String {
    format!("{dir}/log")
}

/// What a topic remembers of producers whose messages are gone.
pub fn producers(dir: &str) -> String {
    format!("{dir}/producers")
}

/// Whether a name in a topic's directory is ours.
pub fn is_topic_entry(name: &str) -> bool {
    matches!(name, TOPIC_TOML | "watermark" | "producers" | "log" | "groups" | "queues")
}

/// Whether a name in a work queue's directory is ours.
pub fn is_queue_entry(name: &str) -> bool {
    matches!(name, QUEUE_TOML | "watermark" | "log")
}

/// Whether a path lies in a topic's directory of ordered groups.
pub fn is_of_groups(path: &str) -> bool {
    path.contains("/groups/")
}

/// A segment: its name is the offset of its first frame, 20 digits.
pub fn segment(dir: &str, base: u64) -> String {
    format!("{dir}/log/{base:020}{LOG_SUFFIX}")
}

/// The sidecar of a closed segment: what its index says, optional and rebuildable.
pub fn index(dir: &str, base: u64) -> String {
    format!("{dir}/log/{base:020}{INDEX_SUFFIX}")
}

/// The directory of a topic's ordered groups.
pub fn groups(dir: &str) -> String {
    format!("{dir}/groups")
}

/// The directory of a topic's work queues.
pub fn queues(dir: &str) -> String {
    format!("{dir}/queues")
}

/// The directory of one work queue: its journal.
pub fn queue(dir: &str, group: &str) -> String {
    format!("{dir}/queues/{group}")
}

/// Whether a directory is that of a work queue, or of one in the making.
pub fn is_queue(dir: &str) -> bool {
    dir.split('/').nth(2) == Some("queues")
}

/// What a topic's dead letters go to: another topic.
pub fn dead_letters(topic: &str) -> String {
    format!("{topic}{DEAD_SUFFIX}")
}

/// Whether a topic is one of dead letters.
pub fn is_of_dead_letters(topic: &str) -> bool {
    topic.ends_with(DEAD_SUFFIX)
}

/// An ordered group's committed offset.
pub fn group_offset(dir: &str, group: &str) -> String {
    format!("{dir}/groups/{group}{GROUP_SUFFIX}")
}

/// The base offset in a segment's file name (without its directory).
pub fn parse_segment(file_name: &str) -> Option<u64> {
    parse_base(file_name.strip_suffix(LOG_SUFFIX)?)
}

/// The base offset of the segment that a sidecar's file name belongs to (without its directory).
pub fn parse_index(file_name: &str) -> Option<u64> {
    parse_base(file_name.strip_suffix(INDEX_SUFFIX)?)
}

fn parse_base(digits: &str) -> Option<u64> {
    (digits.len() == 20 && digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse().ok())?
}

/// The group in an offset file's name (without its directory).
pub fn parse_group_offset(file_name: &str) -> Option<&str> {
    file_name.strip_suffix(GROUP_SUFFIX).filter(|name| is_group_name(name))
}

/// Whether a name can be a topic's: `[A-Za-z0-9._-]{1,100}`, not starting with `.`, not ending in `.tmp`.
pub fn is_topic_name(name: &str) -> bool {
    is_safe(name)
}

/// Whether a name can be a group's: as a topic's, and not ending in `.offset`.
pub fn is_group_name(name: &str) -> bool {
    is_safe(name) && !name.ends_with(GROUP_SUFFIX)
}

fn is_safe(name: &str) -> bool {
    (1..=100).contains(&name.len())
        && !name.starts_with('.')
        && !name.ends_with(TMP)
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segment_names_come_back() {
        let path = segment("topics/default", 123);
        assert_eq!(path, "topics/default/log/00000000000000000123.log");
        assert_eq!(parse_segment("00000000000000000123.log"), Some(123));
        assert_eq!(parse_segment("18446744073709551615.log"), Some(u64::MAX));
        for bad in ["123.log", "0000000000000000012x.log", "99999999999999999999.log", "00000000000000000123.log.tmp"] {
            assert_eq!(parse_segment(bad), None, "{bad}");
        }
        assert_eq!(index("topics/default", 123), "topics/default/log/00000000000000000123.index");
        assert_eq!(parse_index("00000000000000000123.index"), Some(123));
        for bad in ["123.index", "00000000000000000123.log", "00000000000000000123.index.tmp"] {
            assert_eq!(parse_index(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_is_ours_is_known_by_its_name() {
        for ours in ["LOCK", "plimsoll.toml", "ballast", "topics", "lost+found"] {
            assert!(is_data_entry(ours) && !is_topic_entry(ours), "{ours}");
        }
        for ours in ["queue.toml", "watermark", "log"] {
            assert!(is_queue_entry(ours) && !is_data_entry(ours), "{ours}");
        }
        for ours in ["topic.toml", "watermark", "log", "groups", "queues"] {
            assert!(is_topic_entry(ours) && !is_data_entry(ours), "{ours}");
        }
    }

    #[test]
    fn a_leftover_of_a_topic_tells_its_name() {
        assert_eq!(left_behind("topics/orders.tmp"), Some("topics/orders"));
        assert_eq!(left_behind("topics/orders/queues/pack.tmp"), Some("topics/orders/queues/pack"));
        for other in [
            "topics/orders",
            "topics/.tmp",
            "topics/orders/log.tmp",
            "topics/orders/log/pack.tmp",
            "topics/orders/queues.tmp",
            "topics/orders/queues/pack/watermark.tmp",
            "plimsoll.toml.tmp",
        ] {
            assert_eq!(left_behind(other), None, "{other}");
        }
    }

    #[test]
    fn a_queue_has_a_log_of_its_own() {
        let (topic, queue) = (topic("orders"), queue(&topic("orders"), "pack"));
        assert_eq!(queue, "topics/orders/queues/pack");
        assert!(is_queue(&queue) && is_queue(&tmp(&queue)) && !is_queue(&topic));
        assert_eq!((parent(&queue), parent(&topic)), ("topics/orders/queues", TOPICS));
        assert_eq!(
            (log_toml(&queue).as_str(), log_toml(&topic).as_str()),
            ("topics/orders/queues/pack/queue.toml", "topics/orders/topic.toml")
        );
        assert_eq!(inner_dirs(&queue), ["topics/orders/queues/pack/log"]);
        assert_eq!(inner_dirs(&topic), ["topics/orders/log", "topics/orders/groups", "topics/orders/queues"]);
    }

    #[test]
    fn names_cannot_leave_their_directory() {
        for good in ["default", "a", "orders.v2", "A_b-c", &"x".repeat(100)] {
            assert!(is_topic_name(good), "{good}");
        }
        for bad in ["", ".", "..", ".hidden", "a/b", "a b", "x.tmp", "ü", "a\0", &"x".repeat(101)] {
            assert!(!is_topic_name(bad), "{bad}");
            assert!(!is_group_name(bad), "{bad}");
        }
        assert!(!is_group_name("g.offset"));
        assert_eq!(parse_group_offset("g.offset"), Some("g"));
        assert_eq!(parse_group_offset("g.offset.tmp"), None);
    }
}
