//! Clients against a real API server and the real operator: the library, `kubectl lease`, and the documents
//! about them.
#![allow(clippy::print_stdout, clippy::expect_used, clippy::unwrap_used, clippy::print_stderr)]

mod attachments;
#[allow(dead_code, reason = "each test binary uses its part of the kit")]
#[path = "../e2e/history.rs"]
mod history;
mod holders;
mod languages;
mod packaging;
mod plugin;
mod programs;
mod rights;
mod running;
mod terminal;
mod transcripts;
#[allow(dead_code, reason = "each test binary uses its part of the kit")]
#[path = "../e2e/world.rs"]
mod world;
