//! A job that only one of several processes does: the one that holds the lease. Its fencing token guards what
//! it writes.
//!
//! A lease alone is no mutex: a leader may be stopped for a minute between its look at the lease and its
//! write, and by then another leads. So the report below carries the token of its writer, and refuses a
//! smaller one.
//!
//!     cargo run --example leader_only_job -- reports      # in several terminals; kill the one that leads

use std::time::Duration;

use anyhow::Context;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use lessor_client::{Error, Grant, HeldLease, LeaseClient};

const TTL: Duration = Duration::from_secs(5);
const EVERY: Duration = Duration::from_secs(1);
/// Who has written the report last.
const TOKEN: &str = "example.com/fencing-token";

#[tokio::main]
#[expect(clippy::print_stdout, reason = "it tells a person what it does")]
async fn main() -> anyhow::Result<()> {
    let name = std::env::args().nth(1).context("give the name of a lease, like reports")?;
    let client = Client::try_default().await?;
    let namespace = client.default_namespace().to_owned();
    let leases = LeaseClient::try_default(&namespace).await?;
    let report = Report { maps: Api::namespaced(client, &namespace), name: format!("{name}-report") };

    loop {
        let lease = lead(&leases, &name).await?;
        let token = lease.fencing_token();
        println!("leading with token {token}");
        let alive = lease.keep_alive();
        // Dropped in the middle of whatever it does, when the lease is lost.
        let work = async {
            for count in 1.. {
                report.write(token, count).await?;
                tokio::time::sleep(EVERY).await;
            }
            anyhow::Ok(())
        };
        match alive.guard(work).await {
            Err(lost) => println!("leading no more: {lost}"),
            Ok(Err(error)) => println!("the job failed: {error:#}"),
            Ok(Ok(())) => {}
        }
        alive.stop().revoke().await?;
    }
}

/// Waits until no other process leads, and leads.
async fn lead(leases: &LeaseClient, name: &str) -> anyhow::Result<HeldLease> {
    loop {
        match leases.grant(&Grant::new(name, TTL)).await {
            Ok(lease) => return Ok(lease),
            Err(Error::Exists(_)) => leases.wait_gone(name).await?,
            Err(error) if error.is_temporary() => tokio::time::sleep(EVERY).await,
            Err(error) => return Err(error.into()),
        }
    }
}

/// What the lease guards.
struct Report {
    maps: Api<ConfigMap>,
    name: String,
}

impl Report {
    /// Writes, unless a later leader has written already.
    async fn write(&self, token: i64, count: u64) -> anyhow::Result<()> {
        let mut map = match self.maps.get_opt(&self.name).await? {
            Some(map) => map,
            None => {
                let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
                let map = ConfigMap { metadata, ..ConfigMap::default() };
                self.maps.create(&PostParams::default(), &map).await?
            }
        };
        let annotations = map.metadata.annotations.get_or_insert_default();
        let seen: i64 = annotations.get(TOKEN).and_then(|seen| seen.parse().ok()).unwrap_or_default();
        anyhow::ensure!(seen <= token, "the leader has token {seen}, and this process has {token}");
        annotations.insert(TOKEN.to_owned(), token.to_string());
        map.data = Some([("count".to_owned(), count.to_string())].into());
        // Bound to the version that was read: no other process has written since the read.
        self.maps.replace(&self.name, &PostParams::default(), &map).await?;
        Ok(())
    }
}
