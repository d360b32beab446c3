//! From the response to a request to the index, and to what users are notified of.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lessor_api::{Key, Lease, lease::Attached};
use uuid::Uuid;
use writer_lease::WorkResult;

use super::{
    Replica, Ticket, Work, kinds,
    requests::{InFlight, LeaseAction, Purpose},
};
use crate::{
    clocks::Now,
    decide::{
        lease::{LeaseRequest, NextStep},
        removal::Removal,
    },
    index::{
        attachments::{Hindrance, Object, ObjectId},
        leases::{Entry, Failure, Pending},
    },
    metadata::{NamespacedName, ResourceVersion, version_of},
    metric_event::MetricEvent,
    request::{Request, RequestError, Response},
    user_event::{About, UserEvent},
};

/// How long nothing is sent after a 429 of the API server's own without `Retry-After`.
const PATIENCE: Duration = Duration::from_secs(1);

impl Replica {
    /// Applies the response to a request.
    pub fn answer(&mut self, ticket: Ticket, response: Response, now: &Now) {
        let Some(request) = self.requests.answered(ticket) else { return };
        self.compare_versions(&request, &response);
        if let Response::Refused(RequestError::Throttled(wait)) = &response
            && request.request.is_for_leases()
        {
            // Longer, and followers would take the primary for dead.
            let wait = wait.unwrap_or(PATIENCE).min(self.settings.lease_duration * 2 / 5);
            self.requests.throttle(now.mono.saturating_add(wait));
        }
        match request.purpose {
            Purpose::Probe => {
                self.liveness.probed(now);
                if let Response::Lessor(lessor) = &response {
                    if matches!(request.request, Request::WriteLessor { .. }) {
                        self.liveness.write_accepted(request.sent_at);
                    }
                    self.apply_lessor(lessor, request.written_at(now), now);
                }
                self.challenge_refused = matches!(response, Response::Refused(RequestError::Conflict));
            }
            Purpose::Lease(uid, LeaseAction::ReadSource) => {
                self.source_read_for(uid, &request, response, now);
            }
            Purpose::Lease(uid, action) => self.lease_answered(uid, action, &request, response, now),
            Purpose::Removal(ref id, version, ref leases) => {
                self.object_answered(id, version, leases, &request, response, now);
            }
            Purpose::Election => self.election_answered(&request, &response, now),
            Purpose::Check(ref work) => self.check_answered(work, &request, response, now),
            Purpose::KindsCondition => self.kinds_answered(&response, now),
            Purpose::Source => self.source_answered(&request, response, now),
        }
        self.follow_role(now);
    }

    /// The version in which our `Lessor` or a lease is known that this request reads; zero: it isn't, or it is no such read.
    pub(super) fn known_version(&self, request: &Request) -> ResourceVersion {
        let known = match request {
            Request::ReadLessor => self.leadership.lessor().map(|lessor| lessor.version),
            Request::ReadLease { lease } => {
                self.index.leases.at(lease).map(|(_, entry)| entry.record.version)
            }
            _ => None,
        };
        known.unwrap_or_default()
    }

    /// A read shows whether the storage has gone back. An object that was deleted and made anew has another uid, and a higher
    /// version all the same.
    fn compare_versions(&mut self, request: &InFlight, response: &Response) {
        let found = match (&request.request, response) {
            (Request::ReadLessor, Response::Lessor(lessor)) => &lessor.metadata.resource_version,
            (Request::ReadLease { .. }, Response::Lease(lease)) => &lease.metadata.resource_version,
            _ => return,
        };
        if let Ok(found) = version_of(found.as_deref()) {
            self.store.compare(request.known, found);
        }
    }

    /// The request of a lease was answered: it stays queued for a retry, or waits for nothing until it is enqueued anew.
    pub(super) fn lease_done(
        &mut self,
        uid: Uuid,
        result: WorkResult,
        retry: bool,
        sent_at: Duration,
        now: &Now,
    ) {
        if let Some(entry) = self.index.leases.get_mut(&uid) {
            entry.pending = match entry.pending {
                Pending::InFlight { refresh: true } if retry => Pending::QueuedRefresh,
                _ if retry => Pending::Queued,
                _ => Pending::Idle,
            };
        }
        self.leadership.finish(&Work::Lease(uid), result, retry, sent_at, now.mono);
    }

