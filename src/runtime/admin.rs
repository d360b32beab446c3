//! The admin port: whether a replica is alive and ready, and what it knows and counts, for probes and people.
//!
//! Each question is put to the running replica itself. A loop that is stuck can't answer, and that's what `/healthz`
//! shows; nothing ticks in between.

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

/// How long a replica that isn't stuck may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The format of metrics.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A question to the running replica, which answers to whoever asked.
pub type Question = Box<dyn FnOnce(&mut Replica) + Send>;

/// Whom the admin port asks.
#[derive(Clone)]
pub struct Sources {
    /// The running replica.
    pub questions: mpsc::Sender<Question>,
    /// What it counts.
    pub metrics: Metrics,
    /// Its clocks.
    pub connectivity: Connectivity,
}

/// Serves the admin port until the process ends.
///
/// # Errors
/// When the address can't be bound.
pub async fn serve(address: SocketAddr, sources: Sources) -> std::io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    tracing::info!(address = %listener.local_addr()?, "admin port");
    let router = Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/debug/attachments", get(attachments))
        .with_state(sources);
    axum::serve(listener, router).await
}

/// Asks the replica; `None`: it doesn't answer in time.
async fn ask<T: Send + 'static>(
    sources: &Sources,
    question: impl FnOnce(&mut Replica) -> T + Send + 'static,
) -> Option<T> {
    let (sender, answer) = oneshot::channel();
    let question: Question = Box::new(move |replica| {
        // Whoever asked may have gone.
        let _ = sender.send(question(replica));
    });
    let asking = async {
        sources.questions.send(question).await.ok()?;
        answer.await.ok()
    };
    tokio::time::timeout(PATIENCE, asking).await.ok().flatten()
}

fn stuck() -> (StatusCode, String) {
    (StatusCode::SERVICE_UNAVAILABLE, format!("stuck: no answer within {PATIENCE:?}\n"))
}

async fn healthz(State(sources): State<Sources>) -> (StatusCode, String) {
    match ask(&sources, |replica| describe(replica)).await {
        Some(description) => (StatusCode::OK, description),
        None => stuck(),
    }
}

async fn readyz(State(sources): State<Sources>) -> (StatusCode, String) {
    match ask(&sources, |replica| (replica.missing(), describe(replica))).await {
        Some((missing, description)) if missing.is_empty() => (StatusCode::OK, description),
        Some((missing, _)) => {
            (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {}\n", missing.join("; ")))
        }
        None => stuck(),
    }
}

async fn metrics(State(sources): State<Sources>) -> (StatusCode, [(HeaderName, &'static str); 1], String) {
    let connectivity = sources.connectivity.clone();
    let figures = ask(&sources, move |replica| MetricsSnapshot::of(replica, &connectivity.now())).await;
    match figures.map(|figures| sources.metrics.text(&figures)) {
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
    State(sources): State<Sources>,
) -> (StatusCode, [(HeaderName, &'static str); 1], String) {
    let report = ask(&sources, |replica| replica.attachment_report()).await;
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

    fn sources() -> (Sources, mpsc::Receiver<Question>) {
        let (questions, asked) = mpsc::channel(8);
        (Sources { questions, metrics: Metrics::new(), connectivity: Connectivity::new() }, asked)
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_is_stuck_is_neither_alive_nor_ready() {
        let (sources, _never_read) = sources();
        assert_eq!(healthz(State(sources.clone())).await.0, StatusCode::SERVICE_UNAVAILABLE);
        let (status, text) = readyz(State(sources)).await;
        assert_eq!((status, &*text), (StatusCode::SERVICE_UNAVAILABLE, "stuck: no answer within 2s\n"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_that_has_seen_nothing_is_alive_and_says_what_it_waits_for() {
        let (sources, mut asked) = sources();
        tokio::spawn(async move {
            let mut replica = Replica::new(Settings::default());
            while let Some(question) = asked.recv().await {
                question(&mut replica);
            }
        });
        let (status, text) = healthz(State(sources.clone())).await;
        assert_eq!((status, &*text), (StatusCode::OK, "ok: follower, 0 leases\n"));
        let (status, text) = readyz(State(sources)).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        for missing in ["lessors.lessor.dev", "leases.lessor.dev", "configmaps"] {
            assert!(text.contains(missing), "{text}");
        }
    }
}
