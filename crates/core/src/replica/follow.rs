//! Leases that follow a source: from what is observed of sources to the time of their followers.

use std::{collections::HashSet, time::Duration};

use lessor_api::lease::following;
use uuid::Uuid;
use writer_lease::WorkResult;

use super::{
    Replica, Work,
    requests::{InFlight, Purpose},
};
use crate::{
    clocks::Now,
    decide::expiry::RECENT,
    index::{
        leases::Change,
        sources::{
            FollowState, Source, SourceKind, SourceState, SourceWatch, Transition, TtlChange, TtlState,
        },
    },
    metadata::NamespacedName,
    metric_event::MetricEvent,
    observation::Event,
    request::{Request, RequestError, Response},
};

/// The API server records heartbeats in whole seconds.
const RESOLUTION: Duration = Duration::from_secs(1);
/// A read of a source that failed is retried after this time.
const READ_AGAIN: Duration = Duration::from_secs(2);
/// The same, if a right is missing.
const READ_FORBIDDEN_AGAIN: Duration = Duration::from_secs(15);

impl Replica {
    // --- What is observed ----------------------------------------------------------------------------------------

    /// Applies an event of a watch of sources.
    pub(super) fn observe_source(
        &mut self,
        source_watch: &SourceWatch,
        event: Event<SourceState>,
        now: &Now,
    ) {
        let source = |name: &NamespacedName| Source { kind: source_watch.kind, name: name.clone() };
        match event {
            Event::Applied(state) => self.apply_source(&source(&state.name), Some(*state), now),
            Event::Deleted(state) => {
                let source = source(&state.name);
                if self.index.sources.observe_deleted(&source, state.version) {
                    self.settle_followers(&source, now);
                }
            }
            Event::Synced(listed) => {
                for source in self.index.sources.synced(source_watch, &listed) {
                    self.apply_source(&source, None, now);
                }
                self.set_unseen(source_watch, None, now);
            }
            Event::Bookmark(_) | Event::Listed(_) | Event::Interrupted => {}
            Event::Resumed => drop(self.set_unseen(source_watch, None, now)),
            // Before a lease ends, its source is read, so that a failure that passes does no harm.
            Event::Failing(failure) if failure.is_transient() => {
                tracing::debug!(%source_watch, %failure, "watch of sources fails, retrying");
            }
            Event::Failing(failure) => {
                if self.set_unseen(source_watch, Some(following::UNWATCHED), now) {
                    tracing::warn!(%source_watch, %failure, "sources can't be watched, retrying");
                }
            }
        }
    }

    /// The sources of a watch can't be observed, for this reason, or can be again. Returns whether that is new.
    fn set_unseen(&mut self, source_watch: &SourceWatch, unseen: Option<&'static str>, now: &Now) -> bool {
        let mut is_new = false;
        for source in self.index.sources.sources_of(source_watch) {
            if self.index.sources.set_unseen(&source, unseen) {
                is_new = true;
                self.settle_followers(&source, now);
            }
        }
        is_new
    }

    /// Applies the state of a source, from a watch or a response; `None`: it doesn't exist.
    fn apply_source(&mut self, source: &Source, state: Option<SourceState>, now: &Now) {
        // An outage that this replica has met may have been since the heartbeat, and uses up no time.
        let slack = RESOLUTION.saturating_add(self.settings.max_clock_skew).saturating_add(now.paused());
        let (changed, heartbeat) = self.index.sources.observe(source, state, now.lease, now.server, slack);
        if let Some(age) = heartbeat {
            self.spread_heartbeat(source, age, now);
        }
        if changed {
            self.settle_followers(source, now);
        }
    }

