//! Random workloads, then random damage: recovery concludes what the table says, computed here from what is known, and
//! READ equals what was published.

mod common;

use common::*;
use plimsoll_core::config::Config;
use plimsoll_core::effect::HaltKind;
use plimsoll_core::log::topic_file::{TopicToml, check_data_format};
use plimsoll_core::log::watermark::Watermark;
use plimsoll_sim::naive::{Harness, NaiveDisk};
use proptest::prelude::*;

const WATERMARK: &str = "topics/default/watermark";
const TOML: &str = "topics/default/topic.toml";

#[derive(Clone, Copy, Debug)]
enum Op {
    Publish {
        level: &'static str,
        bytes: usize,
    },
    FetchAndAck {
        max: u64,
    },
    /// From here on forces don't return.
    Hold,
    Release,
    Wait {
        ms: u64,
    },
    /// Kill and start.
    Restart,
}

fn op() -> impl Strategy<Value = Op> {
    let level = prop::sample::select(&["ACCEPTED", "WRITTEN", "DURABLE"][..]);
    let bytes = prop_oneof![6 => 1usize..120, 2 => 120usize..900, 1 => Just(1usize)];
    prop_oneof![
        12 => (level, bytes).prop_map(|(level, bytes)| Op::Publish { level, bytes }),
        2 => (1u64..8).prop_map(|max| Op::FetchAndAck { max }),
        1 => Just(Op::Hold),
        1 => Just(Op::Release),
        1 => (0u64..700).prop_map(|ms| Op::Wait { ms }),
        1 => Just(Op::Restart),
    ]
}

fn config() -> impl Strategy<Value = Config> {
    (
        prop_oneof![Just(512u64), 512u64..3000, Just(1 << 20)],
        prop::sample::select(&[0u32, 0, 512, 1024][..]),
        prop_oneof![Just(0u64), 64u64..2000],
        prop::sample::select(&[0u64, 300, 1 << 20][..]),
        prop::sample::select(&[0u64, 1 << 20][..]),
        any::<bool>(),
    )
        .prop_map(|(segment_bytes, pad_forces, space_ahead, copy_whole_bytes_max, recent_bytes, group_commit)| {
            Config {
                segment_bytes,
                pad_forces,
                space_ahead,
                copy_whole_bytes_max,
                recent_bytes,
                group_commit: group_commit || pad_forces > 0,
                ..plain()
            }
        })
}

fn value(n: usize, bytes: usize) -> String {
    format!("{n}.").chars().cycle().take(bytes).collect()
}

/// What a workload leaves.
#[derive(Debug)]
struct Left {
    /// The values that were published and had an offset when the process ended, by offset.
    values: Vec<String>,
    /// How many of them were answered DURABLE.
    durable: usize,
    /// The highest committed offset that was answered.
    acked: u64,
}

/// Runs a workload and ends it with a kill, or with a clean stop.
fn run(config: &Config, ops: &[Op], clean: bool) -> (NaiveDisk, Left) {
    let mut h = started(config.clone());
    let mut left = Left { values: Vec::new(), durable: 0, acked: 0 };
    let (mut producer, mut consumer) = (h.connect(), h.connect());
    // A publish without a reply may be there after a restart or not, so the workload asks.
    for op in ops {
        match *op {
            Op::Publish { level, bytes } => {
                let value = value(left.values.len(), bytes);
                h.send(producer, format!("PUB {level} {value}\n").as_bytes());
                left.values.push(value);
            }
            Op::FetchAndAck { max } => {
                let reply = h.ask(consumer, format!("FETCH g {max} 0\n").as_bytes());
                let last = reply.lines().rfind(|line| line.starts_with("MSG "));
                if let Some(offset) = last.and_then(|line| line.split(' ').nth(1)) {
                    let reply = h.ask(consumer, format!("ACK g {offset}\n").as_bytes());
                    left.acked = reply.trim_end().strip_prefix("ACKED ").expect("ACKED").parse().expect("an offset");
                }
            }
            Op::Hold => h.hold(is_log_force),
            Op::Release => {
                h.release();
                h.run();
            }
            Op::Wait { ms } => h.advance_ms(ms),
            Op::Restart => {
                note_replies(&mut left, &h.replies(producer));
                h.kill_and_restart(config.clone());
                assert_eq!(h.halted, None);
                let end = read_all(&mut h).lines().count();
                assert!(end >= left.durable && end <= left.values.len(), "P1, P2");
                left.values.truncate(end);
                // Everything is forced before anything is served.
                left.durable = end;
                (producer, consumer) = (h.connect(), h.connect());
            }
        }
    }
    if clean {
        h.release();
        h.run();
        note_replies(&mut left, &h.replies(producer));
        h.stop();
        assert!(h.stopped);
    }
    note_replies(&mut left, &h.replies(producer));
    h.kill(config.clone());
    (h.disk, left)
}

