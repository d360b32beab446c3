//! Leases that follow a heartbeat: of a node, or a coordination Lease of their own namespace.

use std::time::Duration;

use futures::{StreamExt, stream};
use lessor_kit::{
    history::Spread,
    trial,
    world::{World, heavy, until},
};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::sources::{
    ALL, Heartbeat, check, followed, following, late_after, late_after_most, wait_following,
};

fn node(world: &World) -> Value {
    json!({"node": {"name": world.namespace}})
}

#[trial]
async fn a_thousand_leases_follow_one_heartbeat_at_no_request_and_end_in_time_when_it_stops() {
    const MANY: usize = 1000;
    let _alone = heavy().await;
    let world = World::new("thousand").await;
    let mut heart = Heartbeat::of_node(&world);
    heart.create().await;
    heart.start(Duration::from_secs(2));
    let _operator = world.primary(&ALL).await;
    let spec = json!({"ttlSeconds": 10, "renewFrom": node(&world)});
    let make = async |n: usize| drop(world.lease(&n.to_string(), spec.clone()).await);
    stream::iter(0..MANY).for_each_concurrent(16, make).await;
    until("all of them follow it", async || {
        let leases = world.leases().list(&Default::default()).await.expect("leases");
        let follow = leases.items.iter().filter(|lease| following(lease) == Some("SourceAlive")).count();
        sleep(Duration::from_millis(500)).await;
        (follow == MANY).then_some(())
    })
    .await;
    until("what was to be written is written", async || {
        let mark = world.mark();
        sleep(Duration::from_secs(3)).await;
        (world.asked(mark).requests() == 0).then_some(())
    })
    .await;

    let (mark, nodes) = (world.mark(), reads_of_node(&world, world.mark()));
    assert_eq!(nodes, 0);
    sleep(Duration::from_secs(25)).await;
    let asked = world.asked(mark);
    assert_eq!(asked.requests() + reads_of_node(&world, mark), 0, "{asked}");
    let left = world.leases().list_metadata(&Default::default()).await.expect("leases").items.len();
    assert_eq!(left, MANY, "no lease ends");

    let (mark, last) = (world.mark(), heart.stop().await);
    world.wait_all_gone().await;
    let lives = world.lives();
    assert_eq!(lives.len(), MANY);
    // A thousand at once, on a machine that has other things to do.
    let more = Duration::from_secs(30);
    let late = Spread::of(lives.iter().map(|life| late_after_most(&world, life, last, more)));
    let read = reads_of_node(&world, mark);
    world.print(format_args!(
        "{MANY} leases ended {late} after the TTL; their heartbeat was read {read} times"
    ));
    assert!(read > 0 && read < MANY / 4, "read {read} times");
    check(&world);
}

#[trial]
async fn a_heartbeat_that_is_deleted_and_made_anew_is_followed_again() {
    let world = World::new("anew").await;
    let mut heart = Heartbeat::new(&world, &world.namespace, "heart");
    heart.create().await;
    let _operator = world.primary(&ALL).await;
    let from = json!({"coordinationLease": {"name": "heart"}});
    let lease = followed(&world, "lives", 10, from.clone()).await;
    assert_eq!(lease.status.as_ref().and_then(|status| status.expiry_time.clone()), None);
    followed(&world, "dies", 2, from).await;
    heart.delete().await;
    let lease = wait_following(&world, "lives", "SourceMissing").await;
    assert!(lease.status.is_some_and(|status| status.expiry_time.is_some()), "its TTL runs");
    world.wait_event("lives", "NotFollowing").await;
    world.wait_gone("dies").await;
    heart.create().await;
    wait_following(&world, "lives", "SourceAlive").await;
    heart.start(Duration::from_secs(2));
    sleep(Duration::from_secs(11)).await;
    let last = heart.stop().await;
    world.wait_gone("lives").await;
    world.print(format_args!("{} late", Spread::of([late_after(&world, &world.life("lives"), last)])));
    check(&world);
}

