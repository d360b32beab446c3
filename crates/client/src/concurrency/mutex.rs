//! A lock that at most one session holds.

use super::{
    acquisition::{self, Lock},
    error::LockError,
    object::object_name,
    session::Session,
};

/// A lock that at most one session holds, in the namespace of its client.
#[derive(Clone, Debug)]
pub struct Mutex {
    session: Session,
    name: String,
}

impl Mutex {
    /// The mutex `name`. Any text is a name. An [`Election`](super::Election) of the same name is the same lock.
    pub fn new(session: &Session, name: impl Into<String>) -> Self {
        Self { session: session.clone(), name: name.into() }
    }

    /// Waits until the lock is acquired. Cancel-safe.
    ///
    /// # Errors
    /// [`LockError::SessionExpired`] once the session is lost, [`LockError::NotALock`], and requests' errors that don't pass.
    pub async fn lock(&self) -> Result<Lock, LockError> {
        acquisition::acquire(self.session.state(), &self.name, "", false).await
    }

    /// Acquires the lock if it is free.
    ///
    /// # Errors
    /// [`LockError::Locked`] if another session holds it, and those of [`Mutex::lock`].
    pub async fn try_lock(&self) -> Result<Lock, LockError> {
        acquisition::acquire(self.session.state(), &self.name, "", true).await
    }

    /// The name of the lock's ConfigMap.
    pub fn key(&self) -> String {
        object_name(&self.name)
    }
}
