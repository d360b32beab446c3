//! Leases as any reader sees them.

use std::{fmt, time::Duration};

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::Condition,
    jiff::{SignedDuration, Timestamp},
};
use kube::{
    Resource,
    api::ListParams,
    core::{ObjectList, Request},
};
use lessor_api::{
    Lease, Recorded,
    duration::seconds,
    lease::{condition, following, reason},
    time,
};

use super::{client::LeaseClient, error::Error, http::TimedResponse};

/// The maximum number of leases in one response.
const PAGE_SIZE: u32 = 500;

/// A lease, and the API server's clock when the lease was read.
#[derive(Clone, Debug)]
pub struct LeaseSnapshot {
    /// The object.
    pub lease: Lease,
    /// The API server's clock.
    pub now: Timestamp,
}

/// Leases, and the API server's clock when they were listed.
#[derive(Clone, Debug)]
pub struct LeaseListing {
    /// The leases.
    pub leases: Vec<LeaseSnapshot>,
    /// The API server's clock.
    pub now: Timestamp,
}

/// The state of a lease in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SnapshotState {
    /// Not granted yet.
    Pending,
    /// Active; its TTL runs.
    Granted,
    /// Active; its TTL is paused.
    Suspended,
    /// Deleted by a user; the primary hasn't ended it yet.
    Revoking,
    /// Ended because its time was over.
    Expired,
    /// Ended by a deletion before its time was over.
    Revoked,
}

impl SnapshotState {
    /// Whether the lease is active.
    pub fn is_active(self) -> bool {
        matches!(self, Self::Granted | Self::Suspended)
    }

    /// Whether the lease has ended.
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Expired | Self::Revoked)
    }
}

impl fmt::Display for SnapshotState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Pending => "Pending",
            Self::Granted => reason::GRANTED,
            Self::Suspended => reason::SUSPENDED,
            Self::Revoking => "Revoking",
            Self::Expired => reason::EXPIRED,
            Self::Revoked => reason::REVOKED,
        })
    }
}

impl LeaseSnapshot {
    /// The state of the lease.
    pub fn state(&self) -> SnapshotState {
        let status = self.lease.status.as_ref();
        let active = status
            .and_then(|status| status.conditions.iter().find(|found| found.type_ == condition::ACTIVE))
            .map(|active| active.reason.as_str());
        match active {
            Some(reason::REVOKED) => SnapshotState::Revoked,
            Some(reason::EXPIRED) => SnapshotState::Expired,
            _ if self.lease.is_ended() => SnapshotState::Expired,
            _ if self.lease.metadata.deletion_timestamp.is_some() => SnapshotState::Revoking,
            Some(reason::SUSPENDED) => SnapshotState::Suspended,
            Some(_) => SnapshotState::Granted,
            None => SnapshotState::Pending,
        }
    }

    /// The granted TTL. `None` before the grant.
    pub fn granted_ttl(&self) -> Option<Duration> {
        self.lease.status.as_ref()?.granted_ttl_seconds.map(seconds)
    }

    /// The shortest time until the lease expires without another renewal. `None` unless it is active, and while a source
    /// keeps it alive.
    ///
    /// The operator doesn't update the status at every renewal. The API server's record of the last write of `renewTime`, in
    /// whole seconds, makes up for it.
    pub fn remaining(&self) -> Option<Duration> {
        let status = self.lease.status.as_ref()?;
        let ttl = self.granted_ttl()?;
        match self.state() {
            SnapshotState::Suspended => return status.remaining_seconds.map(seconds),
            SnapshotState::Granted => {}
            _ => return None,
        }
        let since = |instant: Timestamp| time::between(instant, self.now);
        let granted = status.grant_time.as_ref().map(|time| time.0);
        // Renewals by the source are not in the lease's managedFields.
        let follows = self.following().is_some_and(|following| {
            following.status == "True"
                || [following::NOT_ENABLED, following::UNWATCHED].contains(&&*following.reason)
        });
        let renewed = Recorded::read(&self.lease).renewed.max(granted).filter(|_| !follows);
        let by_renewal = renewed.map(|renewed| ttl.saturating_sub(since(renewed)));
        let by_status = status.expiry_time.as_ref().map(|expiry| time::between(self.now, expiry.0).min(ttl));
        let remaining = by_renewal.max(by_status)?;
        let lifetime = granted.zip(self.lease.spec.max_lifetime_seconds);
        let left = lifetime.map(|(granted, lifetime)| seconds(lifetime).saturating_sub(since(granted)));
        Some(left.map_or(remaining, |left| left.min(remaining)))
    }

    /// The source that the lease follows, like `node/worker-1`.
    pub fn follows(&self) -> Option<&str> {
        Some(&*self.lease.status.as_ref()?.follows.as_ref()?.source)
    }

    /// The condition `Following`: whether the source keeps the lease alive, and why not.
    pub fn following(&self) -> Option<&Condition> {
        let conditions = &self.lease.status.as_ref()?.conditions;
        conditions.iter().find(|found| found.type_ == condition::FOLLOWING)
    }

    /// The time since the lease was created.
    pub fn age(&self) -> Option<Duration> {
        let created = self.lease.metadata.creation_timestamp.as_ref()?.0;
        Some(time::between(created, self.now))
    }

