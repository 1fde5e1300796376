//! `planted`: bugs in the broker's own source, each found from a random start and shrunk to a tape that a person can read.

use super::Exit;

pub(crate) const ABOUT: &str = "Find the bugs that can be planted in the broker, and shrink each to a short tape";

#[derive(clap::Args)]
#[command(after_help = "Needs a build with the bugs in it:

  cargo run --release -p plimsoll-sim --features planted -- planted

Each line: the bug, the promise that it is made to break, the promise whose check caught it first, how many seeds that took, and how many \
decisions are left of the tape after shrinking. A tape can be kept with --tapes and looked at with `plimsoll-sim replay`.

Every hunt leans: its worlds are small and have the means of the bug more often than others (docs/simulation.md). Which of them has it, and \
whether anything comes of it, is left to the seed. Exit code 14 if a bug survives, or if no tape of it is short enough.")]
pub(crate) struct Args {
    /// Only this bug; may be given several times
    #[arg(long, value_name = "NAME")]
    bug: Vec<String>,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// After so many seeds one has survived
    #[arg(long, default_value_t = 10_000)]
    seeds_max: u64,
    /// Seconds after which a bug is given up, or the shortest of its tapes so far is taken
    #[arg(long, default_value_t = 300)]
    seconds_max: u64,
    /// The most decisions that a shrunk tape may have
    #[arg(long, default_value_t = 12)]
    decisions_max: usize,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
    /// Where the shrunk tapes are written
    #[arg(long, value_name = "DIR")]
    tapes: Option<std::path::PathBuf>,
    /// Threads [default: one for each core]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

#[cfg(not(feature = "planted"))]
pub(crate) fn run(_: Args) -> Result<Exit, String> {
    Err("this build has no bugs to plant; build it with --features planted".into())
}

#[cfg(feature = "planted")]
pub(crate) use hunt::run;

#[cfg(feature = "planted")]
mod hunt {
    use super::super::run::cores;
    use super::{Args, Exit};
    use plimsoll_core::planted::Planted;
    use plimsoll_sim::batch::{self, Batch};
    use plimsoll_sim::mutant::Mutant;
    use plimsoll_sim::shrink::shrink_until;
    use plimsoll_sim::tape::{Lean, Leaning, Tape};
    use plimsoll_sim::world::Verdict;
    use indicatif::{ProgressBar, ProgressStyle};
    use std::fs;
    use std::io::IsTerminal;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Instant;

    /// A run is given up after so many: a long one makes a long tape.
    const STEPS_MAX: u64 = 5000;
    /// How many tapes a shrinking may try.
    const SHRINK_BUDGET: u64 = 3000;
    /// A round looks for so many failing seeds, or through so many seeds.
    const FOUND_MAX: usize = 12;
    const SEEDS_A_ROUND: u64 = 60;
    /// So many of its shortest tapes are shrunk.
    const SHRUNK_A_ROUND: usize = 4;

    const fn lean(question: &'static str, answer: &'static str, percent: u64) -> Lean {
        Lean { question, answer, percent }
    }

    /// Small worlds, in which crashes are frequent: what they find is short.
    const SMALL: [Lean; 4] = [
        // Those in which something is packed live longer.
        lean("plan, packs", "no", 95),
        lean("plan, actions of all clients", "12", 90),
        lean("plan, actions of all clients", "30", 60),
        lean("plan, crashes", "both", 75),
    ];

