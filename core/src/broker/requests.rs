//! Requests: one place for each verb that needs no group.

use super::{Broker, Ended, Reader, Timer, end_of_nothing, out_of_range};
use crate::connection::{Connection, Slot, Stall};
use crate::effect::{ConnectionId, FieldValue};
use crate::error::{Code, RequestError};
use crate::io::{Io, TopicId};
use crate::layout;
use crate::log::group_commit::{self, Answer, Waiter};
use crate::log::read::{self, Delivered, Raw, Wanted};
use crate::log::{Admission, Topic};
use crate::planted::planted;
use crate::protocol::{Hello, Level, Publish, Reply, Request, TopicRef, line};
use crate::settings::Settings;
use alloc::boxed::Box;
use alloc::format;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;

impl Broker {
    pub(super) fn topic_id(&self, topic: &TopicRef) -> Option<TopicId> {
        self.names.get(topic.as_deref().unwrap_or(layout::DEFAULT_TOPIC)).copied()
    }

    pub(super) fn topic_or_error(&self, topic: &TopicRef) -> Result<TopicId, RequestError> {
        self.topic_id(topic).ok_or_else(|| no_topic(topic.as_deref().unwrap_or(layout::DEFAULT_TOPIC)))
    }

    pub(super) fn carry_out(&mut self, id: ConnectionId, client: &mut Connection, request: Request) {
        let now_or_later = match request {
            Request::Publish(publish) => self.publish(id, client, publish),
            Request::Fetch { .. } => {
                let slot = client.open_slot();
                self.fetch(id, client, slot, request);
                return;
            }
            Request::Reserve { .. } => return self.reserve_when_ready(id, client, request),
            Request::Confirm { topic, group, offsets } => self.confirm(id, client, topic, group, offsets),
            Request::Abort { topic, group, offset, delay_ms } => self.abort(id, client, topic, group, offset, delay_ms),
            Request::Extend { topic, group, offset, lease_ms } => self.extend(id, &topic, &group, offset, lease_ms),
            Request::Queues { topic } => self.topic_or_error(&topic).map(|topic| Some(self.queues_of(topic))),
            Request::Pending { topic, group, from, max } => self.pending(id, client, &topic, &group, from, max),
            Request::Steal { topic, group, offset } => self.steal(&topic, &group, offset),
            Request::Ack { topic, group, offset } => self.ack(id, client, &topic, &group, offset),
            Request::Read { topic, offset, max, meta } => self.read(id, client, &topic, offset, max, meta),
            Request::ReadRaw { topic, offset, max_bytes } => self.read_raw(id, client, &topic, offset, max_bytes),
            Request::Find { topic, time_ms } => self.find(id, client, &topic, time_ms),
            Request::Seek { topic, group, to } => self.seek(id, client, &topic, &group, to),
            Request::Status { topic } => {
                self.topic_or_error(&topic).map(|topic| Some(Reply::Status(self.topics[topic.0].borrow().status())))
            }
            Request::Topics => {
                let topics = self.names.values().map(|topic| self.topics[topic.0].borrow().status()).collect();
                Ok(Some(Reply::Topics(topics)))
            }
            Request::Groups { topic } => self.topic_or_error(&topic).map(|topic| Some(self.groups(topic))),
            Request::Purge { topic, before } => self.purge(id, client, &topic, before),
            Request::Delete { topic, group: Some(group) } => self.delete_group(id, client, topic, group),
            Request::Delete { topic, group: None } => self.delete_topic(id, client, topic),
            Request::Create { topic, settings } => self.create(id, client, topic, settings),
            Request::Alter { topic, change } => self.alter(id, client, topic, change),
            Request::Settings { topic } => self.topic_or_error(&topic).map(|topic| Some(self.settings(topic))),
            Request::Ping => Ok(Some(Reply::Pong)),
            Request::Hello => Ok(Some(Reply::Hello(Hello {
                version: env!("CARGO_PKG_VERSION"),
                payload_bytes_max: self.config.payload_bytes_max,
                publish_batch_bytes_max: self.config.publish_batch_bytes_max,
                queue_messages: self.config.queue_messages,
                unanswered_max: self.config.unanswered_max,
                fetch_wait_ms_max: self.config.fetch_wait_ms_max,
                fetch_bytes_max: self.config.fetch_bytes_max,
            }))),
            Request::Quit => {
                client.closing = true;
                Ok(Some(Reply::Bye))
            }
        };
        match now_or_later {
            Ok(Some(reply)) => client.answer_now(Slot::of(&reply)),
            Ok(None) => {}
            Err(error) => client.answer_now(Slot::of(&Reply::Error(error))),
        }
    }

