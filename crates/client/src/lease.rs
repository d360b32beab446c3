//! A lease in the hands of its holder.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use lessor_api::{Lease, time};
use serde_json::{Value, json};

use super::{Error, KeepAlive, LeaseClient, Pace, clock::Moment, http::Answer, validity::Belief};

/// A lease that was granted or renewed by this program, and what that lets it believe.
///
/// Dropping it does nothing: the lease lives until its time is over. [`HeldLease::keep_alive`] prolongs it,
/// [`HeldLease::revoke`] ends it.
#[derive(Clone, Debug)]
pub struct HeldLease {
    client: LeaseClient,
    name: String,
    uid: String,
    lease: Lease,
    belief: Belief,
}

impl HeldLease {
    /// # Errors
    /// [`Error::NotGranted`], if the answer shows a lease that isn't.
    pub(super) fn new(client: LeaseClient, answer: Answer<Lease>) -> Result<Self, Error> {
        let name = answer.object.metadata.name.clone().unwrap_or_default();
        let Some(belief) = Belief::new(&answer) else {
            return Err(Error::NotGranted { lease: name, waited: answer.sent.elapsed() });
        };
        let uid = answer.object.metadata.uid.clone().unwrap_or_default();
        Ok(Self { client, name, uid, lease: answer.object, belief })
    }

    /// Renews it once.
    ///
    /// # Errors
    /// [`Error::Ended`], [`Error::NotFound`] and [`Error::Replaced`] if it's over. After any other error it
    /// lives on as long as [`HeldLease::deadline`] says, and trying again may help.
    pub async fn renew(&mut self) -> Result<(), Error> {
        let timeout = self.client.timeout;
        self.renew_within(timeout).await
    }

    pub(super) async fn renew_within(&mut self, timeout: Duration) -> Result<(), Error> {
        let patch = renewal(self.lease.spec.renew_time.as_deref(), Some(&self.uid));
        let answer = self.client.patch_lease(&self.name, patch, timeout).await?;
        // A server that has never granted it can't have ended it either; it can only have lost its status.
        self.belief = self.belief.renewed(&answer).ok_or(Error::Ended)?;
        self.lease = answer.object;
        Ok(())
    }

    /// Keeps it alive in the background, from now on, as it's good for most.
    pub fn keep_alive(self) -> KeepAlive {
        KeepAlive::start(self, Pace::default())
    }

    /// Revokes it: ends it now, with everything attached to it.
    ///
    /// # Errors
    /// What can go wrong with any request. That it's gone already is none.
    pub async fn revoke(&self) -> Result<(), Error> {
        match self.client.revoke(&self.name, Some(&self.uid)).await {
            // The server answers a conflict where the uid is another's.
            Ok(()) | Err(Error::NotFound(_) | Error::Conflict(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its identity: another lease of the same name has another.
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// The object, as the server last showed it to the holder.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The client that holds it.
    pub fn client(&self) -> &LeaseClient {
        &self.client
    }

    /// How long it lives without a renewal: what was granted, not what was asked for.
    pub fn ttl(&self) -> Duration {
        self.belief.ttl
    }

    /// The moment until which it lives at least. The server's deadline is later.
    pub fn deadline(&self) -> Moment {
        self.belief.deadline
    }

    /// The moment before the last renewal, or the grant, was asked for.
    pub fn renewed_at(&self) -> Moment {
        self.belief.since
    }

    /// Whether [`HeldLease::deadline`] is where its longest lifetime ends, so that no renewal will help.
    pub fn is_capped(&self) -> bool {
        self.belief.capped
    }

    /// Greater than that of every earlier lease of this name: systems that the lease guards refuse a smaller
    /// one than they have seen.
    pub fn fencing_token(&self) -> i64 {
        self.lease.status.as_ref().and_then(|status| status.fencing_token).unwrap_or_default()
    }
}

/// The patch that renews a lease: the one with this uid, where it's known.
pub(super) fn renewal(previous: Option<&str>, uid: Option<&str>) -> Value {
    let mut patch = json!({"spec": {"renewTime": time::renewal(Timestamp::now(), previous)}});
    // The server refuses a patch with another uid than the object's, so that no request that comes late
    // renews a lease that somebody else has made under this name.
    if let Some(uid) = uid {
        patch["metadata"] = json!({"uid": uid});
    }
    patch
}
