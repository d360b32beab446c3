//! Attachments of any kind, on a real API server: what goes, what stays, and who may attach what.
#![allow(clippy::print_stdout, clippy::expect_used, clippy::unwrap_used, clippy::print_stderr)]

mod admission;
mod changes;
mod failing;
mod kinds;
mod objects;
mod rights;
mod stuck;
mod subresources;
mod things;
