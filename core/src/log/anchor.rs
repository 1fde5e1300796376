//! Anchoring: both slots of the watermark file forced, one after the other.
//!
//! At every moment one of the two is whole on the platter: a power loss may tear one, never both.
//! Crash stories: *both slots torn* (the slot that may be torn is written first: in recovery, and where there was no room for it before; while
//! the anchored one may be, nothing is written to the running one), *the start that went back* (the running slot gets the current values before
//! the anchored one is touched).

use super::{Topic, Trouble};
use crate::io::Io;
use crate::log::watermark::{self, Slot};
use crate::planted::planted;
use alloc::rc::Rc;
use bytes::Bytes;
use core::cell::RefCell;

/// One of the two places in the watermark file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    Running,
    Anchored,
}

/// What an anchored slot says about how the process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// Nothing: the process goes on.
    Open,
    /// Everything is forced, group files and directories included, and nothing follows.
    Clean,
}

/// Writes and forces both slots with the topic's current values, beginning with `first`.
pub(crate) async fn anchor(io: &Io, topic: &Rc<RefCell<Topic>>, first: Place, stop: Stop) -> Result<(), Trouble> {
    topic.borrow_mut().anchoring = true;
    let result = write_both(io, topic, first, stop).await;
    topic.borrow_mut().anchoring = false;
    result
}

async fn write_both(io: &Io, topic: &Rc<RefCell<Topic>>, first: Place, stop: Stop) -> Result<(), Trouble> {
    let first = topic.borrow().torn.unwrap_or(first);
    let order = match first {
        Place::Running => [Place::Running, Place::Anchored],
        Place::Anchored => [Place::Anchored, Place::Running],
    };
    let (start, durable) = (topic.borrow().retention.recorded, topic.borrow().durable);
    for place in order {
        let (file, slot) = {
            let mut topic = topic.borrow_mut();
            topic.sequence += 1;
            let clean = stop == Stop::Clean && place == Place::Anchored;
            let slot = Slot { log_id: topic.toml.log_id, sequence: topic.sequence, start, durable, clean };
            (topic.watermark, slot)
        };
        let position = match place {
            Place::Running => watermark::RUNNING_POSITION,
            Place::Anchored => watermark::ANCHORED_POSITION,
        };
        let bytes = Bytes::copy_from_slice(&watermark::encode(&slot));
        if place == Place::Anchored || !planted!(io, AnchorAlone) {
            let written = io.write(file, position, bytes).await;
            if written.is_err() {
                topic.borrow_mut().torn = Some(place);
            }
            written.map_err(Trouble::full_or_halt)?;
        }
        io.force(file).await.map_err(Trouble::Halt)?;
        topic.borrow_mut().torn.take_if(|torn| *torn == place);
    }
    let mut topic = topic.borrow_mut();
    topic.anchored = durable;
    // Only now: what readers are told is gone can't come back, and the segments below it may go (P12).
    topic.start = start;
    topic.resize(0, 0);
    Ok(())
}
