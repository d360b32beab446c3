//! What leases cost in requests, counted from the audit log; at rest, nothing (P7).

use std::time::Duration;

use k8s_openapi::jiff::SignedDuration;
use lessor_api::Lease;
use lessor_cluster::audit::{Entries, Entry, Mark};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::world::{MOMENT, World, has_condition, until};

/// Requests of the operator: for leases, attached objects, and its Lessor.
fn cost(asked: &Entries) -> (usize, usize, usize) {
    let of = |resource: &str| asked.clone().filter(|entry| entry.resource == resource).requests();
    (of("leases"), of("configmaps"), of("lessors"))
}

/// How often a lease was read since for a second nothing had been heard: before an end that comes late, as on a busy machine, the
/// operator makes sure that the API server is there.
fn reads_after_silence(asked: &Entries) -> usize {
    let entries: Vec<Entry> = asked.clone().into_iter().collect();
    let is_one = |pair: &[Entry]| {
        pair[1].verb == "get" && pair[1].received.duration_since(pair[0].at) >= SignedDuration::from_secs(1)
    };
    entries.windows(2).filter(|pair| is_one(pair)).count()
}

pub(crate) async fn a_grant_costs_two_requests_a_renewal_none_an_expiry_three_and_a_revoke_two_plus_one_per_object()
 {
    let world = World::new("cost").await;
    let _operator = world.primary(&[]).await;
    for name in ["expires", "revoked"] {
        world.config_map(&format!("{name}-whole"), json!({"lessor.dev/lease": name}), &["a"]).await;
        let keys = json!({"key.lessor.dev/a": name, "key.lessor.dev/b": name});
        world.config_map(&format!("{name}-keys"), keys, &["a", "b", "c"]).await;
    }
    let step = async |what: &str, mark: Mark| {
        sleep(MOMENT).await;
        let asked = world.asked(mark);
        let cost = cost(&asked);
        world.print(format_args!("{what}: {cost:?} requests for leases, objects and the Lessor"));
        assert_eq!(cost.0 + cost.1 + cost.2, asked.requests(), "and nothing else: {asked}");
        assert!(cost.2 <= 1, "an idle incumbent proves itself once: {asked}");
        (cost.0, cost.1, asked)
    };
    let assert_costs = |(leases, objects, asked): (usize, usize, Entries), expected| {
        assert_eq!((leases, objects), expected, "{asked}");
    };

    let mark = world.mark();
    world.granted("expires", json!({"ttlSeconds": 60})).await;
    assert_costs(step("grant", mark).await, (2, 0));

    sleep(Duration::from_secs(1)).await;
    let mark = world.mark();
    for _ in 0..5 {
        world.renew("expires").await.expect("a renewal");
    }
    assert_costs(step("five renewals", mark).await, (0, 0));

    // One that brings the deadline nearer is published at once.
    world.change("expires", json!({"ttlSeconds": 8})).await.expect("a renewal");
    let is_published =
        |lease: &Lease| lease.status.as_ref().and_then(|status| status.granted_ttl_seconds) == Some(8);
    world.wait_lease("expires", "is granted for less", is_published).await;
    let mark = world.mark();
    world.wait_gone("expires").await;
    let (leases, objects, asked) = step("expiry with two objects", mark).await;
    assert_costs((leases - reads_after_silence(&asked), objects, asked), (3, 2));

    world.granted("revoked", json!({"ttlSeconds": 60})).await;
    // Longer than the lease of the writer, so that it has to prove itself first.
    sleep(Duration::from_millis(5500)).await;
    let mark = world.mark();
    world.revoke("revoked").await;
    world.wait_gone("revoked").await;
    assert_costs(step("revoke with two objects", mark).await, (2, 2));
}

