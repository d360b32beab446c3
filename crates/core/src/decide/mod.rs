//! Decisions, as pure functions: whether a [lease may end](expiry), what is [next for a lease](lease), and which
//! [deadlines](cold_start) leases have after a restart, and [what is due](removal) in an attached object.

pub mod cold_start;
pub mod expiry;
pub mod lease;
pub mod removal;
