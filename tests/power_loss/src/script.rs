//! Sequences of effects as text, one a word list: the same for the simulated disk and for a real file system.
//!
//! ```text
//! create A            write A 700 1400      reserve A 0 4096     cut A 300
//! force A             force-dir .           rename A.tmp A       remove A
//! make-dir D          settle
//! ```
//!
//! `settle` is the kernel writing back everything because it likes to: a real file system is told to, and the simulated disk
//! needn't be, as it expects that at any moment.

use bytes::Bytes;
use plimsoll_core::effect::{Effect, FileId};
use plimsoll_sim::disk::Seeded;
use std::collections::{BTreeMap, BTreeSet};

/// Steps, in order.
pub type Script = Vec<String>;

/// A script as it stands on a command line: steps with semicolons between them.
pub fn parse(text: &str) -> Script {
    text.split(';').map(|step| step.trim().to_owned()).filter(|step| !step.is_empty()).collect()
}

/// Turns steps into effects.
#[derive(Default)]
pub struct Interpreter {
    files: BTreeMap<String, FileId>,
    steps: u64,
}

impl Interpreter {
    /// The effect of the next step; `None` for `settle`.
    ///
    /// # Errors
    /// When it is no step.
    pub fn effect(&mut self, step: &str) -> Result<Option<Effect>, String> {
        self.steps += 1;
        let words: Vec<&str> = step.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().map_err(|e| format!("{step}: {e}"));
        let file = |name: &str| self.files.get(name).copied().ok_or_else(|| format!("{step}: {name} is not open"));
        Ok(Some(match words[..] {
            ["settle"] => return Ok(None),
            ["create", name] => {
                let file = FileId(self.steps);
                self.files.insert(name.to_owned(), file);
                Effect::Create { file, path: name.to_owned() }
            }
            ["write", name, _, _] => {
                let bytes = Bytes::from(data(self.steps, number(3)?));
                Effect::Write { file: file(name)?, position: number(2)?, bytes }
            }
            ["reserve", name, _, _] => Effect::Reserve { file: file(name)?, position: number(2)?, length: number(3)? },
            ["cut", name, _] => Effect::Truncate { file: file(name)?, length: number(2)? },
            ["force", name] => Effect::Force { file: file(name)? },
            ["force-dir", "."] => Effect::ForceDir { dir: String::new() },
            ["force-dir", dir] => Effect::ForceDir { dir: dir.to_owned() },
            ["rename", from, to] => {
                let file = file(from)?;
                self.files.remove(from);
                self.files.insert(to.to_owned(), file);
                Effect::Rename { from: from.to_owned(), to: to.to_owned() }
            }
            ["remove", name] => {
                self.files.remove(name);
                Effect::Remove { path: name.to_owned() }
            }
            ["make-dir", path] => Effect::MakeDir { path: path.to_owned() },
            _ => return Err(format!("{step:?} is no step")),
        }))
    }
}

/// Bytes of which no sector is another's, none of them zero.
fn data(step: u64, length: u64) -> Vec<u8> {
    let mut draws = Seeded::new(step, 9);
    let (mut bytes, mut word) = (Vec::with_capacity(length as usize), 0);
    for at in 0..length {
        if at % 8 == 0 {
            word = draws.next_u64();
        }
        bytes.push((word >> (at % 8 * 8)) as u8 | 1);
    }
    bytes
}

/// What a log broker does, and what of it was seen to go wrong somewhere: the rows of the simulator's table of file systems.
pub const BY_HAND: &[&str] = &[
    "create A; write A 0 700; force A; force-dir .; write A 700 700",
    "create A; write A 0 700; force A; force-dir .; write A 700 700; force A",
    "create A; write A 0 1024; force A",
    "create A; write A 0 1024; create B; write B 0 1024; force B",
    "create A; write A 0 700; force A; force-dir .; create A.tmp; write A.tmp 0 1024; rename A.tmp A; force-dir .",
    "create A.tmp; write A.tmp 0 1024; rename A.tmp A; force-dir .",
    "create A; write A 0 700; force A; force-dir .; create A.tmp; write A.tmp 0 1024; force A.tmp; rename A.tmp A",
    "create A; write A 0 700; force A; force-dir .; create A.tmp; write A.tmp 0 1024; force A.tmp; rename A.tmp A; force-dir .",
    "create A; write A 0 700; force A; create B; write B 0 700; force B; force-dir .; remove A; write B 700 700; force B",
    "create A; write A 0 700; force A; create B; write B 0 700; force B; force-dir .; remove A; write B 0 700; force B",
    "create A; write A 0 700; force A; force-dir .; remove A; force-dir .",
    "create A; write A 0 1400; force A; force-dir .; cut A 300",
    "create A; write A 0 700; force A; force-dir .; cut A 1400; write A 700 700",
    "create A; reserve A 0 8192; force A; force-dir .; write A 0 1024; write A 1024 1024; force A; write A 2048 512",
    "create A; write A 0 6000; force A; force-dir .; write A 1000 3000",
    "make-dir D; create D/A; write D/A 0 700; force D/A; force-dir D; force-dir .",
    "make-dir T.tmp; create T.tmp/A; write T.tmp/A 0 700; force T.tmp/A; force-dir T.tmp; force-dir .; create B; write B 0 100; force B",
    // A roll: cut and force the old segment, make the new one, write to it.
    "create 0.log; reserve 0.log 0 8192; write 0.log 0 3000; force 0.log; force-dir .; cut 0.log 3000; force 0.log; create 1.log; force-dir .; reserve 1.log 0 4096; write 1.log 0 600; force 1.log",
    // The slots of a watermark.
    "create W; reserve W 0 4608; force W; force-dir .; write W 0 60; write W 0 60; force W; write W 4096 60; force W; write W 0 60",
    // Acknowledgements one after the other.
    "create G.tmp; write G.tmp 0 11; force G.tmp; rename G.tmp G; force-dir .; create G.tmp; write G.tmp 0 12; force G.tmp; rename G.tmp G; force-dir .; create G.tmp; write G.tmp 0 13",
];

