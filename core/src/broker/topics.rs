//! Topics: pumping their logs, answering who waits for a mark, making new ones.

use super::{Broker, Ended, Phase, Timer};
use crate::connection::{Connection, Slot, Stall};
use crate::effect::ConnectionId;
use crate::error::{Code, RequestError};
use crate::io::TopicId;
use crate::layout;
use crate::log::anchor::{self, Place, Stop};
use crate::log::group_commit::{Answer, Waiter};
use crate::log::{Roll, Topic, Trouble, create, roll};
use crate::planted::planted;
use crate::protocol::{Level, Reply};
use crate::settings::Settings;
use crate::start;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use core::cell::RefCell;
use core::mem;

impl Broker {
    pub(super) fn pump(&mut self, id: TopicId) {
        if matches!(self.phase, Phase::Halted | Phase::Stopped | Phase::Anchoring) {
            return;
        }
        let now = self.now();
        let topic = self.topics[id.0].clone();
        let pumped = topic.borrow_mut().pump(&self.config, &self.io, now);
        if planted!(self.io, ReplyBeforeCompletion) {
            self.answer_written(id);
        }
        if let Some(wake_ns) = pumped.wake_ns {
            self.timers.insert((wake_ns, Timer::Pump(id)));
        }
        if pumped.repair {
            let topic = topic.clone();
            self.spawn(|io| {
                Box::pin(async move {
                    let result = anchor::anchor(&io, &topic, Place::Anchored, Stop::Open).await;
                    Ended::Anchored { topic: id, result }
                })
            });
        }
        if pumped.roll {
            topic.borrow_mut().roll = Roll::Running;
            self.spawn(|io| Box::pin(async move { Ended::Rolled { topic: id, result: roll::roll(io, topic).await } }));
        }
        self.retain(id);
    }

    pub(super) fn answer_written(&mut self, id: TopicId) {
        // The failure of another write of the same moment may have halted the broker (P10).
        if matches!(self.phase, Phase::Halted | Phase::Stopped) {
            return;
        }
        let mut topic = self.topics[id.0].borrow_mut();
        let written = if planted!(self.io, ReplyBeforeCompletion) { topic.next } else { topic.written };
        let waiting = &mut topic.commit.waiting_written;
        answer_below(waiting, written, Level::Written, &mut self.connections, &mut self.connections_to_serve);
    }

    /// The line has moved: producers are told, and readers see what lies below it (P3, P4).
    pub(super) fn answer_durable(&mut self, id: TopicId) {
        // The failure of another write of the same moment may have halted the broker (P10).
        if matches!(self.phase, Phase::Halted | Phase::Stopped) {
            return;
        }
        let durable = self.topics[id.0].borrow().durable;
        self.answer_durable_below(id, durable);
        self.journal_forced(id);
        self.wake_queues_of(id);
        self.bury_all();
    }

    pub(super) fn answer_durable_below(&mut self, id: TopicId, durable: u64) {
        let mut topic = self.topics[id.0].borrow_mut();
        let waiting = &mut topic.commit.waiting_durable;
        answer_below(waiting, durable, Level::Durable, &mut self.connections, &mut self.connections_to_serve);
        let fetchers = mem::take(&mut topic.fetchers);
        drop(topic);
        for connection in fetchers {
            self.fetch_again(connection);
        }
    }

    /// Everyone who waits for room in this topic tries again.
    pub(super) fn unpark(&mut self, id: TopicId) {
        self.run_operations(id);
        self.bury_all();
        let parked = mem::take(&mut self.topics[id.0].borrow_mut().parked);
        for connection in parked {
            self.retry_stalled(connection);
        }
    }

    pub(super) fn retry_stalled(&mut self, id: ConnectionId) {
        let Some(mut client) = self.connections.remove(&id) else { return };
        match client.stall.take() {
            Some(Stall::Room(request) | Stall::Creation(request)) => {
                self.carry_out(id, &mut client, request);
                self.connections_to_serve.insert(id);
            }
            other => client.stall = other,
        }
        self.connections.insert(id, client);
    }

    pub(super) fn arm_idle(&mut self, id: TopicId) {
        let mut topic = self.topics[id.0].borrow_mut();
        if !topic.idle_timer_armed && !topic.deleting && topic.anchored != topic.next {
            topic.idle_timer_armed = true;
            let at = self.now().monotonic_ns + self.config.idle_anchor_ms * 1_000_000;
            self.timers.insert((at, Timer::Idle(id)));
        }
    }

