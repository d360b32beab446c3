//! The writer lease: replicas compete by writing, and one of them is primary.
//!
//! Most systems elect a leader by a lock that the leader renews every few seconds, even if there is no work. Here no
//! replica writes in order to lead. A writer whose write is accepted leads for a *lease duration*. A writer that
//! observes another's write waits for as long. At rest nothing is written. The idea, the interface and the backoff are
//! those of [OpenShift's writer lease], completed by an *arbitration object* and by *terms*.
//!
//! [`WriterLease`] is a pure state machine: it takes events and the time, and returns actions. It reads no clock and
//! does no I/O. Its state can be cloned, compared and hashed, so it can be simulated, replayed and model-checked.
//! `Worker`, of the feature `tokio`, is a small runtime around it, which runs closures on tokio.
//!
//! [OpenShift's writer lease]: https://github.com/openshift/router/tree/main/pkg/router/writerlease
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//! use writer_lease::{Action, Config, Holder, Reason, WorkResult, WriterLease};
//!
//! let at = Duration::from_secs;
//! let mut lease = WriterLease::new(Config::new(at(5)));
//! lease.observe_claim(Holder::Other, 7, at(0)); // another leads, under term 7
//! lease.try_work("expire a", at(60));
//!
//! // The work falls due after a minute, and the primary doesn't do it.
//! assert_eq!(lease.poll(at(61)), None);
//! assert_eq!(lease.wake_at(at(61)), Some(Duration::from_millis(62_500)));
//! let claim = lease.poll(at(63));
//! assert_eq!(claim, Some(Action::Claim { term: 8, reason: Reason::Overdue("expire a") }));
//!
//! // The compare-and-swap succeeds. This writer leads, and runs the work.
//! lease.claimed(8, at(63), at(64));
//! let run = lease.poll(at(64));
//! assert_eq!(run, Some(Action::Run { key: "expire a", attempt: 1, term: 8, until: at(68) }));
//! lease.done(&"expire a", WorkResult::Extend, false, at(64), at(65));
//! assert_eq!(lease.lease_until(), Some(at(69)));
//! ```
//!
//! # States
//!
//! ```text
//!                    work is queued, or the object is vacant: Claim
//!                ┌──────────────────────── Election ─────────────────────────┐
//!                │ won                         ▲                        lost │
//!                │                             │ expire()                    │ or another's claim or write observed
//!                ▼                             │ (from either)               ▼
//!   ┌───────── Leader ──────────────┐          │         ┌─────────────── Follower ──────────────┐
//!   │ until = sent + lease duration │          │         │ until = observed + lease duration     │
//!   │                               │                    │                                       │
//!   │ lease holds:  Run work        │   higher term observed, proof lost, resign()               │
//!   │               as it falls due │ ─────────────────► │ holds work back; drops work that      │
//!   │ lease lapsed: work? Prove     │                    │ another has done                      │
//!   │               first, then Run │ ◄───────────────── │                                       │
//!   │ work pending, but no write    │   claim won:       │ object vacant: Claim at once          │
//!   │ accepted for a third of a     │   term + 1         │ work overdue by the head start, and   │
//!   │ lease duration: Prove         │                    │ the wait over: read afresh, Claim     │
//!   └───────────────────────────────┘                    └───────────────────────────────────────┘
//! ```
//!
//! # How a primary is chosen
//!
//! There is one arbitration object. It names the primary and its *term*, and is written only by compare-and-swap:
//!
//! - **Claim.** Put the own name on it, under a term above all observed ones. A writer claims in two cases. The
//!   object is vacant: it claims at once, after a random delay of some milliseconds, so that replicas don't all write
//!   together. Or work is overdue although the primary had its chance: the work was due for at least half a lease
//!   duration (the *head start*), and no write of the primary was observed for a whole one. Before the write the
//!   runtime reads the object and the work afresh, so a follower whose watch is late finds out. Of several claims of
//!   one version of the object, one wins.
//! - **Prove.** Write it again under the own name and term. The primary does so before it acts after its lease has
//!   lapsed, that is after it was idle for longer than a lease duration. It also does so once per third of a lease
//!   duration while work is pending and no write is accepted, so that work that can't be done isn't taken for a dead
//!   primary. And it does so when the runtime requests a sign of life.
//! - **Resign.** Clear it. A primary that stops in order does so last, and the next one takes over at once.
//!
//! Every other write only has to carry the term. An accepted write extends the primary's lease, counted from *before*
//! it was sent. When followers observe it, their wait starts again. So a busy primary needs no arbitration, an idle
//! one costs nothing, and the object is no heartbeat: it is written once per change of primary, once when an idle
//! primary goes back to work, and when the runtime requests it.
//!
//! After the death of a primary, due work is done after half a lease duration, or when a whole one has passed since
//! the last write, whichever is later: at most one lease duration late, plus the requests of the takeover.
//!
//! # Why it is safe
//!
//! Leadership alone gives no safety. A process may stop for a minute between its check that it leads and its next
//! request. Leases keep two writers apart nearly always, and so avoid conflicts. Safety comes from this: **every write
//! is conditional**,
//!
//! - on the version of the object at which it was decided. The server refuses a write if the object has changed
//!   since, by any client;
//! - on the term. The server refuses a term that is lower than the object's. Terms come from compare-and-swap, so no
//!   two writers have the same one. Once the next primary has written an object, its predecessors can't.
//!
//! Therefore a writer that was deposed without noticing does nothing that the rightful one wouldn't do on the same version
//! of the same object, and is refused if it is late. No clock is compared with another machine's. `now` is a monotonic
//! clock of the process; only its differences count, and a wrong rate can only change who does the work. Requests must
//! time out before [`Action::Run`]'s `until`, so that they end with the lease under which they were sent. This too only
//! avoids conflicts.
//!
//! The assumptions that remain: the server's compare-and-swap works. A writer's name belongs to one process, so a
//! restarted one takes a new name. If the arbitration object may be deleted, its terms go on afterwards. Either other
//! objects still carry terms, above which the next claim starts ([`learn_term`](WriterLease::learn_term)), or the
//! first term of a new object comes from a clock that all writers share
//! ([`allow_terms`](WriterLease::allow_terms)), such as the version of the object.
//!
//! # What a partition does
//!
//! - **The primary can't reach the server.** It can't prove itself, and tries again at least once per third of a lease
//!   duration. It remains primary in its own state and does nothing. Followers observe no writes, and take over when
//!   work is overdue. After the partition its first proof is lost, or it observes the higher term, and it follows. Its
//!   requests in flight are refused, or were decided on a version that still stands, and were right.
//! - **A follower can't reach the server.** It can't claim. After the partition it
//!   [starts its wait again](WriterLease::reconnected).
//! - **A follower's watch is silent, but its requests succeed.** It finds work overdue that was done long ago, reads
//!   afresh, and abstains or observes the primary's writes. At worst it takes over from a live primary: one change of
//!   primary, whose loser follows.
//! - **The primary's watch is silent, but its requests succeed.** It goes on, and all observe that. If another has
//!   claimed meanwhile, both write for a moment. Each object goes to the one that the server admits, and the first
//!   refusal for a higher term demotes the older one.
//! - **The server is down.** No writer can write. The primary keeps its role, and proves itself afterwards.
//!
//! # Differences from the original
//!
//! | the original | here |
//! |---|---|
//! | a leader never lapses | it proves itself before it acts after being idle |
//! | an observed write does not demote a leader | one of a higher term does, at once |
//! | success on two different objects makes two leaders | only the arbitration object makes a leader |
//! | observations without queued work extend nothing | each extends a follower's wait |
//! | a follower sleeps inside the only worker | nothing sleeps; keys run side by side and back off by themselves |
//! | a conflict, or any failure, demotes | only a higher term, or a lost arbitration, does |
//!
//! In the original a follower's wait grows from 20 ms with each observed write. Here a follower waits a whole lease
//! duration after each. The original retries work at a fixed interval. Here work backs off like arbitration.

// The examples of the README are tests.
#[cfg(all(doctest, feature = "tokio"))]
#[doc = include_str!("../README.md")]
struct Readme;

mod action;
#[cfg(feature = "tokio")]
mod arbiter;
mod config;
mod machine;
mod queue;
#[cfg(feature = "tokio")]
mod worker;

pub use action::{Action, Finish, Holder, Lane, Observation, Reason, Term, WorkResult};
#[cfg(feature = "tokio")]
pub use arbiter::{Arbiter, Arbitration, Claim, MemoryArbiter, Verdict};
pub use config::{Backoff, Config};
pub use machine::{State, WriterLease};
#[cfg(feature = "tokio")]
pub use worker::{Permit, Worker};

#[cfg(test)]
mod properties;
#[cfg(test)]
mod simulation;
