//! What the exhaustive mode runs: small client sessions, each made to cross one of the broker's sequences.
//!
//! A workload whose states are too many fails instead of being sampled, so each is as small as its story allows. Sizes
//! are chosen so that frames cross sectors, and segments roll, where they should.

use crate::disk::{BTRFS, POSIX, POSIX_TORN, Profile};
use plimsoll_core::config::Config;
use plimsoll_core::settings::Setting;

/// One thing that happens.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// Requests of a client, one a line. A payload `name*100` is filled up to 100 bytes. `PUBB DURABLE a b` is a batch of two,
    /// `ID 7:1 DURABLE a` has the id 7:1.
    Send(usize, &'static str),
    /// So many effects are executed.
    Effects(usize),
    /// All is executed that can be.
    Quiet,
    /// Time passes.
    Ms(u64),
    /// An orderly stop.
    Stop,
    /// Another process, with everything that the one before left in the page cache.
    Restart,
    /// Nothing happens, and the log as the last READ has shown it begins here.
    Begins(u64),
}
use Step::{Begins, Effects, Ms, Quiet, Restart, Send, Stop};

/// What a retention policy has to keep, besides what a PURGE does (P12).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Keeps {
    /// Everything.
    All,
    /// What some group of the workload has not acknowledged.
    Unconsumed,
    /// What was published in the last milliseconds, by the latest that any clock has shown.
    Ms(i64),
    /// The last messages, so many of them. 0: none, where another topic may need the room.
    Last(u64),
}

/// What fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fails {
    /// Nothing.
    Nothing,
    /// A force.
    Forces,
    /// Something that is done with the new file of a segment that is packed.
    Packing,
}

/// A session of clients with a broker, and the disk that it happens on.
#[derive(Debug)]
pub struct Workload {
    /// What it is called on the command line.
    pub name: &'static str,
    /// What it is for.
    pub about: &'static str,
    /// How many crashes one after the other are gone through, unless somebody asks for another number.
    pub depth: usize,
    pub(super) profile: &'static Profile,
    pub(super) sector_bytes: u32,
    pub(super) config: fn() -> Config,
    /// What has happened, without a crash, before the part that is looked at. `None`: not even the first start has.
    pub(super) before: Option<&'static [Step]>,
    pub(super) steps: &'static [Step],
    pub(super) groups: &'static [&'static str],
    /// Its work queues, other names than those of groups.
    pub(super) queues: &'static [&'static str],
    /// Whether segments are packed.
    pub(super) packs: bool,
    /// The topic that is read back and written to after a crash.
    pub(super) topic: &'static str,
    /// Another one, which is read back and written to as well and keeps everything. Its client, and nobody else's, is [`BESIDE`].
    pub(super) beside: Option<&'static str>,
    pub(super) keeps: Keeps,
    /// How far apart the wall clock finds the beginnings of two processes that follow each other.
    pub(super) restart_ms: i64,
    /// What fails in turn, in each way.
    pub(super) fails: Fails,
    /// After each crash with nothing under way each byte on the disk rots in turn.
    pub(super) rots: bool,
}

/// The client of [`Workload::beside`].
pub(super) const BESIDE: usize = 1;

const PLAIN: Workload = Workload {
    name: "",
    about: "",
    depth: 2,
    profile: &POSIX,
    sector_bytes: 512,
    config: tiny,
    before: Some(&[Send(0, "PUB DURABLE m0\n"), Quiet]),
    steps: &[],
    groups: &[],
    queues: &[],
    packs: false,
    topic: "default",
    beside: None,
    keeps: Keeps::All,
    restart_ms: 60_000,
    fails: Fails::Nothing,
    rots: false,
};

fn tiny() -> Config {
    Config {
        segment_bytes: 512,
        space_ahead: 0,
        gather_ns_max: 0,
        ballast_bytes: 0,
        idle_anchor_ms: 10,
        recent_bytes: 1 << 16,
        ..Config::default()
    }
}

fn roomy() -> Config {
    Config { segment_bytes: 4096, ..tiny() }
}

fn ahead() -> Config {
    Config { segment_bytes: 1024, space_ahead: 512, ..tiny() }
}

