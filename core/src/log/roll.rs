//! The roll: from a full segment to a new one.
//!
//! By the time it begins every message is forced and the line stands at the end of the log (crash story: *the tail
//! that is no longer last* – recovery doubts only the last segment, so the line must have moved before there is a new
//! one). Then, with a crash possible between any two steps:
//!
//! 1. cut the unused space and force (crash story: *garbage where zeros were*);
//! 2. anchor, so that the line can't fall back into the old segment;
//! 3. create the new segment, and force the directory before a byte goes into it (crash story: *the soft directory force*).

use super::anchor::{self, Place, Stop};
use super::index::Places;
use super::retention;
use super::{Roll, Topic, Trouble};
use crate::effect::Effect;
use crate::io::Io;
use crate::layout;
use crate::planted::planted;
use alloc::rc::Rc;
use core::cell::RefCell;

/// Rolls, and says what the index of the closed segment is. On `Full` nothing is harmed, and the whole can be done again.
pub(crate) async fn roll(io: Io, topic: Rc<RefCell<Topic>>) -> Result<Rc<Places>, Trouble> {
    let (file, end, base, dir) = {
        let topic = topic.borrow();
        debug_assert!(topic.durable == topic.next);
        (topic.active().file, topic.active().end, topic.next, topic.dir.clone())
    };
    io.call(Effect::Truncate { file, length: end }).await.map_err(Trouble::Halt)?;
    io.force(file).await.map_err(Trouble::Halt)?;
    retention::prepare_at_roll(&io, &topic).await?;
    topic.borrow_mut().record_start(&io);
    if !planted!(io, RollWithoutAnchor) {
        anchor::anchor(&io, &topic, Place::Running, Stop::Open).await?;
    }
    let new = io.create(layout::segment(&dir, base)).await.map_err(Trouble::full_or_halt)?;
    if !planted!(io, NoDirectoryForceAtRoll) {
        io.force_dir(&layout::log(&dir)).await.map_err(Trouble::Halt)?;
    }
    let mut topic = topic.borrow_mut();
    topic.roll = Roll::No;
    Ok(topic.push_segment(new, base))
}
