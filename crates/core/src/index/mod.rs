//! What is there: [leases], what is [attached](attachments) to them, and the [sources] that leases follow.

pub mod attachments;
pub mod leases;
pub mod sources;
