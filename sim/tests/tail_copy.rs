//! How a recovery copies the doubtful tail: in which pieces, where it ends, and what it says of the time it took.

mod common;

use common::*;
use plimsoll_core::config::Config;
use plimsoll_core::effect::Effect;
use plimsoll_sim::naive::Harness;

const MIB: u64 = 1 << 20;

/// Positions and lengths.
type Pieces = Vec<(u64, u64)>;

/// What a start read and wrote of the log, position and length, in order.
fn pieces(h: &Harness, from: usize) -> (Pieces, Pieces) {
    let effects: Vec<Effect> = h.effects[from..].iter().map(|(_, effect)| effect.clone()).collect();
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    for (line, effect) in traced(&effects).iter().filter(|(line, _)| line.contains("/log/")) {
        match effect {
            Effect::Read { position, length, .. } => reads.push((*position, u64::from(*length))),
            Effect::Write { position, bytes, .. } if line.ends_with(".tmp") => {
                writes.push((*position, bytes.len() as u64));
            }
            _ => {}
        }
    }
    (reads, writes)
}

/// Publishes frames of 64 KiB.
fn publish(h: &mut Harness, count: usize) {
    let c = h.connect();
    h.send(c, format!("PUB DURABLE {}\n", "v".repeat(65_536 - 29)).repeat(count).as_bytes());
    assert_eq!(h.replies(c).lines().count(), count);
}

#[test]
fn a_large_tail_is_copied_by_the_mib() {
    let config = Config { copy_whole_bytes_max: 4 * MIB, ..plain() };
    let mut h = started(config.clone());
    publish(&mut h, 40);
    let all = read_all(&mut h);
    let before = h.effects.len();
    h.kill_and_restart(config);
    let (reads, writes) = pieces(&h, before);
    let in_mib = [(0, MIB), (MIB, MIB), (2 * MIB, MIB / 2)];
    assert_eq!(reads, [in_mib, in_mib].concat(), "once to look at it, once to copy it");
    assert_eq!(writes, in_mib);
    assert_eq!(read_all(&mut h), all);
    assert_eq!(segments(&h.disk), [segment(0)]);
}

/// What is small enough is copied whole, to the byte.
#[test]
fn what_is_larger_than_the_bound_is_copied_from_the_line_on() {
    for (copy_whole_bytes_max, whole) in [(4 * 65_536 - 1, false), (4 * 65_536, true)] {
        let config = Config { copy_whole_bytes_max, ..plain() };
        let mut h = started(config.clone());
        publish(&mut h, 3);
        h.hold(is_log_force);
        let c = h.connect();
        h.send(c, format!("PUB WRITTEN {}\n", "v".repeat(65_536 - 29)).as_bytes());
        let before = h.effects.len();
        h.kill_and_restart(config);
        let (_, writes) = pieces(&h, before);
        assert_eq!(writes, [(0, if whole { 4 * 65_536 } else { 65_536 })]);
        assert_eq!(segments(&h.disk).len(), if whole { 1 } else { 2 });
        assert_eq!(read_all(&mut h).lines().count(), 4);
    }
}

#[test]
fn a_copy_ends_on_a_sector_where_forces_are_padded() {
    let config = Config { pad_forces: 4096, ..plain() };
    let mut h = started(plain());
    let c = h.connect();
    h.ask(c, b"PUB DURABLE x\n");
    let before = h.effects.len();
    h.kill_and_restart(config.clone());
    assert_eq!(pieces(&h, before).1, [(0, 4096)]);
    let c = h.connect();
    assert_eq!(h.ask(c, b"PUB DURABLE y\n"), "OK 1 DURABLE\n");
    assert_eq!(h.disk.file(&segment(0)).map(<[u8]>::len), Some(8192));
    // One that ends there already needs none.
    let before = h.effects.len();
    h.kill_and_restart(config);
    assert_eq!(pieces(&h, before).1, [(0, 8192)]);
    assert_eq!(read_all(&mut h), "MSG 0 x\nMSG 1 y\n");
}

/// An earlier segment is cut where the next one begins, and only if there is something to cut.
#[test]
fn closed_segments_are_cut_once() {
    let config = Config { copy_whole_bytes_max: 0, ..plain() };
    let mut h = started(config.clone());
    let c = h.connect();
    h.ask(c, b"PUB DURABLE x\n");
    h.hold(is_log_force);
    h.send(c, b"PUB WRITTEN y\n");
    let cuts = |h: &Harness, from: usize| {
        h.effects[from..].iter().filter(|(_, effect)| matches!(effect, Effect::Truncate { .. })).count()
    };
    let mut before = h.effects.len();
    h.kill_and_restart(config.clone());
    assert_eq!(cuts(&h, before), 1, "the old tail");
    before = h.effects.len();
    h.kill_and_restart(config);
    assert_eq!(cuts(&h, before), 0);
    assert_eq!(read_all(&mut h), "MSG 0 x\nMSG 1 y\n");
}

#[test]
fn the_time_that_a_recovery_takes_is_told_in_milliseconds() {
    let mut h = started(plain());
    h.kill(plain());
    h.hold(|effect, path| matches!(effect, Effect::Read { .. }) && path == "topics/default/topic.toml");
    h.start();
    h.advance_ms(1500);
    h.release();
    h.run();
    let line = reports(&h, "RECOVERY").pop().expect("a line");
    assert!(line.ends_with(" elapsedMs=1500"), "{line}");
}
