//! The operator as a process: how it starts, what it waits for, how it stops, and what a dry run leaves undone.

use std::time::Duration;

use lessor_cluster::Cluster;
use lessor_kit::{
    trial,
    world::{AGENT, MOMENT, World, builder, install_crds, until},
};
use serde_json::json;
use tokio::time::{Instant, sleep};

#[trial(not_by_chart)]
async fn the_operator_waits_for_missing_crds_and_logs_them() {
    let cluster: &'static Cluster = Box::leak(Box::new(builder().start().await.expect("a cluster")));
    let world = World::on(cluster, "no-crds").await;
    let operator = world.operator(&[]);
    until("it says what is missing", async || {
        let log = operator.log();
        let says = |kind| log.lines().any(|line| line.contains(kind) && line.contains("apply the CRDs"));
        (says("leases.lessor.dev") && says("lessors.lessor.dev")).then_some(())
    })
    .await;
    sleep(Duration::from_secs(3)).await;
    assert_eq!(operator.exit_status(), None, "it waits: {}", operator.log());
    let asked =
        world.cluster.audit().expect("an audit log").entries().expect("entries").agent(AGENT).requests();
    world.print(format_args!("{asked} requests in 3 s without CRDs"));
    assert!(asked <= 40, "it asks with growing pauses");
    let warnings = operator.log().lines().filter(|line| line.contains("WARN")).count();
    assert_eq!(warnings, 2, "each is said once: {}", operator.log());
    install_crds(cluster).await;
    let installed = Instant::now();
    world.wait_for_primary(&operator).await;
    world.print(format_args!("primary {:?} after the CRDs were installed", installed.elapsed()));
    world.config_map("attached", json!({"lessor.dev/lease": "lease"}), &["a"]).await;
    world.granted("lease", json!({"ttlSeconds": 1})).await;
    world.wait_map_gone("attached").await;
    world.wait_gone("lease").await;
}

#[trial]
async fn after_sigterm_the_operator_resigns_and_the_next_one_leads_at_once() {
    let world = World::new("sigterm").await;
    let operator = world.primary(&[]).await;
    world.granted("lease", json!({"ttlSeconds": 600})).await;
    let asked = Instant::now();
    let status = operator.stop().await.expect("it stops");
    let took = asked.elapsed();
    assert!(status.success(), "{status}: {}", operator.log());
    assert!(operator.log().contains("stopped"));
    let lessor = world.get_lessor().await.status.expect("a status");
    assert_eq!(lessor.primary.unwrap_or_default(), "", "the Lessor names no primary");
    assert_eq!(lessor.leases, Some(1));

    let (started, mark) = (Instant::now(), world.mark());
    let _next = world.primary(&[]).await;
    let led = started.elapsed();
    world.print(format_args!("stopped within {took:?}; the next one led {led:?} after its start"));
    let claims = world.asked(mark).writes().resource("lessor.dev", "lessors");
    assert_eq!(claims.requests(), 1, "a change of primary is one write: {claims}");
    // Shorter than a lease duration: it waited for no other replica.
    assert!(took < Duration::from_secs(5) && led < Duration::from_secs(5));
    let next = world.get_lessor().await.status.expect("a status");
    assert_eq!(next.term, lessor.term.map(|term| term + 1));
    assert!(!world.leases().get("lease").await.expect("it lives").is_ended());
}

#[trial]
async fn a_dry_run_reports_what_it_would_remove_and_removes_nothing() {
    let world = World::new("dry-run").await;
    let operator = world.primary(&["--dry-run"]).await;
    let whole = world.config_map("whole", json!({"lessor.dev/lease": "lease"}), &["a"]).await;
    let keys = world.config_map("keys", json!({"key.lessor.dev/a": "lease"}), &["a", "b"]).await;
    world.granted("lease", json!({"ttlSeconds": 1})).await;
    world.granted("deleted", json!({"ttlSeconds": 600})).await;
    let event = world.wait_event("lease", "WouldEnd").await;
    let note = event.note.expect("a note");
    assert!(note.contains(&format!("{}/whole", world.namespace)), "{note}");
    assert!(note.contains(&format!("{}/keys", world.namespace)), "{note}");
    assert!(operator.log().contains(&note), "the log says the same");
    world.revoke("deleted").await;
    world.wait_gone("deleted").await;

    sleep(MOMENT).await;
    assert!(!world.leases().get("lease").await.expect("it is there").is_ended());
    assert_eq!((world.map("whole").await, world.map("keys").await), (whole, keys));
    let asked = world.all_asked().writes().filter(|entry| {
        entry.verb == "delete"
            || entry.resource == "configmaps"
            || (entry.resource == "leases" && entry.subresource != "status")
    });
    assert_eq!(asked.requests(), 0, "{asked}");
}
