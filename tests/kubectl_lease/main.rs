//! Clients against a real API server and the real operator: the library, `kubectl lease`, and the documents
//! about them.
#![allow(clippy::print_stdout, clippy::expect_used, clippy::unwrap_used, clippy::print_stderr)]

mod attachments;
mod holders;
mod languages;
mod locks;
mod packaging;
mod plugin;
mod programs;
mod python;
mod rights;
mod running;
mod terminal;
mod transcripts;
