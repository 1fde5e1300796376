//! DELETE of a topic, of a work queue or of an ordered group, crash-safe at every step.
//!
//! A topic that is to be deleted loses its name in memory at once: whoever asks for it from then on is answered `NO_TOPIC`. What was
//! taken in before is finished and answered. When nothing of it is under way any more it is forgotten, its name on the disk is
//! taken away for good ([`create::unname`]), and only then is what is left emptied and removed. A crash leaves the whole topic under its
//! name, or a leftover that no start serves. A topic of the same name is not made before all of that is done, and has another log id.
//! A work queue goes in the same way, by itself or with its topic.

use super::queues::is_queue_of;
use super::requests::no_topic;
use super::{Broker, Ended, Phase};
use crate::connection::{Connection, Slot};
use crate::effect::{ConnectionId, FileId};
use crate::error::{Code, RequestError};
use crate::group::cursor::{Group, Purpose, Waiter as GroupWaiter};
use crate::io::TopicId;
use crate::layout;
use crate::log::group_commit::{Answer, Waiter};
use crate::log::{Roll, Topic, Trouble, create};
use crate::planted::planted;
use crate::protocol::Reply;
use alloc::boxed::Box;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::mem;

/// A topic or a work queue on its way out.
pub(super) struct Deletion {
    /// The topic, or the queue's journal.
    id: TopicId,
    /// Its work queue's name.
    group: Option<String>,
    /// It has been taken out of the table, and is being removed.
    begun: bool,
    /// Whoever asked for it.
    waiting: Vec<Waiter>,
    /// Whose publish has an offset that means nothing any more.
    orphans: Vec<Waiter>,
    /// Connections that wait to make a topic of the same name.
    pub(super) creators: Vec<ConnectionId>,
}

impl Deletion {
    fn new(id: TopicId, group: Option<String>, waiting: Vec<Waiter>) -> Deletion {
        Deletion { id, group, begun: false, waiting, orphans: Vec::new(), creators: Vec::new() }
    }
}

impl Broker {
    pub(super) fn delete_topic(
        &mut self,
        id: ConnectionId,
        client: &mut Connection,
        name: String,
    ) -> Result<Option<Reply>, RequestError> {
        if name == layout::DEFAULT_TOPIC {
            let sentence = format!("topic {name} can't be deleted; PURGE @{name} takes its messages away");
            return Err(RequestError::new(Code::BadRequest, sentence));
        }
        let waiter = |client: &mut Connection| Waiter {
            offset: 0,
            connection: id,
            request: client.open_slot(),
            answer: Answer::Other,
        };
        if let Some(deletion) = self.deleting.get_mut(&name) {
            deletion.waiting.push(waiter(client));
            return Ok(None);
        }
        let topic_id = self.topic_or_error(&Some(name.clone()))?;
        let waiting = Vec::from([waiter(client)]);
        self.names.remove(&name);
        let deletion = Deletion::new(topic_id, None, waiting);
        self.deleting.insert(name, deletion);
        for log in self.logs_of(topic_id) {
            self.let_finish(log);
        }
        Ok(None)
    }

    /// The topic and the journals of its queues; or the one journal.
    fn logs_of(&self, id: TopicId) -> Vec<TopicId> {
        let topic = self.topics[id.0].borrow();
        [id].into_iter().chain(topic.queues.values().map(|queue| queue.journal)).collect()
    }

    /// Nothing new is begun in a log; who waits for something learns that it is not there any more.
    fn let_finish(&mut self, id: TopicId) {
        let fetchers = {
            let mut topic = self.topics[id.0].borrow_mut();
            topic.deleting = true;
            topic.packing.cancelled = true;
            // It is not to wait for what its policy would force later.
            topic.commit.flush_now = true;
            if topic.roll == Roll::Wanted {
                topic.roll = Roll::No;
            }
            mem::take(&mut topic.fetchers)
        };
        self.unpark(id);
        let waiting = self.take_waiting(id);
        for connection in fetchers.into_iter().chain(waiting) {
            self.fetch_again(connection);
        }
        self.topics_to_pump.insert(id);
    }

    /// A deletion for which nothing has to be waited for any more.
    pub(super) fn deletion_to_begin(&self) -> Option<String> {
        if self.deleting.is_empty() || !matches!(self.phase, Phase::Serving | Phase::Stopping) {
            return None;
        }
        let is_free = |topic: &Rc<RefCell<Topic>>| {
            // Every task that has to do with a topic holds it.
            let in_no_task = Rc::strong_count(topic) == 1;
            let topic = topic.borrow();
            // What waits for room to be written would wait for ever if it is this removal that makes the room.
            let is_settled = topic.is_settled()
                || (topic.commit.is_stuck() && topic.space.coming.is_none() && topic.alters.is_settled());
            in_no_task && is_settled && topic.groups.values().all(Group::is_settled)
        };
        // A topic goes after each of its queues that is on its way out by itself.
        let has_queue = |name: &str| self.deleting.keys().any(|other| is_queue_of(other, name));
        let is_ready = |name: &str, deletion: &Deletion| {
            let is_alone = deletion.group.is_some() || !has_queue(name);
            !deletion.begun && is_alone && self.logs_of(deletion.id).iter().all(|log| is_free(&self.topics[log.0]))
        };
        let ready = self.deleting.iter().find(|(name, deletion)| is_ready(name, deletion));
        ready.map(|(name, _)| name.clone())
    }

