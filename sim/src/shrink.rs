//! Makes a failing tape smaller: leaves out every decision that the failure does not need (ddmin, Zeller and Hildebrandt,
//! 2002). Workload, configuration, faults and losses are all decisions, so one procedure shrinks them all.
//!
//! That alone gets stuck: with one request less the fatal write is the third and no longer the fourth, and the crash after
//! the fourth never comes. So a decision is also left out together with another one, or while the number in such a question is
//! made smaller, until nothing of all this helps any more.

use crate::batch;
use crate::mutant::Mutant;
use crate::tape::{Tape, TapeLine};
use std::collections::BTreeSet;

/// What a shrinking came to.
pub struct Shrunk {
    /// The smallest tape that was found; it fails by the same promise.
    pub tape: Tape,
    /// How many tapes were tried.
    pub tried: u64,
}

/// In tapes of more decisions than the first, which a person reads at once, and no more than the second, all pairs are tried.
const PAIRS: (usize, usize) = (12, 40);

/// Shrinks a tape that breaks `promise`. `budget`: how many tapes may be tried.
pub fn shrink(tape: &Tape, mutant: Option<Mutant>, promise: &str, budget: u64) -> Shrunk {
    shrink_until(tape, mutant, promise, budget, &|| false)
}

/// The same, or less of it once `stop` says so.
pub fn shrink_until(
    tape: &Tape,
    mutant: Option<Mutant>,
    promise: &str,
    budget: u64,
    stop: &dyn Fn() -> bool,
) -> Shrunk {
    let mut shrinking = Shrinking { mutant, promise, budget, stop, tried: 0, best: tape.clone(), steps: u64::MAX / 2 };
    let Some(replayed) = shrinking.fails(&tape.lines) else { return Shrunk { tape: tape.clone(), tried: 1 } };
    (shrinking.best, shrinking.steps) = replayed;
    loop {
        let before = shrinking.cost();
        shrinking.leave_out_chunks();
        shrinking.renumber();
        if shrinking.cost() == before {
            shrinking.leave_out_pairs();
        }
        if shrinking.cost() == before || shrinking.is_spent() {
            return Shrunk { tape: shrinking.best, tried: shrinking.tried };
        }
    }
}

struct Shrinking<'a> {
    mutant: Option<Mutant>,
    promise: &'a str,
    budget: u64,
    stop: &'a dyn Fn() -> bool,
    tried: u64,
    best: Tape,
    /// How many steps the smallest tape takes. One that takes far more has lost the failure.
    steps: u64,
}

