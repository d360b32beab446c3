//! Renewing a lease in the background, and reporting its loss at once.

use std::{future::Future, pin::pin, sync::Arc, time::Duration};

use futures::{
    StreamExt, future,
    stream::{self, BoxStream},
};
use lessor_api::{Lease, lease::ENDED_MESSAGE};
use tokio::{sync::watch as channel, task::JoinHandle};

use super::{
    boot_instant::BootInstant,
    error::Error,
    informer::Seen,
    lease::{HeldLease, resource_version},
    watch,
};

/// The delay after the first failed renewal. It doubles with each further one.
const FIRST_DELAY: Duration = Duration::from_millis(100);
/// The longest delay after a failed renewal.
const MAX_DELAY: Duration = Duration::from_secs(5);
/// The shortest timeout of a renewal.
const MIN_TIMEOUT: Duration = Duration::from_millis(50);
/// The largest default of [`KeepAliveOptions::margin`].
const MAX_DEFAULT_MARGIN: Duration = Duration::from_secs(1);

/// How a lease is kept alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeepAliveOptions {
    /// How long before the deadline a lease that can't be renewed counts as lost: the time that the holder needs to stop the
    /// work that the lease protects. Default: a tenth of the TTL, and at most one second.
    pub margin: Option<Duration>,
    /// Whether to watch the lease, so that a revocation is noticed at once and not by the next renewal. All leases that a
    /// [`LeaseClient`](super::LeaseClient) has granted share one watch; one that it renews by its name has its own. Default: true.
    pub watch: bool,
}

impl Default for KeepAliveOptions {
    fn default() -> Self {
        Self { margin: None, watch: true }
    }
}

impl KeepAliveOptions {
    /// Sets [`KeepAliveOptions::margin`].
    #[must_use]
    pub fn with_margin(self, margin: Duration) -> Self {
        Self { margin: Some(margin), ..self }
    }

    /// Turns [`KeepAliveOptions::watch`] off.
    #[must_use]
    pub fn without_watch(self) -> Self {
        Self { watch: false, ..self }
    }

    fn margin_of(&self, ttl: Duration) -> Duration {
        self.margin.unwrap_or_else(|| MAX_DEFAULT_MARGIN.min(ttl / 10))
    }
}

/// What happened to a lease that is kept alive.
#[derive(Clone, Debug)]
pub enum KeepAliveEvent {
    /// The lease was granted or renewed.
    Renewed {
        /// The number of renewals so far.
        renewals: u64,
        /// How long it lives after this renewal.
        ttl: Duration,
    },
    /// A renewal failed and will be repeated. The lease is alive.
    Failing {
        /// Why it failed.
        error: Error,
        /// The number of failures in a row.
        failures: u32,
        /// The time until the next attempt.
        next: Duration,
    },
    /// The lease is lost. No event follows.
    Lost(LossReason),
}

/// Why a holder has lost its lease.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LossReason {
    /// It has ended.
    #[error("{ENDED_MESSAGE}")]
    Ended,
    /// A user has deleted it.
    #[error("the lease was revoked: grant a new one")]
    Revoked,
    /// It doesn't exist any more.
    #[error("the lease is gone: grant a new one")]
    Gone,
    /// Another lease has its name.
    #[error("the lease is gone, and another lease of this name exists")]
    Replaced,
    /// It has reached its maximum lifetime.
    #[error("the lease has reached its maximum lifetime: grant a new one")]
    MaxLifetime,
    /// It couldn't be renewed in time. On the server it may live longer, but the holder can't rely on that.
    #[error("the lease could not be renewed in time: {0}")]
    NotRenewed(Error),
}

impl LossReason {
    /// The loss that an error of a renewal implies, if any.
    fn of(error: &Error) -> Option<Self> {
        match error {
            Error::Ended => Some(Self::Ended),
            Error::NotFound(_) => Some(Self::Gone),
            Error::Replaced => Some(Self::Replaced),
            _ => None,
        }
    }
}

/// A lease that a background task keeps alive, until it is lost or this is dropped.
///
/// Dropping it stops the renewals, and the lease expires at its deadline. [`KeepAlive::stop`] returns the lease, for example to
/// revoke it.
///
/// # Guarantees
///
/// - It renews after a third of the TTL, with jitter, and repeats failed renewals as long as the lease is alive.
/// - [`KeepAlive::is_alive`] is never true once the operator may have expired the lease. It reads the clock itself, so this
///   holds even if the process or the machine was suspended.
/// - [`KeepAlive::lost`] completes before the deadline if the lease couldn't be renewed, and at once if it was revoked.
///
/// # Caveats
///
/// The tokio runtime's threads must not be blocked: the task can't renew or report while it doesn't run.
#[derive(Debug)]
pub struct KeepAlive {
    progress: channel::Receiver<Progress>,
    options: KeepAliveOptions,
    task: JoinHandle<()>,
}

/// The lease as last renewed, and the last event.
#[derive(Clone, Debug)]
struct Progress {
    lease: HeldLease,
    event: KeepAliveEvent,
}

