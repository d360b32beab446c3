//! A service that registers itself in a ConfigMap that all its instances share, each with a key of its own.
//!
//! Clients of the service read that ConfigMap. When an instance dies, its key goes with its lease;
//! when it stops in order, at once.
//!
//!     cargo run --example register_service -- web-1 10.0.0.17:8080

use std::time::Duration;

use anyhow::Context;
use lessor_client::{Error, Grant, KeepAlive, LeaseClient};
use tokio::signal::unix::{SignalKind, signal};

const MAP: &str = "endpoints";
const TTL: Duration = Duration::from_secs(15);

#[tokio::main]
#[expect(clippy::print_stdout, reason = "it tells a person what it does")]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let usage = "give a name and an address, like web-1 10.0.0.17:8080";
    let (name, address) = arguments.next().zip(arguments.next()).context(usage)?;
    // Of the service account in a Pod, and of the kubeconfig elsewhere.
    let namespace = kube::Config::infer().await?.default_namespace;
    let leases = LeaseClient::try_default(namespace).await?;
    let mut stop = signal(SignalKind::terminate())?;

    loop {
        let alive = register(&leases, &name, &address).await?;
        println!("{name} is registered in configmap/{MAP}");
        // Here the service serves.
        tokio::select! {
            lost = alive.lost() => println!("{name} is no longer registered, and tries again: {lost}"),
            _ = stop.recv() => return unregister(alive).await,
            _ = tokio::signal::ctrl_c() => return unregister(alive).await,
        }
    }
}

/// Registers this instance; an earlier one of the same name goes first.
async fn register(leases: &LeaseClient, name: &str, address: &str) -> anyhow::Result<KeepAlive> {
    let lease = loop {
        match leases.grant(&Grant::new(name, TTL).holder(name)).await {
            Err(Error::Exists(_)) => leases.wait_gone(name).await?,
            Err(error) if error.is_temporary() => tokio::time::sleep(Duration::from_secs(1)).await,
            granted => break granted?,
        }
    };
    // Alive from now on, however long the rest takes.
    let alive = lease.keep_alive();
    leases.register(name, MAP, name, address).await?;
    Ok(alive)
}

async fn unregister(alive: KeepAlive) -> anyhow::Result<()> {
    Ok(alive.stop().revoke().await?)
}
