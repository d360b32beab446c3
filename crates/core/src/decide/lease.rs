//! What is next for a lease: a pure function of a [`LeaseView`].
//!
//! It is called after everything that affects the lease, so it needs no memory of earlier steps. A replica that starts or takes
//! over in the middle of an end continues like the one before.

use std::time::Duration;

use lease_engine::LeaseTime;
use lessor_api::lease::Attached;
use uuid::Uuid;

use super::expiry::{Evidence, Expiry, Need, Obstacle, RECENT, Turn, may_end};
use crate::{
    api_seconds::{rounded_down, rounded_up, seconds},
    clocks::Now,
    index::{leases::GrantedTime, sources::Source},
    lease_object::LeaseObject,
    lease_status::{Followed, Grant, Released, State, StatusSnapshot},
    settings::Settings,
    unix_millis::{from_millis, millis},
};

/// What a lease follows, and whether that keeps it alive.
#[derive(Clone, Copy, Debug)]
pub struct Following<'a> {
    /// The source.
    pub source: &'a Source,
    /// The uid of the source, if it is a Pod.
    pub uid: Option<Uuid>,
    /// The condition `Following`: its status and reason. `None`: unknown.
    pub condition: Option<(bool, &'static str)>,
    /// Whether the source has to be read before the lease may end by time.
    pub unread: bool,
}

/// Everything that the next step of a lease depends on.
#[derive(Clone, Copy, Debug)]
pub struct LeaseView<'a> {
    /// The newest version of the lease.
    pub record: &'a LeaseObject,
    /// Whether it has changed since.
    pub stale: bool,
    /// Whether this primary has yet to write to it.
    pub inherited: bool,
    /// Its time; `None` before the grant and after the end.
    pub granted: Option<GrantedTime>,
    /// The deadline that `status.expiryTime` stands for, in lease time.
    pub published_deadline: Option<LeaseTime>,
    /// Whether the deadline has come nearer since.
    pub nearer: bool,
    /// When the lease was granted, if its status has an earlier time.
    pub granted_by: Option<i64>,
    /// When its status was last written.
    pub written_at: Option<Duration>,
    /// Whether its release was sent: what is attached from then on doesn't belong to it.
    pub releasing: bool,
    /// What is attached to it now.
    pub attached: Attached,
    /// Why its attachments can't be removed, if so: a CamelCase reason, and a message for users.
    pub hindrance: Option<(&'static str, &'a str)>,
    /// Until when it remains after its end, for attachments that were not observed yet.
    pub linger_until: Duration,
    /// What it follows.
    pub following: Option<Following<'a>>,
    /// Whether it is its turn to end.
    pub turn: Turn,
    /// When the last accepted write of a lease or of the `Lessor` was sent.
    pub last_write: Duration,
    /// What keeps this replica from ending it at all.
    pub obstacle: Option<Obstacle>,
    /// The settings.
    pub settings: &'a Settings,
    /// The clocks.
    pub now: &'a Now,
}

/// What is next for a lease.
#[derive(Clone, Debug, PartialEq)]
pub enum NextStep {
    /// Nothing until something changes.
    Rest,
    /// Nothing before this time, on the replica's clock.
    Wait(Duration),
    /// This request, sent by the primary. A primary that doesn't is deposed.
    Send(LeaseRequest),
    /// This status, written by the primary when the budget of refreshes allows.
    Refresh(Box<StatusSnapshot>),
    /// Nothing: its end is due, and this keeps the replica from it.
    Blocked(Obstacle),
}

/// A request for one lease.
#[derive(Clone, Debug, PartialEq)]
pub enum LeaseRequest {
    /// Read it: it has changed.
    Read,
    /// Add our finalizer.
    AddFinalizer,
    /// Write its status: the grant.
    Grant(Box<StatusSnapshot>),
    /// Read this before it ends: its time seems to be over.
    Confirm(Confirm),
    /// Write its status: the end.
    End(Box<StatusSnapshot>),
    /// Write its status: a change that its holder or others wait for.
    Publish(Box<StatusSnapshot>),
    /// Remove our finalizer: it is released.
    RemoveFinalizer,
    /// Delete it.
    Delete,
}

/// What is read before a lease ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confirm {
    /// The lease itself: the API server has to respond.
    Lease,
    /// Its source.
    Source,
}

/// The least time between two writes of the number of attachments alone.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);
/// A deadline that has moved by less isn't published again.
const TOLERANCE: Duration = Duration::from_millis(50);

