//! Taking in answers.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lessor_api::{Lease, lease::Attached};
use uuid::Uuid;
use writer_lease::WorkResult;

use super::{Cause, Doing, Flight, Replica, Ticket, Work, kinds};
use crate::{
    clocks::Now,
    decide::lease::granted_ttl,
    decide::removal::Removal,
    index::attachments::{Hindrance, Object, ObjectId},
    lease_object::{NamespacedName, ResourceVersion},
    metric_event::MetricEvent,
    request::{Request, RequestError, Response},
    user_event::{About, UserEvent},
};

/// What people are told of a lease that goes without an end.
const ABANDONED: &str = "deleted, but its status can't be written: it goes, and what is attached to it stays";

impl Replica {
    /// Takes in the answer to a request.
    pub fn answer(&mut self, ticket: Ticket, answer: Response, now: &Now) {
        let Some(flight) = self.in_flight.remove(&ticket) else { return };
        if let Response::Refused(RequestError::Throttled(wait)) = &answer {
            self.patient_until = now.mono + wait.unwrap_or(Duration::from_secs(1));
        }
        match flight.cause {
            Cause::Probe => {
                self.probed_at = now.mono;
                if let Response::Lessor(lessor) = &answer {
                    self.see_lessor(lessor, now);
                }
            }
            Cause::Lease(uid, Doing::Confirm) => self.confirm_answered(uid, &flight, answer, now),
            Cause::Lease(uid, doing) => self.lease_answered(uid, doing, &flight, answer, now),
            Cause::Object(ref id, version, ref leases) => {
                self.object_answered(id, version, leases, &flight, answer, now)
            }
            Cause::Election => self.arbitration_answered(&flight, &answer, now),
            Cause::Check(ref work) => self.check_answered(work, &flight, answer, now),
            Cause::Kinds => self.kinds_answered(&answer, now),
            Cause::Look => self.look_answered(&flight, answer, now),
        }
        self.follow_role(now);
    }

    pub(super) fn lease_answered(
        &mut self,
        uid: Uuid,
        doing: Doing,
        flight: &Flight,
        answer: Response,
        now: &Now,
    ) {
        let work = Work::Lease(uid);
        if let Some(entry) = self.leases.get_mut(&uid) {
            entry.in_flight = false;
        }
        let (result, retry) = match &answer {
            Response::Lease(_) if doing == Doing::Read => (WorkResult::None, false),
            Response::Lease(_) | Response::Object(_) | Response::Lessor(_) | Response::Deleted => {
                (WorkResult::Extend, false)
            }
            Response::Gone | Response::Source(_) => (WorkResult::None, false),
            Response::Refused(refusal) => {
                self.lease_refused(uid, doing, refusal);
                (WorkResult::None, !matches!(refusal, RequestError::Conflict | RequestError::LowerTerm))
            }
        };
        self.writer.done(&work, result, retry, flight.sent_at, now.mono);
        if result == WorkResult::Extend {
            self.wrote(flight.sent_at);
        }
        match answer {
            Response::Lease(lease) => {
                if doing != Doing::Read {
                    self.tell(uid, doing, &flight.request, now);
                }
                if is_gone(&lease) {
                    self.bury_lease(uid, now);
                } else {
                    self.see_lease(&lease, now);
                }
            }
            Response::Deleted | Response::Gone => {
                self.bury_lease(uid, now);
            }
            _ if retry => {}
            _ => self.enqueue_lease(uid, now),
        }
    }

    /// An answer says that a lease is gone, whatever the watch still shows.
    pub(super) fn bury_lease(&mut self, uid: Uuid, now: &Now) {
        self.leases.mark_gone(uid);
        self.lose_lease(uid, ResourceVersion::MAX, now);
    }

    pub(super) fn lease_refused(&mut self, uid: Uuid, doing: Doing, refusal: &RequestError) {
        self.leases.set_confirming(uid, None);
        let Some(entry) = self.leases.get_mut(&uid) else { return };
        let place = &entry.record.name;
        match refusal {
            // Changed since it was seen, or perhaps written though no answer came: read it before anything else.
            RequestError::Conflict | RequestError::LowerTerm | RequestError::NoAnswer(_) => {
                entry.stale = true;
                tracing::debug!(lease = %place, ?doing, %refusal, "reading the lease again");
            }
            RequestError::Throttled(_) | RequestError::Failing(_) => {
                tracing::debug!(lease = %place, ?doing, %refusal, "trying again");
            }
            RequestError::Unremovable(_)
            | RequestError::Invalid(_)
            | RequestError::Forbidden(_)
            | RequestError::NoSuchKind => {
                tracing::warn!(lease = %place, ?doing, %refusal, "request refused, trying again");
                let note = format!("the API server refuses our write: {refusal}");
                self.say_once(uid, "WriteRefused", || note);
            }
        }
    }

