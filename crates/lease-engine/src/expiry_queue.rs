//! The ends of leases: offered, answered, tried again.

use std::hash::Hash;

use super::{Error, LeaseTime, Ttl, engine::Lessor};

/// How many nodes of the wheel one poll may move: about a millisecond's work.
const MOVES: usize = 8192;

impl<I: Copy + Eq + Hash, K> Lessor<I, K> {
    /// Begins the ends of at most `limit` leases whose deadlines have passed, in the order of their
    /// deadlines. Nothing on a follower. O(1) for each.
    ///
    /// From now on these leases are ending: they can't be renewed, nothing can be attached to them. The
    /// caller tries to commit each end, and answers with [`ended`](Self::ended),
    /// [`reinstate`](Self::reinstate) or [`failed`](Self::failed). Fewer than `limit` doesn't mean that no
    /// more are due: [`next_wakeup`](Self::next_wakeup) tells when to poll again.
    pub fn poll(&mut self, now: LeaseTime, limit: usize) -> Vec<I> {
        let mut expired = Vec::new();
        if !self.primary {
            return expired;
        }
        self.give_up_on_answers(now);
        let permitted = self.config.expiry_rate.map_or(limit, |rate| rate.available(now).min(limit));
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
            rate.take(expired.len(), now);
        }
        expired
    }

    /// When to poll next: no lease ends before. `None` on a follower, and when there is nothing to wait for.
    /// O(1).
    ///
    /// Never later than the next end, but it may be earlier: a lease's node comes down the levels of the
    /// wheel step by step, and may belong to one that has been renewed or revoked. The poll then finds
    /// nothing, and the next answer is later. Such wake-ups are at least 64 ms apart, but for leases that
    /// were renewed or revoked in their last 64 ms.
    pub fn next_wakeup(&self) -> Option<LeaseTime> {
        if !self.primary {
            return None;
        }
        let again = self.ends.next().and_then(|again| self.outside(again));
        let due = self.next_due().into_iter().chain(again).min();
        let due = due.map(|due| match &self.config.expiry_rate {
            Some(rate) => due.max(rate.next()),
            None => due,
        });
        let unanswered = self.config.answer_within.zip(self.ends.aside(&self.leases).next());
        let give_up = unanswered.and_then(|(within, (_, since))| {
            self.outside(since.saturating_add(Ttl::from(within).as_millis()))
        });
        [due, give_up].into_iter().flatten().min()
    }

    /// No lease ends before this, in any role: when to ask [`overdue`](Self::overdue) again. O(1).
    pub fn next_due(&self) -> Option<LeaseTime> {
        self.wheel.next().and_then(|due| self.outside(due))
    }

    /// The lease whose deadline has passed for longest, and that deadline. Begins nothing: for followers who
    /// watch over a primary.
    pub fn overdue(&mut self, now: LeaseTime) -> Option<(I, LeaseTime)> {
        let now = self.down(now);
        let n = self.first_due(now, &mut { usize::MAX })?;
        let slot = self.leases.get(n);
        Some((slot.id, self.outside(slot.due())?))
    }

    /// Begins the end of a lease before its time, as if [`poll`](Self::poll) had offered it: the caller
    /// commits the end, and answers. True if that began now, false if the end had begun before. O(1).
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

    /// The end of a lease failed: it's still ending, and is offered again after a pause, which grows. Answers
    /// when; `None` if no end of this lease is under way (it has been reinstated or forgotten, or this lessor
    /// demoted). O(1).
    pub fn failed(&mut self, id: I, now: LeaseTime) -> Option<LeaseTime> {
        let n = self.leases.find(id)?;
        if !self.leases.get(n).has_begun(self.reign) {
            return None;
        }
        let again = self.try_again(n, now);
        self.outside(again)
    }

    /// Ends that were offered and not answered yet, those that wait longest first, and since when.
    pub fn unanswered(&self) -> impl Iterator<Item = (I, LeaseTime)> {
        self.ends
            .aside(&self.leases)
            .filter_map(|(n, since)| Some((self.leases.get(n).id, self.outside(since)?)))
    }

    fn begin(&mut self, n: u32, now: u64) {
        self.wheel.remove(&mut self.leases, n);
        self.leases.get_mut(n).begin(self.reign);
        self.ends.set_aside(&mut self.leases, n, now);
        self.ending += 1;
    }

    /// Whose turn it is to end by now, and whether that has begun: the end of the earliest deadline, or one
    /// that is to be tried again.
    fn next_end(&mut self, now: u64, moves: &mut usize) -> Option<(u32, bool)> {
        let fresh = self.first_due(now, moves).map(|n| (self.leases.get(n).due(), n, false));
        let again = self.ends.first_due(&mut self.leases, now, moves, |_, _, filed| filed);
        let again = again.map(|n| (self.leases.get(n).node.at, n, true));
        fresh.into_iter().chain(again).min().map(|(_, n, begun)| (n, begun))
    }

    fn first_due(&mut self, now: u64, moves: &mut usize) -> Option<u32> {
        self.wheel.first_due(&mut self.leases, now, moves, |leases, n, _| leases.get(n).due())
    }

    fn give_up_on_answers(&mut self, now: LeaseTime) {
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

impl<I: Copy + Eq + Hash, K: Eq + Hash> Lessor<I, K> {
    /// The end of a lease is committed: it is forgotten, and what was attached to it is the caller's. Works
    /// in every role: a follower learns of an end after the fact. O(1), and O(1) for each item.
    ///
    /// # Errors
    /// [`Error::LeaseNotFound`].
    pub fn ended(&mut self, id: I) -> Result<Vec<K>, Error> {
        self.revoke(id)
    }
}
