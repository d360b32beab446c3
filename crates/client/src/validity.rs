//! How long a holder may rely on its lease: pure arithmetic on one response of the API server.
//!
//! The operator counts the TTL from the instant at which the API server accepted a renewal, and the holder from the instant
//! before it sent the renewal. So the holder's deadline is always the earlier one, whatever the network and the clocks do.

use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use lessor_api::{Lease, duration::seconds, time};

use super::{boot_instant::BootInstant, http::TimedResponse};

/// `Date` is rounded down to the second, so the API server's clock was less than this ahead of it.
const DATE_PRECISION: SignedDuration = SignedDuration::from_secs(1);

/// Until when a holder may rely on its lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct Validity {
    /// How long the lease lives after a renewal.
    pub(super) ttl: Duration,
    /// The instant before the last renewal was sent.
    pub(super) since: BootInstant,
    /// The lease is alive until then at least.
    pub(super) deadline: BootInstant,
    /// Whether the deadline is the end of `spec.maxLifetimeSeconds`, which no renewal moves.
    pub(super) capped: bool,
    requested_ttl: i64,
    /// Set after a change of `spec.ttlSeconds`: the primary hasn't observed it while `status.specGeneration` is below
    /// this.
    unobserved_below: Option<i64>,
}

impl Validity {
    /// The validity after a grant or a first renewal. `None` if the lease isn't granted.
    pub(super) fn new(response: &TimedResponse<Lease>) -> Option<Self> {
        let expired = Self {
            ttl: Duration::ZERO,
            since: response.sent,
            deadline: response.sent,
            capped: false,
            requested_ttl: response.object.spec.ttl_seconds,
            unobserved_below: None,
        };
        expired.renewed(response)
    }

    /// The validity after another renewal. `None` if the lease isn't granted.
    pub(super) fn renewed(mut self, response: &TimedResponse<Lease>) -> Option<Self> {
        self.ttl = self.granted_ttl(&response.object)?;
        self.since = response.sent;
        self.deadline = response.sent.after(self.ttl);
        self.capped = false;
        if let Some(left) = lifetime_left(response)
            && left <= self.ttl
        {
            self.deadline = response.sent.after(left);
            self.capped = true;
        }
        Some(self)
    }

    /// The granted TTL. While the primary may not have observed a change of the requested TTL: the smaller of the two.
    fn granted_ttl(&mut self, lease: &Lease) -> Option<Duration> {
        let status = lease.status.as_ref()?;
        let (requested, granted) = (lease.spec.ttl_seconds, status.granted_ttl_seconds?);
        if requested != self.requested_ttl {
            self.requested_ttl = requested;
            self.unobserved_below = lease.metadata.generation;
        }
        let observed = status.spec_generation.unwrap_or_default();
        let unobserved = self.unobserved_below.is_some_and(|generation| observed < generation);
        if !unobserved {
            self.unobserved_below = None;
        }
        Some(seconds(if unobserved { granted.min(requested) } else { granted }))
    }
}

/// The shortest possible time from the request to the end of the lease's maximum lifetime. `None` if there is no maximum.
fn lifetime_left(response: &TimedResponse<Lease>) -> Option<Duration> {
    let lifetime = seconds(response.object.spec.max_lifetime_seconds?);
    let granted = response.object.status.as_ref()?.grant_time.as_ref()?.0;
    let latest_now = response.date.unwrap_or_else(Timestamp::now).saturating_add(DATE_PRECISION).ok()?;
    Some(lifetime.saturating_sub(time::between(granted, latest_now)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn response(spec: Value, status: Value, generation: i64) -> TimedResponse<Lease> {
        let lease = json!({
            "apiVersion": "lessor.dev/v1alpha1", "kind": "Lease",
            "metadata": {"name": "a", "generation": generation},
            "spec": spec, "status": status,
        });
        TimedResponse {
            object: serde_json::from_value(lease).unwrap(),
            sent: BootInstant::now(),
            date: Some("2026-01-31T12:00:10Z".parse().unwrap()),
        }
    }

    fn seconds_left(validity: Validity) -> u64 {
        validity.deadline.remaining().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn the_ttl_counts_from_the_instant_before_the_request() {
        let response = response(json!({"ttlSeconds": 30}), json!({"grantedTTLSeconds": 30}), 1);
        tokio::time::advance(Duration::from_secs(4)).await;
        assert!(Validity::new(&response).unwrap().deadline.remaining() <= Duration::from_secs(26));
    }

    #[tokio::test(start_paused = true)]
    async fn the_granted_ttl_counts_and_not_the_requested_one() {
        let granted = |ttl: i64| {
            let status = json!({"grantedTTLSeconds": ttl, "specGeneration": 1});
            Validity::new(&response(json!({"ttlSeconds": 10}), status, 1)).unwrap().ttl.as_secs()
        };
        assert_eq!(granted(30), 30);
        assert_eq!(granted(5), 5);
        assert!(Validity::new(&response(json!({"ttlSeconds": 10}), json!({}), 1)).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_shorter_ttl_counts_at_once_and_a_longer_one_once_it_is_granted() {
        let status = |granted: i64, seen: i64| json!({"grantedTTLSeconds": granted, "specGeneration": seen});
        let validity = Validity::new(&response(json!({"ttlSeconds": 30}), status(30, 1), 1)).unwrap();

        let shorter = validity.renewed(&response(json!({"ttlSeconds": 10}), status(30, 1), 5)).unwrap();
        assert_eq!(shorter.ttl.as_secs(), 10);
        // The primary has written the status since, but for an earlier generation.
        let shorter = shorter.renewed(&response(json!({"ttlSeconds": 10}), status(30, 4), 6)).unwrap();
        assert_eq!(shorter.ttl.as_secs(), 10);
        // The operator's minimum is 15 s.
        let shorter = shorter.renewed(&response(json!({"ttlSeconds": 10}), status(15, 5), 7)).unwrap();
        assert_eq!(shorter.ttl.as_secs(), 15);

        let longer = validity.renewed(&response(json!({"ttlSeconds": 60}), status(30, 1), 5)).unwrap();
        assert_eq!(longer.ttl.as_secs(), 30);
        let longer = longer.renewed(&response(json!({"ttlSeconds": 60}), status(60, 5), 6)).unwrap();
        assert_eq!(longer.ttl.as_secs(), 60);
    }

    #[tokio::test(start_paused = true)]
    async fn the_validity_ends_with_the_maximum_lifetime_by_the_api_servers_clock() {
        let with_lifetime = |lifetime: i64| {
            let spec = json!({"ttlSeconds": 30, "maxLifetimeSeconds": lifetime});
            let status = json!({"grantedTTLSeconds": 30, "grantTime": "2026-01-31T12:00:00.000000Z"});
            Validity::new(&response(spec, status, 1)).unwrap()
        };
        // Granted ten seconds ago, perhaps eleven.
        let capped = with_lifetime(20);
        let left = capped.deadline.remaining();
        assert!(capped.capped && left <= Duration::from_secs(9) && left > Duration::from_secs(8), "{left:?}");
        let not_yet = with_lifetime(60);
        assert!(!not_yet.capped && (29..=30).contains(&seconds_left(not_yet)), "{not_yet:?}");
        assert_eq!(seconds_left(with_lifetime(5)), 0);
    }
}
