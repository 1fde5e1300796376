//! Clients: flow control, replies in order, cutting off who takes none (P13, P14).

use super::{Broker, INPUT_BYTES_MAX, Phase, Timer, halted, stopping};
use crate::connection::{Connection, Slot, Stall};
use crate::effect::{ConnectionId, Effect, ReplyPart};
use crate::error::{Code, RequestError};
use crate::io::Io;
use crate::protocol::line::{self, Limits};
use crate::protocol::{Next, Reply, Request};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;

impl Broker {
    pub(super) fn connected(&mut self, id: ConnectionId, peer: String) {
        let max = self.config.connections_max as usize;
        if self.connections.len() >= max {
            let sentence =
                format!("{max} clients are connected, the most that --max-connections allows; try again later");
            let mut bytes = Vec::new();
            line::encode_reply(&mut bytes, &Reply::Error(RequestError::new(Code::TooManyConnections, sentence)));
            self.io.tell(Effect::Reply { connection: id, part: ReplyPart::Bytes(Bytes::from(bytes)) });
            self.io.tell(Effect::Disconnect { connection: id, now: false });
            return;
        }
        let limits = Limits {
            payload_bytes_max: self.config.payload_bytes_max,
            batch_bytes_max: self.config.publish_batch_bytes_max,
            batch_messages_max: self.config.queue_messages,
        };
        let client = Connection::new(peer, limits, self.now().monotonic_ns);
        self.connections.insert(id, client);
    }

    pub(super) fn disconnected(&mut self, id: ConnectionId) {
        let Some(client) = self.connections.remove(&id) else { return };
        for (topic, group) in &client.held {
            let mut topic = self.topics[topic.0].borrow_mut();
            if let Some(entry) = topic.groups.get_mut(group)
                && entry.holder.is_some_and(|holder| holder.connection == id)
            {
                entry.holder = None;
                if entry.is_empty() {
                    topic.groups.remove(group);
                }
            }
        }
        match client.stall {
            Some(Stall::Line { topic, until_ns, .. }) => {
                self.timers.remove(&(until_ns, Timer::Fetch(id)));
                self.topics[topic.0].borrow_mut().fetchers.retain(|fetcher| *fetcher != id);
                self.leave_queues(id);
            }
            Some(Stall::Room(
                Request::Reserve { topic, group, .. }
                | Request::Confirm { topic, group, .. }
                | Request::Abort { topic, group, .. },
            )) => {
                if let Ok(journal) = self.queue_id(&topic, &group) {
                    self.topics[journal.0].borrow_mut().parked.retain(|parked| *parked != id);
                }
            }
            Some(Stall::Room(Request::Publish(publish))) => {
                if let Some(topic) = self.topic_id(&publish.topic) {
                    self.topics[topic.0].borrow_mut().parked.retain(|parked| *parked != id);
                }
            }
            _ => {}
        }
        self.give_back_leases(id, client.queues);
    }

    /// Takes up what a client has sent, as far as flow control allows, and sends what it is owed.
    pub(super) fn serve(&mut self, id: ConnectionId) {
        if matches!(self.phase, Phase::New | Phase::Starting) {
            return;
        }
        let Some(mut client) = self.connections.remove(&id) else { return };
        let mut more = true;
        while more {
            more = self.take_requests(id, &mut client);
            self.send_due(id, &mut client);
            more &= self.may_take(&client);
        }
        self.flow(id, &mut client);
        self.connections.insert(id, client);
    }

    pub(super) fn may_take(&self, client: &Connection) -> bool {
        client.stall.is_none()
            && !client.closing
            && client.unanswered() < self.config.unanswered_max as usize
            && client.unsent + client.owed < self.config.unsent_bytes_max
    }

    /// Says whether there may be more in the input.
    pub(super) fn take_requests(&mut self, id: ConnectionId, client: &mut Connection) -> bool {
        while self.may_take(client) {
            match client.codec.next(&mut client.input) {
                Next::NeedMore => return false,
                Next::Request(request) => {
                    client.last_request_ns = self.now().monotonic_ns;
                    match self.phase {
                        Phase::Serving => self.carry_out(id, client, request),
                        Phase::Halted => client.answer_now(Slot::of(&Reply::Error(halted()))),
                        _ => client.answer_now(Slot::of(&Reply::Error(stopping()))),
                    }
                }
                Next::Refused(error) => client.answer_now(Slot::of(&Reply::Error(error))),
                Next::Broken(error) => {
                    client.answer_now(Slot::of(&Reply::Error(error)));
                    client.closing = true;
                }
            }
        }
        true
    }

    pub(super) fn send_due(&mut self, id: ConnectionId, client: &mut Connection) {
        let mut parts = Vec::new();
        client.take_due(&mut parts);
        for part in parts {
            if client.unsent == 0 {
                client.stuck_since_ns = self.now().monotonic_ns;
            }
            client.emitted(&part);
            self.io.tell(Effect::Reply { connection: id, part });
        }
        if client.unsent > 0 && !client.stuck_timer_armed && self.phase == Phase::Serving {
            client.stuck_timer_armed = true;
            let at = client.stuck_since_ns + self.config.send_stall_ms_max * 1_000_000;
            self.timers.insert((at, Timer::Stuck(id)));
        }
    }

    /// Not reading is how a client is slowed down; it is never told off for pipelining.
    pub(super) fn flow(&mut self, id: ConnectionId, client: &mut Connection) {
        let idle = client.stall.is_none() && client.unanswered() == 0;
        let finished = client.ended && self.may_take(client);
        if idle && (client.closing || finished) && !client.disconnected {
            client.closing = true;
            client.disconnected = true;
            self.io.tell(Effect::Disconnect { connection: id, now: false });
        }
        let on = !client.closing && (self.may_take(client) || client.input.len() < INPUT_BYTES_MAX);
        if on != client.reading && !client.disconnected {
            client.reading = on;
            self.io.tell(Effect::SetReading { connection: id, on });
        }
    }

    /// A client that takes none of its replies for too long is cut off (P13).
    pub(super) fn check_stuck(&mut self, id: ConnectionId) {
        let limit_ns = self.config.send_stall_ms_max * 1_000_000;
        let now_ns = self.now().monotonic_ns;
        let Some(client) = self.connections.get_mut(&id) else { return };
        client.stuck_timer_armed = false;
        if client.unsent == 0 {
            return;
        }
        if now_ns.saturating_sub(client.stuck_since_ns) >= limit_ns {
            cut_off(&self.io, id, client);
        } else {
            client.stuck_timer_armed = true;
            self.timers.insert((client.stuck_since_ns + limit_ns, Timer::Stuck(id)));
        }
    }
}

/// Ends a connection at once: what was emitted for it and not sent is dropped.
pub(super) fn cut_off(io: &Io, id: ConnectionId, client: &mut Connection) {
    (client.closing, client.disconnected, client.cut) = (true, true, true);
    io.tell(Effect::Disconnect { connection: id, now: true });
}
