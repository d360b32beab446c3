//! How late leases end, from the audit log: from the deadline, which counts from the API server's receipt of the last
//! renewal, to its receipt of the end.

use std::time::Duration;

use futures::{StreamExt, stream};
use k8s_openapi::{api::coordination::v1::Lease as Heartbeat, jiff::Timestamp};
use kube::{
    Api,
    api::{ListParams, PostParams},
};
use lessor_api::{LeaseSpec, RenewFrom, SourceName, time};
use lessor_checker::{Checker, Figures, Request};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::{
    bed::{AT_ONCE, Bed, NAMESPACE, Replica, granted, primary_of},
    costs::left,
    holder::{Holders, renew},
    table::Table,
    three,
};

/// How often holders renew; their TTL is a multiple.
const EVERY: Duration = Duration::from_secs(2);

/// Nothing else happens.
pub(crate) async fn at_rest(bed: &Bed, table: &mut Table) {
    const LEASES: usize = 200;
    let _replicas = three(bed, &[]).await;
    bed.leases_with_objects("rest", 0..LEASES, |number| 10 + number as i64 % 20).await;
    left(bed, 0).await;
    show(&checked(bed), "expiry at rest", table);
}

/// Others are renewed all the time, by their holders.
pub(crate) async fn under_renewals(bed: &Bed, rate: usize, table: &mut Table) {
    let replicas = three(bed, &[]).await;
    let held = names("held", rate * EVERY.as_secs() as usize);
    bed.leases_with_objects("held", 0..held.len(), |_| 20).await;
    granted(&replicas, held.len()).await;
    let holders = Holders::of(&bed.leases(), held.clone(), EVERY);
    let of = format!("expiry under {rate} renewals a second");
    under(bed, &of, &replicas, held.len(), holders, table).await;
}

/// Others follow heartbeats, each one of its own.
pub(crate) async fn under_heartbeats(bed: &Bed, rate: usize, table: &mut Table) {
    let replicas = three(bed, &["--follow", "coordination-leases"]).await;
    let held = names("held", rate * EVERY.as_secs() as usize);
    let hearts: Api<Heartbeat> = Api::namespaced(bed.client.clone(), NAMESPACE);
    let holders = stream::iter(&held).for_each_concurrent(AT_ONCE, async |name| {
        let heart =
            json!({"metadata": {"name": name}, "spec": {"renewTime": time::to_text(Timestamp::now())}});
        let heart = serde_json::from_value(heart).expect("a lease of Kubernetes' own");
        hearts.create(&PostParams::default(), &heart).await.expect("a heartbeat");
        let source = SourceName { name: name.clone() };
        let renew_from = Some(RenewFrom { coordination_lease: Some(source), ..RenewFrom::default() });
        bed.lease_of(name, LeaseSpec { ttl_seconds: 60, renew_from, ..LeaseSpec::default() }).await;
    });
    holders.await;
    granted(&replicas, held.len()).await;
    let holders = Holders::of(&hearts, held.clone(), EVERY);
    let of = format!("expiry under {rate} heartbeats a second, each of which a lease follows");
    under(bed, &of, &replicas, held.len(), holders, table).await;
}

/// Lets leases end while so many others are held by holders that have just begun.
async fn under(bed: &Bed, of: &str, replicas: &[Replica], held: usize, holders: Holders, table: &mut Table) {
    const LEASES: usize = 300;
    let begun = Instant::now();
    bed.leases_with_objects("left", 0..LEASES, |number| 10 + number as i64 % 30).await;
    left(bed, held).await;
    // Nothing but renewals now: what one costs.
    let primary = primary_of(replicas).await;
    let follower = (primary + 1) % replicas.len();
    let used =
        || [replicas[primary].processor_time(), replicas[follower].processor_time(), bed.servers_time()];
    let (before, sent) = (used(), holders.tally().accepted);
    sleep(Duration::from_secs(15)).await;
    let (after, sent) = (used(), (holders.tally().accepted - sent) as f64);
    let whose = ["primary", "a follower", "API server and etcd"];
    for (whose, used) in whose.iter().zip(after.iter().zip(before).map(|(after, before)| *after - before)) {
        let each = 1e6 * used.as_secs_f64() / sent;
        table.add(of, format!("processor time of {whose} for each"), each, "µs");
    }
    let tally = holders.stop().await;
    table.add(
        of,
        "what the machine managed of them",
        tally.accepted as f64 / begun.elapsed().as_secs_f64(),
        "/s",
    );
    table.add_count(of, "renewals refused: leases lost", tally.refused as f64, "", 0.0);
    // Whether one that is followed was lost shows only here.
    table.add_count(of, "leases lost", held.saturating_sub(bed.count_leases().await) as f64, "", 0.0);
    show(&checked(bed), of, table);
}

