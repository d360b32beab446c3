//! The metrics of a live operator say what it did.

use std::collections::BTreeMap;

use kube::api::{DeleteParams, Patch, PatchParams};
use lessor_cluster::Process;
use lessor_kit::trial;
use serde_json::json;

use crate::release::{Release, ask, until};

/// The samples of a scrape, by name and labels as written.
async fn scrape(operator: &Process) -> BTreeMap<String, f64> {
    let (status, text) = ask(operator, "/metrics").await;
    assert_eq!(status, 200, "{text}");
    assert!(text.ends_with("# EOF\n"), "{text}");
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    samples
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').expect("a sample");
            (name.to_owned(), value.parse().expect("a number"))
        })
        .collect()
}

async fn wait_for(operator: &Process, sample: &str, value: f64) {
    until(&format!("{sample} is {value}"), async || {
        (scrape(operator).await.get(sample) == Some(&value)).then_some(())
    })
    .await;
}

#[trial]
async fn the_counts_are_those_of_what_was_done() {
    let release = Release::in_namespaces("counted").await;
    let operator = release.primary().await;
    let follower = release.operator().await;

    // Two leases that expire: one with an object and two keys, one with nothing.
    release.map("whole", json!({"lessor.dev/lease": "full"}), &["a"]).await;
    release
        .map("keys", json!({"key.lessor.dev/a": "full", "key.lessor.dev/b": "full"}), &["a", "b", "c"])
        .await;
    release.granted("full", json!({"ttlSeconds": 2})).await;
    release.granted("empty", json!({"ttlSeconds": 2})).await;
    release.renew("empty").await;
    // One that is revoked, and one that goes on.
    release.granted("revoked", json!({"ttlSeconds": 600})).await;
    release.granted("on", json!({"ttlSeconds": 600})).await;
    release.map("waits", json!({"lessor.dev/lease": "on"}), &["a"]).await;
    release.map("early", json!({"lessor.dev/lease": "nobody"}), &["a"]).await;
    release.leases().delete("revoked", &DeleteParams::default()).await.expect("a deletion");
    for name in ["full", "empty", "revoked"] {
        release.wait_gone(name).await;
    }

    wait_for(&operator, "lessor_releases_total", 3.0).await;
    wait_for(&operator, "lessor_leases{state=\"Granted\"}", 1.0).await;
    let samples = scrape(&operator).await;
    for (name, value) in [
        ("lessor_grants_total", 4.0),
        ("lessor_renewals_total", 1.0),
        ("lessor_expiries_total", 2.0),
        ("lessor_revokes_total", 1.0),
        ("lessor_removals_total{what=\"object\"}", 1.0),
        ("lessor_removals_total{what=\"key\"}", 2.0),
        ("lessor_expiry_lateness_seconds_count{until=\"commit\"}", 2.0),
        ("lessor_expiry_lateness_seconds_count{until=\"emptied\"}", 1.0),
        ("lessor_attachments{what=\"object\"}", 2.0),
        ("lessor_attachments{what=\"key\"}", 0.0),
        ("lessor_attachments_pending", 1.0),
        ("lessor_is_primary", 1.0),
        ("lessor_promotions_total", 1.0),
        ("lessor_leases_hindered", 0.0),
        ("lessor_apiserver_disconnected", 0.0),
        ("lessor_watches{kind=\"configmaps\",state=\"synced\"}", 2.0),
        ("lessor_watches{kind=\"leases.lessor.dev\",state=\"synced\"}", 2.0),
        ("lessor_request_duration_seconds_count{verb=\"delete-object\",outcome=\"ok\"}", 1.0),
        ("lessor_request_duration_seconds_count{verb=\"remove-keys\",outcome=\"ok\"}", 1.0),
    ] {
        assert_eq!(samples.get(name), Some(&value), "{name} in {samples:#?}");
    }
    assert!(samples["process_resident_memory_bytes"] > 1e6);
    let term = samples["lessor_term"];
    assert!(term >= 1.0, "{term}");

    // A follower has done nothing, and observes the same.
    let samples = scrape(&follower).await;
    assert_eq!(samples["lessor_is_primary"], 0.0);
    assert_eq!(samples["lessor_term"], term);
    assert_eq!(samples["lessor_grants_total"], 0.0);
    assert_eq!(samples["lessor_renewals_total"], 0.0);
    assert_eq!(samples["lessor_leases{state=\"Granted\"}"], 1.0);
}