fn tail_copied_alone() -> Config {
    Config { copy_whole_bytes_max: 0, ..roomy() }
}

/// An entry for every frame, and none of a closed segment in memory.
fn indexed() -> Config {
    Config { index_stride_bytes: 1, index_bytes: 0, recent_bytes: 0, ..tiny() }
}

fn flushed_later() -> Config {
    let mut config = roomy();
    config.topic_defaults.set(Setting::FlushIntervalMs, Some(5));
    config
}

fn consumed() -> Config {
    let mut config = tiny();
    config.topic_defaults.set(Setting::RetainConsumed, Some(1));
    config
}

/// How long messages are kept in [`aged`].
const AGE_MS: u64 = 1000;

fn aged() -> Config {
    let mut config = Config { idle_anchor_ms: 10_000, ..roomy() };
    config.topic_defaults.set(Setting::RetainMs, Some(AGE_MS));
    config.topic_defaults.set(Setting::RollMs, Some(400));
    config
}

/// Four frames of 150 bytes and a little more.
fn full(drops: bool) -> Config {
    let mut config = tiny();
    config.topic_defaults.set(Setting::CapacityBytes, Some(900));
    config.topic_defaults.set(Setting::OnFull, Some(u64::from(drops)));
    config
}

/// Four frames of 200 bytes, and a few small ones.
fn full_together() -> Config {
    Config { total_capacity_bytes: 1140, ..tiny() }
}

/// A message dies when it was delivered once.
fn deadly() -> Config {
    let mut config = roomy();
    config.topic_defaults.set(Setting::MaxDeliveries, Some(1));
    config
}

/// A journal begins a new segment with nearly every operation.
fn rotating() -> Config {
    Config { journal_bytes: 512, ..roomy() }
}

/// Packed as soon as half of a segment is confirmed.
fn packing() -> Config {
    let mut config = Config { journal_bytes: 4096, index_stride_bytes: 1, ..consumed() };
    config.topic_defaults.set(Setting::PackBelow, Some(60));
    config
}

fn padded() -> Config {
    Config { pad_forces: 512, ..roomy() }
}

const CHANGES: &[Step] = &[
    Send(0, "ALTER @default retain-bytes=1000001\n"),
    Effects(3),
    Send(1, "ALTER @default retain-bytes=1000002\nPUB DURABLE m1\n"),
    Quiet,
];

/// Four operations in a journal.
const AGAIN: &str = "ABORT q 1\nRESERVE q 1 0 1000\nABORT q 1\nRESERVE q 1 0 1000\nABORT q 1\nRESERVE q 1 0 1000\nABORT q 1\nRESERVE q 1 0 1000\n";

/// Three messages in a closed segment and one behind it, all reserved by one consumer.
const STUCK: &[Step] = &[
    Send(0, "PUB DURABLE m0*140\nPUB DURABLE m1*140\nPUB DURABLE m2*140\nPUB DURABLE m3*140\n"),
    Quiet,
    Send(1, "RESERVE q 4 0 1000000\n"),
    Quiet,
    Ms(20),
    Quiet,
];

/// The second of them is stuck for a while.
const PACKED: &[Step] = &[Send(1, "CONFIRM q 0 2\n"), Quiet, Ms(1_500), Quiet, Send(1, "CONFIRM q 1\n"), Quiet];

