//! What leases follow: heartbeats that beat, and Pods that live.

use std::{sync::Arc, time::Duration};

use k8s_openapi::{
    api::{
        coordination::v1::Lease as Coordination,
        core::v1::{Node, Pod, ServiceAccount},
    },
    jiff::{SignedDuration, Timestamp},
};
use kube::{
    Api,
    api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams},
};
use lessor_api::{Lease, lease::condition, time};
use lessor_checker::{Checker, Promise, Request};
use lessor_kit::{
    history::{Life, Write},
    world::{World, condition as condition_of, until},
};
use serde_json::{Value, json};
use tokio::{sync::Mutex, task::JoinHandle};

/// How long a beat may take on a machine that is busy with other tests.
const MUCH: Duration = Duration::from_secs(5);
/// Where nodes beat.
pub(crate) const NODES: &str = "kube-node-lease";
/// All that can be followed.
pub(crate) const ALL: [&str; 2] = ["--follow", "coordination-leases,nodes,pods"];

/// A heartbeat, which is deleted with this.
pub(crate) struct Heartbeat {
    pub(crate) api: Api<Coordination>,
    pub(crate) name: String,
    last: Arc<Mutex<Option<Write>>>,
    beating: Option<JoinHandle<()>>,
}

impl Heartbeat {
    /// The heartbeat of a node that has this world's name.
    pub(crate) fn of_node(world: &World) -> Self {
        Self::new(world, NODES, &world.namespace)
    }

    /// One that isn't there yet.
    pub(crate) fn new(world: &World, namespace: &str, name: &str) -> Self {
        let api = Api::namespaced(world.client.clone(), namespace);
        Self { api, name: name.to_owned(), last: Arc::default(), beating: None }
    }

    /// Makes it, with a first beat.
    pub(crate) async fn create(&self) {
        let asked = Timestamp::now();
        let lease = json!({"metadata": {"name": self.name}, "spec": {"renewTime": now()}});
        let lease: Coordination = serde_json::from_value(lease).expect("a lease");
        self.api.create(&PostParams::default(), &lease).await.expect("a heartbeat");
        *self.last.lock().await = Some(Write { asked, answered: Timestamp::now() });
    }

    /// Beats once.
    pub(crate) async fn beat(&self) {
        beat(&self.api, &self.name, &self.last).await.expect("a beat");
    }

    /// Beats from now on, as long as that is possible.
    pub(crate) fn start(&mut self, every: Duration) {
        let (api, name, last) = (self.api.clone(), self.name.clone(), self.last.clone());
        self.beating = Some(tokio::spawn(async move {
            loop {
                // As a node does: one that fails is left for the next.
                let _ = tokio::time::timeout(every.max(MUCH), beat(&api, &name, &last)).await;
                tokio::time::sleep(every).await;
            }
        }));
    }

    /// Beats no more, and answers when it did last.
    pub(crate) async fn stop(&mut self) -> Write {
        // Not in the middle of a beat.
        let last = self.last.clone();
        let last = last.lock().await;
        self.beating.take().expect("it beats").abort();
        last.expect("it has beaten")
    }

    /// When it has beaten last.
    pub(crate) async fn last(&self) -> Write {
        self.last.lock().await.expect("it has beaten")
    }

    /// Deletes it.
    pub(crate) async fn delete(&self) {
        self.api.delete(&self.name, &DeleteParams::default()).await.expect("a deletion");
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        if let Some(beating) = self.beating.take() {
            beating.abort();
        }
    }
}

async fn beat(api: &Api<Coordination>, name: &str, last: &Mutex<Option<Write>>) -> kube::Result<()> {
    let mut last = last.lock().await;
    let asked = Timestamp::now();
    let patch = json!({"spec": {"renewTime": now()}});
    api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    *last = Some(Write { asked, answered: Timestamp::now() });
    Ok(())
}

fn now() -> String {
    time::to_text(Timestamp::now())
}

/// The Pods of a world.
pub(crate) struct Pods(pub(crate) Api<Pod>);

impl Pods {
    pub(crate) async fn of(world: &World) -> Self {
        let accounts: Api<ServiceAccount> = Api::namespaced(world.client.clone(), &world.namespace);
        let account = ServiceAccount {
            metadata: ObjectMeta { name: Some("default".to_owned()), ..ObjectMeta::default() },
            ..ServiceAccount::default()
        };
        // A controller may have been faster.
        let _ = accounts.create(&PostParams::default(), &account).await;
        until("there is a service account", async || {
            accounts.get_opt("default").await.expect("an answer").map(drop)
        })
        .await;
        Self(Api::namespaced(world.client.clone(), &world.namespace))
    }

