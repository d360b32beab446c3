//! A place of its own for each test: a namespace, a `Lessor`, and replicas that serve only these, on the shared cluster.

use std::{
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use k8s_openapi::api::{
    core::v1::{ConfigMap, Namespace},
    events::v1::Event,
};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use lessor::api::{Lease, Lessor, crd, time};
use lessor_cluster::{Cluster, Process, audit::Entries};
use serde_json::{Value, json};
use tokio::{sync::OnceCell, time::Instant};

/// How long a test waits for what must come soon, on a machine that may be slow.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// How late an end may be before a test fails: machines are noisy, and the benchmark measures punctuality.
pub(crate) const TOLERANCE: Duration = Duration::from_secs(5);

/// A test's world.
pub(crate) struct World {
    pub(crate) cluster: &'static Cluster,
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) lessor: String,
}

impl World {
    /// A new world on the cluster that all tests share.
    pub(crate) async fn new(name: &str) -> Self {
        let cluster = Cluster::shared().await.expect("a cluster");
        static INSTALLED: OnceCell<()> = OnceCell::const_new();
        INSTALLED.get_or_init(|| install_crds(cluster)).await;
        Self::on(cluster, name).await
    }

    /// A new world on a cluster where the CRDs are installed.
    pub(crate) async fn on(cluster: &'static Cluster, name: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let namespace = format!("{name}-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let client = cluster.client().expect("a client");
        let object = Namespace {
            metadata: kube::core::ObjectMeta { name: Some(namespace.clone()), ..Default::default() },
            ..Default::default()
        };
        Api::all(client.clone()).create(&PostParams::default(), &object).await.expect("a namespace");
        Self { cluster, client, lessor: namespace.clone(), namespace }
    }

