//! The reference broker: maps and vectors, no disk. It says which outcomes are legal, and shares no code with the real one.
//!
//! It is told what was asked, what was answered, and how the process ended; every answer is held against what came
//! before. A request without an answer is *indeterminate*: it may have happened or not, at most once and whole.

use bytes::Bytes;
use plimsoll_core::record::LogId;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A promise that was not kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Broken {
    /// `P1` … `P17`.
    pub promise: &'static str,
    /// What was seen, and what it contradicts.
    pub words: String,
}

/// The promises of docs/promises.md by number, in a few words.
pub const PROMISES: [(&str, &str); 17] = [
    ("P1", "durable survives"),
    ("P2", "dense offsets"),
    ("P3", "reply after effect"),
    ("P4", "readers below the line"),
    ("P5", "progress is kept"),
    ("P6", "at least once"),
    ("P7", "corruption is refused"),
    ("P8", "a torn tail never blocks"),
    ("P9", "recovery can be interrupted"),
    ("P10", "fail-stop"),
    ("P11", "a full disk is not a crash"),
    ("P12", "retention keeps what it must"),
    ("P13", "bounded"),
    ("P14", "one reply"),
    ("P15", "reserve, confirm"),
    ("P16", "dedup"),
    ("P17", "same seed, same run"),
];

/// Shorthand for a check.
pub type Check = Result<(), Broken>;

pub(crate) fn broken<T>(promise: &'static str, words: String) -> Result<T, Broken> {
    Err(Broken { promise, words })
}

/// How a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// It was stopped, and said that all was forced.
    Stopped,
    /// It was killed, or ended by itself after a failure; the page cache is still there.
    Killed {
        /// Whether a force or a write had failed: then the cache is not to be believed (P10).
        after_failure: bool,
    },
    /// The power went.
    PowerLost,
}

/// What became of one request to publish.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It was not answered: it may be stored once, or not.
    Unanswered,
    /// It was answered by an error: nothing of it may be stored.
    Refused,
    /// It was given this offset, so it can be stored there and nowhere else.
    Named(u64),
}

/// One message of a request to publish: every one has a payload of its own.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// Where to.
    pub topic: String,
    /// The value.
    pub payload: Bytes,
    /// The key.
    pub key: Option<Vec<u8>>,
    /// The headers.
    pub headers: Vec<(Vec<u8>, Vec<u8>)>,
    /// What became of it.
    pub fate: Fate,
    /// For a message of a batch: the number of the batch's first, and how many it has.
    pub batch: Option<(usize, usize)>,
    /// For a message with an id, or the first one of a batch with an id: what its repetitions came to.
    pub repeats: Option<Repeats>,
    /// The first and the last of the logs of its topic's name ([`Log::generation`]) that it may have come to.
    generations: (u32, u32),
}

/// A request that has an id and may be sent more than once (P16).
#[derive(Clone, Debug)]
pub struct Repeats {
    /// Producer and sequence.
    pub id: (u64, u32),
    /// Where it stands, or stood: `true` where a crash may have taken it since.
    places: BTreeMap<u64, bool>,
    /// How often it was sent.
    asked: u32,
    /// … and not answered, or by a halt: each of those may have stored it.
    unknown: u32,
}

impl Repeats {
    /// Not sent yet.
    pub fn new(id: (u64, u32)) -> Repeats {
        Repeats { id, places: BTreeMap::new(), asked: 0, unknown: 0 }
    }

    /// Whether it stands somewhere for sure.
    pub fn stands(&self) -> bool {
        self.places.values().any(|doubtful| !doubtful)
    }

    /// It is seen, or said, to stand at `offset`. If it is within the window for sure, it stands nowhere else.
    fn stands_at(&mut self, what: &str, offset: u64, is_in_window: bool) -> Check {
        if is_in_window {
            let other = self.places.iter().find(|(place, doubtful)| **place != offset && !**doubtful);
            if let Some((other, _)) = other {
                let (producer, sequence) = self.id;
                let words =
                    format!("{what} with the id {producer}:{sequence} is at {offset}, and it was stored at {other}");
                return broken("P16", words);
            }
            // Had the crash left one of those, it would have been answered.
            self.places.clear();
        }
        self.places.insert(offset, false);
        Ok(())
    }
}

impl Attempt {
    /// A message by itself, without key and headers, that is about to be sent.
    pub fn new(topic: &str, payload: Vec<u8>) -> Attempt {
        Attempt {
            topic: topic.to_owned(),
            payload: payload.into(),
            key: None,
            headers: Vec::new(),
            fate: Fate::Unanswered,
            batch: None,
            repeats: None,
            generations: (0, 0),
        }
    }

