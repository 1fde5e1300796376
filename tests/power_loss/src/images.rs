//! Power loss under a broker: the device's log is recorded under load, then one image after the other is mounted and the
//! broker started on it.

use crate::audit::{Broken, Shown, audit};
use crate::broker::{Broker, Program};
use crate::crash::{Crash, Crashes, Kept, Planned, plan};
use crate::device::{Disk, Failure, FileSystem};
use crate::history::{Expected, History, Must};
use crate::load::{self, Recording, SETTINGS, Work};
use crate::store::Image;
use plimsoll_sim::disk::Seeded;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How much is done.
#[derive(Clone, Debug)]
pub struct Scale {
    /// Images that are built.
    pub images: usize,
    /// Brokers under load, one after the other.
    pub sessions: u64,
    /// Publishes that each answers.
    pub replies: u64,
    /// For everything that is drawn. What the kernel and the broker do when is not.
    pub seed: u64,
}

/// What was seen.
#[derive(Clone, Debug)]
pub struct Summary {
    /// On which file system.
    pub file_system: FileSystem,
    /// Images that were built.
    pub images: usize,
    /// Different contents among them, each of which was looked at.
    pub distinct: usize,
    /// Flushes that were answered in the recording.
    pub flushes: usize,
    /// Messages that were answered DURABLE in the recording.
    pub durable: usize,
    /// Messages whose confirmation in a work queue was answered in the recording.
    pub confirmed: usize,
    /// Images whose recovery was killed, once or more.
    pub killed: usize,
    /// Images whose recovery lost power, and that were looked at once more.
    pub lost_again: usize,
    /// The same behind the audit: what had been read must stay.
    pub lost_later: usize,
    /// Images that the file system itself did not mount.
    pub unmountable: u64,
    /// Images on which the broker refused to start.
    pub refused: u64,
    /// Messages that were answered DURABLE and are gone, over all images.
    pub lost_acked: u64,
    /// Images in which any other promise is broken.
    pub otherwise: u64,
    /// What is broken first, and where the image is kept.
    pub first: Option<String>,
    /// How long it took.
    pub elapsed: Duration,
}

impl Summary {
    /// Images in which something is broken.
    pub fn broken(&self) -> u64 {
        self.unmountable + self.refused + self.otherwise + u64::from(self.lost_acked > 0)
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary { images, distinct, refused, lost_acked, unmountable, otherwise, .. } = self;
        write!(
            f,
            "fs={} images={images} distinct={distinct} refused={refused} lostAcked={lost_acked}",
            self.file_system.name()
        )?;
        write!(
            f,
            " unmountable={unmountable} otherwise={otherwise} flushes={} durable={} confirmed={}",
            self.flushes, self.durable, self.confirmed
        )?;
        write!(f, " killedInRecovery={} powerLostInRecovery={}", self.killed, self.lost_again)?;
        write!(f, " powerLostAfterReading={} elapsed={:.0?}", self.lost_later, self.elapsed)
    }
}

/// A disk and what runs on it.
pub struct Rig {
    /// The disk.
    pub disk: Disk,
    /// The broker that is put under load.
    pub loaded: Program,
    /// The broker that is started on each image.
    pub started: Program,
    /// The broker under load is a bad one: what it finds on the disk is made by the other.
    pub control: bool,
    /// Where broken images are kept.
    pub kept: PathBuf,
}

