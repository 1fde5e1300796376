//! A hash of contents that is the same on every machine and in every build: to tell states apart, not to resist attack.

/// 128 bits wide, so that among many millions of states no two are taken for one by accident.
#[derive(Clone)]
pub(crate) struct StateHash(u128);

const MULTIPLIER: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;

impl StateHash {
    pub(crate) fn new() -> StateHash {
        StateHash(0x6a09_e667_f3bc_c908_b2fb_1366_ea95_7d3e)
    }

    pub(crate) fn number(&mut self, n: u64) {
        self.0 = (self.0 ^ u128::from(n)).wrapping_mul(MULTIPLIER).rotate_right(59);
    }

    pub(crate) fn wide(&mut self, n: u128) {
        self.number(n as u64);
        self.number((n >> 64) as u64);
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.number(u64::from_le_bytes(word));
        }
    }

    pub(crate) fn finish(mut self) -> u128 {
        self.number(0);
        self.number(0);
        self.0 ^ (self.0 >> 67)
    }
}
