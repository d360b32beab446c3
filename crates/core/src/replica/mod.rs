//! One replica: what it has observed, and what it decides to do about it.
//!
//! A state machine. It takes [observations](crate::observation), [responses](crate::request) and the [time](Now), and
//! returns an [`Output`]. It does no I/O and starts no task: the runtime around it does.
//!
//! Each part of its state has an owner with private fields: [`Leadership`], [`Liveness`], and here `Readiness`, `Index`,
//! `Schedule`, `Requests` and `Reporting`. This module passes news between them:
//!
//! | module | from | to |
//! |---|---|---|
//! | `observe`, `follow`, `kinds` | a watch event | the index |
//! | `enqueue`, `removals` | what changed in the index | the place where it waits: a timer, the budget, the queue of work |
//! | `dispatch` | work that may be done now | a request |
//! | `response` | the response | the index, and Events |
//! | `role` | an election | promotion, demotion, the stop |

mod debug;
mod dispatch;
mod enqueue;
mod follow;
mod index;
mod kinds;
mod observe;
mod overlap;
mod readiness;
mod removals;
mod reporting;
mod requests;
mod response;
mod role;
mod schedule;
mod state_hash;

use std::time::Duration;

use writer_lease::Term;

pub use self::debug::{AttachmentReport, HinderedObject, InvalidObject, KindState, PendingAttachment};
use self::{
    index::Index, readiness::Readiness, reporting::Reporting, requests::Requests, schedule::Schedule,
};
use crate::{
    clocks::Now,
    decide::expiry,
    index::{
        attachments::{AttachmentIndex, Object},
        leases::LeaseIndex,
        sources::SourceIndex,
    },
    leadership::Leadership,
    liveness::Liveness,
    overlap::Overlap,
    settings::Settings,
    store_version::{StoreVersion, WentBack},
    watch_health::WatchHealth,
};
pub use crate::{output::Output, request::Ticket, work::Work};

/// See the [module](self).
#[derive(Clone)]
pub struct Replica {
    settings: Settings,
    readiness: Readiness,
    leadership: Leadership,
    liveness: Liveness,
    index: Index,
    schedule: Schedule,
    requests: Requests,
    /// The last challenge of the primary met a conflict: the `Lessor` has to be read before the next.
    challenge_refused: bool,
    reporting: Reporting,
    overlap: Overlap,
    store: StoreVersion,
    /// What the next poll returns.
    out: Output,
}

impl Replica {
    /// A replica that has observed nothing yet.
    pub fn new(settings: Settings) -> Self {
        let scopes = settings.scopes();
        let kinds = settings.attachable.iter().map(|kind| kind.to_string().into());
        let watches = WatchHealth::new(kinds, &scopes);
        let writer_lease = writer_lease::Config {
            max_running: settings.concurrency,
            // From its name, so that replicas differ and a run can be repeated.
            seed: hash_of(&settings.identity),
            ..writer_lease::Config::new(settings.lease_duration)
        };
        Self {
            readiness: Readiness::new(scopes),
            leadership: Leadership::new(&settings.identity, settings.published_namespaces(), writer_lease),
            liveness: Liveness::default(),
            index: Index {
                leases: LeaseIndex::new(&settings),
                attachments: AttachmentIndex::default(),
                sources: SourceIndex::new(settings.follow.iter().copied(), settings.namespaces.is_empty()),
                watches,
            },
            schedule: Schedule::new(settings.status_rate),
            requests: Requests::default(),
            challenge_refused: false,
            reporting: Reporting::default(),
            overlap: Overlap::new(&settings),
            store: StoreVersion::default(),
            out: Output::default(),
            settings,
        }
    }

    /// Returns what is to be done now. To be called after each observation and response, and at
    /// [`wake_at`](Self::wake_at).
    pub fn poll(&mut self, now: &Now) -> Output {
        self.liveness.poll(now);
        if self.is_ready() {
            self.settle_overdue_sources(now);
            self.hand_out_due(now);
            self.fire_timers(now);
            self.refresh(now);
            self.prove_writes(now);
            self.respect_others(now);
            self.dispatch(now);
            self.probe(now);
            self.report_kinds(now);
            self.watch_sources(now);
        } else if !self.index.leases.is_empty() {
            // The time of known leases runs, although others were not listed yet.
            self.probe(now);
        }
        std::mem::take(&mut self.out)
    }

