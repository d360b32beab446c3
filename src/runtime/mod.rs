//! One replica of the operator: a loop that feeds the [`Replica`] with what arrives, and does what it decides.

pub mod admin;
pub mod event_recorder;
pub mod metrics;
pub mod removal_patch;
pub mod requests;

use std::{future::Future, net::SocketAddr, time::Duration};

use futures::FutureExt;
use kube::{Client, Config};
use lessor_core::{
    observation::Observation,
    replica::{Output, Replica},
    settings::Settings,
    store_version::WentBack,
};
use thiserror::Error;
use tokio::{sync::mpsc, task::JoinSet};

use self::{
    admin::{AdminState, ReplicaQuery},
    event_recorder::EventRecorder,
    metrics::Metrics,
    requests::{ApiClient, RequestsInFlight},
};
use crate::{
    connectivity::{self, Connectivity},
    watch::{self, source_watches::SourceWatches},
};

pub use crate::connectivity::AGENT;

/// The capacity of the channel of observations. Watches wait while it is full.
const OBSERVATIONS: usize = 256;
/// How many observations are taken in before the replica acts on them.
const BATCH: usize = 256;
/// How long a stopping replica may take to finish its requests. Then it resigns.
const STOP: Duration = Duration::from_secs(2);
/// How long it may take to resign.
const RESIGN: Duration = Duration::from_secs(3);

