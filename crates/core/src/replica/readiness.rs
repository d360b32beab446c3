//! Whether a replica has observed enough to act: our `Lessor`, all leases, and all attachable kinds that can be watched.

use std::{
    collections::BTreeMap,
    hash::{Hash, Hasher},
};

use crate::{
    observation::{Failure, Scope},
    watch_health::WatchHealth,
};

const LESSORS: &str = "lessors.lessor.dev";
const LEASES: &str = "leases.lessor.dev";

/// What was listed since the start.
#[derive(Clone, Debug)]
pub(super) struct Readiness {
    lessor_listed: bool,
    /// Whether all leases were listed, by scope.
    leases_listed: BTreeMap<Scope, bool>,
    /// How these watches fail, until they report something.
    lessor_failure: Option<Failure>,
    lease_failure: Option<Failure>,
}

impl Readiness {
    /// Nothing was listed yet.
    pub(super) fn new(scopes: Vec<Scope>) -> Self {
        Self {
            lessor_listed: false,
            leases_listed: scopes.into_iter().map(|scope| (scope, false)).collect(),
            lessor_failure: None,
            lease_failure: None,
        }
    }

    /// The watch of our `Lessor` reported it, or its absence.
    pub(super) fn lessor_reported(&mut self, whole_list: bool) {
        self.lessor_listed |= whole_list;
        self.lessor_failure = None;
    }

    /// The watch of our `Lessor` fails.
    pub(super) fn lessor_failed(&mut self, failure: Failure) {
        log_failure(LESSORS, failure, &mut self.lessor_failure);
    }

    /// A watch of leases reported one.
    pub(super) fn lease_reported(&mut self) {
        self.lease_failure = None;
    }

    /// A watch of leases has reported all of them. Returns whether this makes all scopes complete.
    pub(super) fn leases_synced(&mut self, scope: Scope) -> bool {
        let were_listed = self.all_leases_listed();
        self.leases_listed.insert(scope, true);
        self.lease_failure = None;
        !were_listed && self.all_leases_listed()
    }

    /// A watch of leases fails.
    pub(super) fn leases_failed(&mut self, failure: Failure) {
        log_failure(LEASES, failure, &mut self.lease_failure);
    }

    /// Whether all leases were listed. Before that, a lease that isn't in the index may exist.
    pub(super) fn all_leases_listed(&self) -> bool {
        self.leases_listed.values().all(|listed| *listed)
    }

    /// Whether the replica may act.
    pub(super) fn is_ready(&self, kinds: &WatchHealth) -> bool {
        self.lessor_listed && self.all_leases_listed() && kinds.unseen().next().is_none()
    }

    /// What has to be listed before the replica may act, for users; empty when it [may](Self::is_ready).
    pub(super) fn missing(&self, kinds: &WatchHealth) -> Vec<String> {
        let lessor = (!self.lessor_listed).then(|| missing(LESSORS, self.lessor_failure.as_ref()));
        let leases = self.leases_listed.iter().filter(|(_, listed)| !**listed).map(|(scope, _)| {
            let what = scope.as_ref().map_or(LEASES.to_owned(), |scope| format!("{LEASES} in {scope}"));
            missing(&what, self.lease_failure.as_ref())
        });
        let kinds = kinds.unseen().map(|kind| missing(kind, None));
        lessor.into_iter().chain(leases).chain(kinds).collect()
    }

    /// Hashes everything that decides what comes next.
    pub(super) fn hash_state(&self, state: &mut impl Hasher) {
        (self.lessor_listed, &self.leases_listed).hash(state);
    }
}

fn missing(what: &str, failure: Option<&Failure>) -> String {
    match failure {
        Some(Failure::NoSuchKind) => {
            format!("{what} is not installed: apply the CRDs, `lessor crd | kubectl apply -f -`")
        }
        Some(failure) => format!("{what} can't be watched: {failure}"),
        None => format!("{what} has not been listed yet"),
    }
}

/// Logs how a watch fails, once as long as it fails in the same way.
fn log_failure(kind: &str, failure: Failure, known: &mut Option<Failure>) {
    if known.as_ref() != Some(&failure) {
        match &failure {
            Failure::NoSuchKind => {
                tracing::warn!(kind, "kind not installed: apply the CRDs, `lessor crd | kubectl apply -f -`");
            }
            Failure::Unreachable(_) => tracing::debug!(kind, %failure, "watch fails, retrying"),
            failure => tracing::warn!(kind, %failure, "watch fails, retrying"),
        }
    }
    *known = Some(failure);
}
