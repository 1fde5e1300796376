//! The reference work queue (P15): who may have reserved what, what is confirmed, how often it was handed out. No journal, no disk.
//!
//! From outside nobody sees when exactly a lease began, only that it was after the request was sent and before its answer was. So whatever
//! is not settled is kept as an interval, and an answer is wrong only when no order of what is under way explains it. A queue that may
//! have been deleted begins a new *epoch*: of what was asked before it nothing is certain any more.

use crate::model::{Check, End, broken};
use plimsoll_core::effect::ConnectionId;
use std::collections::{BTreeMap, BTreeSet};

/// A request about a work queue, as far as it bears on who has what.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wish {
    /// `RESERVE`.
    Reserve {
        /// For how long, nanoseconds.
        lease_ns: u64,
        /// How long it waits for a message at least, nanoseconds.
        wait_ns: u64,
    },
    /// `CONFIRM`.
    Confirm(Vec<u64>),
    /// `ABORT`.
    Abort {
        /// Which message.
        offset: u64,
        /// Not before so many nanoseconds.
        delay_ns: u64,
    },
    /// `EXTEND`.
    Extend {
        /// Which message.
        offset: u64,
        /// From then on, nanoseconds.
        lease_ns: u64,
    },
    /// `STEAL`.
    Steal(u64),
    /// `DELETE` of the queue.
    Delete,
    /// `QUEUES`, `PENDING`.
    Look,
}

/// A wish without an answer.
#[derive(Clone, Debug)]
pub struct Open {
    /// Whose.
    pub connection: ConnectionId,
    /// When it was sent, nanoseconds.
    pub asked_ns: u64,
    /// For what.
    pub wish: Wish,
    /// The queue was there for sure.
    pub existed: bool,
    epoch: u32,
}

/// That a message was handed out to somebody.
#[derive(Clone, Copy, Debug)]
struct Claim {
    connection: ConnectionId,
    told_ns: u64,
    /// It runs out not before …
    until_min: u64,
    /// … and not after.
    until_max: u64,
    /// When its EXTEND was answered: what was looked at before is told of the lease that it had then.
    extended_ns: u64,
    /// It may be over, and nobody knows.
    doubtful: bool,
}

/// A message of the queue that was handed out to somebody.
#[derive(Clone, Debug, Default)]
struct Item {
    claims: Vec<Claim>,
    /// Who had it, and until when at most.
    past: Vec<(ConnectionId, u64)>,
    /// Answers that it stood in, ever.
    answers: u64,
    /// So many deliveries the broker knows of for sure.
    counted: u64,
    told_ns: u64,
    /// Since its confirmation was answered. It is never handed out again.
    confirmed_ns: Option<u64>,
    /// A confirmation was asked for, and never answered.
    maybe_confirmed: bool,
    /// A confirmation was answered once, of this queue or of one before it.
    was_confirmed: bool,
    /// When it became due again: not before, and not after. `None`: nobody knows.
    due: Option<(u64, u64)>,
    stolen_ns: u64,
    /// Whether anybody ever asked for its ABORT, for its STEAL.
    may_be_aborted: bool,
    may_be_stolen: bool,
}

/// A line of `PENDING`: the offset, its deliveries, and who has it for how many milliseconds more.
pub type Pending = (u64, u64, Option<(u64, u64)>);

/// What a dead letter says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Letter {
    /// Its message's offset.
    pub offset: u64,
    /// How often that was handed out.
    pub deliveries: u64,
    /// What happened then.
    pub reason: String,
}

/// What holds beside what the queue has seen.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Messages that one connection may have reserved.
    pub reserved_max: u64,
    /// Messages that may be pending.
    pub pending_max: u64,
    /// How often a message is handed out.
    pub deliveries_max: Option<u64>,
    /// A reply is as long as it has to be: what was given back stands in it in its order.
    pub whole_replies: bool,
}

/// What was certain of the topic when a request was sent, or is.
#[derive(Clone, Copy, Debug)]
pub struct Topic {
    /// Everything below was durable when it was asked.
    pub firm_end: u64,
    /// Everything from here on is there.
    pub start_max: u64,
    /// Nothing has failed that excuses that a message is not handed out.
    pub is_well: bool,
    /// A read failed, in whatever life: one that was never handed out may have been put back.
    pub reads_failed: bool,
}

/// One work queue, as far as clients know it.
#[derive(Clone, Debug, Default)]
pub struct WorkQueue {
    items: BTreeMap<u64, Item>,
    open: BTreeMap<u64, Open>,
    epoch: u32,
    /// It was answered for, and nobody has asked for its deletion since.
    pub exists: bool,
    /// Somebody has asked for it.
    pub may_exist: bool,
    /// How often it, or its topic, may have been deleted.
    pub deletions: u64,
    /// Deletions that may still be carried out in this life.
    deleting: u64,
    /// RESERVEs that were never answered: each may have handed out anything, once.
    unknown: u64,
    /// When RESERVEs of a connection have ended, answered or not.
    reserves_ended: Vec<(ConnectionId, u64)>,
    /// Of a message, the letters that tell of its death, be it of this queue or of one before it.
    letters: BTreeMap<u64, BTreeSet<u64>>,
    /// Those of this queue, each with one of its letters.
    dead: BTreeMap<u64, u64>,
    /// The auditor has found it empty.
    pub drained: bool,
}

