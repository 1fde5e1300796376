//! The real binary on a real directory, driven over TCP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const BINARY: &str = env!("CARGO_BIN_EXE_plimsoll");

/// A running broker; killed when it goes out of scope.
struct Broker {
    process: Child,
    address: String,
    /// What it printed up to READY.
    lines: Vec<String>,
}

impl Broker {
    fn start(data: &Path, arguments: &[&str]) -> Broker {
        Broker::spawn(serve(data).args(arguments))
    }

    fn spawn(command: &mut Command) -> Broker {
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut lines = Vec::new();
        while let Some(Ok(line)) = out.next() {
            lines.push(line);
            if let Some(address) = lines.last().and_then(|line| line.strip_prefix("READY address=")) {
                let address = address.to_owned();
                // Keep reading, or the pipe breaks.
                std::thread::spawn(move || out.for_each(drop));
                return Broker { process, address, lines };
            }
        }
        panic!("it did not get ready: {:?}, {lines:?}", process.wait());
    }

    fn connect(&self) -> Client {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Client(BufReader::new(stream))
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// The exit code, which must come within seconds.
    fn exit_code(&mut self) -> Option<i32> {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status.code();
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn stop(mut self) {
        self.signal(rustix::process::Signal::TERM);
        assert_eq!(self.exit_code(), Some(0));
    }

    fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.get_mut().write_all(bytes.as_ref()).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.pop();
        line
    }

    fn ask(&mut self, line: &str) -> String {
        self.send(format!("{line}\n"));
        self.line()
    }
}

fn serve(data: &Path) -> Command {
    let mut command = Command::new(BINARY);
    command.arg("serve").arg("--data").arg(data).args(["--listen", "127.0.0.1:0"]);
    command
}

/// The same under a limit of the shell's.
fn limited(data: &Path, limit: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("{limit}; exec \"$0\" \"$@\"")).arg(BINARY);
    command.args(serve(data).get_args()).args(arguments);
    command
}

fn refused(data: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = serve(data).args(arguments).output().unwrap();
    (status.code(), String::from_utf8(stderr).unwrap())
}

fn directory() -> (tempfile::TempDir, PathBuf) {
    let parent = tempfile::tempdir().unwrap();
    let data = parent.path().join("data");
    (parent, data)
}

#[test]
fn what_was_acknowledged_is_there_after_a_kill() {
    let (_parent, data) = directory();
    let broker = Broker::start(&data, &[]);
    let mut client = broker.connect();
    assert_eq!(client.ask("PUB DURABLE first"), "OK 0 DURABLE");
    assert_eq!(client.ask("PUB WRITTEN second"), "OK 1 WRITTEN");
    assert_eq!(client.ask("PUB DURABLE third"), "OK 2 DURABLE");
    broker.kill();
    let broker = Broker::start(&data, &[]);
    assert!(broker.lines[0].starts_with("RECOVERY topic=default status=OK records=3 "), "{:?}", broker.lines);
    let mut client = broker.connect();
    client.send("READ 0 10\n");
    let lines = [client.line(), client.line(), client.line(), client.line()];
    assert_eq!(lines, ["MSG 0 first", "MSG 1 second", "MSG 2 third", "END 3"]);
    broker.stop();
}

#[test]
fn requests_come_in_any_pieces_and_are_answered_in_order_also_after_the_input_ended() {
    let (_parent, data) = directory();
    let broker = Broker::start(&data, &[]);
    let mut client = broker.connect();
    for byte in b"PUB WRITTEN abc\r\nPUBN DURABLE 3\na\nb\n" {
        client.send([*byte]);
    }
    assert_eq!([client.line(), client.line()], ["OK 0 WRITTEN", "OK 1 DURABLE"]);
    let mut expected = String::new();
    let mut requests = String::new();
    for offset in 2..3002 {
        requests += "PUB DURABLE x\nPING\n";
        expected += &format!("OK {offset} DURABLE\nPONG\n");
    }
    client.send(requests);
    client.0.get_mut().shutdown(Shutdown::Write).unwrap();
    let mut replies = String::new();
    client.0.read_to_string(&mut replies).unwrap();
    assert!(replies == expected, "{} bytes of replies", replies.len());
    broker.stop();
}

