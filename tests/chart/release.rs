//! A release of the chart on a cluster, and what runs for it.

use std::{
    ffi::OsStr,
    ops::Deref,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{ConfigMap, Container, Namespace, PodSpec, ServiceAccount},
    },
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
};
use lessor_api::{Lease, lease::FINALIZER, time};
use lessor_cluster::{
    Cluster, Process, Tool,
    audit::{Entries, Mark},
};
use lessor_kit::world::cluster;
use serde_json::{Map, Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::{Mutex, MutexGuard, OnceCell},
    time::Instant,
};

/// How long a test waits for what must come soon, on a machine that may be slow.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// The chart.
pub(crate) const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/charts/lessor");

/// Helm, on this cluster or (for what needs none) on its own.
pub(crate) async fn helm(cluster: Option<&Cluster>, args: &[impl AsRef<OsStr>]) -> Output {
    let mut command = Command::new(Tool::Helm.path().await.expect("helm"));
    command.args(args);
    if let Some(cluster) = cluster {
        command.env("KUBECONFIG", cluster.kubeconfig_path());
    }
    run(command).await
}

/// kubectl, on this cluster.
pub(crate) async fn kubectl(cluster: &Cluster, args: &[&str]) -> Output {
    let mut command = Command::new(Tool::Kubectl.path().await.expect("kubectl"));
    command.args(args).env("KUBECONFIG", cluster.kubeconfig_path());
    run(command).await
}

async fn run(mut command: Command) -> Output {
    let running = tokio::task::spawn_blocking(move || command.output());
    running.await.expect("a task").expect("a program that starts")
}

/// What a program printed, which must have succeeded.
pub(crate) fn success(output: Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}: {out}{err}", output.status);
    out.into_owned()
}

/// What a program complained, which must have failed.
pub(crate) fn failure(output: Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(!output.status.success(), "it succeeded: {out}");
    format!("{out}{err}")
}

/// Settings that let a test be quick.
pub(crate) fn quick(lessor: &str) -> Value {
    json!({"lessor": lessor, "minTtl": "1s", "startGrace": "1s", "linger": "500ms", "pendingWarning": "1s"})
}

/// The cluster of releases for all namespaces: they come one after the other, and each finds it as if it were new.
pub(crate) struct Alone {
    cluster: &'static Cluster,
    _turn: MutexGuard<'static, ()>,
}

impl Deref for Alone {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        self.cluster
    }
}

impl Alone {
    /// Waits for its turn, and removes what is left of the release before.
    pub(crate) async fn new() -> Self {
        static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();
        static TURN: Mutex<()> = Mutex::const_new(());
        let _turn = TURN.lock().await;
        match CLUSTER.get() {
            Some(cluster) => clean(cluster).await,
            None => drop(CLUSTER.set(Cluster::start().await.expect("a cluster"))),
        }
        Self { cluster: CLUSTER.get().expect("a cluster"), _turn }
    }
}

async fn clean(cluster: &Cluster) {
    let uninstall = ["uninstall", "lessor", "--namespace=lessor-system", "--no-hooks", "--ignore-not-found"];
    success(helm(Some(cluster), &uninstall).await);
    let crds = ["get", "crd", "leases.lessor.dev", "--ignore-not-found", "--output=name"];
    if !success(kubectl(cluster, &crds).await).is_empty() {
        let mut detach = Command::new(env!("CARGO_BIN_EXE_lessor"));
        detach.args(["detach-finalizers", "--force", "--kubeconfig"]).arg(cluster.kubeconfig_path());
        success(run(detach).await);
    }
    let crds = ["delete", "crd", "leases.lessor.dev", "lessors.lessor.dev", "--ignore-not-found"];
    success(kubectl(cluster, &crds).await);
    // What tests made of the chart's hooks.
    let kinds = "serviceaccount,role,rolebinding,clusterrole,clusterrolebinding,job";
    let hooks = ["delete", kinds, "--all-namespaces", "--selector=app.kubernetes.io/name=lessor"];
    success(kubectl(cluster, &hooks).await);
}

/// A release.
pub(crate) struct Release<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) client: Client,
    /// Its name.
    pub(crate) name: String,
    /// Where the operator lives.
    pub(crate) namespace: String,
    /// Where leases are: a namespace that it serves.
    pub(crate) leases_in: String,
    values: PathBuf,
    installed: Mark,
}

