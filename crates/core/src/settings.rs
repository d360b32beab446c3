//! What an administrator can set.

use std::{net::SocketAddr, num::NonZeroU32, time::Duration};

use crate::{attachable::Attachable, index::sources::SourceKind, watch_health::Scope};

/// Settings of one replica.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The name of the `Lessor` object that replicas compete for.
    pub lessor: String,
    /// The name of this replica, unique to this run of it.
    pub identity: String,
    /// The namespaces to serve; empty: all.
    pub namespaces: Vec<String>,
    /// The kinds whose objects can be attached, each once.
    pub attachable: Vec<Attachable>,
    /// The kinds of sources that leases can follow, beside leases.
    pub follow: Vec<SourceKind>,
    /// The shortest TTL that is granted.
    pub min_ttl: Duration,
    /// The longest TTL that is granted.
    pub max_ttl: Duration,
    /// How far the clocks of two API servers may be apart.
    pub max_clock_skew: Duration,
    /// How long nothing ends after a start with nothing known.
    pub start_grace: Duration,
    /// How long an ended lease stays at least, for attachments that were made just before and not yet seen.
    pub linger: Duration,
    /// How long a primary stays primary without a sign of it.
    pub lease_duration: Duration,
    /// Writes of status per second that merely bring it up to date.
    pub status_rate: f64,
    /// Ends per second.
    pub expiry_rate: NonZeroU32,
    /// Requests under way at once.
    pub concurrency: usize,
    /// Events written per second.
    pub event_rate: f64,
    /// How long an attachment may name a lease that isn't there before an Event warns of it.
    pub pending_warning: Duration,
    /// Show what would be removed, and remove nothing.
    pub dry_run: bool,
    /// Where to serve health, readiness and what is known of attachments; `None`: nowhere.
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
    /// Where leases and objects are watched.
    pub fn scopes(&self) -> Vec<Scope> {
        match self.namespaces.as_slice() {
            [] => vec![None],
            namespaces => namespaces.iter().map(|namespace| Some(namespace.as_str().into())).collect(),
        }
    }
}
