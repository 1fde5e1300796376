//! The wire, as clients that are wrong, slow, greedy or gone use it: each gets what it should, and harms no other (P14).

use plimsoll::client::{Client, Delivered, Options, Outcome, Publication};
use plimsoll_core::message::Message;
use plimsoll_core::protocol::Level;
use plimsoll_core::record::Kind;
use plimsoll_tests::broker::{Broker, Connection, PATIENCE, binary};
use plimsoll_tests::draws::Draws;
use plimsoll_tests::memory::resident_kib;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

/// P14: whatever one client sends, it is told or cut off, and the client beside it is served.
#[test]
fn garbage_harms_nobody_else() {
    let data = tempfile::tempdir().unwrap();
    let broker = Broker::start(data.path(), &[]);
    let mut good = Connection::open(broker.address());
    let mut draws = Draws::new(14);
    let mut random: Vec<u8> = (0..100_000).map(|_| draws.below(256) as u8).collect();
    random.push(b'\n');
    let endless = vec![b'x'; 10 << 20];
    let http = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nUser-Agent: curl/8\r\nAccept: */*\r\n\r\n";
    // The beginning of a TLS 1.3 ClientHello.
    let tls = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x52\x00\n";
    let zeros = [0u8; 5000];
    let cases: [(&str, &[u8]); 7] = [
        ("random bytes", &random),
        ("10 MB without a line end", &endless),
        ("an HTTP request", http),
        ("a TLS hello", tls),
        ("zeros", &zeros),
        ("a length that no number holds", b"PUBN DURABLE 99999999999999999999999999\n"),
        ("empty lines", b"\n\r\n\n"),
    ];
    for (n, (name, bytes)) in cases.into_iter().enumerate() {
        let replies = send_and_read_all(broker.address(), bytes);
        for reply in replies.lines() {
            assert!(reply.starts_with("ERR "), "{name}: {reply:?}");
        }
        assert!(bytes == zeros || !replies.is_empty(), "{name} got no reply");
        assert_eq!(good.ask(&format!("PUB DURABLE beside {name}")), format!("OK {n} DURABLE"), "{name}");
    }
    assert!(send_and_read_all(broker.address(), &endless).starts_with("ERR LINE_TOO_LONG "));
    assert!(send_and_read_all(broker.address(), http).starts_with("ERR BAD_REQUEST "));
    assert!(broker.stop().success());
}

#[test]
fn bytes_may_come_one_at_a_time() {
    let data = tempfile::tempdir().unwrap();
    let broker = Broker::start(data.path(), &[]);
    let mut connection = Connection::open(broker.address());
    let mut trickle = |requests: &str, replies: &[&str]| {
        for byte in requests.bytes() {
            connection.send([byte]);
        }
        for reply in replies {
            assert_eq!(connection.line(), *reply);
        }
    };
    trickle("PUB DURABLE slow\r\nPUBN DURABLE 5 key=k\na\nb\nc\n", &["OK 0 DURABLE", "OK 1 DURABLE"]);
    trickle("FETCH g 10 0\nPING\n", &["MSG 0 slow", "MSGN 1 5", "a", "b", "c", "END 2", "PONG"]);
}

#[test]
fn a_thousand_requests_at_once_are_answered_in_order() {
    let data = tempfile::tempdir().unwrap();
    let broker = Broker::start(data.path(), &[]);
    let mut connection = Connection::open(broker.address());
    let levels = ["DURABLE", "ACCEPTED", "WRITTEN"];
    let request = |n: usize| match n % 4 {
        3 => "PING\n".to_owned(),
        level => format!("PUB {} number {n}\n", levels[level]),
    };
    connection.send((0..1000).map(request).collect::<String>());
    let mut offset = 0;
    for n in 0..1000 {
        let expected = match n % 4 {
            3 => "PONG".to_owned(),
            level => format!("OK {offset} {}", levels[level]),
        };
        assert_eq!(connection.line(), expected, "request {n}");
        offset += u64::from(n % 4 != 3);
    }
}

#[test]
fn a_client_that_has_ended_its_side_still_gets_its_replies() {
    let data = tempfile::tempdir().unwrap();
    let broker = Broker::start(data.path(), &[]);
    let replies = send_and_read_all(broker.address(), b"PUB DURABLE last words\nREAD 0 1\nPING\nPUB DURABLE half a li");
    assert_eq!(replies.lines().next(), Some("OK 0 DURABLE"));
    assert!(replies.ends_with("END 0\nPONG\n") || replies.ends_with("MSG 0 last words\nEND 1\nPONG\n"), "{replies}");
    let mut connection = Connection::open(broker.address());
    assert!(connection.ask("STATUS").contains(" next=1 "), "half a request was stored");
}

#[test]
fn sockets_that_go_away_in_the_middle_leave_nothing_behind() {
    let data = tempfile::tempdir().unwrap();
    let broker = Broker::start(data.path(), &[]);
    let before = descriptors(broker.pid());
    for n in 0..200 {
        let mut stream = TcpStream::connect(broker.address()).unwrap();
        let bytes: &[u8] = match n % 4 {
            0 => b"",
            1 => b"PUBN DURABLE 1000\nhalf of the payload",
            2 => b"FETCH group 10 60000\n",
            _ => b"PUB DURABLE sent and gone\n",
        };
        stream.write_all(bytes).unwrap();
        if n % 8 < 4 {
            stream.shutdown(Shutdown::Both).unwrap();
        }
    }
    // Accepted behind all of them, of which none may have been accepted yet.
    let mut connection = Connection::open(broker.address());
    wait_until("the group is held by nobody that has gone", || connection.ask("FETCH group 1 0").starts_with("MSG 0 "));
    drop(connection);
    wait_until("all sockets are closed", || descriptors(broker.pid()) <= before);
    assert!(broker.stop().success());
}

/// Who restarts a consumer that waited for messages must not wait for it.
#[test]
fn a_group_is_free_when_its_holder_has_gone() {
    let data = tempfile::tempdir().unwrap();
    let broker = Broker::start(data.path(), &[]);
    let mut first = Connection::open(broker.address());
    first.send("FETCH group 10 60000\n");
    let mut second = Connection::open(broker.address());
    wait_until("the group is held", || second.ask("FETCH group 1 0").starts_with("ERR GROUP_BUSY "));
    drop(first);
    wait_until("the group is free", || second.ask("FETCH group 1 0") == "END 0");
    assert_eq!(second.ask("PUB DURABLE for the second"), "OK 0 DURABLE");
    assert_eq!(second.ask("FETCH group 1 0"), "MSG 0 for the second");
    assert_eq!(second.line(), "END 1");
    assert_eq!(second.ask("ACK group 0"), "ACKED 1");
}

/// P13: what a client does not take is bounded, and who takes nothing for too long is cut off.
#[test]
fn a_reader_that_does_not_read_is_cut_off() {
    let data = tempfile::tempdir().unwrap();
    let broker = Broker::start(data.path(), &["--send-stall", "1s"]);
    let mut client = Client::connect(broker.address(), Options::default()).unwrap();
    let value = vec![b'v'; 60_000];
    for _ in 0..200 {
        client.publish_nowait(None, Level::Written, &Publication::new(&value)).unwrap();
    }
    while let Some(outcome) = client.recv_reply() {
        assert!(matches!(outcome, Outcome::Stored { .. }), "{outcome:?}");
    }
    client.publish(None, Level::Durable, &Publication::new(b"the last")).unwrap();
    let memory = resident_kib(broker.pid());

    let mut slow = TcpStream::connect(broker.address()).unwrap();
    slow.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
    let begun = Instant::now();
    let mut cut = false;
    while begun.elapsed() < PATIENCE {
        // Without end: what is not read must neither pile up in the broker nor stop the other client.
        // From the disk and from memory in turn.
        if slow.write_all(&b"READ 0 1000\nREAD 150 1000\n".repeat(50)).is_err() {
            cut = true;
            break;
        }
        client.ping().unwrap();
    }
    assert!(cut, "it was not cut off");
    // By default a FETCH has 4 MiB, and 1 MiB may be unsent before no further request is taken.
    let grown = resident_kib(broker.pid()).saturating_sub(memory);
    assert!(grown < 32 << 10, "{grown} KiB for one reader that does not read");
    assert_eq!(client.status(None).unwrap().durable, 201);
    assert!(broker.stop().success());
}

/// The default limit, from a client's side: the one too many is told, the others go on, and a place that is given up is
/// there for the next.
#[test]
fn one_connection_too_many_is_told_so() {
    let data = tempfile::tempdir().unwrap();
    let broker = Broker::start(data.path(), &[]);
    raise_own_descriptor_limit();
    let mut connections: Vec<Connection> = (0..1024).map(|_| Connection::open(broker.address())).collect();
    assert_eq!(connections[1023].ask("PING"), "PONG");
    let refused = Connection::open(broker.address()).line();
    assert!(refused.starts_with("ERR TOO_MANY_CONNECTIONS 1024 clients"), "{refused}");
    for (n, connection) in connections.iter_mut().enumerate() {
        assert_eq!(connection.ask("PUB ACCEPTED from each"), format!("OK {n} ACCEPTED"));
    }
    connections.pop();
    wait_until("a place is free", || Connection::open(broker.address()).ask("PING") == "PONG");
    assert!(broker.stop().success());
}

/// Where the process may have few descriptors, clients do not get those that the broker needs for its files.
#[test]
fn no_number_of_clients_takes_the_descriptors_of_files() {
    let data = tempfile::tempdir().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 100; exec \"$@\"", "sh"]).arg(binary()).arg("serve").arg("--data").arg(data.path());
    command.args(["--auto-create", "--segment-bytes", "4096", "--listen", "127.0.0.1:0"]);
    let broker = Broker::spawn(command);
    let warning = broker.wait_for_line("WARN ");
    assert!(warning.contains("enough for 33 clients at once") && warning.contains("ulimit -n"), "{warning}");
    let mut first = Connection::open(broker.address());
    assert_eq!(first.ask("PUB DURABLE first"), "OK 0 DURABLE");
    let others: Vec<TcpStream> = (0..120).map(|_| TcpStream::connect(broker.address()).unwrap()).collect();
    wait_until("they are there", || descriptors(broker.pid()) > 38);
    for topic in 0..100 {
        assert_eq!(first.ask(&format!("PUB @topic-{topic} DURABLE message")), "OK 0 DURABLE");
    }
    assert_eq!(first.ask("FETCH group 1 0"), "MSG 0 first");
    assert_eq!(first.line(), "END 1");
    assert_eq!(first.ask("ACK group 0"), "ACKED 1");
    drop(others);
    wait_until("there is room again", || Connection::open(broker.address()).ask("PING") == "PONG");
    assert!(broker.stop().success());
}

#[test]
fn any_bytes_keys_and_headers_come_back_as_they_were() {
    let data = tempfile::tempdir().unwrap();
    let broker = Broker::start(data.path(), &[]);
    let mut client = Client::connect(broker.address(), Options::default()).unwrap();
    let all: Vec<u8> = (0..=255).collect();
    let values: [&[u8]; 7] = [&all, b"\n", b"\r", b" ", b" leading", b"trailing\r", b"\0\n\0"];
    let headers = [(b"type".to_vec(), b"created".to_vec()), (b"any".to_vec(), all.clone())];
    for value in values {
        for (key, headers) in [(None, &[][..]), (Some(&all[..]), &headers)] {
            let outcome = client.publish(None, Level::Durable, &Publication { value, key, headers, id: None });
            assert!(matches!(outcome, Ok(Outcome::Stored { .. })), "{outcome:?}");
        }
    }
    let batch = client.read(None, 0, 100, true).unwrap();
    let mut messages = 0;
    for (n, delivered) in batch.iter().enumerate() {
        let Delivered::Message(message) = delivered else { panic!("{delivered:?}") };
        assert_eq!(message.offset, n as u64);
        assert_eq!(message.value, values[n / 2]);
        let full = n % 2 == 1;
        assert_eq!(message.key().as_deref(), full.then_some(&all[..]));
        let got: Vec<(Vec<u8>, Vec<u8>)> =
            message.headers().map(|(name, value)| (name.to_vec(), value.into())).collect();
        assert_eq!(got, if full { headers.to_vec() } else { Vec::new() });
        messages += 1;
    }
    assert_eq!(messages, 2 * values.len());
}

#[test]
fn limits_are_exact_and_named() {
    let data = tempfile::tempdir().unwrap();
    let broker = Broker::start(data.path(), &["--max-payload", "1000"]);
    let mut connection = Connection::open(broker.address());
    let (exact, over) = ("x".repeat(1000), "x".repeat(1001));
    assert_eq!(connection.ask(&format!("PUB DURABLE {exact}")), "OK 0 DURABLE");
    assert_eq!(connection.ask(&format!("PUBN DURABLE 1000\n{exact}")), "OK 1 DURABLE");
    for request in [format!("PUB DURABLE {over}"), format!("PUBN DURABLE 1001\n{over}")] {
        let reply = connection.ask(&request);
        assert!(reply.starts_with("ERR TOO_LARGE ") && reply.contains("1000"), "{reply}");
    }
    // The key counts.
    let reply = connection.ask(&format!("PUBN DURABLE 1000 key=k\n{exact}"));
    assert!(reply.starts_with("ERR TOO_LARGE "), "{reply}");
    assert_eq!(connection.ask(&format!("PUBN DURABLE 999 key=k\n{}", &exact[1..])), "OK 2 DURABLE");
    let name = "n".repeat(100);
    assert_eq!(connection.ask(&format!("CREATE @{name}")), format!("CREATED {name}"));
    assert!(connection.ask(&format!("CREATE @{name}n")).starts_with("ERR BAD_NAME "));
    // After all of which the framing still holds.
    assert_eq!(connection.ask("PING"), "PONG");
}

/// READRAW from end to end: the client checks what stands on the disk, salt and checksum and all.
#[test]
fn raw_frames_are_checked_by_the_client() {
    let data = tempfile::tempdir().unwrap();
    let broker = Broker::start(data.path(), &["--segment-bytes", "65536"]);
    let mut client = Client::connect(broker.address(), Options::default()).unwrap();
    let value = |n: u64| format!("message {n} {}", "é".repeat((n % 50) as usize));
    for n in 0..5000 {
        client.publish_nowait(None, Level::Durable, &Publication::new(value(n).as_bytes())).unwrap();
        if n % 500 == 499 {
            while let Some(outcome) = client.recv_reply() {
                assert!(matches!(outcome, Outcome::Stored { level: Level::Durable, .. }), "{outcome:?}");
            }
        }
    }
    let mut next = 0;
    loop {
        let raw = client.read_raw(None, next, 20_000).unwrap();
        if raw.bytes.is_empty() {
            break;
        }
        assert_eq!(raw.first, next);
        assert!(raw.bytes.len() <= 20_000);
        for frame in raw.frames() {
            let frame = frame.expect("a whole frame with a good checksum");
            assert_eq!((frame.offset, frame.kind), (next, Kind::Message));
            let message = Message::parse(frame.payload).expect("a message");
            assert_eq!(message.value, value(next).as_bytes());
            next += 1;
        }
    }
    assert!(next > 4000, "only {next} messages stood in closed segments");
    let batch = client.read(None, next, 5000, false).unwrap();
    assert_eq!(batch.messages(), 5000 - next);
}

/// Sends all of it from one side while reading all of the other, and answers what came.
fn send_and_read_all(address: &str, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut sending = stream.try_clone().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // Fails where the broker has had enough of it.
            let _ = sending.write_all(bytes);
            let _ = sending.shutdown(Shutdown::Write);
        });
        let mut got = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            match stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => got.extend_from_slice(&buffer[..n]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
                Err(error) => panic!("the broker neither answers nor closes: {error}"),
            }
        }
        String::from_utf8(got).expect("text")
    })
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never came true: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// This process needs as many as the broker.
fn raise_own_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).expect("the soft limit can be raised");
}