    /// Which worlds a bug is hunted in more often: those that have its means. Seeds decide the rest, and whether anything comes of it.
    fn leaning(bug: Planted) -> Leaning {
        let tiny_segments = || vec![lean("plan, segment bytes", "512", 70)];
        let failing_forces = || vec![lean("plan, force errors", "one in 25", 80)];
        let consumer = || vec![lean("plan, clients", "2", 70), lean("plan, client 1", "consumer", 80)];
        let purger = || vec![lean("plan, purges", "yes", 95), lean("client *, action", "purges", 20)];
        let alone_and_busy =
            || vec![lean("plan, clients", "1", 80), lean("client *, action", "publishes several at once", 25)];
        let worker = || {
            vec![
                lean("plan, clients", "2", 70),
                lean("plan, client 1", "consumer", 80),
                lean("plan, work queues", "1", 95),
                lean("client 1, action", "reserves", 35),
                lean("client 1, action", "confirms all", 25),
            ]
        };
        let no_queues = || vec![lean("plan, work queues", "0", 90)];
        let at_the_disk = || vec![lean("somebody is at the disk", "while it is stopped", 80)];
        let more = match bug {
            Planted::NoPadding => {
                vec![lean("plan, file system", "posix-torn", 80), lean("after write * of */log/", "power lost", 15)]
            }
            Planted::TailInPlace => vec![
                lean("after write * of */log/", "power lost", 15),
                lean("after cut * of */log/", "power lost", 15),
                lean("sector 0 of */watermark", "old", 50),
            ],
            Planted::RemovalBeforeStart | Planted::NewestFirst => [tiny_segments(), purger()].concat(),
            Planted::RenewedNameBelieved => [
                tiny_segments(),
                no_queues(),
                purger(),
                failing_forces(),
                vec![
                    lean("after write * of */watermark", "process killed", 25),
                    lean("force-dir * of default", "fails", 20),
                    lean("after remove * of */log/", "power lost", 40),
                ],
            ]
            .concat(),
            Planted::DeletedInPlace => vec![
                lean("plan, deletes", "yes", 95),
                lean("client *, action", "makes a topic anew", 30),
                lean("after remove * of t", "power lost", 20),
            ],
            Planted::PolicyTakesOneMore => [tiny_segments(), vec![lean("plan, retention", "bytes", 90)]].concat(),
            Planted::CapacityDrops => [
                tiny_segments(),
                vec![
                    lean("plan, retention", "capacity, reject", 50),
                    lean("plan, retention", "total capacity, reject", 80),
                ],
            ]
            .concat(),
            Planted::AnchorAlone => [
                tiny_segments(),
                purger(),
                alone_and_busy(),
                vec![
                    lean("after write * of */watermark", "power lost", 15),
                    lean("sector 0 of */watermark", "old", 30),
                    lean("sector 8 of */watermark", "garbage", 60),
                ],
            ]
            .concat(),
            Planted::RemovalBeforeAnchoring => [
                tiny_segments(),
                purger(),
                vec![
                    lean("after write * of */watermark", "process killed", 25),
                    lean("after remove * of */log/", "power lost", 30),
                    lean("sector 0 of */watermark", "old", 60),
                ],
            ]
            .concat(),
            Planted::HoleBelowStart => [
                tiny_segments(),
                purger(),
                alone_and_busy(),
                vec![lean("after remove * of */log/", "power lost", 40), lean("removal of *", "lost", 30)],
            ]
            .concat(),
            Planted::RollWithoutAnchor => [
                tiny_segments(),
                vec![lean("after * of */log", "power lost", 10), lean("sector 0 of */watermark", "old", 50)],
            ]
            .concat(),
            Planted::RunningSlotFirst => vec![lean("after write * of */watermark", "power lost", 25)],
            Planted::CleanByEquality => {
                [tiny_segments(), failing_forces(), vec![lean("force-dir * of */log", "fails", 20)]].concat()
            }
            Planted::NoTopicsForce => {
                [failing_forces(), vec![lean("force-dir * of topics", "fails", 20)]].concat()
            }
            Planted::NameComesBack => [
                failing_forces(),
                vec![
                    lean("after rename * to default", "process killed", 40),
                    lean("force-dir * of topics", "fails", 40),
                    lean("after remove * of default.tmp/", "power lost", 20),
                ],
            ]
            .concat(),
            Planted::NoGroupRewrite => [
                consumer(),
                failing_forces(),
                vec![lean("client 1, action", "acknowledges", 30), lean("force-dir * of */groups", "fails", 40)],
            ]
            .concat(),
            Planted::NoSettingsRewrite => [
                failing_forces(),
                vec![lean("client *, action", "alters a topic", 40), lean("force-dir * of topics/default", "fails", 40)],
            ]
            .concat(),
            Planted::NoDirectoryForceAtAlter => vec![lean("client *, action", "alters a topic", 40)],
            Planted::AckPastDelivery => {
                [consumer(), vec![lean("client *, action", "acknowledges what it was not sent", 20)]].concat()
            }
            Planted::SeekUnbounded => vec![lean("client *, action", "seeks", 20)],
            Planted::KnownSalt => vec![
                lean("client *, action", "publishes a frame", 60),
                lean("client *, bytes before it", "600", 80),
                lean("after write * of */log/", "power lost", 20),
                lean("dirty sectors of", "each by itself", 60),
            ],
            Planted::ValidFrameIsEvidence | Planted::EvidenceOffByOne => {
                vec![lean("plan, payload bytes", "700", 50), lean("after write * of */log/", "power lost", 10)]
            }
            Planted::BatchInTwoFrames => vec![
                lean("plan, batches", "yes", 80),
                lean("client *, action", "publishes a batch", 40),
                lean("after write * of */log/", "power lost", 10),
            ],
            Planted::WindowForgotten | Planted::RepeatAnsweredAtOnce => vec![
                lean("plan, producers with ids", "1", 80),
                lean("client *, action", "publishes with an id", 30),
                lean("client *, action", "repeats a publish", 30),
            ],
            Planted::ConfirmBeforeForce => worker(),
            Planted::RemovalBeforeCheckpoint => {
                [worker(), vec![lean("plan, journal bytes", "512", 95), lean("client 1, action", "gives back", 30)]]
                    .concat()
            }
            Planted::LeaseWithoutOwner => {
                [worker(), vec![lean("client *, action", "confirms what it does not have", 20)]].concat()
            }
            Planted::DeliveriesForgotten => {
                [worker(), vec![lean("after write * of */queues/", "process killed", 15)]].concat()
            }
            Planted::ConfirmBeforeBurial => [
                worker(),
                vec![
                    lean("plan, max deliveries", "1", 90),
                    lean("client 1, action", "gives back", 30),
                    lean("after write * of */queues/", "process killed", 15),
                ],
            ]
            .concat(),
            Planted::RenameBeforePackForce => [
                worker(),
                vec![
                    lean("plan, packs", "yes", 95),
                    lean("plan, packed segment bytes", "512", 80),
                    lean("after force-dir * of */log", "power lost", 20),
                    lean("after rename * to */log/", "power lost", 60),
                ],
            ]
            .concat(),
            Planted::NoTailCopy => [failing_forces(), vec![lean("force * of */log/", "fails", 20)]].concat(),
            Planted::SidecarBelieved => [
                tiny_segments(),
                no_queues(),
                vec![
                    lean("plan, index stride", "1", 80),
                    lean("plan, index bytes", "0", 80),
                    lean("plan, recent bytes", "0", 80),
                    lean("operator, before *", "meddles with an index", 30),
                    lean("operator, before * deed", "is another one's", 80),
                ],
            ]
            .concat(),
            Planted::ResetUnreadableOffset | Planted::LeftoversBeforeJudgement => at_the_disk(),
            Planted::LengthOnlyRecovery => vec![
                lean("plan, payload bytes", "700", 80),
                lean("after write * of */log/", "power lost", 15),
                lean("dirty sectors of", "the first ones new", 50),
            ],
            Planted::NoByteSearch | Planted::TruncateWithoutEvidence => {
                [at_the_disk(), vec![lean("damage, deed", "a bit flips in its log", 30)]].concat()
            }
            Planted::GroupsNoEvidence => {
                [at_the_disk(), vec![lean("damage, deed", "an old copy of its log", 50)]].concat()
            }
            _ => Vec::new(),
        };
        [more, SMALL.to_vec()].concat()
    }