#[test]
fn one_clear_line_and_the_right_code_when_it_cannot_start() {
    let (parent, data) = directory();
    let broker = Broker::start(&data, &[]);
    let in_use = refused(&data, &[]);
    let holder = format!("process {} (listening on {})", broker.process.id(), broker.address);
    assert!(in_use.0 == Some(5) && in_use.1.contains(&holder), "{in_use:?}");
    // A busy port is found before the directory is touched.
    let untouched = parent.path().join("untouched");
    let busy = refused(&untouched, &["--listen", &broker.address]);
    assert!(busy.0 == Some(6) && busy.1.contains(&broker.address), "{busy:?}");
    assert!(!untouched.exists());
    let no_address = refused(&untouched, &["--listen", "7717"]);
    assert!(no_address.0 == Some(2) && no_address.1.contains("host:port"), "{no_address:?}");
    let bad_value = refused(&untouched, &["--pad-forces", "1000"]);
    assert!(bad_value.0 == Some(2) && bad_value.1.contains("--pad-forces must be"), "{bad_value:?}");
    let file = parent.path().join("file");
    std::fs::write(&file, "").unwrap();
    let a_file = refused(&file, &[]);
    assert!(a_file.0 == Some(5) && a_file.1.contains("is not a directory"), "{a_file:?}");
    for (_, line) in [in_use, busy, no_address, bad_value, a_file] {
        assert_eq!(line.matches('\n').count(), 1, "{line}");
        assert!(line.starts_with("plimsoll serve: "), "{line}");
    }
    broker.stop();
}

