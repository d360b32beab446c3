//! What exists: the leases ([`leases`]), the objects attached to them ([`attachments`]), and the sources that they follow
//! ([`sources`]).
//!
//! Each index is filled from watches and answers, ignores versions older than the one it has, and answers lookups in constant or
//! logarithmic time. Iteration whose order matters to a decision is sorted, so that the same observations lead to the same
//! requests.

pub mod attachments;
pub mod leases;
pub mod sources;
