//! A replica as a process: the whole operator on a runtime of its own, so that its clocks can run at their own pace, it can
//! be paused, and it dies at once with everything that it had under way.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::Client;
use lessor::{connectivity::Connectivity, runtime};
use lessor_core::settings::Settings;
use tokio::{
    runtime::{Builder, Runtime},
    sync::oneshot,
    task::JoinHandle,
    time::{Instant, sleep_until},
};
use tower::Layer;

use crate::wire::{Outgoing, Wire};

pub(crate) struct Process {
    pub(crate) identity: String,
    runtime: Runtime,
    wire: Wire,
    main: JoinHandle<Result<(), runtime::RunError>>,
    stop: Option<oneshot::Sender<()>>,
    /// When it started, by the world's time and by its own.
    started: Duration,
    base: Instant,
    /// Up to when it has lived, by its own time.
    at: Instant,
    /// How much faster than the world's time its own goes, in millionths.
    ppm: i64,
    /// How far its wall clock is ahead, in milliseconds.
    wall: Arc<AtomicI64>,
}

impl Process {
    pub(crate) fn start(
        settings: Settings,
        started: Duration,
        epoch: Timestamp,
        ppm: i64,
        wall: i64,
    ) -> Self {
        let runtime =
            Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
        let (wire, wall) = (Wire::default(), Arc::new(AtomicI64::new(wall)));
        let base = runtime.block_on(async { Instant::now() });
        let (stop, stopped) = oneshot::channel::<()>();
        let identity = settings.identity.clone();
        let main = runtime.spawn({
            let (wire, wall) = (wire.clone(), wall.clone());
            async move {
                let hearing = Connectivity::with_wall_clock(move || {
                    let since = SignedDuration::try_from(started + base.elapsed()).unwrap_or_default();
                    epoch + since + SignedDuration::from_millis(wall.load(Ordering::Relaxed))
                });
                let client = Client::new(hearing.layer(wire), "default");
                runtime::run_with(client, hearing, settings, async {
                    if stopped.await.is_err() {
                        std::future::pending::<()>().await;
                    }
                })
                .await
            }
        });
        Self { identity, runtime, wire, main, stop: Some(stop), started, base, at: base, ppm, wall }
    }

    /// Lets it live until this time of the world's, or until it sends something.
    pub(crate) fn live_until(&mut self, time: Duration) {
        let until = self.base + self.own(time);
        let wire = self.wire.clone();
        self.at = self.runtime.block_on(async {
            tokio::select! {
                biased;
                () = wire.sending() => {}
                () = sleep_until(until) => {}
            }
            Instant::now()
        });
    }

    /// Jumps to this time of the world's, as a process does that was stopped meanwhile.
    pub(crate) fn wake_at(&mut self, time: Duration) {
        let gap = (self.base + self.own(time)).saturating_duration_since(self.at);
        self.at = self.runtime.block_on(async {
            tokio::time::advance(gap).await;
            Instant::now()
        });
    }

    /// Up to when it has lived.
    pub(crate) fn lived(&self) -> Duration {
        self.world(self.at)
    }

    pub(crate) fn take_sent(&self) -> Option<(Duration, Outgoing)> {
        self.wire.take().map(|sent| (self.world(sent.sent), sent))
    }

    pub(crate) fn step_wall_clock(&self, by: Duration, back: bool) {
        let by = by.as_millis() as i64;
        self.wall.fetch_add(if back { -by } else { by }, Ordering::Relaxed);
    }

    pub(crate) fn stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }

    /// What came of it, if it has ended.
    pub(crate) fn ended(&mut self) -> Option<Result<(), String>> {
        if !self.main.is_finished() {
            return None;
        }
        Some(match self.runtime.block_on(&mut self.main) {
            Ok(Ok(())) if self.stop.is_none() => Ok(()),
            Ok(Ok(())) => Err("it ended though it was not stopped".to_owned()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(error) => Err(error.to_string()),
        })
    }

    fn own(&self, time: Duration) -> Duration {
        let micros = time.saturating_sub(self.started).as_micros() as i64;
        Duration::from_micros((micros + micros * self.ppm / 1_000_000).unsigned_abs())
    }

    fn world(&self, time: Instant) -> Duration {
        let micros = time.saturating_duration_since(self.base).as_micros() as i64;
        self.started + Duration::from_micros((micros - micros * self.ppm / 1_000_000).unsigned_abs())
    }
}
