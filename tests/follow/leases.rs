//! Leases that follow other leases, and what can't be followed.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use lessor::api::time;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    history::Spread,
    sources::{ALL, Heartbeat, check, followed, late_after, wait_following},
    world::World,
};

fn lease(name: &str) -> Value {
    json!({"lease": {"name": name}})
}

pub(crate) async fn a_lease_lives_by_the_renewals_of_another_and_outlives_it_by_its_ttl() {
    let world = World::new("lease").await;
    let mut heart = Heartbeat::of_node(&world);
    heart.create().await;
    heart.start(Duration::from_secs(1));
    let _operator = world.primary(&[]).await;
    // Leases need no permission to be followed; what renews this one is its holder.
    world.granted("held", json!({"ttlSeconds": 60})).await;
    followed(&world, "first", 6, lease("held")).await;
    followed(&world, "second", 6, lease("first")).await;
    let mark = world.mark();
    for _ in 0..10 {
        sleep(Duration::from_secs(1)).await;
        world.renew("held").await.expect("a renewal");
    }
    let written = world.asked(mark).writes().filter(|entry| entry.name != "held");
    assert_eq!(written.requests(), 0, "{written}");
    // Suspended, it keeps them as well.
    world.change("held", json!({"suspend": true})).await.expect("a suspension");
    sleep(Duration::from_secs(10)).await;
    assert!(!world.leases().get("second").await.expect("it lives").is_ended());
    world.change("held", json!({"suspend": false})).await.expect("it goes on");
    let asked = Timestamp::now();
    world.renew("held").await.expect("a renewal");
    let last = crate::history::Write { asked, answered: Timestamp::now() };
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

pub(crate) async fn leases_that_follow_one_another_in_a_circle_live_by_themselves() {
    let world = World::new("circle").await;
    let _operator = world.primary(&ALL).await;
    for (name, source) in [("a", "b"), ("b", "c"), ("c", "a")] {
        world.granted(name, json!({"ttlSeconds": 8, "renewFrom": lease(source)})).await;
    }
    for name in ["a", "b", "c"] {
        wait_following(&world, name, "Cycle").await;
    }
    world.wait_event("a", "NotFollowing").await;
    for _ in 0..6 {
        sleep(Duration::from_secs(2)).await;
        world.renew("a").await.expect("a renewal");
    }
    // Its renewals kept none of the others alive, as long as there was a circle.
    world.wait_gone("b").await;
    world.print_lateness("b");
    // Now that it is open, each follows whoever comes.
    world.granted("b", json!({"ttlSeconds": 60})).await;
    wait_following(&world, "a", "SourceAlive").await;
    check(&world);
}

pub(crate) async fn a_source_in_another_namespace_cannot_be_named() {
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
        assert!(error.contains("a source is in the lease's own namespace"), "{error}");
        strict(json!({kind: {"name": "a"}})).await.expect("it is accepted");
        world.revoke("foreign").await;
    }
    check(&world);
}
