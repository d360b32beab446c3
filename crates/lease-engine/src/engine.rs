//! The leases: granted, renewed, suspended, revoked.

use std::{hash::Hash, time::Duration};

use super::{
    AboveMax, Config, Error, LeaseTime, Record, Ttl,
    index::Found,
    items::Item,
    load::Load,
    slots::{Phase, Slot, Slots},
    table::Table,
    wheel::{NEVER, Wheel},
};

/// Where lease time zero lies inside, so that [`Lessor::promote`] can push the clock back: 34 years in
/// milliseconds.
const ZERO: u64 = 1 << 40;

/// Leases in memory. See the [module](super) for how it works and what it costs.
///
/// `I` is what leases are known by, `K` what can be attached to them; without attachments leave it out.
#[derive(Clone, Debug)]
pub struct Lessor<I, K = ()> {
    pub(super) config: Config,
    pub(super) leases: Slots<I>,
    pub(super) items: Table<K, Item>,
    /// Leases by their deadlines, except those whose end has begun, under this reign:
    pub(super) wheel: Wheel,
    /// these are here, set aside until they're answered, or filed under the time of the next try.
    pub(super) ends: Wheel,
    pub(super) primary: bool,
    /// Counts demotions: an end that was begun before one has no effect any more.
    pub(super) reign: u16,
    pub(super) ending: usize,
    suspended: usize,
    /// How far `promote` has moved all deadlines, in milliseconds.
    shift: u64,
    load: Load,
}

/// What was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The TTL that counts: at least the minimum, and longer than asked for under heavy load.
    pub ttl: Ttl,
    /// When the lease ends unless it is renewed; `None` while it is suspended and has no cap.
    pub deadline: Option<LeaseTime>,
}

/// A lease, as it stood when it was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease<I> {
    /// What it's known by.
    pub id: I,
    /// The TTL that a renewal grants, unless the load makes it longer.
    pub ttl: Ttl,
    /// When it ends unless it's renewed; `None` while it is suspended and has no cap.
    pub deadline: Option<LeaseTime>,
    /// When it ends however often it's renewed.
    pub end_by: Option<LeaseTime>,
    /// What it does.
    pub state: State,
    /// How often its end has been offered: more than once means that it failed.
    pub tries: u8,
}

/// What a lease does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// It runs towards its deadline.
    Active,
    /// Its time stands still.
    Suspended,
    /// Its end has begun, and waits for an answer or for the next try.
    Ending,
}

/// How many there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Leases that are not forgotten yet.
    pub leases: usize,
    /// Those of them whose time stands still.
    pub suspended: usize,
    /// Those of them whose end has begun.
    pub ending: usize,
    /// Attached items.
    pub items: usize,
}

