//! Programs that hold leases through lessor-client.

use std::{collections::BTreeSet, time::Duration};

use lessor_client::{
    BootInstant, Error, Grant, HeldLease, KeepAlive, KeepAliveEvent, KeepAliveOptions, LeaseClient,
    LossReason,
};
use lessor_cluster::proxy::Proxy;
use lessor_kit::world::{AGENT, PATIENCE, World, until};
use serde_json::json;
use tokio::time::{sleep, timeout};

use crate::rights;

const SECOND: Duration = Duration::from_secs(1);

/// A holder that reaches the server directly.
pub(crate) fn leases(world: &World) -> LeaseClient {
    LeaseClient::new(world.client.clone(), &world.namespace)
}

/// A TTL whose renewals come in time on a machine that is busy with other tests, in seconds.
const TTL: u64 = 8;
/// Longer than that: a lease that lives then was renewed.
const LIFE: Duration = Duration::from_secs(12);

async fn granted(world: &World, name: &str, ttl: u64) -> HeldLease {
    leases(world).grant(&Grant::new(name, SECOND * u32::try_from(ttl).unwrap())).await.expect("a grant")
}

/// A holder behind a proxy, with a lease of its own.
async fn behind_proxy(world: &World, name: &str, ttl: Duration) -> (Proxy, HeldLease) {
    let proxy = world.cluster.proxy().await.expect("a proxy");
    let leases = LeaseClient::new(proxy.client().expect("a client"), &world.namespace);
    let held = leases.grant(&Grant::new(name, ttl)).await.expect("a grant");
    (proxy, held)
}

async fn lost(alive: &KeepAlive) -> LossReason {
    timeout(PATIENCE, alive.lost()).await.expect("a loss")
}

#[tokio::test]
async fn a_lease_that_is_kept_alive_lives_until_its_holder_revokes_it() {
    let world = World::new("kept").await;
    let _operator = world.primary(&[]).await;
    let held = granted(&world, "kept", TTL).await;
    assert!(held.fencing_token() > 0);
    assert_eq!(held.ttl(), Duration::from_secs(TTL));
    let alive = held.keep_alive();
    for _ in 0..LIFE.as_millis() / 100 {
        assert!(alive.is_alive());
        sleep(SECOND / 10).await;
    }
    let lease = world.leases().get("kept").await.expect("the lease");
    assert!(!lease.is_ended());
    let held = alive.stop();
    held.revoke().await.expect("a revoke");
    world.wait_gone("kept").await;
    held.revoke().await.expect("what is gone is revoked");
}

#[tokio::test]
async fn a_renewal_costs_one_request_and_a_holder_one_watch() {
    let world = World::new("requests").await;
    let _operator = world.primary(&[]).await;
    let mark = world.mark();
    let held = granted(&world, "thrifty", 3).await;
    let mut alive = held.keep_alive();
    let renewed =
        async { while !matches!(alive.next().await, Some(KeepAliveEvent::Renewed { renewals: 6, .. })) {} };
    timeout(PATIENCE, renewed).await.expect("renewals");
    drop(alive);
    let ours = world.audit(mark).filter(|entry| !entry.user_agent.starts_with(AGENT));
    let count = |verb: &str| {
        let stage = if verb == "watch" { "ResponseStarted" } else { "ResponseComplete" };
        ours.clone()
            .filter(|entry| entry.verb == verb && entry.stage == stage && entry.resource == "leases")
            .len()
    };
    let counts = ["patch", "list", "watch", "get"].map(count);
    eprintln!("6 renewals: {counts:?} patches, lists, watches and reads");
    assert_eq!(counts, [6, 1, 1, 0]);
}

#[tokio::test]
async fn a_disconnected_holder_learns_of_the_loss_before_its_lease_ends() {
    let world = World::new("cutoff").await;
    let _operator = world.primary(&[]).await;
    let (proxy, held) = behind_proxy(&world, "cutoff", 10 * SECOND).await;
    let alive = held.keep_alive();
    sleep(SECOND).await;
    proxy.isolate();
    let reason = lost(&alive).await;
    let told = BootInstant::now();
    assert!(matches!(reason, LossReason::NotRenewed(_)), "{reason:?}");
    assert!(!alive.is_alive());
    let lease = world.leases().get("cutoff").await.expect("the lease, which lives on");
    assert!(!lease.is_ended(), "told after the end");
    world.wait_ended("cutoff").await;
    eprintln!("told {:?} before the end was seen", told.elapsed());
}

