//! Decisions.

pub mod cold_start;
pub mod lease;
pub mod removal;
