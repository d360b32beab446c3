//! How late leases end, from the audit log: from the deadline, which counts from the API server's receipt of the last
//! renewal, to its receipt of the end.

use std::time::Duration;

use futures::{StreamExt, stream};
use kube::api::{Patch, PatchParams};
use lessor_checker::{Checker, Figures, Request};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::{
    bed::{AT_ONCE, Bed, granted, primary_of},
    costs::left,
    holder::Holders,
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

/// Others are renewed all the time.
pub(crate) async fn under_renewals(bed: &Bed, renewals: usize, table: &mut Table) {
    const LEASES: usize = 300;
    let replicas = three(bed, &[]).await;
    let held = renewals * EVERY.as_secs() as usize;
    bed.leases_with_objects("held", 0..held, |_| 20).await;
    let holders = Holders::of(&bed.leases(), names("held", held), EVERY);
    let begun = Instant::now();
    bed.leases_with_objects("left", 0..LEASES, |number| 10 + number as i64 % 30).await;
    left(bed, held).await;
    let of = format!("expiry under {renewals} renewals a second");
    // Nothing but renewals now: what one costs.
    let primary = primary_of(&replicas).await;
    let follower = (primary + 1) % replicas.len();
    let used =
        || [replicas[primary].processor_time(), replicas[follower].processor_time(), bed.servers_time()];
    let (before, sent) = (used(), holders.tally().accepted);
    sleep(Duration::from_secs(15)).await;
    let (after, sent) = (used(), (holders.tally().accepted - sent) as f64);
    let whose = ["primary", "a follower", "API server and etcd"];
    for (whose, used) in whose.iter().zip(after.iter().zip(before).map(|(after, before)| *after - before)) {
        let each = 1e6 * used.as_secs_f64() / sent;
        table.add(&of, format!("processor time of {whose} for each renewal"), each, "µs");
    }
    let tally = holders.stop().await;
    table.add(
        &of,
        "renewals a second that the machine managed",
        tally.accepted as f64 / begun.elapsed().as_secs_f64(),
        "/s",
    );
    table.add_count(&of, "renewals refused: leases lost", tally.refused as f64, "", 0.0);
    show(&checked(bed), &of, table);
}

/// Very many at once, while some are renewed.
pub(crate) async fn at_once(bed: &Bed, burst: usize, table: &mut Table) {
    const HELD: usize = 100;
    let capacity = capacity(bed).await;
    let of = format!("{burst} leases that end in one second");
    table.add(&of, "writes a second that the API server takes at most", capacity, "/s");
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
    table.add(&of, "of what the API server takes at most", 100.0 * rate / capacity, "%");
    table.add(&of, "processor time of the primary", (after.0 - before.0).as_secs_f64(), "s");
    table.add(&of, "processor time of API server and etcd", (after.1 - before.1).as_secs_f64(), "s");
    table.add_count(&of, "leases that were renewed, and lost", tally.refused as f64, "", 0.0);
    show(&checked(bed), &of, table);
}

/// How many writes a second the API server takes, as fast as we can ask.
async fn capacity(bed: &Bed) -> f64 {
    const WRITES: usize = 4000;
    const OBJECTS: usize = 200;
    let name = |number: usize| format!("capacity-{}", number % OBJECTS);
    stream::iter(0..OBJECTS)
        .for_each_concurrent(AT_ONCE, async |n| bed.config_map(&name(n), None, "").await)
        .await;
    let maps = bed.config_maps();
    let begun = Instant::now();
    stream::iter(0..WRITES)
        .for_each_concurrent(AT_ONCE, async |number| {
            let patch = Patch::Merge(json!({"data": {"text": number.to_string()}}));
            maps.patch(&name(number), &PatchParams::default(), &patch).await.expect("a change");
        })
        .await;
    WRITES as f64 / begun.elapsed().as_secs_f64()
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