impl<'a> Release<'a> {
    /// Installs a release that serves two namespaces of its own, on the cluster that worlds share.
    pub(crate) async fn in_namespaces(name: &str) -> Release<'static> {
        let cluster = cluster().await;
        let (first, second) = (unique(name), unique(name));
        for namespace in [&first, &second] {
            make_namespace(cluster, namespace).await;
        }
        let values = json!({
            "watchNamespaces": [first, second], "settings": quick(&first), "crds": {"enabled": false},
            // Tests attach what makes no sense, to see what the operator says of it.
            "admission": {"attachments": false},
        });
        Release::install(cluster, &unique("release"), &first, values).await
    }

    /// Installs a release.
    pub(crate) async fn install(
        cluster: &'a Cluster,
        name: &str,
        leases_in: &str,
        values: Value,
    ) -> Release<'a> {
        let release = Release::prepare(cluster, name, leases_in, values).await;
        success(release.helm("install", &[CHART, "--create-namespace"]).await);
        release
    }

    /// Prepares a release, and doesn't install it.
    pub(crate) async fn prepare(
        cluster: &'a Cluster,
        name: &str,
        leases_in: &str,
        values: Value,
    ) -> Release<'a> {
        let namespace = format!("{name}-system");
        make_namespace(cluster, leases_in).await;
        let release = Self {
            cluster,
            client: cluster.client().expect("a client"),
            name: name.to_owned(),
            values: cluster.directory().join(format!("{name}.values.json")),
            leases_in: leases_in.to_owned(),
            namespace,
            installed: cluster.audit().expect("an audit log").mark().expect("a mark"),
        };
        release.set_values(values);
        release
    }

    pub(crate) fn set_values(&self, values: Value) {
        std::fs::write(&self.values, values.to_string()).expect("a file");
    }

    /// A command of helm about this release, with its values.
    pub(crate) async fn helm(&self, verb: &str, args: &[&str]) -> Output {
        let values = self.values.to_str().expect("a path");
        let mut all = vec![verb, &self.name, "--namespace", &self.namespace];
        all.extend(args);
        if ["install", "upgrade", "template"].contains(&verb) {
            all.extend(["--values", values]);
        }
        helm(Some(self.cluster), &all).await
    }

    /// The hooks of one kind, `test` for example.
    pub(crate) async fn hooks(&self, kind: &str) -> Vec<Value> {
        let args = ["get", "hooks", &self.name, "--namespace", &self.namespace];
        let hooks = documents(&success(helm(Some(self.cluster), &args).await));
        hooks.into_iter().filter(|hook| hook["metadata"]["annotations"]["helm.sh/hook"] == kind).collect()
    }

    /// Applies objects as an administrator.
    pub(crate) async fn apply(&self, objects: &[Value]) {
        let path = self.cluster.directory().join(format!("{}.json", unique("objects")));
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        std::fs::write(&path, list.to_string()).expect("a file");
        success(kubectl(self.cluster, &["apply", "--filename", path.to_str().expect("a path")]).await);
    }

    /// The Pods' template of the Deployment, as the server has it.
    pub(crate) async fn pod(&self) -> PodSpec {
        let deployments: Api<Deployment> = Api::namespaced(self.client.clone(), &self.namespace);
        let list = deployments.list(&Default::default()).await.expect("deployments");
        let deployment = list.items.into_iter().next().expect("a deployment");
        deployment.spec.expect("a spec").template.spec.expect("a Pod's spec")
    }

    /// Runs what a Pod's first container would, as its ServiceAccount, which must be there.
    pub(crate) async fn start(&self, pod: &PodSpec, name: &str) -> Process {
        let container = pod.containers.first().expect("a container");
        let account = pod.service_account_name.as_deref().expect("an account");
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &self.namespace);
        accounts.get(account).await.expect("the chart's account");
        let kubeconfig = self.cluster.service_account_kubeconfig(&self.namespace, account).await;
        let mut command = Command::new(env!("CARGO_BIN_EXE_lessor"));
        command.args(arguments(container)).arg("--kubeconfig").arg(kubeconfig.expect("a kubeconfig"));
        for variable in container.env.iter().flatten() {
            command.env(&variable.name, variable.value.as_deref().unwrap_or_default());
        }
        self.cluster.spawn(&command, &format!("{name}-{}", self.name)).expect("a process")
    }

    /// Runs one replica of the operator.
    pub(crate) async fn operator(&self) -> Process {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("operator-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        self.start(&self.pod().await, &name).await
    }

    /// Runs one replica and waits until it is primary.
    pub(crate) async fn primary(&self) -> Process {
        let operator = self.operator().await;
        until("a replica is primary", async || {
            assert_eq!(operator.exit_status(), None, "it ended: {}", operator.log());
            operator.log().contains("is primary under term").then_some(())
        })
        .await;
        operator
    }

    /// The name by which the API server knows the operator.
    pub(crate) async fn user(&self) -> String {
        let account = self.pod().await.service_account_name.expect("an account");
        format!("system:serviceaccount:{}:{account}", self.namespace)
    }

    /// What the operator asked of the API server since the release was installed.
    pub(crate) async fn audit(&self) -> Entries {
        let user = self.user().await;
        self.cluster.audit().expect("an audit log").since(self.installed).expect("its entries").by(&user)
    }

    pub(crate) fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), &self.leases_in)
    }

    pub(crate) fn maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), &self.leases_in)
    }

    /// Makes a lease.
    pub(crate) async fn lease(&self, name: &str, spec: Value) -> Lease {
        let lease = json!({
            "apiVersion": "lessor.dev/v1alpha1", "kind": "Lease", "metadata": {"name": name}, "spec": spec,
        });
        let lease = serde_json::from_value(lease).expect("a lease");
        self.leases().create(&PostParams::default(), &lease).await.expect("a lease")
    }

    /// Makes a lease and waits for its grant.
    pub(crate) async fn granted(&self, name: &str, spec: Value) -> Lease {
        self.lease(name, spec).await;
        until(&format!("lease {name} is granted"), async || {
            self.leases().get(name).await.ok().filter(Lease::is_granted)
        })
        .await
    }

    /// Makes a lease that has our finalizer though no operator runs.
    pub(crate) async fn with_finalizer(&self, name: &str) {
        self.lease(name, json!({"ttlSeconds": 600})).await;
        self.patch(name, json!({"metadata": {"finalizers": [FINALIZER]}})).await.expect("a finalizer");
    }

    /// Changes a lease by a merge patch.
    pub(crate) async fn patch(&self, name: &str, patch: Value) -> kube::Result<Lease> {
        self.leases().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await
    }

    /// Renews a lease.
    pub(crate) async fn renew(&self, name: &str) {
        let patch = json!({"spec": {"renewTime": time::to_text(Timestamp::now())}});
        self.patch(name, patch).await.expect("a renewal");
    }

    /// Makes a ConfigMap.
    pub(crate) async fn map(&self, name: &str, annotations: Value, keys: &[&str]) {
        let data: Map<String, Value> = keys.iter().map(|key| ((*key).to_owned(), json!(SECRET))).collect();
        let map = json!({"metadata": {"name": name, "annotations": annotations}, "data": data});
        let map = serde_json::from_value(map).expect("a config map");
        self.maps().create(&PostParams::default(), &map).await.expect("a config map");
    }

    pub(crate) async fn wait_gone(&self, name: &str) {
        let what = format!("lease {name} is gone");
        until(&what, async || self.leases().get_opt(name).await.expect("an answer").is_none().then_some(()))
            .await;
    }

    pub(crate) async fn wait_map_gone(&self, name: &str) {
        let what = format!("config map {name} is gone");
        until(&what, async || self.maps().get_opt(name).await.expect("an answer").is_none().then_some(()))
            .await;
    }
}