    // --- Leases --------------------------------------------------------------------------------------------------

    fn lease_answered(
        &mut self,
        uid: Uuid,
        action: LeaseAction,
        request: &InFlight,
        response: Response,
        now: &Now,
    ) {
        let is_read = action == LeaseAction::Read;
        let of_end = is_of_end(action);
        let (result, retry) = match &response {
            Response::Lease(_) if is_read => (WorkResult::None, false),
            Response::Lease(_) | Response::Object(_) | Response::Lessor(_) | Response::Deleted => {
                (WorkResult::Extend, false)
            }
            Response::Gone | Response::Source(_) => (WorkResult::None, false),
            Response::Refused(RequestError::Conflict) if self.is_unchanged(uid, &request.request) => {
                let note = "the API server reports a conflict though the lease has not changed: look for an admission webhook";
                self.warn_once(uid, "WriteRefused", || note.to_owned());
                self.set_failure(uid, "Conflict", true, of_end, Duration::ZERO, now);
                (WorkResult::None, true)
            }
            Response::Refused(error) => {
                self.lease_refused(uid, action, error, now);
                (WorkResult::None, !matches!(error, RequestError::Conflict | RequestError::LowerTerm))
            }
        };
        self.lease_done(uid, result, retry, request.sent_at, now);
        let mut failure = None;
        if result == WorkResult::Extend {
            self.liveness.write_accepted(request.sent_at);
            failure = self.take_failure(uid, now);
        }
        match response {
            Response::Lease(lease) => {
                if !is_read {
                    self.report_action(uid, action, &request.request, now);
                }
                if is_last_version(&lease) {
                    self.lease_gone(uid, now);
                } else {
                    self.apply_lease(&lease, now);
                    self.look_whether_kept(uid, &lease, &request.request, failure, now);
                }
            }
            Response::Deleted | Response::Gone => self.lease_gone(uid, now),
            _ => self.enqueue_lease(uid, now),
        }
    }

    /// A response shows that a lease is gone, whatever the watch reports later.
    pub(super) fn lease_gone(&mut self, uid: Uuid, now: &Now) {
        self.index.leases.mark_gone(uid);
        self.remove_lease(uid, ResourceVersion::MAX, now);
    }

    /// Whether this is the second conflict at one version of a lease, which was read between them.
    fn is_unchanged(&mut self, uid: Uuid, request: &Request) -> bool {
        let (Some(entry), Some(version)) = (self.index.leases.get_mut(&uid), request.version()) else {
            return false;
        };
        entry.more.change(|more| more.conflict_at.replace(version)) == Some(version)
    }

    fn lease_refused(&mut self, uid: Uuid, action: LeaseAction, error: &RequestError, now: &Now) {
        self.index.leases.set_confirming(uid, None);
        let is_new = self.lease_failed(uid, is_of_end(action), error, now);
        let Some(entry) = self.index.leases.get_mut(&uid) else { return };
        let lease = &entry.record.name;
        match error {
            // It has changed, or was perhaps written though no response arrived: read it before anything else.
            RequestError::Conflict | RequestError::LowerTerm | RequestError::NoAnswer(_) => {
                entry.stale = true;
                tracing::debug!(%lease, ?action, %error, "request failed, reading the lease");
            }
            RequestError::Throttled(_) | RequestError::Deferred(_) | RequestError::Failing(_) => {
                tracing::debug!(%lease, ?action, %error, "request failed, retrying");
            }
            _ if !is_new => tracing::debug!(%lease, ?action, %error, "request refused again, retrying"),
            RequestError::Unremovable(_)
            | RequestError::Invalid(_)
            | RequestError::Forbidden(_)
            | RequestError::NoSuchKind => {
                tracing::warn!(%lease, ?action, %error, "request refused, retrying");
                let note = format!("the API server refuses our write: {error}");
                self.warn_once(uid, "WriteRefused", || note);
            }
        }
    }

