//! A full disk (P11).

use super::{Broker, Ended, Timer};
use crate::effect::{Effect, FieldValue, IoError, IoErrorKind};
use crate::io::Owner;
use crate::layout;
use crate::log::Trouble;
use crate::start;
use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::vec::Vec;
use core::mem;

/// How much must fit for the disk to count as free again where there is no ballast.
const PROBE_BYTES: u64 = 1 << 16;

impl Broker {
    /// The ballast is given back, so that consumers, ACKs and what has offsets can go on; publishing resumes when the
    /// ballast can be made again.
    pub(super) fn disk_is_full(&mut self, error: Option<&IoError>) {
        // Where descriptors are missing, the ballast is of no use.
        let no_space = error.is_none_or(|error| error.kind == IoErrorKind::NoSpace);
        if no_space && mem::take(&mut self.ballast) {
            let effect = Effect::Remove { path: layout::BALLAST.into() };
            self.io.owned_by(Owner::BallastRemoved).start(effect);
        }
        if !mem::replace(&mut self.full, true) {
            let reason = error.map_or_else(|| "no room for the ballast".to_string(), |error| error.detail.clone());
            self.report("DISK_FULL", Vec::from([("reason", FieldValue::Text(reason))]));
            self.arm_full();
        }
        // The topics share the disk. What the ballast gives is for what has offsets and for ACKs: a topic that went on
        // until it met the full disk itself would use it up.
        if no_space && !mem::replace(&mut self.no_space, true) {
            for topic in self.topics.ids() {
                // Confirmations are ACKs.
                if self.topics[topic.0].borrow().is_journal {
                    continue;
                }
                self.topics[topic.0].borrow_mut().space.full = true;
                self.unpark(topic);
            }
        }
    }

    pub(super) fn arm_full(&mut self) {
        let at = self.now().monotonic_ns + self.config.disk_full_retry_ms * 1_000_000;
        self.timers.insert((at, Timer::Full));
    }

    pub(super) fn try_for_room(&mut self) {
        let bytes = self.config.ballast_bytes;
        self.spawn(move |io| {
            Box::pin(async move {
                let mut made = start::make_ballast(&io, if bytes > 0 { bytes } else { PROBE_BYTES }).await;
                if bytes == 0 && made.is_ok() {
                    made = start::make_ballast(&io, 0).await;
                }
                Ended::Ballast(made)
            })
        });
    }

    pub(super) fn ballast_made(&mut self, result: Result<(), Trouble>) {
        match result {
            Ok(()) => {
                self.full = false;
                self.no_space = false;
                self.ballast = self.config.ballast_bytes > 0;
                self.report("DISK_FREE", Vec::new());
                for topic in self.topics.iter() {
                    topic.borrow_mut().space.full = false;
                }
                self.retry_writes();
            }
            Err(Trouble::Full(_)) => {
                self.retry_writes();
                self.arm_full();
            }
            Err(Trouble::Halt(error)) => self.halt("making the ballast", &error),
        }
    }

    /// What has an offset is never dropped.
    pub(super) fn retry_writes(&mut self) {
        for topic in self.topics.iter() {
            let mut topic = topic.borrow_mut();
            topic.retention.blocked = false;
            // What the ballast gives is for them, too.
            if topic.is_journal {
                topic.space.full = false;
            }
            if topic.commit.write_blocked() {
                topic.retry_writes(&self.io);
            }
            self.topics_to_pump.insert(topic.id);
        }
        self.total_may_have_room();
    }
}
