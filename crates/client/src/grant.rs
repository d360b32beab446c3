//! Grants: a lease made, and waited for until it runs.

use std::{collections::BTreeMap, time::Duration};

use lessor_api::{
    AfterExpiry, Lease, LeaseSpec, RenewFrom,
    lease::{MAX_SECONDS, condition, reason},
};

use super::{Error, LeaseClient, lease::HeldLease, observe};

/// How long a grant is waited for, unless it says otherwise.
const WAIT: Duration = Duration::from_secs(15);

/// What a lease shall be like. The API counts in seconds: parts of one are rounded up.
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
    /// A lease called `name` that lives for `ttl` without a renewal.
    pub fn new(name: impl Into<String>, ttl: Duration) -> Self {
        let spec = LeaseSpec { ttl_seconds: rounded_up(ttl), ..LeaseSpec::default() };
        Self { name: name.into(), spec, labels: BTreeMap::new(), wait: WAIT }
    }

    /// Who keeps it alive, for people.
    pub fn holder(mut self, holder: impl Into<String>) -> Self {
        self.spec.holder = Some(holder.into());
        self
    }

    /// It ends at the latest this long after its grant, however often it's renewed.
    pub fn max_lifetime(mut self, lifetime: Duration) -> Self {
        self.spec.max_lifetime_seconds = Some(rounded_up(lifetime));
        self
    }

    /// When this little remains, an Event and the condition `Expiring` say so.
    pub fn warn_before(mut self, remaining: Duration) -> Self {
        self.spec.warn_before_seconds = Some(rounded_up(remaining));
        self
    }

    /// The lease itself stays after it has expired, for people to look at.
    pub fn retain(mut self) -> Self {
        self.spec.after_expiry = AfterExpiry::Retain;
        self
    }

    /// What keeps it alive beside its holder: a heartbeat, a Pod, or another lease. The operator has to be told to look at
    /// such sources.
    pub fn follow(mut self, source: RenewFrom) -> Self {
        self.spec.renew_from = Some(source);
        self
    }

    /// A label of the lease.
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
    /// Grants a lease: makes it, and waits until the primary lessor has granted it.
    ///
    /// # Errors
    ///
    /// [`Error::Exists`] if there is one of this name, even one that has ended and isn't released yet: it may
    /// be [waited](LeaseClient::wait_gone) for. [`Error::NotGranted`] if nobody grants it in time; the object
    /// is there, and may be granted and expire later. After [`Error::NoAnswer`] nobody knows whether it was
    /// made.
    pub async fn grant(&self, grant: &Grant) -> Result<HeldLease, Error> {
        let mut answer = self.create(&grant.lease()).await?;
        let uid = answer.object.metadata.uid.clone();
        let running = observe::until(self, &grant.name, |lease| match lease {
            Some(lease) if lease.metadata.uid != uid => Some(Err(Error::Replaced)),
            Some(lease) if lease.is_ended() || lease.metadata.deletion_timestamp.is_some() => {
                Some(Err(Error::Ended))
            }
            Some(lease) => is_running(lease).then(|| Ok(lease.clone())),
            None => Some(Err(Error::Ended)),
        });
        answer.object = match tokio::time::timeout(grant.wait, running).await {
            Ok(lease) => lease??,
            Err(_) => return Err(Error::NotGranted { lease: grant.name.clone(), waited: grant.wait }),
        };
        let mut held = HeldLease::new(self.clone(), answer)?;
        // Time counts from before the lease was made; a grant that took long has left little of it, or
        // nothing.
        if held.deadline().remaining() < held.ttl() * 2 / 3 {
            held.renew().await?;
        }
        Ok(held)
    }
}

/// Whether the primary has granted a lease. The finalizer is in place by then, so its end will be complete.
fn is_running(lease: &Lease) -> bool {
    let conditions = lease.status.iter().flat_map(|status| &status.conditions);
    conditions
        .filter(|active| active.type_ == condition::ACTIVE)
        .any(|active| [reason::GRANTED, reason::SUSPENDED].contains(&active.reason.as_str()))
}

/// Whole seconds, as the API has them.
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
        assert!(ttl(Duration::MAX) > MAX_SECONDS, "the server shall refuse it, and not grant something else");
    }
}
