//! Leases that follow a Pod.

use std::time::Duration;

use k8s_openapi::{api::core::v1::Node, jiff::Timestamp};
use kube::{Api, api::DeleteParams};
use lessor_api::Lease;
use lessor_kit::{
    history::{Spread, Write},
    trial,
    world::{TOLERANCE, World, until},
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::sources::{ALL, Pods, check, followed, late_after, wait_following};

fn pod(name: &str) -> Value {
    json!({"pod": {"name": name}})
}

fn uid_of(lease: &Lease) -> Option<String> {
    lease.status.as_ref()?.follows.as_ref()?.uid.clone()
}

/// Does something to a Pod, and answers when: its lease's TTL runs from then.
async fn meanwhile(what: impl Future<Output = ()>) -> Write {
    let asked = Timestamp::now();
    what.await;
    Write { asked, answered: Timestamp::now() }
}

#[trial]
async fn a_lease_lives_as_long_as_its_pod_and_its_ttl_longer() {
    let world = World::new("pod").await;
    let pods = Pods::of(&world).await;
    let uid = pods.create("web").await;
    let _operator = world.primary(&ALL).await;
    world.config_map("session", json!({"lessor.dev/lease": "lease"}), &["a"]).await;
    let lease = followed(&world, "lease", 3, pod("web")).await;
    assert_eq!(uid_of(&lease), Some(uid));
    // Up to a second after the grant.
    until("what is attached is counted", async || {
        let status = world.leases().get("lease").await.ok()?.status?;
        (status.attached?.objects == 1).then_some(())
    })
    .await;
    let mark = world.mark();
    sleep(Duration::from_secs(8)).await;
    assert_eq!(world.asked(mark).requests(), 0, "{}", world.asked(mark));
    let lost = meanwhile(pods.delete("web")).await;
    world.wait_map_gone("session").await;
    world.wait_gone("lease").await;
    world.print(format_args!("{} late", Spread::of([late_after(&world, &world.life("lease"), lost)])));
    check(&world);
}

#[trial]
async fn a_lease_ends_at_once_with_its_pod_if_its_spec_asks_for_it() {
    let world = World::new("onloss").await;
    let pods = Pods::of(&world).await;
    let uid = pods.create("web").await;
    let _operator = world.primary(&ALL).await;
    let spec = |pod: Value| json!({"pod": pod});
    followed(&world, "lease", 600, spec(json!({"name": "web", "onLoss": "End"}))).await;
    // Named by a uid, it was there once.
    let other = uid.replace(|c: char| c.is_ascii_digit(), "0");
    let from = spec(json!({"name": "web", "uid": other, "onLoss": "End"}));
    world.lease("never", json!({"ttlSeconds": 600, "renewFrom": from})).await;
    world.wait_gone("never").await;
    let start = Instant::now();
    pods.delete("web").await;
    world.wait_gone("lease").await;
    world.print(format_args!("gone {:?} after its Pod", start.elapsed()));
    assert!(start.elapsed() < TOLERANCE + Duration::from_secs(5));
    check(&world);
}

#[trial]
async fn another_pod_of_the_name_is_another_pod() {
    let world = World::new("reborn").await;
    let pods = Pods::of(&world).await;
    pods.create("web").await;
    let _operator = world.primary(&ALL).await;
    let first = followed(&world, "lease", 6, pod("web")).await;
    let lost = meanwhile(pods.delete("web")).await;
    let uid = pods.create("web").await;
    let lease = wait_following(&world, "lease", "SourceReplaced").await;
    assert_eq!(uid_of(&lease), uid_of(&first));
    // The new one has leases of its own.
    let other = followed(&world, "other", 2, pod("web")).await;
    assert_eq!(uid_of(&other), Some(uid));
    world.wait_gone("lease").await;
    late_after(&world, &world.life("lease"), lost);
    assert!(!world.leases().get("other").await.expect("it lives").is_ended());
    check(&world);
}

#[trial]
async fn a_pod_that_has_succeeded_or_failed_is_over() {
    let world = World::new("finished").await;
    let pods = Pods::of(&world).await;
    let _operator = world.primary(&ALL).await;
    for phase in ["Succeeded", "Failed"] {
        let name = phase.to_lowercase();
        pods.create(&name).await;
        followed(&world, &name, 4, pod(&name)).await;
        followed(&world, &format!("{name}-at-once"), 600, json!({"pod": {"name": name, "onLoss": "End"}}))
            .await;
        let lost = meanwhile(pods.finish(&name, phase)).await;
        wait_following(&world, &name, "SourceFinished").await;
        world.wait_gone(&format!("{name}-at-once")).await;
        world.wait_gone(&name).await;
        late_after(&world, &world.life(&name), lost);
        // Found finished, it is no reason to live at all.
        world.granted("late", json!({"ttlSeconds": 1, "renewFrom": pod(&name)})).await;
        world.wait_gone("late").await;
    }
    check(&world);
}

#[trial]
async fn a_pod_on_a_dead_node_keeps_a_lease_alive_for_a_minute_after_its_grace_period() {
    let world = World::new("deadnode").await;
    let pods = Pods::of(&world).await;
    pods.create_on_dead_node("web", &world).await;
    let _operator = world.primary(&ALL).await;
    followed(&world, "runs-out", 5, pod("web")).await;
    followed(&world, "at-once", 600, json!({"pod": {"name": "web", "onLoss": "End"}})).await;
    pods.0.delete("web", &DeleteParams::default()).await.expect("a deletion");
    let deleted = Instant::now();
    sleep(Duration::from_secs(58)).await;
    for name in ["runs-out", "at-once"] {
        assert!(!world.leases().get(name).await.expect("it lives").is_ended(), "{name}");
    }
    world.wait_gone("at-once").await;
    let gone = deleted.elapsed();
    assert!(gone > Duration::from_secs(60), "{gone:?}");
    wait_following(&world, "runs-out", "SourceTerminating").await;
    world.wait_gone("runs-out").await;
    assert!(deleted.elapsed() > Duration::from_secs(65), "{:?}", deleted.elapsed());
    let pod = pods.0.get("web").await.expect("the Pod is there still");
    assert!(pod.metadata.deletion_timestamp.is_some());
    check(&world);
    let nodes: Api<Node> = Api::all(world.client.clone());
    nodes.delete(&world.namespace, &DeleteParams::default()).await.expect("a deletion");
}

#[trial]
async fn a_pod_that_was_replaced_while_no_operator_ran_is_noticed() {
    let world = World::new("asleep").await;
    let pods = Pods::of(&world).await;
    pods.create("web").await;
    pods.create("stays").await;
    let operator = world.primary(&ALL).await;
    followed(&world, "lease", 4, pod("web")).await;
    followed(&world, "at-once", 600, json!({"pod": {"name": "web", "onLoss": "End"}})).await;
    followed(&world, "stays", 4, pod("stays")).await;
    operator.kill().await.expect("it is killed");
    pods.delete("web").await;
    pods.create("web").await;
    sleep(Duration::from_secs(6)).await;
    let start = Timestamp::now();
    let _operator = world.operator(&ALL);
    world.wait_gone("at-once").await;
    world.wait_gone("lease").await;
    // Since when it was lost was unknown.
    let life = world.life("lease");
    let end = life.end.expect("it has ended");
    assert!(end.asked.duration_since(start).as_secs_f64() >= 4.0, "{life:?}");
    assert!(!world.leases().get("stays").await.expect("it lives").is_ended());
    check(&world);
}

#[trial]
async fn many_pods_are_followed_with_one_watch() {
    const MANY: usize = 20;
    let world = World::new("many").await;
    let pods = Pods::of(&world).await;
    let _operator = world.primary(&ALL).await;
    let mark = world.mark();
    for n in 0..MANY {
        pods.create(&format!("p{n}")).await;
        world.lease(&format!("l{n}"), json!({"ttlSeconds": 3, "renewFrom": pod(&format!("p{n}"))})).await;
    }
    for n in 0..MANY {
        wait_following(&world, &format!("l{n}"), "SourceAlive").await;
    }
    pods.create("bystander").await;
    followed(&world, "late", 3, pod("bystander")).await;
    sleep(Duration::from_secs(5)).await;
    for n in 0..MANY / 2 {
        pods.delete(&format!("p{n}")).await;
    }
    for n in 0..MANY / 2 {
        world.wait_gone(&format!("l{n}")).await;
    }
    let left = world.leases().list_metadata(&Default::default()).await.expect("leases").items.len();
    assert_eq!(left, MANY / 2 + 1);
    let watches = world
        .audit(mark)
        .agent(lessor_kit::world::AGENT)
        .filter(|entry| entry.resource == "pods" && entry.verb == "watch");
    world.print(format_args!(
        "{MANY} Pods were watched with {} watches, one after another",
        watches.requests()
    ));
    assert!(watches.requests() <= 2 * 9, "{watches}");
    check(&world);
}
