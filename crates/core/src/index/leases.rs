//! All leases by uid and by name, and their deadlines: it keeps the in-memory lessor in step with the lease objects.

mod entry;
mod turns;

use std::{
    collections::HashMap,
    hash::{Hash, Hasher},
    time::Duration,
};

use lease_engine::{self, AboveMax, LeaseEngine, LeaseTime, Rate};
use lessor_api::Recorded;
use uuid::Uuid;

pub use self::entry::{Entry, Failure, More, Pending};
use self::turns::Turns;
use crate::{
    api_seconds::seconds,
    clocks::Now,
    decide::cold_start::{self, Recovered},
    index::sources::{LeaseState, Transition, TtlChange, TtlState},
    interner::Interner,
    lease_object::LeaseObject,
    listed_keys::ListedKeys,
    metadata::NamespacedName,
    settings::Settings,
    sparse::Sparse,
};

/// The time of a granted lease, as the engine has it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GrantedTime {
    /// Its TTL.
    pub ttl: Duration,
    /// When it ends unless it is renewed; `None` while suspended without a cap.
    pub deadline: Option<LeaseTime>,
    /// What remains until then.
    pub remaining: Duration,
    /// What remains of the TTL, however near the cap is.
    pub left: Duration,
    /// For how long the deadline has passed.
    pub overdue: Option<Duration>,
    /// Whether it is over however often it is renewed: `maxLifetimeSeconds` has passed.
    pub capped: bool,
}

/// What taking in a version of a lease changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The version isn't newer than the one in the index: nothing changed.
    pub stale_news: bool,
    /// It is new to the index.
    pub new: bool,
    /// Its status was written since.
    pub status_written: bool,
    /// It was granted since.
    pub granted: bool,
    /// It was renewed since.
    pub renewed: bool,
    /// Its end was committed since.
    pub ended: bool,
    /// The condition `Released` has changed since, or the request that releases it was rejected.
    pub released: bool,
}

/// All leases.
#[derive(Clone)]
pub struct LeaseIndex {
    /// Boxed, since a table of which up to half is empty would double what they take.
    entries: HashMap<Uuid, Box<Entry>>,
    by_name: HashMap<NamespacedName, Uuid>,
    /// Leases that a response reported as gone, until the watch confirms it. What the watch reports of them before is outdated.
    unconfirmed: HashMap<Uuid, NamespacedName>,
    namespaces: Interner,
    /// How many are [recovered](Entry::recovered).
    recovered: usize,
    /// Which of them end later by how much, as their holders may not have been able to renew before the start.
    long_graces: Vec<(Uuid, Duration)>,
    lessor: LeaseEngine<Uuid>,
    /// Those that were handed out and wait for their turns.
    turns: Turns,
    /// For what was due before this, the primary of before had time.
    inherited_before: LeaseTime,
}

impl LeaseIndex {
    /// No leases.
    pub fn new(settings: &Settings) -> Self {
        // Without bounds of its own: a TTL that another primary granted under other settings stays as granted.
        let lessor = LeaseEngine::new(lease_engine::Config {
            above_max: AboveMax::Clamp,
            expiry_rate: None,
            ..lease_engine::Config::default()
        });
        Self {
            entries: HashMap::new(),
            by_name: HashMap::new(),
            unconfirmed: HashMap::new(),
            namespaces: Interner::default(),
            recovered: 0,
            long_graces: Vec::new(),
            lessor,
            turns: Turns::new(Rate::per_second(settings.expiry_rate.get().into())),
            inherited_before: LeaseTime::from_duration(Duration::ZERO),
        }
    }

