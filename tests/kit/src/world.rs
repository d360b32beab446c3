//! A place of its own for each test: a namespace, a `Lessor`, and replicas that serve only these, on the shared cluster. At
//! its end the [checker](lessor_checker) reads what happened in it.

use std::{
    fmt::Display,
    path::{Path, PathBuf},
    pin::Pin,
    process::Command,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use k8s_openapi::{
    api::{
        authorization::v1::SubjectAccessReview,
        core::v1::{ConfigMap, Namespace},
        events::v1::Event,
    },
    apimachinery::pkg::apis::meta::v1::Condition,
    jiff::{SignedDuration, Timestamp},
};
use kube::{
    Api, Client,
    api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams},
};
use lessor_api::{Lease, Lessor, crd, lease::Attached, time};
use lessor_checker::{Checker, Report, Request};
use lessor_cluster::{
    Builder, Cluster, Process,
    audit::{Entries, Entry, Level, Mark},
    proxy::Proxy,
};
use serde_json::{Value, json};
use tokio::{
    sync::{Mutex, MutexGuard, OnceCell},
    time::{Instant, timeout},
};
use uuid::Uuid;

use crate::{
    history::{self, Life, Spread},
    program,
};

/// The beginning of the operator's User-Agent.
pub const AGENT: &str = concat!("lessor/", env!("CARGO_PKG_VERSION"));
/// How long a test waits for what must come soon, on a machine that may be slow.
pub const PATIENCE: Duration = Duration::from_secs(45);
/// How late an end may be before a test fails: machines are noisy, and the benchmark measures punctuality.
pub const TOLERANCE: Duration = Duration::from_secs(5);
/// How many lines of a replica's log a failing test shows.
const SHOWN: usize = 40;
/// How long a test waits to see that something doesn't happen.
pub const MOMENT: Duration = Duration::from_millis(700);

/// How operators reach the API server.
#[derive(Debug)]
pub struct Access {
    /// The token of their account.
    pub token: String,
    /// A kubeconfig with this token.
    pub kubeconfig: PathBuf,
    /// Arguments that they need with it.
    pub args: &'static [&'static str],
}

/// Gives operators of a new world access.
pub type GiveAccess = for<'a> fn(&'a World) -> Pin<Box<dyn Future<Output = Access> + 'a>>;

tokio::task_local! {
    static GIVE_ACCESS: GiveAccess;
}

/// Runs a test whose operators have this access to the API server. Otherwise they are administrators.
pub async fn with_access<T>(give: GiveAccess, test: impl Future<Output = T>) -> T {
    GIVE_ACCESS.scope(give, test).await
}

/// A test's world.
#[expect(missing_debug_implementations, reason = "a client has none")]
pub struct World {
    /// The cluster, which other worlds share.
    pub cluster: &'static Cluster,
    /// A client with all rights.
    pub client: Client,
    /// The namespace of this world alone.
    pub namespace: String,
    /// The name of its `Lessor`.
    pub lessor: String,
    /// How its operators reach the API server, unless they do so as administrators.
    access: Option<Access>,
    /// What replicas were told to grant at most.
    max_ttl: OnceLock<Duration>,
    /// Whether the checker reads the audit log at the end. Not where the test gives it more to know, nor after a dry run,
    /// which grants without a finalizer.
    pub checks_itself: AtomicBool,
    /// How long the API server took for a simple question at worst, in milliseconds.
    slowest: Arc<AtomicU64>,
    /// The logs of its replicas, shown if the test fails.
    logs: parking_lot::Mutex<Vec<PathBuf>>,
}

/// The cluster that all tests share, with the CRDs installed.
pub async fn cluster() -> &'static Cluster {
    static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();
    let start = async || {
        let cluster = builder().controller_manager(true).start().await.expect("a cluster");
        install_crds(&cluster).await;
        cluster
    };
    CLUSTER.get_or_init(start).await
}

/// A cluster whose audit log shows what the checker asks for: what is attached, and what leases follow.
pub fn builder() -> Builder {
    let builder = Cluster::builder().audit_level("", "configmaps", Level::RequestResponse);
    let builder = builder.audit_level("coordination.k8s.io", "leases", Level::RequestResponse);
    builder.audit_level("", "pods", Level::RequestResponse)
}

