//! The shell of one replica: watches, requests and time on one side, the [`Replica`] on the other.

pub mod admin;
pub mod event_recorder;
pub mod metrics;
pub mod removal_patch;
pub mod requests;

use std::{
    collections::{BTreeSet, HashMap},
    future::Future,
    net::SocketAddr,
    time::Duration,
};

use http::{HeaderValue, header::USER_AGENT};
use kube::{Client, Config, client::ClientBuilder};
use lessor_core::{
    index::sources::SourceWatch,
    observation::Observation,
    replica::{Output, Replica, Ticket},
    request::{Request, Response},
    settings::Settings,
};
use thiserror::Error;
use tokio::{
    sync::mpsc,
    task::{AbortHandle, JoinSet},
    time::Instant,
};
use tracing::{Instrument, Span, field::Empty};

use crate::{
    connectivity::Connectivity,
    runtime::{admin::Question, event_recorder::Recorder, metrics::Metrics, requests::ApiClient},
    watch,
};

/// What a replica calls itself when it asks the API server.
pub const AGENT: &str = concat!("lessor/", env!("CARGO_PKG_VERSION"));
/// How many observations may wait. More would only be older.
const OBSERVATIONS: usize = 256;
/// How many are taken in before the replica acts on them.
const BATCH: usize = 256;
/// How long a stop may take to finish what is under way; leaving the lead comes after.
const STOP: Duration = Duration::from_secs(2);
/// How long one more request may take after that.
const LEAVE: Duration = Duration::from_secs(3);

