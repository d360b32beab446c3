//! Acquiring and releasing a lock: one acquisition is one call of `lock`, `try_lock` or `campaign`.

use std::{fmt, sync::Arc, time::Duration};

use futures::StreamExt;
use tokio::time::{sleep, timeout};

use super::{
    error::LockError,
    object::{LockObject, LockObjects},
    session::{SessionState, random_id},
};
use crate::{boot_instant::BootInstant, error::Error};

const FIRST_DELAY: Duration = Duration::from_millis(100);
const MAX_DELAY: Duration = Duration::from_secs(5);
/// How often those who wait read the lock at least.
const READ_INTERVAL: Duration = Duration::from_secs(5);
/// The longest random wait after a release, so that not all who wait create at once.
const MAX_STAGGER_MILLIS: u64 = 100;
/// How long after its last create an acquisition may leave a lock object behind.
const CLEAN_UP_FOR: Duration = Duration::from_secs(60);
const CLEAN_UP_INTERVAL: Duration = Duration::from_secs(1);

/// A lock that was acquired.
///
/// Dropping it releases it in the background; [`Lock::unlock`] waits until that is done.
#[must_use = "dropping the lock releases it"]
pub struct Lock {
    attempt: Attempt,
    uid: String,
    token: i64,
    acquired: BootInstant,
    released: bool,
}

impl Lock {
    /// The fencing token: greater than that of every earlier holder. Give it along with each protected write.
    pub fn token(&self) -> i64 {
        self.token
    }

    /// Whether the lock is certainly held. Call it directly before an action that requires the lock.
    pub fn is_held(&self) -> bool {
        !self.released && self.attempt.session.is_valid()
    }

    /// The name of the lock's ConfigMap.
    pub fn key(&self) -> &str {
        &self.attempt.objects.name
    }

    /// Releases the lock.
    ///
    /// # Errors
    /// [`LockError::SessionExpired`] if the session was lost before the API server accepted the release, and errors that
    /// don't pass. The lock is free when the lease ends then.
    pub async fn unlock(mut self) -> Result<(), LockError> {
        self.release().await
    }

    pub(super) fn uid(&self) -> &str {
        &self.uid
    }

    pub(super) fn objects(&self) -> &LockObjects {
        &self.attempt.objects
    }

    pub(super) fn session(&self) -> &SessionState {
        &self.attempt.session
    }

    async fn release(&mut self) -> Result<(), LockError> {
        self.released = true;
        let attempt = &self.attempt;
        attempt.session.guard(delete(&attempt.objects, &self.uid)).await?;
        attempt.session.released(&attempt.objects.name, self.acquired);
        self.attempt.may_exist = false;
        Ok(())
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if self.released {
            return;
        }
        // The cleaning deletes it, so there is no need for another task.
        self.attempt.session.released(&self.attempt.objects.name, self.acquired);
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, token) = (self.key(), self.token);
        f.debug_struct("Lock").field("key", &key).field("token", &token).finish_non_exhaustive()
    }
}

/// Deletes the lock object with this uid, repeatedly, until that is known to be done.
async fn delete(objects: &LockObjects, uid: &str) -> Result<(), LockError> {
    let mut failures = 0;
    loop {
        match objects.delete(uid, None).await {
            Err(error) if error.passes() => {
                failures += 1;
                sleep(delay(&error, failures)).await;
            }
            result => return result,
        }
    }
}

/// One acquisition. Dropping it cleans up, in the background, what its creates may leave behind.
struct Attempt {
    session: Arc<SessionState>,
    objects: LockObjects,
    id: String,
    /// When the last create was sent.
    last_create: Option<BootInstant>,
    /// Whether a create got no answer, and may be done later.
    uncertain: bool,
    /// Whether the lock object may exist.
    may_exist: bool,
}

/// Acquires the lock `name`, with `value` in its object. Waits for it unless `only_try` is set.
///
/// Cancel-safe: what the API server does nevertheless is cleaned up in the background.
pub(super) async fn acquire(
    session: &Arc<SessionState>,
    name: &str,
    value: &str,
    only_try: bool,
) -> Result<Lock, LockError> {
    let mut attempt = Attempt {
        session: Arc::clone(session),
        objects: LockObjects::new(&session.client, name),
        id: random_id(),
        last_create: None,
        uncertain: false,
        may_exist: false,
    };
    let found = session.guard(attempt.run(name, value, only_try)).await?;
    // The session counts now, after the answer has arrived.
    session.check()?;
    let (uid, token) = (found.uid().to_owned(), found.token());
    Ok(Lock { attempt, uid, token, acquired: BootInstant::now(), released: false })
}