    pub(crate) fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) fn lessors(&self) -> Api<Lessor> {
        Api::all(self.client.clone())
    }

    pub(crate) fn config_maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Starts a replica that serves this world, with further arguments.
    pub(crate) fn operator(&self, args: &[&str]) -> Process {
        self.operator_with(self.cluster.kubeconfig_path(), args)
    }

    /// Starts a replica that reaches the API server by this kubeconfig.
    pub(crate) fn operator_with(&self, kubeconfig: &std::path::Path, args: &[&str]) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lessor"));
        command.args(["run", "--namespace", &self.namespace, "--lessor", &self.lessor]);
        command.args([
            "--min-ttl",
            "1s",
            "--start-grace",
            "1s",
            "--linger",
            "500ms",
            "--identity",
            &self.namespace,
        ]);
        command.args(args).arg("--kubeconfig").arg(kubeconfig);
        command.env("RUST_LOG", std::env::var("RUST_LOG").unwrap_or_else(|_| "info,lessor=debug".to_owned()));
        self.cluster.spawn(&command, &format!("operator-{}", self.namespace)).expect("an operator")
    }

    /// Starts a replica and waits until it is primary.
    pub(crate) async fn primary(&self, args: &[&str]) -> Process {
        let operator = self.operator(args);
        self.wait_for_primary().await;
        operator
    }

    /// Waits until some replica is primary.
    pub(crate) async fn wait_for_primary(&self) {
        until("a replica is primary", async || {
            let lessor = self.lessors().get_opt(&self.lessor).await.expect("an answer")?;
            lessor.status?.primary.filter(|name| !name.is_empty())
        })
        .await;
    }

    /// Makes a lease of this spec.
    pub(crate) async fn lease(&self, name: &str, spec: Value) -> Lease {
        let lease = json!({
            "apiVersion": "lessor.dev/v1alpha1", "kind": "Lease", "metadata": {"name": name}, "spec": spec,
        });
        let lease: Lease = serde_json::from_value(lease).expect("a lease");
        self.leases().create(&PostParams::default(), &lease).await.expect("a lease")
    }

    /// Makes a lease of this spec, and waits until it is granted.
    pub(crate) async fn granted(&self, name: &str, spec: Value) -> Lease {
        self.lease(name, spec).await;
        self.wait_granted(name).await
    }

    /// Waits until a lease is granted.
    pub(crate) async fn wait_granted(&self, name: &str) -> Lease {
        until(&format!("lease {name} is granted"), async || {
            self.leases().get(name).await.ok().filter(|lease| lease.is_granted())
        })
        .await
    }

    /// Renews a lease as a holder would.
    pub(crate) async fn renew(&self, name: &str) -> kube::Result<Lease> {
        let patch = json!({"spec": {"renewTime": time::to_text(k8s_openapi::jiff::Timestamp::now())}});
        self.leases().patch(name, &holder(), &Patch::Merge(patch)).await
    }

    /// Waits until a lease is gone, and answers when it was seen to be.
    pub(crate) async fn wait_gone(&self, name: &str) -> Instant {
        until(&format!("lease {name} is gone"), async || {
            self.leases().get_opt(name).await.expect("an answer").is_none().then(Instant::now)
        })
        .await
    }

    /// Waits until the end of a lease is committed.
    pub(crate) async fn wait_ended(&self, name: &str) -> Lease {
        until(&format!("lease {name} has ended"), async || {
            self.leases().get_opt(name).await.expect("an answer").filter(Lease::is_ended)
        })
        .await
    }

    /// Makes a ConfigMap with these annotations and keys.
    pub(crate) async fn config_map(&self, name: &str, annotations: Value, keys: &[&str]) -> ConfigMap {
        let data: serde_json::Map<String, Value> =
            keys.iter().map(|key| ((*key).to_owned(), json!("value"))).collect();
        let map = json!({"metadata": {"name": name, "annotations": annotations}, "data": data});
        let map: ConfigMap = serde_json::from_value(map).expect("a config map");
        self.config_maps().create(&PostParams::default(), &map).await.expect("a config map")
    }

    /// Changes a ConfigMap by a merge patch.
    pub(crate) async fn patch_map(&self, name: &str, patch: Value) -> ConfigMap {
        self.config_maps().patch(name, &holder(), &Patch::Merge(patch)).await.expect("a patched config map")
    }

    /// Deletes a ConfigMap.
    pub(crate) async fn delete_map(&self, name: &str) {
        self.config_maps().delete(name, &DeleteParams::default()).await.expect("a deletion");
    }

    /// Waits until a ConfigMap is gone.
    pub(crate) async fn wait_map_gone(&self, name: &str) -> Instant {
        until(&format!("config map {name} is gone"), async || {
            self.config_maps().get_opt(name).await.expect("an answer").is_none().then(Instant::now)
        })
        .await
    }

    /// The keys of a ConfigMap.
    pub(crate) async fn keys(&self, name: &str) -> Vec<String> {
        let map = self.config_maps().get(name).await.expect("a config map");
        map.data
            .into_iter()
            .flatten()
            .map(|(key, _)| key)
            .chain(map.binary_data.into_iter().flatten().map(|(key, _)| key))
            .collect()
    }

    /// Waits for an Event with this reason about the object of this name.
    pub(crate) async fn wait_event(&self, about: &str, reason: &str) -> Event {
        let events: Api<Event> = Api::namespaced(self.client.clone(), &self.namespace);
        until(&format!("an event {reason} about {about}"), async || {
            let events = events.list(&Default::default()).await.expect("events");
            events.items.into_iter().find(|event| {
                event.reason.as_deref() == Some(reason)
                    && event.regarding.as_ref().and_then(|object| object.name.as_deref()) == Some(about)
            })
        })
        .await
    }

    /// What the audit log has of this world's namespace and Lessor.
    pub(crate) fn audit(&self) -> Entries {
        let (namespace, lessor) = (self.namespace.clone(), self.lessor.clone());
        self.cluster
            .audit()
            .expect("an audit log")
            .entries()
            .expect("its entries")
            .filter(move |entry| entry.namespace == namespace || entry.name == lessor)
    }
}

/// How a holder writes.
pub(crate) fn holder() -> PatchParams {
    PatchParams { field_manager: Some("holder".to_owned()), ..PatchParams::default() }
}

/// Installs both CRDs and waits until the server serves them.
pub(crate) async fn install_crds(cluster: &Cluster) {
    let client = cluster.client().expect("a client");
    let crds = Api::all(client.clone());
    for crd in crd::all() {
        let name = crd.metadata.name.clone().expect("a name");
        crds.create(&PostParams::default(), &crd).await.expect("a crd");
        let established = kube::runtime::wait::await_condition(
            crds.clone(),
            &name,
            kube::runtime::conditions::is_crd_established(),
        );
        tokio::time::timeout(PATIENCE, established).await.expect("a crd in time").expect("a crd");
    }
}

/// Asks every few milliseconds until there is an answer.
///
/// # Panics
/// If there is none within [`PATIENCE`].
pub(crate) async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(start.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain until {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
