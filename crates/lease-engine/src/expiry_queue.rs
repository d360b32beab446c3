//! Ends of leases: due, offered, committed.

use std::hash::Hash;

use super::{Error, LeaseTime, engine::LeaseEngine};

/// How many nodes of the wheel one poll may move: about a millisecond's work.
const MOVES: usize = 8192;

impl<I: Copy + Eq + Hash, K> LeaseEngine<I, K> {
    /// Begins the ends of at most `limit` leases whose deadlines have passed, in the order of their
    /// deadlines. A follower begins none. O(1) for each.
    ///
    /// From then on these leases can't be renewed, and nothing can be attached to them. The caller commits each
    /// end, and reports the result by [`ended`](Self::ended), [`reinstate`](Self::reinstate),
    /// [`take_back`](Self::take_back) or [`failed`](Self::failed). More leases may be due even if fewer than
    /// `limit` are returned: poll again at [`next_wakeup`](Self::next_wakeup).
    pub fn poll(&mut self, now: LeaseTime, limit: usize) -> Vec<I> {
        let mut expired = Vec::new();
        if !self.primary {
            return expired;
        }
        self.give_up_on_answers(now);
        let permitted =
            self.config.expiry_rate.map_or(limit, |rate| rate.available(now.since_start()).min(limit));
        let inner_now = self.down(now);
        let mut moves = MOVES;
        while expired.len() < permitted {
            let Some((n, begun)) = self.next_end(inner_now, &mut moves) else { break };
            if begun {
                self.ends.set_aside(&mut self.leases, n, inner_now);
            } else {
                self.begin(n, inner_now);
            }
            let slot = self.leases.get_mut(n);
            slot.tries = slot.tries.saturating_add(1);
            expired.push(slot.id);
        }
        if let Some(rate) = &mut self.config.expiry_rate
            && !expired.is_empty()
        {
            rate.take(expired.len(), now.since_start());
        }
        expired
    }

    /// When to poll next. `None` on a follower, and when there is nothing to wait for. O(1).
    ///
    /// No lease ends earlier. The first may end later, and the poll then returns nothing: nodes come down the
    /// levels of the wheel step by step, and may belong to leases that were renewed or revoked. Such wake-ups are
    /// at least 64 ms apart, except for leases that were renewed or revoked in their last 64 ms.
    pub fn next_wakeup(&self) -> Option<LeaseTime> {
        if !self.primary {
            return None;
        }
        let again = self.ends.next().and_then(|again| self.outside(again));
        let due = self.next_due().into_iter().chain(again).min();
        let due = due.and_then(|due| match &self.config.expiry_rate {
            Some(rate) => Some(due.max(LeaseTime::from_duration(rate.next()?))),
            None => Some(due),
        });
        [due, self.next_give_up()].into_iter().flatten().min()
    }

    /// No lease is [`overdue`](Self::overdue) before this time, in any role. O(1).
    pub fn next_due(&self) -> Option<LeaseTime> {
        self.wheel.next().and_then(|due| self.outside(due))
    }

    /// The lease with the earliest deadline, if that has passed. Begins no end: for followers that supervise a
    /// primary.
    pub fn overdue(&mut self, now: LeaseTime) -> Option<(I, LeaseTime)> {
        let now = self.down(now);
        let n = self.first_due(now, &mut { usize::MAX })?;
        let slot = self.leases.get(n);
        Some((slot.id, self.outside(slot.due())?))
    }

    /// Begins the end of a lease before its deadline. The caller commits it and reports the result, as after
    /// [`poll`](Self::poll). Returns false if the end had begun before. O(1).
    ///
    /// # Errors
    /// [`Error::NotPrimary`], [`Error::LeaseNotFound`].
    pub fn begin_revoke(&mut self, id: I, now: LeaseTime) -> Result<bool, Error> {
        if !self.primary {
            return Err(Error::NotPrimary);
        }
        let n = match self.alive(id) {
            Err(Error::LeaseExpired) => return Ok(false),
            other => other?,
        };
        let now = self.down(now);
        self.begin(n, now);
        self.leases.get_mut(n).tries = 1;
        Ok(true)
    }

    fn begin(&mut self, n: u32, now: u64) {
        self.wheel.remove(&mut self.leases, n);
        self.leases.get_mut(n).begin(self.reign);
        self.ends.set_aside(&mut self.leases, n, now);
        self.ending += 1;
    }

    /// The next lease to end by now, and whether its end had begun before: the one with the earliest deadline, or
    /// one whose end is tried again.
    fn next_end(&mut self, now: u64, moves: &mut usize) -> Option<(u32, bool)> {
        let fresh = self.first_due(now, moves).map(|n| (self.leases.get(n).due(), n, false));
        let again = self.ends.first_due(&mut self.leases, now, moves, |_, _, filed| filed);
        let again = again.map(|n| (self.leases.get(n).node.at, n, true));
        fresh.into_iter().chain(again).min().map(|(_, n, begun)| (n, begun))
    }

    fn first_due(&mut self, now: u64, moves: &mut usize) -> Option<u32> {
        self.wheel.first_due(&mut self.leases, now, moves, |leases, n, _| leases.get(n).due())
    }
}

impl<I: Copy + Eq + Hash, K: Eq + Hash> LeaseEngine<I, K> {
    /// The end of a lease is committed. Forgets the lease, and returns its items. Works in every role, since
    /// followers apply ends that the primary has committed. O(1), and O(1) for each item.
    ///
    /// # Errors
    /// [`Error::LeaseNotFound`].
    pub fn ended(&mut self, id: I) -> Result<Vec<K>, Error> {
        self.revoke(id)
    }
}
