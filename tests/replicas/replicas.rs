//! Several replicas that compete in one world, and what the audit log says of them.

use std::{
    fmt::Display,
    ops::Deref,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::Ordering,
    time::Duration,
};

use k8s_openapi::{
    api::rbac::v1::{ClusterRoleBinding, RoleRef, Subject},
    jiff::Timestamp,
};
use kube::{Api, api::PostParams};
use lessor_api::{Lessor, LessorStatus, lease};
use lessor_checker::{Checker, Figures, Request};
use lessor_cluster::{
    Cluster, Process,
    audit::{Entries, Level},
    proxy::Proxy,
};
use serde_json::{Value, json};
use tokio::{sync::OnceCell, time::Instant};

use crate::world::{World, install_crds};

pub(crate) use crate::world::PATIENCE;

/// The replicas' `--lease-duration`.
pub(crate) const LEASE_DURATION: Duration = Duration::from_secs(5);
/// What a machine may add to any time that is measured here, at the least: see [`Replicas::noise`].
const NOISE: Duration = Duration::from_secs(3);

/// The replicas of one world, with names `r0`, `r1`, and so on.
pub(crate) struct Replicas {
    pub(crate) world: World,
    pub(crate) all: Vec<Replica>,
}

/// One replica, a process with a user of its own.
pub(crate) struct Replica {
    pub(crate) process: Process,
    pub(crate) proxy: Option<Proxy>,
    pub(crate) user: String,
    kubeconfig: PathBuf,
    args: Vec<String>,
}

/// How replicas reach the API server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Direct,
    /// Through a proxy for each.
    Proxied,
}

impl Deref for Replicas {
    type Target = World;

    fn deref(&self) -> &World {
        &self.world
    }
}

impl Replicas {
    /// Three of them, ready, in a new world on the cluster that the tests share.
    pub(crate) async fn three(name: &str, way: Way) -> Self {
        Self::three_on(shared().await, name, way).await
    }

    /// Three of them, ready, in a new world on this cluster.
    pub(crate) async fn three_on(cluster: &'static Cluster, name: &str, way: Way) -> Self {
        let mut replicas = Self::none_on(cluster, name).await;
        for _ in 0..3 {
            replicas.add(way, &[]).await;
        }
        replicas.wait_ready().await;
        replicas
    }

    /// A new world without replicas.
    pub(crate) async fn none_on(cluster: &'static Cluster, name: &str) -> Self {
        let world = World::on(cluster, name).await;
        // Of outages and deaths, the test has to tell the checker.
        world.checks_itself.store(false, Ordering::Relaxed);
        Self { world, all: Vec::new() }
    }

    /// What the machine may have added to any time that was measured since the beginning.
    pub(crate) fn noise(&self) -> Duration {
        NOISE + self.world.slowness()
    }

    /// Starts one more replica, with further arguments.
    pub(crate) async fn add(&mut self, way: Way, args: &[&str]) {
        let name = format!("lessor-{}", self.all.len());
        let token = self.cluster.service_account_token(&self.namespace, &name).await.expect("a token");
        let proxy = match way {
            Way::Direct => None,
            Way::Proxied => Some(self.cluster.proxy().await.expect("a proxy")),
        };
        let file = format!("{}.{name}", self.namespace);
        let kubeconfig = match &proxy {
            Some(proxy) => proxy.kubeconfig_with_token(&file, &token).expect("a kubeconfig"),
            None => {
                self.cluster.service_account_kubeconfig(&self.namespace, &name).await.expect("a kubeconfig")
            }
        };
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        let process = self.spawn(self.all.len(), &kubeconfig, &args);
        let user = format!("system:serviceaccount:{}:{name}", self.namespace);
        self.all.push(Replica { process, proxy, user, kubeconfig, args });
    }

