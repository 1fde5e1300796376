//! `run`: seeds, one after the other or many at once.

use super::Exit;
use indicatif::{ProgressBar, ProgressStyle};
use plimsoll_sim::batch::{self, Batch, SeedResult};
use plimsoll_sim::mutant::Mutant;
use plimsoll_sim::world::Stats;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Instant;
use std::{fs, thread};

pub(crate) const ABOUT: &str = "Run seeds and hold every promise against what happens";

/// Seeds that overnight mode takes between two entries in its file.
const CHAPTER: u64 = 200;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  plimsoll-sim run --seed 42 -v                one seed, with its figures
  plimsoll-sim run --seed 0 --count 3000       three thousand
  plimsoll-sim run --seed 0 --count 100 --twice    each twice, hashes compared
  plimsoll-sim run --continue overnight.txt    on and on, from where the file says

A failing seed prints the promise that was broken, the step, and one command that reproduces it, and writes its decisions
to a tape. Exit code: 0 nothing found, 10 a promise broken, 11 liveness, 12 the core panicked, 13 not deterministic.")]
pub(crate) struct Args {
    /// The first seed
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// How many seeds
    #[arg(long, default_value_t = 1)]
    count: u64,
    /// Print one JSON object at the end
    #[arg(long)]
    json: bool,
    /// Threads; the result is the same for any number [default: one for each core]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Run each seed twice and compare the hashes (P17)
    #[arg(long)]
    twice: bool,
    /// Print a line for every seed
    #[arg(short, long)]
    verbose: bool,
    /// Go on for ever from the seed in this file, which is kept up to date; Ctrl-C ends it
    #[arg(long = "continue", value_name = "FILE", conflicts_with_all = ["seed", "count"])]
    continue_from: Option<PathBuf>,
    /// Where tapes of failing seeds are written
    #[arg(long, value_name = "DIR", default_value = ".")]
    tapes: PathBuf,
    /// End after so many failing seeds
    #[arg(long, default_value_t = 10)]
    max_failures: u64,
    /// Run a broker with a bug (see `plimsoll-sim mutants --list`)
    #[arg(long, value_name = "NAME")]
    mutant: Option<String>,
}

#[expect(clippy::disallowed_methods, reason = "the rate is for people and decides nothing")]
pub(crate) fn run(args: Args) -> Result<Exit, String> {
    batch::silence_panics();
    let mutant = parse_mutant(args.mutant.as_deref())?;
    let threads = args.threads.map_or_else(cores, usize::from);
    let mut sum = Sum::default();
    let began = Instant::now();
    if let Some(file) = &args.continue_from {
        loop {
            let first = read_seed(file)?;
            let batch = Batch { first, count: CHAPTER, threads, twice: args.twice, mutant };
            run_batch(&batch, &args, &mut sum)?;
            if sum.failures >= args.max_failures {
                break;
            }
            write_seed(file, first + CHAPTER)?;
            eprintln!("{} seeds up to {}, {} failures", sum.seeds, first + CHAPTER - 1, sum.failures);
        }
    } else {
        let batch = Batch { first: args.seed, count: args.count, threads, twice: args.twice, mutant };
        run_batch(&batch, &args, &mut sum)?;
    }
    let elapsed_s = began.elapsed().as_secs_f64();
    if args.json { println!("{}", sum.json(elapsed_s)) } else { println!("{}", sum.text(elapsed_s)) }
    Ok(sum.exit)
}

pub(crate) fn parse_mutant(name: Option<&str>) -> Result<Option<Mutant>, String> {
    name.map(|name| Mutant::named(name).ok_or_else(|| format!("there is no mutant {name}; see plimsoll-sim mutants --list")))
        .transpose()
}

pub(crate) fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

