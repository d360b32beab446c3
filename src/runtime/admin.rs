//! The admin port: liveness, readiness, metrics, and the state of attachments.
//!
//! Every page queries the running replica. A stuck loop answers no query, and `/healthz` fails then. Nothing ticks in between.

use std::{net::SocketAddr, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{HeaderName, StatusCode, header::CONTENT_TYPE},
    routing::get,
};
use lessor_core::{metrics_snapshot::MetricsSnapshot, replica::Replica};
use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot},
};

use crate::{connectivity::Connectivity, runtime::metrics::Metrics};

/// A replica that takes longer to answer a query is stuck.
const STUCK_AFTER: Duration = Duration::from_secs(2);
/// `/healthz` fails after this long without a successful response, but only while the API server refuses the credentials, or its
/// certificate is refused: the kubelet restarts the replica then, which reads both again. An API server that is down is waited
/// for.
const RESTART_AFTER: Duration = Duration::from_secs(300);
/// The content type of metrics.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A query to the running replica.
pub type ReplicaQuery = Box<dyn FnOnce(&mut Replica) + Send>;

/// What the pages of the admin port are made of.
#[derive(Clone)]
pub struct AdminState {
    /// The running replica.
    pub queries: mpsc::Sender<ReplicaQuery>,
    /// Its metrics.
    pub metrics: Metrics,
    /// Its clocks.
    pub connectivity: Connectivity,
    /// A replica that is cut off from the API server for longer is not ready: another may have become primary.
    pub lease_duration: Duration,
}

/// Serves the admin port until the process ends.
///
/// # Errors
/// When the address can't be bound.
pub async fn serve(address: SocketAddr, state: AdminState) -> std::io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    tracing::info!(address = %listener.local_addr()?, "admin port");
    let router = Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/debug/attachments", get(attachments))
        .with_state(state);
    axum::serve(listener, router).await
}

/// Queries the replica. `None`: it is stuck.
async fn query<T: Send + 'static>(
    state: &AdminState,
    query: impl FnOnce(&mut Replica) -> T + Send + 'static,
) -> Option<T> {
    let (sender, answer) = oneshot::channel();
    let query: ReplicaQuery = Box::new(move |replica| {
        // The client may have disconnected.
        let _ = sender.send(query(replica));
    });
    let exchange = async {
        state.queries.send(query).await.ok()?;
        answer.await.ok()
    };
    tokio::time::timeout(STUCK_AFTER, exchange).await.ok().flatten()
}

fn stuck() -> (StatusCode, String) {
    (StatusCode::SERVICE_UNAVAILABLE, format!("stuck: no answer within {STUCK_AFTER:?}\n"))
}

async fn healthz(State(state): State<AdminState>) -> (StatusCode, String) {
    if state.connectivity.refused_for().is_some_and(|refused_for| refused_for >= RESTART_AFTER)
        && let Some(outage) = state.connectivity.outage(Duration::ZERO)
    {
        return (StatusCode::SERVICE_UNAVAILABLE, format!("needs a restart: {outage}\n"));
    }
    match query(&state, |replica| describe(replica)).await {
        Some(description) => (StatusCode::OK, description),
        None => stuck(),
    }
}

