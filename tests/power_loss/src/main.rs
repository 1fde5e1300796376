//! `power-loss`: see docs/power-loss.md.

use clap::{Parser, Subcommand};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use plimsoll_power_loss::broker::Program;
use plimsoll_power_loss::device::{Disk, Failure, FileSystem, enter_private_mounts};
use plimsoll_power_loss::images::{self, Rig, Scale, Summary};
use plimsoll_power_loss::load::Work;
use plimsoll_power_loss::store::Kind;
use plimsoll_power_loss::{act, conformance, errors, script, without};
use plimsoll_sim::disk::Profile;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Power loss on real file systems, through a block device that remembers every write and every flush.
#[derive(Parser)]
#[command(after_help = "Exit codes: 0 nothing found, 2 usage or the rig can't work here, 10 something is broken \
(or, of `control`: nothing was found).")]
struct Args {
    /// The broker
    #[arg(long, env = "PLIMSOLL_BIN", value_name = "FILE", global = true, default_value = "plimsoll")]
    plimsoll: PathBuf,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Start the broker on what power losses leave
    Images(Amount),
    /// The same with a broker that does not force: this must be found
    Control {
        /// What it leaves out
        #[arg(value_enum)]
        control: Control,
        #[command(flatten)]
        amount: Amount,
    },
    /// Hold the simulated disk against real file systems
    Conformance {
        /// On which file systems; all of them if none is named
        #[arg(long = "fs", value_enum)]
        file_systems: Vec<FileSystem>,
        /// Sequences of effects: those made by hand, and others from the seed
        #[arg(long, default_value_t = 100)]
        sequences: usize,
        /// Images of each
        #[arg(long, default_value_t = 20)]
        images: usize,
        /// Hold them against this profile instead of their own
        #[arg(long = "as", value_name = "PROFILE", value_parser = profile)]
        profile: Option<&'static Profile>,
        /// This one sequence alone
        #[arg(long, value_name = "STEPS")]
        script: Option<String>,
        /// For everything that is drawn
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Let the device answer by I/O errors under the broker
    Errors {
        /// On which file systems; all of them if none is named
        #[arg(long = "fs", value_enum)]
        file_systems: Vec<FileSystem>,
    },
    /// Look again at an image that was kept
    Repeat {
        /// The file that was named
        case: PathBuf,
    },
    /// Carry out steps in a directory
    #[command(hide = true)]
    Act {
        /// The directory
        directory: PathBuf,
    },
    /// Run a program in which some system calls do nothing and succeed
    #[command(hide = true)]
    Without {
        /// Their name
        call: String,
        /// The program
        #[arg(trailing_var_arg = true, required = true)]
        command: Vec<OsString>,
    },
}

#[derive(clap::Args, Clone)]
struct Amount {
    /// On which file systems; all of them if none is named
    #[arg(long = "fs", value_enum)]
    file_systems: Vec<FileSystem>,
    /// Images on each
    #[arg(long, default_value_t = 3000)]
    images: usize,
    /// Brokers under load, one after the other
    #[arg(long, default_value_t = 8)]
    sessions: u64,
    /// Publishes that each answers
    #[arg(long, default_value_t = 110)]
    replies: u64,
    /// For everything that is drawn
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq)]
enum Control {
    /// No file is forced: DURABLE is answered for what is in the page cache
    Files,
    /// No directory is forced
    Directories,
    /// No directory is forced, and all that happens is rolls
    DirectoriesAtRoll,
}

fn profile(name: &str) -> Result<&'static Profile, String> {
    Profile::named(name).ok_or_else(|| {
        let names = Profile::all().map(|profile| profile.name);
        format!("there are {}", names.join(", "))
    })
}

fn main() -> ExitCode {
    let args = Args::parse();
    match run(args) {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("power-loss: {failure}");
            ExitCode::from(2)
        }
    }
}