impl<I, K> Lessor<I, K> {
    /// A lessor without leases. It's a follower until it's promoted.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            leases: Slots::default(),
            items: Table::default(),
            wheel: Wheel::new(ZERO),
            ends: Wheel::new(ZERO),
            primary: false,
            reign: 0,
            ending: 0,
            suspended: 0,
            shift: 0,
            load: Load::default(),
        }
    }

    /// Whether this lessor ends leases.
    pub fn is_primary(&self) -> bool {
        self.primary
    }

    /// Becomes primary: leases that are over are offered from now on. All deadlines and caps, of every lease,
    /// move by `extend`; with zero they stay where they are. O(1).
    pub fn promote(&mut self, extend: Duration) {
        self.primary = true;
        self.shift = self.shift.saturating_add(Ttl::from(extend).as_millis()).min(ZERO);
    }

    /// Becomes a follower: nothing is offered, deadlines are kept. Ends under way are no longer ours: their
    /// leases count as alive, and if nobody else ends them, the next promotion offers them again. O(1).
    pub fn demote(&mut self) {
        if self.primary {
            self.primary = false;
            self.ending = 0;
            self.ends.pour_into(&mut self.leases, &mut self.wheel);
            self.reign = self.reign.wrapping_add(1);
            if self.reign == 0 {
                // Numbers of reigns are used again: no lease may carry an old one.
                self.leases.iter_mut().for_each(|slot| {
                    if slot.phase != Phase::Gone {
                        slot.live();
                    }
                });
            }
        }
    }

    /// How many leases and items there are. O(1).
    pub fn counts(&self) -> Counts {
        Counts {
            leases: self.leases.len(),
            suspended: self.suspended,
            ending: self.ending,
            items: self.items.len(),
        }
    }

    /// How many slots were ever in use at the same time.
    #[cfg(all(test, feature = "shared"))]
    pub(super) fn slots_ever_used(&self) -> usize {
        self.leases.ever_used()
    }

    /// Lease time as the deadlines count it, rounded down: no end is due before.
    pub(super) fn down(&self, time: LeaseTime) -> u64 {
        (ZERO + time.millis_down()) - self.shift
    }

    /// Lease time as the deadlines count it, rounded up: a TTL counts from here.
    pub(super) fn up(&self, time: LeaseTime) -> u64 {
        (ZERO + time.millis_up()) - self.shift
    }

    pub(super) fn outside(&self, inner: u64) -> Option<LeaseTime> {
        (inner != NEVER)
            .then(|| LeaseTime::from_millis(inner.saturating_add(self.shift).saturating_sub(ZERO)))
    }
}

impl<I: Copy + Eq + Hash, K> Lessor<I, K> {
    /// Grants a lease. O(1).
    ///
    /// Works in every role: a follower learns of a grant after the fact.
    ///
    /// # Errors
    /// [`Error::LeaseExists`], [`Error::TtlTooLarge`] (unless the configuration clamps), [`Error::Full`].
    pub fn grant(&mut self, id: I, ttl: Ttl, now: LeaseTime) -> Result<Granted, Error> {
        let ttl = self.permitted(ttl)?;
        let granted = self.stretched(ttl);
        let deadline = self.up(now).saturating_add(granted.as_millis());
        self.insert(id, ttl, deadline, now)?;
        Ok(Granted { ttl: granted, deadline: self.outside(deadline) })
    }

    /// Takes a lease over from before a restart: it's renewed under `ttl`, but until then only `remaining` of
    /// it is left. O(1).
    ///
    /// # Errors
    /// [`Error::LeaseExists`], [`Error::Full`]. A TTL outside today's bounds is brought within them.
    pub fn restore(
        &mut self,
        id: I,
        ttl: Ttl,
        remaining: Duration,
        now: LeaseTime,
    ) -> Result<Granted, Error> {
        let ttl = self.clamped(ttl);
        let deadline = self.up(now).saturating_add(Ttl::from(remaining).as_millis());
        self.insert(id, ttl, deadline, now)?;
        Ok(Granted { ttl, deadline: self.outside(deadline) })
    }

    fn insert(&mut self, id: I, ttl: Ttl, deadline: u64, now: LeaseTime) -> Result<(), Error> {
        let n = match self.leases.insert(Slot::new(id, ttl.as_millis(), deadline)) {
            Found::New(n) => n,
            Found::Old(_) => return Err(Error::LeaseExists),
            Found::Full => return Err(Error::Full),
        };
        let now = self.down(now);
        self.wheel.settle(now);
        // The slot of a lease that is over may be filed still, and early enough.
        if deadline < self.leases.get(n).node.at {
            self.wheel.file(&mut self.leases, n, deadline);
        }
        Ok(())
    }

