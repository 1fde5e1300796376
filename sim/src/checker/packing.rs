//! Packing: what goes from the middle of a log is what all of its work queues are done with (P12, P15).
//!
//! It is looked at when the new file takes the old one's name. From then on readers may be told of a gap there; and may not, since a
//! power loss may bring the old file back.

use super::Checker;
use super::queues::name_of;
use crate::disk::SimDisk;
use crate::model::{Check, broken};
use crate::view::{Depth, Journal, LogView};
use plimsoll_core::settings::{Policy, Setting, Settings};

impl Checker {
    /// A packed segment has the name of the old one.
    pub(crate) fn segment_packed(&mut self, topic: &str, base: u64, disk: &SimDisk) -> Check {
        self.another_file_stands(topic);
        let policy = Policy::new(&Settings::NONE, &self.limits.topic_defaults);
        if self.damaged {
            return Ok(());
        }
        let removed = LogView::new(Depth::Cache, topic).removed(disk, base);
        let bounds = self.queue_bounds(topic);
        let start_max = self.model.log(topic).start_max;
        let known = self.model.log(topic).packed.clone();
        // What was asked to go anyway is gone as well, and a reader may be told so.
        let is_new = |offset: &&u64| **offset >= start_max && !known.contains(*offset);
        let new: Vec<u64> = removed.iter().filter(is_new).copied().collect();
        if let Some(first) = new.first()
            && policy.bound(Setting::PackBelow).is_none()
        {
            return broken("P12", format!("packing took offset {first} of {topic}, and nothing is to be packed"));
        }
        for queue in self.queues_of(topic) {
            let name = name_of(topic, &queue);
            let state = self.queue(topic, &queue);
            if let Some(offset) = new.iter().find(|offset| !state.may_be_done(**offset, &bounds)) {
                return broken(
                    "P12",
                    format!("packing took offset {offset} of {topic}, and {name} is not done with it"),
                );
            }
            let confirmed: Vec<u64> = new.iter().copied().filter(|offset| state.is_confirmed(*offset)).collect();
            let journal = Journal::read(Depth::Platter, topic, &queue, disk).unwrap_or_default();
            if let Some(offset) = confirmed.iter().find(|offset| !journal.is_done(**offset)) {
                return broken(
                    "P15",
                    format!("packing took offset {offset} of {topic}, and on the platter {name} is not done with it"),
                );
            }
        }
        self.model.log(topic).packed.extend(&removed);
        self.packed_for_queues(topic, &removed);
        Ok(())
    }

    /// The bytes of a segment may be others than were read before.
    pub(crate) fn another_file_stands(&mut self, topic: &str) {
        self.views.retain(|(of, _), _| of != topic);
    }
}
