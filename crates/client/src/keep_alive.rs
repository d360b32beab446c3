//! Keeping a lease alive in the background, and noticing at once when it's lost.

use std::{
    future::Future,
    pin::{Pin, pin},
    time::Duration,
};

use futures::{Stream, StreamExt, future, stream};
use lessor_api::{Lease, lease::ENDED_MESSAGE};
use tokio::{sync::watch, task::JoinHandle};

use super::{Error, HeldLease, clock::Moment, observe};

/// The first pause after a renewal that failed; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause between renewals that fail.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// No try is given up sooner than this.
const SHORTEST_TRY: Duration = Duration::from_millis(50);
/// How long before the deadline the holder is told, at most.
const LONGEST_MARGIN: Duration = Duration::from_secs(1);

/// How a lease is kept alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pace {
    /// How long before the deadline a lease that can't be renewed counts as lost. Default: a tenth of the
    /// TTL, and no more than a second. What the holder needs to stop whatever the lease stands for should fit
    /// in.
    pub margin: Option<Duration>,
    /// Whether the lease is watched, so that a revoke is noticed at once and not by the next renewal. Costs
    /// one open watch. Default: yes.
    pub watch: bool,
}

impl Default for Pace {
    fn default() -> Self {
        Self { margin: None, watch: true }
    }
}

impl Pace {
    /// Another margin: see [`Pace::margin`].
    #[must_use]
    pub fn with_margin(self, margin: Duration) -> Self {
        Self { margin: Some(margin), ..self }
    }

    /// No watch: see [`Pace::watch`].
    #[must_use]
    pub fn without_watch(self) -> Self {
        Self { watch: false, ..self }
    }

    fn margin_of(&self, ttl: Duration) -> Duration {
        self.margin.unwrap_or_else(|| LONGEST_MARGIN.min(ttl / 10))
    }
}

/// What happened to a lease that is kept alive.
#[derive(Clone, Debug)]
pub enum Beat {
    /// It was granted or renewed.
    Renewed {
        /// How often until now.
        renewals: u64,
        /// How long it lives without a further renewal.
        ttl: Duration,
    },
    /// A renewal failed, and the next one is on its way. The lease lives.
    Failing {
        /// Why.
        error: Error,
        /// How many have failed in a row.
        failures: u32,
        /// How long until the next try.
        next: Duration,
    },
    /// It's over, or has to be taken for it. Nothing follows.
    Lost(Lost),
}

/// Why a lease is over for its holder.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Lost {
    /// Its end is committed.
    #[error("{ENDED_MESSAGE}")]
    Ended,
    /// Somebody has deleted it; its end is under way.
    #[error("the lease was revoked: grant a new one")]
    Revoked,
    /// It isn't there any more.
    #[error("the lease is gone: grant a new one")]
    Gone,
    /// Another one of this name has taken its place.
    #[error("the lease is gone, and another of this name has been made since")]
    Replaced,
    /// It has reached its longest lifetime.
    #[error("the lease has reached its longest lifetime: grant a new one")]
    Outlived,
    /// It couldn't be renewed in time. On the server it may live on for a moment, or for long if the server
    /// is what failed; but that can't be relied on.
    #[error("the lease could not be renewed in time: {0}")]
    NotRenewed(Error),
}

impl Lost {
    /// Whether an error of a renewal means that the lease is over.
    fn of(error: &Error) -> Option<Self> {
        match error {
            Error::Ended => Some(Self::Ended),
            Error::NotFound(_) => Some(Self::Gone),
            Error::Replaced => Some(Self::Replaced),
            _ => None,
        }
    }
}

/// A lease that is kept alive by a task in the background, until it's lost or this is dropped.
///
/// Dropping it only ends the renewals. The lease itself lives on until its time is over: [`KeepAlive::stop`]
/// gives it back, to be revoked.
///
/// # Guarantees
///
/// - It renews at a third of the TTL, with jitter, and after a failure again and again as long as the lease
///   lives.
/// - [`KeepAlive::is_alive`] is never true when the server may have ended the lease by time. It looks at the
///   clock itself, so it holds even where the program was stopped, or the machine slept.
/// - [`KeepAlive::lost`] is done before the deadline if the lease couldn't be renewed, and at once if it was
///   revoked.
///
/// # Caveats
///
/// Needs a runtime whose threads aren't blocked: a task that doesn't run can't renew, nor tell.
#[derive(Debug)]
pub struct KeepAlive {
    state: watch::Receiver<State>,
    pace: Pace,
    task: JoinHandle<()>,
}

