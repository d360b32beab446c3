//! Leases that follow something: taking in what is seen of sources, and letting their followers live by it.

use std::{collections::HashSet, time::Duration};

use lessor_api::lease::following;
use uuid::Uuid;
use writer_lease::WorkResult;

use super::{Cause, Flight, Replica, Work};
use crate::{
    clocks::Now,
    decide::expiry::RECENT,
    decide::lease::Following,
    index::{
        leases::Change,
        sources::{
            FollowState, Source, SourceKind, SourceState, SourceWatch, Transition, TtlChange, TtlState,
        },
    },
    lease_object::NamespacedName,
    lease_status::Followed,
    metric_event::MetricEvent,
    observation::Event,
    request::{Request, RequestError, Response},
};

/// What the API server's record of the last beat leaves open, beside the skew of clocks: it is in whole seconds.
const RESOLUTION: Duration = Duration::from_secs(1);
/// How long to wait before a source is read again that could not be read.
const READ_AGAIN: Duration = Duration::from_secs(2);
/// The same, where somebody has to give a right first.
const READ_FORBIDDEN_AGAIN: Duration = Duration::from_secs(15);

impl Replica {
    /// Takes in what a watch shows.
    pub(super) fn observe_source(&mut self, source_watch: &SourceWatch, seen: Event<SourceState>, now: &Now) {
        let source = |place: &NamespacedName| Source { kind: source_watch.kind, name: place.clone() };
        match seen {
            Event::Applied(source_state) => {
                self.see_source(&source(&source_state.name), Some(*source_state), now)
            }
            Event::Deleted(source_state) => {
                let source = source(&source_state.name);
                if self.follows.observe_deleted(&source, source_state.version) {
                    self.settle_followers(&source, now);
                }
            }
            Event::Synced(there) => {
                for source in self.follows.synced(source_watch, &there) {
                    self.see_source(&source, None, now);
                }
                self.set_unseen(source_watch, None, now);
            }
            Event::Interrupted => {}
            Event::Resumed => drop(self.set_unseen(source_watch, None, now)),
            // Whatever may pass by itself is waited for: each end asks for the source by itself.
            Event::Failing(failure) if failure.is_transient() => {
                tracing::debug!(%source_watch, %failure, "watch of what leases follow fails, trying again");
            }
            Event::Failing(failure) => {
                if self.set_unseen(source_watch, Some(following::UNWATCHED), now) {
                    tracing::warn!(%source_watch, %failure, "what leases follow can't be watched, trying again");
                }
            }
        }
    }

    /// The sources that a watch shows can't be seen, or can be again. Answers whether that is news.
    fn set_unseen(&mut self, source_watch: &SourceWatch, unseen: Option<&'static str>, now: &Now) -> bool {
        let mut news = false;
        for source in self.follows.sources_of(source_watch) {
            if self.follows.set_unseen(&source, unseen) {
                news = true;
                self.settle_followers(&source, now);
            }
        }
        news
    }

    /// Takes in a sight of a source; `None`: it isn't there.
    pub(super) fn see_source(&mut self, source: &Source, source_state: Option<SourceState>, now: &Now) {
        let slack = RESOLUTION + self.settings.max_clock_skew;
        let (changed, beat) = self.follows.observe(source, source_state, now.lease, now.server, slack);
        if let Some(age) = beat {
            self.spread_beat(source, age, now);
        }
        if changed {
            self.settle_followers(source, now);
        }
    }

