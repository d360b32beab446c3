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
/// The content type of metrics.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A query to the running replica.
pub type ReplicaQuery = Box<dyn FnOnce(&mut Replica) + Send>;

/// What the admin port shows.
#[derive(Clone)]
pub struct AdminState {
    /// The running replica.
    pub queries: mpsc::Sender<ReplicaQuery>,
    /// Its metrics.
    pub metrics: Metrics,
    /// Its clocks.
    pub connectivity: Connectivity,
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
    match query(&state, |replica| describe(replica)).await {
        Some(description) => (StatusCode::OK, description),
        None => stuck(),
    }
}

async fn readyz(State(state): State<AdminState>) -> (StatusCode, String) {
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
    match replica.leads() {
        Some(term) => format!("ok: primary under term {term}, {leases} leases\n"),
        None => format!("ok: follower, {leases} leases\n"),
    }
}

#[cfg(test)]
mod tests {
    use lessor_core::settings::Settings;

    use super::*;

    fn state() -> (AdminState, mpsc::Receiver<ReplicaQuery>) {
        let (query_sender, queries) = mpsc::channel(8);
        (
            AdminState { queries: query_sender, metrics: Metrics::new(), connectivity: Connectivity::new() },
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

    #[tokio::test(start_paused = true)]
    async fn a_starting_replica_is_alive_and_not_ready_and_names_what_it_waits_for() {
        let (state, mut queries) = state();
        tokio::spawn(async move {
            let mut replica = Replica::new(Settings::default());
            while let Some(query) = queries.recv().await {
                query(&mut replica);
            }
        });
        let (status, text) = healthz(State(state.clone())).await;
        assert_eq!((status, &*text), (StatusCode::OK, "ok: follower, 0 leases\n"));
        let (status, text) = readyz(State(state)).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        for missing in ["lessors.lessor.dev", "leases.lessor.dev", "configmaps"] {
            assert!(text.contains(missing), "{text}");
        }
    }
}
