//! What is promised of a work queue, and whether what is said of it breaks that (P15).
//!
//! A reservation is not forced, so after a power loss counts may be low, and what nobody has confirmed may come again. Three things hold
//! over every crash: a message whose confirmation was answered never comes again, one that nobody asked to confirm is handed out or tells of
//! its death among the dead letters, and no count is higher than the answers that the message may have stood in.

use super::ledger::Broken;
use super::machine::ClientId;
use crate::disk::StateHash;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Whose a message is.
#[derive(Clone, Copy, Debug)]
struct Lease {
    client: ClientId,
    /// It does not run out before, by the clock that the broker is shown.
    until_ms_min: i64,
    /// By then it has.
    until_ms_max: i64,
}

/// One work queue.
#[derive(Clone, Default, Debug)]
pub(super) struct Queue {
    /// Their confirmation was answered.
    confirmed: BTreeSet<u64>,
    /// Their confirmation was asked for and never answered.
    maybe: BTreeSet<u64>,
    /// The same, of this process: it may still be answered.
    asked: Vec<Vec<u64>>,
    /// So often each stood in an answer.
    answers: BTreeMap<u64, u64>,
    /// So many of these the journal has for sure, unless the power fails.
    written: BTreeMap<u64, u64>,
    /// RESERVEs that were never answered: each may have handed out anything, once. Those of this process.
    unknown: u64,
    open: u64,
    held: BTreeMap<u64, Lease>,
    /// Those that somebody is giving back.
    aborts: Vec<u64>,
    /// What was confirmed when a deletion was asked for, of which it is not known whether it was carried out: all of it is, or nothing.
    before_deletion: BTreeSet<u64>,
    /// A deletion was asked for, ever; of this process, and it was not answered.
    pub(super) may_be_gone: bool,
    deleting: bool,
}

impl Queue {
    pub(super) fn reserve_asked(&mut self) {
        self.open += 1;
    }

    pub(super) fn confirm_asked(&mut self, offsets: &[u64]) {
        self.asked.push(offsets.to_vec());
    }

    pub(super) fn abort_asked(&mut self, offset: u64) {
        self.aborts.push(offset);
    }

    /// It was given back, and may have been handed out to another since.
    pub(super) fn aborted(&mut self, offset: u64, client: ClientId) {
        let at = self.aborts.iter().position(|asked| *asked == offset).expect("it was asked for");
        self.aborts.remove(at);
        self.held.retain(|held, lease| *held != offset || lease.client != client);
    }

    pub(super) fn deletion_asked(&mut self) {
        (self.may_be_gone, self.deleting) = (true, true);
        self.forget();
    }

    /// From now on nothing of what it knew is certain.
    fn forget(&mut self) {
        self.before_deletion.append(&mut self.confirmed);
        self.held.clear();
        self.written.clear();
    }

    /// It is gone, and so is all that it knew; also when it went with its topic.
    pub(super) fn deleted(&mut self) {
        self.deleting = false;
        self.forget();
        self.before_deletion.clear();
        self.maybe.clear();
    }

    /// A RESERVE is over. `answered`: all that it has handed out is known.
    pub(super) fn reserve_ended(&mut self, answered: bool) {
        self.open -= 1;
        self.unknown += u64::from(!answered);
    }

    /// A message stands in the answer to a RESERVE that was sent at `asked_ms`.
    pub(super) fn handed_out(
        &mut self,
        offset: u64,
        client: ClientId,
        lease_ms: i64,
        (asked_ms, now_ms): (i64, i64),
    ) -> Result<(), Broken> {
        if self.confirmed.contains(&offset) {
            let what = format!("offset {offset} was confirmed, and comes again");
            return Err(Broken::new("P15", what));
        }
        let is_given_back = self.aborts.contains(&offset);
        let held = self.held.get(&offset).filter(|lease| now_ms < lease.until_ms_min && !is_given_back);
        if let Some(lease) = held {
            let what = format!("offset {offset} is handed out to client {client}, and client {} has it", lease.client);
            return Err(Broken::new("P15", what));
        }
        *self.answers.entry(offset).or_default() += 1;
        *self.written.entry(offset).or_default() += 1;
        let lease = Lease { client, until_ms_min: asked_ms + lease_ms, until_ms_max: now_ms + lease_ms };
        self.held.insert(offset, lease);
        Ok(())
    }

    /// A CONFIRM was answered: CONFIRMED, that nothing was confirmed because it is another's, or neither.
    pub(super) fn confirm_ended(
        &mut self,
        offsets: &[u64],
        client: ClientId,
        now_ms: i64,
        confirmed: Option<bool>,
    ) -> Result<(), Broken> {
        let at = self.asked.iter().position(|asked| asked == offsets).expect("it was asked for");
        self.asked.remove(at);
        let lease_of = |offset: &u64| self.held.get(offset).filter(|lease| lease.client == client);
        match confirmed {
            Some(true) => {
                let others =
                    offsets.iter().find(|offset| lease_of(offset).is_none_or(|lease| now_ms > lease.until_ms_max));
                if let Some(other) = others {
                    return Err(Broken::new(
                        "P15",
                        format!("client {client} confirmed offset {other}, which it does not have"),
                    ));
                }
                self.confirmed.extend(offsets);
                self.held.retain(|offset, _| !offsets.contains(offset));
            }
            Some(false) => {
                if offsets.iter().all(|offset| lease_of(offset).is_some_and(|lease| now_ms < lease.until_ms_min)) {
                    let what = format!("client {client} has {offsets:?} reserved, and may not confirm them");
                    return Err(Broken::new("P15", what));
                }
            }
            None => self.maybe.extend(offsets),
        }
        Ok(())
    }

