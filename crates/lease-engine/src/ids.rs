//! Ids of new leases.

/// The id of no lease, as in etcd.
pub const NO_LEASE: u64 = 0;

/// A source of ids for new leases.
pub trait IdSource<I>: Send {
    /// An id that this source never returned before.
    fn next_id(&mut self) -> I;
}

/// Ids like etcd's: 64 bits, positive, never [`NO_LEASE`].
///
/// From the highest bit: a sign, always 0; 15 bits of the member's number; 40 bits of milliseconds, the time at which
/// the generator was made; 8 bits in which the counter starts. The counter carries into the time. So ids stay unique
/// across restarts as long as the member makes at most 256 per millisecond of uptime.
#[derive(Clone, Debug)]
pub struct IdGenerator {
    member: u64,
    count: u64,
}

const COUNT_BITS: u32 = 48;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

impl IdGenerator {
    /// A generator for the member with this number. Members that run at the same time need different numbers.
    /// `millis` is wall time, which keeps ids from repeating after a restart.
    pub fn new(member: u16, millis: u64) -> Self {
        Self { member: u64::from(member & 0x7fff) << COUNT_BITS, count: (millis << 8) & COUNT_MASK }
    }

    /// The next id.
    pub fn generate(&mut self) -> u64 {
        self.count = (self.count + 1) & COUNT_MASK;
        match self.member | self.count {
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
        for (member, millis) in [(0, 0), (0, u64::MAX), (u16::MAX, u64::MAX)] {
            let mut ids = IdGenerator::new(member, millis);
            assert!((0..1000).all(|_| (ids.generate() as i64) > 0));
        }
    }

    #[test]
    fn two_members_and_two_starts_give_different_ids() {
        let mut seen = HashSet::new();
        for (member, millis) in [(1, 1_700_000_000_000), (2, 1_700_000_000_000), (1, 1_700_000_000_010)] {
            let mut ids = IdGenerator::new(member, millis);
            assert!((0..2000).all(|_| seen.insert(ids.generate())));
        }
    }
}
