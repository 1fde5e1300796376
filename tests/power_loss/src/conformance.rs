//! The simulated disk against real file systems: what a power loss leaves of a sequence of effects on a real one must be
//! among what the simulator's profile of it allows, and among what it allows at its harshest.

use crate::act::Actor;
use crate::crash::{Crashes, Planned, plan};
use crate::device::{Disk, Failure, FileSystem};
use crate::script::{BY_HAND, Interpreter, Script, generate, parse};
use crate::store::Image;
use plimsoll_core::effect::EffectId;
use plimsoll_sim::disk::{Options, POSIX, Profile, Seeded, SimDisk, Tree};
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How much is done.
#[derive(Clone, Debug)]
pub struct Scale {
    /// The sequences.
    pub scripts: Vec<Script>,
    /// Images of each.
    pub images: usize,
    /// For everything that is drawn.
    pub seed: u64,
    /// The profile that must allow what is seen, instead of the file system's own. Then it is no evidence, and no image is
    /// kept.
    pub profile: Option<&'static Profile>,
}

/// So many sequences: those made by hand, and behind them others from the seed.
pub fn scripts(count: usize, seed: u64) -> Vec<Script> {
    let mut draws = Seeded::new(seed, 5);
    let by_hand = BY_HAND.iter().map(|text| parse(text));
    by_hand.chain(std::iter::repeat_with(|| generate(draws.next_u64()))).take(count).collect()
}

/// What was seen.
#[derive(Clone, Debug)]
pub struct Summary {
    /// On which file system.
    pub file_system: FileSystem,
    /// Sequences that were carried out.
    pub sequences: usize,
    /// Images that were built.
    pub images: usize,
    /// Different contents among them, each of which was looked at.
    pub distinct: usize,
    /// Different trees that were found, over all sequences.
    pub trees: usize,
    /// Images whose tree the simulator does not allow, or that can't be mounted or read.
    pub outside: u64,
    /// The first of each sequence, in words.
    pub found: Vec<String>,
    /// How long it took.
    pub elapsed: Duration,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary { sequences, images, distinct, trees, outside, .. } = self;
        write!(f, "fs={} sequences={sequences} images={images} distinct={distinct}", self.file_system.name())?;
        write!(f, " trees={trees} outside={outside} elapsed={:.0?}", self.elapsed)
    }
}

/// A disk to try sequences on.
pub struct Rig {
    disk: Disk,
    /// With an empty directory to work in.
    empty: Image,
    /// Where images are kept that the simulator does not allow.
    kept: PathBuf,
}

impl Rig {
    /// Makes one.
    ///
    /// # Errors
    /// One line that says what is missing.
    pub fn make(file_system: FileSystem, kept: PathBuf) -> Result<Rig, Failure> {
        let mut disk = Disk::make(file_system)?;
        disk.mount()?;
        let made = Actor::start(&disk, disk.at())?.step("make-dir data");
        disk.unmount()?;
        made?;
        let empty = disk.store.image();
        Ok(Rig { disk, empty, kept })
    }

    /// Carries out every sequence, and holds each image against the simulated disk.
    ///
    /// # Errors
    /// When the rig itself can't work.
    pub fn run(&mut self, scale: &Scale, progress: &mut dyn FnMut(usize, usize)) -> Result<Summary, Failure> {
        let begun = Instant::now();
        let mut summary = Summary {
            file_system: self.disk.file_system(),
            sequences: scale.scripts.len(),
            images: 0,
            distinct: 0,
            trees: 0,
            outside: 0,
            found: Vec::new(),
            elapsed: Duration::ZERO,
        };
        for (n, script) in scale.scripts.iter().enumerate() {
            progress(n, scale.scripts.len());
            self.try_out(script, scale, scale.seed + n as u64, &mut summary)?;
        }
        progress(scale.scripts.len(), scale.scripts.len());
        summary.elapsed = begun.elapsed();
        Ok(summary)
    }

