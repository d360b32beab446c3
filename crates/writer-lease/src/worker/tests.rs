use std::{
    future::ready,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::{Instant, sleep},
};

use super::{Permit, Worker};
use crate::{Arbitration, Config, Holder, State, WorkResult};

const LEASE: Duration = Duration::from_secs(5);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A worker that runs, with a watch of the arbitration object.
struct Replica {
    worker: Worker<&'static str>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
    watch: JoinHandle<()>,
}

impl Replica {
    fn start(name: &'static str, object: &Arbitration) -> Self {
        let seed = u64::from(name.as_bytes()[0]);
        let worker = Worker::new(Config { seed, ..Config::new(LEASE) });
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = async {
            if stopped.await.is_err() {
                std::future::pending().await
            }
        };
        let task = tokio::spawn(worker.clone().run(Arc::new(object.arbiter(name)), stopped));
        let watch = tokio::spawn({
            let (worker, mut changes) = (worker.clone(), object.watch());
            async move {
                changes.mark_changed();
                while changes.changed().await.is_ok() {
                    let claim = changes.borrow_and_update().clone();
                    worker.observe_claim(claim.holder_for(name), claim.term);
                }
            }
        });
        Self { worker, stop, task, watch }
    }

    /// Ends it like a crash: work isn't finished, and the object isn't cleared.
    fn crash(self) {
        self.task.abort();
        self.watch.abort();
    }

    /// Ends it in order.
    async fn stop(self) {
        self.watch.abort();
        let _ = self.stop.send(());
        let _ = self.task.await;
    }

    fn leads(&self) -> bool {
        matches!(self.worker.state(), State::Leader { .. })
    }
}