fn note_replies(left: &mut Left, replies: &str) {
    for line in replies.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!(words[0], "OK", "{line}");
        if words[2] == "DURABLE" {
            left.durable = left.durable.max(words[1].parse::<usize>().expect("an offset") + 1);
        }
    }
}

/// A frame as it stands in a file that nobody has damaged, read without the broker's own code.
#[derive(Clone, Copy, Debug)]
struct Placed {
    position: usize,
    end: usize,
    offset: u64,
    /// How many offsets it takes: 0 for padding.
    count: u64,
    evidence: u64,
}

fn frames(file: &[u8]) -> Vec<Placed> {
    let mut frames = Vec::new();
    let mut position = 0;
    while let Some(header) = file.get(position..position + 21) {
        let u32_at = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().expect("four bytes"));
        if u32_at(0) == 0 {
            break;
        }
        let offset = u64::from_be_bytes(header[8..16].try_into().expect("eight bytes"));
        let end = position + 16 + u32_at(0) as usize;
        let count = u64::from(header[20] & 15 == 0);
        frames.push(Placed { position, end, offset, count, evidence: offset - u64::from(u32_at(16)) });
        position = end;
    }
    frames
}

/// The log before the damage.
struct Log {
    disk: NaiveDisk,
    paths: Vec<String>,
    last: Vec<Placed>,
    end: u64,
    line: u64,
    committed: u64,
}

impl Log {
    fn of(disk: NaiveDisk) -> Log {
        let paths = segments(&disk);
        let path = paths.last().expect("a segment");
        let last = frames(disk.file(path).expect("it"));
        let base: u64 = path[path.len() - 24..path.len() - 4].parse().expect("a base");
        let end = last.last().map_or(base, |frame| frame.offset + frame.count);
        let line = Watermark::read(disk.file(WATERMARK).expect("a watermark")).current().expect("a slot").durable;
        let group = disk.file("topics/default/groups/g.offset").map(|file| String::from_utf8_lossy(file).into_owned());
        let committed = group.map_or(0, |text| text.split(' ').next().expect("digits").parse().expect("digits"));
        Log { disk, paths, last, end, line, committed }
    }

    fn last_path(&self) -> &str {
        self.paths.last().expect("a segment")
    }

    /// Where the frames of the last segment end.
    fn frames_end(&self) -> usize {
        self.last.last().map_or(0, |frame| frame.end)
    }

    /// Where the messages of an earlier segment end. Padding behind the last of them is not looked at: the next segment
    /// begins with the offset that is expected there.
    fn closed_end(&self, path: &str) -> usize {
        let frames = frames(self.disk.file(path).expect("it"));
        frames.iter().rfind(|frame| frame.count > 0).map_or(0, |frame| frame.end)
    }

    /// The conclusion for a first invalid place in the last segment at the frame with this number.
    fn invalid_at(&self, number: usize) -> Expected {
        let at = self.last[number];
        let found = self.last[number + 1..].iter().map(|frame| frame.evidence).max().unwrap_or(0);
        if self.line.max(self.committed).max(found) > at.offset {
            Expected::Refused
        } else {
            Expected::Truncated(at.offset)
        }
    }

    fn ends_at(&self, end: u64) -> Expected {
        if self.line.max(self.committed) > end { Expected::Refused } else { Expected::Whole(end) }
    }

