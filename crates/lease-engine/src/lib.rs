//! Leases in memory: etcd's lessor completed, free of I/O.
//!
//! A [`LeaseEngine`] *grants* leases for a TTL, *renews* them, and returns those that have *expired*. Items
//! *attach* to leases and end with them. The engine decides and does nothing else: every call takes the time, a
//! [`LeaseTime`], and returns what follows. It starts as a follower until it is *promoted*. Both roles hold the same
//! deadlines, but only a primary [begins ends](LeaseEngine::poll).
//!
//! ```
//! use std::time::Duration;
//! use lease_engine::{Config, Error, LeaseEngine, LeaseTime, Ttl};
//!
//! let mut engine = LeaseEngine::new(Config { min_ttl: Ttl::from_secs(5), ..Config::default() });
//! engine.promote(Duration::ZERO);
//!
//! let start = LeaseTime::from_millis(0);
//! let granted = engine.grant("session", Ttl::from_secs(1), start)?;
//! assert_eq!(granted.ttl, Ttl::from_secs(5)); // the minimum
//! engine.attach("session", "lock/a")?;
//! engine.renew("session", start + Duration::from_secs(3))?;
//!
//! // Sleep until `next_wakeup`, poll, commit each end, and report how that went.
//! let deadline = start + Duration::from_secs(8);
//! assert!(engine.next_wakeup() <= Some(deadline));
//! assert_eq!(engine.poll(deadline, 100), ["session"]);
//! assert_eq!(engine.renew("session", deadline), Err(Error::LeaseExpired));
//! assert_eq!(engine.ended("session")?, ["lock/a"]);
//! # Ok::<(), Error>(())
//! ```
//!
//! Beside the engine:
//!
//! | | feature | |
//! |---|---|---|
//! | [`clock::LeaseClock`] | | the clock of lease time, which stops during outages |
//! | [`Timers`], [`Rate`] | | timers by key, a rate limit |
//! | `Store`, `IdGenerator` | `store` | persistence, ids like etcd's |
//! | `SharedLessor` | `shared` | the interface of etcd's lessor: behind a lock, persistent, with a deleter of items and a stream of expired leases |
//!
//! # The end of a lease
//! [`poll`](LeaseEngine::poll) begins ends in the order of the deadlines. From then on the engine refuses to renew
//! the lease and to attach items to it. The caller commits the end, which may fail or lose against a renewal, and
//! reports the result:
//!
//! - [`ended`](LeaseEngine::ended): committed. The engine forgets the lease.
//! - [`reinstate`](LeaseEngine::reinstate): a renewal won. The lease lives on, renewed.
//! - [`take_back`](LeaseEngine::take_back): the lease lives on as it was.
//! - [`failed`](LeaseEngine::failed): offered again after a pause that grows.
//!
//! No end is dropped, and none delays another. [`unanswered`](LeaseEngine::unanswered) and [`Lease::tries`] show
//! ends that are stuck. A [demotion](LeaseEngine::demote) takes all of them back.
//!
//! # The data structure
//! A lease takes one cache line: its TTL, its deadline, and its node in a wheel. A hash index leads from ids to these
//! lines. A renewal writes the deadline and nothing else.
//!
//! The wheel has 11 levels of 64 slots over all 64 bits of milliseconds: a timing wheel without horizon and without
//! ticks, or a radix heap. A node may lie too early in it. When its time comes the engine compares the real deadline,
//! and moves the node there if that is later. So renewals leave the wheel alone, and a renewed lease moves at most
//! once per TTL. The node of a revoked lease stays in place until another lease takes the slot.
//!
//! Alternatives, measured by `benches/run.sh queues`: a million leases, granted, renewed three times each in another
//! order, half of them removed before their time, and the rest taken out at their deadlines. Nanoseconds per lease,
//! on a busy machine, without the index:
//!
//! | | insert | renew | remove | take out |
//! |---|---:|---:|---:|---:|
//! | this wheel | 6 | 9 | 41 | 352 |
//! | a timing wheel that moves a lease at each renewal | 7 | 77 | 35 | 491 |
//! | a binary heap, as lazy as this wheel | 5 | 64 | impossible | 1492 |
//! | a heap with the place of each lease, like etcd's | 5 | 886 | 167 | 490 |
//! | a B-tree of (deadline, number) | 104 | 613 | 308 | 95 |
//! | a B-tree, as lazy as this wheel | 97 | 221 | impossible | 285 |
//!
//! A lease is renewed many times and ends once, so the renewal decides, and then whether a lease can be removed
//! before its time.
//!
//! | operation | cost |
//! |---|---|
//! | `grant`, `restore`, `renew`, `renew_with`, `reinstate`, `take_back`, `suspend`, `resume`, `set_end_by`, `lookup`, `remaining` | O(1) |
//! | `attach`, `detach`, `lease_of` | O(1) |
//! | `revoke`, `ended` | O(1), and O(1) per item |
//! | `poll`, per lease; `begin_revoke`, `failed` | O(1); a lease moves at most ten times in the wheel, usually twice, and one poll moves at most 8192 |
//! | `promote`, `demote`, `counts`, `next_wakeup` | O(1) |
//! | `leases`, `leases_by_deadline` | O(n), O(n log n) |
//!
//! The index doubles when it is full: that one grant takes about a tenth of a second at a million leases. Leases and
//! items that come and go reuse memory. The engine returns none to the system.

// The examples of the README are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod clock;
mod config;
#[cfg(feature = "shared")]
mod deleter;
mod engine;
mod error;
mod expiry_queue;
#[cfg(feature = "store")]
mod ids;
mod items;
mod load;
mod rate_limit;
mod record;
mod retry;
#[cfg(feature = "shared")]
mod shared;
mod slots;
#[cfg(feature = "store")]
mod store;
mod table;
#[cfg(test)]
mod tests;
mod time;
#[cfg(feature = "shared")]
mod timer;
mod timers;
mod wheel;

/// Internals, for the benchmarks alone.
#[cfg(feature = "bench")]
#[doc(hidden)]
pub mod bench {
    pub use crate::wheel::{Node, Nodes, Wheel};
}

pub use self::{
    config::{AboveMax, Backoff, Config, Stretch},
    engine::{Counts, Granted, Lease, LeaseEngine, State},
    error::Error,
    rate_limit::Rate,
    record::Record,
    time::{LeaseTime, Ttl},
    timers::Timers,
};
#[cfg(feature = "shared")]
pub use self::{
    deleter::{ItemDeleter, MemoryItems},
    shared::{SharedError, SharedLessor},
    timer::{ManualTimer, Timer},
};
#[cfg(feature = "store")]
pub use self::{
    ids::{IdGenerator, IdSource, NO_LEASE},
    store::{MemoryStore, Store},
};
