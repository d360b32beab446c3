//! The API server is away, hangs, or one replica can't reach it: lease time stands still (P8).

use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::{api::admissionregistration::v1::ValidatingWebhookConfiguration, jiff::Timestamp};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use lessor_cluster::{Cluster, proxy::Faults};
use lessor_kit::trial;
use serde_json::json;
use tokio::time::{Instant, sleep, sleep_until};

use crate::{
    holder::{Holder, Tally},
    replicas::{
        LEASE_DURATION, OwnCluster, PATIENCE, Replicas, Way, shared, terms_since_the_first, wall, within,
    },
};

const TTL: Duration = Duration::from_secs(15);
const HELD: usize = 10;
const LEFT: usize = 5;

#[trial(long)]
async fn no_lease_ends_while_the_api_server_is_stopped() {
    outage("away", Duration::from_secs(60), async |cluster, length| {
        let server = cluster.api_server().expect("an API server");
        // In order at first: it accepts no connection any more, and waits for the watches to end, up to a minute.
        server.process().terminate().expect("it is asked to stop");
        sleep(Duration::from_secs(2)).await;
        let from = wall();
        sleep(length / 10).await;
        server.kill().await.expect("it is killed");
        sleep(length - length / 10).await;
        let to = wall();
        server.restart().await.expect("it starts");
        cluster.wait_ready().await.expect("it is ready");
        (from, to)
    })
    .await;
}

#[trial(long)]
async fn no_lease_ends_while_the_api_server_hangs() {
    outage("hung", Duration::from_secs(30), async |cluster, length| {
        let server = cluster.api_server().expect("an API server");
        server.pause().expect("it is paused");
        let from = wall();
        sleep(length).await;
        let to = wall();
        server.resume().expect("it goes on");
        (from, to)
    })
    .await;
}

#[trial(long)]
async fn no_lease_ends_while_the_api_server_cannot_write() {
    outage("full", Duration::from_secs(40), async |cluster, length| {
        let from = fill(cluster).await;
        sleep(length).await;
        let to = wall();
        empty(cluster).await;
        (from, to)
    })
    .await;
}

/// A follower may have missed such an outage. It asks the primary before it takes over.
#[trial(long)]
async fn followers_leave_the_lead_to_a_primary_that_could_not_write() {
    let cluster = OwnCluster::start().await;
    let replicas = Replicas::three_on(cluster.0, "full-shortly", Way::Direct).await;
    replicas.config_map("left", json!({"lessor.dev/lease": "left"}), &["a"]).await;
    replicas.granted("left", json!({"ttlSeconds": TTL.as_secs()})).await;
    let deadline = Instant::now() + TTL;
    let from = fill(cluster.0).await;
    // Over before a follower would try to take over.
    sleep_until(deadline + LEASE_DURATION / 10).await;
    let to = wall();
    empty(cluster.0).await;
    sleep(LEASE_DURATION).await;
    assert!(replicas.lives("left").await, "it has had no time to be renewed");
    within(TTL + LEASE_DURATION + PATIENCE, "the lease is gone", async || {
        replicas.leases().get_opt("left").await.ok()?.is_none().then_some(())
    })
    .await;
    let figures = replicas.check_with(&replicas.checker().outage(from, to), "");
    assert_eq!(terms_since_the_first(&figures).len(), 1, "the primary was deposed");
}

/// A server whose storage is full still answers and lists, but writes nothing; here, since a webhook doesn't answer. Answers
/// with when it surely does so.
async fn fill(cluster: &Cluster) -> Timestamp {
    let webhook: ValidatingWebhookConfiguration = serde_json::from_value(json!({
        "metadata": {"name": "full"},
        "webhooks": [{
            "name": "full.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": "https://127.0.0.1:1/"}, "failurePolicy": "Fail", "timeoutSeconds": 1,
            "rules": [{
                "apiGroups": ["lessor.dev"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"],
            }],
        }],
    }))
    .expect("a webhook");
    webhooks(cluster).create(&PostParams::default(), &webhook).await.expect("a webhook");
    // Until the server calls it.
    sleep(Duration::from_secs(2)).await;
    wall()
}

