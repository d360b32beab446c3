//! What can be read off a lease by somebody who doesn't hold it.

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
    lease::{condition, following, reason},
};

use super::{Error, LeaseClient, http::Answer, validity::seconds};

/// How many leases one request lists.
const PAGE: u32 = 500;

/// A lease, and the API server's clock when it was read.
#[derive(Clone, Debug)]
pub struct Reading {
    /// The object.
    pub lease: Lease,
    /// The server's clock.
    pub now: Timestamp,
}

/// Leases, and the API server's clock when they were listed.
#[derive(Clone, Debug)]
pub struct Listing {
    /// Each lease.
    pub readings: Vec<Reading>,
    /// The server's clock.
    pub now: Timestamp,
}

/// The state of a lease, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Nobody has granted it yet.
    Pending,
    /// It runs.
    Granted,
    /// It's active, and its time stands still.
    Suspended,
    /// Somebody has deleted it, and its end isn't committed yet.
    Revoking,
    /// It has ended by time.
    Expired,
    /// It has ended before its time.
    Revoked,
}

impl State {
    /// Whether the lease holds.
    pub fn is_active(self) -> bool {
        matches!(self, Self::Granted | Self::Suspended)
    }

    /// Whether it's over.
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Expired | Self::Revoked)
    }
}

impl fmt::Display for State {
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

impl Reading {
    /// The state of the lease.
    pub fn state(&self) -> State {
        let status = self.lease.status.as_ref();
        let active = status
            .and_then(|status| status.conditions.iter().find(|found| found.type_ == condition::ACTIVE))
            .map(|active| active.reason.as_str());
        match active {
            Some(reason::REVOKED) => State::Revoked,
            Some(reason::EXPIRED) => State::Expired,
            _ if self.lease.is_ended() => State::Expired,
            _ if self.lease.metadata.deletion_timestamp.is_some() => State::Revoking,
            Some(reason::SUSPENDED) => State::Suspended,
            Some(_) => State::Granted,
            None => State::Pending,
        }
    }

    /// The TTL that was granted. `None`: none yet.
    pub fn granted_ttl(&self) -> Option<Duration> {
        self.lease.status.as_ref()?.granted_ttl_seconds.map(seconds)
    }

    /// How long the lease lives without a further renewal, as far as the server shows it: the real end may be
    /// later. `None` unless it's active, and where what it follows keeps it alive.
    ///
    /// A renewal costs the operator no write, so the status may be older than the last one. The server's own
    /// record of who wrote `renewTime` when, by the second, makes up for it.
    pub fn remaining(&self) -> Option<Duration> {
        let status = self.lease.status.as_ref()?;
        let ttl = self.granted_ttl()?;
        match self.state() {
            State::Suspended => return status.remaining_seconds.map(seconds),
            State::Granted => {}
            _ => return None,
        }
        let since = |time: Timestamp| Duration::try_from(self.now.duration_since(time)).unwrap_or_default();
        let granted = status.grant_time.as_ref().map(|time| time.0);
        // What it follows renews it where nothing of that is recorded.
        let follows = self.following().is_some_and(|following| {
            following.status == "True"
                || [following::NOT_ENABLED, following::UNWATCHED].contains(&&*following.reason)
        });
        let renewed = Recorded::read(&self.lease).renewed.max(granted).filter(|_| !follows);
        let by_renewal = renewed.map(|renewed| ttl.saturating_sub(since(renewed)));
        let by_status = status
            .expiry_time
            .as_ref()
            .map(|expiry| Duration::try_from(expiry.0.duration_since(self.now)).unwrap_or_default().min(ttl));
        let remaining = by_renewal.max(by_status)?;
        let lifetime = granted.zip(self.lease.spec.max_lifetime_seconds);
        let left = lifetime.map(|(granted, lifetime)| seconds(lifetime).saturating_sub(since(granted)));
        Some(left.map_or(remaining, |left| left.min(remaining)))
    }

    /// What the lease follows, like `node/worker-1`.
    pub fn follows(&self) -> Option<&str> {
        Some(&*self.lease.status.as_ref()?.follows.as_ref()?.source)
    }

    /// The condition `Following`: whether what the lease follows keeps it alive, and why not.
    pub fn following(&self) -> Option<&Condition> {
        let conditions = &self.lease.status.as_ref()?.conditions;
        conditions.iter().find(|found| found.type_ == condition::FOLLOWING)
    }

    /// How old the lease is.
    pub fn age(&self) -> Option<Duration> {
        let created = self.lease.metadata.creation_timestamp.as_ref()?.0;
        Some(Duration::try_from(self.now.duration_since(created)).unwrap_or_default())
    }

    /// Why the release of an ended lease doesn't go on, if that's so.
    pub fn hindrance(&self) -> Option<&str> {
        let conditions = &self.lease.status.as_ref()?.conditions;
        let released = conditions.iter().find(|found| found.type_ == condition::RELEASED)?;
        (released.status == "False").then_some(&*released.message)
    }

