//! The writer lease on tokio: runs closures when this writer leads.

use std::{collections::BTreeMap, future::Future, panic::resume_unwind, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
    time::{Instant, sleep_until, timeout, timeout_at},
};

use super::{
    Action, Arbiter, Config, Holder, Lane, Observation, State, Term, Verdict, WorkResult, WriterLease,
};

/// One run of a piece of work.
#[derive(Clone, Copy, Debug)]
pub struct Permit {
    /// Counts from 1.
    pub attempt: u32,
    /// The term, which every write of this run has to carry.
    pub term: Term,
    /// When the worker drops this run, since the lease may lapse.
    pub until: Instant,
}

type Work = Arc<dyn Fn(Permit) -> BoxFuture<'static, (WorkResult, bool)> + Send + Sync>;

/// A [`WriterLease`] that runs its work, with the interface of OpenShift's. Clones are the same worker.
///
/// It reads the arbitration object only in order to write it. The caller watches that object, and reports changes by
/// [`observe_claim`](Self::observe_claim), and other writers' writes by [`observe`](Self::observe) and
/// [`extend`](Self::extend).
///
/// ```
/// use std::sync::Arc;
/// use writer_lease::{Arbitration, Config, WorkResult, Worker};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let worker = Worker::new(Config::default());
/// worker.try_work("greet", |permit| async move {
///     println!("written under term {}", permit.term);
///     (WorkResult::Extend, false)
/// });
///
/// let arbiter = Arc::new(Arbitration::default().arbiter("replica-1"));
/// let running = tokio::spawn(worker.clone().run(arbiter, std::future::pending()));
/// assert!(worker.wait().await);
/// # running.abort();
/// # }
/// ```
#[derive(Clone)]
pub struct Worker<K: Ord>(Arc<Shared<K>>);

struct Shared<K: Ord> {
    start: Instant,
    lease_duration: Duration,
    inner: Mutex<Inner<K>>,
    /// Wakes `run` after a method has changed the machine.
    changed: Notify,
    state: watch::Sender<State>,
}

struct Inner<K: Ord> {
    machine: WriterLease<K>,
    works: BTreeMap<K, Work>,
}

/// The result of a task.
enum Report<K> {
    Ran { key: K, sent_at: Duration, outcome: Option<(WorkResult, bool)> },
    Arbitrated { claim: bool, sent_at: Duration, verdict: Verdict },
    Resigned,
}

