//! Which cluster, as whom, and which namespace: what kubectl's own flags say.

use std::path::PathBuf;

use clap::Args;
use http::{HeaderValue, header::USER_AGENT};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use lessor_client::{FIELD_MANAGER, LeaseClient};

use crate::{
    duration,
    error::{Failure, OTHER, Outcome},
};

/// What this program calls itself.
const AGENT: &str = concat!("kubectl-lease/", env!("CARGO_PKG_VERSION"));

/// Flags that kubectl has too.
#[derive(Args, Debug)]
pub(crate) struct Connection {
    /// The namespace. Default: that of the kubeconfig's context
    #[arg(long, short, global = true, value_name = "NAME", help_heading = "Cluster")]
    pub(crate) namespace: Option<String>,

    /// The kubeconfig. Default: $KUBECONFIG, ~/.kube/config, or the service account inside a pod
    #[arg(long, global = true, value_name = "FILE", help_heading = "Cluster")]
    kubeconfig: Option<PathBuf>,

    /// The context of the kubeconfig. Default: its current one
    #[arg(long, global = true, value_name = "NAME", help_heading = "Cluster")]
    context: Option<String>,

    /// The cluster of the kubeconfig, instead of the context's
    #[arg(long, global = true, value_name = "NAME", help_heading = "Cluster")]
    cluster: Option<String>,

    /// The user of the kubeconfig, instead of the context's
    #[arg(long, global = true, value_name = "NAME", help_heading = "Cluster")]
    user: Option<String>,

    /// Impersonate this user
    #[arg(long = "as", global = true, value_name = "USER", help_heading = "Cluster")]
    impersonate: Option<String>,

    /// How long to wait for each answer of the API server
    #[arg(
        long,
        global = true,
        value_name = "DURATION",
        default_value = "10s",
        value_parser = duration::parse,
        help_heading = "Cluster"
    )]
    request_timeout: Option<std::time::Duration>,

    /// Under this name the API server records what is written
    #[arg(long, global = true, value_name = "NAME", default_value = FIELD_MANAGER, help_heading = "Cluster")]
    field_manager: Option<String>,
}

/// A connection to a cluster.
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) leases: LeaseClient,
}

impl Connection {
    /// Reads the kubeconfig. Nothing is sent yet.
    pub(crate) async fn open(&self) -> Outcome<Session> {
        let failed = |error: &dyn std::error::Error| {
            Failure::new(OTHER, format!("no way to the API server: {}", chain(error)))
        };
        let mut config = self.config().await.map_err(|error| failed(&*error))?;
        // Retries are decided where it's known how long the lease still lives.
        config.default_retry = false;
        config.headers.push((USER_AGENT, HeaderValue::from_static(AGENT)));
        if let Some(user) = &self.impersonate {
            config.auth_info.impersonate = Some(user.clone());
        }
        let namespace = self.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).map_err(|error| failed(&error))?;
        let mut leases = LeaseClient::new(client.clone(), namespace);
        if let Some(name) = &self.field_manager {
            leases = leases.with_field_manager(name);
        }
        if let Some(timeout) = self.request_timeout {
            leases = leases.with_timeout(timeout);
        }
        Ok(Session { client, leases })
    }

    async fn config(&self) -> Result<Config, Box<dyn std::error::Error + Send + Sync>> {
        let options = KubeConfigOptions {
            context: self.context.clone(),
            cluster: self.cluster.clone(),
            user: self.user.clone(),
        };
        if let Some(file) = &self.kubeconfig {
            return Ok(Config::from_custom_kubeconfig(Kubeconfig::read_from(file)?, &options).await?);
        }
        let chosen = self.context.is_some() || self.cluster.is_some() || self.user.is_some();
        match chosen {
            true => Ok(Config::from_kubeconfig(&options).await?),
            false => Ok(Config::infer().await?),
        }
    }
}

/// An error with its causes, as far as these say something new.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(deeper) = cause {
        let more = deeper.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = deeper.source();
    }
    text
}