    /// Takes in a version of a lease. A version older than the one in the index changes nothing.
    pub fn apply(
        &mut self,
        record: LeaseObject,
        recorded: Recorded,
        now: &Now,
        settings: &Settings,
    ) -> Change {
        let uid = record.uid;
        if self.unconfirmed.contains_key(&uid) {
            return Change { stale_news: true, ..Change::default() };
        }
        if let Some(other) = self.by_name.get(&record.name).copied().filter(|other| *other != uid) {
            // One name, two leases: the newer object is the one that exists.
            if self.entries.get(&other).is_some_and(|entry| entry.record.version > record.version) {
                return Change { stale_news: true, ..Change::default() };
            }
            self.forget(other);
        }
        let Some(entry) = self.entries.get_mut(&uid) else {
            return self.insert(record, recorded, now, settings);
        };
        if entry.record.version >= record.version {
            entry.stale &= entry.record.version > record.version;
            return Change { stale_news: true, ..Change::default() };
        }
        entry.stale = false;
        if std::mem::take(&mut entry.handed_out) {
            // Whatever has changed: it is due no more, or will be handed out again.
            take_back(&mut self.lessor, uid);
        }
        let old = std::mem::replace(&mut entry.record, record);
        // What has its name shares it.
        if entry.record.name == old.name {
            entry.record.name = old.name.clone();
        }
        let new = &entry.record;
        let mut change = Change { status_written: old.status != new.status, ..Change::default() };
        if change.status_written {
            entry.written_at = Some(now.mono);
            entry.published_deadline = cold_start::published_deadline(new, now);
            entry.nearer = false;
            if let Some(by) = entry.granted_by()
                && new.status.grant.is_none_or(|grant| grant.time >= by)
            {
                entry.more.change(|more| more.granted_by = None);
            }
        }
        if new.status.has_ended() {
            change.ended = !old.status.has_ended();
            let releasing = std::mem::take(&mut entry.releasing);
            change.released = old.status.released() != new.status.released() || releasing;
            if change.ended {
                self.recovered -= usize::from(std::mem::take(&mut entry.recovered));
                entry.more.change(|more| {
                    more.linger_until = Some(now.mono.saturating_add(settings.linger));
                    more.end_unseen = true;
                });
                forget(&mut self.lessor, uid);
            }
            return change;
        }
        if !new.status.is_granted() && (old.status.is_granted() || old.status.has_ended()) {
            // Its status was replaced by that of another lease: it is granted anew.
            entry.releasing = false;
            entry.more.change(|more| {
                more.linger_until = None;
                more.end_unseen = false;
            });
            forget(&mut self.lessor, uid);
        }
        if self.lessor.lookup(uid).is_none() {
            if new.status.is_granted() {
                // Just granted: its time runs from now on, a little after the grant.
                grant(&mut self.lessor, new, now, settings);
                if let Some(by) = cold_start::granted_by(new, recorded) {
                    entry.more.change(|more| more.granted_by = Some(by));
                }
                change.granted = true;
                set_running(&mut self.lessor, entry, now);
            }
            return change;
        }
        let before = self.lessor.deadline(uid);
        change.renewed = old.is_renewed_by(new);
        let held = self.lessor.lookup(uid).map(|lease| lease.ttl.as_duration());
        let ttl = if cold_start::published_ttl(&old) != cold_start::published_ttl(new) {
            cold_start::ttl_granted(new, settings)
        } else if old.ttl_seconds != new.ttl_seconds {
            // Until the primary publishes what it grants.
            settings.granted_ttl(new.ttl_seconds)
        } else {
            held.unwrap_or_else(|| cold_start::ttl_granted(new, settings))
        };
        if change.renewed {
            self.recovered -= usize::from(std::mem::take(&mut entry.recovered));
        }
        if change.renewed || held != Some(ttl) {
            expect(new, self.lessor.renew_with(uid, ttl.into(), now.lease));
        }
        if old.max_lifetime_seconds() != new.max_lifetime_seconds() {
            let known = self.lessor.lookup(uid).and_then(|lease| lease.end_by);
            let cap = cold_start::moved_cap(&old, new, known, recorded, now, settings);
            expect(new, self.lessor.set_end_by(uid, cap));
        }
        if old.suspend || new.suspend || entry.ttl_state != TtlState::Running {
            set_running(&mut self.lessor, entry, now);
        }
        let new = &entry.record;
        // A follower adopts the remaining time that the primary published. With a value of its own it would publish that after a
        // takeover.
        if let Some(left) =
            new.published_remaining().filter(|_| change.status_written && !self.lessor.is_primary())
            && entry.ttl_state != TtlState::Full
        {
            expect(new, self.lessor.set_remaining(uid, seconds(left), now.lease));
        }
        if let (Some(before), Some(after)) = (before, self.lessor.deadline(uid)) {
            entry.nearer |= after < before;
        }
        change
    }