/// All of them, in the order in which they are run.
pub static WORKLOADS: [Workload; 34] = [
    Workload {
        name: "levels",
        about: "publish at mixed levels with group commit, readers at the line",
        steps: &[
            Send(0, "PUB WRITTEN w1\n"),
            Send(1, "PUB DURABLE d1\n"),
            Send(2, "PUB ACCEPTED a1\n"),
            Effects(1),
            Send(3, "READ 0 100\n"),
            Send(4, "FETCH g 100 0\n"),
            Send(0, "PUB WRITTEN w2\n"),
            Effects(1),
            Send(1, "PUB DURABLE d2\n"),
            Send(3, "READ 0 100\n"),
            Send(4, "FETCH g 100 0\n"),
            Effects(2),
            Send(3, "READ 0 100\n"),
            Send(4, "FETCH g 100 0\n"),
            Quiet,
        ],
        groups: &["g"],
        ..PLAIN
    },
    Workload {
        name: "batch",
        about: "a batch over several sectors: a power loss leaves good-bad-good",
        config: roomy,
        steps: &[Send(0, "PUB WRITTEN w1*400\nPUB ACCEPTED a1*400\n"), Quiet, Send(0, "PUB DURABLE d1*300\n"), Quiet],
        ..PLAIN
    },
    Workload {
        name: "atomic-batch",
        about: "messages published as one, over several sectors: all of them or none",
        config: roomy,
        steps: &[
            Send(0, "PUBB DURABLE b1*300 b2*200 b3\n"),
            Quiet,
            Send(0, "PUBB WRITTEN c1 c2*100\n"),
            Send(1, "PUB DURABLE d1\n"),
            Quiet,
        ],
        ..PLAIN
    },
    Workload {
        name: "repeats",
        about: "publishes with an id, repeated before and behind every crash, across a roll",
        steps: &[
            Send(0, "ID 7:1 WRITTEN i1*150\n"),
            Effects(1),
            Send(1, "ID 7:1 DURABLE i1*150\n"),
            Quiet,
            Send(0, "ID 7:2 ACCEPTED i2*150\nID 8:1 DURABLE i3*150\n"),
            Send(1, "ID 7:2 DURABLE i2*150\n"),
            Quiet,
        ],
        ..PLAIN
    },
    Workload {
        name: "roll",
        about: "publish across a roll",
        depth: 3,
        before: Some(&[Send(0, "PUB DURABLE m0*365\n"), Quiet]),
        steps: &[
            Send(0, "PUB DURABLE d1\n"),
            Send(1, "PUB ACCEPTED a1\n"),
            Send(2, "PUB WRITTEN w1\n"),
            Send(0, "PUB DURABLE d2\n"),
            Quiet,
            Send(0, "PUB DURABLE d3\n"),
            Quiet,
        ],
        ..PLAIN
    },
    Workload {
        name: "roll-under-load",
        about: "a roll in which every producer waits, and another one behind it",
        before: Some(&[Send(0, "PUB DURABLE m0*300\n"), Quiet]),
        steps: &[Send(0, "PUB WRITTEN w1*200\nPUB DURABLE d1*200\n"), Send(1, "PUB DURABLE d2*200\n"), Quiet],
        ..PLAIN
    },
    Workload {
        name: "sidecar",
        about: "a roll after which the index of the closed segment is written, and messages of it are read by it",
        config: indexed,
        before: Some(&[Send(0, "PUB DURABLE m0*120\nPUB DURABLE m1*120\nPUB DURABLE m2*100\n"), Quiet]),
        steps: &[
            Send(0, "PUB DURABLE d1\n"),
            Send(1, "PUB DURABLE d2*100\n"),
            Effects(9),
            Send(2, "READ 1 1\nREAD 2 1\n"),
            Quiet,
        ],
        ..PLAIN
    },
    Workload {
        name: "ahead",
        about: "publish into space that is zero-written ahead, up to a roll that cuts the rest",
        config: ahead,
        before: Some(&[]),
        steps: &[
            Send(0, "PUB DURABLE d1*300\n"),
            Send(1, "PUB WRITTEN w1\n"),
            Quiet,
            Send(0, "PUB DURABLE d2*300\n"),
            Quiet,
            Send(0, "PUB DURABLE d3*300\n"),
            Quiet,
        ],
        ..PLAIN
    },
    Workload {
        name: "acks",
        about: "fetch and acknowledge, twice, one ACK behind another, one of what was not delivered",
        before: Some(&[Send(0, "PUB DURABLE m0\nPUB DURABLE m1\nPUB DURABLE m2\n"), Quiet]),
        steps: &[
            Send(1, "FETCH g 2 0\n"),
            Quiet,
            Send(1, "ACK g 0\n"),
            Effects(2),
            Send(1, "ACK g 1\nACK g 2\n"),
            Quiet,
            Send(2, "FETCH h 1 0\nACK h 0\n"),
            Quiet,
        ],
        groups: &["g", "h"],
        ..PLAIN
    },
    Workload { name: "settings", about: "a topic's settings changed twice", steps: CHANGES, ..PLAIN },
    Workload {
        name: "settings-failed-force",
        about: "the same, and each force fails once, in each way",
        steps: CHANGES,
        fails: Fails::Forces,
        ..PLAIN
    },
    Workload {
        name: "flush-policy",
        about: "messages that are forced after a time, one that is forced at once, and readers at the line",
        config: flushed_later,
        steps: &[
            Send(0, "PUB WRITTEN w1\nPUB ACCEPTED a1\n"),
            Quiet,
            Ms(6),
            Send(0, "PUB WRITTEN w2\n"),
            Quiet,
            Send(1, "PUB DURABLE d1\n"),
            Send(2, "FETCH g 100 0\n"),
            Quiet,
            Send(0, "PUB ACCEPTED a2\n"),
            Quiet,
            Ms(6),
        ],
        groups: &["g"],
        ..PLAIN
    },
    Workload {
        name: "anchors",
        about: "a moment of idleness, a clean stop",
        depth: 3,
        steps: &[
            Send(0, "PUB DURABLE m1\n"),
            Quiet,
            Ms(20),
            Quiet,
            Send(0, "PUB DURABLE m2\nPUB ACCEPTED a1\n"),
            Effects(3),
            Stop,
            Quiet,
        ],
        ..PLAIN
    },
    Workload {
        name: "second-life",
        about: "a clean stop, and a process that goes on where it ended, in the space that stands ready",
        config: ahead,
        steps: &[
            Send(0, "PUB ACCEPTED a1\nPUB DURABLE d1\n"),
            Quiet,
            Stop,
            Quiet,
            Restart,
            Quiet,
            Send(0, "PUB WRITTEN w2*300\nPUB DURABLE d2*300\n"),
            Quiet,
        ],
        ..PLAIN
    },
    Workload {
        name: "tail",
        about: "the doubtful tail goes into a segment of its own",
        config: tail_copied_alone,
        steps: &[
            Send(0, "PUB DURABLE m1\n"),
            Quiet,
            Send(0, "PUB WRITTEN w1*440\nPUB WRITTEN w2\n"),
            Send(1, "PUB DURABLE m2\n"),
            Quiet,
        ],
        ..PLAIN
    },
    Workload {
        name: "padded",
        about: "padded forces on a device without power-safe overwrite",
        profile: &POSIX_TORN,
        config: padded,
        steps: &[Send(0, "PUB DURABLE m1\n"), Send(1, "PUB WRITTEN w1\n"), Quiet, Send(0, "PUB DURABLE m2\n"), Quiet],
        ..PLAIN
    },
    Workload {
        name: "purge",
        about: "a part of the log is purged, then all of it; a consumer behind the start; the line is anchored after that",
        before: Some(&[Send(0, "PUB DURABLE m0*300\nPUB DURABLE m1*300\n"), Quiet]),
        steps: &[
            Send(0, "PURGE 1\n"),
            Effects(3),
            Send(1, "PUB DURABLE d1\n"),
            Quiet,
            Send(2, "FETCH g 1 0\nACK g 0\n"),
            Quiet,
            Send(0, "PURGE 3\n"),
            Quiet,
            Ms(20),
            Quiet,
        ],
        groups: &["g"],
        ..PLAIN
    },
    Workload {
        name: "purge-failed-force",
        about: "a process is killed while a start is being recorded, and each force of the recovery fails once, in each way",
        depth: 1,
        sector_bytes: 4096,
        before: Some(&[Send(0, "PUB DURABLE m0*300\nPUB DURABLE m1*300\n"), Quiet, Send(0, "PURGE 1\n"), Effects(1)]),
        steps: &[Restart, Quiet, Restart, Quiet],
        fails: Fails::Forces,
        ..PLAIN
    },
    Workload {
        name: "retain-consumed",
        about: "what two groups have acknowledged goes, and not what one of them has",
        config: consumed,
        before: Some(&[
            Send(0, "PUB DURABLE m0*190\nPUB DURABLE m1*190\nPUB DURABLE m2*190\n"),
            Quiet,
            Send(1, "FETCH g 100 0\nACK g 0\nFETCH h 100 0\nACK h 0\n"),
            Quiet,
        ]),
        steps: &[
            Send(1, "ACK g 2\n"),
            Quiet,
            Send(1, "ACK h 1\n"),
            Effects(4),
            Send(0, "PUB DURABLE d1*190\n"),
            Quiet,
            Send(2, "READ 0 100\n"),
            Quiet,
            Begins(2),
        ],
        groups: &["g", "h"],
        keeps: Keeps::Unconsumed,
        ..PLAIN
    },
    Workload {
        name: "retain-age",
        about: "a segment is closed for its age, and goes when its last message is too old, and no younger one goes",
        config: aged,
        before: Some(&[Send(0, "PUB DURABLE m0\n"), Quiet]),
        steps: &[
            Ms(450),
            Send(0, "PUB DURABLE d1\n"),
            Quiet,
            Ms(700),
            Send(1, "READ 0 100\n"),
            Quiet,
            Begins(1),
            Send(0, "PUB ACCEPTED a1\n"),
            Quiet,
        ],
        keeps: Keeps::Ms(AGE_MS as i64),
        // Then the second message is too young to go, and a process later it may.
        restart_ms: 1300,
        ..PLAIN
    },
    Workload {
        name: "drop-oldest",
        about: "a topic that is full drops its oldest segment for a new message, and no more than that",
        config: || full(true),
        before: Some(&[Send(0, "PUB DURABLE m0*150\nPUB DURABLE m1*150\nPUB DURABLE m2*150\n"), Quiet]),
        steps: &[
            Send(0, "PUB DURABLE d1*150\nPUB WRITTEN w1*150\n"),
            Send(1, "PUB DURABLE d2*150\n"),
            Quiet,
            Send(2, "READ 0 100\n"),
            Quiet,
            Begins(2),
        ],
        keeps: Keeps::Last(4),
        ..PLAIN
    },
    Workload {
        name: "reject",
        about: "a topic that is full refuses messages, nothing of them is stored, and a PURGE makes room",
        config: || full(false),
        before: Some(&[Send(0, "PUB DURABLE m0*150\nPUB DURABLE m1*150\nPUB DURABLE m2*150\n"), Quiet]),
        steps: &[
            Send(0, "PUB DURABLE d1*150\nPUB DURABLE d2*150\n"),
            Send(1, "PUB WRITTEN w1*150\n"),
            Quiet,
            Send(0, "PURGE 2\n"),
            Effects(3),
            Send(0, "PUB DURABLE d3*150\n"),
            Quiet,
        ],
        ..PLAIN
    },
    Workload {
        name: "total-capacity",
        about: "all topics together are full: one drops its oldest segment for the other, which refuses what still has no room",
        config: full_together,
        before: Some(&[
            Send(0, "CREATE @t on-full=drop-oldest\nPUB @t DURABLE m0*200\nPUB @t DURABLE m1*200\n"),
            Quiet,
            Send(BESIDE, "PUB DURABLE n0*200\nPUB DURABLE n1*200\n"),
            Quiet,
        ]),
        steps: &[
            Send(BESIDE, "PUB WRITTEN n2*200\n"),
            Quiet,
            Send(0, "PUB @t DURABLE d1*200\nREAD @t 0 100\n"),
            Quiet,
            Begins(2),
            Send(BESIDE, "PUB DURABLE n3*200\nPUB DURABLE n4*200\n"),
            Quiet,
            Send(0, "READ @t 0 100\n"),
            Quiet,
            Begins(3),
        ],
        topic: "t",
        beside: Some("default"),
        keeps: Keeps::Last(0),
        ..PLAIN
    },
    Workload {
        name: "delete",
        sector_bytes: 4096,
        about: "a group and a topic are deleted, and a topic of the same name is made again",
        before: Some(&[
            Send(0, "CREATE @t\nPUB @t DURABLE m0\n"),
            Quiet,
            Send(1, "FETCH @t g 1 0\nACK @t g 0\n"),
            Quiet,
        ]),
        steps: &[
            Send(1, "DELETE @t g\n"),
            Quiet,
            Send(0, "PUB @t WRITTEN w1\n"),
            Send(2, "DELETE @t\n"),
            Quiet,
            Send(2, "CREATE @t\n"),
            Quiet,
            Send(0, "PUB @t DURABLE d1\n"),
            Quiet,
        ],
        groups: &["g"],
        topic: "t",
        ..PLAIN
    },
    Workload {
        name: "queue",
        about: "a work queue with two consumers: reserved, given back, confirmed, confirmed by another, run out",
        config: roomy,
        before: Some(&[Send(0, "PUB DURABLE m0\nPUB DURABLE m1\n"), Quiet, Send(1, "RESERVE q 1 0 100\n"), Quiet]),
        steps: &[
            Send(2, "RESERVE q 1 0 100\n"),
            Effects(1),
            Send(1, "CONFIRM q 0\n"),
            Send(2, "CONFIRM q 0\n"),
            Effects(2),
            Send(0, "PUB WRITTEN w1\n"),
            Send(2, "RESERVE q 2 100 100\n"),
            Quiet,
            Ms(150),
            Quiet,
            Send(1, "RESERVE q 1 0 100\nABORT q 1 1000\n"),
            Quiet,
        ],
        queues: &["q"],
        ..PLAIN
    },
    Workload {
        name: "journal",
        about: "a journal that begins anew with a checkpoint, again and again, and its older segments go",
        config: rotating,
        sector_bytes: 4096,
        before: Some(&[
            Send(0, "PUB DURABLE m0\nPUB DURABLE m1\nPUB DURABLE m2\n"),
            Quiet,
            Send(1, "RESERVE q 2 0 1000\nCONFIRM q 0\n"),
            Send(1, AGAIN),
            Send(1, AGAIN),
            Quiet,
        ]),
        steps: &[
            Send(1, "ABORT q 1\nRESERVE q 1 0 1000\n"),
            Effects(3),
            Send(2, "RESERVE q 1 0 1000\nCONFIRM q 2\n"),
            Quiet,
        ],
        queues: &["q"],
        ..PLAIN
    },
    Workload {
        name: "dead-letters",
        about: "a message that was delivered once goes to the dead letters, forced there before it is confirmed here",
        config: deadly,
        sector_bytes: 4096,
        before: Some(&[
            Send(0, "CREATE @default.dead\nPUB DURABLE m0\nPUB DURABLE m1\n"),
            Quiet,
            Send(1, "RESERVE q 1 0 1000\n"),
            Quiet,
            Ms(20),
            Quiet,
        ]),
        steps: &[Send(1, "ABORT q 0\n"), Quiet, Send(2, "RESERVE q 1 0 1000\nCONFIRM q 1\n"), Quiet],
        queues: &["q"],
        ..PLAIN
    },
    Workload {
        name: "queue-delete",
        about: "a work queue is made, deleted, and made again",
        config: roomy,
        sector_bytes: 4096,
        before: Some(&[
            Send(0, "PUB DURABLE m0\nPUB DURABLE m1\nPUB DURABLE m2\n"),
            Quiet,
            Send(1, "RESERVE q 2 0 1000\nCONFIRM q 0 1\n"),
            Quiet,
            Ms(20),
            Quiet,
        ]),
        steps: &[Send(2, "DELETE @default q\n"), Quiet, Send(1, "RESERVE q 1 0 1000\nCONFIRM q 0\n"), Quiet],
        queues: &["q"],
        ..PLAIN
    },
    Workload {
        name: "packing",
        about: "a segment of which most is confirmed is written anew, and goes when its last message is confirmed",
        sector_bytes: 4096,
        config: packing,
        before: Some(STUCK),
        steps: PACKED,
        queues: &["q"],
        packs: true,
        keeps: Keeps::Unconsumed,
        ..PLAIN
    },
    Workload {
        name: "packing-btrfs",
        about: "the same where a removal or a rename may survive what came before it, and an old file may come back",
        profile: &BTRFS,
        sector_bytes: 4096,
        config: packing,
        before: Some(STUCK),
        steps: PACKED,
        queues: &["q"],
        packs: true,
        keeps: Keeps::Unconsumed,
        ..PLAIN
    },
    Workload {
        name: "packing-fails",
        about: "each step of a packing fails in turn, with and without room on the disk; it is tried again",
        depth: 1,
        sector_bytes: 4096,
        config: packing,
        before: Some(STUCK),
        steps: &[
            Send(1, "CONFIRM q 0 2\n"),
            Quiet,
            Ms(1_500),
            Quiet,
            Send(0, "PUB DURABLE d1\n"),
            Quiet,
            Ms(31_000),
            Quiet,
            Send(0, "PUB DURABLE d2\n"),
            Quiet,
        ],
        queues: &["q"],
        packs: true,
        keeps: Keeps::Unconsumed,
        fails: Fails::Packing,
        ..PLAIN
    },
    Workload {
        name: "first-start",
        about: "an empty directory becomes a data directory",
        sector_bytes: 4096,
        before: None,
        steps: &[Quiet, Send(0, "PUB DURABLE m0\n"), Quiet],
        ..PLAIN
    },
    Workload {
        name: "failed-force",
        about: "each force fails once, in each way; the next process does not believe the page cache",
        before: Some(&[Send(0, "PUB DURABLE m0*320\n"), Quiet]),
        steps: &[
            Send(0, "PUB WRITTEN w1\n"),
            Quiet,
            Send(1, "PUB DURABLE m1*100\n"),
            Quiet,
            Send(1, "FETCH g 1 0\nACK g 0\n"),
            Quiet,
            Send(1, "PUB DURABLE m2*60\n"),
            Quiet,
        ],
        groups: &["g"],
        fails: Fails::Forces,
        ..PLAIN
    },
    Workload {
        name: "rot",
        about: "a bit of any byte rots after a crash: it is noticed, or it does not matter",
        depth: 1,
        steps: &[
            Send(0, "PUB DURABLE m1\n"),
            Quiet,
            Send(0, "PUB DURABLE m2\n"),
            Quiet,
            Send(1, "FETCH g 3 0\nACK g 0\n"),
            Quiet,
            Send(0, "PUB DURABLE m3\n"),
            Quiet,
            Send(0, "PUB ACCEPTED a1\n"),
            Quiet,
        ],
        groups: &["g"],
        rots: true,
        ..PLAIN
    },
];

