//! Leases that follow other leases, and what can't be followed.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use lessor_api::time;
use lessor_cluster::{audit::Entry, proxy::Faults};
use lessor_kit::{history::Spread, trial, world::World};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::sources::{ALL, Heartbeat, check, followed, late_after, late_after_most, wait_following};

fn lease(name: &str) -> Value {
    json!({"lease": {"name": name}})
}

#[trial]
async fn a_lease_lives_by_the_renewals_of_another_and_outlives_it_by_its_ttl() {
    // Long enough for a renewal a second to come in time on a machine that is busy with other tests.
    const TTL: u64 = 10;
    let world = World::new("lease").await;
    let mut heart = Heartbeat::of_node(&world);
    heart.create().await;
    heart.start(Duration::from_secs(1));
    let _operator = world.primary(&[]).await;
    // Leases need no permission to be followed; what renews this one is its holder.
    world.granted("held", json!({"ttlSeconds": 60})).await;
    followed(&world, "first", TTL, lease("held")).await;
    followed(&world, "second", TTL, lease("first")).await;
    let mark = world.mark();
    for _ in 0..TTL + 4 {
        sleep(Duration::from_secs(1)).await;
        world.renew("held").await.expect("a renewal");
    }
    // What is said of it is brought up to date now and then, for which its primary may have to prove itself.
    let of_others = |entry: &Entry| entry.resource == "leases" && entry.name != "held";
    let written = world.asked(mark).writes().filter(of_others);
    assert_eq!(written.requests(), 0, "{written}");
    // Suspended, it keeps them as well.
    world.change("held", json!({"suspend": true})).await.expect("a suspension");
    sleep(Duration::from_secs(TTL + 4)).await;
    assert!(!world.leases().get("second").await.expect("it lives").is_ended());
    world.change("held", json!({"suspend": false})).await.expect("it goes on");
    let asked = Timestamp::now();
    world.renew("held").await.expect("a renewal");
    let last = lessor_kit::history::Write { asked, answered: Timestamp::now() };
    for name in ["first", "second"] {
        world.wait_gone(name).await;
        let late = Spread::of([late_after(&world, &world.life(name), last)]);
        world.print(format_args!("{name}: {late} late"));
    }
    world.granted("third", json!({"ttlSeconds": 5, "renewFrom": lease("short")})).await;
    wait_following(&world, "third", "SourceMissing").await;
    world.granted("short", json!({"ttlSeconds": 600, "afterExpiry": "Retain"})).await;
    wait_following(&world, "third", "SourceAlive").await;
    world.revoke("short").await;
    wait_following(&world, "third", "SourceMissing").await;
    world.wait_gone("third").await;
    check(&world);
}

/// All that it follows is read before its end, one after the other, which takes longer than what was read is new.
#[trial]
async fn a_lease_ends_even_if_a_long_chain_is_read_slowly() {
    const SLOW: Duration = Duration::from_millis(500);
    let world = World::new("chain").await;
    let (proxy, _operator) = world.proxied(&[]).await;
    world.granted("held", json!({"ttlSeconds": 600})).await;
    for (name, from) in [("third", "held"), ("second", "third"), ("first", "second")] {
        followed(&world, name, 600, lease(from)).await;
    }
    followed(&world, "last", 8, lease("first")).await;
    proxy.set_faults([Faults::new(1).delay(SLOW)]);
    let asked = Timestamp::now();
    world.renew("held").await.expect("a renewal");
    let last = lessor_kit::history::Write { asked, answered: Timestamp::now() };
    world.wait_gone("last").await;
    // Four are read, and a few writes are on their way with them.
    let late = late_after_most(&world, &world.life("last"), last, 8 * SLOW);
    world.print(format_args!("{} late, at the end of a chain of five", Spread::of([late])));
    for name in ["held", "third", "second", "first"] {
        assert!(!world.leases().get(name).await.expect("it lives").is_ended(), "{name}");
    }
    check(&world);
}

#[trial]
async fn leases_that_follow_one_another_in_a_circle_live_by_themselves() {
    let world = World::new("circle").await;
    let _operator = world.primary(&ALL).await;
    for (name, source) in [("a", "b"), ("b", "c"), ("c", "a")] {
        world.granted(name, json!({"ttlSeconds": 12, "renewFrom": lease(source)})).await;
    }
    for name in ["a", "b", "c"] {
        wait_following(&world, name, "Cycle").await;
    }
    world.wait_event("a", "NotFollowing").await;
    for _ in 0..8 {
        sleep(Duration::from_secs(2)).await;
        world.renew("a").await.expect("a renewal");
    }
    // Its renewals kept none of the others alive, as long as there was a circle.
    world.wait_gone("b").await;
    world.assert_punctual("b");
    // Now that it is open, each follows the next that comes.
    world.granted("b", json!({"ttlSeconds": 60})).await;
    wait_following(&world, "a", "SourceAlive").await;
    check(&world);
}

#[trial]
async fn a_source_in_another_namespace_cannot_be_named() {
    let world = World::new("foreign").await;
    let strict = |from: Value| {
        let lease = json!({
            "apiVersion": "lessor.dev/v1alpha1", "kind": "Lease",
            "metadata": {"name": "foreign", "namespace": world.namespace},
            "spec": {"ttlSeconds": 5, "renewFrom": from, "renewTime": time::to_text(Timestamp::now())},
        });
        let url =
            format!("/apis/lessor.dev/v1alpha1/namespaces/{}/leases?fieldValidation=Strict", world.namespace);
        let request = http::Request::post(url)
            .header("content-type", "application/json")
            .body(serde_json::to_vec(&lease).expect("JSON"))
            .expect("a request");
        let client = world.client.clone();
        async move { client.request::<Value>(request).await }
    };
    for kind in ["coordinationLease", "node", "pod", "lease"] {
        let foreign = strict(json!({kind: {"name": "a", "namespace": "kube-system"}})).await;
        let error = foreign.expect_err("it must be refused").to_string();
        assert!(error.contains("unknown field") && error.contains("namespace"), "{error}");
        let foreign = strict(json!({kind: {"name": "kube-system/a"}})).await;
        let error = foreign.expect_err("it must be refused").to_string();
        assert!(error.contains("a source is in the namespace of the lease"), "{error}");
        strict(json!({kind: {"name": "a"}})).await.expect("it is accepted");
        world.revoke("foreign").await;
    }
    check(&world);
}
