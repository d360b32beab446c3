//! Leases in memory: etcd's lessor completed, free of Kubernetes and of I/O.
//!
//! A [`Lessor`] *grants* leases for a TTL, *renews* them, and says which have *expired*; items *attach* to
//! leases and go with them. It decides, and does nothing: every call takes `now`, a [`LeaseTime`], and what
//! follows from it is in the answer. A lessor is a follower until it's *promoted*; both roles keep the same
//! deadlines, but only a primary [begins ends](Lessor::poll).
//!
//! ```
//! use std::time::Duration;
//! use lease_engine::{Config, Error, LeaseTime, Lessor, Ttl};
//!
//! let mut lessor = Lessor::new(Config { min_ttl: Ttl::from_secs(5), ..Config::default() });
//! lessor.promote(Duration::ZERO);
//!
//! let start = LeaseTime::from_millis(0);
//! let granted = lessor.grant("session", Ttl::from_secs(1), start)?;
//! assert_eq!(granted.ttl, Ttl::from_secs(5)); // the minimum
//! lessor.attach("session", "lock/a")?;
//! lessor.renew("session", start + Duration::from_secs(3))?;
//!
//! // Sleep until `next_wakeup`, poll, try to commit each end, and say how it went.
//! let deadline = start + Duration::from_secs(8);
//! assert!(lessor.next_wakeup() <= Some(deadline));
//! assert_eq!(lessor.poll(deadline, 100), ["session"]);
//! assert_eq!(lessor.renew("session", deadline), Err(Error::LeaseExpired));
//! assert_eq!(lessor.ended("session")?, ["lock/a"]);
//! # Ok::<(), Error>(())
//! ```
//!
//! Around it: [`SharedLessor`] is the same behind a lock, with persistence ([`Store`]), a deleter of items
//! ([`ItemDeleter`]), and a stream of what expires; [`IdGenerator`] makes the original's ids;
//! [`clock::LeaseClock`] is the clock of lease time; [`queue::DeadlineQueue`] keeps other timers; [`Rate`]
//! limits rates.
//!
//! # The end of a lease
//! [`poll`](Lessor::poll) begins it, in the order of the deadlines: from then on renewals and attachments are
//! refused. Committing it is the caller's, and may fail or lose against a renewal. So each end gets an
//! answer: [`ended`](Lessor::ended), the lease is forgotten; [`reinstate`](Lessor::reinstate), it lives on,
//! renewed, or [`take_back`](Lessor::take_back), as it was; [`failed`](Lessor::failed), it's offered again
//! after a pause that grows. None is dropped, none delays another, and [`unanswered`](Lessor::unanswered) and
//! [`Lease::tries`] show those that are stuck. A [demotion](Lessor::demote) takes all of them back.
//!
//! # The data structure
//! A lease is one cache line: its TTL, deadline, and its node in a wheel. A hash index of one word per place
//! leads from ids to lines, so a renewal touches two lines of memory: it writes the deadline, and nothing
//! else. The wheel has 11 levels of 64 slots over all 64 bits of milliseconds (a radix heap, or a timing
//! wheel without horizon and without ticks). Its nodes may lie too early: a node whose time comes says what
//! its deadline really is, and moves there. So renewals leave the wheel alone, a renewed lease moves once per
//! TTL at most, and revoked ones stay where they are until their slot is granted anew.
//!
//! What else it could have been, by `benches/run.sh queues`: a million leases, granted, renewed three
//! times each in another order, half of them taken out before their time, and the rest when it comes.
//! Nanoseconds per lease, on a busy machine, without the index:
//!
//! | | file | renew | remove | take out |
//! |---|---:|---:|---:|---:|
//! | this wheel | 6 | 9 | 41 | 352 |
//! | a timing wheel that moves a lease at each renewal | 7 | 77 | 35 | 491 |
//! | a binary heap, as lazy as this wheel | 5 | 64 | can't | 1492 |
//! | a heap that knows where each lease is, as etcd has it | 5 | 886 | 167 | 490 |
//! | a B-tree of (deadline, number) | 104 | 613 | 308 | 95 |
//! | a B-tree, as lazy as this wheel | 97 | 221 | can't | 285 |
//!
//! A lease is renewed many times and ends once, so the renewal decides, and then whether a lease can be taken
//! out before its time.
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
//! The index doubles when it's two thirds full: that one grant takes some milliseconds per million leases. A
//! thousand items or leases that come and go reuse the same memory; it isn't given back.

pub mod clock;
mod config;
#[cfg(feature = "shared")]
mod deleter;
mod engine;
mod error;
mod expiry_queue;
#[cfg(all(test, feature = "shared"))]
mod faults;
#[cfg(feature = "store")]
mod ids;
mod index;
mod items;
mod load;
#[cfg(test)]
mod model;
#[cfg(feature = "queue")]
pub mod queue;
mod rate;
mod record;
#[cfg(feature = "shared")]
mod shared;
mod slots;
#[cfg(feature = "store")]
mod store;
mod table;
mod time;
#[cfg(feature = "shared")]
mod timer;
#[cfg(not(feature = "bench"))]
mod wheel;
#[cfg(feature = "bench")]
#[doc(hidden)]
pub mod wheel;

pub use self::{
    config::{AboveMax, Backoff, Config, Stretch},
    engine::{Counts, Granted, Lease, Lessor, State},
    error::Error,
    rate::Rate,
    record::Record,
    time::{LeaseTime, Ttl},
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
