//! Kinds that can't be seen, or whose objects may not be removed: telling people, and going on without them.
//!
//! The primary says it once, as a condition of `Lessor` and an Event for each kind. The condition is in words of our own,
//! which stay the same as long as the trouble does, so that it isn't written again and again; the server's words, which
//! may change each time, are in the Event and the log.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};
use lessor_api::lessor::KINDS_READY;
use serde_json::json;

use super::{Cause, Replica};
use crate::{
    attachable::KindName,
    clocks::Now,
    index::attachments::{Hindrance, Kind, Object, ObjectId},
    observation::Failure,
    request::{Request, Response},
    user_event::{About, UserEvent},
    watch_health::KindProblem,
};

/// How often the condition is written at most.
const WRITE_INTERVAL: Duration = Duration::from_secs(5);
/// The reason of a [`Hindrance`] by a missing right.
pub(super) const FORBIDDEN: &str = "Forbidden";

/// What is remembered for the condition.
#[derive(Clone, Debug, Hash, Default)]
pub(super) struct KindReport {
    in_flight: bool,
    not_before: Duration,
    /// Objects that we may not remove; those that have changed since are sorted out later.
    refused: BTreeMap<KindName, BTreeSet<ObjectId>>,
    /// What people were told, by kind.
    said: BTreeMap<KindName, &'static str>,
}

/// One kind's trouble.
struct Complaint {
    kind: KindName,
    reason: &'static str,
    /// In our own words.
    short: &'static str,
    /// In the server's.
    long: String,
}

impl Replica {
    pub(super) fn observe_kind(&mut self, kind: &KindName, found: Result<Arc<Kind>, Failure>, now: &Now) {
        let gone = match &found {
            Ok(found) => self.objects.forget_kind(kind, Some(found)),
            // Its objects went with it.
            Err(Failure::NoSuchKind) => self.objects.forget_kind(kind, None),
            Err(_) => Vec::new(),
        };
        for place in gone {
            self.enqueue_name(&place, now);
        }
        match found {
            Ok(found) => tracing::debug!(%kind, version = found.resource.version, "found"),
            Err(failure) => {
                if self.watch_health.unknown(kind, &failure, now) {
                    tracing::warn!(%kind, %failure, "can't be attached, looking for it again and again");
                }
            }
        }
    }

    /// A kind that couldn't be seen is seen again: what waited for it can go on.
    pub(super) fn see_clearly(&mut self, now: &Now) {
        for uid in std::mem::take(&mut self.lingering) {
            self.enqueue_lease(uid, now);
        }
    }

    /// We may not remove this object.
    pub(super) fn removal_forbidden(&mut self, id: &ObjectId) {
        self.kind_report.refused.entry(id.kind.name()).or_default().insert(id.clone());
    }

    /// An object of this kind could be removed: perhaps others that couldn't can be now.
    pub(super) fn removal_allowed(&mut self, kind: &Kind, now: &Now) {
        if self.kind_report.refused.is_empty() {
            return;
        }
        for id in self.kind_report.refused.remove(&kind.name()).unwrap_or_default() {
            let Some(object) = self.objects.get_mut(&id) else { continue };
            if let Some(hindrance) = object.hindrance().filter(|hindrance| hindrance.reason == FORBIDDEN) {
                let hindrance = Hindrance { retry_at: Some(now.mono), ..hindrance.clone() };
                object.hinder(hindrance);
                self.enqueue_object(&id, now);
            }
        }
    }

    /// When [`report_kinds`](Self::report_kinds) may have something to say if nothing happens before.
    pub(super) fn report_kinds_at(&self, now: &Now) -> Option<Duration> {
        if self.leading.is_none() || now.disconnected {
            return None;
        }
        let allowed = Some(self.kind_report.not_before).filter(|at| *at > now.mono);
        allowed.into_iter().chain(self.watch_health.problems_change_at(now.mono)).min()
    }

    /// Brings the condition of `Lessor` up to date.
    pub(super) fn report_kinds(&mut self, now: &Now) {
        let held_back = self.kind_report.in_flight || now.mono < self.kind_report.not_before;
        if self.leading.is_none()
            || self.stopping.is_some()
            || now.disconnected
            || self.lessor_crd_missing
            || held_back
        {
            return;
        }
        let complaints = self.complaints(now);
        self.tell_of_kinds(&complaints);
        let Some(known) = self.election.known().filter(|_| !self.election.is_busy()) else { return };
        let current = known.status.conditions.iter().find(|condition| condition.type_ == KINDS_READY);
        if complaints.is_empty() && current.is_none_or(|current| current.status == "True") {
            return;
        }
        let mut wanted = condition(&complaints, now.wall);
        if let Some(current) = current.filter(|current| current.status == wanted.status) {
            if current.reason == wanted.reason && current.message == wanted.message {
                return;
            }
            wanted.last_transition_time = current.last_transition_time.clone();
        }
        let others = known.status.conditions.iter().filter(|condition| condition.type_ != KINDS_READY);
        let conditions: Vec<Condition> = others.cloned().chain([wanted]).collect();
        let request =
            Request::WriteLessor { version: known.version, status: json!({"conditions": conditions}) };
        self.kind_report.in_flight = true;
        self.send(Cause::Kinds, request, now.mono + self.settings.lease_duration, now);
    }

