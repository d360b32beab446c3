//! Work that waits or runs, ordered by when it may run and by when it fell due.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{Finish, Lane, Term};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Work {
    lane: Option<Lane>,
    due: Duration,
    /// When it may run: at first `due`, later the end of its backoff.
    ready: Duration,
    /// Runs so far.
    attempts: u32,
    retry_limit: Option<u32>,
    /// Whether the current run is a run of this work. If the work was queued again meanwhile, it has yet to run.
    started: bool,
}

/// Work by key. A key is in `works` until its work is done or removed, in `running` while it runs, and in `ready` while
/// it waits to run. Removed work that still runs stays in `running`, so that no key runs twice at once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Queue<K: Ord> {
    works: BTreeMap<K, Work>,
    running: BTreeMap<K, (Term, Option<Lane>)>,
    /// By lane. No set is empty.
    ready: BTreeMap<Option<Lane>, BTreeSet<(Duration, K)>>,
    /// How many run in each lane. No number is zero.
    lanes: BTreeMap<Lane, usize>,
    dues: BTreeSet<(Duration, K)>,
}

impl<K: Ord + Clone> Queue<K> {
    pub(super) fn new() -> Self {
        Self {
            works: BTreeMap::new(),
            running: BTreeMap::new(),
            ready: BTreeMap::new(),
            lanes: BTreeMap::new(),
            dues: BTreeSet::new(),
        }
    }

    pub(super) fn push(&mut self, lane: Option<Lane>, key: K, due: Duration, retry_limit: Option<u32>) {
        let runs = self.running.contains_key(&key);
        if !runs && self.works.get(&key).is_some_and(|work| (work.lane, work.due) == (lane, due)) {
            return;
        }
        self.remove(&key);
        if !runs {
            self.wait(lane, due, key.clone());
        }
        self.dues.insert((due, key.clone()));
        let work = Work { lane, due, ready: due, attempts: 0, retry_limit, started: false };
        self.works.insert(key, work);
    }

    pub(super) fn remove(&mut self, key: &K) -> bool {
        let Some(work) = self.works.remove(key) else { return false };
        self.wait_no_more(work.lane, work.ready, key);
        self.dues.remove(&(work.due, key.clone()));
        true
    }

    /// Ends the backoff of a waiting key.
    pub(super) fn hasten(&mut self, key: &K) {
        let Some(work) = self.works.get_mut(key) else { return };
        let (lane, ready, due) = (work.lane, work.ready, work.due);
        if self.wait_no_more(lane, ready, key) {
            if let Some(work) = self.works.get_mut(key) {
                work.ready = due;
            }
            self.wait(lane, due, key.clone());
        }
    }

    /// Ends all backoffs.
    pub(super) fn hasten_all(&mut self) {
        let waiting = std::mem::take(&mut self.ready);
        for (lane, (_, key)) in
            waiting.into_iter().flat_map(|(lane, keys)| keys.into_iter().map(move |key| (lane, key)))
        {
            let Some(work) = self.works.get_mut(&key) else { continue };
            work.ready = work.due;
            let ready = work.ready;
            self.wait(lane, ready, key);
        }
    }

    /// Adds a key to those that wait to run.
    fn wait(&mut self, lane: Option<Lane>, ready: Duration, key: K) {
        self.ready.entry(lane).or_default().insert((ready, key));
    }

    /// Removes a key from those that wait to run, and returns whether it was there.
    fn wait_no_more(&mut self, lane: Option<Lane>, ready: Duration, key: &K) -> bool {
        let Some(keys) = self.ready.get_mut(&lane) else { return false };
        let waited = keys.remove(&(ready, key.clone()));
        if keys.is_empty() {
            self.ready.remove(&lane);
        }
        waited
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

    /// When the first waiting work may run.
    pub(super) fn first_ready(&self) -> Option<Duration> {
        self.ready.values().filter_map(BTreeSet::first).map(|(ready, _)| *ready).min()
    }

    /// When the first waiting work may run that has one of `slots` slots.
    pub(super) fn first_startable(&self, slots: usize) -> Option<Duration> {
        self.next(slots).map(|(_, (ready, _))| *ready)
    }

    /// The first waiting work that has a slot. If work waits and none has a slot, other work runs, and its end may free
    /// one.
    fn next(&self, slots: usize) -> Option<(Option<Lane>, &(Duration, K))> {
        let in_lanes: usize = self.lanes.values().sum();
        // One slot is for work in no lane, unless there is only one.
        let kept = usize::from(slots > 1);
        let has_slot = |lane: Option<Lane>| match lane {
            _ if self.running.len() >= slots => false,
            None => true,
            // As many slots must be left as the lane has. So however many lanes are stuck, another has a slot.
            Some(lane) => self.lanes.get(&lane).unwrap_or(&0) + in_lanes + kept < slots,
        };
        let firsts = self.ready.iter().filter_map(|(lane, keys)| Some((*lane, keys.first()?)));
        firsts.filter(|(lane, _)| has_slot(*lane)).min_by_key(|(_, first)| *first)
    }

    /// The work that has been due the longest, running or not.
    pub(super) fn first_due(&self) -> Option<(Duration, &K)> {
        self.dues.first().map(|(due, key)| (*due, key))
    }

    /// Starts the first waiting work that has one of `slots` slots, and returns its number of attempts.
    pub(super) fn start(&mut self, term: Term, slots: usize) -> Option<(K, u32)> {
        let (lane, (ready, key)) = self.next(slots).map(|(lane, first)| (lane, first.clone()))?;
        self.wait_no_more(lane, ready, &key);
        let work = self.works.get_mut(&key)?;
        work.started = true;
        work.attempts = work.attempts.saturating_add(1);
        self.running.insert(key.clone(), (term, lane));
        if let Some(lane) = lane {
            *self.lanes.entry(lane).or_default() += 1;
        }
        Some((key, work.attempts))
    }

    /// Ends the run of a key, and returns the term under which it ran; `None` if it didn't run.
    pub(super) fn finish(
        &mut self,
        key: &K,
        retry: bool,
        ready: impl FnOnce(u32) -> Duration,
    ) -> Option<(Term, Finish)> {
        let (term, lane) = self.running.remove(key)?;
        self.leave(lane);
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
        let (lane, ready) = (work.lane, work.ready);
        self.wait(lane, ready, key.clone());
        Some((term, finish))
    }

    /// Frees the slot of a run in this lane.
    fn leave(&mut self, lane: Option<Lane>) {
        let Some(lane) = lane else { return };
        let Some(running) = self.lanes.get_mut(&lane) else { return };
        *running -= 1;
        if *running == 0 {
            self.lanes.remove(&lane);
        }
    }
}