    /// A heartbeat of a source, `age` ago, renews its followers, their followers, and so on.
    fn spread_heartbeat(&mut self, source: &Source, age: Duration, now: &Now) {
        let mut sources = vec![source.clone()];
        // A circle of followers may not have been detected yet.
        let mut passed = HashSet::from([source.clone()]);
        while let Some(source) = sources.pop() {
            let mut renewed = 0;
            for uid in self.index.sources.followers(&source) {
                if matches!(self.index.sources.state_of(uid), Some(FollowState::Refused(_))) {
                    continue;
                }
                let has_next_step = self.index.leases.get(&uid).is_some_and(|entry| {
                    let is_expiring = entry.record.status.is_expiring();
                    is_expiring || entry.due().is_some() || entry.handed_out || entry.record.suspend
                });
                if !self.index.leases.record_heartbeat(uid, age, now) {
                    continue;
                }
                renewed += 1;
                if has_next_step {
                    self.enqueue_lease(uid, now);
                }
                if let Some(name) = self.index.sources.name_of(uid) {
                    let next = Source::lease(name.clone());
                    if self.index.sources.is_followed(&next) && passed.insert(next.clone()) {
                        sources.push(next);
                    }
                }
            }
            if renewed > 0 && self.leadership.is_primary() {
                self.out.metric_events.push(MetricEvent::Followed(source.kind, renewed));
            }
        }
    }

    /// A source has changed: settles its followers.
    fn settle_followers(&mut self, source: &Source, now: &Now) {
        self.settle(self.index.sources.followers(source), now);
    }

    /// Decides whether the sources of these leases keep them alive, then the same for their followers.
    fn settle(&mut self, mut followers: Vec<Uuid>, now: &Now) {
        while let Some(uid) = followers.pop() {
            let (leases, readiness) = (&self.index.leases, &self.readiness);
            let state_at =
                |name: &NamespacedName| leases.state_at(name, readiness.leases_listed(&name.namespace));
            let transition = self.index.sources.settle(uid, state_at);
            if let Some(transition) = transition {
                let since_heartbeat =
                    self.index.sources.source_of(uid).and_then(|source| match source.kind {
                        SourceKind::Lease => self.index.leases.since_renewal(&source.name, now),
                        _ => self.index.sources.since_heartbeat(source, now.lease),
                    });
                self.index.leases.apply_transition(uid, transition, since_heartbeat, now);
                if let Some(name) = self.index.sources.name_of(uid) {
                    let as_source = Source::lease(name.clone());
                    followers.extend(self.index.sources.followers(&as_source));
                    // They may have been settled before, as of what was known of it then.
                    let age = match transition.change {
                        TtlChange::Renew => Some(Duration::ZERO),
                        TtlChange::CountFromHeartbeat => since_heartbeat,
                        TtlChange::None | TtlChange::End => None,
                    };
                    if let Some(age) = age {
                        self.spread_heartbeat(&as_source, age, now);
                    }
                }
                self.enqueue_lease(uid, now);
            }
        }
    }

    /// A lease has changed: perhaps what it follows. It may be followed itself.
    pub(super) fn link_follower(&mut self, uid: Uuid, name: &NamespacedName, change: Change, now: &Now) {
        let Some(entry) = self.index.leases.get(&uid).filter(|_| !change.stale_news) else { return };
        let ttl_state = entry.ttl_state;
        let record = &entry.record;
        let follow = record.follow().filter(|_| !record.status.has_ended());
        if follow.is_none() && self.index.sources.is_idle() {
            return;
        }
        let followed = follow.and_then(|follow| {
            let published = record.status.follows()?;
            (*published.source == *follow.source.to_string()).then_some(published)
        });
        let restored = (change.new && record.status.is_granted())
            .then(|| followed.and_then(|followed| followed.was_alive()));
        let recorded = followed.and_then(|followed| followed.uid);
        let follows = follow.is_some();
        let linked = self.index.sources.link(uid, name, follow, recorded, restored);
        if change.granted {
            self.index.sources.granted(uid);
        }
        let as_source = Source::lease(name.clone());
        let is_followed = self.index.sources.is_followed(&as_source);
        if is_followed && (change.granted || change.renewed) {
            self.spread_heartbeat(&as_source, Duration::ZERO, now);
        }
        if linked.cut || linked.source && ttl_state != TtlState::Running {
            // The source that it followed before had paused or shortened its time.
            let change = if linked.cut { TtlChange::Renew } else { TtlChange::None };
            let transition = Transition { change, ttl_state: TtlState::Running };
            self.index.leases.apply_transition(uid, transition, None, now);
        }
        if linked.source {
            self.settle(self.index.sources.affected(uid, name), now);
        } else {
            self.settle(follows.then_some(uid).into_iter().collect(), now);
            if is_followed {
                self.settle_followers(&as_source, now);
            }
        }
    }

