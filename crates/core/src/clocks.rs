//! Every clock of a replica, read at one moment.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use lease_engine::LeaseTime;

/// All clocks, read at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Now {
    /// Monotonic time since the replica started.
    pub mono: Duration,
    /// Lease time.
    pub lease: LeaseTime,
    /// This machine's wall clock.
    pub wall: Timestamp,
    /// The API server's clock, never ahead of it; `None` until it has answered.
    pub server: Option<Timestamp>,
    /// How long ago the API server was heard.
    pub since_last_response: Duration,
    /// Whether it is not heard at present: lease time stands still.
    pub disconnected: bool,
    /// How much of the time was no lease time since the API server was found to be unable to write, or won't be once it can.
    pub paused_unwritable: Duration,
    /// How much of that is in doubt: the API server can't write at present, as far as is known.
    pub doubted: Duration,
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
            paused_unwritable: Duration::ZERO,
            doubted: Duration::ZERO,
        }
    }

    /// How much of the time was no lease time.
    pub fn held(&self) -> Duration {
        self.mono.saturating_sub(self.lease.since_start())
    }
}