    /// Its topic was deleted while it was under way: nobody can tell to which log of that name it came.
    fn is_astray(&self) -> bool {
        self.generations.0 != self.generations.1
    }
}

/// One topic's log, as far as clients know it.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// Tells apart the logs that have had the same name, one after the other. A later one has a higher number.
    pub generation: u32,
    /// What stands under the name as far as the process can see; `None`: nothing.
    pub log_id: Option<LogId>,
    /// Whether it is there for sure.
    pub exists: bool,
    /// Somebody has asked for it, so that it may be there.
    pub may_exist: bool,
    /// The requests to delete it that may have been taken up.
    pub deletions: BTreeSet<u64>,
    /// It was deleted and no power loss can bring it back.
    pub is_gone: bool,
    /// Which attempt each offset names, as far as that is known.
    names: BTreeMap<u64, usize>,
    /// Everything below was acknowledged DURABLE or delivered: it never changes and never goes (P1, P4), unless it is purged.
    pub firm_end: u64,
    /// Everything below is gone: a client was told so. It never comes back (P12).
    pub start: u64,
    /// Everything at or above was never asked to go, nor does a policy allow it: it stays (P12).
    pub start_max: u64,
    /// What was packed away from the middle. A power loss may bring it back.
    pub packed: BTreeSet<u64>,
    /// Everything below was acknowledged WRITTEN: a killed process leaves it.
    written_end: u64,
    /// Everything below was acknowledged at all: a clean stop keeps it.
    claimed_end: u64,
    /// What the last end of a process had to leave: no offset below is given again.
    floor: u64,
    /// When each offset was stamped, as far as it was delivered with its stamp.
    pub stamps: BTreeMap<u64, i64>,
    /// The groups.
    pub groups: BTreeMap<String, Group>,
    /// The setting that clients change, as a group that is sought with every ALTER.
    pub setting: Group,
}

impl Log {
    /// Which attempt an offset names, if a client was told so and no crash can have taken it since.
    pub fn message_at(&self, offset: u64) -> Option<usize> {
        self.names.get(&offset).copied()
    }
}

/// A group's committed offset: every value that it had for sure, and what was asked for and not answered.
#[derive(Clone, Debug)]
pub struct Group {
    history: Vec<u64>,
    /// Where in the history the last SEEK was answered.
    sought_at: usize,
    /// What held before a SEEK was answered, and was told behind it: the place of the SEEK, and the value.
    told_late: Vec<(usize, u64)>,
    open: Vec<Open>,
    /// Offsets that were sent to it.
    pub delivered: BTreeSet<u64>,
    /// Whether a SEEK may have skipped some.
    pub was_sought: bool,
}

/// An ACK or SEEK without an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Open {
    /// Names it.
    pub id: u64,
    /// What it asked for; `None`: any offset (the end, a time).
    pub value: Option<u64>,
    /// Whether it may move the offset back.
    pub seek: bool,
    /// Which life of the process it was sent to.
    pub life: u32,
    /// Its connection is gone: it has been taken up by now, or never will be.
    pub abandoned: bool,
}

impl Default for Group {
    fn default() -> Group {
        Group {
            history: vec![0],
            sought_at: 0,
            told_late: Vec::new(),
            open: Vec::new(),
            delivered: BTreeSet::new(),
            was_sought: false,
        }
    }
}

impl Group {
    /// Where its history stands; for [`Group::observe`].
    pub fn moment(&self) -> usize {
        self.history.len() - 1
    }

    /// A request that may change it has been sent.
    pub fn asked(&mut self, open: Open) {
        // Back to the beginning it skips nothing.
        self.was_sought |= open.seek && open.value != Some(0);
        self.open.push(open);
    }

    /// It was refused: it did nothing.
    pub fn refused(&mut self, id: u64) {
        self.open.retain(|open| open.id != id);
    }

    /// Its connection is gone.
    pub fn abandoned(&mut self, id: u64) {
        for open in self.open.iter_mut().filter(|open| open.id == id) {
            open.abandoned = true;
        }
    }

    /// Whether the committed offset is known to have been `value` at some moment since `moment`.
    fn was(&self, value: u64, moment: usize) -> bool {
        self.history[moment..].contains(&value)
            || self.told_late.iter().any(|(before, told)| moment < *before && *told == value)
    }