impl Claim {
    fn is_of(&self, connection: ConnectionId) -> bool {
        self.connection == connection
    }
}

impl WorkQueue {
    // ---- what is asked ------------------------------------------------------------------------------------------------

    /// A request is sent.
    pub fn asked(&mut self, id: u64, connection: ConnectionId, now_ns: u64, wish: Wish) {
        match &wish {
            Wish::Reserve { .. } => self.may_exist = true,
            Wish::Delete => {
                self.deletions += 1;
                self.deleting += 1;
                self.begin_epoch();
            }
            Wish::Abort { offset, .. } => self.item(*offset).may_be_aborted = true,
            Wish::Steal(offset) => self.item(*offset).may_be_stolen = true,
            _ => {}
        }
        let (existed, epoch) = (self.exists, self.epoch);
        self.open.insert(id, Open { connection, asked_ns: now_ns, wish, existed, epoch });
    }

    /// Nothing that was certain is, but that offsets were confirmed once.
    pub fn begin_epoch(&mut self) {
        self.epoch += 1;
        self.exists = false;
        self.drained = false;
        self.dead.clear();
        for item in self.items.values_mut() {
            item.claims.iter_mut().for_each(|claim| claim.doubtful = true);
            (item.counted, item.confirmed_ns, item.due) = (0, None, None);
            item.maybe_confirmed |= item.was_confirmed;
        }
    }

    /// Its topic is another one.
    pub fn topic_was_deleted(&mut self) {
        self.deletions += 1;
        self.begin_epoch();
    }

    /// Whether what an answer to this request says is about the queue that there is now, for sure.
    pub fn is_certain(&self, open: &Open) -> bool {
        open.epoch == self.epoch && self.deleting == 0
    }

    /// Takes a request off those that wait for an answer.
    pub fn take(&mut self, id: u64, now_ns: u64) -> Option<Open> {
        let open = self.open.remove(&id)?;
        if let Wish::Reserve { .. } = open.wish {
            self.reserves_ended.push((open.connection, now_ns));
        }
        Some(open)
    }

    /// A request was refused, and nothing was done.
    pub fn refused(&mut self, open: &Open) {
        if open.wish == Wish::Delete {
            self.deleting -= 1;
        }
    }

    /// A request will not be answered: it was carried out, or not.
    pub fn abandoned(&mut self, open: &Open, now_ns: u64) {
        match &open.wish {
            Wish::Reserve { .. } => {
                self.unknown += 1;
                // What it had taken is given back, as if it had never been, or as of now.
                for item in self.items.values_mut() {
                    item.due = item.due.map(|(_, max)| (0, max.max(now_ns)));
                }
            }
            Wish::Confirm(offsets) => {
                for offset in offsets {
                    self.item(*offset).maybe_confirmed = true;
                }
            }
            Wish::Abort { offset, .. } | Wish::Steal(offset) => {
                let item = self.item(*offset);
                item.claims.iter_mut().for_each(|claim| claim.doubtful = true);
                (item.due, item.stolen_ns) = (None, now_ns);
            }
            Wish::Extend { offset, .. } => {
                let connection = open.connection;
                let claims = self.item(*offset).claims.iter_mut().filter(|claim| claim.is_of(connection));
                claims.for_each(|claim| (claim.doubtful, claim.until_max) = (true, u64::MAX));
            }
            // It stays under way until the process ends.
            Wish::Delete | Wish::Look => {}
        }
    }

    /// A connection is gone, and its leases with it.
    pub fn disconnected(&mut self, connection: ConnectionId, now_ns: u64) {
        let ids: Vec<u64> =
            self.open.iter().filter(|(_, open)| open.connection == connection).map(|(id, _)| *id).collect();
        for id in ids {
            let open = self.take(id, now_ns).expect("just seen");
            self.abandoned(&open, now_ns);
        }
        for item in self.items.values_mut() {
            item.end_claims(|claim| claim.is_of(connection).then_some((claim.until_min.min(now_ns), now_ns)), now_ns);
        }
    }

