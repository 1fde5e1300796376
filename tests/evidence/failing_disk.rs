//! P10: what fails in a way whose effect is unknown ends the process, and the start after it believes no page cache.
//!
//! EIO comes from the wrapper round the effects (`realfs/src/inject.rs`), and, where a loop device can be made to fail, from the
//! kernel.

use crate::rig::{Run, Talk, compare, events};
use plimsoll_core::layout;
use plimsoll_tests::broker::{Broker, injecting_binary, serve};
use plimsoll_tests::mount::{Image, Mounted, room};
use plimsoll_tests::{contents, files};
use std::fs;
use std::path::Path;
use std::process::Command;

const HALTED: i32 = 4;

pub(crate) fn write(run: &Run) -> String {
    injected_failure(run, "fail write 21 of default/log/")
}

pub(crate) fn force(run: &Run) -> String {
    injected_failure(run, "fail force 21 of default/log/")
}

fn injected_failure(run: &Run, rule: &str) -> String {
    let (events, data) = (events(), run.data());
    let broker = run.injected(&data, &[], rule);
    let acknowledged = publish_until_halted(run, &broker, &events);
    assert_eq!(acknowledged, 20);
    let told = halted(broker);
    assert!(told.contains("Input/output error"), "{told}");
    format!("HALTED, exit {HALTED}; {}", after_restart(run, &data, &events[..acknowledged]))
}

/// P7: a reader that meets an unreadable record is told so; nobody else notices.
pub(crate) fn read(run: &Run) -> String {
    let (events, data) = (events(), run.data());
    // Without memory of the newest messages, so that the file is asked.
    let broker = run.injected(&data, &["--recent-bytes", "0"], "fail read 1 of default/log/");
    let mut talk = run.connect(&broker);
    for (offset, event) in events[..20].iter().enumerate() {
        talk.publish("DURABLE", event, offset as u64);
    }
    let unreadable = talk.ask("READ 0 20");
    assert!(unreadable.starts_with("ERR CORRUPT "), "{unreadable}");
    broker.wait_for_line("CORRUPT_RECORD ");
    // The failure was of this one read.
    assert_eq!(talk.messages("READ 0 20").len(), 20);
    talk.publish("DURABLE", &events[20], 20);
    assert!(broker.stop().success());
    format!(
        "ERR CORRUPT to this reader, and a line CORRUPT_RECORD; the next READ gets all 20, publishing goes on; {}",
        after_restart(run, &data, &events[..21])
    )
}

/// The start itself can't read. It does not take that for damage, nor for an end of the log.
pub(crate) fn read_at_start(run: &Run) -> String {
    let (events, data) = (events(), run.data());
    let broker = run.broker(&data, &[]);
    let mut talk = run.connect(&broker);
    for (offset, event) in events[..20].iter().enumerate() {
        talk.publish("DURABLE", event, offset as u64);
    }
    broker.kill();
    drop(broker);
    let before = contents(&data);
    let mut command = serve(injecting_binary(), &data, &[]);
    command.env("PLIMSOLL_INJECT", "fail read 1 of default/log/");
    let output = run.output(command, "serve");
    let said = String::from_utf8(output.stdout).expect("text");
    assert_eq!(output.status.code(), Some(HALTED), "{said}");
    assert!(said.starts_with("HALTED ") && said.contains("Input/output error"), "{said}");
    assert!(contents(&data) == before, "a file was changed");
    format!("HALTED, exit {HALTED}, every file unchanged; {}", after_restart(run, &data, &events[..20]))
}

/// A device that turns out smaller than it said (thin provisioning), below a force. The kernel reports that once, and the page
/// cache goes on to show the bytes, marked clean, that the device never got. The next broker starts on just that; what it has
/// served must be on the device all the same.
pub(crate) fn device_fills_up(run: &Run) -> String {
    let events = events();
    // The device's blocks come from a sparse file in memory that ends.
    let backing = Mounted::tmpfs(24 << 20);
    // A journal that can't be written would turn it read-only, and nothing could be started on it.
    let image = Image::ext4_with(backing.path(), 64 << 20, &["-O", "^has_journal"]);
    let data = image.path().join("data");
    let broker = run.broker(&data, &["--ballast-bytes", "0"]);
    let mut talk = run.connect(&broker);
    for (offset, event) in events[..20].iter().enumerate() {
        talk.publish("DURABLE", event, offset as u64);
    }
    let (_, free) = room(backing.path());
    fs::write(backing.path().join("something-else"), vec![1; free as usize]).expect("it fits exactly");
    let mut sent: Vec<String> = events[..20].to_vec();
    loop {
        sent.push(format!("{}end-{}", "f".repeat(60_000), sent.len()));
        match talk.ask_or_lost(&format!("PUB DURABLE {}", sent[sent.len() - 1])) {
            Some(reply) if reply.starts_with("OK ") => {}
            reply => {
                assert!(reply.as_deref().is_none_or(|reply| reply.starts_with("ERR HALTED ")), "{reply:?}");
                break;
            }
        }
    }
    let last = sent.len() - 1;
    let told = halted(broker);
    assert!(told.contains("fdatasync ") && told.contains("No space left on device"), "{told}");
    // The last one, which nobody was told of, has its end in the page cache alone.
    let on_device = Command::new("grep").args(["-qaF", &format!("end-{last}")]).arg(image.file()).status();
    assert_eq!(on_device.expect("grep is installed").code(), Some(1));
    fs::remove_file(backing.path().join("something-else")).expect("it is there");

    let broker = run.broker(&data, &["--ballast-bytes", "0"]);
    let served = broker.read_all(None);
    assert!(served.len() == sent.len() && served.iter().zip(&sent).all(|(found, sent)| found == sent.as_bytes()));
    run.note(format!("{last} acknowledged, {} served after the restart", served.len()));
    broker.kill();
    drop(broker);

    // Only what is on the device is left.
    let image = Image::mount(image.unmount());
    let broker = run.broker(&image.path().join("data"), &[]);
    let log = broker.read_all(None);
    let (missing, different) = compare(&log, (0..).zip(served.iter().map(|value| &value[..])));
    assert!(broker.stop().success());
    drop(image);
    format!(
        "fdatasync fails, with ENOSPC; HALTED, exit {HALTED}; the restart serves all that was acknowledged, and one more that only the page cache had; of what it served, mounted anew: {missing} missing, {different} different"
    )
}