    /// Whether the committed offset can have been `value` at some moment since `moment`.
    pub fn may_be(&self, value: u64, moment: usize) -> bool {
        self.was(value, moment) || self.open.iter().any(|open| open.value.is_none_or(|asked| asked == value))
    }

    /// The highest offset that may have been committed at some moment since `moment`; `None`: no bound is known.
    pub fn highest(&self, moment: usize) -> Option<u64> {
        let mut highest = *self.history[moment..].iter().max().expect("never empty");
        for open in &self.open {
            highest = highest.max(open.value?);
        }
        Some(highest)
    }

    /// An answer showed the committed offset (P5).
    pub fn observe(&mut self, what: &str, value: u64, moment: usize) -> Check {
        if !self.may_be(value, moment) {
            let asked: BTreeSet<u64> = self.open.iter().filter_map(|open| open.value).collect();
            return broken(
                "P5",
                format!(
                    "{what} is {value}, but {} was acknowledged{}",
                    self.history.last().expect("never empty"),
                    if asked.is_empty() { String::new() } else { format!(" and only {asked:?} asked for") }
                ),
            );
        }
        // An answer may show what held when its question was taken up, and be told behind a later one.
        let was = self.was(value, moment);
        // A SEEK was answered since the question: this may have held before it, and settles nothing.
        if moment < self.sought_at {
            self.told_late.extend((!was).then_some((self.sought_at, value)));
            return Ok(());
        }
        if !was {
            let before = *self.history.last().expect("never empty");
            self.history.push(value);
            // While SEEKs are under way nothing says which of the two came first.
            if let Some(seek) = self.open.iter().find(|open| open.seek).copied() {
                self.open.push(Open { id: 0, value: Some(before), seek: false, abandoned: true, ..seek });
            }
        }
        // An ACK never moves it back, so one below that has been taken up has no effect any more.
        if !self.open.iter().any(|open| open.seek) {
            let is_over = |open: &Open| open.abandoned && open.value.is_none_or(|asked| asked <= value);
            // It may have held until now, and an answer to an earlier question may show it later.
            let (now, held) = (self.history.len() - 1, self.open.iter().filter(|open| is_over(open)));
            self.told_late.extend(held.filter_map(|open| Some((now, open.value?))));
            self.open.retain(|open| !is_over(open));
        }
        Ok(())
    }

    /// Whether it may have been moved back to the beginning since `moment`.
    pub fn may_be_back(&self, moment: usize) -> bool {
        self.history[moment + 1..].contains(&0) || self.open.iter().any(|open| open.value == Some(0))
    }

    /// The answer to a request that changed it: `value` is what holds now.
    pub fn answered(&mut self, what: &str, id: u64, value: u64, moment: usize) -> Check {
        let is_news = self.history.len() - 1 == moment;
        let is_seek = self.open.iter().any(|open| open.id == id && open.seek);
        self.observe(what, value, moment)?;
        if is_news || self.history.last() == Some(&value) {
            if is_seek || self.history.last() != Some(&value) {
                self.history.push(value);
            }
            if is_seek {
                self.sought_at = self.history.len() - 1;
            }
            self.refused(id);
        } else {
            // Something else was seen since it was sent: it may have been taken up before that or after.
            for open in self.open.iter_mut().filter(|open| open.id == id) {
                (open.value, open.abandoned) = (Some(value), true);
            }
        }
        Ok(())
    }

    /// In a new life what was asked in an earlier one has happened or not: once the outcome has been seen, it is settled.
    pub fn settle_before(&mut self, life: u32) {
        self.open.retain(|open| open.life >= life);
    }
}

/// Everything that the reference broker knows.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// The logs by name.
    pub logs: BTreeMap<String, Log>,
    /// Those that have lost their names.
    pub former: Vec<(String, Log)>,
    /// The highest generation so far.
    generations: u32,
    /// Every request to publish, by the number in its payload.
    pub attempts: Vec<Attempt>,
}

impl Model {
    /// The log of a topic.
    pub fn log(&mut self, topic: &str) -> &mut Log {
        self.logs.entry(topic.to_owned()).or_default()
    }

    /// Every log that has or had the name.
    pub fn all_logs(&mut self, topic: &str) -> impl Iterator<Item = &mut Log> {
        let former = self.former.iter_mut().filter(move |(name, _)| name == topic).map(|(_, log)| log);
        self.logs.get_mut(topic).into_iter().chain(former)
    }

