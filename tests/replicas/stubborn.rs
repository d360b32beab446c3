//! Leases that can't be ended or released are no fault of the primary: it stays.

use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::{
    admissionregistration::v1::{
        ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding, ValidatingWebhookConfiguration,
    },
    core::v1::ConfigMap,
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use lessor_api::Lease;
use lessor_kit::{trial, world::holder};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::replicas::{
    LEASE_DURATION, PATIENCE, Replicas, Way, between, terms_since_the_first, wall, within,
};

#[trial]
async fn a_lease_that_cannot_end_or_be_released_does_not_change_the_primary() {
    const WATCHED: Duration = Duration::from_secs(30);
    let replicas = Replicas::three("stubborn", Way::Direct).await;
    let before = replicas.status().await.expect("a status");

    let map: ConfigMap = serde_json::from_value(json!({
        "metadata": {"name": "immutable", "annotations": {"key.lessor.dev/a": "hindered"}},
        "data": {"a": "1", "b": "2"}, "immutable": true,
    }))
    .expect("a config map");
    replicas.config_maps().create(&PostParams::default(), &map).await.expect("a config map");
    replicas.granted("hindered", json!({"ttlSeconds": 2})).await;
    replicas.granted("stuck", json!({"ttlSeconds": 6})).await;
    deny_status(&replicas, &["stuck", "stillborn"]).await;
    replicas.lease("stillborn", json!({"ttlSeconds": 6})).await;
    replicas.wait_event("stuck", "WriteRefused").await;
    replicas.wait_event("immutable", "Hindered").await;

    let begin = wall();
    let started = Instant::now();
    let mut others = 0;
    while started.elapsed() < WATCHED {
        let name = format!("other-{others}");
        replicas.granted(&name, json!({"ttlSeconds": 1})).await;
        replicas.wait_gone(&name).await;
        others += 1;
    }
    let watched = between(begin, wall());
    let after = replicas.status().await.expect("a status");
    assert_eq!((&after.primary, after.term), (&before.primary, before.term), "the primary has changed");
    let hindered = replicas.leases().get("hindered").await.expect("it stays");
    let conditions = hindered.status.expect("a status").conditions;
    let released = conditions.iter().find(|condition| condition.type_ == "Released").expect("it says why");
    assert!(released.status == "False" && released.message.contains("immutable"), "{released:?}");

    let writes = replicas.writes().filter(|entry| entry.received > begin);
    let proofs = writes.clone().resource("lessor.dev", "lessors").requests();
    let refused =
        writes.clone().filter(|entry| entry.name.starts_with("st") && !entry.is_accepted()).requests();
    let about_hindered = writes.filter(|entry| matches!(&*entry.name, "hindered" | "immutable")).requests();
    let figures = replicas.check(format_args!(
        "in {watched:?}: {proofs} proofs, {refused} refused writes for the stuck leases, {about_hindered} for the hindered one; \
         {others} others came and went"
    ));
    let thirds = watched.as_secs_f64() / (LEASE_DURATION / 3).as_secs_f64();
    assert!(proofs as f64 <= thirds + 2.0, "{proofs} proofs in {watched:?}");
    assert!(refused as f64 <= 2.0 * watched.as_secs_f64(), "{refused} refused writes in {watched:?}");
    assert!(about_hindered <= 2, "{about_hindered} writes for what no retry helps");
    assert_eq!(figures.primaries.len(), 1);
    assert!(figures.late(1.0) < replicas.noise(), "others suffer: {figures}");
}

/// A webhook that doesn't answer is an error of the API server, and one lease's alone.
#[trial]
async fn a_lease_whose_writes_fail_delays_no_other() {
    let replicas = Replicas::three("webhook", Way::Direct).await;
    let before = replicas.status().await.expect("a status");
    let name = format!("dead-{}", replicas.namespace);
    let webhook: ValidatingWebhookConfiguration = serde_json::from_value(json!({
        "metadata": {"name": name},
        "webhooks": [{
            "name": "dead.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": "https://127.0.0.1:1/"}, "failurePolicy": "Fail", "timeoutSeconds": 1,
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": replicas.namespace}},
            "matchConditions": [{"name": "stuck", "expression": "object.metadata.name == 'stuck'"}],
            "rules": [{
                "apiGroups": ["lessor.dev"], "apiVersions": ["*"], "operations": ["UPDATE"],
                "resources": ["leases/status"],
            }],
        }],
    }))
    .expect("a webhook");
    let webhooks: Api<ValidatingWebhookConfiguration> = Api::all(replicas.client.clone());
    webhooks.create(&PostParams::default(), &webhook).await.expect("a webhook");
    replicas.lease("stuck", json!({"ttlSeconds": 600})).await;
    let failures = || {
        let writes = replicas.writes().filter(|entry| entry.name == "stuck");
        writes.filter(|entry| entry.code >= 500).requests()
    };
    within(PATIENCE, "its writes fail", async || {
        sleep(Duration::from_millis(100)).await;
        (failures() > 2).then_some(())
    })
    .await;
    let begin = Instant::now();
    replicas.config_map("left", json!({"lessor.dev/lease": "left"}), &["a"]).await;
    replicas.granted("left", json!({"ttlSeconds": 10})).await;
    replicas.wait_map_gone("left").await;
    let (failed, took) = (failures(), begin.elapsed());
    webhooks.delete(&name, &DeleteParams::default()).await.expect("it is deleted");
    replicas.wait_lease("stuck", "is granted", Lease::is_granted).await;
    let after = replicas.status().await.expect("a status");
    let figures = replicas.check(format_args!("{failed} failed writes in {took:?}"));
    assert!(failed as f64 <= 5.0 + took.as_secs_f64(), "{failed} failed writes in {took:?}");
    assert_eq!((&after.primary, after.term), (&before.primary, before.term), "the primary has changed");
    assert!(figures.late(1.0) < Duration::from_secs(2) + replicas.noise(), "{figures}");
}

