//! What the operator costs where most objects aren't attached: the time of its first sync, its memory and its requests, on a
//! real API server.
//!
//! `cargo bench --bench attachments`, or `just bench-attachments`; `-- --objects 10000` for a smaller run. The exit code is 1
//! if its memory grows with what isn't attached.
#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a program for people, which may fail by panicking"
)]

use std::{
    fs,
    process::{Command, ExitCode},
    time::Duration,
};

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, ObjectMeta, PostParams},
    runtime::{conditions::is_crd_established, wait::await_condition},
};
use lessor::{
    api::{Lease, LeaseSpec, crd},
    operator::run::AGENT,
};
use lessor_cluster::{Cluster, Process};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, sleep},
};

/// How many ConfigMaps are attached, in both rounds.
const ATTACHED: usize = 1000;
/// How many leases they are attached to.
const LEASES: usize = 100;
/// How many aren't, in the first round.
const FEW: usize = 1000;
/// How much the rounds may be apart, in MB.
const APART: f64 = 10.0;
/// How long the operator is watched at rest.
const REST: Duration = Duration::from_secs(15);
const NAMESPACE: &str = "bench";

/// What one round showed.
struct Round {
    unattached: usize,
    sync: Duration,
    /// In MB, when everything has been seen.
    resident: f64,
    /// In MB, the highest ever.
    peak: f64,
    requests_to_sync: usize,
    requests_at_rest: usize,
}

#[tokio::main]
async fn main() -> ExitCode {
    let many = objects();
    let cluster = Cluster::start().await.expect("a cluster");
    let client = cluster.client().expect("a client");
    prepare(&client).await;

    println!("making {} ConfigMaps, {ATTACHED} of them attached to {LEASES} leases", ATTACHED + FEW);
    make(&client, 0..ATTACHED, true).await;
    make(&client, 0..FEW, false).await;
    grant(&cluster).await;
    let few = measure(&cluster, FEW).await;

    println!("making {} more ConfigMaps", many - FEW);
    make(&client, FEW..many, false).await;
    let many = measure(&cluster, many).await;

    println!();
    println!(
        "| ConfigMaps, {ATTACHED} attached and … | sync | resident | peak | requests until synced | in {REST:?} at rest |"
    );
    println!("|---|---|---|---|---|---|");
    for round in [&few, &many] {
        println!(
            "| {} unattached | {:.2} s | {:.1} MB | {:.1} MB | {} | {} |",
            round.unattached,
            round.sync.as_secs_f64(),
            round.resident,
            round.peak,
            round.requests_to_sync,
            round.requests_at_rest,
        );
    }
    let apart = (many.resident - few.resident).abs();
    println!("\nresident memory is {apart:.1} MB apart");
    if apart < APART && many.requests_at_rest == 0 {
        return ExitCode::SUCCESS;
    }
    println!("FAILED: less than {APART} MB and no requests at rest are promised");
    ExitCode::FAILURE
}

/// How many ConfigMaps aren't attached in the second round.
fn objects() -> usize {
    let mut arguments = std::env::args().skip_while(|argument| argument != "--objects").skip(1);
    let objects = arguments.next().map(|number| number.parse().expect("--objects takes a number"));
    objects.unwrap_or(100_000).max(FEW)
}

async fn prepare(client: &Client) {
    let crds = Api::all(client.clone());
    for definition in crd::all() {
        crds.create(&PostParams::default(), &definition).await.expect("a definition");
        let name = definition.name_any();
        await_condition(crds.clone(), &name, is_crd_established()).await.expect("a kind");
    }
    let metadata = ObjectMeta { name: Some(NAMESPACE.to_owned()), ..ObjectMeta::default() };
    let namespace = Namespace { metadata, ..Namespace::default() };
    Api::all(client.clone()).create(&PostParams::default(), &namespace).await.expect("a namespace");
    let leases: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
    for number in 0..LEASES {
        let spec = LeaseSpec { ttl_seconds: 24 * 60 * 60, ..LeaseSpec::default() };
        let lease = Lease::new(&format!("lease-{number}"), spec);
        leases.create(&PostParams::default(), &lease).await.expect("a lease");
    }
}

