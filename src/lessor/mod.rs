//! Temporary.
#![allow(missing_docs)]
pub mod clock;
mod time;
use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
    time::Duration,
};
pub use time::{LeaseTime, Ttl};
#[derive(Debug, thiserror::Error)]
#[error("x")]
pub struct Error;
#[derive(Clone, Debug)]
pub struct Config {
    pub min_ttl: Duration,
    pub max_ttl: Duration,
}
#[derive(Debug)]
struct L {
    ttl: Duration,
    deadline: LeaseTime,
    cap: Option<LeaseTime>,
    paused: Option<Duration>,
    ending: bool,
}
impl L {
    fn end(&self) -> Option<LeaseTime> {
        match (self.paused, self.cap) {
            (Some(_), c) => c,
            (None, Some(c)) => Some(c.min(self.deadline)),
            (None, None) => Some(self.deadline),
        }
    }
}
#[derive(Debug)]
pub struct Lessor<I: Ord> {
    l: HashMap<I, L>,
    q: BTreeSet<(LeaseTime, I)>,
    primary: bool,
}
impl<I: Copy + Ord + Hash> Lessor<I> {
    pub fn new(_: Config) -> Self {
        Self { l: HashMap::new(), q: BTreeSet::new(), primary: false }
    }
    fn change(&mut self, id: &I, f: impl FnOnce(&mut L)) {
        let Some(l) = self.l.get_mut(id) else { return };
        if let Some(e) = l.end() {
            self.q.remove(&(e, *id));
        }
        f(l);
        if let (Some(e), false) = (l.end(), l.ending) {
            self.q.insert((e, *id));
        }
    }
    pub fn grant(&mut self, id: I, ttl: Duration, now: LeaseTime) -> Result<(), Error> {
        self.restore(id, ttl, ttl, now)
    }
    pub fn restore(
        &mut self,
        id: I,
        ttl: Duration,
        remaining: Duration,
        now: LeaseTime,
    ) -> Result<(), Error> {
        self.remove(&id);
        self.l.insert(id, L { ttl, deadline: now + remaining, cap: None, paused: None, ending: false });
        self.change(&id, |_| {});
        Ok(())
    }
    pub fn renew_with(&mut self, id: &I, ttl: Duration, now: LeaseTime) {
        self.change(id, |l| {
            l.ttl = ttl;
            l.deadline = now + ttl;
            if l.paused.is_some() {
                l.paused = Some(ttl)
            }
        });
    }
    pub fn set_end_by(&mut self, id: &I, cap: Option<LeaseTime>) {
        self.change(id, |l| l.cap = cap);
    }
    pub fn suspend(&mut self, id: &I, now: LeaseTime) {
        self.change(id, |l| {
            if l.paused.is_none() {
                l.paused = Some(l.deadline.since(now))
            }
        });
    }
    pub fn resume(&mut self, id: &I, now: LeaseTime) {
        self.change(id, |l| {
            if let Some(p) = l.paused.take() {
                l.deadline = now + p
            }
        });
    }
    pub fn remove(&mut self, id: &I) {
        if let Some(l) = self.l.remove(id)
            && let Some(e) = l.end()
        {
            self.q.remove(&(e, *id));
        }
    }
    pub fn contains(&self, id: &I) -> bool {
        self.l.contains_key(id)
    }
    pub fn ttl(&self, id: &I) -> Option<Duration> {
        Some(self.l.get(id)?.ttl)
    }
    pub fn deadline(&self, id: &I) -> Option<LeaseTime> {
        self.l.get(id)?.end()
    }
    pub fn remaining(&self, id: &I, now: LeaseTime) -> Option<Duration> {
        let l = self.l.get(id)?;
        Some(match (l.paused, l.cap) {
            (Some(p), Some(c)) => p.min(c.since(now)),
            (Some(p), None) => p,
            _ => l.end()?.since(now),
        })
    }
    pub fn poll(&mut self, now: LeaseTime, limit: usize) -> Vec<I> {
        let mut out = vec![];
        while self.primary
            && out.len() < limit
            && let Some((t, id)) = self.q.first().copied()
            && t <= now
        {
            self.q.pop_first();
            if let Some(l) = self.l.get_mut(&id) {
                l.ending = true;
            }
            out.push(id);
        }
        out
    }
    pub fn reinstate(&mut self, id: &I) {
        self.change(id, |l| l.ending = false);
    }
    pub fn next_due(&self) -> Option<LeaseTime> {
        self.q.first().map(|(t, _)| *t)
    }
    pub fn earliest(&self) -> Option<(I, LeaseTime)> {
        self.q.first().map(|(t, i)| (*i, *t))
    }
    pub fn promote(&mut self) {
        self.primary = true;
    }
    pub fn demote(&mut self) {
        self.primary = false;
    }
}