    /// A source has had a beat, `age` ago: it renews its followers, theirs, and so on.
    fn spread_beat(&mut self, source: &Source, age: Duration, now: &Now) {
        let mut sources = vec![source.clone()];
        // That they go round in a circle may not be known yet.
        let mut passed = HashSet::from([source.clone()]);
        while let Some(source) = sources.pop() {
            let mut renewed = 0;
            for uid in self.follows.followers(&source) {
                if matches!(self.follows.state_of(uid), Some(FollowState::Refused(_))) {
                    continue;
                }
                let noticed = self.leases.get(&uid).is_some_and(|entry| {
                    let warned = entry.record.status.is_expiring();
                    warned || entry.due().is_some() || entry.handed_out || entry.record.suspend
                });
                if !self.leases.record_heartbeat(uid, age, now) {
                    continue;
                }
                renewed += 1;
                if noticed {
                    self.enqueue_lease(uid, now);
                }
                if let Some(place) = self.follows.name_of(uid) {
                    let next = Source::lease(place.clone());
                    if self.follows.is_followed(&next) && passed.insert(next.clone()) {
                        sources.push(next);
                    }
                }
            }
            if renewed > 0 && self.leading.is_some() {
                self.out.metric_events.push(MetricEvent::Followed(source.kind, renewed));
            }
        }
    }

    /// Something about a source has changed: look how its followers stand.
    fn settle_followers(&mut self, source: &Source, now: &Now) {
        self.settle(self.follows.followers(source), now);
    }

    /// Looks how these stand with what they follow, and after them those that follow them.
    fn settle(&mut self, mut followers: Vec<Uuid>, now: &Now) {
        while let Some(uid) = followers.pop() {
            let (leases, complete) = (&self.leases, self.leases_seen.values().all(|seen| *seen));
            let turn = self.follows.settle(uid, |place| leases.state_at(place, complete));
            if let Some(turn) = turn {
                let since_heartbeat = self.follows.source_of(uid).and_then(|source| match source.kind {
                    SourceKind::Lease => self.leases.since_renewal(&source.name, now),
                    _ => self.follows.since_heartbeat(source, now.lease),
                });
                self.leases.apply_transition(uid, turn, since_heartbeat, now);
                if let Some(place) = self.follows.name_of(uid) {
                    followers.extend(self.follows.followers(&Source::lease(place.clone())));
                }
                self.enqueue_lease(uid, now);
            }
        }
    }

    /// Takes in a version of a lease: what it follows may have changed, and it may be followed itself.
    pub(super) fn see_follower(&mut self, uid: Uuid, place: &NamespacedName, change: Change, now: &Now) {
        let Some(entry) = self.leases.get(&uid).filter(|_| !change.stale_news) else { return };
        let record = &entry.record;
        let follow = record.follow().filter(|_| !record.status.has_ended());
        if follow.is_none() && self.follows.is_idle() {
            return;
        }
        let followed = follow.and_then(|follow| {
            let named = record.status.follows()?;
            (*named.source == *follow.source.to_string()).then_some(named)
        });
        let restored =
            (change.new && record.status.is_granted()).then(|| followed.and_then(Followed::was_alive));
        let recorded = followed.and_then(|followed| followed.uid);
        let (follows, stood) = (follow.is_some(), entry.ttl_state);
        let linked = self.follows.link(uid, place, follow, recorded, restored);
        if change.granted {
            self.follows.granted(uid);
        }
        let as_source = Source::lease(place.clone());
        let is_followed = self.follows.is_followed(&as_source);
        if is_followed && (change.granted || change.renewed) {
            self.spread_beat(&as_source, Duration::ZERO, now);
        }
        if linked.cut || linked.source && stood != TtlState::Running {
            // Its time stood still, or was cut short, for what it followed before.
            let time = if linked.cut { TtlChange::Renew } else { TtlChange::None };
            self.leases.apply_transition(
                uid,
                Transition { change: time, ttl_state: TtlState::Running },
                None,
                now,
            );
        }
        if linked.source {
            self.settle(self.follows.affected(uid, place), now);
        } else {
            self.settle(follows.then_some(uid).into_iter().collect(), now);
            if is_followed {
                self.settle_followers(&as_source, now);
            }
        }
    }

