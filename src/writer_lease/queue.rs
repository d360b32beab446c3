//! The work that waits or runs, ordered by when it may run and by when it fell due.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Finish, Term};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Work {
    due: Duration,
    /// When it may run: `due`, later the end of its backoff.
    ready: Duration,
    /// Runs so far.
    attempts: u32,
    retry_limit: Option<u32>,
    /// Whether the run under way is a run of this work. Work tried anew meanwhile has yet to run.
    started: bool,
}

/// Work by key. A key is in `works` from its try to its end, in `running` while it runs (even if its work
/// was removed meanwhile: no key runs twice at once), and in `ready` while it waits to run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Queue<K: Ord> {
    works: BTreeMap<K, Work>,
    running: BTreeMap<K, Term>,
    ready: BTreeSet<(Duration, K)>,
    dues: BTreeSet<(Duration, K)>,
}

impl<K: Ord + Clone> Queue<K> {
    pub(super) fn new() -> Self {
        Self {
            works: BTreeMap::new(),
            running: BTreeMap::new(),
            ready: BTreeSet::new(),
            dues: BTreeSet::new(),
        }
    }

    pub(super) fn push(&mut self, key: K, due: Duration, retry_limit: Option<u32>) {
        let runs = self.running.contains_key(&key);
        if !runs && self.works.get(&key).is_some_and(|work| work.due == due) {
            return;
        }
        self.remove(&key);
        if !runs {
            self.ready.insert((due, key.clone()));
        }
        self.dues.insert((due, key.clone()));
        self.works.insert(key, Work { due, ready: due, attempts: 0, retry_limit, started: false });
    }

    pub(super) fn remove(&mut self, key: &K) -> bool {
        let Some(work) = self.works.remove(key) else { return false };
        self.ready.remove(&(work.ready, key.clone()));
        self.dues.remove(&(work.due, key.clone()));
        true
    }

    /// Ends the backoff of a key that waits.
    pub(super) fn hasten(&mut self, key: &K) {
        let Some(work) = self.works.get_mut(key) else { return };
        if self.ready.remove(&(work.ready, key.clone())) {
            work.ready = work.due;
            self.ready.insert((work.ready, key.clone()));
        }
    }

    /// Ends all backoffs.
    pub(super) fn hasten_all(&mut self) {
        for (_, key) in std::mem::take(&mut self.ready) {
            let Some(work) = self.works.get_mut(&key) else { continue };
            work.ready = work.due;
            self.ready.insert((work.ready, key));
        }
    }

    pub(super) fn limit_retries(&mut self, key: &K, retries: u32) {
        if let Some(work) = self.works.get_mut(key) {
            work.retry_limit = Some(retries);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.works.len()
    }

    pub(super) fn contains(&self, key: &K) -> bool {
        self.works.contains_key(key)
    }

    pub(super) fn running(&self) -> usize {
        self.running.len()
    }

    pub(super) fn is_running(&self, key: &K) -> bool {
        self.running.contains_key(key)
    }

    /// When the first work may run that doesn't run already.
    pub(super) fn first_ready(&self) -> Option<Duration> {
        self.ready.first().map(|(ready, _)| *ready)
    }

    /// The work that has been due for longest, running or not.
    pub(super) fn first_due(&self) -> Option<(Duration, &K)> {
        self.dues.first().map(|(due, key)| (*due, key))
    }

    /// Starts the first work that may run, and answers with the number of this attempt.
    pub(super) fn start(&mut self, term: Term) -> Option<(K, u32)> {
        let (_, key) = self.ready.pop_first()?;
        let work = self.works.get_mut(&key)?;
        work.started = true;
        work.attempts = work.attempts.saturating_add(1);
        self.running.insert(key.clone(), term);
        Some((key, work.attempts))
    }

    /// Ends the run of a key and answers with the term that it ran under; `None` if it didn't run.
    pub(super) fn finish(
        &mut self,
        key: &K,
        retry: bool,
        ready: impl FnOnce(u32) -> Duration,
    ) -> Option<(Term, Finish)> {
        let term = self.running.remove(key)?;
        let Some(work) = self.works.get_mut(key) else { return Some((term, Finish::Removed)) };
        if work.started {
            let gives_up = retry && work.retry_limit.is_some_and(|limit| work.attempts > limit);
            if !retry || gives_up {
                self.remove(key);
                return Some((term, if gives_up { Finish::GaveUp } else { Finish::Finished }));
            }
            work.ready = ready(work.attempts);
        }
        let finish = if work.started { Finish::Retries { at: work.ready } } else { Finish::Requeued };
        work.started = false;
        self.ready.insert((work.ready, key.clone()));
        Some((term, finish))
    }
}