    /// Tells and counts what was done for a lease. The watch may have been faster than the answer: the lease may be
    /// known in a later version, or no more.
    pub(super) fn tell(&mut self, uid: Uuid, doing: Doing, request: &Request, now: &Now) {
        let Some(place) = request.lease().cloned() else { return };
        let (metric_event, reason, note) = match doing {
            Doing::Grant => {
                let entry = self.leases.get(&uid);
                let ttl = entry.map(|entry| granted_ttl(entry.record.ttl_seconds, &self.settings));
                let note = ttl.map_or("granted".to_owned(), |ttl| format!("granted for {} s", ttl.as_secs()));
                self.tell_following(uid, place.clone(), false);
                (Some(MetricEvent::Granted), "Granted", note)
            }
            Doing::Follow => {
                self.tell_following(uid, place, true);
                return;
            }
            Doing::Warn => (None, "Expiring", "ends soon unless it is renewed".to_owned()),
            Doing::End(deadline, attached) => {
                let going = format!("{attached} go");
                match deadline {
                    Some(deadline) => {
                        if attached != Attached::default()
                            && let Some(entry) = self.leases.get_mut(&uid)
                        {
                            entry.more.change(|more| more.overran = Some(deadline));
                        }
                        let late = now.lease.since(deadline);
                        let note = format!("expired {} ms after its deadline; {going}", late.as_millis());
                        (Some(MetricEvent::Expired(late)), "Expired", note)
                    }
                    None => (
                        Some(MetricEvent::Revoked),
                        "Revoked",
                        format!("revoked: the lease was deleted; {going}"),
                    ),
                }
            }
            Doing::Release => {
                (Some(MetricEvent::Released), "Released", "all that was attached is gone".to_owned())
            }
            Doing::Abandon => (None, "Abandoned", ABANDONED.to_owned()),
            Doing::Read | Doing::Confirm | Doing::Prepare | Doing::Publish | Doing::Delete => {
                tracing::debug!(lease = %place, ?doing, "done");
                return;
            }
        };
        self.out.metric_events.extend(metric_event);
        self.out.user_events.push(UserEvent::normal(About::Lease(place, uid), reason, note));
    }

    /// Tells whether what a lease follows keeps it alive; that it does only where that is `news`.
    fn tell_following(&mut self, uid: Uuid, place: NamespacedName, news: bool) {
        let about = About::Lease(place, uid);
        self.out.user_events.extend(match self.explain_following(uid) {
            Some((true, note)) if news => Some(UserEvent::normal(about, "Following", note)),
            Some((false, note)) => Some(UserEvent::warning(about, "NotFollowing", note)),
            _ => None,
        });
    }

    pub(super) fn object_answered(
        &mut self,
        id: &ObjectId,
        version: ResourceVersion,
        leases: &str,
        flight: &Flight,
        answer: Response,
        now: &Now,
    ) {
        let work = Work::Object(id.clone());
        let reading = matches!(flight.request, Request::ReadObject { .. });
        let result = if reading || matches!(answer, Response::Gone | Response::Refused(_)) {
            WorkResult::None
        } else {
            WorkResult::Extend
        };
        let retry = matches!(answer, Response::Refused(RequestError::Throttled(_)));
        self.writer.done(&work, result, retry, flight.sent_at, now.mono);
        match answer {
            Response::Object(meta) => {
                if self.tell_removed(id, leases, flight, Some(&meta)) {
                    self.removal_allowed(&id.kind, now);
                }
                self.see_object(id, &meta, now);
            }
            Response::Deleted => {
                self.tell_removed(id, leases, flight, None);
                self.removal_allowed(&id.kind, now);
                self.lose_object(id, Some(version), now);
            }
            Response::Gone => self.lose_object(id, Some(version), now),
            Response::Refused(refusal) => self.object_refused(id, version, &refusal, now),
            Response::Lease(_) | Response::Lessor(_) | Response::Source(_) => {}
        }
    }

    /// An object that waited for finalizers of its own, after its lease had ended, is gone at last.
    pub(super) fn tell_late_removal(&mut self, id: &ObjectId, version: Option<ResourceVersion>) {
        let Some(object) = self.objects.get(id).filter(|object| {
            let gone = version.is_none_or(|version| version >= object.version);
            self.leading.is_some() && object.deleting && gone
        }) else {
            return;
        };
        let uid = object.uid;
        let ended = object.whole.as_ref().is_some_and(|name| {
            let place = NamespacedName::new(id.name.namespace.clone(), name.as_str());
            self.leases.at(&place).is_some_and(|(_, entry)| entry.record.status.has_ended())
        });
        if ended {
            let note = format!("removed with {}", leases_of(object, None));
            self.out.metric_events.push(MetricEvent::RemovedObject);
            self.out.user_events.push(UserEvent::normal(About::Object(id.clone(), uid), "Removed", note));
        }
    }