    /// A lease is gone.
    pub(super) fn unlink_follower(&mut self, uid: Uuid, name: &NamespacedName, now: &Now) {
        if self.index.sources.is_idle() {
            return;
        }
        self.index.sources.unlink(uid);
        self.settle_followers(&Source::lease(name.clone()), now);
    }

    /// A lease is gone without a watch event, and another, `uid`, has its name.
    pub(super) fn unlink_replaced(&mut self, replaced: Uuid, uid: Uuid, name: &NamespacedName, now: &Now) {
        if self.index.sources.unlink(replaced).source {
            self.settle(self.index.sources.affected(uid, name), now);
        }
    }

    /// All leases were listed: others that are followed don't exist.
    pub(super) fn settle_followers_of_leases(&mut self, now: &Now) {
        self.settle(self.index.sources.followers_of_leases(), now);
    }

    /// Settles the followers of Pods that terminate for too long.
    pub(super) fn settle_overdue_sources(&mut self, now: &Now) {
        let overdue = now.server.map(|server| self.index.sources.take_overdue(server));
        for source in overdue.into_iter().flatten() {
            tracing::info!(?source, "the Pod should have ended: it doesn't keep leases alive any more");
            self.settle_followers(&source, now);
        }
    }

    /// When [`settle_overdue_sources`](Self::settle_overdue_sources) has something to do next.
    pub(super) fn sources_overdue_at(&self, now: &Now) -> Option<Duration> {
        let left = self.index.sources.next_overdue()?.duration_since(now.server?);
        Some(now.mono.saturating_add(left.try_into().unwrap_or_default()))
    }

    // --- What is read --------------------------------------------------------------------------------------------

    /// Returns what has to be watched, and reads sources that no watch will report by itself.
    pub(super) fn watch_sources(&mut self, now: &Now) {
        if let Some(source_watches) = self.index.sources.replan() {
            self.out.source_watches = Some(source_watches.clone());
        }
        if now.mono < self.schedule.sources_readable_at() || now.disconnected {
            return;
        }
        for source in self.index.sources.take_unread() {
            if self.requests.reads_of_sources() >= self.settings.concurrency
                || self.requests.is_throttled(now)
            {
                self.index.sources.read_later(source);
                continue;
            }
            self.send(Purpose::Source, read(&source), self.time_limit(now), now);
        }
    }

    /// When [`watch_sources`](Self::watch_sources) has something to do if nothing happens before.
    pub(super) fn read_sources_at(&self, now: &Now) -> Option<Duration> {
        let at = self.schedule.sources_readable_at().max(self.requests.throttled_until());
        (self.index.sources.has_unread() && at > now.mono).then_some(at)
    }

    /// A source was read that no watch would have reported by itself.
    pub(super) fn source_answered(&mut self, request: &InFlight, response: Response, now: &Now) {
        let Request::ReadSource { source } = &request.request else { return };
        if let Err(error) = self.apply_read(source, response, request.sent_at, now) {
            tracing::debug!(?source, %error, "source not read, retrying");
            self.index.sources.read_later(source.clone());
            self.schedule.read_sources_at(now.mono + READ_AGAIN);
        }
    }

