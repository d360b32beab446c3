//! Granting a lease: creating it, and waiting until the primary has granted it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use lessor_api::{
    AfterExpiry, Lease, LeaseSpec, RenewFrom,
    lease::{MAX_SECONDS, condition, reason},
};
use tokio::time::{sleep, timeout};

use super::{
    client::LeaseClient,
    error::Error,
    informer::Subscription,
    lease::{HeldLease, resource_version},
};

/// The default time to wait for a grant.
const DEFAULT_WAIT: Duration = Duration::from_secs(15);

/// How often a lease is read while the watch shows nothing of it, as without the right to watch.
const READ_INTERVAL: Duration = Duration::from_secs(1);

/// The lease to grant. Durations are rounded up to whole seconds.
///
/// ```
/// # use std::time::Duration;
/// # use lessor_client::Grant;
/// let grant = Grant::new("preview-42", Duration::from_secs(86_400))
///     .holder("pull-request-42")
///     .max_lifetime(Duration::from_secs(3 * 86_400))
///     .warn_before(Duration::from_secs(3_600))
///     .retain();
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Grant {
    name: String,
    spec: LeaseSpec,
    labels: BTreeMap<String, String>,
    wait: Duration,
}

impl Grant {
    /// A lease with the name `name` that lives for `ttl` after its last renewal.
    pub fn new(name: impl Into<String>, ttl: Duration) -> Self {
        let spec = LeaseSpec { ttl_seconds: rounded_up(ttl), ..LeaseSpec::default() };
        Self { name: name.into(), spec, labels: BTreeMap::new(), wait: DEFAULT_WAIT }
    }

    /// Who renews the lease, for information.
    pub fn holder(mut self, holder: impl Into<String>) -> Self {
        self.spec.holder = Some(holder.into());
        self
    }

    /// The lease ends at most this long after its grant, even if it is renewed.
    pub fn max_lifetime(mut self, lifetime: Duration) -> Self {
        self.spec.max_lifetime_seconds = Some(rounded_up(lifetime));
        self
    }

    /// When at most this much remains, the condition `Expiring` becomes True and an Event is emitted.
    pub fn warn_before(mut self, remaining: Duration) -> Self {
        self.spec.warn_before_seconds = Some(rounded_up(remaining));
        self
    }

    /// Keeps the Lease object after it has expired, for inspection.
    pub fn retain(mut self) -> Self {
        self.spec.after_expiry = AfterExpiry::Retain;
        self
    }

    /// A source that keeps the lease alive besides its holder: a heartbeat, a Pod, or another lease. The operator must be
    /// configured to watch sources of this kind.
    pub fn follow(mut self, source: RenewFrom) -> Self {
        self.spec.renew_from = Some(source);
        self
    }

    /// Adds a label to the lease.
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(name.into(), value.into());
        self
    }

    /// How long to wait for the grant. Default: 15 seconds.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// The name of the lease.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn lease(&self) -> Lease {
        let mut lease = Lease::new(&self.name, self.spec.clone());
        lease.metadata.labels = (!self.labels.is_empty()).then(|| self.labels.clone());
        lease
    }
}

impl LeaseClient {
    /// Grants a lease: creates it, and waits until the primary has granted it.
    ///
    /// # Errors
    ///
    /// [`Error::Exists`] if a lease of this name exists, even one that has ended and isn't released yet: see
    /// [`LeaseClient::wait_gone`]. [`Error::NotGranted`] if the primary doesn't grant it in time; the object exists then,
    /// and may be granted and expire later. After [`Error::NoResponse`] it may have been created or not.
    pub async fn grant(&self, grant: &Grant) -> Result<HeldLease, Error> {
        let mut lease = grant.lease();
        self.informer().label(&mut lease);
        // From before the creation, so that no version is missed.
        let versions = self.subscribe(&grant.name);
        let mut response = self.create(&lease).await?;
        response.object = match timeout(grant.wait, self.granted(&response.object, &versions)).await {
            Ok(granted) => Arc::unwrap_or_clone(granted?),
            Err(_) => return Err(Error::NotGranted { lease: grant.name.clone(), waited: grant.wait }),
        };
        let mut held = HeldLease::new(self.clone(), response)?;
        // The TTL counts from before the creation, so after a slow grant little or nothing of it is left.
        if held.deadline().remaining() < held.ttl() * 2 / 3 {
            held.renew().await?;
        }
        Ok(held)
    }

    /// Waits until the primary has granted a lease that was created.
    async fn granted(&self, created: &Lease, versions: &Subscription) -> Result<Arc<Lease>, Error> {
        let name = created.metadata.name.as_deref().unwrap_or_default();
        loop {
            let seen = tokio::select! {
                // The watch may show an earlier lease of this name.
                seen = versions.next() => seen.filter(|seen| resource_version(seen) > resource_version(created)),
                () = sleep(READ_INTERVAL) => match self.read(name).await {
                    Ok(response) => Some(Arc::new(response.object)),
                    Err(Error::NotFound(_)) => return Err(Error::Ended),
                    Err(error) if !error.is_temporary() => return Err(error),
                    Err(_) => None,
                },
            };
            match seen {
                Some(seen) if seen.metadata.uid != created.metadata.uid => return Err(Error::Replaced),
                Some(seen) if seen.is_ended() || seen.metadata.deletion_timestamp.is_some() => {
                    return Err(Error::Ended);
                }
                Some(seen) if has_started(&seen) => return Ok(seen),
                _ => {}
            }
        }
    }
}

/// Whether the primary has granted a lease. It sets the finalizer before that, so the end will be complete.
fn has_started(lease: &Lease) -> bool {
    let conditions = lease.status.iter().flat_map(|status| &status.conditions);
    conditions
        .filter(|active| active.type_ == condition::ACTIVE)
        .any(|active| [reason::GRANTED, reason::SUSPENDED].contains(&active.reason.as_str()))
}

/// Whole seconds, as in the API.
fn rounded_up(duration: Duration) -> i64 {
    let seconds = duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0));
    i64::try_from(seconds).unwrap_or(MAX_SECONDS + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_second_are_rounded_up() {
        let ttl = |duration| Grant::new("a", duration).spec.ttl_seconds;
        assert_eq!(ttl(Duration::from_secs(10)), 10);
        assert_eq!(ttl(Duration::from_millis(10_001)), 11);
        assert_eq!(ttl(Duration::from_millis(1)), 1);
        assert!(
            ttl(Duration::MAX) > MAX_SECONDS,
            "above the API's maximum, so that the API server rejects it"
        );
    }
}
