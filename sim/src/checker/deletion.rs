//! Topics and groups that are deleted, and made again under the same name.
//!
//! Which log stands under a name is read from the disk, by the log's id: each has a *generation* of its own in the
//! [model](crate::model). A request that was under way while its topic was deleted may have been answered for the log before or for
//! the one behind it, so of its answer only the form is judged, and what it may have done is held open in both. Every other request is
//! about one log, and is judged in full.

use super::{Ask, Asked, Checker, Conn, Cursor};
use crate::disk::SimDisk;
use crate::model::{Check, Log, Open, broken};
use crate::reply::Seen;
use crate::view::{Depth, LogView};
use plimsoll_core::effect::ConnectionId;
use plimsoll_core::layout;
use plimsoll_core::record::LogId;

impl Checker {
    /// What stands under a topic's name, when that may have changed under a running process.
    pub(crate) fn stands(&mut self, topic: &str, log_id: Option<LogId>) -> Check {
        self.stands_now(topic, log_id, "P12")
    }

    /// What stands under each topic's name after a crash.
    pub(crate) fn stand_after_a_crash(&mut self, disk: &SimDisk) -> Check {
        if self.damaged {
            return Ok(());
        }
        let topics: Vec<String> = self.model.logs.keys().cloned().collect();
        for topic in &topics {
            let log_id = LogView::new(Depth::Cache, topic).log_id(disk);
            let is_the_same = self.model.log(topic).log_id == log_id;
            let is_former = |(name, log): &(String, Log)| name == topic && log.log_id == log_id;
            let former = self.model.former.iter().rposition(is_former).filter(|_| !is_the_same && log_id.is_some());
            let Some(former) = former else {
                self.stands_now(topic, log_id, "P1")?;
                continue;
            };
            if self.model.former[former].1.is_gone {
                return broken("P12", format!("{topic} was deleted, and a power loss brought it back"));
            }
            self.queues_begin_anew(topic);
            if self.model.give_back(topic, former).exists {
                return broken("P1", format!("{topic} was made anew, and a power loss brought back the one before it"));
            }
        }
        Ok(())
    }

    fn stands_now(&mut self, topic: &str, log_id: Option<LogId>, promise: &'static str) -> Check {
        let log = self.model.log(topic);
        if log.log_id.is_none() {
            log.log_id = log_id;
        }
        if log.log_id == log_id || self.damaged {
            return Ok(());
        }
        if log.exists && log.deletions.is_empty() {
            return broken(promise, format!("{topic} has lost its name, and nobody asked for that"));
        }
        self.begin_generation(topic);
        self.model.log(topic).log_id = log_id;
        Ok(())
    }

    fn begin_generation(&mut self, topic: &str) {
        self.model.begin_generation(topic);
        self.queues_begin_anew(topic);
        // The broker makes it whenever somebody dies.
        self.model.log(topic).may_exist |= layout::is_of_dead_letters(topic);
        self.views.retain(|(viewed, _), _| viewed != topic);
        let (life, abandoned) = (self.life.number, self.life.ready);
        let Checker { conns, model, limits, .. } = self;
        for conn in conns.values_mut() {
            conn.cursors.retain(|(of, _), _| of != topic);
            for asked in conn.asked.iter_mut().filter(|asked| asked.topic == topic) {
                let log = model.log(topic);
                // A process that is not ready takes up nothing yet: it is all about the log that will be there.
                if !self.life.ready {
                    (asked.generation, asked.existed, asked.firm_end, asked.start) = (log.generation, false, 0, 0);
                    (asked.moment, asked.moments) = (0, Default::default());
                }
                let Asked { id, ask, .. } = asked;
                let open = |value, seek| Open { id: *id, value, seek, life, abandoned };
                match ask {
                    Ask::Publish(number) => {
                        log.may_exist |= limits.auto_create;
                        model.goes_astray(*number, !self.life.ready);
                    }
                    Ask::Create => log.may_exist = true,
                    Ask::Delete => drop(log.deletions.insert(*id)),
                    Ask::Ack { group, offset } => {
                        log.groups.entry(group.clone()).or_default().asked(open(Some(*offset + 1), false));
                    }
                    Ask::Seek { group, to } => log.groups.entry(group.clone()).or_default().asked(open(*to, true)),
                    Ask::DeleteGroup { group } => {
                        log.groups.entry(group.clone()).or_default().asked(open(Some(0), true));
                    }
                    Ask::Alter(value) => log.setting.asked(open(Some(*value), true)),
                    Ask::Purge { before } => log.start_max = log.start_max.max(*before),
                    _ => {}
                }
            }
        }
    }

    /// Recovery says that it is done: what was deleted before is gone, and has left nothing behind.
    pub(super) fn deletions_are_done(&mut self, disk: &SimDisk) -> Check {
        if self.damaged || self.life.any_failed {
            return Ok(());
        }
        for (_, log) in &mut self.model.former {
            log.is_gone = true;
        }
        for name in disk.cached_names(layout::TOPICS).unwrap_or_default() {
            if !self.model.log(&name).may_exist {
                return broken("P12", format!("after the start there is {name} among the topics, which nobody has"));
            }
        }
        Ok(())
    }