/// For tests that keep the API server busy: one at a time, or the others find it too slow to be in time.
pub async fn heavy() -> MutexGuard<'static, ()> {
    static HEAVY: Mutex<()> = Mutex::const_new(());
    HEAVY.lock().await
}

impl World {
    /// A new world on the cluster that all tests share.
    pub async fn new(name: &str) -> Self {
        Self::on(cluster().await, name).await
    }

    /// A new world on a cluster.
    pub async fn on(cluster: &'static Cluster, name: &str) -> Self {
        let namespace = format!("{name}-{:04x}", Uuid::new_v4().as_fields().1);
        let client = cluster.client().expect("a client");
        let object = Namespace { metadata: named(&namespace), ..Namespace::default() };
        Api::all(client.clone()).create(&PostParams::default(), &object).await.expect("a namespace");
        let lessor = namespace.clone();
        let slowest = Arc::new(AtomicU64::new(0));
        tokio::spawn(ask_again_and_again(client.clone(), Arc::clone(&slowest)));
        let (max_ttl, checks_itself, logs) = (OnceLock::new(), true.into(), Default::default());
        let access = None;
        let mut world =
            Self { cluster, client, lessor, namespace, access, max_ttl, checks_itself, slowest, logs };
        if let Ok(give) = GIVE_ACCESS.try_get() {
            world.access = Some(give(&world).await);
        }
        world
    }

    /// What a machine that is busy with other work may add to a time that is measured: an end takes several requests, and this is
    /// four times what the simplest question took.
    pub fn slowness(&self) -> Duration {
        4 * Duration::from_millis(self.slowest.load(Ordering::Relaxed))
    }

    // --- The operator ------------------------------------------------------------------------------------------

    /// Starts a replica that serves this world, with further arguments.
    pub fn operator(&self, args: &[&str]) -> Process {
        match &self.access {
            Some(access) => self.operator_with(&access.kubeconfig, &[args, access.args].concat()),
            None => self.operator_with(self.cluster.kubeconfig_path(), args),
        }
    }

    /// Starts a replica that reaches the API server by this kubeconfig.
    pub fn operator_with(&self, kubeconfig: &Path, args: &[&str]) -> Process {
        let mut command = Command::new(program::operator());
        command.args(["run", "--namespace", &self.namespace, "--lessor", &self.lessor]);
        command.args(["--identity", &self.namespace]);
        // Arguments of a test count instead of these.
        for (name, value) in
            [("--min-ttl", "1s"), ("--start-grace", "1s"), ("--max-start-grace", "1s"), ("--linger", "500ms")]
        {
            if !args.contains(&name) {
                command.args([name, value]);
            }
        }
        self.checks_itself.fetch_and(!args.contains(&"--dry-run"), Ordering::Relaxed);
        if let Some([_, max]) = args.array_windows().find(|[name, _]| *name == "--max-ttl") {
            let max: SignedDuration = max.parse().expect("a duration");
            self.max_ttl.get_or_init(|| max.unsigned_abs());
        }
        command.args(args).arg("--kubeconfig").arg(kubeconfig);
        command.env("RUST_LOG", std::env::var("RUST_LOG").unwrap_or_else(|_| "info,lessor=debug".to_owned()));
        self.spawn(&command, &format!("operator-{}", self.namespace))
    }

    /// Starts a replica as this command says, whose log is shown if the test fails.
    pub fn spawn(&self, command: &Command, name: &str) -> Process {
        let process = self.cluster.spawn(command, name).expect("a replica");
        self.logs.lock().push(process.log_path().to_owned());
        process
    }

    /// Starts a replica and waits until it is primary.
    pub async fn primary(&self, args: &[&str]) -> Process {
        let operator = self.operator(args);
        self.wait_for_primary(&operator).await;
        operator
    }

    /// Starts a replica behind a proxy and waits until it is primary.
    pub async fn proxied(&self, args: &[&str]) -> (Proxy, Process) {
        let proxy = self.cluster.proxy().await.expect("a proxy");
        let operator = match &self.access {
            Some(access) => {
                let url = proxy.url();
                let port = url.rsplit(':').next().unwrap_or_default().trim_end_matches('/');
                let name = format!("{}-by-{port}", self.namespace);
                let kubeconfig = proxy.kubeconfig_with_token(&name, &access.token).expect("a kubeconfig");
                self.operator_with(&kubeconfig, &[args, access.args].concat())
            }
            None => self.operator_with(proxy.kubeconfig_path(), args),
        };
        self.wait_for_primary(&operator).await;
        (proxy, operator)
    }

