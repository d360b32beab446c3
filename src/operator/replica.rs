//! One replica: everything that it has seen, and what it decides to do about it.
//!
//! A plain state machine. It takes observations, answers and the time, and gives out requests and notices; it does no I/O
//! and starts no task. The [shell](super::run) around it does.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use uuid::Uuid;

use super::{
    arbitration::{Arbitration, Move, Verdict},
    attached::{AttachedObjects, Hindrance, Kind, ObjectId, Removal},
    budget::Budget,
    hearing::Now,
    leases::{Entry, Leases},
    notice::{About, Notice},
    published::{Published, State},
    record::{Place, Record, Recorded, Version, uid_of, version_of},
    request::{Answer, Refusal, Request},
    settings::Settings,
    step::{Act, Situation, Step},
    timers::Timers,
    watches::{Failure, Observation, Seen},
};
use crate::{
    api::Lease,
    lessor::{self, LeaseTime, Lessor},
    writer_lease::{self, Action, Holder, Term, WorkResult, WriterLease},
};

/// Work that replicas compete for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Work {
    /// A deadline is near: make sure that the API server is heard.
    Approach,
    /// The next step of a lease.
    Lease(Uuid),
    /// The removal of what is due in an object.
    Object(ObjectId),
}

/// Names a request, so that its answer finds back.
pub type Ticket = u64;

/// What the shell is to do now.
#[derive(Debug, Default)]
pub struct Output {
    /// Send these, each within its time.
    pub requests: Vec<(Ticket, Request, Duration)>,
    /// Give these up: this replica leads no more.
    pub cancelled: Vec<Ticket>,
    /// Tell people.
    pub notices: Vec<Notice>,
}

/// A request under way.
#[derive(Debug)]
struct Flight {
    cause: Cause,
    request: Request,
    sent_at: Duration,
}

#[derive(Debug)]
enum Cause {
    Approach,
    Lease(Uuid, Doing),
    /// The object, and its version when the request was decided on.
    Object(ObjectId, Version),
    Arbitration,
    /// Is the server heard again?
    Probe,
    /// A fresh look at work that seems overdue, before the lead is claimed for it.
    Check(Work),
}

/// What a request for a lease was meant to do, to tell people when it's done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Read,
    Prepare,
    Grant,
    Publish,
    Warn,
    End(Option<LeaseTime>),
    Release,
    Delete,
}

/// Whether all objects of a kind are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sight {
    Unsynced,
    Synced,
    Failing { since: Duration, last: Duration, transient: bool },
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Timer {
    Lease(Uuid),
    Object(ObjectId),
    /// Something is attached to a name that no lease has.
    Pending(Place),
}

/// For this long, a failing watch holds up the release of leases: what it doesn't show might be attached.
const BLIND_PATIENCE: Duration = Duration::from_secs(30);
/// A watch that failed and hasn't failed again for this long is taken to see again.
const BLIND_DOUBT: Duration = Duration::from_secs(3);
/// How often a deaf replica asks whether the server is heard again.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// The end of a lease is not committed without a sign of life from the API server within this time.
pub(super) const FRESH: Duration = Duration::from_secs(1);

/// See the [module](self).
pub struct Replica {
    settings: Settings,
    leases: Leases,
    objects: AttachedObjects,
    writer: WriterLease<Work>,
    arbitration: Arbitration,
    lessor_seen: bool,
    /// How these watches fail, as long as they have shown nothing.
    lessor_failure: Option<Failure>,
    lease_failure: Option<Failure>,
    lease_sights: BTreeMap<Option<Arc<str>>, Sight>,
    object_sights: HashMap<(Arc<Kind>, Option<Arc<str>>), Sight>,
    flights: BTreeMap<Ticket, Flight>,
    next_ticket: Ticket,
    timers: Timers<Timer>,
    refreshes: Budget,
    ends: Budget,
    /// The server asked for patience until then.
    patient_until: Duration,
    /// The term that this replica leads under, as the lessor in memory was told.
    leading: Option<Term>,
    /// The kind `Lessor` is gone: only what nobody else could finish is finished.
    orphaned: bool,
    approached: Option<LeaseTime>,
    /// When a deaf replica may ask whether it is heard again.
    probe_at: Duration,
    stopping: Option<Duration>,
    out: Output,
}

impl Replica {
    /// A replica that has seen nothing yet, and will watch these kinds.
    pub fn new(settings: Settings, kinds: &[Arc<Kind>]) -> Self {
        let scopes: Vec<Option<Arc<str>>> = match settings.namespaces.as_slice() {
            [] => vec![None],
            namespaces => namespaces.iter().map(|namespace| Some(namespace.as_str().into())).collect(),
        };
        let object_sights = kinds
            .iter()
            .flat_map(|kind| scopes.iter().map(|scope| ((kind.clone(), scope.clone()), Sight::Unsynced)))
            .collect();
        let writer = WriterLease::new(writer_lease::Config {
            max_running: settings.concurrency,
            seed: seed(&settings.identity),
            ..writer_lease::Config::new(settings.lease_duration)
        });
        // The operator clamps what is asked for, so the lessor has nothing to refuse.
        let lessor = Lessor::new(lessor::Config { min_ttl: settings.min_ttl, max_ttl: settings.max_ttl });
        Self {
            leases: Leases::new(lessor),
            objects: AttachedObjects::default(),
            writer,
            arbitration: Arbitration::new(settings.identity.clone()),
            lessor_seen: false,
            lessor_failure: None,
            lease_failure: None,
            lease_sights: scopes.into_iter().map(|scope| (scope, Sight::Unsynced)).collect(),
            object_sights,
            flights: BTreeMap::new(),
            next_ticket: 0,
            timers: Timers::default(),
            refreshes: Budget::new(settings.status_rate),
            ends: Budget::new(settings.expiry_rate),
            patient_until: Duration::ZERO,
            leading: None,
            orphaned: false,
            approached: None,
            probe_at: Duration::ZERO,
            stopping: None,
            out: Output::default(),
            settings,
        }
    }