impl Shrinking<'_> {
    fn is_spent(&self) -> bool {
        self.tried >= self.budget || (self.stop)()
    }

    /// Fewer decisions; of as many, those with smaller numbers.
    fn cost(&self) -> (usize, u64) {
        cost(&self.best)
    }

    /// What these lines really decide, if they fail as before: answers that were never asked for fall away.
    fn fails(&mut self, lines: &[TapeLine]) -> Option<(Tape, u64)> {
        self.tried += 1;
        let candidate = Tape { comments: Vec::new(), lines: lines.to_vec() };
        let finished = batch::replay_until(&candidate, self.mutant, 2 * self.steps);
        (finished.verdict.promise() == self.promise).then_some((finished.tape, finished.steps))
    }

    fn try_lines(&mut self, lines: &[TapeLine]) -> bool {
        if self.is_spent() {
            return false;
        }
        match self.fails(lines) {
            Some((smaller, steps)) if cost(&smaller) < self.cost() => {
                (self.best, self.steps) = (smaller, steps);
                true
            }
            _ => false,
        }
    }

    fn leave_out_chunks(&mut self) {
        let mut chunks = 2;
        while !self.best.lines.is_empty() && !self.is_spent() {
            let size = self.best.lines.len().div_ceil(chunks);
            let mut found = false;
            let mut from = 0;
            while from < self.best.lines.len() && !self.is_spent() {
                let to = (from + size).min(self.best.lines.len());
                let rest = [&self.best.lines[..from], &self.best.lines[to..]].concat();
                // What a client asks for is what moves the numbers of effects.
                let is_request = size == 1 && self.best.lines[from].question.starts_with("client ");
                let smaller = self.try_lines(&rest) || (is_request && self.try_renumbered(&rest));
                found |= smaller;
                from = if smaller { from } else { to };
            }
            if found {
                chunks = chunks.min(self.best.lines.len()).max(2);
            } else if size == 1 {
                break;
            } else {
                chunks = (chunks * 2).min(self.best.lines.len());
            }
        }
    }

    /// These lines, with one of the numbers smaller by one.
    fn try_renumbered(&mut self, lines: &[TapeLine]) -> bool {
        numbered(lines).iter().any(|name| name.number > 1 && self.try_lines(&name.renumbered(lines, name.number - 1)))
    }

    /// The same decisions about earlier moments.
    fn renumber(&mut self) {
        let mut tried = BTreeSet::new();
        while let Some(name) = numbered(&self.best.lines).into_iter().find(|name| !tried.contains(name)) {
            let smaller = [1, name.number / 2, name.number - 1].into_iter().filter(|n| (1..name.number).contains(n));
            for number in smaller {
                let lines = name.renumbered(&self.best.lines, number);
                if self.try_lines(&lines) {
                    break;
                }
            }
            tried.insert(name);
        }
    }

    fn leave_out_pairs(&mut self) {
        if self.best.lines.len() <= PAIRS.0 || self.best.lines.len() > PAIRS.1 {
            return;
        }
        let mut first = 0;
        while first < self.best.lines.len() {
            for second in first + 1..self.best.lines.len() {
                let mut rest = self.best.lines.clone();
                rest.remove(second);
                rest.remove(first);
                if self.try_lines(&rest) {
                    return;
                }
            }
            first += 1;
        }
    }
}

fn cost(tape: &Tape) -> (usize, u64) {
    (tape.lines.len(), numbered(&tape.lines).iter().map(|name| name.number).sum())
}

/// Something that questions count: "write 3 of default/watermark".
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Numbered {
    what: String,
    number: u64,
    of: String,
}

impl Numbered {
    fn words(&self, number: u64) -> String {
        format!("{} {number} {}", self.what, self.of)
    }

    /// The lines, with another number in every question about it.
    fn renumbered(&self, lines: &[TapeLine], number: u64) -> Vec<TapeLine> {
        let (from, to) = (self.words(self.number), self.words(number));
        let renumber = |line: &TapeLine| {
            let parts: Vec<String> = line
                .question
                .split(", ")
                .map(|part| match part.strip_suffix(&from) {
                    Some(before) if before.is_empty() || before.ends_with(' ') => format!("{before}{to}"),
                    _ => part.to_owned(),
                })
                .collect();
            TapeLine { question: parts.join(", "), answer: line.answer.clone() }
        };
        lines.iter().map(renumber).collect()
    }
}

/// What the questions of these lines count, each once.
fn numbered(lines: &[TapeLine]) -> BTreeSet<Numbered> {
    let parts = lines.iter().flat_map(|line| line.question.split(", "));
    let named = parts.filter_map(|part| {
        let words: Vec<&str> = part.split(' ').collect();
        let at = words.windows(2).position(|pair| pair[0].parse::<u64>().is_ok() && matches!(pair[1], "of" | "to"))?;
        let (what, of) = (words[at.checked_sub(1)?], words[at + 1..].join(" "));
        Some(Numbered { what: what.to_owned(), number: words[at].parse().ok()?, of })
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_changed_wherever_they_are_meant() {
        let text = "client 0, action 3: publishes\nafter write 12 of a/log/0.log: power lost\n\
                    after write 12 of a/log/0.log, sector 12 of topics/a/log/0.log: old\nafter write 12 of b: power lost\n";
        let lines = Tape::parse(text).expect("a tape").lines;
        let names = numbered(&lines);
        let name =
            names.iter().find(|name| name.of == "of a/log/0.log" && name.what == "write").expect("it is counted");
        let renumbered = Tape { comments: Vec::new(), lines: name.renumbered(&lines, 2) };
        let expected = text.replace("write 12 of a/", "write 2 of a/");
        assert_eq!(renumbered.to_string(), expected);
    }
}
