//! Indexes.

pub mod attachments;
pub mod leases;
pub mod sources;
