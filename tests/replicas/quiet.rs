//! What replicas do when there is little to do: nothing, and no more than once.

use std::time::Duration;

use futures::{StreamExt, stream};
use lessor_kit::{trial, world::PATIENCE};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::replicas::{LEASE_DURATION, Replicas, Way, shared, within};

#[trial(long)]
async fn idle_replicas_write_nothing() {
    const LEASES: usize = 1000;
    let mut replicas = Replicas::none_on(shared().await, "rest").await;
    for _ in 0..3 {
        // Events are a courtesy with a budget of their own: let them be over soon.
        replicas.add(Way::Direct, &["--event-rate", "200"]).await;
    }
    replicas.wait_ready().await;
    let started = Instant::now();
    let names: Vec<String> = (0..LEASES).map(|i| format!("lease-{i}")).collect();
    stream::iter(&names)
        .for_each_concurrent(8, async |name| {
            replicas.lease_with_finalizer(name, json!({"ttlSeconds": 3600})).await;
        })
        .await;
    within(4 * PATIENCE, "all leases are granted", async || {
        sleep(Duration::from_secs(1)).await;
        let leases = replicas.leases().list(&Default::default()).await.expect("leases");
        leases.iter().all(|lease| lease.is_granted()).then_some(())
    })
    .await;
    let granted = started.elapsed();
    let audit = replicas.cluster.audit().expect("an audit log");
    let users: Vec<&str> = replicas.all.iter().map(|replica| &*replica.user).collect();
    let during = async |time| {
        let mark = audit.mark().expect("a mark");
        sleep(time).await;
        audit.since(mark).expect("entries").filter(|entry| users.contains(&&*entry.user))
    };
    // The last Events are written still.
    within(4 * PATIENCE, "all is quiet", async || {
        during(Duration::from_secs(3)).await.writes().is_empty().then_some(())
    })
    .await;
    let requests = during(Duration::from_secs(60)).await;
    let watches = requests.clone().verb("watch").requests();
    let others = requests.filter(|entry| entry.verb != "watch");
    let writes = replicas.writes().resource("lessor.dev", "lessors").accepted();
    let statuses = writes.filter(|entry| entry.subresource == "status");
    // A proof names its time. A primary that a busy machine keeps waiting needs some while it grants, and none later.
    let is_proof = |body: &Value| body.pointer("/status/provedTime").is_some_and(Value::is_string);
    let claims = statuses.clone().filter(|entry| !entry.request_object.as_ref().is_some_and(is_proof));
    let proofs = statuses.requests() - claims.requests();
    let figures = replicas.check(format_args!(
        "{LEASES} leases granted after {granted:?}; in 60 s at rest {} requests, and {watches} watches begun or ended; {} claims \
         and {proofs} proofs in all",
        others.requests(),
        claims.requests()
    ));
    assert_eq!(others.requests(), 0, "{others}");
    assert_eq!(claims.requests(), 1, "{claims}");
    assert_eq!((figures.granted, figures.primaries.len()), (LEASES, 1));
}

#[trial]
async fn replicas_with_different_settings_do_not_fight() {
    let mut replicas = Replicas::none_on(shared().await, "settings").await;
    replicas.add(Way::Direct, &["--min-ttl", "8s", "--max-ttl", "60s"]).await;
    replicas.wait_ready().await;
    replicas.add(Way::Direct, &["--min-ttl", "1s", "--max-ttl", "30s"]).await;
    replicas.wait_ready().await;
    // Granted for 8 s and 60 s by the one, which the other would have granted for 2 s and 30 s.
    let short = replicas.granted("short", json!({"ttlSeconds": 2})).await;
    let asked = Instant::now();
    let long = replicas.granted("long", json!({"ttlSeconds": 100})).await;
    assert_eq!(short.status.expect("a status").granted_ttl_seconds, Some(8));
    assert_eq!(long.status.expect("a status").granted_ttl_seconds, Some(60));
    replicas.wait_gone("short").await;
    let short = asked.elapsed();
    assert!(short > Duration::from_secs(7), "it was granted for 8 s and ended after {short:?}");
    assert_eq!(replicas.primary_now().await, 0, "no replica takes over for a lease that is not due");

    // Each of them is primary in turn.
    for primary in [0, 1, 0, 1] {
        assert_eq!(replicas.primary_now().await, primary);
        replicas.all[primary].process.stop().await.expect("it stops");
        replicas.wait_for_primary_beside(primary).await;
        replicas.restart(primary);
        replicas.wait_ready().await;
        sleep(LEASE_DURATION).await;
    }
    let writes = replicas.writes().resource("lessor.dev", "leases").filter(|entry| entry.name == "long");
    let figures = replicas.check_with(
        &replicas.checker().max_ttl(Duration::from_secs(30)),
        format_args!(
            "{} writes of one lease by 5 primaries in turn; the other ended after {short:?}",
            writes.len()
        ),
    );
    assert_eq!(figures.primaries.len(), 5, "{figures}");
    // The finalizer, the grant, and at most one correction by each primary.
    assert!(writes.requests() <= 2 + 4, "they fight: {writes}");
    assert!(figures.late(1.0) < Duration::from_secs(6) + replicas.noise());
}