    /// Takes in what a watch shows.
    pub fn observe(&mut self, observation: Observation, now: &Now) {
        match observation {
            Observation::Lessor(seen) => self.observe_lessor(seen, now),
            Observation::Lease(scope, seen) => self.observe_leases(scope, seen, now),
            Observation::Object(kind, scope, seen) => self.observe_objects(&kind, scope, seen, now),
        }
        self.follow_role(now);
    }

    fn observe_lessor(&mut self, seen: Seen<crate::api::Lessor>, now: &Now) {
        match seen {
            Seen::There(lessor) => {
                self.lessor_failure = None;
                self.see_lessor(&lessor, now);
            }
            Seen::Gone(_) => self.see_no_lessor(now),
            Seen::All(shown) => {
                self.lessor_seen = true;
                self.lessor_failure = None;
                if shown.is_empty() {
                    self.see_no_lessor(now);
                }
            }
            Seen::Failing(failure) => note_failure("lessors.lessor.dev", failure, &mut self.lessor_failure),
        }
    }

    fn see_lessor(&mut self, lessor: &crate::api::Lessor, now: &Now) {
        match self.arbitration.see(lessor) {
            Ok(Some((holder, term))) => {
                self.orphaned = false;
                self.writer.observe_claim(holder, term, now.mono);
            }
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, "unreadable lessor"),
        }
    }

    fn see_no_lessor(&mut self, now: &Now) {
        self.arbitration.see_none();
        self.writer.observe_claim(Holder::Nobody, 0, now.mono);
    }

    fn observe_leases(&mut self, scope: Option<Arc<str>>, seen: Seen<Lease>, now: &Now) {
        match seen {
            Seen::There(lease) => {
                self.lease_failure = None;
                self.see_lease(&lease, now);
            }
            Seen::Gone(lease) => {
                if let (Ok(uid), Ok(version)) = (
                    uid_of(lease.metadata.uid.as_deref()),
                    version_of(lease.metadata.resource_version.as_deref()),
                ) {
                    self.lose_lease(uid, version, now);
                }
            }
            Seen::All(shown) => {
                for uid in self.leases.missing(scope.as_deref(), &shown) {
                    self.lose_lease(uid, Version::MAX, now);
                }
                self.lease_sights.insert(scope, Sight::Synced);
                self.lease_failure = None;
            }
            Seen::Failing(failure) => note_failure("leases.lessor.dev", failure, &mut self.lease_failure),
        }
    }

    fn see_lease(&mut self, lease: &Lease, now: &Now) {
        let record = match Record::read(lease) {
            Ok(record) => record,
            Err(error) => {
                tracing::warn!(lease = lease.metadata.name, %error, "unreadable lease");
                return;
            }
        };
        let (uid, place, term) = (record.uid, record.place.clone(), record.status.term);
        let change = self.leases.apply(record, Recorded::read(lease), now, &self.settings);
        if let Some(term) = term {
            let meaning = if change.status_written {
                self.writer.observe(term, now.mono)
            } else {
                self.writer.learn_term(term, now.mono)
            };
            if meaning == writer_lease::Observation::Absurd {
                self.say_once(uid, "AbsurdTerm", || {
                    format!("status.term is {term}, which no primary wrote: delete the lease, or its status can't be written")
                });
            }
        }
        if change.new || change.ended {
            self.touch_attached(&place, now);
        }
        self.touch_lease(uid, now);
    }

    fn lose_lease(&mut self, uid: Uuid, version: Version, now: &Now) {
        let Some(entry) = self.leases.remove(uid, version) else { return };
        self.writer.remove(&Work::Lease(uid));
        self.timers.clear(&Timer::Lease(uid));
        self.touch_attached(&entry.record.place, now);
    }

    fn observe_objects(
        &mut self,
        kind: &Arc<Kind>,
        scope: Option<Arc<str>>,
        seen: Seen<ObjectMeta>,
        now: &Now,
    ) {
        let id_of = |meta: &ObjectMeta| ObjectId {
            kind: kind.clone(),
            place: Place::new(
                meta.namespace.as_deref().unwrap_or_default(),
                meta.name.as_deref().unwrap_or_default(),
            ),
        };
        match seen {
            Seen::There(meta) => self.see_object(&id_of(&meta), &meta, now),
            Seen::Gone(meta) => {
                let version = version_of(meta.resource_version.as_deref()).ok();
                self.lose_object(&id_of(&meta), version, now);
            }
            Seen::All(shown) => {
                for place in self.objects.retain(kind, scope.as_deref(), &shown) {
                    self.touch_place(&place, now);
                }
                self.object_sights.insert((kind.clone(), scope), Sight::Synced);
            }
            Seen::Failing(failure) => {
                tracing::warn!(kind = %kind, %failure, "watch fails, trying again");
                let transient = matches!(failure, Failure::Other(_));
                let sight = self.object_sights.entry((kind.clone(), scope)).or_insert(Sight::Unsynced);
                let since = match *sight {
                    Sight::Failing { since, last, .. } if now.mono < last + BLIND_PATIENCE => since,
                    _ => now.mono,
                };
                *sight = Sight::Failing { since, last: now.mono, transient };
            }
        }
    }

    fn see_object(&mut self, id: &ObjectId, meta: &ObjectMeta, now: &Now) {
        let changed = match self.objects.apply(id, meta) {
            Ok(changed) => changed,
            Err(error) => {
                tracing::warn!(object = %id, %error, "unreadable object");
                return;
            }
        };
        self.report_problems(id);
        self.touch_object(id, now);
        for place in changed {
            self.touch_place(&place, now);
        }
    }

    fn lose_object(&mut self, id: &ObjectId, version: Option<Version>, now: &Now) {
        let touched = self.objects.remove(id, version);
        self.touch_object(id, now);
        for place in touched {
            self.touch_place(&place, now);
        }
    }

    /// The server is heard again after this replica was deaf.
    pub fn heard_again(&mut self, now: &Now) {
        self.writer.deaf_until(now.mono);
    }

    // --- Looking at what was touched ---------------------------------------------------------------------------

    /// Something about the lease of this name, or about what is attached to it, has changed.
    fn touch_place(&mut self, place: &Place, now: &Now) {
        match self.leases.at(place) {
            Some((uid, entry)) if !is_released(entry) => {
                self.timers.clear(&Timer::Pending(place.clone()));
                self.touch_lease(uid, now);
            }
            _ if self.objects.of(place).next().is_some() => {
                self.timers
                    .set_if_absent(Timer::Pending(place.clone()), now.mono + self.settings.pending_warning);
            }
            _ => self.timers.clear(&Timer::Pending(place.clone())),
        }
    }

    /// The lease of this name has come, ended or gone: look at everything attached to it.
    fn touch_attached(&mut self, place: &Place, now: &Now) {
        let ids: Vec<ObjectId> = self.objects.of(place).map(|(id, _)| id.clone()).collect();
        for id in &ids {
            self.touch_object(id, now);
        }
        self.touch_place(place, now);
    }

    fn touch_lease(&mut self, uid: Uuid, now: &Now) {
        let Some(entry) = self.leases.get(&uid) else { return };
        if entry.in_flight {
            return;
        }
        let work = Work::Lease(uid);
        let step = self.step(uid, now);
        if !matches!(step, Some(Step::Act(_)))
            && let Some(entry) = self.leases.get_mut(&uid)
        {
            entry.due = None;
        }
        self.timers.clear(&Timer::Lease(uid));
        match step {
            Some(Step::Act(act)) => {
                let since_deadline = self.leases.held(&uid, now).and_then(|held| held.overdue);
                let Some(entry) = self.leases.get_mut(&uid) else { return };
                let due = match act {
                    Act::End(_) => now.mono.saturating_sub(since_deadline.unwrap_or_default()),
                    _ => now.mono,
                };
                let due = *entry.due.get_or_insert(due);
                self.writer.try_work(work, due);
            }
            Some(Step::Refresh(_)) if self.leading.is_some() => match self.refreshes.next_at(now.mono) {
                Some(at) if at > now.mono => {
                    self.writer.remove(&work);
                    self.timers.set(Timer::Lease(uid), at);
                }
                Some(_) => self.writer.try_work(work, now.mono),
                None => {}
            },
            Some(Step::Wait(at)) => {
                self.writer.remove(&work);
                // While lease time stands still, what waits for it comes no nearer.
                let at = if now.deaf { at.max(now.mono + Duration::from_secs(1)) } else { at };
                self.timers.set(Timer::Lease(uid), at);
            }
            Some(Step::Refresh(_) | Step::Rest) | None => {
                self.writer.remove(&work);
            }
        }
    }

    /// What is next for a lease; `None`: nothing, since this replica may not.
    fn step(&mut self, uid: Uuid, now: &Now) -> Option<Step> {
        let entry = self.leases.get(&uid)?;
        let place = entry.record.place.clone();
        if entry.record.status.term.is_some_and(|term| self.writer.is_absurd(term)) {
            return None;
        }
        let attached = self.objects.count(&place);
        let hindrance = if entry.record.status.has_ended() && attached != Default::default() {
            self.hindrance(&place)
        } else {
            None
        };
        let mut held = self.leases.held(&uid, now);
        if let Some(held) = &mut held
            && self.leading.is_some()
        {
            // The primary ends what the lessor has handed out: in the order of deadlines, and at its rate.
            held.due &= entry.handed_out;
        }
        let situation = Situation {
            record: &entry.record,
            stale: entry.stale,
            held,
            published_deadline: entry.published_deadline,
            written_at: entry.written_at,
            attached,
            hindrance: hindrance.as_deref(),
            linger_until: entry.linger_until.max(self.blind_until(&place.namespace, now)),
            settings: &self.settings,
            now,
        };
        let step = situation.step();
        if self.orphaned && !entry.record.deleting {
            return None;
        }
        match &step {
            Step::Act(act @ (Act::End(_) | Act::RemoveFinalizer | Act::Delete)) if self.settings.dry_run => {
                let reason = if matches!(act, Act::End(_)) { "WouldEnd" } else { "WouldRelease" };
                let going: Vec<String> = self.objects.of(&place).map(|(id, _)| id.to_string()).collect();
                self.say_once(uid, reason, || {
                    let going = if going.is_empty() { "nothing".to_owned() } else { going.join(", ") };
                    format!("dry run: the lease would end now, and of these what is attached to it would go: {going}")
                });
                None
            }
            _ => Some(step),
        }
    }

    /// Until when something may be attached in this namespace that no watch has shown.
    fn blind_until(&self, namespace: &str, now: &Now) -> Duration {
        let of_namespace = |scope: &Option<Arc<str>>| scope.as_deref().is_none_or(|scope| scope == namespace);
        self.object_sights
            .iter()
            .filter(|((_, scope), _)| of_namespace(scope))
            .map(|(_, sight)| match *sight {
                Sight::Failing { since, last, transient: true } if now.mono < since + BLIND_PATIENCE => {
                    last + BLIND_DOUBT
                }
                _ => Duration::ZERO,
            })
            .max()
            .unwrap_or_default()
    }

    /// Why what is attached to an ended lease stays, for people.
    fn hindrance(&self, place: &Place) -> Option<String> {
        let mut why: Vec<String> = self
            .objects
            .of(place)
            .filter_map(|(id, object)| {
                if object.deleting
                    && object.attachments.whole.as_ref().is_some_and(|name| name.as_str() == &*place.name)
                {
                    return Some(format!("{id} is being deleted and waits for finalizers of its own"));
                }
                Some(format!("{id}: {}", object.hindrance.as_ref()?.message))
            })
            .collect();
        // In one order, whatever the order of the index, so that it isn't written again for that.
        why.sort();
        let more = why.len().saturating_sub(5);
        why.truncate(5);
        if more > 0 {
            why.push(format!("and {more} more"));
        }
        (!why.is_empty()).then(|| why.join("; "))
    }

    fn touch_object(&mut self, id: &ObjectId, now: &Now) {
        let work = Work::Object(id.clone());
        if self.writer.is_running(&work) {
            return;
        }
        let timer = Timer::Object(id.clone());
        self.timers.clear(&timer);
        let removal = self.removal(id).filter(|_| self.leading.is_some() || !self.is_hindered(id));
        let hindrance = self.objects.get(id).and_then(|object| object.hindrance.as_ref());
        match (removal, hindrance) {
            (None, _) => {
                self.writer.remove(&work);
            }
            (Some(_), Some(hindrance)) if hindrance.retry_at.is_none_or(|at| at > now.mono) => {
                if let Some(at) = hindrance.retry_at {
                    self.timers.set(timer, at);
                }
                self.writer.remove(&work);
            }
            (Some(_), _) if self.writer.contains(&work) => {}
            (Some(_), _) => self.writer.try_work(work, now.mono),
        }
    }

    fn removal(&self, id: &ObjectId) -> Option<Removal> {
        if self.settings.dry_run {
            return None;
        }
        self.objects.removal(id, |place| {
            self.leases
                .at(place)
                .is_some_and(|(_, entry)| entry.record.status.has_ended() && !is_released(entry))
        })
    }

    /// Whether the primary has published, for each lease that has ended, that what is attached to it is hindered. It
    /// lives, then, and whatever it can't do another can't either: no reason to take over.
    fn is_hindered(&self, id: &ObjectId) -> bool {
        let mut ended = self.objects.leases_of(id).into_iter().filter_map(|place| {
            let (_, entry) = self.leases.at(&place)?;
            entry
                .record
                .status
                .has_ended()
                .then(|| entry.record.status.released.as_ref().is_some_and(|(r, _)| !r.done))
        });
        ended.all(|hindered| hindered)
    }

    fn report_problems(&mut self, id: &ObjectId) {
        if self.leading.is_none() {
            return;
        }
        let Some(object) = self.objects.get(id) else { return };
        for problem in &object.attachments.problems {
            let about = About::Object(id.clone(), object.uid);
            self.out.notices.push(Notice::warning(about, "AttachmentInvalid", problem.to_string()));
        }
    }

    fn report_pending(&mut self, place: &Place) {
        if self.leading.is_none() {
            return;
        }
        for (id, object) in self.objects.of(place) {
            let note = format!(
                "attached to lease {:?}, which isn't there: nothing happens until it is granted",
                &*place.name
            );
            self.out.notices.push(Notice::warning(
                About::Object(id.clone(), object.uid),
                "AttachmentPending",
                note,
            ));
        }
    }

    fn say_once(&mut self, uid: Uuid, reason: &'static str, note: impl FnOnce() -> String) {
        if self.leading.is_none() {
            return;
        }
        let Some(entry) = self.leases.get_mut(&uid) else { return };
        if entry.said != Some(reason) {
            entry.said = Some(reason);
            let about = About::Lease(entry.record.place.clone(), uid);
            self.out.notices.push(Notice::warning(about, reason, note()));
        }
    }

    // --- Acting ------------------------------------------------------------------------------------------------

    /// Whether enough has been seen to act at all.
    pub fn is_ready(&self) -> bool {
        self.lessor_seen
            && self.lease_sights.values().all(|sight| *sight == Sight::Synced)
            && self.object_sights.values().all(|sight| *sight != Sight::Unsynced)
    }

    /// What has to be seen before this replica can act, for people; empty when it is [ready](Self::is_ready).
    pub fn missing(&self) -> Vec<String> {
        let mut missing = Vec::new();
        if !self.lessor_seen {
            missing.push(self.waiting_for("lessors.lessor.dev", &self.lessor_failure));
        }
        for (scope, sight) in &self.lease_sights {
            if *sight != Sight::Synced {
                let what = scope
                    .as_ref()
                    .map_or("leases.lessor.dev".to_owned(), |scope| format!("leases.lessor.dev in {scope}"));
                missing.push(self.waiting_for(&what, &self.lease_failure));
            }
        }
        for ((kind, _), sight) in &self.object_sights {
            if *sight == Sight::Unsynced {
                missing.push(self.waiting_for(&kind.to_string(), &None));
            }
        }
        missing
    }

    fn waiting_for(&self, what: &str, failure: &Option<Failure>) -> String {
        match failure {
            Some(Failure::NoSuchKind) => {
                format!("{what} is not installed: apply the CRDs, `lessor crd | kubectl apply -f -`")
            }
            Some(failure) => format!("{what} can't be watched: {failure}"),
            None => format!("{what} has not been listed yet"),
        }
    }

    /// The leases that this replica knows.
    pub fn leases(&self) -> &Leases {
        &self.leases
    }

    /// The term that this replica leads under, if it does.
    pub fn leads(&self) -> Option<Term> {
        self.leading
    }

    /// Gives out what is to be done now. To be called after anything was taken in, and at [`wake_at`](Self::wake_at).
    pub fn poll(&mut self, now: &Now) -> Output {
        if self.is_ready() {
            self.hand_out_due(now);
            self.fire_timers(now);
            self.approach(now);
            self.act(now);
            self.probe(now);
        }
        std::mem::take(&mut self.out)
    }

    /// When [`poll`](Self::poll) has something to do if nothing happens before; `None`: never.
    pub fn wake_at(&mut self, now: &Now) -> Option<Duration> {
        if !self.is_ready() {
            return None;
        }
        let writer = self.writer.wake_at(now.mono).map(|at| at.max(self.patient_until));
        let stop = self.stopping.filter(|_| self.leading.is_some());
        let probe = (now.deaf && self.flights.is_empty()).then_some(self.probe_at);
        [writer, self.timers.first(), self.next_deadline(now), stop, probe].into_iter().flatten().min()
    }

    /// When the next deadline, or its approach, comes on the replica's clock.
    fn next_deadline(&mut self, now: &Now) -> Option<Duration> {
        // While lease time stands still no deadline comes nearer; whoever hears the server again looks again.
        if now.deaf {
            return None;
        }
        let deadline = if self.leading.is_some() {
            self.leases.lessor().next_due()
        } else {
            self.leases.lessor().earliest().map(|(_, deadline)| deadline)
        }?;
        let at = now.mono + deadline.since(now.lease);
        if self.leading.is_none() {
            // One that is due already waits in the writer lease.
            return (at > now.mono).then_some(at);
        }
        if at <= now.mono {
            return self.ends.next_at(now.mono);
        }
        let approach = at.saturating_sub(FRESH);
        Some(if approach > now.mono && self.approached != Some(deadline) { approach } else { at })
    }

    /// Takes what is due from the lessor: the primary at its rate, a follower just the first, to see that it is done.
    fn hand_out_due(&mut self, now: &Now) {
        if self.leading.is_none() {
            if let Some((uid, deadline)) = self.leases.lessor().earliest()
                && deadline <= now.lease
            {
                self.touch_lease(uid, now);
            }
            return;
        }
        let affordable = self.ends.available(now.mono);
        for uid in self.leases.hand_out(affordable, now) {
            self.ends.take(now.mono);
            self.touch_lease(uid, now);
        }
    }

    fn fire_timers(&mut self, now: &Now) {
        while let Some(timer) = self.timers.pop(now.mono) {
            match timer {
                Timer::Lease(uid) => self.touch_lease(uid, now),
                Timer::Object(id) => self.touch_object(&id, now),
                Timer::Pending(place) => self.report_pending(&place),
            }
        }
    }

    /// Shortly before a deadline the primary makes sure that it hears the server: an outage that the deadline falls into
    /// must not be taken for a holder that is gone.
    fn approach(&mut self, now: &Now) {
        let Some(deadline) = self.leases.lessor().next_due().filter(|_| self.leading.is_some()) else {
            return;
        };
        if deadline.since(now.lease) <= FRESH && self.approached != Some(deadline) {
            self.approached = Some(deadline);
            if now.silence > FRESH / 2 {
                self.writer.try_work(Work::Approach, now.mono);
            }
        }
    }

    /// A deaf replica that waits for nothing asks by itself whether the server is heard again: where only watches run,
    /// nothing else would tell.
    fn probe(&mut self, now: &Now) {
        if now.deaf && self.flights.is_empty() && self.probe_at <= now.mono {
            self.probe_at = now.mono + PROBE_INTERVAL;
            self.send(Cause::Probe, Request::ReadLessor, self.settings.lease_duration, now);
        }
    }

    fn act(&mut self, now: &Now) {
        if let Some(by) = self.stopping {
            self.wind_up(by, now);
            return;
        }
        if now.mono < self.patient_until {
            return;
        }
        while let Some(action) = self.writer.poll(now.mono) {
            match action {
                Action::Run { key, term, until, .. } => self.run(key, term, until, now),
                Action::Prove { term } => {
                    let next = self.arbitration.prove(term, self.leases.len(), now.wall);
                    self.arbitrate(next, now);
                }
                Action::Claim { term, reason } => {
                    let next = self.arbitration.claim(term, reason);
                    self.arbitrate(next, now);
                }
                Action::Resign { .. } => {
                    if let Some(request) = self.arbitration.resign(self.leases.len()) {
                        self.send(Cause::Arbitration, request, self.settings.lease_duration, now);
                    }
                }
            }
            self.follow_role(now);
        }
    }

    fn run(&mut self, work: Work, term: Term, until: Duration, now: &Now) {
        let time = until.saturating_sub(now.mono);
        let next = match &work {
            Work::Approach => (now.silence > FRESH / 2).then_some((Cause::Approach, Request::ReadLessor)),
            Work::Lease(uid) => self.next_request(*uid, term, now),
            Work::Object(id) => self.removal(id).map(|removal| {
                let object = id.clone();
                let stale = self.objects.get(id).is_some_and(|object| object.stale);
                let version = self.objects.get(id).map(|object| object.version).unwrap_or_default();
                let request =
                    if stale { Request::ReadObject { object } } else { Request::Remove { object, removal } };
                (Cause::Object(id.clone(), version), request)
            }),
        };
        match next {
            Some((cause, request)) => self.send(cause, request, time, now),
            None => {
                self.writer.done(&work, WorkResult::None, false, now.mono, now.mono);
                self.touch(&work, now);
            }
        }
    }

    /// The request that the next step of a lease takes.
    fn next_request(&mut self, uid: Uuid, term: Term, now: &Now) -> Option<(Cause, Request)> {
        let step = self.step(uid, now)?;
        let deadline = self.leases.lessor().deadline(&uid);
        let entry = self.leases.get(&uid)?;
        let record = &entry.record;
        let lease = record.place.clone();
        let version = record.version;
        let write = |status: &Published| Request::WriteStatus {
            lease: lease.clone(),
            uid,
            version,
            status: status.to_patch(&self.settings.identity, term),
        };
        let (doing, request) = match &step {
            Step::Act(Act::Read) => (Doing::Read, Request::ReadLease { lease }),
            // An answer from long ago says nothing about now: the server may have hung since.
            Step::Act(Act::End(_)) if now.silence > FRESH => (Doing::Read, Request::ReadLease { lease }),
            Step::Act(Act::AddFinalizer) => {
                let finalizers = record.finalizers_with(true);
                (Doing::Prepare, Request::SetFinalizers { lease, uid, version, finalizers })
            }
            Step::Act(Act::Grant(status)) => (Doing::Grant, write(status)),
            Step::Act(Act::End(status)) => {
                (Doing::End(deadline.filter(|_| status.state() == Some(State::Expired))), write(status))
            }
            Step::Act(Act::Publish(status)) => {
                let warned = |status: &Published| status.expiring.is_some_and(|(expiring, _)| expiring);
                let news = warned(status) && !warned(&record.status);
                (if news { Doing::Warn } else { Doing::Publish }, write(status))
            }
            Step::Refresh(status) => {
                if !self.refreshes.take(now.mono) {
                    return None;
                }
                (Doing::Publish, write(status))
            }
            Step::Act(Act::RemoveFinalizer) => {
                let finalizers = record.finalizers_with(false);
                (Doing::Release, Request::SetFinalizers { lease, uid, version, finalizers })
            }
            Step::Act(Act::Delete) => (Doing::Delete, Request::DeleteLease { lease, uid }),
            Step::Rest | Step::Wait(_) => return None,
        };
        if let Some(entry) = self.leases.get_mut(&uid) {
            entry.in_flight = true;
        }
        Some((Cause::Lease(uid, doing), request))
    }

    fn send(&mut self, cause: Cause, request: Request, time: Duration, now: &Now) {
        self.next_ticket += 1;
        let ticket = self.next_ticket;
        self.flights.insert(ticket, Flight { cause, request: request.clone(), sent_at: now.mono });
        self.out.requests.push((ticket, request, time));
    }

    // --- Answers -----------------------------------------------------------------------------------------------

    /// Takes in the answer to a request.
    pub fn answer(&mut self, ticket: Ticket, answer: Answer, now: &Now) {
        let Some(flight) = self.flights.remove(&ticket) else { return };
        if let Answer::Refused(Refusal::Throttled(wait)) = &answer {
            self.patient_until = now.mono + wait.unwrap_or(Duration::from_secs(1));
        }
        match flight.cause {
            Cause::Probe => {
                if let Answer::Lessor(lessor) = &answer {
                    self.see_lessor(lessor, now);
                }
            }
            Cause::Approach => {
                if let Answer::Lessor(lessor) = &answer {
                    self.see_lessor(lessor, now);
                }
                self.writer.done(&Work::Approach, WorkResult::None, false, flight.sent_at, now.mono);
            }
            Cause::Lease(uid, doing) => self.lease_answered(uid, doing, &flight, answer, now),
            Cause::Object(ref id, version) => self.object_answered(id, version, &flight, answer, now),
            Cause::Arbitration => self.arbitration_answered(&flight, &answer, now),
            Cause::Check(ref work) => self.check_answered(work, &flight, answer, now),
        }
        self.follow_role(now);
    }

    fn lease_answered(&mut self, uid: Uuid, doing: Doing, flight: &Flight, answer: Answer, now: &Now) {
        let work = Work::Lease(uid);
        if let Some(entry) = self.leases.get_mut(&uid) {
            entry.in_flight = false;
        }
        let (result, retry) = match &answer {
            Answer::Lease(_) if doing == Doing::Read => (WorkResult::None, false),
            Answer::Lease(_) | Answer::Object(_) | Answer::Lessor(_) => (WorkResult::Extend, false),
            Answer::Gone => (WorkResult::None, false),
            Answer::Refused(refusal) => {
                self.lease_refused(uid, doing, refusal);
                (WorkResult::None, !matches!(refusal, Refusal::Conflict | Refusal::LowerTerm))
            }
        };
        self.writer.done(&work, result, retry, flight.sent_at, now.mono);
        match answer {
            Answer::Lease(lease) => {
                if doing != Doing::Read {
                    self.tell(uid, doing, now);
                }
                self.see_lease(&lease, now);
            }
            Answer::Gone => {
                if doing == Doing::Delete {
                    self.tell(uid, doing, now);
                }
                let version = self.leases.get(&uid).map(|entry| entry.record.version).unwrap_or_default();
                self.lose_lease(uid, version, now);
            }
            _ if retry => {}
            _ => self.touch_lease(uid, now),
        }
    }

    fn lease_refused(&mut self, uid: Uuid, doing: Doing, refusal: &Refusal) {
        let Some(entry) = self.leases.get_mut(&uid) else { return };
        let place = &entry.record.place;
        match refusal {
            // Changed since it was seen, or perhaps written though no answer came: read it before anything else.
            Refusal::Conflict | Refusal::LowerTerm | Refusal::NoAnswer(_) => {
                entry.stale = true;
                tracing::debug!(lease = %place, ?doing, %refusal, "reading the lease again");
            }
            Refusal::Throttled(_) | Refusal::Failing(_) => {
                tracing::debug!(lease = %place, ?doing, %refusal, "trying again");
            }
            Refusal::Invalid(_) | Refusal::Forbidden(_) | Refusal::NoSuchKind => {
                tracing::warn!(lease = %place, ?doing, %refusal, "request refused, trying again");
                let note = format!("the API server refuses our write: {refusal}");
                self.say_once(uid, "WriteRefused", || note);
            }
        }
    }

    /// Tells what was done for a lease, as it stood before.
    fn tell(&mut self, uid: Uuid, doing: Doing, now: &Now) {
        let Some(entry) = self.leases.get(&uid) else { return };
        let record = &entry.record;
        let attached = self.objects.count(&record.place);
        let (reason, note) = match doing {
            Doing::Grant => {
                let ttl = super::step::granted_ttl(record.ttl_seconds, &self.settings);
                ("Granted", format!("granted for {} s", ttl.as_secs()))
            }
            Doing::Warn => ("Expiring", "ends soon unless it is renewed".to_owned()),
            Doing::End(deadline) => {
                let going = format!("{} objects and {} keys go", attached.objects, attached.keys);
                match deadline {
                    Some(deadline) => {
                        let late = now.lease.since(deadline).as_millis();
                        ("Expired", format!("expired {late} ms after its deadline; {going}"))
                    }
                    None => ("Revoked", format!("revoked: the lease was deleted; {going}")),
                }
            }
            Doing::Release => ("Released", "all that was attached is gone".to_owned()),
            Doing::Read | Doing::Prepare | Doing::Publish | Doing::Delete => {
                tracing::debug!(lease = %record.place, ?doing, "done");
                return;
            }
        };
        self.out.notices.push(Notice::normal(About::Lease(record.place.clone(), uid), reason, note));
    }

    fn object_answered(
        &mut self,
        id: &ObjectId,
        version: Version,
        flight: &Flight,
        answer: Answer,
        now: &Now,
    ) {
        let work = Work::Object(id.clone());
        let reading = matches!(flight.request, Request::ReadObject { .. });
        let result = if reading || matches!(answer, Answer::Refused(_)) {
            WorkResult::None
        } else {
            WorkResult::Extend
        };
        let retry = matches!(answer, Answer::Refused(Refusal::Throttled(_)));
        self.writer.done(&work, result, retry, flight.sent_at, now.mono);
        match answer {
            Answer::Object(meta) => {
                if let (false, Some(object)) = (reading, self.objects.get(id)) {
                    self.out.notices.push(removed(id, object.uid, &flight.request));
                }
                self.see_object(id, &meta, now);
            }
            Answer::Gone => {
                if let (false, Some(object)) = (reading, self.objects.get(id)) {
                    self.out.notices.push(removed(id, object.uid, &flight.request));
                }
                self.lose_object(id, Some(version), now);
            }
            Answer::Refused(refusal) => self.object_refused(id, version, &refusal, now),
            Answer::Lease(_) | Answer::Lessor(_) => {}
        }
    }

    fn object_refused(&mut self, id: &ObjectId, version: Version, refusal: &Refusal, now: &Now) {
        tracing::debug!(object = %id, %refusal, "not removed");
        let Some(object) = self.objects.get_mut(id).filter(|object| object.version == version) else {
            // It has changed meanwhile, and was looked at then.
            self.touch_object(id, now);
            return;
        };
        let tries = object.hindrance.as_ref().map_or(0, |hindrance| hindrance.tries) + 1;
        let backoff = |longest: u64| {
            let wait = Duration::from_millis(250)
                .saturating_mul(1 << tries.min(16))
                .min(Duration::from_secs(longest));
            Some(now.mono + wait)
        };
        let hinder = |reason, message: String, retry_at| Some(Hindrance { reason, message, retry_at, tries });
        let hindrance = match refusal {
            Refusal::Throttled(_) => None,
            Refusal::Conflict => {
                object.stale = true;
                None
            }
            Refusal::Invalid(message) if message.contains("immutable") => hinder(
                "Immutable",
                "it is immutable, so no key of it can be removed: delete it, or detach its keys".to_owned(),
                None,
            ),
            Refusal::Invalid(message) => {
                hinder("Refused", format!("the API server refuses: {message}"), backoff(60))
            }
            Refusal::Forbidden(message) => {
                hinder("Forbidden", format!("the operator lacks a right: {message}"), backoff(60))
            }
            Refusal::NoAnswer(_) => {
                object.stale = true;
                hinder("NoAnswer", refusal.to_string(), backoff(5))
            }
            Refusal::Failing(_) | Refusal::NoSuchKind | Refusal::LowerTerm => {
                hinder("Failing", refusal.to_string(), backoff(30))
            }
        };
        if let Some(hindrance) = hindrance {
            let news = object.hindrance.as_ref().is_none_or(|old| old.reason != hindrance.reason);
            let transient = matches!(hindrance.reason, "NoAnswer" | "Failing");
            if news && !transient {
                let note = format!(
                    "attached to a lease that has ended, and can't be removed: {}",
                    hindrance.message
                );
                self.out.notices.push(Notice::warning(
                    About::Object(id.clone(), object.uid),
                    "Hindered",
                    note,
                ));
            }
            object.hindrance = Some(hindrance);
        }
        let leases: Vec<Place> = self.objects.leases_of(id);
        self.touch_object(id, now);
        for place in leases {
            self.touch_place(&place, now);
        }
    }

    // --- Who is primary ----------------------------------------------------------------------------------------

    fn arbitrate(&mut self, next: Move, now: &Now) {
        self.arbitrate_since(next, now.mono, now);
    }

    fn arbitrate_since(&mut self, next: Move, sent_at: Duration, now: &Now) {
        match next {
            Move::Send(request) => self.send(Cause::Arbitration, request, self.settings.lease_duration, now),
            Move::Check(work) => {
                let request = match &work {
                    Work::Approach => None,
                    Work::Lease(uid) => self
                        .leases
                        .get(uid)
                        .map(|entry| Request::ReadLease { lease: entry.record.place.clone() }),
                    Work::Object(id) => Some(Request::ReadObject { object: id.clone() }),
                };
                match request {
                    Some(request) => {
                        self.send(Cause::Check(work), request, self.settings.lease_duration, now)
                    }
                    None => {
                        self.writer.remove(&work);
                        let next = self.arbitration.checked(false, self.leases.len(), now.wall);
                        self.arbitrate_since(next, sent_at, now);
                    }
                }
            }
            Move::Decided(verdict) => {
                tracing::debug!(?verdict, "arbitration");
                match verdict {
                    Verdict::Proved(term) => self.writer.proved(term, sent_at),
                    Verdict::Claimed(term) => self.writer.claimed(term, sent_at, now.mono),
                    Verdict::Lost => self.writer.lost(now.mono),
                    Verdict::Abstained => self.writer.abstained(now.mono),
                    Verdict::Failed => self.writer.arbitration_failed(now.mono),
                    Verdict::Orphaned(term) => {
                        self.orphaned = true;
                        self.writer.proved(term, sent_at);
                    }
                }
            }
        }
    }

    fn arbitration_answered(&mut self, flight: &Flight, answer: &Answer, now: &Now) {
        match answer {
            Answer::Lessor(lessor) => self.see_lessor(lessor, now),
            Answer::Gone => self.arbitration.see_none(),
            _ => {}
        }
        let next = self.arbitration.answered(answer, &flight.request, self.leases.len(), now.wall);
        self.arbitrate_since(next, flight.sent_at, now);
    }

    /// A follower has looked afresh at what seemed overdue.
    fn check_answered(&mut self, work: &Work, flight: &Flight, answer: Answer, now: &Now) {
        match (work, answer) {
            (_, Answer::Refused(_)) => {
                let failed = self.arbitration.abandon();
                self.arbitrate_since(Move::Decided(failed), flight.sent_at, now);
                return;
            }
            (_, Answer::Lease(lease)) => self.see_lease(&lease, now),
            (Work::Object(id), Answer::Object(meta)) => self.see_object(id, &meta, now),
            (Work::Lease(uid), _) => self.lose_lease(*uid, Version::MAX, now),
            (Work::Object(id), _) => self.lose_object(id, None, now),
            (Work::Approach, _) => {}
        }
        let undone = match work {
            Work::Approach => false,
            Work::Lease(uid) => matches!(self.step(*uid, now), Some(Step::Act(_))),
            Work::Object(id) => self.removal(id).is_some(),
        };
        let next = self.arbitration.checked(undone, self.leases.len(), now.wall);
        self.arbitrate_since(next, flight.sent_at, now);
    }

    /// Tells the lessor in memory whether it is primary, after anything that may have changed that.
    fn follow_role(&mut self, now: &Now) {
        let leads = self.writer.leading_term();
        if leads == self.leading {
            return;
        }
        let before = std::mem::replace(&mut self.leading, leads);
        self.approached = None;
        if before.is_some() {
            self.cancel_flights(now);
            self.leases.demote();
        }
        match leads {
            Some(term) => {
                self.leases.promote();
                let note = format!("{} is primary under term {term}", self.settings.identity);
                self.out.notices.push(Notice::normal(About::Lessor, "Promoted", note));
                let objects: Vec<ObjectId> = self.objects.iter().map(|(id, _)| id.clone()).collect();
                for id in &objects {
                    self.report_problems(id);
                    self.touch_object(id, now);
                }
            }
            None => tracing::info!(term = before, "demoted"),
        }
        let leases: Vec<Uuid> = self.leases.iter().map(|(uid, _)| *uid).collect();
        for uid in leases {
            self.touch_lease(uid, now);
        }
    }

    /// Gives up all work under way: it was begun under a term that is over.
    fn cancel_flights(&mut self, now: &Now) {
        let flights = std::mem::take(&mut self.flights);
        for (ticket, flight) in flights {
            let work = match &flight.cause {
                Cause::Arbitration | Cause::Check(_) | Cause::Probe => {
                    self.flights.insert(ticket, flight);
                    continue;
                }
                Cause::Approach => Work::Approach,
                Cause::Lease(uid, _) => {
                    if let Some(entry) = self.leases.get_mut(uid) {
                        entry.in_flight = false;
                        entry.stale = true;
                    }
                    Work::Lease(*uid)
                }
                Cause::Object(id, _) => {
                    if let Some(object) = self.objects.get_mut(id) {
                        object.stale = true;
                    }
                    Work::Object(id.clone())
                }
            };
            self.out.cancelled.push(ticket);
            self.writer.done(&work, WorkResult::None, false, now.mono, now.mono);
        }
    }

    /// Stops in order: finishes what is under way (until `by` at the latest), then leaves the lead to others.
    pub fn stop(&mut self, by: Duration) {
        self.stopping = Some(by);
    }

    /// Whether a stop is complete.
    pub fn has_stopped(&self) -> bool {
        self.stopping.is_some() && self.leading.is_none() && self.flights.is_empty()
    }

    fn wind_up(&mut self, by: Duration, now: &Now) {
        if self.leading.is_none() || (!self.flights.is_empty() && now.mono < by) {
            return;
        }
        self.writer.resign(now.mono);
        self.follow_role(now);
        if let Some(Action::Resign { .. }) = self.writer.poll(now.mono)
            && let Some(request) = self.arbitration.resign(self.leases.len())
        {
            self.send(Cause::Arbitration, request, self.settings.lease_duration, now);
        }
    }

    fn touch(&mut self, work: &Work, now: &Now) {
        match work {
            Work::Approach => {}
            Work::Lease(uid) => self.touch_lease(*uid, now),
            Work::Object(id) => self.touch_object(id, now),
        }
    }
}

