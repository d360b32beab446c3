//! A lease and its holder.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use lessor_api::{Lease, time};
use serde_json::{Value, json};

use super::{
    boot_instant::BootInstant, client::LeaseClient, error::Error, http::TimedResponse, validity::Validity,
};

/// A lease that this program was granted or has renewed, with the deadline until which it may rely on it.
///
/// Dropping it does nothing: the lease lives until its deadline. [`HeldLease::keep_alive`] prolongs it, and
/// [`HeldLease::revoke`] ends it.
#[derive(Clone, Debug)]
pub struct HeldLease {
    client: LeaseClient,
    name: String,
    uid: String,
    lease: Lease,
    validity: Validity,
}

impl HeldLease {
    /// # Errors
    /// [`Error::NotGranted`] if the lease in the response isn't granted.
    pub(super) fn new(client: LeaseClient, response: TimedResponse<Lease>) -> Result<Self, Error> {
        let name = response.object.metadata.name.clone().unwrap_or_default();
        let Some(validity) = Validity::new(&response) else {
            return Err(Error::NotGranted { lease: name, waited: response.sent.elapsed() });
        };
        let uid = response.object.metadata.uid.clone().unwrap_or_default();
        Ok(Self { client, name, uid, lease: response.object, validity })
    }

    /// Renews the lease once.
    ///
    /// # Errors
    /// [`Error::Ended`], [`Error::NotFound`] and [`Error::Replaced`] if the lease has ended. After any other error it is
    /// alive until [`HeldLease::deadline`], and another attempt may succeed.
    pub async fn renew(&mut self) -> Result<(), Error> {
        self.renew_within(self.client.timeout()).await
    }

    pub(super) async fn renew_within(&mut self, timeout: Duration) -> Result<(), Error> {
        let patch = renewal(self.lease.spec.renew_time.as_deref(), Some(&self.uid));
        let response = self.client.patch_lease(&self.name, patch, timeout).await?;
        // A lease that was granted, and is not any more, has lost its status.
        self.validity = self.validity.renewed(&response).ok_or(Error::Ended)?;
        self.lease = response.object;
        Ok(())
    }

    /// Revokes the lease: ends it now, with everything attached to it.
    ///
    /// # Errors
    /// The errors of any request. If the lease is gone already, that is no error.
    pub async fn revoke(&self) -> Result<(), Error> {
        match self.client.revoke(&self.name, Some(&self.uid)).await {
            // The API server responds with a conflict if the uid differs.
            Ok(()) | Err(Error::NotFound(_) | Error::Conflict(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The uid, which no other lease has.
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// The object in the last response.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The client that granted or renewed the lease.
    pub fn client(&self) -> &LeaseClient {
        &self.client
    }

    /// The granted TTL, which may differ from the requested one.
    pub fn ttl(&self) -> Duration {
        self.validity.ttl
    }

    /// The lease is alive until then at least. The deadline of the operator is later.
    pub fn deadline(&self) -> BootInstant {
        self.validity.deadline
    }

    /// The instant before the request of the last renewal, or of the grant.
    pub fn renewed_at(&self) -> BootInstant {
        self.validity.since
    }

    /// Whether [`HeldLease::deadline`] is the end of the maximum lifetime, which no renewal moves.
    pub fn is_capped(&self) -> bool {
        self.validity.capped
    }

    /// Greater than the token of every earlier lease of this name. A system that the lease protects rejects a token smaller
    /// than one it has accepted.
    pub fn fencing_token(&self) -> i64 {
        self.lease.status.as_ref().and_then(|status| status.fencing_token).unwrap_or_default()
    }
}

impl LeaseClient {
    /// Renews a lease by its name, even if it has another holder. The result can be kept alive.
    ///
    /// # Errors
    /// [`Error::Ended`], [`Error::NotFound`], [`Error::NotGranted`], and the errors of any request.
    pub async fn renew(&self, name: &str) -> Result<HeldLease, Error> {
        let response = self.patch_lease(name, renewal(None, None), self.timeout()).await?;
        HeldLease::new(self.clone(), response)
    }
}

/// The patch that renews a lease. With `uid`, the API server rejects it for a later lease of the same name.
fn renewal(previous: Option<&str>, uid: Option<&str>) -> Value {
    let mut patch = json!({"spec": {"renewTime": time::renewal(Timestamp::now(), previous)}});
    if let Some(uid) = uid {
        patch["metadata"] = json!({"uid": uid});
    }
    patch
}

/// `metadata.resourceVersion`, which only increases.
pub(super) fn resource_version(lease: &Lease) -> u64 {
    lease.metadata.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or_default()
}
