//! Clients against a real API server and the real operator: the library, `kubectl lease`, and the documents about them.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::print_stderr)]

mod attachments;
mod holders;
mod plugin;
mod programs;
mod running;
mod terminal;
mod transcripts;
#[allow(dead_code, reason = "others need the rest")]
#[path = "../e2e/world.rs"]
mod world;
