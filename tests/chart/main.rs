//! The chart: what helm makes of it, and what a real API server and a real operator make of that.
//!
//! There are no nodes here, so a test plays the kubelet: it runs the operator with the arguments of the chart's
//! Deployment, under the chart's ServiceAccount.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test may fail by panicking, and prints its figures"
)]

mod admission;
mod events;
mod generated;
mod install;
mod lifecycle;
mod metrics;
mod release;
mod render;
mod rights;

// The end-to-end tests, with the chart's rights.
#[path = "../e2e/attachment.rs"]
mod attachment;
#[path = "../e2e/bad_input.rs"]
mod bad_input;
#[path = "../e2e/crash.rs"]
mod crash;
#[path = "../e2e/expiry.rs"]
mod expiry;
#[path = "../e2e/history.rs"]
mod history;
#[path = "../e2e/lifetime.rs"]
mod lifetime;
#[path = "../e2e/removal.rs"]
mod removal;
#[path = "../e2e/renewal.rs"]
mod renewal;
#[path = "../e2e/requests.rs"]
mod requests;
#[path = "../e2e/revoke.rs"]
mod revoke;
mod world;