    /// The source of a lease was read before the end of the lease.
    pub(super) fn source_read_for(&mut self, uid: Uuid, request: &InFlight, response: Response, now: &Now) {
        let Some(source) = source_of(&request.request) else { return };
        let read = self.apply_read(&source, response, request.sent_at, now);
        if let Err(error) = &read {
            tracing::debug!(?source, %error, "source not read, retrying");
            self.index.leases.set_confirming(uid, None);
            self.index.sources.read_failed(&source);
            self.lease_failed(uid, true, error, now);
        }
        self.lease_done(uid, WorkResult::None, read.is_err(), request.sent_at, now);
        self.enqueue_lease(uid, now);
    }

    /// A follower has read the source of a lease that seems overdue.
    pub(super) fn source_checked(&mut self, request: &InFlight, response: Response, now: &Now) {
        let Request::ReadSource { source } = &request.request else { return };
        if let Err(error) = self.apply_read(source, response, request.sent_at, now) {
            tracing::debug!(?source, %error, "source not read");
        }
    }

    /// Applies the response to a read of a source that was sent at `sent_at`.
    fn apply_read(
        &mut self,
        source: &Source,
        response: Response,
        sent_at: Duration,
        now: &Now,
    ) -> Result<(), RequestError> {
        match response {
            Response::Source(state) => self.apply_source(source, Some(*state), now),
            Response::Lease(lease) => self.apply_lease(&lease, now),
            Response::Gone if source.kind == SourceKind::Lease => {
                if let Some((uid, _)) = self.index.leases.at(&source.name) {
                    self.lease_gone(uid, now);
                }
            }
            Response::Gone => self.apply_source(source, None, now),
            Response::Refused(RequestError::Forbidden(message)) if source.kind != SourceKind::Lease => {
                if self.index.sources.set_unseen(source, Some(following::UNWATCHED)) {
                    tracing::warn!(?source, message, "source can't be read, retrying");
                    self.settle_followers(source, now);
                }
                self.index.sources.read_later(source.clone());
                self.schedule.read_sources_at(now.mono + READ_FORBIDDEN_AGAIN);
                return Ok(());
            }
            Response::Refused(error) => return Err(error),
            Response::Lessor(_) | Response::Object(_) | Response::Deleted => return Ok(()),
        }
        self.index.sources.read_answered(source, sent_at, now.mono);
        if self.index.sources.set_unseen(source, None) {
            self.settle_followers(source, now);
        }
        Ok(())
    }

    /// The request that reads the source of a lease before it ends by time.
    pub(super) fn source_request(&self, uid: Uuid, now: &Now) -> Option<Request> {
        self.index.unread_source(uid, now).map(|source| read(&source))
    }

    /// That request is being sent.
    pub(super) fn reads_source(&mut self, uid: Uuid, request: &Request, now: &Now) {
        self.index.leases.set_confirming(uid, Some(now.mono));
        if let Some(source) = source_of(request) {
            let (since, by) = (now.mono.saturating_sub(2 * RECENT), self.time_limit(now));
            self.index.sources.read_sent(&source, since, by);
        }
    }

    /// What a follower has to read beside an overdue lease before it takes over: its own watch of sources may be late.
    pub(super) fn also_to_check(&self, work: &Work, request: &InFlight, now: &Now) -> Option<Request> {
        let (Work::Lease(uid), Request::ReadLease { .. }) = (work, &request.request) else { return None };
        self.source_request(*uid, now).filter(|request| matches!(request, Request::ReadSource { .. }))
    }
}

/// The source that a request reads.
fn source_of(request: &Request) -> Option<Source> {
    match request {
        Request::ReadSource { source } => Some(source.clone()),
        Request::ReadLease { lease } => Some(Source::lease(lease.clone())),
        _ => None,
    }
}

/// The request that reads a source.
fn read(source: &Source) -> Request {
    match source.kind {
        SourceKind::Lease => Request::ReadLease { lease: source.name.clone() },
        _ => Request::ReadSource { source: source.clone() },
    }
}