#[tokio::test]
async fn an_outage_within_the_ttl_ends_nothing() {
    let world = World::new("outage").await;
    let _operator = world.primary(&[]).await;
    let (proxy, held) = behind_proxy(&world, "outage", 6 * SECOND).await;
    let mut alive = held.keep_alive();
    proxy.disconnect();
    let failing = async {
        loop {
            match alive.next().await.expect("a beat") {
                KeepAliveEvent::Failing { failures, .. } if failures >= 3 => return,
                KeepAliveEvent::Lost(lost) => panic!("{lost}"),
                _ => {}
            }
        }
    };
    timeout(PATIENCE, failing).await.expect("failures");
    proxy.heal();
    sleep(8 * SECOND).await;
    assert!(alive.is_alive());
    assert!(!world.leases().get("outage").await.expect("the lease").is_ended());
}

#[tokio::test]
async fn a_revocation_is_reported_at_once() {
    let world = World::new("revoked").await;
    let _operator = world.primary(&[]).await;
    let alive = granted(&world, "revoked", 600).await.keep_alive();
    sleep(SECOND).await;
    world.revoke("revoked").await;
    let revoked = BootInstant::now();
    let lost = lost(&alive).await;
    eprintln!("told after {:?}: {lost}", revoked.elapsed());
    assert!(matches!(lost, LossReason::Revoked | LossReason::Ended | LossReason::Gone), "{lost:?}");
    assert!(revoked.elapsed() < 5 * SECOND);
}

#[tokio::test]
async fn without_a_watch_the_next_renewal_reports_a_revocation() {
    let world = World::new("unwatched").await;
    let _operator = world.primary(&[]).await;
    let held = granted(&world, "unwatched", 6).await;
    let alive = KeepAlive::start(held, KeepAliveOptions::default().without_watch());
    world.revoke("unwatched").await;
    let lost = lost(&alive).await;
    assert!(matches!(lost, LossReason::Ended | LossReason::Gone), "{lost:?}");
}

#[tokio::test]
async fn a_renewal_that_comes_late_renews_no_other_lease_of_the_same_name() {
    let world = World::new("replaced").await;
    let _operator = world.primary(&[]).await;
    let (proxy, mut held) = behind_proxy(&world, "same", 10 * SECOND).await;
    let hold = proxy.hold_request(|request| request.is("PATCH", "/leases/same"));
    let renewing = tokio::spawn(async move { held.renew().await });
    timeout(PATIENCE, hold.reached()).await.expect("a renewal under way");
    world.revoke("same").await;
    world.wait_gone("same").await;
    world.granted("same", json!({"ttlSeconds": 60})).await;
    hold.release();
    let refused = renewing.await.expect("no panic");
    assert!(matches!(refused, Err(Error::Replaced)), "{refused:?}");
    let other = world.leases().get("same").await.expect("the other lease");
    assert_eq!(other.spec.renew_time, None);
}

#[tokio::test]
async fn two_may_keep_one_lease_alive() {
    let world = World::new("both").await;
    let _operator = world.primary(&[]).await;
    let first = granted(&world, "both", TTL).await.keep_alive();
    let second = leases(&world).renew("both").await.expect("a renewal").keep_alive();
    for _ in 0..LIFE.as_millis() / 100 {
        assert!(first.is_alive() && second.is_alive());
        sleep(SECOND / 10).await;
    }
    // One goes on alone.
    drop(first);
    sleep(LIFE).await;
    assert!(second.is_alive());
    assert!(!world.leases().get("both").await.expect("the lease").is_ended());
}

#[tokio::test]
async fn a_ttl_shortened_by_another_client_is_renewed_in_time() {
    let world = World::new("shorter").await;
    let _operator = world.primary(&[]).await;
    let alive = granted(&world, "shorter", 600).await.keep_alive();
    sleep(SECOND).await;
    world.change("shorter", json!({"ttlSeconds": TTL})).await.expect("a patch");
    sleep(LIFE).await;
    assert!(alive.is_alive());
    assert_eq!(alive.lease().ttl(), Duration::from_secs(TTL));
    assert!(!world.leases().get("shorter").await.expect("the lease").is_ended());
}

#[tokio::test]
async fn a_renew_time_of_the_future_hinders_no_renewal() {
    let world = World::new("future").await;
    let _operator = world.primary(&[]).await;
    let alive = granted(&world, "future", TTL).await.keep_alive();
    // What a holder finds whose clock was set back.
    world.change("future", json!({"renewTime": "2099-12-31T23:59:59.999999Z"})).await.expect("a patch");
    sleep(LIFE).await;
    assert!(alive.is_alive());
    assert!(!world.leases().get("future").await.expect("the lease").is_ended());
}