/// Why a replica ended before it was stopped.
#[derive(Debug, Error)]
pub enum RunError {
    /// No client can be built from this configuration.
    #[error("can't make a client for the API server: {0}")]
    Client(#[source] kube::Error),
    /// The admin port can't be served.
    #[error("can't serve the admin port {0}: {1}")]
    Admin(SocketAddr, #[source] std::io::Error),
    /// A task panicked. A replica without it would only seem to work.
    #[error("a task failed: {0}")]
    Task(#[source] tokio::task::JoinError),
    /// The storage of the API server went back to an earlier state. A replica that starts anew serves that.
    #[error("{0}: starting anew")]
    StoreWentBack(WentBack),
    /// A task ended that should run for ever.
    #[error("a task ended that should run for ever")]
    Ended,
}

/// Runs one replica until `stop`, then ends in order.
///
/// # Errors
/// [`RunError`], on which the process should exit. Another replica takes over.
pub async fn run(config: Config, settings: Settings, stop: impl Future<Output = ()>) -> Result<(), RunError> {
    let connectivity = Connectivity::new();
    let client = connectivity::client(config, &connectivity).map_err(RunError::Client)?;
    run_with(client, connectivity, settings, stop).await
}

/// As [`run`], with the caller's client, which must not retry, and whose requests must pass through `connectivity`.
///
/// # Errors
/// [`RunError`]
pub async fn run_with(
    client: Client,
    connectivity: Connectivity,
    settings: Settings,
    stop: impl Future<Output = ()>,
) -> Result<(), RunError> {
    let (sender, observations) = mpsc::channel(OBSERVATIONS);
    let (query_sender, queries) = mpsc::channel(8);
    let mut background = JoinSet::new();
    let metrics = Metrics::new();
    let (recorder, writing) = EventRecorder::new(client.clone(), &settings, metrics.events());
    background.spawn(writing.map(Ok));
    if let Some(address) = settings.admin_address {
        let state = AdminState {
            queries: query_sender,
            metrics: metrics.clone(),
            connectivity: connectivity.clone(),
            lease_duration: settings.lease_duration,
        };
        background.spawn(
            admin::serve(address, state).map(move |served| served.map_err(|e| RunError::Admin(address, e))),
        );
    }
    let watches = Watches::new(client.clone(), settings.clone(), sender);
    let mut runtime = Runtime::new(client, settings, connectivity, (recorder, metrics), background, watches);
    runtime.watches.open();
    runtime.run(observations, queries, stop).await
}

/// All watches. None of them ends by itself.
struct Watches {
    client: Client,
    settings: Settings,
    sender: mpsc::Sender<Observation>,
    tasks: JoinSet<()>,
    sources: SourceWatches,
}

impl Watches {
    fn new(client: Client, settings: Settings, sender: mpsc::Sender<Observation>) -> Self {
        let sources = SourceWatches::new(client.clone(), sender.clone());
        Self { client, settings, sender, tasks: JoinSet::new(), sources }
    }

    /// Opens all watches but those of sources, in place of those that are open.
    fn open(&mut self) {
        self.tasks = watch::all(&self.client, &self.settings, &self.sender).into_iter().collect();
    }
}

struct Runtime {
    replica: Replica,
    connectivity: Connectivity,
    requests: RequestsInFlight,
    recorder: EventRecorder,
    metrics: Metrics,
    /// None of these tasks ends by itself.
    background: JoinSet<Result<(), RunError>>,
    watches: Watches,
}

impl Runtime {
    fn new(
        client: Client,
        settings: Settings,
        connectivity: Connectivity,
        (recorder, metrics): (EventRecorder, Metrics),
        background: JoinSet<Result<(), RunError>>,
        watches: Watches,
    ) -> Self {
        let api = ApiClient::new(client, settings.lessor.clone());
        Self {
            replica: Replica::new(settings),
            connectivity,
            requests: RequestsInFlight::new(api, metrics.clone()),
            recorder,
            metrics,
            background,
            watches,
        }
    }

    async fn run(
        mut self,
        mut observations: mpsc::Receiver<Observation>,
        mut queries: mpsc::Receiver<ReplicaQuery>,
        stop: impl Future<Output = ()>,
    ) -> Result<(), RunError> {
        let mut stop = std::pin::pin!(stop);
        let mut stop_by = None;
        let mut wake_at = None;
        let mut batch = Vec::with_capacity(BATCH);
        let mut was_ready = false;
        loop {
            if let Some(due) = wake_at {
                self.connectivity.note_wakeup(due);
            }
            let now = self.connectivity.now();
            let output = self.replica.poll(&now);
            self.perform(output);
            if let Some(went_back) = self.replica.store_went_back() {
                return Err(RunError::StoreWentBack(went_back));
            }
            if self.replica.has_stopped() || stop_by.is_some_and(|by| now.mono >= by) {
                return Ok(());
            }
            if self.replica.is_ready() && !was_ready {
                was_ready = true;
                tracing::info!("ready: all initial lists are complete");
            }
            wake_at = self.replica.wake_at(&now).into_iter().chain(stop_by).min();
            let wake = async {
                match wake_at {
                    Some(at) => tokio::time::sleep_until(self.connectivity.instant(at)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = &mut stop, if stop_by.is_none() => {
                    tracing::info!("stopping");
                    let now = self.connectivity.now();
                    self.replica.stop(now.mono + STOP);
                    stop_by = Some(now.mono + STOP + RESIGN);
                }
                Some(finished) = self.requests.next() => {
                    let (ticket, response) = finished.map_err(RunError::Task)?;
                    self.replica.answer(ticket, response, &self.connectivity.now());
                }
                // Before observations, of which a long initial list brings a steady stream.
                Some(query) = queries.recv() => query(&mut self.replica),
                _ = observations.recv_many(&mut batch, BATCH) => {
                    self.metrics.waiting(observations.len());
                    if let Some(newest) = batch.iter().filter_map(Observation::version).max() {
                        self.connectivity.note_version(newest);
                    }
                    let now = self.connectivity.now();
                    for observation in batch.drain(..) {
                        self.metrics.observe(&observation);
                        self.replica.observe(observation, &now);
                    }
                }
                Some(ended) = self.background.join_next() => {
                    ended.map_err(RunError::Task)??;
                    return Err(RunError::Ended);
                }
                Some(ended) = self.watches.tasks.join_next() => {
                    ended.map_err(RunError::Task)?;
                    return Err(RunError::Ended);
                }
                Some(ended) = self.watches.sources.ended() => {
                    ended.map_err(RunError::Task)?;
                    return Err(RunError::Ended);
                }
                () = self.connectivity.reconnected() => self.replica.reconnected(&self.connectivity.now()),
                () = wake => {}
            }
        }
    }

    /// Does what the replica has decided.
    fn perform(&mut self, output: Output) {
        for ticket in output.cancelled {
            self.requests.cancel(ticket);
        }
        for (ticket, request, by) in output.requests {
            self.requests.send(ticket, request, self.connectivity.instant(by));
        }
        if output.relist {
            self.watches.open();
        }
        for closed in output.source_watches.into_iter().flat_map(|wanted| self.watches.sources.set(wanted)) {
            self.metrics.forget(&closed);
        }
        for metric_event in output.metric_events {
            self.metrics.count(metric_event);
        }
        for user_event in output.user_events {
            self.recorder.record(user_event);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use kube::client::Body;
    use tower::{BoxError, Layer, service_fn};

    use super::*;

    /// A replica whose API server never responds, with one task in the background.
    async fn run_beside(
        task: impl Future<Output = Result<(), RunError>> + Send + 'static,
    ) -> Result<(), RunError> {
        let connectivity = Connectivity::new();
        let unresponsive = service_fn(async |_: http::Request<Body>| {
            pending::<Result<http::Response<Body>, BoxError>>().await
        });
        let client = Client::new(connectivity.layer(unresponsive), "default");
        let settings = Settings::default();
        let metrics = Metrics::new();
        let (recorder, _) = EventRecorder::new(client.clone(), &settings, metrics.events());
        let mut background = JoinSet::new();
        background.spawn(task);
        let (sender, observations) = mpsc::channel(1);
        let watches = Watches::new(client.clone(), settings.clone(), sender);
        let runtime = Runtime::new(client, settings, connectivity, (recorder, metrics), background, watches);
        let (_query_sender, queries) = mpsc::channel(1);
        runtime.run(observations, queries, pending()).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_ends_when_one_of_its_tasks_ends() {
        assert!(matches!(run_beside(async { panic!("on purpose") }).await, Err(RunError::Task(_))));
        assert!(matches!(run_beside(async { Ok(()) }).await, Err(RunError::Ended)));
    }
}
