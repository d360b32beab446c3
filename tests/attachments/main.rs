//! Attachments of any kind, on a real API server: what goes, what stays, and who may attach what.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::print_stderr)]

mod changes;
mod failing;
mod kinds;
mod objects;
mod rights;
mod things;
#[path = "../e2e/world.rs"]
#[allow(dead_code, reason = "the end-to-end tests need more of it")]
mod world;