    fn insert(
        &mut self,
        mut record: LeaseObject,
        recorded: Recorded,
        now: &Now,
        settings: &Settings,
    ) -> Change {
        let uid = record.uid;
        let ended = record.status.has_ended();
        let is_recovered = record.status.is_granted() && !ended;
        if is_recovered {
            self.recovered += 1;
            let long_grace = restore(&mut self.lessor, &record, recorded, now, settings);
            self.long_graces.extend((!long_grace.is_zero()).then_some((uid, long_grace)));
        }
        record.name.namespace = self.namespaces.intern(&record.name.namespace);
        self.by_name.insert(record.name.clone(), uid);
        let linger_until = ended.then(|| now.mono.saturating_add(settings.linger));
        let entry = Entry {
            published_deadline: cold_start::published_deadline(&record, now),
            nearer: false,
            record,
            stale: false,
            written_at: None,
            pending: Pending::Idle,
            handed_out: false,
            awaits_turn: false,
            recovered: is_recovered,
            ttl_state: TtlState::Running,
            releasing: false,
            more: Sparse::new(More { linger_until, ..More::default() }),
        };
        self.entries.insert(uid, Box::new(entry));
        Change { new: true, ended, ..Change::default() }
    }

    /// The watch has shown that a lease has ended: from now on it lingers. Returns whether only a response had shown that before.
    pub fn end_seen(&mut self, uid: Uuid, now: &Now, settings: &Settings) -> bool {
        let Some(entry) = self.entries.get_mut(&uid) else { return false };
        if !entry.more.get().is_some_and(|more| more.end_unseen) {
            return false;
        }
        entry.more.change(|more| {
            more.linger_until = Some(now.mono.saturating_add(settings.linger));
            more.end_unseen = false;
        });
        true
    }

    /// Takes in a heartbeat of the source that a lease follows, `age` ago: its TTL counts from there, unless it counts from later already.
    /// Returns whether the in-memory lessor has the lease.
    pub fn record_heartbeat(&mut self, uid: Uuid, age: Duration, now: &Now) -> bool {
        let Some(entry) = self.entries.get_mut(&uid) else { return false };
        let Some(lease) = self.lessor.lookup(uid) else { return false };
        let ttl = lease.ttl.as_duration();
        let remaining = ttl.saturating_sub(age);
        // The cap is another matter: it may be lifted.
        let known = self.lessor.record(uid, now.lease).map(|record| record.remaining);
        if known.is_some_and(|known| remaining <= known) && !age.is_zero() {
            return true;
        }
        if std::mem::take(&mut entry.handed_out) {
            take_back(&mut self.lessor, uid);
        }
        let counted = if age.is_zero() {
            self.lessor.renew(uid, now.lease).map(drop)
        } else {
            self.lessor.set_remaining(uid, remaining, now.lease)
        };
        expect(&entry.record, counted);
        set_running(&mut self.lessor, entry, now);
        true
    }