    pub(super) fn idle(&mut self, id: TopicId) {
        let topic = self.topics[id.0].clone();
        topic.borrow_mut().idle_timer_armed = false;
        if self.phase != Phase::Serving || topic.borrow().deleting {
            return;
        }
        let quiet_ns = self.now().monotonic_ns.saturating_sub(topic.borrow().last_publish_ns);
        let quiet = quiet_ns >= self.config.idle_anchor_ms * 1_000_000;
        if quiet && topic.borrow().is_settled() && topic.borrow().anchored != topic.borrow().durable {
            // From here on no slot write may begin beside it.
            topic.borrow_mut().anchoring = true;
            self.spawn(|io| {
                Box::pin(async move {
                    let result = anchor::anchor(&io, &topic, Place::Running, Stop::Open).await;
                    Ended::Anchored { topic: id, result }
                })
            });
        } else {
            if quiet && !mem::replace(&mut topic.borrow_mut().commit.flush_now, true) {
                self.topics_to_pump.insert(id);
            }
            self.arm_idle(id);
        }
    }

    pub(super) fn create_topic(
        &mut self,
        connection: Option<ConnectionId>,
        name: &str,
        settings: Settings,
    ) -> Result<(), RequestError> {
        if let Some(waiting) = self.creating.get_mut(name) {
            waiting.extend(connection);
            return Ok(());
        }
        if let Some(deletion) = self.deleting.get_mut(name) {
            deletion.creators.extend(connection);
            return Ok(());
        }
        let max = self.config.topics_max as usize;
        if self.topics.len() + self.creating.len() >= max {
            return Err(RequestError::new(
                Code::BadRequest,
                format!("there are {max} topics already, the most that --max-topics allows"),
            ));
        }
        self.creating.insert(name.into(), connection.into_iter().collect());
        // Several can be in the making: the id is given when it is there.
        let toml = start::new_topic(&self.io, &self.config, name, settings);
        let config = self.config.clone();
        let name = String::from(name);
        let indexes = self.indexes.clone();
        self.spawn(|io| {
            Box::pin(async move {
                let dir = layout::topic(&name);
                let created = create::create(io, indexes, &config, TopicId(usize::MAX), name.clone(), dir, toml).await;
                let result = created.map(Box::new);
                Ended::Created { name, result }
            })
        });
        Ok(())
    }

    pub(super) fn created(&mut self, name: &str, result: Result<Box<Topic>, Trouble>) {
        let result = result.map(|topic| {
            let id = self.topics.add(Rc::new(RefCell::new(*topic)));
            self.names.insert(name.into(), id);
            self.arm_age();
            self.share_recent();
        });
        self.making_ended(name, result);
    }

    /// A topic, or a work queue, has been made, or not: who waits for it goes on.
    pub(super) fn making_ended(&mut self, name: &str, result: Result<(), Trouble>) {
        let waiting = self.creating.remove(name).unwrap_or_default();
        match result {
            Ok(()) => {
                for connection in waiting {
                    self.retry_stalled(connection);
                }
                self.bury_all();
            }
            Err(Trouble::Full(error)) => {
                self.disk_is_full(Some(&error));
                let sentence = format!("topic {name} could not be made: {error}");
                let slot = Slot::of(&Reply::Error(RequestError::new(Code::DiskFull, sentence)));
                for id in waiting {
                    // One that a stop has answered meanwhile is not answered again (P14).
                    if let Some(client) = self.connections.get_mut(&id)
                        && let Some(Stall::Creation(_)) = client.stall
                    {
                        client.stall = None;
                        client.answer_now(slot.clone());
                        self.connections_to_serve.insert(id);
                    }
                }
            }
            Err(Trouble::Halt(error)) => self.halt(&format!("making topic {name}"), &error),
        }
    }

    /// Every topic gets its share of the memory for new batches (P13).
    pub(super) fn share_recent(&mut self) {
        let share = self.config.recent_bytes / self.topics.len().max(1) as u64;
        for topic in self.topics.iter() {
            let is_journal = topic.borrow().is_journal;
            let recent = &mut topic.borrow_mut().commit.recent;
            recent.bytes_max = if is_journal { 0 } else { share };
            recent.trim();
        }
    }
}

fn answer_below(
    waiting: &mut VecDeque<Waiter>,
    mark: u64,
    level: Level,
    connections: &mut BTreeMap<ConnectionId, Connection>,
    to_serve: &mut BTreeSet<ConnectionId>,
) {
    // A batch is one frame: with its first message all of it has passed the mark.
    while let Some(waiter) = waiting.pop_front_if(|waiter| waiter.offset < mark) {
        if let Some(client) = connections.get_mut(&waiter.connection) {
            match waiter.answer {
                Answer::Published { batch } => {
                    client.answer(waiter.request, Slot::Published { offset: waiter.offset, level, batch });
                }
                Answer::Held => client.release(waiter.request),
                Answer::Other => unreachable!("nothing but a publish or an operation waits for a mark"),
            }
            to_serve.insert(waiter.connection);
        }
    }
}
