//! Leases end by time: never early, and soon after.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use crate::world::{TOLERANCE, World};

#[tokio::test]
async fn a_lease_that_is_not_renewed_ends_after_its_deadline_and_never_before() {
    let world = World::new("expiry").await;
    let _operator = world.primary(&[]).await;
    world.config_map("attached", json!({"lessor.dev/lease": "short"}), &["a"]).await;
    let asked = Instant::now();
    world.granted("short", json!({"ttlSeconds": 3})).await;
    let granted = Instant::now();
    world.wait_ended("short").await;
    let ended = Instant::now();
    assert!(ended - asked >= Duration::from_secs(3), "ended early: {:?}", ended - asked);
    let late = ended.duration_since(granted + Duration::from_secs(3));
    eprintln!("lateness: at most {late:?}");
    assert!(late < TOLERANCE);
    world.wait_map_gone("attached").await;
    world.wait_gone("short").await;
}
