//! Where the ids of new leases come from.

/// The id of no lease, as in the original.
pub const NO_LEASE: u64 = 0;

/// Makes ids for new leases.
pub trait IdSource<I>: Send {
    /// An id that was never given before.
    fn next_id(&mut self) -> I;
}

/// Ids as the original makes them: 64 bits, positive, never [`NO_LEASE`], from the lessor's own number, the
/// time, and a counter.
///
/// From above: the sign, always 0; 15 bits of the lessor's number; 40 bits of milliseconds since some epoch,
/// taken when the generator was made; 8 bits in which the counter starts. The counter goes over into the
/// time, so up to 256 ids per millisecond of uptime can be made and still none is given twice after a
/// restart.
#[derive(Clone, Debug)]
pub struct IdGenerator {
    lessor: u64,
    count: u64,
}

const COUNT_BITS: u32 = 48;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

impl IdGenerator {
    /// A generator for the lessor with this number; no two that run at a time may have the same. `millis` is
    /// wall time, so that ids of before a restart don't come again.
    pub fn new(lessor: u16, millis: u64) -> Self {
        Self { lessor: u64::from(lessor & 0x7fff) << COUNT_BITS, count: (millis << 8) & COUNT_MASK }
    }

    /// The next id.
    pub fn generate(&mut self) -> u64 {
        self.count = (self.count + 1) & COUNT_MASK;
        match self.lessor | self.count {
            NO_LEASE => self.generate(),
            id => id,
        }
    }
}

impl IdSource<u64> for IdGenerator {
    fn next_id(&mut self) -> u64 {
        self.generate()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_are_positive_and_never_no_lease() {
        for (lessor, millis) in [(0, 0), (0, u64::MAX), (u16::MAX, u64::MAX)] {
            let mut ids = IdGenerator::new(lessor, millis);
            assert!((0..1000).all(|_| (ids.generate() as i64) > 0));
        }
    }

    #[test]
    fn two_lessors_and_two_starts_give_different_ids() {
        let mut seen = HashSet::new();
        for (lessor, millis) in [(1, 1_700_000_000_000), (2, 1_700_000_000_000), (1, 1_700_000_000_010)] {
            let mut ids = IdGenerator::new(lessor, millis);
            assert!((0..2000).all(|_| seen.insert(ids.generate())));
        }
    }
}
