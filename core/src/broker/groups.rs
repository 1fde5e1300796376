//! Ordered groups: holding, fetching, acknowledging, seeking (P5, P6).

use super::{Broker, Ended, Reader, Timer, end_of_nothing, out_of_range};
use crate::connection::{Connection, Slot, Stall};
use crate::effect::ConnectionId;
use crate::error::{Code, RequestError};
use crate::group::cursor::{Group, Holder, Purpose, Waiter as GroupWaiter};
use crate::io::TopicId;
use crate::layout;
use crate::log::read::{self, Wanted};
use crate::log::{Topic, Trouble, create};
use crate::planted::planted;
use crate::protocol::{GroupStatus, Reply, Request, SeekTo, TopicRef};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;

impl Broker {
    pub(super) fn fetch(&mut self, id: ConnectionId, client: &mut Connection, slot: u64, request: Request) {
        let Request::Fetch { topic, group, max, wait_ms, meta } = &request else { return };
        let result =
            self.topic_or_error(topic).and_then(|topic| self.hold_group(id, client, topic, group).map(|()| topic));
        let topic_id = match result {
            Ok(topic) => topic,
            Err(error) => return client.answer(slot, Slot::of(&Reply::Error(error))),
        };
        let topic = self.topics[topic_id.0].clone();
        let (holder, start, limit) = {
            let topic = topic.borrow();
            let limit = if planted!(self.io, ReadPastLine) { topic.written } else { topic.durable };
            (topic.groups[group].holder.expect("just held"), topic.start, limit)
        };
        if holder.next < limit || holder.next < start {
            let wanted = Wanted {
                next: holder.next,
                limit: limit.max(start),
                messages_max: *max,
                bytes_max: self.config.fetch_bytes_max,
                meta: *meta,
                hint: holder.hint,
                deliveries: Vec::new(),
            };
            let reader = Reader { connection: id, slot, topic: topic_id, group: Some(group.clone()) };
            return self.deliver(client, reader, topic, wanted);
        }
        if *wait_ms == 0 {
            return client.answer(slot, end_of_nothing());
        }
        let wait_ns = (*wait_ms).min(self.config.fetch_wait_ms_max) * 1_000_000;
        let until_ns = self.now().monotonic_ns + wait_ns;
        self.timers.insert((until_ns, Timer::Fetch(id)));
        topic.borrow_mut().fetchers.push_back(id);
        client.stall = Some(Stall::Line { topic: topic_id, until_ns, request, slot });
    }

    /// Makes this connection the holder of the group, unless another one is.
    pub(super) fn hold_group(
        &mut self,
        id: ConnectionId,
        client: &mut Connection,
        topic_id: TopicId,
        name: &str,
    ) -> Result<(), RequestError> {
        self.is_ordered_or_error(topic_id, name)?;
        let topic = self.topics[topic_id.0].clone();
        self.make_group(&mut topic.borrow_mut(), name)?;
        if topic.borrow_mut().groups.get_mut(name).expect("just made").holder_mut(id).is_some() {
            return Ok(());
        }
        self.take_from_other(id, topic_id, name)?;
        let mut topic = topic.borrow_mut();
        let group = topic.groups.get_mut(name).expect("just made");
        if group.is_sought_by_other(id) {
            let sentence = format!("a SEEK of another connection in group {name} is being carried out; try again");
            return Err(RequestError::new(Code::GroupBusy, sentence));
        }
        group.holder = Some(Holder { connection: id, next: group.committed, hint: None });
        client.held.push((topic_id, name.into()));
        Ok(())
    }

    pub(super) fn make_group(&self, topic: &mut Topic, name: &str) -> Result<(), RequestError> {
        if topic.groups.contains_key(name) {
            return Ok(());
        }
        self.room_for_group(topic)?;
        topic.groups.insert(name.into(), Group::default());
        Ok(())
    }

    /// Whether the topic may have one more group of either kind.
    pub(super) fn room_for_group(&self, topic: &Topic) -> Result<(), RequestError> {
        let max = self.config.groups_max as usize;
        if topic.groups.len() + topic.queues.len() < max {
            return Ok(());
        }
        let sentence = format!("topic {} has {max} groups already, the most that --max-groups allows", topic.name);
        Err(RequestError::new(Code::BadRequest, sentence))
    }