impl KeepAlive {
    /// Keeps `lease` alive from now on.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start(lease: HeldLease, options: KeepAliveOptions) -> Self {
        let event = KeepAliveEvent::Renewed { renewals: 0, ttl: lease.ttl() };
        let (sender, mut progress) = channel::channel(Progress { lease: lease.clone(), event });
        progress.mark_changed();
        let renewer =
            Renewer { lease, options, sender, renewals: 0, failure: None, changed_meanwhile: false };
        Self { progress, options, task: tokio::spawn(renewer.run()) }
    }

    /// Waits until the lease is lost, and returns the reason. Cancel-safe; may be called repeatedly.
    pub async fn lost(&self) -> LossReason {
        let mut progress = self.progress.clone();
        let reason = |progress: &Progress| match &progress.event {
            KeepAliveEvent::Lost(reason) => Some(reason.clone()),
            _ => None,
        };
        let lost = progress.wait_for(|progress| reason(progress).is_some()).await;
        // The task ends without a loss only when the runtime shuts down.
        lost.ok().and_then(|progress| reason(&progress)).unwrap_or_else(|| {
            LossReason::NotRenewed(Error::NoResponse("the program is shutting down".to_owned()))
        })
    }

    /// The next event; `None` after the loss of the lease. The first event is the lease as given to [`KeepAlive::start`].
    /// Events that aren't fetched are replaced by newer ones. Cancel-safe.
    pub async fn next(&mut self) -> Option<KeepAliveEvent> {
        self.progress.changed().await.ok()?;
        Some(self.progress.borrow_and_update().event.clone())
    }

    /// Runs `work` as long as the lease is alive. Drops it if the lease is lost first.
    ///
    /// # Errors
    /// Why the lease was lost.
    pub async fn guard<T>(&self, work: impl Future<Output = T>) -> Result<T, LossReason> {
        tokio::select! {
            biased;
            reason = self.lost() => Err(reason),
            output = work => Ok(output),
        }
    }

    /// Whether the lease is certainly alive. Call it directly before an action that requires the lease, and let the system
    /// that performs the action compare the fencing token as well.
    pub fn is_alive(&self) -> bool {
        let progress = self.progress.borrow();
        !matches!(progress.event, KeepAliveEvent::Lost(_))
            && !lost_at(&progress.lease, self.options).is_past()
    }

    /// Until when the lease counts as alive without another renewal: its deadline, less the margin.
    pub fn alive_until(&self) -> BootInstant {
        lost_at(&self.progress.borrow().lease, self.options)
    }

    /// The lease as last renewed.
    pub fn lease(&self) -> HeldLease {
        self.progress.borrow().lease.clone()
    }

    /// Stops the renewals.
    pub(super) fn abort(&self) {
        self.task.abort();
    }

    /// Stops the renewals, and returns the lease.
    pub fn stop(self) -> HeldLease {
        self.lease()
    }
}

impl Drop for KeepAlive {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl HeldLease {
    /// Keeps the lease alive in the background with the default options.
    pub fn keep_alive(self) -> KeepAlive {
        KeepAlive::start(self, KeepAliveOptions::default())
    }
}

/// When a lease counts as lost without another renewal.
fn lost_at(lease: &HeldLease, options: KeepAliveOptions) -> BootInstant {
    lease.deadline().before(options.margin_of(lease.ttl()))
}

/// The background task.
struct Renewer {
    lease: HeldLease,
    options: KeepAliveOptions,
    sender: channel::Sender<Progress>,
    renewals: u64,
    /// The last failure since the last renewal, and the number of failures.
    failure: Option<(Error, u32)>,
    /// The lease was changed during a renewal.
    changed_meanwhile: bool,
}

/// What a watched version of the lease means to its holder.
enum WatchFinding {
    /// The terms of the lease have changed, or it may be gone. A renewal returns the TTL that is granted now, or fails.
    Changed,
    Lost(LossReason),
}

impl Renewer {
    async fn run(mut self) {
        let reason = self.renew_until_lost().await;
        self.sender.send_modify(|progress| progress.event = KeepAliveEvent::Lost(reason));
    }

    async fn renew_until_lost(&mut self) -> LossReason {
        let mut versions = versions(&self.lease, self.options.watch);
        let mut next = self.next_renewal();
        loop {
            if let Err(reason) = self.run_while_alive(&mut versions, next.reached(), true).await {
                return reason;
            }
            let mut lease = self.lease.clone();
            let timeout = (self.lost_at().remaining() / 2).max(MIN_TIMEOUT);
            let renewal = async move { lease.renew_within(timeout).await.map(|()| lease) };
            next = match self.run_while_alive(&mut versions, renewal, false).await {
                Ok(Some(Ok(lease))) => self.renewed(lease),
                Ok(Some(Err(error))) => match LossReason::of(&error) {
                    None => self.failed(error),
                    Some(reason) => return reason,
                },
                Ok(None) => BootInstant::now(),
                Err(reason) => return reason,
            };
        }
    }

