//! All clocks of a replica, read at one moment.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use lease_engine::LeaseTime;

/// All clocks, read at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Now {
    /// Monotonic time since the replica started: the replica's clock.
    pub mono: Duration,
    /// Lease time: monotonic time without outages. Deadlines are on this clock.
    pub lease: LeaseTime,
    /// This machine's wall clock.
    pub wall: Timestamp,
    /// The API server's clock, or a time before; `None` until a response carried it.
    pub server: Option<Timestamp>,
    /// How long ago the API server last responded or sent a watch event.
    pub since_last_response: Duration,
    /// Whether the API server can't be reached at present, so that lease time is paused.
    pub disconnected: bool,
}

impl Now {
    /// All clocks at the start of a replica, before the first response of the API server.
    pub fn start(wall: Timestamp) -> Self {
        Self {
            mono: Duration::ZERO,
            lease: LeaseTime::from_duration(Duration::ZERO),
            wall,
            server: None,
            since_last_response: Duration::ZERO,
            disconnected: false,
        }
    }

    /// For how long altogether lease time was paused.
    pub fn paused(&self) -> Duration {
        self.mono.saturating_sub(self.lease.since_start())
    }
}
