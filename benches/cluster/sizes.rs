//! Memory, start, processor time at rest and takeover, by the number of leases.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::api::DeleteParams;
use tokio::time::{Instant, sleep};

use crate::{table::Table, three};
use lessor_kit::bed::{Bed, Replica, granted, memory, primary_of};

/// How long replicas are left alone before they are looked at.
const SETTLED: Duration = Duration::from_secs(10);
/// How long they are watched at rest.
const REST: Duration = Duration::from_secs(30);
/// `--start-grace` and `--lease-duration`, as they are by default.
const GRACE: Duration = Duration::from_secs(10);
const LEASE_DURATION: Duration = Duration::from_secs(5);
/// What is aimed at with 100,000 leases, and so with fewer.
const MEMORY: f64 = 150.0;
const READY: f64 = 10.0;
const AT_REST: f64 = 1.0;

pub(crate) async fn measure(bed: &Bed, sizes: &[usize], table: &mut Table) {
    let mut made = 0;
    for &size in sizes {
        let of = format!("{size} leases, one object each");
        let mut replicas = three(bed, &[]).await;
        let begun = Instant::now();
        bed.leases_with_objects("many", made..size.max(made), |_| 30 * 24 * 3600).await;
        let added = size.saturating_sub(made);
        made = made.max(size);
        granted(&replicas, made).await;
        table.add(&of, "made and granted", added as f64 / begun.elapsed().as_secs_f64(), "/s");
        sleep(SETTLED).await;

        let primary = primary_of(&replicas).await;
        let follower = (primary + 1) % replicas.len();
        table.add(&of, "memory of the primary that granted them", replicas[primary].memory(), "MB");
        table.add(&of, "memory of a follower meanwhile", replicas[follower].memory(), "MB");

        takeover(bed, &mut replicas, &of, table).await;

        // Everybody stops, one lease becomes due, and all start anew.
        bed.lease("due", 6).await;
        granted_one(bed, "due").await;
        for replica in replicas.drain(..) {
            replica.process.stop().await.expect("it stops");
        }
        sleep(Duration::from_secs(7)).await;
        let servers = bed.servers_time();
        let replicas = start(bed).await;
        let mut ready = Duration::ZERO;
        for replica in &replicas {
            ready = ready.max(replica.ready().await);
        }
        let theirs = (bed.servers_time() - servers).as_secs_f64();
        let ours = replicas.iter().map(|replica| replica.processor_time().as_secs_f64()).sum::<f64>() / 3.0;
        table.add_with_aim(&of, "start of three: until the last is ready", ready.as_secs_f64(), "s", READY);
        table.add(&of, "start of three: processor time of each meanwhile", ours, "s");
        table.add(&of, "start of three: processor time of API server and etcd", theirs, "s");
        while bed.leases().get_opt("due").await.expect("an answer").is_some_and(|lease| !lease.is_ended()) {
            sleep(Duration::from_millis(20)).await;
        }
        let first = replicas[0].age().saturating_sub(GRACE);
        table.add(&of, "start of three: until the first end, --start-grace aside", first.as_secs_f64(), "s");
        sleep(SETTLED).await;

        let primary = primary_of(&replicas).await;
        let before: Vec<Duration> = replicas.iter().map(Replica::processor_time).collect();
        sleep(REST).await;
        let used = |index: usize| {
            100.0 * (replicas[index].processor_time() - before[index]).as_secs_f64() / REST.as_secs_f64()
        };
        let follower = (primary + 1) % replicas.len();
        table.add_with_aim(&of, "memory of the primary", replicas[primary].memory(), "MB", MEMORY);
        table.add_with_aim(&of, "memory of a follower", replicas[follower].memory(), "MB", MEMORY);
        table.add(&of, "the most that it ever had", replicas[primary].peak_memory(), "MB");
        table.add_with_aim(&of, "of one processor, primary at rest", used(primary), "%", AT_REST);
        table.add_with_aim(&of, "of one processor, follower at rest", used(follower), "%", AT_REST);
        let [api_server, etcd] = bed.servers();
        table.add(&of, "memory of the API server", memory(api_server), "MB");
        table.add(&of, "memory of etcd", memory(etcd), "MB");
        for replica in &replicas {
            replica.process.stop().await.expect("it stops");
        }
    }
}

async fn start(bed: &Bed) -> Vec<Replica> {
    let mut replicas = Vec::new();
    for _ in 0..3 {
        replicas.push(bed.replica(&[]).await);
    }
    replicas
}

/// Kills the primary while two leases are about to end: one before the next primary can act, and one after.
async fn takeover(bed: &Bed, replicas: &mut Vec<Replica>, of: &str, table: &mut Table) {
    bed.lease_to_keep("soon", 8).await;
    bed.lease_to_keep("later", 20).await;
    granted_one(bed, "soon").await;
    granted_one(bed, "later").await;
    sleep(Duration::from_secs(6)).await;
    // An ended lease has no `expiryTime` any more.
    let promised = [expiry(bed, "soon").await, expiry(bed, "later").await];
    let primary = primary_of(replicas).await;
    replicas[primary].process.kill().await.expect("it dies");
    let late = [late(bed, "soon", promised[0]).await, late(bed, "later", promised[1]).await];
    for name in ["soon", "later"] {
        bed.leases().delete(name, &DeleteParams::default()).await.expect("a deletion");
    }
    replicas.remove(primary);
    let one = bed.replica(&[]).await;
    let ready = one.ready().await.as_secs_f64();
    table.add_with_aim(of, "start of one beside two that run: until it is ready", ready, "s", READY);
    table.add(of, "start of one: its processor time meanwhile", one.processor_time().as_secs_f64(), "s");
    replicas.push(one);
    let most = LEASE_DURATION + Duration::from_millis(100);
    table.add_with_aim(
        of,
        "takeover: late, for the lease that was due first",
        late[0],
        "s",
        most.as_secs_f64(),
    );
    table.add(of, "takeover: late, for a lease that is due later", late[1], "s");
}

async fn granted_one(bed: &Bed, name: &str) {
    while !bed.leases().get(name).await.expect("a lease").is_granted() {
        sleep(Duration::from_millis(20)).await;
    }
}

/// The published deadline of a lease.
async fn expiry(bed: &Bed, name: &str) -> Timestamp {
    let lease = bed.leases().get(name).await.expect("a lease");
    lease.status.and_then(|status| status.expiry_time).expect("a deadline").0
}

/// Waits for an end; how long after the published deadline it was committed, in seconds.
async fn late(bed: &Bed, name: &str, promised: Timestamp) -> f64 {
    loop {
        let lease = bed.leases().get(name).await.expect("a lease that stays");
        if let Some(end) = lease.status.and_then(|status| status.end_time) {
            return end.0.duration_since(promised).as_secs_f64();
        }
        sleep(Duration::from_millis(50)).await;
    }
}
