//! Seeded draws.

use rand_pcg::Pcg64;
use rand_pcg::rand_core::{Rng, SeedableRng};

/// A stream of draws that is a pure function of its seed.
///
/// Ranges are derived here and not by a library, whose way of doing it may change between versions.
pub struct Draws(Pcg64);

impl Draws {
    /// The stream of this seed.
    pub fn new(seed: u64) -> Draws {
        Draws(Pcg64::seed_from_u64(seed))
    }

    /// A number from 0 to `end` − 1.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0.next_u64() % end
    }
}
