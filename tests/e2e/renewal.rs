//! A renewal has one outcome (P2): it is accepted and then honoured, or it is refused and the lease is over.

use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::jiff::Timestamp;
use lessor_api::Lease;
use lessor_cluster::Tool;
use serde_json::json;
use tokio::{
    process::Command,
    time::{Instant, sleep, sleep_until},
};

use crate::{
    requests::{Step, reached},
    world::{MOMENT, World, came_too_late, heavy, until},
};

pub(crate) async fn a_renewal_just_before_the_deadline_keeps_the_lease_and_one_just_after_is_refused() {
    let world = World::new("renewal").await;
    let _operator = world.primary(&["--linger", "3s"]).await;
    world.config_map("attached", json!({"lessor.dev/lease": "lease"}), &["a"]).await;
    let lease = world.granted("lease", json!({"ttlSeconds": 4})).await;
    let deadline = deadline(&lease);
    sleep_until(deadline - Duration::from_secs(1)).await;
    world.renew("lease").await.expect("it comes in time");
    sleep_until(deadline + Duration::from_secs(1)).await;
    let kept = world.leases().get("lease").await.expect("it was renewed");
    assert!(!kept.is_ended());
    world.map("attached").await;

    world.wait_ended("lease").await;
    let renewal = world.renew("lease").await;
    assert!(came_too_late(&renewal), "{renewal:?}");
    let shorter = world.change("lease", json!({"ttlSeconds": 1})).await;
    assert!(came_too_late(&shorter), "{shorter:?}");
    world.wait_map_gone("attached").await;
    world.wait_gone("lease").await;
    world.print_lateness("lease");
}

/// Twenty holders renew ten times each as late as they dare: whoever was in time comes later next time, whoever
/// was late earlier, so that renewals and ends come ever closer.
pub(crate) async fn two_hundred_renewals_race_expiries_and_each_that_is_accepted_is_honoured() {
    let _heavy = heavy().await;
    let world = World::new("race").await;
    let _operator = world.primary(&[]).await;
    let outcomes = join_all((0..20).map(|racer| race(&world, racer, 10))).await;
    let accepted: usize = outcomes.iter().map(|(accepted, _)| accepted).sum();
    let refused: usize = outcomes.iter().map(|(_, refused)| refused).sum();
    world.wait_all_gone().await;

    let lives = world.lives();
    // Each accepted renewal is in there, and an end that came too early after it panics.
    let late = world.lateness(&lives, Duration::ZERO);
    assert_eq!(lives.iter().map(|life| life.renewals.len()).sum::<usize>(), accepted);
    let conflicts = world.all_asked().filter(|entry| entry.subresource == "status" && entry.code == 409);
    world.print(format_args!(
        "{accepted} renewals accepted, {refused} refused, {} ends overtaken; ended {late} after their deadlines",
        conflicts.len()
    ));
    assert_eq!(accepted + refused, 200);
    assert!(accepted > 20 && refused > 20, "no race: {accepted} accepted, {refused} refused");
}

async fn race(world: &World, racer: usize, rounds: usize) -> (usize, usize) {
    const TTL: Duration = Duration::from_secs(1);
    let (mut accepted, mut refused) = (0, 0);
    // Milliseconds after the deadline.
    let (mut offset, mut step) = (0_i64, 64);
    let mut lease: Option<(String, Instant)> = None;
    for round in 0..rounds {
        let (name, deadline) = match lease.take() {
            Some(lease) => lease,
            None => {
                let name = format!("racer-{racer}-{round}");
                let deadline = deadline(&world.granted(&name, json!({"ttlSeconds": 1})).await);
                (name, deadline)
            }
        };
        let wait = Duration::from_millis((5000 + offset).unsigned_abs());
        sleep_until(deadline + wait - Duration::from_secs(5)).await;
        match world.renew(&name).await {
            Ok(_) => {
                accepted += 1;
                offset += step;
                lease = Some((name, Instant::now() + TTL));
            }
            renewal if came_too_late(&renewal) => {
                refused += 1;
                offset -= step;
            }
            Err(error) => panic!("a third outcome: {error}"),
        }
        step = (step / 2).max(4);
    }
    (accepted, refused)
}

