//! Packing: which segment is next, and when (see [`pack`]).
//!
//! One segment at a time, so that producers have the disk to themselves nearly always. A message counts as confirmed only when the journal
//! that says so is forced; what was confirmed while that was waited for stays in the segment until the next time.

use super::{Broker, Ended, Phase, Timer};
use crate::effect::FieldValue;
use crate::group::share::after_ms;
use crate::io::TopicId;
use crate::log::Topic;
use crate::log::pack::{self, Packed};
use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;
use core::mem;

/// So long after a confirmation it is looked whether a segment is worth it.
const LOOK_MS: u64 = 1_000;
/// So long after a failure it is tried again.
const RETRY_MS: u64 = 30_000;

/// How far the packing of a segment is.
pub(super) enum Packing {
    No,
    /// It waits for journals to be forced.
    Chosen(Chosen),
    Running,
}

/// A segment that is to be packed when the journals are forced as far as they were when it was chosen.
pub(super) struct Chosen {
    topic: TopicId,
    base: u64,
    live: Vec<u64>,
    journals: Vec<(TopicId, u64)>,
}

impl Broker {
    /// Messages of the topic were confirmed, for good.
    pub(super) fn arm_packing(&mut self, topic: TopicId) {
        let packs = {
            let mut topic = self.topics[topic.0].borrow_mut();
            let packs = topic.packs_below().is_some();
            topic.packing.due |= packs;
            packs
        };
        if packs && self.phase == Phase::Serving && !mem::replace(&mut self.pack_timer_armed, true) {
            self.timers.insert((after_ms(self.now().monotonic_ns, LOOK_MS), Timer::Pack));
        }
    }

    /// It is time to look.
    pub(super) fn look_for_packing(&mut self) {
        self.pack_timer_armed = false;
        self.choose_packing();
    }

    fn choose_packing(&mut self) {
        if self.phase != Phase::Serving || !matches!(self.packing, Packing::No) {
            return;
        }
        let now_ns = self.now().monotonic_ns;
        let due: Vec<TopicId> = self
            .topics
            .iter()
            .map(|topic| topic.borrow())
            .filter(|topic| topic.packing.due)
            .map(|topic| topic.id)
            .collect();
        for id in due {
            if self.topics[id.0].borrow().packing.retry_ns > now_ns || self.makes_queue_of(id) {
                self.arm_packing(id);
                continue;
            }
            self.topics[id.0].borrow_mut().packing.due = false;
            if let Some(chosen) = self.worth_packing(id) {
                for (journal, next) in &chosen.journals {
                    if let Some(last) = next.checked_sub(1) {
                        self.want_durable(*journal, last);
                    }
                }
                {
                    let packing = &mut self.topics[id.0].borrow_mut().packing;
                    (packing.segment, packing.cancelled) = (Some(chosen.base), false);
                }
                self.packing = Packing::Chosen(chosen);
                return self.begin_packing();
            }
        }
    }

    fn worth_packing(&self, id: TopicId) -> Option<Chosen> {
        let topic = self.topics[id.0].borrow();
        topic.packs_below()?;
        // Hundreds of thousands may be pending, and everybody waits while they are looked at: no set is made of them.
        let (mut live, mut next, mut journals) = (Vec::new(), u64::MAX, Vec::new());
        for queue in topic.queues.values() {
            let share = &self.queues[&queue.journal].share;
            live.extend(share.offsets());
            next = next.min(share.next());
            journals.push((queue.journal, self.topics[queue.journal.0].borrow().next));
        }
        live.sort_unstable();
        live.dedup();
        let offsets = topic.worth_packing(&live, next)?;
        let live = pack::within(&live, offsets.clone()).to_vec();
        Some(Chosen { topic: id, base: offsets.start, live, journals })
    }

    /// Begins what was chosen, if the journals are forced as far as they have to be, and the topic's start is not being moved.
    pub(super) fn begin_packing(&mut self) {
        let Packing::Chosen(chosen) = &self.packing else { return };
        let is_forced = |(journal, next): &(TopicId, u64)| match self.topics.get(*journal) {
            Some(journal) => journal.borrow().durable >= *next,
            // A queue that was deleted has nothing to say.
            None => true,
        };
        let is_free = self.topics.get(chosen.topic).is_none_or(|topic| !topic.borrow().is_preparing_start());
        if self.phase != Phase::Serving || !is_free || !chosen.journals.iter().all(is_forced) {
            return;
        }
        let Packing::Chosen(chosen) = mem::replace(&mut self.packing, Packing::Running) else { return };
        let Chosen { topic: id, base, live, .. } = chosen;
        let is_wanted = |topic: &Topic| topic.packs_below().is_some() && !topic.packing.cancelled;
        let Some(topic) = self.topics.get(id).filter(|topic| is_wanted(&topic.borrow())).cloned() else {
            return self.packed(id, base, Packed::GivenUp);
        };
        self.spawn(|io| {
            Box::pin(async move {
                let packed = pack::pack(io, topic, base, live).await;
                Ended::Packed { topic: id, base, packed }
            })
        });
    }

    pub(super) fn packed(&mut self, id: TopicId, base: u64, packed: Packed) {
        self.packing = Packing::No;
        let now_ns = self.now().monotonic_ns;
        if let Some(topic) = self.topics.get(id).cloned() {
            topic.borrow_mut().packing.segment = None;
            match packed {
                Packed::Done { file, end, index, removed, live } => {
                    let old = pack::replace(&mut topic.borrow_mut(), base, live, (file, end, index, removed));
                    let old: Vec<_> = old.into_iter().collect();
                    old.iter().for_each(|old| topic.borrow().indexes.forget(*old));
                    self.let_go_of(&old);
                    // There may be another one.
                    topic.borrow_mut().packing.due = true;
                }
                Packed::GivenUp => {
                    let packing = &mut topic.borrow_mut().packing;
                    packing.due |= packing.cancelled;
                }
                // Also for want of room: that of the new file was given back, and whoever publishes may go on.
                Packed::Failed(error) => {
                    let mut topic = topic.borrow_mut();
                    topic.packing.failed += 1;
                    topic.packing.due = true;
                    topic.packing.retry_ns = after_ms(now_ns, RETRY_MS);
                    let fields = [
                        ("topic", FieldValue::Text(topic.name.clone())),
                        ("segment", FieldValue::Number(base)),
                        ("reason", FieldValue::Text(format!("{error}"))),
                    ];
                    self.report("PACK_FAILED", Vec::from(fields));
                }
                Packed::Halt(error) => return self.halt("packing a segment", &error),
            }
            self.topics_to_pump.insert(id);
        }
        self.choose_packing();
        let due = self.topics.iter().find(|topic| topic.borrow().packing.due).map(|topic| topic.borrow().id);
        if let Some(due) = due {
            self.arm_packing(due);
        }
    }

    /// Whoever stops waits for no packing.
    pub(super) fn give_up_packing(&mut self) {
        for topic in self.topics.iter() {
            topic.borrow_mut().packing.cancelled = true;
        }
        if let Packing::Chosen(_) = self.packing {
            self.packing = Packing::No;
        }
    }
}