/// Many leases that can't be ended, and a change of primary among them.
#[trial]
async fn two_thousand_stuck_leases_delay_no_healthy_one_though_the_primary_dies() {
    const STUCK: usize = 2000;
    const HEALTHY: usize = 50;
    let replicas = Replicas::three("crowd", Way::Direct).await;
    replicas.granted("stuck-first", json!({"ttlSeconds": 600})).await;
    deny_status_by(&replicas, "object.metadata.name.startsWith('stuck')", "stuck-first").await;
    let params = PostParams::default();
    futures::stream::iter(0..STUCK)
        .for_each_concurrent(16, async |number| {
            let lease: Lease = serde_json::from_value(json!({
                "apiVersion": "lessor.dev/v1alpha1", "kind": "Lease",
                "metadata": {"name": format!("stuck-{number}"), "namespace": replicas.namespace},
                "spec": {"ttlSeconds": 600},
            }))
            .expect("a lease");
            replicas.leases().create(&params, &lease).await.expect("a lease");
        })
        .await;
    // Each of them is tried once before what is granted after it.
    replicas.lease("healthy-first", json!({"ttlSeconds": 10})).await;
    within(PATIENCE * 6, "each stuck lease was tried", async || {
        sleep(Duration::from_millis(500)).await;
        let first = replicas.leases().get_opt("healthy-first").await.expect("an answer");
        first.is_none_or(|lease| lease.is_granted()).then_some(())
    })
    .await;
    for number in 0..HEALTHY {
        replicas.granted(&format!("healthy-{number}"), json!({"ttlSeconds": 10 + number as i64 % 10})).await;
    }
    let primary = replicas.primary_now().await;
    sleep(Duration::from_secs(5)).await;
    replicas.all[primary].process.kill().await.expect("it is killed");
    for number in 0..HEALTHY {
        replicas.wait_gone(&format!("healthy-{number}")).await;
    }
    let begin = wall();
    sleep(Duration::from_secs(20)).await;
    let is_refused = |entry: &lessor_cluster::audit::Entry| {
        entry.received > begin && entry.name.starts_with("stuck") && !entry.is_accepted()
    };
    let refused = replicas.writes().filter(is_refused).requests();
    let figures = replicas.check(format_args!("{refused} refused writes in 20 s at the end"));
    assert!(figures.late(1.0) < LEASE_DURATION + replicas.noise(), "{figures}");
    assert!(refused <= 60, "{refused} refused writes in 20 s");
}

