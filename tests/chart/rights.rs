//! The chart's rights are those that the operator needs, each of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    future,
    path::PathBuf,
    time::Duration,
};

use futures::{StreamExt, stream};
use k8s_openapi::{
    api::{
        coordination::v1::Lease as Coordination,
        core::v1::{Pod, Secret, Service, ServiceAccount},
    },
    jiff::Timestamp,
};
use kube::{
    Api, Resource,
    api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams},
};
use lessor_api::{Lessor, time};
use lessor_cluster::{
    audit::Entry,
    proxy::{Hold, Proxy},
};
use lessor_kit::{
    requests::Step,
    trial,
    world::{PATIENCE, World, heavy},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    account::{Account, Right, Template, rights, without},
    generated::KINDS,
    release::{documents, render},
};

/// How many operators with a right too few live at once.
const AT_ONCE: usize = 6;
/// What they are told, beside what the chart says.
const ARGS: [&str; 6] =
    ["--attachable", "secrets,services", "--follow", "coordination-leases,nodes,pods", "--event-rate", "50"];
/// What the chart is told: a kind with keys and one without, and everything that leases can follow.
const VALUES: [&str; 4] = [
    "--set",
    "watchNamespaces={placeholder},attachable={secrets,services}",
    "--set",
    "follow.coordinationLeases=true,follow.nodes=true,follow.pods=true",
];
/// Where nodes beat.
const NODES: &str = "kube-node-lease";

/// A right as the audit log shows its use: the name of the object is left out.
type Use = (String, String, String, String);

fn used(entry: &Entry) -> Use {
    let resource = match entry.subresource.as_str() {
        "" => entry.resource.clone(),
        subresource => format!("{}/{subresource}", entry.resource),
    };
    (entry.namespace.clone(), entry.verb.clone(), entry.group.clone(), resource)
}

fn use_of(right: &Right) -> Use {
    let Right { place, verb, group, resource, .. } = right.clone();
    (place, verb, group, resource)
}

/// What leases and their holders do that takes a right of the operator, again and again.
struct Life<'a> {
    world: &'a World,
    /// The only right that matters; `None`: all.
    lacks: Option<&'a Right>,
    /// The operator's way to the API server, where its writes are to be overtaken.
    proxy: Option<&'a Proxy>,
}

