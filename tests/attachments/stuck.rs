//! What the API server refuses to remove: it delays nothing else, is retried rarely, and is named.

use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use kube::{Api, api::PostParams};
use lessor_api::lessor::KINDS_READY;
use lessor_cluster::proxy::Faults;
use lessor_kit::world::{World, until};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::things::Things;

/// That a lease with a ConfigMap is granted, ends and is released without delay.
async fn assert_others_go(world: &World, name: &str) {
    let start = Instant::now();
    world.config_map(name, json!({"lessor.dev/lease": name}), &["a"]).await;
    world.granted(name, json!({"ttlSeconds": 1})).await;
    world.wait_map_gone(name).await;
    let took = start.elapsed();
    assert!(took < Duration::from_secs(5) + world.slowness(), "{name} went after {took:?}");
}

#[tokio::test]
async fn too_many_requests_for_one_object_delay_nothing_else() {
    let world = World::new("busy").await;
    let (proxy, _operator) = world.proxied(&[]).await;
    let is_stuck = |seen: &lessor_cluster::proxy::Seen| seen.is("DELETE", "/configmaps/stuck");
    proxy.set_faults([Faults::new(1).only(is_stuck).busy(600, 1.0)]);
    world.config_map("stuck", json!({"lessor.dev/lease": "stuck"}), &["a"]).await;
    world.granted("stuck", json!({"ttlSeconds": 1})).await;
    world.wait_ended("stuck").await;
    for number in 0..5 {
        assert_others_go(&world, &format!("other-{number}")).await;
    }
    let before = proxy.counts();
    proxy.set_faults([]);
    // The wait that was asked for is obeyed, for a minute at most.
    let start = Instant::now();
    world
        .wait_lease("stuck", "is retried", |lease| {
            let conditions = lease.status.iter().flat_map(|status| &status.conditions);
            conditions.clone().any(|condition| condition.reason == "Retrying")
        })
        .await;
    while world.config_maps().get_opt("stuck").await.expect("an answer").is_some() {
        assert!(
            start.elapsed() < Duration::from_secs(65) + world.slowness(),
            "it is never retried, {before:?}"
        );
        sleep(Duration::from_millis(500)).await;
    }
}

#[tokio::test]
async fn a_key_that_must_stay_keeps_no_other_key_of_its_object() {
    let world = World::new("parts").await;
    let secrets = Things::secrets(&world);
    let _operator = world.primary(&["--attachable", "secrets"]).await;
    secrets
        .create(json!({
            "metadata": {"name": "shared", "annotations": {
                "key.lessor.dev/tls.crt": "kept", "key.lessor.dev/note": "goes", "key.lessor.dev/word": "goes",
            }},
            "type": "kubernetes.io/tls",
            "data": {"tls.crt": "", "tls.key": "", "note": "", "word": ""},
        }))
        .await;
    for name in ["kept", "goes"] {
        world.granted(name, json!({"ttlSeconds": 2})).await;
    }
    world.wait_gone("goes").await;
    secrets.wait_parts("shared", &["tls.crt", "tls.key"]).await;
    until("the key that stays is named", async || {
        let status = world.leases().get("kept").await.ok()?.status?;
        status.conditions.iter().any(|condition| condition.message.contains("key tls.crt: ")).then_some(())
    })
    .await;
}

#[tokio::test]
async fn what_a_policy_protects_is_retried_rarely_and_is_no_missing_right() {
    const KEPT: usize = 50;
    const WATCHED: Duration = Duration::from_secs(20);
    let world = World::new("protected").await;
    let name = format!("protected-{}", world.namespace);
    let policy: ValidatingAdmissionPolicy = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [{
                "apiGroups": [""], "apiVersions": ["*"], "resources": ["configmaps"], "operations": ["DELETE"],
            }]},
            "matchConditions": [{
                "name": "kept",
                "expression": format!("oldObject.metadata.namespace == '{}' && oldObject.metadata.name.startsWith('kept')", world.namespace),
            }],
            "validations": [{"expression": "false", "message": "it is kept", "reason": "Forbidden"}],
        },
    }))
    .expect("a policy");
    let binding: ValidatingAdmissionPolicyBinding = serde_json::from_value(json!({
        "metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]},
    }))
    .expect("a binding");
    Api::all(world.client.clone()).create(&PostParams::default(), &policy).await.expect("a policy");
    Api::all(world.client.clone()).create(&PostParams::default(), &binding).await.expect("a binding");
    world.config_map("kept-probe", json!({}), &["a"]).await;
    until("the policy is in force", async || {
        let dry_run = kube::api::DeleteParams { dry_run: true, ..Default::default() };
        world.config_maps().delete("kept-probe", &dry_run).await.is_err().then_some(())
    })
    .await;

    let _operator = world.primary(&[]).await;
    for number in 0..KEPT {
        world.config_map(&format!("kept-{number}"), json!({"lessor.dev/lease": "kept"}), &["a"]).await;
    }
    world.granted("kept", json!({"ttlSeconds": 1})).await;
    let kept = world.wait_lease("kept", "is hindered", |lease| {
        let mut conditions = lease.status.iter().flat_map(|status| &status.conditions);
        conditions.any(|condition| condition.message.contains("a policy of the cluster refuses"))
    });
    kept.await;
    sleep(Duration::from_secs(5)).await;
    let (mark, start) = (world.mark(), Instant::now());
    let mut others = 0;
    while start.elapsed() < WATCHED {
        assert_others_go(&world, &format!("other-{others}")).await;
        others += 1;
    }
    let removals = world.audit(mark).agent("lessor").resource("", "configmaps").verb("delete");
    let refused = removals.filter(|entry| !entry.is_accepted());
    let seconds = start.elapsed().as_secs_f64();
    assert!(
        (refused.requests() as f64) < 2.0 * seconds + 10.0,
        "{} in {seconds} s beside {others} others",
        refused.requests()
    );
    let conditions = world.get_lessor().await.status.expect("a status").conditions;
    assert!(
        !conditions.iter().any(|kinds| kinds.type_ == KINDS_READY && kinds.status == "False"),
        "{conditions:?}"
    );
}
