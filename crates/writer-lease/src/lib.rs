//! The writer lease: replicas compete by writing, and one of them is primary.
//!
//! Most systems elect a leader by a lock that is renewed every few seconds, whether or not there is anything
//! to do. Here nobody writes in order to lead. Who gets a write accepted leads for a *lease duration*; who
//! sees another's write waits for as long; at rest nobody writes at all. The idea, the interface and the
//! backoff are those of [OpenShift's writer lease], completed by an *arbitration object* and by *terms*.
//!
//! [`WriterLease`] is the whole idea as a pure state machine: it takes what happened and the time, and answers
//! what is to be done. It reads no clock, does no I/O, and its state can be cloned, compared and hashed, so
//! that it can be simulated, replayed and model-checked. [`Worker`] is a small shell around it, which runs
//! closures on tokio.
//!
//! [OpenShift's writer lease]: https://github.com/openshift/router/tree/main/pkg/router/writerlease
//!
//! # States
//!
//! ```text
//!                       work to do, or the object seen empty: Claim
//!                ┌──────────────────────── Election ─────────────────────────┐
//!                │ won                         ▲                        lost │
//!                │                             │ expire()                    │ or another's claim or write seen
//!                ▼                             │ (from either)               ▼
//!   ┌───────── Leader ──────────────┐          │         ┌─────────────── Follower ──────────────┐
//!   │ until = sent + lease duration │          │         │ until = seen + lease duration         │
//!   │                               │                    │                                       │
//!   │ lease holds:  Run work        │   higher term seen, proof lost, resign()                   │
//!   │               as it falls due │ ─────────────────► │ holds work back; drops what it sees   │
//!   │ lease lapsed: work? Prove     │                    │ done                                  │
//!   │               first, then Run │ ◄───────────────── │                                       │
//!   │ work pending, but nothing     │   claim won:       │ object empty:  Claim at once          │
//!   │ accepted for a third of a     │   term + 1         │ work overdue by the head start, and   │
//!   │ lease duration: Prove         │                    │ the wait over: look afresh, Claim     │
//!   └───────────────────────────────┘                    └───────────────────────────────────────┘
//! ```
//!
//! # How a primary is chosen
//!
//! There is one arbitration object. It names the primary and its *term*, and it's only ever written by
//! compare-and-swap:
//!
//! - **Claim.** Put the own name on it, under a term above all that were seen. Somebody claims when the
//!   object is seen empty (at once; a random delay of some milliseconds keeps replicas from writing all
//!   together), or when work is overdue although the primary had its chance: it was due for half a lease
//!   duration at least (the *head start*), and nothing has been seen of the primary for a whole one. Before
//!   the write the shell looks afresh at the object and the work, so a follower that merely heard nothing
//!   finds out. Of several claims of one version of the object, one wins.
//! - **Prove.** Write it again under the own name and term. The primary does so before it acts when its lease
//!   has lapsed, that is after it was idle for longer than a lease duration; and while work is pending of
//!   which nothing gets accepted, once per third of a lease duration, so that one piece of work that can't be
//!   done isn't taken for a dead primary; and when the shell wants others to see that it lives.
//! - **Resign.** Clear it. A primary that stops in order does so last, and the next one takes over at once.
//!
//! Every other write only has to carry the term. An accepted one extends the primary's lease, counted from
//! *before* it was sent; when others see it, their wait starts anew. So a primary that is busy needs no
//! arbitration, one that is idle costs nothing, and the object is no heartbeat: it is written once per change
//! of primary, once when an idle primary goes back to work, and when the shell says so.
//!
//! After the death of a primary, work that falls due is done after half a lease duration, or when a whole one
//! has passed since its last write, whichever is later: one lease duration late at most, plus the requests of
//! the takeover.
//!
//! # Why it is safe
//!
//! Not because only one leads. Leadership is a belief, and a belief may be out of date: a process may stop
//! for a minute between "I lead" and its next request. Leases keep two writers out of each other's way nearly
//! always, and that saves conflicts; what keeps the promises is that **every write is conditional**:
//!
//! - on the version of the object at which it was decided. A write on which anything has changed meanwhile is
//!   refused, whoever sends it;
//! - on the term: the server refuses one that is lower than what the object carries. Terms are handed out by
//!   compare-and-swap, so no two writers hold the same one, and once the next primary has touched an object,
//!   its predecessors never can.
//!
//! Therefore a writer that wrongly believes to lead does nothing that the rightful one wouldn't do on that
//! same version of that same object, and loses where it's late. No clock is compared with another machine's:
//! `now` is a monotonic clock of the process, all that counts are its differences, and all a wrong rate can
//! do is to change who does the work. Requests must time out before [`Action::Run`]'s `until`, so that they
//! die with the lease that they were sent under; this too only spares conflicts.
//!
//! What remains to be assumed: the server's compare-and-swap works; a writer's name belongs to one process (a
//! restarted one takes a new name); and where the arbitration object may be deleted, its terms go on. Either the
//! deletion leaves terms on other objects, from which the next claim goes on
//! ([`learn_term`](WriterLease::learn_term)), or the first term of a new one comes from a clock that all writers
//! share ([`allow_terms`](WriterLease::allow_terms)), as the operator's does: from the version of the object.
//!
//! # What a partition does
//!
//! - **The primary is cut off from the server.** It can't prove itself, and asks again and again, no longer
//!   than a third of a lease duration apart; it stays primary in its own eyes and does nothing. The others
//!   see nothing of it and take over when something is overdue. Back again, its first proof is lost, or it
//!   sees the higher term: it follows. What it had in flight is refused, or was decided on a version that
//!   still stands, and was right.
//! - **A follower is cut off.** It can't claim. Back again, it knows that it was deaf
//!   ([`deaf_until`](WriterLease::deaf_until)) and waits anew.
//! - **A follower hears nothing, but its requests pass.** It finds work overdue that has long been done,
//!   looks afresh, and abstains or sees the primary's signs. At worst it takes over from a primary that
//!   lives: one change of primary, whose loser follows, and nothing else.
//! - **The primary hears nothing, but its requests pass.** It goes on, and everybody sees that it does. If
//!   another has claimed meanwhile, both write for a moment: each object goes to whom the server lets, and
//!   the first refusal for a higher term demotes the elder.
//! - **The server is gone.** Nobody can write, so nobody leads in any sense that matters; the primary stays
//!   who it was, and proves itself on return.
//!
//! # What the original does not do
//!
//! | the original | here |
//! |---|---|
//! | a leader never lapses | it proves itself before it acts after being idle |
//! | a write that was observed does not demote a leader | one of a higher term does, at once |
//! | success on two different objects makes two leaders | only the arbitration object makes a leader |
//! | observations without queued work extend nothing | each extends a follower's wait |
//! | a follower sleeps inside the only worker | nothing sleeps; keys run side by side and back off by themselves |
//! | a conflict, or any failure, demotes | only a higher term, or a lost arbitration, does |
//!
//! Where the original makes a follower's wait grow from 20 ms with each observed write, a follower here waits
//! a whole lease duration after each. Where it retries work at a fixed interval, work here backs off as
//! arbitration does.
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
//! // It falls due after a minute, but the primary does nothing about it.
//! assert_eq!(lease.poll(at(61)), None);
//! assert_eq!(lease.wake_at(at(61)), Some(Duration::from_millis(62_500)));
//! let claim = lease.poll(at(63));
//! assert_eq!(claim, Some(Action::Claim { term: 8, reason: Reason::Overdue("expire a") }));
//!
//! // The compare-and-swap succeeds: this writer leads, and runs it.
//! lease.claimed(8, at(63), at(64));
//! let run = lease.poll(at(64));
//! assert_eq!(run, Some(Action::Run { key: "expire a", attempt: 1, term: 8, until: at(68) }));
//! lease.done(&"expire a", WorkResult::Extend, false, at(64), at(65));
//! assert_eq!(lease.lease_until(), Some(at(69)));
//! ```

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