    /// The log has lost its name; what is made next under it is another one.
    pub fn begin_generation(&mut self, topic: &str) {
        self.generations += 1;
        let next = Log { generation: self.generations, ..Log::default() };
        let before = std::mem::replace(self.log(topic), next);
        self.former.push((topic.to_owned(), before));
    }

    /// One that has lost its name has it again; says which log that was in its place.
    pub fn give_back(&mut self, topic: &str, former: usize) -> Log {
        let (_, back) = self.former.remove(former);
        std::mem::replace(self.log(topic), back)
    }

    /// A request to publish is under way while another log gets the name of its topic. `is_untouched`: nobody has taken it up yet.
    pub fn goes_astray(&mut self, number: usize, is_untouched: bool) {
        let generation = self.log(&self.attempts[number].topic.clone()).generation;
        let together = self.together(number);
        let was_sent_once = self.attempts[number].repeats.as_ref().is_none_or(|repeats| repeats.asked == 1);
        for attempt in &mut self.attempts[together] {
            attempt.generations.1 = generation;
            if is_untouched && was_sent_once {
                attempt.generations.0 = generation;
            }
        }
    }

    /// Whether what was published can have come to the log that has the name now.
    pub fn is_current(&self, number: usize) -> bool {
        let attempt = &self.attempts[number];
        self.logs.get(&attempt.topic).is_some_and(|log| log.generation == attempt.generations.1)
    }

    /// The requests that have an id and may stand where they were published, in the order in which they were first sent.
    pub fn with_ids(&self) -> impl DoubleEndedIterator<Item = usize> {
        (0..self.attempts.len()).filter(|number| self.attempts[*number].repeats.is_some() && self.is_current(*number))
    }

    /// The messages that share the request of this one: all of its batch, or it alone.
    pub fn together(&self, number: usize) -> Range<usize> {
        let (first, count) = self.attempts[number].batch.unwrap_or((number, 1));
        first..first + count
    }

    /// A request to publish is sent.
    pub fn asked(&mut self, number: usize) {
        let generation = self.log(&self.attempts[number].topic.clone()).generation;
        let together = self.together(number);
        let repeats = &mut self.attempts[number].repeats;
        let is_first = repeats.as_ref().is_none_or(|repeats| repeats.asked == 0);
        if let Some(repeats) = repeats {
            repeats.asked += 1;
            repeats.unknown += 1;
        }
        for attempt in &mut self.attempts[together] {
            attempt.generations = (if is_first { generation } else { attempt.generations.0 }, generation);
            // One that was refused may be stored after all, now that it is sent again.
            if attempt.fate == Fate::Refused {
                attempt.fate = Fate::Unanswered;
            }
        }
    }

    /// Nothing of the request may be stored, unless it was sent before.
    pub fn refused(&mut self, number: usize) {
        let is_astray = self.attempts[number].is_astray();
        if let Some(repeats) = &mut self.attempts[number].repeats {
            repeats.unknown -= 1;
            if is_astray || repeats.unknown > 0 || !repeats.places.is_empty() {
                return;
            }
        }
        let together = self.together(number);
        self.attempts[together].iter_mut().for_each(|attempt| attempt.fate = Fate::Refused);
    }

    /// A message or a batch was answered `OK <offset> <level>`; the offset is the first one's. `is_in_window`: the broker knows for sure
    /// whether it was stored before.
    pub fn published(&mut self, number: usize, offset: u64, level: &str, is_in_window: bool) -> Check {
        let together = self.together(number);
        let end = offset + together.len() as u64;
        let topic = self.attempts[number].topic.clone();
        let log = self.logs.entry(topic.clone()).or_default();
        let mut is_first = true;
        let is_astray = self.attempts[number].is_astray();
        if let Some(repeats) = &mut self.attempts[number].repeats {
            repeats.unknown -= 1;
            is_first = repeats.asked == 1;
        }
        if let Some(repeats) = self.attempts[number].repeats.as_mut().filter(|_| !is_astray) {
            repeats.stands_at(&format!("message {number} of {topic}"), offset, is_in_window)?;
        }
        if offset < log.floor && is_first {
            return broken(
                "P1",
                format!(
                    "{topic} gave offset {offset} to message {number}, though everything below {} had to survive",
                    log.floor
                ),
            );
        }
        for (number, offset) in together.zip(offset..) {
            self.attempts[number].fate = Fate::Named(offset);
            name(log, &topic, offset, number, "P2")?;
        }
        log.claimed_end = log.claimed_end.max(end);
        match level {
            "DURABLE" => log.firm_end = log.firm_end.max(end),
            "WRITTEN" => log.written_end = log.written_end.max(end),
            _ => {}
        }
        Ok(())
    }

