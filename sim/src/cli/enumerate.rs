//! `enumerate`: every crash of small workloads, every disk that each may leave.

use super::Exit;
use indicatif::{ProgressBar, ProgressStyle};
use plimsoll_core::config::Config;
use plimsoll_sim::enumerate::{Broken, PANIC, Progress, Settings, Tally, WORKLOADS, Workload, enumerate, replay};
use std::time::Instant;

pub(crate) const ABOUT: &str = "Crash small workloads everywhere, in every way, and recover from each";

#[derive(clap::Args)]
#[command(after_help = "\
Each line counts one workload at one depth: depth 1 are crashes of the workload, depth 2 crashes in the recovery of each.

Examples:
  plimsoll-sim enumerate
  plimsoll-sim enumerate --workload roll --workload acks --depth 2 --json
  plimsoll-sim enumerate --workload acks --replay 0:12.0p0,1/4.0k

Exit codes: 0 nothing found, 2 usage (also a workload with more states than the bound), 10 a promise broken,
12 a panic.")]
pub(crate) struct Args {
    /// Only this workload; may be given several times
    #[arg(long, value_name = "NAME", value_parser = workload_named)]
    workload: Vec<&'static Workload>,
    /// Crashes one after the other [default: what --list says]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=4))]
    depth: Option<u8>,
    /// Threads; the result is the same for any number [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// The most disks that one crash may leave; a workload that has more fails
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    states_max: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Stop at the first broken promise
    #[arg(long)]
    first: bool,
    /// Go one way again, as it was printed with a broken promise
    #[arg(long, value_name = "PATH", requires = "workload")]
    replay: Option<String>,
    /// Plant a bug in the broker first
    #[cfg(feature = "planted")]
    #[arg(long, value_name = "BUG", value_parser = bug_named)]
    planted: Option<plimsoll_core::planted::Planted>,
    /// Plant each bug in turn, and say which workload finds it
    #[cfg(feature = "planted")]
    #[arg(long, conflicts_with_all = ["planted", "replay"])]
    controls: bool,
    /// List the workloads
    #[arg(long)]
    list: bool,
}

fn workload_named(name: &str) -> Result<&'static Workload, String> {
    let names: Vec<&str> = WORKLOADS.iter().map(|workload| workload.name).collect();
    WORKLOADS
        .iter()
        .find(|workload| workload.name == name)
        .ok_or_else(|| format!("there is no such workload; there are {}", names.join(", ")))
}