    /// A request for a lease has failed. Its next one waits, for a reason of this lease the longer the more have failed. Returns
    /// whether the last one didn't fail for the same reason.
    pub(super) fn lease_failed(&mut self, uid: Uuid, of_end: bool, error: &RequestError, now: &Now) -> bool {
        let wait = match error {
            RequestError::Deferred(wait) => wait.unwrap_or_default().min(LONGEST_PAUSE),
            _ => Duration::ZERO,
        };
        match error {
            // It has changed: the next try is another one. Or the API server has to be waited for.
            RequestError::Conflict | RequestError::LowerTerm | RequestError::Throttled(_) => false,
            // An outage isn't a failure of this lease. While nothing else is written, there are no other tries either.
            RequestError::NoAnswer(_) | RequestError::Failing(_)
                if self.liveness.last_write().saturating_add(self.settings.lease_duration) < now.mono =>
            {
                false
            }
            RequestError::NoAnswer(_) | RequestError::Failing(_) => {
                self.set_failure(uid, error.outcome(), false, of_end, wait, now)
            }
            RequestError::Deferred(_)
            | RequestError::Unremovable(_)
            | RequestError::Invalid(_)
            | RequestError::Forbidden(_)
            | RequestError::NoSuchKind => self.set_failure(uid, error.outcome(), true, of_end, wait, now),
        }
    }

    fn set_failure(
        &mut self,
        uid: Uuid,
        reason: &'static str,
        lasting: bool,
        of_end: bool,
        wait: Duration,
        now: &Now,
    ) -> bool {
        let Some(entry) = self.index.leases.get_mut(&uid) else { return false };
        let before = entry.failure();
        let tries = before.map_or(0, |before| before.tries).saturating_add(1);
        let retry_at = now.mono.saturating_add(pause(tries).max(wait));
        let failure = Failure { reason, tries, retry_at, lasting: lasting || tries > 1, of_end };
        entry.more.change(|more| more.failure = Some(failure));
        before.is_none_or(|before| before.reason != reason)
    }

    /// A write of a lease was accepted: what failed before is over.
    fn take_failure(&mut self, uid: Uuid, now: &Now) -> Option<Failure> {
        let entry = self.index.leases.get_mut(&uid)?;
        let failure = entry.failure()?;
        entry.more.change(|more| more.failure = None);
        if failure.lasting && failure.reason != NOT_KEPT {
            self.retry_succeeded(now);
        }
        Some(failure)
    }

    /// Where the status that was accepted would be written again at once, the API server doesn't keep all of it. `failure`: of the
    /// write before.
    fn look_whether_kept(
        &mut self,
        uid: Uuid,
        lease: &Lease,
        request: &Request,
        failure: Option<Failure>,
        now: &Now,
    ) {
        let is_newest = |entry: &Entry| {
            Some(entry.record.version) == version_of(lease.metadata.resource_version.as_deref()).ok()
        };
        if !matches!(request, Request::WriteStatus { .. })
            || !self.index.leases.get(&uid).is_some_and(is_newest)
            || !matches!(
                self.step(uid, now),
                Some(
                    NextStep::Refresh(_)
                        | NextStep::Send(
                            LeaseRequest::Grant(_) | LeaseRequest::End(_) | LeaseRequest::Publish(_)
                        )
                )
            )
        {
            return;
        }
        let Some(entry) = self.index.leases.get_mut(&uid) else { return };
        let Some(before) = failure.filter(|failure| failure.reason == NOT_KEPT) else {
            // A second write may be due for good reason. A third is not.
            let failure =
                Failure { reason: NOT_KEPT, tries: 0, retry_at: now.mono, lasting: false, of_end: true };
            entry.more.change(|more| more.failure = Some(failure));
            return;
        };
        entry.more.change(|more| more.failure = Some(before));
        self.set_failure(uid, NOT_KEPT, false, true, Duration::ZERO, now);
        self.warn_once(uid, "StatusNotKept", || {
            "the API server accepts what is written to the status, and doesn't keep all of it: is the CRD older than the operator? `lessor crd | kubectl apply -f -`".to_owned()
        });
        self.enqueue_lease(uid, now);
    }