/// What is in every key of every ConfigMap that a test makes: nothing that the operator may ever tell.
pub(crate) const SECRET: &str = "never-to-be-told";

/// A container's arguments, but on a free port of this machine alone, and with lines for people.
fn arguments(container: &Container) -> Vec<String> {
    let args = container.args.iter().flatten();
    args.map(|arg| match arg.split_once('=') {
        Some(("--admin-address", _)) => "--admin-address=127.0.0.1:0".to_owned(),
        _ => arg.clone(),
    })
    .collect()
}

/// A name that no other test has.
pub(crate) fn unique(name: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{name}-{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Makes a namespace if it isn't there.
pub(crate) async fn make_namespace(cluster: &Cluster, name: &str) {
    let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    let namespace = Namespace { metadata, ..Namespace::default() };
    let namespaces = Api::all(cluster.client().expect("a client"));
    match namespaces.create(&PostParams::default(), &namespace).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => {}
        made => drop(made.expect("a namespace")),
    }
}

/// The answer of a replica's admin port to a GET: its status and body.
pub(crate) async fn ask(operator: &Process, path: &str) -> (u16, String) {
    let port = until("the admin port is open", async || {
        let log = operator.log();
        let line = log.lines().find(|line| line.contains("admin port"))?;
        let port = line.split_once("127.0.0.1:")?.1;
        port[..port.find(|c: char| !c.is_ascii_digit()).unwrap_or(port.len())].parse::<u16>().ok()
    })
    .await;
    let mut connection = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.expect("a connection");
    let request = format!("GET {path} HTTP/1.0\r\n\r\n");
    connection.write_all(request.as_bytes()).await.expect("a request");
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.expect("an answer");
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, answer.split_once("\r\n\r\n").expect("a body").1.to_owned())
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
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The documents of a YAML stream that aren't empty.
pub(crate) fn documents(yaml: &str) -> Vec<Value> {
    let documents = yaml.split("\n---").map(|text| {
        serde_saphyr::from_str::<Value>(text.trim_start_matches("---"))
            .unwrap_or_else(|error| panic!("{error}: {text}"))
    });
    documents.filter(|document| !document.is_null()).collect()
}

/// Renders the chart without a cluster.
pub(crate) async fn render(args: &[&str]) -> String {
    let mut all = vec!["template", "lessor", CHART, "--namespace", "lessor-system"];
    all.extend(args);
    success(helm(None, &all).await)
}

/// A copy of the chart, to be changed.
pub(crate) fn copy_of_chart(to: &Path) {
    let status = Command::new("cp").arg("-R").arg(CHART).arg(to).status().expect("cp");
    assert!(status.success());
}
