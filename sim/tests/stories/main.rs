//! The crash stories of docs/crash-stories.md, told to the broker on the simulated disk.
//!
//! Each is a scripted session up to the dangerous moment, the crash with what it loses in words, the recovery, and the check
//! of what was promised. Each is told twice: the broker keeps its promises, and with the bug that brings the story back
//! (feature `planted`) it breaks the one that is named.

mod scene;

use bytes::Bytes;
use plimsoll_core::config::Config;
use plimsoll_core::effect::{Effect, FileId, IoErrorKind};
use plimsoll_core::log::watermark::{ANCHORED_POSITION, RUNNING_POSITION};
use plimsoll_core::record::{self, Kind, Salt};
use plimsoll_sim::disk::{FailedForce, Fault, POSIX, POSIX_TORN, Vandal};
use scene::{Scene, Told, broken, error};

const SEGMENT: &str = "topics/default/log/00000000000000000000.log";
const WATERMARK: &str = "topics/default/watermark";
const LOG_DIR: &str = "topics/default/log";
const TOPIC_TMP: &str = "topics/default.tmp";

/// No ballast, no space ahead: what is in the files is what was published.
fn plain() -> Config {
    Config { space_ahead: 0, ballast_bytes: 0, ..Config::default() }
}

/// Three messages of this size fill a segment of [`small_segments`].
fn third(name: &str) -> String {
    format!("{name}{}", "-".repeat(140))
}

fn small_segments() -> Config {
    Config { segment_bytes: 512, ..plain() }
}

/// An index entry for every message, and no index of a closed segment in memory.
fn indexed() -> Config {
    Config { index_stride_bytes: 1, index_bytes: 0, recent_bytes: 0, ..small_segments() }
}

fn is_write(effect: &Effect) -> bool {
    matches!(effect, Effect::Write { .. })
}

fn is_force(effect: &Effect) -> bool {
    matches!(effect, Effect::Force { .. })
}

