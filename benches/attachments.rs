//! What the operator costs where most objects aren't attached: the time of its first sync, its memory and its requests, on a
//! real API server.
//!
//! `cargo bench --bench attachments`, or `just bench-attachments`; `-- --objects 10000` for a smaller run. The exit code is 1
//! if its memory grows with what isn't attached.
#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a program for people, which may fail by panicking"
)]

#[path = "bed/mod.rs"]
mod bed;

use std::{ops::Range, process::ExitCode, time::Duration};

use futures::{StreamExt, stream};
use kube::api::ListParams;
use lessor_api::Lease;
use lessor_cluster::Cluster;
use tokio::time::sleep;

use self::bed::{AT_ONCE, Bed};

/// How many ConfigMaps are attached, in both rounds.
const ATTACHED: usize = 1000;
/// How many leases they are attached to.
const LEASES: usize = 100;
/// How many aren't, in the first round.
const FEW: usize = 1000;
/// How much the rounds may be apart, in MB.
const APART: f64 = 10.0;
/// How long the operator is watched at rest.
const REST: Duration = Duration::from_secs(15);

/// What one round showed.
struct Round {
    unattached: usize,
    sync: Duration,
    /// In MB, when everything has been seen.
    resident: f64,
    /// In MB, the highest ever.
    peak: f64,
    requests_to_sync: usize,
    requests_at_rest: usize,
}

#[tokio::main]
async fn main() -> ExitCode {
    let many = objects();
    let bed = Bed::on(Cluster::start().await.expect("a cluster")).await;
    for number in 0..LEASES {
        bed.lease(&format!("lease-{number}"), 24 * 60 * 60).await;
    }

    println!("making {} ConfigMaps, {ATTACHED} of them attached to {LEASES} leases", ATTACHED + FEW);
    make(&bed, 0..ATTACHED, true).await;
    make(&bed, 0..FEW, false).await;
    grant(&bed).await;
    let few = measure(&bed, FEW).await;

    println!("making {} more ConfigMaps", many - FEW);
    make(&bed, FEW..many, false).await;
    let many = measure(&bed, many).await;

    println!();
    println!(
        "| ConfigMaps, {ATTACHED} attached and … | sync | resident | peak | requests until synced | in {REST:?} at rest |"
    );
    println!("|---|---|---|---|---|---|");
    for round in [&few, &many] {
        println!(
            "| {} unattached | {:.2} s | {:.1} MB | {:.1} MB | {} | {} |",
            round.unattached,
            round.sync.as_secs_f64(),
            round.resident,
            round.peak,
            round.requests_to_sync,
            round.requests_at_rest,
        );
    }
    let apart = (many.resident - few.resident).abs();
    println!("\nresident memory is {apart:.1} MB apart");
    if apart < APART && many.requests_at_rest == 0 {
        return ExitCode::SUCCESS;
    }
    println!("FAILED: less than {APART} MB and no requests at rest are promised");
    ExitCode::FAILURE
}

/// How many ConfigMaps aren't attached in the second round.
fn objects() -> usize {
    let mut arguments = std::env::args().skip_while(|argument| argument != "--objects").skip(1);
    let objects = arguments.next().map(|number| number.parse().expect("--objects takes a number"));
    objects.unwrap_or(100_000).max(FEW)
}

/// Makes ConfigMaps of about 1 KB with these numbers.
async fn make(bed: &Bed, numbers: Range<usize>, attached: bool) {
    let text = "x".repeat(1000);
    let each = async |number: usize| {
        let name = format!("{}-{number}", if attached { "attached" } else { "other" });
        let lease = attached.then(|| format!("lease-{}", number % LEASES));
        bed.config_map(&name, lease.as_deref(), &text).await;
    };
    stream::iter(numbers).for_each_concurrent(AT_ONCE, each).await;
}

/// Runs an operator until all leases are granted and say what is attached to them, so that later ones find nothing to do.
async fn grant(bed: &Bed) {
    let operator = bed.replica(&[]).await;
    let counted = |lease: &Lease| {
        let attached = lease.status.as_ref().and_then(|status| status.attached);
        attached.is_some_and(|attached| attached.objects == (ATTACHED / LEASES) as i64)
    };
    while !bed.leases().list(&ListParams::default()).await.expect("leases").iter().all(counted) {
        sleep(Duration::from_millis(200)).await;
    }
    operator.process.stop().await.expect("it stops");
}

async fn measure(bed: &Bed, unattached: usize) -> Round {
    let audit = bed.cluster.audit().expect("an audit log");
    let mark = audit.mark().expect("a mark");
    let operator = bed.replica(&[]).await;
    let sync = operator.ready().await;
    let requests_to_sync = audit.since(mark).expect("entries").by(&bed.user()).requests();
    // To claim the lead, and say so.
    sleep(Duration::from_secs(5)).await;
    let resident = operator.memory();
    let mark = audit.mark().expect("a mark");
    sleep(REST).await;
    let at_rest = audit.since(mark).expect("entries").by(&bed.user());
    let requests_at_rest = at_rest.filter(|entry| entry.verb != "watch").requests();
    let peak = operator.peak_memory();
    operator.process.stop().await.expect("it stops");
    Round { unattached, sync, resident, peak, requests_to_sync, requests_at_rest }
}
