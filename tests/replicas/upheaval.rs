//! A user deletes what the replicas depend on.

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, api::DeleteParams};
use lessor_api::{Lease, Lessor, crd};
use lessor_kit::{trial, world::install_crds};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::replicas::{LEASE_DURATION, OwnCluster, PATIENCE, Replicas, Way, within};

#[trial]
async fn a_lessor_deleted_by_hand_comes_back_and_terms_go_on() {
    let mut replicas = Replicas::three("deleted", Way::Direct).await;
    // Terms on leases are to be higher than that of a Lessor made anew.
    for _ in 0..2 {
        let primary = replicas.primary_now().await;
        replicas.all[primary].process.stop().await.expect("it stops");
        replicas.wait_for_primary_beside(primary).await;
        replicas.restart(primary);
        replicas.wait_ready().await;
    }
    replicas.granted("long", json!({"ttlSeconds": 1000})).await;
    replicas.granted("due", json!({"ttlSeconds": 4})).await;
    let before = replicas.status().await.expect("a status");
    let lessors: Api<Lessor> = Api::all(replicas.client.clone());
    lessors.delete(&replicas.lessor, &DeleteParams::default()).await.expect("a deletion");
    let deleted = Instant::now();
    replicas.primary_now().await;
    let back = deleted.elapsed();
    replicas.wait_gone("due").await;
    // A lease that carries the earlier term can still be written.
    replicas.leases().delete("long", &DeleteParams::default()).await.expect("a revoke");
    replicas.wait_gone("long").await;
    let after = replicas.status().await.expect("a status");
    let figures = replicas.check(format_args!(
        "a primary again {back:?} after the deletion; term {:?} before, {:?} after",
        before.term, after.term
    ));
    assert!(after.term > before.term || (after.term == before.term && after.primary == before.primary));
    assert!(back < LEASE_DURATION + replicas.noise());
    assert!(figures.late_of("due").expect("it expired") < LEASE_DURATION + replicas.noise());
}

#[trial]
async fn both_crds_can_be_deleted_at_once() {
    const LEASES: usize = 50;
    let cluster = OwnCluster::start().await;
    let replicas = Replicas::three_on(cluster.0, "crds", Way::Direct).await;
    for i in 0..LEASES {
        let lease = format!("lease-{i}");
        replicas.config_map(&lease, json!({"lessor.dev/lease": lease}), &["a"]).await;
        replicas.lease_with_finalizer(&lease, json!({"ttlSeconds": 1000})).await;
    }
    for i in 0..LEASES {
        replicas.wait_lease(&format!("lease-{i}"), "is granted", Lease::is_granted).await;
    }
    let crds: Api<CustomResourceDefinition> = Api::all(replicas.client.clone());
    let deleted = Instant::now();
    for crd in crd::all() {
        crds.delete(crd.metadata.name.as_deref().expect("a name"), &DeleteParams::default())
            .await
            .expect("a deletion");
    }
    within(2 * PATIENCE, "both CRDs are gone", async || {
        crds.list(&Default::default()).await.expect("crds").items.is_empty().then_some(())
    })
    .await;
    let gone = deleted.elapsed();
    for i in 0..LEASES {
        replicas.wait_map_gone(&format!("lease-{i}")).await;
    }
    sleep(LEASE_DURATION).await;
    for replica in &replicas.all {
        assert_eq!(replica.process.exit_status(), None, "{}", replica.process.log());
    }

    // Installed anew, everything works again, without a restart.
    let installed = Instant::now();
    install_crds(cluster.0).await;
    replicas.primary_now().await;
    let back = installed.elapsed();
    replicas.config_map("new", json!({"lessor.dev/lease": "new"}), &["a"]).await;
    within(2 * PATIENCE, "the kind lease is served", async || {
        replicas.leases().list(&Default::default()).await.ok().map(drop)
    })
    .await;
    replicas.granted("new", json!({"ttlSeconds": 2})).await;
    replicas.wait_map_gone("new").await;
    replicas.wait_gone("new").await;
    let figures = replicas.check(format_args!(
        "{LEASES} leases, their objects and both CRDs were gone after {gone:?}; a primary again {back:?} after new ones"
    ));
    assert_eq!((figures.revoked, figures.objects), (LEASES, LEASES + 1));
    assert!(gone < Duration::from_secs(30), "{gone:?}");
}
