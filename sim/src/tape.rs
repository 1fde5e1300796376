//! Decisions: drawn from a seed or read from a tape, in words either way.
//!
//! Everything that a run leaves open is a **question** ("after force 3 of default/log/0.log") with a few **answers**
//! ("nothing", "process killed", "power lost"). The first answer is always the mild one: nothing goes wrong, nobody
//! does anything. A [`Tape`] lists the answers that are not mild, one a line, and is a whole run by itself: workload,
//! configuration, schedule, faults and losses. So it can be read, edited and shrunk by leaving lines out, and it outlives the
//! seed that it came from when code changes. A question is found by its words, not by its number: leaving one line out
//! moves no other.

use crate::disk::{Choices, Seeded};
use std::collections::BTreeMap;
use std::fmt::{self, Write};

/// What a decision is about. Each has a stream of random numbers of its own, so that one more draw in one place does not
/// shift the others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Concern {
    /// The configuration of the run.
    Plan,
    /// How long things take, and so what happens before what.
    Schedule,
    /// Effects that fail.
    Faults,
    /// When the process dies or the power goes.
    Crashes,
    /// What a power loss leaves.
    Losses,
    /// Fragments, resets, slowness.
    Network,
    /// What clients do.
    Clients,
    /// What the operator does: clock steps, a full disk, a stop.
    Operator,
}

const CONCERNS: usize = Concern::Operator as usize + 1;

/// Something happens `times` in `of`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    /// So often.
    pub times: u32,
    /// Out of so many.
    pub of: u32,
}

impl Rate {
    /// It never happens.
    pub const NEVER: Rate = Rate { times: 0, of: 1 };

    /// The same where there are few occasions: packing takes few effects.
    #[must_use]
    pub fn at_a_rare_place(self) -> Rate {
        Rate { of: self.of.div_ceil(8).max(self.times), ..self }
    }

    /// Once in `n` times.
    pub const fn one_in(n: u32) -> Rate {
        Rate { times: 1, of: n }
    }
}

/// To a question with these words, this answer, so many times in a hundred. Otherwise it is drawn as ever.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lean {
    /// Words of the question; `*` stands for any.
    pub question: &'static str,
    /// How the answer begins.
    pub answer: &'static str,
    /// How often.
    pub percent: u64,
}

/// Which worlds a hunt for one kind of mistake draws more often: small ones, and those with these answers. Every one of them is a
/// world that a seed alone could draw.
pub type Leaning = Vec<Lean>;

/// A leaning at work.
struct Leaner {
    leaning: Leaning,
    stream: Seeded,
    /// How often, in a hundred, what the plan, the network and the clients leave open is answered mildly.
    mild_percent: u64,
}

impl Leaner {
    /// The answer that it leans to.
    fn lean(&mut self, concern: Concern, n: usize, words: &str, answer: &dyn Fn(usize) -> String) -> Option<usize> {
        for lean in &self.leaning {
            if lean.percent > 0
                && matches(lean.question, words)
                && let Some(picked) = (0..n.min(64)).find(|picked| answer(*picked).starts_with(lean.answer))
                && self.stream.chance(lean.percent, 100)
            {
                return Some(picked);
            }
        }
        // What a client does next is left to the seed, or nothing would happen.
        let is_detail = match concern {
            Concern::Plan => !words.starts_with("plan, client ") && words != "plan, crashes",
            Concern::Clients => words.matches(", ").count() > 1,
            Concern::Schedule | Concern::Network => true,
            _ => false,
        };
        (is_detail && self.stream.chance(self.mild_percent, 100)).then_some(0)
    }
}

/// Whether the parts between the `*` stand in the words, in order.
fn matches(pattern: &str, words: &str) -> bool {
    let mut rest = words;
    pattern.split('*').all(|part| match rest.find(part) {
        Some(at) => {
            rest = &rest[at + part.len()..];
            true
        }
        None => false,
    })
}

/// One answer that was not the mild one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct TapeLine {
    /// What was asked; never holds `": "`.
    pub question: String,
    /// What was answered.
    pub answer: String,
}

impl fmt::Display for TapeLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.question, self.answer)
    }
}

/// The decisions of a run that were not mild, in the order in which they were taken.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tape {
    /// Lines for people, without the `#`.
    pub comments: Vec<String>,
    /// The decisions.
    pub lines: Vec<TapeLine>,
}

impl Tape {
    /// Reads a tape: one decision a line, `#` begins a comment, empty lines are nothing.
    ///
    /// # Errors
    /// The number of the first line that is not `question: answer`.
    pub fn parse(text: &str) -> Result<Tape, String> {
        let mut tape = Tape::default();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if let Some(comment) = line.strip_prefix('#') {
                tape.comments.push(comment.trim().to_owned());
            } else if let Some((question, answer)) = line.rsplit_once(": ") {
                tape.lines.push(TapeLine { question: question.to_owned(), answer: answer.to_owned() });
            } else if !line.is_empty() {
                return Err(format!(
                    "line {} is no decision: it should read \"question: answer\", not {line:?}",
                    at + 1
                ));
            }
        }
        Ok(tape)
    }
}

