//! Decisions, as pure functions: whether a [lease may end](expiry), what is [next for a lease](lease), and which
//! [deadlines](cold_start) leases have after a restart.

pub mod cold_start;
pub mod expiry;
pub mod lease;