    /// Waits until this replica says that it is primary.
    pub async fn wait_for_primary(&self, operator: &Process) {
        until(&format!("a replica of {} is primary", self.namespace), async || {
            assert_eq!(operator.exit_status(), None, "it ended: {}", operator.log());
            operator.log().contains("is primary under term").then_some(())
        })
        .await;
    }

    // --- Leases ------------------------------------------------------------------------------------------------

    /// Its leases.
    pub fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Its `Lessor`.
    pub async fn get_lessor(&self) -> Lessor {
        Api::all(self.client.clone()).get(&self.lessor).await.expect("a lessor")
    }

    /// Makes a lease of this spec.
    pub async fn lease(&self, name: &str, spec: Value) -> Lease {
        let lease = json!({
            "apiVersion": "lessor.dev/v1alpha1", "kind": "Lease", "metadata": {"name": name}, "spec": spec,
        });
        let lease: Lease = serde_json::from_value(lease).expect("a lease");
        self.leases().create(&PostParams::default(), &lease).await.expect("a lease")
    }

    /// Makes a lease of this spec, and waits until it is granted.
    pub async fn granted(&self, name: &str, spec: Value) -> Lease {
        self.lease(name, spec).await;
        self.wait_lease(name, "is granted", Lease::is_granted).await
    }

    /// Changes the spec of a lease by a merge patch, as its holder would.
    pub async fn change(&self, name: &str, spec: Value) -> kube::Result<Lease> {
        self.leases().patch(name, &holder(), &Patch::Merge(json!({"spec": spec}))).await
    }

    /// Renews a lease as its holder would.
    pub async fn renew(&self, name: &str) -> kube::Result<Lease> {
        self.change(name, json!({"renewTime": time::to_text(Timestamp::now())})).await
    }

    /// Deletes a lease, which revokes it.
    pub async fn revoke(&self, name: &str) {
        self.leases().delete(name, &DeleteParams::default()).await.expect("a deletion");
    }

    /// Waits until a lease is as it should be.
    pub async fn wait_lease(&self, name: &str, what: &str, is: impl Fn(&Lease) -> bool) -> Lease {
        until(&format!("lease {}/{name} {what}", self.namespace), async || {
            self.leases().get_opt(name).await.expect("an answer").filter(&is)
        })
        .await
    }

    /// Waits until the end of a lease is committed.
    pub async fn wait_ended(&self, name: &str) -> Lease {
        self.wait_lease(name, "has ended", Lease::is_ended).await
    }

    /// Waits until a lease is gone.
    pub async fn wait_gone(&self, name: &str) {
        until(&format!("lease {}/{name} is gone", self.namespace), async || {
            self.leases().get_opt(name).await.expect("an answer").is_none().then_some(())
        })
        .await;
    }

    /// Waits until all leases of this world are gone. However many there are, some have to go all the time: how late each
    /// ended, its [life](Self::lives) tells.
    pub async fn wait_all_gone(&self) {
        let (mut fewest, mut since) = (usize::MAX, Instant::now());
        loop {
            let left = self.leases().list_metadata(&Default::default()).await.expect("leases").items;
            let Some(first) = left.first().and_then(|lease| lease.metadata.name.as_deref()) else { return };
            if left.len() < fewest {
                (fewest, since) = (left.len(), Instant::now());
            }
            if since.elapsed() > PATIENCE {
                let first = self.leases().get(first).await;
                panic!("for {PATIENCE:?}, none of {fewest} leases has gone, such as {first:#?}");
            }
            // Listing very many keeps the API server from other work.
            let pause = if fewest > 50 { 1000 } else { 100 };
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
    }

    // --- ConfigMaps --------------------------------------------------------------------------------------------

    /// Its ConfigMaps.
    pub fn config_maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Makes a ConfigMap with these annotations and keys.
    pub async fn config_map(&self, name: &str, annotations: Value, keys: &[&str]) -> ConfigMap {
        let data: serde_json::Map<String, Value> =
            keys.iter().map(|key| ((*key).to_owned(), json!("value"))).collect();
        self.create_map(json!({"metadata": {"name": name, "annotations": annotations}, "data": data})).await
    }

    /// Makes a ConfigMap.
    pub async fn create_map(&self, map: Value) -> ConfigMap {
        let map: ConfigMap = serde_json::from_value(map).expect("a config map");
        self.config_maps().create(&PostParams::default(), &map).await.expect("a config map")
    }

    /// Makes a ConfigMap that nothing is attached to anything of. At the end it must be as it was: [`Bystander`].
    pub async fn bystander(&self) -> Bystander<'_> {
        let map = self.config_map("bystander", json!({"example.com/lease": "dying"}), &["a", "b"]).await;
        Bystander { world: self, map }
    }