/// The requests with their payloads: `name*100` becomes one of 100 bytes.
pub(super) fn written_out(requests: &str) -> String {
    let word = |word: &str| match word.split_once('*') {
        Some((name, size)) => {
            let size: usize = size.parse().expect("a size behind the star");
            format!("{name}{}", "-".repeat(size.saturating_sub(name.len())))
        }
        None => word.to_owned(),
    };
    let line = |line: &str| format!("{}\n", line.split(' ').map(word).collect::<Vec<_>>().join(" "));
    requests.lines().map(line).collect()
}

/// The same as bytes: of a PUBB only level and messages are written in a workload.
pub(super) fn on_the_wire(requests: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for line in requests.lines() {
        if let Some(batch) = line.strip_prefix("PUBB ") {
            let (level, messages) = batch.split_once(' ').expect("a level and messages");
            let mut body = Vec::new();
            for message in messages.split(' ') {
                body.extend_from_slice(&(message.len() as u32).to_be_bytes());
                body.extend_from_slice(message.as_bytes());
            }
            let head = format!("PUBB {level} {} {}\n", messages.split(' ').count(), body.len());
            out.extend_from_slice(&[head.as_bytes(), &body].concat());
        } else if let Some([id, level, payload]) = with_id(line) {
            out.extend_from_slice(format!("PUBN {level} {} id={id}\n{payload}", payload.len()).as_bytes());
        } else {
            out.extend_from_slice(line.as_bytes());
        }
        out.push(b'\n');
    }
    out
}

/// `ID 7:1 DURABLE payload` is a publish with an id: that, the level, the payload.
pub(super) fn with_id(line: &str) -> Option<[&str; 3]> {
    let words: Vec<&str> = line.strip_prefix("ID ")?.split(' ').collect();
    words.try_into().ok()
}