impl Life<'_> {
    fn matters(&self, is: impl Fn(&Right) -> bool) -> bool {
        self.lacks.is_none_or(is)
    }

    /// Never ends. Where a right is missing much of it has no effect, so nothing here insists on any.
    async fn go_on(&self) {
        let ends = async { tokio::join!(self.leases_end(), self.leases_follow()) };
        tokio::join!(ends, self.a_lease_is_warned_of(), self.the_lead_is_taken_away());
    }

    /// Leases end and take objects and keys along.
    async fn leases_end(&self) {
        for round in 0.. {
            let name = format!("round-{round}");
            let whole = json!({"lessor.dev/lease": name});
            let key = json!({"key.lessor.dev/a": name});
            let keys = format!("{name}-keys");
            self.make(&self.world.config_maps(), &name, whole.clone(), json!({"data": {"a": "b"}})).await;
            self.make(&self.world.config_maps(), &keys, key.clone(), json!({"data": {"a": "b", "c": "d"}}))
                .await;
            self.make(&self.api::<Secret>(), &name, whole.clone(), json!({})).await;
            self.make(&self.api::<Secret>(), &keys, key, json!({"stringData": {"a": "b", "c": "d"}})).await;
            let outside = json!({"spec": {"type": "ExternalName", "externalName": "example.com"}});
            self.make(&self.api::<Service>(), &name, whole, outside).await;
            self.make(&self.world.leases(), &name, json!({}), json!({"spec": {"ttlSeconds": 1}})).await;
            if let Some(proxy) = self.proxy {
                self.overtake_the_end(proxy, &name, &keys).await;
            }
            let end = Instant::now() + Duration::from_secs(4);
            while Instant::now() < end && self.is_there(&name).await {
                sleep(Duration::from_millis(100)).await;
            }
        }
    }

    /// While a write of the operator is on its way its object changes, so that it has to be read again.
    async fn overtake_the_end(&self, proxy: &Proxy, name: &str, keys: &str) {
        let hold =
            |method: &'static str, path: String| proxy.hold_request(move |seen| seen.is(method, &path));
        let objects = [
            hold("DELETE", format!("/configmaps/{name}")),
            hold("PATCH", format!("/secrets/{keys}")),
            hold("DELETE", format!("/services/{name}")),
        ];
        overtake(proxy.hold_request(Step::Commit.of(name)), &self.world.leases(), name).await;
        let [map, secret, service] = objects;
        overtake(map, &self.world.config_maps(), name).await;
        overtake(secret, &self.api::<Secret>(), keys).await;
        overtake(service, &self.api::<Service>(), name).await;
    }

    /// Leases follow heartbeats that beat no more, and Pods that go: before they end for that, the operator looks again.
    async fn leases_follow(&self) {
        let follows = |lacks: &Right| lacks.group == "coordination.k8s.io" || lacks.resource == "pods";
        let (beats, pods) = (self.api::<Coordination>(), self.api::<Pod>());
        let nodes: Api<Coordination> = Api::namespaced(self.world.client.clone(), NODES);
        if self.matters(follows) {
            // A Pod needs one; a controller may have been faster.
            let account = ServiceAccount { metadata: named("default"), ..ServiceAccount::default() };
            let _ = self.api().create(&PostParams::default(), &account).await;
        }
        for round in 0.. {
            if !self.matters(follows) {
                return std::future::pending().await;
            }
            let (beat, node) = (format!("beat-{round}"), format!("{}-{round}", self.world.namespace));
            let pod = format!("pod-{round}");
            let now = || json!({"spec": {"renewTime": time::to_text(Timestamp::now())}});
            let containers = json!([{"name": "a", "image": "example.com/none"}]);
            let never_run =
                json!({"spec": {"automountServiceAccountToken": false, "containers": containers}});
            self.make(&beats, &beat, json!({}), now()).await;
            self.make(&nodes, &node, json!({}), now()).await;
            self.make(&pods, &pod, json!({}), never_run).await;
            for (name, from) in [
                (&beat, json!({"coordinationLease": {"name": beat}})),
                (&node, json!({"node": {"name": node}})),
                (&pod, json!({"pod": {"name": pod}})),
            ] {
                let spec = json!({"spec": {"ttlSeconds": 2, "renewFrom": from}});
                self.make(&self.world.leases(), name, json!({}), spec).await;
            }
            sleep(Duration::from_millis(1500)).await;
            let _ = pods.delete(&pod, &DeleteParams::default().grace_period(0)).await;
            sleep(Duration::from_millis(3500)).await;
            let _ = nodes.delete(&node, &DeleteParams::default()).await;
        }
    }

    /// A warning two seconds after each renewal: from the second one on, its Event is patched.
    async fn a_lease_is_warned_of(&self) {
        let spec = json!({"spec": {"ttlSeconds": 6, "warnBeforeSeconds": 4}});
        self.make(&self.world.leases(), "warned", json!({}), spec).await;
        loop {
            sleep(Duration::from_millis(2300)).await;
            let _ = self.world.renew("warned").await;
        }
    }

    /// Another replica seems to lead, and then none: the operator leads again, and that Event is patched too.
    async fn the_lead_is_taken_away(&self) {
        let lessors: Api<Lessor> = Api::all(self.world.client.clone());
        while self.matters(|lacks| lacks.group == "events.k8s.io") {
            sleep(Duration::from_secs(1)).await;
            let Ok(lessor) = lessors.get(&self.world.lessor).await else { continue };
            let term = lessor.status.and_then(|status| status.term).unwrap_or_default() + 1;
            for status in [json!({"primary": "somebody", "term": term}), json!({"primary": null})] {
                let patch = Patch::Merge(json!({"status": status}));
                let _ = lessors.patch_status(&self.world.lessor, &PatchParams::default(), &patch).await;
                sleep(Duration::from_millis(300)).await;
            }
        }
        std::future::pending().await
    }

    fn api<K: Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>>(&self) -> Api<K> {
        Api::namespaced(self.world.client.clone(), &self.world.namespace)
    }

    async fn is_there(&self, lease: &str) -> bool {
        self.world.leases().get_metadata_opt(lease).await.is_ok_and(|lease| lease.is_some())
    }

    async fn make<K>(&self, api: &Api<K>, name: &str, annotations: Value, mut object: Value)
    where
        K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + Serialize + DeserializeOwned,
    {
        object["apiVersion"] = json!(K::api_version(&()));
        object["kind"] = json!(K::kind(&()));
        object["metadata"] = json!({"name": name, "annotations": annotations});
        let object: K = serde_json::from_value(object).expect("an object");
        let made = api.create(&PostParams::default(), &object).await;
        assert!(made.is_ok(), "{made:?}");
    }
}

