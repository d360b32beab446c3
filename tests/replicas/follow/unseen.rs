//! What the operator may not look at: its followers don't end by time.

use std::time::Duration;

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use lessor_kit::{history::Spread, trial, world::World};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::sources::{ALL, Heartbeat, check, followed, late_after, wait_following};

fn node(world: &World) -> Value {
    json!({"node": {"name": world.namespace}})
}

#[trial]
async fn leases_that_follow_a_disabled_kind_do_not_end_until_it_is_enabled() {
    let world = World::new("disabled").await;
    let mut heart = Heartbeat::of_node(&world);
    heart.create().await;
    heart.start(Duration::from_secs(1));
    let operator = world.primary(&["--follow", "pods"]).await;
    world.granted("lease", json!({"ttlSeconds": 6, "renewFrom": node(&world)})).await;
    let capped = json!({"ttlSeconds": 2, "maxLifetimeSeconds": 3, "renewFrom": node(&world)});
    world.granted("capped", capped).await;
    world.granted("revoked", json!({"ttlSeconds": 2, "renewFrom": node(&world)})).await;
    let lease = wait_following(&world, "lease", "NotEnabled").await;
    let message = &lessor_kit::world::condition(&lease, "Following").expect("a condition").message;
    assert!(message.contains("--follow"), "{message}");
    world.wait_event("lease", "NotFollowing").await;
    // The cap and a deletion end it all the same.
    world.wait_gone("capped").await;
    world.revoke("revoked").await;
    world.wait_gone("revoked").await;
    sleep(Duration::from_secs(4)).await;
    let mark = world.mark();
    sleep(Duration::from_secs(5)).await;
    assert_eq!(world.asked(mark).requests(), 0, "nothing is tried in vain: {}", world.asked(mark));
    assert!(!world.leases().get("lease").await.expect("it lives").is_ended());
    operator.kill().await.expect("it is killed");
    let _operator = world.operator(&ALL);
    // A replica without work leaves a dead primary its place.
    world.granted("work", json!({"ttlSeconds": 600})).await;
    wait_following(&world, "lease", "SourceAlive").await;
    let last = heart.stop().await;
    world.wait_gone("lease").await;
    world.print(format_args!("{} late", Spread::of([late_after(&world, &world.life("lease"), last)])));
    check(&world);
}

#[trial]
async fn a_revoked_permission_ends_no_lease_and_a_restored_one_resumes_them() {
    let world = World::new("rights").await;
    let mut heart = Heartbeat::new(&world, &world.namespace, "heart");
    heart.create().await;
    heart.start(Duration::from_secs(1));
    let kubeconfig =
        world.cluster.service_account_kubeconfig(&world.namespace, "lessor").await.expect("an account");
    let subject = format!("{}/lessor", world.namespace);
    let right = async |follow: &[&str]| {
        let program = lessor_kit::program::operator();
        let mut command = std::process::Command::new(program);
        command.args(["rbac", "--namespace", &world.namespace, "--lessor", &world.lessor]);
        command.args(["--name", &world.namespace, "--service-account", &subject]).args(follow);
        let output = command.output().expect("it runs");
        assert!(output.status.success(), "{output:?}");
        apply(&world, &String::from_utf8(output.stdout).expect("text")).await;
    };
    right(&["--follow", "coordination-leases"]).await;
    let operator = world.operator_with(&kubeconfig, &["--follow", "coordination-leases"]);
    world.wait_for_primary(&operator).await;
    let from = json!({"coordinationLease": {"name": "heart"}});
    followed(&world, "lease", 4, from.clone()).await;

    right(&[]).await;
    // What is open stays open; another one is opened in vain.
    let other = json!({"coordinationLease": {"name": "other"}});
    world.granted("unwatched", json!({"ttlSeconds": 4, "renewFrom": other})).await;
    wait_following(&world, "unwatched", "Unwatched").await;
    let last = heart.stop().await;
    // It would end now, and its heartbeat can't be read.
    wait_following(&world, "lease", "Unwatched").await;
    sleep(Duration::from_secs(6)).await;
    for name in ["lease", "unwatched"] {
        assert!(!world.leases().get(name).await.expect("it lives").is_ended(), "{name}");
    }
    right(&["--follow", "coordination-leases"]).await;
    world.wait_gone("lease").await;
    world.wait_gone("unwatched").await;
    let end = world.life("lease").end.expect("it has ended");
    assert!(end.asked.duration_since(last.asked).as_secs_f64() >= 4.0);
    check(&world);
}

/// Applies what `lessor rbac` prints.
async fn apply(world: &World, yaml: &str) {
    let params = PatchParams::apply("test").force();
    for document in yaml.split("---\n").filter(|text| !text.trim().is_empty()) {
        let object: Value = serde_saphyr::from_str(document).expect("an object");
        let name = object["metadata"]["name"].as_str().expect("a name").to_owned();
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
        let client = world.client.clone();
        let patch = Patch::Apply(&object);
        let applied = match object["kind"].as_str().expect("a kind") {
            "ClusterRole" => Api::<ClusterRole>::all(client).patch(&name, &params, &patch).await.map(drop),
            "ClusterRoleBinding" => {
                Api::<ClusterRoleBinding>::all(client).patch(&name, &params, &patch).await.map(drop)
            }
            "Role" => {
                Api::<Role>::namespaced(client, &namespace).patch(&name, &params, &patch).await.map(drop)
            }
            _ => Api::<RoleBinding>::namespaced(client, &namespace)
                .patch(&name, &params, &patch)
                .await
                .map(drop),
        };
        applied.expect("it is applied");
    }
}
