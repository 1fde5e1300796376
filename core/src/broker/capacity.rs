//! The capacity of all topics together: whose messages go for a new one.
//!
//! Only those of topics that drop their oldest messages (`on-full`): another topic's stay, whoever publishes. First goes the segment whose
//! newest message is the oldest, by the wall clock; an active one is closed for that. When all of them together would not make the room,
//! none goes and the message is refused.
//!
//! What was chosen goes, also where others have made the room by then. So what goes does not depend on which segment is closed or removed first.

use super::Broker;
use super::requests::park;
use crate::connection::Connection;
use crate::effect::ConnectionId;
use crate::error::RequestError;
use crate::io::TopicId;
use crate::log::capacity::OverTotal;
use crate::log::{Admission, Topic};
use crate::protocol::Publish;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::mem;

impl Broker {
    /// A publish for which all topics together have no room waits until messages have gone for it, or is refused.
    pub(super) fn over_total(
        &mut self,
        id: ConnectionId,
        client: &mut Connection,
        topic_id: TopicId,
        publish: Publish,
        over: &OverTotal,
    ) -> Result<(), RequestError> {
        let makes_room = over.bytes_too_many().is_some_and(|bytes| self.drop_oldest_of_all(bytes));
        if !makes_room {
            return Err(over.refusal());
        }
        let mut topic = self.topics[topic_id.0].borrow_mut();
        if let Admission::Refused(error) = topic.park_or_refuse() {
            return Err(error);
        }
        park(&mut topic, client, id, publish);
        self.waiting_for_total.insert(topic_id);
        Ok(())
    }

    /// Sees to it that so many bytes go, with those that are on their way already. `false`: there are not so many, and none goes for this.
    fn drop_oldest_of_all(&mut self, bytes: u64) -> bool {
        // By age, the front of what would still be there of each topic, and its bytes.
        let mut fronts = BTreeMap::new();
        let front = |topic: &Topic, at: usize| {
            topic.droppable(at).map(|segment| ((segment.newest_ms, topic.id, at), segment.bytes))
        };
        let mut freed = 0;
        for topic in self.topics.of_messages() {
            let topic = topic.borrow();
            let (going, at) = topic.going();
            freed += going;
            if topic.drops_oldest(&self.io) {
                fronts.extend(front(&topic, at));
            }
        }
        let mut chosen = Vec::new();
        while freed < bytes {
            let Some(((_, id, at), bytes)) = fronts.pop_first() else { return false };
            freed += bytes;
            chosen.push((id, at));
            fronts.extend(front(&self.topics[id.0].borrow(), at + 1));
        }
        for (id, at) in chosen {
            self.topics[id.0].borrow_mut().drop_through(at);
            self.topics_to_pump.insert(id);
        }
        true
    }

    /// Bytes have gone, or may go now: whoever waits for the capacity of all topics tries again.
    pub(super) fn total_may_have_room(&mut self) {
        for topic in mem::take(&mut self.waiting_for_total) {
            if self.topics.has(topic) {
                self.unpark(topic);
            }
        }
    }
}