/// Reading and rewriting what a device can't give any more.
pub(crate) fn device_is_unreadable(run: &Run) -> String {
    let events = events();
    let image = Image::ext4(run.scratch(), 64 << 20);
    let data = image.path().join("data");
    let broker = run.broker(&data, &["--recent-bytes", "0", "--idle-anchor", "1h"]);
    let mut talk = run.connect(&broker);
    for (offset, event) in events[..20].iter().enumerate() {
        talk.publish("DURABLE", event, offset as u64);
    }
    // Everything is on the device, and the page cache forgets the log.
    let segment = files(&data, layout::LOG_SUFFIX).pop().expect("a segment");
    let file = fs::File::open(&segment).expect("the segment");
    rustix::fs::syncfs(&file).expect("a sync");
    let mended = run.scratch().join("mended.image");
    fs::copy(image.file(), &mended).expect("a copy of the device");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("an advice");
    drop(file);
    fs::OpenOptions::new().write(true).open(image.file()).and_then(|file| file.set_len(0)).expect("a cut");

    let unreadable = talk.ask("READ 0 20");
    assert!(unreadable.starts_with("ERR CORRUPT ") && unreadable.contains("Input/output error"), "{unreadable}");
    // The next frame shares a page with the last one, and that page can't be read.
    let lost = talk.ask_or_lost(&format!("PUB DURABLE {}", events[20]));
    assert!(lost.as_deref().is_none_or(|reply| reply.starts_with("ERR HALTED ")), "{lost:?}");
    let told = halted(broker);
    assert!(told.contains("write ") && told.contains("Input/output error"), "{told}");
    drop(image);

    let image = Image::mount(mended);
    let after = after_restart(run, &image.path().join("data"), &events[..20]);
    format!("READ: ERR CORRUPT; PUB: its write fails with EIO, HALTED, exit {HALTED}; {after}")
}

/// A file system that turns read-only below open files, as ext4 does when its journal fails.
pub(crate) fn read_only(run: &Run) -> String {
    let events = events();
    let image = Image::ext4(run.scratch(), 64 << 20);
    let data = image.path().join("data");
    let broker = run.broker(&data, &[]);
    let mut talk = run.connect(&broker);
    for (offset, event) in events[..20].iter().enumerate() {
        talk.publish("DURABLE", event, offset as u64);
    }
    image.abort();
    let lost = talk.ask_or_lost(&format!("PUB DURABLE {}", events[20]));
    assert!(lost.as_deref().is_none_or(|reply| reply.starts_with("ERR HALTED ")), "{lost:?}");
    let told = halted(broker);
    run.note(told);
    // Nothing can be started on it.
    let (code, _) = run.refused(&data);
    assert_eq!(code, Some(5));
    let image = Image::mount(image.unmount());
    let after = after_restart(run, &image.path().join("data"), &events[..20]);
    format!("HALTED, exit {HALTED}; {after}; before the file system is mounted anew a start ends with exit 5")
}

/// Publishes DURABLE until there is no `OK`. Answers how many there were.
fn publish_until_halted(run: &Run, broker: &Broker, events: &[String]) -> usize {
    let mut talk: Talk<'_> = run.connect(broker);
    for (offset, event) in events.iter().enumerate() {
        match talk.ask_or_lost(&format!("PUB DURABLE {event}")) {
            Some(reply) if reply == format!("OK {offset} DURABLE") => {}
            reply => {
                assert!(reply.as_deref().is_none_or(|reply| reply.starts_with("ERR HALTED ")), "{reply:?}");
                return offset;
            }
        }
    }
    panic!("nothing has failed");
}

/// It has ended by itself, and said why.
fn halted(broker: Broker) -> String {
    let told = broker.wait_for_line("HALTED ");
    assert_eq!(broker.wait().code(), Some(HALTED));
    told
}

/// The start after it: what was acknowledged is there, and publishing goes on.
fn after_restart(run: &Run, data: &Path, acknowledged: &[String]) -> String {
    let broker = run.broker(data, &[]);
    let log = broker.read_all(None);
    let (missing, different) = compare(&log, (0..).zip(acknowledged.iter().map(|event| event.as_bytes())));
    run.connect(&broker).publish("DURABLE", "afterwards", log.len() as u64);
    assert!(broker.stop().success());
    format!("after a restart {missing} of {} acknowledged missing, {different} different", acknowledged.len())
}
