//! Checks what happened against what was promised: an audit log in, violations of P1–P5 out.
//!
//! ```no_run
//! # async fn example() -> Result<(), lessor_cluster::Error> {
//! # let cluster = lessor_cluster::Cluster::start().await?;
//! use lessor_checker::{Checker, Request};
//! let requests: Vec<Request> = cluster.audit()?.entries()?.into_iter().filter_map(Request::from_audit).collect();
//! let report = Checker::new("system:serviceaccount:lessor:lessor").check(&requests);
//! assert!(report.violations.is_empty(), "{report}");
//! # Ok(()) }
//! ```
//!
//! It shares no code with the operator: what annotations mean, when a lease is due and what ends it are written down here a
//! second time, from the documentation.
//!
//! # What is checked
//!
//! - **P1, P2**: between the last accepted renewal (or the grant) of a lease and the request that committed its expiry lies
//!   the TTL at least, less suspensions and outages; or the maximum lifetime has passed. Where a lease follows something, each
//!   beat of that is as good as a renewal if it was accepted before the deadline, and no time passes as long as its Pod lives. After the end no change of spec is
//!   accepted, and the end stays.
//! - **P3**: whatever the operator removes was attached, in the very version that the request is bound to, to a lease that had
//!   ended and wasn't released; and it removes nothing else.
//! - **P4**: when the finalizer of an ended lease goes, nothing is left of what was attached before the end; the operator's
//!   finalizer is there from the grant on; the lease itself goes last.
//! - **P5**: on each object, terms never decrease; each status that the operator writes carries one; a term has one primary.
//!
//! # Soundness
//!
//! Writes are ordered by the `resourceVersion` that they produced, which counts for all objects of one API server. Where
//! there is none, as for deletions, the times at which the API server received the requests decide, in favour of the
//! operator: a correct operator sends a request only after it has seen its cause, so the API server receives it after it
//! received the cause's request. Nothing is reported that could have been right; a violation shorter than a request takes
//! can be missed.
//!
//! Needed are the bodies of all writes of leases, lessors, attached objects and what leases follow: audit level
//! `RequestResponse`. What isn't in the log can't convict anybody.

mod annotations;
mod follow;
mod history;
mod life;
mod promises;
mod report;
mod request;
#[cfg(test)]
mod tests;

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

pub use report::{Figures, Promise, Report, Violation};
pub use request::Request;

/// What the checker has to know beside the log.
#[derive(Clone, Debug)]
pub struct Checker {
    operator: String,
    max_ttl: Option<Duration>,
    outages: Vec<Outage>,
    deaths: Vec<Timestamp>,
}

/// A time in which the API server could not be reached.
#[derive(Clone, Copy, Debug)]
struct Outage {
    from: Timestamp,
    to: Timestamp,
    /// Up to when a replica can lead that has met it.
    known_until: Timestamp,
}

impl Checker {
    /// For an operator whose replicas are users with names that begin with `operator`.
    pub fn new(operator: impl Into<String>) -> Self {
        Self { operator: operator.into(), max_ttl: None, outages: Vec::new(), deaths: Vec::new() }
    }

    /// The operator's `--max-ttl`: longer ones are granted as this.
    pub fn max_ttl(mut self, max_ttl: Duration) -> Self {
        self.max_ttl = Some(max_ttl);
        self
    }

    /// The API server could not be reached between these times, so lease time stood still (P8).
    pub fn outage(self, from: Timestamp, to: Timestamp) -> Self {
        self.outage_known_until(from, to, Timestamp::MAX)
    }

    /// The same, where all replicas that have met it are gone after `known_until`: it counts for ends before.
    pub fn outage_known_until(mut self, from: Timestamp, to: Timestamp, known_until: Timestamp) -> Self {
        self.outages.push(Outage { from, to, known_until });
        self
    }

    /// The API server died at this time, so what it did last may not be in the log.
    pub fn death(mut self, at: Timestamp) -> Self {
        self.deaths.push(at);
        self
    }

    /// Checks these requests, in whatever order.
    pub fn check(&self, requests: &[Request]) -> Report {
        promises::check(self, requests)
    }

    fn is_operator(&self, request: &Request) -> bool {
        request.user.starts_with(&self.operator)
    }
}
