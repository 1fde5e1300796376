//! Makes a failing tape smaller: leaves out every decision that the failure does not need (ddmin, Zeller and Hildebrandt,
//! 2002). Workload, configuration, faults and losses are all decisions, so one procedure shrinks them all.

use crate::batch;
use crate::mutant::Mutant;
use crate::tape::{Tape, TapeLine};

/// What a shrinking came to.
pub struct Shrunk {
    /// The smallest tape that was found; it fails by the same promise.
    pub tape: Tape,
    /// How many tapes were tried.
    pub tried: u64,
}

/// Shrinks a tape that breaks `promise`. `budget`: how many tapes may be tried.
pub fn shrink(tape: &Tape, mutant: Option<Mutant>, promise: &str, budget: u64) -> Shrunk {
    let mut tried = 0;
    let mut fails = |lines: &[TapeLine]| {
        tried += 1;
        let candidate = Tape { comments: Vec::new(), lines: lines.to_vec() };
        let finished = batch::replay(&candidate, mutant, false);
        // What it really decided: answers that were never asked for fall away, and the failure stays.
        (finished.verdict.promise() == promise).then_some(finished.tape)
    };
    let mut best = match fails(&tape.lines) {
        Some(tape) => tape,
        None => return Shrunk { tape: tape.clone(), tried },
    };
    loop {
        let before = best.lines.len();
        let mut chunks = 2;
        let mut spent = 0;
        while !best.lines.is_empty() && spent < budget {
            let size = best.lines.len().div_ceil(chunks);
            let mut found = false;
            let mut from = 0;
            while from < best.lines.len() && spent < budget {
                let to = (from + size).min(best.lines.len());
                let rest = [&best.lines[..from], &best.lines[to..]].concat();
                spent += 1;
                match fails(&rest) {
                    Some(smaller) if smaller.lines.len() < best.lines.len() => {
                        best = smaller;
                        found = true;
                    }
                    _ => from = to,
                }
            }
            if !found {
                if size == 1 {
                    break;
                }
                chunks = (chunks * 2).min(best.lines.len());
            } else {
                chunks = chunks.min(best.lines.len()).max(2);
            }
        }
        // Leaving one out may have made another needless.
        if best.lines.len() == before || spent >= budget {
            return Shrunk { tape: best, tried };
        }
    }
}