    fn after_a_flip(&self, path: &str, at: usize, damaged: &NaiveDisk) -> Expected {
        if path == WATERMARK || path == "ballast" {
            return Expected::Whole(self.end);
        }
        if path == TOML {
            let id = |disk: &NaiveDisk| TopicToml::parse(disk.file(TOML).expect("it")).map(|toml| toml.log_id);
            return if id(damaged) == id(&self.disk) { Expected::Whole(self.end) } else { Expected::Refused };
        }
        if path == "plimsoll.toml" {
            let whole = check_data_format(damaged.file(path).expect("it")).is_ok();
            return if whole { Expected::Whole(self.end) } else { Expected::Foreign };
        }
        if path.contains("/groups/") {
            return Expected::Refused;
        }
        if path != self.last_path() {
            return if at < self.closed_end(path) { Expected::Refused } else { Expected::Whole(self.end) };
        }
        match self.last.iter().position(|frame| at < frame.end) {
            Some(number) => self.invalid_at(number),
            None => Expected::Truncated(self.end),
        }
    }

    fn after_a_cut(&self, path: &str, length: usize) -> Expected {
        let all = frames(self.disk.file(path).expect("it"));
        if path != self.last_path() {
            return if length < self.closed_end(path) { Expected::Refused } else { Expected::Whole(self.end) };
        }
        let Some(number) = all.iter().position(|frame| length < frame.end) else { return Expected::Whole(self.end) };
        let cut = all[number];
        let rest = &self.disk.file(path).expect("it")[cut.position..length];
        match (rest.iter().all(|&byte| byte == 0), self.ends_at(cut.offset)) {
            (false, Expected::Whole(end)) => Expected::Truncated(end),
            (_, expected) => expected,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Expected {
    Whole(u64),
    Truncated(u64),
    Refused,
    Foreign,
}

/// Starts on the damaged disk and holds what happens against what is expected.
fn check(config: &Config, damaged: NaiveDisk, left: &Left, expected: Expected) -> Result<(), TestCaseError> {
    let mut h = Harness::with_disk(config.clone(), damaged.clone());
    h.start();
    let (end, status) = match expected {
        Expected::Refused | Expected::Foreign => {
            // A flip can make the format's number that of a newer version.
            let newer = reports(&h, "RECOVERY").iter().any(|line| line.contains("reason=unknown-format"));
            let corrupt = expected == Expected::Refused && !newer;
            let kind = if corrupt { HaltKind::Corrupt } else { HaltKind::Directory };
            prop_assert_eq!(h.halted.as_ref().map(|halt| halt.kind), Some(kind), "{:?}", h.reports);
            prop_assert_eq!(h.disk.files(), damaged.files());
            return Ok(());
        }
        Expected::Whole(end) => (end, "status=OK"),
        Expected::Truncated(end) => (end, "status=TRUNCATED_TAIL"),
    };
    prop_assert_eq!(&h.halted, &None);
    let line = reports(&h, "RECOVERY").pop().expect("a line");
    prop_assert!(line.contains(status), "{} is expected: {}", status, line);
    let expected = |end: u64| -> String {
        left.values[..end as usize].iter().enumerate().map(|(n, value)| format!("MSG {n} {value}\n")).collect()
    };
    prop_assert_eq!(read_all(&mut h), expected(end));
    let client = h.connect();
    let reply = h.ask(client, b"PUB DURABLE more\n");
    prop_assert_eq!(reply, format!("OK {end} DURABLE\n"));
    h.kill_and_restart(config.clone());
    prop_assert_eq!(read_all(&mut h), format!("{}MSG {end} more\n", expected(end)));
    Ok(())
}

fn workload() -> impl Strategy<Value = (Config, Vec<Op>, bool)> {
    (config(), prop::collection::vec(op(), 1..50), any::<bool>())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn without_damage_everything_is_there((config, ops, clean) in workload()) {
        let (disk, left) = run(&config, &ops, clean);
        let log = Log::of(disk.clone());
        prop_assert!(log.end >= left.durable as u64, "P1");
        prop_assert!(log.committed >= left.acked, "P5");
        prop_assert!(!clean || log.end == left.values.len() as u64);
        prop_assert!(log.line <= log.end && log.line >= left.durable as u64, "P3: DURABLE is answered below the line");
        check(&config, disk, &left, Expected::Whole(log.end))?;
    }

    #[test]
    fn any_flipped_bit_in_any_file(
        (config, ops, clean) in workload(), file: prop::sample::Index, at: prop::sample::Index, bit in 0u32..8,
        in_the_log in prop::bool::weighted(0.8),
    ) {
        let (disk, left) = run(&config, &ops, clean);
        let log = Log::of(disk.clone());
        let candidates: Vec<String> = disk
            .files()
            .into_iter()
            .filter(|(path, bytes)| !bytes.is_empty() && (!in_the_log || path.contains("/log/")))
            .map(|(path, _)| path)
            .collect();
        prop_assume!(!candidates.is_empty());
        let path = &candidates[file.index(candidates.len())];
        let mut damaged = disk;
        let bytes = damaged.file_mut(path);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        // A flip in one slot leaves the other, whose line may be of before.
        let expected = log.after_a_flip(path, at, &damaged);
        check(&config, damaged, &left, expected)?;
    }

    #[test]
    fn any_cut_of_any_segment(
        (config, ops, clean) in workload(), file: prop::sample::Index, at: prop::sample::Index, last: bool,
    ) {
        let (disk, left) = run(&config, &ops, clean);
        let log = Log::of(disk.clone());
        let path = if last { log.last_path() } else { file.get(&log.paths) };
        let mut damaged = disk;
        let bytes = damaged.file_mut(path);
        let length = at.index(bytes.len() + 1);
        bytes.truncate(length);
        check(&config, damaged, &left, log.after_a_cut(path, length))?;
    }

    #[test]
    fn any_bytes_behind_the_last_segment(
        (config, ops, clean) in workload(),
        tail in prop_oneof![
            prop::collection::vec(any::<u8>(), 1..400),
            prop::collection::vec(prop::sample::select(&[0u8, 0, 0, 1, 15][..]), 1..400),
            (1usize..3000).prop_map(|zeros| vec![0; zeros]),
        ],
    ) {
        let (disk, left) = run(&config, &ops, clean);
        let log = Log::of(disk.clone());
        let mut damaged = disk;
        damaged.file_mut(log.last_path()).extend_from_slice(&tail);
        let zeros = tail.iter().all(|&byte| byte == 0);
        check(&config, damaged, &left, if zeros { Expected::Whole(log.end) } else { Expected::Truncated(log.end) })?;
    }

    #[test]
    fn a_stretch_of_the_last_segment_overwritten(
        (config, ops, clean) in workload(), from: prop::sample::Index, length in 1usize..600, zeros: bool,
    ) {
        let (disk, left) = run(&config, &ops, clean);
        let log = Log::of(disk.clone());
        prop_assume!(log.frames_end() > 0);
        let mut damaged = disk;
        let bytes = damaged.file_mut(log.last_path());
        let from = from.index(log.frames_end());
        let to = (from + length).min(log.frames_end());
        let before = bytes[from..to].to_vec();
        bytes[from..to].iter_mut().for_each(|byte| *byte = if zeros { 0 } else { *byte ^ 0x5a });
        let changed: Vec<usize> = (from..to).filter(|at| bytes[*at] != before[at - from]).collect();
        let expected = match (changed.first(), changed.last()) {
            (Some(first), Some(last)) => {
                let number = |at: usize| log.last.iter().position(|frame| at < frame.end).expect("within the frames");
                let (first, last) = (number(*first), number(*last));
                let found = log.last[last + 1..].iter().map(|frame| frame.evidence).max().unwrap_or(0);
                let evidence = log.line.max(log.committed).max(found);
                let b = log.last[first].offset;
                let all_zero = damaged.file(log.last_path()).expect("it")[log.last[first].position..].iter().all(|&byte| byte == 0);
                // A frame between the two that was not touched, as its bytes were zeros already, can't be: none is all zeros.
                match (evidence > b, all_zero) {
                    (true, _) => Expected::Refused,
                    (false, true) => Expected::Whole(b),
                    (false, false) => Expected::Truncated(b),
                }
            }
            _ => Expected::Whole(log.end),
        };
        check(&config, damaged, &left, expected)?;
    }
}