/// Why a replica ended though nobody stopped it.
#[derive(Debug, Error)]
pub enum Error {
    /// The client can't be made of this configuration.
    #[error("can't make a client for the API server: {0}")]
    Client(#[source] kube::Error),
    /// The admin port can't be served.
    #[error("can't serve the admin port {0}: {1}")]
    Admin(SocketAddr, #[source] std::io::Error),
    /// A task of ours died. Better no replica than one that only seems to work.
    #[error("a task died: {0}")]
    Task(#[source] tokio::task::JoinError),
    /// A task that never ends has ended.
    #[error("a task that never ends has ended")]
    Ended,
}

/// A client that says who it is, listens for signs of life, and doesn't retry by itself.
///
/// # Errors
/// [`Error::Client`]
pub fn client(mut config: Config, connectivity: &Connectivity) -> Result<Client, Error> {
    // A write that the library sends again later isn't the one that was decided on.
    config.default_retry = false;
    // The library names nobody, and an audit log or a server under load should tell who asks.
    config.headers.push((USER_AGENT, HeaderValue::from_static(AGENT)));
    let builder = ClientBuilder::try_from(config).map_err(Error::Client)?;
    Ok(builder.with_layer(connectivity).build())
}

/// Runs one replica until `stop`, then ends in order.
///
/// # Errors
/// [`enum@Error`], on which the process should end: another replica, or the next one, takes over.
pub async fn run(config: Config, settings: Settings, stop: impl Future<Output = ()>) -> Result<(), Error> {
    let connectivity = Connectivity::new();
    let client = client(config, &connectivity)?;
    run_with(client, connectivity, settings, stop).await
}

/// As [`run`], with a client of the caller's own, whose requests must pass through `connectivity` and aren't retried.
///
/// # Errors
/// [`enum@Error`]
pub async fn run_with(
    client: Client,
    connectivity: Connectivity,
    settings: Settings,
    stop: impl Future<Output = ()>,
) -> Result<(), Error> {
    let (sender, observations) = mpsc::channel(OBSERVATIONS);
    let (asking, questions) = mpsc::channel(8);
    let mut background = JoinSet::new();
    watch::start(&client, &settings, &sender, &mut background);
    let metrics = Metrics::new();
    let (recorder, writing) = Recorder::new(client.clone(), &settings, metrics.events());
    background.spawn(async {
        writing.await;
        Ok(())
    });
    if let Some(address) = settings.admin_address {
        let (metrics, connectivity) = (metrics.clone(), connectivity.clone());
        let sources = admin::Sources { questions: asking, metrics, connectivity };
        background.spawn(async move {
            admin::serve(address, sources).await.map_err(|error| Error::Admin(address, error))
        });
    }
    let shell = Runtime::new(client, settings, connectivity, (recorder, metrics), background, sender);
    shell.run(observations, questions, stop).await
}

/// What a trace shows of a request: what was asked about whom, and what came of it.
fn span(request: &Request) -> Span {
    let verb = request.verb();
    tracing::debug_span!(
        "request",
        otel.name = verb,
        otel.kind = "client",
        verb,
        lease = request.lease().map(tracing::field::display),
        object = request.object().map(tracing::field::display),
        outcome = Empty,
    )
}

struct Runtime {
    server: ApiClient,
    recorder: Recorder,
    metrics: Metrics,
    replica: Replica,
    connectivity: Connectivity,
    requests: JoinSet<(Ticket, Response)>,
    aborts: HashMap<Ticket, AbortHandle>,
    /// Watches and the like. None of them ends by itself.
    background: JoinSet<Result<(), Error>>,
    client: Client,
    sender: mpsc::Sender<Observation>,
    /// Watches of what leases follow.
    source_watches: HashMap<SourceWatch, AbortHandle>,
    looking: JoinSet<()>,
}

impl Runtime {
    fn new(
        client: Client,
        settings: Settings,
        connectivity: Connectivity,
        (recorder, metrics): (Recorder, Metrics),
        background: JoinSet<Result<(), Error>>,
        sender: mpsc::Sender<Observation>,
    ) -> Self {
        Self {
            server: ApiClient::new(client.clone(), settings.lessor.clone()),
            recorder,
            metrics,
            replica: Replica::new(settings),
            connectivity,
            requests: JoinSet::new(),
            aborts: HashMap::new(),
            background,
            client,
            sender,
            source_watches: HashMap::new(),
            looking: JoinSet::new(),
        }
    }

    async fn run(
        mut self,
        mut observations: mpsc::Receiver<Observation>,
        mut questions: mpsc::Receiver<Question>,
        stop: impl Future<Output = ()>,
    ) -> Result<(), Error> {
        let mut stop = std::pin::pin!(stop);
        let mut stop_by = None;
        let mut wake_at = None;
        let mut batch = Vec::with_capacity(BATCH);
        let mut was_ready = false;
        loop {
            if let Some(due) = wake_at {
                self.connectivity.woke(due);
            }
            let now = self.connectivity.now();
            let output = self.replica.poll(&now);
            self.perform(output);
            if self.replica.has_stopped() || stop_by.is_some_and(|by| now.mono >= by) {
                return Ok(());
            }
            if self.replica.is_ready() && !was_ready {
                was_ready = true;
                tracing::info!("ready: everything has been seen once");
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
                    stop_by = Some(now.mono + STOP + LEAVE);
                }
                Some(answered) = self.requests.join_next() => {
                    let (ticket, answer) = match answered {
                        Ok(answered) => answered,
                        Err(error) if error.is_cancelled() => continue,
                        Err(error) => return Err(Error::Task(error)),
                    };
                    self.aborts.remove(&ticket);
                    self.replica.answer(ticket, answer, &self.connectivity.now());
                }
                // Before what watches show: as long as they list very much, that doesn't end.
                Some(question) = questions.recv() => question(&mut self.replica),
                _ = observations.recv_many(&mut batch, BATCH) => {
                    self.metrics.waiting(observations.len());
                    if let Some(newest) = batch.iter().filter_map(Observation::version).max() {
                        self.connectivity.shown(newest);
                    }
                    let now = self.connectivity.now();
                    for observation in batch.drain(..) {
                        self.metrics.observe(&observation);
                        self.replica.observe(observation, &now);
                    }
                }
                Some(ended) = self.background.join_next() => {
                    ended.map_err(Error::Task)??;
                    return Err(Error::Ended);
                }
                Some(ended) = self.looking.join_next() => match ended {
                    // Given up by us.
                    Err(error) if error.is_cancelled() => {}
                    Err(error) => return Err(Error::Task(error)),
                    Ok(()) => return Err(Error::Ended),
                },
                () = self.connectivity.reconnected() => self.replica.reconnected(&self.connectivity.now()),
                () = wake => {}
            }
        }
    }

    fn perform(&mut self, output: Output) {
        for ticket in output.cancelled {
            if let Some(request) = self.aborts.remove(&ticket) {
                request.abort();
            }
        }
        for (ticket, request, by) in output.requests {
            let (server, metrics) = (self.server.clone(), self.metrics.clone());
            let by = self.connectivity.instant(by);
            let sending = async move {
                let (verb, sent) = (request.verb(), Instant::now());
                let span = span(&request);
                let answer = server.send(request, by).instrument(span.clone()).await;
                span.record("outcome", answer.outcome());
                metrics.request(verb, &answer, sent.elapsed());
                (ticket, answer)
            };
            self.aborts.insert(ticket, self.requests.spawn(sending));
        }
        if !output.hold.is_zero() {
            self.connectivity.hold(output.hold);
        }
        if let Some(source_watches) = output.source_watches {
            self.watch_source(source_watches);
        }
        for metric_event in output.metric_events {
            self.metrics.count(metric_event);
        }
        for notice in output.user_events {
            self.recorder.tell(notice);
        }
    }

    /// Watches these for sources, and no others.
    fn watch_source(&mut self, source_watches: BTreeSet<SourceWatch>) {
        let metrics = &self.metrics;
        self.source_watches.retain(|source_watch, watch| {
            let stays = source_watches.contains(source_watch);
            if !stays {
                watch.abort();
                metrics.forget(source_watch);
            }
            stays
        });
        for source_watch in source_watches {
            if !self.source_watches.contains_key(&source_watch) {
                let watch =
                    watch::watch_source(self.client.clone(), source_watch.clone(), self.sender.clone());
                self.source_watches.insert(source_watch, self.looking.spawn(watch));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use kube::client::Body;
    use tower::{BoxError, Layer, service_fn};

    use super::*;

    /// A replica whose API server never answers, with one task in the background.
    async fn run_beside(task: impl Future<Output = Result<(), Error>> + Send + 'static) -> Result<(), Error> {
        let connectivity = Connectivity::new();
        let disconnected = service_fn(async |_: http::Request<Body>| {
            pending::<Result<http::Response<Body>, BoxError>>().await
        });
        let client = Client::new(connectivity.layer(disconnected), "default");
        let settings = Settings::default();
        let metrics = Metrics::new();
        let (recorder, _) = Recorder::new(client.clone(), &settings, metrics.events());
        let mut background = JoinSet::new();
        background.spawn(task);
        let (sender, observations) = mpsc::channel(1);
        let shell = Runtime::new(client, settings, connectivity, (recorder, metrics), background, sender);
        let (_asking, questions) = mpsc::channel(1);
        shell.run(observations, questions, pending()).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_ends_with_its_first_task_that_dies() {
        assert!(matches!(run_beside(async { panic!("on purpose") }).await, Err(Error::Task(_))));
        assert!(matches!(run_beside(async { Ok(()) }).await, Err(Error::Ended)));
    }
}