fn run(args: Args) -> Result<ExitCode, Failure> {
    if let Verb::Without { call, command } = &args.verb {
        return Err(without::run(call, command));
    }
    if let Verb::Act { directory } = &args.verb {
        return act::serve(directory).map(|()| ExitCode::SUCCESS);
    }
    let own = std::env::current_exe().map_err(|e| Failure::from(format!("this program: {e}")))?;
    let build = own.ancestors().nth(2).unwrap_or(Path::new("")).join("power-loss");
    enter_private_mounts(&build.join("scratch"))?;
    // It is run in another directory. A bare name is looked for in PATH.
    let is_path = args.plimsoll.components().count() > 1;
    let binary = if is_path { std::path::absolute(&args.plimsoll) } else { Ok(args.plimsoll) };
    let binary = binary.map_err(|e| Failure::from(format!("the broker: {e}")))?;
    let plain = Program { binary, before: Vec::new() };
    let leaving_out = |call: &str| {
        let before = [own.clone().into_os_string(), "without".into(), call.into()];
        Program { binary: plain.binary.clone(), before: before.into() }
    };
    match args.verb {
        Verb::Repeat { case } => match images::repeat(&case, &plain)? {
            None => {
                println!("nothing is broken");
                Ok(ExitCode::SUCCESS)
            }
            Some(broken) => {
                println!("{broken}");
                Ok(ExitCode::from(10))
            }
        },
        Verb::Images(amount) => {
            let summaries = on_each(&amount, Work::Everything, &plain, &plain, &build.join("failed"))?;
            Ok(if summaries.iter().all(|summary| summary.broken() == 0) {
                ExitCode::SUCCESS
            } else {
                ExitCode::from(10)
            })
        }
        Verb::Control { control, amount } => {
            let (call, work) = match control {
                Control::Files => ("fdatasync", Work::Everything),
                Control::Directories => ("fsync", Work::Everything),
                Control::DirectoriesAtRoll => ("fsync", Work::DurablePublishes),
            };
            let loaded = leaving_out(call);
            let summaries = on_each(&amount, work, &loaded, &plain, &build.join("failed"))?;
            let seen = |summary: &Summary| match control {
                // Gone, or missed by the broker itself, which then refuses to start (P7).
                Control::Files => summary.lost_acked + summary.refused > 0,
                Control::Directories | Control::DirectoriesAtRoll => summary.broken() > 0,
            };
            Ok(if summaries.iter().all(seen) { ExitCode::SUCCESS } else { ExitCode::from(10) })
        }
        Verb::Conformance { file_systems, sequences, images, profile, script, seed } => {
            let scripts = match script {
                Some(text) => vec![script::parse(&text)],
                None => conformance::scripts(sequences, seed),
            };
            let scale = conformance::Scale { scripts, images, seed, profile };
            let outside = in_parallel(&file_systems, "sequences", |file_system, progress| {
                let mut rig = conformance::Rig::make(file_system, build.join("failed"))?;
                let summary = rig.run(&scale, progress)?;
                let shown =
                    summary.found.iter().take(5).fold(summary.to_string(), |shown, f| format!("{shown}\n  {f}"));
                Ok((shown, summary.outside))
            })?;
            Ok(if outside.iter().all(|outside| *outside == 0) { ExitCode::SUCCESS } else { ExitCode::from(10) })
        }
        Verb::Errors { file_systems } => {
            let kinds = [Kind::Write, Kind::Flush, Kind::Read];
            let kept = in_parallel(&file_systems, "kinds", |file_system, progress| {
                let mut disk = Disk::make(file_system)?;
                let mut lines = Vec::new();
                let mut kept = true;
                for (n, kind) in kinds.into_iter().enumerate() {
                    progress(n, kinds.len());
                    let seen = errors::run(&mut disk, &plain, kind)?;
                    kept &= seen.is_as_promised();
                    lines.push(seen.to_string());
                }
                Ok((lines.join("\n"), kept))
            })?;
            Ok(if kept.iter().all(|kept| *kept) { ExitCode::SUCCESS } else { ExitCode::from(10) })
        }
        Verb::Without { .. } | Verb::Act { .. } => unreachable!("was run above"),
    }
}

fn on_each(
    amount: &Amount,
    work: Work,
    loaded: &Program,
    started: &Program,
    kept: &Path,
) -> Result<Vec<Summary>, Failure> {
    let Amount { images, sessions, replies, seed, .. } = *amount;
    let scale = Scale { images, sessions, replies, seed };
    in_parallel(&amount.file_systems, "images", |file_system, progress| {
        let disk = Disk::make(file_system)?;
        let control = !loaded.before.is_empty();
        let (loaded, started) = (loaded.inside(&disk), started.inside(&disk));
        let mut rig = Rig { disk, loaded, started, control, kept: kept.to_path_buf() };
        let summary = rig.run(work, &scale, progress)?;
        Ok((summary.first.iter().fold(summary.to_string(), |shown, first| format!("{shown}\n  {first}")), summary))
    })
}

/// One thread a file system. Prints for each what it has to show, when it is done.
fn in_parallel<T: Send>(
    file_systems: &[FileSystem],
    what: &str,
    run: impl Fn(FileSystem, &mut dyn FnMut(usize, usize)) -> Result<(String, T), Failure> + Sync,
) -> Result<Vec<T>, Failure> {
    let bars = MultiProgress::new();
    let template = format!("{{prefix:>15}} {{bar:40}} {{pos}}/{{len}} {what}, {{eta}} left");
    let style = ProgressStyle::with_template(&template).expect("a template");
    let file_systems = if file_systems.is_empty() { &FileSystem::ALL } else { file_systems };
    std::thread::scope(|scope| {
        let on = |file_system: FileSystem| {
            let bar = bars.add(ProgressBar::no_length().with_style(style.clone()).with_prefix(file_system.name()));
            let (run, bars) = (&run, &bars);
            scope.spawn(move || {
                let (shown, result) = run(file_system, &mut |done, of| {
                    bar.set_length(of as u64);
                    bar.set_position(done as u64);
                })?;
                bar.finish_and_clear();
                bars.suspend(|| println!("{shown}"));
                Ok(result)
            })
        };
        let threads: Vec<_> = file_systems.iter().map(|file_system| on(*file_system)).collect();
        threads.into_iter().map(|thread| thread.join().expect("a file system's thread")).collect()
    })
}