impl fmt::Display for Tape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for comment in &self.comments {
            writeln!(f, "# {comment}")?;
        }
        for line in &self.lines {
            writeln!(f, "{line}")?;
        }
        Ok(())
    }
}

/// Answers every question of a run.
pub struct Decider {
    source: Source,
    leaner: Option<Leaner>,
    record: bool,
    /// How often each question was asked, where words are needed: a second one of the same words gets a number.
    asked: BTreeMap<String, u32>,
    taken: Vec<TapeLine>,
}

enum Source {
    Seed(Box<[Seeded; CONCERNS]>),
    Tape(BTreeMap<String, Written>),
}

struct Written {
    answer: String,
    met: bool,
}

impl Decider {
    /// Draws from a seed. `record`: also write down what was decided.
    pub fn seeded(seed: u64, record: bool) -> Decider {
        let streams = std::array::from_fn(|stream| Seeded::new(seed, stream as u64 + 1));
        let source = Source::Seed(Box::new(streams));
        Decider { source, leaner: None, record, asked: BTreeMap::new(), taken: Vec::new() }
    }

    /// Draws from a seed, and leans.
    pub fn leaning(seed: u64, record: bool, leaning: &Leaning) -> Decider {
        let mut stream = Seeded::new(seed, CONCERNS as u64 + 1);
        let mild_percent = [60, 85, 95][stream.below(3) as usize];
        let leaner = Some(Leaner { leaning: leaning.clone(), stream, mild_percent });
        Decider { leaner, ..Decider::seeded(seed, record) }
    }

    /// Answers by a tape, and mildly where it says nothing.
    pub fn replaying(tape: &Tape) -> Decider {
        let written = |line: &TapeLine| (line.question.clone(), Written { answer: line.answer.clone(), met: false });
        let source = Source::Tape(tape.lines.iter().map(written).collect());
        Decider { source, leaner: None, record: true, asked: BTreeMap::new(), taken: Vec::new() }
    }

    /// One of `n` answers, each equally likely.
    pub fn choose(
        &mut self,
        concern: Concern,
        n: usize,
        question: fmt::Arguments<'_>,
        answer: &dyn Fn(usize) -> String,
    ) -> usize {
        if n < 2 {
            return 0;
        }
        self.decide(concern, n, question, answer, &|_| true, |stream| stream.below(n as u64) as usize)
    }

    /// The mild answer, but at this rate one of the others.
    pub fn rarely(
        &mut self,
        concern: Concern,
        rate: Rate,
        n: usize,
        question: fmt::Arguments<'_>,
        answer: &dyn Fn(usize) -> String,
    ) -> usize {
        if n < 2 {
            return 0;
        }
        self.decide(concern, n, question, answer, &|picked| picked == 0 || rate.times > 0, |stream| {
            let happens = rate.times > 0 && stream.chance(u64::from(rate.times), u64::from(rate.of));
            if happens { 1 + stream.below(n as u64 - 1) as usize } else { 0 }
        })
    }

    /// One of the answers, as likely as its weight says.
    pub fn weighted(
        &mut self,
        concern: Concern,
        weights: &[u32],
        question: fmt::Arguments<'_>,
        answer: &dyn Fn(usize) -> String,
    ) -> usize {
        let total: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
        self.decide(concern, weights.len(), question, answer, &|picked| weights[picked] > 0, |stream| {
            let mut drawn = stream.below(total.max(1));
            for (at, weight) in weights.iter().enumerate() {
                match drawn.checked_sub(u64::from(*weight)) {
                    Some(rest) => drawn = rest,
                    None => return at,
                }
            }
            0
        })
    }

    /// What was decided so far and was not mild. Empty when nothing is recorded.
    pub fn take_tape(&mut self) -> Tape {
        Tape { comments: Vec::new(), lines: std::mem::take(&mut self.taken) }
    }

    /// Lines of the tape that no question has met, or that were no answer to it.
    pub fn unmet(&self) -> Vec<String> {
        match &self.source {
            Source::Seed(_) => Vec::new(),
            Source::Tape(written) => written
                .iter()
                .filter(|(_, written)| !written.met)
                .map(|(question, written)| format!("{question}: {}", written.answer))
                .collect(),
        }
    }

    fn decide(
        &mut self,
        concern: Concern,
        n: usize,
        question: fmt::Arguments<'_>,
        answer: &dyn Fn(usize) -> String,
        can_be: &dyn Fn(usize) -> bool,
        draw: impl FnOnce(&mut Seeded) -> usize,
    ) -> usize {
        let words = if self.record || self.leaner.is_some() { Some(self.number(question)) } else { None };
        let leant = match (&mut self.leaner, &words) {
            (Some(leaner), Some(words)) => leaner.lean(concern, n, words, answer).filter(|picked| can_be(*picked)),
            _ => None,
        };
        let picked = match &mut self.source {
            Source::Seed(streams) => leant.unwrap_or_else(|| draw(&mut streams[concern as usize])),
            Source::Tape(written) => match words.as_ref().and_then(|words| written.get_mut(words)) {
                None => 0,
                Some(line) => {
                    let found = find_answer(&line.answer, n, answer);
                    line.met = found.is_some();
                    found.unwrap_or(0)
                }
            },
        };
        if let Some(question) = words.filter(|_| picked != 0 && self.record) {
            self.taken.push(TapeLine { question, answer: words_of(picked, answer) });
        }
        picked
    }

