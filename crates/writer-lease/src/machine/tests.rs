use std::time::Duration;

use super::{State, WriterLease};
use crate::{Action, Backoff, Config, Finish, Holder, Lane, Observation, Reason, Term, WorkResult};

mod claims;
mod demotion;
mod election;
mod failing;
mod follower;
mod keys;
mod leader;

const LEASE: Duration = Duration::from_secs(5);
const HEAD_START: Duration = Duration::from_millis(2500);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn s(s: u64) -> Duration {
    Duration::from_secs(s)
}

/// Five seconds, without jitter, so that times are exact.
fn config() -> Config {
    Config { backoff: Backoff { jitter_percent: 0, ..Backoff::default() }, ..Config::new(LEASE) }
}

fn election() -> WriterLease<&'static str> {
    WriterLease::new(config())
}

/// Leads under term 1 since `at`.
fn leader(at: Duration) -> WriterLease<&'static str> {
    let mut lease = election();
    lease.observe_claim(Holder::Nobody, 0, at);
    assert_eq!(all(&mut lease, at), [claim_empty(1)]);
    lease.claimed(1, at, at);
    lease
}

/// Follows another that claimed term 1 at `at`.
fn follower(at: Duration) -> WriterLease<&'static str> {
    let mut lease = election();
    assert_eq!(lease.observe_claim(Holder::Other, 1, at), Observation::Followed);
    lease
}

/// Everything to be done at `now`.
fn all(lease: &mut WriterLease<&'static str>, now: Duration) -> Vec<Action<&'static str>> {
    std::iter::from_fn(|| lease.poll(now)).collect()
}

/// When it is to be polled, or never.
fn wake<K: Ord + Clone>(lease: &WriterLease<K>, now: Duration) -> Duration {
    lease.wake_at(now).unwrap_or(Duration::MAX)
}

/// The keys that run at `now`; fails at any other action.
fn runs(lease: &mut WriterLease<&'static str>, now: Duration) -> Vec<&'static str> {
    let key = |action| match action {
        Action::Run { key, .. } => key,
        other => panic!("{other:?} instead of a run"),
    };
    all(lease, now).into_iter().map(key).collect()
}

fn claim_empty(term: Term) -> Action<&'static str> {
    Action::Claim { term, reason: Reason::Empty }
}

fn claim_overdue(term: Term, key: &'static str) -> Action<&'static str> {
    Action::Claim { term, reason: Reason::Overdue(key) }
}

fn claim_unanswered(term: Term) -> Action<&'static str> {
    Action::Claim { term, reason: Reason::Unanswered }
}

fn nothing() -> Vec<Action<&'static str>> {
    vec![]
}
