//! The leases: granted, renewed, suspended, revoked.

use std::{hash::Hash, time::Duration};

use super::{
    AboveMax, Config, Error, LeaseTime, Record, Ttl,
    items::Items,
    load::Load,
    slots::{Phase, Slot, Slots},
    table::{Found, NONE},
    wheel::{NEVER, Wheel},
};

/// Lease time zero on the inner clock, which [`LeaseEngine::promote`] sets back: 34 years in milliseconds.
const ZERO: u64 = 1 << 40;

/// Leases in memory. The [crate's page](crate) describes how it works, and what operations cost.
///
/// `I` is the type of ids, `K` that of items. Leave `K` out if nothing is attached.
#[derive(Clone, Debug)]
pub struct LeaseEngine<I, K = ()> {
    pub(super) config: Config,
    pub(super) leases: Slots<I>,
    items: Items<K>,
    /// Leases by their deadlines, except those whose ends have begun under this reign.
    pub(super) wheel: Wheel,
    /// Leases whose ends have begun: set aside until the caller reports, or filed under the time of the next try.
    pub(super) ends: Wheel,
    pub(super) primary: bool,
    /// Counts demotions. An end that began before the last one has no effect.
    pub(super) reign: u16,
    pub(super) ending: usize,
    suspended: usize,
    /// By how much `promote` has moved all deadlines, in milliseconds.
    shift: u64,
    load: Load,
}

/// The result of a grant or renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The TTL in force: at least the minimum, and longer than requested under heavy load.
    pub ttl: Ttl,
    /// When the lease ends unless it is renewed. `None` while it is suspended without a cap.
    pub deadline: Option<LeaseTime>,
}

/// The state of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease<I> {
    /// Its id.
    pub id: I,
    /// The TTL that a renewal grants, unless load stretches it.
    pub ttl: Ttl,
    /// When it ends unless it is renewed. `None` while it is suspended without a cap.
    pub deadline: Option<LeaseTime>,
    /// The cap: when it ends, however often it is renewed.
    pub end_by: Option<LeaseTime>,
    /// Whether it runs, is suspended, or is ending.
    pub state: State,
    /// How often its end was offered. More than once means that it failed.
    pub tries: u8,
}

/// The phase of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Its time runs.
    Active,
    /// Its time stands still.
    Suspended,
    /// Its end has begun, and isn't committed yet.
    Ending,
}

/// Numbers of leases and items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All leases.
    pub leases: usize,
    /// Suspended leases.
    pub suspended: usize,
    /// Leases whose ends have begun.
    pub ending: usize,
    /// Attached items.
    pub items: usize,
}

impl<I, K> LeaseEngine<I, K> {
    /// An engine without leases, as a follower.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            leases: Slots::default(),
            items: Items::default(),
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

    /// Whether this engine is primary, and so ends leases.
    pub fn is_primary(&self) -> bool {
        self.primary
    }

    /// Becomes primary, and so offers leases whose deadlines have passed. All deadlines and caps move by `extend`,
    /// which may be zero. O(1).
    pub fn promote(&mut self, extend: Duration) {
        self.primary = true;
        self.shift = self.shift.saturating_add(Ttl::from(extend).as_millis()).min(ZERO);
    }

    /// Becomes a follower, which offers no leases and keeps all deadlines. Takes back the ends under way: their
    /// leases count as alive. If no other primary ends them, the next promotion offers them again. O(1).
    pub fn demote(&mut self) {
        if self.primary {
            self.primary = false;
            self.ending = 0;
            self.ends.pour_into(&mut self.leases, &mut self.wheel);
            self.reign = self.reign.wrapping_add(1);
            if self.reign == 0 {
                // The numbers of reigns start again, so no lease may keep an old one.
                self.leases.iter_mut().for_each(|slot| {
                    if slot.phase != Phase::Gone {
                        slot.live();
                    }
                });
            }
        }
    }

    /// The numbers of leases and items. O(1).
    pub fn counts(&self) -> Counts {
        Counts {
            leases: self.leases.len(),
            suspended: self.suspended,
            ending: self.ending,
            items: self.items.len(),
        }
    }

