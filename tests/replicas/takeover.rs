//! The primary is killed, stops in order, or sleeps: another takes over, once.

use std::time::Duration;

use kube::api::DeleteParams;
use lessor_cluster::audit::Entry;
use lessor_kit::trial;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::{
    holder::Holder,
    replicas::{
        LEASE_DURATION, PATIENCE, Replicas, Way, between, shared, terms_since_the_first, wall, within,
    },
};

#[trial]
async fn a_killed_primary_is_replaced_within_a_lease_duration_and_no_deadline_moves() {
    let replicas = Replicas::three("killed", Way::Direct).await;
    let primary = replicas.primary_now().await;
    replicas.config_map("with-due", json!({"lessor.dev/lease": "due"}), &["a"]).await;
    replicas.granted("held", json!({"ttlSeconds": 5})).await;
    let holder = Holder::of(&replicas, &["held".to_owned()], Duration::from_secs(1));
    for ttl in [14, 17, 20] {
        replicas.granted(&format!("later-{ttl}"), json!({"ttlSeconds": ttl})).await;
    }
    replicas.granted("due", json!({"ttlSeconds": 4})).await;
    sleep(Duration::from_secs(3)).await;
    replicas.all[primary].process.kill().await.expect("it is killed");

    replicas.wait_map_gone("with-due").await;
    for ttl in [14, 17, 20] {
        replicas.wait_gone(&format!("later-{ttl}")).await;
    }
    assert!(replicas.lives("held").await);
    let renewals = holder.stop().await;
    assert_eq!(renewals.ended, 0, "{renewals:?}");

    let status = replicas.status().await.expect("a status");
    let figures = replicas.check(format_args!("term {:?} after one SIGKILL", status.term));
    let due = figures.late_of("due").expect("it expired");
    let later = [14, 17, 20].map(|ttl| figures.late_of(&format!("later-{ttl}")).expect("it expired"));
    println!("    the next due lease ended {due:?} after its deadline, those after it {later:?}");
    assert_eq!(terms_since_the_first(&figures), [0, 1]);
    assert!(due < LEASE_DURATION + replicas.noise());
    assert!(later.iter().all(|late| *late < replicas.noise()), "a deadline has moved: {later:?}");
}

#[trial]
async fn a_primary_that_stops_in_order_is_replaced_at_once() {
    let mut replicas = Replicas::three("stopped", Way::Direct).await;
    let mut took = Vec::new();
    for round in 0..3 {
        let primary = replicas.primary_now().await;
        let due = format!("due-{round}");
        replicas.granted(&due, json!({"ttlSeconds": 2})).await;
        sleep(Duration::from_millis(1500)).await;
        let asked = Instant::now();
        replicas.all[primary].process.terminate().expect("it is asked to stop");
        replicas.wait_for_primary_beside(primary).await;
        took.push(asked.elapsed());
        let exit = replicas.all[primary].process.wait().await.expect("it ends");
        assert!(exit.success(), "{exit}: {}", replicas.all[primary].process.log());
        replicas.wait_gone(&due).await;
        replicas.restart(primary);
        replicas.wait_ready().await;
    }
    let figures = replicas.check(format_args!("replaced within {took:?}"));
    assert!(took.iter().all(|took| *took < LEASE_DURATION), "{took:?}");
    assert_eq!(terms_since_the_first(&figures), [0, 1, 2, 3]);
    assert!(figures.late(1.0) < replicas.noise(), "{figures}");
}

