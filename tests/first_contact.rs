//! How the operator reports what keeps it from the API server, and what `lessor detach-finalizers` does beside it.
#![allow(clippy::expect_used, reason = "a test may fail by panicking")]

use std::{fs, path::PathBuf, process::Command, time::Duration};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams, PostParams},
    config::{AuthInfo, Kubeconfig},
};
use lessor_api::{Lease, crd, lease::FINALIZER};
use lessor_cluster::{Cluster, Process};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::{Instant, sleep},
};

/// How long a test waits for what must come soon.
const PATIENCE: Duration = Duration::from_secs(60);

/// A replica and its admin port.
struct Replica {
    process: Process,
    port: u16,
}

impl Replica {
    /// Starts a replica on a copy of the cluster's kubeconfig.
    async fn start(cluster: &Cluster, name: &str, change: impl FnOnce(&mut Kubeconfig)) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        drop(listener);
        let mut command = Command::new(env!("CARGO_BIN_EXE_lessor"));
        command.args(["run", "--min-ttl", "1s", "--lease-duration", "2s", "--admin-address"]);
        command.arg(format!("127.0.0.1:{port}")).arg("--kubeconfig").arg(kubeconfig(cluster, name, change));
        command.env("RUST_LOG", "info");
        Self { process: cluster.spawn(&command, name).expect("a replica"), port }
    }

    async fn get(&self, path: &str) -> String {
        let exchange = async {
            let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
            stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await?;
            let mut response = String::new();
            stream.read_to_string(&mut response).await?;
            std::io::Result::Ok(response)
        };
        exchange.await.unwrap_or_default()
    }

    /// Waits until this page contains this text. Returns the page.
    async fn wait_for(&self, path: &str, text: &str) -> String {
        let start = Instant::now();
        loop {
            let page = self.get(path).await;
            if page.contains(text) {
                return page;
            }
            assert!(start.elapsed() < PATIENCE, "{path} is {page}, and the log {}", self.process.log());
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// How many lines of the log contain this text.
    fn lines_with(&self, text: &str) -> usize {
        self.process.log().lines().filter(|line| line.contains(text)).count()
    }
}

/// A copy of the cluster's kubeconfig.
fn kubeconfig(cluster: &Cluster, name: &str, change: impl FnOnce(&mut Kubeconfig)) -> PathBuf {
    let mut kubeconfig = Kubeconfig::read_from(cluster.kubeconfig_path()).expect("a kubeconfig");
    change(&mut kubeconfig);
    let path = cluster.directory().join(format!("{name}.kubeconfig"));
    fs::write(&path, serde_saphyr::to_string(&kubeconfig).expect("YAML")).expect("a file");
    path
}

async fn install_crds(cluster: &Cluster) {
    let crds: Api<CustomResourceDefinition> = Api::all(cluster.client().expect("a client"));
    for crd in crd::all() {
        let params = PatchParams::apply("first-contact").force();
        crds.patch(&crd.name_any(), &params, &Patch::Apply(&crd)).await.expect("a crd");
    }
}

#[tokio::test]
async fn refused_credentials_are_named_and_are_no_missing_right() {
    let cluster = Cluster::shared().await.expect("a cluster");
    let replica = Replica::start(cluster, "void-token", |kubeconfig| {
        for user in &mut kubeconfig.auth_infos {
            user.auth_info = Some(AuthInfo { token: Some("void".to_owned().into()), ..AuthInfo::default() });
        }
    })
    .await;
    let page = replica.wait_for("/readyz", "(for ").await;
    assert!(page.starts_with("HTTP/1.0 503"), "{page}");
    assert!(page.contains("API server refuses the credentials: status 401 Unauthorized"), "{page}");
    assert!(replica.get("/healthz").await.starts_with("HTTP/1.0 200"), "it restarts only after minutes");
    sleep(Duration::from_secs(5)).await;
    assert_eq!(
        replica.lines_with("API server refuses the credentials failures="),
        1,
        "{}",
        replica.process.log()
    );
    assert_eq!(replica.lines_with("ERROR"), 0, "{}", replica.process.log());
    assert!(replica.process.log().lines().count() < 12, "{}", replica.process.log());
}

#[tokio::test]
async fn an_untrusted_certificate_is_named_once_with_its_cause() {
    let cluster = Cluster::shared().await.expect("a cluster");
    let replica = Replica::start(cluster, "other-ca", |kubeconfig| {
        for cluster in kubeconfig.clusters.iter_mut().filter_map(|cluster| cluster.cluster.as_mut()) {
            cluster.certificate_authority = None;
            cluster.certificate_authority_data = None;
        }
    })
    .await;
    let page = replica.wait_for("/readyz", "(for ").await;
    assert!(page.contains("TLS connection to the API server fails"), "{page}");
    assert!(page.contains("invalid peer certificate: UnknownIssuer"), "{page}");
    sleep(Duration::from_secs(5)).await;
    assert_eq!(replica.lines_with("certificate"), 1, "{}", replica.process.log());
    assert_eq!(replica.lines_with("ERROR"), 0, "{}", replica.process.log());
}

#[tokio::test]
async fn finalizers_are_not_detached_beside_a_running_operator() {
    let cluster = Cluster::start().await.expect("a cluster");
    install_crds(&cluster).await;
    let replica = Replica::start(&cluster, "running", |_| {}).await;
    replica.wait_for("/readyz", "ok: primary").await;
    let leases: Api<Lease> = Api::namespaced(cluster.client().expect("a client"), "default");
    let with_finalizer = async || {
        let all = leases.list(&Default::default()).await.expect("leases").items;
        all.iter().filter(|lease| lease.finalizers().iter().any(|name| name == FINALIZER)).count()
    };
    let wait = async |count: usize| {
        let start = Instant::now();
        while with_finalizer().await != count {
            assert!(start.elapsed() < PATIENCE, "{}", replica.process.log());
            sleep(Duration::from_millis(100)).await;
        }
    };
    for n in 0..20 {
        let lease = json!({
            "apiVersion": "lessor.dev/v1alpha1", "kind": "Lease", "metadata": {"name": format!("lease-{n}")},
            "spec": {"ttlSeconds": 600},
        });
        let lease = serde_json::from_value(lease).expect("a lease");
        leases.create(&PostParams::default(), &lease).await.expect("a lease");
    }
    wait(20).await;
    let detach = |arguments: &[&str]| {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_lessor"));
        command.args(["detach-finalizers", "--kubeconfig"]).arg(cluster.kubeconfig_path()).args(arguments);
        async move { command.output().await.expect("a program that starts") }
    };
    let refused = detach(&[]).await;
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && error.contains("runs: it added the finalizer again"), "{error}");
    wait(20).await;

    replica.process.kill().await.expect("an end");
    let detached = detach(&[]).await;
    assert!(detached.status.success(), "{}", String::from_utf8_lossy(&detached.stderr));
    let printed = String::from_utf8_lossy(&detached.stdout).into_owned();
    assert!(printed.contains("from 20 leases"), "{printed}");
    assert_eq!(with_finalizer().await, 0);
}

