//! The operator, as separate processes, against a real API server.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::print_stderr)]

mod expiry;
mod world;
