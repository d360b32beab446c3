//! The writer lease: replicas compete, one is primary.

mod action;
mod config;
mod machine;
mod queue;

pub use action::{Action, Finish, Holder, Observation, Reason, Term, WorkResult};
pub use config::{Backoff, Config};
pub use machine::{State, WriterLease};
