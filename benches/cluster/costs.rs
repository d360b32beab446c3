//! Requests of the operator for each turn of a lease, counted in the audit log.

use std::time::Duration;

use futures::{StreamExt, stream};
use kube::api::{ListParams, Patch, PatchParams};
use lessor_cluster::audit::Mark;
use serde_json::json;
use tokio::time::sleep;

use crate::{
    bed::{AT_ONCE, Bed, Replica, primary_of},
    holder::renew,
    table::Table,
};

/// How many leases of each sort: what is done once for all of them, like the proof of an idle primary, hardly shows.
const LEASES: usize = 50;
/// Long enough for everything that follows from a change.
const SETTLED: Duration = Duration::from_secs(3);

pub(crate) async fn measure(bed: &Bed, replicas: &mut Vec<Replica>, table: &mut Table) {
    for objects in [0, 1, 10] {
        let name = |number: usize| format!("cost-{objects}-{number}");
        let each = |number: usize| async move {
            for object in 0..objects {
                bed.config_map(&format!("{}-{object}", name(number)), Some(&name(number)), "a value").await;
            }
        };
        stream::iter(0..LEASES).for_each_concurrent(AT_ONCE, each).await;
        sleep(SETTLED).await;
        let mark = mark(bed);
        stream::iter(0..LEASES).for_each_concurrent(AT_ONCE, async |n| bed.lease(&name(n), 3600).await).await;
        granted(bed).await;
        let of = format!("{objects} objects each");
        say(bed, table, &of, "requests per grant", mark, 2.0).await;

        if objects == 0 {
            let mark = self::mark(bed);
            for _ in 0..3 {
                stream::iter(0..LEASES)
                    .for_each_concurrent(AT_ONCE, async |n| {
                        renew(&bed.leases(), &name(n)).await.expect("a renewal");
                    })
                    .await;
            }
            say(bed, table, &of, "requests per three renewals", mark, 0.0).await;
        }

        let leases = bed.leases();
        let shorter = Patch::Merge(json!({"spec": {"ttlSeconds": 15}}));
        let half = LEASES / 2;
        stream::iter(0..half)
            .for_each_concurrent(AT_ONCE, async |n| {
                leases.patch(&name(n), &PatchParams::default(), &shorter).await.expect("a change");
            })
            .await;
        sleep(SETTLED).await;
        let mark = self::mark(bed);
        left(bed, LEASES - half).await;
        let expiry = 3.0 + objects as f64;
        count(bed, table, (&of, "requests per expiry"), mark, half, expiry).await;

        sleep(SETTLED).await;
        let mark = self::mark(bed);
        stream::iter(half..LEASES)
            .for_each_concurrent(AT_ONCE, async |n| {
                leases.delete(&name(n), &Default::default()).await.expect("a deletion");
            })
            .await;
        left(bed, 0).await;
        count(bed, table, (&of, "requests per revoke"), mark, LEASES - half, expiry - 1.0).await;
    }

    let mark = mark(bed);
    let primary = primary_of(replicas).await;
    replicas.remove(primary).process.stop().await.expect("it stops");
    primary_of(replicas).await;
    sleep(SETTLED).await;
    let asked = asked(bed, mark);
    table.add_count("change of primary", "writes: the release, and the claim", asked.writes, "", 2.0);
    table.add("change of primary", "requests with reads", asked.all, "");
    replicas.push(bed.replica(&[]).await);
    for replica in replicas.iter() {
        replica.ready().await;
    }
}

async fn say(bed: &Bed, table: &mut Table, of: &str, what: &str, mark: Mark, aim: f64) {
    sleep(SETTLED).await;
    count(bed, table, (of, what), mark, LEASES, aim).await;
}

/// The proof of an idle primary, and the look whether the API server is heard, are once for all and no part of it.
async fn count(bed: &Bed, table: &mut Table, (of, what): (&str, &str), mark: Mark, leases: usize, aim: f64) {
    let asked = asked(bed, mark);
    table.add_count(of, what, asked.work / leases as f64, "", aim);
    if asked.once > 0.0 {
        table.add(of, format!("{what}, once for all {leases}"), asked.once, "");
    }
}

struct Asked {
    /// For leases and objects, but reads of the `Lessor`.
    work: f64,
    /// For the `Lessor`.
    once: f64,
    writes: f64,
    all: f64,
}

fn asked(bed: &Bed, mark: Mark) -> Asked {
    let audit = bed.cluster.audit().expect("an audit log");
    let entries = audit.since(mark).expect("entries").by(&bed.user());
    let entries = entries.filter(|entry| entry.verb != "watch" && entry.group != "events.k8s.io");
    let once = entries.clone().resource("lessor.dev", "lessors").requests();
    let (all, writes) = (entries.requests(), entries.writes().requests());
    Asked { work: (all - once) as f64, once: once as f64, writes: writes as f64, all: all as f64 }
}

fn mark(bed: &Bed) -> Mark {
    bed.cluster.audit().expect("an audit log").mark().expect("a mark")
}

/// Waits until all leases are granted.
pub(crate) async fn granted(bed: &Bed) {
    while !bed
        .leases()
        .list(&ListParams::default())
        .await
        .expect("leases")
        .iter()
        .all(|lease| lease.is_granted())
    {
        sleep(Duration::from_millis(200)).await;
    }
}

/// Waits until no more than so many leases are left.
pub(crate) async fn left(bed: &Bed, leases: usize) {
    while bed.leases().list_metadata(&ListParams::default()).await.expect("leases").items.len() > leases {
        sleep(Duration::from_millis(200)).await;
    }
}