    /// A line of PENDING.
    pub(super) fn is_pending(&self, offset: u64, deliveries: u64) -> Result<(), Broken> {
        if self.confirmed.contains(&offset) {
            return Err(Broken::new("P15", format!("offset {offset} was confirmed, and is pending")));
        }
        let (least, most) = (self.written.get(&offset).copied().unwrap_or(0), self.deliveries_at_most(offset));
        if deliveries < least || deliveries > most {
            let what =
                format!("offset {offset} is told to have been delivered {deliveries} times; it was {least} to {most}");
            return Err(Broken::new("P15", what));
        }
        Ok(())
    }

    /// A force has failed, or the power: reservations that were written may be lost.
    pub(super) fn counts_are_lost(&mut self) {
        self.written.clear();
    }

    /// The process has ended, and all leases with it.
    pub(super) fn restarted(&mut self) {
        self.maybe.extend(std::mem::take(&mut self.asked).into_iter().flatten());
        self.unknown += std::mem::take(&mut self.open);
        self.held.clear();
        self.aborts.clear();
        if std::mem::take(&mut self.deleting) {
            self.forget();
        }
    }

    fn deliveries_at_most(&self, offset: u64) -> u64 {
        self.answers.get(&offset).copied().unwrap_or(0) + self.unknown + self.open
    }

    /// Whether somebody has asked for its confirmation.
    pub(super) fn may_be_confirmed(&self, offset: u64) -> bool {
        let is_in = |set: &BTreeSet<u64>| set.contains(&offset);
        is_in(&self.confirmed)
            || is_in(&self.maybe)
            || is_in(&self.before_deletion)
            || self.asked.iter().any(|asked| asked.contains(&offset))
    }

    /// Whether it may have been handed out often enough to be among the dead letters.
    pub(super) fn may_be_dead(&self, offset: u64, deliveries_max: Option<u64>) -> bool {
        deliveries_max.is_some_and(|max| self.deliveries_at_most(offset) >= max)
    }

    /// What one client has.
    pub(super) fn held(&self) -> impl Iterator<Item = u64> {
        self.held.keys().copied()
    }

    /// All that could be handed out was, to one client of a process that had recovered. `letter`: where the dead letter of a message stands.
    pub(super) fn check(
        &mut self,
        name: &str,
        log: Range<u64>,
        deliveries_max: Option<u64>,
        letter: &dyn Fn(u64) -> Option<u64>,
    ) -> Result<(), Broken> {
        for offset in log.clone() {
            match (self.held.contains_key(&offset), letter(offset)) {
                (true, Some(at)) => {
                    let what = format!("offset {offset} of {name} is dead letter {at}, and is handed out again");
                    return Err(Broken::new("P15", what));
                }
                (false, Some(at)) if self.confirmed.contains(&offset) => {
                    let what = format!("offset {offset} of {name} was confirmed, and is dead letter {at}");
                    return Err(Broken::new("P15", what));
                }
                (false, Some(at)) if !self.may_be_dead(offset, deliveries_max) => {
                    let what = format!("offset {offset} of {name} is dead letter {at}, after too few deliveries");
                    return Err(Broken::new("P15", what));
                }
                (false, None) if !self.may_be_confirmed(offset) => {
                    let what = format!("offset {offset} of {name} was confirmed by nobody, and is lost");
                    return Err(Broken::new("P15", what));
                }
                _ => {}
            }
        }
        let (came, stayed): (Vec<u64>, Vec<u64>) = std::mem::take(&mut self.before_deletion)
            .into_iter()
            .filter(|offset| log.contains(offset) && !self.confirmed.contains(offset) && !self.maybe.contains(offset))
            .partition(|offset| self.held.contains_key(offset));
        if !came.is_empty() && !stayed.is_empty() {
            let what = format!("{name} was deleted in part: {came:?} come again, {stayed:?} are still confirmed");
            return Err(Broken::new("P12", what));
        }
        // Now it is known: it was not deleted.
        self.confirmed.extend(stayed);
        Ok(())
    }

    /// Everything that decides what will count as broken.
    pub(super) fn hash_into(&self, hash: &mut StateHash) {
        let sets = [&self.confirmed, &self.maybe, &self.before_deletion];
        sets.into_iter().for_each(|set| numbers(hash, set.iter().copied()));
        numbers(hash, self.asked.iter().flatten().copied());
        for counts in [&self.answers, &self.written] {
            numbers(hash, counts.iter().flat_map(|(offset, count)| [*offset, *count]));
        }
        numbers(hash, [self.unknown, self.open, u64::from(self.may_be_gone), u64::from(self.deleting)]);
        numbers(hash, self.aborts.iter().copied());
        numbers(hash, self.held.iter().flat_map(|(offset, lease)| [*offset, lease.client as u64]));
    }
}

fn numbers(hash: &mut StateHash, numbers: impl IntoIterator<Item = u64>) {
    let numbers: Vec<u64> = numbers.into_iter().collect();
    hash.number(numbers.len() as u64);
    numbers.into_iter().for_each(|number| hash.number(number));
}
