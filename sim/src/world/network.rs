//! Connections: bytes in pieces, late or never, and a client's end that does not always read.

use super::{MICROS, MILLIS, Step, Todo, World};
use crate::tape::{Concern, Rate};
use crate::trace::Lane;
use bytes::Bytes;
use plimsoll_core::effect::ConnectionId;
use plimsoll_core::event::Event;
use std::collections::VecDeque;

/// Who is at the other end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Owner {
    Client(usize),
    Auditor,
    /// The client has vanished without a word: half open.
    Nobody,
}

/// A connection.
pub(super) struct Conn {
    pub(super) owner: Owner,
    /// Pieces that are on their way to the broker, and when each is there; an empty one is the end.
    inbound: VecDeque<(u64, Bytes)>,
    arrives_ns: u64,
    /// Whether the broker wants to read.
    pub(super) reading: bool,
    pub(super) closing: bool,
    /// Reply bytes that the client's end has not taken.
    pub(super) unsent: u64,
    taken: u64,
    /// Whether the client's end takes anything.
    pub(super) takes: bool,
    take_planned: bool,
    /// Something of what it was sent was a range of a file, which takes no memory.
    has_range: bool,
    /// Of what it has not taken, something is a list of pending messages.
    has_list: bool,
    sends: u32,
    takes_done: u32,
}

impl Conn {
    pub(super) fn who(&self) -> String {
        match self.owner {
            Owner::Client(number) => format!("client {number}"),
            Owner::Auditor => "the auditor".into(),
            Owner::Nobody => "a client that vanished".into(),
        }
    }
}

impl World {
    pub(super) fn connect(&mut self, owner: Owner) -> Result<Option<ConnectionId>, super::Verdict> {
        if self.broker.is_none() {
            return Ok(None);
        }
        self.next_connection += 1;
        let connection = ConnectionId(self.next_connection);
        let conn = Conn {
            owner,
            inbound: VecDeque::new(),
            arrives_ns: 0,
            reading: true,
            closing: false,
            unsent: 0,
            taken: 0,
            takes: true,
            take_planned: false,
            has_range: false,
            has_list: false,
            sends: 0,
            takes_done: 0,
        };
        self.trace.note(self.now_ns, lane(owner), format_args!("connects"));
        self.conns.insert(connection, conn);
        self.checker.connected(connection);
        self.tell(Event::Connected { connection, peer: format!("sim:{}", connection.0) })?;
        Ok(Some(connection))
    }

    /// A client sends bytes; the network may cut them into pieces, or hold them up.
    pub(super) fn send(&mut self, connection: ConnectionId, bytes: Vec<u8>) {
        let now_ns = self.now_ns;
        let network_ns = self.network_ns();
        let fragments = self.rates.fragments;
        let Some(conn) = self.conns.get_mut(&connection) else { return };
        conn.sends += 1;
        let (who, sends) = (conn.who(), conn.sends);
        let ways = ["whole", "in two pieces", "byte by byte", "3 ms late", "in two pieces, 3 ms apart"];
        let is_auditor = conn.owner == Owner::Auditor;
        let rate = if is_auditor { Rate::NEVER } else { fragments };
        let way = self.d.rarely(
            Concern::Network,
            rate,
            ways.len(),
            format_args!("send {sends} of {who} on connection {}", connection.0),
            &|picked| ways[picked].to_owned(),
        );
        let bytes = Bytes::from(bytes);
        let middle = bytes.len() / 2;
        let pieces: Vec<(u64, Bytes)> = match way {
            1 if middle > 0 => vec![(0, bytes.slice(..middle)), (0, bytes.slice(middle..))],
            2 => {
                let singles = bytes.len().min(48);
                let mut pieces: Vec<_> = (0..singles).map(|at| (0, bytes.slice(at..at + 1))).collect();
                if singles < bytes.len() {
                    pieces.push((0, bytes.slice(singles..)));
                }
                pieces
            }
            3 => vec![(3 * MILLIS, bytes)],
            4 if middle > 0 => vec![(0, bytes.slice(..middle)), (3 * MILLIS, bytes.slice(middle..))],
            _ => vec![(0, bytes)],
        };
        let Some(conn) = self.conns.get_mut(&connection) else { return };
        let mut planned = Vec::new();
        for (late_ns, piece) in pieces {
            conn.arrives_ns = conn.arrives_ns.max(now_ns + network_ns) + late_ns + MICROS;
            conn.inbound.push_back((conn.arrives_ns, piece));
            planned.push(conn.arrives_ns);
        }
        for at_ns in planned {
            self.in_this_life(at_ns, Todo::Arrive(connection));
        }
    }