/// Waits for what is to be held, changes the object, and lets it go on.
async fn overtake<K: Clone + std::fmt::Debug + DeserializeOwned>(hold: Hold, api: &Api<K>, name: &str) {
    // Where a right is missing it may never come.
    if tokio::time::timeout(Duration::from_secs(4), hold.reached()).await.is_ok() {
        let patch = Patch::Merge(json!({"metadata": {"labels": {"changed": "meanwhile"}}}));
        let _ = api.patch(name, &PatchParams::default(), &patch).await;
    }
    hold.release();
}

fn named(name: &str) -> ObjectMeta {
    ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() }
}

/// A proxy, and the account's way through it.
async fn by_proxy(world: &World, account: &Account) -> (Proxy, PathBuf) {
    let proxy = world.cluster.proxy().await.expect("a proxy");
    let name = format!("{}-by-proxy", world.namespace);
    let kubeconfig = proxy.kubeconfig_with_token(&name, &account.token).expect("a kubeconfig");
    (proxy, kubeconfig)
}

/// What an account asked of the API server.
fn asked(world: &World, account: &Account) -> Vec<Entry> {
    let audit = world.cluster.audit().expect("an audit log");
    let asked = audit.with(&account.user).expect("its entries").by(&account.user);
    asked.filter(|entry| !entry.resource.is_empty()).to_vec()
}

#[trial(long)]
async fn no_right_is_missing_and_none_is_too_many() {
    let _heavy = heavy().await;
    let world = World::new("rights").await;
    let objects = Template::new(&VALUES).await.objects(&world);
    let given: BTreeSet<Use> = rights(&objects).iter().map(use_of).collect();
    let account = Account::new(&world, &objects).await;
    let (proxy, kubeconfig) = by_proxy(&world, &account).await;
    let operator = world.operator_with(&kubeconfig, &ARGS);
    let life = Life { world: &world, lacks: None, proxy: Some(&proxy) };
    let mut uses = BTreeSet::new();
    let all_used = async {
        let start = Instant::now();
        while uses != given && start.elapsed() < PATIENCE {
            sleep(Duration::from_secs(1)).await;
            assert_eq!(operator.exit_status(), None, "it ended: {}", operator.log());
            let asked = asked(&world, &account);
            let refused = asked.iter().find(|entry| entry.code == 403);
            assert!(refused.is_none(), "a right is missing: {}", refused.expect("it"));
            uses = asked.iter().map(used).collect();
        }
    };
    tokio::select! {
        () = all_used => {}
        () = life.go_on() => {}
    }
    let unused: Vec<_> = given.difference(&uses).collect();
    let missing: Vec<_> = uses.difference(&given).collect();
    let as_they_should_be = unused.is_empty() && missing.is_empty();
    assert!(as_they_should_be, "never used: {unused:?}; not given: {missing:?}; {}", operator.log());
}

#[trial(long)]
async fn without_any_one_of_its_rights_the_operator_is_refused_that_and_nothing_else() {
    let _heavy = heavy().await;
    let template = Template::new(&VALUES).await;
    let any = World::new("right").await;
    let all = rights(&template.objects(&any)).into_iter().enumerate();
    let number = all.len();
    let start = Instant::now();
    let tried = stream::iter(all).map(async |(number, right)| lives_without(number, &right, &template).await);
    let wrong: Vec<String> =
        tried.buffer_unordered(AT_ONCE).filter_map(|tried| future::ready(tried.err())).collect().await;
    assert!(number > 20, "{number} rights");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    println!("each of {number} rights is needed, which took {:?}", start.elapsed());
}

