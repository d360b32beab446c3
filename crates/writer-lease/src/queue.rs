//! Work that waits or runs, ordered by when it may run and by when it fell due.

mod by_lane;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use self::by_lane::ByLane;
use super::{Finish, Lane, Term};

/// A run that takes longer than this hangs.
const HANGS: Duration = Duration::from_millis(500);
/// For how long a trusted lane counts as suspect after a run of it has hung or failed.
const SUSPECT_FOR: Duration = Duration::from_secs(5);
/// Work of a patient lane gives way to work of others that is ready at most so much later.
const PATIENCE: Duration = Duration::from_secs(10);
/// The first pause of checks of a lane after one that failed. It doubles up to [`LONGEST_CHECK_PAUSE`].
const CHECK_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_CHECK_PAUSE: Duration = Duration::from_secs(60);

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

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Run {
    term: Term,
    lane: Option<Lane>,
    since: Duration,
}

impl Run {
    fn hangs(&self, now: Duration) -> bool {
        self.since.saturating_add(HANGS) <= now
    }

    fn is_trusted(&self) -> bool {
        self.lane.is_some_and(Lane::is_trusted)
    }
}

/// Work by key. A key is in `works` until its work is done or removed, in `running` while it runs, and in `ready` while
/// it waits to run. Removed work that still runs stays in `running`, so that no key runs twice at once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Queue<K: Ord> {
    works: BTreeMap<K, Work>,
    running: BTreeMap<K, Run>,
    ready: ByLane<K>,
    dues: ByLane<K>,
    /// Trusted lanes of which a run has hung or failed, and until when that counts.
    suspects: BTreeMap<Lane, Duration>,
    /// Lanes whose work can't be checked: when to try again, and after how many failures.
    unchecked: BTreeMap<Option<Lane>, (Duration, u32)>,
    /// No work of a spare lane starts before.
    spare_from: Duration,
    /// The spare lane of which work started last: the others go first, in turns.
    last_spare: Option<Lane>,
}

/// When it is the turn of waiting work, whether work of others of that time goes first, and its spare lane: the least is next.
type Turn = (Duration, bool, Option<Lane>);

/// How many run, and where.
#[derive(Debug, Default)]
struct Load {
    /// All that take a slot: runs of a trusted lane take none any more once they hang.
    slots: usize,
    /// Those of them in lanes that have to leave slots to others.
    bounded: usize,
    by_lane: BTreeMap<Lane, usize>,
    suspects: BTreeSet<Lane>,
}

impl<K: Ord + Clone> Queue<K> {
    pub(super) fn new() -> Self {
        Self {
            works: BTreeMap::new(),
            running: BTreeMap::new(),
            ready: ByLane::default(),
            dues: ByLane::default(),
            suspects: BTreeMap::new(),
            unchecked: BTreeMap::new(),
            spare_from: Duration::ZERO,
            last_spare: None,
        }
    }

    /// `ready`: when it may run, if that isn't at once.
    pub(super) fn push(
        &mut self,
        lane: Option<Lane>,
        key: K,
        due: Duration,
        ready: Option<Duration>,
        retry_limit: Option<u32>,
    ) {
        let runs = self.running.contains_key(&key);
        let is_same = |work: &Work| {
            (work.lane, work.due) == (lane, due) && ready.is_none_or(|ready| ready == work.ready)
        };
        if !runs && self.works.get(&key).is_some_and(is_same) {
            return;
        }
        self.remove(&key);
        let ready = ready.unwrap_or(due);
        if !runs {
            self.ready.insert(lane, ready, key.clone());
        }
        self.dues.insert(lane, due, key.clone());
        let work = Work { lane, due, ready, attempts: 0, retry_limit, started: false };
        self.works.insert(key, work);
    }

    pub(super) fn remove(&mut self, key: &K) -> bool {
        let Some(work) = self.works.remove(key) else { return false };
        self.ready.remove(work.lane, work.ready, key);
        if self.dues.remove(work.lane, work.due, key) && !self.dues.has(work.lane) {
            self.unchecked.remove(&work.lane);
        }
        true
    }

    /// Ends the backoff of a waiting key.
    pub(super) fn hasten(&mut self, key: &K) {
        let Some(work) = self.works.get_mut(key) else { return };
        let (lane, ready, due) = (work.lane, work.ready, work.due);
        if self.ready.remove(lane, ready, key) {
            work.ready = due;
            self.ready.insert(lane, due, key.clone());
        }
    }