    fn new<T>(answer: &Answer<T>, lease: Lease) -> Self {
        Self { lease, now: server_time(answer) }
    }
}

/// The server's clock when it answered: in the middle of the second that `Date` names. Without it, this
/// machine's.
fn server_time<T>(answer: &Answer<T>) -> Timestamp {
    let half = SignedDuration::from_millis(500);
    answer.date.and_then(|date| date.checked_add(half).ok()).unwrap_or_else(Timestamp::now)
}

impl LeaseClient {
    /// Reads a lease.
    ///
    /// # Errors
    /// [`Error::NotFound`], and what can go wrong with any request.
    pub async fn get(&self, name: &str) -> Result<Reading, Error> {
        let answer = self.read(name).await?;
        Ok(Reading::new(&answer, answer.object.clone()))
    }

    /// Lists leases of the namespace, or of all namespaces, whose labels match `selector`; all where it's
    /// empty.
    ///
    /// # Errors
    /// What can go wrong with any request.
    pub async fn list(&self, selector: &str, everywhere: bool) -> Result<Listing, Error> {
        let mut params = ListParams::default().labels(selector).limit(PAGE);
        let mut readings = Vec::new();
        loop {
            let answer = self.list_page(&params, everywhere).await?;
            let now = server_time(&answer);
            readings.extend(answer.object.items.into_iter().map(|lease| Reading { lease, now }));
            match answer.object.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(Listing { readings, now }),
            }
        }
    }

    /// Asks for the API server's clock, by listing a lease of the namespace, or of all namespaces.
    ///
    /// # Errors
    /// What can go wrong with any request.
    pub async fn server_time(&self, everywhere: bool) -> Result<Timestamp, Error> {
        Ok(server_time(&self.list_page(&ListParams::default().limit(1), everywhere).await?))
    }

    async fn list_page(
        &self,
        params: &ListParams,
        everywhere: bool,
    ) -> Result<Answer<ObjectList<Lease>>, Error> {
        let requests = Request::new(Lease::url_path(&(), (!everywhere).then_some(&self.namespace)));
        self.exchange(requests.list(params), self.timeout).await
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn reading(spec: Value, mut status: Value, managed: Value) -> Reading {
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
        Reading { lease: serde_json::from_value(lease).unwrap(), now }
    }

    fn renewed_at(time: &str) -> Value {
        json!([{"manager": "holder", "operation": "Update", "time": time,
                "fieldsV1": {"f:spec": {"f:renewTime": {}}}}])
    }

    fn status(expiry: &str) -> Value {
        json!({"grantedTTLSeconds": 30, "grantTime": "2026-01-31T12:00:00.000000Z", "expiryTime": expiry})
    }

    #[test]
    fn a_renewal_that_no_status_tells_of_yet_counts() {
        let spec = || json!({"ttlSeconds": 30});
        let remaining = |reading: Reading| reading.remaining().unwrap().as_secs();
        let old = "2026-01-31T12:01:02.000000Z";
        assert_eq!(remaining(reading(spec(), status(old), json!([]))), 2);
        assert_eq!(remaining(reading(spec(), status(old), renewed_at("2026-01-31T12:00:58Z"))), 28);
        // The primary's clock runs ahead: no lease lives longer than its TTL without a renewal.
        assert_eq!(remaining(reading(spec(), status("2026-01-31T13:00:00.000000Z"), json!([]))), 30);
        // It should have ended by now.
        assert_eq!(remaining(reading(spec(), status("2026-01-31T12:00:30.000000Z"), json!([]))), 0);
    }

    #[test]
    fn nothing_remains_beyond_the_longest_lifetime() {
        let spec = json!({"ttlSeconds": 30, "maxLifetimeSeconds": 70});
        let reading =
            reading(spec, status("2026-01-31T12:01:10.000000Z"), renewed_at("2026-01-31T12:00:58Z"));
        assert_eq!(reading.remaining().unwrap().as_secs(), 10);
    }

    #[test]
    fn the_state_is_the_reason_of_active_unless_it_is_being_revoked() {
        let granted = reading(json!({"ttlSeconds": 30}), status("2026-01-31T12:01:02.000000Z"), json!([]));
        assert_eq!(granted.state(), State::Granted);
        let mut revoking = granted.clone();
        revoking.lease.metadata.deletion_timestamp =
            serde_json::from_value(json!("2026-01-31T12:01:00Z")).unwrap();
        assert_eq!(revoking.state(), State::Revoking);
        assert_eq!(revoking.remaining(), None);
        let mut pending = granted;
        pending.lease.status = None;
        assert_eq!((pending.state(), pending.remaining()), (State::Pending, None));
    }
}