impl Rig {
    /// Records and looks at the images. `progress` is told how many of how many are done.
    ///
    /// # Errors
    /// When the rig itself can't work.
    pub fn run(
        &mut self,
        work: Work,
        scale: &Scale,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Summary, Failure> {
        let begun = Instant::now();
        let recording = self.record(work, scale)?;
        let plan = plan(&recording.log, recording.from, scale.images, scale.seed);
        let confirmed = recording.history.confirmed.iter().filter(|confirmed| confirmed.answered.is_some());
        let mut summary = Summary {
            file_system: self.disk.file_system(),
            images: plan.images,
            distinct: plan.distinct.len(),
            flushes: recording.log.events.iter().filter(|event| **event == crate::store::Event::Flushed).count(),
            durable: recording.history.safe.iter().filter(|safe| safe.acknowledged).count(),
            confirmed: confirmed.map(|confirmed| confirmed.offsets.len()).sum(),
            killed: 0,
            lost_again: 0,
            lost_later: 0,
            unmountable: 0,
            refused: 0,
            lost_acked: 0,
            otherwise: 0,
            first: None,
            elapsed: Duration::ZERO,
        };
        let mut crashes = Crashes::new(&recording.log);
        for (n, planned) in plan.distinct.iter().enumerate() {
            progress(n, plan.distinct.len());
            crashes.go_to(planned.crash.position);
            let image = crashes.image(planned.crash.kept);
            let seed = scale.seed ^ image.digest() as u64;
            let expected = recording.history.expected(planned.crash.position, planned.last).map_err(Failure::from)?;
            let Err(found) = self.look(image, expected, seed, &mut summary)? else { continue };
            match &found.broken {
                Broken::Unmountable(_) => summary.unmountable += 1,
                Broken::Refused(_) => summary.refused += 1,
                Broken::Lost { messages, .. } => summary.lost_acked += messages,
                Broken::Other(_) => summary.otherwise += 1,
            }
            if summary.first.is_none() {
                // A control is meant to break; that needs no evidence to be kept.
                let first = if self.control { found.broken.to_string() } else { self.keep(&found, planned, seed)? };
                summary.first = Some(first);
            }
        }
        progress(plan.distinct.len(), plan.distinct.len());
        summary.elapsed = begun.elapsed();
        Ok(summary)
    }

    fn record(&mut self, work: Work, scale: &Scale) -> Result<Recording, Failure> {
        let Scale { sessions, replies, seed, .. } = *scale;
        self.disk.mount()?;
        let mut history = History::default();
        if self.control {
            // What is there before is made by a broker that leaves out nothing, and all of it is on the platter.
            let made = load::record(&self.disk, &self.started, history, Work::Everything, 0..1, 50, seed);
            history = made.map_err(Failure::from)?.history;
            let data = self.disk.at().join("data");
            let broker = Broker::start(&self.started, &data, SETTINGS).map_err(|r| Failure::from(format!("{r:?}")))?;
            broker.stop();
            self.disk.unmount()?;
            self.disk.mount()?;
        }
        let first = u64::from(self.control);
        let recording = load::record(&self.disk, &self.loaded, history, work, first..first + sessions, replies, seed);
        self.disk.unmount()?;
        recording.map_err(Failure::from)
    }

    /// Power has failed and left this image.
    fn look(
        &mut self,
        image: Image,
        expected: Expected,
        seed: u64,
        summary: &mut Summary,
    ) -> Result<Result<(), Found>, Failure> {
        let mut draws = Seeded::new(seed, 3);
        let mut image = image;
        let data = self.disk.at().join("data");
        // Power may fail again in recovery, and in that recovery's recovery.
        loop {
            if let Err(broken) = self.put(&image)? {
                return Ok(Err(Found { broken, image, expected }));
            }
            let mut killed = false;
            while draws.chance(1, 4) {
                let after = Duration::from_micros(draws.below(25_000));
                Broker::start_and_kill(&self.started, &data, SETTINGS, after);
                killed = true;
            }
            summary.killed += usize::from(killed);
            if !(killed && draws.chance(1, 2)) {
                break;
            }
            image = self.lose_power(0, &mut draws);
            summary.lost_again += 1;
        }
        let shown = match self.start_and_audit(&expected) {
            Err(broken) => return Ok(Err(Found { broken, image, expected })),
            Ok(shown) => shown,
        };
        if draws.chance(1, 5) {
            summary.lost_later += 1;
            // The broker was killed after the position was taken, so the log may be longer.
            image = self.lose_power(shown.position, &mut draws);
            let expected = shown_stays(expected, shown.shown);
            if let Err(broken) = self.put(&image)? {
                return Ok(Err(Found { broken, image, expected }));
            }
            if let Err(broken) = self.start_and_audit(&expected) {
                return Ok(Err(Found { broken, image, expected }));
            }
        }
        self.disk.unmount()?;
        Ok(Ok(()))
    }

    fn put(&mut self, image: &Image) -> Result<Result<(), Broken>, Failure> {
        self.disk.reload(image.clone())?;
        Ok(self.disk.mount().map_err(|failure| Broken::Unmountable(failure.to_string())))
    }

    fn start_and_audit(&self, expected: &Expected) -> Result<ShownAt, Broken> {
        let data = self.disk.at().join("data");
        let broker = Broker::start(&self.started, &data, SETTINGS);
        let broker =
            broker.map_err(|refused| Broken::Refused(format!("exit code {:?}: {}", refused.code, refused.said)))?;
        let shown = audit(&broker, expected)?;
        Ok(ShownAt { position: self.disk.store.position(), shown })
    }

    /// What is left of what is mounted when power fails at any moment from a position on.
    fn lose_power(&self, from: usize, draws: &mut Seeded) -> Image {
        let log = self.disk.store.log();
        let position = from + draws.below((log.events.len() - from) as u64 + 1) as usize;
        let mut crashes = Crashes::new(&log);
        crashes.go_to(position);
        let kept = if draws.chance(1, 3) { Kept::Nothing } else { Kept::Some(draws.next_u64()) };
        crashes.image(kept)
    }

    fn keep(&self, found: &Found, planned: &Planned, seed: u64) -> Result<String, Failure> {
        let name = format!("{}-seed{seed:016x}", self.disk.file_system().name());
        let failed = |error: std::io::Error| Failure::from(format!("{}: {error}", self.kept.display()));
        std::fs::create_dir_all(&self.kept).map_err(failed)?;
        found.image.save(&self.kept.join(format!("{name}.img"))).map_err(failed)?;
        let Crash { position, kept } = planned.crash;
        let case = Case {
            file_system: self.disk.file_system().name().to_owned(),
            broken: found.broken.to_string(),
            crash: format!("position {position}, kept {kept:?}"),
            expected: found.expected.clone(),
        };
        let path = self.kept.join(format!("{name}.json"));
        let text = serde_json::to_string_pretty(&case).expect("plain data");
        std::fs::write(&path, text).map_err(failed)?;
        Ok(format!("{}\n  to look again: power-loss repeat {}", found.broken, path.display()))
    }
}

struct ShownAt {
    position: usize,
    shown: Shown,
}

/// P1, P4, P15: what the broker has shown, or answered DURABLE or CONFIRMED, after one power loss is so after the next.
fn shown_stays(mut expected: Expected, shown: Shown) -> Expected {
    for (topic, work) in shown.work {
        expected.work.insert(topic, work);
    }
    for (topic, values) in shown.messages {
        expected.sent.entry(topic.clone()).or_default().extend(values.iter().cloned());
        let must = values.into_iter().map(|value| Must { value, acknowledged: true });
        expected.safe.entry(topic).or_default().extend((0..).zip(must));
    }
    expected
}

struct Found {
    broken: Broken,
    image: Image,
    expected: Expected,
}

/// A broken image as it is kept, beside the image itself.
#[derive(Serialize, Deserialize)]
struct Case {
    file_system: String,
    broken: String,
    crash: String,
    expected: Expected,
}

/// Starts a broker on an image that was kept and says what is broken, if anything is.
///
/// # Errors
/// When it can't be read or mounted.
pub fn repeat(case: &Path, program: &Program) -> Result<Option<Broken>, Failure> {
    let failed = |what: String| Failure::from(format!("{}: {what}", case.display()));
    let text = std::fs::read_to_string(case).map_err(|e| failed(e.to_string()))?;
    let known: Case = serde_json::from_str(&text).map_err(|e| failed(e.to_string()))?;
    let file_system = FileSystem::ALL.into_iter().find(|fs| fs.name() == known.file_system);
    let file_system = file_system.ok_or_else(|| failed(format!("no file system {}", known.file_system)))?;
    let image = Image::load(&case.with_extension("img")).map_err(|e| failed(e.to_string()))?;
    let disk = Disk::of(crate::store::BlockStore::of(image), file_system)?;
    let program = program.inside(&disk);
    let mut rig = Rig { disk, loaded: program.clone(), started: program, control: false, kept: PathBuf::new() };
    if let Err(failure) = rig.disk.mount() {
        return Ok(Some(Broken::Unmountable(failure.to_string())));
    }
    let broken = rig.start_and_audit(&known.expected).err();
    rig.disk.unmount()?;
    Ok(broken)
}
