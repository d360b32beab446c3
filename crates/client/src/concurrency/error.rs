//! Why a lock can't be acquired, used or released.

use crate::error::Error;

/// Why an operation on a [`Mutex`](super::Mutex) or an [`Election`](super::Election) failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LockError {
    /// Another session holds the lock.
    #[error("{name:?} is locked by {holder:?}")]
    Locked {
        /// The name of the lock.
        name: String,
        /// Who holds it.
        holder: String,
    },
    /// The session is lost or closed.
    #[error("session expired: make a new one")]
    SessionExpired,
    /// This session doesn't lead.
    #[error("not the leader of this election: campaign again")]
    NotLeader,
    /// The ConfigMap of the lock's name isn't a lock.
    #[error("configmap {0:?} is not a lock: delete it, or use another name")]
    NotALock(String),
    /// A request failed.
    #[error(transparent)]
    Request(#[from] Error),
}

impl LockError {
    /// Whether another attempt may succeed without anything else being changed. Expired credentials are renewed.
    pub(super) fn passes(&self) -> bool {
        match self {
            Self::Request(error) => error.is_temporary() || matches!(error, Error::Unauthorized(_)),
            _ => false,
        }
    }

    /// Whether the request may have been done in spite of the error, or be done later.
    pub(super) fn is_uncertain(&self) -> bool {
        matches!(self, Self::Request(Error::NoResponse(_) | Error::ServerError(_)))
    }
}
