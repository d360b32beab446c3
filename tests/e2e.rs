//! The operator, as separate processes, against a real API server.
//!
//! Each [test](lessor_e2e) has its own namespace, `Lessor` and operator on one cluster, and prints its figures. They mostly
//! wait, so several run at once; `--test-threads=1` makes them quieter neighbours.

use std::process::ExitCode;

use lessor_kit::trials;

/// How many run at once, unless `--test-threads` says so.
const AT_ONCE: usize = 8;

fn main() -> ExitCode {
    trials::run(AT_ONCE, lessor_e2e::functions().map(trials::Function::trial))
}