    /// A request to publish was answered `OK`, and nobody can tell which log it came to.
    pub fn published_somewhere(&mut self, number: usize) {
        if let Some(repeats) = &mut self.attempts[number].repeats {
            repeats.unknown -= 1;
        }
    }

    /// A reader was sent a message: from now on it stands. If it is of a batch, all of that stands in its place, or none of it would.
    /// When it asked, the log began at `asked_start` or above.
    pub fn delivered(
        &mut self,
        topic: &str,
        offset: u64,
        value: &[u8],
        asked_start: u64,
        is_in_window: &dyn Fn(&Model, usize) -> bool,
    ) -> Result<usize, Broken> {
        let found = number_in(value).filter(|number| self.attempts.get(*number).is_some_and(|a| a.payload == value));
        let Some(number) = found else {
            let shown = String::from_utf8_lossy(&value[..value.len().min(40)]).into_owned();
            return broken(
                "P4",
                format!(
                    "offset {offset} of {topic} was delivered as {} bytes that nobody published: {shown:?}",
                    value.len()
                ),
            );
        };
        if offset < asked_start {
            return broken(
                "P12",
                format!("offset {offset} of {topic} is delivered, but the log begins at {asked_start}"),
            );
        }
        let attempt = &self.attempts[number];
        let together = self.together(number);
        let has_id = self.attempts[together.start].repeats.is_some();
        if attempt.topic != topic {
            return broken(
                "P2",
                format!("message {number} went to {} and is delivered from {topic} at {offset}", attempt.topic),
            );
        }
        let generation = self.logs.get(topic).map_or(0, |log| log.generation);
        let (first, last) = attempt.generations;
        if !(first..=last).contains(&generation) {
            return broken(
                "P12",
                format!("{topic} delivers message {number} at {offset}, which went to an earlier topic of that name"),
            );
        }
        let is_astray = attempt.is_astray();
        match attempt.fate {
            Fate::Refused => {
                return broken(
                    "P11",
                    format!("message {number} was refused, but {topic} delivers it at offset {offset}"),
                );
            }
            Fate::Named(named) if named != offset && !has_id => {
                return broken(
                    "P2",
                    format!("message {number} of {topic} was stored at {named} and is delivered at {offset}"),
                );
            }
            _ => {}
        }
        let Some(first) = offset.checked_sub((number - together.start) as u64) else {
            return broken(
                "P2",
                format!("message {number} of {topic} is delivered at {offset}, and its batch began before"),
            );
        };
        let certain = has_id && is_in_window(self, together.start);
        if is_astray && !has_id {
            // Now it is known.
            let found = (generation, generation);
            self.attempts[together.clone()].iter_mut().for_each(|attempt| attempt.generations = found);
        }
        if let Some(repeats) = self.attempts[together.start].repeats.as_mut().filter(|_| !is_astray) {
            if repeats.unknown == 0 && !repeats.places.contains_key(&first) {
                let words =
                    format!("message {number} of {topic} is delivered at {offset}, and every answer named {repeats:?}");
                return broken("P16", words);
            }
            repeats.stands_at(&format!("message {number} of {topic}"), first, certain)?;
        }
        let log = self.logs.entry(topic.to_owned()).or_default();
        let promise = if offset < log.firm_end { "P1" } else { "P2" };
        name(log, topic, offset, number, promise)?;
        let end = first + together.len() as u64;
        for (number, offset) in together.zip(first..) {
            self.attempts[number].fate = Fate::Named(offset);
            name(log, topic, offset, number, "P2")?;
        }
        log.firm_end = log.firm_end.max(end);
        log.claimed_end = log.claimed_end.max(log.firm_end);
        Ok(number)
    }

    /// A client was told that the log begins at `start`: that is recorded, and nothing brings back what lay below (P12).
    pub fn begins_at(&mut self, topic: &str, start: u64) -> Check {
        self.may_be_gone(topic, start)?;
        let log = self.log(topic);
        log.start = log.start.max(start);
        Ok(())
    }

    /// A reader was told that these are gone: they were packed away, or the log begins behind them.
    pub fn lacks(&mut self, topic: &str, mut gone: Range<u64>) -> Check {
        let (end, packed) = (gone.end, &self.log(topic).packed);
        if gone.all(|offset| packed.contains(&offset)) { Ok(()) } else { self.begins_at(topic, end) }
    }