    /// The process has ended, and all leases with it.
    pub fn process_ended(&mut self, end: End, count_is_lost: bool, clock_was_set: bool, now_ns: u64) {
        let open = std::mem::take(&mut self.open);
        open.values().for_each(|open| self.abandoned(open, now_ns));
        if self.deleting > 0 {
            self.deleting = 0;
            self.begin_epoch();
        }
        self.reserves_ended.clear();
        for item in self.items.values_mut() {
            // Where the clock was set back, one that is over may go on once more.
            let delayed = item.due.is_none_or(|(_, max)| max > now_ns) || clock_was_set && item.may_be_aborted;
            item.end_claims(|_| Some((0, 0)), now_ns);
            // A delay goes on by the wall clock, which may be set.
            item.due = if delayed && item.claims.is_empty() && item.due != Some((0, 0)) { None } else { Some((0, 0)) };
            if matches!(end, End::PowerLost | End::Killed { after_failure: true }) || count_is_lost {
                item.counted = 0;
            }
            item.past.clear();
        }
    }

    fn item(&mut self, offset: u64) -> &mut Item {
        self.items.entry(offset).or_default()
    }

    // ---- what may be --------------------------------------------------------------------------------------------------

    fn open_for(&self, offset: u64) -> impl Iterator<Item = &Open> {
        self.open.values().filter(move |open| match &open.wish {
            Wish::Confirm(offsets) => offsets.contains(&offset),
            Wish::Abort { offset: of, .. } | Wish::Extend { offset: of, .. } | Wish::Steal(of) => *of == offset,
            _ => false,
        })
    }

    /// Whether the claim may have ended by now.
    fn may_be_over(&self, offset: u64, claim: &Claim, now_ns: u64) -> bool {
        let ends = |open: &Open| match open.wish {
            Wish::Steal(_) => true,
            Wish::Extend { lease_ns, .. } => claim.is_of(open.connection) && open.asked_ns + lease_ns <= now_ns,
            _ => claim.is_of(open.connection),
        };
        claim.doubtful || now_ns >= claim.until_min || self.open_for(offset).any(ends)
    }

    fn runs_out_at_the_latest(&self, offset: u64, claim: &Claim) -> u64 {
        let extends = |open: &Open| claim.is_of(open.connection) && matches!(open.wish, Wish::Extend { .. });
        if self.open_for(offset).any(extends) { u64::MAX } else { claim.until_max }
    }

    /// Whether a confirmation of it may have been carried out.
    fn may_be_confirmed(&self, offset: u64) -> bool {
        let item = self.items.get(&offset);
        item.is_some_and(|item| item.confirmed_ns.is_some() || item.maybe_confirmed)
            || self.open_for(offset).any(|open| matches!(open.wish, Wish::Confirm(_)))
    }

    /// So often it may have been handed out.
    fn deliveries_at_most(&self, offset: u64) -> u64 {
        let open = self.open.values().filter(|open| matches!(open.wish, Wish::Reserve { .. })).count() as u64;
        self.items.get(&offset).map_or(0, |item| item.answers) + self.unknown + open
    }

    fn may_be_dying(&self, offset: u64, bounds: &Bounds) -> bool {
        bounds.deliveries_max.is_some_and(|max| self.deliveries_at_most(offset) >= max)
    }

    /// Whether it may be done with, in one of the ways that there are: then nothing keeps it in the topic (P12).
    pub fn may_be_done(&self, offset: u64, bounds: &Bounds) -> bool {
        self.deleting > 0 || !self.exists || self.may_be_confirmed(offset) || self.may_be_dying(offset, bounds)
    }

    /// It was packed away: whoever does not know that it was confirmed, be it a queue that is made anew, is not handed it.
    pub fn may_be_gone(&mut self, offset: u64) {
        self.item(offset).maybe_confirmed = true;
    }

    /// Whether its confirmation was answered, in this queue.
    pub fn is_confirmed(&self, offset: u64) -> bool {
        self.items.get(&offset).is_some_and(|item| item.confirmed_ns.is_some())
    }

    /// So many deliveries of it the broker knows of for sure, if the answer to this RESERVE says anything of that.
    pub fn counted(&self, offset: u64, open: &Open) -> u64 {
        let counted = self.items.get(&offset).map_or(0, |item| item.counted);
        // One that sent its confirmation before it got this answer may be done with it.
        if self.is_certain(open) && !self.may_be_confirmed(offset) { counted } else { 0 }
    }

    /// Offsets whose confirmation was answered.
    pub fn confirmed(&self) -> impl Iterator<Item = u64> {
        self.items.iter().filter(|(_, item)| item.confirmed_ns.is_some()).map(|(offset, _)| *offset)
    }

    /// Whether anybody may ever have asked for its confirmation.
    pub fn was_asked_to_confirm(&self, offset: u64) -> bool {
        self.may_be_confirmed(offset) || self.items.get(&offset).is_some_and(|item| item.was_confirmed)
    }

    /// Whether it could be reserved all the time since `since_ns`.
    fn is_ready(&self, offset: u64, since_ns: u64, topic: &Topic, bounds: &Bounds) -> bool {
        let is_free = match self.items.get(&offset) {
            // It was never handed out.
            None => offset < topic.firm_end,
            Some(item) if item.answers == 0 => offset < topic.firm_end,
            Some(item) => {
                let due = match &item.claims[..] {
                    [] => item.due.map(|(_, max)| max),
                    claims if claims.iter().any(|claim| claim.doubtful) => None,
                    claims => claims.iter().map(|claim| self.runs_out_at_the_latest(offset, claim)).max(),
                };
                due.is_some_and(|due| due < since_ns)
            }
        };
        is_free
            && self.deleting == 0
            && offset >= topic.start_max
            && !self.may_be_confirmed(offset)
            && !self.may_be_dying(offset, bounds)
            && !self.dead.contains_key(&offset)
    }

