//! What topics are told about themselves: set at their making, changed, shown.

use super::{Broker, Ended, Phase};
use crate::config::{Config, Reload};
use crate::connection::{Connection, Slot, Stall};
use crate::effect::{ConnectionId, FieldValue};
use crate::error::{Code, RequestError};
use crate::io::TopicId;
use crate::layout;
use crate::log::topic_file::{Alter, TopicToml};
use crate::log::{Trouble, create};
use crate::protocol::{Reply, Request};
use crate::settings::{Change, Policy, SETTINGS, Settings, effective};
use alloc::boxed::Box;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;

impl Broker {
    pub(super) fn create(
        &mut self,
        id: ConnectionId,
        client: &mut Connection,
        topic: String,
        settings: Settings,
    ) -> Result<Option<Reply>, RequestError> {
        let Some(there) = self.names.get(&topic) else {
            self.create_topic(Some(id), &topic, settings)?;
            client.stall = Some(Stall::Creation(Request::Create { topic, settings }));
            return Ok(None);
        };
        // A repeated request has nothing to do; one that asks for something else is not to be told that it is so.
        let differs = self.topics[there.0].borrow().toml.settings != settings;
        if differs && settings != Settings::NONE {
            return Err(RequestError::new(
                Code::BadRequest,
                format!("topic {topic} is there already, with other settings; see SETTINGS @{topic}, and use ALTER"),
            ));
        }
        Ok(Some(Reply::Created { topic }))
    }

    pub(super) fn alter(
        &mut self,
        id: ConnectionId,
        client: &mut Connection,
        topic: String,
        change: Change,
    ) -> Result<Option<Reply>, RequestError> {
        let topic_id = self.topic_or_error(&Some(topic))?;
        let alter = Alter { change, connection: id, request: client.open_slot() };
        self.topics[topic_id.0].borrow_mut().alters.push(alter);
        // What the client sends behind it meets the new settings.
        client.stall = Some(Stall::Reading);
        self.store_settings(topic_id);
        Ok(None)
    }

    /// Begins to replace a topic's file, unless that is under way already.
    fn store_settings(&mut self, topic_id: TopicId) {
        let topic = self.topics[topic_id.0].clone();
        let mut topic = topic.borrow_mut();
        let now = topic.toml.settings;
        let Some(settings) = topic.alters.begin(&now) else { return };
        let text = TopicToml { settings, ..topic.toml }.render();
        let dir = topic.dir.clone();
        drop(topic);
        self.spawn(|io| {
            Box::pin(async move {
                let result = create::replace(&io, &dir, &layout::log_toml(&dir), Bytes::from(text)).await;
                Ended::Altered { topic: topic_id, result }
            })
        });
    }

    pub(super) fn altered(&mut self, topic_id: TopicId, result: Result<(), Trouble>) {
        let topic = self.topics[topic_id.0].clone();
        let name = topic.borrow().name.clone();
        let (alter, settings) = topic.borrow_mut().alters.end();
        let reply = match &result {
            Ok(()) => {
                let mut topic = topic.borrow_mut();
                topic.toml.settings = settings;
                topic.policy = Policy::new(&settings, &self.config.topic_defaults);
                topic.retention.due = true;
                Reply::Altered { topic: name }
            }
            Err(Trouble::Full(_)) => Reply::Error(RequestError::new(
                Code::DiskFull,
                format!("no room to store the settings of topic {name}; they stay as they are; try again"),
            )),
            Err(Trouble::Halt(error)) => return self.halt(&format!("storing the settings of topic {name}"), error),
        };
        if let Some(client) = self.connections.get_mut(&alter.connection) {
            client.stall = None;
            client.answer(alter.request, Slot::of(&reply));
            self.connections_to_serve.insert(alter.connection);
        }
        if let Err(Trouble::Full(error)) = result {
            self.disk_is_full(Some(&error));
        }
        self.arm_age();
        self.topics_to_pump.insert(topic_id);
        self.store_settings(topic_id);
        self.total_may_have_room();
    }

    /// Another configuration, as far as it can hold without a restart. What was begun by the old one is finished by it.
    pub(super) fn reconfigure(&mut self, wanted: &Config, kept_elsewhere: Vec<&'static str>) {
        match self.phase {
            Phase::New | Phase::Starting => self.wanted_config = Some((wanted.clone(), kept_elsewhere)),
            Phase::Serving => {
                let Reload { config, changed, kept } = self.config.reload(wanted);
                self.config = Rc::new(config);
                self.indexes.bound(self.config.index_bytes);
                for topic in self.topics.iter().cloned().collect::<Vec<_>>() {
                    let mut topic = topic.borrow_mut();
                    topic.policy = create::policy_of(&topic.dir, &topic.toml, &self.config);
                    topic.retention.due = true;
                    self.topics_to_pump.insert(topic.id);
                }
                self.arm_age();
                self.share_recent();
                self.total_may_have_room();
                self.connections_to_serve.extend(self.connections.keys());
                let names = |names: &[&str]| FieldValue::Text(names.join(","));
                let kept = [kept, kept_elsewhere].concat();
                match changed[..] {
                    [] => self.report("CONFIG_UNCHANGED", Vec::new()),
                    _ => self.report("CONFIG_RELOADED", Vec::from([("changed", names(&changed))])),
                }
                if !kept.is_empty() {
                    self.report("CONFIG_NEEDS_RESTART", Vec::from([("settings", names(&kept))]));
                }
            }
            // Whoever ends has no use for it.
            _ => {}
        }
    }

    pub(super) fn settings(&self, topic: TopicId) -> Reply {
        let own = self.topics[topic.0].borrow().toml.settings;
        let shown = SETTINGS.iter().map(|row| {
            let (value, origin) = effective(&own, &self.config.topic_defaults, row);
            (row, value, origin)
        });
        Reply::Settings(shown.collect())
    }
}
