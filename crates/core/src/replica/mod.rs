//! One replica: everything that it has seen, and what it decides to do about it.
//!
//! A plain state machine. It takes observations, answers and the time, and gives out requests and notices; it does no I/O
//! and starts no task. The runtime around it does.

mod debug;
mod dispatch;
mod enqueue;
mod follow;
mod kinds;
mod observe;
mod response;
mod role;
mod state_hash;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use lease_engine::LeaseTime;
use lessor_api::lease::Attached;
use uuid::Uuid;
use writer_lease::{self, Term, WriterLease};

use self::kinds::KindReport;
pub use crate::work::Work;
use crate::{
    budget::Budget,
    clocks::Now,
    decide::expiry,
    index::{
        attachments::{AttachmentIndex, ObjectId},
        leases::{Entry, LeaseIndex},
        sources::{SourceIndex, SourceWatch},
    },
    leadership::election::Election,
    lease_object::{NamespacedName, ResourceVersion},
    liveness::shared_pause::SharedPause,
    metric_event::MetricEvent,
    observation::Failure,
    request::{Request, RequestError},
    settings::Settings,
    timers::Timers,
    user_event::UserEvent,
    watch_health::{Scope, WatchHealth},
};

pub use self::debug::{AttachmentReport, Hindered, Invalid, KindState, Pending};

/// Names a request, so that its answer finds back.
pub type Ticket = u64;

/// What the shell is to do now.
#[derive(Clone, Debug, Default)]
pub struct Output {
    /// Send these, each to be answered by its time, on the replica's clock.
    pub requests: Vec<(Ticket, Request, Duration)>,
    /// Give these up: this replica leads no more.
    pub cancelled: Vec<Ticket>,
    /// Tell people.
    pub user_events: Vec<UserEvent>,
    /// Count these.
    pub metric_events: Vec<MetricEvent>,
    /// Hold so much more of the time: nothing could be written meanwhile.
    pub hold: Duration,
    /// From now on, watch these for sources that leases follow, and no others; `None`: as before.
    pub source_watches: Option<BTreeSet<SourceWatch>>,
}

/// A request under way.
#[derive(Clone, Debug)]
struct Flight {
    cause: Cause,
    request: Request,
    sent_at: Duration,
}

#[derive(Clone, Debug, Hash)]
enum Cause {
    Lease(Uuid, Doing),
    /// The object, its version when the request was decided on, and the leases with which it or its keys go.
    Object(ObjectId, ResourceVersion, Box<str>),
    Election,
    /// Is the server heard again?
    Probe,
    /// A fresh look at work that seems overdue, before the lead is claimed for it.
    Check(Work),
    /// The state of kinds, for people.
    Kinds,
    /// A source that no watch will show by itself.
    Look,
}

/// What a request for a lease was meant to do, to tell people when it's done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Doing {
    Read,
    Confirm,
    Prepare,
    Grant,
    Publish,
    Warn,
    /// Whether what it follows keeps it alive.
    Follow,
    /// With the deadline, unless it is a revoke, and with what goes.
    End(Option<LeaseTime>, Attached),
    Release,
    /// Let it go without an end.
    Abandon,
    Delete,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Timer {
    Lease(Uuid),
    // Boxed, since most are of leases.
    Object(Box<ObjectId>),
    /// Something is attached to a name that no lease has.
    Pending(Box<NamespacedName>),
}

/// How often a replica asks whether the server is heard, where nothing else tells.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Where lease time stood still for longer, it may do so again and again.
const LONG: Duration = Duration::from_secs(5);
/// For how long it does so after lease time stood still. As long as an API server may say nothing on a watch.
const WATCHFUL: Duration = Duration::from_secs(60);
/// How much later than due the signs of a primary that lives may reach a follower.
const LATE: Duration = Duration::from_millis(500);