    /// Whether a RESERVE of somebody else may have had messages in its hands since then.
    fn others_reserve(&self, since_ns: u64) -> bool {
        self.open.values().any(|open| matches!(open.wish, Wish::Reserve { .. }))
            || self.reserves_ended.iter().rev().skip(1).any(|(_, at_ns)| *at_ns >= since_ns)
    }

    /// What one connection has reserved, for sure and at most.
    pub fn reserved_by(&self, connection: ConnectionId, now_ns: u64) -> (u64, u64) {
        let (mut sure, mut at_most) = (0, 0);
        for (offset, item) in &self.items {
            let own = item.claims.iter().filter(|claim| claim.is_of(connection));
            let live: Vec<bool> = own.map(|claim| !self.may_be_over(*offset, claim, now_ns)).collect();
            at_most += u64::from(!live.is_empty());
            sure += u64::from(live.contains(&true));
        }
        (sure, at_most)
    }

    /// What is pending: handed out, and neither confirmed nor dead. For sure.
    fn pending_for_sure(&self, topic: &Topic, bounds: &Bounds) -> impl Iterator<Item = u64> {
        let is_pending = |offset: u64, item: &Item| {
            (item.counted > 0 || !item.claims.iter().all(|claim| claim.doubtful))
                && !self.may_be_confirmed(offset)
                && !self.may_be_dying(offset, bounds)
                && offset >= topic.start_max
        };
        let pending: Vec<u64> =
            self.items.iter().filter(|(at, item)| is_pending(**at, item)).map(|(at, _)| *at).collect();
        pending.into_iter()
    }

    /// How many may be pending: a confirmation that is under way may not have come yet.
    pub fn pending_at_most(&self, open: &Open) -> u64 {
        let may_be = |item: &&Item| {
            item.answers > 0 && item.confirmed_ns.is_none_or(|confirmed_ns| confirmed_ns >= open.asked_ns)
        };
        // What a RESERVE without an answer has handed out is as many as there may be.
        if self.unknown > 0 || self.others_reserve(open.asked_ns) {
            u64::MAX
        } else {
            self.items.values().filter(may_be).count() as u64
        }
    }

    // ---- what is answered ---------------------------------------------------------------------------------------------

    /// RESERVE was answered with these, each with its count if that was told; the request has been taken off before.
    pub fn handed_out(
        &mut self,
        name: &str,
        open: &Open,
        messages: &[(u64, Option<u64>)],
        topic: &Topic,
        bounds: &Bounds,
        now_ns: u64,
    ) -> Check {
        let Wish::Reserve { lease_ns, wait_ns } = open.wish else { return Ok(()) };
        let certain = self.is_certain(open);
        if certain {
            self.exists = true;
            self.in_order(name, open, wait_ns, messages, topic, bounds, now_ns)?;
        }
        for (offset, told) in messages {
            self.handed_out_one(name, open, *offset, *told, lease_ns, certain, bounds, now_ns)?;
        }
        if certain {
            let pending = self.pending_for_sure(topic, bounds).count() as u64;
            let (reserved, _) = self.reserved_by(open.connection, now_ns);
            if pending > bounds.pending_max {
                return broken("P13", format!("{name} has {pending} messages pending, over --max-pending"));
            }
            if reserved > bounds.reserved_max {
                let words = format!("connection {} has {reserved} of {name}, over --max-reserved", open.connection.0);
                return broken("P13", words);
            }
        }
        Ok(())
    }

