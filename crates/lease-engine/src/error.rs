//! Errors.

use super::Ttl;

/// Why the engine refuses an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// This engine is a follower.
    #[error("not the primary: ask the primary")]
    NotPrimary,
    /// No lease has this id: it was never granted, or it has ended.
    #[error("lease not found: grant a new one")]
    LeaseNotFound,
    /// A lease with this id exists.
    #[error("lease already exists: renew it, or grant under another id")]
    LeaseExists,
    /// The lease's end has begun: it can't be renewed, and nothing can be attached to it.
    #[error("lease has ended: grant a new one")]
    LeaseExpired,
    /// The TTL is above the maximum.
    #[error("ttl is too large: {asked} asked for, at most {max} granted")]
    TtlTooLarge {
        /// The TTL in the request.
        asked: Ttl,
        /// The longest TTL.
        max: Ttl,
    },
    /// There are about four billion leases or items.
    #[error("too many leases or items: revoke some first")]
    Full,
}