/// See the [module](self).
#[derive(Clone)]
pub struct Replica {
    settings: Settings,
    leases: LeaseIndex,
    objects: AttachmentIndex,
    writer: WriterLease<Work>,
    election: Election,
    lessor_seen: bool,
    /// How these watches fail, as long as they have shown nothing.
    lessor_failure: Option<Failure>,
    /// Why the server doesn't let this replica compete, as people were told.
    lessor_refusal: Option<RequestError>,
    lease_failure: Option<Failure>,
    /// Whether all leases have been shown, by scope.
    leases_seen: BTreeMap<Scope, bool>,
    watch_health: WatchHealth,
    kind_report: KindReport,
    follows: SourceIndex,
    /// When sources may be read again that could not be read.
    read_sources_at: Duration,
    /// What people were told of as pending.
    pending_said: HashMap<NamespacedName, BTreeSet<ObjectId>>,
    in_flight: BTreeMap<Ticket, Flight>,
    next_ticket: Ticket,
    timers: Timers<Timer>,
    /// Ended leases that wait for what may be attached to them unseen, each with a timer. Every watch that is opened again
    /// looks at them, and must not look at all leases for that.
    lingering: BTreeSet<Uuid>,
    refreshes: Budget,
    /// Leases whose status is merely to be brought up to date, and since when: one after the other, as the budget allows.
    unrefreshed: Timers<Uuid>,
    /// The server asked for patience until then.
    patient_until: Duration,
    /// The term that this replica leads under, as the lessor in memory was told.
    leading: Option<Term>,
    /// The kind `Lessor` is gone: only what nobody else could finish is finished.
    lessor_crd_missing: bool,
    /// When this replica last asked whether the server is heard, or was answered that.
    probed_at: Duration,
    /// When the last accepted write was sent that shows that holders can renew.
    shown_at: Duration,
    /// How much of the time was no lease time when the server was last heard.
    held: Duration,
    /// For how long nothing could be written, as far as replicas have told each other; `None` before the `Lessor` was seen.
    shared_pause: Option<SharedPause>,
    /// What of that this replica had found out when it last wrote the `Lessor`.
    saying: Duration,
    /// Until when this replica asks for signs of life.
    watchful_until: Duration,
    stopping: Option<Duration>,
    out: Output,
}

impl Replica {
    /// A replica that has seen nothing yet.
    pub fn new(settings: Settings) -> Self {
        let scopes = settings.scopes();
        let kinds = settings.attachable.iter().map(|kind| kind.to_string().into());
        let watch_health = WatchHealth::new(kinds, &scopes);
        let follows = SourceIndex::new(settings.follow.iter().copied(), settings.namespaces.is_empty());
        let writer = WriterLease::new(writer_lease::Config {
            max_running: settings.concurrency,
            // A replica's own, from its name.
            seed: number(&settings.identity),
            ..writer_lease::Config::new(settings.lease_duration)
        });
        Self {
            leases: LeaseIndex::new(&settings),
            objects: AttachmentIndex::default(),
            writer,
            election: Election::new(settings.identity.clone()),
            lessor_seen: false,
            lessor_failure: None,
            lessor_refusal: None,
            lease_failure: None,
            leases_seen: scopes.into_iter().map(|scope| (scope, false)).collect(),
            watch_health,
            kind_report: KindReport::default(),
            follows,
            read_sources_at: Duration::ZERO,
            pending_said: HashMap::new(),
            in_flight: BTreeMap::new(),
            next_ticket: 0,
            timers: Timers::default(),
            lingering: BTreeSet::new(),
            refreshes: Budget::new(settings.status_rate),
            unrefreshed: Timers::default(),
            patient_until: Duration::ZERO,
            leading: None,
            lessor_crd_missing: false,
            probed_at: Duration::ZERO,
            shown_at: Duration::ZERO,
            held: Duration::ZERO,
            shared_pause: None,
            saying: Duration::ZERO,
            watchful_until: Duration::ZERO,
            stopping: None,
            out: Output::default(),
            settings,
        }
    }

    /// Whether enough has been seen to act at all.
    pub fn is_ready(&self) -> bool {
        self.lessor_seen && self.all_leases_seen() && self.watch_health.unseen().next().is_none()
    }

    fn all_leases_seen(&self) -> bool {
        self.leases_seen.values().all(|seen| *seen)
    }