    fn spawn(&self, index: usize, kubeconfig: &Path, args: &[String]) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lessor"));
        command.args(["run", "--namespace", &self.namespace, "--lessor", &self.lessor]);
        command.arg("--identity").arg(format!("r{index}")).arg("--kubeconfig").arg(kubeconfig).args(args);
        // What an argument doesn't say, the environment does.
        let lease_duration = format!("{}s", LEASE_DURATION.as_secs());
        for (name, value) in [
            ("LESSOR_MIN_TTL", "1s"),
            ("LESSOR_START_GRACE", "1s"),
            ("LESSOR_LINGER", "500ms"),
            ("LESSOR_LEASE_DURATION", &lease_duration),
        ] {
            command.env(name, value);
        }
        command.env("RUST_LOG", std::env::var("RUST_LOG").unwrap_or_else(|_| "info,lessor=debug".to_owned()));
        self.world.spawn(&command, &format!("{}-r{index}", self.namespace))
    }

    /// Starts a replica that has ended anew: another process, with the same arguments.
    pub(crate) fn restart(&mut self, index: usize) {
        let replica = &self.all[index];
        let process = self.spawn(index, &replica.kubeconfig, &replica.args);
        self.all[index].process = process;
    }

    /// Waits until every replica that runs has seen everything once, and one is primary.
    pub(crate) async fn wait_ready(&self) {
        within(PATIENCE * 2, "all replicas are ready", async || {
            let mut running = self.all.iter().filter(|replica| replica.process.exit_status().is_none());
            running.all(|replica| replica.process.log().contains("ready:")).then_some(())
        })
        .await;
        self.primary_now().await;
    }

    /// The replica that is primary, as the `Lessor` has it.
    pub(crate) async fn primary_now(&self) -> usize {
        let index = within(PATIENCE, "a replica is primary", async || {
            let status = self.status().await?;
            index_of(&status.primary?)
        });
        index.await
    }

    /// The status of the `Lessor`.
    pub(crate) async fn status(&self) -> Option<LessorStatus> {
        Api::<Lessor>::all(self.client.clone()).get_opt(&self.lessor).await.ok()??.status
    }

    /// Waits until another replica than this is primary, and answers which.
    pub(crate) async fn wait_for_primary_beside(&self, index: usize) -> usize {
        within(PATIENCE, "another replica is primary", async || {
            let primary = index_of(&self.status().await?.primary?)?;
            (primary != index).then_some(primary)
        })
        .await
    }

    /// Makes a lease of this spec that can't be without the finalizer, and doesn't wait until it is granted.
    pub(crate) async fn lease_with_finalizer(&self, name: &str, spec: Value) {
        let lease = json!({
            "apiVersion": "lessor.dev/v1alpha1", "kind": "Lease", "spec": spec,
            "metadata": {"name": name, "finalizers": [lease::FINALIZER]},
        });
        let lease = serde_json::from_value(lease).expect("a lease");
        self.leases().create(&PostParams::default(), &lease).await.expect("a lease");
    }

    /// Whether a lease is there and has not ended.
    pub(crate) async fn lives(&self, name: &str) -> bool {
        let lease = self.leases().get_opt(name).await.expect("an answer");
        lease.is_some_and(|lease| !lease.is_ended() && lease.metadata.deletion_timestamp.is_none())
    }

    /// What the audit log has of this world.
    pub(crate) fn log(&self) -> Entries {
        let (namespace, lessor) = (self.namespace.clone(), self.lessor.clone());
        let entries = self.cluster.audit().expect("an audit log").with(&namespace).expect("its entries");
        entries.filter(move |entry| entry.namespace == namespace || entry.name == lessor)
    }

    /// What all replicas wrote, accepted or not.
    pub(crate) fn writes(&self) -> Entries {
        self.log().writes().filter(|entry| entry.user.starts_with(&self.users()))
    }

    fn users(&self) -> String {
        format!("system:serviceaccount:{}:lessor-", self.namespace)
    }

    /// A checker for this world.
    pub(crate) fn checker(&self) -> Checker {
        Checker::new(self.users())
    }

    /// Fails if a promise was broken; else says what was counted, and prints it after `figures`.
    pub(crate) fn check(&self, figures: impl Display) -> Figures {
        self.check_with(&self.checker(), figures)
    }

    /// The same with what the checker can't know by itself.
    pub(crate) fn check_with(&self, checker: &Checker, figures: impl Display) -> Figures {
        let requests: Vec<Request> = self.log().into_iter().filter_map(Request::from_audit).collect();
        let report = checker.check(&requests);
        let noise = self.noise();
        say(&self.namespace, format_args!("{figures}\n    {}; noise allowed: {noise:?}", report.figures));
        assert!(report.violations.is_empty(), "{}: {report}", self.namespace);
        report.figures
    }
}

