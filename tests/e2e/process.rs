//! The operator as a process: how it starts, what it waits for, how it stops, and what a dry run leaves undone.

use std::time::Duration;

use lessor::runtime::AGENT;
use lessor_cluster::Cluster;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::world::{MOMENT, World, builder, install_crds, until};

pub(crate) async fn it_waits_for_crds_that_are_missing_and_says_so() {
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

pub(crate) async fn sigterm_ends_it_in_order_and_the_next_one_leads_at_once() {
    let world = World::new("sigterm").await;
    let operator = world.primary(&[]).await;
    world.granted("lease", json!({"ttlSeconds": 600})).await;
    let asked = Instant::now();
    let status = operator.stop().await.expect("it stops");
    let took = asked.elapsed();
    assert!(status.success(), "{status}: {}", operator.log());
    assert!(operator.log().contains("stopped"));
    let lessor = world.get_lessor().await.status.expect("a status");
    assert_eq!(lessor.primary.unwrap_or_default(), "", "the Lessor names nobody");
    assert_eq!(lessor.leases, Some(1));

    let (started, mark) = (Instant::now(), world.mark());
    let _next = world.primary(&[]).await;
    let led = started.elapsed();
    world.print(format_args!("stopped within {took:?}; the next one led {led:?} after its start"));
    let claims = world.asked(mark).writes().resource("lessor.dev", "lessors");
    assert_eq!(claims.requests(), 1, "a change of primary is one write: {claims}");
    // Shorter than a lease duration: it waited for nobody.
    assert!(took < Duration::from_secs(5) && led < Duration::from_secs(5));
    let next = world.get_lessor().await.status.expect("a status");
    assert_eq!(next.term, lessor.term.map(|term| term + 1));
    assert!(!world.leases().get("lease").await.expect("it lives").is_ended());
}

pub(crate) async fn a_dry_run_says_what_would_go_and_removes_nothing() {
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