    struct Row {
        bug: String,
        expected: &'static str,
        /// Promise, seeds, the shortest tape; `None`: it survived.
        caught: Option<(&'static str, u64, Tape)>,
    }

    #[expect(clippy::disallowed_methods, reason = "the rate is for people and decides nothing")]
    pub(crate) fn run(args: Args) -> Result<Exit, String> {
        batch::silence_panics();
        let threads = args.threads.map_or_else(cores, usize::from);
        for name in &args.bug {
            if !Planted::ALL.iter().any(|(bug, _)| name_of(*bug) == *name) {
                let names: Vec<String> = Planted::ALL.iter().map(|(bug, _)| name_of(*bug)).collect();
                return Err(format!("there is no bug {name}; there are {}", names.join(", ")));
            }
        }
        let began = Instant::now();
        let (mut rows, mut survived, mut long) = (Vec::new(), 0, 0);
        for (bug, expected) in Planted::ALL {
            let name = name_of(bug);
            if !args.bug.is_empty() && !args.bug.contains(&name) {
                continue;
            }
            let caught = hunt(bug, &args, threads);
            if let (Some(dir), Some((_, _, tape))) = (&args.tapes, &caught) {
                let path = dir.join(format!("{name}.tape"));
                fs::write(&path, tape.to_string()).map_err(|error| format!("{}: {error}", path.display()))?;
            }
            survived += u64::from(caught.is_none());
            long += u64::from(caught.as_ref().is_some_and(|(_, _, tape)| tape.lines.len() > args.decisions_max));
            let row = Row { bug: name, expected, caught };
            if !args.json {
                println!("{}", row.text());
            }
            rows.push(row);
        }
        if args.json {
            let rows: Vec<String> = rows.iter().map(Row::json).collect();
            println!("[{}]", rows.join(",\n "));
        } else {
            let elapsed = began.elapsed().as_secs_f64();
            println!("bugs={} survived={survived} longTapes={long} elapsed={elapsed:.1}s", rows.len());
        }
        Ok(if survived + long == 0 { Exit::Clean } else { Exit::Gate })
    }