    /// What has waited for longer comes first, and nothing that could be handed out is kept back (P6).
    #[expect(clippy::too_many_arguments, reason = "what holds and what was said")]
    fn in_order(
        &self,
        name: &str,
        open: &Open,
        wait_ns: u64,
        messages: &[(u64, Option<u64>)],
        topic: &Topic,
        bounds: &Bounds,
        now_ns: u64,
    ) -> Check {
        if !topic.is_well || self.others_reserve(open.asked_ns) {
            return Ok(());
        }
        if messages.is_empty() {
            // One that waits sees at the end of it what there is.
            let looked_ns = open.asked_ns.saturating_add(wait_ns);
            let new = (topic.start_max..topic.firm_end).find(|offset| self.is_ready(*offset, looked_ns, topic, bounds));
            let ready = self.items.keys().copied().find(|offset| self.is_ready(*offset, looked_ns, topic, bounds));
            return match ready.or(new) {
                Some(offset) => {
                    broken("P6", format!("a RESERVE of {name} found nothing, and offset {offset} is there"))
                }
                None => Ok(()),
            };
        }
        if !bounds.whole_replies || self.unknown > 0 {
            return Ok(());
        }
        let earliest = |offset: u64| match self.items.get(&offset) {
            Some(item) if item.answers > 0 => match &item.claims[..] {
                [] => item.due.map_or(0, |(min, _)| min),
                claims if claims.iter().any(|claim| claim.doubtful) => 0,
                claims => claims.iter().map(|claim| claim.until_min).min().unwrap_or(0),
            },
            _ if topic.reads_failed => 0,
            _ => now_ns,
        };
        let place = |offset: u64| messages.iter().position(|(other, _)| *other == offset);
        // What a power loss has taken from the journal is new again, and comes last.
        for offset in self.items.keys().copied().filter(|offset| self.items[offset].counted > 0) {
            if !self.is_ready(offset, open.asked_ns, topic, bounds) {
                continue;
            }
            let due = self.due_at_the_latest(offset);
            let before = &messages[..place(offset).unwrap_or(messages.len())];
            if let Some((other, _)) = before.iter().find(|(other, _)| earliest(*other) > due) {
                let later_us = (earliest(*other) - due) / 1000;
                let words =
                    format!("{name} hands out {other}, and offset {offset} became due {later_us} µs before that");
                return broken("P15", words);
            }
        }
        Ok(())
    }

    fn due_at_the_latest(&self, offset: u64) -> u64 {
        let Some(item) = self.items.get(&offset) else { return u64::MAX };
        match &item.claims[..] {
            [] => item.due.map_or(u64::MAX, |(_, max)| max),
            claims => claims.iter().map(|claim| claim.until_max).max().unwrap_or(u64::MAX),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "what holds and what was said")]
    fn handed_out_one(
        &mut self,
        name: &str,
        open: &Open,
        offset: u64,
        told: Option<u64>,
        lease_ns: u64,
        certain: bool,
        bounds: &Bounds,
        now_ns: u64,
    ) -> Check {
        let to = open.connection;
        let until_min = open.asked_ns + lease_ns;
        let item = self.items.get(&offset).cloned().unwrap_or_default();
        let words = |what: &str| format!("{name} handed offset {offset} out to connection {}, {what}", to.0);
        // Whether this lease may have been over by then, and its answer only be told now: others were answered before it.
        let may_have_ended = |by_ns: u64| {
            let stolen =
                item.stolen_ns >= open.asked_ns || self.open_for(offset).any(|open| open.wish == Wish::Steal(offset));
            let extended = self.open_for(offset).any(|other| other.connection == to);
            open.asked_ns <= by_ns && (until_min <= by_ns || stolen || extended)
        };
        if certain {
            if let Some(confirmed_ns) = item.confirmed_ns
                && !may_have_ended(confirmed_ns)
            {
                return broken("P15", words("and its confirmation was answered before"));
            }
            if let Some(letter) = self.dead.get(&offset) {
                return broken("P15", words(&format!("and it is dead: letter {letter}")));
            }
        }
        let mut is_in_order = item.told_ns < open.asked_ns;
        for claim in &item.claims {
            let is_over = self.may_be_over(offset, claim, now_ns);
            let was_before = open.asked_ns <= claim.told_ns && may_have_ended(claim.told_ns);
            if certain && !is_over && !was_before {
                let until_ms = claim.until_min.saturating_sub(now_ns) / 1_000_000;
                let whose = format!("and connection {} has it for {until_ms} ms more", claim.connection.0);
                return broken("P15", words(&whose));
            }
            is_in_order |= !was_before && !claim.doubtful;
        }
        let (answers, counted) = (item.answers, item.counted);
        let at_most = self.deliveries_at_most(offset) + 1;
        if let Some(told) = told {
            if told > at_most {
                return broken("P15", words(&format!("as delivery {told}, and there were at most {at_most}")));
            }
            if certain && is_in_order && told < counted + 1 {
                return broken("P15", words(&format!("as delivery {told}, and there were {counted} before")));
            }
        }
        let of_max = told.unwrap_or(if certain && is_in_order { counted + 1 } else { 1 });
        if let Some(max) = bounds.deliveries_max.filter(|max| of_max > *max) {
            return broken("P15", words(&format!("for the {of_max}. time, over max-deliveries={max}")));
        }
        let mut claims: Vec<Claim> = Vec::new();
        let mut past = item.past;
        for claim in item.claims {
            let may_be_later = open.asked_ns <= claim.told_ns && may_have_ended(claim.told_ns);
            if certain && !may_be_later && !claim.doubtful {
                past.push((claim.connection, now_ns));
            } else {
                claims.push(Claim { doubtful: true, ..claim });
            }
        }
        // One that was taken away before it was told of is nobody's.
        let was_stolen = item.stolen_ns >= open.asked_ns;
        let doubtful = !certain || !claims.is_empty() || item.confirmed_ns.is_some() || was_stolen;
        claims.push(Claim {
            connection: to,
            told_ns: now_ns,
            until_min,
            until_max: now_ns + lease_ns,
            extended_ns: 0,
            doubtful,
        });
        let item = self.item(offset);
        (item.claims, item.past) = (claims, past);
        item.answers = answers + 1;
        item.told_ns = now_ns;
        item.due = None;
        if certain {
            // Whoever asked for its confirmation before came too late.
            item.maybe_confirmed &= !is_in_order;
            item.counted = told.unwrap_or(counted + u64::from(is_in_order)).max(counted);
        }
        Ok(())
    }

