//! Retention: beginning its steps, and letting go of files that are about to be removed.

use super::clients::cut_off;
use super::{Broker, Ended, Phase, Timer, out_of_range};
use crate::connection::{Connection, Slot};
use crate::effect::{ConnectionId, FileId};
use crate::error::{Code, RequestError};
use crate::io::TopicId;
use crate::log::anchor::{self, Place, Stop};
use crate::log::dedup;
use crate::log::group_commit::{Answer, Waiter};
use crate::log::retention::{self, Step};
use crate::protocol::{Reply, TopicRef};
use alloc::boxed::Box;
use alloc::vec::Vec;

impl Broker {
    pub(super) fn purge(
        &mut self,
        id: ConnectionId,
        client: &mut Connection,
        topic: &TopicRef,
        before: u64,
    ) -> Result<Option<Reply>, RequestError> {
        let topic_id = self.topic_or_error(topic)?;
        let mut topic = self.topics[topic_id.0].borrow_mut();
        let (start, durable) = (topic.start, topic.durable);
        if before > durable {
            return Err(out_of_range(before, start, durable));
        }
        if before <= start {
            return Ok(Some(Reply::Purged { start }));
        }
        let request = client.open_slot();
        topic.retention.purges.push_back(Waiter { offset: before, connection: id, request, answer: Answer::Other });
        topic.want_start(before);
        self.topics_to_pump.insert(topic_id);
        Ok(None)
    }

    /// Begins what can be begun to move the start of a log, and answers whose PURGE is done.
    pub(super) fn retain(&mut self, id: TopicId) {
        loop {
            // What was emitted may have halted the broker.
            if matches!(self.phase, Phase::Halted | Phase::Stopped) {
                return;
            }
            let step = self.topics[id.0].borrow_mut().begin_retention(&self.io);
            let Some(step) = step else { break };
            let topic = self.topics[id.0].clone();
            match step {
                Step::Prepare(start) => self.spawn(|io| {
                    Box::pin(async move {
                        let result = dedup::before_start_moves(&io, &topic, start).await;
                        Ended::StartPrepared { topic: id, start, result }
                    })
                }),
                Step::Anchor => self.spawn(|io| {
                    Box::pin(async move {
                        let result = anchor::anchor(&io, &topic, Place::Running, Stop::Open).await;
                        Ended::Anchored { topic: id, result }
                    })
                }),
                Step::Remove => {
                    let gone = topic.borrow_mut().take_removable();
                    let files: Vec<FileId> = gone.iter().map(|segment| segment.file).collect();
                    self.let_go_of(&files);
                    files.iter().for_each(|file| topic.borrow().indexes.forget(*file));
                    let bases = gone.iter().map(|segment| segment.base).collect();
                    self.spawn(|io| {
                        Box::pin(async move {
                            let dir = topic.borrow().dir.clone();
                            let result = retention::remove(&io, &dir, bases).await;
                            // A topic is not deleted under a removal.
                            drop(topic);
                            Ended::Removed { topic: id, result }
                        })
                    });
                }
            }
        }
        let (done, start) = {
            let mut topic = self.topics[id.0].borrow_mut();
            (topic.purges_done(), topic.start)
        };
        for waiter in done {
            self.answer_waiter(waiter, &Slot::of(&Reply::Purged { start }));
        }
    }

    /// Sees to it that time is looked at often enough for the topic that needs it most: eight times in its bound, and at least once a
    /// minute, so that a step of the wall clock is noticed.
    pub(super) fn arm_age(&mut self) {
        const MIN_MS: u64 = 10;
        const MAX_MS: u64 = 60_000;
        let interval = self.topics.iter().filter_map(|topic| topic.borrow().age_interval_ms()).min();
        let Some(interval) = interval else { return };
        let at = self.now().monotonic_ns + (interval / 8).clamp(MIN_MS, MAX_MS) * 1_000_000;
        if self.phase == Phase::Serving && self.age_ns.is_none_or(|armed| at < armed) {
            if let Some(armed) = self.age_ns.replace(at) {
                self.timers.remove(&(armed, Timer::Age));
            }
            self.timers.insert((at, Timer::Age));
        }
    }

    pub(super) fn age(&mut self) {
        self.age_ns = None;
        if self.phase != Phase::Serving {
            return;
        }
        let now = self.now();
        for topic in self.topics.iter() {
            let mut topic = topic.borrow_mut();
            if topic.age_interval_ms().is_some() {
                topic.age(now);
                self.topics_to_pump.insert(topic.id);
            }
        }
        self.arm_age();
    }

    pub(super) fn answer_waiter(&mut self, waiter: Waiter, slot: &Slot) {
        if let Some(client) = self.connections.get_mut(&waiter.connection) {
            client.answer(waiter.request, slot.clone());
            self.connections_to_serve.insert(waiter.connection);
        }
    }

    /// Closes files that are about to be removed. A client that is still being sent a part of one is cut off: while it holds the file, its
    /// space is not given back, and it may hold it for as long as it likes.
    pub(super) fn let_go_of(&mut self, files: &[FileId]) {
        let gone = RequestError::new(
            Code::OutOfRange,
            "what was to be read was removed meanwhile; ask STATUS for the start of the log",
        );
        let gone = Slot::of(&Reply::Error(gone));
        for (id, client) in &mut self.connections {
            if client.lets_go_of(files, &gone) && !client.cut {
                cut_off(&self.io, *id, client);
            }
        }
        files.iter().for_each(|file| self.io.close(*file));
    }
}
