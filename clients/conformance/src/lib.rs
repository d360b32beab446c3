//! The conformance suite: judges clients of Lessor, in any language, on a real API server with faults.
//!
//! A client is a program that speaks [the protocol](protocol) on standard input and output. [`scenarios`] drive it through a proxy, and
//! [`judge`] compares what it believed with what the API server's audit log has.

pub mod adapter;
pub mod bench;
pub mod clients;
pub mod clock;
pub mod contest;
pub mod history;
pub mod judge;
pub mod play;
pub mod protocol;
pub mod scenarios;
pub mod serve;
pub mod table;