/// When this lease ends unless it is renewed, on our clock.
fn deadline(lease: &Lease) -> Instant {
    let expiry = lease.status.as_ref().and_then(|status| status.expiry_time.clone()).expect("a time");
    let ahead = expiry.0.duration_since(Timestamp::now());
    Instant::now() + Duration::try_from(ahead).unwrap_or_default()
}

pub(crate) async fn kubectl_wait_returns_at_once_after_a_renewal_that_cost_no_request() {
    let world = World::new("wait").await;
    let _operator = world.primary(&[]).await;
    world.granted("lease", json!({"ttlSeconds": 600})).await;
    // The follow-ups of the grant are over.
    sleep(MOMENT).await;
    let mark = world.mark();
    world.renew("lease").await.expect("a renewal");
    world.change("lease", json!({"holder": "another"})).await.expect("a change");
    sleep(MOMENT).await;
    assert_eq!(world.asked(mark).requests(), 0, "{}", world.asked(mark));
    let kubectl = Tool::Kubectl.path().await.expect("kubectl");
    let output = Command::new(kubectl)
        .arg("--kubeconfig")
        .arg(world.cluster.kubeconfig_path())
        .args(["wait", "--namespace", &world.namespace, "--for=condition=Active", "--timeout=5s"])
        .arg("leases.lessor.dev/lease")
        .output()
        .await
        .expect("kubectl");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

pub(crate) async fn an_end_that_was_decided_before_a_renewal_never_goes_through() {
    let world = World::new("decided").await;
    let (proxy, _operator) = world.proxied(&[]).await;
    world.config_map("attached", json!({"lessor.dev/lease": "lease"}), &["a"]).await;
    let commit = proxy.hold_request(Step::Commit.of("lease"));
    world.granted("lease", json!({"ttlSeconds": 2})).await;
    reached(&commit).await;
    world.renew("lease").await.expect("the API server knows of no end");
    let renewed = Instant::now();
    // Long enough for the operator to see the renewal: what it sent was decided earlier all the same.
    sleep(Duration::from_millis(300)).await;
    commit.release();
    let overtaken = until("the end is answered", async || {
        let commits = world.all_asked().filter(|entry| {
            entry.request_object.as_ref().is_some_and(|patch| !patch["status"]["endTime"].is_null())
        });
        commits.first().cloned()
    })
    .await;
    assert_eq!(overtaken.code, 409, "{overtaken}");
    sleep_until(renewed + Duration::from_millis(1500)).await;
    let (lease, map) = (world.leases().get_opt("lease").await, world.config_maps().get_opt("attached").await);
    // On a slow machine it may be over by now, and in time: what follows looks at that.
    if renewed.elapsed() < Duration::from_secs(2) {
        assert!(lease.expect("an answer").is_some_and(|lease| !lease.is_ended()));
        assert!(map.expect("an answer").is_some());
    }
    world.wait_gone("lease").await;
    world.wait_map_gone("attached").await;
    world.print_lateness("lease");
}

pub(crate) async fn an_end_that_arrives_after_the_death_of_its_operator_spares_a_renewed_lease() {
    let world = World::new("posthumous").await;
    let (proxy, operator) = world.proxied(&["--lease-duration", "2s"]).await;
    let commit = proxy.hold_request(Step::Commit.of("lease"));
    world.granted("lease", json!({"ttlSeconds": 3})).await;
    reached(&commit).await;
    operator.kill().await.expect("it dies");
    world.renew("lease").await.expect("the API server knows of no end");
    commit.release();
    let _successor = world.operator(&["--lease-duration", "2s", "--max-clock-skew", "0s"]);
    world.wait_gone("lease").await;
    // The last renewal is known to the successor in whole seconds only.
    let late = world.lateness([&world.life("lease")], Duration::from_secs(1));
    world.print(format_args!("it ended {late} after its deadline"));
}