    fn try_out(&mut self, script: &Script, scale: &Scale, seed: u64, summary: &mut Summary) -> Result<(), Failure> {
        let profiles = [scale.profile.unwrap_or(self.disk.file_system().profile()), &POSIX];
        let simulated = profiles.map(|profile| simulate(profile, script));
        self.disk.reload(self.empty.clone())?;
        self.disk.mount()?;
        let data = self.disk.at().join("data");
        let store = self.disk.store.clone();
        store.set_overtaking(true);
        // The position of the log behind each step; the first stands before all of them.
        let mut positions = vec![store.position()];
        let disk = &self.disk;
        let mut carry_out = || {
            let mut actor = Actor::start(disk, &data)?;
            for step in script {
                actor.step(step)?;
                positions.push(store.position());
            }
            // The kernel writes back what is left, and power fails in the middle of that too.
            actor.step("settle")
        };
        let done = carry_out();
        store.set_overtaking(false);
        let log = store.log();
        self.disk.unmount()?;
        done.map_err(|failure| Failure::from(format!("{}: {failure}", script.join("; "))))?;

        let plan = plan(&log, positions[0], scale.images, seed);
        summary.images += plan.images;
        summary.distinct += plan.distinct.len();
        let mut crashes = Crashes::new(&log);
        let mut trees: Vec<Tree> = Vec::new();
        let mut told = false;
        for planned in &plan.distinct {
            crashes.go_to(planned.crash.position);
            let image = crashes.image(planned.crash.kept);
            let outside = match self.read(&image)? {
                Err(why) => Some(why),
                Ok(tree) => {
                    let outside = outside(&simulated, &positions, planned, &tree);
                    if !trees.contains(&tree) {
                        trees.push(tree);
                    }
                    outside
                }
            };
            let Some(why) = outside else { continue };
            summary.outside += 1;
            if !told {
                told = true;
                summary.found.push(match scale.profile {
                    None => self.keep(script, planned, seed, &image, &why)?,
                    Some(_) => why,
                });
            }
        }
        summary.trees += trees.len();
        Ok(())
    }

    /// What is found on an image, or why nothing is.
    fn read(&mut self, image: &Image) -> Result<Result<Tree, String>, Failure> {
        self.disk.reload(image.clone())?;
        if let Err(failure) = self.disk.mount() {
            return Ok(Err(failure.to_string()));
        }
        let data = self.disk.at().join("data");
        let tree = Actor::start(&self.disk, &data).and_then(|mut actor| actor.tree());
        self.disk.unmount()?;
        Ok(tree.map_err(|failure| failure.to_string()))
    }

    fn keep(&self, script: &Script, planned: &Planned, seed: u64, image: &Image, why: &str) -> Result<String, Failure> {
        let failed = |error: std::io::Error| Failure::from(format!("{}: {error}", self.kept.display()));
        let name = self.disk.file_system().name();
        let path = self.kept.join(format!("conformance-{name}-seed{seed}.img"));
        std::fs::create_dir_all(&self.kept).map_err(failed)?;
        image.save(&path).map_err(failed)?;
        let script = script.join("; ");
        Ok(format!(
            "{why}\n  {:?}\n  {}\n  to try again: power-loss conformance --fs {name} --images 1000 --script '{script}'",
            planned.crash,
            path.display()
        ))
    }
}

/// The disk before the first step and behind each.
fn simulate(profile: &'static Profile, script: &Script) -> (&'static Profile, Vec<SimDisk>) {
    let mut disk = SimDisk::new(Options::new(profile));
    let mut interpreter = Interpreter::default();
    let mut disks = vec![disk.clone()];
    for (n, step) in script.iter().enumerate() {
        if let Some(effect) = interpreter.effect(step).expect("a step") {
            disk.submit(EffectId(n as u64), effect);
            disk.execute(EffectId(n as u64), None).expect("a disk without faults");
        }
        disks.push(disk.clone());
    }
    (profile, disks)
}

/// Which profile does not allow the tree, and why.
fn outside(
    simulated: &[(&Profile, Vec<SimDisk>)],
    positions: &[usize],
    planned: &Planned,
    tree: &Tree,
) -> Option<String> {
    // The same image may be left at several moments, and every one of them must allow it; the last asks for the most.
    [planned.crash.position, planned.last].into_iter().find_map(|position| {
        let done = positions.iter().rposition(|behind| *behind <= position).expect("nothing is tried before the first");
        simulated.iter().find_map(|(profile, disks)| {
            let (name, last) = (profile.name, done == positions.len() - 1);
            // The next step may be under way, or done and not yet answered.
            let behind = disks[done].allows(tree).err()?;
            let next = if last { behind.clone() } else { disks[done + 1].allows(tree).err()? };
            let lengths: Vec<String> = tree
                .iter()
                .map(|(path, bytes)| match bytes {
                    Some(bytes) => {
                        format!("{path}: {} bytes, the first are {:?}", bytes.len(), &bytes[..bytes.len().min(4)])
                    }
                    None => format!("{path}/"),
                })
                .collect();
            Some(format!(
                "{name} does not allow it behind step {done} ({behind}), nor behind the next ({next}): {}",
                lengths.join(", ")
            ))
        })
    })
}