    /// Reads a ConfigMap.
    pub async fn map(&self, name: &str) -> ConfigMap {
        self.config_maps().get(name).await.expect("a config map")
    }

    /// Changes a ConfigMap by a merge patch.
    pub async fn patch_map(&self, name: &str, patch: Value) -> ConfigMap {
        self.config_maps().patch(name, &holder(), &Patch::Merge(patch)).await.expect("a patched config map")
    }

    /// Deletes a ConfigMap.
    pub async fn delete_map(&self, name: &str) {
        self.config_maps().delete(name, &DeleteParams::default()).await.expect("a deletion");
    }

    /// Waits until a ConfigMap is gone.
    pub async fn wait_map_gone(&self, name: &str) {
        until(&format!("config map {}/{name} is gone", self.namespace), async || {
            self.config_maps().get_opt(name).await.expect("an answer").is_none().then_some(())
        })
        .await;
    }

    /// The keys of a ConfigMap, in order.
    pub async fn keys(&self, name: &str) -> Vec<String> {
        keys_of(&self.map(name).await)
    }

    /// Waits until these are the keys of a ConfigMap.
    pub async fn wait_keys(&self, name: &str, keys: &[&str]) -> ConfigMap {
        until(&format!("config map {}/{name} has the keys {keys:?}", self.namespace), async || {
            Some(self.map(name).await).filter(|map| keys_of(map) == keys)
        })
        .await
    }

    // --- Users -------------------------------------------------------------------------------------------------

    /// Waits until a user has these rights to a resource of this namespace: the API server's authorizer learns of roles a
    /// moment after they are written, and of each by itself.
    pub async fn wait_for_rights(&self, user: &str, group: &str, resource: &str, verbs: &[&str]) {
        let reviews: Api<SubjectAccessReview> = Api::all(self.client.clone());
        for verb in verbs {
            let review = json!({"spec": {"user": user, "resourceAttributes": {
                "namespace": self.namespace, "verb": verb, "group": group, "resource": resource,
            }}});
            let review = serde_json::from_value(review).expect("a review");
            until(&format!("{user} may {verb} {resource}"), async || {
                let answer = reviews.create(&PostParams::default(), &review).await.expect("an answer");
                answer.status.is_some_and(|status| status.allowed).then_some(())
            })
            .await;
        }
    }

    // --- Events and requests -----------------------------------------------------------------------------------

    /// Waits for an Event with this reason about the object of this name.
    pub async fn wait_event(&self, about: &str, reason: &str) -> Event {
        until(&format!("an event {reason} about {}/{about}", self.namespace), async || {
            self.events(about).await.into_iter().find(|event| event.reason.as_deref() == Some(reason))
        })
        .await
    }