async fn empty(cluster: &Cluster) {
    webhooks(cluster).delete("full", &DeleteParams::default()).await.expect("it is deleted");
}

fn webhooks(cluster: &Cluster) -> Api<ValidatingWebhookConfiguration> {
    Api::all(cluster.client().expect("a client"))
}

/// Holders renew every 5 s what has a TTL of 15 s, and some holders are gone, when there is an outage. Answers with its
/// beginning and end.
async fn outage(
    name: &str,
    length: Duration,
    happen: impl AsyncFnOnce(&'static Cluster, Duration) -> (Timestamp, Timestamp),
) {
    let cluster = OwnCluster::start().await;
    let replicas = Replicas::three_on(cluster.0, name, Way::Direct).await;
    let ttl = TTL.as_secs();
    let held: Vec<String> = (0..HELD).map(|i| format!("held-{i}")).collect();
    let left: Vec<String> = (0..LEFT).map(|i| format!("left-{i}")).collect();
    for lease in &held {
        replicas.granted(lease, json!({"ttlSeconds": ttl})).await;
    }
    let holder = Holder::of(&replicas, &held, TTL / 3);
    for lease in &left {
        replicas.config_map(lease, json!({"lessor.dev/lease": lease}), &["a"]).await;
        replicas.granted(lease, json!({"ttlSeconds": ttl})).await;
    }
    sleep(Duration::from_secs(2)).await;

    let (from, to) = happen(cluster.0, length).await;
    let back = Instant::now();
    for lease in &left {
        within(TTL + LEASE_DURATION + PATIENCE, &format!("lease {lease} is gone"), async || {
            replicas.leases().get_opt(lease).await.ok()?.is_none().then_some(())
        })
        .await;
        replicas.wait_map_gone(lease).await;
    }
    let last = back.elapsed();
    // Each held lease has had its deadline once more since.
    sleep(TTL.saturating_sub(last) + Duration::from_secs(5)).await;
    for lease in &held {
        assert!(replicas.lives(lease).await, "lease {lease} has ended");
    }
    let Tally { accepted, ended, failed } = holder.stop().await;
    let figures = replicas.check_with(
        &replicas.checker().outage(from, to),
        format_args!(
            "{length:?} of outage; {accepted} renewals accepted, {failed} failed; the last lease without a holder was gone \
             {last:?} after it"
        ),
    );
    assert_eq!(ended, 0, "a holder was told that its lease has ended");
    assert!(failed > 0, "no holder noticed an outage");
    assert_eq!(figures.expired, LEFT);
}

#[trial(long)]
async fn a_disconnected_replica_ends_no_lease_early_and_none_much_later() {
    const CUT: Duration = Duration::from_secs(10);
    let replicas = Replicas::three("cut", Way::Proxied).await;
    let primary = replicas.primary_now().await;
    replicas.granted("held", json!({"ttlSeconds": 6})).await;
    let holder = Holder::of(&replicas, &["held".to_owned()], Duration::from_secs(2));
    for ttl in [4, 9, 14, 19, 40] {
        replicas
            .config_map(&format!("with-{ttl}"), json!({"lessor.dev/lease": format!("due-{ttl}")}), &["a"])
            .await;
        replicas.granted(&format!("due-{ttl}"), json!({"ttlSeconds": ttl})).await;
    }
    let cut_off = &replicas.all[primary];
    cut_off.proxy().isolate();
    sleep(CUT).await;
    cut_off.proxy().heal();
    for ttl in [4, 9, 14, 19] {
        replicas.wait_map_gone(&format!("with-{ttl}")).await;
    }
    // The one that was cut off is left alone. What it remembers may be late by the cut.
    for (_, replica) in replicas.all.iter().enumerate().filter(|(index, _)| *index != primary) {
        replica.process.kill().await.expect("it is killed");
    }
    within(Duration::from_secs(40) + CUT + LEASE_DURATION, "due-40 is gone", async || {
        replicas.leases().get_opt("due-40").await.expect("an answer").is_none().then_some(())
    })
    .await;
    assert!(replicas.lives("held").await);
    assert_eq!(holder.stop().await.ended, 0);
    let figures = replicas.check(format_args!("the primary was cut off for {CUT:?}, then left alone"));
    let late = |ttl: u32| figures.late_of(&format!("due-{ttl}")).expect("it expired");
    println!(
        "    due in the cut: {:?}, {:?} late; after it: {:?}, {:?}; by the one cut off: {:?}",
        late(4),
        late(9),
        late(14),
        late(19),
        late(40)
    );
    assert!([4, 9].iter().all(|ttl| late(*ttl) < LEASE_DURATION + replicas.noise()));
    assert!([14, 19].iter().all(|ttl| late(*ttl) < replicas.noise()));
    assert!(late(40) < CUT + replicas.noise());
}

/// An API server that takes long for each request is not away: if it were taken for that, nothing would end as long as the
/// primary has anything to write.
#[trial(long)]
async fn leases_end_even_if_each_response_takes_more_than_a_second() {
    const SLOW: Duration = Duration::from_millis(1500);
    const HELD: usize = 60;
    const TTL: Duration = Duration::from_secs(20);
    const LEFT_TTL: Duration = Duration::from_secs(10);
    let mut replicas = Replicas::none_on(shared().await, "slow").await;
    for _ in 0..3 {
        replicas.add(Way::Proxied, &["--status-rate", "5"]).await;
    }
    replicas.wait_ready().await;
    let held: Vec<String> = (0..HELD).map(|i| format!("held-{i}")).collect();
    // At once, so that none waits for long before it is renewed.
    let ttl = || json!({"ttlSeconds": TTL.as_secs()});
    join_all(held.iter().map(|lease| replicas.granted(lease, ttl()))).await;
    // Six of them a second are to be published anew, and only five may, so that some are always under way.
    let holder = Holder::of(&replicas, &held, TTL / 4);
    for replica in &replicas.all {
        replica.proxy().set_faults([Faults::new(1).delay(SLOW)]);
    }
    sleep(TTL / 2).await;
    let made = Instant::now();
    replicas.config_map("left", json!({"lessor.dev/lease": "left"}), &["a"]).await;
    replicas.granted("left", json!({"ttlSeconds": LEFT_TTL.as_secs()})).await;
    replicas.wait_map_gone("left").await;
    let took = made.elapsed();
    for lease in &held {
        assert!(replicas.lives(lease).await, "lease {lease} has ended");
    }
    let Tally { accepted, ended, .. } = holder.stop().await;
    replicas.check(format_args!(
        "{accepted} renewals; {took:?} from making a lease of {LEFT_TTL:?} to its removal"
    ));
    assert_eq!(ended, 0, "a holder was told that its lease has ended");
}

/// A proxy between the replicas and the API server that cuts connections on which nothing was said for a while, sooner than
/// watches show that they live.
#[trial]
async fn a_lease_ends_even_if_idle_connections_are_cut_again_and_again() {
    const IDLE: Duration = Duration::from_secs(8);
    const TTL: Duration = Duration::from_secs(20);
    let mut replicas = Replicas::none_on(shared().await, "idle").await;
    for _ in 0..2 {
        replicas.add(Way::Proxied, &[]).await;
    }
    replicas.wait_ready().await;
    replicas.config_map("left", json!({"lessor.dev/lease": "left"}), &["a"]).await;
    replicas.granted("left", json!({"ttlSeconds": TTL.as_secs()})).await;
    let cut = async {
        loop {
            sleep(IDLE).await;
            replicas.all.iter().for_each(|replica| replica.proxy().disconnect());
            sleep(Duration::from_millis(100)).await;
            replicas.all.iter().for_each(|replica| replica.proxy().heal());
        }
    };
    tokio::select! {
        () = replicas.wait_map_gone("left") => {}
        () = cut => {}
    }
    let figures = replicas.check(format_args!("connections were cut each {IDLE:?}"));
    assert!(figures.late(1.0) < IDLE + Duration::from_secs(5) + replicas.noise(), "{figures}");
}