#[test]
fn a_stop_does_not_wait_for_clients() {
    let (_parent, data) = directory();
    let mut broker = Broker::start(&data, &[]);
    let _idle = broker.connect();
    let mut waiting = broker.connect();
    waiting.send("FETCH group 10 60000\n");
    // Asks for much and takes nothing of it.
    let mut stuck = broker.connect();
    let payload = "x".repeat(60_000);
    for offset in 0..50 {
        assert_eq!(stuck.ask(&format!("PUB DURABLE {payload}")), format!("OK {offset} DURABLE"));
    }
    for _ in 0..10 {
        stuck.send("READ 0 1000\n");
    }
    std::thread::sleep(Duration::from_millis(100));
    let begun = Instant::now();
    broker.signal(rustix::process::Signal::TERM);
    assert_eq!(broker.exit_code(), Some(0));
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

#[test]
fn a_thousand_topics_live_on_few_descriptors() {
    let (_parent, data) = directory();
    let limited = || limited(&data, "ulimit -n 256", &["--auto-create", "--segment-bytes", "4096"]);
    let broker = Broker::spawn(&mut limited());
    let mut clients: Vec<Client> = (0..50).map(|_| broker.connect()).collect();
    for round in 0..2 {
        for first in (0..1000).step_by(50) {
            for (topic, client) in (first..).zip(&mut clients) {
                client.send(format!("PUB @topic-{topic} WRITTEN message {round}\nPUB @topic-{topic} DURABLE again\n"));
            }
            for (topic, client) in (first..).zip(&mut clients) {
                assert_eq!(client.line(), format!("OK {} WRITTEN", round * 2), "topic {topic}");
                assert_eq!(client.line(), format!("OK {} DURABLE", round * 2 + 1), "topic {topic}");
            }
        }
    }
    broker.kill();
    let broker = Broker::spawn(&mut limited());
    let mut client = broker.connect();
    for topic in 0..1000 {
        client.send(format!("READ @topic-{topic} 2 1\n"));
        assert_eq!([client.line(), client.line()], ["MSG 2 message 1", "END 1"], "topic {topic}");
    }
    broker.kill();
}

#[test]
fn stored_frames_are_sent_from_the_file() {
    let (_parent, data) = directory();
    let broker = Broker::start(&data, &["--segment-bytes", "3MiB", "--max-payload", "1MiB"]);
    let mut client = broker.connect();
    let payload = "y".repeat(1_000_000);
    for _ in 0..7 {
        client.send(format!("PUB DURABLE {payload}\n"));
        assert!(client.line().ends_with(" DURABLE"));
    }
    let stored = std::fs::read(data.join("topics/default/log/00000000000000000000.log")).unwrap();
    // Not in the page cache: a thread must read it first.
    let segment = std::fs::File::open(data.join("topics/default/log/00000000000000000000.log")).unwrap();
    rustix::fs::fadvise(&segment, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    // Pipelined with other requests, larger than the socket's buffers, and read slowly.
    client.send("READRAW 0 100000000\nPING\nREADRAW 0 100000000\n");
    for after in ["PONG", ""] {
        let head = client.line();
        let words: Vec<&str> = head.split(' ').collect();
        assert_eq!(words[..2], ["FRAMES", "0"], "{head}");
        let mut frames = vec![0; words[2].parse().unwrap()];
        std::thread::sleep(Duration::from_millis(50));
        client.0.read_exact(&mut frames).unwrap();
        assert!(frames.len() > 2_000_000 && frames == stored[..frames.len()]);
        if !after.is_empty() {
            assert_eq!(client.line(), after);
        }
    }
    broker.stop();
}

#[test]
fn one_client_too_many_is_told_so() {
    let (_parent, data) = directory();
    let broker = Broker::start(&data, &["--max-connections", "2"]);
    let mut clients = [broker.connect(), broker.connect()];
    for client in &mut clients {
        assert_eq!(client.ask("PING"), "PONG");
    }
    let mut third = broker.connect();
    third.send("PING\n");
    assert!(third.line().starts_with("ERR TOO_MANY_CONNECTIONS "));
    assert_eq!(third.0.read(&mut [0]).unwrap(), 0);
    drop(clients);
    // Their places are free again.
    let begun = Instant::now();
    while broker.connect().ask("PING") != "PONG" {
        assert!(begun.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(5));
    }
    broker.stop();
}

#[test]
fn a_directory_that_vanishes_halts_it() {
    let (_parent, data) = directory();
    let mut broker = Broker::start(&data, &[]);
    let mut client = broker.connect();
    assert_eq!(client.ask("PUB DURABLE a"), "OK 0 DURABLE");
    std::fs::remove_dir_all(&data).unwrap();
    assert!(client.ask("PUB DURABLE b").starts_with("ERR HALTED "));
    assert_eq!(broker.exit_code(), Some(4));
}

#[test]
fn clients_wait_for_a_descriptor_when_there_is_none() {
    let (_parent, data) = directory();
    let broker = Broker::spawn(&mut limited(&data, "ulimit -n 64", &[]));
    let mut clients: Vec<Client> = (0..100).map(|_| broker.connect()).collect();
    for client in &mut clients {
        client.send("PING\n");
    }
    assert_eq!(clients[0].line(), "PONG");
    clients[99].0.get_mut().set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(clients[99].0.fill_buf().is_err());
    // As those before it leave, it is its turn.
    let mut last = clients.split_off(85);
    drop(clients);
    for client in &mut last {
        client.0.get_mut().set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        assert_eq!(client.line(), "PONG");
    }
    broker.stop();
}

#[test]
fn a_write_beyond_the_file_size_limit_is_an_error_of_that_write() {
    let (_parent, data) = directory();
    // More than the ballast, in blocks of 512 bytes or of 1024, as the shell likes.
    let mut broker = Broker::spawn(&mut limited(&data, "ulimit -f 10000", &[]));
    let mut client = broker.connect();
    let payload = "x".repeat(60_000);
    let refused =
        (0..200).map(|_| client.ask(&format!("PUB DURABLE {payload}"))).find(|reply| !reply.starts_with("OK "));
    assert!(refused.as_ref().is_some_and(|reply| reply.starts_with("ERR HALTED ")), "{refused:?}");
    // Not the end by SIGXFSZ.
    assert_eq!(broker.exit_code(), Some(4));
}

#[test]
fn a_closed_standard_output_does_not_matter() {
    let (_parent, data) = directory();
    let mut process = serve(&data).stdout(Stdio::piped()).spawn().unwrap();
    drop(process.stdout.take());
    let begun = Instant::now();
    while !data.join("topics/default").exists() {
        assert!(begun.elapsed() < Duration::from_secs(20) && process.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(5));
    }
    let pid = rustix::process::Pid::from_child(&process);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(process.wait().unwrap().code(), Some(0));
}

#[test]
fn lines_are_json_on_request() {
    let (_parent, data) = directory();
    let mut process = serve(&data).args(["--log", "json"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(process.stdout.take().unwrap()).lines();
    let ready = loop {
        let line: serde_json::Value = serde_json::from_str(&out.next().unwrap().unwrap()).unwrap();
        if line["event"] == "READY" {
            break line;
        }
    };
    assert!(ready["address"].as_str().unwrap().starts_with("127.0.0.1:"));
    process.kill().unwrap();
    process.wait().unwrap();
}
