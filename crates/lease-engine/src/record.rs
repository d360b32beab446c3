//! A lease as it outlives the process.

use std::time::Duration;

use super::Ttl;

/// What has to outlive the process, of one lease. Lease time starts anew with the process, so this holds
/// durations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<I> {
    /// What the lease is known by.
    pub id: I,
    /// What a renewal grants.
    pub ttl: Ttl,
    /// How much was left.
    pub remaining: Duration,
    /// How much was left until the lease ends however often it's renewed.
    pub end_in: Option<Duration>,
    /// Whether its time stood still.
    pub suspended: bool,
}