/// Very many at once, while some are renewed.
pub(crate) async fn at_once(bed: &Bed, burst: usize, table: &mut Table) {
    const HELD: usize = 100;
    let capacity = capacity(bed).await;
    let of = format!("{burst} leases that end in one second");
    table.add(&of, "renewals a second that the API server takes at most", capacity, "/s");
    // The API server is to be the limit.
    let replicas = three(bed, &["--expiry-rate", "100000"]).await;
    bed.leases_with_objects("held", 0..HELD, |_| 30).await;
    let holders = Holders::of(&bed.leases(), names("held", HELD), EVERY);
    // Room to make them all, slower than the API server could.
    let ends = Instant::now() + Duration::from_secs(30) + Duration::from_millis(10) * burst as u32;
    // Not below what is granted at least: on a machine that is slower than that, the last of them end later.
    let ttl = |_| (ends.saturating_duration_since(Instant::now()).as_secs_f64().round() as i64).max(5);
    bed.leases_with_objects("burst", 0..burst, ttl).await;
    granted(&replicas, HELD + burst).await;
    let spare = ends.saturating_duration_since(Instant::now());
    println!("    all are granted {:.0} s before they end", spare.as_secs_f64());
    sleep(spare.saturating_sub(Duration::from_secs(2))).await;
    let primary = &replicas[primary_of(&replicas).await];
    let used = || (primary.processor_time(), bed.servers_time());
    let (mark, before) = (bed.cluster.audit().expect("an audit log").mark().expect("a mark"), used());
    let begun = Instant::now();
    left(bed, HELD).await;
    let (took, after) = (begun.elapsed(), used());
    let asked = bed.cluster.audit().expect("an audit log").since(mark).expect("entries").by(&bed.user());
    let tally = holders.stop().await;
    let rate = asked.writes().requests() as f64 / took.as_secs_f64();
    table.add(&of, "until the last is released", took.as_secs_f64(), "s");
    table.add(&of, "the operator's writes", rate, "/s");
    table.add(&of, "of those that the API server takes at most", 100.0 * rate / capacity, "%");
    table.add(&of, "processor time of the primary", (after.0 - before.0).as_secs_f64(), "s");
    table.add(&of, "processor time of API server and etcd", (after.1 - before.1).as_secs_f64(), "s");
    table.add_count(&of, "leases that were renewed, and lost", tally.refused as f64, "", 0.0);
    show(&checked(bed), &of, table);
}

/// How many renewals a second the API server takes, as fast as we can ask: most writes of the operator are like them.
async fn capacity(bed: &Bed) -> f64 {
    const WRITES: usize = 2000;
    const LEASES: usize = 200;
    let name = |number: usize| format!("capacity-{}", number % LEASES);
    stream::iter(0..LEASES).for_each_concurrent(AT_ONCE, async |n| bed.lease(&name(n), 3600).await).await;
    let leases = bed.leases();
    let begun = Instant::now();
    stream::iter(0..WRITES)
        .for_each_concurrent(AT_ONCE, async |number| {
            renew(&leases, &name(number)).await.expect("a renewal");
        })
        .await;
    let rate = WRITES as f64 / begun.elapsed().as_secs_f64();
    leases.delete_collection(&Default::default(), &ListParams::default()).await.expect("deletions");
    rate
}

fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{prefix}-{number}")).collect()
}

/// Reads the audit log. Not one promise may be broken.
fn checked(bed: &Bed) -> Figures {
    let entries = bed.cluster.audit().expect("an audit log").entries().expect("entries");
    let requests: Vec<Request> = entries.into_iter().filter_map(Request::from_audit).collect();
    let report = Checker::new(bed.user()).check(&requests);
    assert!(report.violations.is_empty(), "{report}");
    report.figures
}

fn show(figures: &Figures, of: &str, table: &mut Table) {
    table.add(of, "leases that ended", figures.expired as f64, "");
    for (what, share) in [("median", 0.5), ("99 %", 0.99), ("latest", 1.0)] {
        table.add(of, format!("late, {what}"), 1000.0 * figures.late(share).as_secs_f64(), "ms");
    }
}