    /// A topic's deletion was answered: it is gone, for good.
    pub(super) fn deleted(&mut self, asked: &Asked, disk: &SimDisk) -> Check {
        let topic = &asked.topic;
        let log = self.model.log(topic);
        let (has_come, generation) = (log.may_exist, log.generation);
        for log in self.model.all_logs(topic) {
            log.deletions.remove(&asked.id);
        }
        if self.damaged {
            return Ok(());
        }
        if asked.existed && asked.generation == generation {
            return broken("P12", format!("DELETED {topic}, and it still has its name"));
        }
        let forced = LogView::new(Depth::Platter, topic).log_id(disk);
        let was_meant =
            |log: &&mut Log| log.generation < asked.generation || (asked.existed && log.generation == asked.generation);
        for log in self.model.all_logs(topic).filter(|log| log.generation != generation).filter(was_meant) {
            if forced.is_some() && log.log_id == forced {
                return broken("P12", format!("DELETED {topic}, and a power loss would bring it back"));
            }
            log.is_gone = true;
        }
        let left = disk.cached_names(layout::TOPICS).unwrap_or_default();
        let left = left.iter().find(|name| *name == topic || **name == layout::tmp(topic));
        match left.filter(|_| !has_come) {
            Some(left) => broken("P12", format!("DELETED {topic}, and there is still {left} among the topics")),
            None => Ok(()),
        }
    }

    /// A group's deletion was answered: one of its name begins anew.
    pub(super) fn group_deleted(&mut self, conn: &mut Conn, asked: &Asked, group: &str, disk: &SimDisk) -> Check {
        let topic = &asked.topic;
        conn.cursors.remove(&(topic.clone(), group.to_owned()));
        let group_model = self.model.log(topic).groups.entry(group.to_owned()).or_default();
        let what = format!("the committed offset of the deleted group {group} of {topic}");
        group_model.answered(&what, asked.id, 0, asked.moment)?;
        // That there is no file, or one that says 0, comes to the same.
        let path = layout::group_offset(&layout::topic(topic), group);
        let stored = disk.forced_file(&path, 0, 100).filter(|_| !self.damaged);
        let stored =
            stored.map_or(0, |text| plimsoll_core::group::offset_file::parse_offset(&text).unwrap_or(u64::MAX));
        if stored != 0 && !group_model.may_be(stored, asked.moment) {
            return broken("P12", format!("DELETED group {group} of {topic}, and the platter has it at {stored}"));
        }
        Ok(())
    }

    /// The answer to a request that was under way while its topic was deleted.
    pub(super) fn answered_across(&mut self, conn: &mut Conn, asked: &Asked, seen: &Seen) -> Check {
        let topic = &asked.topic;
        match (&asked.ask, seen) {
            (Ask::Publish(number), Seen::Published { count, .. })
                if self.model.attempts[*number].batch.map(|(_, count)| count as u64) == *count =>
            {
                self.model.published_somewhere(*number);
            }
            (Ask::Fetch { group, .. }, Seen::Messages(delivery)) => {
                let group_model = self.model.log(topic).groups.entry(group.clone()).or_default();
                group_model.delivered.extend(delivery.parts().iter().flat_map(|(first, next, _)| *first..*next));
                let cursor = Cursor { next: 0, doubtful: true, unknown: true };
                conn.cursors.insert((topic.clone(), group.clone()), cursor);
            }
            (Ask::Ack { group, .. }, Seen::Acked(_))
            | (Ask::Seek { group, .. }, Seen::Sought(_))
            | (Ask::DeleteGroup { group }, Seen::Lines(_)) => self.abandoned(topic, Some(group), asked.id),
            (Ask::Alter(_), Seen::Lines(_)) => self.abandoned(topic, None, asked.id),
            (Ask::Read { .. }, Seen::Messages(_))
            | (Ask::ReadRaw { .. }, Seen::Frames { .. })
            | (Ask::Purge { .. }, Seen::Purged(_))
            | (Ask::Status | Ask::Groups | Ask::Settings | Ask::Create, Seen::Lines(_)) => {}
            (ask, seen) => return broken("P14", format!("{ask:?} was answered by {seen:?}")),
        }
        Ok(())
    }

    /// What was asked of a group (`None`: of the settings) may have been done or not, to whichever log.
    pub(super) fn abandoned(&mut self, topic: &str, group: Option<&str>, id: u64) {
        for log in self.model.all_logs(topic) {
            match group {
                Some(group) => log.groups.get_mut(group).into_iter().for_each(|group| group.abandoned(id)),
                None => log.setting.abandoned(id),
            }
        }
    }

    /// What was asked was refused: it did nothing to any log.
    pub(super) fn was_refused(&mut self, topic: &str, ask: &Ask, id: u64) {
        for log in self.model.all_logs(topic) {
            match ask {
                Ask::Ack { group, .. } | Ask::Seek { group, .. } | Ask::DeleteGroup { group } => {
                    log.groups.get_mut(group).into_iter().for_each(|group| group.refused(id));
                }
                Ask::Alter(_) => log.setting.refused(id),
                Ask::Delete => drop(log.deletions.remove(&id)),
                _ => {}
            }
        }
    }

    /// Others have asked for the group: who reads it may lose it.
    pub(super) fn others_may_lose(&mut self, connection: ConnectionId, topic: &str, group: &str) {
        let key = (topic.to_owned(), group.to_owned());
        for (_, conn) in self.conns.iter_mut().filter(|(other, _)| **other != connection) {
            if let Some(cursor) = conn.cursors.get_mut(&key) {
                cursor.doubtful = true;
            }
        }
    }
}
