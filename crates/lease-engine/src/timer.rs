//! Waiting for lease time, without a runtime of one's own.

use std::sync::Arc;

use futures::{
    channel::oneshot,
    future::{BoxFuture, FutureExt},
};
use parking_lot::Mutex;

use super::LeaseTime;

/// Tells lease time, and waits for it. With tokio: `sleep_until` is `tokio::time::sleep_until`, boxed.
pub trait Timer: Send + Sync {
    /// Lease time now.
    fn now(&self) -> LeaseTime;

    /// Is done once lease time has come to `at`; earlier does no harm.
    fn sleep_until(&self, at: LeaseTime) -> BoxFuture<'static, ()>;
}

/// A clock that stands still until it's moved. Its clones are the same clock.
#[derive(Clone, Debug, Default)]
pub struct ManualTimer(Arc<Mutex<Manual>>);

#[derive(Debug, Default)]
struct Manual {
    now: LeaseTime,
    sleepers: Vec<(LeaseTime, oneshot::Sender<()>)>,
}

impl ManualTimer {
    /// Moves the clock, also backwards, and wakes those whose time has come.
    pub fn set(&self, now: LeaseTime) {
        let mut clock = self.0.lock();
        clock.now = now;
        let due: Vec<_> = clock.sleepers.extract_if(.., |(at, _)| *at <= now).collect();
        drop(clock);
        for (_, sleeper) in due {
            // One that has gone away needs no waking.
            let _ = sleeper.send(());
        }
    }

    /// The earliest time that anybody sleeps until.
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
