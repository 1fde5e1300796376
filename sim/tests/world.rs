//! The simulated world as a test: a fixed set of seeds, the tape of every bug that it has found, and proof that it can fail.

use plimsoll_sim::batch::{self, Batch};
use plimsoll_sim::mutant::Mutant;
use plimsoll_sim::tape::Tape;
use plimsoll_sim::world::Verdict;
use std::fs;
use std::path::Path;

#[test]
fn every_bug_found_so_far_stays_fixed() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tapes");
    let mut tapes = 0;
    for entry in fs::read_dir(dir).expect("the directory of tapes") {
        let path = entry.expect("an entry").path();
        let tape = Tape::parse(&fs::read_to_string(&path).expect("a file")).expect("a tape");
        let finished = batch::replay(&tape, None, false);
        assert_eq!(finished.verdict, Verdict::Clean, "{}", path.display());
        tapes += 1;
    }
    assert!(tapes >= 15, "the tapes are gone");
}

/// P17, and what everything else rests on.
#[test]
fn seeds_are_clean_and_repeat_on_any_number_of_threads() {
    let run = |threads| {
        let mut hashes = Vec::new();
        let batch = Batch { first: 0, count: 24, threads, twice: false, mutant: None };
        batch::run(&batch, &mut |result| {
            assert!(result.is_clean(), "seed {}: {}", result.seed, result.verdict.words());
            hashes.push(result.hash);
            true
        });
        hashes
    };
    let hashes = run(1);
    assert_eq!(hashes.len(), 24);
    assert_eq!(run(3), hashes);
}

#[test]
fn a_tape_is_the_run_that_it_was_recorded_from() {
    for seed in 100..108 {
        let recorded = batch::record_seed(seed, None);
        let tape = Tape::parse(&recorded.tape.to_string()).expect("a tape");
        let replayed = batch::replay(&tape, None, false);
        assert_eq!((replayed.hash, &replayed.verdict), (recorded.hash, &recorded.verdict), "seed {seed}");
        assert_eq!(replayed.unmet, Vec::<String>::new(), "seed {seed}");
    }
}

#[test]
fn every_mutant_is_caught() {
    for mutant in Mutant::ALL {
        let caught = (0..300).any(|seed| !batch::run_seed(seed, Some(mutant), true).is_clean());
        assert!(caught, "{} survives 300 seeds", mutant.name());
    }
    for (mutant, _) in Mutant::EQUIVALENTS {
        let caught = (0..10).find(|seed| !batch::run_seed(*seed, Some(mutant), true).is_clean());
        assert_eq!(caught, None, "{} is no equivalent", mutant.name());
    }
}

#[test]
fn a_failure_shrinks_to_a_few_decisions_and_still_fails() {
    let mutant = Some(Mutant::DropForceDirOfLog);
    let seed = (0..100).find(|seed| !batch::run_seed(*seed, mutant, false).is_clean()).expect("it is caught");
    let whole = batch::record_seed(seed, mutant);
    let promise = whole.verdict.promise();
    let shrunk = plimsoll_sim::shrink::shrink(&whole.tape, mutant, promise, 3000);
    assert!(shrunk.tape.lines.len() <= 12, "{}", shrunk.tape);
    assert_eq!(batch::replay(&shrunk.tape, mutant, false).verdict.promise(), promise);
}
