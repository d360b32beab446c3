//! A lease that is deleted is revoked: it ends at once, and its end is as complete as any.

use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, api::DeleteParams};
use lessor_kit::{
    requests::{Step, reached},
    trial,
    world::{World, came_too_late, has_condition, until},
};
use serde_json::json;
use tokio::time::sleep;

#[trial]
async fn a_deleted_lease_is_revoked_and_renewals_after_that_are_refused() {
    let world = World::new("revoke").await;
    let _operator = world.primary(&["--linger", "3s"]).await;
    let bystander = world.bystander().await;
    world.config_map("whole", json!({"lessor.dev/lease": "lease"}), &["a"]).await;
    world.config_map("keys", json!({"key.lessor.dev/a": "lease"}), &["a", "b"]).await;
    world.granted("lease", json!({"ttlSeconds": 600})).await;
    world.revoke("lease").await;
    let ended = world.wait_ended("lease").await;
    assert!(has_condition(&ended, "Active", "False", "Revoked"));
    let renewal = world.renew("lease").await;
    assert!(came_too_late(&renewal), "{renewal:?}");
    world.wait_map_gone("whole").await;
    world.wait_keys("keys", &["b"]).await;
    world.wait_gone("lease").await;
    world.wait_event("lease", "Revoked").await;
    bystander.assert_untouched().await;
}

#[trial]
async fn a_renewal_between_a_deletion_and_the_commit_of_the_end_saves_nothing() {
    let world = World::new("saves-nothing").await;
    let (proxy, _operator) = world.proxied(&[]).await;
    world.config_map("attached", json!({"lessor.dev/lease": "lease"}), &["a"]).await;
    world.granted("lease", json!({"ttlSeconds": 600})).await;
    let commit = proxy.hold_request(Step::Commit.of("lease"));
    world.revoke("lease").await;
    reached(&commit).await;
    world.renew("lease").await.expect("its end isn't committed yet");
    commit.release();
    world.wait_map_gone("attached").await;
    world.wait_gone("lease").await;
}

#[trial]
async fn a_deletion_while_no_operator_runs_waits_for_one() {
    let world = World::new("revoke-later").await;
    let operator = world.primary(&[]).await;
    world.config_map("attached", json!({"lessor.dev/lease": "lease"}), &["a"]).await;
    world.granted("lease", json!({"ttlSeconds": 600})).await;
    operator.stop().await.expect("it stops");
    world.revoke("lease").await;
    sleep(Duration::from_millis(500)).await;
    assert!(!world.leases().get("lease").await.expect("its finalizer keeps it").is_ended());
    world.map("attached").await;
    let _operator = world.primary(&[]).await;
    world.wait_map_gone("attached").await;
    world.wait_gone("lease").await;
}

#[trial]
async fn a_lease_that_was_never_granted_can_be_deleted() {
    let world = World::new("ungranted").await;
    world.lease("lease", json!({"ttlSeconds": 600})).await;
    world.revoke("lease").await;
    world.wait_gone("lease").await;
}

#[trial]
async fn a_namespace_with_leases_can_be_deleted() {
    let world = World::new("namespace").await;
    let _operator = world.primary(&[]).await;
    world.config_map("whole", json!({"lessor.dev/lease": "lease"}), &["a"]).await;
    world.config_map("keys", json!({"key.lessor.dev/a": "lease"}), &["a", "b"]).await;
    world.granted("lease", json!({"ttlSeconds": 600})).await;
    world.granted("asleep", json!({"ttlSeconds": 600, "suspend": true})).await;
    world.granted("kept", json!({"ttlSeconds": 1, "afterExpiry": "Retain"})).await;
    world.wait_lease("kept", "is released", |lease| !lease.has_finalizer()).await;
    let namespaces: Api<Namespace> = Api::all(world.client.clone());
    namespaces.delete(&world.namespace, &DeleteParams::default()).await.expect("a deletion");
    until("the namespace is gone", async || {
        namespaces.get_opt(&world.namespace).await.expect("an answer").is_none().then_some(())
    })
    .await;
}
