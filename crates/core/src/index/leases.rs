//! The leases that a replica knows, and their time: the index between the objects of the API and the lessor in memory.

use std::{
    collections::HashMap,
    hash::{Hash, Hasher},
    time::Duration,
};

use lease_engine::{self, AboveMax, LeaseEngine, LeaseTime, Rate};
use lessor_api::Recorded;
use uuid::Uuid;

use crate::{
    clocks::Now,
    decide::{
        cold_start::{self, Recovered},
        lease::{Held, granted_ttl, seconds},
    },
    index::sources::{LeaseState, Standing, Time, Turn},
    interner::Interner,
    lease_object::{LeaseObject, NamespacedName},
    listed_keys::ListedKeys,
    settings::Settings,
    sparse::Sparse,
};

/// A lease, and what is remembered of it beside its object.
#[derive(Clone, Debug, Hash)]
pub struct Entry {
    /// The object as last seen.
    pub record: LeaseObject,
    /// Whether the object is known to have changed since.
    pub stale: bool,
    /// The deadline that `status.expiryTime` stands for.
    pub published_deadline: Option<LeaseTime>,
    /// Whether its deadline has come nearer since: a promise that must be corrected at once.
    pub nearer: bool,
    /// When its status was last seen to be written.
    pub written_at: Option<Duration>,
    /// Whether a request for it is under way.
    pub in_flight: bool,
    /// Whether the lessor has handed it out as expired.
    pub handed_out: bool,
    /// Whether it is its turn to have its status brought up to date.
    pub refreshing: bool,
    /// Whether its time runs, as far as what it follows is concerned.
    pub standing: Standing,
    /// Whether the request that releases it was sent, bound to the version that is known. It may have been done, or be done
    /// late, whatever its answer was: what is attached from then on may be meant for the next lease of this name.
    pub releasing: bool,
    /// What few leases have at a time.
    pub more: Sparse<More>,
}

/// What is remembered of a lease while something happens to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct More {
    /// When it was granted, if that's later than its status says: the request was long on its way.
    pub granted_by: Option<i64>,
    /// Until when it stays after its end.
    pub linger_until: Option<Duration>,
    /// Since when its next step could have been done, if it has one that counts.
    pub due: Option<Duration>,
    /// Since when what it follows has been asked for, one request after the other, to see whether it may end.
    pub confirming: Option<Duration>,
    /// The deadline at which this replica ended it, while something attached to it is still there.
    pub overran: Option<LeaseTime>,
    /// What was last said of it, so that it isn't said again.
    pub said: Option<&'static str>,
}

impl Entry {
    /// See [`More::granted_by`].
    pub fn granted_by(&self) -> Option<i64> {
        self.more.get()?.granted_by
    }

    /// See [`More::linger_until`].
    pub fn linger_until(&self) -> Duration {
        self.more.get().and_then(|more| more.linger_until).unwrap_or_default()
    }

    /// See [`More::due`].
    pub fn due(&self) -> Option<Duration> {
        self.more.get()?.due
    }

    fn set_confirming(&mut self, since: Option<Duration>) {
        let known = self.more.get().and_then(|more| more.confirming);
        if known.is_some() != since.is_some() {
            self.more.change(|more| more.confirming = since);
        }
    }

    /// Forgets [`More::overran`], and answers with it.
    pub fn take_overran(&mut self) -> Option<LeaseTime> {
        self.more.get()?.overran?;
        self.more.change(|more| more.overran.take())
    }
}

/// What taking in a version of a lease changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Nothing: the version was known, or is older than what is known.
    pub stale_news: bool,
    /// It wasn't known before.
    pub new: bool,
    /// Its status was written since.
    pub status_written: bool,
    /// It was granted since.
    pub granted: bool,
    /// It was renewed since.
    pub renewed: bool,
    /// Its end was committed since.
    pub ended: bool,
    /// What is said about its release has changed since, or its release was refused.
    pub released: bool,
}

/// All leases.
#[derive(Clone)]
pub struct LeaseIndex {
    /// Boxed, since a table of which up to half is empty would double what they take.
    entries: HashMap<Uuid, Box<Entry>>,
    places: HashMap<NamespacedName, Uuid>,
    /// Those that answers say are gone, until the watch says so too: what it shows of them meanwhile is old.
    buried: HashMap<Uuid, NamespacedName>,
    namespaces: Interner,
    lessor: LeaseEngine<Uuid>,
}

