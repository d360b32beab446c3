//! The operator, as a process of its own, so that its log is in a file and it can be left running.

use std::path::PathBuf;

use anyhow::Context;
use kube::{
    Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use lessor::runtime;
use lessor_core::settings::Settings;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// What the quickstart calls its operator towards the API server: the audit log is searched for it.
pub(crate) const USER_AGENT: &str = "lessor-quickstart-operator";

/// How `lessor run` would be told the same.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[arg(long)]
    kubeconfig: PathBuf,
    #[arg(long)]
    lessor: String,
    #[arg(long)]
    namespace: Option<String>,
}

/// Runs one replica with the defaults of `lessor run`, until SIGTERM.
pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(false)
        .init();
    let kubeconfig = Kubeconfig::read_from(&args.kubeconfig).context("can't read the kubeconfig")?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.headers.push((http::header::USER_AGENT, http::HeaderValue::from_static(USER_AGENT)));
    let settings = Settings {
        lessor: args.lessor,
        identity: format!("quickstart_{:08x}", uuid::Uuid::new_v4().as_fields().0),
        namespaces: args.namespace.into_iter().collect(),
        ..Settings::default()
    };
    let mut terminated = signal(SignalKind::terminate()).context("can't listen for SIGTERM")?;
    runtime::run(config, settings, async {
        terminated.recv().await;
    })
    .await?;
    Ok(())
}
