//! Leases end by time: never early, soon after, all of them.

use std::time::Duration;

use futures::future::join_all;
use lessor_api::Lease;
use serde_json::json;
use tokio::time::sleep;

use crate::world::{MOMENT, World, has_condition, heavy, until};

pub(crate) async fn a_lease_that_is_not_renewed_ends_after_its_deadline_and_never_before() {
    let world = World::new("expiry").await;
    let _operator = world.primary(&[]).await;
    let bystander = world.bystander().await;
    world.config_map("attached", json!({"lessor.dev/lease": "short"}), &["a"]).await;
    let lease = world.granted("short", json!({"ttlSeconds": 2})).await;
    assert!(lease.has_finalizer(), "the finalizer comes before the grant");
    assert!(has_condition(&lease, "Active", "True", "Granted"));
    let ended = world.wait_ended("short").await;
    assert!(has_condition(&ended, "Active", "False", "Expired"));
    world.wait_map_gone("attached").await;
    world.wait_gone("short").await;
    let life = world.life("short");
    assert_eq!(life.ttl, Duration::from_secs(2));
    world.print_lateness("short");
    world.wait_event("short", "Expired").await;
    bystander.assert_untouched().await;
}

pub(crate) async fn a_lease_with_nothing_attached_ends_too() {
    let world = World::new("alone").await;
    let _operator = world.primary(&[]).await;
    world.lease("alone", json!({"ttlSeconds": 1})).await;
    world.wait_gone("alone").await;
    world.print_lateness("alone");
}

pub(crate) async fn a_lease_made_before_any_operator_runs_is_granted_a_full_ttl_by_the_first() {
    let world = World::new("first").await;
    world.lease("early", json!({"ttlSeconds": 1})).await;
    sleep(Duration::from_secs(2)).await;
    let _operator = world.operator(&[]);
    world.wait_gone("early").await;
    world.print_lateness("early");
}

pub(crate) async fn two_hundred_leases_all_end_in_time() {
    let _heavy = heavy().await;
    let world = World::new("many").await;
    let _operator = world.primary(&[]).await;
    let all = (0..200).map(async |number| {
        let name = format!("lease-{number}");
        if number % 4 == 0 {
            world.config_map(&name, json!({"lessor.dev/lease": name}), &["a"]).await;
        }
        world.lease(&name, json!({"ttlSeconds": 6 + number % 6})).await;
    });
    join_all(all).await;
    world.wait_all_gone().await;
    assert!(
        world
            .config_maps()
            .list_metadata(&Default::default())
            .await
            .expect("config maps")
            .items
            .iter()
            .all(|map| !map.metadata.name.as_deref().is_some_and(|name| name.starts_with("lease-")))
    );
    let lives = world.lives();
    assert_eq!(lives.len(), 200);
    world.print(format_args!("ended {} after their deadlines", world.lateness(&lives, Duration::ZERO)));
}

pub(crate) async fn retain_keeps_the_expired_lease_until_somebody_deletes_it() {
    let world = World::new("retain").await;
    let _operator = world.primary(&[]).await;
    world.config_map("attached", json!({"lessor.dev/lease": "kept"}), &["a"]).await;
    world.granted("kept", json!({"ttlSeconds": 1, "afterExpiry": "Retain"})).await;
    world.wait_map_gone("attached").await;
    let is_released =
        |lease: &Lease| has_condition(lease, "Released", "True", "Complete") && !lease.has_finalizer();
    let kept = world.wait_lease("kept", "is released", is_released).await;
    assert!(has_condition(&kept, "Active", "False", "Expired"));
    // What is attached to it now is attached to a name that no lease bears.
    let late = world.config_map("late", json!({"lessor.dev/lease": "kept"}), &["a"]).await;
    sleep(MOMENT).await;
    assert_eq!(world.leases().get("kept").await.expect("it is kept"), kept);
    assert_eq!(world.map("late").await, late);
    world.revoke("kept").await;
    world.wait_gone("kept").await;
    sleep(MOMENT).await;
    assert_eq!(world.map("late").await, late);
}

pub(crate) async fn retain_keeps_no_lease_that_is_revoked() {
    let world = World::new("retain-revoked").await;
    let _operator = world.primary(&[]).await;
    world.granted("gone", json!({"ttlSeconds": 600, "afterExpiry": "Retain"})).await;
    world.revoke("gone").await;
    world.wait_gone("gone").await;
}

pub(crate) async fn a_shorter_ttl_counts_from_the_change_and_is_published_at_once() {
    let world = World::new("shorter").await;
    let _operator = world.primary(&[]).await;
    let before = world.granted("lease", json!({"ttlSeconds": 600})).await.status.expect("a status");
    world.change("lease", json!({"ttlSeconds": 2})).await.expect("a renewal");
    let is_short = |lease: &Lease| {
        let status = lease.status.as_ref().expect("a status");
        status.granted_ttl_seconds == Some(2) && status.expiry_time < before.expiry_time
    };
    world.wait_lease("lease", "has a shorter TTL", is_short).await;
    world.wait_gone("lease").await;
    world.print_lateness("lease");
}

pub(crate) async fn a_name_used_again_is_another_lease() {
    let world = World::new("again").await;
    let _operator = world.primary(&[]).await;
    let first = world.granted("lease", json!({"ttlSeconds": 1})).await;
    world.wait_gone("lease").await;
    world.config_map("attached", json!({"lessor.dev/lease": "lease"}), &["a"]).await;
    let second = world.granted("lease", json!({"ttlSeconds": 2})).await;
    let token = |lease: &Lease| lease.status.as_ref().and_then(|status| status.fencing_token);
    assert!(token(&second) > token(&first), "fencing tokens grow with each lease of a name");
    world.wait_gone("lease").await;
    until("the config map is gone", async || {
        world.config_maps().get_opt("attached").await.expect("an answer").is_none().then_some(())
    })
    .await;
    let lives = world.lives();
    assert_eq!(lives.len(), 2);
    world.print(format_args!("ended {} after their deadlines", world.lateness(&lives, Duration::ZERO)));
}
