//! Settings of topics: set at their making, changed, kept over restarts and full disks, and never half.

mod common;

use common::*;
use plimsoll_core::config::Config;
use plimsoll_core::effect::{Effect, IoErrorKind};
use plimsoll_core::settings::Setting;
use plimsoll_sim::naive::Harness;

const TOML: &str = "topics/t/topic.toml";

fn is_rename_of_toml(effect: &Effect, path: &str) -> bool {
    matches!(effect, Effect::Rename { .. }) && path.contains("topic.toml")
}

/// What is told of one setting.
fn setting(h: &mut Harness, name: &str) -> String {
    let c = h.connect();
    let told = h.ask(c, b"SETTINGS @t\n");
    let line = told.lines().find(|line| line.starts_with(&format!("SETTING {name} ")));
    line.unwrap_or_else(|| panic!("{told}")).trim_start_matches("SETTING ").to_owned()
}

#[test]
fn what_was_set_goes_before_the_brokers_default_and_stays_over_restarts() {
    let mut config = plain();
    config.topic_defaults.set(Setting::FlushMessages, Some(7));
    let mut h = started(config.clone());
    let c = h.connect();
    assert_eq!(h.ask(c, b"CREATE @t retain-ms=5000 on-full=drop-oldest\n"), "CREATED t\n");
    assert!(h.ask(c, b"SETTINGS @t\n").ends_with("END 12\n"));
    assert_eq!(setting(&mut h, "retain-ms"), "retain-ms 5000 topic");
    assert_eq!(setting(&mut h, "on-full"), "on-full drop-oldest topic");
    assert_eq!(setting(&mut h, "flush-messages"), "flush-messages 7 broker");
    assert_eq!(setting(&mut h, "dedup-sequences"), "dedup-sequences 1000 default");
    assert_eq!(h.ask(c, b"ALTER @t flush-messages=0 retain-ms=default\n"), "ALTERED t\n");
    for restarted in [false, true] {
        if restarted {
            h.kill_and_restart(config.clone());
        }
        assert_eq!(setting(&mut h, "retain-ms"), "retain-ms 0 default");
        assert_eq!(setting(&mut h, "flush-messages"), "flush-messages 0 topic");
        assert_eq!(setting(&mut h, "on-full"), "on-full drop-oldest topic");
    }
}

#[test]
fn making_a_topic_again_changes_nothing_and_does_not_pretend() {
    let mut h = started(plain());
    let c = h.connect();
    h.ask(c, b"CREATE @t roll-ms=1\n");
    assert_eq!(h.ask(c, b"CREATE @t roll-ms=1\nCREATE @t\n"), "CREATED t\nCREATED t\n");
    let told = h.ask(c, b"CREATE @t roll-ms=2\n");
    assert!(told.starts_with("ERR BAD_REQUEST topic t is there already, with other settings"), "{told}");
    assert_eq!(setting(&mut h, "roll-ms"), "roll-ms 1 topic");
    assert!(h.ask(c, b"ALTER @nowhere roll-ms=2\n").starts_with("ERR NO_TOPIC "));
}

/// The new file's name is forced before the change is answered.
#[test]
fn p3_a_change_is_answered_when_a_power_loss_cannot_take_it() {
    let mut h = started(plain());
    let c = h.connect();
    h.ask(c, b"CREATE @t\n");
    h.hold(|effect, path| matches!(effect, Effect::ForceDir { .. }) && path == "topics/t");
    assert_eq!(h.ask(c, b"ALTER @t roll-ms=1\n"), "");
    assert_eq!(h.held(), 1);
    h.release();
    h.run();
    assert_eq!(h.replies(c), "ALTERED t\n");
}

/// A replacement at a time, each with what the one before it has changed.
#[test]
fn changes_wait_for_each_other() {
    let mut h = started(plain());
    let (a, b) = (h.connect(), h.connect());
    h.ask(a, b"CREATE @t\n");
    h.hold(is_rename_of_toml);
    h.send(a, b"ALTER @t roll-ms=1\nPING\n");
    h.send(b, b"ALTER @t retain-bytes=2\n");
    assert_eq!(h.held(), 1);
    assert_eq!(h.replies(a), "", "what stands behind it waits");
    h.release();
    h.run();
    assert_eq!((h.replies(a), h.replies(b)), ("ALTERED t\nPONG\n".into(), "ALTERED t\n".into()));
    assert_eq!(setting(&mut h, "roll-ms"), "roll-ms 1 topic");
    assert_eq!(setting(&mut h, "retain-bytes"), "retain-bytes 2 topic");
}

/// The one who asked is gone: the change is made all the same.
#[test]
fn a_change_outlives_its_connection() {
    let mut h = started(plain());
    let a = h.connect();
    h.ask(a, b"CREATE @t\n");
    h.hold(is_rename_of_toml);
    h.send(a, b"ALTER @t roll-ms=1\n");
    h.disconnect(a);
    h.release();
    h.run();
    assert_eq!(setting(&mut h, "roll-ms"), "roll-ms 1 topic");
}

/// P11.
#[test]
fn without_room_the_settings_stay() {
    let mut h = started(plain());
    let c = h.connect();
    h.ask(c, b"CREATE @t roll-ms=1\n");
    h.fail_next(|effect, path| matches!(effect, Effect::Create { .. }) && path.starts_with(TOML), IoErrorKind::NoSpace);
    assert!(h.ask(c, b"ALTER @t roll-ms=2\n").starts_with("ERR DISK_FULL no room to store the settings of topic t"));
    assert_eq!(setting(&mut h, "roll-ms"), "roll-ms 1 topic");
    assert!(!h.disk.files().contains_key(&format!("{TOML}.tmp")));
    assert_eq!(h.ask(c, b"ALTER @t roll-ms=2\n"), "ALTERED t\n");
}

/// P10: whether it is there is not known.
#[test]
fn a_failed_replacement_halts() {
    let mut h = started(plain());
    let c = h.connect();
    h.ask(c, b"CREATE @t\n");
    h.fail_next(|effect, path| matches!(effect, Effect::Force { .. }) && path.starts_with(TOML), IoErrorKind::Other);
    assert!(h.ask(c, b"ALTER @t roll-ms=2\n").starts_with("ERR HALTED "));
    assert!(h.halted.is_some());
}

/// After a kill a name may stand in the page cache alone, and no force would tell: the file is made anew.
#[test]
fn an_unclean_start_writes_the_file_anew() {
    let mut h = started(plain());
    let c = h.connect();
    h.ask(c, b"CREATE @t roll-ms=1\n");
    h.kill_and_restart(plain());
    let made = trace(&h);
    assert_eq!(count(&made, "rename topics/t/topic.toml.tmp"), 1, "{made:?}");
    h.stop();
    h.kill_and_restart(plain());
    assert_eq!(setting(&mut h, "roll-ms"), "roll-ms 1 topic");
    assert_eq!(count(&trace(&h), "rename topics/t/topic.toml.tmp"), 1, "and a clean one does not");
    assert_eq!(setting(&mut h, "roll-ms"), "roll-ms 1 topic");
}

/// What another version has set, and this one doesn't know, is not passed over.
#[test]
fn an_unknown_setting_refuses_the_start() {
    let mut h = started(plain());
    let c = h.connect();
    h.ask(c, b"CREATE @t\n");
    h.disk.file_mut(TOML).extend_from_slice(b"codec = \"zstd\"\n");
    h.kill_and_restart(Config::default());
    assert_eq!(reports(&h, "REFUSE_START"), ["REFUSE_START topic=t reason=topic-unreadable"]);
}