#[expect(clippy::disallowed_methods, reason = "the rate is for people and decides nothing")]
pub(crate) fn run(args: Args) -> Result<Exit, String> {
    if args.list {
        for Workload { name, depth, about, .. } in &WORKLOADS {
            println!("{name:<16} depth={depth}  {about}");
        }
        return Ok(Exit::Clean);
    }
    // A panic is a finding, told with its story; not a hundred thousand backtraces.
    super::end_without_readers(|_| {});
    let configure = |config: &mut Config| {
        #[cfg(feature = "planted")]
        {
            config.planted = args.planted;
        }
        let _ = config;
    };
    if let Some(path) = &args.replay {
        let workload = args.workload[0];
        return Ok(match replay(workload, path, &configure, &mut |told| println!("{told}"))? {
            Some(broken) => {
                println!("broken: {} {}", broken.promise, broken.what);
                Exit::Broken
            }
            None => Exit::Clean,
        });
    }
    let settings = Settings {
        depth: args.depth.map(usize::from),
        threads: match args.threads {
            Some(threads) => threads.into(),
            None => std::thread::available_parallelism().map_or(1, |n| n.get()),
        },
        states_max: args.states_max,
        first_only: args.first,
    };
    let chosen: Vec<&'static Workload> =
        if args.workload.is_empty() { WORKLOADS.iter().collect() } else { args.workload.clone() };
    #[cfg(feature = "planted")]
    if args.controls {
        return controls(&chosen, &settings);
    }
    let begun = Instant::now();
    let mut total = Tally::default();
    let mut stories: Vec<(&'static str, Broken)> = Vec::new();
    for workload in chosen {
        let workload_begun = Instant::now();
        let bar = ProgressBar::new(0);
        if let Ok(style) = ProgressStyle::with_template("{prefix:16} {wide_bar} {pos}/{len} {msg} {elapsed}") {
            bar.set_style(style);
        }
        bar.set_prefix(workload.name);
        let show = |progress: Progress| {
            bar.set_length(progress.of as u64);
            bar.set_position(progress.done as u64);
            bar.set_message(format!("{} states", progress.distinct));
        };
        let findings = enumerate(workload, &settings, &configure, &show);
        bar.finish_and_clear();
        let findings = findings?;
        let elapsed = workload_begun.elapsed().as_secs_f64();
        for (at, tally) in findings.tallies.iter().enumerate() {
            if !args.json {
                println!("workload={} depth={} {} elapsed={elapsed:.1}s", workload.name, at + 1, counts(tally));
            }
            add(&mut total, tally);
        }
        if let Some(broken) = findings.broken {
            stories.push((workload.name, broken));
        }
    }
    let elapsed = begun.elapsed().as_secs_f64();
    #[cfg(feature = "planted")]
    let planted = args.planted.map(|bug| format!(" --planted {bug:?}")).unwrap_or_default();
    #[cfg(not(feature = "planted"))]
    let planted = String::new();
    for (workload, broken) in &stories {
        tell(workload, broken, &planted);
    }
    // A promise may also break in the workload itself, before any crash.
    let violations = total.violations.max(stories.len() as u64);
    if args.json {
        println!(
            "{{\"states\":{},\"distinct\":{},\"crash_points\":{},\"ops\":{},\"violations\":{violations},\
             \"elapsed_s\":{elapsed:.3},\"final_hash\":\"{:032x}\"}}",
            total.states, total.distinct, total.crash_points, total.ops, total.hash
        );
    } else {
        let rate = total.distinct as f64 / elapsed.max(0.001);
        println!(
            "total {} elapsed={elapsed:.1}s rate={rate:.0}/s final_hash={:032x}",
            counts(&total),
            total.hash
        );
    }
    let panicked = stories.iter().any(|(_, broken)| broken.promise == PANIC);
    Ok(match violations {
        0 => Exit::Clean,
        _ if panicked => Exit::Panicked,
        _ => Exit::Broken,
    })
}

#[cfg(feature = "planted")]
fn bug_named(name: &str) -> Result<plimsoll_core::planted::Planted, String> {
    use plimsoll_core::planted::Planted;
    let plain = |name: &str| name.replace('-', "").to_lowercase();
    let found = Planted::ALL.iter().find(|(bug, _)| plain(&format!("{bug:?}")) == plain(name));
    found.map(|(bug, _)| *bug).ok_or_else(|| {
        let names: Vec<String> = Planted::ALL.iter().map(|(bug, _)| format!("{bug:?}")).collect();
        format!("there is no such bug; there are {}", names.join(", "))
    })
}

/// Plants each bug in turn; the fewest crashes that show it are looked for first.
#[cfg(feature = "planted")]
fn controls(workloads: &[&'static Workload], settings: &Settings) -> Result<Exit, String> {
    use plimsoll_core::planted::Planted;
    let deepest = settings.depth.unwrap_or(2);
    let mut missed = 0;
    for (bug, _) in Planted::ALL {
        let configure = |config: &mut Config| config.planted = Some(bug);
        let mut distinct = 0;
        let mut found = None;
        let ways = (1..=deepest).flat_map(|depth| workloads.iter().map(move |workload| (depth, workload)));
        for (depth, workload) in ways.filter(|(depth, workload)| *depth <= workload.depth) {
            let settings = Settings { depth: Some(depth), threads: 1, first_only: true, ..settings.clone() };
            let findings = enumerate(workload, &settings, &configure, &|_| {})?;
            distinct += findings.tallies.iter().map(|tally| tally.distinct).sum::<u64>();
            if let Some(broken) = findings.broken {
                found = Some((workload.name, broken));
                break;
            }
        }
        let bug = format!("{bug:?}");
        match found {
            Some((workload, broken)) => println!(
                "bug={bug} promise={} workload={workload} states={distinct} replay={} what={}",
                broken.promise,
                broken.path.join("/"),
                broken.what
            ),
            None => {
                missed += 1;
                println!("bug={bug} promise=- states={distinct}");
            }
        }
    }
    println!("found={} missed={missed}", Planted::ALL.len() - missed);
    Ok(if missed == 0 { Exit::Clean } else { Exit::Broken })
}

fn counts(tally: &Tally) -> String {
    format!(
        "ops={} crashPoints={} states={} distinct={} violations={}",
        tally.ops, tally.crash_points, tally.states, tally.distinct, tally.violations
    )
}

fn add(total: &mut Tally, tally: &Tally) {
    total.ops += tally.ops;
    total.crash_points += tally.crash_points;
    total.states += tally.states;
    total.distinct += tally.distinct;
    total.violations += tally.violations;
    total.hash = total.hash.rotate_left(1).wrapping_add(tally.hash);
}

fn tell(workload: &str, broken: &Broken, planted: &str) {
    eprintln!("\nworkload {workload} breaks {}: {}", broken.promise, broken.what);
    for (at, crash) in broken.story.iter().enumerate() {
        eprintln!("  {}. {crash}", at + 1);
    }
    let how = match &broken.path[..] {
        // Before any crash.
        [] => "--depth 1".to_owned(),
        path => format!("--replay '{}'", path.join("/")),
    };
    eprintln!("  again: plimsoll-sim enumerate --workload {workload} {how}{planted}");
}
