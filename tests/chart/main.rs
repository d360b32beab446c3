//! The chart: what helm makes of it, and what a real API server and a real operator make of that.
//!
//! There are no nodes here, so a test plays the kubelet: it runs the operator with the arguments of the chart's
//! Deployment, under the chart's ServiceAccount.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::print_stderr,
    clippy::print_stdout,
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
#[allow(dead_code, reason = "`served` names those that depend on rights")]
#[path = "../e2e/attachment.rs"]
mod attachment;
#[allow(dead_code, reason = "`served` names those that depend on rights")]
#[path = "../e2e/bad_input.rs"]
mod bad_input;
#[allow(dead_code, reason = "`served` names those that depend on rights")]
#[path = "../e2e/expiry.rs"]
mod expiry;
#[path = "../e2e/history.rs"]
mod history;
#[allow(dead_code, reason = "`served` names those that depend on rights")]
#[path = "../e2e/lifetime.rs"]
mod lifetime;
#[allow(dead_code, reason = "`served` names those that depend on rights")]
#[path = "../e2e/removal.rs"]
mod removal;
#[allow(dead_code, reason = "`served` names those that depend on rights")]
#[path = "../e2e/renewal.rs"]
mod renewal;
#[allow(dead_code, reason = "the modules above use what they need")]
#[path = "../e2e/requests.rs"]
mod requests;
#[allow(dead_code, reason = "`served` names those that depend on rights")]
#[path = "../e2e/revoke.rs"]
mod revoke;
mod served;
mod world;
