//! The connection to the API server, as arguments.

use anyhow::Context;
use clap::Args;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

/// Which API server to use, and with which credentials.
#[derive(Args, Clone, Debug)]
pub(crate) struct AccessArgs {
    /// Kubeconfig file. Default: KUBECONFIG, ~/.kube/config, or the service account of the Pod.
    #[arg(long, env = "LESSOR_KUBECONFIG", value_name = "FILE")]
    kubeconfig: Option<std::path::PathBuf>,
}

impl AccessArgs {
    /// The configuration of a client.
    pub(crate) async fn config(&self) -> anyhow::Result<Config> {
        let Some(path) = &self.kubeconfig else {
            return Config::infer().await.context(
                "no configuration for the API server: set KUBECONFIG or give --kubeconfig, or run inside a cluster",
            );
        };
        let kubeconfig = Kubeconfig::read_from(path)
            .with_context(|| format!("can't read the kubeconfig {}", path.display()))?;
        Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
            .await
            .with_context(|| format!("can't use the kubeconfig {}", path.display()))
    }

    /// A client.
    pub(crate) async fn client(&self) -> anyhow::Result<Client> {
        Client::try_from(self.config().await?).context("can't make a client for the API server")
    }
}