    /// Runs `work` until it completes or the lease is lost. `None` if `stop_on_change` is set and the lease was changed.
    async fn run_while_alive<T>(
        &mut self,
        versions: &mut BoxStream<'_, Seen>,
        work: impl Future<Output = T>,
        stop_on_change: bool,
    ) -> Result<Option<T>, LossReason> {
        let mut work = pin!(work);
        let lost_at = self.lost_at();
        loop {
            tokio::select! {
                biased;
                Some(seen) = versions.next() => match self.examine(seen) {
                    Some(WatchFinding::Lost(reason)) => return Err(reason),
                    Some(WatchFinding::Changed) if stop_on_change => return Ok(None),
                    // The API server may have accepted the renewal in flight before the change, so renew again.
                    Some(WatchFinding::Changed) => self.changed_meanwhile = true,
                    None => {}
                },
                output = &mut work => return Ok(Some(output)),
                () = lost_at.reached() => return Err(self.not_renewed()),
            }
        }
    }

    /// What a watched version of the lease means to its holder.
    fn examine(&self, seen: Seen) -> Option<WatchFinding> {
        let Some(version) = seen else { return Some(WatchFinding::Changed) };
        // The watch may lag behind this task's renewals.
        if resource_version(&version) <= resource_version(self.lease.lease()) {
            return None;
        }
        if version.metadata.uid.as_deref() != Some(self.lease.uid()) {
            return Some(WatchFinding::Lost(LossReason::Replaced));
        }
        if version.is_ended() {
            return Some(WatchFinding::Lost(LossReason::Ended));
        }
        if version.metadata.deletion_timestamp.is_some() {
            return Some(WatchFinding::Lost(LossReason::Revoked));
        }
        (terms(&version) != terms(self.lease.lease())).then_some(WatchFinding::Changed)
    }

    /// Publishes a renewal. Returns when to renew next.
    fn renewed(&mut self, lease: HeldLease) -> BootInstant {
        self.renewals += 1;
        self.failure = None;
        self.lease = lease;
        let event = KeepAliveEvent::Renewed { renewals: self.renewals, ttl: self.lease.ttl() };
        self.sender.send_replace(Progress { lease: self.lease.clone(), event });
        if std::mem::take(&mut self.changed_meanwhile) { BootInstant::now() } else { self.next_renewal() }
    }

    /// Publishes a failure. Returns when to renew next.
    fn failed(&mut self, error: Error) -> BootInstant {
        let failures = self.failure.as_ref().map_or(0, |(_, failures)| *failures).saturating_add(1);
        let next = delay(&error, failures, self.lease.ttl(), self.lost_at().remaining());
        self.failure = Some((error.clone(), failures));
        self.sender
            .send_modify(|progress| progress.event = KeepAliveEvent::Failing { error, failures, next });
        BootInstant::now().after(next)
    }

    fn not_renewed(&self) -> LossReason {
        if self.lease.is_capped() {
            return LossReason::MaxLifetime;
        }
        let error = self.failure.as_ref().map(|(error, _)| error.clone());
        LossReason::NotRenewed(error.unwrap_or_else(|| Error::NoResponse("none in time".to_owned())))
    }

    fn lost_at(&self) -> BootInstant {
        lost_at(&self.lease, self.options)
    }

    /// A third of the TTL after the last renewal, with jitter, so that holders that start together don't renew together.
    fn next_renewal(&self) -> BootInstant {
        self.lease.renewed_at().after((self.lease.ttl() / 3).mul_f64(0.9 + 0.2 * fastrand::f64()))
    }
}

/// The watched versions of a lease: by the watch that all leases of its client share, if it has granted the lease. Errors of
/// the watch are skipped, because renewals find the same out later.
fn versions(lease: &HeldLease, watch: bool) -> BoxStream<'static, Seen> {
    let client = lease.client();
    if !watch {
        stream::pending().boxed()
    } else if client.informer().selects(lease.lease()) {
        let subscription = client.subscribe(lease.name());
        stream::unfold(subscription, async |subscription| Some((subscription.next().await, subscription)))
            .boxed()
    } else {
        let changes = watch::changes(client, lease.name());
        let versions = changes.filter_map(|change| future::ready(change.ok()));
        versions.map(|lease| lease.map(Arc::new)).chain(stream::pending()).boxed()
    }
}

/// The fields that determine when a lease ends, except renewals.
fn terms(lease: &Lease) -> (i64, Option<i64>, Option<i64>) {
    let granted = lease.status.as_ref().and_then(|status| status.granted_ttl_seconds);
    (lease.spec.ttl_seconds, lease.spec.max_lifetime_seconds, granted)
}

/// The delay after a failure: at most half of the remaining time, so that at least one more attempt fits.
fn delay(error: &Error, failures: u32, ttl: Duration, remaining: Duration) -> Duration {
    let doubled = FIRST_DELAY.saturating_mul(1 << (failures - 1).min(16));
    let delay = doubled.min(ttl / 10).min(MAX_DELAY).mul_f64(0.75 + 0.25 * fastrand::f64());
    let retry_after = match error {
        Error::Throttled(Some(retry_after)) => *retry_after,
        _ => Duration::ZERO,
    };
    delay.max(retry_after).min(remaining / 2)
}

#[cfg(test)]
mod tests;