    /// The Events about the object of this name.
    pub async fn events(&self, about: &str) -> Vec<Event> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), &self.namespace);
        let about =
            |event: &Event| event.regarding.as_ref().and_then(|object| object.name.as_deref()) == Some(about);
        let events = events.list(&Default::default()).await.expect("events");
        events.items.into_iter().filter(about).collect()
    }

    /// The present end of the audit log.
    pub fn mark(&self) -> Mark {
        self.cluster.audit().expect("an audit log").mark().expect("a mark")
    }

    /// What was asked of the API server since then about this world's namespace and Lessor.
    pub fn audit(&self, since: Mark) -> Entries {
        let audit = self.cluster.audit().expect("an audit log");
        self.own(audit.since(since).expect("its entries"))
    }

    /// What was asked from the beginning.
    fn whole_audit(&self) -> Entries {
        let audit = self.cluster.audit().expect("an audit log");
        self.own(audit.with(&self.namespace).expect("its entries"))
    }

    fn own(&self, entries: Entries) -> Entries {
        entries.filter(|entry| entry.namespace == self.namespace || entry.name == self.lessor)
    }

    /// Fails if a promise was broken.
    #[expect(clippy::disallowed_methods, reason = "a destructor can't await")]
    fn check(&self) {
        let mut report = self.report();
        if !report.violations.is_empty() {
            // An entry may be written a moment after a later one, if its request was just answered.
            std::thread::sleep(Duration::from_secs(2));
            report = self.report();
        }
        assert!(report.violations.is_empty(), "{}: {report}", self.namespace);
    }

    /// What the checker says of everything that this world has seen.
    fn report(&self) -> Report {
        let audit = self.cluster.audit().expect("an audit log");
        let entries = audit.with(&self.namespace).expect("its entries");
        // The log has the objects of these kinds as a whole. Of all else it doesn't say what was attached.
        let is_known = |entry: &Entry| match entry.group.as_str() {
            "" => matches!(entry.resource.as_str(), "configmaps" | "pods"),
            group => matches!(group, "lessor.dev" | "coordination.k8s.io"),
        };
        let requests = entries.into_iter().filter(is_known).map(|mut entry| {
            // The test may have the same user.
            entry.user = if entry.user_agent.starts_with(AGENT) { OPERATOR } else { "others" }.to_owned();
            entry
        });
        let requests: Vec<Request> = requests.filter_map(Request::from_audit).collect();
        let checker = Checker::new(OPERATOR);
        let checker = self.max_ttl.get().map_or(checker.clone(), |max| checker.max_ttl(*max));
        checker.check(&requests)
    }

    /// What the operator asked since then, watches and Events aside.
    pub fn asked(&self, since: Mark) -> Entries {
        by_operator(self.audit(since))
    }

    /// What the operator asked from the beginning, watches and Events aside.
    pub fn all_asked(&self) -> Entries {
        by_operator(self.whole_audit())
    }

    /// The lives of all leases that this world has had.
    pub fn lives(&self) -> Vec<Life> {
        history::lives(self.whole_audit())
    }

    /// By how much deadlines may have moved while replicas of this world had no response from the API server (P8).
    pub fn moved(&self) -> Duration {
        let end = format!("-operator-{}.log", self.namespace);
        let files = std::fs::read_dir(self.cluster.directory()).expect("the cluster's directory");
        let paths = files.map(|file| file.expect("a file").path());
        let logs = paths.filter(|path| path.to_string_lossy().ends_with(&end));
        let texts =
            logs.map(|path| String::from_utf8_lossy(&std::fs::read(path).expect("a log")).into_owned());
        let millis =
            |line: &str| line.split_once("moved_ms=")?.1.split_whitespace().next()?.parse::<u64>().ok();
        texts.map(|text| Duration::from_millis(text.lines().filter_map(millis).sum())).sum()
    }

    /// How late these leases ended after their deadlines.
    ///
    /// # Panics
    /// If one ended early, or later after its deadline than it [may](Self::most_late).
    pub fn lateness<'a>(&self, lives: impl IntoIterator<Item = &'a Life>, more: Duration) -> Spread {
        let most = self.most_late(more);
        Spread::of(lives.into_iter().map(|life| {
            let late = life.lateness();
            assert!(late < most, "{late:?} late, which is more than {most:?}: {life:?}");
            late
        }))
    }

    /// How late an end may be before a test fails: [`TOLERANCE`], and `more`, and by how much deadlines have moved, and what the
    /// machine [adds](Self::slowness).
    pub fn most_late(&self, more: Duration) -> SignedDuration {
        SignedDuration::try_from(TOLERANCE + more + self.moved() + self.slowness()).expect("a short time")
    }

    /// Fails unless the lease of this name ended in time; prints how late.
    pub fn assert_punctual(&self, name: &str) {
        let late = self.lateness([&self.life(name)], Duration::ZERO);
        self.print(format_args!("{name} ended {late} after its deadline"));
    }

    /// Prints what replicas have logged last.
    fn show_logs(&self) {
        for path in &*self.logs.lock() {
            let log = std::fs::read(path).unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            let lines: Vec<&str> = log.lines().collect();
            let shown = &lines[lines.len().saturating_sub(SHOWN)..];
            self.print(format_args!(
                "the last {} of {} lines of {}:\n{}",
                shown.len(),
                lines.len(),
                path.display(),
                shown.join("\n")
            ));
        }
    }

    /// Prints a figure.
    pub fn print(&self, figure: impl Display) {
        println!("{}: {figure}", self.namespace);
    }

    /// The life of the lease of this name.
    pub fn life(&self, name: &str) -> Life {
        let mut lives = self.lives();
        lives.retain(|life| life.name == name);
        assert_eq!(lives.len(), 1, "{}/{name} has lived once", self.namespace);
        lives.remove(0)
    }
}