    /// Applies what a change of its source means for a lease. `since_heartbeat`: the time since the last heartbeat of the source,
    /// if it's known.
    pub fn apply_transition(
        &mut self,
        uid: Uuid,
        transition: Transition,
        since_heartbeat: Option<Duration>,
        now: &Now,
    ) {
        let Some(entry) = self.entries.get_mut(&uid) else { return };
        entry.ttl_state = transition.ttl_state;
        if self.lessor.lookup(uid).is_none() {
            return;
        }
        if std::mem::take(&mut entry.handed_out) {
            take_back(&mut self.lessor, uid);
        }
        match (transition.change, since_heartbeat) {
            (TtlChange::Renew, _) => drop(self.record_heartbeat(uid, Duration::ZERO, now)),
            (TtlChange::CountFromHeartbeat, Some(age)) => drop(self.record_heartbeat(uid, age, now)),
            (TtlChange::End, _) => {
                expect(&entry.record, self.lessor.set_remaining(uid, Duration::ZERO, now.lease));
            }
            (TtlChange::None, _) | (TtlChange::CountFromHeartbeat, None) => {}
        }
        if let Some(entry) = self.entries.get_mut(&uid) {
            set_running(&mut self.lessor, entry, now);
        }
    }

    /// The state of a lease, for its followers; `complete`: all leases have been listed.
    pub fn state_at(&self, name: &NamespacedName, complete: bool) -> LeaseState {
        let Some((uid, entry)) = self.at(name) else {
            return if complete { LeaseState::Missing } else { LeaseState::Unknown };
        };
        if entry.record.status.has_ended() {
            return LeaseState::Ended;
        }
        match self.lessor.lookup(uid) {
            None => LeaseState::Missing,
            Some(_) if entry.record.suspend || entry.ttl_state != TtlState::Running => {
                LeaseState::StandsStill
            }
            Some(_) => LeaseState::Runs,
        }
    }

    /// How long ago the lease of this name was granted or renewed last, as far as that's known, and no longer than it was.
    pub fn since_renewal(&self, name: &NamespacedName, now: &Now) -> Option<Duration> {
        let (uid, _) = self.at(name)?;
        let lease = self.lessor.lookup(uid)?;
        // A cap doesn't move with renewals.
        let deadline = lease.deadline.filter(|deadline| lease.end_by != Some(*deadline));
        let remaining = deadline.map(|deadline| deadline.since(now.lease));
        Some(remaining.map_or(Duration::ZERO, |remaining| lease.ttl.as_duration().saturating_sub(remaining)))
    }

    /// Notes that a response reported a lease as gone; the watch has yet to confirm it.
    pub fn mark_gone(&mut self, uid: Uuid) {
        if let Some(entry) = self.entries.get(&uid) {
            self.unconfirmed.insert(uid, entry.record.name.clone());
        }
    }

    /// Notes that the watch has confirmed that a lease is gone.
    pub fn confirm_gone(&mut self, uid: Uuid) {
        self.unconfirmed.remove(&uid);
    }

    /// Takes in that a watch has shown all leases there are in a namespace (`None`: in all): these. What was there when the
    /// list began may be unconfirmed since, and then the watch has yet to show how it ended.
    pub fn all_shown(&mut self, namespace: Option<&str>, shown: &ListedKeys) {
        let elsewhere =
            |name: &NamespacedName| namespace.is_some_and(|namespace| *name.namespace != *namespace);
        self.unconfirmed.retain(|_, name| elsewhere(name) || shown.contains(name));
    }

    /// Takes in that a lease is gone, as of `version`.
    pub fn remove(&mut self, uid: Uuid, version: u64) -> Option<Entry> {
        let known = self.entries.get(&uid)?;
        if known.record.version > version { None } else { self.forget(uid) }
    }

    /// Drops the deadline of a lease that no primary can end.
    pub fn stop_time(&mut self, uid: Uuid) {
        forget(&mut self.lessor, uid);
    }

    /// Forgets a lease.
    pub fn forget(&mut self, uid: Uuid) -> Option<Entry> {
        forget(&mut self.lessor, uid);
        let entry = *self.entries.remove(&uid)?;
        self.recovered -= usize::from(entry.recovered);
        if self.by_name.get(&entry.record.name) == Some(&uid) {
            self.by_name.remove(&entry.record.name);
        }
        Some(entry)
    }

