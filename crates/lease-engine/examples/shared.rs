//! The interface of etcd's lessor on tokio: `cargo run -p lease-engine --features shared --example shared`.

#![allow(clippy::print_stdout, reason = "an example shows its results")]

use std::time::Duration;

use futures::{StreamExt, future::BoxFuture, pin_mut};
use lease_engine::{
    Config, IdGenerator, LeaseTime, MemoryItems, MemoryStore, SharedError, SharedLessor, Timer, Ttl,
};
use tokio::time::{Instant, sleep_until};

/// Lease time by tokio's clock.
struct TokioTimer(Instant);

impl Timer for TokioTimer {
    fn now(&self) -> LeaseTime {
        LeaseTime::from_duration(self.0.elapsed())
    }

    fn sleep_until(&self, at: LeaseTime) -> BoxFuture<'static, ()> {
        Box::pin(sleep_until(self.0 + at.since_start()))
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), SharedError> {
    let timer = TokioTimer(Instant::now());
    let items = MemoryItems(["lock/a", "lock/b"].into());
    let lessor = SharedLessor::recover(Config::default(), timer, MemoryStore::default(), items)?;
    lessor.promote(Duration::ZERO);

    let mut ids = IdGenerator::new(1, 1_700_000_000_000);
    let (short, _) = lessor.grant_new(&mut ids, Ttl::from_millis(200))?;
    let (long, _) = lessor.grant_new(&mut ids, Ttl::from_millis(600))?;
    lessor.attach(short, "lock/a")?;
    lessor.attach(long, "lock/b")?;
    println!("granted {short:016x} for 200 ms and {long:016x} for 600 ms");

    let started = Instant::now();
    let expired = lessor.expired();
    pin_mut!(expired);
    while lessor.counts().leases > 0
        && let Some(lease) = expired.next().await
    {
        // Deletes the items, then forgets the lease.
        lessor.revoke(lease)?;
        println!("{lease:016x} expired after {:.1} s", started.elapsed().as_secs_f64());
    }
    println!("left: {:?}", lessor.counts());
    Ok(())
}
