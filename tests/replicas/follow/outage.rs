//! The API server hangs: nodes can't beat, and lease time stands still (P8).

use std::time::Duration;

use lessor_cluster::Cluster;
use lessor_kit::{
    history::Spread,
    trial,
    world::{World, install_crds},
};
use serde_json::json;
use tokio::time::sleep;

use super::sources::{ALL, Heartbeat, Pods, check, followed, late_after};

#[trial]
async fn no_lease_ends_because_a_node_could_not_beat_in_an_outage() {
    // What a test starts on it may be kept for as long as the process runs.
    let cluster: &'static Cluster = Box::leak(Box::new(Cluster::start().await.expect("a cluster")));
    let _stop = Stop(cluster);
    install_crds(cluster).await;
    let world = World::on(cluster, "outage").await;
    let mut heart = Heartbeat::of_node(&world);
    heart.create().await;
    heart.start(Duration::from_secs(2));
    let pods = Pods::of(&world).await;
    pods.create("web").await;
    let _operator = world.primary(&ALL).await;
    followed(&world, "node", 10, json!({"node": {"name": world.namespace}})).await;
    followed(&world, "node-too", 10, json!({"lease": {"name": "node"}})).await;
    followed(&world, "pod", 5, json!({"pod": {"name": "web"}})).await;
    sleep(Duration::from_secs(2)).await;

    let server = cluster.api_server().expect("an API server");
    server.pause().expect("it is paused");
    sleep(Duration::from_secs(25)).await;
    server.resume().expect("it goes on");
    sleep(Duration::from_secs(12)).await;
    for name in ["node", "node-too", "pod"] {
        assert!(!world.leases().get(name).await.expect("it lives").is_ended(), "{name}");
    }
    let last = heart.stop().await;
    for name in ["node", "node-too"] {
        world.wait_gone(name).await;
        let late = Spread::of([late_after(&world, &world.life(name), last)]);
        world.print(format_args!("{name}: {late} late"));
    }
    check(&world);
}

/// Stops the servers of a cluster.
struct Stop(&'static Cluster);

impl Drop for Stop {
    fn drop(&mut self) {
        for server in [self.0.api_server(), self.0.etcd()].into_iter().flatten() {
            // The only failure is that it's gone already.
            let _ = server.resume();
            let _ = server.process().terminate();
        }
    }
}
