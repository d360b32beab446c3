//! The settings of a replica.

use std::{net::SocketAddr, num::NonZeroU32, time::Duration};

use lessor_api::lessor::ALL_NAMESPACES;

use crate::{api_seconds::seconds, attachable::Attachable, index::sources::SourceKind, watch_health::Scope};

/// The settings of a replica.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The name of the `Lessor` object that replicas compete for.
    pub lessor: String,
    /// The name of this replica, unique to this run.
    pub identity: String,
    /// The namespaces to serve; empty: all.
    pub namespaces: Vec<String>,
    /// The kinds whose objects can be attached, each once.
    pub attachable: Vec<Attachable>,
    /// The kinds of sources that leases can follow, in addition to leases.
    pub follow: Vec<SourceKind>,
    /// The shortest TTL that is granted.
    pub min_ttl: Duration,
    /// The longest TTL that is granted.
    pub max_ttl: Duration,
    /// The largest difference between the clocks of two API servers.
    pub max_clock_skew: Duration,
    /// The grace period after a start, counted from the first API server response, in which no lease expires.
    pub start_grace: Duration,
    /// The longest grace period after a start of a lease whose TTL is so long that a third of it exceeds `start_grace`.
    pub max_start_grace: Duration,
    /// How long an ended lease remains at least, so that attachments made just before the end are observed.
    pub linger: Duration,
    /// How long a primary stays primary without a write.
    pub lease_duration: Duration,
    /// Refreshes of status per second.
    pub status_rate: f64,
    /// Expiries per second.
    pub expiry_rate: NonZeroU32,
    /// Requests for work in flight at once.
    pub concurrency: usize,
    /// Events written per second.
    pub event_rate: f64,
    /// How long an attachment may name a lease that doesn't exist before an Event warns of it.
    pub pending_warning: Duration,
    /// Report what would be removed, and remove nothing.
    pub dry_run: bool,
    /// The address of health, readiness and `/debug`; `None`: not served.
    pub admin_address: Option<SocketAddr>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            lessor: "default".to_owned(),
            identity: "lessor".to_owned(),
            namespaces: Vec::new(),
            attachable: vec![Attachable::config_maps()],
            follow: Vec::new(),
            min_ttl: Duration::from_secs(5),
            max_ttl: Duration::from_secs(lessor_api::lease::MAX_SECONDS.unsigned_abs()),
            max_clock_skew: Duration::from_secs(2),
            start_grace: Duration::from_secs(10),
            max_start_grace: Duration::from_secs(600),
            linger: Duration::from_secs(2),
            lease_duration: Duration::from_secs(5),
            status_rate: 20.0,
            expiry_rate: const { NonZeroU32::new(500).expect("above zero: the compiler checks it") },
            concurrency: 32,
            event_rate: 10.0,
            pending_warning: Duration::from_secs(30),
            dry_run: false,
            admin_address: None,
        }
    }
}

impl Settings {
    /// The TTL that is granted for so many seconds.
    pub fn granted_ttl(&self, asked: i64) -> Duration {
        seconds(asked).max(self.min_ttl).min(self.max_ttl)
    }

    /// The namespaces as the `Lessor` names them.
    pub fn published_namespaces(&self) -> Vec<String> {
        match self.namespaces.is_empty() {
            true => vec![ALL_NAMESPACES.to_owned()],
            false => self.namespaces.clone(),
        }
    }

    /// The grace period of a lease with this TTL after a start: its holder may renew every third of it.
    pub fn start_grace_of(&self, ttl: Duration) -> Duration {
        self.start_grace.max((ttl / 3).min(self.max_start_grace))
    }

    /// Where leases and objects are watched.
    pub fn scopes(&self) -> Vec<Scope> {
        match self.namespaces.as_slice() {
            [] => vec![None],
            namespaces => namespaces.iter().map(|namespace| Some(namespace.as_str().into())).collect(),
        }
    }
}