    fn name_of(bug: Planted) -> String {
        Mutant::Planted(bug).name().trim_start_matches("planted-").to_owned()
    }

    /// Seeds until one notices, and the shortest tape of some that do. A short tape shrinks in a moment and a long one in minutes, so
    /// the shortest are shrunk first, and no more seeds are looked for than it takes to find one that becomes short enough.
    #[expect(clippy::disallowed_methods, reason = "the time says when a hunt is given up, and nothing about what is found")]
    fn hunt(bug: Planted, args: &Args, threads: usize) -> Option<(&'static str, u64, Tape)> {
        let (leaning, mutant) = (leaning(bug), Some(Mutant::Planted(bug)));
        let mut next = args.seed;
        let end = args.seed.saturating_add(args.seeds_max);
        let mut first: Option<(&'static str, u64)> = None;
        let mut shortest: Option<Tape> = None;
        let mut failing: Vec<(&'static str, Tape)> = Vec::new();
        let began = Instant::now();
        let is_late = || began.elapsed().as_secs() >= args.seconds_max;
        let progress = progress(args, &name_of(bug));
        while next < end && !is_late() {
            let batch = Batch { first: next, count: (end - next).min(1000), threads, twice: false, mutant };
            let found_before = failing.len();
            let hunted = |seed| {
                let found = batch::record_leaning(seed, &leaning, mutant, STEPS_MAX);
                let is_clean = found.verdict == Verdict::Clean;
                // What the broker without the bug does too is no proof.
                let is_proof = !is_clean
                    && batch::record_leaning(seed, &leaning, None, STEPS_MAX).verdict == Verdict::Clean;
                (seed, is_proof.then(|| (found.verdict.promise(), found.tape)))
            };
            batch::in_order(&batch, &hunted, &mut |(seed, found)| {
                progress.inc(1);
                next = seed + 1;
                if let Some((promise, tape)) = found {
                    first.get_or_insert((promise, seed - args.seed + 1));
                    failing.push((promise, tape));
                }
                let is_enough = failing.len() >= found_before + FOUND_MAX
                    || (failing.len() > found_before && next - batch.first >= SEEDS_A_ROUND);
                !is_enough && !is_late()
            });
            failing.sort_by_key(|(_, tape)| std::cmp::Reverse(tape.lines.len()));
            for _ in 0..SHRUNK_A_ROUND.div_ceil(threads) {
                let chosen = failing.split_off(failing.len().saturating_sub(threads));
                let tapes = shrink_all(&chosen, mutant, args.decisions_max, &is_late);
                for tape in tapes {
                    if shortest.as_ref().is_none_or(|shortest| tape.lines.len() < shortest.lines.len()) {
                        shortest = Some(tape);
                    }
                }
                if shortest.as_ref().is_some_and(|tape| tape.lines.len() <= args.decisions_max) {
                    progress.finish_and_clear();
                    let (promise, seeds) = first?;
                    return Some((promise, seeds, shortest?));
                }
            }
        }
        progress.finish_and_clear();
        let (promise, seeds) = first?;
        Some((promise, seeds, shortest?))
    }

    /// The smallest tapes of these, or less once one of them is short enough.
    fn shrink_all(
        tapes: &[(&'static str, Tape)],
        mutant: Option<Mutant>,
        decisions_max: usize,
        is_late: &(dyn Fn() -> bool + Sync),
    ) -> Vec<Tape> {
        let is_found = AtomicBool::new(false);
        let shrink_one = |(promise, tape): &(&'static str, Tape)| {
            let shrunk = shrink_until(tape, mutant, promise, SHRINK_BUDGET, &|| {
                is_found.load(Ordering::Relaxed) || is_late()
            })
            .tape;
            is_found.fetch_or(shrunk.lines.len() <= decisions_max, Ordering::Relaxed);
            shrunk
        };
        std::thread::scope(|scope| {
            let shrinking: Vec<_> =
                tapes.iter().map(|failing| scope.spawn(|| shrink_one(failing))).collect();
            shrinking.into_iter().map(|thread| thread.join().expect("shrinking does not panic")).collect()
        })
    }

    fn progress(args: &Args, name: &str) -> ProgressBar {
        if !std::io::stderr().is_terminal() {
            return ProgressBar::hidden();
        }
        let style = ProgressStyle::with_template("{msg}  {pos}/{len} seeds  {per_sec}");
        ProgressBar::new(args.seeds_max).with_style(style.expect("a template that is right")).with_message(name.to_owned())
    }

    impl Row {
        fn text(&self) -> String {
            let Row { bug, expected, caught } = self;
            match caught {
                None => format!("{bug:<26} {expected:<4} SURVIVED"),
                Some((promise, seeds, tape)) => format!(
                    "{bug:<26} {expected:<4} caught by {promise:<8} seeds {seeds:<5} decisions {}",
                    tape.lines.len()
                ),
            }
        }

        fn json(&self) -> String {
            let Row { bug, expected, caught } = self;
            let caught = caught.as_ref().map_or("null".to_owned(), |(promise, seeds, tape)| {
                format!("{{\"promise\": \"{promise}\", \"seeds\": {seeds}, \"decisions\": {}}}", tape.lines.len())
            });
            format!("{{\"bug\": \"{bug}\", \"expected\": \"{expected}\", \"caught\": {caught}}}")
        }
    }
}
