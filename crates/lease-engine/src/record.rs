//! The persistent form of a lease.

use std::time::Duration;

use super::Ttl;

/// The part of a lease that outlives the process. Lease time starts at zero with each process, so this contains
/// durations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<I> {
    /// The lease's id.
    pub id: I,
    /// The TTL that a renewal grants.
    pub ttl: Ttl,
    /// How much of the TTL remained.
    pub remaining: Duration,
    /// How much time remained until the cap, which no renewal moves.
    pub end_in: Option<Duration>,
    /// Whether the lease was suspended.
    pub suspended: bool,
}