#[trial]
async fn a_heartbeat_that_comes_late_is_followed_once_it_is_there() {
    let world = World::new("late").await;
    let _operator = world.primary(&ALL).await;
    for name in ["waits", "gives-up"] {
        let ttl = if name == "waits" { 60 } else { 2 };
        world.granted(name, json!({"ttlSeconds": ttl, "renewFrom": node(&world)})).await;
    }
    wait_following(&world, "waits", "SourceMissing").await;
    // The TTL runs from the grant.
    world.wait_gone("gives-up").await;
    world.assert_punctual("gives-up");
    let heart = Heartbeat::of_node(&world);
    heart.create().await;
    let lease = wait_following(&world, "waits", "SourceAlive").await;
    let follows = lease.status.and_then(|status| status.follows).expect("what it follows");
    assert_eq!(follows.source, format!("node/{}", world.namespace));
    check(&world);
}

#[trial]
async fn a_beat_counts_before_its_watch_event_arrives() {
    const TTL: Duration = Duration::from_secs(6);
    let world = World::new("unshown").await;
    let heart = Heartbeat::of_node(&world);
    heart.create().await;
    let proxy = world.cluster.proxy().await.expect("a proxy");
    // The watch never gets an answer; reading does.
    let name = format!("metadata.name={}", world.namespace);
    let hold = proxy.hold_answer(move |seen| {
        seen.is_watch()
            && seen.path.contains("/coordination.k8s.io/")
            && seen.query.replace("%3D", "=").contains(&name)
    });
    let operator = world.operator_with(proxy.kubeconfig_path(), &ALL);
    world.wait_for_primary(&operator).await;
    world.granted("lease", json!({"ttlSeconds": TTL.as_secs(), "renewFrom": node(&world)})).await;
    hold.reached().await;
    let mut last = heart.last().await;
    for _ in 0..6 {
        sleep(Duration::from_secs(2)).await;
        heart.beat().await;
        last = heart.last().await;
    }
    world.wait_gone("lease").await;
    // A beat that is only read counts from then.
    let late = late_after_most(&world, &world.life("lease"), last, TTL);
    world.print(format_args!("{} late", Spread::of([late])));
    check(&world);
}

#[trial]
async fn renewals_by_hand_count_beside_the_heartbeat() {
    let world = World::new("byhand").await;
    let heart = Heartbeat::of_node(&world);
    heart.create().await;
    let _operator = world.primary(&ALL).await;
    followed(&world, "lease", 8, node(&world)).await;
    // The heart beats no more.
    for _ in 0..7 {
        sleep(Duration::from_millis(1500)).await;
        world.renew("lease").await.expect("a renewal");
    }
    world.wait_gone("lease").await;
    world.assert_punctual("lease");
    check(&world);
}

#[trial]
async fn another_source_renews_nothing_by_itself() {
    let world = World::new("another").await;
    let _operator = world.primary(&ALL).await;
    world.granted("lease", json!({"ttlSeconds": 6})).await;
    let heart = Heartbeat::of_node(&world);
    heart.create().await;
    // Long enough ago that its last beat makes no difference.
    sleep(Duration::from_secs(3)).await;
    world
        .change("lease", json!({"renewFrom": {"coordinationLease": {"name": "nobody"}}}))
        .await
        .expect("a change");
    world.wait_gone("lease").await;
    world.assert_punctual("lease");
    check(&world);
}

/// How often the heartbeat of a world's node was read since then.
fn reads_of_node(world: &World, since: lessor_cluster::audit::Mark) -> usize {
    let entries = world.cluster.audit().expect("an audit log").since(since).expect("its entries");
    let entries = entries.agent(lessor_kit::world::AGENT);
    entries
        .filter(|entry| entry.name == world.namespace && entry.verb == "get" && entry.resource == "leases")
        .requests()
}
