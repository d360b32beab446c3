//! What a spec can say about time: suspension, a cap, a warning; and what the administrator says.

use std::time::Duration;

use k8s_openapi::jiff::SignedDuration;
use lessor_api::Lease;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::world::{PATIENCE, World, has_condition};

const SUSPENDED: fn(&Lease) -> bool = |lease| has_condition(lease, "Active", "True", "Suspended");
const RUNNING: fn(&Lease) -> bool = |lease| has_condition(lease, "Active", "True", "Granted");

fn remaining(lease: &Lease) -> Option<i64> {
    lease.status.as_ref()?.remaining_seconds
}

pub(crate) async fn suspension_keeps_what_remained() {
    let world = World::new("suspend").await;
    let _operator = world.primary(&[]).await;
    world.config_map("attached", json!({"lessor.dev/lease": "lease"}), &["a"]).await;
    world.granted("lease", json!({"ttlSeconds": 4})).await;
    sleep(Duration::from_secs(1)).await;
    world.change("lease", json!({"suspend": true})).await.expect("a suspension");
    let suspended = world.wait_lease("lease", "is suspended", SUSPENDED).await;
    let remains = remaining(&suspended).expect("what remains");
    // A second has passed, unless lease time stood still.
    let most = 3 + i64::try_from(world.moved().as_millis().div_ceil(1000)).expect("a short time");
    assert!((1..=most).contains(&remains), "{remains} s remain");
    assert_eq!(suspended.status.as_ref().and_then(|status| status.expiry_time.clone()), None);

    // Longer than what remained.
    sleep(Duration::from_secs(4)).await;
    let still = world.leases().get("lease").await.expect("it is suspended");
    assert_eq!(still, suspended, "nothing is written meanwhile");
    let resumed = world.mark();
    world.change("lease", json!({"suspend": false})).await.expect("a resumption");
    let running = world.wait_lease("lease", "is resumed", RUNNING).await;
    assert_eq!(remaining(&running), None);
    world.wait_gone("lease").await;
    world.wait_map_gone("attached").await;

    let resumed = world.audit(resumed).accepted().resource("lessor.dev", "leases").verb("patch")[0].received;
    let ran = world.life("lease").end.expect("an end").asked.duration_since(resumed);
    let remained = SignedDuration::from_secs(remains);
    world.print(format_args!("{remains} s remained (rounded up), it ran on for {ran:?}"));
    // Rounded up, so almost a second less may have remained.
    assert!(ran > remained - SignedDuration::from_secs(1) && ran.as_secs() < remains + 5);
}

pub(crate) async fn a_suspended_lease_outlives_restarts_and_a_renewal_makes_it_whole_at_once() {
    let world = World::new("suspend-restart").await;
    let operator = world.primary(&[]).await;
    world.granted("old", json!({"ttlSeconds": 5})).await;
    world.granted("renewed", json!({"ttlSeconds": 5})).await;
    sleep(Duration::from_secs(2)).await;
    for name in ["old", "renewed"] {
        world.change(name, json!({"suspend": true})).await.expect("a suspension");
        world.wait_lease(name, "is suspended", SUSPENDED).await;
    }
    operator.stop().await.expect("it stops");
    sleep(Duration::from_secs(4)).await;
    let operator = world.primary(&[]).await;
    world.renew("renewed").await.expect("a renewal");
    let is_whole = |lease: &Lease| remaining(lease) == Some(5);
    let renewed = world.wait_lease("renewed", "has its full TTL again", is_whole).await;
    assert!(SUSPENDED(&renewed));
    let old = world.leases().get("old").await.expect("it is suspended");
    assert!(SUSPENDED(&old) && remaining(&old).is_some_and(|seconds| seconds <= 3), "{old:?}");

    // A renewal while no operator ran counts too.
    operator.stop().await.expect("it stops");
    world.renew("old").await.expect("a renewal");
    let _operator = world.primary(&[]).await;
    world.wait_lease("old", "has its full TTL again", is_whole).await;
}

pub(crate) async fn a_lease_ends_at_its_maximum_lifetime_however_often_it_is_renewed() {
    let world = World::new("capped").await;
    let _operator = world.primary(&[]).await;
    world.granted("lease", json!({"ttlSeconds": 2, "maxLifetimeSeconds": 4})).await;
    world.granted("asleep", json!({"ttlSeconds": 600, "maxLifetimeSeconds": 3, "suspend": true})).await;
    let (mut renewals, start) = (0, Instant::now());
    while world.renew("lease").await.is_ok() && start.elapsed() < PATIENCE {
        renewals += 1;
        sleep(Duration::from_millis(200)).await;
    }
    world.wait_gone("lease").await;
    world.wait_gone("asleep").await;
    for (name, cap) in [("lease", 4), ("asleep", 3)] {
        let life = world.life(name);
        let (grant, end) = (life.grant.expect("a grant"), life.end.expect("an end"));
        let cap = SignedDuration::from_secs(cap);
        let late = end.answered.duration_since(grant.answered + cap);
        assert!(end.asked >= grant.asked + cap, "{life:?}");
        // The cap counts in the API server's clock, whose times are whole seconds.
        assert!(late < world.most_late(Duration::from_secs(1)), "{late:?}: {life:?}");
        world.print(format_args!("{name} ended {} ms after its maximum lifetime", late.as_millis()));
    }
    assert!(renewals > 2, "{renewals} renewals, so it would have lived on");
}

pub(crate) async fn a_warning_comes_before_the_end_and_a_renewal_takes_it_back() {
    let world = World::new("warned").await;
    let _operator = world.primary(&[]).await;
    let lease = world.granted("lease", json!({"ttlSeconds": 8, "warnBeforeSeconds": 5})).await;
    assert!(!has_condition(&lease, "Expiring", "True", "LittleRemains"));
    let is_warned = |lease: &Lease| has_condition(lease, "Expiring", "True", "LittleRemains");
    let warned = world.wait_lease("lease", "ends soon", is_warned).await;
    assert!(RUNNING(&warned));
    world.renew("lease").await.expect("it hasn't ended");
    world.wait_event("lease", "Expiring").await;
    world
        .wait_lease("lease", "ends later", |lease| has_condition(lease, "Expiring", "False", "Renewed"))
        .await;
    world.wait_lease("lease", "ends soon", is_warned).await;
    world.wait_gone("lease").await;
    world.print_lateness("lease");
}

pub(crate) async fn what_is_granted_lies_between_the_minimum_and_the_maximum() {
    let world = World::new("bounds").await;
    let _operator = world.primary(&["--min-ttl", "2s", "--max-ttl", "3s"]).await;
    let granted = async |name, asked| {
        let lease = world.granted(name, json!({"ttlSeconds": asked})).await;
        lease.status.expect("a status").granted_ttl_seconds
    };
    assert_eq!(granted("short", 1).await, Some(2));
    assert_eq!(granted("long", 9_000_000_000_i64).await, Some(3));
    world.wait_all_gone().await;
    for name in ["short", "long"] {
        world.print_lateness(name);
    }
}
