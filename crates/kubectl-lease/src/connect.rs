//! The connection to a cluster, with kubectl's flags.

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
    error::{CliError, CliResult, OTHER},
};

/// The user agent of requests.
const AGENT: &str = concat!("kubectl-lease/", env!("CARGO_PKG_VERSION"));

/// The flags of kubectl that choose the cluster, the user and the namespace.
#[derive(Args, Debug)]
pub(crate) struct ConnectionArgs {
    /// Namespace [default: that of the kubeconfig's context]
    #[arg(long, short, global = true, value_name = "NAME", help_heading = "Cluster")]
    pub(crate) namespace: Option<String>,

    /// Kubeconfig [default: $KUBECONFIG, ~/.kube/config, or the service account in a Pod]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Cluster")]
    kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig [default: the current context]
    #[arg(long, global = true, value_name = "NAME", help_heading = "Cluster")]
    context: Option<String>,

    /// Cluster of the kubeconfig [default: that of the context]
    #[arg(long, global = true, value_name = "NAME", help_heading = "Cluster")]
    cluster: Option<String>,

    /// User of the kubeconfig [default: that of the context]
    #[arg(long, global = true, value_name = "NAME", help_heading = "Cluster")]
    user: Option<String>,

    /// User to impersonate
    #[arg(long = "as", global = true, value_name = "USER", help_heading = "Cluster")]
    impersonate: Option<String>,

    /// Timeout of each request
    #[arg(
        long,
        global = true,
        value_name = "DURATION",
        default_value = "10s",
        value_parser = duration::positive,
        help_heading = "Cluster"
    )]
    request_timeout: Option<std::time::Duration>,

    /// Field manager of writes
    #[arg(long, global = true, value_name = "NAME", default_value = FIELD_MANAGER, help_heading = "Cluster")]
    field_manager: Option<String>,
}

/// A connection to a cluster.
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) leases: LeaseClient,
}

impl ConnectionArgs {
    /// Reads the kubeconfig. Sends no request.
    pub(crate) async fn open(&self) -> CliResult<Session> {
        let failed = |error: &dyn std::error::Error| {
            CliError::new(OTHER, format!("can't connect to the API server: {}", chain(error)))
        };
        let mut config = self.config().await.map_err(|error| failed(&*error))?;
        // Retries depend on the deadline of the lease, so lessor-client decides on them.
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
        match self.context.is_some() || self.cluster.is_some() || self.user.is_some() {
            true => Ok(Config::from_kubeconfig(&options).await?),
            false => Ok(Config::infer().await?),
        }
    }
}

/// An error with those of its sources that aren't part of its message.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let message = error.to_string();
        if !text.contains(&message) {
            text = format!("{text}: {message}");
        }
        source = error.source();
    }
    text
}
