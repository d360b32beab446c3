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
    /// How that watch fails, until it reports something.
    lessor_failure: Option<Failure>,
    /// The watches of leases.
    leases: BTreeMap<Scope, LeaseWatch>,
}

/// A watch of leases.
#[derive(Clone, Debug, Default, Hash)]
struct LeaseWatch {
    /// Whether it has listed all leases.
    listed: bool,
    /// How it fails, until it reports something.
    failure: Option<Failure>,
}

impl LeaseWatch {
    /// Whether there is nothing to wait for: it fails for a reason of its scope, which waiting doesn't end.
    fn is_settled(&self) -> bool {
        self.listed || matches!(self.failure, Some(Failure::Forbidden(_)))
    }
}

impl Readiness {
    /// Nothing was listed yet.
    pub(super) fn new(scopes: Vec<Scope>) -> Self {
        Self {
            lessor_listed: false,
            lessor_failure: None,
            leases: scopes.into_iter().map(|scope| (scope, LeaseWatch::default())).collect(),
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
    pub(super) fn lease_reported(&mut self, scope: &Scope) {
        if let Some(watch) = self.leases.get_mut(scope) {
            watch.failure = None;
        }
    }

    /// A watch of leases has reported all of them. Returns whether it's the first time, and no other scope has to be waited for.
    pub(super) fn leases_synced(&mut self, scope: Scope) -> bool {
        let watch = self.leases.entry(scope).or_default();
        let is_first = !std::mem::replace(&mut watch.listed, true);
        watch.failure = None;
        is_first && self.leases_settled()
    }

    /// A watch of leases fails.
    pub(super) fn leases_failed(&mut self, scope: Scope, failure: Failure) {
        let what = leases_in(&scope);
        log_failure(&what, failure, &mut self.leases.entry(scope).or_default().failure);
    }

    /// Whether all leases of a namespace were listed. Before that, a lease that isn't in the index may exist.
    pub(super) fn leases_listed(&self, namespace: &str) -> bool {
        let mut covering =
            self.leases.iter().filter(|(scope, _)| scope.as_deref().is_none_or(|scope| scope == namespace));
        covering.all(|(_, watch)| watch.listed)
    }

    /// Whether no watch of leases has to be waited for, and one has listed them.
    fn leases_settled(&self) -> bool {
        self.leases.values().all(LeaseWatch::is_settled) && self.leases.values().any(|watch| watch.listed)
    }

    /// Whether the replica may act.
    pub(super) fn is_ready(&self, kinds: &WatchHealth) -> bool {
        self.lessor_listed && self.leases_settled() && kinds.unseen().next().is_none()
    }

    /// The namespaces whose leases can't be read, for users, each with what is wrong. Others are served.
    pub(super) fn unserved(&self) -> impl Iterator<Item = (&str, String)> {
        self.leases.iter().filter_map(|(scope, watch)| {
            let failure = watch.failure.as_ref().filter(|_| watch.is_settled())?;
            Some((scope.as_deref().unwrap_or_default(), missing(&leases_in(scope), Some(failure))))
        })
    }

    /// What has to be listed before the replica may act, for users; empty when it [may](Self::is_ready).
    pub(super) fn missing(&self, kinds: &WatchHealth) -> Vec<String> {
        let lessor = (!self.lessor_listed).then(|| missing(LESSORS, self.lessor_failure.as_ref()));
        let none_listed = !self.leases.values().any(|watch| watch.listed);
        let missed =
            self.leases.iter().filter(|(_, watch)| !watch.listed && (none_listed || !watch.is_settled()));
        let leases = missed.map(|(scope, watch)| missing(&leases_in(scope), watch.failure.as_ref()));
        let kinds = kinds.unseen().map(|kind| missing(kind, None));
        lessor.into_iter().chain(leases).chain(kinds).collect()
    }

    /// Hashes everything that decides what comes next.
    pub(super) fn hash_state(&self, state: &mut impl Hasher) {
        (self.lessor_listed, &self.leases).hash(state);
    }
}

fn leases_in(scope: &Scope) -> String {
    scope.as_ref().map_or(LEASES.to_owned(), |scope| format!("{LEASES} in {scope}"))
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