    /// Renews a lease: its deadline is a TTL from now, or where it is if that's later. What remains of a
    /// suspended one is the full TTL again. O(1), one look-up: the queue isn't touched.
    ///
    /// A lease whose deadline has passed can be renewed until its end has begun, that is, until
    /// [`poll`](Lessor::poll) has offered it.
    ///
    /// # Errors
    /// [`Error::LeaseNotFound`], [`Error::LeaseExpired`]; [`Error::NotPrimary`] where followers don't renew.
    #[inline]
    pub fn renew(&mut self, id: I, now: LeaseTime) -> Result<Granted, Error> {
        if !(self.primary || self.config.followers_renew) {
            return Err(Error::NotPrimary);
        }
        let n = self.leases.find(id).ok_or(Error::LeaseNotFound)?;
        let now_up = self.up(now);
        let slot = self.leases.get_mut(n);
        if slot.phase != Phase::Active || self.config.stretch.is_some() {
            return self.renew_any(n, now);
        }
        // The clock may have stepped back: that takes nothing away.
        slot.deadline = slot.deadline.max(now_up.saturating_add(slot.ttl));
        let (ttl, due) = (Ttl::from_millis(slot.ttl), slot.due());
        Ok(Granted { ttl, deadline: self.outside(due) })
    }

    #[cold]
    fn renew_any(&mut self, n: u32, now: LeaseTime) -> Result<Granted, Error> {
        if self.leases.get(n).has_begun(self.reign) {
            return Err(Error::LeaseExpired);
        }
        Ok(self.extend(n, None, now))
    }

    /// Renews a lease under another TTL; the deadline may come nearer. O(1).
    ///
    /// # Errors
    /// As [`renew`](Self::renew), and [`Error::TtlTooLarge`].
    pub fn renew_with(&mut self, id: I, ttl: Ttl, now: LeaseTime) -> Result<Granted, Error> {
        if !(self.primary || self.config.followers_renew) {
            return Err(Error::NotPrimary);
        }
        let n = self.alive(id)?;
        let ttl = self.permitted(ttl)?;
        Ok(self.extend(n, Some(ttl), now))
    }

    /// A renewal won against an end that had begun: the lease lives on, under `ttl`, from now. Also a plain
    /// renewal if no end has begun. O(1).
    ///
    /// # Errors
    /// [`Error::LeaseNotFound`], [`Error::TtlTooLarge`].
    pub fn reinstate(&mut self, id: I, ttl: Ttl, now: LeaseTime) -> Result<Granted, Error> {
        let n = self.leases.find(id).ok_or(Error::LeaseNotFound)?;
        let ttl = self.permitted(ttl)?;
        Ok(self.extend(n, Some(ttl), now))
    }

    /// The lease's end doesn't come about: it lives on, with the deadline, the cap and the standstill that it has. Nothing
    /// changes if its end hasn't begun. O(1).
    ///
    /// # Errors
    /// [`Error::LeaseNotFound`].
    pub fn take_back(&mut self, id: I) -> Result<(), Error> {
        let n = self.leases.find(id).ok_or(Error::LeaseNotFound)?;
        if self.leases.get(n).has_begun(self.reign) {
            self.ending -= 1;
            self.ends.remove(&mut self.leases, n);
            self.change(n, |_| {});
        }
        Ok(())
    }

    /// Sets when the lease ends however often it's renewed, suspended or not; `None` lifts the cap. O(1).
    ///
    /// # Errors
    /// [`Error::LeaseNotFound`], [`Error::LeaseExpired`].
    pub fn set_end_by(&mut self, id: I, end_by: Option<LeaseTime>) -> Result<(), Error> {
        let n = self.alive(id)?;
        let end_by = end_by.map_or(NEVER, |end_by| self.up(end_by));
        self.change(n, |slot| slot.end_by = end_by);
        Ok(())
    }

    /// Sets how long the lease lives from now on unless it's renewed, of a suspended one, what remains. The cap stays. O(1).
    ///
    /// # Errors
    /// [`Error::LeaseNotFound`], [`Error::LeaseExpired`].
    pub fn set_remaining(&mut self, id: I, remaining: Duration, now: LeaseTime) -> Result<(), Error> {
        let n = self.alive(id)?;
        let (now, remaining) = (self.up(now), Ttl::from(remaining).as_millis());
        self.change(n, |slot| {
            slot.deadline = if slot.is_suspended() { remaining } else { now.saturating_add(remaining) };
        });
        Ok(())
    }

