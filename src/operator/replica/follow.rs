//! Leases that follow something: taking in what is seen of sources, and letting their followers live by it.

use std::{collections::HashSet, time::Duration};

use uuid::Uuid;

use super::{Cause, FRESH, Flight, Replica, Work};
use crate::{
    api::lease::following,
    operator::{
        deed::Deed,
        follow::{Lookout, Sighting, Source, SourceKind, Standing, Time, Turn, View},
        hearing::Now,
        leases::Change,
        published::Followed,
        record::Place,
        request::{Answer, Refusal, Request},
        step::Following,
        watches::Seen,
    },
    writer_lease::WorkResult,
};

/// What the API server's record of the last beat leaves open, beside the skew of clocks: it is in whole seconds.
const RESOLUTION: Duration = Duration::from_secs(1);
/// How long to wait before a source is read again that could not be read.
const READ_AGAIN: Duration = Duration::from_secs(2);
/// The same, where somebody has to give a right first.
const READ_FORBIDDEN_AGAIN: Duration = Duration::from_secs(15);

impl Replica {
    /// Takes in what a lookout shows.
    pub(super) fn observe_source(&mut self, lookout: &Lookout, seen: Seen<Sighting>, now: &Now) {
        let source = |place: &Place| Source { kind: lookout.kind, place: place.clone() };
        match seen {
            Seen::There(sighting) => self.see_source(&source(&sighting.place), Some(*sighting), now),
            Seen::Gone(sighting) => {
                let source = source(&sighting.place);
                if self.follows.lose(&source, sighting.version) {
                    self.settle_followers(&source, now);
                }
            }
            Seen::All(there) => {
                for source in self.follows.synced(lookout, &there) {
                    self.see_source(&source, None, now);
                }
                self.set_unseen(lookout, None, now);
            }
            Seen::Interrupted => {}
            Seen::Resumed => drop(self.set_unseen(lookout, None, now)),
            // Whatever may pass by itself is waited for: each end asks for the source by itself.
            Seen::Failing(failure) if failure.is_transient() => {
                tracing::debug!(%lookout, %failure, "watch of what leases follow fails, trying again");
            }
            Seen::Failing(failure) => {
                if self.set_unseen(lookout, Some(following::UNWATCHED), now) {
                    tracing::warn!(%lookout, %failure, "what leases follow can't be watched, trying again");
                }
            }
        }
    }

    /// The sources that a lookout shows can't be seen, or can be again. Answers whether that is news.
    fn set_unseen(&mut self, lookout: &Lookout, unseen: Option<&'static str>, now: &Now) -> bool {
        let mut news = false;
        for source in self.follows.shown_by(lookout) {
            if self.follows.set_unseen(&source, unseen) {
                news = true;
                self.settle_followers(&source, now);
            }
        }
        news
    }

