//! Requests of the operator for each turn of a lease, counted in the audit log.

use std::time::Duration;

use futures::{StreamExt, stream};
use kube::api::{Patch, PatchParams};
use lessor_cluster::audit::Mark;
use serde_json::json;
use tokio::time::sleep;

use crate::{holder::renew, table::Table};
use lessor_kit::bed::{AT_ONCE, Bed, Replica, granted, primary_of};

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
        granted(replicas, LEASES).await;
        let of = format!("{objects} objects each");
        sleep(SETTLED).await;
        count(
            bed,
            table,
            (&of, "requests per grant"),
            mark,
            Turns { leases: LEASES, grants: LEASES, aim: 2.0 },
        );

        if objects == 0 {
            let mark = self::mark(bed);
            for _ in 0..3 {
                stream::iter(0..LEASES)
                    .for_each_concurrent(AT_ONCE, async |n| {
                        renew(&bed.leases(), &name(n)).await.expect("a renewal");
                    })
                    .await;
            }
            sleep(SETTLED).await;
            let turns = Turns { leases: LEASES, grants: 0, aim: 0.0 };
            count(bed, table, (&of, "requests per three renewals"), mark, turns);
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
        let turns = Turns { leases: half, grants: 0, aim: expiry };
        count(bed, table, (&of, "requests per expiry"), mark, turns);

        sleep(SETTLED).await;
        let mark = self::mark(bed);
        stream::iter(half..LEASES)
            .for_each_concurrent(AT_ONCE, async |n| {
                leases.delete(&name(n), &Default::default()).await.expect("a deletion");
            })
            .await;
        left(bed, 0).await;
        let turns = Turns { leases: LEASES - half, grants: 0, aim: expiry - 1.0 };
        count(bed, table, (&of, "requests per revoke"), mark, turns);
    }

    let mark = mark(bed);
    let primary = primary_of(replicas).await;
    replicas.remove(primary).process.stop().await.expect("it stops");
    primary_of(replicas).await;
    sleep(SETTLED).await;
    let asked = asked(bed, mark);
    let accepted = asked.writes - asked.refused;
    table.add_count("change of primary", "writes: the release, and the claim", accepted, "", 2.0);
    table.add("change of primary", "claims of others at the same moment, refused", asked.refused, "");
    table.add("change of primary", "requests with reads", asked.writes + asked.reads, "");
    replicas.push(bed.replica(&[]).await);
    for replica in replicas.iter() {
        replica.ready().await;
    }
}

/// So many leases took the same turn.
struct Turns {
    leases: usize,
    /// How many of them were granted meanwhile.
    grants: usize,
    /// What each may cost.
    aim: f64,
}

/// What each of these leases cost. What comes once for all of them, or since the API server was silent for a moment, is shown
/// apart: the proof of an idle primary, the look whether the server is heard, and deadlines that moved and are published anew.
fn count(bed: &Bed, table: &mut Table, (of, what): (&str, &str), mark: Mark, turns: Turns) {
    let asked = asked(bed, mark);
    let anew = (asked.of_living - turns.grants as f64).max(0.0);
    let each = |requests: f64| requests / turns.leases as f64;
    table.add_count(of, what, each(asked.writes - asked.lessor - anew), "", turns.aim);
    for (why, requests) in
        [("deadlines published anew", anew), ("reads", asked.reads), ("writes of the Lessor", asked.lessor)]
    {
        if requests > 0.0 {
            table.add(of, format!("{what}: besides, for all {}, {why}", turns.leases), requests, "");
        }
    }
}

/// What the operator asked for, Events aside.
struct Asked {
    reads: f64,
    writes: f64,
    /// Writes that were refused.
    refused: f64,
    /// Writes of the `Lessor`.
    lessor: f64,
    /// Writes of the status of leases that are not over: grants, and deadlines that are published anew.
    of_living: f64,
}

fn asked(bed: &Bed, mark: Mark) -> Asked {
    let audit = bed.cluster.audit().expect("an audit log");
    let entries = audit.since(mark).expect("entries").by(&bed.user());
    let entries = entries.filter(|entry| entry.verb != "watch" && entry.group != "events.k8s.io");
    let writes = entries.clone().writes();
    let lessor = writes.clone().resource("lessor.dev", "lessors").requests();
    let of_living = writes.clone().resource("lessor.dev", "leases").filter(|entry| {
        let ends = entry.request_object.as_ref().is_some_and(|patch| !patch["status"]["endTime"].is_null());
        entry.subresource == "status" && !ends
    });
    Asked {
        reads: (entries.requests() - writes.requests()) as f64,
        refused: (writes.requests() - writes.clone().accepted().requests()) as f64,
        writes: writes.requests() as f64,
        lessor: lessor as f64,
        of_living: of_living.requests() as f64,
    }
}

fn mark(bed: &Bed) -> Mark {
    bed.cluster.audit().expect("an audit log").mark().expect("a mark")
}

/// Waits until no more than so many leases are left.
pub(crate) async fn left(bed: &Bed, leases: usize) {
    while bed.count_leases().await > leases {
        sleep(Duration::from_millis(200)).await;
    }
}