    /// Why the release of an ended lease is hindered, if it is.
    pub fn hindrance(&self) -> Option<&str> {
        let conditions = &self.lease.status.as_ref()?.conditions;
        let released = conditions.iter().find(|found| found.type_ == condition::RELEASED)?;
        (released.status == "False").then_some(&*released.message)
    }
}

/// The API server's clock at the response: the middle of the second in `Date`, or else this machine's clock.
fn server_time<T>(response: &TimedResponse<T>) -> Timestamp {
    let half = SignedDuration::from_millis(500);
    response.date.and_then(|date| date.checked_add(half).ok()).unwrap_or_else(Timestamp::now)
}

impl LeaseClient {
    /// Reads a lease.
    ///
    /// # Errors
    /// [`Error::NotFound`], and the errors of any request.
    pub async fn get(&self, name: &str) -> Result<LeaseSnapshot, Error> {
        let response = self.read(name).await?;
        Ok(LeaseSnapshot { now: server_time(&response), lease: response.object })
    }

    /// Lists the leases of the namespace, or of all namespaces, whose labels match `selector`. An empty selector matches all.
    ///
    /// # Errors
    /// The errors of any request.
    pub async fn list(&self, selector: &str, all_namespaces: bool) -> Result<LeaseListing, Error> {
        let mut params = ListParams::default().labels(selector).limit(PAGE_SIZE);
        let mut leases = Vec::new();
        loop {
            let response = self.list_page(&params, all_namespaces).await?;
            let now = server_time(&response);
            leases.extend(response.object.items.into_iter().map(|lease| LeaseSnapshot { lease, now }));
            match response.object.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(LeaseListing { leases, now }),
            }
        }
    }

    /// The API server's clock, from the response to a list request in the namespace, or in all namespaces.
    ///
    /// # Errors
    /// The errors of any request.
    pub async fn server_time(&self, all_namespaces: bool) -> Result<Timestamp, Error> {
        Ok(server_time(&self.list_page(&ListParams::default().limit(1), all_namespaces).await?))
    }

    async fn list_page(
        &self,
        params: &ListParams,
        all_namespaces: bool,
    ) -> Result<TimedResponse<ObjectList<Lease>>, Error> {
        let requests = Request::new(Lease::url_path(&(), (!all_namespaces).then_some(self.namespace())));
        self.send(requests.list(params)).await
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn snapshot(spec: Value, mut status: Value, managed: Value) -> LeaseSnapshot {
        if status["conditions"].is_null() {
            let time = "2026-01-31T12:00:00Z";
            let active = json!({"type": "Active", "status": "True", "reason": "Granted", "message": "",
                                "lastTransitionTime": time});
            status["conditions"] = json!([active]);
        }
        let lease = json!({
            "apiVersion": "lessor.dev/v1alpha1", "kind": "Lease",
            "metadata": {"name": "a", "managedFields": managed}, "spec": spec, "status": status,
        });
        let now = "2026-01-31T12:01:00Z".parse().unwrap();
        LeaseSnapshot { lease: serde_json::from_value(lease).unwrap(), now }
    }

    fn renewed_at(time: &str) -> Value {
        json!([{"manager": "holder", "operation": "Update", "time": time,
                "fieldsV1": {"f:spec": {"f:renewTime": {}}}}])
    }

    fn status(expiry: &str) -> Value {
        json!({"grantedTTLSeconds": 30, "grantTime": "2026-01-31T12:00:00.000000Z", "expiryTime": expiry})
    }

    #[test]
    fn a_renewal_counts_before_the_status_shows_it() {
        let spec = || json!({"ttlSeconds": 30});
        let remaining = |snapshot: LeaseSnapshot| snapshot.remaining().unwrap().as_secs();
        let old = "2026-01-31T12:01:02.000000Z";
        assert_eq!(remaining(snapshot(spec(), status(old), json!([]))), 2);
        assert_eq!(remaining(snapshot(spec(), status(old), renewed_at("2026-01-31T12:00:58Z"))), 28);
        // The primary's clock is ahead. No lease lives longer than its TTL without a renewal.
        assert_eq!(remaining(snapshot(spec(), status("2026-01-31T13:00:00.000000Z"), json!([]))), 30);
        // The end is overdue.
        assert_eq!(remaining(snapshot(spec(), status("2026-01-31T12:00:30.000000Z"), json!([]))), 0);
    }

    #[test]
    fn the_remaining_time_is_limited_by_the_maximum_lifetime() {
        let spec = json!({"ttlSeconds": 30, "maxLifetimeSeconds": 70});
        let snapshot =
            snapshot(spec, status("2026-01-31T12:01:10.000000Z"), renewed_at("2026-01-31T12:00:58Z"));
        assert_eq!(snapshot.remaining().unwrap().as_secs(), 10);
    }

    #[test]
    fn the_state_is_the_reason_of_active_unless_the_lease_is_being_revoked() {
        let granted = snapshot(json!({"ttlSeconds": 30}), status("2026-01-31T12:01:02.000000Z"), json!([]));
        assert_eq!(granted.state(), SnapshotState::Granted);
        let mut revoking = granted.clone();
        revoking.lease.metadata.deletion_timestamp =
            serde_json::from_value(json!("2026-01-31T12:01:00Z")).unwrap();
        assert_eq!(revoking.state(), SnapshotState::Revoking);
        assert_eq!(revoking.remaining(), None);
        let mut pending = granted;
        pending.lease.status = None;
        assert_eq!((pending.state(), pending.remaining()), (SnapshotState::Pending, None));
    }
}