    pub(super) fn kinds_answered(&mut self, answer: &Response, now: &Now) {
        self.kind_report.in_flight = false;
        self.kind_report.not_before = now.mono + WRITE_INTERVAL;
        match answer {
            Response::Lessor(lessor) => self.see_lessor(lessor, now),
            // Somebody wrote it meanwhile, and the watch will show it.
            Response::Refused(refusal) => tracing::debug!(%refusal, "condition of kinds not written"),
            _ => {}
        }
    }

    fn complaints(&mut self, now: &Now) -> Vec<Complaint> {
        let objects = &self.objects;
        self.kind_report.refused.retain(|_, ids| {
            ids.retain(|id| {
                let hindrance = objects.get(id).and_then(Object::hindrance);
                hindrance.is_some_and(|hindrance| hindrance.reason == FORBIDDEN)
            });
            !ids.is_empty()
        });
        let mut complaints: Vec<Complaint> =
            self.watch_health.problems(now.mono).into_iter().map(Complaint::of).collect();
        for (kind, ids) in &self.kind_report.refused {
            // One that can't be watched is complained about already.
            if complaints.iter().any(|complaint| complaint.kind == *kind) {
                continue;
            }
            let why = ids.iter().find_map(|id| Some(&objects.get(id)?.hindrance()?.message));
            complaints.push(Complaint {
                kind: kind.clone(),
                reason: FORBIDDEN,
                short: "the operator may not remove them: give it the rights that `lessor rbac` prints",
                long: why.cloned().unwrap_or_default(),
            });
        }
        complaints.sort_by(|one, other| one.kind.cmp(&other.kind));
        complaints
    }

    /// Says what is new, once.
    fn tell_of_kinds(&mut self, complaints: &[Complaint]) {
        let known = self.election.known();
        let published = known.and_then(|known| {
            known.status.conditions.iter().find(|condition| condition.type_ == KINDS_READY)
        });
        for complaint in complaints {
            let before = self.kind_report.said.insert(complaint.kind.clone(), complaint.short);
            // Said by this replica, or by a primary before it.
            if before == Some(complaint.short)
                || published.is_some_and(|condition| condition.message.contains(&complaint.to_string()))
            {
                continue;
            }
            let note = format!("{complaint} ({})", complaint.long);
            self.out.user_events.push(UserEvent::warning(About::Lessor, complaint.reason, note));
        }
        let out = &mut self.out;
        self.kind_report.said.retain(|kind, _| {
            let lasts = complaints.iter().any(|complaint| complaint.kind == *kind);
            if !lasts {
                let note = format!("{kind} can be attached again");
                out.user_events.push(UserEvent::normal(About::Lessor, "KindReady", note));
            }
            lasts
        });
    }
}

impl Complaint {
    fn of(trouble: KindProblem) -> Self {
        let (reason, short) = match &trouble.failure {
            Failure::NoSuchKind => ("NotInstalled", "the kind is not installed"),
            Failure::Unusable(_) => ("Unusable", "the kind can't be attached"),
            Failure::Forbidden(_) => {
                (FORBIDDEN, "the operator may not watch them: give it the rights that `lessor rbac` prints")
            }
            Failure::Other(_) => ("Unavailable", "the API that serves them fails"),
        };
        Self { kind: trouble.kind, reason, short, long: trouble.failure.to_string() }
    }
}

impl std::fmt::Display for Complaint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.kind, self.short)
    }
}

fn condition(complaints: &[Complaint], now: Timestamp) -> Condition {
    let reason = match complaints {
        [] => "Ready",
        [first, others @ ..] if others.iter().all(|other| other.reason == first.reason) => first.reason,
        _ => "Several",
    };
    let complaint: Vec<String> = complaints.iter().map(ToString::to_string).collect();
    Condition {
        type_: KINDS_READY.to_owned(),
        status: if complaints.is_empty() { "True" } else { "False" }.to_owned(),
        reason: reason.to_owned(),
        message: if complaint.is_empty() {
            "all kinds can be attached".to_owned()
        } else {
            complaint.join("; ")
        },
        last_transition_time: Time(now),
        observed_generation: None,
    }
}
