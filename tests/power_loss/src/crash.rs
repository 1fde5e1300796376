//! The images that a power loss may leave, out of a log of what the device was given.
//!
//! A flush that was answered covers the writes that were done when it was given. Of every other write each sector may have
//! reached the platter or not, in any order: the cache of a device keeps none.

use crate::store::{Event, Image, Log, PAGE, SECTOR, Whole, Write};
use plimsoll_sim::disk::Seeded;
use std::collections::BTreeMap;

/// Goes through a log, from its beginning on.
pub struct Crashes<'a> {
    log: &'a Log,
    position: usize,
    /// What no power loss can take any more.
    durable: Image,
    /// The writes that were given and are not durable, and whether each is done.
    open: BTreeMap<usize, bool>,
}

/// How much of the writes that no flush covers has reached the platter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kept {
    /// Nothing.
    Nothing,
    /// Everything.
    All,
    /// Some of it, drawn from this seed.
    Some(u64),
}

impl<'a> Crashes<'a> {
    /// Before anything has happened.
    pub fn new(log: &'a Log) -> Crashes<'a> {
        Crashes { log, position: 0, durable: log.base.clone(), open: BTreeMap::new() }
    }

    /// Goes on to a position. Panics when it lies behind, or beyond the log.
    pub fn go_to(&mut self, position: usize) {
        assert!(position >= self.position, "a log is gone through once");
        for event in &self.log.events[self.position..position] {
            match *event {
                Event::Given(write) => {
                    self.open.insert(write, false);
                }
                Event::Done(write) => {
                    self.open.insert(write, true);
                }
                Event::Flushed => {
                    let (log, durable) = (self.log, &mut self.durable);
                    self.open.retain(|write, done| {
                        if *done {
                            put(durable, &log.writes[*write]);
                        }
                        !*done
                    });
                }
            }
        }
        self.position = position;
    }

    /// What is left when power fails now.
    pub fn image(&self, kept: Kept) -> Image {
        let mut image = self.durable.clone();
        let writes = self.open.keys().map(|write| &self.log.writes[*write]);
        match kept {
            Kept::Nothing => {}
            Kept::All => writes.for_each(|write| put(&mut image, write)),
            Kept::Some(seed) => keep_some(&mut image, writes.collect(), self.log.whole, &mut Seeded::new(seed, 0)),
        }
        image
    }
}

fn put(image: &mut Image, write: &Write) {
    image.write(write.position, &write.bytes);
}

fn keep_some(image: &mut Image, mut writes: Vec<&Write>, whole: Whole, draws: &mut Seeded) {
    if writes.is_empty() {
        return;
    }
    // Where two writes overlap, any of them may have been the last to reach the platter.
    if draws.chance(1, 3) {
        draws.shuffle(&mut writes);
    }
    let one = draws.below(writes.len() as u64) as usize;
    // Of how many writes something is kept: few, half, most, all but one, only one.
    let style = draws.below(5);
    let kept = |at: usize, draws: &mut Seeded| match style {
        0 => draws.chance(1, 8),
        1 => draws.chance(1, 2),
        2 => draws.chance(7, 8),
        3 => at != one,
        _ => at == one,
    };
    let torn = draws.chance(1, 2);
    for (at, write) in writes.into_iter().enumerate() {
        let kept = kept(at, draws);
        if !torn || (kept && draws.chance(1, 2)) {
            if kept {
                put(image, write);
            }
            continue;
        }
        // Sectors by themselves, or a beginning or an end of the write.
        let sectors = write.bytes.len().div_ceil(SECTOR) as u64;
        let (cut, shape) = (draws.below(sectors + 1), draws.below(3));
        let (mut keep, mut is_whole) = (false, false);
        for (sector, bytes) in (0..).zip(write.bytes.chunks(SECTOR)) {
            let position = write.position + sector * SECTOR as u64;
            let begins = sector == 0 || position.is_multiple_of(PAGE as u64);
            let block = &write.bytes[sector as usize * SECTOR..];
            if begins {
                is_whole = whole(position, block);
            }
            if begins || !is_whole {
                keep = match shape {
                    0 => draws.chance(1, 2),
                    1 => sector < cut,
                    _ => sector >= cut,
                };
            }
            if keep {
                image.write(position, bytes);
            }
        }
    }
}

/// One crash of a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Crash {
    /// When power fails.
    pub position: usize,
    /// What is left.
    pub kept: Kept,
}

/// One image, and all the moments between which the log may leave it.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The first that leaves it.
    pub crash: Crash,
    /// The last moment: what was promised up to then must be in it.
    pub last: usize,
}

/// What is to be looked at.
pub struct Plan {
    /// How many images were built.
    pub images: usize,
    /// Each content once, in the order of the log.
    pub distinct: Vec<Planned>,
}