    /// The most slots that were in use at the same time.
    #[cfg(test)]
    pub(super) fn slots_ever_used(&self) -> usize {
        self.leases.ever_used()
    }

    /// Lease time on the clock of the deadlines, rounded down. Whether a lease has ended is compared with it.
    pub(super) fn down(&self, time: LeaseTime) -> u64 {
        (ZERO + time.millis_down()) - self.shift
    }

    /// Lease time on the clock of the deadlines, rounded up. A TTL counts from it.
    pub(super) fn up(&self, time: LeaseTime) -> u64 {
        (ZERO + time.millis_up()) - self.shift
    }

    pub(super) fn outside(&self, inner: u64) -> Option<LeaseTime> {
        (inner != NEVER)
            .then(|| LeaseTime::from_millis(inner.saturating_add(self.shift).saturating_sub(ZERO)))
    }
}

impl<I: Copy + Eq + Hash, K> LeaseEngine<I, K> {
    /// Grants a lease. O(1).
    ///
    /// Works in every role, since followers apply grants of the primary.
    ///
    /// # Errors
    /// [`Error::LeaseExists`], [`Error::TtlTooLarge`] unless the configuration clamps, [`Error::Full`].
    pub fn grant(&mut self, id: I, ttl: Ttl, now: LeaseTime) -> Result<Granted, Error> {
        let ttl = self.permitted(ttl)?;
        let granted = self.stretched(ttl);
        let deadline = self.up(now).saturating_add(granted.as_millis());
        self.insert(id, ttl, deadline, now)?;
        Ok(Granted { ttl: granted, deadline: self.outside(deadline) })
    }

    /// Restores a lease after a restart, with `remaining` until its deadline. Renewals grant `ttl`. O(1).
    ///
    /// # Errors
    /// [`Error::LeaseExists`], [`Error::Full`]. A TTL outside of the configured bounds is clamped.
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
        // The slot of an ended lease may still be filed, early enough.
        if deadline < self.leases.get(n).node.at {
            self.wheel.file(&mut self.leases, n, deadline);
        }
        Ok(())
    }

    /// Renews a lease: its deadline moves to a TTL from now, but never to an earlier time. A suspended lease has its
    /// full TTL again. O(1): one look-up, and no change in the queue.
    ///
    /// A lease whose deadline has passed can be renewed until [`poll`](LeaseEngine::poll) begins its end.
    ///
    /// # Errors
    /// [`Error::LeaseNotFound`], [`Error::LeaseExpired`]; [`Error::NotPrimary`] if followers don't renew.
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
        // A clock that stepped back shortens no lease.
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

    /// Renews a lease under another TTL. The deadline may move to an earlier time. O(1).
    ///
    /// # Errors
    /// Those of [`renew`](Self::renew), and [`Error::TtlTooLarge`].
    pub fn renew_with(&mut self, id: I, ttl: Ttl, now: LeaseTime) -> Result<Granted, Error> {
        if !(self.primary || self.config.followers_renew) {
            return Err(Error::NotPrimary);
        }
        let n = self.alive(id)?;
        let ttl = self.permitted(ttl)?;
        Ok(self.extend(n, Some(ttl), now))
    }

    /// A renewal won against an end that had begun: renews the lease under `ttl`. O(1).
    ///
    /// # Errors
    /// [`Error::LeaseNotFound`], [`Error::TtlTooLarge`].
    pub fn reinstate(&mut self, id: I, ttl: Ttl, now: LeaseTime) -> Result<Granted, Error> {
        let n = self.leases.find(id).ok_or(Error::LeaseNotFound)?;
        let ttl = self.permitted(ttl)?;
        Ok(self.extend(n, Some(ttl), now))
    }

    /// The lease's end was cancelled: it lives on with its deadline, its cap and its suspension. Changes nothing if no
    /// end has begun. O(1).
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

    /// Sets the cap: when the lease ends, however often it is renewed, and even if it is suspended. `None` removes it.
    /// O(1).
    ///
    /// # Errors
    /// [`Error::LeaseNotFound`], [`Error::LeaseExpired`].
    pub fn set_end_by(&mut self, id: I, end_by: Option<LeaseTime>) -> Result<(), Error> {
        let n = self.alive(id)?;
        let end_by = end_by.map_or(NEVER, |end_by| self.up(end_by));
        self.change(n, |slot| slot.end_by = end_by);
        Ok(())
    }

    /// Sets how long the lease lives unless it is renewed, or how much a suspended lease has left. The cap stays. O(1).
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

    /// Stops the lease's time, and returns how much remains. Changes nothing if the lease is suspended already. O(1).
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

    /// Lets the lease's time run on from what remained. Changes nothing if it runs already. O(1).
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

    /// The lease with this id. O(1).
    pub fn lookup(&self, id: I) -> Option<Lease<I>> {
        Some(self.view(self.leases.get(self.leases.find(id)?)))
    }

    /// When the lease ends unless it is renewed. `None` if there is no such lease, or if it is suspended without a
    /// cap. O(1).
    pub fn deadline(&self, id: I) -> Option<LeaseTime> {
        self.lookup(id)?.deadline
    }

    /// How long the lease lives unless it is renewed, or how much a suspended lease has left. Never negative. `None`
    /// if there is no such lease. O(1).
    pub fn remaining(&self, id: I, now: LeaseTime) -> Option<Duration> {
        let slot = self.leases.get(self.leases.find(id)?);
        let now = self.down(now);
        let until_cap = slot.end_by.saturating_sub(now);
        let left = if slot.is_suspended() { slot.deadline } else { slot.deadline.saturating_sub(now) };
        Some(Duration::from_millis(left.min(until_cap)))
    }

    /// The persistent form of a lease. O(1).
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

    /// All leases by their deadlines, those without a deadline last. O(n log n).
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

    /// The number of a lease whose end hasn't begun.
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
        // A node that is filed too early is moved when its time comes, so a plain renewal leaves it.
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

    /// Changes a lease and files it again.
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