/// `story { config } breaks { Bug => "P1" }`: the story holds, and each bug breaks this promise in it.
macro_rules! stories {
    ($($(#[$doc:meta])* $story:ident($config:expr) { $($bug:ident => $promise:literal),* })*) => {
        $(
            $(#[$doc])*
            mod $story {
                use super::*;

                #[test]
                fn holds() {
                    assert_eq!(super::$story($config), Ok(()));
                }

                $(
                    #[cfg(feature = "planted")]
                    #[test]
                    #[allow(non_snake_case)]
                    fn $bug() {
                        let planted = Some(plimsoll_core::planted::Planted::$bug);
                        let told = super::$story(Config { planted, ..$config });
                        let Err(broken) = told else { panic!("nothing is broken") };
                        assert_eq!(broken.promise, $promise, "{}", broken.what);
                    }
                )*
            }
        )*
    };
}

stories! {
    neighbours_in_a_sector(Config { pad_forces: 512, ..plain() }) { NoPadding => "P1" }
    exactness_believed_twice(plain()) { TailInPlace => "P1" }
    the_tail_that_is_no_longer_last(small_segments()) { RollWithoutAnchor => "P8" }
    both_slots_torn(plain()) { RunningSlotFirst => "P8" }
    no_room_for_the_other_slot(plain()) { }
    the_start_that_went_back(small_segments()) { AnchorAlone => "P8" }
    the_slot_that_was_too_old(small_segments()) { }
    believed_removed_forgotten(small_segments()) { RemovalBeforeAnchoring => "P8" }
    acked_from_the_cache(plain()) { NoGroupRewrite => "P5" }
    the_topic_that_was_a_tmp(plain()) { NoTopicsForce => "P1" }
    the_soft_directory_force(small_segments()) { CleanByEquality => "P1" }
    garbage_where_zeros_were(Config { space_ahead: 1024, segment_bytes: 2048, ..plain() }) { }
    a_refusal_that_changed_something(plain()) { LeftoversBeforeJudgement => "P7" }
    the_smuggled_frame(plain()) { KnownSalt => "P8" }
    unlinks_out_of_order(small_segments()) { HoleBelowStart => "P8" }
    the_group_above_the_line(plain()) { SeekUnbounded => "P5" }
    the_older_log_under_newer_groups(plain()) { GroupsNoEvidence => "P7" }
    the_index_of_another_life(indexed()) { SidecarBelieved => "P6" }
    the_topic_without_a_name(plain()) { NoTopicsForce => "P1" }
    the_name_that_came_back(plain()) { NameComesBack => "P8" }
    the_checkpoint_that_was_not_there_yet(Config { journal_bytes: 512, ..plain() }) { RemovalBeforeCheckpoint => "P15" }
    the_letter_that_was_lost(plain()) { ConfirmBeforeBurial => "P15" }
    good_bad_good(plain()) { ValidFrameIsEvidence => "P8" }
    the_restart_after_a_failed_force(plain()) { NoTailCopy => "P8" }
    a_payload_that_is_a_frame(plain()) { KnownSalt => "P8" }
}

/// Two lives of one log, whose messages have the same sizes and other times; the index of the first comes to lie in the second.
fn the_index_of_another_life(config: Config) -> Told {
    const INDEX: &str = "topics/default/log/00000000000000000000.index";
    let life = |pause_ms: u64| {
        let mut scene = Scene::started(config.clone(), &POSIX);
        for name in ["a", "b", "c", "d"] {
            scene.publish("DURABLE", &third(name));
            scene.wait_ms(pause_ms);
        }
        scene.run();
        scene
    };
    let (first, mut second) = (life(10), life(1_000));
    assert!(first.disk.read_file(INDEX).is_some() && first.disk.read_file(INDEX) != second.disk.read_file(INDEX));
    Vandal::of_sidecars(&mut second.disk).restore_file(&first.disk, INDEX);
    let sought = second.ask("SEEK g time=1700000000500");
    if sought != "SOUGHT 1" {
        return broken("P6", format!("what came after 500 ms begins with message 1, and the answer is {sought}"));
    }
    second.check()
}

/// Story 1. Message 0 is durable, frame 1 is written behind it and not forced, and the device has no power-safe overwrite.
fn neighbours_in_a_sector(config: Config) -> Told {
    let mut scene = Scene::started(config, &POSIX_TORN);
    scene.publish("DURABLE", "first");
    let client = scene.connect();
    scene.send(client, b"PUB WRITTEN second\n");
    scene.run_to(|effect, path| is_force(effect) && path == SEGMENT);
    // Without padding both stand in sector 0; with it the second begins sector 1.
    let sector = if scene.disk.read_file(SEGMENT).expect("a segment").len() > 512 { 1 } else { 0 };
    let torn = format!("sector {sector} of {SEGMENT}");
    scene.lose_power(&[(&torn, "garbage"), (&format!("sector 0 of {WATERMARK}"), "old")]);
    scene.start()?;
    scene.check()
}

/// Story 2. A power loss leaves the line low; recovery is killed; the next one is at work when power goes again.
fn exactness_believed_twice(config: Config) -> Told {
    let mut scene = Scene::started(config, &POSIX);
    scene.publish("DURABLE", "first");
    scene.publish("DURABLE", "second");
    scene.lose_power(&[(&format!("sector 0 of {WATERMARK}"), "old")]);
    let in_the_middle = |effect: &Effect, path: &str| is_force(effect) && path.starts_with(LOG_DIR);
    scene.begin_start();
    scene.run_to(in_the_middle);
    scene.kill();
    scene.begin_start();
    scene.run_to(in_the_middle);
    let tmp = format!("{SEGMENT}.tmp");
    scene.lose_power(&[
        (&format!("length of {SEGMENT}"), "0 bytes"),
        (&format!("length of {tmp}"), "0 bytes"),
        (&format!("sector 0 of {SEGMENT}"), "zero"),
    ]);
    scene.start()?;
    scene.check()
}

/// Story 3. A roll, then a power loss that takes the running slot: the line lies in a closed segment, if the roll did not anchor
/// it. Power goes again when recovery has done its work.
fn the_tail_that_is_no_longer_last(config: Config) -> Told {
    let mut scene = Scene::started(config, &POSIX);
    for name in ["a", "b", "c", "d"] {
        scene.publish("DURABLE", &third(name));
    }
    assert_eq!(scene.disk.tree().keys().filter(|path| path.ends_with(".log")).count(), 2, "it has rolled");
    scene.lose_power(&[(&format!("sector 0 of {WATERMARK}"), "old")]);
    scene.start()?;
    scene.check()?;
    scene.lose_power(&[(&format!("length of {SEGMENT}"), "0 bytes")]);
    scene.start()?;
    scene.check()
}

/// Story 4. Anchoring has written A and not forced it when the process is killed. Recovery writes one slot; power goes,
/// and takes both that are not forced.
fn both_slots_torn(config: Config) -> Told {
    let mut scene = Scene::started(config, &POSIX);
    scene.publish("DURABLE", "first");
    scene.wait_for(|effect, path| is_write(effect) && path == WATERMARK);
    scene.step();
    scene.run_to(|effect, path| is_write(effect) && path == WATERMARK);
    scene.step();
    scene.kill();
    scene.begin_start();
    scene.run_to(|effect, path| is_write(effect) && path == WATERMARK);
    scene.step();
    scene.lose_power(&[
        (&format!("sector 0 of {WATERMARK}"), "garbage"),
        (&format!("sector 8 of {WATERMARK}"), "garbage"),
    ]);
    scene.start()?;
    scene.check()
}

/// Story 4 on a full disk. While the line is anchored a message comes in, and A finds room for a half of it. The message is forced and
/// waits for R; were R written, a power loss could take both.
fn no_room_for_the_other_slot(config: Config) -> Told {
    let is_slot = |at: u64| {
        move |effect: &Effect, path: &str| {
            path == WATERMARK && matches!(effect, Effect::Write { position, .. } if *position == at)
        }
    };
    let mut scene = Scene::started(config, &POSIX);
    scene.publish("DURABLE", "first");
    scene.wait_for(is_slot(ANCHORED_POSITION));
    let client = scene.connect();
    scene.send(client, b"PUB DURABLE second\n");
    scene.fail(is_slot(ANCHORED_POSITION), Fault::Partial { kind: IoErrorKind::NoSpace, bytes: 40 });
    if scene.run_until(is_slot(RUNNING_POSITION)) {
        scene.step();
    }
    scene.lose_power_in_every_way()
}

/// Three segments of one message a third, and everything forced.
fn three_segments(config: Config) -> Scene {
    let mut scene = Scene::started(config, &POSIX);
    for name in ["a", "b", "c", "d", "e", "f", "g"] {
        scene.publish("ACCEPTED", &third(name));
    }
    scene.stop();
    assert_eq!(scene.bases(), [0, 3, 6], "three to a segment");
    scene
}

/// Story 5. Retention has anchored a new start and removed the segment; the next anchoring is torn.
fn the_start_that_went_back(config: Config) -> Told {
    let mut scene = three_segments(config);
    scene.start()?;
    assert_eq!(scene.ask("PURGE 3"), "PURGED 3");
    assert_eq!(scene.bases(), [3, 6], "the segment below the start is gone");
    let client = scene.connect();
    scene.send(client, b"PURGE 6\n");
    scene.run_to(|effect, path| is_write(effect) && path == WATERMARK);
    scene.step();
    scene.lose_power(&[
        (&format!("sector 8 of {WATERMARK}"), "garbage"),
        (&format!("sector 0 of {WATERMARK}"), "garbage"),
    ]);
    // Whichever of the two was being written is torn; the other one is whole and has the new start.
    scene.start()
}

/// A and R say the new start, and the segment below is gone. A power loss leaves an older version of R, with the old start; recovery is
/// interrupted at each write that it makes to a watermark file, and what is written is torn.
fn the_slot_that_was_too_old(config: Config) -> Told {
    for nth in 0..3 {
        let mut scene = three_segments(config.clone());
        scene.start()?;
        assert_eq!(scene.ask("PURGE 3"), "PURGED 3");
        assert_eq!(scene.bases(), [3, 6], "the segment below the start is gone");
        scene.kill();
        scene.write_slot(RUNNING_POSITION, |slot| (slot.start, slot.sequence) = (0, 2), true);
        scene.begin_start();
        for _ in 0..nth {
            scene.run_to(|effect, path| is_write(effect) && path.starts_with(WATERMARK));
            scene.step();
        }
        scene.lose_power_in_every_way()?;
        if !scene.ask("STATUS").contains(" start=3 ") {
            return broken("P12", "what was purged is back");
        }
    }
    Ok(())
}

/// Story 6. A has a new start and was not forced when the process was killed. Recovery believes it and removes the segment;
/// power goes, keeps the removal, and loses what no force has covered of A.
fn believed_removed_forgotten(config: Config) -> Told {
    let mut scene = three_segments(config);
    scene.write_slot(ANCHORED_POSITION, |slot| slot.start = 3, false);
    scene.kill();
    scene.begin_start();
    scene.run_to(|effect, path| matches!(effect, Effect::Remove { .. }) && path == SEGMENT);
    scene.step();
    scene.lose_power(&[(&format!("sector 8 of {WATERMARK}"), "old"), (&format!("sector 0 of {WATERMARK}"), "old")]);
    scene.start()
}

/// Story 7. An ACK's file is renamed into place and the force of its directory fails. The restart reads it from the page cache
/// and answers the repeated ACK; power goes.
fn acked_from_the_cache(config: Config) -> Told {
    let mut scene = Scene::started(config, &POSIX);
    scene.publish("DURABLE", "first");
    scene.publish("DURABLE", "second");
    assert_eq!(scene.fetch_and_ack("g", 0), "ACKED 1");
    scene.fail(|effect, path| matches!(effect, Effect::ForceDir { .. }) && path == "topics/default/groups", error());
    assert!(scene.fetch_and_ack("g", 1).starts_with("ERR HALTED"));
    scene.kill();
    scene.start()?;
    assert_eq!(scene.fetch_and_ack("g", 1), "ACKED 2");
    scene.lose_power(&[("rename of topics/default/groups/g.offset.tmp to g.offset", "lost")]);
    scene.start()?;
    scene.check()
}

/// Story 8. The first start is killed between the rename of `default.tmp` and the force of its parent.
fn the_topic_that_was_a_tmp(config: Config) -> Told {
    let mut scene = Scene::new(config, &POSIX);
    scene.begin_start();
    scene.run_to(|effect, path| matches!(effect, Effect::Rename { .. }) && path == "topics/default");
    scene.step();
    scene.kill();
    scene.start()?;
    scene.publish("DURABLE", "first");
    scene.lose_power(&[("rename of topics/default.tmp to default", "lost")]);
    scene.start()?;
    scene.check()
}

/// Story 9. The force of the directory in a roll fails; the restart sees the new segment in the page cache, and a message in
/// it becomes durable.
fn the_soft_directory_force(config: Config) -> Told {
    let mut scene = Scene::started(config, &POSIX);
    for name in ["a", "b", "c"] {
        scene.publish("DURABLE", &third(name));
    }
    scene.fail(|effect, path| matches!(effect, Effect::ForceDir { .. }) && path == LOG_DIR, error());
    assert!(scene.ask(&format!("PUB DURABLE {}", third("d"))).starts_with("ERR HALTED"));
    scene.kill();
    scene.start()?;
    assert_eq!(scene.bases(), [0, 3], "the new segment is seen");
    scene.publish("DURABLE", &third("e"));
    scene.lose_power(&[
        (&format!("creation of {LOG_DIR}/00000000000000000003.log"), "lost"),
        (&format!("sector 0 of {WATERMARK}"), "old"),
    ]);
    scene.start()?;
    scene.check()
}

/// Story 10, from its end: garbage stands behind the last frame of a closed segment. No planted bug can bring this story back any
/// more, whatever the order of cut, force and creation in a roll: a closed segment ends where the next one begins, and nobody
/// looks behind its last frame. What can still be told is that it harms nobody: recovery, readers, a further recovery.
fn garbage_where_zeros_were(config: Config) -> Told {
    let mut scene = Scene::started(config, &POSIX);
    for number in 10..26 {
        scene.publish("DURABLE", &third(&number.to_string()));
    }
    let end = scene.disk.read_file(SEGMENT).expect("a segment").len() as u64;
    assert!(scene.bases().len() > 1 && end > 0);
    for cleanly in [true, false] {
        if cleanly {
            scene.stop();
        } else {
            scene.lose_power(&[]);
        }
        let file = FileId((1 << 50) + u64::from(cleanly));
        let frame = {
            // The worst garbage: a frame of this very segment with the offset that the next one begins with, as stale blocks
            // of an earlier life may hold it.
            let mut bytes = Vec::new();
            let salt = scene.salt(0);
            record::encode(&mut bytes, salt, scene.bases()[1], 0, Kind::Message as u8, 0, |out| out.push(b'x'));
            bytes
        };
        scene.by_hand([
            Effect::Open { file, path: SEGMENT.into() },
            Effect::Write { file, position: end, bytes: Bytes::from([&frame[..], &[0xa5; 700]].concat()) },
            Effect::Force { file },
            Effect::CloseFile { file },
        ]);
        scene.start()?;
        scene.check()?;
    }
    Ok(())
}

/// Story 11. One topic has a leftover, the other is damaged: the start is refused, and not a byte is changed.
fn a_refusal_that_changed_something(config: Config) -> Told {
    let mut scene = Scene::started(config, &POSIX);
    scene.publish("DURABLE", "first");
    assert_eq!(scene.ask("CREATE @other"), "CREATED other");
    assert_eq!(scene.ask("PUB @other DURABLE theirs"), "OK 0 DURABLE");
    let client = scene.connect();
    scene.send(client, b"FETCH g 1 0\nACK g 0\n");
    scene.run_to(|effect, path| is_force(effect) && path.ends_with("g.offset.tmp"));
    scene.kill();
    let theirs = SEGMENT.replace("default", "other");
    scene.vandal().flip(&theirs, 20, 1);
    scene.start()
}

/// Story 12. A client sends a frame with a high offset inside a payload, as high as one can be so far behind the torn place,
/// and whatever it can know of the salt. Power
/// tears the frame around it.
fn the_smuggled_frame(config: Config) -> Told {
    let mut scene = Scene::started(config, &POSIX);
    scene.publish("DURABLE", "first");
    // The inner frame stands in a sector of its own, behind the torn one.
    let mut inner = vec![b'-'; 700];
    // The best that a client can do: the salt of a log whose id is not random.
    let salt = Salt::new(&[0; 16], 0);
    record::encode(&mut inner, salt, 100, 100, Kind::Message as u8, 0, |out| out.push(b'x'));
    smuggle(&mut scene, &inner);
    scene.lose_power(&[(&format!("sector 0 of {SEGMENT}"), "old")]);
    scene.start()?;
    scene.check()
}

/// A client publishes these bytes WRITTEN, and nothing is forced.
fn smuggle(scene: &mut Scene, payload: &[u8]) {
    let client = scene.connect();
    scene.send(client, &[format!("PUBN WRITTEN {}\n", payload.len()).as_bytes(), payload, b"\n"].concat());
    scene.run_to(|effect, path| is_force(effect) && path == SEGMENT);
    assert_eq!(scene.replies(client), "OK 1 WRITTEN");
}

/// Story 13. A process removes the segments below the start; power goes, keeps the removal of the second and loses that of the first.
fn unlinks_out_of_order(config: Config) -> Told {
    let mut scene = three_segments(config);
    scene.write_slot(RUNNING_POSITION, |slot| slot.start = 6, true);
    scene.write_slot(ANCHORED_POSITION, |slot| slot.start = 6, true);
    // As retention or recovery does it, oldest first; their directory is not forced yet.
    scene.by_hand([0, 3].map(|base| Effect::Remove { path: format!("{LOG_DIR}/{base:020}.log") }));
    scene.lose_power(&[(&format!("removal of {SEGMENT}"), "lost")]);
    assert_eq!(scene.bases(), [0, 6]);
    scene.start()?;
    assert_eq!(scene.bases(), [6]);
    Ok(())
}

/// Story 14, first half. A client seeks beyond the line.
fn the_group_above_the_line(config: Config) -> Told {
    let mut scene = Scene::started(config, &POSIX);
    scene.publish("DURABLE", "first");
    let reply = scene.ask("SEEK g 100");
    if reply == "SOUGHT 100" {
        return broken("P5", "a group is committed above what is durable");
    }
    assert!(reply.starts_with("ERR OUT_OF_RANGE"), "{reply}");
    scene.lose_power(&[]);
    scene.start()?;
    scene.check()
}

/// Story 14, second half. A person puts an older log, watermark and all, under newer group files.
fn the_older_log_under_newer_groups(config: Config) -> Told {
    let mut scene = Scene::started(config, &POSIX);
    scene.publish("DURABLE", "first");
    let backup = scene.disk.clone();
    scene.publish("DURABLE", "second");
    assert_eq!(scene.fetch_and_ack("g", 1), "ACKED 2");
    scene.kill();
    let mut vandal = scene.vandal();
    vandal.restore_file(&backup, SEGMENT);
    vandal.restore_file(&backup, WATERMARK);
    scene.start()
}

/// A naive design refuses on "a valid frame behind damage". Three unforced messages, each in sectors of its own; a plain
/// power loss loses those of the second.
fn good_bad_good(config: Config) -> Told {
    let mut scene = Scene::started(config, &POSIX);
    scene.publish("DURABLE", &format!("durable{}", "-".repeat(476)));
    assert_eq!(scene.disk.read_file(SEGMENT).expect("a segment").len(), 512, "a sector");
    let client = scene.connect();
    for name in ["a", "b", "c"] {
        scene.send(client, format!("PUB WRITTEN {name}{}\n", "-".repeat(482)).as_bytes());
    }
    scene.run_all_but(|effect, path| is_force(effect) && path == SEGMENT);
    assert_eq!(scene.replies(client), "OK 1 WRITTEN\nOK 2 WRITTEN\nOK 3 WRITTEN");
    scene.lose_power(&[(&format!("sector 2 of {SEGMENT}"), "old")]);
    scene.start()?;
    scene.check()?;
    let log = scene.read_all()?;
    assert_eq!(log.len(), 2, "what stood before the hole is kept, what stood behind it was promised to nobody");
    Ok(())
}

/// A naive design believes the page cache after a failed force. The force fails, the broker halts, and the next process
/// finds good frames in a cache that the disk does not have.
fn the_restart_after_a_failed_force(config: Config) -> Told {
    let mut scene = Scene::started(config, &POSIX);
    scene.publish("DURABLE", "first");
    scene.fail(|effect, path| is_force(effect) && path == SEGMENT, Fault::Force(FailedForce::MarkedClean));
    assert!(scene.ask("PUB DURABLE second").starts_with("ERR HALTED"));
    scene.kill();
    scene.start()?;
    scene.check()?;
    scene.lose_power(&[(&format!("sector 0 of {SEGMENT}"), "old")]);
    scene.start()?;
    scene.check()
}

/// A naive design takes any frame with a good checksum for one of its own. The payload is the frame that comes next in
/// this log, and the header of the frame around it is torn.
fn a_payload_that_is_a_frame(config: Config) -> Told {
    let mut scene = Scene::started(config, &POSIX);
    scene.publish("DURABLE", "first");
    let mut inner = vec![b'-'; 700];
    record::encode(&mut inner, Salt::new(&[0; 16], 0), 2, 2, Kind::Message as u8, 0, |out| out.push(b'x'));
    smuggle(&mut scene, &inner);
    scene.lose_power(&[(&format!("sector 0 of {SEGMENT}"), "old")]);
    scene.start()?;
    scene.check()
}

/// As story 9, one floor up: the n-th force of a first start fails, of a file or of a directory. The next start finds everything in
/// the page cache, a message becomes durable, and power goes in every way that is left open.
fn the_topic_without_a_name(config: Config) -> Told {
    for nth in 0.. {
        let mut scene = Scene::new(config.clone(), &POSIX);
        let seen = std::cell::Cell::new(0);
        let is_nth = move |effect: &Effect, _: &str| {
            let forces = is_force(effect) || matches!(effect, Effect::ForceDir { .. });
            seen.set(seen.get() + u32::from(forces));
            forces && seen.get() == nth + 1
        };
        scene.fail(is_nth, error());
        scene.begin_start();
        scene.run();
        if scene.halted.is_none() {
            assert!(nth > 10, "a first start forces more than {nth} times");
            return Ok(());
        }
        scene.kill();
        scene.start()?;
        scene.publish("DURABLE", "first");
        scene.lose_power_in_every_way()?;
    }
    unreachable!("a start comes to an end")
}

/// Seed 33117: the slot that says so is torn, or has what once stood there, and the other one is from before. The topic was
/// acknowledged, and goes nowhere.
#[test]
fn a_finished_topic_stays_when_a_slot_is_torn() {
    for torn in ["garbage", "stale"] {
        let mut scene = Scene::started(plain(), &POSIX);
        assert_eq!(scene.ask("CREATE @t"), "CREATED t");
        scene.kill();
        scene.begin_start();
        let is_slot = |effect: &Effect, path: &str| is_write(effect) && path == "topics/t/watermark";
        scene.run_to(is_slot);
        scene.step();
        let sectors = ["sector 0 of topics/t/watermark", "sector 8 of topics/t/watermark"];
        let decisions = scene.lose_power(&sectors.map(|sector| (sector, torn)));
        assert_eq!(decisions.len(), 1, "{decisions:?}");
        scene.start().expect("no damage");
        assert!(scene.ask("STATUS @t").starts_with("STATUS topic=t "), "{torn}");
    }
}

/// The making of `default` is cut short when it has its name. The next start takes the name away, and the force of that fails. The
/// start after that empties what it sees as a leftover, and power goes somewhere in between, in every way that is left open.
fn the_name_that_came_back(config: Config) -> Told {
    let is_name_of_topic =
        |effect: &Effect, _: &str| matches!(effect, Effect::Rename { from, .. } if from == TOPIC_TMP);
    let loses_its_name = |effect: &Effect, _: &str| matches!(effect, Effect::Rename { to, .. } if to == TOPIC_TMP);
    for nth in 0.. {
        let mut scene = Scene::new(config.clone(), &POSIX);
        scene.begin_start();
        scene.run_to(is_name_of_topic);
        scene.step();
        scene.kill();
        scene.begin_start();
        scene.run_to(loses_its_name);
        scene.fail(|effect, _| matches!(effect, Effect::ForceDir { .. }), error());
        scene.run();
        assert!(scene.halted.is_some());
        scene.kill();
        let seen = std::cell::Cell::new(0);
        scene.begin_start();
        let before_the_nth_change = scene.run_until(move |effect, path| {
            let changes = !is_force(effect) && path.starts_with("topics/");
            seen.set(seen.get() + u32::from(changes));
            changes && seen.get() == nth + 1
        });
        if !before_the_nth_change {
            assert!(nth > 10, "a start changes more than {nth} things");
            return Ok(());
        }
        scene.lose_power_in_every_way()?;
    }
    unreachable!("a start comes to an end")
}

/// A journal is rolled, and its new segment, which begins with a checkpoint, is never forced; power goes in every way that is left open.
fn the_checkpoint_that_was_not_there_yet(config: Config) -> Told {
    let mut scene = Scene::started(config, &POSIX);
    scene.publish("DURABLE", "done");
    scene.publish("DURABLE", "given back");
    let client = scene.connect();
    assert_eq!(scene.ask_as(client, "RESERVE q 1 0 1000"), "MSG 0 done\nEND 1");
    assert_eq!(scene.ask_as(client, "CONFIRM q 0"), "CONFIRMED 1");
    for _ in 0..12 {
        scene.send(client, b"RESERVE q 1 0 1000\nABORT q 1\n");
    }
    let is_new_segment = |path: &str| path.starts_with("topics/default/queues/q/log/") && !path.ends_with("00.log");
    scene.run_all_but(|effect, path| is_force(effect) && is_new_segment(path));
    scene.lose_power_and(|scene| match scene.ask("RESERVE q 9 0 1000").as_str() {
        "MSG 1 given back\nEND 1" => Ok(()),
        told => broken("P15", format!("of two messages one was confirmed, and the next RESERVE is answered {told}")),
    })
}

/// A message has been handed out as often as it may. Nothing of the topic of dead letters reaches the disk before power is lost.
fn the_letter_that_was_lost(config: Config) -> Told {
    let mut scene = Scene::started(config, &POSIX);
    assert_eq!(scene.ask("ALTER @default max-deliveries=1"), "ALTERED default");
    scene.publish("DURABLE", "poison");
    let client = scene.connect();
    assert_eq!(scene.ask_as(client, "RESERVE q 1 0 1000"), "MSG 0 poison\nEND 1");
    scene.send(client, b"ABORT q 0\n");
    scene.run_all_but(|_, path| path.starts_with("topics/default.dead"));
    assert_eq!(scene.replies(client), "ABORTED 0");
    scene.lose_power(&[]);
    scene.start()?;
    scene.run();
    match scene.ask("READ @default.dead 0 9").as_str() {
        "MSG 0 poison\nEND 1" => Ok(()),
        told => broken("P15", format!("a message is done that stands nowhere among the dead letters: {told}")),
    }
}