    /// A lease is gone.
    pub(super) fn lose_follower(&mut self, uid: Uuid, place: &NamespacedName, now: &Now) {
        if self.follows.is_idle() {
            return;
        }
        self.follows.unlink(uid);
        self.settle_followers(&Source::lease(place.clone()), now);
    }

    /// A lease is gone, and another has its name: those that follow it may follow the same as before.
    pub(super) fn lose_replaced_follower(
        &mut self,
        replaced: Uuid,
        uid: Uuid,
        place: &NamespacedName,
        now: &Now,
    ) {
        if self.follows.unlink(replaced).source {
            self.settle(self.follows.affected(uid, place), now);
        }
    }

    /// All leases have been seen: those that are followed and weren't shown aren't there.
    pub(super) fn settle_followers_of_leases(&mut self, now: &Now) {
        self.settle(self.follows.followers_of_leases(), now);
    }

    // --- What is asked for ---------------------------------------------------------------------------------------

    /// Says what has to be watched, and reads what no watch will show by itself.
    pub(super) fn watch_source(&mut self, now: &Now) {
        if let Some(source_watches) = self.follows.replan() {
            self.out.source_watches = Some(source_watches.clone());
        }
        if now.mono < self.read_sources_at || now.disconnected {
            return;
        }
        for source in self.follows.take_unread() {
            if self.in_flight.len() >= self.settings.concurrency || now.mono < self.patient_until {
                self.follows.read_later(source);
                continue;
            }
            self.send(Cause::Look, read(&source), now.mono + self.settings.lease_duration, now);
        }
    }

    /// When [`watch_source`](Self::watch_source) has something to do if nothing happens before.
    pub(super) fn look_out_at(&self, now: &Now) -> Option<Duration> {
        let at = self.read_sources_at.max(self.patient_until);
        (self.follows.has_unread() && at > now.mono).then_some(at)
    }

    /// A source was read that no watch would have shown by itself.
    pub(super) fn look_answered(&mut self, flight: &Flight, answer: Response, now: &Now) {
        let Request::ReadSource { source } = &flight.request else { return };
        if let Err(refusal) = self.source_answered(source, answer, flight.sent_at, now) {
            tracing::debug!(?source, %refusal, "not read, trying again");
            self.follows.read_later(source.clone());
            self.read_sources_at = now.mono + READ_AGAIN;
        }
    }

    /// What a lease follows was read before its end.
    pub(super) fn confirm_answered(&mut self, uid: Uuid, flight: &Flight, answer: Response, now: &Now) {
        if let Some(entry) = self.leases.get_mut(&uid) {
            entry.in_flight = false;
        }
        let Some(source) = source_of(&flight.request) else { return };
        let read = self.source_answered(&source, answer, flight.sent_at, now);
        if let Err(refusal) = &read {
            tracing::debug!(?source, %refusal, "not read, trying again");
            self.leases.set_confirming(uid, None);
            self.follows.read_failed(&source);
        }
        self.writer.done(&Work::Lease(uid), WorkResult::None, read.is_err(), flight.sent_at, now.mono);
        if read.is_ok() {
            self.enqueue_lease(uid, now);
        }
    }

    /// A follower of the primary has read what a lease follows that seems overdue.
    pub(super) fn source_checked(&mut self, flight: &Flight, answer: Response, now: &Now) {
        let Request::ReadSource { source } = &flight.request else { return };
        if let Err(refusal) = self.source_answered(source, answer, flight.sent_at, now) {
            tracing::debug!(?source, %refusal, "not read");
        }
    }