    /// When [`poll`](Self::poll) has something to do if nothing happens before; `None`: never.
    pub fn wake_at(&mut self, now: &Now) -> Option<Duration> {
        if !self.is_ready() {
            return if self.index.leases.is_empty() { None } else { self.probe_at(now) };
        }
        // On the way to a stop nothing begins, so there is only what is in flight to wait for.
        if let Some(by) = self.leadership.stop_by() {
            return self.leadership.is_primary().then_some(by);
        }
        let work = self.leadership.wake_at(now.mono).map(|at| at.max(self.requests.throttled_until()));
        let probe = self.probe_at(now);
        let kinds = self.report_kinds_at(now);
        let sources = self.read_sources_at(now);
        let overdue = self.sources_overdue_at(now);
        let refresh = self.schedule.refresh_at(now.mono);
        let deadline = self.next_deadline(now);
        let looks = !self.leadership.is_primary() && self.leadership.has_unreadable();
        let look = looks.then(|| self.schedule.look_for_due_at());
        let at = [work, self.schedule.first(), deadline, probe, kinds, sources, overdue, refresh, look];
        at.into_iter().flatten().min()
    }

    /// When the next deadline, or the write before it, is due on the replica's clock.
    fn next_deadline(&mut self, now: &Now) -> Option<Duration> {
        // While lease time is paused no deadline comes nearer. The replica polls when it is connected again.
        if now.disconnected {
            return None;
        }
        let deadline = expiry::mono_of(self.index.leases.next_due()?, now);
        if self.leadership.is_primary() {
            self.liveness.act_at(deadline, &mut self.index.leases, now)
        } else {
            // A lease that is due already waits in the queue of work.
            (deadline > now.mono).then_some(deadline)
        }
    }

    // --- What metrics and the admin server show ------------------------------------------------------------------

    /// Whether it has observed enough to act.
    pub fn is_ready(&self) -> bool {
        self.readiness.is_ready(&self.index.watches)
    }

    /// What has to be listed before it can act, for users; empty when it is [ready](Self::is_ready).
    pub fn missing(&self) -> Vec<String> {
        self.readiness.missing(&self.index.watches)
    }

    /// Whether the storage of the API server has gone back to an earlier state. Then this replica has to end, and start anew.
    pub fn store_went_back(&self) -> Option<WentBack> {
        self.store.went_back()
    }

    /// The namespaces whose leases can't be read, for users, each with what is wrong. Others are served.
    pub fn unserved(&self) -> impl Iterator<Item = (&str, String)> {
        self.readiness.unserved()
    }

    /// The leases.
    pub fn leases(&self) -> &LeaseIndex {
        &self.index.leases
    }

    /// What leases follow.
    pub fn follows(&self) -> &SourceIndex {
        &self.index.sources
    }

    /// The term that it leads under, if it does.
    pub fn leads(&self) -> Option<Term> {
        self.leadership.term()
    }

    /// The highest term observed.
    pub fn highest_term(&self) -> Term {
        self.leadership.highest_term()
    }

    /// For how long the first lease that is due has been due; zero: none is, or this is a dry run.
    pub fn overdue(&mut self, now: &Now) -> Duration {
        if self.settings.dry_run {
            return Duration::ZERO;
        }
        let first = self.index.leases.overdue_since(now);
        first.map_or(Duration::ZERO, |deadline| now.lease.since(deadline))
    }

    /// How many leases and objects have work that is queued or in flight.
    pub fn queued(&self) -> usize {
        self.leadership.queued()
    }

    /// How many requests are in flight.
    pub fn in_flight(&self) -> usize {
        self.requests.len()
    }

    /// Every attached object, and whether a lease that it is attached to doesn't exist.
    pub fn attached(&self) -> impl Iterator<Item = (&Object, bool)> {
        self.index.attachments.iter().map(|(id, object)| {
            let pending = object.leases(id).any(|lease| self.index.is_vacant(&lease));
            (object, pending)
        })
    }
}

/// A number that depends on this value alone.
fn hash_of(value: impl std::hash::Hash) -> u64 {
    use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
    BuildHasherDefault::<DefaultHasher>::default().hash_one(value)
}

#[cfg(test)]
mod malformed_objects;
#[cfg(test)]
mod tests;
