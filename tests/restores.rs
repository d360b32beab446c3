//! What replicas do when etcd is restored from a backup, so that versions go back.
#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test may fail by panicking, and prints figures"
)]

use std::{process::Command, time::Duration};

use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use lessor_api::{Lease, LeaseSpec};
use lessor_cluster::{Cluster, Process};
use lessor_kit::world::install_crds;
use serde_json::json;
use tokio::time::{Instant, sleep};

/// How long a test waits for what must come soon.
const PATIENCE: Duration = Duration::from_secs(60);

fn replica(cluster: &Cluster, name: &str) -> Process {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lessor"));
    command.args([
        "run",
        "--min-ttl",
        "1s",
        "--lease-duration",
        "2s",
        "--start-grace",
        "1s",
        "--identity",
        name,
    ]);
    command.arg("--kubeconfig").arg(cluster.kubeconfig_path()).env("RUST_LOG", "info");
    cluster.spawn(&command, name).expect("a replica")
}

async fn until<T>(what: &str, replicas: &[Process], ask: impl AsyncFn() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = ask().await {
            return found;
        }
        let logs = || replicas.iter().map(Process::log).collect::<Vec<_>>().join("\n");
        assert!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}\n{}", logs());
        sleep(Duration::from_millis(100)).await;
    }
}

/// Stops the cluster, changes etcd's data directory, and starts the cluster again.
async fn while_stopped(cluster: &Cluster, script: &str) {
    let (etcd, api_server) = (cluster.etcd().expect("etcd"), cluster.api_server().expect("an API server"));
    api_server.kill().await.expect("its end");
    etcd.stop().await.expect("its end");
    let changed = Command::new("sh").args(["-ec", script]).current_dir(cluster.directory()).status();
    assert!(changed.expect("a shell").success());
    etcd.restart().await.expect("etcd");
    api_server.restart().await.expect("an API server");
    cluster.wait_ready().await.expect("a cluster that is ready");
}

#[tokio::test]
async fn replicas_start_anew_by_themselves_after_a_restore_and_serve_what_is_there() {
    let cluster = Cluster::start().await.expect("a cluster");
    let client = cluster.client().expect("a client");
    install_crds(&cluster).await;
    let leases: Api<Lease> = Api::namespaced(client, "default");
    let create = async |name: &str| {
        let lease = Lease::new(name, LeaseSpec { ttl_seconds: 600, ..LeaseSpec::default() });
        leases.create(&PostParams::default(), &lease).await.expect("a lease");
    };
    let is_granted = async |name: &str| {
        let lease = leases.get_opt(name).await.ok().flatten()?;
        lease.is_granted().then_some(lease)
    };
    let replicas = ["r1", "r2"].map(|name| replica(&cluster, name));
    create("kept").await;
    until("a grant", &replicas, async || is_granted("kept").await).await;

    while_stopped(&cluster, "cp -a etcd backup").await;
    // No replica writes the Lessor meanwhile, so that this is as it was.
    // An API server that starts writes a few objects, too.
    for n in 0..200 {
        let renewal = Patch::Merge(json!({"spec": {"renewTime": format!("2026-01-31T12:00:00.{n:06}Z")}}));
        leases.patch("kept", &PatchParams::default(), &renewal).await.expect("a renewal");
    }
    create("lost").await;
    until("a grant", &replicas, async || is_granted("lost").await).await;
    let alive = |process: &Process| process.exit_status().is_none();
    assert!(replicas.iter().all(alive), "an API server that was away is waited for");

    let restored_at = Instant::now();
    while_stopped(&cluster, "rm -r etcd && mv backup etcd").await;
    until("the end of both", &replicas, async || (!replicas.iter().any(alive)).then_some(())).await;
    println!("both replicas ended {:?} after the API server was stopped", restored_at.elapsed());
    for ended in &replicas {
        let log = ended.log();
        assert!(log.contains("as when etcd is restored from a backup"), "{log}");
    }
    // As Kubernetes starts them again.
    let replicas = ["r3"].map(|name| replica(&cluster, name));
    create("new").await;
    until("a grant", &replicas, async || is_granted("new").await).await;
    assert!(is_granted("kept").await.is_some() && is_granted("lost").await.is_none());
}
