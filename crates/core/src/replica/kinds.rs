//! Kinds whose watches fail, or whose objects the operator may not remove: users are notified, and the rest goes on.
//!
//! The primary reports each problem once, as a condition of the `Lessor` and an Event for each kind. The condition is in words of
//! our own, which stay the same as long as the problem does, so that it isn't written again and again. The API server's message,
//! which may change each time, is in the Event and the log.

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

use super::{Replica, index::Index, overlap, requests::Purpose};
use crate::{
    clocks::Now,
    index::attachments::{AttachmentIndex, Hindrance, Object, ObjectId},
    kind::{Kind, KindName},
    observation::Failure,
    output::Output,
    request::{Request, Response},
    user_event::{About, UserEvent},
    watch_health::KindProblem,
};

/// The least time between two writes of the condition.
const WRITE_INTERVAL: Duration = Duration::from_secs(5);
/// How many removals are tried at once when a right isn't missing any more.
const AT_ONCE: usize = 8;
/// The reason of a [`Hindrance`] by a missing right.
pub(super) const FORBIDDEN: &str = "Forbidden";

/// What the primary reports of kinds, and of other installations.
#[derive(Clone, Debug, Hash, Default)]
pub(super) struct KindReport {
    in_flight: bool,
    not_before: Duration,
    /// Objects that the operator may not remove. Those that have changed since are dropped later.
    forbidden: BTreeMap<KindName, BTreeSet<ObjectId>>,
    /// The problem that users were notified of, by kind.
    reported: BTreeMap<KindName, &'static str>,
}

/// A problem of one kind.
struct Problem {
    kind: KindName,
    reason: &'static str,
    /// In our own words.
    summary: &'static str,
    /// In the API server's words.
    details: String,
}

impl KindReport {
    /// The conditions are to be written again, from this time on.
    pub(super) fn write_again(&mut self, not_before: Duration) {
        self.not_before = not_before;
    }

    /// The operator may not remove this object.
    pub(super) fn removal_forbidden(&mut self, id: &ObjectId) {
        self.forbidden.entry(id.kind.name()).or_default().insert(id.clone());
    }

    /// The first objects of a kind that the operator could not remove so far.
    fn some_forbidden(&self, kind: &Kind) -> Vec<ObjectId> {
        if self.forbidden.is_empty() {
            return Vec::new();
        }
        self.forbidden.get(&kind.name()).into_iter().flatten().take(AT_ONCE).cloned().collect()
    }

    /// The problems of all kinds.
    fn problems(&mut self, index: &Index, now: &Now) -> Vec<Problem> {
        self.drop_changed(&index.attachments);
        let mut problems: Vec<Problem> =
            index.watches.problems(now.mono).into_iter().map(Problem::of).collect();
        for (kind, ids) in &self.forbidden {
            // A kind that can't be watched has a problem already.
            if problems.iter().any(|problem| problem.kind == *kind) {
                continue;
            }
            let message = ids.iter().find_map(|id| Some(&index.attachments.get(id)?.hindrance()?.message));
            problems.push(Problem {
                kind: kind.clone(),
                reason: FORBIDDEN,
                summary: "the operator may not remove them: give it the rights that `lessor rbac` prints",
                details: message.cloned().unwrap_or_default(),
            });
        }
        problems.sort_by(|one, other| one.kind.cmp(&other.kind));
        problems
    }

    fn drop_changed(&mut self, attachments: &AttachmentIndex) {
        self.forbidden.retain(|_, ids| {
            ids.retain(|id| {
                let hindrance = attachments.get(id).and_then(Object::hindrance);
                hindrance.is_some_and(|hindrance| hindrance.reason == FORBIDDEN)
            });
            !ids.is_empty()
        });
    }

    /// Notifies users of problems that are new, unless an earlier primary did: they are in the `published` condition.
    fn notify(&mut self, problems: &[Problem], published: Option<&Condition>, out: &mut Output) {
        for problem in problems {
            let before = self.reported.insert(problem.kind.clone(), problem.summary);
            let is_published =
                published.is_some_and(|condition| condition.message.contains(&problem.to_string()));
            if before != Some(problem.summary) && !is_published {
                let note = format!("{problem} ({})", problem.details);
                out.user_events.push(UserEvent::warning(About::Lessor, problem.reason, note));
            }
        }
        self.reported.retain(|kind, _| {
            let lasts = problems.iter().any(|problem| problem.kind == *kind);
            if !lasts {
                let note = format!("{kind} can be attached again");
                out.user_events.push(UserEvent::normal(About::Lessor, "KindReady", note));
            }
            lasts
        });
    }
}

impl Replica {
    /// Discovery has found a kind, or has failed to.
    pub(super) fn observe_kind(&mut self, kind: &KindName, found: Result<Arc<Kind>, Failure>, now: &Now) {
        let attachments = &mut self.index.attachments;
        let (objects, leases) = match &found {
            Ok(found) => attachments.forget_kind(kind, Some(found)),
            // Its objects are gone with it.
            Err(Failure::NoSuchKind) => attachments.forget_kind(kind, None),
            Err(_) => Default::default(),
        };
        // Work that is left for an object of a kind that isn't served can't be done, and a follower would take no other over.
        for id in &objects {
            self.enqueue_object(id, now);
        }
        for lease in &leases {
            self.enqueue_name(lease, now);
        }
        match found {
            Ok(found) => {
                self.index.watches.found(kind, now);
                tracing::debug!(%kind, version = found.resource.version, "kind found");
            }
            Err(failure) => {
                let is_news = self.index.watches.unknown(kind, &failure, now);
                if is_news && !matches!(failure, Failure::Unreachable(_)) {
                    tracing::warn!(%kind, %failure, "kind can't be attached, retrying");
                }
            }
        }
    }