#[trial]
async fn a_primary_that_resumes_after_a_pause_does_nothing_wrong() {
    let mut replicas = Replicas::none_on(shared().await, "paused").await;
    replicas.add(Way::Proxied, &[]).await;
    replicas.wait_ready().await;
    replicas.add(Way::Direct, &[]).await;
    replicas.add(Way::Direct, &[]).await;
    replicas.wait_ready().await;
    let r0 = &replicas.all[0];

    // What goes with "early" is about to be removed, and "late" and "kept" are about to end, when the primary falls asleep:
    // its requests are on their way.
    replicas.config_map("moved", json!({"lessor.dev/lease": "early"}), &["a"]).await;
    replicas.config_map("reborn", json!({"lessor.dev/lease": "early"}), &["a"]).await;
    replicas.config_map("keyed", json!({"key.lessor.dev/a": "early"}), &["a", "b"]).await;
    replicas.config_map("with-late", json!({"lessor.dev/lease": "late"}), &["a"]).await;
    replicas.config_map("with-kept", json!({"lessor.dev/lease": "kept"}), &["a"]).await;
    replicas.granted("other", json!({"ttlSeconds": 1000})).await;
    let removals = r0.proxy().hold_request(|seen| {
        seen.path.contains("/configmaps/") && matches!(seen.method.as_str(), "DELETE" | "PATCH")
    });
    replicas.granted("late", json!({"ttlSeconds": 4, "afterExpiry": "Retain"})).await;
    replicas.granted("kept", json!({"ttlSeconds": 4})).await;
    let ends = r0.proxy().hold_request(|seen| {
        let late = seen.is("PATCH", "/leases/late/status") || seen.is("PATCH", "/leases/kept/status");
        late && seen.json().is_some_and(|body| !body["status"]["endTime"].is_null())
    });
    replicas.granted("early", json!({"ttlSeconds": 1})).await;
    within(PATIENCE, "its requests are on their way", async || {
        (removals.held().len() >= 3 && ends.held().len() >= 2).then_some(())
    })
    .await;
    r0.process.pause().expect("it is paused");
    let paused = Instant::now();

    replicas.renew("kept").await.expect("a renewal");
    let holder = Holder::of(&replicas, &["kept".to_owned()], Duration::from_secs(1));
    replicas.patch_map("moved", json!({"metadata": {"annotations": {"lessor.dev/lease": "other"}}})).await;
    replicas.patch_map("keyed", json!({"metadata": {"annotations": {"key.lessor.dev/a": "other"}}})).await;
    replicas.delete_map("reborn").await;
    replicas.config_map("reborn", json!({}), &["a"]).await;
    replicas.granted("meanwhile", json!({"ttlSeconds": 3})).await;
    let next = replicas.wait_for_primary_beside(0).await;
    let taken = wall();
    let took = paused.elapsed();
    replicas.wait_ended("late").await;
    replicas.wait_map_gone("with-late").await;
    replicas.wait_gone("meanwhile").await;
    sleep((3 * LEASE_DURATION).saturating_sub(paused.elapsed())).await;

    // The late requests arrive, then their sender wakes up.
    let on_their_way = removals.held().len() + ends.held().len();
    drop((removals, ends));
    sleep(Duration::from_secs(1)).await;
    r0.process.resume().expect("it goes on");
    sleep(LEASE_DURATION).await;
    replicas.granted("afterwards", json!({"ttlSeconds": 2})).await;
    replicas.wait_gone("afterwards").await;
    assert_eq!(replicas.primary_now().await, next, "it must follow");
    let of_r0 = replicas.writes().by(&r0.user).filter(|entry| entry.at > taken && entry.resource != "events");
    let refused = of_r0.iter().filter(|entry| !entry.is_accepted()).count();
    // A follower may challenge the primary on a busy machine, which ends nothing.
    let is_challenge = |entry: &Entry| {
        entry.request_object.as_ref().is_some_and(|body| !body["status"]["challengedBy"].is_null())
    };
    let accepted = of_r0.accepted().filter(|entry| !is_challenge(entry));
    assert!(accepted.is_empty(), "a deposed primary's write was accepted: {accepted}");
    assert!(refused >= on_their_way, "{refused} of {on_their_way} late writes were refused");

    assert!(replicas.lives("kept").await && replicas.lives("other").await);
    assert_eq!(holder.stop().await.ended, 0);
    for map in ["moved", "reborn", "with-kept"] {
        replicas.config_maps().get(map).await.expect("it is there");
    }
    assert_eq!(replicas.keys("keyed").await, ["a", "b"]);

    // It follows well: when it's alone, it acts.
    for replica in &replicas.all[1..] {
        replica.process.kill().await.expect("it is killed");
    }
    replicas.leases().delete("other", &DeleteParams::default()).await.expect("a revoke");
    replicas.wait_map_gone("moved").await;
    assert_eq!(replicas.primary_now().await, 0);
    let claimed = between(taken, wall());
    let figures = replicas.check(format_args!(
        "replaced after {took:?}; {refused} late writes refused, of which {on_their_way} were on their way; {claimed:?} later \
         primary again"
    ));
    assert_eq!(figures.primaries.len(), 3, "{figures}");
}