#[tokio::test]
async fn the_end_of_the_maximum_lifetime_is_reported_before_it() {
    let world = World::new("lifetime").await;
    let _operator = world.primary(&[]).await;
    let grant = Grant::new("lifetime", 5 * SECOND).max_lifetime(10 * SECOND);
    let alive = leases(&world).grant(&grant).await.expect("a grant").keep_alive();
    let lost = lost(&alive).await;
    assert!(matches!(lost, LossReason::MaxLifetime), "{lost:?}");
    let lease = world.leases().get("lifetime").await.expect("the lease");
    assert!(!lease.is_ended(), "told after the end");
    world.wait_ended("lifetime").await;
}

#[tokio::test]
async fn the_granted_ttl_counts_if_it_differs_from_the_requested_one() {
    let world = World::new("limits").await;
    let _operator = world.primary(&["--min-ttl", "4s", "--max-ttl", "8s"]).await;
    assert_eq!(granted(&world, "short", 1).await.ttl(), 4 * SECOND);
    assert_eq!(granted(&world, "long", 3600).await.ttl(), 8 * SECOND);
}

#[tokio::test]
async fn a_name_that_is_taken_is_refused_until_its_lease_is_gone() {
    let world = World::new("taken").await;
    let _operator = world.primary(&[]).await;
    let first = granted(&world, "taken", 60).await;
    let again = leases(&world).grant(&Grant::new("taken", SECOND)).await;
    assert!(matches!(again, Err(Error::Exists(_))), "{again:?}");
    first.revoke().await.expect("a revoke");
    timeout(PATIENCE, leases(&world).wait_gone("taken")).await.expect("in time").expect("an answer");
    let second = granted(&world, "taken", 60).await;
    assert!(second.fencing_token() > first.fencing_token());
}

#[tokio::test]
async fn a_grant_without_an_operator_times_out_with_an_explanation() {
    let world = World::new("alone").await;
    let grant = Grant::new("alone", SECOND * 30).wait(SECOND);
    let error = leases(&world).grant(&grant).await.expect_err("no operator to grant it");
    assert!(matches!(error, Error::NotGranted { .. }), "{error:?}");
    assert!(error.to_string().contains("kubectl lease status"), "{error}");
    let renewed = leases(&world).renew("alone").await;
    assert!(matches!(renewed, Err(Error::NotGranted { .. })), "{renewed:?}");
}

#[tokio::test]
async fn a_grant_that_takes_longer_than_the_ttl_leaves_a_lease_that_lives() {
    let world = World::new("slow").await;
    let leases = leases(&world);
    let grant = Grant::new("slow", Duration::from_secs(TTL)).wait(PATIENCE);
    let granting = tokio::spawn(async move { leases.grant(&grant).await });
    sleep(LIFE).await;
    let _operator = world.operator(&[]);
    let held = granting.await.expect("no panic").expect("a grant");
    assert!(held.deadline().remaining() > SECOND);
    let alive = held.keep_alive();
    sleep(LIFE).await;
    assert!(alive.is_alive());
}

#[tokio::test]
async fn rights_to_make_read_and_patch_leases_are_enough_to_hold_one() {
    let world = World::new("rights").await;
    let _operator = world.primary(&[]).await;
    let client = rights::client(&world, "holder", &[("leases", &["create", "get", "patch"])]).await;
    let leases = LeaseClient::new(client, &world.namespace);
    let held = leases.grant(&Grant::new("modest", Duration::from_secs(TTL))).await.expect("a grant");
    let alive = held.keep_alive();
    sleep(LIFE).await;
    assert!(alive.is_alive());
    let error = leases.revoke("modest", None).await.expect_err("no right to delete");
    assert!(matches!(error, Error::Forbidden(_)), "{error:?}");
    assert!(error.hint().is_some_and(|hint| hint.contains("lessor-edit")));
}

#[tokio::test]
async fn each_renewal_is_written_under_the_name_of_its_holder() {
    let world = World::new("manager").await;
    let _operator = world.primary(&[]).await;
    let leases = leases(&world).with_field_manager("web-1");
    leases.grant(&Grant::new("named", 60 * SECOND)).await.expect("a grant").renew().await.expect("a renewal");
    let lease = world.leases().get("named").await.expect("the lease");
    let managers: BTreeSet<_> =
        lease.metadata.managed_fields.into_iter().flatten().filter_map(|entry| entry.manager).collect();
    assert!(managers.contains("web-1"), "{managers:?}");
}

#[tokio::test]
async fn a_write_of_the_spec_by_another_client_does_not_renew_the_lease() {
    let world = World::new("edited").await;
    let _operator = world.primary(&[]).await;
    let mut held = granted(&world, "edited", 2).await;
    world.change("edited", json!({"holder": "somebody"})).await.expect("a patch");
    world.wait_ended("edited").await;
    assert!(held.deadline().is_past());
    let error = held.renew().await.expect_err("it's over");
    assert!(matches!(error, Error::Ended | Error::NotFound(_)), "{error:?}");
    until("no renewal is accepted", async || held.renew().await.err()).await;
}