    pub(super) fn begin_deletion(&mut self, name: &str) {
        let id = self.deleting[name].id;
        let dir = self.topics[id.0].borrow().dir.clone();
        for log in self.logs_of(id) {
            self.forget_log(name, log);
        }
        self.share_recent();
        self.total_may_have_room();
        let name = String::from(name);
        self.spawn(|io| {
            Box::pin(async move {
                let removed = async {
                    let nameless = if planted!(io, DeletedInPlace) { dir } else { create::unname(&io, &dir).await? };
                    create::remove_tree(&io, &nameless).await.map_err(Trouble::Halt)
                };
                let result = removed.await;
                Ended::Deleted { name, result }
            })
        });
    }

    /// Lets go of a log's files, and of all that was known of it.
    fn forget_log(&mut self, name: &str, id: TopicId) {
        let deletion = self.deleting.get_mut(name).expect("it was just found");
        deletion.begun = true;
        let topic = self.topics.take(id).expect("a topic stays in the table until its deletion begins");
        self.topics_to_pump.remove(&id);
        self.queues.remove(&id);
        self.burying.remove(&id);
        let mut topic = topic.borrow_mut();
        let commit = &mut topic.commit;
        let waiting = mem::take(&mut commit.waiting_written).into_iter().chain(mem::take(&mut commit.waiting_durable));
        deletion.orphans.extend(waiting);
        deletion.orphans.extend(mem::take(&mut topic.retention.purges));
        let holders = topic.groups.values().filter_map(|group| group.holder);
        for holder in holders {
            if let Some(client) = self.connections.get_mut(&holder.connection) {
                client.held.retain(|(topic, _)| *topic != id);
            }
        }
        for client in self.connections.values_mut() {
            client.queues.remove(&id);
        }
        let files: Vec<FileId> = topic.segments.iter().map(|segment| segment.file).chain([topic.watermark]).collect();
        files.iter().for_each(|file| topic.indexes.forget(*file));
        drop(topic);
        self.let_go_of(&files);
    }

    pub(super) fn deleted(&mut self, name: &str, result: Result<(), Trouble>) {
        if let Err(Trouble::Full(error) | Trouble::Halt(error)) = result {
            return self.halt(&format!("deleting topic {name}"), &error);
        }
        let Some(deletion) = self.deleting.remove(name) else { return };
        let gone = Slot::of(&Reply::Error(match &deletion.group {
            None => no_topic(name),
            Some(group) => RequestError::new(Code::NoGroup, format!("work queue {group} was deleted meanwhile")),
        }));
        for waiter in deletion.orphans {
            self.answer_waiter(waiter, &gone);
        }
        let topic = name.split('/').next().unwrap_or(name).into();
        let deleted = Slot::of(&Reply::Deleted { topic, group: deletion.group });
        for waiter in deletion.waiting {
            self.answer_waiter(waiter, &deleted);
        }
        for connection in deletion.creators {
            self.retry_stalled(connection);
        }
    }

    /// As a SEEK to 0, whose file is then removed: should the file come back, it says no more than that there is none.
    pub(super) fn delete_group(
        &mut self,
        id: ConnectionId,
        client: &mut Connection,
        topic: String,
        name: String,
    ) -> Result<Option<Reply>, RequestError> {
        let topic_ref = (topic != layout::DEFAULT_TOPIC).then(|| topic.clone());
        let topic_id = self.topic_or_error(&topic_ref)?;
        let queue = self.topics[topic_id.0].borrow().queues.get(&name).copied();
        let key = format!("{topic}/{name}");
        if let Some(deletion) = self.deleting.get_mut(&key) {
            deletion.waiting.push(Waiter {
                offset: 0,
                connection: id,
                request: client.open_slot(),
                answer: Answer::Other,
            });
            return Ok(None);
        }
        if let Some(queue) = queue {
            let request = client.open_slot();
            let waiting = Vec::from([Waiter { offset: 0, connection: id, request, answer: Answer::Other }]);
            self.topics[topic_id.0].borrow_mut().queues.remove(&name);
            self.deleting.insert(key, Deletion::new(queue.journal, Some(name), waiting));
            self.let_finish(queue.journal);
            return Ok(None);
        }
        if !self.topics[topic_id.0].borrow().groups.contains_key(&name) {
            let sentence = format!("topic {topic} has no group {name}; GROUPS @{topic} lists them");
            return Err(RequestError::new(Code::NoGroup, sentence));
        }
        self.take_from_other(id, topic_id, &name)?;
        {
            let mut topic = self.topics[topic_id.0].borrow_mut();
            let group = topic.groups.get_mut(&name).expect("just seen");
            let waiter = GroupWaiter { connection: id, request: client.open_slot(), purpose: Purpose::Delete };
            group.wish_delete(waiter);
        }
        // A FETCH behind it makes the group anew.
        client.stall = Some(crate::connection::Stall::Reading);
        self.store_group(topic_id, &name);
        Ok(None)
    }
}