    /// A client says that it will send no more.
    pub(super) fn end_input(&mut self, connection: ConnectionId) {
        let at_ns = self.now_ns + self.network_ns();
        let Some(conn) = self.conns.get_mut(&connection) else { return };
        conn.arrives_ns = conn.arrives_ns.max(at_ns) + MICROS;
        let at_ns = conn.arrives_ns;
        conn.inbound.push_back((at_ns, Bytes::new()));
        self.in_this_life(at_ns, Todo::Arrive(connection));
    }

    /// What has come in is handed to the broker, if it wants to read; what came together may be read together.
    pub(super) fn arrive(&mut self, connection: ConnectionId) -> Step {
        let now_ns = self.now_ns;
        let Some(conn) = self.conns.get_mut(&connection) else { return Ok(()) };
        if !conn.reading || conn.closing {
            return Ok(());
        }
        let mut bytes: Vec<u8> = Vec::new();
        let mut ended = false;
        while conn.inbound.front().is_some_and(|(at_ns, _)| *at_ns <= now_ns) {
            let (_, piece) = conn.inbound.pop_front().expect("just seen");
            ended |= piece.is_empty();
            bytes.extend_from_slice(&piece);
        }
        if bytes.is_empty() && !ended {
            return Ok(());
        }
        let owner = conn.owner;
        if !bytes.is_empty() {
            self.trace.note(now_ns, lane(owner), format_args!("{} bytes arrive", bytes.len()));
            self.trace.bytes(&bytes);
            if self.resets(connection, format_args!("before {} bytes of connection {}", bytes.len(), connection.0))? {
                return Ok(());
            }
            self.mutation.hear(&mut bytes);
            self.tell(Event::Received { connection, bytes: bytes.into() })?;
        }
        if ended && self.conns.contains_key(&connection) {
            self.tell(Event::InputEnded { connection })?;
        }
        Ok(())
    }

    /// The broker has said something to a client; `in_memory`: not a range of a file.
    pub(super) fn reply(&mut self, connection: ConnectionId, bytes: Bytes, in_memory: bool) -> Step {
        let Some(conn) = self.conns.get_mut(&connection) else { return Ok(()) };
        conn.unsent += bytes.len() as u64;
        conn.has_range |= !in_memory;
        conn.has_list |= bytes.windows(8).any(|word| word == b"PENDING ");
        let has_list = conn.has_list;
        let unsent = conn.unsent;
        let shown = shown(&bytes);
        let (who, has_range) = (conn.who(), conn.has_range);
        self.trace.note(self.now_ns, Lane::Broker, format_args!("to {who}: {shown}"));
        self.trace.bytes(&bytes);
        // P13: what one client does not take is bounded by what one request may be answered.
        let config = &self.plan.config;
        let message = u64::from(config.payload_bytes_max) + 300;
        let short_ones = 60 * (self.plan.window as u64 + 40);
        let list = if has_list { self.checker.pending_list_bytes() } else { 0 };
        let largest = (config.fetch_bytes_max + message).max(list);
        let bound = config.unsent_bytes_max + largest + short_ones;
        if unsent > bound && !has_range {
            return Err(crate::model::Broken {
                promise: "P13",
                words: format!("{unsent} bytes wait for {who}, who takes none; the bound is {bound}"),
            }
            .into());
        }
        self.checker.replied(connection, &bytes, &self.disk)?;
        self.trace.mark(self.checker.model.log("default").firm_end);
        if self.mutation.counts_as_sent() {
            self.in_this_life(self.now_ns, Todo::CountAsSent(connection, bytes.len() as u64));
        }
        self.plan_take(connection, 0);
        Ok(())
    }

    fn plan_take(&mut self, connection: ConnectionId, late_ns: u64) {
        let at_ns = self.now_ns + self.network_ns() + late_ns;
        let Some(conn) = self.conns.get_mut(&connection) else { return };
        if conn.takes && !conn.take_planned && conn.owner != Owner::Nobody {
            conn.take_planned = true;
            self.in_this_life(at_ns, Todo::Take(connection));
        }
    }

    /// A client goes on reading.
    pub(super) fn take_again(&mut self, connection: ConnectionId) {
        if let Some(conn) = self.conns.get_mut(&connection) {
            conn.takes = true;
            self.plan_take(connection, 0);
        }
    }