    /// A watch of a kind is in sync again: releases that waited for it may go on.
    pub(super) fn enqueue_lingering(&mut self, now: &Now) {
        for uid in self.schedule.lingering() {
            self.enqueue_lease(uid, now);
        }
    }

    /// An object of this kind was removed that could not be before: others for which the right was missing can perhaps be removed
    /// too. A few are tried, and if they go, a few more.
    pub(super) fn removal_allowed(&mut self, kind: &Kind, now: &Now) {
        for id in self.reporting.kinds.some_forbidden(kind) {
            let Some(object) = self.index.attachments.get(&id) else { continue };
            if let Some(hindrance) = object.hindrance().filter(|hindrance| hindrance.reason == FORBIDDEN) {
                let hindrance = Hindrance { retry_at: Some(now.mono), ..hindrance.clone() };
                self.index.attachments.hinder(&id, hindrance);
                self.enqueue_object(&id, now);
            }
        }
    }

    /// When [`report_kinds`](Self::report_kinds) has something to do if nothing happens before.
    pub(super) fn report_kinds_at(&self, now: &Now) -> Option<Duration> {
        if !self.leadership.is_primary() || now.disconnected {
            return None;
        }
        let not_before = Some(self.reporting.kinds.not_before).filter(|at| *at > now.mono);
        not_before.into_iter().chain(self.index.watches.problems_change_at(now.mono)).min()
    }

    /// Brings the conditions of the `Lessor` up to date.
    pub(super) fn report_kinds(&mut self, now: &Now) {
        let report = &mut self.reporting.kinds;
        if !self.leadership.is_primary()
            || self.leadership.stop_by().is_some()
            || self.leadership.lessor_crd_missing()
            || now.disconnected
            || report.in_flight
            || now.mono < report.not_before
        {
            return;
        }
        let problems = report.problems(&self.index, now);
        let lessor = self.leadership.lessor();
        let conditions = lessor.map_or(&[][..], |lessor| &lessor.status.conditions);
        let published = conditions.iter().find(|condition| condition.type_ == KINDS_READY);
        report.notify(&problems, published, &mut self.out);
        let Some(lessor) = lessor.filter(|_| !self.leadership.is_electing()) else { return };
        let mut conditions = conditions.to_vec();
        let kinds_changed = publish(&mut conditions, condition(&problems, now.wall));
        let overlap = overlap::condition(&self.overlap, now.wall);
        let overlap_changed = publish(&mut conditions, overlap.clone());
        if !kinds_changed && !overlap_changed {
            return;
        }
        if overlap_changed && overlap.status == "False" {
            self.out.user_events.push(UserEvent::warning(About::Lessor, "Overlap", overlap.message));
        }
        let status = json!({"conditions": conditions});
        let request = Request::WriteLessor { version: lessor.version, status };
        report.in_flight = true;
        self.send(Purpose::KindsCondition, request, self.time_limit(now), now);
    }

    /// The write of the condition was answered.
    pub(super) fn kinds_answered(&mut self, response: &Response, now: &Now) {
        self.reporting.kinds.in_flight = false;
        self.reporting.kinds.not_before = now.mono + WRITE_INTERVAL;
        match response {
            Response::Lessor(lessor) => self.apply_lessor(lessor, now.mono, now),
            // After a conflict, the watch reports the other write.
            Response::Refused(error) => tracing::debug!(%error, "condition of kinds not written"),
            _ => {}
        }
    }
}

impl Problem {
    fn of(problem: KindProblem) -> Self {
        let (reason, summary) = match &problem.failure {
            Failure::NoSuchKind => ("NotInstalled", "the kind is not installed"),
            Failure::Unusable(_) => ("Unusable", "the kind can't be attached"),
            Failure::Forbidden(_) => {
                (FORBIDDEN, "the operator may not watch them: give it the rights that `lessor rbac` prints")
            }
            Failure::Unauthorized(_) => ("Unauthorized", "the API server refuses the operator's credentials"),
            Failure::Unreachable(_) | Failure::Other(_) => ("Unavailable", "the API that serves them fails"),
        };
        Self { kind: problem.kind, reason, summary, details: problem.failure.to_string() }
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.kind, self.summary)
    }
}

/// Puts a condition in the place of the published one of its type. Returns whether that changes anything.
fn publish(conditions: &mut Vec<Condition>, mut wanted: Condition) -> bool {
    let Some(published) = conditions.iter_mut().find(|published| published.type_ == wanted.type_) else {
        // Without a problem so far, there is nothing to publish.
        let is_news = wanted.status != "True";
        conditions.extend(is_news.then_some(wanted));
        return is_news;
    };
    if published.status == wanted.status {
        if wanted.status == "True" || published.reason == wanted.reason && published.message == wanted.message
        {
            return false;
        }
        wanted.last_transition_time = published.last_transition_time.clone();
    }
    *published = wanted;
    true
}

fn condition(problems: &[Problem], now: Timestamp) -> Condition {
    let reason = match problems {
        [] => "Ready",
        [first, others @ ..] if others.iter().all(|other| other.reason == first.reason) => first.reason,
        _ => "Several",
    };
    let messages: Vec<String> = problems.iter().map(ToString::to_string).collect();
    Condition {
        type_: KINDS_READY.to_owned(),
        status: if problems.is_empty() { "True" } else { "False" }.to_owned(),
        reason: reason.to_owned(),
        message: if messages.is_empty() {
            "all kinds can be attached".to_owned()
        } else {
            messages.join("; ")
        },
        last_transition_time: Time(now),
        observed_generation: None,
    }
}