/// Makes ConfigMaps of about 1 KB with these numbers.
async fn make(client: &Client, numbers: std::ops::Range<usize>, attached: bool) {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let text = "x".repeat(1000);
    stream::iter(numbers)
        .for_each_concurrent(48, |number| {
            let annotations = attached
                .then(|| [("lessor.dev/lease".to_owned(), format!("lease-{}", number % LEASES))].into());
            let name = format!("{}-{number}", if attached { "attached" } else { "other" });
            let metadata = ObjectMeta { name: Some(name), annotations, ..ObjectMeta::default() };
            let data = Some([("text".to_owned(), text.clone())].into());
            let map = ConfigMap { metadata, data, ..ConfigMap::default() };
            let maps = maps.clone();
            async move {
                maps.create(&PostParams::default(), &map).await.expect("a config map");
            }
        })
        .await;
}

/// Runs an operator until all leases are granted and say what is attached to them, so that later ones find nothing to do.
async fn grant(cluster: &Cluster) {
    let (operator, _) = start(cluster).await;
    let leases: Api<Lease> = Api::namespaced(cluster.client().expect("a client"), NAMESPACE);
    let counted = |lease: &Lease| {
        let attached = lease.status.as_ref().and_then(|status| status.attached);
        attached.is_some_and(|attached| attached.objects == (ATTACHED / LEASES) as i64)
    };
    while !leases.list(&ListParams::default()).await.expect("leases").iter().all(counted) {
        sleep(Duration::from_millis(200)).await;
    }
    operator.stop().await.expect("it stops");
}

async fn measure(cluster: &Cluster, unattached: usize) -> Round {
    let audit = cluster.audit().expect("an audit log");
    let mark = audit.mark().expect("a mark");
    let (operator, sync) = start(cluster).await;
    let requests_to_sync = audit.since(mark).expect("entries").agent(AGENT).requests();
    // To claim the lead, and say so.
    sleep(Duration::from_secs(5)).await;
    let resident = memory(&operator, "VmRSS:");
    let mark = audit.mark().expect("a mark");
    sleep(REST).await;
    let at_rest = audit.since(mark).expect("entries").agent(AGENT);
    let requests_at_rest = at_rest.filter(|entry| entry.verb != "watch").requests();
    let peak = memory(&operator, "VmHWM:");
    operator.stop().await.expect("it stops");
    Round { unattached, sync, resident, peak, requests_to_sync, requests_at_rest }
}

/// Starts an operator, and waits until it has seen everything.
async fn start(cluster: &Cluster) -> (Process, Duration) {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let address = listener.local_addr().expect("its address").to_string();
    drop(listener);
    let mut command = Command::new(env!("CARGO_BIN_EXE_lessor"));
    command.args(["run", "--admin-address", &address, "--kubeconfig"]).arg(cluster.kubeconfig_path());
    let start = Instant::now();
    let operator = cluster.spawn(&command, "operator").expect("an operator");
    while !is_ready(&address).await {
        assert_eq!(operator.exit_status(), None, "it ended: {}", operator.log());
        sleep(Duration::from_millis(10)).await;
    }
    (operator, start.elapsed())
}

async fn is_ready(address: &str) -> bool {
    let asking = async {
        let mut stream = TcpStream::connect(address).await?;
        let request = format!("GET /readyz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    asking.await.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}

/// A figure of the operator's memory, in MB.
fn memory(operator: &Process, name: &str) -> f64 {
    let status = fs::read_to_string(format!("/proc/{}/status", operator.pid())).expect("its status");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("the figure");
    let kilobytes: f64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kilobytes / 1024.0
}