    /// Something that failed before has succeeded: others are tried earlier.
    fn retry_succeeded(&mut self, now: &Now) {
        self.schedule.retry_succeeded();
        self.leadership.spare_from(now.mono);
    }

    /// Reports and counts what was done for a lease. The watch may be ahead of the response: the index may have a later version
    /// of the lease, or none.
    fn report_action(&mut self, uid: Uuid, action: LeaseAction, request: &Request, now: &Now) {
        let Some(lease) = request.lease().cloned() else { return };
        let (metric_event, reason, note) = match action {
            LeaseAction::Grant => {
                let entry = self.index.leases.get(&uid);
                let ttl = entry.map(|entry| self.settings.granted_ttl(entry.record.ttl_seconds));
                let note = ttl.map_or("granted".to_owned(), |ttl| format!("granted for {} s", ttl.as_secs()));
                self.report_following(uid, lease.clone(), false);
                (Some(MetricEvent::Granted), "Granted", note)
            }
            LeaseAction::Follow => {
                self.report_following(uid, lease, true);
                return;
            }
            LeaseAction::Warn => (None, "Expiring", "ends soon unless it is renewed".to_owned()),
            LeaseAction::End(None, attached) => {
                let note = format!("revoked: the lease was deleted; removing {attached}");
                (Some(MetricEvent::Revoked), "Revoked", note)
            }
            LeaseAction::End(Some(deadline), attached) => {
                if attached != Attached::default()
                    && let Some(entry) = self.index.leases.get_mut(&uid)
                {
                    entry.more.change(|more| more.overran = Some(deadline));
                }
                let late = now.lease.since(deadline);
                let note = format!("expired {} ms after its deadline; removing {attached}", late.as_millis());
                (Some(MetricEvent::Expired(late)), "Expired", note)
            }
            LeaseAction::Release => {
                (Some(MetricEvent::Released), "Released", "all that was attached is gone".to_owned())
            }
            LeaseAction::Abandon => {
                let note =
                    "deleted, but its status can't be written: removed, and what is attached to it remains";
                (None, "Abandoned", note.to_owned())
            }
            LeaseAction::Read
            | LeaseAction::ReadSource
            | LeaseAction::AddFinalizer
            | LeaseAction::Publish
            | LeaseAction::Delete => {
                tracing::debug!(%lease, ?action, "done");
                return;
            }
        };
        self.out.metric_events.extend(metric_event);
        self.notify(UserEvent::normal(About::Lease(lease, uid), reason, note));
    }

    /// Reports whether the source of a lease keeps it alive; that it does, only where that `is_new`.
    fn report_following(&mut self, uid: Uuid, lease: NamespacedName, is_new: bool) {
        let about = About::Lease(lease, uid);
        match self.index.explain_following(uid) {
            Some((true, note)) if is_new => self.notify(UserEvent::normal(about, "Following", note)),
            Some((false, note)) => self.notify(UserEvent::warning(about, "NotFollowing", note)),
            _ => {}
        }
    }

    // --- Attached objects ----------------------------------------------------------------------------------------

    fn object_answered(
        &mut self,
        id: &ObjectId,
        version: ResourceVersion,
        leases: &str,
        request: &InFlight,
        response: Response,
        now: &Now,
    ) {
        let is_read = matches!(request.request, Request::ReadObject { .. });
        let is_retry = self.leadership.runs_spare(&Work::Object(id.clone()));
        let result = if is_read || matches!(response, Response::Gone | Response::Refused(_)) {
            WorkResult::None
        } else {
            WorkResult::Extend
        };
        self.leadership.finish(&Work::Object(id.clone()), result, false, request.sent_at, now.mono);
        match response {
            Response::Object(meta) => {
                if self.report_removed(id, leases, request, Some(&meta)) {
                    self.removal_succeeded(id, is_retry, now);
                }
                self.apply_response(id, &meta, request, now);
            }
            Response::Deleted => {
                self.report_removed(id, leases, request, None);
                self.removal_succeeded(id, is_retry, now);
                self.remove_object(id, Some(version), now);
            }
            Response::Gone => self.remove_object(id, Some(version), now),
            Response::Refused(error) => self.object_refused(id, version, &request.request, &error, now),
            Response::Lease(_) | Response::Lessor(_) | Response::Source(_) => {}
        }
    }

