//! `lessor check`: tests a running operator as a user would.

use std::{io::Write, time::Duration};

use anyhow::{Context, bail};
use clap::Args;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{DeleteParams, PostParams, WatchParams},
};
use lessor_api::{Lease, attachment::LEASE_ANNOTATION, duration};
use serde_json::json;
use tokio::time::Instant;

use super::{access::AccessArgs, name};

/// How long after the deadline a removal counts as left out, with --dry-run.
const DUE: Duration = Duration::from_secs(3);
/// How often to poll.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Creates a lease and a ConfigMap attached to it, and waits until the operator has removed both.
#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    /// Namespace of the test objects.
    #[arg(long, short, default_value = "default", value_parser = name::namespace)]
    namespace: String,

    /// Expect an operator with --dry-run, which grants the lease and removes nothing.
    #[arg(long)]
    dry_run: bool,

    /// Time limit of each step, in addition to the granted TTL.
    #[arg(long, default_value = "30s", value_parser = duration::parse)]
    timeout: Duration,

    #[command(flatten)]
    access: AccessArgs,
}

/// Runs the test, and prints its steps.
pub(crate) fn run(args: &CheckArgs, out: impl Write) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new().context("can't start")?;
    runtime.block_on(async {
        let client = args.access.client().await?;
        let name = format!("lessor-check-{:08x}", uuid::Uuid::new_v4().as_fields().0);
        let check = OperatorCheck {
            leases: Api::namespaced(client.clone(), &args.namespace),
            maps: Api::namespaced(client, &args.namespace),
            timeout: args.timeout,
            dry_run: args.dry_run,
            name,
        };
        let result = check.run(out).await;
        if result.is_err() || args.dry_run {
            // The error describes what is left.
            let _ = check.leases.delete(&check.name, &DeleteParams::default()).await;
            let _ = check.maps.delete(&check.name, &DeleteParams::default()).await;
        }
        result
    })
}

struct OperatorCheck {
    leases: Api<Lease>,
    maps: Api<ConfigMap>,
    timeout: Duration,
    dry_run: bool,
    name: String,
}

impl OperatorCheck {
    async fn run(&self, mut out: impl Write) -> anyhow::Result<()> {
        let name = &self.name;
        let lease = serde_json::from_value(json!({
            "apiVersion": "lessor.dev/v1alpha1", "kind": "Lease", "metadata": {"name": name},
            "spec": {"ttlSeconds": 1, "holder": "lessor check"},
        }))?;
        let map = serde_json::from_value(json!({
            "metadata": {"name": name, "annotations": {LEASE_ANNOTATION: name}},
        }))?;
        self.require_streaming_lists().await?;
        let start = Instant::now();
        self.leases.create(&PostParams::default(), &lease).await.context("can't create a lease")?;
        self.maps.create(&PostParams::default(), &map).await.context("can't create a ConfigMap")?;

        let granted = loop {
            let lease = self.leases.get(name).await.context("can't read the lease")?;
            if let Some(ttl) = lease.status.and_then(|status| status.granted_ttl_seconds) {
                break ttl;
            }
            if start.elapsed() > self.timeout {
                bail!(
                    "lease {name} was not granted within {:?}: check that an operator runs and serves this namespace, \
                     with `kubectl get lessors.lessor.dev`",
                    self.timeout
                );
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        };
        writeln!(out, "the lease was granted for {granted} s, after {} ms", start.elapsed().as_millis())?;

        let ttl = Duration::from_secs(u64::try_from(granted).unwrap_or_default());
        if self.dry_run {
            tokio::time::sleep((start + ttl + DUE).saturating_duration_since(Instant::now())).await;
            let lease =
                self.leases.get(name).await.context("the lease was removed, in spite of --dry-run")?;
            anyhow::ensure!(!lease.is_ended(), "the lease has ended: the operator runs without --dry-run");
            self.maps.get(name).await.context("the ConfigMap was removed, in spite of --dry-run")?;
            writeln!(out, "the lease and the ConfigMap are still there, {} ms later", ttl.as_millis())?;
            return Ok(());
        }
        self.wait_gone(&self.maps, "ConfigMap", start + ttl + self.timeout).await?;
        let lived = start.elapsed();
        anyhow::ensure!(
            lived >= ttl,
            "the ConfigMap was removed after {lived:?}, before the end of its lease"
        );
        writeln!(out, "the ConfigMap was removed, after {} ms", lived.as_millis())?;
        self.wait_gone(&self.leases, "lease", start + ttl + self.timeout).await?;
        writeln!(out, "the lease was removed, after {} ms", start.elapsed().as_millis())?;
        Ok(())
    }

    /// Without streaming lists the operator never becomes ready.
    async fn require_streaming_lists(&self) -> anyhow::Result<()> {
        let params = WatchParams::default().initial_events().fields("metadata.name=none").timeout(1);
        match self.leases.watch(&params, "").await {
            Err(kube::Error::Api(status)) if status.code == 422 => bail!(
                "the API server serves no streaming lists, which the operator needs: Kubernetes 1.34 or later, with the \
                 feature gate WatchList: {}",
                status.message
            ),
            // Whatever else fails, the steps below report it. A user may lack the right to watch.
            _ => Ok(()),
        }
    }

    async fn wait_gone<K>(&self, api: &Api<K>, what: &str, by: Instant) -> anyhow::Result<()>
    where
        K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
    {
        while api.get_opt(&self.name).await.with_context(|| format!("can't read the {what}"))?.is_some() {
            anyhow::ensure!(Instant::now() < by, "the {what} {} was not removed in time", self.name);
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }
}
