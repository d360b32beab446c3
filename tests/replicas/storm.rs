//! The network between the replicas and the API server is having a bad day.

use std::{ops::Range, time::Duration};

use futures::{StreamExt, stream};
use kube::api::ListParams;
use lessor_cluster::proxy::Faults;
use lessor_kit::trial;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::{
    holder::Holder,
    replicas::{PATIENCE, Replicas, Way, shared, within},
};

/// Each request takes up to 2 s, and one in seven goes wrong. 429 is rare, since it asks for a second of patience, and is
/// obeyed: at 2 % of all requests nothing else would be seen.
fn storm(seed: u64) -> Faults {
    let faults = Faults::new(seed).latency(Duration::from_secs(2)).drop(0.03).cut(0.04).answer(429, 0.002);
    [500, 503, 409].into_iter().fold(faults, |faults, status| faults.answer(status, 0.02))
}

/// Leases without a holder. Half of them take a whole object each, the others keys of shared objects.
const LEFT: usize = 1000;
/// How many of these are made in the storm.
const IN_STORM: usize = 200;
/// Leases that are renewed all the time, with an object each.
const HELD: usize = 20;
const KEYS: usize = 10;

#[trial(long)]
async fn a_thousand_leases_expire_through_faulty_networks_and_nothing_else_goes() {
    let mut replicas = Replicas::none_on(shared().await, "storm").await;
    for _ in 0..3 {
        replicas.add(Way::Proxied, &["--concurrency", "48", "--event-rate", "1", "--status-rate", "5"]).await;
    }
    replicas.wait_ready().await;
    let held: Vec<String> = (0..HELD).map(|i| format!("held-{i}")).collect();
    for lease in &held {
        replicas.config_map(lease, json!({"lessor.dev/lease": lease}), &["a"]).await;
        replicas.granted(lease, json!({"ttlSeconds": 30})).await;
    }
    let holder = Holder::of(&replicas, &held, Duration::from_secs(5));
    // Most of them are granted before the storm and end in it, the others live in it altogether.
    let started = Instant::now();
    make(&replicas, 0..LEFT - IN_STORM, 50).await;
    within(3 * PATIENCE, "the leases are granted", async || {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let leases = replicas.leases().list(&ListParams::default()).await.expect("leases");
        leases.iter().all(|lease| lease.is_granted()).then_some(())
    })
    .await;
    let granted = started.elapsed();
    for (seed, replica) in (1..).zip(&replicas.all) {
        replica.proxy().set_faults([storm(seed)]);
    }
    make(&replicas, LEFT - IN_STORM..LEFT, 10).await;
    within(Duration::from_secs(600), "all leases are gone", async || {
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

    // Before their holders stop: on a busy machine the check takes longer than their TTL.
    for lease in &held {
        assert!(replicas.lives(lease).await, "lease {lease} has ended");
        replicas.config_maps().get(lease).await.expect("it is there");
    }
    let renewals = holder.stop().await;
    let figures = replicas.check(format_args!(
        "{LEFT} leases, most of them granted in {granted:?}, all gone after {took:?}; {renewals:?}; by replica (requests, \
         dropped, cut, refused): {counts:?}"
    ));
    assert_eq!(renewals.ended, 0, "a lease that is renewed has ended");
    let maps = replicas.config_maps().list(&ListParams::default()).await.expect("config maps");
    let shared =
        maps.iter().filter(|map| map.metadata.name.as_deref().is_some_and(|name| name.starts_with("keys-")));
    let shared: Vec<_> =
        shared.map(|map| map.data.iter().flatten().map(|(key, _)| &**key).collect::<Vec<_>>()).collect();
    assert_eq!(shared, vec![vec!["stays"]; LEFT / 2 / KEYS]);
    assert_eq!((figures.expired + figures.unlogged, figures.objects), (LEFT, LEFT / 2), "{figures}");
    // Every write of such a primary has one chance in ten to be lost, and none of these is a reason to depose it.
    assert!(figures.primaries.len() <= 4, "a storm of changes of primary: {figures}");
}

/// Makes leases, and what goes with each: a whole object, or a key.
async fn make(replicas: &Replicas, which: Range<usize>, ttl: usize) {
    let make = async |i: usize| {
        let lease = format!("left-{i}");
        if i.is_multiple_of(2) {
            replicas.config_map(&lease, json!({"lessor.dev/lease": lease}), &["a"]).await;
        } else if i % (2 * KEYS) == 1 {
            // One key stays, attached to nothing.
            let of: Vec<usize> = (i..i + 2 * KEYS).step_by(2).collect();
            let keys: Vec<String> =
                of.iter().map(|i| format!("key-{i}")).chain(["stays".to_owned()]).collect();
            let annotations: Map<String, Value> =
                of.iter().map(|i| (format!("key.lessor.dev/key-{i}"), json!(format!("left-{i}")))).collect();
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            replicas.config_map(&format!("keys-{i}"), Value::Object(annotations), &keys).await;
        }
        replicas.lease_with_finalizer(&lease, json!({"ttlSeconds": ttl + i % 20})).await;
    };
    stream::iter(which).for_each_concurrent(8, make).await;
}
