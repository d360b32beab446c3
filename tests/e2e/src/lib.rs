//! The end-to-end tests: the operator, as separate processes, against a real API server.
//!
//! They are a library, since two programs run them: `tests/e2e.rs` with the rights of an administrator, and `tests/chart`
//! with those that the chart gives.
#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test may fail by panicking, and prints its figures"
)]

mod attachment;
mod bad_input;
mod cost;
mod crash;
mod expiry;
mod lifetime;
mod process;
mod removal;
mod renewal;
mod revoke;

/// The tests, in no order.
pub fn functions() -> impl Iterator<Item = &'static lessor_kit::trials::Function> {
    lessor_kit::trials::of(module_path!())
}
