//! The admin port: whether a replica is alive and ready, and its metrics.
//!
//! Each question is put to the running replica itself. A loop that is stuck can't answer, and that's what `/healthz`
//! shows; nothing ticks in between.

use std::{net::SocketAddr, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};
use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot},
};

/// How long a replica that isn't stuck may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The format of metrics.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

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

/// A question to a replica, and where it answers.
#[derive(Debug)]
pub enum Question {
    /// How is it?
    Report(oneshot::Sender<Report>),
    /// What are its metrics? (Text in the format of OpenMetrics.)
    Metrics(oneshot::Sender<String>),
}

/// Serves the admin port until the process ends.
///
/// # Errors
/// When the address can't be bound.
pub async fn serve(address: SocketAddr, questions: mpsc::Sender<Question>) -> std::io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    tracing::info!(address = %listener.local_addr()?, "admin port");
    let router = Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(questions);
    axum::serve(listener, router).await
}

async fn ask<T>(
    questions: &mpsc::Sender<Question>,
    question: impl FnOnce(oneshot::Sender<T>) -> Question,
) -> Option<T> {
    let (sender, answer) = oneshot::channel();
    let asking = async {
        questions.send(question(sender)).await.ok()?;
        answer.await.ok()
    };
    tokio::time::timeout(PATIENCE, asking).await.ok().flatten()
}

async fn healthz(State(questions): State<mpsc::Sender<Question>>) -> Response {
    match ask(&questions, Question::Report).await {
        Some(report) => describe(&report).into_response(),
        None => stuck(),
    }
}

async fn readyz(State(questions): State<mpsc::Sender<Question>>) -> Response {
    match ask(&questions, Question::Report).await {
        Some(report) if report.missing.is_empty() => describe(&report).into_response(),
        Some(report) => {
            (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {}\n", report.missing.join("; ")))
                .into_response()
        }
        None => stuck(),
    }
}

async fn metrics(State(questions): State<mpsc::Sender<Question>>) -> Response {
    match ask(&questions, Question::Metrics).await {
        Some(text) => ([(CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        None => stuck(),
    }
}

fn stuck() -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, format!("stuck: no answer within {PATIENCE:?}\n")).into_response()
}

fn describe(report: &Report) -> String {
    match report.term {
        Some(term) => format!("ok: primary under term {term}, {} leases\n", report.leases),
        None => format!("ok: follower, {} leases\n", report.leases),
    }
}