    /// The group's holder loses it if it has been silent for long enough; else the asker is told.
    pub(super) fn take_from_idle(
        &mut self,
        holder: ConnectionId,
        topic: TopicId,
        group: &str,
    ) -> Result<(), RequestError> {
        let Some(other) = self.connections.get_mut(&holder) else { return Ok(()) };
        // A consumer that was ended while it waited for messages: it will send no ACK, and must not keep the next one waiting.
        if other.ended
            && let Some(Stall::Line { until_ns, slot, .. }) = other.stall
        {
            other.stall = None;
            other.answer(slot, end_of_nothing());
            other.held.retain(|held| held.0 != topic || held.1 != group);
            self.timers.remove(&(until_ns, Timer::Fetch(holder)));
            self.connections_to_serve.insert(holder);
            return Ok(());
        }
        let silent_ms = self.io.now().monotonic_ns.saturating_sub(other.last_request_ns) / 1_000_000;
        let idle_ms = self.config.group_idle_ms;
        // A connection whose request is being carried out is not silent.
        if silent_ms < idle_ms || other.stall.is_some() || other.unanswered() > 0 {
            return Err(RequestError::new(
                Code::GroupBusy,
                format!(
                    "group {group} is held by another connection, silent for {silent_ms} ms; after {idle_ms} ms of silence it can be taken over"
                ),
            ));
        }
        other.held.retain(|held| held.0 != topic || held.1 != group);
        Ok(())
    }

    pub(super) fn ack(
        &mut self,
        id: ConnectionId,
        client: &mut Connection,
        topic: &TopicRef,
        name: &str,
        offset: u64,
    ) -> Result<Option<Reply>, RequestError> {
        let topic_id = self.topic_or_error(topic)?;
        self.is_ordered_or_error(topic_id, name)?;
        let topic = self.topics[topic_id.0].clone();
        let mut topic = topic.borrow_mut();
        let group = topic.groups.get_mut(name);
        let committed = group.as_ref().map_or(0, |group| group.committed);
        if offset < committed {
            return Ok(Some(Reply::Acked { committed }));
        }
        let group = group.and_then(|group| group.holder_mut(id).map(|holder| holder.next).map(|next| (group, next)));
        let Some((group, _)) = group.filter(|(_, next)| offset < *next || planted!(self.io, AckPastDelivery)) else {
            return Err(RequestError::new(
                Code::NotDelivered,
                format!(
                    "offset {offset} was not delivered to this connection in group {name}; FETCH it first (committed is {committed})"
                ),
            ));
        };
        let waiter = GroupWaiter { connection: id, request: client.open_slot(), purpose: Purpose::Ack };
        group.wish_ack(offset + 1, waiter);
        drop(topic);
        self.store_group(topic_id, name);
        Ok(None)
    }

    pub(super) fn seek(
        &mut self,
        id: ConnectionId,
        client: &mut Connection,
        topic: &TopicRef,
        name: &str,
        to: SeekTo,
    ) -> Result<Option<Reply>, RequestError> {
        let topic_id = self.topic_or_error(topic)?;
        self.is_ordered_or_error(topic_id, name)?;
        let topic = self.topics[topic_id.0].clone();
        let (start, limit) = (topic.borrow().start, topic.borrow().durable);
        self.make_group(&mut topic.borrow_mut(), name)?;
        self.take_from_other(id, topic_id, name)?;
        let target = match to {
            // Crash story: the group above the line.
            SeekTo::Offset(offset) if (offset < start || offset > limit) && !planted!(self.io, SeekUnbounded) => {
                self.forget_empty_group(topic_id, name);
                return Err(out_of_range(offset, start, limit));
            }
            SeekTo::Offset(offset) => Some(offset),
            SeekTo::Start => Some(start),
            SeekTo::End => Some(limit),
            SeekTo::TimeMs(_) => None,
        };
        let waiter = GroupWaiter { connection: id, request: client.open_slot(), purpose: Purpose::Seek };
        // Until it is done: a FETCH behind it goes on where it leads to.
        client.stall = Some(Stall::Reading);
        match (target, to) {
            (Some(offset), _) => {
                topic.borrow_mut().groups.get_mut(name).expect("just made").wish_seek(offset, waiter);
                self.store_group(topic_id, name);
            }
            (None, SeekTo::TimeMs(time_ms)) => {
                let group = String::from(name);
                let ended = self.begin_task(|io| {
                    Box::pin(async move {
                        let result = read::find_time(io, topic, time_ms, limit).await;
                        Ended::TimeFound { topic: topic_id, group, waiter, result }
                    })
                });
                if let Some(Ended::TimeFound { result, .. }) = ended {
                    self.time_found(client, topic_id, name, waiter, result);
                }
            }
            (None, _) => unreachable!("only a time has no target yet"),
        }
        Ok(None)
    }

    /// Nobody but this connection holds the group any more, or the answer says why.
    pub(super) fn take_from_other(&mut self, id: ConnectionId, topic: TopicId, name: &str) -> Result<(), RequestError> {
        let holder = self.topics[topic.0].borrow().groups.get(name).and_then(|group| group.holder);
        let Some(other) = holder.filter(|holder| holder.connection != id) else { return Ok(()) };
        self.take_from_idle(other.connection, topic, name)?;
        let mut topic = self.topics[topic.0].borrow_mut();
        topic.groups.get_mut(name).expect("it is held").holder = None;
        Ok(())
    }