/// Lets the API server refuse each write of the status of these leases, and waits until it does.
async fn deny_status(replicas: &Replicas, names: &[&str]) {
    let is_one = names.iter().map(|name| format!("object.metadata.name == '{name}'")).collect::<Vec<_>>();
    deny_status_by(replicas, &is_one.join(" || "), names[0]).await;
}

/// The same for the leases that this expression means, of which one is `first`.
async fn deny_status_by(replicas: &Replicas, is_one: &str, first: &str) {
    let name = format!("deny-status-{}", replicas.namespace);
    let in_namespace = format!("object.metadata.namespace == '{}'", replicas.namespace);
    let policy: ValidatingAdmissionPolicy = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [{
                "apiGroups": ["lessor.dev"], "apiVersions": ["*"], "resources": ["leases/status"], "operations": ["UPDATE"],
            }]},
            "matchConditions": [{"name": "named", "expression": format!("{in_namespace} && ({is_one})")}],
            "validations": [{"expression": "false", "message": "no user may write the status of this lease"}],
        },
    }))
    .expect("a policy");
    let binding: ValidatingAdmissionPolicyBinding = serde_json::from_value(json!({
        "metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]},
    }))
    .expect("a binding");
    let params = PostParams::default();
    Api::all(replicas.client.clone()).create(&params, &policy).await.expect("a policy");
    Api::all(replicas.client.clone()).create(&params, &binding).await.expect("a binding");
    within(PATIENCE, "the policy is in force", async || {
        let dry = PatchParams { dry_run: true, ..holder() };
        let patch = Patch::Merge(json!({"status": {"attached": {"objects": 1}}}));
        let answer = replicas.leases().patch_status(first, &dry, &patch).await;
        answer.is_err_and(|error| error.to_string().contains("no user may write")).then_some(())
    })
    .await;
}

#[trial]
async fn an_absurd_term_is_reported_and_blocks_no_replica() {
    let replicas = Replicas::three("absurd", Way::Direct).await;
    let primary = replicas.primary_now().await;
    let first = replicas.status().await.expect("a status").term;
    replicas.granted("absurd", json!({"ttlSeconds": 2})).await;
    let patch: Value = json!({"status": {"term": i64::MAX}});
    replicas.leases().patch_status("absurd", &holder(), &Patch::Merge(patch)).await.expect("a patch");
    replicas.wait_event("absurd", "AbsurdTerm").await;
    replicas.granted("before", json!({"ttlSeconds": 2})).await;
    replicas.wait_gone("before").await;
    assert_eq!(replicas.status().await.expect("a status").term, first);

    replicas.granted("due", json!({"ttlSeconds": 2})).await;
    replicas.all[primary].process.kill().await.expect("it is killed");
    replicas.wait_gone("due").await;
    replicas.granted("after", json!({"ttlSeconds": 2})).await;
    replicas.wait_gone("after").await;
    // For a while, with nothing else to do, no replica tries to take over for it.
    sleep(2 * LEASE_DURATION).await;
    // Deleted, it goes: the namespace has to go too, some day.
    replicas.leases().delete("absurd", &DeleteParams::default()).await.expect("a deletion");
    replicas.wait_gone("absurd").await;
    let term = replicas.status().await.expect("a status").term;
    let figures = replicas.check(format_args!("term {term:?} after one SIGKILL"));
    assert_eq!(terms_since_the_first(&figures), [0, 1]);
    let writes = replicas.writes().resource("lessor.dev", "lessors").requests();
    assert!(writes <= 10, "{writes} writes of the Lessor for a lease that can't be written");
}