impl LeaseView<'_> {
    /// What is next for the lease.
    pub fn step(&self) -> NextStep {
        if self.stale {
            return NextStep::Send(LeaseRequest::Read);
        }
        let record = self.record;
        if record.status.has_ended() {
            return self.after_the_end();
        }
        if record.deleting {
            // Without our finalizer the API server removes the object.
            return if !record.has_finalizer {
                NextStep::Rest
            } else if self.obstacle == Some(Obstacle::DryRun) {
                NextStep::Blocked(Obstacle::DryRun)
            } else if self.now.since_last_response > RECENT {
                NextStep::Send(LeaseRequest::Confirm(Confirm::Lease))
            } else {
                NextStep::Send(LeaseRequest::End(self.end(State::Revoked)))
            };
        }
        if !record.has_finalizer && !self.settings.dry_run {
            return NextStep::Send(LeaseRequest::AddFinalizer);
        }
        match self.granted {
            None if record.status.is_granted() => NextStep::Rest,
            None => NextStep::Send(LeaseRequest::Grant(self.grant())),
            Some(granted) => match may_end(&self.evidence(granted), self.now) {
                Expiry::End => NextStep::Send(LeaseRequest::End(self.end(State::Expired))),
                Expiry::Need(Need::Response) => NextStep::Send(LeaseRequest::Confirm(Confirm::Lease)),
                Expiry::Need(Need::Source) => NextStep::Send(LeaseRequest::Confirm(Confirm::Source)),
                Expiry::Never(obstacle) => NextStep::Blocked(obstacle),
                // The engine hands it out later.
                Expiry::Need(Need::Write | Need::Turn) => self.while_active(granted, None),
                // The engine hands it out at its deadline. For a later time it needs a timer.
                Expiry::NotDue(at) => self.while_active(granted, granted.overdue.map(|_| at)),
            },
        }
    }

    fn evidence(&self, granted: GrantedTime) -> Evidence {
        Evidence {
            deadline: granted.deadline,
            capped: granted.capped,
            turn: self.turn,
            last_write: self.last_write,
            source_read: self.following.is_none_or(|following| !following.unread),
            obstacle: self.obstacle,
        }
    }

    fn while_active(&self, granted: GrantedTime, again_at: Option<Duration>) -> NextStep {
        let (old, new) = (&self.record.status, self.current(granted));
        let pod = |status: &StatusSnapshot| status.follows().and_then(|follows| follows.uid);
        let follows = old.follows().is_some() || new.follows().is_some();
        let awaited = old.state() != new.state()
            || old.remaining_seconds() != new.remaining_seconds()
            || old.grant != new.grant
            || (old.expiry.is_some() != new.expiry.is_some() && !follows)
            // A replica that starts later must know which Pod it is.
            || pod(old) != pod(&new)
            || self.nearer;
        if awaited {
            return NextStep::Send(LeaseRequest::Publish(Box::new(new)));
        }
        if old.follows() != new.follows() || old.expiry.is_some() != new.expiry.is_some() {
            // For users, and perhaps for many leases at once.
            return NextStep::Refresh(Box::new(new));
        }

        let mut wake = again_at;
        let mut at = |time: Duration| wake = Some(wake.map_or(time, |wake: Duration| wake.min(time)));
        if old.is_expiring() != new.is_expiring() {
            let next = if new.is_expiring() { Duration::ZERO } else { self.withdraws_warning_at(granted) };
            if next <= self.now.mono {
                return NextStep::Refresh(Box::new(new));
            }
            at(next);
        }
        // A replica that starts may find an `expiryTime` that is too late. The slack is for its own clock.
        if let (Some(deadline), Some(published)) = (granted.deadline, self.published_deadline)
            && deadline + self.settings.max_clock_skew + COUNT_INTERVAL < published
        {
            return NextStep::Refresh(Box::new(new));
        }
        // Renewals have moved the deadline, and half of the published time is over. At most once within half a TTL: what is
        // published just before a renewal is outdated soon after.
        if let (Some(deadline), Some(published)) = (granted.deadline, self.published_deadline)
            && deadline > published + TOLERANCE
        {
            let half = granted.ttl / 2;
            let written = self.written_at.map_or(Duration::ZERO, |written| written.saturating_add(half));
            let next = self.mono_of(published).saturating_sub(half).max(written);
            if next <= self.now.mono {
                return NextStep::Refresh(Box::new(new));
            }
            at(next);
        }
        if old.attached != new.attached {
            let next = self.written_at.map_or(Duration::ZERO, |written| written + COUNT_INTERVAL);
            if next <= self.now.mono {
                return NextStep::Refresh(Box::new(new));
            }
            at(next);
        }
        if let (Some(warn), Some(deadline)) = (self.warn_before(), granted.deadline)
            && granted.remaining > warn
        {
            at(self.mono_of(deadline).saturating_sub(warn));
        }
        wake.map_or(NextStep::Rest, NextStep::Wait)
    }

    fn after_the_end(&self) -> NextStep {
        let record = self.record;
        if !record.has_finalizer {
            let stays = record.deleting || (record.retain && record.status.state() == Some(State::Expired));
            return if stays { NextStep::Rest } else { NextStep::Send(LeaseRequest::Delete) };
        }
        if self.releasing {
            return NextStep::Send(LeaseRequest::RemoveFinalizer);
        }
        if self.attached != Attached::default() {
            // An earlier primary may have sent the release, and the attachments may be for the next lease of this name. This write
            // invalidates such a release.
            if self.inherited {
                let mut status = record.status.clone();
                status.attached = Some(self.attached);
                return NextStep::Send(LeaseRequest::Publish(Box::new(status)));
            }
            return match self.hindrance {
                Some((reason, message)) if !self.has_published(reason, message) => {
                    NextStep::Refresh(self.released(false, reason, message))
                }
                _ => NextStep::Rest,
            };
        }
        if self.now.mono < self.linger_until {
            return NextStep::Wait(self.linger_until);
        }
        let is_published = record.status.released().is_some_and(|(released, _)| released.done);
        if record.retain && !record.deleting && !is_published {
            return NextStep::Send(LeaseRequest::Publish(self.released(
                true,
                "Complete",
                "all that was attached is gone",
            )));
        }
        NextStep::Send(LeaseRequest::RemoveFinalizer)
    }

    /// The status of the grant.
    fn grant(&self) -> Box<StatusSnapshot> {
        let ttl = self.settings.granted_ttl(self.record.ttl_seconds);
        let time = millis(self.now.server.unwrap_or(self.now.wall));
        let mut status = self.record.status.clone();
        status.grant = Some(Grant {
            ttl_seconds: rounded_down(ttl),
            time,
            token: i64::try_from(self.record.version).unwrap_or(i64::MAX),
        });
        let cap = self.record.max_lifetime_seconds().map(seconds);
        let remaining = cap.map_or(ttl, |cap| cap.min(ttl));
        let deadline = Some(self.now.lease + remaining);
        let granted = GrantedTime { ttl, deadline, remaining, left: ttl, overdue: None, capped: false };
        Box::new(self.with_current(status, granted))
    }

    /// The status of the end.
    fn end(&self, state: State) -> Box<StatusSnapshot> {
        let wall = millis(self.now.wall);
        let mut status = self.record.status.clone();
        status.end = Some(wall);
        status.expiry = None;
        status.set_remaining_seconds(None);
        status.spec_generation = Some(self.record.generation);
        status.attached = Some(self.attached);
        status.set_state(state, wall);
        // The Pod that was lost may not have been published yet.
        self.set_follows(&mut status);
        status.clear_conditions();
        Box::new(status)
    }

    fn set_follows(&self, status: &mut StatusSnapshot) {
        match self.following {
            None => status.follow_nothing(),
            Some(Following { source, uid, condition, .. }) => {
                status.set_follows(source.to_string(), uid, condition, millis(self.now.wall));
            }
        }
    }

    /// The status that is right now.
    fn current(&self, granted: GrantedTime) -> StatusSnapshot {
        self.with_current(self.record.status.clone(), granted)
    }

    fn with_current(&self, mut status: StatusSnapshot, granted: GrantedTime) -> StatusSnapshot {
        let wall = millis(self.now.wall);
        status.spec_generation = Some(self.record.generation);
        status.attached = Some(self.attached);
        if let Some(grant) = &mut status.grant {
            grant.ttl_seconds = rounded_down(granted.ttl);
            grant.time = self.granted_by.map_or(grant.time, |by| by.max(grant.time));
        }
        self.set_follows(&mut status);
        let expiring =
            self.warn_before().is_some_and(|warn| granted.remaining <= warn && !self.record.suspend);
        if expiring || status.expiring().is_some() {
            status.set_expiring(expiring, wall);
        }
        if self.record.suspend {
            status.set_state(State::Suspended, wall);
            status.expiry = None;
            // The engine rounds up to milliseconds, which must not make a whole second more.
            let remaining = rounded_up(granted.left.saturating_sub(Duration::from_millis(1)));
            status.set_remaining_seconds(Some(remaining));
        } else {
            status.set_state(State::Granted, wall);
            status.set_remaining_seconds(None);
            status.expiry = granted.deadline.map(|deadline| {
                let remaining = deadline.since(self.now.lease);
                wall.saturating_add(i64::try_from(remaining.as_millis()).unwrap_or(i64::MAX))
            });
            // At most the latest time that the API can represent.
            status.expiry = status.expiry.map(|expiry| millis(from_millis(expiry)));
            // While its source keeps it alive, no time at which it would end otherwise is published.
            if !expiring && status.follows().is_some_and(Followed::is_alive) {
                status.expiry = None;
            }
        }
        status
    }

    fn released(&self, done: bool, reason: &str, message: &str) -> Box<StatusSnapshot> {
        let mut status = self.record.status.clone();
        status.attached = Some(self.attached);
        let released = Released { done, reason: reason.into(), message: message.into() };
        status.set_released(released, millis(self.now.wall));
        Box::new(status)
    }

    fn has_published(&self, reason: &str, message: &str) -> bool {
        let released = self.record.status.released();
        released.is_some_and(|(released, _)| {
            !released.done && *released.reason == *reason && *released.message == *message
        })
    }

    /// When the warning of a lease that was renewed is withdrawn. A lease that is renewed in time reaches the warning
    /// nevertheless if it begins in the first third of the TTL. Then that is done once within half a TTL, so that the condition
    /// isn't written twice for each renewal.
    fn withdraws_warning_at(&self, granted: GrantedTime) -> Duration {
        let begins_early = self.warn_before().is_some_and(|warn| warn > granted.ttl * 2 / 3);
        let written = self.written_at.filter(|_| begins_early);
        written.map_or(Duration::ZERO, |written| written.saturating_add(granted.ttl / 2))
    }

    fn warn_before(&self) -> Option<Duration> {
        self.record.warn_before_seconds().map(seconds)
    }

    /// When a time of lease time comes, on the replica's clock, without an outage.
    fn mono_of(&self, time: LeaseTime) -> Duration {
        self.now.mono.saturating_add(time.since(self.now.lease))
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;
    use lessor_api::Lease;
    use serde_json::json;

    use super::*;

    const TTL: u64 = 10;

    /// What is next, `now` seconds after the start, for a lease that was renewed and published this long after it.
    fn step(now: u64, renewed: u64, published: u64) -> NextStep {
        let lease: Lease = serde_json::from_value(json!({
            "metadata": {
                "namespace": "default", "name": "a", "uid": "6f0f6c6e-0000-4000-8000-000000000001",
                "resourceVersion": "1", "generation": 1, "finalizers": ["lessor.dev/revoke"],
            },
            "spec": {"ttlSeconds": TTL},
            "status": {
                "conditions": [{
                    "type": "Active", "status": "True", "reason": "Granted", "message": "",
                    "lastTransitionTime": "2026-01-31T12:00:00Z",
                }],
                "specGeneration": 1, "grantedTTLSeconds": TTL, "grantTime": "2026-01-31T12:00:00.000000Z",
                "expiryTime": "2026-01-31T12:00:10.000000Z", "attached": {"objects": 0, "keys": 0},
            },
        }))
        .expect("a lease");
        let record = LeaseObject::read(&lease).expect("a record");
        let at = |seconds: u64| LeaseTime::from_duration(Duration::from_secs(seconds));
        let remaining = at(renewed + TTL).since(at(now));
        let granted = GrantedTime {
            ttl: Duration::from_secs(TTL),
            deadline: Some(at(renewed + TTL)),
            remaining,
            left: remaining,
            overdue: None,
            capped: false,
        };
        let now = Now {
            mono: Duration::from_secs(now),
            lease: at(now),
            wall: Timestamp::UNIX_EPOCH,
            server: None,
            since_last_response: Duration::ZERO,
            disconnected: false,
        };
        let view = LeaseView {
            record: &record,
            stale: false,
            inherited: false,
            granted: Some(granted),
            // Written when it was published, with the deadline of a renewal one second before.
            published_deadline: Some(at(published - 1 + TTL)),
            nearer: false,
            granted_by: None,
            releasing: false,
            written_at: Some(Duration::from_secs(published)),
            attached: Attached::default(),
            hindrance: None,
            linger_until: Duration::ZERO,
            following: None,
            turn: Turn::Reached,
            last_write: Duration::ZERO,
            obstacle: None,
            settings: &Settings::default(),
            now: &now,
        };
        view.step()
    }

    #[test]
    fn a_deadline_is_published_anew_once_less_than_half_is_left_of_what_was() {
        assert_eq!(step(20, 20, 20), NextStep::Wait(Duration::from_secs(25)));
        assert!(matches!(step(25, 24, 20), NextStep::Refresh(_)));
    }

    #[test]
    fn a_deadline_is_published_anew_no_more_than_once_within_half_a_ttl() {
        // Less than half is left already at 24.
        assert_eq!(step(24, 23, 20), NextStep::Wait(Duration::from_secs(25)));
    }

    #[test]
    fn a_deadline_that_no_renewal_has_moved_is_not_published_again() {
        assert_eq!(step(26, 19, 20), NextStep::Rest);
    }
}