    /// Whether the connection may have had it when a request came that was sent then.
    fn may_have(&self, offset: u64, connection: ConnectionId, asked_ns: u64) -> bool {
        self.items.get(&offset).is_some_and(|item| {
            let mut own = item.claims.iter().filter(|claim| claim.is_of(connection));
            own.any(|claim| claim.doubtful || asked_ns <= self.runs_out_at_the_latest(offset, claim))
        })
    }

    /// That a message is this connection's, for a request that was answered as if it were.
    fn has(&self, name: &str, open: &Open, offset: u64, done: &str) -> Check {
        // It may have been somebody else's since, and this only be told now: not where it was confirmed.
        let had = |(of, until_ns): &(ConnectionId, u64)| *of == open.connection && *until_ns >= open.asked_ns;
        let had_it = self.items.get(&offset).is_some_and(|item| item.past.iter().any(had));
        let is_told_late = had_it && !matches!(open.wish, Wish::Confirm(_));
        if is_told_late || self.may_have(offset, open.connection, open.asked_ns) || !self.is_certain(open) {
            return Ok(());
        }
        let connection = open.connection.0;
        broken(
            "P15",
            format!("offset {offset} of {name} was {done} by connection {connection}, which does not have it"),
        )
    }

    /// CONFIRMED.
    pub fn confirmed_by(&mut self, name: &str, open: &Open, now_ns: u64) -> Check {
        let Wish::Confirm(offsets) = &open.wish else { return Ok(()) };
        let certain = self.is_certain(open);
        for offset in offsets {
            if certain && self.is_confirmed(*offset) {
                return broken("P15", format!("offset {offset} of {name} was confirmed twice"));
            }
            if certain && let Some(letter) = self.dead.get(offset) {
                return broken(
                    "P15",
                    format!("offset {offset} of {name} was confirmed, and it is dead: letter {letter}"),
                );
            }
            self.has(name, open, *offset, "confirmed")?;
        }
        for offset in offsets {
            let item = self.item(*offset);
            item.was_confirmed = true;
            if certain {
                item.confirmed_ns = Some(now_ns);
                let claims = std::mem::take(&mut item.claims);
                item.past.extend(claims.iter().map(|claim| (claim.connection, now_ns)));
            } else {
                item.maybe_confirmed = true;
            }
        }
        Ok(())
    }

    /// ABORTED.
    pub fn aborted(&mut self, name: &str, open: &Open, now_ns: u64) -> Check {
        let Wish::Abort { offset, delay_ns } = open.wish else { return Ok(()) };
        self.has(name, open, offset, "given back")?;
        let due = (open.asked_ns + delay_ns, now_ns + delay_ns);
        let connection = open.connection;
        self.item(offset).end_claims(|claim| claim.is_of(connection).then_some(due), now_ns);
        Ok(())
    }

    /// EXTENDED.
    pub fn extended(&mut self, name: &str, open: &Open, now_ns: u64) -> Check {
        let Wish::Extend { offset, lease_ns } = open.wish else { return Ok(()) };
        self.has(name, open, offset, "extended")?;
        let connection = open.connection;
        let mut own: Vec<&mut Claim> =
            self.item(offset).claims.iter_mut().filter(|claim| claim.is_of(connection)).collect();
        let (min, max) = (open.asked_ns + lease_ns, now_ns + lease_ns);
        own.iter_mut().for_each(|claim| claim.extended_ns = now_ns);
        match &mut own[..] {
            [claim] => (claim.until_min, claim.until_max) = (min, max),
            several => several.iter_mut().for_each(|claim| {
                (claim.until_min, claim.until_max) = (claim.until_min.min(min), claim.until_max.max(max));
            }),
        }
        Ok(())
    }

    /// STOLEN.
    pub fn stolen(&mut self, name: &str, open: &Open, now_ns: u64) -> Check {
        let Wish::Steal(offset) = open.wish else { return Ok(()) };
        let was_reserved = self.items.get(&offset).is_some_and(|item| {
            !item.claims.is_empty() || item.past.iter().any(|(_, until_ns)| *until_ns >= open.asked_ns)
        });
        let reserves = self.open.values().any(|open| matches!(open.wish, Wish::Reserve { .. }))
            || self.reserves_ended.iter().any(|(_, at_ns)| *at_ns >= open.asked_ns);
        if !was_reserved && !reserves && self.is_certain(open) {
            return broken("P15", format!("offset {offset} of {name} was stolen, and nobody had it"));
        }
        let asked_ns = open.asked_ns;
        let item = self.item(offset);
        item.stolen_ns = now_ns;
        item.claims.iter_mut().filter(|claim| claim.told_ns >= asked_ns).for_each(|claim| claim.doubtful = true);
        item.end_claims(|claim| (claim.told_ns < asked_ns).then_some((asked_ns.min(claim.until_min), now_ns)), now_ns);
        Ok(())
    }