impl Attempt {
    async fn run(&mut self, name: &str, value: &str, only_try: bool) -> Result<LockObject, LockError> {
        if !only_try {
            sleep(self.session.courtesy(&self.objects.name)).await;
        }
        let mut failures = 0;
        loop {
            let result = async {
                // After a failure, the create may have been done, so read first.
                if failures == 0
                    && let Some(created) = self.create(name, value).await?
                {
                    return Ok(Some(created));
                }
                self.take_over_or_wait(name, only_try).await
            };
            match result.await {
                Ok(Some(found)) => {
                    self.may_exist = true;
                    return Ok(found);
                }
                Ok(None) => failures = 0,
                Err(error) if error.passes() => {
                    failures += 1;
                    sleep(delay(&error, failures)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Creates the lock object. `None` if there is one.
    async fn create(&mut self, name: &str, value: &str) -> Result<Option<LockObject>, LockError> {
        self.session.check()?;
        // Set before the request, because the caller may drop this meanwhile.
        let certain = !std::mem::replace(&mut self.uncertain, true);
        self.last_create = Some(BootInstant::now());
        let result = self.objects.create(&self.session, name, &self.id, value).await;
        if certain && !result.as_ref().is_err_and(LockError::is_uncertain) {
            self.uncertain = false;
        }
        match result {
            Ok(created) => {
                self.may_exist = true;
                Ok(Some(created))
            }
            Err(LockError::Request(Error::Exists(_))) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The lock object if it is ours. Otherwise removes a dead one, or waits until it is gone, and returns `None`.
    async fn take_over_or_wait(&self, name: &str, only_try: bool) -> Result<Option<LockObject>, LockError> {
        let Some(found) = self.objects.get().await? else { return Ok(None) };
        if found.is_of(&self.session, &self.id) {
            return Ok(Some(found));
        }
        if found.data("leaseUID").is_empty() {
            return Err(LockError::NotALock(self.objects.name.clone()));
        }
        let is_leftover = found.data("leaseUID") == self.session.lease_uid()
            && self.session.has_ended(found.data("acquisition"));
        if is_leftover || self.objects.is_dead(&found).await? {
            self.objects.delete(found.uid(), Some(found.version())).await?;
        } else if only_try {
            return Err(LockError::Locked { name: name.to_owned(), holder: found.data("holder").to_owned() });
        } else {
            self.wait_deleted(found.version()).await?;
        }
        Ok(None)
    }

    /// Waits until the lock object is deleted, the watch breaks, or some seconds have passed.
    async fn wait_deleted(&self, version: &str) -> Result<(), LockError> {
        let limit = READ_INTERVAL.mul_f64(0.8 + 0.4 * fastrand::f64());
        let deleted = async {
            let mut changes = self.objects.changes(version, limit).await?;
            while let Some(change) = changes.next().await {
                if change?.is_none() {
                    sleep(Duration::from_millis(fastrand::u64(0..=MAX_STAGGER_MILLIS))).await;
                    return Ok(());
                }
            }
            Ok::<_, LockError>(())
        };
        match timeout(limit, deleted).await {
            // A version that is too old (410) has passed, too: the next step is a read.
            Ok(Err(error)) if !matches!(error, LockError::Request(Error::Invalid(_))) => Err(error),
            _ => Ok(()),
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let Some(last_create) = self.last_create.filter(|_| self.uncertain || self.may_exist) else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (session, objects, id) =
            (Arc::clone(&self.session), self.objects.clone(), std::mem::take(&mut self.id));
        let uncertain = self.uncertain;
        session.end(&id);
        runtime.spawn(async move {
            let cleaning = clean_up(&session, &objects, &id, last_create, uncertain);
            if session.guard(cleaning).await.is_ok() {
                session.forget(&id);
            }
        });
    }
}

/// Deletes what an acquisition leaves behind: now, and while one of its creates may still be done.
async fn clean_up(
    session: &SessionState,
    objects: &LockObjects,
    id: &str,
    last_create: BootInstant,
    uncertain: bool,
) -> Result<(), LockError> {
    loop {
        let done = match objects.get().await {
            Ok(Some(found)) if found.is_of(session, id) => objects.delete(found.uid(), None).await.is_ok(),
            Ok(_) => true,
            // The next round, or the end of the lease, removes it.
            Err(_) => false,
        };
        if done && !uncertain || last_create.elapsed() > CLEAN_UP_FOR {
            return Ok(());
        }
        sleep(CLEAN_UP_INTERVAL).await;
    }
}

/// The delay after so many failures in a row.
fn delay(error: &LockError, failures: u32) -> Duration {
    let doubled = FIRST_DELAY.saturating_mul(1 << (failures - 1).min(16)).min(MAX_DELAY);
    let retry_after = match error {
        LockError::Request(Error::Throttled(Some(retry_after))) => *retry_after,
        _ => Duration::ZERO,
    };
    doubled.mul_f64(0.75 + 0.25 * fastrand::f64()).max(retry_after)
}
