//! What clients were told, and when: the position of the device's log at which each reply had been received.
//!
//! A position is taken before a request is sent and after its reply was received. So what was promised is never dated too
//! early, and what was asked for never too late.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Everything that clients did.
#[derive(Clone, Default)]
pub struct History {
    /// Topics, as their making was answered.
    pub topics: Vec<(usize, String)>,
    /// Values that were sent to a topic.
    pub sent: Vec<(usize, String, String)>,
    /// What must stay at an offset of a topic: answered DURABLE, or delivered.
    pub safe: Vec<Safe>,
    /// What was done to the progress of each group, one after the other.
    pub progress: BTreeMap<(String, String), Vec<Step>>,
    /// What was handed out by the work queue of a topic, with when it was asked for.
    pub handed_out: Vec<(usize, String, u64)>,
    /// What was confirmed in it.
    pub confirmed: Vec<Confirmed>,
}

/// A CONFIRM.
#[derive(Clone)]
pub struct Confirmed {
    /// When it was asked for.
    pub asked: usize,
    /// In the work queue of which topic.
    pub topic: String,
    /// Which messages.
    pub offsets: Vec<u64>,
    /// When it was answered, if it was.
    pub answered: Option<usize>,
}

/// A message that must stay.
#[derive(Clone)]
pub struct Safe {
    /// When that was known.
    pub position: usize,
    /// Where it is.
    pub topic: String,
    /// Where it is.
    pub offset: u64,
    /// What it is.
    pub value: String,
    /// It was answered DURABLE; otherwise it was delivered.
    pub acknowledged: bool,
}

/// An ACK or a SEEK, or a look at what is committed.
#[derive(Clone)]
pub struct Step {
    /// When it was asked for.
    pub asked: usize,
    /// What is committed if it is done.
    pub committed: u64,
    /// When it was answered, if it was.
    pub answered: Option<usize>,
}

impl History {
    /// Adds what another client did.
    pub fn add(&mut self, other: History) {
        self.topics.extend(other.topics);
        self.sent.extend(other.sent);
        self.safe.extend(other.safe);
        for (group, steps) in other.progress {
            self.progress.entry(group).or_default().extend(steps);
        }
        self.handed_out.extend(other.handed_out);
        self.confirmed.extend(other.confirmed);
    }

    /// P15 without any power loss: nothing was handed out to who asked when its confirmation had been answered.
    ///
    /// # Errors
    /// Says what was.
    pub fn nothing_comes_again(&self) -> Result<(), String> {
        let mut first_answered: BTreeMap<(&str, u64), usize> = BTreeMap::new();
        for Confirmed { topic, offsets, answered, .. } in &self.confirmed {
            for (offset, answered) in offsets.iter().zip(answered.iter().cycle()) {
                let first = first_answered.entry((topic, *offset)).or_insert(*answered);
                *first = (*first).min(*answered);
            }
        }
        let again = self.handed_out.iter().find(|(asked, topic, offset)| {
            first_answered.get(&(&topic[..], *offset)).is_some_and(|answered| answered < asked)
        });
        match again {
            None => Ok(()),
            Some((_, topic, offset)) => {
                Err(format!("P15: offset {offset} of {topic} was confirmed, and handed out again"))
            }
        }
    }

    /// What an image must hold that a power loss may leave at any moment from `first` to `last`.
    ///
    /// # Errors
    /// When two messages must stand at one offset: then a promise is broken without any power loss.
    pub fn expected(&self, first: usize, last: usize) -> Result<Expected, String> {
        let mut expected = Expected::default();
        let made = self.topics.iter().filter(|(position, _)| *position <= last);
        expected.topics = made.map(|(_, topic)| topic.clone()).collect();
        for (_, topic, value) in self.sent.iter().filter(|(position, ..)| *position <= first) {
            expected.sent.entry(topic.clone()).or_default().insert(value.clone());
        }
        for safe in self.safe.iter().filter(|safe| safe.position <= last) {
            let topic = expected.safe.entry(safe.topic.clone()).or_default();
            let must =
                topic.entry(safe.offset).or_insert_with(|| Must { value: safe.value.clone(), acknowledged: false });
            must.acknowledged |= safe.acknowledged;
            if must.value != safe.value {
                return Err(format!(
                    "offset {} of {} is {:?} and {:?}",
                    safe.offset, safe.topic, must.value, safe.value
                ));
            }
        }
        for ((topic, group), steps) in &self.progress {
            let allowed = &allowed(steps, first) & &allowed(steps, last);
            expected.committed.push(Committed { topic: topic.clone(), group: group.clone(), allowed });
        }
        for Confirmed { asked, topic, offsets, answered } in &self.confirmed {
            let work = expected.work.entry(topic.clone()).or_default();
            if answered.is_some_and(|answered| answered <= last) {
                work.confirmed.extend(offsets);
            } else if *asked <= first {
                work.asked.extend(offsets);
            }
        }
        Ok(expected)
    }
}

