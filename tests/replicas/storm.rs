//! The network between the replicas and the API server is having a bad day.

use std::time::Duration;

use futures::{StreamExt, stream};
use kube::api::ListParams;
use lessor_cluster::proxy::Faults;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::{
    holder::Holder,
    replicas::{Replicas, Way, shared, within},
};

/// Leases that nobody renews. Half of them take a whole object each, the others keys of shared objects.
const LEFT: usize = 1000;
/// Leases that are renewed all the time, with an object each.
const HELD: usize = 20;
const KEYS: usize = 10;

pub(crate) async fn a_thousand_leases_expire_through_faulty_networks_and_nothing_else_goes() {
    let mut replicas = Replicas::none_on(shared().await, "storm").await;
    for _ in 0..3 {
        replicas.add(Way::Proxied, &["--concurrency", "128", "--event-rate", "1"]).await;
    }
    replicas.wait_ready().await;
    let held: Vec<String> = (0..HELD).map(|i| format!("held-{i}")).collect();
    for lease in &held {
        replicas.config_map(lease, json!({"lessor.dev/lease": lease}), &["a"]).await;
        replicas.granted(lease, json!({"ttlSeconds": 30})).await;
    }
    let holder = Holder::of(&replicas, &held, Duration::from_secs(5));
    for (seed, replica) in (1..).zip(&replicas.all) {
        replica.proxy().set_faults([Faults::bad_day(seed)]);
    }
    let started = Instant::now();
    stream::iter(0..LEFT)
        .for_each_concurrent(8, async |i| {
            let lease = format!("left-{i}");
            if i < LEFT / 2 {
                replicas.config_map(&lease, json!({"lessor.dev/lease": lease}), &["a"]).await;
            } else if i % KEYS == 0 {
                // One key stays, attached to nothing.
                let keys: Vec<String> =
                    (i..i + KEYS).map(|i| format!("key-{i}")).chain(["stays".to_owned()]).collect();
                let annotations: Map<String, Value> = (i..i + KEYS)
                    .map(|i| (format!("key.lessor.dev/key-{i}"), json!(format!("left-{i}"))))
                    .collect();
                let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
                replicas.config_map(&format!("keys-{i}"), Value::Object(annotations), &keys).await;
            }
            replicas.lease_with_finalizer(&lease, json!({"ttlSeconds": 20 + i % 20})).await;
        })
        .await;
    let made = started.elapsed();
    within(Duration::from_secs(180), "all leases are gone", async || {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let left = replicas.leases().list_metadata(&ListParams::default()).await.expect("leases");
        (left.items.len() == HELD).then_some(())
    })
    .await;
    let took = started.elapsed();
    let counts = replicas.all.iter().map(|replica| replica.proxy().counts());
    let counts: Vec<_> = counts.map(|c| (c.requests, c.dropped, c.cut, c.refused)).collect();
    for replica in &replicas.all {
        replica.proxy().set_faults([]);
        assert_eq!(replica.process.exit_status(), None, "{}", replica.process.log());
    }

    assert_eq!(holder.stop().await.ended, 0, "a lease that is renewed has ended");
    for lease in &held {
        assert!(replicas.lives(lease).await, "lease {lease} has ended");
        replicas.config_maps().get(lease).await.expect("it is there");
    }
    let maps = replicas.config_maps().list(&ListParams::default()).await.expect("config maps");
    let shared =
        maps.iter().filter(|map| map.metadata.name.as_deref().is_some_and(|name| name.starts_with("keys-")));
    let shared: Vec<_> =
        shared.map(|map| map.data.iter().flatten().map(|(key, _)| &**key).collect::<Vec<_>>()).collect();
    assert_eq!(shared, vec![vec!["stays"]; LEFT / 2 / KEYS]);
    let figures = replicas.check(format_args!(
        "{LEFT} leases made in {made:?}, all gone after {took:?}; by replica (requests, dropped, cut, refused): {counts:?}"
    ));
    assert_eq!((figures.expired + figures.unlogged, figures.objects), (LEFT, LEFT / 2), "{figures}");
    // Every write of such a primary has one chance in ten to be lost, and none of these is a reason to depose it.
    assert!(figures.primaries.len() <= 4, "a storm of changes of primary: {figures}");
}
