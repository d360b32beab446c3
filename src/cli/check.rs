//! `lessor check`: whether an operator works, seen from outside.

use std::{io::Write, time::Duration};

use anyhow::{Context, bail};
use clap::Args as ClapArgs;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use lessor_api::{Lease, attachment::LEASE_ANNOTATION};
use serde_json::json;
use tokio::time::Instant;

use super::{access::Access, name, run::duration};

/// How long after a deadline an operator that removes things would have done so.
const DUE: Duration = Duration::from_secs(3);
/// How often to look.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Makes a lease and a ConfigMap attached to it, and waits until both have gone by themselves.
#[derive(ClapArgs, Debug)]
pub(crate) struct Args {
    /// The namespace to do it in.
    #[arg(long, short, default_value = "default", value_parser = name::namespace)]
    namespace: String,

    /// The operator runs with --dry-run: see that it grants the lease, and then removes nothing.
    #[arg(long)]
    dry_run: bool,

    /// How long each step may take, beside the TTL that is granted.
    #[arg(long, default_value = "30s", value_parser = duration)]
    timeout: Duration,

    #[command(flatten)]
    access: Access,
}

/// Checks, and says what was seen.
pub(crate) fn run(args: &Args, out: impl Write) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new().context("can't start")?;
    runtime.block_on(async {
        let client = args.access.client().await?;
        let name = format!("lessor-check-{:08x}", uuid::Uuid::new_v4().as_fields().0);
        let check = Check {
            leases: Api::namespaced(client.clone(), &args.namespace),
            maps: Api::namespaced(client, &args.namespace),
            timeout: args.timeout,
            dry_run: args.dry_run,
            name,
        };
        let result = check.run(out).await;
        if result.is_err() || args.dry_run {
            // What is still there says enough in the message; it need not stay.
            let _ = check.leases.delete(&check.name, &DeleteParams::default()).await;
            let _ = check.maps.delete(&check.name, &DeleteParams::default()).await;
        }
        result
    })
}

struct Check {
    leases: Api<Lease>,
    maps: Api<ConfigMap>,
    timeout: Duration,
    dry_run: bool,
    name: String,
}

impl Check {
    async fn run(&self, mut out: impl Write) -> anyhow::Result<()> {
        let name = &self.name;
        let lease = serde_json::from_value(json!({
            "apiVersion": "lessor.dev/v1alpha1", "kind": "Lease", "metadata": {"name": name},
            "spec": {"ttlSeconds": 1, "holder": "lessor check"},
        }))?;
        let map = serde_json::from_value(json!({
            "metadata": {"name": name, "annotations": {LEASE_ANNOTATION: name}},
        }))?;
        let start = Instant::now();
        self.leases.create(&PostParams::default(), &lease).await.context("can't make a lease")?;
        self.maps.create(&PostParams::default(), &map).await.context("can't make a ConfigMap")?;

        let granted = loop {
            let lease = self.leases.get(name).await.context("can't read the lease")?;
            if let Some(ttl) = lease.status.and_then(|status| status.granted_ttl_seconds) {
                break ttl;
            }
            if start.elapsed() > self.timeout {
                bail!(
                    "lease {name} was not granted within {:?}: does an operator run, and serve this namespace? \
                     See `kubectl get lessors.lessor.dev`",
                    self.timeout
                );
            }
            tokio::time::sleep(LOOK_EVERY).await;
        };
        writeln!(out, "granted for {granted} s, {} ms after it was asked for", start.elapsed().as_millis())?;

        let ttl = Duration::from_secs(u64::try_from(granted).unwrap_or_default());
        if self.dry_run {
            // Nobody says when nothing happens; what happens at all, happens within this time.
            tokio::time::sleep((start + ttl + DUE).saturating_duration_since(Instant::now())).await;
            let lease = self.leases.get(name).await.context("the lease is gone, though nothing should go")?;
            anyhow::ensure!(!lease.is_ended(), "the lease has ended: the operator runs without --dry-run");
            self.maps.get(name).await.context("the ConfigMap is gone, though nothing should go")?;
            writeln!(out, "{} ms later it is still there, and so is what is attached", ttl.as_millis())?;
            return Ok(());
        }
        self.wait_gone(&self.maps, "ConfigMap", start + ttl + self.timeout).await?;
        let lived = start.elapsed();
        anyhow::ensure!(lived >= ttl, "the ConfigMap went after {lived:?}, before the end of its lease");
        writeln!(out, "the ConfigMap went with it, after {} ms", lived.as_millis())?;
        self.wait_gone(&self.leases, "lease", start + ttl + self.timeout).await?;
        writeln!(out, "the lease is gone, after {} ms", start.elapsed().as_millis())?;
        Ok(())
    }

    async fn wait_gone<K>(&self, api: &Api<K>, what: &str, by: Instant) -> anyhow::Result<()>
    where
        K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
    {
        while api.get_opt(&self.name).await.with_context(|| format!("can't read the {what}"))?.is_some() {
            anyhow::ensure!(Instant::now() < by, "the {what} {} hasn't gone in time", self.name);
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(())
    }
}
