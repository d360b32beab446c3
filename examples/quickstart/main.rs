//! Leases on a real Kubernetes API server, in less than a minute: granted, renewed, expired and revoked.
//!
//! Starts a cluster and the operator, applies the YAML of `examples/`, plays the holders of the leases, shows what happens
//! and when, and checks at the API server everything that it claims. The exit code is 0 only if all of it held.

mod checks;
mod holder;
mod manifests;
mod observer;
mod operator;
mod stage;
mod story;
mod timeline;

use std::{path::PathBuf, process::ExitCode};

use anyhow::Context;
use clap::{Parser, Subcommand};
use stage::Stage;
use timeline::Timeline;
use tokio::signal::unix::{SignalKind, signal};

/// Watch leases being granted, renewed, expired and revoked on a real Kubernetes API server.
#[derive(Parser, Debug)]
#[command(name = "quickstart", args_conflicts_with_subcommands = true)]
struct Args {
    /// Leave the cluster and the operator running, and say how to use and how to stop them.
    #[arg(long)]
    stay: bool,

    /// Use the cluster of this kubeconfig, in a namespace of its own, and clean up in the end.
    #[arg(long, value_name = "PATH")]
    kubeconfig: Option<PathBuf>,

    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Subcommand, Debug)]
enum Role {
    /// The operator, as a process of its own.
    #[command(hide = true)]
    Operator(operator::Args),
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let timeline = Timeline::new();
    let result = match args.role {
        Some(Role::Operator(operator)) => operator::run(operator).await.map(|()| ExitCode::SUCCESS),
        None => play(args, &timeline).await,
    };
    result.unwrap_or_else(|error| {
        timeline.failure(&explain(&error));
        ExitCode::FAILURE
    })
}

/// An error and what caused it, without what is said already: kube's errors repeat their causes.
fn explain(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Ends with Ctrl-C or SIGTERM.
fn interrupted() -> anyhow::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt()).context("can't listen for Ctrl-C")?;
    let mut terminate = signal(SignalKind::terminate()).context("can't listen for SIGTERM")?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

async fn play(args: Args, timeline: &Timeline) -> anyhow::Result<ExitCode> {
    timeline.title("Lessor quickstart: leases that end by themselves, on a real Kubernetes API server");
    let mut stage = Stage::start(args.kubeconfig.as_deref(), timeline).await?;
    let told = tokio::select! {
        told = async {
            stage.prepare(timeline).await?;
            story::tell(&stage, timeline).await
        } => told,
        () = interrupted()? => {
            timeline.failure("interrupted");
            stage.clear(timeline).await?;
            return Ok(ExitCode::from(130));
        }
    };
    let failed = !told.as_ref().is_ok_and(|checks| checks.all_held());
    if failed {
        stage.show_operator_log(timeline);
    }
    if args.stay {
        stage.leave(timeline);
    } else {
        stage.clear(timeline).await?;
    }
    told?;
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
