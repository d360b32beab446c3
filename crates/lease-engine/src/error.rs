//! Why the lessor refuses.

use super::Ttl;

/// Why the lessor refuses what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Another lessor is primary: ask that one.
    #[error("not the primary lessor: ask the primary")]
    NotPrimary,
    /// No lease has this id: it was never granted, or is over and forgotten.
    #[error("lease not found: grant a new one")]
    LeaseNotFound,
    /// A lease with this id lives: renew it, or grant under another id.
    #[error("lease already exists: renew it, or grant under another id")]
    LeaseExists,
    /// The lease's end has begun: nothing renews it any more, nothing can be attached.
    #[error("lease has ended: grant a new one")]
    LeaseExpired,
    /// The TTL is above the maximum.
    #[error("ttl is too large: {asked} asked for, at most {max} granted")]
    TtlTooLarge {
        /// What was asked for.
        asked: Ttl,
        /// The most that is granted.
        max: Ttl,
    },
    /// There are about four billion leases, or items, already.
    #[error("too many leases or items: revoke some first")]
    Full,
}