    /// What lies below `start` has been taken away (P12).
    pub fn may_be_gone(&self, topic: &str, start: u64) -> Check {
        let max = self.logs.get(topic).map_or(0, |log| log.start_max);
        if start > max {
            return broken("P12", format!("{topic} lost what lies below {start}, but nothing above {max} was to go"));
        }
        Ok(())
    }

    /// A reader was told when a message was stamped: that stands, too.
    pub fn stamped(&mut self, topic: &str, offset: u64, time_ms: i64) -> Check {
        let stamp = *self.log(topic).stamps.entry(offset).or_insert(time_ms);
        if stamp != time_ms {
            return broken("P4", format!("offset {offset} of {topic} was of time {stamp} and is of time {time_ms}"));
        }
        Ok(())
    }

    /// The process has ended.
    pub fn ended(&mut self, end: End) {
        // The power may bring back one that has lost its name.
        let former = self.former.iter_mut().map(|(_, log)| log).filter(|log| !log.is_gone);
        for log in self.logs.values_mut().chain(former) {
            let kept = match end {
                End::Stopped => log.firm_end.max(log.claimed_end),
                End::Killed { after_failure: false } => log.firm_end.max(log.written_end),
                End::Killed { after_failure: true } | End::PowerLost => log.firm_end,
            };
            if end == End::Stopped {
                log.firm_end = kept;
            }
            (log.written_end, log.claimed_end, log.floor) = (kept, kept, kept);
            log.names.split_off(&kept);
        }
        for attempt in &mut self.attempts {
            let Some(repeats) = &mut attempt.repeats else { continue };
            let former = self.former.iter().filter(|(name, _)| *name == attempt.topic).map(|(_, log)| log);
            let mut logs = self.logs.get(&attempt.topic).into_iter().chain(former);
            let kept = logs.find(|log| log.generation == attempt.generations.1).map_or(0, |log| log.floor);
            repeats.places.range_mut(kept..).for_each(|(_, doubtful)| *doubtful = true);
        }
    }

    /// Recovery says that it is done: what it kept, it has forced.
    pub fn ready(&mut self) {
        let default = self.log("default");
        (default.exists, default.may_exist) = (true, true);
        for log in self.logs.values_mut() {
            log.firm_end = log.firm_end.max(log.floor);
        }
    }
}

/// An offset names one message, and stays with it.
fn name(log: &mut Log, topic: &str, offset: u64, number: usize, promise: &'static str) -> Check {
    match log.names.insert(offset, number) {
        Some(before) if before != number => broken(
            promise,
            format!("offset {offset} of {topic} is message {number}, but it was message {before} before"),
        ),
        _ => Ok(()),
    }
}

