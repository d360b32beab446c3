//! What leases cost that follow heartbeats, beside as many that their holders renew: processor time of the operator and of the
//! API server, and requests, on a real API server.
//!
//! `cargo bench --bench follow`, or `just bench-follow`; `-- --leases 1000 --hearts 10 --seconds 30` for a smaller run. The exit
//! code is 1 if the operator sent a request for a beat.
#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a program for people, which may fail by panicking, and measures real time"
)]

mod bed;

use std::{
    process::ExitCode,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use bed::{AT_ONCE, Bed, NAMESPACE, Replica, processor_time};
use futures::{StreamExt, stream};
use k8s_openapi::{api::coordination::v1::Lease as Coordination, jiff::Timestamp};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use lessor::runtime::AGENT;
use lessor_api::{Lease, LeaseSpec, RenewFrom, SourceName, time};
use lessor_cluster::Cluster;
use serde_json::json;
use tokio::time::{Instant, sleep, sleep_until};

/// How often a heart beats, and a holder renews.
const INTERVAL: Duration = Duration::from_secs(10);
/// Long enough that no lease ends, however busy the machine is.
const TTL: i64 = 600;

/// How much of it.
struct Sizes {
    leases: usize,
    hearts: usize,
    seconds: u64,
}

/// What one round showed.
struct Round {
    what: String,
    renewals: usize,
    writes: usize,
    operator: Duration,
    server: Duration,
    requests: usize,
    memory: f64,
}

#[tokio::main]
async fn main() -> ExitCode {
    let sizes = Sizes {
        leases: argument("--leases", 10_000),
        hearts: argument("--hearts", 100),
        seconds: argument("--seconds", 60) as u64,
    };
    let bed = Bed::on(Cluster::start().await.expect("a cluster")).await;
    let hearts = Api::<Coordination>::namespaced(bed.client.clone(), NAMESPACE);
    for heart in 0..sizes.hearts {
        let lease = json!({"metadata": {"name": format!("heart-{heart}")}, "spec": {"renewTime": now()}});
        let lease: Coordination = serde_json::from_value(lease).expect("a lease");
        hearts.create(&PostParams::default(), &lease).await.expect("a heartbeat");
    }
    let args = ["--follow", "coordination-leases", "--event-rate", "0.01", "--status-rate", "1000"];
    let replica = bed.replica(&args).await;
    replica.ready().await;

    println!("making {} leases that follow {} heartbeats", sizes.leases, sizes.hearts);
    make(&bed, &sizes, true).await;
    let rest = measure(&bed, &replica, &sizes, "at rest", async |_| (0, 0)).await;
    let followed = measure(&bed, &replica, &sizes, "following", async |by| {
        let beats = beat(&hearts, sizes.hearts, by).await;
        (beats * sizes.leases / sizes.hearts, beats)
    })
    .await;

    println!("making {} leases that their holders renew", sizes.leases);
    make(&bed, &sizes, false).await;
    let by_hand = measure(&bed, &replica, &sizes, "renewed by hand", async |by| {
        let renewals = renew(&bed.leases(), sizes.leases, by).await;
        (renewals, renewals)
    })
    .await;

    println!(
        "\n{} leases, {} heartbeats of {INTERVAL:?}, {} s each:\n",
        sizes.leases, sizes.hearts, sizes.seconds
    );
    println!(
        "| | renewals | writes for them | operator, processor time | API server, processor time | operator, requests | memory |"
    );
    println!("|---|---|---|---|---|---|---|");
    for round in [&rest, &followed, &by_hand] {
        let Round { what, renewals, writes, requests, .. } = round;
        let [operator, server] = [round.operator, round.server].map(|time| time.as_secs_f64());
        println!(
            "| {what} | {renewals} | {writes} | {operator:.2} s | {server:.1} s | {requests} | {:.0} MB |",
            round.memory
        );
    }
    if followed.requests == 0 {
        return ExitCode::SUCCESS;
    }
    println!("FAILED: no request for a beat is promised");
    ExitCode::FAILURE
}

/// A number from the arguments.
fn argument(name: &str, default: usize) -> usize {
    let mut arguments = std::env::args().skip_while(|argument| argument != name).skip(1);
    arguments.next().map_or(default, |number| number.parse().expect("a number"))
}

fn now() -> String {
    time::to_text(Timestamp::now())
}

/// Makes leases, and waits until they are granted, and follow if they do.
async fn make(bed: &Bed, sizes: &Sizes, follow: bool) {
    let leases = bed.leases();
    let prefix = if follow { "follows" } else { "held" };
    stream::iter(0..sizes.leases)
        .for_each_concurrent(AT_ONCE, |number| {
            let leases = leases.clone();
            async move {
                let source = SourceName { name: format!("heart-{}", number % sizes.hearts) };
                let renew_from =
                    follow.then(|| RenewFrom { coordination_lease: Some(source), ..RenewFrom::default() });
                let spec = LeaseSpec { ttl_seconds: TTL, renew_from, ..LeaseSpec::default() };
                let lease = Lease::new(&format!("{prefix}-{number}"), spec);
                leases.create(&PostParams::default(), &lease).await.expect("a lease");
            }
        })
        .await;
    let settled = |lease: &Lease| {
        let conditions = lease.status.iter().flat_map(|status| &status.conditions);
        let mut following = conditions.filter(|condition| condition.type_ == "Following");
        lease.is_granted()
            && (lease.spec.renew_from.is_none() || following.any(|found| found.status == "True"))
    };
    while !leases.list(&Default::default()).await.expect("leases").iter().all(settled) {
        sleep(Duration::from_secs(1)).await;
    }
    sleep(Duration::from_secs(5)).await;
}

async fn measure(
    bed: &Bed,
    replica: &Replica,
    sizes: &Sizes,
    what: &str,
    work: impl AsyncFnOnce(Instant) -> (usize, usize),
) -> Round {
    let audit = bed.cluster.audit().expect("an audit log");
    let server = bed.cluster.api_server().expect("an API server").process().pid();
    let mark = audit.mark().expect("a mark");
    let (operator_before, server_before) = (replica.processor_time(), processor_time(server));
    let until = Instant::now() + Duration::from_secs(sizes.seconds);
    let (renewals, writes) = work(until).await;
    sleep_until(until).await;
    let (operator, server) =
        (replica.processor_time() - operator_before, processor_time(server) - server_before);
    let asked = audit.since(mark).expect("its entries").agent(AGENT);
    let asked = asked.filter(|entry| entry.verb != "watch" && entry.resource != "events");
    let (requests, memory) = (asked.requests(), replica.memory());
    Round { what: what.to_owned(), renewals, writes, operator, server, requests, memory }
}

/// Lets every heart beat once in each interval; answers how often they did.
async fn beat(hearts: &Api<Coordination>, count: usize, until: Instant) -> usize {
    let beats = AtomicUsize::new(0);
    let all = stream::iter(0..count).for_each_concurrent(None, |heart| {
        let beats = &beats;
        async move {
            let mut at = Instant::now()
                + INTERVAL * u32::try_from(heart).expect("few") / u32::try_from(count).expect("few");
            while at < until {
                sleep_until(at).await;
                let patch = json!({"spec": {"renewTime": now()}});
                let name = format!("heart-{heart}");
                hearts.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await.expect("a beat");
                beats.fetch_add(1, Ordering::Relaxed);
                at += INTERVAL;
            }
        }
    });
    all.await;
    beats.into_inner()
}

/// Renews every lease once in each interval, or as fast as the API server can; answers how often.
async fn renew(leases: &Api<Lease>, count: usize, until: Instant) -> usize {
    let start = Instant::now();
    let mut renewed = 0;
    let mut renewals = stream::iter(0..)
        .map(|number: usize| async move {
            let due = INTERVAL.mul_f64(number as f64 / count as f64);
            sleep_until((start + due).min(until)).await;
            if Instant::now() >= until {
                return false;
            }
            let patch = json!({"spec": {"renewTime": now()}});
            let name = format!("held-{}", number % count);
            leases.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await.expect("a renewal");
            true
        })
        .buffered(AT_ONCE);
    while renewals.next().await == Some(true) {
        renewed += 1;
    }
    renewed
}
