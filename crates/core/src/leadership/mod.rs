//! Leadership.

pub mod election;