/// The number that a payload begins with: `m<number>.`
fn number_in(value: &[u8]) -> Option<usize> {
    let digits = value.strip_prefix(b"m")?;
    let end = digits.iter().position(|byte| *byte == b'.')?;
    std::str::from_utf8(&digits[..end]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model_with(messages: usize) -> Model {
        let attempt = |n: usize| Attempt::new("t", format!("m{n}.").into_bytes());
        Model { attempts: (0..messages).map(attempt).collect(), ..Model::default() }
    }

    #[test]
    fn each_level_survives_what_it_says() {
        for (end, kept) in [
            (End::PowerLost, 1),
            (End::Killed { after_failure: true }, 1),
            (End::Killed { after_failure: false }, 2),
            (End::Stopped, 3),
        ] {
            let mut model = model_with(4);
            for (n, level) in ["DURABLE", "WRITTEN", "ACCEPTED"].into_iter().enumerate() {
                model.published(n, n as u64, level, true).expect("legal");
            }
            model.ended(end);
            model.ready();
            assert_eq!(model.log("t").firm_end, kept, "{end:?}");
            // The next offset names the next message, but one that had to survive can't be given again.
            assert_eq!(model.clone().published(3, kept, "DURABLE", true), Ok(()));
            assert_eq!(model.published(3, kept - 1, "DURABLE", true).expect_err("reused").promise, "P1");
        }
    }

    #[test]
    fn what_was_delivered_never_changes_and_is_stored_once() {
        let mut model = model_with(3);
        model.delivered("t", 0, b"m0.", 0, &|_, _| true).expect("legal");
        model.ended(End::PowerLost);
        assert_eq!(model.delivered("t", 0, b"m1.", 0, &|_, _| true).expect_err("changed").promise, "P1");
        assert_eq!(model.delivered("t", 1, b"m0.", 0, &|_, _| true).expect_err("twice").promise, "P2");
        assert_eq!(model.delivered("t", 1, b"m2.x", 0, &|_, _| true).expect_err("wrong bytes").promise, "P4");
        model.attempts[2].fate = Fate::Refused;
        assert_eq!(model.delivered("t", 1, b"m2.", 0, &|_, _| true).expect_err("refused").promise, "P11");
    }

    #[test]
    fn a_batch_stands_as_a_whole_or_not_at_all() {
        let mut model = model_with(5);
        (1..4).for_each(|n| model.attempts[n].batch = Some((1, 3)));
        assert_eq!(model.published(0, 0, "DURABLE", true), Ok(()));
        let mut stored = model.clone();
        assert_eq!(stored.published(1, 1, "DURABLE", true), Ok(()));
        assert_eq!(stored.log("t").firm_end, 4);
        assert_eq!(stored.delivered("t", 3, b"m3.", 0, &|_, _| true), Ok(3));
        // Never answered, and seen in part: the rest stands beside it.
        assert_eq!(model.delivered("t", 2, b"m2.", 0, &|_, _| true), Ok(2));
        assert_eq!(model.clone().delivered("t", 3, b"m3.", 0, &|_, _| true), Ok(3));
        assert_eq!(model.clone().delivered("t", 3, b"m4.", 0, &|_, _| true).expect_err("half a batch").promise, "P1");
        assert_eq!(model.clone().published(4, 3, "ACCEPTED", true).expect_err("half a batch").promise, "P2");
        assert_eq!(model.published(4, 4, "ACCEPTED", true), Ok(()));
        let mut early = model_with(5);
        (1..4).for_each(|n| early.attempts[n].batch = Some((1, 3)));
        assert_eq!(early.delivered("t", 0, b"m2.", 0, &|_, _| true).expect_err("its first has no place").promise, "P2");
    }

    #[test]
    fn p16_a_repeated_publish_stands_once() {
        let mut model = model_with(3);
        model.attempts[0].repeats = Some(Repeats::new((7, 1)));
        let ask = |model: &mut Model| model.asked(0);
        ask(&mut model);
        assert_eq!(model.published(0, 0, "WRITTEN", true), Ok(()));
        ask(&mut model);
        assert_eq!(model.clone().published(0, 0, "DURABLE", true), Ok(()));
        assert_eq!(model.clone().published(0, 1, "DURABLE", true).expect_err("twice").promise, "P16");
        assert_eq!(model.clone().published(0, 1, "DURABLE", false), Ok(()), "older than the window");
        let mut killed = model.clone();
        killed.ended(End::Killed { after_failure: false });
        ask(&mut killed);
        assert_eq!(killed.published(0, 1, "DURABLE", true).expect_err("it was written").promise, "P16");
        // The power took it, or not: one of the two, and not both.
        model.ended(End::PowerLost);
        ask(&mut model);
        let mut kept = model.clone();
        assert_eq!(kept.published(0, 0, "DURABLE", true), Ok(()));
        let mut taken = model.clone();
        assert_eq!(taken.published(0, 2, "DURABLE", true), Ok(()));
        assert_eq!(taken.delivered("t", 0, b"m0.", 0, &|_, _| true).expect_err("twice").promise, "P16");
        // Refused for good: it may be stored by none of them.
        let mut refused = model_with(1);
        refused.attempts[0].repeats = Some(Repeats::new((7, 1)));
        ask(&mut refused);
        ask(&mut refused);
        refused.refused(0);
        assert_eq!(refused.attempts[0].fate, Fate::Unanswered);
        refused.refused(0);
        assert_eq!(refused.attempts[0].fate, Fate::Refused);
    }

    #[test]
    fn p12_what_is_gone_stays_gone_and_nothing_else_goes() {
        let mut model = model_with(3);
        for n in 0..3 {
            model.published(n, n as u64, "DURABLE", true).expect("legal");
        }
        model.log("t").start_max = 2;
        assert_eq!(model.begins_at("t", 3).expect_err("nobody asked for that").promise, "P12");
        model.begins_at("t", 2).expect("asked for");
        model.ended(End::PowerLost);
        assert_eq!(model.log("t").start, 2);
        assert_eq!(model.clone().delivered("t", 1, b"m1.", 2, &|_, _| true).expect_err("it is back").promise, "P12");
        model.delivered("t", 1, b"m1.", 0, &|_, _| true).expect("asked for before it went");
        model.delivered("t", 2, b"m2.", 2, &|_, _| true).expect("it was to stay");
    }

    #[test]
    fn p12_a_topic_made_anew_has_nothing_of_the_one_before() {
        let mut model = model_with(3);
        model.asked(0);
        model.published(0, 0, "DURABLE", true).expect("legal");
        model.asked(1);
        model.begin_generation("t");
        model.goes_astray(1, false);
        assert_eq!(model.delivered("t", 0, b"m0.", 0, &|_, _| true).expect_err("it is back").promise, "P12");
        let mut made_anew = model.clone();
        made_anew.delivered("t", 0, b"m1.", 0, &|_, _| true).expect("it was under way");
        assert_eq!(made_anew.delivered("t", 1, b"m1.", 0, &|_, _| true).expect_err("twice").promise, "P2");
        // The deletion was never answered, and a power loss undoes it: then it is as if nobody had asked.
        model.ended(End::PowerLost);
        model.give_back("t", 0);
        model.asked(2);
        assert_eq!(model.published(2, 0, "DURABLE", true).expect_err("it was durable").promise, "P1");
        model.delivered("t", 0, b"m0.", 0, &|_, _| true).expect("it was durable");
    }

    #[test]
    fn a_committed_offset_is_one_that_was_asked_for() {
        let mut group = Group::default();
        let ack = |id, value| Open { id, value: Some(value), seek: false, life: 1, abandoned: false };
        group.asked(ack(1, 5));
        assert!(group.observe("g", 3, 0).is_err());
        group.observe("g", 0, 0).expect("not yet");
        group.answered("g", 1, 5, 0).expect("as asked");
        let now = group.moment();
        assert_eq!(group.observe("g", 0, now).expect_err("backwards").promise, "P5");
        group.observe("g", 0, now - 1).expect("an answer to an earlier question");
    }

    /// Two connections: the answer to a FETCH shows what held before a SEEK, and is told behind the SEEK's answer.
    #[test]
    fn an_answer_told_late_does_not_unsay_a_seek() {
        let mut group = Group::default();
        // An ACK of an earlier life, never answered, of which a power loss kept the effect.
        group.asked(Open { id: 1, value: Some(10), seek: false, life: 1, abandoned: true });
        group.asked(Open { id: 2, value: Some(0), seek: true, life: 2, abandoned: false });
        let asked = group.moment();
        group.answered("g", 2, 0, asked).expect("as asked");
        group.observe("g", 10, asked).expect("what held before the SEEK");
        group.settle_before(2);
        let now = group.moment();
        group.observe("g", 10, asked).expect("told to another one, even later");
        group.observe("g", 0, now).expect("what holds");
        assert_eq!(group.observe("g", 10, now).expect_err("the ACK came before the SEEK").promise, "P5");
    }

    /// One connection: GROUPS is taken up before an ACK has been stored, and told behind it. Another SEEK stood before all that.
    #[test]
    fn what_an_open_ack_may_have_done_is_told_late() {
        let mut group = Group::default();
        let asked = group.moment();
        group.asked(Open { id: 1, value: Some(2), seek: true, life: 1, abandoned: false });
        group.asked(Open { id: 2, value: Some(5), seek: false, life: 1, abandoned: false });
        group.answered("g", 1, 2, asked).expect("as asked");
        group.answered("g", 2, 5, asked).expect("as asked, before the SEEK or behind it");
        let later = group.moment();
        group.asked(Open { id: 3, value: Some(6), seek: false, life: 1, abandoned: false });
        group.observe("g", 6, later).expect("asked for");
        group.observe("g", 5, later).expect("taken up before");
        let now = group.moment();
        assert_eq!(group.observe("g", 5, now).expect_err("taken up behind").promise, "P5");
    }

    #[test]
    fn an_ack_answered_behind_a_seek_may_have_come_before_it_or_after() {
        for (end, wrong) in [(0, 2), (1, 2)] {
            let mut group = Group::default();
            let asked = group.moment();
            group.asked(Open { id: 1, value: Some(0), seek: true, life: 1, abandoned: false });
            group.asked(Open { id: 2, value: Some(1), seek: false, life: 1, abandoned: false });
            group.answered("g", 1, 0, asked).expect("as asked");
            group.answered("g", 2, 1, asked).expect("as asked");
            group.observe("g", 1, asked).expect("told late");
            let now = group.moment();
            assert!(group.observe("g", wrong, now).is_err());
            group.observe("g", end, now).expect("either order");
        }
    }
}