impl Replica {
    /// The proxy that it goes through.
    pub(crate) fn proxy(&self) -> &Proxy {
        self.proxy.as_ref().expect("a replica behind a proxy")
    }
}

/// Prints figures of a test.
pub(crate) fn say(test: &str, figures: impl Display) {
    println!("{test}: {figures}");
}

/// How far each primary's term is above that of the first, in the order of the terms.
pub(crate) fn terms_since_the_first(figures: &Figures) -> Vec<i64> {
    let terms = figures.primaries.iter().map(|(term, _)| *term);
    let first = terms.clone().next().unwrap_or_default();
    terms.map(|term| term - first).collect()
}

/// The replica of this name.
pub(crate) fn index_of(identity: &str) -> Option<usize> {
    identity.strip_prefix('r')?.split('_').next()?.parse().ok()
}

/// Asks every few milliseconds until there is an answer.
///
/// # Panics
/// If there is none in time.
pub(crate) async fn within<T>(patience: Duration, what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(start.elapsed() < patience, "waited {patience:?} in vain until {what}");
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
}

/// This machine's wall clock, which is the API server's too.
pub(crate) fn wall() -> Timestamp {
    Timestamp::now()
}

/// How long before `to` was `from`.
pub(crate) fn between(from: Timestamp, to: Timestamp) -> Duration {
    to.duration_since(from).try_into().unwrap_or_default()
}

/// The cluster that tests share which leave the API server alone.
pub(crate) async fn shared() -> &'static Cluster {
    static SHARED: OnceCell<Cluster> = OnceCell::const_new();
    SHARED.get_or_init(cluster).await
}

async fn cluster() -> Cluster {
    let cluster = Cluster::builder().audit_level("", "configmaps", Level::RequestResponse);
    let cluster = cluster.start().await.expect("a cluster");
    install_crds(&cluster).await;
    // Each replica has a user of its own; what rights it needs, the chart's tests show.
    let binding = ClusterRoleBinding {
        metadata: kube::core::ObjectMeta { name: Some("replicas".to_owned()), ..Default::default() },
        role_ref: RoleRef {
            api_group: Some("rbac.authorization.k8s.io".to_owned()),
            kind: "ClusterRole".to_owned(),
            name: "cluster-admin".to_owned(),
        },
        subjects: Some(vec![Subject {
            api_group: Some("rbac.authorization.k8s.io".to_owned()),
            kind: "Group".to_owned(),
            name: "system:serviceaccounts".to_owned(),
            ..Default::default()
        }]),
    };
    let bindings = Api::all(cluster.client().expect("a client"));
    bindings.create(&PostParams::default(), &binding).await.expect("a binding");
    cluster
}

/// A cluster of a test's own, to be stopped and paused. It stops when this is dropped.
pub(crate) struct OwnCluster(pub(crate) &'static Cluster);

impl OwnCluster {
    pub(crate) async fn start() -> Self {
        // Whatever a test starts wants to be able to keep it for as long as the process runs.
        Self(Box::leak(Box::new(cluster().await)))
    }
}

impl Drop for OwnCluster {
    fn drop(&mut self) {
        for server in [self.0.api_server(), self.0.etcd()].into_iter().flatten() {
            // The only failure is that it's gone already.
            let _ = server.resume();
            let _ = server.process().terminate();
        }
    }
}