#[tokio::test]
async fn an_api_server_without_streaming_lists_is_named_by_each_program() {
    // As on Kubernetes 1.33.
    let cluster = Cluster::builder().api_server_args(["--feature-gates=WatchList=false"]).start().await;
    let cluster = cluster.expect("a cluster");
    install_crds(&cluster).await;
    let replica = Replica::start(&cluster, "replica", |_| {}).await;
    replica.wait_for("/readyz", "WatchList").await;

    let run = async |program: &std::path::Path, args: &[&str]| {
        let mut command = tokio::process::Command::new(program);
        command.args(args).env("KUBECONFIG", cluster.kubeconfig_path()).kill_on_drop(true);
        let output = command.output().await.expect("it runs");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        (output.status.code(), text(output.stdout) + &text(output.stderr))
    };
    let start = Instant::now();
    let (code, text) = run(env!("CARGO_BIN_EXE_lessor").as_ref(), &["check"]).await;
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("no streaming lists") && text.contains("Kubernetes 1.34"), "{text}");
    assert!(start.elapsed() < Duration::from_secs(20), "it doesn't wait for a grant");
    let (code, text) = run(lessor_kit::program::plugin(), &["status"]).await;
    assert_eq!(code, Some(7), "{text}");
    assert!(text.contains("no streaming lists") && text.contains("Kubernetes 1.34"), "{text}");
}