    /// Lets the lease's time stand still, and answers how much of it remains. Nothing changes if it stands
    /// still already. O(1).
    ///
    /// # Errors
    /// [`Error::LeaseNotFound`], [`Error::LeaseExpired`].
    pub fn suspend(&mut self, id: I, now: LeaseTime) -> Result<Duration, Error> {
        let n = self.alive(id)?;
        let now = self.down(now);
        let mut remaining = 0;
        let mut newly = false;
        self.change(n, |slot| {
            newly = slot.phase == Phase::Active;
            if newly {
                slot.phase = Phase::Suspended;
                slot.deadline = slot.deadline.saturating_sub(now);
            }
            remaining = slot.deadline;
        });
        self.suspended += usize::from(newly);
        Ok(Duration::from_millis(remaining))
    }

    /// Lets the lease's time run on from what remained. Nothing changes if it runs already. O(1).
    ///
    /// # Errors
    /// [`Error::LeaseNotFound`], [`Error::LeaseExpired`].
    pub fn resume(&mut self, id: I, now: LeaseTime) -> Result<Granted, Error> {
        let n = self.alive(id)?;
        let now = self.up(now);
        let mut granted = (0, NEVER);
        let mut newly = false;
        self.change(n, |slot| {
            newly = slot.phase == Phase::Suspended;
            if newly {
                slot.phase = Phase::Active;
                slot.deadline = slot.deadline.saturating_add(now);
            }
            granted = (slot.ttl, slot.due());
        });
        self.suspended -= usize::from(newly);
        Ok(Granted { ttl: Ttl::from_millis(granted.0), deadline: self.outside(granted.1) })
    }

    /// The lease, if there is one with this id. O(1).
    pub fn lookup(&self, id: I) -> Option<Lease<I>> {
        Some(self.view(self.leases.get(self.leases.find(id)?)))
    }

    /// When the lease ends unless something happens; `None` if there is none, or if it's suspended and has no
    /// cap. O(1).
    pub fn deadline(&self, id: I) -> Option<LeaseTime> {
        self.lookup(id)?.deadline
    }

    /// How long the lease lives unless something happens, never negative; of a suspended one, what remained.
    /// `None` if there is none. O(1).
    pub fn remaining(&self, id: I, now: LeaseTime) -> Option<Duration> {
        let slot = self.leases.get(self.leases.find(id)?);
        let now = self.down(now);
        let until_cap = slot.end_by.saturating_sub(now);
        let left = if slot.is_suspended() { slot.deadline } else { slot.deadline.saturating_sub(now) };
        Some(Duration::from_millis(left.min(until_cap)))
    }

    /// What has to outlive this process, of a lease. O(1).
    pub fn record(&self, id: I, now: LeaseTime) -> Option<Record<I>> {
        let slot = self.leases.get(self.leases.find(id)?);
        let now = self.down(now);
        let left = |until: u64| Duration::from_millis(until.saturating_sub(now));
        Some(Record {
            id,
            ttl: Ttl::from_millis(slot.ttl),
            remaining: left(if slot.is_suspended() {
                slot.deadline.saturating_add(now)
            } else {
                slot.deadline
            }),
            end_in: (slot.end_by != NEVER).then(|| left(slot.end_by)),
            suspended: slot.is_suspended(),
        })
    }

    /// All leases, in no particular order. O(n).
    pub fn leases(&self) -> impl Iterator<Item = Lease<I>> {
        self.leases.iter().map(|slot| self.view(slot))
    }

    /// All leases, those that end first first, those without a deadline last. O(n log n).
    pub fn leases_by_deadline(&self) -> Vec<Lease<I>> {
        let mut leases: Vec<_> = self.leases().collect();
        leases.sort_unstable_by_key(|lease| lease.deadline.unwrap_or(LeaseTime::NEVER));
        leases
    }