#[derive(Clone, Debug)]
struct State {
    held: HeldLease,
    beat: Beat,
}

impl KeepAlive {
    /// Keeps `held` alive from now on.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start(held: HeldLease, pace: Pace) -> Self {
        let beat = Beat::Renewed { renewals: 0, ttl: held.ttl() };
        let (sender, mut state) = watch::channel(State { held: held.clone(), beat });
        state.mark_changed();
        let keeper = Keeper { held, pace, sender, renewals: 0, failure: None, again: false };
        Self { state, pace, task: tokio::spawn(keeper.run()) }
    }

    /// Waits until the lease is lost, and says why. Safe to cancel, and to call again.
    pub async fn lost(&self) -> Lost {
        let mut state = self.state.clone();
        let lost = |state: &State| match &state.beat {
            Beat::Lost(lost) => Some(lost.clone()),
            _ => None,
        };
        match state.wait_for(|state| lost(state).is_some()).await.ok().and_then(|state| lost(&state)) {
            Some(lost) => lost,
            // The task was ended by the runtime's shutdown; nothing renews any more.
            None => Lost::NotRenewed(Error::NoAnswer("the program is ending".to_owned())),
        }
    }

    /// The next thing that happens; `None` after the lease is lost. Of several things in a short time only
    /// the last is told. The first is the lease as it was when this began. Safe to cancel.
    pub async fn next(&mut self) -> Option<Beat> {
        self.state.changed().await.ok()?;
        Some(self.state.borrow_and_update().beat.clone())
    }

    /// Does `work` as long as the lease lives: if it's lost first, the work is dropped where it is.
    ///
    /// # Errors
    /// Why the lease was lost.
    pub async fn guard<T>(&self, work: impl Future<Output = T>) -> Result<T, Lost> {
        tokio::select! {
            biased;
            lost = self.lost() => Err(lost),
            done = work => Ok(done),
        }
    }

    /// Whether the lease lives, for certain. Ask it right before whatever must not be done without the lease,
    /// and let the system that it's done to compare the fencing token all the same.
    pub fn is_alive(&self) -> bool {
        let state = self.state.borrow();
        !matches!(state.beat, Beat::Lost(_)) && !lost_at(&state.held, self.pace).is_past()
    }

    /// The lease as last renewed.
    pub fn held(&self) -> HeldLease {
        self.state.borrow().held.clone()
    }

    /// Renews no more, and gives the lease back.
    pub fn stop(self) -> HeldLease {
        self.held()
    }
}

impl Drop for KeepAlive {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// When a lease counts as lost if it isn't renewed.
fn lost_at(held: &HeldLease, pace: Pace) -> Moment {
    held.deadline().before(pace.margin_of(held.ttl()))
}

/// The task that keeps a lease alive.
struct Keeper {
    held: HeldLease,
    pace: Pace,
    sender: watch::Sender<State>,
    renewals: u64,
    /// The last failure since the last renewal, and how many there were.
    failure: Option<(Error, u32)>,
    /// The lease was changed while a renewal was under way.
    again: bool,
}

/// What the watch shows of a lease, as far as it matters to its holder.
enum Sign {
    /// Somebody has changed what the lease is like: a renewal will tell what is granted now.
    Changed,
    Lost(Lost),
}

impl Keeper {
    async fn run(mut self) {
        let lost = self.keep().await;
        self.sender.send_modify(|state| state.beat = Beat::Lost(lost));
    }

    async fn keep(&mut self) -> Lost {
        let mut signs = pin!(changes(&self.held, self.pace.watch));
        let mut next = self.next_renewal();
        loop {
            match self.attend(&mut signs, next.come(), true).await {
                Ok(_) => {}
                Err(lost) => return lost,
            }
            let mut held = self.held.clone();
            let patience = (self.lost_at().remaining() / 2).max(SHORTEST_TRY);
            let renewal = async move { held.renew_within(patience).await.map(|()| held) };
            next = match self.attend(&mut signs, renewal, false).await {
                Ok(Some(Ok(held))) => self.renewed(held),
                Ok(Some(Err(error))) => match Lost::of(&error) {
                    None => self.failed(error),
                    Some(lost) => return lost,
                },
                Ok(None) => Moment::now(),
                Err(lost) => return lost,
            };
        }
    }

