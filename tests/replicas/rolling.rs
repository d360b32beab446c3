//! Replicas are restarted over and over: no deadline is reset by that.

use std::time::Duration;

use lessor_kit::trial;
use serde_json::json;
use tokio::time::{Instant, interval};

use crate::replicas::{LEASE_DURATION, Replicas, Way, shared};

#[trial(long)]
async fn a_lease_without_renewals_ends_in_time_under_a_rolling_restart() {
    const RESTARTS: usize = 9;
    const EVERY: Duration = Duration::from_secs(20);
    const TTL: Duration = Duration::from_secs(60);
    // What a replica that knows only what the API server recorded adds: the resolution of its times, and --max-clock-skew.
    const SLACK: Duration = Duration::from_secs(3);
    let mut replicas = Replicas::none_on(shared().await, "rolling").await;
    for _ in 0..3 {
        // The defaults: the grace after a start must not pile up either.
        replicas.add(Way::Direct, &["--start-grace", "10s", "--linger", "2s"]).await;
    }
    replicas.wait_ready().await;
    let started = Instant::now();
    let mut changes = 0;
    let mut every = interval(EVERY);
    every.tick().await;
    for round in 0..RESTARTS {
        // One that ends under the restarts to come, in every round that leaves it the time.
        if round < 6 {
            let lease = format!("round-{round}");
            replicas.config_map(&lease, json!({"lessor.dev/lease": lease}), &["a"]).await;
            replicas.granted(&lease, json!({"ttlSeconds": TTL.as_secs()})).await;
        }
        every.tick().await;
        let index = round % 3;
        changes += usize::from(replicas.primary_now().await == index);
        replicas.all[index].process.stop().await.expect("it stops");
        replicas.restart(index);
    }
    for round in 0..6 {
        replicas.wait_map_gone(&format!("round-{round}")).await;
        replicas.wait_gone(&format!("round-{round}")).await;
    }
    // If the last primary's resignation got no response, the next one takes over as soon as there is work.
    replicas.granted("last", json!({"ttlSeconds": 3600})).await;
    let took = started.elapsed();
    let figures =
        replicas.check(format_args!("{RESTARTS} restarts in {took:?}, {changes} of them of the primary"));
    assert_eq!(figures.expired, 6);
    assert!(figures.late(1.0) < SLACK + LEASE_DURATION + replicas.noise(), "{figures}");
    assert_eq!(figures.primaries.len(), 1 + changes, "one takeover each");
}