    /// Makes a Pod that no kubelet ever runs, and returns its uid.
    pub(crate) async fn create(&self, name: &str) -> String {
        self.create_with(name, json!({})).await
    }

    /// Makes a Pod on a node that is dead: it terminates for ever. Without its Node it would be collected.
    pub(crate) async fn create_on_dead_node(&self, name: &str, world: &World) -> String {
        let nodes: Api<Node> = Api::all(world.client.clone());
        let node = json!({"metadata": {"name": world.namespace}});
        let node = serde_json::from_value(node).expect("a node");
        nodes.create(&PostParams::default(), &node).await.expect("a node");
        self.create_with(name, json!({"nodeName": world.namespace, "terminationGracePeriodSeconds": 1})).await
    }

    async fn create_with(&self, name: &str, more: Value) -> String {
        let mut pod = json!({
            "metadata": {"name": name},
            "spec": {"automountServiceAccountToken": false, "containers": [{"name": "a", "image": "example.com/none"}]},
        });
        if let (Some(spec), Value::Object(more)) = (pod["spec"].as_object_mut(), more) {
            spec.extend(more);
        }
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        let pod = self.0.create(&PostParams::default(), &pod).await.expect("a pod");
        pod.metadata.uid.expect("a uid")
    }

    /// Deletes a Pod, at once.
    pub(crate) async fn delete(&self, name: &str) {
        self.0.delete(name, &DeleteParams::default().grace_period(0)).await.expect("a deletion");
        until("the pod is gone", async || {
            self.0.get_opt(name).await.expect("an answer").is_none().then_some(())
        })
        .await;
    }

    /// Lets a Pod finish.
    pub(crate) async fn finish(&self, name: &str, phase: &str) {
        let patch = json!({"status": {"phase": phase}});
        self.0.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await.expect("a phase");
    }
}

/// Lets the checker look at all that has happened in this world, and to its node: no lease has ended early.
pub(crate) fn check(world: &World) {
    let entries = world.cluster.audit().expect("an audit log").with(&world.namespace).expect("its entries");
    let requests: Vec<Request> = entries.into_iter().filter_map(Request::from_audit).collect();
    let report = Checker::new("nobody of this name").check(&requests);
    let early = |promise| matches!(promise, Promise::NeverEarly | Promise::OneOutcome);
    assert!(!report.violations.iter().any(|violation| early(violation.promise)), "{report}");
}

/// Whether what a lease follows keeps it alive, or why not.
pub(crate) fn following(lease: &Lease) -> Option<&str> {
    let following = condition_of(lease, condition::FOLLOWING)?;
    assert_eq!(following.status == "True", following.reason == "SourceAlive", "{following:?}");
    Some(&following.reason)
}

/// Waits until the condition `Following` of a lease has this reason.
pub(crate) async fn wait_following(world: &World, name: &str, reason: &str) -> Lease {
    world.wait_lease(name, &format!("says {reason}"), |lease| following(lease) == Some(reason)).await
}

/// Makes a lease that follows `from`, and waits until it says so.
pub(crate) async fn followed(world: &World, name: &str, ttl: u64, from: Value) -> Lease {
    world.granted(name, json!({"ttlSeconds": ttl, "renewFrom": from})).await;
    wait_following(world, name, "SourceAlive").await
}

/// How late a lease ended, whose TTL ran from `last`.
///
/// # Panics
/// If it has not ended, or too early or late.
pub(crate) fn late_after(world: &World, life: &Life, last: Write) -> SignedDuration {
    late_after_most(world, life, last, Duration::ZERO)
}

/// The same, where it may be later by `more`.
pub(crate) fn late_after_most(world: &World, life: &Life, last: Write, more: Duration) -> SignedDuration {
    let end = life.end.unwrap_or_else(|| panic!("it hasn't ended: {life:?}"));
    let ttl = SignedDuration::try_from(life.ttl).expect("a TTL for a test");
    assert!(end.asked >= last.asked + ttl, "it ended early, last kept alive {last:?}: {life:?}");
    let late = end.answered.duration_since(last.answered + ttl);
    let most = world.most_late(more);
    assert!(late < most, "{late:?} late, which is more than {most:?}: {life:?}");
    late
}
