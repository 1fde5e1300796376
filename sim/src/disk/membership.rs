//! The question the other way round: not which disks a power loss may leave, but whether it may leave this one. What a real
//! file system was seen to leave is held against its profile with it.
//!
//! It is answered for the wide alphabet: any length between two, and for a torn sector any bytes that the profile
//! does not protect. Nothing is enumerated but the ways in which names survive, so a handful of unforced operations on names is
//! what it is good for.

use super::choices::Enumerator;
use super::crash::{Alphabet, SurvivingNames};
use super::file::File;
use super::names::Ino;
use super::{ROOT, SimDisk};
use std::collections::BTreeMap;

/// Every path with its bytes (`None`: a directory), as [`SimDisk::tree`] tells it.
pub type Tree = BTreeMap<String, Option<Vec<u8>>>;

impl SimDisk {
    /// Whether a power loss may leave exactly this now. Garbage may be any bytes. It knows nothing of failed forces.
    ///
    /// # Errors
    /// In words why not: what does not fit where most of the tree does.
    pub fn allows(&self, tree: &Tree) -> Result<(), String> {
        let mut nearest = (0, String::from("no way in which names survive leaves these names"));
        let mut enumerator = Enumerator::default();
        loop {
            match self.leaves(&self.surviving_names(Alphabet::Fixed, &mut enumerator), tree) {
                Ok(()) => return Ok(()),
                Err(found) if found.0 > nearest.0 => nearest = found,
                Err(_) => {}
            }
            if !enumerator.advance() {
                return Err(nearest.1);
            }
        }
    }

    /// Or how much of it fits, and what does not.
    fn leaves(&self, names: &SurvivingNames, tree: &Tree) -> Result<(), (usize, String)> {
        let mut paths = BTreeMap::new();
        names.walk(ROOT, "", &mut |path, ino| {
            paths.insert(path.to_owned(), ino);
        });
        let is_dir = |ino: &Ino| names.dirs().contains_key(ino);
        let same = paths.len() == tree.len()
            && paths
                .iter()
                .zip(tree)
                .all(|((path, ino), (found, bytes))| path == found && is_dir(ino) == bytes.is_none());
        if !same {
            return Err((0, "no way in which names survive leaves these names".into()));
        }
        for (at, (ino, floor)) in names.files().iter().enumerate() {
            let (path, _) = paths.iter().find(|(_, named)| *named == ino).expect("a surviving file has a name");
            let found = tree[path].as_deref().expect("it is a file");
            let file = &self.files[ino];
            file.may_be(self.options.profile, self.unit(), *floor, found)
                .map_err(|why| (at + 1, format!("{path}: {why}")))?;
        }
        Ok(())
    }
}

impl File {
    fn may_be(&self, profile: &super::Profile, unit: u64, floor: u64, found: &[u8]) -> Result<(), String> {
        let length = found.len() as u64;
        let lengths = self.lengths_that_lead_to(profile, floor, length);
        let mut why = format!("{length} bytes is a length that it never had");
        for survived in lengths {
            let sectors = found.chunks(unit as usize).enumerate();
            let misfit = sectors
                .map(|(index, bytes)| (index as u64, bytes))
                .find(|(index, bytes)| !self.sector_may_be(profile, unit, *index, survived, bytes));
            match misfit {
                None => return Ok(()),
                Some((index, _)) => why = format!("sector {index} of {length} bytes is none of its versions"),
            }
        }
        Err(why)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Process;
    use super::super::{EXT4, Effect, POSIX, Profile};
    use super::*;

    /// An unforced append behind a forced beginning, and an unforced removal.
    fn disk(profile: &'static Profile) -> SimDisk {
        let mut p = Process::on(profile);
        p.durable("B", &[7; 10]);
        let a = p.durable("A", &[1; 700]);
        p.write(a, 700, &[2; 900]);
        p.run(Effect::Remove { path: "B".into() });
        p.disk
    }

    fn tree(a: &[u8], with_b: bool) -> Tree {
        let b = with_b.then(|| ("B".to_owned(), Some(vec![7; 10])));
        b.into_iter().chain([("A".to_owned(), Some(a.to_vec()))]).collect()
    }

    #[test]
    fn every_state_that_is_enumerated_is_allowed() {
        for profile in Profile::all() {
            let disk = disk(profile);
            for state in disk.crash_states(100_000).unwrap() {
                assert_eq!(disk.allows(&state.disk.tree()), Ok(()), "{} {:?}", profile.name, state.picks);
            }
        }
    }

    #[test]
    fn every_state_that_a_seed_draws_is_allowed() {
        for profile in Profile::all() {
            let disk = disk(profile);
            for seed in 0..500 {
                let mut crashed = disk.clone();
                crashed.crash(&mut super::super::Seeded::new(seed, 0));
                assert_eq!(disk.allows(&crashed.tree()), Ok(()), "{} {seed}", profile.name);
            }
        }
    }

    #[test]
    fn what_was_forced_and_what_nobody_wrote_is_asked_for() {
        let (old, new) = (vec![1; 700], [vec![1; 700], vec![2; 900]].concat());
        for profile in Profile::all() {
            let disk = disk(profile);
            for allowed in [tree(&old, true), tree(&new, false), tree(&[&new[..], &[]].concat()[..1111], true)] {
                assert_eq!(disk.allows(&allowed), Ok(()), "{}", profile.name);
            }
            let mut lost = new.clone();
            lost[3] = 9;
            let longer = [&new[..], &[0]].concat();
            for wrong in [tree(&lost, true), tree(&old[..699], true), tree(&longer, true), Tree::new()] {
                assert!(disk.allows(&wrong).is_err(), "{}", profile.name);
            }
        }
        // Bytes that nobody wrote, in a fresh sector.
        let mut garbage = new.clone();
        garbage[1200] = 9;
        assert_eq!(disk(&POSIX).allows(&tree(&garbage, true)), Ok(()));
        let why = disk(&EXT4).allows(&tree(&garbage, true)).unwrap_err();
        assert_eq!(why, "A: sector 2 of 1600 bytes is none of its versions");
    }
}
