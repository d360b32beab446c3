//! What the API server itself does and refuses once the chart is installed.

use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use lessor_api::{Lease, Lessor, lease::FINALIZER};
use lessor_kit::trial;
use serde_json::json;

use crate::release::{Release, until};

#[trial]
async fn a_lease_has_its_finalizer_from_its_creation_on_and_keeps_it() {
    let release = Release::in_namespaces("finalizer").await;
    // No operator runs: it's the server that sets it, as soon as it has seen the policy.
    until("the policy is in force", async || {
        let name = crate::release::unique("probe");
        let lease = release.lease(&name, json!({"ttlSeconds": 1})).await;
        lease.metadata.finalizers.is_some_and(|names| names == [FINALIZER]).then_some(())
    })
    .await;
    let others = json!({
        "apiVersion": "lessor.dev/v1alpha1", "kind": "Lease", "spec": {"ttlSeconds": 1},
        "metadata": {"name": "kept", "finalizers": ["example.com/other"]},
    });
    let others: Lease = serde_json::from_value(others).expect("a lease");
    let made = release.leases().create(&PostParams::default(), &others).await.expect("a lease");
    let mut finalizers = made.metadata.finalizers.expect("finalizers");
    finalizers.sort();
    assert_eq!(finalizers, ["example.com/other", FINALIZER]);

    // A write that would drop it keeps it. One as `lessor detach-finalizers` sends it takes it away.
    let mut replaced = release.leases().get("kept").await.expect("a lease");
    replaced.metadata.finalizers = None;
    let replaced =
        release.leases().replace("kept", &PostParams::default(), &replaced).await.expect("a lease");
    assert_eq!(replaced.metadata.finalizers, Some(vec![FINALIZER.to_owned()]));
    let none = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    let kept = release.leases().patch("kept", &PatchParams::default(), &none).await.expect("a lease");
    assert_eq!(kept.metadata.finalizers, Some(vec![FINALIZER.to_owned()]));
    let detach = PatchParams { field_manager: Some("lessor".to_owned()), ..PatchParams::default() };
    let detached = release.leases().patch("kept", &detach, &none).await.expect("a lease");
    assert_eq!(detached.metadata.finalizers, None);

    // A lease that is being deleted may lose it by any user.
    release.lease("deleted", json!({"ttlSeconds": 1})).await;
    release.leases().delete("deleted", &DeleteParams::default()).await.expect("a deletion");
    release.leases().patch("deleted", &PatchParams::default(), &none).await.expect("a lease");
    assert!(release.leases().get_opt("deleted").await.expect("an answer").is_none());

    // And the operator then needs one request less: its first write is the grant.
    let operator = release.primary().await;
    release.granted("served", json!({"ttlSeconds": 600})).await;
    let writes = release.audit().await.writes().filter(|entry| entry.name == "served");
    assert_eq!(writes.requests(), 1, "{:?}", writes.iter().map(ToString::to_string).collect::<Vec<_>>());
    drop(operator);
}

#[trial]
async fn only_the_operator_writes_the_status_of_leases_and_of_its_lessor() {
    let release = Release::in_namespaces("status").await;
    let operator = release.primary().await;
    let lease = release.granted("guarded", json!({"ttlSeconds": 600})).await;
    let patch = Patch::Merge(json!({"status": {"primary": "somebody"}}));
    let said = until("the policy is in force", async || {
        // The administrator may do anything, as far as RBAC goes.
        let patched = release.leases().patch_status("guarded", &PatchParams::default(), &patch).await;
        patched.err().map(|error| error.to_string())
    })
    .await;
    assert!(said.contains("only the operator writes the status of a lease"), "{said}");

    let lessors: Api<Lessor> = Api::all(release.client.clone());
    let name = lease.metadata.namespace.expect("a namespace");
    let said = until("the policy is in force", async || {
        let patched = lessors.patch_status(&name, &PatchParams::default(), &patch).await;
        patched.err().map(|error| error.to_string())
    })
    .await;
    assert!(said.contains("only the operator writes who is primary"), "{said}");

    // By no other way, either: as it has a path of its own, the API server drops it from what is written to the lease.
    let ended = json!({
        "apiVersion": "lessor.dev/v1alpha1", "kind": "Lease", "metadata": {"name": "made"},
        "spec": {"ttlSeconds": 600}, "status": {"primary": "somebody"},
    });
    let made: Lease = serde_json::from_value(ended.clone()).expect("a lease");
    let made = release.leases().create(&PostParams::default(), &made).await.expect("a lease");
    assert_eq!(made.status, None);
    // Another name than the one above, which was written as long as the policy was not in force.
    let patched = release.patch("guarded", json!({"status": {"primary": "another"}})).await.expect("a lease");
    assert_ne!(patched.status.expect("its status").primary.as_deref(), Some("another"));
    let mut absent = ended;
    absent["metadata"]["name"] = json!("absent");
    let absent: Lease = serde_json::from_value(absent).expect("a lease");
    release
        .leases()
        .replace_status("absent", &PostParams::default(), &absent)
        .await
        .expect_err("no such lease");
    assert!(release.leases().get_opt("absent").await.expect("an answer").is_none());
    let mut foreign: Lessor = lessors.get(&name).await.expect("a Lessor");
    foreign.metadata =
        kube::api::ObjectMeta { name: Some(format!("{name}-made")), ..kube::api::ObjectMeta::default() };
    assert_ne!(foreign.status, None);
    let made = lessors.create(&PostParams::default(), &foreign).await.expect("a Lessor");
    assert_eq!(made.status, None);
    // The rest of a lease is its holder's.
    release.renew("guarded").await;
    drop(operator);
}