    pub(super) fn publish(
        &mut self,
        id: ConnectionId,
        client: &mut Connection,
        publish: Publish,
    ) -> Result<Option<Reply>, RequestError> {
        let Some(topic_id) = self.topic_id(&publish.topic) else {
            if self.config.auto_create
                && let Some(name) = &publish.topic
            {
                self.create_topic(Some(id), name, Settings::NONE)?;
                client.stall = Some(Stall::Creation(Request::Publish(publish)));
                return Ok(None);
            }
            return self.topic_or_error(&publish.topic).map(|_| None);
        };
        let now = self.now();
        debug_assert_eq!(
            self.topics.bytes(),
            self.topics.of_messages().map(|topic| topic.borrow().size.counted()).sum::<u64>()
        );
        let topic = self.topics[topic_id.0].clone();
        let mut topic = topic.borrow_mut();
        match topic.admit(&self.config, &self.io, now, id, &mut client.mark, &publish) {
            Admission::Admitted(offset) => {
                answer_publish(&self.io, &mut topic, client, id, publish.level, offset, publish.batch);
                let arm = !topic.idle_timer_armed;
                drop(topic);
                if arm {
                    self.arm_idle(topic_id);
                }
            }
            // It may be that the first one is not as safe yet as this one is to be (P16).
            Admission::Known(first) => {
                let batch = publish.batch.map(|_| first.count);
                answer_publish(&self.io, &mut topic, client, id, publish.level, first.offset, batch);
            }
            Admission::Parked => park(&mut topic, client, id, publish),
            Admission::OverTotal(over) => {
                drop(topic);
                self.over_total(id, client, topic_id, publish, &over)?;
            }
            Admission::Refused(error) => return Err(error),
        }
        self.topics_to_pump.insert(topic_id);
        Ok(None)
    }

    pub(super) fn deliver(
        &mut self,
        client: &mut Connection,
        reader: Reader,
        topic: Rc<RefCell<Topic>>,
        wanted: Wanted,
    ) {
        client.stall = Some(Stall::Reading);
        let ended = self.begin_task(|io| {
            Box::pin(async move { Ended::Delivered { reader, delivered: read::deliver(io, topic, wanted).await } })
        });
        if let Some(Ended::Delivered { reader, delivered }) = ended {
            self.deliver_to(client, &reader, delivered);
        }
    }

    pub(super) fn delivered(&mut self, reader: &Reader, delivered: Delivered) {
        let Some(mut client) = self.connections.remove(&reader.connection) else { return };
        self.deliver_to(&mut client, reader, delivered);
        self.connections.insert(reader.connection, client);
        self.connections_to_serve.insert(reader.connection);
    }

    pub(super) fn deliver_to(&mut self, client: &mut Connection, reader: &Reader, mut delivered: Delivered) {
        client.stall = None;
        if let Some(damage) = &delivered.damage {
            self.report("CORRUPT_RECORD", Vec::from([("reason", FieldValue::Text(damage.sentence.clone()))]));
        }
        let slot = match delivered.damage {
            Some(damage) if delivered.out.is_empty() => Slot::of(&Reply::Error(damage)),
            _ => {
                line::encode_end(&mut delivered.out, delivered.messages);
                Slot::Bytes(delivered.out)
            }
        };
        if let Some(name) = &reader.group
            && let Some(group) = self.topics[reader.topic.0].borrow_mut().groups.get_mut(name)
            && let Some(holder) = group.holder_mut(reader.connection)
        {
            // Unless an ACK of the holder before this one has moved it on meanwhile.
            if delivered.next >= holder.next {
                (holder.next, holder.hint) = (delivered.next, delivered.hint);
            }
        }
        client.answer(reader.slot, slot);
    }

    pub(super) fn fetch_again(&mut self, id: ConnectionId) {
        let Some(mut client) = self.connections.remove(&id) else { return };
        match client.stall.take() {
            Some(Stall::Line { until_ns, request, slot, .. }) => {
                self.timers.remove(&(until_ns, Timer::Fetch(id)));
                match request {
                    Request::Reserve { .. } => self.reserve(id, &mut client, slot, request),
                    request => self.fetch(id, &mut client, slot, request),
                }
                self.connections_to_serve.insert(id);
            }
            other => client.stall = other,
        }
        self.connections.insert(id, client);
    }

    pub(super) fn fetch_timed_out(&mut self, id: ConnectionId) {
        let Some(client) = self.connections.get_mut(&id) else { return };
        if let Some(Stall::Line { topic, slot, until_ns, .. }) = &client.stall {
            let (topic, slot) = (*topic, *slot);
            let until_ns = *until_ns;
            client.stall = None;
            client.answer(slot, end_of_nothing());
            self.timers.remove(&(until_ns, Timer::Fetch(id)));
            self.topics[topic.0].borrow_mut().fetchers.retain(|fetcher| *fetcher != id);
            self.leave_queues(id);
            self.connections_to_serve.insert(id);
        }
    }

