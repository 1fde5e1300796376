//! DELETE of a topic or of a group, crash-safe at every step.
//!
//! A topic that is to be deleted loses its name in memory at once: whoever asks for it from then on is answered `NO_TOPIC`. What was
//! taken in before is finished and answered. When nothing of it is under way any more it is forgotten, its name on the disk is
//! taken away for good ([`create::unname`]), and only then is what is left emptied and removed. A crash leaves the whole topic under its
//! name, or a leftover that no start serves. A topic of the same name is not made before all of that is done, and has another log id.

use super::requests::no_topic;
use super::{Broker, Ended, Phase};
use crate::connection::{Connection, Slot};
use crate::effect::{ConnectionId, FileId};
use crate::error::{Code, RequestError};
use crate::group::cursor::{Group, Purpose, Waiter as GroupWaiter};
use crate::io::TopicId;
use crate::layout;
use crate::log::group_commit::Waiter;
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

/// A topic on its way out.
pub(super) struct Deletion {
    id: TopicId,
    /// It has been taken out of the table, and is being removed.
    begun: bool,
    /// Whoever asked for it.
    waiting: Vec<Waiter>,
    /// Whose publish has an offset that means nothing any more.
    orphans: Vec<Waiter>,
    /// Connections that wait to make a topic of the same name.
    pub(super) creators: Vec<ConnectionId>,
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
        let waiter =
            |client: &mut Connection| Waiter { offset: 0, connection: id, request: client.open_slot(), batch: None };
        if let Some(deletion) = self.deleting.get_mut(&name) {
            deletion.waiting.push(waiter(client));
            return Ok(None);
        }
        let topic_id = self.topic_or_error(&Some(name.clone()))?;
        let waiting = Vec::from([waiter(client)]);
        self.names.remove(&name);
        let deletion = Deletion { id: topic_id, begun: false, waiting, orphans: Vec::new(), creators: Vec::new() };
        self.deleting.insert(name, deletion);
        let fetchers = {
            let mut topic = self.topics[topic_id.0].borrow_mut();
            topic.deleting = true;
            // It is not to wait for what its policy would force later.
            topic.commit.flush_now = true;
            if topic.roll == Roll::Wanted {
                topic.roll = Roll::No;
            }
            mem::take(&mut topic.fetchers)
        };
        // They learn that there is no such topic.
        self.unpark(topic_id);
        for connection in fetchers {
            self.fetch_again(connection);
        }
        self.topics_to_pump.insert(topic_id);
        Ok(None)
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
        let ready = self.deleting.iter().find(|(_, deletion)| !deletion.begun && is_free(&self.topics[deletion.id.0]));
        ready.map(|(name, _)| name.clone())
    }

    pub(super) fn begin_deletion(&mut self, name: &str) {
        let deletion = self.deleting.get_mut(name).expect("it was just found");
        deletion.begun = true;
        let id = deletion.id;
        let topic = self.topics.take(id).expect("a topic stays in the table until its deletion begins");
        self.topics_to_pump.remove(&id);
        let mut topic = topic.borrow_mut();
        let commit = &mut topic.commit;
        let waiting = mem::take(&mut commit.waiting_written).into_iter().chain(mem::take(&mut commit.waiting_durable));
        deletion.orphans = waiting.chain(mem::take(&mut topic.retention.purges)).collect();
        let holders = topic.groups.values().filter_map(|group| group.holder);
        for holder in holders {
            if let Some(client) = self.connections.get_mut(&holder.connection) {
                client.held.retain(|(topic, _)| *topic != id);
            }
        }
        let files: Vec<FileId> = topic.segments.iter().map(|segment| segment.file).chain([topic.watermark]).collect();
        files.iter().for_each(|file| topic.indexes.forget(*file));
        let dir = topic.dir.clone();
        drop(topic);
        self.let_go_of(&files);
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

    pub(super) fn deleted(&mut self, name: &str, result: Result<(), Trouble>) {
        if let Err(Trouble::Full(error) | Trouble::Halt(error)) = result {
            return self.halt(&format!("deleting topic {name}"), &error);
        }
        let Some(deletion) = self.deleting.remove(name) else { return };
        let gone = Slot::of(&Reply::Error(no_topic(name)));
        for waiter in deletion.orphans {
            self.answer_waiter(waiter, &gone);
        }
        let deleted = Slot::of(&Reply::Deleted { topic: name.into(), group: None });
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
