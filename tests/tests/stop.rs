//! SIGTERM: what was taken in is finished, the line is exact, and nobody can hold the stop up.

use plimsoll_tests::broker::{Broker, Connection, PATIENCE};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// A bound of patience, not of speed: a force on a busy disk may take long. A FETCH that a stop must not wait for takes longer.
const STOP: Duration = Duration::from_secs(20);

#[test]
fn idle_and_stuck_clients_do_not_hold_a_stop_up() {
    let data = tempfile::tempdir().unwrap();
    let broker = Broker::start(data.path(), &[]);
    let mut idle = Connection::open(broker.address());
    assert_eq!(idle.ask("CREATE @quiet"), "CREATED quiet");
    let mut waiting = Connection::open(broker.address());
    waiting.send("FETCH @quiet nobody 10 60000\n");
    let mut half = Connection::open(broker.address());
    half.send("PUBN DURABLE 5000\nhalf of it");
    let mut publisher = Connection::open(broker.address());
    let value = "v".repeat(60_000);
    for n in 0..100 {
        assert_eq!(publisher.ask(&format!("PUB WRITTEN {value}")), format!("OK {n} WRITTEN"));
    }
    // Megabytes of replies that nobody takes.
    let mut stuck = TcpStream::connect(broker.address()).unwrap();
    stuck.write_all(&b"READ 0 1000\n".repeat(100)).unwrap();
    std::thread::sleep(Duration::from_millis(300));

    let begun = Instant::now();
    let status = broker.stop();
    assert!(status.success(), "{status}");
    assert!(begun.elapsed() < STOP, "the stop took {:?}", begun.elapsed());
    assert_eq!(waiting.line(), "END 0");
    for client in [&mut waiting, &mut idle, &mut half, &mut publisher] {
        assert_eq!(client.line(), "", "it is told nothing, and closed");
    }
    drop(stuck);
}

/// The marks are exact: the next start finds every message, copies nothing and cuts nothing off.
#[test]
fn the_start_after_a_stop_has_nothing_to_repair() {
    let data = tempfile::tempdir().unwrap();
    let broker = Broker::start(data.path(), &["--segment-bytes", "65536"]);
    let mut connection = Connection::open(broker.address());
    // Levels that a stop has to force: nothing of them is durable yet when the last reply comes.
    for n in 0..2000 {
        let level = if n % 2 == 0 { "ACCEPTED" } else { "WRITTEN" };
        connection.send(format!("PUB {level} message {n}\n"));
    }
    for n in 0..2000 {
        assert!(connection.line().starts_with(&format!("OK {n} ")));
    }
    assert!(broker.stop().success());
    let before = plimsoll_tests::contents(data.path());

    let begun = Instant::now();
    let broker = Broker::start(data.path(), &["--segment-bytes", "65536"]);
    assert!(begun.elapsed() < STOP, "the start took {:?}", begun.elapsed());
    let recovery = broker.wait_for_line("RECOVERY ");
    assert!(recovery.starts_with("RECOVERY topic=default status=OK records=2000 durable=2000 "), "{recovery}");
    assert!(broker.stop().success());
    let logs = |name: &std::path::Path| name.extension().is_some_and(|end| end == "log");
    for (path, bytes) in plimsoll_tests::contents(data.path()).iter().filter(|(path, _)| logs(path)) {
        assert!(before.get(path) == Some(bytes), "{} was made anew or changed", path.display());
    }
}

/// Nothing is taken in any more, and every request is answered or the connection is closed (P14): what got no OK is not
/// there afterwards, or it was under way.
#[test]
fn requests_during_a_stop_are_refused_and_not_stored() {
    let data = tempfile::tempdir().unwrap();
    let broker = Broker::start(data.path(), &[]);
    let mut stream = TcpStream::connect(broker.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut sending = stream.try_clone().unwrap();
    let (status, replies) = std::thread::scope(|scope| {
        scope.spawn(move || while sending.write_all(&b"PUB DURABLE again and again\n".repeat(20)).is_ok() {});
        let reader = scope.spawn(move || {
            let mut replies = Vec::new();
            // Ends with an end of file or a reset.
            let _ = stream.read_to_end(&mut replies);
            String::from_utf8(replies).unwrap()
        });
        std::thread::sleep(Duration::from_millis(300));
        let status = broker.stop();
        (status, reader.join().unwrap())
    });
    assert!(status.success(), "{status}");
    let lines: Vec<&str> = replies.split_inclusive('\n').filter(|line| line.ends_with('\n')).collect();
    let stored = lines.iter().take_while(|line| line.starts_with("OK ")).count();
    for (n, line) in lines[..stored].iter().enumerate() {
        assert_eq!(*line, format!("OK {n} DURABLE\n"));
    }
    for line in &lines[stored..] {
        assert!(line.starts_with("ERR STOPPING "), "{line}");
    }
    assert!(lines.len() > stored, "nobody was told of the stop");
    let broker = Broker::start(data.path(), &[]);
    let recovery = broker.wait_for_line("RECOVERY ");
    assert!(recovery.contains(&format!(" status=OK records={stored} durable={stored} ")), "{stored}: {recovery}");
}

/// A second signal ends it at once: for a stop that hangs in a device.
#[test]
fn a_stop_can_be_repeated_at_once() {
    let data = tempfile::tempdir().unwrap();
    for signal in ["TERM", "INT"] {
        let broker = Broker::start(data.path(), &[]);
        let mut connection = Connection::open(broker.address());
        assert!(connection.ask("PUB DURABLE one").ends_with(" DURABLE"));
        let sent = std::process::Command::new("kill").args(["-s", signal, &broker.pid().to_string()]).status();
        assert!(sent.unwrap().success());
        assert!(broker.wait().success());
    }
}