impl<I: Copy + Eq + Hash, K: Eq + Hash> LeaseEngine<I, K> {
    /// Revokes a lease in any state, and returns its items. O(1), and O(1) for each item.
    ///
    /// The engine forgets the lease at once. If its end takes time and may fail, use
    /// [`begin_revoke`](Self::begin_revoke).
    ///
    /// # Errors
    /// [`Error::LeaseNotFound`], also if it is revoked twice.
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
        Ok(self.items.take(items))
    }

    // --- Items -----------------------------------------------------------------------------------

    /// Attaches an item to a lease, and returns the lease that it was attached to before. O(1).
    ///
    /// # Errors
    /// [`Error::LeaseNotFound`], [`Error::LeaseExpired`], [`Error::Full`]. They change nothing.
    pub fn attach(&mut self, id: I, item: K) -> Result<Option<I>, Error> {
        let lease = self.alive(id)?;
        let Self { items, leases, .. } = self;
        let (at, former) = match items.insert(item, lease) {
            Found::New(at) => (at, None),
            Found::Old(at) => (at, items.unlink(at, |lease| &mut leases.get_mut(lease).items)),
            Found::Full => return Err(Error::Full),
        };
        items.link(at, lease, &mut leases.get_mut(lease).items);
        Ok(former.map(|former| leases.get(former).id))
    }

    /// Detaches an item from a lease. Returns false, and changes nothing, if the item isn't attached to this lease.
    /// O(1).
    ///
    /// # Errors
    /// [`Error::LeaseNotFound`].
    pub fn detach(&mut self, id: I, item: &K) -> Result<bool, Error> {
        let Self { items, leases, .. } = self;
        let lease = leases.find(id).ok_or(Error::LeaseNotFound)?;
        let Some((at, _)) = items.find(item).filter(|(_, owner)| *owner == lease) else { return Ok(false) };
        items.unlink(at, |lease| &mut leases.get_mut(lease).items);
        items.remove(at);
        Ok(true)
    }

    /// The lease that an item is attached to. O(1).
    pub fn lease_of(&self, item: &K) -> Option<I> {
        let (_, lease) = self.items.find(item)?;
        Some(self.leases.get(lease).id)
    }

    /// The items of a lease, latest first; none if there is no such lease.
    pub fn items(&self, id: I) -> impl Iterator<Item = &K> {
        let head = self.leases.find(id).map_or(NONE, |n| self.leases.get(n).items);
        self.items.of(head)
    }
}
