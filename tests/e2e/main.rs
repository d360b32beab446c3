//! The operator, as separate processes, against a real API server.
#![allow(
    clippy::expect_used,
    clippy::print_stderr,
    reason = "a test may fail by panicking, and prints its figures"
)]

mod attachment;
mod bad_input;
mod cost;
mod crash;
mod expiry;
mod history;
mod lifetime;
mod process;
mod removal;
mod renewal;
mod requests;
mod revoke;
mod world;
