//! Ends of leases that fail: offered again after a pause, and visible while they are stuck.

use std::hash::Hash;

use super::{LeaseTime, Ttl, engine::LeaseEngine};

impl<I: Copy + Eq + Hash, K> LeaseEngine<I, K> {
    /// The end of a lease failed. The engine offers it again after a pause that grows, and returns when. Returns
    /// `None` if no end of this lease is under way: it was reinstated or forgotten, or the engine was demoted. O(1).
    pub fn failed(&mut self, id: I, now: LeaseTime) -> Option<LeaseTime> {
        let n = self.leases.find(id)?;
        if !self.leases.get(n).has_begun(self.reign) {
            return None;
        }
        let again = self.try_again(n, now);
        self.outside(again)
    }

    /// Ends that were offered and whose result the caller hasn't reported, the oldest first, and since when.
    pub fn unanswered(&self) -> impl Iterator<Item = (I, LeaseTime)> {
        self.ends
            .aside(&self.leases)
            .filter_map(|(n, since)| Some((self.leases.get(n).id, self.outside(since)?)))
    }

    /// When the oldest unanswered end counts as failed.
    pub(super) fn next_give_up(&self) -> Option<LeaseTime> {
        let within = Ttl::from(self.config.answer_within?).as_millis();
        let (_, since) = self.ends.aside(&self.leases).next()?;
        self.outside(since.saturating_add(within))
    }

    pub(super) fn give_up_on_answers(&mut self, now: LeaseTime) {
        let Some(within) = self.config.answer_within else { return };
        let before = self.down(now).saturating_sub(Ttl::from(within).as_millis());
        loop {
            let oldest = self.ends.aside(&self.leases).next();
            let Some((n, _)) = oldest.filter(|(_, since)| *since <= before) else { return };
            self.try_again(n, now);
        }
    }

    fn try_again(&mut self, n: u32, now: LeaseTime) -> u64 {
        let tries = u32::from(self.leases.get(n).tries);
        let pause = Ttl::from(self.config.retry.pause(tries)).as_millis();
        let again = self.up(now).saturating_add(pause);
        self.ends.settle(self.down(now));
        self.ends.file(&mut self.leases, n, again);
        again
    }
}
