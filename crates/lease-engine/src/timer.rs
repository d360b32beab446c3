//! Waiting for lease time, independent of a runtime.

use std::sync::Arc;

use futures::{
    channel::oneshot,
    future::{BoxFuture, FutureExt},
};
use parking_lot::Mutex;

use super::LeaseTime;

/// A clock of lease time that can be waited for. On tokio, `sleep_until` is a boxed `tokio::time::sleep_until`.
pub trait Timer: Send + Sync {
    /// Lease time now.
    fn now(&self) -> LeaseTime;

    /// Completes when lease time reaches `at`. Completing earlier does no harm.
    fn sleep_until(&self, at: LeaseTime) -> BoxFuture<'static, ()>;
}

/// A clock that moves only when it is set. Clones are the same clock.
#[derive(Clone, Debug, Default)]
pub struct ManualTimer(Arc<Mutex<Manual>>);

#[derive(Debug, Default)]
struct Manual {
    now: LeaseTime,
    sleepers: Vec<(LeaseTime, oneshot::Sender<()>)>,
}

impl ManualTimer {
    /// Sets the clock, forwards or backwards, and wakes the sleepers that are due.
    pub fn set(&self, now: LeaseTime) {
        let mut clock = self.0.lock();
        clock.now = now;
        let due: Vec<_> = clock.sleepers.extract_if(.., |(at, _)| *at <= now).collect();
        drop(clock);
        for (_, sleeper) in due {
            // It fails for a sleeper that was dropped.
            let _ = sleeper.send(());
        }
    }

    /// The earliest time that a sleeper waits for.
    pub fn next_sleeper(&self) -> Option<LeaseTime> {
        let clock = self.0.lock();
        clock.sleepers.iter().filter(|(_, sleeper)| !sleeper.is_canceled()).map(|(at, _)| *at).min()
    }
}

impl Timer for ManualTimer {
    fn now(&self) -> LeaseTime {
        self.0.lock().now
    }

    fn sleep_until(&self, at: LeaseTime) -> BoxFuture<'static, ()> {
        let mut clock = self.0.lock();
        if at <= clock.now {
            return futures::future::ready(()).boxed();
        }
        let (wake, woken) = oneshot::channel();
        clock.sleepers.push((at, wake));
        woken.map(drop).boxed()
    }
}