    /// An object that waited for finalizers of its own, after the end of its lease, is gone.
    pub(super) fn report_late_removal(&mut self, id: &ObjectId, version: Option<ResourceVersion>) {
        let Some(object) = self.index.attachments.get(id).filter(|object| {
            let is_gone = version.is_none_or(|version| version >= object.version);
            self.leadership.is_primary() && object.deleting && is_gone
        }) else {
            return;
        };
        let uid = object.uid;
        let has_ended = object.whole.as_ref().is_some_and(|name| {
            let lease = NamespacedName::new(id.name.namespace.clone(), name.as_str());
            self.index.leases.at(&lease).is_some_and(|(_, entry)| entry.record.status.has_ended())
        });
        if has_ended {
            let note = format!("removed with {}", leases_of(object, None));
            self.out.metric_events.push(MetricEvent::RemovedObject);
            self.notify(UserEvent::normal(About::Object(id.clone(), uid), "Removed", note));
        }
    }

    /// Reports and counts what a request removed, if it did; `left`: the object, if it still exists. A watch may have reported
    /// the removal before the response arrived, so all that is reported comes from the request.
    fn report_removed(
        &mut self,
        id: &ObjectId,
        leases: &str,
        request: &InFlight,
        left: Option<&ObjectMeta>,
    ) -> bool {
        let Request::Remove { removal, .. } = &request.request else { return false };
        let (uid, metric_event, reason, note) = match removal {
            // It is being deleted, and waits for its finalizers.
            Removal::Delete { uid, .. } if left.is_some() => {
                (*uid, None, "Removing", format!("being removed with {leases}, waiting for its finalizers"))
            }
            Removal::Delete { uid, .. } => {
                (*uid, Some(MetricEvent::RemovedObject), "Removed", format!("removed with {leases}"))
            }
            Removal::Keys { uid, keys, .. } | Removal::Members { uid, keys, .. } => {
                let names: Vec<&str> = keys.iter().map(|key| key.as_str()).collect();
                let note = format!("removed {} with {leases}", names.join(", "));
                (*uid, Some(MetricEvent::RemovedKeys(keys.len())), "Removed", note)
            }
        };
        self.out.metric_events.extend(metric_event);
        self.notify(UserEvent::normal(About::Object(id.clone(), uid), reason, note));
        true
    }

    /// Something was removed from an object. If that had failed before, others can perhaps be removed too.
    fn removal_succeeded(&mut self, id: &ObjectId, is_retry: bool, now: &Now) {
        for lease in self.index.attachments.leases_of(id) {
            if let Some((uid, true)) =
                self.index.leases.at(&lease).map(|(uid, entry)| (uid, entry.hindered_before()))
                && let Some(entry) = self.index.leases.get_mut(&uid)
            {
                entry.more.change(|more| more.hindered_before = false);
            }
        }
        let next = self.index.attachments.removed(id);
        if next && let Some(hindrance) = self.index.attachments.get(id).and_then(Object::hindrance).cloned() {
            // The watch was ahead of the response.
            self.index.attachments.hinder(id, Hindrance { retry_at: Some(now.mono), ..hindrance });
        }
        if is_retry || self.index.attachments.get(id).is_some_and(|object| object.hindrance().is_some()) {
            self.retry_succeeded(now);
            self.removal_allowed(&id.kind, now);
        }
    }