    /// Tells and counts what a request removed, if it did; `left` is the object, if it is still there. A watch may have shown
    /// it before the answer came, so the request says what it was.
    fn tell_removed(
        &mut self,
        id: &ObjectId,
        leases: &str,
        flight: &Flight,
        left: Option<&ObjectMeta>,
    ) -> bool {
        let Request::Remove { removal, .. } = &flight.request else { return false };
        let (uid, metric_event, reason, note) = match removal {
            // Asked for, and not done before its finalizers are gone.
            Removal::Delete { uid, .. } if left.is_some() => {
                (*uid, None, "Removing", format!("goes with {leases}, and waits for its finalizers"))
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
        self.out.user_events.push(UserEvent::normal(About::Object(id.clone(), uid), reason, note));
        true
    }

    pub(super) fn object_refused(
        &mut self,
        id: &ObjectId,
        version: ResourceVersion,
        refusal: &RequestError,
        now: &Now,
    ) {
        tracing::debug!(object = %id, %refusal, "not removed");
        let Some(object) = self.objects.get_mut(id) else {
            self.enqueue_object(id, now);
            return;
        };
        // Even if the watch has shown a newer version meanwhile: where others write all the time it is too old again
        // by now, and what is read at once has the best chance.
        object.stale |= *refusal == RequestError::Conflict;
        if object.version != version {
            // It has changed meanwhile, and was looked at then.
            self.enqueue_object(id, now);
            return;
        }
        let tries = object.hindrance().map_or(0, |hindrance| hindrance.tries) + 1;
        let backoff = |longest: u64| {
            let wait = Duration::from_millis(250)
                .saturating_mul(1 << tries.min(16))
                .min(Duration::from_secs(longest));
            Some(now.mono + wait)
        };
        let hinder = |reason, message: String, retry_at| Some(Hindrance { reason, message, retry_at, tries });
        let hindrance = match refusal {
            RequestError::Throttled(_) | RequestError::Conflict => None,
            RequestError::Unremovable(message) => hinder("NotRemovable", message.clone(), None),
            RequestError::Invalid(message) if message.contains("immutable") => hinder(
                "Immutable",
                "it is immutable, so no key of it can be removed: delete it, or detach its keys".to_owned(),
                None,
            ),
            RequestError::Invalid(message) => {
                hinder("Refused", format!("the API server refuses: {message}"), backoff(60))
            }
            RequestError::Forbidden(message) => {
                hinder(kinds::FORBIDDEN, format!("the operator lacks a right: {message}"), backoff(60))
            }
            RequestError::NoAnswer(_) => {
                object.stale = true;
                hinder("NoAnswer", refusal.to_string(), backoff(5))
            }
            RequestError::Failing(_) | RequestError::NoSuchKind | RequestError::LowerTerm => {
                hinder("Failing", refusal.to_string(), backoff(30))
            }
        };
        let gives_up = hindrance.as_ref().is_some_and(|hindrance| hindrance.retry_at.is_none());
        let forbidden = hindrance.as_ref().is_some_and(|hindrance| hindrance.reason == kinds::FORBIDDEN);
        if let Some(hindrance) = hindrance {
            let news = object.hindrance().is_none_or(|old| old.reason != hindrance.reason);
            let transient = matches!(hindrance.reason, "NoAnswer" | "Failing");
            if news && !transient {
                let note = format!(
                    "attached to a lease that has ended, and can't be removed: {}",
                    hindrance.message
                );
                self.out.user_events.push(UserEvent::warning(
                    About::Object(id.clone(), object.uid),
                    "Hindered",
                    note,
                ));
            }
            if news {
                self.out.metric_events.push(MetricEvent::Hindered(hindrance.reason));
            }
            object.hinder(hindrance);
        }
        if forbidden {
            self.removal_forbidden(id);
        }
        // Once its lease says so, followers would see nothing of this try, and think that nobody has looked at the change.
        if gives_up && self.is_hindered(id) {
            self.writer.show(now.mono);
        }
        let leases: Vec<NamespacedName> = self.objects.leases_of(id);
        self.enqueue_object(id, now);
        for place in leases {
            self.enqueue_name(&place, now);
        }
    }
}

/// Whether this is the last that is seen of a lease: with the last finalizer of a deleted object the server removes the
/// object too, and answers it in the version that it had before.
fn is_gone(lease: &Lease) -> bool {
    let meta = &lease.metadata;
    meta.deletion_timestamp.is_some() && meta.finalizers.as_ref().is_none_or(Vec::is_empty)
}

/// The leases that an object, or these keys of it, are attached to, for people.
pub(super) fn leases_of(object: &Object, removal: Option<&Removal>) -> Box<str> {
    let names: BTreeSet<&str> = match removal {
        Some(Removal::Keys { keys, .. } | Removal::Members { keys, .. }) => {
            keys.iter().filter_map(|key| object.keys().get(key)).map(|name| name.as_str()).collect()
        }
        Some(Removal::Delete { .. }) | None => object.whole.iter().map(|name| name.as_str()).collect(),
    };
    format!("lease {}", names.into_iter().collect::<Vec<_>>().join(", ")).into()
}