/// Logs how a watch fails, once as long as it fails in the same way.
fn note_failure(kind: &str, failure: Failure, known: &mut Option<Failure>) {
    if known.as_ref() != Some(&failure) {
        match &failure {
            Failure::NoSuchKind => tracing::warn!(
                kind,
                "waiting for the kind to be installed: apply the CRDs, `lessor crd | kubectl apply -f -`"
            ),
            failure => tracing::warn!(kind, %failure, "watch fails, trying again"),
        }
    }
    *known = Some(failure);
}

/// Whether everything that was attached to this lease is gone: our finalizer is.
fn is_released(entry: &Entry) -> bool {
    entry.record.status.has_ended() && !entry.record.has_finalizer()
}

fn removed(id: &ObjectId, uid: Uuid, request: &Request) -> Notice {
    let note = match request {
        Request::Remove { removal: Removal::Keys { keys, .. }, .. } => {
            let keys: Vec<&str> = keys.iter().map(|key| key.as_str()).collect();
            format!("removed {} with its lease", keys.join(", "))
        }
        _ => "removed with its lease".to_owned(),
    };
    Notice::normal(About::Object(id.clone(), uid), "Removed", note)
}

/// A number of this replica's own, from its name.
fn seed(identity: &str) -> u64 {
    use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
    BuildHasherDefault::<DefaultHasher>::default().hash_one(identity)
}