    /// All that is left of an object are keys that were refused: notes that, where it isn't noted for this version.
    pub(super) fn settle_refused(&mut self, id: &ObjectId, now: &Now) {
        let Some(object) = self.index.attachments.get(id).filter(|object| object.hindrance().is_none())
        else {
            return;
        };
        let Some(message) = object.refused_keys().filter(|_| self.removal(id).is_none()) else { return };
        let retry_at = Some(now.mono.saturating_add(LONGEST_PAUSE));
        self.hinder(id, Hindrance { reason: REFUSED, message, retry_at, tries: 1 });
    }

    /// Notes why something can't be removed from an object, and reports a new reason.
    fn hinder(&mut self, id: &ObjectId, hindrance: Hindrance) {
        let Some(object) = self.index.attachments.get(id) else { return };
        if object.hindrance().is_none_or(|before| before.reason != hindrance.reason) {
            self.out.metric_events.push(MetricEvent::Hindered(hindrance.reason));
            if !is_transient(hindrance.reason) {
                let note = format!("can't be removed after the end of its lease: {}", hindrance.message);
                let about = About::Object(id.clone(), object.uid);
                self.out.user_events.push(UserEvent::warning(about, "Hindered", note));
            }
        }
        if hindrance.reason == kinds::FORBIDDEN {
            self.reporting.kinds.removal_forbidden(id);
        }
        self.index.attachments.hinder(id, hindrance);
    }

    fn object_refused(
        &mut self,
        id: &ObjectId,
        version: ResourceVersion,
        request: &Request,
        error: &RequestError,
        now: &Now,
    ) {
        tracing::debug!(object = %id, %error, "not removed");
        let Some(object) = self.index.attachments.get_mut(id) else {
            self.enqueue_object(id, now);
            return;
        };
        // Even if the watch has reported a newer version meanwhile: where others write all the time, that is too old by now. An
        // object that is read right before has the best chance.
        object.stale |= *error == RequestError::Conflict;
        if object.version != version {
            // It was enqueued when it changed.
            self.enqueue_object(id, now);
            return;
        }
        object.stale |= matches!(error, RequestError::NoAnswer(_));
        let unchanged = *error == RequestError::Conflict && object.note_conflict();
        let tries = object.hindrance().map_or(0, |before| before.tries).saturating_add(1);
        let mut hindrance = hindrance(error, unchanged, tries, now);
        if let (Some(hindrance), Some(keys)) = (&mut hindrance, keys_of(request))
            && may_concern_some_keys(error)
        {
            self.index.attachments.refuse(id, keys, &hindrance.message);
            if self.removal(id).is_some() {
                tracing::debug!(object = %id, %error, "trying fewer keys at once, or others");
                self.enqueue_object(id, now);
                return;
            }
            let refused = self.index.attachments.get(id).and_then(Object::refused_keys);
            hindrance.message = refused.unwrap_or_default();
        }
        let gives_up = hindrance.as_ref().is_some_and(|hindrance| hindrance.retry_at.is_none());
        if let Some(hindrance) = hindrance {
            self.hinder(id, hindrance);
        }
        // Once its lease carries the condition, followers would observe nothing of this try, and assume that the primary has not
        // reacted to the change.
        if gives_up && self.index.is_hindered(id) {
            self.leadership.prove_soon(now.mono);
        }
        let leases = self.index.attachments.leases_of(id);
        self.enqueue_object(id, now);
        for lease in leases {
            self.enqueue_name(&lease, now);
        }
    }
}

const NO_ANSWER: &str = "NoAnswer";
const FAILING: &str = "Failing";
const THROTTLED: &str = "Throttled";
const REFUSED: &str = "Refused";
/// The reason of a [`Failure`] to write a status of which the API server drops something.
const NOT_KEPT: &str = "not-kept";

/// Whether a hindrance usually passes by itself within seconds.
fn is_transient(reason: &str) -> bool {
    matches!(reason, NO_ANSWER | FAILING | THROTTLED)
}

/// The keys that a request removes.
fn keys_of(request: &Request) -> Option<&BTreeSet<Key>> {
    match request {
        Request::Remove { removal: Removal::Keys { keys, .. } | Removal::Members { keys, .. }, .. } => {
            Some(keys)
        }
        _ => None,
    }
}

