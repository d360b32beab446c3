//! How long a holder may believe in its lease: pure arithmetic on one answer of the API server.
//!
//! The server counts from the moment at which it accepted a renewal, and the holder from the one before it
//! sent it, so the holder's count always ends first, whatever the network and both clocks do.

use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use lessor_api::Lease;

use super::{clock::Moment, http::Answer};

/// The `Date` of an answer is cut to the second: the server's clock was less than this ahead of it.
const DATE_PRECISION: SignedDuration = SignedDuration::from_secs(1);

/// What a holder takes for granted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Belief {
    /// How long the lease lives without a renewal.
    pub(super) ttl: Duration,
    /// The moment before the last renewal was sent.
    pub(super) since: Moment,
    /// The lease lives until then at least.
    pub(super) deadline: Moment,
    /// Whether `spec.maxLifetimeSeconds` is what ends it then, so that no renewal will help.
    pub(super) capped: bool,
    asked: i64,
    /// `spec.ttlSeconds` was changed, and the primary hasn't answered it as long as it has seen only
    /// generations before this one.
    unanswered_before: Option<i64>,
}

impl Belief {
    /// What the answer to a grant or to a first renewal lets its sender believe. `None`: the lease isn't
    /// granted.
    pub(super) fn new(answer: &Answer<Lease>) -> Option<Self> {
        let asked = answer.object.spec.ttl_seconds;
        let unfounded = Self {
            ttl: Duration::ZERO,
            since: answer.sent,
            deadline: answer.sent,
            capped: false,
            asked,
            unanswered_before: None,
        };
        unfounded.renewed(answer)
    }

    /// What the answer to one more renewal lets its sender believe. `None`: the lease isn't granted.
    pub(super) fn renewed(mut self, answer: &Answer<Lease>) -> Option<Self> {
        self.ttl = self.granted_ttl(&answer.object)?;
        self.since = answer.sent;
        self.deadline = answer.sent.after(self.ttl);
        self.capped = false;
        if let Some(left) = lifetime_left(answer)
            && left <= self.ttl
        {
            self.deadline = answer.sent.after(left);
            self.capped = true;
        }
        Some(self)
    }

    /// The TTL that counts: the one granted, unless another was asked for since and the primary may not have
    /// seen that yet; then the shorter of both.
    fn granted_ttl(&mut self, lease: &Lease) -> Option<Duration> {
        let status = lease.status.as_ref()?;
        let (asked, granted) = (lease.spec.ttl_seconds, status.granted_ttl_seconds?);
        if asked != self.asked {
            self.asked = asked;
            self.unanswered_before = lease.metadata.generation;
        }
        let seen = status.spec_generation.unwrap_or_default();
        let unanswered = self.unanswered_before.is_some_and(|generation| seen < generation);
        if !unanswered {
            self.unanswered_before = None;
        }
        Some(seconds(if unanswered { granted.min(asked) } else { granted }))
    }
}

/// How long after the request was sent the lease reaches its longest lifetime, at the earliest. `None`: it
/// has none.
fn lifetime_left(answer: &Answer<Lease>) -> Option<Duration> {
    let lifetime = seconds(answer.object.spec.max_lifetime_seconds?);
    let granted = answer.object.status.as_ref()?.grant_time.as_ref()?.0;
    let latest_now = answer.date.unwrap_or_else(Timestamp::now).saturating_add(DATE_PRECISION).ok()?;
    let age = Duration::try_from(latest_now.duration_since(granted)).unwrap_or_default();
    Some(lifetime.saturating_sub(age))
}

/// Seconds of the API as a duration; what is negative is none.
pub(super) fn seconds(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn answer(spec: Value, status: Value, generation: i64) -> Answer<Lease> {
        let lease = json!({
            "apiVersion": "lessor.dev/v1alpha1", "kind": "Lease",
            "metadata": {"name": "a", "generation": generation},
            "spec": spec, "status": status,
        });
        Answer {
            object: serde_json::from_value(lease).unwrap(),
            sent: Moment::now(),
            date: Some("2026-01-31T12:00:10Z".parse().unwrap()),
        }
    }

    fn seconds_left(belief: Belief) -> u64 {
        belief.deadline.remaining().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn belief_begins_when_the_request_is_sent() {
        let answer = answer(json!({"ttlSeconds": 30}), json!({"grantedTTLSeconds": 30}), 1);
        tokio::time::advance(Duration::from_secs(4)).await;
        assert!(Belief::new(&answer).unwrap().deadline.remaining() <= Duration::from_secs(26));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_granted_counts_and_not_what_was_asked_for() {
        let granted = |ttl: i64| {
            let status = json!({"grantedTTLSeconds": ttl, "specGeneration": 1});
            Belief::new(&answer(json!({"ttlSeconds": 10}), status, 1)).unwrap().ttl.as_secs()
        };
        assert_eq!(granted(30), 30);
        assert_eq!(granted(5), 5);
        assert!(Belief::new(&answer(json!({"ttlSeconds": 10}), json!({}), 1)).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_changed_ttl_counts_at_once_if_it_is_shorter_and_once_it_is_granted_if_it_is_longer() {
        let status = |granted: i64, seen: i64| json!({"grantedTTLSeconds": granted, "specGeneration": seen});
        let belief = Belief::new(&answer(json!({"ttlSeconds": 30}), status(30, 1), 1)).unwrap();

        let shorter = belief.renewed(&answer(json!({"ttlSeconds": 10}), status(30, 1), 5)).unwrap();
        assert_eq!(shorter.ttl.as_secs(), 10);
        // The primary has written something since, but not in answer to this.
        let shorter = shorter.renewed(&answer(json!({"ttlSeconds": 10}), status(30, 4), 6)).unwrap();
        assert_eq!(shorter.ttl.as_secs(), 10);
        // It grants no less than 15.
        let shorter = shorter.renewed(&answer(json!({"ttlSeconds": 10}), status(15, 5), 7)).unwrap();
        assert_eq!(shorter.ttl.as_secs(), 15);

        let longer = belief.renewed(&answer(json!({"ttlSeconds": 60}), status(30, 1), 5)).unwrap();
        assert_eq!(longer.ttl.as_secs(), 30);
        let longer = longer.renewed(&answer(json!({"ttlSeconds": 60}), status(60, 5), 6)).unwrap();
        assert_eq!(longer.ttl.as_secs(), 60);
    }

    #[tokio::test(start_paused = true)]
    async fn belief_ends_with_the_longest_lifetime_by_the_servers_clock() {
        let with_lifetime = |lifetime: i64| {
            let spec = json!({"ttlSeconds": 30, "maxLifetimeSeconds": lifetime});
            let status = json!({"grantedTTLSeconds": 30, "grantTime": "2026-01-31T12:00:00.000000Z"});
            Belief::new(&answer(spec, status, 1)).unwrap()
        };
        // Granted ten seconds ago; the eleventh may be over.
        let capped = with_lifetime(20);
        let left = capped.deadline.remaining();
        assert!(capped.capped && left <= Duration::from_secs(9) && left > Duration::from_secs(8), "{left:?}");
        let not_yet = with_lifetime(60);
        assert!(!not_yet.capped && (29..=30).contains(&seconds_left(not_yet)), "{not_yet:?}");
        assert_eq!(seconds_left(with_lifetime(5)), 0);
    }
}