    /// Does `work` unless the lease is lost meanwhile. `None`: the lease was changed, and the work may be
    /// left for that.
    async fn attend<T>(
        &mut self,
        signs: &mut Pin<&mut impl Stream<Item = Option<Lease>>>,
        work: impl Future<Output = T>,
        leave_on_change: bool,
    ) -> Result<Option<T>, Lost> {
        let mut work = pin!(work);
        let lost_at = self.lost_at();
        loop {
            tokio::select! {
                biased;
                Some(seen) = signs.next() => match self.sign(seen) {
                    Some(Sign::Lost(lost)) => return Err(lost),
                    Some(Sign::Changed) if leave_on_change => return Ok(None),
                    // The renewal that is under way may have been done before the change: one more.
                    Some(Sign::Changed) => self.again = true,
                    None => {}
                },
                done = &mut work => return Ok(Some(done)),
                () = lost_at.come() => return Err(self.not_renewed()),
            }
        }
    }

    /// What a version of the lease means to its holder.
    fn sign(&self, seen: Option<Lease>) -> Option<Sign> {
        let Some(seen) = seen else { return Some(Sign::Lost(Lost::Gone)) };
        // The watch may be behind our own renewals.
        if version(&seen) <= version(self.held.lease()) {
            return None;
        }
        if seen.metadata.uid.as_deref() != Some(self.held.uid()) {
            return Some(Sign::Lost(Lost::Replaced));
        }
        if seen.is_ended() {
            return Some(Sign::Lost(Lost::Ended));
        }
        if seen.metadata.deletion_timestamp.is_some() {
            return Some(Sign::Lost(Lost::Revoked));
        }
        (terms(&seen) != terms(self.held.lease())).then_some(Sign::Changed)
    }

    fn renewed(&mut self, held: HeldLease) -> Moment {
        self.renewals += 1;
        self.failure = None;
        self.held = held;
        let beat = Beat::Renewed { renewals: self.renewals, ttl: self.held.ttl() };
        self.sender.send_replace(State { held: self.held.clone(), beat });
        if std::mem::take(&mut self.again) { Moment::now() } else { self.next_renewal() }
    }

    fn failed(&mut self, error: Error) -> Moment {
        let failures = self.failure.as_ref().map_or(0, |(_, failures)| *failures).saturating_add(1);
        let next = pause(&error, failures, self.held.ttl(), self.lost_at().remaining());
        self.failure = Some((error.clone(), failures));
        self.sender.send_modify(|state| state.beat = Beat::Failing { error, failures, next });
        Moment::now().after(next)
    }

    fn not_renewed(&self) -> Lost {
        if self.held.is_capped() {
            return Lost::Outlived;
        }
        let error = self.failure.as_ref().map(|(error, _)| error.clone());
        Lost::NotRenewed(error.unwrap_or_else(|| Error::NoAnswer("none came in time".to_owned())))
    }

    fn lost_at(&self) -> Moment {
        lost_at(&self.held, self.pace)
    }

    /// A third of the TTL after the last renewal, more or less: holders that began together shall not go on
    /// together.
    fn next_renewal(&self) -> Moment {
        self.held.renewed_at().after((self.held.ttl() / 3).mul_f64(0.9 + 0.2 * fastrand::f64()))
    }
}

/// The versions of a lease as its watch shows them, without its troubles: renewals tell as much, only later.
fn changes(held: &HeldLease, watch: bool) -> impl Stream<Item = Option<Lease>> + use<> {
    let watched = watch.then(|| observe::changes(held.client(), held.name()));
    let seen = stream::iter(watched).flatten().filter_map(|change| future::ready(change.ok()));
    seen.chain(stream::pending())
}

/// `metadata.resourceVersion`, which only grows.
fn version(lease: &Lease) -> u64 {
    lease.metadata.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or_default()
}

/// What a lease promises, renewals aside.
fn terms(lease: &Lease) -> (i64, Option<i64>, Option<i64>) {
    let granted = lease.status.as_ref().and_then(|status| status.granted_ttl_seconds);
    (lease.spec.ttl_seconds, lease.spec.max_lifetime_seconds, granted)
}

/// How long to wait after a failure. At least one more try fits into what remains.
fn pause(error: &Error, failures: u32, ttl: Duration, remaining: Duration) -> Duration {
    let doubled = FIRST_PAUSE.saturating_mul(1 << (failures - 1).min(16));
    let pause = doubled.min(ttl / 10).min(LONGEST_PAUSE).mul_f64(0.75 + 0.25 * fastrand::f64());
    let asked = match error {
        Error::Throttled(Some(asked)) => *asked,
        _ => Duration::ZERO,
    };
    pause.max(asked).min(remaining / 2)
}

#[cfg(test)]
mod tests;
