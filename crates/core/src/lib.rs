//! What the operator decides, without I/O: a state machine that takes observations, responses and the time, and returns
//! what to do.
//!
//! ```text
//!   watch event ─► Observation ─┐                               ┌─► requests, each with a ticket and a deadline
//!                               ├─► Replica ─► poll(&Now) ─► Output ─► Events, metrics
//!   Response to a request ──────┘     ▲                         └─► sources to watch
//!                                     └── wake_at(&Now): when to poll again, if nothing happens before
//! ```
//!
//! The runtime of the operator reads the clocks into a [`Now`](clocks::Now), passes what arrives to
//! [`Replica::observe`](replica::Replica::observe) and [`Replica::answer`](replica::Replica::answer), sends the requests
//! of [`Replica::poll`](replica::Replica::poll), and sleeps until [`Replica::wake_at`](replica::Replica::wake_at). This
//! crate depends on no client and no async runtime, so that it can be model-checked, simulated and replayed.
//!
//! A lease takes this way:
//!
//! 1. [`observation`]: a watch event arrives. [`lease_object`] parses the lease into a small record, with its
//!    [status](lease_status).
//! 2. [`index`]: the record enters the index of leases, where the engine keeps its deadline. After a restart
//!    [`decide::cold_start`] reconstructs the deadline. The indexes of attachments and sources refer to it by name.
//! 3. [`decide::lease`]: a pure function returns what is next for it. **Whether it may end by time is answered in one
//!    place, [`decide::expiry::may_end`].**
//! 4. [`replica`]: the lease waits for that in [one place](index::leases::Pending): for a timer, for the budget of
//!    status refreshes, or as [`work`] in the queue that replicas compete for.
//! 5. [`leadership`]: the primary runs the work; a follower holds it back, and takes over when the primary doesn't do it.
//! 6. [`request`]: what runs becomes a request, bound to the version at which it was decided. Its response goes back to 2.
//!
//! [`liveness`] covers outages: lease time is paused while the API server can't be reached or can't write. Users observe
//! a replica through [Events](user_event), [metrics](metric_event) and [conditions](lease_status).
//!
//! # Example
//!
//! ```
//! use k8s_openapi::jiff::Timestamp;
//! use lessor_core::{clocks::Now, replica::Replica, settings::Settings};
//!
//! let mut replica = Replica::new(Settings::default());
//! let now = Now::start(Timestamp::UNIX_EPOCH);
//! // Nothing was listed yet, so there is nothing to do, and no reason to wake up.
//! assert!(replica.poll(&now).requests.is_empty());
//! assert_eq!(replica.wake_at(&now), None);
//! ```

mod api_seconds;
pub mod attachable;
pub mod clocks;
pub mod decide;
pub mod index;
mod interner;
pub mod kind;
pub mod leadership;
pub mod lease_object;
pub mod lease_status;
pub mod listed_keys;
pub mod liveness;
pub mod metadata;
pub mod metric_event;
pub mod metrics_snapshot;
pub mod observation;
pub mod output;
pub mod overlap;
pub mod replica;
pub mod request;
pub mod settings;
pub mod sparse;
pub mod store_version;
mod unix_millis;
pub mod user_event;
pub mod watch_health;
pub mod work;

/// The README, so that its example is tested.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