/// An operator that lacks one right: the API server refuses that and nothing else, and the operator says so.
async fn lives_without(number: usize, right: &Right, template: &Template) -> Result<(), String> {
    let world = World::new(&format!("without-{number}")).await;
    let objects = template.objects(&world);
    // The same right, but it is named after this world, as are some of the objects.
    let lacks = rights(&objects).into_iter().nth(number).expect("a right");
    assert_eq!((&lacks.verb, &lacks.resource), (&right.verb, &right.resource));
    let account = Account::new(&world, &without(&objects, &lacks)).await;
    // What is only read again needs to be overtaken.
    let proxied = match lacks.verb.as_str() {
        "get" => Some(by_proxy(&world, &account).await),
        _ => None,
    };
    let kubeconfig = proxied.as_ref().map_or(&account.kubeconfig, |(_, kubeconfig)| kubeconfig);
    let operator = world.operator_with(kubeconfig, &ARGS);
    let said = format!("cannot {} resource \"{}\"", lacks.verb, lacks.resource);
    let told = async {
        let start = Instant::now();
        loop {
            let refused: BTreeSet<Use> =
                asked(&world, &account).iter().filter(|entry| entry.code == 403).map(used).collect();
            let log = operator.log();
            if log.contains(&said) && refused == BTreeSet::from([use_of(&lacks)]) {
                return Ok(());
            }
            if start.elapsed() > PATIENCE || operator.exit_status().is_some() {
                let says = log.contains(&said);
                return Err(format!("without {lacks}: refused {refused:?}, which it says: {says}; {log}"));
            }
            sleep(Duration::from_secs(1)).await;
        }
    };
    let proxy = proxied.as_ref().map(|(proxy, _)| proxy);
    let life = Life { world: &world, lacks: Some(&lacks), proxy };
    tokio::select! {
        told = told => told,
        () = life.go_on() => Ok(()),
    }
}

/// What `lessor rbac` says for the same settings.
fn told(args: &[&str]) -> BTreeSet<Right> {
    let told = std::process::Command::new(env!("CARGO_BIN_EXE_lessor"))
        .arg("rbac")
        .args(args)
        .output()
        .expect("roles");
    assert!(told.status.success());
    rights(&documents(&String::from_utf8(told.stdout).expect("text")))
}

#[trial]
async fn the_charts_rights_equal_the_output_of_lessor_rbac() {
    let follow = "follow.nodes=true,follow.pods=true,follow.coordinationLeases=true";
    let all = KINDS.join(",");
    let kinds = KINDS.iter().copied().chain([all.as_str()]).map(|kinds| {
        (vec!["--set".to_owned(), format!("attachable={{{kinds}}}")], vec!["--attachable", kinds])
    });
    let set = |values: &str| vec!["--set".to_owned(), values.to_owned()];
    let others = [
        (vec![], vec![]),
        (set("settings.lessor=other"), vec!["--lessor", "other"]),
        (set("watchNamespaces={one,two}"), vec!["--namespace", "one,two"]),
        (set(follow), vec!["--follow", "nodes,pods,coordination-leases"]),
        (
            set("follow.nodes=true,watchNamespaces={one,two}"),
            vec!["--follow", "nodes", "--namespace", "one,two"],
        ),
    ];
    for (values, args) in kinds.chain(others) {
        let values: Vec<&str> = values.iter().map(String::as_str).collect();
        assert_eq!(rights(&documents(&render(&values).await)), told(&args), "{values:?}");
    }
}

#[trial]
async fn with_namespaces_the_only_right_in_the_whole_cluster_is_about_the_lessor() {
    let mut by_place: BTreeMap<String, BTreeSet<Right>> = BTreeMap::new();
    let nowhere = |right: &Right| Right { place: String::new(), ..right.clone() };
    for right in rights(&documents(&render(&["--set", "watchNamespaces={one,two}"]).await)) {
        by_place.entry(right.place.clone()).or_default().insert(nowhere(&right));
    }
    let places: Vec<&str> = by_place.keys().map(String::as_str).collect();
    assert_eq!(places, ["", "default", "one", "two"]);
    for right in &by_place[""] {
        assert_eq!(right.group, "lessor.dev");
        assert!(right.resource == "lessors" || right.resource == "lessors/status", "{right}");
    }
    for right in &by_place["default"] {
        assert_eq!((right.group.as_str(), right.resource.as_str()), ("events.k8s.io", "events"), "{right}");
    }
    assert_eq!(by_place["one"], by_place["two"]);
    // Together they are what a release for all namespaces has.
    let both: BTreeSet<Right> = by_place[""].union(&by_place["one"]).cloned().collect();
    assert_eq!(both, rights(&documents(&render(&[]).await)));
}