/// What the checker calls the operator.
const OPERATOR: &str = "lessor";

impl Drop for World {
    fn drop(&mut self) {
        // What has failed already needs no second reason.
        if std::thread::panicking() {
            self.show_logs();
        } else if self.checks_itself.load(Ordering::Relaxed) {
            self.check();
        }
    }
}

/// A ConfigMap that the operator may not touch.
#[expect(missing_debug_implementations, reason = "a world has none")]
pub struct Bystander<'a> {
    world: &'a World,
    map: ConfigMap,
}

impl Bystander<'_> {
    /// Fails if it has changed.
    pub async fn assert_untouched(self) {
        assert_eq!(self.world.map("bystander").await, self.map);
    }
}

/// How a holder writes.
pub fn holder() -> PatchParams {
    PatchParams { field_manager: Some("holder".to_owned()), ..PatchParams::default() }
}

/// A condition of a lease.
pub fn condition<'a>(lease: &'a Lease, type_: &str) -> Option<&'a Condition> {
    lease.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == type_)
}

/// Whether a lease has this condition, with this status and reason.
pub fn has_condition(lease: &Lease, type_: &str, status: &str, reason: &str) -> bool {
    condition(lease, type_).is_some_and(|condition| condition.status == status && condition.reason == reason)
}

/// Whether this is how much a lease's status says is attached.
pub fn attached(objects: i64, keys: i64) -> impl Fn(&Lease) -> bool {
    move |lease| lease.status.as_ref().and_then(|status| status.attached) == Some(Attached { objects, keys })
}

/// Whether the API server has refused a renewal since the lease has ended (or is gone already).
pub fn came_too_late(renewal: &kube::Result<Lease>) -> bool {
    match renewal {
        Err(kube::Error::Api(status)) => {
            status.is_not_found()
                || (status.code == 422 && status.message.contains(lessor_api::lease::ENDED_MESSAGE))
        }
        _ => false,
    }
}

fn by_operator(entries: Entries) -> Entries {
    let entries = entries.agent(AGENT);
    entries.filter(|entry| !matches!(entry.verb.as_str(), "list" | "watch") && entry.resource != "events")
}

fn keys_of(map: &ConfigMap) -> Vec<String> {
    let text = map.data.iter().flatten().map(|(key, _)| key);
    let mut keys: Vec<String> =
        text.chain(map.binary_data.iter().flatten().map(|(key, _)| key)).cloned().collect();
    keys.sort();
    keys
}

fn named(name: &str) -> ObjectMeta {
    ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() }
}

/// Installs both CRDs and waits until the server serves them.
pub async fn install_crds(cluster: &Cluster) {
    let client = cluster.client().expect("a client");
    let crds = Api::all(client.clone());
    for crd in crd::all() {
        let name = crd.metadata.name.clone().expect("a name");
        let params = PatchParams::apply("e2e").force();
        crds.patch(&name, &params, &Patch::Apply(&crd)).await.expect("a crd");
        let established = kube::runtime::wait::await_condition(
            crds.clone(),
            &name,
            kube::runtime::conditions::is_crd_established(),
        );
        tokio::time::timeout(PATIENCE, established).await.expect("a crd in time").expect("a crd");
    }
}

async fn ask_again_and_again(client: Client, slowest: Arc<AtomicU64>) {
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let asked = Instant::now();
        // Longer than this is an outage, which tests make by themselves.
        if let Ok(Ok(_)) = timeout(Duration::from_secs(5), client.apiserver_version()).await {
            let took = u64::try_from(asked.elapsed().as_millis()).unwrap_or(u64::MAX);
            slowest.fetch_max(took, Ordering::Relaxed);
        }
    }
}

/// Asks again and again until there is an answer.
///
/// # Panics
/// If there is none within [`PATIENCE`].
pub async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(start.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain until {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