/// `images` crashes from a position on: at every flush that is answered, or at as many of them as half of the images allow,
/// and between them at moments and with losses drawn from the seed.
pub fn plan(log: &Log, from: usize, images: usize, seed: u64) -> Plan {
    let flushed = (from..log.events.len()).filter(|at| log.events[*at] == Event::Flushed).map(|at| at + 1);
    let mut boundaries: Vec<usize> = flushed.collect();
    let most = images.div_ceil(2);
    if boundaries.len() > most {
        boundaries = (0..most).map(|at| boundaries[at * boundaries.len() / most]).collect();
    }
    let mut draws = Seeded::new(seed, 1);
    let mut crashes: Vec<Crash> =
        boundaries.iter().map(|position| Crash { position: *position, kept: Kept::Nothing }).collect();
    let edges: Vec<usize> = std::iter::once(from).chain(boundaries).chain([log.events.len()]).collect();
    // Between each two in turn, so that no part of the log is left out.
    for at in crashes.len()..images {
        let between = &edges[at % (edges.len() - 1)..][..2];
        let position = between[0] + draws.below((between[1] - between[0]) as u64 + 1) as usize;
        let kept = if draws.chance(1, 10) { Kept::All } else { Kept::Some(draws.next_u64()) };
        crashes.push(Crash { position, kept });
    }
    crashes.sort_by_key(|crash| crash.position);
    let mut at = Crashes::new(log);
    let mut places: BTreeMap<u128, usize> = BTreeMap::new();
    let mut distinct: Vec<Planned> = Vec::new();
    for crash in &crashes {
        at.go_to(crash.position);
        let place = *places.entry(at.image(crash.kept).digest()).or_insert(distinct.len());
        match distinct.get_mut(place) {
            Some(known) => known.last = crash.position,
            None => distinct.push(Planned { crash: *crash, last: crash.position }),
        }
    }
    Plan { images: crashes.len(), distinct }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::BlockStore;

    /// Two writes; a flush overtakes the second.
    fn log() -> Log {
        let store = BlockStore::new(1 << 16);
        let first = store.given(0, &[1; 1024]).ok().unwrap();
        let second = store.given(512, &[2; 1024]).ok().unwrap();
        store.done(first);
        store.flush().ok().unwrap();
        store.done(second);
        store.log()
    }

    fn sectors(image: &Image) -> Vec<u8> {
        let mut bytes = [0; 2048];
        image.read(0, &mut bytes);
        bytes.chunks(SECTOR).map(|sector| sector[0]).collect()
    }

    #[test]
    fn a_flush_covers_what_was_done_when_it_was_given_and_nothing_else() {
        let log = log();
        let mut crashes = Crashes::new(&log);
        crashes.go_to(3);
        assert_eq!(sectors(&crashes.image(Kept::Nothing)), [0, 0, 0, 0]);
        crashes.go_to(log.events.len());
        assert_eq!(sectors(&crashes.image(Kept::Nothing)), [1, 1, 0, 0]);
        assert_eq!(sectors(&crashes.image(Kept::All)), [1, 2, 2, 0]);
    }

    #[test]
    fn every_subset_of_sectors_is_reached_and_no_other_content() {
        let log = log();
        let mut crashes = Crashes::new(&log);
        crashes.go_to(2);
        let found: std::collections::BTreeSet<Vec<u8>> =
            (0..3000).map(|seed| sectors(&crashes.image(Kept::Some(seed)))).collect();
        // Sector 0: old, 1. Sector 1: old, 1, 2. Sector 2: old, 2.
        assert_eq!(found.len(), 2 * 3 * 2, "{found:?}");
    }

    #[test]
    fn a_block_that_is_to_stay_whole_is_kept_or_lost_as_a_whole() {
        let store = BlockStore::new(1 << 16);
        store.keep_whole(|position, bytes| position == 4096 && bytes[0] == 1);
        store.given(0, &[1; 12288]).ok().unwrap();
        let log = store.log();
        let mut crashes = Crashes::new(&log);
        crashes.go_to(1);
        let mut torn = [false; 3];
        for seed in 0..1000 {
            let mut bytes = [0; 12288];
            crashes.image(Kept::Some(seed)).read(0, &mut bytes);
            for (block, torn) in bytes.chunks(PAGE).zip(&mut torn) {
                *torn |= block.iter().any(|byte| *byte != block[0]);
            }
        }
        assert_eq!(torn, [true, false, true]);
    }

    #[test]
    fn a_plan_has_every_boundary_and_each_content_once() {
        let log = log();
        let plan = plan(&log, 0, 100, 1);
        assert_eq!(plan.images, 100);
        assert!(plan.distinct.iter().any(|planned| (planned.crash.position..=planned.last).contains(&4)));
        assert!(plan.distinct.len() <= 14);
        assert!(plan.distinct.iter().all(|planned| planned.crash.position <= planned.last));
    }
}