async fn readyz(State(state): State<AdminState>) -> (StatusCode, String) {
    if let Some(outage) = state.connectivity.outage(state.lease_duration) {
        return (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {outage}\n"));
    }
    match query(&state, |replica| (replica.missing(), describe(replica))).await {
        Some((missing, description)) if missing.is_empty() => (StatusCode::OK, description),
        Some((missing, _)) => {
            (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {}\n", missing.join("; ")))
        }
        None => stuck(),
    }
}

async fn metrics(State(state): State<AdminState>) -> (StatusCode, [(HeaderName, &'static str); 1], String) {
    let connectivity = state.connectivity.clone();
    let snapshot = query(&state, move |replica| MetricsSnapshot::of(replica, &connectivity.now())).await;
    match snapshot.map(|snapshot| state.metrics.text(&snapshot)) {
        Some(Ok(text)) => (StatusCode::OK, [(CONTENT_TYPE, OPEN_METRICS)], text),
        Some(Err(error)) => {
            (StatusCode::INTERNAL_SERVER_ERROR, [(CONTENT_TYPE, "text/plain")], error.to_string())
        }
        None => {
            let (status, text) = stuck();
            (status, [(CONTENT_TYPE, "text/plain")], text)
        }
    }
}

async fn attachments(
    State(state): State<AdminState>,
) -> (StatusCode, [(HeaderName, &'static str); 1], String) {
    let report = query(&state, |replica| replica.attachment_report()).await;
    match report.map(|report| serde_json::to_string_pretty(&report)) {
        Some(Ok(json)) => (StatusCode::OK, [(CONTENT_TYPE, "application/json")], json + "\n"),
        Some(Err(error)) => {
            (StatusCode::INTERNAL_SERVER_ERROR, [(CONTENT_TYPE, "text/plain")], error.to_string())
        }
        None => {
            let (status, text) = stuck();
            (status, [(CONTENT_TYPE, "text/plain")], text)
        }
    }
}

fn describe(replica: &Replica) -> String {
    let leases = replica.leases().len();
    let role = match replica.leads() {
        Some(term) => format!("primary under term {term}"),
        None => "follower".to_owned(),
    };
    let unserved: String = replica.unserved().map(|(_, what)| format!("not served: {what}\n")).collect();
    format!("ok: {role}, {leases} leases\n{unserved}")
}

#[cfg(test)]
mod tests {
    use kube::client::Body;
    use lessor_core::settings::Settings;
    use tower::{BoxError, Layer, Service};

    use super::*;

    fn state() -> (AdminState, mpsc::Receiver<ReplicaQuery>) {
        let (query_sender, queries) = mpsc::channel(8);
        (
            AdminState {
                queries: query_sender,
                metrics: Metrics::new(),
                connectivity: Connectivity::new(),
                lease_duration: Duration::from_secs(5),
            },
            queries,
        )
    }

    #[tokio::test(start_paused = true)]
    async fn a_stuck_loop_is_neither_alive_nor_ready() {
        let (state, _never_read) = state();
        assert_eq!(healthz(State(state.clone())).await.0, StatusCode::SERVICE_UNAVAILABLE);
        let (status, text) = readyz(State(state)).await;
        assert_eq!((status, &*text), (StatusCode::SERVICE_UNAVAILABLE, "stuck: no answer within 2s\n"));
    }

    /// The state of a replica that answers queries, and has observed nothing.
    fn state_of_starting_replica() -> AdminState {
        let (state, mut queries) = state();
        tokio::spawn(async move {
            let mut replica = Replica::new(Settings::default());
            while let Some(query) = queries.recv().await {
                query(&mut replica);
            }
        });
        state
    }

    /// Sends a request through the connectivity layer to an API server that responds by this status, or not at all.
    async fn probe(state: &AdminState, status: Option<u16>) {
        let mut server = state.connectivity.layer(tower::service_fn(|_: http::Request<Body>| {
            std::future::ready(match status {
                Some(status) => {
                    Ok(http::Response::builder().status(status).body(Body::empty()).expect("a response"))
                }
                None => Err(BoxError::from("client error (Connect)")),
            })
        }));
        let request = http::Request::get("/apis/lessor.dev/v1alpha1/lessors/default").body(Body::empty());
        let _ = server.call(request.expect("a request")).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_without_valid_credentials_is_not_ready_and_restarts_after_five_minutes() {
        let state = state_of_starting_replica();
        for second in 0..300 {
            let (health, _) = healthz(State(state.clone())).await;
            assert_eq!(health, StatusCode::OK, "after {second} s");
            probe(&state, Some(401)).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let (ready, text) = readyz(State(state.clone())).await;
        assert_eq!(ready, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(
            text,
            "not ready: API server refuses the credentials: status 401 Unauthorized (for 300 s)\n"
        );
        let (health, text) = healthz(State(state.clone())).await;
        assert_eq!(health, StatusCode::SERVICE_UNAVAILABLE);
        assert!(text.starts_with("needs a restart: API server refuses the credentials"), "{text}");
        probe(&state, Some(200)).await;
        assert_eq!(healthz(State(state.clone())).await.0, StatusCode::OK);
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_is_down_makes_a_replica_unready_and_restarts_it_never() {
        let state = state_of_starting_replica();
        for _ in 0..1000 {
            probe(&state, None).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let (ready, text) = readyz(State(state.clone())).await;
        assert_eq!(ready, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(text, "not ready: API server unreachable: client error (Connect) (for 1000 s)\n");
        assert_eq!(healthz(State(state)).await.0, StatusCode::OK);
    }

    #[tokio::test(start_paused = true)]
    async fn a_starting_replica_is_alive_and_not_ready_and_names_what_it_waits_for() {
        let state = state_of_starting_replica();
        let (status, text) = healthz(State(state.clone())).await;
        assert_eq!((status, &*text), (StatusCode::OK, "ok: follower, 0 leases\n"));
        let (status, text) = readyz(State(state)).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        for missing in ["lessors.lessor.dev", "leases.lessor.dev", "configmaps"] {
            assert!(text.contains(missing), "{text}");
        }
    }
}