    /// Takes in a sight of a source; `None`: it isn't there.
    pub(super) fn see_source(&mut self, source: &Source, sighting: Option<Sighting>, now: &Now) {
        let slack = RESOLUTION + self.settings.max_clock_skew;
        let (changed, beat) = self.follows.see(source, sighting, now.lease, now.server, slack);
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
                if matches!(self.follows.view_of(uid), Some(View::Refused(_))) {
                    continue;
                }
                let noticed = self.leases.get(&uid).is_some_and(|entry| {
                    let warned = entry.record.status.is_expiring();
                    warned || entry.due().is_some() || entry.handed_out || entry.record.suspend
                });
                if !self.leases.follow_beat(uid, age, now) {
                    continue;
                }
                renewed += 1;
                if noticed {
                    self.touch_lease(uid, now);
                }
                if let Some(place) = self.follows.place_of(uid) {
                    let next = Source::lease(place.clone());
                    if self.follows.is_followed(&next) && passed.insert(next.clone()) {
                        sources.push(next);
                    }
                }
            }
            if renewed > 0 && self.leading.is_some() {
                self.out.deeds.push(Deed::Followed(source.kind, renewed));
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
                let since_beat = self.follows.source_of(uid).and_then(|source| match source.kind {
                    SourceKind::Lease => self.leases.since_renewal(&source.place, now),
                    _ => self.follows.since_beat(source, now.lease),
                });
                self.leases.turn(uid, turn, since_beat, now);
                if let Some(place) = self.follows.place_of(uid) {
                    followers.extend(self.follows.followers(&Source::lease(place.clone())));
                }
                self.touch_lease(uid, now);
            }
        }
    }

    /// Takes in a version of a lease: what it follows may have changed, and it may be followed itself.
    pub(super) fn see_follower(&mut self, uid: Uuid, place: &Place, change: Change, now: &Now) {
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
        let restored = (change.new && record.status.is_granted())
            .then(|| followed.and_then(Followed::was_alive));
        let recorded = followed.and_then(|followed| followed.uid);
        let (follows, stood) = (follow.is_some(), entry.standing);
        let linked = self.follows.link(uid, place, follow, recorded, restored);
        if change.granted {
            self.follows.granted(uid);
        }
        let as_source = Source::lease(place.clone());
        let is_followed = self.follows.is_followed(&as_source);
        if is_followed && (change.granted || change.renewed) {
            self.spread_beat(&as_source, Duration::ZERO, now);
        }
        if linked.cut || linked.source && stood != Standing::Running {
            // Its time stood still, or was cut short, for what it followed before.
            let time = if linked.cut { Time::Renew } else { Time::Keep };
            self.leases.turn(uid, Turn { time, standing: Standing::Running }, None, now);
        }
        if linked.source {
            self.settle(self.follows.concerned(uid, place), now);
        } else {
            self.settle(follows.then_some(uid).into_iter().collect(), now);
            if is_followed {
                self.settle_followers(&as_source, now);
            }
        }
    }

    /// A lease is gone.
    pub(super) fn lose_follower(&mut self, uid: Uuid, place: &Place, now: &Now) {
        if self.follows.is_idle() {
            return;
        }
        self.follows.unlink(uid);
        self.settle_followers(&Source::lease(place.clone()), now);
    }

    /// A lease is gone, and another has its name: those that follow it may follow the same as before.
    pub(super) fn lose_replaced_follower(&mut self, replaced: Uuid, uid: Uuid, place: &Place, now: &Now) {
        if self.follows.unlink(replaced).source {
            self.settle(self.follows.concerned(uid, place), now);
        }
    }

    /// All leases have been seen: those that are followed and weren't shown aren't there.
    pub(super) fn settle_followers_of_leases(&mut self, now: &Now) {
        self.settle(self.follows.followers_of_leases(), now);
    }

    // --- What is asked for ---------------------------------------------------------------------------------------

    /// Says what has to be watched, and reads what no watch will show by itself.
    pub(super) fn look_out(&mut self, now: &Now) {
        if let Some(lookouts) = self.follows.replan() {
            self.out.lookouts = Some(lookouts.clone());
        }
        if now.mono < self.read_sources_at || now.deaf {
            return;
        }
        for source in self.follows.take_unread() {
            if self.flights.len() >= self.settings.concurrency || now.mono < self.patient_until {
                self.follows.leave_unread(source);
                continue;
            }
            self.send(Cause::Look, read(&source), now.mono + self.settings.lease_duration, now);
        }
    }

    /// When [`look_out`](Self::look_out) has something to do if nothing happens before.
    pub(super) fn look_out_at(&self, now: &Now) -> Option<Duration> {
        let at = self.read_sources_at.max(self.patient_until);
        (self.follows.has_unread() && at > now.mono).then_some(at)
    }

    /// A source was read that no watch would have shown by itself.
    pub(super) fn look_answered(&mut self, flight: &Flight, answer: Answer, now: &Now) {
        let Request::ReadSource { source } = &flight.request else { return };
        if let Err(refusal) = self.source_answered(source, answer, flight.sent_at, now) {
            tracing::debug!(?source, %refusal, "not read, trying again");
            self.follows.leave_unread(source.clone());
            self.read_sources_at = now.mono + READ_AGAIN;
        }
    }

    /// What a lease follows was read before its end.
    pub(super) fn confirm_answered(&mut self, uid: Uuid, flight: &Flight, answer: Answer, now: &Now) {
        if let Some(entry) = self.leases.get_mut(&uid) {
            entry.in_flight = false;
        }
        let Some(source) = source_of(&flight.request) else { return };
        let read = self.source_answered(&source, answer, flight.sent_at, now);
        if let Err(refusal) = &read {
            tracing::debug!(?source, %refusal, "not read, trying again");
            self.leases.set_confirming(uid, None);
            self.follows.was_not_read(&source);
        }
        self.writer.done(&Work::Lease(uid), WorkResult::None, read.is_err(), flight.sent_at, now.mono);
        if read.is_ok() {
            self.touch_lease(uid, now);
        }
    }

    /// A follower of the primary has read what a lease follows that seems overdue.
    pub(super) fn source_checked(&mut self, flight: &Flight, answer: Answer, now: &Now) {
        let Request::ReadSource { source } = &flight.request else { return };
        if let Err(refusal) = self.source_answered(source, answer, flight.sent_at, now) {
            tracing::debug!(?source, %refusal, "not read");
        }
    }

    /// Takes in a source that was asked for at `asked`, on the replica's clock.
    fn source_answered(
        &mut self,
        source: &Source,
        answer: Answer,
        asked: Duration,
        now: &Now,
    ) -> Result<(), Refusal> {
        match answer {
            Answer::Source(sighting) => self.see_source(source, Some(*sighting), now),
            Answer::Lease(lease) => self.see_lease(&lease, now),
            Answer::Gone if source.kind == SourceKind::Lease => {
                if let Some((uid, _)) = self.leases.at(&source.place) {
                    self.bury_lease(uid, now);
                }
            }
            Answer::Gone => self.see_source(source, None, now),
            Answer::Refused(Refusal::Forbidden(message)) if source.kind != SourceKind::Lease => {
                if self.follows.set_unseen(source, Some(following::UNWATCHED)) {
                    tracing::warn!(?source, message, "what leases follow can't be read, trying again");
                    self.settle_followers(source, now);
                }
                self.follows.leave_unread(source.clone());
                self.read_sources_at = now.mono + READ_FORBIDDEN_AGAIN;
                return Ok(());
            }
            Answer::Refused(refusal) => return Err(refusal),
            Answer::Lessor(_) | Answer::Object(_) | Answer::Deleted => return Ok(()),
        }
        self.follows.was_read(source, asked, now.mono);
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
            let (lately, by) = (now.mono.saturating_sub(2 * FRESH), now.mono + self.settings.lease_duration);
            self.follows.reads(&source, lately, by);
        }
    }

    /// The first source that has to be read before a lease may end by time, if it is due.
    fn unread_for(&self, uid: Uuid, now: &Now) -> Option<Source> {
        let deadline = self.leases.deadline(uid).filter(|deadline| *deadline <= now.lease)?;
        // Lease time may have been there before, until an outage was noticed: what was read then says nothing of beats since.
        let due = now.mono.saturating_sub(now.lease.since(deadline));
        let fresh = now.mono.saturating_sub(FRESH);
        let more = self.leases.get(&uid).and_then(|entry| entry.more.get());
        // A server may need longer than that for all that has to be asked, one after the other.
        let begun = more.and_then(|more| more.confirming).unwrap_or(fresh);
        self.follows.unread_for(uid, due, fresh.min(begun), now.mono)
    }

    /// Whether what a lease follows keeps it alive, and what people should know of it.
    pub(super) fn explain_following(&self, uid: Uuid) -> Option<(bool, String)> {
        let (alive, reason) = self.follows.view_of(uid)?.condition()?;
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
            uid: self.follows.pin_of(uid),
            condition: self.follows.view_of(uid)?.condition(),
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
        SourceKind::Lease => Request::ReadLease { lease: source.place.clone() },
        _ => Request::ReadSource { source: source.clone() },
    }
}