    /// Takes in a source that was asked for at `asked`, on the replica's clock.
    fn source_answered(
        &mut self,
        source: &Source,
        answer: Response,
        asked: Duration,
        now: &Now,
    ) -> Result<(), RequestError> {
        match answer {
            Response::Source(source_state) => self.see_source(source, Some(*source_state), now),
            Response::Lease(lease) => self.see_lease(&lease, now),
            Response::Gone if source.kind == SourceKind::Lease => {
                if let Some((uid, _)) = self.leases.at(&source.name) {
                    self.bury_lease(uid, now);
                }
            }
            Response::Gone => self.see_source(source, None, now),
            Response::Refused(RequestError::Forbidden(message)) if source.kind != SourceKind::Lease => {
                if self.follows.set_unseen(source, Some(following::UNWATCHED)) {
                    tracing::warn!(?source, message, "what leases follow can't be read, trying again");
                    self.settle_followers(source, now);
                }
                self.follows.read_later(source.clone());
                self.read_sources_at = now.mono + READ_FORBIDDEN_AGAIN;
                return Ok(());
            }
            Response::Refused(refusal) => return Err(refusal),
            Response::Lessor(_) | Response::Object(_) | Response::Deleted => return Ok(()),
        }
        self.follows.read_answered(source, asked, now.mono);
        if self.follows.set_unseen(source, None) {
            self.settle_followers(source, now);
        }
        Ok(())
    }

    /// The request that reads what a lease follows before it ends by time.
    pub(super) fn confirmation(&self, uid: Uuid, now: &Now) -> Option<Request> {
        self.unread_for(uid, now).map(|source| read(&source))
    }

    /// Takes note that this request is sent for a lease that is due.
    pub(super) fn confirming(&mut self, uid: Uuid, request: &Request, now: &Now) {
        self.leases.set_confirming(uid, Some(now.mono));
        if let Some(source) = source_of(request) {
            let (lately, by) = (now.mono.saturating_sub(2 * RECENT), now.mono + self.settings.lease_duration);
            self.follows.read_sent(&source, lately, by);
        }
    }

    /// The first source that has to be read before a lease may end by time, if it is due.
    fn unread_for(&self, uid: Uuid, now: &Now) -> Option<Source> {
        let deadline = self.leases.deadline(uid).filter(|deadline| *deadline <= now.lease)?;
        // Lease time may have been there before, until an outage was noticed: what was read then says nothing of beats since.
        let due = now.mono.saturating_sub(now.lease.since(deadline));
        let fresh = now.mono.saturating_sub(RECENT);
        let more = self.leases.get(&uid).and_then(|entry| entry.more.get());
        // A server may need longer than that for all that has to be asked, one after the other.
        let begun = more.and_then(|more| more.confirming).unwrap_or(fresh);
        self.follows.unread_for(uid, due, fresh.min(begun), now.mono)
    }

    /// Whether what a lease follows keeps it alive, and what people should know of it.
    pub(super) fn explain_following(&self, uid: Uuid) -> Option<(bool, String)> {
        let (alive, reason) = self.follows.state_of(uid)?.condition()?;
        let source = self.follows.source_of(uid)?.to_string();
        let followed =
            Followed { source: source.into(), uid: None, condition: Some((alive, reason.into(), 0)) };
        Some((alive, followed.explain()))
    }

    /// What has to be read beside the lease itself, before this replica takes over since it is overdue: its own watch of
    /// sources may be what is late.
    pub(super) fn also_checked(&self, work: &Work, flight: &Flight, now: &Now) -> Option<Request> {
        let (Work::Lease(uid), Request::ReadLease { .. }) = (work, &flight.request) else { return None };
        self.confirmation(*uid, now).filter(|request| matches!(request, Request::ReadSource { .. }))
    }

    /// What a lease follows, for its next step.
    pub(super) fn following(&self, uid: Uuid, now: &Now) -> Option<Following<'_>> {
        let source = self.follows.source_of(uid)?;
        Some(Following {
            source,
            uid: self.follows.pod_uid_of(uid),
            condition: self.follows.state_of(uid)?.condition(),
            unread: self.unread_for(uid, now).is_some(),
        })
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

fn read(source: &Source) -> Request {
    match source.kind {
        SourceKind::Lease => Request::ReadLease { lease: source.name.clone() },
        _ => Request::ReadSource { source: source.clone() },
    }
}