    /// The question's words; the second time with a number behind them.
    fn number(&mut self, question: fmt::Arguments<'_>) -> String {
        let mut words = String::new();
        write!(words, "{question}").expect("a string takes everything");
        debug_assert!(!words.contains(": "), "the tape could not be read back: {words}");
        let count = self.asked.entry(words.clone()).or_insert(0);
        *count += 1;
        if *count > 1 {
            write!(words, " #{count}").expect("a string takes everything");
        }
        words
    }
}

/// From here on answers have their number in their words: a pattern of garbage, a length.
const NUMBERED: usize = 200;

/// The words of an answer. Where an earlier one has the same, two pieces of garbage that begin alike say, a number tells them apart.
fn words_of(picked: usize, answer: &dyn Fn(usize) -> String) -> String {
    let text = answer(picked);
    if picked >= NUMBERED {
        return text;
    }
    match (0..picked).filter(|earlier| answer(*earlier) == text).count() {
        0 => text,
        earlier => format!("{text} ({})", earlier + 1),
    }
}

/// Which answer has these words.
fn find_answer(words: &str, n: usize, answer: &dyn Fn(usize) -> String) -> Option<usize> {
    // Nearly always the number in the words is the number of the answer.
    let digits: String = words.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
    let guess = digits.parse().ok().filter(|guess| *guess < n && words_of(*guess, answer) == words);
    guess.or_else(|| (0..n).find(|picked| answer(*picked) == words)).or_else(|| {
        let (text, number) = words.strip_suffix(')')?.rsplit_once(" (")?;
        (0..n).filter(|picked| answer(*picked) == text).nth(number.parse::<usize>().ok()?.checked_sub(1)?)
    })
}

/// Lets the disk ask what a power loss leaves. Its questions begin with the moment of the loss: they are not those of another.
pub struct Loss<'a> {
    /// Who answers.
    pub decider: &'a mut Decider,
    /// When, in words.
    pub when: &'a str,
}

impl Choices for Loss<'_> {
    fn choose(&mut self, n: usize, question: fmt::Arguments<'_>, answer: &dyn Fn(usize) -> String) -> usize {
        let when = self.when;
        self.decider.choose(Concern::Losses, n, format_args!("{when}, {question}"), answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(decider: &mut Decider) -> [usize; 3] {
        let word = |picked: usize| format!("answer {picked}");
        [
            decider.choose(Concern::Plan, 5, format_args!("one"), &word),
            decider.choose(Concern::Losses, 60_000, format_args!("one"), &word),
            decider.weighted(Concern::Clients, &[1, 1, 5], format_args!("three"), &word),
        ]
    }

    #[test]
    fn a_tape_answers_as_the_seed_did_and_can_be_read_back() {
        for seed in 0..200 {
            let mut seeded = Decider::seeded(seed, true);
            let answers = ask(&mut seeded);
            assert_eq!(ask(&mut Decider::seeded(seed, false)), answers, "recording changes nothing");
            let tape = Tape::parse(&seeded.take_tape().to_string()).expect("what was written can be read");
            let mut replaying = Decider::replaying(&tape);
            assert_eq!(ask(&mut replaying), answers);
            assert_eq!(replaying.unmet(), Vec::<String>::new());
        }
    }

    #[test]
    fn a_leaning_is_a_taste_and_no_order() {
        let leaning = vec![Lean { question: "o*e", answer: "answer 3", percent: 50 }];
        let answers: Vec<usize> = (0..200).map(|seed| ask(&mut Decider::leaning(seed, false, &leaning))[1]).collect();
        let leant = answers.iter().filter(|answer| **answer == 3).count();
        assert!((60..140).contains(&leant), "{leant} of 200");
        for seed in 0..50 {
            let mut recorded = Decider::leaning(seed, true, &leaning);
            let answers = ask(&mut recorded);
            assert_eq!(ask(&mut Decider::leaning(seed, false, &leaning)), answers);
            assert_eq!(ask(&mut Decider::replaying(&recorded.take_tape())), answers, "a tape needs no leaning");
        }
        assert!(matches("after * of a", "after force 3 of a") && !matches("a*b*a", "ab"));
    }

    #[test]
    fn leaving_a_line_out_moves_no_other() {
        let tape = Tape::parse("one #2: answer 7\nthree: answer 2\n").expect("a tape");
        assert_eq!(ask(&mut Decider::replaying(&tape)), [0, 7, 2]);
        let tape = Tape::parse("# edited\nthree: answer 2\nfour: never asked\n").expect("a tape");
        let mut replaying = Decider::replaying(&tape);
        assert_eq!(ask(&mut replaying), [0, 0, 2]);
        assert_eq!(replaying.unmet(), ["four: never asked"]);
        assert!(Tape::parse("nonsense").is_err());
    }
}