impl LeaseIndex {
    /// No leases.
    pub fn new(settings: &Settings) -> Self {
        // No bounds of its own: what another primary granted under other settings is held as it was granted.
        let lessor = LeaseEngine::new(lease_engine::Config {
            above_max: AboveMax::Clamp,
            expiry_rate: Some(Rate::new(settings.expiry_rate, settings.expiry_rate)),
            ..lease_engine::Config::default()
        });
        Self {
            entries: HashMap::new(),
            places: HashMap::new(),
            buried: HashMap::new(),
            namespaces: Interner::default(),
            lessor,
        }
    }

    /// Takes in a version of a lease. An older one than the one known changes nothing.
    pub fn apply(
        &mut self,
        record: LeaseObject,
        recorded: Recorded,
        now: &Now,
        settings: &Settings,
    ) -> Change {
        let uid = record.uid;
        if self.buried.contains_key(&uid) {
            return Change { stale_news: true, ..Change::default() };
        }
        if let Some(other) = self.places.get(&record.place).copied().filter(|other| *other != uid) {
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
        if entry.record.place == old.place {
            entry.record.place = old.place.clone();
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
                entry.more.change(|more| more.linger_until = Some(now.mono + settings.linger));
                forget(&mut self.lessor, uid);
            }
            return change;
        }
        if self.lessor.lookup(uid).is_none() {
            if new.status.is_granted() {
                // Just granted: its time runs from now on, a little after the grant.
                grant(&mut self.lessor, new, now, settings);
                if let Some(by) = cold_start::granted_by(new, recorded) {
                    entry.more.change(|more| more.granted_by = Some(by));
                }
                change.granted = true;
                stand(&mut self.lessor, entry, now);
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
            granted_ttl(new.ttl_seconds, settings)
        } else {
            held.unwrap_or_else(|| cold_start::ttl_granted(new, settings))
        };
        if change.renewed || held != Some(ttl) {
            expect(new, self.lessor.renew_with(uid, ttl.into(), now.lease));
        }
        if old.max_lifetime_seconds() != new.max_lifetime_seconds() {
            expect(new, self.lessor.set_end_by(uid, cold_start::end_by(new, recorded, now, settings)));
        }
        if old.suspend || new.suspend || entry.standing != Standing::Running {
            stand(&mut self.lessor, entry, now);
        }
        let new = &entry.record;
        // What the primary says remains is what remains: where each replica had its own, they would take turns to publish it.
        if let Some(left) = new.told_left().filter(|_| change.status_written && !self.lessor.is_primary())
            && entry.standing != Standing::Kept
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
        if record.status.is_granted() && !ended {
            restore(&mut self.lessor, &record, recorded, now, settings);
        }
        record.place.namespace = self.namespaces.one(&record.place.namespace);
        self.places.insert(record.place.clone(), uid);
        let linger_until = ended.then(|| now.mono + settings.linger);
        let entry = Entry {
            published_deadline: cold_start::published_deadline(&record, now),
            nearer: false,
            record,
            stale: false,
            written_at: None,
            in_flight: false,
            refreshing: false,
            handed_out: false,
            standing: Standing::Running,
            releasing: false,
            more: Sparse::new(More { linger_until, ..More::default() }),
        };
        self.entries.insert(uid, Box::new(entry));
        Change { new: true, ended, ..Change::default() }
    }

    /// Takes in a beat of what a lease follows, `age` ago: its TTL counts from there, unless it counts from later already.
    /// Answers whether the lease is held here at all.
    pub fn follow_beat(&mut self, uid: Uuid, age: Duration, now: &Now) -> bool {
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
        stand(&mut self.lessor, entry, now);
        true
    }

    /// Takes in how it stands from now on between a lease and what it follows; `since_beat`: how long ago that had its last
    /// beat, if it's known.
    pub fn turn(&mut self, uid: Uuid, turn: Turn, since_beat: Option<Duration>, now: &Now) {
        let Some(entry) = self.entries.get_mut(&uid) else { return };
        entry.standing = turn.standing;
        if self.lessor.lookup(uid).is_none() {
            return;
        }
        if std::mem::take(&mut entry.handed_out) {
            take_back(&mut self.lessor, uid);
        }
        match (turn.time, since_beat) {
            (Time::Renew, _) => drop(self.follow_beat(uid, Duration::ZERO, now)),
            (Time::CatchUp, Some(age)) => drop(self.follow_beat(uid, age, now)),
            (Time::End, _) => {
                expect(&entry.record, self.lessor.set_remaining(uid, Duration::ZERO, now.lease));
            }
            (Time::Keep, _) | (Time::CatchUp, None) => {}
        }
        if let Some(entry) = self.entries.get_mut(&uid) {
            stand(&mut self.lessor, entry, now);
        }
    }

    /// How a lease stands, for those that follow it; `complete`: all leases have been seen.
    pub fn state_at(&self, place: &NamespacedName, complete: bool) -> LeaseState {
        let Some((uid, entry)) = self.at(place) else {
            return if complete { LeaseState::Missing } else { LeaseState::Unknown };
        };
        if entry.record.status.has_ended() {
            return LeaseState::Ended;
        }
        match self.lessor.lookup(uid) {
            None => LeaseState::Missing,
            Some(_) if entry.record.suspend || entry.standing != Standing::Running => LeaseState::StandsStill,
            Some(_) => LeaseState::Runs,
        }
    }

    /// How long ago the lease of this name was granted or renewed last, as far as that's known, and no longer than it was.
    pub fn since_renewal(&self, place: &NamespacedName, now: &Now) -> Option<Duration> {
        let (uid, _) = self.at(place)?;
        let lease = self.lessor.lookup(uid)?;
        // A cap says nothing about renewals.
        let deadline = lease.deadline.filter(|deadline| lease.end_by != Some(*deadline));
        let remaining = deadline.map(|deadline| deadline.since(now.lease));
        Some(remaining.map_or(Duration::ZERO, |remaining| lease.ttl.as_duration().saturating_sub(remaining)))
    }

    /// Takes in an answer that says that a lease is gone.
    pub fn bury(&mut self, uid: Uuid) {
        if let Some(entry) = self.entries.get(&uid) {
            self.buried.insert(uid, entry.record.place.clone());
        }
    }

    /// Takes in that the watch has shown the end of a lease.
    pub fn exhume(&mut self, uid: Uuid) {
        self.buried.remove(&uid);
    }

    /// Takes in that a watch has shown all leases there are in a namespace (`None`: in all): these. What was there when the
    /// list began may be buried since, and then the watch has yet to show how it ended.
    pub fn all_shown(&mut self, namespace: Option<&str>, shown: &ListedKeys) {
        let elsewhere =
            |place: &NamespacedName| namespace.is_some_and(|namespace| *place.namespace != *namespace);
        self.buried.retain(|_, place| elsewhere(place) || shown.contains(place));
    }

    /// Takes in that a lease is gone, as of `version`.
    pub fn remove(&mut self, uid: Uuid, version: u64) -> Option<Entry> {
        let known = self.entries.get(&uid)?;
        if known.record.version > version { None } else { self.forget(uid) }
    }

    /// Stops the time of a lease that nobody can end.
    pub fn shelve(&mut self, uid: Uuid) {
        forget(&mut self.lessor, uid);
    }

    /// Forgets a lease.
    pub fn forget(&mut self, uid: Uuid) -> Option<Entry> {
        forget(&mut self.lessor, uid);
        let entry = *self.entries.remove(&uid)?;
        if self.places.get(&entry.record.place) == Some(&uid) {
            self.places.remove(&entry.record.place);
        }
        Some(entry)
    }

    /// The leases in a namespace (`None`: in all) that a whole listing of it didn't show.
    pub fn missing(&self, namespace: Option<&str>, shown: &ListedKeys) -> Vec<Uuid> {
        let is_missing = |entry: &Entry| {
            let place = &entry.record.place;
            namespace.is_none_or(|namespace| *place.namespace == *namespace) && !shown.contains(place)
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
    pub fn at(&self, place: &NamespacedName) -> Option<(Uuid, &Entry)> {
        let uid = self.places.get(place)?;
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

    /// Feeds all that is known of all leases, in one order.
    pub(crate) fn hash_state(&self, state: &mut impl Hasher) {
        let mut uids: Vec<&Uuid> = self.entries.keys().collect();
        uids.sort_unstable();
        for uid in uids {
            (uid, self.entries.get(uid), self.lessor.lookup(*uid)).hash(state);
        }
        // One uid is one place, so what lies where follows, and whose news it is.
        let mut buried: Vec<&Uuid> = self.buried.keys().chain(self.places.values()).collect();
        buried.sort_unstable();
        (buried, self.buried.len(), self.lessor.is_primary(), self.lessor.next_wakeup()).hash(state);
    }

    /// Takes those leases from the lessor whose deadlines lie before `until`, in the order of these and as many as its rate
    /// allows. Each is handed out once, until something about it changes.
    pub fn hand_out(&mut self, until: LeaseTime, now: &Now) -> Vec<Uuid> {
        let mut due = Vec::new();
        while due.len() < AT_ONCE && self.lessor.overdue(until).is_some() {
            let next = self.lessor.poll(now.lease, 1);
            if next.is_empty() {
                break;
            }
            due.extend(next);
        }
        for uid in &due {
            if let Some(entry) = self.entries.get_mut(uid) {
                entry.handed_out = true;
            }
        }
        due
    }

    /// This replica is primary: what is due is handed out.
    pub fn promote(&mut self) {
        self.lessor.promote(Duration::ZERO);
    }

    /// This replica is primary no more: nothing is handed out, and what was comes back.
    pub fn demote(&mut self) {
        self.lessor.demote();
        for entry in self.entries.values_mut() {
            entry.handed_out = false;
            entry.set_confirming(None);
        }
    }

    /// Sees to it that [`More::confirming`] is known of a lease, or forgets it.
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

    /// The first lease that is due by `time`, and its deadline, whoever is primary.
    pub fn first_due(&mut self, time: LeaseTime) -> Option<(Uuid, LeaseTime)> {
        self.lessor.overdue(time)
    }

    /// No lease is due before this; for the primary, none is handed out before.
    pub fn next_due(&self) -> Option<LeaseTime> {
        if self.lessor.is_primary() { self.lessor.next_wakeup() } else { self.lessor.next_due() }
    }

    /// When a lease ends by time, unless something happens.
    pub fn deadline(&self, uid: Uuid) -> Option<LeaseTime> {
        self.lessor.deadline(uid)
    }

    /// What the lessor says of a lease.
    pub fn held(&self, uid: Uuid, now: &Now) -> Option<Held> {
        let lease = self.lessor.lookup(uid)?;
        let overdue = lease
            .deadline
            .filter(|deadline| *deadline <= now.lease)
            .map(|deadline| now.lease.since(deadline));
        Some(Held {
            ttl: lease.ttl.as_duration(),
            deadline: lease.deadline,
            remaining: self.lessor.remaining(uid, now.lease)?,
            left: self.lessor.record(uid, now.lease)?.remaining,
            overdue,
            capped: lease.end_by.is_some_and(|cap| cap <= now.lease),
        })
    }
}

/// How many leases are handed out at once.
const AT_ONCE: usize = 1024;

/// Says so if the lessor refuses what it has no reason to refuse.
fn expect<T>(record: &LeaseObject, result: Result<T, lease_engine::Error>) {
    if let Err(error) = result {
        tracing::error!(lease = %record.place, %error, "lessor and API disagree");
    }
}

/// Lets the time of a lease stand still or run: as its holder wants it, and as what it follows has it.
fn stand(lessor: &mut LeaseEngine<Uuid>, entry: &Entry, now: &Now) {
    let uid = entry.record.uid;
    if entry.standing == Standing::Kept {
        // As long as the source lives, nothing of the TTL is used up.
        expect(&entry.record, lessor.renew(uid, now.lease));
    }
    if entry.record.suspend || entry.standing != Standing::Running {
        expect(&entry.record, lessor.suspend(uid, now.lease));
    } else {
        expect(&entry.record, lessor.resume(uid, now.lease));
    }
}

/// Forgets a lease; nothing is attached to it here, and it doesn't matter whether there was one.
fn forget(lessor: &mut LeaseEngine<Uuid>, uid: Uuid) {
    let _ = lessor.revoke(uid);
}

/// Undoes that a lease was handed out, if it is still held at all.
fn take_back(lessor: &mut LeaseEngine<Uuid>, uid: Uuid) {
    let _ = lessor.take_back(uid);
}

/// Puts a lease that was granted just now into the lessor.
fn grant(lessor: &mut LeaseEngine<Uuid>, record: &LeaseObject, now: &Now, settings: &Settings) {
    let ttl = cold_start::ttl_granted(record, settings);
    expect(record, lessor.grant(record.uid, ttl.into(), now.lease));
    let cap = record.max_lifetime_seconds().map(|lifetime| now.lease + seconds(lifetime));
    expect(record, lessor.set_end_by(record.uid, cap));
    if record.suspend {
        expect(record, lessor.suspend(record.uid, now.lease));
    }
}

/// Puts a lease into the lessor that was granted before this replica knew of it.
fn restore(
    lessor: &mut LeaseEngine<Uuid>,
    record: &LeaseObject,
    recorded: Recorded,
    now: &Now,
    settings: &Settings,
) {
    let Recovered { ttl, remaining, end_by } = cold_start::recover(record, recorded, now, settings);
    expect(record, lessor.restore(record.uid, ttl.into(), remaining, now.lease));
    expect(record, lessor.set_end_by(record.uid, end_by));
    if record.suspend {
        expect(record, lessor.suspend(record.uid, now.lease));
    }
}
