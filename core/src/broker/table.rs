//! The topics of a broker, by their ids. An id is never used again, so what was begun for a topic that was deleted never meets another one.

use crate::io::TopicId;
use crate::log::Topic;
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::ops::Index;

/// See the module.
#[derive(Default)]
pub(super) struct Topics {
    by_id: BTreeMap<usize, Rc<RefCell<Topic>>>,
    next: usize,
    /// What counts of all of them against their capacity.
    bytes: Rc<Cell<u64>>,
}

impl Topics {
    /// Takes a topic in and gives it its id.
    pub(super) fn add(&mut self, topic: Rc<RefCell<Topic>>) -> TopicId {
        let id = TopicId(self.next);
        self.next += 1;
        topic.borrow_mut().id = id;
        // Journals are small, and nobody's to drop.
        if !topic.borrow().is_journal {
            topic.borrow_mut().size.join(&self.bytes);
        }
        self.by_id.insert(id.0, topic);
        id
    }

    /// One that may be gone.
    pub(super) fn get(&self, id: TopicId) -> Option<&Rc<RefCell<Topic>>> {
        self.by_id.get(&id.0)
    }

    /// Takes a topic out.
    pub(super) fn take(&mut self, id: TopicId) -> Option<Rc<RefCell<Topic>>> {
        let topic = self.by_id.remove(&id.0)?;
        topic.borrow_mut().size.leave();
        Some(topic)
    }

    /// What counts of all of them against their capacity.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    pub(super) fn has(&self, id: TopicId) -> bool {
        self.by_id.contains_key(&id.0)
    }

    /// How many there are, without journals.
    pub(super) fn len(&self) -> usize {
        self.of_messages().count()
    }

    /// Without journals: what their logs say is the broker's alone.
    pub(super) fn of_messages(&self) -> impl Iterator<Item = &Rc<RefCell<Topic>>> {
        self.iter().filter(|topic| !topic.borrow().is_journal)
    }

    /// In the order in which they were taken in.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Rc<RefCell<Topic>>> {
        self.by_id.values()
    }

    pub(super) fn ids(&self) -> Vec<TopicId> {
        self.by_id.keys().map(|id| TopicId(*id)).collect()
    }
}

impl Index<usize> for Topics {
    type Output = Rc<RefCell<Topic>>;

    /// The topic of this id, which must be there: what is under way for a topic keeps it.
    fn index(&self, id: usize) -> &Rc<RefCell<Topic>> {
        &self.by_id[&id]
    }
}
