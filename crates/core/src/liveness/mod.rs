//! Liveness.

pub mod shared_pause;
