//! Outages: what replicas learn from each other about time in which the API server could not [write](shared_pause).

pub mod shared_pause;
