//! The way to the API server.

use anyhow::Context;
use clap::Args as ClapArgs;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

/// Which API server, and as whom.
#[derive(ClapArgs, Clone, Debug)]
pub(crate) struct Access {
    /// The kubeconfig to use. Default: KUBECONFIG, ~/.kube/config, or the service account inside a cluster.
    #[arg(long, env = "LESSOR_KUBECONFIG", value_name = "FILE")]
    kubeconfig: Option<std::path::PathBuf>,
}

impl Access {
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
