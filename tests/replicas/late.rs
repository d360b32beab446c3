//! A grant that reaches the API server long after it was sent counts from then, for every replica (P1).

use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use lessor_api::{Lease, Recorded};
use lessor_kit::{trial, world::attached};
use serde_json::json;
use tokio::time::sleep;

use crate::replicas::{PATIENCE, Replicas, Way, shared, within};

const TTL: Duration = Duration::from_secs(12);
/// Longer than its sender waits.
const LATE: Duration = Duration::from_secs(14);

/// The times that the status of a grant names, and that the API server has recorded.
fn granted(lease: &Lease) -> Option<(Timestamp, Timestamp)> {
    Some((lease.status.as_ref()?.grant_time.as_ref()?.0, Recorded::read(lease).granted?))
}

#[trial]
async fn a_grant_that_arrives_when_its_sender_is_dead_counts_from_then() {
    let mut replicas = Replicas::none_on(shared().await, "late-grant").await;
    replicas.add(Way::Proxied, &[]).await;
    replicas.wait_ready().await;
    let hold = replicas.all[0].proxy().hold_request(|seen| seen.is("PATCH", "/leases/late/status"));
    replicas.lease_with_finalizer("late", json!({"ttlSeconds": TTL.as_secs()})).await;
    within(PATIENCE, "the grant is on its way", async || (!hold.held().is_empty()).then_some(())).await;
    replicas.all[0].process.kill().await.expect("it is killed");
    sleep(LATE).await;
    drop(hold);
    let (named, recorded) =
        within(PATIENCE, "the grant arrives", async || granted(&replicas.leases().get("late").await.ok()?))
            .await;
    let late = recorded.duration_since(named);
    assert!(late.unsigned_abs() > TTL, "it was late by {late:?} only");

    // No replica has observed that. One that starts now writes its status, too.
    replicas.restart(0);
    replicas.config_map("with-late", json!({"lessor.dev/lease": "late"}), &["a"]).await;
    let counted = within(PATIENCE, "what is attached is counted", async || {
        replicas.leases().get("late").await.ok().filter(attached(1, 0))
    })
    .await;
    assert_eq!(granted(&counted).map(|(_, recorded)| recorded), Some(recorded), "later writes move it");
    replicas.wait_gone("late").await;
    let figures = replicas.check(format_args!("granted {late:?} after it was asked for, unobserved"));
    assert_eq!(figures.expired, 1, "{figures}");
}

#[trial]
async fn the_published_expiry_of_a_late_grant_is_corrected_and_its_record_stays() {
    let mut replicas = Replicas::none_on(shared().await, "corrected").await;
    replicas.add(Way::Proxied, &[]).await;
    replicas.wait_ready().await;
    let hold = replicas.all[0].proxy().hold_request(|seen| seen.is("PATCH", "/leases/corrected/status"));
    replicas.lease_with_finalizer("corrected", json!({"ttlSeconds": 60})).await;
    within(PATIENCE, "the grant is on its way", async || (!hold.held().is_empty()).then_some(())).await;
    // Not longer than its sender waits. Times are whole seconds, which may hide one of these, and two are let pass.
    sleep(Duration::from_millis(3_300)).await;
    drop(hold);
    let first =
        within(PATIENCE, "it is granted", async || granted(&replicas.leases().get("corrected").await.ok()?))
            .await;
    let is_near = |(named, recorded): &(Timestamp, Timestamp)| {
        recorded.duration_since(*named) <= SignedDuration::from_secs(2)
    };
    let last = within(PATIENCE, "its time is corrected", async || {
        granted(&replicas.leases().get("corrected").await.ok()?).filter(is_near)
    })
    .await;
    assert_eq!(last.1, first.1, "corrections move it");
    replicas.check(format_args!("granted, it said, at {}; corrected to {}", first.0, last.0));
}