pub(crate) async fn renewals_refresh_the_published_expiry_at_most_once_in_half_a_ttl() {
    let world = World::new("refresh").await;
    let _operator = world.primary(&[]).await;
    let lease = world.granted("lease", json!({"ttlSeconds": 4})).await;
    let expiry = |lease: &Lease| lease.status.as_ref().and_then(|status| status.expiry_time.clone());
    let (mark, start) = (world.mark(), Instant::now());
    let mut renewals = 0;
    while start.elapsed() < Duration::from_secs(7) {
        world.renew("lease").await.expect("a renewal");
        renewals += 1;
        sleep(Duration::from_millis(300)).await;
    }
    let asked = world.asked(mark);
    let halves = start.elapsed().as_secs_f64() / 2.0;
    // A renewal may overtake a refresh.
    let (all, written) = (asked.requests(), asked.clone().accepted().writes().requests());
    world.print(format_args!(
        "{renewals} renewals in {halves:.1} halves of a TTL: {written} refreshed, by {all} requests"
    ));
    assert!(written as f64 <= halves.ceil() && all < renewals, "{asked}");
    let refreshed = world.leases().get("lease").await.expect("it lives");
    assert!(expiry(&refreshed) > expiry(&lease), "what is published moves on");
}

pub(crate) async fn at_rest_nobody_asks_anything_for_thirty_seconds() {
    let world = World::new("rest").await;
    let token =
        world.cluster.service_account_kubeconfig(&world.namespace, "lessor").await.expect("an account");
    world.cluster.give_all_rights(&world.namespace, "lessor").await.expect("all rights");
    let operator = world.operator_with(&token, &["--pending-warning", "1s"]);
    world.wait_for_primary(&operator).await;
    let _follower = world.operator_with(&token, &["--pending-warning", "1s"]);

    // One of everything that stays as it is.
    world.config_map("attached", json!({"lessor.dev/lease": "runs"}), &["a"]).await;
    world.config_map("pending", json!({"lessor.dev/lease": "nobody"}), &["a"]).await;
    world.config_map("wrong", json!({"lessor.dev/lease": "no name"}), &["a"]).await;
    let annotations = json!({"key.lessor.dev/a": "hindered"});
    let stuck = json!({"metadata": {"name": "stuck", "annotations": annotations}, "data": {"a": "b"}, "immutable": true});
    world.create_map(stuck).await;
    world
        .granted("runs", json!({"ttlSeconds": 600, "maxLifetimeSeconds": 900, "warnBeforeSeconds": 30}))
        .await;
    world.granted("asleep", json!({"ttlSeconds": 600, "suspend": true})).await;
    world.granted("kept", json!({"ttlSeconds": 1, "afterExpiry": "Retain"})).await;
    world.granted("hindered", json!({"ttlSeconds": 1})).await;
    world.wait_lease("kept", "is released", |lease| !lease.has_finalizer()).await;
    let is_hindered = |lease: &Lease| has_condition(lease, "Released", "False", "Hindered");
    world.wait_lease("hindered", "is hindered", is_hindered).await;
    world.wait_event("pending", "AttachmentPending").await;
    world.wait_event("stuck", "Hindered").await;

    // Events are written a little later; wait until there are no more.
    let everything = async |mark| {
        let audit = world.cluster.audit().expect("an audit log");
        let user = format!("system:serviceaccount:{}:lessor", world.namespace);
        audit.since(mark).expect("its entries").by(&user)
    };
    until("nothing is left to say", async || {
        let mark = world.mark();
        sleep(Duration::from_secs(3)).await;
        everything(mark).await.is_empty().then_some(())
    })
    .await;
    let mark = world.mark();
    sleep(Duration::from_secs(30)).await;
    let asked = everything(mark).await;
    assert_eq!(asked.requests(), 0, "{asked}");
    // It was awake all the same.
    world.revoke("runs").await;
    world.wait_map_gone("attached").await;
    let after = everything(mark).await.requests();
    world.print(format_args!("at rest: 0 requests in 30 s; {after} by both replicas after that"));
}