fn read_seed(file: &Path) -> Result<u64, String> {
    match fs::read_to_string(file) {
        Ok(text) => text.trim().parse().map_err(|_| format!("{}: a seed should stand there, not {text:?}", file.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(format!("{}: {error}", file.display())),
    }
}

/// In one step: Ctrl-C may come at any moment.
fn write_seed(file: &Path, seed: u64) -> Result<(), String> {
    let tmp = file.with_extension("tmp");
    fs::write(&tmp, format!("{seed}\n"))
        .and_then(|()| fs::rename(&tmp, file))
        .map_err(|error| format!("{}: {error}", file.display()))
}

fn run_batch(batch: &Batch, args: &Args, sum: &mut Sum) -> Result<(), String> {
    let bar = if std::io::stderr().is_terminal() && batch.count > 1 {
        let style = ProgressStyle::with_template("{pos}/{len} seeds  {per_sec}  {eta} left  {msg}");
        ProgressBar::new(batch.count).with_style(style.expect("a template that is right"))
    } else {
        ProgressBar::hidden()
    };
    let mut trouble = None;
    batch::run(batch, &mut |result| {
        bar.inc(1);
        sum.add(&result);
        if args.verbose {
            bar.suspend(|| println!("{}", one_line(&result)));
        }
        if !result.is_clean() {
            let told = bar.suspend(|| tell_failure(&result, args, batch.mutant));
            if let Err(error) = told {
                trouble = Some(error);
                return false;
            }
            bar.set_message(format!("{} failed", sum.failures));
        }
        sum.failures < args.max_failures
    });
    bar.finish_and_clear();
    trouble.map_or(Ok(()), Err)
}

fn one_line(result: &SeedResult) -> String {
    let stats = &result.stats;
    format!(
        "seed={} steps={} requests={} forces={} rolls={} starts={} kills={} powerLosses={} faults={} hash={:032x} {}",
        result.seed,
        result.steps,
        stats.requests,
        stats.forces,
        stats.rolls,
        stats.starts,
        stats.kills,
        stats.power_losses,
        stats.faults,
        result.hash,
        if result.is_clean() { "ok" } else { result.verdict.promise() },
    )
}

fn tell_failure(result: &SeedResult, args: &Args, mutant: Option<Mutant>) -> Result<(), String> {
    let seed = result.seed;
    if let Some(other) = result.differs {
        println!("FAILED seed={seed} P17: the same seed gave {:032x} and {other:032x}", result.hash);
        println!("  reproduce: plimsoll-sim run --seed {seed} --twice");
        return Ok(());
    }
    let flag = mutant.map_or(String::new(), |mutant| format!(" --mutant {}", mutant.name()));
    println!("FAILED seed={seed} {} at step {}: {}", result.verdict.promise(), result.steps, result.verdict.words());
    let tape = batch::record_seed(seed, mutant).tape;
    let path = args.tapes.join(format!("seed-{seed}.tape"));
    fs::write(&path, tape.to_string()).map_err(|error| format!("{}: {error}", path.display()))?;
    println!("  reproduce: plimsoll-sim run --seed {seed}{flag}");
    println!("  its {} decisions: {}; make it smaller: plimsoll-sim shrink --tape {}", tape.lines.len(), path.display(), path.display());
    Ok(())
}

/// What all seeds were together.
struct Sum {
    seeds: u64,
    failures: u64,
    steps: u64,
    hash: u128,
    total: Stats,
    with_crash: u64,
    without_fault: u64,
    exit: Exit,
}

impl Default for Sum {
    fn default() -> Sum {
        Sum {
            seeds: 0,
            failures: 0,
            steps: 0,
            hash: 0,
            total: Stats::default(),
            with_crash: 0,
            without_fault: 0,
            exit: Exit::Clean,
        }
    }
}

impl Sum {
    fn add(&mut self, result: &SeedResult) {
        let stats = &result.stats;
        self.seeds += 1;
        self.steps += result.steps;
        // Order matters, so that seeds can't change places unnoticed.
        self.hash = self.hash.rotate_left(5) ^ result.hash;
        let total = &mut self.total;
        total.requests += stats.requests;
        total.forces += stats.forces;
        total.rolls += stats.rolls;
        total.packed += stats.packed;
        total.kills += stats.kills;
        total.power_losses += stats.power_losses;
        total.starts += stats.starts;
        total.recoveries_interrupted += stats.recoveries_interrupted;
        total.faults += stats.faults;
        total.armed_never_fired += stats.armed_never_fired;
        self.with_crash += u64::from(stats.kills + stats.power_losses > 1);
        self.without_fault += u64::from(stats.faults == 0);
        if !result.is_clean() {
            self.failures += 1;
            if self.exit == Exit::Clean {
                self.exit = exit_of(result);
            }
        }
    }

    fn text(&self, elapsed_s: f64) -> String {
        let mean = |sum: u64| sum as f64 / self.seeds.max(1) as f64;
        let total = &self.total;
        format!(
            "seeds={} violations={} finalHash={:032x} elapsed={elapsed_s:.1}s seedsPerMinute={:.0} stepsPerSecond={:.0}\n\
             mean a seed: requests={:.1} forces={:.1} rolls={:.2} packed={:.2} kills={:.2} powerLosses={:.2} starts={:.2} \
             recoveriesInterrupted={:.2} faults={:.2} armedNeverFired={:.2}; without any fault: {} seeds",
            self.seeds,
            self.failures,
            self.hash,
            self.seeds as f64 * 60.0 / elapsed_s.max(1e-9),
            self.steps as f64 / elapsed_s.max(1e-9),
            mean(total.requests),
            mean(total.forces),
            mean(total.rolls),
            mean(total.packed),
            mean(total.kills),
            mean(total.power_losses),
            mean(total.starts),
            mean(total.recoveries_interrupted),
            mean(total.faults),
            mean(total.armed_never_fired),
            self.without_fault,
        )
    }

    fn json(&self, elapsed_s: f64) -> String {
        let total = &self.total;
        let fields = [
            ("seeds", self.seeds.to_string()),
            ("violations", self.failures.to_string()),
            ("elapsed_s", format!("{elapsed_s:.3}")),
            ("final_hash", format!("\"{:032x}\"", self.hash)),
            ("steps", self.steps.to_string()),
            ("requests", total.requests.to_string()),
            ("forces", total.forces.to_string()),
            ("rolls", total.rolls.to_string()),
            ("packed", total.packed.to_string()),
            ("kills", total.kills.to_string()),
            ("power_losses", total.power_losses.to_string()),
            ("starts", total.starts.to_string()),
            ("recoveries_interrupted", total.recoveries_interrupted.to_string()),
            ("faults", total.faults.to_string()),
            ("armed_never_fired", total.armed_never_fired.to_string()),
            ("seeds_with_crash", self.with_crash.to_string()),
            ("seeds_without_fault", self.without_fault.to_string()),
        ];
        let fields: Vec<String> = fields.iter().map(|(name, value)| format!("\"{name}\": {value}")).collect();
        format!("{{{}}}", fields.join(", "))
    }
}

fn exit_of(result: &SeedResult) -> Exit {
    if result.differs.is_some() {
        return Exit::NotDeterministic;
    }
    super::exit_of(&result.verdict)
}

#[cfg(test)]
mod tests {
    use plimsoll_sim::world::Verdict;

    #[test]
    fn every_kind_of_failure_has_its_exit_code() {
        assert_eq!(crate::cli::exit_of(&Verdict::Clean) as u8, 0);
        assert_eq!(crate::cli::exit_of(&Verdict::Stuck(String::new())) as u8, 11);
        assert_eq!(crate::cli::exit_of(&Verdict::Panicked(String::new())) as u8, 12);
    }
}