/// What may be committed when power fails at a position: what was answered last, or anything that was asked for since.
fn allowed(steps: &[Step], position: usize) -> BTreeSet<u64> {
    let answered = steps.iter().rposition(|step| step.answered.is_some_and(|answered| answered <= position));
    let since = answered.map_or(0, |at| at);
    let asked = steps[since..].iter().filter(|step| step.asked <= position).map(|step| step.committed);
    asked.chain(answered.is_none().then_some(0)).collect()
}

/// What an image must hold, and what it may.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Expected {
    /// Topics that must be there.
    pub topics: BTreeSet<String>,
    /// By topic, all that was sent: nothing else may be found.
    pub sent: BTreeMap<String, BTreeSet<String>>,
    /// By topic and offset, what must be there.
    pub safe: BTreeMap<String, BTreeMap<u64, Must>>,
    /// What the groups may have committed.
    pub committed: Vec<Committed>,
    /// By topic, what its work queue has done.
    pub work: BTreeMap<String, Work>,
}

/// What a work queue has done. All else is to be handed out.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Work {
    /// Messages whose confirmation was answered.
    pub confirmed: BTreeSet<u64>,
    /// Messages whose confirmation was asked for: it may have been stored.
    pub asked: BTreeSet<u64>,
}

/// A message that must be there.
#[derive(Clone, Serialize, Deserialize)]
pub struct Must {
    /// What it is.
    pub value: String,
    /// It was answered DURABLE; otherwise it was delivered.
    pub acknowledged: bool,
}

/// What a group may have committed.
#[derive(Clone, Serialize, Deserialize)]
pub struct Committed {
    /// Of which topic.
    pub topic: String,
    /// Which group.
    pub group: String,
    /// Any of these; 0 also stands for no group at all.
    pub allowed: BTreeSet<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_confirmation_may_be_stored_when_it_was_asked_for_and_is_when_it_was_answered() {
        let confirmed =
            |asked, offset, answered| Confirmed { asked, topic: "t".into(), offsets: vec![offset], answered };
        let mut history =
            History { confirmed: vec![confirmed(1, 5, Some(3)), confirmed(4, 9, None)], ..History::default() };
        let at = |first, last| {
            let work = history.expected(first, last).unwrap().work.remove("t").unwrap();
            (Vec::from_iter(work.confirmed), Vec::from_iter(work.asked))
        };
        assert_eq!(at(0, 0), (vec![], vec![]));
        assert_eq!(at(1, 2), (vec![], vec![5]));
        assert_eq!(at(1, 3), (vec![5], vec![]));
        assert_eq!(at(4, 4), (vec![5], vec![9]));

        history.handed_out = vec![(3, "t".into(), 5), (7, "t".into(), 9), (7, "u".into(), 5)];
        assert_eq!(history.nothing_comes_again(), Ok(()));
        history.handed_out.push((4, "t".into(), 5));
        assert!(history.nothing_comes_again().is_err());
    }

    #[test]
    fn progress_is_what_was_answered_last_or_asked_for_since() {
        let step = |asked, committed, answered| Step { asked, committed, answered };
        let steps = [step(1, 5, Some(3)), step(4, 9, Some(8)), step(9, 2, None), step(12, 7, Some(14))];
        let at = |position| allowed(&steps, position).into_iter().collect::<Vec<_>>();
        assert_eq!(at(0), [0]);
        assert_eq!(at(2), [0, 5]);
        assert_eq!(at(3), [5]);
        assert_eq!(at(6), [5, 9]);
        assert_eq!(at(8), [9]);
        assert_eq!(at(10), [2, 9]);
        assert_eq!(at(13), [2, 7, 9]);
        assert_eq!(at(14), [7]);
    }
}