    pub(super) fn forget_empty_group(&mut self, topic: TopicId, name: &str) {
        let mut topic = self.topics[topic.0].borrow_mut();
        if topic.groups.get(name).is_some_and(Group::is_empty) {
            topic.groups.remove(name);
        }
    }

    pub(super) fn time_found(
        &mut self,
        client: &mut Connection,
        topic: TopicId,
        name: &str,
        waiter: GroupWaiter,
        result: Result<u64, RequestError>,
    ) {
        // Somebody may have come to hold the group while the time was looked for.
        match result.and_then(|offset| self.take_from_other(waiter.connection, topic, name).map(|()| offset)) {
            Ok(offset) => {
                self.topics[topic.0].borrow_mut().groups.entry(name.into()).or_default().wish_seek(offset, waiter);
                self.store_group(topic, name);
            }
            Err(error) => {
                client.stall = None;
                client.answer(waiter.request, Slot::of(&Reply::Error(error)));
                self.forget_empty_group(topic, name);
            }
        }
    }

    /// Begins to replace a group's file, unless that is under way already: then it goes into the next replacement.
    pub(super) fn store_group(&mut self, topic_id: TopicId, name: &str) {
        let topic = self.topics[topic_id.0].clone();
        let begun = topic.borrow_mut().groups.get_mut(name).and_then(Group::begin);
        let Some((offset, purpose)) = begun else { return };
        let dir = topic.borrow().dir.clone();
        let group = String::from(name);
        self.spawn(|io| {
            Box::pin(async move {
                let text = crate::group::offset_file::encode_offset(offset);
                let path = layout::group_offset(&dir, &group);
                let groups = layout::groups(&dir);
                let mut result = create::replace(&io, &groups, &path, Bytes::from(text)).await;
                if purpose == Purpose::Delete && result.is_ok() {
                    result = create::remove(&io, &groups, &path).await;
                }
                Ended::Stored { topic: topic_id, group, result }
            })
        });
    }

    pub(super) fn stored(&mut self, topic_id: TopicId, name: &str, result: Result<(), Trouble>) {
        let full = match result {
            Ok(()) => None,
            Err(Trouble::Full(error)) => Some(error),
            Err(Trouble::Halt(error)) => return self.halt(&format!("storing the offset of group {name}"), &error),
        };
        let topic = self.topics[topic_id.0].clone();
        let (done, committed) = {
            let mut topic = topic.borrow_mut();
            let group = topic.groups.get_mut(name).expect("a group is kept while it is being stored");
            let done = if full.is_none() { group.committed() } else { group.refused() };
            // Whoever holds the group has asked for it: a SEEK takes it from others, and keeps them away until it is stored.
            if full.is_none()
                && done.purpose == Purpose::Seek
                && let Some(holder) = &mut group.holder
            {
                holder.next = done.offset;
                holder.hint = None;
            }
            // One of its name begins anew. Where there was no room it goes on as if nobody had asked.
            let is_gone = full.is_none() && done.purpose == Purpose::Delete;
            if let Some(holder) = group.holder.take_if(|_| is_gone)
                && let Some(client) = self.connections.get_mut(&holder.connection)
            {
                client.held.retain(|held| held.0 != topic_id || held.1 != name);
            }
            (done, group.committed)
        };
        // What every group has acknowledged may go.
        topic.borrow_mut().retention.due = true;
        self.topics_to_pump.insert(topic_id);
        for waiter in done.waiters {
            let reply = match &full {
                Some(_) => Reply::Error(RequestError::new(
                    Code::DiskFull,
                    format!("no room to store the offset of group {name}; it stays at {committed}; try again"),
                )),
                None => match waiter.purpose {
                    Purpose::Ack => Reply::Acked { committed },
                    Purpose::Seek => Reply::Sought { offset: committed },
                    Purpose::Delete => Reply::Deleted { topic: topic.borrow().name.clone(), group: Some(name.into()) },
                },
            };
            if let Some(client) = self.connections.get_mut(&waiter.connection) {
                if waiter.purpose != Purpose::Ack {
                    client.stall = None;
                }
                client.answer(waiter.request, Slot::of(&reply));
                self.connections_to_serve.insert(waiter.connection);
            }
        }
        if let Some(error) = full {
            self.disk_is_full(Some(&error));
        }
        self.store_group(topic_id, name);
        self.forget_empty_group(topic_id, name);
    }

    pub(super) fn groups(&self, topic: TopicId) -> Reply {
        let topic = self.topics[topic.0].borrow();
        let groups = topic.groups.iter().map(|(name, group)| GroupStatus {
            group: name.clone(),
            committed: group.committed,
            lag: topic.durable - group.committed.min(topic.durable),
            held: group.holder.is_some(),
        });
        Reply::Groups(groups.collect())
    }
}
