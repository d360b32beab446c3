//! Other replicas follow as well: a takeover, and restarts, move no deadline.

use std::time::Duration;

use k8s_openapi::jiff::SignedDuration;
use lessor_kit::{
    trial,
    world::{World, until},
};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::sources::{ALL, Heartbeat, Pods, check, followed};

fn node(world: &World) -> Value {
    json!({"node": {"name": world.namespace}})
}

#[trial]
async fn a_takeover_moves_no_deadline_and_ends_nothing_that_beats() {
    let world = World::new("takeover").await;
    let mut heart = Heartbeat::of_node(&world);
    heart.create().await;
    heart.start(Duration::from_secs(1));
    let pods = Pods::of(&world).await;
    pods.create("web").await;
    let first = world.primary(&ALL).await;
    let second = world.operator(&ALL);
    followed(&world, "node", 6, node(&world)).await;
    followed(&world, "chain", 6, json!({"lease": {"name": "node"}})).await;
    followed(&world, "pod", 6, json!({"pod": {"name": "web"}})).await;
    sleep(Duration::from_secs(8)).await;
    assert!(!second.log().contains("is primary under term"), "nothing was overdue");
    let last = heart.stop().await;
    sleep(Duration::from_secs(3)).await;
    first.kill().await.expect("it is killed");
    for name in ["node", "chain"] {
        world.wait_gone(name).await;
    }
    world.wait_for_primary(&second).await;
    let ends = ["node", "chain"].map(|name| {
        let end = world.life(name).end.expect("it has ended");
        let ttl = SignedDuration::from_secs(6);
        assert!(end.asked >= last.asked + ttl, "{name} ended early: {end:?} after {last:?}");
        end.answered.duration_since(last.answered + ttl).as_millis()
    });
    world.print(format_args!("ended {ends:?} ms after their TTL, by the next primary"));
    assert!(ends.iter().all(|late| *late < 15_000), "{ends:?}");
    assert!(!world.leases().get("pod").await.expect("it lives").is_ended());
    pods.delete("web").await;
    world.wait_gone("pod").await;
    check(&world);
}

#[trial]
async fn restarts_end_nothing_that_beats() {
    const TTL: u64 = 8;
    let world = World::new("restarts").await;
    let mut heart = Heartbeat::of_node(&world);
    heart.create().await;
    heart.start(Duration::from_secs(1));
    let pods = Pods::of(&world).await;
    pods.create("web").await;
    let mut operator = world.primary(&ALL).await;
    followed(&world, "node", TTL, node(&world)).await;
    followed(&world, "chain", TTL, json!({"lease": {"name": "node"}})).await;
    followed(&world, "pod", 2, json!({"pod": {"name": "web"}})).await;
    for _ in 0..3 {
        operator.kill().await.expect("it is killed");
        sleep(Duration::from_secs(6)).await;
        operator = world.operator(&ALL);
        // Past the grace of its start, and all that was left of any TTL.
        sleep(Duration::from_secs(TTL + 3)).await;
        assert_eq!(operator.exit_status(), None, "it ended: {}", operator.log());
    }
    for name in ["node", "chain", "pod"] {
        assert!(!world.leases().get(name).await.expect("it lives").is_ended(), "{name}");
    }
    // One that has stopped to beat while no replica ran counts from when the server recorded its last beat.
    operator.kill().await.expect("it is killed");
    let last = heart.stop().await;
    sleep(Duration::from_secs(TTL + 3)).await;
    let _operator = world.operator(&ALL);
    until("both have ended", async || {
        let leases = world.leases().list_metadata(&Default::default()).await.expect("leases");
        (leases.items.len() == 1).then_some(())
    })
    .await;
    for name in ["node", "chain"] {
        let end = world.life(name).end.expect("it has ended");
        assert!(end.asked >= last.asked + Duration::from_secs(TTL), "{name} ended early");
    }
    check(&world);
}