impl<K: Ord + Clone + Send + Sync + 'static> Worker<K> {
    /// A worker, which does nothing until [`run`](Self::run).
    pub fn new(config: Config) -> Self {
        let lease_duration = config.lease_duration;
        let machine = WriterLease::new(config);
        let state = watch::Sender::new(machine.state());
        let inner = Mutex::new(Inner { machine, works: BTreeMap::new() });
        Self(Arc::new(Shared { start: Instant::now(), lease_duration, inner, changed: Notify::new(), state }))
    }

    /// Queues `work` under `key`. A leader runs it at once; a follower holds it back. The work returns its result, and
    /// whether to retry it. Waiting work of this key is replaced, and keeps its place in the queue.
    pub fn try_work<W, F>(&self, key: K, work: W)
    where
        W: Fn(Permit) -> F + Send + Sync + 'static,
        F: Future<Output = (WorkResult, bool)> + Send + 'static,
    {
        self.queue(key, work, WriterLease::try_work);
    }

    /// Like [`try_work`](Self::try_work), in a [lane](Lane). Waiting work of this key stays in its lane.
    pub fn try_work_in<W, F>(&self, lane: Lane, key: K, work: W)
    where
        W: Fn(Permit) -> F + Send + Sync + 'static,
        F: Future<Output = (WorkResult, bool)> + Send + 'static,
    {
        self.queue(key, work, |machine, key, due| machine.try_work_in(lane, key, due));
    }

    fn queue<W, F>(&self, key: K, work: W, push: impl FnOnce(&mut WriterLease<K>, K, Duration))
    where
        W: Fn(Permit) -> F + Send + Sync + 'static,
        F: Future<Output = (WorkResult, bool)> + Send + 'static,
    {
        self.change_and_wake(|inner, now| {
            inner.works.insert(key.clone(), Arc::new(move |permit| Box::pin(work(permit))));
            if inner.machine.contains(&key) && !inner.machine.is_running(&key) {
                inner.machine.hasten(&key);
            } else {
                push(&mut inner.machine, key, now);
            }
        });
    }

    /// Limits the retries of the work of `key`. It is dropped afterwards.
    pub fn limit_retries(&self, key: &K, retries: u32) {
        self.change(|inner, _| inner.machine.limit_retries(key, retries));
    }

    /// Another writer has done the work of `key`. Drops the work, and starts a follower's wait again.
    pub fn extend(&self, key: &K) {
        self.change_and_wake(|inner, now| {
            inner.works.remove(key);
            inner.machine.extend(key, now);
        });
    }

    /// Drops the work of `key`. If it runs, it isn't retried.
    pub fn remove(&self, key: &K) {
        self.change_and_wake(|inner, _| {
            inner.works.remove(key);
            inner.machine.remove(key);
        });
    }

    /// How many keys have work, waiting or running.
    pub fn len(&self) -> usize {
        self.0.inner.lock().machine.len()
    }

    /// Whether no key has work.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Goes back to the election. If work is queued and the arbitration object is vacant, this writer claims it.
    pub fn expire(&self) {
        self.change_and_wake(|inner, _| inner.machine.expire());
    }

    /// Another writer's write under `term` was observed just now.
    pub fn observe(&self, term: Term) -> Observation {
        self.change_and_wake(|inner, now| inner.machine.observe(term, now))
    }

    /// The arbitration object was observed to name `holder` under `term`.
    pub fn observe_claim(&self, holder: Holder, term: Term) -> Observation {
        self.change_and_wake(|inner, now| inner.machine.observe_claim(holder, term, now))
    }

    /// The role of this writer.
    pub fn state(&self) -> State {
        self.0.inner.lock().machine.state()
    }

    /// Waits until the election is decided, and returns whether this writer leads. An election isn't decided without work
    /// and without an observation of the arbitration object.
    pub async fn wait(&self) -> bool {
        let mut state = self.0.state.subscribe();
        // The sender lives as long as this worker, so waiting can't fail.
        let decided = state.wait_for(|state| *state != State::Election).await;
        decided.is_ok_and(|state| matches!(*state, State::Leader { .. }))
    }

    /// Like [`wait`](Self::wait), but for at most this long; `None` if the election isn't decided by then.
    pub async fn wait_until(&self, longest: Duration) -> Option<bool> {
        timeout(longest, self.wait()).await.ok()
    }

    /// Works until `stop` completes. Call it once. Then it finishes the work that runs (within the lease), starts no
    /// other, and gives up the lead, so that another writer takes over at once. If the future is dropped instead, the work
    /// that runs is dropped with it, and others take over when work is overdue.
    ///
    /// # Panics
    /// When work panics, with that panic, since a writer must not lead without working.
    pub async fn run<A: Arbiter<K>>(self, arbiter: Arc<A>, stop: impl Future<Output = ()>) {
        let mut tasks = JoinSet::new();
        tokio::pin!(stop);
        loop {
            let wake = self.act(&arbiter, &mut tasks);
            let asleep = async {
                match wake {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = &mut stop => break,
                Some(report) = tasks.join_next() => self.settle(report),
                () = self.0.changed.notified() => {}
                () = asleep => {}
            }
        }
        while let Some(report) = tasks.join_next().await {
            self.settle(report);
        }
        let led = self.change(|inner, now| {
            let term = inner.machine.leading_term();
            inner.machine.resign(now);
            term
        });
        if let Some(term) = led {
            // If it fails, others take over later.
            let _ = timeout(self.0.lease_duration, arbiter.resign(term)).await;
        }
    }

    /// Starts all actions that are due, and returns when to poll again.
    fn act<A: Arbiter<K>>(&self, arbiter: &Arc<A>, tasks: &mut JoinSet<Report<K>>) -> Option<Instant> {
        self.change(|inner, now| {
            while let Some(action) = inner.machine.poll(now) {
                self.start(action, now, &inner.works, arbiter, tasks);
            }
            inner.machine.wake_at(now).map(|at| self.0.start + at)
        })
    }

    fn start<A: Arbiter<K>>(
        &self,
        action: Action<K>,
        sent_at: Duration,
        works: &BTreeMap<K, Work>,
        arbiter: &Arc<A>,
        tasks: &mut JoinSet<Report<K>>,
    ) {
        let arbiter = Arc::clone(arbiter);
        let patience = self.0.lease_duration;
        match action {
            Action::Run { key, attempt, term, until } => {
                let work = works.get(&key).cloned();
                let until = self.0.start + until;
                tasks.spawn(async move {
                    let outcome = match work {
                        Some(work) => timeout_at(until, work(Permit { attempt, term, until })).await.ok(),
                        None => Some((WorkResult::None, false)),
                    };
                    Report::Ran { key, sent_at, outcome }
                });
            }
            Action::Prove { term } => {
                tasks.spawn(async move {
                    let verdict = timeout(patience, arbiter.prove(term)).await.unwrap_or(Verdict::Unknown);
                    Report::Arbitrated { claim: false, sent_at, verdict }
                });
            }
            Action::Claim { term, reason } => {
                tasks.spawn(async move {
                    let verdict =
                        timeout(patience, arbiter.claim(term, reason)).await.unwrap_or(Verdict::Unknown);
                    Report::Arbitrated { claim: true, sent_at, verdict }
                });
            }
            Action::Resign { term } => {
                tasks.spawn(async move {
                    let _ = timeout(patience, arbiter.resign(term)).await;
                    Report::Resigned
                });
            }
        }
    }

    fn settle(&self, report: Result<Report<K>, tokio::task::JoinError>) {
        let report = match report {
            Ok(report) => report,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                // Only the end of the runtime cancels a task.
                Err(_) => return,
            },
        };
        self.change(|inner, now| {
            let machine = &mut inner.machine;
            match report {
                Report::Ran { key, sent_at, outcome } => {
                    let (result, retry) = outcome.unwrap_or((WorkResult::None, true));
                    machine.done(&key, result, retry, sent_at, now);
                    if !machine.contains(&key) {
                        inner.works.remove(&key);
                    }
                }
                Report::Arbitrated { claim, sent_at, verdict } => match verdict {
                    Verdict::Held(term) if claim => machine.claimed(term, sent_at, now),
                    Verdict::Held(term) => machine.proved(term, sent_at),
                    Verdict::Lost { holder, term } => {
                        machine.lost(now);
                        machine.observe_claim(holder, term, now);
                    }
                    Verdict::Abstained => machine.abstained(now),
                    Verdict::Unknown => machine.arbitration_failed(now),
                },
                Report::Resigned => {}
            }
        });
    }

    fn change<T>(&self, change: impl FnOnce(&mut Inner<K>, Duration) -> T) -> T {
        let mut inner = self.0.inner.lock();
        let result = change(&mut inner, self.0.start.elapsed());
        let state = inner.machine.state();
        self.0.state.send_if_modified(|published| std::mem::replace(published, state) != state);
        result
    }

    fn change_and_wake<T>(&self, change: impl FnOnce(&mut Inner<K>, Duration) -> T) -> T {
        let result = self.change(change);
        self.0.changed.notify_one();
        result
    }
}

#[cfg(test)]
mod tests;