    /// The client's end takes bytes, all or a part.
    pub(super) fn take(&mut self, connection: ConnectionId) -> Step {
        let fragments = self.rates.fragments;
        let Some(conn) = self.conns.get_mut(&connection) else { return Ok(()) };
        conn.take_planned = false;
        if !conn.takes || conn.unsent == 0 {
            return Ok(());
        }
        conn.takes_done += 1;
        let (owner, unsent, takes, who) = (conn.owner, conn.unsent, conn.takes_done, conn.who());
        if self.resets(connection, format_args!("before take {takes} of {who} on connection {}", connection.0))? {
            return Ok(());
        }
        let rate = if owner == Owner::Auditor { Rate::NEVER } else { fragments };
        let ways = ["all", "one byte first", "half first"];
        let way = self.d.rarely(
            Concern::Network,
            rate,
            ways.len(),
            format_args!("take {takes} of {who} on connection {}", connection.0),
            &|picked| ways[picked].to_owned(),
        );
        let part = match way {
            0 => unsent,
            1 => 1,
            _ => unsent.div_ceil(2),
        };
        let Some(conn) = self.conns.get_mut(&connection) else { return Ok(()) };
        conn.unsent -= part;
        conn.has_list &= conn.unsent > 0;
        conn.taken += part;
        let (taken, left, closing) = (conn.taken, conn.unsent, conn.closing);
        self.trace.note(self.now_ns, lane(owner), format_args!("takes {part} bytes"));
        if left > 0 {
            self.plan_take(connection, MILLIS);
        } else if closing {
            self.in_this_life(self.now_ns, Todo::Gone(connection));
        }
        let seen = self.checker.received(connection, taken);
        for reply in seen {
            match owner {
                Owner::Client(client) => self.client_received(client, connection, &reply),
                Owner::Auditor => self.auditor_received(&reply)?,
                Owner::Nobody => {}
            }
        }
        if self.mutation.counts_as_sent() { Ok(()) } else { self.tell(Event::Sent { connection, bytes: part }) }
    }

    fn resets(&mut self, connection: ConnectionId, when: std::fmt::Arguments<'_>) -> Result<bool, super::Verdict> {
        let Some(conn) = self.conns.get(&connection) else { return Ok(true) };
        let rate = if conn.owner == Owner::Auditor { Rate::NEVER } else { self.rates.reset };
        let words = |picked: usize| ["nothing", "reset"][picked].to_owned();
        if self.d.rarely(Concern::Network, rate, 2, when, &words) == 0 {
            return Ok(false);
        }
        self.fired.reset = true;
        self.reset(connection)?;
        Ok(true)
    }

    /// Both ends learn that the connection is gone; what was under way is lost.
    pub(super) fn reset(&mut self, connection: ConnectionId) -> Step {
        if self.conns.contains_key(&connection) {
            self.cut(connection);
            self.tell(Event::Disconnected { connection })?;
        }
        Ok(())
    }

    /// The broker's end is closed.
    pub(super) fn gone(&mut self, connection: ConnectionId) -> Step {
        let Some(conn) = self.conns.get(&connection) else { return Ok(()) };
        if conn.unsent > 0 {
            // It is closed when everything has been taken, or the client has been silent for too long.
            let takes = conn.takes && conn.owner != Owner::Nobody;
            if takes {
                self.plan_take(connection, 0);
                return Ok(());
            }
        }
        self.reset(connection)
    }

    /// The client's end learns that the connection is gone.
    pub(super) fn cut(&mut self, connection: ConnectionId) {
        let Some(conn) = self.conns.remove(&connection) else { return };
        self.trace.note(self.now_ns, lane(conn.owner), format_args!("connection gone"));
        self.checker.disconnected(connection);
        match conn.owner {
            Owner::Client(client) => self.client_disconnected(client),
            Owner::Auditor => self.audit.disconnected(),
            Owner::Nobody => {}
        }
    }
}

/// The beginnings of the lines, as many as a person reads.
pub(super) fn shown(bytes: &[u8]) -> String {
    let mut lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let head = |line: &[u8]| {
        let cut = if line.len() > 40 { "…" } else { "" };
        format!("{}{cut}", String::from_utf8_lossy(&line[..line.len().min(40)]))
    };
    let mut shown: Vec<String> = lines.by_ref().take(4).map(head).collect();
    let more = lines.count();
    if more > 0 {
        shown.push(format!("and {more} more lines"));
    }
    shown.join(" | ")
}

fn lane(owner: Owner) -> Lane {
    match owner {
        Owner::Client(number) => Lane::Client(number),
        Owner::Auditor => Lane::Client(99),
        Owner::Nobody => Lane::World,
    }
}