    pub(super) fn read(
        &mut self,
        id: ConnectionId,
        client: &mut Connection,
        topic: &TopicRef,
        offset: u64,
        max: u64,
        meta: bool,
    ) -> Result<Option<Reply>, RequestError> {
        let topic_id = self.topic_or_error(topic)?;
        let topic = self.topics[topic_id.0].clone();
        let (start, limit) = (topic.borrow().start, topic.borrow().durable);
        if offset > limit {
            return Err(out_of_range(offset, start, limit));
        }
        let slot = client.open_slot();
        if offset == limit {
            client.answer(slot, end_of_nothing());
            return Ok(None);
        }
        let bytes_max = self.config.fetch_bytes_max;
        let wanted =
            Wanted { next: offset, limit, messages_max: max, bytes_max, meta, hint: None, deliveries: Vec::new() };
        self.deliver(client, Reader { connection: id, slot, topic: topic_id, group: None }, topic, wanted);
        Ok(None)
    }

    pub(super) fn find(
        &mut self,
        id: ConnectionId,
        client: &mut Connection,
        topic: &TopicRef,
        time_ms: i64,
    ) -> Result<Option<Reply>, RequestError> {
        let topic_id = self.topic_or_error(topic)?;
        let topic = self.topics[topic_id.0].clone();
        let limit = topic.borrow().durable;
        let slot = client.open_slot();
        client.stall = Some(Stall::Reading);
        let ended = self.begin_task(|io| {
            Box::pin(async move {
                let result = read::find_time(io, topic, time_ms, limit).await;
                Ended::Found { connection: id, slot, result }
            })
        });
        if let Some(Ended::Found { result, .. }) = ended {
            found(client, slot, result);
        }
        Ok(None)
    }

    pub(super) fn read_raw(
        &mut self,
        id: ConnectionId,
        client: &mut Connection,
        topic: &TopicRef,
        offset: u64,
        bytes_max: u64,
    ) -> Result<Option<Reply>, RequestError> {
        let topic_id = self.topic_or_error(topic)?;
        let topic = self.topics[topic_id.0].clone();
        let (start, limit, active) = {
            let topic = topic.borrow();
            (topic.start, topic.durable, topic.active().base)
        };
        if offset < start || offset > limit {
            return Err(out_of_range(offset, start, limit));
        }
        if offset >= active {
            return Ok(Some(Reply::Frames { first: offset, bytes: 0, salt: 0 }));
        }
        let slot = client.open_slot();
        client.stall = Some(Stall::Reading);
        let ended = self.begin_task(|io| {
            Box::pin(async move {
                let result = read::raw(io, topic, offset, bytes_max).await;
                Ended::Raw { connection: id, slot, offset, result }
            })
        });
        if let Some(Ended::Raw { result, .. }) = ended {
            raw_found(client, slot, offset, result);
        }
        Ok(None)
    }
}

/// A publish that waits for room in its topic, and is tried again.
pub(super) fn park(topic: &mut Topic, client: &mut Connection, id: ConnectionId, publish: Publish) {
    topic.parked.push_back(id);
    client.stall = Some(Stall::Room(Request::Publish(publish)));
}

pub(super) fn no_topic(name: &str) -> RequestError {
    let sentence = format!("there is no topic {name}; make it with CREATE @{name} (plimsoll create {name})");
    RequestError::new(Code::NoTopic, sentence)
}

/// Answers a publish that has an offset, at once where it is as safe already as it is to be, else when it is.
fn answer_publish(
    io: &Io,
    topic: &mut Topic,
    client: &mut Connection,
    connection: ConnectionId,
    level: Level,
    offset: u64,
    batch: Option<u32>,
) {
    let reached = match level {
        Level::Accepted => true,
        Level::Written => offset < topic.written,
        Level::Durable => offset < topic.durable,
    };
    if reached || (planted!(io, RepeatAnsweredAtOnce) && offset + u64::from(batch.unwrap_or(1)) < topic.next) {
        return client.answer_now(Slot::Published { offset, level, batch });
    }
    let waiter = Waiter { offset, connection, request: client.open_slot(), answer: Answer::Published { batch } };
    let commit = &mut topic.commit;
    let waiting = if level == Level::Durable { &mut commit.waiting_durable } else { &mut commit.waiting_written };
    group_commit::wait(waiting, waiter);
}

pub(super) fn found(client: &mut Connection, slot: u64, result: Result<u64, RequestError>) {
    client.stall = None;
    let reply = result.map_or_else(Reply::Error, |offset| Reply::Found { offset });
    client.answer(slot, Slot::of(&reply));
}

pub(super) fn raw_found(client: &mut Connection, slot: u64, offset: u64, result: Result<Option<Raw>, RequestError>) {
    client.stall = None;
    let filled = match result {
        Ok(Some(Raw { first, file, position, length, salt })) => {
            let mut head = Vec::new();
            line::encode_reply(&mut head, &Reply::Frames { first, bytes: length, salt: salt.0 });
            Slot::Raw { head, file, position, length }
        }
        Ok(None) => Slot::of(&Reply::Frames { first: offset, bytes: 0, salt: 0 }),
        Err(error) => Slot::of(&Reply::Error(error)),
    };
    client.answer(slot, filled);
}