    /// NOT_RESERVED: none of these was the connection's, or not all.
    pub fn not_reserved(&self, name: &str, open: &Open, now_ns: u64) -> Check {
        if !self.is_certain(open) {
            return Ok(());
        }
        let surely = |offset: &u64| {
            self.items.get(offset).is_some_and(|item| {
                item.claims.iter().any(|claim| {
                    let is_meant = claim.is_of(open.connection) || matches!(open.wish, Wish::Steal(_));
                    is_meant && claim.told_ns <= open.asked_ns && !self.may_be_over(*offset, claim, now_ns)
                })
            })
        };
        let is_wrong = match &open.wish {
            Wish::Confirm(offsets) => offsets.iter().all(surely),
            Wish::Abort { offset, .. } | Wish::Extend { offset, .. } | Wish::Steal(offset) => surely(offset),
            _ => true,
        };
        if is_wrong {
            let words =
                format!("{:?} in {name} by connection {} was NOT_RESERVED, and it is", open.wish, open.connection.0);
            return broken("P15", words);
        }
        Ok(())
    }

    /// The queue was deleted.
    pub fn deleted(&mut self) {
        self.deleting -= 1;
        self.begin_epoch();
    }

    /// One line of `PENDING`.
    pub fn is_pending(
        &self,
        name: &str,
        open: &Open,
        (offset, deliveries, reserved): Pending,
        bounds: &Bounds,
        now_ns: u64,
    ) -> Check {
        let words = |what: &str| format!("PENDING of {name} says of offset {offset} {what}");
        if !self.is_certain(open) {
            return Ok(());
        }
        let at_most = self.deliveries_at_most(offset)
            + self.reserves_ended.iter().filter(|(_, at_ns)| *at_ns >= open.asked_ns).count() as u64;
        if deliveries > at_most || bounds.deliveries_max.is_some_and(|max| deliveries > max) {
            return broken("P15", words(&format!("that there were {deliveries} deliveries, of at most {at_most}")));
        }
        let item = self.items.get(&offset);
        if let Some(item) = item {
            if item.told_ns < open.asked_ns && deliveries < item.counted {
                let counted = item.counted;
                return broken(
                    "P15",
                    words(&format!("that there were {deliveries} deliveries, and there were {counted}")),
                );
            }
            if item.confirmed_ns.is_some_and(|at_ns| at_ns < open.asked_ns) {
                return broken("P15", words("that it is pending, and its confirmation was answered"));
            }
        }
        let held = item.into_iter().flat_map(|item| &item.claims).find(|claim| {
            claim.told_ns.max(claim.extended_ns) < open.asked_ns && !self.may_be_over(offset, claim, now_ns)
        });
        match (reserved, held) {
            (Some((connection, left_ms)), Some(claim)) => {
                let min = claim.until_min.saturating_sub(now_ns) / 1_000_000;
                let max = self.runs_out_at_the_latest(offset, claim).saturating_sub(open.asked_ns).div_ceil(1_000_000);
                if claim.connection.0 != connection || left_ms < min || left_ms > max {
                    let whose = claim.connection.0;
                    let told = format!("that connection {connection} has it for {left_ms} ms more");
                    return broken("P15", words(&format!("{told}: it is of {whose}, for {min} to {max} ms")));
                }
            }
            (None, Some(claim)) => {
                let whose = claim.connection.0;
                return broken("P15", words(&format!("that it is nobody's, and connection {whose} has it")));
            }
            (Some((connection, _)), None) => {
                let is_of = |claim: &Claim| claim.connection.0 == connection;
                let may_have_it = item.is_some_and(|item| {
                    item.claims.iter().any(is_of)
                        || item.past.iter().any(|(of, until_ns)| of.0 == connection && *until_ns >= open.asked_ns)
                });
                let reserves = self
                    .open
                    .values()
                    .any(|other| other.connection.0 == connection && matches!(other.wish, Wish::Reserve { .. }))
                    || self.reserves_ended.iter().any(|(of, at)| of.0 == connection && *at >= open.asked_ns);
                if !may_have_it && !reserves {
                    return broken("P15", words(&format!("that connection {connection} has it, which does not")));
                }
            }
            (None, None) => {}
        }
        Ok(())
    }

