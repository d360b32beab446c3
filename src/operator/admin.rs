//! The admin port: whether a replica is alive and ready, and what it knows, for probes and people.
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
use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot},
};

use super::replica::Replica;

/// How long a replica that isn't stuck may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// A question to the running replica, which answers to whoever asked.
pub type Question = Box<dyn FnOnce(&Replica) + Send>;

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
        .route("/debug/attachments", get(attachments))
        .with_state(questions);
    axum::serve(listener, router).await
}

/// Asks the replica; `None`: it doesn't answer in time.
async fn ask<T: Send + 'static>(
    questions: &mpsc::Sender<Question>,
    question: impl FnOnce(&Replica) -> T + Send + 'static,
) -> Option<T> {
    let (sender, answer) = oneshot::channel();
    let question: Question = Box::new(move |replica| {
        // Whoever asked may have gone.
        let _ = sender.send(question(replica));
    });
    let asking = async {
        questions.send(question).await.ok()?;
        answer.await.ok()
    };
    tokio::time::timeout(PATIENCE, asking).await.ok().flatten()
}

fn stuck() -> (StatusCode, String) {
    (StatusCode::SERVICE_UNAVAILABLE, format!("stuck: no answer within {PATIENCE:?}\n"))
}

async fn healthz(State(questions): State<mpsc::Sender<Question>>) -> (StatusCode, String) {
    match ask(&questions, describe).await {
        Some(description) => (StatusCode::OK, description),
        None => stuck(),
    }
}

async fn readyz(State(questions): State<mpsc::Sender<Question>>) -> (StatusCode, String) {
    match ask(&questions, |replica| (replica.missing(), describe(replica))).await {
        Some((missing, description)) if missing.is_empty() => (StatusCode::OK, description),
        Some((missing, _)) => {
            (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {}\n", missing.join("; ")))
        }
        None => stuck(),
    }
}

async fn attachments(
    State(questions): State<mpsc::Sender<Question>>,
) -> (StatusCode, [(HeaderName, &'static str); 1], String) {
    let report = ask(&questions, Replica::attachment_report).await;
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