    /// The leases in a namespace (`None`: in all) that a whole listing of it didn't show.
    pub fn missing(&self, namespace: Option<&str>, shown: &ListedKeys) -> Vec<Uuid> {
        let is_missing = |entry: &Entry| {
            let name = &entry.record.name;
            namespace.is_none_or(|namespace| *name.namespace == *namespace) && !shown.contains(name)
        };
        let missing = self.iter().filter(|(_, entry)| is_missing(entry));
        let mut missing: Vec<Uuid> = missing.map(|(uid, _)| *uid).collect();
        missing.sort_unstable();
        missing
    }

    /// One lease.
    pub fn get(&self, uid: &Uuid) -> Option<&Entry> {
        self.entries.get(uid).map(Box::as_ref)
    }

    /// One lease.
    pub fn get_mut(&mut self, uid: &Uuid) -> Option<&mut Entry> {
        self.entries.get_mut(uid).map(Box::as_mut)
    }

    /// The lease that has this name now.
    pub fn at(&self, name: &NamespacedName) -> Option<(Uuid, &Entry)> {
        let uid = self.by_name.get(name)?;
        Some((*uid, self.get(uid)?))
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&Uuid, &Entry)> {
        self.entries.iter().map(|(uid, entry)| (uid, &**entry))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Hashes the whole index, in a fixed order.
    pub(crate) fn hash_state(&self, state: &mut impl Hasher) {
        let mut uids: Vec<&Uuid> = self.entries.keys().collect();
        uids.sort_unstable();
        for uid in uids {
            (uid, self.entries.get(uid), self.lessor.lookup(*uid)).hash(state);
        }
        self.long_graces.hash(state);
        // One uid is one name, so what lies where follows, and whose news it is.
        let mut unconfirmed: Vec<&Uuid> = self.unconfirmed.keys().chain(self.by_name.values()).collect();
        unconfirmed.sort_unstable();
        (unconfirmed, self.unconfirmed.len(), self.lessor.is_primary(), self.next_due()).hash(state);
    }

    /// Takes those leases from the lessor whose deadlines lie before `until`, and lets as many end as the rate of expiries
    /// allows: the namespaces take turns, in each of them what the primary of before had time for and all else, and within those it
    /// goes by deadlines. Each is handed out once, until something about it changes.
    pub fn hand_out(&mut self, until: LeaseTime, now: &Now) -> Vec<Uuid> {
        while let Some((_, deadline)) = self.lessor.overdue(until) {
            let next = self.lessor.poll(now.lease, 1);
            let Some(entry) = next.first().and_then(|uid| self.entries.get_mut(uid)) else { break };
            entry.handed_out = true;
            entry.awaits_turn = true;
            let lane = (entry.record.name.namespace.clone(), deadline < self.inherited_before);
            self.turns.push(lane, entry.record.uid);
        }
        let mut due = Vec::new();
        while let Some(uid) = self.turns.next(now) {
            // It may have been renewed since, or be gone.
            if let Some(entry) =
                self.entries.get_mut(&uid).filter(|entry| entry.handed_out && entry.awaits_turn)
            {
                entry.awaits_turn = false;
                self.turns.spend(now);
                due.push(uid);
            }
        }
        due
    }

    /// This replica is primary: what is due is handed out. For what was due before `inherited_before`, another primary had time.
    pub fn promote(&mut self, inherited_before: LeaseTime) {
        self.inherited_before = inherited_before;
        self.lessor.promote(Duration::ZERO);
    }

    /// This replica is primary no more: nothing is handed out, and what was comes back.
    pub fn demote(&mut self) {
        self.lessor.demote();
        self.turns.clear();
        for entry in self.entries.values_mut() {
            entry.handed_out = false;
            entry.set_confirming(None);
        }
    }

    /// Sets or clears [`More::confirming`] of a lease.
    pub fn set_confirming(&mut self, uid: Uuid, since: Option<Duration>) {
        if let Some(entry) = self.entries.get_mut(&uid) {
            entry.set_confirming(since);
        }
    }

    /// Takes a lease back that was handed out but isn't due: lease time was found to stand still.
    pub fn recheck(&mut self, uid: Uuid, now: &Now) {
        let Some(entry) = self.entries.get_mut(&uid).filter(|entry| entry.handed_out) else { return };
        if self.lessor.deadline(uid).is_none_or(|deadline| deadline > now.lease) {
            entry.handed_out = false;
            take_back(&mut self.lessor, uid);
        }
    }

    /// All leases whose deadlines have passed. Looks at all leases.
    pub fn all_due(&self, now: &Now) -> Vec<Uuid> {
        let is_due = |uid: &Uuid| self.lessor.deadline(*uid).is_some_and(|deadline| deadline <= now.lease);
        let mut due: Vec<Uuid> = self.entries.keys().filter(|uid| is_due(uid)).copied().collect();
        due.sort_unstable();
        due
    }

    /// The first lease that is due by `time`, and its deadline, on any replica.
    pub fn first_due(&mut self, time: LeaseTime) -> Option<(Uuid, LeaseTime)> {
        self.lessor.overdue(time)
    }

    /// The earliest deadline that has passed, of a lease that has not ended: those that were handed out included. Looks at all
    /// leases.
    pub fn overdue_since(&mut self, now: &Now) -> Option<LeaseTime> {
        let waiting = self.lessor.overdue(now.lease).map(|(_, deadline)| deadline);
        let handed_out = self.iter().filter(|(_, entry)| entry.handed_out);
        let deadlines = handed_out.filter_map(|(uid, _)| self.lessor.deadline(*uid));
        deadlines.filter(|deadline| *deadline <= now.lease).chain(waiting).min()
    }

    /// How many leases are due and have not ended, those that were handed out included. Looks at all leases.
    pub fn count_overdue(&self, now: &Now) -> usize {
        let is_due = |uid: &Uuid| self.lessor.deadline(*uid).is_some_and(|deadline| deadline <= now.lease);
        self.entries.keys().filter(|uid| is_due(uid)).count()
    }

    /// Whether a deadline was reconstructed, and nothing was observed of that lease since.
    pub fn has_recovered(&self) -> bool {
        self.recovered > 0
    }

    /// A primary lived when this replica started, so holders could renew: no grace exceeds `--start-grace`.
    pub fn end_long_graces(&mut self, now: &Now) {
        for (uid, long_grace) in std::mem::take(&mut self.long_graces) {
            let Some(entry) = self.entries.get(&uid).filter(|entry| entry.recovered) else { continue };
            let remaining = self.lessor.record(uid, now.lease).map(|record| record.remaining);
            if let Some(remaining) = remaining {
                let remaining = remaining.saturating_sub(long_grace);
                expect(&entry.record, self.lessor.set_remaining(uid, remaining, now.lease));
            }
        }
    }

    /// Extends the leases that are due by `by`, on a follower that learns that their time is not over: it can't be over before a
    /// whole TTL from now. Returns them.
    pub fn extend_due(&mut self, by: LeaseTime, now: &Now) -> Vec<Uuid> {
        let mut extended = Vec::new();
        while let Some((uid, _)) = self.lessor.overdue(by) {
            let (Some(entry), Some(lease)) = (self.entries.get_mut(&uid), self.lessor.lookup(uid)) else {
                break;
            };
            let end = now.lease + lease.ttl.as_duration();
            if lease.end_by.is_some_and(|cap| cap < end) {
                expect(&entry.record, self.lessor.set_end_by(uid, Some(end)));
            }
            expect(&entry.record, self.lessor.renew(uid, now.lease).map(drop));
            if self.lessor.deadline(uid).is_some_and(|deadline| deadline <= by) {
                break;
            }
            self.recovered -= usize::from(std::mem::take(&mut entry.recovered));
            extended.push(uid);
        }
        extended
    }

    /// No lease is due before this; for the primary, none is handed out before.
    pub fn next_due(&self) -> Option<LeaseTime> {
        if !self.lessor.is_primary() {
            return self.lessor.next_due();
        }
        [self.lessor.next_wakeup(), self.turns.next_at()].into_iter().flatten().min()
    }

    /// When a lease ends by time, unless something happens.
    pub fn deadline(&self, uid: Uuid) -> Option<LeaseTime> {
        self.lessor.deadline(uid)
    }

    /// The state of a lease in the in-memory lessor.
    pub fn granted_time(&self, uid: Uuid, now: &Now) -> Option<GrantedTime> {
        let lease = self.lessor.lookup(uid)?;
        let overdue = lease
            .deadline
            .filter(|deadline| *deadline <= now.lease)
            .map(|deadline| now.lease.since(deadline));
        Some(GrantedTime {
            ttl: lease.ttl.as_duration(),
            deadline: lease.deadline,
            remaining: self.lessor.remaining(uid, now.lease)?,
            left: self.lessor.record(uid, now.lease)?.remaining,
            overdue,
            capped: lease.end_by.is_some_and(|cap| cap <= now.lease),
        })
    }
}

/// Logs a bug if the in-memory lessor rejects an update.
fn expect<T>(record: &LeaseObject, result: Result<T, lease_engine::Error>) {
    if let Err(error) = result {
        tracing::error!(lease = %record.name, %error, "bug: in-memory lease rejected an API update");
    }
}

/// Pauses or resumes the TTL of a lease, by `spec.suspend` and by its source.
fn set_running(lessor: &mut LeaseEngine<Uuid>, entry: &Entry, now: &Now) {
    let uid = entry.record.uid;
    if entry.ttl_state == TtlState::Full {
        // As long as the source lives, nothing of the TTL is used up.
        expect(&entry.record, lessor.renew(uid, now.lease));
    }
    if entry.record.suspend || entry.ttl_state != TtlState::Running {
        expect(&entry.record, lessor.suspend(uid, now.lease));
    } else {
        expect(&entry.record, lessor.resume(uid, now.lease));
    }
}

/// Forgets a lease; nothing is attached to it here, and it doesn't matter whether there was one.
fn forget(lessor: &mut LeaseEngine<Uuid>, uid: Uuid) {
    let _ = lessor.revoke(uid);
}

/// Undoes that a lease was handed out, if the lessor still has it.
fn take_back(lessor: &mut LeaseEngine<Uuid>, uid: Uuid) {
    let _ = lessor.take_back(uid);
}

/// Adds a lease to the lessor that was just granted.
fn grant(lessor: &mut LeaseEngine<Uuid>, record: &LeaseObject, now: &Now, settings: &Settings) {
    let ttl = cold_start::ttl_granted(record, settings);
    expect(record, lessor.grant(record.uid, ttl.into(), now.lease));
    let cap = record.max_lifetime_seconds().map(|lifetime| now.lease + seconds(lifetime));
    expect(record, lessor.set_end_by(record.uid, cap));
    if record.suspend {
        expect(record, lessor.suspend(record.uid, now.lease));
    }
}

/// Adds a lease to the lessor that was granted before this replica observed it. Returns how much of its time is a long grace.
fn restore(
    lessor: &mut LeaseEngine<Uuid>,
    record: &LeaseObject,
    recorded: Recorded,
    now: &Now,
    settings: &Settings,
) -> Duration {
    let Recovered { ttl, remaining, long_grace, end_by } =
        cold_start::recover(record, recorded, now, settings);
    expect(record, lessor.restore(record.uid, ttl.into(), remaining, now.lease));
    expect(record, lessor.set_end_by(record.uid, end_by));
    if record.suspend {
        expect(record, lessor.suspend(record.uid, now.lease));
    }
    long_grace
}