/// Work that sends each of its runs, and returns a result by the number of the attempt.
fn recorded(
    runs: &mpsc::UnboundedSender<Permit>,
    answer: impl Fn(u32) -> (WorkResult, bool) + Send + Sync + 'static,
) -> impl Fn(Permit) -> std::future::Ready<(WorkResult, bool)> + Send + Sync + 'static {
    let runs = runs.clone();
    move |permit| {
        let _ = runs.send(permit);
        ready(answer(permit.attempt))
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_writer_to_work_leads() {
    let (runs, mut ran) = mpsc::unbounded_channel();
    let a = Replica::start("a", &Arbitration::default());
    a.worker.try_work("test", recorded(&runs, |_| (WorkResult::Extend, false)));
    assert!(a.worker.wait().await);
    assert_eq!(ran.recv().await.map(|permit| (permit.attempt, permit.term)), Some((1, 1)));
    sleep(ms(1)).await;
    assert!(a.worker.is_empty());
}

#[tokio::test(start_paused = true)]
async fn work_is_retried_as_long_as_it_requests_it() {
    let (runs, mut ran) = mpsc::unbounded_channel();
    let a = Replica::start("a", &Arbitration::default());
    a.worker.try_work("test", recorded(&runs, |attempt| (WorkResult::Extend, attempt < 5)));
    for attempt in 1..=5 {
        assert_eq!(ran.recv().await.map(|permit| permit.attempt), Some(attempt));
    }
    sleep(LEASE * 10).await;
    assert!(ran.is_empty());
    assert!(a.leads());
}

#[tokio::test(start_paused = true)]
async fn release_makes_a_follower() {
    let (runs, mut ran) = mpsc::unbounded_channel();
    let object = Arbitration::default();
    let a = Replica::start("a", &object);
    a.worker.try_work("test", recorded(&runs, |_| (WorkResult::Release, false)));
    assert!(ran.recv().await.is_some());
    sleep(ms(100)).await;
    assert!(!a.worker.wait().await);
    assert_eq!(object.read().holder, None);
}

#[tokio::test(start_paused = true)]
async fn work_queued_while_the_same_key_runs_runs_after_it() {
    let a = Replica::start("a", &Arbitration::default());
    let (runs, mut ran) = mpsc::unbounded_channel();
    let started = Arc::new(tokio::sync::Notify::new());
    a.worker.try_work("test", {
        let started = Arc::clone(&started);
        move |_| {
            started.notify_one();
            async {
                sleep(ms(500)).await;
                (WorkResult::Extend, true)
            }
        }
    });
    started.notified().await;
    let first = Instant::now();
    a.worker.try_work("test", recorded(&runs, |_| (WorkResult::Extend, false)));
    assert!(ran.recv().await.is_some());
    assert_eq!(first.elapsed(), ms(500));
    sleep(ms(1)).await;
    assert!(a.worker.is_empty());
}

#[tokio::test(start_paused = true)]
async fn extend_drops_the_work_and_extends_the_wait() {
    let (runs, mut ran) = mpsc::unbounded_channel();
    let object = Arbitration::default();
    let a = Replica::start("a", &object);
    assert!(a.worker.wait().await);
    let b = Replica::start("b", &object);
    assert!(!b.worker.wait().await);
    b.worker.try_work("test", recorded(&runs, |_| (WorkResult::Extend, false)));
    b.worker.try_work("test2", recorded(&runs, |_| (WorkResult::Extend, false)));
    assert_eq!(b.worker.len(), 2);
    a.crash();
    sleep(ms(4900)).await;
    let observed = Instant::now();
    b.worker.extend(&"test2");
    assert_eq!(b.worker.len(), 1);
    assert!(ran.recv().await.is_some());
    assert_eq!(observed.elapsed(), LEASE);
    sleep(LEASE).await;
    assert!(ran.is_empty());
}

#[tokio::test(start_paused = true)]
async fn removed_work_is_not_run() {
    let (runs, mut ran) = mpsc::unbounded_channel();
    let object = Arbitration::default();
    let a = Replica::start("a", &object);
    a.worker.wait().await;
    let b = Replica::start("b", &object);
    b.worker.wait().await;
    b.worker.try_work("test", recorded(&runs, |_| (WorkResult::Extend, false)));
    b.worker.remove(&"test");
    assert!(b.worker.is_empty());
    sleep(LEASE * 10).await;
    assert!(ran.try_recv().is_err());
    assert!(a.leads());
}

#[tokio::test(start_paused = true)]
async fn waiting_for_an_election_ends_in_time() {
    let worker = Worker::<&str>::new(Config::new(LEASE));
    assert_eq!(worker.wait_until(ms(100)).await, None);
    worker.observe_claim(Holder::Other, 1);
    assert_eq!(worker.wait_until(ms(100)).await, Some(false));
}

#[tokio::test(start_paused = true)]
async fn limited_retries_end() {
    let (runs, mut ran) = mpsc::unbounded_channel();
    let a = Replica::start("a", &Arbitration::default());
    a.worker.try_work("test", recorded(&runs, |_| (WorkResult::None, true)));
    a.worker.limit_retries(&"test", 2);
    sleep(LEASE * 10).await;
    assert!(a.worker.is_empty());
    assert_eq!(std::iter::from_fn(|| ran.try_recv().ok()).count(), 3);
}

#[tokio::test(start_paused = true)]
async fn an_expired_lease_is_claimed_again() {
    let (runs, mut ran) = mpsc::unbounded_channel();
    let object = Arbitration::default();
    let a = Replica::start("a", &object);
    assert!(a.worker.wait().await);
    a.worker.expire();
    assert_eq!(a.worker.state(), State::Election);
    a.worker.try_work("test", recorded(&runs, |_| (WorkResult::Extend, false)));
    assert_eq!(ran.recv().await.map(|permit| permit.term), Some(2));
    assert_eq!(object.read().holder.as_deref(), Some("a"));
}

#[tokio::test(start_paused = true)]
async fn an_idle_leader_writes_once_before_it_works_again() {
    let (runs, mut ran) = mpsc::unbounded_channel();
    let object = Arbitration::default();
    let a = Replica::start("a", &object);
    assert!(a.worker.wait().await);
    sleep(LEASE * 100).await;
    assert_eq!(object.read().writes, 1, "at rest nothing is written");
    a.worker.try_work("test", recorded(&runs, |_| (WorkResult::Extend, false)));
    assert_eq!(ran.recv().await.map(|permit| permit.term), Some(1));
    assert_eq!(object.read().writes, 2);
}

/// Fault of the original: a follower sleeps inside the only worker and blocks every other key.
#[tokio::test(start_paused = true)]
async fn work_that_sleeps_or_backs_off_delays_no_other() {
    let (runs, mut ran) = mpsc::unbounded_channel();
    let a = Replica::start("a", &Arbitration::default());
    assert!(a.worker.wait().await);
    a.worker.try_work("slow", |_| async {
        sleep(LEASE / 2).await;
        (WorkResult::Extend, false)
    });
    a.worker.try_work("bad", |_| ready((WorkResult::None, true)));
    sleep(ms(300)).await;
    let tried = Instant::now();
    a.worker.try_work("good", recorded(&runs, |_| (WorkResult::Extend, false)));
    assert!(ran.recv().await.is_some());
    assert_eq!(tried.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_run_is_cut_off_before_the_lease_may_lapse() {
    let a = Replica::start("a", &Arbitration::default());
    assert!(a.worker.wait().await);
    let attempts = Arc::new(AtomicU32::new(0));
    a.worker.try_work("stuck", {
        let attempts = Arc::clone(&attempts);
        move |permit| {
            attempts.store(permit.attempt, Ordering::Relaxed);
            assert!(permit.until <= Instant::now() + LEASE);
            std::future::pending()
        }
    });
    sleep(ms(4999)).await;
    assert_eq!(attempts.load(Ordering::Relaxed), 1);
    sleep(LEASE * 2).await;
    assert!(attempts.load(Ordering::Relaxed) >= 2);
}

#[tokio::test(start_paused = true)]
async fn of_two_replicas_one_works() {
    let (runs, mut ran) = mpsc::unbounded_channel();
    let object = Arbitration::default();
    let (a, b) = (Replica::start("a", &object), Replica::start("b", &object));
    for replica in [&a, &b] {
        replica.worker.try_work("test", recorded(&runs, |_| (WorkResult::Extend, false)));
    }
    let (a_leads, b_leads) = tokio::join!(a.worker.wait(), b.worker.wait());
    assert!(a_leads != b_leads);
    assert_eq!(ran.recv().await.map(|permit| permit.term), Some(1));
    // The other observes that the work is done.
    let follower = if a_leads { &b } else { &a };
    follower.worker.extend(&"test");
    sleep(LEASE * 10).await;
    assert!(ran.is_empty());
    assert_eq!(object.read().term, 1);
}

#[tokio::test(start_paused = true)]
async fn a_crashed_leader_is_replaced_within_a_lease_duration_of_the_next_work() {
    let (runs, mut ran) = mpsc::unbounded_channel();
    let object = Arbitration::default();
    let a = Replica::start("a", &object);
    assert!(a.worker.wait().await);
    let b = Replica::start("b", &object);
    let c = Replica::start("c", &object);
    sleep(ms(10)).await;
    a.crash();
    let due = Instant::now();
    for replica in [&b, &c] {
        replica.worker.try_work("test", recorded(&runs, |_| (WorkResult::Extend, false)));
    }
    assert_eq!(ran.recv().await.map(|permit| permit.term), Some(2));
    assert!(due.elapsed() <= LEASE, "{:?}", due.elapsed());
    sleep(ms(100)).await;
    assert!(b.leads() != c.leads(), "one change of primary");
    assert_eq!(object.read().term, 2);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_stops_in_order_is_replaced_at_once() {
    let object = Arbitration::default();
    let a = Replica::start("a", &object);
    assert!(a.worker.wait().await);
    let b = Replica::start("b", &object);
    assert!(!b.worker.wait().await);
    a.stop().await;
    let stopped = Instant::now();
    while !b.leads() {
        sleep(ms(1)).await;
    }
    assert!(stopped.elapsed() < ms(100), "{:?}", stopped.elapsed());
    assert_eq!(object.read().term, 2);
}

#[tokio::test(start_paused = true)]
async fn stopping_finishes_running_work_and_starts_none() {
    let (runs, mut ran) = mpsc::unbounded_channel();
    let object = Arbitration::default();
    let a = Replica::start("a", &object);
    assert!(a.worker.wait().await);
    let finished = Arc::new(AtomicU32::new(0));
    a.worker.try_work("slow", {
        let finished = Arc::clone(&finished);
        move |_| {
            let finished = Arc::clone(&finished);
            async move {
                sleep(ms(500)).await;
                finished.fetch_add(1, Ordering::Relaxed);
                (WorkResult::Extend, true)
            }
        }
    });
    sleep(ms(100)).await;
    let worker = a.worker.clone();
    let stopping = tokio::spawn(a.stop());
    sleep(ms(100)).await;
    worker.try_work("late", recorded(&runs, |_| (WorkResult::Extend, false)));
    assert_eq!(object.read().holder.as_deref(), Some("a"), "leads while it still writes");
    assert!(stopping.await.is_ok());
    assert_eq!(finished.load(Ordering::Relaxed), 1);
    assert!(!matches!(worker.state(), State::Leader { .. }));
    assert_eq!(object.read().holder, None);
    assert!(ran.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn work_that_panics_ends_the_worker() {
    let a = Replica::start("a", &Arbitration::default());
    a.worker.try_work("test", |_| async { panic!("work went wrong") });
    let Err(error) = a.task.await else { panic!("it still runs") };
    assert!(error.is_panic());
}