/// A sequence drawn from a seed.
pub fn generate(seed: u64) -> Script {
    let mut draws = Seeded::new(seed, 4);
    let mut made = Made { script: Script::new(), files: BTreeMap::new(), dirs: BTreeSet::from([String::new()]) };
    let steps = 5 + draws.below(10);
    while (made.script.len() as u64) < steps {
        made.step(&mut draws);
    }
    made.script
}

/// What there is at the end of a script in the making.
struct Made {
    script: Script,
    /// Length by path.
    files: BTreeMap<String, u64>,
    dirs: BTreeSet<String>,
}

impl Made {
    fn step(&mut self, draws: &mut Seeded) {
        let dirs: Vec<String> = self.dirs.iter().cloned().collect();
        let dir = dirs[draws.below(dirs.len() as u64) as usize].clone();
        let within = |name: &str| if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") };
        let free = within(["A", "B", "C", "A.tmp"][draws.below(4) as usize]);
        let Some((name, length)) = self.files.iter().nth(draws.below(self.files.len().max(1) as u64) as usize) else {
            return self.create(free);
        };
        let (name, length) = (name.clone(), *length);
        match draws.below(20) {
            0..3 => self.create(free),
            3..9 => {
                let position = if draws.chance(2, 3) { length } else { draws.below(length + 1) };
                let bytes = [100, 512, 700, 1400, 2048, 4096, 5000][draws.below(7) as usize];
                if position + bytes <= 12_000 {
                    self.script.push(format!("write {name} {position} {bytes}"));
                    self.files.insert(name, length.max(position + bytes));
                }
            }
            9..13 => self.script.push(format!("force {name}")),
            13..15 => self.script.push(format!("force-dir {}", if dir.is_empty() { "." } else { &dir })),
            15 => {
                let to = match name.rsplit_once('/') {
                    Some((dir, _)) => format!("{dir}/B"),
                    None => "B".to_owned(),
                };
                if to != name {
                    self.script.push(format!("rename {name} {to}"));
                    self.files.remove(&name);
                    self.files.insert(to, length);
                }
            }
            16 => {
                self.script.push(format!("remove {name}"));
                self.files.remove(&name);
            }
            17 => {
                let to = draws.below(length * 2 + 600);
                self.script.push(format!("cut {name} {to}"));
                self.files.insert(name, to);
            }
            18 if !self.dirs.contains("D") => {
                self.script.push("make-dir D".to_owned());
                self.dirs.insert("D".to_owned());
            }
            18 => {
                if length <= 4096 {
                    self.script.push(format!("reserve {name} {length} 4096"));
                    self.files.insert(name, length + 4096);
                }
            }
            _ => self.script.push("settle".to_owned()),
        }
    }

    fn create(&mut self, name: String) {
        if !self.files.contains_key(&name) {
            self.script.push(format!("create {name}"));
            self.files.insert(name, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_core::effect::EffectId;
    use plimsoll_sim::disk::{Options, POSIX, SimDisk};

    #[test]
    fn every_script_can_be_carried_out() {
        let by_hand = BY_HAND.iter().map(|text| parse(text));
        for script in by_hand.chain((0..500).map(generate)) {
            let mut disk = SimDisk::new(Options::new(&POSIX));
            let mut interpreter = Interpreter::default();
            for (n, step) in script.iter().enumerate() {
                let Some(effect) = interpreter.effect(step).unwrap() else { continue };
                disk.submit(EffectId(n as u64), effect);
                disk.execute(EffectId(n as u64), None).unwrap_or_else(|e| panic!("{script:?} at {step}: {e}"));
            }
        }
    }
}
