//! Dead letters: how a message that was handed out often enough leaves a work queue.
//!
//! Each step is behind the one before it, so that a crash between any two repeats what has to be repeated and nothing else:
//!
//! 1. that the message is dying is **recorded** in the journal and forced, with a sequence of its own;
//! 2. it is read, and **published** DURABLE to the topic of dead letters, as a producer that nobody else is with that sequence: one that
//!    was published before a crash is known there (P16);
//! 3. it is **confirmed** here.
//!
//! Crash story: *the letter that was lost* – were it confirmed first, a power loss in between would leave it nowhere.

use super::queues::Operation;
use super::{Broker, Ended, Phase};
use crate::effect::{ConnectionId, FieldValue};
use crate::error::{Code, RequestError};
use crate::group::journal::{self, Dying};
use crate::group::share::after_ms;
use crate::io::TopicId;
use crate::layout;
use crate::log::read::{self, Stored};
use crate::log::{Admission, Appended};
use crate::planted::planted;
use crate::protocol::{Body, Level, Publish};
use crate::settings::{Setting, Settings};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use bytes::Bytes;

/// Messages of one queue that are on their way at once: what is in memory is bounded (P13).
const BURIALS_MAX: usize = 16;
/// So many letters of each queue are known, for however long. Between two forces of a journal there are far fewer burials.
const LETTERS_KNOWN: u64 = 1_000;
/// After this a burial that could not go on is tried again.
const RETRY_MS: u64 = 1_000;
/// What all headers that tell of a death begin with.
const HEADER: &str = "dead-";
/// Nobody: a publish of the broker's own.
const BROKER: ConnectionId = ConnectionId(u64::MAX);

/// How far a message is on its way to the dead letters.
pub(super) enum Burial {
    /// That it is dying stands in the journal, at this offset.
    Recorded(u64),
    /// It is being read.
    Reading,
    /// It is to be published.
    Publishing(Box<Publish>),
    /// It could not be read, and is tried again.
    Damaged,
    /// It has this offset among the dead letters, and is forced soon.
    Published { topic: TopicId, offset: u64 },
}

impl Broker {
    /// Takes every dying message of the queue as far as it can go now.
    pub(super) fn bury(&mut self, journal: TopicId) {
        if self.phase != Phase::Serving || !self.queues.contains_key(&journal) {
            return;
        }
        self.begin_burials(journal);
        let on_the_way: Vec<u64> = self.queues[&journal].burials.keys().copied().collect();
        for offset in on_the_way {
            self.advance_burial(journal, offset);
        }
        let queue = self.queues.get_mut(&journal).expect("just seen");
        match queue.burials.is_empty() {
            true => self.burying.remove(&journal),
            false => self.burying.insert(journal),
        };
    }

    /// Something that burials may wait for has happened.
    pub(super) fn bury_all(&mut self) {
        for journal in self.burying.clone() {
            self.bury(journal);
        }
    }

    fn begin_burials(&mut self, journal: TopicId) {
        loop {
            let queue = &self.queues[&journal];
            if queue.burials.len() >= BURIALS_MAX {
                return;
            }
            let Some((offset, dying)) = queue.share.dying().find(|(offset, _)| !queue.burials.contains_key(offset))
            else {
                return;
            };
            // Where there is no place now, the journal says when there is.
            let Appended::At(at) = self.append(journal, &journal::encode_dying(offset, dying)) else { return };
            self.want_durable(journal, at);
            self.queues.get_mut(&journal).expect("just seen").burials.insert(offset, Burial::Recorded(at));
        }
    }

    /// Everything of the log up to and including this offset is to be forced, though no client waits for it.
    pub(super) fn want_durable(&mut self, log: TopicId, offset: u64) {
        let wanted = &mut self.topics[log.0].borrow_mut().commit.wanted_durable;
        *wanted = Some(wanted.map_or(offset, |before| before.max(offset)));
        self.topics_to_pump.insert(log);
    }

    fn advance_burial(&mut self, journal: TopicId, offset: u64) {
        let queue = self.queues.get_mut(&journal).expect("its burials are looked at");
        let topic = queue.topic;
        match queue.burials.remove(&offset) {
            Some(Burial::Recorded(at)) if self.topics[journal.0].borrow().durable > at => {
                queue.burials.insert(offset, Burial::Reading);
                let log = self.topics[topic.0].clone();
                if planted!(self.io, ConfirmBeforeBurial) {
                    queue.operations.push_back(Operation::unwaited(journal::encode_confirm(&[(offset, 1)])));
                    self.run_operations(journal);
                }
                self.spawn(|io| {
                    Box::pin(async move {
                        let result = read::message(io, log, offset).await;
                        Ended::DeadRead { journal, offset, result }
                    })
                });
            }
            Some(Burial::Publishing(publish)) => self.publish_dead(journal, offset, publish),
            Some(Burial::Published { topic, offset: at }) => match self.topics.get(topic) {
                Some(log) if log.borrow().durable > at => self.buried(journal, offset),
                Some(_) => {
                    queue.burials.insert(offset, Burial::Published { topic, offset: at });
                }
                // The topic was deleted before it was forced: from the beginning.
                None => {}
            },
            Some(other) => {
                queue.burials.insert(offset, other);
            }
            None => {}
        }
    }

