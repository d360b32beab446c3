//! The writer lease: replicas compete, one is primary.

mod action;
mod arbiter;
mod config;
mod machine;
mod queue;
mod worker;

pub use action::{Action, Finish, Holder, Observation, Reason, Term, WorkResult};
pub use arbiter::{Arbiter, Arbitration, Claim, MemoryArbiter, Verdict};
pub use config::{Backoff, Config};
pub use machine::{State, WriterLease};
pub use worker::{Permit, Worker};
