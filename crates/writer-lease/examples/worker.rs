//! Two replicas that share work on tokio: `cargo run -p writer-lease --features tokio --example worker`.
//!
//! Both queue each piece of work. The primary does it, and the follower drops it when it observes the result. The
//! primary crashes, and the follower takes over when work is overdue.

#![allow(clippy::print_stdout, reason = "an example shows its results")]

use std::{sync::Arc, time::Duration};

use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};
use writer_lease::{Arbitration, Config, WorkResult, Worker};

const LEASE: Duration = Duration::from_millis(400);

struct Replica {
    name: &'static str,
    worker: Worker<&'static str>,
    tasks: Vec<JoinHandle<()>>,
}

impl Replica {
    /// Starts a worker, and a watch of the arbitration object.
    fn start(name: &'static str, object: &Arbitration) -> Self {
        let worker = Worker::new(Config { seed: name.len() as u64, ..Config::new(LEASE) });
        let running =
            tokio::spawn(worker.clone().run(Arc::new(object.arbiter(name)), std::future::pending()));
        let (watcher, mut changes) = (worker.clone(), object.watch());
        let watching = tokio::spawn(async move {
            changes.mark_changed();
            while changes.changed().await.is_ok() {
                let claim = changes.borrow_and_update().clone();
                watcher.observe_claim(claim.holder_for(name), claim.term);
            }
        });
        Self { name, worker, tasks: vec![running, watching] }
    }

    fn queue(&self, key: &'static str, others: Vec<Worker<&'static str>>) {
        let (name, queued) = (self.name, Instant::now());
        self.worker.try_work(key, move |permit| {
            println!("{name} does {key} under term {}, after {:?}", permit.term, rounded(queued.elapsed()));
            // The others observe the write, and drop the work.
            others.iter().for_each(|other| other.extend(&key));
            async { (WorkResult::Extend, false) }
        });
    }
}

fn rounded(time: Duration) -> Duration {
    Duration::from_millis((time.as_millis() as u64 + 5) / 10 * 10)
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let object = Arbitration::default();
    let a = Replica::start("replica-a", &object);
    println!("replica-a leads: {}", a.worker.wait().await);
    let b = Replica::start("replica-b", &object);
    println!("replica-b leads: {}", b.worker.wait().await);

    a.queue("first", vec![b.worker.clone()]);
    b.queue("first", vec![a.worker.clone()]);
    sleep(LEASE * 2).await;
    println!("replica-a crashes");
    a.tasks.iter().for_each(JoinHandle::abort);

    // It takes over half a lease duration after the work fell due.
    b.queue("second", vec![]);
    sleep(LEASE * 2).await;
    println!("{:?}", object.read());
}