    /// What has to be seen before this replica can act, for people; empty when it is [ready](Self::is_ready).
    pub fn missing(&self) -> Vec<String> {
        let mut missing = Vec::new();
        if !self.lessor_seen {
            missing.push(self.waiting_for("lessors.lessor.dev", &self.lessor_failure));
        }
        for (scope, seen) in &self.leases_seen {
            if !seen {
                let what = scope
                    .as_ref()
                    .map_or("leases.lessor.dev".to_owned(), |scope| format!("leases.lessor.dev in {scope}"));
                missing.push(self.waiting_for(&what, &self.lease_failure));
            }
        }
        missing.extend(self.watch_health.unseen().map(|kind| self.waiting_for(kind, &None)));
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
    pub fn leases(&self) -> &LeaseIndex {
        &self.leases
    }

    /// What leases follow.
    pub fn follows(&self) -> &SourceIndex {
        &self.follows
    }

    /// The term that this replica leads under, if it does.
    pub fn leads(&self) -> Option<Term> {
        self.leading
    }

    /// The highest term that this replica knows of.
    pub fn highest_term(&self) -> Term {
        self.writer.highest_term()
    }

    /// For how long the first lease that is due has been due; zero: none is.
    pub fn overdue(&mut self, now: &Now) -> Duration {
        self.leases.first_due(now.lease).map_or(Duration::ZERO, |(_, deadline)| now.lease.since(deadline))
    }

    /// How many leases and objects wait for something to be done, or have it done right now.
    pub fn queued(&self) -> usize {
        self.writer.len()
    }

    /// How many requests are under way.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Every attached object, and whether a lease that it is attached to isn't there.
    pub fn attached(&self) -> impl Iterator<Item = (&crate::index::attachments::Object, bool)> {
        self.objects.iter().map(|(id, object)| {
            let pending = object.leases(id).any(|place| self.is_nowhere(&place));
            (object, pending)
        })
    }

    /// Gives out what is to be done now. To be called after anything was taken in, and at [`wake_at`](Self::wake_at).
    pub fn poll(&mut self, now: &Now) -> Output {
        self.heed_outages(now);
        if self.is_ready() {
            self.hand_out_due(now);
            self.fire_timers(now);
            self.refresh(now);
            self.approach(now);
            self.act(now);
            self.probe(now);
            self.report_kinds(now);
            self.watch_source(now);
        } else if !self.leases.is_empty() {
            // The time of those that are known runs, whatever has yet to be seen.
            self.probe(now);
        }
        std::mem::take(&mut self.out)
    }

    /// When [`poll`](Self::poll) has something to do if nothing happens before; `None`: never.
    pub fn wake_at(&mut self, now: &Now) -> Option<Duration> {
        if !self.is_ready() {
            return if self.leases.is_empty() { None } else { self.probe_due(now) };
        }
        // Whoever stops begins nothing any more: there is only what is under way to wait for.
        if let Some(by) = self.stopping {
            return self.leading.is_some().then_some(by);
        }
        let writer = self.writer.wake_at(now.mono).map(|at| at.max(self.patient_until));
        let probe = self.probe_due(now);
        let kinds = self.report_kinds_at(now);
        let look = self.look_out_at(now);
        let refresh = self.refresh_at(now);
        let at = [writer, self.timers.first(), self.next_deadline(now), probe, kinds, look, refresh];
        at.into_iter().flatten().min()
    }

    /// When the next deadline, or its approach, comes on the replica's clock.
    fn next_deadline(&mut self, now: &Now) -> Option<Duration> {
        // While lease time stands still no deadline comes nearer; whoever hears the server again looks again.
        if now.disconnected {
            return None;
        }
        let deadline = self.leases.next_due()?;
        let at = expiry::mono_of(deadline, now);
        if self.leading.is_none() {
            // One that is due already waits in the writer lease.
            return (at > now.mono).then_some(at);
        }
        if self.is_unshown(now.lease, now) {
            // It waits for the answer.
            return None;
        }
        Some(expiry::write_at(at, self.shown_at).filter(|show| *show > now.mono).unwrap_or(at))
    }
}

/// Whether everything that was attached to this lease is gone: our finalizer is.
fn is_released(entry: &Entry) -> bool {
    entry.record.status.has_ended() && !entry.record.has_finalizer
}

/// The same number for the same thing in each run, hardly ever that of another.
fn number(of: impl std::hash::Hash) -> u64 {
    use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
    BuildHasherDefault::<DefaultHasher>::default().hash_one(of)
}

#[cfg(test)]
mod malformed_objects;
#[cfg(test)]
mod tests;