    /// What `PENDING` listed from `from` on, up to `end`: nothing is missing.
    pub fn are_all(
        &self,
        name: &str,
        open: &Open,
        listed: &[u64],
        (from, end): (u64, u64),
        topic: &Topic,
        bounds: &Bounds,
    ) -> Check {
        let mut missing = self.pending_for_sure(topic, bounds).filter(|offset| {
            (from..end).contains(offset) && !listed.contains(offset) && self.items[offset].told_ns < open.asked_ns
        });
        match missing.next().filter(|_| self.is_certain(open)) {
            Some(offset) => broken("P15", format!("PENDING of {name} leaves out offset {offset}")),
            None => Ok(()),
        }
    }

    /// A line of `QUEUES`: everything below `floor` is done, and nothing from `next` on was handed out.
    pub fn stands_at(
        &mut self,
        name: &str,
        open: &Open,
        (floor, next): (u64, u64),
        topic: &Topic,
        bounds: &Bounds,
    ) -> Check {
        if !self.is_certain(open) || !topic.is_well {
            return Ok(());
        }
        let is_open = |offset: &u64| {
            let item = self.items.get(offset);
            item.is_some_and(|item| item.told_ns < open.asked_ns && item.claims.iter().any(|claim| !claim.doubtful))
                || item.is_none_or(|item| item.answers == 0)
        };
        let undone = (topic.start_max..floor)
            .find(|offset| !self.may_be_confirmed(*offset) && !self.may_be_dying(*offset, bounds) && is_open(offset));
        if let Some(undone) = undone {
            return broken("P15", format!("QUEUES says that {name} is done up to {floor}, and offset {undone} is not"));
        }
        let handed_out = self.items.iter().rfind(|(_, item)| item.counted > 0 && item.told_ns < open.asked_ns);
        match handed_out.filter(|(offset, _)| **offset >= next) {
            Some((offset, _)) => {
                broken("P15", format!("QUEUES says that {name} goes on at {next}, and {offset} was handed out"))
            }
            None => Ok(()),
        }
    }

    // ---- the dead -----------------------------------------------------------------------------------------------------

    /// A letter is read among the dead ones, at this offset there. `is_known`: the broker knows which letters there are.
    pub fn died(&mut self, name: &str, letter: &Letter, at: u64, is_known: bool, bounds: &Bounds) -> Check {
        let offset = letter.offset;
        let words = |what: &str| format!("dead letter {at} tells of offset {offset} of {name}, {what}");
        if self.is_confirmed(offset) && self.deletions == 0 {
            return broken("P15", words("and its confirmation was answered"));
        }
        let at_most = self.deliveries_at_most(offset);
        let max = bounds.deliveries_max.unwrap_or(u64::MAX);
        if letter.deliveries < max || letter.deliveries > at_most {
            let told = letter.deliveries;
            return broken("P15", words(&format!("with {told} deliveries; {max} to {at_most} would be right")));
        }
        let item = self.items.get(&offset);
        let is_possible = match &letter.reason[..] {
            "expired" | "disconnected" | "restarted" => true,
            "aborted" => item.is_some_and(|item| item.may_be_aborted),
            "stolen" => item.is_some_and(|item| item.may_be_stolen),
            _ => false,
        };
        if !is_possible {
            return broken("P15", words(&format!("because it was {}, which it was not", letter.reason)));
        }
        let letters = self.letters.entry(offset).or_default();
        letters.insert(at);
        // One that was made anew may hand out, and bury, again.
        if is_known && letters.len() as u64 > 1 + self.deletions {
            let letters = letters.clone();
            return broken("P15", words(&format!("and so do others: {letters:?}")));
        }
        if self.deletions == 0 {
            self.dead.insert(offset, at);
        }
        Ok(())
    }

    /// Whether a letter tells of it.
    pub fn has_letter(&self, offset: u64) -> bool {
        self.dead.contains_key(&offset)
    }

    /// At the end, when it was found empty: what is there and was neither confirmed nor buried.
    pub fn lost(&self, topic: &Topic) -> Option<(u64, bool)> {
        let is_lost =
            |offset: &u64| !self.has_letter(*offset) && !self.was_asked_to_confirm(*offset) && self.deletions == 0;
        let lost = (topic.start_max..topic.firm_end).find(is_lost)?;
        Some((lost, self.items.get(&lost).is_some_and(|item| item.answers > 0)))
    }
}

impl Item {
    /// Ends the claims of which `due` says from when to when they have ended.
    fn end_claims(&mut self, due: impl Fn(&Claim) -> Option<(u64, u64)>, now_ns: u64) {
        let mut ended = None;
        let mut left = Vec::new();
        for claim in std::mem::take(&mut self.claims) {
            match due(&claim) {
                Some(due) => {
                    self.past.push((claim.connection, now_ns));
                    // One that may have been over long ago says nothing of when it became due.
                    ended = (!claim.doubtful).then_some(due);
                }
                None => left.push(claim),
            }
        }
        if left.is_empty() && ended.is_some() {
            self.due = ended;
        }
        self.claims = left;
    }
}
