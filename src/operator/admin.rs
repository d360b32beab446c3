//! The admin port: whether a replica is alive and ready, for probes and people.
//!
//! Each question is put to the running replica itself. A loop that is stuck can't answer, and that's what `/healthz`
//! shows; nothing ticks in between.

use std::{net::SocketAddr, time::Duration};

use axum::{Router, extract::State, http::StatusCode, routing::get};
use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot},
};

/// How long a replica that isn't stuck may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// What a replica says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// What it still waits for before it can act; empty: it is ready, be it primary or follower.
    pub missing: Vec<String>,
    /// The term that it leads under; `None`: it follows.
    pub term: Option<i64>,
    /// How many leases it knows.
    pub leases: usize,
}

/// Asks for a [`Report`].
pub type Question = oneshot::Sender<Report>;

/// Serves the admin port until the process ends.
///
/// # Errors
/// When the address can't be bound.
pub async fn serve(address: SocketAddr, questions: mpsc::Sender<Question>) -> std::io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    tracing::info!(address = %listener.local_addr()?, "admin port");
    let router =
        Router::new().route("/healthz", get(healthz)).route("/readyz", get(readyz)).with_state(questions);
    axum::serve(listener, router).await
}

async fn ask(questions: &mpsc::Sender<Question>) -> Option<Report> {
    let (question, answer) = oneshot::channel();
    let asking = async {
        questions.send(question).await.ok()?;
        answer.await.ok()
    };
    tokio::time::timeout(PATIENCE, asking).await.ok().flatten()
}

async fn healthz(State(questions): State<mpsc::Sender<Question>>) -> (StatusCode, String) {
    match ask(&questions).await {
        Some(report) => (StatusCode::OK, describe(&report)),
        None => (StatusCode::SERVICE_UNAVAILABLE, format!("stuck: no answer within {PATIENCE:?}\n")),
    }
}

async fn readyz(State(questions): State<mpsc::Sender<Question>>) -> (StatusCode, String) {
    match ask(&questions).await {
        Some(report) if report.missing.is_empty() => (StatusCode::OK, describe(&report)),
        Some(report) => {
            (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {}\n", report.missing.join("; ")))
        }
        None => (StatusCode::SERVICE_UNAVAILABLE, format!("stuck: no answer within {PATIENCE:?}\n")),
    }
}

fn describe(report: &Report) -> String {
    match report.term {
        Some(term) => format!("ok: primary under term {term}, {} leases\n", report.leases),
        None => format!("ok: follower, {} leases\n", report.leases),
    }
}