    fn view(&self, slot: &Slot<I>) -> Lease<I> {
        let state = match slot.phase {
            _ if slot.has_begun(self.reign) => State::Ending,
            _ if slot.is_suspended() => State::Suspended,
            _ => State::Active,
        };
        Lease {
            id: slot.id,
            ttl: Ttl::from_millis(slot.ttl),
            deadline: self.outside(slot.due()),
            end_by: self.outside(slot.end_by),
            state,
            tries: slot.tries,
        }
    }

    /// The number of this lease, if its end has not begun.
    pub(super) fn alive(&self, id: I) -> Result<u32, Error> {
        let n = self.leases.find(id).ok_or(Error::LeaseNotFound)?;
        if self.leases.get(n).has_begun(self.reign) { Err(Error::LeaseExpired) } else { Ok(n) }
    }

    fn extend(&mut self, n: u32, ttl: Option<Ttl>, now: LeaseTime) -> Granted {
        let now_up = self.up(now);
        if self.config.stretch.is_some() {
            self.load.count(now.millis_down());
        }
        let slot = self.leases.get_mut(n);
        let before = slot.due();
        let base = ttl.unwrap_or(Ttl::from_millis(slot.ttl));
        let granted = match &self.config.stretch {
            Some(policy) => self.load.stretch(base, policy, self.config.max_ttl),
            None => base,
        };
        slot.ttl = base.as_millis();
        slot.deadline = match (slot.is_suspended(), ttl) {
            (true, _) => granted.as_millis(),
            (false, Some(_)) => now_up.saturating_add(granted.as_millis()),
            (false, None) => slot.deadline.max(now_up.saturating_add(granted.as_millis())),
        };
        let after = slot.due();
        let begun = slot.has_begun(self.reign);
        // A node that is filed too early is filed anew when its time comes: nothing to do for a plain
        // renewal.
        slot.live();
        if begun || after < before {
            if begun {
                self.ending -= 1;
                self.ends.remove(&mut self.leases, n);
            }
            self.wheel.file(&mut self.leases, n, after);
        }
        Granted { ttl: granted, deadline: self.outside(after) }
    }

    /// Changes a living lease and files it anew.
    fn change(&mut self, n: u32, change: impl FnOnce(&mut Slot<I>)) {
        let slot = self.leases.get_mut(n);
        slot.live();
        change(slot);
        let due = slot.due();
        self.wheel.file(&mut self.leases, n, due);
    }

    fn permitted(&self, ttl: Ttl) -> Result<Ttl, Error> {
        let max = self.config.max_ttl;
        if ttl > max && self.config.above_max == AboveMax::Refuse {
            return Err(Error::TtlTooLarge { asked: ttl, max });
        }
        Ok(self.clamped(ttl))
    }

    fn clamped(&self, ttl: Ttl) -> Ttl {
        ttl.max(self.config.min_ttl).min(self.config.max_ttl)
    }

    fn stretched(&self, ttl: Ttl) -> Ttl {
        match &self.config.stretch {
            Some(policy) => self.load.stretch(ttl, policy, self.config.max_ttl),
            None => ttl,
        }
    }
}

impl<I: Copy + Eq + Hash, K: Eq + Hash> Lessor<I, K> {
    /// Revokes a lease, whatever it does, and answers what was attached to it. O(1), and O(1) for each item.
    ///
    /// The lease is forgotten at once. Where its end takes time and may fail, see
    /// [`begin_revoke`](Self::begin_revoke).
    ///
    /// # Errors
    /// [`Error::LeaseNotFound`], also the second time.
    pub fn revoke(&mut self, id: I) -> Result<Vec<K>, Error> {
        let n = self.leases.remove(id).ok_or(Error::LeaseNotFound)?;
        let slot = self.leases.get_mut(n);
        self.suspended -= usize::from(slot.is_suspended());
        if slot.has_begun(self.reign) {
            self.ending -= 1;
            self.ends.remove(&mut self.leases, n);
        }
        let slot = self.leases.get_mut(n);
        slot.phase = Phase::Gone;
        let items = slot.items;
        Ok(self.take_items(items))
    }
}