    pub(super) fn dead_read(&mut self, journal: TopicId, offset: u64, result: Result<Option<Stored>, RequestError>) {
        let Some(queue) = self.queues.get(&journal) else { return };
        let dying = queue.share.dying().find(|(dying, _)| *dying == offset).map(|(_, dying)| dying);
        match result {
            Ok(Some(stored)) => {
                let Some(dying) = dying else { return };
                let publish = Box::new(self.letter(journal, offset, dying, stored));
                self.queues.get_mut(&journal).expect("just seen").burials.insert(offset, Burial::Publishing(publish));
                self.advance_burial(journal, offset);
            }
            // Retention was faster.
            Ok(None) => self.buried(journal, offset),
            Err(error) => {
                self.report("CORRUPT_RECORD", Vec::from([("reason", FieldValue::Text(error.sentence))]));
                self.queues.get_mut(&journal).expect("just seen").burials.insert(offset, Burial::Damaged);
                self.retry_burials(journal);
            }
        }
        self.bury(journal);
        self.arm_queue(journal);
    }

    /// The message as it stands among the dead letters: with where it comes from, how often it was handed out and what happened then.
    fn letter(&self, journal: TopicId, offset: u64, dying: Dying, stored: Stored) -> Publish {
        let queue = &self.queues[&journal];
        let topic = self.topics[queue.topic.0].borrow().name.clone();
        let log_id = self.topics[journal.0].borrow().toml.log_id;
        let producer = u64::from_be_bytes(*log_id.first_chunk().expect("it has 16 bytes"));
        // What an earlier death has left is out of date.
        let mut headers = stored.headers;
        headers.retain(|(name, _)| !name.starts_with(HEADER.as_bytes()));
        let told: [(&str, String); 6] = [
            ("topic", topic.clone()),
            ("group", queue.group.clone()),
            ("offset", offset.to_string()),
            ("deliveries", queue.share.deliveries(offset).to_string()),
            ("reason", dying.reason.as_str().to_string()),
            ("time", stored.timestamp_ms.to_string()),
        ];
        headers.extend(told.map(|(name, value)| (format!("{HEADER}{name}").into_bytes(), value.into_bytes())));
        Publish {
            topic: Some(layout::dead_letters(&topic)),
            level: Level::Durable,
            key: stored.key,
            headers,
            id: Some((producer, dying.sequence)),
            batch: None,
            value: Body::One(Bytes::from(stored.value)),
        }
    }

    fn publish_dead(&mut self, journal: TopicId, offset: u64, publish: Box<Publish>) {
        let name = publish.topic.clone().expect("dead letters have a topic of their own");
        let Some(dead) = self.topic_id(&publish.topic) else {
            // However short the window of other topics is, here a letter is known as long as its burial may be repeated.
            let mut settings = Settings::NONE;
            settings.set(Setting::DedupSequences, Some(LETTERS_KNOWN));
            settings.set(Setting::DedupMs, Some(0));
            let result = self.create_topic(None, &name, settings);
            self.queues.get_mut(&journal).expect("just seen").burials.insert(offset, Burial::Publishing(publish));
            if let Err(error) = result {
                self.report_stuck(&name, error);
                self.retry_burials(journal);
            }
            return;
        };
        let now = self.now();
        let topic = self.topics[dead.0].clone();
        let admission = topic.borrow_mut().admit(&self.config, &self.io, now, BROKER, &mut None, &publish);
        self.topics_to_pump.insert(dead);
        let at = match admission {
            Admission::Admitted(at) => at,
            Admission::Known(first) => first.offset,
            refused => {
                if let Admission::Refused(error) = refused {
                    self.report_stuck(&name, error);
                }
                self.queues.get_mut(&journal).expect("just seen").burials.insert(offset, Burial::Publishing(publish));
                return self.retry_burials(journal);
            }
        };
        if topic.borrow().durable > at {
            return self.buried(journal, offset);
        }
        let queue = self.queues.get_mut(&journal).expect("just seen");
        queue.burials.insert(offset, Burial::Published { topic: dead, offset: at });
        self.want_durable(dead, at);
        if !topic.borrow().idle_timer_armed {
            self.arm_idle(dead);
        }
    }

    /// It stands among the dead letters, forced: it is done here.
    fn buried(&mut self, journal: TopicId, offset: u64) {
        let queue = self.queues.get_mut(&journal).expect("its burials are looked at");
        queue.burials.remove(&offset);
        queue.share.finish(offset);
        queue.operations.push_back(Operation::unwaited(journal::encode_confirm(&[(offset, 1)])));
        self.run_operations(journal);
        self.wake_queue(journal);
    }

    fn retry_burials(&mut self, journal: TopicId) {
        let at_ns = after_ms(self.now().monotonic_ns, RETRY_MS);
        self.queues.get_mut(&journal).expect("just seen").retry_ns.get_or_insert(at_ns);
        self.arm_queue(journal);
    }

    /// Every second, as long as it lasts.
    fn report_stuck(&self, topic: &str, error: RequestError) {
        // A disk that is full has its own line.
        if error.code != Code::DiskFull {
            let fields = [("topic", FieldValue::Text(topic.into())), ("reason", FieldValue::Text(error.sentence))];
            self.report("DEAD_LETTERS_WAIT", Vec::from(fields));
        }
    }
}
