//! What tests and benchmarks of the whole operator share: a [world] for each test with what the audit log says of it
//! ([history]), names for the operator's [requests], the [test bed](bed) of benchmarks, the [programs](program), and the
//! list of [trials].
#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test may fail by panicking, and prints its figures"
)]

pub mod bed;
pub mod history;
pub mod program;
pub mod requests;
pub mod trials;
pub mod world;

pub use lessor_kit_macros::trial;