/// Whether the removal of some keys is refused, where others can perhaps be removed.
fn may_concern_some_keys(error: &RequestError) -> bool {
    match error {
        RequestError::Invalid(message) => !message.contains("immutable"),
        RequestError::Unremovable(_) => true,
        RequestError::Forbidden(_) => !error.is_missing_right(),
        _ => false,
    }
}

/// Whether this commits the end of a lease, or is needed for that.
fn is_of_end(action: LeaseAction) -> bool {
    matches!(action, LeaseAction::End(..) | LeaseAction::ReadSource)
}

/// The longest pause between two tries of one write.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The pause after so many failures of one lease: short for the first few, then twice as long each time.
fn pause(tries: u32) -> Duration {
    let millis = match tries {
        0..=4 => 20 << (2 * tries.saturating_sub(1)),
        more => 1280 << (more - 4).min(16),
    };
    Duration::from_millis(millis).min(LONGEST_PAUSE)
}

/// Why a removal that was tried so often failed, and when to retry; `None`: at once. `unchanged`: a conflict is the second one at
/// the same version of the object.
fn hindrance(error: &RequestError, unchanged: bool, tries: u32, now: &Now) -> Option<Hindrance> {
    let backoff_from = |least: Duration, longest: u64| {
        let wait = Duration::from_millis(250).saturating_mul(1 << tries.min(16));
        Some(now.mono + wait.max(least).min(Duration::from_secs(longest)))
    };
    let backoff = |longest| backoff_from(Duration::ZERO, longest);
    let (reason, message, retry_at) = match error {
        RequestError::Conflict if unchanged => (
            "Conflict",
            "the API server reports a conflict though the object has not changed: look for an admission webhook".to_owned(),
            backoff(60),
        ),
        RequestError::Conflict => return None,
        RequestError::Throttled(wait) | RequestError::Deferred(wait) => {
            (THROTTLED, error.to_string(), backoff_from(wait.unwrap_or_default(), 60))
        }
        RequestError::Unremovable(message) => ("NotRemovable", message.clone(), None),
        RequestError::Invalid(message) if message.contains("immutable") => (
            "Immutable",
            "it is immutable, so no key of it can be removed: delete it, or detach its keys".to_owned(),
            None,
        ),
        RequestError::Invalid(message) => {
            (REFUSED, format!("the API server refuses: {message}"), backoff(60))
        }
        RequestError::Forbidden(message) if error.is_missing_right() => {
            (kinds::FORBIDDEN, format!("the operator lacks a right: {message}"), backoff(60))
        }
        RequestError::Forbidden(message) => {
            (REFUSED, format!("a policy of the cluster refuses: {message}"), backoff(60))
        }
        RequestError::NoAnswer(_) => (NO_ANSWER, error.to_string(), backoff(60)),
        RequestError::Failing(_) | RequestError::NoSuchKind | RequestError::LowerTerm => {
            (FAILING, error.to_string(), backoff(60))
        }
    };
    Some(Hindrance { reason, message, retry_at, tries })
}

/// Whether this is the last version of a lease. With the last finalizer of a deleted object the API server removes the object
/// too, and responds with the version before.
fn is_last_version(lease: &Lease) -> bool {
    let meta = &lease.metadata;
    meta.deletion_timestamp.is_some() && meta.finalizers.as_ref().is_none_or(Vec::is_empty)
}

/// The leases that an object, or what is removed of it, is attached to, for users.
pub(super) fn leases_of(object: &Object, removal: Option<&Removal>) -> Box<str> {
    let names: BTreeSet<&str> = match removal {
        Some(Removal::Keys { keys, .. } | Removal::Members { keys, .. }) => {
            keys.iter().filter_map(|key| object.keys().get(key)).map(|name| name.as_str()).collect()
        }
        Some(Removal::Delete { .. }) | None => object.whole.iter().map(|name| name.as_str()).collect(),
    };
    format!("lease {}", names.into_iter().collect::<Vec<_>>().join(", ")).into()
}
