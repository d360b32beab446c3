//! A session: a lease that is kept alive for the locks of this process.

use std::{collections::BTreeSet, fmt, sync::Arc, time::Duration};

use futures::future::{self, Either};
use tokio::sync::watch;
use uuid::Uuid;

use super::{courtesy::Streaks, error::LockError};
use crate::{
    boot_instant::BootInstant,
    client::LeaseClient,
    error::Error,
    grant::Grant,
    keep_alive::{KeepAlive, KeepAliveOptions, LossReason},
    lease::HeldLease,
};

/// The default TTL of a session, as in etcd.
const DEFAULT_TTL: Duration = Duration::from_secs(60);

/// How a session is made.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    ttl: Duration,
    holder: String,
    keep_alive: KeepAliveOptions,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self { ttl: DEFAULT_TTL, holder: String::new(), keep_alive: KeepAliveOptions::default() }
    }
}

impl SessionOptions {
    /// The TTL of the lease: how long the locks of a process that vanished stay locked. Default: 60 seconds.
    #[must_use]
    pub fn with_ttl(self, ttl: Duration) -> Self {
        Self { ttl, ..self }
    }

    /// Who holds the locks, for information.
    #[must_use]
    pub fn with_holder(self, holder: impl Into<String>) -> Self {
        Self { holder: holder.into(), ..self }
    }

    /// How the lease is kept alive.
    #[must_use]
    pub fn with_keep_alive(self, keep_alive: KeepAliveOptions) -> Self {
        Self { keep_alive, ..self }
    }
}

/// A session: a lease that is kept alive for the locks of this process. Cheap to clone; the clones are one session.
///
/// Without any clone, mutex, election or lock left, it is renewed no more, and its locks are free after its deadline.
#[derive(Clone)]
pub struct Session(Arc<SessionState>);

impl Session {
    /// Grants the lease of a session, and keeps it alive.
    ///
    /// # Errors
    /// Those of [`LeaseClient::grant`].
    pub async fn new(leases: &LeaseClient, options: SessionOptions) -> Result<Self, Error> {
        let mut grant = Grant::new(format!("session-{}", random_id()), options.ttl);
        if !options.holder.is_empty() {
            grant = grant.holder(options.holder.clone());
        }
        let lease = leases.grant(&grant).await?;
        Ok(Self(Arc::new(SessionState {
            client: leases.clone(),
            holder: options.holder,
            name: lease.name().to_owned(),
            uid: lease.uid().to_owned(),
            alive: KeepAlive::start(lease, options.keep_alive),
            closed: watch::channel(false).0,
            ended: parking_lot::Mutex::default(),
            streaks: parking_lot::Mutex::default(),
        })))
    }

    /// The lease as last renewed. Nothing else may renew or revoke it.
    pub fn lease(&self) -> HeldLease {
        self.0.alive.lease()
    }

    /// Whether locks of this session are certainly held.
    pub fn is_valid(&self) -> bool {
        self.0.is_valid()
    }

    /// Until when the session is valid without another renewal of its lease: the deadline, less the margin.
    pub fn valid_until(&self) -> BootInstant {
        self.0.alive.alive_until()
    }

    /// Waits until the session is lost, and returns the reason: etcd's `Done`. After [`Session::close`] it waits for ever.
    pub async fn lost(&self) -> LossReason {
        self.0.alive.lost().await
    }

    /// Ends the session, and with it all its locks.
    ///
    /// # Errors
    /// The errors of any request. The lease expires at its deadline then.
    pub async fn close(&self) -> Result<(), Error> {
        self.orphan();
        self.lease().revoke().await
    }

    /// Ends the session for this process. Its lease and its locks live until its deadline.
    pub fn orphan(&self) {
        self.0.closed.send_replace(true);
        self.0.alive.abort();
    }

    pub(super) fn state(&self) -> &Arc<SessionState> {
        &self.0
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("lease", &self.0.name).finish_non_exhaustive()
    }
}

/// What the clones of a session share.
#[derive(Debug)]
pub(super) struct SessionState {
    pub(super) client: LeaseClient,
    holder: String,
    name: String,
    uid: String,
    alive: KeepAlive,
    closed: watch::Sender<bool>,
    /// The acquisitions that have ended, and may have left a lock object.
    ended: parking_lot::Mutex<BTreeSet<String>>,
    streaks: parking_lot::Mutex<Streaks>,
}

impl SessionState {
    pub(super) fn lease_name(&self) -> &str {
        &self.name
    }

    pub(super) fn lease_uid(&self) -> &str {
        &self.uid
    }

    pub(super) fn holder(&self) -> &str {
        &self.holder
    }

    pub(super) fn is_valid(&self) -> bool {
        !*self.closed.borrow() && self.alive.is_alive()
    }

    /// Fails unless the session is valid.
    pub(super) fn check(&self) -> Result<(), LockError> {
        if self.is_valid() { Ok(()) } else { Err(LockError::SessionExpired) }
    }

    /// Runs `work` as long as the session is valid.
    pub(super) async fn guard<T>(
        &self,
        work: impl Future<Output = Result<T, LockError>>,
    ) -> Result<T, LockError> {
        let mut closed = self.closed.subscribe();
        let ended = async {
            let closed = closed.wait_for(|closed| *closed);
            future::select(std::pin::pin!(closed), std::pin::pin!(self.alive.lost())).await;
        };
        match future::select(std::pin::pin!(work), std::pin::pin!(ended)).await {
            Either::Left((result, _)) => result,
            Either::Right(_) => Err(LockError::SessionExpired),
        }
    }

    pub(super) fn end(&self, acquisition: &str) {
        self.ended.lock().insert(acquisition.to_owned());
    }

    pub(super) fn forget(&self, acquisition: &str) {
        self.ended.lock().remove(acquisition);
    }

    pub(super) fn has_ended(&self, acquisition: &str) -> bool {
        self.ended.lock().contains(acquisition)
    }

    pub(super) fn released(&self, object: &str, acquired: BootInstant) {
        self.streaks.lock().released(object, acquired);
    }

    /// How long to let others go first.
    pub(super) fn courtesy(&self, object: &str) -> Duration {
        self.streaks.lock().pause(object)
    }
}

/// 32 random hexadecimal digits.
pub(super) fn random_id() -> String {
    Uuid::new_v4().simple().to_string()
}
