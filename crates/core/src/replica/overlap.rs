//! Namespaces that are left to another installation: nothing in them is known, and nothing done.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};
use lessor_api::{
    Lessor,
    lessor::{ALL_NAMESPACES, NAMESPACES_SERVED},
};

use super::Replica;
use crate::{
    clocks::Now,
    index::attachments::ObjectId,
    metadata::{NamespacedName, ResourceVersion},
    observation::{Event, Failure},
    overlap::Overlap,
};

/// The condition of our `Lessor` on the namespaces that are left to other installations.
pub(super) fn condition(overlap: &Overlap, now: Timestamp) -> Condition {
    let summary = overlap.summary();
    let (status, reason) = if summary.is_none() { ("True", "Exclusive") } else { ("False", "Overlap") };
    Condition {
        type_: NAMESPACES_SERVED.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: summary.map_or_else(
            || "no other installation serves a namespace of this one".to_owned(),
            |summary| {
                format!(
                    "{summary}. Let this one serve other namespaces (and its admission policies except these), or delete that \
                     Lessor if its installation is gone"
                )
            },
        ),
        last_transition_time: Time(now),
        observed_generation: None,
    }
}

impl Replica {
    /// Whether a namespace is left to another installation.
    pub(super) fn is_left(&self, namespace: &str) -> bool {
        self.overlap.left_to(namespace).is_some()
    }

    /// Applies an event of the watch of other installations' `Lessor`s.
    pub(super) fn observe_other_lessor(&mut self, event: Event<Lessor>, now: &Now) {
        let before = self.overlap.left();
        match event {
            Event::Applied(lessor) => self.overlap.observe_other(&lessor),
            Event::Deleted(lessor) => {
                self.overlap.retain(|name| Some(name) != lessor.metadata.name.as_deref());
            }
            Event::Synced(listed) => {
                self.overlap.retain(|name| listed.contains(&NamespacedName::new("", name)))
            }
            Event::Failing(failure @ Failure::Forbidden(_)) => {
                tracing::warn!(%failure, "other installations can't be observed: they must serve other namespaces");
            }
            Event::Bookmark(_)
            | Event::Listed(_)
            | Event::Interrupted
            | Event::Resumed
            | Event::Failing(_) => {}
        }
        self.settle_overlap(&before, now);
    }

    /// Our own `Lessor` was observed: its age counts.
    pub(super) fn rank_own_lessor(&mut self, lessor: &Lessor, now: &Now) {
        let before = self.overlap.left();
        self.overlap.observe_own(lessor);
        self.settle_overlap(&before, now);
    }

    /// Forgets what is in namespaces that are left to another installation now, and lists anew what isn't any more.
    fn settle_overlap(&mut self, before: &BTreeSet<String>, now: &Now) {
        let left = self.overlap.left();
        if left == *before {
            return;
        }
        match self.overlap.summary() {
            Some(summary) => tracing::warn!(%summary, "another installation serves namespaces of this one"),
            None => tracing::info!("no other installation serves a namespace of this one any more"),
        }
        self.reporting.kinds.write_again(Duration::ZERO);
        self.forget_left(now);
        let regained = |namespace: &String| match namespace.as_str() {
            ALL_NAMESPACES => !left.contains(ALL_NAMESPACES),
            namespace => !self.is_left(namespace),
        };
        if before.iter().any(regained) {
            self.index.watches.all_interrupted(now);
            self.out.relist = true;
        }
    }

    fn forget_left(&mut self, now: &Now) {
        let attached = self.index.attachments.iter().map(|(id, _)| id);
        let attached: Vec<ObjectId> =
            attached.filter(|id| self.is_left(&id.name.namespace)).cloned().collect();
        for id in attached {
            self.index.attachments.remove(&id, None);
            self.requests.object_gone(&id);
            self.enqueue_object(&id, now);
        }
        let leases = self.index.leases.iter();
        let leases: Vec<_> = leases
            .filter(|(_, entry)| self.is_left(&entry.record.name.namespace))
            .map(|(uid, _)| *uid)
            .collect();
        for uid in leases {
            self.remove_lease(uid, ResourceVersion::MAX, now);
        }
    }
}