#[trial]
async fn a_deletion_that_did_not_happen_is_not_counted() {
    let release = Release::in_namespaces("undone").await;
    let operator = release.primary().await;
    // It has a finalizer of its own: asked to go, it stays.
    release.map("stays", json!({"lessor.dev/lease": "over"}), &["a"]).await;
    let finalizer = Patch::Merge(json!({"metadata": {"finalizers": ["example.com/other"]}}));
    release.maps().patch("stays", &PatchParams::default(), &finalizer).await.expect("a finalizer");
    // And this one refuses.
    release.map("immutable", json!({"key.lessor.dev/a": "over"}), &["a"]).await;
    let immutable = Patch::Merge(json!({"immutable": true}));
    release.maps().patch("immutable", &PatchParams::default(), &immutable).await.expect("an immutable map");
    release.granted("over", json!({"ttlSeconds": 1})).await;

    wait_for(&operator, "lessor_hindrances_total{reason=\"Immutable\"}", 1.0).await;
    wait_for(&operator, "lessor_leases_hindered", 1.0).await;
    until("the deletion was asked for", async || {
        release.maps().get("stays").await.expect("the map").metadata.deletion_timestamp
    })
    .await;
    let samples = scrape(&operator).await;
    assert_eq!(samples["lessor_removals_total{what=\"object\"}"], 0.0);
    assert_eq!(samples["lessor_removals_total{what=\"key\"}"], 0.0);
    assert_eq!(samples["lessor_releases_total"], 0.0);

    // Now it goes, and the other one too: deleted by another user, that is no removal of ours.
    let none = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    release.maps().patch("stays", &PatchParams::default(), &none).await.expect("no finalizer");
    wait_for(&operator, "lessor_removals_total{what=\"object\"}", 1.0).await;
    release.maps().delete("immutable", &DeleteParams::default()).await.expect("a deletion");
    wait_for(&operator, "lessor_releases_total", 1.0).await;
    let samples = scrape(&operator).await;
    assert_eq!(samples["lessor_removals_total{what=\"object\"}"], 1.0);
    assert_eq!(samples["lessor_removals_total{what=\"key\"}"], 0.0);
}

#[trial]
async fn a_lease_that_the_primary_cannot_end_shows_as_overdue() {
    let release = Release::in_namespaces("overdue").await;
    let operator = release.primary().await;
    release.granted("stuck", json!({"ttlSeconds": 3})).await;
    take_away(&release, "patch", "leases/status").await;
    until("the lease shows as overdue", async || {
        let samples = scrape(&operator).await;
        assert_eq!(samples["lessor_is_primary"], 1.0);
        (samples["lessor_overdue_seconds"] > 3.0).then_some(())
    })
    .await;
    assert!(!release.leases().get("stuck").await.expect("the lease").is_ended());
}

/// An administrator takes a right away from the operator.
async fn take_away(release: &Release<'_>, verb: &str, resource: &str) {
    let roles: kube::Api<k8s_openapi::api::rbac::v1::Role> =
        kube::Api::namespaced(release.client.clone(), &release.leases_in);
    let list = roles.list(&Default::default()).await.expect("roles");
    let mut changed = list.items.into_iter().next().expect("a role");
    for rule in changed.rules.iter_mut().flatten() {
        if rule.resources.iter().flatten().any(|of| of == resource) {
            rule.verbs.retain(|of| of != verb);
        }
    }
    // A rule needs a verb.
    changed.rules.iter_mut().for_each(|rules| rules.retain(|rule| !rule.verbs.is_empty()));
    let name = changed.metadata.name.clone().expect("a name");
    roles.replace(&name, &Default::default(), &changed).await.expect("a role");
}

#[trial]
async fn a_missing_right_shows_in_metrics_and_readiness() {
    let release = Release::in_namespaces("blind").await;
    take_away(&release, "watch", "configmaps").await;
    let operator = release.operator().await;
    wait_for(&operator, "lessor_watches{kind=\"configmaps\",state=\"forbidden\"}", 1.0).await;
    let (status, said) = ask(&operator, "/readyz").await;
    println!("{status}: {said}");
}