    /// Ends all backoffs.
    pub(super) fn hasten_all(&mut self) {
        for (lane, key) in self.ready.take() {
            let Some(work) = self.works.get_mut(&key) else { continue };
            work.ready = work.due;
            self.ready.insert(lane, work.ready, key);
        }
        self.unchecked.clear();
    }

    pub(super) fn limit_retries(&mut self, key: &K, retries: u32) {
        if let Some(work) = self.works.get_mut(key) {
            work.retry_limit = Some(retries);
        }
    }

    pub(super) fn spare_from(&mut self, from: Duration) {
        self.spare_from = from;
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

    pub(super) fn runs_spare(&self, key: &K) -> bool {
        self.running.get(key).and_then(|run| run.lane).is_some_and(Lane::is_spare)
    }

    // --- What may run --------------------------------------------------------------------------------------------

    /// When the first waiting work may run.
    pub(super) fn first_ready(&self) -> Option<Duration> {
        let mut first: Option<Duration> = None;
        for (ready, _, lane) in self.ready.firsts() {
            if first.is_some_and(|first| first <= *ready) {
                break;
            }
            let at = self.ready_at(*lane, *ready);
            first = Some(first.map_or(at, |first| first.min(at)));
        }
        first
    }

    /// When the first waiting work may run that has one of `slots` slots, or when a slot may be free for it.
    pub(super) fn first_startable(&self, slots: usize, now: Duration) -> Option<Duration> {
        let startable = self.next(slots, now).map(|(at, ..)| at);
        if startable.is_some_and(|at| at <= now) {
            return startable;
        }
        let waits = self.ready.firsts().next().is_some_and(|(ready, ..)| *ready <= now);
        let trusted = self.running.values().filter(|run| waits && run.is_trusted() && !run.hangs(now));
        let freed = trusted.map(|run| run.since.saturating_add(HANGS));
        freed.chain(startable).min()
    }

    /// When work of this lane may run that is ready at this time.
    fn ready_at(&self, lane: Option<Lane>, ready: Duration) -> Duration {
        if lane.is_some_and(Lane::is_spare) { ready.max(self.spare_from) } else { ready }
    }

    /// When it is the turn of this work, among what has a slot. What may run now is never later than now.
    fn turn(&self, lane: Option<Lane>, ready: Duration, now: Duration) -> Turn {
        let at = self.ready_at(lane, ready);
        let gives_way = at <= now && lane.is_some_and(Lane::is_patient);
        let at = if gives_way { at.saturating_add(PATIENCE).min(now) } else { at };
        let spare = lane.filter(|lane| lane.is_spare());
        let had_its_turn = spare.is_some() && spare <= self.last_spare;
        (at, had_its_turn || gives_way && at == now, spare)
    }

    /// The first waiting work that has a slot. If work waits and none has a slot, other work runs, and its end may free
    /// one; or it hangs, and gives its slot up then.
    fn next(&self, slots: usize, now: Duration) -> Option<(Duration, &K, Option<Lane>)> {
        let load = self.load(now);
        if load.slots >= slots {
            return None;
        }
        let mut next: Option<(Turn, &K, Option<Lane>)> = None;
        for (ready, key, lane) in self.ready.firsts() {
            if next.is_some_and(|(before, ..)| before <= (*ready, false, None)) {
                break;
            }
            let turn = self.turn(*lane, *ready, now);
            if next.is_none_or(|(before, ..)| turn < before) && self.has_slot(&load, *lane, slots, now) {
                next = Some((turn, key, *lane));
            }
        }
        next.map(|((at, ..), key, lane)| (at, key, lane))
    }

    fn has_slot(&self, load: &Load, lane: Option<Lane>, slots: usize, now: Duration) -> bool {
        let Some(lane) = lane else { return true };
        if lane.is_trusted() && !self.is_suspect(load, lane, now) {
            return true;
        }
        // One slot is for others, unless there is only one. As many must be left as the lane has. So however many lanes
        // are stuck, another has a slot.
        load.by_lane.get(&lane).unwrap_or(&0) + load.bounded + usize::from(slots > 1) < slots
    }

    fn is_suspect(&self, load: &Load, lane: Lane, now: Duration) -> bool {
        load.suspects.contains(&lane) || self.suspects.get(&lane).is_some_and(|until| *until > now)
    }

    fn load(&self, now: Duration) -> Load {
        let mut load = Load::default();
        for run in self.running.values() {
            let Some(lane) = run.lane else { continue };
            *load.by_lane.entry(lane).or_default() += 1;
            if run.is_trusted() && run.hangs(now) {
                load.suspects.insert(lane);
            }
        }
        for run in self.running.values().filter(|run| !(run.is_trusted() && run.hangs(now))) {
            load.slots += 1;
            let is_bounded = |lane: Lane| !lane.is_trusted() || self.is_suspect(&load, lane, now);
            load.bounded += usize::from(run.lane.is_some_and(is_bounded));
        }
        load
    }

    // --- What a follower checks ----------------------------------------------------------------------------------

    /// The work that has been due the longest, running or not.
    pub(super) fn first_due(&self) -> Option<(Duration, &K)> {
        self.dues.firsts().next().map(|(due, key, _)| (*due, key))
    }

    /// The work that a follower checks first, and when: `head_start` after it fell due, or when its lane is tried again.
    pub(super) fn first_check(&self, head_start: Duration) -> Option<(Duration, &K)> {
        let mut first: Option<(Duration, &K)> = None;
        for (due, key, lane) in self.dues.firsts() {
            let after = due.saturating_add(head_start);
            let at = self.unchecked.get(lane).map_or(after, |(from, _)| after.max(*from));
            if first.is_none_or(|(before, _)| at < before) {
                first = Some((at, key));
            }
            // All others are later.
            if first.is_some_and(|(before, _)| before <= after) {
                break;
            }
        }
        first
    }

    /// The work of this key can't be checked: that of other lanes goes first. The pause grows with each failure.
    pub(super) fn postpone_checks(&mut self, key: &K, now: Duration) {
        let Some(work) = self.works.get(key) else { return };
        let (from, failures) = self.unchecked.entry(work.lane).or_default();
        let pause = CHECK_PAUSE.saturating_mul(1 << (*failures).min(16)).min(LONGEST_CHECK_PAUSE);
        (*from, *failures) = (now.saturating_add(pause), failures.saturating_add(1));
    }

    /// The work of this key was checked: its lane is readable.
    pub(super) fn checked(&mut self, key: &K) {
        if let Some(work) = self.works.get(key) {
            self.unchecked.remove(&work.lane);
        }
    }

    /// After how many failures the lane of this key is tried again.
    pub(super) fn failed_checks(&self, key: &K) -> u32 {
        let lane = self.works.get(key).map(|work| work.lane);
        lane.and_then(|lane| self.unchecked.get(&lane)).map_or(0, |(_, failures)| *failures)
    }

    /// Whether the work of any lane can't be checked.
    pub(super) fn has_unchecked(&self) -> bool {
        !self.unchecked.is_empty()
    }

    // --- Runs ----------------------------------------------------------------------------------------------------

    /// Starts the first waiting work that has one of `slots` slots, and returns its number of attempts.
    pub(super) fn start(&mut self, term: Term, slots: usize, now: Duration) -> Option<(K, u32)> {
        let (_, key, lane) = self.next(slots, now)?;
        let key = key.clone();
        if lane.is_some_and(Lane::is_spare) {
            self.last_spare = lane;
        }
        let work = self.works.get_mut(&key)?;
        self.ready.remove(lane, work.ready, &key);
        work.started = true;
        work.attempts = work.attempts.saturating_add(1);
        self.running.insert(key.clone(), Run { term, lane, since: now });
        Some((key, work.attempts))
    }

    /// Ends the run of a key, and returns the term under which it ran; `None` if it didn't run.
    pub(super) fn finish(
        &mut self,
        key: &K,
        retry: bool,
        now: Duration,
        ready: impl FnOnce(u32) -> Duration,
    ) -> Option<(Term, Finish)> {
        let run = self.running.remove(key)?;
        if let Some(lane) = run.lane.filter(|lane| lane.is_trusted() && (retry || run.hangs(now))) {
            self.suspects.retain(|_, until| *until > now);
            self.suspects.insert(lane, now.saturating_add(SUSPECT_FOR));
        }
        let Some(work) = self.works.get_mut(key) else { return Some((run.term, Finish::Removed)) };
        if work.started {
            let gives_up = retry && work.retry_limit.is_some_and(|limit| work.attempts > limit);
            if !retry || gives_up {
                self.remove(key);
                return Some((run.term, if gives_up { Finish::GaveUp } else { Finish::Finished }));
            }
            work.ready = ready(work.attempts);
        }
        let finish = if work.started { Finish::Retries { at: work.ready } } else { Finish::Requeued };
        work.started = false;
        self.ready.insert(work.lane, work.ready, key.clone());
        Some((run.term, finish))
    }
}
