//! Attachments of any kind, on a real API server: what goes, what stays, and who may attach what.
#![allow(clippy::print_stdout, clippy::expect_used, clippy::unwrap_used, clippy::print_stderr)]

mod admission;
mod changes;
mod failing;
#[allow(dead_code, reason = "each test binary uses its part of the kit")]
#[path = "../e2e/history.rs"]
mod history;
mod kinds;
mod objects;
mod rights;
mod subresources;
mod things;
#[allow(dead_code, reason = "each test binary uses its part of the kit")]
#[path = "../e2e/world.rs"]
mod world;
